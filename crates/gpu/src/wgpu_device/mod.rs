//! GPUs by way of `wgpu`: Metal on Macs, Vulkan and DirectX 12 elsewhere.
//!
//! Where host and device share memory, the host maps the buffers themselves, and nothing is copied. Elsewhere values go
//! through staging buffers. No error of the driver becomes a panic: each call is made within scopes that catch errors,
//! and errors that occur later are reported by the next call.

mod adapters;

pub use adapters::adapters;

use crate::device::{Device, Launch, Limits, Tally, problem};
use crate::probe;
use adapters::Found;
use schwann_codegen::lang::Kernel;
use schwann_codegen::print;
use schwann_core::backend::Clock;
use schwann_core::{Error, Provenance, Result};
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use wgpu::{BindGroupEntry, BindingResource, BufferUsages, ErrorFilter, MapMode, PollType};

/// With more compiled kernels than this, those that are not in use are dropped.
const MOST_COMPILED: usize = 1024;

/// A GPU, opened.
#[derive(Debug)]
pub struct Wgpu {
    name: String,
    limits: Limits,
    unified: bool,
    tally: Tally,
    device: wgpu::Device,
    queue: wgpu::Queue,
    bindings: wgpu::BindGroupLayout,
    pipelines: wgpu::PipelineLayout,
    compiled: Mutex<HashMap<Arc<Kernel>, Arc<wgpu::ComputePipeline>>>,
    /// The staging buffer for results, if one was needed.
    bridge: Mutex<Option<wgpu::Buffer>>,
    /// Seconds of a tick of the device's clock, if that clock works.
    tick_s: Mutex<Option<f64>>,
    trouble: Arc<Trouble>,
}

/// Errors that occurred between calls.
#[derive(Debug, Default)]
struct Trouble {
    lost: Mutex<Option<String>>,
    error: Mutex<Option<String>>,
}

/// Launches, with their arguments in a buffer.
#[derive(Debug)]
pub struct List {
    launches: Vec<(Arc<wgpu::ComputePipeline>, [u32; 3], u32)>,
    args: wgpu::Buffer,
    bindings: wgpu::BindGroup,
}

/// A submission.
#[derive(Debug)]
pub struct Ticket {
    index: wgpu::SubmissionIndex,
    ended: Arc<AtomicBool>,
    /// Where the times of its launches are read from, and how many there are.
    times: Option<(wgpu::Buffer, usize)>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a future that is ready at once, as the futures of `wgpu` are outside of browsers.
fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        std::thread::yield_now();
    }
}

impl Wgpu {
    /// Opens a GPU: one of [`adapters`], or the one that seems strongest.
    pub fn open(wanted: Option<&str>) -> Result<Wgpu> {
        Wgpu::open_as(wanted, true)
    }

    /// The same, but memory that host and device share is used as such only if `shared`.
    pub fn open_as(wanted: Option<&str>, shared: bool) -> Result<Wgpu> {
        let Found { adapter, name } = adapters::find(wanted)?;
        let name = format!("{} ({name})", adapters::NAME);
        let (info, most) = (adapter.get_info(), adapter.limits());
        let shared = shared && matches!(info.device_type, wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu);
        let mut wants = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::SUBGROUP;
        if shared {
            wants |= wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        }
        let features = adapter.features() & wants;
        let (device, queue) = at_once(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("schwann"),
            required_features: features,
            required_limits: most.clone(),
            ..Default::default()
        }))
        .map_err(|e| problem(&name, format!("it cannot be opened: {e}")))?;
        let trouble = Arc::new(Trouble::default());
        let of_device = Arc::clone(&trouble);
        device.on_uncaptured_error(Arc::new(move |error| {
            locked(&of_device.error).get_or_insert_with(|| sentence(&error));
        }));
        let of_device = Arc::clone(&trouble);
        device.set_device_lost_callback(move |reason, message| {
            locked(&of_device.lost).get_or_insert_with(|| format!("the device is lost ({reason:?}): {message}"));
        });
        let (bindings, pipelines) = layouts(&device);
        let is_cpu = info.device_type == wgpu::DeviceType::Cpu;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let usual = Limits::default();
        let limits = Limits {
            threads: most.max_compute_invocations_per_workgroup.min(most.max_compute_workgroup_size_x),
            shared_bytes: most.max_compute_workgroup_storage_size,
            groups: most.max_compute_workgroups_per_dimension,
            buffer_bytes: most.max_storage_buffer_binding_size.min(most.max_buffer_size) & !3,
            // A GPU in software runs a workgroup on each core.
            parallel_groups: if is_cpu { cores } else { usual.parallel_groups },
            ..usual
        };
        let mut made = Wgpu {
            name,
            limits,
            unified: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            tally: Tally::default(),
            device,
            queue,
            bindings,
            pipelines,
            compiled: Mutex::default(),
            bridge: Mutex::default(),
            tick_s: Mutex::new(None),
            trouble,
        };
        if features.contains(wgpu::Features::SUBGROUP) {
            // Whatever goes wrong with them, kernels do without.
            made.limits.lanes = info.subgroup_min_size;
            made.limits.lanes = probe::lanes(&made, info.subgroup_min_size).unwrap_or(1);
        }
        made.limits.exact_halves = probe::exact_halves(&made).unwrap_or(false);
        if features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            // If the clock cannot be tried, the device counts as having none; a worse problem shows at the next call.
            *locked(&made.tick_s) = made.try_clock().unwrap_or(None);
        }
        Ok(made)
    }

    /// The same device with no more than these limits, as if it were a smaller one ([`Limits::within`]).
    #[must_use]
    pub fn within(mut self, most: &Limits) -> Wgpu {
        self.limits = self.limits.within(most);
        self
    }

    /// Whether the device is lost, and can only be opened again.
    pub fn is_lost(&self) -> bool {
        locked(&self.trouble.lost).is_some()
    }

    /// Destroys the device, as if its driver had failed. Every later call is an error.
    pub fn destroy(&self) {
        self.device.destroy();
        // The callback that reports it is called by the next poll.
        let _ = self.device.poll(PollType::Poll);
    }

    fn said(&self, what: impl Into<String>) -> Error {
        problem(&self.name, what)
    }

    /// Errors that occurred between calls.
    fn check(&self) -> Result<()> {
        if let Some(lost) = &*locked(&self.trouble.lost) {
            return Err(self.said(lost.clone()));
        }
        locked(&self.trouble.error).take().map_or(Ok(()), |error| Err(self.said(error)))
    }

    /// What to say of a call that failed: that the device is lost, if that is why, and else what the driver said.
    fn failed(&self, what: &str, why: impl std::fmt::Display) -> Error {
        // A device that is lost says so when it is looked at and has ended what it was doing.
        let _ = self.device.poll(PollType::wait_indefinitely());
        self.check().err().unwrap_or_else(|| self.said(format!("{what}: {why}")))
    }

    /// Runs `act`, and gives the error if the driver reports one.
    fn guarded<T>(&self, what: &str, act: impl FnOnce() -> T) -> Result<T> {
        self.check()?;
        let filters = [ErrorFilter::Validation, ErrorFilter::OutOfMemory, ErrorFilter::Internal];
        let mut scopes: Vec<_> = filters.into_iter().map(|filter| self.device.push_error_scope(filter)).collect();
        let result = act();
        let mut found = None;
        while let Some(scope) = scopes.pop() {
            found = at_once(scope.pop()).or(found);
        }
        match found {
            Some(error) => Err(self.failed(what, sentence(&error))),
            None => Ok(result),
        }
    }

    /// Makes a buffer, for itself or in a list.
    fn make(&self, what: &str, bytes: u64, usage: BufferUsages) -> Result<wgpu::Buffer> {
        Tally::count(&self.tally.buffers, 1);
        let size = bytes.next_multiple_of(4).max(4);
        let refused = format!("no memory for {what} of {bytes} bytes");
        self.guarded(&refused, || {
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        })
    }

    /// Submits commands, and gives a number to wait for.
    fn commands(&self, what: &str, fill: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<wgpu::SubmissionIndex> {
        self.guarded(what, || {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            fill(&mut encoder);
            self.queue.submit([encoder.finish()])
        })
    }

    fn poll(&self, how: PollType) -> Result<()> {
        self.device.poll(how).map_err(|e| self.failed("waiting for the device", e))?;
        self.check()
    }

    /// Maps part of a buffer for the host once the device is done with it, calls `act`, and unmaps it.
    fn mapped<T>(
        &self,
        buffer: &wgpu::Buffer,
        [from, to]: [u64; 2],
        mode: MapMode,
        act: impl FnOnce() -> Result<T, wgpu::MapRangeError>,
    ) -> Result<T> {
        let state: Arc<Mutex<Option<Result<(), wgpu::BufferAsyncError>>>> = Arc::default();
        let answer = Arc::clone(&state);
        let what = "looking into the device's memory";
        let mapped = || {
            self.guarded(what, || buffer.map_async(mode, from..to, move |result| *locked(&answer) = Some(result)))?;
            self.poll(PollType::Poll)?;
            // Another thread's poll may have received the answer, and be about to run the callback that stores it here.
            let since = std::time::Instant::now();
            while locked(&state).is_none() && since.elapsed().as_secs() < 10 {
                self.poll(PollType::wait_indefinitely())?;
                std::thread::yield_now();
            }
            match locked(&state).take() {
                Some(Ok(())) => act().map_err(|e| self.failed(what, e)),
                Some(Err(e)) => Err(self.failed(what, e)),
                None => Err(self.failed(what, "it gave no answer")),
            }
        };
        let result = mapped();
        // Unmap in any case, so that the device can use the buffer again.
        let unmapped = self.guarded(what, || buffer.unmap());
        result.and_then(|result| unmapped.map(|()| result))
    }

    /// The length of a tick, if times of launches are not all zero.
    fn try_clock(&self) -> Result<Option<f64>> {
        let tick = f64::from(self.queue.get_timestamp_period()) * 1e-9;
        let pipeline = self.guarded("trying the clock", || {
            let text = "@compute @workgroup_size(1) fn nothing() {}";
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
            self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: None,
                module: &module,
                entry_point: Some("nothing"),
                compilation_options: Default::default(),
                cache: None,
            })
        })?;
        let launch = |pass: &mut wgpu::ComputePass<'_>, _| {
            pass.set_pipeline(&pipeline);
            pass.dispatch_workgroups(1, 1, 1);
        };
        let (index, times) = self.timed(1, launch)?;
        self.poll(PollType::Wait { submission_index: Some(index), timeout: None })?;
        let ticks = self.ticks(&times, 1)?;
        Ok((tick > 0.0 && ticks.iter().any(|ticks| *ticks != [0, 0])).then_some(tick))
    }

    /// Submits launches, each in a pass of its own, since only passes have times.
    fn timed(
        &self,
        count: usize,
        launch: impl Fn(&mut wgpu::ComputePass<'_>, usize),
    ) -> Result<(wgpu::SubmissionIndex, wgpu::Buffer)> {
        let bytes = 16 * count as u64;
        let resolved = self.make("times", bytes, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC)?;
        let read = self.make("times", bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let (ty, queries) = (wgpu::QueryType::Timestamp, 2 * count as u32);
        let set = self.guarded("times", || {
            self.device.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count: queries })
        })?;
        let index = self.commands("a submission", |encoder| {
            for i in 0..count {
                let timestamp_writes = Some(wgpu::ComputePassTimestampWrites {
                    query_set: &set,
                    beginning_of_pass_write_index: Some(2 * i as u32),
                    end_of_pass_write_index: Some(2 * i as u32 + 1),
                });
                let about = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
                launch(&mut encoder.begin_compute_pass(&about), i);
            }
            encoder.resolve_query_set(&set, 0..queries, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, &read, 0, bytes);
        })?;
        Ok((index, read))
    }

    /// The beginning and end of `count` launches, in ticks.
    fn ticks(&self, times: &wgpu::Buffer, count: usize) -> Result<Vec<[u64; 2]>> {
        let bytes = 16 * count as u64;
        self.mapped(times, [0, bytes], MapMode::Read, || {
            let view = times.get_mapped_range(0..bytes)?;
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            Ok(view.chunks_exact(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect())
        })
    }
}

/// The layout of bindings that all kernels share: the arena, the constants, the faults, and the arguments of a launch.
fn layouts(device: &wgpu::Device) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
    let entry = |binding: u32, read_only: bool, has_dynamic_offset: bool| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only },
            has_dynamic_offset,
            min_binding_size: None,
        },
        count: None,
    };
    let entries = [entry(0, false, false), entry(1, true, false), entry(2, false, false), entry(3, true, true)];
    let bindings = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipelines = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&bindings)],
        immediate_size: 0,
    });
    (bindings, pipelines)
}

/// An error as one line. Those of `wgpu` are reports of several.
fn sentence(error: &wgpu::Error) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Device for Wgpu {
    type Buffer = wgpu::Buffer;
    type Kernel = Arc<wgpu::ComputePipeline>;
    type List = List;
    type Ticket = Ticket;

    fn name(&self) -> String {
        self.name.clone()
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn unified(&self) -> bool {
        self.unified
    }
    fn clock(&self) -> Option<Clock> {
        let source = "the device's timestamps, each launch in a pass of its own";
        let tick = *locked(&self.tick_s);
        tick.map(|resolution_s| Clock { source: source.into(), origin: Provenance::Measured, resolution_s })
    }
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn buffer(&self, what: &str, bytes: u64) -> Result<wgpu::Buffer> {
        self.limits.admit_buffer(&self.name, what, bytes)?;
        let mut usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        if self.unified {
            usage |= BufferUsages::MAP_READ | BufferUsages::MAP_WRITE;
        }
        self.make(what, bytes, usage)
    }

    fn write(&self, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        Tally::count(&self.tally.writes, 1);
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        let end = at + whole.len() as u64;
        if self.unified {
            let range = [at, end + if rest.is_empty() { 0 } else { 4 }];
            return self.mapped(to, range, MapMode::Write, || {
                let mut view = to.get_mapped_range_mut(range[0]..range[1])?;
                view.slice(..whole.len()).copy_from_slice(whole);
                if !rest.is_empty() {
                    view.slice(whole.len()..).copy_from_slice(&last);
                }
                Ok(())
            });
        }
        self.guarded("a write", || {
            if !whole.is_empty() {
                self.queue.write_buffer(to, at, whole);
            }
            if !rest.is_empty() {
                self.queue.write_buffer(to, end, &last);
            }
        })
    }

    fn zero(&self, to: &wgpu::Buffer, at: u64, bytes: u64) -> Result<()> {
        self.commands("a fill", |encoder| encoder.clear_buffer(to, at, Some(bytes))).map(drop)
    }

    fn copy(&self, from: (&wgpu::Buffer, u64), to: (&wgpu::Buffer, u64), bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        Tally::count(&self.tally.copies, 1);
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            encoder.copy_buffer_to_buffer(from.0, from.1, to.0, to.1, bytes);
        };
        self.commands("a copy", copy).map(drop)
    }

    fn read(&self, from: &wgpu::Buffer, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        Tally::count(&self.tally.reads, parts.len());
        let whole = |bytes: &[u8]| (bytes.len() as u64).next_multiple_of(4);
        let copy_out = |buffer: &wgpu::Buffer, at: u64, into: &mut [u8]| {
            let view = buffer.get_mapped_range(at..at + whole(into))?;
            into.copy_from_slice(&view[..into.len()]);
            Ok(())
        };
        if self.unified {
            let first = parts.iter().map(|(at, _)| *at).min().unwrap_or(0) & !7;
            let last = parts.iter().map(|(at, into)| at + whole(into)).max().unwrap_or(0);
            return self.mapped(from, [first, last], MapMode::Read, || {
                parts.iter_mut().try_for_each(|(at, into)| copy_out(from, *at, into))
            });
        }
        // Parts begin at multiples of 8, as mapping requires.
        let room = |bytes: &[u8]| (bytes.len() as u64).next_multiple_of(8);
        let bytes: u64 = parts.iter().map(|(_, into)| room(into)).sum();
        let mut bridge = locked(&self.bridge);
        let kept = bridge.take().filter(|buffer| buffer.size() >= bytes);
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let buffer = match kept {
            Some(buffer) => buffer,
            None => self.make("results on their way", bytes.next_power_of_two(), usage)?,
        };
        self.commands("a read", |encoder| {
            let mut to = 0;
            for (at, into) in parts.iter() {
                encoder.copy_buffer_to_buffer(from, *at, &buffer, to, whole(into));
                to += room(into);
            }
        })?;
        self.mapped(&buffer, [0, bytes], MapMode::Read, || {
            let mut at = 0;
            parts.iter_mut().try_for_each(|(_, into)| {
                let here = at;
                at += room(into);
                copy_out(&buffer, here, into)
            })
        })?;
        *bridge = Some(buffer);
        Ok(())
    }

    fn compile(&self, kernel: &Arc<Kernel>) -> Result<Arc<wgpu::ComputePipeline>> {
        let mut compiled = locked(&self.compiled);
        if let Some(known) = compiled.get(kernel) {
            return Ok(Arc::clone(known));
        }
        self.limits.admit(&self.name, kernel)?;
        if kernel.buffers.len() != 3 {
            return Err(self.said(format!("the kernel `{}` is not bound to three buffers", kernel.name)));
        }
        let text = print::wgsl(kernel, &print::Options::default());
        let entry = print::entry(kernel);
        let pipeline = self.guarded(&format!("the kernel `{}` does not compile", kernel.name), || {
            let (label, source) = (Some(kernel.name.as_str()), wgpu::ShaderSource::Wgsl(text.into()));
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
            self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: Some(&self.pipelines),
                module: &module,
                entry_point: Some(&entry),
                // The interpreter's tests check that kernels read no shared word before they write it.
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            })
        })?;
        Tally::count(&self.tally.compilations, 1);
        if compiled.len() >= MOST_COMPILED {
            compiled.retain(|_, pipeline| Arc::strong_count(pipeline) > 1);
        }
        let pipeline = Arc::new(pipeline);
        compiled.insert(Arc::clone(kernel), Arc::clone(&pipeline));
        Ok(pipeline)
    }

    fn list(
        &self,
        buffers: [&wgpu::Buffer; 3],
        launches: &[Launch<Arc<wgpu::ComputePipeline>>],
        old: Option<List>,
    ) -> Result<List> {
        if let Some(launch) = launches.iter().find(|l| l.groups.iter().any(|n| *n == 0 || *n > self.limits.groups)) {
            let (groups, most) = (launch.groups, self.limits.groups);
            return Err(self.said(format!("{groups:?} workgroups, and along an axis there can be 1 to {most}")));
        }
        let longest = launches.iter().map(|launch| 4 * launch.args.len()).max().unwrap_or(0).max(4);
        let align = self.device.limits().min_storage_buffer_offset_alignment as usize;
        let stride = longest.next_multiple_of(align.max(4));
        let mut words = vec![0u8; stride * launches.len()];
        for (launch, room) in launches.iter().zip(words.chunks_mut(stride)) {
            for (word, bytes) in launch.args.iter().zip(room.chunks_mut(4)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let bytes = words.len() as u64;
        let args = match old.map(|list| list.args).filter(|args| args.size() >= bytes) {
            Some(args) => args,
            None => {
                let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
                self.make("arguments", bytes.next_power_of_two(), usage)?
            }
        };
        let bindings = self.guarded("a list of launches", || {
            self.queue.write_buffer(&args, 0, &words);
            let whole = buffers.map(|buffer| buffer.as_entire_binding());
            let part = wgpu::BufferBinding { buffer: &args, offset: 0, size: wgpu::BufferSize::new(stride as u64) };
            let resources = whole.into_iter().chain([BindingResource::Buffer(part)]);
            let entries: Vec<BindGroupEntry<'_>> =
                (0..).zip(resources).map(|(binding, resource)| BindGroupEntry { binding, resource }).collect();
            let layout = &self.bindings;
            self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
        })?;
        let launches = launches.iter().enumerate();
        let launches = launches.map(|(i, l)| (Arc::clone(&l.kernel), l.groups, (i * stride) as u32)).collect();
        Ok(List { launches, args, bindings })
    }

    fn submit(&self, list: &List, timed: bool) -> Result<Ticket> {
        Tally::count(&self.tally.submissions, 1);
        Tally::count(&self.tally.launches, list.launches.len());
        let launch = |pass: &mut wgpu::ComputePass<'_>, i: usize| {
            let (pipeline, [x, y, z], offset) = &list.launches[i];
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &list.bindings, &[*offset]);
            pass.dispatch_workgroups(*x, *y, *z);
        };
        let count = list.launches.len();
        let (index, times) = if timed && locked(&self.tick_s).is_some() {
            let (index, times) = self.timed(count, launch)?;
            (index, Some((times, count)))
        } else {
            let index = self.commands("a submission", |encoder| {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                (0..count).for_each(|i| launch(&mut pass, i));
            })?;
            (index, None)
        };
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        self.queue.on_submitted_work_done(move || end.store(true, Ordering::Release));
        Ok(Ticket { index, ended, times })
    }

    fn ended(&self, ticket: &Ticket) -> Result<bool> {
        self.poll(PollType::Poll)?;
        Ok(ticket.ended.load(Ordering::Acquire))
    }

    fn wait(&self, ticket: Ticket) -> Result<Option<Vec<[f64; 2]>>> {
        self.poll(PollType::Wait { submission_index: Some(ticket.index), timeout: None })?;
        let Some((times, count)) = ticket.times else { return Ok(None) };
        let ticks = self.ticks(&times, count)?;
        let mut tick = locked(&self.tick_s);
        let Some(tick_s) = tick.filter(|_| ticks.iter().any(|pair| *pair != [0, 0])) else {
            // All times are zero, so the clock does not work, and is not used again.
            *tick = None;
            return Ok(None);
        };
        Ok(Some(ticks.iter().map(|pair| pair.map(|ticks| ticks as f64 * tick_s)).collect()))
    }
}
