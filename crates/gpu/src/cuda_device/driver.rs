//! CUDA's driver: what of it is used here, as types that free what they hold.
//!
//! The driver's library is loaded when it is first asked for. All calls to it are in this file; what they need to be sound is
//! promised by these types: a handle lives as long as the context that it belongs to.
#![allow(unsafe_code, reason = "calls of a foreign library")]

use cudarc::driver::{DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Why a call of the driver failed.
pub(super) type Failure = DriverError;

/// The oldest driver that this works with, as it numbers itself: 12.0.
const OLDEST: i32 = 12000;

/// Why there is no driver to use.
#[derive(Debug)]
pub(super) enum Missing {
    /// There is no library.
    Library,
    /// It is too old; this is the version of CUDA that it can do.
    Old(i32, i32),
    /// It does not start.
    Failed(Failure),
}

/// Loads and starts the driver; gives how many GPUs there are.
pub(super) fn start() -> Result<i32, Missing> {
    // SAFETY: it only tries to load the library. Without this, the first call would panic where there is none.
    if !unsafe { sys::is_culib_present() } {
        return Err(Missing::Library);
    }
    let mut version = 0;
    // SAFETY: the driver writes one number. This may be called before it is started.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(Missing::Failed)?;
    if version < OLDEST {
        return Err(Missing::Old(version / 1000, version % 1000 / 10));
    }
    result::init().map_err(Missing::Failed)?;
    result::device::get_count().map_err(Missing::Failed)
}

/// What the driver says of a failure.
pub(super) fn words(failure: Failure) -> String {
    let text = |c: Result<&std::ffi::CStr, Failure>| c.ok().map(|c| c.to_string_lossy().into_owned());
    match (text(failure.error_string()), text(failure.error_name())) {
        (Some(words), Some(name)) => format!("{words} ({name})"),
        _ => format!("{:?}", failure.0),
    }
}

/// Whether memory was lacking.
pub(super) fn is_out_of_memory(failure: Failure) -> bool {
    failure.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Whether the code is for another kind of GPU, or the driver does not know what it is.
pub(super) fn is_wrong_code(failure: Failure) -> bool {
    use sys::CUresult::{
        CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    };
    let kinds = [
        CUDA_ERROR_INVALID_IMAGE,
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    ];
    kinds.contains(&failure.0)
}

/// Whether all that a program has on the GPU is gone after this failure.
pub(super) fn is_lost(failure: Failure) -> bool {
    use sys::CUresult as R;
    let kinds = [
        R::CUDA_ERROR_ILLEGAL_ADDRESS,
        R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        R::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        R::CUDA_ERROR_INVALID_PC,
        R::CUDA_ERROR_MISALIGNED_ADDRESS,
        R::CUDA_ERROR_HARDWARE_STACK_ERROR,
        R::CUDA_ERROR_LAUNCH_FAILED,
        R::CUDA_ERROR_LAUNCH_TIMEOUT,
        R::CUDA_ERROR_ECC_UNCORRECTABLE,
        R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        R::CUDA_ERROR_DEINITIALIZED,
        R::CUDA_ERROR_DEVICE_UNAVAILABLE,
        R::CUDA_ERROR_UNKNOWN,
    ];
    kinds.contains(&failure.0)
}

/// What a GPU is like.
#[derive(Clone, Debug)]
pub(super) struct Properties {
    pub(super) name: String,
    /// Its compute capability, such as 9 and 0.
    pub(super) capability: (u32, u32),
    pub(super) cores: u32,
    pub(super) threads: u32,
    /// Bytes of memory that a workgroup may have.
    pub(super) shared_bytes: u32,
    pub(super) memory_bytes: u64,
}

impl Properties {
    /// Whether it multiplies small matrices of 16-bit numbers, both kinds.
    pub(super) fn multiplies(&self) -> bool {
        self.capability >= (8, 0)
    }
}

/// The GPU of this number.
pub(super) fn properties(number: i32) -> Result<Properties, Failure> {
    use sys::CUdevice_attribute_enum as A;
    let device = result::device::get(number)?;
    // SAFETY: the device is one of the driver's.
    let number = |what| unsafe { result::device::get_attribute(device, what) }.map(|n| n.max(0) as u32);
    Ok(Properties {
        name: result::device::get_name(device)?,
        capability: (
            number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        cores: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        threads: number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        shared_bytes: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
    })
}

/// A GPU's context: the one that all of a process share, so that memory can be exchanged with other libraries.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's functions may be called from any thread, once a thread has made the context its own; each call here does.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(number: i32) -> Result<Arc<Context>, Failure> {
        let device = result::device::get(number)?;
        // SAFETY: the device is one of the driver's. The context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Arc::new(Context { device, context }))
    }

    /// Makes it the context of this thread's calls.
    fn enter(&self) -> Result<(), Failure> {
        // SAFETY: it is retained as long as this exists.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// Bytes that are free, and all of them.
    pub(super) fn memory(&self) -> Result<(usize, usize), Failure> {
        self.enter()?;
        result::mem_get_info()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once; everything that belongs to it holds an `Arc` of this.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory on the GPU.
#[derive(Debug)]
pub struct Memory {
    context: Arc<Context>,
    at: sys::CUdeviceptr,
    bytes: u64,
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>, bytes: u64) -> Result<Memory, Failure> {
        context.enter()?;
        // SAFETY: the size is not 0. Kernels are checked not to read what was not written.
        let at = unsafe { result::malloc_sync(bytes.max(4) as usize) }?;
        Ok(Memory { context: Arc::clone(context), at, bytes })
    }

    /// The address of `len` bytes from `from` on; none where they are not all in it.
    fn part(&self, from: u64, len: u64) -> Result<sys::CUdeviceptr, Failure> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.bytes.max(4));
        if inside { Ok(self.at + from) } else { Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated by `new`. The driver waits for what still uses it.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

/// Commands in their order.
#[derive(Debug)]
pub(super) struct Queue {
    context: Arc<Context>,
    stream: sys::CUstream,
}

// SAFETY: a stream takes commands from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn new(context: &Arc<Context>) -> Result<Queue, Failure> {
        context.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Queue { context: Arc::clone(context), stream })
    }

    pub(super) fn write(&self, to: &Memory, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let to = to.part(at, bytes.len() as u64)?;
        self.context.enter()?;
        // SAFETY: the destination is in one allocation. The driver has read the host's bytes when this returns, since they are
        // in pageable memory.
        unsafe { result::memcpy_htod_async(to, bytes, self.stream) }
    }

    pub(super) fn zero(&self, to: &Memory, at: u64, bytes: u64) -> Result<(), Failure> {
        let to = to.part(at, bytes)?;
        self.context.enter()?;
        // SAFETY: the destination is in one allocation.
        unsafe { result::memset_d8_async(to, 0, bytes as usize, self.stream) }
    }

    pub(super) fn copy(&self, from: (&Memory, u64), to: (&Memory, u64), bytes: u64) -> Result<(), Failure> {
        let (from, to) = (from.0.part(from.1, bytes)?, to.0.part(to.1, bytes)?);
        self.context.enter()?;
        // SAFETY: both are in one allocation each, and these are not the same.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) }
    }

    /// Reads after all that was given to the queue before.
    pub(super) fn read(&self, from: &Memory, at: u64, into: &mut [u8]) -> Result<(), Failure> {
        let from = from.part(at, into.len() as u64)?;
        self.context.enter()?;
        // SAFETY: the source is in one allocation, and the bytes are there when the queue has been waited for.
        unsafe { result::memcpy_dtoh_async(into, from, self.stream) }?;
        self.wait()
    }

    pub(super) fn wait(&self) -> Result<(), Failure> {
        self.context.enter()?;
        // SAFETY: the stream exists as long as this.
        unsafe { result::stream::synchronize(self.stream) }
    }

    /// Runs a kernel: on the addresses of these buffers and, if there are any, these arguments.
    pub(super) fn launch(
        &self,
        function: &Function,
        groups: [u32; 3],
        buffers: &[Arc<Memory>; 3],
        args: &[u32],
    ) -> Result<(), Failure> {
        self.context.enter()?;
        let mut places = buffers.each_ref().map(|buffer| buffer.at);
        let [arena, constants, faults] = &mut places;
        // The driver only reads what these point to, and has done so when the call returns.
        let mut params: [*mut c_void; 4] = [
            std::ptr::from_mut(arena).cast(),
            std::ptr::from_mut(constants).cast(),
            std::ptr::from_mut(faults).cast(),
            args.as_ptr().cast_mut().cast(),
        ];
        let count = if function.args == 0 { 3 } else { 4 };
        if args.len() != function.args {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        // SAFETY: the kernel has these parameters: three addresses, and a structure of as many words as there are arguments. Its
        // accesses were checked by the interpreter's rules; the buffers are kept by the list that is submitted.
        unsafe {
            result::launch_kernel(
                function.function,
                groups.into(),
                (function.threads, 1, 1),
                function.shared_bytes,
                self.stream,
                &mut params[..count],
            )
        }
    }

    /// Notes where in the queue this is.
    pub(super) fn mark(&self, event: &Event) -> Result<(), Failure> {
        self.context.enter()?;
        // SAFETY: both exist.
        unsafe { result::event::record(event.event, self.stream) }
    }

    /// What is given to this queue meanwhile, as one unit that can be given to any. Nothing else may use it meanwhile.
    pub(super) fn graph(&self, fill: impl FnOnce() -> Result<(), Failure>) -> Result<Graph, Failure> {
        self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists.
        unsafe { result::stream::begin_capture(self.stream, mode) }?;
        let filled = fill();
        // SAFETY: the capture was begun above, and is ended in any case.
        let captured = unsafe { result::stream::end_capture(self.stream) };
        filled?;
        let graph = captured?;
        // SAFETY: the graph was just captured; it is not needed any more once it is instantiated.
        let made = unsafe {
            let made = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags_enum(0));
            let _ = result::graph::destroy(graph);
            made
        };
        Ok(Graph { context: Arc::clone(&self.context), graph: made? })
    }

    pub(super) fn run(&self, graph: &Graph) -> Result<(), Failure> {
        self.context.enter()?;
        // SAFETY: both exist.
        unsafe { result::graph::launch(graph.graph, self.stream) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made by `new`. What is under way goes on to its end.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
    }
}

/// Launches that were captured.
#[derive(Debug)]
pub(super) struct Graph {
    context: Arc<Context>,
    graph: sys::CUgraphExec,
}

// SAFETY: it is only used by one call at a time, from any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was instantiated by `Queue::graph`. The driver keeps what is under way.
            let _ = unsafe { result::graph::exec_destroy(self.graph) };
        }
    }
}

/// A place in a queue, with the time when it was reached.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Event, Failure> {
        context.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
        Ok(Event { context: Arc::clone(context), event })
    }

    pub(super) fn wait(&self) -> Result<(), Failure> {
        self.context.enter()?;
        // SAFETY: it exists.
        unsafe { result::event::synchronize(self.event) }
    }

    /// Whether it was reached.
    pub(super) fn is_over(&self) -> Result<bool, Failure> {
        self.context.enter()?;
        // SAFETY: it exists.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Seconds from this one to another; both were reached.
    pub(super) fn until(&self, later: &Event) -> Result<f64, Failure> {
        self.context.enter()?;
        // SAFETY: both exist.
        unsafe { result::event::elapsed(self.event, later.event) }.map(|ms| f64::from(ms) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made by `new`.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// A kernel that the driver has loaded.
#[derive(Debug)]
pub struct Function {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    threads: u32,
    shared_bytes: u32,
    args: usize,
    /// Registers of a thread.
    pub(super) registers: u32,
    /// Bytes that a thread keeps in memory, since its registers do not suffice.
    pub(super) spilled_bytes: u32,
}

// SAFETY: functions may be launched from any thread, by any queue of their context.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Loads what the compiler made. The code ends with a zero, if it is text.
    pub(super) fn load(
        context: &Arc<Context>,
        code: &[u8],
        entry: &str,
        threads: u32,
        shared_bytes: u32,
        args: usize,
    ) -> Result<Function, Failure> {
        use sys::CUfunction_attribute_enum as A;
        context.enter()?;
        let entry = std::ffi::CString::new(entry).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
        // SAFETY: the code is what NVRTC gave, whole: a text with its zero, or an image whose size is in its header; a copy from
        // a file was compared with its checksum.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }?;
        // From here on the module is unloaded if anything fails.
        let mut made = Function {
            context: Arc::clone(context),
            module,
            function: std::ptr::null_mut(),
            threads,
            shared_bytes,
            args,
            registers: 0,
            spilled_bytes: 0,
        };
        // SAFETY: the module was just loaded; the attributes are those of the function in it.
        unsafe {
            made.function = result::module::get_function(module, entry)?;
            if shared_bytes > 0 {
                let most = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(made.function, most, shared_bytes as i32)?;
            }
            let number = |what| result::function::get_function_attribute(made.function, what).map(|n| n.max(0) as u32);
            made.registers = number(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?;
            made.spilled_bytes = number(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
        }
        Ok(made)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was loaded by `load`, and what runs it holds an `Arc` of it until it has ended.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
