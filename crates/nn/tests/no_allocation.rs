//! Thousands of streams share one model, and once a number of streams is known a step allocates nothing: counted.

use schwann_core::CompileOptions;
use schwann_kernels::heap;
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, GraphOptions, Ltc, Model, Runner, Sequential};
use std::sync::Arc;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

#[test]
fn thousands_of_streams_step_without_allocating() {
    const STREAMS: usize = 4096;
    let circuit = || AutoNcp::new(19, 3).wiring().unwrap();
    let models: [(&str, Sequential); 3] = [
        ("wired CfC", Cfc { mixed_memory: true, ..Cfc::new(4, circuit()) }.into()),
        ("LTC", Ltc::new(4, circuit()).into()),
        ("CfC", Cfc::new(4, 16).into()),
    ];
    for (name, layers) in models {
        let model = Model::new(layers, 5).unwrap();
        let program = model.compile(&GraphOptions::default(), &CompileOptions::default().threads(2)).unwrap();
        let mut runner = Runner::new(Arc::clone(&program)).unwrap();
        let mut states = vec![runner.state(); STREAMS];
        let x: Vec<f32> = (0..STREAMS * 4).map(|i| (i as f32 * 0.37).sin()).collect();
        // One call for all, and each stream alone: two sizes, met in turn.
        let mut steps = || {
            let together = runner.step_many(&mut states, &x).unwrap()[0];
            let alone: f32 = states.iter_mut().take(100).map(|s| runner.step(s, &x[..4]).unwrap()[0]).sum();
            together + alone
        };
        steps();
        // Other threads of the test harness may allocate now and then: the fewest of a few runs is the steps' own.
        let fewest = (0..4)
            .map(|_| {
                let before = heap::allocations();
                assert!(steps().is_finite());
                heap::allocations() - before
            })
            .min();
        assert_eq!(fewest, Some(0), "{name}");
        // The streams have one program between them.
        assert_eq!(Arc::strong_count(&program), 4, "{name}: ours, the runner's, and one for each size");
    }
}
