//! Watching a run changes nothing that it computes, and sees every step of its plan.

use schwann_core::backend::Timeline;
use schwann_core::backend::cpu::Cpu;
use schwann_core::plan::Plan;
use schwann_core::{CompileOptions, Program, Tensor, cases};

/// Each place of a plan with how often a run calls it.
fn calls(plan: &Plan, first: usize, path: &[usize], times: u64, into: &mut Vec<(Vec<usize>, u64)>) {
    for (i, step) in plan.steps.iter().enumerate() {
        let path = [path, &[first + i]].concat();
        into.push((path.clone(), times));
        if let Some(l) = &step.looped {
            let steps = times * l.steps as u64;
            calls(&l.body, 0, &path, steps * l.blocks as u64, into);
            if let Some(tail) = &l.tail {
                calls(tail, l.body.steps.len(), &path, steps, into);
            }
        }
    }
}

#[test]
fn every_case_gives_the_same_bits_watched_and_every_place_is_called_as_its_plan_says() {
    let (mut looped, mut nested_or_left_over) = (0, 0);
    for threads in [1, 2] {
        let cpu = Cpu::new(threads).unwrap();
        for case in cases::all() {
            let program = Program::compile_for(&case.graph, &cpu, &CompileOptions::default()).unwrap();
            let inputs: Vec<(&str, &Tensor)> = case.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let (mut plain, mut watched) = (program.session(), program.session());
            let mut timeline = Timeline::with_spans(16);
            for _ in 0..2 {
                let plain = plain.run(&inputs).unwrap();
                let watched = watched.run_observed(&inputs, Some(&mut timeline)).unwrap();
                assert_eq!(plain.len(), watched.len());
                for (plain, watched) in plain.iter().zip(watched) {
                    assert_eq!(plain.bytes(), watched.bytes(), "{} on {threads} threads", case.name);
                }
            }
            let mut want = vec![];
            let plan = watched.plan().unwrap();
            calls(plan, 0, &[], 2, &mut want);
            let seen: Vec<(Vec<usize>, u64)> =
                timeline.totals().places.into_iter().map(|t| (t.path, t.calls)).collect();
            assert_eq!(seen, want, "{} on {threads} threads", case.name);
            looped += usize::from(want.iter().any(|(path, _)| path.len() > 1));
            let left_over = plan.steps.iter().filter_map(|s| s.looped.as_ref()).any(|l| l.tail.is_some());
            nested_or_left_over += usize::from(left_over || want.iter().any(|(path, _)| path.len() > 2));
        }
    }
    assert!(
        looped > 10 && nested_or_left_over > 0,
        "{looped} loops, {nested_or_left_over} nested or with rows left over"
    );
}
