//! Typed controllers: inputs named by Rust types, and listers that decode to them.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use super::*;
use crate::{
    informer::{ObjectKey, StoreReadError},
    testing::{Action, Rule, Verb},
};

/// Custom resource, as a user would derive it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Widget {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Spec,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Spec {
    pub(super) size: u32,
    /// Name of a part.
    pub(super) part: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    pub(super) metadata: ObjectMeta,
}

impl Part {
    fn by_kind() -> TypeRef {
        TypeRef::kind("example.com", "v1", "Part")
    }
}

macro_rules! resource {
    ($type:ident, $plural:literal) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($type).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                "example.com".into()
            }

            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(Widget, "widgets");
resource!(Part, "parts");

/// Reconciler that logs the size of each widget and the number of parts.
struct Typed(Log);

impl Reconciler for Typed {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let Some(widget) = context.lister::<Widget>()?.get(&request)? else {
            self.0.lock().unwrap().push(format!("{request} gone"));
            return Ok(Outcome::Done);
        };
        let parts = context.lister::<Part>()?.list()?.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.0.lock().unwrap().push(format!("{request} {} {}", widget.spec.size, parts.len()));
        Ok(Outcome::Done)
    }
}

fn sized(name: &str, size: Value) -> Value {
    let mut widget = widget(name, name);
    widget["spec"] = json!({"size": size});
    widget
}

async fn harness() -> Harness {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let builder = builder().for_::<Widget>().conditional().owns::<Part>().whole().conditional();
    let controller = builder.build(&harness.cluster, Typed(Arc::clone(&harness.log))).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    harness
}

#[tokio::test(start_paused = true)]
async fn typed_controller_reads_its_objects_and_gets_requests_for_owned_ones() {
    let harness = harness().await;

    harness.server.apply(sized("a", json!(1)));
    assert_eq!(harness.log().await, ["ns/a 1 0"]);
    harness.server.apply(part("p", "a"));
    assert_eq!(harness.log().await, ["ns/a 1 1"]);
    harness.server.delete("Widget", "a");
    assert_eq!(harness.log().await, ["ns/a gone"]);

    harness.shutdown().await;
}

/// Number of widgets that were decoded to [`Counted`].
static DECODED: AtomicUsize = AtomicUsize::new(0);

/// Widget that counts how often it is decoded.
struct Counted {
    metadata: ObjectMeta,
}

resource!(Counted, "widgets");

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::SeqCst);
        Ok(Self { metadata: Part::deserialize(deserializer)?.metadata })
    }
}

#[tokio::test(start_paused = true)]
async fn object_is_decoded_once_per_version_for_all_typed_reads() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(sized("a", json!(1)));
    let log = Arc::clone(&harness.log);
    let reconcile = move |widget: Option<Arc<Counted>>, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let widget = widget.ok_or("no widget")?;
            let all = context.lister::<Counted>()?.list()?;
            let same = all.into_iter().flatten().all(|it| Arc::ptr_eq(&it, &widget));
            let name = widget.metadata.name.clone().unwrap_or_default();
            log.lock().unwrap().push(format!("{name} {same}"));
            Ok(Outcome::RequeueAfter(Duration::from_secs(60)))
        }
    };
    let described = builder().for_::<Counted>().conditional();
    let controller = described.build(&harness.cluster, for_object(reconcile)).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();

    sleep(Duration::from_secs(150)).await;
    assert_eq!(harness.log().await, ["a true", "a true", "a true"]);
    assert_eq!(DECODED.load(Ordering::SeqCst), 1);

    harness.server.apply(sized("a", json!(2)));
    assert_eq!(harness.log().await, ["a true"]);
    assert_eq!(DECODED.load(Ordering::SeqCst), 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lister_without_a_cache_is_an_error_and_not_empty() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(sized("a", json!(1)));
    let builder = builder().for_::<Widget>().conditional().owns::<Part>().whole().optional();
    let controller = builder.build(&harness.cluster, Typed(Arc::clone(&harness.log))).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, [""; 0], "not a widget without parts");
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("no cache of"), "{error}");

    harness.install("Part");
    harness.server.apply(part("p", "a"));
    assert_eq!(harness.log().await, ["ns/a 1 1"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_that_cannot_be_read_is_named_with_its_reason() {
    let harness = Harness::new();
    harness.install("Widget");
    let (of_reconciler, of_handler) = (Log::default(), Log::default());
    let (reconciled, handled) = (Arc::clone(&of_reconciler), Arc::clone(&of_handler));
    let handler = Handler::delta(move |change, queue| {
        let typed = queue.lister::<Part>().map(drop).unwrap_err().to_string();
        let untyped = queue.store(&Part::by_kind()).map(drop).unwrap_err().to_string();
        handled.lock().unwrap().extend([typed, untyped]);
        queue.add(change.key.clone());
    });
    let informers = harness.cluster.informers.clone();
    let reconcile = move |_: Request, context: Context| {
        let before = informers.status().len();
        let errors = [
            context.lister::<Part>().map(drop).unwrap_err(),
            context.lister::<k8s_openapi::api::core::v1::ConfigMap>().map(drop).unwrap_err(),
        ];
        assert!(matches!(errors[1], ListerError::NotAnInput(_)), "{}", errors[1]);
        let maps = TypeRef::of::<k8s_openapi::api::core::v1::ConfigMap>();
        let unknown = context.store(&maps).map(drop).unwrap_err();
        assert!(matches!(unknown, ListerError::NotAnInput(_)), "{unknown}");
        let unnamed = context.store_of("unnamed").map(drop).unwrap_err();
        assert!(unnamed.to_string().contains("add it with Inputs::add"), "{unnamed}");
        let untyped = context.store(&Part::by_kind()).map(drop).unwrap_err();
        assert_eq!(informers.status().len(), before, "a read creates no informer");
        let inputs = context.inputs().unwrap();
        let add = |input: Builder| input.watches_type(parts(), Handler::Object).optional();
        inputs.add("named", add).map(drop).unwrap_or_default();
        let named = context.store_of("named").map(drop).unwrap_err();
        let reads = [&errors[0], &untyped, &named].map(ToString::to_string);
        reconciled.lock().unwrap().extend(reads);
        async { Ok(Outcome::Done) }
    };
    let described = builder().watches_type(widgets(), handler);
    let described =
        described.watches_type(Part::by_kind(), Handler::map(|_| Vec::new())).optional();
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;
    let said = async |expected: &str| {
        of_handler.lock().unwrap().clear();
        of_reconciler.lock().unwrap().clear();
        harness.server.apply(sized("a", json!(1)));
        run_until_idle().await;
        for log in [&of_handler, &of_reconciler] {
            let log = log.lock().unwrap();
            assert!(log.len() >= 2, "{log:?}");
            let is_said =
                |error: &&String| error.starts_with("no cache of ") && error.contains(expected);
            let unsaid: Vec<_> = log.iter().filter(|error| !is_said(error)).collect();
            // The input by name starts after the reconcile that adds it.
            let is_first = |error: &&String| error.ends_with("it has not started yet");
            assert!(unsaid.iter().all(is_first) && unsaid.len() <= 1, "{log:?}");
        }
    };

    said("is not installed").await;
    harness.server.forbid("parts.example.com");
    harness.install("Part");
    run_until_idle().await;
    said("cannot list resource").await;
    let hangs = Rule::new(Action::Hang).verb(Verb::List).resource("example.com", "parts");
    harness.server.fault(hangs);
    harness.server.uninstall("parts");
    run_until_idle().await;
    harness.server.allow("parts.example.com");
    harness.install("Part");
    run_until_idle().await;
    said("is syncing").await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lister_of_a_running_reconcile_is_an_error_and_not_empty_once_its_type_is_gone() {
    for is_optional in [true, false] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Part");
        harness.server.apply(sized("a", json!(1)));
        let (removed, waits) = tokio::sync::watch::channel(false);
        let (sender, mut read) = tokio::sync::mpsc::unbounded_channel();
        let reconcile = move |_: Request, context: Context| {
            let (mut waits, sender) = (waits.clone(), sender.clone());
            async move {
                let (parts, store) = (context.lister::<Part>()?, context.store(&parts()).unwrap());
                let uid = parts.list()?.len().to_string();
                drop(sender.send(format!("{uid} {}", store.is_gone())));
                drop(waits.wait_for(|removed| *removed).await?);
                let errors = [
                    parts.get(&ObjectKey::namespaced("ns", "a")).map(drop),
                    parts.list().map(drop),
                    parts.in_namespace("ns").map(drop),
                    parts.controlled_by(&uid).map(drop),
                    parts.by_index("any", &uid).map(drop),
                ];
                let is_gone = |read: &Result<(), LookupError>| {
                    matches!(read, Err(LookupError::Store(StoreReadError::Gone)))
                };
                let gone =
                    errors.iter().all(is_gone) && matches!(store.list(), Err(StoreReadError::Gone));
                drop(sender.send(format!("{gone} {}", store.is_gone())));
                Ok(Outcome::Done)
            }
        };
        let described =
            builder().for_type(widgets()).watches_type(parts(), Handler::map(|_| vec![]));
        let described = if is_optional { described.optional() } else { described };
        let controller = described.build(&harness.cluster, reconcile).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();
        assert_eq!(read.recv().await.unwrap(), "0 false");

        harness.server.uninstall("parts");
        run_until_idle().await;
        removed.send_replace(true);
        assert_eq!(read.recv().await.unwrap(), "true true", "optional: {is_optional}");
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_does_not_have_the_shape_of_its_type_fails_alone() {
    let harness = harness().await;
    harness.server.apply(sized("good", json!(1)));
    assert_eq!(harness.log().await, ["ns/good 1 0"]);

    harness.server.apply(sized("bad", json!("many")));
    harness.server.apply(sized("good", json!(2)));

    assert_eq!(harness.log().await, ["ns/good 2 0"]);
    let status = harness.status();
    let error = status.report.last_error.clone().unwrap();
    assert!(error.starts_with("ns/bad: ") && error.contains("expected u32"), "{error}");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    harness.server.apply(sized("bad", json!(3)));
    assert_eq!(harness.log().await, ["ns/bad 3 0"]);
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn list_of_typed_objects_has_an_error_for_each_misshapen_one() {
    let harness = Harness::new();
    harness.install("Widget");
    for (name, size) in [("a", json!(1)), ("bad", json!([])), ("c", json!(3))] {
        harness.server.apply(sized(name, size));
    }
    struct Counter(Log);
    impl Reconciler for Counter {
        async fn reconcile(&self, _: Request, context: Context) -> Result<Outcome, ReconcileError> {
            let all = context.lister::<Widget>()?.list()?;
            let bad = all.iter().filter(|widget| widget.is_err()).count();
            self.0.lock().unwrap().push(format!("{bad} of {}", all.len()));
            Ok(Outcome::Done)
        }
    }

    let controller =
        builder().for_::<Widget>().build(&harness.cluster, Counter(harness.log.clone()));
    let controller = Arc::new(controller.unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, ["1 of 3", "1 of 3", "1 of 3"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_share_an_informer_for_each_type_and_projection() {
    let harness = Harness::new();
    harness.install("Widget");
    let named = Controller::builder;
    let described = [
        named("typed").for_::<Widget>(),
        named("untyped").for_type(widgets()),
        named("metadata").for_type(widgets()).metadata_only(),
    ];
    for described in described {
        let controller = harness.build(described.conditional());
        controller.add_to_running(&harness.manager).await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;

    let informers = harness.cluster.informers.status();
    let mut subscribers: Vec<_> = informers.iter().map(|it| it.subscribers).collect();
    subscribers.sort_unstable();
    assert_eq!(subscribers, [1, 2], "{informers:?}");
    assert_eq!(harness.server.watches(WIDGETS), 2);
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(harness.server.watches(crds), 1, "one discovery");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_without_an_input_is_read_from_the_server_and_opens_no_watch() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;

    use crate::controller::FetchError;
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(sized("a", json!(1)));
    harness.server.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" },
        "data": { "size": "7" },
    }));
    let log = Arc::clone(&harness.log);
    let reconcile = move |_: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let found =
                Api::<ConfigMap>::namespaced(context.client().clone(), "ns").get("c").await?;
            let size = found.data.unwrap_or_default().remove("size").unwrap_or_default();
            let fetched = context.fetch::<ConfigMap>(&ObjectKey::namespaced("ns", "c")).await;
            let is_refused = matches!(fetched, Err(FetchError::Lister(ListerError::NotAnInput(_))));
            log.lock().unwrap().push(format!("{size} {is_refused}"));
            Ok(Outcome::Done)
        }
    };
    let controller = builder().for_type(widgets()).conditional();
    let controller = controller.build(&harness.cluster, reconcile).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, ["7 true"]);
    assert_eq!(harness.server.requests_of("/api/v1/configmaps/c"), 1);
    assert_eq!(harness.server.requests_of("/api/v1/configmaps"), 0, "no list and no watch");
    assert_eq!(harness.cluster.informers.status().len(), 1);
    harness.shutdown().await;
}
