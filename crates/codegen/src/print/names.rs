//! Names that are valid in every language.

use std::collections::HashSet;

/// Words that mean something in WGSL, C, C++, Metal or CUDA, or that the printers use. One list for all, so that a kernel has
/// the same names everywhere. Words with capitals are not needed, since names have none.
const RESERVED: &str = "
    abstract active alias alignas alignof and and_eq args array as asm asm_fragment async atomic atomic_bool atomic_int
    atomic_uint attribute auto await become binding bitand bitcast bitor bool break buffer builtin case cast catch cbuffer
    ceil char clamp class co_await co_return co_yield coherent column_major common compile compile_fragment compl complex
    concept const const_assert const_cast consteval constexpr constinit constant continue continuing coord crate decltype
    debugger default delete demote demote_to_helper device diagnostic discard do double dynamic_cast else enable end enum explicit export extends
    extern external f16 f32 fallthrough false fast filter final finally float float_bits float_to_i32 float_to_u32 fn for
    fragment friend from fxgroup get global goto group groupshared half highp i32 id if impl implements import imaginary
    inline inout instanceof int interface kernel layout let line lineadj long loop lowp macro macro_rules main mat match
    mediump meta metal mod module move mut mutable namespace new nil noexcept noinline nointerpolation non_coherent
    noncoherent noperspective not not_eq null nullptr of operator or or_eq override package packoffset partial partition pass patch
    pixelfragment point pos precise precision premerge priv private protected ptr pub public readonly ref regardless register
    reinterpret_cast require requires resource restrict return sampler self set shared short signed sizeof size_t smooth
    snorm stage static static_assert static_cast std storage struct subroutine super switch target template texture this
    thread thread_local threadgroup throw trait triangle true try type typedef typeid typename typeof u32 uint uniform union
    unless unorm unsafe unsigned unsized use ushort uchar using var varying vec vertex virtual visible void volatile
    wchar_t wgsl where while with workgroup workgroup_size writeonly xor xor_eq yield zero_bits

    abs acos acosh all any asin asinh atan atan2 atanh cbrt copysign cos cosh cross degrees distance dot erf erfc erfcx exp
    exp10 exp2 expm1 extract fabs fdim floor fma fmax fmin fmod fract frexp hypot insert inverse isinf isnan ldexp length
    lgamma log log10 log1p log2 max memcpy memset min mix modf nan normalize pow powr printf radians rcbrt reciprocal
    reflect refract remainder rhypot rint round rsqrt saturate select sign signbit sin sincos sinh sinpi sqrt step tan tanh
    tgamma transpose trunc y0 y1 yn j0 j1 jn exp2_fast tanh_fast half_to_float multiply_f16 multiply_bf16 pack_f16 pack_bf16 assert clock free malloc";

/// Whether it is a reserved word of a language.
fn reserved(name: &str) -> bool {
    RESERVED.split_whitespace().any(|word| word == name)
}

/// The name of a kernel's entry point: the kernel's own, unless that is a word of a language.
pub(super) fn entry(name: &str) -> String {
    Names::default().take(name)
}

/// Names that were given.
#[derive(Default)]
pub(super) struct Names(HashSet<String>);

impl Names {
    /// A name like this one that is neither reserved nor taken.
    pub(super) fn take(&mut self, like: &str) -> String {
        let plain = plain(like);
        let numbered = (2..).map(|number| format!("{plain}_{number}"));
        let mut free = std::iter::once(plain.clone()).chain(numbered).filter(|n| !reserved(n) && !self.0.contains(n));
        let name = free.next().unwrap_or_default();
        self.0.insert(name.clone());
        name
    }
}

/// Small letters, digits and single `_` between them, a letter first.
fn plain(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    let words = letters.collect::<String>().split_whitespace().collect::<Vec<_>>().join("_");
    if words.starts_with(|c: char| c.is_ascii_lowercase()) { words } else { format!("v{words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_that_nothing_else_has() {
        let mut names = Names::default();
        let given = ["x", "x", "target", "x_2", "3rd", "", "__a__B c", "größe", "x"].map(|name| names.take(name));
        assert_eq!(given, ["x", "x_2", "target_2", "x_2_2", "v3rd", "v", "a_b_c", "gr_e", "x_3"]);
        assert_eq!(["map_add", "move"].map(entry), ["map_add", "move_2"]);
    }
}
