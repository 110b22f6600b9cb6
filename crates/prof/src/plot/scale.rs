//! From numbers to pixels: linear and logarithmic axes and the marks on them.

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// From 0 or `low` to a round number at or above `high`, onto these pixels.
    pub(super) fn linear(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Axis { low, high, from, to, log: false }
    }

    /// Both ends positive; a decade at least.
    pub(super) fn log(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let low = low.max(1e-30);
        let high = high.max(low * 2.0).min(1e30);
        Axis { low: low.log10(), high: high.log10(), from, to, log: true }
    }

    /// Where a number lies; ends are not crossed.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-30).log10() } else { value };
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + part * (self.to - self.from)
    }

    /// Round numbers on it, about so many on a linear one, powers of ten on a logarithmic one, halves and
    /// fifths between where it is short.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.ceil() as i32, (self.high + 1e-9).floor() as i32);
            if self.high - self.low < 3.2 {
                let between = (first - 1..=last).flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p)));
                let inside = |v: &f64| (self.low - 1e-9..=self.high + 1e-9).contains(&v.log10());
                return between.filter(inside).collect();
            }
            let every = ((last - first) / about.max(1) as i32).max(1);
            return (first..=last).step_by(every as usize).map(|p| 10f64.powi(p)).collect();
        }
        let rough = (self.high - self.low) / about.max(1) as f64;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough * 0.999);
        let Some(step) = step.filter(|s| s.is_finite() && *s > 0.0) else { return vec![] };
        let first = (self.low / step - 1e-9).ceil();
        (0..=2 * about.max(1)).map(|i| (first + i as f64) * step).filter(|v| *v <= self.high + step * 1e-6).collect()
    }
}

/// The end of an axis from 0 on which the greatest number has some room, at a round step.
pub(super) fn round_up(greatest: f64) -> f64 {
    if !(greatest > 0.0 && greatest.is_finite()) {
        return 1.0;
    }
    let unit = 10f64.powf(greatest.log10().floor());
    [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .map(|m| m * unit)
        .into_iter()
        .find(|r| *r >= greatest)
        .unwrap_or(greatest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Axis::linear(0.0, 100.0, 0.0, 1.0).ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Axis::log(0.5, 2e4, 0.0, 1.0).ticks(10), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert_eq!(Axis::log(0.5, 20.0, 0.0, 1.0).ticks(10), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        for axis in
            [Axis::linear(0.0, 1e300, 0.0, 1.0), Axis::linear(5.0, 5.0, 0.0, 1.0), Axis::log(0.0, 1e300, 0.0, 1.0)]
        {
            assert!(axis.ticks(6).len() < 40 && axis.ticks(6).iter().all(|t| t.is_finite()));
        }
    }

    #[test]
    fn what_lies_beyond_an_end_is_drawn_at_it() {
        let axis = Axis::log(1.0, 100.0, 0.0, 10.0);
        assert_eq!([0.1, 1.0, 10.0, 1e9].map(|v| axis.at(v)), [0.0, 0.0, 5.0, 10.0]);
    }
}
