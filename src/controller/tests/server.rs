//! Simulated server of these tests, with injected faults and without delays.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use kube::Client;

use super::*;
use crate::testing::{
    Action, CrdBuilder, Faults, Reply, Rule, RuleId, Verb,
    simulated::{AccessRule, Delays, SimulatedOptions, SimulatedServer},
};

const GROUP: &str = "example.com";
const NAMESPACE: &str = "ns";

/// Simulated server with its faults.
pub(super) struct Server {
    simulated: SimulatedServer,
    faults: Faults,
    forbidden: Mutex<BTreeSet<String>>,
    applied: AtomicU64,
    // Bytes read from all response bodies.
    bytes: Arc<AtomicU64>,
}

impl Server {
    pub(super) fn new() -> Self {
        // Owner references have made-up uids in these tests, so that garbage collection is off.
        let garbage_collection = Duration::from_secs(365 * 24 * 3600);
        let delays = Delays { garbage_collection, ..Delays::none() };
        let simulated = SimulatedServer::with(SimulatedOptions { delays, ..Default::default() });
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        });
        simulated.apply(namespace).unwrap();
        Self {
            simulated,
            faults: Faults::default(),
            forbidden: Mutex::default(),
            applied: AtomicU64::new(0),
            bytes: Arc::default(),
        }
    }

    pub(super) fn client(&self) -> Client {
        let bytes = Arc::clone(&self.bytes);
        let service = tower::ServiceBuilder::new()
            .map_response(move |response: http::Response<_>| {
                let bytes = Arc::clone(&bytes);
                response.map(|body| {
                    BodyExt::map_frame(body, move |frame: Frame<Bytes>| {
                        let read = frame.data_ref().map_or(0, Bytes::len);
                        bytes.fetch_add(u64::try_from(read).unwrap(), Ordering::Relaxed);
                        frame
                    })
                })
            })
            .layer(self.faults.layer());
        Client::new(service.service(self.simulated.service("controller")), "default")
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Installs the CRD of a type with the versions `v1`, the stored one, and `v2`; serves some.
    pub(super) fn install(&self, crd: CrdBuilder, served: &[&str]) {
        let crd = ["v1", "v2"].into_iter().fold(crd, |crd, version| {
            if served.contains(&version) {
                crd.version(version)
            } else {
                crd.unserved_version(version)
            }
        });
        self.simulated.install(&crd.build()).unwrap();
    }

    /// Installs the CRD of a type whose lists have this kind.
    pub(super) fn install_with_list_kind(&self, crd: &CrdBuilder, list_kind: &str) {
        let mut crd = crd.build();
        crd.spec.names.list_kind = Some(list_kind.to_owned());
        self.simulated.install(&crd).unwrap();
    }

    /// Deletes a CRD and all objects of its type.
    pub(super) fn uninstall(&self, plural: &str) {
        self.simulated.uninstall(&format!("{plural}.{GROUP}")).unwrap();
    }

    /// Creates or changes an object; a counter in an annotation makes every call a change.
    pub(super) fn apply(&self, object: Value) {
        self.apply_in(NAMESPACE, object);
    }

    /// Creates or changes an object in a namespace, which is created.
    pub(super) fn apply_in(&self, namespace: &str, mut object: Value) {
        let number = self.applied.fetch_add(1, Ordering::Relaxed);
        let created = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
        });
        self.simulated.apply(created).unwrap();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["annotations"] = json!({ "applied": number.to_string() });
        self.simulated.apply(object).unwrap();
    }

    /// Creates or changes an object without a namespace.
    pub(super) fn apply_cluster_scoped(&self, object: Value) {
        self.simulated.apply(object).unwrap();
    }

    pub(super) fn delete(&self, kind: &str, name: &str) {
        self.simulated.remove(&format!("{GROUP}/v1"), kind, NAMESPACE, name).unwrap();
    }

    /// Deletes an object of an APIService of these tests.
    pub(super) fn remove_gear(&self, name: &str) {
        self.simulated.remove("metrics.test/v1", "Gear", NAMESPACE, name).unwrap();
    }

    /// Deletes every object of a kind.
    pub(super) fn delete_all(&self, kind: &str) {
        for object in self.simulated.list(&format!("{GROUP}/v1"), kind).unwrap() {
            self.delete(kind, object["metadata"]["name"].as_str().unwrap());
        }
    }

    pub(super) fn serves(&self, kind: &str) -> bool {
        self.simulated.list(&format!("{GROUP}/v1"), kind).is_ok()
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.simulated.list(&format!("{GROUP}/v1"), kind).unwrap().len()
    }

    /// Creates or changes the lease of an election, so that `holder` has it for an hour; the empty
    /// holder frees it.
    pub(super) fn lease_to(&self, holder: &str) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "lease" },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 3600 },
        });
        self.apply_in("default", lease);
    }

    pub(super) fn lease_holder(&self) -> String {
        let leases = self.simulated.list("coordination.k8s.io/v1", "Lease").unwrap();
        leases[0]["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    // --- faults

    /// Forbids all requests to a resource.
    pub(super) fn forbid(&self, resource: &str) {
        self.forbidden.lock().unwrap().insert(resource.to_owned());
        self.set_rules();
    }

    pub(super) fn allow(&self, resource: &str) {
        self.forbidden.lock().unwrap().remove(resource);
        self.set_rules();
    }

    /// Forbids all requests to a resource in one namespace, and no others.
    pub(super) fn forbid_in(&self, namespace: &str, resource: &str) {
        let rule = AccessRule::deny().resources([resource]).namespaces([namespace]);
        self.simulated.set_rbac([rule]);
    }

    /// Sets the rules of all requests.
    pub(super) fn rules(&self, rules: impl IntoIterator<Item = AccessRule>) {
        self.simulated.set_rbac(rules);
    }

    /// Creates an APIService (`version.group`) whose service is not available.
    pub(super) fn add_api_service(&self, name: &str) {
        let (version, group) = name.split_once('.').unwrap();
        self.simulated.back_api_service(name, &[CrdBuilder::new(group, "Gear").version(version)]);
        let service = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": name },
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 100,
                "versionPriority": 10, "service": { "namespace": NAMESPACE, "name": "gears" },
            },
        });
        self.simulated.apply(service).unwrap();
    }

    /// Sets whether the service of an APIService answers.
    pub(super) fn set_available(&self, name: &str, available: bool) {
        self.simulated.set_available(name, available);
    }

    /// Sets whether a type can be listed and not watched.
    pub(super) fn set_list_only(&self, resource: &str, list_only: bool) {
        self.simulated.set_list_only(resource, list_only);
    }

    /// Deletes an APIService.
    pub(super) fn remove_api_service(&self, name: &str) {
        self.simulated.remove("apiregistration.k8s.io/v1", "APIService", "", name).unwrap();
    }

    fn set_rules(&self) {
        let forbidden = self.forbidden.lock().unwrap();
        let rule = |resource: &String| AccessRule::deny().resources([resource.as_str()]);
        self.simulated.set_rbac(forbidden.iter().map(rule));
    }

    /// Adds a fault to the next create request.
    pub(super) fn mishap(&self, mishap: Action) {
        self.faults.add(Rule::new(mishap).verb(Verb::Create).times(1));
    }

    /// Adds a fault rule; returns its id for the removal.
    pub(super) fn fault(&self, rule: Rule) -> RuleId {
        self.faults.add(rule)
    }

    pub(super) fn remove(&self, rule: RuleId) {
        self.faults.remove(rule);
    }

    /// Withholds all watch events of a type until `release`.
    pub(super) fn withhold(&self, plural: &str) -> RuleId {
        let silence = Rule::new(Action::Stall { after_bytes: 0 }).verb(Verb::Watch);
        let silence = self.faults.add(silence.resource(GROUP, plural));
        self.cut_watches(plural);
        silence
    }

    pub(super) fn release(&self, plural: &str, silence: RuleId) {
        self.faults.remove(silence);
        self.cut_watches(plural);
    }

    /// Delays lists of a type by a second.
    pub(super) fn take_time_to_list(&self, plural: &str) {
        let slow = Rule::new(Action::Delay(Duration::from_secs(1))).verb(Verb::List);
        self.faults.add(slow.resource(GROUP, plural));
    }

    /// Ends the open watches of a type.
    pub(super) fn cut_watches(&self, plural: &str) {
        self.faults.cut_open(|info| info.resource == plural && info.verb == Verb::Watch);
    }

    // --- observations

    /// Returns the number of create requests.
    pub(super) fn creations(&self) -> usize {
        self.faults.seen().iter().filter(|info| info.verb == Verb::Create).count()
    }

    /// Returns the number of list requests of a type.
    pub(super) fn lists(&self, plural: &str) -> usize {
        let seen = self.faults.seen().into_iter();
        seen.filter(|info| info.verb == Verb::List && info.resource == plural).count()
    }

    /// Returns the queries of all list requests of a type.
    pub(super) fn list_queries(&self, plural: &str) -> Vec<String> {
        let seen = self.faults.seen().into_iter();
        let lists = seen.filter(|info| info.verb == Verb::List && info.resource == plural);
        lists.map(|info| info.query).collect()
    }

    /// Returns the number of bytes read from response bodies.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of open watches at a path, which covers all namespaces.
    pub(super) fn watches(&self, path: &str) -> usize {
        let watches = self.simulated.requests().into_iter().filter(|request| {
            let info = &request.info;
            info.verb == Verb::Watch && info.path == path
        });
        watches.filter(|request| request.is_open() && request.code == Some(200)).count()
    }

    /// Returns the number of requests to a path other than creates, in one namespace or in all.
    pub(super) fn requests_of(&self, path: &str) -> usize {
        let within = format!("/namespaces/{NAMESPACE}/");
        let seen = self.faults.seen().into_iter().filter(|info| info.verb != Verb::Create);
        seen.filter(|info| info.path.replace(&within, "/") == path).count()
    }
}

/// Faults in which the server creates the object but the client does not learn of it.
pub(super) fn mishaps() -> [Action; 5] {
    [
        Action::Withhold,
        Action::Lose,
        Action::Cut { after_bytes: 1 },
        Action::Instead(Reply::status(504, "Timeout", "the server did not answer")),
        Action::Instead(Reply::status(500, "InternalError", "it failed")),
    ]
}
