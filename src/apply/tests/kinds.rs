//! Kinds of a set: recorded, absent, forbidden, and never deleted.

use k8s_openapi::api::core::v1::Namespace;
use kube::core::ApiResource;
use serde_json::json;

use super::fixture::*;
use crate::{
    apply::{Applier, Error, Set, checked_set::CheckedSet},
    kind::{GroupKind, Scope},
    testing::simulated::AccessRule,
};

/// Kinds of the set, as the owner keeps them.
fn recorded(fixture: &Fixture) -> Vec<String> {
    let annotations = fixture.owner().metadata.annotations.unwrap_or_default();
    let Some(text) = annotations.get("kinds.pilotlight.dev/set") else { return Vec::new() };
    let kinds: Vec<crate::apply::SetKind> = serde_json::from_str(text).unwrap();
    kinds.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn kind_that_left_the_code_is_pruned_and_then_dropped() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")]).object(secret("s", "1"))).await);
    assert_eq!(recorded(&fixture), ["configmaps/v1", "secrets/v1"]);

    let outcome = fixture.apply(fixture.maps(&[("a", "1")])).await;

    assert_eq!(lines(&outcome)[1..], ["deleted Secret default/s: it left the set"]);
    assert_eq!(recorded(&fixture), ["configmaps/v1", "secrets/v1"], "not before an empty list");
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    assert_eq!(recorded(&fixture), ["configmaps/v1"]);
}

#[tokio::test(start_paused = true)]
async fn kind_is_recorded_before_its_first_object_is_created() {
    let fixture = Fixture::new();
    fixture.server.set_rbac([AccessRule::deny().verbs(["patch"]).resources(["configmaps"])]);

    let outcome = fixture.applier.apply(fixture.set().object(secret("s", "1"))).await;

    assert!(matches!(outcome, Err(Error::Owner { .. })), "{outcome:?}");
    assert!(fixture.server.list("v1", "Secret").unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn absent_type_is_pending_and_stops_no_other_object() {
    let fixture = Fixture::new();
    let set = || with_widget(fixture.set(), "w", 1).object(map("default", "a", "1"));

    let outcome = fixture.apply(set()).await;

    let expected =
        ["pending Widget.x.test default/w: its type is not served", "created ConfigMap default/a"];
    assert_eq!(lines(&outcome), expected);
    assert_eq!(outcome.pending.len(), 1);
    assert!(!outcome.is_complete());
    fixture.server.install(&widgets().build()).unwrap();
    let outcome = fixture.apply(set()).await;
    assert_eq!(lines(&outcome)[0], "created Widget.x.test default/w");
    assert!(outcome.is_complete());
}

#[tokio::test(start_paused = true)]
async fn member_whose_type_was_absent_is_pruned_when_the_type_returns() {
    let fixture = Fixture::new();
    fixture.server.install(&widgets().version("v1").build()).unwrap();
    drop(fixture.apply(with_widget(fixture.maps(&[("a", "1")]), "w", 1)).await);
    fixture.server.install(&widgets().unserved_version("v1").build()).unwrap();

    let away = fixture.apply(fixture.maps(&[("a", "2")])).await;
    let shown: Vec<_> = away.pending.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["widgets.x.test/v1"]);
    assert_eq!(lines(&away), ["updated ConfigMap default/a"]);
    fixture.server.install(&widgets().version("v1").build()).unwrap();
    let back = fixture.apply(fixture.maps(&[("a", "2")])).await;

    assert_eq!(lines(&back)[1..], ["deleted Widget.x.test default/w: it left the set"]);
    assert!(fixture.server.list("x.test/v1", "Widget").unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn member_is_pruned_though_its_version_is_served_no_longer() {
    let fixture = Fixture::new();
    let crd =
        |served: &str, unserved: &str| widgets().version(served).unserved_version(unserved).build();
    fixture.server.install(&crd("v1", "v2")).unwrap();
    drop(fixture.apply(with_widget(fixture.maps(&[("a", "1")]), "w", 1)).await);
    fixture.server.install(&crd("v2", "v1")).unwrap();

    let outcome = fixture.apply(fixture.maps(&[("a", "1")])).await;

    assert_eq!(lines(&outcome)[1..], ["deleted Widget.x.test default/w: it left the set"]);
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    assert_eq!(recorded(&fixture), ["configmaps/v1"]);
}

#[tokio::test(start_paused = true)]
async fn kind_that_cannot_be_listed_is_an_error_of_that_kind_alone() {
    let fixture = Fixture::new();
    let set = |data: &str| fixture.maps(&[("a", data)]).object(secret("s", data));
    drop(fixture.apply(set("1")).await);
    let denied = AccessRule::deny().verbs(["list"]).resources(["secrets"]).users(["system:admin"]);
    fixture.server.set_rbac([denied]);

    let outcome = fixture.apply(set("2")).await;

    let expected = [
        "updated ConfigMap default/a",
        "pending Secret default/s: the objects of its kind cannot be listed",
    ];
    assert_eq!(lines(&outcome), expected);
    let error = outcome.failed_kinds[0].to_string();
    assert!(error.starts_with("listing secrets/v1: "), "{error}");
    drop(fixture.apply(fixture.maps(&[("a", "2")])).await);
    assert!(recorded(&fixture).contains(&"secrets/v1".to_owned()), "no list, no proof");
}

#[tokio::test(start_paused = true)]
async fn set_within_a_namespace_needs_no_right_beyond_it() {
    let fixture = Fixture::new();
    let rules = [AccessRule::allow().namespaces(["default"]), AccessRule::deny().users(["narrow"])];
    fixture.server.set_rbac(rules);
    let applier = Applier::new(fixture.server.client_as("narrow"), MANAGER);
    let set = |names: &[(&str, &str)]| fixture.maps(names).within("default");

    let first = applier.apply(set(&[("a", "1"), ("b", "1")])).await.unwrap();
    let second = applier.apply(set(&[("b", "1")])).await.unwrap();

    assert!(first.is_complete() && second.is_complete());
    assert_eq!(fixture.names("default"), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn namespaces_and_crds_are_kept_unless_their_kind_is_named() {
    let fixture = Fixture::new();
    let namespace = json!({ "metadata": { "name": "made" } });
    let crd = serde_json::to_value(widgets().build()).unwrap();
    let crds = ApiResource::erase::<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    >(&());
    let both = fixture
        .maps(&[("a", "1")])
        .dynamic(&ApiResource::erase::<Namespace>(&()), Scope::Cluster, namespace)
        .dynamic(&crds, Scope::Cluster, crd);
    drop(fixture.apply(both).await);

    let kept = fixture.apply(fixture.maps(&[("a", "1")])).await;

    let expected = [
        "unchanged ConfigMap default/a",
        "kept CustomResourceDefinition.apiextensions.k8s.io widgets.x.test: its kind is never \
         deleted unless it is named",
        "kept Namespace made: its kind is never deleted unless it is named",
    ];
    let mut shown = lines(&kept);
    shown[1..].sort();
    assert_eq!(shown, expected);
    let cleared = fixture.applier.clear(fixture.set()).await.unwrap();
    assert!(fixture.server.get("v1", "Namespace", "", "made").is_ok(), "{cleared:?}");
    let kind = |group: &str, kind: &str| GroupKind { group: group.into(), kind: kind.into() };
    let named = fixture
        .set()
        .deletes(kind("", "Namespace"))
        .deletes(kind("apiextensions.k8s.io", "CustomResourceDefinition"));
    let cleared = fixture.applier.clear(named).await.unwrap();
    let deleted = lines(&cleared).iter().filter(|it| it.starts_with("deleted")).count();
    assert_eq!(deleted, 2, "{cleared:?}");
}

#[tokio::test(start_paused = true)]
async fn volume_claim_outlives_its_owner_unless_its_kind_is_named() {
    let fixture = Fixture::new();
    let claims = ApiResource::erase::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(&());
    let claim = json!({ "metadata": { "namespace": "default", "name": "data" } });
    let set = || fixture.set().dynamic(&claims, Scope::Namespaced, claim.clone());
    // The garbage collector follows these references.
    let owners = |set: Set| {
        let set = CheckedSet::of(set).unwrap();
        set.objects[0].intent["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len)
    };

    assert_eq!(owners(set()), 0);
    let kind = GroupKind { group: String::new(), kind: "PersistentVolumeClaim".into() };
    assert_eq!(owners(set().deletes(kind)), 1);
}

#[tokio::test(start_paused = true)]
async fn kinds_survive_other_writers_of_the_owner() {
    let fixture = Fixture::new();
    let mut writes = 0;
    let client = intercept(&fixture.server.clone(), move |server, method, path| {
        if method == "PATCH" && path.ends_with("/owner") && writes < 3 {
            writes += 1;
            let change =
                json!({ "metadata": { "name": "owner" }, "data": { "n": writes.to_string() } });
            server.merge(&with_type(change, "v1", "ConfigMap")).unwrap();
        }
    });

    let applier = Applier::new(client, MANAGER);
    let outcome = applier.apply(fixture.maps(&[("a", "1")])).await.unwrap();

    assert!(outcome.is_complete());
    assert_eq!(recorded(&fixture), ["configmaps/v1"]);
    assert_eq!(fixture.owner().data.unwrap()["n"], "3");
}

#[tokio::test(start_paused = true)]
async fn unreadable_and_forged_kinds_are_an_error_that_names_the_annotation() {
    let fixture = Fixture::new();
    let kind = |version: &str, plural: &str, kind: &str| json!([{ "version": version, "plural": plural, "kind": kind, "scope": "Namespaced" }]);
    let forged = [
        json!("none"),
        kind("v1", "namespaces/n/services/s:80/proxy", "X"),
        kind("v1", "secrets?x=", "X"),
        kind("../v1", "configmaps", "X"),
        // A kind that is never deleted, under another name.
        kind("v1", "persistentvolumeclaims", "X"),
        kind("v1", "configmaps", "Namespace"),
    ];
    for kinds in forged {
        let annotations = json!({ "kinds.pilotlight.dev/set": kinds.to_string() });
        let owner = json!({ "metadata": { "name": "owner", "annotations": annotations } });
        fixture.server.merge(&with_type(owner, "v1", "ConfigMap")).unwrap();

        let error = fixture.applier.apply(fixture.maps(&[("a", "1")])).await.unwrap_err();

        let expected = "the annotation kinds.pilotlight.dev/set of ConfigMap default/owner has no \
                        list of kinds: repair or remove it";
        assert_eq!(error.to_string(), expected, "{kinds}");
    }
}

#[tokio::test(start_paused = true)]
async fn members_of_many_pages_are_all_found() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..1203).map(|it| format!("m{it}")).collect();
    let set = |names: &[String]| {
        names
            .iter()
            .fold(Set::named("default", "many"), |set, name| set.object(map("far", name, "1")))
    };
    drop(fixture.apply(set(&names)).await);

    let outcome = fixture.apply(set(&names[..2])).await;

    assert!(outcome.is_complete());
    assert_eq!(fixture.names("far").len(), 2);
}
