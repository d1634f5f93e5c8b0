//! Resource versions in reads and writes.

use serde_json::{Value, json};

use super::{ALL_WIDGETS, MAPS, WIDGETS, agree, agree_alone, map, widget, with_widgets};
use crate::simulated::sequence::{MERGE, Step, delete, events, get, patch, post, put};

/// Lists of three objects `a`, `b` and `c`, of which `a` was changed after version `c`.
fn lists(path: &str) -> Vec<Step> {
    let with = |query: &str| get(&format!("{path}?{query}"));
    vec![
        with(""),
        with("resourceVersion=0"),
        with("resourceVersion=1"),
        with("resourceVersion=00"),
        with("resourceVersion=-1"),
        with("resourceVersion=1.5"),
        with("resourceVersion=$version.c"),
        with("resourceVersion=$version.c&resourceVersionMatch=Exact"),
        with("resourceVersion=$version.c&resourceVersionMatch=NotOlderThan"),
        with("resourceVersion=0&resourceVersionMatch=NotOlderThan"),
        with("resourceVersion=0&resourceVersionMatch=Exact"),
        with("resourceVersionMatch=NotOlderThan"),
        with("resourceVersionMatch=Exact"),
        with("resourceVersion=$version.c&resourceVersionMatch=Nonsense"),
        with("resourceVersionMatch=Nonsense"),
        with("resourceVersion=99999999999&resourceVersionMatch=Exact"),
        with("resourceVersion=99999999999"),
        with("sendInitialEvents=true"),
        with("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        // In pages.
        with("limit=0"),
        with("limit=-1"),
        with("limit=x"),
        with("limit=3"),
        with("limit=2").keep("page"),
        with("limit=2&continue=$continue.page"),
        with("limit=1&continue=$continue.page"),
        with("continue=$continue.page"),
        with("limit=2&continue=$continue.page&resourceVersion=0"),
        with("limit=2&continue=$continue.page&resourceVersion=$version.c"),
        with("limit=2&continue=$continue.page&resourceVersionMatch=NotOlderThan"),
        with("limit=2&resourceVersion=0"),
        with("limit=2&resourceVersion=$version.c"),
        with("limit=2&resourceVersion=$version.c&resourceVersionMatch=Exact").keep("exact"),
        with("limit=2&continue=$continue.exact"),
        with("limit=2&resourceVersion=$version.c&resourceVersionMatch=NotOlderThan"),
        with("limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan"),
        with("limit=1&labelSelector=app%3Dx"),
        with("limit=1&fieldSelector=metadata.name%3Da"),
        with("limit=2&labelSelector=app"),
        with("timeoutSeconds=x"),
        with("timeoutSeconds=5"),
        // Reads of a single object.
        get(&format!("{path}/a?resourceVersion=0")),
        get(&format!("{path}/a?resourceVersion=$version.c")),
        get(&format!("{path}/a?resourceVersion=x")),
        get(&format!("{path}/a?resourceVersion=99999999999")),
    ]
}

fn watches(path: &str) -> Vec<Step> {
    let with = |query: &str| events(&format!("{path}?{query}"));
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    vec![
        with(""),
        with("resourceVersion=0"),
        with("resourceVersion=$version.c"),
        with("resourceVersion=1"),
        with("resourceVersion=x"),
        with("resourceVersion=99999999999"),
        with("limit=1"),
        with("continue=x"),
        with("resourceVersionMatch=NotOlderThan"),
        with("resourceVersionMatch=Exact"),
        with("sendInitialEvents=false"),
        with(
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=$version.c",
        ),
        with("sendInitialEvents=false&resourceVersionMatch=NotOlderThan"),
        with(initial),
        with(&format!("{initial}&allowWatchBookmarks=true")),
        with(&format!("{initial}&allowWatchBookmarks=true&resourceVersion=0")),
        with(&format!("{initial}&allowWatchBookmarks=true&resourceVersion=$version.c")),
        with(&format!("{initial}&allowWatchBookmarks=true&resourceVersion=99999999999")),
        with("sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=5"),
        with("fieldSelector=metadata.name%3Da&labelSelector=app%3Dx"),
    ]
}

#[tokio::test]
async fn a_resource_version_means_the_same_for_custom_types() {
    let mut steps: Vec<Step> = ["a", "b", "c"]
        .into_iter()
        .map(|name| post(WIDGETS, widget(name, json!({ "size": 1 }))).keep(name).brief())
        .collect();
    let label = json!({ "metadata": { "labels": { "app": "x" } } });
    steps.push(patch(MERGE, &format!("{WIDGETS}/a"), label).brief());
    steps.extend(lists(WIDGETS));
    steps.extend(watches(ALL_WIDGETS));
    let test = "versions::a_resource_version_means_the_same_for_custom_types";
    agree_alone(test, "differential-versions", with_widgets(steps)).await;
}

#[tokio::test]
async fn a_resource_version_means_the_same_for_built_in_types() {
    let mut steps: Vec<Step> = ["a", "b", "c"]
        .into_iter()
        .map(|name| post(MAPS, map(name, json!({ "k": "1" }))).keep(name).brief())
        .collect();
    let label = json!({ "metadata": { "labels": { "app": "x" } } });
    steps.push(patch(MERGE, &format!("{MAPS}/a"), label).brief());
    steps.extend(lists(MAPS));
    steps.extend(watches(MAPS));
    // The oldest available version depends on the age of the server.
    let test = "versions::a_resource_version_means_the_same_for_built_in_types";
    agree_alone(test, "differential-map-versions", steps).await;
}

#[tokio::test]
async fn a_write_is_bound_to_the_version_it_names() {
    let of = |path: &str, kind: Value| {
        let path = format!("{path}/a");
        let with = |version: &str| {
            let mut object = kind.clone();
            object["metadata"]["resourceVersion"] = version.into();
            object
        };
        vec![
            put(&path, kind.clone()),
            put(&path, with("0")),
            put(&path, with("1")),
            put(&path, with("x")),
            put(&path, with("99999999999")),
            patch(MERGE, &path, json!({ "metadata": { "resourceVersion": "1" } })),
            patch(MERGE, &path, json!({ "metadata": { "resourceVersion": "x" } })),
            patch(MERGE, &path, json!({ "metadata": { "resourceVersion": "" } })),
            patch(MERGE, &path, json!({ "metadata": { "resourceVersion": null } })),
            delete(&path, json!({ "preconditions": { "resourceVersion": "x" } })),
            delete(&path, json!({ "preconditions": { "resourceVersion": "1" } })),
            delete(&format!("{path}b"), json!({ "preconditions": { "resourceVersion": "1" } })),
        ]
    };
    let mut steps = vec![
        post(WIDGETS, widget("a", json!({ "size": 1 }))).keep("a").brief(),
        post(MAPS, map("a", json!({ "k": "1" }))).brief(),
    ];
    steps.extend(of(WIDGETS, widget("a", json!({ "size": 1 }))));
    steps.extend(of(MAPS, map("a", json!({ "k": "1" }))));
    agree("differential-bound", with_widgets(steps)).await;
}
