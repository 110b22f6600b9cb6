use super::*;
use crate::example;
use crate::profile::SCHEMA;

/// Every number outside of a figure or a series, with its path.
fn bare(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Object(fields) if fields.contains_key("provenance") => {
            let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
            let unknown = text("provenance") == "unavailable";
            let values: Vec<&Value> = match (fields.get("value"), fields.get("values")) {
                (Some(value), _) => vec![value],
                (None, Some(values)) => values.as_array().unwrap().iter().collect(),
                (None, None) => panic!("{path} has neither value nor values"),
            };
            let complete = !text("unit").is_empty() && !text("source").is_empty();
            let honest = if unknown { values.iter().all(|v| v.is_null()) && !text("reason").is_empty() } else { true };
            if !complete || !honest {
                found.push(format!("{path}: {value}"));
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(name, value)| bare(&join(path, name), value, found)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| bare(&format!("{path}[{i}]"), v, found)),
        _ => {}
    }
}

#[test]
fn no_document_has_a_number_without_unit_and_source() {
    for profile in [example::profile(), example::nothing()] {
        let value: Value = serde_json::from_str(&json(&profile)).unwrap();
        let mut found = vec![];
        bare("", &value, &mut found);
        // The version, and where in the plan an operation stands, are no figures.
        found.retain(|path| path != "schema" && !path.contains("].path["));
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn the_walk_finds_a_number_that_says_nothing() {
    let mut value = serde_json::to_value(example::nothing()).unwrap();
    value["memory"]["rss"] = 0.into();
    value["compute"]["time_p50"]["value"] = 0.into();
    value["compute"]["flops"]["source"] = "".into();
    let mut found = vec![];
    bare("", &value, &mut found);
    found.retain(|path| path != "schema" && !path.contains("].path["));
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn what_has_no_value_is_left_out_or_said_and_never_zero() {
    let nothing = example::nothing();
    assert_eq!(serde_json::from_str::<Value>(&bencher(&nothing)).unwrap()[title(&nothing)], serde_json::json!({}));
    assert_eq!(serde_json::from_str::<Value>(&github(&nothing)).unwrap(), serde_json::json!([]));
    for line in csv(&nothing).lines().skip(1).filter(|l| l.contains(",unavailable,")) {
        assert!(line.contains(",,,,") && line.ends_with("there is no instrument"), "{line}");
    }
    let text = markdown(&nothing);
    assert!(text.contains("| time, median | – | – | unavailable: there is no instrument |"), "{text}");
}

#[test]
fn a_document_comes_back_as_it_was() {
    for profile in [example::profile(), example::nothing()] {
        assert_eq!(read(&json(&profile), "it").unwrap(), profile);
    }
}

#[test]
fn several_documents_come_back_from_one_file() {
    let both = [example::profile(), example::nothing()];
    let text = serde_json::json!({ "schema": SCHEMA, "profiles": both }).to_string();
    assert_eq!(read_all(&text, "it").unwrap(), both);
    assert_eq!(read_all(&json(&both[0]), "it").unwrap(), both[..1]);
    for (text, words) in [
        ("", "EOF"),
        ("[]", "invalid length 0"),
        ("{\"schema\": 1, \"profiles\": 3}", "invalid type: integer"),
        ("{\"schema\": 1, \"profiles\": []}", "empty"),
        ("{\"schema\": 1, \"profiles\": [{\"schema\": 99}]}", "schema version 99"),
        ("{\"schema\": 1, \"profiles\": [{\"schema\": 1}]}", "missing field"),
    ] {
        let error = read_all(text, "it").unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn a_later_version_is_refused_with_both_named() {
    let mut value = serde_json::to_value(example::profile()).unwrap();
    value["schema"] = (SCHEMA + 6).into();
    // Whatever else a later version changes must not matter.
    value.as_object_mut().unwrap().remove("compute");
    let said = read(&value.to_string(), "later.json").unwrap_err().to_string();
    assert!(said.contains("later.json") && said.contains('7') && said.contains("up to version 1"), "{said}");
}

#[test]
fn bad_documents_are_refused_with_their_place() {
    let whole = json(&example::profile());
    let cut = &whole[..whole.len() / 2];
    let said = read(cut, "cut.json").unwrap_err().to_string();
    assert!(said.contains("cut.json, line ") && said.contains("column"), "{said}");
    let wrong = whole.replacen("\"unified_memory\": false", "\"unified_memory\": 3", 1);
    let said = read(&wrong, "wrong.json").unwrap_err().to_string();
    assert!(said.contains("wrong.json, line ") && said.contains("expected a boolean"), "{said}");
    let said = read("{}", "empty.json").unwrap_err().to_string();
    assert!(said.contains("missing field `schema`"), "{said}");
    let deep = "[".repeat(100_000);
    assert!(read(&deep, "deep.json").is_err(), "a deep document must not end the program");
    assert!(read_file(std::path::Path::new("/no/such/file.json")).unwrap_err().to_string().contains("/no/such/file"));
}

#[test]
fn csv_has_a_row_a_figure_and_quotes_what_must_be() {
    let mut profile = example::profile();
    profile.compute.ops[0].name = "a,\"b\"\nc".into();
    let text = csv(&profile);
    assert_eq!(text.lines().count(), figures(&profile).len() + 1);
    assert!(text.contains("\r\ncompute.ops[1].self_time,"), "{text}");
    assert!(text.contains("compute.samples[199],"));
    let ops = ops_csv(&profile);
    assert!(ops.contains("\"a,\"\"b\"\"\\u000ac\",transpose,"), "{ops}");
    // Commas within quotes, at odd places between them, part nothing.
    let columns = |row: &str| 1 + row.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>();
    let lines: Vec<&str> = ops.split("\r\n").collect();
    assert_eq!(columns(lines[0]), columns(lines[6]));
}

#[test]
fn markdown_cannot_be_broken_by_a_name() {
    let mut profile = example::profile();
    profile.compute.ops[0].name = "a|b\n<script>".into();
    assert!(markdown(&profile).contains("| a\\|b\\\\u000a&lt;script> |"));
}

#[test]
fn bencher_and_github_have_the_form_that_their_readers_ask_for() {
    let profile = example::profile();
    let bmf: Value = serde_json::from_str(&bencher(&profile)).unwrap();
    let latency = &bmf[title(&profile)]["latency-mean"];
    let (low, value, high) = (&latency["lower_value"], &latency["value"], &latency["upper_value"]);
    assert!(low.as_f64() < value.as_f64() && value.as_f64() < high.as_f64(), "{latency}");
    assert!((value.as_f64().unwrap() - profile.compute.time_mean.value.unwrap() * 1e9).abs() < 1e-3);
    let github: Value = serde_json::from_str(&github(&profile)).unwrap();
    for entry in github.as_array().unwrap() {
        assert!(entry["name"].is_string() && entry["unit"].is_string() && entry["value"].is_number(), "{entry}");
    }
    assert!(github[1]["range"].is_string() && github[0]["unit"] == "µs");
}

#[test]
fn the_schema_names_every_field_of_the_document() {
    let schema = schema();
    let document = serde_json::to_value(example::profile()).unwrap();
    for name in document.as_object().unwrap().keys() {
        assert!(schema["properties"].get(name).is_some(), "{name}");
    }
    assert!(schema["$defs"]["Figure"]["properties"].get("provenance").is_some());
}

#[test]
fn figures_are_found_by_their_path_or_its_end() {
    let profile = example::profile();
    assert_eq!(figure(&profile, "compute.time_p50"), Some(profile.compute.time_p50.clone()));
    assert_eq!(figure(&profile, "time_p50"), figure(&profile, "compute.time_p50"));
    assert_eq!(figure(&profile, "cycles"), profile.hardware.get("cycles").cloned());
    assert_eq!(figure(&profile, "nonsense"), None);
}

#[test]
fn figures_read_well() {
    assert_eq!(shown_value(412.3e-6, "s"), "412 µs");
    assert_eq!(shown_value(-1.25, "%"), "−1.2%");
    assert_eq!(shown_value(1_242_718.4, "samples/s"), "1.24 Msamples/s");
    assert_eq!(shown_value(0.050_61, "Tflop/s"), "0.0506 Tflop/s");
    assert_eq!(shown_value(16.0, "steps"), "16 steps");
    assert_eq!(shown_value(65_536.0, "B"), "64.0 KiB");
}
