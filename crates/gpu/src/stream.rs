//! Runs of one session on a device.
//!
//! A run is a script of launches. It is cut into submissions ([`crate::pieces`]), of which two are under way at a time,
//! so that the device always has something to do and a run can still be stopped. Submissions of earlier runs are kept,
//! with their arguments on the device: a run that can reuse all of them makes nothing new.

use crate::backend::{Constants, Ready};
use crate::device::{Device, Launch, problem};
use crate::memory::Memory;
use crate::pieces::{Cursor, Cut, MOST_LAUNCHES, Manner, Pace, Part, Script};
use crate::spans::{self, Lap, QUEUES};
use schwann_core::backend::{self, Bound, Canceller, Inputs, Observer, Queue, Sizes, Span, Stream};
use schwann_core::{DType, Error, Result, Tensor};
use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The most submissions that are kept for later runs.
const MOST_KEPT: usize = 32;

/// The most submissions under way at a time.
const MOST_UNDER_WAY: usize = 2;

/// A stream on a device.
pub(crate) struct Lane<D: Device> {
    device: Arc<D>,
    constants: Arc<Constants<D>>,
    states: Vec<(usize, usize)>,
    /// Types and shapes of the states, as last fitted.
    state_sizes: Vec<Size>,
    memory: Memory<D>,
    layout: Option<Fitted<D>>,
    run: Option<Run<D>>,
    /// Values of states and results that were copied to the host.
    values: Vec<OnceCell<Tensor>>,
    shown: Vec<OnceCell<Tensor>>,
    all: OnceCell<Vec<Tensor>>,
    /// Tensors that can be reused.
    spare: RefCell<Vec<Tensor>>,
}

/// A type and a shape.
type Size = (DType, Vec<usize>);

/// The layout that the stream is fitted to.
struct Fitted<D: Device> {
    ready: Arc<Ready<D>>,
    sizes: Sizes,
    script: Script,
    pace: Pace,
    /// Submissions of earlier runs, the latest last.
    kept: VecDeque<Piece<D>>,
}

/// A submission that can be repeated if inputs, outputs and states are in the same places.
struct Piece<D: Device> {
    from: Cursor,
    manner: Manner,
    swapped: bool,
    constants: Arc<D::Buffer>,
    cut: Cut,
    parts: Arc<[Part]>,
    /// `None` if nothing is launched.
    list: Option<D::List>,
}

/// A run under way.
struct Run<D: Device> {
    at: Cursor,
    constants: Arc<D::Buffer>,
    cancel: Canceller,
    manner: Manner,
    timed: bool,
    given: Instant,
    /// When its inputs were on their way.
    sent: Instant,
    flights: VecDeque<Flight<D>>,
    laps: Vec<Lap>,
    watched: bool,
}

/// A submission under way.
struct Flight<D: Device> {
    parts: Arc<[Part]>,
    from: Instant,
    given: Instant,
    ticket: Option<D::Ticket>,
}

/// The times of a run that succeeded.
struct Told {
    given: Instant,
    spans: Vec<Span>,
}

impl<D: Device> Lane<D> {
    pub(crate) fn new(
        device: Arc<D>,
        constants: Arc<Constants<D>>,
        inputs: usize,
        outputs: usize,
        states: Vec<(usize, usize)>,
    ) -> Lane<D> {
        Lane {
            memory: Memory::new(Arc::clone(&device), inputs, states.clone()),
            layout: None,
            run: None,
            values: states.iter().map(|_| OnceCell::new()).collect(),
            shown: (0..outputs).map(|_| OnceCell::new()).collect(),
            all: OnceCell::new(),
            spare: RefCell::default(),
            device,
            constants,
            states,
            state_sizes: vec![],
        }
    }

    fn missing(&self, what: &str) -> Error {
        Error::Internal(format!("{}: {what}", self.device.name()))
    }

    fn forget_results(&mut self) {
        let mut spare = self.spare.borrow_mut();
        spare.extend(self.shown.iter_mut().filter_map(OnceCell::take));
        spare.extend(self.all.take().into_iter().flatten());
    }

    fn forget_values(&mut self) {
        let mut spare = self.spare.borrow_mut();
        spare.extend(self.values.iter_mut().filter_map(OnceCell::take));
    }

    /// A tensor to be written.
    fn tensor(&self, (dtype, shape): &Size) -> Result<Tensor> {
        let mut spare = self.spare.borrow_mut();
        match spare.iter().position(|t| t.dtype() == *dtype && t.shape() == shape) {
            Some(at) => Ok(spare.swap_remove(at)),
            None => Tensor::zeros(*dtype, shape),
        }
    }

    fn fitted(&self) -> Result<&Fitted<D>> {
        self.layout.as_ref().ok_or_else(|| self.missing("a run without a layout"))
    }

    /// Results, fetched from the device together.
    fn fetch(&self, wanted: &[usize]) -> Result<Vec<Tensor>> {
        let sizes = &self.fitted()?.sizes;
        let mut tensors = wanted.iter().map(|&i| self.tensor(&sizes.outputs[i])).collect::<Result<Vec<_>>>()?;
        let mut parts: Vec<(usize, &mut [u8])> =
            wanted.iter().copied().zip(tensors.iter_mut().map(Tensor::bytes_mut)).collect();
        self.memory.read_outputs(&mut parts)?;
        Ok(tensors)
    }

    /// Submits the next pieces, while there are any and fewer than [`MOST_UNDER_WAY`] are under way.
    fn go_on(&mut self, run: &mut Run<D>) -> Result<()> {
        let Some(fitted) = &mut self.layout else { return Err(self.missing("a run without a layout")) };
        let room = self.memory.room()?;
        while !fitted.script.is_over(&run.at) && run.flights.len() < MOST_UNDER_WAY {
            let same = |piece: &Piece<D>| {
                piece.from == run.at
                    && (piece.swapped, piece.manner) == (room.swapped, run.manner)
                    && Arc::ptr_eq(&piece.constants, &run.constants)
            };
            let known = fitted.kept.iter().position(same);
            let suits = |at: &usize| fitted.pace.approves(&fitted.script, &fitted.kept[*at].cut, run.manner);
            let piece = match known.filter(suits) {
                Some(at) => fitted.kept.remove(at),
                None => {
                    let cut = fitted.pace.cut(&fitted.script, &run.at, &room.places, run.manner);
                    let hasty = run.manner.apart || fitted.pace.expect(&cut.parts).1 > 0;
                    if hasty && !run.flights.is_empty() {
                        // The pace is better known once the submissions under way have ended, so wait for them.
                        return Ok(());
                    }
                    match known.filter(|at| fitted.kept[*at].cut == cut) {
                        Some(at) => fitted.kept.remove(at),
                        None => {
                            let old = oldest(&mut fitted.kept, &run.at, room.swapped);
                            Some(piece(&*self.device, fitted, run, room, cut, old)?)
                        }
                    }
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            let from = Instant::now();
            let ticket = piece.list.as_ref().map(|list| self.device.submit(list, run.timed)).transpose();
            let (parts, to) = (Arc::clone(&piece.parts), piece.cut.to.clone());
            fitted.kept.push_back(piece);
            run.flights.push_back(Flight { parts, from, given: Instant::now(), ticket: ticket? });
            run.at = to;
            if run.manner.apart {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the submission that was made first, and learns from it.
    fn land(&mut self, run: &mut Run<D>) -> Result<()> {
        let Some(flight) = run.flights.pop_front() else { return Ok(()) };
        let Some(ticket) = flight.ticket else {
            run.note(flight.parts, [flight.from, flight.given], None);
            return Ok(());
        };
        let over = self.device.ended(&ticket)?;
        let times = self.device.wait(ticket)?;
        let began = run.laps.last().map_or(flight.from, |lap| lap.to.max(flight.from));
        let took = began.elapsed().as_secs_f64();
        if let Some(fitted) = &mut self.layout {
            match &times {
                Some(times) => fitted.pace.learn_each(&flight.parts, times.iter().map(|[from, to]| to - from)),
                None => fitted.pace.learn(&flight.parts, took, !over),
            }
        }
        run.note(flight.parts, [flight.from, flight.given], times);
        Ok(())
    }

    /// Runs the rest to its end.
    fn finish(&mut self) -> Result<Told> {
        let Some(mut run) = self.run.take() else { return Err(self.missing("a wait for nothing")) };
        let stopped = loop {
            if run.cancel.is_cancelled() {
                break true;
            }
            self.go_on(&mut run)?;
            if run.flights.is_empty() {
                break false;
            }
            self.land(&mut run)?;
        };
        if stopped {
            // Submissions under way cannot be stopped; they are short, and change no state that is kept.
            while !run.flights.is_empty() {
                self.land(&mut run)?;
            }
            return Err(Error::Cancelled);
        }
        self.look_for_faults()?;
        self.memory.written();
        self.forget_values();
        let fitted = self.fitted()?;
        let mut spans = vec![];
        if run.watched {
            spans.push(spans::by_host(spans::UPLOAD, run.given, run.given, run.sent));
            let submitted = |lap: &Lap| spans::by_host(spans::SUBMISSION, run.given, lap.from, lap.given);
            spans.extend(run.laps.iter().map(submitted));
            spans.extend(spans::steps(&fitted.script, &run.laps, run.given));
        }
        Ok(Told { given: run.given, spans })
    }

    fn look_for_faults(&mut self) -> Result<()> {
        let faults = &self.fitted()?.ready.layout.faults;
        if faults.is_empty() {
            return Ok(());
        }
        let mut bytes = vec![0; 4 * faults.len()];
        self.device.read(&self.memory.room()?.faults, &mut [(0, &mut bytes)])?;
        if let Some(fault) = faults.iter().zip(bytes.chunks(4)).find(|(_, word)| word.iter().any(|b| *b != 0)) {
            let (node, problem) = (fault.0.node.clone(), fault.0.problem.clone());
            return Err(Error::Value { node, problem });
        }
        if let Some(room) = &mut self.memory.room {
            room.tainted = false;
        }
        Ok(())
    }

    fn tell(&self, observer: &mut dyn Observer, told: &Told) {
        let (steps, calls) = (self.device.clock().unwrap_or_else(spans::host_clock), spans::host_calls_clock());
        let mut queues = QUEUES.map(|name| Queue { name, clock: &calls });
        queues[spans::COMPUTE].clock = &steps;
        backend::tell(observer, &queues, told.given, &told.spans);
    }
}

impl<D: Device> Run<D> {
    fn note(&mut self, parts: Arc<[Part]>, [from, given]: [Instant; 2], times: Option<Vec<[f64; 2]>>) {
        let lap = Lap { parts, from, given, to: Instant::now(), times };
        if self.watched {
            self.laps.push(lap);
        } else {
            // Only the end of the last one matters.
            self.laps.clear();
            self.laps.push(lap);
        }
    }
}

/// A list that a new submission may reuse: that of the submission it replaces, else the least recently used one if
/// there are many.
fn oldest<D: Device>(kept: &mut VecDeque<Piece<D>>, at: &Cursor, swapped: bool) -> Option<D::List> {
    let replaced = kept.iter().position(|piece| piece.from == *at && piece.swapped == swapped);
    let piece = match replaced {
        Some(at) => kept.remove(at),
        None if kept.len() >= MOST_KEPT => kept.pop_front(),
        None => None,
    };
    piece.and_then(|piece| piece.list)
}

fn piece<D: Device>(
    device: &D,
    fitted: &Fitted<D>,
    run: &Run<D>,
    room: &crate::memory::Room<D>,
    cut: Cut,
    old: Option<D::List>,
) -> Result<Piece<D>> {
    let launches: Vec<Launch<D::Kernel>> = cut
        .parts
        .iter()
        .filter_map(|part| {
            let dispatch = &fitted.script.dispatches[part.dispatch];
            let kernel = fitted.ready.kernels[dispatch.kernel].clone();
            Some(Launch { kernel, groups: dispatch.groups, args: part.args.clone()? })
        })
        .collect();
    let list = match launches.is_empty() {
        true => None,
        false => Some(device.list([&room.arena, &run.constants, &room.faults], &launches, old)?),
    };
    let (from, constants, parts) = (run.at.clone(), Arc::clone(&run.constants), cut.parts.clone().into());
    Ok(Piece { from, manner: run.manner, swapped: room.swapped, constants, cut, parts, list })
}

/// The cell's value; fetches it if the cell is empty.
fn fetched<T>(cell: &OnceCell<T>, fetch: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(fetch()?);
    }
    cell.get().ok_or_else(|| Error::Internal("a cell that was set is empty".into()))
}

impl<D: Device> Stream for Lane<D> {
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()> {
        let ready: Arc<Ready<D>> = bound.downcast()?;
        self.release();
        self.memory.fit(&ready.layout, sizes)?;
        let script = Script::new(&ready.layout.items);
        let pace = Pace::new(&script);
        self.state_sizes = self.states.iter().map(|&(input, _)| sizes.inputs[input].clone()).collect();
        self.layout = Some(Fitted { ready, sizes: sizes.clone(), script, pace, kept: VecDeque::new() });
        Ok(())
    }

    fn release(&mut self) {
        self.forget_results();
        self.spare.borrow_mut().clear();
        // Kept submissions refer to the arena.
        self.layout = None;
        self.memory.release();
    }

    fn bytes(&self) -> usize {
        self.memory.bytes() as usize
    }

    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        self.memory.upload(input, value)
    }

    fn zero(&mut self, state: usize) -> Result<()> {
        self.forget_results();
        self.forget_values();
        self.memory.zero(state)
    }

    fn state(&self, state: usize) -> Result<&Tensor> {
        fetched(&self.values[state], || {
            let size = self.state_sizes.get(state).ok_or_else(|| self.missing("a state without a size"))?;
            let mut value = self.tensor(size)?;
            self.memory.read_state(state, value.bytes_mut())?;
            Ok(value)
        })
    }

    fn submit(&mut self, inputs: &dyn Inputs, watched: bool, cancel: &Canceller) -> Result<()> {
        let given = Instant::now();
        self.forget_results();
        self.memory.settle()?;
        self.memory.take(inputs)?;
        self.memory.wipe_faults()?;
        if let Some(room) = &mut self.memory.room {
            room.tainted = true;
        }
        let fitted = self.fitted()?;
        let timed = watched && self.device.clock().is_some();
        let most = if timed { MOST_LAUNCHES.min(self.device.limits().timed) } else { MOST_LAUNCHES };
        let mut run = Run {
            at: fitted.script.start(),
            constants: self.constants.now(),
            cancel: cancel.clone(),
            manner: Manner { most, apart: watched && !timed },
            timed,
            given,
            sent: Instant::now(),
            flights: VecDeque::new(),
            laps: vec![],
            watched,
        };
        if !cancel.is_cancelled() {
            self.go_on(&mut run)?;
        }
        self.run = Some(run);
        Ok(())
    }

    fn wait(&mut self, observer: Option<&mut dyn Observer>) -> Result<()> {
        let told = self.finish()?;
        if let Some(observer) = observer {
            self.tell(observer, &told);
        }
        Ok(())
    }

    fn outputs(&self) -> Result<&[Tensor]> {
        let all: Vec<usize> = (0..self.shown.len()).collect();
        fetched(&self.all, || self.fetch(&all)).map(|all| &all[..])
    }

    fn output(&self, index: usize) -> Result<&Tensor> {
        if let Some(all) = self.all.get() {
            return Ok(&all[index]);
        }
        let one = || self.fetch(&[index])?.pop().ok_or_else(|| problem(&self.device.name(), "a result is missing"));
        fetched(&self.shown[index], one)
    }

    fn run(
        &mut self,
        inputs: &dyn Inputs,
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<&[Tensor]> {
        self.submit(inputs, observer.is_some(), cancel)?;
        let mut told = self.finish()?;
        let from = Instant::now();
        if let Err(problem) = self.outputs() {
            // The caller gets an error, so the run must leave no trace.
            self.forget_values();
            self.memory.unwritten();
            return Err(problem);
        }
        if let Some(observer) = observer {
            told.spans.push(spans::by_host(spans::DOWNLOAD, told.given, from, Instant::now()));
            self.tell(observer, &told);
        }
        self.outputs()
    }
}
