//! Timing one's own operations: named, nested, on any number of threads.
//!
//! Scopes form a tree by what they are entered in; threads that enter the same path share its figures. A scope is
//! entered with a guard, or begun and ended by calls where a guard does not fit. Each costs two readings of the clock
//! and two short locks, some 100 ns: for operations of microseconds and more. What a session does inside is the
//! [profiler's](crate::profiler).

use crate::profiler::OpEvent;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Events kept unless told otherwise.
const MOST_EVENTS: usize = 1 << 16;

/// A scope that was ended wrongly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An end without a beginning.
    #[error("no operation is open on this thread; expected a start before the end")]
    NotStarted,
    /// An end while a guard's scope is still open inside.
    #[error("`{open}` is still open inside `{operation}`; expected its guard to be dropped before the end")]
    StillOpen {
        /// The operation that was to end.
        operation: String,
        /// The innermost scope.
        open: String,
    },
    /// A guard that was dropped before a scope inside it had ended.
    #[error("`{scope}` ended before `{inner}`, which was entered inside it")]
    OutOfOrder {
        /// The scope.
        scope: String,
        /// The one inside.
        inner: String,
    },
}

/// What one path took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Names from the outermost scope to this one.
    pub path: Vec<String>,
    /// How often it ended.
    pub count: u64,
    /// In all.
    pub total: Duration,
    /// In all, without the scopes inside it.
    pub own: Duration,
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl Stats {
    /// The mean.
    pub fn average(&self) -> Duration {
        Duration::from_secs_f64(self.total.as_secs_f64() / self.count.max(1) as f64)
    }
}

/// Named, nested timings of one's own operations; clones share them.
///
/// ```
/// # use schwann_prof::scope::Scopes;
/// let scopes = Scopes::new();
/// {
///     let _step = scopes.enter("step");
///     let _read = scopes.enter("read");
/// }
/// scopes.start_operation("write");
/// let took = scopes.end_operation()?;
/// assert_eq!(scopes.average_time("write"), Some(took));
/// let paths: Vec<String> = scopes.stats().iter().map(|s| s.path.join("/")).collect();
/// assert_eq!(paths, ["step", "step/read", "write"]);
/// # Ok::<(), schwann_prof::scope::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scopes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    started: Instant,
    most_events: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: Vec<Node>,
    roots: Vec<usize>,
    threads: HashMap<ThreadId, Thread>,
    events: Vec<(usize, usize, Duration, Duration)>,
    problems: Vec<Error>,
    entered: u64,
}

#[derive(Debug, Default)]
struct Thread {
    number: usize,
    open: Vec<Open>,
}

/// A scope that was entered and has not ended.
#[derive(Debug)]
struct Open {
    node: usize,
    began: Instant,
    /// What scopes inside it took.
    inside: Duration,
    /// Tells it from others of the same name.
    serial: u64,
    guarded: bool,
}

#[derive(Debug, Default)]
struct Node {
    name: String,
    parent: Option<usize>,
    children: Vec<usize>,
    count: u64,
    total: Duration,
    own: Duration,
    min: Duration,
    max: Duration,
}

impl Default for Scopes {
    fn default() -> Scopes {
        Scopes::new()
    }
}

impl Scopes {
    /// None yet.
    pub fn new() -> Scopes {
        Scopes::with_events(MOST_EVENTS)
    }

    /// None yet; the first so many are also kept one by one, for traces.
    pub fn with_events(most: usize) -> Scopes {
        Scopes(Arc::new(Shared { started: Instant::now(), most_events: most, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves counts as they are, and those are whole at every moment.
        self.0.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn open(&self, name: &str, guarded: bool) -> u64 {
        let mut state = self.lock();
        let number = state.threads.len();
        let id = std::thread::current().id();
        let parent = state.threads.get(&id).and_then(|t| t.open.last()).map(|o| o.node);
        let node = state.node(parent, name);
        state.entered += 1;
        let serial = state.entered;
        let thread = state.threads.entry(id).or_insert_with(|| Thread { number, open: vec![] });
        thread.open.push(Open { node, began: Instant::now(), inside: Duration::ZERO, serial, guarded });
        serial
    }

    /// Enters a scope, which ends when the guard is dropped.
    #[must_use = "the scope ends when this is dropped"]
    pub fn enter(&self, name: &str) -> Scope {
        Scope { serial: self.open(name, true), scopes: self.clone(), _here: PhantomData }
    }

    /// Begins an operation on this thread, inside what is open there.
    pub fn start_operation(&self, name: &str) {
        self.open(name, false);
    }

    /// Ends the operation that was begun last on this thread, and gives how long it took.
    pub fn end_operation(&self) -> Result<Duration, Error> {
        let now = Instant::now();
        let mut state = self.lock();
        let id = std::thread::current().id();
        let open = state.threads.get(&id).map_or(&[][..], |t| &t.open[..]);
        let Some(at) = open.iter().rposition(|o| !o.guarded) else { return Err(Error::NotStarted) };
        if at + 1 < open.len() {
            let name = |o: &Open| state.nodes[o.node].name.clone();
            return Err(Error::StillOpen { operation: name(&open[at]), open: name(&open[open.len() - 1]) });
        }
        Ok(state.close(id, at, now, self))
    }

    /// The mean time of a name, wherever it was entered; `None` before it first ended.
    pub fn average_time(&self, name: &str) -> Option<Duration> {
        let state = self.lock();
        let named = state.nodes.iter().filter(|n| n.name == name);
        let (count, total) = named.fold((0, Duration::ZERO), |(c, t), n| (c + n.count, t + n.total));
        (count > 0).then(|| Duration::from_secs_f64(total.as_secs_f64() / count as f64))
    }

    /// Every path that has ended at least once: each before those inside it, in the order they were first entered.
    pub fn stats(&self) -> Vec<Stats> {
        let state = self.lock();
        let mut stats = vec![];
        let mut todo: Vec<(usize, Vec<String>)> = state.roots.iter().rev().map(|&n| (n, vec![])).collect();
        while let Some((at, mut path)) = todo.pop() {
            let node = &state.nodes[at];
            path.push(node.name.clone());
            todo.extend(node.children.iter().rev().map(|&c| (c, path.clone())));
            if node.count > 0 {
                let Node { count, total, own, min, max, .. } = *node;
                stats.push(Stats { path, count, total, own, min, max });
            }
        }
        stats
    }

    /// What ended wrongly so far and could not be told at once: guards dropped out of order.
    pub fn problems(&self) -> Vec<Error> {
        self.lock().problems.clone()
    }

    /// The first scopes that ended, by their beginning; seconds count from when these scopes were made.
    pub fn events(&self) -> Vec<OpEvent> {
        let state = self.lock();
        let event = |&(node, thread, start, took): &(usize, usize, Duration, Duration)| {
            let mut path = vec![node];
            while let Some(parent) = state.nodes[path[path.len() - 1]].parent {
                path.push(parent);
            }
            path.reverse();
            let name = state.nodes[node].name.clone();
            OpEvent { path, name, thread, start_s: start.as_secs_f64(), duration_s: took.as_secs_f64() }
        };
        let mut events: Vec<OpEvent> = state.events.iter().map(event).collect();
        events.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(b.duration_s.total_cmp(&a.duration_s)));
        events
    }

    /// When these scopes were made: second 0 of their events.
    pub fn started(&self) -> Instant {
        self.0.started
    }
}

impl State {
    fn node(&mut self, parent: Option<usize>, name: &str) -> usize {
        let among = parent.map_or(&self.roots, |p| &self.nodes[p].children);
        if let Some(&found) = among.iter().find(|&&n| self.nodes[n].name == name) {
            return found;
        }
        let new = self.nodes.len();
        self.nodes.push(Node { name: name.into(), parent, ..Node::default() });
        match parent {
            Some(parent) => self.nodes[parent].children.push(new),
            None => self.roots.push(new),
        }
        new
    }

    /// Ends the scope at this depth of a thread.
    fn close(&mut self, id: ThreadId, at: usize, now: Instant, scopes: &Scopes) -> Duration {
        let Some(thread) = self.threads.get_mut(&id).filter(|t| at < t.open.len()) else { return Duration::ZERO };
        let open = thread.open.remove(at);
        let took = now.saturating_duration_since(open.began);
        if let Some(around) = at.checked_sub(1).and_then(|a| thread.open.get_mut(a)) {
            around.inside += took;
        }
        let number = thread.number;
        let node = &mut self.nodes[open.node];
        node.min = if node.count == 0 { took } else { node.min.min(took) };
        node.max = node.max.max(took);
        node.count += 1;
        node.total += took;
        node.own += took.saturating_sub(open.inside);
        if self.events.len() < scopes.0.most_events {
            self.events.push((open.node, number, open.began.saturating_duration_since(scopes.0.started), took));
        }
        took
    }
}

/// A scope that is open; it ends when this is dropped, on the thread that entered it.
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    scopes: Scopes,
    serial: u64,
    /// Keeps it on its thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.scopes.lock();
        let id = std::thread::current().id();
        let open = state.threads.get(&id).map_or(&[][..], |t| &t.open[..]);
        let Some(at) = open.iter().rposition(|o| o.serial == self.serial) else { return };
        if at + 1 < open.len() {
            let name = |o: &Open| state.nodes[o.node].name.clone();
            let problem = Error::OutOfOrder { scope: name(&open[at]), inner: name(&open[open.len() - 1]) };
            state.problems.push(problem);
        }
        state.close(id, at, now, &self.scopes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(scopes: &Scopes) -> Vec<(String, u64)> {
        scopes.stats().iter().map(|s| (s.path.join("/"), s.count)).collect()
    }

    #[test]
    fn threads_that_enter_the_same_path_share_its_figures() {
        let scopes = Scopes::new();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..25 {
                        let _outer = scopes.enter("outer");
                        let _inner = scopes.enter("inner");
                    }
                });
            }
        });
        assert_eq!(paths(&scopes), [("outer".into(), 100), ("outer/inner".into(), 100)]);
        let events = scopes.events();
        assert_eq!(events.len(), 200);
        assert_eq!(events.iter().map(|e| e.thread).collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert!(scopes.problems().is_empty());
    }

    #[test]
    fn own_time_is_what_the_scopes_inside_leave_and_extremes_hold_the_mean() {
        let scopes = Scopes::new();
        for pause in [1, 3] {
            let _outer = scopes.enter("outer");
            let _inner = scopes.enter("inner");
            std::thread::sleep(Duration::from_millis(pause));
        }
        let [outer, inner] = &scopes.stats()[..] else { panic!("two paths") };
        assert_eq!(outer.own + inner.total, outer.total);
        assert!(inner.min <= inner.average() && inner.average() <= inner.max && inner.min < inner.max);
        assert!(inner.min >= Duration::from_millis(1) && inner.total <= outer.total);
        assert_eq!(scopes.average_time("inner"), Some(inner.average()));
        assert_eq!(scopes.average_time("none"), None);
    }

    #[test]
    fn an_end_that_matches_no_beginning_is_an_error_and_changes_nothing() {
        let scopes = Scopes::new();
        assert_eq!(scopes.end_operation(), Err(Error::NotStarted));
        scopes.start_operation("work");
        let guard = scopes.enter("part");
        let still = Error::StillOpen { operation: "work".into(), open: "part".into() };
        assert_eq!(scopes.end_operation(), Err(still));
        drop(guard);
        assert!(scopes.end_operation().is_ok());
        assert_eq!(scopes.end_operation(), Err(Error::NotStarted));
        // Another thread's operation is not this one's to end.
        scopes.start_operation("here");
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(scopes.end_operation(), Err(Error::NotStarted)));
        });
        assert!(scopes.end_operation().is_ok());
    }

    #[test]
    fn guards_dropped_out_of_order_are_counted_and_told() {
        let scopes = Scopes::new();
        let outer = scopes.enter("outer");
        let inner = scopes.enter("inner");
        drop(outer);
        drop(inner);
        assert_eq!(paths(&scopes), [("outer".into(), 1), ("outer/inner".into(), 1)]);
        assert_eq!(scopes.problems(), [Error::OutOfOrder { scope: "outer".into(), inner: "inner".into() }]);
        let _again = scopes.enter("outer");
    }

    #[test]
    fn events_beyond_the_limit_are_not_kept_but_counted() {
        let scopes = Scopes::with_events(3);
        (0..10).for_each(|_| drop(scopes.enter("a")));
        assert_eq!((scopes.events().len(), scopes.stats()[0].count), (3, 10));
    }
}
