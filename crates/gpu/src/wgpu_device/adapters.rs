//! Which GPUs there are, by names that can be given on a command line.

use super::at_once;
use crate::device::problem;
use crate::names::{numbered, plain};
use schwann_core::{Error, Result};
use std::sync::OnceLock;
use wgpu::{Adapter, Backends, DeviceType, Instance, InstanceDescriptor, InstanceFlags};

/// The backend's name.
pub(super) const NAME: &str = "wgpu";

/// A GPU that can be opened.
pub(super) struct Found {
    pub(super) adapter: Adapter,
    pub(super) name: String,
}

/// The names of the GPUs here, the strongest first. One of them can be given to [`super::Wgpu::open`].
pub fn adapters() -> Vec<String> {
    all().into_iter().map(|found| found.name).collect()
}

/// The one of this name, or the strongest.
pub(super) fn find(wanted: Option<&str>) -> Result<Found> {
    let mut found = all();
    if found.is_empty() {
        let why = "there is no GPU that can compute here: no adapter, or no driver for Vulkan, Metal or DirectX 12";
        return Err(problem(NAME, why));
    }
    let at = match wanted {
        None => Some(0),
        Some(wanted) => found.iter().position(|f| f.name == wanted),
    };
    let known = || found.iter().map(|f| f.name.clone()).collect();
    let unknown = || Error::Unknown { kind: "GPU", name: wanted.unwrap_or_default().into(), known: known() };
    let at = at.ok_or_else(unknown)?;
    Ok(found.swap_remove(at))
}

fn all() -> Vec<Found> {
    // Making an instance without any backend panics.
    if Instance::enabled_backend_features().is_empty() {
        return vec![];
    }
    // Finding drivers takes a while, so it is done once.
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| {
        let about = InstanceDescriptor::new_without_display_handle();
        Instance::new(InstanceDescriptor { backends: Backends::PRIMARY, flags: InstanceFlags::empty(), ..about })
    });
    let mut adapters = at_once(instance.enumerate_adapters(Backends::PRIMARY));
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    let mut found: Vec<Found> = vec![];
    for adapter in adapters {
        let name = numbered(&plain(&adapter.get_info().name), |name| found.iter().any(|f| f.name == name));
        found.push(Found { adapter, name });
    }
    found
}
