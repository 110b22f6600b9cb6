//! Adam, the optimizer that most people train circuits with.

use crate::{Error, Model, Result};
use schwann_core::Session;
use std::collections::BTreeMap;

/// Adam as PyTorch has it, without weight decay: m and v are running means of a gradient and of its square, and a weight
/// moves by −lr·m̂ / (√v̂ + ε), where m̂ and v̂ make up for both having begun at 0.
///
/// ```
/// use schwann_core::{CompileOptions, Program, Tensor};
/// use schwann_nn::{Adam, Cfc, GraphOptions, Model};
///
/// # fn main() -> schwann_nn::Result<()> {
/// let mut model = Model::new(Cfc::new(2, 4), 1)?;
/// let graph = model.training_graph(&GraphOptions::training())?;
/// let mut session = Program::compile(&graph, &CompileOptions::default())?.session();
/// let (x, target) = (Tensor::new(&[1, 3, 2], &[0.5f32; 6])?, Tensor::new(&[1, 3, 4], &[0.1f32; 12])?);
/// let mut adam = Adam::new(0.01);
/// let mut losses = vec![];
/// for _ in 0..20 {
///     let mut inputs = vec![("x", &x), ("target", &target)];
///     inputs.extend(model.weights().iter().map(|(name, data)| (name.as_str(), data)));
///     session.run(&inputs)?;
///     losses.push(session.output("loss")?.values::<f32>()?[0]);
///     adam.step(&mut model, &session)?;
/// }
/// assert!(losses[19] < losses[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    /// How far a weight moves in a step, about.
    pub lr: f32,
    /// How much of the means is kept from step to step: of gradients, and of their squares.
    pub betas: (f32, f32),
    /// Keeps the quotient finite.
    pub eps: f32,
    steps: i32,
    /// By parameter: m and v.
    means: BTreeMap<String, (Vec<f32>, Vec<f32>)>,
}

impl Adam {
    /// With this rate and PyTorch's other defaults.
    pub fn new(lr: f32) -> Adam {
        Adam { lr, betas: (0.9, 0.999), eps: 1e-8, steps: 0, means: BTreeMap::new() }
    }

    /// Moves every weight along the `grad.<name>` that a run of [`Model::training_graph`] left in the session, and brings
    /// back those that must not be negative ([`Model::constrain`]). A gradient that is not finite is an error, and the
    /// model stays as it was.
    pub fn step(&mut self, model: &mut Model, session: &Session) -> Result<()> {
        let names: Vec<String> = model.weights().keys().cloned().collect();
        let mut gradients = vec![];
        for name in &names {
            let gradient = session.output(&format!("grad.{name}"))?.values::<f32>()?;
            if let Some(at) = gradient.iter().position(|g| !g.is_finite()) {
                let got = format!("{} at element {at}", gradient[at]);
                return Err(Error::argument(format!("grad.{name}"), got, "finite numbers"));
            }
            gradients.push(gradient);
        }
        self.steps = self.steps.saturating_add(1);
        let (keep, keep_square) = self.betas;
        let rate = self.lr / (1.0 - keep.powi(self.steps));
        let square_rate = (1.0 - keep_square.powi(self.steps)).sqrt();
        for (name, gradient) in names.iter().zip(gradients) {
            let Some(weight) = model.weight_mut(name) else { continue };
            let begin = || (vec![0.0; gradient.len()], vec![0.0; gradient.len()]);
            let (means, squares) = self.means.entry(name.clone()).or_insert_with(begin);
            let weights = weight.values_mut::<f32>()?.iter_mut();
            for (((w, m), v), &g) in weights.zip(means).zip(squares).zip(gradient) {
                *m = keep * *m + (1.0 - keep) * g;
                *v = keep_square * *v + (1.0 - keep_square) * g * g;
                *w -= rate * *m / (v.sqrt() / square_rate + self.eps);
            }
        }
        model.constrain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphOptions, Linear};
    use schwann_core::{CompileOptions, Program, Tensor};

    fn taught(x: f32, steps: usize) -> Result<Model> {
        let mut model = Model::new(Linear { bias: false, ..Linear::new(1, 1) }, 1)?;
        model.set_weight("weight", Tensor::new(&[1, 1], &[1.0f32])?)?;
        let graph = model.training_graph(&GraphOptions::training())?;
        let mut session = Program::compile(&graph, &CompileOptions::default())?.session();
        let (x, target) = (Tensor::new(&[1, 1], &[x])?, Tensor::new(&[1, 1], &[0.0f32])?);
        let mut adam = Adam::new(0.1);
        for _ in 0..steps {
            let weight = model.weight("weight")?.clone();
            session.run(&[("x", &x), ("target", &target), ("weight", &weight)])?;
            adam.step(&mut model, &session)?;
        }
        Ok(model)
    }

    #[test]
    fn steps_are_those_of_the_formula() -> Result<()> {
        // loss = (2w)², so that its gradient is 8w: 8 at first, and 7.2 after a step of 0.1.
        let weight = |steps| Ok::<_, Error>(taught(2.0, steps)?.weight("weight")?.values::<f32>()?[0]);
        assert!((weight(1)? - 0.9).abs() < 1e-6);
        let m = (0.9 * 0.8 + 0.1 * 7.2f64) / 0.19;
        let v = (0.999 * 0.064 + 0.001 * 7.2f64 * 7.2) / (1.0 - 0.999f64 * 0.999);
        let expected = 0.9 - 0.1 * m / v.sqrt();
        assert!((f64::from(weight(2)?) - expected).abs() < 1e-6, "{expected}");
        Ok(())
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let problem = taught(f32::INFINITY, 1).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(problem.contains("`grad.weight` is") && problem.contains("expected finite numbers"), "{problem}");
    }
}
