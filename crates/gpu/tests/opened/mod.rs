//! The GPU of this machine, if it has one; a driver that plays one on the processor will do. Built with the feature `wgpu` the tests
//! open one by way of Vulkan, Metal or DirectX 12; with `cuda` alone, one of NVIDIA's.
#![allow(dead_code, reason = "each test that includes it uses another part")]

#[cfg(not(feature = "wgpu"))]
pub(crate) use schwann_gpu::cuda_device::{Cuda as Card, adapters};
#[cfg(feature = "wgpu")]
pub(crate) use schwann_gpu::wgpu_device::{Wgpu as Card, adapters};
use std::sync::{Arc, Mutex, PoisonError};

/// The backend's name.
pub(crate) const NAME: &str = if cfg!(feature = "wgpu") { "wgpu" } else { "cuda" };

/// The GPU of this machine, opened once for all tests.
pub(crate) fn open() -> Option<Arc<Card>> {
    both().into_iter().next()
}

/// The GPU in two ways: looking into the memory that it shares with the host, if it does, and not.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
pub(crate) fn both() -> Vec<Arc<Card>> {
    static OPEN: Mutex<Vec<Arc<Card>>> = Mutex::new(vec![]);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if open.is_empty() {
        match (Card::open(None), Card::open_as(None, false)) {
            (Ok(device), Ok(apart)) => open.extend([device, apart].map(Arc::new)),
            (Err(why), _) | (_, Err(why)) => {
                assert!(std::env::var_os("SCHWANN_REQUIRE_GPU").is_none(), "a GPU is required: {why}");
                println!("skipped: {why}");
            }
        }
    }
    open.clone()
}
