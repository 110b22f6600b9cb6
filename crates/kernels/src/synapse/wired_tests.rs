//! Synapses whose numbers come with the call, against plain loops in `f64`, on every path.

use super::{Activation, Finish, Grid, Of, Wiring};
use crate::simd::Isa;
use crate::team::Team;
use crate::tuning::{finest, on};

const ALL: [Activation; 3] = [Activation::Identity, Activation::Sigmoid, Activation::Tanh];

fn spread(seed: usize, n: usize, low: f32, high: f32) -> Vec<f32> {
    let of = |i: usize| ((i + seed).wrapping_mul(2_654_435_761) >> 7) % 10_007;
    (0..n).map(|i| low + (high - low) * of(i) as f32 / 10_007.0).collect()
}

fn picked(seed: usize, count: usize, end: usize) -> Vec<i32> {
    spread(seed, count, 0.0, end as f32).into_iter().map(|f| (f as usize).min(end - 1) as i32).collect()
}

/// A call's values, batch-first.
struct Example {
    units: usize,
    rows: usize,
    src: Vec<i32>,
    dest: Vec<i32>,
    numbers: [Vec<f32>; 4],
    x: Vec<f32>,
    terms: [Vec<f32>; 3],
    gradient: [Vec<f32>; 2],
}

/// Gradients in `f64`: of x, of the lists, of terms.
type Gradients = (Vec<f64>, [Vec<f64>; 4], [Vec<f64>; 3]);

impl Example {
    fn new(units: usize, rows: usize, count: usize) -> Example {
        let range = [(-3.0, 3.0), (-2.0, 2.0), (0.0, 1.0), (-1.0, 1.0)];
        let each = |seed: usize, low: f32, high: f32| spread(seed, rows * units, low, high);
        Example {
            units,
            rows,
            src: picked(1, count, units),
            dest: picked(77, count, units),
            numbers: [0, 1, 2, 3].map(|i| spread(1000 * i, count, range[i].0, range[i].1)),
            x: each(9, -2.0, 2.0),
            terms: [each(10, 0.5, 1.0), each(11, -1.0, 1.0), each(12, 3.0 + count as f32, 4.0 + count as f32)],
            gradient: [each(13, -1.0, 1.0), each(14, -1.0, 1.0)],
        }
    }

    fn of(&self, i: usize, e: usize) -> f64 {
        f64::from(self.numbers[i][e])
    }

    /// A synapse's activation for a row of values, and its slope.
    fn activation(&self, activation: Activation, e: usize, x: f64) -> (f64, f64) {
        let y = self.of(0, e) * x + self.of(1, e);
        match activation {
            Activation::Identity => (y, 1.0),
            Activation::Sigmoid => {
                let a = 1.0 / (1.0 + (-y).exp());
                (a, a * (1.0 - a))
            }
            Activation::Tanh => (y.tanh(), 1.0 - y.tanh() * y.tanh()),
        }
    }

    fn sums(&self, activation: Activation, x: &[f64]) -> [Vec<f64>; 2] {
        [2, 3].map(|k| {
            let mut sums = vec![0.0; x.len()];
            for row in 0..self.rows {
                for e in 0..self.src.len() {
                    let (a, _) = self.activation(activation, e, x[row * self.units + self.src[e] as usize]);
                    sums[row * self.units + self.dest[e] as usize] += self.of(k, e) * a;
                }
            }
            sums
        })
    }

    fn ratio(&self, activation: Activation, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let sums = self.sums(activation, x);
        let term = |k: usize, i: usize| f64::from(self.terms[k][i]);
        let below: Vec<f64> = (0..x.len()).map(|i| term(2, i) + sums[0][i]).collect();
        ((0..x.len()).map(|i| (term(0, i) * x[i] + term(1, i) + sums[1][i]) / below[i]).collect(), below)
    }

    /// Adds what gradients of sums become.
    fn back(&self, activation: Activation, x: &[f64], h: [&[f64]; 2], dx: &mut [f64], lists: &mut [Vec<f64>; 4]) {
        for row in 0..self.rows {
            for e in 0..self.src.len() {
                let (i, d) = (row * self.units + self.src[e] as usize, row * self.units + self.dest[e] as usize);
                let (a, slope) = self.activation(activation, e, x[i]);
                let b = slope * (self.of(2, e) * h[0][d] + self.of(3, e) * h[1][d]);
                dx[i] += b * self.of(0, e);
                for (list, part) in lists.iter_mut().zip([b * x[i], b, a * h[0][d], a * h[1][d]]) {
                    list[e] += part;
                }
            }
        }
    }

    fn gradients(&self, activation: Activation, times: usize) -> Gradients {
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|x| f64::from(*x)).collect() };
        let n = self.x.len();
        let mut lists = [(); 4].map(|()| vec![0.0; self.src.len()]);
        let mut terms = [(); 3].map(|()| vec![0.0; n]);
        if times == 0 {
            let mut dx = vec![0.0; n];
            let [g, h] = [wide(&self.gradient[0]), wide(&self.gradient[1])];
            self.back(activation, &wide(&self.x), [&g, &h], &mut dx, &mut lists);
            return (dx, lists, terms);
        }
        let mut values = vec![wide(&self.x)];
        let mut belows = vec![];
        for _ in 0..times {
            let (next, below) = self.ratio(activation, values.last().unwrap());
            values.push(next);
            belows.push(below);
        }
        let mut g = wide(&self.gradient[0]);
        for time in (0..times).rev() {
            let above: Vec<f64> = (0..n).map(|i| g[i] / belows[time][i]).collect();
            let under: Vec<f64> = (0..n).map(|i| -above[i] * values[time + 1][i]).collect();
            for i in 0..n {
                terms[0][i] += above[i] * values[time][i];
                terms[1][i] += above[i];
                terms[2][i] += under[i];
                g[i] = above[i] * f64::from(self.terms[0][i]);
            }
            self.back(activation, &values[time], [&under, &above], &mut g, &mut lists);
        }
        (g, lists, terms)
    }

    fn laid(&self, x: &[f32], batch_last: bool) -> Vec<f32> {
        if batch_last { transposed(x, self.rows, self.units) } else { x.to_vec() }
    }

    fn back_to_rows(&self, x: &[f32], batch_last: bool) -> Vec<f32> {
        if batch_last { transposed(x, self.units, self.rows) } else { x.to_vec() }
    }
}

fn transposed(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*g) - w).abs();
        assert!(off <= tolerance * (1.0 + w.abs()), "{what}: element {i} is {g}, want {w}");
    }
}

#[test]
fn sums_and_gradients_are_the_definition_on_every_instruction_set() {
    let team = Team::new(2).unwrap();
    for (units, count) in [(1, 1), (5, 17), (64, 424), (33, 0)] {
        for rows in [1, 3, 4, 16, 17, 32, 50] {
            let example = Example::new(units, rows, count);
            for &isa in Isa::available() {
                for activation in ALL {
                    for (sums, times) in [(1, 0), (2, 0), (2, 1), (2, 3)] {
                        for batch_last in [true, false] {
                            one(&team, &example, isa, activation, sums, times, batch_last);
                        }
                    }
                }
            }
        }
    }
}

fn one(team: &Team, example: &Example, isa: Isa, activation: Activation, sums: usize, times: usize, batch_last: bool) {
    let Example { units, ref src, ref dest, .. } = *example;
    // With activations that are kept, and computed again.
    for machine in [on(isa), finest(isa)] {
        let wiring = Wiring::new(machine, activation, units, units, src, dest, sums).unwrap();
        check(team, example, &wiring, activation, sums, times, batch_last);
    }
}

fn check(
    team: &Team,
    example: &Example,
    wiring: &Wiring,
    activation: Activation,
    sums: usize,
    times: usize,
    batch_last: bool,
) {
    let Example { units, rows, ref src, ref numbers, .. } = *example;
    let what = format!("{wiring:?}, {rows} rows, {times} times, batch last: {batch_last}");
    let lists = numbers.each_ref().map(|list| list.as_ptr());
    let laid = |x: &[f32]| example.laid(x, batch_last);
    let x = laid(&example.x);
    let terms = example.terms.each_ref().map(|term| laid(term));
    let grid = |at: &[f32]| Wiring::dense(at.as_ptr(), batch_last, rows, units);
    let grids: [Grid; 3] = terms.each_ref().map(|term| grid(term));
    let gradient = example.gradient.each_ref().map(|g| laid(g));
    let n = rows * units;

    let mut outs = [vec![7.5f32; n + 16], vec![7.5f32; n + 16]];
    let [a, b] = outs.each_mut().map(|out| out.as_mut_ptr());
    let finish = match times {
        0 => Finish::From { starts: [grids[0], grids[1]], outs: [a, b] },
        _ => Finish::Ratio { out: a, terms: grids, times },
    };
    let mut scratch = vec![[f32::NAN; 16]; 2 * wiring.scratch_bytes().unwrap().div_ceil(64)];
    // SAFETY: the buffers have the sizes of the example.
    unsafe { wiring.run(team, rows, batch_last, lists, x.as_ptr(), &finish, scratch.as_mut_ptr().cast()) };
    let wide: Vec<f64> = example.x.iter().map(|x| f64::from(*x)).collect();
    let got = |out: &[f32]| example.back_to_rows(&out[..n], batch_last);
    if times == 0 {
        let want = example.sums(activation, &wide);
        for k in 0..sums {
            let want: Vec<f64> = want[k].iter().zip(&example.terms[k]).map(|(s, t)| s + f64::from(*t)).collect();
            close(&format!("{what}: sum {k}"), &got(&outs[k]), &want, 2e-5);
        }
    } else {
        let mut want = wide;
        for _ in 0..times {
            want = example.ratio(activation, &want).0;
        }
        close(&format!("{what}: ratio"), &got(&outs[0]), &want, 2e-5);
    }
    assert!(outs.iter().all(|out| out[n..].iter().all(|v| *v == 7.5)), "{what}: written beyond the end");

    let mut room = vec![[f32::NAN; 16]; wiring.gradient_scratch_bytes(times).unwrap().div_ceil(64)];
    let mut dx = vec![7.5f32; n + 16];
    let mut term_gradients = [(); 3].map(|()| vec![7.5f32; n + 16]);
    let mut list_gradients = [(); 4].map(|()| vec![7.5f32; src.len() + 16]);
    let of = match times {
        0 => Of::Sums(gradient.each_ref().map(|g| g.as_ptr())),
        _ => Of::Ratio {
            gradient: gradient[0].as_ptr(),
            terms: grids,
            to: term_gradients.each_mut().map(|to| to.as_mut_ptr()),
            times,
        },
    };
    let to = list_gradients.each_mut().map(|list| list.as_mut_ptr());
    // SAFETY: likewise.
    unsafe {
        let room = room.as_mut_ptr().cast();
        wiring.gradient(rows, batch_last, lists, x.as_ptr(), &of, dx.as_mut_ptr(), to, room);
    }
    let mut silent = Example { gradient: example.gradient.clone(), ..Example::new(units, rows, src.len()) };
    if sums == 1 {
        silent.gradient[1].fill(0.0);
    }
    let (want_x, want_lists, want_terms) = silent.gradients(activation, times);
    let tolerance = 4e-5 * (rows as f64).sqrt();
    close(&format!("{what}: dx"), &got(&dx), &want_x, tolerance);
    for k in 0..2 + sums {
        close(&format!("{what}: list {k}"), &list_gradients[k][..src.len()], &want_lists[k], tolerance);
    }
    for k in (0..3).filter(|_| times > 0) {
        close(&format!("{what}: term {k}"), &got(&term_gradients[k]), &want_terms[k], tolerance);
    }
    let ends = list_gradients.iter().map(|list| &list[src.len()..]).chain(term_gradients.iter().map(|t| &t[n..]));
    assert!(ends.chain([&dx[n..]]).all(|end| end.iter().all(|v| *v == 7.5)), "{what}: written beyond the end");
}
