//! Predictions of GPUs: what they count, what the band holds, and where a network should run.

use super::*;
use crate::device::calibrate::tests::made_up;
use crate::device::catalog::{Catalog, Entry};
use crate::device::predict::tests::plan;
use crate::models::{INPUTS, Sizes, built_in};
use schwann_core::{DType, Figure, GraphBuilder, Op};
use schwann_nn::{GraphOptions, InitialState};

const MACS: [&str; 14] = [
    "M1", "M1 Pro", "M1 Max", "M1 Ultra", "M2", "M2 Pro", "M2 Max", "M2 Ultra", "M3", "M3 Max", "M4", "M4 Pro",
    "M4 Max", "M5",
];

pub(in crate::device) fn prospect(name: &str) -> Prospect {
    let model = built_in(name, &Sizes::default()).unwrap().unwrap();
    Prospect::new(&model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap()).unwrap()
}

pub(in crate::device) fn work(prospect: &Prospect, batch: usize, steps: usize) -> Work {
    prospect.work(&Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS)).unwrap()
}

fn device(name: &str) -> Entry {
    Catalog::own().unwrap().find(name).unwrap().clone()
}

fn ends(figure: &Figure) -> [f64; 2] {
    figure.spread.map(|s| [s.low, s.high]).unwrap()
}

#[test]
fn a_loop_of_independent_rows_is_one_dispatch_and_walks_its_steps() {
    for name in ["P", "W", "L"] {
        let work = work(&prospect(name), 256, 64);
        let walks: Vec<_> = work.dispatches.iter().filter(|d| d.walks == Some(64)).collect();
        assert_eq!(walks.len(), 1, "{name}: {:?}", work.dispatches);
        assert!(walks[0].groups >= 16.0 && walks[0].busiest.barriers >= 64.0, "{name}: {:?}", walks[0]);
        // The kernels do at least the plan's multiply-adds, and no more than index arithmetic and functions can add.
        let floats: f64 = work.dispatches.iter().map(|d| d.times * d.groups * d.threads * d.average.floats).sum();
        assert!(floats > 0.4 * work.flops / 2.0 && floats < 20.0 * work.flops, "{name}: {floats} {}", work.flops);
    }
}

#[test]
fn more_sequences_and_more_steps_never_take_less_time() {
    for name in ["P", "W", "L"] {
        let prospect = prospect(name);
        for chip in ["M1", "M1 Max"] {
            let time = |batch, steps| ends(&on_gpu(Ok(&work(&prospect, batch, steps)), &device(chip)).time);
            let grow = |all: Vec<[f64; 2]>| {
                for pair in all.windows(2) {
                    assert!(pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1], "{name} on {chip}: {all:?}");
                }
            };
            grow([1, 8, 64, 256].map(|b| time(b, 16)).into());
            grow([1024, 4096, 16384, 65536].map(|b| time(b, 16)).into());
            grow([1, 4, 16, 64].map(|t| time(32, t)).into());
        }
    }
}

#[test]
fn a_band_is_the_sum_of_its_parts_and_every_assumption_is_named() {
    let (prospect, catalog) = (prospect("P"), Catalog::own().unwrap());
    for (batch, steps) in [(1, 1), (256, 64)] {
        let work = work(&prospect, batch, steps);
        for name in MACS {
            let p = on_gpu(Ok(&work), catalog.find(name).unwrap());
            let [low, high] = ends(&p.time);
            let middle = p.time.value.unwrap();
            assert!(0.0 < low && low < middle && middle < high, "{name}: {:?}", p.time);
            let sums = [0, 1].map(|end| p.parts.iter().map(|part| ends(&part.time)[end]).sum::<f64>());
            assert!((sums[0] - low).abs() < 1e-9 * low && (sums[1] - high).abs() < 1e-9 * high, "{name}");
            assert!(p.parts.iter().all(|part| ends(&part.time)[0] <= ends(&part.time)[1]), "{name}: {:?}", p.parts);
            let [_, share] = ends(&p.share);
            assert!(share <= 100.0, "{name}: no more than the peak, {share}");
            for word in
                ["handing a run over", "exponential", "functions a second", "memory bandwidth", "clock of the GPU"]
            {
                assert!(p.assumptions.iter().any(|a| a.what.contains(word)), "{name}: {word}");
            }
            assert!(p.assumptions.iter().all(|a| !a.why.is_empty() && a.low.is_finite() && a.high.is_finite()));
            assert!(p.compared.contains("never compared") && p.time.source.contains("never compared"));
        }
    }
}

#[test]
fn what_is_not_published_is_unavailable_and_said() {
    let work = work(&prospect("W"), 4, 4);
    for (name, word) in
        [("M5 Max", "the peak of the GPU"), ("A16 Bionic", "the peak"), ("Raspberry Pi 5", "cores of the GPU")]
    {
        let p = on_gpu(Ok(&work), &device(name));
        let why = p.time.reason.unwrap();
        assert!(p.time.value.is_none() && p.parts.is_empty() && why.contains(word) && why.contains(name), "{why}");
    }
    let p = on_gpu(Err("no price is known for `x`"), &device("M1"));
    assert!(p.time.value.is_none() && p.time.reason.unwrap().contains("`x`") && p.peak.value == Some(2.6));
}

#[test]
fn a_kernel_whose_work_depends_on_data_is_named() {
    // Which synapse goes where is an input: every thread looks at all of them, which is known; so it has a price.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[4, 8][..]).unwrap();
    let to = b.input("to", DType::I32, &[8][..]).unwrap();
    let y = b.push(Op::SegmentSum { axis: 1, segments: 3.into() }, &[x, to]).unwrap();
    b.output("y", y).unwrap();
    let found = Prospect::new(&b.build().unwrap()).unwrap().work(&Bindings::new());
    match found {
        Ok(work) => assert_eq!(work.launches, 1.0),
        Err(why) => assert!(why.contains("no price is known for"), "{why}"),
    }
    // A size that is not given is a sentence, too.
    let why = prospect("W").work(&Bindings::new()).unwrap_err();
    assert!(!why.is_empty());
}

#[test]
fn where_bands_separate_the_crossing_is_between_them() {
    let figure = |low: f64, high: f64| {
        let spread = schwann_core::figure::Spread { low, high, ends: schwann_core::figure::Ends::Band, samples: 0 };
        Figure::predicted((low * high).sqrt(), "s", "a test").with_spread(spread)
    };
    // The CPU takes a microsecond a row, the GPU 100 and a hundredth of that; each is known to a factor of two.
    let points: Vec<Point> = place::batches()
        .map(|b| {
            let (cpu, gpu) = (1e-6 * b as f64, 1e-4 + 1e-8 * b as f64);
            Point::new(b, figure(cpu / 2.0, cpu * 2.0), figure(gpu / 2.0, gpu * 2.0))
        })
        .collect();
    let crossing = Crossing::of(&points).unwrap();
    assert_eq!((crossing.cpu_until, crossing.gpu_from, crossing.asked_until), (Some(16), Some(512), 65536));
    assert!(crossing.words().contains("between batch 16 and 512"), "{}", crossing.words());
    let wide: Vec<Point> = points.iter().map(|p| Point::new(p.batch, figure(1e-9, 1.0), p.gpu.clone())).collect();
    let crossing = Crossing::of(&wide).unwrap();
    assert!(crossing.cpu_until.is_none() && crossing.gpu_from.is_none());
    assert!(crossing.words().contains("Cannot tell"));
    let slow: Vec<Point> = points.iter().map(|p| Point::new(p.batch, p.cpu.clone(), figure(1e3, 2e3))).collect();
    assert!(Crossing::of(&slow).unwrap().words().contains("CPU is faster at every batch"));
    let unknown = vec![Point::new(1, figure(1.0, 2.0), Figure::unavailable("s", "GPU", "not published"))];
    assert_eq!((Crossing::of(&unknown), unknown[0].faster), (None, Where::Unavailable));
}

#[test]
fn a_single_step_belongs_on_the_cpu() {
    let (prospect, m1) = (prospect("W"), device("M1 Max"));
    let cpu = crate::device::on(&plan("W", 1, 1, 1), &m1, &made_up());
    let gpu = on_gpu(Ok(&work(&prospect, 1, 1)), &m1);
    assert_eq!(compare(&cpu.time, &gpu.time), Where::Cpu, "{:?} {:?}", cpu.time, gpu.time);
}
