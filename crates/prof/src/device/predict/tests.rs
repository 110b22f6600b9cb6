//! Predictions of the CPU.

use super::*;
use crate::device::calibrate::Calibration;
use crate::device::calibrate::tests::made_up;
use crate::device::catalog::Catalog;
use crate::device::fit::Unit;
use crate::models::{INPUTS, Sizes, built_in};
use schwann_core::{Bindings, CompileOptions, DType, GraphBuilder, Program, Tensor};
use schwann_kernels::Isa;
use schwann_nn::{GraphOptions, InitialState};

pub(in crate::device) fn plan(name: &str, batch: usize, steps: usize, threads: usize) -> Plan {
    let model = built_in(name, &Sizes::default()).unwrap().unwrap();
    let graph = model.graph(&GraphOptions::default().state(InitialState::Zero)).unwrap();
    let program = Program::compile(&graph, &CompileOptions::default().threads(threads)).unwrap();
    program.plan(&Bindings::new().with("B", batch).with("T", steps).with("C", INPUTS)).unwrap()
}

#[test]
fn a_tiny_plan_costs_what_a_hand_counts() {
    // y = tanh(x) for 64 floats: one map of one function.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[64][..]).unwrap();
    let y = b.tanh(x).unwrap();
    b.output("y", y).unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
    // A call, 64 functions (each a flop that is counted as a function), 256 bytes in and 256 out.
    let op = 20e-9 + 64.0 * 0.5e-9 + 512.0 * 0.01e-9;
    let run = 100e-9 + 2.0 * 10e-9;
    assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
    assert!((p.overhead.value.unwrap() - run).abs() < 1e-15);
    assert!((p.time.value.unwrap() - op - run).abs() < 1e-15);
    assert_eq!(p.ops[0].bound, Bound::Functions);
    assert!((p.tflops.value.unwrap() - 64.0 / (op + run) / 1e12).abs() < 1e-12);
}

#[test]
fn a_product_costs_what_a_hand_counts() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[1, 8][..]).unwrap();
    let w = b.weight("w", Tensor::zeros(DType::F32, &[8, 32]).unwrap()).unwrap();
    let y = b.matmul(x, w).unwrap();
    b.output("y", y).unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
    // One row: a call, 8 rounds over one panel, 8 × 32 floats of weights in the first level.
    let op = 30e-9 + 8.0 * 1e-9 + 8.0 * 32.0 * 4.0 * 0.01e-9;
    assert!((p.ops[0].time.value.unwrap() - op).abs() < 1e-15, "{:?}", p.ops[0]);
}

#[test]
fn operations_and_overhead_add_up_and_nothing_is_negative() {
    for name in ["P", "W", "L"] {
        for (batch, steps, threads) in [(1, 1, 1), (1, 16, 1), (32, 16, 1), (256, 64, 2)] {
            let plan = plan(name, batch, steps, threads);
            let speed = Speed::host(&made_up(), threads);
            let p = predict(&plan, &speed);
            let sum: f64 = p.ops.iter().map(|op| op.time.value.unwrap()).sum();
            let total = p.time.value.unwrap();
            assert!((sum + p.overhead.value.unwrap() - total).abs() < 1e-12 * total.max(1.0));
            assert!(p.ops.iter().all(|op| op.time.value.unwrap() >= 0.0) && total > 0.0);
            let loops = plan.steps.iter().filter_map(|s| s.looped.as_ref());
            let inner: usize = loops.map(|l| l.body.steps.len()).sum();
            assert_eq!(p.ops.len(), plan.steps.len() + inner, "bodies stand beside their loops");
            assert!(p.neural_engine.reason.as_deref().is_some_and(|r| r.contains("loops")));
        }
    }
}

#[test]
fn more_sequences_and_more_steps_take_longer_and_more_threads_do_not() {
    for name in ["P", "W", "L"] {
        let time = |batch, steps, threads| {
            predict(&plan(name, batch, steps, threads), &Speed::host(&made_up(), threads)).time.value.unwrap()
        };
        let batches: Vec<f64> = [1, 32, 64, 128, 256].map(|b| time(b, 16, 1)).into();
        assert!(batches.windows(2).all(|w| w[0] < w[1]), "{name} {batches:?}");
        let steps: Vec<f64> = [1, 4, 16, 64].map(|t| time(32, t, 1)).into();
        assert!(steps.windows(2).all(|w| w[0] < w[1]), "{name} {steps:?}");
        assert!(time(256, 64, 2) < time(256, 64, 1), "{name}");
    }
}

#[test]
fn kernels_descriptions_are_read_as_the_backend_writes_them() {
    // What matters is that products, synapses and loops of real plans are recognized, whatever the machine.
    for (name, batch, units) in [
        ("P", 1, &[Unit::RowCall, Unit::MapFunction, Unit::GatedCall, Unit::GatedFunction, Unit::LoopStep][..]),
        ("P", 64, &[Unit::ProductCall, Unit::ProductTile, Unit::ProductWork, Unit::MapFunction, Unit::GatedWork]),
        ("W", 1, &[Unit::GatedCall, Unit::GatedFunction, Unit::RowByteL1, Unit::LoopStep]),
        ("W", 64, &[Unit::GatedCall, Unit::GatedWork, Unit::GatedFunction, Unit::LoopStep]),
        ("L", 1, &[Unit::SynapseCall, Unit::MapDivide]),
        ("L", 64, &[Unit::SynapseCall, Unit::SynapseRow, Unit::MapDivide]),
    ] {
        let plan = plan(name, batch, 4, 1);
        let target = Target { lanes: Isa::detect().lanes(), panel: 4, l1: Some(32 << 10), l2: Some(1 << 20) };
        let (_, steps) = fit::count(&plan, &target);
        for unit in units {
            let total: f64 = steps.iter().filter_map(|s| s.counts.get(unit)).sum();
            assert!(total > 0.0, "{name} at {batch}: no {unit:?}");
        }
        let work = |unit| steps.iter().filter_map(|s| s.counts.get(unit)).sum::<f64>();
        let products = work(&Unit::ProductWork) + work(&Unit::GatedWork);
        assert!(2.0 * products >= 0.8 * plan.cost().flops as f64 || !units.contains(&Unit::GatedWork));
    }
}

#[test]
fn a_catalogued_device_is_scaled_by_what_is_published_and_says_so() {
    let catalog = Catalog::own().unwrap();
    let (m1, calibration) = (catalog.find("M1").unwrap(), made_up());
    let speed = Speed::catalogued(m1, &calibration, 1).unwrap();
    for word in ["3.2 GHz", "68.25 for the chip", NEVER_COMPARED, "scaled from the calibration of made up", "estimate"]
    {
        assert!(speed.source.contains(word), "{word}: {}", speed.source);
    }
    // The made-up machine has M1's clock, and its peak is 100 Gflop/s to M1's 102.4: nearly the same times.
    let plan = plan("P", 32, 16, 1);
    let (here, there) = (predict(&plan, &Speed::host(&calibration, 1)), predict(&plan, &speed));
    let ratio = here.time.value.unwrap() / there.time.value.unwrap();
    assert!((1.0..1.03).contains(&ratio), "{ratio}");
    assert!(Speed::catalogued(catalog.find("M5 Max").unwrap(), &calibration, 1).unwrap_err().contains("clock"));
}

#[test]
fn a_band_holds_the_likely_time_and_says_why_it_is_wide() {
    let (plan, quiet) = (plan("P", 32, 16, 1), made_up());
    let width = |c: &Calibration| {
        let p = predict(&plan, &Speed::host(c, 1));
        let (likely, band) = (p.time.value.unwrap(), p.time.spread.unwrap());
        assert!(band.low < likely && likely < band.high && band.ends == Ends::Band, "{:?}", p.time);
        assert!(!p.reasons.is_empty());
        (band.high / band.low, p.reasons.join("\n"))
    };
    let (usual, reasons) = width(&quiet);
    assert!(reasons.contains("11%"), "the held-back error, carried over: {reasons}");
    let wide = |change: &dyn Fn(&mut Calibration), word: &str| {
        let mut c = quiet.clone();
        change(&mut c);
        let (width, reasons) = width(&c);
        assert!(width > usual && reasons.contains(word), "{word}: {width} {reasons}");
    };
    wide(&|c| c.held_back_error = 0.4, "49%");
    wide(&|c| c.conditions.others = Some(0.6), "disturbed: other programs kept 60%");
    let catalog = Catalog::own().unwrap();
    for device in &catalog.devices {
        let Ok(speed) = Speed::catalogued(device, &quiet, 1) else { continue };
        let p = predict(&plan, &speed);
        let band = p.time.spread.unwrap();
        assert!(band.high / band.low > usual, "{}: scaling adds doubt", device.name);
        assert!(p.time.source.contains(NEVER_COMPARED) && p.reasons.len() >= 3, "{}", device.name);
    }
}

#[test]
fn a_kernel_without_a_price_is_named_and_nothing_is_predicted() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[4, 8][..]).unwrap();
    let to = b.input("to", DType::I32, &[8][..]).unwrap();
    let y = b.push(schwann_core::op::Op::SegmentSum { axis: 1, segments: 3.into() }, &[x, to]).unwrap();
    b.output("y", y).unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let p = predict(&program.plan(&Bindings::new()).unwrap(), &Speed::host(&made_up(), 1));
    let why = p.time.reason.unwrap();
    assert!(p.host && p.time.value.is_none() && why.contains("segment sum 8 into 3"), "{why}");
    // A price that the calibration lacks is no 0 either.
    let mut c = made_up();
    c.prices.remove(&Unit::MapFunction);
    let p = predict(&plan("P", 1, 4, 1), &Speed::host(&c, 1));
    assert!(p.time.value.is_none() && p.time.reason.unwrap().contains("MapFunction"));
}

#[test]
fn bfloat16_products_have_a_price_of_their_own_and_none_on_chips_nobody_measured() {
    let mut b = GraphBuilder::new();
    // So large that they are not widened ahead on any machine.
    let x = b.input("x", DType::Bf16, &[4, 1024][..]).unwrap();
    let w = b.weight("w", Tensor::zeros(DType::Bf16, &[1024, 1024]).unwrap()).unwrap();
    let y = b.matmul(x, w).unwrap();
    b.output("y", y).unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let plan = program.plan(&Bindings::new()).unwrap();
    let time = |c: &Calibration| predict(&plan, &Speed::host(c, 1)).time;
    let mut c = made_up();
    let usual = time(&c).value.unwrap();
    c.prices.entry(Unit::ProductWork).and_modify(|p| *p *= 100.0);
    assert_eq!(time(&c).value, Some(usual), "no part of it is priced as f32");
    c.prices.entry(Unit::Bf16Work).and_modify(|p| *p *= 100.0);
    assert!(time(&c).value.unwrap() > 5.0 * usual);
    c.prices.remove(&Unit::Bf16Work);
    assert!(time(&c).reason.is_some_and(|r| r.contains("Bf16Work")));
    let catalog = Catalog::own().unwrap();
    let there = predict(&plan, &Speed::catalogued(catalog.find("M1").unwrap(), &made_up(), 1).unwrap()).time;
    assert!(there.reason.as_deref().is_some_and(|r| r.contains("narrower than f32")), "{there:?}");
}

#[test]
fn a_faster_chip_of_one_family_is_never_predicted_slower() {
    let catalog = Catalog::own().unwrap();
    for name in ["P", "W", "L"] {
        for (batch, steps) in [(1, 1), (1, 64), (32, 16), (256, 64)] {
            let plan = plan(name, batch, steps, 1);
            let time = |device: &str| {
                let speed = Speed::catalogued(catalog.find(device).unwrap(), &made_up(), 1).unwrap();
                predict(&plan, &speed).time.value.unwrap()
            };
            for pair in ["M1", "M2", "M3", "M4", "M5"].windows(2) {
                let [older, newer] = [pair[0], pair[1]].map(time);
                assert!(newer <= older, "{name} {batch}×{steps}: {} {newer}, {} {older}", pair[1], pair[0]);
            }
        }
    }
}

#[test]
fn one_thread_has_one_cores_memory_and_not_the_chips() {
    let catalog = Catalog::own().unwrap();
    let mut ultra = catalog.find("M1 Ultra").unwrap().clone();
    ultra.core_bandwidth.clear();
    let far = |threads: usize| Speed::catalogued(&ultra, &made_up(), threads).unwrap().far_price(1 << 30).unwrap();
    // The made-up core has 20 GB/s, the chip 800.
    assert!((1.0 / far(1) - 20e9).abs() < 1.0 && (1.0 / far(4) - 80e9).abs() < 1.0);
    ultra.core_bandwidth =
        vec![crate::device::Published { value: 100.0, unit: "GB/s".into(), source: "a test".into() }];
    let far = |threads: usize| Speed::catalogued(&ultra, &made_up(), threads).unwrap().far_price(1 << 30).unwrap();
    assert!((1.0 / far(1) - 100e9).abs() < 1.0 && (1.0 / far(16) - 800e9).abs() < 1.0);
    // On the host, two of many threads have two cores' worth.
    let mut c = made_up();
    c.limits[1].threads = 16;
    c.limits[1].levels.iter_mut().for_each(|l| l.read_bytes_per_s *= 16.0);
    let here = |threads| 1.0 / Speed::host(&c, threads).far_price(1 << 30).unwrap();
    assert!((here(1) - 20e9).abs() < 1.0 && (here(2) - 40e9).abs() < 1.0, "{} {}", here(1), here(2));
}

#[test]
fn nothing_uses_more_than_all_of_a_device() {
    let catalog = Catalog::own().unwrap();
    let mut slow = made_up();
    slow.limits.iter_mut().for_each(|l| {
        l.flops_per_s /= 1e3;
        l.levels.iter_mut().for_each(|l| l.read_bytes_per_s /= 1e3);
    });
    for name in ["P", "W", "L"] {
        for (batch, steps) in [(1, 1), (32, 16), (256, 64)] {
            let plan = plan(name, batch, steps, 1);
            for c in [&made_up(), &slow] {
                let there = catalog.devices.iter().filter_map(|d| Speed::catalogued(d, c, 1).ok());
                for speed in there.chain([Speed::host(c, 1)]) {
                    let u = predict(&plan, &speed).utilization;
                    assert!(u.value.map_or(u.reason.is_some(), |v| v <= 100.0), "{name} {}: {u:?}", speed.device);
                }
            }
        }
    }
}

#[test]
fn predictions_are_told_with_two_digits() {
    for (value, text) in [(123.4, "120"), (0.01234, "0.012"), (9.96, "10"), (1.05e-6, "0.0000011"), (0.0, "0")] {
        assert_eq!(two_digits(value), text, "{value}");
    }
    assert_eq!(rounded(12_345.0), 12_000.0);
}
