//! Interests of inputs: which changes they are delivered, and which objects they keep whole.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    typed::{Part, Widget},
    *,
};
use crate::{
    informer::{InformerStatus, ObjectKey, Selector},
    manager::WatchState,
    testing::{Action, Reply, Rule, RuleId, Verb},
};

/// Reconciler that logs what it can read of the parts `own` and `foreign`.
struct Reader(Log);

impl Reconciler for Reader {
    async fn reconcile(&self, _: Request, context: Context) -> Result<Outcome, ReconcileError> {
        let lister = context.lister::<Part>()?;
        let mut read = Vec::new();
        for name in ["own", "foreign"] {
            let key = Request::namespaced("ns", name);
            let cached = match lister.get(&key) {
                Ok(Some(_)) => "whole",
                Ok(None) => "none",
                Err(LookupError::Entry(_)) => "entry",
                Err(error) => return Err(error.into()),
            };
            let fetched = context.fetch::<Part>(&key).await?.is_some();
            read.push(format!("{name} {cached} {fetched}"));
        }
        let all = lister.list().map(|all| all.len()).map_err(|error| error.to_string());
        self.0.lock().unwrap().push(format!("{} {all:?}", read.join(", ")));
        Ok(Outcome::Done)
    }
}

/// A harness with a widget, a part of it, and a part of no widget.
fn harness() -> Harness {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(part("own", "a"));
    harness.server.apply(object("Part", "foreign", "x"));
    harness
}

async fn add(harness: &Harness, name: &'static str, builder: Builder) {
    let controller = builder.build(&harness.cluster, Reader(Arc::clone(&harness.log))).unwrap();
    harness.manager.add(name, Arc::new(controller), RunnableOptions::default()).await.unwrap();
}

/// Predicate that passes everything, and counts it.
fn counting(count: &Arc<AtomicUsize>) -> Predicate {
    let count = Arc::clone(count);
    Predicate::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        true
    })
}

fn informer_of_parts(harness: &Harness) -> InformerStatus {
    let all = harness.cluster.informers.status();
    all.into_iter().find(|informer| &*informer.key.identity.plural == "parts").unwrap()
}

const REFUSED: &str = "Err(\"this input keeps objects that do not concern it as metadata entries: \
                       build it with .whole() to list all objects\")";

#[tokio::test(start_paused = true)]
async fn owned_type_keeps_whole_only_what_the_primary_kind_owns() {
    let harness = harness();

    add(&harness, NAME, builder().for_::<Widget>().conditional().owns::<Part>()).await;

    let log = harness.log().await;
    assert_eq!(log, [format!("own whole true, foreign entry true {REFUSED}")]);
    let parts = informer_of_parts(&harness);
    assert_eq!((parts.objects, parts.entries), (2, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lister_depends_on_its_own_input_and_not_on_other_watchers_of_the_type() {
    let harness = harness();
    let all = || Controller::builder("all").watches::<Part>(Handler::Object);
    harness
        .manager
        .add("all", Arc::new(harness.build(all())), RunnableOptions::default())
        .await
        .unwrap();
    harness.log().await;
    assert_eq!(informer_of_parts(&harness).entries, 0);

    add(&harness, NAME, builder().for_::<Widget>().conditional().owns::<Part>()).await;
    let log = harness.log().await;
    assert_eq!(log, [format!("own whole true, foreign entry true {REFUSED}")]);

    let whole = Controller::builder("whole").for_::<Widget>().conditional().owns::<Part>().whole();
    add(&harness, "whole", whole).await;
    assert_eq!(harness.log().await, ["own whole true, foreign whole true Ok(2)"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn late_interest_in_whole_objects_costs_one_list_and_the_objects_shrink_when_it_is_gone() {
    let harness = harness();
    add(&harness, NAME, builder().for_::<Widget>().conditional().owns::<Part>()).await;
    harness.log().await;
    let before = harness.server.requests_of(PARTS);

    let whole = Controller::builder("whole").for_::<Widget>().conditional().owns::<Part>().whole();
    add(&harness, "whole", whole).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.log().await, ["own whole true, foreign whole true Ok(2)"]);
    assert_eq!(informer_of_parts(&harness).entries, 0);
    assert_eq!(
        harness.server.requests_of(PARTS),
        before + 1,
        "one streaming list, which becomes the watch"
    );

    harness.manager.remove("whole").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(informer_of_parts(&harness).entries, 0, "it lingers");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(informer_of_parts(&harness).entries, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_list_of_whole_objects_is_reported_and_delays_no_controller_that_could_do_without() {
    let harness = harness();
    let owns = |name| Controller::builder(name).for_::<Widget>().conditional().owns::<Part>();
    add(&harness, "entries", owns("entries")).await;
    harness.log().await;
    let refused = || Action::Instead(Reply::status(403, "Forbidden", "no"));
    let of_parts = || Rule::new(refused()).resource("example.com", "parts");
    let rules = [of_parts().verb(Verb::List), of_parts().query_contains("sendInitialEvents")]
        .map(|rule| harness.server.fault(rule));

    add(&harness, NAME, owns(NAME).whole().conditional()).await;

    let rule = "grant list and watch on parts.example.com";
    harness.until(|status| status.message.contains(rule)).await;
    add(&harness, "optional", owns("optional").whole().optional()).await;
    sleep(Duration::from_secs(5)).await;
    let optional = harness.manager.status_of("optional").unwrap();
    assert_eq!(optional.state, ControllerState::Running, "{optional:?}");
    for rule in rules {
        harness.server.remove(rule);
    }
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

/// Refuses lists of parts in these namespaces.
fn refuse_lists<const N: usize>(harness: &Harness, namespaces: [&str; N]) -> Vec<RuleId> {
    let mut rules = Vec::new();
    for namespace in namespaces {
        let refused = Action::Instead(Reply::status(403, "Forbidden", "no"));
        let rule = Rule::new(refused).resource("example.com", "parts").namespace(namespace);
        rules.push(harness.server.fault(rule.clone().verb(Verb::List)));
        rules.push(harness.server.fault(rule.query_contains("sendInitialEvents")));
    }
    rules
}

#[tokio::test(start_paused = true)]
async fn failed_list_of_whole_objects_is_reported_once_while_the_watch_fails_and_recovers() {
    let harness = harness();
    let owns = |name| Controller::builder(name).for_::<Widget>().conditional().owns::<Part>();
    add(&harness, "entries", owns("entries").namespace("ns")).await;
    harness.log().await;
    let refused = refuse_lists(&harness, ["ns"]);
    let errors = Log::default();
    let log = Arc::clone(&errors);
    let on_error = move |state: WatchState, error: &str| {
        log.lock().unwrap().push(format!("{state:?} {error}"));
    };
    let whole = owns(NAME).whole().namespace("ns").conditional().on_watch_error(on_error);
    add(&harness, NAME, whole).await;
    let rule = "grant list and watch on parts.example.com";
    harness.until(|status| status.message.contains(rule)).await;

    let fails = Action::Instead(Reply::status(500, "InternalError", "no quorum"));
    let failing = Rule::new(fails).verb(Verb::Watch).resource("example.com", "parts");
    let failing = harness.server.fault(failing);
    harness.server.cut_watches("parts");
    sleep(Duration::from_secs(20)).await;
    harness.server.remove(failing);
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let message = harness.status().message.clone();
        assert!(message.contains(rule), "{message}");
    }

    let errors = errors.lock().unwrap().clone();
    let of_list = errors.iter().filter(|error| error.contains(rule)).count();
    let of_watch = errors.iter().filter(|error| error.contains("no quorum")).count();
    assert_eq!((of_list, of_watch), (1, 1), "{errors:?}");
    for rule in refused {
        harness.server.remove(rule);
    }
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_that_is_listed_is_not_reported_while_another_is_not() {
    let harness = harness();
    let owns = |name| {
        let builder = Controller::builder(name).for_::<Widget>().conditional().owns::<Part>();
        builder.namespaces(["ns", "two"])
    };
    add(&harness, "entries", owns("entries")).await;
    harness.log().await;
    let (first, other) = (refuse_lists(&harness, ["ns"]), refuse_lists(&harness, ["two"]));
    harness.server.apply_in("two", object("Part", "other", "x"));
    sleep(Duration::from_secs(1)).await;
    add(&harness, NAME, owns(NAME).whole().conditional()).await;
    sleep(Duration::from_secs(1)).await;
    let message = harness.status().message.clone();
    assert!(message.contains("in the namespace ns"), "{message}");

    for rule in first {
        harness.server.remove(rule);
    }

    sleep(Duration::from_secs(120)).await;
    let message = harness.status().message.clone();
    assert!(message.contains("in the namespace two"), "{message}");
    for rule in other {
        harness.server.remove(rule);
    }
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn owned_objects_are_kept_whole_until_the_kinds_of_all_owners_are_known() {
    let harness = harness();
    let things = TypeRef::resource("example.com", "v1", "things");
    let controller = builder().for_type(widgets()).for_type(things).optional().owns_type(parts());
    harness.add(controller).await;
    harness.log().await;
    let lists = harness.server.requests_of(PARTS);
    assert_eq!(informer_of_parts(&harness).entries, 0, "a part may be owned by a thing");
    harness.server.apply(object("Part", "foreign", "y"));

    harness.install("Thing");
    harness.until(|status| status.reason == "Running").await;
    sleep(Duration::from_secs(15)).await;

    let parts = informer_of_parts(&harness);
    assert_eq!((parts.objects, parts.entries), (2, 1));
    assert_eq!(harness.server.requests_of(PARTS), lists, "nothing is listed");
    assert_eq!(harness.status().epoch, 1);
    harness.log().await;
    harness.server.apply(part("own", "a"));
    assert_eq!(harness.log().await, ["ns/a a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn change_of_a_foreign_object_is_delivered_to_no_controller() {
    let harness = harness();
    let count = Arc::<AtomicUsize>::default();
    let owned = builder().for_type(widgets()).owns_type(parts()).predicate(counting(&count));
    harness.add(owned).await;
    harness.log().await;
    assert_eq!(count.swap(0, Ordering::Relaxed), 1, "its own part");

    for mark in 0..10 {
        harness.server.apply(object("Part", "foreign", &mark.to_string()));
    }
    harness.server.apply(part("other", "another"));
    harness.log().await;
    // The other part has an owner of the same kind, which this controller reconciles.
    assert_eq!(count.swap(0, Ordering::Relaxed), 1);

    // A part that loses its owner concerns the owner once more.
    harness.server.apply(object("Part", "own", "x"));
    assert_eq!(harness.log().await, ["ns/a a"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn selected_and_named_objects_are_delivered_and_others_are_entries() {
    let harness = harness();
    let selector: Selector = "mark in (x, y)".parse().unwrap();
    let handler = || {
        Handler::delta(|delta, enqueue| {
            let mark = |object: Option<&crate::informer::Object>| match object {
                Some(object) => object.header().labels.get("mark").unwrap_or("-").to_owned(),
                None => "none".to_owned(),
            };
            let change = format!("{}-{}", mark(delta.old.as_ref()), mark(delta.new.as_ref()));
            enqueue.add(Request::namespaced(&*delta.key.name, change));
        })
    };
    struct Names(Log);
    impl Reconciler for Names {
        async fn reconcile(&self, request: Request, _: Context) -> Result<Outcome, ReconcileError> {
            self.0.lock().unwrap().push(request.to_string());
            Ok(Outcome::Done)
        }
    }
    let input = builder()
        .watches_type(parts(), handler())
        .matching(selector)
        .named(ObjectKey::namespaced("ns", "own"));
    let controller = input.build(&harness.cluster, Names(Arc::clone(&harness.log))).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    let mut first = harness.log().await;
    first.sort();
    assert_eq!(first, ["foreign/none-x", "own/none-own"]);

    harness.server.apply(object("Part", "foreign", "z"));
    assert_eq!(harness.log().await, ["foreign/x-z"], "its end of the match, with both states");
    harness.server.apply(object("Part", "foreign", "w"));
    assert!(harness.log().await.is_empty());
    assert_eq!(informer_of_parts(&harness).entries, 1);
    harness.server.apply(object("Part", "foreign", "y"));
    assert_eq!(harness.log().await, ["foreign/w-y"]);
    harness.server.delete("Part", "own");
    assert_eq!(harness.log().await, ["own/own-none"]);
    harness.shutdown().await;
}

/// Returns the exported counts of a controller: whole objects, entries and bytes.
fn exported_share(harness: &Harness, controller: &str) -> Vec<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    harness.cluster.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let value = |name: &str| {
        let series = format!("{name}{{controller=\"{controller}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).unwrap_or("none").to_owned()
    };
    ["cached_objects", "cached_entries", "accounted_bytes"]
        .map(|name| value(&format!("pilotlight_controller_{name}")))
        .to_vec()
}

#[tokio::test(start_paused = true)]
async fn objects_and_bytes_are_counted_for_each_controller_until_it_is_removed() {
    let harness = harness();
    add(&harness, NAME, builder().for_::<Widget>().conditional().owns::<Part>()).await;
    let selected = Controller::builder("selected")
        .watches::<Part>(Handler::Object)
        .matching("mark=x".parse::<Selector>().unwrap());
    add(&harness, "selected", selected).await;
    // The foreign part is listed again, since it is to be kept whole.
    sleep(Duration::from_secs(1)).await;
    harness.log().await;
    let share = |name: &str| harness.cluster.metrics.cache_share(&name.into()).unwrap();

    // A widget and its part; the foreign part is an entry to one controller, and whole to the
    // other.
    let owner = share(NAME);
    assert_eq!((owner.whole, owner.entries), (2, 1));
    assert_eq!((share("selected").whole, share("selected").entries), (1, 1));
    let informers = harness.cluster.informers.status();
    let accounted: usize = informers.iter().map(|informer| informer.accounted).sum();
    assert_eq!(accounted, owner.accounted + share("selected").accounted, "each object is of one");
    let text = [owner.whole, owner.entries, owner.accounted].map(|count| count.to_string());
    assert_eq!(exported_share(&harness, NAME), text);

    harness.server.apply(object("Part", "foreign", "z"));
    harness.log().await;
    assert_eq!((share("selected").whole, share("selected").accounted), (0, 0));
    assert_eq!(share(NAME), owner);
    harness.server.delete("Part", "own");
    harness.log().await;
    assert_eq!((share(NAME).whole, share(NAME).entries), (1, 1));

    harness.manager.remove(NAME).await;
    assert_eq!(exported_share(&harness, NAME), ["none"; 3]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_that_is_not_watched_by_a_handler_is_not_narrowed() {
    let harness = Harness::new();
    let name = || ObjectKey::namespaced("ns", "a");
    let selector = || "a=b".parse::<Selector>().unwrap();
    let wrong = [
        builder().for_type(widgets()).named(name()),
        builder().for_type(widgets()).owns_type(parts()).matching(selector()),
        builder().watches_type(parts(), Handler::Object).matching(selector()).keys_only(),
    ];

    let errors = wrong.map(|builder| {
        let log = Arc::clone(&harness.log);
        builder.build(&harness.cluster, LoggingReconciler { log }).unwrap_err().to_string()
    });

    assert_eq!(
        errors,
        [
            "widgets: matching, named and in_cluster apply to a watched type, which \
             widgets.example.com/v1 is not; call them after watches",
            "widgets: matching, named and in_cluster apply to a watched type, which \
             parts.example.com/v1 is not; call them after watches",
            "widgets: keys_only keeps no labels of parts.example.com/v1; call metadata_only instead",
        ]
    );
    harness.shutdown().await;
}
