//! API server of a run, simulated or real, and the operations on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use http::{Request, StatusCode};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Event, Namespace},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use parking_lot::Mutex;
use pilotlight::{
    meta,
    testing::{
        ControlPlane, ControlPlaneOptions, Faults, RequestInfo, Verb,
        simulated::{AccessRule, SimulatedOptions, SimulatedServer},
    },
    transport::{Transport, TransportOptions},
};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tower::Service;

use crate::{
    desired::{GROUP, Kind},
    manager::Naming,
};

pub(crate) const NAMESPACE: &str = "chaos";
/// User as which the manager sends requests.
const USER: &str = "pilot";
/// Longest time for which requests are retried while the server is not ready for them.
const PATIENCE: Duration = Duration::from_secs(300);
const BREATH: Duration = Duration::from_millis(250);

/// Server, with a client that is not subject to faults.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) writes: Arc<Writes>,
    backend: Backend,
}

/// Writes of the manager to children that the server has carried out.
#[derive(Debug, Default)]
pub(crate) struct Writes(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) creates: usize,
    /// Number of deletions, by the part of the name that the children of every parent of that name
    /// share.
    pub(crate) deletes: BTreeMap<String, usize>,
}

enum Backend {
    Simulated(SimulatedServer),
    Real(Box<ControlPlane>),
}

impl Server {
    pub(crate) async fn simulated(seed: u64) -> anyhow::Result<Self> {
        let server = SimulatedServer::with(SimulatedOptions { seed, ..Default::default() });
        let server = Self {
            client: server.client(),
            writes: Arc::default(),
            backend: Backend::Simulated(server),
        };
        server.prepare().await?;
        Ok(server)
    }

    pub(crate) async fn real() -> anyhow::Result<Self> {
        let options = ControlPlaneOptions { audit: false, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(options).await?;
        let (client, backend) = (plane.client()?, Backend::Real(Box::new(plane)));
        let server = Self { client, writes: Arc::default(), backend };
        let all = [
            json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["get"] }),
            json!({
                "apiGroups": ["", "events.k8s.io", "metacontroller.k8s.io"],
                "resources": ["*"],
                "verbs": ["*"],
            }),
            json!({
                "apiGroups": ["apiextensions.k8s.io", "apiregistration.k8s.io"],
                "resources": ["*"],
                "verbs": ["list", "watch"],
            }),
        ];
        server.role("chaos-base", &all).await?;
        server.bind("chaos-base").await?;
        server.prepare().await?;
        Ok(server)
    }

    /// Returns whether the server is simulated. Its garbage collector deletes children at once, for
    /// every kind of owner.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.backend, Backend::Simulated(_))
    }

    /// Names of children. On the simulated server names can be reused, because no child of an
    /// earlier parent of the same name remains.
    pub(crate) fn naming(&self) -> Naming {
        if self.is_simulated() { Naming::Reused } else { Naming::PerUid }
    }

    pub(crate) async fn stop(self) {
        match self.backend {
            Backend::Simulated(_) => {}
            Backend::Real(plane) => plane.stop().await,
        }
    }

    /// Client of the manager, with these faults, on the runtime `on`.
    pub(crate) fn manager_client(&self, faults: &Faults, on: &Handle) -> anyhow::Result<Client> {
        let _on = on.enter();
        let layers = tower::ServiceBuilder::new().layer(faults.layer());
        let writes = Arc::clone(&self.writes);
        let config = match &self.backend {
            Backend::Simulated(server) => {
                let service = server.service(USER);
                let service = tower::service_fn(move |request: Request<Body>| {
                    let (mut service, writes) = (service.clone(), Arc::clone(&writes));
                    async move {
                        let write = Write::of(&request);
                        let answer = service.call(request).await;
                        if let Ok(answer) = &answer {
                            writes.note(write, answer.status());
                        }
                        answer
                    }
                });
                return Ok(Client::new(layers.service(service), NAMESPACE));
            }
            Backend::Real(plane) => plane.user(USER, &[])?,
        };
        let inner = Transport::new(config, TransportOptions::default())?.client()?;
        let service = tower::service_fn(move |request: Request<Body>| {
            let (inner, writes) = (inner.clone(), Arc::clone(&writes));
            async move {
                let write = Write::of(&request);
                let answer = inner.send(request).await;
                if let Ok(answer) = &answer {
                    writes.note(write, answer.status());
                }
                answer
            }
        });
        Ok(Client::new(layers.service(service), NAMESPACE))
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::<Namespace>::all(self.client.clone()).create(&post_params(), &namespace).await?;
        for crd in meta::crds() {
            self.crds().create(&post_params(), &crd).await?;
            retry("own types", async || {
                Api::<meta::api::CompositeController>::all(self.client.clone())
                    .list(&ListParams::default())
                    .await
            })
            .await?;
        }
        Ok(())
    }

    pub(crate) fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    pub(crate) fn parents(&self, kind: &Kind) -> Api<DynamicObject> {
        let (client, resource) = (self.client.clone(), kind.resource());
        match kind.cluster_scoped {
            true => Api::all_with(client, &resource),
            false => Api::namespaced_with(client, NAMESPACE, &resource),
        }
    }

    /// Installs the type once an earlier one is gone, and waits until it is served.
    pub(crate) async fn install(&self, kind: &Kind) -> anyhow::Result<()> {
        let crd = kind.crd().build();
        retry("an installation", async || self.crds().create(&post_params(), &crd).await).await?;
        let parents = self.parents(kind);
        retry("a new type", async || parents.list(&ListParams::default().limit(1)).await).await?;
        Ok(())
    }

    pub(crate) async fn uninstall(&self, kind: &Kind) -> anyhow::Result<()> {
        self.crds().delete(&kind.crd().name(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Updates whether the version that the controller uses is served.
    pub(crate) async fn serve(&self, kind: &Kind) -> anyhow::Result<()> {
        let versions = kind.crd().build().spec.versions;
        let change = Patch::Merge(json!({ "spec": { "versions": versions } }));
        self.crds().patch(&kind.crd().name(), &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Grants the manager the rights to the types that are allowed, and to no others.
    pub(crate) async fn allow(&self, kinds: &[Kind], changed: &Kind) -> anyhow::Result<()> {
        match &self.backend {
            Backend::Simulated(server) => {
                let denied = kinds.iter().filter(|kind| !kind.allowed).map(|kind| {
                    let name = kind.crd().name();
                    let status = format!("{}/status.{GROUP}", kind.plural());
                    AccessRule::deny().users([USER]).resources([name.as_str(), status.as_str()])
                });
                server.set_rbac(denied);
            }
            Backend::Real(_) => {
                let name = role_of(changed);
                if changed.allowed {
                    self.bind(&name).await?;
                } else {
                    let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
                    bindings.delete(&name, &DeleteParams::default()).await?;
                }
            }
        }
        Ok(())
    }

    /// Creates and binds the role of a type on the real server, so that `allow` can unbind it.
    pub(crate) async fn grant(&self, kind: &Kind) -> anyhow::Result<()> {
        if self.is_simulated() {
            return Ok(());
        }
        let name = role_of(kind);
        let resources = [kind.plural(), format!("{}/status", kind.plural())];
        let rule = json!({ "apiGroups": [GROUP], "resources": resources, "verbs": ["*"] });
        self.role(&name, &[rule]).await?;
        self.bind(&name).await
    }

    async fn role(&self, name: &str, rules: &[Value]) -> anyhow::Result<()> {
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        let roles = Api::<ClusterRole>::all(self.client.clone());
        roles.create(&post_params(), &serde_json::from_value(role)?).await?;
        Ok(())
    }

    async fn bind(&self, name: &str) -> anyhow::Result<()> {
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name,
            },
            "subjects": [
                { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER },
            ],
        });
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        bindings.create(&post_params(), &serde_json::from_value(binding)?).await?;
        Ok(())
    }

    /// Compacts the history, if the server offers that; returns whether it does. With `all`, also
    /// restarts the server.
    pub(crate) fn expire(&self, all: bool) -> bool {
        match &self.backend {
            Backend::Simulated(server) => {
                server.compact();
                if all {
                    server.restart();
                }
                true
            }
            Backend::Real(_) => false,
        }
    }

    /// Ages the server. The simulated one drops what the real one drops with time: history after 5
    /// minutes, Events after an hour. On the real one, deletes the children that its garbage
    /// collector has not deleted yet, so that later measurements do not include them.
    pub(crate) async fn age(&self, kinds: &[Kind]) -> anyhow::Result<()> {
        if !self.expire(false) {
            return self.collect(kinds).await;
        }
        for event in Api::<Event>::all(self.client.clone()).list(&ListParams::default()).await? {
            let (namespace, name) = (event.namespace().unwrap_or_default(), event.name_any());
            let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
            events.delete(&name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Restarts the garbage collector of the real server. If it once looked for an owner while the
    /// owner's version was not served or its type had another scope, it takes the owner for absent
    /// as long as it runs, and deletes each of its children.
    pub(crate) async fn restart_collector(&self) -> anyhow::Result<()> {
        match &self.backend {
            Backend::Simulated(_) => {}
            Backend::Real(plane) => plane.restart_controller_manager().await?,
        }
        Ok(())
    }

    async fn collect(&self, kinds: &[Kind]) -> anyhow::Result<()> {
        let mut parents = BTreeSet::new();
        for kind in kinds.iter().filter(|kind| kind.installed) {
            let all = self.parents(kind);
            let all = retry("parents", async || all.list(&ListParams::default()).await).await?;
            parents.extend(all.iter().filter_map(ResourceExt::uid));
        }
        let children = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        let all = retry("children", async || children.list(&ListParams::default()).await).await?;
        for child in all {
            let is_owned = child.owner_references().iter().any(|it| parents.contains(&it.uid));
            if child.name_any().starts_with("kind") && !is_owned {
                match children.delete(&child.name_any(), &DeleteParams::default()).await {
                    Ok(_) => {}
                    // The garbage collector was faster.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Clears the log of requests.
    pub(crate) fn forget(&self) {
        match &self.backend {
            Backend::Simulated(server) => server.forget_requests(),
            Backend::Real(_) => {}
        }
    }
}

/// Effect of a request on ConfigMaps.
#[derive(Clone, Debug)]
enum Write {
    Create,
    Delete(String),
    Other,
}

impl Write {
    fn of(request: &Request<Body>) -> Self {
        let info = RequestInfo::new(request.method(), request.uri());
        if info.resource != "configmaps" {
            Self::Other
        } else if info.verb == Verb::Create {
            Self::Create
        } else if info.verb == Verb::Delete {
            Self::Delete(info.name)
        } else {
            Self::Other
        }
    }
}

impl Writes {
    fn note(&self, write: Write, status: StatusCode) {
        if !status.is_success() {
            return;
        }
        let mut state = self.0.lock();
        match write {
            Write::Create => state.creates += 1,
            Write::Delete(name) => {
                let shared: Vec<_> = name.split('-').take(3).collect();
                *state.deletes.entry(shared.join("-")).or_default() += 1;
            }
            Write::Other => {}
        }
    }

    /// Number of children created, and of deletions of each child.
    pub(crate) fn so_far(&self) -> Counts {
        self.0.lock().clone()
    }
}

fn role_of(kind: &Kind) -> String {
    format!("chaos-{}", kind.plural())
}

pub(crate) fn post_params() -> PostParams {
    PostParams::default()
}

/// Retries a request until it succeeds, because the server may not be ready for it yet.
pub(crate) async fn retry<T>(
    what: &str,
    mut request: impl AsyncFnMut() -> kube::Result<T>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => bail!("{what}: {error}"),
            Err(_) => sleep(BREATH).await,
        }
    }
}
