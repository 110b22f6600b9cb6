//! Rules about what is watched: `latency_p99 > 2ms for 5s`, `misses > 0`, `roof_share < 50%`, `rss growth`.
//!
//! A figure that is not known neither breaks a rule nor satisfies it: [`Judge`] says so for each rule.

use super::Moment;
use super::sum::is_of_machine;
use crate::nearest::did_you_mean;
use schwann_core::Figure;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// What a rule cannot be read for, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {problem}")]
pub struct Mistake {
    /// Counted in letters, from 1.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// How long growth is watched unless the rule says so.
const GROWTH_S: f64 = 60.0;
/// What counts as growth unless the rule says so: this part of what there was.
const GROWTH: f64 = 0.01;
/// Values that growth is judged by; beyond, every second is left out.
const MOST_VALUES: usize = 4096;
/// The longest time of a rule.
const MOST_SECONDS: f64 = 7.0 * 86400.0;
/// A rule that is longer is none.
const MOST_LETTERS: usize = 400;

/// Figures that a moment has beside the machine's readings, with their units.
const FIGURES: [(&str, &str); 17] = [
    ("latency_min", "s"),
    ("latency_p50", "s"),
    ("latency_p95", "s"),
    ("latency_p99", "s"),
    ("latency_max", "s"),
    ("rate", "runs/s"),
    ("runs", "runs"),
    ("busy", "%"),
    ("misses", "runs"),
    ("misses_total", "runs"),
    ("flops", "flop/s"),
    ("bandwidth", "B/s"),
    ("roof_share", "%"),
    ("arena", "B"),
    ("weights", "B"),
    ("pool", "B"),
    ("rss", "B"),
];

/// Units that values may have: what stands for what, how many of it.
const UNITS: [(&str, &str, f64); 34] = [
    ("s", "s", 1.0),
    ("ms", "s", 1e-3),
    ("us", "s", 1e-6),
    ("µs", "s", 1e-6),
    ("μs", "s", 1e-6),
    ("ns", "s", 1e-9),
    ("min", "s", 60.0),
    ("h", "s", 3600.0),
    ("%", "%", 1.0),
    ("B", "B", 1.0),
    ("kB", "B", 1e3),
    ("MB", "B", 1e6),
    ("GB", "B", 1e9),
    ("KiB", "B", 1024.0),
    ("MiB", "B", 1_048_576.0),
    ("GiB", "B", 1_073_741_824.0),
    ("B/s", "B/s", 1.0),
    ("MB/s", "B/s", 1e6),
    ("GB/s", "B/s", 1e9),
    ("flop/s", "flop/s", 1.0),
    ("Mflop/s", "flop/s", 1e6),
    ("Gflop/s", "flop/s", 1e9),
    ("Tflop/s", "flop/s", 1e12),
    ("/s", "runs/s", 1.0),
    ("runs/s", "runs/s", 1.0),
    ("runs", "runs", 1.0),
    ("Hz", "Hz", 1.0),
    ("MHz", "Hz", 1e6),
    ("GHz", "Hz", 1e9),
    ("W", "W", 1.0),
    ("mW", "W", 1e-3),
    ("J", "J", 1.0),
    ("°C", "°C", 1.0),
    ("C", "°C", 1.0),
];

/// Names of the figures that rules may be about, beside the machine's readings.
pub fn figures() -> impl Iterator<Item = &'static str> {
    FIGURES.iter().map(|(name, _)| *name)
}

/// The unit of a figure or reading of this name, where there is one of this name.
fn unit_of(name: &str) -> Option<&'static str> {
    if let Some((_, unit)) = FIGURES.iter().find(|(n, _)| *n == name) {
        return Some(unit);
    }
    if let Some(entry) = schwann_sensors::CATALOGUE.iter().find(|e| e.name == name && is_of_machine(name)) {
        return Some(entry.unit);
    }
    // Of one core, one GPU, one cluster, one sensor.
    let (first, rest) = name.split_once('_')?;
    let numbered =
        |kind: &str| first.strip_prefix(kind).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    match (first, rest.rsplit('_').next()?) {
        (_, "load") if numbered("cpu") || numbered("gpu") || first == "cpu" => Some("%"),
        (_, "frequency") if numbered("cpu") || numbered("gpu") || first == "cpu" => Some("Hz"),
        (_, "power") if numbered("gpu") => Some("W"),
        (_, "energy") if numbered("gpu") => Some("J"),
        ("temperature", _) => Some("°C"),
        _ => None,
    }
}

/// The figure of this name at a moment.
fn figure<'m>(moment: &'m Moment, name: &str) -> Option<&'m Figure> {
    let (l, w, m) = (&moment.latency, &moment.work, &moment.memory);
    Some(match name {
        "latency_min" => &l.min,
        "latency_p50" => &l.p50,
        "latency_p95" => &l.p95,
        "latency_p99" => &l.p99,
        "latency_max" => &l.max,
        "rate" => &l.rate,
        "runs" => &l.runs,
        "busy" => &l.busy,
        "misses" => &l.misses,
        "misses_total" => &l.misses_total,
        "flops" => &w.flops,
        "bandwidth" => &w.bandwidth,
        "roof_share" => &w.roof_share,
        "arena" => &m.arena,
        "weights" => &m.weights,
        "pool" => &m.pool,
        "rss" => &m.rss,
        reading => moment.machine.get(reading)?,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Is {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Is::Above => value > limit,
            Is::AtLeast => value >= limit,
            Is::Below => value < limit,
            Is::AtMost => value <= limit,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    /// It is above or below a limit, at every moment of so many seconds.
    Limit { is: Is, limit: f64, seconds: f64 },
    /// It has grown over so many seconds, by more than this; by a hundredth unless told.
    Growth { by: Option<f64>, seconds: f64 },
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    name: String,
    what: What,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The words of a rule, each with its column.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = vec![];
    let mut last = ' ';
    for (i, c) in text.chars().enumerate() {
        let sign = |c: char| matches!(c, '<' | '>' | '=');
        if !c.is_whitespace() {
            // `p99>2ms` is three words, and `>=` one.
            let new = last.is_whitespace() || sign(last) != sign(c);
            match words.last_mut().filter(|_| !new) {
                Some((_, word)) => word.push(c),
                None => words.push((i + 1, c.to_string())),
            }
        }
        last = c;
    }
    words
}

/// A number with its unit, in one word or two: how much of which unit.
fn quantity(
    words: &mut std::iter::Peekable<std::vec::IntoIter<(usize, String)>>,
    end: usize,
) -> Result<(f64, Option<&'static str>, usize), Mistake> {
    let expected = "expected a number with its unit, such as 2ms, 50% or 10MB";
    let (column, word) =
        words.next().ok_or(Mistake { column: end, problem: format!("the rule ends here; {expected}") })?;
    let at = word
        .char_indices()
        .find(|(_, c)| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+'))
        .map_or(word.len(), |(i, _)| i);
    // 1e6 is a number.
    let at = match word[at..].strip_prefix(['e', 'E']) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            let digits = rest.char_indices().skip(1).find(|(_, c)| !c.is_ascii_digit()).map_or(rest.len(), |(i, _)| i);
            at + 1 + digits
        }
        _ => at,
    };
    let (number, unit) = word.split_at(at);
    let value: f64 = match number.parse() {
        Ok(v) if f64::is_finite(v) => v,
        _ => return Err(Mistake { column, problem: format!("`{word}` is no number; {expected}") }),
    };
    let (unit, unit_column) = match unit {
        "" => match words.next_if(|(_, w)| w != "for") {
            Some((column, unit)) => (unit, column),
            None => return Ok((value, None, column)),
        },
        unit => (unit.to_owned(), column + number.chars().count()),
    };
    match UNITS.iter().find(|(sign, ..)| *sign == unit) {
        Some((_, base, scale)) => Ok((value * scale, Some(base), column)),
        None => {
            let known = ["s", "ms", "us", "ns", "%", "B", "kB", "MB", "GB", "/s", "Gflop/s", "GB/s", "Hz", "W", "°C"];
            let meant = did_you_mean(&unit, known);
            let problem = format!("`{unit}` is no unit{meant}; expected one such as {}", known.join(", "));
            Err(Mistake { column: unit_column, problem })
        }
    }
}

impl FromStr for Rule {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Rule, Mistake> {
        let end = text.chars().count() + 1;
        if end > MOST_LETTERS {
            return Err(Mistake { column: MOST_LETTERS, problem: "the rule is too long".into() });
        }
        let mut words = words(text).into_iter().peekable();
        let example = "such as `latency_p99 > 2ms for 5s`, `misses > 0` or `rss growth`";
        let (column, name) =
            words.next().ok_or(Mistake { column: 1, problem: format!("the rule is empty; expected one {example}") })?;
        let Some(unit) = unit_of(&name) else {
            let known = figures().chain(schwann_sensors::CATALOGUE.iter().map(|e| e.name).filter(|n| is_of_machine(n)));
            let meant = did_you_mean(&name, known);
            let list: Vec<&str> = figures().collect();
            let problem = format!(
                "`{name}` is no figure that is watched{meant}; expected one of {}, or a reading of the machine such as \
                 package_power",
                list.join(", ")
            );
            return Err(Mistake { column, problem });
        };
        // A value must be of the figure's kind; one without a unit may stand for counts alone.
        let fits = |value: f64, given: Option<&str>, column: usize| match given {
            Some(given) if given == unit => Ok(value),
            None if matches!(unit, "runs" | "count" | "flag" | "level" | "runs/s") => Ok(value),
            None if value == 0.0 => Ok(value),
            _ => Err(Mistake { column, problem: format!("`{name}` is in {unit}; expected a value of that kind") }),
        };
        let seconds = |words: &mut std::iter::Peekable<_>, otherwise: f64| -> Result<f64, Mistake> {
            match words.next() {
                None => Ok(otherwise),
                Some((column, word)) if word == "for" => {
                    let _ = column;
                    let (value, given, column) = quantity(words, end)?;
                    match given {
                        Some("s") if value > 0.0 && value <= MOST_SECONDS => Ok(value),
                        _ => Err(Mistake {
                            column,
                            problem: "expected a time of at most a week, such as 5s or 2min".into(),
                        }),
                    }
                }
                Some((column, word)) => Err(Mistake {
                    column,
                    problem: format!("`{word}` is not expected here; expected `for` and a time, or the end"),
                }),
            }
        };
        let is = |word: &str| match word {
            ">" => Some(Is::Above),
            ">=" => Some(Is::AtLeast),
            "<" => Some(Is::Below),
            "<=" => Some(Is::AtMost),
            _ => None,
        };
        let (column, word) = words.next().ok_or_else(|| Mistake {
            column: end,
            problem: format!("the rule ends after `{name}`; expected one {example}"),
        })?;
        let what = if word == "growth" {
            let by = match words.next_if(|(_, w)| w == ">") {
                Some(_) => {
                    let (value, given, column) = quantity(&mut words, end)?;
                    Some(fits(value, given, column)?)
                }
                None => None,
            };
            What::Growth { by, seconds: seconds(&mut words, GROWTH_S)? }
        } else {
            let Some(is) = is(&word) else {
                let problem = format!("`{word}` is not expected here; expected >, >=, <, <= or `growth`");
                return Err(Mistake { column, problem });
            };
            let (value, given, column) = quantity(&mut words, end)?;
            What::Limit { is, limit: fits(value, given, column)?, seconds: seconds(&mut words, 0.0)? }
        };
        if let Some((column, word)) = words.next() {
            return Err(Mistake {
                column,
                problem: format!("`{word}` is not expected here; the rule should end before it"),
            });
        }
        Ok(Rule { text: text.trim().to_owned(), name, what })
    }
}

/// What is known of a rule so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it holds at the last moment.
    pub holds: bool,
    /// Whether it held at any moment.
    pub held: bool,
    /// Whether it could be judged at any moment.
    pub judged: bool,
    /// Why it could not be judged last.
    pub reason: Option<String>,
    /// The figure's last value, with its unit.
    pub value: Option<(f64, String)>,
}

/// A rule with what was seen of its figure.
#[derive(Clone, Debug)]
pub struct Judge {
    rule: Rule,
    verdict: Verdict,
    /// Since when what it says has been true.
    since: Option<f64>,
    values: VecDeque<(f64, f64)>,
}

impl Judge {
    /// Nothing was seen yet.
    pub fn new(rule: Rule) -> Judge {
        let reason = Some("nothing was watched".into());
        let verdict = Verdict { holds: false, held: false, judged: false, reason, value: None };
        Judge { rule, verdict, since: None, values: VecDeque::new() }
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }
    /// What is known of it.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Whether it holds at the last moment, or why that is not known.
    pub fn now(&self) -> Result<bool, String> {
        self.verdict.reason.clone().map_or(Ok(self.verdict.holds), Err)
    }

    /// Another moment; whether the rule holds now.
    pub fn judge(&mut self, moment: &Moment) -> bool {
        let known = figure(moment, &self.rule.name);
        let value = known.and_then(|f| f.value).filter(|v| v.is_finite());
        let Some(value) = value else {
            let missing = || format!("there is no reading `{}` on this machine", self.rule.name);
            let reason = known.map_or_else(missing, |f| f.reason.clone().unwrap_or_else(|| "it is unavailable".into()));
            (self.verdict.holds, self.verdict.reason, self.verdict.value) = (false, Some(reason), None);
            self.since = None;
            return false;
        };
        self.verdict.value = known.map(|f| (value, f.unit.clone()));
        let answer = match self.rule.what {
            What::Limit { is, limit, seconds } => {
                let holds = is.holds(value, limit);
                let since = *self.since.get_or_insert(moment.at_s - moment.span_s);
                match holds {
                    false => {
                        self.since = None;
                        Some(false)
                    }
                    // Times are sums of what clocks gave.
                    true => (moment.at_s - since >= seconds * (1.0 - 1e-6)).then_some(true),
                }
            }
            What::Growth { by, seconds } => self.growth(moment.at_s, value, by, seconds),
        };
        self.verdict.holds = answer == Some(true);
        self.verdict.held |= self.verdict.holds;
        self.verdict.judged |= answer.is_some();
        self.verdict.reason = answer.is_none().then(|| "it was not watched for as long as the rule asks".into());
        self.verdict.holds
    }

    /// Whether the least of the last third is above the greatest of the first; `None` before there is enough to say.
    fn growth(&mut self, at_s: f64, value: f64, by: Option<f64>, seconds: f64) -> Option<bool> {
        self.values.push_back((at_s, value));
        while self.values.len() > 1 && self.values[1].0 <= at_s - seconds {
            self.values.pop_front();
        }
        if self.values.len() > MOST_VALUES {
            let mut keep = false;
            self.values.retain(|_| {
                keep = !keep;
                keep
            });
        }
        let first = self.values.front()?.0;
        if at_s - first < seconds * (1.0 - 1e-6) {
            return None;
        }
        let third = (at_s - first) / 3.0;
        let early = self.values.iter().filter(|(at, _)| *at <= first + third).map(|v| v.1).fold(f64::MIN, f64::max);
        let late = self.values.iter().filter(|(at, _)| *at >= at_s - third).map(|v| v.1).fold(f64::MAX, f64::min);
        Some(late - early > by.unwrap_or(GROWTH * early.abs()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sum::tests::moment;
    use super::*;

    #[test]
    fn rules_are_read_as_people_write_them() {
        for text in [
            "latency_p99 > 2ms for 5s",
            "misses > 0",
            "misses>0",
            "roof_share < 50%",
            "roof_share < 50 %",
            "rss growth",
            "rss growth > 10MB for 10min",
            "package_power >= 65W for 1 min",
            "cpu3_load > 99%",
            "temperature_cpu > 90C",
            "rate < 1000/s",
            "rate < 1000",
            "flops < 1e1Gflop/s",
            "latency_max <= 1500us",
        ] {
            let rule: Rule = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(rule.to_string(), text);
        }
        let rule: Rule = "latency_p99 > 2ms for 5s".parse().unwrap();
        assert_eq!(rule.what, What::Limit { is: Is::Above, limit: 2e-3, seconds: 5.0 });
    }

    #[test]
    fn mistakes_are_named_with_their_column() {
        for (text, column, word) in [
            ("", 1, "empty"),
            ("latency_p98 > 2ms", 1, "latency_p9"),
            ("latency_p99", 12, "ends after"),
            ("latency_p99 = 2ms", 13, "expected >"),
            ("latency_p99 >", 14, "ends here"),
            ("latency_p99 > fast", 15, "no number"),
            ("latency_p99 > 2mz", 16, "no unit"),
            ("latency_p99 > 2MB", 15, "is in s"),
            ("latency_p99 > 2", 15, "is in s"),
            ("latency_p99 > 2ms during 5s", 19, "expected `for`"),
            ("latency_p99 > 2ms for 5%", 23, "a time"),
            ("latency_p99 > 2ms for", 22, "ends here"),
            ("latency_p99 > 2ms for 5s please", 26, "should end"),
            ("latency_p99 > nan", 15, "no number"),
            ("cycles > 5", 1, "no figure"),
            ("rss growth >", 13, "ends here"),
            ("rss growth < 5MB", 12, "expected `for`"),
        ] {
            let mistake = text.parse::<Rule>().unwrap_err();
            assert!(mistake.column == column && mistake.problem.contains(word), "{text}: {mistake}");
        }
        assert!("x".repeat(10_000).parse::<Rule>().is_err());
    }

    #[test]
    fn any_text_is_a_rule_or_a_mistake() {
        let pieces = ["latency_p99", ">", "2", "ms", "é", "for", "growth", "%", "1e", "-", ".", "\u{0}", "<=", " "];
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..6 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text += pieces[(state >> 33) as usize % pieces.len()];
                if state >> 63 == 1 {
                    text.push(' ');
                }
            }
            let _ = text.parse::<Rule>();
        }
    }

    fn at(at_s: f64, p99: Option<f64>) -> Moment {
        let mut m = moment();
        (m.at_s, m.span_s) = (at_s, 1.0);
        m.latency.p99 = match p99 {
            Some(v) => Figure::measured(v, "s", "test"),
            None => Figure::unavailable("s", "test", "no run ended"),
        };
        m
    }

    #[test]
    fn a_rule_with_a_time_holds_after_that_time_and_not_before() {
        let mut judge = Judge::new("latency_p99 > 2ms for 3s".parse().unwrap());
        let slow = |t: f64| at(t, Some(3e-3));
        assert_eq!([1.0, 2.0, 3.0, 4.0].map(|t| judge.judge(&slow(t))), [false, false, true, true]);
        assert!(!judge.judge(&at(5.0, Some(1e-3))) && judge.verdict().held);
        // Begun anew.
        assert_eq!([6.0, 7.0, 8.0].map(|t| judge.judge(&slow(t))), [false, false, true]);
    }

    #[test]
    fn what_is_not_known_neither_holds_nor_passes() {
        let mut judge = Judge::new("latency_p99 > 2ms".parse().unwrap());
        assert!(!judge.judge(&at(1.0, None)) && !judge.verdict().judged);
        assert_eq!(judge.verdict().reason.as_deref(), Some("no run ended"));
        assert!(!judge.judge(&at(2.0, Some(1e-3))) && judge.verdict().judged);
        // Not watched for long enough is not judged either.
        let mut judge = Judge::new("latency_p99 > 2ms for 10s".parse().unwrap());
        assert!(!judge.judge(&at(1.0, Some(1.0))) && !judge.verdict().judged && judge.verdict().reason.is_some());
        let mut judge = Judge::new("temperature_nothing > 5C".parse().unwrap());
        assert!(!judge.judge(&at(1.0, None)) && judge.verdict().reason.as_ref().unwrap().contains("no reading"));
    }

    #[test]
    fn growth_is_what_stays_above_what_was() {
        let run = |rule: &str, rss: &dyn Fn(f64) -> f64| {
            let mut judge = Judge::new(rule.parse().unwrap());
            let mut held = false;
            for i in 0..120 {
                let mut m = at(f64::from(i), None);
                m.memory.rss = Figure::measured(rss(f64::from(i)), "B", "test");
                held |= judge.judge(&m);
            }
            (held, judge.verdict().judged)
        };
        assert_eq!(run("rss growth", &|t| 1e8 + 1e5 * t), (true, true));
        assert_eq!(run("rss growth", &|t| 1e8 + 2e6 * (t * 0.7).sin()), (false, true));
        assert_eq!(run("rss growth > 1GB", &|t| 1e8 + 1e5 * t), (false, true));
        assert_eq!(run("rss growth for 10min", &|t| 1e8 + 1e5 * t), (false, false));
    }
}
