//! The device of the strange backend: a thread with memory of its own, which does what it is told in order, later.

use schwann_core::backend::reference::{HostValue, Precision, concrete, eval_node};
use schwann_core::backend::{Canceller, Span};
use schwann_core::op::Scan;
use schwann_core::{Bindings, DType, Error, Graph, Op, Result, Tensor};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A buffer of the card, by number.
pub(crate) type Handle = usize;

/// A buffer as the card keeps it: every bit is turned, so that nothing which looks at it by mistake makes sense of it.
struct Hidden {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Hidden {
    fn hide(value: &Tensor) -> Hidden {
        let bytes = value.bytes().iter().map(|b| !b).collect();
        Hidden { dtype: value.dtype(), shape: value.shape().to_vec(), bytes }
    }
    fn show(&self) -> Result<Tensor> {
        let bytes: Vec<u8> = self.bytes.iter().map(|b| !b).collect();
        Tensor::from_bytes(self.dtype, &self.shape, &bytes)
    }
}

/// A run, as the card is told of it.
pub(crate) struct Job {
    pub(crate) graph: Arc<Graph>,
    pub(crate) bindings: Bindings,
    pub(crate) weights: Arc<HashMap<String, Handle>>,
    pub(crate) inputs: Vec<Handle>,
    pub(crate) outputs: Vec<Handle>,
    pub(crate) given: Instant,
    pub(crate) cancel: Canceller,
    pub(crate) reply: Sender<Result<Vec<Span>>>,
}

pub(crate) enum Command {
    Put(Handle, Tensor),
    Get(Handle, Sender<Result<Tensor>>),
    Free(Vec<Handle>),
    Run(Box<Job>),
}

/// What a test may look at and turn.
#[derive(Default)]
pub(crate) struct Knobs {
    /// Tensors that went to the card, and that came back.
    pub(crate) puts: AtomicUsize,
    pub(crate) gets: AtomicUsize,
    /// Buffers on the card.
    pub(crate) buffers: AtomicUsize,
    /// So many of the next runs fail in their middle.
    pub(crate) failures: AtomicUsize,
    /// So many of the next downloads fail.
    pub(crate) lost_gets: AtomicUsize,
    /// Microseconds that every step takes beyond its work.
    pub(crate) delay_us: AtomicUsize,
}

/// One less of a number of failures to come; whether there was one.
fn one_less(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

/// The card's end of the line.
pub(crate) struct Card {
    line: Mutex<Sender<Command>>,
    next: AtomicUsize,
    pub(crate) knobs: Arc<Knobs>,
}

impl Card {
    pub(crate) fn start() -> Result<Arc<Card>> {
        let (line, commands) = channel();
        let knobs = Arc::new(Knobs::default());
        let of_card = Arc::clone(&knobs);
        let work = move || Memory { buffers: HashMap::new(), knobs: of_card }.obey(&commands);
        std::thread::Builder::new().name("strange card".into()).spawn(work).map_err(Error::Thread)?;
        Ok(Arc::new(Card { line: Mutex::new(line), next: AtomicUsize::new(1), knobs }))
    }

    pub(crate) fn send(&self, command: Command) -> Result<()> {
        let sent = self.line.lock().map_err(|_| lost("its line is cut"))?.send(command);
        sent.map_err(|_| lost("it is gone"))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn put(&self, value: &Tensor) -> Result<Handle> {
        let handle = self.handle();
        // A clone shares its bytes until somebody writes, so they are copied here and not there.
        let copy = Tensor::from_bytes(value.dtype(), value.shape(), value.bytes())?;
        self.send(Command::Put(handle, copy)).map(|()| handle)
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Tensor> {
        let (reply, answer) = channel();
        self.send(Command::Get(handle, reply))?;
        answer.recv().map_err(|_| lost("it gave no answer"))?
    }
}

pub(crate) fn lost(problem: &str) -> Error {
    Error::Device { backend: "strange".into(), problem: problem.into() }
}

/// All that the card has: nobody but its thread can reach it.
struct Memory {
    buffers: HashMap<Handle, Hidden>,
    knobs: Arc<Knobs>,
}

impl Memory {
    fn obey(mut self, commands: &Receiver<Command>) {
        for command in commands {
            match command {
                Command::Put(handle, value) => {
                    self.knobs.puts.fetch_add(1, Ordering::SeqCst);
                    self.buffers.insert(handle, Hidden::hide(&value));
                }
                Command::Get(handle, reply) => {
                    self.knobs.gets.fetch_add(1, Ordering::SeqCst);
                    let lost_now = one_less(&self.knobs.lost_gets);
                    let value = if lost_now { Err(lost("the way back is blocked")) } else { self.look(handle) };
                    // Who asked may be gone.
                    let _ = reply.send(value);
                }
                Command::Free(handles) => handles.iter().for_each(|handle| drop(self.buffers.remove(handle))),
                Command::Run(job) => {
                    let result = self.run(&job);
                    if result.is_err() {
                        job.outputs.iter().for_each(|handle| drop(self.buffers.remove(handle)));
                    }
                    self.knobs.buffers.store(self.buffers.len(), Ordering::SeqCst);
                    let _ = job.reply.send(result);
                }
            }
            self.knobs.buffers.store(self.buffers.len(), Ordering::SeqCst);
        }
    }

    fn look(&self, handle: Handle) -> Result<Tensor> {
        self.buffers.get(&handle).ok_or_else(|| lost("it has no such buffer"))?.show()
    }

    fn run(&mut self, job: &Job) -> Result<Vec<Span>> {
        let began = Instant::now();
        let read = |handle: &Handle| Ok(HostValue::from_tensor(&self.look(*handle)?));
        let inputs = job.inputs.iter().map(read).collect::<Result<Vec<_>>>()?;
        let weights = job.weights.iter().map(|(name, handle)| Ok((name.as_str(), read(handle)?)));
        let weights = weights.collect::<Result<HashMap<_, _>>>()?;
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let start_s = seconds(job.given, began);
        let copies = Span { path: vec![], queue: 1, start_s, seconds: seconds(began, Instant::now()) };
        let fails = one_less(&self.knobs.failures);
        let mut work = Work { job, weights: &weights, knobs: &self.knobs, fails, spans: vec![copies] };
        let results = work.graph(&job.graph, inputs, &[])?;
        let spans = work.spans;
        for (handle, value) in job.outputs.iter().zip(results) {
            let value = Hidden::hide(&value.to_tensor()?);
            self.buffers.insert(*handle, value);
        }
        Ok(spans)
    }
}

/// A run under way.
struct Work<'a> {
    job: &'a Job,
    weights: &'a HashMap<&'a str, HostValue>,
    knobs: &'a Knobs,
    fails: bool,
    spans: Vec<Span>,
}

impl Work<'_> {
    /// Runs a graph's nodes in order, each with a span at its place.
    fn graph(&mut self, graph: &Graph, inputs: Vec<HostValue>, path: &[usize]) -> Result<Vec<HostValue>> {
        let mut given = inputs.into_iter();
        let mut done: Vec<Vec<HostValue>> = vec![];
        let mut step = 0;
        for node in graph.nodes() {
            let results = match &node.op {
                Op::Input { .. } => vec![given.next().ok_or_else(|| lost("an input is missing"))?],
                Op::Weight { name, .. } => {
                    vec![self.weights.get(name.as_str()).cloned().ok_or_else(|| lost("a weight is missing"))?]
                }
                op => {
                    let read: Vec<&HostValue> =
                        node.inputs.iter().map(|v| &done[v.node as usize][usize::from(v.slot)]).collect();
                    if op.is_source() {
                        self.node(&node.name, op, &read, &concrete(&node.outs, &self.job.bindings)?, path)?
                    } else {
                        let path = [path, &[step]].concat();
                        step += 1;
                        self.step(&node.name, op, &read, &concrete(&node.outs, &self.job.bindings)?, &path)?
                    }
                }
            };
            done.push(results);
        }
        Ok(graph.outputs().iter().map(|o| done[o.value.node as usize][usize::from(o.value.slot)].clone()).collect())
    }

    fn step(
        &mut self,
        name: &str,
        op: &Op,
        inputs: &[&HostValue],
        outs: &[(DType, Vec<usize>)],
        path: &[usize],
    ) -> Result<Vec<HostValue>> {
        let from = Instant::now();
        self.pause()?;
        let result = self.node(name, op, inputs, outs, path)?;
        if self.fails {
            return Err(lost("it lost a run"));
        }
        let start_s = from.saturating_duration_since(self.job.given).as_secs_f64();
        self.spans.push(Span { path: path.to_vec(), queue: 0, start_s, seconds: from.elapsed().as_secs_f64() });
        Ok(result)
    }

    /// Takes its time, and stops where somebody wants that.
    fn pause(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_micros(self.knobs.delay_us.load(Ordering::SeqCst) as u64);
        loop {
            if self.job.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(1)));
        }
    }

    fn node(
        &mut self,
        name: &str,
        op: &Op,
        inputs: &[&HostValue],
        outs: &[(DType, Vec<usize>)],
        path: &[usize],
    ) -> Result<Vec<HostValue>> {
        match op {
            Op::Scan(scan) => self.scan(scan, inputs, outs, path),
            op => eval_node(name, op, inputs, outs, &self.job.bindings, Precision::Storage),
        }
    }

    /// A loop, step by step; see [`Scan`].
    fn scan(
        &mut self,
        scan: &Scan,
        inputs: &[&HostValue],
        outs: &[(DType, Vec<usize>)],
        path: &[usize],
    ) -> Result<Vec<HostValue>> {
        let (states, rest) = inputs.split_at(scan.states);
        let (sequences, fixed) = rest.split_at(scan.sequences);
        let steps = sequences[0].shape[scan.axis];
        let mut states: Vec<HostValue> = states.iter().map(|v| (*v).clone()).collect();
        let empty = |(dtype, shape): &(DType, Vec<usize>)| HostValue {
            dtype: *dtype,
            data: vec![0.0; shape.iter().product()],
            shape: shape.clone(),
        };
        let mut collected: Vec<HostValue> = outs[scan.states..].iter().map(empty).collect();
        for step in 0..steps {
            let time = if scan.reverse { steps - 1 - step } else { step };
            let elements = sequences.iter().map(|v| element(v, scan.axis, time));
            let given = states.into_iter().chain(elements).chain(fixed.iter().map(|v| (*v).clone())).collect();
            let mut results = self.graph(&scan.body, given, path)?;
            for (to, from) in collected.iter_mut().zip(results.drain(scan.states..)) {
                let shape = to.shape.clone();
                pieces(&shape, scan.axis, time)
                    .zip(from.data.chunks(inner(&shape, scan.axis).max(1)))
                    .for_each(|(place, piece)| to.data[place..place + piece.len()].copy_from_slice(piece));
            }
            states = results;
        }
        Ok(states.into_iter().chain(collected).collect())
    }
}

/// Numbers that lie together at one time.
fn inner(shape: &[usize], axis: usize) -> usize {
    shape[axis + 1..].iter().product()
}

/// Where they begin.
fn pieces(shape: &[usize], axis: usize, time: usize) -> impl Iterator<Item = usize> {
    let (outer, size, inner) = (shape[..axis].iter().product::<usize>(), shape[axis], inner(shape, axis));
    (0..if inner == 0 { 0 } else { outer }).map(move |o| (o * size + time) * inner)
}

/// A sequence at one time.
fn element(value: &HostValue, axis: usize, time: usize) -> HostValue {
    let mut shape = value.shape.clone();
    shape.remove(axis);
    let inner = inner(&value.shape, axis);
    let data = pieces(&value.shape, axis, time).flat_map(|at| value.data[at..at + inner].iter().copied()).collect();
    HostValue { dtype: value.dtype, shape, data }
}
