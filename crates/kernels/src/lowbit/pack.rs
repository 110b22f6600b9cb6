//! A low-bit matrix in the order in which the kernels read it.
//!
//! As in a packed f32 matrix, outputs (the matrix's rows) are the lanes of registers, and a panel is as many registers
//! wide as a tile. A 32-bit lane holds a *group* of an output's codes along k, four to each *field* of its four bytes, so
//! that a masked (and shifted) register is what an instruction for sums of four 8-bit products takes:
//!
//! ```text
//! 8 bits: byte j = code j                                               (a group of 4)
//! 4 bits: byte j = code j | code (4 + j) << 4                           (a group of 8)
//! 2 bits: byte j = code j | code (4 + j) << 2 | code (8 + j) << 4 | …   (a group of 16)
//!
//! codes:   panel[group][output] of 32 bits
//! scales:  panel[block][output], or [block] of f32 where all outputs share them; offsets likewise
//! ```
//!
//! Every block begins with a new group: the last group of a block is filled up with codes of 0, which rows of activations
//! meet with zeros. Ternary codes always take 2 bits here, also those that came five to a byte: taking a byte apart in
//! base 3 would cost several instructions for each code.

use super::{Code, Matrix, PIECE, float_at};
use crate::Isa;
use crate::changing::{Changing, Rewriting};
use crate::gemm::{Store, panel_of};
use crate::room::Room;
use std::sync::Arc;

/// Packed bytes, which kernels read through pointers.
pub(super) struct Packed {
    /// Only keeps the bytes: they are read and written through `at`.
    _room: Room,
    at: *mut u8,
    len: usize,
}

// SAFETY: the bytes belong to this value. They are written only by `rewrite`, whose caller promises that nobody reads them
// meanwhile.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Packed {
    fn new(mut room: Room) -> Packed {
        let (at, len) = (room.as_mut_ptr(), room.len());
        Packed { _room: room, at, len }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn as_ptr(&self) -> *const u8 {
        self.at
    }

    /// Copies other bytes, as many, over these.
    ///
    /// # Safety
    /// Nobody may read or write these bytes, or write the others, meanwhile.
    unsafe fn rewrite(&self, with: &Packed) {
        assert_eq!(self.len, with.len, "checked by the caller");
        // SAFETY: both have this many bytes, and not the same ones, since no value holds two; the rest is the caller's
        // promise.
        unsafe { self.at.copy_from_nonoverlapping(with.at, self.len) };
    }
}

/// Writes bytes.
fn put<const N: usize>(to: &mut [u8], at: usize, bytes: [u8; N]) {
    to[at..at + N].copy_from_slice(&bytes);
}

/// The sizes of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a field: 8, 4 or 2.
    pub(super) bits: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Numbers that share a scale, at most k, and how many such blocks there are.
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// Groups of every block but the last, of the last one, and of all.
    pub(super) groups: usize,
    pub(super) last_groups: usize,
    pub(super) all_groups: usize,
    /// Columns of a register and of a panel.
    pub(super) lanes: usize,
    pub(super) width: usize,
}

impl Shape {
    fn new(isa: Isa, code: Code, n: usize, k: usize, block: usize) -> Shape {
        let bits = match code {
            Code::Bits8 => 8,
            Code::Bits4 => 4,
            Code::Ternary4 | Code::Ternary5 => 2,
        };
        let group = 32 / bits;
        let block = block.min(k).max(1);
        let blocks = k.div_ceil(block);
        let groups = block.div_ceil(group);
        let last_groups = (k - blocks.saturating_sub(1) * block).div_ceil(group);
        let (lanes, width) = panel_of(isa);
        let all_groups = blocks.saturating_sub(1) * groups + last_groups;
        Shape { bits, n, k, block, blocks, groups, last_groups, all_groups, lanes, width }
    }

    /// How many codes of one output a lane holds.
    pub(super) fn group(&self) -> usize {
        32 / self.bits
    }

    /// Groups that one integer sum takes.
    pub(super) fn piece_groups(&self) -> usize {
        PIECE / self.group()
    }

    /// How many integer sums one product takes: at least one for each block.
    pub(super) fn pieces(&self) -> usize {
        let of = |groups: usize| groups.div_ceil(self.piece_groups());
        self.blocks.saturating_sub(1) * of(self.groups) + of(self.last_groups)
    }

    /// Columns of the panel that begins at this column, in whole registers.
    #[inline(always)]
    pub(super) fn wide(&self, from: usize) -> usize {
        // Nearly all are as wide as panels can be, and a division takes longer than a few registers of codes.
        let left = self.n - from;
        if left >= self.width { self.width } else { left.next_multiple_of(self.lanes) }
    }

    /// Copies a row to the order of packed codes, where every block is filled up to whole groups with `T::default()`.
    pub(super) fn spread<T: Copy + Default>(&self, row: &[T], to: &mut [T]) {
        let padded = self.groups * self.group();
        for (from, to) in row.chunks(self.block).zip(to.chunks_mut(padded)) {
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(T::default());
        }
    }
}

/// Low-bit weights packed for one instruction set: the right-hand side of a product. They never change, or only where their
/// owner rewrites them.
pub struct PackedLowBit {
    owner: Option<Arc<Changing>>,
    pub(super) shape: Shape,
    pub(super) code: Code,
    pub(super) codes: Packed,
    pub(super) store: Store,
    /// Whether every column has its own scales (of type `store`); else they are f32, one for each block.
    pub(super) by_column: bool,
    pub(super) scales: Packed,
    pub(super) offsets: Option<Packed>,
}

impl PackedLowBit {
    /// Packs a matrix. The error says that there is no memory for it.
    pub fn new(isa: Isa, matrix: &Matrix<'_>) -> Result<PackedLowBit, String> {
        let parts = matrix.parts();
        let shape = Shape::new(isa, parts.code, parts.n, parts.k, parts.block);
        let columns = parts.n.next_multiple_of(shape.lanes);
        let size = |each: usize| columns.saturating_mul(each);
        let mut codes = Room::new(size(shape.all_groups.saturating_mul(4)))?;
        // One row's codes, one to a byte: in their own order, then with every block filled up.
        let mut row: Vec<u8> = Vec::new();
        let mut spread = vec![0; if parts.n == 0 { 0 } else { shape.all_groups * shape.group() }];
        for n in 0..parts.n {
            row.clear();
            unpack(parts.code, matrix.row(n), &mut row);
            shape.spread(&row[..parts.k], &mut spread);
            let from = n / shape.width * shape.width;
            let (wide, mut at) = (shape.wide(from), (from * shape.all_groups + n - from) * 4);
            for codes_of_group in spread.chunks_exact(shape.group()) {
                let mut word = [0; 4];
                for (field, four) in codes_of_group.chunks_exact(4).enumerate() {
                    (0..4).for_each(|j| word[j] |= four[j] << (shape.bits * field));
                }
                put(&mut codes, at, word);
                at += wide * 4;
            }
        }
        let by_column = parts.scale_rows != 1;
        let floats = |bytes: &[u8]| {
            if by_column {
                columns_of(&shape, parts.store, bytes)
            } else {
                let mut to = Room::new(shape.blocks.saturating_mul(4))?;
                (0..shape.blocks).for_each(|b| put(&mut to, b * 4, float_at(parts.store, bytes, b).to_ne_bytes()));
                Ok(to)
            }
        };
        let offsets = parts.offsets.map(floats).transpose()?.map(Packed::new);
        let (codes, scales) = (Packed::new(codes), Packed::new(floats(parts.scales)?));
        let (code, store) = (parts.code, parts.store);
        Ok(PackedLowBit { owner: None, shape, code, codes, store, by_column, scales, offsets })
    }

    /// The same, which its owner may rewrite.
    pub fn changing(mut self, owner: &Arc<Changing>) -> PackedLowBit {
        self.owner = Some(Arc::clone(owner));
        self
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        self.owner.as_ref()
    }

    /// Replaces all numbers by those of another matrix of the same format, which has no owner.
    pub fn rewrite(&self, by: &mut Rewriting<'_>, with: &PackedLowBit) -> Result<(), String> {
        if !self.owner.as_ref().is_some_and(|owner| by.is_of(owner)) {
            return Err(format!("{self:?} does not change, or another owner may rewrite it"));
        }
        let kind = |p: &PackedLowBit| (p.shape, p.code, p.store, p.by_column, p.offsets.is_some());
        if kind(self) != kind(with) || with.owner.is_some() {
            return Err(format!("{with:?} in the place of {self:?}, or one that has an owner"));
        }
        // SAFETY: these have an owner, whose lock `by` holds, so no run reads them now. The others have none, so they are
        // another matrix, which is never written.
        unsafe {
            self.codes.rewrite(&with.codes);
            self.scales.rewrite(&with.scales);
            if let (Some(old), Some(new)) = (&self.offsets, &with.offsets) {
                old.rewrite(new);
            }
        }
        Ok(())
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.offsets.as_ref().map_or(0, Packed::len)
    }

    /// Length of the sums of a product.
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// Columns of a product.
    pub fn n(&self) -> usize {
        self.shape.n
    }

    /// How the codes were packed before.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Whether it was packed for the kernels of this instruction set.
    pub fn is_for(&self, isa: Isa) -> bool {
        let (lanes, width) = panel_of(isa);
        self.is_packed_in(lanes, width)
    }

    /// Whether its registers and panels have these numbers of columns.
    pub(crate) fn is_packed_in(&self, lanes: usize, width: usize) -> bool {
        (self.shape.lanes, self.shape.width) == (lanes, width)
    }

    /// The address of a panel's codes, and of its first scales and offsets (null if there are none).
    pub(super) fn panel(&self, from: usize) -> (*const u8, *const u8, *const u8) {
        let floats = if self.by_column { from * self.shape.blocks * self.store.size() } else { 0 };
        let offsets = self.offsets.as_ref().map_or(std::ptr::null(), |o| o.as_ptr().wrapping_add(floats));
        let codes = self.codes.as_ptr().wrapping_add(from * self.shape.all_groups * 4);
        (codes, self.scales.as_ptr().wrapping_add(floats), offsets)
    }

    /// What is subtracted from a code: the centre, or nothing where there are offsets.
    pub(super) fn centre(&self) -> i32 {
        if self.offsets.is_some() { 0 } else { self.code.centre() }
    }
}

impl std::fmt::Debug for PackedLowBit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { k, n, block, .. } = self.shape;
        write!(f, "PackedLowBit({k} × {n}, {:?}, blocks of {block}, {} bytes)", self.code, self.bytes())
    }
}

/// Takes a row's bytes apart into one code each, those of padding included.
fn unpack(code: Code, bytes: &[u8], to: &mut Vec<u8>) {
    const IN_BASE_3: [[u8; 5]; 256] = {
        let (mut table, mut byte) = ([[0; 5]; 256], 0);
        while byte < 243 {
            let mut at = 0;
            while at < 5 {
                table[byte][at] = Code::Ternary5.of_byte(byte as u8, at);
                at += 1;
            }
            byte += 1;
        }
        table
    };
    match code {
        Code::Bits8 => to.extend_from_slice(bytes),
        Code::Bits4 => to.extend(bytes.iter().flat_map(|b| [b & 15, b >> 4])),
        Code::Ternary4 => to.extend(bytes.iter().flat_map(|b| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6])),
        Code::Ternary5 => to.extend(bytes.iter().flat_map(|b| IN_BASE_3[usize::from(*b)])),
    }
}

/// Scales or offsets of every column, in panels.
fn columns_of(shape: &Shape, store: Store, bytes: &[u8]) -> Result<Room, String> {
    let size = store.size();
    let columns = shape.n.next_multiple_of(shape.lanes);
    let mut to = Room::new(columns.saturating_mul(shape.blocks).saturating_mul(size))?;
    for n in 0..shape.n {
        let from = n / shape.width * shape.width;
        let wide = shape.wide(from);
        for block in 0..shape.blocks {
            let (at, source) = (from * shape.blocks + block * wide + n - from, (n * shape.blocks + block) * size);
            let at = at * size;
            to[at..at + size].copy_from_slice(&bytes[source..source + size]);
        }
    }
    Ok(to)
}
