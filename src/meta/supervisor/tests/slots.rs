//! Worker slots of syncs: a sync that writes holds none.

use std::collections::BTreeSet;

use super::*;
use crate::testing::{Action, Faults, Rule};

/// Hook that wants one config map for each parent, and records its parents.
struct Recording(Arc<Mutex<BTreeSet<String>>>);

impl Hook for Recording {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let name = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        let answer = json!({"children": [{
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
        }]});
        self.0.lock().unwrap().insert(name);
        async move { Ok(answer.to_string().into()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn sync_that_writes_delays_no_hook_call_of_another_parent() {
    let (faults, server) = (Faults::default(), SimulatedServer::new());
    let slow = Action::Delay(Duration::from_secs(10));
    faults.add(Rule::new(slow).mutating().path_contains("/configmaps"));
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = kube::Client::new(layers.service(server.service("controller")), "default");
    let called = Arc::<Mutex<BTreeSet<String>>>::default();
    let recorded = Arc::clone(&called);
    let hooks: HookFactory = Arc::new(move |_, _| Arc::new(Recording(Arc::clone(&recorded))));
    let options = MetaOptions { workers: 1, hooks: Some(hooks), ..MetaOptions::default() };
    let harness = Harness::over(server, client, options).await;
    for name in ["a", "b", "c"] {
        let mut thing = json!({"apiVersion": "example.com/v1", "kind": "Thing"});
        thing["metadata"] = json!({"name": name});
        harness.server.apply(thing).unwrap();
    }
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);

    harness.declare("writing", spec);
    harness.running("writing", 1).await;
    sleep(Duration::from_secs(5)).await;

    assert_eq!(called.lock().unwrap().len(), 3, "while the first child is being created");
    harness.end().await;
}
