//! Packed weights, made once and shared by every plan of a program.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use schwann_kernels::Isa;
use schwann_kernels::gated::{Batch, Gated, Source};
use schwann_kernels::gemm::{PackedB, Store};
use schwann_kernels::synapse::{Activation, Synapses};
use schwann_kernels::tape::{self, PackError};
use schwann_kernels::tuning::Machine;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Where the data lies and how it is read. The tensor is kept beside the result, so that the address stays its own.
type Key = (usize, [usize; 2], [usize; 2]);

#[derive(Default)]
pub(super) struct Packs {
    matrices: Mutex<HashMap<Key, (Tensor, Arc<PackedB>)>>,
    synapses: Mutex<HashMap<Wiring, Arc<Synapses>>>,
    cells: Mutex<HashMap<Heads, Arc<Gated>>>,
}

/// The heads of a gated cell as they lie in one matrix.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Heads {
    pub(super) batch: Batch,
    pub(super) inputs: [usize; 2],
    pub(super) units: usize,
    /// The column at which each head begins.
    pub(super) starts: [usize; 3],
    /// From input to input, and from column to column.
    pub(super) strides: [usize; 2],
    pub(super) weights: Tensor,
    /// One float a column, added to its product.
    pub(super) bias: Option<Tensor>,
}

/// Synapses as they are given: the lists source, destination, scale, shift and weights.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Wiring {
    pub(super) activation: Activation,
    pub(super) sources: usize,
    pub(super) segments: usize,
    pub(super) lists: Vec<Tensor>,
}

impl Packs {
    /// The synapses packed for a machine. Equal ones are packed once, wherever their lists lie: a loop's body repeats them.
    pub(super) fn synapses(&self, on: Machine<'_>, wiring: Wiring) -> Result<Arc<Synapses>> {
        let mut all = self.synapses.lock().expect("packing does not panic");
        if let Some(packed) = all.get(&wiring) {
            return Ok(Arc::clone(packed));
        }
        let Wiring { activation, sources, segments, lists } = &wiring;
        let (from, to) = (lists[0].values()?, lists[1].values()?);
        let (scale, shift) = (lists[2].values()?, lists[3].values()?);
        let weights = lists[4..].iter().map(Tensor::values).collect::<Result<Vec<&[f32]>>>()?;
        let packed = Synapses::pack(on, *activation, *sources, *segments, from, to, scale, shift, &weights);
        let packed = Arc::new(packed.map_err(Error::Internal)?);
        all.insert(wiring, Arc::clone(&packed));
        Ok(packed)
    }

    /// A gated cell packed for `isa`, once, as synapses are.
    pub(super) fn gated(&self, isa: Isa, heads: Heads) -> Result<Arc<Gated>> {
        let mut all = self.cells.lock().expect("packing does not panic");
        if let Some(packed) = all.get(&heads) {
            return Ok(Arc::clone(packed));
        }
        let Heads { batch, inputs, units, starts, strides: [by_input, by_column], weights, bias } = &heads;
        let weights = weights.at_hand()?;
        let made = weights.values::<f32>()?;
        let shifts = bias.as_ref().map(Tensor::values::<f32>).transpose()?;
        let source = Source {
            weight: &|input, head, unit| made[input * by_input + (starts[head] + unit) * by_column],
            shift: &|head, unit| shifts.map_or(0.0, |shifts| shifts[starts[head] + unit]),
        };
        let packed = Arc::new(Gated::pack(isa, *batch, *inputs, *units, &source).map_err(Error::Internal)?);
        weights.release(0..weights.bytes().len());
        all.insert(heads, Arc::clone(&packed));
        Ok(packed)
    }

    /// The matrix of `shape` rows and columns at these strides, packed for `isa`.
    pub(super) fn get(
        &self,
        isa: Isa,
        store: Store,
        data: &Tensor,
        shape: [usize; 2],
        strides: [usize; 2],
    ) -> Result<Arc<PackedB>> {
        let key = (data.identity(), shape, strides);
        let mut packs = self.matrices.lock().expect("packing does not panic");
        if let Some((_, packed)) = packs.get(&key) {
            return Ok(Arc::clone(packed));
        }
        // Of a mapped file the packed matrix takes the place piece by piece; what is made for it goes afterwards.
        let made = data.at_hand()?;
        let read = &mut |part| made.release(part);
        let packed = tape::pack(isa, store, shape, made.bytes(), strides, read).map_err(|e| match e {
            PackError::Mistake(problem) => Error::Internal(problem),
            PackError::Memory(bytes) => Error::Memory { what: format!("packed weights {data}"), bytes },
        })?;
        let packed = Arc::new(packed);
        packs.insert(key, (data.clone(), Arc::clone(&packed)));
        Ok(packed)
    }
}
