//! Attacks of a tenant, of a user of the hooks' namespace and of a hook, on a real API server with RBAC
//! and the shipped manifests. Each attack is tried as it would be made, and is refused.

use std::path::Path;

use k8s_openapi::api::{
    apps::v1::Deployment, authentication::v1::TokenRequest, core::v1::ServiceAccount,
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client, Config,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use pilotlight::testing::{ControlPlane, ControlPlaneOptions, CrdBuilder};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    deploy::{Manager, apply, apply_object, base, crds, read},
    support::{Answer, HookServer, until},
};

const RBAC: &str = "rbac.authorization.k8s.io";
const MANAGER: &str = "system:serviceaccount:pilotlight:pilotlight";

/// Control plane with the shipped manifests, and a namespace for hooks and for a tenant.
async fn installed() -> ControlPlane {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    apply(&client, &top.join("examples/hooks.yaml")).await;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"},
    });
    apply_object(&client, namespace).await;
    plane
}

/// Gives the role `edit` in one namespace to a user, and waits until it is filled.
async fn editor(plane: &ControlPlane, namespace: &str) -> Client {
    let user = format!("editor-of-{namespace}");
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
        "metadata": {"name": "editor", "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    });
    apply_object(&plane.client().unwrap(), binding).await;
    // The role is filled at the start of the cluster, and again with each role that belongs to it.
    let marker = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": {
            "name": "marker", "labels": {format!("{RBAC}/aggregate-to-edit"): "true"},
        },
        "rules": [{"apiGroups": [""], "resources": ["bindings"], "verbs": ["list"]}],
    });
    apply_object(&plane.client().unwrap(), marker).await;
    let client = plane.client_as(&user, &[]).unwrap();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "namespace": namespace, "verb": "list", "resource": "bindings",
        }},
    });
    until("the editor has the rights of the role", async || {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let body = serde_json::to_vec(&review).unwrap();
        let request = http::Request::post(path).body(body).unwrap();
        let answer: Value = client.request(request).await.map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == true { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    client
}

/// Type of the shipped CRDs.
fn own_type(kind: &str, plural: &str) -> ApiResource {
    let gvk = kube::core::GroupVersionKind::gvk("metacontroller.k8s.io", "v1alpha1", kind);
    ApiResource::from_gvk_with_plural(&gvk, plural)
}

#[track_caller]
fn assert_forbidden<T: std::fmt::Debug>(what: &str, answer: kube::Result<T>) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn tenant_forges_neither_a_revision_nor_a_controller() {
    let plane = installed().await;
    let tenant = editor(&plane, "tenant").await;
    let by = PostParams::default();

    // The owner is a parent in another namespace, of which the tenant knows the uid.
    let revision = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision",
        "metadata": {"name": "forged", "ownerReferences": [{
            "apiVersion": "nope/v1", "kind": "Nope", "name": "x", "controller": true,
            "uid": "0a1b2c3d-0000-4000-8000-000000000000",
        }]},
        "parentPatch": {"spec": {"image": "evil"}},
        "children": [{"apiGroup": "", "kind": "Pod", "names": ["nope"]}],
    });
    let revision: DynamicObject = serde_json::from_value(revision).unwrap();
    let resource = own_type("ControllerRevision", "controllerrevisions");
    let revisions = Api::<DynamicObject>::namespaced_with(tenant.clone(), "tenant", &resource);
    assert_forbidden("a forged revision", revisions.create(&by, &revision).await);
    assert_forbidden("reads of revisions", revisions.list(&Default::default()).await);

    let plurals = [
        ("CompositeController", "compositecontrollers"),
        ("DecoratorController", "decoratorcontrollers"),
    ];
    for (kind, plural) in plurals {
        let controllers = Api::<DynamicObject>::all_with(tenant.clone(), &own_type(kind, plural));
        let controller = DynamicObject::new("mine", &own_type(kind, plural));
        assert_forbidden(kind, controllers.create(&by, &controller).await);
        assert_forbidden(kind, controllers.list(&Default::default()).await);
    }
    plane.stop().await;
}

/// Requests of a token of the manager's account, alone and by its account.
async fn token(client: Client) -> kube::Result<TokenRequest> {
    let accounts = Api::<ServiceAccount>::namespaced(client, "pilotlight");
    let request = TokenRequest::default();
    accounts.create_token_request("pilotlight", &PostParams::default(), &request).await
}

/// Reads Secrets as the account of the manager, by impersonation.
async fn impersonated(mut config: Config) -> kube::Result<()> {
    config.auth_info.impersonate = Some(MANAGER.to_owned());
    let client = Client::try_from(config).unwrap();
    let resource = own_type("CompositeController", "compositecontrollers");
    Api::<DynamicObject>::all_with(client, &resource).list(&Default::default()).await.map(drop)
}

/// Creates a pod with the account of the manager, which meets the standard of its namespace.
async fn pod(client: &Client) -> kube::Result<()> {
    let restricted = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    });
    let pod = json!({
        "metadata": {"name": "thief"},
        "spec": {
            "serviceAccountName": "pilotlight",
            "containers": [{"name": "c", "image": "x", "securityContext": restricted}],
        },
    });
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(client.clone(), "pilotlight");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.map(drop)
}

#[tokio::test]
async fn editor_of_the_hooks_gets_no_rights_of_the_manager() {
    let plane = installed().await;
    let of_hooks = editor(&plane, "hooks").await;

    assert_forbidden("a token", token(of_hooks.clone()).await);
    let as_user = plane.user("editor-of-hooks", &[]).unwrap();
    assert_forbidden("impersonation", impersonated(as_user).await);
    assert_forbidden("a pod", pod(&of_hooks).await);

    // The README keeps the manager's namespace to cluster admins for this reason.
    let of_manager = editor(&plane, "pilotlight").await;
    assert!(token(of_manager.clone()).await.is_ok());
    // The API server throttles lists of a type that it has begun to serve.
    until("impersonation succeeds", async || {
        let config = plane.user("editor-of-pilotlight", &[]).unwrap();
        impersonated(config).await.map_err(|error| error.to_string())
    })
    .await;
    pod(&of_manager).await.unwrap();
    plane.stop().await;
}

#[tokio::test]
async fn lease_of_the_manager_is_taken_by_no_tenant() {
    let plane = installed().await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "metacontroller", "namespace": "pilotlight"},
        "spec": {"holderIdentity": "leader", "leaseDurationSeconds": 15},
    });
    apply_object(&plane.client().unwrap(), lease).await;

    for namespace in ["tenant", "hooks"] {
        let user = editor(&plane, namespace).await;
        let leases =
            Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(user, "pilotlight");
        let stolen = Patch::Merge(json!({"spec": {"holderIdentity": namespace}}));
        let by = PatchParams::default();
        assert_forbidden("a patch", leases.patch("metacontroller", &by, &stolen).await);
        assert_forbidden("a read", leases.get("metacontroller").await);
        assert_forbidden("a deletion", leases.delete("metacontroller", &Default::default()).await);
        let other = serde_json::from_value(json!({"metadata": {"name": "other"}})).unwrap();
        assert_forbidden("another lease", leases.create(&Default::default(), &other).await);
    }
    plane.stop().await;
}

/// Starts the manager with the flags and the account of the Deployment.
async fn manager(plane: &ControlPlane) -> Manager {
    let deployments = Api::<Deployment>::namespaced(plane.client().unwrap(), "pilotlight");
    let deployment = deployments.get("pilotlight").await.unwrap();
    let token = plane.service_account_token("pilotlight", "pilotlight").await.unwrap();
    let manager = Manager::start(&plane.token_kubeconfig(&token).unwrap(), &deployment).await;
    manager.ready().await;
    manager
}

/// Applies the grants of all examples.
async fn grant_all(client: &Client) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    apply(client, &top.join("deploy/grant-example.yaml")).await;
    let mut count = 0;
    for folder in std::fs::read_dir(top.join("examples")).unwrap() {
        let path = folder.unwrap().path().join("controller.yaml");
        let objects = if path.exists() { read(&path) } else { Vec::new() };
        for role in objects.into_iter().filter(|object| object["kind"] == "ClusterRole") {
            count += 1;
            apply_object(client, role).await;
        }
    }
    assert_eq!(count, 7);
}

/// Role that a hook attaches to a CRD.
fn role(name: &str, labels: Value, rule: Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels}, "rules": [rule],
    })
}

/// Roles with more rights than those of the manager, each by another way.
fn escalations() -> Vec<Value> {
    let all = || json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]});
    let escalate =
        json!({"apiGroups": [RBAC], "resources": ["clusterroles"], "verbs": ["escalate"]});
    let pages = json!({"nonResourceURLs": ["/logs/*"], "verbs": ["get"]});
    let to_manager = || json!({"pilotlight.dev/aggregate-to-manager": "true"});
    let to_viewers = json!({format!("{RBAC}/aggregate-to-view"): "true"});
    let mut gathers = role("gathers", json!({}), all());
    gathers["rules"] = json!([]);
    gathers["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    vec![
        role("self-grant", to_manager(), all()),
        role("self-grant-of-secrets", to_manager(), secrets),
        role("self-grant-of-escalate", to_manager(), escalate),
        role("self-grant-of-pages", to_manager(), pages),
        role("grant-to-viewers", to_viewers, all()),
        gathers,
    ]
}

#[tokio::test]
async fn hook_with_the_grants_of_all_examples_gains_no_further_right() {
    let plane = installed().await;
    let client = plane.client().unwrap();
    grant_all(&client).await;
    let hook = HookServer::start().await;
    hook.answers(|_| {
        let gears = json!({
            "apiGroups": ["examples.pilotlight.dev"], "resources": ["gears"], "verbs": ["list"],
        });
        let mut attachments = escalations();
        attachments.push(role("within-bounds", json!({}), gears));
        Answer::Json(json!({"attachments": attachments}))
    });
    let _manager = manager(&plane).await;
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let decorator = read(&top.join("examples/crd-roles/controller.yaml")).remove(0).to_string();
    let decorator = decorator.replace("http://crd-roles.hooks.svc/sync", &hook.url);
    assert!(decorator.contains(&hook.url));
    apply_object(&client, serde_json::from_str(&decorator).unwrap()).await;

    apply(&client, &top.join("examples/crd-roles/crd.yaml")).await;

    let roles = Api::<ClusterRole>::all(client.clone());
    until("the role within the rights of the manager exists", async || {
        roles.get("within-bounds").await.map_err(|error| error.to_string())
    })
    .await;
    let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(client.clone(), "default");
    until("an Event says that the roles are refused", async || {
        let all = events.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let texts: Vec<_> = all.items.into_iter().filter_map(|event| event.message).collect();
        match texts.iter().any(|text| text.contains("permissions not currently held")) {
            true => Ok(()),
            false => Err(format!("{texts:#?}")),
        }
    })
    .await;
    for escalation in escalations() {
        let name = escalation["metadata"]["name"].as_str().unwrap();
        assert!(roles.get_opt(name).await.unwrap().is_none(), "{name} exists");
    }
    let granted = roles.get("pilotlight-granted").await.unwrap().rules.unwrap_or_default();
    let is_all = |part: &String| part == "*";
    assert!(!granted.iter().any(|rule| rule.verbs.iter().any(is_all)), "{granted:#?}");
    plane.stop().await;
}

#[tokio::test]
async fn account_of_the_manager_gains_no_further_right_by_itself() {
    let plane = installed().await;
    grant_all(&plane.client().unwrap()).await;
    let token = plane.service_account_token("pilotlight", "pilotlight").await.unwrap();
    let client = Client::try_from(plane.token_config(&token)).unwrap();
    let by = PostParams::default();
    let roles = Api::<ClusterRole>::all(client.clone());
    until("the grants are effective", async || {
        roles.list(&Default::default()).await.map_err(|error| error.to_string())
    })
    .await;

    for escalation in escalations() {
        let name = escalation["metadata"]["name"].to_string();
        let role: ClusterRole = serde_json::from_value(escalation).unwrap();
        assert_forbidden(&name, roles.create(&by, &role).await);
    }
    let label = json!({"metadata": {"labels": {"pilotlight.dev/aggregate-to-manager": "true"}}});
    let labelled =
        roles.patch("cluster-admin", &PatchParams::default(), &Patch::Merge(label)).await;
    assert_forbidden("a label on cluster-admin", labelled);
    let rule = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let own = roles.patch("pilotlight", &PatchParams::default(), &Patch::Merge(rule)).await;
    assert_forbidden("further rules in its own role", own);
    let binding = json!({
        "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "pilotlight", "namespace": "pilotlight"}],
    });
    let bindings = Api::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>::all(client.clone());
    let binding = serde_json::from_value(binding).unwrap();
    assert_forbidden("a binding", bindings.create(&by, &binding).await);
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "kube-system");
    let request = TokenRequest::default();
    assert_forbidden("a token", accounts.create_token_request("default", &by, &request).await);
    let secret = json!({
        "metadata": {
            "name": "token", "annotations": {"kubernetes.io/service-account.name": "default"},
        },
        "type": "kubernetes.io/service-account-token",
    });
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client, "kube-system");
    let secret = serde_json::from_value(secret).unwrap();
    assert_forbidden("a token by a Secret", secrets.create(&by, &secret).await);
    plane.stop().await;
}

#[tokio::test]
async fn redirect_of_a_hook_is_refused_with_the_flags_of_the_deployment() {
    let plane = installed().await;
    let client = plane.client().unwrap();
    apply(&client, &Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grant-example.yaml")).await;
    let attacker = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/collect", attacker.local_addr().unwrap());
    let hook = HookServer::start().await;
    hook.answers(move |_| Answer::Status(307, vec![("location", target.clone())]));
    let greetings = CrdBuilder::new("demo.pilotlight.dev", "Greeting");
    apply_object(&client, with_kind(&greetings)).await;
    let _manager = manager(&plane).await;
    let controller = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": {"name": "greetings"},
        "spec": {
            "generateSelector": true,
            "parentResource": {"apiVersion": "demo.pilotlight.dev/v1", "resource": "greetings"},
            "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
            "hooks": {"sync": {"webhook": {"url": hook.url}}},
        },
    });
    apply_object(&client, controller).await;
    let parents = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        "default",
        &greetings.api_resource("v1"),
    );
    until("the parent is created", async || {
        let parent = greetings.object("hello", json!({"secret": "only for the hook"}));
        parents.create(&PostParams::default(), &parent).await.map_err(|error| error.to_string())
    })
    .await;

    let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(client.clone(), "default");
    let reported = until("an Event reports the status of the redirect", async || {
        let all = events.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let texts: Vec<_> = all.items.into_iter().filter_map(|event| event.message).collect();
        match texts.iter().any(|text| text.contains("307")) {
            true => Ok(()),
            false => Err(format!("{texts:#?}")),
        }
    });
    tokio::select! {
        biased;
        connected = attacker.accept() => panic!("the target of the redirect was called: {connected:?}"),
        () = reported => {}
    }
    plane.stop().await;
}

/// Manifest of a CRD.
fn with_kind(crd: &CrdBuilder) -> Value {
    let mut object = serde_json::to_value(crd.build()).unwrap();
    object["apiVersion"] = json!("apiextensions.k8s.io/v1");
    object["kind"] = json!("CustomResourceDefinition");
    object
}
