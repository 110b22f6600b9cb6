//! What rewriting a graph must not change: the sign of zero, and whether a number is finite.

use schwann_core::{CompileOptions, DType, GraphBuilder, Program, Session, Tensor, shape};

fn session(b: GraphBuilder) -> Session {
    Program::compile(&b.build().unwrap(), &CompileOptions::default().threads(1)).unwrap().session()
}

/// 0 and −0 are one number until something divides by them.
#[test]
fn rules_of_algebra_keep_the_sign_of_zero() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B"]).unwrap();
    let zero = b.scalar(0.0).unwrap();
    let sums = [b.add(x, zero).unwrap(), b.sub(zero, x).unwrap(), b.sub(x, zero).unwrap()];
    for (i, sum) in sums.into_iter().enumerate() {
        let one = b.scalar(1.0).unwrap();
        let y = b.div(one, sum).unwrap();
        b.output(&format!("y{i}"), y).unwrap();
    }
    let (infinity, x) = (f32::INFINITY, Tensor::new(&[2], &[0.0f32, -0.0]).unwrap());
    let mut session = session(b);
    let got = session.run(&[("x", &x)]).unwrap();
    for (i, want) in [[infinity; 2], [infinity; 2], [infinity, -infinity]].into_iter().enumerate() {
        assert_eq!(got[i].values::<f32>().unwrap(), want, "y{i}");
    }
}

/// (x·A) + (x·A) is not x·(2A) where that overflows: of x = 0 it would be NaN.
#[test]
fn weights_do_not_absorb_what_makes_them_infinite() {
    for (weight, factor, x) in [(3e38f32, 1.0f32, 0.1f32), (1e35, 60000.0, 1e-5)] {
        let mut b = GraphBuilder::new();
        let input = b.input("x", DType::F32, shape!["B", 1]).unwrap();
        let w = b.weight("w", Tensor::new(&[1, 1], &[weight]).unwrap()).unwrap();
        let v = b.weight("v", Tensor::new(&[1, 1], &[weight]).unwrap()).unwrap();
        let (p, q) = (b.matmul(input, w).unwrap(), b.matmul(input, v).unwrap());
        let sum = b.add(p, q).unwrap();
        let factor = b.scalar(factor).unwrap();
        let y = b.mul(sum, factor).unwrap();
        b.output("y", y).unwrap();
        let mut session = session(b);
        let got = session.run(&[("x", &Tensor::new(&[2, 1], &[x, 0.0]).unwrap())]).unwrap();
        let got = got[0].values::<f32>().unwrap();
        assert!(got[0].is_finite() && got[0] > 1e34 && got[1] == 0.0, "{weight}: {got:?}");
    }
}
