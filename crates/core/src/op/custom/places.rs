//! Kernels that look around: each place of the results is made of any elements of the inputs.
//!
//! What such a kernel takes and gives is declared by shapes in symbols of its own. The inputs' sizes say what the symbols stand
//! for, and the shape of the results follows: `[rows, n]` in, `[rows, n - 4]` out. It works with sizes that are open, since
//! all of it is arithmetic on sizes.
//!
//! Places are computed apart from each other and read nothing but the inputs, so there is no order, no waiting and no race.

use crate::cases::random::Random;
use crate::dtype::DType;
use crate::graph::MAX_RANK;
use crate::op::Type;
use crate::shape::{Bindings, Dim, Shape};
use crate::tensor::{Tensor, count};
use half::{bf16, f16};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most results of such a kernel.
pub const MOST_RESULTS: usize = schwann_kernels::each::MAX_OUTPUTS;

/// What a kernel computes for one place: of what it can see from there, its results.
pub(super) type Look = Arc<dyn Fn(&Place<'_>, &mut [f64]) + Send + Sync>;

/// Gives the element of an input, by number, that is nearest to these places along its axes.
pub type Read<'a> = dyn FnMut(usize, &[i64]) -> f64 + 'a;

/// What a definition sees: where it is, the sizes, and every element of the inputs.
pub struct Place<'a> {
    kernel: &'a Places,
    at: &'a [i64],
    sizes: &'a [i64],
    read: RefCell<&'a mut Read<'a>>,
    /// The first thing that was asked for and is not there.
    wrong: Cell<Option<String>>,
}

impl fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({:?})", self.at)
    }
}

impl Place<'_> {
    /// The place along an axis of the results: `at0`, `at1` … in a text.
    pub fn at(&self, axis: usize) -> i64 {
        self.at
            .get(axis)
            .copied()
            .unwrap_or_else(|| self.refuse(format!("axis {axis} of a result of {}", self.at.len())))
    }

    /// What a symbol of the declared shapes stands for; in a text, the symbol itself.
    pub fn size(&self, symbol: &str) -> i64 {
        let known = self.kernel.symbols.iter().zip(self.sizes).find(|(name, _)| *name == symbol);
        known.map_or_else(|| self.refuse(format!("the size `{symbol}`, which no input has")), |(_, size)| *size)
    }

    /// An element of an input, at a place along each of its axes: `x0(i, j)`, `x1(i)` … in a text. A place before the first
    /// or beyond the last is the nearest one; an input without elements gives 0. Whole numbers are given as `f32` has them,
    /// truth values as 0 and 1.
    pub fn x(&self, input: usize, places: &[i64]) -> f64 {
        match self.kernel.inputs.get(input) {
            Some(ty) if ty.shape.rank() == places.len() => (self.read.borrow_mut())(input, places),
            Some(ty) => self.refuse(format!("input {input} at {places:?}, which has {} axes", ty.shape.rank())),
            None => self.refuse(format!("input {input} of {}", self.kernel.inputs.len())),
        }
    }

    fn refuse<T: Default>(&self, what: String) -> T {
        let first = self.wrong.take();
        self.wrong.set(Some(first.unwrap_or(what)));
        T::default()
    }
}

/// A kernel as it was declared.
pub struct Places {
    pub(super) inputs: Vec<Type>,
    pub(super) results: usize,
    pub(super) shape: Shape,
    pub(super) look: Look,
    /// The symbols of the inputs' shapes, in order of their names.
    symbols: Vec<String>,
}

impl Places {
    pub(super) fn new(inputs: &[(DType, Shape)], results: usize, shape: Shape, look: Look) -> Places {
        let inputs: Vec<Type> = inputs.iter().map(|(dtype, shape)| Type::new(*dtype, shape.clone())).collect();
        let mut symbols = vec![];
        for dim in inputs.iter().flat_map(|ty| ty.shape.dims()) {
            dim.for_each_symbol(|symbol| symbols.push(symbol.to_owned()));
        }
        symbols.sort();
        symbols.dedup();
        Places { inputs, results, shape, look, symbols }
    }

    /// The types of its inputs, as they were declared.
    pub fn inputs(&self) -> &[Type] {
        &self.inputs
    }

    /// How many results it has.
    pub fn results(&self) -> usize {
        self.results
    }

    /// The symbols of its inputs' shapes, in order of their names.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// What is wrong with the declaration.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=MOST_RESULTS).contains(&self.results) {
            return Err(format!("it has {} results; expected 1 to {MOST_RESULTS}", self.results));
        }
        let shapes = || self.inputs.iter().map(|ty| &ty.shape).chain([&self.shape]);
        if let Some(deep) = shapes().find(|shape| shape.rank() > MAX_RANK) {
            return Err(format!("{deep} has more than {MAX_RANK} axes"));
        }
        let mut all = vec![];
        shapes().flat_map(Shape::dims).for_each(|dim| dim.for_each_symbol(|symbol| all.push(symbol.to_owned())));
        let numbered = |name: &str, like: &str| {
            name.strip_prefix(like).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
        };
        for symbol in &all {
            let plain = symbol.starts_with(|c: char| c.is_ascii_alphabetic()) && crate::shape::is_symbol(symbol);
            if !plain || ["x", "y", "at"].iter().any(|like| numbered(symbol, like)) || super::OURS.contains(&&**symbol)
            {
                return Err(format!("a size cannot be called `{}` in a text", crate::show::name(symbol)));
            }
            if !self.lines().any(|(name, ..)| name == *symbol) {
                return Err(format!(
                    "nothing says what `{symbol}` is; expected an input of that size, or of a·{symbol} + b"
                ));
            }
        }
        Ok(())
    }

    /// For each size of the inputs that is a · symbol + b: the symbol, a, b, and which size of which input it is.
    fn lines(&self) -> impl Iterator<Item = (&str, [i64; 2], [usize; 2])> {
        self.inputs.iter().enumerate().flat_map(|(input, ty)| {
            ty.shape.dims().iter().enumerate().filter_map(move |(axis, dim)| {
                let (symbol, numbers) = dim.as_line()?;
                Some((symbol, numbers, [input, axis]))
            })
        })
    }

    /// What its symbols stand for where the inputs have these sizes, in the order of [`Places::symbols`].
    pub fn bind(&self, inputs: &[&[Dim]]) -> Result<Vec<Dim>, String> {
        let size = |[input, axis]: [usize; 2]| inputs.get(input).and_then(|dims| dims.get(axis));
        let find = |symbol: &String| {
            let solved = self.lines().filter(|(name, ..)| name == symbol);
            let solved = solved.map(|(_, numbers, place)| Some((size(place)?.solve(numbers), place)));
            // One of several sizes may do where another does not; whether all agree is seen below.
            let mut solved: Vec<_> = solved.flatten().collect();
            solved.sort_by_key(|(found, _)| found.is_none());
            match solved.into_iter().next() {
                Some((Some(found), _)) => Ok(found),
                Some((None, [input, axis])) => {
                    let (wanted, got) = (&self.inputs[input].shape[axis], &inputs[input][axis]);
                    Err(format!("axis {axis} of input {input} must be {wanted} for a whole {symbol}, got {got}"))
                }
                None => Err(format!("nothing says what `{symbol}` is")),
            }
        };
        let sizes = self.symbols.iter().map(find).collect::<Result<Vec<Dim>, String>>()?;
        for (k, (ty, dims)) in self.inputs.iter().zip(inputs).enumerate() {
            let wanted = self.fill(&ty.shape, &sizes)?;
            if wanted.dims() != *dims {
                let got = Shape::from(dims.to_vec());
                return Err(format!("input {k} must be {}{}, got {got}", ty.shape, self.standing(&sizes)));
            }
        }
        Ok(sizes)
    }

    /// A declared shape with symbols replaced by sizes.
    fn fill(&self, shape: &Shape, sizes: &[Dim]) -> Result<Shape, String> {
        let of = |symbol: &str| self.symbols.iter().position(|name| name == symbol).map(|at| &sizes[at]);
        let dims = shape.dims().iter().map(|dim| dim.replaced(&of).ok_or("sizes overflow"));
        Ok(dims.collect::<Result<Vec<Dim>, _>>()?.into())
    }

    /// ` with n = 3, rows = B`
    fn standing(&self, sizes: &[impl fmt::Display]) -> String {
        let each: Vec<String> = self.symbols.iter().zip(sizes).map(|(name, size)| format!("{name} = {size}")).collect();
        if each.is_empty() { String::new() } else { format!(" with {}", each.join(", ")) }
    }

    /// The types of its results.
    pub(crate) fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, String> {
        if inputs.len() != self.inputs.len() {
            return Err(format!("takes {} inputs, got {}", self.inputs.len(), inputs.len()));
        }
        for (k, (wanted, ty)) in self.inputs.iter().zip(inputs).enumerate() {
            if wanted.dtype != ty.dtype || wanted.shape.rank() != ty.shape.rank() {
                return Err(format!("input {k} must be {wanted}, got {ty}"));
            }
        }
        let sizes = self.bind(&inputs.iter().map(|ty| ty.shape.dims()).collect::<Vec<_>>())?;
        let shape = self.fill(&self.shape, &sizes)?;
        let given = || format!("{}{}", self.shape, self.standing(&sizes));
        if let Some(dim) = shape.dims().iter().chain(&sizes).find(|dim| dim.eval_all(1 << 20) < 0) {
            return Err(format!("the size {dim} of {} is negative", given()));
        }
        Ok(vec![Type::new(DType::F32, shape); self.results])
    }

    /// The results at one place. An error says what went wrong in the definition.
    pub fn compute(&self, at: &[i64], sizes: &[i64], read: &mut Read<'_>, y: &mut [f64]) -> Result<(), String> {
        y.fill(0.0);
        let place = Place { kernel: self, at, sizes, read: RefCell::new(read), wrong: Cell::new(None) };
        let done = catch_unwind(AssertUnwindSafe(|| (self.look)(&place, y)));
        let place_is = || format!("at place {at:?}{}", self.standing(sizes));
        if let Some(what) = place.wrong.take() {
            return Err(format!("its definition asks for {what}, {}", place_is()));
        }
        done.map_err(|panic| format!("its definition panicked {}{}", place_is(), said(&*panic)))
    }

    /// All results, place by place. Inputs are read and results given by their numbers in order.
    pub(crate) fn whole(
        &self,
        sized: &Sizes,
        read: &mut dyn FnMut(usize, usize) -> f64,
        put: &mut dyn FnMut(usize, usize, f64),
    ) -> Result<(), String> {
        let mut near =
            |input: usize, places: &[i64]| nearest(&sized.inputs[input], places).map_or(0.0, |i| read(input, i));
        let mut y = [0.0; MOST_RESULTS];
        let y = &mut y[..self.results];
        for number in 0..sized.places {
            let at = sized.at(number);
            self.compute(&at[..sized.shape.len()], &sized.symbols, &mut near, y)?;
            y.iter().enumerate().for_each(|(result, value)| put(result, number, *value));
        }
        Ok(())
    }

    /// Its sizes where the inputs have these.
    pub(crate) fn sizes(&self, inputs: Vec<Vec<usize>>) -> Result<Sizes, String> {
        let dims: Vec<Vec<Dim>> = inputs.iter().map(|sizes| sizes.iter().map(|n| Dim::fixed(*n)).collect()).collect();
        let symbols = self.bind(&dims.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        let shape = self.fill(&self.shape, &symbols)?;
        let fixed = |dim: &Dim| dim.as_fixed().ok_or_else(|| format!("the size {dim} is negative"));
        let shape = shape.dims().iter().map(fixed).collect::<Result<Vec<usize>, String>>()?;
        let symbols = symbols.iter().map(|dim| Ok(fixed(dim)? as i64)).collect::<Result<Vec<i64>, String>>()?;
        let places = count(&shape).ok_or("sizes overflow")?;
        Ok(Sizes { inputs, symbols, shape, places })
    }

    /// Inputs to compare on, of several sizes.
    pub(super) fn samples(&self, name: &str, domain: [f64; 2]) -> Result<Vec<Sample>, String> {
        let mut random = Random::named(name);
        let mut samples: Vec<Sample> = vec![];
        for attempt in 0..ATTEMPTS {
            let mut bindings = Bindings::new();
            for symbol in &self.symbols {
                // Small sizes first: most kernels have a result there, and their ends are near each other.
                let most = SIZES.len() * (attempt + 4) / (ATTEMPTS + 4);
                bindings = bindings.with(symbol, SIZES[random.int(0, most.max(1) as i32) as usize]);
            }
            let shapes = self.inputs.iter().map(|ty| ty.shape.eval(&bindings)).collect::<Result<Vec<_>, _>>();
            let Ok(Ok(sizes)) = shapes.map(|shapes| self.sizes(shapes)) else { continue };
            let elements = sizes.inputs.iter().map(|shape| count(shape).unwrap_or(usize::MAX)).max().unwrap_or(0);
            let known = !self.symbols.is_empty() && samples.iter().any(|sample| sample.sizes.symbols == sizes.symbols);
            if !(1..=MOST_PLACES).contains(&sizes.places) || elements > MOST_ELEMENTS || known {
                continue;
            }
            // Every other sample has few different numbers, so that some are equal.
            let few = samples.len() % 2 == 1;
            let types = self.inputs.iter().zip(&sizes.inputs);
            let inputs = types.map(|(ty, shape)| draw(&mut random, ty.dtype, shape, domain, few)).collect();
            samples.push(Sample { sizes, inputs });
            if samples.len() == SAMPLES {
                break;
            }
        }
        if samples.is_empty() {
            let most = SIZES[SIZES.len() - 1];
            return Err(format!(
                "there is nothing to compare on: no sizes up to {most} give 1 to {MOST_PLACES} places of {} from inputs of at \
                 most {MOST_ELEMENTS} elements",
                self.shape
            ));
        }
        Ok(samples)
    }
}

/// What a panic said, as the end of a sentence.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.map_or_else(String::new, |text| format!(": {text}"))
}

/// How many samples of sizes a kernel is compared on, and how many are tried to find those.
const SAMPLES: usize = 6;
const ATTEMPTS: usize = 400;
/// What symbols stand for there.
const SIZES: [usize; 15] = [1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 100, 256, 1000, 4096];
/// The most places of a sample, and the most elements of one of its inputs.
const MOST_PLACES: usize = 256;
const MOST_ELEMENTS: usize = 8192;

/// Inputs to compare on.
pub(super) struct Sample {
    pub(super) sizes: Sizes,
    pub(super) inputs: Vec<Tensor>,
}

impl Sample {
    /// All results by the definition.
    pub(super) fn whole(&self, places: &Places, put: &mut dyn FnMut(usize, usize, f64)) -> Result<(), String> {
        let mut read = |input: usize, number: usize| {
            let x: &Tensor = &self.inputs[input];
            element(x.dtype(), x.bytes(), number)
        };
        places.whole(&self.sizes, &mut read, put)
    }

    /// Where a result is, and what the definition reads there.
    pub(super) fn describe(&self, places: &Places, result: usize, number: usize) -> String {
        let at = &self.sizes.at(number)[..self.sizes.shape.len()];
        let (mut all, mut y) = (vec![], [0.0; MOST_RESULTS]);
        let mut read = |input: usize, places: &[i64]| {
            let x: &Tensor = &self.inputs[input];
            let value = nearest(x.shape(), places).map_or(0.0, |i| element(x.dtype(), x.bytes(), i));
            all.push(format!("x{input}{places:?} = {value}"));
            value
        };
        let _ = places.compute(at, &self.sizes.symbols, &mut read, &mut y[..places.results]);
        let more = if all.len() > MOST_SHOWN { ", …" } else { "" };
        all.truncate(MOST_SHOWN);
        let (standing, read) = (places.standing(&self.sizes.symbols), all.join(", "));
        format!("result {result} at place {at:?}{standing}, where {read}{more}, is")
    }
}

/// How many elements an error shows.
const MOST_SHOWN: usize = 8;

/// Numbers of a type: of bytes and truth values all, of others those of the domain.
fn draw(random: &mut Random, dtype: DType, shape: &[usize], domain: [f64; 2], few: bool) -> Tensor {
    let [low, high] = match dtype {
        DType::U8 => [0.0, 255.0],
        DType::I8 => [-128.0, 127.0],
        DType::Bool => [0.0, 1.0],
        DType::F32 | DType::F16 | DType::Bf16 | DType::I32 => domain,
    };
    let mut telling = vec![low, high, (low + high) / 2.0];
    telling.extend([0.0, 1.0, -1.0].into_iter().filter(|x| (low..=high).contains(x)));
    let values: Vec<f64> = (0..count(shape).unwrap_or(0))
        .map(|_| match few || random.int(0, 8) == 0 {
            true => telling[random.int(0, telling.len() as i32) as usize],
            false => random.float(low, high),
        })
        .map(|value| if dtype.is_float() { value } else { value.round() })
        .collect();
    Tensor::from_f64(dtype, shape, &values).expect("as many values as the shape has, and small")
}

/// A kernel's sizes in numbers.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// Of each input.
    pub(crate) inputs: Vec<Vec<usize>>,
    /// What the symbols stand for.
    pub(crate) symbols: Vec<i64>,
    /// Of the results.
    pub(crate) shape: Vec<usize>,
    /// How many places the results have.
    pub(crate) places: usize,
}

impl Sizes {
    /// The place of this number along each axis.
    pub(crate) fn at(&self, number: usize) -> [i64; MAX_RANK] {
        let (mut at, mut rest) = ([0; MAX_RANK], number);
        for (at, size) in at[..self.shape.len()].iter_mut().zip(&self.shape).rev() {
            *at = (rest % size.max(&1)) as i64;
            rest /= size.max(&1);
        }
        at
    }
}

/// The number of the element that is nearest to these places; none where there are no elements.
fn nearest(sizes: &[usize], places: &[i64]) -> Option<usize> {
    sizes.iter().zip(places).try_fold(0, |number, (&size, &place)| {
        let last = i64::try_from(size).ok()?.checked_sub(1).filter(|last| *last >= 0)?;
        Some(number * size + place.clamp(0, last) as usize)
    })
}

/// An element of a value that lies as bytes, as a kernel sees it.
pub(crate) fn element(dtype: DType, bytes: &[u8], number: usize) -> f64 {
    let size = dtype.size();
    let Some(bytes) = bytes.get(number * size..(number + 1) * size) else { return f64::NAN };
    match dtype {
        DType::F32 => bytemuck::pod_read_unaligned::<f32>(bytes).into(),
        DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        DType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
        DType::I8 => f64::from(bytes[0] as i8),
        DType::U8 | DType::Bool => bytes[0].into(),
        DType::I32 => as_seen(dtype, bytemuck::pod_read_unaligned::<i32>(bytes).into()),
    }
}

/// A number of a type as a kernel sees it: `f32` has not all of `i32`.
pub(crate) fn as_seen(dtype: DType, value: f64) -> f64 {
    if dtype == DType::I32 { f64::from(value as f32) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    fn places(inputs: &[Shape], shape: Shape) -> Places {
        let inputs: Vec<(DType, Shape)> = inputs.iter().map(|shape| (DType::F32, shape.clone())).collect();
        Places::new(&inputs, 1, shape, Arc::new(|_, _| ()))
    }

    #[test]
    fn shapes_follow_from_those_of_the_inputs_by_arithmetic() {
        let infer = |kernel: &Places, shapes: &[Shape]| {
            let types: Vec<Type> = shapes.iter().map(|shape| Type::new(DType::F32, shape.clone())).collect();
            kernel.infer(&types.iter().collect::<Vec<_>>()).map(|types| types[0].shape.clone())
        };
        // A window, rows apart from each other.
        let window = places(&[shape!["rows", "n"]], shape!["rows", "n - 4"]);
        window.check().unwrap();
        assert_eq!(infer(&window, &[shape!["B", "2*T"]]), Ok(shape!["B", "2*T - 4"]));
        assert_eq!(infer(&window, &[shape![3, 5]]), Ok(shape![3, 1]));
        assert!(infer(&window, &[shape![3, 3]]).unwrap_err().contains("the size -1 of [rows, n - 4]"));
        // Windows of 64 by steps of 16.
        let steps = places(&[shape!["16*w + 48"]], shape!["w"]);
        steps.check().unwrap();
        assert_eq!(infer(&steps, &[shape![64]]), Ok(shape![1]));
        assert_eq!(infer(&steps, &[shape!["32*K + 48"]]), Ok(shape!["2*K"]));
        let problem = infer(&steps, &[shape![65]]).unwrap_err();
        assert_eq!(problem, "axis 0 of input 0 must be 16*w + 48 for a whole w, got 65");
        assert!(infer(&steps, &[shape!["N"]]).unwrap_err().contains("got N"));
        // Sizes that inputs share, and one that is made of two.
        let joined = places(&[shape!["a*b"], shape!["a"], shape!["b", 2]], shape!["b", "a"]);
        joined.check().unwrap();
        assert_eq!(infer(&joined, &[shape!["3*K"], shape!["K"], shape![3, 2]]), Ok(shape![3, "K"]));
        let problem = infer(&joined, &[shape![7], shape![2], shape![3, 2]]).unwrap_err();
        assert_eq!(problem, "input 0 must be [a*b] with a = 2, b = 3, got [7]");
    }

    #[test]
    fn what_no_input_says_cannot_be_declared() {
        for (kernel, words) in [
            (places(&[shape!["n"]], shape!["m"]), "nothing says what `m` is"),
            (places(&[shape!["a*b"]], shape!["a"]), "nothing says what `a` is"),
            (places(&[shape!["x0"]], shape![]), "cannot be called `x0`"),
            (places(&[shape!["_n"]], shape![]), "cannot be called `_n`"),
            (places(&[shape!["args"]], shape![]), "cannot be called `args`"),
            (places(&[shape![1, 1, 1, 1, 1, 1, 1]], shape![]), "more than 6 axes"),
        ] {
            let problem = kernel.check().unwrap_err();
            assert!(problem.contains(words), "expected `{words}` in: {problem}");
        }
    }

    #[test]
    fn beyond_the_end_is_the_nearest_element() {
        assert_eq!(nearest(&[2, 3], &[0, 2]), Some(2));
        assert_eq!(nearest(&[2, 3], &[-1, 7]), Some(2));
        assert_eq!(nearest(&[2, 3], &[i64::MAX, i64::MIN]), Some(3));
        assert_eq!(nearest(&[], &[]), Some(0));
        assert_eq!(nearest(&[2, 0], &[0, 0]), None);
    }
}
