//! Runs on a device that is simulated: what is made anew and what is not, how a run is cut into pieces, and what happens when
//! the device fails. The failures that a GPU can be brought to are tried there as well, where there is one.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[path = "losing/mod.rs"]
mod losing;

use schwann_codegen::lang::{Maker, Ty};
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::{Backend, LeftOut, Timeline};
use schwann_core::{
    Changing, CompileOptions, DType, Error, Graph, GraphBuilder, Program, Result, Session, Tensor, shape,
};
use schwann_gpu::Gpu;
use schwann_gpu::device::{Device, Limits};
use schwann_gpu::simulated::{Knobs, Simulated};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn compile(graph: &Graph, backend: &dyn Backend) -> Result<Arc<Program>> {
    Program::compile_for(graph, backend, &CompileOptions::default().changing(Changing::All))
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1.0f32; shape.iter().product()]).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.values::<f32>().unwrap().to_vec()
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

/// h ← h·w + x + bias, and y = 2·h, of any number of rows; the state has one row of its own size.
fn leaky() -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 2]).unwrap();
    let bias = b.input("bias", DType::F32, shape![2]).unwrap();
    let h = b.input("h", DType::F32, shape![2]).unwrap();
    let w = b.weight("w", Tensor::new(&[2], &[0.5f32, 0.5]).unwrap()).unwrap();
    let sum = b.sum(x, &[0], false).unwrap();
    let kept = b.mul(h, w).unwrap();
    let next = b.add(kept, sum).unwrap();
    let next = b.add(next, bias).unwrap();
    let y = b.add(x, next).unwrap();
    b.output("y", y).unwrap();
    b.output("hn", next).unwrap();
    b.state("h", "hn").unwrap();
    b.build().unwrap()
}

/// h ← tanh(h·x + h) over time, for every row by itself: one kernel walks all steps.
fn walk() -> Graph {
    let mut step = GraphBuilder::new();
    let h = step.input("h", DType::F32, shape!["B", 4]).unwrap();
    let x = step.input("x", DType::F32, shape!["B", 4]).unwrap();
    let product = step.mul(h, x).unwrap();
    let sum = step.add(product, h).unwrap();
    let next = step.tanh(sum).unwrap();
    step.output("h", next).unwrap();
    step.output("y", next).unwrap();
    looped(step.build().unwrap())
}

/// h ← tanh(h + x − the sum over all rows): rows depend on each other, and each step is some launches.
fn repeat() -> Graph {
    let mut step = GraphBuilder::new();
    let h = step.input("h", DType::F32, shape!["B", 4]).unwrap();
    let x = step.input("x", DType::F32, shape!["B", 4]).unwrap();
    let sum = step.add(h, x).unwrap();
    let all = step.sum(sum, &[0], true).unwrap();
    let less = step.sub(sum, all).unwrap();
    let next = step.tanh(less).unwrap();
    step.output("h", next).unwrap();
    step.output("y", next).unwrap();
    looped(step.build().unwrap())
}

fn looped(step: Graph) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["T", "B", 4]).unwrap();
    let h = b.input("h", DType::F32, shape!["B", 4]).unwrap();
    let outs = b.scan(step, &[h], &[x], &[], 0).unwrap();
    b.output("y", outs[1]).unwrap();
    b.output("hn", outs[0]).unwrap();
    b.state("h", "hn").unwrap();
    b.build().unwrap()
}

/// Values that differ from step to step and row to row.
fn sequence(steps: usize, rows: usize) -> Tensor {
    let values: Vec<f32> = (0..steps * rows * 4).map(|i| ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5).collect();
    Tensor::new(&[steps, rows, 4], &values).unwrap()
}

fn close(got: &[Tensor], want: &[Tensor]) {
    for (got, want) in got.iter().zip(want) {
        let off = numbers(got).iter().zip(numbers(want)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "off by {off}");
    }
}

#[test]
fn runs_that_leave_a_part_out_disturb_no_others_and_have_one_size() {
    let device = Arc::new(Simulated::default());
    let program = compile(&walk(), &Gpu::new(Arc::clone(&device))).unwrap();
    let (x, h) = (sequence(3, 2), ones(&[2, 4]));
    let first = |session: &mut Session| session.run(&[("x", &x), ("h", &h)]).unwrap().to_vec();
    let run = |session: &mut Session| session.run(&[("x", &x)]).unwrap().to_vec();
    let mut alone = program.session();
    let want = [first(&mut alone), run(&mut alone), run(&mut alone)];
    let mut session = program.session();
    assert_eq!(first(&mut session), want[0]);
    let bindings = session.plan().unwrap().bindings.clone();
    let steps = session.plan().unwrap().steps[0].looped.as_ref().unwrap().body.steps.len();
    let left_out = |looped: usize, step| LeftOut { looped: vec![looped], step };
    let mut whole = program.session_without(&bindings, &left_out(0, None)).unwrap().unwrap();
    assert_eq!(first(&mut whole), want[0], "nothing is left out");
    for step in 0..steps {
        let mut without = program.session_without(&bindings, &left_out(0, Some(step))).unwrap().unwrap();
        assert_ne!(first(&mut without), want[0], "step {step} is left out");
    }
    assert_eq!([run(&mut session), run(&mut session)], [want[1].clone(), want[2].clone()]);
    for nothing in [left_out(0, Some(steps)), left_out(1, None)] {
        assert!(program.session_without(&bindings, &nothing).unwrap().is_none(), "{nothing:?}");
    }
    let refused = whole.run(&[("x", &sequence(4, 2)), ("h", &h)]).unwrap_err().to_string();
    assert!(refused.contains("alone") && refused.contains("T=4"), "{refused}");
    // A loop whose rows depend on each other is no kernel, and the processor has none.
    let repeated = compile(&repeat(), &Gpu::new(device)).unwrap();
    assert!(repeated.session_without(&bindings, &left_out(0, None)).unwrap().is_none());
    let here = compile(&walk(), &Cpu::new(1).unwrap()).unwrap();
    assert!(here.session_without(&bindings, &left_out(0, None)).unwrap().is_none());
}

#[test]
fn after_warm_up_nothing_is_made_or_copied_and_another_size_compiles_nothing() {
    let device = Arc::new(Simulated::default());
    let program = compile(&leaky(), &Gpu::new(Arc::clone(&device))).unwrap();
    let mut session = program.session();
    session.upload("bias", &ones(&[2])).unwrap();
    let tally = device.tally();
    let counts = || (get(&tally.buffers), get(&tally.compilations), get(&tally.copies), get(&tally.reads));
    let run = |session: &mut Session, rows: usize| {
        session.submit(&[("x", &ones(&[rows, 2]))]).unwrap();
        session.wait().unwrap();
    };
    (0..4).for_each(|_| run(&mut session, 3));
    let warm = counts();
    (0..10).for_each(|_| run(&mut session, 3));
    assert_eq!(counts(), warm, "buffers, compilations, copies and reads");
    let compiled = get(&tally.compilations);
    for rows in [1, 5, 100] {
        (0..4).for_each(|_| run(&mut session, rows));
    }
    assert_eq!(get(&tally.compilations), compiled, "another number of rows compiles nothing");
    let mut other = compile(&leaky(), &Gpu::new(Arc::clone(&device))).unwrap().session();
    other.run(&[("x", &ones(&[2, 2])), ("bias", &ones(&[2]))]).unwrap();
    assert_eq!(get(&tally.compilations), compiled, "nor does a program whose kernels are the same");
}

#[test]
fn long_work_is_cut_into_pieces_that_give_the_same_and_a_short_run_is_one_submission() {
    for (graph, steps) in [(walk(), 60_000), (repeat(), 3_000)] {
        let device = Arc::new(Simulated::default());
        let mut session = compile(&graph, &Gpu::new(Arc::clone(&device))).unwrap().session();
        let mut expected = compile(&graph, &Cpu::new(1).unwrap()).unwrap().session();
        let x = sequence(steps, 2);
        let tally = device.tally();
        let mut counts = vec![];
        for _ in 0..4 {
            let before = get(&tally.submissions);
            let got = session.run(&[("x", &x)]).unwrap().to_vec();
            close(&got, expected.run(&[("x", &x)]).unwrap());
            counts.push(get(&tally.submissions) - before);
        }
        assert!(counts[0] > 2, "{counts:?} submissions");
        // A machine that is busy with other things makes some of them longer.
        let longest = get(&device.knobs().longest_us);
        assert!(longest < 1_000_000, "a submission of {longest} µs");
        let short = sequence(4, 2);
        let mut session = compile(&graph, &Gpu::new(Arc::clone(&device))).unwrap().session();
        (0..4).for_each(|_| drop(session.run(&[("x", &short)]).unwrap().to_vec()));
        let before = (get(&tally.submissions), get(&tally.buffers));
        session.run(&[("x", &short)]).unwrap();
        assert_eq!((get(&tally.submissions), get(&tally.buffers)), (before.0 + 1, before.1));
    }
}

#[test]
fn a_run_is_stopped_between_its_pieces_and_leaves_the_state_as_it_was() {
    for graph in [walk(), repeat()] {
        let device = Arc::new(Simulated::default());
        let mut session = compile(&graph, &Gpu::new(Arc::clone(&device))).unwrap().session();
        let x = sequence(3_000, 2);
        session.run(&[("x", &sequence(2, 2))]).unwrap();
        let state = session.state("h").unwrap().clone();
        // Each launch takes so long now that the whole would take much longer than it is given.
        device.knobs().delay_us.store(20_000, Ordering::SeqCst);
        let canceller = session.canceller();
        let stop = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            canceller.cancel();
        });
        let start = Instant::now();
        let result = session.run(&[("x", &x)]).map(drop);
        stop.join().unwrap();
        let problem = result.unwrap_err();
        assert!(matches!(problem, Error::Cancelled), "{problem}");
        assert_eq!(session.state("h"), Some(&state));
        assert!(start.elapsed() < Duration::from_secs(20));
        device.knobs().delay_us.store(0, Ordering::SeqCst);
        session.run(&[("x", &sequence(2, 2))]).unwrap();
    }
}

#[test]
fn a_run_under_way_keeps_the_weights_that_it_began_with() {
    let program = compile(&leaky(), &Gpu::new(Arc::new(Simulated::default()))).unwrap();
    let (x, zero) = (ones(&[1, 2]), Tensor::zeros(DType::F32, &[2]).unwrap());
    let mut session = program.session();
    session.run(&[("x", &x), ("bias", &zero)]).unwrap();
    session.submit(&[("x", &x), ("bias", &zero)]).unwrap();
    program.set_weights(&[("w", &Tensor::new(&[2], &[10.0f32, 10.0]).unwrap())]).unwrap();
    session.wait().unwrap();
    assert_eq!(numbers(session.output("hn").unwrap()), [1.5, 1.5]);
    assert_eq!(numbers(&session.run(&[("x", &x), ("bias", &zero)]).unwrap()[1]), [16.0, 16.0]);
}

/// Everything that a session does, each step tried again if it fails. What it says is what a session without failures says.
fn everything<D: Device>(gpu: &Gpu<D>, failures: &mut Vec<Error>) -> Result<Vec<Vec<f32>>> {
    fn again<T>(failures: &mut Vec<Error>, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        act().or_else(|problem| {
            failures.push(problem);
            act()
        })
    }
    let mut seen = vec![];
    let program = again(failures, || compile(&leaky(), gpu))?;
    let mut session = program.session();
    again(failures, || session.upload("bias", &ones(&[2])))?;
    for rows in [1, 1, 1, 3, 3, 1] {
        let x = ones(&[rows, 2]);
        seen.push(again(failures, || session.run(&[("x", &x)]).map(|outputs| numbers(&outputs[1])))?);
    }
    seen.push(again(failures, || session.read_state("h").map(|h| numbers(h.unwrap())))?);
    again(failures, || session.upload("bias", &Tensor::new(&[2], &[2.0f32, 3.0]).unwrap()))?;
    let x = ones(&[1, 2]);
    let given = Tensor::new(&[2], &[8.0f32, 8.0]).unwrap();
    seen.push(again(failures, || session.run(&[("x", &x), ("h", &given)]).map(|o| numbers(&o[1])))?);
    again(failures, || program.set_weights(&[("w", &Tensor::new(&[2], &[2.0f32, 2.0]).unwrap())]))?;
    let mut timeline = Timeline::default();
    let watched = |session: &mut Session, timeline: &mut Timeline| {
        session.run_observed(&[("x", &x)], Some(timeline)).map(|o| numbers(&o[1]))
    };
    seen.push(again(failures, || watched(&mut session, &mut timeline))?);
    again(failures, || {
        session.submit(&[("x", &x)])?;
        session.wait()
    })?;
    seen.push(again(failures, || session.output("hn").map(numbers))?);
    seen.push(again(failures, || session.output("y").map(numbers))?);
    session.reset();
    seen.push(again(failures, || session.run(&[("x", &x)]).map(|outputs| numbers(&outputs[0])))?);
    Ok(seen)
}

fn left(knobs: &Knobs) -> (usize, u64) {
    (knobs.live.load(Ordering::SeqCst), get(&knobs.used_bytes))
}

#[test]
fn a_call_that_fails_is_an_error_with_words_and_what_was_to_be_done_can_be_done_again() {
    let (mut calls, mut none) = (0, vec![]);
    let want = {
        let device = Arc::new(Simulated::default());
        let seen = everything(&Gpu::new(Arc::clone(&device)), &mut none).unwrap();
        calls += get(&device.knobs().calls);
        assert_eq!(left(&device.knobs()), (0, 0), "buffers are left");
        seen
    };
    assert!(none.is_empty() && calls > 50, "{calls} calls");
    let mut words = std::collections::BTreeSet::new();
    for call in 1..=calls {
        let device = Arc::new(Simulated::default());
        device.knobs().fails_at.store(call, Ordering::SeqCst);
        let mut failures = vec![];
        let seen = everything(&Gpu::new(Arc::clone(&device)), &mut failures);
        let seen = seen.unwrap_or_else(|e| panic!("call {call} ({failures:?}): {e}"));
        assert_eq!(seen, want, "call {call}: {failures:?}");
        // A failure that does no harm need not be one: a stream that cannot give memory back keeps it.
        for failure in failures {
            assert!(matches!(failure, Error::Device { .. }), "call {call}: {failure}");
            words.insert(failure.to_string());
        }
        assert_eq!(left(&device.knobs()), (0, 0), "call {call}: buffers are left");
    }
    let said: Vec<&str> = words.iter().map(String::as_str).collect();
    for what in
        ["a buffer", "a write", "a copy", "a read", "a fill", "a compilation", "a list", "a submission", "a wait"]
    {
        assert!(said.iter().any(|w| w.contains(what)), "nothing was said of {what}: {said:?}");
    }
}

#[test]
fn a_device_that_is_lost_stays_lost_and_leaves_nothing_behind() {
    let calls = {
        let device = Arc::new(Simulated::default());
        everything(&Gpu::new(Arc::clone(&device)), &mut vec![]).unwrap();
        get(&device.knobs().calls)
    };
    for call in 1..=calls {
        let device = Arc::new(Simulated::default());
        device.knobs().fails_at.store(call, Ordering::SeqCst);
        device.knobs().for_good.store(true, Ordering::SeqCst);
        let lost = everything(&Gpu::new(Arc::clone(&device)), &mut vec![]).unwrap_err();
        assert!(matches!(lost, Error::Device { .. }) && lost.to_string().contains("lost"), "call {call}: {lost}");
        assert_eq!(left(&device.knobs()), (0, 0), "call {call}: buffers are left");
    }
}

#[test]
fn a_size_for_which_there_is_no_memory_is_refused_and_the_session_goes_on_with_others() {
    let device = Arc::new(Simulated::default());
    let mut session = compile(&leaky(), &Gpu::new(Arc::clone(&device))).unwrap().session();
    let bias = Tensor::zeros(DType::F32, &[2]).unwrap();
    session.upload("bias", &bias).unwrap();
    session.run(&[("x", &ones(&[2, 2]))]).unwrap();
    device.knobs().memory_bytes.store(100_000, Ordering::SeqCst);
    for _ in 0..2 {
        let refused = session.run(&[("x", &ones(&[20_000, 2]))]).unwrap_err();
        let said = refused.to_string();
        assert!(matches!(refused, Error::Device { .. }) && said.contains("100000"), "{said}");
        assert_eq!(numbers(session.state("h").unwrap()), [2.0, 2.0]);
    }
    assert_eq!(numbers(&session.run(&[("x", &ones(&[2, 2]))]).unwrap()[1]), [3.0, 3.0]);
}

/// A device whose buffers have at most 4096 bytes says so, and the session goes on with what fits.
fn refuses_a_buffer_that_is_too_large<D: Device>(device: D) {
    let mut session = compile(&leaky(), &Gpu::new(Arc::new(device))).unwrap().session();
    session.upload("bias", &Tensor::zeros(DType::F32, &[2]).unwrap()).unwrap();
    session.run(&[("x", &ones(&[2, 2]))]).unwrap();
    for _ in 0..2 {
        let refused = session.run(&[("x", &ones(&[2_000, 2]))]).unwrap_err();
        let said = refused.to_string();
        assert!(matches!(refused, Error::Device { .. }) && said.contains("at most 4096"), "{said}");
        assert_eq!(numbers(session.state("h").unwrap()), [2.0, 2.0]);
    }
    assert_eq!(numbers(&session.run(&[("x", &ones(&[2, 2]))]).unwrap()[1]), [3.0, 3.0]);
}

/// A device with little room for a workgroup says which kernel needs more, and goes on with those that do not.
fn refuses_a_kernel_over_the_limits<D: Device>(device: D) {
    let limits = device.limits().clone();
    let kernel = |threads: u32, words: u32, args: u32| {
        let mut maker = Maker::new("some", threads);
        let [arena, ..] = ["arena", "constants", "faults"].map(|name| maker.buffer(name, name != "constants"));
        (0..args).for_each(|i| drop(maker.arg(format!("a{i}"))));
        let room = maker.shared("room", Ty::U32, words);
        maker.store(room, maker.thread().rem(words), 7u32);
        maker.store(arena, maker.thread(), 7u32);
        Arc::new(maker.finish())
    };
    let most = (limits.threads, limits.shared_bytes / 4, limits.args);
    for (over, said) in [
        (kernel(most.0 + 1, 1, 1), format!("needs {} threads in a workgroup, and there are {}", most.0 + 1, most.0)),
        (kernel(1, most.1 + 1, 1), format!("needs {} bytes of workgroup memory, and there are", 4 * (most.1 + 1))),
        (kernel(1, 1, most.2 + 1), format!("needs {} arguments, and there are {}", most.2 + 1, most.2)),
    ] {
        for _ in 0..2 {
            let refused = device.compile(&over).map(drop).unwrap_err();
            assert!(refused.to_string().contains(&said), "{refused}");
        }
        device.compile(&kernel(1, 1, 1)).unwrap();
    }
}

/// A device on which no kernel has enough threads refuses every graph, as often as it is asked.
fn refuses_all_graphs<D: Device>(device: D) {
    let gpu = Gpu::new(Arc::new(device));
    for graph in [walk(), repeat()] {
        let mut session = compile(&graph, &gpu).unwrap().session();
        for _ in 0..2 {
            let refused = session.run(&[("x", &sequence(3, 2))]).unwrap_err();
            let said = refused.to_string();
            let words = "threads in a workgroup, and there are 16";
            assert!(matches!(refused, Error::Device { .. }) && said.contains(words), "{said}");
        }
    }
}

#[test]
fn what_is_over_the_limits_is_refused_with_words_and_the_rest_goes_on() {
    let small = |limits| Simulated::new(limits, true);
    refuses_a_buffer_that_is_too_large(small(Limits { buffer_bytes: 4096, ..Limits::default() }));
    refuses_a_kernel_over_the_limits(small(Limits::default()));
    refuses_all_graphs(small(Limits { threads: 16, ..Limits::default() }));
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod on_a_gpu {
    use super::*;
    use crate::opened::{Card, open};
    use losing::Losing;

    #[test]
    fn what_is_over_the_limits_is_refused_with_words_and_the_rest_goes_on() {
        if open().is_none() {
            return;
        }
        let within = |limits: Limits| Card::open(None).unwrap().within(&limits);
        refuses_a_buffer_that_is_too_large(within(Limits { buffer_bytes: 4096, ..Limits::default() }));
        refuses_a_kernel_over_the_limits(within(Limits::default()));
        refuses_all_graphs(within(Limits { threads: 16, ..Limits::default() }));
    }

    /// A driver on the processor takes its memory from the process, and a process can be allowed little: this test starts
    /// itself again, with less than it will ask for.
    #[cfg(target_os = "linux")]
    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
    fn a_gpu_whose_memory_is_used_up_says_so_and_the_session_goes_on_with_what_fits() {
        const AGAIN: &str = "SCHWANN_TEST_OF_LITTLE_MEMORY";
        let Some(name) = open().map(|device| device.name()) else { return };
        if !name.contains("llvmpipe") {
            return println!("skipped: {name} has memory of its own");
        }
        if std::env::var_os(AGAIN).is_none() {
            let test =
                "runtime::on_a_gpu::a_gpu_whose_memory_is_used_up_says_so_and_the_session_goes_on_with_what_fits";
            let mut little = std::process::Command::new("sh");
            little.args(["-c", "ulimit -v 4000000; exec \"$0\" --exact \"$1\""]).env(AGAIN, "1");
            let output = little.arg(std::env::current_exe().unwrap()).arg(test).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            return assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
        let device = Arc::new(Card::open(None).unwrap());
        let mut session = compile(&leaky(), &Gpu::new(Arc::clone(&device))).unwrap().session();
        session.upload("bias", &Tensor::zeros(DType::F32, &[2]).unwrap()).unwrap();
        let (few, many) = (ones(&[2, 2]), ones(&[4 << 20, 2]));
        session.run(&[("x", &few)]).unwrap();
        let mut taken = vec![];
        let full = loop {
            match device.buffer("a test", 16 << 20) {
                Ok(buffer) => taken.push(buffer),
                Err(full) => break full.to_string(),
            }
        };
        assert!(full.contains("no memory for a test of 16777216 bytes"), "{full}");
        for h in [2.0, 3.0] {
            let refused = session.run(&[("x", &many)]).unwrap_err();
            let said = refused.to_string();
            assert!(matches!(refused, Error::Device { .. }) && said.contains("no memory for"), "{said}");
            assert_eq!(numbers(session.state("h").unwrap()), [h; 2]);
            assert_eq!(numbers(&session.run(&[("x", &few)]).unwrap()[1]), [0.5 * h + 2.0; 2]);
        }
        drop(taken);
        session.run(&[("x", &many)]).unwrap();
    }

    #[test]
    fn a_gpu_that_is_lost_at_any_call_is_an_error_that_says_so_and_stays_one() {
        for share in [true, false] {
            let lost_at = |call| open().map(|_| Losing::new(Card::open_as(None, share).unwrap(), call));
            let Some(whole) = lost_at(0).map(Arc::new) else { return };
            everything(&Gpu::new(Arc::clone(&whole)), &mut vec![]).unwrap();
            assert!(whole.calls() > 50, "{} calls", whole.calls());
            for call in 1..=whole.calls() {
                let Some(device) = lost_at(call).map(Arc::new) else { return };
                // How often it is asked whether it has ended depends on how fast it is, so the last calls may not be made.
                let Err(lost) = everything(&Gpu::new(Arc::clone(&device)), &mut vec![]) else {
                    assert!(device.calls() < call, "call {call}: nobody noticed that the GPU was lost");
                    continue;
                };
                assert!(
                    matches!(lost, Error::Device { .. }) && lost.to_string().contains("lost"),
                    "call {call}: {lost}"
                );
            }
        }
    }
}

#[test]
fn states_that_the_caller_writes_each_time_take_no_new_memory() {
    let device = Arc::new(Simulated::default());
    let mut session = compile(&leaky(), &Gpu::new(Arc::clone(&device))).unwrap().session();
    let (x, bias) = (ones(&[1, 2]), Tensor::zeros(DType::F32, &[2]).unwrap());
    let mut step = |value: f32| {
        if value > 0.0 {
            session.state_mut("h").unwrap().values_mut::<f32>().unwrap().fill(value);
        }
        numbers(&session.run(&[("x", &x), ("bias", &bias)]).unwrap()[1])
    };
    (0..4).for_each(|i| drop(step(i as f32)));
    let before = get(&device.tally().buffers);
    for i in 1..10 {
        assert_eq!(step(i as f32), [0.5 * i as f32 + 1.0; 2]);
    }
    assert_eq!(get(&device.tally().buffers), before);
}
