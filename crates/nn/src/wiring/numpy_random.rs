//! NumPy's two random streams, bit for bit, for the calls that drawing a circuit takes.
//!
//! The older, [`RandomState`], is a Mersenne twister with masked rejection; the newer, [`Generator`], is PCG64 with
//! Lemire's bounded integers. Both are stable by NumPy's promise (the newer one's methods in practice).

/// `numpy.random.RandomState`: MT19937.
pub(super) struct RandomState {
    words: [u32; Self::WORDS],
    next: usize,
}

impl RandomState {
    const WORDS: usize = 624;
    const SHIFT: usize = 397;

    pub(super) fn new(seed: u32) -> RandomState {
        let mut words = [0; Self::WORDS];
        let mut word = seed;
        for (i, slot) in words.iter_mut().enumerate() {
            *slot = word;
            word = (word ^ (word >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32 + 1);
        }
        RandomState { words, next: Self::WORDS }
    }

    fn refill(&mut self) {
        for i in 0..Self::WORDS {
            let following = self.words[(i + 1) % Self::WORDS];
            let mixed = (self.words[i] & 0x8000_0000) | (following & 0x7fff_ffff);
            let twist = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.words[i] = self.words[(i + Self::SHIFT) % Self::WORDS] ^ (mixed >> 1) ^ twist;
        }
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == Self::WORDS {
            self.refill();
        }
        let mut y = self.words[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// A number from 0 to `most`: bits under a mask, again and again until they are no more than `most`.
    fn up_to(&mut self, most: u32) -> u32 {
        // One value alone is no draw.
        let Some(zeros) = (most != 0).then(|| most.leading_zeros()) else { return 0 };
        loop {
            let value = self.word() & (u32::MAX >> zeros);
            if value <= most {
                return value;
            }
        }
    }

    /// `choice(count)`: one of `0..count`, which must not be empty.
    pub(super) fn choose(&mut self, count: usize) -> usize {
        self.up_to(count as u32 - 1) as usize
    }

    /// `choice(count, size, replace=False)`: the head of a whole permutation, however few are wanted.
    pub(super) fn sample(&mut self, count: usize, size: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            all.swap(i, self.up_to(i as u32) as usize);
        }
        all.truncate(size);
        all
    }
}

/// `numpy.random.default_rng`: PCG64 (XSL-RR), seeded through a `SeedSequence`.
pub(super) struct Generator {
    state: u128,
    increment: u128,
    /// The half of the last 64 bits that is still to be given out.
    kept: Option<u32>,
}

impl Generator {
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    pub(super) fn new(seed: u64) -> Generator {
        let [a, b, c, d] = seed_words(seed).map(u128::from);
        let (start, stream) = (a << 64 | b, c << 64 | d);
        let increment = stream << 1 | 1;
        // From state 0: a step, the start added, a step.
        let state = increment.wrapping_add(start).wrapping_mul(Self::MULTIPLIER).wrapping_add(increment);
        Generator { state, increment, kept: None }
    }

    fn word(&mut self) -> u32 {
        if let Some(high) = self.kept.take() {
            return high;
        }
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.increment);
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        let bits = folded.rotate_right((self.state >> 122) as u32);
        self.kept = Some((bits >> 32) as u32);
        bits as u32
    }

    /// A number from 0 to `most`, by Lemire's method: the high half of a product, drawn again where it would be uneven.
    fn up_to(&mut self, most: u32) -> u32 {
        // One value alone is no draw.
        if most == 0 {
            return 0;
        }
        let Some(count) = most.checked_add(1) else { return self.word() };
        let uneven = (u32::MAX - most) % count;
        loop {
            let product = u64::from(self.word()) * u64::from(count);
            if product as u32 >= uneven {
                return (product >> 32) as u32;
            }
        }
    }

    /// `choice(count)`: one of `0..count`, which must not be empty.
    pub(super) fn choose(&mut self, count: usize) -> usize {
        self.up_to(count as u32 - 1) as usize
    }

    /// `choice(count, size, replace=False)`: by Floyd's method and a shuffle, or by shuffling the tail of everything
    /// where much of much is wanted.
    pub(super) fn sample(&mut self, count: u32, size: u32) -> Vec<u32> {
        if count > 10_000 && size > count / 50 {
            let mut all: Vec<u32> = (0..count).collect();
            self.shuffle(&mut all, (count - size).max(1));
            return all.split_off((count - size) as usize);
        }
        let mut taken = vec![false; count as usize];
        let mut drawn = Vec::with_capacity(size as usize);
        for last in count - size..count {
            let value = self.up_to(last);
            let value = if taken[value as usize] { last } else { value };
            taken[value as usize] = true;
            drawn.push(value);
        }
        self.shuffle(&mut drawn, 1);
        drawn
    }

    /// Fisher–Yates from the end down to place `first`.
    fn shuffle(&mut self, items: &mut [u32], first: u32) {
        for i in (first..items.len() as u32).rev() {
            items.swap(i as usize, self.up_to(i) as usize);
        }
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`: the seed's words hashed into a pool of four, and the pool hashed out.
fn seed_words(seed: u64) -> [u64; 4] {
    const POOL: usize = 4;
    let mut hash = Hash { constant: 0x43b0_d7e5, multiplier: 0x931e_8875 };
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut pool: [u32; POOL] = entropy.map(|word| hash.next(word));
    for from in 0..POOL {
        for to in 0..POOL {
            if from != to {
                let mixed = hash.next(pool[from]);
                pool[to] = mix(pool[to], mixed);
            }
        }
    }
    let mut hash = Hash { constant: 0x8b51_f9dd, multiplier: 0x58f3_8ded };
    std::array::from_fn(|i| {
        let low = hash.next(pool[2 * i % POOL]);
        let high = hash.next(pool[(2 * i + 1) % POOL]);
        u64::from(high) << 32 | u64::from(low)
    })
}

/// A hash whose constant moves on with each word.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn next(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let word = word.wrapping_mul(self.constant);
        word ^ (word >> 16)
    }
}

fn mix(a: u32, b: u32) -> u32 {
    let mixed = a.wrapping_mul(0xca01_f9dd).wrapping_sub(b.wrapping_mul(0x4973_f715));
    mixed ^ (mixed >> 16)
}
