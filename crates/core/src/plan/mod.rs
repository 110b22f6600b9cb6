//! The plan: what runs in which order, with which kernel, on which memory, and what that costs.
//!
//! A plan belongs to one set of sizes. It describes, for people and tools, what a backend will run; nothing here
//! executes.

mod forecast;
pub mod kernel;
pub mod memory;
mod schedule;
mod sites;
mod work;

use forecast::Estimate;
pub use forecast::Forecast;
pub use kernel::Kernel;
pub use schedule::schedule;
pub use sites::{Site, sites};
pub use work::check_work;

use crate::figure::Figure;
use crate::graph::quote;
use crate::op::Cost;
use crate::shape::Bindings;
use crate::show;
use serde::Serialize;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Where a step reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A buffer of the arena, by number.
    Buffer(usize),
    /// An input of the run.
    Input(String),
    /// An output of the run.
    Output(String),
    /// A weight or literal.
    Constant(String),
}

/// A buffer of the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// What it holds first.
    pub name: String,
    /// Where it begins.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
    /// The step that writes it first.
    pub first: usize,
    /// The last step that reads or writes it.
    pub last: usize,
    /// Whether it is a kernel's working memory rather than a value.
    pub scratch: bool,
}

/// One kernel call.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The node it computes.
    pub name: String,
    /// The node's operation.
    pub op: String,
    /// The kernel chosen for it.
    #[serde(serialize_with = "with_text")]
    pub kernel: Kernel,
    /// Its output's type with sizes.
    pub out: String,
    /// What it reads.
    pub reads: Vec<Place>,
    /// What it writes.
    pub writes: Vec<Place>,
    /// Its work (derived from shapes).
    pub cost: Cost,
    /// Whether it writes over one of its inputs.
    pub in_place: bool,
    /// The loop's body, where it is a loop.
    #[serde(rename = "loop")]
    pub looped: Option<Box<Loop>>,
}

/// A kernel with its text, for the JSON.
fn with_text<S: serde::Serializer>(kernel: &Kernel, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Told<'a> {
        text: String,
        #[serde(flatten)]
        kernel: &'a Kernel,
    }
    Told { text: kernel.to_string(), kernel }.serialize(serializer)
}

/// How a loop runs.
#[derive(Clone, Debug, Serialize)]
pub struct Loop {
    /// Steps over time.
    pub steps: usize,
    /// Rows of a block that one worker takes through all steps; `None` where rows depend on each other.
    pub block_rows: Option<usize>,
    /// Whole blocks, each of which runs the body in every step; 1 where all rows are taken at once.
    pub blocks: usize,
    /// The body for one block.
    pub body: Arc<Plan>,
    /// The body for the rows left over, which runs once in every step.
    pub tail: Option<Arc<Plan>>,
    /// If the loop is one kernel of a device: what a workgroup of it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workgroup: Option<Workgroup>,
}

/// What a workgroup uses that takes a block of rows through all steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workgroup {
    /// Its threads.
    pub threads: usize,
    /// Bytes of the memory that its threads share.
    pub memory_bytes: usize,
    /// The most bytes of such memory that the device allows.
    pub memory_most_bytes: usize,
    /// Bytes of the matrices and synapses that each step reads.
    pub weight_bytes: usize,
    /// Bytes of those weights that were copied into that memory before the first step; the others come through caches.
    pub resident_bytes: usize,
    /// Bytes of the registers in which its threads keep weights, and where they are, through all steps.
    pub register_bytes: usize,
    /// Rows of the batch that it takes.
    pub rows: usize,
    /// Why it does not take more.
    pub rows_limit: RowsLimit,
    /// How often its threads wait for each other in a step.
    pub barriers: usize,
}

/// Why a workgroup takes no more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowsLimit {
    /// With more rows for each there would be too few workgroups to keep the device busy.
    Batch,
    /// Twice as many would not fit into the memory that its threads share.
    Memory,
    /// More would gain nothing: each loaded weight is already used for enough rows.
    Enough,
}

impl fmt::Display for Workgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.rows_limit {
            RowsLimit::Batch => "the batch has no more for each",
            RowsLimit::Memory => "more would not fit into the workgroup's memory",
            RowsLimit::Enough => "more would bring nothing",
        };
        let rows = if self.rows == 1 { "1 row".into() } else { format!("{} rows", self.rows) };
        let registers = match self.register_bytes {
            0 => String::new(),
            kept => format!(", {} in registers", bytes(kept as u64)),
        };
        let waits = if self.barriers == 1 { "1 barrier".into() } else { format!("{} barriers", self.barriers) };
        write!(
            f,
            "one kernel: a workgroup has {} threads, {} of {} memory, {rows} ({why}); {waits} a step; {} of {} of weights \
             stay in its memory{registers} (derived)",
            self.threads,
            bytes(self.memory_bytes as u64),
            bytes(self.memory_most_bytes as u64),
            bytes(self.resident_bytes as u64),
            bytes(self.weight_bytes as u64),
        )
    }
}

/// A schedule with its memory.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The backend that made it, with its instruction set.
    pub backend: String,
    /// Threads it was made for.
    pub threads: usize,
    /// The sizes it is for.
    pub bindings: Bindings,
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// The arena's buffers.
    pub buffers: Vec<Buffer>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// The most bytes that are alive at one step: the least an arena could have.
    pub live_bytes: usize,
    /// Bytes of the weights as they are kept for running, packed copies included.
    pub weight_bytes: usize,
    /// For a device: whether the host can access its memory directly, so that inputs and results are not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unified_memory: Option<bool>,
}

impl Plan {
    /// The work of one run, from the steps.
    pub fn cost(&self) -> Cost {
        let mut total = Cost::default();
        self.steps.iter().for_each(|s| total += s.cost);
        total
    }

    /// Bytes that a session of it takes: arena and weights.
    pub fn memory(&self) -> Figure {
        Figure::derived((self.arena_bytes + self.weight_bytes) as f64, "B", "the plan's arena and weights")
    }

    /// The plan as a table for people.
    pub fn explain(&self, forecast: Option<&Forecast>) -> String {
        let mut out = String::new();
        self.explain_into(&mut out, forecast, &[]);
        out
    }

    fn explain_into(&self, out: &mut String, forecast: Option<&Forecast>, path: &[usize]) {
        let indent = 6 * path.len();
        let within = |i: usize| [path, &[i]].concat();
        let pad = " ".repeat(indent);
        let cost = self.cost();
        if indent == 0 {
            let sizes = self.bindings.to_string();
            let sizes = if sizes.is_empty() { String::new() } else { format!(", for {sizes}") };
            // What a device has are no threads of the host.
            let threads = match (self.unified_memory, self.threads) {
                (Some(_), _) => String::new(),
                (None, 1) => ", 1 thread".into(),
                (None, many) => format!(", {many} threads"),
            };
            let _ = writeln!(
                out,
                "{} step{} on {}{threads}{sizes}",
                self.steps.len(),
                if self.steps.len() == 1 { "" } else { "s" },
                self.backend,
            );
            let _ = writeln!(
                out,
                "arena {} (derived; at one moment {} are alive), weights {} (derived)",
                bytes(self.arena_bytes as u64),
                bytes(self.live_bytes as u64),
                bytes(self.weight_bytes as u64),
            );
            let _ = writeln!(
                out,
                "{} flops, {} transcendentals, {} moved at least (derived)",
                count(cost.flops),
                count(cost.transcendentals),
                bytes(cost.bytes())
            );
            match self.unified_memory {
                Some(true) => {
                    out.push_str("memory shared with the host: inputs and results are not copied on the way\n")
                }
                Some(false) => out.push_str("memory of its own: inputs and results are copied to it and back\n"),
                None => {}
            }
            if let Some(forecast) = forecast {
                let _ = writeln!(out, "{}", forecast.line());
            }
            out.push('\n');
        }
        let name_width = self.steps.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).clamp(4, 28);
        let kernel_width =
            self.steps.iter().map(|s| s.kernel.to_string().chars().count()).max().unwrap_or(0).clamp(6, 44);
        if indent == 0 {
            let predicted = if forecast.is_some() { "  predicted" } else { "" };
            let _ = writeln!(
                out,
                "{pad}step  {:name_width$}  {:kernel_width$}  {:>9}  {:>9}{predicted}  memory",
                "node", "kernel", "flops", "bytes"
            );
        }
        for (i, step) in self.steps.iter().enumerate() {
            let time = forecast.map(|f| format!("  {:>9}", f.step(&within(i)))).unwrap_or_default();
            let places: Vec<String> = step.writes.iter().map(|p| self.place(p)).collect();
            let in_place = if step.in_place { " in place" } else { "" };
            let _ = writeln!(
                out,
                "{pad}{i:>4}  {:name_width$}  {:kernel_width$}  {:>9}  {:>9}{time}  {}{in_place}",
                shorten(&step.name, name_width),
                shorten(&step.kernel.to_string(), kernel_width),
                count(step.cost.flops),
                bytes(step.cost.bytes()),
                places.join(", "),
            );
            if let Some(looped) = &step.looped {
                let rows = looped.block_rows.map_or("all rows at once".into(), |r| format!("blocks of {r} rows"));
                let _ = match &looped.workgroup {
                    Some(workgroup) => writeln!(out, "{pad}      {} steps, {workgroup}:", looped.steps),
                    None => writeln!(
                        out,
                        "{pad}      {} steps, {rows}; arena {} a worker:",
                        looped.steps,
                        bytes(looped.body.arena_bytes as u64)
                    ),
                };
                looped.body.explain_into(out, forecast, &within(i));
            }
        }
    }

    fn place(&self, place: &Place) -> String {
        match place {
            Place::Buffer(b) => {
                let b = &self.buffers[*b];
                format!("arena {}+{}", b.offset, b.bytes)
            }
            Place::Input(name) => format!("input {}", show::name(name)),
            Place::Output(name) => format!("output {}", show::name(name)),
            Place::Constant(name) => format!("constant {}", show::name(name)),
        }
    }

    /// The plan as JSON.
    pub fn to_json(&self, forecast: Option<&Forecast>) -> String {
        #[derive(Serialize)]
        struct Explained<'a> {
            #[serde(flatten)]
            plan: &'a Plan,
            cost: Cost,
            estimate: Estimate,
        }
        let estimate = Estimate { memory: self.memory(), time: forecast.map(|f| f.time.clone()) };
        serde_json::to_string_pretty(&Explained { plan: self, cost: self.cost(), estimate })
            .expect("a plan has only string keys and finite structure")
    }

    /// The plan in the DOT language: steps, and the buffers between them.
    pub fn to_dot(&self) -> String {
        let mut out = String::from(
            "digraph plan {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", fillcolor=\"#d5f0d0\", fontname=\"sans-serif\", fontsize=11];\n  edge [fontname=\"sans-serif\", fontsize=9];\n",
        );
        self.dot_into(&mut out, "s");
        out.push_str("}\n");
        out
    }

    fn dot_into(&self, out: &mut String, prefix: &str) {
        let mut writer: Vec<Option<usize>> = vec![None; self.buffers.len()];
        for (i, step) in self.steps.iter().enumerate() {
            let label = format!(
                "{i}: {}\n{}\n{} flops, {}",
                show::name(&step.name),
                show::line(&step.kernel.to_string()),
                count(step.cost.flops),
                bytes(step.cost.bytes())
            );
            let _ = writeln!(out, "  {prefix}{i} [label={}];", quote(&label));
            for place in &step.reads {
                match place {
                    Place::Buffer(b) => {
                        if let Some(from) = writer[*b] {
                            let size = bytes(self.buffers[*b].bytes as u64);
                            let _ = writeln!(
                                out,
                                "  {prefix}{from} -> {prefix}{i} [label={}];",
                                quote(&format!("buffer {b}, {size}"))
                            );
                        }
                    }
                    Place::Input(name) | Place::Constant(name) | Place::Output(name) => {
                        let id = format!("{prefix}_{}", quote(name).replace(['"', '\\'], ""));
                        let colour = if matches!(place, Place::Input(_)) { "#cfe8ff" } else { "#eeeeee" };
                        let _ = writeln!(
                            out,
                            "  {} [label={}, fillcolor=\"{colour}\"];",
                            quote(&id),
                            quote(&show::name(name))
                        );
                        let _ = writeln!(out, "  {} -> {prefix}{i};", quote(&id));
                    }
                }
            }
            for place in &step.writes {
                match place {
                    Place::Buffer(b) => writer[*b] = Some(i),
                    Place::Output(name) => {
                        let id = format!("{prefix}_{}", quote(name).replace(['"', '\\'], ""));
                        let _ = writeln!(
                            out,
                            "  {} [label={}, shape=ellipse, fillcolor=\"#ffc9c9\"];",
                            quote(&id),
                            quote(&show::name(name))
                        );
                        let _ = writeln!(out, "  {prefix}{i} -> {};", quote(&id));
                    }
                    _ => {}
                }
            }
            if let Some(looped) = &step.looped {
                let title = format!("{} steps of {}", looped.steps, show::name(&step.name));
                let _ = writeln!(out, "  subgraph cluster_{prefix}{i} {{ label={}; color=\"#8866cc\";", quote(&title));
                looped.body.dot_into(out, &format!("{prefix}{i}_"));
                out.push_str("  }\n");
            }
        }
    }
}

fn shorten(text: &str, width: usize) -> String {
    let text = show::line(text);
    if text.chars().count() <= width {
        text.into_owned()
    } else {
        text.chars().take(width - 1).chain(['…']).collect()
    }
}

fn scaled(value: f64, units: &[&str], step: f64) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0}{}", units[unit])
    } else {
        format!("{value:.3}")[..4].trim_end_matches('.').to_owned() + units[unit]
    }
}

/// A count for people: `1.23 M`.
pub fn count(n: u64) -> String {
    scaled(n as f64, &["", " k", " M", " G", " T"], 1000.0)
}
/// Bytes for people: `1.50 MiB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, &[" B", " KiB", " MiB", " GiB", " TiB"], 1024.0)
}
/// An inexact time, for people: `12 µs`, with two digits.
pub fn rough(s: f64) -> String {
    if !(s.is_finite() && s > 0.0) {
        return seconds(s);
    }
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];
    let digits = |value: f64| 10f64.powi(value.log10().floor() as i32 - 1);
    let s = (s / digits(s)).round() * digits(s);
    let (unit, name) = units.into_iter().find(|(unit, _)| s >= unit * 0.9999).unwrap_or(units[3]);
    let value = s / unit;
    let places = usize::from(value < 9.95);
    format!("{value:.places$} {name}")
}

/// A time for people: `12.3 µs`.
pub fn seconds(s: f64) -> String {
    scaled(s * 1e9, &[" ns", " µs", " ms", " s"], 1000.0)
}
