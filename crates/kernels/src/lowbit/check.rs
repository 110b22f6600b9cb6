//! Which way integer products are computed: the fastest that gives the defined bits on this machine.
//!
//! Integer products promise the same bits everywhere, so each way is tried once before its first use, on every kind of
//! code, with random and with extreme numbers.

use super::int::{self, Kernels};
use super::plan::{integer_product_by, scratch_bytes};
use super::{Code, Matrix, PackedLowBit, Parts, round_row};
use crate::gemm::{B, Gemm, Store};
use crate::simd::Level;
use crate::tuning::{MachineClass, Tuning};
use crate::{Isa, Team};
use std::sync::OnceLock;

/// The way that an instruction set's products take, and why faster ones were passed over.
pub(super) struct Choice {
    pub(super) kernels: &'static Kernels,
    pub(super) passed_over: Option<String>,
}

fn choice(isa: Isa) -> &'static Choice {
    static PORTABLE: OnceLock<Choice> = OnceLock::new();
    #[cfg(target_arch = "aarch64")]
    static NEON: OnceLock<Choice> = OnceLock::new();
    #[cfg(target_arch = "x86_64")]
    static AVX: [OnceLock<Choice>; 2] = [const { OnceLock::new() }; 2];
    let place = match isa.level {
        Level::Portable => &PORTABLE,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => &NEON,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &AVX[0],
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &AVX[1],
    };
    place.get_or_init(|| choose(isa, int::all(isa)))
}

/// The first of these that passes its test, or plain Rust.
pub(super) fn choose(isa: Isa, candidates: Vec<&'static Kernels>) -> Choice {
    let mut problems = Vec::new();
    for kernels in candidates {
        match test(isa, kernels) {
            Ok(()) => return Choice { kernels, passed_over: (!problems.is_empty()).then(|| problems.join("; ")) },
            Err(problem) => problems.push(problem),
        }
    }
    Choice { kernels: &int::PLAIN_RUST, passed_over: Some(problems.join("; ")) }
}

/// The kernels of integer products.
pub(super) fn integer_kernels(isa: Isa) -> &'static Kernels {
    choice(isa).kernels
}

/// How integer products are computed with this instruction set, such as `avx512 vnni`; and why not in a faster way, if one
/// failed its test.
pub fn integer_path(isa: Isa) -> (&'static str, Option<&'static str>) {
    let choice = choice(isa);
    (choice.kernels.name, choice.passed_over.as_deref())
}

/// Compares every way to compute integer products that this instruction set has with their definition; the error says
/// which one differs, and where.
pub fn self_test(isa: Isa) -> Result<(), String> {
    int::all(isa).into_iter().try_for_each(|kernels| test(isa, kernels))
}

/// How codes and activations of a test are chosen.
#[derive(Clone, Copy, Debug)]
enum Data {
    Random,
    /// The largest codes, and activations of one sign.
    Largest,
    /// The smallest codes, and activations of alternating sign.
    Smallest,
}

fn test(isa: Isa, kernels: &'static Kernels) -> Result<(), String> {
    for code in Code::ALL {
        for data in [Data::Random, Data::Largest, Data::Smallest] {
            // A full panel and part of one on every instruction set; whole, shorter and single blocks; all tiles of rows.
            for (rows, n, k, block, offsets) in
                [(1, 83, 100, 32, false), (11, 70, 67, 33, true), (6, 64, 160, 160, false)]
            {
                compare(isa, kernels, code, data, [rows, n, k, block], offsets)?;
            }
        }
    }
    Ok(())
}

fn compare(
    isa: Isa,
    kernels: &'static Kernels,
    code: Code,
    data: Data,
    [m, n, k, block]: [usize; 4],
    with_offsets: bool,
) -> Result<(), String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (m * n * k) as u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let mut code_byte = || match (data, code) {
        (Data::Random, Code::Ternary4) => (0..4).map(|j| ((random() % 3) << (2 * j)) as u8).sum(),
        (Data::Random, Code::Ternary5) => (random() % 243) as u8,
        (Data::Random, _) => random() as u8,
        (Data::Largest, Code::Ternary4) => 0xaa,
        (Data::Largest, Code::Ternary5) => 242,
        (Data::Largest, _) => 255,
        (Data::Smallest, _) => 0,
    };
    let codes: Vec<u8> = (0..n * code.row_bytes(k)).map(|_| code_byte()).collect();
    let mut float = || (random() % 2001) as f32 / 1000.0 - 1.0;
    let mut floats = || (0..n * k.div_ceil(block)).flat_map(|_| float().to_ne_bytes()).collect::<Vec<u8>>();
    let (scales, offsets) = (floats(), floats());
    let x: Vec<f32> = (0..m * k)
        .map(|i| match data {
            Data::Random => float(),
            Data::Largest => 1.0,
            Data::Smallest => [1.0, -1.0][i % 2],
        })
        .collect();
    let offsets = with_offsets.then_some(&offsets[..]);
    let matrix = Matrix::new(Parts {
        code,
        n,
        k,
        block,
        codes: &codes,
        store: Store::F32,
        scale_rows: n,
        scales: &scales,
        offsets,
    })?;
    let b = PackedLowBit::new(isa, &matrix)?;
    let tuning = Tuning::for_machine(MachineClass::Portable);
    let mut c = vec![0.0f32; m * n];
    let g = Gemm {
        m,
        n,
        k,
        a: x.as_ptr().cast(),
        a_store: Store::F32,
        a_row_stride: k,
        a_col_stride: 1,
        a_rest: None,
        b: B::LowBit { b: &b, rounded: true, next: None },
        c: c.as_mut_ptr().cast(),
        c_store: Store::F32,
        c_row_stride: n,
        add: None,
        bias: None,
        row_bias: None,
        epilogue: None,
    };
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "written through pointers")] [u8; 64]);
    let mut scratch = vec![Line([0; 64]); scratch_bytes(&tuning, m, &b, true) / 64];
    // SAFETY: A and C have these sizes, the matrix was packed for the instruction set, which `kernels` belong to, and the
    // scratch is as large as one thread needs it.
    unsafe { integer_product_by(kernels, &tuning, Team::solo(), &g, &b, scratch.as_mut_ptr().cast()) };
    for row in 0..m {
        let (q, step) = round_row(&x[row * k..(row + 1) * k]);
        for column in 0..n {
            let (got, wanted) = (c[row * n + column], matrix.integer_product(column, &q, step));
            if got.to_bits() != wanted.to_bits() {
                return Err(format!(
                    "integer products by {} are wrong: {code:?}, {data:?} numbers, {m} × {n} × {k} in blocks of {block}: row \
                     {row}, column {column} is {got}, not {wanted}",
                    kernels.name
                ));
            }
        }
    }
    Ok(())
}
