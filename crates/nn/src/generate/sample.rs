//! Picking the next symbol.

use crate::init::Random;
use crate::{Error, Result};

/// How the next symbol is picked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by before they become probabilities. 0 picks the likeliest symbol every time.
    pub temperature: f32,
    /// Only so many of the likeliest symbols are considered; 0 for all.
    pub top_k: usize,
    /// Of those, only the likeliest that together have at least this probability; 1 for all.
    pub top_p: f32,
    /// Where chance begins: the same seed picks the same symbols.
    pub seed: u64,
}

impl Default for Sampling {
    /// The likeliest symbol every time.
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Picks symbols.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    random: Random,
    /// Logits and their symbols; kept so that picking allocates nothing.
    order: Vec<(f32, i32)>,
}

impl Sampler {
    /// With these options.
    pub fn new(options: Sampling) -> Result<Sampler> {
        let Sampling { temperature, top_p, seed, .. } = options;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::argument("temperature", temperature, "0 or a finite number above"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::argument("top_p", top_p, "above 0, at most 1"));
        }
        Ok(Sampler { random: Random::new(seed, "sample"), options, order: vec![] })
    }

    /// The next symbol, given a logit for each. Where several are equally likely, those with smaller numbers come first.
    pub fn pick(&mut self, logits: &[f32]) -> Result<i32> {
        let Sampling { temperature, top_k, top_p, .. } = self.options;
        if let Some(at) = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            return Err(Error::argument(format!("logits[{at}]"), logits[at], "a number below infinity"));
        }
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if most == f32::NEG_INFINITY {
            return Err(Error::argument("logits", "without a symbol that may follow", "one at least"));
        }
        let likeliest = logits.iter().position(|x| *x == most).unwrap_or(0) as i32;
        if temperature == 0.0 || top_k == 1 {
            return Ok(likeliest);
        }
        let better = |a: &(f32, i32), b: &(f32, i32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        self.order.clear();
        self.order.extend(logits.iter().copied().zip(0..));
        if top_k > 0 && top_k < self.order.len() {
            self.order.select_nth_unstable_by(top_k - 1, better);
            self.order.truncate(top_k);
        }
        if top_p < 1.0 {
            self.order.sort_unstable_by(better);
        }
        let mut total = 0.0;
        let weight = |logit: f32| f64::from((logit - most) / temperature).exp();
        for (logit, _) in &self.order {
            total += weight(*logit);
        }
        if top_p < 1.0 {
            let (mut sum, wanted) = (0.0, total * f64::from(top_p));
            let enough = self.order.iter().position(|(logit, _)| {
                sum += weight(*logit);
                sum >= wanted
            });
            self.order.truncate(enough.map_or(self.order.len(), |at| at + 1));
            total = self.order.iter().map(|(logit, _)| weight(*logit)).sum();
        }
        let mut left = self.random.unit() * total;
        for &(logit, symbol) in &self.order {
            left -= weight(logit);
            if left < 0.0 {
                return Ok(symbol);
            }
        }
        // Rounding left a trace behind the last one.
        Ok(self.order.iter().rfind(|(logit, _)| weight(*logit) > 0.0).map_or(likeliest, |(_, symbol)| *symbol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(options: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(options).unwrap();
        let mut counts = vec![0; logits.len()];
        (0..20_000).for_each(|_| counts[sampler.pick(logits).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn symbols_are_as_frequent_as_they_are_likely() {
        let probabilities = [0.5f32, 0.25, 0.15, 0.1];
        let logits = probabilities.map(f32::ln);
        let near = |got: usize, want: f64| (got as f64 / 20_000.0 - want).abs() < 0.015;
        let plain = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        let got = counts(plain.clone(), &logits);
        assert!(got.iter().zip(probabilities).all(|(n, p)| near(*n, p.into())), "{got:?}");
        // Half the temperature squares the probabilities.
        let squares: Vec<f64> = probabilities.iter().map(|p| f64::from(p * p)).collect();
        let sum: f64 = squares.iter().sum();
        let got = counts(Sampling { temperature: 0.5, ..plain.clone() }, &logits);
        assert!(got.iter().zip(&squares).all(|(n, p)| near(*n, p / sum)), "{got:?}");
        let got = counts(Sampling { top_k: 2, ..plain.clone() }, &logits);
        assert!(near(got[0], 2.0 / 3.0) && near(got[1], 1.0 / 3.0) && got[2..] == [0, 0], "{got:?}");
        // 0.5 alone is less than 0.7, and 0.5 + 0.25 is enough.
        let got = counts(Sampling { top_p: 0.7, ..plain.clone() }, &logits);
        assert!(near(got[0], 2.0 / 3.0) && near(got[1], 1.0 / 3.0) && got[2..] == [0, 0], "{got:?}");
        let got = counts(Sampling { top_p: 1e-6, ..plain }, &logits);
        assert_eq!(got, [20_000, 0, 0, 0]);
    }

    #[test]
    fn the_order_of_logits_and_ties_do_not_matter() {
        let logits = [1.0f32, 3.0, 3.0, f32::NEG_INFINITY];
        assert_eq!(Sampler::new(Sampling::default()).unwrap().pick(&logits).unwrap(), 1);
        for top_p in [1.0, 0.5] {
            let got = counts(Sampling { temperature: 1.0, top_k: 1, top_p, seed: 1 }, &logits);
            assert_eq!(got, [0, 20_000, 0, 0]);
        }
        let got = counts(Sampling { temperature: 100.0, top_k: 0, top_p: 1.0, seed: 1 }, &logits);
        assert!(got[3] == 0 && got[..3].iter().all(|n| *n > 6000), "{got:?}");
    }

    #[test]
    fn the_same_seed_picks_the_same_and_another_does_not() {
        let run = |seed| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
            (0..50).map(|_| sampler.pick(&[0.0; 10]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (options, words) in [
            (Sampling { temperature: -1.0, ..Sampling::default() }, "`temperature` is -1"),
            (Sampling { temperature: f32::NAN, ..Sampling::default() }, "`temperature` is NaN"),
            (Sampling { top_p: 0.0, ..Sampling::default() }, "`top_p` is 0; expected above 0, at most 1"),
        ] {
            let error = Sampler::new(options).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        for (logits, words) in [
            (&[0.0, f32::NAN][..], "`logits[1]` is NaN"),
            (&[f32::INFINITY, 0.0], "`logits[0]` is inf"),
            (&[f32::NEG_INFINITY; 2], "without a symbol that may follow"),
            (&[], "without a symbol that may follow"),
        ] {
            let error = sampler.pick(logits).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
