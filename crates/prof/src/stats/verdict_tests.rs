use super::tests::{normal, timings};
use super::verdict::*;
use super::{Interval, Random, Resampling, median_interval};
use proptest::prelude::*;

/// A machine that starts processes: each start has its luck, one in twenty is disturbed, and what it measures is
/// correlated from block to block.
struct Machine {
    random: Random,
    /// How far the ratio of two sides lies from the true one in a start, by the places that their memory got.
    luck: f64,
    /// Blocks in a start: a tenth of a second has more of two runs of 150 µs.
    blocks: usize,
}

impl Machine {
    fn new(seed: u64, luck: f64) -> Machine {
        Machine { random: Random::new(seed), luck, blocks: 150 }
    }

    /// Two sides in turns; the second takes `ratio` times as long.
    fn turns(&mut self, ratio: f64) -> (Vec<f64>, Vec<f64>) {
        let mut luck = self.luck * normal(&mut self.random);
        if self.random.uniform() < 0.05 {
            luck += 0.05 * (self.random.uniform() - 0.3);
        }
        let base = timings(&mut self.random, 1e-4, 0.01, 0.8, self.blocks);
        let other = timings(&mut self.random, 1e-4 * ratio * luck.exp(), 0.01, 0.8, self.blocks);
        (base, other)
    }

    fn start(&mut self, ratio: f64) -> Reading {
        let (base, other) = self.turns(ratio);
        Reading::of(&base, &other).unwrap()
    }

    /// What asking comes to, with time for every look.
    fn ask(&mut self, question: Question, ratio: f64) -> Answer {
        let mut start = || Ok::<_, ()>(self.start(ratio));
        question.ask(1e9, None, &mut start, &mut |_| ()).unwrap().unwrap().answer
    }

    /// Starts by the yardstick, of which a little of the machine's own change is left. Beside some of them another program
    /// runs: the model then needs a third more time, and the yardstick does not.
    fn record(&mut self, ratio: f64, disturbed: f64) -> Record {
        let left = (0.002 * normal(&mut self.random)).exp();
        let mut start = || {
            let (yardstick, mut times) = self.turns(ratio * left);
            if self.random.uniform() < disturbed {
                times.iter_mut().for_each(|t| *t *= 1.33);
            }
            Reading::over_yardstick(&yardstick, &times).unwrap()
        };
        Record { starts: (0..24).map(|_| start()).collect(), yardstick: true }
    }
}

fn share(of: usize, f: impl FnMut(usize) -> bool) -> f64 {
    (0..of).map(f).filter(|hit| *hit).count() as f64 / of as f64
}

#[test]
fn identical_programs_are_told_apart_at_most_twice_in_a_hundred_and_planted_ones_are_found() {
    for luck in [0.001, 0.004, 0.008] {
        let mut machine = Machine::new(17, luck);
        let verdict = |a: Answer| matches!(a, Answer::Faster | Answer::Slower);
        let question = Question::difference(5);
        let wrong = share(600, |_| verdict(machine.ask(question, 1.0)));
        assert!(wrong <= 0.02, "luck {luck}: {wrong}");
        let wrong = share(300, |_| machine.ask(Question::limit(0.03), 1.0) == Answer::Slower);
        assert!(wrong <= 0.02, "luck {luck}: {wrong}");
        let found = |machine: &mut Machine, question: Question, ratio: f64| {
            share(200, |_| machine.ask(question, ratio) == Answer::Slower)
        };
        let all = [
            (found(&mut machine, question, 1.05), 0.95),
            (found(&mut machine, Question::limit(0.03), 1.05), 0.95),
            (found(&mut machine, question, 1.03), 0.8),
            (found(&mut machine, Question::limit(0.01), 1.03), 0.8),
        ];
        assert!(all.iter().all(|(share, least)| share >= least), "luck {luck}: {all:?}");
        let faster = share(100, |_| machine.ask(question, 1.0 / 1.05) == Answer::Faster);
        assert!(faster >= 0.95, "luck {luck}: {faster}");
    }
}

#[test]
fn one_process_would_tell_identical_programs_apart_by_its_luck() {
    let mut machine = Machine::new(23, 0.008);
    let how = Resampling { confidence: 0.99, resamples: 400, ..Resampling::default() };
    // The rule that judged one process by its own samples, however it was asked: an interval beyond 0, and 1% at least.
    let wrong = share(300, |_| {
        let (base, other) = machine.turns(1.0);
        let logs: Vec<f64> = base.iter().zip(&other).map(|(b, o)| (o / b).ln()).collect();
        let i = median_interval(&logs, &how).unwrap();
        (i.low > 0.0 || i.high < 0.0) && i.estimate.abs() >= LEAST_CHANGE
    });
    assert!(wrong > 0.05, "{wrong}");
}

#[test]
fn records_made_apart_are_told_apart_at_most_twice_in_a_hundred_and_planted_ones_are_found() {
    for disturbed in [0.0, 0.3, 0.5] {
        let mut machine = Machine::new(29, 0.003);
        let mut judge = |question: Question, ratio: f64| {
            // Two moments of the machine: the one may be disturbed and the other not.
            let (base, candidate) = (machine.record(1.0, 0.0), machine.record(ratio, disturbed));
            question.judge_apart(&base, &candidate).unwrap().answer
        };
        let (difference, limit) = (Question::difference(1), Question::limit(0.03));
        let wrong = share(600, |_| matches!(judge(difference, 1.0), Answer::Faster | Answer::Slower));
        assert!(wrong <= 0.02, "{disturbed}: {wrong}");
        let all = [
            (share(200, |_| judge(difference, 1.05) == Answer::Slower), 0.95),
            (share(200, |_| judge(limit, 1.05) == Answer::Slower), 0.95),
            (share(200, |_| judge(difference, 1.03) == Answer::Slower), 0.8),
            (share(200, |_| judge(Question::limit(0.01), 1.03) == Answer::Slower), 0.8),
        ];
        assert!(all.iter().all(|(share, least)| share >= least), "{disturbed}: {all:?}");
    }
}

#[test]
fn a_record_of_which_most_was_disturbed_seldom_gives_a_verdict() {
    let mut machine = Machine::new(31, 0.003);
    let wrong = share(200, |_| {
        let (base, candidate) = (machine.record(1.0, 0.0), machine.record(1.0, 0.7));
        matches!(
            Question::difference(1).judge_apart(&base, &candidate).unwrap().answer,
            Answer::Faster | Answer::Slower
        )
    });
    assert!(wrong <= 0.05, "{wrong}");
}

#[test]
fn a_record_of_one_start_says_what_it_cannot_tell() {
    let one = |ratio: f64| Record { starts: vec![Reading { log: f64::ln(ratio), error: 0.001 }], yardstick: false };
    let judge = |ratio| Question::difference(1).judge_apart(&one(1.0), &one(ratio)).unwrap();
    let least = least_of_one_start();
    assert!(least > 0.08 && least < 0.3, "{least}");
    assert_eq!(judge(1.05).answer, Answer::Undecided, "5% is within one start's luck");
    assert_eq!(judge(1.0).answer, Answer::Undecided, "and so is no difference");
    assert_eq!(judge(1.5).answer, Answer::Slower);
}

#[test]
fn more_questions_and_more_looks_ask_for_more() {
    let starts: Vec<Reading> =
        [0.048, 0.052, 0.05, 0.053, 0.049, 0.051].map(|log| Reading { log, error: 0.001 }).into();
    let width = |questions| {
        let Interval { low, high, .. } = Question::difference(questions).judge(&starts).unwrap().ratio;
        high - low
    };
    assert!(width(5) > 1.2 * width(1), "{} {}", width(5), width(1));
    // Asked live, each look has a share of the chance to err.
    let mut next = starts.iter().cycle();
    let mut start = || Ok::<_, ()>(*next.next().unwrap());
    let live = Question::difference(1).ask(1e9, None, &mut start, &mut |_| ()).unwrap().unwrap();
    assert_eq!(live.starts, 4, "it ends at the first look that is clear");
    assert_eq!(live.answer, Answer::Slower);
}

#[test]
fn one_disturbed_start_neither_moves_nor_hides_the_answer() {
    let mut starts: Vec<Reading> =
        (0..8).map(|i| Reading { log: 0.05 + 0.001 * f64::from(i % 3), error: 0.001 }).collect();
    let judge = |starts: &[Reading]| Question::limit(0.03).judge(starts).unwrap();
    assert_eq!(judge(&starts).answer, Answer::Slower);
    starts[3].log = 0.4;
    let judged = judge(&starts);
    assert_eq!(judged.answer, Answer::Slower, "{judged:?}");
    assert!((judged.ratio.estimate - 1.052).abs() < 0.003, "{judged:?}");
}

#[test]
fn starts_that_agree_by_chance_are_no_surer_than_their_own_scatter() {
    let starts = vec![Reading { log: 0.011, error: 0.02 }; 5];
    assert_eq!(Question::difference(1).judge(&starts).unwrap().answer, Answer::Undecided);
}

#[test]
fn a_failed_start_ends_the_question_and_time_ends_it_too() {
    let mut broken = || Err("no");
    assert_eq!(Question::limit(0.03).ask(1.0, None, &mut broken, &mut |_| ()).unwrap_err(), "no");
    let mut count = 0;
    let mut start = || {
        count += 1;
        Ok::<_, ()>(Reading { log: 0.03 * f64::from(count % 2), error: 0.0 })
    };
    let judged = Question::limit(0.03).ask(1e-12, None, &mut start, &mut |_| ()).unwrap().unwrap();
    assert_eq!((judged.starts, judged.answer), (2, Answer::Undecided), "two starts at least, and no verdict by them");
}

#[test]
fn the_scatter_within_a_start_is_that_of_its_middle() {
    // Most blocks agree to a thousandth, and many are disturbed by a half: the median is as sure as the middle is dense.
    let mut random = Random::new(3);
    let ones = vec![1.0; 400];
    let blocks: Vec<f64> =
        (0..400).map(|i| (1.0 + 0.001 * normal(&mut random)) * [1.0, 1.0, 1.5, 1.0 / 1.5][i % 4]).collect();
    let reading = Reading::of(&ones, &blocks).unwrap();
    assert!(reading.error < 0.0005 && reading.error > 0.00003, "{reading:?}");
    // Of a normal distribution it is the usual 1.25 deviations over the root of the count.
    let errors: Vec<f64> = (0..50)
        .map(|_| {
            let blocks: Vec<f64> = (0..400).map(|_| (0.01 * normal(&mut random)).exp()).collect();
            Reading::of(&ones, &blocks).unwrap().error
        })
        .collect();
    let mean = errors.iter().sum::<f64>() / 50.0;
    assert!((mean / (0.01 * 1.2533 / 20.0) - 1.0).abs() < 0.15, "{mean}");
}

#[test]
fn students_quantiles_are_those_of_the_tables() {
    // 6 starts, none left out of... one at each end: 4 are kept, 3 degrees of freedom: t = 5.841 for 99%.
    let logs = [-0.03, -0.01, 0.0, 0.0, 0.01, 0.03];
    let starts: Vec<Reading> = logs.map(|log| Reading { log, error: 0.0 }).into();
    let i = Question::difference(1).judge(&starts).unwrap().ratio;
    // Winsorized to ±0.01: squares 4 × 1e-4 over 4 × 3.
    let half = 5.841 * (4e-4f64 / 12.0).sqrt();
    assert!((i.high.ln() - half).abs() < 1e-4 && (i.low.ln() + half).abs() < 1e-4, "{i:?} {half}");
}

proptest! {
    #[test]
    fn nothing_here_panics(logs in prop::collection::vec(any::<f64>(), 0..30), errors in any::<f64>(), limit in 0.0f64..10.0) {
        let starts: Vec<Reading> = logs.iter().map(|&log| Reading { log, error: errors }).collect();
        let record = Record { starts: starts.clone(), yardstick: true };
        for question in [Question::difference(3), Question::limit(limit)] {
            for judged in [question.judge(&starts), question.judge_apart(&record, &record)].into_iter().flatten() {
                let r = judged.ratio;
                prop_assert!(r.low <= r.estimate && r.estimate <= r.high, "{:?}", r);
            }
        }
        prop_assert!(Reading::of(&logs, &logs).is_none_or(|r| r.log.abs() < 1e-12));
    }

    #[test]
    fn swapping_sides_turns_the_answer_round(logs in prop::collection::vec(-0.2f64..0.2, 2..20)) {
        let of = |sign: f64| logs.iter().map(|l| Reading { log: sign * l, error: 0.001 }).collect::<Vec<_>>();
        let [a, b] = [1.0, -1.0].map(|sign| Question::difference(1).judge(&of(sign)).unwrap());
        prop_assert!((a.ratio.low * b.ratio.high - 1.0).abs() < 1e-9);
    }
}
