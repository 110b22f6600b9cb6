//! Loops: the cells that people use, both directions and time axes, and every kind of value that enters or leaves.

use super::*;
use schwann_core::op::{Map, MapInstr, Scan, Unary};
use schwann_core::{Error, Op, shape};

type Build<'a> = &'a dyn Fn(&mut GraphBuilder, &[Value]) -> Result<Vec<Value>>;

/// A body that takes these inputs and gives what `build` makes of them.
fn body(inputs: &[(DType, Shape)], build: Build<'_>) -> Graph {
    let mut b = GraphBuilder::new();
    let values: Vec<Value> = (0..)
        .zip(inputs)
        .map(|(i, (dtype, shape))| b.input(&format!("in{i}"), *dtype, shape.clone()).unwrap())
        .collect();
    for (i, v) in build(&mut b, &values).unwrap().into_iter().enumerate() {
        b.output(&format!("out{i}"), v).unwrap();
    }
    b.build().unwrap()
}

/// A loop all of whose inputs are inputs of the graph, and all of whose outputs are outputs.
struct Loop<'a> {
    states: &'a [Shape],
    /// Shapes of one element.
    sequences: &'a [Shape],
    fixed: &'a [Shape],
    build: Build<'a>,
}
impl Loop<'_> {
    fn graph(&self, axis: usize, reverse: bool) -> Graph {
        let types: Vec<(DType, Shape)> =
            [self.states, self.sequences, self.fixed].concat().into_iter().map(|s| (DType::F32, s)).collect();
        let mut b = GraphBuilder::new();
        let mut inputs = vec![];
        for (i, (_, shape)) in types.iter().enumerate() {
            let mut dims = shape.dims().to_vec();
            if (self.states.len()..self.states.len() + self.sequences.len()).contains(&i) {
                dims.insert(axis, "T".into());
            }
            inputs.push(input(&mut b, &format!("i{i}"), dims));
        }
        let (states, sequences) = (self.states.len(), self.sequences.len());
        let scan = Scan { body: body(&types, self.build).into(), states, sequences, axis, reverse };
        for (i, v) in b.push_scan(scan, &inputs).unwrap().into_iter().enumerate() {
            b.output(&format!("o{i}"), v).unwrap();
        }
        b.build().unwrap()
    }

    fn check(&self) {
        for axis in [0, 1] {
            for reverse in [false, true] {
                let graph = self.graph(axis, reverse);
                for (batch, steps) in [(2, 3), (1, 4), (2, 1), (2, 0)] {
                    check_some(&graph, &[("B", batch), ("T", steps)], 5);
                }
            }
        }
    }
}

const RNN: Build<'static> = &|b, v| {
    let [h, x, w, u, bias] = v[..] else { unreachable!() };
    let z = b.linear(x, w, Some(bias))?;
    let r = b.matmul(h, u)?;
    let z = b.add(z, r)?;
    let h = b.tanh(z)?;
    Ok(vec![h, h])
};
fn rnn() -> Loop<'static> {
    static SHAPES: std::sync::OnceLock<[Vec<Shape>; 3]> = std::sync::OnceLock::new();
    let [states, sequences, fixed] = SHAPES
        .get_or_init(|| [vec![shape!["B", 3]], vec![shape!["B", 2]], vec![shape![3, 2], shape![3, 3], shape![3]]]);
    Loop { states, sequences, fixed, build: RNN }
}

#[test]
fn a_recurrent_network() {
    rnn().check();
}

#[test]
fn weights_of_a_recurrent_network_get_their_gradient_after_the_loop() {
    let g = gradient(&rnn().graph(0, false), "o1", &["i2", "i3", "i4"]).unwrap();
    let loops = loops(&g);
    assert_eq!(loops.len(), 2);
    assert!(loops[1].reverse);
    assert_eq!(loops[1].states, 1, "only the state's gradient is carried");
    let saved = loops[0].body.outputs().len() - 2;
    assert_eq!(saved, 1, "the state that entered; its successor is an output already");
}

fn loops(graph: &Graph) -> Vec<&Scan> {
    graph.nodes().iter().filter_map(|n| if let Op::Scan(s) = &n.op { Some(&**s) } else { None }).collect()
}

#[test]
fn an_lstm() {
    let build: Build<'_> = &|b, v| {
        let [h, c, x, w, bias] = v[..] else { unreachable!() };
        let xh = b.concat(&[x, h], 1)?;
        let z = b.linear(xh, w, Some(bias))?;
        let mut gates = vec![];
        for i in 0..4 {
            let gate = b.slice(z, 1, 2 * i, 2 * i + 2)?;
            gates.push(if i == 3 { b.tanh(gate)? } else { b.sigmoid(gate)? });
        }
        let keep = b.mul(gates[1], c)?;
        let add = b.mul(gates[0], gates[3])?;
        let c = b.add(keep, add)?;
        let t = b.tanh(c)?;
        let h = b.mul(gates[2], t)?;
        Ok(vec![h, c, h])
    };
    let lstm = Loop {
        states: &[shape!["B", 2], shape!["B", 2]],
        sequences: &[shape!["B", 3]],
        fixed: &[shape![8, 5], shape![8]],
        build,
    };
    lstm.check();
    let g = gradient(&lstm.graph(0, false), "o2", &["i2", "i3", "i4"]).unwrap();
    let saved = loops(&g)[0].body.outputs().len() - 3;
    assert_eq!(saved, 7, "four gates, tanh c, and the two states that entered");
}

#[test]
fn a_closed_form_continuous_cell() {
    // h' = f·σ(−a·t − b)-gated mix of two heads, t a sequence of time steps.
    let build: Build<'_> = &|b, v| {
        let [h, x, dt, w1, w2, wa, wb] = v[..] else { unreachable!() };
        let xh = b.concat(&[x, h], 1)?;
        let (f1, f2) = (b.matmul(xh, w1)?, b.matmul(xh, w2)?);
        let (f1, f2) = (b.tanh(f1)?, b.tanh(f2)?);
        let (ta, tb) = (b.matmul(xh, wa)?, b.matmul(xh, wb)?);
        let t = b.mul(ta, dt)?;
        let t = b.add(t, tb)?;
        let gate = b.sigmoid(t)?;
        let d = b.sub(f2, f1)?;
        let d = b.mul(gate, d)?;
        let h = b.add(f1, d)?;
        Ok(vec![h, h])
    };
    let w = shape![5, 3];
    Loop {
        states: &[shape!["B", 3]],
        sequences: &[shape!["B", 2], shape!["B", 1]],
        fixed: &[w.clone(), w.clone(), w.clone(), w],
        build,
    }
    .check();
}

/// One step of a liquid time-constant cell: v' = (c·v + Σᵢ w·σ(s(xᵢ − m))·e)/(c + Σᵢ w·σ(…) + 1).
fn ltc_step(b: &mut GraphBuilder, v: Value, x: Value, p: &[Value]) -> Result<Value> {
    let [w, s, m, e, c] = p[..] else { unreachable!() };
    let w = b.softplus(w)?;
    let c = b.softplus(c)?;
    let d = b.sub(x, m)?;
    let d = b.mul(d, s)?;
    let a = b.sigmoid(d)?;
    let a = b.mul(a, w)?;
    let ae = b.mul(a, e)?;
    let (den, num) = (b.sum(a, &[1], false)?, b.sum(ae, &[1], false)?);
    let cv = b.mul(c, v)?;
    let num = b.add(cv, num)?;
    let one = b.scalar(1.0)?;
    let den = b.add(den, c)?;
    let den = b.add(den, one)?;
    b.div(num, den)
}

#[test]
fn a_liquid_time_constant_cell_unrolled() {
    let build: Build<'_> = &|b, v| {
        let x = b.reshape(v[1], shape!["B", 2, 1])?;
        let mut h = v[0];
        for _ in 0..3 {
            h = ltc_step(b, h, x, &v[2..])?;
        }
        Ok(vec![h, h])
    };
    let p = shape![2, 3];
    let fixed = [p.clone(), p.clone(), p.clone(), p, shape![3]];
    Loop { states: &[shape!["B", 3]], sequences: &[shape!["B", 2]], fixed: &fixed, build }.check();
}

#[test]
fn a_loop_in_a_loop() {
    // The same with the inner steps as a loop; the inner sequence only counts, so it lies before the loop's weights.
    let p = shape![2, 3];
    let f = |s: Shape| (DType::F32, s);
    let inner = body(
        &[
            f(shape!["B", 3]),
            f(shape![]),
            f(shape!["B", 2, 1]),
            f(p.clone()),
            f(p.clone()),
            f(p.clone()),
            f(p.clone()),
            f(shape![3]),
        ],
        &|b, v| {
            let h = ltc_step(b, v[0], v[2], &v[3..])?;
            Ok(vec![h])
        },
    );
    let build: Build<'_> = &|b, v| {
        let x = b.reshape(v[1], shape!["B", 2, 1])?;
        let ticks = b.constant(Tensor::new(&[3], &[1.0f32; 3])?)?;
        let h = b.scan(inner.clone(), &[v[0]], &[ticks], &[&[x], &v[2..]].concat(), 0)?[0];
        Ok(vec![h, h])
    };
    let fixed = [p.clone(), p.clone(), p.clone(), p, shape![3]];
    Loop { states: &[shape!["B", 3]], sequences: &[shape!["B", 2]], fixed: &fixed, build }.check();
}

#[test]
fn a_loop_over_elements_in_a_loop_over_time() {
    let inner = body(&[(DType::F32, shape!["B"]), (DType::F32, shape!["B"]), (DType::F32, shape![])], &|b, v| {
        let h = b.mul(v[0], v[2])?;
        let h = b.add(h, v[1])?;
        let h = b.sin(h)?;
        Ok(vec![h, h])
    });
    let build: Build<'_> = &|b, v| {
        let scan = Scan { body: inner.clone().into(), states: 1, sequences: 1, axis: 1, reverse: true };
        let out = b.push_scan(scan, &[v[0], v[1], v[2]])?;
        let sum = b.sum(out[1], &[1], false)?;
        let h = b.mul(out[0], sum)?;
        let h = b.tanh(h)?;
        Ok(vec![h, out[1]])
    };
    Loop { states: &[shape!["B"]], sequences: &[shape!["B", 3]], fixed: &[shape![]], build }.check();
}

#[test]
fn states_that_are_overwritten_passed_on_or_single_numbers() {
    let build: Build<'_> = &|b, v| {
        let [kept, overwritten, swapped_a, swapped_b, x, w] = v[..] else { unreachable!() };
        let sum = b.sum(x, &[0], false)?;
        let y = b.mul(overwritten, w)?;
        let y = b.mul(y, swapped_a)?;
        let a = b.mul(swapped_b, sum)?;
        let a = b.mul(a, kept)?;
        let y = b.add(y, x)?;
        Ok(vec![kept, sum, a, swapped_a, y])
    };
    let n = Shape::scalar();
    Loop { states: &[n.clone(), n.clone(), n.clone(), n.clone()], sequences: &[shape!["B"]], fixed: &[n], build }
        .check();
}

#[test]
fn a_linear_loop_reads_nothing_but_must_take_its_steps() {
    let build: Build<'_> = &|b, v| {
        let two = b.scalar(2.0)?;
        let h = b.mul(v[0], two)?;
        Ok(vec![h])
    };
    Loop { states: &[shape!["B"]], sequences: &[shape!["B"]], fixed: &[], build }.check();
}

#[test]
fn fixed_values_are_used_elementwise_and_through_other_values() {
    let build: Build<'_> = &|b, v| {
        let [h, x, w, bias] = v[..] else { unreachable!() };
        let e = b.exp(w)?; // does not change from step to step
        let h = b.mul(h, e)?;
        let h = b.add(h, x)?;
        let h = b.add(h, bias)?;
        let h = b.sin(h)?;
        let y = b.matmul_t(h, h, false, true)?;
        let z = b.matmul(e, w)?;
        let z = b.reduce_max(z, &[0, 1], false)?;
        let y = b.mul(y, z)?;
        Ok(vec![h, y])
    };
    Loop { states: &[shape![3, 3]], sequences: &[shape![3, 3]], fixed: &[shape![3, 3], shape![3]], build }.check();
}

#[test]
fn values_with_as_many_axes_as_there_may_be() {
    let build: Build<'_> = &|b, v| {
        let x = b.reshape(v[1], shape!["B", 1, 1, 1, 2, 1])?;
        let w = b.reshape(v[2], shape![1, 1, 1, 1, 1, 2])?;
        let z = b.mul(x, w)?;
        let z = b.tanh(z)?;
        let z = b.square(z)?;
        let z = b.sum(z, &[1, 2, 3, 4, 5], false)?;
        let h = b.mul(v[0], z)?;
        Ok(vec![h])
    };
    Loop { states: &[shape!["B"]], sequences: &[shape!["B", 2]], fixed: &[shape![2]], build }.check();
}

#[test]
fn integer_states_and_sequences_and_fused_programs_in_the_body() {
    let f = |s: Shape| (DType::F32, s);
    let types = [f(shape!["B", 3]), (DType::I32, shape![]), (DType::I32, shape!["B"]), f(shape![3, 3])];
    let tanh = Map { code: vec![MapInstr::Input(0), MapInstr::Unary(Unary::Tanh, 0)] };
    let step = body(&types, &|b, v| {
        let [h, count, token, table] = v[..] else { unreachable!() };
        let one = b.constant(Tensor::scalar(1i32))?;
        let next = b.add(count, one)?;
        let x = b.gather(table, token, 0)?;
        let c = b.cast(next, DType::F32)?;
        let x = b.mul(x, c)?;
        let h = b.add(h, x)?;
        let h = b.push(Op::map(tanh.clone(), DType::F32), &[h])?;
        let big = b.scalar(0.2)?;
        let mask = b.gt(h, big)?;
        let x = b.square(x)?;
        let y = b.select(mask, h, x)?;
        Ok(vec![h, next, y])
    });
    let mut b = GraphBuilder::new();
    let h = input(&mut b, "h", shape!["B", 3]);
    let zero = b.constant(Tensor::scalar(0i32)).unwrap();
    let tokens = b.input("tokens", DType::I32, shape!["B", "T"]).unwrap();
    let table = input(&mut b, "table", [3, 3]);
    let out = b.scan(step, &[h, zero], &[tokens], &[table], 1).unwrap();
    for (name, v) in ["h2", "count", "ys"].into_iter().zip(out) {
        b.output(name, v).unwrap();
    }
    let graph = b.build().unwrap();
    check_graph(&graph, &[("B", 2), ("T", 4)]);
}

#[test]
fn an_operation_without_gradient_in_a_body_is_named() {
    let mut b = GraphBuilder::new();
    let h = input(&mut b, "h", [2]);
    let xs = input(&mut b, "xs", shape!["T", 2]);
    let step = body(&[(DType::F32, shape![2]), (DType::F32, shape![2])], &|b, v| {
        let q = b.named("inner rounding").quantize_with(v[1], 0.1)?;
        let (s, z) = (b.scalar(0.1)?, b.constant(Tensor::scalar(0i32))?);
        let x = b.dequantize(q, s, z)?;
        let h = b.add(v[0], x)?;
        Ok(vec![h])
    });
    let out = b.scan(step, &[h], &[xs], &[], 0).unwrap();
    b.output("y", out[0]).unwrap();
    let graph = b.build().unwrap();
    let refused = gradient(&graph, "y", &["xs"]).unwrap_err();
    assert!(matches!(&refused, Error::Gradient { node, .. } if node == "inner rounding"), "{refused}");
    check_only(&graph, &["h"]);
}
fn check_only(graph: &Graph, wrt: &[&str]) {
    compare(graph, "y", wrt, &random_inputs(graph, &Bindings::new().with("T", 3), 1), 8, 1e-6);
}

#[test]
fn two_loops_one_after_the_other_and_a_loss() {
    let mut random = Random(8);
    let mut b = GraphBuilder::new();
    let mut xs = input(&mut b, "xs", shape!["T", "B", 2]);
    let zero = b.scalar(0.0).unwrap();
    let h0 = b.broadcast(zero, shape!["B", 3]).unwrap();
    let f = |s: Shape| (DType::F32, s);
    for (layer, width) in [(0, 2), (1, 3)] {
        let step =
            body(&[f(shape!["B", 3]), f(shape!["B", width]), f(shape![3, width]), f(shape![3, 3]), f(shape![3])], RNN);
        let weights: Vec<Value> = [("w", vec![3, width]), ("u", vec![3, 3]), ("b", vec![3])]
            .into_iter()
            .map(|(n, s)| b.weight(&format!("{n}{layer}"), random.tensor(&s)).unwrap())
            .collect();
        let scan = Scan { body: step.into(), states: 1, sequences: 1, axis: 0, reverse: layer == 1 };
        xs = b.push_scan(scan, &[&[h0, xs], &weights[..]].concat()).unwrap()[1];
    }
    let squares = b.square(xs).unwrap();
    let loss = b.mean(squares, &[0, 1, 2], false).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.build().unwrap();
    for (batch, steps) in [(2, 5), (3, 1)] {
        let inputs = random_inputs(&graph, &Bindings::new().with("B", batch).with("T", steps), 4);
        compare(&graph, "loss", &["xs", "w0", "u0", "b0", "w1", "u1", "b1"], &inputs, 6, 1e-5);
    }
}

#[test]
fn the_gradient_of_a_loop_can_be_differentiated_again() {
    let first = gradient(&rnn().graph(0, false), "o1", &["i1"]).unwrap();
    let inputs = random_inputs(&first, &Bindings::new().with("B", 2).with("T", 3), 4);
    compare(&first, "grad.i1", &["i0", "i2", "i3", "i4", "grad_out.o1"], &inputs, 12, 1e-6);
}
