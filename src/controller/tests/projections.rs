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
