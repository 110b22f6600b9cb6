//! A file's content, mapped or in memory, that readers take windows of.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use schwann_kernels::map_file::{self, Mmap, map_file};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) enum Source {
    Bytes(Vec<u8>),
    Map(Arc<Mmap>),
}

impl Source {
    /// Maps a file.
    pub(super) fn open(path: &Path) -> Result<Source> {
        let (file, len) = super::open(path)?;
        // An empty file cannot be mapped; it gets the message of any other short one.
        if len == 0 {
            return Ok(Source::Bytes(vec![]));
        }
        let map = map_file(&file).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Source::Map(Arc::new(map)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Source::Bytes(bytes) => bytes,
            Source::Map(map) => map,
        }
    }

    /// A window, which lies within the file, as a tensor; of a mapped file, without a copy (unless
    /// [`Tensor::from_map`] makes one).
    pub(super) fn tensor(&self, dtype: DType, shape: &[usize], window: Range<usize>) -> Result<Tensor> {
        match self {
            Source::Map(map) => Tensor::from_map(dtype, shape, map.clone(), window.start),
            Source::Bytes(bytes) => Tensor::from_bytes(dtype, shape, &bytes[window]),
        }
    }

    /// Says that a window has been read and is not needed any more, so that its pages need not stay in memory.
    pub(super) fn release(&self, window: Range<usize>) {
        if let Source::Map(map) = self {
            map_file::release(map, window);
        }
    }
}
