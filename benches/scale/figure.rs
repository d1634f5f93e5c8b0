//! Figure: a distribution of samples of one unit.

pub(crate) struct Figure {
    title: String,
    unit: &'static str,
    samples: Vec<f64>,
}

impl Figure {
    pub(crate) fn new(title: impl Into<String>, unit: &'static str) -> Self {
        Self { title: title.into(), unit, samples: Vec::new() }
    }

    /// Prints a figure of one sample; returns the sample.
    pub(crate) fn one(title: impl Into<String>, unit: &'static str, sample: f64) -> f64 {
        let mut figure = Self::new(title, unit);
        figure.add(sample);
        figure.print();
        sample
    }

    pub(crate) fn add(&mut self, sample: f64) {
        self.samples.push(sample);
    }

    /// Prints the distribution; returns the least sample, which other processes of the machine
    /// disturb least.
    pub(crate) fn print(mut self) -> f64 {
        self.samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = self.samples.len().saturating_sub(1);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "an index of at most some thousands"
            )]
            let index = (last as f64 * share).ceil() as usize;
            self.samples.get(index).copied().unwrap_or(f64::NAN)
        };
        let unit = self.unit;
        if self.samples.len() == 1 {
            println!("{:<62} {:>5} {:>10.3} {unit}", self.title, 1, at(0.0));
        } else {
            println!(
                "{:<62} {:>5} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {unit}",
                self.title,
                self.samples.len(),
                at(0.0),
                at(0.5),
                at(0.9),
                at(0.99),
                at(1.0)
            );
        }
        at(0.0)
    }
}

/// Prints the title of a measurement and the head of its columns.
pub(crate) fn title(title: &str) {
    println!("\n{title}");
    println!(
        "{:<62} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "n", "min", "p50", "p90", "p99", "max"
    );
}

/// Prints the quotient of two figures.
pub(crate) fn ratio(title: &str, of: f64, to: f64) {
    println!("{title:<62} {:>5} {:>10.2} ×", "", of / to);
}

/// Converts a count; those of a bench are exact as a float.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}
