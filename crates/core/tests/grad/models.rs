//! Composed models, and the rules of the interface.

use super::*;
use schwann_core::{Error, shape};

#[test]
fn a_perceptron_by_inputs_and_weights() {
    let mut random = Random(5);
    let mut b = GraphBuilder::new();
    let mut x = input(&mut b, "x", shape!["B", 3]);
    for (i, (m, n)) in [(3, 5), (5, 5), (5, 2)].into_iter().enumerate() {
        let w = b.weight(&format!("w{i}"), random.tensor(&[n, m])).unwrap();
        let bias = b.weight(&format!("b{i}"), random.tensor(&[n])).unwrap();
        x = b.linear(x, w, Some(bias)).unwrap();
        x = b.gelu(x).unwrap();
    }
    let target = input(&mut b, "target", shape!["B", 2]);
    let error = b.sub(x, target).unwrap();
    let error = b.square(error).unwrap();
    let loss = b.mean(error, &[0, 1], false).unwrap();
    b.output("loss", loss).unwrap();
    let graph = b.build().unwrap();
    for batch in [1, 6] {
        let inputs = random_inputs(&graph, &Bindings::new().with("B", batch), 1);
        compare(&graph, "loss", &["x", "w0", "b0", "w1", "b1", "w2", "b2", "target"], &inputs, 8, 1e-5);
    }
}

#[test]
fn a_transformer_block_with_symbolic_sizes() {
    let mut b = GraphBuilder::new();
    let x = input(&mut b, "x", shape!["B", "T", 4]);
    let (scale, shift) = (input(&mut b, "scale", [4]), input(&mut b, "shift", [4]));
    let h = b.layer_norm(x, Some(scale), Some(shift), 1e-5).unwrap();
    let mut heads = vec![];
    for name in ["wq", "wk", "wv"] {
        let w = input(&mut b, name, [4, 4]);
        let y = b.matmul(h, w).unwrap();
        let y = b.reshape(y, shape!["B", "T", 2, 2]).unwrap();
        heads.push(b.transpose(y, &[0, 2, 1, 3]).unwrap());
    }
    let y = b.attention(heads[0], heads[1], heads[2], None, true).unwrap();
    let y = b.transpose(y, &[0, 2, 1, 3]).unwrap();
    let y = b.reshape(y, shape!["B", "T", 4]).unwrap();
    let y = b.add(x, y).unwrap();
    let norm = b.rms_norm(y, Some(scale), 1e-5).unwrap();
    let w = input(&mut b, "w", [4, 4]);
    let z = b.matmul(norm, w).unwrap();
    let z = b.silu(z).unwrap();
    let y = b.add(y, z).unwrap();
    let y = b.mean(y, &[1], false).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    check_graph(&graph, &[("B", 2), ("T", 3)]);
    check_graph(&graph, &[("B", 1), ("T", 5)]);
}

#[test]
fn a_value_without_influence_has_gradient_0() {
    let mut b = GraphBuilder::new();
    let (x, unused) = (input(&mut b, "x", shape!["N"]), input(&mut b, "unused", shape![2, "N"]));
    let w = b.weight("w", Tensor::new(&[2], &[1.0f32, 2.0]).unwrap()).unwrap();
    let floor = b.floor(x).unwrap();
    let y = b.sum(x, &[0], false).unwrap();
    let z = b.add(unused, x).unwrap();
    for (name, v) in [("y", y), ("z", z), ("floor", floor), ("w", w)] {
        b.output(name, v).unwrap();
    }
    let graph = b.build().unwrap();
    let g = gradient(&graph, "y", &["unused", "w", "x"]).unwrap();
    g.verify().unwrap();
    assert_eq!(g.output_types()[4].to_string(), "f32[2, N]");
    let out = run_f64(&g, &random_inputs(&graph, &Bindings::new().with("N", 3), 1)).unwrap();
    assert_eq!(out[4].data, [0.0; 6]);
    assert_eq!(out[5].data, [0.0; 2]);
    assert_eq!(out[6].data, [1.0; 3]);
    check_graph(&graph, &[("N", 3)]);
}

#[test]
fn what_has_no_gradient_is_refused() {
    let mut b = GraphBuilder::new();
    let (x, i) = (input(&mut b, "x", [2]), b.input("i", DType::I32, [2]).unwrap());
    let c = b.gt(x, x).unwrap();
    for (name, v) in [("x2", x), ("c", c), ("i2", i)] {
        b.output(name, v).unwrap();
    }
    let graph = b.build().unwrap();
    assert!(matches!(gradient(&graph, "nothing", &["x"]), Err(Error::Unknown { kind: "output", .. })));
    assert!(matches!(gradient(&graph, "x2", &["nothing"]), Err(Error::Unknown { .. })));
    assert!(matches!(gradient(&graph, "c", &["x"]), Err(Error::Gradient { .. })));
    assert!(matches!(gradient(&graph, "x2", &["i"]), Err(Error::Gradient { .. })));
    assert!(gradient(&graph, "x2", &["x", "x"]).is_err());
    check_graph(&graph, &[]);
}

#[test]
fn a_gradient_can_be_differentiated_again() {
    let mut b = GraphBuilder::new();
    let (x, w) = (input(&mut b, "x", shape!["N", 3]), input(&mut b, "w", [3, 2]));
    let y = b.matmul(x, w).unwrap();
    let y = b.tanh(y).unwrap();
    let y = b.softmax(y, 1).unwrap();
    let y = b.square(y).unwrap();
    let y = b.sum(y, &[0, 1], false).unwrap();
    b.output("y", y).unwrap();
    let first = gradient(&b.build().unwrap(), "y", &["x"]).unwrap();
    let inputs = random_inputs(&first, &Bindings::new().with("N", 2), 2);
    compare(&first, "grad.x", &["w"], &inputs, 100, 1e-6);
}

#[test]
fn a_weight_named_by_two_nodes_gets_the_sum() {
    let mut b = GraphBuilder::new();
    let w1 = b.weight("w", Random(3).tensor(&[2])).unwrap();
    let w2 = b.weight_slot("w", DType::F32, &[2]).unwrap();
    let cube = b.square(w1).unwrap();
    let cube = b.mul(cube, w2).unwrap();
    b.output("y", cube).unwrap();
    compare(&b.build().unwrap(), "y", &["w"], &Inputs::new(), 8, 1e-5);
}
