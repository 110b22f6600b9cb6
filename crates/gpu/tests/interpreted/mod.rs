//! Runs a graph's dispatches in the interpreter, without a device: as little as that takes.

#![allow(dead_code, reason = "each test that includes it uses another part")]

use schwann_codegen::interpret::{Options, Program, Words};
use schwann_codegen::lang::Kernel;
use schwann_core::{Bindings, Error, Graph, Result, Tensor};
use schwann_gpu::device::Limits;
use schwann_gpu::lower::Prepared;
use schwann_gpu::program::{Argument, Base, Item, Layout};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Words that belong to nobody, after each value.
const GAP: usize = 16;

/// A dispatch that was run: what it was given, and what it made of it.
pub(crate) struct Ran<'a> {
    pub(crate) kernel: &'a Arc<Kernel>,
    pub(crate) groups: [u32; 3],
    pub(crate) args: &'a [u32],
    pub(crate) before: &'a [Words; 3],
    pub(crate) after: &'a [Words; 3],
}

/// Who looks at each dispatch.
type Watch<'a> = Option<&'a mut dyn FnMut(&Ran<'_>)>;

/// The results of a graph that has gone through the passes.
pub(crate) fn run(graph: &Graph, inputs: &BTreeMap<String, Tensor>, limits: &Limits) -> Result<Vec<Tensor>> {
    run_watched(graph, inputs, limits, None)
}

/// The same without gaps, and with values in memory that others had before them, as on a device.
pub(crate) fn run_close(graph: &Graph, inputs: &BTreeMap<String, Tensor>, limits: &Limits) -> Result<Vec<Tensor>> {
    let prepared = Prepared::new(Arc::new(graph.clone()), limits)?;
    let bindings = bindings(graph, inputs)?;
    dispatch(graph, inputs, limits, &prepared, &prepared.lay_out(&bindings)?, None)
}

/// The results, with somebody who looks at each dispatch.
pub(crate) fn run_watched(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<Vec<Tensor>> {
    let prepared = Prepared::apart(Arc::new(graph.clone()), limits)?;
    let bindings = bindings(graph, inputs)?;
    dispatch(graph, inputs, limits, &prepared, &prepared.lay_out_apart(&bindings)?, watch)
}

fn bindings(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Result<Bindings> {
    let mut bindings = Bindings::new();
    graph.bind(|name| inputs.get(name).map(Tensor::shape), &mut bindings)?;
    Ok(bindings)
}

fn dispatch(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    limits: &Limits,
    prepared: &Prepared,
    layout: &Layout,
    watch: Watch<'_>,
) -> Result<Vec<Tensor>> {
    let mut arena = Words::new(layout.scratch_words as usize);
    let mut taken: Vec<(usize, usize)> = layout.plan.buffers.iter().map(|b| (b.offset / 4, b.bytes / 4)).collect();
    let mut places = [vec![], vec![]];
    let sizes = schwann_core::backend::Sizes::of(graph, &layout.plan.bindings)?;
    for (i, (name, _)) in graph.inputs().enumerate() {
        let (dtype, shape) = &sizes.inputs[i];
        let zeros = Tensor::zeros(*dtype, shape)?;
        let bytes = inputs.get(name).unwrap_or(&zeros).bytes();
        places[0].push(arena.len() as u32);
        let words: Vec<u32> = bytes.chunks(4).map(word).collect();
        let at = arena.len();
        taken.push((at, words.len()));
        arena.resize(at + words.len() + GAP);
        arena.put(at, &words).unwrap();
    }
    for sized in &sizes.outputs {
        places[1].push(arena.len() as u32);
        let words = schwann_core::backend::Sizes::bytes(sized).div_ceil(4);
        taken.push((arena.len(), words));
        arena.resize(arena.len() + words + GAP);
    }
    // What is between constants holds nothing.
    let words = prepared.constants(graph)?;
    let mut constants = Words::new(words.len());
    for place in prepared.constant_places() {
        let place = place.start as usize..place.end as usize;
        constants.put(place.start, &words[place]).unwrap();
    }
    let mut state = State {
        programs: layout.kernels.iter().map(|k| Program::new(k).map_err(found)).collect::<Result<_>>()?,
        buffers: [arena, constants, Words::of(vec![0; layout.faults.len().max(1)])],
        places,
        layout,
        watch,
    };
    for kernel in &layout.kernels {
        schwann_codegen::verify::verify(kernel).map_err(found)?;
        limits.admit("interpreter", kernel)?;
    }
    state.run(&layout.items, &mut vec![])?;
    // What nobody has a right to, nobody wrote to.
    taken.sort_unstable();
    let mut end = 0;
    for (at, words) in taken.into_iter().chain([(state.buffers[0].len(), 0)]) {
        if let Some(word) = (end..at).find(|word| state.buffers[0].is_known(*word)) {
            return Err(found(format!("word {word} of the arena was written: it belongs to nobody")));
        }
        end = end.max(at + words);
    }
    let raised = |(word, _): &(&u32, _)| **word != 0;
    if let Some((_, fault)) = state.buffers[2].values().iter().zip(&layout.faults).find(raised) {
        return Err(Error::Value { node: fault.node.clone(), problem: fault.problem.clone() });
    }
    let mut results = vec![];
    for (sized, at) in sizes.outputs.iter().zip(&state.places[1]) {
        let bytes = schwann_core::backend::Sizes::bytes(sized);
        let at = *at as usize;
        let words = state.buffers[0].get(at..at + bytes.div_ceil(4));
        let words = words.ok_or_else(|| Error::Internal("a part of a result was not written".into()))?;
        let all: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take(bytes).collect();
        results.push(Tensor::from_bytes(sized.0, &sized.1, &all)?);
    }
    Ok(results)
}

/// The kernels of a graph, by number.
pub(crate) fn kernels(graph: &Graph, inputs: &BTreeMap<String, Tensor>, limits: &Limits) -> Result<Vec<Arc<Kernel>>> {
    let prepared = Prepared::new(Arc::new(graph.clone()), limits)?;
    Ok(prepared.lay_out(&bindings(graph, inputs)?)?.kernels)
}

fn word(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(four)
}

fn found(problem: impl std::fmt::Display) -> Error {
    Error::Internal(problem.to_string())
}

struct State<'a, 'w> {
    layout: &'a Layout,
    watch: Watch<'w>,
    programs: Vec<Program>,
    buffers: [Words; 3],
    places: [Vec<u32>; 2],
}

impl State<'_, '_> {
    fn value(&self, arg: &Argument, rounds: &[u32]) -> u32 {
        let base = match arg.base {
            Base::Number(n) | Base::Scratch(n) | Base::Constant(n) => n,
            Base::Input(i, at) => self.places[0][i] + at,
            Base::Output(o, at) => self.places[1][o] + at,
        };
        arg.strides.iter().zip(rounds).fold(base, |sum, (s, r)| sum.wrapping_add(s.wrapping_mul(*r)))
    }

    fn run(&mut self, items: &[Item], rounds: &mut Vec<u32>) -> Result<()> {
        for item in items {
            match item {
                Item::Repeat { rounds: times, body } => {
                    for round in 0..*times {
                        rounds.push(round);
                        self.run(body, rounds)?;
                        rounds.pop();
                    }
                }
                Item::Dispatch(d) if d.groups.contains(&0) => {}
                Item::Dispatch(d) => {
                    let args: Vec<u32> = d.args.iter().map(|arg| self.value(arg, rounds)).collect();
                    // A walk in two pieces, the second of which goes on from what the first one wrote.
                    let mut pieces = vec![args.clone()];
                    if let Some(walk) = d.walk.as_ref().filter(|walk| walk.steps > 1) {
                        let half = walk.steps / 2;
                        pieces.push(args);
                        (pieces[0][walk.to], pieces[1][walk.from]) = (half, half);
                        for (read, written) in &walk.carry {
                            pieces[1][*read] = pieces[1][*written];
                        }
                    }
                    for args in pieces {
                        let before = self.watch.is_some().then(|| self.buffers.clone());
                        let [a, b, c] = &mut self.buffers;
                        let ran = self.programs[d.kernel].run(d.groups, &args, &mut [a, b, c], &Options::default());
                        let place = &d.place;
                        ran.map_err(|e| found(format!("{e} (step {place:?} of {})", self.layout.plan.steps.len())))?;
                        if let (Some(watch), Some(before)) = (&mut self.watch, &before) {
                            let (kernel, after) = (&self.layout.kernels[d.kernel], &self.buffers);
                            watch(&Ran { kernel, groups: d.groups, args: &args, before, after });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
