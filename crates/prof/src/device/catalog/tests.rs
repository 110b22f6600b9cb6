//! The catalogue, and files of the user's own.

use super::*;

#[test]
fn every_number_of_the_catalogue_has_a_unit_and_a_source() {
    let catalog = Catalog::own().unwrap();
    assert!(catalog.devices.len() >= 42);
    for device in &catalog.devices {
        assert!(!device.figures().is_empty());
        for (field, figure) in device.figures() {
            assert!(figure.source.len() > 8 && !figure.unit.is_empty(), "{} {field}", device.name);
            assert!(figure.value > 0.0, "{} {field}", device.name);
        }
        let ranges = device.batch.iter().chain(&device.hidden);
        assert!(ranges.map(|r| &r.source).chain(device.backbone.iter().map(|b| &b.source)).all(|s| s.len() > 8));
    }
}

#[test]
fn what_robots_run_on_is_known_well_enough_to_predict() {
    let catalog = Catalog::own().unwrap();
    let boards = ["Raspberry Pi Zero 2 W", "Raspberry Pi 3 B+", "Raspberry Pi 4", "Raspberry Pi 5", "RK3588"];
    let jetsons = ["Jetson Orin Nano", "Jetson Orin NX", "Jetson AGX Orin", "Jetson AGX Orin 32GB"];
    let laptops = ["Intel N100", "Core i7-1185G7", "Core i5-1240P", "Core Ultra 7 155H", "Ryzen 7 7840U"];
    let desks = ["Core i7-12700", "Ryzen 5 5600X", "EPYC 9654", "Xeon Platinum 8592+", "A15 Bionic", "A16 Bionic"];
    for name in boards.iter().chain(&jetsons).chain(&laptops).chain(&desks) {
        let device = catalog.find(name).unwrap();
        assert!(device.cpu_flops().value.is_some() && !device.memory_bandwidth.is_empty(), "{name}");
        assert!(device.l1_bytes().is_some() && device.l2_bytes().is_some(), "{name}");
    }
    // A core has its own part of the second level, not all of it.
    assert_eq!(catalog.find("Jetson AGX Orin").unwrap().l2_bytes(), Some(256 << 10));
    assert_eq!(catalog.find("Intel N100").unwrap().l2_bytes(), Some(2 << 20), "one cluster of four");
    assert_eq!(catalog.find("EPYC 9654").unwrap().l2_bytes(), Some(1 << 20));
}

#[test]
fn the_guides_tables_are_there() {
    let catalog = Catalog::own().unwrap();
    let ultra = catalog.find("M1 Ultra").unwrap();
    assert_eq!((ultra.min_tflops().unwrap().value, ultra.min_bandwidth().unwrap().value), (16.0, 600.0));
    assert_eq!((ultra.target.flops[0].value, ultra.target.memory[0].value), (24.0, 49152.0));
    assert_eq!((ultra.batch[0].low, ultra.batch[0].high, ultra.hidden[0].high), (256, 512, 1024));
    assert_eq!((&ultra.backbone[0].units[..], ultra.memory_budget().unwrap().value), (&[512, 512][..], 64.0));
    let m1 = catalog.find("M1").unwrap();
    let bandwidths: Vec<f64> = m1.memory_bandwidth.iter().map(|b| b.value).collect();
    assert_eq!(bandwidths, [68.25, 70.0], "both sources are kept");
}

#[test]
fn names_are_found_however_they_are_written_and_others_are_suggested() {
    let catalog = Catalog::own().unwrap();
    for name in ["M1 Max", "m1_max", "M1MAX", "m1-max", "Apple M1 Max"] {
        assert_eq!(catalog.find(name).unwrap().name, "M1 Max");
    }
    for (name, found) in [("n100", "Intel N100"), ("NVIDIA Jetson Orin NX", "Jetson Orin NX")] {
        assert_eq!(catalog.find(name).unwrap().name, found);
    }
    assert!(catalog.find("apple").is_err(), "a maker alone is no device");
    let error = catalog.find("M1 Mux").unwrap_err().to_string();
    assert!(error.contains("did you mean `M1 Max`") && error.contains("schwann devices list"), "{error}");
    let error = catalog.find("something else").unwrap_err().to_string();
    assert!(!error.contains("did you mean"), "{error}");
}

#[test]
fn an_unknown_clock_leaves_the_peak_unavailable() {
    let catalog = Catalog::own().unwrap();
    assert_eq!(catalog.find("M5 Max").unwrap().core_flops().value, None);
    let m1 = catalog.find("M1").unwrap();
    assert!((m1.core_flops().value.unwrap() - 102.4e9).abs() < 1.0);
    assert!((m1.cpu_flops().value.unwrap() - 409.6e9).abs() < 1.0);
    assert!(m1.core_flops().source.contains("estimate"));
}

#[test]
fn a_users_mistake_is_told_with_file_line_and_field() {
    let tell = |text: &str| Catalog::default().add("mine.toml", text, None).unwrap_err().to_string();
    let head = "[[device]]\nname = \"X\"\n";
    let text = tell(&format!("{head}clock = [{{ value = 0, unit = \"GHz\", source = \"me\" }}]\n"));
    assert!(text.contains("mine.toml, line 3") && text.contains("`clock` is 0"), "{text}");
    let text = tell(&format!("{head}clock = [{{ value = 3, unit = \"MHz\", source = \"me\" }}]\n"));
    assert!(text.contains("line 3") && text.contains("expected `GHz`"), "{text}");
    let text = tell(&format!("{head}l2 = [{{ value = 3, unit = \"MiB\", source = \" \" }}]\n"));
    assert!(text.contains("line 3") && text.contains("empty source"), "{text}");
    let text = tell(&format!("{head}clok = []\n"));
    assert!(text.contains("line 3") && text.contains("clok"), "{text}");
    let text = tell(&format!("{head}batch = [{{ low = 8, high = 4, source = \"me\" }}]\n"));
    assert!(text.contains("line 3") && text.contains("low ≤ high"), "{text}");
    let text = tell("[[device]]\nname = \"X\"\nname = \n");
    assert!(text.contains("line 3"), "{text}");
    let text = tell("[[device]]\nclock = []\n");
    assert!(text.contains("name"), "{text}");
}

#[test]
fn a_device_written_as_toml_reads_as_itself() {
    for device in Catalog::own().unwrap().devices {
        let mut again = Catalog::default();
        again.add("again", &device.to_toml(), None).unwrap();
        assert_eq!(again.devices, [device]);
    }
}

#[test]
fn a_users_device_takes_the_place_of_one_of_the_same_name() {
    let mut catalog = Catalog::own().unwrap();
    let count = catalog.devices.len();
    let text = "[[device]]\nname = \"m1\"\nclock = [{ value = 9.0, unit = \"GHz\", source = \"me\" }]\n";
    catalog.add("mine", text, Some(Path::new("mine"))).unwrap();
    assert_eq!((catalog.devices.len(), catalog.find("M1").unwrap().clock[0].value), (count, 9.0));
    assert_eq!(catalog.find("M1").unwrap().file.as_deref(), Some(Path::new("mine")));
}
