//! User's view: builder, cluster and manager, against a simulated API server.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::server::Server;
use super::*;
use crate::{
    kind::TypeRef,
    manager::{
        ControllerState, Epoch, Manager, ManagerHandle, ManagerOptions, Runnable, RunnableOptions,
        RunnableStatus, Snapshot, StopReason,
    },
    testing::CrdBuilder,
};

const WIDGETS: &str = "/apis/example.com/v1/widgets";
const PARTS: &str = "/apis/example.com/v1/parts";
const NAME: &str = "widgets";

mod answered_writes;
mod closures;
mod cluster;
mod clusters;
mod conditions;
mod crowd;
mod delivering_sources;
mod direct;
mod durations;
mod events;
mod flapping;
mod generic_events;
mod handlers;
mod held_caches;
mod informer_source;
mod interests;
mod keys;
mod left_behind;
mod lifetimes;
mod many_types;
mod mistakes;
mod named;
mod namespaces;
mod object_conditions;
mod optional_types;
mod options;
mod own_sources;
mod panics;
mod polled;
mod preparation;
mod primaries;
mod priorities;
mod projections;
mod restrictions;
mod resyncs;
mod server;
mod several_inputs;
mod standby;
mod subresources;
mod throttling;
mod transforms;
mod typed;
mod types;
mod unknown_outcome;
mod write;

/// Running cluster and manager, with the log of a controller's requests.
struct Harness {
    server: Server,
    cluster: Cluster,
    manager: ManagerHandle,
    log: Log,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Logs each request with its cached object.
struct LoggingReconciler {
    log: Log,
}

impl Reconciler for LoggingReconciler {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let seen = |type_ref: &TypeRef| match context.store(type_ref) {
            Err(_) => "missing".to_owned(),
            Ok(store) => match store.get(&request) {
                None => "gone".to_owned(),
                Some(object) => object.header().labels.get("mark").unwrap().to_owned(),
            },
        };
        let note = format!("{request} {}", seen(&widgets()));
        self.log.lock().unwrap().push(note);
        Ok(Outcome::Done)
    }
}

impl Harness {
    fn new() -> Self {
        Self::with(ManagerOptions::default())
    }

    fn with(options: ManagerOptions) -> Self {
        Self::of(Manager::new(options), Server::new())
    }

    fn of(mut manager: Manager, server: Server) -> Self {
        let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let handle = manager.handle();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { server, cluster, manager: handle, log: Log::default(), stop, tasks }
    }

    fn build(&self, builder: Builder) -> Controller {
        builder.build(&self.cluster, LoggingReconciler { log: Arc::clone(&self.log) }).unwrap()
    }

    async fn add(&self, builder: Builder) {
        let controller = Arc::new(self.build(builder));
        self.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    }

    fn status(&self) -> Arc<RunnableStatus> {
        self.manager.status_of(NAME).unwrap()
    }

    async fn until(&self, what: impl Fn(&RunnableStatus) -> bool) -> Arc<RunnableStatus> {
        let mut watch = self.manager.watch();
        let found = watch
            .wait_for(|snapshot| snapshot.get(&NAME.into()).is_some_and(|status| what(status)));
        match tokio::time::timeout(Duration::from_secs(3600), found).await {
            Ok(snapshot) => Arc::clone(snapshot.unwrap().get(&NAME.into()).unwrap()),
            Err(_) => panic!("{:?}", self.status()),
        }
    }

    async fn state(&self, state: ControllerState) -> Arc<RunnableStatus> {
        self.until(|status| status.state == state).await
    }

    fn install(&self, kind: &str) {
        self.server.install(crd(kind), &["v1"]);
    }

    /// Returns the reconciles logged since the last call.
    async fn log(&self) -> Vec<String> {
        run_until_idle().await;
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// Returns the same in alphabetical order.
    async fn sorted_log(&self) -> Vec<String> {
        let mut log = self.log().await;
        log.sort();
        log
    }

    async fn shutdown(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap();
        assert!(self.cluster.informers.status().is_empty());
    }
}

async fn run_until_idle() {
    // With paused time, a sleep ends only when nothing else can run.
    sleep(Duration::from_millis(20)).await;
}

fn widgets() -> TypeRef {
    TypeRef::resource("example.com", "v1", "widgets")
}

fn parts() -> TypeRef {
    TypeRef::resource("example.com", "v1", "parts")
}

fn crd(kind: &str) -> CrdBuilder {
    CrdBuilder::new("example.com", kind)
}

/// Object with a label that distinguishes it from others of its name.
fn object(kind: &str, name: &str, mark: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": kind,
        "metadata": {"name": name, "labels": {"mark": mark}},
    })
}

fn widget(name: &str, mark: &str) -> Value {
    object("Widget", name, mark)
}

/// Part whose controller is this widget.
fn part(name: &str, owner: &str) -> Value {
    let mut part = object("Part", name, name);
    part["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v2", "kind": "Widget", "name": owner, "uid": owner,
        "controller": true,
    }]);
    part
}

fn builder() -> Builder {
    Controller::builder(NAME)
}

#[tokio::test(start_paused = true)]
async fn context_reads_inputs_by_either_name_and_decodes_them() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::DynamicObject;
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("b", "b"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    struct Reader(Arc<Mutex<Vec<String>>>);
    impl Reconciler for Reader {
        async fn reconcile(
            &self,
            request: Request,
            context: Context,
        ) -> Result<Outcome, ReconcileError> {
            let by_kind = TypeRef::kind("example.com", "v1", "Widget");
            let store = context.store(&by_kind)?;
            let served = context.served(&widgets().any_version())?;
            let other = context.lister::<ConfigMap>();
            let unknown = other.err().ok_or("what is no input has a cache")?;
            let lister = Lister::<DynamicObject>::of(store);
            let object = lister.get(&request)?.ok_or("not found")?;
            self.0.lock().unwrap().push(format!(
                "{} {} of {}, {}",
                served.kind,
                object.metadata.name.as_deref().unwrap_or_default(),
                lister.list()?.len(),
                match unknown {
                    ListerError::NotAnInput(type_ref) => type_ref,
                    other @ (ListerError::OfName { .. }
                    | ListerError::Unavailable { .. }
                    | ListerError::Projected(_)) => panic!("{other}"),
                },
            ));
            Ok(Outcome::Done)
        }
    }
    let reader = Reader(Arc::clone(&seen));
    let controller = builder().for_type(widgets()).conditional().build(&harness.cluster, reader);
    let controller = Arc::new(controller.unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    harness.state(ControllerState::Running).await;
    run_until_idle().await;

    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    let config_maps = TypeRef::of::<ConfigMap>();
    assert_eq!(seen, ["a", "b"].map(|name| format!("Widget {name} of 2, {config_maps}")));
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_is_built_and_dropped_costs_nothing() {
    let harness = Harness::new();
    harness.install("Widget");
    run_until_idle().await;

    drop(harness.build(builder().for_type(widgets()).owns_type(parts()).conditional()));
    run_until_idle().await;

    assert_eq!(harness.server.requests_of(WIDGETS), 0);
    assert!(harness.cluster.informers.status().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn mistakes_are_errors_of_the_build() {
    let harness = Harness::new();
    let error = |builder: Builder| {
        let log = Log::default();
        builder.build(&harness.cluster, LoggingReconciler { log }).unwrap_err().to_string()
    };
    let (_sender, channel) = ChannelSource::new(1);

    assert_eq!(
        error(Controller::builder("")),
        "the controller has no name; give one to Controller::builder"
    );
    assert_eq!(
        error(builder()),
        "widgets watches nothing: add an input with for_, owns or watches"
    );
    assert_eq!(
        error(builder().for_type(widgets()).for_type(widgets())),
        "widgets has the primary type widgets.example.com/v1 twice; call for_ once for each type"
    );
    assert_eq!(
        error(builder().owns_type(parts())),
        "widgets owns parts.example.com/v1 but has no primary type; call for_ first"
    );
    assert_eq!(
        error(builder().conditional().for_type(widgets())),
        "widgets: conditional applies to the last input, and there is none; add an input first"
    );
    assert_eq!(
        error(builder().source(channel).metadata_only()),
        "widgets: metadata_only applies to a type, not to a custom source; select objects inside the \
         source"
    );
    assert_eq!(
        error(builder().for_type(widgets()).max_concurrent_reconciles(0)),
        "widgets: max_concurrent_reconciles is 0; give it at least 1"
    );
    harness.shutdown().await;
}
