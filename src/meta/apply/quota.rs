//! Exceeded quotas: whether the old child takes the room that its replacement needs.
//!
//! A dry run of the replacement counts beside the old child, so that a full quota refuses it. The
//! refusal names the resources that are exceeded: `exceeded quota: q, requested: pods=1, used:
//! pods=5, limited: pods=5`.

use std::collections::BTreeMap;

use serde_json::Value;

/// Beginning of the text about a quota in a refusal.
const EXCEEDED: &str = "exceeded quota: ";

/// Returns whether a replacement that exceeds a quota fits in place of the old child: the quota holds
/// without the replacement, and that requests no more than the old child.
pub(super) fn fits_in_place(error: &kube::Error, created: &[u8], observed: &[u8]) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let Some((_, text)) = status.message.split_once(EXCEEDED).filter(|_| status.code == 403) else {
        return false;
    };
    let amounts = |name: &str| amounts_after(text, name);
    let (Some(requested), Some(used), Some(limited)) =
        (amounts(" requested: "), amounts(" used: "), amounts(" limited: "))
    else {
        return false;
    };
    let decoded = |object| serde_json::from_slice::<Value>(object).ok();
    let (Some(created), Some(observed)) = (decoded(created), decoded(observed)) else {
        return false;
    };
    let held = requests(&observed);
    // The refusal has what the server has added to the replacement, such as the defaults of a
    // LimitRange.
    let holds = used.iter().all(|(resource, used)| {
        let (requested, limit) = (requested.get(resource), limited.get(resource));
        let freed = held_of(&observed, &held, resource);
        requested.zip(limit).is_some_and(|(requested, limit)| {
            used - freed + requested <= *limit * (1.0 + f64::EPSILON * 8.0) && used <= limit
        })
    });
    holds && !used.is_empty() && is_counted(&observed) && requests_no_more(&created, &observed)
}

/// Returns how much of a quota's resource an object holds, by its requests and limits.
fn held_of(observed: &Value, held: &BTreeMap<String, f64>, resource: &str) -> f64 {
    let by_name = |name: &str| held.get(name).copied().unwrap_or_default();
    let is_requested = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    if is_requested {
        by_name(&format!("requests.{resource}"))
    } else if resource.starts_with("requests.") || resource.starts_with("limits.") {
        by_name(resource)
    } else if resource.ends_with("/requests.storage") {
        by_name("requests.storage")
    } else if resource == "services.nodeports" {
        let ports = observed.pointer("/spec/ports").and_then(Value::as_array);
        ports.map_or(0.0, |ports| ports.iter().map(|_| 1.0).sum())
    } else {
        // A number of objects: `pods`, `count/deployments.apps`, `services.loadbalancers`.
        1.0
    }
}

/// Returns whether quotas count an object: they leave out pods that have ended.
fn is_counted(observed: &Value) -> bool {
    let phase = observed.pointer("/status/phase").and_then(Value::as_str);
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the amounts by resource that follow a name in the text of a refusal.
fn amounts_after(text: &str, name: &str) -> Option<BTreeMap<String, f64>> {
    let (_, rest) = text.split_once(name)?;
    let list = rest.split(", ").next().unwrap_or_default();
    let amount = |pair: &str| {
        let (resource, text) = pair.split_once('=')?;
        Some((resource.to_owned(), amount(text.trim())?))
    };
    list.split(',').map(amount).collect()
}

/// Returns whether an object has the type of another one, and requests no more of any resource. The
/// type of a Service decides on its node ports and load balancers.
fn requests_no_more(created: &Value, observed: &Value) -> bool {
    let (wanted, held) = (requests(created), requests(observed));
    let is_held =
        |(resource, wanted): (&String, &f64)| held.get(resource).is_some_and(|held| wanted <= held);
    // Fields that decide which quotas count an object, and in which of their resources.
    const COUNTED_BY: [&str; 4] = [
        "/spec/type",
        "/spec/priorityClassName",
        "/spec/activeDeadlineSeconds",
        "/spec/storageClassName",
    ];
    let is_same = |field: &&str| created.pointer(field) == observed.pointer(field);
    let ports = |object: &Value| object.pointer("/spec/ports")?.as_array().map(Vec::len);
    COUNTED_BY.iter().all(is_same)
        && ports(created) == ports(observed)
        && wanted.iter().all(is_held)
}

/// Returns the sum of each resource in the requests and limits of an object.
fn requests(object: &Value) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    let mut pending = vec![object];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    match value.as_object().filter(|_| matches!(&**field, "requests" | "limits")) {
                        Some(amounts) => add(&mut sums, field, amounts),
                        None => pending.push(value),
                    }
                }
            }
            Value::Array(items) => pending.extend(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    sums
}

fn add(sums: &mut BTreeMap<String, f64>, of: &str, amounts: &serde_json::Map<String, Value>) {
    for (resource, value) in amounts {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        // An amount that cannot be read is never held.
        let amount = amount(&text).unwrap_or(f64::NAN);
        *sums.entry(format!("{of}.{resource}")).or_default() += amount;
    }
}

/// Reads a quantity as the API server writes it.
fn amount(text: &str) -> Option<f64> {
    let end = text.find(|it: char| !(it.is_ascii_digit() || matches!(it, '.' | '+' | '-')));
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0_f64.powi(2),
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        "Pi" => 1024.0_f64.powi(5),
        "Ei" => 1024.0_f64.powi(6),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            10.0_f64.powi(power)
        }
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str) -> Value {
        json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}})
    }

    #[track_caller]
    fn check(text: &str, created: Value, observed: Value, expected: bool) {
        let status = Status::failure(text, "Forbidden").with_code(403);
        let error = kube::Error::Api(status.boxed());
        let (created, observed) = (created.to_string(), observed.to_string());

        let fits = fits_in_place(&error, created.as_bytes(), observed.as_bytes());

        assert_eq!(fits, expected, "{text}: {created} for {observed}");
    }

    #[test]
    fn replacement_fits_in_place_of_a_child_that_holds_what_it_requests() {
        let full = "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, \
                    limited: pods=5";
        check(full, pod("1"), pod("1000m"), true);
        check(full, pod("500m"), pod("1"), true);
        check(full, pod("1100m"), pod("1"), false);
        check(full, pod("much"), pod("1"), false);
        check(full, json!({"data": {"a": "2"}}), json!({"data": {"a": "1"}}), true);
        let service = |kind: &str| json!({"spec": {"type": kind}});
        check(full, service("NodePort"), service("NodePort"), true);
        check(full, service("NodePort"), service("ClusterIP"), false);
        let ports = |count| json!({"spec": {"ports": vec![json!({"port": 80}); count]}});
        check(full, ports(1), ports(1), true);
        check(full, ports(2), ports(1), false);
        for (field, other) in [
            ("storageClassName", json!("gold")),
            ("priorityClassName", json!("high")),
            ("activeDeadlineSeconds", json!(5)),
        ] {
            let mut scoped = pod("1");
            scoped["spec"][field] = other;
            check(full, scoped.clone(), pod("1"), false);
            check(full, scoped.clone(), scoped, true);
        }
        let two = "pods \"a\" is forbidden: exceeded quota: q, requested: \
                   cpu=1,requests.memory=1Gi, used: cpu=1500m,requests.memory=1Gi, limited: \
                   cpu=2,requests.memory=1Gi";
        check(two, pod("1"), pod("1"), false);
        let held = json!({"spec": {"containers": [{"resources": {"requests": {
            "cpu": "1", "memory": "1Gi",
        }}}]}});
        check(two, pod("1"), held.clone(), true);
        check(two, held.clone(), held, true);
    }

    #[test]
    fn replacement_with_raised_defaults_or_of_an_ended_pod_does_not_fit() {
        let defaults = "exceeded quota: q, requested: cpu=3, used: cpu=3, limited: cpu=4";
        let bare = json!({"spec": {"containers": [{}]}});
        check(defaults, bare, pod("1"), false);
        check(defaults, pod("3"), pod("3"), true);
        let ports = json!({"spec": {"type": "NodePort", "ports": [{}, {}, {}]}});
        let nodes = "exceeded quota: q, requested: services.nodeports=3, used: \
                     services.nodeports=3, limited: services.nodeports=3";
        check(nodes, ports.clone(), ports, true);
        let claim = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let gold = "exceeded quota: q, requested: gold.storageclass.storage.k8s.io/requests.storage=2Gi, \
                    used: gold.storageclass.storage.k8s.io/requests.storage=3Gi, limited: \
                    gold.storageclass.storage.k8s.io/requests.storage=3Gi";
        check(gold, claim.clone(), claim, true);
        let full = "exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5";
        for phase in ["Succeeded", "Failed", "Running"] {
            let mut old = pod("1");
            old["status"] = json!({"phase": phase});
            check(full, pod("1"), old, phase == "Running");
        }
    }

    #[test]
    fn quota_that_is_exceeded_without_the_replacement_admits_none() {
        let text = |used: &str, limited: &str| {
            format!(
                "forbidden: exceeded quota: q, requested: pods=1, used: {used}, limited: {limited}"
            )
        };
        check(&text("pods=6", "pods=5"), pod("1"), pod("1"), false);
        check(&text("pods=5", "pods=x"), pod("1"), pod("1"), false);
        check(&text("pods=5", "cpu=5"), pod("1"), pod("1"), false);
        check(&text("", ""), pod("1"), pod("1"), false);
        check("pods is forbidden: User \"x\" cannot create resource", pod("1"), pod("1"), false);
        check("exceeded quota: q", pod("1"), pod("1"), false);
    }

    #[test]
    fn quantities_are_read_as_the_api_server_writes_them() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("500m", Some(0.5)),
            ("1Gi", Some(1_073_741_824.0)),
            ("1.5k", Some(1500.0)),
            ("2e3", Some(2000.0)),
            ("2E3", Some(2000.0)),
            ("1E", Some(1e18)),
            ("x", None),
            ("", None),
            ("1x", None),
        ] {
            assert_eq!(amount(text), expected, "{text}");
        }
    }
}
