//! Objects that exist before they are in a set.

use serde_json::json;

use super::fixture::*;
use crate::apply::Adopt;

/// ConfigMap `a` of another client, with the data `v` and these owners.
fn existing(fixture: &Fixture, data: &str, is_owned: bool) {
    let mut object = json_map("default", "a", data);
    if is_owned {
        let uid = fixture.owner().metadata.uid;
        let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid });
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    fixture.server.apply(object).unwrap();
}

#[tokio::test(start_paused = true)]
async fn existing_object_is_adopted_only_as_the_set_says() {
    for (adopt, is_owned, expected) in [
        (Adopt::Never, false, "foreign"),
        (Adopt::Unowned, false, "adopted"),
        (Adopt::Unowned, true, "foreign"),
        (Adopt::Listed([map_name("default", "b")].into()), false, "foreign"),
        (Adopt::Listed([map_name("default", "a")].into()), true, "adopted"),
    ] {
        let fixture = Fixture::new();
        existing(&fixture, "1", is_owned);

        let set = fixture.maps(&[("a", "1")]).adopt(adopt.clone());
        let outcome = fixture.apply(set).await;

        assert_eq!(verb(&outcome, "a"), expected, "{adopt:?} {is_owned}");
        let is_member = record(&fixture.map("default", "a").unwrap()).is_string();
        assert_eq!(is_member, expected == "adopted");
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_appears_between_read_and_create_is_not_taken_over() {
    let fixture = Fixture::new();
    let client = intercept(&fixture.server.clone(), |server, method, path| {
        if method == "POST" && path.ends_with("/configmaps") {
            server.apply(json_map("default", "a", "theirs")).unwrap();
        }
    });

    let applier = crate::apply::Applier::new(client, MANAGER);
    let outcome = applier.apply(fixture.maps(&[("a", "1")])).await.unwrap();

    assert_eq!(verb(&outcome, "a"), "foreign");
    let live = fixture.map("default", "a").unwrap();
    assert_eq!((&live["data"]["v"], record(&live)), (&json!("theirs"), &json!(null)));
}

#[tokio::test(start_paused = true)]
async fn adopted_object_leaves_with_the_set_and_others_stay() {
    let fixture = Fixture::new();
    existing(&fixture, "1", false);
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    drop(fixture.apply(fixture.maps(&[("b", "1")])).await);
    assert_eq!(fixture.names("default"), ["a", "b"]);

    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")]).adopt(Adopt::Unowned)).await);
    drop(fixture.apply(fixture.maps(&[("b", "1")])).await);

    assert_eq!(fixture.names("default"), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn adoption_with_another_value_is_contested_and_changes_nothing() {
    let fixture = Fixture::new();
    existing(&fixture, "theirs", false);

    let set = fixture.maps(&[("a", "ours")]).adopt(Adopt::Unowned);
    let outcome = fixture.apply(set).await;

    let expected = ["contested ConfigMap default/a: .data.v of system:script"];
    assert_eq!(lines(&outcome), expected);
    let live = fixture.map("default", "a").unwrap();
    assert_eq!((&live["data"]["v"], record(&live)), (&json!("theirs"), &json!(null)));
}

#[tokio::test(start_paused = true)]
async fn member_moves_to_another_set_that_lists_it() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    let owner = fixture.owner();
    let renamed = || crate::apply::Set::of(&owner, "renamed").object(map("default", "a", "1"));

    let listed = Adopt::Listed([map_name("default", "a")].into());
    let outcome = fixture.apply(renamed().adopt(listed)).await;

    assert_eq!(verb(&outcome, "a"), "adopted");
    drop(fixture.apply(fixture.maps(&[("b", "1")])).await);
    assert_eq!(fixture.names("default"), ["a", "b"]);
    assert_eq!(verb(&fixture.apply(renamed()).await, "a"), "unchanged");
}
