//! Flops, functions and bytes of each operation against a count by hand, and calls against the shape of the loop.

use schwann_nn::wiring::{AutoNcp, Wiring};
use schwann_prof::models::{Sizes, built_in};
use schwann_prof::profile::Op;
use schwann_prof::profiler::{Options, Profiler};
use std::collections::BTreeMap;
use std::ops::Range;

/// Flops, functions and bytes of one call.
type Work = (u64, u64, u64);

/// A product of `n` × `k` weights with `rows` rows, plus a bias, with a function on top or not.
fn product(rows: u64, n: u64, k: u64, functions: u64) -> Work {
    let flops = rows * n * (2 * k + 1 + functions);
    (flops, rows * n * functions, 4 * (rows * k + n * k + n + rows * n))
}

/// tanh a, tanh b and sigmoid t mixed: three functions, a difference, a product and a sum; three values in, one out.
fn gate(rows: u64, n: u64) -> Work {
    (6 * rows * n, 3 * rows * n, 4 * 4 * rows * n)
}

/// Three heads of `n` units over `k` inputs and their gate, in one call: the heads are neither written nor read. With
/// registers full of rows, weights that are masked are not multiplied.
fn cell(rows: u64, n: u64, k: u64, masked: u64) -> Vec<Work> {
    let (product, gate) = (product(rows, 3 * n, k, 0), gate(rows, n));
    let (flops, bytes) = (product.0 + gate.0, product.2 + gate.2 - 2 * 4 * 3 * n * rows);
    vec![(flops - if has_lanes(rows) { 2 * masked * rows } else { 0 }, gate.1, bytes)]
}

fn has_lanes(rows: u64) -> bool {
    let sixteenths = schwann_kernels::tuning::Tuning::detect().loop_batch_last_sixteenths_of_cells_least();
    16 * rows >= (sixteenths * schwann_kernels::Isa::detect().lanes()) as u64
}

/// Of the synapses between two layers that could be, how many are not.
fn missing(wiring: &Wiring, from: &Range<usize>, to: &Range<usize>) -> u64 {
    let found = wiring.synapses().filter(|(s, d, _)| from.contains(s) && to.contains(d)).count();
    (from.len() * to.len() - found) as u64
}

/// Synapses from `from` values to two sums: scale, shift, sigmoid, and twice weight and sum; the values and each
/// synapse's source, destination, scale, shift and two weights are read. What is written is not counted.
fn synapses(rows: u64, count: u64, from: u64) -> Work {
    let per_synapse = 2 + 1 + 2 * 2;
    (rows * count * per_synapse, rows * count, 4 * (rows * from + 6 * count))
}

/// All operations of one step over `rows` rows that do arithmetic.
fn by_hand(model: &str, rows: u64) -> Vec<Work> {
    let dense = [vec![product(rows, 64, 72, 1), product(rows, 64, 64, 1)], cell(rows, 64, 64, 0)].concat();
    match model {
        "G" => dense,
        "P" => [dense, vec![product(rows, 16, 64, 0)]].concat(),
        // 29 inter, 19 command and 16 motor neurons; each layer sees the one before and itself; three heads.
        "W" => {
            let mut wiring = AutoNcp::new(64, 16).wiring().unwrap();
            wiring.build(8).unwrap();
            let (motor, command, inter) = (0..16, 16..35, 35..64);
            let masks = [
                (8 * 29 - wiring.sensory_synapses().count()) as u64,
                missing(&wiring, &inter, &command),
                missing(&wiring, &command, &motor),
            ];
            // Both candidates of a unit are masked, its time is not.
            let layers = [(29, 8), (19, 29), (16, 19)].into_iter().zip(masks);
            layers.flat_map(|((n, before), masked)| cell(rows, n, before + n, 2 * masked)).collect()
        }
        "L" => {
            let info = built_in("L", &Sizes::default()).unwrap().unwrap().info().unwrap();
            let [inner, sensory] =
                [info.layers[0].synapses, info.layers[0].sensory_synapses].map(|n| n.unwrap() as u64);
            let with = |(f, t, b): Work, flops: u64, floats: u64| (f + flops, t, b + 4 * floats);
            // Both sensory sums start from the leak's terms, ahead of the six steps of the solver.
            let inputs = with(synapses(rows, sensory, 8), 2 * 64 * rows, 2 * 64 + 2 * 64 * rows);
            // (c·v + a + sum) / (d + sum), where only c is the same for all rows.
            let solve = with(synapses(rows, inner, 64), 5 * 64 * rows, 64 + 2 * 64 * rows + 64 * rows);
            let mapped = (2 * 16 * rows, 0, 4 * (2 * 16 * rows + 2 * 16));
            // The solver's six steps are one call, which finds its tables and terms in the cache after the first.
            vec![inputs, mapped, (6 * solve.0, 6 * solve.1, solve.2)]
        }
        other => panic!("no model {other}"),
    }
}

fn value(figure: &schwann_core::Figure) -> u64 {
    figure.value.unwrap() as u64
}

/// Work of each operation with arithmetic, by its calls a run.
fn counted(ops: &[Op]) -> BTreeMap<u64, Vec<Work>> {
    let mut by_calls: BTreeMap<u64, Vec<Work>> = BTreeMap::new();
    for op in ops.iter().filter(|op| op.within.is_some() && value(&op.flops) > 0) {
        let calls = value(&op.calls);
        let each = |n: u64| {
            assert_eq!(n % calls, 0, "{}: {n} in {calls} calls", op.name);
            n / calls
        };
        let work = (each(value(&op.flops)), each(value(&op.functions)), each(value(&op.bytes)));
        by_calls.entry(calls).or_default().push(work);
    }
    by_calls.values_mut().for_each(|all| all.sort_unstable());
    by_calls
}

#[test]
fn work_of_each_operation_is_what_a_hand_counts_for_whole_blocks_rows_left_over_and_threads() {
    let mut left_over = 0;
    for model in ["P", "G", "W", "L"] {
        for (batch, steps, threads) in [(1, 1, 1), (1, 3, 2), (32, 2, 1), (5, 2, 1), (150, 2, 1), (150, 2, 2)] {
            let options = Options { batch, steps, threads, runs: 1, seconds: 0.01, ..Options::default() };
            let subject = built_in(model, &Sizes::default()).unwrap().unwrap();
            let compute = Profiler::new(subject).with(options).profile_compute().unwrap();
            let what = format!("{model}, batch {batch}, {steps} steps, {threads} threads");
            // How the batch is cut is the compiler's choice; it is in the loop's kernel: `150 rows by 48`.
            let looped = compute.ops.iter().find(|op| op.op == "scan").unwrap();
            let (_, cut) = looped.kernel.split_once(" rows by ").unwrap();
            let block: usize = cut.split([' ', ',']).next().unwrap().parse().unwrap();
            let (blocks, rest) = (batch / block, batch % block);
            let mut want: BTreeMap<u64, Vec<Work>> = BTreeMap::new();
            for (rows, calls) in [(block, blocks * steps), (rest, steps)].into_iter().filter(|(r, c)| r * c > 0) {
                want.entry(calls as u64).or_default().append(&mut by_hand(model, rows as u64));
            }
            want.values_mut().for_each(|all| all.sort_unstable());
            assert_eq!(counted(&compute.ops), want, "{what}");
            left_over += usize::from(rest > 0 && blocks > 0);
            // And the parts are the whole.
            let sum: u64 = compute.ops.iter().map(|op| value(&op.flops)).sum();
            let of_a_run: u64 = want.iter().map(|(calls, all)| calls * all.iter().map(|(f, ..)| f).sum::<u64>()).sum();
            assert_eq!((sum, sum), (value(&compute.flops), of_a_run), "{what}");
            // Without what is masked, however the batch is cut, it is the same for every row and step.
            if model != "W" {
                let of_a_row: u64 = by_hand(model, 1).iter().map(|(flops, ..)| flops).sum();
                assert_eq!(sum, of_a_row * (batch * steps) as u64, "{what}");
            }
            let functions: u64 = compute.ops.iter().map(|op| value(&op.functions)).sum();
            assert_eq!(functions, value(&compute.functions), "{what}");
        }
    }
    assert!(left_over > 0, "no shape had rows left over");
}
