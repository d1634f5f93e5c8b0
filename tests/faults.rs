//! Faults between a client and the real API server.

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use pilotlight::testing::{Action, ControlPlane, Faults, Reply, Rule, TestScope, Verb};
use serde_json::{Value, json};

/// Creates a scope and a client of its ConfigMaps behind faults.
async fn faulty(name: &str) -> (TestScope, Faults, Api<ConfigMap>) {
    let plane = ControlPlane::shared();
    let scope = plane.scope(name).await.unwrap();
    let faults = Faults::default();
    let client = faults.client(plane.config()).unwrap();
    let maps = Api::namespaced(client, &scope.namespace);
    (scope, faults, maps)
}

#[tokio::test]
async fn a_refused_verb_does_not_affect_the_others() {
    let (scope, faults, maps) = faulty("refused").await;
    let refusal = Reply::status(403, "Forbidden", "configmaps is forbidden");
    let rule = Rule::new(Action::Reply(refusal)).verb(Verb::List).resource("", "configmaps");
    let rule = faults.add(rule);

    let refused = maps.list(&ListParams::default()).await.unwrap_err();
    let missing = maps.get_opt("missing").await.unwrap();

    assert!(matches!(refused, kube::Error::Api(status) if status.is_forbidden()));
    assert!(missing.is_none());
    assert_eq!(faults.hits(rule), 1);
    assert!(faults.seen().iter().all(|info| info.namespace == scope.namespace));
    faults.remove(rule);
    maps.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn kube_does_not_retry_by_itself() {
    let (_, faults, maps) = faulty("retry").await;
    let reply = Reply::status(429, "TooManyRequests", "later").retry_after(1);
    faults.add(Rule::new(Action::Reply(reply)));

    maps.list(&ListParams::default()).await.unwrap_err();

    assert_eq!(faults.seen().len(), 1);
}

#[tokio::test]
async fn an_open_watch_is_listed_and_can_be_cut() {
    let (_, faults, maps) = faulty("cut").await;
    let map = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let mut watch = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    crate::added(&mut watch).await;
    let open = faults.open();
    assert_eq!((open.len(), open[0].info.verb, open[0].answered), (1, Verb::Watch, true));

    faults.cut_open(|info| info.resource == "configmaps");

    while let Some(Ok(event)) = watch.next().await {
        assert!(matches!(event, WatchEvent::Bookmark(_)), "{event:?}");
    }
    drop(watch);
    faults.wait_until(|faults| faults.open().is_empty()).await;
}

#[tokio::test]
async fn a_watch_that_has_expired_and_one_that_hangs() {
    let (_, faults, maps) = faulty("expired").await;
    let expired = Reply::status(410, "Expired", "too old resource version");
    faults.add(Rule::new(Action::Reply(expired)).verb(Verb::Watch).times(1));
    let hang = faults.add(Rule::new(Action::Hang).verb(Verb::Watch));
    let params = WatchParams::default();

    let gone = maps.watch(&params, "1").await.err().unwrap();
    assert!(matches!(gone, kube::Error::Api(status) if status.code == 410));

    let release = async {
        faults.wait_until(|faults| faults.hits(hang) == 1).await;
        assert!(!faults.open()[0].answered);
        faults.remove(hang);
    };
    let (watch, ()) = tokio::join!(maps.watch(&params, "0"), release);
    watch.map(drop).unwrap();
}

#[tokio::test]
async fn discovery_can_be_made_partial() {
    let plane = ControlPlane::shared();
    let faults = Faults::default();
    let client = faults.client(plane.config()).unwrap();
    let without_apps = Action::edit(|answer: &mut Value| {
        let groups = answer["groups"].as_array_mut().expect("a list of groups");
        groups.retain(|group| group["name"] != "apps");
    });
    let whole = client.list_api_groups().await.unwrap().groups.len();

    faults.add(Rule::new(without_apps).path_contains("/apis"));

    assert_eq!(client.list_api_groups().await.unwrap().groups.len(), whole - 1);
}
