//! Creates, updates, deletions, and requests that are not sent.

use serde_json::json;

use super::fixture::*;
use crate::apply::{Set, WriteResult};

#[tokio::test(start_paused = true)]
async fn objects_are_created_updated_and_deleted_in_any_namespace() {
    let fixture = Fixture::new();
    let set = || fixture.set().object(map("default", "a", "1"));
    fn is_send<T: Send>(_: &T) {}
    is_send(&fixture.applier.apply(set()));

    let first = fixture.apply(set().object(map("far", "b", "1"))).await;
    let second = fixture.apply(set().object(map("far", "b", "2"))).await;
    let third = fixture.apply(set()).await;

    let created = ["created ConfigMap default/a", "created ConfigMap far/b"];
    assert_eq!(lines(&first), created);
    assert_eq!(lines(&second), ["unchanged ConfigMap default/a", "updated ConfigMap far/b"]);
    assert_eq!(
        lines(&third),
        ["unchanged ConfigMap default/a", "deleted ConfigMap far/b: it left the set"]
    );
    assert!(first.is_complete() && third.is_complete());
    assert_eq!(fixture.names("far"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn unchanged_object_costs_no_request_beyond_the_list() {
    let fixture = Fixture::new();
    let set = || fixture.maps(&[("a", "1"), ("b", "1"), ("c", "1")]);
    drop(fixture.apply(set()).await);
    fixture.requests();

    let again = fixture.apply(set()).await;

    assert_eq!(fixture.requests(), ["get configmaps owner", "list configmaps"]);
    assert!(again.objects.iter().all(|it| matches!(it.result, WriteResult::Unchanged)));
}

#[tokio::test(start_paused = true)]
async fn restarted_program_sends_one_apply_for_each_object_and_changes_none() {
    let fixture = Fixture::new();
    let set = || fixture.maps(&[("a", "1"), ("b", "1")]);
    drop(fixture.apply(set()).await);
    let version = fixture.server.resource_version();
    let restarted = Fixture {
        applier: crate::apply::Applier::new(fixture.server.client(), MANAGER),
        server: fixture.server.clone(),
    };
    restarted.requests();

    let again = restarted.apply(set()).await;

    let expected =
        ["get configmaps owner", "list configmaps", "patch configmaps a", "patch configmaps b"];
    assert_eq!(restarted.requests(), expected);
    assert_eq!(verb(&again, "a"), "unchanged");
    assert_eq!(fixture.server.resource_version(), version);
    drop(restarted.apply(set()).await);
    assert_eq!(restarted.requests(), expected[..2]);
}

#[tokio::test(start_paused = true)]
async fn field_that_left_an_object_is_removed_and_fields_of_others_stay() {
    let fixture = Fixture::new();
    let mut both = map("default", "a", "1");
    both.data.as_mut().unwrap().insert("w".to_owned(), "1".to_owned());
    drop(fixture.apply(fixture.set().object(both)).await);
    let theirs =
        json!({ "metadata": { "name": "a", "labels": { "team": "x" } }, "data": { "z": "1" } });
    fixture.server.merge(&with_type(theirs, "v1", "ConfigMap")).unwrap();

    let outcome = fixture.apply(fixture.maps(&[("a", "1")])).await;

    assert_eq!(verb(&outcome, "a"), "updated");
    let live = fixture.map("default", "a").unwrap();
    assert_eq!(live["data"], json!({ "v": "1", "z": "1" }));
    assert_eq!(live["metadata"]["labels"]["team"], "x");
}

#[tokio::test(start_paused = true)]
async fn members_in_reach_of_the_owner_are_deleted_with_it() {
    let fixture = Fixture::new();
    let set = fixture.maps(&[("a", "1")]).object(map("far", "b", "1")).controlled();
    drop(fixture.apply(set).await);
    let owners = |namespace, name| {
        let owners = &fixture.map(namespace, name).unwrap()["metadata"]["ownerReferences"];
        owners.clone()
    };
    let uid = fixture.owner().metadata.uid;
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": true });
    assert_eq!(owners("default", "a"), json!([owner]));
    assert_eq!(owners("far", "b"), json!(null), "the garbage collector would not find the owner");

    fixture.server.remove("v1", "ConfigMap", "default", "owner").unwrap();

    assert_eq!(fixture.map("default", "a"), None);
    assert_eq!(fixture.names("far"), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_objects_are_members_too() {
    let fixture = Fixture::new();
    let namespace = |name: &str| {
        let namespace = json!({ "metadata": { "name": name } });
        serde_json::from_value::<k8s_openapi::api::core::v1::Namespace>(namespace).unwrap()
    };

    let set = fixture.set().object(map("made", "a", "1")).object(namespace("made"));
    let outcome = fixture.apply(set).await;

    let expected = ["created Namespace made", "created ConfigMap made/a"];
    assert_eq!(lines(&outcome), expected, "a namespace is created before its objects");
}

#[tokio::test(start_paused = true)]
async fn empty_set_is_an_error_and_a_clear_deletes_all_members() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);

    let empty = fixture.applier.apply(fixture.set()).await;
    assert!(matches!(empty, Err(crate::apply::Error::Empty)));
    assert_eq!(fixture.names("default"), ["a", "b"]);
    let cleared = fixture.applier.clear(fixture.maps(&[("a", "1")])).await.unwrap();

    assert!(cleared.is_complete());
    assert_eq!(fixture.names("default"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn empty_set_deletes_its_members_while_the_owner_is_being_deleted() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.set().object(map("far", "a", "1"))).await);
    let held = json!({ "metadata": { "name": "owner", "finalizers": ["x.test/held"] } });
    fixture.server.merge(&with_type(held, "v1", "ConfigMap")).unwrap();
    fixture.server.remove("v1", "ConfigMap", "default", "owner").unwrap();

    let outcome = fixture.apply(fixture.set()).await;

    assert_eq!(lines(&outcome), ["deleted ConfigMap far/a: it left the set"]);
}

#[tokio::test(start_paused = true)]
async fn named_set_keeps_its_kinds_in_a_config_map() {
    let fixture = Fixture::new();
    let set = || Set::named("default", "tools");
    let both = set().object(map("far", "a", "1")).object(secret("s", "1"));
    drop(fixture.apply(both).await);
    let holder = fixture.map("default", "pilotlight-set-tools").unwrap();
    let kinds = holder["metadata"]["annotations"]["kinds.pilotlight.dev/tools"].as_str().unwrap();
    assert!(kinds.contains("secrets") && kinds.contains("configmaps"), "{kinds}");

    let outcome = fixture.apply(set().object(map("far", "a", "1"))).await;

    let expected = ["unchanged ConfigMap far/a", "deleted Secret default/s: it left the set"];
    assert_eq!(lines(&outcome), expected);
    drop(fixture.applier.clear(set()).await.unwrap());
    drop(fixture.applier.clear(set()).await.unwrap());
    assert_eq!(fixture.names("far"), [""; 0]);
    assert_eq!(fixture.map("default", "pilotlight-set-tools"), None);
}

#[tokio::test(start_paused = true)]
async fn two_sets_of_one_owner_are_apart() {
    let fixture = Fixture::new();
    let other = || Set::of(&fixture.owner(), "other");
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    drop(fixture.apply(other().object(map("default", "b", "1"))).await);

    let taken = fixture.apply(fixture.maps(&[("b", "2")])).await;

    let expected = [
        "foreign ConfigMap default/b: it is a member of the set other of ConfigMap default/owner",
        "deleted ConfigMap default/a: it left the set",
    ];
    assert_eq!(lines(&taken), expected);
    assert_eq!(fixture.names("default"), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn plan_shows_each_change_and_writes_nothing() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1"), ("c", "1")])).await);
    let version = fixture.server.resource_version();
    let set = || fixture.maps(&[("a", "1"), ("b", "2"), ("d", "1")]);

    let plan = fixture.plan(set()).await;

    let expected = [
        "unchanged ConfigMap default/a",
        "updated ConfigMap default/b",
        "  .data.v: \"1\" -> \"2\"",
        "created ConfigMap default/d",
        "deleted ConfigMap default/c: it left the set",
    ];
    assert_eq!(plan_lines(&plan), expected);
    assert!(!plan.is_empty());
    assert_eq!(fixture.server.resource_version(), version);
    let outcome = fixture.apply(set()).await;
    let planned: Vec<_> = expected.into_iter().filter(|it| !it.starts_with(' ')).collect();
    assert_eq!(lines(&outcome), planned);
    assert!(fixture.plan(set()).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn plan_of_a_namespace_and_its_objects_needs_no_dry_run() {
    let fixture = Fixture::new();
    let namespace = with_type(json!({ "metadata": { "name": "made" } }), "v1", "Namespace");
    let namespaces = kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Namespace>(&());
    let set = |fixture: &Fixture| {
        let set = fixture.set().object(map("made", "a", "1"));
        set.dynamic(&namespaces, crate::kind::Scope::Cluster, namespace.clone())
    };

    let plan = fixture.plan(set(&fixture)).await;

    let expected = ["created Namespace made", "created ConfigMap made/a"];
    assert_eq!(plan_lines(&plan), expected);
    assert_eq!(lines(&fixture.apply(set(&fixture)).await), expected);
}

#[tokio::test(start_paused = true)]
async fn plan_and_errors_hide_the_values_of_secrets() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.set().object(secret("s", "hush"))).await);

    let plan = fixture.plan(fixture.set().object(secret("s", "quiet"))).await;

    let shown = format!("{plan} {plan:?}");
    assert!(shown.contains("(value of a Secret)"), "{shown}");
    for value in ["hush", "quiet", "aHVzaA", "cXVpZXQ"] {
        assert!(!shown.contains(value), "{shown}");
    }
}
