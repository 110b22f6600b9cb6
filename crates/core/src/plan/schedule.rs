//! The order of execution: one that dependencies allow and that needs little memory at a time.

use crate::graph::Graph;

/// An order of the nodes that `graph` allows. `bytes` is what each node's outputs take.
///
/// Two candidates: the order in which the graph was built, and depth first from the results, which computes a value
/// right before it is needed. The one with the lower peak of memory is taken.
pub fn schedule(graph: &Graph, bytes: &[usize]) -> Vec<u32> {
    let built: Vec<u32> = (0..graph.nodes().len() as u32).collect();
    let deep = depth_first(graph, bytes);
    if peak(graph, &deep, bytes) < peak(graph, &built, bytes) { deep } else { built }
}

fn depth_first(graph: &Graph, bytes: &[usize]) -> Vec<u32> {
    let nodes = graph.nodes();
    let mut done = vec![false; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    let roots = graph.outputs().iter().map(|o| o.value.node).chain(0..nodes.len() as u32);
    for root in roots {
        // (node, whether its inputs are done); an explicit stack instead of recursion, since graphs can be deep.
        let mut stack = vec![(root, false)];
        while let Some((node, ready)) = stack.pop() {
            if done[node as usize] {
                continue;
            }
            if ready {
                done[node as usize] = true;
                order.push(node);
                continue;
            }
            stack.push((node, true));
            let mut inputs: Vec<u32> = nodes[node as usize].inputs.iter().map(|v| v.node).collect();
            // The input that takes most memory is computed first (so it is pushed last): no other input is alive yet
            // while its own inputs are computed.
            inputs.sort_by_key(|&i| std::cmp::Reverse(bytes[i as usize]));
            stack.extend(inputs.iter().rev().filter(|i| !done[**i as usize]).map(|&i| (i, false)));
        }
    }
    order
}

fn peak(graph: &Graph, order: &[u32], bytes: &[usize]) -> usize {
    let mut readers = vec![0usize; bytes.len()];
    for node in graph.nodes() {
        for v in &node.inputs {
            readers[v.node as usize] += 1;
        }
    }
    for o in graph.outputs() {
        readers[o.value.node as usize] += 1;
    }
    let (mut live, mut most) = (0usize, 0usize);
    for &id in order {
        live = live.saturating_add(bytes[id as usize]);
        most = most.max(live);
        for v in &graph.nodes()[id as usize].inputs {
            readers[v.node as usize] -= 1;
            if readers[v.node as usize] == 0 {
                live = live.saturating_sub(bytes[v.node as usize]);
            }
        }
        if readers[id as usize] == 0 {
            live = live.saturating_sub(bytes[id as usize]);
        }
    }
    most
}
