//! Graphs that nothing but a bug could make, and what [`Graph::verify`] says of each.

use super::*;
use crate::dtype::DType;
use crate::op::{Scan, Unary};
use crate::shape;
use std::sync::Arc;

/// tanh(x · w) of a stream that remembers it, and a loop; nodes in this order: x, h, w, product, sum, y, its start, loop.
fn sound() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 3]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", 2]).unwrap();
    let w = b.weight("w", Tensor::new(&[3, 2], &[0.5f32; 6]).unwrap()).unwrap();
    let product = b.named("product").matmul(x, w).unwrap();
    let sum = b.named("sum").add(product, h).unwrap();
    let y = b.named("y").tanh(sum).unwrap();
    let mut body = GraphBuilder::new();
    let s = body.input("s", DType::F32, shape![3]).unwrap();
    let e = body.input("e", DType::F32, shape![3]).unwrap();
    let next = body.named("next").add(s, e).unwrap();
    body.output("s_next", next).unwrap();
    let start = b.constant(Tensor::zeros(DType::F32, &[3]).unwrap()).unwrap();
    let last = b.named("loop").scan(body.build().unwrap(), &[start], &[x], &[], 0).unwrap();
    b.output("h_next", y).unwrap();
    b.output("last", last[0]).unwrap();
    b.state("h", "h_next").unwrap();
    b.build().unwrap()
}

/// What the verifier says of the graph after `spoil` did something to it.
#[track_caller]
fn said<T>(spoil: impl FnOnce(&mut Graph) -> T) -> String {
    let mut graph = sound();
    graph.verify().unwrap();
    let _ = spoil(&mut graph);
    match graph.verify() {
        Err(Error::Verify { pass: None, problem }) => problem,
        other => panic!("{other:?}"),
    }
}

fn node<'a>(graph: &'a mut Graph, name: &str) -> &'a mut Node {
    graph.nodes.iter_mut().find(|n| n.name == name).unwrap()
}

fn body(graph: &mut Graph) -> &mut Scan {
    match &mut node(graph, "loop").op {
        Op::Scan(scan) => scan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_read_must_be_there_before() {
    let reads = |v: Value| said(|g| node(g, "sum").inputs[0] = v);
    for (v, what) in [
        (Value { node: 4, slot: 0 }, "node 4 `sum` reads Value { node: 4, slot: 0 }, which is not an earlier value"),
        (Value { node: 5, slot: 0 }, "node 4 `sum` reads Value { node: 5, slot: 0 }, which is not an earlier value"),
        (Value { node: 3, slot: 1 }, "node 4 `sum` reads Value { node: 3, slot: 1 }, which is not an earlier value"),
        (Value { node: 99, slot: 0 }, "node 4 `sum` reads Value { node: 99, slot: 0 }, which is not an earlier value"),
    ] {
        assert_eq!(reads(v), what);
    }
}

#[test]
fn a_type_must_be_the_one_that_the_rule_gives() {
    let lies = said(|g| node(g, "y").outs[0].dtype = DType::F16);
    assert_eq!(lies, "node 5 `y` claims [f16[B, 2]], its rule gives [f32[B, 2]]");
    let lies = said(|g| node(g, "product").outs[0].shape = shape!["B", 3]);
    assert_eq!(lies, "node 3 `product` claims [f32[B, 3]], its rule gives [f32[B, 2]]");
    let lies = said(|g| node(g, "y").outs.clear());
    assert_eq!(lies, "node 5 `y` claims [], its rule gives [f32[B, 2]]");
    let lies = said(|g| {
        let outs = &mut node(g, "y").outs;
        outs.push(outs[0].clone());
    });
    assert_eq!(lies, "node 5 `y` claims [f32[B, 2], f32[B, 2]], its rule gives [f32[B, 2]]");
    // An output of the loop is one too.
    let lies = said(|g| node(g, "loop").outs[0].shape = shape![4]);
    assert!(lies.contains("`loop` claims [f32[4]], its rule gives [f32[3]]"), "{lies}");
}

#[test]
fn an_operation_must_take_what_it_is_given() {
    assert_eq!(
        said(|g| node(g, "y").op = Op::Unary(Unary::Not)),
        "node 5 `y` (not): wants truth values, got f32[B, 2]"
    );
    assert_eq!(said(|g| node(g, "y").inputs.clear()), "node 5 `y` (tanh): takes 1 inputs, got 0");
    let product = said(|g| node(g, "product").op = Op::MatMul { transpose_a: false, transpose_b: true });
    assert!(product.starts_with("node 3 `product` (matmul): ") && product.contains("inner sizes"), "{product}");
}

#[test]
fn a_value_has_no_more_axes_than_kernels_know() {
    let deep = said(|g| {
        let shape = shape![1, 1, 1, 1, 1, "B", 2];
        let op = Op::Broadcast { shape: shape.clone() };
        let outs = vec![Type::new(DType::F32, shape)];
        g.nodes.push(Node { op, inputs: vec![Value { node: 5, slot: 0 }], outs, name: "deep".into() });
    });
    assert_eq!(deep, "node 8 `deep`: f32[1, 1, 1, 1, 1, B, 2] has more than 6 axes");
}

#[test]
fn a_loops_body_is_looked_at_too() {
    let lies = said(|g| node(Arc::make_mut(&mut body(g).body), "next").outs[0].dtype = DType::I32);
    assert_eq!(lies, "node 2 `next` claims [i32[3]], its rule gives [f32[3]]");
    // A body that the loop's own type rule could not handle.
    let lost = said(|g| Arc::make_mut(&mut body(g).body).outputs[0].value.node = 77);
    assert_eq!(lost, "output `s_next` is no value of this graph");
    assert_eq!(said(|g| Arc::make_mut(&mut body(g).body).inputs[0] = 2), "node 0 `s` and the list of inputs disagree");
    let weight = said(|g| {
        let ty = Type::new(DType::F32, [3]);
        let name = "inner".to_owned();
        Arc::make_mut(&mut body(g).body).push(Op::Weight { name: name.clone(), ty }, vec![], name).unwrap();
    });
    assert_eq!(weight, "node 7 `loop` (scan): weights enter a scan's body as inputs");
    let few = said(|g| body(g).states = 2);
    assert!(few.starts_with("node 7 `loop` (scan): 2 states and 1 sequences, but only 2 inputs"), "{few}");
}

#[test]
fn the_list_of_inputs_is_that_of_the_nodes() {
    assert_eq!(said(|g| g.inputs.remove(1)), "node 1 `h` and the list of inputs disagree");
    assert_eq!(said(|g| g.inputs.swap(0, 1)), "node 0 `x` and the list of inputs disagree");
    assert_eq!(said(|g| g.inputs.insert(1, 0)), "node 1 `h` and the list of inputs disagree");
    assert_eq!(said(|g| g.inputs.push(2)), "node 2 `w` and the list of inputs disagree");
    assert_eq!(said(|g| g.inputs.push(70)), "the list of inputs goes on at 70 after the last one");
}

#[test]
fn names_lead_to_what_has_them() {
    let twice = said(|g| {
        if let Op::Input { name, .. } = &mut node(g, "h").op {
            *name = "x".into();
        }
    });
    assert_eq!(twice, "node 1 `h` is not the only input `x`");
    assert_eq!(said(|g| g.input_nodes.remove("x")), "node 0 `x` is not the only input `x`");
    let lost = "node 2 `w` and the list of weights disagree on `w`";
    assert_eq!(said(|g| g.weight_nodes.remove("w")), lost);
    assert_eq!(said(|g| g.weight_nodes.insert("w".into(), 3)), lost);
    assert_eq!(said(|g| g.weight_nodes.insert("w".into(), 300)), lost);
    // The same weight of another type elsewhere.
    let other = said(|g| {
        let ty = Type::new(DType::F32, [5]);
        let op = Op::Weight { name: "w".into(), ty: ty.clone() };
        g.nodes.push(Node { op, inputs: vec![], outs: vec![ty], name: "again".into() });
    });
    assert_eq!(other, "node 8 `again` and the list of weights disagree on `w`");
    assert_eq!(said(|g| g.outputs[1].name = "h_next".into()), "output 1 is not the only one called `h_next`");
    assert_eq!(said(|g| g.output_places.clear()), "output 0 is not the only one called `h_next`");
}

#[test]
fn a_result_must_be_a_value() {
    for value in [Value { node: 8, slot: 0 }, Value { node: 5, slot: 1 }] {
        assert_eq!(said(|g| g.outputs[0].value = value), "output `h_next` is no value of this graph");
    }
}

#[test]
fn a_state_is_an_input_and_a_result_of_one_type() {
    let apart = "state `h` and its next value `last` are not of one type";
    assert_eq!(said(|g| g.states[0].output = "last".into()), apart);
    let unknown = "state `h` and its next value `nothing` are not of one type";
    assert_eq!(said(|g| g.states[0].output = "nothing".into()), unknown);
    let unknown = "state `y` and its next value `h_next` are not of one type";
    assert_eq!(said(|g| g.states[0].input = "y".into()), unknown);
    assert_eq!(said(|g| g.state_inputs.clear()), "state `h` is not in the list of states");
    let more = |g: &mut Graph| g.state_inputs.insert("x".into());
    assert_eq!(said(more), "1 states of 2 inputs; want one each");
}

#[test]
fn data_must_be_of_its_weights_type() {
    let with = |data: Tensor| said(|g| g.weights.insert("w".into(), data));
    let short = with(Tensor::zeros(DType::F32, &[2, 3]).unwrap());
    assert_eq!(short, "weight `w` is f32[3, 2] but its data is f32[2, 3]");
    let other = with(Tensor::zeros(DType::F16, &[3, 2]).unwrap());
    assert_eq!(other, "weight `w` is f32[3, 2] but its data is f16[3, 2]");
    // None at all is no mistake of the graph's: files have the graph apart from its weights.
    let mut graph = sound();
    graph.weights.clear();
    graph.verify().unwrap();
}

/// An edited file cannot get past reading, which applies the same rules.
#[test]
fn a_file_with_such_a_mistake_is_refused_on_reading() {
    let text = sound().to_json();
    assert!(Graph::from_json(&text).is_ok());
    let read = |from: &str, to: &str| {
        assert!(text.contains(from), "no {from:?} in {text}");
        Graph::from_json(&text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    for (from, to, what) in [
        ("\"unary\": \"tanh\"", "\"unary\": \"not\"", "wants truth values, got f32[B, 2]"),
        ("\"transpose_b\": false", "\"transpose_b\": true", "inner sizes"),
        ("\"name\": \"h\",\n          \"ty\"", "\"name\": \"x\",\n          \"ty\"", "there is an input `x` already"),
        ("\"name\": \"last\"", "\"name\": \"h_next\"", "there is an output `h_next` already"),
        ("\"output\": \"h_next\"", "\"output\": \"last\"", "want equal types"),
        ("\"states\": 1", "\"states\": 7", "7 states and 1 sequences, but only 2 inputs"),
    ] {
        let said = read(from, to);
        assert!(said.contains(what), "{from:?} as {to:?}: {said}");
    }
}
