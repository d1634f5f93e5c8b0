//! Metrics of a harness.

use prometheus_client::{encoding::text::encode, registry::Registry};

/// Sum of a gauge's series for a type; `None` without a series.
pub(crate) fn of_type(metrics: &Registry, name: &str, group: &str, plural: &str) -> Option<i64> {
    let labels = format!("{name}{{group=\"{group}\",resource=\"{plural}\"");
    let series = text(metrics);
    let series = series.lines().filter(|line| line.starts_with(&labels));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).reduce(|a, b| a + b)
}

/// Text exposition of the metrics.
pub(crate) fn text(metrics: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, metrics).unwrap();
    text
}
