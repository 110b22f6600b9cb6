//! Arrays of Python as elements: NumPy's, those that speak DLPack (PyTorch, JAX, CuPy …) and those that speak NumPy's array
//! protocol. What a kernel can read as it lies in memory is not copied.
//!
//! While a run reads an array, nobody holds Python's lock. The array cannot be freed, since a reference to it is kept, and
//! NumPy resizes no array that others refer to. If another thread writes numbers into it meanwhile, the run may see old ones
//! or new ones. Indices and truth values are copied first: they decide what memory is read, so they are checked, and must
//! not change after that.

use crate::error::Problem;
use half::{bf16, f16};
use numpy::npyffi::flags::{NPY_ARRAY_ALIGNED, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{NPY_TYPES, PY_ARRAY_API, PyArray_Check, PyArrayObject, npy_intp};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use schwann::{DType, Tensor, View};
use std::ffi::{c_int, c_void};
use std::fmt;

/// More axes than any network here has.
const MOST_AXES: usize = 8;

/// The sizes of an array, outermost first.
#[derive(Clone, Copy, Default)]
pub(crate) struct Dims {
    sizes: [usize; MOST_AXES],
    rank: usize,
}

impl Dims {
    pub(crate) fn of(sizes: &[usize]) -> Option<Dims> {
        let mut dims = Dims { rank: sizes.len(), ..Dims::default() };
        dims.sizes.get_mut(..sizes.len())?.copy_from_slice(sizes);
        Some(dims)
    }
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }
    /// How many elements.
    fn count(&self) -> usize {
        self.sizes().iter().product()
    }
}

/// Memory of an array in Python.
struct Found<'py> {
    /// Keeps the memory.
    owner: Bound<'py, PyAny>,
    start: *mut u8,
    dims: Dims,
    /// The elements' type, or its name where it is none of ours.
    dtype: Result<DType, String>,
    /// Whether elements lie in the order of their indices, without gaps.
    contiguous: bool,
    aligned: bool,
    writable: bool,
}

/// An input for one run.
pub(crate) struct Given<'py> {
    /// What keeps the memory, where it is Python's.
    _owner: Option<Bound<'py, PyAny>>,
    /// A copy, where one was needed.
    own: Option<Tensor>,
    start: *const u8,
    dims: Dims,
    dtype: DType,
}

impl<'py> Given<'py> {
    /// An array for the input of this name, which takes elements of type `wanted`.
    pub(crate) fn new(name: &str, object: &Bound<'py, PyAny>, wanted: DType) -> Result<Given<'py>, Problem> {
        let found = Found::of(name, object)?;
        let dtype = found.check(name, wanted)?;
        if dtype == wanted && !matches!(wanted, DType::I32 | DType::Bool) {
            let Found { owner, start, dims, .. } = found;
            return Ok(Given { _owner: Some(owner), own: None, start: start.cast_const(), dims, dtype });
        }
        let own = found.copied(dtype, wanted)?;
        let dims = found.dims;
        Ok(Given { _owner: None, start: own.bytes().as_ptr(), own: Some(own), dims, dtype: wanted })
    }

    /// The elements.
    pub(crate) fn view(&self) -> Result<View<'_>, Problem> {
        let bytes = match &self.own {
            Some(own) => own.bytes(),
            None => slice(self.start, self.dims.count() * self.dtype.size()),
        };
        Ok(View::new(self.dtype, self.dims.sizes(), bytes)?)
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.dims.sizes()
    }

    /// The elements as a tensor of their own, for what outlives the call.
    pub(crate) fn to_tensor(&self) -> Result<Tensor, Problem> {
        let view = self.view()?;
        Ok(Tensor::from_bytes(view.dtype(), view.shape(), view.bytes())?)
    }

    /// Where the elements are, as addresses.
    fn range(&self) -> (usize, usize) {
        let start = self.start.addr();
        (start, start + self.dims.count() * self.dtype.size())
    }
}

/// Memory for one output of a run.
pub(crate) struct Room<'py> {
    /// The array to give back.
    pub(crate) array: Bound<'py, PyAny>,
    start: *mut u8,
    dims: Dims,
    /// The type of the array's elements.
    dtype: DType,
}

impl<'py> Room<'py> {
    /// A new NumPy array of zeros. NumPy has no bfloat16: such numbers are widened.
    pub(crate) fn new(py: Python<'py>, dtype: DType, shape: &[usize]) -> Result<Room<'py>, Problem> {
        let dims =
            Dims::of(shape).ok_or_else(|| PyValueError::new_err(format!("an output of {} axes", shape.len())))?;
        let (dtype, number) = match dtype {
            DType::F32 | DType::Bf16 => (DType::F32, NPY_TYPES::NPY_FLOAT),
            DType::F16 => (DType::F16, NPY_TYPES::NPY_HALF),
            DType::I8 => (DType::I8, NPY_TYPES::NPY_BYTE),
            DType::U8 => (DType::U8, NPY_TYPES::NPY_UBYTE),
            DType::I32 => (DType::I32, NPY_TYPES::NPY_INT),
            DType::Bool => (DType::Bool, NPY_TYPES::NPY_BOOL),
        };
        let sizes = dims.sizes().as_ptr().cast::<npy_intp>().cast_mut();
        // SAFETY: the type's number is one of NumPy's own, and there are `rank` sizes, which NumPy copies. It takes over the
        // reference to the type. `usize` and `npy_intp` have the same size, and sizes beyond the positive ones are refused by
        // NumPy. What it gives is a new reference, or null with an exception set.
        let array = unsafe {
            let descr = PY_ARRAY_API.PyArray_DescrFromType(py, number as c_int);
            let made = PY_ARRAY_API.PyArray_Zeros(py, dims.rank as c_int, sizes, descr, 0);
            Bound::from_owned_ptr_or_err(py, made)?
        };
        // SAFETY: it is an array, since NumPy has just made it, and owns its memory.
        let start = unsafe { (*array.as_ptr().cast::<PyArrayObject>()).fields.data.cast::<u8>() };
        Ok(Room { array, start, dims, dtype })
    }

    /// The array that the caller wants the output `name` in, of this type and shape.
    pub(crate) fn given(
        argument: &str,
        object: &Bound<'py, PyAny>,
        (dtype, shape): (DType, &[usize]),
        inputs: &[&Given<'py>],
    ) -> Result<Room<'py>, Problem> {
        let found = Found::of(argument, object)?;
        let expected = || format!("a {}{shape:?}", numpy_name(dtype));
        let kind = match &found.dtype {
            Ok(kind) if *kind == dtype || (dtype.is_float() && kind.is_float()) => *kind,
            _ => return Err(PyTypeError::new_err(format!("`{argument}` is {found}; expected {}", expected())).into()),
        };
        if found.dims.sizes() != shape {
            return Err(PyValueError::new_err(format!("`{argument}` is {found}; expected {}", expected())).into());
        }
        if !found.writable {
            return Err(
                PyValueError::new_err(format!("`{argument}` is read-only; expected an array to write into")).into()
            );
        }
        found.check_order(argument)?;
        let room = Room { array: object.clone(), start: found.start, dims: found.dims, dtype: kind };
        let (from, to) = (room.start.addr(), room.start.addr() + room.bytes());
        let touches = |(start, end): (usize, usize)| start < to && from < end;
        if inputs.iter().any(|given| touches(given.range())) {
            let text = format!("`{argument}` shares memory with an input; expected an array of its own");
            return Err(PyValueError::new_err(text).into());
        }
        Ok(room)
    }

    /// Whether two of them are in the same memory.
    pub(crate) fn touches(&self, other: &Room<'py>) -> bool {
        let range = |room: &Room<'_>| (room.start.addr(), room.start.addr() + room.bytes());
        let ((a, b), (c, d)) = (range(self), range(other));
        a < d && c < b
    }

    fn bytes(&self) -> usize {
        self.dims.count() * self.dtype.size()
    }

    /// Whether a run can write elements of this type into it as they are.
    pub(crate) fn takes(&self, dtype: DType) -> bool {
        self.dtype == dtype
    }

    /// The memory, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the array owns (or keeps) that many bytes, was found writable and without gaps, and lives as long as the
        // reference that this value holds. It touches no memory of the run's inputs and other outputs, and the borrow is this
        // value's. What other threads of Python's may do to it meanwhile is said at the top.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes()) }
    }

    /// Writes numbers of another type of float.
    pub(crate) fn fill(&mut self, from: &Tensor) -> Result<(), Problem> {
        if self.dtype == from.dtype() {
            self.bytes_mut().copy_from_slice(from.bytes());
            return Ok(());
        }
        let rounded = Tensor::from_f64(self.dtype, from.shape(), &from.to_f64())?;
        self.bytes_mut().copy_from_slice(rounded.bytes());
        Ok(())
    }
}

/// Bytes of an array of Python's.
fn slice<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: callers hold a reference to the array that keeps these bytes (`Given::_owner`), for at least as long as they use
    // the slice, and it was found without gaps. What other threads of Python's may do to it meanwhile is said at the top.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}

/// A NumPy array of a tensor's values.
pub(crate) fn to_numpy<'py>(py: Python<'py>, tensor: &Tensor) -> Result<Bound<'py, PyAny>, Problem> {
    let mut room = Room::new(py, tensor.dtype(), tensor.shape())?;
    room.fill(tensor)?;
    Ok(room.array)
}

/// A tensor of its own of whatever Python has as an array.
pub(crate) fn to_tensor(name: &str, object: &Bound<'_, PyAny>, wanted: DType) -> Result<Tensor, Problem> {
    Given::new(name, object, wanted)?.to_tensor()
}

/// Any array as a tensor of its own, of the type that it has; f64 is rounded.
pub(crate) fn any_tensor(name: &str, object: &Bound<'_, PyAny>) -> Result<Tensor, Problem> {
    let found = Found::of(name, object)?;
    match &found.dtype {
        Ok(dtype) => to_tensor(name, object, *dtype),
        Err(_) => Err(found.wrong_type(name, DType::F32)),
    }
}

fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I32 => "int32",
        DType::Bool => "bool",
    }
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.dtype {
            Ok(dtype) => numpy_name(*dtype),
            Err(name) => name,
        };
        write!(f, "{name}{:?}", self.dims.sizes())
    }
}

impl<'py> Found<'py> {
    fn of(name: &str, object: &Bound<'py, PyAny>) -> Result<Found<'py>, Problem> {
        let py = object.py();
        // SAFETY: the object is a valid reference, and the interpreter is attached.
        if unsafe { PyArray_Check(py, object.as_ptr()) } != 0 {
            return numpy_array(name, object);
        }
        if object.hasattr(intern!(py, "__dlpack__"))? {
            return dlpack(name, object);
        }
        let protocols = [intern!(py, "__array_interface__"), intern!(py, "__array__"), intern!(py, "__array_struct__")];
        let mut speaks =
            object.is_instance_of::<pyo3::types::PyList>() || object.is_instance_of::<pyo3::types::PyTuple>();
        for protocol in protocols {
            speaks = speaks || object.hasattr(protocol)?;
        }
        if !speaks {
            let kind = object.get_type().name()?;
            let text = format!(
                "`{name}` is a {kind}; expected a NumPy array, or one that speaks DLPack or the array protocol"
            );
            return Err(PyTypeError::new_err(text).into());
        }
        let array = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (object,))?;
        numpy_array(name, &array)
    }

    /// The type, where an input of type `wanted` can be had of it.
    fn check(&self, name: &str, wanted: DType) -> Result<DType, Problem> {
        let dtype = match &self.dtype {
            Ok(dtype) if *dtype == wanted => *dtype,
            Ok(dtype @ (DType::F16 | DType::Bf16)) if wanted == DType::F32 => *dtype,
            _ => return Err(self.wrong_type(name, wanted)),
        };
        self.check_order(name)?;
        Ok(dtype)
    }

    #[cold]
    fn wrong_type(&self, name: &str, wanted: DType) -> Problem {
        let numpy = numpy_name(wanted);
        let text = format!("`{name}` is {self}; expected {numpy}: {name}.astype(\"{numpy}\") makes it of this one");
        PyTypeError::new_err(text).into()
    }

    fn check_order(&self, name: &str) -> Result<(), Problem> {
        if !self.contiguous {
            let text = format!(
                "`{name}`, {self}, has gaps or another order of axes; expected row after row: \
                 numpy.ascontiguousarray({name}) makes a copy that is"
            );
            return Err(PyValueError::new_err(text).into());
        }
        if !self.aligned {
            let text = format!(
                "`{name}`, {self}, does not begin at a multiple of its elements' size; expected an aligned array"
            );
            return Err(PyValueError::new_err(text).into());
        }
        Ok(())
    }

    /// The elements in memory of their own, as another type where that is wanted.
    fn copied(&self, dtype: DType, wanted: DType) -> Result<Tensor, Problem> {
        let bytes = slice(self.start, self.dims.count() * dtype.size());
        let shape = self.dims.sizes();
        if dtype == wanted {
            return Ok(Tensor::from_bytes(dtype, shape, bytes)?);
        }
        let mut wide = Tensor::zeros(DType::F32, shape)?;
        let pairs = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        let to = wide.values_mut::<f32>()?.iter_mut().zip(pairs);
        match dtype {
            DType::F16 => to.for_each(|(to, pair)| *to = f16::from_le_bytes(pair).to_f32()),
            _ => to.for_each(|(to, pair)| *to = bf16::from_le_bytes(pair).to_f32()),
        }
        Ok(wide)
    }
}

fn too_many_axes(name: &str, rank: usize) -> Problem {
    PyValueError::new_err(format!("`{name}` has {rank} axes; expected at most {MOST_AXES}")).into()
}

fn numpy_array<'py>(name: &str, object: &Bound<'py, PyAny>) -> Result<Found<'py>, Problem> {
    let py = object.py();
    let array = object.as_ptr().cast::<PyArrayObject>();
    // SAFETY: callers have checked that it is an array. Its fields are read while the interpreter is attached, so nobody
    // changes them, and `dimensions` has `nd` entries.
    let (start, sizes, flags, descr) = unsafe {
        let fields = &(*array).fields;
        let rank = usize::try_from(fields.nd).unwrap_or(0);
        let sizes: &[npy_intp] = if rank == 0 { &[] } else { std::slice::from_raw_parts(fields.dimensions, rank) };
        (fields.data.cast::<u8>(), sizes, fields.flags, fields.descr)
    };
    let mut dims = Dims { rank: sizes.len(), ..Dims::default() };
    let places = dims.sizes.get_mut(..sizes.len()).ok_or_else(|| too_many_axes(name, sizes.len()))?;
    for (to, from) in places.iter_mut().zip(sizes) {
        *to = usize::try_from(*from).unwrap_or(0);
    }
    // SAFETY: every array has a type, whose first fields are the same in all versions of NumPy.
    let (number, order) = unsafe { ((*descr).fields.type_num, (*descr).fields.byteorder as u8) };
    let known = if order == b'>' { None } else { of_numpy(number) };
    let dtype = match known {
        Some(dtype) => Ok(dtype),
        None => {
            let text = object.getattr(intern!(py, "dtype"))?.str()?.to_string();
            // Packages that teach NumPy this type (ml_dtypes) call it so.
            if text == "bfloat16" { Ok(DType::Bf16) } else { Err(text) }
        }
    };
    let is = |flag: c_int| flags & flag != 0;
    Ok(Found {
        owner: object.clone(),
        start,
        dims,
        dtype,
        contiguous: is(NPY_ARRAY_C_CONTIGUOUS),
        aligned: is(NPY_ARRAY_ALIGNED),
        writable: is(NPY_ARRAY_WRITEABLE),
    })
}

fn of_numpy(number: c_int) -> Option<DType> {
    const FLOAT: c_int = NPY_TYPES::NPY_FLOAT as c_int;
    const HALF: c_int = NPY_TYPES::NPY_HALF as c_int;
    const BYTE: c_int = NPY_TYPES::NPY_BYTE as c_int;
    const UBYTE: c_int = NPY_TYPES::NPY_UBYTE as c_int;
    const INT: c_int = NPY_TYPES::NPY_INT as c_int;
    const LONG: c_int = NPY_TYPES::NPY_LONG as c_int;
    const BOOL: c_int = NPY_TYPES::NPY_BOOL as c_int;
    match number {
        FLOAT => Some(DType::F32),
        HALF => Some(DType::F16),
        BYTE => Some(DType::I8),
        UBYTE => Some(DType::U8),
        INT => Some(DType::I32),
        // 32 bits on Windows.
        LONG if size_of::<std::ffi::c_long>() == 4 => Some(DType::I32),
        BOOL => Some(DType::Bool),
        _ => None,
    }
}

/// An array as DLPack describes it (its C structure of versions before 1.0, which all producers still give).
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLPack's numbers of kinds of devices whose memory is the host's.
const HOST: [i32; 2] = [1, 3];

fn device_name(kind: i32, number: i32) -> String {
    let name = match kind {
        2 => "cuda",
        4 => "opencl",
        7 => "vulkan",
        8 => "metal",
        10 => "rocm",
        14 => "oneapi",
        _ => return format!("device {number} of DLPack's kind {kind}"),
    };
    format!("{name}:{number}")
}

fn dlpack<'py>(name: &str, object: &Bound<'py, PyAny>) -> Result<Found<'py>, Problem> {
    let py = object.py();
    // Asked first: giving the capsule would make a device wait.
    let (kind, number): (i32, i32) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    if !HOST.contains(&kind) {
        let device = device_name(kind, number);
        let text =
            format!("`{name}` is on {device}; expected an array in the processor's memory, such as {name}.cpu()");
        return Err(PyValueError::new_err(text).into());
    }
    let capsule = object.call_method0(intern!(py, "__dlpack__"))?;
    let capsule = capsule
        .cast::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err(format!("`{name}`: what __dlpack__ gave is no capsule")))?;
    // SAFETY: the capsule is a valid object. A capsule of another name gives null and an exception.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()) }.cast::<DlTensor>();
    if tensor.is_null() {
        return Err(PyErr::take(py).unwrap_or_else(|| PyBufferError::new_err("an empty DLPack capsule")).into());
    }
    // SAFETY: a capsule of this name holds such a structure, whose first part is the tensor; `shape` has `ndim` entries, and so
    // has `strides` unless it is null. The capsule keeps it all, and is kept as the owner: as its name is not changed, it
    // frees the tensor when it goes.
    let (tensor, shape, strides) = unsafe {
        let tensor = &*tensor;
        let rank = usize::try_from(tensor.ndim).unwrap_or(0);
        let list =
            |at: *mut i64| if rank == 0 || at.is_null() { &[][..] } else { std::slice::from_raw_parts(at, rank) };
        (tensor, list(tensor.shape), (!tensor.strides.is_null()).then(|| list(tensor.strides)))
    };
    let mut dims = Dims { rank: shape.len(), ..Dims::default() };
    let places = dims.sizes.get_mut(..shape.len()).ok_or_else(|| too_many_axes(name, shape.len()))?;
    for (to, from) in places.iter_mut().zip(shape) {
        *to = usize::try_from(*from)
            .map_err(|_| PyValueError::new_err(format!("`{name}` has an axis of size {from}")))?;
    }
    let mut step = 1;
    let contiguous = strides.is_none_or(|strides| {
        dims.count() == 0
            || shape.iter().zip(strides).rev().all(|(size, stride)| {
                let fits = *size == 1 || *stride == step;
                step *= size;
                fits
            })
    });
    let dtype = match (tensor.code, tensor.bits, tensor.lanes) {
        (2, 32, 1) => Ok(DType::F32),
        (2, 16, 1) => Ok(DType::F16),
        (4, 16, 1) => Ok(DType::Bf16),
        (0, 8, 1) => Ok(DType::I8),
        (1, 8, 1) => Ok(DType::U8),
        (0, 32, 1) => Ok(DType::I32),
        (6, 8, 1) => Ok(DType::Bool),
        (code, bits, lanes) => {
            let kind = match code {
                0 => "int",
                1 => "uint",
                2 => "float",
                4 => "bfloat",
                5 => "complex",
                6 => "bool",
                _ => "unknown",
            };
            Err(format!("{kind}{bits}{}", if lanes == 1 { String::new() } else { format!("x{lanes}") }))
        }
    };
    let start = tensor.data.cast::<u8>().wrapping_add(usize::try_from(tensor.byte_offset).unwrap_or(0));
    let size = dtype.as_ref().map_or(1, |d| d.size());
    Ok(Found {
        start,
        dims,
        aligned: start.addr().is_multiple_of(size),
        dtype,
        contiguous,
        // DLPack says nothing of it before version 1.0; those that cannot be written refuse to be given.
        writable: true,
        owner: capsule.clone().into_any(),
    })
}
