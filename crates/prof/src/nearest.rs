//! The name that was meant: one rule for every name that people type (models, devices, settings).

/// How alike two names must be, from 0 to 1 by Jaro and Winkler. Their measure counts letters that are swapped as nearly
/// right and a common beginning as more, which is how names are mistyped.
const ALIKE: f64 = 0.8;
/// Fewer letters than this are part of too many names.
const LEAST_PART: usize = 3;

/// A name without what nobody types the same way twice: case, blanks, dashes and underscores.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace() && !"_-".contains(*c)).flat_map(char::to_lowercase).collect()
}

/// The one of these names that is most like this one, or has it as a part; `None` where none is near.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = plain(name);
    let like = |other: &str| {
        let part = typed.chars().count() >= LEAST_PART && other.contains(&typed);
        strsim::jaro_winkler(&typed, other).max(if part { ALIKE } else { 0.0 })
    };
    let all = names.into_iter().map(|n| (like(&plain(n)), n));
    all.filter(|(like, _)| *like >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `` (did you mean `threads`?)`` with a blank before it, or nothing where no name is near: for the end of a message.
pub fn did_you_mean<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, names).map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_parts_and_other_writing_are_understood_and_strangers_are_not() {
        let names = ["M1", "M1 Max", "M4 Max", "Raspberry Pi 4", "Raspberry Pi 5", "Jetson Orin Nano"];
        for (typed, meant) in [
            ("M1 Mxa", Some("M1 Max")),
            ("m1-mux", Some("M1 Max")),
            ("rasberry pi 5", Some("Raspberry Pi 5")),
            ("pi5", Some("Raspberry Pi 5")),
            ("orin", Some("Jetson Orin Nano")),
            ("something else", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), meant, "{typed}");
        }
        assert_eq!(did_you_mean("wired-cfx", ["wired-cfc", "dense-cfc"]), " (did you mean `wired-cfc`?)");
        assert_eq!(did_you_mean("résumé", ["threads"]), "");
    }
}
