use super::*;
use crate::interpret::{Counts, Finding, Options, Words, run};
use crate::lang::{Maker, Ty};
use crate::verify::verify;

const TILE: u32 = 4;

/// c = a · b of n × n numbers, where n is a multiple of the tile; a workgroup has a tile of c, and each thread one number.
fn product() -> Kernel {
    let mut m = Maker::new("product", TILE * TILE);
    let (a, b, c, n) = (m.buffer("a", false), m.buffer("b", false), m.buffer("c", true), m.arg("n"));
    let (left, right) = (m.shared("left", Ty::F32, TILE * TILE), m.shared("right", Ty::F32, TILE * TILE));
    let (row, col) = (m.name("row", m.thread() / TILE), m.name("col", m.thread().rem(TILE)));
    let down = m.name("down", m.group(1) * TILE + &row);
    let across = m.name("across", m.group(0) * TILE + &col);
    let sum = m.variable("sum", 0.0f32);
    m.count("k", 0u32, &n, TILE, |m, k| {
        m.store(left, m.thread(), m.load(a, &down * &n + &k + &col, Ty::F32));
        m.store(right, m.thread(), m.load(b, (&k + &row) * &n + &across, Ty::F32));
        m.barrier();
        m.count("j", 0u32, TILE, 1u32, |m, j| {
            let x = m.load(left, &row * TILE + &j, Ty::F32);
            let y = m.load(right, j * TILE + &col, Ty::F32);
            m.set(sum, x.fma(y, m.get(sum)));
        });
        m.barrier();
    });
    m.store(c, down * &n + across, m.get(sum));
    m.finish()
}

fn multiply(kernel: &Kernel) -> Result<(Counts, Vec<f32>), Finding> {
    let n = 2 * TILE;
    let numbers = |first: u32| (0..n * n).map(|i| (first + i) as f32).collect::<Vec<f32>>();
    let (mut a, mut b) = (Words::of_floats(&numbers(1)), Words::of_floats(&numbers(7)));
    let mut c = Words::new((n * n) as usize);
    let counts = run(kernel, [2, 2, 1], &[n], &mut [&mut a, &mut b, &mut c], &Options::default())?;
    Ok((counts, c.floats()))
}

#[test]
fn a_tiled_product_is_right_and_its_mutants_are_noticed() {
    let kernel = product();
    verify(&kernel).unwrap();
    let (counts, c) = multiply(&kernel).unwrap();
    let expected = |i: u32, j: u32| (0..8u32).map(|k| ((1 + i * 8 + k) * (7 + k * 8 + j)) as f32).sum::<f32>();
    assert_eq!(c, (0..64).map(|at| expected(at / 8, at % 8)).collect::<Vec<f32>>());
    assert_eq!((counts.fmas, counts.barriers, counts.groups), (8 * 8 * 8, 4 * 2 * 2, 4));

    let unnoticed: Vec<Mutant> =
        mutants(&kernel).into_iter().filter(|m| multiply(&m.kernel).is_ok_and(|(_, other)| other == c)).collect();
    // A loop by steps of 4 up to 7 goes round as often as up to 8.
    let descriptions: Vec<&str> = unnoticed.iter().map(|mutant| &*mutant.description).collect();
    assert_eq!(descriptions, ["the end of body[5] (loop over `k`) is one less"]);
    assert_eq!(unnoticed[0].mistake, Mistake::EndLowered);
}

#[test]
fn each_mutant_differs_in_one_mistake_and_is_still_a_kernel() {
    let kernel = product();
    let all = mutants(&kernel);
    assert_eq!(all.len(), 2 + 2 * 2 + 2);
    for (number, mutant) in all.iter().enumerate() {
        assert_ne!(mutant.kernel, kernel, "{mutant}");
        verify(&mutant.kernel).unwrap();
        assert!(all[..number].iter().all(|other| other.kernel != mutant.kernel), "{mutant}");
    }
}

#[test]
fn comparisons_anywhere_are_widened_one_by_one() {
    let mut m = Maker::new("some", 4);
    let (y, n) = (m.buffer("y", true), m.arg("n"));
    let below = m.thread().lt(&n);
    // Used twice, and one node: one mutant.
    m.when(below.or(below.eq(true)), |m| {
        m.either(true, |_| (), |m| m.store(y, m.thread(), m.thread().lt(1u32).select(n.lt(2u32).to(Ty::U32), 3u32)));
    });
    let kernel = m.finish();
    let all = mutants(&kernel);
    let descriptions: Vec<&str> = all.iter().map(|mutant| &*mutant.description).collect();
    let store = "body[0].then[0].otherwise[0] (stores to buffer `y`)";
    assert_eq!(
        descriptions,
        [
            "`<` number 0 of body[0] (branch) is `<=`",
            &*format!("`<` number 0 of {store} is `<=`"),
            &*format!("`<` number 1 of {store} is `<=`"),
        ]
    );
    let mistakes: Vec<Mistake> = all.iter().map(|mutant| mutant.mistake).collect();
    assert_eq!(mistakes, [Mistake::ComparisonWidened, Mistake::ChoiceWidened, Mistake::ChoiceWidened]);
    for mutant in &all {
        assert_ne!(mutant.kernel, kernel);
        verify(&mutant.kernel).unwrap();
    }
}

#[test]
fn a_comparison_is_a_bound_where_it_decides_what_is_executed_or_touched() {
    let mut m = Maker::new("some", 4);
    let (x, y, n) = (m.buffer("x", false), m.buffer("y", true), m.arg("n"));
    let inside = m.name("inside", m.thread().lt(&n));
    let index = m.name("index", inside.select(m.thread(), 0u32));
    let value = m.name("value", m.load(x, index, Ty::F32));
    let large = m.name("large", Expr::from(7u32).lt(value.bits(Ty::U32)));
    let result = m.variable("result", &value);
    m.when(large, |m| m.set(result, -1.0f32));
    m.when(value.lt(0.0f32), |m| m.set(result, 1.0f32));
    m.count("i", 0u32, n.lt(3u32).select(1u32, &n), 1u32, |m, i| {
        let value = i.lt(2u32).select(m.get(result), 0.0f32);
        m.store(y, m.thread(), value);
    });
    let kernel = m.finish();
    let all = mutants(&kernel);
    let which = |mistake| {
        let those = all.iter().filter(|mutant| mutant.mistake == mistake);
        those.map(|mutant| mutant.description.split('(').nth(1).unwrap().split(')').next().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(which(Mistake::ComparisonWidened), ["sets `inside`", "loop over `i`"]);
    assert_eq!(which(Mistake::ChoiceWidened), ["sets `large`", "branch", "stores to buffer `y`"]);
}

#[test]
fn a_loop_that_ends_at_0_does_not_become_endless() {
    let mut m = Maker::new("some", 1);
    m.count("i", 0u32, 0u32, 1u32, |_, _| ());
    let lowered = mutants(&m.finish()).pop().unwrap();
    assert_eq!(lowered.mistake, Mistake::EndLowered);
    assert!(run(&lowered.kernel, [1, 1, 1], &[], &mut [], &Options { statements: 9 }).is_ok());
}

#[test]
fn what_has_no_bounds_nor_barriers_has_no_mutants() {
    assert!(mutants(&Maker::new("empty", 1).finish()).is_empty());
}
