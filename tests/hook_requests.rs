//! Requests and responses of hooks on the real API server, for each version and scope of the
//! parent.
//!
//! A file in `tests/hook_requests/` has both for the three hooks of one controller. The hook
//! answers with the responses of the file, and its requests must equal those of the file as JSON
//! values. Uids, times, resourceVersions, addresses and the name of the namespace are replaced by
//! constants. The environment variable `WRITE_REQUESTS` writes the requests of this run into the
//! files instead.
//!
//! Metacontroller 4.17.2 sent the same values in the same steps when the files were made, apart
//! from `managedFields`. The empty lists of the specification are later; Go's encoder for its types
//! leaves them out.

use std::{collections::BTreeMap, fs, path::PathBuf};

use kube::api::{DeleteParams, PostParams};
use pilotlight::testing::CrdBuilder;
use serde_json::{Value, json};

use crate::support::{Answer, Call, Supervised, constant, of_run, until};

/// Data file of a version and a scope.
struct Snapshot {
    path: PathBuf,
    text: String,
}

impl Snapshot {
    fn read(name: &str) -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let path = root.join(format!("tests/hook_requests/{name}.json"));
        let text = fs::read_to_string(&path).unwrap();
        Self { path, text }
    }

    /// Returns the response of each hook in the namespace of this run.
    fn responses(&self, supervised: &Supervised<'_>) -> BTreeMap<String, Value> {
        let hooks: BTreeMap<String, Value> =
            serde_json::from_str(&of_run(supervised, &self.text)).unwrap();
        hooks.into_iter().map(|(hook, mut both)| (hook, both["response"].take())).collect()
    }

    /// Compares the request of each hook with the file.
    fn check(&self, requests: BTreeMap<&str, Value>) {
        let wanted: Value = serde_json::from_str(&self.text).unwrap();
        let mut found = wanted.clone();
        for (hook, request) in requests {
            found[hook]["request"] = request;
        }
        if std::env::var_os("WRITE_REQUESTS").is_some() {
            fs::write(&self.path, format!("{found:#}\n")).unwrap();
            return;
        }
        assert_eq!(found, wanted, "{}: the run has {found:#}", self.path.display());
    }
}

/// Hook that a request is for: all three have one address.
fn hook_of(request: &Value) -> &'static str {
    match (request.get("children"), &request["finalizing"]) {
        (None, _) => "customize",
        (Some(_), Value::Bool(true)) => "finalize",
        (Some(_), _) => "sync",
    }
}

/// Controller with three hooks; one rule of children has no strategy.
fn spec(supervised: &Supervised<'_>, crd: &CrdBuilder, version: &str) -> Value {
    let mut spec = supervised.spec(crd);
    let mut rules = spec["childResources"].as_array().unwrap().clone();
    rules.push(json!({ "apiVersion": "networking.k8s.io/v1", "resource": "networkpolicies" }));
    if !crd.is_namespaced() {
        let api_version = "rbac.authorization.k8s.io/v1";
        rules.push(json!({ "apiVersion": api_version, "resource": "clusterroles" }));
    }
    spec["childResources"] = json!(rules);
    let webhook = spec["hooks"]["sync"]["webhook"].take();
    spec["hooks"] = match version {
        // The server adds the default version.
        "v1" => json!({
            "sync": { "webhook": webhook },
            "finalize": { "webhook": webhook },
            "customize": { "webhook": webhook },
        }),
        _ => json!({
            "sync": { "version": version, "webhook": webhook },
            "finalize": { "version": version, "webhook": webhook },
            "customize": { "version": version, "webhook": webhook },
        }),
    };
    if version == "v2" {
        spec["resyncPeriodSeconds"] = json!(3600);
        spec["parentResource"]["ignoreStatusChanges"] = json!(false);
        let webhook = spec["hooks"]["sync"]["webhook"].as_object_mut().unwrap();
        webhook.insert("timeout".to_owned(), json!("1m"));
        webhook.insert("etag".to_owned(), json!({ "enabled": false, "cacheTimeoutSeconds": 0 }));
        webhook.insert("responseUnMarshallMode".to_owned(), json!("loose"));
        let finalize = spec["hooks"]["finalize"]["webhook"].as_object_mut().unwrap();
        finalize.insert("timeout".to_owned(), json!("1500ms"));
    }
    // Empty lists, which the encoder of Go leaves out.
    spec["endpointConfigs"] = json!([]);
    spec["parentResource"]["labelSelector"] =
        json!({ "matchLabels": { "app": "gear" }, "matchExpressions": [] });
    spec
}

async fn check(version: &str, crd: impl FnOnce(CrdBuilder) -> CrdBuilder) {
    let supervised = Supervised::start(&format!("requests-{version}")).await;
    let harness = &supervised.harness;
    let crd = crd(harness.widgets());
    let scope = if crd.is_namespaced() { "namespaced" } else { "cluster" };
    let snapshot = Snapshot::read(&format!("{scope}.{version}"));
    let responses = snapshot.responses(&supervised);
    supervised.hook.answers(move |request| Answer::Json(responses[hook_of(request)].clone()));
    let settings = json!({
        "metadata": { "name": "settings", "labels": { "app": "settings" } },
        "data": { "text": "<é>&" },
        "binaryData": { "bytes": "AAEC" },
    });
    let settings = serde_json::from_value(settings).unwrap();
    supervised.config_maps().create(&PostParams::default(), &settings).await.unwrap();
    supervised.install(&crd).await;
    let parents = harness.scope.api(&crd, "v1");
    let numbers = json!({
        "size": 1, "half": 0.5, "whole": 2.0, "large": 9_007_199_254_740_993_i64,
        "huge": 1e30, "none": null, "empty": {}, "list": [null, true, "<é>&"],
    });
    let mut gear = crd.object("gear", numbers);
    gear.metadata.labels = Some([("app".to_owned(), "gear".to_owned())].into());
    parents.create(&PostParams::default(), &gear).await.unwrap();

    supervised.declare("one", spec(&supervised, &crd, version)).await;

    let of = |hook| move |call: &Call| hook_of(&call.body) == hook;
    let customize = supervised.hook.called("about related objects", of("customize")).await;
    let is_complete = |call: &Call| {
        let groups = call.body["children"].as_object().into_iter().flat_map(|it| it.values());
        let mut groups = groups.map(|group| group.as_object().map_or(0, |group| group.len()));
        of("sync")(call)
            && groups.all(|members| members > 0)
            && call.body["parent"]["status"].is_object()
    };
    let sync = supervised.hook.called("about all children and the status", is_complete).await;
    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    let finalize = supervised.hook.called("about the deleted parent", of("finalize")).await;
    until("the parent is deleted", async || match parents.get_opt("gear").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    let requests = [("customize", customize), ("sync", sync), ("finalize", finalize)];
    let found = requests.iter().map(|(hook, call)| (*hook, constant(&supervised, &call.body)));
    snapshot.check(found.collect());
    supervised.end().await;
}

#[tokio::test]
async fn requests_of_version_1_about_a_namespaced_parent() {
    check("v1", |crd| crd).await;
}

#[tokio::test]
async fn requests_of_version_2_about_a_namespaced_parent() {
    check("v2", |crd| crd).await;
}

#[tokio::test]
async fn requests_of_version_1_about_a_cluster_scoped_parent() {
    check("v1", CrdBuilder::cluster_scoped).await;
}

#[tokio::test]
async fn requests_of_version_2_about_a_cluster_scoped_parent() {
    check("v2", CrdBuilder::cluster_scoped).await;
}
