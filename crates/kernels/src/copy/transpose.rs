//! Transposes: dense rows of the source become columns of the destination.
//!
//! Tiles are transposed in registers. A tile of [`Words`] reads whole cache lines; one of [`Pieces`] reads 16 bytes of
//! each of many rows, which takes fewer rounds of shuffles, and for the smaller elements fewer registers. Both write
//! whole lines where a register is as wide as one. At the edges of a matrix, tiles are moved back so that they fit: they
//! overlap their neighbours, and write the same elements again.
//!
//! A first-level cache chooses the set for a line by the line's address modulo 4 KiB. If the distance between rows is a
//! power of two, their lines crowd into few sets. Those do not hold all lines of a tile, and bringing in a line then
//! takes about nine cycles, whatever cache it comes from. In that case rows are first copied, a few lines of each at a
//! time, to a small block whose rows lie another distance apart, and tiles are read from there.

use crate::simd::portable::Portable;
use crate::simd::{Isa, Simd};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;
/// How many lines a set of the first-level cache holds, and the distance in bytes between addresses of the same set.
const WAYS: usize = 8;
const SETS_BYTES: usize = 4096;
/// Source rows that are read side by side: few enough that their pages stay in the TLB.
const ROWS: usize = 512;
/// The block that crowded rows are copied to: its rows, the bytes of each, and their distance.
const BLOCK_ROWS: usize = 128;
const BLOCK_BYTES: usize = 256;
const BLOCK_STRIDE: usize = BLOCK_BYTES + LINE;

/// Memory for a block of crowded rows.
#[repr(align(64))]
struct Block([MaybeUninit<u8>; BLOCK_ROWS * BLOCK_STRIDE]);

/// Transposes one tile in registers.
trait Tile: Copy {
    /// Its rows and columns in the source.
    const ROWS: usize;
    const COLS: usize;
    /// Transposes a tile; strides are in bytes. `STREAM` writes past the caches.
    ///
    /// # Safety
    /// The tile must be readable at `src` and writable at `dst`; with `STREAM`, each destination row must be aligned to a
    /// register.
    unsafe fn transpose<const STREAM: bool>(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize);
}

/// Squares of 32-bit words.
#[derive(Clone, Copy)]
struct Words<S>(S);

impl<S: Simd> Tile for Words<S> {
    const ROWS: usize = S::LANES;
    const COLS: usize = S::LANES;
    #[inline(always)]
    unsafe fn transpose<const STREAM: bool>(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.transpose::<STREAM>(src, src_stride, dst, dst_stride) }
    }
}

/// Elements of `E` bytes (1, 2, 4, 8 or 16): 16 bytes of each row, and as many rows as there are elements in a register.
#[derive(Clone, Copy)]
struct Pieces<S, const E: usize>(S);

impl<S: Simd, const E: usize> Tile for Pieces<S, E> {
    const ROWS: usize = 4 * S::LANES / E;
    const COLS: usize = 16 / E;
    #[inline(always)]
    unsafe fn transpose<const STREAM: bool>(self, src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize) {
        let s = self.0;
        let row = |r: isize| {
            // SAFETY: rows r, r + COLS, r + 2 COLS, … of the caller's tile.
            unsafe { s.load_pieces(src.offset(r * src_stride), Self::COLS as isize * src_stride) }
        };
        let put = |c: isize, v: S::I| {
            // SAFETY: a row of the caller's destination, one register long.
            unsafe {
                let p = dst.offset(c * dst_stride);
                if STREAM { s.stream(p.cast(), s.float_from_bits(v)) } else { s.store_int(p.cast(), v) }
            }
        };
        // Interleaving rows i and i + N / 2 leaves two problems of half the size. Written out, because in loops over arrays
        // the compiler keeps the registers' values in memory.
        match E {
            1 => {
                let (a, i) = s.zip::<E>(row(0), row(8));
                let (b, j) = s.zip::<E>(row(1), row(9));
                let (c, k) = s.zip::<E>(row(2), row(10));
                let (d, l) = s.zip::<E>(row(3), row(11));
                let (e, m) = s.zip::<E>(row(4), row(12));
                let (f, n) = s.zip::<E>(row(5), row(13));
                let (g, o) = s.zip::<E>(row(6), row(14));
                let (h, p) = s.zip::<E>(row(7), row(15));
                put_eight(put, 0, eight::<S, E>(s, [a, b, c, d, e, f, g, h]));
                put_eight(put, 8, eight::<S, E>(s, [i, j, k, l, m, n, o, p]));
            }
            2 => put_eight(put, 0, eight::<S, E>(s, [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)])),
            4 => {
                let [a, b, c, d] = four::<S, E>(s, [row(0), row(1), row(2), row(3)]);
                put(0, a);
                put(1, b);
                put(2, c);
                put(3, d);
            }
            8 => {
                let (a, b) = s.zip::<E>(row(0), row(1));
                put(0, a);
                put(1, b);
            }
            _ => put(0, row(0)),
        }
    }
}

#[inline(always)]
fn four<S: Simd, const E: usize>(s: S, [a, b, c, d]: [S::I; 4]) -> [S::I; 4] {
    let ((a, c), (b, d)) = (s.zip::<E>(a, c), s.zip::<E>(b, d));
    let ((a, b), (c, d)) = (s.zip::<E>(a, b), s.zip::<E>(c, d));
    [a, b, c, d]
}

#[inline(always)]
fn eight<S: Simd, const E: usize>(s: S, [a, b, c, d, e, f, g, h]: [S::I; 8]) -> [S::I; 8] {
    let ((a, e), (b, f), (c, g), (d, h)) = (s.zip::<E>(a, e), s.zip::<E>(b, f), s.zip::<E>(c, g), s.zip::<E>(d, h));
    let ([a, b, c, d], [e, f, g, h]) = (four::<S, E>(s, [a, b, c, d]), four::<S, E>(s, [e, f, g, h]));
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn put_eight<V>(put: impl Fn(isize, V), first: isize, [a, b, c, d, e, f, g, h]: [V; 8]) {
    put(first, a);
    put(first + 1, b);
    put(first + 2, c);
    put(first + 3, d);
    put(first + 4, e);
    put(first + 5, f);
    put(first + 6, g);
    put(first + 7, h);
}

/// Hides the address of a tile of many rows from the compiler, which would otherwise compute the address of each row
/// ahead of the loop and keep them all in memory.
#[inline(always)]
fn hide<K: Tile>(src: *const u8, stride: isize) -> (*const u8, isize) {
    if K::ROWS > 16 { std::hint::black_box((src, stride)) } else { (src, stride) }
}

/// Moves panels of elements of `elem` bytes.
///
/// # Safety
/// Both sides of every panel must be accessible as [`super::copy`] says.
#[inline(always)]
pub(super) unsafe fn plain<S: Simd>(s: S, elem: usize, panels: impl Iterator<Item = Panel>, large: bool) {
    for panel in panels {
        // SAFETY: the caller's promise.
        unsafe {
            match elem {
                1 => panel.transpose::<S, 1>(s, large),
                2 => panel.transpose::<S, 2>(s, large),
                4 => panel.transpose::<S, 4>(s, large),
                8 => panel.transpose::<S, 8>(s, large),
                _ => panel.transpose::<S, 16>(s, large),
            }
        }
    }
    if large {
        s.fence();
    }
}

/// As [`plain`], for panels that crowd the sets of the first-level cache.
///
/// # Safety
/// As [`plain`].
#[inline(always)]
pub(super) unsafe fn crowded<S: Simd>(s: S, elem: usize, panels: impl Iterator<Item = Panel>, large: bool) {
    let mut block = Block([MaybeUninit::uninit(); BLOCK_ROWS * BLOCK_STRIDE]);
    for panel in panels {
        // SAFETY: the caller's promise.
        unsafe {
            match elem {
                1 => panel.transpose_crowded::<S, 1>(s, &mut block, large),
                2 => panel.transpose_crowded::<S, 2>(s, &mut block, large),
                4 => panel.transpose_crowded::<S, 4>(s, &mut block, large),
                8 => panel.transpose_crowded::<S, 8>(s, &mut block, large),
                _ => panel.transpose_crowded::<S, 16>(s, &mut block, large),
            }
        }
    }
    if large {
        s.fence();
    }
}

/// A matrix of `rows` dense source rows that become the destination's columns; strides are in bytes.
pub(super) struct Panel {
    pub(super) src: *const u8,
    pub(super) src_stride: isize,
    pub(super) dst: *mut u8,
    pub(super) dst_stride: isize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Panel {
    /// Whether the lines of a square crowd the sets of the first-level cache: most of them in one, or more than fit there.
    pub(super) fn crowds(isa: Isa, elem: usize, src_stride: isize, dst_stride: isize) -> bool {
        let rows = LINE / elem;
        // One line less for words where a register is narrower than a line: each line is then visited more than once.
        // These limits were found by measuring.
        let most = WAYS.min(rows / 2) - usize::from(elem == 4 && isa.lanes() < rows);
        [src_stride, dst_stride].into_iter().any(|stride| {
            let mut lines = [0; SETS_BYTES / LINE];
            (0..rows).any(|r| {
                let set = &mut lines[r.wrapping_mul(stride as usize) % SETS_BYTES / LINE];
                *set += 1;
                *set > most
            })
        })
    }

    /// Moves the panel's elements, of `E` bytes, past the caches if it is part of something large.
    ///
    /// # Safety
    /// Both sides of the panel must be accessible as [`super::copy`] says.
    #[inline(always)]
    unsafe fn transpose<S: Simd, const E: usize>(&self, s: S, large: bool) {
        // SAFETY: the caller's promise; tiles are used where they fit in.
        unsafe {
            if E == 4 && self.holds::<Words<S>>() {
                self.tiles::<_, E>(Words(s), large && self.streams::<S>())
            } else if self.holds::<Pieces<S, E>>() {
                self.tiles::<_, E>(Pieces::<S, E>(s), large && self.streams::<S>())
            } else if self.holds::<Pieces<Portable<4>, E>>() {
                self.tiles::<_, E>(Pieces::<_, E>(Portable::<4>), false)
            } else {
                self.single::<E>()
            }
        }
    }

    /// As [`Self::transpose`], for a panel that crowds the sets of the first-level cache.
    ///
    /// # Safety
    /// As [`Self::transpose`].
    #[inline(always)]
    unsafe fn transpose_crowded<S: Simd, const E: usize>(&self, s: S, block: &mut Block, large: bool) {
        let streams = large && self.streams::<S>();
        // Streamed stores take no place in a set, and a tile of words reads each line only once: a block would gain
        // nothing.
        let worth = !(E == 4 && streams);
        // SAFETY: the caller's promise; the block is used where it fits in.
        unsafe {
            if worth && self.rows >= BLOCK_ROWS && self.cols * E >= BLOCK_BYTES {
                self.blocks::<S, E>(s, block, streams)
            } else {
                self.transpose::<S, E>(s, large)
            }
        }
    }

    /// Whether whole lines can be written past the caches.
    #[inline(always)]
    fn streams<S: Simd>(&self) -> bool {
        4 * S::LANES == LINE && self.aligned()
    }

    #[inline(always)]
    fn holds<K: Tile>(&self) -> bool {
        self.rows >= K::ROWS && self.cols >= K::COLS
    }

    /// Whether destination rows are all placed alike in their cache lines, and long.
    #[inline(always)]
    fn aligned(&self) -> bool {
        self.dst_stride % LINE as isize == 0 && self.rows >= LINE
    }

    /// Source rows in groups of `step`. The first group is shorter where that makes all others begin at a cache line of
    /// the destination.
    #[inline(always)]
    fn row_groups<const E: usize>(&self, step: usize) -> impl Iterator<Item = Range<usize>> + use<E> {
        let (rows, lead) = (self.rows, if self.aligned() { self.dst.align_offset(LINE) / E } else { 0 });
        let whole = (lead..rows).step_by(step).map(move |row| row..rows.min(row + step));
        std::iter::once(0..lead).filter(|first| !first.is_empty()).chain(whole)
    }

    /// # Safety
    /// As [`Self::transpose`]; the panel must hold a tile.
    #[inline(always)]
    unsafe fn tiles<K: Tile, const E: usize>(&self, tile: K, streams: bool) {
        let line = LINE / E;
        // Streamed stores fill whole lines at once, so no group of rows has to come back to a line that it began: then
        // groups are short, so that reads run along the source rows.
        for rows in self.row_groups::<E>(if streams { line } else { ROWS }) {
            let whole = rows.start..rows.end - rows.len() % line;
            for col in (0..self.cols).step_by(line) {
                // SAFETY: the squares are within the panel, or cut to it.
                unsafe {
                    if col + line <= self.cols {
                        self.squares::<K, E>(tile, whole.clone(), col, streams);
                        self.edge::<K, E>(tile, whole.end..rows.end, col..col + line);
                    } else {
                        self.edge::<K, E>(tile, rows.clone(), col..self.cols);
                    }
                }
            }
        }
    }

    /// Where an element is in the source and in the destination.
    ///
    /// # Safety
    /// The element must be within the panel.
    #[inline(always)]
    unsafe fn at<const E: usize>(&self, row: usize, col: usize) -> (*const u8, *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let src = self.src.offset(row as isize * self.src_stride).add(col * E);
            (src, self.dst.offset(col as isize * self.dst_stride).add(row * E))
        }
    }

    /// All tiles of squares that are one line wide and lie one below the other: each line is read and written as a whole
    /// while it is in the cache.
    ///
    /// # Safety
    /// The squares must be within the panel.
    #[inline(always)]
    unsafe fn squares<K: Tile, const E: usize>(&self, tile: K, rows: Range<usize>, col: usize, streams: bool) {
        // SAFETY: tiles divide a square; where the panel streams, every row of it is aligned if the first one is.
        unsafe {
            let (mut src, mut dst) = self.at::<E>(rows.start, col);
            let stream = streams && (dst as usize).is_multiple_of(LINE);
            for _ in 0..rows.len() / (LINE / E) {
                for c in (0..LINE / E).step_by(K::COLS) {
                    for r in (0..LINE / E).step_by(K::ROWS) {
                        let src = src.offset(r as isize * self.src_stride).add(c * E);
                        let dst = dst.offset(c as isize * self.dst_stride).add(r * E);
                        let (src, stride) = hide::<K>(src, self.src_stride);
                        if stream {
                            tile.transpose::<true>(src, stride, dst, self.dst_stride);
                        } else {
                            tile.transpose::<false>(src, stride, dst, self.dst_stride);
                        }
                    }
                }
                (src, dst) = (src.wrapping_offset((LINE / E) as isize * self.src_stride), dst.wrapping_add(LINE));
            }
        }
    }

    /// Tiles that cover a part, moved back into the panel where they would leave it.
    ///
    /// # Safety
    /// As [`Self::transpose`]; the panel must hold a tile.
    #[inline(always)]
    unsafe fn edge<K: Tile, const E: usize>(&self, tile: K, rows: Range<usize>, cols: Range<usize>) {
        for col in cols.step_by(K::COLS) {
            for row in rows.clone().step_by(K::ROWS) {
                // SAFETY: the tile was moved into the panel.
                unsafe {
                    let (src, dst) = self.at::<E>(row.min(self.rows - K::ROWS), col.min(self.cols - K::COLS));
                    let (src, stride) = hide::<K>(src, self.src_stride);
                    tile.transpose::<false>(src, stride, dst, self.dst_stride);
                }
            }
        }
    }

    /// Moves the panel through a block of another stride.
    ///
    /// # Safety
    /// As [`Self::transpose`]; the panel must hold a block.
    #[inline(always)]
    unsafe fn blocks<S: Simd, const E: usize>(&self, s: S, block: &mut Block, streams: bool) {
        let block = block.0.as_mut_ptr().cast::<u8>();
        let (tile, cols) = (Pieces::<S, E>(s), BLOCK_BYTES / E);
        for col in (0..self.cols).step_by(cols) {
            for rows in self.row_groups::<E>(BLOCK_ROWS) {
                // SAFETY: the block was placed within the panel, and tiles divide it; a streamed one is checked to be aligned.
                unsafe {
                    let (src, dst) = self.at::<E>(rows.start.min(self.rows - BLOCK_ROWS), col.min(self.cols - cols));
                    for r in 0..BLOCK_ROWS {
                        let (from, to) = (src.offset(r as isize * self.src_stride), block.add(r * BLOCK_STRIDE));
                        for b in (0..BLOCK_BYTES).step_by(4 * S::LANES) {
                            s.store_int(to.add(b).cast(), s.load_int(from.add(b).cast()));
                        }
                    }
                    for c in (0..cols).step_by(Pieces::<S, E>::COLS) {
                        for r in (0..BLOCK_ROWS).step_by(Pieces::<S, E>::ROWS) {
                            let src = block.add(r * BLOCK_STRIDE + c * E);
                            let dst = dst.offset(c as isize * self.dst_stride).add(r * E);
                            if streams && (dst as usize).is_multiple_of(LINE) {
                                tile.transpose::<true>(src, BLOCK_STRIDE as isize, dst, self.dst_stride);
                            } else {
                                tile.transpose::<false>(src, BLOCK_STRIDE as isize, dst, self.dst_stride);
                            }
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`Self::transpose`].
    #[inline(always)]
    unsafe fn single<const E: usize>(&self) {
        let one = |row, col| {
            // SAFETY: within the panel, which the caller gives.
            unsafe {
                let (src, dst) = self.at::<E>(row, col);
                *dst.cast::<[u8; E]>() = *src.cast::<[u8; E]>();
            }
        };
        // The longer axis in the inner loop.
        if self.rows < self.cols {
            (0..self.rows).for_each(|row| (0..self.cols).for_each(|col| one(row, col)));
        } else {
            (0..self.cols).for_each(|col| (0..self.rows).for_each(|row| one(row, col)));
        }
    }
}
