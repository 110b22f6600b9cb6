//! Training: losses of 100 steps follow PyTorch's, gradients are those of finite differences, and what options promise holds.

use crate::met::files;
use schwann_core::backend::Choice;
use schwann_core::grad::gradient;
use schwann_core::io::safetensors::Reader;
use schwann_core::{CompileOptions, DType, Program, Tensor};
use schwann_nn::train::{Batch, Evaluation, Group, Loss, Optimizer, Precision, Recipe, Rounding, Step};
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{
    BitLinear, Cfc, GraphOptions, Gru, Linear, Lstm, Ltc, Model, Result, Segments, Sequential, Timespans, import_ncps,
};
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/training_golden");

fn random(shape: &[usize], seed: u64) -> Tensor {
    schwann_core::cases::random::Random::new(seed).floats(shape, -1.0, 1.0)
}

/// What a file says of how it was trained.
fn recipe_of(training: &serde_json::Value, masked: bool) -> Recipe {
    let number = |key: &str| training[key].as_f64().unwrap_or(0.0) as f32;
    let loss = match training["loss"].as_str().unwrap() {
        "mse" => Loss::Mse,
        "mae" => Loss::Mae,
        "huber" => Loss::Huber { delta: 0.5 },
        "cross_entropy" => Loss::CrossEntropy,
        other => panic!("{other}"),
    };
    let optimizer = match training["optimizer"].as_str().unwrap() {
        "adam" => Optimizer::adam(),
        "adamw" => Optimizer::adam_w(),
        "sgd" => {
            Optimizer::Sgd { momentum: number("momentum"), nesterov: training["nesterov"].as_bool().unwrap_or(false) }
        }
        other => panic!("{other}"),
    };
    Recipe {
        loss,
        optimizer,
        rate: number("rate"),
        groups: vec![Group::of("*").decay(number("decay"))],
        clip_norm: training["clip_norm"].as_f64().map(|n| n as f32),
        masked,
        ..Recipe::default()
    }
}

fn followed(file: &Path, compile: &CompileOptions) -> (f64, f64) {
    let reader = Reader::open(file).unwrap();
    let training = serde_json::from_str(&reader.metadata()["training"]).unwrap();
    let tensor = |name: &str| reader.tensor(name).ok();
    let model = import_ncps(file).unwrap();
    let mut recipe = recipe_of(&training, tensor("mask").is_some());
    // What PyTorch gives no gradient has no decay there either: erev's copies of masks and parameters without effect.
    recipe.groups.retain(|g| g.decay > 0.0);
    let mut step = Step::new(&model, &recipe, compile).unwrap();
    let batch = Batch { mask: tensor("mask"), ..Batch::new(tensor("x").unwrap(), tensor("target").unwrap()) };
    let (losses, norms) = (tensor("losses").unwrap(), tensor("norms").unwrap());
    let mut worst = (0f64, 0f64);
    for (number, (loss, norm)) in losses.to_f64().into_iter().zip(norms.to_f64()).enumerate() {
        let outcome = step.run(&batch).unwrap();
        let off = |got: f32, want: f64| (f64::from(got) - want).abs() / want.abs();
        worst = (
            worst.0.max(off(outcome.loss, loss)),
            worst.1.max(if number < 10 { off(outcome.norm, norm) } else { 0.0 }),
        );
    }
    worst
}

#[test]
fn a_hundred_steps_follow_those_of_pytorch() {
    let mut off = String::new();
    let files = files(FOLDER);
    assert!(files.len() >= 9, "{} files", files.len());
    for file in files {
        for threads in [1, 2] {
            let (loss, norm) = followed(&file, &CompileOptions::default().threads(threads));
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            if !(loss < 1e-3 && norm < 1e-3) {
                off += &format!("{name}, {threads} threads: losses off by {loss:.1e}, norms by {norm:.1e}\n");
            }
        }
    }
    assert!(off.is_empty(), "{off}");
}

#[test]
fn steps_on_the_reference_are_those_on_the_processor() {
    let reference = CompileOptions::default().backend("reference".parse::<Choice>().unwrap());
    for name in ["cfc_adam_mse", "ltc_adam_mse", "lstm_adam_cross_entropy_masked"] {
        let (loss, norm) = followed(&Path::new(FOLDER).join(format!("{name}.safetensors")), &reference);
        assert!(loss < 1e-3 && norm < 1e-3, "{name}: {loss:.1e}, {norm:.1e}");
    }
}

/// Losses of some steps, and the weights after them.
fn trained(model: &Model, recipe: &Recipe, batch: &Batch, steps: usize) -> Result<(Vec<f32>, Vec<Vec<f64>>)> {
    let mut step = Step::new(model, recipe, &CompileOptions::default().threads(1))?;
    let losses = (0..steps).map(|_| Ok(step.run(batch)?.loss)).collect::<Result<_>>()?;
    let weights = step.trained().iter().map(|name| Ok(step.weight(name)?.to_f64())).collect::<Result<_>>()?;
    Ok((losses, weights))
}

fn networks() -> Vec<(&'static str, Sequential)> {
    let circuit = || AutoNcp::new(11, 2).wiring().unwrap();
    vec![
        ("CfC", Cfc { proj_size: Some(2), ..Cfc::new(3, 6) }.into()),
        ("CfC with memory", Cfc { mixed_memory: true, ..Cfc::new(3, circuit()) }.into()),
        ("LTC", Ltc::new(3, circuit()).into()),
        ("LSTM", vec![Lstm::new(3, 6).into(), Linear::new(6, 2).into()].into()),
        ("two layers", vec![Gru::new(3, 5).into(), Cfc { proj_size: Some(2), ..Cfc::new(5, 4) }.into()].into()),
    ]
}

#[test]
fn segments_give_the_same_gradients_in_less_memory() -> Result<()> {
    for (name, layers) in networks() {
        let model = Model::new(layers, 3)?;
        for (steps, each) in [(24usize, 6usize), (23, 5), (7, 1), (9, 8)] {
            let batch = Batch::new(random(&[4, steps, 3], 1), random(&[4, steps, 2], 2));
            let whole = trained(&model, &Recipe::default(), &batch, 3)?;
            let segments = Some(Segments { steps, each });
            let cut = trained(&model, &Recipe { segments, ..Recipe::default() }, &batch, 3)?;
            for (a, b) in whole.0.iter().zip(&cut.0) {
                assert!((a - b).abs() < 1e-5 * a.abs().max(1e-3), "{name} {steps}/{each}: {a} {b}");
            }
            for (a, b) in whole.1.iter().flatten().zip(cut.1.iter().flatten()) {
                assert!((a - b).abs() < 1e-4, "{name} {steps}/{each}: {a} {b}");
            }
        }
        let options = CompileOptions::default().threads(1);
        let memory = |segments| -> Result<usize> {
            let step = Step::new(&model, &Recipe { segments, ..Recipe::default() }, &options)?;
            Ok(step.memory(16, 400, 0)?.arena_bytes)
        };
        let (whole, cut) = (memory(None)?, memory(Some(Segments { steps: 400, each: 20 }))?);
        assert!(3 * cut < whole, "{name}: {cut} and {whole} bytes");
    }
    Ok(())
}

#[test]
fn gradients_through_segments_are_those_of_finite_differences() -> Result<()> {
    // The loss is differentiated once more than it is computed: a few weights are moved a little.
    let model = Model::new(Cfc { proj_size: Some(2), ..Cfc::new(3, 5) }, 2)?;
    let options = GraphOptions::training().segments(Some(Segments { steps: 10, each: 3 }));
    let graph = model.training_graph(&options)?;
    let reference = CompileOptions::default().backend("reference".parse::<Choice>().unwrap());
    let mut session = Program::compile(&graph, &reference)?.session();
    let (x, target) = (random(&[2, 10, 3], 5), random(&[2, 10, 2], 6));
    let mut run = |model: &Model| -> Result<Vec<Tensor>> {
        let mut inputs = vec![("x", &x), ("target", &target)];
        inputs.extend(model.weights().iter().map(|(name, data)| (name.as_str(), data)));
        session.run(&inputs)?;
        let mut found = vec![session.output("loss")?.clone()];
        found.push(session.output("grad.rnn_cell.ff1.weight")?.clone());
        Ok(found)
    };
    let found = run(&model)?[1].to_f64();
    for at in [0usize, 7, 100] {
        let mut losses = vec![];
        for by in [-1e-2f32, 1e-2] {
            let mut moved = model.clone();
            let mut weight = moved.weight("rnn_cell.ff1.weight")?.clone();
            weight.values_mut::<f32>()?[at] += by;
            moved.set_weight("rnn_cell.ff1.weight", weight)?;
            losses.push(run(&moved)?[0].to_f64()[0]);
        }
        let slope = (losses[1] - losses[0]) / 2e-2;
        assert!((slope - found[at]).abs() < 1e-4 + 1e-2 * slope.abs(), "{at}: {slope} {}", found[at]);
    }
    Ok(())
}

#[test]
fn losses_have_the_gradients_of_finite_differences() -> Result<()> {
    let model = Model::new(Linear::new(3, 4), 7)?;
    let x = random(&[6, 3], 8);
    let classes = Tensor::new(&[6], &[0i32, 3, 1, 1, 2, 0])?;
    let mask = Tensor::new(&[6], &[1.0f32, 0.0, 1.0, 0.5, 1.0, 1.0])?;
    for loss in [Loss::Mse, Loss::Mae, Loss::Huber { delta: 0.3 }, Loss::CrossEntropy] {
        let target = if loss.is_of_classes() { classes.clone() } else { random(&[6, 4], 9) };
        for masked in [false, true] {
            let recipe = Recipe { loss, masked, rate: 0.0, ..Recipe::default() };
            let batch = Batch { mask: masked.then(|| mask.clone()), ..Batch::new(x.clone(), target.clone()) };
            // At a rate of 0 nothing moves: the loss is the evaluation's, and the norm that of differences.
            let mut evaluation = Evaluation::new(&model, &recipe, &CompileOptions::default())?;
            let outcome = Step::new(&model, &recipe, &CompileOptions::default())?.run(&batch)?;
            let mut of = |model: &Model| evaluation.run(&batch, &|name| model.weight(name)).map(|f| f64::from(f[0]));
            assert!((of(&model)? - f64::from(outcome.loss)).abs() < 1e-6, "{loss:?}");
            let mut squares = 0.0;
            for param in model.params() {
                for at in 0..param.count() {
                    let mut losses = vec![];
                    for by in [-2e-3f32, 2e-3] {
                        let mut moved = model.clone();
                        let mut weight = moved.weight(&param.name)?.clone();
                        weight.values_mut::<f32>()?[at] += by;
                        moved.set_weight(&param.name, weight)?;
                        losses.push(of(&moved)?);
                    }
                    squares += ((losses[1] - losses[0]) / 4e-3).powi(2);
                }
            }
            let (want, got) = (squares.sqrt(), f64::from(outcome.norm));
            assert!((want - got).abs() < 1e-2 * want, "{loss:?}, masked {masked}: {want} {got}");
        }
    }
    Ok(())
}

#[test]
fn rows_that_a_mask_leaves_out_have_no_effect_whatever_they_are() -> Result<()> {
    let model = Model::new(Cfc { proj_size: Some(2), ..Cfc::new(3, 5) }, 2)?;
    let mut mask = Tensor::new(&[2, 4], &[1.0f32; 8])?;
    mask.values_mut::<f32>()?[2..4].fill(0.0);
    let recipe = Recipe { masked: true, ..Recipe::default() };
    let batch = |wild: f32| -> Result<Batch> {
        let mut target = random(&[2, 4, 2], 2);
        target.values_mut::<f32>()?[4..8].fill(wild);
        Ok(Batch { mask: Some(mask.clone()), ..Batch::new(random(&[2, 4, 3], 1), target) })
    };
    let (calm, wild) = (trained(&model, &recipe, &batch(0.0)?, 5)?, trained(&model, &recipe, &batch(1e30)?, 5)?);
    assert_eq!(calm.0, wild.0);
    assert_eq!(calm.1, wild.1);
    Ok(())
}

#[test]
fn frozen_parameters_stay_and_groups_have_rates_of_their_own() -> Result<()> {
    let layers = vec![Linear::new(3, 5).into(), Linear::new(5, 2).into()];
    let model = Model::new(layers, 3)?;
    let batch = Batch::new(random(&[6, 3], 1), random(&[6, 2], 2));
    let sgd = Optimizer::Sgd { momentum: 0.0, nesterov: false };
    let plain = Recipe { optimizer: sgd, rate: 0.1, ..Recipe::default() };
    let groups = vec![Group::of("*").rate(0.5), Group::of("0.*").frozen()];
    let mut step = Step::new(&model, &Recipe { groups, ..plain.clone() }, &CompileOptions::default())?;
    let mut all = Step::new(&model, &plain, &CompileOptions::default())?;
    step.run(&batch)?;
    all.run(&batch)?;
    let mut after = model.clone();
    step.write_weights(&mut after)?;
    assert_eq!(after.weight("0.weight")?, model.weight("0.weight")?);
    let moved = |step: &Step| -> Result<Vec<f64>> {
        let (old, new) = (model.weight("1.weight")?.to_f64(), step.weight("1.weight")?.to_f64());
        Ok(new.iter().zip(old).map(|(new, old)| new - old).collect())
    };
    for (half, whole) in moved(&step)?.into_iter().zip(moved(&all)?) {
        assert!((2.0 * half - whole).abs() < 1e-6, "{half} {whole}");
    }
    let problem = Step::new(&model, &Recipe { groups: vec![Group::of("2.*")], ..plain.clone() }, &Default::default());
    assert!(problem.unwrap_err().to_string().contains("`parameters` is 2.*; expected a name of a parameter"));
    let frozen = Recipe { groups: vec![Group::of("*").frozen()], ..plain };
    assert!(Step::new(&model, &frozen, &Default::default()).unwrap_err().to_string().contains("every parameter"));
    Ok(())
}

#[test]
fn a_scaled_loss_gives_the_same_steps_and_one_that_overflows_changes_nothing() -> Result<()> {
    let model = Model::new(Cfc::new(3, 5), 2)?;
    let batch = Batch::new(random(&[2, 4, 3], 1), random(&[2, 4, 5], 2));
    let options = CompileOptions::default();
    let mut plain = Step::new(&model, &Recipe::default(), &options)?;
    let mut scaled = Step::new(&model, &Recipe { scaled: true, ..Recipe::default() }, &options)?;
    for _ in 0..5 {
        let (a, b) = (plain.run(&batch)?, scaled.run_at(&batch, 1.0, 1024.0, None)?);
        assert!((a.loss - b.loss).abs() < 1e-6 && (a.norm - b.norm).abs() < 1e-5 * a.norm, "{a:?} {b:?}");
    }
    let before = scaled.weight("rnn_cell.ff1.weight")?.clone();
    let outcome = scaled.run_at(&batch, 1.0, f32::MAX, None)?;
    assert!(!outcome.is_finite(), "{outcome:?}");
    assert_eq!(*scaled.weight("rnn_cell.ff1.weight")?, before);
    assert_eq!(scaled.steps(), 5);
    Ok(())
}

#[test]
fn states_that_go_on_are_those_of_the_whole_sequence() -> Result<()> {
    // At a rate of 0, two windows one after the other have the losses of one window of both.
    for (name, layers) in networks() {
        let model = Model::new(layers, 3)?;
        let (x, target) = (random(&[2, 8, 3], 1), random(&[2, 8, 2], 2));
        let recipe = Recipe { rate: 0.0, ..Recipe::default() };
        let whole = trained(&model, &recipe, &Batch::new(x.clone(), target.clone()), 1)?.0[0];
        let part = |t: &Tensor, from: usize, width: usize| -> Result<Tensor> {
            let values = t.values::<f32>()?;
            let rows: Vec<f32> = (0..2).flat_map(|b| values[(b * 8 + from) * width..][..4 * width].to_vec()).collect();
            Ok(Tensor::new(&[2, 4, width], &rows)?)
        };
        let mut step = Step::new(&model, &Recipe { carried: true, ..recipe }, &CompileOptions::default())?;
        let mut losses = vec![];
        for (from, goes_on) in [(0, 0.0f32), (4, 1.0), (0, 0.0)] {
            let goes_on = Some(Tensor::new(&[2, 1], &[goes_on; 2])?);
            let batch = Batch { goes_on, ..Batch::new(part(&x, from, 3)?, part(&target, from, 2)?) };
            losses.push(step.run(&batch)?.loss);
        }
        assert!(((losses[0] + losses[1]) / 2.0 - whole).abs() < 1e-5, "{name}: {losses:?} {whole}");
        assert_eq!(losses[0], losses[2], "{name}");
    }
    Ok(())
}

#[test]
fn the_time_between_steps_is_learned_from() -> Result<()> {
    let model = Model::new(Ltc::new(3, AutoNcp::new(11, 2).wiring()?), 3)?;
    let recipe = Recipe { timespans: Timespans::PerStep, ..Recipe::default() };
    let spans = |by: f32| Tensor::new(&[2, 4], &[by; 8]);
    let batch = |by: f32| -> Result<Batch> {
        Ok(Batch { timespans: Some(spans(by)?), ..Batch::new(random(&[2, 4, 3], 1), random(&[2, 4, 2], 2)) })
    };
    let (slow, quick) = (trained(&model, &recipe, &batch(2.0)?, 3)?, trained(&model, &recipe, &batch(0.1)?, 3)?);
    assert_ne!(slow.0, quick.0);
    let constant = Recipe { timespans: Timespans::Constant(2.0), ..Recipe::default() };
    let same = trained(&model, &constant, &Batch { timespans: None, ..batch(2.0)? }, 3)?;
    same.0.iter().zip(&slow.0).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
    Ok(())
}

#[test]
fn products_in_bf16_learn_as_those_in_f32_do() -> Result<()> {
    let model = Model::new(Cfc { proj_size: Some(2), ..Cfc::new(3, 16) }, 2)?;
    let batch = Batch::new(random(&[8, 12, 3], 1), random(&[8, 12, 2], 2));
    let recipe = |precision| Recipe { precision, rate: 0.002, ..Recipe::default() };
    let (wide, half) = (
        trained(&model, &recipe(Precision::F32), &batch, 60)?.0,
        trained(&model, &recipe(Precision::Bf16), &batch, 60)?.0,
    );
    assert_ne!(wide[0], half[0], "products are not rounded");
    // A product of bf16 has three digits; what comes of that grows from step to step.
    for (number, (a, b)) in wide.iter().zip(&half).enumerate() {
        let most = if number < 5 { 0.02 } else { 0.15 };
        assert!((a - b).abs() < most * a, "step {number}: {a} {b}");
    }
    assert!(half[59] < 0.9 * half[0], "{} {}", half[0], half[59]);
    Ok(())
}

#[test]
fn rounded_weights_learn_and_are_what_was_evaluated() -> Result<()> {
    let batch = Batch::new(random(&[8, 6, 3], 1), random(&[8, 6, 2], 2));
    for rounding in [Rounding::Ternary, Rounding::Int8] {
        let model = Model::new(Cfc { proj_size: Some(2), ..Cfc::new(3, 12) }, 2)?;
        let groups = vec![Group::of("*.weight").rounded(rounding)];
        let recipe = Recipe { groups, rate: 0.01, ..Recipe::default() };
        let mut step = Step::new(&model, &recipe, &CompileOptions::default())?;
        let first = step.run(&batch)?.loss;
        for _ in 0..150 {
            step.run(&batch)?;
        }
        let last = step.run(&batch)?.loss;
        assert!(last < 0.8 * first, "{rounding:?}: {first} {last}");
        // The model as it is used has few different numbers, and its loss is what is trained.
        let mut used = model.clone();
        step.write_used_weights(&mut used)?;
        let mut numbers = used.weight("rnn_cell.ff1.weight")?.to_f64();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        if rounding == Rounding::Ternary {
            assert!(numbers.len() <= 3, "{numbers:?}");
        }
        let plain = Recipe { rate: 0.0, ..Recipe::default() };
        let loss = Step::new(&used, &plain, &CompileOptions::default())?.run(&batch)?.loss;
        let now = step.run(&batch)?.loss;
        assert!((loss - now).abs() < 1e-4, "{rounding:?}: {loss} {now}");
    }
    Ok(())
}

#[test]
fn a_bit_linear_layer_learns() -> Result<()> {
    let layers = vec![BitLinear::new(3, 32).into(), schwann_nn::Activation::Relu.into(), BitLinear::new(32, 2).into()];
    let model = Model::new(layers, 2)?;
    let batch = Batch::new(random(&[16, 3], 1), random(&[16, 2], 2));
    let (losses, _) = trained(&model, &Recipe { rate: 0.01, ..Recipe::default() }, &batch, 200)?;
    assert!(losses[199] < 0.5 * losses[0], "{} {}", losses[0], losses[199]);
    // The gradient of what is rounded is that of what it is rounded to.
    let graph = model.training_graph(&GraphOptions::training())?;
    assert!(gradient(&graph, "loss", &["1.norm.weight"]).is_err() || graph.output("grad.0.weight").is_some());
    assert_eq!(graph.output_types()[graph.output_place("grad.0.weight").unwrap()].dtype, DType::F32);
    Ok(())
}

#[test]
fn dropout_differs_from_step_to_step_and_not_from_run_to_run() -> Result<()> {
    let layers = Cfc { backbone_layers: Some(2), backbone_dropout: Some(0.5), ..Cfc::new(3, 5) };
    let model = Model::new(layers, 2)?;
    let batch = Batch::new(random(&[4, 6, 3], 1), random(&[4, 6, 5], 2));
    let recipe = Recipe { rate: 0.0, ..Recipe::default() };
    let (a, b) = (trained(&model, &recipe, &batch, 4)?.0, trained(&model, &recipe, &batch, 4)?.0);
    assert_eq!(a, b);
    assert!(a[0] != a[1] && a[1] != a[2]);
    Ok(())
}
