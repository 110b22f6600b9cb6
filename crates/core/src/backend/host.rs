//! The memory of a stream that computes on the host: results, states and uploaded inputs are plain tensors.

use super::Sizes;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::collections::HashSet;

/// Results, and what is kept between runs. A state has two buffers, one among the outputs and one among what is kept:
/// before a run they change places, so that the run reads what the last one wrote, and nothing is copied.
pub(in crate::backend) struct HostMemory {
    /// For each state, its place among the inputs and among the outputs.
    states: Vec<(usize, usize)>,
    /// States whose buffer is swapped with their output's: all except those that share their output with another state.
    swapped: Vec<(usize, usize)>,
    /// The other states, whose values are copied.
    copied: Vec<(usize, usize)>,
    /// Whether the states' values are in the outputs, where the last run wrote them.
    fresh: bool,
    /// The outputs, in the graph's order.
    pub(in crate::backend) outputs: Vec<Tensor>,
    /// For each input, the value that is kept: states and uploads; most inputs have none.
    pub(in crate::backend) kept: Vec<Tensor>,
}

impl HostMemory {
    pub(in crate::backend) fn new(states: Vec<(usize, usize)>) -> HostMemory {
        let mut seen = HashSet::new();
        let (swapped, copied) = states.iter().partition(|(_, output)| seen.insert(*output));
        HostMemory { states, swapped, copied, fresh: false, outputs: vec![], kept: vec![] }
    }

    /// Moves the states' values to `kept`, so that the outputs can be written.
    #[inline]
    pub(in crate::backend) fn settle(&mut self) {
        if self.fresh {
            for &(input, output) in &self.copied {
                self.kept[input].bytes_mut().copy_from_slice(self.outputs[output].bytes());
            }
            for &(input, output) in &self.swapped {
                std::mem::swap(&mut self.kept[input], &mut self.outputs[output]);
            }
            self.fresh = false;
        }
    }

    /// Moves states that a run changes where they are to the outputs, where the run expects them. `given` is a value from
    /// outside, if there is one. Only after [`HostMemory::settle`].
    pub(in crate::backend) fn lend(&mut self, (input, output): (usize, usize), given: Option<&[u8]>) {
        match given {
            Some(bytes) => self.outputs[output].bytes_mut().copy_from_slice(bytes),
            None => std::mem::swap(&mut self.kept[input], &mut self.outputs[output]),
        }
    }

    /// A run has written the outputs, and with them the states.
    #[inline]
    pub(in crate::backend) fn written(&mut self) {
        self.fresh = true;
    }

    pub(in crate::backend) fn release(&mut self) {
        self.settle();
        self.outputs = vec![];
    }

    pub(in crate::backend) fn fit(&mut self, sizes: &Sizes) -> Result<()> {
        self.release();
        self.room_for(sizes.inputs.len())?;
        for &(input, _) in &self.states {
            let (dtype, shape) = &sizes.inputs[input];
            let old = &self.kept[input];
            if (old.dtype(), old.shape()) != (*dtype, shape) {
                self.kept[input] = Tensor::zeros_alone(*dtype, shape)?;
            }
        }
        self.outputs = sizes.outputs.iter().map(|(d, s)| Tensor::zeros_alone(*d, s)).collect::<Result<_>>()?;
        Ok(())
    }

    fn room_for(&mut self, inputs: usize) -> Result<()> {
        while self.kept.len() < inputs {
            self.kept.push(Tensor::zeros_alone(crate::DType::U8, &[0])?);
        }
        Ok(())
    }

    pub(in crate::backend) fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        self.room_for(input + 1)?;
        // Tensors are copied when a shared one is written, so this value cannot change.
        self.kept[input] = value.clone();
        Ok(())
    }

    pub(in crate::backend) fn zero(&mut self, state: usize) -> Result<()> {
        self.settle();
        let (input, _) = self.place(state)?;
        self.kept[input].bytes_mut().fill(0);
        Ok(())
    }

    pub(in crate::backend) fn state(&self, state: usize) -> Result<&Tensor> {
        let (input, output) = self.place(state)?;
        let found = if self.fresh { self.outputs.get(output) } else { self.kept.get(input) };
        found.ok_or_else(|| Error::Internal(format!("state {state} of a stream that has no memory yet")))
    }

    fn place(&self, state: usize) -> Result<(usize, usize)> {
        let missing = || Error::Internal(format!("state {state} of a stream that has {}", self.states.len()));
        self.states.get(state).copied().ok_or_else(missing)
    }
}
