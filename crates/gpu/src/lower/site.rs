//! A kernel under construction: its code, and its arguments with the values that they will get.

use super::Lowering;
use super::constants::Constants;
use super::view::{Home, View};
use crate::device::Limits;
use crate::program::{Argument, Base};
use schwann_codegen::lang::{Expr, Kernel, Maker, Memory};
use schwann_core::{Bindings, Dim, Error, Result};
use std::collections::HashMap;

/// An argument whose value may depend on a slot that has no place yet.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) home: Home,
    pub(crate) strides: Vec<u32>,
}

/// What tanh and sigmoid are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Functions {
    /// Of arithmetic alone.
    Exact,
    /// Of the device's own 2ᵃ and 1/a.
    Fast,
    /// Of its own tanh, which has as many bits as a half.
    Rough,
}

/// A kernel under construction, and the values that its arguments will have.
pub(crate) struct Site<'a> {
    pub(crate) maker: Maker,
    pub(crate) args: Vec<Pending>,
    /// The values of symbols. Only the kernel's arguments depend on them, its text does not.
    pub(crate) bindings: &'a Bindings,
    /// Whether the device converts `f16` exactly by itself.
    pub(crate) exact_halves: bool,
    /// What functions are made of.
    pub(crate) functions: Functions,
    /// Sizes that are constants of this kernel, such as the rows of a block.
    pub(crate) fixed: HashMap<Dim, u32>,
    sizes: HashMap<Dim, Expr>,
    places: HashMap<(Home, Vec<u32>), Expr>,
    /// What is known of constants.
    pub(crate) known: &'a Constants,
    pub(crate) arena: Memory,
    pub(crate) constants: Memory,
    pub(crate) faults: Memory,
}

/// Converts a number of elements or words to 32 bits, in which kernels count.
pub(crate) fn word(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| too_large(value))
}

pub(crate) fn too_large(value: usize) -> Error {
    Error::Device { backend: "gpu".into(), problem: format!("{value} elements are more than kernels can count") }
}

impl<'a> Site<'a> {
    /// A kernel of this name, with this many threads in a workgroup.
    pub(crate) fn new(name: &str, threads: u32, lowering: &Lowering<'a>) -> Site<'a> {
        let mut maker = Maker::new(name, threads);
        let arena = maker.buffer("arena", true);
        let constants = maker.buffer("constants", false);
        let faults = maker.buffer("faults", true);
        let (args, sizes, places) = (vec![], HashMap::new(), HashMap::new());
        let Limits { exact_halves, fast_functions, .. } = *lowering.limits;
        let functions = if fast_functions { Functions::Fast } else { Functions::Exact };
        let bindings = lowering.bindings;
        Site {
            maker,
            args,
            bindings,
            exact_halves,
            functions,
            fixed: HashMap::new(),
            sizes,
            places,
            known: lowering.constants,
            arena,
            constants,
            faults,
        }
    }

    /// An argument.
    pub(crate) fn arg(&mut self, name: &str, home: Home, strides: &[u32]) -> Expr {
        self.args.push(Pending { home, strides: strides.to_vec() });
        // Names of arguments are for people; two sizes may have one.
        let number = self.args.len() - 1;
        self.maker.arg(format!("{name}_{number}"))
    }

    /// A number that is an argument.
    pub(crate) fn number(&mut self, name: &str, value: u32) -> Expr {
        self.arg(name, Home::Number(value), &[])
    }

    /// A size: a constant if it is the same in all runs, else an argument.
    pub(crate) fn size(&mut self, dim: &Dim) -> Result<Expr> {
        if let Some(known) = self.fixed.get(dim) {
            return Ok((*known).into());
        }
        if let Some(fixed) = dim.as_fixed() {
            return Ok(word(fixed)?.into());
        }
        if let Some(known) = self.sizes.get(dim) {
            return Ok(known.clone());
        }
        let value = word(dim.eval(self.bindings)?)?;
        let size = self.number("size", value);
        self.sizes.insert(dim.clone(), size.clone());
        Ok(size)
    }

    /// The memory of a view, and the word that it begins at.
    pub(crate) fn place(&mut self, view: &View) -> Result<(Memory, Expr)> {
        match &view.home {
            Home::Shared(memory) => Ok((*memory, 0u32.into())),
            Home::Number(_) => Err(Error::Internal("a number has no place in memory".into())),
            home => {
                let memory = if matches!(home, Home::Constant(_)) { self.constants } else { self.arena };
                let key = (home.clone(), view.strides.clone());
                let known = self.places.get(&key).cloned();
                let base = match known {
                    Some(known) => known,
                    None => {
                        let base = self.arg("at", home.clone(), &view.strides);
                        self.places.insert(key, base.clone());
                        base
                    }
                };
                Ok((memory, base))
            }
        }
    }

    /// The place of a view as a separate argument, not shared with other uses of the same memory.
    pub(crate) fn own_place(&mut self, view: &View) -> (usize, Expr) {
        let number = self.args.len();
        (number, self.arg("at", view.home.clone(), &view.strides))
    }

    /// For each number from `from`, below `to`. The body may fail, and it may ask for further arguments.
    pub(crate) fn counted(
        &mut self,
        name: &str,
        from: impl Into<Expr>,
        to: impl Into<Expr>,
        body: impl FnOnce(&mut Site<'a>, Expr) -> Result<()>,
    ) -> Result<()> {
        self.strided(name, from, to, 1u32, body)
    }

    /// For each number from `from`, below `to`, by `step`.
    pub(crate) fn strided(
        &mut self,
        name: &str,
        from: impl Into<Expr>,
        to: impl Into<Expr>,
        step: impl Into<Expr>,
        body: impl FnOnce(&mut Site<'a>, Expr) -> Result<()>,
    ) -> Result<()> {
        let var = self.maker.open_count(name);
        let done = body(self, var.clone());
        self.maker.close_count(&var, from, to, step);
        done
    }

    /// If the condition holds.
    pub(crate) fn guarded(
        &mut self,
        condition: impl Into<Expr>,
        body: impl FnOnce(&mut Site<'a>) -> Result<()>,
    ) -> Result<()> {
        self.maker.open_block();
        let done = body(self);
        self.maker.close_when(condition);
        done
    }

    /// One of two, by the condition.
    pub(crate) fn either(
        &mut self,
        condition: impl Into<Expr>,
        then: impl FnOnce(&mut Site<'a>) -> Result<()>,
        otherwise: impl FnOnce(&mut Site<'a>) -> Result<()>,
    ) -> Result<()> {
        self.maker.open_block();
        let first = then(self);
        self.maker.open_block();
        let second = otherwise(self);
        self.maker.close_either(condition);
        first.and(second)
    }

    /// The kernel and its arguments.
    pub(crate) fn finish(self) -> (Kernel, Vec<Pending>) {
        (self.maker.finish(), self.args)
    }
}

impl Pending {
    /// The argument, now that slots have places.
    pub(crate) fn settle(&self, slots: &[u32]) -> Result<Argument> {
        let base = match self.home {
            Home::Slot(slot) => {
                Base::Scratch(*slots.get(slot).ok_or_else(|| Error::Internal(format!("slot {slot} has no place")))?)
            }
            Home::Input(input) => Base::Input(input, 0),
            Home::Output(output) => Base::Output(output, 0),
            Home::Constant(at) => Base::Constant(at),
            Home::Number(number) => Base::Number(number),
            Home::Shared(..) => return Err(Error::Internal("a shared array is no argument".into())),
        };
        Ok(Argument { base, strides: self.strides.clone() })
    }
}
