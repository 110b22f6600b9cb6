//! Prices from times: the least squares that the cost model is fitted by, and how far to trust it.
//!
//! Prices are never negative, and a small ridge keeps those apart that the suite hardly tells apart. How well the suite
//! tells them apart is the condition number of the equations; how well prices give times that they were not fitted to
//! is found by holding back a part of the suite at a time.

use super::fit::{Counts, Prices, Unit, seconds};
use std::collections::BTreeSet;

/// The ridge, beside columns of length 1: far below the errors of measuring, and enough for a unique answer.
const RIDGE: f64 = 1e-6;
/// Parts of the suite that are held back in turn.
const PARTS: usize = 8;

/// Equations in the form that is solved: relative errors, columns of length 1, so that prices of unlike size move alike.
struct Normal {
    units: Vec<Unit>,
    norms: Vec<f64>,
    /// Aᵀ·A, with the ridge.
    gram: Vec<Vec<f64>>,
    /// Aᵀ·1: every relative time is 1.
    right: Vec<f64>,
}

impl Normal {
    fn of<'a>(equations: impl Iterator<Item = &'a (Counts, f64)> + Clone) -> Normal {
        let units: Vec<Unit> =
            equations.clone().flat_map(|(c, _)| c.keys().copied()).collect::<BTreeSet<_>>().into_iter().collect();
        let rows: Vec<Vec<f64>> = equations
            .map(|(counts, time)| units.iter().map(|u| counts.get(u).copied().unwrap_or(0.0) / time).collect())
            .collect();
        let dot = |a: usize, b: usize| rows.iter().map(|r: &Vec<f64>| r[a] * r[b]).sum::<f64>();
        let n = units.len();
        let norms: Vec<f64> = (0..n).map(|j| dot(j, j).sqrt().max(f64::MIN_POSITIVE)).collect();
        let mut gram = vec![vec![0.0; n]; n];
        for (i, row) in gram.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = dot(i, j) / norms[i] / norms[j] + if i == j { RIDGE } else { 0.0 };
            }
        }
        let right = (0..n).map(|j| rows.iter().map(|r| r[j]).sum::<f64>() / norms[j]).collect();
        Normal { units, norms, gram, right }
    }

    /// One price at a time, until nothing moves.
    fn solve(&self) -> Prices {
        let n = self.units.len();
        let mut x = vec![0.0f64; n];
        for _ in 0..50_000 {
            let mut moved = 0.0f64;
            for j in 0..n {
                let with: f64 = self.gram[j].iter().zip(&x).map(|(g, x)| g * x).sum();
                let next = (x[j] + (self.right[j] - with) / self.gram[j][j]).max(0.0);
                moved = moved.max((next - x[j]).abs());
                x[j] = next;
            }
            if moved < 1e-9 {
                break;
            }
        }
        self.units.iter().zip(x).zip(&self.norms).map(|((unit, x), norm)| (*unit, x / norm)).collect()
    }

    /// The greatest eigenvalue over the least, of the matrix without its ridge, square root taken: the condition number
    /// of the equations themselves.
    fn condition(&self) -> f64 {
        let values = eigenvalues(self.gram.clone());
        let (least, most) =
            values.iter().fold((f64::INFINITY, 0.0f64), |(l, m), v| (l.min((v - RIDGE).max(0.0)), m.max(*v)));
        if values.is_empty() { 1.0 } else { (most / least.max(f64::MIN_POSITIVE)).sqrt() }
    }
}

/// Eigenvalues of a symmetric matrix, by Jacobi's rotations.
fn eigenvalues(mut a: Vec<Vec<f64>>) -> Vec<f64> {
    let n = a.len();
    for _ in 0..50 {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j] * a[i][j]).sum();
        if off < 1e-22 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q].abs() < 1e-300 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let t = if theta == 0.0 { 1.0 } else { t };
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for row in &mut a {
                    let (x, y) = (row[p], row[q]);
                    (row[p], row[q]) = (c * x - s * y, s * x + c * y);
                }
                let (upper, lower) = a.split_at_mut(q);
                for (x, y) in upper[p].iter_mut().zip(&mut lower[0]) {
                    (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                }
            }
        }
    }
    (0..n).map(|i| a[i][i]).collect()
}

/// Prices, and how well they are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Of every unit that an equation has.
    pub prices: Prices,
    /// The condition number of the equations: errors of the times may show in single prices up to so many times as
    /// large. (In sums over graphs like the suite's they do not.)
    pub condition: f64,
    /// For each equation that could be held back: the logarithm of the time by prices that do not know it, over its own.
    pub held_back: Vec<f64>,
}

/// The prices, none negative, that explain the times best: least squares of the relative errors.
pub fn solve(equations: &[(Counts, f64)]) -> Solution {
    let all = Normal::of(equations.iter());
    let mut held_back = vec![];
    for part in 0..PARTS.min(equations.len()) {
        let within = |i: &usize| i % PARTS == part;
        let rest: Vec<(Counts, f64)> =
            equations.iter().enumerate().filter(|(i, _)| !within(i)).map(|(_, e)| e.clone()).collect();
        let prices = Normal::of(rest.iter()).solve();
        for (_, (counts, time)) in equations.iter().enumerate().filter(|(i, _)| within(i)) {
            // A unit that only this graph has is not known to the others.
            if let Ok(given) = seconds(counts, &prices)
                && given > 0.0
            {
                held_back.push((given / time).ln());
            }
        }
    }
    Solution { prices: all.solve(), condition: all.condition(), held_back }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equations(counts: &[[f64; 3]], prices: &Prices, noise: impl Fn(usize) -> f64) -> Vec<(Counts, f64)> {
        let units = [Unit::Run, Unit::MapCall, Unit::MapByte];
        let counts = counts.iter().map(|c| Counts::from_iter(units.into_iter().zip(*c)));
        counts.enumerate().map(|(i, c)| (c.clone(), seconds(&c, prices).unwrap() * noise(i))).collect()
    }

    fn made_up() -> Prices {
        Prices::from([(Unit::Run, 1e-7), (Unit::MapCall, 2e-8), (Unit::MapByte, 1e-11)])
    }

    #[test]
    fn prices_are_found_again_from_times_made_of_them() {
        let counts = [[1.0, 1.0, 64.0], [1.0, 5.0, 4096.0], [1.0, 2.0, 1e5], [1.0, 9.0, 10.0]];
        let found = solve(&equations(&counts, &made_up(), |_| 1.0));
        for (unit, price) in found.prices {
            assert!((price / made_up()[&unit] - 1.0).abs() < 1e-3, "{unit:?} {price}");
        }
        assert!(found.condition < 100.0, "{}", found.condition);
    }

    #[test]
    fn units_that_always_come_together_are_told_by_the_condition_and_still_sum_up() {
        // A call comes with exactly 100 bytes everywhere: nobody can say what costs what.
        let counts: Vec<[f64; 3]> = (1..20).map(|n| [1.0, f64::from(n), 100.0 * f64::from(n)]).collect();
        let all = equations(&counts, &made_up(), |i| 1.0 + 0.01 * ((i * 7 % 5) as f64 - 2.0));
        let found = solve(&all);
        assert!(found.condition > 1e6, "{}", found.condition);
        assert!(found.prices.values().all(|p| *p >= 0.0 && p.is_finite()));
        for (counts, time) in &all {
            assert!((seconds(counts, &found.prices).unwrap() / time - 1.0).abs() < 0.05);
        }
    }

    #[test]
    fn what_is_held_back_tells_the_error_of_what_was_never_seen() {
        let counts: Vec<[f64; 3]> =
            (0..40).map(|i| [1.0, f64::from(1 + i * 13 % 29), f64::from(64 + i * i * 977 % 90_000)]).collect();
        let exact = solve(&equations(&counts, &made_up(), |_| 1.0)).held_back;
        assert!(exact.len() == 40 && exact.iter().all(|e| e.abs() < 1e-2), "{exact:?}");
        let noisy = solve(&equations(&counts, &made_up(), |i| if i % 2 == 0 { 1.3 } else { 0.8 })).held_back;
        let mean = noisy.iter().map(|e| e.abs()).sum::<f64>() / 40.0;
        assert!((0.15..0.4).contains(&mean), "{mean}");
    }

    #[test]
    fn eigenvalues_of_a_known_matrix() {
        let mut found = eigenvalues(vec![vec![2.0, 1.0, 0.0], vec![1.0, 2.0, 0.0], vec![0.0, 0.0, 5.0]]);
        found.sort_by(f64::total_cmp);
        for (found, expected) in found.iter().zip([1.0, 3.0, 5.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }
}
