//! Graphs of such sizes that mistakes show which the case list, made for other ends, does not try: more keys than a tile of
//! attention, tiles that end at each row and column that a thread has, blocks that are full, rows whose last element is the
//! one that counts, and indices that are one too large.

use schwann_core::cases::random::Random;
use schwann_core::op::{Activation, Op, Scan};
use schwann_core::{DType, Dim, Graph, GraphBuilder, Result, Shape, Tensor, Value};
use std::collections::BTreeMap;

/// A graph with inputs.
pub(crate) struct Tried {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    pub(crate) inputs: BTreeMap<String, Tensor>,
    /// Whether the run must end with an error, because the data are wrong.
    pub(crate) refused: bool,
    /// Whether mistakes in the kernels of its gradients are looked for as well.
    pub(crate) gradient: bool,
}

impl Tried {
    /// One that must not be refused.
    pub(crate) fn of(name: &str, graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Tried {
        Tried { name: name.into(), graph: graph.clone(), inputs: inputs.clone(), refused: false, gradient: false }
    }
}

struct Maker {
    b: GraphBuilder,
    random: Random,
    inputs: BTreeMap<String, Tensor>,
}

impl Maker {
    fn given(&mut self, data: Tensor) -> Result<Value> {
        let name = format!("x{}", self.inputs.len());
        let value = self.b.input(&name, data.dtype(), data.shape())?;
        self.inputs.insert(name, data);
        Ok(value)
    }
    fn uniform(&mut self, shape: &[usize]) -> Result<Value> {
        let data = self.random.floats(shape, -1.0, 1.0);
        self.given(data)
    }
    fn result(&mut self, value: Value) -> Result<()> {
        let name = format!("y{}", self.b.graph().outputs().len());
        self.b.output(&name, value)
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Tried> {
    let mut all = vec![];
    let mut add = |name: String, refused: bool, build: &dyn Fn(&mut Maker) -> Result<()>| {
        let mut m = Maker { b: GraphBuilder::new(), random: Random::named(&name), inputs: BTreeMap::new() };
        build(&mut m).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (graph, inputs) = (m.b.build().unwrap_or_else(|e| panic!("{name}: {e}")), m.inputs);
        // An index that is out of range has no gradient, nor has what there is none of in f16.
        let gradient = !refused && graph.output_types().iter().all(|ty| ty.dtype == DType::F32);
        all.push(Tried { name, graph, inputs, refused, gradient });
    };
    add("attention over three tiles of keys".into(), false, &|m| {
        let (q, k, v) = (m.uniform(&[1, 3, 70, 4])?, m.uniform(&[1, 3, 150, 4])?, m.uniform(&[1, 3, 150, 3])?);
        let y = m.b.attention(q, k, v, None, true)?;
        m.result(y)
    });
    add("attention of wide values, most to the last key".into(), false, &|m| {
        let (q, keys) =
            (m.random.floats(&[1, 1, 3, 1], 1.0, 2.0), Tensor::new(&[1, 1, 5, 1], &[1.0f32, 2., 3., 4., 5.])?);
        let (q, k, v) = (m.given(q)?, m.given(keys)?, m.uniform(&[1, 1, 5, 130])?);
        let y = m.b.attention(q, k, v, None, true)?;
        m.result(y)
    });
    // Each thread has four rows side by side, and four columns that are eight apart: the last row and column of a product
    // are the first, second, third and fourth of some thread.
    for (rows, columns, depth) in [(33, 33, 17), (34, 41, 33), (35, 49, 16), (36, 57, 32)] {
        for mapped in [false, true] {
            let name = if mapped { "product and more" } else { "product" };
            add(format!("{name} of {rows} x {columns} x {depth}"), false, &|m| {
                let (a, b) = (m.uniform(&[rows, depth])?, m.uniform(&[depth, columns])?);
                let mut y = m.b.matmul(a, b)?;
                if mapped {
                    let bias = m.uniform(&[columns])?;
                    y = m.b.add(y, bias)?;
                    y = m.b.tanh(y)?;
                }
                m.result(y)
            });
        }
    }
    // Rows of more elements than a workgroup has threads, and of fewer.
    for length in [131, 5] {
        add(format!("extremes of rows of {length} that come last"), false, &|m| {
            let mut numbers = m.random.floats(&[5, length], -1.0, 1.0).to_f64();
            numbers.chunks_mut(length).for_each(|row| row[length - 1] = 2.0);
            let x = m.given(Tensor::from_f64(DType::F32, &[5, length], &numbers)?)?;
            let less = m.b.neg(x)?;
            for value in [
                m.b.reduce_max(x, &[1], false)?,
                m.b.reduce_min(less, &[1], false)?,
                m.b.reduce_max(x, &[0, 1], false)?,
                m.b.reduce_min(less, &[0, 1], false)?,
                m.b.softmax(x, 1)?,
            ] {
                m.result(value)?;
            }
            Ok(())
        });
    }
    // As many rows as three full blocks have; the outcome of each is seen.
    for rows in [48, 5] {
        for dtype in [DType::F32, DType::F16] {
            add(format!("running sum of {rows} numbers of {dtype}"), false, &|m| {
                let shape = Shape::from(vec![Dim::fixed(rows)]);
                let mut b = GraphBuilder::new();
                let (s, x) = (b.input("s", dtype, shape.clone())?, b.input("x", dtype, shape)?);
                let sum = b.add(s, x)?;
                b.output("s_next", sum)?;
                b.output("y", sum)?;
                let mut numbers =
                    |shape: &[usize]| Tensor::from_f64(dtype, shape, &m.random.floats(shape, -1.0, 1.0).to_f64());
                let (s, x) = (numbers(&[rows])?, numbers(&[4, rows])?);
                let (s, x) = (m.given(s)?, m.given(x)?);
                for value in m.b.scan(b.build()?, &[s], &[x], &[], 0)? {
                    m.result(value)?;
                }
                Ok(())
            });
        }
        add(format!("{rows} rows without a state"), false, &|m| {
            let mut b = GraphBuilder::new();
            let x = b.input("x", DType::F32, [rows])?;
            let y = b.exp(x)?;
            b.output("y", y)?;
            let x = m.uniform(&[4, rows])?;
            for value in m.b.scan(b.build()?, &[], &[x], &[], 0)? {
                m.result(value)?;
            }
            Ok(())
        });
        add(format!("{rows} rows that a flag resets"), false, &|m| {
            let mut b = GraphBuilder::new();
            let (s, x) = (b.input("s", DType::F32, [rows, 3])?, b.input("x", DType::F32, [rows, 3])?);
            let (reset, decay) = (b.input("reset", DType::Bool, [rows])?, b.input("decay", DType::F32, [3])?);
            let (reset, zero) = (b.reshape(reset, [rows, 1])?, b.scalar(0.0)?);
            let s = b.select(reset, zero, s)?;
            let s = b.mul(s, decay)?;
            let s = b.add(s, x)?;
            let size = b.reduce_max(s, &[1], false)?;
            b.output("s_next", s)?;
            b.output("size", size)?;
            b.output("s_seen", s)?;
            let flags = m.random.bools(&[rows, 4]);
            let inputs = [m.uniform(&[rows, 3])?, m.uniform(&[rows, 4, 3])?, m.given(flags)?, m.uniform(&[3])?];
            let scan = Scan { body: b.build()?.into(), states: 1, sequences: 2, axis: 1, reverse: false };
            for value in m.b.push_scan(scan, &inputs)? {
                m.result(value)?;
            }
            Ok(())
        });
    }
    let indices = |last: i32| Tensor::new(&[3], &[0, 1, last]);
    for known in [true, false] {
        add(format!("a gathered index that is one too large, of a size that is known: {known}"), true, &|m| {
            let data = m.random.floats(&[4, 2], -1.0, 1.0);
            let x = if known {
                m.given(data)?
            } else {
                let x = m.b.input("x", DType::F32, Shape::from(vec![Dim::symbol("N"), Dim::fixed(2)]))?;
                m.inputs.insert("x".into(), data);
                x
            };
            let index = m.given(indices(4)?)?;
            let y = m.b.gather(x, index, 0)?;
            m.result(y)
        });
    }
    add("a segment that is one too large".into(), true, &|m| {
        let (x, segments) = (m.uniform(&[3, 2])?, m.given(indices(2)?)?);
        let y = m.b.segment_sum(x, segments, 0, 2)?;
        m.result(y)
    });
    add("a place that is one too large".into(), true, &|m| {
        let (x, part, places) = (m.uniform(&[4, 2])?, m.uniform(&[3, 2])?, m.given(indices(4)?)?);
        let y = m.b.put(x, part, places, 0)?;
        m.result(y)
    });
    // Heads of 140 numbers do not fit registers.
    for (width, keys, last) in [(3, 4, 4), (140, 4, 4), (3, 1, 0)] {
        add(format!("a query of {width} numbers that sees keys up to {last} of {keys}"), last >= keys, &|m| {
            let shape = |rows: usize, width: usize| [1, 1, rows, width];
            let q = m.uniform(&shape(1, width))?;
            let (k, v) = (m.uniform(&shape(keys as usize, width))?, m.uniform(&shape(keys as usize, 3))?);
            let last = m.given(Tensor::new(&[1], &[last])?)?;
            let y = m.b.attention_until(q, k, v, last)?;
            m.result(y)
        });
    }
    // A thread has four sums, 64 apart, of the 256 of its workgroup: the last sum is the first, second, third and fourth of
    // some thread. One number more than all threads look at in a round; and one segment that is too large.
    for (sums, last) in [(300, 299), (330, 0), (400, 399), (500, 7), (500, 500)] {
        add(format!("1025 numbers into {sums} segments, the last into {last}"), last >= sums, &|m| {
            let mut segments: Vec<i32> = (0..1025).map(|i| i * 37 % sums).collect();
            segments[1024] = last;
            let (x, segments) = (m.uniform(&[1025])?, m.given(Tensor::new(&[1025], &segments)?)?);
            let y = m.b.segment_sum(x, segments, 0, sums as usize)?;
            m.result(y)
        });
    }
    for (source, destination) in [(5, 2), (2, 3)] {
        add(format!("a synapse from {source} of 5 to {destination} of 3"), true, &|m| {
            let x = m.uniform(&[2, 5])?;
            let (from, to) = (m.given(indices(source)?)?, m.given(indices(destination)?)?);
            let numbers = m.uniform(&[3])?;
            let op = Op::SynapseSum { activation: Activation::Tanh, axis: 1, sums: 1, segments: 3 };
            let y = m.b.push(op, &[x, from, to, numbers, numbers, numbers])?;
            m.result(y)
        });
    }
    all
}
