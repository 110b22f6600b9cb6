//! Code that computes sums over the synapses of one neuron.

use super::constants::Constants;
use super::element::{Call, checked_index, unary};
use super::site::Site;
use super::view::{Home, View};
use schwann_codegen::lang::{Expr, Memory, Ty};
use schwann_core::op::Activation;
use schwann_core::{Dim, Result};

/// Neighbouring threads that share the sum of one element.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    /// This thread's number among them.
    pub(crate) lane: Expr,
    pub(crate) count: u32,
}

/// Synapses as lists, one for each destination: `destinations + 1` places where lists begin, then for all synapses, list by
/// list, their sources, and then their scales, shifts and weights. Where these are values of the run, as in training, there
/// are the synapses' places among them instead.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    /// The constant word at which they begin.
    pub(crate) at: u32,
    pub(crate) destinations: u32,
    pub(crate) count: u32,
    /// All words of them.
    pub(crate) words: u32,
    /// Whether scales, shifts and weights are among them.
    pub(crate) has_numbers: bool,
    /// How many synapses each destination has, where that is the same whatever the weights are.
    pub(crate) degrees: Option<Vec<u32>>,
    /// Where a workgroup has a copy of its own of all but the places where lists begin, if it has one.
    pub(crate) copy: Option<Memory>,
}

fn activate(s: &mut Site<'_>, activation: Activation, x: &Expr) -> Expr {
    match activation.unary() {
        Some(u) => unary(s, u, x),
        None => x.clone(),
    }
}

/// Sums over the synapses of one destination, beginning with the given start values.
pub(crate) fn synapse_sums(
    s: &mut Site<'_>,
    call: &Call<'_>,
    x: &View,
    activation: Activation,
    axis: usize,
    from: Vec<Expr>,
    at: &[Expr],
) -> Result<Vec<Expr>> {
    let zeros = || vec![Expr::from(0.0f32); from.len()];
    let starts = if call.lanes.is_some() { zeros() } else { from.clone() };
    let sums: Vec<_> = starts.into_iter().map(|start| s.maker.variable("sum", start)).collect();
    let destination = s.maker.name("d", &at[axis]);
    let step = |s: &mut Site<'_>, source: Expr, scale: Expr, shift: Expr, weights: Vec<Expr>| -> Result<()> {
        let mut place = at.to_vec();
        place[axis] = source;
        let value = s.load(x, &place)?;
        let value = scale.fma(value, shift);
        let value = s.maker.name("x", value);
        let value = activate(s, activation, &value);
        for (sum, weight) in sums.iter().zip(weights) {
            let next = value.fma(weight, s.maker.get(*sum));
            s.maker.set(*sum, next);
        }
        Ok(())
    };
    if let Some(lists) = call.synapses {
        let (constants, base) = (s.constants, s.arg("lists", Home::Constant(lists.at), &[]));
        let place = |s: &mut Site<'_>, index: Expr| {
            let word = s.maker.load(constants, &base + index, Ty::U32);
            s.maker.name("place", word)
        };
        let (begin, end) = (place(s, destination.clone()), place(s, &destination + 1u32));
        let (count, first) = (lists.count, lists.destinations + 1);
        // Shared arrays hold words, whatever they stand for.
        let word = |s: &Site<'_>, index: Expr, ty: Ty| match lists.copy {
            Some(copy) => s.maker.load(copy, index, Ty::U32).bits(ty),
            None => s.maker.load(constants, &base + index + first, ty),
        };
        let (begin, by) = match call.lanes {
            Some(lanes) => (begin + &lanes.lane, lanes.count),
            None => (begin, 1),
        };
        s.strided("e", begin, end, by, |s, e| {
            let source = word(s, e.clone(), Ty::U32);
            let source = s.maker.name("source", source);
            if !lists.has_numbers {
                let synapse = word(s, &e + count, Ty::U32);
                let synapse = s.maker.name("synapse", synapse);
                let (scale, shift, weights) = numbers(s, call, sums.len(), &synapse)?;
                return step(s, source, scale, shift, weights);
            }
            let scale = word(s, &e + count, Ty::F32);
            let shift = word(s, &e + 2 * count, Ty::F32);
            let weights = (0..sums.len() as u32).map(|k| word(s, &e + (3 + k) * count, Ty::F32)).collect();
            step(s, source, scale, shift, weights)
        })?;
        let parts: Vec<Expr> = sums.iter().map(|sum| s.maker.get(*sum)).collect();
        let Some(lanes) = call.lanes else { return Ok(parts) };
        let total = |(part, start): (Expr, &Expr)| s.maker.sum_over_lanes(part, lanes.count) + start;
        return Ok(parts.into_iter().zip(&from).map(total).collect());
    }
    // Where even the ends are not known before the run, every synapse is visited.
    let count = s.size(&call.inputs[1].dims[0])?;
    let (sources, destinations) = (s.size(&x.dims[axis])?, s.size(&call.dims[axis])?);
    let right = ends_are_right(s.known, &call.inputs[1..3], [&x.dims[axis], &call.dims[axis]]);
    s.counted("e", 0u32, count, |s, e| {
        let at = std::slice::from_ref(&e);
        let to = s.load(&call.inputs[2], at)?.bits(Ty::U32);
        let to = s.maker.name("to", to);
        let source = s.load(&call.inputs[1], at)?;
        let source = match right {
            true => s.maker.name("source", source.bits(Ty::U32)),
            false => checked_index(s, call, &source, &sources),
        };
        if let Some(fault) = call.fault {
            let (faults, number) = (s.faults, s.number("fault", fault));
            s.maker.either(to.lt(&destinations), |_| (), |m| m.fault(faults, number));
        }
        s.guarded(to.eq(&destination), |s| {
            let (scale, shift, weights) = numbers(s, call, sums.len(), &e)?;
            step(s, source.clone(), scale, shift, weights)
        })
    })?;
    Ok(sums.iter().map(|sum| s.maker.get(*sum)).collect())
}

/// The scale, the shift and the weights of a synapse, of values of the run.
fn numbers(s: &mut Site<'_>, call: &Call<'_>, sums: usize, synapse: &Expr) -> Result<(Expr, Expr, Vec<Expr>)> {
    let at = std::slice::from_ref(synapse);
    let (scale, shift) = (s.load(&call.inputs[3], at)?, s.load(&call.inputs[4], at)?);
    let weights = (0..sums).map(|k| s.load(&call.inputs[5 + k], at)).collect::<Result<Vec<_>>>()?;
    Ok((scale, shift, weights))
}

/// Whether all ends of synapses are known to be in range: of sources and destinations, of which there are so many.
pub(crate) fn ends_are_right(known: &Constants, ends: &[View], sizes: [&Dim; 2]) -> bool {
    ends.iter().zip(sizes).all(|(view, size)| known.are_below(&view.home, size))
}

/// (p · x + q + s₂) / (r + s₁), of one destination.
pub(crate) fn synapse_ratio(
    s: &mut Site<'_>,
    call: &Call<'_>,
    x: &View,
    activation: Activation,
    axis: usize,
    at: &[Expr],
) -> Result<Expr> {
    let sums = synapse_sums(s, call, x, activation, axis, vec![0.0f32.into(), 0.0f32.into()], at)?;
    let own = s.load(x, at)?;
    let mut terms = vec![];
    for view in &call.inputs[7..10] {
        terms.push(s.load(&view.stretched(call.dims), at)?);
    }
    let above = terms[0].fma(own, &terms[1] + &sums[1]);
    Ok(above / (&terms[2] + &sums[0]))
}
