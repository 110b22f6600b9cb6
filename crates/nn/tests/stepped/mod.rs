//! Models of every kind that has streams, and what must hold of them: step by step is the whole sequence.
#![allow(dead_code, reason = "each test that includes it uses another part")]

use schwann_core::backend::Backend;
use schwann_core::cases::random::Random;
use schwann_core::{CompileOptions, Program};
use schwann_nn::wiring::{AutoNcp, Wiring};
use schwann_nn::{
    Activation, Affine, Cfc, CfcMode, GraphOptions, Gru, Layer, LayerNorm, Linear, Lstm, Ltc, Model, Rnn, Runner,
    Sequential, Softmax, Timespans,
};
use std::sync::Arc;

pub(crate) const INPUTS: usize = 5;

fn circuit() -> Wiring {
    AutoNcp::new(21, 4).wiring().unwrap()
}

pub(crate) fn models() -> Vec<(&'static str, Model)> {
    let dense = Cfc::new(INPUTS, 13);
    let wired = Cfc::new(INPUTS, circuit());
    let ltc = Ltc::new(INPUTS, circuit());
    let layers: Vec<(&str, Layer)> = vec![
        ("default", dense.clone().into()),
        ("pure", Cfc { mode: CfcMode::Pure, ..dense.clone() }.into()),
        ("no gate", Cfc { mode: CfcMode::NoGate, backbone_layers: Some(2), ..dense.clone() }.into()),
        ("no backbone", Cfc { backbone_layers: Some(0), ..dense.clone() }.into()),
        ("mixed", Cfc { mixed_memory: true, ..dense.clone() }.into()),
        ("projected", Cfc { proj_size: Some(3), ..dense.clone() }.into()),
        ("last only", Cfc { return_sequences: false, proj_size: Some(3), ..dense.clone() }.into()),
        ("time first", Cfc { batch_first: false, ..dense }.into()),
        ("wired", wired.clone().into()),
        ("wired, pure", Cfc { mode: CfcMode::Pure, ..wired.clone() }.into()),
        ("wired, mixed", Cfc { mixed_memory: true, proj_size: Some(2), ..wired }.into()),
        ("LTC", ltc.clone().into()),
        ("LTC, mixed", Ltc { mixed_memory: true, ..ltc.clone() }.into()),
        ("LTC, explicit", Ltc { implicit_param_constraints: false, ode_unfolds: 2, ..ltc }.into()),
        ("LTC, dense", Ltc::new(INPUTS, 7).into()),
        ("LSTM", Lstm::new(INPUTS, 11).into()),
        (
            "LSTM, projected, last only",
            Lstm { proj_size: Some(4), return_sequences: false, ..Lstm::new(INPUTS, 9) }.into(),
        ),
        ("GRU", Gru::new(INPUTS, 11).into()),
        ("GRU, time first", Gru { batch_first: false, bias: false, ..Gru::new(INPUTS, 6) }.into()),
        ("RNN", Rnn { nonlinearity: Activation::Relu, ..Rnn::new(INPUTS, 8) }.into()),
    ];
    let mut models: Vec<_> = layers.into_iter().map(|(name, l)| (name, Sequential::from(l))).collect();
    let stack =
        vec![Linear::new(INPUTS, 6).into(), Activation::Silu.into(), Cfc::new(6, 9).into(), Ltc::new(9, 4).into()];
    models.push(("a stack", stack.into()));
    let network = vec![
        Affine::new(INPUTS).into(),
        Linear::new(INPUTS, 6).into(),
        LayerNorm::new(6).into(),
        Activation::LeakyRelu { slope: 0.1 }.into(),
        Lstm::new(6, 9).into(),
        Gru::new(9, 7).into(),
        Cfc::new(7, 5).into(),
        Linear::new(5, 3).into(),
        Softmax { log: true }.into(),
    ];
    models.push(("a network", network.into()));
    models.into_iter().map(|(name, layers)| (name, Model::new(layers, 11).unwrap())).collect()
}

fn time_first(model: &Model) -> bool {
    matches!(
        &model.layers()[0],
        Layer::Cfc(Cfc { batch_first: false, .. }) | Layer::Gru(Gru { batch_first: false, .. })
    )
}

/// The ways to tell a model of time: those without a circuit do not know of it.
pub(crate) fn ways(model: &Model) -> &'static [Timespans] {
    let timed = model.layers().iter().any(|layer| matches!(layer, Layer::Cfc(_) | Layer::Ltc(_)));
    if timed { &[Timespans::Constant(1.0), Timespans::PerStep] } else { &[Timespans::Constant(1.0)] }
}

/// Runs a whole sequence at once and then step by step: the same bits, results and states.
pub(crate) fn step_by_step(
    what: &str,
    model: &Model,
    timespans: Timespans,
    program: &Arc<Program>,
    random: &mut Random,
) {
    const STEPS: usize = 12;
    let shape = if time_first(model) { [STEPS, 1] } else { [1, STEPS] };
    let x = random.floats(&[shape[0], shape[1], INPUTS], -2.0, 2.0);
    let dt = random.floats(&shape, 0.1, 2.0);
    let mut session = program.session();
    let timed = timespans == Timespans::PerStep;
    let whole = match timed {
        true => session.run(&[("x", &x), ("timespans", &dt)]).unwrap(),
        false => session.run(&[("x", &x)]).unwrap(),
    };
    let y = whole[0].values::<f32>().unwrap();
    assert!(!y.is_empty() && y.iter().all(|v| v.is_finite()), "{what}: nothing to compare");

    let mut runner = Runner::new(Arc::clone(program)).unwrap();
    let mut state = runner.state();
    let mut got = vec![];
    for (t, sample) in x.values::<f32>().unwrap().chunks_exact(INPUTS).enumerate() {
        let step = match timed {
            true => runner.step_after(&mut state, sample, dt.values::<f32>().unwrap()[t]),
            false => runner.step(&mut state, sample),
        };
        got.extend_from_slice(step.unwrap());
    }
    // Where only the last output was wanted, it is the last step's.
    let got = &got[got.len() - y.len()..];
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(y), "{what}, {timespans:?}");
    let last: Vec<f32> = whole[1..].iter().flat_map(|t| t.values::<f32>().unwrap().to_vec()).collect();
    assert_eq!(bits(state.values()), bits(&last), "{what}, {timespans:?}: state");
}

/// The same of every model, and every way to tell it of time, on a backend.
pub(crate) fn all_step_by_step(backend: &dyn Backend) {
    let mut random = Random::new(3);
    for (name, model) in models() {
        for &timespans in ways(&model) {
            let graph = model.graph(&GraphOptions::default().timespans(timespans)).unwrap();
            let program = Program::compile_for(&graph, backend, &CompileOptions::default()).unwrap();
            step_by_step(&format!("{name} on {}", program.backend()), &model, timespans, &program, &mut random);
        }
    }
}
