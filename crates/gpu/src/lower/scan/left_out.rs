//! A loop's kernel without one node of its body: for measuring what that node takes.
//!
//! Such a kernel has the same threads, the same memory and the same barriers; only what the node loads, computes and stores is
//! not there. The one that it is compared with leaves nothing out, and sets shared memory to zeros first as they all do.

use super::block::Block;
use super::is_view;
use crate::lower::Lowering;
use crate::lower::site::Site;
use schwann_codegen::lang::Memory;
use schwann_core::Result;
use schwann_core::graph::Node;

impl Lowering<'_> {
    /// Where the kernel of this loop is made for measuring: the body's node that it leaves out, if any.
    pub(super) fn left_out_of(&mut self, block: &Block, place: &[usize]) -> Option<Option<u32>> {
        let left_out = self.left_out.filter(|left_out| left_out.looped == place)?;
        let nodes = block.body.body.nodes().iter().enumerate();
        let mut steps = nodes.filter(|(_, node)| is_step(node)).map(|(id, _)| id as u32);
        let node = left_out.step.map(|step| steps.nth(step));
        self.met = node != Some(None);
        Some(node.flatten())
    }
}

/// Whether a node of the body is a step of its plan.
pub(super) fn is_step(node: &Node) -> bool {
    !node.op.is_source() && !is_view(&node.op)
}

/// Sets shared memory to zeros: whoever reads the result of a node that is left out then reads a number.
pub(super) fn zero(s: &mut Site<'_>, shared: Memory, block: &Block) -> Result<()> {
    let thread = s.maker.thread();
    s.strided("e", thread, block.words, block.threads, |s, e| {
        s.maker.store(shared, e, 0u32);
        Ok(())
    })?;
    s.maker.barrier();
    Ok(())
}
