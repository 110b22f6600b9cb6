//! The synapse kernel against plain loops in `f64`, on every path.

use super::*;
use crate::simd::portable::Portable;
use crate::tuning::on;

const ALL: [Activation; 3] = [Activation::Identity, Activation::Sigmoid, Activation::Tanh];

/// A table of synapses in no order, some of them twice.
struct Table {
    sources: usize,
    segments: usize,
    src: Vec<i32>,
    dest: Vec<i32>,
    numbers: [Vec<f32>; 4],
}

fn spread(seed: usize, n: usize, low: f32, high: f32) -> Vec<f32> {
    let of = |i: usize| ((i + seed).wrapping_mul(2_654_435_761) >> 7) % 10_007;
    (0..n).map(|i| low + (high - low) * of(i) as f32 / 10_007.0).collect()
}

impl Table {
    fn new(sources: usize, segments: usize, count: usize, skip: usize) -> Table {
        let pick = |seed: usize, n: usize| {
            let at = spread(seed, count, 0.0, n as f32);
            at.into_iter().map(|f| (f as usize).min(n - 1) as i32).collect::<Vec<_>>()
        };
        let mut src = pick(1, sources);
        // Every `skip`-th destination has none.
        let mut dest: Vec<i32> =
            pick(77, segments).into_iter().map(|d| if d as usize % skip == skip - 1 { d - 1 } else { d }).collect();
        for e in (0..count).skip(5).step_by(5) {
            (src[e], dest[e]) = (src[e - 1], dest[e - 1]);
        }
        let range = [(-3.0, 3.0), (-2.0, 2.0), (-1.0, 1.0), (-1.0, 1.0)];
        let numbers = [0, 1, 2, 3].map(|i| spread(1000 * i, count, range[i].0, range[i].1));
        Table { sources, segments, src, dest, numbers }
    }

    fn pack(&self, isa: Isa, activation: Activation, sums: usize) -> Result<Synapses, String> {
        let [scale, shift, c, e] = &self.numbers;
        let weights: [&[f32]; 2] = [c, e];
        let Table { sources, segments, src, dest, .. } = self;
        Synapses::pack(on(isa), activation, *sources, *segments, src, dest, scale, shift, &weights[..sums])
    }

    /// The definition in `f64`, over `[rows, sources]`.
    fn want(&self, activation: Activation, rows: usize, x: &[f32], k: usize) -> Vec<f64> {
        let mut out = vec![0.0; rows * self.segments];
        for row in 0..rows {
            for e in 0..self.src.len() {
                let of = |i: usize| f64::from(self.numbers[i][e]);
                let y = of(0) * f64::from(x[row * self.sources + self.src[e] as usize]) + of(1);
                let act = match activation {
                    Activation::Identity => y,
                    Activation::Sigmoid => 1.0 / (1.0 + (-y).exp()),
                    Activation::Tanh => y.tanh(),
                };
                out[row * self.segments + self.dest[e] as usize] += of(2 + k) * act;
            }
        }
        out
    }
}

fn transposed(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| x[i % rows * columns + i / rows]).collect()
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*g) - w).abs();
        assert!(off <= tolerance * (1.0 + w.abs()), "{what}: element {i} is {g}, want {w}");
    }
}

/// Runs `run` on two rooms of `len` floats with a guard behind each.
fn into_rooms(len: usize, run: impl FnOnce([*mut f32; 2])) -> [Vec<f32>; 2] {
    let mut rooms = [vec![7.5f32; len + 16], vec![7.5f32; len + 16]];
    let [a, b] = &mut rooms;
    run([a.as_mut_ptr(), b.as_mut_ptr()]);
    rooms.map(|mut room| {
        assert!(room[len..].iter().all(|v| *v == 7.5), "written beyond the end");
        room.truncate(len);
        room
    })
}

/// Working memory of a call, of exactly the size that it needs.
fn scratch(packed: &Synapses, rows: usize, times: usize) -> Vec<[f32; 16]> {
    let bytes = packed.scratch_bytes(true, rows, times).unwrap();
    vec![[f32::NAN; 16]; bytes.div_ceil(64)]
}

fn check(
    what: &str,
    table: &Table,
    activation: Activation,
    sums: usize,
    rows: usize,
    batch_first: bool,
    run: impl Fn(*const f32, [*mut f32; 2]),
) {
    let x = spread(9, rows * table.sources, -2.0, 2.0);
    let given = if batch_first { x.clone() } else { transposed(&x, rows, table.sources) };
    let rooms = into_rooms(rows * table.segments, |outs| run(given.as_ptr(), outs));
    for (k, room) in rooms.iter().enumerate().take(sums) {
        let got = if batch_first { room.clone() } else { transposed(room, table.segments, rows) };
        close(&format!("{what} sum {k}"), &got, &table.want(activation, rows, &x, k), 2e-5);
    }
    if sums == 1 {
        assert!(rooms[1].iter().all(|v| *v == 7.5), "{what}: a sum that was not asked for");
    }
}

#[test]
fn both_loops_are_the_definition_on_every_instruction_set() {
    let team = Team::new(2).unwrap();
    for (sources, segments, count, skip) in [
        (1, 1, 1, 2),
        (1, 17, 40, 2),
        (15, 1, 100, 2),
        (17, 15, 60, 3),
        (100, 100, 700, 4),
        (64, 64, 424, 5),
        (33, 20, 0, 2),
    ] {
        let table = Table::new(sources, segments, count, skip);
        for &isa in Isa::available() {
            for activation in ALL {
                for sums in [1, 2] {
                    let packed = table.pack(isa, activation, sums).unwrap();
                    assert_eq!((packed.len(), packed.sums()), (count, sums));
                    for rows in [0, 1, 3, 4, 7, 8, 12, 13, 16, 24, 28, 33, 50] {
                        let what = format!("{packed:?}, {rows} rows");
                        // SAFETY: the buffers have the sizes of the table.
                        check(&what, &table, activation, sums, rows, true, |x, outs| unsafe {
                            packed.run_batch_first(
                                &team,
                                rows,
                                x,
                                &Finish::Plain(outs),
                                scratch(&packed, rows, 1).as_mut_ptr().cast(),
                            );
                        });
                        // SAFETY: as above.
                        check(&what, &table, activation, sums, rows, false, |x, outs| unsafe {
                            packed.run_batch_last(
                                &team,
                                rows,
                                x,
                                &Finish::Plain(outs),
                                scratch(&packed, rows, 1).as_mut_ptr().cast(),
                            );
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn ratios_and_starts_are_made_of_the_sums_on_every_instruction_set() {
    let team = Team::new(2).unwrap();
    for (units, count, skip) in [(1, 3, 2), (15, 60, 3), (64, 424, 5), (100, 700, 4), (20, 0, 2)] {
        let table = Table::new(units, units, count, skip);
        for rows in [0, 1, 3, 4, 7, 8, 12, 13, 16, 24, 28, 33, 50] {
            let x = spread(9, rows * units, -2.0, 2.0);
            // p for every element, q for every destination, r alike but large enough to divide by.
            let (p, q) = (spread(4, rows * units, -1.0, 1.0), spread(5, units, -1.0, 1.0));
            let by_rows_r = spread(6, rows * units, 60.0, 80.0);
            for &isa in Isa::available() {
                let packed = table.pack(isa, Activation::Sigmoid, 2).unwrap();
                assert!(packed.has_ratio() && !table.pack(isa, Activation::Sigmoid, 1).unwrap().has_ratio());
                let sums = [0, 1].map(|k| table.want(Activation::Sigmoid, rows, &x, k));
                let next = |x: &[f32], sums: &[Vec<f64>; 2]| -> Vec<f64> {
                    let one = |i: usize| {
                        let of = |v: &[f32], i: usize| f64::from(v[i]);
                        (of(&p, i) * of(x, i) + of(&q, i % units) + sums[1][i]) / (of(&by_rows_r, i) + sums[0][i])
                    };
                    (0..rows * units).map(one).collect()
                };
                let want = next(&x, &sums);
                // Three times, each from the values of the time before.
                let mut repeated = want.clone();
                for _ in 1..3 {
                    let x: Vec<f32> = repeated.iter().map(|v| *v as f32).collect();
                    repeated = next(&x, &[0, 1].map(|k| table.want(Activation::Sigmoid, rows, &x, k)));
                }
                for batch_first in [true, false] {
                    let lie = |v: &[f32]| if batch_first { v.to_vec() } else { transposed(v, rows, units) };
                    let (x, p, r) = (lie(&x), lie(&p), lie(&by_rows_r));
                    let (row, destination) = if batch_first { (units, 1) } else { (1, rows) };
                    let each = |v: &[f32]| Grid { at: v.as_ptr(), row, destination };
                    let terms = [each(&p), Grid { at: q.as_ptr(), row: 0, destination: 1 }, each(&r)];
                    for (times, want) in [(1, &want), (3, &repeated)] {
                        let [got, _] = into_rooms(rows * units, |outs| {
                            let finish = Finish::Ratio { out: outs[0], terms, times };
                            let mut room = scratch(&packed, rows, times);
                            let room = room.as_mut_ptr().cast();
                            // SAFETY: the buffers have the sizes of the table, and the grids are theirs.
                            unsafe {
                                match batch_first {
                                    true => packed.run_batch_first(&team, rows, x.as_ptr(), &finish, room),
                                    false => packed.run_batch_last(&team, rows, x.as_ptr(), &finish, room),
                                }
                            }
                        });
                        let got = if batch_first { got } else { transposed(&got, units, rows) };
                        close(
                            &format!("{packed:?}, {rows} rows, by row: {batch_first}, {times} times"),
                            &got,
                            want,
                            1e-6,
                        );
                    }
                    // The same loops with sums that start from something.
                    let rooms = into_rooms(rows * units, |outs| {
                        let finish = Finish::From { starts: [terms[1], terms[2]], outs };
                        let mut room = scratch(&packed, rows, 1);
                        let room = room.as_mut_ptr().cast();
                        // SAFETY: as above.
                        unsafe {
                            match batch_first {
                                true => packed.run_batch_first(&team, rows, x.as_ptr(), &finish, room),
                                false => packed.run_batch_last(&team, rows, x.as_ptr(), &finish, room),
                            }
                        }
                    });
                    for (k, got) in rooms.into_iter().enumerate() {
                        let got = if batch_first { got } else { transposed(&got, units, rows) };
                        let start = |i: usize| if k == 0 { q[i % units] } else { by_rows_r[i] };
                        let want: Vec<f64> =
                            sums[k].iter().enumerate().map(|(i, sum)| f64::from(start(i)) + sum).collect();
                        close(&format!("{packed:?}, {rows} rows, by row: {batch_first}, sum {k}"), &got, &want, 2e-5);
                    }
                }
            }
        }
    }
}

/// Deals synapses to other lanes than the machine's.
fn deal_anew(packed: &mut Synapses, lookup: deal::Lookup) {
    // SAFETY: all of them, and nobody rewrites them.
    let records = unsafe { std::slice::from_raw_parts(packed.records.as_ptr(), packed.len()) };
    let mut lists: Vec<Vec<Record>> = vec![vec![]; packed.segments];
    let mut left = records.iter();
    for Bundle { destinations, count, together, more } in &packed.bundles {
        let side_by_side = (0..count * *together as usize).map(|i| i % count);
        let rest = (0..*count).flat_map(|i| (more[i]..more[i + 1]).map(move |_| i));
        side_by_side.chain(rest).for_each(|i| lists[destinations[i] as usize].extend(left.next()));
    }
    let lists: Vec<&[Record]> = lists.iter().map(Vec::as_slice).collect();
    packed.dealt = deal::deal(&lists, packed.sources, packed.sums, lookup);
}

#[test]
fn every_width_of_lanes_deals_alike() {
    fn with_lanes<const N: usize>(table: &Table) {
        for activation in ALL {
            let mut packed = table.pack(Isa::PORTABLE, activation, 2).unwrap();
            deal_anew(&mut packed, deal::Lookup::new(N, 0, on(Isa::PORTABLE).tuning));
            let s = Portable::<N>;
            for rows in [1, 21] {
                for batch_first in [true, false] {
                    let what = format!("{N} lanes, {packed:?}");
                    check(&what, table, activation, 2, rows, batch_first, |x, outs| {
                        let finish = Finish::Plain(outs);
                        let job = Job::new(&packed, rows, x, &finish, std::ptr::null_mut());
                        // SAFETY: the buffers have the sizes of the table.
                        unsafe {
                            match (activation, batch_first) {
                                (Activation::Identity, true) => job.batch_first::<_, IDENTITY, 2>(s, 0..rows),
                                (Activation::Sigmoid, true) => job.batch_first::<_, SIGMOID, 2>(s, 0..rows),
                                (Activation::Tanh, true) => job.batch_first::<_, TANH, 2>(s, 0..rows),
                                (Activation::Identity, false) => job.batch_last::<_, IDENTITY, 2>(s, 0..rows),
                                (Activation::Sigmoid, false) => job.batch_last::<_, SIGMOID, 2>(s, 0..rows),
                                (Activation::Tanh, false) => job.batch_last::<_, TANH, 2>(s, 0..rows),
                            }
                        }
                    });
                }
            }
        }
    }
    for table in [Table::new(17, 15, 90, 3), Table::new(100, 100, 400, 2)] {
        with_lanes::<4>(&table);
        with_lanes::<8>(&table);
        with_lanes::<16>(&table);
    }
}

#[test]
fn a_row_has_the_same_bits_among_any_number_of_rows() {
    let table = Table::new(64, 40, 300, 4);
    let rows = 41;
    let x = spread(5, rows * 64, -2.0, 2.0);
    for &isa in Isa::available() {
        let packed = table.pack(isa, Activation::Sigmoid, 2).unwrap();
        for batch_first in [true, false] {
            let run = |rows: usize, x: &[f32]| {
                let given = if batch_first { x.to_vec() } else { transposed(x, rows, 64) };
                let [room, _] = into_rooms(rows * 40, |outs| {
                    // SAFETY: the buffers have the sizes of the table.
                    unsafe {
                        if batch_first {
                            packed.run_batch_first(
                                Team::solo(),
                                rows,
                                given.as_ptr(),
                                &Finish::Plain(outs),
                                scratch(&packed, rows, 1).as_mut_ptr().cast(),
                            );
                        } else {
                            packed.run_batch_last(
                                Team::solo(),
                                rows,
                                given.as_ptr(),
                                &Finish::Plain(outs),
                                scratch(&packed, rows, 1).as_mut_ptr().cast(),
                            );
                        }
                    }
                });
                if batch_first { room } else { transposed(&room, 40, rows) }
            };
            let all = run(rows, &x);
            for row in 0..rows {
                assert_eq!(run(1, &x[row * 64..][..64]), all[row * 40..][..40], "{isa} row {row}");
            }
            for few in 2..rows {
                assert_eq!(run(few, &x[..few * 64]), all[..few * 40], "{isa}, {few} rows");
            }
        }
    }
}

#[test]
fn the_sigmoid_is_within_a_millionth_and_right_at_its_ends() {
    // One synapse a destination, then two.
    let xs: Vec<f32> = (-30_000..30_000).map(|i| i as f32 * 1e-3).collect();
    let n = xs.len();
    let ones = vec![1.0f32; 2 * n];
    let zeros = vec![0.0f32; 2 * n];
    for pair in [1, 2] {
        let src: Vec<i32> = (0..n * pair).map(|e| (e / pair) as i32).collect();
        let numbers = |v: &[f32]| v[..n * pair].to_vec();
        for &isa in Isa::available() {
            let (scale, shift, c) = (numbers(&ones), numbers(&zeros), numbers(&ones));
            let packed = Synapses::pack(on(isa), Activation::Sigmoid, n, n, &src, &src, &scale, &shift, &[&c]).unwrap();
            let [room, _] = into_rooms(n, |outs| {
                // SAFETY: n values and n sums.
                unsafe {
                    packed.run_batch_last(
                        Team::solo(),
                        1,
                        xs.as_ptr(),
                        &Finish::Plain(outs),
                        scratch(&packed, 1, 1).as_mut_ptr().cast(),
                    )
                }
            });
            for (x, y) in xs.iter().zip(room) {
                let want = pair as f64 / (1.0 + (-f64::from(*x)).exp());
                assert!((f64::from(y) - want).abs() <= 1e-6 * pair as f64, "{isa}: {pair} × sigmoid({x}) = {y}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_reaches_its_own_destinations_alone() {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 0.5];
    // Destination d reads source d, and once more source 5 if d is even; 6 reads nothing.
    let src = [0, 1, 2, 3, 4, 5, 5, 5, 5];
    let dest = [0, 1, 2, 3, 4, 5, 0, 2, 4];
    let (ones, zeros) = ([1.0f32; 9], [0.0f32; 9]);
    for &isa in Isa::available() {
        for activation in ALL {
            let packed =
                Synapses::pack(on(isa), activation, 6, 7, &src, &dest, &ones, &zeros, &[&ones, &ones]).unwrap();
            for batch_first in [true, false] {
                let [got, _] = into_rooms(7, |outs| {
                    // SAFETY: 6 values and 7 sums each.
                    unsafe {
                        if batch_first {
                            packed.run_batch_first(
                                Team::solo(),
                                1,
                                special.as_ptr(),
                                &Finish::Plain(outs),
                                scratch(&packed, 1, 1).as_mut_ptr().cast(),
                            );
                        } else {
                            packed.run_batch_last(
                                Team::solo(),
                                1,
                                special.as_ptr(),
                                &Finish::Plain(outs),
                                scratch(&packed, 1, 1).as_mut_ptr().cast(),
                            );
                        }
                    }
                });
                let act = |x: f64| match activation {
                    Activation::Identity => x,
                    Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    Activation::Tanh => x.tanh(),
                };
                for d in 0..7 {
                    let own = (0..9).filter(|e| dest[*e] == d).map(|e| act(f64::from(special[src[e] as usize])));
                    let (want, got) = (own.sum::<f64>() as f32, got[d as usize]);
                    let same = want.to_bits() == got.to_bits() || (want - got).abs() <= 1e-6 * want.abs().max(1.0);
                    assert!(same || (want.is_nan() && got.is_nan()), "{packed:?}: {d} is {got}, want {want}");
                }
            }
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let one = [1.0f32];
    let pack = |src: &[i32], dest: &[i32], weights: &[&[f32]]| {
        Synapses::pack(on(Isa::PORTABLE), Activation::Tanh, 3, 2, src, dest, &one, &one, weights).map(|_| ())
    };
    assert_eq!(pack(&[2], &[1], &[&one]), Ok(()));
    assert_eq!(pack(&[3], &[1], &[&one]), Err("source 3 at position 0 is not in 0..3".into()));
    assert_eq!(pack(&[-1], &[1], &[&one]), Err("source -1 at position 0 is not in 0..3".into()));
    assert_eq!(pack(&[0], &[2], &[&one]), Err("destination 2 at position 0 is not in 0..2".into()));
    assert!(pack(&[0, 1], &[1, 0], &[&one]).is_err());
    assert!(pack(&[0], &[1], &[]).is_err());
    assert!(pack(&[0], &[1], &[&one, &one, &one]).is_err());
    assert!(pack(&[0], &[1], &[&one, &[]]).is_err());
}
