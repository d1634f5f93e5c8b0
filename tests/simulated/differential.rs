//! Differential tests: the same requests to both servers. Where they differ, the simulation is
//! wrong.

mod aggregated;
mod apply;
mod collector;
mod discovery;
mod fields;
mod metadata;
mod names;
mod namespaces;
mod objects;
mod refusals;
mod rights;
mod types;
mod versions;
mod watches;

use serde_json::{Value, json};

use crate::support::alone;

use super::{
    sequence::{Step, get, play, post},
    side::Side,
};

const MAPS: &str = "/api/v1/namespaces/$ns/configmaps";
const WIDGETS: &str = "/apis/$group/v1/namespaces/$ns/widgets";
const ALL_WIDGETS: &str = "/apis/$group/v1/widgets";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.$group";

async fn agree(name: &str, steps: Vec<Step>) {
    let (real, simulated) = Side::both(name).await;

    let (real, simulated) = tokio::join!(play(&real, &steps), play(&simulated, &steps));

    let mut wrong = String::new();
    for (at, step) in steps.iter().enumerate() {
        let (real, simulated) = (&real[at], &simulated[at]);
        if real != simulated {
            wrong +=
                &format!("{at}. {}\n  real      {real}\n  simulated {simulated}\n", step.says());
        }
    }
    assert!(wrong.is_empty(), "the servers disagree:\n{wrong}");
}

/// Compares both servers as [`agree`] does, on a separate control plane, since the responses depend
/// on other requests to it. `test` is the test's name in its file.
async fn agree_alone(test: &str, name: &str, steps: Vec<Step>) {
    alone(&format!("simulated::differential::{test}"), agree(name, steps)).await;
}

fn widget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": name }, "spec": spec })
}

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

fn crd() -> Value {
    let version = |name: &str, served: bool, storage: bool| {
        json!({
            "name": name, "served": served, "storage": storage,
            "schema": { "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {
                            "size": { "type": "integer", "minimum": 0, "maximum": 9 },
                            "color": { "type": "string", "enum": ["red", "blue"] },
                        },
                    },
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                },
            } },
            "subresources": {
                "status": {},
                "scale": { "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size" },
            },
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.$group" },
        "spec": {
            "group": "$group", "scope": "Namespaced",
            "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [version("v1", true, true), version("v2", false, false)],
        },
    })
}

/// Prepends the creation of a served type, past the delay of creates.
fn with_widgets(steps: Vec<Step>) -> Vec<Step> {
    let mut all = vec![
        post(CRDS, crd()).brief(),
        get("/apis/$group/v1").until(200),
        get(ALL_WIDGETS).until(200),
    ];
    all.extend(steps);
    all
}
