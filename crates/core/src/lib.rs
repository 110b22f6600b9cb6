//! Schwann's compiler and runtime: a graph goes in, passes rewrite it, a plan lays it out, a backend runs it.
#![forbid(unsafe_code)]

pub mod backend;
pub mod cases;
pub mod dtype;
pub mod error;
pub mod figure;
pub mod grad;
pub mod graph;
pub mod io;
pub mod live;
pub mod memory;
pub mod op;
pub mod pass;
pub mod plan;
pub mod quant;
pub mod reference;
pub mod run;
mod session;
pub mod shape;
pub mod show;
pub mod svg;
pub mod tensor;

pub use dtype::DType;
pub use error::{Error, Result};
pub use figure::{Figure, Provenance, Series};
pub use graph::{Graph, GraphBuilder, Value};
pub use op::{Cost, Op, Type};
pub use run::{Changing, CompileOptions, Program, Session};
pub use shape::{Bindings, Dim, Shape};
pub use tensor::{Tensor, View};
