//! Controllers whose types appear, disappear and change.

use tokio::{runtime::Handle, sync::watch};

use super::*;
use crate::manager::{Readiness, UnmetRequirement, Verdict, WatchState};

/// Returns the number of live tasks once nothing more can run.
pub(super) async fn tasks() -> usize {
    run_until_idle().await;
    Handle::current().metrics().num_alive_tasks()
}

/// Asserts that nothing of a type is left: no watch, no informer, no task beside those of before,
/// and no request or reconcile within an hour.
pub(super) async fn assert_absent(harness: &Harness, path: &str, before: usize) {
    assert_eq!(harness.server.watches(path), 0);
    let alive = tasks().await;
    assert!(alive <= before, "{alive} tasks, {before} before");
    let informers = harness.cluster.informers.status();
    assert!(informers.iter().all(|it| !path.ends_with(&*it.key.identity.plural)), "{informers:?}");
    let before = harness.server.requests_of(path);
    harness.log().await;
    sleep(Duration::from_secs(3600)).await;
    assert_eq!((harness.server.requests_of(path), harness.log().await.len()), (before, 0));
}

#[tokio::test(start_paused = true)]
async fn conditional_controller_lives_with_its_type_twice_round() {
    let harness = Harness::new();
    harness.add(builder().for_type(widgets()).conditional()).await;
    let waiting = harness.until(|status| status.reason == "TypeAbsent").await;
    assert_eq!(waiting.message, "widgets.example.com/v1 is not installed");
    assert_eq!(harness.server.requests_of(WIDGETS), 0);
    let before = tasks().await;

    for (epoch, mark) in [(1, "first"), (2, "second")] {
        harness.install("Widget");
        let running = harness.state(ControllerState::Running).await;
        assert_eq!(running.epoch, epoch);
        harness.server.apply(widget("a", mark));
        assert_eq!(harness.log().await, [format!("ns/a {mark}")]);
        assert_eq!(harness.status().report.watches[0].state, WatchState::Synced);
        assert_eq!(harness.server.watches(WIDGETS), 1);

        harness.server.uninstall("widgets");
        harness.state(ControllerState::Waiting).await;
        assert!(harness.cluster.informers.status().is_empty());
        assert_absent(&harness, WIDGETS, before).await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_a_type_that_it_owns_or_watches_twice_round() {
    let owns = builder().for_type(widgets()).owns_type(parts()).conditional();
    let watches =
        builder().for_type(widgets()).watches_type(parts(), Handler::Object).conditional();
    for described in [owns, watches] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.add(described).await;
        harness.until(|status| status.reason == "TypeAbsent").await;
        assert_eq!(
            (harness.server.requests_of(PARTS), harness.server.requests_of(WIDGETS)),
            (0, 0)
        );
        let before = tasks().await;

        for epoch in 1..=2 {
            harness.install("Part");
            assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
            harness.server.apply(part("a", "a"));
            assert_eq!(harness.log().await, ["ns/a gone"]);
            assert_eq!((harness.server.watches(PARTS), harness.server.watches(WIDGETS)), (1, 1));

            harness.server.uninstall("parts");
            harness.state(ControllerState::Waiting).await;
            assert_eq!(harness.server.watches(PARTS), 0);
            // Longer than the informer of widgets lingers.
            sleep(Duration::from_secs(20)).await;
            assert_absent(&harness, PARTS, before).await;
            assert_absent(&harness, WIDGETS, before).await;
        }
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_the_served_version_of_its_type_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "kept"));
    let before = tasks().await;
    harness.add(builder().for_type(widgets()).conditional()).await;

    for epoch in 1..=2 {
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        assert_eq!(harness.log().await, ["ns/a kept"]);
        assert_eq!(harness.server.watches(WIDGETS), 1);

        harness.server.install(crd("Widget"), &["v2"]);
        let waiting = harness.state(ControllerState::Waiting).await;
        assert!(waiting.message.contains("widgets.example.com/v1"), "{}", waiting.message);
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        assert_absent(&harness, WIDGETS, before).await;
        harness.install("Widget");
    }
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_that_is_deleted_and_created_at_once_begins_another_epoch() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.add(builder().for_type(widgets()).conditional()).await;
    harness.state(ControllerState::Running).await;
    harness.server.apply(widget("a", "old"));
    assert_eq!(harness.log().await, ["ns/a old"]);

    harness.server.uninstall("widgets");
    harness.install("Widget");
    harness.server.apply(widget("a", "new"));
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    let log = harness.log().await;
    assert_eq!(log.last().unwrap(), "ns/a new");
    assert!(log.iter().all(|note| note == "ns/a new" || note == "ns/a gone"), "{log:?}");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_missing_fails_the_run_with_its_name() {
    let harness = Harness::new();
    harness.add(builder().for_type(widgets())).await;

    let failed = harness.state(ControllerState::BackingOff).await;

    assert_eq!(failed.message, "sync timeout after 2 min: widgets.example.com/v1 is not installed");
    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_type_that_is_lost_is_reported_and_found_again() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "first"));
    harness.add(builder().for_type(widgets())).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a first"]);

    // Not served for a while: the objects may still exist.
    harness.server.install(crd("Widget"), &["v2"]);
    harness.until(|status| status.report.stale).await;
    harness.server.install(crd("Widget"), &["v1"]);
    harness.server.apply(widget("a", "first"));
    harness.until(|status| !status.report.stale).await;
    let log = harness.log().await;
    assert!(log.iter().all(|note| note == "ns/a first"), "nothing looked deleted: {log:?}");

    // Deleted, and replaced by another type of the same name.
    harness.server.uninstall("widgets");
    let stale = harness.until(|status| status.report.stale).await;
    assert_eq!(stale.state, ControllerState::Running);
    run_until_idle().await;
    assert_eq!(harness.server.watches(WIDGETS), 0);
    harness.log().await;
    harness.install("Widget");
    harness.server.apply(widget("b", "second"));
    harness.until(|status| !status.report.stale).await;

    assert_eq!(harness.log().await, ["ns/b second"]);
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn deletions_while_a_plain_type_is_not_served_are_reconciled_when_it_returns() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("b", "b"));
    harness.add(builder().for_type(widgets())).await;
    harness.state(ControllerState::Running).await;
    harness.log().await;
    // No watch delivers the deletion before the type is unserved.
    let silence = harness.server.withhold("widgets");
    harness.server.delete("Widget", "b");
    harness.server.install(crd("Widget"), &["v2"]);
    harness.until(|status| status.report.stale).await;
    assert_eq!(harness.log().await, [""; 0], "the deletion is not known yet");

    harness.server.release("widgets", silence);
    harness.server.install(crd("Widget"), &["v1"]);
    harness.until(|status| !status.report.stale).await;

    let log = harness.log().await;
    assert!(log.contains(&"ns/b gone".to_owned()), "{log:?}");
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_plain_type_are_gone_with_it_and_never_seen_under_another_of_its_name() {
    for replaced in [false, true] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        harness.add(builder().for_type(widgets())).await;
        harness.state(ControllerState::Running).await;
        assert_eq!(harness.log().await, ["ns/a a"]);
        // Only the loss of the type shows that the objects are gone.
        harness.server.withhold("widgets");
        harness.server.take_time_to_list("widgets");

        harness.server.uninstall("widgets");
        if replaced {
            harness.install("Widget");
        }

        assert_eq!(harness.log().await, ["ns/a missing"], "replaced: {replaced}");
        assert_eq!(harness.status().epoch, 1);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_restricts_no_type_that_has_none() {
    let harness = Harness::new();
    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    harness.add(builder().for_type(widgets()).namespace("ns")).await;
    let other = harness.build(Controller::builder("other").for_type(widgets()));
    harness.manager.add("other", Arc::new(other), RunnableOptions::default()).await.unwrap();

    harness.state(ControllerState::Running).await;
    run_until_idle().await;

    // Both controllers share one informer, without a namespace.
    let informers = harness.cluster.informers.status();
    let namespaces: Vec<_> = informers.iter().map(|it| it.key.namespace.as_deref()).collect();
    assert_eq!(namespaces, [None]);
    assert_eq!(harness.server.watches(WIDGETS), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn types_whose_lists_have_unusual_kinds_are_reconciled_with_and_without_a_warm_up() {
    for warms_up in [true, false] {
        let harness = Harness::standing_by();
        harness.server.install_with_list_kind(&crd("Widget"), "WidgetArray");
        harness.server.install_with_list_kind(&crd("Part"), "AllOfTheParts");
        harness.server.apply(widget("a", "first"));
        let described = builder().for_type(widgets()).owns_type(parts()).conditional();
        harness.add(described.warm_up(warms_up)).await;
        let lists = || ["widgets", "parts"].map(|plural| harness.server.lists(plural));
        harness.standby().await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!((lists(), harness.log().await.len()), ([usize::from(warms_up); 2], 0));
        harness.server.lease_to("");
        harness.state(ControllerState::Running).await;
        let served = harness.cluster.types.served(&widgets()).unwrap();
        assert_eq!((&*served.kind, &*served.list_kind), ("Widget", "WidgetArray"));
        assert_eq!(harness.log().await, ["ns/a first"]);

        harness.server.apply(widget("a", "second"));
        assert_eq!(harness.log().await, ["ns/a second"]);
        harness.server.apply(part("one", "a"));
        assert_eq!(harness.log().await, ["ns/a second"], "created by another client");
        harness.server.delete("Part", "one");
        assert_eq!(harness.log().await, ["ns/a second"]);
        harness.server.delete("Widget", "a");
        assert_eq!(harness.log().await, ["ns/a gone"]);

        assert_eq!(lists(), [1, 1], "no list is repeated");
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn version_is_bound_when_the_epoch_begins() {
    let harness = Harness::new();
    let any = widgets().any_version();
    harness.server.install(crd("Widget"), &["v1", "v2"]);
    harness.add(builder().for_type(any).conditional()).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.server.watches("/apis/example.com/v2/widgets"), 1);

    harness.server.install(crd("Widget"), &["v1"]);
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(harness.server.watches(WIDGETS), 1);
    assert_eq!(harness.server.watches("/apis/example.com/v2/widgets"), 0);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_input_of_any_version_moves_without_losing_sight() {
    let harness = Harness::new();
    let any = widgets().any_version();
    harness.server.install(crd("Widget"), &["v1"]);
    harness.server.apply(widget("a", "a"));
    harness.add(builder().for_type(any)).await;
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);

    harness.server.install(crd("Widget"), &["v1", "v2"]);
    run_until_idle().await;
    assert_eq!(harness.server.watches(WIDGETS), 1, "it stays while it can");
    harness.server.install(crd("Widget"), &["v2"]);
    run_until_idle().await;
    let mut newer = widget("b", "b");
    newer["apiVersion"] = json!("example.com/v2");
    harness.server.apply(newer);

    assert_eq!(harness.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(harness.server.watches(WIDGETS), 0);
    let mut log = harness.log().await;
    log.sort();
    // The recorder reads v1, which is no longer an input.
    assert_eq!(log, ["ns/a missing", "ns/b missing"]);
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_type_is_reported_and_found_when_the_rule_is_there() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.forbid("widgets.example.com");
    harness.add(builder().for_type(widgets()).conditional()).await;

    let forbidden = harness.until(|status| !status.report.forbidden.is_empty()).await;
    assert_eq!(forbidden.state, ControllerState::Starting);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(harness.status().state, ControllerState::Starting);
    harness.server.allow("widgets.example.com");
    let running = harness.state(ControllerState::Running).await;

    assert!(running.report.forbidden.is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn informer_that_ends_by_a_defect_deletes_nothing() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(object("Part", "x", "x"));
    harness
        .add(
            builder()
                .for_type(widgets())
                .conditional()
                .watches_type(parts(), Handler::Object)
                .optional(),
        )
        .await;
    harness.state(ControllerState::Running).await;
    harness.log().await;

    harness.cluster.informers.shutdown().await;
    let failed = harness.state(ControllerState::BackingOff).await;

    assert!(
        failed
            .message
            .contains("its informer ended: the set of informers was shut down with its cluster"),
        "{}",
        failed.message
    );
    assert!(harness.log().await.is_empty(), "no object looks deleted");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn stores_are_empty_and_watches_closed_when_done_fires() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let (sender, mut stores) = tokio::sync::mpsc::unbounded_channel();
    let reconcile = move |_: Request, context: Context| {
        let read = context.store(&widgets()).map(|store| sender.send(store.clone()));
        drop(read.unwrap());
        async { Ok(Outcome::Done) }
    };
    let controller = builder().for_type(widgets()).conditional();
    let controller = controller.build(&harness.cluster, reconcile).unwrap();
    run_until_idle().await;
    let epoch = Epoch::new(NAME, 1, Duration::from_secs(5));
    let mut runs = JoinSet::new();
    runs.spawn(controller.start(epoch.clone()));
    epoch.subscribe().wait_for(|report| report.running).await.unwrap();
    let store = stores.recv().await.unwrap();
    assert_eq!((harness.server.watches(WIDGETS), store.len()), (1, 1));

    harness.server.uninstall("widgets");
    run_until_idle().await;
    epoch.stop(StopReason::TypeGone);
    runs.join_next().await.unwrap().unwrap().unwrap();

    assert_eq!((harness.server.watches(WIDGETS), store.len()), (0, 0));
    assert!(harness.cluster.informers.status().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn better_version_restarts_no_controller_of_any_version() {
    let harness = Harness::new();
    let any = widgets().any_version();
    harness.server.install(crd("Widget"), &["v1"]);
    harness.add(builder().for_type(any.clone()).conditional()).await;
    harness.state(ControllerState::Running).await;

    harness.server.install(crd("Widget"), &["v1", "v2"]);
    run_until_idle().await;
    assert_eq!(harness.status().epoch, 1);
    assert_eq!(harness.server.watches(WIDGETS), 1);
    assert_eq!(&*harness.cluster.types.served(&any).unwrap().identity.version, "v1");

    harness.server.install(crd("Widget"), &["v2"]);
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    assert_eq!(harness.server.watches("/apis/example.com/v2/widgets"), 1);
    assert_eq!(harness.server.watches(WIDGETS), 0);

    harness.server.install(crd("Widget"), &["v1"]);
    harness.until(|status| status.epoch == 3 && status.state == ControllerState::Running).await;
    harness.server.install(crd("Widget"), &["v1", "v2"]);
    run_until_idle().await;
    assert_eq!(harness.status().epoch, 3);

    // No epoch is bound to a version now: the next lookup returns the best version.
    harness.manager.remove(NAME).await;
    assert_eq!(&*harness.cluster.types.served(&any).unwrap().identity.version, "v2");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_kind_under_the_same_name_begins_another_epoch_with_a_cache_of_its_own() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.add(builder().for_type(widgets()).conditional()).await;
    harness.state(ControllerState::Running).await;
    let plain = Controller::builder("plain").for_type(widgets());
    let plain = Arc::new(harness.build(plain));
    harness.manager.add("plain", plain, RunnableOptions::default()).await.unwrap();
    run_until_idle().await;

    harness.server.uninstall("widgets");
    harness.server.install(crd("Gadget").plural("widgets"), &["v1"]);

    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;
    run_until_idle().await;
    let plain = harness.manager.status_of("plain").unwrap();
    assert_eq!((plain.epoch, plain.report.stale), (1, false));
    let informers = harness.cluster.informers.status();
    assert_eq!(informers.len(), 1, "{informers:?}");
    assert_eq!(informers[0].subscribers, 2);
    assert_eq!(harness.server.watches(WIDGETS), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_runs_only_while_its_type_is_served_and_a_condition_of_the_user_is_met() {
    let harness = Harness::new();
    harness.install("Widget");
    let message = "outside of its hours".to_owned();
    let closed = UnmetRequirement { reason: "Closed".into(), message, type_ref: None };
    let hours = watch::Sender::new(Verdict::Unmet(vec![closed.clone()]));
    let verdicts = hours.subscribe();
    let when = move || Readiness::published(verdicts.clone());
    harness.add(builder().for_type(widgets()).conditional().when(when)).await;
    harness.until(|status| status.reason == "Closed").await;

    hours.send_replace(Verdict::Met(Vec::new()));
    harness.state(ControllerState::Running).await;
    hours.send_replace(Verdict::Unmet(vec![closed]));
    harness.until(|status| status.reason == "Closed").await;

    harness.shutdown().await;
}
