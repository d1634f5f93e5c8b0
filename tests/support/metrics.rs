//! What the metrics of a harness say.

use prometheus_client::{encoding::text::encode, registry::Registry};

/// What a gauge says of a type: the sum of its series; none where there is none.
pub(crate) fn of_type(metrics: &Registry, name: &str, group: &str, plural: &str) -> Option<i64> {
    let labels = format!("{name}{{group=\"{group}\",resource=\"{plural}\"");
    let series = text(metrics);
    let series = series.lines().filter(|line| line.starts_with(&labels));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap()).reduce(|a, b| a + b)
}

/// Their exposition.
pub(crate) fn text(metrics: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, metrics).unwrap();
    text
}
