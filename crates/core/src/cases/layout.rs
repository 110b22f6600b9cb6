//! Cases of operations that move elements. All are exact, for every element type.

use super::{Dims, List, Tolerance, sizes};
use crate::dtype::DType;
use crate::shape;
use crate::shape::Shape;
use crate::tensor::Tensor;

fn digits(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect()
}

pub(super) fn reorder(list: &mut List<'_>) {
    let reshapes: [(&[usize], &[usize]); 9] = [
        (&[6], &[2, 3]),
        (&[2, 3, 4], &[24]),
        (&[2, 3, 4], &[6, 4]),
        (&[4, 6], &[3, 8]),
        (&[1], &[]),
        (&[], &[1, 1, 1]),
        (&[5, 1, 7], &[5, 7]),
        (&[0, 3], &[3, 0, 2]),
        (&[17, 33], &[33, 17]),
    ];
    for (from, to) in reshapes {
        let case = list.add("reshape", format!("f32/{}-to-{}", sizes(from), sizes(to)), Tolerance::EXACT, |m| {
            let x = m.uniform(from)?;
            let y = m.reshape(x, to)?;
            m.result(y)
        });
        case.gradient = !from.contains(&0) && from.len() < 4 && from != [17, 33];
    }
    let permutations: [(&[usize], &[usize]); 17] = [
        (&[2, 3, 5], &[0, 1, 2]),
        (&[2, 3, 5], &[0, 2, 1]),
        (&[2, 3, 5], &[1, 0, 2]),
        (&[2, 3, 5], &[1, 2, 0]),
        (&[2, 3, 5], &[2, 0, 1]),
        (&[2, 3, 5], &[2, 1, 0]),
        (&[17, 33], &[1, 0]),
        (&[127, 3], &[1, 0]),
        (&[1, 65], &[1, 0]),
        (&[7], &[0]),
        (&[], &[]),
        (&[2, 5, 3, 4], &[0, 2, 1, 3]),
        (&[2, 3, 5, 4], &[0, 1, 3, 2]),
        (&[2, 3, 4, 5], &[3, 2, 1, 0]),
        (&[2, 3, 4, 5], &[2, 3, 0, 1]),
        (&[2, 1, 3, 2, 2], &[4, 0, 2, 1, 3]),
        (&[0, 3, 2], &[2, 0, 1]),
    ];
    for (shape, perm) in permutations {
        let case = list.add("transpose", format!("f32/{}/{}", sizes(shape), digits(perm)), Tolerance::EXACT, |m| {
            let x = m.uniform(shape)?;
            let y = m.transpose(x, perm)?;
            m.result(y)
        });
        case.gradient = !shape.contains(&0) && shape.iter().product::<usize>() < 130;
    }
    for dtype in DType::ALL {
        list.add("transpose", format!("{dtype}/5x7x3/201"), Tolerance::EXACT, |m| {
            let data = m.random.any(dtype, &[5, 7, 3]);
            let x = m.given(data)?;
            let y = m.transpose(x, &[2, 0, 1])?;
            let z = m.reshape(y, [7, 15])?;
            m.result(y)?;
            m.result(z)
        });
    }
    let stretches: [(&[usize], &[usize]); 10] = [
        (&[], &[3]),
        (&[1], &[17]),
        (&[5], &[3, 5]),
        (&[3, 1], &[3, 5]),
        (&[1, 5], &[3, 5]),
        (&[2, 1, 3], &[2, 4, 3]),
        (&[1, 1], &[33, 17]),
        (&[3, 1, 1], &[2, 3, 4, 5]),
        (&[1, 3], &[0, 3]),
        (&[3, 5], &[3, 5]),
    ];
    for (from, to) in stretches {
        let case = list.add("broadcast", format!("f32/{}-to-{}", sizes(from), sizes(to)), Tolerance::EXACT, |m| {
            let x = m.uniform(from)?;
            let y = m.broadcast(x, to)?;
            m.result(y)
        });
        case.gradient = !to.contains(&0);
    }
    for dtype in DType::ALL {
        list.add("broadcast", format!("{dtype}/3x1-to-3x4"), Tolerance::EXACT, |m| {
            let data = m.random.any(dtype, &[3, 1]);
            let x = m.given(data)?;
            let y = m.broadcast(x, [3, 4])?;
            m.result(y)
        });
    }
}

pub(super) fn cut_and_join(list: &mut List<'_>) {
    let slices: [(&[usize], usize, usize, usize); 11] = [
        (&[17], 0, 3, 9),
        (&[5, 7], 0, 1, 4),
        (&[5, 7], 1, 2, 3),
        (&[5, 7], 1, 0, 7),
        (&[2, 3, 4], 0, 1, 2),
        (&[2, 3, 4], 1, 1, 3),
        (&[2, 3, 4], 2, 3, 4),
        (&[4, 3], 0, 2, 2),
        (&[33, 65], 1, 17, 50),
        (&[0, 3], 1, 1, 2),
        (&[2, 2, 2, 3], 3, 1, 2),
    ];
    for (shape, axis, start, end) in slices {
        let name = format!("f32/{}/axis-{axis}/{start}-to-{end}", sizes(shape));
        let case = list.add("slice", name, Tolerance::EXACT, |m| {
            let x = m.uniform(shape)?;
            let y = m.slice(x, axis, start, end)?;
            m.result(y)
        });
        case.gradient = !shape.contains(&0) && start < end && shape[0] < 33;
    }
    for (t, what) in [(5usize, "5"), (9, "9")] {
        list.add("slice", format!("f32/symbolic/T-{what}"), Tolerance::EXACT, |m| {
            let x = m.uniform_as(shape!["T", 3], &[t, 3])?;
            let (head, tail) = (m.slice(x, 0, 0, "T - 1")?, m.slice(x, 0, 1, "T")?);
            let steps = m.sub(tail, head)?;
            let last = m.slice(x, 0, "T - 2", "T")?;
            let padded = m.pad(steps, 0, 1, "T - 1")?;
            m.result(steps)?;
            m.result(last)?;
            m.result(padded)
        })
        .smooth();
    }
    let pads: [(&[usize], usize, usize, usize); 8] = [
        (&[3], 0, 2, 1),
        (&[3, 5], 0, 0, 2),
        (&[3, 5], 1, 3, 0),
        (&[2, 3, 4], 1, 1, 1),
        (&[2, 3, 4], 2, 0, 0),
        (&[0, 3], 0, 2, 0),
        (&[3, 0], 1, 1, 2),
        (&[17, 33], 1, 1, 14),
    ];
    for (shape, axis, before, after) in pads {
        let case =
            list.add("pad", format!("f32/{}/axis-{axis}/{before}-{after}", sizes(shape)), Tolerance::EXACT, |m| {
                let x = m.uniform(shape)?;
                let y = m.pad(x, axis, before, after)?;
                m.result(y)
            });
        case.gradient = !shape.contains(&0) && shape[0] < 17;
    }
    let joins: [(&[&[usize]], usize); 9] = [
        (&[&[3], &[4]], 0),
        (&[&[2, 3], &[1, 3], &[4, 3]], 0),
        (&[&[2, 3], &[2, 1], &[2, 5]], 1),
        (&[&[2, 3, 4], &[2, 2, 4]], 1),
        (&[&[2, 3, 4], &[2, 3, 1]], 2),
        (&[&[5, 7]], 1),
        (&[&[0, 3], &[2, 3]], 0),
        (&[&[2, 0], &[2, 3], &[2, 0]], 1),
        (&[&[17, 33], &[17, 31]], 1),
    ];
    for (shapes, axis) in joins {
        let name = shapes.iter().map(|s| sizes(s)).collect::<Vec<_>>().join("+");
        let case = list.add("concat", format!("f32/{name}/axis-{axis}"), Tolerance::EXACT, |m| {
            let mut parts = vec![];
            for shape in shapes {
                parts.push(m.uniform(shape)?);
            }
            let y = m.concat(&parts, axis)?;
            m.result(y)
        });
        case.gradient = shapes.iter().all(|s| !s.contains(&0) && s[0] < 17);
    }
    list.add("concat", "f32/a-value-with-itself", Tolerance::EXACT, |m| {
        let x = m.uniform(&[3, 5])?;
        let y = m.concat(&[x, x, x], 1)?;
        m.result(y)
    })
    .smooth();
    for dtype in DType::ALL {
        list.add("concat", format!("{dtype}/sliced-padded-joined"), Tolerance::EXACT, |m| {
            let data = m.random.any(dtype, &[5, 9]);
            let x = m.given(data)?;
            let (left, right) = (m.slice(x, 1, 0, 4)?, m.slice(x, 1, 4, 9)?);
            let swapped = m.concat(&[right, left], 1)?;
            let padded = m.pad(swapped, 0, 1, 2)?;
            m.result(swapped)?;
            m.result(padded)
        });
    }
}

pub(super) fn index(list: &mut List<'_>) {
    let gathers: [(Dims, usize, Dims, &[i32]); 11] = [
        (&[5], 0, &[3], &[4, 0, 2]),
        (&[5, 3], 0, &[4], &[1, 1, 1, 4]),
        (&[5, 3], 1, &[2], &[2, 0]),
        (&[5, 3], 0, &[], &[3]),
        (&[5, 3], 0, &[2, 2], &[0, 4, 4, 0]),
        (&[2, 5, 3], 1, &[3], &[4, 3, 4]),
        (&[2, 5, 3], 2, &[2, 3], &[0, 1, 2, 2, 1, 0]),
        (&[2, 5, 3], 0, &[1], &[1]),
        (&[5, 3], 0, &[0], &[]),
        (&[3, 0], 0, &[2], &[2, 1]),
        (&[1, 7], 0, &[3], &[0, 0, 0]),
    ];
    for (i, (shape, axis, index_shape, indices)) in gathers.into_iter().enumerate() {
        let name = format!("f32/{}/axis-{axis}/by-{}", sizes(shape), sizes(index_shape));
        let case = list.add("gather", name, Tolerance::EXACT, |m| {
            let x = m.uniform(shape)?;
            let indices = Tensor::new(index_shape, indices)?;
            let at = if i % 2 == 0 { m.given(indices)? } else { m.constant(indices)? };
            let y = m.gather(x, at, axis)?;
            m.result(y)
        });
        case.gradient = !shape.contains(&0) && !indices.is_empty();
    }
    for dtype in DType::ALL {
        list.add("gather", format!("{dtype}/17x5/axis-0/by-33"), Tolerance::EXACT, |m| {
            let (data, at) = (m.random.any(dtype, &[17, 5]), m.random.ints(&[33], 0, 17));
            let (x, at) = (m.given(data)?, m.given(at)?);
            let y = m.gather(x, at, 0)?;
            m.result(y)
        });
    }
    let puts: [(Dims, usize, &[i32]); 9] = [
        (&[5], 0, &[0, 2, 4]),
        (&[5, 3], 0, &[3]),
        (&[5, 3], 1, &[0, 2]),
        (&[2, 5, 3], 1, &[1, 2, 3]),
        (&[2, 2, 4, 3], 2, &[3]),
        (&[5, 3], 0, &[]),
        (&[3, 0], 0, &[1]),
        (&[1, 7], 1, &[0, 1, 2, 3, 4, 5, 6]),
        (&[3, 33, 2], 1, &[0, 7, 31, 32]),
    ];
    for (i, (shape, axis, indices)) in puts.into_iter().enumerate() {
        let case =
            list.add("put", format!("f32/{}/axis-{axis}/{}", sizes(shape), indices.len()), Tolerance::EXACT, |m| {
                let mut part = shape.to_vec();
                part[axis] = indices.len();
                let (x, part) = (m.uniform(shape)?, m.uniform(&part)?);
                let indices = Tensor::new(&[indices.len()], indices)?;
                let at = if i % 2 == 0 { m.given(indices)? } else { m.constant(indices)? };
                let y = m.put(x, part, at, axis)?;
                m.result(y)
            });
        case.gradient = !shape.contains(&0) && !indices.is_empty();
    }
    for dtype in DType::ALL {
        list.add("put", format!("{dtype}/17x5/axis-0"), Tolerance::EXACT, |m| {
            let (data, part) = (m.random.any(dtype, &[17, 5]), m.random.any(dtype, &[3, 5]));
            let (x, part, at) = (m.given(data)?, m.given(part)?, m.given(Tensor::new(&[3], &[2i32, 3, 16])?)?);
            let y = m.put(x, part, at, 0)?;
            m.result(y)
        });
    }
    list.add("put", "f32/symbolic", Tolerance::EXACT, |m| {
        let x = m.uniform_as(shape![2, "S", 3], &[2, 6, 3])?;
        let part = m.uniform_as(shape![2, "L", 3], &[2, 2, 3])?;
        let at = m.given_as(Shape::new(["L"]), Tensor::new(&[2], &[1i32, 5])?)?;
        let y = m.put(x, part, at, 1)?;
        m.result(y)
    })
    .smooth();
    let sums: [(&str, Dims, usize, &[i32], usize); 9] = [
        ("sorted", &[6], 0, &[0, 0, 1, 2, 2, 2], 3),
        ("unsorted", &[6], 0, &[2, 0, 1, 2, 0, 2], 3),
        ("empty-segments", &[4], 0, &[5, 5, 1, 1], 7),
        ("rows", &[5, 3], 0, &[1, 0, 1, 3, 3], 4),
        ("columns", &[3, 5], 1, &[1, 0, 1, 3, 3], 4),
        ("middle", &[2, 4, 3], 1, &[1, 1, 0, 1], 2),
        ("nothing", &[0, 3], 0, &[], 2),
        ("no-segments", &[0], 0, &[], 0),
        ("no-columns", &[3, 0], 0, &[0, 1, 0], 2),
    ];
    for (what, shape, axis, segment, segments) in sums {
        let case = list.add("segment_sum", format!("f32/{what}"), Tolerance::sum_of(8), |m| {
            let x = m.uniform(shape)?;
            let segment = m.constant(Tensor::new(&[segment.len()], segment)?)?;
            let y = m.segment_sum(x, segment, axis, segments)?;
            m.result(y)
        });
        case.gradient = !shape.contains(&0);
    }
    for (dtype, tolerance) in [
        (DType::F32, Tolerance::sum_of(127)),
        (DType::F16, Tolerance::sum_of(127).stored_as(DType::F16)),
        (DType::Bf16, Tolerance::sum_of(127).stored_as(DType::Bf16)),
        (DType::I32, Tolerance::EXACT),
    ] {
        list.add("segment_sum", format!("{dtype}/7x127-into-17"), tolerance, |m| {
            let low = if dtype == DType::I32 { -2e9 } else { -1.0 };
            let data = m.random.floats_as(dtype, &[7, 127], low, -low);
            let segment = m.random.ints(&[127], 0, 17);
            let (x, segment) = (m.given(data)?, m.given(segment)?);
            let y = m.segment_sum(x, segment, 1, 17)?;
            m.result(y)
        });
    }
    // Long lists, as in counts of bytes in windows.
    for (dtype, tolerance) in [(DType::F32, Tolerance::sum_of(8)), (DType::I32, Tolerance::EXACT)] {
        list.add("segment_sum", format!("{dtype}/1300-into-700"), tolerance, |m| {
            let low = if dtype == DType::I32 { -2e9 } else { -1.0 };
            let data = m.random.floats_as(dtype, &[1300], low, -low);
            let segment = m.random.ints(&[1300], 0, 700);
            let (x, segment) = (m.given(data)?, m.given(segment)?);
            let y = m.segment_sum(x, segment, 0, 700)?;
            m.result(y)
        });
    }
    // The two operations of a sparse network: read by source, add up by destination.
    list.add("segment_sum", "f32/gather-then-sum", Tolerance::sum_of(33), |m| {
        let (from, to) = (m.random.ints(&[33], 0, 7), m.random.ints(&[33], 0, 5));
        let (x, w) = (m.uniform(&[3, 7])?, m.trained_uniform(&[33])?);
        let (from, to) = (m.constant(from)?, m.constant(to)?);
        let read = m.gather(x, from, 1)?;
        let weighted = m.mul(read, w)?;
        let y = m.segment_sum(weighted, to, 1, 5)?;
        m.result(y)
    })
    .smooth();
    for t in [1usize, 4] {
        list.add("segment_sum", format!("f32/symbolic/T-{t}"), Tolerance::sum_of(4), |m| {
            let x = m.uniform_as(shape!["T", 3], &[t, 3])?;
            let index = m.random.ints(&[t], 0, t as i32);
            let at = m.given_as(Shape::new(["T"]), index)?;
            let (y, z) = (m.gather(x, at, 0)?, m.segment_sum(x, at, 0, "T")?);
            m.result(y)?;
            m.result(z)
        })
        .smooth();
    }
}
