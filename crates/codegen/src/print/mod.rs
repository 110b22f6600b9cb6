//! Kernels as text in the languages that drivers compile.
//!
//! One walk over the tree serves all languages: the walk is here, and how a language writes things is in its own file
//! (`Language`).

mod cuda;
mod names;
#[cfg(test)]
mod tests;
mod wgsl;

pub use cuda::{cuda, cuda_shared_bytes};
pub use wgsl::wgsl;

use crate::lang::{Array, Binary, Expr, Function, Half, Kernel, Kind, Memory, Routine, Stmt, Ty, Unary, Var};
use names::Names;

/// How a kernel is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Loops with constant bounds are unrolled, as long as no statement is written more often than this. Arrays of a
    /// thread stay in registers only if every index is known, and not all compilers unroll by themselves.
    pub unroll: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { unroll: 1 }
    }
}

/// The name of the entry point in all languages: the kernel's, unless that is a word of a language.
pub fn entry(kernel: &Kernel) -> String {
    names::entry(&kernel.name)
}

/// Text that a language adds if it is used.
struct Helper {
    /// The name that a kernel's text contains if it needs it.
    name: &'static str,
    /// Its definition.
    text: &'static str,
}

/// How a language writes things. Operands and results are texts that can be part of any expression, with brackets where
/// needed.
trait Language {
    /// A type's name.
    fn ty(&self, ty: Ty) -> &'static str;
    /// A number.
    fn number(&self, ty: Ty, bits: u32) -> String;
    /// A number that the compiler does not see as a constant, so that the device computes with it: compilers refuse
    /// constant expressions that overflow or give NaN.
    fn hidden(&self, ty: Ty, bits: u32) -> String {
        self.number(ty, bits)
    }
    /// The same bits as another type; not of truth values.
    fn bits(&self, from: Ty, to: Ty, x: &str) -> String;
    /// The number as another type.
    fn convert(&self, from: Ty, to: Ty, x: &str) -> String;
    /// A function of one operand of this type.
    fn unary(&self, op: Unary, ty: Ty, x: &str) -> String;
    /// A function of two operands of this type.
    fn binary(&self, op: Binary, ty: Ty, a: &str, b: &str) -> String;
    /// a · b + c
    fn fma(&self, a: &str, b: &str, c: &str) -> String;
    /// a where the condition holds, else b.
    fn select(&self, condition: &str, a: &str, b: &str) -> String;
    /// The `f16` in the lowest 16 bits of a word.
    fn half_to_float(&self, x: &str) -> String;
    /// The value of the thread whose number differs in this bit.
    fn exchange(&self, x: &str, bit: u32) -> String;
    /// Two floats as halves in one word.
    fn pack(&self, halves: Half, low: &str, high: &str) -> String;
    /// Lines that read elements of this type, which follow each other, at once under a name.
    fn load_many(&self, ty: Ty, name: &str, elements: &[String]) -> Vec<String>;
    /// One of the elements that were read under a name.
    fn one_of_many(&self, name: &str, number: usize) -> String;
    /// A line that adds a product of small matrices: the sums, and the words of both factors.
    fn multiply(&self, halves: Half, sums: &[&str], operands: &[String]) -> String;
    /// The thread's number.
    fn thread(&self) -> String;
    /// The workgroup's number along an axis.
    fn group(&self, axis: u8) -> String;
    /// A variable with its first value.
    fn declare(&self, ty: Ty, name: &str, changes: bool, value: &str) -> String;
    /// An array of the thread's own.
    fn own(&self, array: &Array, name: &str) -> String;
    /// A barrier.
    fn barrier(&self) -> &'static str;
    /// A function that was given as text, under this name.
    fn function(&self, function: &Function, name: &str) -> String;
    /// A reader: a function of these operands that does this and gives this.
    fn reader(&self, name: &str, params: &[String], body: &str, result: &str) -> String;
    /// A routine that was given as text, under this name, with the variables for its results.
    fn routine(&self, routine: &Routine, name: &str) -> String;
    /// The whole text.
    fn whole(&self, text: &Text) -> String;
}

/// The parts of a kernel's text.
struct Text<'a> {
    kernel: &'a Kernel,
    entry: &'a str,
    buffers: &'a [String],
    shared: &'a [String],
    /// The functions that the kernel brings along.
    functions: &'a str,
    /// Its routine, with the readers.
    routine: &'a str,
    body: &'a str,
}

impl Text<'_> {
    /// What the body needs of these, one after another.
    fn needed(&self, helpers: &[Helper]) -> String {
        let uses = |text: &str, h: &Helper| text.contains(h.name);
        helpers.iter().filter(|h| uses(self.body, h) || uses(self.routine, h)).map(|h| h.text).collect()
    }
}

/// The sign between two operands, where languages agree.
fn sign(op: Binary) -> Option<&'static str> {
    Some(match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::Rem => "%",
        Binary::And => "&",
        Binary::Or => "|",
        Binary::Xor => "^",
        Binary::Shl => "<<",
        Binary::Shr => ">>",
        Binary::Eq => "==",
        Binary::Ne => "!=",
        Binary::Lt => "<",
        Binary::Le => "<=",
        Binary::Min | Binary::Max => return None,
    })
}

/// A float that has a decimal text: the shortest that is read as the same bits. Not of infinities and NaN, of subnormal
/// numbers, which readers may take for 0, and of −0, whose sign they may drop.
fn decimal(bits: u32) -> Option<String> {
    let x = f32::from_bits(bits);
    let text = format!("{x:?}f");
    (bits == 0 || x.is_normal()).then(|| if x < 0.0 { format!("({text})") } else { text })
}

/// A text without outer brackets, for places that do not need them.
fn bare(text: &str) -> &str {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    // The first bracket must close at the very end.
    let mut depth = 0;
    let around = inner.is_some_and(|inner| {
        inner.chars().all(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth >= 0
        })
    });
    if around { inner.unwrap_or(text) } else { text }
}

fn print(kernel: &Kernel, language: &impl Language, options: &Options) -> String {
    let mut names = Names::default();
    let entry = names.take(&kernel.name);
    let mut take = |name: &String| names.take(name);
    let functions: Vec<String> = kernel.functions.iter().map(|f| take(&f.name)).collect();
    // What the text of a routine calls things by.
    let given = kernel.routine.iter().flat_map(|routine| (0..routine.readers.len()).map(reader_name));
    given.for_each(|name| drop(take(&name)));
    let routine_name = kernel.routine.as_ref().map(|routine| take(&routine.name)).unwrap_or_default();
    let buffers: Vec<String> = kernel.buffers.iter().map(|b| take(&b.name)).collect();
    let shared: Vec<String> = kernel.shared.iter().map(|a| take(&a.name)).collect();
    let own: Vec<String> = kernel.own.iter().map(|a| take(&a.name)).collect();
    let args: Vec<String> = kernel.args.iter().map(&mut take).collect();
    let vars = kernel.vars.iter().map(|v| take(&v.name)).collect();
    let declared = vec![false; kernel.vars.len()];
    let mut walk = Walk {
        kernel,
        language,
        names,
        functions,
        buffers,
        shared,
        own,
        args,
        vars,
        declared,
        routine_name,
        depth: 1,
        body: String::new(),
    };
    let routine = walk.routine();
    for (index, name) in walk.args.clone().iter().enumerate() {
        let word = format!("args[{index}]");
        walk.line(&format!("{};", language.declare(Ty::U32, name, false, &word)));
    }
    for (array, name) in kernel.own.iter().zip(walk.own.clone()) {
        walk.line(&format!("{};", language.own(array, &name)));
    }
    walk.block(&kernel.body, options.unroll);
    let named = kernel.functions.iter().zip(&walk.functions);
    let functions: String = named.map(|(function, name)| language.function(function, name)).collect();
    let (buffers, shared, body) = (&walk.buffers, &walk.shared, &walk.body);
    language.whole(&Text { kernel, entry: &entry, buffers, shared, functions: &functions, routine: &routine, body })
}

struct Walk<'a, L> {
    kernel: &'a Kernel,
    language: &'a L,
    names: Names,
    functions: Vec<String>,
    buffers: Vec<String>,
    shared: Vec<String>,
    own: Vec<String>,
    args: Vec<String>,
    vars: Vec<String>,
    /// Variables that have been declared, here or in a block around.
    declared: Vec<bool>,
    routine_name: String,
    depth: usize,
    body: String,
}

/// What a routine's text calls a reader.
fn reader_name(number: usize) -> String {
    format!("x{number}")
}

impl<L: Language> Walk<'_, L> {
    /// The kernel's routine and its readers.
    fn routine(&mut self) -> String {
        let Some(routine) = &self.kernel.routine else { return String::new() };
        // Readers stand outside of the kernel's body, where arguments have no names yet.
        let words = (0..self.args.len()).map(|index| format!("args[{index}]")).collect();
        let named = std::mem::replace(&mut self.args, words);
        let mut text = String::new();
        for (number, reader) in routine.readers.iter().enumerate() {
            let params: Vec<String> = reader.params.iter().map(|var| self.vars[var.0 as usize].clone()).collect();
            self.block(&reader.body, 1);
            let body = std::mem::take(&mut self.body);
            text += &self.language.reader(&reader_name(number), &params, &body, &self.vars[reader.result.0 as usize]);
        }
        self.args = named;
        text + &self.language.routine(routine, &self.routine_name)
    }

    fn line(&mut self, text: &str) {
        self.body.push_str(&"    ".repeat(self.depth));
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// A block; variables declared in it are not known after it.
    fn block(&mut self, stmts: &[Stmt], unroll: u32) {
        let before = self.declared.clone();
        for stmt in stmts {
            self.stmt(stmt, unroll);
        }
        self.declared = before;
    }

    /// The statements one step further in, after an opening line and before a closing one.
    fn inside(&mut self, first: &str, stmts: &[Stmt], unroll: u32) {
        self.line(first);
        self.depth += 1;
        self.block(stmts, unroll);
        self.depth -= 1;
    }

    fn stmt(&mut self, stmt: &Stmt, unroll: u32) {
        match stmt {
            Stmt::Set { var, value } => {
                let text = self.value(value);
                self.set(*var, bare(&text));
            }
            Stmt::LoadMany { vars, memory, index } => {
                let (words, count) = (self.names.take("words"), vars.len());
                let ty = match memory {
                    Memory::Buffer(_) => Ty::U32,
                    Memory::Shared(i) => self.kernel.shared[*i as usize].ty,
                    Memory::Part(i) => self.kernel.shared[self.kernel.parts[*i as usize].shared as usize].ty,
                    Memory::Own(i) => self.kernel.own[*i as usize].ty,
                };
                let element = |walk: &Self, number: u32| walk.element(*memory, &(index + number));
                let elements: Vec<String> = (0..count as u32).map(|number| element(self, number)).collect();
                for line in self.language.load_many(ty, &words, &elements) {
                    self.line(&line);
                }
                for (number, var) in vars.iter().enumerate() {
                    let into = self.kernel.vars[var.0 as usize].ty;
                    let word = self.language.one_of_many(&words, number);
                    let value = if into == ty { word } else { self.language.bits(ty, into, &word) };
                    self.set(*var, &value);
                }
            }
            Stmt::Multiply { halves, sums, a, b } => {
                let operands: Vec<String> = a.iter().chain(b).map(|pair| bare(&self.value(pair)).to_owned()).collect();
                let sums: Vec<&str> = sums.iter().map(|sum| &*self.vars[sum.0 as usize]).collect();
                let line = self.language.multiply(*halves, &sums, &operands);
                self.line(&line);
            }
            Stmt::Store { memory, index, value } => {
                let value = if let Memory::Buffer(_) = memory { self.bits(value, Ty::U32) } else { self.value(value) };
                let line = format!("{} = {};", self.element(*memory, index), bare(&value));
                self.line(&line);
            }
            Stmt::For { var, from, to, step, body } => self.count(*var, [from, to, step], body, unroll),
            Stmt::If { condition, then, otherwise } => {
                let condition = self.value(condition);
                self.inside(&format!("if ({}) {{", bare(&condition)), then, unroll);
                if !otherwise.is_empty() {
                    self.inside("} else {", otherwise, unroll);
                }
                self.line("}");
            }
            Stmt::Barrier => self.line(self.language.barrier()),
            Stmt::Fault { buffer, index } => {
                let one = self.language.number(Ty::U32, 1);
                let line = format!("{} = {one};", self.element(Memory::Buffer(*buffer), index));
                self.line(&line);
            }
            Stmt::Routine { operands, results } => {
                for number in 0..results.len() {
                    self.line(&format!("y{number} = {};", self.language.number(Ty::F32, 0)));
                }
                let operands: Vec<String> = operands.iter().map(|operand| self.value(operand)).collect();
                self.line(&format!("{}({});", self.routine_name, operands.join(", ")));
                for (number, var) in results.iter().enumerate() {
                    self.set(*var, &format!("y{number}"));
                }
            }
        }
    }

    fn set(&mut self, var: Var, value: &str) {
        let at = var.0 as usize;
        let variable = &self.kernel.vars[at];
        let line = if self.declared[at] {
            format!("{} = {value};", self.vars[at])
        } else {
            format!("{};", self.language.declare(variable.ty, &self.vars[at], variable.changes, value))
        };
        self.declared[at] = true;
        self.line(&line);
    }

    fn count(&mut self, var: Var, [from, to, step]: [&Expr; 3], body: &[Stmt], unroll: u32) {
        if let (Some(from), Some(to), Some(step @ 1..)) = (from.as_const(), to.as_const(), step.as_const()) {
            let rounds = to.saturating_sub(from).div_ceil(step);
            if rounds <= unroll {
                for round in 0..rounds {
                    self.line("{");
                    self.depth += 1;
                    let before = self.declared.clone();
                    self.set(var, &self.language.number(Ty::U32, from + round * step));
                    self.block(body, unroll / rounds);
                    self.declared = before;
                    self.depth -= 1;
                    self.line("}");
                }
                return;
            }
        }
        let name = self.vars[var.0 as usize].clone();
        let from = self.value(from);
        let to = self.once(to, &format!("{name}_to"));
        let step = self.once(step, &format!("{name}_step"));
        let first = self.language.declare(Ty::U32, &name, true, bare(&from));
        self.inside(&format!("for ({first}; {name} < {to}; {name} += {step}) {{"), body, unroll);
        self.line("}");
    }

    /// A value that is computed once, here.
    fn once(&mut self, value: &Expr, name: &str) -> String {
        let text = self.value(value);
        let stays = match value.kind() {
            Kind::Const(_) | Kind::Arg(_) | Kind::Thread | Kind::Group(_) => true,
            Kind::Var(var) => !self.kernel.vars[var.0 as usize].changes,
            _ => false,
        };
        if stays {
            return text;
        }
        let name = self.names.take(name);
        self.line(&format!("{};", self.language.declare(value.ty(), &name, false, bare(&text))));
        name
    }

    fn memory(&self, memory: Memory) -> &str {
        match memory {
            Memory::Buffer(i) => &self.buffers[i as usize],
            Memory::Shared(i) => &self.shared[i as usize],
            Memory::Part(i) => &self.shared[self.kernel.parts[i as usize].shared as usize],
            Memory::Own(i) => &self.own[i as usize],
        }
    }

    fn element(&self, memory: Memory, index: &Expr) -> String {
        let first = if let Memory::Part(i) = memory { self.kernel.parts[i as usize].first } else { 0 };
        let index = if first == 0 { index.clone() } else { index + first };
        format!("{}[{}]", self.memory(memory), bare(&self.value(&index)))
    }

    /// The same bits as another type; two opposite conversions cancel.
    fn bits(&self, value: &Expr, ty: Ty) -> String {
        match value.kind() {
            _ if value.ty() == ty => self.value(value),
            Kind::Bits(inner) => self.bits(inner, ty),
            Kind::Load(memory @ Memory::Buffer(_), index) if ty == Ty::U32 => self.element(*memory, index),
            _ => {
                let [text] = self.operands([value]);
                self.language.bits(value.ty(), ty, &text)
            }
        }
    }

    /// Operands of an operation. If all are constants, the first is hidden from the compiler.
    fn operands<const N: usize>(&self, operands: [&Expr; N]) -> [String; N] {
        let mut texts = operands.map(|operand| self.value(operand));
        if let Some(bits) = operands[0].as_const()
            && operands.iter().all(|operand| operand.as_const().is_some())
        {
            texts[0] = self.language.hidden(operands[0].ty(), bits);
        }
        texts
    }

    fn value(&self, value: &Expr) -> String {
        let language = self.language;
        match value.kind() {
            Kind::Const(bits) => language.number(value.ty(), *bits),
            Kind::Var(var) => self.vars[var.0 as usize].clone(),
            Kind::Arg(index) => self.args[*index as usize].clone(),
            Kind::Thread => language.thread(),
            Kind::Group(axis) => language.group(*axis),
            Kind::Load(memory, index) => {
                let element = self.element(*memory, index);
                match (memory, value.ty()) {
                    (Memory::Buffer(_), Ty::F32 | Ty::I32) => language.bits(Ty::U32, value.ty(), &element),
                    _ => element,
                }
            }
            Kind::Unary(op, a) => {
                let [text] = self.operands([a]);
                language.unary(*op, a.ty(), &text)
            }
            Kind::Binary(op, a, b) => {
                let [x, y] = self.operands([a, b]);
                language.binary(*op, a.ty(), &x, &y)
            }
            Kind::Fma(a, b, c) => {
                let [a, b, c] = self.operands([a, b, c]);
                language.fma(&a, &b, &c)
            }
            Kind::Select(condition, a, b) => {
                let [condition, a, b] = self.operands([condition, a, b]);
                language.select(&condition, &a, &b)
            }
            Kind::Bits(a) => self.bits(a, value.ty()),
            Kind::Convert(a) => {
                let [text] = self.operands([a]);
                language.convert(a.ty(), value.ty(), &text)
            }
            Kind::FromHalf(a) => {
                let [text] = self.operands([a]);
                language.half_to_float(bare(&text))
            }
            Kind::Pack(halves, a, b) => {
                let [a, b] = self.operands([a, b]);
                language.pack(*halves, bare(&a), bare(&b))
            }
            Kind::Exchange(a, bit) => language.exchange(bare(&self.value(a)), *bit),
            Kind::Call(function, operands) => {
                let operands: Vec<String> = operands.iter().map(|operand| self.value(operand)).collect();
                format!("{}({})", self.functions[*function as usize], operands.join(", "))
            }
        }
    }
}
