//! States that grow by `put`: caches of keys and values, changed where they are.

use schwann_core::backend::Choice;
use schwann_core::{CompileOptions, DType, Error, Graph, GraphBuilder, Program, Result, Tensor, shape};

/// A cache of `S` rows into which `x` is put at `at`; `y` is the attention of x over the rows up to each position.
fn cached() -> Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape![1, 2, "L", 4])?;
    let at = b.input("at", DType::I32, shape!["L"])?;
    let cache = b.input("cache", DType::F32, shape![1, 2, "S", 4])?;
    let next = b.named("keep").put(cache, x, at, 2)?;
    let y = b.attention_until(x, next, next, at)?;
    b.output("y", y)?;
    b.output("cache_next", next)?;
    b.state("cache", "cache_next")?;
    b.build()
}

fn rows(first: usize, count: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + 11) % 23) as f32 / 23.0 - 0.5;
    let mut all = vec![];
    for head in 0..2 {
        (0..count * 4).for_each(|i| all.push(value((first * 4 + i) * 2 + head)));
    }
    Tensor::new(&[1, 2, count, 4], &all).unwrap()
}

fn places(first: usize, count: usize) -> Tensor {
    Tensor::new(&[count], &(first as i32..(first + count) as i32).collect::<Vec<_>>()).unwrap()
}

/// The last row of each head of `y`.
fn last(y: &Tensor) -> Vec<f32> {
    let length = y.shape()[2];
    y.values::<f32>().unwrap().chunks(length * 4).flat_map(|head| head[(length - 1) * 4..].to_vec()).collect()
}

#[test]
fn a_state_that_grows_is_changed_where_it_is_and_gives_what_all_at_once_gives() {
    let program = Program::compile(&cached().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let zeros = || Tensor::zeros(DType::F32, &[1, 2, 8, 4]).unwrap();
    let mut session = program.session();
    session.set_state("cache", zeros()).unwrap();
    let mut steps = vec![];
    for (first, count) in [(0, 3), (3, 1), (4, 1), (5, 2), (7, 1)] {
        session.run(&[("x", &rows(first, count)), ("at", &places(first, count))]).unwrap();
        steps.push(last(session.output("y").unwrap()));
    }
    let puts: Vec<_> = session.plan().unwrap().steps.iter().filter(|s| s.op == "put").collect();
    assert!(puts.len() == 1 && puts[0].in_place, "{puts:?}");
    for (end, step) in [3, 4, 5, 7, 8].into_iter().zip(&steps) {
        let mut fresh = program.session();
        fresh.set_state("cache", zeros()).unwrap();
        // The rows of a prefix are those of its parts, since each row depends on its number alone.
        let parts: Vec<Tensor> = [(0, 3), (3, 1), (4, 1), (5, 2), (7, 1)].iter().map(|&(f, c)| rows(f, c)).collect();
        let mut all = vec![vec![], vec![]];
        for part in &parts {
            let values = part.values::<f32>().unwrap();
            values.chunks(values.len() / 2).zip(&mut all).for_each(|(from, to)| to.extend_from_slice(from));
        }
        let x: Vec<f32> = all.iter().flat_map(|head| head[..end * 4].to_vec()).collect();
        let x = Tensor::new(&[1, 2, end, 4], &x).unwrap();
        fresh.run(&[("x", &x), ("at", &places(0, end))]).unwrap();
        let want = last(fresh.output("y").unwrap());
        let near = step.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-6);
        assert!(near, "{step:?} and {want:?} at {end}");
    }
}

#[test]
fn given_kept_and_zeroed_states_all_reach_the_run() {
    let graph = cached().unwrap();
    let given = Tensor::new(&[1, 2, 4, 4], &(0..32).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let mut results = vec![];
    for backend in [Choice::default(), "reference".parse().unwrap()] {
        let program = Program::compile(&graph, &CompileOptions::default().backend(backend).threads(1)).unwrap();
        let mut session = program.session();
        let mut seen = vec![];
        let mut run = |session: &mut schwann_core::Session, first, cache: Option<&Tensor>| {
            let (x, at) = (rows(first, 1), places(first, 1));
            let mut inputs = vec![("x", &x), ("at", &at)];
            inputs.extend(cache.map(|c| ("cache", c)));
            session.run(&inputs).unwrap();
            seen.push(session.output("cache_next").unwrap().values::<f32>().unwrap().to_vec());
            assert_eq!(session.state("cache").unwrap().values::<f32>().unwrap(), seen.last().unwrap());
        };
        run(&mut session, 1, Some(&given));
        run(&mut session, 2, None);
        // A result that somebody keeps does not change later.
        let kept = session.output("cache_next").unwrap().clone();
        let before = kept.values::<f32>().unwrap().to_vec();
        run(&mut session, 0, None);
        assert_eq!(kept.values::<f32>().unwrap(), before);
        session.state_mut("cache").unwrap().values_mut::<f32>().unwrap()[31] = -1.0;
        run(&mut session, 1, None);
        run(&mut session, 3, Some(&given));
        assert_eq!(given.values::<f32>().unwrap()[31], 31.0);
        session.reset();
        session.set_state("cache", Tensor::zeros(DType::F32, &[1, 2, 4, 4]).unwrap()).unwrap();
        run(&mut session, 0, None);
        results.push(seen);
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn a_size_that_only_states_have_can_be_chosen() {
    let program = Program::compile(&cached().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let mut session = program.session();
    let (x, at) = (rows(0, 1), places(0, 1));
    let run = |session: &mut schwann_core::Session| {
        session.run(&[("x", &x), ("at", &at)]).map(|outputs| outputs[1].shape().to_vec())
    };
    assert!(run(&mut session).unwrap_err().to_string().contains("`S` is not bound"));
    session.set_size("S", 3).unwrap();
    assert_eq!(run(&mut session).unwrap(), [1, 2, 3, 4]);
    // What is held has another size than what is chosen now: that is said, and a reset helps.
    session.set_size("S", 5).unwrap();
    let problem = run(&mut session).unwrap_err().to_string();
    assert!(problem.contains("f32[1, 2, 5, 4] (or a reset)") && problem.contains("f32[1, 2, 3, 4]"), "{problem}");
    session.reset();
    assert_eq!(run(&mut session).unwrap(), [1, 2, 5, 4]);
    // A size that an input shows is the input's.
    session.set_size("L", 7).unwrap();
    assert_eq!(run(&mut session).unwrap(), [1, 2, 5, 4]);
    let problem = session.set_size("Q", 1).unwrap_err().to_string();
    assert!(problem.contains('Q') && problem.contains('S'), "{problem}");
}

#[test]
fn a_run_that_fails_leaves_the_rest_of_the_state() {
    let program = Program::compile(&cached().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let mut session = program.session();
    let given = Tensor::new(&[1, 2, 4, 4], &[1.0f32; 32]).unwrap();
    session.run(&[("x", &rows(0, 1)), ("at", &places(0, 1)), ("cache", &given)]).unwrap();
    let before = session.state("cache").unwrap().values::<f32>().unwrap().to_vec();
    for (at, says) in [(4, "index 4 at position 0 is not in 0..4"), (-1, "index -1 at position 0 is not in 0..4")] {
        let at = Tensor::new(&[1], &[at]).unwrap();
        let problem = session.run(&[("x", &rows(0, 1)), ("at", &at)]).unwrap_err();
        assert!(matches!(&problem, Error::Value { node, .. } if node == "keep"), "{problem}");
        assert!(problem.to_string().contains(says), "{problem}");
        assert_eq!(session.state("cache").unwrap().values::<f32>().unwrap(), before);
    }
    let two = Tensor::new(&[2], &[2i32, 2]).unwrap();
    let problem = session.run(&[("x", &rows(0, 2)), ("at", &two)]).unwrap_err().to_string();
    assert!(problem.contains("index 2 at position 1 is not after the one before it"), "{problem}");
    assert_eq!(session.state("cache").unwrap().values::<f32>().unwrap(), before);
    session.run(&[("x", &rows(1, 1)), ("at", &places(1, 1))]).unwrap();
    let after = session.state("cache").unwrap().values::<f32>().unwrap();
    let untouched = |i: &usize| i % 16 / 4 != 1;
    assert!((0..32).filter(untouched).all(|i| after[i] == before[i]));
}

#[test]
fn a_state_that_others_read_too_is_copied() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape![1, 3]).unwrap();
    let at = b.input("at", DType::I32, shape![1]).unwrap();
    let cache = b.input("cache", DType::F32, shape![4, 3]).unwrap();
    let next = b.put(cache, x, at, 0).unwrap();
    let change = b.sub(next, cache).unwrap();
    b.output("change", change).unwrap();
    b.output("next", next).unwrap();
    b.state("cache", "next").unwrap();
    let program = Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap();
    let mut session = program.session();
    for (row, want) in [(2, [0.0, 0.0, 1.0, 0.0]), (0, [1.0, 0.0, 0.0, 0.0]), (2, [0.0; 4])] {
        let at = Tensor::new(&[1], &[row]).unwrap();
        session.run(&[("x", &Tensor::new(&[1, 3], &[1.0f32; 3]).unwrap()), ("at", &at)]).unwrap();
        let change = session.output("change").unwrap().values::<f32>().unwrap().to_vec();
        assert_eq!(change, want.iter().flat_map(|w| [*w; 3]).collect::<Vec<f32>>());
    }
}
