//! Proof of membership: what is deleted, and what is not.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use super::fixture::*;
use crate::{
    apply::{Applier, SET_LABEL},
    testing::simulated::SimulatedServer,
};

/// ConfigMap with the labels and annotations of a member.
fn copied(member: &Value, namespace: &str, name: &str) -> Value {
    let mut copy = json_map(namespace, name, "copy");
    for field in ["labels", "annotations"] {
        copy["metadata"][field] = member["metadata"][field].clone();
    }
    copy
}

/// Creates a copy of a member by a field manager.
async fn copy(
    server: &SimulatedServer,
    member: &Value,
    (namespace, name): (&str, &str),
    manager: &str,
) {
    let maps = ApiResource::erase::<ConfigMap>(&());
    create_as(server, &maps, copied(member, namespace, name), manager).await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_labels_and_annotations_lose_nothing_in_an_hour() {
    let fixture = Fixture::new();
    let set = |round: usize| {
        let set = fixture.maps(&[("a", "1")]).object(map("far", "b", &round.to_string()));
        if round.is_multiple_of(2) { set.object(map("default", "c", "1")) } else { set }
    };
    drop(fixture.apply(set(0)).await);
    let server = fixture.server.clone();
    let mut copier = JoinSet::new();
    copier.spawn(async move {
        for round in 0.. {
            let maps = server.list("v1", "ConfigMap").unwrap();
            let labels = |it: &Value| it["metadata"]["labels"].get(SET_LABEL).cloned();
            for (index, member) in maps.iter().filter(|it| labels(it).is_some()).enumerate().take(9)
            {
                // The field manager of the set, and another one: each proof must do alone.
                let manager = if index.is_multiple_of(2) { MANAGER } else { "copier" };
                let name = format!("copy-{round}-{index}");
                copy(&server, member, ("default", &name), manager).await;
                let name = member["metadata"]["name"].as_str().unwrap();
                copy(&server, member, ("third", name), MANAGER).await;
            }
            sleep(Duration::from_secs(97)).await;
        }
    });
    let members = ["default/c"];

    for minute in 1..=60 {
        sleep(Duration::from_secs(60)).await;
        drop(fixture.apply(set(minute)).await);
    }

    copier.shutdown().await;
    let deletions = fixture.deletions();
    assert_eq!(deletions.len(), 30, "the member c leaves each second round");
    assert!(deletions.iter().all(|it| members.contains(&it.as_str())), "{deletions:?}");
    let copies = fixture.names("default").iter().filter(|it| it.starts_with("copy")).count();
    assert!(copies > 100, "only {copies} copies");
    assert!(fixture.names("third").len() >= 2);
}

#[tokio::test(start_paused = true)]
async fn copy_under_the_name_of_a_desired_object_is_not_a_member() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    let member = fixture.map("default", "a").unwrap();
    copy(&fixture.server, &member, ("default", "b"), MANAGER).await;

    let outcome = fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await;

    assert_eq!(verb(&outcome, "b"), "foreign");
    assert_eq!(fixture.map("default", "b").unwrap()["data"]["v"], "copy");
}

#[tokio::test(start_paused = true)]
async fn record_that_another_field_manager_wrote_proves_nothing() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    // As a restore of a backup under the same uid.
    let member = fixture.map("default", "b").unwrap();
    fixture.server.remove("v1", "ConfigMap", "default", "b").unwrap();
    copy(&fixture.server, &member, ("default", "b"), "restore").await;

    let outcome = fixture.apply(fixture.maps(&[("a", "1")])).await;

    assert_eq!(verb(&outcome, "b"), "absent");
    assert_eq!(fixture.names("default"), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn sets_of_two_controllers_with_one_name_do_not_delete_from_each_other() {
    let fixture = Fixture::new();
    let other = Applier::new(fixture.server.client(), "other");
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);

    let outcome = other.apply(fixture.maps(&[("b", "1")])).await.unwrap();

    assert_eq!(lines(&outcome), ["created ConfigMap default/b"]);
    assert_eq!(fixture.names("default"), ["a", "b"]);
    drop(fixture.apply(fixture.maps(&[("c", "1")])).await);
    assert_eq!(fixture.names("default"), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn member_that_lost_its_label_gets_it_again() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    let stripped = json!({ "metadata": { "name": "a", "labels": { SET_LABEL: null } } });
    fixture.server.merge(&with_type(stripped, "v1", "ConfigMap")).unwrap();

    let outcome = fixture.apply(fixture.maps(&[("a", "1")])).await;

    assert_eq!(verb(&outcome, "a"), "updated");
    assert!(fixture.map("default", "a").unwrap()["metadata"]["labels"][SET_LABEL].is_string());
}

#[tokio::test(start_paused = true)]
async fn deletion_names_uid_and_version_and_leaves_an_object_that_changes() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    let server = fixture.server.clone();
    // A write of another client between the live read and the deletion.
    let client = intercept(&server, |server, method, path| {
        if method == "DELETE" && path.ends_with("/b") {
            let change = json!({ "metadata": { "name": "b", "labels": { "new": "x" } } });
            server.merge(&with_type(change, "v1", "ConfigMap")).unwrap();
        }
    });
    let applier = Applier::new(client, MANAGER);

    let outcome = applier.apply(fixture.maps(&[("a", "1")])).await.unwrap();

    assert_eq!(verb(&outcome, "b"), "failed");
    assert!(!outcome.is_complete());
    assert_eq!(fixture.names("default"), ["a", "b"]);
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    assert_eq!(fixture.names("default"), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn update_that_meets_another_write_is_decided_again() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    let mut is_first = true;
    let client = intercept(&fixture.server.clone(), move |server, method, path| {
        if method == "PATCH" && path.ends_with("/a") && std::mem::take(&mut is_first) {
            let change = json!({ "metadata": { "name": "a", "labels": { "new": "x" } } });
            server.merge(&with_type(change, "v1", "ConfigMap")).unwrap();
        }
    });

    let applier = Applier::new(client, MANAGER);
    let outcome = applier.apply(fixture.maps(&[("a", "2")])).await.unwrap();

    assert_eq!(verb(&outcome, "a"), "updated");
    assert_eq!(fixture.map("default", "a").unwrap()["metadata"]["labels"]["new"], "x");
}

#[tokio::test(start_paused = true)]
async fn object_that_is_deleted_during_an_update_is_created_again() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1")])).await);
    let mut is_first = true;
    let client = intercept(&fixture.server.clone(), move |server, method, path| {
        if method == "PATCH" && path.ends_with("/a") && std::mem::take(&mut is_first) {
            server.remove("v1", "ConfigMap", "default", "a").unwrap();
        }
    });

    let applier = Applier::new(client, MANAGER);
    let outcome = applier.apply(fixture.maps(&[("a", "2")])).await.unwrap();

    assert_eq!(verb(&outcome, "a"), "created");
    assert_eq!(fixture.map("default", "a").unwrap()["data"]["v"], "2");
}
