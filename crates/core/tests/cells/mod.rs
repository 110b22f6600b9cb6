//! Steps of recurrent cells, and loops of them, for tests that put them into graphs of their own.

use schwann_core::{DType, GraphBuilder, Result, Shape, Tensor, Value};

/// Numbers that a cell is trained to have.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    pub(crate) shape: Vec<usize>,
    /// From where to where.
    pub(crate) range: (f32, f32),
    /// Half of them are 0, as a mask leaves them.
    pub(crate) masked: bool,
}

/// Where a cell's weights come from: weights outside a loop, inputs inside.
pub(crate) type Weights<'a> = &'a mut dyn FnMut(&mut GraphBuilder, Trained) -> Result<Value>;

/// What a cell is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    /// tanh a + sigmoid t · (tanh b − tanh a), whose three heads are one product or three, with shifts or without; a's and
    /// b's weights may be masked. A backbone of so many units, unless 0, stands before the heads.
    Gated { masked: bool, one_product: bool, shifted: bool, backbone: usize },
    /// A long short-term memory's, without its second state: i, f, g and o from one product.
    Lstm,
    /// A liquid time-constant cell's: a ratio of sums over synapses, taken so many times.
    Ratio { times: usize },
}

impl Cell {
    /// The new state, [rows, units], from x, [rows, inputs], and the state.
    pub(crate) fn step(
        self,
        b: &mut GraphBuilder,
        weights: Weights<'_>,
        x: Value,
        [inputs, units]: [usize; 2],
        h: Value,
    ) -> Result<Value> {
        let joined = inputs + units;
        let matrix = |rows: usize, columns: usize, masked: bool| {
            let most = 2.0 / (rows as f32).sqrt();
            Trained { shape: vec![rows, columns], range: (-most, most), masked }
        };
        let row = |columns: usize| Trained { shape: vec![columns], range: (-0.5, 0.5), masked: false };
        match self {
            Cell::Gated { masked, one_product, shifted, backbone } => {
                let (mut xh, mut joined) = (b.concat(&[x, h], 1)?, joined);
                if backbone > 0 {
                    let (w, shift) = (weights(b, matrix(joined, backbone, false))?, weights(b, row(backbone))?);
                    let (inner, outer) = (b.scalar(0.666)?, b.scalar(1.7159)?);
                    let z = b.matmul(xh, w)?;
                    let z = b.add(z, shift)?;
                    let z = b.mul(z, inner)?;
                    let z = b.tanh(z)?;
                    (xh, joined) = (b.mul(z, outer)?, backbone);
                }
                let mut heads = vec![];
                if one_product {
                    let w = weights(b, matrix(joined, 3 * units, masked))?;
                    let mut product = b.matmul(xh, w)?;
                    if shifted {
                        let shift = weights(b, row(3 * units))?;
                        product = b.add(product, shift)?;
                    }
                    for head in 0..3 {
                        heads.push(b.slice(product, 1, head * units, (head + 1) * units)?);
                    }
                } else {
                    for head in 0..3 {
                        let w = weights(b, matrix(joined, units, masked && head < 2))?;
                        let mut product = b.matmul(xh, w)?;
                        if shifted {
                            let shift = weights(b, row(units))?;
                            product = b.add(product, shift)?;
                        }
                        heads.push(product);
                    }
                }
                let (from, to, by) = (b.tanh(heads[0])?, b.tanh(heads[1])?, b.sigmoid(heads[2])?);
                let way = b.sub(to, from)?;
                let way = b.mul(by, way)?;
                b.add(from, way)
            }
            Cell::Lstm => {
                let xh = b.concat(&[x, h], 1)?;
                let (w, shift) = (weights(b, matrix(joined, 4 * units, false))?, weights(b, row(4 * units))?);
                let product = b.matmul(xh, w)?;
                let product = b.add(product, shift)?;
                let mut gates = vec![];
                for gate in 0..4 {
                    gates.push(b.slice(product, 1, gate * units, (gate + 1) * units)?);
                }
                let (i, f, o) = (b.sigmoid(gates[0])?, b.sigmoid(gates[1])?, b.sigmoid(gates[3])?);
                let g = b.tanh(gates[2])?;
                let (kept, new) = (b.mul(f, h)?, b.mul(i, g)?);
                let c = b.add(kept, new)?;
                let c = b.tanh(c)?;
                b.mul(o, c)
            }
            Cell::Ratio { times } => {
                let synapses = 3 * units + 1;
                let list = |f: &dyn Fn(usize) -> usize| -> Vec<i32> { (0..synapses).map(|e| f(e) as i32).collect() };
                let from = b.constant(Tensor::new(&[synapses], &list(&|e| (e * 7 + 3) % units))?)?;
                // The last unit has no synapse, unless it is the only one.
                let to = list(&|e| e * (units - 1).max(1) / synapses);
                let to = b.constant(Tensor::new(&[synapses], &to)?)?;
                let mut each = vec![];
                for (low, high) in [(0.01, 1.0), (-0.5, 0.5), (1.0, 4.0), (-1.0, 1.0)] {
                    each.push(weights(b, Trained { shape: vec![synapses], range: (low, high), masked: false })?);
                }
                let (capacity, leak) = (
                    weights(b, Trained { shape: vec![units], range: (0.4, 0.6), masked: false })?,
                    weights(b, Trained { shape: vec![units], range: (0.5, 1.0), masked: false })?,
                );
                // What comes in is added to the drive, as wide as the state.
                let w = weights(b, matrix(inputs, units, false))?;
                let drive = b.matmul(x, w)?;
                let still = b.add(capacity, leak)?;
                let mut v = h;
                for _ in 0..times {
                    let source = b.gather(v, from, 1)?;
                    let source = b.sub(source, each[1])?;
                    let source = b.mul(source, each[2])?;
                    let active = b.sigmoid(source)?;
                    let active = b.mul(active, each[0])?;
                    let pull = b.mul(active, each[3])?;
                    let (above, below) = (b.segment_sum(pull, to, 1, units)?, b.segment_sum(active, to, 1, units)?);
                    let charge = b.mul(capacity, v)?;
                    let over = b.add(charge, drive)?;
                    let over = b.add(over, above)?;
                    let under = b.add(still, below)?;
                    v = b.div(over, under)?;
                }
                Ok(v)
            }
        }
    }

    /// A loop of such steps over a sequence that has time as axis 0 or 1: the last state, then all of them. `weights` makes
    /// what stands outside of it.
    pub(crate) fn looped(
        self,
        b: &mut GraphBuilder,
        weights: Weights<'_>,
        sequence: Value,
        sizes: [usize; 2],
        h: Value,
        axis: usize,
    ) -> Result<Vec<Value>> {
        let mut element = b.ty(sequence).shape.dims().to_vec();
        element.remove(axis);
        let mut inside = GraphBuilder::new();
        let state = inside.input("h", DType::F32, b.ty(h).shape.clone())?;
        let x = inside.input("x", DType::F32, Shape::from(element))?;
        let mut asked: Vec<Trained> = vec![];
        let mut as_inputs = |b: &mut GraphBuilder, trained: Trained| {
            let value = b.input(&format!("w{}", asked.len()), DType::F32, trained.shape.as_slice());
            asked.push(trained);
            value
        };
        let next = self.step(&mut inside, &mut as_inputs, x, sizes, state)?;
        inside.output("h_next", next)?;
        inside.output("y", next)?;
        let mut fixed = vec![];
        for trained in asked {
            fixed.push(weights(b, trained)?);
        }
        b.scan(inside.build()?, &[h], &[sequence], &fixed, axis)
    }
}
