//! Inputs that require a subresource of their type.

use super::*;
use crate::manager::Subresource;

fn without_status(harness: &Harness, kind: &str) {
    harness.server.install(crd(kind).without_status(), &["v1"]);
}

#[tokio::test(start_paused = true)]
async fn optional_input_lives_with_a_subresource_of_its_type_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    without_status(&harness, "Part");
    let described = builder().for_type(widgets()).watches_type(parts(), Handler::Object);
    harness.add(described.optional().subresource(Subresource::Status)).await;
    for name in ["a", "b"] {
        let degraded = harness.until(|status| status.reason == "Degraded").await;
        assert!(degraded.message.contains("parts"), "{}", degraded.message);
        let error = degraded.report.watches.iter().find_map(|watch| watch.error.clone()).unwrap();
        assert!(error.contains("has no status subresource; add it to the CRD"), "{error}");
        harness.log().await; // The requests of the objects that it had.
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(harness.server.watches(PARTS), 0, "longer than an informer lingers");
        assert_eq!(harness.log().await, [""; 0]);

        harness.install("Part");
        harness.until(|status| status.reason == "Running").await;
        harness.server.apply(part(name, name));
        // The second round lists the object of the first one again.
        assert!(harness.log().await.contains(&format!("ns/{name} gone")));
        without_status(&harness, "Part");
    }
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_a_subresource_of_its_required_input_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    without_status(&harness, "Part");
    let described = builder().for_type(widgets()).watches_type(parts(), Handler::Object);
    harness.add(described.conditional().subresource(Subresource::Status)).await;
    for epoch in [1, 2] {
        let waiting = harness.until(|status| status.reason == "SubresourceMissing").await;
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, epoch - 1));
        sleep(Duration::from_secs(3600)).await;
        assert_eq!((harness.server.watches(PARTS), harness.server.watches(WIDGETS)), (0, 0));

        harness.install("Part");
        let running = harness.state(ControllerState::Running).await;
        assert_eq!(running.epoch, epoch);
        without_status(&harness, "Part");
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_input_and_source_take_no_subresource() {
    let harness = Harness::new();
    let build = |builder: Builder| {
        let reconciler = LoggingReconciler { log: Log::default() };
        builder.build(&harness.cluster, reconciler).map(drop).unwrap_err().to_string()
    };
    let of_widgets = || builder().for_type(widgets());

    let plain = build(of_widgets().subresource(Subresource::Scale));
    assert!(plain.contains("conditional") && plain.contains("optional"), "{plain}");
    let source = FunctionSource::interval(Duration::from_secs(1), Request::cluster("a"));
    let source = build(of_widgets().source(source).subresource(Subresource::Scale));
    assert!(source.contains("subresource"), "{source}");
    harness.shutdown().await;
}
