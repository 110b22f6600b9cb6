//! The trainer and its data: windows and batches are what they should be, training goes on where it ended, ends early, and
//! takes fewer windows at a time where memory is short.

use schwann_core::memory::Budget;
use schwann_core::{CompileOptions, Tensor, io};
use schwann_nn::data::{
    Columns, Layout, Loader, Order, Sequences, Split, Windows, normalized, read_array, read_csv, split,
};
use schwann_nn::train::{Course, Ended, Go, Loss, Options, Recipe, Schedule, Trainer};
use schwann_nn::{Activation, Cfc, Linear, Model, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// Sequences whose numbers say where they are from: 100·sequence + step.
fn numbered(lengths: &[usize]) -> Sequences {
    let longest = lengths.iter().copied().max().unwrap();
    let at = |i: usize| (100 * (i / longest) + i % longest) as f32;
    let x: Vec<f32> = (0..lengths.len() * longest).map(at).collect();
    let data = Sequences::new(
        Tensor::new(&[lengths.len(), longest, 1], &x).unwrap(),
        Tensor::new(&[lengths.len(), longest, 1], &x).unwrap(),
    );
    data.unwrap().lengths(lengths).unwrap()
}

fn model() -> Model {
    Model::new(Cfc { proj_size: Some(1), ..Cfc::new(1, 4) }, 1).unwrap()
}

/// The x of batches, and what counts of them.
fn batches(data: &Sequences, windows: Windows, order: Order, batch: usize, count: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let layout = Layout::of(&model(), Loss::Mse, data, &windows).unwrap();
    let mut loader = Loader::new(Arc::new(data.clone()), Arc::new(windows), layout, order, batch).unwrap();
    (0..count)
        .map(|_| {
            let batch = loader.next_batch().unwrap().batch();
            let mask = batch.mask.as_ref().map(|m| m.values::<f32>().unwrap().to_vec()).unwrap_or_default();
            (batch.x.values::<f32>().unwrap().to_vec(), mask)
        })
        .collect()
}

#[test]
fn windows_slide_and_what_is_short_is_masked() -> Result<()> {
    let data = numbered(&[7, 3]);
    let (spans, none) = split(&data, &Split { validation: 0.0, seed: 0 })?;
    assert!(none.is_empty());
    let windows = Windows::new(&spans, Some(4), Some(2), false)?;
    let list: Vec<(usize, u32)> = windows.list.iter().map(|w| (w.start, w.len)).collect();
    assert_eq!(list, [(0, 4), (2, 4), (4, 3), (7, 3)]);
    let found = batches(&data, windows, Order { shuffle: None, fill: false }, 3, 3);
    assert_eq!(found[0].0, [0., 1., 2., 3., 2., 3., 4., 5., 4., 5., 6., 0.]);
    assert_eq!(found[0].1, [1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 0.]);
    // The last batch of an epoch has what is left, and the next epoch begins anew.
    assert_eq!(found[1], (vec![100., 101., 102., 0.], vec![1., 1., 1., 0.]));
    assert_eq!(found[2], found[0]);
    // Filled up with the first ones.
    let windows = Windows::new(&spans, Some(4), Some(2), false)?;
    let found = batches(&data, windows, Order { shuffle: None, fill: true }, 3, 3);
    assert_eq!(found[1].0, [100., 101., 102., 0., 0., 1., 2., 3., 2., 3., 4., 5.]);
    assert_eq!(found[2], found[0]);
    Ok(())
}

#[test]
fn every_window_is_met_once_in_an_epoch_and_the_order_is_the_seeds() -> Result<()> {
    let data = numbered(&[4; 10]);
    let windows = || Windows::new(&(0..10).map(|i| (4 * i, 4)).collect::<Vec<_>>(), None, None, false);
    let firsts = |seed: u64| -> Result<Vec<f32>> {
        let found = batches(&data, windows()?, Order { shuffle: Some(seed), fill: false }, 3, 8);
        Ok(found.iter().flat_map(|(x, _)| x.iter().step_by(4).copied().collect::<Vec<_>>()).collect())
    };
    let (a, b, other) = (firsts(1)?, firsts(1)?, firsts(2)?);
    assert_eq!(a, b);
    assert_ne!(a, other);
    let mut sorted = a[..10].to_vec();
    sorted.sort_by(f32::total_cmp);
    assert_eq!(sorted, (0..10).map(|i| 100.0 * i as f32).collect::<Vec<_>>());
    assert_ne!(a[..10], a[10..20], "each epoch has an order of its own");
    Ok(())
}

#[test]
fn carried_windows_follow_each_other_in_their_places() -> Result<()> {
    let data = numbered(&[6, 2, 4]);
    let windows = Windows::new(&[(0, 6), (6, 2), (12, 4)], Some(2), None, true)?;
    let layout = Layout::of(&model(), Loss::Mse, &data, &windows)?;
    let mut loader = Loader::new(Arc::new(data), Arc::new(windows), layout, Order { shuffle: None, fill: false }, 2)?;
    let mut found = vec![];
    for _ in 0..3 {
        let batch = loader.next_batch()?.batch();
        let firsts: Vec<f32> = batch.x.values::<f32>()?.iter().step_by(2).copied().collect();
        found.push((firsts, batch.goes_on.as_ref().unwrap().values::<f32>()?.to_vec()));
    }
    // Place 0 has the first sequence's three windows; place 1 the second sequence, then the third.
    assert_eq!(found[0], (vec![0., 100.], vec![0., 0.]));
    assert_eq!(found[1], (vec![2., 200.], vec![1., 0.]));
    assert_eq!(found[2], (vec![4., 202.], vec![1., 1.]));
    Ok(())
}

#[test]
fn a_split_leaves_no_window_on_both_sides() -> Result<()> {
    let data = numbered(&[5; 20]);
    let (a, b) = split(&data, &Split { validation: 0.25, seed: 3 })?;
    assert_eq!((a.len(), b.len()), (15, 5));
    assert!(a.iter().all(|span| !b.contains(span)));
    assert_eq!(split(&data, &Split { validation: 0.25, seed: 3 })?, (a, b));
    // Of one sequence, the end is for validation.
    assert_eq!(split(&numbered(&[10]), &Split { validation: 0.3, seed: 0 })?, (vec![(0, 7)], vec![(7, 3)]));
    assert!(split(&data, &Split { validation: 1.0, seed: 0 }).is_err());
    Ok(())
}

struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("schwann-trainer-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn arrays_stay_in_their_files_and_tables_say_what_is_wrong_with_them() -> Result<()> {
    let folder = Folder::new("files");
    let x = Tensor::new(&[2, 3, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    io::write_npy(folder.0.join("x.npy"), &x)?;
    let read = read_array(&folder.0.join("x.npy").to_string_lossy())?;
    assert!(read.is_mapped() && read == x);
    io::write_npz(folder.0.join("all.npz"), [("x", &x), ("y", &x)])?;
    let archive = folder.0.join("all.npz").to_string_lossy().into_owned();
    assert_eq!(read_array(&format!("{archive}:y"))?, x);
    assert!(read_array(&archive).unwrap_err().to_string().contains("one of x, y"));
    let table = folder.0.join("t.csv");
    let columns = Columns {
        inputs: vec!["a".into()],
        targets: vec!["b".into()],
        time: Some("t".into()),
        group: Some("run".into()),
    };
    std::fs::write(&table, "run,t,a,b\nx,0,1,2\nx,0.5,3,4\ny,0,5,6\n").unwrap();
    let data = read_csv(&table, &columns)?;
    assert_eq!((data.len(), data.longest(), data.is_timed()), (2, 2, true));
    for (text, words) in [
        ("run,t,a,b\nx,0,1,two\n", "`line 2, column b` is \"two\"; expected a finite number"),
        ("run,t,a,b\nx,0,nan,2\n", "`line 2, column a` is \"nan\""),
        ("run,t,a,b\nx,1,1,2\nx,1,1,2\n", "expected a later time"),
        ("run,t,a\nx,0,1\n", "`a column` is b; expected one of run, t, a"),
        ("run,t,a,b\nx,0,1\n", "line: 2"),
        ("run,t,a,b\n", "no rows"),
    ] {
        std::fs::write(&table, text).unwrap();
        let said = read_csv(&table, &columns).unwrap_err().to_string();
        assert!(said.contains(words) && said.contains("t.csv"), "{text}: {said}");
    }
    Ok(())
}

#[test]
fn normalisation_is_part_of_the_model() -> Result<()> {
    let rows = 50;
    let x: Vec<f32> = (0..rows).flat_map(|i| [1000.0 + i as f32, 0.001 * i as f32]).collect();
    let y: Vec<f32> = (0..rows).map(|i| 50.0 - 3.0 * i as f32).collect();
    let data = Sequences::samples(Tensor::new(&[rows, 2], &x)?, Tensor::new(&[rows, 1], &y)?)?;
    let (spans, _) = split(&data, &Split { validation: 0.0, seed: 0 })?;
    let windows = Windows::new(&spans, None, None, false)?;
    let (inputs, targets) = (data.scale(&windows.list, false)?, data.scale(&windows.list, true)?);
    assert!((inputs.mean[0] - 1024.5).abs() < 1e-3 && (inputs.deviation[0] - 14.43).abs() < 0.01, "{inputs:?}");
    let layers = vec![Linear::new(2, 8).into(), Activation::Tanh.into(), Linear::new(8, 1).into()];
    let (model, frozen) = normalized(&Model::new(layers, 1)?, Some(&inputs), Some(&targets))?;
    assert_eq!(frozen, ["0.weight", "0.bias", "4.weight", "4.bias"]);
    let unit = Some(Tensor::new(&[1], &targets.deviation)?);
    let groups = frozen.iter().map(|name| schwann_nn::train::Group::of(name).frozen()).collect();
    let options = Options {
        recipe: Recipe { rate: 0.01, groups, unit, ..Recipe::default() },
        batch: 10,
        epochs: Some(60),
        ..Options::default()
    };
    let none = Windows::new(&[], None, None, false)?;
    let mut trainer = Trainer::new(&model, &Arc::new(data), windows, none, &options)?;
    trainer.run(&mut |_| Go::On)?;
    let trained = trainer.model()?;
    assert_eq!(trained.weight("0.weight")?, model.weight("0.weight")?);
    let mut session = trained.compile(&Default::default(), &CompileOptions::default())?.session();
    let sample = Tensor::new(&[1, 2], &[1010.0f32, 0.01])?;
    let got = session.run(&[("x", &sample)])?[0].values::<f32>()?[0];
    assert!((got - 20.0).abs() < 5.0, "{got}: it should be about 20");
    Ok(())
}

fn waves(count: usize) -> Sequences {
    let x: Vec<f32> = (0..count * 12).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<f32> = (0..count * 12).map(|i| (i as f32 * 0.37 + 0.5).sin()).collect();
    Sequences::new(Tensor::new(&[count, 12, 1], &x).unwrap(), Tensor::new(&[count, 12, 1], &y).unwrap()).unwrap()
}

fn trainer(folder: Option<PathBuf>, change: impl Fn(&mut Options)) -> Result<Trainer> {
    let data = waves(24);
    let (a, b) = split(&data, &Split { validation: 0.25, seed: 1 })?;
    let windows = |spans: &[(usize, usize)]| Windows::new(spans, None, None, false);
    let recipe = Recipe { rate: 0.01, ..Recipe::default() };
    let mut options = Options { recipe, batch: 4, steps: 40, folder, ..Options::default() };
    options.compile = CompileOptions::default().threads(1);
    change(&mut options);
    Trainer::new(&model(), &Arc::new(data), windows(&a)?, windows(&b)?, &options)
}

fn weights(trainer: &Trainer) -> Result<Vec<f64>> {
    let model = trainer.model()?;
    Ok(model.weights().values().flat_map(Tensor::to_f64).collect())
}

#[test]
fn training_goes_on_to_the_bit_wherever_it_was_stopped() -> Result<()> {
    let folder = Folder::new("resume");
    let mut whole = trainer(None, |_| {})?;
    assert_eq!(whole.run(&mut |_| Go::On)?, Ended::Done);
    for stop in [1u64, 7, 23] {
        let place = Some(folder.0.join(stop.to_string()));
        let mut first = trainer(place.clone(), |_| {})?;
        assert_eq!(first.run(&mut |p| if p.step == stop { Go::Stop } else { Go::On })?, Ended::Stopped);
        let mut second = trainer(place, |_| {})?;
        assert_eq!(second.resume()?, stop);
        assert_eq!(second.run(&mut |_| Go::On)?, Ended::Done);
        assert_eq!(weights(&second)?, weights(&whole)?, "stopped at {stop}");
        let losses = |t: &Trainer| t.records().iter().map(|r| (r.step, r.loss, r.validation)).collect::<Vec<_>>();
        assert_eq!(losses(&second), losses(&whole), "stopped at {stop}");
    }
    let other = trainer(Some(folder.0.join("7")), |o| o.batch = 5)?.resume().unwrap_err().to_string();
    assert!(other.contains("of another training"), "{other}");
    Ok(())
}

#[test]
fn training_ends_where_nothing_improves() -> Result<()> {
    let mut ended = trainer(None, |o| {
        (o.recipe.rate, o.patience, o.steps) = (0.0, Some(3), 1000);
        o.schedule = Schedule { warm_up: 0, course: Course::Plateau { factor: 0.5, patience: 1, least: 0.1 } };
    })?;
    assert_eq!(ended.run(&mut |_| Go::On)?, Ended::Early);
    // One validation that is the best, and three that are no better.
    assert_eq!(ended.records().len(), 4);
    Ok(())
}

#[test]
fn a_batch_is_halved_where_memory_is_short() -> Result<()> {
    let need = |batch: usize| trainer(None, |o| o.batch = batch)?.step().memory(batch, 12, 0);
    let (all, half) = (need(16)?, need(8)?);
    let enough = (all.total_bytes() + half.total_bytes()) / 2;
    let mut sizes = vec![];
    let mut short = trainer(None, |o| {
        o.batch = 16;
        o.compile = CompileOptions::default().threads(1).budget(Budget::bytes(enough));
    })?;
    let ended = short.run(&mut |p| {
        sizes.push(p.batch);
        Go::On
    })?;
    assert_eq!(ended, Ended::Done);
    assert!(sizes.iter().all(|n| *n < 16) && sizes.contains(&8), "{sizes:?} with {enough} bytes; {all:?} {half:?}");
    Ok(())
}

#[test]
fn a_batch_that_was_halved_grows_back_when_there_is_room_again() -> Result<()> {
    let need = |batch: usize| trainer(None, |o| o.batch = batch)?.step().memory(batch, 12, 0);
    let (all, half) = (need(16)?.total_bytes(), need(8)?.total_bytes());
    let budget = Budget::bytes(4 * all);
    // Somebody else has what a whole batch would need, for the first steps.
    let mut held = Some(budget.reserve(4 * all - (all + half) / 2, "another")?);
    let mut sizes = vec![];
    let mut short = trainer(None, |o| {
        (o.batch, o.steps, o.log_every) = (16, 90, 1);
        o.compile = CompileOptions::default().threads(1).budget(budget.clone());
    })?;
    short.run(&mut |p| {
        sizes.push(p.batch);
        if sizes.len() == 10 {
            held = None;
        }
        Go::On
    })?;
    assert!(sizes.len() > 80 && sizes[..10].iter().all(|n| *n == 8), "{sizes:?}");
    assert_eq!(sizes.last(), Some(&16), "{sizes:?}");
    Ok(())
}
