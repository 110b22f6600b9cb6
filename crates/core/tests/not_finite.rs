//! Infinity and NaN: a row's result is what the reference gives, however many rows stand beside it and whatever they hold.
//!
//! Kernels choose by the number of rows what fills their lanes, and leave out masked weights where they can; 0 · ∞ is NaN
//! all the same.

use crate::cells::{Cell, Trained};
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_core::plan::Plan;
use schwann_core::{Bindings, CompileOptions, DType, Graph, GraphBuilder, Program, Result, Tensor, Value, shape};
use schwann_kernels::Isa;
use std::collections::BTreeMap;

const INPUTS: usize = 8;
const STEPS: usize = 3;
/// Rows that batches are taken from.
const ROWS: usize = 80;
const BATCHES: [usize; 14] = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64];

/// Makes weights of data, half of it 0 where it is masked.
fn weights(random: &mut Random) -> impl FnMut(&mut GraphBuilder, Trained) -> Result<Value> + '_ {
    let mut count = 0;
    move |b, Trained { shape, range: (low, high), masked }| {
        let mut data = random.floats(&shape, low.into(), high.into()).to_f64();
        if masked {
            data.iter_mut().for_each(|v| *v *= f64::from(random.int(0, 2)));
        }
        count += 1;
        b.weight(&format!("weight{count}"), Tensor::from_f64(DType::F32, &shape, &data)?)
    }
}

/// A loop of such cells over `x`, and a product of its results.
fn looped(cell: Cell, units: usize) -> Result<Graph> {
    let mut random = Random::named(&format!("{cell:?}"));
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", STEPS, INPUTS])?;
    let h = b.input("h", DType::F32, shape!["B", units])?;
    let outs = cell.looped(&mut b, &mut weights(&mut random), x, [INPUTS, units], h, 1)?;
    b.output("last", outs[0])?;
    b.output("y", outs[1])?;
    let w = b.weight("head", random.floats(&[units, 3], -1.0, 1.0))?;
    let head = b.matmul(outs[0], w)?;
    b.output("head", head)?;
    b.build()
}

/// One step of such a cell, of the first element of each sequence.
fn once(cell: Cell, units: usize) -> Result<Graph> {
    let mut random = Random::named(&format!("{cell:?}"));
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", STEPS, INPUTS])?;
    let h = b.input("h", DType::F32, shape!["B", units])?;
    let x = b.slice(x, 1, 0, 1)?;
    let x = b.reshape(x, shape!["B", INPUTS])?;
    let y = cell.step(&mut b, &mut weights(&mut random), x, [INPUTS, units], h)?;
    b.output("y", y)?;
    b.build()
}

/// Products with masked weights, one after the other.
fn products(units: usize) -> Result<Graph> {
    let mut random = Random::named("products");
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", STEPS, INPUTS])?;
    let h = b.input("h", DType::F32, shape!["B", units])?;
    let x = b.reshape(x, shape!["B", STEPS * INPUTS])?;
    let mut weights = weights(&mut random);
    let mut masked = |b: &mut GraphBuilder, rows: usize, columns: usize| {
        weights(b, Trained { shape: vec![rows, columns], range: (-0.4, 0.4), masked: true })
    };
    let (w, u) = (masked(&mut b, STEPS * INPUTS, 40)?, masked(&mut b, units, 40)?);
    let (p, q) = (b.matmul(x, w)?, b.matmul(h, u)?);
    let sum = b.add(p, q)?;
    let z = b.tanh(sum)?;
    let v = masked(&mut b, 40, 5)?;
    let y = b.matmul(z, v)?;
    b.output("sum", sum)?;
    b.output("y", y)?;
    b.build()
}

/// All rows' inputs; most rows have something in them, each at another place.
fn all_rows(graph: &Graph) -> BTreeMap<String, Tensor> {
    let bindings = Bindings::new().with("B", ROWS);
    let shape_of = |name: &str| graph.ty(graph.input(name).unwrap()).shape.eval(&bindings).unwrap();
    let mut data: BTreeMap<&str, Vec<f64>> = ["x", "h"]
        .into_iter()
        .map(|name| (name, Random::named(name).floats(&shape_of(name), -1.5, 1.5).to_f64()))
        .collect();
    for row in 0..ROWS {
        let (name, step, special) = match row % 8 {
            0 => ("x", 0, f64::INFINITY),
            2 => ("h", 0, f64::NEG_INFINITY),
            3 => ("x", 1, f64::NAN),
            4 => ("x", STEPS - 1, f64::NEG_INFINITY),
            6 => ("h", 0, f64::NAN),
            7 => ("h", 0, f64::INFINITY),
            _ => continue,
        };
        let data = data.get_mut(name).unwrap();
        let each = data.len() / ROWS;
        let features = if name == "x" { INPUTS } else { each };
        data[row * each + step * features + row * 3 % features] = special;
    }
    let tensor = |(name, data): (&str, Vec<f64>)| {
        (name.to_owned(), Tensor::from_f64(DType::F32, &shape_of(name), &data).unwrap())
    };
    data.into_iter().map(tensor).collect()
}

/// So many rows from `first` on, which go round.
fn rows(all: &Tensor, first: usize, count: usize) -> Tensor {
    let each = all.len() / ROWS;
    let values = all.values::<f32>().unwrap();
    let taken: Vec<f32> =
        (first..first + count).flat_map(|r| values[r % ROWS * each..][..each].iter().copied()).collect();
    let mut shape = all.shape().to_vec();
    shape[0] = count;
    Tensor::new(&shape, &taken).unwrap()
}

/// How many numbers, infinities and NaN were compared.
#[derive(Debug, Default)]
struct Compared([usize; 3]);

impl Compared {
    fn compare(&mut self, want: &Tensor, got: &Tensor) -> std::result::Result<(), String> {
        if want.shape() != got.shape() {
            return Err(format!("{want} expected, got {got}"));
        }
        for (i, (w, g)) in want.to_f64().into_iter().zip(got.to_f64()).enumerate() {
            let kind = usize::from(w.is_infinite()) + 2 * usize::from(w.is_nan());
            let agree = match kind {
                0 => (w - g).abs() <= 1e-4 + 1e-4 * w.abs(),
                1 => w == g,
                _ => g.is_nan(),
            };
            if !agree {
                return Err(format!("element {i} of {want}: expected {w}, got {g}"));
            }
            self.0[kind] += 1;
        }
        Ok(())
    }
}

/// Kernels of a plan, those in loops included.
fn kernels(plan: &Plan, into: &mut Vec<String>) {
    for step in &plan.steps {
        into.push(step.kernel.to_string());
        if let Some(looped) = &step.looped {
            kernels(&looped.body, into);
            looped.tail.iter().for_each(|tail| kernels(tail, into));
        }
    }
}

/// Runs every batch of rows on every instruction set, on one thread and two.
fn check(name: &str, graph: &Graph, wanted_kernel: Option<&str>) -> Compared {
    let all = all_rows(graph);
    let want = reference::run(graph, &all, Precision::Storage).unwrap();
    let mut compared = Compared::default();
    let mut seen = vec![];
    let mut failures = vec![];
    for &isa in Isa::available() {
        for threads in [1, 2] {
            let cpu = Cpu::with_isa(isa, threads).unwrap();
            let program = Program::compile_for(graph, &cpu, &CompileOptions::default()).unwrap();
            let mut session = program.session();
            for batch in BATCHES {
                kernels(&program.plan(&Bindings::new().with("B", batch)).unwrap(), &mut seen);
                // One alone is each kind of row in turn.
                for first in 0..if batch == 1 { 8 } else { 2 } {
                    let given: BTreeMap<&str, Tensor> =
                        all.iter().map(|(n, t)| (n.as_str(), rows(t, first, batch))).collect();
                    let given: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (*n, t)).collect();
                    let got = session.run(&given).unwrap();
                    assert_eq!(got.len(), want.len());
                    for ((want, got), output) in want.iter().zip(got).zip(graph.outputs()) {
                        if let Err(problem) = compared.compare(&rows(want, first, batch), got) {
                            let where_ = format!("{name}, `{}`, rows {first} to {}", output.name, first + batch);
                            failures.push(format!("{where_} on {isa}, {threads} threads: {problem}"));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    if let Some(wanted) = wanted_kernel {
        assert!(seen.iter().any(|k| k.contains(wanted)), "{name}: no kernel with {wanted:?} among {seen:?}");
    }
    compared
}

#[test]
fn masked_cells_give_the_same_at_every_batch_size() {
    for one_product in [false, true] {
        for (masked, backbone) in [(true, 0), (false, 0), (false, 19), (true, 19)] {
            let cell = Cell::Gated { masked, one_product, shifted: true, backbone };
            for (name, graph, lanes) in [
                ("in a loop", looped(cell, 29).unwrap(), "batch-last"),
                ("once", once(cell, 29).unwrap(), "batch-first"),
            ] {
                let Compared(seen) = check(&format!("{cell:?} {name}"), &graph, Some(lanes));
                assert!(seen[0] > 10_000 && seen[2] > 1_000, "{cell:?} {name}: {seen:?}");
            }
        }
    }
    // What a mask leaves out is really left out where rows fill the lanes.
    let cell = Cell::Gated { masked: true, one_product: false, shifted: false, backbone: 0 };
    check("masked", &looped(cell, 29).unwrap(), Some(" less "));
}

#[test]
fn other_cells_and_products_give_the_same_at_every_batch_size() {
    for cell in [Cell::Lstm, Cell::Ratio { times: 1 }, Cell::Ratio { times: 3 }] {
        for graph in [looped(cell, 19).unwrap(), once(cell, 19).unwrap()] {
            let kernel = matches!(cell, Cell::Ratio { .. }).then_some("ratio");
            let Compared(seen) = check(&format!("{cell:?}"), &graph, kernel);
            assert!(seen[0] > 10_000 && seen[2] > 500, "{cell:?}: {seen:?}");
        }
    }
    let Compared(seen) = check("products", &products(19).unwrap(), None);
    assert!(seen[0] > 10_000 && seen[2] > 1_000, "{seen:?}");
}

/// Products of one x that are added up become one product with the sum of their weights, whatever the batch. For an
/// infinite x that is another sum: ∞ · 2 − ∞ · 1 is NaN, and ∞ · (2 − 1) is ∞. Everything else stays.
#[test]
fn of_products_added_ahead_an_infinity_counts_once() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 1]).unwrap();
    let two = b.weight("two", Tensor::new(&[1, 3], &[2.0f32, 2.0, 0.0]).unwrap()).unwrap();
    let one = b.weight("one", Tensor::new(&[1, 3], &[-1.0f32, 1.0, 0.0]).unwrap()).unwrap();
    let (p, q) = (b.matmul(x, two).unwrap(), b.matmul(x, one).unwrap());
    let y = b.add(p, q).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for &isa in Isa::available() {
        let program =
            Program::compile_for(&graph, &Cpu::with_isa(isa, 1).unwrap(), &CompileOptions::default()).unwrap();
        for batch in BATCHES {
            for (x, want, as_written) in [
                (2.0, [2.0, 6.0, 0.0], [2.0, 6.0, 0.0]),
                (inf, [inf, inf, nan], [nan, inf, nan]),
                (-inf, [-inf, -inf, nan], [nan, -inf, nan]),
                (nan, [nan; 3], [nan; 3]),
            ] {
                let x = Tensor::new(&[batch, 1], &vec![x; batch]).unwrap();
                let bits = |values: &[f32]| values.iter().map(|v| (v.is_nan(), v.to_string())).collect::<Vec<_>>();
                let reference = reference::run(&graph, &[("x".to_owned(), x.clone())].into(), Precision::Storage);
                assert_eq!(bits(reference.unwrap()[0].values().unwrap()), bits(&as_written.repeat(batch)));
                let got = program.session().run(&[("x", &x)]).unwrap()[0].clone();
                assert_eq!(bits(got.values().unwrap()), bits(&want.repeat(batch)), "{isa}, batch {batch}");
            }
        }
    }
}
