//! Tensors on the host: typed, shaped, contiguous, shared without copying.

use crate::dtype::DType;
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use schwann_kernels::map_file;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// One cache line: buffers are made of these, so that every tensor and arena starts on its own line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that start on a cache line.
#[derive(Clone)]
pub struct Bytes {
    lines: Vec<Line>,
    len: usize,
}

impl Bytes {
    /// `len` zeroed bytes (large ones come from the system's zero pages), or an error if the system has no memory for
    /// them; `what` is for the message.
    pub fn try_zeroed(len: usize, what: &str) -> Result<Bytes> {
        let refuse = || Error::Memory { what: what.into(), bytes: len };
        // More than the machine has is refused, even if the system would accept it now and fail when it is used.
        if crate::memory::machine_bytes().is_ok_and(|machine| len > machine) {
            return Err(refuse());
        }
        let lines = bytemuck::try_zeroed_vec(len.div_ceil(64)).map_err(|()| refuse())?;
        Ok(Bytes { lines, len })
    }
    /// A copy of `bytes`, or an error if the system has no memory for it; `what` is for the message.
    pub fn copy_of(bytes: &[u8], what: &str) -> Result<Bytes> {
        let mut copy = Bytes::try_zeroed(bytes.len(), what)?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }
    /// Bytes that this could hold without another allocation.
    pub fn capacity(&self) -> usize {
        self.lines.len() * 64
    }
    /// The same allocation holding `len` bytes, if they fit; contents beyond the old length are unspecified.
    pub fn resized(mut self, len: usize) -> Option<Bytes> {
        (len <= self.capacity()).then(|| {
            self.len = len;
            self
        })
    }
}
impl std::ops::Deref for Bytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}
impl std::ops::DerefMut for Bytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

/// A Rust type that is an element type.
pub trait Element: Pod {
    /// Which one.
    const DTYPE: DType;
}
macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(f32 => F32, f16 => F16, bf16 => Bf16, i8 => I8, u8 => U8, i32 => I32);

enum Storage {
    Owned(Arc<Bytes>),
    /// Never shared, so that writing needs no check for other users: for memory that a session writes in every run.
    Alone(Bytes),
    /// A window of a memory-mapped file: numbers that may change at any time, if another process writes to the file.
    /// Never indices, see [`Tensor::from_map`].
    Mapped {
        map: Arc<memmap2::Mmap>,
        start: usize,
        len: usize,
    },
    /// Computed when it is read, freed after its last use, and computed again if it is read again.
    Later(Arc<Later>),
}

/// Computes a tensor when it is read.
pub(crate) trait Make: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Makes the tensor, with data that is not shared. It fails only if there is not enough memory.
    fn make(&self) -> Result<Tensor>;
    /// Bytes on the heap that are kept to make it from.
    fn held(&self) -> usize;
    /// How deeply such tensors are nested: 1, or more if it is computed from others of this kind.
    fn depth(&self) -> usize;
}

struct Later {
    make: Box<dyn Make>,
    len: usize,
    /// The bytes, while they are in use.
    at_hand: Mutex<Weak<Bytes>>,
    /// The bytes, kept from the first time that a plain reference to them was needed.
    kept: OnceLock<Arc<Bytes>>,
}

impl Later {
    fn get(&self) -> Result<Arc<Bytes>> {
        if let Some(kept) = self.kept.get() {
            return Ok(Arc::clone(kept));
        }
        let mut at_hand = self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = at_hand.upgrade() {
            return Ok(bytes);
        }
        let made = self.make.make()?;
        let Storage::Owned(bytes) = made.storage else {
            return Err(Error::Internal(format!("{made} was made, but is not its own")));
        };
        *at_hand = Arc::downgrade(&bytes);
        Ok(bytes)
    }

    /// The bytes, which are kept from now on. This cannot return an error, so missing memory ends the program here, as
    /// in any other copy; [`Tensor::at_hand`] returns an error.
    #[cold]
    fn bytes(&self) -> &[u8] {
        self.kept.get_or_init(|| {
            let missing =
                std::alloc::Layout::array::<Line>(self.len.div_ceil(64)).unwrap_or(std::alloc::Layout::new::<Line>());
            self.get().unwrap_or_else(|_| std::alloc::handle_alloc_error(missing))
        })
    }
}

impl Storage {
    /// The bytes, for writing; shared data is copied first.
    #[cold]
    fn make_mut(&mut self) -> &mut [u8] {
        let far = match self {
            Storage::Owned(_) | Storage::Alone(_) => None,
            Storage::Mapped { map, start, len } => Some(&map[*start..*start + *len]),
            Storage::Later(later) => Some(later.bytes()),
        };
        if let Some(bytes) = far {
            // Not checked against the budget, like the copy of shared data: it is no larger than the data that already
            // exists.
            let mut copy = Bytes { lines: bytemuck::zeroed_vec(bytes.len().div_ceil(64)), len: bytes.len() };
            copy.copy_from_slice(bytes);
            *self = Storage::Owned(Arc::new(copy));
        }
        match self {
            Storage::Owned(bytes) => &mut Arc::make_mut(bytes)[..],
            Storage::Alone(bytes) => &mut bytes[..],
            Storage::Mapped { .. } | Storage::Later(_) => unreachable!("made owned above"),
        }
    }
}

impl Clone for Storage {
    fn clone(&self) -> Storage {
        match self {
            Storage::Owned(bytes) => Storage::Owned(Arc::clone(bytes)),
            Storage::Alone(bytes) => Storage::Owned(Arc::new(bytes.clone())),
            Storage::Mapped { map, start, len } => Storage::Mapped { map: Arc::clone(map), start: *start, len: *len },
            Storage::Later(later) => Storage::Later(Arc::clone(later)),
        }
    }
}

/// A contiguous row-major tensor. Cloning shares the data; the first write to a shared one copies it.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    storage: Storage,
}

/// How many elements a shape has, or `None` beyond the address space. The product without axes of size 0 must fit too,
/// so that products of any sizes of the shape never overflow.
pub fn count(shape: &[usize]) -> Option<usize> {
    let full = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))?;
    let fits = full <= isize::MAX as usize / 16;
    fits.then_some(if shape.contains(&0) { 0 } else { full })
}

impl Tensor {
    fn size_of(dtype: DType, shape: &[usize]) -> Result<usize> {
        count(shape).and_then(|n| dtype.bytes_for(n)).filter(|&n| n <= isize::MAX as usize).ok_or_else(|| {
            Error::Tensor { expected: "a shape that fits the address space".into(), got: format!("{dtype}{shape:?}") }
        })
    }

    fn zeroed(dtype: DType, shape: &[usize]) -> Result<Bytes> {
        Bytes::try_zeroed(Self::size_of(dtype, shape)?, &format!("a tensor {dtype}{shape:?}"))
    }

    /// All zeros; an error where there is no memory for them.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let bytes = Self::zeroed(dtype, shape)?;
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Owned(Arc::new(bytes)) })
    }

    /// Zeros whose data is never shared: a clone copies it.
    pub(crate) fn zeros_alone(dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let bytes = Self::zeroed(dtype, shape)?;
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Alone(bytes) })
    }

    /// From values in row-major order.
    pub fn new<T: Element>(shape: &[usize], values: &[T]) -> Result<Tensor> {
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(values))
    }

    /// A single number.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Self::new(&[], &[value]).expect("one element fits a scalar")
    }

    /// From truth values in row-major order.
    pub fn from_bools(shape: &[usize], values: &[bool]) -> Result<Tensor> {
        let bytes: Vec<u8> = values.iter().map(|&b| u8::from(b)).collect();
        Self::from_bytes(DType::Bool, shape, &bytes)
    }

    /// From little-endian bytes in row-major order; truth values must be 0 or 1.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
        let want = Self::size_of(dtype, shape)?;
        if want != bytes.len() {
            return Err(Error::Tensor {
                expected: format!("{want} bytes for {dtype}{shape:?}"),
                got: format!("{} bytes", bytes.len()),
            });
        }
        check_bools(dtype, bytes)?;
        let copy = Bytes::copy_of(bytes, &format!("a tensor {dtype}{shape:?}"))?;
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Owned(Arc::new(copy)) })
    }

    /// From an owned buffer, without a copy.
    pub fn from_buffer(dtype: DType, shape: &[usize], bytes: Bytes) -> Result<Tensor> {
        let want = Self::size_of(dtype, shape)?;
        if want != bytes.len() {
            return Err(Error::Tensor {
                expected: format!("{want} bytes for {dtype}{shape:?}"),
                got: format!("{} bytes", bytes.len()),
            });
        }
        check_bools(dtype, &bytes)?;
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Owned(Arc::new(bytes)) })
    }

    /// A window of a mapped file; copied where its start is not aligned for the type, and where it may be a list of
    /// indices (`i32`): indices are checked before they are used, and the file could change in between.
    pub fn from_map(dtype: DType, shape: &[usize], map: Arc<memmap2::Mmap>, start: usize) -> Result<Tensor> {
        let len = Self::size_of(dtype, shape)?;
        let window = start.checked_add(len).and_then(|end| map.get(start..end)).ok_or_else(|| Error::Tensor {
            expected: format!("{len} bytes from offset {start}"),
            got: format!("a file of {} bytes", map.len()),
        })?;
        check_bools(dtype, window)?;
        if dtype == DType::I32 || window.as_ptr().align_offset(dtype.size()) != 0 {
            return Self::from_bytes(dtype, shape, window);
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Mapped { map, start, len } })
    }

    /// The buffer, without a copy, if this is the last tensor that uses it; else the tensor itself, as the error.
    pub fn into_buffer(self) -> Result<Bytes, Tensor> {
        let Tensor { dtype, shape, storage } = self;
        match storage {
            Storage::Owned(bytes) => {
                Arc::try_unwrap(bytes).map_err(|shared| Tensor { dtype, shape, storage: Storage::Owned(shared) })
            }
            Storage::Alone(bytes) => Ok(bytes),
            other => Err(Tensor { dtype, shape, storage: other }),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// How many elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Bytes of all elements.
    pub(crate) fn size(&self) -> usize {
        self.len() * self.dtype.size()
    }
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the data lies in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.storage, Storage::Mapped { .. })
    }

    /// The elements' bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Owned(bytes) => bytes,
            Storage::Alone(bytes) => bytes,
            Storage::Mapped { map, start, len } => &map[*start..*start + *len],
            Storage::Later(later) => later.bytes(),
        }
    }

    /// A tensor that is computed when it is read, and freed after its last use: for folded weights that are only read
    /// to be packed.
    pub(crate) fn later(dtype: DType, shape: &[usize], make: Box<dyn Make>) -> Result<Tensor> {
        let len = Self::size_of(dtype, shape)?;
        let storage = Later { make, len, at_hand: Mutex::default(), kept: OnceLock::new() };
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Later(Arc::new(storage)) })
    }

    /// The same tensor with its bytes in memory (or in a mapped file) as long as it lives.
    pub(crate) fn at_hand(&self) -> Result<Tensor> {
        let storage = match &self.storage {
            Storage::Later(later) => Storage::Owned(later.get()?),
            other => other.clone(),
        };
        Ok(Tensor { dtype: self.dtype, shape: self.shape.clone(), storage })
    }

    /// A number that no other tensor with other data has while this one lives.
    pub(crate) fn identity(&self) -> usize {
        match &self.storage {
            Storage::Later(later) => Arc::as_ptr(later).addr(),
            _ => self.bytes().as_ptr().addr(),
        }
    }

    /// Bytes on the heap that it keeps.
    pub(crate) fn held(&self) -> usize {
        match &self.storage {
            Storage::Later(later) => later.make.held(),
            Storage::Mapped { .. } => 0,
            _ => self.bytes().len(),
        }
    }

    /// How deeply tensors that are computed when they are read are nested in it; 0 if its data already exists.
    pub(crate) fn depth(&self) -> usize {
        if let Storage::Later(later) = &self.storage { later.make.depth() } else { 0 }
    }

    /// Says that a part of the bytes will not be read again soon. If it is in a mapped file, the system may take its
    /// memory back, and reads the file again if needed. Other data stays, and so do parts that are too small to be
    /// worth the call.
    pub(crate) fn release(&self, part: Range<usize>) {
        const LEAST: usize = 64 << 10;
        if let (Storage::Mapped { map, start, len }, true) = (&self.storage, part.len() >= LEAST) {
            map_file::release(map, start + part.start.min(*len)..start + part.end.min(*len));
        }
    }

    /// Reads all elements once, some at a time; what lies in a mapped file then does not stay in this process' memory.
    pub fn read_once<T: Element>(&self, mut read: impl FnMut(&[T])) -> Result<()> {
        self.expect_type(T::DTYPE)?;
        self.read_through(|bytes| read(bytemuck::cast_slice(bytes)));
        Ok(())
    }

    /// Reads all bytes once, some at a time (whole elements of any type), and releases them.
    pub(crate) fn read_through(&self, mut read: impl FnMut(&[u8])) {
        const PIECE: usize = 1 << 20;
        for (i, piece) in self.bytes().chunks(PIECE).enumerate() {
            read(piece);
            self.release(i * PIECE..i * PIECE + piece.len());
        }
    }

    /// The elements' bytes, to write; shared or mapped data is copied first.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Alone(bytes) => &mut bytes[..],
            shared => shared.make_mut(),
        }
    }

    /// The elements as `T`.
    pub fn values<T: Element>(&self) -> Result<&[T]> {
        self.expect_type(T::DTYPE)?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements as `T`, to write.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.expect_type(T::DTYPE)?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    fn expect_type(&self, want: DType) -> Result<()> {
        if self.dtype == want {
            return Ok(());
        }
        Err(Error::Tensor { expected: format!("elements of {want}"), got: self.to_string() })
    }

    /// Every element as `f64`, whatever the type.
    pub fn to_f64(&self) -> Vec<f64> {
        let b = self.bytes();
        match self.dtype {
            DType::F32 => bytemuck::cast_slice::<u8, f32>(b).iter().map(|&x| f64::from(x)).collect(),
            DType::F16 => bytemuck::cast_slice::<u8, f16>(b).iter().map(|x| x.to_f64()).collect(),
            DType::Bf16 => bytemuck::cast_slice::<u8, bf16>(b).iter().map(|x| x.to_f64()).collect(),
            DType::I8 => bytemuck::cast_slice::<u8, i8>(b).iter().map(|&x| f64::from(x)).collect(),
            DType::I32 => bytemuck::cast_slice::<u8, i32>(b).iter().map(|&x| f64::from(x)).collect(),
            DType::U8 | DType::Bool => b.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// From `f64` values: floats round to nearest even, integers truncate and saturate, truth is "not 0".
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Result<Tensor> {
        let mut tensor = Tensor::zeros(dtype, shape)?;
        if tensor.len() != values.len() {
            return Err(Error::Tensor {
                expected: format!("{} values for {tensor}", tensor.len()),
                got: format!("{} values", values.len()),
            });
        }
        fn fill<T: Element>(bytes: &mut [u8], values: &[f64], f: impl Fn(f64) -> T) {
            bytemuck::cast_slice_mut::<u8, T>(bytes).iter_mut().zip(values).for_each(|(o, &v)| *o = f(v));
        }
        let b = tensor.bytes_mut();
        match dtype {
            DType::F32 => fill(b, values, |v| v as f32),
            DType::F16 => fill(b, values, f16::from_f64),
            DType::Bf16 => fill(b, values, bf16::from_f64),
            DType::I8 => fill(b, values, |v| v as i8),
            DType::U8 => fill(b, values, |v| v as u8),
            DType::I32 => fill(b, values, |v| v as i32),
            DType::Bool => fill(b, values, |v| u8::from(v != 0.0)),
        }
        Ok(tensor)
    }

    /// The same data under another shape of as many elements.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Tensor> {
        if count(shape) != Some(self.len()) {
            return Err(Error::Tensor {
                expected: format!("a shape of {} elements", self.len()),
                got: format!("{shape:?}"),
            });
        }
        Ok(Tensor { shape: shape.to_vec(), ..self.clone() })
    }
}

/// Elements that lie in memory of somebody else's, row-major and without gaps: what a run can read without a copy.
///
/// ```
/// use schwann_core::{DType, View};
///
/// let numbers = [1.0f32, 2.0, 3.0, 4.0];
/// let view = View::new(DType::F32, &[2, 2], bytemuck::cast_slice(&numbers))?;
/// assert_eq!(view.to_string(), "f32[2, 2]");
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Of bytes that are as many as the shape needs, aligned for the type; truth values must be 0 or 1.
    #[inline]
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<View<'a>> {
        let wanted = Tensor::size_of(dtype, shape)?;
        if wanted != bytes.len() || (wanted > 0 && bytes.as_ptr().align_offset(dtype.size()) != 0) {
            return Err(Error::Tensor {
                expected: format!("{wanted} bytes for {dtype}{shape:?}, aligned for its elements"),
                got: format!("{} bytes at {:p}", bytes.len(), bytes.as_ptr()),
            });
        }
        check_bools(dtype, bytes)?;
        Ok(View { dtype, shape, bytes })
    }

    /// Of a tensor.
    #[inline(always)]
    pub(crate) fn of(tensor: &'a Tensor) -> View<'a> {
        View { dtype: tensor.dtype, shape: &tensor.shape, bytes: tensor.bytes() }
    }

    /// The element type.
    #[inline(always)]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The sizes, outermost first.
    #[inline(always)]
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }
    /// The elements' bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(tensor: &'a Tensor) -> View<'a> {
        View::of(tensor)
    }
}

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

fn check_bools(dtype: DType, bytes: &[u8]) -> Result<()> {
    match dtype {
        DType::Bool => match bytes.iter().position(|&b| b > 1) {
            None => Ok(()),
            Some(at) => Err(Error::Tensor {
                expected: "truth values of 0 or 1".into(),
                got: format!("{} at element {at}", bytes[at]),
            }),
        },
        _ => Ok(()),
    }
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
impl PartialEq for Tensor {
    /// Same type, shape and bits (so NaN equals itself, and 0 differs from −0). A tensor that is not computed yet
    /// equals only itself.
    fn eq(&self, other: &Tensor) -> bool {
        if let Storage::Later(_) = self.storage {
            return (self.dtype, &self.shape, self.identity()) == (other.dtype, &other.shape, other.identity());
        }
        if let Storage::Later(_) = other.storage {
            return false;
        }
        let (a, b) = (self.bytes(), other.bytes());
        self.dtype == other.dtype && self.shape == other.shape && (std::ptr::eq(a, b) || a == b)
    }
}
impl Eq for Tensor {}
impl Hash for Tensor {
    fn hash<H: Hasher>(&self, h: &mut H) {
        match self.storage {
            Storage::Later(_) => (self.dtype, &self.shape, self.identity()).hash(h),
            _ => (self.dtype, &self.shape, self.bytes()).hash(h),
        }
    }
}
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        if self.len() <= 16 {
            write!(f, " {:?}", self.to_f64())?;
        }
        Ok(())
    }
}

/// Constants in a graph's JSON: exact, so the data is the bytes in hexadecimal.
#[derive(Serialize, Deserialize)]
struct Literal {
    dtype: DType,
    shape: Vec<usize>,
    hex: String,
}
impl Serialize for Tensor {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let hex = self.bytes().iter().map(|b| format!("{b:02x}")).collect();
        Literal { dtype: self.dtype, shape: self.shape.clone(), hex }.serialize(s)
    }
}
impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Tensor, D::Error> {
        use serde::de::Error as _;
        let Literal { dtype, shape, hex } = Literal::deserialize(d)?;
        let digits = hex.as_bytes();
        if digits.len() % 2 != 0 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(D::Error::custom("constant: `hex` must be pairs of hexadecimal digits"));
        }
        let value = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|p| value(p[0]) << 4 | value(p[1])).collect();
        Tensor::from_bytes(dtype, &shape, &bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_tensor_is_copied_on_write() {
        let a = Tensor::new(&[2], &[1.0f32, 2.0]).unwrap();
        let mut b = a.clone();
        b.values_mut::<f32>().unwrap()[0] = 9.0;
        assert_eq!(a.values::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(b.values::<f32>().unwrap(), [9.0, 2.0]);
    }

    #[test]
    fn wrong_sizes_types_and_truth_values_are_refused() {
        assert!(Tensor::new(&[3], &[1.0f32]).is_err());
        assert!(Tensor::zeros(DType::F32, &[usize::MAX, 2]).is_err());
        assert!(Tensor::scalar(1.0f32).values::<i32>().is_err());
        assert!(Tensor::from_bytes(DType::Bool, &[1], &[2]).is_err());
    }

    #[test]
    fn literals_read_back_bit_for_bit() {
        let t = Tensor::new(&[3], &[f32::NAN, -0.0, 1e-45]).unwrap();
        let text = serde_json::to_string(&t).unwrap();
        assert_eq!(serde_json::from_str::<Tensor>(&text).unwrap(), t);
        assert!(serde_json::from_str::<Tensor>(&text.replace("hex\":\"", "hex\":\"0")).is_err());
    }
}
