//! Discovery requests: kinds of responses, and how often they are sent.

use super::*;

#[tokio::test(start_paused = true)]
async fn half_a_response_and_a_failing_one_change_nothing() {
    let harness = Harness::ready().await;
    let pods = TypeRef::resource("", "v1", "pods");
    let mut watched =
        [harness.registry.subscribe(&pods), harness.registry.subscribe(&deployments())];
    watched.iter_mut().for_each(Receiver::mark_unchanged);

    for (path, code) in [("/api", 503), ("/apis", 500)] {
        harness.server.fail(&format!("get {path}"), code, Duration::ZERO);
        sleep(Duration::from_secs(900)).await;
        assert!(harness.registry.health().discovery.stale_since.is_some());
    }
    assert!(watched.iter_mut().all(|status| !status.has_changed().unwrap()));

    harness.server.discover("/apis", json!([]));
    harness.server.heal("get /api");
    harness.server.heal("get /apis");
    sleep(Duration::from_secs(900)).await;
    assert!(watched.iter_mut().all(|status| !status.has_changed().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_backend_comes_fails_and_goes() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&loads());
    assert_eq!(harness.word(&loads()), ABSENT);

    harness.server.set_service("metrics.example.com", "v1", backend(None), false);
    let waiting = until(&mut status, UNKNOWN).await;
    assert_eq!(waiting.state, TypeState::Unknown(Some(Box::new(TypeState::Absent))));
    harness.server.discover("/apis", json!([apps(), metrics("Stale")]));
    sleep(Duration::from_secs(5)).await;
    harness.server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    harness.server.discover("/apis", json!([apps(), metrics("Current")]));
    let served = until(&mut status, SERVED).await.served.unwrap();
    assert_eq!(served.identity.uid.as_deref(), Some("uid-of-v1.metrics.example.com"));

    harness.server.discover("/apis", json!([apps(), metrics("Stale")]));
    harness.server.set_service("metrics.example.com", "v1", backend(Some(false)), false);
    let lost = until(&mut status, UNKNOWN).await;
    assert_eq!(lost.state, TypeState::Unknown(Some(Box::new(TypeState::Served))));
    assert_eq!(lost.served.as_ref(), Some(&served));

    harness.server.discover("/apis", json!([apps(), metrics("Current")]));
    harness.server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    until(&mut status, SERVED).await;

    harness.server.delete_service("metrics.example.com", "v1");
    until(&mut status, UNKNOWN).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.word(&loads()), UNKNOWN);
    harness.server.discover("/apis", json!([apps()]));
    until(&mut status, ABSENT).await;
    assert_eq!(harness.word(&deployments()), SERVED);
}

#[tokio::test(start_paused = true)]
async fn backend_that_lists_no_resources_at_first_stops_nothing() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&loads());
    let empty = || group("metrics.example.com", "Current", &[]);
    harness.server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    harness.server.discover("/apis", json!([apps(), metrics("Current")]));
    let served = until(&mut status, SERVED).await;

    harness.server.discover("/apis", json!([apps(), empty()]));
    harness.registry.hint(&harness.identity(&loads()));
    let started = until(&mut status, UNKNOWN).await;
    // The API server repeats a document for a minute.
    sleep(Duration::from_secs(80)).await;

    assert_eq!(started.served, served.served);
    assert_eq!(harness.word(&loads()), UNKNOWN);
    harness.server.discover("/apis", json!([apps(), metrics("Current")]));
    let registered = until(&mut status, SERVED).await;
    assert_eq!(registered.served, served.served);

    // The resources are removed from the server.
    harness.server.discover("/apis", json!([apps(), empty()]));
    harness.registry.hint(&harness.identity(&loads()));
    let removed = Instant::now();
    until(&mut status, ABSENT).await;
    assert!((90..130).contains(&removed.elapsed().as_secs()), "{:?}", removed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn discovery_is_requested_at_growing_intervals_until_the_group_is_current() {
    let harness = Harness::ready().await;
    let before = harness.server.discovery_requests();

    harness.server.set_service("metrics.example.com", "v1", backend(None), false);
    sleep(Duration::from_secs(40)).await;
    let times = harness.server.requests("get /apis").split_off(before);
    let gaps: Vec<u128> = times.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    // Paused time has a resolution of one millisecond.
    let rounded: Vec<u128> = gaps.iter().map(|gap| gap / 10 * 10).collect();
    assert_eq!(rounded, [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);

    harness.server.discover("/apis", json!([apps(), metrics("Current")]));
    until(&mut harness.registry.subscribe(&loads()), SERVED).await;
    let settled = harness.server.discovery_requests();
    sleep(Duration::from_secs(500)).await;
    assert_eq!(harness.server.discovery_requests(), settled);
    sleep(Duration::from_secs(200)).await;
    assert_eq!(harness.server.discovery_requests(), settled + 1);
}

#[tokio::test(start_paused = true)]
async fn discovery_is_retried_at_the_start_until_the_server_answers() {
    let server = Server::new();
    for path in ["get /api", "get /apis"] {
        server.fail(path, 503, Duration::ZERO);
    }
    let harness = Harness::on(server);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(harness.word(&deployments()), UNKNOWN);
    assert!(!harness.registry.health().is_current());

    harness.server.heal("get /api");
    harness.server.heal("get /apis");

    let begun = Instant::now();
    until(&mut harness.registry.subscribe(&deployments()), SERVED).await;
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(harness.registry.health().is_current());
}

#[tokio::test(start_paused = true)]
async fn discovery_that_hangs_is_cancelled_and_requested_again() {
    let server = Server::new();
    server.fail("get /apis", 200, Duration::from_secs(3600));
    let harness = Harness::on(server);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.word(&deployments()), UNKNOWN);

    harness.server.heal("get /apis");

    let begun = Instant::now();
    until(&mut harness.registry.subscribe(&deployments()), SERVED).await;
    assert!(begun.elapsed() < Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn hints_request_discovery_of_types_that_no_watch_reports() {
    let harness = Harness::ready().await;
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut harness.registry.subscribe(&widgets()), SERVED).await;
    let before = harness.server.discovery_requests();

    harness.registry.hint(&harness.identity(&widgets()));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.server.discovery_requests(), before);

    for _ in 0..1000 {
        harness.registry.hint(&harness.identity(&deployments()));
        sleep(Duration::from_millis(10)).await;
    }
    assert!((10..=12).contains(&(harness.server.discovery_requests() - before)));
}

#[tokio::test(start_paused = true)]
async fn old_server_is_requested_group_by_group_and_a_failing_group_keeps_its_state() {
    let server = Server::new();
    server.set_service("metrics.example.com", "v1", backend(Some(true)), false);
    server.set_document("/api", json!({ "kind": "APIVersions", "versions": ["v1"] }));
    server.set_document(
        "/apis",
        json!({ "kind": "APIGroupList", "groups": [
            { "name": "apps", "versions": [{ "groupVersion": "apps/v1", "version": "v1" }] },
            { "name": "metrics.example.com",
              "versions": [{ "groupVersion": "metrics.example.com/v1", "version": "v1" }] }] }),
    );
    let list = |plural: &str, kind: &str| {
        json!({ "resources": [
            { "name": plural, "kind": kind, "namespaced": true, "verbs": ["list", "watch"] },
            { "name": format!("{plural}/status"), "kind": kind, "namespaced": true, "verbs": [] }] })
    };
    server.set_document("/api/v1", list("pods", "Pod"));
    server.set_document("/apis/apps/v1", list("deployments", "Deployment"));
    server.set_document("/apis/metrics.example.com/v1", list("loads", "Load"));
    let harness = Harness::on(server);
    let mut status = harness.registry.subscribe(&loads());
    until(&mut status, SERVED).await;
    assert!(harness.registry.served(&deployments()).unwrap().subresources.status);

    harness.server.fail("get /apis/metrics.example.com/v1", 503, Duration::ZERO);
    harness.registry.hint(&harness.identity(&loads()));
    until(&mut status, UNKNOWN).await;
    assert_eq!(harness.word(&deployments()), SERVED);

    harness.server.heal("get /apis/metrics.example.com/v1");
    until(&mut status, SERVED).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_aggregated_discovery_falls_back_to_plain() {
    let server = Server::new();
    server.fail("get /apis", 406, Duration::ZERO);
    let harness = Harness::on(server);
    sleep(Duration::from_secs(1)).await;
    harness.server.heal("get /apis");

    until(&mut harness.registry.subscribe(&deployments()), SERVED).await;
}
