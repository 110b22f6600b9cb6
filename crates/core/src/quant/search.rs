//! Which scheme for which layer: the fewest bytes within a bound on the error.

/// What a layer costs in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bytes of the weights.
    pub bytes: usize,
    /// How far the network's results are off if only this layer has this form.
    pub error: f64,
}

/// Chooses a form for each layer, so that the root of the sum of squares of their errors is at most `most`, with few bytes.
/// `costs[layer][form]`; the first form of each is exact. Errors of layers are taken to be independent: what the network's
/// error is with all of them must be measured.
pub fn choose(costs: &[Vec<Cost>], most: f64) -> Vec<usize> {
    let mut chosen = vec![0; costs.len()];
    let squares = |chosen: &[usize]| -> f64 { costs.iter().zip(chosen).map(|(c, &form)| c[form].error.powi(2)).sum() };
    loop {
        let spent = squares(&chosen);
        // The change that saves the most bytes for the error that it adds.
        let mut best: Option<(f64, usize, usize)> = None;
        for (layer, forms) in costs.iter().enumerate() {
            let now = forms[chosen[layer]];
            for (form, cost) in forms.iter().enumerate().filter(|(_, cost)| cost.bytes < now.bytes) {
                let added = cost.error.powi(2) - now.error.powi(2);
                if spent + added > most * most || !cost.error.is_finite() {
                    continue;
                }
                let worth = (now.bytes - cost.bytes) as f64 / added.max(f64::MIN_POSITIVE);
                if best.is_none_or(|(most, ..)| worth > most) {
                    best = Some((worth, layer, form));
                }
            }
        }
        match best {
            Some((_, layer, form)) => chosen[layer] = form,
            None => return chosen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_within_the_bound() {
        let forms = |errors: [f64; 3]| {
            vec![
                Cost { bytes: 400, error: 0.0 },
                Cost { bytes: 100, error: errors[0] },
                Cost { bytes: 50, error: errors[1] },
                Cost { bytes: 25, error: errors[2] },
            ]
        };
        let costs = [forms([0.001, 0.01, 0.5]), forms([0.002, 0.2, f64::NAN]), forms([1e-6, 1e-5, 1e-4])];
        assert_eq!(choose(&costs, 0.0), [0, 0, 0]);
        assert_eq!(choose(&costs, 0.0025), [1, 1, 3]);
        assert_eq!(choose(&costs, 0.011), [2, 1, 3]);
        assert_eq!(choose(&costs, 10.0), [3, 2, 3]);
        assert_eq!(choose(&[], 1.0), Vec::<usize>::new());
    }
}
