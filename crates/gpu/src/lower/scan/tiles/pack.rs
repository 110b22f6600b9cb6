//! Matrices as the threads of a team read them.

use super::{Columns, TILE};
use crate::device::Products;
use half::{bf16, f16};
use schwann_codegen::lang::{Half, Tile};
use schwann_core::{Error, Result, Tensor};

/// Threads of a team.
pub(super) const TEAM: u32 = 32;

/// How a matrix is laid out: tile after tile of the result, for each head, for each 16 rows: the words of thread 0, those of
/// thread 1, and so on. A thread has two words, pairs of its column; where numbers are split, two words of high parts and then
/// two of low ones.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// Whether its first axis is the result's columns.
    pub(crate) by_column: bool,
    /// How the first factor lies: its columns are the matrix' rows.
    pub(super) rows: Columns,
    /// The column at which each head begins.
    pub(super) heads: Vec<u32>,
    /// Columns of a head.
    pub(super) width: u32,
    pub(super) products: Products,
}

impl Matrix {
    /// A matrix of these heads, for results of this width, by a factor that lies so.
    pub(crate) fn new(by_column: bool, rows: Columns, heads: Vec<u32>, width: u32, products: Products) -> Matrix {
        Matrix { by_column, rows, heads, width, products }
    }

    /// Tiles of the result.
    pub(super) fn tiles(&self) -> u32 {
        self.width.div_ceil(TILE)
    }

    /// Products of 16 columns of the first factor.
    pub(super) fn steps(&self) -> u32 {
        (self.rows.len() as u32).div_ceil(2)
    }

    /// Words that a thread reads for one of them.
    pub(super) fn thread_words(&self) -> u32 {
        if self.products == Products::Split { 4 } else { 2 }
    }

    /// Words of the whole.
    pub(crate) fn words(&self) -> u32 {
        self.tiles() * self.heads.len() as u32 * self.steps() * TEAM * self.thread_words()
    }

    /// Where the words of thread 0 begin for a tile, a head, and 16 rows.
    pub(super) fn place(&self, tile: u32, head: u32, step: u32) -> u32 {
        ((tile * self.heads.len() as u32 + head) * self.steps() + step) * TEAM * self.thread_words()
    }

    /// The words, from the matrix' numbers.
    pub(crate) fn pack(&self, data: &Tensor) -> Result<Vec<u32>> {
        let numbers = data.to_f64();
        let [down, across] = *data.shape() else {
            return Err(Error::Internal("a matrix that has not two axes".into()));
        };
        let number = |row: u32, column: u32| -> f32 {
            let (row, column) = (row as usize, column as usize);
            let (row, column) = if self.by_column { (column, row) } else { (row, column) };
            if row < down && column < across { numbers[row * across + column] as f32 } else { 0.0 }
        };
        let mut words = Vec::with_capacity(self.words() as usize);
        for tile in 0..self.tiles() {
            for head in &self.heads {
                for step in 0..self.steps() {
                    for thread in 0..TEAM {
                        let mut parts = [[0u32; 2]; 2];
                        for k in 0..2 {
                            let (row, column) = Tile::second(thread, k);
                            let column = tile * TILE + column;
                            for upper in 0..2 {
                                let lies = self.rows.get((2 * step + (row + upper) / TILE) as usize);
                                let within = (row + upper) % TILE;
                                let value = match lies {
                                    Some([first, count]) if within < *count && column < self.width => {
                                        number(first + within, head + column)
                                    }
                                    _ => 0.0,
                                };
                                let (high, low) = self.parts(value)?;
                                parts[0][k as usize] |= u32::from(high) << (16 * upper);
                                parts[1][k as usize] |= u32::from(low) << (16 * upper);
                            }
                        }
                        words.extend(parts[0]);
                        if self.products == Products::Split {
                            words.extend(parts[1]);
                        }
                    }
                }
            }
        }
        Ok(words)
    }

    /// The bits of a number, and of what is left of it.
    fn parts(&self, value: f32) -> Result<(u16, u16)> {
        if self.products == Products::Halves(Half::Bf16) {
            return Ok((bf16::from_f32(value).to_bits(), 0));
        }
        let high = f16::from_f32(value);
        if value.is_finite() && high.is_infinite() {
            let problem = format!("a weight is {value}, and products of f16 take none beyond 65504");
            return Err(Error::Value { node: "a matrix".into(), problem });
        }
        Ok((high.to_bits(), f16::from_f32(value - high.to_f32()).to_bits()))
    }
}
