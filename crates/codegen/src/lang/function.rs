//! Functions that come as text in a device's language: the only part of a kernel that the interpreter cannot read.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A function of single-precision numbers, written by a user in the languages of devices. It is pure: its result
/// depends only on its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, for people; printers make it unique.
    pub name: String,
    /// How many operands it has: `x0`, `x1` … in the text.
    pub operands: u32,
    /// Its body in WGSL.
    pub wgsl: String,
    /// Its body in C, where there is one.
    pub c: Option<String>,
    /// What the interpreter runs instead of the text.
    pub run: Run,
}

/// A Rust function that stands for a text.
pub type Body = dyn Fn(&[f32]) -> f32 + Send + Sync;

/// The Rust form of a function. It does not count in comparisons: two functions with the same text are equal.
#[derive(Clone)]
pub struct Run(pub Arc<Body>);

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}
impl PartialEq for Run {
    fn eq(&self, _: &Run) -> bool {
        true
    }
}
impl Eq for Run {}
impl Hash for Run {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret;
    use crate::lang::{Maker, Ty};

    #[test]
    fn a_function_that_came_as_text_is_run_by_what_stands_for_it() {
        let mut m = Maker::new("given", 8);
        let y = m.buffer("y", true);
        let run = Run(Arc::new(|x| x[0] * 10.0 + x[1]));
        let function = Function { name: "given".into(), operands: 2, wgsl: String::new(), c: None, run };
        let value = m.call(&function, vec![m.thread().to(Ty::F32), 0.5.into()]);
        m.when(m.thread().lt(3u32), |m| m.store(y, m.thread(), value));
        let mut out = interpret::Words::new(3);
        interpret::run(&m.finish(), [1, 1, 1], &[], &mut [&mut out], &interpret::Options::default()).unwrap();
        assert_eq!(out.floats(), [0.5, 10.5, 20.5]);
    }
}
