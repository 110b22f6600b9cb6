//! Packed weights, made once and shared by every plan of a program; rewritten in place when weights change.

use super::known::{Data, Slot, shaped, stretched};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Code, LowBit};
use crate::tensor::Tensor;
use schwann_kernels::Isa;
use schwann_kernels::gated::{Batch, Gated, Source};
use schwann_kernels::gemm::{PackedB, Store};
use schwann_kernels::lowbit::{self, PackedLowBit};
use schwann_kernels::synapse::{Activation, Synapses};
use schwann_kernels::tape::{self, Changing, Const, Numbers, PackError};
use schwann_kernels::tuning::Machine;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

#[derive(Default)]
pub(super) struct Packs {
    /// Owns all packed data that may change.
    owner: Arc<Changing>,
    matrices: Mutex<HashMap<Matrix, (Origin, Arc<PackedB>)>>,
    low_bit: Mutex<LowBitPacks>,
    synapses: Mutex<HashMap<Wiring, Arc<Synapses>>>,
    cells: Mutex<HashMap<Heads, Arc<Gated>>>,
    /// Constants that may change, while a layout uses them.
    constants: Mutex<HashMap<Constant, Weak<Numbers>>>,
}

/// Where packed numbers come from: data that does not change, or a weight that may.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    Fixed(Tensor),
    Changing(Slot),
}

impl Origin {
    fn of(data: &Data) -> Origin {
        match &data.slot {
            None => Origin::Fixed(data.tensor.clone()),
            Some(slot) => Origin::Changing(slot.clone()),
        }
    }

    fn is_fixed(&self) -> bool {
        matches!(self, Origin::Fixed(_))
    }
}

/// The new data of weights.
pub(super) struct NewWeights<'a> {
    /// The weights that change.
    pub(super) changed: HashMap<&'a str, &'a Tensor>,
    /// The data of any weight, changed or not.
    pub(super) get: &'a dyn Fn(&str) -> Result<Tensor>,
}

impl NewWeights<'_> {
    fn touches<'o>(&self, mut of: impl Iterator<Item = &'o Origin>) -> bool {
        of.any(|o| matches!(o, Origin::Changing(slot) if self.changed.contains_key(&*slot.name)))
    }

    fn data(&self, of: &Origin) -> Result<Tensor> {
        match of {
            Origin::Fixed(tensor) => tensor.at_hand(),
            Origin::Changing(slot) => shaped((self.get)(&slot.name)?, &slot.shape)?.at_hand(),
        }
    }
}

/// The key of a packed matrix: the address of its data, or the weight if it may change; its rows, columns and strides.
/// The tensor is kept beside the packed matrix, so that no other data can get the same address.
#[derive(PartialEq, Eq, Hash)]
struct Matrix {
    of: MatrixData,
    shape: [usize; 2],
    strides: [usize; 2],
    /// Whether half-precision is packed as `f32`.
    widened: bool,
}

impl Matrix {
    /// The data in the type in which it is packed.
    fn data(&self, of: &Tensor) -> Result<Tensor> {
        if !self.widened {
            return of.at_hand();
        }
        let values: Vec<f32> = of.to_f64().into_iter().map(|v| v as f32).collect();
        Tensor::new(of.shape(), &values)
    }
}

#[derive(PartialEq, Eq, Hash)]
enum MatrixData {
    Address(usize),
    Slot(Slot),
}

impl MatrixData {
    fn of(data: &Data) -> MatrixData {
        data.slot.clone().map_or(MatrixData::Address(data.tensor.identity()), MatrixData::Slot)
    }
}

/// The key of a packed low-bit matrix: its format, and its parts as a matrix's data.
#[derive(PartialEq, Eq, Hash)]
struct LowBitKey {
    format: LowBit,
    parts: Vec<MatrixData>,
}

impl LowBitKey {
    /// Packs these codes, scales and offsets.
    fn pack(&self, isa: Isa, data: &[Tensor]) -> Result<PackedLowBit> {
        let format = &self.format;
        let matrix = lowbit::Matrix::new(lowbit::Parts {
            code: match format.code {
                Code::Bits8 => lowbit::Code::Bits8,
                Code::Bits4 => lowbit::Code::Bits4,
                Code::Ternary4 => lowbit::Code::Ternary4,
                Code::Ternary5 => lowbit::Code::Ternary5,
            },
            n: data[0].shape()[0],
            k: format.len,
            block: format.block,
            codes: data[0].bytes(),
            store: super::matmul::store(data[1].dtype()),
            scale_rows: data[1].shape()[..data[1].shape().len() - 1].iter().product(),
            scales: data[1].bytes(),
            offsets: data.get(2).map(Tensor::bytes),
        });
        let refuse = |problem: String| Error::Tensor { expected: format!("low-bit weights, {format}"), got: problem };
        let packed = PackedLowBit::new(isa, &matrix.map_err(refuse)?).map_err(|problem| {
            let bytes = data.iter().map(|t| t.bytes().len()).sum();
            Error::Memory { what: format!("packed low-bit weights ({problem})"), bytes }
        })?;
        data.iter().for_each(|t| t.release(0..t.bytes().len()));
        Ok(packed)
    }
}

type LowBitPacks = HashMap<LowBitKey, (Vec<Origin>, Arc<PackedLowBit>)>;

/// The heads of a gated cell, as columns of one matrix.
pub(super) struct Cell {
    pub(super) shape: CellShape,
    pub(super) weights: Data,
    /// One float for each column, added to its product.
    pub(super) bias: Option<Data>,
}

/// Sizes and places of a cell's heads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CellShape {
    pub(super) batch: Batch,
    pub(super) inputs: [usize; 2],
    pub(super) units: usize,
    /// The column at which each head begins.
    pub(super) starts: [usize; 3],
    /// From input to input, and from column to column.
    pub(super) strides: [usize; 2],
}

#[derive(PartialEq, Eq, Hash)]
struct Heads {
    shape: CellShape,
    weights: Origin,
    bias: Option<Origin>,
}

impl Heads {
    /// Calls `pack` with the weights and shifts by input, head and unit.
    fn pack<R>(&self, weights: &Tensor, bias: Option<&Tensor>, pack: impl FnOnce(&Source<'_>) -> R) -> Result<R> {
        let CellShape { starts, strides: [by_input, by_column], .. } = self.shape;
        let made = weights.values::<f32>()?;
        let shifts = bias.map(Tensor::values::<f32>).transpose()?;
        Ok(pack(&Source {
            weight: &|input, head, unit| made[input * by_input + (starts[head] + unit) * by_column],
            shift: &|head, unit| shifts.map_or(0.0, |shifts| shifts[starts[head] + unit]),
        }))
    }

    fn origins(&self) -> impl Iterator<Item = &Origin> {
        std::iter::once(&self.weights).chain(&self.bias)
    }
}

/// Synapses: what they compute, and the lists source, destination, scale, shift and weights.
#[derive(PartialEq, Eq, Hash)]
struct Wiring {
    shape: Circuit,
    lists: Vec<Origin>,
}

/// What a circuit's synapses compute, from how many values to how many.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Circuit {
    pub(super) activation: Activation,
    pub(super) sources: usize,
    pub(super) segments: usize,
}

impl Circuit {
    fn pack(self, on: Machine<'_>, lists: &[Tensor]) -> Result<Synapses> {
        let Circuit { activation, sources, segments } = self;
        let (from, to) = (lists[0].values()?, lists[1].values()?);
        let (scale, shift) = (lists[2].values()?, lists[3].values()?);
        let weights = lists[4..].iter().map(Tensor::values).collect::<Result<Vec<&[f32]>>>()?;
        Synapses::pack(on, activation, sources, segments, from, to, scale, shift, &weights).map_err(Error::Internal)
    }
}

/// The key of a constant that may change: a weight, or one number for each row of it, repeated to fill a shape.
#[derive(PartialEq, Eq, Hash)]
struct Constant {
    slot: Slot,
    stretched: Option<Vec<usize>>,
}

impl Constant {
    fn data(&self, of: Tensor) -> Result<Tensor> {
        self.stretched.as_ref().map_or(Ok(of.clone()), |shape| stretched(&of, shape))
    }
}

impl Packs {
    /// The synapses packed for a machine. Those with equal lists are packed once, even if the lists are at different
    /// addresses, as in a loop's body that repeats them.
    pub(super) fn synapses(&self, on: Machine<'_>, shape: Circuit, lists: &[Data]) -> Result<Arc<Synapses>> {
        let wiring = Wiring { shape, lists: lists.iter().map(Origin::of).collect() };
        let mut all = self.synapses.lock().expect("packing does not panic");
        if let Some(packed) = all.get(&wiring) {
            return Ok(Arc::clone(packed));
        }
        let data: Vec<Tensor> = lists.iter().map(|list| list.tensor.clone()).collect();
        let packed = shape.pack(on, &data)?;
        let fixed = wiring.lists.iter().all(Origin::is_fixed);
        let packed = Arc::new(if fixed { packed } else { packed.changing(&self.owner) });
        all.insert(wiring, Arc::clone(&packed));
        Ok(packed)
    }

    /// A gated cell packed for `isa`, once, as synapses are.
    pub(super) fn gated(&self, isa: Isa, cell: &Cell) -> Result<Arc<Gated>> {
        let Cell { shape, weights, bias } = cell;
        let heads = Heads { shape: *shape, weights: Origin::of(weights), bias: bias.as_ref().map(Origin::of) };
        let mut all = self.cells.lock().expect("packing does not panic");
        if let Some(packed) = all.get(&heads) {
            return Ok(Arc::clone(packed));
        }
        let CellShape { batch, inputs, units, .. } = *shape;
        let made = weights.tensor.at_hand()?;
        let packed = heads.pack(&made, bias.as_ref().map(|b| &b.tensor), |source| {
            Gated::pack(isa, batch, inputs, units, source).map_err(Error::Internal)
        })??;
        made.release(0..made.bytes().len());
        let fixed = heads.origins().all(Origin::is_fixed);
        let packed = Arc::new(if fixed { packed } else { packed.changing(&self.owner) });
        all.insert(heads, Arc::clone(&packed));
        Ok(packed)
    }

    /// The matrix of `shape` rows and columns at these strides, packed for `isa` as `store`: the type of its elements, or
    /// `f32`.
    pub(super) fn get(
        &self,
        isa: Isa,
        store: Store,
        data: &Data,
        shape: [usize; 2],
        strides: [usize; 2],
    ) -> Result<Arc<PackedB>> {
        let widened = store == Store::F32 && data.tensor.dtype() != DType::F32;
        let key = Matrix { of: MatrixData::of(data), shape, strides, widened };
        let mut packs = self.matrices.lock().expect("packing does not panic");
        if let Some((_, packed)) = packs.get(&key) {
            return Ok(Arc::clone(packed));
        }
        // Pages of a mapped file are released piece by piece as they are packed. A widened copy is freed afterwards.
        let made = key.data(&data.tensor)?;
        let read = &mut |part| made.release(part);
        let packed = tape::pack(isa, store, shape, made.bytes(), strides, read).map_err(|e| match e {
            PackError::Mistake(problem) => Error::Internal(problem),
            PackError::Memory(bytes) => Error::Memory { what: format!("packed weights {}", data.tensor), bytes },
        })?;
        let packed = Arc::new(if data.slot.is_none() { packed } else { packed.changing(&self.owner) });
        packs.insert(key, (Origin::of(data), Arc::clone(&packed)));
        Ok(packed)
    }

    /// Low-bit weights packed for `isa`: codes, scales, and offsets if there are any.
    pub(super) fn low_bit(&self, isa: Isa, format: &LowBit, parts: &[Data]) -> Result<Arc<PackedLowBit>> {
        let key = LowBitKey { format: *format, parts: parts.iter().map(MatrixData::of).collect() };
        let mut all = self.low_bit.lock().expect("packing does not panic");
        if let Some((_, packed)) = all.get(&key) {
            return Ok(Arc::clone(packed));
        }
        let data = parts.iter().map(|part| part.tensor.at_hand()).collect::<Result<Vec<_>>>()?;
        let packed = key.pack(isa, &data)?;
        let origins: Vec<Origin> = parts.iter().map(Origin::of).collect();
        let fixed = origins.iter().all(Origin::is_fixed);
        let packed = Arc::new(if fixed { packed } else { packed.changing(&self.owner) });
        all.insert(key, (origins, Arc::clone(&packed)));
        Ok(packed)
    }

    /// Known data as a constant of a tape, as it is or stretched to a shape.
    pub(super) fn constant(&self, data: &Data, to: Option<&[usize]>) -> Result<Const> {
        let whole = |of: &Tensor| to.map_or(of.at_hand(), |shape| stretched(of, shape));
        let Some(slot) = &data.slot else { return Ok(Const::Fixed(Arc::new(whole(&data.tensor)?))) };
        let mut constants = self.constants.lock().expect("copying does not panic");
        // Forget constants of layouts that no longer exist.
        constants.retain(|_, numbers| numbers.strong_count() > 0);
        let key = Constant { slot: slot.clone(), stretched: to.map(<[usize]>::to_vec) };
        if let Some(numbers) = constants.get(&key).and_then(Weak::upgrade) {
            return Ok(Const::Changing(numbers));
        }
        let memory = |bytes| Error::Memory { what: format!("a constant {}", data.tensor), bytes };
        let numbers = Arc::new(Numbers::new(&self.owner, whole(&data.tensor)?.bytes()).map_err(memory)?);
        constants.insert(key, Arc::downgrade(&numbers));
        Ok(Const::Changing(numbers))
    }

    /// Writes new weights over the packed old ones. Gives `false` if one of them does not fit its packed form. In that
    /// case, and after an error, nothing is written.
    pub(super) fn rewrite(&self, on: Machine<'_>, new: &NewWeights<'_>) -> Result<bool> {
        const LOCKED: &str = "packing does not panic";
        // First do everything that takes long or may fail. Synapses come before cells, because invalid synapses are an
        // error, which must not be missed by returning `false` first.
        let (all, mut synapses) = (self.synapses.lock().expect(LOCKED), vec![]);
        for (wiring, old) in all.iter().filter(|(wiring, _)| new.touches(wiring.lists.iter())) {
            let lists = wiring.lists.iter().map(|list| new.data(list)).collect::<Result<Vec<_>>>()?;
            synapses.push((old, wiring.shape.pack(on, &lists)?));
        }
        let (all, mut cells) = (self.cells.lock().expect(LOCKED), vec![]);
        for (heads, old) in all.iter().filter(|(heads, _)| new.touches(heads.origins())) {
            let (weights, bias) = (new.data(&heads.weights)?, heads.bias.as_ref().map(|b| new.data(b)).transpose()?);
            let packed = heads.pack(&weights, bias.as_ref(), |source| old.pack_alike(source))?;
            let Some(packed) = packed else { return Ok(false) };
            cells.push((old, packed));
        }
        let (all, mut matrices) = (self.matrices.lock().expect(LOCKED), vec![]);
        for (key, (origin, old)) in all.iter().filter(|(_, (origin, _))| new.touches(std::iter::once(origin))) {
            matrices.push((old, key.data(&new.data(origin)?)?, key.strides));
        }
        let (all, mut low_bit) = (self.low_bit.lock().expect(LOCKED), vec![]);
        for (key, (origins, old)) in all.iter().filter(|(_, (origins, _))| new.touches(origins.iter())) {
            let data = origins.iter().map(|part| new.data(part)).collect::<Result<Vec<_>>>()?;
            low_bit.push((old, key.pack(on.isa, &data)?));
        }
        let (all, mut constants) = (self.constants.lock().expect(LOCKED), vec![]);
        for (key, numbers) in all.iter().filter(|(key, _)| new.changed.contains_key(&*key.slot.name)) {
            if let Some(numbers) = numbers.upgrade() {
                constants.push((numbers, key.data(new.data(&Origin::Changing(key.slot.clone()))?)?));
            }
        }
        let mut by = self.owner.rewrite();
        for (old, packed) in &synapses {
            if !old.is_like(&by, packed).map_err(Error::Internal)? {
                return Ok(false);
            }
        }
        // From here on nothing fails, since all of it was made to fit.
        let mut write = || -> std::result::Result<(), String> {
            synapses.iter().try_for_each(|(old, packed)| old.rewrite(&mut by, packed))?;
            cells.iter().try_for_each(|(old, packed)| old.rewrite(&mut by, packed))?;
            low_bit.iter().try_for_each(|(old, packed)| old.rewrite(&mut by, packed))?;
            for (old, data, strides) in &matrices {
                tape::repack(&mut by, on.isa, old, data.bytes(), *strides, &mut |part| data.release(part))?;
            }
            constants.iter().try_for_each(|(old, data)| old.rewrite(&mut by, data.bytes()))
        };
        write().map_err(Error::Internal)?;
        Ok(true)
    }

    /// Keeps only packed data that does not change, and takes a new owner: for future layouts. Existing layouts hold on
    /// to what they use.
    pub(super) fn renewed(mut self) -> Packs {
        const LOCKED: &str = "packing does not panic";
        self.matrices.get_mut().expect(LOCKED).retain(|_, (origin, _)| origin.is_fixed());
        self.low_bit.get_mut().expect(LOCKED).retain(|_, (origins, _)| origins.iter().all(Origin::is_fixed));
        self.synapses.get_mut().expect(LOCKED).retain(|wiring, _| wiring.lists.iter().all(Origin::is_fixed));
        self.cells.get_mut().expect(LOCKED).retain(|heads, _| heads.origins().all(Origin::is_fixed));
        Packs { owner: Changing::new(), constants: Mutex::default(), ..self }
    }
}
