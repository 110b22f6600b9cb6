//! Cases of the loop: both time axes, both directions, no steps, and the cells that people use it for.

use super::cells::{self, Wiring};
use super::{List, Maker, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{GraphBuilder, Value};
use crate::op::Scan;
use crate::shape;
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;

/// How a sequence model is run.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) axis: usize,
    pub(super) reverse: bool,
    pub(super) symbolic: bool,
}

impl Run {
    fn name(&self) -> String {
        let Run { batch, steps, axis, .. } = self;
        let mut name = format!("b{batch}-t{steps}-axis{axis}");
        if self.reverse {
            name += "-reverse";
        }
        if self.symbolic {
            name += "-symbolic";
        }
        name
    }

    fn batch_dim(&self) -> Dim {
        if self.symbolic { Dim::symbol("B") } else { Dim::fixed(self.batch) }
    }

    /// A random sequence of vectors of `width` from `low` to 1.
    fn sequence(&self, m: &mut Maker, width: usize, low: f64) -> Result<Value> {
        let steps = if self.symbolic { Dim::symbol("T") } else { Dim::fixed(self.steps) };
        let (symbols, sizes) = match self.axis {
            0 => (shape![steps, self.batch_dim(), width], [self.steps, self.batch, width]),
            _ => (shape![self.batch_dim(), steps, width], [self.batch, self.steps, width]),
        };
        let data = m.random.floats(&sizes, low, 1.0);
        m.given_as(symbols, data)
    }

    fn state(&self, m: &mut Maker, units: usize) -> Result<Value> {
        m.uniform_as(shape![self.batch_dim(), units], &[self.batch, units])
    }

    fn close(&self, m: &mut Maker, scan: Scan, inputs: &[Value]) -> Result<()> {
        for value in m.push_scan(scan, inputs)? {
            m.result(value)?;
        }
        Ok(())
    }
}

pub(super) fn rnn_into(m: &mut Maker, run: &Run, width: usize, units: usize) -> Result<()> {
    let body = cells::rnn(&run.batch_dim(), width, units)?;
    let inputs = [
        run.state(m, units)?,
        run.sequence(m, width, -1.0)?,
        m.trained_uniform(&[width, units])?,
        m.trained_uniform(&[units, units])?,
        m.trained_uniform(&[units])?,
    ];
    let scan = Scan { body: body.into(), states: 1, sequences: 1, axis: run.axis, reverse: run.reverse };
    run.close(m, scan, &inputs)
}

pub(super) fn lstm_into(m: &mut Maker, run: &Run, width: usize, units: usize) -> Result<()> {
    let body = cells::lstm(&run.batch_dim(), width, units)?;
    let inputs = [
        run.state(m, units)?,
        run.state(m, units)?,
        run.sequence(m, width, -1.0)?,
        m.trained_uniform(&[width, 4 * units])?,
        m.trained_uniform(&[units, 4 * units])?,
        m.trained_uniform(&[4 * units])?,
    ];
    let scan = Scan { body: body.into(), states: 2, sequences: 1, axis: run.axis, reverse: run.reverse };
    run.close(m, scan, &inputs)
}

pub(super) fn cfc_into(m: &mut Maker, run: &Run, width: usize, units: usize, backbone: usize) -> Result<()> {
    let body = cells::cfc(&run.batch_dim(), width, units, backbone)?;
    let mut inputs = vec![
        run.state(m, units)?,
        run.sequence(m, width, -1.0)?,
        run.sequence(m, 1, 0.1)?,
        m.trained_uniform(&[backbone, width + units])?,
        m.trained_uniform(&[backbone])?,
    ];
    for _ in 0..4 {
        inputs.push(m.trained_uniform(&[units, backbone])?);
        inputs.push(m.trained_uniform(&[units])?);
    }
    let scan = Scan { body: body.into(), states: 1, sequences: 2, axis: run.axis, reverse: run.reverse };
    run.close(m, scan, &inputs)
}

pub(super) fn ltc_into(m: &mut Maker, run: &Run, units: usize, synapses: usize) -> Result<()> {
    let sources = m.random.ints(&[synapses], 0, units as i32);
    let targets = m.random.ints(&[synapses], 0, units as i32);
    let body = cells::ltc(&run.batch_dim(), units, &Wiring { sources, targets, synapses })?;
    let mut inputs = vec![run.state(m, units)?, run.sequence(m, units, -1.0)?];
    // Ranges of initial values: weights, midpoints, slopes, reversal potentials, capacities, leaks, resting potentials.
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
    let scan = Scan { body: body.into(), states: 1, sequences: 1, axis: run.axis, reverse: run.reverse };
    run.close(m, scan, &inputs)
}

/// Batch and steps, the axis of time, direction, symbols or numbers.
const RUNS: [Run; 9] = [
    Run { batch: 1, steps: 3, axis: 0, reverse: false, symbolic: false },
    Run { batch: 2, steps: 4, axis: 1, reverse: false, symbolic: false },
    Run { batch: 2, steps: 3, axis: 0, reverse: true, symbolic: false },
    Run { batch: 1, steps: 3, axis: 1, reverse: true, symbolic: true },
    Run { batch: 7, steps: 5, axis: 1, reverse: false, symbolic: true },
    Run { batch: 3, steps: 1, axis: 0, reverse: false, symbolic: true },
    Run { batch: 3, steps: 0, axis: 0, reverse: false, symbolic: true },
    Run { batch: 2, steps: 0, axis: 1, reverse: true, symbolic: false },
    Run { batch: 0, steps: 2, axis: 1, reverse: false, symbolic: true },
];

pub(super) fn rnn(list: &mut List<'_>) {
    for run in RUNS {
        let smooth = run.batch > 0 && run.steps > 0;
        let case = list.add("scan", format!("rnn/{}", run.name()), Tolerance::NETWORK, |m| rnn_into(m, &run, 3, 5));
        case.gradient = smooth;
        let case = list.add("scan", format!("lstm/{}", run.name()), Tolerance::NETWORK, |m| lstm_into(m, &run, 2, 3));
        case.gradient = smooth;
        let case = list.add("scan", format!("cfc/{}", run.name()), Tolerance::NETWORK, |m| cfc_into(m, &run, 2, 3, 5));
        case.gradient = smooth;
        let case = list.add("scan", format!("ltc/{}", run.name()), Tolerance::NETWORK, |m| ltc_into(m, &run, 4, 9));
        case.gradient = smooth;
    }
}

/// Accumulates a sequence: s' = s + x; y = s'.
fn running_sum(dtype: DType, shape: Shape) -> Result<crate::graph::Graph> {
    let mut b = GraphBuilder::new();
    let s = b.input("s", dtype, shape.clone())?;
    let x = b.input("x", dtype, shape)?;
    let sum = b.add(s, x)?;
    b.output("s_next", sum)?;
    b.output("y", sum)?;
    b.build()
}

pub(super) fn cells(list: &mut List<'_>) {
    for (batch, units) in [(1, 17), (7, 33), (3, 65)] {
        let run = Run { batch, steps: 17, axis: 1, reverse: false, symbolic: true };
        list.add("scan", format!("rnn/wide-b{batch}-u{units}"), Tolerance::NETWORK, |m| rnn_into(m, &run, 17, units))
            .timed();
        list.add("scan", format!("lstm/wide-b{batch}-u{units}"), Tolerance::NETWORK, |m| lstm_into(m, &run, 9, units))
            .timed();
        list.add("scan", format!("cfc/wide-b{batch}-u{units}"), Tolerance::NETWORK, |m| {
            cfc_into(m, &run, 9, units, 33)
        })
        .timed();
        list.add("scan", format!("ltc/wide-b{batch}-u{units}"), Tolerance::NETWORK, |m| {
            ltc_into(m, &run, units, 4 * units)
        })
        .timed();
    }
    for (dtype, tolerance) in
        [(DType::F32, Tolerance::sum_of(9)), (DType::I32, Tolerance::EXACT), (DType::F16, Tolerance::EXACT)]
    {
        for reverse in [false, true] {
            let name = format!("sum/{dtype}{}", if reverse { "/reverse" } else { "" });
            list.add("scan", name, tolerance, |m| {
                // Small whole numbers, so that a float's sum is exact in any order.
                let whole: Vec<f64> = (0..27).map(|_| f64::from(m.random.int(-9, 9))).collect();
                let x = m.given(Tensor::from_f64(dtype, &[9, 3], &whole)?)?;
                let s = m.given(Tensor::from_f64(dtype, &[3], &[100.0, 0.0, -100.0])?)?;
                let body = running_sum(dtype, [3].into())?;
                let scan = Scan { body: body.into(), states: 1, sequences: 1, axis: 0, reverse };
                for value in m.push_scan(scan, &[s, x])? {
                    m.result(value)?;
                }
                Ok(())
            })
            .gradient = dtype == DType::F32;
        }
    }
    // The state is the last element read. Rows may be narrower than a word, and enough of them to fill the lanes.
    for dtype in DType::ALL {
        for axis in [0, 1] {
            list.add("scan", format!("latest/{dtype}/axis{axis}"), Tolerance::EXACT, |m| {
                let mut b = GraphBuilder::new();
                let (s, x) = (b.input("s", dtype, [33, 3])?, b.input("x", dtype, [33, 3])?);
                let flag = b.input("flag", DType::Bool, [33, 1])?;
                let next = b.select(flag, x, s)?;
                b.output("s_next", next)?;
                b.output("before", s)?;
                let sizes = |width: usize| if axis == 0 { [5, 33, width] } else { [33, 5, width] };
                let (s, x) = (m.random.any(dtype, &[33, 3]), m.random.any(dtype, &sizes(3)));
                let flags = m.random.bools(&sizes(1));
                let inputs = [m.given(s)?, m.given(x)?, m.given(flags)?];
                let scan = Scan { body: b.build()?.into(), states: 1, sequences: 2, axis, reverse: axis == 1 };
                for value in m.push_scan(scan, &inputs)? {
                    m.result(value)?;
                }
                Ok(())
            });
        }
    }
    list.add("scan", "sum/scalar-state", Tolerance::sum_of(9), |m| {
        let (s, x) = (m.uniform(&[])?, m.uniform(&[9])?);
        let outs = m.scan(running_sum(DType::F32, Shape::scalar())?, &[s], &[x], &[], 0)?;
        m.result(outs[0])?;
        m.result(outs[1])
    })
    .smooth();
    // No state at all: a map over time.
    list.add("scan", "no-state", Tolerance::FUNCTION, |m| {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [3])?;
        let (y, z) = (b.exp(x)?, b.sum(x, &[0], false)?);
        b.output("y", y)?;
        b.output("z", z)?;
        let x = m.uniform(&[5, 3])?;
        for value in m.scan(b.build()?, &[], &[x], &[], 0)? {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
    // Only final states, and states that swap in every step: a backend that overwrites a state before its last use
    // fails here.
    list.add("scan", "fibonacci-swap", Tolerance::EXACT, |m| {
        let mut b = GraphBuilder::new();
        let (p, q) = (b.input("p", DType::I32, [2])?, b.input("q", DType::I32, [2])?);
        let _tick = b.input("tick", DType::Bool, [1])?;
        let sum = b.add(p, q)?;
        b.output("p_next", q)?;
        b.output("q_next", sum)?;
        let (p, q) = (m.given(Tensor::new(&[2], &[0, 5])?)?, m.given(Tensor::new(&[2], &[1, -3])?)?);
        let ticks = m.random.bools(&[33, 1]);
        let ticks = m.given(ticks)?;
        for value in m.scan(b.build()?, &[p, q], &[ticks], &[], 0)? {
            m.result(value)?;
        }
        Ok(())
    });
    // Results narrower than a word, with enough rows to fill the lanes: such rows cannot be transposed a word at a
    // time.
    list.add("scan", "narrow-results", Tolerance::CHAIN, |m| {
        let mut b = GraphBuilder::new();
        let (s, x) = (b.input("s", DType::F32, [33, 4])?, b.input("x", DType::F32, [33, 4])?);
        let s = b.add(s, x)?;
        let zero = b.scalar(0.0)?;
        let (half, positive) = (b.cast(x, DType::F16)?, b.gt(x, zero)?);
        b.output("s_next", s)?;
        b.output("half", half)?;
        b.output("positive", positive)?;
        let (s, x) = (m.uniform(&[33, 4])?, m.uniform(&[33, 5, 4])?);
        let scan = Scan { body: b.build()?.into(), states: 1, sequences: 1, axis: 1, reverse: false };
        for value in m.push_scan(scan, &[s, x])? {
            m.result(value)?;
        }
        Ok(())
    });
    // A loop of no steps never reads an index that is out of range, although the gather could be hoisted out of the
    // loop.
    list.add("scan", "no-steps/index-out-of-range", Tolerance::EXACT, |m| {
        let mut b = GraphBuilder::new();
        let (s, x) = (b.input("s", DType::F32, [2])?, b.input("x", DType::F32, [2])?);
        let (table, index) = (b.input("table", DType::F32, [3])?, b.input("index", DType::I32, [2])?);
        let row = b.gather(table, index, 0)?;
        let s = b.add(s, row)?;
        let y = b.add(s, x)?;
        b.output("s_next", s)?;
        b.output("y", y)?;
        let (s, x, table) = (m.uniform(&[2])?, m.uniform(&[0, 2])?, m.uniform(&[3])?);
        let index = m.given(Tensor::new(&[2], &[7, -1])?)?;
        for value in m.scan(b.build()?, &[s], &[x], &[table, index], 0)? {
            m.result(value)?;
        }
        Ok(())
    });
    // With no rows at all, a row can be reshaped to any width.
    list.add("scan", "no-rows/reshaped", Tolerance::FUNCTION, |m| {
        let mut b = GraphBuilder::new();
        let (s, x) = (b.input("s", DType::F32, [0, 3])?, b.input("x", DType::F32, [0, 2])?);
        let wider = b.reshape(x, [0, 3])?;
        let next = b.add(s, wider)?;
        let next = b.tanh(next)?;
        b.output("s_next", next)?;
        b.output("y", wider)?;
        let (s, x) = (m.uniform(&[0, 3])?, m.uniform(&[4, 0, 2])?);
        for value in m.scan(b.build()?, &[s], &[x], &[], 0)? {
            m.result(value)?;
        }
        Ok(())
    });
    // Sequences of different element shapes and types: vectors, numbers and flags; the flag resets the state.
    list.add("scan", "reset-by-flag", Tolerance::CHAIN, |m| {
        let mut b = GraphBuilder::new();
        let s = b.input("s", DType::F32, [2, 3])?;
        let x = b.input("x", DType::F32, [2, 3])?;
        let reset = b.input("reset", DType::Bool, [2])?;
        let decay = b.input("decay", DType::F32, [3])?;
        let reset = b.reshape(reset, [2, 1])?;
        let zero = b.scalar(0.0)?;
        let s = b.select(reset, zero, s)?;
        let s = b.mul(s, decay)?;
        let s = b.add(s, x)?;
        let size = b.reduce_max(s, &[1], false)?;
        b.output("s_next", s)?;
        b.output("size", size)?;
        b.output("s_seen", s)?;
        let flags = m.random.bools(&[2, 7]);
        let inputs = [m.uniform(&[2, 3])?, m.uniform(&[2, 7, 3])?, m.given(flags)?, m.trained_uniform(&[3])?];
        let scan = Scan { body: b.build()?.into(), states: 1, sequences: 2, axis: 1, reverse: false };
        for value in m.push_scan(scan, &inputs)? {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
    // A loop in a loop: rows of a table, each summed step by step.
    list.add("scan", "nested", Tolerance::CHAIN, |m| {
        let mut b = GraphBuilder::new();
        let total = b.input("total", DType::F32, [3])?;
        let row = b.input("row", DType::F32, [4, 3])?;
        let outs = b.scan(running_sum(DType::F32, [3].into())?, &[total], &[row], &[], 0)?;
        let next = b.tanh(outs[0])?;
        b.output("total_next", next)?;
        b.output("sums", outs[1])?;
        let (start, table) = (m.uniform(&[3])?, m.uniform(&[5, 4, 3])?);
        for value in m.scan(b.build()?, &[start], &[table], &[], 0)? {
            m.result(value)?;
        }
        Ok(())
    })
    .smooth();
    // Forwards and backwards over one sequence, joined.
    list.add("scan", "bidirectional", Tolerance::NETWORK, |m| {
        let run = Run { batch: 2, steps: 4, axis: 1, reverse: false, symbolic: true };
        let x = run.sequence(m, 3, -1.0)?;
        let mut ways = vec![];
        for reverse in [false, true] {
            let body = cells::rnn(&run.batch_dim(), 3, 4)?;
            let inputs = [
                run.state(m, 4)?,
                x,
                m.trained_uniform(&[3, 4])?,
                m.trained_uniform(&[4, 4])?,
                m.trained_uniform(&[4])?,
            ];
            ways.push(m.push_scan(Scan { body: body.into(), states: 1, sequences: 1, axis: 1, reverse }, &inputs)?[1]);
        }
        let y = m.concat(&ways, 2)?;
        m.result(y)
    })
    .smooth();
}
