//! Patterns that users add: a name, what to match, and what to put in its place.

use super::{PassOptions, Rule, rewrite};
use crate::error::{Error, Result};
use crate::graph::{Graph, GraphBuilder, Value};
use crate::op::Op;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a node must look like.
#[derive(Clone)]
enum Shape {
    /// Anything, under a name; the same name twice must be the same value.
    Any(String),
    /// A constant with this one value in every element.
    Constant(f64),
    /// An operation of this name with these inputs.
    Op(String, Vec<Template>),
}

/// A tree of operations to look for; made by [`any`], [`constant`] and [`op`].
#[derive(Clone)]
pub struct Template(Shape);

/// Matches any value and remembers it as `name`.
pub fn any(name: &str) -> Template {
    Template(Shape::Any(name.into()))
}
/// Matches a constant whose elements are all `value`.
pub fn constant(value: f64) -> Template {
    Template(Shape::Constant(value))
}
/// Matches an operation by its name (`"add"`, `"matmul"` …) with inputs that match. Operands of an operation that
/// commutes match in either order.
pub fn op(name: &str, inputs: impl IntoIterator<Item = Template>) -> Template {
    Template(Shape::Op(name.into(), inputs.into_iter().collect()))
}

/// The values that a match found, by the names given to [`any`].
#[derive(Clone, Debug, Default)]
pub struct Captures(BTreeMap<String, Value>);

impl Captures {
    /// The value found under `name`.
    pub fn get(&self, name: &str) -> Result<Value> {
        self.0.get(name).copied().ok_or_else(|| Error::Unknown {
            kind: "capture",
            name: name.into(),
            known: self.0.keys().cloned().collect(),
        })
    }
}

type Replace = dyn Fn(&mut GraphBuilder, &Captures) -> Result<Value> + Send + Sync;

/// A rewrite that a user adds.
///
/// ```
/// # use schwann_core::{pass::{any, op, Pattern}, GraphBuilder};
/// // x·sigmoid(x) is silu, which has a kernel of its own.
/// let silu = Pattern::new("silu", op("mul", [any("x"), op("sigmoid", [any("x")])]), |b, m| b.silu(m.get("x")?));
/// ```
#[derive(Clone)]
pub struct Pattern {
    name: String,
    find: Template,
    replace: Arc<Replace>,
}

impl Pattern {
    /// A pattern of this name: where `find` matches, `replace` builds the value to put in its place.
    pub fn new(
        name: &str,
        find: Template,
        replace: impl Fn(&mut GraphBuilder, &Captures) -> Result<Value> + Send + Sync + 'static,
    ) -> Pattern {
        Pattern { name: name.into(), find, replace: Arc::new(replace) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The captures if the pattern matches at `value`.
    pub fn matches(&self, graph: &Graph, value: Value) -> Option<Captures> {
        let mut captures = Captures::default();
        find(graph, value, &self.find, &mut captures).then_some(captures)
    }

    fn apply(&self, graph: &mut Graph, value: Value) -> Result<Option<Value>> {
        let Some(captures) = self.matches(graph, value) else { return Ok(None) };
        let name = graph.node(value).name.clone();
        let mut builder = GraphBuilder::going_on(std::mem::take(graph), &name);
        let built = (self.replace)(&mut builder, &captures);
        *graph = builder.into_graph();
        // A replacement that gives back the node itself would fire for ever.
        built.map(|new| (new != value).then_some(new))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({})", self.name)
    }
}

fn find(graph: &Graph, value: Value, template: &Template, captures: &mut Captures) -> bool {
    match &template.0 {
        Shape::Any(name) => *captures.0.entry(name.clone()).or_insert(value) == value,
        Shape::Constant(want) => match &graph.node(value).op {
            Op::Const(t) => !t.is_empty() && t.to_f64().iter().all(|v| v == want),
            _ => false,
        },
        Shape::Op(name, inputs) => {
            let node = graph.node(value);
            if node.op.name() != name || node.inputs.len() != inputs.len() {
                return false;
            }
            let mut attempt = |order: &[usize]| {
                let before = captures.clone();
                let found = order.iter().zip(inputs).all(|(&i, t)| find(graph, node.inputs[i], t, captures));
                if !found {
                    *captures = before;
                }
                found
            };
            let in_order: Vec<usize> = (0..inputs.len()).collect();
            attempt(&in_order) || matches!(node.op, Op::Binary(b) if b.commutes() && attempt(&[1, 0]))
        }
    }
}

/// Applies the user's patterns.
pub(super) fn user_patterns(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if options.patterns.is_empty() {
        return Ok(graph.clone());
    }
    let rules: Vec<(&str, Box<Rule<'_>>)> = options
        .patterns
        .iter()
        .map(|p| (p.name(), Box::new(move |g: &mut Graph, v: Value| p.apply(g, v)) as Box<Rule<'_>>))
        .collect();
    let rules: Vec<_> = rules.iter().map(|(name, rule)| (*name, &**rule)).collect();
    rewrite(graph, &rules)
}
