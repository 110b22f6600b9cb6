//! The gradients of sums over synapses and of their ratio.

use super::layout::around;
use super::{Call, HostValue};
use crate::error::Result;
use crate::op::{Activation, SynapseResult};

impl Call<'_> {
    pub(super) fn synapse_gradient(
        &self,
        activation: Activation,
        axis: usize,
        of: SynapseResult,
    ) -> Result<Vec<Vec<f64>>> {
        let x = self.inputs[0];
        let tables = 5 + of.sums();
        let mut lists = vec![vec![0.0; self.inputs[3].data.len()]; 2 + of.sums()];
        let times = match of {
            SynapseResult::Sums { segments, .. } => {
                let h: Vec<&[f64]> = self.inputs[tables..].iter().map(|h| &h.data[..]).collect();
                let mut dx = self.zeros(&x.shape)?;
                self.add_back(activation, axis, segments, x, &h, &mut dx, &mut lists)?;
                return Ok(std::iter::once(dx).chain(lists).collect());
            }
            // Without elements there is nothing to do, and `times` may be huge, since the work it counts is 0.
            SynapseResult::Ratio { .. } if x.data.is_empty() => 0,
            SynapseResult::Ratio { times } => times,
        };
        let shape = self.shape();
        let terms = [self.stretch(7, shape)?, self.stretch(8, shape)?, self.stretch(9, shape)?];
        let [p, q, r] = &terms;
        let n = x.data.len();
        // Each repetition's result is rounded as if stored, since the next one reads it.
        let (mut values, mut belows) = (vec![x.clone()], vec![]);
        for time in 0..times {
            let x = &values[time];
            let mut inputs = self.inputs[..tables].to_vec();
            inputs[0] = x;
            let sums = Call { inputs: &inputs, ..*self }.synapse_sum(activation, axis, 2, shape[axis])?;
            let below: Vec<f64> = (0..n).map(|i| r[i] + sums[0][i]).collect();
            let data = (0..n).map(|i| (p[i] * x.data[i] + q[i] + sums[1][i]) / below[i]).collect();
            values.push(self.result(0, data));
            belows.push(below);
        }
        let mut g = self.inputs[tables + 3].data.clone();
        let mut of_terms = vec![self.zeros(shape)?; 3];
        for time in (0..times).rev() {
            let (x, y) = (&values[time], &values[time + 1]);
            let above: Vec<f64> = (0..n).map(|i| g[i] / belows[time][i]).collect();
            let under: Vec<f64> = (0..n).map(|i| -above[i] * y.data[i]).collect();
            for i in 0..n {
                of_terms[0][i] += above[i] * x.data[i];
                of_terms[1][i] += above[i];
                of_terms[2][i] += under[i];
                g[i] = above[i] * p[i];
            }
            self.add_back(activation, axis, shape[axis], x, &[&under, &above], &mut g, &mut lists)?;
        }
        Ok(std::iter::once(g).chain(lists).chain(of_terms).collect())
    }

    /// Adds what the gradients `h` of sums become, at values x.
    #[expect(clippy::too_many_arguments, reason = "values and their gradients")]
    fn add_back(
        &self,
        activation: Activation,
        axis: usize,
        segments: usize,
        x: &HostValue,
        h: &[&[f64]],
        dx: &mut [f64],
        lists: &mut [Vec<f64>],
    ) -> Result<()> {
        let (outer, size, inner) = around(&x.shape, axis);
        let (sources, destinations) =
            (self.indices_of(1, "source", size)?, self.indices_of(2, "destination", segments)?);
        for at in 0..outer * inner {
            let (o, i) = (at / inner, at % inner);
            for (e, (&source, &destination)) in sources.iter().zip(&destinations).enumerate() {
                let (s, d) = ((o * size + source) * inner + i, (o * segments + destination) * inner + i);
                let number = |list: usize| self.inputs[3 + list].data[e];
                let y = number(0) * x.data[s] + number(1);
                let (a, slope) = match activation {
                    Activation::Identity => (y, 1.0),
                    Activation::Sigmoid => {
                        let a = crate::op::Unary::Sigmoid.value(y);
                        (a, a * (1.0 - a))
                    }
                    Activation::Tanh => (y.tanh(), 1.0 - y.tanh() * y.tanh()),
                };
                let b = slope * h.iter().enumerate().map(|(k, h)| number(2 + k) * h[d]).sum::<f64>();
                dx[s] += b * number(0);
                lists[0][e] += b * x.data[s];
                lists[1][e] += b;
                for (k, h) in h.iter().enumerate() {
                    lists[2 + k][e] += a * h[d];
                }
            }
        }
        Ok(())
    }
}
