//! The memory of a stream on the device.
//!
//! All that a run computes with is in one buffer, the arena: intermediate values first, then a place for each input and
//! output. A state has two places, one among the inputs and one among the outputs, which are swapped after a run that
//! succeeded, so that the next run reads what this one wrote. A value that must outlive the arena, or would be
//! overwritten in it, is kept in a separate buffer, "aside": an upload whose size the layout does not have, and a state
//! while a run is given another value for it.

use crate::device::{Device, problem};
use crate::pieces::Places;
use crate::program::Layout;
use schwann_core::backend::{Inputs, Sizes, Source};
use schwann_core::{Error, Result, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// Places begin at multiples of this many words.
const ALIGN_WORDS: u64 = 64;

/// Where the kept value of an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Nowhere,
    InPlace,
    Aside,
}

/// Memory for one layout.
pub(crate) struct Room<D: Device> {
    pub(crate) arena: D::Buffer,
    pub(crate) faults: D::Buffer,
    pub(crate) places: Places,
    /// Whether the places of states are currently swapped.
    pub(crate) swapped: bool,
    /// Whether the buffer of faults may contain faults.
    pub(crate) tainted: bool,
    fault_bytes: u64,
    bytes: u64,
    input_bytes: Vec<u64>,
    output_bytes: Vec<u64>,
}

/// All memory of a stream.
pub(crate) struct Memory<D: Device> {
    device: Arc<D>,
    /// For each state, its place among the inputs and among the outputs.
    states: Vec<(usize, usize)>,
    /// States whose two places are swapped: all except those that share their output with another state.
    swapped: Vec<(usize, usize)>,
    /// The other states, whose values are copied.
    copied: Vec<(usize, usize)>,
    /// Whether the states' values are in the outputs, where the last run wrote them.
    fresh: bool,
    kept: Vec<Kept>,
    /// Separate buffers for inputs that are kept aside, with their sizes in bytes.
    aside: Vec<Option<(D::Buffer, u64)>>,
    pub(crate) room: Option<Room<D>>,
}

/// Bytes rounded up to whole words.
fn whole(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(4)
}

impl<D: Device> Memory<D> {
    pub(crate) fn new(device: Arc<D>, inputs: usize, states: Vec<(usize, usize)>) -> Memory<D> {
        let mut seen = HashSet::new();
        let (swapped, copied) = states.iter().partition(|(_, output)| seen.insert(*output));
        let (kept, aside) = (vec![Kept::Nowhere; inputs], (0..inputs).map(|_| None).collect());
        Memory { device, states, swapped, copied, fresh: false, kept, aside, room: None }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let aside: u64 = self.aside.iter().flatten().map(|(_, bytes)| bytes).sum();
        aside + self.room.as_ref().map_or(0, |room| room.bytes)
    }

    fn missing(&self, what: &str) -> Error {
        Error::Internal(format!("{}: {what}", self.device.name()))
    }

    pub(crate) fn room(&self) -> Result<&Room<D>> {
        self.room.as_ref().ok_or_else(|| self.missing("a stream that has no memory yet"))
    }

    /// Where the stream keeps the value of an input, and how many bytes it has.
    fn value(&self, input: usize) -> Option<(&D::Buffer, u64, u64)> {
        let arena = |word: u32, bytes: u64| self.room.as_ref().map(|room| (&room.arena, 4 * u64::from(word), bytes));
        let state = self.states.iter().find(|state| state.0 == input).filter(|_| self.fresh);
        match (state, &self.room, self.kept[input]) {
            (Some(&(_, output)), Some(room), _) => arena(room.places.outputs[output], room.output_bytes[output]),
            (None, Some(room), Kept::InPlace) => arena(room.places.inputs[input], room.input_bytes[input]),
            (_, _, Kept::Aside) => self.aside[input].as_ref().map(|(buffer, bytes)| (buffer, 0, *bytes)),
            _ => None,
        }
    }

    /// Makes a separate buffer for an input; keeps the existing one if it has the right size.
    fn room_aside(&mut self, input: usize, bytes: u64) -> Result<()> {
        if self.aside[input].as_ref().is_none_or(|(_, has)| *has != bytes) {
            let buffer = self.device.buffer("an input that is kept aside", bytes.max(4))?;
            self.aside[input] = Some((buffer, bytes));
        }
        Ok(())
    }

    /// Copies an input's value from the arena to its separate buffer.
    fn move_aside(&mut self, input: usize) -> Result<()> {
        let Some(bytes) = self.value(input).map(|(_, _, bytes)| bytes) else { return Ok(()) };
        self.room_aside(input, bytes)?;
        if let (Some((from, at, _)), Some((to, _))) = (self.value(input), &self.aside[input]) {
            self.device.copy((from, at), (to, 0), bytes)?;
        }
        Ok(())
    }

    /// Frees the arena, after moving kept values aside; if there is no memory for that, the arena stays.
    pub(crate) fn release(&mut self) {
        if self.room.is_none() {
            return;
        }
        let in_arena = |memory: &Self, input: usize| {
            memory.kept[input] == Kept::InPlace || memory.fresh && memory.states.iter().any(|state| state.0 == input)
        };
        let inputs: Vec<usize> = (0..self.kept.len()).filter(|&input| in_arena(self, input)).collect();
        // The value of a fresh state that is kept aside is from before the run, and no longer needed.
        if inputs.iter().all(|&input| self.move_aside(input).is_ok()) {
            inputs.iter().for_each(|&input| self.kept[input] = Kept::Aside);
            (self.room, self.fresh) = (None, false);
        }
    }

    /// Makes room for a layout, and moves kept values there.
    pub(crate) fn fit(&mut self, layout: &Layout, sizes: &Sizes) -> Result<()> {
        self.release();
        let is_state = |input: usize| self.states.iter().any(|state| state.0 == input);
        let read = |input: usize| layout.inputs_read.get(input).copied().unwrap_or(true) || is_state(input);
        let input_bytes: Vec<u64> = (0..sizes.inputs.len())
            .map(|input| if read(input) { whole(Sizes::bytes(&sizes.inputs[input])) } else { 0 })
            .collect();
        let output_bytes: Vec<u64> = sizes.outputs.iter().map(|size| whole(Sizes::bytes(size))).collect();
        let mut end = u64::from(layout.scratch_words);
        let mut place = |bytes: &u64| {
            let at = end.next_multiple_of(ALIGN_WORDS);
            end = at.saturating_add(bytes / 4);
            at
        };
        let inputs: Vec<u64> = input_bytes.iter().map(&mut place).collect();
        let outputs: Vec<u64> = output_bytes.iter().map(&mut place).collect();
        let what = "the working memory of a session";
        let bytes = end.saturating_mul(4).max(16);
        let name = self.device.name();
        self.device.limits().admit_buffer(&name, what, bytes)?;
        let word = |at: u64| u32::try_from(at).map_err(|_| problem(&name, format!("{what} has {bytes} bytes")));
        let places = Places {
            inputs: inputs.into_iter().map(word).collect::<Result<_>>()?,
            outputs: outputs.into_iter().map(word).collect::<Result<_>>()?,
        };
        let fault_bytes = 4 * layout.faults.len().max(4) as u64;
        let arena = self.device.buffer(what, bytes)?;
        let faults = self.device.buffer("the faults of a session", fault_bytes)?;
        let (swapped, tainted, bytes) = (false, true, bytes + fault_bytes);
        let room = Room { arena, faults, places, swapped, tainted, fault_bytes, bytes, input_bytes, output_bytes };
        for input in 0..self.kept.len() {
            let Some((from, at, bytes)) = self.value(input) else { continue };
            if bytes != room.input_bytes[input] {
                // The value is still in the old arena, which could not be freed before and is freed now.
                if self.kept[input] == Kept::InPlace {
                    self.move_aside(input)?;
                    self.kept[input] = Kept::Aside;
                }
            } else if bytes > 0 {
                let to = 4 * u64::from(room.places.inputs[input]);
                self.device.copy((from, at), (&room.arena, to), bytes)?;
            }
        }
        for input in 0..self.kept.len() {
            if self.value(input).is_some_and(|(_, _, bytes)| bytes == room.input_bytes[input]) {
                (self.kept[input], self.aside[input]) = (Kept::InPlace, None);
            }
        }
        (self.room, self.fresh) = (Some(room), false);
        Ok(())
    }

    /// Makes the states' values inputs, so that the outputs can be written.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if !self.fresh {
            return Ok(());
        }
        for (input, _) in self.copied.clone() {
            self.move_aside(input)?;
        }
        self.copied.iter().for_each(|state| self.kept[state.0] = Kept::Aside);
        if let Some(room) = &mut self.room {
            for &(input, output) in &self.swapped {
                std::mem::swap(&mut room.places.inputs[input], &mut room.places.outputs[output]);
                self.kept[input] = Kept::InPlace;
            }
            room.swapped = !room.swapped;
        }
        self.fresh = false;
        Ok(())
    }

    /// A run succeeded: the outputs that it wrote are the states' values now.
    pub(crate) fn written(&mut self) {
        self.fresh = !self.states.is_empty();
    }

    /// Discards what the last run wrote: the states have their values from before it.
    pub(crate) fn unwritten(&mut self) {
        self.fresh = false;
    }

    pub(crate) fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        let bytes = whole(value.bytes().len());
        if let Some(room) = self.room.as_ref().filter(|room| room.input_bytes[input] == bytes) {
            self.put(4 * u64::from(room.places.inputs[input]), value.bytes())?;
            (self.kept[input], self.aside[input]) = (Kept::InPlace, None);
            return Ok(());
        }
        // The old value stays until the new one is there.
        let buffer = self.device.buffer("an uploaded input", bytes.max(4))?;
        if bytes > 0 {
            self.device.write(&buffer, 0, value.bytes())?;
        }
        (self.kept[input], self.aside[input]) = (Kept::Aside, Some((buffer, bytes)));
        Ok(())
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.write(&self.room()?.arena, at, bytes)
    }

    /// Sets a state to zeros.
    pub(crate) fn zero(&mut self, state: usize) -> Result<()> {
        self.settle()?;
        let (input, _) = self.states[state];
        let room = self.room()?;
        let (at, bytes) = (4 * u64::from(room.places.inputs[input]), room.input_bytes[input]);
        if bytes > 0 {
            self.device.zero(&room.arena, at, bytes)?;
        }
        self.kept[input] = Kept::InPlace;
        Ok(())
    }

    /// The value of a state.
    pub(crate) fn read_state(&self, state: usize, into: &mut [u8]) -> Result<()> {
        let (input, _) = self.states[state];
        let (buffer, at, _) = self.value(input).ok_or_else(|| self.missing("a state without a value"))?;
        if into.is_empty() {
            return Ok(());
        }
        self.device.read(buffer, &mut [(at, into)])
    }

    /// The values of outputs, which the last run wrote.
    pub(crate) fn read_outputs(&self, wanted: &mut [(usize, &mut [u8])]) -> Result<()> {
        let room = self.room()?;
        let place = |output: usize| 4 * u64::from(room.places.outputs[output]);
        let mut parts: Vec<(u64, &mut [u8])> =
            wanted.iter_mut().filter(|w| !w.1.is_empty()).map(|(output, into)| (place(*output), &mut **into)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        self.device.read(&room.arena, &mut parts)
    }

    /// Brings the inputs of a run to their places. States keep their values even if the run fails.
    pub(crate) fn take(&mut self, inputs: &dyn Inputs) -> Result<()> {
        for input in 0..self.kept.len() {
            let room = self.room()?;
            let (at, bytes) = (4 * u64::from(room.places.inputs[input]), room.input_bytes[input]);
            if bytes == 0 {
                continue;
            }
            match (inputs.source(input), self.kept[input]) {
                (Source::Kept, Kept::InPlace) => (),
                (Source::Kept, Kept::Aside) => {
                    let (buffer, has) =
                        self.aside[input].as_ref().ok_or_else(|| self.missing("an input that nobody uploaded"))?;
                    if *has != bytes {
                        return Err(self.missing("an input of another size than the layout's"));
                    }
                    self.device.copy((buffer, 0), (&room.arena, at), bytes)?;
                    self.kept[input] = Kept::InPlace;
                }
                (Source::Kept, Kept::Nowhere) => return Err(self.missing("an input that nobody uploaded")),
                (Source::Host(value), kept) => {
                    if kept == Kept::InPlace {
                        self.move_aside(input)?;
                        self.kept[input] = Kept::Aside;
                    }
                    self.put(at, value)?;
                }
            }
        }
        Ok(())
    }

    /// Clears the faults of an earlier run.
    pub(crate) fn wipe_faults(&mut self) -> Result<()> {
        if let Some(room) = self.room.as_mut().filter(|room| room.tainted) {
            self.device.zero(&room.faults, 0, room.fault_bytes)?;
            room.tainted = false;
        }
        Ok(())
    }
}
