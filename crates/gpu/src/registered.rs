//! The backends of this crate, by name.

use crate::Gpu;
#[cfg(feature = "cuda")]
use crate::cuda_device::Cuda;
use crate::device::Device;
#[cfg(feature = "wgpu")]
use crate::wgpu_device::Wgpu;
use schwann_core::Result;
use schwann_core::backend::{self, Known};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Makes the backends of this crate known to the whole program under their names: `wgpu` and `cuda`, as far as it was built with
/// them. Further calls have no effect.
pub fn register() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    let mut result = Ok(());
    DONE.get_or_init(|| {
        #[cfg(feature = "wgpu")]
        {
            result = backend::register(Known {
                name: "wgpu",
                about: "a GPU, by way of Metal, Vulkan or DirectX 12",
                variants: crate::wgpu_device::adapters,
                make: |variant, _| {
                    static OPEN: Opened<Wgpu> = Opened::new();
                    Ok(Arc::new(Gpu::new(OPEN.get(variant, Wgpu::open, Wgpu::is_lost)?)))
                },
            });
        }
        #[cfg(feature = "cuda")]
        if result.is_ok() {
            result = backend::register(Known {
                name: "cuda",
                about: "a GPU of NVIDIA's, by way of CUDA",
                variants: crate::cuda_device::adapters,
                make: |variant, _| {
                    static OPEN: Opened<Cuda> = Opened::new();
                    Ok(Arc::new(Gpu::new(OPEN.get(variant, Cuda::open, Cuda::is_lost)?)))
                },
            });
        }
    });
    result
}

/// GPUs that are open, each opened once for all programs that use it at the same time, so that they share compiled kernels.
struct Opened<D>(Mutex<Option<HashMap<String, Weak<D>>>>);

impl<D: Device> Opened<D> {
    const fn new() -> Opened<D> {
        Opened(Mutex::new(None))
    }

    fn get(
        &self,
        wanted: Option<&str>,
        open: fn(Option<&str>) -> Result<D>,
        is_lost: fn(&D) -> bool,
    ) -> Result<Arc<D>> {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = opened.get_or_insert_default();
        let key = wanted.unwrap_or_default().to_owned();
        if let Some(device) = known.get(&key).and_then(Weak::upgrade).filter(|device| !is_lost(device)) {
            return Ok(device);
        }
        let device = Arc::new(open(wanted)?);
        known.insert(key, Arc::downgrade(&device));
        Ok(device)
    }
}
