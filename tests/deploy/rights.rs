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
    let mut blocks = readme.split("```yaml").skip(1).filter_map(|part| part.split("```").next());
    let manifest = blocks.find(|block| block.contains("pilotlight-hook-credentials")).unwrap();
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

const CHILDREN: [&str; 5] =
    ["greeting-one-0", "greeting-one-1", "letter-one-0", "memo-one-1", "note-one-0"];

/// Types of this test: five of parents or decorated objects, and the related type.
fn types() -> [CrdBuilder; 6] {
    ["Greeting", "Letter", "Memo", "Note", "Plain", "Topic"].map(|kind| {
        let crd = CrdBuilder::new(GROUP, kind).version("v1");
        if kind == "Plain" { crd.without_status() } else { crd }
    })
}

/// Installs the manager's manifests, the types, and the rights and objects that the README names.
async fn install(client: &Client) {
    for path in crds().into_iter().chain(base()) {
        apply(client, &path).await;
    }
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in types() {
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
        apply_object(client, namespace).await;
    }
    for manifest in credentials() {
        apply_object(client, manifest).await;
    }
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": TOKEN},
        "metadata": {"name": "hook-token", "namespace": "hooks"},
    });
    apply_object(client, token).await;
    let authority = rcgen::generate_simple_self_signed(["hook".to_owned()]).unwrap().cert.pem();
    let authority = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": authority},
        "metadata": {"name": "hook-authority", "namespace": "hooks"},
    });
    apply_object(client, authority).await;
    for (row, resources) in GRANTS {
        for resource in resources {
            allowed(client, resource, &verbs(row)[0]).await;
        }
    }
}

/// Declares a controller of each kind and method.
async fn declare_all(client: &Client, url: &str) {
    let all = ["sync", "finalize", "customize"];
    let none = || json!({});
    let applied = json!({"pilotlight.dev/apply-strategy": "server-side-apply"});
    let (composites, decorators) = ("CompositeController", "DecoratorController");
    let rolling = composite(url, "greetings", "RollingInPlace", &all);
    let recreated = composite(url, "letters", "Recreate", &["sync"]);
    let memos = composite(url, "memos", "InPlace", &["sync"]);
    let notes = decorating(composite(url, "notes", "InPlace", &all));
    let plains = decorating(composite(url, "plains", "InPlace", &["sync"]));
    declare(client, composites, "rolling", rolling, none()).await;
    declare(client, composites, "recreated", recreated, none()).await;
    declare(client, composites, "applied", memos, applied).await;
    declare(client, decorators, "notes", notes, none()).await;
    declare(client, decorators, "plains", plains, none()).await;
}

fn shows(size: i64) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object| object.is_some_and(|object| object.data["status"]["size"] == size)
}

/// Parents, decorated objects and children of all controllers.
struct Objects {
    client: Client,
    types: [CrdBuilder; 6],
    apis: Vec<Api<DynamicObject>>,
    maps: Api<ConfigMap>,
}

impl Objects {
    /// Creates a related object, and an object of each type that a controller reconciles.
    async fn create(client: &Client) -> Self {
        let types = types();
        let topic = types[5].object("t", json!({}));
        let topics: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), "team", &types[5].api_resource("v1"));
        topics.create(&PostParams::default(), &topic).await.unwrap();
        let apis = types.iter().take(5).map(|crd| {
            Api::<DynamicObject>::default_namespaced_with(client.clone(), &crd.api_resource("v1"))
        });
        let apis = apis.collect();
        let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
        let objects = Self { client: client.clone(), types, apis, maps };
        for (number, api) in objects.apis.iter().enumerate() {
            objects.create_parent(number, "one", 1).await;
            wait(api, "one", "its first status", shows(1)).await;
        }
        objects.children_hold(1).await;
        objects
    }

    async fn create_parent(&self, number: usize, name: &str, size: i64) {
        let object = self.types[number].object(name, json!({"size": size}));
        self.apis[number].create(&PostParams::default(), &object).await.unwrap();
    }

    async fn children_hold(&self, size: i64) {
        let holds = |map: Option<&ConfigMap>| {
            let data = map.and_then(|map| map.data.as_ref());
            data.is_some_and(|data| data["size"] == size.to_string())
        };
        for child in CHILDREN {
            wait(&self.maps, child, "it holds the size", holds).await;
        }
    }

    /// Rolls out, recreates with dry runs, applies, decorates and updates by one edit.
    async fn resize(&self, size: i64) {
        let edit = Patch::Merge(json!({"spec": {"size": size}}));
        for api in &self.apis {
            api.patch("one", &PatchParams::default(), &edit).await.unwrap();
        }
        for api in &self.apis {
            wait(api, "one", "its status", shows(size)).await;
        }
        self.children_hold(size).await;
    }

    /// Creates an orphan, which is adopted and then deleted.
    async fn orphan_is_adopted(&self) {
        let letter = self.apis[1].get("one").await.unwrap();
        // The Deployment adopts only what is proven.
        let annotations = json!({"pilotlight.dev/adopt": "true"});
        let labels = json!({"controller-uid": letter.uid().unwrap()});
        let orphan = json!({
            "metadata": {"name": "orphan", "labels": labels, "annotations": annotations},
        });
        let orphan: ConfigMap = serde_json::from_value(orphan).unwrap();
        self.maps.create(&PostParams::default(), &orphan).await.unwrap();
        wait(&self.maps, "orphan", "it is adopted and deleted", |map| map.is_none()).await;
    }

    /// Waits until the old revision is deleted. The other one, which loses its owner and is edited,
    /// is adopted and restored by the next sync.
    async fn revision_is_pruned_adopted_and_restored(&self) {
        let resource = ApiResource::erase::<ControllerRevision>(&());
        let revisions: Api<DynamicObject> =
            Api::default_namespaced_with(self.client.clone(), &resource);
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
        self.apis[0].patch("one", &PatchParams::default(), &label).await.unwrap();
        let is_owned =
            |it: Option<&DynamicObject>| it.is_some_and(|it| !it.owner_references().is_empty());
        wait(&revisions, &revision, "it is adopted", is_owned).await;
        let size = |it: &DynamicObject| it.data["parentPatch"]["spec"]["size"].clone();
        let before = size(&revisions.get(&revision).await.unwrap());
        let edited = Patch::Merge(json!({"parentPatch": {"spec": {"size": 7}}}));
        revisions.patch(&revision, &PatchParams::default(), &edited).await.unwrap();
        let label = Patch::Merge(json!({"metadata": {"labels": {"again": "once-more"}}}));
        self.apis[0].patch("one", &PatchParams::default(), &label).await.unwrap();
        let is_restored = |it: Option<&DynamicObject>| it.is_some_and(|it| size(it) == before);
        wait(&revisions, &revision, "it is restored", is_restored).await;
    }

    /// Causes a failure that repeats, which is one Event with a count.
    async fn failure_is_counted(&self) {
        self.create_parent(1, "bad", 500).await;
        let events = Api::<Event>::namespaced(self.client.clone(), "default");
        let of_parent = ListParams::default().fields("involvedObject.name=bad");
        let counted = async {
            let counts = |event: &Event| event.count > Some(1);
            while !events.list(&of_parent).await.unwrap().items.iter().any(counts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(DEADLINE, counted).await.expect("the Event is counted");
        self.apis[1].delete("bad", &DeleteParams::default()).await.unwrap();
    }

    /// Deletes objects with finalize hooks, and a controller, whose parents are freed.
    async fn deleted_objects_are_finalized_and_freed(&self) {
        for api in [&self.apis[0], &self.apis[3]] {
            api.delete("one", &DeleteParams::default()).await.unwrap();
            wait(api, "one", "it is finalized", |object| object.is_none()).await;
        }
        let api = &self.apis[0];
        self.create_parent(0, "two", 1).await;
        wait(api, "two", "its first status", shows(1)).await;
        let controllers = Api::<CompositeController>::all(self.client.clone());
        controllers.delete("rolling", &DeleteParams::default()).await.unwrap();
        let is_free =
            |object: Option<&DynamicObject>| object.is_some_and(|it| it.finalizers().is_empty());
        wait(api, "two", "it is freed", is_free).await;
    }
}

#[tokio::test]
async fn every_feature_runs_with_the_rights_that_the_readme_names_and_uses_each() {
    // The admission plugin demands the right to block the deletion of an owner.
    let flags = ["--enable-admission-plugins", "OwnerReferencesPermissionEnforcement"];
    let options = ControlPlaneOptions {
        api_server_flags: flags.map(str::to_owned).to_vec(),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(options).await.unwrap();
    let client = plane.client().unwrap();
    install(&client).await;
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

    declare_all(&client, &hook.url).await;
    let objects = Objects::create(&client).await;
    objects.orphan_is_adopted().await;
    objects.resize(2).await;
    objects.revision_is_pruned_adopted_and_restored().await;
    objects.failure_is_counted().await;
    // The standby takes over, with the same rights.
    leader.terminate().await;
    objects.resize(3).await;
    objects.deleted_objects_are_finalized_and_freed().await;
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
                // An admission plugin requires the right; no request has it.
                resource.ends_with("/finalizers") || is_used(group, resource, &verb)
            });
            if !by_any.any(|used| used) {
                unused.push(format!("{row}: {verb}"));
            }
        }
    }
    // The manager does not have the roles of users.
    let of_manager = base().into_iter().filter(|path| !path.ends_with("user-roles.yaml"));
    let shipped = of_manager.flat_map(|path| read(&path)).chain(credentials());
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
