//! Cases of synapses whose numbers are values of the run, and of the gradients of their sums.

use super::{Dims, List, Maker, Tolerance, sizes};
use crate::error::Result;
use crate::graph::Value;
use crate::op::{Activation, Op, SynapseResult};
use crate::tensor::Tensor;

/// A sum over rows and synapses, of activations within a few parts in a million.
fn tolerance(terms: usize) -> Tolerance {
    let sum = Tolerance::sum_of(terms);
    Tolerance { abs: sum.abs + 4e-6 * (terms as f64).sqrt(), ..sum }
}

/// x, the axis, synapses and destinations.
const SHAPES: [(Dims, usize, usize, usize); 12] = [
    (&[1, 1], 1, 1, 1),
    (&[1, 17], 1, 60, 15),
    (&[3, 9], 1, 20, 4),
    (&[40, 64], 1, 424, 64),
    (&[4, 9], 1, 0, 6),
    (&[0, 9], 1, 12, 6),
    (&[1, 1], 0, 1, 1),
    (&[9, 3], 0, 20, 4),
    (&[33, 19], 0, 100, 20),
    (&[64, 32], 0, 424, 64),
    (&[9, 0], 0, 12, 6),
    (&[33], 0, 100, 20),
];

/// x and the tables; the numbers are inputs.
fn tables(m: &mut Maker, x: Dims, axis: usize, count: usize, segments: usize, sums: usize) -> Result<Vec<Value>> {
    let values = m.random.floats(x, -2.0, 2.0);
    let values = m.given(values)?;
    let from = m.random.ints(&[count], 0, x[axis].max(1) as i32);
    let to = m.random.ints(&[count], 0, segments.max(1) as i32);
    let mut inputs = vec![values, m.constant(from)?, m.constant(to)?];
    for (low, high) in [(-4.0, 4.0), (-2.0, 2.0), (0.0, 1.0), (-1.0, 1.0)].into_iter().take(2 + sums) {
        let data = m.random.floats(&[count], low, high);
        inputs.push(m.given(data)?);
    }
    Ok(inputs)
}

/// p, q and r, whose denominator is far from 0.
fn terms(m: &mut Maker, x: Dims, axis: usize, count: usize) -> Result<Vec<Value>> {
    let each: Vec<usize> = x[axis..].iter().enumerate().map(|(a, n)| if a == 0 { *n } else { 1 }).collect();
    let far = 10.0 + count as f64;
    let mut all = vec![];
    for (shape, low, high) in [(each.clone(), -1.0, 1.0), (x.to_vec(), -1.0, 1.0), (each, far, far + 1.0)] {
        let data = m.random.floats(&shape, low, high);
        all.push(m.given(data)?);
    }
    Ok(all)
}

fn all_results(m: &mut Maker, op: Op, inputs: &[Value]) -> Result<()> {
    let first = m.push(op, inputs)?;
    for slot in 0..m.builder.graph().node(first).outs.len() as u16 {
        m.result(Value { slot, ..first })?;
    }
    Ok(())
}

fn sums(m: &mut Maker, activation: Activation, x: Dims, axis: usize, count: usize, segments: usize) -> Result<()> {
    for sums in [1, 2] {
        let mut inputs = tables(m, x, axis, count, segments, sums)?;
        let op = Op::SynapseSum { activation, axis, sums, segments };
        all_results(m, op.clone(), &inputs)?;
        let out: Vec<usize> = x.iter().enumerate().map(|(a, n)| if a == axis { segments } else { *n }).collect();
        let (plain, mut back) = (inputs.len(), inputs.clone());
        for _ in 0..sums {
            let data = m.random.floats(&out, -1.0, 1.0);
            let value = m.given(data)?;
            inputs.push(value);
            back.push(value);
        }
        debug_assert_eq!(inputs.len(), plain + sums);
        all_results(m, op, &inputs)?;
        all_results(m, Op::SynapseGradient { activation, axis, of: SynapseResult::Sums { sums, segments } }, &back)?;
    }
    Ok(())
}

fn ratio(m: &mut Maker, activation: Activation, x: Dims, axis: usize, count: usize) -> Result<()> {
    for times in [1, 3] {
        let mut inputs = tables(m, x, axis, count, x[axis], 2)?;
        inputs.extend(terms(m, x, axis, count)?);
        all_results(m, Op::SynapseRatio { activation, axis, times }, &inputs)?;
        let gradient = m.random.floats(x, -1.0, 1.0);
        inputs.push(m.given(gradient)?);
        all_results(m, Op::SynapseGradient { activation, axis, of: SynapseResult::Ratio { times } }, &inputs)?;
    }
    Ok(())
}

pub(super) fn wired(list: &mut List<'_>) {
    for activation in Activation::ALL {
        for (x, axis, count, segments) in SHAPES {
            let rows = x.iter().product::<usize>() / x[axis].max(1);
            let small = x.iter().product::<usize>() < 40 && count < 100;
            let name = format!("{}/{}/axis{axis}-{count}", activation.name(), sizes(x));
            // The gradients of scale and shift are sums over all rows.
            let terms = (count.div_ceil(x[axis].max(1)) * 4).max(rows * 8);
            let case =
                list.add("synapse_gradient", name.clone(), tolerance(terms), |m| ratio(m, activation, x, axis, count));
            case.gradient = small;
            let case = list.add("synapse_gradient", format!("{name}-into-{segments}"), tolerance(terms), |m| {
                sums(m, activation, x, axis, count, segments)
            });
            case.gradient = small;
        }
    }
    // A special value affects only the synapses of its source or destination, and sums over rows.
    for activation in Activation::ALL {
        for rows in [2, 16, 33] {
            // Activations within a part in a million, times gradients of 100.
            let tolerance = Tolerance { abs: 2e-4, ..Tolerance::CHAIN };
            list.add("synapse_gradient", format!("special/{}-{rows}", activation.name()), tolerance, |m| {
                let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 100.0, -100.0, 1e-40, 0.5];
                let n = special.len();
                let across: Vec<f32> = (0..rows * n).map(|i| special[(i + i / n) % n]).collect();
                // Of an infinite x, a slope that is nearly 0 is not exactly so on every machine: ∞ times it is ∞ or NaN.
                let finite: Vec<f32> =
                    across.iter().map(|x| if x.is_infinite() { x.signum() * 50.0 } else { *x }).collect();
                let calm: Vec<f32> = (0..rows * n).map(|i| (i % 7) as f32 * 0.25 - 0.5).collect();
                for (values, gradients) in [(&finite, &calm), (&calm, &across)] {
                    for axis in [1, 0] {
                        let shape = if axis == 1 { [rows, n] } else { [n, rows] };
                        let from: Vec<i32> = (0..n as i32).collect();
                        let to: Vec<i32> = from.iter().map(|i| (i * 3 + 1) % n as i32).collect();
                        let mut inputs = vec![m.given(Tensor::new(&shape, values)?)?];
                        inputs.push(m.constant(Tensor::new(&[n], &from)?)?);
                        inputs.push(m.constant(Tensor::new(&[n], &to)?)?);
                        for number in [1.5f32, 0.25, 2.0, -1.0] {
                            inputs.push(m.given(Tensor::new(&[n], &vec![number; n])?)?);
                        }
                        for _ in 0..2 {
                            inputs.push(m.given(Tensor::new(&shape, gradients)?)?);
                        }
                        let of = SynapseResult::Sums { sums: 2, segments: n };
                        all_results(m, Op::SynapseGradient { activation, axis, of }, &inputs)?;
                    }
                }
                Ok(())
            });
        }
    }
}
