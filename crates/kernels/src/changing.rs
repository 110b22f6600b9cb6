//! Weights that change between runs: memory that stays at its address, and is rewritten while no run reads it.
//!
//! All constants and packed weights of a program that may change have one owner, a [`Changing`]. A tape that reads any
//! of them holds the owner's lock for reading during a run, and a rewrite holds it for writing: a run sees one set of
//! weights, never a mixture. Only numbers are rewritten. Sizes, indices and everything else that a tape was verified
//! against stay the same.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The owner of memory that may change.
#[derive(Debug, Default)]
pub struct Changing(RwLock<()>);

impl Changing {
    /// An owner of no memory yet.
    pub fn new() -> Arc<Changing> {
        Arc::default()
    }

    /// Keeps its memory from being rewritten until the guard is dropped.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        // A panic during a rewrite leaves some numbers old and some new, and all of them readable: a poisoned lock can
        // be used.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no run reads its memory. Other runs wait until the result is dropped.
    pub fn rewrite(&self) -> Rewriting<'_> {
        Rewriting { owner: self, _alone: self.0.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// The right to rewrite an owner's memory.
#[derive(Debug)]
pub struct Rewriting<'a> {
    owner: &'a Changing,
    _alone: RwLockWriteGuard<'a, ()>,
}

impl Rewriting<'_> {
    /// Whether this is the right to rewrite what belongs to an owner.
    pub(crate) fn is_of(&self, owner: &Changing) -> bool {
        std::ptr::eq(owner, self.owner)
    }
}

/// Numbers at a fixed address, which kernels read through pointers. They never change, or only where their owner
/// rewrites them.
pub(crate) struct Table<T> {
    cells: Vec<UnsafeCell<T>>,
    owner: Option<Arc<Changing>>,
}

// SAFETY: a table without an owner is never written. One with an owner is read by runs, which hold the owner's lock for
// reading, and written only with that lock held for writing.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { cells: Vec::new(), owner: None }
    }
}

impl<T: Copy> From<Vec<T>> for Table<T> {
    fn from(values: Vec<T>) -> Table<T> {
        let mut values = ManuallyDrop::new(values);
        // SAFETY: the parts of a vector that is not dropped; a cell of T has the layout of a T.
        let cells = unsafe { Vec::from_raw_parts(values.as_mut_ptr().cast(), values.len(), values.capacity()) };
        Table { cells, owner: None }
    }
}

impl<T: Copy> Table<T> {
    /// The same memory, which may change from now on.
    pub(crate) fn owned_by(mut self, owner: &Arc<Changing>) -> Table<T> {
        self.owner = Some(Arc::clone(owner));
        self
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        self.owner.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// The address of the first number. It may be read while the owner's lock is held, or at any time if there is no
    /// owner.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *const T {
        self.cells.as_ptr().cast()
    }

    /// All numbers. Nothing can rewrite them while the slice lives: the table has no owner, or `by` is borrowed for as
    /// long.
    pub(crate) fn look<'a>(&'a self, by: &'a Rewriting<'_>) -> Result<&'a [T], String> {
        if self.owner.is_some() {
            self.check(by)?;
        }
        // SAFETY: cells without an owner are never written, and others only through an exclusive borrow of `by`.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// Checks that `by` is the right to rewrite this table; the error says why it is not.
    fn check(&self, by: &Rewriting<'_>) -> Result<(), String> {
        match &self.owner {
            Some(owner) if by.is_of(owner) => Ok(()),
            Some(_) => Err("weights that another owner may rewrite".into()),
            None => Err("weights that do not change".into()),
        }
    }

    /// The address of the first number, which may be written while `by` is borrowed; an error if `by` belongs to
    /// another owner.
    pub(crate) fn to_rewrite(&self, by: &mut Rewriting<'_>) -> Result<*mut T, String> {
        self.check(by).map(|()| self.as_ptr().cast_mut())
    }

    /// Replaces all numbers by those of `with`, a table of the same length that has no owner.
    pub(crate) fn rewrite(&self, by: &mut Rewriting<'_>, with: &Table<T>) -> Result<(), String> {
        let to = self.to_rewrite(by)?;
        if with.len() != self.len() || with.owner.is_some() {
            return Err(format!("{} numbers in the place of {}, or ones that have an owner", with.len(), self.len()));
        }
        // SAFETY: both have the same length. These cells have an owner, whose lock `by` holds, so no run reads them
        // now. The others have no owner, so they are different cells, and never written.
        unsafe { to.copy_from_nonoverlapping(with.as_ptr(), with.len()) };
        Ok(())
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [u8; 64]);

/// Constant bytes of a tape that may change.
pub struct Numbers {
    lines: Table<Line>,
    bytes: usize,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Numbers({} bytes)", self.bytes)
    }
}

impl Numbers {
    /// A copy of these bytes, which `owner` may rewrite. If the system has no memory for them, the error is their
    /// number.
    pub fn new(owner: &Arc<Changing>, bytes: &[u8]) -> Result<Numbers, usize> {
        let count = bytes.len().div_ceil(64);
        let mut lines: Vec<Line> = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| bytes.len())?;
        lines.resize(count, Line([0; 64]));
        // SAFETY: the lines hold at least this many bytes, and nothing else refers to them yet.
        unsafe { lines.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(Numbers { lines: Table::from(lines).owned_by(owner), bytes: bytes.len() })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Changing>> {
        self.lines.owner()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    /// Replaces all bytes by others, which must be as many.
    pub fn rewrite(&self, by: &mut Rewriting<'_>, bytes: &[u8]) -> Result<(), String> {
        let to = self.lines.to_rewrite(by)?;
        if bytes.len() != self.bytes {
            return Err(format!("{} bytes in the place of {}", bytes.len(), self.bytes));
        }
        // SAFETY: the lines hold this many bytes, and no run reads them while `by` exists. The caller's slice is other
        // memory, since no reference to these lines leaves this module.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}
