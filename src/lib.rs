//! Schwann compiles small neural networks for the CPU they run on, runs them, and says what that costs.
//!
//! One line, and every stage is a type that you can stop at, print and test:
//!
//! ```text
//! GraphBuilder → Graph → passes → Plan → Program → Session::run
//! ```
//!
//! ```
//! use schwann::prelude::*;
//!
//! # fn main() -> schwann::Result<()> {
//! // A layer: tanh(x·w + b), for any batch size B.
//! let mut b = GraphBuilder::new();
//! let x = b.input("x", DType::F32, shape!["B", 3])?;
//! let w = b.weight("w", Tensor::new(&[3, 2], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0])?)?;
//! let bias = b.weight("bias", Tensor::new(&[2], &[0.5f32, -0.5])?)?;
//! let product = b.matmul(x, w)?;
//! let sum = b.add(product, bias)?;
//! let y = b.tanh(sum)?;
//! b.output("y", y)?;
//! let graph = b.build()?;
//!
//! // Three nodes become one kernel call.
//! let program = Program::compile(&graph, &CompileOptions::default())?;
//! assert_eq!(program.plan(&Bindings::new().with("B", 4))?.steps.len(), 1);
//!
//! // A program is shared; a session is one stream through it.
//! let mut session = program.session();
//! let x = Tensor::new(&[1, 3], &[0.1f32, 0.2, 0.3])?;
//! let y = session.run(&[("x", &x)])?[0].values::<f32>()?;
//! assert!((y[0] - 0.9f32.tanh()).abs() < 1e-6 && y[1].abs() < 1e-6);
//! # Ok(())
//! # }
//! ```
//!
//! * [`graph`]: building, printing, checking; [`op`]: what there is to build from; [`shape`](mod@shape): sizes that may
//!   be symbols.
//! * [`pass`]: the recipe that rewrites a graph, and patterns of your own; [`grad`]: gradients, graph to graph.
//! * [`plan`]: what will run, where in memory, at what cost; [`backend`]: what runs it.
//! * [`memory`]: budget, pool, cache, batches, leak detector; [`io`]: safetensors, `.npy`, `.npz`.
//! * [`live`]: lets a running program be watched by `schwann monitor --attach`, in two lines.
//! * [`nn`]: neural circuits: wirings, CfC and LTC layers, whole models, training, streams, import from ncps.
//! * `prof`: the profiler, devices and predictions, baselines, reports; `sensors`: what the machine tells.
//! * `gpu`: networks on GPUs, with the feature of this name; call [`register_backends`] once, and `wgpu` is a backend by name.
//! * [`cases`]: the list of cases that every backend is tested and timed on.
//!
//! With `default-features = false` there is the runtime alone: everything above but `prof` and `sensors`, which are
//! features of these names (`prof` includes `sensors`).
#![forbid(unsafe_code)]

pub use schwann_core::{
    Bindings, Changing, CompileOptions, Cost, DType, Dim, Error, Figure, Graph, GraphBuilder, Op, Program, Provenance,
    Result, Series, Session, Shape, Tensor, Type, Value, View, backend, cases, dtype, error, figure, grad, graph, io,
    live, memory, op, pass, plan, quant, run, shape, show, svg, tensor,
};
#[cfg(any(feature = "gpu", feature = "cuda"))]
pub use schwann_gpu as gpu;
pub use schwann_kernels::{Isa, heap, peak};
pub use schwann_nn as nn;
#[cfg(feature = "prof")]
pub use schwann_prof as prof;
#[cfg(feature = "sensors")]
pub use schwann_sensors as sensors;

/// Whether this build can use GPUs: the feature `gpu`.
pub const HAS_GPU: bool = cfg!(feature = "gpu");

/// Makes the backends known by name that this build has beside the processor's and the reference.
pub fn register_backends() -> Result<()> {
    #[cfg(any(feature = "gpu", feature = "cuda"))]
    gpu::register()?;
    Ok(())
}

/// What most programs need: `use schwann::prelude::*;`.
pub mod prelude {
    pub use crate::grad::gradient;
    pub use crate::memory::{Budget, Pool};
    pub use crate::pass::{PassOptions, Pattern};
    pub use crate::plan::{Forecast, Plan};
    pub use crate::quant::{self, Scheme, Share};
    pub use crate::{
        Bindings, CompileOptions, DType, Dim, Graph, GraphBuilder, Program, Session, Shape, Tensor, Value, shape,
    };
}

// The guides' code is tested as documentation.
#[cfg(doctest)]
#[doc = include_str!("../docs/wirings.md")]
struct WiringsGuide;
#[cfg(doctest)]
#[doc = include_str!("../docs/neural-circuits.md")]
struct NeuralCircuitsGuide;
#[cfg(doctest)]
#[doc = include_str!("../docs/training.md")]
struct TrainingGuide;
#[cfg(doctest)]
#[doc = include_str!("../docs/monitoring.md")]
struct MonitoringGuide;
#[cfg(doctest)]
#[doc = include_str!("../docs/custom-kernels.md")]
struct CustomKernelsGuide;
#[cfg(all(doctest, feature = "prof"))]
#[doc = include_str!("../docs/profiling.md")]
struct ProfilingGuide;
#[cfg(all(doctest, feature = "prof"))]
#[doc = include_str!("../docs/tuning.md")]
struct TuningGuide;
