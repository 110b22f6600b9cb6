//! What a session promises holds on every backend: on the CPU, on the reference, and on one that is nothing like them.

#[path = "promises/mod.rs"]
mod promises;

use crate::strange::{self, Strange};
use promises::{at, compile, every_case_agrees, leaky, numbers, row};
use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::backend::{Backend, Choice};
use schwann_core::cases::{Tolerance, compare};
use schwann_core::{CompileOptions, Error, Program, Session};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LOOPS_ARE_ONE_KERNEL: bool = false;

fn backends() -> Vec<Box<dyn Backend>> {
    let cpu = |threads| Box::new(Cpu::new(threads).unwrap());
    vec![cpu(1), cpu(2), Box::new(Reference), Box::new(Strange::new().unwrap())]
}

// What only a device of its own can show

#[test]
fn work_in_flight_is_cancelled_where_it_is() {
    let strange = Strange::new().unwrap();
    let mut session = compile(&leaky().unwrap(), &strange).session();
    let (x, one) = (row(&[1.0, 1.0]), at(1));
    session.run(&[("x", &x), ("at", &one)]).unwrap();
    strange.knobs().delay_us.store(60_000_000, Ordering::SeqCst);
    let start = Instant::now();
    session.submit(&[("x", &x), ("at", &one)]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "it is done elsewhere");
    let canceller = session.canceller();
    let stop = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        canceller.cancel();
    });
    assert!(matches!(session.wait(), Err(Error::Cancelled)));
    assert!(start.elapsed() < Duration::from_secs(40), "it was stopped in its middle");
    stop.join().unwrap();
    strange.knobs().delay_us.store(0, Ordering::SeqCst);
    assert_eq!(numbers(&session.run(&[("x", &x), ("at", &one)]).unwrap()[1]), [2.0; 2], "the state is as it was");
}

#[test]
fn a_device_that_loses_a_run_or_a_result_is_an_error_and_the_session_goes_on() {
    let strange = Strange::new().unwrap();
    let knobs = strange.knobs();
    let mut session = compile(&leaky().unwrap(), &strange).session();
    let (x, one) = (row(&[1.0, 1.0]), at(1));
    session.run(&[("x", &x), ("at", &one)]).unwrap();
    for _ in 0..2 {
        knobs.failures.store(1, Ordering::SeqCst);
        session.submit(&[("x", &x), ("at", &one)]).unwrap();
        let said = session.wait().unwrap_err().to_string();
        assert!(said.contains("strange") && said.contains("lost a run"), "{said}");
        assert!(session.outputs().is_err() && session.output("y").is_err());
        assert_eq!(numbers(session.state("h").unwrap()), [1.0; 2]);
    }
    knobs.failures.store(1, Ordering::SeqCst);
    assert!(matches!(session.run(&[("x", &x), ("at", &one)]), Err(Error::Device { .. })));
    // The run goes well; what is lost is the way back, which can be tried again.
    session.submit(&[("x", &x), ("at", &one)]).unwrap();
    session.wait().unwrap();
    knobs.lost_gets.store(2, Ordering::SeqCst);
    assert!(matches!(session.output("hn"), Err(Error::Device { .. })));
    assert!(session.state("h").is_none() && session.read_state("h").is_ok_and(|h| h.is_some()));
    assert_eq!(numbers(session.output("hn").unwrap()), [2.0; 2]);
    assert_eq!(numbers(&session.run(&[("x", &x), ("at", &one)]).unwrap()[1]), [3.0; 2]);
}

#[test]
fn states_and_uploads_stay_on_the_device_and_nothing_is_left_there() {
    let strange = Strange::new().unwrap();
    let knobs = strange.knobs();
    let program = compile(&leaky().unwrap(), &strange);
    let mut session = program.session();
    session.upload("at", &at(1)).unwrap();
    let x = row(&[1.0, 1.0]);
    let step = |session: &mut Session| {
        session.submit(&[("x", &x)]).unwrap();
        session.wait().unwrap();
    };
    step(&mut session);
    let moved = || (knobs.puts.load(Ordering::SeqCst), knobs.gets.load(Ordering::SeqCst));
    let (puts, gets) = moved();
    for _ in 0..5 {
        step(&mut session);
    }
    assert_eq!(moved(), (puts + 5, gets), "five samples there, and nothing back");
    let buffers = knobs.buffers.load(Ordering::SeqCst);
    step(&mut session);
    // Asked for one result, it moves one; asked again, none.
    for _ in 0..2 {
        assert_eq!(numbers(session.output("hn").unwrap()), [7.0; 2]);
        assert_eq!(numbers(session.state("h").unwrap()), [7.0; 2]);
    }
    assert_eq!(moved(), (puts + 6, gets + 2));
    assert!(knobs.buffers.load(Ordering::SeqCst) <= buffers, "buffers of former runs are freed");
    drop(session);
    let mut other = program.session();
    other.run(&[("x", &x), ("at", &at(1))]).unwrap();
    drop(other);
    drop(program);
    let left = |knobs: &strange::Knobs| knobs.buffers.load(Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(20);
    while left(&knobs) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(left(&knobs), 0, "buffers are left on the device");
}

#[test]
fn every_case_agrees_with_the_reference_on_a_backend_nothing_like_the_cpu() {
    every_case_agrees(&Strange::new().unwrap());
}

// Names

#[test]
fn a_program_is_compiled_for_the_backend_that_its_options_name() {
    Strange::register().unwrap();
    for (name, backend) in [("reference", "reference"), ("strange", "strange"), ("strange:blue", "strange")] {
        let options = CompileOptions::default().backend(name.parse().unwrap());
        let program = Program::compile(&leaky().unwrap(), &options).unwrap();
        assert_eq!(program.backend(), backend);
        let mut session = program.session();
        let got = session.run(&[("x", &row(&[1.0, 2.0])), ("at", &at(1))]).unwrap();
        compare(&row(&[2.0, 4.0]), &got[0], Tolerance::EXACT).unwrap();
    }
    assert!(Program::compile(&leaky().unwrap(), &CompileOptions::default()).unwrap().backend().starts_with("cpu"));
    let said = "strange:green".parse::<Choice>().unwrap_err().to_string();
    assert!(said.contains("`red`, `blue`"), "{said}");
}
