//! Names of GPUs that can be given on a command line.

/// A name made of small letters, digits and dashes.
pub(crate) fn plain(name: &str) -> String {
    let letters = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(letters).collect();
    let words: Vec<&str> = text.split('-').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "gpu".into() } else { words.join("-") }
}

/// The name, with a number if it is taken.
pub(crate) fn numbered(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (1..).map(|n| if n == 1 { name.to_owned() } else { format!("{name}-{n}") });
    numbered.into_iter().find(|name| !taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_given_on_a_command_line_whatever_the_driver_says() {
        assert_eq!(plain("llvmpipe (LLVM 15.0.6, 256 bits)"), "llvmpipe-llvm-15-0-6-256-bits");
        assert_eq!(plain("Apple M1 Pro"), "apple-m1-pro");
        assert_eq!(plain(" «™» "), "gpu");
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        assert_eq!(numbered("a", |_| false), "a");
        assert_eq!(numbered("a", |name| name == "a" || name == "a-2"), "a-3");
    }
}
