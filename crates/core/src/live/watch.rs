//! A program's side: the door that it opens, and what a watched session does.

#[cfg(not(unix))]
use super::Error;
use super::Result;
#[cfg(unix)]
use super::write::{NO_BLOCK, Ring};
use crate::backend::{Bound, Timeline};
use crate::live::Facts;
use crate::memory::Pool;
use schwann_kernels::clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How often a run is watched operation by operation, in seconds, and no more than one in so many.
const WATCH_S: f64 = 0.04;
const WATCH_ONE_IN: u32 = 8;
/// How often what these gave is written down, in seconds.
const TELL_S: f64 = 1.0;

#[cfg(not(unix))]
#[derive(Debug)]
enum Ring {}

/// Lets this program be watched while it is there. Clones are the same door.
#[derive(Clone, Debug)]
pub struct Door(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ring: Ring,
    tick_s: f64,
    pool: Mutex<Option<Pool>>,
}

/// Opens a door for this program, under a name that [`found`](super::found) lists and `schwann monitor --attach` takes.
///
/// The door is open as long as there is a [`Door`] or a session that is watched through it.
pub fn open(name: &str) -> Result<Door> {
    #[cfg(unix)]
    {
        let ring = Ring::create(name)?;
        let tick_s = clock::Rate::start().seconds_per_tick();
        Ok(Door(Arc::new(Shared { ring, tick_s, pool: Mutex::default() })))
    }
    #[cfg(not(unix))]
    {
        let _ = name;
        Err(Error::System)
    }
}

impl Door {
    /// Times something that is no session's run, such as all that a loop does in a period, as a run of its own. A session
    /// that is watched is not to be timed once more.
    #[inline]
    pub fn time<T>(&self, run: impl FnOnce() -> T) -> T {
        let start = clock::ticks();
        let result = run();
        self.push(start, clock::ticks(), None);
        result
    }

    /// What this pool keeps is shown with the memory of watched sessions.
    pub fn pool(&self, pool: &Pool) {
        *self.0.pool.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool.clone());
    }

    #[inline]
    fn push(&self, start: u64, end: u64, block: Option<usize>) {
        #[cfg(unix)]
        self.0.ring.push(start, end.saturating_sub(start), block.map_or(NO_BLOCK, |b| b as u64));
        #[cfg(not(unix))]
        let _ = (start, end, block);
    }
}

/// What a watched session keeps.
pub(crate) struct Watch {
    door: Door,
    /// Where it tells what it runs; none where too many sessions are watched.
    block: Option<usize>,
    timeline: Timeline,
    /// The layout that was told.
    bound: Option<Arc<dyn Bound>>,
    facts: Facts,
    places: BTreeMap<Vec<usize>, usize>,
    /// All watched runs of this layout.
    runs: u64,
    outside: f64,
    seconds: Vec<f64>,
    /// Ticks from one watched run to the next, and when that is due.
    watch_every: u64,
    watch_due: u64,
    unwatched: u32,
    tell_every: u64,
    tell_due: u64,
    /// When the run that was submitted began.
    submitted: u64,
}

impl Watch {
    pub(crate) fn new(door: &Door) -> Watch {
        let ticks = |seconds: f64| (seconds / door.0.tick_s) as u64;
        #[cfg(unix)]
        let block = door.0.ring.take_block();
        #[cfg(not(unix))]
        let block = None;
        Watch {
            block,
            timeline: Timeline::default(),
            bound: None,
            facts: Facts::default(),
            places: BTreeMap::new(),
            runs: 0,
            outside: 0.0,
            seconds: vec![],
            watch_every: ticks(WATCH_S),
            watch_due: 0,
            unwatched: 0,
            tell_every: ticks(TELL_S),
            tell_due: 0,
            submitted: 0,
            door: door.clone(),
        }
    }

    /// A run begins: at which tick, and whether it is one that is watched.
    #[inline]
    pub(crate) fn begin(&mut self) -> (u64, bool) {
        let now = clock::ticks();
        let look = self.unwatched >= WATCH_ONE_IN && now >= self.watch_due && self.block.is_some();
        self.unwatched = if look { 0 } else { self.unwatched.saturating_add(1) };
        if look {
            self.watch_due = now.saturating_add(self.watch_every);
        }
        (now, look)
    }

    /// Where a watched run's operations are told.
    pub(crate) fn timeline(&mut self) -> &mut Timeline {
        &mut self.timeline
    }

    /// A run is about to be submitted.
    pub(crate) fn submitted(&mut self) {
        self.submitted = clock::ticks();
    }

    /// The run that was submitted has ended.
    pub(crate) fn waited(&mut self, bound: Option<&Arc<dyn Bound>>) {
        self.end(self.submitted, bound);
    }

    /// A run has ended that began at this tick.
    #[inline]
    pub(crate) fn end(&mut self, start: u64, bound: Option<&Arc<dyn Bound>>) {
        let now = clock::ticks();
        self.door.push(start, now, self.block);
        let same = match (&self.bound, bound) {
            (Some(told), Some(bound)) => Arc::ptr_eq(told, bound),
            (told, bound) => told.is_none() && bound.is_none(),
        };
        if !same || now >= self.tell_due {
            self.tell(now, bound, same);
        }
    }

    /// Writes down what is run, if that changed, and where the time goes.
    #[cold]
    fn tell(&mut self, now: u64, bound: Option<&Arc<dyn Bound>>, same: bool) {
        self.tell_due = now.saturating_add(self.tell_every);
        let Some(block) = self.block else {
            self.bound = bound.cloned();
            return;
        };
        let pool = self.door.0.pool.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pool_bytes = pool.map(|pool| pool.stats().kept_bytes as u64);
        if !same {
            // What was watched belongs to another layout.
            self.bound = bound.cloned();
            (self.facts, self.places) = bound.map(|bound| Facts::of(bound.plan())).unwrap_or_default();
            self.timeline = Timeline::default();
            (self.runs, self.outside, self.seconds) = (0, 0.0, vec![0.0; self.facts.parts.len()]);
        }
        if !same || pool_bytes != self.facts.pool_bytes {
            self.facts.pool_bytes = pool_bytes;
            #[cfg(unix)]
            self.door.0.ring.tell(block, &self.facts);
        }
        if self.timeline.runs() > 0 {
            let totals = self.timeline.totals();
            self.timeline.clear();
            self.runs += totals.runs;
            self.outside += totals.outside_s + totals.beside.iter().map(|b| b.seconds).sum::<f64>();
            for place in &totals.places {
                if let Some(seconds) = self.places.get(&place.path).and_then(|part| self.seconds.get_mut(*part)) {
                    *seconds += place.seconds;
                }
            }
        }
        #[cfg(unix)]
        self.door.0.ring.sum(block, self.runs, self.outside, &self.seconds);
        #[cfg(not(unix))]
        let _ = block;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(block) = self.block {
            self.door.0.ring.free_block(block);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::live::Ring;
    use crate::{CompileOptions, DType, GraphBuilder, Program, Tensor, shape};
    use std::time::{Duration, Instant};

    #[test]
    fn a_watched_session_gives_the_same_numbers_and_tells_what_it_runs() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, shape!["B", 3]).unwrap();
        let w = b.weight("w", Tensor::new(&[3, 2], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap()).unwrap();
        let y = b.matmul(x, w).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let (mut plain, mut session) = (program.session(), program.session());
        let door = open("watched-session").unwrap();
        let mut ring = Ring::attach("watched-session").unwrap();
        session.watch(&door);
        let small = Tensor::new(&[1, 3], &[0.1f32, 0.2, 0.3]).unwrap();
        let wanted = plain.run(&[("x", &small)]).unwrap()[0].values::<f32>().unwrap().to_vec();
        let end = Instant::now() + Duration::from_secs(30);
        // Until a run was watched, and that was written down.
        let (mut runs, mut seen) = (0, 0);
        let told = loop {
            runs += 1;
            assert_eq!(session.run(&[("x", &small)]).unwrap()[0].values::<f32>().unwrap(), wanted);
            if runs % 1024 == 0 {
                seen += ring.read(|seconds, session| assert!(seconds < 60.0 && session == 0)).unwrap().runs;
                let told = ring.told().unwrap();
                if told[0].watched > 0 || Instant::now() > end {
                    break told;
                }
            }
        };
        assert_eq!(seen, runs);
        let (facts, _) = Facts::of(session.plan().unwrap());
        assert!(told.len() == 1 && told[0].facts == facts && told[0].watched > 0, "{told:?}");
        assert!(told[0].seconds.iter().sum::<f64>() > 0.0);
        // Another size is told at once, and what was watched before is not its own.
        session.run(&[("x", &Tensor::zeros(DType::F32, &[7, 3]).unwrap())]).unwrap();
        let told = ring.told().unwrap();
        assert_eq!((told[0].facts.sizes["B"], told[0].watched), (7, 0));
        // What is timed by hand is of no session; a run that fails is none.
        assert!(session.run(&[]).is_err());
        assert_eq!(door.time(|| 5), 5);
        let mut sessions = vec![];
        ring.read(|_, session| sessions.push(session)).unwrap();
        assert_eq!(sessions, [0, u64::MAX]);
        // The door stays open as long as somebody uses it.
        drop(door);
        assert!(ring.is_alive());
        drop(session);
        assert!(!ring.is_alive() && Ring::attach("watched-session").is_err());
    }

    #[test]
    fn more_sessions_than_have_room_are_timed_all_the_same() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, shape![2]).unwrap();
        let y = b.tanh(x).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
        let door = open("many-sessions").unwrap();
        let mut ring = Ring::attach("many-sessions").unwrap();
        let x = Tensor::zeros(DType::F32, &[2]).unwrap();
        let mut sessions: Vec<_> = (0..10).map(|_| program.session()).collect();
        for session in &mut sessions {
            session.watch(&door);
            session.run(&[("x", &x)]).unwrap();
        }
        let mut of = vec![];
        assert_eq!(ring.read(|_, session| of.push(session)).unwrap().runs, 10);
        assert_eq!((of[..8].to_vec(), of[8..].to_vec()), ((0..8).collect::<Vec<u64>>(), vec![u64::MAX; 2]));
        assert_eq!(ring.told().unwrap().len(), 8);
        // Room that is given back is used again.
        drop(sessions.remove(3));
        let mut late = program.session();
        late.watch(&door);
        late.run(&[("x", &x)]).unwrap();
        assert!(ring.told().unwrap().iter().any(|t| t.session == 3));
    }
}
