use super::*;

/// Copies with the kernel and with a plain loop, on elements that are all different.
fn check(dims: &[usize], src_strides: &[isize], dst_strides: &[isize]) {
    let reach = |strides: &[isize], up: bool| -> isize {
        let far = dims.iter().zip(strides).map(|(&n, &s)| (n as isize - 1).max(0) * s);
        far.filter(|&s| (s > 0) == up).sum()
    };
    let (low, high) = (-reach(src_strides, false), reach(src_strides, true));
    let top = reach(dst_strides, true);
    for elem in [1usize, 2, 4] {
        let src: Vec<u32> = (0..(low + high + 1) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let bytes: Vec<u8> = src.iter().flat_map(|v| v.to_le_bytes()[4 - elem..].to_vec()).collect();
        let mut want = vec![0xAAu8; (top as usize + 1) * elem];
        let mut index = vec![0usize; dims.len()];
        for _ in 0..dims.iter().product() {
            let at = |strides: &[isize]| index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum::<isize>();
            let (from, to) = ((low + at(src_strides)) as usize * elem, at(dst_strides) as usize * elem);
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
            for threads in 1..=3 {
                let team = Team::new(threads).unwrap();
                let mut got = vec![0xAAu8; want.len()];
                // SAFETY: both buffers were sized for these strides; bytes are reached element by element.
                unsafe {
                    let from = bytes.as_ptr().add(low as usize * elem);
                    copy(isa, &team, elem, dims, from, src_strides, got.as_mut_ptr(), dst_strides);
                }
                assert!(got == want, "{isa} {elem} bytes, {threads} threads: {dims:?} {src_strides:?} {dst_strides:?}");
            }
        }
    }
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
        for code in 0..24usize {
            let mut left = vec![0, 1, 2, 3];
            let order = [code / 6, code / 2 % 3, code % 2, 0].map(|k| left.remove(k));
            let src = dense(&dims);
            let permuted: Vec<usize> = order.iter().map(|&k| dims[k]).collect();
            let strides: Vec<isize> = order.iter().map(|&k| src[k]).collect();
            check(&permuted, &strides, &dense(&permuted));
        }
    }
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
    let (rows, cols) = (2048usize, 3080usize);
    let src: Vec<u32> = (0..(rows * cols) as u32).collect();
    let team = Team::new(2).unwrap();
    for &isa in Isa::available() {
        for shift in [0usize, 5] {
            let mut dst = vec![0u32; rows * cols + shift];
            let (dims, strides) = ([cols, rows], [[1, cols as isize], [rows as isize, 1]]);
            // SAFETY: both buffers hold the whole matrix.
            unsafe {
                let to = dst.as_mut_ptr().add(shift).cast();
                copy(isa, &team, 4, &dims, src.as_ptr().cast(), &strides[0], to, &strides[1]);
            }
            assert!((0..rows * cols).all(|i| dst[shift + i] == src[i % rows * cols + i / rows]), "{isa}");
        }
    }
}
