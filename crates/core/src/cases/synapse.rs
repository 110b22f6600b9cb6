//! Cases of sums over sparse synapses: the operation itself, and what the pass makes it from.

use super::cells::{self, Wiring};
use super::{Dims, List, Maker, Tolerance, sizes};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{GraphBuilder, Value};
use crate::op::{Activation, Op, Scan, Unary};
use crate::shape;
use crate::shape::Dim;
use crate::tensor::Tensor;

/// A sigmoid or tanh within a few parts in a million, times weights up to 1, and their sum.
fn tolerance(terms: usize) -> Tolerance {
    let sum = Tolerance::sum_of(terms);
    Tolerance { abs: sum.abs + 1.5e-6 * (terms as f64).sqrt(), ..sum }
}

fn direct(m: &mut Maker, activation: Activation, x: Dims, axis: usize, count: usize, segments: usize) -> Result<()> {
    let values = m.random.floats(x, -2.0, 2.0);
    let values = m.given(values)?;
    for sums in [1, 2] {
        let from = m.random.ints(&[count], 0, x[axis].max(1) as i32);
        let to = m.random.ints(&[count], 0, segments.max(1) as i32);
        let mut inputs = vec![values, m.constant(from)?, m.constant(to)?];
        for (low, high) in [(-4.0, 4.0), (-2.0, 2.0), (-1.0, 1.0), (-1.0, 1.0)].into_iter().take(2 + sums) {
            let data = m.random.floats(&[count], low, high);
            inputs.push(m.trained(data)?);
        }
        let first = m.push(Op::SynapseSum { activation, axis, sums, segments }, &inputs)?;
        for slot in 0..sums as u16 {
            m.result(Value { slot, ..first })?;
        }
        // The same, starting from a number for each destination, and for each element.
        let out: Vec<usize> = x.iter().enumerate().map(|(a, n)| if a == axis { segments } else { *n }).collect();
        for shape in [one_each(&out, axis), out].into_iter().take(sums) {
            let data = m.random.floats(&shape, -1.0, 1.0);
            inputs.push(m.trained(data)?);
        }
        let first = m.push(Op::SynapseSum { activation, axis, sums, segments }, &inputs)?;
        for slot in 0..sums as u16 {
            m.result(Value { slot, ..first })?;
        }
    }
    Ok(())
}

/// The shape of a number for each element along an axis.
fn one_each(shape: &[usize], axis: usize) -> Vec<usize> {
    shape[axis..].iter().enumerate().map(|(a, n)| if a == 0 { *n } else { 1 }).collect()
}

fn ratio(m: &mut Maker, activation: Activation, x: Dims, axis: usize, count: usize) -> Result<()> {
    let values = m.random.floats(x, -2.0, 2.0);
    let values = m.given(values)?;
    let units = x[axis];
    let (from, to) = (m.random.ints(&[count], 0, units.max(1) as i32), m.random.ints(&[count], 0, units.max(1) as i32));
    let mut inputs = vec![values, m.constant(from)?, m.constant(to)?];
    for (low, high) in [(-4.0, 4.0), (-2.0, 2.0), (0.0, 1.0), (-1.0, 1.0)] {
        let data = m.random.floats(&[count], low, high);
        inputs.push(m.trained(data)?);
    }
    // The denominator is far from 0, whatever the sums are.
    let far = 10.0 + 10.0 * count as f64;
    for (shape, low, high) in
        [(x.to_vec(), -1.0, 1.0), (one_each(x, axis), -1.0, 1.0), (one_each(x, axis), far, far + 1.0)]
    {
        let data = m.random.floats(&shape, low, high);
        inputs.push(m.trained(data)?);
    }
    let mut y = m.push(Op::SynapseRatio { activation, axis, times: 1 }, &inputs)?;
    m.result(y)?;
    // Applied repeatedly to its own result, as a solver does: a backend may run all repetitions in one call.
    for _ in 0..3 {
        inputs[0] = y;
        y = m.push(Op::SynapseRatio { activation, axis, times: 1 }, &inputs)?;
    }
    m.result(y)?;
    inputs.swap(7, 8);
    inputs[0] = y;
    let other = m.push(Op::SynapseRatio { activation, axis, times: 1 }, &inputs)?;
    m.result(other)
}

/// x, the axis, synapses and destinations.
const SHAPES: [(Dims, usize, usize, usize); 16] = [
    (&[1, 1], 1, 1, 1),
    (&[1, 17], 1, 60, 15),
    (&[3, 33], 1, 200, 40),
    (&[2, 64], 1, 424, 64),
    (&[5, 100], 1, 300, 17),
    (&[1, 7], 1, 500, 2),
    (&[2, 9], 1, 3, 50),
    (&[4, 9], 1, 0, 6),
    (&[0, 9], 1, 12, 6),
    (&[1, 1], 0, 1, 1),
    (&[17, 1], 0, 60, 15),
    (&[33, 19], 0, 100, 20),
    (&[64, 32], 0, 424, 64),
    (&[9, 50], 0, 30, 12),
    (&[9, 0], 0, 12, 6),
    (&[33], 0, 100, 20),
];

pub(super) fn direct_sums(list: &mut List<'_>) {
    for activation in Activation::ALL {
        for (x, axis, count, _) in SHAPES {
            let name = format!("{}/{}/axis{axis}-{count}", activation.name(), sizes(x));
            let tolerance = tolerance(count.div_ceil(x[axis].max(1)) * 4);
            let case = list.add("synapse_ratio", name, tolerance, |m| ratio(m, activation, x, axis, count));
            case.gradient = x.iter().product::<usize>() < 40 && count < 100;
        }
        for (x, axis, count, segments) in SHAPES {
            let name = format!("{}/{}/axis{axis}-{count}-into-{segments}", activation.name(), sizes(x));
            let case = list.add("synapse_sum", name, tolerance(count.div_ceil(segments.max(1)) * 4), |m| {
                direct(m, activation, x, axis, count, segments)
            });
            case.gradient = x.iter().product::<usize>() < 40 && count < 100;
        }
    }
    // A special value affects only the destinations of its source; infinities give the activation's limits.
    for activation in Activation::ALL {
        list.add("synapse_sum", format!("{}/special", activation.name()), Tolerance::CHAIN, |m| {
            let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e30, -1e30, 100.0, -100.0, 1e-40];
            let n = special.len();
            let rows: Vec<f32> = special.iter().chain(special.iter().rev()).copied().collect();
            for axis in [1, 0] {
                let x = if axis == 1 { Tensor::new(&[2, n], &rows)? } else { Tensor::new(&[n, 2], &rows)? };
                let x = m.given(x)?;
                let from: Vec<i32> = (0..n as i32).chain([3, 3, 3, 6]).collect();
                let to: Vec<i32> = (0..n as i32).chain([9, 9, 9, 3]).collect();
                let count = from.len();
                let numbers = |v: f32| Tensor::new(&[count], &vec![v; count]);
                let inputs = [
                    x,
                    m.constant(Tensor::new(&[count], &from)?)?,
                    m.constant(Tensor::new(&[count], &to)?)?,
                    m.trained(numbers(1.5)?)?,
                    m.trained(numbers(0.25)?)?,
                    m.trained(numbers(2.0)?)?,
                ];
                let y = m.push(Op::SynapseSum { activation, axis, sums: 1, segments: 12 }, &inputs)?;
                m.result(y)?;
            }
            Ok(())
        });
    }
}

/// Graphs from which the pass makes the operation, and some that it must leave alone.
pub(super) fn fused_sums(list: &mut List<'_>) {
    for (axis, unary) in [(0, Unary::Sigmoid), (1, Unary::Sigmoid), (0, Unary::Tanh), (1, Unary::Tanh)] {
        for form in 0..6 {
            let name = format!("fused/{}-axis{axis}-form{form}", unary.name());
            list.add("synapse_sum", name, tolerance(12), |m| {
                let (count, units) = (70usize, 20usize);
                let x = m.uniform(&if axis == 0 { [units, 3] } else { [3, units] })?;
                let from = m.random.ints(&[count], 0, units as i32);
                let to = m.random.ints(&[count], 0, 16);
                let (from, to) = (m.constant(from)?, m.constant(to)?);
                let mut lists = vec![];
                for _ in 0..4 {
                    let list = m.random.floats(&if axis == 0 { vec![count, 1] } else { vec![count] }, -2.0, 2.0);
                    lists.push(m.trained(list)?);
                }
                let half = m.scalar(0.5)?;
                let g = m.gather(x, from, axis)?;
                let inner = match form {
                    0 => {
                        let g = m.sub(g, lists[0])?;
                        m.mul(g, lists[1])?
                    }
                    1 => {
                        let g = m.sub(lists[0], g)?;
                        let g = m.neg(g)?;
                        m.add(half, g)?
                    }
                    2 => {
                        let g = m.mul(lists[1], g)?;
                        let g = m.sub(g, half)?;
                        m.sub(half, g)?
                    }
                    3 => g,
                    4 => m.neg(g)?,
                    _ => {
                        let both = m.mul(lists[0], lists[1])?;
                        let both = m.softplus(both)?;
                        let g = m.mul(g, both)?;
                        let g = m.mul(g, half)?;
                        m.add(g, lists[2])?
                    }
                };
                // Without an activation it is a sparse matrix product.
                let active = if form == 2 { inner } else { m.push(Op::Unary(unary), &[inner])? };
                let weighted = m.mul(active, lists[2])?;
                let again = m.mul(lists[3], weighted)?;
                let other = m.mul(active, half)?;
                for value in [weighted, again, other, active].into_iter().take(form + 1) {
                    let y = m.segment_sum(value, to, axis, 16)?;
                    m.result(y)?;
                }
                if form == 4 {
                    // Read elsewhere too, so it must still be computed.
                    m.result(active)?;
                }
                Ok(())
            })
            .gradient = true;
        }
    }
    for (batch, units, sparse) in [(1usize, 5usize, false), (3, 20, true), (17, 64, true)] {
        list.add("scan", format!("ltc/wired-b{batch}-u{units}"), Tolerance::NETWORK, |m| {
            let per = if sparse { 6 } else { 2 };
            let synapses = units * per;
            // Sorted by destination, as a wiring lists them; the last units have none.
            let last = units.div_ceil(2);
            let to: Vec<i32> = (0..synapses).map(|e| (e * last / synapses) as i32).collect();
            let sources = m.random.ints(&[synapses], 0, units as i32);
            let wiring = Wiring { sources, targets: Tensor::new(&[synapses], &to)?, synapses };
            let body = cells::ltc(&Dim::symbol("B"), units, &wiring)?;
            let mut inputs = vec![
                m.uniform_as(shape![Dim::symbol("B"), units], &[batch, units])?,
                m.uniform_as(shape![Dim::symbol("B"), Dim::symbol("T"), units], &[batch, 4, units])?,
            ];
            for (count, low, high) in [
                (synapses, 0.01, 1.0),
                (synapses, 0.3, 0.8),
                (synapses, 3.0, 8.0),
                (synapses, -1.0, 1.0),
                (units, 0.4, 0.6),
                (units, 0.01, 1.0),
                (units, -0.2, 0.2),
            ] {
                let data = m.random.floats(&[count], low, high);
                inputs.push(m.trained(data)?);
            }
            let scan = Scan { body: body.into(), states: 1, sequences: 1, axis: 1, reverse: false };
            for value in m.push_scan(scan, &inputs)? {
                m.result(value)?;
            }
            Ok(())
        });
    }
    // Sums that are also read elsewhere, or that belong to another value than the ratio, must not be merged into a
    // ratio.
    for form in 0..6 {
        list.add("synapse_ratio", format!("near-miss-{form}"), Tolerance::CHAIN, |m| {
            let n = 9;
            let x = m.uniform(&[4, n])?;
            let (from, to) = (m.random.ints(&[20], 0, n as i32), m.random.ints(&[20], 0, n as i32));
            let (from, to) = (m.constant(from)?, m.constant(to)?);
            let weights = m.trained_uniform(&[20])?;
            let g = m.gather(x, from, 1)?;
            let g = m.sigmoid(g)?;
            // A single sum that is broadcast over all neurons.
            let (to, n) = if form == 4 { (m.constant(Tensor::new(&[20], &[0i32; 20])?)?, 1) } else { (to, n) };
            let below = m.segment_sum(g, to, 1, n)?;
            let g = m.mul(g, weights)?;
            let above = m.segment_sum(g, to, 1, n)?;
            let n = 9;
            let (p, q) = (m.trained_uniform(&[n])?, m.trained_uniform(&[n])?);
            let r = m.scalar(3.0)?;
            let other = m.neg(x)?;
            let px = m.mul(p, if form == 0 { other } else { x })?;
            let up = m.add(px, q)?;
            let up = m.add(above, up)?;
            // A scalar instead of one number for each destination.
            let wide = m.add(q, r)?;
            let down = m.add(below, if form == 1 { r } else { wide })?;
            let (up, down) = if form == 5 {
                // Other sums among the terms, made after some of them.
                let other = m.gather(x, from, 1)?;
                let other = m.mul(other, weights)?;
                let gap = m.segment_sum(other, to, 1, n)?;
                (m.add(up, gap)?, down)
            } else {
                (up, down)
            };
            let y = m.div(up, down)?;
            m.result(y)?;
            if form == 2 {
                m.result(above)?;
            }
            if form == 3 {
                m.result(down)?;
            }
            Ok(())
        });
    }
    // The sums are the same in every step, so both move out of the loop.
    list.add("scan", "synapses-of-a-fixed-value", Tolerance::CHAIN, |m| {
        let mut b = GraphBuilder::new();
        let s = b.input("s", DType::F32, [2, 3])?;
        let x = b.input("x", DType::F32, [2, 3])?;
        let fixed = b.input("fixed", DType::F32, [2, 5])?;
        let w = b.input("w", DType::F32, [8])?;
        let from = b.constant(Tensor::new(&[8], &[0, 1, 2, 3, 4, 4, 3, 2])?)?;
        let to = b.constant(Tensor::new(&[8], &[0, 0, 0, 1, 1, 2, 2, 2])?)?;
        let g = b.gather(fixed, from, 1)?;
        let g = b.mul(g, w)?;
        let g = b.sigmoid(g)?;
        let plain = b.segment_sum(g, to, 1, 3)?;
        let g = b.mul(g, w)?;
        let weighted = b.segment_sum(g, to, 1, 3)?;
        let s = b.mul(s, plain)?;
        let s = b.add(s, x)?;
        let s = b.add(s, weighted)?;
        b.output("s_next", s)?;
        b.output("y", s)?;
        let inputs = [m.uniform(&[2, 3])?, m.uniform(&[6, 2, 3])?, m.uniform(&[2, 5])?, m.trained_uniform(&[8])?];
        let scan = Scan { body: b.build()?.into(), states: 1, sequences: 1, axis: 0, reverse: false };
        for value in m.push_scan(scan, &inputs)? {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
}
