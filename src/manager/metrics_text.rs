//! Text of metrics for a scrape.

use std::{collections::HashMap, fmt};

use prometheus_client::{encoding::text::encode, registry::Registry};

/// Returns the metrics of a registry in the OpenMetrics format, each family once.
///
/// The encoder of the registry writes a family as often as it is registered. Two clusters register
/// the same families, with different labels.
///
/// # Errors
///
/// If a metric cannot be encoded.
pub fn metrics_text(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(merged(&text))
}

/// Moves the samples of a family that occurs again to its first occurrence.
fn merged(text: &str) -> String {
    const END: &str = "# EOF\n";
    // Comments and samples of each family, in their order.
    let mut families: Vec<(String, String)> = Vec::new();
    let mut places = HashMap::new();
    let (mut place, mut is_new) = (0, true);
    for line in text.strip_suffix(END).unwrap_or(text).split_inclusive('\n') {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split(' ').next().unwrap_or_default();
            place = *places.entry(name).or_insert(families.len());
            is_new = place == families.len();
            if is_new {
                families.push((line.to_owned(), String::new()));
            }
            continue;
        }
        let Some((comments, samples)) = families.get_mut(place) else { continue };
        match line.starts_with('#') {
            true if is_new => comments.push_str(line),
            true => {}
            false => samples.push_str(line),
        }
    }
    let families = families.into_iter().flat_map(|(comments, samples)| [comments, samples]);
    families.chain([END.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

    use super::*;

    #[test]
    fn family_of_two_clusters_is_one_and_keeps_both_their_samples() {
        let mut registry = Registry::default();
        registry.register("first", "The first", Gauge::<i64>::default());
        for cluster in ["east", "west"] {
            let registry = registry.sub_registry_with_label(("cluster".into(), cluster.into()));
            registry.register("types", "Types", Gauge::<i64>::default());
            registry.register("requests", "Requests", Counter::<u64>::default());
        }

        let expected = "# HELP first The first.\n# TYPE first gauge\nfirst 0\n\
            # HELP types Types.\n# TYPE types gauge\n\
            types{cluster=\"east\"} 0\ntypes{cluster=\"west\"} 0\n\
            # HELP requests Requests.\n# TYPE requests counter\n\
            requests_total{cluster=\"east\"} 0\nrequests_total{cluster=\"west\"} 0\n\
            # EOF\n";
        assert_eq!(metrics_text(&registry).unwrap(), expected);
    }
}
