use super::*;
use crate::lang::{Binary, Expr, Half, Kind, Maker, Memory, Tile, Ty, Unary};
use crate::mutate::{Mistake, mutants};

const THREADS: u32 = 8;

/// Runs what `make` makes of a kernel with the buffers `x`, which is only read, and `y`, by one workgroup.
fn run_one(x: &mut Words, y: &mut Words, make: impl FnOnce(&mut Maker, Memory, Memory)) -> Result<Counts, Finding> {
    let mut m = Maker::new("some", THREADS);
    let (from, to) = (m.buffer("x", false), m.buffer("y", true));
    make(&mut m, from, to);
    run(&m.finish(), [1, 1, 1], &[], &mut [x, y], &Options::default())
}

/// What is found when there is nothing to read and 8 words to write.
fn wrong(make: impl FnOnce(&mut Maker, Memory)) -> Option<Wrong> {
    let (mut x, mut y) = (Words::default(), Words::new(8));
    let finding = run_one(&mut x, &mut y, |m, _, y| make(m, y)).err()?;
    Some(finding.found().expect("a thread should have done it").wrong.clone())
}

/// The words that a kernel of one thread each writes for a value.
fn computed(value: impl FnOnce(&mut Maker, Memory) -> Expr, x: &[u32]) -> Vec<u32> {
    let (mut x, mut y) = (Words::of(x), Words::new(8));
    run_one(&mut x, &mut y, |m, x, y| {
        let value = value(m, x);
        m.store(y, m.thread(), value);
    })
    .unwrap();
    y.get(0..8).unwrap().to_vec()
}

/// Sums of rows of `n` numbers, one workgroup for each: every thread sums each eighth number, and then neighbours are added,
/// and neighbours of these, until one is left.
fn sum_of_rows() -> Kernel {
    let mut m = Maker::new("sum_of_rows", THREADS);
    let (x, y, n) = (m.buffer("x", false), m.buffer("y", true), m.arg("n"));
    let part = m.shared("part", Ty::F32, THREADS);
    let sum = m.variable("sum", 0.0f32);
    m.count("i", m.thread(), &n, THREADS, |m, i| {
        let at = m.group(0) * &n + i;
        m.set(sum, m.get(sum) + m.load(x, at, Ty::F32));
    });
    m.store(part, m.thread(), m.get(sum));
    m.barrier();
    m.count("k", 0u32, THREADS.ilog2(), 1u32, |m, k| {
        let apart = m.name("apart", Expr::from(1u32).shl(k));
        let at = m.name("at", m.thread() * 2u32 * &apart);
        m.when(at.lt(THREADS), |m| {
            let both = m.load(part, &at, Ty::F32) + m.load(part, &at + apart, Ty::F32);
            m.store(part, at, both);
        });
        m.barrier();
    });
    m.when(m.thread().eq(0u32), |m| m.store(y, m.group(0), m.load(part, 0u32, Ty::F32)));
    m.finish()
}

/// Three rows of 19 different numbers, none of them 0, in a buffer that ends with them.
fn sum_with(kernel: &Kernel) -> Result<Vec<f32>, Finding> {
    let numbers: Vec<f32> = (1..=57u16).map(|number| f32::from(number * number)).collect();
    let (mut x, mut y) = (Words::of_floats(&numbers), Words::new(3));
    run(kernel, [3, 1, 1], &[19], &mut [&mut x, &mut y], &Options::default())?;
    Ok(y.floats())
}

#[test]
fn a_reduction_by_shared_memory_sums_rows() {
    let sums: Vec<f32> = (0..3).map(|row| (1..=19).map(|i| ((row * 19 + i) * (row * 19 + i)) as f32).sum()).collect();
    assert_eq!(sum_with(&sum_of_rows()).unwrap(), sums);
}

#[test]
fn every_mutant_of_the_reduction_is_noticed() {
    let kernel = sum_of_rows();
    let sums = sum_with(&kernel);
    let mutants = mutants(&kernel);
    let count = |mistake| mutants.iter().filter(|mutant| mutant.mistake == mistake).count();
    assert_eq!(count(Mistake::BarrierDeleted), 2);
    assert_eq!((count(Mistake::EndRaised), count(Mistake::EndLowered)), (2, 2));
    assert_eq!((count(Mistake::ComparisonWidened), count(Mistake::SharedHalved)), (1, 1));
    for mutant in &mutants {
        let noticed = sum_with(&mutant.kernel);
        match mutant.mistake {
            Mistake::BarrierDeleted => {
                let wrong = noticed.as_ref().unwrap_err().found().unwrap().wrong.clone();
                assert!(matches!(wrong, Wrong::Race { .. }), "{mutant}: {wrong}");
            }
            Mistake::SharedHalved => {
                let wrong = noticed.as_ref().unwrap_err().found().unwrap().wrong.clone();
                assert!(matches!(wrong, Wrong::Outside { len: 4, .. }), "{mutant}: {wrong}");
            }
            _ => (),
        }
        assert_ne!(noticed, sums, "{mutant}");
    }
}

#[test]
fn what_is_executed_is_counted() {
    let numbers = vec![1.0f32; 16];
    let (mut x, mut y) = (Words::of_floats(&numbers), Words::new(2));
    let kernel = sum_of_rows();
    let counts = run(&kernel, [2, 1, 1], &[8], &mut [&mut x, &mut y], &Options::default()).unwrap();
    assert_eq!((counts.groups, counts.barriers), (2, 2 * (1 + 3)));
    assert_eq!(counts.buffer, Traffic { loads: 16, stores: 2 });
    assert_eq!(counts.shared, Traffic { loads: 2 * (2 * 7 + 1), stores: 2 * (8 + 7) });
    assert_eq!(counts.own, Traffic::default());
    let mut twice = counts;
    twice += counts;
    assert_eq!((twice.groups, twice.statements), (4, 2 * counts.statements));

    let counts = run_one(&mut Words::default(), &mut Words::new(8), |m, _, y| {
        let f = m.name("f", m.thread().to(Ty::F32));
        m.when(m.thread().lt(3u32), |m| m.store(y, m.thread(), f.fma(2.0, 1.0).unary(Unary::Sqrt) / 3.0));
    })
    .unwrap();
    assert_eq!((counts.fmas, counts.functions), (3, 6));
    assert_eq!(counts.operations, 8 + 8 + 3 * 3);
    // A workgroup, a name, a branch, a store.
    assert_eq!(counts.statements, 4);
}

#[test]
fn threads_of_a_workgroup_race_without_a_barrier() {
    let neighbour = |barrier: bool| {
        wrong(|m, y| {
            let s = m.shared("s", Ty::U32, 8);
            m.store(s, m.thread(), m.thread());
            if barrier {
                m.barrier();
            }
            m.store(y, m.thread(), m.load(s, (m.thread() + 1u32).rem(8u32), Ty::U32));
        })
    };
    assert_eq!(neighbour(true), None);
    let race = neighbour(false).unwrap();
    let memory = "shared array `s`".into();
    assert_eq!(race, Wrong::Race { memory, index: 1, before: Access::Write, other: Some(1), now: Access::Read });
}

#[test]
fn a_write_after_reads_of_others_is_a_race() {
    let shift = |barrier: bool| {
        wrong(|m, _| {
            let s = m.shared("s", Ty::U32, 8);
            m.store(s, m.thread(), m.thread());
            m.barrier();
            let next = m.name("next", m.load(s, (m.thread() + 1u32).min(7u32), Ty::U32));
            if barrier {
                m.barrier();
            }
            m.store(s, m.thread(), next);
        })
    };
    assert_eq!(shift(true), None);
    let Some(Wrong::Race { index: 1, before: Access::Read, other: Some(0), now: Access::Write, .. }) = shift(false)
    else {
        panic!()
    };
    let all_read = wrong(|m, y| {
        m.when(m.thread().eq(0u32), |m| m.store(y, 3u32, 1u32));
        m.barrier();
        m.name("v", m.load(y, 3u32, Ty::U32));
        m.when(m.thread().eq(0u32), |m| m.store(y, 3u32, 2u32));
    });
    assert!(matches!(all_read, Some(Wrong::Race { before: Access::Read, other: None, .. })));
}

#[test]
fn a_race_within_one_statement_is_found_even_of_equal_values() {
    assert_eq!(wrong(|m, y| m.store(y, m.thread(), 1u32)), None);
    let race = wrong(|m, y| m.store(y, m.thread().shr(1u32), 1u32));
    let memory = "buffer `y`".into();
    let expected = Wrong::Race { memory, index: 0, before: Access::Write, other: Some(0), now: Access::Write };
    assert_eq!(race, Some(expected));
}

#[test]
fn races_in_both_branches_of_one_condition_are_found() {
    let race = wrong(|m, y| {
        m.either(
            m.thread().lt(1u32),
            |m| m.store(y, 0u32, 1u32),
            |m| {
                m.when(m.thread().eq(7u32), |m| m.store(y, 0u32, 2u32));
            },
        );
    });
    assert!(matches!(race, Some(Wrong::Race { index: 0, other: Some(0), .. })));
}

#[test]
fn a_thread_may_do_as_it_likes_with_its_own_word() {
    let none = wrong(|m, y| {
        m.store(y, m.thread(), 1u32);
        m.store(y, m.thread(), m.load(y, m.thread(), Ty::U32) + 1u32);
        m.barrier();
        m.store(y, m.thread().shr(0u32), m.load(y, m.thread(), Ty::U32) + 1u32);
    });
    assert_eq!(none, None);
}

#[test]
fn faults_are_no_races() {
    let (mut x, mut y) = (Words::default(), Words::of([0, 0]));
    run_one(&mut x, &mut y, |m, _, y| m.fault(y, 1u32)).unwrap();
    assert_eq!(y.values(), [0, 1]);
    let outside = run_one(&mut x, &mut y, |m, _, y| m.fault(y, 2u32)).unwrap_err();
    assert!(matches!(outside.found().unwrap().wrong, Wrong::Outside { index: 2, len: 2, .. }));
}

/// Runs a kernel of one thread by 2 · 2 · 2 workgroups, on 8 words that are 0.
fn by_groups(make: impl FnOnce(&mut Maker, Memory, Expr)) -> Result<Vec<u32>, Wrong> {
    let mut m = Maker::new("some", 1);
    let y = m.buffer("y", true);
    let number = m.group(0) + m.group(1) * 2u32 + m.group(2) * 4u32;
    make(&mut m, y, number);
    let mut y = Words::of([0; 8]);
    let result = run(&m.finish(), [2, 2, 2], &[], &mut [&mut y], &Options::default());
    result.map(|_| y.values().to_vec()).map_err(|finding| finding.found().unwrap().wrong.clone())
}

#[test]
fn workgroups_race_for_a_word_of_a_buffer() {
    assert_eq!(by_groups(|m, y, number| m.store(y, &number, &number)).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    let race = |before, other, now| Err(Wrong::Groups { memory: "buffer `y`".into(), index: 3, before, other, now });
    let write_write = by_groups(|m, y, number| {
        m.when(number.eq(2u32).or(number.eq(7u32)), |m| m.store(y, 3u32, 1u32));
    });
    assert_eq!(write_write, race(Access::Write, [0, 1, 0], Access::Write));
    let write_read = by_groups(|m, y, number| {
        let mine = number.eq(1u32);
        m.either(mine, |m| m.store(y, 3u32, 1u32), |m| m.store(y, &number, m.load(y, 3u32, Ty::U32)));
    });
    assert_eq!(write_read, race(Access::Read, [0, 0, 0], Access::Write));
    let read_write = by_groups(|m, y, number| {
        m.either(number.eq(0u32), |m| m.store(y, 3u32, 1u32), |m| m.store(y, &number, m.load(y, 3u32, Ty::U32)));
    });
    assert_eq!(read_write, race(Access::Write, [0, 0, 0], Access::Read));
}

#[test]
fn a_workgroups_own_read_does_not_hide_that_of_another() {
    let race = by_groups(|m, y, number| {
        let v = m.name("v", m.load(y, 3u32, Ty::U32));
        m.barrier();
        m.when(number.eq(7u32), |m| m.store(y, 3u32, v));
    });
    let Err(Wrong::Groups { before: Access::Read, other: [0, 0, 0], now: Access::Write, .. }) = race else {
        panic!("{race:?}")
    };
}

#[test]
fn another_dispatch_may_read_what_one_wrote() {
    let mut m = Maker::new("move_on", 1);
    let y = m.buffer("y", true);
    let (from, to) = (m.arg("from"), m.arg("to"));
    m.store(y, to + m.group(0), m.load(y, from, Ty::U32) + m.group(0));
    let program = Program::new(&m.finish()).unwrap();
    let mut y = Words::new(16);
    y.put(0, &[5]).unwrap();
    for (from, to) in [(0, 4), (6, 8), (9, 4)] {
        program.run([4, 1, 1], &[from, to], &mut [&mut y], &Options::default()).unwrap();
    }
    assert_eq!(y.get(4..8).unwrap(), [8, 9, 10, 11]);
    assert_eq!(y.get(8..12).unwrap(), [7, 8, 9, 10]);
    assert!(!y.is_known(12) && y.get(8..13).is_none());
}

#[test]
fn intervals_begin_anew_before_they_run_out() {
    let mut y = Words::of([0; 8]);
    y.close(u32::MAX - 1);
    run_one(&mut Words::default(), &mut y, |m, _, y| {
        m.barrier();
        m.store(y, m.thread(), 1u32);
    })
    .unwrap();
    assert_eq!(y.last(), 2);
}

#[test]
fn an_index_beyond_the_end_is_found_in_every_memory() {
    let outside = |index, access, memory: &str| Some(Wrong::Outside { memory: memory.into(), index, len: 8, access });
    assert_eq!(wrong(|m, y| m.store(y, m.thread() + 1u32, 1u32)), outside(8, Access::Write, "buffer `y`"));
    assert_eq!(
        wrong(|m, _| {
            let s = m.shared("s", Ty::U32, 8);
            m.store(s, m.thread() + 1u32, 1u32);
        }),
        outside(8, Access::Write, "shared array `s`")
    );
    assert_eq!(
        wrong(|m, _| {
            let o = m.own("o", Ty::U32, 8);
            m.name("v", m.load(o, m.thread() + 1u32, Ty::U32));
        }),
        // The first thread's word holds nothing, which is found first.
        Some(Wrong::Unwritten { memory: "own array `o`".into(), index: 1 })
    );
    assert_eq!(
        wrong(|m, _| {
            let o = m.own("o", Ty::U32, 8);
            m.count("i", 0u32, 9u32, 1u32, |m, i| m.store(o, &i, &i));
        }),
        outside(8, Access::Write, "own array `o`")
    );
    let (mut x, mut y) = (Words::of([0; 8]), Words::new(8));
    let read = run_one(&mut x, &mut y, |m, x, _| {
        m.name("v", m.load(x, m.thread() + 1u32, Ty::U32));
    });
    let found = read.unwrap_err().found().unwrap().clone();
    assert_eq!((Some(found.wrong), found.thread), (outside(8, Access::Read, "buffer `x`"), 7));
}

#[test]
fn a_selection_computes_both_values() {
    let found = wrong(|m, y| {
        let safe = m.thread().lt(100u32).select(0u32, m.load(y, 9u32, Ty::U32));
        m.name("v", safe);
    });
    assert!(matches!(found, Some(Wrong::Outside { index: 9, .. })));
}

#[test]
fn a_read_of_what_nobody_wrote_is_found() {
    for barrier in [false, true] {
        let shared = wrong(|m, _| {
            let s = m.shared("s", Ty::F32, 8);
            m.when(m.thread().lt(7u32), |m| m.store(s, m.thread(), 1.0f32));
            if barrier {
                m.barrier();
            }
            m.name("v", m.load(s, m.thread(), Ty::F32));
        });
        assert_eq!(shared, Some(Wrong::Unwritten { memory: "shared array `s`".into(), index: 7 }));
    }
    // What another part left in the same memory is not this one's; what was put into the whole array is.
    for whole in [false, true] {
        let part = wrong(|m, _| {
            let s = m.shared("s", Ty::F32, 16);
            let (first, second) = (m.part("first", s, 0, 12), m.part("second", s, 4, 12));
            m.store(if whole { s } else { first }, m.thread() + 4u32, 1.0f32);
            m.when(m.thread().lt(7u32), |m| m.store(second, m.thread(), 1.0f32));
            m.name("v", m.load(second, m.thread(), Ty::F32));
        });
        let unwritten = Wrong::Unwritten { memory: "part `second`".into(), index: 7 };
        assert_eq!(part, (!whole).then_some(unwritten));
    }
    let own = wrong(|m, _| {
        let o = m.own("o", Ty::F32, 2);
        m.when(m.thread().eq(0u32), |m| m.store(o, 1u32, 1.0f32));
        m.name("v", m.load(o, 1u32, Ty::F32));
    });
    assert_eq!(own, Some(Wrong::Unwritten { memory: "own array `o`".into(), index: 1 }));
    let mut x = Words::of([0; 8]);
    x.forget(5..6).unwrap();
    let read = |x: &mut Words| {
        run_one(x, &mut Words::new(8), |m, x, y| m.store(y, m.thread(), m.load(x, m.thread(), Ty::U32)))
    };
    let found = read(&mut x).unwrap_err().found().unwrap().clone();
    assert_eq!((found.thread, found.wrong), (5, Wrong::Unwritten { memory: "buffer `x`".into(), index: 5 }));
    x.put(5, &[1]).unwrap();
    read(&mut x).unwrap();
}

#[test]
fn arrays_hold_nothing_again_in_the_next_workgroup() {
    for own in [false, true] {
        let found = by_groups(|m, _, number| {
            let s = if own { m.own("s", Ty::U32, 1) } else { m.shared("s", Ty::U32, 1) };
            m.when(number.eq(0u32), |m| m.store(s, 0u32, 1u32));
            m.name("v", m.load(s, 0u32, Ty::U32));
        });
        assert!(matches!(found, Err(Wrong::Unwritten { index: 0, .. })), "{found:?}");
        let used_again = by_groups(|m, y, number| {
            let s = if own { m.own("s", Ty::U32, 1) } else { m.shared("s", Ty::U32, 1) };
            m.store(s, 0u32, &number);
            m.store(y, &number, m.load(s, 0u32, Ty::U32));
        });
        assert_eq!(used_again.unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn a_barrier_that_some_threads_miss_is_found() {
    let branch = wrong(|m, _| m.when(m.thread().ne(2u32), Maker::barrier));
    assert_eq!(branch, Some(Wrong::Parted { arrived: 7, threads: 8 }));
    let (mut x, mut y) = (Words::default(), Words::new(8));
    let missing = run_one(&mut x, &mut y, |m, _, _| m.when(m.thread().ne(2u32), Maker::barrier));
    assert_eq!(missing.unwrap_err().found().unwrap().thread, 2);
    let rounds = wrong(|m, _| m.count("i", m.thread(), 9u32, 1u32, |m, _| m.barrier()));
    assert_eq!(rounds, Some(Wrong::Parted { arrived: 7, threads: 8 }));
    // What decides is not the same for sure, but it is here.
    assert_eq!(wrong(|m, _| m.when(m.thread().lt(8u32), Maker::barrier)), None);
}

#[test]
fn loops_that_do_not_end_are_found() {
    assert_eq!(wrong(|m, _| m.count("i", 0u32, 4u32, 0u32, |_, _| ())), Some(Wrong::Step));
    let wraps = wrong(|m, _| m.count("i", 0u32, u32::MAX, 1u32 << 31, |_, _| ()));
    assert_eq!(wraps, Some(Wrong::Wraps { from: 1 << 31, step: 1 << 31 }));
    let mut m = Maker::new("long", 1);
    m.count("i", 0u32, u32::MAX, 1u32, |_, _| ());
    let long = run(&m.finish(), [1, 1, 1], &[], &mut [], &Options { statements: 1000 });
    assert_eq!(long.unwrap_err().found().unwrap().wrong, Wrong::Endless { statements: 1000 });
    let empty = Maker::new("empty", 1).finish();
    let many = run(&empty, [u32::MAX; 3], &[], &mut [], &Options { statements: 1000 });
    assert_eq!(many.unwrap_err().found().unwrap().wrong, Wrong::Endless { statements: 1000 });
    assert_eq!(run(&empty, [7, 0, 7], &[], &mut [], &Options::default()), Ok(Counts::default()));
}

#[test]
fn integers_are_not_divided_by_zero_nor_shifted_too_far() {
    let half = |op, ty: Ty, b: u32| {
        wrong(|m, _| {
            let b = if matches!(op, Binary::Shl | Binary::Shr) { b.into() } else { Expr::from(b).to(ty) };
            m.when(m.thread().eq(1u32), |m| {
                m.name("v", Expr::new(ty, Kind::Binary(op, m.thread().to(ty), b)));
            });
        })
    };
    for ty in [Ty::U32, Ty::I32] {
        assert_eq!(half(Binary::Div, ty, 0), Some(Wrong::DividedByZero));
        assert_eq!(half(Binary::Div, ty, 1), None);
        for op in [Binary::Shl, Binary::Shr] {
            assert_eq!(half(op, ty, 32), Some(Wrong::Shift { by: 32 }));
            assert_eq!(half(op, ty, 31), None);
        }
    }
    assert_eq!(half(Binary::Rem, Ty::U32, 0), Some(Wrong::DividedByZero));
    assert_eq!(half(Binary::Div, Ty::F32, 0), None);
    // A thread that does not take part does nothing wrong.
    let apart = wrong(|m, y| {
        m.when(m.thread().ne(0u32), |m| m.store(y, m.thread(), Expr::from(8u32) / m.thread()));
    });
    assert_eq!(apart, None);
}

#[test]
fn a_loops_end_and_step_are_computed_once() {
    let sums = computed(
        |m, _| {
            let (end, sum) = (m.variable("end", 4u32), m.variable("sum", 0u32));
            m.count("i", 0u32, m.get(end), 1u32, |m, i| {
                m.set(end, 100u32);
                m.set(sum, m.get(sum) + i);
            });
            m.get(sum)
        },
        &[],
    );
    assert_eq!(sums, [6; 8]);
}

#[test]
fn each_thread_goes_round_as_often_as_it_should() {
    let sums = computed(
        |m, _| {
            let sum = m.variable("sum", 0u32);
            m.count("i", 0u32, m.thread(), 1u32, |m, i| {
                m.either(i.rem(2u32).eq(0u32), |m| m.set(sum, m.get(sum) + &i), |m| m.set(sum, m.get(sum) + 100u32));
            });
            m.get(sum)
        },
        &[],
    );
    assert_eq!(sums, [0, 0, 100, 102, 202, 206, 306, 312]);
}

#[test]
fn few_threads_compute_what_many_do() {
    let all = computed(|m, x| m.load(x, m.thread(), Ty::F32).fma(3.0, 1.0) + 2.0, &[1.5f32.to_bits(); 8]);
    let one_by_one = computed(
        |m, x| {
            let v = m.variable("v", 0.0f32);
            m.count("i", 0u32, 8u32, 1u32, |m, i| {
                m.when(m.thread().eq(i), |m| {
                    let sum = m.load(x, m.thread(), Ty::F32).fma(3.0, 1.0) + 2.0;
                    m.set(v, m.thread().lt(9u32).select(sum, 0.0));
                });
            });
            m.get(v)
        },
        &[1.5f32.to_bits(); 8],
    );
    assert_eq!((all, one_by_one), (vec![7.5f32.to_bits(); 8], vec![7.5f32.to_bits(); 8]));
}

#[test]
fn floats_are_those_of_rust() {
    let x = [0.5f32, -1.5, 2.5, -0.0, f32::NAN, f32::INFINITY, 3e9, -7.7];
    let bits = x.map(f32::to_bits);
    let of = |f: fn(f32) -> f32| x.map(|x| f(x).to_bits()).to_vec();
    let apply = |op| computed(|m, x| m.load(x, m.thread(), Ty::F32).unary(op), &bits);
    assert_eq!(apply(Unary::Neg), of(|x| -x));
    assert_eq!(apply(Unary::Abs), of(f32::abs));
    assert_eq!(apply(Unary::Floor)[..4], of(f32::floor)[..4]);
    assert_eq!(apply(Unary::Round)[..4], [0.0f32, -2.0, 2.0, -0.0].map(f32::to_bits));
    assert_eq!(apply(Unary::Trunc)[..4], of(f32::trunc)[..4]);
    assert_eq!(apply(Unary::Sqrt)[0], 0.5f32.sqrt().to_bits());
    assert_eq!(apply(Unary::Exp2)[..4], of(f32::exp2)[..4]);
    assert_eq!(apply(Unary::Recip)[5..], of(|x| 1.0 / x)[5..]);
    let convert = |ty| computed(|m, x| m.load(x, m.thread(), Ty::F32).to(ty).bits(Ty::U32), &bits);
    assert_eq!(convert(Ty::U32), x.map(|x| x as u32));
    assert_eq!(convert(Ty::I32), x.map(|x| x as i32 as u32));
    let binary = |op, b: f32| computed(|m, x| m.load(x, m.thread(), Ty::F32).binary(op, b), &bits);
    assert_eq!(binary(Binary::Min, 1.0)[4], 1.0f32.to_bits());
    assert_eq!(binary(Binary::Max, 1.0)[..3], [1.0f32, 1.0, 2.5].map(f32::to_bits));
    let compare = |op, b: f32| computed(|m, x| m.load(x, m.thread(), Ty::F32).binary(op, b).to(Ty::U32), &bits);
    assert_eq!(compare(Binary::Lt, 0.5), [0, 1, 0, 1, 0, 0, 0, 1]);
    assert_eq!(compare(Binary::Le, 0.5), [1, 1, 0, 1, 0, 0, 0, 1]);
    assert_eq!(compare(Binary::Eq, 0.0), [0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(compare(Binary::Ne, 0.0), [1, 1, 1, 0, 1, 1, 1, 1]);
    // Rounded once: (1 + 2⁻¹²)² − 1 − 2⁻¹¹ is 2⁻²⁴, which a product that is rounded loses.
    let one = 1.0 + 2f32.powi(-12);
    let fused = computed(|m, x| m.load(x, 0u32, Ty::F32).fma(one, -1.0 - 2f32.powi(-11)), &[one.to_bits()]);
    assert_eq!(f32::from_bits(fused[0]), 2f32.powi(-24));
}

#[test]
fn integers_are_those_of_rust() {
    let x = [0u32, 1, 7, 31, 1 << 31, u32::MAX, u32::MAX - 6, 12345];
    let signed = |op, b: i32| computed(|m, x| m.load(x, m.thread(), Ty::I32).binary(op, b).bits(Ty::U32), &x);
    let unsigned = |op, b: u32| computed(|m, x| m.load(x, m.thread(), Ty::U32).binary(op, b), &x);
    let ints = |f: fn(i32) -> i32| x.map(|x| f(x as i32) as u32);
    assert_eq!(unsigned(Binary::Add, 9), x.map(|x| x.wrapping_add(9)));
    assert_eq!(unsigned(Binary::Sub, 9), x.map(|x| x.wrapping_sub(9)));
    assert_eq!(unsigned(Binary::Mul, 9), x.map(|x| x.wrapping_mul(9)));
    assert_eq!(unsigned(Binary::Div, 7), x.map(|x| x / 7));
    assert_eq!(unsigned(Binary::Rem, 7), x.map(|x| x % 7));
    assert_eq!(unsigned(Binary::Min, 7), x.map(|x| x.min(7)));
    assert_eq!(unsigned(Binary::Max, 7), x.map(|x| x.max(7)));
    assert_eq!(unsigned(Binary::And, 6), x.map(|x| x & 6));
    assert_eq!(unsigned(Binary::Or, 6), x.map(|x| x | 6));
    assert_eq!(unsigned(Binary::Xor, 6), x.map(|x| x ^ 6));
    assert_eq!(unsigned(Binary::Shl, 3), x.map(|x| x << 3));
    assert_eq!(unsigned(Binary::Shr, 3), x.map(|x| x >> 3));
    assert_eq!(signed(Binary::Div, -1), ints(|x| x.wrapping_div(-1)));
    assert_eq!(signed(Binary::Div, 2), ints(|x| x / 2));
    assert_eq!(signed(Binary::Min, -2), ints(|x| x.min(-2)));
    assert_eq!(signed(Binary::Max, -2), ints(|x| x.max(-2)));
    let shifted = computed(|m, x| m.load(x, m.thread(), Ty::I32).shr(3u32).bits(Ty::U32), &x);
    assert_eq!(shifted, ints(|x| x >> 3));
    let below = computed(|m, x| m.load(x, m.thread(), Ty::I32).lt(0i32).to(Ty::U32), &x);
    assert_eq!(below, ints(|x| (x < 0).into()));
    let below = computed(|m, x| m.load(x, m.thread(), Ty::U32).le(7u32).to(Ty::U32), &x);
    assert_eq!(below, x.map(|x| (x <= 7).into()));
    let float = computed(|m, x| m.load(x, m.thread(), Ty::I32).to(Ty::F32), &x);
    assert_eq!(float, x.map(|x| (x as i32 as f32).to_bits()));
    let float = computed(|m, x| m.load(x, m.thread(), Ty::U32).to(Ty::F32), &x);
    assert_eq!(float, x.map(|x| (x as f32).to_bits()));
    let not = computed(|m, x| m.load(x, m.thread(), Ty::U32).unary(Unary::Not), &x);
    assert_eq!(not, x.map(|x| !x));
    let negative = computed(|m, x| m.load(x, m.thread(), Ty::I32).unary(Unary::Neg).bits(Ty::U32), &x);
    assert_eq!(negative, x.map(u32::wrapping_neg));
}

#[test]
fn a_dispatch_has_the_kernels_arguments_and_buffers() {
    let mut m = Maker::new("some", 1);
    m.arg("n");
    m.buffer("x", false);
    let kernel = m.finish();
    let mut x = Words::default();
    run(&kernel, [1, 1, 1], &[1], &mut [&mut x], &Options::default()).unwrap();
    let finding = run(&kernel, [1, 1, 1], &[], &mut [&mut x], &Options::default()).unwrap_err();
    assert_eq!(finding.to_string(), "kernel `some` is given 0 arguments: expected 1");
    let finding = run(&kernel, [1, 1, 1], &[1], &mut [], &Options::default()).unwrap_err();
    assert_eq!(finding.to_string(), "kernel `some` is given 0 buffers: expected 1");
    let mut m = Maker::new("some", 1024);
    m.own("o", Ty::F32, u32::MAX);
    let finding = run(&m.finish(), [1, 1, 1], &[], &mut [], &Options::default()).unwrap_err();
    assert!(matches!(finding, Finding::Arrays { .. }));
    let finding = run(&Maker::new("", 1).finish(), [1, 1, 1], &[], &mut [], &Options::default()).unwrap_err();
    assert!(matches!(finding, Finding::Invalid(_)));
}

#[test]
fn a_finding_says_where_who_and_what_was_expected() {
    let (mut x, mut y) = (Words::default(), Words::new(8));
    let finding = run_one(&mut x, &mut y, |m, _, y| {
        m.count("i", 0u32, 9u32, 1u32, |m, i| m.when(m.thread().eq(3u32), |m| m.store(y, i, 1u32)));
    });
    assert_eq!(
        finding.unwrap_err().to_string(),
        "kernel `some`, body[0].loop[0].then[0] (stores to buffer `y`), thread 3 of workgroup [0, 0, 0]: element 8 of \
         buffer `y` is written: expected an index below 8"
    );
}

#[test]
fn words_know_their_ends() {
    let mut words = Words::new(4);
    words.put(1, &[1, 2]).unwrap();
    assert_eq!(words.get(1..3), Some(&[1, 2][..]));
    assert_eq!(words.get(1..4), None);
    assert_eq!(words.get(3..9), None);
    assert_eq!(words.put(3, &[1, 2]), Err(Outside { range: 3..5, len: 4 }));
    assert!(words.put(usize::MAX, &[1]).is_err() && words.forget(0..5).is_err());
    words.resize(6);
    assert!(words.is_known(2) && !words.is_known(5) && !words.is_known(6));
    assert_eq!((words.len(), words.is_empty()), (6, false));
}

#[test]
fn sums_over_lanes_are_the_same_in_all_of_them() {
    let x = [1, 20, 300, 4000, 5, 60, 700, 8000];
    let sum = |lanes| computed(|m, x| m.sum_over_lanes(m.load(x, m.thread(), Ty::U32), lanes), &x);
    assert_eq!(sum(1), x);
    assert_eq!(sum(2), [21, 21, 4300, 4300, 65, 65, 8700, 8700]);
    assert_eq!(sum(4), [4321, 4321, 4321, 4321, 8765, 8765, 8765, 8765]);
    assert_eq!(sum(8), [13086; 8]);
}

#[test]
fn an_exchange_that_some_threads_do_not_come_to_is_found() {
    let found = wrong(|m, y| {
        m.when(m.thread().lt(6u32), |m| {
            let other = Expr::new(Ty::U32, Kind::Exchange(m.thread(), 1));
            m.store(y, m.thread(), other);
        })
    });
    assert_eq!(found, Some(Wrong::Parted { arrived: 6, threads: 8 }));
}

#[test]
fn halves_are_what_they_stand_for_whatever_the_other_bits_are() {
    // 1, −2, the largest, the smallest normal and subnormal ones, infinity, and zeros.
    let x = [0x3c00, 0xffff_c000, 0x1_7bff, 0x0400, 0x0001, 0xfc00, 0x8000, 0xabcd_0000];
    let got = computed(|m, x| m.load(x, m.thread(), Ty::U32).half_to_float().bits(Ty::U32), &x);
    let want = [1.0, -2.0, 65504.0, 2f32.powi(-14), 2f32.powi(-24), f32::NEG_INFINITY, -0.0, 0.0];
    assert_eq!(got, want.map(f32::to_bits));
}

/// y = the four words from 4 · thread on, added up; `first` is where they are said to begin.
fn added(first: u32) -> Kernel {
    let mut m = Maker::new("added", 2);
    let (x, y) = (m.buffer("x", false), m.buffer("y", true));
    let index = m.thread() * 4u32 + first;
    let [a, b, c, d] = m.load_many("part", x, index, Ty::F32);
    m.store(y, m.thread(), a + b + (c + d));
    m.finish()
}

#[test]
fn elements_are_read_at_once_where_they_may_begin() {
    let x: Vec<f32> = (0..12u8).map(f32::from).collect();
    let run = |first: u32, len: usize| {
        let mut y = Words::new(2);
        run(&added(first), [1, 1, 1], &[], &mut [&mut Words::of_floats(&x[..len]), &mut y], &Options::default())
            .map(|counts| (y.floats(), counts.buffer.loads))
    };
    assert_eq!(run(0, 12).unwrap(), (vec![6.0, 22.0], 8));
    assert_eq!(run(4, 12).unwrap().0, [22.0, 38.0]);
    let wrong = |first, len| run(first, len).unwrap_err().found().unwrap().wrong.clone();
    assert_eq!(wrong(2, 12), Wrong::Apart { memory: "buffer `x`".into(), index: 2, of: 4 });
    let outside = Wrong::Outside { memory: "buffer `x`".into(), index: 7, len: 7, access: Access::Read };
    assert_eq!(wrong(0, 7), outside);
}

/// Two products by 64 threads: sums + a · b, where b of the second 32 threads is the negative of the first's.
fn multiplied(halves: Half) -> Kernel {
    let mut m = Maker::new("multiplied", 64);
    let (a, b, sums) = (m.buffer("a", false), m.buffer("b", false), m.buffer("sums", true));
    let at = m.name("at", m.thread() * 4u32);
    let first = m.load_many("a", a, &at, Ty::U32);
    let second = m.load_many("b", b, m.thread() * 2u32, Ty::U32);
    let total = [0u32, 1, 2, 3].map(|k| {
        let start = m.load(sums, &at + k, Ty::F32);
        m.variable("sum", start)
    });
    m.multiply(halves, total, first, second);
    for (k, sum) in (0u32..).zip(total) {
        let value = m.get(sum);
        m.store(sums, &at + k, value);
    }
    m.finish()
}

#[test]
fn small_matrices_are_multiplied_by_threads_together() {
    // Small whole numbers are exact in both types.
    let left = |row: u32, column: u32| ((row * 7 + column * 3) % 11) as f32 - 5.0;
    let right = |row: u32, column: u32| ((row * 5 + column * 2) % 7) as f32 - 3.0;
    for halves in [Half::F16, Half::Bf16] {
        let bits = |x: f32| match halves {
            Half::F16 => u32::from(half::f16::from_f32(x).to_bits()),
            Half::Bf16 => u32::from(half::bf16::from_f32(x).to_bits()),
        };
        let (mut a, mut b, mut start, mut want) = (vec![], vec![], vec![], vec![]);
        for (number, sign) in (0..64u32).map(|n| (n % 32, if n < 32 { 1.0 } else { -1.0 })) {
            for (row, column) in (0..4).map(|k| Tile::first(number, k)) {
                a.push(bits(left(row, column)) | bits(left(row, column + 1)) << 16);
            }
            for (row, column) in (0..2).map(|k| Tile::second(number, k)) {
                b.push(bits(sign * right(row, column)) | bits(sign * right(row + 1, column)) << 16);
            }
            for (row, column) in (0..4).map(|k| Tile::sum(number, k)) {
                let product: f32 = (0..16).map(|k| left(row, k) * right(k, column)).sum();
                start.push((row * 8 + column) as f32);
                want.push((row * 8 + column) as f32 + sign * product);
            }
        }
        let kernel = multiplied(halves);
        assert_eq!((kernel.lanes(), kernel.multiplies()), (32, true));
        verify::verify(&kernel).unwrap();
        let mut sums = Words::of_floats(&start);
        let mut buffers = [&mut Words::of(a.clone()), &mut Words::of(b.clone()), &mut sums];
        run(&kernel, [1, 1, 1], &[], &mut buffers, &Options::default()).unwrap();
        assert_eq!(sums.floats(), want);
    }
}

#[test]
fn two_halves_are_packed_in_a_word() {
    let mut m = Maker::new("packed", 1);
    let y = m.buffer("y", true);
    let pair = |halves| Expr::from(1.0f32).pack(halves, -2.5f32);
    m.store(y, 0u32, pair(Half::F16));
    m.store(y, 1u32, pair(Half::Bf16));
    let mut words = Words::new(2);
    run(&m.finish(), [1, 1, 1], &[], &mut [&mut words], &Options::default()).unwrap();
    assert_eq!(words.values()[..2], [0xc100_3c00, 0xc020_3f80]);
}
