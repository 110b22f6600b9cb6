//! Packed weights, made once and shared by every plan of a program.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use schwann_kernels::Isa;
use schwann_kernels::gemm::{PackedB, Store};
use schwann_kernels::tape;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Where the data lies and how it is read. The tensor is kept beside the result, so that the address stays its own.
type Key = (usize, [usize; 2], [usize; 2]);

#[derive(Default)]
pub(super) struct Packs(Mutex<HashMap<Key, (Tensor, Arc<PackedB>)>>);

impl Packs {
    /// The matrix of `shape` rows and columns at these strides, packed for `isa`.
    pub(super) fn get(
        &self,
        isa: Isa,
        store: Store,
        data: &Tensor,
        shape: [usize; 2],
        strides: [usize; 2],
    ) -> Result<Arc<PackedB>> {
        let key = (data.bytes().as_ptr().addr(), shape, strides);
        let mut packs = self.0.lock().expect("packing does not panic");
        if let Some((_, packed)) = packs.get(&key) {
            return Ok(Arc::clone(packed));
        }
        let packed = tape::pack(isa, store, shape, data.bytes(), strides).map_err(Error::Internal)?;
        let packed = Arc::new(packed);
        packs.insert(key, (data.clone(), Arc::clone(&packed)));
        Ok(packed)
    }
}
