//! Where the time is, by who called whom: folded stacks for other tools, and a flame graph.
//!
//! A stack is the model, the loop where there is one, and the operation, with the time spent in it alone. The graph is
//! drawn from the top down and from left to right in the order of running, so that it also reads as a timeline of one
//! run by share.
//!
//! Why by hand: `inferno` (0.12) is well kept, but its picture needs a script, which the report's policy forbids, has colours
//! of its own, which do not follow the report's themes, and is under the CDDL, which this program's licences do not take in.
//! What it draws beyond ours, zooming and searching, is for thousands of frames; folded stacks go to it as they are.

use crate::Profile;
use crate::plot::unit::{known, quantity};
use crate::plot::{Anchor, Drawing, Ink, Missing, Size, bound_ink, clip};
use crate::trace::Trace;
use std::io::{self, Write};

/// Time in one stack of callers, without what they called.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// From the outermost to the one the time was spent in.
    pub frames: Vec<String>,
    /// Seconds.
    pub self_s: f64,
    /// The colour of its last frame; without one, a colour by its name.
    pub ink: Option<Ink>,
}

/// The stacks of a profile's operations, in the order they run; those that were not timed are not among them.
pub fn of_profile(profile: &Profile) -> Vec<Stack> {
    let stack = |op: &crate::profile::Op| {
        let self_s = known(&op.self_time).filter(|t| *t >= 0.0)?;
        let mut frames = vec![profile.model.name.clone()];
        frames.extend(op.within.clone().filter(|loop_| *loop_ != op.name));
        frames.push(op.name.clone());
        Some(Stack { frames, self_s, ink: Some(bound_ink(op.bound)) })
    };
    profile.compute.ops.iter().filter_map(stack).collect()
}

/// The stacks of a trace's events: nested ones are called by those around them.
pub fn of_trace(trace: &Trace) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = vec![];
    for events in trace.by_thread() {
        // Those that have begun and not ended, as places in `stacks`, with their ends.
        let mut open: Vec<(usize, i64)> = vec![];
        for event in events {
            let (start, end) = event.span_ns();
            while open.last().is_some_and(|(_, ends)| *ends <= start) {
                open.pop();
            }
            let thread = trace.thread_name(event.thread);
            let mut frames = match open.last() {
                Some((at, _)) => stacks[*at].frames.clone(),
                None => vec![thread],
            };
            frames.push(event.name.clone());
            let duration = (end - start) as f64 * 1e-9;
            if let Some((at, _)) = open.last() {
                stacks[*at].self_s -= duration;
            }
            open.push((stacks.len(), end));
            stacks.push(Stack { frames, self_s: duration, ink: None });
        }
    }
    stacks
}

/// Writes a line for each stack: its frames with `;` between, and its nanoseconds. Equal stacks are one line.
pub fn write_folded(stacks: &[Stack], out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<(String, f64)> = vec![];
    let mut places = std::collections::HashMap::new();
    for stack in stacks {
        let frames: Vec<String> = stack.frames.iter().map(|f| frame(f)).collect();
        let line = frames.join(";");
        let at = *places.entry(line.clone()).or_insert_with(|| {
            lines.push((line, 0.0));
            lines.len() - 1
        });
        lines[at].1 += stack.self_s.max(0.0);
    }
    for (line, seconds) in lines {
        writeln!(out, "{line} {:.0}", seconds * 1e9)?;
    }
    Ok(())
}

/// A name without what would end a frame or a line.
fn frame(name: &str) -> String {
    schwann_core::show::line(name).replace(';', ",")
}

/// A frame with what it called, in the order of first calls.
struct Node<'a> {
    name: &'a str,
    self_s: f64,
    whole_s: f64,
    ink: Option<Ink>,
    called: Vec<usize>,
}

fn tree(stacks: &[Stack]) -> Vec<Node<'_>> {
    let node = |name| Node { name, self_s: 0.0, whole_s: 0.0, ink: None, called: vec![] };
    let mut nodes = vec![node("")];
    for stack in stacks {
        let time = stack.self_s.max(0.0);
        let mut at = 0;
        nodes[at].whole_s += time;
        for name in stack.frames.iter().take(DEEPEST) {
            let known = nodes[at].called.iter().copied().find(|n| nodes[*n].name == name);
            let next = known.unwrap_or(nodes.len());
            if known.is_none() {
                nodes.push(node(name));
                nodes[at].called.push(next);
            }
            nodes[next].whole_s += time;
            at = next;
        }
        nodes[at].self_s += time;
        nodes[at].ink = stack.ink;
    }
    nodes
}

const ROW: f64 = 24.0;
/// Deeper calls are part of the frame at this depth.
const DEEPEST: usize = 64;
/// Frames thinner than this many pixels are not drawn.
const THINNEST: f64 = 0.3;

/// A flame graph of stacks.
pub fn drawing(stacks: &[Stack], size: Size) -> Result<Drawing, Missing> {
    let nodes = tree(stacks);
    let whole = nodes[0].whole_s;
    if whole <= 0.0 {
        return Err(Missing("nothing was timed".into()));
    }
    // One root needs no frame around it.
    let roots = nodes[0].called.clone();
    let mut placed = vec![];
    let mut deepest = 0;
    let mut todo: Vec<(usize, f64, usize)> = vec![];
    let scale = size.width / whole;
    let line_up = |called: &[usize], mut x: f64, depth: usize, todo: &mut Vec<(usize, f64, usize)>| {
        for n in called {
            todo.push((*n, x, depth));
            x += nodes[*n].whole_s * scale;
        }
    };
    line_up(&roots, 0.0, 0, &mut todo);
    while let Some((n, x, depth)) = todo.pop() {
        if nodes[n].whole_s * scale < THINNEST {
            continue;
        }
        deepest = deepest.max(depth);
        placed.push((n, x, depth));
        line_up(&nodes[n].called, x, depth + 1, &mut todo);
    }
    placed.sort_by(|a, b| (a.2, a.1).partial_cmp(&(b.2, b.1)).unwrap_or(std::cmp::Ordering::Equal));

    let height = (deepest + 1) as f64 * ROW + 2.0;
    let label = format!("Flame graph of {} in {} frames", quantity(whole, "s"), nodes.len() - 1);
    let mut d = Drawing::new(Size { width: size.width, height }, label);
    for (n, x, depth) in placed {
        let node = &nodes[n];
        let (wide, y) = (node.whole_s * scale, 1.0 + depth as f64 * ROW);
        let share = quantity(node.whole_s / whole * 100.0, "%");
        let mut title = format!("{}: {}, {share}", node.name, quantity(node.whole_s, "s"));
        if !node.called.is_empty() {
            title += &format!("; {} in itself", quantity(node.self_s, "s"));
        }
        let by_name = || Ink::Kind(hash(node.name) % (Ink::KINDS - 1));
        let ink = if node.called.is_empty() { node.ink.unwrap_or_else(by_name) } else { Ink::Kind(6) };
        d.rect(x, y, wide, ROW - 2.0, ink).faint(0.32).outlined(Ink::Ground, 1.0).titled(&title);
        let full = format!("{}  {share}", node.name);
        let words = clip(&full, 12.0, wide - 10.0);
        let words = if words == full { words } else { clip(node.name, 12.0, wide - 10.0) };
        if words.chars().count() > 1 {
            d.text(x + 5.0, y + 15.5, Anchor::Start, 12.0, Ink::Text, words).titled(title);
        }
    }
    Ok(d)
}

/// The flame graph of a profile.
pub fn plot(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let stacks = of_profile(profile);
    if stacks.is_empty() {
        let reason = profile.compute.ops.iter().find_map(|op| op.self_time.reason.as_deref());
        return Err(Missing(format!("no operation was timed: {}", reason.unwrap_or("the profile lists none"))));
    }
    drawing(&stacks, size)
}

/// Gives a name the same colour everywhere.
fn hash(name: &str) -> usize {
    name.bytes().fold(5381usize, |h, b| h.wrapping_mul(33) ^ usize::from(b)) >> 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Event;

    fn stack(frames: &[&str], self_s: f64) -> Stack {
        Stack { frames: frames.iter().map(|f| (*f).into()).collect(), self_s, ink: None }
    }

    #[test]
    fn folded_stacks_are_one_line_each_in_nanoseconds() {
        let stacks =
            [stack(&["m", "scan", "a;b\n"], 1e-6), stack(&["m", "y"], 2e-9), stack(&["m", "scan", "a;b\n"], 1e-6)];
        let mut out = vec![];
        write_folded(&stacks, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "m;scan;a,b\\u000a 2000\nm;y 2\n");
    }

    #[test]
    fn a_trace_gives_the_time_that_nothing_inside_took() {
        let mut trace = Trace::new("test");
        trace.threads.push("main".into());
        for (name, start, duration) in [("inner", 2e-6, 3e-6), ("run", 0.0, 10e-6), ("inner", 6e-6, 1e-6)] {
            trace.events.push(Event::new(name, "op", 0, start, duration));
        }
        let mut out = vec![];
        write_folded(&of_trace(&trace), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "main;run 6000\nmain;run;inner 4000\n");
    }

    #[test]
    fn frames_lie_inside_those_that_called_them() {
        let stacks = [stack(&["m", "scan", "a"], 3.0), stack(&["m", "scan"], 1.0), stack(&["m", "y"], 4.0)];
        let d = drawing(&stacks, Size { width: 80.0, height: 0.0 }).unwrap();
        let rects: Vec<[f64; 4]> = d
            .shapes
            .iter()
            .filter_map(|s| if let crate::plot::Form::Rect(r) = s.form { Some(r) } else { None })
            .collect();
        let spans: Vec<(f64, f64)> = rects.iter().map(|r| (r[0], r[2])).collect();
        assert_eq!(spans, [(0.0, 80.0), (0.0, 40.0), (40.0, 40.0), (0.0, 30.0)]);
        assert!(drawing(&[], Size::WIDE).is_err());
    }
}
