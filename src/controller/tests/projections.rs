//! Projections of cached objects, and the uses that each excludes.

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;
use crate::informer::Index;

#[tokio::test(start_paused = true)]
async fn use_of_a_field_outside_the_projection_is_an_error_of_the_build() {
    let harness = Harness::new();
    let owner = Handler::Owner {
        owner: crate::kind::GroupKind { group: "example.com".into(), kind: "Widget".into() },
        only_controller: true,
    };
    let index = || Index::new("app", |_| Vec::new());
    let wrong = [
        builder().for_::<ConfigMap>().metadata_only(),
        builder().for_::<ConfigMap>().keys_only(),
        builder().for_type(widgets()).owns::<ConfigMap>().metadata_only(),
        builder().for_type(widgets()).owns_type(parts()).keys_only(),
        builder().for_type(widgets()).keys_only().predicate(Predicate::generation()),
        builder().for_type(widgets()).keys_only().predicate(!Predicate::labels()),
        builder().for_type(widgets()).keys_only().event_filter(Predicate::annotations()),
        builder().for_type(widgets()).keys_only().index(index()),
        builder().for_type(widgets()).keys_only().managed_fields(),
        builder().watches_type(parts(), owner).keys_only(),
        builder().for_type(widgets()).every_owner(),
    ];
    let log = || LoggingReconciler { log: Log::default() };

    let built: Vec<_> = wrong
        .into_iter()
        .map(|builder| builder.build(&harness.cluster, log()).err().map(|error| error.to_string()))
        .collect();

    assert!(built.iter().all(Option::is_some), "{built:#?}");
    let built: Vec<_> = built.into_iter().flatten().collect();
    assert_eq!(
        [&*built[0], &*built[3], &*built[10]],
        [
            "widgets: metadata_only keeps too little of configmaps/v1 to decode its Rust type; \
             name it by for_type, owns_type or watches_type",
            "widgets: keys_only keeps no owner references of parts.example.com/v1; call \
             metadata_only instead",
            "widgets: every_owner applies to an owned type, which widgets.example.com/v1 is not; \
             call it after owns",
        ]
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn code_that_decodes_objects_is_refused_where_they_are_cached_in_part() {
    let harness = Harness::new();
    let handler = || Handler::typed(|_: Event<ConfigMap>, _: &mut Enqueue<'_>| {});
    let predicate = || Predicate::typed(|_: Event<ConfigMap>| true);
    let index = || Index::typed("data", |_: &ConfigMap| Vec::new());
    let of_type = || builder().for_type(TypeRef::of::<ConfigMap>());
    let wrong = [
        (of_type().metadata_only().predicate(predicate()), "predicate"),
        (of_type().keys_only().predicate(predicate()), "predicate"),
        (of_type().predicate(Predicate::labels().or(!predicate())).metadata_only(), "predicate"),
        (of_type().metadata_only().event_filter(predicate()), "predicate"),
        (of_type().metadata_only().index(index()), "index"),
        (builder().watches_type(parts(), handler()).metadata_only(), "handler"),
        (builder().watches_type(parts(), handler()).keys_only(), "handler"),
    ];
    let log = || LoggingReconciler { log: Log::default() };

    for (builder, code) in wrong {
        let error = builder.build(&harness.cluster, log()).map(drop).unwrap_err().to_string();
        let expected = format!("the {code} decodes ");
        assert!(error.contains(&expected), "{code}: {error}");
    }
    let whole = of_type().predicate(predicate()).index(index()).watches_type(parts(), handler());
    drop(whole.build(&harness.cluster, log()).unwrap());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn cache_holds_what_its_projection_says() {
    let harness = Harness::new();
    let mut map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "y"},
    });
    map["metadata"]["labels"] = json!({"mark": "a"});
    harness.server.apply(map);
    let type_ref = TypeRef::of::<ConfigMap>();
    let seen = async |builder: Builder| {
        let (log, type_ref) = (Arc::clone(&harness.log), type_ref.clone());
        let reconcile = move |request: Request, context: Context| {
            let (log, type_ref) = (Arc::clone(&log), type_ref.clone());
            async move {
                let object = context.store(&type_ref)?.get(&request);
                let object = object.ok_or("not cached")?;
                let labels = object.header().labels.to_map().len();
                let json = String::from_utf8_lossy(&object.json()).into_owned();
                let has = |field: &str| json.contains(field);
                let note = (labels, has("\"data\""), has("managedFields"), has("metadata"));
                log.lock().unwrap().push(format!("{note:?}"));
                Ok(Outcome::Done)
            }
        };
        let controller = builder.build(&harness.cluster, reconcile).unwrap();
        harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        let log = harness.log().await.concat();
        harness.manager.remove(NAME).await;
        log
    };
    let of_type = || builder().for_type(type_ref.clone());

    assert_eq!(seen(of_type()).await, "(1, true, false, true)");
    assert_eq!(seen(of_type().managed_fields()).await, "(1, true, true, true)");
    assert_eq!(seen(of_type().metadata_only()).await, "(1, false, false, true)");
    assert_eq!(seen(of_type().keys_only()).await, "(0, false, false, false)");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn projected_type_is_not_decoded_and_the_error_says_what_to_change() {
    struct Reader;
    impl Reconciler for Reader {
        async fn reconcile(&self, _: Request, context: Context) -> Result<Outcome, ReconcileError> {
            let key = Request::cluster("a");
            if let Ok(Some(read)) = context.fetch::<ConfigMap>(&key).await {
                assert!(read.data.is_some(), "its content is read");
            }
            context.lister::<ConfigMap>()?;
            Ok(Outcome::Done)
        }
    }
    let harness = Harness::new();
    harness
        .server
        .apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "y"}}));
    let input = builder().for_type(TypeRef::of::<ConfigMap>()).metadata_only();
    let controller = Arc::new(input.build(&harness.cluster, Reader).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();

    let status = harness.until(|status| status.report.last_error.is_some()).await;

    let error = status.report.last_error.as_deref().unwrap();
    assert!(error.contains("build the input without metadata_only"), "{error}");
    harness.shutdown().await;
}
