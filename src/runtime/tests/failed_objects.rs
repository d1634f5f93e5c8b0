//! Objects whose reconcile failed, in the status of an adopted controller.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn never<K>(_: Arc<K>, _: &Refused, _: Arc<()>) -> Action {
    Action::await_change()
}

/// Returns a harness with a running controller that fails for the object `bad` alone, and awaits its
/// change.
async fn failing_for_bad() -> Harness {
    let harness = Harness::new();
    harness.install().await;
    let adopted = adopt(&harness.cluster, [widgets()], |client, _| {
        let reconcile = |object: Arc<Widget>, _: Arc<()>| async move {
            match object.name_any().as_str() {
                "bad" => Err(Refused("no disk is left".to_owned())),
                _ => Ok(Action::await_change()),
            }
        };
        (controller(&client), reconcile, never, Arc::new(()))
    });
    harness.add(adopted).await;
    harness.state(ControllerState::Running).await;
    harness
}

impl Harness {
    fn delete(&self, name: &str) {
        self.server.remove("example.com/v1", "Widget", "default", name).unwrap();
    }

    /// Returns whether reconciles are reported as failing, and the last error.
    fn failures(&self) -> (bool, Option<String>) {
        let report = &self.status().report;
        (report.failing, report.last_error.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_failed_and_is_deleted_leaves_no_error() {
    let harness = failing_for_bad().await;
    harness.apply("good", json!({ "size": 1 }));
    run_until_idle().await;
    harness.apply("bad", json!({ "size": 1 }));
    harness.until(|it| it.report.last_error.is_some()).await;

    harness.delete("bad");
    sleep(Duration::from_secs(61)).await;

    assert_eq!(harness.failures(), (false, None));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_failed_and_is_deleted_leaves_no_error_after_the_success_of_another_one() {
    let harness = failing_for_bad().await;
    harness.apply("bad", json!({ "size": 1 }));
    harness.until(|it| it.report.last_error.is_some()).await;
    harness.apply("good", json!({ "size": 1 }));
    sleep(Duration::from_secs(300)).await;
    let shown = (false, Some("default/bad: no disk is left".to_owned()));
    assert_eq!(harness.failures(), shown, "it exists");

    harness.delete("bad");
    sleep(Duration::from_secs(61)).await;

    assert_eq!(harness.failures(), (false, None));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_whose_failing_objects_are_all_deleted_no_longer_counts_as_failing() {
    let harness = failing_for_bad().await;
    harness.apply("bad", json!({ "size": 1 }));
    harness.until(|it| it.report.failing).await;

    harness.delete("bad");
    sleep(Duration::from_secs(61)).await;

    assert_eq!(harness.failures(), (false, None));
    harness.shutdown().await;
}

/// Cluster-scoped object that owns ConfigMaps.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Tenant")]
struct TenantSpec {
    size: u32,
}

/// Returns a controller of tenants that fails while a flag is set.
fn tenants(harness: &Harness, fails: &Arc<AtomicBool>) -> AdoptedController {
    let fails = Arc::clone(fails);
    adopt(&harness.cluster, [TypeRef::of::<Tenant>()], move |client, _| {
        let maps = Api::<ConfigMap>::all(client.clone());
        let controller = Controller::new(Api::<Tenant>::all(client), watcher::Config::default())
            .owns(maps, watcher::Config::default());
        let fails = Arc::clone(&fails);
        let reconcile = move |_: Arc<Tenant>, _: Arc<()>| {
            let fails = fails.load(Ordering::SeqCst);
            async move {
                match fails {
                    true => Err(Refused("no disk is left".to_owned())),
                    false => Ok(Action::await_change()),
                }
            }
        };
        (controller, reconcile, never, Arc::new(()))
    })
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_object_has_one_name_whichever_watch_caused_its_reconcile() {
    let (harness, fails) = (Harness::new(), Arc::new(AtomicBool::new(true)));
    let crd = CrdBuilder::new("example.com", "Tenant").cluster_scoped();
    harness.server.install(&crd.build()).unwrap();
    harness.server.wait_established(&crd.name()).await;
    harness.add(tenants(&harness, &fails)).await;
    harness.state(ControllerState::Running).await;
    let tenant = json!({
        "apiVersion": "example.com/v1", "kind": "Tenant",
        "metadata": { "name": "t" }, "spec": { "size": 1 },
    });
    let tenant = harness.server.apply(tenant).unwrap();
    let change_child = |version: u32| {
        let owner = json!({
            "apiVersion": "example.com/v1", "kind": "Tenant", "name": "t",
            "uid": tenant["metadata"]["uid"], "controller": true,
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "version": version.to_string() },
            "metadata": { "name": "a", "namespace": "default", "ownerReferences": [owner] },
        });
        harness.server.apply(map).unwrap();
    };
    let error = Some("t: no disk is left".to_owned());
    harness.until(|it| it.report.last_error == error).await;

    fails.store(false, Ordering::SeqCst);
    change_child(1);
    run_until_idle().await;
    assert_eq!(harness.failures(), (false, None), "a change of the child mends it");

    fails.store(true, Ordering::SeqCst);
    for version in 2..20 {
        change_child(version);
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(harness.failures(), (true, error), "each change of the child fails");
    harness.shutdown().await;
}
