//! A text that reads what it likes of some values: the other thing in a kernel that only devices can read.

use super::{Stmt, Var};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What somebody wrote in the devices' own languages to compute one place of some results. It is given whole numbers, and
/// reads elements of values by calling readers, which are written in this language: so nothing else is within its reach, and
/// what it asks for beyond the end of a value is what its reader makes of that. It writes nothing but its results, so two
/// threads that run it cannot meet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Routine {
    /// Its name, for people; printers make it unique.
    pub name: String,
    /// What its operands are called in the text. They are `i32`.
    pub operands: Vec<String>,
    /// What it can read: `x0`, `x1` … in the text.
    pub readers: Vec<Reader>,
    /// How many results it has: `y0`, `y1` … in the text, which sets them. They are `f32`, and 0 before.
    pub results: u32,
    /// Its body in WGSL.
    pub wgsl: String,
    /// Its body in C, where there is one.
    pub c: Option<String>,
    /// What the interpreter does, which cannot read text.
    pub run: Compute,
}

/// A function that gives an element of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// The places along each axis that are asked for: variables of type `i32`, which hold any number.
    pub params: Vec<Var>,
    /// What it does: it sets variables, counts and branches, and its last statement sets the result.
    pub body: Vec<Stmt>,
    /// The result, an `f32`.
    pub result: Var,
}

/// Gives the element that a reader, by number, has at these places.
pub type Read<'a> = dyn FnMut(usize, &[i32]) -> f32 + 'a;

/// What runs in the place of a text: of its operands and readers it makes the results, or says why not.
pub type Computing = dyn Fn(&[i32], &mut Read<'_>, &mut [f32]) -> Result<(), String> + Send + Sync;

/// What a routine gives for its operands. Two routines with the same text are the same, whoever runs them.
#[derive(Clone)]
pub struct Compute(pub Arc<Computing>);

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compute")
    }
}
impl PartialEq for Compute {
    fn eq(&self, _: &Compute) -> bool {
        true
    }
}
impl Eq for Compute {}
impl Hash for Compute {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret::{self, Access, Words, Wrong};
    use crate::lang::{Kernel, Maker, Ty};
    use crate::verify;

    /// y[thread] = x[thread] + x[thread + 1], where a reader lets a place through if it is below `below`, else the last of 4.
    fn neighbours(below: u32) -> Kernel {
        let mut m = Maker::new("neighbours", 4);
        let x = m.buffer("x", false);
        let y = m.buffer("y", true);
        let params = m.open_reader(1);
        let place = params[0].bits(Ty::U32);
        let place = m.name("place", place.lt(below).select(&place, 3u32));
        let value = m.load(x, place, Ty::F32);
        let reader = m.close_reader(&params, value);
        let run = Compute(Arc::new(|at, read, y| {
            if at[0] > 100 {
                return Err("too far".into());
            }
            y[0] = read(0, at) + read(0, &[at[0] + 1]);
            Ok(())
        }));
        let (name, wgsl) = ("neighbours".into(), "y0 = x0(at0) + x0(at0 + 1);".into());
        let readers = vec![reader];
        let routine = Routine { name, operands: vec!["at0".into()], readers, results: 1, wgsl, c: None, run };
        let results = m.routine(routine, vec![m.thread().bits(Ty::I32)]);
        m.store(y, m.thread(), &results[0]);
        m.finish()
    }

    fn run(kernel: &Kernel, x: &mut Words) -> Result<Vec<f32>, Wrong> {
        verify::verify(kernel).unwrap();
        let mut y = Words::new(4);
        let options = interpret::Options::default();
        match interpret::run(kernel, [1, 1, 1], &[], &mut [x, &mut y], &options) {
            Ok(_) => Ok(y.floats()),
            Err(finding) => Err(finding.found().unwrap().wrong.clone()),
        }
    }

    #[test]
    fn what_stands_for_a_text_reads_by_its_readers_and_these_are_watched() {
        let x = || Words::of_floats(&[1.0, 2.0, 4.0, 8.0]);
        assert_eq!(run(&neighbours(4), &mut x()), Ok(vec![3.0, 6.0, 12.0, 16.0]));
        // A reader with a wrong bound is found out, and so is one of what nobody wrote.
        let wrong = run(&neighbours(5), &mut x()).unwrap_err();
        assert_eq!(wrong, Wrong::Outside { memory: "buffer `x`".into(), index: 4, len: 4, access: Access::Read });
        let wrong = run(&neighbours(4), &mut Words::new(4)).unwrap_err();
        assert_eq!(wrong, Wrong::Unwritten { memory: "buffer `x`".into(), index: 0 });
    }

    #[test]
    fn what_stands_for_a_text_may_fail_and_says_why() {
        let mut kernel = neighbours(4);
        if let Some(Stmt::Routine { operands, .. }) = kernel.body.first_mut() {
            operands[0] = 101i32.into();
        }
        let wrong = run(&kernel, &mut Words::of_floats(&[0.0; 4])).unwrap_err();
        assert_eq!(wrong, Wrong::Routine { name: "neighbours".into(), problem: "too far".into() });
    }

    #[test]
    fn a_reader_only_reads() {
        let problem = |change: &dyn Fn(&mut Reader)| {
            let mut kernel = neighbours(4);
            change(&mut kernel.routine.as_mut().unwrap().readers[0]);
            verify::verify(&kernel).unwrap_err().to_string()
        };
        for problem in [problem(&|reader| reader.body.push(Stmt::Barrier)), problem(&|reader| reader.body.clear())] {
            assert!(problem.contains("a reader of the routine"), "{problem}");
        }
        let mut kernel = neighbours(4);
        kernel.routine = None;
        assert!(verify::verify(&kernel).unwrap_err().to_string().contains("there is no routine"));
        let mut kernel = neighbours(4);
        if let Some(Stmt::Routine { operands, .. }) = kernel.body.first_mut() {
            operands.clear();
        }
        let problem = verify::verify(&kernel).unwrap_err().to_string();
        assert!(problem.contains("`neighbours` is given 0 operands: expected 1"), "{problem}");
    }
}
