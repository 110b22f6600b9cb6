//! Every reading of this machine, with where it comes from or why there is none:
//! `cargo run -p schwann-sensors --example readings`; with `--json`, two samples as a recording.
#![expect(clippy::print_stdout, reason = "it is a program")]

use schwann_sensors::{Recorder, System};
use std::time::Duration;

fn main() -> Result<(), schwann_sensors::Error> {
    let mut system = System::with_counters();
    let first = system.sample();
    std::thread::sleep(Duration::from_millis(300));
    let second = system.sample();
    if std::env::args().any(|a| a == "--json") {
        let mut recorder = Recorder::new(std::io::stdout().lock(), "this machine")?;
        return [first, second].iter().try_for_each(|s| recorder.record(s));
    }
    for (name, figure) in &second.readings {
        match figure.value {
            Some(value) => println!("{name:32} {value:>18.6} {:8} {}", figure.unit, figure.source),
            None => println!("{name:32} {:>18} {:8} {}", "-", figure.unit, figure.reason.as_deref().unwrap_or("?")),
        }
    }
    Ok(())
}
