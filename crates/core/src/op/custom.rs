//! Custom operations: the user's own functions of some numbers, applied element by element.
//!
//! A [`Custom`] consists of a definition in `f64` (a closure) and a text for GPUs. It is registered under a name, for
//! the whole program, as backends are; [`Op::Custom`] holds the name alone. So a file can name an operation, but never
//! contains its code, and a name that is not registered is refused.
//!
//! The text is not trusted. Before a program that uses the operation is first compiled for a backend, that backend runs
//! it on a few hundred samples, and the results are compared with the definition ([`Custom::check_on`]). One that
//! differs is refused with the numbers at which it does. On the CPU the definition itself runs: right, and slow.

use super::{Op, PerElement};
use crate::backend::Backend;
use crate::cases::random::Random;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, GraphBuilder};
use crate::run::{CompileOptions, Program};
use crate::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

/// The most inputs of such an operation.
pub const MOST_INPUTS: usize = schwann_kernels::each::MAX_INPUTS;

/// Numbers on which an operation is compared with its definition.
const SAMPLES: usize = 512;

/// The definition: computes a result from one number of each input.
pub type Definition = Arc<dyn Fn(&[f64]) -> f64 + Send + Sync>;

/// A custom operation: a pure function of 1 to 8 numbers in `f32`, applied element by element to inputs that broadcast
/// to one shape.
///
/// ```
/// # use schwann_core::op::Custom;
/// # use schwann_core::{CompileOptions, DType, GraphBuilder, Program, Tensor, shape};
/// # fn main() -> schwann_core::Result<()> {
/// // A bump of height x1 around 0.
/// Custom::new("bump", 2, |x| x[1] * (-x[0] * x[0]).exp())
///     .wgsl("return x1 * exp(-x0 * x0);")
///     .work(4, 1)
///     .register()?;
/// let mut b = GraphBuilder::new();
/// let (x, height) = (b.input("x", DType::F32, shape!["N"])?, b.scalar(3.0)?);
/// let y = b.custom("bump", &[x, height])?;
/// b.output("y", y)?;
/// let mut session = Program::compile(&b.build()?, &CompileOptions::default())?.session();
/// let x = Tensor::new(&[2], &[0.0f32, 1.0])?;
/// assert_eq!(session.run(&[("x", &x)])?[0].values::<f32>()?, [3.0, 1.1036383]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Custom {
    name: String,
    inputs: usize,
    definition: Definition,
    wgsl: Option<String>,
    c: Option<String>,
    domain: [f64; 2],
    abs: f64,
    rel: f64,
    work: PerElement,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({} of {})", self.name, self.inputs)
    }
}

impl Custom {
    /// An operation of this name, with this number of inputs and this definition. The name is made of a to z, 0 to 9
    /// and `_`.
    pub fn new(name: &str, inputs: usize, definition: impl Fn(&[f64]) -> f64 + Send + Sync + 'static) -> Custom {
        let (name, definition) = (name.to_owned(), Arc::new(definition));
        let work = PerElement { operations: inputs, functions: 0, divisions: 0 };
        Custom { name, inputs, definition, wgsl: None, c: None, domain: [-8.0, 8.0], abs: 1e-6, rel: 2e-5, work }
    }

    /// Its text in WGSL: the body of a function of `x0`, `x1` … of type `f32` that returns an `f32`. Without one, GPUs refuse
    /// graphs with this operation.
    pub fn wgsl(self, body: &str) -> Custom {
        Custom { wgsl: Some(body.to_owned()), ..self }
    }

    /// Its text in C, for devices that are programmed in a language of that family.
    pub fn c(self, body: &str) -> Custom {
        Custom { c: Some(body.to_owned()), ..self }
    }

    /// The range from which samples are drawn; by default −8 to 8.
    pub fn domain(self, low: f64, high: f64) -> Custom {
        Custom { domain: [low, high], ..self }
    }

    /// How far a backend's result y may be from the definition: `abs + rel · |y|`; by default 10⁻⁶ and 2·10⁻⁵.
    pub fn tolerance(self, abs: f64, rel: f64) -> Custom {
        Custom { abs, rel, ..self }
    }

    /// The work for one element, for costs and predictions: operations in all, and how many of them are exponentials
    /// and the like.
    pub fn work(self, operations: usize, functions: usize) -> Custom {
        Custom { work: PerElement { operations, functions, divisions: 0 }, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many inputs it has.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Its definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The body of its function in WGSL, where it has one.
    pub fn wgsl_body(&self) -> Option<&str> {
        self.wgsl.as_deref()
    }

    /// The body of its function in C, where it has one.
    pub fn c_body(&self) -> Option<&str> {
        self.c.as_deref()
    }

    /// The work for one element.
    pub fn per_element(&self) -> PerElement {
        self.work
    }

    fn refuse(&self, problem: impl Into<String>) -> Error {
        Error::Custom { name: self.name.clone(), problem: problem.into() }
    }

    /// The definition's value, or an error where it panics.
    pub fn value(&self, x: &[f64]) -> Result<f64> {
        catch_unwind(AssertUnwindSafe(|| (self.definition)(x)))
            .map_err(|_| self.refuse(format!("its definition panicked on {x:?}")))
    }

    /// Makes it known under its name, for the whole program. Refused are names that are taken or not well formed, and
    /// definitions that panic on a sample.
    pub fn register(self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let first = self.name.starts_with(|c: char| c.is_ascii_lowercase());
        if !first || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Err(self.refuse("a name is a letter, then letters a to z, digits and `_`, 64 at most"));
        }
        if !(1..=MOST_INPUTS).contains(&self.inputs) {
            return Err(self.refuse(format!("it has {} inputs; expected 1 to {MOST_INPUTS}", self.inputs)));
        }
        let [low, high] = self.domain;
        if !(low < high && low >= f64::from(f32::MIN) && high <= f64::from(f32::MAX)) {
            return Err(self.refuse(format!("samples from {low} to {high}; expected two numbers in this order")));
        }
        if !(self.abs >= 0.0 && self.rel >= 0.0 && self.abs.is_finite() && self.rel.is_finite()) {
            return Err(self.refuse("a tolerance that is no number from 0 on"));
        }
        let samples = self.samples();
        for at in 0..SAMPLES {
            let x: Vec<f64> = samples.iter().map(|input| f64::from(input[at])).collect();
            self.value(&x)?;
        }
        let mut all = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(&self.name) {
            return Err(self.refuse("the name is taken"));
        }
        all.insert(self.name.clone(), Arc::new(self));
        Ok(())
    }

    /// Numbers to compare on, a list for each input: the ends of the domain, numbers at which functions often differ,
    /// and random ones.
    fn samples(&self) -> Vec<Vec<f32>> {
        let [low, high] = self.domain;
        let telling = [low, high, 0.0, 1.0, -1.0, 0.5, -0.5, 1e-3, -1e-3, 1e-20, -1e-20, (low + high) / 2.0];
        let telling: Vec<f64> = telling.into_iter().filter(|x| (low..=high).contains(x)).collect();
        let mut random = Random::named(&self.name);
        let each = |input: usize| {
            // Each of these numbers of one input is combined with each one of the next input; random numbers follow.
            let (many, stride) = (telling.len(), telling.len().pow(input.min(1) as u32));
            (0..SAMPLES)
                .map(|at| match at < (many * many).min(SAMPLES / 2) {
                    true => telling[at / stride % many],
                    false => random.float(low, high),
                } as f32)
                .collect()
        };
        (0..self.inputs).map(each).collect()
    }

    /// Runs it on a backend, and compares with the definition. An error says for which numbers they differ.
    pub fn check_on(&self, backend: &dyn Backend) -> Result<()> {
        let mut b = GraphBuilder::new();
        let (mut inputs, mut data) = (vec![], vec![]);
        let samples = self.samples();
        for (k, numbers) in samples.iter().enumerate() {
            let name = format!("x{k}");
            inputs.push(b.input(&name, DType::F32, [SAMPLES])?);
            data.push((name, Tensor::new(&[SAMPLES], numbers)?));
        }
        let y = b.custom(&self.name, &inputs)?;
        b.output("y", y)?;
        let program = Program::compile_trusted(&b.build()?, backend, &CompileOptions::default())?;
        let mut session = program.session();
        let given: Vec<(&str, &Tensor)> = data.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let results = session.run(&given)?;
        for (at, got) in results[0].values::<f32>()?.iter().enumerate() {
            let x: Vec<f64> = samples.iter().map(|input| f64::from(input[at])).collect();
            let want = f64::from(self.value(&x)? as f32);
            let got = f64::from(*got);
            let near = (want - got).abs() <= self.abs + self.rel * want.abs();
            if !(near || want == got || want.is_nan() && got.is_nan()) {
                return Err(self.refuse(format!(
                    "on {}, inputs {x:?} give {got:e}, and its definition {want:e}; the text for this backend is wrong, \
                     or its tolerance is too small",
                    backend.name()
                )));
            }
        }
        Ok(())
    }
}

static KNOWN: RwLock<BTreeMap<String, Arc<Custom>>> = RwLock::new(BTreeMap::new());

/// Operations, each with a backend on which it agrees with its definition.
static AGREE: RwLock<BTreeSet<(String, String)>> = RwLock::new(BTreeSet::new());

/// The operation that is registered under a name.
pub fn find(name: &str) -> Option<Arc<Custom>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}

/// The same, or an error that lists the registered names.
pub(crate) fn get(name: &str) -> std::result::Result<Arc<Custom>, String> {
    find(name).ok_or_else(|| {
        let all = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none is".to_owned() } else { format!("there is {}", known.join(", ")) };
        let name = crate::show::name(name);
        format!(
            "no custom operation `{name}` is registered in this program ({known}); a file names it, and brings no code"
        )
    })
}

/// Checks that all custom operations of a graph agree with their definitions on a backend. Each is tried once.
pub(crate) fn agree(graph: &Graph, backend: &dyn Backend) -> Result<()> {
    for node in graph.nodes() {
        match &node.op {
            Op::Scan(scan) => agree(&scan.body, backend)?,
            Op::Custom { name } => {
                let key = (name.clone(), backend.name());
                if AGREE.read().unwrap_or_else(PoisonError::into_inner).contains(&key) {
                    continue;
                }
                let custom = get(name).map_err(|problem| Error::Custom { name: name.clone(), problem })?;
                custom.check_on(backend)?;
                AGREE.write().unwrap_or_else(PoisonError::into_inner).insert(key);
            }
            _ => {}
        }
    }
    Ok(())
}
