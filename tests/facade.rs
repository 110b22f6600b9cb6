//! The façade alone is enough: build, differentiate, compile, run, save and load without naming another crate.

use schwann::prelude::*;

fn layer() -> schwann::Result<Graph> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 2])?;
    let w = b.weight("w", Tensor::new(&[2, 1], &[3.0f32, 4.0])?)?;
    let product = b.matmul(x, w)?;
    let y = b.mean(product, &[0, 1], false)?;
    b.output("y", y)?;
    b.build()
}

#[test]
fn the_prelude_builds_compiles_and_runs() {
    let program = Program::compile(&layer().unwrap(), &CompileOptions::default()).unwrap();
    let x = Tensor::new(&[2, 2], &[1.0f32, 0.0, 0.0, 1.0]).unwrap();
    let y = program.session().run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap()[0];
    assert_eq!(y, 3.5);
}

#[test]
fn a_gradient_is_a_graph_like_any_other() {
    let training = gradient(&layer().unwrap(), "y", &["x"]).unwrap();
    let program = Program::compile(&training, &CompileOptions::default()).unwrap();
    let mut session = program.session();
    session.run(&[("x", &Tensor::zeros(DType::F32, &[2, 2]).unwrap())]).unwrap();
    assert_eq!(session.output("grad.x").unwrap().values::<f32>().unwrap(), [1.5, 2.0, 1.5, 2.0]);
}

#[test]
fn every_instruction_set_of_this_cpu_gives_the_same_layer() {
    for &isa in schwann::Isa::available() {
        let cpu = schwann::backend::cpu::Cpu::with_isa(isa, 1).unwrap();
        let program = Program::compile_for(&layer().unwrap(), &cpu, &CompileOptions::default()).unwrap();
        let x = Tensor::new(&[1, 2], &[1.0f32, 1.0]).unwrap();
        assert_eq!(program.session().run(&[("x", &x)]).unwrap()[0].to_f64(), [7.0], "{isa}");
    }
}
