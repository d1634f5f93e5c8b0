//! Node ports and addresses that the old one of two Services holds.
//!
//! The server allocates them before it validates a new Service, and refuses those that are
//! allocated (`pkg/registry/core/service/storage/alloc.go` of Kubernetes). A dry run of a
//! replacement would be refused for those of the old Service, which its deletion releases. It would
//! not show whether the rest is valid. So it omits them, and the server allocates others for the
//! dry run.

use bytes::Bytes;
use serde_json::Value;

use crate::{kind::ServedType, meta::json::go_json};

/// Address of a Service that needs none.
const HEADLESS: &str = "None";

/// Returns whether the objects of a type are Services.
pub(super) fn is_service(served: &ServedType) -> bool {
    served.identity.group.is_empty() && &*served.kind == "Service"
}

/// Returns a new Service without the node ports and addresses that the old one holds; `None` if
/// that holds none of them. Fields that the server does not allocate for its type are kept, since
/// they may be invalid.
pub(super) fn without_held(created: &[u8], observed: &[u8]) -> Option<Bytes> {
    let observed: Value = serde_json::from_slice(observed).ok()?;
    let (held_ports, held_addresses) = (ports(&observed["spec"]), addresses(&observed["spec"]));
    let mut created: Value = serde_json::from_slice(created).ok()?;
    let requested = addresses(&created["spec"]);
    let has_held_addresses = !requested.is_empty()
        && requested.iter().all(|it| *it != HEADLESS && held_addresses.contains(it));
    let spec = created.get_mut("spec")?.as_object_mut()?;
    let text = |field: Option<&Value>| field.and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, policy) = (text(spec.get("type")), text(spec.get("externalTrafficPolicy")));
    let is_held = |port: Option<&Value>| {
        port.and_then(Value::as_u64).is_some_and(|port| held_ports.contains(&port))
    };
    let mut is_reduced = false;
    if has_held_addresses && kind != "ExternalName" {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
        is_reduced = true;
    }
    if kind == "NodePort" || kind == "LoadBalancer" {
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
        let ports = ports.into_iter().flatten().filter_map(Value::as_object_mut);
        for port in ports.filter(|port| is_held(port.get("nodePort"))) {
            port.remove("nodePort");
            is_reduced = true;
        }
    }
    let checks_health = kind == "LoadBalancer" && policy == "Local";
    if checks_health && is_held(spec.get("healthCheckNodePort")) {
        spec.remove("healthCheckNodePort");
        is_reduced = true;
    }
    is_reduced.then(|| go_json::encode(&created).into())
}

/// Returns the node ports of a Service, that of its health check included.
fn ports(spec: &Value) -> Vec<u64> {
    let ports = spec["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    ports.chain([&spec["healthCheckNodePort"]]).filter_map(Value::as_u64).collect()
}

/// Returns the addresses of a Service.
fn addresses(spec: &Value) -> Vec<&str> {
    let all = spec["clusterIPs"].as_array().into_iter().flatten().chain([&spec["clusterIP"]]);
    all.filter_map(Value::as_str).filter(|address| !address.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Old Service that holds two node ports, that of its health check and two addresses.
    fn observed() -> Value {
        json!({"spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30090,
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ports": [{"port": 80, "nodePort": 30080}, {"port": 81, "nodePort": 30081}],
        }})
    }

    #[track_caller]
    fn check(created: Value, expected: Option<Value>) {
        let (created, observed) = (json!({ "spec": created }), observed().to_string());

        let reduced = without_held(created.to_string().as_bytes(), observed.as_bytes());

        let reduced = reduced.map(|body| serde_json::from_slice::<Value>(&body).unwrap());
        assert_eq!(reduced, expected.map(|spec| json!({ "spec": spec })), "{created}");
    }

    #[test]
    fn node_ports_and_addresses_that_the_old_service_holds_are_omitted() {
        check(
            json!({"type": "NodePort", "ports": [
                {"port": 8080, "nodePort": 30080}, {"port": 81, "nodePort": 30082}, {"port": 82},
            ]}),
            Some(json!({"type": "NodePort", "ports": [
                {"port": 8080}, {"port": 81, "nodePort": 30082}, {"port": 82},
            ]})),
        );
        check(
            json!({
                "type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30090,
            }),
            Some(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})),
        );
        check(json!({"clusterIP": "10.0.0.1"}), Some(json!({})));
        check(json!({"clusterIPs": ["10.0.0.1", "fd00::1"]}), Some(json!({})));
    }

    #[test]
    fn service_of_which_the_old_one_holds_nothing_is_sent_whole() {
        check(json!({"ports": [{"port": 80}]}), None);
        check(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30082}]}), None);
        check(json!({"clusterIP": "10.0.0.2"}), None);
        check(json!({"clusterIPs": ["10.0.0.1", "fd00::2"]}), None);
        let headless = json!({"spec": {"clusterIP": HEADLESS, "clusterIPs": [HEADLESS]}});
        let headless = headless.to_string();
        assert_eq!(without_held(headless.as_bytes(), headless.as_bytes()), None);
        assert_eq!(without_held(b"{}", headless.as_bytes()), None);
        assert_eq!(without_held(headless.as_bytes(), b"[]"), None);
    }

    #[test]
    fn field_that_the_type_of_the_service_does_not_allow_is_kept() {
        check(json!({"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30080}]}), None);
        check(json!({"type": "ExternalName", "clusterIP": "10.0.0.1"}), None);
        check(json!({"type": "NodePort", "healthCheckNodePort": 30090}), None);
        check(json!({"type": "LoadBalancer", "healthCheckNodePort": 30090}), None);
    }
}
