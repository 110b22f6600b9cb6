//! A GPU that is lost at one of its calls, as one is whose driver fails, or that is pulled out.

use crate::opened::Card;
use schwann_codegen::lang::Kernel;
use schwann_core::Result;
use schwann_core::backend::Clock;
use schwann_gpu::device::{Device, Launch, Limits, Tally};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The GPU; before the call of this number, counted from 1, it is destroyed.
pub(crate) struct Losing {
    device: Card,
    lost_at: u64,
    calls: AtomicU64,
}

impl Losing {
    pub(crate) fn new(device: Card, lost_at: u64) -> Losing {
        Losing { device, lost_at, calls: AtomicU64::new(0) }
    }

    /// How many calls there were.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn call(&self) -> &Card {
        if self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.lost_at {
            self.device.destroy();
        }
        &self.device
    }
}

impl Device for Losing {
    type Buffer = <Card as Device>::Buffer;
    type Kernel = <Card as Device>::Kernel;
    type List = <Card as Device>::List;
    type Ticket = <Card as Device>::Ticket;

    fn name(&self) -> String {
        self.device.name()
    }
    fn limits(&self) -> &Limits {
        self.device.limits()
    }
    fn unified(&self) -> bool {
        self.device.unified()
    }
    fn clock(&self) -> Option<Clock> {
        self.device.clock()
    }
    fn tally(&self) -> &Tally {
        self.device.tally()
    }
    fn buffer(&self, what: &str, bytes: u64) -> Result<Self::Buffer> {
        self.call().buffer(what, bytes)
    }
    fn write(&self, to: &Self::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        self.call().write(to, at, bytes)
    }
    fn zero(&self, to: &Self::Buffer, at: u64, bytes: u64) -> Result<()> {
        self.call().zero(to, at, bytes)
    }
    fn copy(&self, from: (&Self::Buffer, u64), to: (&Self::Buffer, u64), bytes: u64) -> Result<()> {
        self.call().copy(from, to, bytes)
    }
    fn read(&self, from: &Self::Buffer, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.call().read(from, parts)
    }
    fn compile(&self, kernel: &Arc<Kernel>) -> Result<Self::Kernel> {
        self.call().compile(kernel)
    }
    fn list(
        &self,
        buffers: [&Self::Buffer; 3],
        launches: &[Launch<Self::Kernel>],
        old: Option<Self::List>,
    ) -> Result<Self::List> {
        self.call().list(buffers, launches, old)
    }
    fn submit(&self, list: &Self::List, timed: bool) -> Result<Self::Ticket> {
        self.call().submit(list, timed)
    }
    fn ended(&self, ticket: &Self::Ticket) -> Result<bool> {
        self.call().ended(ticket)
    }
    fn wait(&self, ticket: Self::Ticket) -> Result<Option<Vec<[f64; 2]>>> {
        self.call().wait(ticket)
    }
}
