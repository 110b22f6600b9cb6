//! A gated cell's step: three products of one left-hand side, its heads, and from them, while they are in registers,
//! tanh a + sigmoid t · (tanh b − tanh a). Heads never reach memory.
//!
//! The weights are known ahead, so [`Gated::pack`] lays them out the way that a loop reads them, with the factors that
//! exponentials of base 2 want multiplied in. There are two loops:
//!
//! - `batch_first`: one row or a few, `[rows, inputs]`, whose units fill the lanes. The three heads of the same units are
//!   three registers side by side; the units that are left after whole registers share registers among their heads;
//! - `batch_last`: many rows, `[inputs, rows]`, which fill the lanes. A unit has a list of its inputs. If only the last
//!   head has a weight for an input, as in a masked cell whose time head is not masked, only that head is computed. (Unless
//!   an input is not finite: 0 · ∞ is NaN, in both loops.)
//!
//! The left-hand side comes in two parts, input and state. The state is multiplied first, because the input often comes
//! from the call just before, and may still be on its way to the cache.

mod batch_first;
mod batch_last;
#[cfg(test)]
mod tests;

use crate::Isa;
use crate::changing::{Changing, Rewriting};
use batch_first::BatchFirst;
use batch_last::BatchLast;
use std::f32::consts::LOG2_E;
use std::sync::Arc;

/// Heads of a gate: a, b and t.
const HEADS: usize = 3;
/// What the arguments of each head are multiplied with, for [`crate::math::gate_of_exp2`].
const FACTORS: [f32; HEADS] = [2.0 * LOG2_E, 2.0 * LOG2_E, -LOG2_E];

/// Which axis of a cell's values is the batch; see the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// The first: units fill the lanes. For few rows.
    First,
    /// The last: rows fill the lanes.
    Last,
}

/// How far rows are apart, in floats, of batch-first values that are columns of something wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Of each part of the inputs.
    pub x: [usize; 2],
    /// Of the second place of the result.
    pub also: usize,
}

/// A cell's weights, packed for one instruction set and one of the loops.
pub struct Gated {
    isa: Isa,
    inputs: [usize; 2],
    units: usize,
    packed: Packed,
}

enum Packed {
    BatchFirst(BatchFirst),
    BatchLast(BatchLast),
}

/// The numbers that a cell is packed from. Inputs are numbered through both parts; heads are a, b and t.
pub struct Source<'a> {
    /// weight(input, head, unit)
    pub weight: &'a dyn Fn(usize, usize, usize) -> f32,
    /// shift(head, unit)
    pub shift: &'a dyn Fn(usize, usize) -> f32,
}

impl Source<'_> {
    fn weight(&self, input: usize, head: usize, unit: usize) -> f32 {
        (self.weight)(input, head, unit) * FACTORS[head]
    }
    fn shift(&self, head: usize, unit: usize) -> f32 {
        (self.shift)(head, unit) * FACTORS[head]
    }
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gated { isa, inputs, units, .. } = self;
        write!(f, "Gated({inputs:?} to {units} by {:?}, {isa})", self.batch())
    }
}

impl Gated {
    /// Whether so many inputs and units can be packed.
    pub fn fits(inputs: [usize; 2], units: usize) -> bool {
        // Positions are kept in 32 bits.
        let most = u32::MAX as usize / 64;
        let all = inputs[0].checked_add(inputs[1]).and_then(|k| k.checked_add(64)?.checked_mul(units.checked_add(64)?));
        all.is_some_and(|n| n <= most)
    }

    /// Packs the weights of `units` units with so many inputs in each of the two parts, if they [fit](Self::fits).
    pub fn pack(
        isa: Isa,
        batch: Batch,
        inputs: [usize; 2],
        units: usize,
        source: &Source<'_>,
    ) -> Result<Gated, String> {
        if !Gated::fits(inputs, units) {
            return Err(format!("{inputs:?} inputs of {units} gated units are too many"));
        }
        let packed = match batch {
            Batch::First => Packed::BatchFirst(BatchFirst::pack(isa, inputs, units, source)),
            Batch::Last => Packed::BatchLast(BatchLast::pack(inputs, units, source)),
        };
        Ok(Gated { isa, inputs, units, packed })
    }

    /// The same, which its owner may rewrite.
    pub fn changing(mut self, owner: &Arc<Changing>) -> Gated {
        match &mut self.packed {
            Packed::BatchFirst(packed) => packed.data = std::mem::take(&mut packed.data).owned_by(owner),
            Packed::BatchLast(packed) => packed.weights = std::mem::take(&mut packed.weights).owned_by(owner),
        }
        self
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        match &self.packed {
            Packed::BatchFirst(packed) => packed.data.owner(),
            Packed::BatchLast(packed) => packed.weights.owner(),
        }
    }

    /// Other weights packed in the same way, to [rewrite](Self::rewrite) these with; `None` where a weight is not 0 that
    /// is left out here.
    pub fn pack_alike(&self, source: &Source<'_>) -> Option<Gated> {
        let Gated { isa, inputs, units, .. } = *self;
        let packed = match &self.packed {
            Packed::BatchFirst(_) => Packed::BatchFirst(BatchFirst::pack(isa, inputs, units, source)),
            Packed::BatchLast(packed) => Packed::BatchLast(packed.pack_alike(inputs, source)?),
        };
        Some(Gated { isa, inputs, units, packed })
    }

    /// Writes the numbers of a cell that was packed in the same way in the place of these.
    pub fn rewrite(&self, by: &mut Rewriting<'_>, with: &Gated) -> Result<(), String> {
        let alike = (self.isa, self.inputs, self.units) == (with.isa, with.inputs, with.units);
        match (&self.packed, &with.packed) {
            // Sizes and the instruction set decide all but the numbers.
            (Packed::BatchFirst(packed), Packed::BatchFirst(with)) if alike => packed.data.rewrite(by, &with.data),
            (Packed::BatchLast(packed), Packed::BatchLast(with)) if alike && packed.is_like(with) => {
                packed.weights.rewrite(by, &with.weights)
            }
            _ => Err(format!("{with:?} in the place of {self:?}, which is packed otherwise")),
        }
    }

    /// Which axis of its values is the batch.
    pub(crate) fn batch(&self) -> Batch {
        match self.packed {
            Packed::BatchFirst(_) => Batch::First,
            Packed::BatchLast(_) => Batch::Last,
        }
    }
    /// Whether it is packed for `isa`.
    pub(crate) fn is_for(&self, isa: Isa) -> bool {
        self.isa == isa
    }
    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        match &self.packed {
            Packed::BatchFirst(packed) => packed.bytes(),
            Packed::BatchLast(packed) => packed.bytes(),
        }
    }
    /// How many weights are 0 and left out, so that they are not multiplied.
    pub fn skipped(&self) -> usize {
        match &self.packed {
            Packed::BatchFirst(_) => 0,
            Packed::BatchLast(packed) => packed.skipped(),
        }
    }

    /// Where rows lie side by side: values that are not columns of something wider.
    pub fn dense(&self) -> Apart {
        Apart { x: self.inputs, also: self.units }
    }

    /// Computes the new state, `[units, rows]`, from inputs that lie as `[inputs, rows]`, and writes it to `out`, and to
    /// `also` unless that is null. If it is packed batch-first, they lie as `[rows, inputs]` and `[rows, units]`, and rows of
    /// the inputs and of `also` are as far apart as `apart` says. The two parts of `x` are a pair, which comes in registers. An array would be written to memory pointer by pointer and then loaded as
    /// a whole, and such a load has to wait until both stores have reached the cache: some ten nanoseconds in every call.
    ///
    /// # Safety
    /// Each part of `x` must be readable for its inputs × `rows` floats, and `out` and `also` (if any) writable for
    /// `units · rows`, overlapping neither each other nor anything that is read.
    #[inline]
    pub(crate) unsafe fn run(
        &self,
        rows: usize,
        apart: &Apart,
        x: (*const f32, *const f32),
        out: *mut f32,
        also: *mut f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.packed {
                Packed::BatchFirst(packed) => packed.run(self.inputs, self.units, rows, apart, x, out, also),
                Packed::BatchLast(packed) => packed.run(self.isa, rows, [x.0, x.1], out, also),
            }
        }
    }
}
