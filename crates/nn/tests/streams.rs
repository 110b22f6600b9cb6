//! Streams: step by step is the whole sequence bit for bit, together is each alone, and mistakes are named.

use crate::stepped::{INPUTS, all_step_by_step, models, step_by_step, ways};
use crate::strange::Strange;
use schwann_core::backend::cpu::Cpu;
use schwann_core::cases::random::Random;
use schwann_core::{CompileOptions, Program, Tensor, io};
use schwann_kernels::Isa;
use schwann_nn::{Cfc, GraphOptions, InitialState, Ltc, Model, NotFinite, Result, Runner, Timespans};
use std::sync::Arc;

fn compile(model: &Model, timespans: Timespans, isa: Isa) -> Arc<Program> {
    let options = GraphOptions::default().timespans(timespans);
    let cpu = Cpu::with_isa(isa, 1).unwrap();
    Program::compile_for(&model.graph(&options).unwrap(), &cpu, &CompileOptions::default()).unwrap()
}

#[test]
fn step_by_step_is_the_whole_sequence_bit_for_bit() {
    let mut random = Random::new(3);
    for &isa in Isa::available() {
        for (name, model) in models() {
            for &timespans in ways(&model) {
                let program = compile(&model, timespans, isa);
                step_by_step(&format!("{name} on {isa}"), &model, timespans, &program, &mut random);
            }
        }
    }
}

#[test]
fn step_by_step_is_the_whole_sequence_on_a_backend_nothing_like_the_cpu() {
    all_step_by_step(&Strange::new().unwrap());
}

#[test]
fn streams_together_are_each_alone() {
    const STREAMS: usize = 37;
    let mut random = Random::new(4);
    for (name, model) in models() {
        let program = compile(&model, Timespans::Constant(1.0), Isa::detect());
        let (mut together, mut alone) = (Runner::new(program.clone()).unwrap(), Runner::new(program).unwrap());
        let mut states = vec![together.state(); STREAMS];
        let mut singles = states.clone();
        for _ in 0..6 {
            let x = random.floats(&[STREAMS, INPUTS], -2.0, 2.0);
            let x = x.values::<f32>().unwrap();
            let y = together.step_many(&mut states, x).unwrap().to_vec();
            for (i, state) in singles.iter_mut().enumerate() {
                let single = alone.step(state, &x[i * INPUTS..][..INPUTS]).unwrap();
                assert!(!single.is_empty() && single.len() * STREAMS == y.len(), "{name}");
                for (a, b) in single.iter().zip(&y[i * single.len()..]) {
                    assert!((a - b).abs() <= 1e-6 * (1.0 + a.abs()), "{name}, stream {i}: {a} alone, {b} together");
                }
            }
        }
        for (a, b) in states.iter().zip(&singles) {
            assert!(!a.values().is_empty() && a.values().len() == b.values().len(), "{name}");
            let near = a.values().iter().zip(b.values()).all(|(a, b)| (a - b).abs() <= 1e-6 * (1.0 + a.abs()));
            assert!(near, "{name}: states");
        }
    }
}

#[test]
fn a_state_goes_through_a_file_and_back_to_zero() -> Result<()> {
    let model = Model::new(Cfc { mixed_memory: true, ..Cfc::new(2, 4) }, 1)?;
    let program = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(1))?;
    let mut runner = Runner::new(program)?;
    let mut state = runner.state();
    let first = runner.step(&mut state, &[1.0, 2.0])?.to_vec();
    assert_eq!(state.names().collect::<Vec<_>>(), ["h0", "c0"]);
    assert_eq!(state.part("h0"), Some(&first[..]));
    assert!(state.part("x").is_none());

    let path = std::env::temp_dir().join(format!("schwann-state-{}.npz", std::process::id()));
    let tensors = state.to_tensors()?;
    io::write_npz(&path, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let mut restored = runner.state();
    restored.set_tensors(&io::read_npz(&path)?)?;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(restored, state);
    let next = runner.step(&mut state, &[0.5, 0.5])?.to_vec();
    assert_eq!(runner.step(&mut restored, &[0.5, 0.5])?, next);

    state.reset();
    assert_eq!(runner.step(&mut state, &[1.0, 2.0])?, first);
    Ok(())
}

#[test]
fn mistakes_are_named() -> Result<()> {
    let program =
        |cfc: Cfc, options: GraphOptions| Model::new(cfc, 1)?.compile(&options, &CompileOptions::default().threads(1));
    let plain = program(Cfc::new(2, 4), GraphOptions::default())?;
    let mut runner = Runner::new(plain)?;
    let mut state = runner.state();
    let said = |e: schwann_nn::Error| e.to_string();
    assert_eq!(
        said(runner.step(&mut state, &[1.0]).unwrap_err()),
        "`x` is 1 numbers; expected 2 for 1 samples of 2 features"
    );
    assert!(said(runner.step_after(&mut state, &[1.0, 1.0], 0.5).unwrap_err()).contains("`elapsed` is given"));
    assert!(runner.step_many(&mut [], &[])?.is_empty());

    let timed = program(Cfc::new(2, 4), GraphOptions::default().timespans(Timespans::PerStep))?;
    let mut timed = Runner::new(timed)?;
    assert!(said(timed.step(&mut state, &[1.0, 1.0]).unwrap_err()).contains("`elapsed` is missing"));
    let error = timed.step_many_after(&mut [state.clone(), state.clone()], &[0.0; 4], &[1.0]).unwrap_err();
    assert_eq!(said(error), "`elapsed` is 1 numbers; expected one for each of 2 streams");

    let other = Runner::new(program(Cfc::new(2, 5), GraphOptions::default())?)?;
    let error = runner.step(&mut other.state(), &[1.0, 1.0]).unwrap_err();
    assert_eq!(said(error), "`state` is h0[5] of another model; expected h0[4]");

    let error = state.set_tensors(&[("h0".to_owned(), Tensor::new(&[3], &[0.0f32; 3])?)].into()).unwrap_err();
    assert_eq!(said(error), "tensor `h0` is f32[3]; expected f32[4]");
    assert!(state.set_tensors(&Default::default()).is_err());
    let extra = [("z".to_owned(), Tensor::new(&[4], &[0.0f32; 4])?)].into();
    assert!(said(state.set_tensors(&extra).unwrap_err()).contains("`z`"));

    for options in [GraphOptions::default().batched(false), GraphOptions::default().state(InitialState::Given)] {
        let error = Runner::new(program(Cfc::new(2, 4), options)?).unwrap_err();
        assert!(said(error).contains("expected a model with a batch axis and carried states"));
    }
    Ok(())
}

#[test]
fn what_would_spoil_a_state_is_refused_and_the_state_stays() -> Result<()> {
    for (model, divides) in [(Model::new(Cfc::new(2, 4), 1)?, false), (Model::new(Ltc::new(2, 4), 1)?, true)] {
        let program = compile(&model, Timespans::PerStep, Isa::detect());
        let mut runner = Runner::new(program.clone())?;
        let mut state = runner.state();
        runner.step_after(&mut state, &[0.5, -0.5], 1.0)?;
        let before = state.clone();
        let mut said = |runner: &mut Runner, x: &[f32], elapsed: f32| {
            let said = runner.step_after(&mut state, x, elapsed).err().map(|e| e.to_string());
            assert_eq!(state, before, "{said:?}");
            said
        };
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let refusal = said(&mut runner, &[0.5, x], 1.0).unwrap();
            assert!(refusal.contains("at place 2; expected finite numbers"), "{refusal}");
        }
        for elapsed in [-1.0, f32::NAN, f32::INFINITY, -f32::MIN_POSITIVE] {
            assert!(said(&mut runner, &[0.5, 0.5], elapsed).unwrap().contains("`elapsed` is"), "{elapsed}");
        }
        if divides {
            for short in [0.0, 1e-40, f32::MIN_POSITIVE] {
                assert!(said(&mut runner, &[0.5, 0.5], short).unwrap().contains("divides by it"), "{short}");
            }
            runner.step_after(&mut before.clone(), &[0.5, 0.5], 1e-30)?;
        } else {
            runner.step_after(&mut before.clone(), &[0.5, 0.5], 0.0)?;
        }
        let mut passing = Runner::new(program)?.not_finite(NotFinite::Pass);
        let mut state = passing.state();
        assert!(passing.step_after(&mut state, &[f32::NAN, 0.0], 1.0)?.iter().any(|y| y.is_nan()));
    }
    Ok(())
}

#[test]
fn a_state_of_another_model_is_refused_though_it_has_the_same_sizes() -> Result<()> {
    let runner = |seed| -> Result<Runner> {
        Runner::new(compile(&Model::new(Cfc::new(2, 4), seed)?, Timespans::Constant(1.0), Isa::detect()))
    };
    let (mut one, mut same, mut other) = (runner(1)?, runner(1)?, runner(2)?);
    let mut state = one.state();
    one.step(&mut state, &[1.0, 2.0])?;
    let tensors = state.to_tensors()?;
    same.state().set_tensors(&tensors)?;
    same.step(&mut state.clone(), &[1.0, 2.0])?;
    assert!(other.state().set_tensors(&tensors).unwrap_err().to_string().contains("another model"));
    assert!(other.step(&mut state, &[1.0, 2.0]).unwrap_err().to_string().contains("another model"));
    // Arrays that do not say whose they are, as files of earlier versions, are told by their sizes.
    let bare = tensors.into_iter().filter(|(name, _)| name == "h0").collect();
    other.state().set_tensors(&bare)?;
    Ok(())
}
