//! Cases of custom operations: one with two inputs, and one with as many as are allowed. Both are registered when the
//! list is made.

use super::{List, Tolerance};
use crate::op::custom::{Custom, MOST_INPUTS, find};
use crate::shape;

/// A bump of height x1 around 0.
const BUMP: &str = "example_bump";
/// Half of the sum of all inputs.
const HALF: &str = "example_half_of_all";

/// Makes the examples known, once.
fn register() {
    let bump = Custom::new(BUMP, 2, |x| x[1] * (-x[0] * x[0]).exp())
        .wgsl("return x1 * exp(-x0 * x0);")
        .c("return x1 * expf(-x0 * x0);")
        .domain(-4.0, 4.0)
        .work(4, 1);
    let sum = "return (x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7) * 0.5";
    let half = Custom::new(HALF, MOST_INPUTS, |x| x.iter().sum::<f64>() * 0.5)
        .wgsl(&format!("{sum};"))
        .c(&format!("{sum}f;"))
        .work(MOST_INPUTS, 0);
    for custom in [bump, half] {
        // Several threads may make the list, each several times; the first one registers.
        if find(custom.name()).is_none() {
            let _ = custom.register();
        }
    }
}

pub(super) fn custom(list: &mut List<'_>) {
    register();
    for (name, x, height) in [
        ("alike", &[5, 17][..], &[5, 17][..]),
        ("height-per-row", &[5, 17], &[5, 1]),
        ("both-stretched", &[3, 1, 4], &[2, 1]),
        ("scalars", &[], &[]),
        ("empty", &[0, 3], &[3]),
    ] {
        list.add("custom", format!("bump/{name}"), Tolerance::FUNCTION, |m| {
            let (x, height) = (m.uniform(x)?, m.uniform(height)?);
            let y = m.custom(BUMP, &[x, height])?;
            m.result(y)
        });
    }
    list.add("custom", "bump/symbols, between other operations", Tolerance::CHAIN, |m| {
        let x = m.uniform_as(shape!["B", 9], &[6, 9])?;
        let w = m.trained_uniform(&[9, 5])?;
        let h = m.matmul(x, w)?;
        let one = m.scalar(1.5)?;
        let bump = m.custom(BUMP, &[h, one])?;
        let y = m.tanh(bump)?;
        m.result(y)
    });
    list.add("custom", "bump/of constants", Tolerance::FUNCTION, |m| {
        let x = m.uniform(&[4])?;
        let (two, one) = (m.scalar(2.0)?, m.scalar(1.0)?);
        let known = m.custom(BUMP, &[one, two])?;
        let y = m.mul(x, known)?;
        m.result(y)
    });
    list.add("custom", "half/as many inputs as there may be", Tolerance::sum_of(MOST_INPUTS), |m| {
        let mut inputs = vec![];
        for k in 0..MOST_INPUTS {
            inputs.push(m.uniform(if k % 2 == 0 { &[3, 7] } else { &[7] })?);
        }
        let y = m.custom(HALF, &inputs)?;
        m.result(y)
    });
}
