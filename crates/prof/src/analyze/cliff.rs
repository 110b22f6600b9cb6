//! Cliffs: a larger batch that does less in the same time than a smaller one.

use crate::plot::unit::quantity;
use crate::profile::{Profile, SweepPoint};

/// What is lost must be more than this part, where intervals do not settle it.
const LEAST_LOSS: f64 = 0.05;

/// Every size of the sweep at which throughput falls, in words: each batch beside the best of the smaller ones with the
/// same number of steps.
pub fn cliffs(profile: &Profile) -> Vec<String> {
    let mut steps: Vec<f64> = profile.sweep.iter().filter_map(|p| p.steps.value).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let mut found = vec![];
    for &length in &steps {
        let mut row: Vec<(f64, &SweepPoint, f64)> = profile
            .sweep
            .iter()
            .filter(|p| p.steps.value == Some(length))
            .filter_map(|p| Some((p.batch.value?, p, p.throughput.value.filter(|t| *t > 0.0)?)))
            .collect();
        row.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (i, &(batch, point, rate)) in row.iter().enumerate() {
            let Some(&(smaller, best, most)) = row[..i].iter().max_by(|a, b| a.2.total_cmp(&b.2)) else { continue };
            if rate < most * (1.0 - LEAST_LOSS) && apart(best, point) {
                let steps = if steps.len() > 1 { format!(" with {length} steps") } else { String::new() };
                found.push(format!(
                    "Batch {batch}{steps} is slower per sequence than batch {smaller} ({} against {}): use batch {smaller}, or a \
                     larger one that does more",
                    quantity(rate, &point.throughput.unit),
                    quantity(most, &best.throughput.unit)
                ));
            }
        }
    }
    found
}

/// Whether the time of a sequence's step is surely longer in the second: intervals apart, where both have one.
fn apart(fast: &SweepPoint, slow: &SweepPoint) -> bool {
    let each = |p: &SweepPoint, time: f64| Some(time / (p.batch.value? * p.steps.value?));
    let ends = |p: &SweepPoint| p.time.spread.and_then(|s| Some((each(p, s.low)?, each(p, s.high)?)));
    match (ends(fast), ends(slow)) {
        (Some((_, high)), Some((low, _))) => high < low,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{nothing, profile as complete};

    #[test]
    fn a_batch_that_does_less_than_a_smaller_one_is_a_cliff() {
        let mut profile = complete();
        assert!(cliffs(&profile).is_empty(), "{:?}", cliffs(&profile));
        assert!(cliffs(&nothing()).is_empty());
        let least = profile.sweep[0].throughput.value.unwrap();
        profile.sweep[1].throughput.value = Some(least * 0.9);
        let found = cliffs(&profile);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("Batch 8") && found[0].contains("is slower per sequence than batch 1"),
            "{found:?}"
        );
        // A little less may be noise.
        profile.sweep[1].throughput.value = Some(least * 0.97);
        assert!(cliffs(&profile).is_empty());
    }
}
