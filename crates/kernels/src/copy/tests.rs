use super::*;
use crate::tuning::on;

/// Copies with the kernel and with a plain loop, on elements that are all different (but for bytes), to a place some
/// elements into a larger buffer, all of which is compared.
fn check_at(dims: &[usize], src_strides: &[isize], dst_strides: &[isize], place: usize, threads: &[usize]) {
    let reach = |strides: &[isize], up: bool| -> isize {
        let far = dims.iter().zip(strides).map(|(&n, &s)| (n as isize - 1).max(0) * s);
        far.filter(|&s| (s > 0) == up).sum()
    };
    let (low, high) = (-reach(src_strides, false), reach(src_strides, true));
    let top = reach(dst_strides, true);
    for elem in [1usize, 2, 4] {
        let src: Vec<u32> = (0..(low + high + 1) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let bytes: Vec<u8> = src.iter().flat_map(|v| v.to_le_bytes()[4 - elem..].to_vec()).collect();
        let empty = vec![0xAAu8; (place + top as usize + 1 + 64) * elem];
        let mut want = empty.clone();
        let mut index = vec![0usize; dims.len()];
        for _ in 0..dims.iter().product() {
            let at = |strides: &[isize]| index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum::<isize>();
            let (from, to) = ((low + at(src_strides)) as usize * elem, (place + at(dst_strides) as usize) * elem);
            want[to..to + elem].copy_from_slice(&bytes[from..from + elem]);
            for (i, &n) in index.iter_mut().zip(dims).rev() {
                *i += 1;
                if *i < n {
                    break;
                }
                *i = 0;
            }
        }
        for &isa in Isa::available() {
            for &threads in threads {
                let team = Team::new(threads).unwrap();
                let mut got = empty.clone();
                // SAFETY: both buffers were sized for these strides; bytes are reached element by element.
                unsafe {
                    let (from, to) = (bytes.as_ptr().add(low as usize * elem), got.as_mut_ptr().add(place * elem));
                    copy(on(isa), &team, elem, dims, from, src_strides, to, dst_strides);
                }
                assert!(
                    got == want,
                    "{isa} {elem} bytes at {place}, {threads} threads: {dims:?} {src_strides:?} {dst_strides:?}"
                );
            }
        }
    }
}

fn check(dims: &[usize], src_strides: &[isize], dst_strides: &[isize]) {
    check_at(dims, src_strides, dst_strides, 0, &[1, 2, 3]);
}

/// A permutation of a dense tensor whose last axis may be followed by a gap, on both sides.
fn check_permuted(dims: &[usize], order: &[usize], gap: [usize; 2], place: usize, threads: &[usize]) {
    let padded = |dims: &[usize], gap: usize| {
        let mut dims = dims.to_vec();
        if let Some(last) = dims.last_mut() {
            *last += gap;
        }
        dense(&dims)
    };
    let src = padded(dims, gap[0]);
    let permuted: Vec<usize> = order.iter().map(|&k| dims[k]).collect();
    let strides: Vec<isize> = order.iter().map(|&k| src[k]).collect();
    check_at(&permuted, &strides, &padded(&permuted, gap[1]), place, threads);
}

/// The permutation of that number, of `rank` axes.
fn permutation(rank: usize, mut code: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..rank).collect();
    (0..rank)
        .map(|_| {
            let at = code % left.len();
            code /= left.len();
            left.remove(at)
        })
        .collect()
}

fn dense(dims: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i] as isize;
    }
    strides
}

#[test]
fn every_permutation_of_four_axes() {
    for dims in [[2usize, 17, 3, 33], [3, 16, 1, 64], [1, 5, 31, 2]] {
        for code in 0..24 {
            check_permuted(&dims, &permutation(4, code), [0, 0], 0, &[1, 2, 3]);
        }
    }
}

#[test]
fn random_permutations_of_random_shapes_are_the_plain_loop() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for _ in 0..400 {
        let rank = 1 + below(4);
        // A few thousand elements, however they are spread over the axes.
        let mut room = 20_000;
        let dims: Vec<usize> = (0..rank)
            .map(|_| {
                let most = [2, 9, 40, 150][below(4)];
                let n = 1 + below(room.min(most));
                room = (room / n).max(1);
                n
            })
            .collect();
        let order = permutation(rank, below(24));
        check_permuted(&dims, &order, [below(2) * below(5), below(2) * below(5)], below(70), &[1 + below(3)]);
    }
}

#[test]
fn rows_a_power_of_two_apart_are_the_plain_loop() {
    for (rows, cols) in [(256usize, 1024usize), (300, 512), (1024, 130), (140, 4096), (257, 1031)] {
        for place in [0, 3] {
            check_permuted(&[rows, cols], &[1, 0], [0, 0], place, &[1, 2]);
        }
    }
    // The same for pairs and for fours of elements, and with rows of a power of two that are not all used.
    check_permuted(&[150, 512, 2], &[1, 0, 2], [0, 0], 5, &[1, 2]);
    check_permuted(&[130, 256, 4], &[1, 0, 2], [0, 0], 0, &[1, 2]);
    check_permuted(&[200, 1000], &[1, 0], [24, 56], 0, &[2]);
}

#[test]
fn transposes_of_odd_sizes() {
    for rows in [0usize, 1, 2, 3, 7, 15, 16, 17, 31, 33, 100] {
        for cols in [1usize, 2, 16, 17, 63, 65, 600] {
            check(&[cols, rows], &[1, cols as isize], &[rows as isize, 1]);
        }
    }
    check(&[700, 192], &[1, 701], &[192, 1]);
}

#[test]
fn slices_broadcasts_reversals_and_scalars() {
    check(&[], &[], &[]);
    check(&[1], &[0], &[1]);
    check(&[9, 33], &[0, 1], &[33, 1]);
    check(&[9, 33], &[1, 0], &[33, 1]);
    check(&[4, 9, 5], &[0, 1, 0], &[45, 5, 1]);
    check(&[9, 33], &[66, 2], &[40, 1]);
    check(&[9, 33], &[33, 1], &[99, 3]);
    check(&[9, 33], &[33, -1], &[33, 1]);
    check(&[9, 33], &[-33, 1], &[33, 1]);
    check(&[33, 20], &[-1, 33], &[20, 1]);
    check(&[2, 3, 2, 3, 2, 3], &[1, 2, 6, 12, 36, 72], &[108, 36, 18, 6, 3, 1]);
}

#[test]
fn runs_of_every_length_and_long_ones() {
    for run in (1usize..70).chain([255, 256, 1000, 5000]) {
        check(&[3, 2, run], &[run as isize, 3 * run as isize, 1], &[2 * run as isize, run as isize, 1]);
    }
    check(&[3, 100_000], &[100_001, 1], &[100_000, 1]);
}

#[test]
fn large_transposes_are_streamed_alike() {
    for (elem, rows, cols) in [(4usize, 1024usize, 3080usize), (2, 2048, 3080), (1, 4096, 3081), (2, 4096, 2048)] {
        let src: Vec<u8> = (0..rows * cols * elem).map(|i| ((i * 31) >> 3) as u8).collect();
        let element = |row: usize, col: usize| &src[(row * cols + col) * elem..][..elem];
        let team = Team::new(2).unwrap();
        for &isa in Isa::available() {
            for shift in [0usize, 5] {
                let mut dst = vec![0u8; (rows * cols + shift) * elem];
                let (dims, strides) = ([cols, rows], [[1, cols as isize], [rows as isize, 1]]);
                // SAFETY: both buffers hold the whole matrix.
                unsafe {
                    let to = dst.as_mut_ptr().add(shift * elem);
                    copy(on(isa), &team, elem, &dims, src.as_ptr(), &strides[0], to, &strides[1]);
                }
                let mut got = dst[shift * elem..].chunks(elem).enumerate();
                assert!(got.all(|(i, x)| x == element(i % rows, i / rows)), "{isa} {elem} bytes, shifted by {shift}");
            }
        }
    }
}
