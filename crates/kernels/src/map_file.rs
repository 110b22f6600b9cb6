//! Mapping a file into memory: the one `unsafe` call that reading files needs, kept beside the other `unsafe` code so
//! that the parsers can forbid it.

use std::fs::File;
use std::io;

pub use memmap2::Mmap;

/// Maps the whole of `file` for reading.
///
/// The mapping shows the file as it is: whoever truncates the file meanwhile ends this process with a bus error, and
/// whoever writes into it changes what is read. Schwann's own writers therefore never touch an existing file; they write
/// a new one and rename it, which leaves a mapping of the old one as it was.
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is private to reading, is only ever seen as bytes (any bit pattern is valid), and every reader
    // of those bytes checks what it reads; that no other process writes the file meanwhile is the caller's choice of
    // file, as the documentation above says, and the same that every memory-mapping loader asks for.
    unsafe { Mmap::map(file) }
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
}
