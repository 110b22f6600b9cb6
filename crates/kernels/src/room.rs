//! Memory for packed weights, in large pages where the system has them.
//!
//! One row passes over all weights of a network once, and tables of small pages for them do not fit the TLB; small pages also lie
//! anywhere, so that some sets of a cache get more lines than they hold. A matrix alone is often smaller than a large page,
//! so matrices share mappings. Read from one to the next, they also follow each other in memory.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// From how many bytes on large pages are asked for.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 2 << 20;

/// Bytes of a mapping that rooms share, and from how many bytes to how many they do: a small room is on the heap, where it does
/// not take a page of its own, and a large one has its own mapping.
const SHARED_BYTES: usize = 32 << 20;
const SHARED_LEAST: usize = 32 << 10;
const SHARED_MOST: usize = 8 << 20;

/// Rooms begin at a line of the caches.
const LINE: usize = 64;

/// A line of the caches, on the heap.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; LINE],
}

/// A mapping, of which each byte belongs to at most one room.
struct Mapping {
    /// Only keeps the bytes, and gives them back: rooms read and write them through pointers.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "pages are given back only where the system can"))]
    memory: MmapMut,
    start: *mut u8,
    /// Bytes that rooms may have.
    len: usize,
}

// SAFETY: nothing is read or written through a mapping, only through its rooms.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The mapping that the next room comes from, if any room of it is still there, and how many of its bytes are taken.
static OPEN: Mutex<(Weak<Mapping>, usize)> = Mutex::new((Weak::new(), 0));

/// Where a room's bytes are. Only keeps them: they are read and written through the room's pointer.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "pages are given back only where the system can"))]
enum Memory {
    Heap {
        _lines: Vec<Line>,
    },
    /// A part of a mapping, which begins at `from`.
    Mapped {
        from: usize,
        mapping: Arc<Mapping>,
    },
}

/// Bytes at the start of a line of the caches, all of them 0 at first.
pub struct Room {
    memory: Memory,
    at: *mut u8,
    len: usize,
}

// SAFETY: the bytes belong to this value alone; the mapping itself is never read or written, nor are the lines.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// Room for so many bytes; the error says how many there is no memory for.
    pub fn new(bytes: usize) -> Result<Room, String> {
        if bytes < SHARED_LEAST {
            let count = bytes.div_ceil(LINE);
            let mut lines = vec![];
            lines.try_reserve_exact(count).map_err(|problem| no_memory(bytes, &problem))?;
            lines.resize(count, Line { _bytes: [0; LINE] });
            let at = lines.as_mut_ptr().cast();
            return Ok(Room { memory: Memory::Heap { _lines: lines }, at, len: bytes });
        }
        if bytes > SHARED_MOST {
            return Ok(Room::of(map(bytes)?, 0, bytes));
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (weak, used) = &mut *open;
        if let Some(mapping) = weak.upgrade()
            && *used + bytes <= SHARED_BYTES
        {
            let from = *used;
            *used = (from + bytes).next_multiple_of(LINE);
            return Ok(Room::of(mapping, from, bytes));
        }
        let mapping = map(SHARED_BYTES)?;
        *open = (Arc::downgrade(&mapping), bytes.next_multiple_of(LINE));
        Ok(Room::of(mapping, 0, bytes))
    }

    /// The caller promises that no other room has these bytes of the mapping, and that it has them.
    fn of(mapping: Arc<Mapping>, from: usize, len: usize) -> Room {
        debug_assert!(from + len <= mapping.len);
        let at = mapping.start.wrapping_add(from);
        Room { memory: Memory::Mapped { from, mapping }, at, len }
    }

    /// The same bytes as numbers; up to 7 at the end are left out.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the bytes belong to this value, begin at a line of the caches, and any bytes are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len / 8) }
    }
}

fn no_memory(bytes: usize, problem: &dyn std::fmt::Display) -> String {
    format!("no memory for {bytes} bytes of packed weights: {problem}")
}

/// A mapping of so many bytes.
fn map(bytes: usize) -> Result<Arc<Mapping>, String> {
    // A mapping that ends within a large page has small pages there: one row with 4-bit weights of 9 MB from memory took 7%
    // longer.
    #[cfg(target_os = "linux")]
    let len = if bytes < LARGE_PAGE { bytes } else { bytes.checked_next_multiple_of(LARGE_PAGE).unwrap_or(bytes) };
    #[cfg(not(target_os = "linux"))]
    let len = bytes;
    let mut memory = MmapMut::map_anon(len).map_err(|problem| no_memory(bytes, &problem))?;
    #[cfg(target_os = "linux")]
    if len >= LARGE_PAGE {
        // Without large pages it is only slower.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    let start = memory.as_mut_ptr();
    Ok(Arc::new(Mapping { memory, start, len: bytes }))
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes belong to this value and live as long as it.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: likewise.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A mapping stays until its last room is gone, but the system gets the pages of this one back now.
        #[cfg(target_os = "linux")]
        if let Memory::Mapped { from, mapping } = &self.memory
            && self.len < mapping.len
        {
            const PAGE: usize = 4096;
            let (start, end) = (from.next_multiple_of(PAGE), (from + self.len) / PAGE * PAGE);
            if start < end {
                // SAFETY: these bytes belong to this value, which is no longer read, and no room gets them again.
                let _ = unsafe {
                    mapping.memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_zero_keep_what_is_written_and_share_no_byte() {
        let sizes = [0, 1, 63, 4096, SHARED_LEAST, SHARED_LEAST + 1, 100_000, 1 << 20, SHARED_MOST, SHARED_MOST + 1];
        let mut rooms = vec![];
        // More than one mapping, and rooms that go while others stay.
        for round in 0..4u8 {
            for (i, &bytes) in sizes.iter().enumerate() {
                let mut room = Room::new(bytes).unwrap();
                assert_eq!((room.len(), room.as_ptr() as usize % LINE), (bytes, 0));
                assert!(room.iter().all(|b| *b == 0), "{bytes}");
                room.fill(round * 16 + i as u8 + 1);
                rooms.push((round * 16 + i as u8 + 1, room));
            }
            let mut number = 0;
            rooms.retain(|_| {
                number += 1;
                number % 3 != 0
            });
            assert!(rooms.iter().all(|(value, room)| room.iter().all(|b| b == value)));
        }
        let (value, room) = &mut rooms[1];
        let words = room.words();
        assert!(words.iter().all(|word| *word == u64::from_ne_bytes([*value; 8])));
    }

    #[test]
    fn memory_that_there_is_not_is_refused() {
        assert!(Room::new(usize::MAX / 2).err().unwrap().contains("no memory for"));
    }
}
