//! How nodes are named, and how passes name the nodes that they make.
//!
//! A name is a path: the parts of the network from the outside in, then the node's role, with dots between them, as in
//! `cfc.inter.gate`. Where a pass makes one node of several, the rules are these, so that a table of times reads like
//! the network:
//!
//! - A fused node ([`fused`]) is called after its matrix product where it has one, since most of its time goes there;
//!   else after the node that gives its result.
//! - A node that does the work of several equal ones ([`joint`]), as the product of a cell's heads, is called after the
//!   path that they share: `cfc.inter.heads`. Where they share none, their names are joined: `query+key+value`.
//! - A name that the user gave is preferred over an automatic one, such as `add_26` ([`is_automatic`]).

use crate::op::Op;

/// At most this many names are joined with `+`; of more, the first is shown, and how many others there are.
const MOST_JOINED: usize = 4;

/// Whether a name is one that [`GraphBuilder`](super::GraphBuilder) gives a node without a name: operation and number,
/// as `add_26`. A path with such a part, as `add_26.bias`, counts as automatic too.
pub fn is_automatic(name: &str) -> bool {
    let numbered = |part: &str| {
        part.rsplit_once('_').is_some_and(|(op, number)| {
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && Op::is_name(op)
        })
    };
    name.split('.').any(numbered)
}

/// The name of a fused node: the first of these names that is not automatic, in this order: the product's, that of the
/// node that gives the result, others. If all are automatic, it is the result's.
pub(crate) fn fused<'a>(product: Option<&'a str>, result: &'a str, others: impl Iterator<Item = &'a str>) -> String {
    let mut names = product.into_iter().chain([result]).chain(others);
    names.find(|name| !is_automatic(name)).unwrap_or(result).to_owned()
}

/// The name of a node that does the work of several: the longest path that their names share, or else their names
/// joined with `+`, each once. Automatic names count only if there are no others.
pub(crate) fn joint<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.into_iter().collect();
    let mut names: Vec<&str> = all.iter().copied().filter(|name| !is_automatic(name)).collect();
    if names.is_empty() {
        return all.first().copied().unwrap_or_default().to_owned();
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(*name));
    match (shared(&names), names.len()) {
        (Some(path), _) => path,
        (None, n) if n <= MOST_JOINED => names.join("+"),
        (None, n) => format!("{}+{} more", names[0], n - 1),
    }
}

/// The longest path that names share, if there is any.
pub(crate) fn shared(names: &[&str]) -> Option<String> {
    let mut shared: Vec<&str> = names.first()?.split('.').collect();
    for name in &names[1..] {
        let same = shared.iter().zip(name.split('.')).take_while(|(a, b)| **a == *b).count();
        shared.truncate(same);
    }
    (!shared.is_empty()).then(|| shared.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_automatic_if_it_is_an_operation_and_a_number() {
        for name in ["add_26", "matmul_map_3", "segment_sum_0", "cfc.inter.tanh_2", "add_26.bias"] {
            assert!(is_automatic(name), "{name}");
        }
        for name in ["", "add", "add_", "add_2b", "layer_0", "weight_ih_l0", "cfc.inter.gate", "_1"] {
            assert!(!is_automatic(name), "{name}");
        }
    }

    #[test]
    fn every_operation_of_the_case_list_is_known_by_its_name() {
        fn check(graph: &crate::Graph) {
            for node in graph.nodes() {
                assert!(Op::is_name(node.op.name()), "{}", node.op.name());
                if let Op::Scan(scan) = &node.op {
                    check(&scan.body);
                }
            }
        }
        crate::cases::all().iter().for_each(|case| check(&case.graph));
    }

    #[test]
    fn a_fused_node_is_called_after_its_product_or_else_its_result() {
        let none = || std::iter::empty();
        assert_eq!(fused(Some("encoder.0"), "encoder.1", none()), "encoder.0");
        assert_eq!(fused(None, "cfc.inter.gate", ["cfc.inter.heads"].into_iter()), "cfc.inter.gate");
    }

    #[test]
    fn a_name_that_was_given_wins_over_automatic_ones() {
        assert_eq!(fused(Some("matmul_3"), "hidden", std::iter::empty()), "hidden");
        assert_eq!(fused(Some("matmul_3"), "tanh_5", ["add_4", "shifted"].into_iter()), "shifted");
        assert_eq!(fused(Some("matmul_3"), "tanh_5", ["add_4"].into_iter()), "tanh_5");
        assert_eq!(joint(["matmul_3", "cfc.ff1", "matmul_9"]), "cfc.ff1");
        assert_eq!(joint(["matmul_3", "matmul_9"]), "matmul_3");
    }

    #[test]
    fn what_does_the_work_of_several_has_the_path_that_they_share() {
        assert_eq!(joint(["cfc.inter.heads.ff1", "cfc.inter.heads.ff2", "cfc.inter.heads.time"]), "cfc.inter.heads");
        // Parts are whole words, not letters.
        assert_eq!(joint(["block.query", "block.queue"]), "block");
        assert_eq!(joint(["cfc.gate", "cfc.gate"]), "cfc.gate");
        assert_eq!(joint(["cfc", "cfc.gate"]), "cfc");
    }

    #[test]
    fn names_that_share_nothing_are_joined() {
        assert_eq!(joint(["query", "key", "value"]), "query+key+value");
        assert_eq!(joint(["a", "b", "c", "d", "e"]), "a+4 more");
        assert_eq!(joint([]), "");
    }
}
