//! Handle by which a test controls the simulated cluster.

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
    access::{AccessRule, SCRIPT},
    call::{Call, CallResult},
    cluster::SimulatedCluster,
    options::Delays,
    refusal::Refusal,
    service::SimulatedService,
    shared::{SharedServer, SimulatedRequest},
};
use crate::{CrdBuilder, Verb};
pub(super) const ADMIN: &str = "system:admin";

/// Error of an operation of the script.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// Type that is not served; install its CRD first and wait until it is established.
    #[error("no type {kind} is served in {api_version}: install its CRD and wait for it")]
    UnknownType {
        /// `apiVersion` of the object.
        api_version: String,
        /// Kind of the object.
        kind: String,
    },
    /// Refusal by the server, as a client would get it.
    #[error("{message} ({code} {reason})")]
    Refused {
        /// HTTP status code.
        code: u16,
        /// Reason in the status; empty when the response is plain text.
        reason: String,
        /// Message of the server.
        message: String,
    },
    /// Object that cannot be converted to a path or to JSON.
    #[error("the object cannot be sent: {0}")]
    Object(String),
}

/// Options of a simulated server.
#[derive(Clone, Debug, Default)]
pub struct SimulatedOptions {
    /// Durations of the control plane's background work.
    pub delays: Delays,
    /// Seed of uids and generated names: equal seeds give equal names.
    pub seed: u64,
    /// Wall clock time at the start of the server; the machine's by default.
    pub begin: Option<Timestamp>,
}

/// Simulated API server. Clones are handles of the same server.
///
/// No task runs in the background: each access first runs the control plane's work that was due, at
/// its due time.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::Api;
/// use pilotlight_testing::simulated::SimulatedServer;
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = SimulatedServer::new();
/// server.apply(json!({
///     "apiVersion": "v1", "kind": "ConfigMap",
///     "metadata": { "name": "colours", "namespace": "default" },
/// }))?;
///
/// let config_maps = Api::<ConfigMap>::default_namespaced(server.client());
/// assert!(config_maps.get_opt("colours").await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedServer {
    shared: Arc<SharedServer>,
}

impl Default for SimulatedServer {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedServer {
    /// Creates a server with the namespaces of a new cluster.
    pub fn new() -> Self {
        Self::with(SimulatedOptions::default())
    }

    /// Creates a server with options.
    pub fn with(options: SimulatedOptions) -> Self {
        let begin = options.begin.unwrap_or_else(Timestamp::now);
        Self {
            shared: SharedServer::new(SimulatedCluster::new(begin, options.seed, options.delays)),
        }
    }

    // --- clients

    /// Returns a client with full access, except for denied requests. It belongs to the runtime
    /// that creates it.
    pub fn client(&self) -> Client {
        self.client_as(ADMIN)
    }

    /// Returns a client of another user.
    pub fn client_as(&self, user: &str) -> Client {
        Client::new(self.service(user), "default")
    }

    /// Returns the service that answers a user's requests, for a custom stack of layers under
    /// [`Client::new`].
    pub fn service(&self, user: &str) -> SimulatedService {
        SimulatedService::new(Arc::clone(&self.shared), user)
    }

    // --- objects

    /// Creates an object, or replaces the object of its name. The namespace of a namespaced object
    /// is `default` unless it names one.
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

    /// A status subresource needs a separate request.
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

    /// Changes an object by a merge patch, including its status.
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

    /// Returns an object.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when it does not exist.
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

    /// Returns all objects of a type, in all namespaces.
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

    /// Deletes an object, as `kubectl delete` does; finalizers keep it.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when it does not exist.
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
    /// [`ScriptError::Refused`] when the server refuses it.
    pub fn install(&self, crd: &CustomResourceDefinition) -> Result<Value, ScriptError> {
        let mut crd =
            serde_json::to_value(crd).map_err(|error| ScriptError::Object(error.to_string()))?;
        super::object::fields(&mut crd).remove("status");
        self.apply(crd)
    }

    /// Deletes a CRD by its name, `plural.group`; it terminates until its instances are deleted.
    ///
    /// # Errors
    ///
    /// [`ScriptError::Refused`] with 404 when it does not exist.
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

    /// Waits until a CRD no longer exists.
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

    /// Waits until `condition` holds, which is evaluated again after each change.
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
            // Either outcome is a reason to evaluate the condition again.
            time::timeout(wait.max(Duration::from_millis(1)), changes.changed()).await.ok();
        }
    }

    // --- the control plane

    /// Sets the durations of the control plane's background work from now on.
    pub fn set_delays(&self, delays: Delays) {
        self.shared.act(|cluster, _| cluster.delays = delays);
    }

    /// Replaces the access rules. Open watches stay open, as on the real server.
    pub fn set_rbac(&self, rules: impl IntoIterator<Item = AccessRule>) {
        let rules = rules.into_iter().collect();
        self.shared.act(|cluster, _| cluster.rules = rules);
    }

    /// Compacts the history: older versions expire for lists, pages and watches.
    pub fn compact(&self) {
        self.shared.act(|cluster, _| cluster.compact());
    }

    /// Ends the watches of a type, `plural.group`, as the server does at their timeout; returns
    /// their number.
    pub fn close_watches(&self, resource: &str) -> usize {
        self.shared.act(|cluster, _| cluster.watches.close(resource))
    }

    /// Restarts the server: drops all connections and the caches of the process, so that watches
    /// cannot be resumed.
    pub fn restart(&self) {
        self.shared.drop_connections(true);
        self.shared.act(|cluster, _| cluster.restart(None));
    }

    /// Restarts the server from a backup: as [`SimulatedServer::restart`], with another resource
    /// version and unchanged objects.
    pub fn restart_at(&self, resource_version: u64) {
        self.shared.drop_connections(true);
        self.shared.act(|cluster, _| cluster.restart(Some(resource_version)));
    }

    /// Drops all connections and refuses new ones until [`SimulatedServer::start`].
    pub fn stop(&self) {
        self.shared.drop_connections(false);
        self.shared.act(|cluster, _| cluster.restart(None));
    }

    /// Accepts connections again.
    pub fn start(&self) {
        self.shared.set_up();
    }

    /// Sets the types that the service of an APIService (`version.group`) serves. The service is
    /// unavailable until [`SimulatedServer::set_available`].
    pub fn back_api_service(&self, name: &str, types: &[CrdBuilder]) {
        self.shared.act(|cluster, _| cluster.back(name, types));
    }

    /// Sets whether the service of an APIService (`version.group`) answers.
    pub fn set_available(&self, name: &str, available: bool) {
        self.shared.act(|cluster, _| cluster.set_available(name, available));
    }

    /// Sets whether a type (`plural.group`) can be listed and not watched, like
    /// `pods.metrics.k8s.io`: discovery offers `get` and `list`, a watch is answered with 405, a
    /// list has no pages, and objects have neither uid nor resourceVersion. Open watches continue.
    /// Discovery describes a type of a CRD in the same way, while its CRD says otherwise.
    pub fn set_list_only(&self, resource: &str, list_only: bool) {
        self.shared.act(|cluster, _| match list_only {
            true => drop(cluster.list_only.insert(resource.into())),
            false => drop(cluster.list_only.remove(resource)),
        });
    }

    // --- observation

    /// Returns the resource version of the last change.
    pub fn resource_version(&self) -> u64 {
        self.shared.act(|cluster, _| cluster.history.version())
    }

    /// Returns the age of the server.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// Returns all requests of clients so far, including open ones and without those of the script.
    /// Of more than 200 000, the oldest that have ended are dropped.
    pub fn requests(&self) -> Vec<SimulatedRequest> {
        self.shared.requests()
    }

    /// Drops the record of all requests that have ended.
    pub fn forget_requests(&self) {
        self.shared.forget_requests();
    }

    /// Returns the number of open watches by type (`plural.group`).
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
    ) -> Result<Arc<super::resource::SimulatedResource>, ScriptError> {
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
        // Delays of clients do not apply to the script.
        call.waited = true;
        let CallResult::Done(reply) = self.shared.respond(&call) else {
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
