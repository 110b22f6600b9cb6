//! Defaults of the user's own: a TOML file whose keys are names of options. At the top they hold for every command that
//! has such an option; in a table named after a command, for that one. What stands on the command line wins.

use crate::out;
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgAction, ArgMatches, Command};
use schwann::Error;
use schwann::io::read_text;
use schwann::prof::nearest::did_you_mean;
use schwann::prof::place;
use std::io::ErrorKind;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// A file beyond this is none.
const MOST_BYTES: u64 = 1 << 20;
/// Options that may stand at the top; others mean something else in each command.
const SHARED: [&str; 8] = ["color", "quiet", "verbose", "threads", "backend", "isa", "db", "store"];

/// Why the command line could not be read.
pub(crate) enum Problem {
    /// The command line itself is wrong, or asks for help.
    Usage(clap::Error),
    /// The file is wrong.
    File(anyhow::Error),
}

/// A default: of which command (of all that have it, where none is named), which option, what, and where it stands.
#[derive(Debug)]
struct Setting {
    command: Option<String>,
    option: String,
    value: String,
    line: usize,
}

/// Reads the command line, with the defaults of the user's file.
pub(crate) fn matches(command: Command) -> Result<ArgMatches, Problem> {
    let Some(path) = place::config_file() else { return command.try_get_matches().map_err(Problem::Usage) };
    let told = std::env::var_os("SCHWANN_CONFIG").is_some_and(|v| !v.is_empty());
    let text = match read(&path, told) {
        Ok(Some(text)) => text,
        Ok(None) => return command.try_get_matches().map_err(Problem::Usage),
        // Who asks for help gets it, whatever is wrong with the file.
        Err(e) => return help_or(command, e),
    };
    let settings = match settings(&text, &command).with_context(|| format!("{} has a mistake", path.display())) {
        Ok(settings) => settings,
        Err(e) => return help_or(command, e),
    };
    match settings.iter().fold(command.clone(), with).try_get_matches() {
        Ok(matches) => Ok(matches),
        Err(e) => {
            // Is it the file? Each of its lines alone tells which.
            let plain = match command.clone().try_get_matches() {
                Ok(_) => true,
                Err(_) => return Err(Problem::Usage(e)),
            };
            let wrong = settings.iter().find(|s| with(command.clone(), s).try_get_matches().is_err());
            match wrong.filter(|_| plain) {
                Some(s) => {
                    let why = e.to_string();
                    let why = why.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                    let place = format!("{}, line {}", path.display(), s.line);
                    Err(Problem::File(anyhow!("{place}: `{}` is {}: {why}", s.option, s.value)))
                }
                None => Err(Problem::Usage(e)),
            }
        }
    }
}

fn help_or(command: Command, problem: anyhow::Error) -> Result<ArgMatches, Problem> {
    match command.try_get_matches() {
        Err(e) if !e.use_stderr() => Err(Problem::Usage(e)),
        _ => Err(Problem::File(problem)),
    }
}

/// Says which file there is.
pub(crate) fn tell() {
    if let Some(path) = place::config_file().filter(|p| p.exists()) {
        out::detail(&format!("defaults from {}", path.display()));
    }
}

/// The file's text; `None` where there is none. One that was named must be there.
fn read(path: &Path, told: bool) -> Result<Option<String>> {
    match read_text(path, MOST_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound && !told => Ok(None),
        Err(e) => Err(e).context("the file of defaults cannot be read"),
    }
}

/// What the text sets, each checked to be an option that there is.
fn settings(text: &str, command: &Command) -> Result<Vec<Setting>> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(1, |span| line(span.start));
        anyhow!("line {at}: {}", e.message())
    })?;
    let mut found = vec![];
    for (key, value) in table.get_ref() {
        let (name, at) = (key.get_ref().as_ref(), line(key.span().start));
        match value.get_ref() {
            DeValue::Table(options) => {
                let Some(sub) = command.find_subcommand(name) else {
                    let names = command.get_subcommands().map(Command::get_name);
                    bail!("line {at}: there is no command `{name}`{}", did_you_mean(name, names));
                };
                for (key, value) in options {
                    let (option, at) = (key.get_ref().as_ref(), line(key.span().start));
                    let names: Vec<&str> = sub.get_arguments().filter_map(clap::Arg::get_long).collect();
                    let everywhere = command.get_arguments().any(|a| a.is_global_set() && a.get_long() == Some(option));
                    if everywhere {
                        bail!(
                            "line {at}: `{option}` is an option of every command; write it at the top, above any [table]"
                        );
                    }
                    if !names.contains(&option) {
                        bail!(
                            "line {at}: `{name}` has no option `{option}`{}",
                            did_you_mean(option, names.into_iter())
                        );
                    }
                    let value = text_of(value.get_ref()).with_context(|| format!("line {at}: `{option}`"))?;
                    found.push(Setting { command: Some(name.into()), option: option.into(), value, line: at });
                }
            }
            value => {
                if !SHARED.contains(&name) {
                    let list = SHARED.join(", ");
                    bail!(
                        "line {at}: unknown key `{name}`{}; expected one of {list}, or a table such as [profile]",
                        did_you_mean(name, SHARED.into_iter())
                    );
                }
                let value = text_of(value).with_context(|| format!("line {at}: `{name}`"))?;
                found.push(Setting { command: None, option: name.into(), value, line: at });
            }
        }
    }
    Ok(found)
}

fn text_of(value: &DeValue<'_>) -> Result<String> {
    Ok(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().replace('_', ""),
        DeValue::Float(number) => number.as_str().replace('_', ""),
        DeValue::Boolean(yes) => yes.to_string(),
        _ => bail!("expected a text, a number, true or false"),
    })
}

/// The command line with one default set.
fn with(command: Command, setting: &Setting) -> Command {
    let set = |command: Command| {
        command.mut_args(|arg| {
            if arg.get_long() != Some(setting.option.as_str()) {
                return arg;
            }
            match arg.get_action() {
                // A switch is on or off.
                ArgAction::SetTrue | ArgAction::Set | ArgAction::Append => arg.default_value(setting.value.clone()),
                _ => arg,
            }
        })
    };
    match &setting.command {
        Some(name) => command.mut_subcommand(name, set),
        // A gate runs as its baseline did; that is no matter of taste.
        None => set(command).mut_subcommands(|sub| if sub.get_name() == "gate" { sub } else { set(sub) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, args: &[&str]) -> Result<ArgMatches, String> {
        let command = crate::command();
        let settings = settings(text, &command).map_err(|e| format!("{e:#}"))?;
        let command = settings.iter().fold(command, with);
        command.try_get_matches_from(args).map_err(|e| e.to_string())
    }

    #[test]
    fn a_files_defaults_hold_unless_the_command_line_says_otherwise() {
        let text = "threads = 2\nquiet = true\n[profile]\nseconds = 0.5\nruns = 7\n";
        let found = parsed(text, &["schwann", "profile", "--runs", "9"]).unwrap();
        let profile = found.subcommand_matches("profile").unwrap();
        assert_eq!(profile.get_one::<usize>("threads"), Some(&2));
        assert_eq!(profile.get_one::<f64>("seconds"), Some(&0.5));
        assert_eq!(profile.get_one::<usize>("runs"), Some(&9));
        assert!(profile.get_flag("quiet"));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, words) in [
            ("\n\nthraeds = 2\n", &["line 3", "`thraeds`", "did you mean `threads`"][..]),
            ("[profile]\n\nsecnds = 1\n", &["line 3", "`secnds`", "did you mean `seconds`"]),
            ("[profil]\nseconds = 1\n", &["line 1", "no command `profil`", "`profile`"]),
            ("threads = \n", &["line 1"]),
            ("threads = [1]\n", &["line 1", "`threads`", "expected a text"]),
        ] {
            let said = parsed(text, &["schwann", "profile"]).unwrap_err();
            assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
        }
    }
}
