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

/// Bytes of a mapping that rooms share, and from how many bytes to how many they do: a small room would make a large page of a few
/// bytes, and a large one has its own mapping.
const SHARED_BYTES: usize = 32 << 20;
const SHARED_LEAST: usize = 32 << 10;
const SHARED_MOST: usize = 8 << 20;

/// Rooms begin at a line of the caches.
const LINE: usize = 64;

/// A mapping, of which each byte belongs to at most one room.
struct Mapping {
    /// Only keeps the bytes, and gives them back: rooms read and write them through pointers.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "pages are given back only where the system can"))]
    memory: MmapMut,
    start: *mut u8,
    len: usize,
}

// SAFETY: nothing is read or written through a mapping, only through its rooms.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The mapping that the next room comes from, if any room of it is still there, and how many of its bytes are taken.
static OPEN: Mutex<(Weak<Mapping>, usize)> = Mutex::new((Weak::new(), 0));

/// Bytes at the start of a line of the caches, all of them 0 at first.
pub struct Room {
    mapping: Arc<Mapping>,
    /// Where it begins in the mapping.
    from: usize,
    at: *mut u8,
    len: usize,
}

// SAFETY: the bytes belong to this value alone; the mapping itself is never read or written.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// Room for so many bytes; the error says how many there is no memory for.
    pub fn new(bytes: usize) -> Result<Room, String> {
        if !(SHARED_LEAST..=SHARED_MOST).contains(&bytes) {
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
        Room { mapping, from, at, len }
    }

    /// The same bytes as numbers; up to 7 at the end are left out.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the bytes belong to this value, begin at a line of the caches, and any bytes are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len / 8) }
    }
}

/// A mapping of so many bytes.
fn map(bytes: usize) -> Result<Arc<Mapping>, String> {
    let mut memory = MmapMut::map_anon(bytes.max(1))
        .map_err(|problem| format!("no memory for {bytes} bytes of packed weights: {problem}"))?;
    #[cfg(target_os = "linux")]
    if bytes >= LARGE_PAGE {
        // Without large pages it is only slower.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    let (start, len) = (memory.as_mut_ptr(), memory.len());
    Ok(Arc::new(Mapping { memory, start, len }))
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
        if self.len < self.mapping.len {
            const PAGE: usize = 4096;
            let (start, end) = (self.from.next_multiple_of(PAGE), (self.from + self.len) / PAGE * PAGE);
            if start < end {
                // SAFETY: these bytes belong to this value, which is no longer read, and no room gets them again.
                let _ = unsafe {
                    self.mapping.memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (&self.mapping, self.from);
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
