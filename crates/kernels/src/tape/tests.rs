//! Small tapes of every call: what runs gives what plain loops give, and what lies is refused.

mod changing;
mod lowbit;
mod refusals;
mod runs;
mod watch;

use super::*;
use crate::attention::Attention;
use crate::exact::{IntOp, IntReduce};
use crate::gemm::Store;
use crate::map::{Binary, Elem, Instr, Program, Unary};
use crate::reduce::Reduce;
use crate::tuning::{finest, on};
use std::sync::atomic::AtomicUsize;

/// An arena under construction, with values already in it.
#[derive(Default)]
struct Board {
    data: Vec<u8>,
}

impl Board {
    fn room(&mut self, bytes: usize) -> Ref {
        let offset = self.data.len();
        self.data.resize((offset + bytes).next_multiple_of(ARENA_ALIGN), 0xAA);
        Ref { slot: 0, offset, len: bytes }
    }
    fn bytes(&mut self, bytes: &[u8]) -> Ref {
        let at = self.room(bytes.len());
        self.data[at.offset..at.offset + at.len].copy_from_slice(bytes);
        at
    }
    fn floats(&mut self, values: &[f32]) -> Ref {
        self.bytes(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }
    fn ints(&mut self, values: &[i32]) -> Ref {
        self.bytes(&values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>())
    }
    fn memory(&self) -> Memory {
        Memory { arena: self.data.len(), ..Memory::default() }
    }
    /// Why one call is refused, on the portable path with two threads.
    #[track_caller]
    fn refused(&self, call: Call) -> String {
        match Tape::new(on(Isa::PORTABLE), 2, self.memory(), vec![call]) {
            Ok(tape) => panic!("{:?} was let through", tape.calls),
            Err(why) => why,
        }
    }
    #[track_caller]
    fn accepted(&self, call: Call) {
        Tape::new(on(Isa::PORTABLE), 2, self.memory(), vec![call]).unwrap();
    }
    /// Runs calls on every instruction set, on one to three threads, and tuned in two ways.
    #[track_caller]
    fn run(&self, calls: impl Fn(Isa, usize) -> Vec<Call>, check: impl Fn(&Memories)) {
        for &isa in Isa::available() {
            for (threads, machine) in (1..=3).flat_map(|threads| [(threads, on(isa)), (threads, finest(isa))]) {
                let tape = Tape::new(machine, threads, self.memory(), calls(isa, threads)).unwrap();
                let team = Team::with_tuning(threads, machine.tuning).unwrap();
                let mut arena = Aligned::new(&self.data);
                let mut frame = tape.frame();
                tape.run(&mut frame, &team, arena.get(), [], [], None, &AtomicBool::new(false)).unwrap();
                let tuned = if machine == on(isa) { "as usual" } else { "finely" };
                let what = format!("{isa}, {threads} threads, tuned {tuned}");
                check(&Memories { arena: arena.get().to_vec(), what });
            }
        }
    }
}

/// Bytes that start at a multiple of 64.
struct Aligned {
    data: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Aligned {
        let mut data = vec![0; bytes.len() + ARENA_ALIGN];
        let start = data.as_ptr().align_offset(ARENA_ALIGN);
        data[start..start + bytes.len()].copy_from_slice(bytes);
        Aligned { data, start, len: bytes.len() }
    }
    fn get(&mut self) -> &mut [u8] {
        &mut self.data[self.start..self.start + self.len]
    }
}

/// What a run left in the arena.
struct Memories {
    arena: Vec<u8>,
    what: String,
}

impl Memories {
    fn words(&self, r: &Ref) -> Vec<[u8; 4]> {
        let bytes = &self.arena[r.offset..r.offset + r.len];
        bytes.chunks_exact(4).map(|c| c.try_into().unwrap()).collect()
    }
    #[track_caller]
    fn floats(&self, r: &Ref, want: &[f32]) {
        let got: Vec<f32> = self.words(r).into_iter().map(f32::from_ne_bytes).collect();
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(
                (got - want).abs() <= 1e-5 * want.abs().max(1.0),
                "{}: element {i} is {got}, not {want}",
                self.what
            );
        }
    }
    #[track_caller]
    fn ints(&self, r: &Ref, want: &[i32]) {
        let got: Vec<i32> = self.words(r).into_iter().map(i32::from_ne_bytes).collect();
        assert_eq!(got, want, "{}", self.what);
    }
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 64) as f32 / 16.0 - 2.0).collect()
}

/// More than any small call needs on three threads.
const SCRATCH: usize = 4 << 20;

fn dense_matrix(at: Ref, rows: usize, cols: usize) -> Strided {
    Strided { at, store: Store::F32, batch: rows * cols, row: cols, col: 1 }
}

/// input 0 · input 1 + 1
fn product_plus_one() -> Program {
    let instrs = vec![Instr::Input(0), Instr::Input(1), Instr::constant(1.0), Instr::MulAdd(0, 1, 2)];
    Program::new(instrs, vec![3], 2).unwrap()
}

fn product_and_sum() -> Program {
    let of = |f| Instr::Binary(f, 0, 1);
    Program::new(vec![Instr::Input(0), Instr::Input(1), of(Binary::Mul), of(Binary::Add)], vec![2, 3], 2).unwrap()
}

fn relu() -> Program {
    Program::new(vec![Instr::Input(0), Instr::Unary(Unary::Relu, 0)], vec![1], 1).unwrap()
}

/// A body: h' = h · x + w, y = h' · h', over rows of `width`; inputs h, x and w, outputs h' and y.
fn body(isa: Isa, threads: usize, rows: usize, width: usize) -> Body {
    body_of(isa, threads, rows, width, false)
}

/// The same, for values that are batch-last if wanted.
fn body_of(isa: Isa, threads: usize, rows: usize, width: usize, batch_last: bool) -> Body {
    let wide = Extent { bytes: 4 * rows * width, align: 4 };
    let program =
        Program::new(vec![Instr::Input(0), Instr::Input(1), Instr::Input(2), Instr::MulAdd(0, 1, 2)], vec![3], 3);
    let square = Program::new(vec![Instr::Input(0), Instr::Binary(Binary::Mul, 0, 0)], vec![1], 1);
    let memory = Memory {
        arena: 64 << 10,
        inputs: vec![wide, wide, Extent { bytes: 4 * width, align: 4 }],
        outputs: vec![wide, wide],
        consts: vec![],
    };
    let of = |space, extent: Extent| Ref { slot: memory.slot(space), offset: 0, len: extent.bytes };
    let (h, x) = (of(Space::Input(0), wide), of(Space::Input(1), wide));
    let w = of(Space::Input(2), memory.inputs[2]);
    let (next, y) = (of(Space::Output(0), wide), of(Space::Output(1), wide));
    let scratch = Ref { slot: 0, offset: 0, len: 64 << 10 };
    let (dims, rowwise, shared) = if batch_last {
        ([1, 1, width, rows], [0, 0, rows, 1], [0, 0, 1, 0])
    } else {
        ([1, 1, rows, width], [0, 0, width, 1], [0, 0, 0, 1])
    };
    let inputs = vec![(h, Elem::F32, rowwise), (x, Elem::F32, rowwise), (w, Elem::F32, shared)];
    let calls = vec![
        Call::Map(Box::new(
            Map::new(on(isa), program.unwrap(), dims, inputs, vec![(next, Elem::F32)], scratch).unwrap(),
        )),
        Call::Map(Box::new(
            Map::new(on(isa), square.unwrap(), dims, vec![(next, Elem::F32, rowwise)], vec![(y, Elem::F32)], scratch)
                .unwrap(),
        )),
    ];
    Body { tape: Tape::new(on(isa), threads, memory, calls).unwrap().into(), batch_last }
}

const WIDTH: usize = 3;
const STEPS: usize = 4;

/// A scan of [`body`] over so many rows, and where its operands are.
struct Loop {
    board: Board,
    rows: usize,
    init: Ref,
    last: Ref,
    xs: Ref,
    ys: Ref,
    w: Ref,
    scratch: Ref,
}

impl Loop {
    fn new(rows: usize) -> Loop {
        let mut board = Board::default();
        let init = board.floats(&ramp(rows * WIDTH));
        let last = board.room(4 * rows * WIDTH);
        let xs = board.floats(&ramp(STEPS * rows * WIDTH));
        let ys = board.room(4 * STEPS * rows * WIDTH);
        let w = board.floats(&ramp(WIDTH));
        let scratch = board.room(SCRATCH);
        Loop { board, rows, init, last, xs, ys, w, scratch }
    }

    fn scan(&self, isa: Isa, threads: usize, block: Option<usize>) -> Scan {
        let (rows, row_bytes) = (self.rows, 4 * WIDTH);
        let left = block.map_or(0, |b| rows % b);
        Scan {
            steps: STEPS,
            reverse: false,
            time_inside: false,
            states: vec![ScanState { init: self.init, last: self.last, rows, row_bytes, total: false }],
            sequences: vec![Sequence { at: self.xs, rows, row_bytes, batch_last: false }],
            fixed: vec![self.w],
            outputs: vec![Sequence { at: self.ys, rows, row_bytes, batch_last: false }],
            blocks: block.map(|b| (rows, b)),
            body: body(isa, threads, block.unwrap_or(rows), WIDTH),
            tail: (left > 0).then(|| body(isa, threads, left, WIDTH)),
            scratch: self.scratch,
        }
    }

    #[track_caller]
    fn refused(&self, change: impl FnOnce(&mut Scan)) -> String {
        let mut scan = self.scan(Isa::PORTABLE, 2, Some(2));
        change(&mut scan);
        self.board.refused(Call::Scan(Box::new(scan)))
    }
}
