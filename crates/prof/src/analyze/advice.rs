//! What to change, each with what speaks for it; and the proof: the change is applied, measured in turns with the
//! workload as it is, and the verdict is what came of it.

use super::share_of;
use crate::profile::{Bound, Profile, Recommendation, Verdict};
use crate::profiler::{Error, Profiler, Way};
use schwann_core::{DType, Figure};

/// A recommendation, and how to try it where that can be done here.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// What to change and why.
    pub recommendation: Recommendation,
    /// The way of running that applies it; `None` where the model itself or the machine would have to change.
    pub way: Option<Way>,
}

/// Overhead from this share of a run on is worth a remark, in %.
const MUCH_OVERHEAD: f64 = 15.0;
/// Products from this share of a run on make their type matter, in %.
const MANY_PRODUCTS: f64 = 30.0;
/// So many % of a run must be spent on lanes that hold nothing.
const MUCH_WASTE: f64 = 5.0;
/// Fewer idle lanes than this are not worth another size, in %.
const IDLE_LANES: f64 = 15.0;
/// bfloat16 is worth its lost digits from this gain on.
pub(super) const LEAST_BF16_GAIN: f64 = 1.1;

fn advice(title: &str, evidence: String, how: &str, expected: Figure, way: Option<Way>) -> Advice {
    let measured = Figure::unavailable("×", "not tried", "add --prove to have it applied and measured");
    let (title, how) = (title.into(), how.into());
    Advice {
        recommendation: Recommendation { title, evidence, how, expected, measured, verdict: Verdict::Untested },
        way,
    }
}

/// What could be changed about this workload on its machine.
pub fn recommend(profile: &Profile) -> Vec<Advice> {
    let mut all = vec![];
    let w = &profile.workload;
    let whole = |f: &Figure| f.value.map(|v| v as usize);
    if w.compilation != "fused" {
        all.push(advice(
            "Compile with fusion",
            format!("the {} steps ran node by node, each with its results in memory", profile.compute.ops.len()),
            "leave out --node-by-node; in code: PassOptions::default()",
            Figure::unavailable("×", "fusion", "what fusing gains depends on the graph; it is measured, not predicted"),
            Some(Way::Fused),
        ));
    }
    if let (Some(threads), Some(cores), Some(batch)) =
        (whole(&w.threads), whole(&profile.machine.cores), whole(&w.batch))
        && threads < cores
        && batch > 1
    {
        let most = cores.min(batch) as f64 / threads as f64;
        all.push(advice(
            "Use every core",
            format!("{threads} of {cores} cores were used, and the batch's {batch} rows are independent"),
            "--threads 0; in code: CompileOptions::default().threads(0)",
            Figure::predicted(most, "×", "cores over threads: the most that splitting rows can give"),
            Some(Way::Threads(0)),
        ));
    }
    let overhead = share_of(profile, |op| op.bound == Bound::Overhead || op.path.is_empty());
    if let Some(batch) = whole(&w.batch)
        && overhead > MUCH_OVERHEAD
        && batch < 256
    {
        let more = (batch * 8).min(256);
        let expected = 1.0 / (1.0 - overhead / 100.0 * (1.0 - batch as f64 / more as f64));
        all.push(advice(
            "Run more sequences at a time",
            format!("{overhead:.0}% of a run are calls that cost more than their work, or the run's own checks"),
            &format!("--batch {more}; for streams: Runner::step_many"),
            Figure::predicted(expected, "×", format!("a sequence's share of that overhead at batch {more}")),
            Some(Way::Batch(more)),
        ));
    }
    let products = share_of(profile, |op| op.kind.multiplies_weights());
    if w.dtype == "f32"
        && products > MANY_PRODUCTS
        && let Some(gain) = bf16_gain(profile).filter(|g| *g > LEAST_BF16_GAIN)
    {
        let expected = 1.0 / (1.0 - products / 100.0 * (1.0 - 1.0 / gain));
        all.push(advice(
            "Compute products in bfloat16",
            format!(
                "{products:.0}% of a run are f32 products, and this machine multiplies bfloat16 {gain:.1} times as fast \
                 (measured by its calibration)"
            ),
            "--bf16; check the outputs: bfloat16 keeps 8 bits of a number",
            Figure::predicted(expected, "×", "the products' share of the time, over what calibration measured of them"),
            Some(Way::Products(DType::Bf16)),
        ));
    }
    if let Some(evidence) = ragged(profile) {
        all.push(advice(
            "Choose a size that fills the registers",
            format!("{evidence}; the remaining lanes are computed and not used"),
            "change the layer's size where the model allows it, and measure both",
            Figure::unavailable("×", "sizes", "another size is another model: it must be trained again to be compared"),
            None,
        ));
    }
    all
}

/// How many times as fast products of bfloat16 are on the profile's machine, where that was measured: having the
/// instructions is no promise.
pub(super) fn bf16_gain(profile: &Profile) -> Option<f64> {
    profile.roof.bf16_gain.as_ref()?.value
}

/// The operation that loses most to lanes that hold nothing, in words.
fn ragged(profile: &Profile) -> Option<String> {
    let waste = profile.compute.ops.iter().filter_map(|op| {
        let idle = op.idle_lanes.as_ref()?;
        let share = op.share.value? * idle.value? / 100.0;
        (idle.value? > IDLE_LANES).then_some((share, op, idle))
    });
    let (_, op, idle) = waste.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(share, ..)| *share > MUCH_WASTE)?;
    Some(format!("{} has {}", op.name, idle.source))
}

/// Applies each change that can be applied, measures it in turns with the workload as it is, and writes down what came
/// of it; a change that the profile's comparisons were of has their answer. The profiler must be set up as it was for the profile.
pub fn prove(advice: &mut [Advice], profiler: &mut Profiler<'_>) -> Result<(), Error> {
    for advice in advice {
        let Some(way) = advice.way else { continue };
        let found = profiler.compare_ways(&[way])?.remove(0);
        let r = &mut advice.recommendation;
        r.verdict = found.verdict;
        r.measured = found.speedup;
    }
    Ok(())
}

/// How many recommendations were tried, of those that can be tried here.
pub fn tried(advice: &[Advice]) -> (usize, usize) {
    let can: Vec<&Advice> = advice.iter().filter(|a| a.way.is_some()).collect();
    (can.iter().filter(|a| a.recommendation.measured.value.is_some()).count(), can.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{nothing, profile as complete};
    use crate::models;
    use crate::profile::KernelKind;
    use crate::profiler::Options;

    #[test]
    fn nothing_is_recommended_on_no_evidence() {
        let titles: Vec<_> = recommend(&nothing()).into_iter().map(|a| a.recommendation.title).collect();
        assert!(titles.iter().all(|t| t == "Compile with fusion"), "{titles:?}");
    }

    #[test]
    fn bfloat16_is_advised_only_where_it_was_measured_to_be_faster() {
        let mut profile = complete();
        profile.workload.dtype = "f32".into();
        profile.compute.ops[1].kind = KernelKind::GatedCell;
        profile.compute.ops[1].share = Figure::measured(60.0, "%", "a test");
        let found = |gain: Option<f64>, profile: &Profile| {
            let mut profile = profile.clone();
            profile.roof.bf16_gain = gain.map(|g| Figure::derived(g, "×", "a test"));
            recommend(&profile).into_iter().find(|a| a.way == Some(Way::Products(DType::Bf16)))
        };
        assert!(found(None, &profile).is_none() && found(Some(0.5), &profile).is_none());
        let advice = found(Some(1.9), &profile).unwrap().recommendation;
        assert!(advice.evidence.contains("1.9 times as fast") && !advice.evidence.contains("twice"), "{advice:?}");
    }

    #[test]
    fn idle_cores_are_seen() {
        let mut profile = complete();
        profile.workload.threads = Figure::derived(1.0, "1", "option threads");
        profile.machine.cores = Figure::measured(8.0, "1", "the system");
        let threads = |p: &Profile| recommend(p).into_iter().find(|a| a.way == Some(Way::Threads(0)));
        let found = threads(&profile).unwrap().recommendation;
        assert!(found.evidence.contains("1 of 8") && found.expected.value == Some(8.0), "{found:?}");
        profile.workload.batch = Figure::derived(1.0, "1", "option batch");
        assert!(threads(&profile).is_none(), "one row has nothing to split");
    }

    #[test]
    fn fusing_a_circuit_is_proven_a_gain() {
        let model = models::built_in("W", &models::Sizes::default()).unwrap().unwrap();
        let options = Options { fused: false, seconds: 0.3, runs: 60, batch: 4, steps: 4, ..Options::default() };
        let mut profiler = Profiler::new(model).with(options);
        let profile = profiler.profile_all().unwrap();
        let mut advice = recommend(&profile);
        advice.retain(|a| a.way == Some(Way::Fused));
        prove(&mut advice, &mut profiler).unwrap();
        let found = &advice[0].recommendation;
        assert_eq!(found.verdict, Verdict::Gain, "{found:?}");
        assert!(found.measured.value.unwrap() > 1.0);
    }
}
