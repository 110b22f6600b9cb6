//! Arrays larger than memory, piece by piece: a thread reads the next piece from mapped files into buffers that were made
//! once, while the last one is being computed with.

use crate::{Error, Result};
use schwann_core::Tensor;
use schwann_core::io::NpyRows;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Pieces that exist at a time: one to compute with, one that is being read.
const BUFFERS: usize = 2;

/// One piece: each array's rows, by the array's name, in the arrays' order.
#[derive(Debug)]
pub struct Chunk {
    /// The first row of it.
    pub first: usize,
    /// The arrays.
    pub arrays: Vec<(String, Tensor)>,
}

impl Chunk {
    /// Rows in it.
    pub fn rows(&self) -> usize {
        self.arrays.first().and_then(|(_, t)| t.shape().first().copied()).unwrap_or(0)
    }
}

/// Rows of arrays in files, so many at a time, from the first to the last. (For windows of sequences to learn from, there is
/// [`Loader`](super::Loader).)
///
/// ```no_run
/// # use schwann_nn::data::Chunks;
/// # use schwann_core::io::NpyRows;
/// let x = NpyRows::open("larger-than-memory.npy")?;
/// let mut chunks = Chunks::new(vec![("x".into(), x)], 4096)?;
/// while let Some(chunk) = chunks.next_chunk()? {
///     println!("{} rows from row {} on", chunk.rows(), chunk.first);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chunks {
    filled: Option<Receiver<Result<Chunk>>>,
    used: Option<SyncSender<Chunk>>,
    current: Option<Chunk>,
    rows: usize,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chunks of {} rows", self.rows)
    }
}

impl Chunks {
    /// Pieces of `rows` rows; the last one may have fewer. All arrays have as many rows.
    pub fn new(arrays: Vec<(String, NpyRows)>, rows: usize) -> Result<Chunks> {
        let Some((first_name, first)) = arrays.first() else {
            return Err(Error::argument("arrays", 0, "one at least"));
        };
        if rows == 0 {
            return Err(Error::argument("rows", 0, "1 at least"));
        }
        let count = first.shape()[0];
        if let Some((name, other)) = arrays.iter().find(|(_, a)| a.shape()[0] != count) {
            let got = format!("{} rows", other.shape()[0]);
            return Err(Error::argument(name.clone(), got, format!("{count} rows, as `{first_name}` has")));
        }
        let room = |rows: usize| -> Result<Vec<(String, Tensor)>> {
            let one = |(name, a): &(String, NpyRows)| {
                let shape = [&[rows], &a.shape()[1..]].concat();
                Ok((name.clone(), Tensor::zeros(a.dtype(), &shape)?))
            };
            arrays.iter().map(one).collect()
        };
        let rows = rows.min(count.max(1));
        let (to, filled) = sync_channel(BUFFERS);
        let (used, from) = sync_channel::<Chunk>(BUFFERS);
        for _ in 0..BUFFERS.min(count.div_ceil(rows)) {
            // There is room for all of them.
            let _ = used.send(Chunk { first: 0, arrays: room(rows)? });
        }
        let last = match count % rows {
            0 => None,
            rest => Some(Chunk { first: 0, arrays: room(rest)? }),
        };
        let thread = std::thread::Builder::new().name("schwann-chunks".into());
        let thread = thread.spawn(move || read(&arrays, (count, rows), last, &from, &to));
        let thread = thread.map_err(|e| Error::file(e.to_string()))?;
        Ok(Chunks { filled: Some(filled), used: Some(used), current: None, rows, thread: Some(thread) })
    }

    /// Rows of a piece.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The next piece, which stays until the one after is asked for; `None` after the last.
    pub fn next_chunk(&mut self) -> Result<Option<&Chunk>> {
        if let (Some(done), Some(used)) = (self.current.take(), &self.used) {
            // Where the thread has read all there is, nobody needs it any more.
            let _ = used.send(done);
        }
        let Some(filled) = &self.filled else { return Ok(None) };
        match filled.recv() {
            Ok(chunk) => Ok(Some(self.current.insert(chunk?))),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // Whichever way the thread waits for, it hears that nobody is there.
        (self.used, self.filled) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: reads piece after piece into buffers that come back.
fn read(
    arrays: &[(String, NpyRows)],
    (count, rows): (usize, usize),
    mut last: Option<Chunk>,
    from: &Receiver<Chunk>,
    to: &SyncSender<Result<Chunk>>,
) {
    let mut first = 0;
    while first < count {
        let whole = count - first >= rows;
        let next = if whole { from.recv().ok() } else { last.take() };
        let Some(mut chunk) = next else { return };
        chunk.first = first;
        let mut outcome = Ok(());
        for ((_, array), (name, into)) in arrays.iter().zip(&mut chunk.arrays) {
            outcome = array.read(first, into).map_err(|e| Error::file(format!("`{name}`: {e}")));
            if outcome.is_err() {
                break;
            }
        }
        first += chunk.rows();
        let failed = outcome.is_err();
        if to.send(outcome.map(|()| chunk)).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_core::io::write_npy;

    fn file(name: &str, rows: usize) -> (std::path::PathBuf, Vec<f32>) {
        let path = std::env::temp_dir().join(format!("schwann-chunks-{}-{name}.npy", std::process::id()));
        let values: Vec<f32> = (0..rows * 2).map(|i| i as f32).collect();
        write_npy(&path, &Tensor::new(&[rows, 2], &values).unwrap()).unwrap();
        (path, values)
    }

    #[test]
    fn every_row_comes_once_and_in_order() {
        for (count, rows) in [(10, 4), (8, 4), (1, 4), (4, 1), (3, 100), (0, 3)] {
            let (path, values) = file(&format!("{count}-{rows}"), count);
            let open = || NpyRows::open(&path).unwrap();
            let mut chunks = Chunks::new(vec![("a".into(), open()), ("b".into(), open())], rows).unwrap();
            let mut found: Vec<f32> = vec![];
            while let Some(chunk) = chunks.next_chunk().unwrap() {
                assert_eq!((chunk.first * 2, chunk.arrays.len()), (found.len(), 2));
                assert_eq!(chunk.arrays[0].1, chunk.arrays[1].1);
                found.extend(chunk.arrays[0].1.values::<f32>().unwrap());
            }
            assert_eq!(found, values, "{count} rows by {rows}");
            assert!(chunks.next_chunk().unwrap().is_none(), "the end stays the end");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn one_who_stops_in_the_middle_leaves_no_thread_behind() {
        let (path, _) = file("stop", 1000);
        let mut chunks = Chunks::new(vec![("a".into(), NpyRows::open(&path).unwrap())], 3).unwrap();
        assert_eq!(chunks.next_chunk().unwrap().unwrap().rows(), 3);
        drop(chunks);
        drop(Chunks::new(vec![("a".into(), NpyRows::open(&path).unwrap())], 3).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn arrays_that_do_not_go_together_are_refused() {
        let (a, _) = file("a", 4);
        let (b, _) = file("b", 5);
        let open = |path| NpyRows::open(path).unwrap();
        let unlike = Chunks::new(vec![("a".into(), open(&a)), ("b".into(), open(&b))], 2).unwrap_err().to_string();
        assert!(unlike.contains("5 rows") && unlike.contains("4 rows, as `a` has"), "{unlike}");
        assert!(Chunks::new(vec![], 2).is_err() && Chunks::new(vec![("a".into(), open(&a))], 0).is_err());
        std::fs::remove_file(&a).unwrap();
        std::fs::remove_file(&b).unwrap();
    }
}
