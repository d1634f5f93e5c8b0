//! Role with the verbs that Metacontroller uses alone, on a real API server with RBAC.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pilotlight::{meta::MetaOptions, testing::ControlPlane};
use serde_json::{Value, json};

use crate::support::{Answer, HarnessOptions, Rule, Supervised, install_own_crds, until};

/// Verbs of Metacontroller on parents and decorated objects.
const PARENTS: [&str; 4] = ["get", "list", "watch", "update"];
/// Verbs of Metacontroller on children and revisions.
const CHILDREN: [&str; 6] = ["get", "list", "watch", "create", "update", "delete"];

/// Answer of both kinds of hooks: a ConfigMap for a parent, a label for a ConfigMap.
fn respond(request: &Value) -> Answer {
    if request.get("object").is_some() {
        return Answer::Json(json!({ "labels": { "decorated": "yes" } }));
    }
    let is_finalizing = request["finalizing"] == true;
    let observed = request["children"]["ConfigMap.v1"].as_object();
    let is_empty = observed.is_none_or(serde_json::Map::is_empty);
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "gear", "labels": { "app": "gear" } },
        "data": { "text": request["parent"]["spec"]["text"] },
    });
    let children = if is_finalizing { Vec::new() } else { vec![child] };
    Answer::Json(json!({
        "status": { "seen": true }, "children": children,
        "finalized": is_finalizing && is_empty,
    }))
}

#[tokio::test]
async fn role_with_the_verbs_of_metacontroller_suffices() {
    let plane = ControlPlane::shared();
    install_own_crds(plane).await;
    let mut options = HarnessOptions::unprivileged();
    let own = "metacontroller.k8s.io";
    options.rights.extend([
        Rule::to_watch(own, "compositecontrollers"),
        Rule::to_watch(own, "decoratorcontrollers"),
        // Metacontroller has no status of these.
        Rule::of(own, "compositecontrollers/status", &["patch"]),
        Rule::of(own, "decoratorcontrollers/status", &["patch"]),
        Rule::of(own, "controllerrevisions", &CHILDREN),
        Rule::of("", "events", &["create", "patch"]),
        Rule::of("", "configmaps", &CHILDREN),
    ]);
    let kinds = ["compositecontrollers", "decoratorcontrollers"];
    let supervised =
        Supervised::of(plane, "narrow-role", options, MetaOptions::default(), &kinds).await;
    supervised.hook.answers(respond);
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    let group = supervised.harness.scope.group.clone();
    let rights = [
        Rule::of(&group, "widgets", &PARENTS),
        Rule::of(&group, "widgets/status", &["update"]),
        Rule::of(&group, "widgets/finalizers", &["update"]),
    ];
    supervised.harness.grant("widgets", &rights).await;
    let orphan = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "gear", "labels": { "app": "gear" } },
    });
    let maps = supervised.config_maps();
    let orphan: ConfigMap = serde_json::from_value(orphan).unwrap();
    maps.create(&PostParams::default(), &orphan).await.unwrap();

    let mut spec = supervised.spec(&crd);
    spec["generateSelector"] = json!(false);
    spec["childResources"][0]["updateStrategy"] = json!({ "method": "RollingInPlace" });
    spec["parentResource"]["revisionHistory"] = json!({ "fieldPaths": ["spec.text"] });
    spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    supervised.declare("a", spec).await;
    let decorated = json!({
        "resources": [{
            "apiVersion": "v1", "resource": "configmaps",
            "labelSelector": { "matchLabels": { "app": "gear" } },
        }],
        "hooks": { "sync": { "webhook": { "url": supervised.hook.url } } },
    });
    supervised.declare_decorator("d", decorated).await;
    let parents = supervised.harness.scope.api(&crd, "v1");
    let spec = json!({ "text": "one", "selector": { "matchLabels": { "app": "gear" } } });
    parents.create(&PostParams::default(), &crd.object("gear", spec)).await.unwrap();
    let says = async |text: &str| {
        until(&format!("the child says {text}"), async || {
            let child = maps.get("gear").await.map_err(|error| error.to_string())?;
            let is_decorated = child.metadata.labels.iter().flatten().any(|it| it.0 == "decorated");
            let is_owned = child.metadata.owner_references.is_some();
            let found = child.data.iter().flatten().any(|(_, found)| found == text);
            if found && is_owned && is_decorated { Ok(()) } else { Err(format!("{child:?}")) }
        })
        .await;
    };
    says("one").await;
    let change = Patch::Merge(json!({ "spec": { "text": "two" } }));
    parents.patch("gear", &PatchParams::default(), &change).await.unwrap();
    says("two").await;
    parents.delete("gear", &DeleteParams::default()).await.unwrap();
    until("the parent is finalized", async || match parents.get_opt("gear").await.unwrap() {
        None => Ok(()),
        Some(parent) => Err(format!("{:?}", parent.metadata)),
    })
    .await;
    drop((parents, maps));
    supervised.end().await;
}
