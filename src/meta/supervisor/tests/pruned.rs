//! Declared controllers under Metacontroller's own CRDs, whose status has no fields.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use super::{
    decorator,
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

/// Lines of the fields of each type of object in `metacontroller.txt`.
type Blocks = BTreeMap<&'static str, Vec<&'static str>>;

fn blocks() -> Blocks {
    let (mut blocks, mut name) = (Blocks::new(), "");
    let lines = include_str!("../../api/crds/metacontroller.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(field) = line.strip_prefix("  ") {
            blocks.get_mut(name).unwrap().push(field);
        } else {
            name = line.split(' ').next().unwrap();
            blocks.insert(name, Vec::new());
        }
    }
    blocks
}

/// Returns the schema of a type.
fn schema(blocks: &Blocks, type_: &str) -> Value {
    match type_ {
        "string" | "boolean" | "integer" | "object" => json!({ "type": type_ }),
        "map" => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        "any" => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        block => {
            let mut schema = json!({"type": "object", "properties": {}, "required": []});
            for field in &blocks[block] {
                let words: Vec<_> = field.split_whitespace().collect();
                let (name, type_) = (words[0].trim_end_matches('!'), words[1]);
                if words[0].ends_with('!') {
                    schema["required"].as_array_mut().unwrap().push(json!(name));
                }
                schema["properties"][name] = field_schema(blocks, type_, &words[2..]);
            }
            schema
        }
    }
}

/// Returns the schema of a field, with its default and its values. Other marks refuse and prune
/// nothing.
fn field_schema(blocks: &Blocks, type_: &str, marks: &[&str]) -> Value {
    let mut value = schema(blocks, type_.trim_start_matches("[]"));
    let marked = |mark: char| marks.iter().filter_map(move |it| it.strip_prefix(mark));
    if let Some(default) = marked('=').next() {
        value["default"] = json!(default);
    }
    if marked('|').next().is_some() {
        value["enum"] = marked('|').collect();
    }
    if type_.starts_with("[]") { json!({"type": "array", "items": value}) } else { value }
}

/// Metacontroller's CRDs, whose status is an object without fields.
fn crds_of_metacontroller() -> Vec<Value> {
    let blocks = blocks();
    let crds = crds().into_iter().map(|crd| {
        let mut crd = serde_json::to_value(crd).unwrap();
        let schema = schema(&blocks, crd["spec"]["names"]["kind"].as_str().unwrap());
        let version = &mut crd["spec"]["versions"][0];
        version["schema"]["openAPIV3Schema"] = schema;
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
    let decorating = json!({
        "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
        "hooks": good()["hooks"],
    });
    decorator::declare(&harness, "c", decorating);
    decorator::running(&harness, "c").await;
    let thing = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(thing).unwrap();
    pass().await;
    let called = calls.lock().unwrap().clone();
    let called: BTreeSet<_> = called
        .iter()
        .map(|(_, request)| request["controller"]["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(called, BTreeSet::from(["a", "b", "c"]), "each controller works");

    sleep(Duration::from_secs(12 * 3600)).await;
    let half = harness.statuses_offered();
    sleep(Duration::from_secs(12 * 3600)).await;
    let offered = harness.statuses_offered();

    assert!(half < 3 * (6 + 12 + 2), "{half} writes in half a day");
    assert!(offered - half <= 3 * 12, "{} writes in half a day", offered - half);
    let log = log.text();
    let said: Vec<_> = log.lines().filter(|line| line.contains("pilotlight status")).collect();
    assert_eq!(said.len(), 1, "once for all controllers of both kinds: {log}");
    assert!(said[0].contains("INFO") && said[0].contains("Events, metrics"), "{said:?}");

    // The CRD of Pilotlight is installed at last.
    for crd in crds() {
        harness.server.install(&crd).unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    for (kind, name) in
        [("CompositeController", "a"), ("CompositeController", "b"), ("DecoratorController", "c")]
    {
        let object = harness.server.get("metacontroller.k8s.io/v1alpha1", kind, "", name);
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
