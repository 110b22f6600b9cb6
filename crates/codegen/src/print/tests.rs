//! Kernels of all kinds are printed, and read by compilers: WGSL by naga, which makes Metal's language and SPIR-V of it.

use super::*;
use crate::lang::{Compute, Function, Maker, Routine, Run};
use crate::math;

/// y = f(x) for each element, one a thread.
fn map() -> Kernel {
    let mut m = Maker::new("map_silu", 64);
    let (arena, constants) = (m.buffer("arena", true), m.buffer("constants", false));
    let (count, x, y) = (m.arg("count"), m.arg("x"), m.arg("y"));
    let i = m.name("i", m.group(0) * 64u32 + m.thread());
    m.when(i.lt(count), |m| {
        let value = m.load(arena, x + &i, Ty::F32) * m.load(constants, 0u32, Ty::F32);
        let value = math::silu(m, &value);
        m.store(arena, y + &i, value);
    });
    m.finish()
}

/// The sum of a row, by halves.
fn row_sum() -> Kernel {
    let mut m = Maker::new("row_sum", 128);
    let arena = m.buffer("arena", true);
    let (len, x, y) = (m.arg("len"), m.arg("x"), m.arg("y"));
    let parts = m.shared("shared", Ty::F32, 128);
    let (row, thread) = (m.group(0), m.thread());
    let sum = m.variable("sum", 0.0);
    m.count("i", &thread, &len, 128u32, |m, i| {
        let value = m.load(arena, &x + &row * &len + i, Ty::F32);
        m.set(sum, m.get(sum) + value);
    });
    m.store(parts, &thread, m.get(sum));
    m.count("level", 0u32, 7u32, 1u32, |m, level| {
        m.barrier();
        let half = m.name("half", Expr::from(64u32).shr(level));
        m.when(thread.lt(&half), |m| {
            let other = m.load(parts, &thread + &half, Ty::F32);
            m.store(parts, &thread, m.load(parts, &thread, Ty::F32) + other);
        });
    });
    m.when(thread.eq(0u32), |m| m.store(arena, y + &row, m.load(parts, 0u32, Ty::F32)));
    m.finish()
}

/// A product of matrices: 16 × 16 threads have 2 × 2 elements each.
fn product() -> Kernel {
    let mut m = Maker::new("product", 256);
    let (arena, constants, faults) = (m.buffer("arena", true), m.buffer("constants", false), m.buffer("faults", true));
    let (rows, inner, columns) = (m.arg("rows"), m.arg("inner"), m.arg("columns"));
    let (left, right) = (m.shared("left", Ty::F32, 32 * 17), m.shared("right", Ty::F32, 16 * 33));
    let sums = m.own("sums", Ty::F32, 4);
    let (x, y) = (m.name("x", m.thread().rem(16u32)), m.name("y", m.thread() / 16u32));
    m.count("i", 0u32, 4u32, 1u32, |m, i| m.store(sums, i, 0.0));
    m.count("k", 0u32, &inner, 16u32, |m, k| {
        m.barrier();
        m.count("half", 0u32, 2u32, 1u32, |m, half| {
            let row = m.name("row", m.group(1) * 32u32 + &half * 16u32 + &y);
            let index = &row * &inner + &k + &x;
            let value = row.lt(&rows).and((&k + &x).lt(&inner)).select(m.load(arena, index, Ty::F32), 0.0);
            m.store(left, (&half * 16u32 + &y) * 17u32 + &x, value);
            let value = m.load(constants, (&k + &y) * &columns + &half * 16u32 + &x, Ty::F32);
            m.store(right, &y * 33u32 + &half * 16u32 + &x, value);
        });
        m.barrier();
        m.count("j", 0u32, 16u32, 1u32, |m, j| {
            m.count("r", 0u32, 2u32, 1u32, |m, r| {
                m.count("c", 0u32, 2u32, 1u32, |m, c| {
                    let a = m.load(left, (&r * 16u32 + &y) * 17u32 + &j, Ty::F32);
                    let b = m.load(right, &j * 33u32 + &c * 16u32 + &x, Ty::F32);
                    let at = m.name("at", &r * 2u32 + c);
                    m.store(sums, &at, a.fma(b, m.load(sums, &at, Ty::F32)));
                });
            });
        });
    });
    m.count("i", 0u32, 4u32, 1u32, |m, i| {
        let sum = m.name("sum", m.load(sums, &i, Ty::F32));
        m.when(math::is_nan(&sum), |m| m.fault(faults, 0u32));
        let at = (m.group(1) * 32u32 + i.clone() / 2u32 * 16u32 + &y) * &columns + i.rem(2u32) * 16u32 + &x;
        m.store(arena, at, sum);
    });
    m.finish()
}

/// Every statement, operator and conversion, and numbers that are hard to write; names that mean something elsewhere.
fn everything() -> Kernel {
    let mut m = Maker::new("move", 32);
    let (data, faults) = (m.buffer("target", true), m.buffer("faults", true));
    let (of, from) = (m.arg("of"), m.arg("from"));
    let (own, shared) = (m.own("int", Ty::I32, 3), m.shared("float", Ty::U32, 32));
    let mut at = 0u32;
    let mut put = |m: &mut Maker, value: Expr| {
        let value = if value.ty() == Ty::Bool { value.to(Ty::U32) } else { value };
        m.store(data, at, value);
        at += 1;
    };
    let known = [1.5f32.into(), 7u32.into(), Expr::from(-7), true.into()];
    let loaded = [Ty::F32, Ty::U32, Ty::I32].map(|ty| m.load(data, m.thread() + &from, ty));
    let [f, u, i] = loaded.clone();
    for op in [
        Unary::Neg,
        Unary::Abs,
        Unary::Sqrt,
        Unary::Floor,
        Unary::Round,
        Unary::Trunc,
        Unary::Exp2,
        Unary::Recip,
        Unary::Tanh,
    ] {
        put(&mut m, f.unary(op));
        put(&mut m, known[0].unary(op));
    }
    for value in [&u, &i, &known[1], &known[2]] {
        put(&mut m, value.unary(Unary::Not));
    }
    put(&mut m, i.unary(Unary::Neg));
    put(&mut m, known[2].unary(Unary::Neg));
    let (lt, le) = (u.lt(5u32), Expr::from(3u32).le(&u));
    use Binary::*;
    for (a, b) in [(&f, &known[0]), (&known[0], &f), (&known[0], &known[0])] {
        for op in [Add, Sub, Mul, Div, Min, Max, Eq, Ne, Lt, Le] {
            put(&mut m, a.binary(op, b));
        }
    }
    for (a, b) in [(&u, &known[1]), (&known[1], &u), (&i, &known[2]), (&known[2], &i), (&known[2], &known[2])] {
        for op in [Add, Sub, Mul, Div, Min, Max, And, Or, Xor, Eq, Ne, Lt, Le] {
            put(&mut m, a.binary(op, b));
        }
    }
    put(&mut m, u.rem(&of));
    for value in [&u, &i, &known[1], &known[2]] {
        put(&mut m, value.shl(u.and(31u32)));
        put(&mut m, value.shr(3u32));
    }
    for op in [And, Or, Eq, Ne] {
        put(&mut m, lt.binary(op, &le));
        put(&mut m, known[3].binary(op, &le));
        put(&mut m, known[3].binary(op, &known[3]));
    }
    for value in [&f, &u, &i, &known[1]] {
        put(&mut m, Expr::new(value.ty(), Kind::Exchange((*value).clone(), 2)));
    }
    for value in [&u, &known[1]] {
        put(&mut m, value.half_to_float());
    }
    put(&mut m, f.fma(2.0, &f));
    put(&mut m, known[0].fma(2.0, 3.0));
    for value in loaded.iter().chain(&known) {
        put(&mut m, lt.select(value, value));
        put(&mut m, known[3].select(value, value));
        for ty in [Ty::F32, Ty::U32, Ty::I32] {
            put(&mut m, value.to(ty));
            if value.ty() != Ty::Bool {
                put(&mut m, value.bits(ty));
            }
        }
        put(&mut m, value.to(Ty::Bool));
    }
    let odd =
        [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x8000_0000, 1, 0x007f_ffff, 0x7f7f_ffff, 0x0080_0000, 0xbfc0_0000];
    for bits in odd {
        put(&mut m, f32::from_bits(bits).into());
        put(&mut m, &f * f32::from_bits(bits));
        put(&mut m, Expr::from(bits).bits(Ty::F32));
        put(&mut m, (bits as i32).into());
        put(&mut m, &i + bits as i32);
        put(&mut m, bits.into());
    }
    put(&mut m, Expr::from(i32::MAX) + 1);
    put(&mut m, Expr::from(1.0) / 0.0);
    let (switch, changing) = (m.name("switch", &u + 1u32), m.variable("switch", 3));
    m.count("loop", &switch, m.load(data, 3u32, Ty::U32), &u + 1u32, |m, index| {
        m.store(own, index.rem(3u32), m.get(changing));
        m.set(changing, m.load(own, 0u32, Ty::I32) * -1);
    });
    m.either(
        m.get(changing).lt(0),
        |m| m.fault(faults, &of),
        |m| {
            let inner = m.variable("inner", true);
            m.set(inner, u.eq(&of));
            m.store(data, 1u32, m.get(inner).select(1u32, 0u32));
        },
    );
    m.store(shared, m.thread(), &switch);
    m.barrier();
    let sum = m.group(0) + m.group(1) + m.group(2) + m.load(shared, 0u32, Ty::U32);
    put(&mut m, sum);
    m.finish()
}

/// Every function of [`math`], of one value and of a number.
fn functions() -> Kernel {
    let mut m = Maker::new("functions", 64);
    let data = m.buffer("data", true);
    let mut at = 0u32;
    for x in [m.load(data, m.thread(), Ty::F32), 0.75.into(), (-1e30).into(), f32::INFINITY.into(), f32::NAN.into()] {
        let mut put = |m: &mut Maker, value: Expr| {
            let value = if value.ty() == Ty::Bool { value.to(Ty::U32) } else { value };
            m.store(data, m.thread() + 64 * at, value);
            at += 1;
        };
        use math::*;
        for function in [exp, expm1, log, tanh, sigmoid, silu, softplus, erf, gelu, sin, cos, sqrt, recip, sign, relu] {
            let y = function(&mut m, &x);
            put(&mut m, y);
        }
        for function in [floor, round, trunc, round_f16, round_bf16, to_f16_bits, to_bf16_bits] {
            let y = function(&mut m, &x);
            put(&mut m, y);
        }
        let two = m.load(data, m.thread() + 64u32, Ty::F32);
        for function in [pow, min, max, eq, ne, lt, le, gt, ge] {
            let y = function(&mut m, &x, &two);
            put(&mut m, y);
            let y = function(&mut m, &x, &3.0.into());
            put(&mut m, y);
        }
        for function in [from_f16_bits, from_bf16_bits] {
            let y = function(&mut m, &x.bits(Ty::U32));
            put(&mut m, y);
        }
        put(&mut m, is_nan(&x));
    }
    m.finish()
}

/// Functions that came as text, of which one calls for a name that is taken.
fn given() -> Kernel {
    let mut m = Maker::new("given", 64);
    let data = m.buffer("data", true);
    let x = m.load(data, m.thread(), Ty::F32);
    let bump = Function {
        name: "custom_bump".into(),
        operands: 2,
        wgsl: "let height = x1;\nreturn height * exp(-x0 * x0);".into(),
        c: Some("return x1 * expf(-x0 * x0);".into()),
        run: Run(std::sync::Arc::new(|x| x[1] * (-x[0] * x[0]).exp())),
    };
    let same = Function { name: "data".into(), operands: 1, wgsl: "return x0;".into(), ..bump.clone() };
    let bumped = m.call(&bump, vec![x, 2.0.into()]);
    let again = m.call(&bump, vec![bumped, 3.0.into()]);
    let value = m.call(&same, vec![again]);
    m.store(data, m.thread(), value);
    m.finish()
}

/// A routine that came as text, with two results and readers of narrow floats and of whole numbers.
fn routine() -> Kernel {
    let mut m = Maker::new("routine", 64);
    let data = m.buffer("data", true);
    let (at, size) = (m.arg("at"), m.arg("size"));
    let mut readers = vec![];
    for narrow in [true, false] {
        let params = m.open_reader(2);
        let place = params[0].max(0i32).bits(Ty::U32).min(&size - 1u32) + params[1].bits(Ty::U32);
        let found = m.variable("found", 0.0f32);
        m.open_block();
        let word = m.load(data, &at + &place, Ty::U32);
        let value = if narrow { math::from_f16_bits(&mut m, &word) } else { word.bits(Ty::I32).to(Ty::F32) };
        m.set(found, value);
        m.close_when(place.ne(f32::INFINITY.to_bits()));
        let value = m.get(found);
        readers.push(m.close_reader(&params, value));
    }
    let routine = Routine {
        name: "custom_pair".into(),
        operands: vec!["at0".into(), "n".into()],
        readers,
        results: 2,
        wgsl: "if (at0 >= n) { return; }\nfor (var k = 0; k < n; k++) { y0 += x0(at0 - k, 0); }\ny1 = x1(at0, -1);"
            .into(),
        c: Some("if (at0 >= n) return;\nfor (int k = 0; k < n; k++) y0 += x0(at0 - k, 0);\ny1 = x1(at0, -1);".into()),
        run: Compute(std::sync::Arc::new(|_, _, _| Ok(()))),
    };
    let operands = vec![m.thread().bits(Ty::I32), size.bits(Ty::I32)];
    let results = m.routine(routine, operands);
    m.store(data, m.thread(), &results[0] + &results[1]);
    m.finish()
}

fn kernels() -> [Kernel; 7] {
    [map(), row_sum(), product(), everything(), functions(), given(), routine()]
}

#[test]
fn a_routine_that_came_as_text_stands_beside_its_readers_and_one_without_a_text_is_an_error_there() {
    let mut kernel = routine();
    let text = wgsl(&kernel, &Options::default());
    for part in ["fn x0(i0: i32, i1: i32) -> f32 {", "var<private> y1: f32;", "fn custom_pair(at0: i32, n: i32) {"] {
        assert_eq!(text.matches(part).count(), 1, "{part} in\n{text}");
    }
    let text = cuda(&kernel, &Options::default());
    for part in
        ["auto x0 = [&](int i0, int i1) -> float {", "float y1;", "auto custom_pair = [&](int at0, int n) -> void {"]
    {
        assert_eq!(text.matches(part).count(), 1, "{part} in\n{text}");
    }
    kernel.routine.as_mut().unwrap().c = None;
    let text = cuda(&kernel, &Options::default());
    assert!(text.contains("#error \"the routine custom_pair has no text in C\""), "{text}");
}

#[test]
fn a_function_that_came_as_text_is_written_once_and_one_without_a_text_is_an_error_there() {
    let kernel = given();
    assert_eq!(kernel.functions.len(), 2);
    let text = wgsl(&kernel, &Options::default());
    assert_eq!(text.matches("fn custom_bump(x0: f32, x1: f32) -> f32 {").count(), 1, "{text}");
    let text = cuda(&kernel, &Options::default());
    assert_eq!(text.matches("__device__ static float custom_bump(float x0, float x1) {").count(), 1, "{text}");
    let mut kernel = kernel;
    kernel.functions[0].c = None;
    let text = cuda(&kernel, &Options::default());
    assert!(text.contains("#error \"the function custom_bump has no text in C\""), "{text}");
}

#[test]
fn wgsl_is_valid_and_becomes_metal_and_spirv() {
    for kernel in kernels() {
        for unroll in [1, 16] {
            let text = wgsl(&kernel, &Options { unroll });
            keep(&kernel, unroll, "wgsl", &text);
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
            let mut validator =
                naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
            let info =
                validator.validate(&module).unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
            let (options, pipeline) =
                (naga::back::msl::Options::default(), naga::back::msl::PipelineOptions::default());
            let options = naga::back::msl::Options { fake_missing_bindings: true, ..options };
            let (metal, _) = naga::back::msl::write_string(&module, &info, &options, &pipeline).unwrap();
            assert!(metal.contains(&format!("kernel void {}", entry(&kernel))), "{metal}");
            let spirv = naga::back::spv::write_vec(&module, &info, &naga::back::spv::Options::default(), None).unwrap();
            assert_eq!(spirv[0], 0x0723_0203);
            let again = naga::back::wgsl::write_string(&module, &info, naga::back::wgsl::WriterFlags::empty()).unwrap();
            naga::front::wgsl::parse_str(&again).unwrap();
        }
    }
}

#[test]
fn cuda_has_balanced_blocks_and_every_buffer() {
    for kernel in kernels() {
        for unroll in [1, 16] {
            let text = cuda(&kernel, &Options { unroll });
            keep(&kernel, unroll, "cu", &text);
            assert_eq!(text.matches('{').count(), text.matches('}').count());
            assert_eq!(text.matches('(').count(), text.matches(')').count());
            for buffer in &kernel.buffers {
                let access = if buffer.written { "unsigned* " } else { "const unsigned* __restrict__ " };
                assert!(text.contains(&format!("{access}{}", buffer.name)), "{text}");
            }
        }
    }
}

/// For people and other compilers: the texts are written where `SCHWANN_KERNELS` says.
fn keep(kernel: &Kernel, unroll: u32, language: &str, text: &str) {
    if let Some(folder) = std::env::var_os("SCHWANN_KERNELS") {
        let file = std::path::Path::new(&folder).join(format!("{}-{unroll}.{language}", kernel.name));
        std::fs::write(file, text).unwrap();
    }
}

#[test]
fn names_are_no_words_of_wgsl() {
    for word in naga::keywords::wgsl::RESERVED.iter().filter(|word| !word.contains(|c: char| c.is_uppercase())) {
        assert_ne!(names::entry(word), *word);
    }
}

#[test]
fn loops_with_few_rounds_are_written_out() {
    let mut m = Maker::new("rounds", 1);
    let data = m.buffer("data", true);
    m.count("i", 0u32, 3u32, 1u32, |m, i| {
        m.count("j", 2u32, 9u32, 4u32, |m, j| {
            m.store(data, i.clone() + j, 0u32);
        });
    });
    let kernel = m.finish();
    let count = |unroll| {
        let text = wgsl(&kernel, &Options { unroll });
        (text.matches("for (").count(), text.matches("data[").count())
    };
    assert_eq!([count(1), count(2), count(5), count(6)], [(2, 1), (1, 2), (3, 3), (0, 6)]);
}
