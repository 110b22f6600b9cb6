//! Calls that lie, against the verifier.

use super::*;

/// A number whose square does not fit an address, by one bit.
const HALF: usize = 1 << (usize::BITS / 2);

/// The number of which only one bit is set, so many below the 2ⁿ that an address of n bits just does not hold.
fn bit(below: u32) -> usize {
    1 << (usize::BITS - below)
}

#[test]
fn an_arena_too_small_or_not_aligned_is_refused() {
    let mut board = Board::default();
    let dst = board.room(128);
    let tape = Tape::new(on(Isa::detect()), 1, board.memory(), vec![Call::Zero { dst }]).unwrap();
    let (mut frame, cancel) = (tape.frame(), AtomicBool::new(false));
    let mut room = Aligned::new(&[0; 256]);
    for part in [0..127, 1..256, 32..256] {
        let stopped = tape.run(&mut frame, Team::solo(), &mut room.get()[part], [], [], None, &cancel);
        assert!(matches!(stopped, Err(Stopped::Buffer(_))));
    }
    tape.run(&mut frame, Team::solo(), &mut room.get()[64..192], [], [], None, &cancel).unwrap();
}

#[test]
fn a_frame_of_another_tape_is_refused_even_with_as_many_slots() {
    let tape = |bytes: usize| {
        let constant = Const::Fixed(Arc::new(vec![1u8; bytes]));
        let memory = Memory { outputs: vec![Extent { bytes, align: 1 }], consts: vec![constant], ..Memory::default() };
        let part = |slot| Ref { slot, offset: 0, len: bytes };
        let (src, dst) = (part(memory.slot(Space::Const(0))), part(memory.slot(Space::Output(0))));
        let copy = Call::Copy { elem: 1, dims: vec![bytes], src, src_strides: vec![1], dst, dst_strides: vec![1] };
        Tape::new(on(Isa::detect()), 1, memory, vec![copy]).unwrap()
    };
    let (long, cancel) = (tape(4096), AtomicBool::new(false));
    let mut frame = tape(16).frame();
    let mut out = vec![0; 4096];
    let stopped = long.run(&mut frame, Team::solo(), &mut [], [], [&mut out[..]], None, &cancel);
    assert!(matches!(stopped, Err(Stopped::Buffer(_))));
    long.run(&mut long.frame(), Team::solo(), &mut [], [], [&mut out[..]], None, &cancel).unwrap();
}

#[test]
fn references_outside_their_memory_or_unaligned_are_refused() {
    let mut board = Board::default();
    let (src, dst) = (board.floats(&ramp(16)), board.room(64));
    let softmax = |src, dst| Call::Softmax { rows: 4, len: 4, src, dst };
    board.accepted(softmax(src, dst));
    board.accepted(softmax(src, src));
    board.refused(softmax(src, Ref { offset: dst.offset + 1, ..dst }));
    board.refused(softmax(src, Ref { offset: src.offset + 4, ..dst }));
    board.refused(softmax(src, Ref { len: 63, ..dst }));
    board.refused(softmax(src, Ref { offset: 128, ..dst }));
    board.refused(softmax(src, Ref { offset: usize::MAX - 3, ..dst }));
    board.refused(softmax(src, Ref { slot: 1, ..dst }));
    board.refused(softmax(src, Ref { slot: u32::MAX, ..dst }));
    for (rows, len) in [(bit(2), 4), (HALF, HALF), (usize::MAX, 1)] {
        board.refused(Call::Softmax { rows, len, src, dst });
    }
    // Nothing is written here, but a kernel may still make a slice of it.
    let (segments, empty) = (Ref { len: 0, ..src }, Ref { offset: 1, len: 0, ..dst });
    board.refused(Call::IntSegmentSum { shape: [1, 0, 1], segments, count: 0, src: segments, dst: empty });
}

#[test]
fn inputs_and_constants_are_never_written() {
    let memory = || Memory {
        inputs: vec![Extent { bytes: 64, align: 64 }],
        consts: vec![Const::Fixed(Arc::new([0u8; 64]))],
        ..Memory::default()
    };
    for slot in [1, 2] {
        let dst = Ref { slot, offset: 0, len: 64 };
        assert!(Tape::new(on(Isa::PORTABLE), 1, memory(), vec![Call::Zero { dst }]).is_err());
    }
}

#[test]
fn memories_that_cannot_exist_are_refused() {
    let dst = Ref { slot: 0, offset: bit(24), len: 64 };
    let arena = |bytes| Memory { arena: bytes, ..Memory::default() };
    assert!(Tape::new(on(Isa::PORTABLE), 1, arena(usize::MAX), vec![Call::Zero { dst }]).is_err());
    let extent = |bytes, align| Memory { inputs: vec![Extent { bytes, align }], ..Memory::default() };
    assert!(Tape::new(on(Isa::PORTABLE), 1, extent(usize::MAX, 1), vec![]).is_err());
    assert!(Tape::new(on(Isa::PORTABLE), 1, extent(4, 0), vec![]).is_err());
    assert!(Tape::new(on(Isa::PORTABLE), 1, extent(4, 3), vec![]).is_err());
    assert!(Tape::new(on(Isa::PORTABLE), bit(4), arena(0), vec![]).is_err());
}

#[test]
fn no_threads_still_need_the_scratch_of_one() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(16)), board.room(64));
    let map = |scratch| {
        let inputs = vec![(x, Elem::F32, [0, 0, 0, 1])];
        Call::Map(Box::new(
            Map::new(on(Isa::PORTABLE), relu(), [1, 1, 1, 16], inputs, vec![(y, Elem::F32)], scratch).unwrap(),
        ))
    };
    let nothing = Ref { slot: 0, offset: 0, len: 0 };
    assert!(Tape::new(on(Isa::PORTABLE), 0, board.memory(), vec![map(nothing)]).is_err());
    // A plain bfloat16 B is always packed.
    let g = Gemm {
        shape: [1, 1, 4, 4],
        a: Strided { at: x, store: Store::F32, batch: 0, row: 0, col: 0 },
        b: GemmB::Plain(Strided { at: x, store: Store::Bf16, batch: 0, row: 1, col: 4 }),
        c: Strided { at: y, store: Store::F16, batch: 0, row: 0, col: 1 },
        bias: None,
        a_rest: None,
        add: None,
        row_bias: None,
        epilogue: None,
        scratch: nothing,
    };
    assert!(g.scratch_bytes(on(Isa::PORTABLE), 1) > 0);
    assert!(Tape::new(on(Isa::PORTABLE), 0, board.memory(), vec![Call::Gemm(Box::new(g))]).is_err());
}

#[test]
fn elementwise_results_replace_only_an_operand_of_their_own_layout() {
    let mut board = Board::default();
    let (x, w, y, scratch) = (board.floats(&ramp(32)), board.floats(&ramp(32)), board.room(128), board.room(SCRATCH));
    let map = |w: Ref, w_strides, out| {
        let inputs = vec![(x, Elem::F32, [0, 0, 8, 1]), (w, Elem::F32, w_strides)];
        Call::Map(Box::new(
            Map::new(on(Isa::PORTABLE), product_plus_one(), [1, 1, 4, 8], inputs, vec![out], scratch).unwrap(),
        ))
    };
    let (rows, repeated, transposed) = ([0, 0, 8, 1], [0, 0, 0, 1], [0, 0, 1, 1]);
    board.accepted(map(w, rows, (y, Elem::F32)));
    board.accepted(map(w, rows, (w, Elem::F32)));
    board.accepted(map(x, rows, (x, Elem::F32)));
    board.refused(map(w, repeated, (w, Elem::F32)));
    board.refused(map(x, repeated, (x, Elem::F32)));
    board.refused(map(w, transposed, (w, Elem::F32)));
    board.refused(map(w, rows, (w, Elem::F16)));
    board.refused(map(w, rows, (Ref { offset: w.offset + 32, ..w }, Elem::F32)));
    board.refused(map(w, rows, (scratch, Elem::F32)));
    let new = |dims, strides| {
        Map::new(on(Isa::PORTABLE), relu(), dims, vec![(x, Elem::F32, strides)], vec![(y, Elem::F32)], scratch)
    };
    assert!(new([1, 1, 4, 8], [0, 0, 0, 2]).is_err());
    assert!(new([2, HALF, HALF, 1], [0; 4]).is_err());
    assert!(new([0, HALF, HALF, 1], [0; 4]).is_err());
    assert!(new([1, 1, 4, 8], [usize::MAX, 0, 0, 1]).is_err());
    let out = vec![(y, Elem::F32)];
    assert!(Map::new(on(Isa::PORTABLE), product_plus_one(), [1; 4], vec![], out, scratch).is_err());
}

#[test]
fn results_of_one_program_do_not_overlap_and_replace_an_operand_each() {
    let mut board = Board::default();
    let (x, w, scratch) = (board.floats(&ramp(32)), board.floats(&ramp(32)), board.room(SCRATCH));
    let (y, z) = (board.room(128), board.room(128));
    let map = |w_strides, outs: &[(Ref, Elem)]| {
        let inputs = vec![(x, Elem::F32, [0, 0, 8, 1]), (w, Elem::F32, w_strides)];
        Map::new(on(Isa::PORTABLE), product_and_sum(), [1, 1, 4, 8], inputs, outs.to_vec(), scratch)
            .map(|map| Call::Map(Box::new(map)))
    };
    let (rows, repeated, wide) = ([0, 0, 8, 1], [0, 0, 0, 1], Elem::F32);
    let half = |r: Ref, by: usize| Ref { offset: r.offset + by, len: r.len - by, ..r };
    for outs in [[(y, wide), (z, wide)], [(x, wide), (w, wide)], [(w, wide), (x, wide)], [(y, Elem::F16), (x, wide)]] {
        board.accepted(map(rows, &outs).unwrap());
    }
    // Two results in one place, or in part of it.
    board.refused(map(rows, &[(y, wide), (y, wide)]).unwrap());
    board.refused(map(rows, &[(x, wide), (x, wide)]).unwrap());
    board.refused(map(rows, &[(y, Elem::F16), (half(y, 32), Elem::F16)]).unwrap());
    // In the place of an operand that is read otherwise, or too narrow for it.
    board.refused(map(repeated, &[(y, wide), (w, wide)]).unwrap());
    board.refused(map(rows, &[(y, wide), (w, Elem::F16)]).unwrap());
    board.refused(map(rows, &[(y, wide), (half(z, 64), wide)]).unwrap());
    board.refused(map(rows, &[(y, wide), (scratch, wide)]).unwrap());
    // Another number of results than the program has.
    assert!(map(rows, &[(y, wide)]).is_err() && map(rows, &[]).is_err());
}

#[test]
fn a_parameter_is_not_replaced_with_the_row_that_it_scales() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(8)), board.room(32));
    let norm = |gamma, beta, dst| Call::LayerNorm { rows: 1, len: 8, eps: 0.1, gamma, beta, src: x, dst };
    board.accepted(norm(Some(x), Some(x), y));
    board.accepted(norm(None, Some(y), x));
    board.refused(norm(Some(x), None, x));
    board.refused(norm(None, Some(x), x));
    board.refused(norm(None, Some(y), y));
}

#[test]
fn integer_calls_take_integers_and_as_many_operands_as_they_have() {
    let mut board = Board::default();
    let (x, y) = (board.ints(&[1; 8]), board.room(32));
    let int = |op, elem, n, out| {
        let inputs = vec![(x, elem, [0, 0, 0, 0, 0, 1]); n];
        Call::Int { op, dims: [1, 1, 1, 1, 1, 8], inputs, out }
    };
    board.accepted(int(IntOp::Select, Elem::I32, 3, (y, Elem::I32)));
    board.refused(int(IntOp::Select, Elem::I32, 4, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::I32, 1, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::F32, 2, (y, Elem::I32)));
    board.refused(int(IntOp::Add, Elem::I32, 2, (y, Elem::F32)));
    board.refused(int(IntOp::Add, Elem::I32, 2, (x, Elem::I32)));
}

#[test]
fn a_copy_writes_each_element_once_and_none_that_it_reads() {
    let mut board = Board::default();
    let (x, y) = (board.floats(&ramp(16)), board.room(64));
    let copy = |elem, dims: &[usize], from: &[isize], to: &[isize], dst| Call::Copy {
        elem,
        dims: dims.to_vec(),
        src: x,
        src_strides: from.to_vec(),
        dst,
        dst_strides: to.to_vec(),
    };
    board.accepted(copy(4, &[4, 4], &[0, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[0, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[3, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[5, 1], y));
    board.refused(copy(4, &[4, 4], &[5, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[-4, 1], &[4, 1], y));
    board.refused(copy(4, &[4, 4], &[4, 1], &[4, 1], x));
    board.refused(copy(8, &[2], &[1], &[1], y));
    board.refused(copy(3, &[2], &[1], &[1], y));
    board.refused(copy(4, &[4, 4], &[4], &[4, 1], y));
    board.refused(copy(1, &[1; 7], &[1; 7], &[1; 7], y));
    board.refused(copy(4, &[0, 2], &[isize::MAX, isize::MAX], &[1, 1], y));
}

#[test]
fn an_index_out_of_range_stops_the_run_and_indices_are_not_overwritten() {
    let mut board = Board::default();
    let (x, indices, y) = (board.floats(&ramp(16)), board.ints(&[0, 1, 4, 0]), board.room(64));
    let gather = |indices, dst| Call::Gather { elem: 4, shape: [1, 4, 4], indices, count: 4, src: x, dst };
    let put = |indices, dst| Call::Put { elem: 4, shape: [1, 4, 4], indices, count: 4, src: x, dst };
    let sum = |segments, dst| Call::SegmentSum { shape: [1, 4, 4], segments, count: 4, src: x, dst };
    board.accepted(gather(indices, y));
    board.refused(gather(y, y));
    board.refused(gather(indices, x));
    board.refused(sum(y, y));
    board.refused(put(y, y));
    board.refused(put(indices, x));
    board.refused(Call::Put { elem: 3, shape: [1, 4, 1], indices, count: 4, src: x, dst: y });
    board.refused(gather(Ref { len: 12, ..indices }, y));
    board.refused(Call::Gather { elem: 8, shape: [1, 4, 1], indices, count: 4, src: x, dst: y });
    let twice = board.ints(&[0, 1, 1, 2]);
    for call in [gather(indices, y), sum(indices, y), put(indices, y), put(twice, y)] {
        let tape = Tape::new(on(Isa::detect()), 1, board.memory(), vec![call]).unwrap();
        let mut arena = Aligned::new(&board.data);
        let cancel = AtomicBool::new(false);
        let stopped = tape.run(&mut tape.frame(), Team::solo(), arena.get(), [], [], None, &cancel);
        assert!(matches!(stopped, Err(Stopped::Value { call, .. }) if call == [0]));
        assert_eq!(arena.get(), board.data);
    }
    // Pieces without elements are nothing to add.
    let nothing = Call::SegmentSum { shape: [3, 2, 0], segments: indices, count: 4, src: x, dst: y };
    let tape = Tape::new(on(Isa::detect()), 1, board.memory(), vec![nothing]).unwrap();
    let cancel = AtomicBool::new(false);
    tape.run(&mut tape.frame(), Team::solo(), Aligned::new(&board.data).get(), [], [], None, &cancel).unwrap();
}

#[test]
fn products_of_sizes_that_overflow_are_refused() {
    // All of these matrices are one element repeated, and their packed copies would wrap around to no bytes at all.
    let one = 1.0f32.to_ne_bytes();
    let data = Aligned::new(&one);
    for [k, n] in [[bit(6), 16], [HALF, HALF >> 2], [usize::MAX, 1], [1, usize::MAX]] {
        assert!(pack(Isa::PORTABLE, Store::F32, [k, n], &data.data[data.start..][..4], [0, 0], &mut |_| ()).is_err());
    }
    let mut board = Board::default();
    let (x, y, scratch) = (board.floats(&ramp(16)), board.room(64), board.room(SCRATCH));
    let repeated = |at| Strided { at, store: Store::F32, batch: 0, row: 0, col: 0 };
    let product = |shape: [usize; 4], a: Strided, c_store| {
        Call::Gemm(Box::new(Gemm {
            shape,
            a,
            b: GemmB::Plain(repeated(x)),
            c: Strided { at: y, store: c_store, batch: 16, row: 16, col: 1 },
            bias: None,
            a_rest: None,
            add: None,
            row_bias: None,
            epilogue: None,
            scratch,
        }))
    };
    board.accepted(product([1, 1, 16, 100], repeated(x), Store::F32));
    for k in [bit(5), bit(4), usize::MAX] {
        board.refused(product([1, 1, 16, k], repeated(x), Store::F16));
        board.refused(product([1, 1, 16, k], repeated(x), Store::F32));
        board.refused(product([1, 0, 16, k], repeated(x), Store::F16));
        board.refused(product([k, 1, 16, 1], repeated(x), Store::F16));
    }
    board.refused(product([1, 1, 16, 1], Strided { row: 1, col: usize::MAX, ..repeated(x) }, Store::F32));
}

#[test]
fn a_product_reads_and_writes_within_its_operands() {
    let mut board = Board::default();
    let (x, y, z) = (board.floats(&ramp(32)), board.room(128), board.room(128));
    let (scratch, more) = (board.room(SCRATCH), board.room(SCRATCH));
    let gemm = || Gemm {
        shape: [1, 4, 8, 8],
        a: dense_matrix(x, 4, 8),
        b: GemmB::Plain(Strided { row: 0, ..dense_matrix(x, 8, 8) }),
        c: dense_matrix(y, 4, 8),
        bias: None,
        a_rest: None,
        add: None,
        row_bias: None,
        epilogue: None,
        scratch,
    };
    let call = |g: Gemm| Call::Gemm(Box::new(g));
    board.accepted(call(gemm()));
    board.refused(call(Gemm { a: Strided { row: 9, ..gemm().a }, ..gemm() }));
    board.refused(call(Gemm { b: GemmB::Plain(dense_matrix(x, 8, 8)), ..gemm() }));
    board.refused(call(Gemm { c: Strided { row: 7, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: Strided { row: 9, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: Strided { col: 2, ..gemm().c }, ..gemm() }));
    board.refused(call(Gemm { c: dense_matrix(x, 4, 8), ..gemm() }));
    board.refused(call(Gemm { bias: Some(y), ..gemm() }));
    board.refused(call(Gemm { bias: Some(Ref { len: 28, ..x }), ..gemm() }));
    board.refused(call(Gemm { scratch: y, ..gemm() }));
    board.refused(call(Gemm { shape: [2, 4, 8, 8], ..gemm() }));
    let weights = Aligned::new(&[0; 256]);
    let weights = &weights.data[weights.start..][..256];
    let packed =
        |isa, k, n| GemmB::Packed(Arc::new(pack(isa, Store::F32, [k, n], weights, [8, 1], &mut |_| ()).unwrap()));
    board.accepted(call(Gemm { b: packed(Isa::PORTABLE, 8, 8), ..gemm() }));
    board.refused(call(Gemm { b: packed(Isa::PORTABLE, 8, 7), ..gemm() }));
    board.refused(call(Gemm { b: packed(Isa::PORTABLE, 7, 8), ..gemm() }));
    for &isa in Isa::available().iter().filter(|isa| isa.lanes() != Isa::PORTABLE.lanes()) {
        board.refused(call(Gemm { b: packed(isa, 8, 8), ..gemm() }));
    }
    let finish = |shape: (usize, usize), row, inputs: Vec<(Ref, Elem, [usize; 2])>, out, scratch| {
        let program = if inputs.is_empty() { relu() } else { product_plus_one() };
        Some(Box::new(Epilogue::new(on(Isa::PORTABLE), program, shape, row, inputs, out, scratch).unwrap()))
    };
    let with = |epilogue| call(Gemm { epilogue, ..gemm() });
    let other = vec![(x, Elem::F32, [8, 1])];
    board.accepted(with(finish((4, 8), 8, vec![], (z, Elem::F32), more)));
    board.accepted(with(finish((4, 8), 8, vec![], (y, Elem::F32), more)));
    board.accepted(with(finish((4, 8), 8, other.clone(), (y, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (y, Elem::F16), more)));
    board.refused(with(finish((4, 8), 8, other.clone(), (x, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![(y, Elem::F32, [8, 1])], (y, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![(x, Elem::F32, [9, 1])], (z, Elem::F32), more)));
    board.refused(with(finish((5, 8), 8, vec![], (z, Elem::F32), more)));
    board.refused(with(finish((4, 8), 9, vec![], (z, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (Ref { len: 127, ..z }, Elem::F32), more)));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), scratch)));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), Ref { len: 64, ..more })));
    board.refused(with(finish((4, 8), 8, vec![], (z, Elem::F32), z)));
}

#[test]
fn attention_of_heads_strides_or_scratch_that_do_not_fit_is_refused() {
    let mut board = Board::default();
    let (x, out, scratch) = (board.floats(&ramp(64)), board.room(256), board.room(SCRATCH));
    let fine = Attention::dense(1, 2, 4, 4, 8);
    let attend = |shape, mask, out, scratch| {
        Call::Attention(Box::new(Attend { shape, qkv: [x, x, x], mask, positions: None, out, scratch }))
    };
    let shaped = |shape| attend(shape, None, out, scratch);
    board.accepted(shaped(fine));
    board.refused(shaped(Attention { kv_heads: 0, ..fine }));
    board.refused(shaped(Attention { heads: 3, ..fine }));
    board.refused(shaped(Attention { heads: 4, ..fine }));
    board.refused(shaped(Attention { keys: 5, ..fine }));
    board.refused(shaped(Attention { batch: 2, ..fine }));
    board.refused(shaped(Attention { value_dim: 9, ..fine }));
    board.refused(shaped(Attention { out: [64, 32, 0], ..fine }));
    board.refused(shaped(Attention { out: [64, 16, 8], ..fine }));
    board.refused(shaped(Attention { q: [64, 32, -8], ..fine }));
    board.refused(shaped(Attention { mask: Some([0; 4]), ..fine }));
    board.refused(shaped(Attention { queries: 0, dim: usize::MAX, ..fine }));
    board.refused(shaped(Attention { heads: 0, value_dim: usize::MAX / 8, ..fine }));
    board.refused(attend(fine, Some(x), out, scratch));
    board.accepted(attend(Attention { mask: Some([0, 0, 4, 1]), ..fine }, Some(x), out, scratch));
    board.refused(attend(Attention { mask: Some([0, 0, 4, 99]), ..fine }, Some(x), out, scratch));
    board.refused(attend(fine, None, x, scratch));
    board.refused(attend(fine, None, out, Ref { len: 4096, ..scratch }));
    board.refused(attend(fine, None, out, Ref { offset: scratch.offset + 4, len: SCRATCH - 64, ..scratch }));
}

#[test]
fn a_scan_whose_body_sees_other_memory_than_it_was_made_for_is_refused() {
    let l = Loop::new(5);
    l.board.accepted(Call::Scan(Box::new(l.scan(Isa::PORTABLE, 2, Some(2)))));
    l.board.accepted(Call::Scan(Box::new(l.scan(Isa::PORTABLE, 2, None))));
    let made = |rows, width| body(Isa::PORTABLE, 2, rows, width);
    l.refused(|s| s.body = made(3, WIDTH));
    l.refused(|s| s.body = made(2, WIDTH + 1));
    l.refused(|s| s.tail = None);
    l.refused(|s| s.tail = Some(made(2, WIDTH)));
    l.refused(|s| s.blocks = None);
    l.refused(|s| s.blocks = Some((5, 0)));
    l.refused(|s| s.blocks = Some((5, 6)));
    l.refused(|s| s.blocks = Some((4, 2)));
    l.refused(|s| s.blocks = Some((5, usize::MAX)));
    l.refused(|s| s.steps += 1);
    l.refused(|s| s.steps = usize::MAX);
    l.refused(|s| s.states[0].rows = 6);
    l.refused(|s| s.states[0].row_bytes += 4);
    l.refused(|s| s.states[0].row_bytes = usize::MAX / 4);
    l.refused(|s| s.states[0].last = l.init);
    l.refused(|s| s.states[0].last = l.xs);
    l.refused(|s| s.outputs[0].at = l.xs);
    l.refused(|s| s.outputs[0].at = l.scratch);
    l.refused(|s| s.outputs[0].at = l.w);
    l.refused(|s| s.sequences[0].at.offset += 2);
    l.refused(|s| s.fixed[0].offset += 2);
    l.refused(|s| s.fixed[0].len -= 4);
    l.refused(|s| s.fixed.clear());
    l.refused(|s| s.outputs.clear());
    l.refused(|s| s.scratch.len = 1024);
    l.refused(|s| s.scratch.offset += 4);
    // A body for one thread cannot run on the team that takes all rows together.
    let single = Scan { body: body(Isa::PORTABLE, 1, 5, WIDTH), ..l.scan(Isa::PORTABLE, 1, None) };
    l.board.refused(Call::Scan(Box::new(single)));
    // The rows of a sequence without steps are in no memory, and must not make the workers' memory overflow.
    let huge = usize::MAX - 10;
    l.refused(|s| {
        s.steps = 0;
        s.sequences[0].row_bytes = huge / 5;
        s.outputs[0].row_bytes = huge / 5;
    });
}

#[test]
fn the_memory_of_a_body_counts_for_every_worker() {
    let dst = Ref { slot: 0, offset: bit(24), len: 64 };
    let empty = |arena, board: &Board, scratch| {
        let body = Tape::new(
            on(Isa::PORTABLE),
            2,
            Memory { arena, ..Memory::default() },
            if arena > bit(23) { vec![Call::Zero { dst }] } else { vec![] },
        )
        .unwrap();
        let scan = Scan {
            steps: 1,
            reverse: false,
            time_inside: false,
            states: vec![],
            sequences: vec![],
            fixed: vec![],
            outputs: vec![],
            blocks: Some((4, 2)),
            body: Body { tape: body.into(), batch_last: false },
            tail: None,
            scratch,
        };
        Tape::new(on(Isa::PORTABLE), 2, board.memory(), vec![Call::Scan(Box::new(scan))])
    };
    let mut board = Board::default();
    let scratch = board.room(SCRATCH);
    assert!(empty(SCRATCH / 2, &board, scratch).is_ok());
    assert!(empty(SCRATCH / 2 + 1, &board, scratch).is_err());
    assert!(empty(isize::MAX as usize / 2, &board, scratch).is_err());
}
