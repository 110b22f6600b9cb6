//! Memory that other processes see: a file, mapped, as atomic words. Beside the other `unsafe` code, so that whoever lays
//! something out in it can forbid that.

use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of a mapped file. Other processes may read and write them at any time, so nothing that is read here can be
/// relied on.
pub struct Words {
    map: MmapRaw,
}

impl Words {
    /// Maps the whole of `file`, whose length must be a multiple of eight bytes, for reading and writing. All of its
    /// pages are touched now, so that none has to be brought in later.
    ///
    /// The file's blocks should have been written before: where the system cannot find room for a page of a mapped file,
    /// it ends the process. It does so too where somebody else cuts the file off.
    pub fn map(file: &File) -> io::Result<Words> {
        let map = MmapOptions::new().map_raw(file)?;
        if map.len() == 0 || map.len() % size_of::<AtomicU64>() != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is no whole number of words"));
        }
        let words = Words { map };
        const PAGE: usize = 4096 / size_of::<AtomicU64>();
        for word in words.all().iter().step_by(PAGE) {
            // Adding nothing writes the page and keeps what is there.
            word.fetch_add(0, Ordering::Relaxed);
        }
        Ok(words)
    }

    /// All of them.
    #[inline(always)]
    pub fn all(&self) -> &[AtomicU64] {
        let count = self.map.len() / size_of::<AtomicU64>();
        // SAFETY: the mapping is `map.len()` bytes long, begins at a page and so is aligned, and lives as long as
        // `self`. It is readable and writable, any bytes are a valid `AtomicU64`, and this program reaches it in no other
        // way than through these atomics, so that what other processes write is seen as by another thread.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), count) }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared words", self.all().len())
    }
}

/// The number of the user that this process acts for.
#[cfg(unix)]
pub fn user() -> u32 {
    // SAFETY: it takes nothing, touches no memory of ours, and never fails.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_in_the_file_and_a_file_of_odd_length_is_refused() {
        let path = std::env::temp_dir().join(format!("schwann-shared-{}", std::process::id()));
        std::fs::write(&path, [7u8; 64]).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let words = Words::map(&open()).unwrap();
        assert_eq!(words.all().len(), 8);
        assert_eq!(words.all()[3].load(Ordering::Relaxed), u64::from_ne_bytes([7; 8]));
        words.all()[3].store(42, Ordering::Release);
        assert_eq!(std::fs::read(&path).unwrap()[24..32], 42u64.to_ne_bytes());
        for odd in [0, 9] {
            std::fs::write(&path, vec![0u8; odd]).unwrap();
            assert!(Words::map(&open()).is_err());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
