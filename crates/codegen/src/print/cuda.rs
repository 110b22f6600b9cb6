//! CUDA C++, without any header: what NVRTC compiles as it is.

use super::{Helper, Language, Options, Text, decimal, print, sign};
use crate::lang::{Array, Binary, Function, Half, Kernel, Routine, Ty, Unary};
use std::fmt::Write;

/// The kernel as CUDA C++. Its parameters are the buffers in their order, and then the arguments, if there are any, as a
/// structure of so many words. The arrays that a workgroup shares are in the memory that is given at the launch, of
/// [`cuda_shared_bytes`].
pub fn cuda(kernel: &Kernel, options: &Options) -> String {
    print(kernel, &Cuda, options)
}

/// The words at which shared arrays begin, each at a multiple of 16 bytes, and where the last of them ends.
fn shared_places(kernel: &Kernel) -> (Vec<u32>, u32) {
    let mut end = 0u32;
    let mut places = vec![];
    for array in &kernel.shared {
        places.push(end);
        end = end.saturating_add(array.len.next_multiple_of(4));
    }
    (places, end)
}

/// Bytes of shared memory that a launch of the kernel needs.
pub fn cuda_shared_bytes(kernel: &Kernel) -> u32 {
    shared_places(kernel).1.saturating_mul(4)
}

struct Cuda;

/// What the hardware has for 2ᵃ, 1/a and the value of an f16, as one instruction each.
const FUNCTIONS: [Helper; 8] = [
    Helper {
        name: "tanh_fast(",
        text: "static __device__ __forceinline__ float tanh_fast(float x) {
    float y;
    asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));
    return y;
}
",
    },
    Helper {
        name: "multiply_f16(",
        text: "static __device__ __forceinline__ void multiply_f16(float& s0, float& s1, float& s2, float& s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm(\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\" : \"+f\"(s0), \"+f\"(s1), \"+f\"(s2), \"+f\"(s3) : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"r\"(b0), \"r\"(b1));
}
",
    },
    Helper {
        name: "multiply_bf16(",
        text: "static __device__ __forceinline__ void multiply_bf16(float& s0, float& s1, float& s2, float& s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\" : \"+f\"(s0), \"+f\"(s1), \"+f\"(s2), \"+f\"(s3) : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"r\"(b0), \"r\"(b1));
}
",
    },
    Helper {
        name: "pack_f16(",
        text: "static __device__ __forceinline__ unsigned pack_f16(float low, float high) {
    unsigned y;
    asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(high), \"f\"(low));
    return y;
}
",
    },
    Helper {
        name: "pack_bf16(",
        text: "static __device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned y;
    asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(high), \"f\"(low));
    return y;
}
",
    },
    Helper {
        name: "half_to_float(",
        text: "static __device__ __forceinline__ float half_to_float(unsigned short x) {
    float y;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(y) : \"h\"(x));
    return y;
}
",
    },
    Helper {
        name: "exp2_fast(",
        text: "static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));
    return y;
}
",
    },
    Helper {
        name: "reciprocal(",
        text: "static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));
    return y;
}
",
    },
];

/// A type of 16 bits in the names of functions.
fn half(halves: Half) -> &'static str {
    match halves {
        Half::F16 => "f16",
        Half::Bf16 => "bf16",
    }
}

impl Language for Cuda {
    fn ty(&self, ty: Ty) -> &'static str {
        match ty {
            Ty::F32 => "float",
            Ty::U32 => "unsigned",
            Ty::I32 => "int",
            Ty::Bool => "bool",
        }
    }

    fn number(&self, ty: Ty, bits: u32) -> String {
        match ty {
            Ty::F32 => decimal(bits).unwrap_or_else(|| format!("__uint_as_float({bits:#x}u)")),
            Ty::U32 => format!("{bits}u"),
            Ty::I32 if (bits as i32) < 0 => format!("(int){bits}u"),
            Ty::I32 => bits.to_string(),
            Ty::Bool => (bits != 0).to_string(),
        }
    }

    fn bits(&self, from: Ty, to: Ty, x: &str) -> String {
        match (from, to) {
            (Ty::F32, Ty::I32) => format!("__float_as_int({x})"),
            (Ty::F32, _) => format!("__float_as_uint({x})"),
            (Ty::I32, Ty::F32) => format!("__int_as_float({x})"),
            (_, Ty::F32) => format!("__uint_as_float({x})"),
            _ => format!("({})({x})", self.ty(to)),
        }
    }

    fn convert(&self, from: Ty, to: Ty, x: &str) -> String {
        match (from, to) {
            // These truncate, saturate, and give 0 for NaN.
            (Ty::F32, Ty::I32) => format!("__float2int_rz({x})"),
            (Ty::F32, Ty::U32) => format!("__float2uint_rz({x})"),
            (Ty::I32, Ty::F32) => format!("__int2float_rn({x})"),
            (Ty::U32, Ty::F32) => format!("__uint2float_rn({x})"),
            _ => format!("({})({x})", self.ty(to)),
        }
    }

    fn unary(&self, op: Unary, ty: Ty, x: &str) -> String {
        match op {
            Unary::Neg if ty == Ty::I32 => format!("(int)(0u - (unsigned)({x}))"),
            Unary::Neg => format!("(-{x})"),
            Unary::Not => format!("(~{x})"),
            Unary::Abs => format!("fabsf({x})"),
            Unary::Sqrt => format!("__fsqrt_rn({x})"),
            Unary::Floor => format!("floorf({x})"),
            Unary::Round => format!("rintf({x})"),
            Unary::Trunc => format!("truncf({x})"),
            Unary::Exp2 => format!("exp2_fast({x})"),
            Unary::Recip => format!("reciprocal({x})"),
            Unary::Tanh => format!("tanh_fast({x})"),
        }
    }

    fn binary(&self, op: Binary, ty: Ty, a: &str, b: &str) -> String {
        match (sign(op), op) {
            // Signed numbers that overflow are undefined in C; unsigned ones wrap.
            (Some(sign), Binary::Add | Binary::Sub | Binary::Mul | Binary::Shl) if ty == Ty::I32 => {
                format!("(int)((unsigned)({a}) {sign} (unsigned)({b}))")
            }
            (Some(sign), _) => format!("({a} {sign} {b})"),
            (None, Binary::Min) if ty == Ty::F32 => format!("fminf({a}, {b})"),
            (None, _) if ty == Ty::F32 => format!("fmaxf({a}, {b})"),
            (None, Binary::Min) => format!("min({a}, {b})"),
            (None, _) => format!("max({a}, {b})"),
        }
    }

    fn fma(&self, a: &str, b: &str, c: &str) -> String {
        format!("__fmaf_rn({a}, {b}, {c})")
    }

    fn select(&self, condition: &str, a: &str, b: &str) -> String {
        format!("({condition} ? {a} : {b})")
    }

    fn half_to_float(&self, x: &str) -> String {
        format!("half_to_float((unsigned short)({x}))")
    }

    fn exchange(&self, x: &str, bit: u32) -> String {
        format!("__shfl_xor_sync(0xffffffffu, {x}, {bit})")
    }

    fn pack(&self, halves: Half, low: &str, high: &str) -> String {
        format!("pack_{}({low}, {high})", half(halves))
    }

    fn load_many(&self, ty: Ty, name: &str, elements: &[String]) -> Vec<String> {
        let many = match ty {
            Ty::F32 => "float",
            Ty::I32 => "int",
            Ty::U32 | Ty::Bool => "uint",
        };
        let first = elements.first().map_or("", String::as_str);
        let ty = format!("{many}{}", elements.len());
        vec![format!("const {ty} {name} = *reinterpret_cast<const {ty}*>(&{first});")]
    }

    fn one_of_many(&self, name: &str, number: usize) -> String {
        format!("{name}.{}", ["x", "y", "z", "w"][number.min(3)])
    }

    fn multiply(&self, halves: Half, sums: &[&str], operands: &[String]) -> String {
        format!("multiply_{}({}, {});", half(halves), sums.join(", "), operands.join(", "))
    }

    fn thread(&self) -> String {
        "threadIdx.x".into()
    }

    fn group(&self, axis: u8) -> String {
        format!("blockIdx.{}", ["x", "y", "z"][usize::from(axis.min(2))])
    }

    fn declare(&self, ty: Ty, name: &str, changes: bool, value: &str) -> String {
        format!("{}{} {name} = {value}", if changes { "" } else { "const " }, self.ty(ty))
    }

    fn own(&self, array: &Array, name: &str) -> String {
        format!("{} {name}[{}]", self.ty(array.ty), array.len)
    }

    fn barrier(&self) -> &'static str {
        "__syncthreads();"
    }

    fn function(&self, function: &Function, name: &str) -> String {
        let Some(body) = &function.c else {
            // A text that makes the compiler report the problem.
            return format!("#error \"the function {} has no text in C\"\n", function.name);
        };
        let operands: Vec<String> = (0..function.operands).map(|k| format!("float x{k}")).collect();
        format!("__device__ static float {name}({}) {{\n    {}\n}}\n", operands.join(", "), body.trim())
    }

    fn reader(&self, name: &str, params: &[String], body: &str, result: &str) -> String {
        // Within the kernel, whose buffers and arguments nobody else sees.
        let params: Vec<String> = params.iter().map(|param| format!("int {param}")).collect();
        format!("    auto {name} = [&]({}) -> float {{\n{body}    return {result};\n    }};\n", params.join(", "))
    }

    fn routine(&self, routine: &Routine, name: &str) -> String {
        let Some(body) = &routine.c else {
            return format!("#error \"the routine {} has no text in C\"\n", routine.name);
        };
        let results: String = (0..routine.results).map(|number| format!("    float y{number};\n")).collect();
        let operands: Vec<String> = routine.operands.iter().map(|operand| format!("int {operand}")).collect();
        let operands = operands.join(", ");
        format!("{results}    auto {name} = [&]({operands}) -> void {{\n    {}\n    }};\n", body.trim())
    }

    fn whole(&self, text: &Text) -> String {
        // No thread writes to buffers that are only read, so the compiler may keep what it loaded from them. Where tiles fill the
        // registers it must not: it would keep more than there is room for.
        let restrict = if text.kernel.multiplies() { "" } else { "__restrict__ " };
        let kept = |name: &str| format!("const unsigned* {restrict}{name}");
        let buffers = text.kernel.buffers.iter().zip(text.buffers);
        let mut parameters: Vec<String> = buffers
            .map(|(buffer, name)| if buffer.written { format!("unsigned* {name}") } else { kept(name) })
            .collect();
        let (mut words, mut first) = (String::new(), String::new());
        if !text.kernel.args.is_empty() {
            // Arguments that are parameters are operands of instructions; they need not be loaded.
            let _ = writeln!(words, "struct Words {{ unsigned word[{}]; }};", text.kernel.args.len());
            parameters.push("const __grid_constant__ Words Given".into());
            first += "    const unsigned* const args = Given.word;\n";
        }
        if !text.kernel.shared.is_empty() {
            first += "    extern __shared__ __align__(16) unsigned Shared[];\n";
        }
        let (places, _) = shared_places(text.kernel);
        for ((array, name), place) in text.kernel.shared.iter().zip(text.shared).zip(places) {
            let ty = self.ty(array.ty);
            let _ = writeln!(first, "    {ty}* const {name} = reinterpret_cast<{ty}*>(Shared + {place});");
        }
        let (functions, threads, entry, body) = (text.needed(&FUNCTIONS), text.kernel.threads, text.entry, text.body);
        let parameters = parameters.join(", ");
        format!(
            "{functions}{words}{}extern \"C\" __global__ void __launch_bounds__({threads}) {entry}({parameters}) {{\n{first}{}{body}}}\n",
            text.functions, text.routine
        )
    }
}
