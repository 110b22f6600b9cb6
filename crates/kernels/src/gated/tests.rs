//! Gated cells against plain loops in `f64`, on every path.

use super::*;

/// Numbers in no order, between −1 and 1.
fn number(i: usize) -> f32 {
    (i.wrapping_mul(2_654_435_761) >> 7) as f32 % 2003.0 / 1001.0 - 1.0
}

struct Cell {
    inputs: [usize; 2],
    units: usize,
    /// Of how many weights of the first two heads one is 0.
    masked: usize,
}

impl Cell {
    fn weight(&self, input: usize, head: usize, unit: usize) -> f32 {
        let is_masked = number(31 * input + 77 * unit) * 0.5 + 0.5 < 1.0 / self.masked as f32;
        let scale = 4.0 / ((self.inputs[0] + self.inputs[1]) as f32).sqrt();
        if head < 2 && is_masked { 0.0 } else { scale * number(input * 1009 + head * 307 + unit) }
    }
    fn shift(head: usize, unit: usize) -> f32 {
        number(head * 53 + unit + 5)
    }
    fn pack(&self, isa: Isa, batch: Batch) -> Gated {
        let source = Source { weight: &|i, h, u| self.weight(i, h, u), shift: &Cell::shift };
        Gated::pack(isa, batch, self.inputs, self.units, &source).unwrap()
    }
    /// The definition, of one row's inputs.
    fn want(&self, x: &[f32]) -> Vec<f64> {
        let head = |unit: usize, head: usize| {
            let sum = |(i, x): (usize, &f32)| f64::from(self.weight(i, head, unit)) * f64::from(*x);
            x.iter().enumerate().map(sum).sum::<f64>() + f64::from(Cell::shift(head, unit))
        };
        let unit = |u: usize| {
            let (a, b) = (head(u, 0).tanh(), head(u, 1).tanh());
            a + (b - a) / (1.0 + (-head(u, 2)).exp())
        };
        (0..self.units).map(unit).collect()
    }
}

#[test]
fn cells_match_on_every_path() {
    let sizes = [1, 2, 3, 4, 5, 7, 8, 10, 11, 15, 16, 17, 19, 21, 29, 31, 32, 45, 48, 64, 65, 100];
    let parts = [[0, 0], [1, 0], [0, 3], [8, 29], [5, 2], [64, 64]];
    for &isa in Isa::available() {
        for (n, units) in sizes.into_iter().enumerate() {
            for inputs in parts {
                let cell = Cell { inputs, units, masked: 1 + n % 3 };
                let rows_tried: &[usize] = if n % 4 == 0 { &[1, 2, 16, 19, 24, 30, 35, 40, 48, 61] } else { &[1, 33] };
                let first = [1, 2, 3, 7].map(|rows| (rows, Batch::First));
                for (rows, batch) in rows_tried.iter().map(|r| (*r, Batch::Last)).chain(first) {
                    let gated = cell.pack(isa, batch);
                    let all = inputs[0] + inputs[1];
                    // Each part in memory of exactly its size.
                    let x: Vec<f32> = (0..all * rows).map(|i| number(i + 17)).collect();
                    let (first, second) = (x[..inputs[0] * rows].to_vec(), x[inputs[0] * rows..].to_vec());
                    let at = |part: usize, i: usize, row: usize| match batch {
                        Batch::Last => i * rows + row,
                        Batch::First => row * inputs[part] + i,
                    };
                    let mut outs = [vec![f32::NAN; units * rows], vec![f32::NAN; units * rows]];
                    let [out, also] = &mut outs;
                    // SAFETY: all of them have the sizes of this cell and number of rows.
                    unsafe {
                        let x = (first.as_ptr(), second.as_ptr());
                        gated.run(rows, &gated.dense(), x, out.as_mut_ptr(), also.as_mut_ptr());
                    }
                    assert_eq!(out, also);
                    for row in 0..rows {
                        let (one, two) = ((0..inputs[0]).map(|i| first[at(0, i, row)]), 0..inputs[1]);
                        let own: Vec<f32> = one.chain(two.map(|i| second[at(1, i, row)])).collect();
                        for (unit, want) in cell.want(&own).into_iter().enumerate() {
                            let got = out[if batch == Batch::Last { unit * rows + row } else { row * units + unit }];
                            let error = (f64::from(got) - want).abs();
                            assert!(error < 4e-6, "{gated:?}, row {row} of {rows}, unit {unit}: {got}, want {want}");
                        }
                    }
                }
            }
        }
    }
}

/// Whole registers, half ones and parts of them give a row the same bits.
#[test]
fn a_row_has_the_same_bits_among_any_number_of_rows() {
    let cell = Cell { inputs: [8, 29], units: 29, masked: 2 };
    let most = 64;
    for &isa in Isa::available() {
        let gated = cell.pack(isa, Batch::Last);
        let of = |rows: usize| {
            let x: Vec<f32> = (0..37 * rows).map(|i| number(i / rows * most + i % rows)).collect();
            let mut out = vec![f32::NAN; 29 * rows];
            let parts = (x.as_ptr(), x[8 * rows..].as_ptr());
            // SAFETY: both parts lie one after the other, and there is room for all units.
            unsafe { gated.run(rows, &gated.dense(), parts, out.as_mut_ptr(), std::ptr::null_mut()) };
            out
        };
        let all = of(most);
        for rows in 1..most {
            for (i, y) in of(rows).into_iter().enumerate() {
                let want = all[i / rows * most + i % rows];
                assert_eq!(y.to_bits(), want.to_bits(), "{isa}, row {} of {rows}: {y}, not {want}", i % rows);
            }
        }
    }
}

/// Columns of something wider give the bits that they give as matrices of their own, and what is beside them is left alone.
#[test]
fn batch_first_rows_may_be_columns_of_something_wider() {
    for (inputs, units) in [([8, 29], 29), ([5, 2], 7), ([3, 0], 16), ([64, 64], 45)] {
        let cell = Cell { inputs, units, masked: 2 };
        for &isa in Isa::available() {
            let gated = cell.pack(isa, Batch::First);
            for rows in [1, 2, 3, 4, 5, 8, 13] {
                let dense = inputs.map(|n| (0..n * rows).map(|i| number(i + 17)).collect::<Vec<f32>>());
                let mut want = vec![f32::NAN; units * rows];
                let x = (dense[0].as_ptr(), dense[1].as_ptr());
                // SAFETY: all have the sizes of this cell and number of rows.
                unsafe { gated.run(rows, &gated.dense(), x, want.as_mut_ptr(), std::ptr::null_mut()) };
                let apart = Apart { x: [inputs[0] + 3, inputs[1] + 11], also: units + 5 };
                let wide = [0, 1].map(|part| {
                    let mut wide = vec![f32::NAN; apart.x[part] * rows];
                    for row in 0..rows {
                        let own = &dense[part][row * inputs[part]..][..inputs[part]];
                        wide[row * apart.x[part]..][..inputs[part]].copy_from_slice(own);
                    }
                    wide
                });
                let (mut out, mut also) = (vec![f32::NAN; units * rows], vec![7.5f32; apart.also * rows]);
                let x = (wide[0].as_ptr(), wide[1].as_ptr());
                // SAFETY: the same, of rows that are further apart.
                unsafe { gated.run(rows, &apart, x, out.as_mut_ptr(), also.as_mut_ptr()) };
                assert_eq!(out, want, "{gated:?}, {rows} rows");
                for (row, also) in also.chunks(apart.also).enumerate() {
                    assert_eq!(&also[..units], &want[row * units..][..units], "{gated:?}, row {row} of {rows}");
                    assert!(
                        also[units..].iter().all(|v| *v == 7.5),
                        "{gated:?}, row {row} of {rows}: beyond its units"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_masked_is_skipped() {
    let cell = Cell { inputs: [20, 20], units: 10, masked: 2 };
    let zeros =
        (0..40).flat_map(|i| (0..10).map(move |u| (i, u))).filter(|&(i, u)| cell.weight(i, 0, u) == 0.0).count();
    assert!((100..300).contains(&zeros), "{zeros} of 400");
    assert_eq!(cell.pack(Isa::detect(), Batch::Last).skipped(), 2 * zeros);
    assert_eq!(cell.pack(Isa::detect(), Batch::First).skipped(), 0);
}

#[test]
fn absurd_sizes_are_refused() {
    let source = Source { weight: &|_, _, _| 0.0, shift: &|_, _| 0.0 };
    for (inputs, units) in [([usize::MAX, 1], 4), ([1, 1], usize::MAX), ([1 << 20, 0], 1 << 20)] {
        assert!(Gated::pack(Isa::detect(), Batch::First, inputs, units, &source).is_err());
    }
}

/// What is not a number stays so, wherever it comes in.
#[test]
fn nan_reaches_the_result() {
    let cell = Cell { inputs: [2, 3], units: 5, masked: 2 };
    for &isa in Isa::available() {
        for batch in [Batch::First, Batch::Last] {
            for at in 0..5 {
                let mut x = [0.5f32; 5];
                x[at] = f32::NAN;
                let mut out = [0.0f32; 5];
                let x = (x.as_ptr(), x[2..].as_ptr());
                // SAFETY: one row of two and three inputs, five units.
                unsafe {
                    let gated = cell.pack(isa, batch);
                    gated.run(1, &gated.dense(), x, out.as_mut_ptr(), std::ptr::null_mut());
                }
                assert!(out.iter().all(|y| y.is_nan()), "{isa}, {batch:?}, input {at}: {out:?}");
            }
        }
    }
}

/// An infinite input of a masked weight is 0 · ∞, whatever fills the lanes and however many rows there are; other rows are
/// none the worse for it.
#[test]
fn infinities_give_what_the_definition_gives() {
    let specials = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX];
    // NaN, and numbers in rows with something infinite and in others.
    let mut seen = [0; 3];
    for (inputs, units) in [([2, 3], 5), ([8, 29], 29), ([7, 0], 16)] {
        for masked in [1, 2, 3] {
            let cell = Cell { inputs, units, masked };
            let all = inputs[0] + inputs[1];
            for &isa in Isa::available() {
                for (rows, lanes) in
                    [(1, Batch::First), (1, Batch::Last), (16, Batch::Last), (24, Batch::Last), (61, Batch::Last)]
                {
                    let gated = cell.pack(isa, lanes);
                    for at in 0..all {
                        let mut x: Vec<f32> = (0..all * rows).map(|i| number(i + 17)).collect();
                        // Every third row has one, in turn.
                        let special = |row: usize| specials[(row / 3 + at) % specials.len()];
                        (0..rows).step_by(3).for_each(|row| x[at * rows + row] = special(row));
                        let mut out = vec![0.0f32; units * rows];
                        let parts = (x.as_ptr(), x[inputs[0] * rows..].as_ptr());
                        // SAFETY: both parts lie one after the other, and there is room for all units.
                        unsafe { gated.run(rows, &gated.dense(), parts, out.as_mut_ptr(), std::ptr::null_mut()) };
                        for row in 0..rows {
                            let own: Vec<f32> = (0..all).map(|i| x[i * rows + row]).collect();
                            let special = own.iter().any(|x| !x.is_finite());
                            for (unit, want) in cell.want(&own).into_iter().enumerate() {
                                let got = f64::from(out[unit * rows + row]);
                                let agree = if want.is_nan() { got.is_nan() } else { (got - want).abs() < 4e-6 };
                                assert!(agree, "{gated:?}, input {at}, row {row} of {rows}: {got}, want {want}");
                                seen[if want.is_nan() { 0 } else { 2 - usize::from(special) }] += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 1000), "{seen:?}");
}
