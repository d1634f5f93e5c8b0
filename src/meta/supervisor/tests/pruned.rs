//! Declared controllers under Metacontroller's own CRDs, whose status has no fields.

use std::io::Write;

use super::{
    finalize::faulty,
    responding_hook::{harness, pass},
    *,
};
use crate::testing::{Action, Reply, Rule};

/// Log lines of a test.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Captures the lines of this thread up to a level, until the guard is dropped.
    pub(super) fn capture(&self, level: tracing::Level) -> tracing::subscriber::DefaultGuard {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// CRDs whose status is an object without fields, and which have no printer columns.
fn crds_of_metacontroller() -> Vec<Value> {
    let crds = crds().into_iter().map(|crd| {
        let mut crd = serde_json::to_value(crd).unwrap();
        let version = &mut crd["spec"]["versions"][0];
        version["schema"]["openAPIV3Schema"]["properties"]["status"] = json!({"type": "object"});
        version.as_object_mut().unwrap().remove("additionalPrinterColumns");
        crd
    });
    crds.collect()
}

#[tokio::test(start_paused = true)]
async fn status_that_the_crd_does_not_keep_is_logged_once_and_written_when_the_crd_changes() {
    let log = Log::default();
    let _logging = log.capture(tracing::Level::INFO);
    let (harness, calls) = harness(|_, _| json!({"children": []})).await;
    for crd in crds_of_metacontroller() {
        harness.server.install(&serde_json::from_value(crd).unwrap()).unwrap();
    }
    for name in ["a", "b"] {
        harness.declare(name, good());
        harness.running(name, 1).await;
    }
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(thing).unwrap();
    pass().await;
    assert!(calls.lock().unwrap().len() >= 2, "each controller works");

    sleep(Duration::from_secs(12 * 3600)).await;
    let half = harness.statuses_offered();
    sleep(Duration::from_secs(12 * 3600)).await;
    let offered = harness.statuses_offered();

    assert!(half < 2 * (6 + 12 + 2), "{half} writes in half a day");
    assert!(offered - half <= 2 * 12, "{} writes in half a day", offered - half);
    let log = log.text();
    let said: Vec<_> = log.lines().filter(|line| line.contains("pilotlight status")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains("INFO") && said[0].contains("Events, metrics"), "{said:?}");

    // The CRD of Pilotlight is installed at last.
    for crd in crds() {
        harness.server.install(&crd).unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    for name in ["a", "b"] {
        let object =
            harness.server.get("metacontroller.k8s.io/v1alpha1", "CompositeController", "", name);
        assert_eq!(object.unwrap()["status"]["state"], "Running");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn status_that_was_not_found_is_written_with_the_next_change() {
    let (harness, faults) = faulty().await;
    let missing = Reply::status(404, "NotFound", "the server could not find the resource");
    faults.add(Rule::new(Action::Reply(missing)).mutating().subresource("status"));
    harness.declare("a", good());
    harness.running("a", 1).await;
    sleep(Duration::from_secs(10)).await;
    let status = || {
        let (version, kind) = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
        harness.server.get(version, kind, "", "a").unwrap()["status"].clone()
    };
    assert_eq!(status(), Value::Null);
    faults.clear();

    let paused = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": {"name": "a", "annotations": {PAUSED: "true"}}, "spec": good(),
    });
    harness.server.apply(paused).unwrap();
    sleep(Duration::from_secs(2)).await;

    assert_eq!(status()["state"], "Paused");
    harness.end().await;
}
