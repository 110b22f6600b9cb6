//! What views keep of moments that are past, for their plots: numbers alone, of an hour, in bounded memory.
//!
//! The last five minutes are kept moment by moment. What is older is summed up in buckets of some seconds, by what the
//! number is: of a p99 or a greatest time the greatest, of a least time the least, of counts the sum, of anything else the mean.
//! What is unknown is no number, and is left out; where all of a bucket is unknown, so is the bucket.

use schwann::Figure;
use schwann::prof::live::Moment;
use std::collections::{HashMap, VecDeque};

/// How long moments are kept one by one, and how many of them at most.
const FINE_S: f64 = 300.0;
const MOST_FINE: usize = 3000;
/// How long anything is kept, and in how many buckets at most.
pub(crate) const KEPT_S: f64 = 3600.0;
const MOST_COARSE: usize = 1200;
/// More names than this are not kept: a recording may bring any number.
const MOST_NAMES: usize = 512;

/// How several numbers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    Greatest,
    Least,
    Sum,
    Mean,
}

impl Together {
    /// For the number of this name.
    pub(crate) fn of(name: &str) -> Together {
        match name {
            "latency.p95" | "latency.p99" | "latency.max" | "latency.total" | "latency.misses_total" => {
                Together::Greatest
            }
            "latency.min" => Together::Least,
            "latency.runs" | "latency.misses" => Together::Sum,
            _ => Together::Mean,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Together::Greatest => "greatest",
            Together::Least => "least",
            Together::Sum => "sum",
            Together::Mean => "mean",
        }
    }
}

/// Some numbers that become one.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    number: f64,
    count: u32,
}

impl Gathered {
    const NONE: Gathered = Gathered { number: 0.0, count: 0 };

    fn add(&mut self, value: f64, how: Together) {
        self.number = match (self.count, how) {
            (0, _) => value,
            (_, Together::Greatest) => self.number.max(value),
            (_, Together::Least) => self.number.min(value),
            (_, Together::Sum | Together::Mean) => self.number + value,
        };
        self.count += 1;
    }

    fn value(self, how: Together) -> Option<f64> {
        match (self.count, how) {
            (0, _) => None,
            (n, Together::Mean) => Some(self.number / f64::from(n)),
            _ => Some(self.number),
        }
    }
}

/// The numbers of a moment, or of several that follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// The time that it is about, in seconds since watching began.
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
    /// Whether moments were lost just before it.
    pub(crate) gap: bool,
    /// By the places of their names; NaN where unknown.
    values: Vec<f32>,
}

impl Point {
    /// The number in this place, where it is known.
    pub(crate) fn value(&self, place: usize) -> Option<f64> {
        self.values.get(place).filter(|v| v.is_finite()).map(|v| f64::from(*v))
    }
}

/// A name whose numbers are kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) unit: String,
}

/// The past of what is watched.
#[derive(Debug, Default)]
pub(crate) struct History {
    names: Vec<Kept>,
    together: Vec<Together>,
    places: HashMap<String, usize>,
    fine: VecDeque<Point>,
    coarse: VecDeque<Point>,
    /// What the last bucket, which is still being filled, is made of.
    gathered: Vec<Gathered>,
    last: Option<u64>,
}

/// All figures of a moment by names such as `latency.p99`, `operations.gate`, `machine.cpu0_load`.
pub(crate) fn figures(moment: &Moment) -> impl Iterator<Item = (String, &Figure)> {
    let (l, w, m) = (&moment.latency, &moment.work, &moment.memory);
    let fixed = [
        ("latency.runs", &l.runs),
        ("latency.total", &l.total),
        ("latency.rate", &l.rate),
        ("latency.busy", &l.busy),
        ("latency.min", &l.min),
        ("latency.p50", &l.p50),
        ("latency.p95", &l.p95),
        ("latency.p99", &l.p99),
        ("latency.max", &l.max),
        ("latency.misses", &l.misses),
        ("latency.misses_total", &l.misses_total),
        ("work.flops", &w.flops),
        ("work.bandwidth", &w.bandwidth),
        ("work.roof_share", &w.roof_share),
        ("memory.arena", &m.arena),
        ("memory.weights", &m.weights),
        ("memory.pool", &m.pool),
        ("memory.rss", &m.rss),
    ];
    let fixed = fixed.into_iter().map(|(name, figure)| (name.to_owned(), figure));
    let operations = moment.operations.iter().map(|o| (format!("operations.{}", o.name), &o.share));
    let machine = moment.machine.iter().map(|(name, figure)| (format!("machine.{name}"), figure));
    fixed.chain(operations).chain(machine)
}

impl History {
    /// Keeps a moment's numbers. One that is not later than the last is another beginning: what was kept is of another time.
    pub(crate) fn push(&mut self, moment: &Moment) {
        if !moment.at_s.is_finite() {
            return;
        }
        if self.fine.back().is_some_and(|p| moment.at_s <= p.to_s) {
            *self = History::default();
        }
        let gap = self.last.is_some_and(|last| moment.number != last.wrapping_add(1));
        self.last = Some(moment.number);
        let mut values = vec![f32::NAN; self.names.len()];
        for (name, figure) in figures(moment) {
            let Some(place) = self.place(name, &figure.unit) else { continue };
            values.resize(values.len().max(self.names.len()), f32::NAN);
            if let Some(value) = figure.value {
                values[place] = value as f32;
            }
        }
        let span = if moment.span_s.is_finite() { moment.span_s.max(0.0) } else { 0.0 };
        self.fine.push_back(Point { from_s: moment.at_s - span, to_s: moment.at_s, gap, values });
        while self.fine.front().is_some_and(|p| p.to_s < moment.at_s - FINE_S) || self.fine.len() > MOST_FINE {
            if let Some(point) = self.fine.pop_front() {
                self.sum_up(&point);
            }
        }
        while self.coarse.front().is_some_and(|p| p.to_s < moment.at_s - KEPT_S) || self.coarse.len() > MOST_COARSE {
            self.coarse.pop_front();
        }
    }

    fn place(&mut self, name: String, unit: &str) -> Option<usize> {
        if let Some(place) = self.places.get(&name) {
            return Some(*place);
        }
        if self.names.len() >= MOST_NAMES {
            return None;
        }
        self.together.push(Together::of(&name));
        self.places.insert(name.clone(), self.names.len());
        self.names.push(Kept { name, unit: unit.to_owned() });
        Some(self.names.len() - 1)
    }

    fn sum_up(&mut self, point: &Point) {
        let width = KEPT_S / MOST_COARSE as f64;
        match self.coarse.back_mut().filter(|open| !point.gap && point.to_s - open.from_s <= width) {
            Some(open) => open.to_s = point.to_s,
            None => {
                self.gathered.clear();
                self.coarse.push_back(Point { values: vec![], ..*point });
            }
        }
        self.gathered.resize(self.names.len(), Gathered::NONE);
        for (place, gathered) in self.gathered.iter_mut().enumerate() {
            if let Some(value) = point.value(place) {
                gathered.add(value, self.together[place]);
            }
        }
        let value = |(g, how): (&Gathered, &Together)| g.value(*how).map_or(f32::NAN, |v| v as f32);
        if let Some(open) = self.coarse.back_mut() {
            open.values = self.gathered.iter().zip(&self.together).map(value).collect();
        }
    }

    /// The names whose numbers are kept, by their places.
    pub(crate) fn names(&self) -> &[Kept] {
        &self.names
    }

    /// The place of a name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// What is kept, in order of time.
    pub(crate) fn points(&self) -> impl DoubleEndedIterator<Item = &Point> {
        self.coarse.iter().chain(&self.fine)
    }

    /// The last moment's time.
    pub(crate) fn end_s(&self) -> Option<f64> {
        self.fine.back().map(|p| p.to_s)
    }

    /// The time that is kept.
    pub(crate) fn begin_s(&self) -> Option<f64> {
        self.points().next().map(|p| p.from_s)
    }

    /// The numbers of a name between two times in so many columns; `None` where nothing is known.
    pub(crate) fn columns(&self, name: &str, from_s: f64, to_s: f64, columns: usize) -> Vec<Option<f64>> {
        let how = Together::of(name);
        let mut gathered = vec![Gathered::NONE; columns];
        let width = (to_s - from_s) / columns as f64;
        let Some(place) = self.find(name).filter(|_| width > 0.0) else { return vec![None; columns] };
        for point in self.points().rev().take_while(|p| p.to_s > from_s) {
            let Some(value) = point.value(place).filter(|_| point.from_s < to_s) else { continue };
            // A moment is as wide as the time that it is about; what is a sum is counted once.
            let at = |s: f64| (s - from_s) / width;
            let last = ((at(point.to_s) - 1e-6).ceil() - 1.0).clamp(0.0, columns as f64 - 1.0) as usize;
            let first = ((at(point.from_s) + 1e-6).floor().max(0.0) as usize).min(last);
            let first = if how == Together::Sum { last } else { first };
            for gathered in &mut gathered[first..=last] {
                gathered.add(value, how);
            }
        }
        gathered.into_iter().map(|g| g.value(how)).collect()
    }
}

/// Begins and ends of alerts that are kept.
const MOST_ALERTS: usize = 500;

/// A rule that holds, or held.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Alert {
    pub(crate) rule: String,
    pub(crate) from_s: f64,
    /// When it held no more.
    pub(crate) to_s: Option<f64>,
}

/// Which rules held when, the newest first.
#[derive(Debug, Default)]
pub(crate) struct Log(VecDeque<Alert>);

impl Log {
    pub(crate) fn push(&mut self, moment: &Moment) {
        for alert in self.0.iter_mut().filter(|a| a.to_s.is_none()) {
            if !moment.alerts.contains(&alert.rule) {
                alert.to_s = Some(moment.at_s);
            }
        }
        for rule in &moment.alerts {
            if !self.0.iter().any(|a| a.to_s.is_none() && a.rule == *rule) {
                self.0.push_front(Alert { rule: rule.clone(), from_s: moment.at_s, to_s: None });
            }
        }
        self.0.truncate(MOST_ALERTS);
    }

    pub(crate) fn all(&self) -> &VecDeque<Alert> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann::prof::live::made_up;

    #[test]
    fn an_hour_is_kept_in_bounded_memory_and_older_is_forgotten() {
        let mut history = History::default();
        for number in 0..8000 {
            history.push(&made_up::moment(number, 1.0));
        }
        let (begin, end) = (history.begin_s().unwrap(), history.end_s().unwrap());
        assert!((3590.0..3610.0).contains(&(end - begin)), "{begin} to {end}");
        assert!(history.points().count() < MOST_COARSE + 310);
        // Ten a second: no more is kept.
        let mut history = History::default();
        for number in 0..40_000 {
            history.push(&made_up::moment(number, 0.1));
        }
        assert!(history.points().count() <= MOST_COARSE + MOST_FINE + 1, "{}", history.points().count());
        assert!(history.end_s().unwrap() - history.begin_s().unwrap() > 3500.0);
    }

    #[test]
    fn a_bucket_has_the_greatest_p99_the_sum_of_misses_and_the_mean_of_the_rest() {
        let mut history = History::default();
        for number in 0..400 {
            let mut moment = made_up::moment(number, 1.0);
            moment.latency.p99.value = Some(if number == 10 { 5.0 } else { 1.0 });
            moment.latency.misses.value = Some(2.0);
            moment.work.flops.value = Some(number as f64);
            moment.memory.pool.value = None;
            history.push(&moment);
        }
        let column = |name: &str| history.columns(name, 0.0, 30.0, 1)[0];
        assert_eq!(column("latency.p99"), Some(5.0));
        assert_eq!(column("memory.pool"), None);
        let mean = column("work.flops").unwrap();
        assert!((13.0..17.0).contains(&mean), "{mean}");
        let misses: f64 = history.columns("latency.misses", 0.0, 60.0, 6).iter().flatten().sum();
        assert!((100.0..130.0).contains(&misses), "{misses}");
    }

    #[test]
    fn a_lost_moment_is_a_gap_and_another_beginning_starts_anew() {
        let mut history = History::default();
        for number in [0, 1, 4, 5] {
            history.push(&made_up::moment(number, 1.0));
        }
        assert_eq!(history.points().map(|p| p.gap).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(history.columns("latency.p50", 0.0, 6.0, 6).iter().filter(|v| v.is_none()).count(), 2);
        history.push(&made_up::moment(0, 1.0));
        assert_eq!(history.points().count(), 1);
    }

    #[test]
    fn names_beyond_a_limit_are_not_kept() {
        let mut history = History::default();
        let mut moment = made_up::moment(0, 1.0);
        for i in 0..5000 {
            moment.machine.insert(format!("reading{i}"), Figure::measured(1.0, "W", "a test"));
        }
        history.push(&moment);
        assert_eq!(history.names().len(), MOST_NAMES);
        assert!(history.find("latency.p99").is_some());
    }
}
