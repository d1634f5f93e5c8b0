//! Transforms of cached objects: by input, by type and for all types.

use tokio::time::timeout;

use super::{
    typed::{Part, Widget},
    *,
};
use crate::informer::{InformerStatus, ObjectKey, Projection, Transform};

fn sized(name: &str, size: u32) -> Value {
    let mut widget = widget(name, name);
    widget["spec"] = json!({ "size": size });
    widget
}

/// Transform that sets the size of an object.
fn resize(size: u32) -> Transform {
    Transform::new(move |object| object["spec"]["size"] = size.into())
}

/// Adds a controller of widgets, which logs its name with the size in its cache, and waits until it
/// runs.
async fn add(harness: &Harness, cluster: &Cluster, builder: Builder, name: &'static str) {
    let log = Arc::clone(&harness.log);
    let reconcile = move |request: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let widget = context.lister::<Widget>()?.get(&request)?.ok_or("not cached")?;
            log.lock().unwrap().push(format!("{name} {}", widget.spec.size));
            Ok(Outcome::Done)
        }
    };
    let controller = builder.build(cluster, reconcile).unwrap();
    harness.manager.add(name, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    let mut watch = harness.manager.watch();
    let runs = watch.wait_for(|snapshot| {
        snapshot.get(&name.into()).is_some_and(|status| status.state == ControllerState::Running)
    });
    drop(timeout(Duration::from_secs(3600), runs).await.unwrap().unwrap());
}

fn informers_of_widgets(harness: &Harness) -> Vec<InformerStatus> {
    let informers = harness.cluster.informers.status().into_iter();
    informers.filter(|informer| &*informer.key.identity.plural == "widgets").collect()
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_transform_share_a_watch_and_other_inputs_read_the_objects_as_they_are() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(sized("a", 1));
    let transform = resize(7);
    let described = |name: &'static str| Controller::builder(name).for_::<Widget>();

    for name in ["one", "two"] {
        let builder = described(name).transform(transform.clone());
        add(&harness, &harness.cluster, builder, name).await;
    }
    assert_eq!(harness.sorted_log().await, ["one 7", "two 7"]);
    assert_eq!(harness.server.watches(WIDGETS), 1);
    add(&harness, &harness.cluster, described("plain"), "plain").await;

    assert_eq!(harness.sorted_log().await, ["plain 1"]);
    assert_eq!(harness.server.watches(WIDGETS), 2);
    let mut informers = informers_of_widgets(&harness);
    informers.sort_by_key(|informer| informer.subscribers);
    let keys = informers.iter().map(|it| (it.subscribers, it.key.transform.clone()));
    assert_eq!(keys.collect::<Vec<_>>(), [(1, None), (2, Some(transform))]);
    harness.server.apply(sized("a", 2));
    assert_eq!(harness.sorted_log().await, ["one 7", "plain 2", "two 7"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn transform_is_that_of_the_input_then_of_its_type_then_of_all_types() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(sized("a", 9));
    let of_all = ControllerDefaults::default().transform(resize(1));
    let of_widgets = TypeDefaults { transform: Some(resize(2)), ..TypeDefaults::default() };
    let of_type = of_all.clone().of_type(widgets(), of_widgets);
    let cases = [
        ("none", ControllerDefaults::default(), None),
        ("all", of_all.clone(), None),
        ("type", of_type.clone(), None),
        ("own", of_type, Some(resize(3))),
    ];

    for (name, defaults, own) in cases {
        let cluster = harness.cluster.clone().with_defaults(defaults);
        let builder = Controller::builder(name).for_::<Widget>();
        let builder = match own {
            Some(own) => builder.transform(own),
            None => builder,
        };
        add(&harness, &cluster, builder, name).await;
    }

    assert_eq!(harness.sorted_log().await, ["all 1", "none 9", "own 3", "type 2"]);
    let cluster = harness.cluster.clone().with_defaults(of_all);
    let log = LoggingReconciler { log: Log::default() };
    let builder = builder().watches_type(widgets(), Handler::delta(|_, _| {})).keys_only();
    let controller = Arc::new(builder.build(&cluster, log).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let mut informers = informers_of_widgets(&harness);
    informers.retain(|informer| informer.key.projection == Projection::Keys);
    let transforms: Vec<_> = informers.into_iter().map(|informer| informer.key.transform).collect();
    assert!(matches!(transforms[..], [None]), "{transforms:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn transform_of_bare_keys_is_an_error_of_the_build() {
    let harness = Harness::new();
    let builder = builder().for_type(widgets()).transform(resize(1)).keys_only();

    let error = builder.build(&harness.cluster, LoggingReconciler { log: Log::default() });

    assert_eq!(
        error.unwrap_err().to_string(),
        "widgets: keys_only keeps no content to transform of widgets.example.com/v1; call \
         metadata_only instead"
    );
    harness.shutdown().await;
}

/// Checks what a reconcile fetches of a widget that an input keeps as a metadata entry.
async fn check_fetched(described: Builder, expected: &str) {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(sized("a", 1));
    harness.server.apply(object("Part", "p", "p"));
    let log = Arc::clone(&harness.log);
    let reconcile = move |_: Request, context: Context| {
        let log = Arc::clone(&log);
        async move {
            let fetched = context.fetch::<Widget>(&ObjectKey::namespaced("ns", "a")).await;
            log.lock().unwrap().push(match fetched {
                Ok(widget) => format!("{:?}", widget.map(|widget| widget.spec.size)),
                Err(error) => error.to_string(),
            });
            Ok(Outcome::Done)
        }
    };
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    harness.state(ControllerState::Running).await;

    assert_eq!(harness.log().await, [expected]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_fetched_from_the_server_is_transformed_too() {
    let owned = |transform| builder().for_::<Part>().owns::<Widget>().transform(transform);

    check_fetched(owned(resize(7)), "Some(7)").await;
    let panics = Transform::new(|_| panic!("boom"));
    check_fetched(owned(panics), "transform panicked: boom").await;
}

#[tokio::test(start_paused = true)]
async fn transform_of_a_fetched_object_receives_what_the_cache_would_keep() {
    // 7 without `managedFields`, 8 with them.
    let transform = Transform::new(|object| {
        let is_cut = object["metadata"].get("managedFields").is_none();
        object["spec"]["size"] = json!(if is_cut { 7 } else { 8 });
    });
    let owned = || builder().for_::<Part>().owns_type(widgets()).transform(transform.clone());

    check_fetched(owned(), "Some(7)").await;
    check_fetched(owned().managed_fields(), "Some(8)").await;
    // A transform of metadata expects no whole object.
    check_fetched(owned().metadata_only(), "Some(1)").await;
}
