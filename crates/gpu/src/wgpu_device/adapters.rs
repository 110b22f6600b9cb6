//! Which GPUs there are, by names that can be given on a command line.

use super::at_once;
use crate::device::problem;
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
        let plain = plain(&adapter.get_info().name);
        let taken = |name: &str| found.iter().any(|f| f.name == name);
        let numbered = (1..).map(|n| if n == 1 { plain.clone() } else { format!("{plain}-{n}") });
        let name = numbered.into_iter().find(|name| !taken(name)).unwrap_or_default();
        found.push(Found { adapter, name });
    }
    found
}

/// A name made of small letters, digits and dashes.
fn plain(name: &str) -> String {
    let letters = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(letters).collect();
    let words: Vec<&str> = text.split('-').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "gpu".into() } else { words.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_given_on_a_command_line_whatever_the_driver_says() {
        assert_eq!(plain("llvmpipe (LLVM 15.0.6, 256 bits)"), "llvmpipe-llvm-15-0-6-256-bits");
        assert_eq!(plain("Apple M1 Pro"), "apple-m1-pro");
        assert_eq!(plain(" «™» "), "gpu");
    }
}
