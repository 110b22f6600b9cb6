//! Cutting a run into submissions.
//!
//! A submission cannot be stopped, and drivers treat one that takes seconds as a hang. So no submission should take
//! more than [`PIECE_S`]. How long launches take is not known before they have run: unknown launches are tried in small
//! numbers, and the times of earlier pieces determine how much goes into the next.

use crate::program::{Argument, Base, Dispatch, Item};

/// The longest that a submission should take, in seconds.
pub(crate) const PIECE_S: f64 = 0.05;

/// The most launches of a submission.
pub(crate) const MOST_LAUNCHES: usize = 1024;

/// The most launches of unknown length in a submission.
const MOST_UNKNOWN: usize = 64;

/// A layout's items as a list of instructions, so that a run can stop anywhere and continue from there.
#[derive(Debug, Default)]
pub(crate) struct Script {
    ops: Vec<Op>,
    pub(crate) dispatches: Vec<Dispatch>,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A dispatch, by number.
    Dispatch(usize),
    /// A loop begins, whose end is at this instruction.
    Begin { rounds: u32, end: usize },
    /// A loop ends, whose beginning is at this instruction.
    End { begin: usize },
}

/// Where a run is in its script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    at: usize,
    /// The current round of each loop around it, from the outermost in.
    rounds: Vec<u32>,
    /// Steps already done of the walk at this instruction.
    steps: u32,
}

impl Script {
    pub(crate) fn new(items: &[Item]) -> Script {
        let mut script = Script::default();
        script.add(items);
        script
    }

    fn add(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Dispatch(dispatch) => {
                    self.ops.push(Op::Dispatch(self.dispatches.len()));
                    self.dispatches.push(dispatch.clone());
                }
                Item::Repeat { rounds, body } => {
                    let (begin, before) = (self.ops.len(), self.dispatches.len());
                    self.ops.push(Op::Begin { rounds: *rounds, end: 0 });
                    self.add(body);
                    if self.dispatches.len() == before {
                        self.ops.truncate(begin);
                        continue;
                    }
                    let end = self.ops.len();
                    self.ops[begin] = Op::Begin { rounds: *rounds, end };
                    self.ops.push(Op::End { begin });
                }
            }
        }
    }

    /// The beginning.
    pub(crate) fn start(&self) -> Cursor {
        let mut cursor = Cursor::default();
        self.settle(&mut cursor);
        cursor
    }

    /// Goes on to the next dispatch, or to the end.
    fn settle(&self, cursor: &mut Cursor) {
        loop {
            match self.ops.get(cursor.at) {
                Some(Op::Begin { rounds: 0, end }) => cursor.at = end + 1,
                Some(Op::Begin { .. }) => {
                    cursor.rounds.push(0);
                    cursor.at += 1;
                }
                Some(Op::End { begin }) => {
                    let round = cursor.rounds.pop().map_or(0, |round| round + 1);
                    match self.ops[*begin] {
                        Op::Begin { rounds, .. } if round < rounds => {
                            cursor.rounds.push(round);
                            cursor.at = begin + 1;
                        }
                        _ => cursor.at += 1,
                    }
                }
                _ => return,
            }
        }
    }

    /// The dispatch there, by number; nothing at the end.
    fn dispatch(&self, cursor: &Cursor) -> Option<usize> {
        match self.ops.get(cursor.at) {
            Some(Op::Dispatch(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn is_over(&self, cursor: &Cursor) -> bool {
        self.dispatch(cursor).is_none()
    }
}

/// Where a stream has its inputs and outputs, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) inputs: Vec<u32>,
    pub(crate) outputs: Vec<u32>,
}

impl Places {
    fn of(&self, argument: &Argument, rounds: &[u32]) -> u32 {
        let first = match argument.base {
            Base::Number(number) | Base::Constant(number) | Base::Scratch(number) => number,
            Base::Input(input, word) => self.inputs[input].wrapping_add(word),
            Base::Output(output, word) => self.outputs[output].wrapping_add(word),
        };
        let further = argument.strides.iter().zip(rounds).map(|(stride, round)| stride.wrapping_mul(*round));
        further.fold(first, u32::wrapping_add)
    }
}

/// Part of a run: one launch, or a dispatch without work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    /// The dispatch, by number.
    pub(crate) dispatch: usize,
    /// The units that its time is proportional to: the steps of a walk, else 1.
    pub(crate) units: u32,
    /// The rounds of the loops around it.
    pub(crate) rounds: Vec<u32>,
    /// Its arguments; none if nothing is launched.
    pub(crate) args: Option<Vec<u32>>,
}

/// Parts that are submitted together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    pub(crate) parts: Vec<Part>,
    /// Where the run goes on.
    pub(crate) to: Cursor,
}

/// How a run is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Launches at most.
    pub(crate) most: usize,
    /// Whether each step of the plan, in each round, is submitted separately.
    pub(crate) apart: bool,
}

/// What is known of how long dispatches take.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// For each dispatch, seconds for a unit.
    seconds: Vec<Option<f64>>,
    /// How many launches of unknown length are tried at once.
    trust: usize,
}

impl Pace {
    pub(crate) fn new(script: &Script) -> Pace {
        Pace { seconds: vec![None; script.dispatches.len()], trust: 1 }
    }

    /// The expected seconds of the parts whose pace is known, and how many are unknown.
    pub(crate) fn expect(&self, parts: &[Part]) -> (f64, usize) {
        let launched = parts.iter().filter(|part| part.args.is_some());
        launched.fold((0.0, 0), |(seconds, unknown), part| match self.seconds[part.dispatch] {
            Some(pace) => (seconds + pace * f64::from(part.units), unknown),
            None => (seconds, unknown + 1),
        })
    }

    /// Whether an earlier cut is still good enough: not too long, and not much too short.
    pub(crate) fn approves(&self, script: &Script, cut: &Cut, manner: Manner) -> bool {
        let (seconds, unknown) = self.expect(&cut.parts);
        let alone = cut.parts.len() == 1 && cut.parts[0].units <= 1;
        let short = seconds < PIECE_S / 2.0 && !script.is_over(&cut.to) && cut.parts.len() < manner.most;
        unknown == 0 && (seconds <= PIECE_S || alone) && (!short || manner.apart)
    }

    /// Cuts off what can be submitted next.
    pub(crate) fn cut(&self, script: &Script, from: &Cursor, places: &Places, manner: Manner) -> Cut {
        let (mut to, mut left, mut unknown) = (from.clone(), PIECE_S, 0);
        let mut parts: Vec<Part> = vec![];
        while let Some(number) = script.dispatch(&to).filter(|_| parts.len() < manner.most) {
            let dispatch = &script.dispatches[number];
            if let Some(first) = parts.first().filter(|_| manner.apart) {
                let depth = dispatch.place.len().saturating_sub(1).min(to.rounds.len());
                let same = script.dispatches[first.dispatch].place == dispatch.place
                    && first.rounds.get(..depth) == Some(&to.rounds[..depth]);
                if !same {
                    break;
                }
            }
            let idle = dispatch.groups.contains(&0);
            let wanted = if idle { 1 } else { dispatch.walk.as_ref().map_or(1, |walk| walk.steps - to.steps) };
            let mut units = wanted.max(1);
            if !idle {
                match self.seconds[number] {
                    Some(pace) => {
                        let fit = (left / pace.max(1e-9)).min(f64::from(u32::MAX)) as u32;
                        // A walk that would fit into a submission of its own is not cut only because it does not fit
                        // into the rest of this one.
                        let elsewhere = fit == 0 || pace * f64::from(units) <= PIECE_S;
                        if fit < units && elsewhere && !parts.is_empty() {
                            break;
                        }
                        units = units.min(fit.max(1));
                        left -= pace * f64::from(units);
                    }
                    None if unknown >= self.trust && !parts.is_empty() => break,
                    None => {
                        units = 1;
                        unknown += 1;
                    }
                }
            }
            let args = (!idle).then(|| arguments(dispatch, places, &to, units));
            let rounds = to.rounds.clone();
            parts.push(Part { dispatch: number, units, rounds, args });
            if units < wanted {
                // The next cut takes the rest of this walk, or a part of it.
                to.steps += units;
                break;
            }
            (to.steps, to.at) = (0, to.at + 1);
            script.settle(&mut to);
        }
        Cut { parts, to }
    }

    /// Learns from the time of each part.
    pub(crate) fn learn_each(&mut self, parts: &[Part], seconds: impl Iterator<Item = f64>) {
        for (part, took) in parts.iter().filter(|part| part.args.is_some()).zip(seconds) {
            let pace = took.max(0.0) / f64::from(part.units);
            let known = &mut self.seconds[part.dispatch];
            *known = Some(known.map_or(pace, |old| 0.5 * (old + pace)));
        }
        self.trust = (2 * self.trust).min(MOST_UNKNOWN);
    }

    /// Learns from the total time of parts. If their end was not observed, that time is only an upper bound.
    pub(crate) fn learn(&mut self, parts: &[Part], took: f64, watched: bool) {
        let (known, unknown) = self.expect(parts);
        let launched = || parts.iter().filter(|part| part.args.is_some());
        let all = launched().count().max(1);
        // Unknown parts get the time that known parts leave, or at least their share by number.
        let share = (took - known).max(took * unknown as f64 / all as f64) / unknown.max(1) as f64;
        let scale = if known > 0.0 { (took - share * unknown as f64).max(0.0) / known } else { 1.0 };
        let scale = if watched { scale } else { scale.min(1.0) };
        let mut met: Vec<(usize, u32)> = launched().map(|part| (part.dispatch, part.units)).collect();
        met.sort_unstable();
        met.dedup_by_key(|(dispatch, _)| *dispatch);
        for (dispatch, units) in met {
            let pace = &mut self.seconds[dispatch];
            *pace = Some(pace.map_or(share / f64::from(units), |old| old * 0.5 * (1.0 + scale)));
        }
        self.trust = (2 * self.trust).min(MOST_UNKNOWN);
    }
}

/// The arguments of a dispatch for the next `units` of it.
fn arguments(dispatch: &Dispatch, places: &Places, at: &Cursor, units: u32) -> Vec<u32> {
    let mut args: Vec<u32> = dispatch.args.iter().map(|argument| places.of(argument, &at.rounds)).collect();
    if let Some(walk) = &dispatch.walk {
        args[walk.from] = at.steps;
        args[walk.to] = walk.steps.min(at.steps + units);
        if at.steps > 0 {
            walk.carry.iter().for_each(|&(read, written)| args[read] = args[written]);
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Walk;

    fn dispatch(args: Vec<Argument>, walk: Option<Walk>) -> Item {
        Item::Dispatch(Dispatch { kernel: 0, groups: [1; 3], args, place: vec![0], walk })
    }

    fn strided(base: u32, strides: &[u32]) -> Argument {
        Argument { base: Base::Number(base), strides: strides.to_vec() }
    }

    /// All launches of a script, cut in one way: their arguments.
    fn launches(script: &Script, pace: &Pace, manner: Manner) -> (Vec<Vec<u32>>, usize) {
        let places = Places { inputs: vec![100], outputs: vec![200] };
        let (mut at, mut all, mut cuts) = (script.start(), vec![], 0);
        while !script.is_over(&at) {
            let cut = pace.cut(script, &at, &places, manner);
            assert!(!cut.parts.is_empty() && cut.parts.len() <= manner.most, "{cut:?}");
            all.extend(cut.parts.into_iter().filter_map(|part| part.args));
            (at, cuts) = (cut.to, cuts + 1);
        }
        (all, cuts)
    }

    const ANY: Manner = Manner { most: 1000, apart: false };

    #[test]
    fn rounds_of_loops_add_their_strides_wherever_the_run_is_cut() {
        let inner = dispatch(vec![strided(1, &[100, 10]), strided(0, &[u32::MAX])], None);
        let items = [
            dispatch(vec![strided(7, &[]), Argument::from(Base::Input(0, 5))], None),
            Item::Repeat {
                rounds: 2,
                body: vec![
                    Item::Repeat { rounds: 3, body: vec![inner] },
                    Item::Repeat { rounds: 0, body: vec![dispatch(vec![], None)] },
                    Item::Repeat { rounds: 9, body: vec![] },
                    dispatch(vec![strided(1000, &[1])], None),
                ],
            },
            dispatch(vec![Argument::from(Base::Output(0, 1))], None),
        ];
        let script = Script::new(&items);
        let minus = u32::MAX;
        let want: Vec<Vec<u32>> = vec![
            vec![7, 105],
            vec![1, 0],
            vec![11, 0],
            vec![21, 0],
            vec![1000],
            vec![101, minus],
            vec![111, minus],
            vec![121, minus],
            vec![1001],
            vec![201],
        ];
        for most in 1..12 {
            let pace = Pace { seconds: vec![Some(1e-6); 5], trust: 1 };
            assert_eq!(launches(&script, &pace, Manner { most, apart: false }), (want.clone(), 10usize.div_ceil(most)));
        }
        assert_eq!(launches(&script, &Pace::new(&script), ANY), (want.clone(), 10), "what is unknown is tried alone");
        let slow = Pace { seconds: vec![Some(1.0); 5], trust: 1 };
        assert_eq!(launches(&script, &slow, ANY), (want, 10), "what takes too long is at least alone");
    }

    #[test]
    fn a_walk_is_cut_where_it_would_take_too_long_and_goes_on_from_what_it_wrote() {
        let walk = Walk { steps: 10, from: 0, to: 1, carry: vec![(2, 3)] };
        let args = vec![0.into(), 10.into(), Base::Input(0, 0).into(), Base::Output(0, 0).into()];
        let script = Script::new(&[dispatch(args, Some(walk))]);
        let pace = |seconds| Pace { seconds: vec![Some(seconds)], trust: 1 };
        assert_eq!(launches(&script, &pace(1e-6), ANY), (vec![vec![0, 10, 100, 200]], 1));
        let (pieces, _) = launches(&script, &pace(PIECE_S / 4.5), ANY);
        assert_eq!(pieces, [[0, 4, 100, 200], [4, 8, 200, 200], [8, 10, 200, 200]]);
        let (pieces, _) = launches(&script, &pace(1.0), ANY);
        assert_eq!((pieces.len(), &pieces[9]), (10, &vec![9, 10, 200, 200]));
        // An empty walk is launched once too, since its final states are its initial ones and must be written.
        let empty = Walk { steps: 0, from: 0, to: 1, carry: vec![] };
        let script = Script::new(&[dispatch(vec![0.into(), 0.into()], Some(empty))]);
        assert_eq!(launches(&script, &Pace::new(&script), ANY), (vec![vec![0, 0]], 1));
    }

    #[test]
    fn what_pieces_took_says_how_much_fits_and_a_cut_that_still_suits_is_kept() {
        let walk = Walk { steps: 1000, from: 0, to: 1, carry: vec![] };
        let script = Script::new(&[dispatch(vec![0.into(), 0.into()], Some(walk))]);
        let (mut pace, places) = (Pace::new(&script), Places::default());
        let first = pace.cut(&script, &script.start(), &places, ANY);
        assert_eq!((first.parts[0].units, pace.expect(&first.parts).1), (1, 1), "unknown: a step is tried");
        pace.learn(&first.parts, 1e-3, true);
        let next = pace.cut(&script, &first.to, &places, ANY);
        assert_eq!(next.parts[0].units, 50);
        // Later steps are much quicker than the first one, whose time includes a submission.
        for _ in 0..20 {
            let next = pace.cut(&script, &script.start(), &places, ANY);
            pace.learn(&next.parts, 1e-4 * f64::from(next.parts[0].units), true);
        }
        let settled = pace.cut(&script, &script.start(), &places, ANY);
        assert!((490..=500).contains(&settled.parts[0].units), "{}", settled.parts[0].units);
        assert!(pace.approves(&script, &settled, ANY) && !pace.approves(&script, &first, ANY));
        // A little slower, and it is still kept; much slower, and it is not.
        pace.learn(&settled.parts, 0.0499, true);
        assert!(pace.approves(&script, &settled, ANY));
        // Its end was not observed, so it may have been earlier.
        pace.learn(&settled.parts, 10.0, false);
        assert!(pace.approves(&script, &settled, ANY));
        pace.learn(&settled.parts, 10.0, true);
        assert!(!pace.approves(&script, &settled, ANY));
    }
}
