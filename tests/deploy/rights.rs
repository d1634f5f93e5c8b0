//! Rights in use: every kind of controller runs with the shipped roles and those that
//! `deploy/README.md` names. No request is refused, and no granted verb is unused.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use http::HeaderMap;
use k8s_openapi::api::{authorization::v1::SubjectAccessReview, rbac::v1::Role};
use kube::{
    api::{ApiResource, DeleteParams},
    runtime::wait::conditions,
};
use pilotlight::{meta::api::ControllerRevision, testing::AuditEvent};

use super::*;

const USER: &str = "system:serviceaccount:pilotlight:pilotlight";
const GROUP: &str = "demo.pilotlight.dev";
const TOKEN: &str = "hook-token-of-this-test";

/// Rows of the table in the README, by their first words, and the resources that each is granted
/// for here.
const GRANTS: [(&str, &[&str]); 9] = [
    ("parents;", &["greetings", "letters", "memos"]),
    ("parents' `/status`", &["greetings/status", "letters/status", "memos/status"]),
    ("parents of a controller with a finalize hook", &["greetings"]),
    ("objects that a DecoratorController decorates", &["notes", "plains"]),
    ("their `/status`", &["notes/status"]),
    ("decorated objects of a type without `/status`", &["plains"]),
    (
        "`/finalizers` of parents and decorated objects",
        &["greetings/finalizers", "letters/finalizers", "memos/finalizers", "notes/finalizers"],
    ),
    ("related objects of a customize hook", &["topics", "core/namespaces"]),
    ("children and attachments", &["core/configmaps"]),
];

/// Verbs that are needed only by requests that this test does not cause.
const RARE: [&str; 3] = [
    // Only after a 404 of `/status`.
    "objects that a DecoratorController decorates: get",
    // Only if the CRD cannot be read when a controller is deleted.
    "get compositecontrollers.metacontroller.k8s.io",
    "get decoratorcontrollers.metacontroller.k8s.io",
];

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/README.md");
    std::fs::read_to_string(path).unwrap()
}

/// Verbs that the README names in the row with this beginning.
fn verbs(row: &str) -> Vec<String> {
    let readme = readme();
    let line = readme.lines().find(|line| line.starts_with(&format!("| {row}")));
    let line = line.unwrap_or_else(|| panic!("the README has no row {row}"));
    let cell = line.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Group and resource of a name as in [`GRANTS`].
fn parts(resource: &str) -> (&str, &str) {
    resource.strip_prefix("core/").map_or((GROUP, resource), |core| ("", core))
}

/// Role with the rows of the README.
fn grants() -> ClusterRole {
    let rules = GRANTS.iter().flat_map(|(row, resources)| {
        resources.iter().map(|resource| {
            let (group, resource) = parts(resource);
            json!({"apiGroups": [group], "resources": [resource], "verbs": verbs(row)})
        })
    });
    let role = json!({
        "metadata": {
            "name": "every-feature", "labels": {"pilotlight.dev/aggregate-to-manager": "true"},
        },
        "rules": rules.collect::<Vec<_>>(),
    });
    serde_json::from_value(role).unwrap()
}

/// Manifests that the README has for the credentials of hooks.
fn credentials() -> Vec<Value> {
    let readme = readme();
    let manifest = readme.split("```yaml").nth(1).unwrap().split("```").next().unwrap();
    serde_saphyr::from_multiple(manifest).unwrap()
}

/// Waits until the API server allows a verb to the manager.
async fn allowed(client: &Client, resource: &str, verb: &str) {
    let (group, resource) = parts(resource);
    let review = json!({"spec": {
        "user": USER, "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {"group": group, "resource": resource, "verb": verb},
    }});
    let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let allowed = async {
        loop {
            let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
            if answer.status.is_some_and(|status| status.allowed) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, allowed).await.unwrap_or_else(|_| panic!("{verb} {resource}: not allowed"));
}

/// Hook of all controllers, which requires the token.
struct SecureHook {
    url: String,
    refused: Arc<Mutex<usize>>,
    _serving: JoinSet<io::Result<()>>,
}

impl SecureHook {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let refused = Arc::<Mutex<usize>>::default();
        let counted = Arc::clone(&refused);
        let respond = async move |headers: HeaderMap, Json(request): Json<Value>| {
            let wanted = format!("Bearer {TOKEN}");
            if headers.get("authorization").is_none_or(|token| *token != *wanted) {
                *counted.lock().unwrap() += 1;
            }
            match request["parent"]["spec"]["size"] == 500 {
                true => Err(http::StatusCode::INTERNAL_SERVER_ERROR),
                false => Ok(Json(answer(&request))),
            }
        };
        let router = Router::new().route("/hook", post(respond));
        let mut serving = JoinSet::new();
        serving.spawn(async { axum::serve(listener, router).await });
        Self { url, refused, _serving: serving }
    }
}

/// Answers with related objects, two ConfigMaps of a parent, or the decoration of an object.
fn answer(request: &Value) -> Value {
    let (object, what) = match request.get("object") {
        Some(object) => (object, "attachments"),
        None => (&request["parent"], "children"),
    };
    let owned = &request[what];
    if owned.is_null() {
        let rule = json!({
            "apiVersion": format!("{GROUP}/v1"), "resource": "topics",
            "namespaceSelector": {"matchLabels": {"team": "x"}},
        });
        return json!({"relatedResources": [rule]});
    }
    let left = owned["ConfigMap.v1"].as_object().map_or(0, serde_json::Map::len);
    if request["finalizing"] == true {
        return json!({what: [], "finalized": left == 0});
    }
    let (kind, size) = (object["kind"].as_str().unwrap(), &object["spec"]["size"]);
    let name = object["metadata"]["name"].as_str().unwrap();
    let topics = request["related"][format!("Topic.{GROUP}/v1")].as_object();
    let map = |number: u32| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("{}-{name}-{number}", kind.to_lowercase())},
            "data": {"size": size.to_string(), "topics": topics.map_or(0, |it| it.len()).to_string()},
        })
    };
    match kind {
        "Plain" => json!({"status": {"size": size}}),
        "Note" => json!({
            "labels": {"decorated": "yes"}, "status": {"size": size}, "attachments": [map(0)],
        }),
        _ => json!({"status": {"size": size}, "children": [map(0), map(1)]}),
    }
}

/// Specification of a composite with one rule of children.
fn composite(url: &str, parent: &str, method: &str, hooks: &[&str]) -> Value {
    let webhook = json!({
        "url": url,
        "caBundle": {"configMapRef": {"name": "hook-authority", "namespace": "hooks"}},
        "authorization": {
            "secretRef": {"name": "hook-token", "namespace": "hooks", "key": "token"},
        },
    });
    let hook = json!({"version": "v2", "webhook": webhook});
    let hooks: serde_json::Map<_, _> =
        hooks.iter().map(|name| ((*name).to_owned(), hook.clone())).collect();
    let resource = json!({"apiVersion": format!("{GROUP}/v1"), "resource": parent});
    let owned = json!([{
        "apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": method},
    }]);
    json!({
        "generateSelector": true, "parentResource": resource, "childResources": owned,
        "hooks": hooks,
    })
}

/// Turns the specification of a composite into that of a decorator.
fn decorating(mut spec: Value) -> Value {
    let (resource, owned) = (spec["parentResource"].take(), spec["childResources"].take());
    json!({"resources": [resource], "attachments": owned, "hooks": spec["hooks"]})
}

async fn declare(client: &Client, kind: &str, name: &str, spec: Value, annotations: Value) {
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    });
    apply_object(client, object).await;
}

/// Waits until an object is as `wanted`.
async fn wait<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + kube::Resource + 'static,
{
    let seen = await_condition(api.clone(), name, &wanted);
    if timeout(DEADLINE, seen).await.is_err() {
        panic!("{name}: not in time: {what}: {:#?}", api.get_opt(name).await);
    }
}

/// Request of the manager as group, resource with subresource, and verb.
fn used(event: &AuditEvent) -> (String, String, String) {
    let resource = match event.subresource.as_str() {
        "" => event.resource.clone(),
        subresource => format!("{}/{subresource}", event.resource),
    };
    (event.group.clone(), resource, event.verb.clone())
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story on one control plane")]
async fn every_feature_runs_with_the_rights_that_the_readme_names_and_uses_each() {
    // The admission plugin demands the right to block the deletion of an owner.
    let flags = ["--enable-admission-plugins", "OwnerReferencesPermissionEnforcement"];
    let options = ControlPlaneOptions {
        api_server_flags: flags.map(str::to_owned).to_vec(),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(options).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    let types = ["Greeting", "Letter", "Memo", "Note", "Plain", "Topic"]
        .map(|kind| CrdBuilder::new(GROUP, kind).version("v1"));
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in &types {
        let crd = if crd.name().starts_with("plains") {
            crd.clone().without_status()
        } else {
            crd.clone()
        };
        definitions.create(&PostParams::default(), &crd.build()).await.unwrap();
        let (name, is_established) = (crd.name(), conditions::is_crd_established());
        let established = await_condition(definitions.clone(), &name, is_established);
        timeout(DEADLINE, established).await.unwrap().unwrap();
    }
    let roles = Api::<ClusterRole>::all(client.clone());
    roles.create(&PostParams::default(), &grants()).await.unwrap();
    for (name, labels) in [("hooks", json!({})), ("team", json!({"team": "x"}))] {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
        });
        apply_object(&client, namespace).await;
    }
    for manifest in credentials() {
        apply_object(&client, manifest).await;
    }
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": TOKEN},
        "metadata": {"name": "hook-token", "namespace": "hooks"},
    });
    apply_object(&client, token).await;
    let authority = rcgen::generate_simple_self_signed(["hook".to_owned()]).unwrap().cert.pem();
    let authority = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": authority},
        "metadata": {"name": "hook-authority", "namespace": "hooks"},
    });
    apply_object(&client, authority).await;
    for (row, resources) in GRANTS {
        for resource in resources {
            allowed(&client, resource, &verbs(row)[0]).await;
        }
    }

    // Two replicas, as in the Deployment.
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("pilotlight").await.unwrap();
    let token = plane.service_account_token(NAMESPACE, "pilotlight").await.unwrap();
    let kubeconfig = plane.token_kubeconfig(&token).unwrap();
    let leader = Manager::start(&kubeconfig, &deployment).await;
    leader.ready().await;
    let standby = Manager::start(&kubeconfig, &deployment).await;
    standby.ready().await;

    let hook = SecureHook::start().await;
    let all = ["sync", "finalize", "customize"];
    let none = || json!({});
    let applied = json!({"pilotlight.dev/apply-strategy": "server-side-apply"});
    let (composites, decorators) = ("CompositeController", "DecoratorController");
    let rolling = composite(&hook.url, "greetings", "RollingInPlace", &all);
    let recreated = composite(&hook.url, "letters", "Recreate", &["sync"]);
    let memos = composite(&hook.url, "memos", "InPlace", &["sync"]);
    let notes = decorating(composite(&hook.url, "notes", "InPlace", &all));
    let plains = decorating(composite(&hook.url, "plains", "InPlace", &["sync"]));
    declare(&client, composites, "rolling", rolling, none()).await;
    declare(&client, composites, "recreated", recreated, none()).await;
    declare(&client, composites, "applied", memos, applied).await;
    declare(&client, decorators, "notes", notes, none()).await;
    declare(&client, decorators, "plains", plains, none()).await;

    let apis: Vec<Api<DynamicObject>> = types
        .iter()
        .map(|crd| Api::default_namespaced_with(client.clone(), &crd.api_resource("v1")))
        .collect();
    let topics: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "team", &types[5].api_resource("v1"));
    topics.create(&PostParams::default(), &types[5].object("t", json!({}))).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let shows = |size: i64| {
        move |object: Option<&DynamicObject>| {
            object.is_some_and(|object| object.data["status"]["size"] == size)
        }
    };
    let holds = |size: i64| {
        move |map: Option<&ConfigMap>| {
            let data = map.and_then(|map| map.data.as_ref());
            data.is_some_and(|data| data["size"] == size.to_string())
        }
    };
    for (crd, api) in types.iter().zip(&apis).take(5) {
        api.create(&PostParams::default(), &crd.object("one", json!({"size": 1}))).await.unwrap();
        wait(api, "one", "its first status", shows(1)).await;
    }
    let children = ["greeting-one-0", "greeting-one-1", "letter-one-0", "memo-one-1", "note-one-0"];
    for child in children {
        wait(&maps, child, "it is created", holds(1)).await;
    }

    // An orphan is adopted, and then deleted.
    let letter = apis[1].get("one").await.unwrap();
    let orphan = json!({
        "metadata": {"name": "orphan", "labels": {"controller-uid": letter.uid().unwrap()}},
    });
    let orphan: ConfigMap = serde_json::from_value(orphan).unwrap();
    maps.create(&PostParams::default(), &orphan).await.unwrap();
    wait(&maps, "orphan", "it is adopted and deleted", |map| map.is_none()).await;

    // Rollout, Recreate with its dry runs, server-side apply, decoration and update by one edit.
    let resize = async |size: i64| {
        let edit = Patch::Merge(json!({"spec": {"size": size}}));
        for api in apis.iter().take(5) {
            api.patch("one", &PatchParams::default(), &edit).await.unwrap();
        }
        for api in apis.iter().take(5) {
            wait(api, "one", "its status", shows(size)).await;
        }
        for child in children {
            wait(&maps, child, "it is updated", holds(size)).await;
        }
    };
    resize(2).await;

    // The old revision is deleted, and the other one, which loses its owner, is adopted by
    // the next sync.
    let resource = ApiResource::erase::<ControllerRevision>(&());
    let revisions: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &resource);
    let pruned = async {
        loop {
            let mut all = revisions.list(&ListParams::default()).await.unwrap().items;
            if all.len() == 1 {
                return all.remove(0).name_any();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let revision = timeout(DEADLINE, pruned).await.expect("the old revision is deleted");
    let freed = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    revisions.patch(&revision, &PatchParams::default(), &freed).await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"again": "yes"}}}));
    apis[0].patch("one", &PatchParams::default(), &label).await.unwrap();
    let is_owned =
        |it: Option<&DynamicObject>| it.is_some_and(|it| !it.owner_references().is_empty());
    wait(&revisions, &revision, "it is adopted", is_owned).await;

    // A failure that repeats is one Event with a count.
    apis[1]
        .create(&PostParams::default(), &types[1].object("bad", json!({"size": 500})))
        .await
        .unwrap();
    let events = Api::<Event>::namespaced(client.clone(), "default");
    let of_parent = ListParams::default().fields("involvedObject.name=bad");
    let counted = async {
        let counts = |event: &Event| event.count > Some(1);
        while !events.list(&of_parent).await.unwrap().items.iter().any(counts) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, counted).await.expect("the Event is counted");
    apis[1].delete("bad", &DeleteParams::default()).await.unwrap();

    // The standby takes over, with the same rights.
    leader.terminate().await;
    resize(3).await;

    // Finalize hooks; and a deleted controller, whose parents are freed.
    for api in [&apis[0], &apis[3]] {
        api.delete("one", &DeleteParams::default()).await.unwrap();
        wait(api, "one", "it is finalized", |object| object.is_none()).await;
    }
    apis[0]
        .create(&PostParams::default(), &types[0].object("two", json!({"size": 1})))
        .await
        .unwrap();
    wait(&apis[0], "two", "its first status", shows(1)).await;
    let controllers = Api::<CompositeController>::all(client.clone());
    controllers.delete("rolling", &DeleteParams::default()).await.unwrap();
    let is_free =
        |object: Option<&DynamicObject>| object.is_some_and(|it| it.finalizers().is_empty());
    wait(&apis[0], "two", "it is freed", is_free).await;
    standby.terminate().await;

    plane.audit_settled().await.unwrap();
    let events = plane.audit().unwrap().all().unwrap();
    let own: Vec<_> = events.iter().filter(|event| event.user == USER).collect();
    let refused: Vec<_> = own.iter().filter(|event| event.code == Some(403)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert_eq!(*hook.refused.lock().unwrap(), 0, "each call has the token");
    let used: BTreeSet<_> = own.iter().map(|event| used(event)).collect();
    let unused = unused(&used);
    assert!(unused.is_empty(), "granted and not used: {unused:#?}");
    plane.stop().await;
}

/// Granted verbs that no request has used.
fn unused(used: &BTreeSet<(String, String, String)>) -> Vec<String> {
    let is_used = |group: &str, resource: &str, verb: &str| {
        used.contains(&(group.to_owned(), resource.to_owned(), verb.to_owned()))
    };
    let mut unused = Vec::new();
    for (row, resources) in GRANTS {
        for verb in verbs(row) {
            let by_any = resources.iter().map(|resource| parts(resource));
            let mut by_any = by_any.map(|(group, resource)| {
                // An admission plugin asks for the right; no request has it.
                resource.ends_with("/finalizers") || is_used(group, resource, &verb)
            });
            if !by_any.any(|used| used) {
                unused.push(format!("{row}: {verb}"));
            }
        }
    }
    let shipped = base().into_iter().flat_map(|path| read(&path)).chain(credentials());
    // Roles of users, which the manager does not have.
    let shipped = shipped.filter(|object| {
        object["metadata"]["labels"].get("rbac.authorization.k8s.io/aggregate-to-edit").is_none()
    });
    for object in shipped {
        let rules = match object["kind"].as_str() {
            Some("ClusterRole") => serde_json::from_value::<ClusterRole>(object).unwrap().rules,
            Some("Role") => serde_json::from_value::<Role>(object).unwrap().rules,
            _ => None,
        };
        for rule in rules.into_iter().flatten() {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    let verbs = rule.verbs.iter().filter(|verb| !is_used(group, resource, verb));
                    unused.extend(verbs.map(|verb| format!("{verb} {resource}.{group}")));
                }
            }
        }
    }
    unused.retain(|it| !RARE.contains(&it.as_str()));
    unused
}
