//! The entropy of bytes by windows is what the formula says, on windows of any size.

use schwann_core::Tensor;
use schwann_core::backend::Choice;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_nn::entropy::{Entropy, MOST_WINDOW, Patches, Rule, Windows, count, graph, of_counts};
use std::collections::BTreeMap;

/// All windows' entropies, the stream given in pieces of `piece` bytes.
fn of(bytes: &[u8], window: usize, step: usize, piece: usize) -> Vec<f32> {
    let cpu = Choice::default().make(1).unwrap();
    let windows = Windows { window, step };
    let run = |mut stream: Entropy| {
        let mut found = vec![];
        bytes.chunks(piece).for_each(|piece| stream.feed(piece, &mut found).unwrap());
        stream.finish(&mut found).unwrap();
        found
    };
    let found = run(Entropy::new(&Choice::default(), windows).unwrap());
    let by_graph = run(Entropy::by_graph(&*cpu, windows).unwrap());
    assert_eq!(found.len(), by_graph.len());
    for (a, b) in found.iter().zip(&by_graph) {
        assert!((a - b).abs() < 1e-6 && (*a == 0.0) == (*b == 0.0) && (*a == 1.0) == (*b == 1.0), "{a} and {b}");
    }
    found
}

/// What the formula gives, window by window.
fn oracle(bytes: &[u8], window: usize, step: usize) -> Vec<f64> {
    let mut all = vec![];
    for start in (0..bytes.len()).step_by(step) {
        let end = (start + window).min(bytes.len());
        let mut counts = [0; 256];
        count(&bytes[start..end], &mut counts);
        all.push(of_counts(&counts));
        if end == bytes.len() {
            break;
        }
    }
    all
}

/// Bytes of every kind: drawn from few values in one place and from all in another.
fn drawn(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|i| random.int(0, (i * 255 / len.max(1)) as i32) as u8).collect()
}

#[test]
fn every_window_of_every_size_and_step_is_as_the_formula_says() {
    for (seed, (len, window, step)) in [
        (1, 256, 256),
        (255, 256, 256),
        (256, 256, 256),
        (257, 256, 256),
        (1000, 256, 64),
        (1000, 1, 1),
        (999, 7, 10),
        (999, 10, 7),
        (5000, 300, 1),
        (5000, 3, 4999),
        (200_000, 256, 256),
        (200_000, 65_537, 30_000),
        (3000, 100_000, 1),
        (3000, 5, usize::MAX),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = drawn(seed as u64, len);
        let want = oracle(&bytes, window, step);
        let got = of(&bytes, window, step, 1777);
        assert_eq!(got.len(), want.len(), "{len} bytes, windows of {window} every {step}");
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            let off = (f64::from(*got) - want).abs();
            assert!(off < 1e-6, "window {k} of {len} bytes, {window} every {step}: {got} instead of {want}");
            let place = Windows { window, step }.place(k as u64, len as u64);
            assert!(place.start < place.end && place.end <= len as u64);
        }
    }
}

#[test]
fn both_ends_are_exact_for_windows_of_any_size() {
    for window in [1, 2, 3, 41, 100, 256, 1000, 65_535, 1 << 20] {
        assert_eq!(of(&vec![7; window], window, window, window), [0.0], "{window} equal bytes");
    }
    for each in [1, 3, 41, 49, 100, 4095] {
        let bytes: Vec<u8> = (0..256 * each).map(|i| (i % 256) as u8).collect();
        assert_eq!(of(&bytes, bytes.len(), bytes.len(), bytes.len()), [1.0], "each value {each} times");
        let mut counts = [0; 256];
        count(&bytes, &mut counts);
        assert_eq!(of_counts(&counts), 1.0);
    }
    // Next to the ends it is not at them.
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes[0] = 1;
    assert!(of(&bytes, 256, 256, 256)[0] < 1.0);
    assert!(of(&[[7; 255].as_slice(), &[8]].concat(), 256, 256, 256)[0] > 0.0);
}

#[test]
fn how_a_stream_is_cut_into_pieces_changes_nothing() {
    let bytes = drawn(3, 100_000);
    let whole = of(&bytes, 256, 100, bytes.len());
    for piece in [1, 99, 256, 65_536, 70_000] {
        assert_eq!(of(&bytes, 256, 100, piece), whole, "pieces of {piece}");
    }
    assert!(of(&[], 256, 256, 1).is_empty());
}

#[test]
fn the_reference_and_the_cpu_agree_on_the_graph() {
    let bytes = drawn(5, 8 * 500);
    let inputs = BTreeMap::from([
        ("bytes".to_owned(), Tensor::new(&[8, 500], &bytes).unwrap()),
        ("first".to_owned(), Tensor::new(&[8, 1], &std::array::from_fn::<f32, 8, _>(|w| 256.0 * w as f32)).unwrap()),
    ]);
    let want = reference::run(&graph().unwrap(), &inputs, Precision::Storage).unwrap();
    let got = of(&bytes, 500, 500, 500);
    for (want, got) in want[0].values::<f32>().unwrap().iter().zip(&got) {
        assert!((want - got).abs() < 1e-6, "{got} instead of {want}");
    }
}

#[test]
fn windows_that_cannot_be_are_refused() {
    for (window, step, words) in [(0, 1, "`window` is 0"), (MOST_WINDOW + 1, 1, "1 to 16777216"), (1, 0, "`step` is 0")]
    {
        let error = Entropy::new(&Choice::default(), Windows { window, step }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Where patches begin, straight from the rule.
fn patches(bytes: &[u8], rule: &Rule) -> Vec<u64> {
    let mut starts = vec![];
    let (mut start, mut before) = (0, 0.0f64);
    for at in 0..bytes.len() {
        let mut counts = [0; 256];
        count(&bytes[(at + 1).saturating_sub(rule.window)..=at], &mut counts);
        let entropy = of_counts(&counts);
        let rises = rule.rise.is_some_and(|rise| entropy - before > f64::from(rise));
        let unexpected = entropy > f64::from(rule.threshold) || rises;
        if at == 0 || at - start >= rule.most || (at - start >= rule.least && unexpected) {
            starts.push(at as u64);
            start = at;
        }
        before = entropy;
    }
    starts
}

#[test]
fn patches_begin_where_the_rule_says_however_the_stream_is_given() {
    let bytes = drawn(9, 3000);
    // Numbers that no entropy of so few bytes is near to, so that rounding decides nothing.
    for (window, threshold, rise, least, most) in [
        (32, 0.4512, None, 4, 64),
        (1, 0.1, Some(0.1), 1, 5),
        (2, 0.0612, None, 1, 3),
        (100, 1.0, Some(0.0123), 2, 50),
        (4000, 0.6543, Some(0.0211), 8, 100),
        (70_000, 0.6543, None, 8, 8),
        (16, 0.0, None, 1, 1),
    ] {
        let rule = Rule { window, threshold, rise, least, most };
        let want = patches(&bytes, &rule);
        for piece in [1, 7, 31, 32, 33, 3000] {
            let mut cut = Patches::new(rule.clone()).unwrap();
            let mut starts = vec![];
            bytes.chunks(piece).for_each(|piece| cut.feed(piece, &mut starts));
            assert_eq!(starts, want, "{rule:?} in pieces of {piece}");
            assert_eq!(cut.bytes(), 3000);
        }
        let lengths = want.windows(2).map(|w| (w[1] - w[0]) as usize);
        assert!(lengths.clone().all(|n| n >= least && n <= most), "{rule:?}");
    }
    let mut none = vec![];
    Patches::new(Rule::default()).unwrap().feed(&[], &mut none);
    assert!(none.is_empty());
}

#[test]
fn a_rule_that_cannot_be_is_refused() {
    let rule = Rule::default();
    for (rule, words) in [
        (Rule { window: 0, ..rule.clone() }, "`window` is 0"),
        (Rule { threshold: 1.5, ..rule.clone() }, "`threshold` is 1.5; expected from 0 to 1"),
        (Rule { threshold: f32::NAN, ..rule.clone() }, "`threshold` is NaN"),
        (Rule { rise: Some(-0.1), ..rule.clone() }, "`rise` is -0.1"),
        (Rule { least: 0, ..rule.clone() }, "0 and 64"),
        (Rule { least: 9, most: 8, ..rule }, "9 and 8"),
    ] {
        let error = Patches::new(rule).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
