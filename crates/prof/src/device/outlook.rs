//! Predictions in the document's form.

use super::calibrate::Calibration;
use super::catalog::{Catalog, Demands, Entry, Published};
use super::fit::Unit;
use super::gpu::{self, on_gpu};
use super::predict::{Prediction, Speed, predict};
use crate::profile::{DeviceOutlook, Named, Requirement};
use schwann_core::Figure;
use schwann_core::pass::Opportunity;
use schwann_core::plan::{Forecast, Plan};

/// How many of the slowest operations an outlook names.
const SLOWEST: usize = 3;

/// What a plan takes on the calibrated machine and would take on every catalogued device. `measured` is the machine's
/// own time of a run, in seconds, where it was measured; `gpu` is what a run does on GPUs, or why it has no price there.
pub fn outlook(
    plan: &Plan,
    catalog: &Catalog,
    calibration: &Calibration,
    measured: Option<&Figure>,
    gpu: Option<Result<&gpu::Work, &str>>,
) -> Vec<DeviceOutlook> {
    let host = predict(plan, &Speed::host(calibration, plan.threads));
    let mut all = vec![one(host, measured)];
    all.extend(catalog.devices.iter().map(|d| DeviceOutlook {
        // What has no GPU that anybody tells of has no line for it.
        gpu_time: gpu.filter(|_| !d.gpu_cores.is_empty()).map(|work| on_gpu(work, d).time),
        ..one(on(plan, d, calibration), None)
    }));
    all
}

/// What a plan takes on the calibrated machine, in the plan's own form.
pub fn forecast(plan: &Plan, calibration: &Calibration) -> Forecast {
    let found = predict(plan, &Speed::host(calibration, plan.threads));
    Forecast { time: found.time, steps: found.ops.into_iter().map(|op| (op.path, op.time)).collect() }
}

/// Seconds that a fusion would save on the calibrated machine: the calls and bytes that it leaves out, at its prices.
pub fn fusion_gain(found: &Opportunity, calibration: &Calibration) -> Figure {
    let source = format!("{}: calls and bytes that fusion leaves out", calibration.source());
    let price = |unit| calibration.prices.get(&unit).copied();
    match (found.bytes_saved, price(Unit::MapCall).zip(price(Unit::MapByte))) {
        (Some(bytes), Some((call, byte))) => {
            let calls = found.nodes.len().saturating_sub(1) as f64;
            Figure::predicted(calls * call + bytes as f64 * byte, "s", source)
        }
        (None, _) => {
            Figure::unavailable("s", source, "what a pattern of one's own saves is not known before it is built")
        }
        (_, None) => Figure::unavailable("s", source, "the calibration has no price for elementwise work"),
    }
}

/// What a plan would take on a catalogued device; unavailable figures with the reason where too little is known of it.
pub fn on(plan: &Plan, device: &Entry, calibration: &Calibration) -> Prediction {
    match Speed::catalogued(device, calibration, plan.threads) {
        Ok(speed) => predict(plan, &speed),
        Err(why) => Prediction::unavailable(&device.name, plan.threads, &why),
    }
}

fn one(p: Prediction, measured: Option<&Figure>) -> DeviceOutlook {
    let error = match (p.host, measured) {
        (true, Some(measured)) => prediction_error(&p.time, measured),
        (true, None) => Figure::unavailable("%", "prediction against measurement", "no run was measured"),
        _ => Figure::unavailable("%", "prediction against measurement", "the device is not here to measure"),
    };
    let slowest =
        p.slowest(SLOWEST).iter().map(|op| Named { name: op.name.clone(), figure: op.time.clone() }).collect();
    let compared = match (p.host, measured) {
        (true, Some(_)) => "compared with the measurement beside it".into(),
        (true, None) => "not compared with a measurement this time".into(),
        _ => p.compared,
    };
    DeviceOutlook {
        device: p.device,
        host: p.host,
        time: p.time,
        tflops: p.tflops,
        bandwidth: p.bandwidth,
        utilization: p.utilization,
        neural_engine: p.neural_engine,
        error,
        slowest,
        reasons: p.reasons,
        compared,
        gpu_time: None,
    }
}

/// How far a prediction is from a measurement, in %; above 0 it was too long.
pub fn prediction_error(predicted: &Figure, measured: &Figure) -> Figure {
    let mut error = predicted.derive2(measured, "%", "predicted over measured, less 1", |p, m| 100.0 * (p / m - 1.0));
    if error.value.is_some() {
        error.provenance = schwann_core::Provenance::Derived;
    }
    error
}

/// A device's requirements, `minimum` and `target`, against what was reached: Tflop/s, GB/s, and bytes of memory.
/// A device without requirements gives none.
pub fn requirements(device: &Entry, tflops: &Figure, gbps: &Figure, memory_bytes: &Figure) -> Vec<Requirement> {
    let mut all = vec![];
    for (level, demands) in [("minimum", &device.minimum), ("target", &device.target)] {
        let Demands { flops, bandwidth, memory } = demands;
        let mebibytes = memory_bytes.derive("MiB", memory_bytes.source.clone(), |b| b / f64::from(1 << 20));
        // What a model reaches is to be at least as much, the memory it takes at most.
        let mut line = |metric: &str, required: &[Published], reached: &Figure, at_most: bool| {
            let Some(required) = required.first() else { return };
            let enough = |v: f64| if at_most { v <= required.value } else { v >= required.value };
            all.push(Requirement {
                device: device.name.clone(),
                level: level.into(),
                metric: metric.into(),
                required: required.figure(),
                reached: reached.clone(),
                met: reached.value.map(enough),
            });
        };
        line("tflops", flops, tflops, false);
        line("bandwidth", bandwidth, gbps, false);
        line("memory", memory, &mebibytes, true);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::calibrate::tests::made_up;
    use crate::device::predict::tests::plan;

    #[test]
    fn the_host_comes_first_with_its_error_and_every_device_follows() {
        let catalog = Catalog::own().unwrap();
        let plan = plan("P", 32, 16, 1);
        let measured = Figure::measured(1e-3, "s", "a clock");
        let all = outlook(&plan, &catalog, &made_up(), Some(&measured), None);
        assert_eq!(all.len(), 1 + catalog.devices.len());
        assert!(all[0].host && all[0].error.value.is_some());
        for device in &all[1..] {
            let entry = catalog.find(&device.device).unwrap();
            let known = entry.core_flops().value.is_some() && !entry.memory_bandwidth.is_empty();
            assert_eq!(device.time.value.is_some(), known, "{}", device.device);
            assert!(device.time.value.is_some() || device.time.reason.is_some());
            assert!(device.neural_engine.value.is_none() && device.error.value.is_none());
            assert_eq!(device.slowest.len(), if known { 3 } else { 0 });
        }
        let time = |name: &str| all.iter().find(|d| d.device == name).and_then(|d| d.time.value).unwrap();
        assert!(time("M4 Max") < time("M1"), "a faster clock");
    }

    #[test]
    fn requirements_are_met_missed_or_unknown() {
        let catalog = Catalog::own().unwrap();
        let m1 = catalog.find("M1").unwrap();
        let bandwidth = Figure::unavailable("GB/s", "a counter", "not permitted");
        let lines =
            requirements(m1, &Figure::measured(2.5, "Tflop/s", "t"), &bandwidth, &Figure::derived(1e9, "B", "plan"));
        let met: Vec<_> = lines.iter().map(|l| (l.level.as_str(), l.metric.as_str(), l.met)).collect();
        let expected = [
            ("minimum", "tflops", Some(true)),
            ("minimum", "bandwidth", None),
            ("minimum", "memory", Some(true)),
            ("target", "tflops", Some(false)),
            ("target", "bandwidth", None),
            ("target", "memory", Some(true)),
        ];
        assert_eq!(met, expected);
        assert!(lines.iter().all(|l| l.required.source.contains("guide")));
        assert!(requirements(catalog.find("M4").unwrap(), &bandwidth, &bandwidth, &bandwidth).is_empty());
    }
}
