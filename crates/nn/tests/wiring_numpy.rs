//! Same options, same seed, same circuit as the Python package ncps, which drew everything under `golden/`.

use schwann_core::io::safetensors::Reader;
use schwann_nn::wiring::{Wiring, WiringConfig};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The circuit that `{"wiring": …, "input_size": …}` describes.
fn drawn(description: &Value) -> Wiring {
    let config = WiringConfig::from_json(&description["wiring"].to_string()).unwrap();
    let mut wiring = config.to_wiring().unwrap();
    wiring.build(description["input_size"].as_u64().unwrap() as usize).unwrap();
    wiring
}

#[test]
fn circuits_are_those_of_the_golden_files() {
    let mut files = 0;
    for file in std::fs::read_dir(golden()).unwrap() {
        let path = file.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("wiring_") {
            continue;
        }
        let reader = Reader::open(&path).unwrap();
        let wiring = drawn(&serde_json::from_str(&reader.metadata()["config"]).unwrap());
        for (name, ours) in [("adjacency", wiring.adjacency()), ("sensory_adjacency", wiring.sensory_adjacency())] {
            let theirs = reader.bytes(name).unwrap().chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()));
            assert!(ours.iter().map(|&p| i32::from(p)).eq(theirs), "{name} of {}", path.display());
        }
        files += 1;
    }
    assert_eq!(files, 6);
}

/// FNV-1a over polarities + 1.
fn checksum(wiring: &Wiring) -> String {
    let polarities = wiring.adjacency().iter().chain(wiring.sensory_adjacency());
    let hash = polarities.fold(0xcbf2_9ce4_8422_2325u64, |hash, &polarity| {
        (hash ^ u64::from((polarity + 1) as u8)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The table is made by `scripts/wiring-table.py`, which says how to check a larger one.
#[test]
fn circuits_are_those_of_the_table() {
    let table = std::env::var_os("WIRING_TABLE").map_or_else(|| golden().join("wirings.jsonl"), PathBuf::from);
    let text = std::fs::read_to_string(&table).unwrap();
    assert!(text.lines().count() >= 40);
    for line in text.lines() {
        let expected: Value = serde_json::from_str(line).unwrap();
        let wiring = drawn(&expected);
        assert_eq!(expected["synapses"], wiring.synapse_count(), "{line}");
        assert_eq!(expected["sensory_synapses"], wiring.sensory_synapse_count(), "{line}");
        assert_eq!(expected["checksum"], checksum(&wiring), "{line}");
    }
}
