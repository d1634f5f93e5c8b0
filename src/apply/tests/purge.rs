//! Members of owners that are gone.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{Api, api::PostParams};
use serde_json::json;

use super::fixture::*;
use crate::apply::{Applier, MEMBER_ANNOTATION, SET_LABEL, Set, SetKind, membership::MemberRecord};

async fn purge(applier: &Applier) -> Vec<String> {
    let kinds = [SetKind::of::<ConfigMap>(), SetKind::of::<Namespace>(), SetKind::of::<Secret>()];
    lines(&applier.purge(&SetKind::of::<ConfigMap>(), &kinds).await)
}

#[tokio::test(start_paused = true)]
async fn members_of_lost_owners_are_purged_and_no_others() {
    let fixture = Fixture::new();
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": "made" } })).unwrap();
    let second = json_map("default", "second", "");
    let second: ConfigMap = serde_json::from_value(fixture.server.apply(second).unwrap()).unwrap();
    let of_owner = fixture.set().object(map("far", "lost", "1")).object(namespace);
    drop(fixture.apply(of_owner).await);
    drop(fixture.apply(Set::of(&second, "set").object(map("far", "held", "1"))).await);
    drop(fixture.apply(Set::named("default", "set").object(map("far", "named", "1"))).await);
    // A copy beside the lost member.
    let mut copy = json_map("third", "lost", "copy");
    for field in ["labels", "annotations"] {
        copy["metadata"][field] = fixture.map("far", "lost").unwrap()["metadata"][field].clone();
    }
    fixture.server.apply(copy).unwrap();
    assert_eq!(purge(&fixture.applier).await, [""; 0], "all owners exist");
    fixture.server.remove("v1", "ConfigMap", "default", "owner").unwrap();

    let other = Applier::new(fixture.server.client(), "other");
    assert_eq!(purge(&other).await, [""; 0], "another field manager");
    let purged = purge(&fixture.applier).await;

    let expected = ["deleted ConfigMap far/lost: the owner of its set is gone"];
    assert_eq!(purged[..1], expected);
    assert_eq!(purged.len(), 2, "a namespace is kept: {purged:?}");
    assert_eq!(fixture.names("far"), ["held", "named"]);
    assert_eq!(fixture.names("third"), ["lost"]);
    assert!(fixture.server.get("v1", "Namespace", "", "made").is_ok());
}

#[tokio::test(start_paused = true)]
async fn forged_record_with_the_uid_of_a_living_owner_purges_no_other_member() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.set().object(map("far", "b-member", "1"))).await);
    // An owner that never existed, under the uid of the living one.
    let mut forged = fixture.owner();
    forged.metadata.name = Some("invented".to_owned());
    let id = Set::of(&forged, "set").id;
    let object = map_name("far", "a-forged");
    let record = serde_json::to_string(&MemberRecord::of(&id, &object)).unwrap();
    let mut forgery = json_map("far", "a-forged", "1");
    forgery["metadata"]["labels"] = json!({ SET_LABEL: id.label() });
    forgery["metadata"]["annotations"] = json!({ MEMBER_ANNOTATION: record });
    let maps = Api::<ConfigMap>::namespaced(fixture.server.client(), "far");
    let by = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    maps.create(&by, &serde_json::from_value(forgery).unwrap()).await.unwrap();

    let purged = purge(&fixture.applier).await;

    assert_eq!(purged, ["deleted ConfigMap far/a-forged: the owner of its set is gone"]);
    assert_eq!(fixture.names("far"), ["b-member"]);
}

#[tokio::test(start_paused = true)]
async fn absent_type_of_owners_proves_no_owner_gone() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.set().object(map("far", "a", "1"))).await);
    let kinds = [SetKind::of::<ConfigMap>()];
    let mut owners = SetKind::of::<ConfigMap>();
    owners.plural = "absentmaps".to_owned();

    let outcome = fixture.applier.purge(&owners, &kinds).await;

    assert_eq!(verb_far(&outcome, "a"), "failed");
    assert_eq!(fixture.names("far"), ["a"]);
}

fn verb_far(outcome: &crate::apply::Outcome, name: &str) -> &'static str {
    outcome.of(&map_name("far", name)).map_or("absent", crate::apply::WriteResult::verb)
}
