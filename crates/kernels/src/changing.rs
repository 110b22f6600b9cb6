//! Weights that change between runs: memory that stays where it is, and is rewritten while nobody reads it.
//!
//! All constants and packed weights of a program that may change have one owner, a [`Changing`]. A tape that reads any of
//! them holds the owner's lock for the time of a run, and whoever rewrites them has the lock to itself meanwhile: a run
//! sees one set of weights, never a mixture. Sizes, indices and whatever else a tape was verified against are not
//! rewritten; only numbers are.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The owner of memory that may change.
#[derive(Debug, Default)]
pub struct Changing(RwLock<()>);

impl Changing {
    /// An owner of nothing yet.
    pub fn new() -> Arc<Changing> {
        Arc::default()
    }

    /// Keeps its memory from being rewritten.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        // Whoever panicked while rewriting left numbers behind, old or new; there is nothing else that could be broken.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no run reads its memory, and keeps others from beginning until what this returns is dropped.
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

/// Numbers at a place of their own that other calls read through pointers: for good, or until their owner rewrites them.
pub(crate) struct Table<T> {
    cells: Vec<UnsafeCell<T>>,
    owner: Option<Arc<Changing>>,
}

// SAFETY: the cells are read by runs, which hold the owner's lock (if there is an owner), and written by whoever has that
// lock alone (and only if there is one).
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

    /// Where it begins. What is there may be read while the owner's lock is held, or always if there is no owner.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *const T {
        self.cells.as_ptr().cast()
    }

    /// All of it, as long as nobody can rewrite it: it has no owner, or the right to is borrowed here.
    pub(crate) fn look<'a>(&'a self, by: &'a Rewriting<'_>) -> Result<&'a [T], String> {
        if self.owner.is_some() {
            self.check(by)?;
        }
        // SAFETY: nobody writes to cells that have no owner; to others only with the right to, exclusively borrowed.
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// Whether somebody may rewrite it; why not is the error.
    fn check(&self, by: &Rewriting<'_>) -> Result<(), String> {
        match &self.owner {
            Some(owner) if std::ptr::eq(&**owner, by.owner) => Ok(()),
            Some(_) => Err("weights that another owner may rewrite".into()),
            None => Err("weights that do not change".into()),
        }
    }

    /// Where it begins, for writing as long as the right to is borrowed; an error where that is the right to other memory.
    pub(crate) fn to_rewrite(&self, by: &mut Rewriting<'_>) -> Result<*mut T, String> {
        self.check(by).map(|()| self.as_ptr().cast_mut())
    }

    /// Writes as many other numbers in their place, from a table that never changes.
    pub(crate) fn rewrite(&self, by: &mut Rewriting<'_>, with: &Table<T>) -> Result<(), String> {
        let to = self.to_rewrite(by)?;
        if with.len() != self.len() || with.owner.is_some() {
            return Err(format!("{} numbers in the place of {}, or not fresh ones", with.len(), self.len()));
        }
        // SAFETY: as many cells, which nobody reads meanwhile, since they have an owner; the others have none, so that
        // they are other cells, and nobody writes them.
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
    /// A copy of these bytes, which `owner` may rewrite; an error with how many they are where the system has no room.
    pub fn new(owner: &Arc<Changing>, bytes: &[u8]) -> Result<Numbers, usize> {
        let count = bytes.len().div_ceil(64);
        let mut lines: Vec<Line> = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| bytes.len())?;
        lines.resize(count, Line([0; 64]));
        // SAFETY: as many bytes of lines, which nobody else has yet.
        unsafe { lines.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(Numbers { lines: Table::from(lines).owned_by(owner), bytes: bytes.len() })
    }

    /// How many bytes they are.
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

    /// Writes as many other bytes in their place.
    pub fn rewrite(&self, by: &mut Rewriting<'_>, bytes: &[u8]) -> Result<(), String> {
        let to = self.lines.to_rewrite(by)?;
        if bytes.len() != self.bytes {
            return Err(format!("{} bytes in the place of {}", bytes.len(), self.bytes));
        }
        // SAFETY: as many bytes of lines, which nobody reads meanwhile; a slice of the caller's cannot be this memory, of
        // which nobody outside has a reference.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}
