//! A circuit built by hand: two whiskers steer a small robot away from what they touch.
//!
//! Each whisker excites a neuron on its side, which makes the robot turn to the other side. The two sides inhibit each
//! other, so that one of them wins when both whiskers touch something. A clock neuron keeps both motors running.
//!
//! `cargo run --release -p schwann --example hand_built_circuit`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use schwann::nn::wiring::Wiring;

// Outputs come first.
const LEFT_MOTOR: usize = 0;
const RIGHT_MOTOR: usize = 1;
const LEFT_TURN: usize = 2;
const RIGHT_TURN: usize = 3;
const CLOCK: usize = 4;
const LEFT_TOUCH: usize = 5;
const RIGHT_TOUCH: usize = 6;
// Inputs.
const LEFT_WHISKER: usize = 0;
const RIGHT_WHISKER: usize = 1;

const EXCITES: i8 = 1;
const INHIBITS: i8 = -1;

fn circuit() -> schwann::nn::Result<Wiring> {
    let mut wiring = Wiring::new(7, 2)?;
    wiring.set_layers(vec![
        vec![LEFT_TOUCH, RIGHT_TOUCH],
        vec![LEFT_TURN, CLOCK, RIGHT_TURN],
        vec![LEFT_MOTOR, RIGHT_MOTOR],
    ])?;
    wiring.build(2)?;
    wiring.add_sensory_synapse(LEFT_WHISKER, LEFT_TOUCH, EXCITES)?;
    wiring.add_sensory_synapse(RIGHT_WHISKER, RIGHT_TOUCH, EXCITES)?;
    for (src, dest, polarity) in [
        (LEFT_TOUCH, RIGHT_TURN, EXCITES),
        (RIGHT_TOUCH, LEFT_TURN, EXCITES),
        // The two sides inhibit each other.
        (LEFT_TURN, RIGHT_TURN, INHIBITS),
        (RIGHT_TURN, LEFT_TURN, INHIBITS),
        // It turns right when the left wheel turns faster.
        (RIGHT_TURN, LEFT_MOTOR, EXCITES),
        (RIGHT_TURN, RIGHT_MOTOR, INHIBITS),
        (LEFT_TURN, RIGHT_MOTOR, EXCITES),
        (LEFT_TURN, LEFT_MOTOR, INHIBITS),
        (CLOCK, CLOCK, EXCITES),
        (CLOCK, LEFT_MOTOR, EXCITES),
        (CLOCK, RIGHT_MOTOR, EXCITES),
    ] {
        wiring.add_synapse(src, dest, polarity)?;
    }
    Ok(wiring)
}

fn main() -> schwann::nn::Result<()> {
    let wiring = circuit()?;
    println!("{}", wiring.to_text(80, false));

    // Mistakes in a circuit built by hand would show here.
    let stats = wiring.stats();
    println!("{stats}");
    assert!(stats.inputs_of_output.iter().all(|inputs| inputs == &[LEFT_WHISKER, RIGHT_WHISKER]));
    assert!(stats.dangling.is_empty() && stats.unused_inputs.is_empty());
    assert_eq!(stats.cycles().collect::<Vec<_>>(), [[LEFT_TURN, RIGHT_TURN]]);
    // No input reaches the clock, and that is intended.
    assert_eq!(stats.unreached, [CLOCK]);

    // A mistake is refused, and the error says what was wrong.
    let mut wrong = wiring.clone();
    if let Err(error) = wrong.add_synapse(LEFT_TURN, 7, EXCITES) {
        println!("refused: {error}");
    }

    // One file holds everything; `schwann wiring show` shows it.
    let json = wiring.to_json();
    assert_eq!(Wiring::from_json(&json)?, wiring);
    println!("{} bytes of JSON, {} bytes of SVG", json.len(), wiring.to_svg(Some("Two whiskers"))?.len());
    Ok(())
}
