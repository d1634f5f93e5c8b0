//! Discovery.

use serde_json::{Value, json};

use super::{CRDS, agree, crd};
use crate::simulated::sequence::{MERGE, Step, delete, get, patch, post};

pub(super) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Selects the groups of the test.
pub(super) fn ours(list: Value, group: &str) -> Value {
    let items = list["items"].as_array().into_iter().flatten();
    let is_ours =
        |item: &&Value| item["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(group));
    let items: Vec<_> = items.filter(is_ours).cloned().collect();
    json!({ "kind": list["kind"], "apiVersion": list["apiVersion"], "items": items })
}

/// Selects the groups of the test in the unaggregated list.
pub(super) fn legacy(list: Value, group: &str) -> Value {
    let groups = list["groups"].as_array().into_iter().flatten();
    let is_ours = |item: &&Value| item["name"].as_str().is_some_and(|name| name.ends_with(group));
    let groups: Vec<_> = groups.filter(is_ours).cloned().collect();
    json!({ "kind": list["kind"], "apiVersion": list["apiVersion"], "groups": groups })
}

fn item<'a>(list: &'a Value, group: &str) -> Option<&'a Value> {
    list["items"].as_array()?.iter().find(|item| item["metadata"]["name"] == group)
}

pub(super) fn is_stale(list: &Value, group: &str) -> bool {
    item(list, group).is_some_and(|it| it["versions"][0]["freshness"] == "Stale")
}

pub(super) fn is_gone(list: &Value, group: &str) -> bool {
    item(list, group).is_none()
}

/// Sorts the types of a version, which have no fixed order.
pub(super) fn sorted(mut list: Value, _: &str) -> Value {
    if let Some(types) = list["resources"].as_array_mut() {
        types.sort_by_key(|it| it["name"].to_string());
    }
    list
}

/// Groups that both servers have, in their order.
const SHARED: [&str; 9] = [
    "apps",
    "authorization.k8s.io",
    "batch",
    "coordination.k8s.io",
    "events.k8s.io",
    "rbac.authorization.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "",
];

fn order(list: Value, group: &str) -> Value {
    let named = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
    let items = list["items"].as_array().into_iter().flatten().map(named);
    let legacy = list["groups"].as_array().into_iter().flatten();
    let legacy = legacy.map(|item| item["name"].as_str().map(str::to_owned));
    let names = items.chain(legacy).map(Option::unwrap_or_default);
    names.filter(|name| SHARED.contains(&name.as_str()) || name.ends_with(group)).collect()
}

/// Selects the types that both servers have, in their order.
fn shared_types(list: Value, _: &str) -> Value {
    let all = list["resources"].as_array().into_iter().flatten();
    let known = [
        "configmaps",
        "namespaces",
        "namespaces/status",
        "customresourcedefinitions",
        "customresourcedefinitions/status",
        "leases",
        "deployments",
        "deployments/scale",
        "deployments/status",
        "apiservices",
        "apiservices/status",
        "services",
        "clusterroles",
    ];
    let all = all.filter(|it| it["name"].as_str().is_some_and(|name| known.contains(&name)));
    let all: Vec<_> = all.cloned().collect();
    json!({ "kind": list["kind"], "apiVersion": list["apiVersion"],
        "groupVersion": list["groupVersion"], "resources": all })
}

/// Several versions: the middle one has subresources and the last is not served.
fn widgets() -> Value {
    let mut crd = crd();
    let version = |name: &str, served: bool, storage: bool, subresources: Value| {
        let mut version = crd["spec"]["versions"][0].clone();
        version["name"] = name.into();
        version["served"] = served.into();
        version["storage"] = storage.into();
        version["subresources"] = subresources;
        version
    };
    let status = json!({ "status": {} });
    let versions = json!([
        version("v2alpha1", true, false, Value::Null),
        version("v1", true, true, crd["spec"]["versions"][0]["subresources"].clone()),
        version("v1beta2", true, false, status),
        version("v10", false, false, Value::Null),
        version("other", true, false, Value::Null),
    ]);
    crd["spec"]["versions"] = versions;
    crd["spec"]["names"] = json!({
        "plural": "widgets", "kind": "Widget", "shortNames": ["wdg", "wd"],
        "categories": ["things", "all"],
    });
    crd
}

fn plain(plural: &str, kind: &str, group: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope, "names": { "plural": plural, "kind": kind },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    })
}

fn is_complete(list: &Value, group: &str) -> bool {
    let has = |group: &str, versions: usize, types: usize| {
        let found = item(list, group).and_then(|it| it["versions"].as_array());
        found.is_some_and(|it| {
            it.len() == versions
                && it[0]["resources"].as_array().is_some_and(|it| it.len() == types)
        })
    };
    has(group, 4, 2) && has(&format!("z.{group}"), 1, 1) && has(&format!("a.{group}"), 1, 1)
}

fn installed() -> Vec<Step> {
    vec![
        post(CRDS, widgets()).brief(),
        post(CRDS, plain("gears", "Gear", "$group", "Cluster")).brief(),
        post(CRDS, plain("zebras", "Zebra", "z.$group", "Namespaced")).brief(),
        post(CRDS, plain("apples", "Apple", "a.$group", "Namespaced")).brief(),
        get("/apis").accept(V2).settled(is_complete).only(ours),
    ]
}

#[tokio::test]
async fn discovery_has_the_same_content_in_each_form() {
    let mut steps = installed();
    steps.extend([
        get("/apis").only(legacy),
        get("/apis").only(order),
        get("/apis").accept(V2).only(order),
        get("/api"),
        get("/api").accept(V2).only(|list, _| list["items"][0]["metadata"].clone()),
        get("/apis/$group"),
        get("/apis/z.$group"),
        get("/apis/$group/v1").only(sorted),
        get("/apis/$group/v2alpha1").only(sorted),
        get("/apis/$group/v1beta2").only(sorted),
        get("/apis/$group/other").only(sorted),
        get("/apis/$group/v10"),
        get("/apis/apps"),
        get("/apis/apiextensions.k8s.io"),
        get("/apis/rbac.authorization.k8s.io"),
        get("/api/v1").only(shared_types),
        get("/apis/apps/v1").only(shared_types),
        get("/apis/apiextensions.k8s.io/v1").only(shared_types),
        get("/apis/apiregistration.k8s.io/v1").only(shared_types),
        get("/apis/coordination.k8s.io/v1").only(shared_types),
        get("/apis/rbac.authorization.k8s.io/v1").only(shared_types),
        get("/apis/authorization.k8s.io/v1"),
        get("/apis/authorization.k8s.io"),
        // Adds a version and removes another.
        patch(
            MERGE,
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gears.$group",
            json!({ "spec": { "versions": [
                plain("gears", "Gear", "$group", "Cluster")["spec"]["versions"][0],
                { "name": "v3", "served": true, "storage": false,
                    "schema": { "openAPIV3Schema": { "type": "object" } } },
            ] } }),
        )
        .brief(),
        get("/apis")
            .accept(V2)
            .settled(|list, group| {
                item(list, group).is_some_and(|it| it["versions"].as_array().unwrap().len() == 5)
            })
            .only(ours),
        get("/apis/$group").settled(|group, _| group["versions"][0]["version"] == "v3"),
        get("/apis/$group/v3"),
        delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gears.$group", Value::Null)
            .brief(),
        get("/apis")
            .accept(V2)
            .settled(|list, group| {
                item(list, group).is_some_and(|it| it["versions"].as_array().unwrap().len() == 4)
            })
            .only(ours),
        get("/apis/$group/v3").until(404),
        get("/apis/$group/v3"),
        delete(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/apples.a.$group",
            Value::Null,
        )
        .brief(),
        get("/apis/a.$group").until(404),
        get("/apis/a.$group"),
        get("/apis/a.$group/v1").until(404),
        get("/apis/a.$group/v1"),
    ]);
    agree("differential-discovery", steps).await;
}

#[tokio::test]
async fn the_form_of_a_response_is_negotiated_in_the_same_way() {
    const BETA: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    const BOTH: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
        application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    const PLAIN_FIRST: &str = "application/json,\
        application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    const STRANGE: &str = "application/json;as=Nothing;v=v1;g=meta.k8s.io";
    const WRONG: &str = "text/html";
    const WRONG_OR_ANY: &str = "text/html, */*;q=0.5";

    let kind = |list: Value, _: &str| json!([list["kind"], list["apiVersion"], list["reason"]]);
    let forms = [V2, BETA, BOTH, PLAIN_FIRST, TABLE, STRANGE, WRONG, WRONG_OR_ANY];
    let mut steps = installed();
    for path in ["/apis", "/api"] {
        steps.extend(forms.map(|form| get(path).accept(form).only(kind)));
    }
    for path in ["/apis/$group", "/apis/$group/v1", "/apis/apps/v1", "/api/v1", "/version"] {
        steps
            .extend([V2, TABLE, WRONG, WRONG_OR_ANY].map(|form| get(path).accept(form).only(kind)));
    }
    let lists = ["/apis/$group/v1/widgets", "/api/v1/namespaces/$ns/configmaps"];
    for path in lists {
        let forms = [METADATA_LIST, METADATA, STRANGE, WRONG, WRONG_OR_ANY];
        steps.extend(forms.map(|form| get(path).accept(form).only(kind)));
    }
    let map = json!({ "metadata": { "name": "a" } });
    let path = "/api/v1/namespaces/$ns/configmaps";
    steps.extend([
        post(path, map.clone()).accept(WRONG).only(kind),
        post(path, map.clone()).kind("text/html"),
        post(path, map.clone()).accept(METADATA),
        get("/api/v1/namespaces/$ns/configmaps/a").accept(METADATA_LIST).only(kind),
        get("/api/v1/namespaces/$ns/configmaps/a").accept(STRANGE),
        post(
            "/apis/$group/v1/namespaces/$ns/widgets",
            json!({
            "apiVersion": "$group/v1", "kind": "Widget", "metadata": { "name": "a" } }),
        )
        .kind("text/html"),
    ]);
    agree("differential-forms", steps).await;
}
