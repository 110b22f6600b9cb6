//! Weights that change: after any change a program gives what one gives that is compiled with these weights, with the
//! kernels that it would have if nothing could change, and in the same layout.

use crate::strange::Strange;
use schwann_core::backend::Backend;
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::cases::random::Random;
use schwann_core::cases::{self, compare};
use schwann_core::op::Activation;
use schwann_core::plan::kernel::Format;
use schwann_core::plan::{Kernel, Plan};
use schwann_core::quant::{Quantized, Scheme, halve, quantize};
use schwann_core::{
    Changing, CompileOptions, DType, Graph, GraphBuilder, Op, Program, Result, Session, Tensor, Value, shape,
};
use schwann_kernels::Isa;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Weights = BTreeMap<String, Tensor>;

fn compile(graph: &Graph, backend: &dyn Backend, changing: Changing) -> Arc<Program> {
    Program::compile_for(graph, backend, &CompileOptions::default().changing(changing)).unwrap()
}

fn set(program: &Program, weights: &Weights) -> Result<()> {
    program.set_weights(&weights.iter().map(|(name, data)| (name.as_str(), data)).collect::<Vec<_>>())
}

fn with_weights(graph: &Graph, weights: &Weights) -> Graph {
    let mut graph = graph.clone();
    weights.iter().for_each(|(name, data)| graph.set_weight(name, data.clone()).unwrap());
    graph
}

/// Other numbers of the same kind: none that was 0 is not, and no index leaves its range.
fn other(data: &Tensor, random: &mut Random) -> Tensor {
    let mut values = data.to_f64();
    match data.dtype() {
        DType::F32 | DType::F16 | DType::Bf16 => values.iter_mut().for_each(|v| *v *= random.float(0.5, 1.5)),
        _ => values.reverse(),
    }
    Tensor::from_f64(data.dtype(), data.shape(), &values).unwrap()
}

fn others(graph: &Graph, random: &mut Random) -> Weights {
    graph.weights().iter().map(|(name, data)| (name.clone(), other(data, random))).collect()
}

/// Kernels whose weights are packed, in loops too.
fn packed(plan: &Plan) -> Vec<Kernel> {
    let mut found = vec![];
    for step in &plan.steps {
        if let Kernel::Product(_) | Kernel::GatedCell(_) | Kernel::Synapses(_) | Kernel::Scan(_) = step.kernel {
            found.push(step.kernel.clone());
        }
        for body in step.looped.iter().flat_map(|looped| std::iter::once(&looped.body).chain(&looped.tail)) {
            found.extend(packed(body));
        }
    }
    found
}

/// Where the layout of a session is.
fn layout(session: &Session) -> *const Plan {
    session.plan().unwrap()
}

fn bits(outputs: &[Tensor]) -> Vec<Vec<u8>> {
    outputs.iter().map(|t| t.bytes().to_vec()).collect()
}

/// Every case with weights: on each instruction set (two of three are skipped for most), all weights three times.
#[test]
fn every_case_gives_what_it_gives_when_it_is_compiled_with_its_new_weights() {
    let (mut changed, mut in_place) = (0, 0);
    for (number, case) in cases::all().into_iter().enumerate().filter(|(_, case)| !case.graph.weights().is_empty()) {
        let given: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
        for (i, &isa) in Isa::available().iter().enumerate().filter(|(i, _)| (i + number) % 3 == 0) {
            let cpu = Cpu::with_isa(isa, 1 + (i + number) % 2).unwrap();
            let program = compile(&case.graph, &cpu, Changing::All);
            let mut session = program.session();
            let Ok(first) = session.run(&given).map(bits) else { continue };
            let plain = compile(&case.graph, &cpu, Changing::None);
            let mut plain_session = plain.session();
            let expected = bits(plain_session.run(&given).unwrap());
            if ["scan/", "layers/", "low_bit_product/"].iter().any(|kind| case.name.starts_with(kind)) {
                assert_eq!(packed(session.plan().unwrap()), packed(plain_session.plan().unwrap()), "{}", case.name);
            }
            let exact = first == expected;
            let mut random = Random::named(&case.name);
            let before = layout(&session);
            for time in 0..3 {
                let what = format!("{} on {isa}, change {time}", case.name);
                let weights = others(&case.graph, &mut random);
                set(&program, &weights).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(program.weights(), weights, "{what}");
                session.reset();
                let got: Vec<Tensor> = session.run(&given).unwrap_or_else(|e| panic!("{what}: {e}")).to_vec();
                let graph = with_weights(&case.graph, &weights);
                let mut fresh = compile(&graph, &cpu, Changing::All).session();
                let fresh = fresh.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
                for (got, fresh) in got.iter().zip(fresh) {
                    assert!(got == fresh, "{what}: {:?}", compare(fresh, got, case.tolerance));
                }
                let mut plain = compile(&graph, &cpu, Changing::None).session();
                for (got, plain) in got.iter().zip(plain.run(&given).unwrap()) {
                    if exact {
                        assert!(got == plain, "{what}: {:?}", compare(plain, got, case.tolerance));
                    }
                    compare(plain, got, case.tolerance).unwrap_or_else(|e| panic!("{what}: {e}"));
                }
            }
            changed += 1;
            in_place += usize::from(before == layout(&session));
        }
    }
    assert!(changed > 100 && in_place * 10 > changed * 9, "{changed} programs changed, {in_place} in place");
}

/// y = tanh(x·(s·A)) + x·B, with A and B joined ahead; z adds what is scaled and summed ahead.
fn absorbing() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 5]).unwrap();
    let mut random = Random::new(3);
    let [a, c, d] = ["a", "c", "d"].map(|name| b.weight(name, random.floats(&[5, 4], -1.0, 1.0)).unwrap());
    let bias = b.weight("bias", random.floats(&[4], -1.0, 1.0)).unwrap();
    let two = b.scalar(2.0).unwrap();
    let product = b.matmul(x, a).unwrap();
    let scaled = b.mul(product, two).unwrap();
    let y = b.tanh(scaled).unwrap();
    b.output("y", y).unwrap();
    let (p, q) = (b.matmul(x, c).unwrap(), b.matmul(x, d).unwrap());
    let sum = b.add(p, q).unwrap();
    let z = b.add(sum, bias).unwrap();
    b.output("z", z).unwrap();
    b.build().unwrap()
}

fn backends() -> Vec<Box<dyn Backend>> {
    let cpu = |threads| Box::new(Cpu::new(threads).unwrap());
    vec![cpu(1), cpu(2), Box::new(Reference), Box::new(Strange::new().unwrap())]
}

#[test]
fn some_weights_change_and_the_others_stay_on_every_backend() {
    let graph = absorbing();
    let x = Random::new(5).floats(&[3, 5], -1.0, 1.0);
    for backend in backends() {
        let name = backend.name();
        let program = compile(&graph, &*backend, Changing::these(["a", "d"]));
        let mut session = program.session();
        session.run(&[("x", &x)]).unwrap();
        assert_eq!(program.weights().keys().collect::<Vec<_>>(), ["a", "d"], "{name}");
        let mut now = graph.clone();
        for seed in 0..4 {
            let weight = ["d", "a"][seed as usize % 2];
            let data = Random::new(seed).floats(&[5, 4], -1.0, 1.0);
            program.set_weights(&[(weight, &data)]).unwrap();
            assert_eq!(program.weight(weight).unwrap(), data, "{name}");
            now.set_weight(weight, data).unwrap();
            let mut fresh = compile(&now, &*backend, Changing::None).session();
            assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), bits(fresh.run(&[("x", &x)]).unwrap()), "{name}");
        }
        // Nothing at all is fine, and changes nothing.
        let before = bits(session.outputs().unwrap());
        program.set_weights(&[]).unwrap();
        assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), before, "{name}");
    }
}

#[test]
fn what_is_wrong_is_said_and_leaves_everything_as_it_was() {
    let graph = absorbing();
    let x = Random::new(5).floats(&[3, 5], -1.0, 1.0);
    let (good, long) = (Tensor::zeros(DType::F32, &[5, 4]).unwrap(), Tensor::zeros(DType::F32, &[4, 5]).unwrap());
    let narrow = Tensor::zeros(DType::F16, &[5, 4]).unwrap();
    for backend in backends() {
        let wrong = CompileOptions::default().changing(Changing::these(["a", "e"]));
        let said = Program::compile_for(&graph, &*backend, &wrong).unwrap_err().to_string();
        assert!(said.contains("`e`") && said.contains("`bias`"), "{said}");
        let program = compile(&graph, &*backend, Changing::these(["a", "c", "d"]));
        let mut session = program.session();
        let before = bits(session.run(&[("x", &x)]).unwrap());
        for (given, wants) in [
            (vec![("a", &good), ("bias", &good)], "no weight that may change named `bias`; there is `a`, `c`, `d`"),
            (vec![("a", &good), ("c", &long)], "`c`: expected a weight f32[5, 4], got f32[4, 5]"),
            (vec![("a", &good), ("d", &narrow)], "`d`: expected a weight f32[5, 4], got f16[5, 4]"),
            (vec![("a", &good), ("a", &good)], "`a`: expected one weight, got the same name twice"),
        ] {
            let said = program.set_weights(&given).unwrap_err().to_string();
            assert!(said.contains(wants), "{said}");
            assert_eq!(program.weight("a").unwrap(), graph.weights()["a"]);
            assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), before);
        }
        let said = program.weight("bias").unwrap_err().to_string();
        assert!(said.contains("no weight that may change named `bias`"), "{said}");
        let plain = compile(&graph, &*backend, Changing::None);
        let said = plain.set_weights(&[("a", &good)]).unwrap_err().to_string();
        assert!(said.contains("compiled without any that may"), "{said}");
        assert!(plain.weights().is_empty());
    }
}

/// Weights that were added ahead must not overflow: what a fresh compile leaves apart cannot be set.
#[test]
fn weights_that_would_overflow_ahead_are_refused() {
    let graph = absorbing();
    let x = Tensor::zeros(DType::F32, &[1, 5]).unwrap();
    let program = compile(&graph, &Cpu::new(1).unwrap(), Changing::All);
    let mut session = program.session();
    let before = bits(session.run(&[("x", &x)]).unwrap());
    let huge = Tensor::new(&[5, 4], &[3e38f32; 20]).unwrap();
    let said = program.set_weights(&[("c", &huge), ("d", &huge)]).unwrap_err().to_string();
    assert!(said.contains("has to be compiled with them"), "{said}");
    assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), before);
    // One alone is fine, and so is a network that was compiled with them.
    program.set_weights(&[("c", &huge)]).unwrap();
    let mut apart = graph.clone();
    ["c", "d"].iter().for_each(|name| apart.set_weight(name, huge.clone()).unwrap());
    let program = compile(&apart, &Cpu::new(1).unwrap(), Changing::All);
    assert_eq!(program.session().run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap(), [0.0; 4]);
    program.set_weights(&[("c", &huge)]).unwrap();
}

/// A number that is made of weights stays a number that may change, however small it is.
#[test]
fn small_results_of_changing_weights_are_no_literals() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B"]).unwrap();
    let w = b.weight("w", Tensor::scalar(0.0f32)).unwrap();
    let one = b.scalar(1.0).unwrap();
    // 1 · x + 0, for the weight as it is now: nothing may be left out.
    let factor = b.add(w, one).unwrap();
    let scaled = b.mul(x, factor).unwrap();
    let y = b.sub(scaled, w).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    let x = Tensor::new(&[2], &[1.0f32, 2.0]).unwrap();
    for backend in backends() {
        let program = compile(&graph, &*backend, Changing::All);
        let mut session = program.session();
        for (w, y) in [(0.0f32, [1.0f32, 2.0]), (1.0, [1.0, 3.0]), (2.0, [1.0, 4.0])] {
            program.set_weights(&[("w", &Tensor::scalar(w))]).unwrap();
            assert_eq!(session.run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap(), y, "{}", backend.name());
        }
    }
}

/// tanh a + σ(t) · (tanh b − tanh a) of three heads, as a step with a state.
fn gated(units: usize, inputs: usize, weight: impl Fn(&str, &[usize]) -> Tensor) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "T", inputs]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", units]).unwrap();
    let mut fixed = vec![];
    for head in ["from", "to", "time"] {
        fixed.push(b.weight(head, weight(head, &[inputs + units, units])).unwrap());
        fixed.push(b.weight(&format!("{head}.bias"), weight("bias", &[units])).unwrap());
    }
    let mut body = GraphBuilder::new();
    let state = body.input("h", DType::F32, shape!["B", units]).unwrap();
    let x_t = body.input("x", DType::F32, shape!["B", inputs]).unwrap();
    let names: Vec<Value> = (0..6)
        .map(|i| {
            let shape = if i % 2 == 0 { shape![inputs + units, units] } else { shape![units] };
            body.input(&format!("f{i}"), DType::F32, shape).unwrap()
        })
        .collect();
    let z = body.concat(&[x_t, state], 1).unwrap();
    let head = |body: &mut GraphBuilder, i: usize| {
        let product = body.matmul(z, names[2 * i]).unwrap();
        body.add(product, names[2 * i + 1]).unwrap()
    };
    let [a, b_, t] = [0, 1, 2].map(|i| head(&mut body, i));
    let (a, b_, t) = (body.tanh(a).unwrap(), body.tanh(b_).unwrap(), body.sigmoid(t).unwrap());
    let difference = body.sub(b_, a).unwrap();
    let part = body.mul(t, difference).unwrap();
    let next = body.add(a, part).unwrap();
    body.output("next", next).unwrap();
    body.output("y", next).unwrap();
    let inputs: Vec<Value> = [h, x].into_iter().chain(fixed).collect();
    let scan =
        schwann_core::op::Scan { body: body.build().unwrap().into(), states: 1, sequences: 1, axis: 1, reverse: false };
    let out = b.push(Op::Scan(Box::new(scan)), &inputs).unwrap();
    b.output("hn", out).unwrap();
    b.output("y", Value { slot: 1, ..out }).unwrap();
    b.state("h", "hn").unwrap();
    b.build().unwrap()
}

/// A masked cell leaves out weights that are 0. One that is no longer does not fit: layouts are made anew, and states go on.
#[test]
fn a_weight_that_was_left_out_and_is_no_longer_0_counts() {
    let masked = |name: &str, shape: &[usize]| {
        let mut data = Random::named(name).floats(shape, -1.0, 1.0);
        if name == "from" || name == "to" {
            data.values_mut::<f32>().unwrap().iter_mut().step_by(3).for_each(|v| *v = 0.0);
        }
        data
    };
    let graph = gated(8, 5, masked);
    for &isa in Isa::available() {
        let cpu = Cpu::with_isa(isa, 1).unwrap();
        let program = compile(&graph, &cpu, Changing::All);
        let mut now = graph.clone();
        let mut sessions: Vec<Session> = (0..3).map(|_| program.session()).collect();
        let batches = [1, 32, 48];
        let xs = batches.map(|batch| Random::new(batch as u64).floats(&[batch, 3, 5], -1.0, 1.0));
        let skips = |session: &Session| {
            packed(session.plan().unwrap()).iter().any(|k| matches!(k, Kernel::GatedCell(cell) if cell.skipped > 0))
        };
        for (session, x) in sessions.iter_mut().zip(&xs) {
            session.run(&[("x", x)]).unwrap();
        }
        assert!(skips(&sessions[1]) && skips(&sessions[2]), "{isa}");
        let before: Vec<_> = sessions.iter().map(layout).collect();
        let mut check = |what: &str, weight: &Tensor, stays: bool| {
            program.set_weights(&[("from", weight)]).unwrap();
            now.set_weight("from", weight.clone()).unwrap();
            for ((session, x), before) in sessions.iter_mut().zip(&xs).zip(&before) {
                let mut fresh = compile(&now, &cpu, Changing::None).session();
                fresh.set_state("h", session.state("h").unwrap().clone()).unwrap();
                let got = bits(session.run(&[("x", x)]).unwrap());
                assert_eq!(got, bits(fresh.run(&[("x", x)]).unwrap()), "{isa}: {what}, {x}");
                assert_eq!(layout(session) == *before, stays, "{isa}: {what}, {x}");
            }
        };
        let start = masked("from", &[13, 8]);
        let halved: Vec<f64> = start.to_f64().iter().map(|v| v * 0.5).collect();
        check("other numbers", &Tensor::from_f64(DType::F32, &[13, 8], &halved).unwrap(), true);
        let more: Vec<f64> = start.to_f64().iter().enumerate().map(|(i, v)| if i == 5 { 0.0 } else { *v }).collect();
        check("another 0", &Tensor::from_f64(DType::F32, &[13, 8], &more).unwrap(), true);
        check("none is 0", &Random::new(77).floats(&[13, 8], 0.5, 1.0), false);
    }
}

/// Indices are no numbers to be rewritten: another wiring is packed anew, and one that is none is refused.
#[test]
fn other_wirings_are_packed_anew_and_wrong_ones_refused() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    let ints = |v: &[i32]| Tensor::new(&[v.len()], v).unwrap();
    let lists = [
        b.weight("sources", ints(&[0, 1, 2, 3, 1])).unwrap(),
        b.weight("destinations", ints(&[0, 0, 1, 2, 2])).unwrap(),
        b.weight("scale", Random::new(1).floats(&[5], 0.5, 1.5)).unwrap(),
        b.weight("shift", Random::new(2).floats(&[5], -1.0, 1.0)).unwrap(),
        b.weight("weights", Random::new(3).floats(&[5], -1.0, 1.0)).unwrap(),
    ];
    let op = Op::SynapseSum { activation: Activation::Sigmoid, axis: 1, sums: 1, segments: 3 };
    let y = b.push(op, &[&[x][..], &lists].concat()).unwrap();
    b.output("y", y).unwrap();
    let mut graph = b.build().unwrap();
    let cpu = Cpu::new(1).unwrap();
    let program = compile(&graph, &cpu, Changing::All);
    let x = Random::new(9).floats(&[2, 4], -1.0, 1.0);
    let mut session = program.session();
    session.run(&[("x", &x)]).unwrap();
    let first = layout(&session);
    for (name, data, stays) in [
        ("weights", Random::new(4).floats(&[5], -1.0, 1.0), true),
        ("shift", Random::new(5).floats(&[5], -1.0, 1.0), true),
        ("sources", ints(&[3, 2, 1, 0, 0]), false),
    ] {
        program.set_weights(&[(name, &data)]).unwrap();
        graph.set_weight(name, data).unwrap();
        let mut fresh = compile(&graph, &cpu, Changing::None).session();
        assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), bits(fresh.run(&[("x", &x)]).unwrap()), "{name}");
        assert_eq!(layout(&session) == first, stays, "{name}");
    }
    let before = bits(session.outputs().unwrap());
    let said = program.set_weights(&[("sources", &ints(&[0, 1, 2, 3, 4]))]).unwrap_err().to_string();
    assert!(said.contains("source 4 at position 4 is not in 0..4"), "{said}");
    assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), before);
}

/// Codes, scales and offsets of low-bit weights, and halves, are rewritten where they are, in a loop and outside; codes that
/// do not exist are refused.
#[test]
fn low_bit_weights_and_halves_are_rewritten_in_place() {
    let matrix = |seed: u64, rows: usize, len: usize| Random::new(seed).floats(&[rows, len], -0.5, 0.5);
    for (what, scheme) in [
        ("8 bits", Some(Scheme { offsets: true, ..Scheme::INT8 })),
        ("4 bits", Some(Scheme { scales: DType::F32, ..Scheme::INT4 })),
        ("ternary", Some(Scheme::TERNARY)),
        ("bf16", None),
    ] {
        // Large, so that rows of f32 read codes and halves too.
        let (units, rounded) = (272, scheme.is_some());
        let parts = |seed: u64| -> Vec<(&'static str, Tensor)> {
            let exact = matrix(seed, units, units);
            match scheme {
                None => vec![("half", halve(&exact, DType::Bf16).unwrap())],
                Some(scheme) => {
                    let Quantized { codes, scales, offsets, .. } = quantize(&exact, scheme, None).unwrap();
                    let offsets = offsets.map(|offsets| ("offsets", offsets));
                    [("codes", codes), ("scales", scales)].into_iter().chain(offsets).collect()
                }
            }
        };
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, shape!["B", "T", units]).unwrap();
        let own: Vec<Value> = parts(1).into_iter().map(|(name, data)| b.weight(name, data).unwrap()).collect();
        let w = match scheme {
            None => b.cast(own[0], DType::F32).unwrap(),
            Some(scheme) => {
                let format = quantize(&matrix(1, units, units), scheme, None).unwrap().format;
                b.low_bit(format, own[0], own[1], own.get(2).copied()).unwrap()
            }
        };
        let first = b.matmul_t(x, w, false, true).unwrap();
        let mut body = GraphBuilder::new();
        let h = body.input("h", DType::F32, shape!["B", units]).unwrap();
        let e = body.input("e", DType::F32, shape!["B", units]).unwrap();
        let inner = body.input("w", DType::F32, [units, units]).unwrap();
        let rows = if rounded { body.round_rows(h).unwrap() } else { h };
        let product = body.matmul_t(rows, inner, false, true).unwrap();
        let sum = body.add(product, e).unwrap();
        let next = body.tanh(sum).unwrap();
        body.output("next", next).unwrap();
        body.output("y", next).unwrap();
        let start = b.constant(Tensor::zeros(DType::F32, &[1, units]).unwrap()).unwrap();
        let start = b.broadcast(start, shape!["B", units]).unwrap();
        let out = b.scan(body.build().unwrap(), &[start], &[first], &[w], 1).unwrap();
        b.output("y", out[1]).unwrap();
        let graph = b.build().unwrap();
        let x = Random::new(3).floats(&[2, 3, units], -1.0, 1.0);
        for &isa in Isa::available() {
            let cpu = Cpu::with_isa(isa, 1).unwrap();
            let program = compile(&graph, &cpu, Changing::All);
            let mut session = program.session();
            session.run(&[("x", &x)]).unwrap();
            let narrow = |kernel: &Kernel| match kernel {
                Kernel::Product(p) => matches!(p.format, Format::LowBit { .. }) || p.right == DType::Bf16,
                _ => false,
            };
            assert_eq!(packed(session.plan().unwrap()).iter().filter(|k| narrow(k)).count(), 2, "{what} on {isa}");
            let before = layout(&session);
            let mut now = graph.clone();
            for seed in 2..5 {
                let new = parts(seed);
                // All of them, then the scales alone.
                let new = if seed == 4 && scheme.is_some() { &new[1..2] } else { &new[..] };
                program.set_weights(&new.iter().map(|(name, data)| (*name, data)).collect::<Vec<_>>()).unwrap();
                new.iter().for_each(|(name, data)| now.set_weight(name, data.clone()).unwrap());
                let mut fresh = compile(&now, &cpu, Changing::None).session();
                let got = bits(session.run(&[("x", &x)]).unwrap());
                assert_eq!(got, bits(fresh.run(&[("x", &x)]).unwrap()), "{what} on {isa}");
                assert_eq!(layout(&session), before, "{what} on {isa}: in place");
            }
            if what == "ternary" {
                let before = bits(session.outputs().unwrap());
                let mut wrong = parts(1)[0].1.clone();
                wrong.bytes_mut()[5] = 0b11;
                let said = program.set_weights(&[("codes", &wrong)]).unwrap_err().to_string();
                assert!(said.contains("a code of 3"), "{said}");
                assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), before);
            }
        }
    }
}

/// While one thread sets weights, the runs of others have one set or the other.
#[test]
fn a_run_has_one_set_of_weights_and_never_a_mixture() {
    let graph = gated(8, 5, |name, shape| Random::named(name).floats(shape, -1.0, 1.0));
    let sets = [1, 2].map(|seed| others(&graph, &mut Random::new(seed)));
    let mut unmasked = sets.clone();
    // Of the second pair, one leaves weights out that the other has, so that layouts are made anew all the time.
    let zeros = unmasked[0].get_mut("from").unwrap().values_mut::<f32>().unwrap();
    zeros.iter_mut().for_each(|v| *v = 0.0);
    unmasked[0].get_mut("to").unwrap().values_mut::<f32>().unwrap().fill(0.0);
    let backends: [Box<dyn Backend>; 3] =
        [Box::new(Cpu::new(2).unwrap()), Box::new(Reference), Box::new(Strange::new().unwrap())];
    for (backend, sets) in backends.iter().flat_map(|b| [(b, &sets), (b, &unmasked)]) {
        let rounds = if backend.name().starts_with("cpu") { 200 } else { 10 };
        let x = Random::new(1).floats(&[19, 4, 5], -1.0, 1.0);
        let program = compile(&graph, &**backend, Changing::All);
        let expected = sets.each_ref().map(|weights| {
            set(&program, weights).unwrap();
            bits(program.session().run(&[("x", &x)]).unwrap())
        });
        assert!(expected[0] != expected[1]);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut session, mut seen) = (program.session(), [0; 2]);
                        while !done.load(Ordering::Relaxed) || seen[0] + seen[1] == 0 {
                            session.reset();
                            let got = bits(session.run(&[("x", &x)]).unwrap());
                            let which = expected.iter().position(|e| *e == got);
                            seen[which.unwrap_or_else(|| panic!("{}: a mixture", backend.name()))] += 1;
                        }
                        seen
                    })
                })
                .collect();
            for round in 0..rounds {
                set(&program, &sets[round % 2]).unwrap();
                // What begins afterwards has the new ones.
                let mut session = program.session();
                assert_eq!(bits(session.run(&[("x", &x)]).unwrap()), expected[round % 2], "{}", backend.name());
            }
            done.store(true, Ordering::Relaxed);
            for run in runs {
                assert!(run.join().unwrap().iter().sum::<usize>() > 0);
            }
        });
    }
}
