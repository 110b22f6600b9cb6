//! Batches: samples one after the other in one buffer, and how many of them fit.

use super::pool::PooledTensor;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor, count};
use std::ops::Range;

/// Where each sample of a batch lies: sample i at i times a sample's bytes, nothing between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchLayout {
    dtype: DType,
    sample_shape: Vec<usize>,
    batch: usize,
    sample_bytes: usize,
}
impl BatchLayout {
    /// The layout of `batch` samples.
    pub fn new(dtype: DType, sample_shape: &[usize], batch: usize) -> Result<BatchLayout> {
        let sample = count(sample_shape).and_then(|n| dtype.bytes_for(n));
        let sample_bytes = sample.filter(|n| n.checked_mul(batch).is_some()).ok_or_else(|| Error::Tensor {
            expected: "a batch that fits the address space".into(),
            got: format!("{batch} samples of {dtype}{sample_shape:?}"),
        })?;
        Ok(BatchLayout { dtype, sample_shape: sample_shape.to_vec(), batch, sample_bytes })
    }
    /// The whole batch's shape: the number of samples, then a sample's sizes.
    pub fn shape(&self) -> Vec<usize> {
        [&[self.batch], &self.sample_shape[..]].concat()
    }
    /// How many samples.
    pub fn batch(&self) -> usize {
        self.batch
    }
    /// Bytes of one sample.
    pub fn sample_bytes(&self) -> usize {
        self.sample_bytes
    }
    /// Where sample `i` lies.
    pub fn window(&self, i: usize) -> Result<Range<usize>> {
        if i >= self.batch {
            return Err(Error::Tensor {
                expected: format!("a sample below {}", self.batch),
                got: format!("sample {i}"),
            });
        }
        Ok(i * self.sample_bytes..(i + 1) * self.sample_bytes)
    }
}

/// A batch in a pool's buffer: filled sample by sample, then used as one tensor.
///
/// ```
/// # use schwann_core::{memory::Pool, DType};
/// let pool = Pool::default();
/// for round in 0..3 {
///     let mut batch = pool.batch(DType::F32, &[2], 2)?;
///     batch.fill([&[1.0f32, 2.0][..], &[3.0, 4.0]])?;
///     assert_eq!(batch.tensor().shape(), [2, 2]);
/// }
/// assert_eq!(pool.stats().total_allocations, 1);
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchBuffer {
    tensor: PooledTensor,
    layout: BatchLayout,
}
impl BatchBuffer {
    pub(super) fn new(tensor: PooledTensor, layout: BatchLayout) -> BatchBuffer {
        BatchBuffer { tensor, layout }
    }
    /// Where the samples lie.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }
    /// The bytes of sample `i`, to write.
    pub fn sample_mut(&mut self, i: usize) -> Result<&mut [u8]> {
        let window = self.layout.window(i)?;
        Ok(&mut self.tensor.bytes_mut()[window])
    }
    /// Copies one sample in.
    pub fn set<T: Element>(&mut self, i: usize, values: &[T]) -> Result<()> {
        let wrong = |got: String| Error::Tensor {
            expected: format!("sample {i} of {}{:?}", self.layout.dtype, self.layout.sample_shape),
            got,
        };
        let bytes: &[u8] = bytemuck::cast_slice(values);
        // Truth values are bytes of 0 and 1.
        let bools = self.layout.dtype == DType::Bool && T::DTYPE == DType::U8;
        if (T::DTYPE != self.layout.dtype && !bools) || bytes.len() != self.layout.sample_bytes {
            return Err(wrong(format!("{} values of {}", values.len(), T::DTYPE)));
        }
        if let Some(bad) = bytes.iter().find(|&&b| bools && b > 1) {
            return Err(wrong(format!("a truth value of {bad}")));
        }
        self.sample_mut(i)?.copy_from_slice(bytes);
        Ok(())
    }
    /// Copies every sample in; as many must come as the batch has.
    pub fn fill<'a, T: Element>(&mut self, samples: impl IntoIterator<Item = &'a [T]>) -> Result<()> {
        let mut filled = 0;
        for values in samples {
            self.set(filled, values)?;
            filled += 1;
        }
        if filled != self.layout.batch {
            let expected = format!("{} samples", self.layout.batch);
            return Err(Error::Tensor { expected, got: format!("{filled}") });
        }
        Ok(())
    }
    /// The whole batch, [samples, …]. A clone shares the data; drop it before the next fill, or that copies.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// A batch size that follows what fits: doubled on success up to a maximum, halved on failure down to a minimum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveBatch {
    size: usize,
    min: usize,
    max: usize,
}
impl Default for AdaptiveBatch {
    /// 32 to begin with, from 1 to 128.
    fn default() -> AdaptiveBatch {
        AdaptiveBatch { size: 32, min: 1, max: 128 }
    }
}
impl AdaptiveBatch {
    /// Begins at `size`, clamped to `min` and `max`. A minimum of 0 counts as 1, and a maximum below the minimum as the
    /// minimum.
    pub fn new(size: usize, min: usize, max: usize) -> AdaptiveBatch {
        let min = min.max(1);
        let max = max.max(min);
        AdaptiveBatch { size: size.clamp(min, max), min, max }
    }
    /// The size to use now.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Adapts to the success or failure of a batch; gives the next size.
    pub fn adjust(&mut self, success: bool) -> usize {
        self.size = if success { self.size.saturating_mul(2).min(self.max) } else { (self.size / 2).max(self.min) };
        self.size
    }
    /// Runs `f` with the present size; if memory was too small, tries again with half, down to the minimum. Other
    /// errors end it at once and leave the size.
    pub fn run<R>(&mut self, mut f: impl FnMut(usize) -> Result<R>) -> Result<R> {
        loop {
            let at = self.size;
            match f(at) {
                Ok(result) => {
                    self.adjust(true);
                    return Ok(result);
                }
                Err(e @ Error::Budget { .. }) => {
                    if self.adjust(false) == at {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// What went wrong in [`process_in_batches`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchError<E> {
    /// This item fails, alone too; counted from 0.
    Item {
        /// Its place in the data.
        index: usize,
        /// How it fails.
        error: E,
    },
    /// A batch gave not as many results as it has items.
    Count {
        /// The place of its first item.
        first: usize,
        /// Its items.
        items: usize,
        /// Its results.
        results: usize,
    },
    /// The size of a batch is 0.
    Size,
}
impl<E: std::fmt::Display> std::fmt::Display for BatchError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BatchError::Item { index, error } => write!(f, "item {index} fails: {error}"),
            BatchError::Count { first, items, results } => {
                write!(
                    f,
                    "a batch of {items} items from item {first} on gave {results} results; expected one for each item"
                )
            }
            BatchError::Size => write!(f, "batches of 0 items; expected 1 at least"),
        }
    }
}
impl<E: std::fmt::Debug + std::fmt::Display> std::error::Error for BatchError<E> {}

/// Processes data in batches of this size (the last one may be smaller) and gives the results in the data's order. A batch that
/// fails is tried again in halves: what was only too much at once works then, and what fails alone is named.
///
/// ```
/// # use schwann_core::memory::process_in_batches;
/// let data: Vec<i32> = (1..=1000).collect();
/// let doubled = process_in_batches(&data, 64, |batch| Ok::<_, String>(batch.iter().map(|x| x * 2).collect())).unwrap();
/// assert_eq!((doubled.len(), doubled[999]), (1000, 2000));
/// let failed = process_in_batches(&data, 64, |batch| match batch.contains(&77) {
///     true => Err("77 is not allowed"),
///     false => Ok(batch.to_vec()),
/// });
/// assert_eq!(failed.unwrap_err().to_string(), "item 76 fails: 77 is not allowed");
/// ```
pub fn process_in_batches<T, R, E>(
    data: &[T],
    size: usize,
    mut f: impl FnMut(&[T]) -> Result<Vec<R>, E>,
) -> Result<Vec<R>, BatchError<E>> {
    if size == 0 {
        return Err(BatchError::Size);
    }
    let mut results = Vec::with_capacity(data.len());
    // What is to be done, the next last.
    let mut todo = vec![];
    for first in (0..data.len()).step_by(size) {
        todo.push(first..data.len().min(first + size));
        while let Some(span) = todo.pop() {
            match f(&data[span.clone()]) {
                Ok(made) if made.len() == span.len() => results.extend(made),
                Ok(made) => {
                    return Err(BatchError::Count { first: span.start, items: span.len(), results: made.len() });
                }
                Err(error) if span.len() == 1 => return Err(BatchError::Item { index: span.start, error }),
                Err(_) => {
                    let middle = span.start + span.len() / 2;
                    todo.extend([middle..span.end, span.start..middle]);
                }
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, Pool};

    #[test]
    fn the_size_follows_what_fits() {
        let mut batch = AdaptiveBatch::default();
        assert_eq!([batch.adjust(true), batch.adjust(true), batch.adjust(true)], [64, 128, 128]);
        let sizes: Vec<usize> = (0..9).map(|_| batch.adjust(false)).collect();
        assert_eq!(sizes, [64, 32, 16, 8, 4, 2, 1, 1, 1]);
        assert_eq!(AdaptiveBatch::new(0, 0, 0).size(), 1);
        assert_eq!(AdaptiveBatch::new(50, 1, 48).size(), 48);
        let pool = Pool::new(Default::default(), Budget::bytes(4096));
        let mut batch = AdaptiveBatch::new(64, 1, 64);
        let got = batch.run(|n| pool.get(n * 512).map(|b| b.len())).unwrap();
        assert_eq!((got, batch.size()), (8 * 512, 16));
        assert!(batch.run(|_| pool.get(5000)).is_err());
        assert_eq!(batch.size(), 1);
    }

    #[test]
    fn a_batch_is_contiguous_and_refuses_what_does_not_fit() {
        let pool = Pool::default();
        let mut batch = pool.batch(DType::I32, &[2, 1], 3).unwrap();
        batch.fill([&[1i32, 2][..], &[3, 4], &[5, 6]]).unwrap();
        assert_eq!(batch.tensor().shape(), [3, 2, 1]);
        assert_eq!(batch.tensor().values::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        batch.sample_mut(1).unwrap().fill(0);
        assert_eq!(batch.tensor().values::<i32>().unwrap(), [1, 2, 0, 0, 5, 6]);
        assert!(batch.sample_mut(3).is_err());
        assert!(batch.set(0, &[1i32]).is_err());
        assert!(batch.set(0, &[1.0f32, 2.0]).is_err());
        assert!(batch.fill([&[1i32, 2][..]]).is_err(), "too few");
        assert!(batch.fill([&[1i32, 2][..]; 4]).is_err(), "too many");
        let mut truth = pool.batch(DType::Bool, &[2], 1).unwrap();
        assert!(truth.set(0, &[2u8, 0]).is_err());
        truth.set(0, &[1u8, 0]).unwrap();
        assert!(pool.batch(DType::F32, &[usize::MAX], 2).is_err());
    }

    #[test]
    fn items_are_processed_in_order_whatever_their_number() {
        for count in 0..12 {
            let data: Vec<usize> = (0..count).collect();
            for size in 1..14 {
                let mut most = 0;
                let done = process_in_batches(&data, size, |batch| {
                    most = most.max(batch.len());
                    Ok::<_, ()>(batch.iter().map(|x| x * 3).collect())
                });
                assert_eq!(done.unwrap(), data.iter().map(|x| x * 3).collect::<Vec<_>>());
                assert!(most <= size && (count == 0 || most > 0));
            }
        }
        assert_eq!(process_in_batches(&[1], 0, |b| Ok::<_, ()>(b.to_vec())), Err(BatchError::Size));
    }

    #[test]
    fn the_one_item_that_fails_is_named_and_batches_that_are_too_large_are_cut() {
        let data: Vec<usize> = (0..100).collect();
        for bad in [0, 1, 50, 98, 99] {
            let mut calls = 0;
            let failed = process_in_batches(&data, 32, |batch| {
                calls += 1;
                if batch.contains(&bad) { Err("bad") } else { Ok(batch.to_vec()) }
            });
            assert_eq!(failed, Err(BatchError::Item { index: bad, error: "bad" }));
            assert!(calls <= 4 + 11, "{calls} calls to find item {bad}");
        }
        let whole = process_in_batches(&data, 64, |b| if b.len() > 5 { Err("too many") } else { Ok(b.to_vec()) });
        assert_eq!(whole.unwrap(), data);
        let short = process_in_batches(&data, 8, |batch| Ok::<_, String>(batch[1..].to_vec())).unwrap_err();
        assert!(short.to_string().contains("8 items from item 0 on gave 7 results"), "{short}");
    }

    #[test]
    fn a_batch_that_the_budget_refuses_is_halved_and_grows_back_when_there_is_room() {
        let budget = Budget::bytes(4096);
        let pool = Pool::new(Default::default(), budget.clone());
        let mut batch = AdaptiveBatch::new(8, 1, 8);
        let held = budget.reserve(3072, "another").unwrap();
        let mut ran = vec![];
        for _ in 0..3 {
            ran.push(batch.run(|n| pool.get(n * 512).map(|_| n)).unwrap());
        }
        assert_eq!(ran, [2, 2, 2]);
        drop(held);
        for _ in 0..3 {
            ran.push(batch.run(|n| pool.get(n * 512).map(|_| n)).unwrap());
        }
        assert_eq!((&ran[3..], batch.size()), (&[4, 8, 8][..], 8));
    }
}
