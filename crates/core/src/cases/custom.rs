//! Cases of custom operations: functions of two inputs and of as many as are allowed, and kernels that look at windows and
//! rows, with several results and all element types. They are registered when the list is made.

use super::{List, Tolerance, sizes};
use crate::dtype::DType;
use crate::op::custom::{Custom, MOST_INPUTS, MOST_RESULTS, find};
use crate::shape;
use crate::tensor::Tensor;

/// A bump of height x1 around 0.
const BUMP: &str = "example_bump";
/// Half of the sum of all inputs.
const HALF: &str = "example_half_of_all";

/// The mean of five neighbours along a row.
const MEAN: &str = "example_mean_of_5";
/// The entropy of windows of 64 bytes, one every 16 bytes, from 0 to 1: the rows of the input are the 16 bytes.
const ENTROPY: &str = "example_entropy";
/// The largest of a row and its place, the first of several.
const PEAK: &str = "example_peak";
/// How far each is from the one before, times a factor; the first from itself.
const STEP: &str = "example_step";
/// Rows of a table by their numbers.
const PICK: &str = "example_pick";
/// Numbers of all narrow types, one of them from the end.
const NARROW: &str = "example_narrow";
/// How far apart the elements before and after are along all axes at once: 0, 1, 2 and 3 places away.
const DIAGONAL: &str = "example_diagonal";

fn kernels() -> [Custom; 6] {
    let rows = || (DType::F32, shape!["rows", "n"]);
    let mean = Custom::places(MEAN, &[rows()], 1, shape!["rows", "n - 4"], |p, y| {
        y[0] = (0..5).map(|k| p.x(0, &[p.at(0), p.at(1) + k])).sum::<f64>() / 5.0;
    })
    .wgsl("for (var k = 0; k < 5; k++) { y0 += x0(at0, at1 + k); }\ny0 /= 5.0;")
    .c("for (int k = 0; k < 5; k++) y0 += x0(at0, at1 + k);\ny0 /= 5.0f;")
    .work(6, 0);
    let entropy = Custom::places(ENTROPY, &[(DType::U8, shape!["w + 3", 16])], 1, shape!["w"], |p, y| {
        let mut counts = [0; 256];
        for k in 0..64 {
            counts[p.x(0, &[p.at(0) + k / 16, k % 16]) as usize] += 1;
        }
        let shares = counts.iter().filter(|c| **c > 0).map(|c| f64::from(*c) / 64.0);
        y[0] = shares.map(|share| -share * share.log2()).sum::<f64>() / 8.0;
    })
    .wgsl(
        "var counts: array<i32, 256>;
        for (var k = 0; k < 64; k++) { counts[i32(x0(at0 + k / 16, k % 16))] += 1; }
        for (var v = 0; v < 256; v++) {
            if (counts[v] > 0) {
                let share = f32(counts[v]) / 64.0;
                y0 -= share * log2(share) / 8.0;
            }
        }",
    )
    .c("int counts[256] = {0};
        for (int k = 0; k < 64; k++) counts[(int)x0(at0 + k / 16, k % 16)] += 1;
        for (int v = 0; v < 256; v++) {
            float share = (float)counts[v] / 64.0f;
            if (counts[v] > 0) y0 -= share * log2f(share) / 8.0f;
        }")
    .work(5 * 256, 256);
    let peak = Custom::places(PEAK, &[rows()], 2, shape!["rows"], |p, y| {
        y[0] = p.x(0, &[p.at(0), 0]);
        for i in 1..p.size("n") {
            if p.x(0, &[p.at(0), i]) > y[0] {
                y[0] = p.x(0, &[p.at(0), i]);
                y[1] = i as f64;
            }
        }
    })
    .wgsl(
        "y0 = x0(at0, 0);
        for (var i = 1; i < n; i++) {
            if (x0(at0, i) <= y0) { continue; }
            y0 = x0(at0, i);
            y1 = f32(i);
        }",
    )
    .c("y0 = x0(at0, 0);
        for (int i = 1; i < n; i++) if (x0(at0, i) > y0) { y0 = x0(at0, i); y1 = (float)i; }");
    let step = Custom::places(STEP, &[(DType::F32, shape!["n"]), (DType::F32, shape![])], 1, shape!["n"], |p, y| {
        y[0] = (p.x(0, &[p.at(0)]) - p.x(0, &[p.at(0) - 1])) * p.x(1, &[]);
    })
    .wgsl("if (at0 == 0) { return; }\ny0 = (x0(at0) - x0(at0 - 1)) * x1();")
    .c("y0 = (x0(at0) - x0(at0 - 1)) * x1();")
    .work(2, 0);
    let table = [(DType::F16, shape!["n", "d"]), (DType::I32, shape!["k"])];
    let pick = Custom::places(PICK, &table, 1, shape!["k", "d"], |p, y| {
        y[0] = p.x(0, &[p.x(1, &[p.at(0)]) as i64, p.at(1)]);
    })
    .wgsl("y0 = x0(i32(x1(at0)), at1);")
    .c("y0 = x0((int)x1(at0), at1);");
    let narrow = [DType::Bf16, DType::I8, DType::Bool].map(|dtype| (dtype, shape!["n"]));
    let narrow = Custom::places(NARROW, &narrow, 1, shape!["n"], |p, y| {
        y[0] = p.x(0, &[p.at(0)]) + p.x(1, &[p.size("n") - 1 - p.at(0)]) * p.x(2, &[p.at(0)]);
    })
    .wgsl("y0 = x0(at0) + x1(n - 1 - at0) * x2(at0);")
    .c("y0 = x0(at0) + x1(n - 1 - at0) * x2(at0);");
    [mean, entropy, peak, step, pick, narrow]
}

/// As many axes and results as there may be.
fn diagonal() -> Custom {
    let six = shape!["a", "b", "c", "d", "e", "f"];
    Custom::places(DIAGONAL, &[(DType::F32, six.clone())], MOST_RESULTS, six, |p, y| {
        let all = [p.at(0), p.at(1), p.at(2), p.at(3), p.at(4), p.at(5)];
        for (k, y) in y.iter_mut().enumerate() {
            *y = p.x(0, &all.map(|at| at + k as i64)) - p.x(0, &all.map(|at| at - k as i64));
        }
    })
    .wgsl(
        "y1 = x0(at0 + 1, at1 + 1, at2 + 1, at3 + 1, at4 + 1, at5 + 1) - x0(at0 - 1, at1 - 1, at2 - 1, at3 - 1, at4 - 1, at5 - 1);
        y2 = x0(at0 + 2, at1 + 2, at2 + 2, at3 + 2, at4 + 2, at5 + 2) - x0(at0 - 2, at1 - 2, at2 - 2, at3 - 2, at4 - 2, at5 - 2);
        y3 = x0(at0 + 3, at1 + 3, at2 + 3, at3 + 3, at4 + 3, at5 + 3) - x0(at0 - 3, at1 - 3, at2 - 3, at3 - 3, at4 - 3, at5 - 3);",
    )
}

/// Makes the examples known, once.
fn register() {
    let bump = Custom::new(BUMP, 2, |x| x[1] * (-x[0] * x[0]).exp())
        .wgsl("return x1 * exp(-x0 * x0);")
        .c("return x1 * expf(-x0 * x0);")
        .domain(-4.0, 4.0)
        .work(4, 1);
    let sum = "return (x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7) * 0.5";
    let half = Custom::new(HALF, MOST_INPUTS, |x| x.iter().sum::<f64>() * 0.5)
        .wgsl(&format!("{sum};"))
        .c(&format!("{sum}f;"))
        .work(MOST_INPUTS, 0);
    for custom in [bump, half, diagonal()].into_iter().chain(kernels()) {
        // Several threads may make the list, each several times; the first one registers.
        if find(custom.name()).is_none() {
            let name = custom.name().to_owned();
            let done = custom.register();
            assert!(find(&name).is_some(), "the example does not register: {done:?}");
        }
    }
}

pub(super) fn custom(list: &mut List<'_>) {
    register();
    for (name, x, height) in [
        ("alike", &[5, 17][..], &[5, 17][..]),
        ("height-per-row", &[5, 17], &[5, 1]),
        ("both-stretched", &[3, 1, 4], &[2, 1]),
        ("scalars", &[], &[]),
        ("empty", &[0, 3], &[3]),
    ] {
        list.add("custom", format!("bump/{name}"), Tolerance::FUNCTION, |m| {
            let (x, height) = (m.uniform(x)?, m.uniform(height)?);
            let y = m.custom(BUMP, &[x, height])?;
            m.result(y)
        });
    }
    list.add("custom", "bump/symbols, between other operations", Tolerance::CHAIN, |m| {
        let x = m.uniform_as(shape!["B", 9], &[6, 9])?;
        let w = m.trained_uniform(&[9, 5])?;
        let h = m.matmul(x, w)?;
        let one = m.scalar(1.5)?;
        let bump = m.custom(BUMP, &[h, one])?;
        let y = m.tanh(bump)?;
        m.result(y)
    });
    list.add("custom", "bump/of constants", Tolerance::FUNCTION, |m| {
        let x = m.uniform(&[4])?;
        let (two, one) = (m.scalar(2.0)?, m.scalar(1.0)?);
        let known = m.custom(BUMP, &[one, two])?;
        let y = m.mul(x, known)?;
        m.result(y)
    });
    list.add("custom", "half/as many inputs as there may be", Tolerance::sum_of(MOST_INPUTS), |m| {
        let mut inputs = vec![];
        for k in 0..MOST_INPUTS {
            inputs.push(m.uniform(if k % 2 == 0 { &[3, 7] } else { &[7] })?);
        }
        let y = m.custom(HALF, &inputs)?;
        m.result(y)
    });
}

pub(super) fn looking_around(list: &mut List<'_>) {
    register();
    for shape in [&[3, 17][..], &[1, 5], &[0, 9]] {
        list.add("custom", format!("mean/{}", sizes(shape)), Tolerance::sum_of(5), |m| {
            let x = m.uniform(shape)?;
            let y = m.custom(MEAN, &[x])?;
            m.result(y)
        });
    }
    list.add("custom", "mean/empty, of a row that is as short as a window can be", Tolerance::EXACT, |m| {
        let x = m.uniform(&[2, 4])?;
        let y = m.custom(MEAN, &[x])?;
        m.result(y)
    });
    list.add("custom", "mean/symbols, of a view, between other operations", Tolerance::CHAIN, |m| {
        let x = m.uniform_as(shape!["T", "B"], &[12, 3])?;
        let x = m.tanh(x)?;
        let x = m.transpose(x, &[1, 0])?;
        let x = m.slice(x, 1, 2, "T")?;
        let mean = m.custom(MEAN, &[x])?;
        let again = m.custom(MEAN, &[mean])?;
        let y = m.add(again, again)?;
        m.result(mean)?;
        m.result(y)
    });
    list.add("custom", "mean/of constants", Tolerance::sum_of(5), |m| {
        let known = m.trained_uniform(&[2, 9])?;
        let mean = m.custom(MEAN, &[known])?;
        let x = m.uniform(&[2, 5])?;
        let y = m.mul(x, mean)?;
        m.result(y)
    });
    for (name, open) in [("fixed", false), ("symbols", true)] {
        list.add("custom", format!("entropy of bytes by windows/{name}"), Tolerance::sum_of(256), |m| {
            // Few values, one value, and any.
            let bytes = (0..9 * 16).map(|at| match at / 48 {
                0 => at % 7,
                1 => 200,
                _ => m.random.int(0, 256),
            });
            let bytes: Vec<u8> = bytes.map(|byte| byte as u8).collect();
            let shape = if open { shape!["N", 16] } else { shape![9, 16] };
            let x = m.given_as(shape, Tensor::new(&[9, 16], &bytes)?)?;
            let y = m.custom(ENTROPY, &[x])?;
            m.result(y)
        });
    }
    for shape in [&[4, 11][..], &[70, 1], &[3, 0]] {
        list.add("custom", format!("largest of a row and its place/{}", sizes(shape)), Tolerance::EXACT, |m| {
            let x = m.uniform(shape)?;
            for y in m.custom_results(PEAK, &[x])? {
                m.result(y)?;
            }
            Ok(())
        });
    }
    list.add("custom", "largest of a row and its place/symbols, only the place", Tolerance::EXACT, |m| {
        let x = m.uniform_as(shape!["B", "N"], &[3, 8])?;
        let place = m.custom_results(PEAK, &[x])?[1];
        let y = m.cast(place, DType::I32)?;
        m.result(y)
    });
    list.add("custom", "step/the one before, by a factor that is known", Tolerance::sum_of(3), |m| {
        let x = m.uniform_as(shape!["N"], &[19])?;
        let factor = m.scalar(2.5)?;
        let y = m.custom(STEP, &[x, factor])?;
        m.result(y)
    });
    list.add("custom", "step/the one before, of a stretched value", Tolerance::sum_of(3), |m| {
        let (x, factor) = (m.uniform(&[1])?, m.uniform(&[])?);
        let x = m.broadcast(x, [6])?;
        let y = m.custom(STEP, &[x, factor])?;
        m.result(y)
    });
    list.add("custom", "pick/rows by numbers, also by those beyond", Tolerance::EXACT, |m| {
        let data = m.random.floats_as(DType::F16, &[5, 3], -1.0, 1.0);
        let table = m.given(data)?;
        let numbers = m.given(Tensor::new(&[7], &[0, 4, 2, -1, 5, 1000, -1000])?)?;
        let y = m.custom(PICK, &[table, numbers])?;
        m.result(y)
    });
    list.add("custom", "narrow/numbers of all narrow types", Tolerance::sum_of(3), |m| {
        let (floats, numbers) =
            (m.random.floats_as(DType::Bf16, &[9], -1.0, 1.0), m.random.floats_as(DType::I8, &[9], -9.0, 9.0));
        let truths = Tensor::from_bools(&[9], &[true, false, true, true, false, false, true, true, false])?;
        let inputs = [m.given(floats)?, m.given(numbers)?, m.given(truths)?];
        let y = m.custom(NARROW, &inputs)?;
        m.result(y)
    });
    list.add("custom", "diagonal/as many axes and results as there may be", Tolerance::sum_of(2), |m| {
        let x = m.uniform(&[2, 1, 3, 2, 4, 2])?;
        for y in m.custom_results(DIAGONAL, &[x])? {
            m.result(y)?;
        }
        Ok(())
    });
}
