//! What is watched: CRDs and APIServices, lost, refused and found again.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_change_wakes_only_those_whose_type_changed() {
    let rig = Rig::ready().await;
    let mut touched = rig.registry.subscribe(&widgets());
    let mut by_kind = rig.registry.subscribe(&TypeRef::kind("example.com", "v1", "Widget"));
    let mut others: Vec<_> = (0..2000)
        .map(|n| rig.registry.subscribe(&TypeRef::resource("example.com", "v1", format!("t{n}"))))
        .collect();

    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut touched, SERVED).await;
    until(&mut by_kind, SERVED).await;

    assert!(others.iter_mut().all(|other| !other.has_changed().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_crds_costs_no_request() {
    let rig = Rig::ready().await;
    let asked = rig.server.asked();
    let mut last = rig.registry.subscribe(&TypeRef::kind("example.com", "v1", "Kind999"));

    for n in 0..1000 {
        let name = format!("kind{n}s");
        rig.server.apply_crd(&name, crd(&name, &format!("Kind{n}"), "a"));
    }
    until(&mut last, SERVED).await;

    assert_eq!(rig.server.asked(), asked);
    let known = rig.registry.report().iter().filter(|row| row.origin == Origin::Crd).count();
    assert_eq!(known, 1000);
}

#[tokio::test(start_paused = true)]
async fn churn_of_metadata_wakes_nobody() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    for n in 0..50 {
        let mut churned = crd("widgets", "Widget", "a");
        churned["metadata"]["annotations"] = json!({ "n": n.to_string() });
        rig.server.apply_crd("widgets", churned);
    }
    sleep(Duration::from_secs(60)).await;

    assert!(!status.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_crd_recreated_while_the_watch_is_down_is_another_type() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "old"));
    let old = until(&mut status, SERVED).await;

    rig.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    rig.server.cut(CRDS);
    rig.server.delete_crd("widgets");
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "new"));
    let changed = timeout(Duration::from_secs(60), status.changed()).await;
    changed.unwrap().unwrap();

    let new = status.borrow_and_update().clone();
    assert_eq!(new.state, TypeState::Served);
    assert_eq!(new.served.unwrap().identity.uid.as_deref(), Some("new"));
    assert!(new.since >= old.since);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_watch_missed_is_found_by_the_list() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    rig.server.silently(CRDS, |server| server.delete_crd("widgets"));
    rig.server.fail(&format!("watch {CRDS}"), 410, Duration::ZERO);
    rig.server.cut(CRDS);

    until(&mut status, ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_watch_freezes_the_last_state_and_is_reported() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;
    assert!(rig.registry.health().is_current());

    for (code, request) in [(500, "watch"), (401, "watch"), (503, "list"), (429, "list")] {
        rig.server.fail(&format!("{request} {CRDS}"), code, Duration::ZERO);
    }
    rig.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(!status.has_changed().unwrap());
    let health = rig.registry.health().crds;
    assert!(health.stale_since.is_some());
    assert!(health.error.unwrap().contains(CRDS));
    let attempts = rig.server.requests(&format!("watch {CRDS}")).len()
        + rig.server.requests(&format!("list {CRDS}")).len();
    assert!(attempts < 40, "{attempts} requests in five minutes");

    rig.server.heal(&format!("watch {CRDS}"));
    rig.server.heal(&format!("list {CRDS}"));
    sleep(Duration::from_secs(60)).await;
    assert!(rig.registry.health().is_current());
    assert!(!status.has_changed().unwrap());
    assert_eq!(*rig.registry.mode().borrow(), Mode::Watching);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_at_once_is_not_asked_in_a_circle() {
    let rig = Rig::ready().await;

    for _ in 0..600 {
        rig.server.cut(CRDS);
        sleep(Duration::from_secs(1)).await;
    }

    let watches = rig.server.requests(&format!("watch {CRDS}")).len();
    assert!(watches < 100, "{watches} watches in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_hangs_is_given_up() {
    let server = Server::new();
    server.fail(&format!("list {CRDS}"), 200, Duration::from_secs(3600));
    let rig = Rig::on(server);
    sleep(Duration::from_secs(5)).await;

    rig.server.heal(&format!("list {CRDS}"));

    until(&mut rig.registry.subscribe(&widgets()), ABSENT).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_crds_discovery_is_polled_until_it_is_granted() {
    let server = Server::new();
    server.set_service("example.com", "v1", json!({}), false);
    server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    let widget_group = || group("example.com", "Current", &[("widgets", "Widget")]);
    server.discover("/apis", json!([apps(), widget_group()]));
    let rig = Rig::on(server);
    let mut status = rig.registry.subscribe(&widgets());
    let mut mode = rig.registry.mode();

    let reason = timeout(Duration::from_secs(60), mode.wait_for(|m| *m != Mode::Watching));
    assert!(matches!(&*reason.await.unwrap().unwrap(), Mode::Static(reason)
            if reason.contains("customresourcedefinitions.apiextensions.k8s.io")));
    let served = until(&mut status, SERVED).await;
    assert_eq!(served.served.unwrap().identity.uid, None);

    let asked = rig.server.asked();
    sleep(Duration::from_secs(300)).await;
    assert!((9..=12).contains(&(rig.server.asked() - asked)));

    rig.server.discover("/apis", json!([apps(), group("example.com", "Current", &[])]));
    until(&mut status, ABSENT).await;
    rig.server.discover("/apis", json!([apps(), widget_group()]));
    until(&mut status, SERVED).await;

    rig.server.heal(&format!("list {CRDS}"));
    timeout(Duration::from_secs(60), mode.wait_for(|m| *m == Mode::Watching))
        .await
        .unwrap()
        .unwrap();
    status.mark_unchanged();
    sleep(Duration::from_secs(1000)).await;
    assert!(!status.has_changed().unwrap());
    assert_eq!(rig.identity(&widgets()).uid, None, "it is the type that it was");
    let row = rig.registry.report().into_iter().find(|row| row.name == "widgets.example.com");
    assert_eq!(row.unwrap().uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn crds_that_are_not_found_are_an_error_and_freeze_what_is_known() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    rig.server.fail(&format!("watch {CRDS}"), 404, Duration::ZERO);
    rig.server.fail(&format!("list {CRDS}"), 404, Duration::ZERO);
    rig.server.cut(CRDS);
    sleep(Duration::from_secs(1000)).await;

    assert_eq!(*rig.registry.mode().borrow(), Mode::Watching);
    assert!(rig.registry.health().crds.stale_since.is_some());
    assert!(!status.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_type_created_without_the_right_to_watch_crds_outlives_its_grant() {
    let rig = Rig::ready().await;
    rig.server.fail(&format!("watch {CRDS}"), 403, Duration::ZERO);
    rig.server.cut(CRDS);
    let mut mode = rig.registry.mode();
    timeout(Duration::from_secs(600), mode.wait_for(|it| *it != Mode::Watching))
        .await
        .unwrap()
        .unwrap();
    rig.server.set_service("example.com", "v1", json!({}), false);
    rig.server.silently(CRDS, |server| {
        server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    });
    let widget_group = group("example.com", "Current", &[("widgets", "Widget")]);
    rig.server.discover("/apis", json!([apps(), widget_group]));
    let mut status = rig.registry.subscribe(&widgets());
    let before = until(&mut status, SERVED).await;
    let seen = rig.registry.subscribe(&widgets());

    rig.server.heal(&format!("watch {CRDS}"));
    timeout(Duration::from_secs(600), mode.wait_for(|it| *it == Mode::Watching))
        .await
        .unwrap()
        .unwrap();
    sleep(Duration::from_secs(10)).await;

    assert!(!seen.has_changed().unwrap(), "{before:?}, then {:?}", *seen.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_revoked_later_stops_nothing() {
    let rig = Rig::ready().await;
    let mut status = rig.registry.subscribe(&widgets());
    rig.server.set_service("example.com", "v1", json!({}), false);
    let mut odd = crd("widgets", "Widget", "a");
    odd["spec"]["names"]["listKind"] = json!("WidgetArray");
    odd["status"]["acceptedNames"]["listKind"] = json!("WidgetArray");
    rig.server.apply_crd("widgets", odd);
    rig.server.discover(
        "/apis",
        json!([apps(), group("example.com", "Current", &[("widgets", "Widget")])]),
    );
    until(&mut status, SERVED).await;

    rig.server.fail(&format!("watch {CRDS}"), 403, Duration::ZERO);
    rig.server.fail(&format!("list {CRDS}"), 403, Duration::ZERO);
    rig.server.cut(CRDS);
    sleep(Duration::from_secs(300)).await;

    assert!(matches!(&*rig.registry.mode().borrow(), Mode::Static(_)));
    assert!(!status.has_changed().unwrap());
    assert_eq!(rig.identity(&widgets()).uid.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_api_services_crds_are_still_watched() {
    let server = Server::new();
    server.fail(&format!("list {SERVICES}"), 403, Duration::ZERO);
    let rig = Rig::on(server);

    until(&mut rig.registry.subscribe(&deployments()), SERVED).await;
    let mut status = rig.registry.subscribe(&widgets());
    until(&mut status, ABSENT).await;
    rig.server.apply_crd("widgets", crd("widgets", "Widget", "a"));
    until(&mut status, SERVED).await;

    assert_eq!(*rig.registry.mode().borrow(), Mode::Watching);
    assert!(rig.registry.health().api_services.stale_since.is_some());
}
