//! Mapping a file into memory: the one `unsafe` call that reading files needs, kept beside the other `unsafe` code so
//! that the parsers can forbid it.

use std::fs::File;
use std::io;
use std::ops::Range;

pub use memmap2::Mmap;

/// Maps the whole of `file` for reading.
///
/// The mapping shows the file as it is now: if the file is truncated meanwhile, reading it ends this process with a bus
/// error, and a write to the file changes what is read. Schwann's own writers therefore never touch an existing file;
/// they write a new one and rename it, which leaves a mapping of the old one as it was.
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is private to reading, is only ever seen as bytes (any bit pattern is valid), and every reader
    // of those bytes checks what it reads; that no other process writes the file meanwhile is the caller's choice of
    // file, as the documentation above says, and the same that every memory-mapping loader asks for.
    unsafe { Mmap::map(file) }
}

/// When a page is read, the system also maps cached pages around it: up to a huge page on either side.
const AROUND: usize = 2 << 20;

/// Releases the pages of a part of a mapping that has been read: they no longer count as memory of this process, but
/// stay in the system's cache while there is room, and are mapped again by the next read. This is a hint, so errors are
/// ignored.
pub fn release(map: &Mmap, part: Range<usize>) {
    let start = part.start.saturating_sub(AROUND);
    let end = part.end.saturating_add(AROUND).min(map.len());
    #[cfg(unix)]
    if start < end {
        use memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the mapping is of a file, shared and only ever read, so a page that is read again has the file's
        // bytes; that the file does not change is already a condition of `map_file`.
        let _ = unsafe { map.unchecked_advise_range(DontNeed, start, end - start) };
    }
    #[cfg(not(unix))]
    let _ = (start, end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_mapping_shows_the_file_and_outlives_its_name() {
        let path = std::env::temp_dir().join(format!("schwann-map-{}", std::process::id()));
        File::create(&path).unwrap().write_all(b"content").unwrap();
        let map = map_file(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&map[..], b"content");
    }

    #[test]
    fn what_was_released_reads_as_before() {
        let path = std::env::temp_dir().join(format!("schwann-release-{}", std::process::id()));
        let content: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let map = map_file(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        for part in [0..0, 5..70_000, 300_000..999_999, 0..usize::MAX, 2_000_000..3_000_000] {
            assert!(map[..] == content[..]);
            release(&map, part);
        }
        assert!(map[..] == content[..]);
    }
}
