//! Where should a network run: on the CPU or on the GPU? One of two is faster for certain where the bands do not touch;
//! where they do, nobody can tell. At other batch sizes the same is asked again, which gives the batches between which the
//! GPU begins to win.

use super::GpuPrediction;
use schwann_core::Figure;
use serde::Serialize;

/// Batch sizes that are asked about, up to this one.
pub const MOST_BATCH: usize = 1 << 16;

/// Which of two is faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// All of the CPU's band is below the GPU's.
    Cpu,
    /// All of the GPU's band is below the CPU's.
    Gpu,
    /// The bands overlap.
    CannotTell,
    /// One of the two is not predicted.
    Unavailable,
}

/// Both at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The batch.
    pub batch: usize,
    /// Seconds of a run on the CPU.
    pub cpu: Figure,
    /// Seconds of a run on the GPU.
    pub gpu: Figure,
    /// The faster one.
    pub faster: Where,
}

/// At which batch the GPU begins to win.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Crossing {
    /// Up to here (and at least at 1) the CPU is certainly faster.
    pub cpu_until: Option<usize>,
    /// From here on, as far as was asked, the GPU is certainly faster.
    pub gpu_from: Option<usize>,
    /// The largest batch that was asked about.
    pub asked_until: usize,
}

/// Where a network should run on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// At the batch that was asked for.
    pub now: Where,
    /// At other batches; none where the network's batch cannot be changed.
    pub points: Vec<Point>,
    /// What follows from them; none where nothing is predicted.
    pub crossing: Option<Crossing>,
}

/// Which of two times is certainly the shorter.
pub fn compare(cpu: &Figure, gpu: &Figure) -> Where {
    let ends = |f: &Figure| f.value.map(|v| f.spread.map_or((v, v), |s| (s.low, s.high)));
    match (ends(cpu), ends(gpu)) {
        (Some((_, cpu_high)), Some((gpu_low, _))) if cpu_high < gpu_low => Where::Cpu,
        (Some((cpu_low, _)), Some((_, gpu_high))) if gpu_high < cpu_low => Where::Gpu,
        (Some(_), Some(_)) => Where::CannotTell,
        _ => Where::Unavailable,
    }
}

impl Point {
    /// Both at a batch.
    pub fn new(batch: usize, cpu: Figure, gpu: Figure) -> Point {
        let faster = compare(&cpu, &gpu);
        Point { batch, cpu, gpu, faster }
    }
}

impl Crossing {
    /// What points of growing batch say; none where one of them is not predicted, or there is none.
    pub fn of(points: &[Point]) -> Option<Crossing> {
        let asked_until = points.last()?.batch;
        if points.iter().any(|p| p.faster == Where::Unavailable) {
            return None;
        }
        let cpu_until = points.iter().take_while(|p| p.faster == Where::Cpu).last().map(|p| p.batch);
        let gpu_from = points.iter().rev().take_while(|p| p.faster == Where::Gpu).last().map(|p| p.batch);
        Some(Crossing { cpu_until, gpu_from, asked_until })
    }

    /// In a sentence.
    pub fn words(&self) -> String {
        let asked = self.asked_until;
        match (self.cpu_until, self.gpu_from) {
            (None, Some(1)) => format!("The GPU is faster at every batch from 1 to {asked}."),
            (Some(until), _) if until == asked => format!("The CPU is faster at every batch from 1 to {asked}."),
            (Some(until), Some(from)) => {
                format!("The GPU begins to win somewhere between batch {until} and {from}.")
            }
            (None, Some(from)) => {
                format!("The GPU certainly wins from batch {from} on; below that, the bands overlap: cannot tell.")
            }
            (Some(until), None) => format!(
                "The CPU is certainly faster up to batch {until}. Above that, the bands overlap up to batch {asked}: \
                 cannot tell where the GPU begins to win."
            ),
            (None, None) => {
                format!("Cannot tell at which batch the GPU begins to win: the bands overlap from 1 to {asked}.")
            }
        }
    }
}

impl Place {
    /// From both times at the batch that was asked for, and points at others.
    pub fn new(cpu: &Figure, gpu: &GpuPrediction, points: Vec<Point>) -> Place {
        Place { now: compare(cpu, &gpu.time), crossing: Crossing::of(&points), points }
    }

    /// In a sentence: where it should run now.
    pub fn words(&self, batch: usize) -> String {
        match self.now {
            Where::Cpu => format!("At batch {batch} it should run on the CPU: all of its band is below the GPU's."),
            Where::Gpu => format!("At batch {batch} it should run on the GPU: all of its band is below the CPU's."),
            Where::CannotTell => {
                format!("At batch {batch} nobody can tell which is faster: the bands overlap. Measure both there.")
            }
            Where::Unavailable => "Where it should run is not known: one of the two has no prediction.".into(),
        }
    }
}

/// Batches to ask about: powers of two.
pub fn batches() -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |b| b.checked_mul(2)).take_while(|b| *b <= MOST_BATCH)
}
