use super::*;
use crate::lang::{Buffer, Maker};

/// A kernel with a buffer of each kind, an argument and arrays; `make` is given it and the memories `read`, `written`,
/// `shared` (f32) and `own` (i32).
fn kernel(make: impl FnOnce(&mut Maker, [Memory; 4])) -> Kernel {
    let mut m = Maker::new("some", 32);
    let memories = [m.buffer("x", false), m.buffer("y", true), m.shared("s", Ty::F32, 8), m.own("o", Ty::I32, 4)];
    m.arg("n");
    make(&mut m, memories);
    m.finish()
}

fn wrong(kernel: &Kernel) -> Wrong {
    *verify(kernel).expect_err("the kernel should be refused").wrong
}

fn passes(make: impl FnOnce(&mut Maker, [Memory; 4])) {
    if let Err(problem) = verify(&kernel(make)) {
        panic!("{problem}");
    }
}

fn fails(make: impl FnOnce(&mut Maker, [Memory; 4])) -> Wrong {
    wrong(&kernel(make))
}

/// Whether an expression of this type and kind is right.
fn right(ty: Ty, kind: Kind) -> bool {
    verify(&kernel(|m, _| {
        m.variable("v", Expr::new(ty, kind));
    }))
    .is_ok()
}

fn arg() -> Expr {
    Expr::new(Ty::U32, Kind::Arg(0))
}

/// A value of each type, none of which is known before it is computed.
fn value(ty: Ty) -> Expr {
    match ty {
        Ty::U32 => arg(),
        Ty::Bool => arg().eq(1u32),
        _ => arg().to(ty),
    }
}

const TYPES: [Ty; 4] = [Ty::F32, Ty::U32, Ty::I32, Ty::Bool];

#[test]
fn an_empty_kernel_takes_what_it_declares() {
    let resources = verify(&kernel(|_, _| ())).unwrap();
    let expected =
        Resources { threads: 32, shared_bytes: 32, own_bytes: 16, buffers: 2, args: 1, ..Resources::default() };
    assert_eq!(resources, expected);
}

#[test]
fn statements_barriers_and_nodes_are_counted_as_written() {
    let kernel = kernel(|m, [_, y, ..]| {
        m.count("i", 0u32, 4u32, 1u32, |m, i| {
            m.barrier();
            let twice = &i + arg();
            m.store(y, &twice, &twice + &twice);
        });
    });
    let resources = verify(&kernel).unwrap();
    assert_eq!((resources.statements, resources.barriers), (3, 1));
    // The loop's 0, 4 and 1; and i, the argument, their sum and its double.
    assert_eq!(resources.expressions, 3 + 4);
}

#[test]
fn a_shared_part_is_looked_at_once() {
    passes(|m, [_, y, ..]| {
        // 2²⁰⁰ leaves if it were written out.
        let sum = (0..200).fold(arg(), |sum, _| &sum + &sum);
        m.store(y, 0u32, &sum);
        m.when(sum.lt(9u32), Maker::barrier);
    });
}

#[test]
fn names_are_words() {
    for name in ["", "A", "a b", "9a", "_a", "ä"] {
        let kernel = Maker::new(name, 1).finish();
        assert!(matches!(wrong(&kernel), Wrong::Name { lower: true, .. }), "{name}");
    }
    verify(&Maker::new("a_9", 1).finish()).unwrap();
    let mut bad: [Kernel; 5] = std::array::from_fn(|_| {
        kernel(|m, _| {
            m.name("Good_1", arg() + 1u32);
        })
    });
    bad[0].buffers[0].name = "".into();
    bad[1].args[0] = "a-b".into();
    bad[2].shared[0].name = "a.b".into();
    bad[3].own[0].name = "1".into();
    bad[4].vars[0].name = " ".into();
    for kernel in bad {
        assert!(matches!(wrong(&kernel), Wrong::Name { lower: false, .. }));
    }
}

#[test]
fn a_workgroup_has_1_to_1024_threads() {
    verify(&Maker::new("a", 1).finish()).unwrap();
    verify(&Maker::new("a", 1024).finish()).unwrap();
    assert_eq!(wrong(&Maker::new("a", 0).finish()), Wrong::Threads { threads: 0 });
    assert_eq!(wrong(&Maker::new("a", 1025).finish()), Wrong::Threads { threads: 1025 });
}

#[test]
fn arrays_hold_words_and_at_least_one() {
    let mut m = Maker::new("a", 1);
    m.shared("s", Ty::Bool, 1);
    assert_eq!(wrong(&m.finish()), Wrong::ArrayOfBool { name: "s".into() });
    let mut m = Maker::new("a", 1);
    m.own("o", Ty::F32, 0);
    assert_eq!(wrong(&m.finish()), Wrong::ArrayEmpty { name: "o".into() });
}

#[test]
fn every_number_is_of_something() {
    let load = |memory| Kind::Load(memory, arg());
    assert!(right(Ty::U32, Kind::Arg(0)) && !right(Ty::U32, Kind::Arg(1)));
    assert!(right(Ty::U32, Kind::Group(2)) && !right(Ty::U32, Kind::Group(3)));
    assert!(right(Ty::F32, load(Memory::Buffer(1))) && !right(Ty::F32, load(Memory::Buffer(2))));
    assert!(right(Ty::F32, load(Memory::Shared(0))) && !right(Ty::F32, load(Memory::Shared(1))));
    assert!(right(Ty::I32, load(Memory::Own(0))) && !right(Ty::I32, load(Memory::Own(1))));
    assert!(!right(Ty::U32, Kind::Var(Var(7))));
    let missing = fails(|m, _| m.set(Var(0), 1u32));
    assert_eq!(missing, Wrong::Missing { what: "variable", number: 0, count: 0 });
    fails(|m, _| m.store(Memory::Own(1), 0u32, 1i32));
    fails(|m, _| m.fault(Memory::Buffer(2), 0u32));
}

#[test]
fn leaves_have_their_types() {
    for ty in TYPES {
        for kind in [Kind::Arg(0), Kind::Thread, Kind::Group(0)] {
            assert_eq!(right(ty, kind), ty == Ty::U32);
        }
        assert!(right(ty, Kind::Const(1)));
        assert_eq!(right(ty, Kind::Const(2)), ty != Ty::Bool);
        assert_eq!(right(ty, Kind::Load(Memory::Buffer(0), arg())), ty != Ty::Bool);
        assert_eq!(right(ty, Kind::Load(Memory::Shared(0), arg())), ty == Ty::F32);
        assert_eq!(right(ty, Kind::Load(Memory::Own(0), arg())), ty == Ty::I32);
        assert_eq!(right(Ty::F32, Kind::Load(Memory::Shared(0), value(ty))), ty == Ty::U32);
    }
    let wrong = fails(|m, _| {
        m.variable("v", 1u32);
        m.name("w", Expr::new(Ty::F32, Kind::Var(Var(0))));
    });
    assert_eq!(wrong, Wrong::Differs { what: "a variable", found: Ty::F32, expected: Ty::U32 });
}

#[test]
fn functions_of_one_operand_have_its_type() {
    let floats = [Unary::Abs, Unary::Sqrt, Unary::Floor, Unary::Round, Unary::Trunc, Unary::Exp2, Unary::Recip];
    for ty in TYPES {
        for op in floats {
            assert_eq!(right(ty, Kind::Unary(op, value(ty))), ty == Ty::F32);
        }
        assert_eq!(right(ty, Kind::Unary(Unary::Neg, value(ty))), matches!(ty, Ty::F32 | Ty::I32));
        assert_eq!(right(ty, Kind::Unary(Unary::Not, value(ty))), matches!(ty, Ty::U32 | Ty::I32));
        assert!(!right(if ty == Ty::F32 { Ty::U32 } else { ty }, Kind::Unary(Unary::Sqrt, value(Ty::F32))));
    }
}

#[test]
fn functions_of_two_operands_have_one_type() {
    use Binary::*;
    for op in [Add, Sub, Mul, Div, Rem, Min, Max, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le] {
        for a in TYPES {
            let fits = match op {
                Add | Sub | Mul | Div | Min | Max | Lt | Le => a != Ty::Bool,
                Rem => a == Ty::U32,
                And | Or => a != Ty::F32,
                Xor | Shl | Shr => matches!(a, Ty::U32 | Ty::I32),
                Eq | Ne => true,
            };
            for b in TYPES {
                let other = if matches!(op, Shl | Shr) { b == Ty::U32 } else { a == b };
                for ty in TYPES {
                    let result = if op.compares() { ty == Ty::Bool } else { ty == a };
                    let kind = Kind::Binary(op, value(a), value(b));
                    assert_eq!(right(ty, kind), fits && other && result, "{op:?} of {a:?} and {b:?} as {ty:?}");
                }
            }
        }
    }
}

#[test]
fn fused_products_are_of_floats() {
    for at in 0..4 {
        for ty in TYPES {
            let mut types = [Ty::F32; 4];
            types[at] = ty;
            let [a, b, c, result] = types;
            assert_eq!(right(result, Kind::Fma(value(a), value(b), value(c))), ty == Ty::F32);
        }
    }
}

#[test]
fn a_selection_is_by_a_truth_value_between_values_of_its_type() {
    for a in TYPES {
        assert!(right(a, Kind::Select(value(Ty::Bool), value(a), value(a))));
        assert_eq!(right(a, Kind::Select(value(a), value(a), value(a))), a == Ty::Bool);
        for b in TYPES {
            assert_eq!(right(a, Kind::Select(value(Ty::Bool), value(a), value(b))), a == b);
            assert_eq!(right(a, Kind::Select(value(Ty::Bool), value(b), value(a))), a == b);
        }
    }
}

#[test]
fn bits_and_conversions_make_words() {
    for a in TYPES {
        for b in TYPES {
            assert_eq!(right(a, Kind::Bits(value(b))), a != Ty::Bool && b != Ty::Bool);
            assert_eq!(right(a, Kind::Convert(value(b))), a != Ty::Bool);
        }
    }
}

#[test]
fn stores_go_to_what_is_written() {
    passes(|m, [_, y, s, o]| {
        m.store(y, 0u32, 1.0f32);
        m.store(y, 0u32, 1i32);
        m.store(s, 0u32, 1.0f32);
        m.store(o, 0u32, 1i32);
        m.fault(y, 0u32);
    });
    assert_eq!(fails(|m, [x, ..]| m.store(x, 0u32, 1u32)), Wrong::OnlyRead { buffer: "x".into() });
    assert_eq!(fails(|m, [x, ..]| m.fault(x, 0u32)), Wrong::OnlyRead { buffer: "x".into() });
    fails(|m, [_, y, ..]| m.store(y, 0u32, true));
    fails(|m, [_, y, ..]| m.store(y, 0i32, 1u32));
    fails(|m, [_, _, s, _]| m.store(s, 0u32, 1u32));
    fails(|m, [.., o]| m.store(o, 0u32, 1.0f32));
    fails(|m, [_, y, ..]| m.fault(y, 0.0f32));
}

#[test]
fn conditions_are_truth_values_and_bounds_are_unsigned() {
    passes(|m, _| m.when(arg().lt(1u32), |_| ()));
    fails(|m, _| m.when(arg(), |_| ()));
    passes(|m, _| m.count("i", 0u32, arg(), 1u32, |_, _| ()));
    fails(|m, _| m.count("i", 0i32, arg(), 1u32, |_, _| ()));
    fails(|m, _| m.count("i", 0u32, 4i32, 1u32, |_, _| ()));
    fails(|m, _| m.count("i", 0u32, arg(), 1.0f32, |_, _| ()));
}

#[test]
fn a_variable_is_set_before_it_is_read_in_the_same_block_or_one_around() {
    passes(|m, _| {
        let v = m.variable("v", 0u32);
        m.when(arg().lt(1u32), |m| {
            m.set(v, m.get(v) + 1u32);
            m.count("i", 0u32, m.get(v), 1u32, |m, i| m.set(v, m.get(v) + i));
        });
        m.name("w", m.get(v) + 1u32);
    });
    let inside = |m: &mut Maker| {
        let mut v = None;
        m.when(arg().lt(1u32), |m| v = Some(m.variable("v", 0u32)));
        v.unwrap()
    };
    let read = fails(|m, _| {
        let v = inside(m);
        m.name("w", m.get(v) + 1u32);
    });
    assert_eq!(read, Wrong::Unset { name: "v".into() });
    let set = fails(|m, _| {
        let v = inside(m);
        m.set(v, 1u32);
    });
    assert_eq!(set, Wrong::SetApart { name: "v".into() });
    let other_branch = fails(|m, _| {
        let mut v = None;
        let v = &mut v;
        m.when(arg().lt(1u32), |m| *v = Some(m.variable("v", 0u32)));
        let v = v.unwrap();
        m.either(arg().lt(2u32), |_| (), |m| m.set(v, 1u32));
    });
    assert_eq!(other_branch, Wrong::SetApart { name: "v".into() });
    let mut own = kernel(|m, _| {
        m.variable("v", 0u32);
    });
    own.body = vec![Stmt::Set { var: Var(0), value: Expr::new(Ty::U32, Kind::Var(Var(0))) + 1u32 }];
    assert_eq!(wrong(&own), Wrong::Unset { name: "v".into() });
    fails(|m, _| {
        let v = m.variable("v", 0u32);
        m.set(v, 1.0f32);
    });
}

#[test]
fn what_does_not_change_is_set_once() {
    let twice = fails(|m, _| {
        m.name("v", arg() + 1u32);
        m.set(Var(0), 1u32);
    });
    assert_eq!(twice, Wrong::SetAgain { name: "v".into() });
    let elsewhere = fails(|m, _| {
        m.when(arg().lt(1u32), |m| {
            m.name("v", arg() + 1u32);
        });
        m.set(Var(0), 1u32);
    });
    assert_eq!(elsewhere, Wrong::SetAgain { name: "v".into() });
}

#[test]
fn a_loops_variable_is_the_loops() {
    let set = fails(|m, _| m.count("i", 0u32, 4u32, 1u32, |m, _| m.set(Var(0), 1u32)));
    assert_eq!(set, Wrong::SetAgain { name: "i".into() });
    let after = fails(|m, _| {
        let mut i = None;
        m.count("i", 0u32, 4u32, 1u32, |_, variable| i = Some(variable));
        m.name("w", i.unwrap() + 1u32);
    });
    assert_eq!(after, Wrong::Unset { name: "i".into() });
    let mut two = kernel(|m, _| m.count("i", 0u32, 4u32, 1u32, |_, _| ()));
    two.body.push(two.body[0].clone());
    assert_eq!(wrong(&two), Wrong::SetAgain { name: "i".into() });
    let mut changing = kernel(|m, _| m.count("i", 0u32, 4u32, 1u32, |_, _| ()));
    changing.vars[0].changes = true;
    assert_eq!(wrong(&changing), Wrong::LoopVariable { name: "i".into() });
    changing.vars[0] = Variable { name: "i".into(), ty: Ty::F32, changes: false };
    assert!(matches!(wrong(&changing), Wrong::Differs { .. }));
    // A bound cannot be of the loop's own variable.
    let mut own = kernel(|m, _| m.count("i", 0u32, 4u32, 1u32, |_, _| ()));
    if let Stmt::For { to, .. } = &mut own.body[0] {
        *to = Expr::new(Ty::U32, Kind::Var(Var(0)));
    }
    assert_eq!(wrong(&own), Wrong::Unset { name: "i".into() });
}

/// Whether a barrier may be where this decides, in a branch and as each bound of a loop.
fn decides(make: impl Fn(&mut Maker, [Memory; 4]) -> Expr) -> bool {
    let branch = verify(&kernel(|m, memories| {
        let expr = make(m, memories);
        m.when(expr.lt(3u32), Maker::barrier);
    }));
    for at in 0..3 {
        let bound = verify(&kernel(|m, memories| {
            let mut bounds = [Expr::from(0u32), 4u32.into(), 1u32.into()];
            bounds[at] = make(m, memories);
            let [from, to, step] = bounds;
            m.count("i", from, to, step, |m, _| m.barrier());
        }));
        assert_eq!(branch.is_ok(), bound.is_ok());
    }
    match branch {
        Ok(_) => true,
        Err(problem) => {
            assert!(matches!(*problem.wrong, Wrong::Parted { .. }), "{problem}");
            false
        }
    }
}

#[test]
fn a_barrier_is_where_the_same_decides_for_all_threads() {
    assert!(decides(|_, _| 1u32.into()));
    assert!(decides(|_, _| arg()));
    assert!(decides(|m, _| m.group(1)));
    assert!(decides(|m, [x, ..]| m.load(x, arg() + 1u32, Ty::U32)));
    assert!(decides(|m, _| m.name("v", arg() * 2u32)));
    assert!(decides(|m, _| {
        let v = m.variable("v", 0u32);
        m.count("k", 0u32, arg(), 1u32, |m, k| m.set(v, m.get(v) + k));
        m.get(v)
    }));
}

#[test]
fn a_barrier_is_not_where_threads_may_part() {
    assert!(!decides(|m, _| m.thread()));
    assert!(!decides(|m, _| m.thread() + arg()));
    assert!(!decides(|m, [_, y, ..]| m.load(y, 0u32, Ty::U32)));
    assert!(!decides(|m, [x, ..]| m.load(x, m.thread(), Ty::U32)));
    assert!(!decides(|m, [_, _, s, _]| m.load(s, 0u32, Ty::F32).bits(Ty::U32)));
    assert!(!decides(|m, [.., o]| m.load(o, 0u32, Ty::I32).bits(Ty::U32)));
    assert!(!decides(|m, _| m.name("v", m.thread() * 2u32)));
    // Set where only some threads come.
    assert!(!decides(|m, _| {
        let v = m.variable("v", 0u32);
        m.when(m.thread().lt(3u32), |m| m.set(v, 1u32));
        m.get(v)
    }));
    // Not the same in the second round, by way of another variable.
    assert!(!decides(|m, _| {
        let (v, w) = (m.variable("v", 0u32), m.variable("w", 0u32));
        m.count("k", 0u32, arg(), 1u32, |m, _| {
            m.set(v, m.get(w));
            m.set(w, m.thread());
        });
        m.get(v)
    }));
    // The variable of a loop whose threads do not go round together.
    assert!(!decides(|m, _| {
        let v = m.variable("v", 0u32);
        m.count("k", m.thread(), arg(), 1u32, |m, k| m.set(v, k));
        m.get(v)
    }));
}

#[test]
fn a_barrier_deep_inside_is_found_and_the_parting_is_named() {
    let kernel = kernel(|m, _| {
        m.when(m.thread().lt(3u32), |m| {
            m.count("i", 0u32, 4u32, 1u32, |m, _| {
                m.either(arg().lt(1u32), |_| (), Maker::barrier);
            });
        });
    });
    let problem = verify(&kernel).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "kernel `some`, body[0].then[0].loop[0].otherwise[0] (barrier): threads may part before this barrier or exchange, at body[0] \
         (branch): expected that what decides there is the same for all"
    );
}

#[test]
fn a_problem_says_where_what_and_what_was_expected() {
    let mut kernel = kernel(|m, [_, y, ..]| {
        m.count("i", 0u32, 4u32, 1u32, |m, i| {
            m.store(y, &i, 1u32);
            m.store(y, i.to(Ty::F32), 1u32);
        });
    });
    assert_eq!(
        verify(&kernel).unwrap_err().to_string(),
        "kernel `some`, body[0].loop[1] (stores to buffer `y`): an index is f32: expected u32"
    );
    kernel.buffers.push(Buffer { name: "".into(), written: false });
    assert_eq!(
        verify(&kernel).unwrap_err().to_string(),
        "kernel `some`: the name `` of a buffer is not valid: expected letters, digits and `_`, with a letter first"
    );
}

#[test]
fn a_function_takes_as_many_floats_as_it_says() {
    use crate::lang::{Function, Run};
    let run = Run(std::sync::Arc::new(|x| x[0]));
    let function = Function { name: "given".into(), operands: 2, wgsl: "return x0;".into(), c: None, run };
    let with = |operands: Vec<Expr>| {
        let function = function.clone();
        move |m: &mut Maker, _: [Memory; 4]| {
            let value = m.call(&function, operands);
            m.variable("v", value);
        }
    };
    passes(with(vec![value(Ty::F32), 1.0.into()]));
    let few = Wrong::Operands { name: "given".into(), found: 1, expected: 2 };
    assert_eq!(fails(with(vec![value(Ty::F32)])), few);
    assert!(matches!(fails(with(vec![value(Ty::F32), value(Ty::U32)])), Wrong::Differs { .. }));
    assert!(!right(Ty::F32, Kind::Call(0, vec![])), "there is no such function");
}

fn exchange(bit: u32) -> Expr {
    Expr::new(Ty::U32, Kind::Exchange(arg(), bit))
}

#[test]
fn values_are_exchanged_with_threads_that_there_are_and_by_all_together() {
    passes(|m, _| {
        m.variable("v", exchange(16));
    });
    for bit in [0, 3, 32, 1 << 31] {
        assert_eq!(
            fails(|m, _| {
                m.variable("v", exchange(bit));
            }),
            Wrong::Exchange { bit, threads: 32 }
        );
    }
    passes(|m, _| {
        m.when(arg().lt(3u32), |m| {
            m.variable("v", exchange(1));
        })
    });
    let parted = fails(|m, _| {
        m.when(m.thread().lt(3u32), |m| {
            m.variable("v", exchange(1));
        })
    });
    assert!(matches!(parted, Wrong::Parted { .. }), "{parted}");
    for ty in TYPES {
        assert_eq!(right(ty, Kind::Exchange(value(ty), 1)), ty != Ty::Bool);
        assert_eq!(right(Ty::F32, Kind::FromHalf(value(ty))), ty == Ty::U32);
    }
}

#[test]
fn a_kernel_says_how_many_threads_exchange_values() {
    assert_eq!(kernel(|_, _| ()).lanes(), 1);
    let sum = kernel(|m, _| {
        m.sum_over_lanes(arg(), 8);
    });
    assert_eq!(sum.lanes(), 8);
}
