//! The handle by which a test plays the cluster's part.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{Method, Uri};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::Client;
use serde_json::{Value, json};
use tokio::time;

use super::{
    access::AccessRule,
    call::{Answer, Call},
    cluster::Cluster,
    options::Delays,
    refusal::Refusal,
    service::SimulatedService,
    shared::{Shared, SimulatedRequest},
};
use crate::testing::{CrdBuilder, Verb};

/// Rules do not bind the script.
pub(super) const SCRIPT: &str = "system:script";
pub(super) const ADMIN: &str = "system:admin";

/// Why the script could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// No such type is served; install its CRD first and wait until it is established.
    #[error("no type {kind} is served in {api_version}: install its CRD and wait for it")]
    UnknownType {
        /// As in the object.
        api_version: String,
        /// As in the object.
        kind: String,
    },
    /// The server refused, as it would refuse a client.
    #[error("{message} ({code} {reason})")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The reason in the status; empty when the answer is plain text.
        reason: String,
        /// What the server said.
        message: String,
    },
    /// The object cannot be put into a path or into JSON.
    #[error("the object cannot be sent: {0}")]
    Object(String),
}

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct SimulatedOptions {
    /// How long the control plane takes.
    pub delays: Delays,
    /// Where uids and generated names come from: equal seeds, equal names.
    pub seed: u64,
    /// What the clock on the wall shows when the server begins; the machine's by default.
    pub begin: Option<Timestamp>,
}

/// A simulated API server. Clones are handles of the same one.
///
/// Nothing runs in the background: what the control plane does by itself happens when somebody
/// looks, at the time at which it was due.
#[derive(Clone, Debug)]
pub struct SimulatedServer {
    shared: Arc<Shared>,
}

impl Default for SimulatedServer {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedServer {
    /// A server with the namespaces of a new cluster.
    pub fn new() -> Self {
        Self::with(SimulatedOptions::default())
    }

    /// A server that is set up otherwise.
    pub fn with(options: SimulatedOptions) -> Self {
        let begin = options.begin.unwrap_or_else(Timestamp::now);
        Self { shared: Shared::new(Cluster::new(begin, options.seed, options.delays)) }
    }

    // --- clients

    /// A client that may do everything that no rule denies. It belongs to the runtime in which it
    /// is made.
    pub fn client(&self) -> Client {
        self.client_as(ADMIN)
    }

    /// A client of another user.
    pub fn client_as(&self, user: &str) -> Client {
        Client::new(self.service(user), "default")
    }

    /// What answers a user's requests, for a stack of layers of one's own under [`Client::new`].
    pub fn service(&self, user: &str) -> SimulatedService {
        SimulatedService::new(Arc::clone(&self.shared), user)
    }

    // --- objects

    /// Creates an object, or replaces what there is of its name. An object that names no
    /// namespace belongs to `default`, if its type has namespaces.
    ///
    /// # Errors
    ///
    /// [`ScriptError`] when its type is not served or the server refuses it.
    pub fn apply(&self, object: Value) -> Result<Value, ScriptError> {
        let (path, name) = self.path_of(&object)?;
        let named = format!("{path}/{name}");
        let live = match self.send(Method::GET, &named, "", None) {
            Ok(live) => live,
            Err(ScriptError::Refused { code: 404, .. }) => {
                return self.send(Method::POST, &path, "", Some(&object));
            }
            Err(error) => return Err(error),
        };
        let mut object = object;
        let version = live["metadata"]["resourceVersion"].clone();
        super::object::metadata(&mut object).insert("resourceVersion".to_owned(), version);
        let updated = self.send(Method::PUT, &named, "", Some(&object))?;
        self.apply_status(&named, object, updated)
    }

    /// The status is another request where it is a subresource.
    fn apply_status(
        &self,
        path: &str,
        mut object: Value,
        updated: Value,
    ) -> Result<Value, ScriptError> {
        let status = &object["status"];
        if status.is_null() || *status == updated["status"] {
            return Ok(updated);
        }
        let version = updated["metadata"]["resourceVersion"].clone();
        super::object::metadata(&mut object).insert("resourceVersion".to_owned(), version);
        self.send(Method::PUT, &format!("{path}/status"), "", Some(&object))
    }

    /// Changes an object by a merge patch, its status too.
    ///
    /// # Errors
    ///
    /// As for [`SimulatedServer::apply`].
    pub fn merge(&self, object: &Value) -> Result<Value, ScriptError> {
        let (path, name) = self.path_of(object)?;
        let mut path = format!("{path}/{name}");
        let fields = object.as_object().into_iter().flatten();
        let is_status = fields
            .filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind" | "metadata"))
            .all(|(field, _)| field == "status")
            && !object["status"].is_null();
        if is_status {
            path.push_str("/status");
        }
        self.send(Method::PATCH, &path, "application/merge-patch+json", Some(object))
    }

    /// An object as it is now.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when there is none.
    pub fn get(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Value, ScriptError> {
        let path = self.path(api_version, kind, namespace)?;
        self.send(Method::GET, &format!("{path}/{name}"), "", None)
    }

    /// All objects of a type, in all namespaces.
    ///
    /// # Errors
    ///
    /// [`ScriptError::UnknownType`] when the type is not served.
    pub fn list(&self, api_version: &str, kind: &str) -> Result<Vec<Value>, ScriptError> {
        let resource = self.resource(api_version, kind)?;
        let path = collection(&resource.group, &resource.version, "", &resource.plural);
        let list = self.send(Method::GET, &path, "", None)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Deletes an object, as `kubectl delete` does; finalizers hold it.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when there is none.
    pub fn remove(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), ScriptError> {
        let path = self.path(api_version, kind, namespace)?;
        let options = json!({ "propagationPolicy": "Background" });
        self.send(Method::DELETE, &format!("{path}/{name}"), "", Some(&options)).map(drop)
    }

    /// Creates a CRD, or replaces its specification.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] when the server does not accept it.
    pub fn install(&self, crd: &CustomResourceDefinition) -> Result<Value, ScriptError> {
        let mut crd =
            serde_json::to_value(crd).map_err(|error| ScriptError::Object(error.to_string()))?;
        super::object::fields(&mut crd).remove("status");
        self.apply(crd)
    }

    /// Deletes a CRD by its name, `plural.group`; it terminates until its instances are gone.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when there is none.
    pub fn uninstall(&self, name: &str) -> Result<(), ScriptError> {
        self.remove("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
    }

    /// Waits until a CRD is established.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_established(&self, name: &str) {
        self.wait_until(|server| {
            let crd = server.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name);
            let conditions = crd.unwrap_or_default()["status"]["conditions"].clone();
            conditions.as_array().into_iter().flatten().any(|condition| {
                condition["type"] == "Established" && condition["status"] == "True"
            })
        })
        .await;
    }

    /// Waits until a CRD is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_gone(&self, name: &str) {
        self.wait_until(|server| {
            server.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name).is_err()
        })
        .await;
    }

    /// Waits until `condition` holds; it is asked again whenever something has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn wait_until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.shared.subscribe();
        loop {
            changes.mark_unchanged();
            if condition(self) {
                return;
            }
            let wait = self.shared.due_in().unwrap_or(Duration::from_secs(3600));
            // Either outcome is a reason to look again.
            time::timeout(wait.max(Duration::from_millis(1)), changes.changed()).await.ok();
        }
    }

    // --- the control plane's moods

    /// Sets how long the control plane takes from now on.
    pub fn set_delays(&self, delays: Delays) {
        self.shared.act(|cluster, _| cluster.delays = delays);
    }

    /// Replaces the rules of who may do what. Open watches stay open, as on the real server.
    pub fn set_rbac(&self, rules: impl IntoIterator<Item = AccessRule>) {
        let rules = rules.into_iter().collect();
        self.shared.act(|cluster, _| cluster.rules = rules);
    }

    /// Forgets the past: lists, pages and watches from before now have expired.
    pub fn compact(&self) {
        self.shared.act(|cluster, _| cluster.compact());
    }

    /// Ends the watches of a type, `plural.group`, as the server does at their time; says how many.
    pub fn close_watches(&self, resource: &str) -> usize {
        self.shared.act(|cluster, _| cluster.watches.close(resource))
    }

    /// Drops all connections, and what a process keeps in memory: watches cannot be resumed.
    pub fn restart(&self) {
        self.shared.drop_connections(true);
        self.shared.act(|cluster, _| cluster.restart(None));
    }

    /// As [`SimulatedServer::restart`], from a backup: the resource version goes on from another
    /// one, while the objects are as they are.
    pub fn restart_at(&self, resource_version: u64) {
        self.shared.drop_connections(true);
        self.shared.act(|cluster, _| cluster.restart(Some(resource_version)));
    }

    /// Drops all connections and accepts none until [`SimulatedServer::start`].
    pub fn stop(&self) {
        self.shared.drop_connections(false);
        self.shared.act(|cluster, _| cluster.restart(None));
    }

    /// Accepts connections again.
    pub fn start(&self) {
        self.shared.set_up();
    }

    /// Which types the service of an APIService serves (`version.group`). Until
    /// [`SimulatedServer::set_available`] says that it answers, it does not.
    pub fn back_api_service(&self, name: &str, types: &[CrdBuilder]) {
        self.shared.act(|cluster, _| cluster.back(name, types));
    }

    /// Whether the service of an APIService (`version.group`) answers.
    pub fn set_available(&self, name: &str, available: bool) {
        self.shared.act(|cluster, _| cluster.set_available(name, available));
    }

    // --- what is seen of it

    /// The version of the last change.
    pub fn resource_version(&self) -> u64 {
        self.shared.act(|cluster, _| cluster.history.version())
    }

    /// How long it has been there.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// All requests of clients so far, those that run included. The script's own are none. Of more
    /// than 200 000, the oldest that are at their end are forgotten.
    pub fn requests(&self) -> Vec<SimulatedRequest> {
        self.shared.requests()
    }

    /// Forgets the requests that are at their end.
    pub fn forget_requests(&self) {
        self.shared.forget_requests();
    }

    /// How many watches are open, by type (`plural.group`).
    pub fn open_watches(&self) -> BTreeMap<String, usize> {
        let mut open = BTreeMap::new();
        for request in self.requests() {
            let answered = request.code == Some(200);
            if request.is_open() && answered && request.info.verb == Verb::Watch {
                *open.entry(request.resource()).or_default() += 1;
            }
        }
        open
    }

    // --- paths

    fn resource(
        &self,
        api_version: &str,
        kind: &str,
    ) -> Result<Arc<super::resource::Resource>, ScriptError> {
        let found = self.shared.act(|cluster, _| cluster.resource_of_kind(api_version, kind));
        found.ok_or_else(|| ScriptError::UnknownType {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    fn path(&self, api_version: &str, kind: &str, namespace: &str) -> Result<String, ScriptError> {
        let resource = self.resource(api_version, kind)?;
        let namespace = match (resource.namespaced, namespace) {
            (false, _) => "",
            (true, "") => "default",
            (true, namespace) => namespace,
        };
        Ok(collection(&resource.group, &resource.version, namespace, &resource.plural))
    }

    fn path_of(&self, object: &Value) -> Result<(String, String), ScriptError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let metadata = &object["metadata"];
        let path = self.path(&api_version, &kind, &text(&metadata["namespace"]))?;
        Ok((path, text(&metadata["name"])))
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value, ScriptError> {
        let uri: Uri = path.parse().map_err(|_| ScriptError::Object(format!("path {path:?}")))?;
        let mut call = Call::new(SCRIPT, &method, &uri);
        content_type.clone_into(&mut call.content_type);
        SCRIPT.clone_into(&mut call.user_agent);
        call.body = body.map(Value::to_string).unwrap_or_default().into();
        // The script does not wait for what keeps clients waiting.
        call.waited = true;
        let Answer::Done(reply) = self.shared.respond(&call) else {
            let refusal = Refusal::not_simulated("a watch by the script");
            return Err(refused(refusal.code, &refusal.status(), ""));
        };
        let value: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        if reply.code < 300 {
            return Ok(value);
        }
        Err(refused(reply.code, &value, &String::from_utf8_lossy(&reply.body)))
    }
}

fn refused(code: u16, status: &Value, text: &str) -> ScriptError {
    let field = |name: &str| status[name].as_str().map(str::to_owned);
    ScriptError::Refused {
        code,
        reason: field("reason").unwrap_or_default(),
        message: field("message").unwrap_or_else(|| text.trim().to_owned()),
    }
}

fn collection(group: &str, version: &str, namespace: &str, plural: &str) -> String {
    let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
    match namespace {
        "" => format!("{root}/{version}/{plural}"),
        namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
    }
}
