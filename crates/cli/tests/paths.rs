//! Operations of built-in models and of the example networks are called by the parts of the network they belong to.

#[path = "../../nn/tests/named/mod.rs"]
mod named;

use named::{check, check_model};
use schwann::prof::models::{BUILT_IN, Sizes, built_in};
use std::process::Command;

#[test]
fn every_operation_of_the_built_in_models_has_the_path_of_its_layer() {
    for model in BUILT_IN {
        let built = built_in(model.name, &Sizes::default()).unwrap().unwrap();
        check_model(model.name, &built);
    }
}

#[test]
fn every_operation_of_the_example_networks_has_a_name() {
    let folder = std::env::temp_dir().join(format!("schwann-paths-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for model in ["mlp", "rnn", "transformer", "gated"] {
        let file = folder.join(format!("{model}.safetensors"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        assert!(command.arg("demo").arg(&file).args(["--model", model]).output().unwrap().status.success());
        check(model, &schwann::io::load(&file).unwrap(), &|_| true);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
