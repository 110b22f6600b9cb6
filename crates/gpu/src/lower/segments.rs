//! Sums by segment, of one list of numbers.
//!
//! Since there are no atomic operations, a workgroup computes the sums of some neighbouring segments and reads all
//! numbers. Most numbers belong to other workgroups, and are skipped quickly: each thread reads a short run of segment
//! indices and records whether any of them is one of the workgroup's; then all threads go through the runs that have
//! one. Each sum is added up by one thread in the order of the numbers, so the same inputs give the same bits.

use super::element::{Call, zero};
use super::site::Site;
use super::view::View;
use super::{Lowering, product};
use schwann_codegen::lang::Ty;
use schwann_core::Result;

const THREADS: u32 = 64;
/// Segments of a thread: the first has the thread's number, the others follow at a distance of the number of threads.
const EACH: u32 = 4;
/// Numbers that a thread checks before anything is summed.
const RUN: u32 = 16;

/// From this many numbers and segments on, this is faster than a thread for each segment that reads all numbers alone.
const LEAST: usize = 256;

impl Lowering<'_> {
    /// Lowers sums by segment of one long list; gives `false` if it is not one.
    pub(super) fn segments(&mut self, call: &Call<'_>, axis: usize, out: &View, place: &[usize]) -> Result<bool> {
        let (x, segments) = (&call.inputs[0], &call.inputs[1]);
        let (numbers, sums) = (x.dims[axis].eval(self.bindings)?, call.dims[axis].eval(self.bindings)?);
        if numbers < LEAST || sums < LEAST || !product(call.dims)?.eq(&call.dims[axis]) {
            return Ok(false);
        }
        let mut site = Site::new("segment_sum", THREADS, self);
        let flags = site.maker.shared("has", Ty::U32, THREADS);
        let (size, count) = (site.size(&x.dims[axis])?, site.size(&call.dims[axis])?);
        let at = |e: &schwann_codegen::lang::Expr| {
            let mut at = vec![0u32.into(); x.dims.len()];
            at[axis] = e.clone();
            at
        };
        let groups = self.a_group_each(&mut site, sums.div_ceil((THREADS * EACH) as usize), |s, number| {
            let thread = s.maker.thread();
            let base = s.maker.name("base", number * (THREADS * EACH));
            let own: Vec<_> = (0..EACH).map(|k| s.maker.name("own", &base + &thread + k * THREADS)).collect();
            let totals: Vec<_> = (0..EACH).map(|_| s.maker.variable("sum", zero(call.dtypes[0]))).collect();
            s.strided("block", 0u32, &size, THREADS * RUN, |s, block| {
                let begin = s.maker.name("begin", &block + &thread * RUN);
                let end = s.maker.name("end", (&begin + RUN).min(&size));
                let has = s.maker.variable("any", 0u32);
                s.counted("e", begin, end, |s, e| {
                    let segment = s.load(segments, std::slice::from_ref(&e))?.bits(Ty::U32);
                    let segment = s.maker.name("segment", segment);
                    if let Some(fault) = call.fault {
                        let (faults, number) = (s.faults, s.number("fault", fault));
                        s.maker.either(segment.lt(&count), |_| (), |m| m.fault(faults, number));
                    }
                    // Unsigned, so a segment before the first wraps to a very large number and fails the comparison.
                    let mine = (segment - &base).lt(THREADS * EACH);
                    let next = mine.select(1u32, s.maker.get(has));
                    s.maker.set(has, next);
                    Ok(())
                })?;
                let value = s.maker.get(has);
                s.maker.store(flags, &thread, value);
                s.maker.barrier();
                s.counted("run", 0u32, THREADS, |s, run| {
                    let any = s.maker.load(flags, &run, Ty::U32).ne(0u32);
                    s.guarded(any, |s| {
                        let begin = s.maker.name("begin", &block + &run * RUN);
                        let end = s.maker.name("end", (&begin + RUN).min(&size));
                        s.counted("e", begin, end, |s, e| {
                            let segment = s.load(segments, std::slice::from_ref(&e))?.bits(Ty::U32);
                            let segment = s.maker.name("segment", segment);
                            for (own, total) in own.iter().zip(&totals) {
                                s.guarded(segment.eq(own), |s| {
                                    let value = s.load(x, &at(&e))?;
                                    let next = s.maker.get(*total) + value;
                                    s.maker.set(*total, next);
                                    Ok(())
                                })?;
                            }
                            Ok(())
                        })
                    })
                })?;
                // All threads must have read the flags before any thread writes new ones.
                s.maker.barrier();
                Ok(())
            })?;
            for (own, total) in own.iter().zip(&totals) {
                s.guarded(own.lt(&count), |s| {
                    let value = s.maker.get(*total);
                    s.store(out, &at(own), &value)
                })?;
            }
            Ok(())
        })?;
        self.dispatch(site, groups, place, None)?;
        Ok(true)
    }
}
