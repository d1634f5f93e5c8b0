//! Declared controllers on a harness: a supervisor for those of one test, and their hook.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions},
};
use pilotlight::{
    informer::{InformerOptions, Selector},
    manager::RestartBackoff,
    meta::{
        self, MetaOptions, SUPERVISOR, Supervisor,
        api::{CompositeController, ControllerStatus, DecoratorController, StatusCondition},
    },
    testing::{ControlPlane, CrdBuilder},
};
use serde_json::{Value, json};
use tokio::time::{self, Instant, timeout};

use super::{Harness, HarnessOptions, HookServer, PATIENCE};

/// Label that selects the declared controllers of one test.
pub(super) const LABEL: &str = "pilotlight.test/scope";

/// Harness with a supervisor for its own declared controllers.
pub(crate) struct Supervised<'plane> {
    pub(crate) harness: Harness<'plane>,
    pub(crate) hook: HookServer,
}

impl Supervised<'static> {
    /// Starts on the shared control plane, with CompositeControllers installed.
    pub(crate) async fn start(name: &str) -> Self {
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        Supervised::on(plane, name).await
    }

    /// As [`Supervised::start`], for DecoratorControllers too.
    pub(crate) async fn decorating(name: &str) -> Self {
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        let kinds = [SUPERVISOR, "decoratorcontrollers"];
        let options = MetaOptions::default();
        Supervised::of(plane, name, HarnessOptions::default(), options, &kinds).await
    }

    /// As [`Supervised::start`], for a process that is limited to its namespace.
    pub(crate) async fn restricted(name: &str) -> Self {
        let plane = ControlPlane::shared();
        install_own_crds(plane).await;
        Supervised::with(
            plane,
            name,
            HarnessOptions { restricted: true, ..HarnessOptions::default() },
        )
        .await
    }

    /// Starts with controller `a` of widgets running, and a child for the parent `gear` of size 1.
    pub(crate) async fn at_work(name: &str) -> (Self, CrdBuilder) {
        let supervised = Self::start(name).await;
        let crd = supervised.harness.widgets();
        supervised.declare("a", supervised.spec(&crd)).await;
        supervised.install(&crd).await;
        supervised.harness.create(&crd, "gear", 1).await;
        supervised.child("gear", 1).await;
        (supervised, crd)
    }
}

impl<'plane> Supervised<'plane> {
    /// Starts on a control plane that may lack CompositeControllers.
    pub(crate) async fn on(plane: &'plane ControlPlane, name: &str) -> Self {
        Self::with(plane, name, HarnessOptions::default()).await
    }

    /// Starts with these options, except for the linger time of the informers.
    pub(crate) async fn with(
        plane: &'plane ControlPlane,
        name: &str,
        options: HarnessOptions,
    ) -> Self {
        Self::of(plane, name, options, MetaOptions::default(), &[SUPERVISOR]).await
    }

    /// Starts with these options of the declared controllers, except for their selector.
    pub(crate) async fn with_options(
        plane: &'plane ControlPlane,
        name: &str,
        options: MetaOptions,
    ) -> Self {
        Self::of(plane, name, HarnessOptions::default(), options, &[SUPERVISOR]).await
    }

    /// Starts the supervisors of these names.
    pub(crate) async fn of(
        plane: &'plane ControlPlane,
        name: &str,
        options: HarnessOptions,
        declared: MetaOptions,
        supervisors: &[&str],
    ) -> Self {
        let options = HarnessOptions {
            informers: InformerOptions { linger: Duration::from_secs(2), ..options.informers },
            restart_backoff: RestartBackoff::default(),
            ..options
        };
        let harness = Harness::on(plane, name, options).await;
        let hook = HookServer::start().await;
        let options =
            MetaOptions { target: Selector::label(LABEL, &harness.scope.namespace), ..declared };
        let all =
            harness.enter(|| Supervisor::all(&harness.cluster, &harness.manager, options)).unwrap();
        for supervisor in all.into_iter().filter(|one| supervisors.contains(&one.name())) {
            harness.add(supervisor.name(), Arc::new(supervisor)).await;
        }
        Self { harness, hook }
    }

    /// Asserts that the manager ends without an error.
    pub(crate) async fn end(self) {
        self.harness.end().await.unwrap();
    }

    /// Name of a declared controller, from its last part.
    pub(crate) fn name(&self, last: &str) -> String {
        format!("{}-{last}", self.harness.scope.namespace)
    }

    /// Name of a declared controller in the manager.
    pub(crate) fn runnable(&self, last: &str) -> String {
        format!("CompositeController-{}", self.name(last))
    }

    /// Spec for parents of this type, with the ConfigMaps of the hook's response as children.
    pub(crate) fn spec(&self, crd: &CrdBuilder) -> Value {
        let parent = crd.api_resource("v1");
        json!({
            "generateSelector": true,
            "parentResource": { "apiVersion": parent.api_version, "resource": parent.plural },
            "childResources": [
                {
                    "apiVersion": "v1",
                    "resource": "configmaps",
                    "updateStrategy": { "method": "InPlace" },
                },
            ],
            "hooks": { "sync": { "webhook": { "url": self.hook.url } } },
        })
    }

    /// Declares a controller.
    pub(crate) async fn declare(&self, last: &str, spec: Value) -> DynamicObject {
        let object = self.object(last, spec);
        self.controllers().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Declares a decorator.
    pub(crate) async fn declare_decorator(&self, last: &str, spec: Value) -> DynamicObject {
        let resource = ApiResource::erase::<DecoratorController>(&());
        let api = Api::<DynamicObject>::all_with(self.harness.scope.client(), &resource);
        let object = self.object_of("DecoratorController", last, spec);
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    /// Declares a controller of this kind with annotations.
    pub(crate) async fn declare_with(
        &self,
        kind: &str,
        last: &str,
        spec: Value,
        annotations: Value,
    ) -> DynamicObject {
        let resource = match kind {
            "DecoratorController" => ApiResource::erase::<DecoratorController>(&()),
            _ => ApiResource::erase::<CompositeController>(&()),
        };
        let api = Api::<DynamicObject>::all_with(self.harness.scope.client(), &resource);
        let mut object = self.object_of(kind, last, spec);
        object.metadata.annotations = serde_json::from_value(annotations).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    /// Returns an object that declares a controller.
    pub(crate) fn object(&self, last: &str, spec: Value) -> DynamicObject {
        self.object_of("CompositeController", last, spec)
    }

    fn object_of(&self, kind: &str, last: &str, spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": kind,
            "metadata": {
                "name": self.name(last),
                "labels": { LABEL: self.harness.scope.namespace },
            },
            "spec": spec,
        }))
        .unwrap()
    }

    /// Merges a change into a declared controller and returns its new generation.
    pub(crate) async fn edit(&self, last: &str, change: Value) -> i64 {
        let by = PatchParams::default();
        let edited = self.controllers().patch(&self.name(last), &by, &Patch::Merge(change)).await;
        edited.unwrap().metadata.generation.unwrap()
    }

    pub(crate) fn controllers(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<CompositeController>(&());
        Api::all_with(self.harness.scope.client(), &resource)
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.harness.scope.client(), &self.harness.scope.namespace)
    }

    /// Waits until the status of a declared controller satisfies `wanted`.
    pub(crate) async fn status(
        &self,
        last: &str,
        what: &str,
        wanted: impl Fn(&ControllerStatus) -> bool,
    ) -> ControllerStatus {
        let (api, name) = (self.controllers(), self.name(last));
        until(&format!("{name}: {what}"), async || {
            let object = api.get(&name).await.map_err(|error| error.to_string())?;
            let status = serde_json::from_value(object.data["status"].clone());
            let status: ControllerStatus = status.unwrap_or_default();
            if wanted(&status) { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    /// Waits until the status reports this epoch as Running.
    pub(crate) async fn runs(&self, last: &str, epoch: i64) {
        let ready = |status: &ControllerStatus| {
            status.epoch == Some(epoch)
                && status.state.as_deref() == Some("Running")
                && condition(status, "Ready").status == "True"
        };
        self.status(last, &format!("runs epoch {epoch}"), ready).await;
    }

    /// Waits for an Event about an object in the harness's namespace or about a cluster-scoped one.
    pub(crate) async fn event(&self, about: &str, reason: &str, part: &str) -> Event {
        let namespace = match about.starts_with(&self.harness.scope.namespace) {
            true => "default",
            false => &self.harness.scope.namespace,
        };
        let api = Api::<Event>::namespaced(self.harness.scope.client(), namespace);
        let of_object = ListParams::default().fields(&format!("involvedObject.name={about}"));
        until(&format!("an Event {reason} about {about} with {part:?}"), async || {
            let events = api.list(&of_object).await.map_err(|error| error.to_string())?.items;
            let wanted = |event: &&Event| {
                event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|message| message.contains(part))
            };
            match events.iter().find(wanted) {
                Some(event) => Ok(event.clone()),
                None => Err(format!(
                    "{:#?}",
                    events
                        .iter()
                        .map(|event| (event.reason.clone(), event.message.clone()))
                        .collect::<Vec<_>>()
                )),
            }
        })
        .await
    }

    /// Waits until a ConfigMap satisfies `wanted`.
    pub(crate) async fn config_map(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(Option<&ConfigMap>) -> bool,
    ) -> Option<ConfigMap> {
        let api = self.config_maps();
        until(&format!("ConfigMap {name}: {what}"), async || {
            let found = api.get_opt(name).await.map_err(|error| error.to_string())?;
            if wanted(found.as_ref()) { Ok(found) } else { Err(format!("{found:#?}")) }
        })
        .await
    }

    /// Waits until the ConfigMap of that name holds that size.
    pub(crate) async fn child(&self, name: &str, size: i64) -> ConfigMap {
        let holds = |found: Option<&ConfigMap>| {
            found.and_then(size_of).is_some_and(|found| *found == size.to_string())
        };
        self.config_map(name, &format!("holds {size}"), holds).await.unwrap()
    }

    /// Installs a CRD and waits until its objects can be created.
    pub(crate) async fn install(&self, crd: &CrdBuilder) {
        self.harness.scope.install_crd(crd).await.unwrap();
        self.harness.scope.wait_served(crd, "v1").await.unwrap();
    }

    /// Changes the size of a parent.
    pub(crate) async fn resize(&self, crd: &CrdBuilder, name: &str, size: i64) {
        let change = json!({ "spec": { "size": size } });
        let api = self.harness.scope.api(crd, "v1");
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
}

/// Size that a child holds.
fn size_of(config_map: &ConfigMap) -> Option<&String> {
    config_map.data.as_ref()?.get("size")
}

/// Condition of a status, by type.
pub(crate) fn condition(status: &ControllerStatus, type_: &str) -> StatusCondition {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    found.cloned().unwrap_or_else(|| StatusCondition {
        type_: type_.to_owned(),
        status: "missing".to_owned(),
        reason: String::new(),
        message: String::new(),
        last_transition_time: Timestamp::UNIX_EPOCH,
        observed_generation: None,
    })
}

/// Applies Pilotlight's own CRDs and waits until they are established.
pub(crate) async fn install_own_crds(plane: &ControlPlane) {
    install_own_crds_on(plane.client().unwrap()).await;
}

/// As [`install_own_crds`], with a client that has every right.
pub(crate) async fn install_own_crds_on(client: Client) {
    let api = Api::<CustomResourceDefinition>::all(client);
    for crd in meta::crds() {
        let by = PatchParams::apply("tests").force();
        api.patch(&crd.name_any(), &by, &Patch::Apply(&crd)).await.unwrap();
        let name = crd.name_any();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        timeout(PATIENCE, established).await.unwrap().unwrap();
    }
}

/// Polls until `look` succeeds, for state without a notification.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Result<T, String>) -> T {
    until_within(PATIENCE, what, look).await
}

/// As [`until`], with another deadline.
pub(crate) async fn until_within<T>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(problem) => assert!(Instant::now() < deadline, "{what}: not in time: {problem}"),
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}
