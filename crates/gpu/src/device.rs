//! The interface to a device: what a GPU must provide to run programs.
//!
//! A device executes commands in the order in which it gets them. A call may return before the device has executed its
//! command; only [`Device::read`] and [`Device::wait`] return after it has. Every error is a readable message
//! ([`Error::Device`]). A call that fails has no effect. After it, either the next call works, or the device is lost
//! and each further call says so.

use schwann_codegen::lang::{Half, Kernel};
use schwann_core::backend::Clock;
use schwann_core::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device, with memory of its own.
pub trait Device: Send + Sync + 'static {
    /// Memory on the device. It is freed when this is dropped and no submitted work needs it any more.
    type Buffer: Send + Sync;
    /// A compiled kernel. Clones share it.
    type Kernel: Clone + Send + Sync;
    /// Launches with their arguments, ready to be submitted any number of times.
    type List: Send;
    /// A submission whose end can be waited for.
    type Ticket: Send;

    /// Its name, with what tells several apart: `wgpu (llvmpipe)`.
    fn name(&self) -> String;
    /// Its limits.
    fn limits(&self) -> &Limits;
    /// Whether the host can access the device's memory directly, so that no staging buffers are needed.
    fn unified(&self) -> bool;
    /// The clock of launches, if the device has one that works.
    fn clock(&self) -> Option<Clock>;
    /// Counts of what it was asked to do so far.
    fn tally(&self) -> &Tally;

    /// New memory with unspecified content. `what` it is for goes into the error if there is no memory.
    fn buffer(&self, what: &str, bytes: u64) -> Result<Self::Buffer>;
    /// Writes bytes to a buffer. `at` is a multiple of 4; if the bytes end within a word, the rest of that word becomes
    /// 0.
    fn write(&self, to: &Self::Buffer, at: u64, bytes: &[u8]) -> Result<()>;
    /// Sets bytes to zero; both numbers are multiples of 4.
    fn zero(&self, to: &Self::Buffer, at: u64, bytes: u64) -> Result<()>;
    /// Copies between two buffers, which are not the same; all numbers are multiples of 4.
    fn copy(&self, from: (&Self::Buffer, u64), to: (&Self::Buffer, u64), bytes: u64) -> Result<()>;
    /// Reads parts of a buffer to the host (each at a multiple of 4), after all earlier commands are done.
    fn read(&self, from: &Self::Buffer, parts: &mut [(u64, &mut [u8])]) -> Result<()>;

    /// Compiles a kernel; an equal one is compiled only once.
    fn compile(&self, kernel: &Arc<Kernel>) -> Result<Self::Kernel>;
    /// A list of launches, whose kernels access the arena, the constants and the faults (see [`crate::program`]). The
    /// new list may reuse the memory of `old` if it is large enough; earlier submissions of `old` are not affected.
    fn list(
        &self,
        buffers: [&Self::Buffer; 3],
        launches: &[Launch<Self::Kernel>],
        old: Option<Self::List>,
    ) -> Result<Self::List>;
    /// Runs the launches of a list, each after the one before it has ended. If `timed`, [`Device::wait`] says when.
    fn submit(&self, list: &Self::List, timed: bool) -> Result<Self::Ticket>;
    /// Whether a submission has ended; it does not wait.
    fn ended(&self, ticket: &Self::Ticket) -> Result<bool>;
    /// Waits for the end of a submission. Gives the beginning and the end of each launch, in seconds of
    /// [`Device::clock`], if it was timed.
    fn wait(&self, ticket: Self::Ticket) -> Result<Option<Vec<[f64; 2]>>>;
}

/// A kernel, how many workgroups of it run, and its arguments.
#[derive(Clone, Debug)]
pub struct Launch<K> {
    /// The kernel.
    pub kernel: K,
    /// Workgroups along each axis, none of them 0.
    pub groups: [u32; 3],
    /// Arguments.
    pub args: Vec<u32>,
}

/// How a device multiplies where there are many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// In single precision, by multiply-adds.
    #[default]
    Single,
    /// By hardware for small matrices of `f16`, each number as two of them: nearly as exact as single precision, for numbers
    /// up to 65504.
    Split,
    /// By such hardware, with factors rounded to 16 bits.
    Halves(Half),
}

impl Products {
    /// Its name: `single`, `split`, `f16`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Products::Single => "single",
            Products::Split => "split",
            Products::Halves(Half::F16) => "f16",
            Products::Halves(Half::Bf16) => "bf16",
        }
    }
}

/// How large things may be on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads of a workgroup.
    pub threads: u32,
    /// Neighbouring threads that can exchange values directly, a power of two; 1 if none can.
    pub lanes: u32,
    /// Whether the device's own conversion from `f16` is exact, for every one of them.
    pub exact_halves: bool,
    /// Whether the device's own 2ᵃ and 1/a are good to 2 ulp, and infinities and NaN go through them and through comparisons
    /// as they should. Functions in loops then use them.
    pub fast_functions: bool,
    /// Registers that a thread can have, where that is known: weights of loops with few rows are kept in them. 0 where it is not.
    pub registers: u32,
    /// How products of many rows are made.
    pub products: Products,
    /// Bytes of the arrays that a workgroup shares, all together.
    pub shared_bytes: u32,
    /// Workgroups of a launch along each axis.
    pub groups: u32,
    /// Bytes of a buffer.
    pub buffer_bytes: u64,
    /// Arguments of a kernel.
    pub args: u32,
    /// Launches of a submission that is timed.
    pub timed: usize,
    /// Workgroups that keep the whole device busy. With more rows than twice this, a workgroup takes several.
    ///
    /// For a GPU this is a guess, not something that the device said: no interface that reaches Metal, Vulkan and DirectX
    /// 12 alike tells how many cores a GPU has (of `wgpu`, neither the adapter's description nor its limits do). The guess
    /// decides only how rows are dealt out, and so the speed: too high, and each weight that is loaded serves fewer rows;
    /// too low, and part of the device has nothing to do. Where a processor plays the GPU it is known, the number of its
    /// cores.
    pub parallel_groups: u32,
}

impl Default for Limits {
    /// What WebGPU promises on every device.
    fn default() -> Limits {
        Limits {
            threads: 256,
            lanes: 1,
            exact_halves: false,
            fast_functions: false,
            registers: 0,
            products: Products::Single,
            shared_bytes: 16384,
            groups: 65535,
            buffer_bytes: 128 << 20,
            args: 4096,
            timed: 1024,
            parallel_groups: 256,
        }
    }
}

impl Limits {
    /// What is possible within both. How many workgroups keep the device busy, which may be a guess, is taken as it is given.
    #[must_use]
    pub fn within(&self, most: &Limits) -> Limits {
        Limits {
            threads: self.threads.min(most.threads),
            lanes: self.lanes.min(most.lanes),
            exact_halves: self.exact_halves && most.exact_halves,
            fast_functions: self.fast_functions && most.fast_functions,
            registers: self.registers.min(most.registers),
            products: if self.products == most.products { self.products } else { Products::Single },
            shared_bytes: self.shared_bytes.min(most.shared_bytes),
            groups: self.groups.min(most.groups),
            buffer_bytes: self.buffer_bytes.min(most.buffer_bytes),
            args: self.args.min(most.args),
            timed: self.timed.min(most.timed),
            parallel_groups: most.parallel_groups,
        }
    }

    /// Checks a kernel; the error says which limit it exceeds, and by how much.
    pub fn admit(&self, backend: &str, kernel: &Kernel) -> Result<()> {
        let shared: u64 = kernel.shared.iter().map(|array| 4 * u64::from(array.len)).sum();
        let wants = [
            (u64::from(kernel.threads), u64::from(self.threads), "threads in a workgroup"),
            (shared, u64::from(self.shared_bytes), "bytes of workgroup memory"),
            (kernel.args.len() as u64, u64::from(self.args), "arguments"),
            (u64::from(kernel.lanes()), u64::from(self.lanes), "threads that exchange values"),
        ];
        if kernel.multiplies() && self.products == Products::Single {
            let problem = format!("the kernel `{}` multiplies small matrices, which this device does not", kernel.name);
            return Err(self::problem(backend, problem));
        }
        match wants.iter().find(|(wanted, most, _)| wanted > most) {
            Some((wanted, most, what)) => Err(problem(
                backend,
                format!("the kernel `{}` needs {wanted} {what}, and there are {most}", kernel.name),
            )),
            None => Ok(()),
        }
    }

    /// Checks the size of a buffer.
    pub fn admit_buffer(&self, backend: &str, what: &str, bytes: u64) -> Result<()> {
        if bytes <= self.buffer_bytes {
            return Ok(());
        }
        let most = self.buffer_bytes;
        Err(problem(backend, format!("{what} needs {bytes} bytes, and a buffer of this device has at most {most}")))
    }
}

/// Counts of what a device was asked to do since it was opened.
#[derive(Debug, Default)]
pub struct Tally {
    /// Buffers that were made, for lists too.
    pub buffers: AtomicU64,
    /// Kernels that were compiled: equal ones once.
    pub compilations: AtomicU64,
    /// Launches that were submitted.
    pub launches: AtomicU64,
    /// Submissions of lists.
    pub submissions: AtomicU64,
    /// Writes from the host, without those of arguments.
    pub writes: AtomicU64,
    /// Reads to the host; each part counts.
    pub reads: AtomicU64,
    /// Copies on the device.
    pub copies: AtomicU64,
}

impl Tally {
    /// Adds `more` to a counter.
    pub fn count(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

/// An error of a device.
pub fn problem(backend: &str, problem: impl Into<String>) -> Error {
    Error::Device { backend: backend.into(), problem: problem.into() }
}
