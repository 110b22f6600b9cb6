use super::*;
use crate::simd::portable::Portable;
use crate::tuning::on;

impl Attention {
    /// Dense [batch, heads, rows, dim] operands, as many key heads as heads, values as long as keys, scale 1 / √dim,
    /// nothing masked.
    pub(crate) fn dense(batch: usize, heads: usize, queries: usize, keys: usize, dim: usize) -> Attention {
        let strides = |rows: usize| [heads * rows * dim, rows * dim, dim].map(|s| s as isize);
        Attention {
            batch,
            heads,
            kv_heads: heads,
            queries,
            keys,
            dim,
            value_dim: dim,
            scale: 1.0 / (dim as f32).sqrt(),
            causal: false,
            q: strides(queries),
            k: strides(keys),
            v: strides(keys),
            out: strides(queries),
            mask: None,
        }
    }
}

fn values(n: usize, seed: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| ((((i + seed) * 7919 + 13) % 1009) as f32 / 504.5 - 1.0) * scale).collect()
}

/// Operands in buffers that the shape's strides just fit.
struct Case {
    shape: Attention,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Vec<f32>,
    /// The last key that each query sees; empty where the shape says it.
    last: Vec<i32>,
}

fn reach(strides: &[isize], dims: &[usize], last: usize) -> usize {
    dims.iter().zip(strides).map(|(&n, &s)| n.saturating_sub(1) * s as usize).sum::<usize>() + last
}

impl Case {
    fn new(shape: Attention, scale: f32) -> Case {
        let Attention { batch, heads, kv_heads, queries, keys, dim, value_dim, .. } = shape;
        let mask = shape.mask.map_or(0, |m| reach(&m, &[batch, heads, queries, keys], 1));
        Case {
            shape,
            q: values(reach(&shape.q, &[batch, heads, queries], dim), 1, scale),
            k: values(reach(&shape.k, &[batch, kv_heads, keys], dim), 2, scale),
            v: values(reach(&shape.v, &[batch, kv_heads, keys], value_dim), 3, 1.0),
            mask: values(mask, 4, 2.0),
            last: vec![],
        }
    }

    fn want(&self) -> Vec<(usize, f64)> {
        let a = &self.shape;
        let at = |s: &[isize], i: &[usize]| s.iter().zip(i).map(|(&s, &i)| s as usize * i).sum::<usize>();
        let mut want = Vec::new();
        for b in 0..a.batch {
            for h in 0..a.heads {
                let kv = h * a.kv_heads / a.heads;
                for i in 0..a.queries {
                    let score = |j: usize| -> f64 {
                        let after_last = self.last.get(i).is_some_and(|&last| j > last as usize);
                        if after_last || a.causal && j + a.queries > i + a.keys {
                            return f64::NEG_INFINITY;
                        }
                        let (q, k) = (at(&a.q, &[b, h, i]), at(&a.k, &[b, kv, j]));
                        let dot: f64 = (0..a.dim).map(|d| f64::from(self.q[q + d]) * f64::from(self.k[k + d])).sum();
                        let mask = a.mask.map_or(0.0, |m| self.mask[at(&m, &[b, h, i, j])].into());
                        dot * f64::from(a.scale) + mask
                    };
                    let scores: Vec<f64> = (0..a.keys).map(score).collect();
                    let top = scores.iter().fold(f64::NEG_INFINITY, |m, &x| if x.is_nan() { x } else { m.max(x) });
                    let weights: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for c in 0..a.value_dim {
                        let sum: f64 = (0..a.keys)
                            .filter(|&j| weights[j] != 0.0)
                            .map(|j| weights[j] * f64::from(self.v[at(&a.v, &[b, kv, j]) + c]))
                            .sum();
                        let y = if top == f64::NEG_INFINITY { 0.0 } else { sum / total };
                        want.push((at(&a.out, &[b, h, i]) + c, y));
                    }
                }
            }
        }
        want
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<f32> {
        let a = &self.shape;
        let mut out = vec![7.0f32; reach(&a.out, &[a.batch, a.heads, a.queries], a.value_dim)];
        let team = Team::new(threads).unwrap();
        let mut scratch = vec![0xFFu8; attention_scratch_bytes(isa, team.threads(), a)];
        let (q, k, v, mask) = (self.q.as_ptr(), self.k.as_ptr(), self.v.as_ptr(), self.mask.as_ptr());
        let last = if self.last.is_empty() { std::ptr::null() } else { self.last.as_ptr() };
        // SAFETY: the buffers were sized for the shape.
        let done = unsafe { attention(on(isa), &team, a, q, k, v, mask, last, out.as_mut_ptr(), scratch.as_mut_ptr()) };
        assert_eq!(done, Ok(()));
        out
    }

    fn near(&self, got: &[f32], want: &[(usize, f64)], tolerance: f64, what: &str) {
        for &(at, want) in want {
            let got = f64::from(got[at]);
            let good = (got - want).abs() <= tolerance || (got.is_nan() && want.is_nan());
            assert!(good, "{what}: {got} instead of {want} at {at} of {:?}", self.shape);
        }
    }

    fn check(&self, tolerance: f64) {
        let want = self.want();
        for &isa in Isa::available() {
            for threads in 1..=3 {
                let got = self.run(isa, threads);
                self.near(&got, &want, tolerance, isa.name());
                let again = self.run(isa, threads);
                assert!(got.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa}: not repeatable");
            }
        }
    }
}

const TOLERANCE: f64 = 4e-6;

#[test]
fn odd_lengths_plain_and_causal() {
    for queries in [1usize, 2, 3, 5, 16, 17, 33] {
        for keys in [1usize, 2, 7, 15, 17, 63, 65, 100] {
            for dim in [1usize, 7, 16, 20, 33] {
                for causal in [false, true] {
                    Case::new(Attention { causal, ..Attention::dense(1, 2, queries, keys, dim) }, 2.0).check(TOLERANCE);
                }
            }
        }
    }
}

#[test]
fn several_blocks_of_rows_and_keys() {
    for (queries, keys, dim) in [(300, 600, 24), (290, 290, 64), (600, 300, 8), (1, 700, 64), (2, 520, 80)] {
        for causal in [false, true] {
            Case::new(Attention { causal, ..Attention::dense(1, 1, queries, keys, dim) }, 3.0).check(TOLERANCE);
        }
    }
}

#[test]
fn empty_shapes() {
    Case::new(Attention { scale: 1.0, ..Attention::dense(1, 1, 3, 4, 0) }, 1.0).check(TOLERANCE);
    let none = Case::new(Attention::dense(2, 1, 3, 0, 4), 1.0);
    assert!(none.run(Isa::detect(), 1).iter().all(|&x| x == 0.0));
    // Several heads, and few and many rows, of empty queries and keys, and of empty values.
    for queries in [1, 2, 9] {
        let shape = Attention { scale: 1.0, value_dim: 3, ..Attention::dense(2, 3, queries, 21, 0) };
        let strides = |rows: usize| [9 * rows, 3 * rows, 3].map(|s| s as isize);
        Case::new(Attention { v: strides(21), out: strides(queries), ..shape }, 1.0).check(TOLERANCE);
        let shape = Attention { value_dim: 0, v: [0; 3], out: [0; 3], ..Attention::dense(2, 3, queries, 21, 4) };
        assert!(Case::new(shape, 1.0).run(Isa::detect(), 2).is_empty());
    }
    assert!(Case::new(Attention::dense(0, 1, 3, 5, 4), 1.0).want().is_empty());
}

#[test]
fn grouped_heads_interleaved_rows_and_long_values() {
    // Rows of all heads side by side, as a projection leaves them.
    for (heads, kv_heads, queries) in [(6usize, 2usize, 1usize), (6, 2, 19), (4, 1, 5), (2, 2, 40)] {
        let (batch, keys, dim, value_dim) = (2, 37, 12, 21);
        let rows =
            |heads: usize, n: usize, len: usize| [(n * heads * len) as isize, len as isize, (heads * len) as isize];
        for causal in [false, true] {
            let shape = Attention {
                kv_heads,
                value_dim,
                causal,
                q: rows(heads, queries, dim),
                k: rows(kv_heads, keys, dim),
                v: rows(kv_heads, keys, value_dim),
                out: rows(heads, queries, value_dim),
                ..Attention::dense(batch, heads, queries, keys, dim)
            };
            Case::new(shape, 2.0).check(TOLERANCE);
        }
    }
}

#[test]
fn masks_of_every_stride() {
    let (queries, keys) = (21usize, 70usize);
    let full = [(2 * queries * keys) as isize, (queries * keys) as isize, keys as isize, 1];
    for mask in [full, [0, 0, keys as isize, 1], [keys as isize, 0, 0, 1], [0, 0, 1, queries as isize], [0, 0, 1, 0]] {
        for causal in [false, true] {
            let shape = Attention { mask: Some(mask), causal, ..Attention::dense(2, 2, queries, keys, 10) };
            let mut case = Case::new(shape, 2.0);
            case.check(TOLERANCE);
            case.mask.iter_mut().step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
            case.check(TOLERANCE);
            case.mask.fill(f32::NEG_INFINITY);
            assert!(case.run(Isa::detect(), 2).iter().all(|&x| x == 0.0), "a masked row is 0");
        }
    }
}

#[test]
fn large_scores_and_nan() {
    let mut case = Case::new(Attention { scale: 50.0, ..Attention::dense(1, 1, 9, 40, 8) }, 30.0);
    // Scores of some 10⁵ are themselves rounded at 10⁻², so only the range of the result can be told.
    for &isa in Isa::available() {
        assert!(case.run(isa, 1).iter().all(|x| x.abs() <= 1.001), "{isa}");
    }
    case.shape.scale = 0.3;
    case.q[3 * 8 + 2] = f32::NAN;
    for &isa in Isa::available() {
        let got = case.run(isa, 2);
        assert!(got.chunks(8).enumerate().all(|(i, row)| row.iter().all(|x| x.is_nan() == (i == 3))), "{isa}");
    }
}

#[test]
fn positions_say_which_keys_are_seen_and_later_keys_are_not_read() {
    for (queries, keys, dim) in [(1usize, 40usize, 16usize), (2, 300, 20), (5, 33, 7), (33, 600, 64)] {
        let shape = Attention { heads: 4, kv_heads: 2, ..Attention::dense(1, 4, queries, keys, dim) };
        let mut case = Case::new(Attention { k: [0, (keys * dim) as isize, dim as isize], ..shape }, 2.0);
        case.last = (0..queries).map(|i| ((i * 37 + keys / 2) % (keys - 1)) as i32).collect();
        let end = case.last.iter().max().map_or(0, |&last| last as usize + 1);
        for data in [&mut case.k, &mut case.v] {
            data.chunks_mut(keys * dim).for_each(|head| head[end * dim..].fill(f32::NAN));
        }
        case.check(TOLERANCE);
    }
    let mut case = Case::new(Attention::dense(1, 1, 3, 5, 4), 1.0);
    for (last, bad) in [([0, 5, 1], 1), ([-1, 0, 0], 0), ([4, 4, i32::MIN], 2)] {
        case.last = last.to_vec();
        let (mut out, mut scratch) =
            (vec![7.0f32; 12], vec![0u8; attention_scratch_bytes(Isa::detect(), 1, &case.shape)]);
        let (q, k, v, mask) = (case.q.as_ptr(), case.k.as_ptr(), case.v.as_ptr(), std::ptr::null());
        let (to, room) = (out.as_mut_ptr(), scratch.as_mut_ptr());
        let (team, last) = (Team::new(1).unwrap(), case.last.as_ptr());
        // SAFETY: the buffers were sized for the shape.
        let done = unsafe { attention(on(Isa::detect()), &team, &case.shape, q, k, v, mask, last, to, room) };
        assert_eq!(done, Err(bad));
        assert!(out.iter().all(|&y| y == 7.0));
    }
}

#[test]
fn every_portable_width() {
    fn run<S: Simd>(s: S, case: &Case) -> Vec<f32> {
        let a = &case.shape;
        let mut out = vec![0.0f32; reach(&a.out, &[a.batch, a.heads, a.queries], a.value_dim)];
        let mut scratch = vec![f32::NAN; a.layout(S::LANES)[7]];
        let job = Job {
            shape: a,
            q: case.q.as_ptr(),
            k: case.k.as_ptr(),
            v: case.v.as_ptr(),
            mask: case.mask.as_ptr(),
            positions: std::ptr::null(),
            out: out.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        for head in 0..a.batch * a.kv_heads {
            // SAFETY: the buffers were sized for the shape, which has fewer rows than one task may.
            unsafe { Task::new(s, &job, 0, head).run(s, 0..a.rows()) };
        }
        out
    }
    for (queries, keys, dim) in [(1, 50, 20), (37, 290, 20), (5, 5, 64)] {
        for causal in [false, true] {
            let case = Case::new(Attention { causal, ..Attention::dense(1, 2, queries, keys, dim) }, 2.0);
            let want = case.want();
            case.near(&run(Portable::<4>, &case), &want, TOLERANCE, "4 lanes");
            case.near(&run(Portable::<8>, &case), &want, TOLERANCE, "8 lanes");
            case.near(&run(Portable::<16>, &case), &want, TOLERANCE, "16 lanes");
        }
    }
}

#[test]
fn working_memory_beyond_what_an_address_holds_is_as_much_as_it_holds() {
    let usual = Attention::dense(1, 1, 1, 1, 4);
    let one = attention_scratch_bytes(Isa::PORTABLE, 1, &usual) - 64;
    assert_eq!(attention_scratch_bytes(Isa::PORTABLE, 3, &usual), 3 * one + 64);
    for dim in [usize::MAX / KEYS, usize::MAX / KEYS / 8] {
        let huge = Attention { dim, ..usual };
        assert_eq!(attention_scratch_bytes(Isa::PORTABLE, 1, &huge), usize::MAX);
    }
}
