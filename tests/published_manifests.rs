//! Shapes of published manifests and hooks of Metacontroller's users: names of types, selectors, labels
//! and periods as others have written them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{
    ResourceExt,
    api::{DynamicObject, PostParams},
};
use pilotlight::{meta::api::ControllerStatus, testing::CrdBuilder};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::{Answer, SimulatedHarness, Supervised, redeclare, until};

/// Kinds and plurals: with dashes, equal to each other, with an s at the end of the kind.
const NAMES: [(&str, &str); 4] = [
    ("BlueWidget", "blue-widgets"),
    ("Series", "series"),
    ("Status", "statuses"),
    ("OrderedPods", "orderedpods"),
];

/// Types of a parent, its child and a related object, named after one pair of [`NAMES`].
struct Types {
    parent: CrdBuilder,
    child: CrdBuilder,
    related: CrdBuilder,
}

impl Types {
    fn new(group: &str, (kind, plural): (&str, &str)) -> Self {
        let named = |kind: String, plural: String| CrdBuilder::new(group, kind).plural(plural);
        Self {
            parent: named(kind.to_owned(), plural.to_owned()),
            child: named(format!("{kind}Parts"), format!("{plural}-parts")),
            related: named(format!("{kind}Axis"), format!("{plural}-axis")),
        }
    }
}

/// Key of a type in the requests of hooks.
fn key(crd: &CrdBuilder) -> String {
    let resource = crd.api_resource("v1");
    format!("{}.{}", resource.kind, resource.api_version)
}

fn resource_rule(crd: &CrdBuilder) -> Value {
    let resource = crd.api_resource("v1");
    json!({ "apiVersion": resource.api_version, "resource": resource.plural })
}

async fn runs_with_names(names: (&str, &str)) {
    let supervised = Supervised::start("published-names").await;
    let Types { parent, child, related } = Types::new(&supervised.harness.scope.group, names);
    for crd in [&parent, &child, &related] {
        supervised.install(crd).await;
    }
    let (wanted, topics) = (child.object("gear", json!({ "size": 1 })), resource_rule(&related));
    supervised.hook.answers(move |request| match request.get("children") {
        Some(_) => Answer::Json(json!({ "status": { "seen": true }, "children": [wanted] })),
        None => Answer::Json(json!({ "relatedResources": [topics] })),
    });
    let mut spec = supervised.spec(&parent);
    spec["childResources"] = json!([resource_rule(&child)]);
    spec["hooks"]["customize"] = spec["hooks"]["sync"].clone();
    supervised.declare("a", spec).await;
    supervised.harness.create(&related, "topic", 1).await;

    let uid = supervised.harness.create(&parent, "gear", 1).await;

    let (of_children, of_related) = (key(&child), key(&related));
    let complete = supervised.hook.called("with the child and the related object", |call| {
        let is_seen = |what: &str, key: &str| {
            call.body[what][key].as_object().is_some_and(|objects| objects.len() == 1)
        };
        is_seen("children", &of_children) && is_seen("related", &of_related)
    });
    complete.await;
    let children = supervised.harness.scope.api(&child, "v1");
    let owner = children.get("gear").await.unwrap().owner_references()[0].clone();
    assert_eq!((owner.kind.as_str(), owner.uid), (names.0, uid));
    let parents = supervised.harness.scope.api(&parent, "v1");
    until("the status is written", async || {
        let parent = parents.get("gear").await.map_err(|error| error.to_string())?;
        if parent.data["status"]["seen"] == true { Ok(()) } else { Err(format!("{parent:?}")) }
    })
    .await;
    supervised.end().await;
}

#[tokio::test]
async fn types_whose_names_have_dashes_or_end_in_s_are_parents_children_and_related() {
    for names in NAMES {
        runs_with_names(names).await;
    }
}

#[tokio::test]
async fn type_whose_name_ends_in_s_is_decorated_without_attachments() {
    let supervised = Supervised::decorating("published-decorator").await;
    let Types { parent: series, .. } = Types::new(&supervised.harness.scope.group, NAMES[1]);
    supervised.install(&series).await;
    supervised.hook.answers(|_| Answer::Json(json!({ "labels": { "decorated": "yes" } })));
    let spec = json!({
        "resources": [resource_rule(&series)],
        "hooks": { "sync": { "webhook": { "url": supervised.hook.url } } },
    });
    supervised.declare_decorator("a", spec).await;

    supervised.harness.create(&series, "gear", 1).await;

    let call = supervised.hook.called("for the object", |call| call.parent() == "gear").await;
    assert_eq!(call.body["attachments"], json!({}));
    let objects = supervised.harness.scope.api(&series, "v1");
    until("the object has its label", async || {
        let object = objects.get("gear").await.map_err(|error| error.to_string())?;
        let label = object.labels().get("decorated").cloned();
        if label.as_deref() == Some("yes") { Ok(()) } else { Err(format!("{object:?}")) }
    })
    .await;
    supervised.end().await;
}

/// A manifest of many years names a type in the group from which it was removed, among others.
#[tokio::test]
async fn type_that_was_removed_years_ago_is_named_with_its_present_group() {
    let supervised = Supervised::start("published-removed").await;
    let crd = supervised.harness.widgets();
    let mut spec = supervised.spec(&crd);
    let types = spec["childResources"].as_array_mut().unwrap();
    types.push(json!({ "apiVersion": "extensions/v1beta1", "resource": "ingresses" }));
    supervised.install(&crd).await;
    supervised.declare("a", spec).await;

    let named = |status: &ControllerStatus| {
        let message = status.conditions.iter().find(|it| it.type_ == "TypesReady");
        message.is_some_and(|condition| {
            condition.message.contains("ingresses.extensions/v1beta1")
                && condition.message.contains("networking.k8s.io/v1")
        })
    };
    supervised.status("a", "it names the type and its group", named).await;

    let present = json!([{ "apiVersion": "networking.k8s.io/v1", "resource": "ingresses" }]);
    supervised.edit("a", json!({ "spec": { "childResources": present } })).await;
    supervised.runs("a", 1).await;
    supervised.end().await;
}

/// Parent with the selector that its users wrote.
fn with_selector(crd: &CrdBuilder, name: &str, selector: Value) -> DynamicObject {
    crd.object(name, json!({ "size": 1, "selector": selector }))
}

#[tokio::test]
async fn children_are_selected_by_the_parent_where_no_selector_is_generated() {
    let supervised = Supervised::start("published-selector").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    supervised.hook.answers(|request| {
        let name = &request["parent"]["metadata"]["name"];
        let child = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": { "app": name, "tier": "1" } },
            "data": { "size": request["parent"]["spec"]["size"].to_string() },
        });
        Answer::Json(json!({ "children": [child] }))
    });
    let mut spec = supervised.spec(&crd);
    spec["generateSelector"] = json!(false);
    supervised.declare("a", spec).await;
    let parents = supervised.harness.scope.api(&crd, "v1");

    let expression = json!({ "key": "tier", "operator": "In", "values": ["1", "2"] });
    let both = json!({ "matchLabels": { "app": "gear" }, "matchExpressions": [expression] });
    for (name, selector) in [("gear", both), ("cam", json!({ "matchLabels": { "app": "cam" } }))] {
        let parent = with_selector(&crd, name, selector);
        parents.create(&PostParams::default(), &parent).await.unwrap();
    }

    for name in ["gear", "cam"] {
        let child = supervised.child(name, 1).await;
        assert_eq!(child.labels().len(), 2, "no label is added: {:?}", child.labels());
        let only = supervised.hook.called("with its own child", |call| {
            let children = call.body["children"]["ConfigMap.v1"].as_object();
            call.parent() == name && children.is_some_and(|children| children.len() == 1)
        });
        only.await;
    }
    supervised.end().await;
}

#[tokio::test]
async fn number_as_a_label_is_refused_by_the_server_and_named_in_a_response() {
    let supervised = Supervised::start("published-labels").await;
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    supervised.hook.answers(|request| {
        let child = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": request["parent"]["metadata"]["name"], "labels": { "v": 1 } },
        });
        Answer::Json(json!({ "children": [child] }))
    });
    supervised.declare("a", supervised.spec(&crd)).await;

    supervised.harness.create(&crd, "gear", 1).await;

    supervised.event("gear", "SyncError", "labels").await;
    let resource = crd.api_resource("v1");
    let path = format!(
        "/apis/{}/namespaces/{}/{}",
        resource.api_version, supervised.harness.scope.namespace, resource.plural
    );
    let mut parent = serde_json::to_value(crd.object("cam", json!({ "size": 1 }))).unwrap();
    parent["metadata"]["labels"] = json!({ "v": 1 });
    let body = serde_json::to_vec(&parent).unwrap();
    let request = http::Request::post(path).body(body).unwrap();
    let refused = supervised.harness.scope.client().request::<Value>(request).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 400), "{refused:?}");
    supervised.end().await;
}

#[tokio::test(start_paused = true)]
async fn thousand_parents_are_each_resynced_every_ten_seconds() {
    const PARENTS: usize = 1000;
    let harness = SimulatedHarness::start().await;
    redeclare(&harness, |spec| spec["resyncPeriodSeconds"] = json!(10)).await;
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    harness.hook.answers(move |_| {
        let counted = Arc::clone(&counted);
        async move {
            // The five workers can make 5,000 calls in a period.
            sleep(Duration::from_millis(10)).await;
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(json!({ "status": {}, "children": [] }))
        }
    });
    for number in 0..PARENTS {
        harness.parent(&format!("p{number}"), 0, "one");
    }
    while count.load(Ordering::Relaxed) < PARENTS {
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(10)).await;
    let begin = Instant::now();

    sleep(Duration::from_secs(40)).await;

    let mut last: BTreeMap<String, (usize, Instant, Duration)> = BTreeMap::new();
    for (at, name) in harness.hook.calls().into_iter().filter(|(at, _)| *at >= begin) {
        let entry = last.entry(name).or_insert((0, begin, Duration::ZERO));
        *entry = (entry.0 + 1, at, entry.2.max(at - entry.1));
    }
    assert_eq!(last.len(), PARENTS);
    let few = last.values().map(|(calls, ..)| *calls).min().unwrap();
    let many = last.values().map(|(calls, ..)| *calls).max().unwrap();
    let longest = last.values().map(|(.., longest)| *longest).max().unwrap();
    assert!(few >= 3 && many <= 5, "{few} to {many} calls in four periods");
    assert!(longest <= Duration::from_secs(12), "{longest:?} without a call");
    harness.end().await;
}
