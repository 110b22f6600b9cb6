//! Kernels with a thread for each element of a result, and those that move elements between packed and unpacked form.

use super::element::{Call, element};
use super::site::{Site, word};
use super::view::View;
use super::{Lowering, product, times};
use schwann_codegen::lang::Expr;
use schwann_core::{Dim, Result};

/// Threads of a workgroup that works element by element.
const THREADS: u32 = 64;

/// The most workgroups along the first axis of a dispatch, if the device allows as many; more go along the second axis.
const GROUPS: u32 = 32_768;

/// Merges neighbouring axes that can be walked as one in all of these views. All views have as many axes as `dims`.
pub(super) fn merge_axes(dims: &mut Vec<Dim>, views: &mut [View]) -> Result<()> {
    // Axes of one element can be dropped.
    for axis in (0..dims.len()).rev() {
        if dims[axis].is(1) {
            dims.remove(axis);
            for view in views.iter_mut() {
                view.dims.remove(axis);
                view.steps.remove(axis);
            }
        }
    }
    let mut axis = dims.len();
    while axis > 1 {
        axis -= 1;
        let mut one = true;
        for view in views.iter() {
            one &= view.steps[axis - 1] == times(&view.steps[axis], &dims[axis])?;
        }
        if !one {
            continue;
        }
        let both = times(&dims[axis - 1], &dims[axis])?;
        dims[axis - 1] = both.clone();
        dims.remove(axis);
        for view in views.iter_mut() {
            view.dims[axis - 1] = both.clone();
            view.dims.remove(axis);
            view.steps.remove(axis - 1);
        }
    }
    Ok(())
}

impl Lowering<'_> {
    /// Workgroups for `work` pieces of work, one for each thread.
    pub(super) fn groups(&self, work: usize, threads: u32) -> Result<[u32; 3]> {
        let blocks = work.div_ceil(threads as usize);
        let wide = blocks.clamp(1, GROUPS.min(self.limits.groups).max(1) as usize);
        Ok([word(wide)?, word(blocks.div_ceil(wide))?, 1])
    }

    /// The number of a thread among all threads of a dispatch made by [`Lowering::groups`], and a condition that it has work.
    pub(super) fn thread_number(site: &mut Site<'_>, work: usize, groups: [u32; 3]) -> Result<(Expr, Expr)> {
        let wide = site.number("wide", groups[0]);
        let count = site.number("count", word(work)?);
        let threads = site.maker.threads();
        let block = site.maker.group(1) * wide + site.maker.group(0);
        let number = block * threads + site.maker.thread();
        let number = site.maker.name("number", number);
        Ok((number.clone(), number.lt(count)))
    }

    /// A kernel with a thread for each element of a node's results.
    pub(super) fn elements(&mut self, call: &Call<'_>, outs: &[View], place: &[usize]) -> Result<()> {
        let work = self.count(call.dims)?;
        let mut dims = call.dims.to_vec();
        let mut views: Vec<View> = outs.to_vec();
        let elementwise = call.op.is_elementwise();
        if elementwise {
            views.extend(call.inputs.iter().map(|view| view.stretched(call.dims)));
            merge_axes(&mut dims, &mut views)?;
        }
        let (outs, inputs) = views.split_at(outs.len());
        let inputs = if elementwise { inputs } else { call.inputs };
        let call = Call { inputs, dims: &dims, ..*call };
        let mut site = Site::new(call.op.name(), THREADS, self);
        let groups = self.groups(work, THREADS)?;
        let (number, has_work) = Self::thread_number(&mut site, work, groups)?;
        site.guarded(has_work, |s| {
            let at = coordinates(s, &number, &dims)?;
            let results = element(s, &call, &at)?;
            for (view, value) in outs.iter().zip(&results) {
                s.store(view, &at, value)?;
            }
            Ok(())
        })?;
        let groups = if work == 0 { [0, 0, 0] } else { groups };
        self.dispatch(site, groups, place, None)
    }

    /// Copies a value to another place; narrow elements are packed into words if the target is packed.
    pub(super) fn copy(&mut self, from: &View, to: &View, place: &[usize]) -> Result<()> {
        let per_word = to.per_word();
        let count = self.count(&from.dims)?;
        let work = count.div_ceil(per_word as usize);
        let mut views = [from.clone(), to.clone()];
        let mut dims = from.dims.clone();
        merge_axes(&mut dims, &mut views)?;
        let [from, to] = views;
        let name = if per_word > 1 { "pack" } else { "copy" };
        let mut site = Site::new(name, THREADS, self);
        let groups = self.groups(work, THREADS)?;
        let (number, has_work) = Self::thread_number(&mut site, work, groups)?;
        let total = site.size(&product(&dims)?)?;
        site.guarded(has_work, |s| {
            if per_word == 1 {
                let at = coordinates(s, &number, &dims)?;
                let value = s.load(&from, &at)?;
                return s.store(&to, &at, &value);
            }
            let bits = 32 / per_word;
            let word = s.maker.variable("word", 0u32);
            s.counted("j", 0u32, per_word, |s, j| {
                let element = &number * per_word + &j;
                let element = s.maker.name("element", element);
                s.guarded(element.lt(&total), |s| {
                    let at = coordinates(s, &element, &dims)?;
                    let value = s.load(&from, &at)?;
                    let narrow = s.narrow_bits(to.dtype, &value);
                    let next = s.maker.get(word).or(narrow.shl(&j * bits));
                    s.maker.set(word, next);
                    Ok(())
                })
            })?;
            let (memory, base) = s.place(&to)?;
            let value = s.maker.get(word);
            s.maker.store(memory, base + &number, value);
            Ok(())
        })?;
        let groups = if work == 0 { [0, 0, 0] } else { groups };
        self.dispatch(site, groups, place, None)
    }
}

/// The coordinates of an element along each axis, from its row-major number.
pub(super) fn coordinates(site: &mut Site<'_>, number: &Expr, dims: &[Dim]) -> Result<Vec<Expr>> {
    let mut at = vec![Expr::from(0u32); dims.len()];
    let mut rest = number.clone();
    for axis in (0..dims.len()).rev() {
        if axis == 0 {
            at[0] = rest;
            break;
        }
        let size = site.size(&dims[axis])?;
        // With an axis of no elements this code never runs, but it must not contain a division by 0.
        let size = if size.as_const() == Some(0) { 1u32.into() } else { size };
        at[axis] = site.maker.name("at", rest.rem(&size));
        rest = site.maker.name("rest", rest / size);
    }
    Ok(at)
}
