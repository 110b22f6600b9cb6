//! A number that tells one network from another.

use super::Graph;

impl Graph {
    /// A hash of the graph and its weights, so that what belongs to one network (such as a state) is not used with
    /// another by mistake. It does not protect against forgery.
    pub fn fingerprint(&self) -> u64 {
        let mut sum = Sum(0x5343_4857_414e_4e00);
        for state in &self.states {
            sum.add(state.input.as_bytes());
        }
        for (name, data) in &self.weights {
            sum.add(name.as_bytes());
            sum.add(format!("{data}").as_bytes());
            sum.put(data.bytes().len() as u64);
            let mut rest = 0;
            data.read_through(|piece| rest = sum.words(piece));
            sum.put(rest);
        }
        sum.0
    }

    /// The same graph without its weights' data.
    pub(crate) fn without_data(&self) -> Graph {
        Graph { weights: std::collections::BTreeMap::new(), ..self.clone() }
    }
}

/// A hash that multiplies and rotates word by word, which takes no longer than reading the data.
struct Sum(u64);
impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.put(bytes.len() as u64);
        let rest = self.words(bytes);
        self.put(rest);
    }

    /// Adds whole words, and gives the remaining bytes as a word filled up with zeros.
    fn words(&mut self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.put(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(last)
    }

    fn put(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
