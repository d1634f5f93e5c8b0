//! Carries out what was drawn.

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
    testing::{Faults, Playing, Profile, Schedule, Verb},
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    desired::{Deed, Desired, GROUP, Kind, Spec},
    fleet::{Fleet, Moody},
    server::{NAMESPACE, Server, by, insist},
};

/// Parents that are created at the same time.
const AT_ONCE: usize = 16;

/// Server, faults, manager and hook, and what was said to them.
pub(crate) struct Driver {
    pub(crate) server: Server,
    pub(crate) desired: Desired,
    pub(crate) faults: Faults,
    pub(crate) hook: Arc<Moody>,
    /// Nobody while the leak oracle looks.
    pub(crate) fleet: Option<Fleet>,
    playing: Option<Playing>,
    pub(crate) on: Handle,
    pub(crate) figures: Figures,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) deeds: usize,
    pub(crate) lifecycle: usize,
    pub(crate) epochs: u64,
    pub(crate) managers: usize,
    pub(crate) requests: usize,
}

impl Driver {
    /// The manager is to run on this runtime; it is not started yet.
    pub(crate) async fn new(server: Server, desired: Desired, on: Handle) -> anyhow::Result<Self> {
        for kind in &desired.kinds {
            server.grant(kind).await?;
        }
        let hook = Moody::new(desired.kinds.len(), server.naming());
        Ok(Self {
            server,
            desired,
            faults: Faults::default(),
            hook,
            fleet: None,
            playing: None,
            on,
            figures: Figures::default(),
        })
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let client = self.server.pilot(&self.faults, &self.on)?;
        self.fleet = Some(Fleet::start(client, &self.hook, &self.on)?);
        self.figures.managers += 1;
        Ok(())
    }

    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.count();
        if let Some(fleet) = self.fleet.take() {
            fleet.stop().await?;
        }
        Ok(())
    }

    /// Counts the requests and the epochs since the last time, and forgets them.
    pub(crate) fn count(&mut self) {
        self.figures.epochs += self.fleet.as_mut().map_or(0, Fleet::epochs);
        self.figures.requests += self.faults.seen().len();
        self.faults.forget_seen();
        self.server.forget();
    }

    /// Ends all faults.
    pub(crate) async fn make_peace(&mut self) -> anyhow::Result<()> {
        self.playing = None;
        self.faults.clear();
        for deed in self.desired.peace() {
            self.carry_out(deed).await?;
        }
        Ok(())
    }

    /// Does it and remembers it.
    pub(crate) async fn carry_out(&mut self, deed: Deed) -> anyhow::Result<()> {
        self.figures.deeds += 1;
        self.figures.lifecycle += usize::from(deed.is_lifecycle());
        // Said before it is done: what follows from it may happen at once.
        self.desired.apply(&deed);
        // Large, and rarely all of it.
        Box::pin(self.perform(&deed)).await.with_context(|| format!("{deed:?}"))?;
        self.count();
        Ok(())
    }

    async fn perform(&mut self, deed: &Deed) -> anyhow::Result<()> {
        match deed {
            Deed::Put(at, parent, spec) => self.put(self.kind(*at), *parent, spec).await?,
            Deed::Delete(at, parent) => {
                let parents = self.server.parents(self.kind(*at));
                parents.delete(&name_of(*parent), &DeleteParams::background()).await?;
            }
            Deed::Strike(at, parent) => {
                let children = Api::<ConfigMap>::namespaced(self.server.client.clone(), NAMESPACE);
                let parents = self.server.parents(self.kind(*at));
                let found =
                    insist("a parent", async || parents.get(&name_of(*parent)).await).await?;
                let suffix = self.server.naming().suffix(&found.uid().unwrap_or_default());
                let child = self.kind(*at).child(*parent, 0) + &suffix;
                match children.delete(&child, &DeleteParams::default()).await {
                    Ok(_) => {}
                    // It was to have none, or has none yet.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Deed::Uninstall(at) => self.server.uninstall(self.kind(*at)).await?,
            Deed::Return(at, _, parents) => {
                let kind = self.kind(*at);
                self.server.install(kind).await?;
                let creating = parents.iter().map(|(parent, spec)| self.put(kind, *parent, spec));
                let mut created = pin!(stream::iter(creating).buffer_unordered(AT_ONCE));
                while let Some(()) = created.try_next().await? {}
            }
            Deed::Serve(at, _) if self.kind(*at).installed => {
                self.server.serve(self.kind(*at)).await?;
            }
            // It will be installed so.
            Deed::Serve(..) => {}
            Deed::Allow(at, _) => {
                let kind = self.kind(*at).clone();
                self.server.allow(&self.desired.kinds, &kind).await?;
                // What is open stays open: it would not notice.
                let plural = kind.plural();
                self.faults.cut_open(|info| info.verb == Verb::Watch && info.resource == plural);
            }
            Deed::Edit(at) => {
                let kind = self.kind(*at);
                let change = json!({ "spec": controller_spec(kind) });
                self.change_controller(kind, change).await?;
            }
            Deed::Pause(at, paused) => {
                let paused = paused.then_some("true");
                let change = json!({ "metadata": { "annotations": { PAUSED: paused } } });
                self.change_controller(self.kind(*at), change).await?;
            }
            Deed::Declare(at, true) => {
                let kind = self.kind(*at);
                let controller = serde_json::from_value(json!({
                    "apiVersion": "metacontroller.k8s.io/v1alpha1",
                    "kind": "CompositeController",
                    "metadata": { "name": kind.controller() },
                    "spec": controller_spec(kind),
                }))?;
                self.controllers().create(&by(), &controller).await?;
            }
            Deed::Declare(at, false) => {
                let name = self.kind(*at).controller();
                self.controllers().delete(&name, &DeleteParams::default()).await?;
            }
            Deed::Feel(at, mood) => self.hook.feel(*at, *mood),
            Deed::Faults(seed) => {
                let profile = Profile { rules: 30, within: 30, ..Profile::default() };
                // Not both at once.
                drop(self.playing.take());
                self.playing = Some(self.faults.play(&Schedule::random(*seed, &profile)));
            }
            Deed::CutWatches => {
                self.faults.cut_open(|info| info.verb == Verb::Watch);
            }
            Deed::Expire => {
                let all = self.figures.deeds.is_multiple_of(2);
                if !self.server.expire(all) {
                    self.faults.cut_open(|_| true);
                }
            }
            Deed::RestartManager => {
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

    /// Creates a parent, or changes it.
    async fn put(&self, kind: &Kind, parent: usize, spec: &Spec) -> anyhow::Result<()> {
        let (parents, name) = (self.server.parents(kind), name_of(parent));
        let spec = json!({ "size": spec.size, "text": spec.text.to_string() });
        let change = Patch::Merge(json!({ "spec": spec }));
        let object = kind.crd().object(&name, spec.clone());
        // A type that has just come back refuses for a while.
        insist("a parent", async || {
            match parents.patch(&name, &PatchParams::default(), &change).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    parents.create(&by(), &object).await
                }
                other => other,
            }
        })
        .await?;
        Ok(())
    }
}

/// A while between two deeds.
pub(crate) async fn breathe(random: &mut fastrand::Rng, most: Duration) {
    let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    sleep(Duration::from_micros(random.u64(0..=most))).await;
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
        "hooks": { "sync": { "webhook": { "url": "http://nobody.invalid" } } },
    })
}
