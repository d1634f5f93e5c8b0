//! Mistakes of a set, which is then not written in part.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::fixture::*;
use crate::{apply::Set, kind::Scope};

/// Set with a JSON object as a ConfigMap.
fn with_json(set: Set, object: Value) -> Set {
    set.dynamic(&kube::core::ApiResource::erase::<ConfigMap>(&()), Scope::Namespaced, object)
}

#[tokio::test(start_paused = true)]
async fn set_with_a_mistake_is_refused_as_a_whole() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    let version = fixture.server.resource_version();
    let set = || fixture.maps(&[("a", "2")]);
    let named = |namespace: Value| json!({ "metadata": { "namespace": namespace, "name": "x" } });
    let mut labels = named("default".into());
    labels["metadata"]["labels"] = "no map".into();

    for (set, expected) in [
        (with_json(set(), json!({})), "ConfigMap: metadata.name must be set"),
        (with_json(set(), json!(1)), "ConfigMap: it is not an object"),
        (
            with_json(set(), named(Value::Null)),
            "ConfigMap x: metadata.namespace must be set: its type is namespaced",
        ),
        (
            with_json(set(), with_type(named("default".into()), "v1", "Secret")),
            "ConfigMap x: apiVersion or kind differ from its type",
        ),
        (with_json(set(), labels), "ConfigMap x: metadata has a field of a wrong type"),
        (
            set().object(map("default", "a", "1")),
            "ConfigMap default/a: the set has the object twice",
        ),
        (
            set().object(map("far", "a", "1")).within("default"),
            "ConfigMap far/a: the set is confined to another namespace",
        ),
        (
            Set::of(&fixture.owner(), "No"),
            "\"No\" is not the name of a set: use up to 40 lower-case letters, digits and dashes",
        ),
        (
            Set::of(&map("default", "owner", ""), "set"),
            "the owner has no metadata.uid: it was not read from the API server",
        ),
    ] {
        let error = fixture.applier.apply(set).await.unwrap_err();

        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(fixture.server.resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn refused_object_stops_no_other_and_deletions_follow() {
    let fixture = Fixture::new();
    drop(fixture.apply(fixture.maps(&[("a", "1"), ("b", "1")])).await);
    let mut invalid = map("default", "c", "1");
    invalid.metadata.labels = Some([("a".to_owned(), "no label".to_owned())].into());

    let outcome =
        fixture.apply(fixture.set().object(invalid).object(map("default", "a", "2"))).await;

    let verbs: Vec<_> =
        lines(&outcome).iter().map(|it| it.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(verbs, ["failed", "updated", "deleted"]);
}
