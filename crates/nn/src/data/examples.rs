//! Data for examples, made here: a wave, and a cart with a pole that an expert balances.

use super::Sequences;
use crate::init::Random;
use crate::{Error, Result};
use schwann_core::Tensor;

/// The names of the examples.
pub const NAMES: [&str; 2] = ["sine", "cart-pole"];

/// The data of an example.
pub fn data(name: &str, seed: u64) -> Result<Sequences> {
    match name {
        "sine" => sine(),
        "cart-pole" => cart_pole(seed),
        _ => Err(Error::argument("example", name, format!("one of {}", NAMES.join(", ")))),
    }
}

/// ncps' first example: two waves in, and one of twice their frequency wanted; one sequence of 48 steps.
pub fn sine() -> Result<Sequences> {
    const N: usize = 48;
    let wave = |i: usize, turns: f64, quarter: f64| {
        let at = turns * std::f64::consts::PI * i as f64 / (N - 1) as f64;
        (at + quarter).sin() as f32
    };
    let x: Vec<f32> = (0..N).flat_map(|i| [wave(i, 3.0, 0.0), wave(i, 3.0, std::f64::consts::FRAC_PI_2)]).collect();
    let y: Vec<f32> = (0..N).map(|i| wave(i, 6.0, 0.0)).collect();
    Sequences::new(Tensor::new(&[1, N, 2], &x)?, Tensor::new(&[1, N, 1], &y)?)
}

/// Sequences of the cart and pole, and their steps.
const RUNS: usize = 256;
const STEPS: usize = 64;

/// A cart on a track balances a pole, and an expert pushes it. The expert sees the whole state: where cart and pole are,
/// and how fast they move. What the network sees are the two places alone, at irregular times; from these it is to say
/// how hard the expert pushes. Speeds have to be found from how places change, and from how long that took.
///
/// The equations are those of Barto, Sutton and Anderson's cart and pole, solved by Runge and Kutta's method of fourth
/// order in steps of 5 ms; the expert is a linear feedback that holds the pole upright and the cart in the middle. Gusts
/// push the pole at random. Samples are 10 to 90 ms apart. Times are in units of 50 ms, places in units of about their
/// spread, and the push in units of 10 N.
pub fn cart_pole(seed: u64) -> Result<Sequences> {
    let mut random = Random::new(seed, "cart-pole");
    let (mut x, mut target, mut spans) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let mut state: [f64; 4] = [
            f64::from(random.uniform(-1.0, 1.0)),
            f64::from(random.uniform(-0.5, 0.5)),
            f64::from(random.uniform(-0.2, 0.2)),
            f64::from(random.uniform(-0.5, 0.5)),
        ];
        for _ in 0..STEPS {
            let gaps = 2 + (random.unit() * 17.0) as usize;
            // One gust for each gap, of a random strength.
            let gust = 0.6 * random.normal();
            for _ in 0..gaps {
                state = runge_kutta(state, push(state), gust, 0.005);
            }
            spans.push((gaps as f64 * 0.005 / 0.05) as f32);
            x.extend([(state[0] / 0.6) as f32, (state[2] / 0.12) as f32]);
            target.push((push(state) / 10.0) as f32);
        }
    }
    let data = Sequences::new(Tensor::new(&[RUNS, STEPS, 2], &x)?, Tensor::new(&[RUNS, STEPS, 1], &target)?)?;
    data.timespans(Tensor::new(&[RUNS, STEPS], &spans)?)
}

/// The expert: how hard to push, in newtons.
fn push([x, v, angle, turn]: [f64; 4]) -> f64 {
    (2.0 * x + 4.0 * v + 60.0 * angle + 12.0 * turn).clamp(-20.0, 20.0)
}

/// How the state changes: a cart of 1 kg, a pole of 0.1 kg whose middle is 0.5 m away.
fn change([_, v, angle, turn]: [f64; 4], force: f64, gust: f64) -> [f64; 4] {
    let (cart, pole, half, gravity) = (1.0, 0.1, 0.5, 9.8);
    let (sin, cos) = angle.sin_cos();
    let total = cart + pole;
    let pushed = (force + pole * half * turn * turn * sin) / total;
    let turning = (gravity * sin - cos * pushed) / (half * (4.0 / 3.0 - pole * cos * cos / total)) + gust;
    [v, pushed - pole * half * turning * cos / total, turn, turning]
}

fn runge_kutta(state: [f64; 4], force: f64, gust: f64, dt: f64) -> [f64; 4] {
    let moved = |by: &[f64; 4], part: f64| std::array::from_fn(|i| state[i] + part * by[i]);
    let a = change(state, force, gust);
    let b = change(moved(&a, dt / 2.0), force, gust);
    let c = change(moved(&b, dt / 2.0), force, gust);
    let d = change(moved(&c, dt), force, gust);
    std::array::from_fn(|i| state[i] + dt / 6.0 * (a[i] + 2.0 * b[i] + 2.0 * c[i] + d[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expert_holds_the_pole_upright() {
        let mut state = [0.8, 0.0, 0.15, 0.0];
        for _ in 0..4000 {
            state = runge_kutta(state, push(state), 0.0, 0.005);
        }
        assert!(state.iter().all(|v| v.abs() < 1e-3), "{state:?}");
    }

    #[test]
    fn a_pole_that_nobody_pushes_falls_and_energy_stays() {
        // Without a push and with the cart free, the whole's energy is that of the start.
        let energy = |[_, v, angle, turn]: [f64; 4]| {
            let tip = v + 0.5 * turn * angle.cos();
            let down = 0.5 * turn * angle.sin();
            0.5 * v * v
                + 0.05 * (tip * tip + down * down)
                + 0.5 * (0.1 / 12.0) * turn * turn
                + 0.1 * 9.8 * 0.5 * angle.cos()
        };
        let mut state = [0.0, 0.0, 0.05, 0.0];
        let before = energy(state);
        for _ in 0..400 {
            state = runge_kutta(state, 0.0, 0.0, 0.005);
        }
        assert!(state[2].abs() > 0.5, "{state:?}");
        assert!((energy(state) - before).abs() < 1e-6, "{} {before}", energy(state));
    }

    #[test]
    fn the_same_seed_gives_the_same_data_and_all_of_it_is_in_range() {
        let (a, b) = (cart_pole(1).unwrap(), cart_pole(1).unwrap());
        let mut values = vec![0.0; a.x.len() * 2];
        assert_eq!(a.x.read(0..a.x.len(), &mut values), None);
        let mut again = values.clone();
        b.x.read(0..b.x.len(), &mut again);
        assert_eq!(values, again);
        assert!(values.iter().all(|v| v.abs() < 30.0));
    }
}
