//! How the rate of learning changes in the course of training.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// What the rate does after it has warmed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Course {
    /// It stays.
    #[default]
    Constant,
    /// It falls along half a wave of the cosine, to `least` times itself at the last step.
    Cosine {
        /// What is left at the end, as a share.
        least: f32,
    },
    /// It is multiplied by `factor` whenever the validation's loss has not become smaller for `patience` validations.
    Plateau {
        /// What it is multiplied by.
        factor: f32,
        /// How many validations without a better loss are waited for.
        patience: usize,
        /// The least share of the first rate that it falls to.
        least: f32,
    },
}

/// The rate of learning over the steps: a share of the optimizer's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Steps in which it rises in a line from 0.
    #[serde(default)]
    pub warm_up: u64,
    /// What follows.
    #[serde(default)]
    pub course: Course,
}

/// What a plateau remembers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plateau {
    share: f32,
    best: Option<f64>,
    waited: usize,
}

impl Default for Plateau {
    fn default() -> Plateau {
        Plateau { share: 1.0, best: None, waited: 0 }
    }
}

impl Schedule {
    pub(crate) fn check(&self) -> Result<()> {
        let share = |name: &str, value: f32| match (0.0..=1.0).contains(&value) {
            true => Ok(()),
            false => Err(Error::argument(name, value, "from 0 to 1")),
        };
        match self.course {
            Course::Constant => Ok(()),
            Course::Cosine { least } => share("least", least),
            Course::Plateau { factor, patience, least } => {
                share("least", least)?;
                if !(factor > 0.0 && factor < 1.0) {
                    return Err(Error::argument("factor", factor, "more than 0 and less than 1"));
                }
                if patience == 0 {
                    return Err(Error::argument("patience", 0, "1 at least"));
                }
                Ok(())
            }
        }
    }

    /// The share of the rate at step `step` (the first is 0) of `of`.
    pub(crate) fn share(&self, step: u64, of: u64, plateau: &Plateau) -> f32 {
        if step < self.warm_up {
            return ((step + 1) as f64 / self.warm_up as f64) as f32;
        }
        match self.course {
            Course::Constant => 1.0,
            Course::Cosine { least } => {
                let (done, all) = (step - self.warm_up, of.saturating_sub(self.warm_up).max(1));
                let part = (done as f64 / all as f64).min(1.0);
                let wave = (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
                (f64::from(least) + (1.0 - f64::from(least)) * wave) as f32
            }
            Course::Plateau { .. } => plateau.share,
        }
    }

    /// Takes note of a validation's loss.
    pub(crate) fn note(&self, plateau: &mut Plateau, loss: f64) {
        let Course::Plateau { factor, patience, least } = self.course else { return };
        if plateau.best.is_none_or(|best| loss < best) {
            (plateau.best, plateau.waited) = (Some(loss), 0);
            return;
        }
        plateau.waited += 1;
        if plateau.waited >= patience {
            plateau.waited = 0;
            plateau.share = (plateau.share * factor).max(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cosine_falls_from_the_warm_up_to_the_end() {
        let schedule = Schedule { warm_up: 4, course: Course::Cosine { least: 0.1 } };
        let share = |step| schedule.share(step, 24, &Plateau::default());
        assert_eq!([share(0), share(1), share(3), share(4)], [0.25, 0.5, 1.0, 1.0]);
        assert!((share(14) - 0.55).abs() < 1e-6 && (share(24) - 0.1).abs() < 1e-6 && share(99) == share(24));
    }

    #[test]
    fn a_plateau_waits_and_falls() {
        let course = Course::Plateau { factor: 0.5, patience: 2, least: 0.2 };
        let schedule = Schedule { warm_up: 0, course };
        let mut plateau = Plateau::default();
        let shares: Vec<f32> = [3.0, 2.0, 2.5, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
            .into_iter()
            .map(|loss| {
                schedule.note(&mut plateau, loss);
                schedule.share(7, 10, &plateau)
            })
            .collect();
        assert_eq!(shares, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2]);
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for course in [
            Course::Cosine { least: 1.5 },
            Course::Plateau { factor: 1.0, patience: 1, least: 0.0 },
            Course::Plateau { factor: 0.5, patience: 0, least: 0.0 },
        ] {
            assert!(Schedule { warm_up: 0, course }.check().is_err(), "{course:?}");
        }
    }
}
