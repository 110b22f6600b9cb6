use super::*;
use proptest::prelude::*;

/// About normal, around 0 with deviation 1.
pub(crate) fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0
}

/// Samples as a clock gives them: skewed, each like the last by `memory`, with bursts.
pub(crate) fn timings(random: &mut Random, median: f64, scatter: f64, memory: f64, n: usize) -> Vec<f64> {
    let mut state = 0.0;
    let mut one = |_| {
        state = memory * state + (1.0 - memory * memory).sqrt() * normal(random);
        let burst = if random.uniform() < 0.02 { 0.5 * random.uniform() } else { 0.0 };
        median * ((scatter * state).exp() + burst)
    };
    (0..n).map(&mut one).collect()
}

#[test]
fn quantiles_are_those_of_numpy() {
    let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!((s.min, s.p50, s.max, s.mean, s.n), (1.0, 2.5, 4.0, 2.5, 4));
    assert!((s.p95 - 3.85).abs() < 1e-12 && (s.p99 - 3.97).abs() < 1e-12);
    assert!((s.std - 1.290_994_448_735_805_6).abs() < 1e-12);
}

#[test]
fn no_samples_give_no_figures() {
    assert_eq!(Summary::of(&[]), None);
    assert_eq!(Summary::of(&[f64::NAN]), None);
    assert_eq!((median(&[]), mad(&[]), Effect::of(&[], &[1.0])), (None, None, None));
    assert!(median_interval(&[1.0], &Resampling::default()).is_none());
    assert_eq!((outliers(&[], FAR), settle(&[]), block_length(&[])), (vec![], 0, 1));
}

#[test]
fn one_far_sample_is_an_outlier_and_scatter_is_none() {
    let mut random = Random::new(1);
    let mut samples: Vec<f64> = (0..200).map(|_| 100.0 + normal(&mut random)).collect();
    assert_eq!(outliers(&samples, FAR), Vec::<usize>::new());
    samples[17] = 140.0;
    assert_eq!(outliers(&samples, FAR), [17]);
    assert_eq!(outliers(&[1.0; 50], FAR), Vec::<usize>::new(), "equal samples have no outliers");
}

#[test]
fn an_interval_of_95_percent_holds_the_median_about_that_often() {
    for memory in [0.0, 0.7] {
        let (mut random, mut held) = (Random::new(7), 0);
        let how = Resampling { resamples: 400, ..Resampling::default() };
        for _ in 0..200 {
            let samples: Vec<f64> = timings(&mut random, 1.0, 0.02, memory, 300);
            // Bursts only lengthen: the median of this mixture is a little above 1.
            let truth = 1.0 + 0.02 * 0.025;
            let i = median_interval(&samples, &how).unwrap();
            held += usize::from(i.low <= truth && truth <= i.high);
        }
        assert!((174..=199).contains(&held), "memory {memory}: {held} of 200");
    }
}

#[test]
fn single_samples_would_promise_too_narrow_an_interval() {
    let samples = timings(&mut Random::new(3), 1.0, 0.02, 0.9, 500);
    let wide = median_interval(&samples, &Resampling::default()).unwrap();
    let narrow = median_interval(&samples, &Resampling { block: Some(1), ..Resampling::default() }).unwrap();
    assert!(block_length(&samples) > 8, "{}", block_length(&samples));
    assert!(wide.high - wide.low > 1.5 * (narrow.high - narrow.low), "{wide:?} {narrow:?}");
}

#[test]
fn independent_samples_mostly_have_blocks_of_few() {
    let mut random = Random::new(11);
    let short = (0..100).filter(|_| {
        let samples: Vec<f64> = (0..200).map(|_| normal(&mut random)).collect();
        block_length(&samples) <= 2
    });
    assert!(short.count() >= 85);
}

#[test]
fn stationary_noise_needs_no_warm_up() {
    for memory in [0.0, 0.5, 0.8] {
        let mut random = Random::new(21);
        let late = (0..300).filter(|_| settle(&timings(&mut random, 1e-4, 0.02, memory, 200)) > 0).count();
        assert!(late <= 6, "memory {memory}: {late} of 300 were said to warm up");
    }
}

#[test]
fn a_cold_start_is_found() {
    let mut random = Random::new(31);
    let mut samples = timings(&mut random, 1.0, 0.01, 0.3, 200);
    samples[0] = 6.0;
    samples[1] = 1.9;
    assert_eq!(settle(&samples), 2);
    // A clock that speeds up over some 30 runs.
    let mut found = vec![];
    for _ in 0..50 {
        let mut samples = timings(&mut random, 1.0, 0.01, 0.3, 300);
        samples.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + 0.5 * (-(i as f64) / 10.0).exp());
        found.push(settle(&samples));
    }
    assert!(found.iter().all(|n| (10..=45).contains(n)), "{found:?}");
}

#[test]
fn a_step_in_the_middle_is_no_warm_up() {
    let mut samples = timings(&mut Random::new(41), 1.0, 0.01, 0.0, 200);
    samples[..120].iter_mut().for_each(|x| *x *= 1.5);
    assert_eq!(settle(&samples), 0);
}

#[test]
fn effects_have_signs_and_words() {
    let low: Vec<f64> = (0..50).map(f64::from).collect();
    let high: Vec<f64> = (100..150).map(f64::from).collect();
    let effect = Effect::of(&low, &high).unwrap();
    assert_eq!((effect.cliffs_delta, effect.size()), (1.0, Size::Large));
    assert!(effect.hedges_g.unwrap() > 5.0);
    let same = Effect::of(&low, &low).unwrap();
    assert_eq!((same.cliffs_delta, same.hedges_g, same.size()), (0.0, Some(0.0), Size::Negligible));
    assert_eq!(Effect::of(&[1.0, 1.0], &[2.0, 2.0]).unwrap().hedges_g, None, "nothing scatters");
}

#[test]
fn wilson_is_what_the_tables_say() {
    let (low, high) = wilson(0, 200);
    assert!(low == 0.0 && (high - 0.018_846).abs() < 1e-4, "{high}");
    let (low, high) = wilson(95, 100);
    assert!((low - 0.888_2).abs() < 1e-3 && (high - 0.978_5).abs() < 1e-3, "{low} {high}");
    assert_eq!(wilson(0, 0), (0.0, 1.0));
}

proptest! {
    #[test]
    fn a_summary_is_in_order(samples in prop::collection::vec(-1e300f64..1e300, 1..200)) {
        let s = Summary::of(&samples).unwrap();
        prop_assert!(s.min <= s.p50 && s.p50 <= s.p95 && s.p95 <= s.p99 && s.p99 <= s.max);
        prop_assert!(s.min <= s.mean && s.mean <= s.max && s.n == samples.len());
    }

    #[test]
    fn nothing_here_panics(samples in prop::collection::vec(any::<f64>(), 0..80), far in 0.0f64..10.0) {
        let how = Resampling { resamples: 200, ..Resampling::default() };
        prop_assert!(outliers(&samples, far).len() <= samples.len());
        prop_assert!(settle(&samples) <= samples.len() / 2);
        prop_assert!(block_length(&samples) <= samples.len().max(1));
        if let Some(i) = median_interval(&samples, &how) {
            prop_assert!(i.low <= i.estimate && i.estimate <= i.high);
        }
        if let Some(e) = Effect::of(&samples, &samples) {
            prop_assert!(e.cliffs_delta.abs() < 1e-12);
        }
    }

    #[test]
    fn an_interval_scales_with_its_samples(seed in any::<u64>(), by in 0.1f64..10.0) {
        let how = Resampling { resamples: 200, ..Resampling::default() };
        let samples = timings(&mut Random::new(seed), 1.0, 0.05, 0.4, 60);
        let scaled: Vec<f64> = samples.iter().map(|x| x * by).collect();
        let (a, b) = (median_interval(&samples, &how).unwrap(), median_interval(&scaled, &how).unwrap());
        prop_assert!((a.low * by / b.low - 1.0).abs() < 1e-9 && (a.high * by / b.high - 1.0).abs() < 1e-9);
    }

    #[test]
    fn swapping_sides_turns_the_effect_round(a in prop::collection::vec(0.0f64..10.0, 1..60), b in prop::collection::vec(0.0f64..10.0, 1..60)) {
        let (one, two) = (Effect::of(&a, &b).unwrap(), Effect::of(&b, &a).unwrap());
        prop_assert!((one.cliffs_delta + two.cliffs_delta).abs() < 1e-12 && one.cliffs_delta.abs() <= 1.0);
    }

    #[test]
    fn wilson_holds_the_share(n in 1usize..1000, part in 0.0f64..1.0) {
        let hits = (n as f64 * part) as usize;
        let (low, high) = wilson(hits, n);
        let share = hits as f64 / n as f64;
        prop_assert!(low <= share + 1e-12 && share <= high + 1e-12 && low >= 0.0 && high <= 1.0);
    }
}
