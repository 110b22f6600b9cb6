//! Rules and what they lead to: a command, a message to a program on this machine, an exit code.

use super::action::Action;
use crate::{Outcome, out};
use anyhow::{Context, Result, anyhow, bail};
use schwann::io::read_text;
use schwann::prof::live::{About, Judge, Judged, Moment, Rule};
use schwann::prof::plot::unit::quantity;
use std::path::Path;
use toml::Spanned;

/// A file beyond this is none.
const MOST_BYTES: u64 = 1 << 20;
/// More rules than this are a mistake.
const MOST_RULES: usize = 256;

/// A rule as it stands in a file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// What it is called where it is shown; its own words unless told.
    name: Option<String>,
    when: Spanned<String>,
    /// A shell command for when it begins to hold.
    run: Option<Spanned<String>>,
    /// An address on this machine for when it begins to hold.
    post: Option<Spanned<String>>,
    /// Whether the exit code is 1 where it held.
    #[serde(default)]
    fail: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    rule: Vec<Entry>,
}

/// A rule that is watched.
struct Watched {
    name: String,
    judge: Judge,
    actions: Vec<Action>,
    fail: bool,
    holds: bool,
}

/// All rules of a monitor.
#[derive(Default)]
pub(super) struct Alerts(Vec<Watched>);

/// The line and the column, counted from 1, of a place in a text.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

impl Alerts {
    /// The rules of a file, those of the command line, and those that decide the exit code.
    pub(super) fn new(file: Option<&Path>, rules: &[Rule], fail_on: &[Rule]) -> Result<Alerts> {
        let mut all = Alerts::default();
        if let Some(path) = file {
            let text = read_text(path, MOST_BYTES)?;
            all.read(&text).with_context(|| format!("{} has a mistake", path.display()))?;
        }
        for (rules, fail) in [(rules, false), (fail_on, true)] {
            rules.iter().try_for_each(|rule| all.add(rule.to_string(), rule.clone(), vec![], fail))?;
        }
        Ok(all)
    }

    fn add(&mut self, name: String, rule: Rule, actions: Vec<Action>, fail: bool) -> Result<()> {
        if let Some(same) = self.0.iter_mut().find(|w| w.name == name) {
            // `--rule X --fail-on X` is one rule.
            if same.judge.rule() == &rule {
                same.fail |= fail;
                same.actions.extend(actions);
                return Ok(());
            }
            bail!("two rules are called `{name}`");
        }
        if self.0.len() == MOST_RULES {
            bail!("there are more than {MOST_RULES} rules");
        }
        self.0.push(Watched { name, judge: Judge::new(rule), actions, fail, holds: false });
        Ok(())
    }

    fn read(&mut self, text: &str) -> Result<()> {
        let document: Document = toml::from_str(text).map_err(|e| {
            let (line, column) = place(text, e.span().map_or(0, |span| span.start));
            anyhow!("line {line}, column {column}: {}", e.message().trim())
        })?;
        for entry in document.rule {
            let at = |spanned: &Spanned<String>, column: usize| {
                let span = spanned.span();
                // Where a text stands as it is, between its quotes, its own columns can be counted on.
                let inner = text.get(span.clone()).unwrap_or_default();
                let plain = inner.get(1..inner.len().saturating_sub(1)) == Some(spanned.get_ref());
                let (line, start) = place(text, span.start);
                (line, if plain { start + column } else { start })
            };
            let rule: Rule = entry.when.get_ref().parse().map_err(|e: schwann::prof::live::Mistake| {
                let (line, column) = at(&entry.when, e.column);
                anyhow!("line {line}, column {column}: {}", e.problem)
            })?;
            let mut actions = vec![];
            if let Some(run) = &entry.run {
                actions.push(Action::run(run.get_ref()));
            }
            if let Some(post) = &entry.post {
                let (line, column) = at(post, 1);
                let action = Action::post(post.get_ref());
                actions.push(action.map_err(|why| anyhow!("line {line}, column {column}: {why}"))?);
            }
            let name = entry.name.unwrap_or_else(|| rule.to_string());
            let (line, _) = at(&entry.when, 1);
            self.add(name, rule, actions, entry.fail).with_context(|| format!("line {line}"))?;
        }
        Ok(())
    }

    /// Each rule by its name, as moments have it in their alerts: whether it holds now, or why that is not known.
    pub(super) fn now(&self) -> Vec<Judged> {
        self.0.iter().map(|w| (w.name.clone(), w.judge.now())).collect()
    }

    /// Says which rules hold at a moment, and does what those lead to that begin to.
    pub(super) fn judge(&mut self, moment: &mut Moment, about: &About) {
        for watched in &mut self.0 {
            let holds = watched.judge.judge(moment);
            // In a recording it may be there already.
            if holds && !moment.alerts.contains(&watched.name) {
                moment.alerts.push(watched.name.clone());
            }
            if holds && !watched.holds {
                let value = watched.judge.verdict().value.clone();
                watched.actions.iter().for_each(|action| action.act(&watched.name, value.as_ref(), about, moment.at_s));
            }
            watched.holds = holds;
        }
    }

    /// What the rules that decide say in the end. Those that nobody could judge are named.
    pub(super) fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::Done;
        for watched in &self.0 {
            let verdict = watched.judge.verdict();
            let name = out::printable(&watched.name);
            if !verdict.judged {
                let why = verdict.reason.as_deref().unwrap_or("it is not known why");
                out::note(&format!("rule `{name}` could not be judged: {why}"));
                if watched.fail && outcome == Outcome::Done {
                    outcome = Outcome::Undecided;
                }
            } else if verdict.held && watched.fail {
                let value = verdict.value.as_ref().map(|(v, unit)| format!(" (last {})", quantity(*v, unit)));
                out::note(&format!("rule `{name}` held{}", value.unwrap_or_default()));
                outcome = Outcome::Differs;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(alerts: &Alerts) -> Vec<&str> {
        alerts.0.iter().map(|w| w.name.as_str()).collect()
    }

    fn read(text: &str) -> Result<Alerts> {
        let mut alerts = Alerts::default();
        alerts.read(text)?;
        Ok(alerts)
    }

    #[test]
    fn rules_come_from_a_file_with_names_and_actions() {
        let text = "[[rule]]\nwhen = 'misses > 0'\nfail = true\n\n[[rule]]\nname = \"leak\"\nwhen = \"rss growth\"\n\
                    run = \"echo leak\"\npost = \"http://127.0.0.1:9/x\"\n";
        let alerts = read(text).unwrap();
        assert_eq!(names(&alerts), ["misses > 0", "leak"]);
        assert!(alerts.0[0].fail && alerts.0[1].actions.len() == 2);
        assert!(read("").unwrap().0.is_empty());
    }

    #[test]
    fn mistakes_in_a_file_are_named_with_line_and_column() {
        for (text, line, column) in [
            ("[[rule]]\nwhen = 'misses > '\n", 2, 18),
            ("[[rule]]\n  when = \"latency_p99 > 2mz\"\n", 2, 26),
            ("[[rule]]\nwhen = 5\n", 2, 8),
            ("[[rule]]\nwhen = 'misses > 0'\nwhat = 1\n", 3, 1),
            ("[[rule]]\nwhen = 'misses > 0'\npost = 'http://example.org/x'\n", 3, 9),
            ("[[rule]\n", 1, 8),
        ] {
            let why = format!("{:#}", read(text).err().unwrap());
            assert!(why.contains(&format!("line {line}, column {column}")), "{text}: {why}");
        }
        let twice = "[[rule]]\nname='x'\nwhen='misses > 0'\n[[rule]]\nname='x'\nwhen='misses > 1'\n";
        assert!(format!("{:#}", read(twice).err().unwrap()).contains("two rules"));
    }

    #[test]
    fn the_command_lines_rules_add_up() {
        let rules: Vec<Rule> = ["misses > 0", "rss growth"].iter().map(|r| r.parse().unwrap()).collect();
        let alerts = Alerts::new(None, &rules, &rules[..1]).unwrap();
        assert_eq!(names(&alerts), ["misses > 0", "rss growth"]);
        assert!(alerts.0[0].fail && !alerts.0[1].fail);
        // Nothing was watched, so the one that decides could not be judged.
        assert!(alerts.outcome() == Outcome::Undecided);
    }
}
