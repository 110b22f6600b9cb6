//! Backends by name: turns the name in a command line, a file of settings or a profile into a backend.
//!
//! This is the one place that knows which backends there are. Others join with [`register`], and can then be asked for
//! wherever a name can be given.

use super::Backend;
use super::cpu::Cpu;
use super::reference::Reference;
use crate::error::{Error, Result};
use schwann_kernels::Isa;
use schwann_kernels::tuning::Tuning;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

/// The name of the backend that runs on this machine's processor, and that is the default.
pub const CPU: &str = "cpu";

/// Makes a backend, in the given variant or the best one, with `threads` threads of the host (0: one for each core).
pub(crate) type Make = fn(variant: Option<&str>, threads: usize) -> Result<Arc<dyn Backend>>;

/// A backend that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// The variants that it has here, by name: for the CPU, instruction sets.
    pub variants: fn() -> Vec<String>,
    /// Makes it.
    pub make: Make,
}

const OWN: [Known; 2] = [
    Known {
        name: CPU,
        about: "this machine's processor, by SIMD kernels",
        variants: || Isa::available().iter().map(|isa| isa.name().to_owned()).collect(),
        make: |variant, threads| {
            let isa = variant.map_or_else(|| Some(Isa::detect()), Isa::named);
            let isa = isa.ok_or_else(|| Error::Internal("a variant of the CPU that it does not have".into()))?;
            Ok(Arc::new(Cpu::with_isa(isa, threads)?))
        },
    },
    Known {
        name: "reference",
        about: "plain loops in f64, node by node: slow, and the definition of every operation",
        variants: Vec::new,
        make: |_, _| Ok(Arc::new(Reference)),
    },
];

static MORE: RwLock<Vec<Known>> = RwLock::new(vec![]);

/// All backends: those of this crate, and those that were registered.
pub fn known() -> Vec<Known> {
    let more = MORE.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(more.iter()).copied().collect()
}

/// Makes a backend known under its name, for the whole program; an error if the name is taken or not valid.
pub fn register(backend: Known) -> Result<()> {
    let mut more = MORE.write().unwrap_or_else(PoisonError::into_inner);
    let taken = OWN.iter().chain(more.iter()).any(|known| known.name == backend.name);
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if taken || backend.name.is_empty() || !backend.name.chars().all(plain) {
        let problem = if taken { "the name is taken" } else { "a name is made of a to z, 0 to 9 and dashes" };
        return Err(Error::Device { backend: backend.name.into(), problem: problem.into() });
    }
    more.push(backend);
    Ok(())
}

/// A backend by name, with a variant if one is wanted: `cpu`, `cpu:avx2`, `reference`.
///
/// ```
/// # use schwann_core::backend::Choice;
/// let choice: Choice = "reference".parse()?;
/// assert_eq!(choice.make(1)?.name(), "reference");
/// let unknown = "referense".parse::<Choice>().unwrap_err();
/// assert!(unknown.to_string().contains("`cpu`, `reference`"));
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Choice {
    name: String,
    variant: Option<String>,
}

impl Default for Choice {
    /// This machine's processor, with the widest instruction set that it has.
    fn default() -> Choice {
        Choice { name: CPU.into(), variant: None }
    }
}

impl Choice {
    /// A backend by name, in the variant that it prefers.
    pub fn named(name: &str) -> Result<Choice> {
        let choice = Choice { name: name.to_owned(), variant: None };
        choice.known().map(|_| choice)
    }

    /// The same backend in one of its variants.
    pub fn variant(self, variant: &str) -> Result<Choice> {
        let known = (self.known()?.variants)();
        if known.iter().any(|v| v == variant) {
            return Ok(Choice { variant: Some(variant.to_owned()), ..self });
        }
        if known.is_empty() {
            // Where the backend cannot run at all, it says why.
            self.make(1)?;
        }
        Err(Error::Unknown { kind: "variant of this backend", name: format!("{}:{variant}", self.name), known })
    }

    /// The backend's name, without the variant.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The variant that was asked for.
    pub fn wanted_variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// Whether it is this machine's processor.
    pub fn is_cpu(&self) -> bool {
        self.name == CPU
    }

    fn known(&self) -> Result<Known> {
        let all = known();
        let found = all.iter().find(|known| known.name == self.name).copied();
        found.ok_or_else(|| Error::Unknown {
            kind: "backend",
            name: self.name.clone(),
            known: all.iter().map(|known| known.name.to_owned()).collect(),
        })
    }

    /// Makes the backend, with `threads` threads of the host (0: one for each core).
    pub fn make(&self, threads: usize) -> Result<Arc<dyn Backend>> {
        (self.known()?.make)(self.variant.as_deref(), threads)
    }

    /// The same with these numbers to tune it with. Only the processor has numbers of its own; elsewhere they decide what
    /// passes do, and that is an option of theirs.
    pub fn make_tuned(&self, threads: usize, tuning: &Tuning) -> Result<Arc<dyn Backend>> {
        if !self.is_cpu() {
            return self.make(threads);
        }
        let isa = self.variant.as_deref().and_then(Isa::named).unwrap_or_else(Isa::detect);
        Ok(Arc::new(Cpu::with_tuning(isa, *tuning, threads)?))
    }
}

impl FromStr for Choice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Choice> {
        match text.split_once(':') {
            Some((name, variant)) => Choice::named(name)?.variant(variant),
            None => Choice::named(text),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = self.variant.as_ref().map(|v| format!(":{v}")).unwrap_or_default();
        write!(f, "{}{variant}", self.name)
    }
}

impl TryFrom<String> for Choice {
    type Error = Error;
    fn try_from(text: String) -> Result<Choice> {
        text.parse()
    }
}

impl From<Choice> for String {
    fn from(choice: Choice) -> String {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_reads_back_from_its_text_and_what_is_unknown_is_refused_with_what_there_is() {
        let narrow = Isa::available().last().unwrap().name();
        for text in ["cpu", "reference", &format!("cpu:{narrow}")] {
            let choice: Choice = text.parse().unwrap();
            assert_eq!(choice.to_string(), text);
            let json = serde_json::to_string(&choice).unwrap();
            assert_eq!(serde_json::from_str::<Choice>(&json).unwrap(), choice);
        }
        let made = format!("cpu:{narrow}").parse::<Choice>().unwrap().make(3).unwrap();
        assert_eq!((made.name(), made.threads()), (format!("cpu ({narrow})"), 3));
        let tuned = Tuning::detect().with("gemm_tile_rows", 2).unwrap();
        let made = format!("cpu:{narrow}").parse::<Choice>().unwrap().make_tuned(3, &tuned).unwrap();
        assert_eq!((made.name(), made.threads()), (format!("cpu ({narrow})"), 3));
        assert_eq!(made.pass_options(&crate::pass::PassOptions::default()).tuning, tuned);
        assert_eq!(Choice::default().to_string(), "cpu");
        for (text, words) in [
            ("gpu", "no backend named `gpu`; there is `cpu`, `reference`"),
            ("", "no backend named ``"),
            ("cpu:mmx", "no variant of this backend named `cpu:mmx`; there is `"),
            ("reference:fast", "no variant of this backend named `reference:fast`; there is none"),
        ] {
            let said = text.parse::<Choice>().unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        assert!(serde_json::from_str::<Choice>("\"gpu\"").is_err());
    }

    #[test]
    fn a_backend_that_registers_is_known_by_its_name_and_no_name_is_given_twice() {
        let other = |name| Known { name, about: "the reference again", variants: Vec::new, make: OWN[1].make };
        register(other("elsewhere-1")).unwrap();
        assert_eq!(Choice::named("elsewhere-1").unwrap().make(1).unwrap().name(), "reference");
        for (name, words) in [("elsewhere-1", "taken"), ("cpu", "taken"), ("Elsewhere", "a to z"), ("", "a to z")] {
            let said = register(other(name)).unwrap_err().to_string();
            assert!(said.contains(words), "{name}: {said}");
        }
    }
}
