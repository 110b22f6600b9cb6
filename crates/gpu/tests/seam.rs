//! What a session promises holds on devices: on a simulated one, with a clock of its launches and without.

#[path = "../../core/tests/promises/mod.rs"]
mod promises;

use schwann_core::backend::Backend;
use schwann_gpu::Gpu;
use schwann_gpu::device::Limits;
use schwann_gpu::simulated::Simulated;
use std::sync::Arc;

const LOOPS_ARE_ONE_KERNEL: bool = true;

fn backends() -> Vec<Box<dyn Backend>> {
    let simulated = |clock| Box::new(Gpu::new(Arc::new(Simulated::new(Limits::default(), clock))));
    vec![simulated(true), simulated(false)]
}
