//! NVIDIA's GPUs by way of CUDA: kernels as CUDA C++, compiled by NVRTC when they are first needed.
//!
//! Neither the driver nor the compiler is needed to build this; both are loaded when a GPU is opened. Kernels that were compiled
//! are kept in a folder, so that a later program loads them without the compiler.

mod adapters;
mod compiler;
mod driver;

pub use adapters::adapters;

use crate::device::{Device, Launch, Limits, Products, Tally, problem};
use adapters::Found;
use driver::{Context, Event, Failure, Function, Graph, Memory, Queue};
use schwann_codegen::lang::Kernel;
use schwann_codegen::print;
use schwann_core::backend::Clock;
use schwann_core::{Error, Provenance, Result};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// With more compiled kernels than this, those that are not in use are dropped.
const MOST_COMPILED: usize = 1024;

/// Bytes that a kernel's indices can reach: words are counted in 32 bits.
const MOST_BUFFER_BYTES: u64 = (1 << 34) - 4;

/// A GPU, opened.
#[derive(Debug)]
pub struct Cuda {
    name: String,
    limits: Limits,
    capability: (u32, u32),
    tally: Tally,
    folder: Option<PathBuf>,
    lost: AtomicBool,
    compiled: Mutex<HashMap<Arc<Kernel>, Arc<Function>>>,
    /// Events that are not in use, and the one that all times count from, with when it was by the times' own count.
    events: Mutex<Vec<Event>>,
    since: Mutex<Option<(Event, f64)>>,
    queue: Queue,
    /// A queue for making one unit of several launches, which nothing else may use meanwhile.
    aside: Mutex<Queue>,
    context: Arc<Context>,
}

/// Launches, with their arguments.
#[derive(Debug)]
pub struct List {
    buffers: [Arc<Memory>; 3],
    launches: Vec<Launch<Arc<Function>>>,
    /// Several launches that are submitted again are one unit for the driver.
    again: Mutex<Again>,
}

#[derive(Debug)]
enum Again {
    /// Not submitted yet.
    Never,
    /// Submitted once.
    Once,
    /// The launches as one.
    Graph(Graph),
}

/// A submission.
#[derive(Debug)]
pub struct Ticket {
    end: Event,
    /// Where each launch began, if that is wanted: each ends where the next one begins.
    began: Vec<Event>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where programs keep compiled kernels, if a program has said so.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Says where compiled kernels are kept for later programs; only the first call has an effect, and only on GPUs that are opened
/// after it. Without it nothing is kept.
pub fn keep_kernels_in(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

impl Cuda {
    /// Opens a GPU: as one of [`adapters`] says, or the first, with products in single precision.
    pub fn open(wanted: Option<&str>) -> Result<Cuda> {
        let (Found { number, name, properties }, products) = adapters::find(wanted)?;
        let suffix = if products == Products::Single { String::new() } else { format!("-{}", products.name()) };
        let name = format!("{} ({name}{suffix})", adapters::NAME);
        let fails = |failure| problem(&name, format!("it cannot be opened: {}", driver::words(failure)));
        let context = Context::open(number).map_err(fails)?;
        let queue = Queue::new(&context).map_err(fails)?;
        let aside = Mutex::new(Queue::new(&context).map_err(fails)?);
        let limits = Limits {
            threads: properties.threads,
            lanes: 32,
            exact_halves: true,
            fast_functions: true,
            registers: 255,
            products,
            shared_bytes: properties.shared_bytes,
            buffer_bytes: properties.memory_bytes.min(MOST_BUFFER_BYTES) & !3,
            parallel_groups: properties.cores,
            ..Limits::default()
        };
        Ok(Cuda {
            name,
            limits,
            capability: properties.capability,
            tally: Tally::default(),
            folder: FOLDER.get().cloned(),
            lost: AtomicBool::new(false),
            compiled: Mutex::default(),
            events: Mutex::default(),
            since: Mutex::default(),
            queue,
            aside,
            context,
        })
    }

    /// The same; whether memory that host and device share is used as such makes no difference here yet.
    pub fn open_as(wanted: Option<&str>, _: bool) -> Result<Cuda> {
        Cuda::open(wanted)
    }

    /// The same device with no more than these limits, as if it were a smaller one ([`Limits::within`]).
    #[must_use]
    pub fn within(mut self, most: &Limits) -> Cuda {
        self.limits = self.limits.within(most);
        self
    }

    /// Treats the device as lost: every later call is an error.
    pub fn destroy(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether the device is lost, and can only be opened again.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Its compute capability, such as 9 and 0.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    fn said(&self, what: impl Into<String>) -> Error {
        problem(&self.name, what)
    }

    /// The error of a call, made while doing this.
    fn failed(&self, doing: &str) -> impl Fn(Failure) -> Error {
        move |failure| {
            let words = driver::words(failure);
            if driver::is_lost(failure) {
                self.lost.store(true, Ordering::Release);
                return self.said(format!("the device is lost: {doing}: {words}"));
            }
            self.said(format!("{doing}: {words}"))
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_lost() { Err(self.said("the device is lost; open it again")) } else { Ok(()) }
    }

    fn event(&self) -> Result<Event> {
        let spare = locked(&self.events).pop();
        spare.map_or_else(|| Event::new(&self.context).map_err(self.failed("an event")), Ok)
    }

    fn marked(&self) -> Result<Event> {
        let event = self.event()?;
        self.queue.mark(&event).map_err(self.failed("an event"))?;
        Ok(event)
    }

    /// Gives all launches of a list to the driver; if it does so again and again, as one.
    fn launch_all(&self, list: &List) -> std::result::Result<(), Failure> {
        let all = |queue: &Queue| list.launches.iter().try_for_each(|launch| list.launch(queue, launch));
        if list.launches.len() < 2 {
            return all(&self.queue);
        }
        let mut again = locked(&list.again);
        if let Again::Never = *again {
            *again = Again::Once;
            return all(&self.queue);
        }
        if let Again::Once = *again {
            let aside = locked(&self.aside);
            *again = Again::Graph(aside.graph(|| all(&aside))?);
        }
        match &*again {
            Again::Graph(graph) => self.queue.run(graph),
            _ => all(&self.queue),
        }
    }

    /// Registers of a thread and bytes that it keeps in memory for lack of registers, of each kernel compiled so far.
    pub fn registers(&self) -> Vec<(String, u32, u32)> {
        let compiled = locked(&self.compiled);
        compiled.iter().map(|(kernel, made)| (kernel.name.clone(), made.registers, made.spilled_bytes)).collect()
    }
}

impl List {
    fn launch(&self, queue: &Queue, launch: &Launch<Arc<Function>>) -> std::result::Result<(), Failure> {
        queue.launch(&launch.kernel, launch.groups, &self.buffers, &launch.args)
    }
}

impl Device for Cuda {
    type Buffer = Arc<Memory>;
    type Kernel = Arc<Function>;
    type List = List;
    type Ticket = Ticket;

    fn name(&self) -> String {
        self.name.clone()
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn unified(&self) -> bool {
        // Even where it is, as on a Jetson, inputs and results are copied.
        false
    }
    fn clock(&self) -> Option<Clock> {
        let source = "the GPU's own clock, by events of CUDA before and after each kernel";
        Some(Clock { source: source.into(), origin: Provenance::Measured, resolution_s: 5e-7 })
    }
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn buffer(&self, what: &str, bytes: u64) -> Result<Arc<Memory>> {
        self.check()?;
        self.limits.admit_buffer(&self.name, what, bytes)?;
        let memory = Memory::new(&self.context, bytes).map_err(|failure| {
            if !driver::is_out_of_memory(failure) {
                return self.failed(what)(failure);
            }
            let left = match self.context.memory() {
                Ok((free, all)) => format!(": {free} bytes of {all} are free"),
                Err(_) => String::new(),
            };
            self.said(format!("there is no memory for {what}, which needs {bytes} bytes{left}"))
        })?;
        Tally::count(&self.tally.buffers, 1);
        Ok(Arc::new(memory))
    }

    fn write(&self, to: &Arc<Memory>, at: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        Tally::count(&self.tally.writes, 1);
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        let fails = self.failed("a write");
        if !whole.is_empty() {
            self.queue.write(to, at, whole).map_err(&fails)?;
        }
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.queue.write(to, at + whole.len() as u64, &last).map_err(&fails)?;
        }
        Ok(())
    }

    fn zero(&self, to: &Arc<Memory>, at: u64, bytes: u64) -> Result<()> {
        self.check()?;
        self.queue.zero(to, at, bytes).map_err(self.failed("a fill"))
    }

    fn copy(&self, from: (&Arc<Memory>, u64), to: (&Arc<Memory>, u64), bytes: u64) -> Result<()> {
        self.check()?;
        if bytes == 0 {
            return Ok(());
        }
        Tally::count(&self.tally.copies, 1);
        self.queue.copy((from.0, from.1), (to.0, to.1), bytes).map_err(self.failed("a copy"))
    }

    fn read(&self, from: &Arc<Memory>, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.check()?;
        Tally::count(&self.tally.reads, parts.len());
        let fails = self.failed("a read");
        parts.iter_mut().try_for_each(|(at, into)| self.queue.read(from, *at, into).map_err(&fails))
    }

    fn compile(&self, kernel: &Arc<Kernel>) -> Result<Arc<Function>> {
        self.check()?;
        // Others may compile meanwhile, even the same kernel: that only costs time.
        if let Some(known) = locked(&self.compiled).get(kernel) {
            return Ok(Arc::clone(known));
        }
        self.limits.admit(&self.name, kernel)?;
        if kernel.buffers.len() != 3 {
            return Err(self.said(format!("the kernel `{}` is not bound to three buffers", kernel.name)));
        }
        let text = print::cuda(kernel, &print::Options::default());
        let (entry, what) = (print::entry(kernel), format!("the kernel `{}` does not compile", kernel.name));
        let (shared, args) = (print::cuda_shared_bytes(kernel), kernel.args.len());
        let load = |code: &[u8]| Function::load(&self.context, code, &entry, kernel.threads, shared, args);
        let make = |folder: Option<&std::path::Path>| {
            compiler::compile(&text, self.capability, folder).map_err(|why| self.said(format!("{what}: {why}")))
        };
        let code = make(self.folder.as_deref())?;
        let loaded = match load(&code.bytes) {
            // What was kept may be of an older driver, or of another make of GPU.
            Err(failure) if code.known && driver::is_wrong_code(failure) => load(&make(None)?.bytes),
            loaded => loaded,
        };
        let function = Arc::new(loaded.map_err(self.failed(&what))?);
        Tally::count(&self.tally.compilations, 1);
        let mut compiled = locked(&self.compiled);
        if compiled.len() >= MOST_COMPILED {
            compiled.retain(|_, function| Arc::strong_count(function) > 1);
        }
        compiled.insert(Arc::clone(kernel), Arc::clone(&function));
        Ok(function)
    }

    fn list(&self, buffers: [&Arc<Memory>; 3], launches: &[Launch<Arc<Function>>], _: Option<List>) -> Result<List> {
        self.check()?;
        if let Some(launch) = launches.iter().find(|l| l.groups.iter().any(|n| *n == 0 || *n > self.limits.groups)) {
            let (groups, most) = (launch.groups, self.limits.groups);
            return Err(self.said(format!("{groups:?} workgroups, and along an axis there can be 1 to {most}")));
        }
        Ok(List { buffers: buffers.map(Arc::clone), launches: launches.to_vec(), again: Mutex::new(Again::Never) })
    }

    fn submit(&self, list: &List, timed: bool) -> Result<Ticket> {
        self.check()?;
        Tally::count(&self.tally.submissions, 1);
        Tally::count(&self.tally.launches, list.launches.len());
        let fails = self.failed("a submission");
        let mut began = vec![];
        if timed {
            for launch in &list.launches {
                began.push(self.marked()?);
                list.launch(&self.queue, launch).map_err(&fails)?;
            }
        } else {
            self.launch_all(list).map_err(&fails)?;
        }
        Ok(Ticket { end: self.marked()?, began })
    }

    fn ended(&self, ticket: &Ticket) -> Result<bool> {
        ticket.end.is_over().map_err(self.failed("a look at what is under way"))
    }

    fn wait(&self, ticket: Ticket) -> Result<Option<Vec<[f64; 2]>>> {
        let fails = self.failed("a kernel");
        ticket.end.wait().map_err(&fails)?;
        let Ticket { end, began } = ticket;
        let mut times = None;
        if let Some(first) = began.first() {
            // Differences between events are told in single precision, so each submission counts from its own first event.
            let mut since = locked(&self.since);
            let base = match &*since {
                Some((event, base)) => base + event.until(first).map_err(&fails)?,
                None => 0.0,
            };
            let at = |event: &Event| first.until(event).map(|s| base + s).map_err(&fails);
            let mut marks = began.iter().map(at).collect::<Result<Vec<_>>>()?;
            marks.push(at(&end)?);
            times = Some(marks.windows(2).map(|pair| [pair[0], pair[1]]).collect());
            let mut began = began.into_iter();
            let old = since.take().map(|(event, _)| event);
            *since = began.next().map(|first| (first, base));
            locked(&self.events).extend(began.chain(old));
        }
        locked(&self.events).push(end);
        Ok(times)
    }
}
