//! What a wiring promises: what it refuses and how it says so, and that it reads back as it was written.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use schwann_nn::Result;
use schwann_nn::wiring::{AutoNcp, FullyConnected, Ncp, Random, Wiring, WiringConfig};
use std::cell::Cell;

/// Expects a refusal with these words.
#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else { panic!("accepted; expected a refusal with {words:?}") };
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "expected `{word}` in: {said}");
    }
}

fn ncp() -> Ncp {
    Ncp { sensory_fanout: 4, inter_fanout: 3, recurrent_command_synapses: 6, motor_fanin: 3, ..Ncp::new(12, 6, 1) }
}

#[test]
fn a_circuit_is_built_by_hand() {
    let mut wiring = Wiring::new(3, 1).unwrap();
    assert!(!wiring.is_built() && wiring.input_dim().is_none() && wiring.sensory_adjacency().is_empty());
    wiring.add_synapse(2, 1, 1).unwrap();
    wiring.add_synapse(1, 0, 1).unwrap();
    wiring.add_synapse(1, 0, -1).unwrap();
    wiring.build(2).unwrap();
    wiring.add_sensory_synapse(1, 2, -1).unwrap();
    wiring.build(2).unwrap();
    assert!(wiring.is_built());
    assert_eq!(wiring.adjacency(), [0, 0, 0, -1, 0, 0, 0, 1, 0]);
    assert_eq!(wiring.sensory_adjacency(), [0, 0, 0, 0, 0, -1]);
    assert_eq!((wiring.synapse_count(), wiring.sensory_synapse_count()), (2, 1));
    assert_eq!((wiring.layer_count(), wiring.layer(0), wiring.layer(1)), (1, &[0, 1, 2][..], &[][..]));
    wiring.set_layers(vec![vec![2, 1], vec![0]]).unwrap();
    assert_eq!((wiring.layer_count(), wiring.layer(0), wiring.layer(1)), (2, &[2, 1][..], &[0][..]));
    assert_eq!(*wiring.config(), WiringConfig::Custom { units: 3, output_dim: 1 });
}

#[test]
fn bad_synapses_are_refused() {
    let mut wiring = Wiring::new(3, 2).unwrap();
    refused(wiring.add_synapse(3, 0, 1), &["`src` is 3", "less than 3"]);
    refused(wiring.add_synapse(0, usize::MAX, 1), &["`dest`", "less than 3"]);
    refused(wiring.add_synapse(0, 1, 0), &["`polarity` is 0", "-1", "1"]);
    refused(wiring.add_synapse(0, 1, i8::MIN), &["`polarity` is -128"]);
    refused(wiring.add_sensory_synapse(0, 1, 1), &["`input`", "build"]);
    refused(wiring.build(0), &["`input_dim` is 0"]);
    refused(wiring.build(usize::MAX), &["`input_dim`", "3 neurons"]);
    wiring.build(2).unwrap();
    refused(wiring.build(3), &["`input_dim` is 3", "2"]);
    refused(wiring.add_sensory_synapse(2, 0, 1), &["`input` is 2", "less than 2"]);
    refused(wiring.add_sensory_synapse(0, 3, 1), &["`dest` is 3"]);
    refused(wiring.add_sensory_synapse(0, 0, 2), &["`polarity` is 2"]);
    assert_eq!(wiring.synapse_count() + wiring.sensory_synapse_count(), 0);
}

#[test]
fn layers_hold_each_neuron_once_and_end_with_the_outputs() {
    let mut wiring = Wiring::new(4, 2).unwrap();
    for (layers, words) in [
        (vec![], &["`layers`", "without neuron 0"][..]),
        (vec![vec![2], vec![0, 1]], &["without neuron 3"]),
        (vec![vec![2, 3, 2], vec![0, 1]], &["neuron 2 twice"]),
        (vec![vec![2, 4], vec![0, 1]], &["is 4", "less than 4"]),
        (vec![vec![2, 3], vec![], vec![0, 1]], &["layer 1 without neurons"]),
        (vec![vec![0, 1], vec![2, 3]], &["last", "0 to 1"]),
        (vec![vec![2, 3], vec![1, 0]], &["last", "0 to 1"]),
    ] {
        refused(wiring.set_layers(layers), words);
    }
    assert_eq!(wiring.layer_count(), 1);
    wiring.set_layers(vec![vec![3], vec![2], vec![0, 1]]).unwrap();
    wiring.set_layers(vec![vec![3, 1, 0, 2]]).unwrap();
}

#[test]
fn sizes_beyond_reason_are_refused_before_anything_is_allocated() {
    for units in [0, 8193, 1 << 32, usize::MAX] {
        refused(Wiring::new(units, 1), &["`units`", "from 1 to 8192"]);
        refused(FullyConnected::new(units).wiring(), &["`units`", "8192"]);
        refused(Random::new(units, 0.5).wiring(), &["`units`", "8192"]);
        refused(AutoNcp::new(units, 1).wiring(), &["`units`", "8192"]);
        refused(Ncp::new(units, 1, 1).wiring(), &["`inter_neurons`", "8192"]);
        refused(Ncp::new(1, units, 1).wiring(), &["`command_neurons`", "8192"]);
        refused(Ncp::new(1, 1, units).wiring(), &["`motor_neurons`", "8192"]);
    }
    refused(Ncp::new(8192, 8192, 8192).wiring(), &["`units` is 24576"]);
    refused(Random::new(10, 0.5).build(usize::MAX / 2), &["`input_dim`"]);
    refused(AutoNcp::new(10, 2).build(1 << 40), &["`input_dim`"]);
    let endless = Ncp { recurrent_command_synapses: usize::MAX, ..ncp() };
    refused(endless.wiring(), &["`recurrent_command_synapses`"]);
    let text = r#"{"config":{"class":"Custom","units":4294967296,"output_dim":1},"units":4294967296,"output_dim":1,
        "input_dim":null,"layers":[[0]],"synapses":[],"sensory_synapses":[]}"#;
    refused(Wiring::from_json(text), &["`units` is 4294967296"]);
}

#[test]
fn options_that_cannot_be_are_refused() {
    refused(Wiring::new(3, 0), &["`output_dim` is 0", "from 1 to 3"]);
    refused(Wiring::new(3, 4), &["`output_dim` is 4", "from 1 to 3"]);
    refused(FullyConnected { output_dim: 13, ..FullyConnected::new(12) }.wiring(), &["`output_dim` is 13"]);
    refused(Random { output_dim: 0, ..Random::new(12, 0.5) }.wiring(), &["`output_dim` is 0"]);
    for sparsity in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY] {
        refused(Random::new(12, sparsity).wiring(), &["`sparsity_level`", "less than 1"]);
    }
    for sparsity in [-1.0, 0.0, 0.09999, 1.0001, f64::NAN] {
        let options = AutoNcp { sparsity_level: sparsity, ..AutoNcp::new(12, 2) };
        refused(options.wiring(), &["`sparsity_level`", "from 0.1 to 1"]);
    }
    for (units, outputs) in [(12, 10), (12, 11), (12, 12), (12, 100), (12, 0)] {
        refused(AutoNcp::new(units, outputs).wiring(), &["`output_size`", "from 1 to 9"]);
    }
    for units in 1..4 {
        refused(AutoNcp::new(units, 1).wiring(), &["`output_size`", "at least 4 `units`"]);
    }
    refused(Ncp { motor_fanin: 7, ..ncp() }.wiring(), &["`motor_fanin` is 7", "at most 6", "command"]);
    refused(Ncp { sensory_fanout: 13, ..ncp() }.wiring(), &["`sensory_fanout` is 13", "at most 12", "inter"]);
    refused(Ncp { inter_fanout: 7, ..ncp() }.wiring(), &["`inter_fanout` is 7", "at most 6", "command"]);
}

#[test]
fn an_ncp_has_its_layers_and_draws_when_built() {
    let mut wiring = ncp().wiring().unwrap();
    assert_eq!(wiring.synapse_count(), 0);
    assert_eq!((wiring.units(), wiring.output_dim(), wiring.layer_count()), (19, 1, 3));
    assert!(wiring.layer(0).iter().copied().eq(7..19));
    assert!(wiring.layer(1).iter().copied().eq(1..7));
    assert_eq!(wiring.layer(2), [0]);
    wiring.build(32).unwrap();
    assert_eq!(wiring, ncp().build(32).unwrap());
    assert_eq!(wiring.sensory_synapse_count(), 32 * 4);
    let other = Ncp { seed: 1, ..ncp() }.build(32).unwrap();
    assert_ne!(wiring.adjacency(), other.adjacency());
}

#[test]
fn synapses_added_before_building_stay() {
    for config in [FullyConnected::new(12).into(), Random::new(12, 0.5).into(), WiringConfig::from(ncp())] {
        let mut wiring = config.to_wiring().unwrap();
        let plain = wiring.clone();
        // From the output to the last inter neuron: none that an NCP would draw.
        wiring.add_synapse(0, 11, -1).unwrap();
        wiring.build(3).unwrap();
        let mut expected = plain;
        expected.build(3).unwrap();
        expected.add_synapse(0, 11, -1).unwrap();
        assert_eq!(wiring, expected);
    }
}

#[test]
fn options_are_read_in_the_form_of_ncps() {
    let read = |text: &str| WiringConfig::from_json(text);
    let auto = read(r#"{"class":"AutoNCP","units":64,"output_size":16}"#).unwrap();
    assert_eq!(auto, AutoNcp::new(64, 16).into());
    assert_eq!(auto.to_json(), r#"{"class":"AutoNCP","units":64,"output_size":16,"sparsity_level":0.5,"seed":22222}"#);
    let full = read(r#"{"class":"FullyConnected","units":9,"erev_init_seed":5,"self_connections":false}"#).unwrap();
    assert_eq!(full, FullyConnected { erev_init_seed: 5, self_connections: false, ..FullyConnected::new(9) }.into());
    // A whole number is a number.
    let random = read(r#"{"class":"Random","units":9,"sparsity_level":0}"#).unwrap();
    assert_eq!(random, Random::new(9, 0.0).into());

    refused(read("{"), &["`wiring config` is unreadable", "line 1"]);
    refused(read("[1, 2]"), &["`wiring config` is [1,2]", "object"]);
    refused(read("{}"), &["`class` is missing", "AutoNCP"]);
    refused(read(r#"{"class":7}"#), &["`class` is 7"]);
    refused(read(r#"{"class":"Small world","units":3}"#), &["`class` is \"Small world\"", "FullyConnected", "Custom"]);
    refused(read(r#"{"class":"AutoNCP","units":64}"#), &["`AutoNCP.output_size` is missing", "whole number"]);
    refused(read(r#"{"class":"AutoNCP","units":-1,"output_size":3}"#), &["`AutoNCP.units` is -1"]);
    refused(read(r#"{"class":"AutoNCP","units":9.5,"output_size":3}"#), &["`AutoNCP.units` is 9.5"]);
    let text = r#"{"class":"AutoNCP","units":9,"output_size":3,"fanout":2}"#;
    refused(read(text), &["`AutoNCP.fanout` is unknown", "units, output_size, sparsity_level, seed"]);
    let text = r#"{"class":"AutoNCP","units":9,"output_size":3,"seed":4294967296}"#;
    refused(read(text), &["`AutoNCP.seed` is 4294967296", "2^32"]);
    refused(read(r#"{"class":"Random","units":9,"sparsity_level":"high"}"#), &["`Random.sparsity_level` is \"high\""]);
    refused(read(r#"{"class":"FullyConnected","units":9,"self_connections":1}"#), &["true or false"]);
    refused(read(r#"{"class":"FullyConnected","units":9,"output_dim":null}"#), &["output_dim` is null"]);
}

#[test]
fn a_wiring_from_anywhere_is_checked() {
    let good = serde_json::to_value(ncp().build(2).unwrap()).unwrap();
    let read = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        Wiring::from_json(&value.to_string())
    };
    assert!(read(&|_| {}).is_ok());
    refused(read(&|v| v["units"] = 20.into()), &["`units` is 20", "19"]);
    refused(read(&|v| v["output_dim"] = 2.into()), &["output_dim 2", "output_dim 1"]);
    refused(read(&|v| v["input_dim"] = 0.into()), &["`input_dim` is 0"]);
    refused(read(&|v| v["input_dim"] = u64::MAX.into()), &["`input_dim`"]);
    refused(read(&|v| v["input_dim"] = serde_json::Value::Null), &["`input`", "build"]);
    refused(read(&|v| v["layers"] = serde_json::json!([[0]])), &["`layers`"]);
    refused(read(&|v| v["layers"][2][0] = 1_000_000.into()), &["`layers` is 1000000"]);
    refused(read(&|v| v["synapses"][0] = serde_json::json!([0, 19, 1])), &["`dest` is 19"]);
    refused(read(&|v| v["synapses"][0] = serde_json::json!([0, 1, 5])), &["`polarity` is 5"]);
    refused(read(&|v| v["synapses"][1] = v["synapses"][0].clone()), &["`synapses`", "twice"]);
    refused(read(&|v| v["sensory_synapses"][0] = serde_json::json!([2, 1, 1])), &["`input` is 2"]);
    refused(read(&|v| v["sensory_synapses"][1] = v["sensory_synapses"][0].clone()), &["`sensory_synapses`", "twice"]);
    refused(read(&|v| v["colour"] = "red".into()), &["unknown field `colour`"]);
    refused(read(&|v| v["config"]["motor_fanin"] = 9.into()), &["`motor_fanin` is 9"]);
    refused(read(&|v| v["config"]["class"] = "NPC".into()), &["`class` is \"NPC\""]);
    refused(Wiring::from_json("wire"), &["`wiring` is unreadable"]);
}

/// Options of every kind, most of them fit.
fn any_config() -> impl Strategy<Value = WiringConfig> {
    prop_oneof![
        (1..40usize, 1..40usize, any::<u64>(), any::<bool>()).prop_map(
            |(units, output_dim, erev_init_seed, self_connections)| {
                FullyConnected { units, output_dim, erev_init_seed, self_connections }.into()
            }
        ),
        (1..40usize, 1..40usize, 0.0..1.0f64, any::<u64>()).prop_map(
            |(units, output_dim, sparsity_level, random_seed)| {
                Random { units, output_dim, sparsity_level, random_seed }.into()
            }
        ),
        (1..40usize, 1..20usize, 0.1..1.0f64, any::<u32>()).prop_map(|(units, output_size, sparsity_level, seed)| {
            AutoNcp { units, output_size, sparsity_level, seed }.into()
        }),
        ([1..12usize, 1..12, 1..12], [0..9usize, 0..9, 0..40, 0..9], any::<u32>()).prop_map(|(sizes, fans, seed)| {
            let [inter_neurons, command_neurons, motor_neurons] = sizes;
            let [sensory_fanout, inter_fanout, recurrent_command_synapses, motor_fanin] = fans;
            let layers = Ncp::new(inter_neurons, command_neurons, motor_neurons);
            Ncp { sensory_fanout, inter_fanout, recurrent_command_synapses, motor_fanin, seed, ..layers }.into()
        }),
    ]
}

/// Runs a check on drawn options; it says whether there was anything to check, which must be so in one of `of` at least.
fn draw<T: std::fmt::Debug>(
    options: impl Strategy<Value = T>,
    of: usize,
    check: impl Fn(T) -> std::result::Result<bool, TestCaseError>,
) {
    let config = Config { failure_persistence: None, ..Config::default() };
    let (checked, all) = (Cell::new(0), config.cases as usize);
    let ran = TestRunner::new(config).run(&options, |options| {
        checked.set(checked.get() + usize::from(check(options)?));
        Ok(())
    });
    if let Err(e) = ran {
        panic!("{e}");
    }
    assert!(checked.get() * of >= all, "only {} of {all} had anything to check", checked.get());
}

#[test]
fn what_is_written_reads_back() {
    draw((any_config(), prop::option::of(1..20usize)), 3, |(config, inputs)| {
        prop_assert_eq!(&WiringConfig::from_json(&config.to_json()).unwrap(), &config);
        let Ok(mut wiring) = config.to_wiring() else { return Ok(false) };
        if let Some(inputs) = inputs {
            wiring.build(inputs).unwrap();
        }
        prop_assert_eq!(Wiring::from_json(&wiring.to_json()).unwrap(), wiring);
        Ok(true)
    });
}

#[test]
fn every_neuron_of_an_ncp_is_reached_and_used() {
    draw((any_config(), 1..20usize), 10, |(config, inputs)| {
        let is_ncp = matches!(config, WiringConfig::Ncp(_) | WiringConfig::AutoNcp(_));
        let Some(mut wiring) = config.to_wiring().ok().filter(|_| is_ncp) else { return Ok(false) };
        wiring.build(inputs).unwrap();
        let (units, command, inter) = (wiring.units(), wiring.layer(1), wiring.layer(0));
        for &neuron in inter {
            prop_assert!((0..inputs).any(|i| wiring.sensory_adjacency()[i * units + neuron] != 0));
        }
        for &neuron in command {
            prop_assert!(inter.iter().any(|i| wiring.adjacency()[i * units + neuron] != 0));
            prop_assert!(wiring.layer(2).iter().any(|m| wiring.adjacency()[neuron * units + m] != 0));
        }
        Ok(!inter.is_empty() && !command.is_empty())
    });
}
