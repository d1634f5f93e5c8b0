//! Conflicts between the names of two CRDs.

use serde_json::{Value, json};

use super::{CRDS, agree, discovery};
use crate::simulated::sequence::{MERGE, Step, Wanted, delete, events, get, patch, post};

fn crd(plural: &str, names: Value) -> Value {
    let mut names = names;
    names["plural"] = plural.into();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.$group") },
        "spec": {
            "group": "$group", "scope": "Namespaced", "names": names,
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    })
}

fn path(plural: &str) -> String {
    format!("{CRDS}/{plural}.$group")
}

fn reason<'a>(crd: &'a Value, kind: &str) -> &'a str {
    let conditions = crd["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|it| it["type"] == kind);
    found.and_then(|it| it["reason"].as_str()).unwrap_or_default()
}

fn status(plural: &str, wanted: Wanted) -> Step {
    get(&path(plural)).settled(wanted).only(|crd, _| crd["status"].clone())
}

fn gears(list: &Value) -> &Value {
    let mut all = list["resources"].as_array().into_iter().flatten();
    all.find(|it| it["name"] == "gears").unwrap_or(&Value::Null)
}

fn is_established(crd: &Value, _: &str) -> bool {
    reason(crd, "Established") == "InitialNamesAccepted"
        && reason(crd, "NamesAccepted") == "NoConflicts"
}

fn conflicts(crd: &Value, _: &str) -> bool {
    reason(crd, "NamesAccepted").ends_with("Conflict")
}

#[tokio::test]
async fn a_taken_name_is_refused_until_its_holder_is_deleted() {
    let widgets = crd(
        "widgets",
        json!({
        "kind": "Widget", "singular": "widget", "shortNames": ["wd", "wdg"] }),
    );
    let many =
        json!({ "kind": "Widget", "singular": "wd", "shortNames": ["widget", "wdg", "free"] });
    agree(
        "differential-names",
        vec![
            post(CRDS, widgets).brief(),
            status("widgets", is_established),
            // A conflict in a single name each.
            post(CRDS, crd("wd", json!({ "kind": "Wd" }))).brief(),
            status("wd", conflicts),
            post(CRDS, crd("gears", json!({ "kind": "Gear", "singular": "widget" }))).brief(),
            status("gears", conflicts),
            post(
                CRDS,
                crd(
                    "wheels",
                    json!({ "kind": "Widget", "singular": "wheel", "listKind": "WheelList" }),
                ),
            )
            .brief(),
            status("wheels", conflicts),
            post(CRDS, crd("cogs", json!({ "kind": "Cog", "listKind": "WidgetList" }))).brief(),
            status("cogs", conflicts),
            post(CRDS, crd("bolts", json!({ "kind": "Bolt", "shortNames": ["b", "wdg"] }))).brief(),
            status("bolts", conflicts),
            // Several names.
            post(CRDS, crd("nuts", many)).brief(),
            status("nuts", conflicts),
            get("/apis/$group/v1/wheels"),
            get("/apis/$group/v1/namespaces/$ns/bolts/a"),
            get("/apis/$group/v1").only(discovery::sorted),
            delete(&path("nuts"), Value::Null).only(|crd, _| crd["status"]["conditions"].clone()),
            get(&path("nuts")).until(404),
            get(&path("nuts")),
            // The holder releases one of its names.
            patch(
                MERGE,
                &path("widgets"),
                json!({ "spec": { "names": { "shortNames": ["wd"] } } }),
            )
            .brief(),
            status("bolts", is_established),
            status("widgets", is_established),
            status("wd", conflicts),
            status("gears", conflicts),
            // The holder is deleted.
            delete(&path("widgets"), Value::Null).brief(),
            get(&path("widgets")).until(404),
            status("wd", is_established),
            status("gears", is_established),
            status("wheels", is_established),
            status("cogs", is_established),
            get("/apis/$group/v1/wheels").until(200),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_established_type_that_wants_a_taken_name_keeps_its_own() {
    agree(
        "differential-renamed",
        vec![
            post(CRDS, crd("widgets", json!({ "kind": "Widget", "shortNames": ["wd"] }))).brief(),
            status("widgets", is_established),
            post(CRDS, crd("gears", json!({ "kind": "Gear", "shortNames": ["g"] }))).brief(),
            status("gears", is_established),
            get("/apis/$group/v1/gears").until(200),
            patch(
                MERGE,
                &path("gears"),
                json!({ "spec": { "names": {
                "shortNames": ["g", "wd"], "categories": ["all"] } } }),
            )
            .keep("gears")
            .brief(),
            status("gears", conflicts),
            get("/apis/$group/v1/gears").until(200),
            get("/apis/$group/v1")
                .settled(|list, _| gears(list)["categories"].is_array())
                .only(discovery::sorted),
            patch(MERGE, &path("gears"), json!({ "spec": { "names": { "kind": "Widget" } } }))
                .brief(),
            patch(MERGE, &path("gears"), json!({ "spec": { "names": { "singular": "widget" } } }))
                .brief(),
            status("gears", |crd, _| reason(crd, "NamesAccepted") == "ShortNamesConflict"),
            patch(
                MERGE,
                &path("gears"),
                json!({ "spec": { "names": {
                "kind": "Gear", "singular": "gear", "shortNames": null } } }),
            )
            .brief(),
            status("gears", is_established),
            get("/apis/$group/v1")
                .settled(|list, _| gears(list)["shortNames"].is_null())
                .only(discovery::sorted),
            events(&format!(
                "{CRDS}?resourceVersion=$version.gears&fieldSelector=metadata.name%3Dnone"
            )),
        ],
    )
    .await;
}
