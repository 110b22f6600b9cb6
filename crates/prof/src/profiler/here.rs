//! What can be said at once about where and when a profile was made, without measuring.

use crate::device::cpu;
use crate::profile::Machine;
use schwann_core::{Figure, Graph};
use schwann_kernels::Isa;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::hash::{BuildHasher, Hasher};

/// The time now, RFC 3339 in UTC.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A name that no other profile has: the time and 64 random bits.
pub(super) fn id() -> String {
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S"))
}

/// SHA-256 of a graph and its weights. What its operations are called does not count: that changes with the program's
/// version, and the model stays the same.
pub(crate) fn hash(graph: &Graph) -> String {
    let mut hash = Sha256::new();
    let mut document = serde_json::to_value(graph).unwrap_or_default();
    forget_names(&mut document);
    hash.update(document.to_string().as_bytes());
    for (name, data) in graph.weights() {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((data.bytes().len() as u64).to_le_bytes());
        hash.update(data.bytes());
    }
    hex(&hash.finalize())
}

/// Removes the names of nodes, also in loops. (Inputs and weights have names of their own inside their operation.)
fn forget_names(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            if fields.contains_key("op") {
                fields.remove("name");
            }
            fields.values_mut().for_each(forget_names);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_names),
        _ => {}
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What the system says about this machine, run with an instruction set.
pub fn machine(isa: Isa) -> Machine {
    let name = cpu::name().unwrap_or_else(|why| format!("unknown CPU ({why})"));
    let cores = std::thread::available_parallelism();
    let cores = match cores {
        Ok(n) => Figure::measured(n.get() as f64, "cores", "the system's count of CPUs for this process"),
        Err(e) => Figure::unavailable("cores", "the system's count of CPUs", e.to_string()),
    };
    let memory = match schwann_core::memory::machine_bytes() {
        Ok(bytes) => Figure::measured(bytes as f64, "B", "the system's memory size"),
        Err(e) => Figure::unavailable("B", "the system's memory size", e.to_string()),
    };
    let os = format!("{}{}", std::env::consts::OS, os_version().map(|v| format!(" {v}")).unwrap_or_default());
    let fingerprint = fingerprint(&name, isa.name(), cores.value);
    let unified_memory = cfg!(all(target_os = "macos", target_arch = "aarch64"));
    Machine { fingerprint, cpu: name, isa: isa.to_string(), os, cores, memory, unified_memory }
}

/// What tells a machine's hardware from others by what a profile says of it. The system's version and the memory are not
/// in it: a kernel that keeps a little more for itself, or a limit on memory, makes no other machine.
pub(crate) fn fingerprint(cpu: &str, isa: &str, cores: Option<f64>) -> String {
    let cores = cores.map_or("unknown".into(), |n| n.to_string());
    hex(&Sha256::digest(format!("{cpu}|{isa}|{cores}").as_bytes())[..8])
}

fn os_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(text.trim().to_owned())
}

/// Doubts that the way this program was built gives rise to.
pub(super) fn doubts() -> Option<String> {
    let text =
        "this is a build with debug assertions: times are longer than those of a release build; build with --release";
    cfg!(debug_assertions).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_core::{DType, GraphBuilder, Tensor};

    #[test]
    fn a_model_is_the_same_whatever_its_operations_are_called() {
        let model = |names: [&str; 2], weight: f32, other: bool| {
            let mut b = GraphBuilder::new();
            let x = b.input("x", DType::F32, [3]).unwrap();
            let w = b.weight("w", Tensor::scalar(weight)).unwrap();
            let y = b.named(names[0]).mul(x, w).unwrap();
            let y = if other { b.named(names[1]).tanh(y) } else { b.named(names[1]).sigmoid(y) };
            b.output("y", y.unwrap()).unwrap();
            hash(&b.build().unwrap())
        };
        let one = model(["mul_1", "tanh_2"], 1.0, true);
        assert_eq!(one, model(["cell.scaled", "cell.gate"], 1.0, true));
        assert_ne!(one, model(["mul_1", "tanh_2"], 1.0, false));
        assert_ne!(one, model(["mul_1", "tanh_2"], 2.0, true));
    }
}
