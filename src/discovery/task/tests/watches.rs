//! Watches of CRDs and APIServices: lost, refused and restored.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_change_wakes_only_those_whose_type_changed() {
    let harness = Harness::ready().await;
    let mut touched = harness.registry.subscribe(&widgets());
    let mut by_kind = harness.registry.subscribe(&TypeRef::kind("example.com", "v1", "Widget"));
    let mut others: Vec<_> = (0..2000)
        .map(|n| {
            harness.registry.subscribe(&TypeRef::resource("example.com", "v1", format!("t{n}")))
        })
        .collect();

    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut touched, SERVED).await;
    until(&mut by_kind, SERVED).await;

    assert!(others.iter_mut().all(|other| !other.has_changed().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_crds_costs_no_request() {
    let harness = Harness::ready().await;
    let before = harness.server.discovery_requests();
    let mut last = harness.registry.subscribe(&TypeRef::kind("example.com", "v1", "Kind999"));

    for n in 0..1000 {
        let name = format!("kind{n}s");
        harness.server.apply_crd(&name, crd(&name, &format!("Kind{n}"), "a"));
    }
    until(&mut last, SERVED).await;

    assert_eq!(harness.server.discovery_requests(), before);
    let known = harness.registry.report().iter().filter(|row| row.origin == Origin::Crd).count();
    assert_eq!(known, 1000);
}

#[tokio::test(start_paused = true)]
async fn changes_of_metadata_wake_no_subscriber() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    for n in 0..50 {
        let mut edited = crd("widgets", "Widget", "a");
        edited["metadata"]["annotations"] = json!({ "n": n.to_string() });
        harness.server.apply_crd("widgets", edited);
    }
    sleep(Duration::from_secs(60)).await;

    assert!(!status.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_crd_recreated_while_the_watch_is_down_is_another_type() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "old"));
    let old = until(&mut status, SERVED).await;

    harness.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    harness.server.cut(CRDS);
    harness.server.delete_crd("widgets");
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "new"));
    let changed = timeout(Duration::from_secs(60), status.changed()).await;
    changed.unwrap().unwrap();

    let new = status.borrow_and_update().clone();
    assert_eq!(new.state, TypeState::Served);
    assert_eq!(new.served.unwrap().identity.uid.as_deref(), Some("new"));
    assert!(new.since >= old.since);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_watch_missed_is_found_by_the_list() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    harness.server.silently(CRDS, |server| server.delete_crd("widgets"));
    harness.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    harness.server.cut(CRDS);

    until(&mut status, ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_without_items_proves_no_absence() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    // A proxy answers for the server, with a JSON document that is no list.
    harness.server.fail(&format!("list {CRDS}"), 200, Duration::ZERO);
    harness.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    harness.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(!status.has_changed().unwrap(), "{:?}", status.borrow().state);
    assert!(harness.registry.health().crds.error.unwrap().contains(CRDS));
}

#[tokio::test(start_paused = true)]
async fn a_lost_watch_freezes_the_last_state_and_is_reported() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;
    assert!(harness.registry.health().is_current());

    for (code, request) in [(500, "watch"), (401, "watch"), (503, "list"), (429, "list")] {
        harness.server.fail(&format!("{request} {CRDS}"), code, Duration::ZERO);
    }
    harness.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(!status.has_changed().unwrap());
    let health = harness.registry.health().crds;
    assert!(health.stale_since.is_some());
    assert!(health.error.unwrap().contains(CRDS));
    let attempts = harness.server.requests(&format!("watch {CRDS}")).len()
        + harness.server.requests(&format!("list {CRDS}")).len();
    assert!(attempts < 40, "{attempts} requests in five minutes");

    harness.server.heal(&format!("watch {CRDS}"));
    harness.server.heal(&format!("list {CRDS}"));
    sleep(Duration::from_secs(60)).await;
    assert!(harness.registry.health().is_current());
    assert!(!status.has_changed().unwrap());
    assert_eq!(*harness.registry.mode().borrow(), DiscoveryMode::Watching);
}

#[tokio::test(start_paused = true)]
async fn server_that_ends_each_watch_at_once_is_requested_with_pauses() {
    let harness = Harness::ready().await;

    for _ in 0..600 {
        harness.server.cut(CRDS);
        sleep(Duration::from_secs(1)).await;
    }

    let watches = harness.server.requests(&format!("watch {CRDS}")).len();
    assert!(watches < 100, "{watches} watches in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn server_restored_from_a_backup_is_listed_again() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    for n in 0..10 {
        harness.server.apply_crd("gadgets", crd("gadgets", "Gadget", &n.to_string()));
    }
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    // The watches resume at a version that the server has not reached, and are silent.
    harness.server.restore(|server| server.delete_crd("widgets"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(harness.word(&widgets()), SERVED);
    let before = Instant::now();

    until(&mut status, ABSENT).await;
    assert!(before.elapsed() < Duration::from_secs(240), "{:?}", before.elapsed());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "b"));
    until(&mut status, SERVED).await;
}

#[tokio::test(start_paused = true)]
async fn silent_watch_of_an_unchanged_server_is_resumed_without_a_whole_list() {
    let harness = Harness::ready().await;
    let lists = || harness.server.requests(&format!("list {CRDS}")).len();
    let before = lists();

    sleep(Duration::from_secs(1000)).await;

    // Each check reads one object.
    assert!((3..=6).contains(&(lists() - before)), "{}", lists() - before);
    assert!(harness.registry.health().is_current());
}

#[tokio::test(start_paused = true)]
async fn server_that_repeats_its_continue_token_is_reported_and_requested_with_pauses() {
    let server = Server::new();
    server.repeat_token(true);
    let harness = Harness::on(server);

    sleep(Duration::from_secs(300)).await;

    let lists = harness.server.requests(&format!("list {CRDS}")).len();
    assert!((4..60).contains(&lists), "{lists} requests in five minutes");
    let error = harness.registry.health().crds.error.unwrap();
    assert!(error.contains("same continue token"), "{error}");
    harness.server.repeat_token(false);
    until(&mut harness.registry.subscribe(&widgets()), ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_hangs_is_cancelled() {
    let server = Server::new();
    server.fail(&format!("list {CRDS}"), 200, Duration::from_secs(3600));
    let harness = Harness::on(server);
    sleep(Duration::from_secs(5)).await;

    harness.server.heal(&format!("list {CRDS}"));

    until(&mut harness.registry.subscribe(&widgets()), ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_crds_discovery_is_polled_until_it_is_granted() {
    let server = Server::new();
    server.set_service("example.com", "v1", json!({}), false);
    server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    let widget_group = || group("example.com", "Current", &[("widgets", "Widget")]);
    server.discover("/apis", json!([apps(), widget_group()]));
    let harness = Harness::on(server);
    let mut status = harness.registry.subscribe(&widgets());
    let mut mode = harness.registry.mode();

    let reason =
        timeout(Duration::from_secs(60), mode.wait_for(|m| matches!(m, DiscoveryMode::Static(_))));
    assert!(matches!(&*reason.await.unwrap().unwrap(), DiscoveryMode::Static(reason)
            if reason.contains("customresourcedefinitions.apiextensions.k8s.io")));
    let served = until(&mut status, SERVED).await;
    assert_eq!(served.served.unwrap().identity.uid, None);

    let before = harness.server.discovery_requests();
    sleep(Duration::from_secs(300)).await;
    assert!((9..=12).contains(&(harness.server.discovery_requests() - before)));

    harness.server.discover("/apis", json!([apps(), group("example.com", "Current", &[])]));
    until(&mut status, ABSENT).await;
    harness.server.discover("/apis", json!([apps(), widget_group()]));
    until(&mut status, SERVED).await;

    harness.server.heal(&format!("list {CRDS}"));
    timeout(Duration::from_secs(60), mode.wait_for(|m| *m == DiscoveryMode::Watching))
        .await
        .unwrap()
        .unwrap();
    status.mark_unchanged();
    sleep(Duration::from_secs(1000)).await;
    assert!(!status.has_changed().unwrap());
    assert_eq!(harness.identity(&widgets()).uid, None, "the identity is unchanged");
    let row = harness.registry.report().into_iter().find(|row| row.name == "widgets.example.com");
    assert_eq!(row.unwrap().uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn crds_that_are_not_found_are_an_error_and_freeze_what_is_known() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    harness.server.fail(&format!("watch {CRDS}"), 404, Duration::ZERO);
    harness.server.fail(&format!("list {CRDS}"), 404, Duration::ZERO);
    harness.server.cut(CRDS);
    sleep(Duration::from_secs(1000)).await;

    assert_eq!(*harness.registry.mode().borrow(), DiscoveryMode::Watching);
    assert!(harness.registry.health().crds.stale_since.is_some());
    assert!(!status.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_type_created_without_the_right_to_watch_crds_outlives_its_grant() {
    let harness = Harness::ready().await;
    harness.server.fail(&format!("watch {CRDS}"), 403, Duration::ZERO);
    harness.server.cut(CRDS);
    let mut mode = harness.registry.mode();
    timeout(Duration::from_secs(600), mode.wait_for(|it| matches!(it, DiscoveryMode::Static(_))))
        .await
        .unwrap()
        .unwrap();
    harness.server.set_service("example.com", "v1", json!({}), false);
    harness.server.silently(CRDS, |server| {
        server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    });
    let widget_group = group("example.com", "Current", &[("widgets", "Widget")]);
    harness.server.discover("/apis", json!([apps(), widget_group]));
    let mut status = harness.registry.subscribe(&widgets());
    let before = until(&mut status, SERVED).await;
    let seen = harness.registry.subscribe(&widgets());

    harness.server.heal(&format!("watch {CRDS}"));
    timeout(Duration::from_secs(600), mode.wait_for(|it| *it == DiscoveryMode::Watching))
        .await
        .unwrap()
        .unwrap();
    sleep(Duration::from_secs(10)).await;

    assert!(!seen.has_changed().unwrap(), "{before:?}, then {:?}", *seen.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_revoked_later_stops_nothing() {
    let harness = Harness::ready().await;
    let mut status = harness.registry.subscribe(&widgets());
    harness.server.set_service("example.com", "v1", json!({}), false);
    let mut odd = crd("widgets", "Widget", "a");
    odd["spec"]["names"]["listKind"] = json!("WidgetArray");
    odd["status"]["acceptedNames"]["listKind"] = json!("WidgetArray");
    harness.server.apply_crd("widgets", odd);
    harness.server.discover(
        "/apis",
        json!([apps(), group("example.com", "Current", &[("widgets", "Widget")])]),
    );
    until(&mut status, SERVED).await;

    harness.server.fail(&format!("watch {CRDS}"), 403, Duration::ZERO);
    harness.server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    harness.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(matches!(&*harness.registry.mode().borrow(), DiscoveryMode::Static(_)));
    assert!(!status.has_changed().unwrap());
    assert_eq!(harness.identity(&widgets()).uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_api_services_crds_are_still_watched() {
    let server = Server::new();
    server.fail(&format!("list {SERVICES}"), 403, Duration::ZERO);
    let harness = Harness::on(server);

    until(&mut harness.registry.subscribe(&deployments()), SERVED).await;
    let mut status = harness.registry.subscribe(&widgets());
    until(&mut status, ABSENT).await;
    harness.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    assert_eq!(*harness.registry.mode().borrow(), DiscoveryMode::Watching);
    assert!(harness.registry.health().api_services.stale_since.is_some());
}
