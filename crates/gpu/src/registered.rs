//! The backends of this crate, by name.

use crate::Gpu;
use crate::wgpu_device::{Wgpu, adapters};
use schwann_core::Result;
use schwann_core::backend::{self, Known};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Makes the backend `wgpu` known to the whole program under its name. Further calls have no effect.
pub fn register() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    let mut result = Ok(());
    DONE.get_or_init(|| {
        result = backend::register(Known {
            name: "wgpu",
            about: "a GPU, by way of Metal, Vulkan or DirectX 12",
            variants: adapters,
            make: |variant, _| Ok(Arc::new(Gpu::new(open(variant)?))),
        });
    });
    result
}

/// A GPU, opened once for all programs that use it at the same time, so that they share compiled kernels.
fn open(wanted: Option<&str>) -> Result<Arc<Wgpu>> {
    static OPEN: Mutex<Option<HashMap<String, Weak<Wgpu>>>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open.get_or_insert_default();
    let key = wanted.unwrap_or_default().to_owned();
    if let Some(device) = known.get(&key).and_then(Weak::upgrade).filter(|device| !device.is_lost()) {
        return Ok(device);
    }
    let device = Arc::new(Wgpu::open(wanted)?);
    known.insert(key, Arc::downgrade(&device));
    Ok(device)
}
