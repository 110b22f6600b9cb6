//! What a session promises holds on devices: on a simulated one, with a clock of its launches and without, and on a GPU, where
//! there is one. Without, that part is skipped, unless `SCHWANN_REQUIRE_GPU` is set.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[path = "gpu/mod.rs"]
mod gpu;
#[path = "../../core/tests/promises/mod.rs"]
mod promises;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use crate::opened;
use schwann_core::backend::Backend;
use schwann_gpu::Gpu;
use schwann_gpu::device::Limits;
use schwann_gpu::simulated::Simulated;
use std::sync::Arc;

const LOOPS_ARE_ONE_KERNEL: bool = true;

fn backends() -> Vec<Box<dyn Backend>> {
    let simulated = |clock| Box::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), clock))));
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), expect(unused_mut, reason = "one more with a GPU"))]
    let mut all: Vec<Box<dyn Backend>> = vec![simulated(true), simulated(false)];
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    all.extend(opened::both().into_iter().map(|device| Box::new(Gpu::new(device)) as Box<dyn Backend>));
    all
}

#[test]
fn every_case_agrees_with_the_reference_on_a_simulated_device() {
    promises::every_case_agrees(&Gpu::new(Arc::new(Simulated::default())));
}
