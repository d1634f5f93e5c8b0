//! Objects that cannot be decoded, and lines that are too long, in an open watch.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::sync::Semaphore;

use super::Reflector;
use crate::{
    informer::{
        InformerKey, InformerMetrics, Interests, Transform,
        decode::Decoder,
        fixture::{Fixture, widgets},
        reader::BodyBudget,
        schedule::{Scenario, explore},
        script::{Harness, OpenBody, change, names, run_until_idle, script, stored, widget},
        shared_informer::SharedInformer,
        wire::InformerRequests,
    },
    kind::VersionOrder,
};

/// Sends `bad` as the metadata of `a`, whose uid is `uid-a`, and expects an error in `field`. Later
/// events of `a` and of another object must still be applied.
async fn check(bad: &[u8], field: &str, has_name: bool) {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    let begin = br#"{"type":"MODIFIED","object":{"metadata":{"#.as_slice();
    watch.chunk(&[begin, bad, b"}}}\n"].concat());
    watch.event("MODIFIED", &widget("b", 12));

    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12), "{field}");
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]), "{field}");
    let status = harness.set.status().remove(0);
    let error = &status.quarantined[0];
    assert_eq!((error.field, status.quarantined.len()), (field, 1));
    assert_eq!(&*status.key.identity.plural, "widgets");
    assert_eq!(error.uid.as_deref(), Some("uid-a"), "{field}");
    assert_eq!(error.resource_version.as_deref(), Some("11"), "{field}");
    let name = error.key.as_ref().map(ToString::to_string);
    assert_eq!(name.as_deref(), has_name.then_some("a"), "{field}");

    watch.event("MODIFIED", &widget("a", 13));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 13), "{field}");
    assert!(harness.set.status()[0].quarantined.is_empty(), "{field}");
}

/// Returns the metadata of `a` with an additional field.
fn with(field: &str) -> Vec<u8> {
    format!(r#""name":"a","uid":"uid-a","resourceVersion":"11",{field}"#).into_bytes()
}

#[tokio::test(start_paused = true)]
async fn unreadable_object_is_reported_and_affects_no_other() {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    check(&with(r#""labels":["x"]"#), "metadata.labels", true).await;
    check(&with(&format!(r#""labels":{deep}"#)), "metadata.labels", true).await;
    check(&with(&format!(r#""labels":{{"x":{deep}}}"#)), "metadata.labels", true).await;
    check(&with(r#""generation":1e999"#), "metadata.generation", true).await;
    check(&with(r#""labels":{"x":"1"},"labels":7"#), "metadata.labels", true).await;
    let owners = vec!["7"; 100_000].join(",");
    let owners = format!(r#""ownerReferences":[{owners}]"#);
    check(&with(&owners), "metadata.ownerReferences", true).await;
    let finalizers = vec![r#""example.com/f""#; 100_000].join(",");
    check(&with(&format!(r#""finalizers":[{finalizers}]"#)), "metadata", true).await;
    let label = "x".repeat(1 << 20);
    check(&with(&format!(r#""labels":{{"x":"{label}"}}"#)), "metadata", true).await;
    let numbered = br#""name":7,"uid":"uid-a","resourceVersion":"11""#;
    check(numbered, "metadata.name", false).await;
    let twice = br#""name":"a","name":[],"uid":"uid-a","resourceVersion":"11""#;
    check(twice, "metadata.name", false).await;
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_transform_is_reported_and_affects_no_other_object() {
    let mut harness = Harness::new();
    harness.key.transform = Some(Transform::new(|object| {
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        assert!(!["11", "14"].contains(&version), "boom");
    }));
    let (mut subscription, watch) = harness.synced(&[widget("a", 1), widget("b", 2)]).await;

    watch.event("MODIFIED", &widget("a", 11));
    watch.event("MODIFIED", &widget("b", 12));

    assert_eq!(change(&mut subscription).await, ("b".into(), 2, 12));
    assert_eq!(stored(&subscription), names(&[("a", 1), ("b", 12)]));
    let quarantined = harness.set.status().remove(0).quarantined;
    let [error] = &quarantined[..] else { panic!("{quarantined:?}") };
    assert_eq!(error.to_string(), "object: transform panicked: boom");
    assert_eq!(error.key.as_ref().map(ToString::to_string).as_deref(), Some("a"));

    watch.event("MODIFIED", &widget("a", 13));
    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 13));
    assert!(harness.set.status()[0].quarantined.is_empty());
    watch.event("DELETED", &widget("a", 14));
    assert_eq!(change(&mut subscription).await, ("a".into(), 13, 0));
}

#[tokio::test]
async fn object_stays_while_its_transform_panics_and_a_subscriber_joins() {
    let schedules = explore(2, || {
        let identity = widgets().identity;
        let transform = Transform::new(|_| panic!("boom"));
        let key = InformerKey { transform: Some(transform), ..InformerKey::new(identity.clone()) };
        let informer = SharedInformer::new(key.clone(), "Widget".into(), Duration::ZERO);
        let informer = Arc::new(informer);
        let (client, _script) = script();
        let budget = BodyBudget::new(1);
        let mut reflector = Reflector::new(
            informer.clone(),
            InformerRequests::new(client, &key, Duration::ZERO, budget),
            Decoder::of(&key, &widgets()),
            Arc::default(),
            Arc::new(Semaphore::new(1)),
            Arc::new(InformerMetrics::default().join(&identity)),
            VersionOrder::Comparable,
        );
        let (json, reader) = (widget("a", 1).to_string(), informer.clone());
        let listing = move || {
            for version in 1..=2 {
                let mut scan = reflector.begin();
                reflector.listed(&json, &mut scan);
                reflector.complete(&version.to_string(), scan);
            }
        };
        Scenario {
            threads: vec![
                Box::new(listing),
                Box::new(move || drop(informer.join(Interests::everything()))),
            ],
            after: Box::new(move || {
                let is_kept = !reader.store.is_empty();
                let is_quarantined = !reader.quarantined().is_empty();
                // The object of a subscriber that was there first has never been readable.
                assert!(is_kept || is_quarantined, "the object is deleted");
            }),
        }
    });

    assert!(schedules > 5, "{schedules}");
}

/// Sends `object` at version 11: unusual, but valid.
async fn check_odd(object: &[u8]) {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    watch.chunk(br#"{"type":"MODIFIED","object":"#);
    watch.chunk(object);
    watch.chunk(b"}\n");

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
    assert!(harness.set.status()[0].quarantined.is_empty());
}

#[tokio::test(start_paused = true)]
async fn object_with_an_unusual_unused_field_is_applied() {
    let metadata = r#""name":"a","uid":"uid-a","resourceVersion":"11""#;
    let deep = format!("{}{}", r#"{"a":"#.repeat(500) + "1", "}".repeat(500));
    for spec in [deep.as_str(), "1e999", r#"{"a":1,"a":2}"#, r#""\ud800""#] {
        check_odd(format!(r#"{{"spec":{spec},"metadata":{{{metadata}}}}}"#).as_bytes()).await;
    }
    let garbled = [br#"{"metadata":{"labels":{"x":"#, b"\"\xff\xfe\"},".as_slice()].concat();
    check_odd(&[&garbled, metadata.as_bytes(), b"}}"].concat()).await;
}

#[tokio::test(start_paused = true)]
async fn object_without_a_name_is_forgotten_with_a_list_that_lacks_it() {
    let mut harness = Harness::new();
    let (subscription, watch) = harness.synced(&[widget("a", 1)]).await;
    watch.event("MODIFIED", &json!({"metadata": {"name": 7, "uid": "x", "resourceVersion": "11"}}));
    run_until_idle().await;
    assert_eq!(harness.set.status()[0].quarantined.len(), 1);

    watch.error(410, "Expired", "old");
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 1));
    stream.end_of_list(20);
    run_until_idle().await;

    assert!(harness.set.status()[0].quarantined.is_empty());
    assert_eq!(stored(&subscription), names(&[("a", 1)]));
}

#[tokio::test(start_paused = true)]
async fn object_of_twelve_mebibytes_is_applied() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    let long = "x".repeat(12 << 20);
    let object = Fixture::new("a").version(11).set("annotations", json!({"long": long})).json();
    let line = json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
    for chunk in line.as_bytes().chunks(16 << 10) {
        watch.chunk(chunk);
    }

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 11));
    assert!(subscription.store().all()[0].json().len() > 12 << 20);
}

#[tokio::test(start_paused = true)]
async fn line_of_two_hundred_mebibytes_is_cut_at_the_budget() {
    let mut harness = Harness::new();
    let (mut subscription, watch) = harness.synced(&[widget("a", 1)]).await;

    let send = async |watch: OpenBody| {
        let chunk = vec![b'x'; 1 << 20];
        let sent = async {
            for mebibytes in 1..=200 {
                watch.chunk(&chunk);
                run_until_idle().await;
                if watch.is_dropped() {
                    return mebibytes;
                }
            }
            200
        };
        // The reader buffers no more than the budget and one chunk until the line ends.
        assert_eq!(sent.await, 17);
    };
    send(watch).await;
    send(harness.script.watch(10).await.open()).await;
    let stream = harness.script.stream().await.open();
    stream.event("ADDED", &widget("a", 15));
    stream.end_of_list(20);

    assert_eq!(change(&mut subscription).await, ("a".into(), 1, 15));
}
