//! Members of an owner that was deleted and created again.

use serde_json::json;

use super::fixture::*;
use crate::apply::{Error, Set};

/// Deletes the owner without its dependents, and creates it again.
fn recreate_owner(fixture: &Fixture) {
    fixture.server.remove("v1", "ConfigMap", "default", "owner").unwrap();
    fixture.create_owner();
}

#[tokio::test(start_paused = true)]
async fn namesake_of_the_owner_inherits_nothing() {
    let fixture = Fixture::new();
    let far = |fixture: &Fixture| fixture.set().object(map("far", "a", "1"));
    drop(fixture.apply(far(&fixture).object(map("far", "b", "1"))).await);
    let before = fixture.map("far", "a").unwrap();
    recreate_owner(&fixture);
    let plan = fixture.plan(far(&fixture)).await;

    let outcome = fixture.apply(far(&fixture)).await;

    let earlier = "it belonged to an earlier owner of the same kind and name";
    let expected = [
        format!("replaced ConfigMap far/a: {earlier}"),
        format!("deleted ConfigMap far/b: {earlier}"),
    ];
    assert_eq!(lines(&outcome), expected);
    assert_eq!(plan_lines(&plan), expected);
    let after = fixture.map("far", "a").unwrap();
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"], "it is a new object");
    assert_eq!(lines(&fixture.apply(far(&fixture)).await), ["unchanged ConfigMap far/a"]);
}

#[tokio::test(start_paused = true)]
async fn set_of_an_owner_that_is_gone_writes_nothing() {
    let fixture = Fixture::new();
    let earlier = fixture.owner();
    drop(fixture.apply(fixture.set().object(map("far", "a", "1"))).await);
    recreate_owner(&fixture);
    let version = fixture.server.resource_version();

    let outcome =
        fixture.applier.apply(Set::of(&earlier, "set").object(map("far", "a", "2"))).await;

    assert!(matches!(outcome, Err(Error::OwnerGone(_))), "{outcome:?}");
    assert_eq!(fixture.server.resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn object_that_a_deletion_of_the_owner_orphaned_is_left() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    // As `kubectl delete --cascade=orphan`: the garbage collector removes the reference.
    let orphaned = json!({ "metadata": { "name": "a", "ownerReferences": null } });
    fixture.server.merge(&with_type(orphaned, "v1", "ConfigMap")).unwrap();
    recreate_owner(&fixture);

    let outcome = fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await;

    assert_eq!((verb(&outcome, "a"), verb(&outcome, "b")), ("foreign", "created"));
    assert_eq!(fixture.names("default"), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn namespace_of_an_earlier_owner_is_kept() {
    let fixture = Fixture::new();
    let namespaces = kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Namespace>(&());
    let with_namespace = |fixture: &Fixture| {
        let namespace = json!({ "metadata": { "name": "made" } });
        fixture.set().dynamic(&namespaces, crate::kind::Scope::Cluster, namespace)
    };
    drop(fixture.apply(with_namespace(&fixture)).await);
    recreate_owner(&fixture);

    let outcome = fixture.apply(with_namespace(&fixture)).await;

    let expected = "foreign Namespace made: it belonged to an earlier ConfigMap default/owner, and \
                    its kind is never deleted";
    assert_eq!(lines(&outcome), [expected]);
    assert!(fixture.server.get("v1", "Namespace", "", "made").is_ok());
}

#[tokio::test(start_paused = true)]
async fn object_of_an_earlier_owner_that_a_finalizer_holds_is_pending() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.set().object(map("far", "a", "1"))).await);
    let held =
        json!({ "metadata": { "namespace": "far", "name": "a", "finalizers": ["x.test/h"] } });
    fixture.server.merge(&with_type(held, "v1", "ConfigMap")).unwrap();
    recreate_owner(&fixture);
    let set = || fixture.set().object(map("far", "a", "1"));
    let plan = fixture.plan(set()).await;

    let outcome = fixture.apply(set()).await;

    let expected = "pending ConfigMap far/a: the object that it replaces is being deleted";
    assert_eq!(lines(&outcome), [expected]);
    assert_eq!(plan_lines(&plan), [expected]);
    let again = fixture.apply(set()).await;
    assert_eq!(lines(&again), ["pending ConfigMap far/a: it is being deleted"]);
    let free = json!({ "metadata": { "namespace": "far", "name": "a", "finalizers": null } });
    fixture.server.merge(&with_type(free, "v1", "ConfigMap")).unwrap();
    assert_eq!(lines(&fixture.apply(set()).await), ["created ConfigMap far/a"]);
}
