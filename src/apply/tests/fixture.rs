//! Simulated server with an owner of sets, and objects in short notation.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::{
    apply::{Applier, MEMBER_ANNOTATION, ObjectName, Outcome, Plan, Set, WriteResult},
    kind::{GroupKind, Scope},
    testing::{
        CrdBuilder, Verb,
        simulated::{Delays, SimulatedOptions, SimulatedServer},
    },
};

/// Field manager of the tests.
pub(super) const MANAGER: &str = "shop";

/// Server with namespaces `default` and `far`, an owner, and an applier.
pub(super) struct Fixture {
    pub(super) server: SimulatedServer,
    pub(super) applier: Applier,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let options = SimulatedOptions { delays: Delays::none(), ..SimulatedOptions::default() };
        let server = SimulatedServer::with(options);
        for name in ["far", "third"] {
            let namespace = json!({ "metadata": { "name": name } });
            server.apply(with_type(namespace, "v1", "Namespace")).unwrap();
        }
        let applier = Applier::new(server.client(), MANAGER);
        let fixture = Self { server, applier };
        fixture.create_owner();
        fixture
    }

    /// Creates the owner, the ConfigMap `owner`.
    pub(super) fn create_owner(&self) {
        self.server.apply(json_map("default", "owner", "")).unwrap();
    }

    pub(super) fn owner(&self) -> ConfigMap {
        serde_json::from_value(self.map("default", "owner").unwrap()).unwrap()
    }

    /// Empty set of the owner.
    pub(super) fn set(&self) -> Set {
        Set::of(&self.owner(), "set")
    }

    /// Set of the owner with ConfigMaps of the namespace `default`, each with its data.
    pub(super) fn maps(&self, maps: &[(&str, &str)]) -> Set {
        maps.iter().fold(self.set(), |set, (name, data)| set.object(map("default", name, data)))
    }

    pub(super) fn map(&self, namespace: &str, name: &str) -> Option<Value> {
        self.server.get("v1", "ConfigMap", namespace, name).ok()
    }

    /// Names of the ConfigMaps of a namespace, without the owner.
    pub(super) fn names(&self, namespace: &str) -> Vec<String> {
        let maps = self.server.list("v1", "ConfigMap").unwrap();
        let metadata = maps.iter().map(|it| &it["metadata"]);
        let here = metadata.filter(|it| it["namespace"] == namespace && it["name"] != "owner");
        here.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn apply(&self, set: Set) -> Outcome {
        self.applier.apply(set).await.unwrap()
    }

    pub(super) async fn plan(&self, set: Set) -> Plan {
        self.applier.plan(set).await.unwrap()
    }

    /// Requests since the last call: verb, resource and name.
    pub(super) fn requests(&self) -> Vec<String> {
        let requests = self.server.requests();
        self.server.forget_requests();
        let shown = requests.iter().map(|it| {
            let verb = format!("{:?}", it.info.verb).to_lowercase();
            format!("{verb} {} {}", it.info.resource, it.info.name).trim_end().to_owned()
        });
        shown.collect()
    }

    /// Deletions by clients since the start, or since the record was dropped.
    pub(super) fn deletions(&self) -> Vec<String> {
        let requests = self.server.requests();
        let deletions = requests.iter().filter(|it| it.info.verb == Verb::Delete);
        deletions.map(|it| format!("{}/{}", it.info.namespace, it.info.name)).collect()
    }
}

pub(super) fn map(namespace: &str, name: &str, data: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    let data = Some(BTreeMap::from([("v".to_owned(), data.to_owned())]));
    ConfigMap { metadata, data, ..ConfigMap::default() }
}

pub(super) fn json_map(namespace: &str, name: &str, data: &str) -> Value {
    with_type(serde_json::to_value(map(namespace, name, data)).unwrap(), "v1", "ConfigMap")
}

pub(super) fn with_type(mut object: Value, api_version: &str, kind: &str) -> Value {
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}

pub(super) fn secret(name: &str, value: &str) -> Secret {
    let metadata = map("default", name, "").metadata;
    let string_data = Some(BTreeMap::from([("v".to_owned(), value.to_owned())]));
    Secret { metadata, string_data, ..Secret::default() }
}

pub(super) fn map_name(namespace: &str, name: &str) -> ObjectName {
    let kind = GroupKind { group: String::new(), kind: "ConfigMap".to_owned() };
    ObjectName { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
}

pub(super) fn widgets() -> CrdBuilder {
    CrdBuilder::new("x.test", "Widget")
}

/// Set with a widget of the namespace `default`.
pub(super) fn with_widget(set: Set, name: &str, size: u32) -> Set {
    let widget = json!({
        "metadata": { "namespace": "default", "name": name }, "spec": { "size": size },
    });
    set.dynamic(&widgets().api_resource("v1"), Scope::Namespaced, widget)
}

/// Lines of an outcome.
pub(super) fn lines(outcome: &Outcome) -> Vec<String> {
    outcome.objects.iter().map(ToString::to_string).collect()
}

/// Lines of a plan.
pub(super) fn plan_lines(plan: &Plan) -> Vec<String> {
    plan.to_string().lines().map(str::to_owned).collect()
}

/// Verb of the result for a ConfigMap of the namespace `default`.
pub(super) fn verb(outcome: &Outcome, name: &str) -> &'static str {
    outcome.of(&map_name("default", name)).map_or("absent", WriteResult::verb)
}

/// Member record of an object.
pub(super) fn record(object: &Value) -> &Value {
    &object["metadata"]["annotations"][MEMBER_ANNOTATION]
}

/// Returns a client with which `act` precedes each request: method and path.
pub(super) fn intercept(
    server: &SimulatedServer,
    act: impl FnMut(&SimulatedServer, &str, &str) + Send + 'static,
) -> kube::Client {
    let act = std::sync::Arc::new(parking_lot::Mutex::new(act));
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (act, server) = (act.clone(), server.clone());
        async move {
            act.lock()(&server, request.method().as_str(), request.uri().path());
            tower::ServiceExt::oneshot(server.service("system:admin"), request).await
        }
    });
    kube::Client::new(service, "default")
}

/// Creates an object by a field manager, unless its name is taken.
pub(super) async fn create_as(
    server: &SimulatedServer,
    resource: &ApiResource,
    object: Value,
    manager: &str,
) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let namespace = object.metadata.namespace.clone().unwrap();
    let objects = Api::<DynamicObject>::namespaced_with(server.client(), &namespace, resource);
    let field_manager = Some(manager.to_owned());
    let by = PostParams { field_manager, ..PostParams::default() };
    match objects.create(&by, &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => panic!("{error}"),
    }
}
