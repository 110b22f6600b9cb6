//! What parameters start as: the distributions of ncps, drawn from a small generator of our own.
//!
//! Each parameter has a stream of its own, seeded by the model's seed and the parameter's name. So the same seed always
//! gives the same model, and a layer that is added leaves the others' values as they were.

/// A parameter: its name in the state dict, its sizes, and what it starts as.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name, as ncps' PyTorch state dict has it.
    pub name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<usize>,
    /// What it starts as.
    pub init: Init,
}

impl Param {
    pub(crate) fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Param {
        Param { name: name.into(), shape: shape.to_vec(), init }
    }

    /// How many numbers it has.
    pub fn count(&self) -> usize {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }
}

/// What a parameter starts as.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// The same number everywhere.
    Constant(f32),
    /// Evenly drawn from `low` to `high`.
    Uniform {
        /// The least.
        low: f32,
        /// The bound above.
        high: f32,
    },
    /// Drawn from the normal distribution with mean 0 and variance 1.
    Normal,
    /// Xavier's: evenly from ±√(6 / (inputs + outputs)) of a matrix [outputs, inputs].
    Xavier,
    /// A random matrix with orthonormal columns (rows, where it is wider than high).
    Orthogonal,
    /// Given numbers, such as a wiring's polarities.
    Values(Vec<f32>),
}

impl Init {
    /// PyTorch's start of a linear layer with so many inputs: evenly from ±1/√inputs.
    pub(crate) fn linear(inputs: usize) -> Init {
        let bound = 1.0 / (inputs.max(1) as f32).sqrt();
        Init::Uniform { low: -bound, high: bound }
    }

    /// The numbers of a parameter of this shape.
    pub(crate) fn draw(&self, shape: &[usize], random: &mut Random) -> Vec<f32> {
        let count = shape.iter().product();
        match self {
            Init::Constant(value) => vec![*value; count],
            Init::Uniform { low, high } => (0..count).map(|_| random.uniform(*low, *high)).collect(),
            Init::Normal => (0..count).map(|_| random.normal() as f32).collect(),
            Init::Xavier => {
                let fans = shape.iter().sum::<usize>().max(1);
                let bound = (6.0 / fans as f32).sqrt();
                (0..count).map(|_| random.uniform(-bound, bound)).collect()
            }
            Init::Orthogonal => {
                let (rows, columns) = (shape[0], shape[1]);
                let tall = orthonormal(rows.max(columns), rows.min(columns), random);
                let at = |r: usize, c: usize| if rows >= columns { tall[c][r] } else { tall[r][c] };
                (0..count).map(|i| at(i / columns, i % columns) as f32).collect()
            }
            Init::Values(values) => values.clone(),
        }
    }
}

/// `count` vectors of unit length, each at right angles to the others: Gram and Schmidt's method on normal numbers.
fn orthonormal(length: usize, count: usize, random: &mut Random) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut found: Vec<Vec<f64>> = Vec::with_capacity(count);
    while found.len() < count {
        let mut v: Vec<f64> = (0..length).map(|_| random.normal()).collect();
        // Twice: what rounding left the first time is gone after the second.
        for u in found.iter().chain(&found) {
            let along = dot(&v, u);
            v.iter_mut().zip(u).for_each(|(v, u)| *v -= along * u);
        }
        let norm = dot(&v, &v).sqrt();
        if norm > 1e-6 {
            found.push(v.into_iter().map(|x| x / norm).collect());
        }
    }
    found
}

/// A stream of random numbers: xoshiro256++, seeded by splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random([u64; 4]);

impl Random {
    /// The stream of this seed and name.
    pub(crate) fn new(seed: u64, name: &str) -> Random {
        // FNV-1a tells names apart; splitmix64 spreads the result over the state.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let mut at = seed ^ hash;
        Random(std::array::from_fn(|_| {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Evenly from 0 to less than 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Brings a list into a random order: Fisher and Yates' method.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            // The product's upper half is even to within 2⁻⁶⁴ of the list's length.
            let at = (u128::from(self.next()) * (i as u128 + 1)) >> 64;
            list.swap(i, at as usize);
        }
    }

    pub(crate) fn uniform(&mut self, low: f32, high: f32) -> f32 {
        let value = f64::from(low) + self.unit() * (f64::from(high) - f64::from(low));
        // Rounding may reach the bound itself, which is as good as the number below it.
        (value as f32).clamp(low, high)
    }

    /// Box and Muller's method; the second number of each pair is left.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_numbers_of_its_definition() {
        // xoshiro256++ from the state 1, 2, 3, 4, as its authors' program prints them.
        let mut random = Random([1, 2, 3, 4]);
        let got: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(got, [41_943_041, 58_720_359, 3_588_806_011_781_223]);
    }

    #[test]
    fn names_and_seeds_tell_streams_apart() {
        let first = |seed, name: &str| Random::new(seed, name).next();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    #[test]
    fn an_orthogonal_matrix_has_orthonormal_columns_or_rows() {
        for shape in [[12, 3], [3, 12], [4, 4], [1, 1]] {
            let values = Init::Orthogonal.draw(&shape, &mut Random::new(7, "w"));
            let [rows, columns] = shape;
            let n = rows.min(columns);
            let at = |vector: usize, i: usize| {
                if rows >= columns { values[i * columns + vector] } else { values[vector * columns + i] }
            };
            for a in 0..n {
                for b in 0..n {
                    let dot: f32 = (0..rows.max(columns)).map(|i| at(a, i) * at(b, i)).sum();
                    assert!((dot - f32::from(u8::from(a == b))).abs() < 1e-5, "{shape:?}: {a}·{b} = {dot}");
                }
            }
        }
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::new(3, "w");
        let uniform = Init::Uniform { low: 3.0, high: 8.0 }.draw(&[40, 50], &mut random);
        assert!(uniform.iter().all(|v| (3.0..=8.0).contains(v)));
        let mean = uniform.iter().sum::<f32>() / 2000.0;
        assert!((mean - 5.5).abs() < 0.15, "{mean}");
        let normal = Init::Normal.draw(&[40, 50], &mut random);
        let variance = normal.iter().map(|v| v * v).sum::<f32>() / 2000.0;
        assert!((variance - 1.0).abs() < 0.12, "{variance}");
        let xavier = Init::Xavier.draw(&[4, 20], &mut random);
        assert!(xavier.iter().all(|v| v.abs() <= 0.5) && xavier.iter().any(|v| v.abs() > 0.4));
    }
}
