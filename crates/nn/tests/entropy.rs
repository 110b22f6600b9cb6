//! The entropy of bytes by windows is what the formula says, on windows of any size.

use schwann_core::Tensor;
use schwann_core::backend::Choice;
use schwann_core::backend::reference::{self, Precision};
use schwann_core::cases::random::Random;
use schwann_nn::entropy::{Entropy, MOST_WINDOW, Windows, count, graph, of_counts};
use std::collections::BTreeMap;

/// All windows' entropies, the stream given in pieces of `piece` bytes.
fn of(bytes: &[u8], window: usize, step: usize, piece: usize) -> Vec<f32> {
    let cpu = Choice::default().make(1).unwrap();
    let mut stream = Entropy::new(&*cpu, Windows { window, step }).unwrap();
    let mut found = vec![];
    bytes.chunks(piece).for_each(|piece| stream.feed(piece, &mut found).unwrap());
    stream.finish(&mut found).unwrap();
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
    let cpu = Choice::default().make(1).unwrap();
    for (window, step, words) in [(0, 1, "`window` is 0"), (MOST_WINDOW + 1, 1, "1 to 16777216"), (1, 0, "`step` is 0")]
    {
        let error = Entropy::new(&*cpu, Windows { window, step }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
