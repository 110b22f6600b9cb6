//! Replays the corpora of wirings and models, and files that lie about their sizes, with the stable compiler.

mod fuzz_targets;

use schwann_core::Tensor;
use schwann_core::io::safetensors;
use schwann_nn::wiring::WiringConfig;
use std::collections::BTreeMap;

#[test]
fn what_is_read_of_wirings_reads_back_and_the_rest_is_refused() {
    let whole = [
        r#"{"type":"fully_connected","units":4,"output_dim":2}"#,
        r#"{"type":"auto_ncp","units":12,"output_size":2}"#,
        r#"{"type":"random","units":5,"sparsity_level":0.5}"#,
    ];
    for text in whole {
        fuzz_targets::wiring(text.as_bytes());
        // Cut anywhere, and with sizes that no memory holds.
        (0..text.len()).for_each(|end| fuzz_targets::wiring(&text.as_bytes()[..end]));
        for huge in ["18446744073709551615", "1099511627776", "-1", "1e300", "null"] {
            for digit in ["4", "12", "5", "2"] {
                fuzz_targets::wiring(text.replace(&format!(":{digit}"), &format!(":{huge}")).as_bytes());
            }
        }
    }
    assert!(WiringConfig::from_json("[[[[").is_err());
}

#[test]
fn a_model_that_claims_what_it_does_not_have_is_refused() {
    let weight = Tensor::new(&[2], &[1.0f32, 2.0]).unwrap();
    for form in [
        r#"{"version":1,"layers":[]}"#,
        r#"{"version":1,"layers":[{"type":"linear","input_size":1099511627776,"output_size":1099511627776}]}"#,
        r#"{"version":1,"layers":[{}]}"#,
        r#"{"version":1}"#,
        "[]",
        "",
    ] {
        let metadata = BTreeMap::from([(schwann_nn::MODEL_KEY.to_owned(), form.to_owned())]);
        let bytes = safetensors::to_bytes([("w", &weight)], &metadata).unwrap();
        fuzz_targets::model(&bytes);
        assert!(schwann_nn::Model::from_bytes(bytes).is_err(), "{form}");
    }
}
