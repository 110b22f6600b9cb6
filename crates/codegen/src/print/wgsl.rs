//! WGSL, the language of WebGPU; by way of naga it is also what Metal, Vulkan and DirectX get.

use super::{Helper, Language, Options, Text, decimal, print, sign};
use crate::lang::{Array, Binary, Function, Half, Kernel, Routine, Ty, Unary};
use std::fmt::Write;

/// The kernel as WGSL. Buffers are bound in group 0 in their order, and after the last one the arguments, if there are any.
pub fn wgsl(kernel: &Kernel, options: &Options) -> String {
    print(kernel, &Wgsl, options)
}

struct Wgsl;

/// From float to integer: implementations differ beyond the range and for NaN. The largest floats below 2³¹ and 2³² can be
/// converted everywhere.
const FUNCTIONS: [Helper; 2] = [
    Helper {
        name: "float_to_i32(",
        text: "
fn float_to_i32(x: f32) -> i32 {
    let within = i32(clamp(x, -2147483648.0f, 2147483520.0f));
    let number = select(within, 2147483647i, x >= 2147483648.0f);
    return select(number, 0i, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}
",
    },
    Helper {
        name: "float_to_u32(",
        text: "
fn float_to_u32(x: f32) -> u32 {
    let within = u32(clamp(x, 0.0f, 4294967040.0f));
    let number = select(within, 4294967295u, x >= 4294967296.0f);
    return select(number, 0u, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}
",
    },
];

/// The compiler evaluates expressions of literals, and refuses an overflow, an infinity or a NaN. With a variable in
/// them, the device evaluates them.
const HEAD: [Helper; 1] = [Helper { name: "zero_bits", text: "    var zero_bits: u32 = 0u;\n" }];

impl Language for Wgsl {
    fn ty(&self, ty: Ty) -> &'static str {
        match ty {
            Ty::F32 => "f32",
            Ty::U32 => "u32",
            Ty::I32 => "i32",
            Ty::Bool => "bool",
        }
    }

    fn number(&self, ty: Ty, bits: u32) -> String {
        match ty {
            Ty::F32 => decimal(bits).unwrap_or_else(|| self.hidden(ty, bits)),
            Ty::U32 => format!("{bits}u"),
            // The smallest has no literal: it would be the negative of a number that is out of range.
            Ty::I32 if bits == 1 << 31 => "i32(-2147483648)".into(),
            Ty::I32 if (bits as i32) < 0 => format!("({}i)", bits as i32),
            Ty::I32 => format!("{bits}i"),
            Ty::Bool => (bits != 0).to_string(),
        }
    }

    fn hidden(&self, ty: Ty, bits: u32) -> String {
        match ty {
            Ty::U32 => format!("({bits:#x}u | zero_bits)"),
            Ty::Bool => format!("(zero_bits {} 0u)", if bits != 0 { "==" } else { "!=" }),
            Ty::F32 | Ty::I32 => self.bits(Ty::U32, ty, &self.hidden(Ty::U32, bits)),
        }
    }

    fn bits(&self, _: Ty, to: Ty, x: &str) -> String {
        format!("bitcast<{}>({x})", self.ty(to))
    }

    fn convert(&self, from: Ty, to: Ty, x: &str) -> String {
        match (from, to) {
            (Ty::F32, Ty::I32) => format!("float_to_i32({x})"),
            (Ty::F32, Ty::U32) => format!("float_to_u32({x})"),
            _ => format!("{}({x})", self.ty(to)),
        }
    }

    fn unary(&self, op: Unary, _: Ty, x: &str) -> String {
        match op {
            Unary::Neg => format!("(-{x})"),
            Unary::Not => format!("(~{x})"),
            Unary::Abs => format!("abs({x})"),
            Unary::Sqrt => format!("sqrt({x})"),
            Unary::Floor => format!("floor({x})"),
            Unary::Round => format!("round({x})"),
            Unary::Trunc => format!("trunc({x})"),
            Unary::Exp2 => format!("exp2({x})"),
            Unary::Recip => format!("(1.0f / {x})"),
            Unary::Tanh => format!("tanh({x})"),
        }
    }

    fn binary(&self, op: Binary, _: Ty, a: &str, b: &str) -> String {
        match (sign(op), op) {
            (Some(sign), _) => format!("({a} {sign} {b})"),
            (None, Binary::Min) => format!("min({a}, {b})"),
            (None, _) => format!("max({a}, {b})"),
        }
    }

    fn fma(&self, a: &str, b: &str, c: &str) -> String {
        format!("fma({a}, {b}, {c})")
    }

    fn select(&self, condition: &str, a: &str, b: &str) -> String {
        format!("select({b}, {a}, {condition})")
    }

    fn half_to_float(&self, x: &str) -> String {
        format!("unpack2x16float({x}).x")
    }

    // The standard wants `enable subgroups;` at the top for it; naga does not know that line and does without.
    fn exchange(&self, x: &str, bit: u32) -> String {
        format!("subgroupShuffleXor({x}, {bit}u)")
    }

    fn pack(&self, halves: Half, low: &str, high: &str) -> String {
        match halves {
            Half::F16 => format!("pack2x16float(vec2<f32>({low}, {high}))"),
            // Nothing here is rounded to bf16 in pairs but factors of products, which WGSL has not.
            Half::Bf16 => format!("no_pairs_of_bf16({low}, {high})"),
        }
    }

    fn load_many(&self, _: Ty, name: &str, elements: &[String]) -> Vec<String> {
        elements.iter().enumerate().map(|(number, element)| format!("let {name}_{number} = {element};")).collect()
    }

    fn one_of_many(&self, name: &str, number: usize) -> String {
        format!("{name}_{number}")
    }

    fn multiply(&self, _: Half, sums: &[&str], operands: &[String]) -> String {
        // A text that makes the compiler report the problem: a device whose language this is has no such products.
        format!("no_products_of_matrices({}, {});", sums.join(", "), operands.join(", "))
    }

    fn thread(&self) -> String {
        "thread".into()
    }

    fn group(&self, axis: u8) -> String {
        format!("group.{}", ["x", "y", "z"][usize::from(axis.min(2))])
    }

    fn declare(&self, ty: Ty, name: &str, changes: bool, value: &str) -> String {
        format!("{} {name}: {} = {value}", if changes { "var" } else { "let" }, self.ty(ty))
    }

    fn own(&self, array: &Array, name: &str) -> String {
        format!("var {name}: array<{}, {}>", self.ty(array.ty), array.len)
    }

    fn barrier(&self) -> &'static str {
        "storageBarrier(); workgroupBarrier();"
    }

    fn function(&self, function: &Function, name: &str) -> String {
        let operands: Vec<String> = (0..function.operands).map(|k| format!("x{k}: f32")).collect();
        format!("fn {name}({}) -> f32 {{\n    {}\n}}\n", operands.join(", "), function.wgsl.trim())
    }

    fn reader(&self, name: &str, params: &[String], body: &str, result: &str) -> String {
        let params: Vec<String> = params.iter().map(|param| format!("{param}: i32")).collect();
        let head: String = HEAD.iter().filter(|h| body.contains(h.name)).map(|h| h.text).collect();
        format!("fn {name}({}) -> f32 {{\n{head}{body}    return {result};\n}}\n", params.join(", "))
    }

    fn routine(&self, routine: &Routine, name: &str) -> String {
        let mut out = String::new();
        for number in 0..routine.results {
            let _ = writeln!(out, "var<private> y{number}: f32;");
        }
        let operands: Vec<String> = routine.operands.iter().map(|operand| format!("{operand}: i32")).collect();
        let _ = writeln!(out, "fn {name}({}) {{\n    {}\n}}", operands.join(", "), routine.wgsl.trim());
        out
    }

    fn whole(&self, text: &Text) -> String {
        let mut out = String::new();
        let mut bind = |index: usize, access: &str, name: &str| {
            let _ = writeln!(out, "@group(0) @binding({index}) var<storage, {access}> {name}: array<u32>;");
        };
        for (index, (buffer, name)) in text.kernel.buffers.iter().zip(text.buffers).enumerate() {
            bind(index, if buffer.written { "read_write" } else { "read" }, name);
        }
        if !text.kernel.args.is_empty() {
            bind(text.buffers.len(), "read", "args");
        }
        for (array, name) in text.kernel.shared.iter().zip(text.shared) {
            let _ = writeln!(out, "var<workgroup> {name}: array<{}, {}>;", self.ty(array.ty), array.len);
        }
        let (functions, head) = (text.needed(&FUNCTIONS), text.needed(&HEAD));
        let (threads, entry, own, body) = (text.kernel.threads, text.entry, text.functions, text.body);
        let routine = text.routine;
        let _ = write!(
            out,
            "{functions}{own}{routine}
@compute @workgroup_size({threads})
fn {entry}(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {{
{head}{body}}}
"
        );
        out
    }
}
