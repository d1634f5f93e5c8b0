//! Figure: a distribution of durations.

use tokio::time::Instant;

use crate::support::Harness;

pub(crate) struct Figure {
    title: String,
    // Milliseconds; negative if the controller was faster than the plain watcher.
    samples: Vec<f64>,
}

impl Figure {
    pub(crate) fn new(harness: &Harness, title: &str) -> Self {
        Self { title: format!("{}: {title}", harness.variant.word()), samples: Vec::new() }
    }

    pub(crate) fn add(&mut self, from: Instant, to: Instant) {
        let milliseconds = if to >= from {
            (to - from).as_secs_f64() * 1e3
        } else {
            -((from - to).as_secs_f64() * 1e3)
        };
        self.samples.push(milliseconds);
    }

    pub(crate) fn print(mut self) {
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
        println!(
            "{:<72} {:>4} {:>7.1}ms {:>7.1}ms {:>7.1}ms {:>7.1}ms",
            self.title,
            self.samples.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
    }
}
