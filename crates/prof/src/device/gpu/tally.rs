//! What the threads of a kernel do, counted from the kernel itself.
//!
//! The kernel is walked as one thread would walk it, without computing any float: only what decides how often a loop turns
//! has to be known. Arguments are, and so are tables of synapses, which lie among the constants. A loop that holds no
//! other is counted once and multiplied; of one that holds others, a few turns are looked at. Where it cannot be told how
//! often a loop turns, that is an error, and the kernel has no price.

use schwann_codegen::lang::{Binary, Expr, Kernel, Kind, Memory, Stmt, Ty, Unary, Var};
use schwann_codegen::visit::{expressions, identity, operands};
use schwann_gpu::program::{Argument, Base, CONSTANTS, Dispatch};
use std::collections::HashMap;
use std::ops::AddAssign;

/// Turns of a loop that are looked at, where it holds other loops.
const TURNS: u32 = 2;
/// Threads of a workgroup that are looked at.
const THREADS: u32 = 8;
/// Whole numbers are divided in about so many operations.
const INTEGER_DIVISION: f64 = 8.0;

/// What one thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Additions, multiply-adds, comparisons and the like of floats.
    pub floats: f64,
    /// The same of whole numbers: mostly places in memory.
    pub integers: f64,
    /// Exponentials, roots, reciprocals and divisions.
    pub functions: f64,
    /// Reads of the workgroup's memory.
    pub shared: f64,
    /// Reads of buffers.
    pub loads: f64,
    /// Writes to either.
    pub stores: f64,
    /// Waits for the other threads of the workgroup.
    pub barriers: f64,
}

impl Tally {
    fn times(self, n: f64) -> Tally {
        let Tally { floats, integers, functions, shared, loads, stores, barriers } = self;
        Tally {
            floats: floats * n,
            integers: integers * n,
            functions: functions * n,
            shared: shared * n,
            loads: loads * n,
            stores: stores * n,
            barriers: barriers * n,
        }
    }

    /// Everything, for comparing branches.
    fn all(&self) -> f64 {
        self.floats + self.integers + self.functions + self.shared + self.loads + self.stores + self.barriers
    }

    /// Of each kind the greater.
    fn most(self, other: Tally) -> Tally {
        Tally {
            floats: self.floats.max(other.floats),
            integers: self.integers.max(other.integers),
            functions: self.functions.max(other.functions),
            shared: self.shared.max(other.shared),
            loads: self.loads.max(other.loads),
            stores: self.stores.max(other.stores),
            barriers: self.barriers.max(other.barriers),
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.floats += other.floats;
        self.integers += other.integers;
        self.functions += other.functions;
        self.shared += other.shared;
        self.loads += other.loads;
        self.stores += other.stores;
        self.barriers += other.barriers;
    }
}

/// What the threads of a dispatch's first workgroup do: the busiest, and the average one. An error says which loop turns
/// nobody knows how often.
pub fn tally(kernel: &Kernel, dispatch: &Dispatch, constants: &[u32]) -> Result<[Tally; 2], String> {
    let given = kernel.functions.first().map(|function| &function.name);
    if let Some(name) = given.or(kernel.routine.as_ref().map(|routine| &routine.name)) {
        return Err(format!("nobody knows what the function `{name}` costs"));
    }
    let args: Vec<Option<u32>> = dispatch.args.iter().map(known).collect();
    let threads = kernel.threads.max(1);
    let looked_at = threads.min(THREADS);
    let (mut most, mut sum) = (Tally::default(), Tally::default());
    for number in 0..looked_at {
        let thread = (u64::from(number) * u64::from(threads) / u64::from(looked_at)) as u32;
        let mut walk = Walk { kernel, args: &args, constants, thread, values: HashMap::new(), own: HashMap::new() };
        let found = walk.block(&kernel.body)?;
        most = most.most(found);
        sum += found;
    }
    Ok([most, sum.times(1.0 / f64::from(looked_at))])
}

/// An argument's value where it does not depend on where a stream has its memory.
fn known(argument: &Argument) -> Option<u32> {
    match argument.base {
        Base::Number(n) | Base::Constant(n) => Some(n),
        Base::Scratch(_) | Base::Input(..) | Base::Output(..) => None,
    }
}

struct Walk<'a> {
    kernel: &'a Kernel,
    args: &'a [Option<u32>],
    constants: &'a [u32],
    thread: u32,
    /// What variables hold that are set once, where that is known.
    values: HashMap<Var, u32>,
    /// What a statement does, without those in it.
    own: HashMap<*const Stmt, Tally>,
}

impl Walk<'_> {
    fn block(&mut self, body: &[Stmt]) -> Result<Tally, String> {
        let mut all = Tally::default();
        for stmt in body {
            all += self.statement(stmt)?;
        }
        Ok(all)
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<Tally, String> {
        let mut done = *self.own.entry(std::ptr::from_ref(stmt)).or_insert_with(|| own(stmt));
        match stmt {
            Stmt::Set { var, value } => {
                let changes = self.kernel.vars.get(var.0 as usize).is_none_or(|v| v.changes);
                match self.value(value).filter(|_| !changes) {
                    Some(number) => self.values.insert(*var, number),
                    None => self.values.remove(var),
                };
            }
            Stmt::For { var, from, to, step, body } => {
                let name = || self.kernel.vars.get(var.0 as usize).map_or("?", |v| v.name.as_str());
                let unknown = || format!("how often its loop over `{}` turns is known only in a run", name());
                let (from, to) = (self.value(from).ok_or_else(unknown)?, self.value(to).ok_or_else(unknown)?);
                let step = self.value(step).ok_or_else(unknown)?.max(1);
                let turns = to.saturating_sub(from).div_ceil(step);
                let nested = body.iter().any(|s| matches!(s, Stmt::For { .. } | Stmt::If { .. }));
                let looked_at = if nested { turns.min(TURNS) } else { turns.min(1) };
                let mut sum = Tally::default();
                for turn in 0..looked_at {
                    let number = (u64::from(turn) * u64::from(turns) / u64::from(looked_at)) as u32;
                    self.values.insert(*var, from + number * step);
                    sum += self.block(body)?;
                }
                self.values.remove(var);
                if looked_at > 0 {
                    done += sum.times(f64::from(turns) / f64::from(looked_at));
                }
                // A turn costs a count and a comparison.
                done.integers += 2.0 * f64::from(turns);
            }
            Stmt::If { condition, then, otherwise } => match self.value(condition) {
                Some(0) => done += self.block(otherwise)?,
                Some(_) => done += self.block(then)?,
                None => {
                    let (a, b) = (self.block(then)?, self.block(otherwise)?);
                    done += if a.all() >= b.all() { a } else { b };
                }
            },
            Stmt::Store { .. }
            | Stmt::LoadMany { .. }
            | Stmt::Multiply { .. }
            | Stmt::Barrier
            | Stmt::Fault { .. }
            | Stmt::Routine { .. } => {}
        }
        Ok(done)
    }

    /// A whole number or truth value, where it is known.
    fn value(&self, expr: &Expr) -> Option<u32> {
        self.evaluate(expr, &mut HashMap::new())
    }

    fn evaluate(&self, expr: &Expr, seen: &mut HashMap<*const Kind, Option<u32>>) -> Option<u32> {
        if expr.ty() == Ty::F32 {
            return None;
        }
        if let Some(found) = seen.get(&identity(expr)) {
            return *found;
        }
        let mut of = |e: &Expr| self.evaluate(e, seen);
        let found = match expr.kind() {
            Kind::Const(bits) => Some(*bits),
            Kind::Var(var) => self.values.get(var).copied(),
            Kind::Arg(number) => self.args.get(*number as usize).copied().flatten(),
            Kind::Thread => Some(self.thread),
            Kind::Group(_) => Some(0),
            Kind::Load(Memory::Buffer(CONSTANTS), at) => of(at).and_then(|at| self.constants.get(at as usize).copied()),
            Kind::Load(..) | Kind::Fma(..) | Kind::Call(..) | Kind::FromHalf(_) | Kind::Pack(..) => None,
            Kind::Exchange(..) => None,
            Kind::Unary(Unary::Not, a) if expr.ty() == Ty::Bool => of(a).map(|a| u32::from(a == 0)),
            Kind::Unary(Unary::Not, a) => of(a).map(|a| !a),
            Kind::Unary(..) => None,
            Kind::Bits(a) => of(a),
            Kind::Convert(a) => (a.ty() != Ty::F32).then(|| of(a)).flatten(),
            Kind::Select(c, a, b) => match of(c)? {
                0 => of(b),
                _ => of(a),
            },
            Kind::Binary(op, a, b) if a.ty() != Ty::I32 => match (of(a), of(b)) {
                (Some(a), Some(b)) => binary(*op, a, b),
                _ => None,
            },
            Kind::Binary(..) => None,
        };
        seen.insert(identity(expr), found);
        found
    }
}

fn binary(op: Binary, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.checked_div(b)?,
        Binary::Rem => a.checked_rem(b)?,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a.checked_shl(b)?,
        Binary::Shr => a.checked_shr(b)?,
        Binary::Eq => u32::from(a == b),
        Binary::Ne => u32::from(a != b),
        Binary::Lt => u32::from(a < b),
        Binary::Le => u32::from(a <= b),
    })
}

/// What a statement's own expressions do.
fn own(stmt: &Stmt) -> Tally {
    let mut done = Tally::default();
    expressions(stmt, &mut |expr| {
        let float = expr.ty() == Ty::F32 || operands(expr).any(|o| o.ty() == Ty::F32);
        let mut plain = |n: f64| if float { done.floats += n } else { done.integers += n };
        match expr.kind() {
            Kind::Const(_) | Kind::Var(_) | Kind::Arg(_) | Kind::Thread | Kind::Group(_) | Kind::Bits(_) => {}
            Kind::Load(Memory::Shared(_) | Memory::Part(_), _) => done.shared += 1.0,
            Kind::Load(Memory::Buffer(_), _) => done.loads += 1.0,
            Kind::Load(Memory::Own(_), _) => {}
            Kind::Unary(Unary::Sqrt | Unary::Exp2 | Unary::Recip | Unary::Tanh, _) => done.functions += 1.0,
            Kind::Binary(Binary::Div, ..) if float => done.functions += 1.0,
            Kind::Binary(Binary::Div | Binary::Rem, ..) => plain(INTEGER_DIVISION),
            Kind::Unary(..) | Kind::Binary(..) | Kind::Fma(..) | Kind::Select(..) => plain(1.0),
            Kind::Convert(_) | Kind::FromHalf(_) | Kind::Pack(..) => plain(1.0),
            // It takes about as long as a read of the workgroup's memory.
            Kind::Exchange(..) => done.shared += 1.0,
            // A kernel with functions of the user's own is not counted at all.
            Kind::Call(..) => {}
        }
    });
    match stmt {
        Stmt::Store { memory: Memory::Shared(_) | Memory::Part(_) | Memory::Buffer(_), .. } => done.stores += 1.0,
        Stmt::Barrier => done.barriers += 1.0,
        Stmt::LoadMany { vars, memory: Memory::Shared(_) | Memory::Part(_), .. } => done.shared += vars.len() as f64,
        Stmt::LoadMany { vars, memory: Memory::Buffer(_), .. } => done.loads += vars.len() as f64,
        // 2048 products and sums by 32 threads.
        Stmt::Multiply { .. } => done.floats += 64.0,
        _ => {}
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_codegen::lang::Maker;

    fn dispatch(args: Vec<Argument>) -> Dispatch {
        Dispatch { kernel: 0, groups: [1, 1, 1], args, place: vec![0], walk: None }
    }

    #[test]
    fn a_loop_counts_as_often_as_its_argument_says() {
        let mut m = Maker::new("sum", 32);
        let arena = m.buffer("arena", true);
        let (at, n) = (m.arg("at"), m.arg("n"));
        let sum = m.variable("sum", 0.0f32);
        let x = m.load(arena, &at + 1u32, Ty::F32);
        let k = m.open_count("k");
        let next = x.fma(&x, m.get(sum));
        m.set(sum, next);
        m.close_count(&k, 0u32, n, 1u32);
        m.barrier();
        let value = m.get(sum);
        m.store(arena, at, value);
        let kernel = m.finish();
        let args = vec![Base::Output(0, 0).into(), 100u32.into()];
        let [most, mean] = tally(&kernel, &dispatch(args), &[]).unwrap();
        assert_eq!((most.floats, most.loads, most.barriers, most.stores), (100.0, 100.0, 1.0, 1.0), "{most:?}");
        assert_eq!(most, mean, "all threads do the same");
        // How often is not known: it depends on where a stream has its memory.
        let args = vec![Base::Output(0, 0).into(), Base::Output(0, 0).into()];
        let why = tally(&kernel, &dispatch(args), &[]).unwrap_err();
        assert!(why.contains("`k`") && why.contains("known only in a run"), "{why}");
    }

    #[test]
    fn tables_among_the_constants_are_looked_up() {
        let mut m = Maker::new("lists", 4);
        let (arena, constants) = (m.buffer("arena", true), m.buffer("constants", false));
        let table = m.arg("table");
        let thread = m.thread();
        let begin = m.load(constants, &table + &thread, Ty::U32);
        let end = m.load(constants, &table + &thread + 1u32, Ty::U32);
        let e = m.open_count("e");
        m.store(arena, &e, 0u32);
        m.close_count(&e, begin, end, 1u32);
        let kernel = m.finish();
        let [most, mean] = tally(&kernel, &dispatch(vec![Base::Constant(1).into()]), &[9, 0, 2, 2, 10, 16]).unwrap();
        assert_eq!((most.stores, mean.stores), (8.0, 4.0), "2, 0, 8 and 6 synapses");
    }
}
