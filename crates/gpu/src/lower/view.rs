//! Views: where a value's elements are, and how a kernel loads one.

use super::site::Site;
use schwann_codegen::lang::{Binary, Expr, Memory, Ty};
use schwann_codegen::math;
use schwann_core::{DType, Dim, Result};

/// Where a value's words are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Home {
    /// A slot of intermediate values, by number; where it is, is planned when all of them are known.
    Slot(usize),
    /// An input of the run.
    Input(usize),
    /// An output of the run.
    Output(usize),
    /// The buffer of constants, from this word on.
    Constant(u32),
    /// A shared array of the kernel that is being made, or a part of one.
    Shared(Memory),
    /// Not in memory: every element is this number, by its bits.
    Number(u32),
}

/// A value in memory. Its elements need not be contiguous: a slice, a transpose or a broadcast is a view of another
/// value's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) home: Home,
    /// Words that are added in each round of the loops around (see [`crate::program::Argument`]).
    pub(crate) strides: Vec<u32>,
    pub(crate) dtype: DType,
    /// Whether narrow elements share words, as on the host. Otherwise each element has a word of its own: a float the
    /// bits of an `f32`, an integer those of an `i32`, a truth value 0 or 1.
    pub(crate) packed: bool,
    /// Its sizes.
    pub(crate) dims: Vec<Dim>,
    /// The stride along each axis, in elements.
    pub(crate) steps: Vec<Dim>,
    /// The number of its first element.
    pub(crate) first: Dim,
}

/// Strides of a contiguous value.
pub(crate) fn contiguous(dims: &[Dim]) -> Result<Vec<Dim>> {
    let mut steps = vec![Dim::fixed(1); dims.len()];
    for axis in (1..dims.len()).rev() {
        steps[axis - 1] = super::times(&steps[axis], &dims[axis])?;
    }
    Ok(steps)
}

impl View {
    /// A contiguous value that fills its memory.
    pub(crate) fn whole(home: Home, dtype: DType, packed: bool, dims: &[Dim]) -> Result<View> {
        let steps = contiguous(dims)?;
        Ok(View { home, strides: vec![], dtype, packed, dims: dims.to_vec(), steps, first: Dim::fixed(0) })
    }

    /// Whether it is contiguous and begins at the first word of its memory.
    pub(crate) fn is_whole(&self) -> Result<bool> {
        Ok(self.first.is(0) && self.steps_do_not_matter() || self.first.is(0) && self.steps == contiguous(&self.dims)?)
    }

    /// Whether it has only one element or is a number, so that its strides have no effect.
    fn steps_do_not_matter(&self) -> bool {
        self.dims.iter().all(|d| d.is(1)) || matches!(self.home, Home::Number(_))
    }

    /// How many elements share a word.
    pub(crate) fn per_word(&self) -> u32 {
        if self.packed { 32 / self.dtype.bits() as u32 } else { 1 }
    }

    /// The same with its axes in another order.
    pub(crate) fn transposed(&self, perm: &[usize]) -> View {
        let pick = |all: &[Dim]| perm.iter().map(|&p| all[p].clone()).collect();
        View { dims: pick(&self.dims), steps: pick(&self.steps), ..self.clone() }
    }

    /// A slice along an axis.
    pub(crate) fn sliced(&self, axis: usize, start: &Dim, size: &Dim) -> Result<View> {
        let mut view = self.clone();
        view.first = super::plus(&self.first, &super::times(start, &self.steps[axis])?)?;
        view.dims[axis] = size.clone();
        Ok(view)
    }

    /// Broadcast to these sizes: new axes in front, and axes of one element repeated.
    pub(crate) fn stretched(&self, to: &[Dim]) -> View {
        let missing = to.len() - self.dims.len();
        let steps = (0..to.len()).map(|axis| match axis.checked_sub(missing) {
            Some(own) if self.dims[own] == to[axis] => self.steps[own].clone(),
            _ => Dim::fixed(0),
        });
        View { steps: steps.collect(), dims: to.to_vec(), ..self.clone() }
    }

    /// In another shape of as many elements, if strides can express that: for a contiguous value, or where only axes of
    /// one element are added or removed.
    pub(crate) fn reshaped(&self, to: &[Dim]) -> Result<Option<View>> {
        if self.steps == contiguous(&self.dims)? || self.steps_do_not_matter() {
            return Ok(Some(View { dims: to.to_vec(), steps: contiguous(to)?, ..self.clone() }));
        }
        let of = |dims: &[Dim]| dims.iter().filter(|d| !d.is(1)).cloned().collect::<Vec<_>>();
        if of(&self.dims) != of(to) {
            return Ok(None);
        }
        let mut own = self.steps.iter().zip(&self.dims).filter(|(_, d)| !d.is(1)).map(|(s, _)| s.clone());
        let steps = to.iter().map(|d| if d.is(1) { Dim::fixed(1) } else { own.next().unwrap_or_default() }).collect();
        Ok(Some(View { dims: to.to_vec(), steps, ..self.clone() }))
    }
}

/// The type of a register that holds an element of this type.
pub(crate) fn register(dtype: DType) -> Ty {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => Ty::F32,
        DType::I8 | DType::U8 | DType::I32 => Ty::I32,
        DType::Bool => Ty::Bool,
    }
}

impl Site<'_> {
    /// The number of an element of a view, given its place along each axis.
    pub(crate) fn index(&mut self, view: &View, at: &[Expr]) -> Result<Expr> {
        let mut index = self.size(&view.first)?;
        for (place, step) in at.iter().zip(&view.steps) {
            let step = self.size(step)?;
            index = index + place * step;
        }
        Ok(index)
    }

    /// An element of a view.
    pub(crate) fn load(&mut self, view: &View, at: &[Expr]) -> Result<Expr> {
        if let Home::Number(bits) = view.home {
            return Ok(match register(view.dtype) {
                Ty::F32 => f32::from_bits(bits).into(),
                Ty::Bool => (bits != 0).into(),
                _ => (bits as i32).into(),
            });
        }
        let index = self.index(view, at)?;
        self.load_at(view, &index)
    }

    /// The element of this number, counted from the beginning of the view's memory.
    pub(crate) fn load_at(&mut self, view: &View, index: &Expr) -> Result<Expr> {
        let (memory, base) = self.place(view)?;
        let ty = register(view.dtype);
        let per_word = view.per_word();
        if per_word == 1 {
            // Shared arrays hold words, which stand for any type.
            let shared = matches!(memory, Memory::Shared(_) | Memory::Part(_));
            let loaded = self.maker.load(memory, base + index, if shared || ty == Ty::Bool { Ty::U32 } else { ty });
            let loaded = self.maker.name("v", loaded);
            return Ok(if ty == Ty::Bool { loaded.ne(0u32) } else { loaded.bits(ty) });
        }
        let index = self.maker.name("i", index);
        let word = self.maker.load(memory, base + &index / per_word, Ty::U32);
        let bits = 32 / per_word;
        let shift = index.rem(per_word) * bits;
        let mask = (1u32 << bits) - 1;
        let shifted = word.shr(shift);
        if view.dtype == DType::F16 && self.exact_halves {
            return Ok(self.maker.name("h", shifted.half_to_float()));
        }
        let narrow = self.maker.name("n", shifted.and(mask));
        Ok(match view.dtype {
            DType::F16 => math::from_f16_bits(&mut self.maker, &narrow),
            DType::Bf16 => math::from_bf16_bits(&mut self.maker, &narrow),
            // Shifting a signed number to the right extends its sign.
            DType::I8 => narrow.shl(24u32).bits(Ty::I32).shr(24u32),
            DType::Bool => narrow.ne(0u32),
            _ => narrow.bits(Ty::I32),
        })
    }

    /// Writes an element, rounded to its type, to a value with a word for each element.
    pub(crate) fn store(&mut self, view: &View, at: &[Expr], value: &Expr) -> Result<()> {
        let index = self.index(view, at)?;
        let value = self.rounded(view.dtype, value);
        let (memory, base) = self.place(view)?;
        let word = match value.ty() {
            Ty::Bool => value.to(Ty::U32),
            _ => value,
        };
        let word = if matches!(memory, Memory::Shared(_) | Memory::Part(_)) { word.bits(Ty::U32) } else { word };
        self.maker.store(memory, base + index, word);
        Ok(())
    }

    /// A float as the nearest that its type holds; anything else as it is.
    pub(crate) fn rounded(&mut self, dtype: DType, value: &Expr) -> Expr {
        match dtype {
            DType::F16 => math::round_f16(&mut self.maker, value),
            DType::Bf16 => math::round_bf16(&mut self.maker, value),
            _ => value.clone(),
        }
    }

    /// The low bits of an element, as it is stored in packed form.
    pub(crate) fn narrow_bits(&mut self, dtype: DType, value: &Expr) -> Expr {
        match dtype {
            DType::F16 => math::to_f16_bits(&mut self.maker, value),
            DType::Bf16 => math::to_bf16_bits(&mut self.maker, value),
            DType::Bool => value.to(Ty::U32),
            DType::I8 | DType::U8 => value.bits(Ty::U32).binary(Binary::And, 0xffu32),
            DType::F32 | DType::I32 => value.bits(Ty::U32),
        }
    }
}
