//! Makes kernels, statement by statement.

use super::{
    Array, Buffer, Expr, Function, Half, Kernel, Kind, Memory, Part, Reader, Routine, Stmt, Ty, Var, Variable,
};

/// A kernel under construction.
#[derive(Clone, Debug)]
pub struct Maker {
    kernel: Kernel,
    /// The blocks that are open, from the outside in.
    open: Vec<Vec<Stmt>>,
}

impl Maker {
    /// A kernel of this name, with this many threads in a workgroup.
    pub fn new(name: impl Into<String>, threads: u32) -> Maker {
        let (buffers, args, shared, parts) = (vec![], vec![], vec![], vec![]);
        let (own, functions, vars, body) = (vec![], vec![], vec![], vec![]);
        let (name, routine) = (name.into(), None);
        let kernel = Kernel { name, threads, buffers, args, shared, parts, own, functions, routine, vars, body };
        Maker { kernel, open: vec![vec![]] }
    }

    /// The kernel.
    pub fn finish(mut self) -> Kernel {
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }

    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.kernel.threads
    }

    /// Another buffer.
    pub fn buffer(&mut self, name: &str, written: bool) -> Memory {
        self.kernel.buffers.push(Buffer { name: name.into(), written });
        Memory::Buffer(self.kernel.buffers.len() as u32 - 1)
    }
    /// Another argument.
    pub fn arg(&mut self, name: impl Into<String>) -> Expr {
        self.kernel.args.push(name.into());
        Expr::new(Ty::U32, Kind::Arg(self.kernel.args.len() as u32 - 1))
    }
    /// How many arguments there are by now.
    pub fn args(&self) -> usize {
        self.kernel.args.len()
    }
    /// Another shared array.
    pub fn shared(&mut self, name: &str, ty: Ty, len: u32) -> Memory {
        self.kernel.shared.push(Array { name: name.into(), ty, len });
        Memory::Shared(self.kernel.shared.len() as u32 - 1)
    }
    /// A part of a shared array: `len` elements, from `first` on.
    pub fn part(&mut self, name: &str, of: Memory, first: u32, len: u32) -> Memory {
        let Memory::Shared(shared) = of else { return of };
        self.kernel.parts.push(Part { name: name.into(), shared, first, len, mixed: false });
        Memory::Part(self.kernel.parts.len() as u32 - 1)
    }
    /// Lets every part be read where another one was written last.
    pub fn mix_parts(&mut self) {
        self.kernel.parts.iter_mut().for_each(|part| part.mixed = true);
    }
    /// What the elements of a shared array are.
    pub fn shared_type(&self, number: u32) -> Ty {
        self.kernel.shared[number as usize].ty
    }
    /// Another array for each thread.
    pub fn own(&mut self, name: &str, ty: Ty, len: u32) -> Memory {
        self.kernel.own.push(Array { name: name.into(), ty, len });
        Memory::Own(self.kernel.own.len() as u32 - 1)
    }

    /// A function that is given as text, of these operands.
    pub fn call(&mut self, function: &Function, operands: Vec<Expr>) -> Expr {
        let functions = &mut self.kernel.functions;
        let number = functions.iter().position(|known| known == function).unwrap_or_else(|| {
            functions.push(function.clone());
            functions.len() - 1
        });
        Expr::new(Ty::F32, Kind::Call(number as u32, operands))
    }

    /// Begins a reader of a value with so many axes; what follows is its body, up to [`Maker::close_reader`]. Gives the places
    /// that are asked for, which may be any numbers.
    pub fn open_reader(&mut self, axes: usize) -> Vec<Expr> {
        self.open.push(vec![]);
        (0..axes).map(|axis| Expr::new(Ty::I32, Kind::Var(self.declare(&format!("i{axis}"), Ty::I32, false)))).collect()
    }
    /// Ends the reader that was begun, with the element that it found.
    pub fn close_reader(&mut self, params: &[Expr], value: impl Into<Expr>) -> Reader {
        let value = value.into();
        let result = self.declare("element", Ty::F32, false);
        self.push(Stmt::Set { var: result, value });
        let var = |param: &Expr| if let Kind::Var(var) = *param.kind() { Some(var) } else { None };
        Reader { params: params.iter().filter_map(var).collect(), body: self.open.pop().unwrap_or_default(), result }
    }
    /// Runs a routine, which becomes the kernel's, and gives its results.
    pub fn routine(&mut self, routine: Routine, operands: Vec<Expr>) -> Vec<Expr> {
        let results: Vec<Var> = (0..routine.results).map(|_| self.declare("y", Ty::F32, false)).collect();
        self.kernel.routine = Some(Box::new(routine));
        let values = results.iter().map(|var| Expr::new(Ty::F32, Kind::Var(*var))).collect();
        self.push(Stmt::Routine { operands, results });
        values
    }

    /// The thread's number in its workgroup.
    pub fn thread(&self) -> Expr {
        Expr::new(Ty::U32, Kind::Thread)
    }
    /// The workgroup's number along an axis.
    pub fn group(&self, axis: u8) -> Expr {
        Expr::new(Ty::U32, Kind::Group(axis))
    }
    /// The element at an index, as this type.
    pub fn load(&self, memory: Memory, index: impl Into<Expr>, ty: Ty) -> Expr {
        Expr::new(ty, Kind::Load(memory, index.into()))
    }

    fn push(&mut self, stmt: Stmt) {
        if let Some(block) = self.open.last_mut() {
            block.push(stmt);
        }
    }
    fn declare(&mut self, name: &str, ty: Ty, changes: bool) -> Var {
        self.kernel.vars.push(Variable { name: name.into(), ty, changes });
        Var(self.kernel.vars.len() as u32 - 1)
    }

    /// The sum over `lanes` neighbouring threads (a power of two), which all of them get: in steps over 1, 2, 4 … threads, so
    /// that the order of additions is always the same. All threads of the workgroup must reach it.
    pub fn sum_over_lanes(&mut self, value: impl Into<Expr>, lanes: u32) -> Expr {
        let mut sum = self.name("sum", value);
        let mut bit = 1;
        while bit < lanes {
            let other = Expr::new(sum.ty(), Kind::Exchange(sum.clone(), bit));
            sum = self.name("sum", sum + other);
            bit *= 2;
        }
        sum
    }

    /// Stores a value in a variable, so that it is computed once. Variables and constants stay as they are.
    pub fn name(&mut self, name: &str, value: impl Into<Expr>) -> Expr {
        let value = value.into();
        if matches!(value.kind(), Kind::Const(_) | Kind::Arg(_) | Kind::Thread | Kind::Group(_)) {
            return value;
        }
        if let Kind::Var(var) = value.kind()
            && !self.kernel.vars[var.0 as usize].changes
        {
            return value;
        }
        let ty = value.ty();
        let var = self.declare(name, ty, false);
        self.push(Stmt::Set { var, value });
        Expr::new(ty, Kind::Var(var))
    }
    /// A variable that can be set again.
    pub fn variable(&mut self, name: &str, first: impl Into<Expr>) -> Var {
        let first = first.into();
        let var = self.declare(name, first.ty(), true);
        self.push(Stmt::Set { var, value: first });
        var
    }
    /// What a variable holds where this is used.
    pub fn get(&self, var: Var) -> Expr {
        Expr::new(self.kernel.vars[var.0 as usize].ty, Kind::Var(var))
    }
    /// Sets a variable again.
    pub fn set(&mut self, var: Var, value: impl Into<Expr>) {
        self.push(Stmt::Set { var, value: value.into() });
    }
    /// Two or four elements that follow each other, read at once; the index of the first is a multiple of how many they are.
    pub fn load_many<const N: usize>(
        &mut self,
        name: &str,
        memory: Memory,
        index: impl Into<Expr>,
        ty: Ty,
    ) -> [Expr; N] {
        let vars = [(); N].map(|()| self.declare(name, ty, false));
        self.push(Stmt::LoadMany { vars: vars.to_vec(), memory, index: index.into() });
        vars.map(|var| Expr::new(ty, Kind::Var(var)))
    }
    /// Adds a product of small matrices to the sums.
    pub fn multiply(&mut self, halves: Half, sums: [Var; 4], a: [Expr; 4], b: [Expr; 2]) {
        self.push(Stmt::Multiply { halves, sums, a, b });
    }
    /// Writes an element.
    pub fn store(&mut self, memory: Memory, index: impl Into<Expr>, value: impl Into<Expr>) {
        self.push(Stmt::Store { memory, index: index.into(), value: value.into() });
    }
    /// All threads wait for each other.
    pub fn barrier(&mut self) {
        self.push(Stmt::Barrier);
    }
    /// All threads wait for each other before the loop that was begun last and has not ended yet.
    pub fn barrier_before_loop(&mut self) {
        if let [.., around, _] = &mut self.open[..] {
            around.push(Stmt::Barrier);
        }
    }
    /// Reports a fault, by its number.
    pub fn fault(&mut self, memory: Memory, index: impl Into<Expr>) {
        if let Memory::Buffer(buffer) = memory {
            self.push(Stmt::Fault { buffer, index: index.into() });
        }
    }

    /// For each number from `from`, below `to`, by `step`.
    pub fn count(
        &mut self,
        name: &str,
        from: impl Into<Expr>,
        to: impl Into<Expr>,
        step: impl Into<Expr>,
        body: impl FnOnce(&mut Maker, Expr),
    ) {
        let var = self.open_count(name);
        body(self, var.clone());
        self.close_count(&var, from, to, step);
    }
    /// Begins a loop, for callers that cannot use the closure of [`Maker::count`]. What follows is its body; the result
    /// is the loop's variable.
    pub fn open_count(&mut self, name: &str) -> Expr {
        let var = self.declare(name, Ty::U32, false);
        self.open.push(vec![]);
        Expr::new(Ty::U32, Kind::Var(var))
    }
    /// Ends the loop that was begun last, and says how far it goes.
    pub fn close_count(&mut self, var: &Expr, from: impl Into<Expr>, to: impl Into<Expr>, step: impl Into<Expr>) {
        let body = self.open.pop().unwrap_or_default();
        if let Kind::Var(var) = *var.kind() {
            self.push(Stmt::For { var, from: from.into(), to: to.into(), step: step.into(), body });
        }
    }
    /// Begins a block that is done under a condition.
    pub fn open_block(&mut self) {
        self.open.push(vec![]);
    }
    /// Ends the block that was begun last, and says when it is done.
    pub fn close_when(&mut self, condition: impl Into<Expr>) {
        let then = self.open.pop().unwrap_or_default();
        self.push(Stmt::If { condition: condition.into(), then, otherwise: vec![] });
    }
    /// Ends the two blocks that were begun last: the first is done if the condition holds, the second if not.
    pub fn close_either(&mut self, condition: impl Into<Expr>) {
        let otherwise = self.open.pop().unwrap_or_default();
        let then = self.open.pop().unwrap_or_default();
        self.push(Stmt::If { condition: condition.into(), then, otherwise });
    }
    /// If the condition holds.
    pub fn when(&mut self, condition: impl Into<Expr>, then: impl FnOnce(&mut Maker)) {
        self.either(condition, then, |_| ());
    }
    /// One of two, by the condition.
    pub fn either(
        &mut self,
        condition: impl Into<Expr>,
        then: impl FnOnce(&mut Maker),
        otherwise: impl FnOnce(&mut Maker),
    ) {
        self.open.push(vec![]);
        then(self);
        let then = self.open.pop().unwrap_or_default();
        self.open.push(vec![]);
        otherwise(self);
        let otherwise = self.open.pop().unwrap_or_default();
        let condition = condition.into();
        self.push(Stmt::If { condition, then, otherwise });
    }
}
