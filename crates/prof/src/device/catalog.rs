//! The catalogue: what is published of devices, each figure with its source; and the user's own additions to it.

use super::measured::Measured;
use super::{Error, Result};
use crate::nearest::{nearest, plain};
use schwann_core::Figure;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The devices that come with the program.
const OWN: &str = include_str!("catalog.toml");

/// A user's file beyond this is no list of devices.
const MOST_BYTES: u64 = 4 << 20;

/// Makers whose names people write before a device's, or leave out.
const MAKERS: [&str; 7] = ["apple", "intel", "amd", "nvidia", "qualcomm", "google", "rockchip"];

/// What somebody published: never a measurement of ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Who published it, where and when.
    pub source: String,
}

impl Published {
    /// As a figure for people, in its own unit. It follows from what was published, so it is derived, and not measured.
    pub fn figure(&self) -> Figure {
        Figure::derived(self.value, &self.unit, format!("published: {}", self.source))
    }
}

/// A range that somebody recommends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The least.
    pub low: usize,
    /// The most.
    pub high: usize,
    /// Who recommends it.
    pub source: String,
}

/// Layers that somebody recommends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backbone {
    /// Units of each layer.
    pub units: Vec<usize>,
    /// Who recommends it.
    pub source: String,
}

/// What a model should reach on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Demands {
    /// Tflop/s, at least.
    pub flops: Vec<Published>,
    /// GB/s, at least.
    pub bandwidth: Vec<Published>,
    /// MiB, at most.
    pub memory: Vec<Published>,
}

/// A device. A figure that is not known has no entry; where sources differ there are several, the one in use first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Fast cores.
    pub performance_cores: Vec<Published>,
    /// Cores that save power.
    pub efficiency_cores: Vec<Published>,
    /// Of the fast cores, GHz.
    pub clock: Vec<Published>,
    /// Arithmetic of one fast core in a cycle, `f32`: pipes × floats of a register × 2.
    pub flops_per_cycle: Vec<Published>,
    /// Cores of the GPU.
    pub gpu_cores: Vec<Published>,
    /// Multiply-adds that a core of the GPU does in a cycle.
    pub gpu_lanes: Vec<Published>,
    /// Of the GPU, `f32`, Tflop/s.
    pub gpu_flops: Vec<Published>,
    /// Cores of the Neural Engine.
    pub neural_engine_cores: Vec<Published>,
    /// Of the Neural Engine, Top/s.
    pub neural_engine_ops: Vec<Published>,
    /// GB/s.
    pub memory_bandwidth: Vec<Published>,
    /// What one fast core can have of it, GB/s.
    pub core_bandwidth: Vec<Published>,
    /// Each size it is sold with, GB.
    pub memory_sizes: Vec<Published>,
    /// First-level data cache of a fast core, KiB.
    pub l1_data: Vec<Published>,
    /// Second-level cache of all fast cores, MiB.
    pub l2: Vec<Published>,
    /// Clusters of fast cores, each with its part of that cache; where every core has its own, as many as cores.
    pub clusters: Vec<Published>,
    /// The cache of the whole chip, MiB.
    pub system_cache: Vec<Published>,
    /// Recommended batch sizes.
    pub batch: Vec<Range>,
    /// Recommended hidden sizes.
    pub hidden: Vec<Range>,
    /// Recommended backbones.
    pub backbone: Vec<Backbone>,
    /// Memory that a model may take, GB.
    pub memory_budget: Vec<Published>,
    /// What a model should reach at least.
    pub minimum: Demands,
    /// What it should aim for.
    pub target: Demands,
    /// What was measured on a real one, the latest last.
    pub measured: Vec<Measured>,
    /// The file it came from; `None` for the program's own.
    #[serde(serialize_with = "as_text")]
    pub file: Option<PathBuf>,
}

/// A path as text, also where it is none: what is no character is shown as such.
fn as_text<S: serde::Serializer>(path: &Option<PathBuf>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}

impl Entry {
    /// Every single figure with the field's name, for lists and tests.
    pub fn figures(&self) -> Vec<(&'static str, &Published)> {
        let fields: [(&'static str, &[Published]); 23] = [
            ("performance_cores", &self.performance_cores),
            ("efficiency_cores", &self.efficiency_cores),
            ("clock", &self.clock),
            ("flops_per_cycle", &self.flops_per_cycle),
            ("gpu_cores", &self.gpu_cores),
            ("gpu_lanes", &self.gpu_lanes),
            ("gpu_flops", &self.gpu_flops),
            ("neural_engine_cores", &self.neural_engine_cores),
            ("neural_engine_ops", &self.neural_engine_ops),
            ("memory_bandwidth", &self.memory_bandwidth),
            ("core_bandwidth", &self.core_bandwidth),
            ("memory_sizes", &self.memory_sizes),
            ("l1_data", &self.l1_data),
            ("l2", &self.l2),
            ("clusters", &self.clusters),
            ("system_cache", &self.system_cache),
            ("memory_budget", &self.memory_budget),
            ("minimum.flops", &self.minimum.flops),
            ("minimum.bandwidth", &self.minimum.bandwidth),
            ("minimum.memory", &self.minimum.memory),
            ("target.flops", &self.target.flops),
            ("target.bandwidth", &self.target.bandwidth),
            ("target.memory", &self.target.memory),
        ];
        fields.into_iter().flat_map(|(name, all)| all.iter().map(move |p| (name, p))).collect()
    }

    /// flop/s of one fast core, `f32`: measured on a real one, else an estimate, clock × what it does in a cycle.
    pub fn core_flops(&self) -> Figure {
        if let Some((value, source)) = self.latest(|m| m.core_flops) {
            return Figure::measured(value, "flop/s", source);
        }
        let rule = "estimate: clock × arithmetic of a cycle";
        let missing = |what: &str| Figure::unavailable("flop/s", rule, format!("{what} of {} is not known", self.name));
        match (self.clock.first(), self.flops_per_cycle.first()) {
            (Some(clock), Some(cycle)) => {
                let (hz, c) = (format!("{} GHz ({})", clock.value, clock.source), &cycle.source);
                let source = format!("{rule}; clock {hz}, {} flop a cycle ({c})", cycle.value);
                Figure::predicted(clock.value * 1e9 * cycle.value, "flop/s", source)
            }
            (None, _) => missing("the clock"),
            (_, None) => missing("what a core does in a cycle"),
        }
    }

    /// The latest of a measured figure, and where it is from.
    pub(super) fn latest(&self, figure: fn(&Measured) -> Option<f64>) -> Option<(f64, String)> {
        self.measured.iter().rev().find_map(|m| Some((figure(m)?, m.source())))
    }

    /// Bytes of a fast core's first-level data cache.
    pub fn l1_bytes(&self) -> Option<usize> {
        self.l1_data.first().map(|l| (l.value * 1024.0) as usize)
    }

    /// Bytes of the second-level cache that one fast core can fill: its cluster's part. Where nobody says how many
    /// clusters there are, a chip with up to four fast cores has one, and of others it is not known.
    pub fn l2_bytes(&self) -> Option<usize> {
        let few = self.performance_cores.first().is_some_and(|c| c.value <= 4.0);
        let clusters = self.clusters.first().map(|c| c.value).or(few.then_some(1.0))?;
        self.l2.first().map(|l| (l.value * 1024.0 * 1024.0 / clusters) as usize)
    }

    /// flop/s of all fast cores, `f32`.
    pub fn cpu_flops(&self) -> Figure {
        match self.performance_cores.first() {
            Some(cores) => {
                let one = self.core_flops();
                let source = format!("{}; {} fast cores ({})", one.source, cores.value, cores.source);
                one.derive("flop/s", source, |f| f * cores.value)
            }
            None => Figure::unavailable("flop/s", "estimate", format!("the fast cores of {} are not known", self.name)),
        }
    }

    /// The device in the form of a file of the user's own.
    pub fn to_toml(&self) -> String {
        let text = |s: &str| toml::Value::String(s.into()).to_string();
        let mut out = format!("[[device]]\nname = {}\n", text(&self.name));
        let mut table = String::new();
        let figures = self.figures();
        let mut done: Vec<&str> = vec![];
        for (field, _) in &figures {
            if done.contains(field) {
                continue;
            }
            done.push(field);
            let same = figures.iter().filter(|(f, _)| f == field).map(|(_, p)| {
                format!("{{ value = {}, unit = {}, source = {} }}", p.value, text(&p.unit), text(&p.source))
            });
            let list = same.collect::<Vec<_>>().join(", ");
            match field.split_once('.') {
                None => out += &format!("{field} = [{list}]\n"),
                Some((level, field)) => {
                    let head = format!("[device.{level}]\n");
                    if !table.contains(&head) {
                        table += &format!("\n{head}");
                    }
                    table += &format!("{field} = [{list}]\n");
                }
            }
        }
        for (field, ranges) in [("batch", &self.batch), ("hidden", &self.hidden)] {
            let one = |r: &Range| format!("{{ low = {}, high = {}, source = {} }}", r.low, r.high, text(&r.source));
            if !ranges.is_empty() {
                out += &format!("{field} = [{}]\n", ranges.iter().map(one).collect::<Vec<_>>().join(", "));
            }
        }
        let one = |b: &Backbone| format!("{{ units = {:?}, source = {} }}", b.units, text(&b.source));
        if !self.backbone.is_empty() {
            out += &format!("backbone = [{}]\n", self.backbone.iter().map(one).collect::<Vec<_>>().join(", "));
        }
        let measured: Vec<String> = self.measured.iter().map(Measured::to_toml).collect();
        if !measured.is_empty() {
            out += &format!("measured = [\n    {},\n]\n", measured.join(",\n    "));
        }
        out + &table
    }

    /// Tflop/s that a model should reach at least, where somebody says so.
    pub fn min_tflops(&self) -> Option<&Published> {
        self.minimum.flops.first()
    }

    /// GB/s that a model should reach at least.
    pub fn min_bandwidth(&self) -> Option<&Published> {
        self.minimum.bandwidth.first()
    }

    /// GB that a model may take.
    pub fn memory_budget(&self) -> Option<&Published> {
        self.memory_budget.first()
    }
}

/// As the file has it, with places for error messages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    device: Vec<Spanned<RawEntry>>,
}

type Raw<T> = Vec<Spanned<T>>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDemands {
    flops: Raw<Published>,
    bandwidth: Raw<Published>,
    memory: Raw<Published>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    name: Spanned<String>,
    #[serde(default)]
    performance_cores: Raw<Published>,
    #[serde(default)]
    efficiency_cores: Raw<Published>,
    #[serde(default)]
    clock: Raw<Published>,
    #[serde(default)]
    flops_per_cycle: Raw<Published>,
    #[serde(default)]
    gpu_cores: Raw<Published>,
    #[serde(default)]
    gpu_lanes: Raw<Published>,
    #[serde(default)]
    gpu_flops: Raw<Published>,
    #[serde(default)]
    neural_engine_cores: Raw<Published>,
    #[serde(default)]
    neural_engine_ops: Raw<Published>,
    #[serde(default)]
    memory_bandwidth: Raw<Published>,
    #[serde(default)]
    core_bandwidth: Raw<Published>,
    #[serde(default)]
    memory_sizes: Raw<Published>,
    #[serde(default)]
    l1_data: Raw<Published>,
    #[serde(default)]
    l2: Raw<Published>,
    #[serde(default)]
    clusters: Raw<Published>,
    #[serde(default)]
    system_cache: Raw<Published>,
    #[serde(default)]
    batch: Raw<Range>,
    #[serde(default)]
    hidden: Raw<Range>,
    #[serde(default)]
    backbone: Raw<Backbone>,
    #[serde(default)]
    memory_budget: Raw<Published>,
    #[serde(default)]
    minimum: RawDemands,
    #[serde(default)]
    target: RawDemands,
    #[serde(default)]
    measured: Raw<Measured>,
}

/// Reads a file's text and says where it is wrong.
struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn fail<T>(&self, at: usize, problem: String) -> Result<T> {
        let line = 1 + self.text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count();
        Err(Error::Catalog { file: self.file.into(), line, problem })
    }

    fn sourced(&self, at: usize, field: &str, source: &str) -> Result<()> {
        if source.trim().is_empty() {
            return self.fail(at, format!("`{field}` has an empty source; expected who published it, and when"));
        }
        Ok(())
    }

    fn figures(&self, field: &str, unit: &str, all: Raw<Published>) -> Result<Vec<Published>> {
        let check = |one: Spanned<Published>| {
            let (at, one) = (one.span().start, one.into_inner());
            if !(one.value.is_finite() && one.value > 0.0) {
                let value = one.value;
                return self
                    .fail(at, format!("`{field}` is {value}; expected more than 0 (leave out what is not known)"));
            }
            if one.unit != unit {
                return self.fail(at, format!("`{field}` is in `{}`; expected `{unit}`", one.unit));
            }
            self.sourced(at, field, &one.source)?;
            Ok(one)
        };
        all.into_iter().map(check).collect()
    }

    fn ranges(&self, field: &str, all: Raw<Range>) -> Result<Vec<Range>> {
        let check = |one: Spanned<Range>| {
            let (at, one) = (one.span().start, one.into_inner());
            if one.low == 0 || one.high < one.low {
                return self.fail(at, format!("`{field}` is {} to {}; expected 1 ≤ low ≤ high", one.low, one.high));
            }
            self.sourced(at, field, &one.source)?;
            Ok(one)
        };
        all.into_iter().map(check).collect()
    }

    fn backbones(&self, all: Raw<Backbone>) -> Result<Vec<Backbone>> {
        let check = |one: Spanned<Backbone>| {
            let (at, one) = (one.span().start, one.into_inner());
            if one.units.is_empty() || one.units.contains(&0) {
                return self.fail(at, "`backbone` has no units; expected such as [64, 64]".into());
            }
            self.sourced(at, "backbone", &one.source)?;
            Ok(one)
        };
        all.into_iter().map(check).collect()
    }

    fn measurements(&self, all: Raw<Measured>) -> Result<Vec<Measured>> {
        let check = |one: Spanned<Measured>| {
            let (at, one) = (one.span().start, one.into_inner());
            match one.sound() {
                Ok(()) => Ok(one),
                Err(problem) => self.fail(at, format!("`measured` {problem}")),
            }
        };
        all.into_iter().map(check).collect()
    }

    fn demands(&self, level: &str, raw: RawDemands) -> Result<Demands> {
        Ok(Demands {
            flops: self.figures(&format!("{level}.flops"), "Tflop/s", raw.flops)?,
            bandwidth: self.figures(&format!("{level}.bandwidth"), "GB/s", raw.bandwidth)?,
            memory: self.figures(&format!("{level}.memory"), "MiB", raw.memory)?,
        })
    }

    fn entry(&self, raw: RawEntry, file: Option<&Path>) -> Result<Entry> {
        let (at, name) = (raw.name.span().start, raw.name.into_inner());
        if plain(&name).is_empty() {
            return self.fail(at, "`name` is empty; expected the device's name".into());
        }
        Ok(Entry {
            name,
            performance_cores: self.figures("performance_cores", "cores", raw.performance_cores)?,
            efficiency_cores: self.figures("efficiency_cores", "cores", raw.efficiency_cores)?,
            clock: self.figures("clock", "GHz", raw.clock)?,
            flops_per_cycle: self.figures("flops_per_cycle", "flop", raw.flops_per_cycle)?,
            gpu_cores: self.figures("gpu_cores", "cores", raw.gpu_cores)?,
            gpu_lanes: self.figures("gpu_lanes", "lanes", raw.gpu_lanes)?,
            gpu_flops: self.figures("gpu_flops", "Tflop/s", raw.gpu_flops)?,
            neural_engine_cores: self.figures("neural_engine_cores", "cores", raw.neural_engine_cores)?,
            neural_engine_ops: self.figures("neural_engine_ops", "Top/s", raw.neural_engine_ops)?,
            memory_bandwidth: self.figures("memory_bandwidth", "GB/s", raw.memory_bandwidth)?,
            core_bandwidth: self.figures("core_bandwidth", "GB/s", raw.core_bandwidth)?,
            memory_sizes: self.figures("memory_sizes", "GB", raw.memory_sizes)?,
            l1_data: self.figures("l1_data", "KiB", raw.l1_data)?,
            l2: self.figures("l2", "MiB", raw.l2)?,
            clusters: self.figures("clusters", "clusters", raw.clusters)?,
            system_cache: self.figures("system_cache", "MiB", raw.system_cache)?,
            batch: self.ranges("batch", raw.batch)?,
            hidden: self.ranges("hidden", raw.hidden)?,
            backbone: self.backbones(raw.backbone)?,
            memory_budget: self.figures("memory_budget", "GB", raw.memory_budget)?,
            minimum: self.demands("minimum", raw.minimum)?,
            target: self.demands("target", raw.target)?,
            measured: self.measurements(raw.measured)?,
            file: file.map(Path::to_owned),
        })
    }
}

/// All devices that are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    /// Each, the program's own first.
    pub devices: Vec<Entry>,
}

impl Catalog {
    /// The program's own devices.
    pub fn own() -> Result<Catalog> {
        let mut catalog = Catalog::default();
        catalog.add("the built-in catalogue", OWN, None)?;
        Ok(catalog)
    }

    /// The program's own devices and the user's, where there is a file of them ([`Catalog::user_file`]).
    pub fn load() -> Result<Catalog> {
        let mut catalog = Catalog::own()?;
        if let Some((path, asked)) = Catalog::user_file()
            && (asked || path.exists())
        {
            catalog.add_file(&path)?;
        }
        Ok(catalog)
    }

    /// Where the user's devices are: `SCHWANN_DEVICES`, or `schwann/devices.toml` in `XDG_CONFIG_HOME` or `~/.config`;
    /// and whether the file was asked for by name, so that its absence is an error.
    pub fn user_file() -> Option<(PathBuf, bool)> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(path) = set("SCHWANN_DEVICES") {
            return Some((path, true));
        }
        let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|h| h.join(".config")))?;
        Some((config.join("schwann").join("devices.toml"), false))
    }

    /// Adds the devices of a file; one of a name that is there already takes its place.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let fail = |source| Error::File { action: "read", path: path.to_owned(), source };
        let mut text = String::new();
        // What the system says of a file's size need not be so: a device has none, and no end.
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(fail)?;
        if text.len() as u64 > MOST_BYTES {
            let problem = format!("a list of devices has at most {MOST_BYTES} bytes, and this has more");
            return Err(Error::Catalog { file: path.display().to_string(), line: 1, problem });
        }
        self.add(&path.display().to_string(), &text, Some(path))
    }

    /// Adds the devices of a text; `file` is its name for error messages.
    pub fn add(&mut self, file: &str, text: &str, path: Option<&Path>) -> Result<()> {
        let reader = Reader { file, text };
        let raw: RawFile = match toml::from_str(text) {
            Ok(raw) => raw,
            Err(e) => return reader.fail(e.span().map_or(0, |s| s.start), e.message().to_owned()),
        };
        for raw in raw.device {
            let entry = reader.entry(raw.into_inner(), path)?;
            match self.devices.iter_mut().find(|d| plain(&d.name) == plain(&entry.name)) {
                Some(known) => *known = entry,
                None => self.devices.push(entry),
            }
        }
        Ok(())
    }

    /// The device of a name; case, spaces, dashes and underscores do not matter, nor its maker's name before it.
    pub fn find(&self, name: &str) -> Result<&Entry> {
        let wanted = plain(name);
        let exact = self.devices.iter().find(|d| plain(&d.name) == wanted);
        let same = |d: &&Entry| without_maker(&plain(&d.name)) == without_maker(&wanted);
        if let Some(found) = exact.or_else(|| self.devices.iter().find(same)) {
            return Ok(found);
        }
        let nearest = nearest(name, self.devices.iter().map(|d| d.name.as_str())).map(str::to_owned);
        Err(Error::UnknownDevice { name: name.into(), nearest })
    }
}

/// A plain name without the maker, where it starts with one and goes on.
fn without_maker(name: &str) -> &str {
    MAKERS.iter().find_map(|maker| name.strip_prefix(*maker)).filter(|rest| !rest.is_empty()).unwrap_or(name)
}

#[cfg(test)]
mod tests;
