//! Driver: carries out the drawn steps.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use pilotlight::{
    meta::{PAUSED, api::CompositeController},
    testing::{Faults, Profile, Schedule, ScheduleGuard, Verb},
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    desired::{Desired, GROUP, Kind, Spec, Step},
    manager::{ManagerRun, TestHook},
    server::{NAMESPACE, Server, post_params, retry},
};

/// Parents that are created concurrently.
const AT_ONCE: usize = 16;

/// Server, faults, manager and hook, and their desired state.
pub(crate) struct Driver {
    pub(crate) server: Server,
    pub(crate) desired: Desired,
    pub(crate) faults: Faults,
    pub(crate) hook: Arc<TestHook>,
    /// `None` while the leak oracle measures without a manager.
    pub(crate) manager: Option<ManagerRun>,
    playing: Option<ScheduleGuard>,
    pub(crate) on: Handle,
    pub(crate) figures: Figures,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) steps: usize,
    pub(crate) lifecycle: usize,
    pub(crate) epochs: u64,
    pub(crate) managers: usize,
    pub(crate) requests: usize,
}

impl Driver {
    /// Creates a driver whose manager will run on `on`; does not start the manager.
    pub(crate) async fn new(server: Server, desired: Desired, on: Handle) -> anyhow::Result<Self> {
        for kind in &desired.kinds {
            server.grant(kind).await?;
        }
        let hook = TestHook::new(desired.kinds.len(), server.naming());
        Ok(Self {
            server,
            desired,
            faults: Faults::default(),
            hook,
            manager: None,
            playing: None,
            on,
            figures: Figures::default(),
        })
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let client = self.server.manager_client(&self.faults, &self.on)?;
        self.manager = Some(ManagerRun::start(client, &self.hook, &self.on)?);
        self.figures.managers += 1;
        Ok(())
    }

    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.count();
        if let Some(manager) = self.manager.take() {
            manager.stop().await?;
        }
        Ok(())
    }

    /// Adds the requests and epochs since the last call to the counts, and clears the logs of them.
    pub(crate) fn count(&mut self) {
        self.figures.epochs += self.manager.as_mut().map_or(0, ManagerRun::epochs);
        self.figures.requests += self.faults.seen().len();
        self.faults.forget_seen();
        self.server.forget();
    }

    /// Ends all faults.
    pub(crate) async fn end_faults(&mut self) -> anyhow::Result<()> {
        self.playing = None;
        self.faults.clear();
        for step in self.desired.repairing_steps() {
            self.carry_out(step).await?;
        }
        Ok(())
    }

    /// Records a step in the desired state and performs it.
    pub(crate) async fn carry_out(&mut self, step: Step) -> anyhow::Result<()> {
        self.figures.steps += 1;
        self.figures.lifecycle += usize::from(step.is_lifecycle());
        // Recorded first, because the step may take effect at once.
        self.desired.apply(&step);
        // Boxed, because the future is large and rarely used in full.
        Box::pin(self.perform(&step)).await.with_context(|| format!("{step:?}"))?;
        self.count();
        Ok(())
    }

    /// Deletes the first child of a parent, if it has one.
    async fn delete_child(&self, at: usize, parent: usize) -> anyhow::Result<()> {
        let children = Api::<ConfigMap>::namespaced(self.server.client.clone(), NAMESPACE);
        let parents = self.server.parents(self.kind(at));
        let found = retry("a parent", async || parents.get(&name_of(parent)).await).await?;
        let suffix = self.server.naming().suffix(&found.uid().unwrap_or_default());
        let child = self.kind(at).child(parent, 0) + &suffix;
        match children.delete(&child, &DeleteParams::default()).await {
            Ok(_) => {}
            // The parent has no child by its specification, or not yet.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn set_declared(&self, at: usize, declared: bool) -> anyhow::Result<()> {
        let kind = self.kind(at);
        if !declared {
            self.controllers().delete(&kind.controller(), &DeleteParams::default()).await?;
            return Ok(());
        }
        let controller = serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": { "name": kind.controller() },
            "spec": controller_spec(kind),
        }))?;
        self.controllers().create(&post_params(), &controller).await?;
        Ok(())
    }

    async fn perform(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::PutParent(at, parent, spec) => self.put(self.kind(*at), *parent, spec).await?,
            Step::DeleteParent(at, parent) => {
                let (parents, name) = (self.server.parents(self.kind(*at)), name_of(*parent));
                // A server that reloads the type refuses requests for a while.
                let background = DeleteParams::background();
                retry("a deletion", async || parents.delete(&name, &background).await).await?;
            }
            Step::DeleteChild(at, parent) => self.delete_child(*at, *parent).await?,
            Step::Uninstall(at) => self.server.uninstall(self.kind(*at)).await?,
            Step::Install(at, _, parents) => {
                let kind = self.kind(*at);
                self.server.install(kind).await?;
                let creating = parents.iter().map(|(parent, spec)| self.put(kind, *parent, spec));
                let mut created = pin!(stream::iter(creating).buffer_unordered(AT_ONCE));
                while let Some(()) = created.try_next().await? {}
            }
            Step::SetServed(at, _) if self.kind(*at).installed => {
                self.server.serve(self.kind(*at)).await?;
            }
            // Takes effect when the type is installed.
            Step::SetServed(..) => {}
            Step::SetAllowed(at, _) => {
                let kind = self.kind(*at).clone();
                self.server.allow(&self.desired.kinds, &kind).await?;
                // Open watches would not notice lost rights.
                let plural = kind.plural();
                self.faults.cut_open(|info| info.verb == Verb::Watch && info.resource == plural);
            }
            Step::EditController(at) => {
                let kind = self.kind(*at);
                let change = json!({ "spec": controller_spec(kind) });
                self.change_controller(kind, change).await?;
            }
            Step::SetPaused(at, paused) => {
                let paused = paused.then_some("true");
                let change = json!({ "metadata": { "annotations": { PAUSED: paused } } });
                self.change_controller(self.kind(*at), change).await?;
            }
            Step::SetDeclared(at, declared) => self.set_declared(*at, *declared).await?,
            Step::SetHookMode(at, mode) => self.hook.set_mode(*at, *mode),
            Step::Faults(seed) => {
                let profile = Profile { rules: 30, within: 30, ..Profile::default() };
                // Ends the earlier schedule before the next begins.
                drop(self.playing.take());
                self.playing = Some(self.faults.play(&Schedule::random(*seed, &profile)));
            }
            Step::CutWatches => {
                self.faults.cut_open(|info| info.verb == Verb::Watch);
            }
            Step::ExpireHistory => {
                let all = self.figures.steps.is_multiple_of(2);
                if !self.server.expire(all) {
                    self.faults.cut_open(|_| true);
                }
            }
            Step::RestartManager => {
                self.stop().await?;
                self.start()?;
            }
        }
        Ok(())
    }

    fn kind(&self, at: usize) -> &Kind {
        &self.desired.kinds[at]
    }

    fn controllers(&self) -> Api<CompositeController> {
        Api::all(self.server.client.clone())
    }

    async fn change_controller(&self, kind: &Kind, change: Value) -> anyhow::Result<()> {
        let change = Patch::Merge(change);
        self.controllers().patch(&kind.controller(), &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Creates or updates a parent.
    async fn put(&self, kind: &Kind, parent: usize, spec: &Spec) -> anyhow::Result<()> {
        let (parents, name) = (self.server.parents(kind), name_of(parent));
        let spec = json!({ "size": spec.size, "text": spec.text.to_string() });
        let change = Patch::Merge(json!({ "spec": spec }));
        let object = kind.crd().object(&name, spec.clone());
        // A type that has just returned refuses requests for a while.
        retry("a parent", async || {
            match parents.patch(&name, &PatchParams::default(), &change).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    parents.create(&post_params(), &object).await
                }
                other => other,
            }
        })
        .await?;
        Ok(())
    }
}

/// Waits a random time up to `longest`.
pub(crate) async fn random_pause(random: &mut fastrand::Rng, longest: Duration) {
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    sleep(Duration::from_micros(random.u64(0..=longest))).await;
}

pub(crate) fn name_of(parent: usize) -> String {
    parent.to_string()
}

fn controller_spec(kind: &Kind) -> Value {
    let method = if kind.recreates { "Recreate" } else { "InPlace" };
    json!({
        "generateSelector": true,
        "resyncPeriodSeconds": kind.resync,
        "parentResource": { "apiVersion": format!("{GROUP}/v1"), "resource": kind.plural() },
        "childResources": [{
            "apiVersion": "v1",
            "resource": "configmaps",
            "updateStrategy": { "method": method },
        }],
        "hooks": { "sync": { "webhook": { "url": "http://unused.invalid" } } },
    })
}
