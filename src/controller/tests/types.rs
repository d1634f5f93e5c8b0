//! What becomes of a controller when its types come, go and change.

use tokio::sync::watch;

use super::*;
use crate::manager::{Readiness, Unmet, Verdict, WatchState};

#[tokio::test(start_paused = true)]
async fn conditional_controller_lives_with_its_type_twice_round() {
    let rig = Rig::new();
    rig.add(builder().for_type(widgets()).conditional()).await;
    let waiting = rig.until(|status| status.reason == "TypeAbsent").await;
    assert_eq!(waiting.message, "widgets.example.com/v1 is not installed");
    assert_eq!(rig.server.asked(WIDGETS), 0);

    for (epoch, mark) in [(1, "first"), (2, "second")] {
        rig.install("Widget");
        let running = rig.state(ControllerState::Running).await;
        assert_eq!(running.epoch, epoch);
        rig.server.apply(widget("a", mark));
        assert_eq!(rig.log().await, [format!("ns/a {mark}")]);
        assert_eq!(rig.status().report.watches[0].state, WatchState::Synced);
        assert_eq!(rig.server.watches(WIDGETS), 1);

        rig.server.uninstall("widgets");
        rig.state(ControllerState::Waiting).await;
        assert_eq!(rig.server.watches(WIDGETS), 0);
        assert!(rig.cluster.informers.status().is_empty());
        let asked = rig.server.asked(WIDGETS);
        rig.log().await;
        sleep(Duration::from_secs(3600)).await;
        assert_eq!((rig.server.asked(WIDGETS), rig.log().await.len()), (asked, 0));
    }
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_that_is_deleted_and_created_at_once_begins_another_epoch() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.add(builder().for_type(widgets()).conditional()).await;
    rig.state(ControllerState::Running).await;
    rig.server.apply(widget("a", "old"));
    assert_eq!(rig.log().await, ["ns/a old"]);

    rig.server.uninstall("widgets");
    rig.install("Widget");
    rig.server.apply(widget("a", "new"));
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    let log = rig.log().await;
    assert_eq!(log.last().unwrap(), "ns/a new");
    assert!(log.iter().all(|note| note == "ns/a new" || note == "ns/a gone"), "{log:?}");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn optional_type_comes_and_goes_within_one_epoch() {
    let rig = Rig::new();
    rig.install("Part");
    rig.add(parts_and_perhaps_widgets()).await;
    let degraded = rig.until(|status| status.reason == "Degraded").await;
    assert_eq!(degraded.report.missing, [widgets()]);
    rig.server.apply(object("Part", "x", "x"));
    assert_eq!(rig.log().await, ["ns/x missing"]);

    for mark in ["first", "second"] {
        rig.install("Widget");
        rig.server.apply(widget("a", mark));
        rig.until(|status| status.reason == "Running").await;
        assert_eq!(rig.log().await, [format!("ns/a {mark}")]);
        rig.server.install(crd("Widget"), &["v2"]);
        rig.until(|status| status.reason == "Degraded").await;
        assert_eq!(rig.log().await, ["ns/a missing"], "its objects are out of sight");
        assert_eq!(rig.server.watches(WIDGETS), 0);
        rig.install("Widget");
        rig.until(|status| status.reason == "Running").await;
        rig.server.uninstall("widgets");
        rig.until(|status| status.reason == "Degraded").await;
        assert_eq!(rig.server.watches(WIDGETS), 0);
        rig.log().await;
    }

    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_missing_fails_the_run_with_its_name() {
    let rig = Rig::new();
    rig.add(builder().for_type(widgets())).await;

    let failed = rig.state(ControllerState::BackingOff).await;

    assert_eq!(failed.message, "sync timeout after 2 min: widgets.example.com/v1 is not installed");
    rig.install("Widget");
    rig.state(ControllerState::Running).await;
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_lost_is_reported_and_found_again() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(widget("a", "first"));
    rig.add(builder().for_type(widgets())).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a first"]);

    // Not served for a while: its objects may well exist.
    rig.server.install(crd("Widget"), &["v2"]);
    rig.until(|status| status.report.stale).await;
    rig.server.install(crd("Widget"), &["v1"]);
    rig.server.apply(widget("a", "first"));
    rig.until(|status| !status.report.stale).await;
    let log = rig.log().await;
    assert!(log.iter().all(|note| note == "ns/a first"), "nothing looked deleted: {log:?}");

    // Gone for good, and another one of that name.
    rig.server.uninstall("widgets");
    let stale = rig.until(|status| status.report.stale).await;
    assert_eq!(stale.state, ControllerState::Running);
    settle().await;
    assert_eq!(rig.server.watches(WIDGETS), 0);
    rig.log().await;
    rig.install("Widget");
    rig.server.apply(widget("b", "second"));
    rig.until(|status| !status.report.stale).await;

    assert_eq!(rig.log().await, ["ns/b second"]);
    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_go_while_a_plain_type_is_not_served_are_told_of_when_it_is_back() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(widget("a", "a"));
    rig.server.apply(widget("b", "b"));
    rig.add(builder().for_type(widgets())).await;
    rig.state(ControllerState::Running).await;
    rig.log().await;
    // No watch tells of the deletion before the type is hidden.
    let silence = rig.server.withhold("widgets");
    rig.server.delete("Widget", "b");
    rig.server.install(crd("Widget"), &["v2"]);
    rig.until(|status| status.report.stale).await;
    assert_eq!(rig.log().await, [""; 0], "nothing is known of it yet");

    rig.server.release("widgets", silence);
    rig.server.install(crd("Widget"), &["v1"]);
    rig.until(|status| !status.report.stale).await;

    let log = rig.log().await;
    assert!(log.contains(&"ns/b gone".to_owned()), "{log:?}");
    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_plain_type_are_gone_with_it_and_never_seen_under_another_of_its_name() {
    for replaced in [false, true] {
        let rig = Rig::new();
        rig.install("Widget");
        rig.server.apply(widget("a", "a"));
        rig.add(builder().for_type(widgets())).await;
        rig.state(ControllerState::Running).await;
        assert_eq!(rig.log().await, ["ns/a a"]);
        // What is known of the objects is known by their type.
        rig.server.withhold("widgets");
        rig.server.take_time_to_list("widgets");

        rig.server.uninstall("widgets");
        if replaced {
            rig.install("Widget");
        }

        assert_eq!(rig.log().await, ["ns/a missing"], "replaced: {replaced}");
        assert_eq!(rig.status().epoch, 1);
        rig.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_restricts_no_type_that_has_none() {
    let rig = Rig::new();
    rig.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    rig.add(builder().for_type(widgets()).namespace("ns")).await;
    let other = rig.build(Controller::builder("other").for_type(widgets()));
    rig.manager.add("other", Arc::new(other), RunnableOptions::default()).await.unwrap();

    rig.state(ControllerState::Running).await;
    settle().await;

    // One for both, at the one path that there is.
    let informers = rig.cluster.informers.status();
    let namespaces: Vec<_> = informers.iter().map(|it| it.key.namespace.as_deref()).collect();
    assert_eq!(namespaces, [None]);
    assert_eq!(rig.server.watches(WIDGETS), 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn version_is_bound_when_the_epoch_begins() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install(crd("Widget"), &["v1", "v2"]);
    rig.add(builder().for_type(any).conditional()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);

    rig.server.install(crd("Widget"), &["v1"]);
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(rig.server.watches(WIDGETS), 1);
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 0);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_input_of_any_version_moves_without_losing_sight() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install(crd("Widget"), &["v1"]);
    rig.server.apply(widget("a", "a"));
    rig.add(builder().for_type(any)).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);

    rig.server.install(crd("Widget"), &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.server.watches(WIDGETS), 1, "it stays while it can");
    rig.server.install(crd("Widget"), &["v2"]);
    settle().await;
    let mut newer = widget("b", "b");
    newer["apiVersion"] = json!("example.com/v2");
    rig.server.apply(newer);

    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(rig.server.watches(WIDGETS), 0);
    let mut log = rig.log().await;
    log.sort();
    // The recorder asks for v1, which is no input any more.
    assert_eq!(log, ["ns/a missing", "ns/b missing"]);
    assert_eq!(rig.status().epoch, 1);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_type_is_reported_and_found_when_the_rule_is_there() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.forbid("widgets.example.com");
    rig.add(builder().for_type(widgets()).conditional()).await;

    let forbidden = rig.until(|status| !status.report.forbidden.is_empty()).await;
    assert_eq!(forbidden.state, ControllerState::Starting);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(rig.status().state, ControllerState::Starting);
    rig.server.allow("widgets.example.com");
    let running = rig.state(ControllerState::Running).await;

    assert!(running.report.forbidden.is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn informer_that_ends_by_a_defect_deletes_nothing() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.install("Part");
    rig.server.apply(widget("a", "a"));
    rig.server.apply(object("Part", "x", "x"));
    rig.add(
        builder()
            .for_type(widgets())
            .conditional()
            .watches_type(parts(), Handler::Object)
            .optional(),
    )
    .await;
    rig.state(ControllerState::Running).await;
    rig.log().await;

    rig.cluster.informers.shutdown().await;
    let failed = rig.state(ControllerState::BackingOff).await;

    assert!(failed.message.contains("its informer ended: shut down"), "{}", failed.message);
    assert!(rig.log().await.is_empty(), "no object looks deleted");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn stores_are_empty_and_watches_closed_when_done_fires() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(widget("a", "a"));
    let controller = rig.build(builder().for_type(widgets()).conditional());
    settle().await;
    let epoch = Epoch::new(NAME, 1, Duration::from_secs(5));
    let mut runs = JoinSet::new();
    runs.spawn(controller.start(epoch.clone()));
    epoch.subscribe().wait_for(|report| report.running).await.unwrap();

    rig.server.uninstall("widgets");
    settle().await;
    epoch.stop(StopReason::TypeGone);
    runs.join_next().await.unwrap().unwrap().unwrap();

    assert_eq!(rig.server.watches(WIDGETS), 0);
    assert!(rig.cluster.informers.status().is_empty());
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_better_version_restarts_nobody_who_asked_for_any() {
    let rig = Rig::new();
    let any = widgets().any_version();
    rig.server.install(crd("Widget"), &["v1"]);
    rig.add(builder().for_type(any.clone()).conditional()).await;
    rig.state(ControllerState::Running).await;

    rig.server.install(crd("Widget"), &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.status().epoch, 1);
    assert_eq!(rig.server.watches(WIDGETS), 1);
    assert_eq!(&*rig.cluster.types.served(&any).unwrap().identity.version, "v1");

    rig.server.install(crd("Widget"), &["v2"]);
    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    assert_eq!(rig.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(rig.server.watches(WIDGETS), 0);

    rig.server.install(crd("Widget"), &["v1"]);
    rig.until(|status| status.epoch == 3 && status.state == ControllerState::Running).await;
    rig.server.install(crd("Widget"), &["v1", "v2"]);
    settle().await;
    assert_eq!(rig.status().epoch, 3);

    // Nobody rests on a version any more: whoever asks next gets the best.
    rig.manager.remove(NAME).await;
    assert_eq!(&*rig.cluster.types.served(&any).unwrap().identity.version, "v2");
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_kind_under_the_same_name_begins_another_epoch_with_a_cache_of_its_own() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(widget("a", "a"));
    rig.add(builder().for_type(widgets()).conditional()).await;
    rig.state(ControllerState::Running).await;
    let plain = Arc::new(rig.build(builder().for_type(widgets())));
    rig.manager.add("plain", plain, RunnableOptions::default()).await.unwrap();
    settle().await;

    rig.server.uninstall("widgets");
    rig.server.install(crd("Gadget").plural("widgets"), &["v1"]);

    rig.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    settle().await;
    let plain = rig.manager.status_of("plain").unwrap();
    assert_eq!((plain.epoch, plain.report.stale), (1, false));
    let informers = rig.cluster.informers.status();
    assert_eq!(informers.len(), 1, "{informers:?}");
    assert_eq!(informers[0].subscribers, 2);
    assert_eq!(rig.server.watches(WIDGETS), 1);
    rig.shutdown().await;
}

fn parts_and_perhaps_widgets() -> Builder {
    builder()
        .watches_type(parts(), Handler::Object)
        .conditional()
        .watches_type(widgets(), Handler::Object)
        .optional()
}

#[tokio::test(start_paused = true)]
async fn an_optional_type_that_may_not_be_listed_does_not_look_empty() {
    let rig = Rig::new();
    rig.install("Part");
    rig.install("Widget");
    rig.server.apply(object("Part", "a", "a"));
    rig.server.apply(widget("a", "a"));
    rig.server.forbid("widgets.example.com");

    rig.add(parts_and_perhaps_widgets()).await;
    rig.state(ControllerState::Running).await;

    // Nothing is known of the widgets: `gone` says that there is none of that name.
    assert_eq!(rig.log().await, ["ns/a missing"]);
    rig.server.allow("widgets.example.com");
    rig.until(|status| status.report.forbidden.is_empty()).await;
    assert_eq!(rig.log().await, ["ns/a a"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_optional_type_that_is_served_is_waited_for_at_the_start() {
    let rig = Rig::new();
    rig.install("Part");
    rig.install("Widget");
    rig.server.apply(object("Part", "a", "a"));
    rig.server.apply(widget("a", "a"));
    rig.server.take_time_to_list("widgets");

    rig.add(parts_and_perhaps_widgets()).await;
    rig.state(ControllerState::Running).await;
    assert_eq!(rig.log().await, ["ns/a a"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_optional_type_that_comes_are_told_of_when_all_of_them_are_known() {
    let rig = Rig::new();
    rig.install("Part");
    rig.add(parts_and_perhaps_widgets()).await;
    rig.state(ControllerState::Running).await;
    rig.install("Widget");
    // More than are handed out at one go.
    for number in 0..1000 {
        rig.server.apply(widget(&format!("{number}"), "a"));
    }

    let log = rig.log().await;

    assert_eq!(log.len(), 1000);
    assert_eq!(log.iter().find(|note| note.ends_with("missing")), None);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_runs_only_while_its_type_is_served_and_a_condition_of_the_user_is_met() {
    let rig = Rig::new();
    rig.install("Widget");
    let message = "outside of its hours".to_owned();
    let closed = Unmet { reason: "Closed".into(), message, type_ref: None };
    let hours = watch::Sender::new(Verdict::Unmet(vec![closed.clone()]));
    let verdicts = hours.subscribe();
    let when = move || Readiness::published(verdicts.clone());
    rig.add(builder().for_type(widgets()).conditional().when(when)).await;
    rig.until(|status| status.reason == "Closed").await;

    hours.send_replace(Verdict::Met(Vec::new()));
    rig.state(ControllerState::Running).await;
    hours.send_replace(Verdict::Unmet(vec![closed]));
    rig.until(|status| status.reason == "Closed").await;

    rig.shutdown().await;
}
