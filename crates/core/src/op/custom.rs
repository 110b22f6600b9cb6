//! Custom operations: the user's own functions of some numbers, applied element by element, and kernels that compute each
//! place of their results from any elements of their inputs (`custom/places.rs`).
//!
//! A [`Custom`] consists of a definition in `f64` (a closure) and a text for GPUs. It is registered under a name, for
//! the whole program, as backends are; [`Op::Custom`] holds the name alone. So a file can name an operation, but never
//! contains its code, and a name that is not registered is refused.
//!
//! The text is not trusted. Before a program that uses the operation is first compiled for a backend, that backend runs
//! it on a few hundred samples, and the results are compared with the definition ([`Custom::check_on`]). One that
//! differs is refused with the numbers at which it does. On the CPU the definition itself runs: right, and slow.

mod places;

pub use places::{MOST_RESULTS, Place, Places, Read};
pub(crate) use places::{as_seen, element};

use super::{Op, PerElement};
use crate::backend::Backend;
use crate::cases::random::Random;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, GraphBuilder};
use crate::run::{CompileOptions, Program};
use crate::shape::Shape;
use crate::tensor::Tensor;
use places::Sample;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

/// The most inputs of such an operation.
pub const MOST_INPUTS: usize = schwann_kernels::each::MAX_INPUTS;

/// Numbers on which a function is compared with its definition.
const SAMPLES: usize = 512;

/// What the kernel around a text calls its own things. A text that used these words could reach other memory.
const OURS: [&str; 4] = ["arena", "constants", "faults", "args"];

/// What a function computes of one number from each of its inputs.
pub type Definition = Arc<dyn Fn(&[f64]) -> f64 + Send + Sync>;

/// What an operation does, by its definition.
#[derive(Clone)]
pub enum Form {
    /// A function, applied element by element.
    Elements {
        /// Of so many numbers.
        inputs: usize,
        /// What it is.
        definition: Definition,
    },
    /// A kernel that computes each place of its results from any elements of its inputs.
    Places(Arc<Places>),
}

/// An operation of the user's own. There are two kinds: a pure function of 1 to 8 numbers in `f32`, applied element by element
/// to inputs that stretch to one shape ([`Custom::new`]), and a kernel that looks around ([`Custom::places`]).
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
    form: Form,
    wgsl: Option<String>,
    c: Option<String>,
    domain: [f64; 2],
    abs: f64,
    rel: f64,
    work: PerElement,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({} of {})", self.name, self.inputs())
    }
}

impl Custom {
    /// A function of this name, with this number of inputs and this definition, applied element by element. The name is
    /// made of a to z, 0 to 9 and `_`.
    pub fn new(name: &str, inputs: usize, definition: impl Fn(&[f64]) -> f64 + Send + Sync + 'static) -> Custom {
        Custom::of(name, Form::Elements { inputs, definition: Arc::new(definition) })
    }

    /// A kernel of this name that computes one place of its results at a time, from any elements of its inputs.
    ///
    /// Declared are the inputs' element types and shapes, in symbols of the kernel's own, and how many results there are, all
    /// of one shape in these symbols, as `f32`. The definition is given a place, and sets one number for each result, which
    /// is 0 before.
    ///
    /// ```
    /// # use schwann_core::op::Custom;
    /// # use schwann_core::{CompileOptions, DType, GraphBuilder, Program, Tensor, shape};
    /// # fn main() -> schwann_core::Result<()> {
    /// // The mean of three neighbours, and how far each is from it.
    /// Custom::places("around", &[(DType::F32, shape!["n"])], 2, shape!["n"], |p, y| {
    ///     let i = p.at(0);
    ///     y[0] = (p.x(0, &[i - 1]) + p.x(0, &[i]) + p.x(0, &[i + 1])) / 3.0; // beyond the ends: the nearest
    ///     y[1] = p.x(0, &[i]) - y[0];
    /// })
    /// .wgsl("y0 = (x0(at0 - 1) + x0(at0) + x0(at0 + 1)) / 3.0; y1 = x0(at0) - y0;")
    /// .work(4, 0)
    /// .register()?;
    /// let mut b = GraphBuilder::new();
    /// let x = b.input("x", DType::F32, shape!["N"])?;
    /// let results = b.custom_results("around", &[x])?;
    /// b.output("off", results[1])?;
    /// let mut session = Program::compile(&b.build()?, &CompileOptions::default())?.session();
    /// let x = Tensor::new(&[3], &[1.0f32, 1.0, 4.0])?;
    /// assert_eq!(session.run(&[("x", &x)])?[0].values::<f32>()?, [0.0, -1.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn places(
        name: &str,
        inputs: &[(DType, Shape)],
        results: usize,
        shape: Shape,
        definition: impl Fn(&Place<'_>, &mut [f64]) + Send + Sync + 'static,
    ) -> Custom {
        Custom::of(name, Form::Places(Arc::new(Places::new(inputs, results, shape, Arc::new(definition)))))
    }

    fn of(name: &str, form: Form) -> Custom {
        let (name, wgsl, c, domain) = (name.to_owned(), None, None, [-8.0, 8.0]);
        let mut custom = Custom { name, form, wgsl, c, domain, abs: 1e-6, rel: 2e-5, work: PerElement::default() };
        custom.work.operations = custom.inputs();
        custom
    }

    /// Its text in WGSL; without one, GPUs refuse graphs with this operation. Of a function: the body of a function of `x0`,
    /// `x1` … of type `f32` that returns an `f32`. Of a kernel: statements that set `y0`, `y1` … of type `f32`. They are given
    /// the place as `at0`, `at1` …, every symbol of the inputs' shapes by its name, all of type `i32`, and functions `x0`,
    /// `x1` … of as many `i32` as an input has axes, which read it as [`Place::x`] does.
    pub fn wgsl(self, body: &str) -> Custom {
        Custom { wgsl: Some(body.to_owned()), ..self }
    }

    /// Its text in C, for devices that are programmed in a language of that family, with the same names; `f32` is `float`,
    /// `i32` is `int`.
    pub fn c(self, body: &str) -> Custom {
        Custom { c: Some(body.to_owned()), ..self }
    }

    /// The range from which samples are drawn; by default −8 to 8. Samples of bytes and truth values are any.
    pub fn domain(self, low: f64, high: f64) -> Custom {
        Custom { domain: [low, high], ..self }
    }

    /// How far a backend's result y may be from the definition: `abs + rel · |y|`; by default 10⁻⁶ and 2·10⁻⁵.
    pub fn tolerance(self, abs: f64, rel: f64) -> Custom {
        Custom { abs, rel, ..self }
    }

    /// The work for one element of a result, for costs and predictions: operations in all, and how many of them are
    /// exponentials and the like.
    pub fn work(self, operations: usize, functions: usize) -> Custom {
        Custom { work: PerElement { operations, functions, divisions: 0 }, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many inputs it has.
    pub fn inputs(&self) -> usize {
        match &self.form {
            Form::Elements { inputs, .. } => *inputs,
            Form::Places(places) => places.inputs.len(),
        }
    }

    /// Whether it is a function or a kernel, with its definition.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// Its text in WGSL, where it has one.
    pub fn wgsl_body(&self) -> Option<&str> {
        self.wgsl.as_deref()
    }

    /// Its text in C, where it has one.
    pub fn c_body(&self) -> Option<&str> {
        self.c.as_deref()
    }

    /// The work for one element of a result.
    pub fn per_element(&self) -> PerElement {
        self.work
    }

    fn refuse(&self, problem: impl Into<String>) -> Error {
        Error::Custom { name: self.name.clone(), problem: problem.into() }
    }

    /// Makes it known under its name, for the whole program. Refused are names that are taken or not well formed, and
    /// definitions that panic on a sample.
    pub fn register(self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let first = self.name.starts_with(|c: char| c.is_ascii_lowercase());
        if !first || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Err(self.refuse("a name is a letter, then letters a to z, digits and `_`, 64 at most"));
        }
        if !(1..=MOST_INPUTS).contains(&self.inputs()) {
            return Err(self.refuse(format!("it has {} inputs; expected 1 to {MOST_INPUTS}", self.inputs())));
        }
        let [low, high] = self.domain;
        if !(low < high && low >= f64::from(f32::MIN) && high <= f64::from(f32::MAX)) {
            return Err(self.refuse(format!("samples from {low} to {high}; expected two numbers in this order")));
        }
        if !(self.abs >= 0.0 && self.rel >= 0.0 && self.abs.is_finite() && self.rel.is_finite()) {
            return Err(self.refuse("a tolerance that is no number from 0 on"));
        }
        for text in [&self.wgsl, &self.c].into_iter().flatten() {
            check_text(text).map_err(|problem| self.refuse(problem))?;
        }
        match &self.form {
            Form::Elements { definition, .. } => {
                let samples = self.numbers();
                for at in 0..SAMPLES {
                    let x: Vec<f64> = samples.iter().map(|input| f64::from(input[at])).collect();
                    value(definition, &x).map_err(|problem| self.refuse(problem))?;
                }
            }
            Form::Places(places) => {
                places.check().map_err(|problem| self.refuse(problem))?;
                for sample in self.samples(places)? {
                    sample.whole(places, &mut |_, _, _| ()).map_err(|problem| self.refuse(problem))?;
                }
            }
        }
        let mut all = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(&self.name) {
            return Err(self.refuse("the name is taken"));
        }
        all.insert(self.name.clone(), Arc::new(self));
        Ok(())
    }

    fn samples(&self, places: &Places) -> Result<Vec<Sample>> {
        places.samples(&self.name, self.domain).map_err(|problem| self.refuse(problem))
    }

    /// Numbers to compare a function on, a list for each input: the ends of the domain, numbers at which functions often
    /// differ, and random ones.
    fn numbers(&self) -> Vec<Vec<f32>> {
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
        (0..self.inputs()).map(each).collect()
    }

    /// Whether a backend's result is near enough to the definition's.
    fn near(&self, want: f64, got: f64) -> bool {
        (want - got).abs() <= self.abs + self.rel * want.abs() || want == got || want.is_nan() && got.is_nan()
    }

    /// Runs it on a backend, and compares with the definition. An error says for which numbers they differ.
    pub fn check_on(&self, backend: &dyn Backend) -> Result<()> {
        let off = |what: String, got: f64, want: f64| {
            self.refuse(format!(
                "on {}, {what} {got:e}, and its definition {want:e}; the text for this backend is wrong, or its tolerance \
                 is too small",
                backend.name()
            ))
        };
        match &self.form {
            Form::Elements { definition, .. } => {
                let samples = self.numbers();
                let data =
                    samples.iter().map(|numbers| Tensor::new(&[SAMPLES], numbers)).collect::<Result<Vec<_>>>()?;
                let results = self.run_on(backend, &data)?;
                for (at, got) in results[0].values::<f32>()?.iter().enumerate() {
                    let x: Vec<f64> = samples.iter().map(|input| f64::from(input[at])).collect();
                    let want = f64::from(value(definition, &x).map_err(|problem| self.refuse(problem))? as f32);
                    if !self.near(want, (*got).into()) {
                        return Err(off(format!("inputs {x:?} give"), (*got).into(), want));
                    }
                }
            }
            Form::Places(places) => {
                for sample in self.samples(places)? {
                    let results = self.run_on(backend, &sample.inputs)?;
                    let results = results.iter().map(Tensor::values::<f32>).collect::<Result<Vec<_>>>()?;
                    let mut first = None;
                    let mut compare = |result: usize, number: usize, want: f64| {
                        let (want, got) = (f64::from(want as f32), results[result][number].into());
                        if first.is_none() && !self.near(want, got) {
                            first = Some((result, number, got, want));
                        }
                    };
                    sample.whole(places, &mut compare).map_err(|problem| self.refuse(problem))?;
                    if let Some((result, number, got, want)) = first {
                        return Err(off(sample.describe(places, result, number), got, want));
                    }
                }
            }
        }
        Ok(())
    }

    /// Its results on a backend.
    fn run_on(&self, backend: &dyn Backend, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut b = GraphBuilder::new();
        let names: Vec<String> = (0..inputs.len()).map(|k| format!("x{k}")).collect();
        let mut values = vec![];
        for (name, data) in names.iter().zip(inputs) {
            values.push(b.input(name, data.dtype(), data.shape())?);
        }
        for (k, y) in b.custom_results(&self.name, &values)?.into_iter().enumerate() {
            b.output(&format!("y{k}"), y)?;
        }
        let program = Program::compile_trusted(&b.build()?, backend, &CompileOptions::default())?;
        let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(inputs).collect();
        Ok(program.session().run(&given)?.to_vec())
    }
}

/// A function's value, or a sentence where its definition panics.
pub(crate) fn value(definition: &Definition, x: &[f64]) -> std::result::Result<f64, String> {
    catch_unwind(AssertUnwindSafe(|| definition(x))).map_err(|_| format!("its definition panicked on {x:?}"))
}

/// Refuses a text that ends the function that it is the body of, or that names what only the kernel around it may use.
fn check_text(text: &str) -> std::result::Result<(), String> {
    let mut open = 0i64;
    for c in text.chars() {
        open += i64::from(c == '{') - i64::from(c == '}');
        if open < 0 {
            break;
        }
    }
    if open != 0 {
        return Err("its text has a `{` or `}` without the other".into());
    }
    let mut words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    match words.find(|word| OURS.contains(word)) {
        Some(word) => Err(format!("its text has the word `{word}`, which is the kernel's own; use another name")),
        None => Ok(()),
    }
}

static KNOWN: RwLock<BTreeMap<String, Arc<Custom>>> = RwLock::new(BTreeMap::new());

/// Operations, each with a backend on which it agrees with its definition.
static AGREE: RwLock<BTreeSet<(String, String)>> = RwLock::new(BTreeSet::new());

/// The operation that is registered under a name.
pub fn find(name: &str) -> Option<Arc<Custom>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
}

/// Whether the operation of this name is a function that is applied element by element.
pub(crate) fn is_elementwise(name: &str) -> bool {
    find(name).is_some_and(|custom| matches!(custom.form(), Form::Elements { .. }))
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
