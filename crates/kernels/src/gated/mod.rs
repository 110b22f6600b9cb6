//! A gated cell's step: three products of one left-hand side, its heads, and from them, while they are in registers,
//! tanh a + sigmoid t · (tanh b − tanh a). Heads never reach memory.
//!
//! The weights are known ahead, so [`Gated::pack`] lays them out the way that a loop reads them, with the factors that
//! exponentials of base 2 want multiplied in. There are two loops:
//!
//! - one row `[inputs]`: lanes are units (`units`). Heads of the same units lie side by side, and what is left of the
//!   units after whole registers shares registers among the heads;
//! - columns `[inputs, rows]`: lanes are rows (`columns`). A unit's inputs are a list, and where only the last head has a
//!   weight, as in a masked cell whose time is not masked, only that head is computed. (Unless an input is not finite:
//!   0 · ∞ is NaN, in both loops.)
//!
//! The left-hand side comes in two parts, input and state; the state's is multiplied first, since the input is often what
//! the call before has yet to finish.

mod columns;
#[cfg(test)]
mod tests;
mod units;

use crate::Isa;
use columns::Columns;
use std::f32::consts::LOG2_E;
use units::Units;

/// Heads of a gate: a, b and t.
const HEADS: usize = 3;
/// What the arguments of each head are multiplied with, for [`crate::math::gate_of_exp2`].
const FACTORS: [f32; HEADS] = [2.0 * LOG2_E, 2.0 * LOG2_E, -LOG2_E];

/// What fills the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lanes {
    /// Units, of one row.
    Units,
    /// Rows.
    Rows,
}

/// A cell's weights, packed for one instruction set and one of the loops.
pub struct Gated {
    isa: Isa,
    inputs: [usize; 2],
    units: usize,
    packed: Packed,
}

enum Packed {
    Units(Units),
    Columns(Columns),
}

/// Numbers that a cell is packed from: a weight by input (those of both parts in order), head and unit; a shift by head
/// and unit.
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
        write!(f, "Gated({inputs:?} to {units} by {:?}, {isa})", self.lanes())
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
        lanes: Lanes,
        inputs: [usize; 2],
        units: usize,
        source: &Source<'_>,
    ) -> Result<Gated, String> {
        if !Gated::fits(inputs, units) {
            return Err(format!("{inputs:?} inputs of {units} gated units are too many"));
        }
        let packed = match lanes {
            Lanes::Units => Packed::Units(Units::pack(isa, inputs, units, source)),
            Lanes::Rows => Packed::Columns(Columns::pack(inputs, units, source)),
        };
        Ok(Gated { isa, inputs, units, packed })
    }

    /// How many inputs each part has.
    pub fn inputs(&self) -> [usize; 2] {
        self.inputs
    }
    /// How many units.
    pub fn units(&self) -> usize {
        self.units
    }
    /// What fills the lanes.
    pub fn lanes(&self) -> Lanes {
        match self.packed {
            Packed::Units(_) => Lanes::Units,
            Packed::Columns(_) => Lanes::Rows,
        }
    }
    /// Whether it is packed for `isa`.
    pub fn is_for(&self, isa: Isa) -> bool {
        self.isa == isa
    }
    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        match &self.packed {
            Packed::Units(units) => units.bytes(),
            Packed::Columns(columns) => columns.bytes(),
        }
    }
    /// Of all weights, how many of units' lists are left out: those that are 0 and need not be multiplied.
    pub fn skipped(&self) -> usize {
        match &self.packed {
            Packed::Units(_) => 0,
            Packed::Columns(columns) => columns.skipped(),
        }
    }

    /// The new state of `rows` rows (one, if lanes are units) that lie as `[inputs, rows]`, as `[units, rows]`; written
    /// to `out`, and to `also` unless that is null.
    ///
    /// # Safety
    /// Each part of `x` must be readable for its inputs × `rows` floats, and `out` and `also` (if any) writable for
    /// `units · rows`, overlapping neither each other nor anything that is read.
    ///
    /// # Panics
    /// If lanes are units and there is not one row.
    #[inline]
    pub unsafe fn run(&self, rows: usize, x: [*const f32; 2], out: *mut f32, also: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.packed {
                Packed::Units(units) => {
                    assert!(rows == 1, "one row at a time");
                    units.run(self.inputs, x, out, also)
                }
                Packed::Columns(columns) => columns.run(self.isa, rows, x, out, also),
            }
        }
    }
}
