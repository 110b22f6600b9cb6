//! Trainings that need nothing else: `schwann train --example NAME`.

use super::config::Text;
use std::path::Path;

/// The networks of an example, with the names that people read, and the texts of their trainings.
pub(super) fn texts(example: &str, folder: &Path) -> Option<Vec<(&'static str, Text)>> {
    let text = |text: String| Text { text, name: format!("the example {example}"), folder: folder.to_owned() };
    let cart_pole = |name: &str, layers: &str, more: &str| {
        let base = include_str!("cart-pole.toml").replace("LAYERS", layers).replace("NAME", name);
        let time = if layers.contains("LSTM") { "time_as_input = true" } else { "" };
        text(base.replace("TIME\n", &format!("{time}\n")).replace("\n\nvalidation", "\nvalidation") + more)
    };
    const CFC: &str = "layers = [{ class = \"CfC\", input_size = 2, units = 32, proj_size = 1, backbone_units = 64, backbone_layers = 1 }]";
    match example {
        "sine" => Some(vec![("wired CfC", text(include_str!("sine.toml").to_owned()))]),
        "cart-pole" => Some(vec![
            (
                "LTC",
                cart_pole(
                    "ltc",
                    "layers = [{ class = \"LTC\", input_size = 2, units = { class = \"AutoNCP\", units = 32, output_size = 1 } }]",
                    "",
                ),
            ),
            ("CfC", cart_pole("cfc", CFC, "")),
            (
                "wired CfC",
                cart_pole(
                    "wired-cfc",
                    "layers = [{ class = \"CfC\", input_size = 2, units = { class = \"AutoNCP\", units = 32, output_size = 1 } }]",
                    "",
                ),
            ),
            (
                "LSTM",
                cart_pole(
                    "lstm",
                    "layers = [{ class = \"LSTM\", input_size = 3, hidden_size = 32 }, { class = \"Linear\", in_features = 32, out_features = 1 }]",
                    "",
                ),
            ),
        ]),
        "ternary" => {
            let rounded = "\n[[groups]]\nparameters = \"*.weight\"\nround = \"ternary\"\n";
            Some(vec![("CfC", cart_pole("cfc", CFC, "")), ("ternary CfC", cart_pole("ternary-cfc", CFC, rounded))])
        }
        _ => None,
    }
}

/// The names of the examples.
pub(super) const NAMES: [&str; 3] = ["sine", "cart-pole", "ternary"];
