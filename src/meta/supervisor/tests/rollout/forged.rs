//! Revisions that clients forge, who know the uid of a parent.

use super::{super::finalize::events, *};
use crate::{
    kind::Scope,
    meta::{
        children::fixtures::served,
        rollout::{Revision, RevisionOwner},
    },
};

/// Reason why a revision of another namespace is ignored.
const ELSEWHERE: &str = "the revisions of this parent are in the namespace default";
/// Variant whose rollouts wait for children that are ready.
const CHECKED: Variant = Variant { has_checks: true, ..PLAIN };

impl RolloutFixture {
    /// Controller reference of the parent.
    fn owner(&self) -> Value {
        json!({
            "apiVersion": GROUP, "kind": "Widget", "name": "p", "controller": true,
            "uid": self.parent()["metadata"]["uid"],
        })
    }

    /// Returns the name of the parent's revision with this patch.
    fn revision_name(&self, patch: &Value) -> String {
        let served = served("example.com", "widgets", "Widget", Scope::Namespaced);
        let parent = self.parent();
        let uid = parent["metadata"]["uid"].as_str().unwrap();
        let owner = RevisionOwner { identity: &served.identity, uid };
        Revision::new(owner, "any".into(), patch.clone()).key.name.to_string()
    }

    /// Stores a revision that the controller has not written.
    fn forge(&self, namespace: &str, name: &str, owner: Value, content: Value) {
        let namespaced =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        self.harness.server.apply(namespaced).unwrap();
        let mut revision = json!({
            "apiVersion": REVISIONS.0, "kind": REVISIONS.1,
            "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        });
        revision.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        self.harness.server.apply(revision).unwrap();
    }

    /// Messages and counts of the Events about ignored revisions.
    fn ignored(&self) -> Vec<(String, u64)> {
        let events = self.harness.server.list("v1", "Event").unwrap();
        let events = events.iter().filter(|event| event["reason"] == "RevisionIgnored");
        let text = |event: &Value| {
            let message = event["message"].as_str().unwrap().to_owned();
            (message, event["count"].as_u64().unwrap())
        };
        events.map(text).collect()
    }
}

/// Revision with this patch, of a child that does not exist.
fn of_no_child(patch: Value) -> Value {
    json!({
        "parentPatch": patch,
        "children": [{"apiGroup": "", "kind": "Pod", "names": ["nope"]}],
    })
}

/// Revision whose patch cannot be applied.
fn unreadable() -> Value {
    of_no_child(json!({"spec": "x"}))
}

/// Revision whose patch makes a parent for which the hook fails.
fn failing() -> Value {
    of_no_child(json!({"spec": {"template": 7}}))
}

#[tokio::test(start_paused = true)]
async fn forged_revision_changes_nothing_and_is_named_once() {
    let server = SimulatedServer::new();
    let fixture = RolloutFixture::process(&server, PLAIN, None, |kind, request| {
        let is_readable = request["parent"]["spec"]["template"]["text"].is_string();
        if is_readable { PLAIN.answer(kind, request) } else { json!("no object") }
    })
    .await;
    fixture.declare();
    fixture.done("one").await;
    let mut unknown = fixture.owner();
    unknown["apiVersion"] = json!("nope/v1");
    unknown["kind"] = json!("Nope");
    fixture.forge("aaa", "far", unknown.clone(), unreadable());
    fixture.forge("aaa", "far-owned", fixture.owner(), unreadable());
    fixture.forge("aaa", "far-failing", fixture.owner(), failing());
    fixture.forge("default", "near", unknown, unreadable());
    fixture.forge("default", "near-owned", fixture.owner(), unreadable());
    fixture.forge("default", "near-failing", fixture.owner(), failing());
    let mut renamed = fixture.owner();
    renamed["name"] = json!("q");
    fixture.forge("default", "near-renamed", renamed, unreadable());

    fixture.edit(json!({"all": "yes"}));
    sleep(Duration::from_secs(5)).await;
    fixture.edit(json!({"all": "no"}));
    sleep(Duration::from_secs(5)).await;

    assert_eq!(events(&fixture.harness, "SyncError"), [""; 0]);
    let ignored = fixture.ignored();
    let of_another = "its controller reference has another group, kind or name";
    let misnamed = "its name is not that of its content";
    for (name, why) in [
        ("aaa/far", ELSEWHERE),
        ("aaa/far-owned", ELSEWHERE),
        ("aaa/far-failing", ELSEWHERE),
        ("default/near", of_another),
        ("default/near-renamed", of_another),
        ("default/near-owned", misnamed),
        ("default/near-failing", misnamed),
    ] {
        let named = format!("ControllerRevision {name} is ignored");
        let about: Vec<_> = ignored.iter().filter(|(text, _)| text.starts_with(&named)).collect();
        let [(text, count)] = &about[..] else { panic!("{name}: {ignored:#?}") };
        assert!(text.contains(why), "{text}");
        assert_eq!(*count, 1, "{name}");
    }
    assert_eq!(ignored.len(), 7);
    fixture.roll_to("two");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.texts(), ["two"; 3]);
    fixture.harness.server.remove(GROUP, "Widget", "default", "p").unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(fixture.harness.server.get(GROUP, "Widget", "default", "p").is_err(), "finalized");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn forged_revision_updates_no_child_during_a_rollout() {
    let fixture = RolloutFixture::start(CHECKED).await;
    let evil = json!({
        "parentPatch": {"spec": {"template": {"text": "evil"}}},
        "children": [{"apiGroup": "example.com", "kind": "Part", "names": ["c01", "c02"]}],
    });
    // Namespace: the only difference from a revision of the parent.
    let name = fixture.revision_name(&evil["parentPatch"]);
    fixture.forge("aaa", &name, fixture.owner(), evil.clone());
    fixture.forge("default", "evil", fixture.owner(), evil);

    fixture.roll_to("two");
    sleep(Duration::from_secs(20)).await;

    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    for _ in 0..20 {
        fixture.make_all_ready();
        sleep(Duration::from_secs(1)).await;
        assert!(!fixture.texts().contains(&"evil".to_owned()), "{:?}", fixture.texts());
    }
    let ignored = fixture.ignored();
    let named = format!("ControllerRevision aaa/{name} is ignored");
    let is_named = |text: &String| text.starts_with(&named) && text.contains(ELSEWHERE);
    assert!(ignored.iter().any(|(text, _)| is_named(text)), "{ignored:#?}");
    assert_eq!(fixture.texts(), ["two"; 3]);
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_holds_the_name_of_the_next_revision_becomes_that() {
    let mut owned = json!({
        "apiVersion": "nope/v1", "kind": "Nope", "name": "x", "uid": "other", "controller": true,
    });
    for is_of_the_parent in [false, true] {
        let fixture = RolloutFixture::start(PLAIN).await;
        fixture.roll_to("two");
        fixture.done("two").await;
        let next = fixture.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
        let name_of_two = next["metadata"]["name"].as_str().unwrap().to_owned();
        fixture.roll_to("one");
        fixture.done("one").await;
        if is_of_the_parent {
            owned["uid"] = fixture.parent()["metadata"]["uid"].clone();
        }

        fixture.forge("default", &name_of_two, owned.clone(), unreadable());
        fixture.roll_to("two");
        fixture.done("two").await;

        let next = fixture.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap().remove(0);
        assert_eq!(next["metadata"]["ownerReferences"][0]["name"], "p");
        assert_eq!(next["parentPatch"], json!({"spec": {"template": {"text": "two"}}}));
        fixture.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_hook_for_an_older_revision_names_that() {
    let server = SimulatedServer::new();
    let fixture = RolloutFixture::process(&server, CHECKED, None, |kind, request| {
        let is_broken = request["parent"]["spec"]["template"]["text"] == "one"
            && request["parent"]["spec"]["broken"] == true;
        if is_broken { json!("no object") } else { CHECKED.answer(kind, request) }
    })
    .await;
    fixture.declare();
    fixture.done("one").await;

    fixture.edit(json!({"template": {"text": "two"}, "broken": true}));
    sleep(Duration::from_secs(20)).await;

    let events = fixture.harness.server.list("v1", "Event").unwrap();
    let older = server.list(REVISIONS.0, REVISIONS.1).unwrap();
    let is_older = |it: &&Value| it["parentPatch"]["spec"]["template"]["text"] == "one";
    let older = older.iter().find(is_older).unwrap()["metadata"]["name"].as_str().unwrap();
    let named = format!("(called for ControllerRevision default/{older})");
    let is_named = |event: &Value| event["message"].as_str().unwrap().contains(&named);
    assert!(events.iter().any(is_named), "{named}: {events:#?}");
    fixture.end().await;
}
