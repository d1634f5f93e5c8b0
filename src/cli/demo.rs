//! Demo: a controller that is declared before its type exists, and that outlives its type.

mod hook;
mod objects;
mod watched_objects;

pub(super) use hook::HookServer;

use std::{collections::BTreeSet, fmt::Display, future::Future, time::Duration};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, PostParams},
};
use pilotlight::{
    controller::Cluster,
    manager::{ControllerState, ManagerHandle, RunnableStatus, TransitionKind},
    meta::api::CompositeController,
    redaction::printable,
};
use tokio::{sync::broadcast::error::RecvError, time::Instant};

use super::{output, table::Table};
use watched_objects::WatchedObjects;

/// Timeout of a step, far longer than any takes.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the demo against a running manager, and prints the duration of each step.
pub(super) async fn play(
    hooks: &HookServer,
    client: &Client,
    manager: &ManagerHandle,
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let mut run = DemoRun { client, manager, cluster, steps: Vec::new() };
    run.run(&hooks.url()).await?;
    let mut table = Table::new(["STEP", "TOOK"]);
    for (step, took) in &run.steps {
        table.row([step.clone(), took.clone()]);
    }
    output::print(&format!("\n{}\n", table.render()))
}

struct DemoRun<'a> {
    client: &'a Client,
    manager: &'a ManagerHandle,
    cluster: &'a Cluster,
    steps: Vec<(String, String)>,
}

impl DemoRun<'_> {
    async fn run(&mut self, url: &str) -> anyhow::Result<()> {
        self.print_heading("A controller is declared. The type of its parents does not exist.")?;
        self.declare(url).await?;
        self.print_heading("The type is installed: its CustomResourceDefinition is created.")?;
        self.install(1).await?;
        self.print_heading("A parent is created.")?;
        self.greet("hello").await?;
        self.print_heading("The type is removed, with the parent in it.")?;
        self.remove().await?;
        self.print_heading("The type returns.")?;
        self.install(2).await?;
        self.greet("hello-again").await
    }

    /// Declares the controller while its parent type is missing; its status reports what it waits
    /// for.
    async fn declare(&mut self, url: &str) -> anyhow::Result<()> {
        let api = Api::<CompositeController>::all(self.client.clone());
        let mut controllers = WatchedObjects::begin(api.clone()).await?;
        let waits = |controller: &CompositeController| {
            let state = controller.status.as_ref().and_then(|status| status.state.as_deref());
            state == Some(ControllerState::Waiting.word())
        };
        let seen = async {
            let visible = controllers.until(objects::CONTROLLER, |_| true).await?;
            Ok((visible, controllers.until(objects::CONTROLLER, waits).await?))
        };
        let create = within("creating the CompositeController", async {
            let controller = objects::composite_controller(url);
            Ok(api.create(&PostParams::default(), &controller).await?)
        });
        let (_, (visible, waiting)) =
            tokio::try_join!(create, within("the controller's status", seen))?;
        self.step("controller declared → its status says Waiting", waiting - visible)?;
        let (status, _) = self.until("waiting", |status| !status.unmet.is_empty()).await?;
        let waits_for: BTreeSet<_> = status.unmet.iter().map(|unmet| &unmet.message).collect();
        for message in waits_for {
            say(&format!("it waits: {message}"))?;
        }
        Ok(())
    }

    /// Installs the type, and waits until the controller runs.
    async fn install(&mut self, epoch: u64) -> anyhow::Result<()> {
        let api = Api::<CustomResourceDefinition>::all(self.client.clone());
        let crd = objects::crd();
        let name = crd.name_any();
        let mut crds = WatchedObjects::begin(api.clone()).await?;
        within("creating the CRD", async { Ok(api.create(&PostParams::default(), &crd).await?) })
            .await?;
        let established = |crd: &CustomResourceDefinition| {
            let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
        };
        let running = |status: &RunnableStatus| {
            status.state == ControllerState::Running && status.epoch == epoch
        };
        let (established, (_, running)) = tokio::try_join!(
            within("the CRD being established", crds.until(&name, established)),
            self.until("running", running),
        )?;
        let took = running.saturating_duration_since(established);
        self.step(&format!("CRD established → running, epoch {epoch}"), took)
    }

    /// Creates a parent, and waits for its child and its status.
    async fn greet(&mut self, name: &str) -> anyhow::Result<()> {
        let parents = Api::<DynamicObject>::namespaced_with(
            self.client.clone(),
            "default",
            &objects::greetings(),
        );
        let children = Api::<ConfigMap>::namespaced(self.client.clone(), "default");
        let mut parent_watch = WatchedObjects::begin(parents.clone()).await?;
        let mut child_watch = WatchedObjects::begin(children).await?;

        say("(the API server holds creates back until a CRD has been established for 2 s)")?;
        let create = within("creating the parent", async {
            Ok(parents.create(&PostParams::default(), &objects::greeting(name)).await?)
        });
        let (_, visible, child) = tokio::try_join!(
            create,
            within("the parent being seen", parent_watch.until(name, |_| true)),
            within("the child being created", child_watch.until(name, |_| true)),
        )?;
        let took = child.saturating_duration_since(visible);
        self.step("parent visible → its child created", took)?;
        let greeted = |parent: &DynamicObject| parent.data.pointer("/status/greeted").is_some();
        let status = within("the parent's status", parent_watch.until(name, greeted)).await?;
        self.step("parent visible → its status written", status.saturating_duration_since(visible))
    }

    /// Removes the type, and waits until the controller is done and all its watches are closed.
    async fn remove(&mut self) -> anyhow::Result<()> {
        let name = objects::crd().name_any();
        let api = Api::<CustomResourceDefinition>::all(self.client.clone());
        let mut crds = WatchedObjects::begin(api.clone()).await?;
        let mut transitions = self.manager.transitions();
        within("deleting the CRD", async {
            Ok(api.delete(&name, &DeleteParams::default()).await?)
        })
        .await?;
        let done = async {
            loop {
                match transitions.recv().await {
                    Ok(transition) if is_ours(transition.name.as_str()) => {
                        if let TransitionKind::Done(reason) = transition.kind {
                            return Ok((Instant::now(), reason));
                        }
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => bail!("the manager has ended"),
                }
            }
        };
        let (gone, (done, reason)) = tokio::try_join!(
            within("the CRD being gone", crds.gone(&name)),
            within("the controller being done", done),
        )?;
        self.step(
            &format!("CRD gone → controller done ({})", reason.word()),
            done.saturating_duration_since(gone),
        )?;

        let informers = self.cluster.informers.status();
        let left: Vec<_> = informers
            .iter()
            .filter(|informer| &*informer.key.identity.group == objects::GROUP)
            .map(|informer| informer.key.identity.to_string())
            .collect();
        if !left.is_empty() {
            bail!("watches were left behind: {}", left.join(", "));
        }
        say("no watch, cache or task of the type is left")
    }

    /// Waits for a status of the controller; returns it, and the time.
    async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&RunnableStatus) -> bool,
    ) -> anyhow::Result<(RunnableStatus, Instant)> {
        let mut snapshots = self.manager.watch();
        let status = || async move {
            loop {
                let snapshot = snapshots.borrow_and_update().clone();
                let ours = snapshot.values().find(|status| is_ours(status.name.as_str()));
                if let Some(status) = ours.filter(|status| wanted(status)) {
                    return Ok((RunnableStatus::clone(status), Instant::now()));
                }
                snapshots.changed().await.context("the manager has ended")?;
            }
        };
        within(format_args!("the controller being {what}"), status()).await
    }

    fn print_heading(&self, text: &str) -> anyhow::Result<()> {
        output::print(&format!("\n{text}\n"))
    }

    fn step(&mut self, step: &str, took: Duration) -> anyhow::Result<()> {
        let took = format!("{:.1} ms", took.as_secs_f64() * 1000.0);
        say(&format!("{step}: {took}"))?;
        self.steps.push((step.to_owned(), took));
        Ok(())
    }
}

/// Returns whether this is the demo's controller: the manager names it after its kind and its
/// object.
fn is_ours(name: &str) -> bool {
    name.ends_with(objects::CONTROLLER)
}

fn say(text: &str) -> anyhow::Result<()> {
    output::print(&format!("    {}\n", printable(text)))
}

async fn within<T>(
    what: impl Display,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    match tokio::time::timeout(STEP_TIMEOUT, work).await {
        Ok(result) => result.with_context(|| what.to_string()),
        Err(_) => Err(anyhow!("{what}: not within {STEP_TIMEOUT:?}")),
    }
}
