//! The memory of a training step: what is planned is what it takes, and after the first steps nothing is allocated.

use schwann_core::memory::{ProcessMemory, Usage};
use schwann_core::{CompileOptions, Tensor};
use schwann_kernels::heap;
use schwann_nn::data::{Sequences, Split, Windows, split};
use schwann_nn::train::{Batch, Go, Options, Recipe, Step, Trainer};
use schwann_nn::{Cfc, Lstm, Model};
use std::sync::Arc;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// One after the other: memory is the process' own.
#[test]
fn the_memory_of_a_step_is_what_was_planned_and_does_not_grow() {
    ten_thousand_steps_allocate_nothing();
    what_is_planned_is_what_is_taken();
}

fn ten_thousand_steps_allocate_nothing() {
    let x: Vec<f32> = (0..40 * 6 * 2).map(|i| (i as f32 * 0.31).sin()).collect();
    let y: Vec<f32> = (0..40 * 6).map(|i| (i as f32 * 0.2).cos()).collect();
    let data = Sequences::new(Tensor::new(&[40, 6, 2], &x).unwrap(), Tensor::new(&[40, 6, 1], &y).unwrap()).unwrap();
    let (spans, _) = split(&data, &Split { validation: 0.0, seed: 0 }).unwrap();
    let windows = Windows::new(&spans, None, None, false).unwrap();
    let none = Windows::new(&[], None, None, false).unwrap();
    let dropout = Cfc {
        proj_size: Some(1),
        backbone_units: Some(8),
        backbone_layers: Some(2),
        backbone_dropout: Some(0.1),
        ..Cfc::new(2, 4)
    };
    let model = Model::new(dropout, 1).unwrap();
    let recipe = Recipe { clip_norm: Some(1.0), ..Recipe::default() };
    // 40 windows are no whole number of batches: the last one of each epoch is filled up.
    let options = Options {
        recipe,
        batch: 12,
        steps: 10_000,
        validate_every: 20_000,
        compile: CompileOptions::default().threads(1),
        ..Options::default()
    };
    let mut trainer = Trainer::new(&model, &Arc::new(data), windows, none, &options).unwrap();
    let mut counts = vec![];
    let mut resident = vec![];
    trainer
        .run(&mut |p| {
            if p.step % 1000 == 100 {
                counts.push(heap::allocations());
                resident.push(ProcessMemory.bytes().unwrap_or(0));
                // Reading the file above allocates; what is counted begins after it.
                counts.push(heap::allocations());
            }
            Go::On
        })
        .unwrap();
    assert_eq!(trainer.steps_done(), 10_000);
    let between: Vec<u64> = counts[1..].chunks_exact(2).map(|pair| pair[1] - pair[0]).collect();
    // The lists of this test grow a few times; steps do not.
    assert!(between.iter().filter(|n| **n == 0).count() >= 5 && between.iter().all(|n| *n <= 4), "{between:?}");
    if let (Some(first), Some(last)) = (resident.first(), resident.last()) {
        assert!(last.saturating_sub(*first) <= 256 << 10, "{resident:?}");
    }
}

#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
fn what_is_planned_is_what_is_taken() {
    if ProcessMemory.bytes().is_err() {
        println!("skipped: this process' memory cannot be read here");
        return;
    }
    let cfc = Cfc { proj_size: Some(8), backbone_units: Some(128), ..Cfc::new(8, 64) };
    let lstm = Lstm::new(8, 96);
    for (name, model, outputs) in [("CfC", Model::new(cfc, 1), 8), ("LSTM", Model::new(lstm, 1), 96)] {
        let model = model.unwrap();
        let (batch, steps) = (256, 160);
        let step = Step::new(&model, &Recipe::default(), &CompileOptions::default().threads(1)).unwrap();
        let (x, target) = (vec![0.1f32; batch * steps * 8], vec![0.2f32; batch * steps * outputs]);
        let batch_of = Batch::new(
            Tensor::new(&[batch, steps, 8], &x).unwrap(),
            Tensor::new(&[batch, steps, outputs], &target).unwrap(),
        );
        let planned = step.memory(batch, steps, 0).unwrap().total_bytes();
        let before = ProcessMemory.bytes().unwrap();
        let mut step = step;
        for _ in 0..3 {
            step.run(&batch_of).unwrap();
        }
        let taken = ProcessMemory.bytes().unwrap().saturating_sub(before);
        assert!(planned > 64 << 20, "{name}: {planned} bytes are too few to be told from the rest");
        let off = taken as f64 / planned as f64 - 1.0;
        assert!(off.abs() < 0.1, "{name}: planned {planned}, taken {taken}: {:+.1}%", 100.0 * off);
    }
}
