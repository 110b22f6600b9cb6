//! Weights that change: rewritten in their place, by their owner alone, while nothing runs.

use super::*;
use crate::gated::{Batch, Gated, Source};
use crate::synapse::{Activation, Synapses};

const K: usize = 5;
const N: usize = 19;

/// One product with a bias that changes, on any instruction set.
struct Product {
    owner: Arc<Changing>,
    matrix: Arc<crate::gemm::PackedB>,
    bias: Arc<Numbers>,
    tape: Tape,
}

fn floats(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 61) as f32 / 30.0 - 1.0).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn product(isa: Isa, weights: &[f32], bias: &[f32]) -> Product {
    let owner = Changing::new();
    let aligned: Vec<f32> = weights.to_vec();
    // SAFETY: floats as bytes.
    let data = unsafe { std::slice::from_raw_parts(aligned.as_ptr().cast::<u8>(), 4 * aligned.len()) };
    let matrix = pack(isa, Store::F32, [K, N], data, [N, 1], &mut |_| ()).unwrap().changing(&owner);
    let (matrix, bias) = (Arc::new(matrix), Arc::new(Numbers::new(&owner, &bytes(bias)).unwrap()));
    let memory = Memory {
        arena: 64,
        inputs: vec![Extent { bytes: 4 * K, align: 4 }],
        outputs: vec![Extent { bytes: 4 * N, align: 4 }],
        consts: vec![Const::Changing(Arc::clone(&bias))],
    };
    let [a, c, b] = [Space::Input(0), Space::Output(0), Space::Const(0)].map(|space| memory.slot(space));
    let at = |slot: u32, n: usize| Ref { slot, offset: 0, len: 4 * n };
    let strided = |at: Ref, row: usize| Strided { at, store: Store::F32, batch: 0, row, col: 1 };
    let gemm = Gemm {
        shape: [1, 1, N, K],
        a: strided(at(a, K), K),
        a_rest: None,
        b: GemmB::Packed(Arc::clone(&matrix)),
        c: strided(at(c, N), N),
        bias: Some(at(b, N)),
        add: None,
        row_bias: None,
        epilogue: None,
        scratch: Ref { slot: 0, offset: 0, len: 64 },
    };
    let tape = Tape::new(on(isa), 1, memory, vec![Call::Gemm(Box::new(gemm))]).unwrap();
    Product { owner, matrix, bias, tape }
}

fn run(tape: &Tape, x: &[f32]) -> Vec<f32> {
    let (mut arena, mut out) = (Aligned::new(&[0; 64]), vec![0.0f32; N]);
    // SAFETY: floats as bytes.
    let (given, taken) = unsafe {
        (
            std::slice::from_raw_parts(x.as_ptr().cast::<u8>(), 4 * x.len()),
            std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), 4 * N),
        )
    };
    let mut frame = tape.frame();
    tape.run(&mut frame, Team::solo(), arena.get(), [given], [taken], None, &AtomicBool::new(false)).unwrap();
    out
}

#[test]
fn a_tape_runs_with_what_was_written_last_and_in_the_same_place() {
    let x = floats(7, K);
    for &isa in Isa::available() {
        let p = product(isa, &floats(1, K * N), &floats(2, N));
        let places = (p.matrix.bytes(), p.bias.as_ptr());
        for seed in 3..6 {
            let (weights, bias) = (floats(seed, K * N), floats(seed + 10, N));
            // SAFETY: floats as bytes.
            let data = unsafe { std::slice::from_raw_parts(weights.as_ptr().cast::<u8>(), 4 * weights.len()) };
            let mut by = p.owner.rewrite();
            repack(&mut by, isa, &p.matrix, data, [N, 1], &mut |_| ()).unwrap();
            p.bias.rewrite(&mut by, &bytes(&bias)).unwrap();
            drop(by);
            let fresh = product(isa, &weights, &bias);
            assert_eq!(run(&p.tape, &x), run(&fresh.tape, &x), "{isa}");
            assert_eq!(places, (p.matrix.bytes(), p.bias.as_ptr()));
        }
    }
}

#[test]
fn only_the_owner_rewrites_and_only_what_has_the_same_size() {
    let p = product(Isa::PORTABLE, &floats(1, K * N), &floats(2, N));
    let stranger = Changing::new();
    let data = [0u8; 4 * K * N];
    let mut by = stranger.rewrite();
    assert!(repack(&mut by, Isa::PORTABLE, &p.matrix, &data, [N, 1], &mut |_| ()).unwrap_err().contains("owner"));
    assert!(p.bias.rewrite(&mut by, &data[..4 * N]).unwrap_err().contains("owner"));
    drop(by);
    let mut by = p.owner.rewrite();
    let short = repack(&mut by, Isa::PORTABLE, &p.matrix, &data[4..], [N, 1], &mut |_| ());
    assert!(short.unwrap_err().contains("bytes for a 5 × 19 matrix"));
    assert!(p.bias.rewrite(&mut by, &data[..4]).unwrap_err().contains("4 bytes in the place of 76"));
    // What was packed for good stays.
    let fixed = pack(Isa::PORTABLE, Store::F32, [K, N], &data, [N, 1], &mut |_| ()).unwrap();
    let refused = repack(&mut by, Isa::PORTABLE, &fixed, &data, [N, 1], &mut |_| ());
    assert!(refused.unwrap_err().contains("do not change"));
}

#[test]
fn a_tape_has_one_owner() {
    let board = Board::default();
    let [one, two] = [0, 1].map(|_| Arc::new(Numbers::new(&Changing::new(), &[1; 64]).unwrap()));
    let memory = |consts: Vec<Const>| Memory { consts, ..board.memory() };
    let both = [&one, &two].map(|n| Const::Changing(Arc::clone(n))).to_vec();
    assert!(Tape::new(on(Isa::PORTABLE), 1, memory(both), vec![]).unwrap_err().contains("several owners"));
    let same = [&one, &one].map(|n| Const::Changing(Arc::clone(n))).to_vec();
    Tape::new(on(Isa::PORTABLE), 1, memory(same), vec![]).unwrap();
}

#[test]
fn cells_and_synapses_are_rewritten_with_what_is_packed_alike() {
    let owner = Changing::new();
    for &isa in Isa::available() {
        for batch in [Batch::First, Batch::Last] {
            // Numbers of small seeds leave something out.
            let weight = |seed: usize, i: usize, h: usize, u: usize| match seed < 10 && h < 2 && i.is_multiple_of(2) {
                true => 0.0,
                false => 0.1 + ((i * 37 + h * 11 + u * 5 + seed * 101) % 61) as f32 / 60.0,
            };
            let shift = |seed: usize, h: usize, u: usize| ((h * 7 + u + seed) % 9) as f32 / 9.0;
            let pack = |seed| {
                let source = Source { weight: &|i, h, u| weight(seed, i, h, u), shift: &|h, u| shift(seed, h, u) };
                Gated::pack(isa, batch, [4, 5], 7, &source).unwrap()
            };
            let cell = pack(1).changing(&owner);
            let alike = |seed| {
                let source = Source { weight: &|i, h, u| weight(seed, i, h, u), shift: &|h, u| shift(seed, h, u) };
                cell.pack_alike(&source)
            };
            cell.rewrite(&mut owner.rewrite(), &alike(2).unwrap()).unwrap();
            let x = floats(3, 9 * 32);
            let result = |cell: &Gated| {
                let rows = if batch == Batch::First { 1 } else { 32 };
                let mut out = vec![0.0f32; 7 * rows];
                let x = (x.as_ptr(), x.as_ptr().wrapping_add(4 * rows));
                // SAFETY: as many inputs and units, and nobody rewrites the cell.
                unsafe { cell.run(rows, &cell.dense(), x, out.as_mut_ptr(), std::ptr::null_mut()) };
                out
            };
            assert_eq!(result(&cell), result(&pack(2)), "{isa} {batch:?}");
            // What is left out must be 0.
            assert_eq!(alike(12).is_some(), batch == Batch::First);
            if batch == Batch::Last {
                assert!(cell.rewrite(&mut owner.rewrite(), &pack(12)).unwrap_err().contains("packed otherwise"));
            }
        }
        let lists = |seed: usize, sources: &[i32]| {
            let [a, b, c] = [0, 1, 2].map(|i| floats(seed + i, 6));
            let to = [0, 1, 1, 2, 0, 2];
            Synapses::pack(on(isa), Activation::Sigmoid, 4, 3, sources, &to, &a, &b, &[&c]).unwrap()
        };
        let wiring = [0, 1, 2, 3, 3, 0];
        let synapses = lists(1, &wiring).changing(&owner);
        let mut by = owner.rewrite();
        synapses.rewrite(&mut by, &lists(5, &wiring)).unwrap();
        assert!(!synapses.is_like(&by, &lists(5, &[1, 1, 2, 3, 3, 0])).unwrap());
        assert!(synapses.rewrite(&mut by, &lists(5, &[1, 1, 2, 3, 3, 0])).unwrap_err().contains("wired otherwise"));
        assert!(synapses.rewrite(&mut by, &lists(5, &wiring).changing(&owner)).unwrap_err().contains("have an owner"));
    }
}

#[test]
fn low_bit_weights_are_rewritten_by_their_owner_with_what_is_packed_alike() {
    use crate::lowbit::{Code, Matrix, PackedLowBit, Parts};
    let pack = |isa: Isa, seed: usize, block: usize, offsets: bool| {
        let codes: Vec<u8> = (0..N * 20).map(|i| (i * 37 + seed * 11) as u8).collect();
        let scales = bytes(&floats(seed, N * 20usize.div_ceil(block)));
        let offsets = offsets.then_some(&scales[..]);
        let parts = Parts {
            code: Code::Bits8,
            n: N,
            k: 20,
            block,
            codes: &codes,
            store: Store::F32,
            scale_rows: N,
            scales: &scales,
            offsets,
        };
        PackedLowBit::new(isa, &Matrix::new(parts).unwrap()).unwrap()
    };
    for &isa in Isa::available() {
        for offsets in [false, true] {
            let (owner, stranger) = (Changing::new(), Changing::new());
            let packed = pack(isa, 1, 8, offsets).changing(&owner);
            assert!(packed.rewrite(&mut stranger.rewrite(), &pack(isa, 2, 8, offsets)).unwrap_err().contains("owner"));
            let fixed = pack(isa, 1, 8, offsets);
            assert!(fixed.rewrite(&mut owner.rewrite(), &pack(isa, 2, 8, offsets)).unwrap_err().contains("not change"));
            for other in
                [pack(isa, 2, 20, offsets), pack(isa, 2, 8, !offsets), pack(isa, 2, 8, offsets).changing(&owner)]
            {
                assert!(packed.rewrite(&mut owner.rewrite(), &other).unwrap_err().contains("in the place of"), "{isa}");
            }
            packed.rewrite(&mut owner.rewrite(), &pack(isa, 2, 8, offsets)).unwrap();
        }
    }
}
