//! Trend of a figure, judged by its slope, since two single values may be a high and a low by
//! chance.

/// Series of measurements over a quantity that only grows: minutes, or a number of events.
///
/// ```
/// # use pilotlight_testing::Trend;
/// let mut memory = Trend::default();
/// for (events, kib) in [(0.0, 10.0), (100.0, 80.0), (200.0, 81.0), (300.0, 80.0), (400.0, 81.0)] {
///     memory.add(events, kib);
/// }
/// let slope = memory.later_half().slope().unwrap();
/// assert!(slope.is_surely_below(0.1), "{slope:?} KiB an event");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trend {
    points: Vec<(f64, f64)>,
}

/// Slope of a figure per unit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Slope {
    /// Slope of the least squares line through the figures.
    pub per_unit: f64,
    /// Standard error of the slope, from the scatter about the line.
    pub error: f64,
}

impl Trend {
    /// Adds a figure at a position.
    pub fn add(&mut self, at: f64, figure: f64) {
        self.points.push((at, figure));
    }

    /// Returns the later half of the figures, when caches and allocators have reached their size.
    #[must_use]
    pub fn later_half(&self) -> Self {
        Self { points: self.points[self.points.len() / 2..].to_vec() }
    }

    /// Returns the slope, or `None` for fewer than three figures or all at one position.
    pub fn slope(&self) -> Option<Slope> {
        let count = self.points.len() as f64;
        let (x, y) = self.points.iter().fold((0.0, 0.0), |(x, y), it| (x + it.0, y + it.1));
        let (x, y) = (x / count, y / count);
        let across: f64 = self.points.iter().map(|it| (it.0 - x).powi(2)).sum();
        if self.points.len() < 3 || across == 0.0 {
            return None;
        }
        let up: f64 = self.points.iter().map(|it| (it.0 - x) * (it.1 - y)).sum();
        let per_unit = up / across;
        let off = |it: &(f64, f64)| (it.1 - y - per_unit * (it.0 - x)).powi(2);
        let scatter: f64 = self.points.iter().map(off).sum();
        Some(Slope { per_unit, error: (scatter / (count - 2.0) / across).sqrt() })
    }
}

impl Slope {
    /// Returns true if the slope is below this bound by three standard errors. Figures that scatter
    /// too much return false.
    pub fn is_surely_below(&self, per_unit: f64) -> bool {
        self.per_unit + 3.0 * self.error < per_unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(figures: impl IntoIterator<Item = f64>) -> Trend {
        let points = figures.into_iter().enumerate().map(|(at, figure)| (at as f64, figure));
        Trend { points: points.collect() }
    }

    #[track_caller]
    fn check(figures: &[f64], per_unit: f64, error: f64) {
        let slope = trend(figures.iter().copied()).slope().unwrap();

        let is_near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(is_near(slope.per_unit, per_unit) && is_near(slope.error, error), "{slope:?}");
    }

    #[test]
    fn slope_is_fitted_by_least_squares_with_its_standard_error() {
        check(&[7.0, 7.0, 7.0, 7.0], 0.0, 0.0);
        check(&[1.0, 3.0, 5.0], 2.0, 0.0);
        check(&[5.0, 3.0, 1.0], -2.0, 0.0);
        // By hand: residuals 1/3, -2/3, 1/3.
        check(&[0.0, 0.0, 2.0], 1.0, (1.0_f64 / 3.0).sqrt());
    }

    #[test]
    fn too_few_figures_have_no_slope() {
        assert_eq!(trend([1.0, 2.0]).slope(), None);
        assert_eq!(Trend { points: vec![(1.0, 1.0); 9] }.slope(), None);
    }

    #[test]
    fn a_rise_is_distinguished_from_scatter() {
        let scatter = |at: usize| if at.is_multiple_of(2) { 3.0 } else { -3.0 };
        let flat = trend((0..40).map(|at| 100.0 + scatter(at)));
        let rising = trend((0..40).map(|at| 100.0 + at as f64 + scatter(at)));

        assert!(flat.slope().unwrap().is_surely_below(0.5));
        assert!(!rising.slope().unwrap().is_surely_below(0.5));
        // Too few figures to decide.
        assert!(!trend((0..4).map(scatter)).slope().unwrap().is_surely_below(0.5));
    }

    #[test]
    fn a_rise_in_the_beginning_alone_is_flat_later() {
        let filled = trend((0..40).map(|at: i32| f64::from(at.min(15))));

        assert!(!filled.slope().unwrap().is_surely_below(0.1));
        assert!(filled.later_half().slope().unwrap().is_surely_below(0.1));
    }
}
