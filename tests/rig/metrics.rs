//! What the metrics of a rig say.

use prometheus_client::{encoding::text::encode, registry::Registry};

/// Their exposition.
pub(crate) fn text(metrics: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, metrics).unwrap();
    text
}
