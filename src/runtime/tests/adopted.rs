//! Lives of adopted controllers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;

use super::*;
use crate::{
    manager::{Runnable, RunnableWithCondition, StopReason, always},
    testing::{Action as Fault, Reply, Rule, Verb},
};

/// Logs each reconcile with its epoch, and writes through the client of the epoch.
async fn log_and_write(object: Arc<Widget>, shared: Arc<Shared>) -> Result<Action, Refused> {
    let (name, number) = (object.name_any(), shared.epoch.number());
    let widgets = Api::<Widget>::namespaced(shared.client.clone(), "default");
    let read = widgets.get(&name).await.map_err(|error| Refused(error.to_string()))?;
    shared.log.lock().unwrap().push(format!("{number} {name} {}", read.spec.size));
    Ok(Action::requeue(Duration::from_secs(1)))
}

fn never(_: Arc<Widget>, _: &Refused, _: Arc<Shared>) -> Action {
    Action::await_change()
}

fn logging(harness: &Harness, log: &Log) -> AdoptedController {
    let log = Arc::clone(log);
    adopt(&harness.cluster, [widgets()], move |client, epoch| {
        let shared = Shared { client: client.clone(), epoch, log: Arc::clone(&log) };
        (controller(&client), log_and_write, never, Arc::new(shared))
    })
}

#[tokio::test(start_paused = true)]
async fn an_adopted_controller_lives_and_dies_with_its_type() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.add(logging(&harness, &log)).await;
    harness.until(|it| it.reason == "TypeAbsent").await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();

    for epoch in 1..=2 {
        harness.install().await;
        harness.state(ControllerState::Running).await;
        harness.apply("a", json!({ "size": epoch }));
        run_until_idle().await;
        assert_eq!(take(&log), [format!("{epoch} a {epoch}")]);
        sleep(Duration::from_secs(1)).await;
        run_until_idle().await;
        assert_eq!(take(&log), [format!("{epoch} a {epoch}")], "the requeue");
        assert_eq!(harness.watches().len(), 1);

        harness.uninstall();

        assert_eq!(harness.done(epoch).await, DoneReason::TypeGone);
        assert!(harness.watches().is_empty(), "{:?}", harness.watches());
        let waiting = harness.until(|it| it.reason == "TypeAbsent").await;
        assert_eq!((waiting.state, waiting.unmet.len()), (ControllerState::Waiting, 1));
        harness.requests();
        run_until_idle().await;
        assert_eq!(alive(), before, "tasks");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(harness.requests(), 0, "a request for an absent type");
        assert_eq!((alive(), take(&log).len()), (before, 0));
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn epoch_is_running_when_the_store_has_synced() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let slow = Rule::new(Fault::Delay(Duration::from_secs(9))).verb(Verb::List);
    harness.faults.add(slow.resource("example.com", "widgets"));

    harness.add(logging(&harness, &log)).await;
    harness.state(ControllerState::Starting).await;
    sleep(Duration::from_secs(8)).await;
    assert_eq!(harness.status().state, ControllerState::Starting);
    sleep(Duration::from_secs(2)).await;

    assert_eq!(harness.status().state, ControllerState::Running);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_never_synced_stops_at_once() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let silent = Rule::new(Fault::Withhold).verb(Verb::List);
    harness.faults.add(silent.resource("example.com", "widgets"));
    harness.add(logging(&harness, &log)).await;
    harness.state(ControllerState::Starting).await;
    run_until_idle().await;
    let begin = tokio::time::Instant::now();

    harness.manager.remove(NAME).await;

    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(harness.faults.open().iter().all(|open| open.info.resource != "widgets"));
    harness.shutdown().await;
}

/// Panics for widgets of size 1 when called, and of size 2 when polled.
fn panic_by_size(
    object: Arc<Widget>,
    shared: Arc<Shared>,
) -> impl Future<Output = Result<Action, Refused>> + Send {
    assert_ne!(object.spec.size, 1, "called");
    async move {
        assert_ne!(object.spec.size, 2, "polled");
        shared.log.lock().unwrap().push(object.name_any());
        Err(Refused("refused".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_one_object_and_is_reported() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let logged = Arc::clone(&log);
    let adopted = adopt(&harness.cluster, [widgets()], move |client, epoch| {
        let shared = Shared { client: client.clone(), epoch, log: Arc::clone(&logged) };
        let policy = |object: Arc<Widget>, _: &Refused, _| match object.spec.size {
            3 => panic!("policy"),
            _ => Action::await_change(),
        };
        (controller(&client), panic_by_size, policy, Arc::new(shared))
    });
    harness.add(adopted).await;
    harness.state(ControllerState::Running).await;

    for (size, said) in [(1, "called"), (2, "polled"), (3, "policy")] {
        harness.apply("bad", json!({ "size": size }));
        let panicked = |it: &RunnableStatus| {
            let error = it.report.last_error.as_deref().unwrap_or_default();
            error.starts_with("default/bad: the reconcile panicked") && error.contains(said)
        };
        let status = harness.until(panicked).await;
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
        sleep(Duration::from_secs(2)).await;
        let good = format!("good-{size}");
        harness.apply(&good, json!({ "size": 9 }));
        run_until_idle().await;
        assert!(take(&log).contains(&good), "others are reconciled");
        sleep(Duration::from_secs(2)).await;
    }
    sleep(Duration::from_secs(40)).await;
    assert_eq!(take(&log), ["bad"], "it is reconciled again");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn errors_reach_the_status_until_the_object_succeeds() {
    let harness = Harness::new();
    harness.install().await;
    let fails = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&fails);
    let adopted = adopt(&harness.cluster, [widgets()], move |client, _| {
        let flag = Arc::clone(&flag);
        let reconcile = move |_: Arc<Widget>, _: Arc<()>| {
            let fails = flag.load(Ordering::SeqCst);
            async move {
                match fails {
                    true => Err(Refused("no disk is left".to_owned())),
                    false => Ok(Action::await_change()),
                }
            }
        };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::requeue(Duration::from_secs(5));
        (controller(&client), reconcile, policy, Arc::new(()))
    });
    harness.add(adopted).await;
    harness.apply("a", json!({ "size": 1 }));

    let failed = harness.until(|it| it.report.last_error.is_some()).await;
    assert_eq!(failed.report.last_error.as_deref(), Some("default/a: no disk is left"));
    assert!(!failed.report.failing);
    harness.until(|it| it.report.failing).await;
    fails.store(false, Ordering::SeqCst);

    let mended = harness.until(|it| it.report.last_error.is_none()).await;
    assert!(!mended.report.failing);
    harness.shutdown().await;
}

/// Returns a runnable with a condition that counts the refusals.
fn counting_refusals(
    runnable: impl crate::manager::ConditionalRunnable,
    refusals: &Arc<AtomicUsize>,
) -> RunnableWithCondition {
    let count = Arc::clone(refusals);
    let condition = move || {
        let count = Arc::clone(&count);
        always().on_refused(move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
    };
    RunnableWithCondition::new(Arc::new(runnable), condition)
}

#[tokio::test(start_paused = true)]
async fn refused_request_of_an_adopted_controller_reaches_the_conditions_added_to_it() {
    let (harness, refusals) = (Harness::new(), Arc::new(AtomicUsize::new(0)));
    harness.install().await;
    harness.apply("a", json!({ "size": 1 }));
    let adopted = adopt(&harness.cluster, [widgets()], |client, _| {
        let reconcile = |_: Arc<Widget>, client: Arc<Client>| async move {
            let found = Api::<Widget>::namespaced(Client::clone(&client), "default").get("b").await;
            found.map(|_| Action::await_change())
        };
        let policy = |_: Arc<Widget>, _: &kube::Error, _| Action::requeue(Duration::from_secs(5));
        (controller(&client), reconcile, policy, Arc::new(client))
    });
    let adopted = Arc::new(counting_refusals(adopted, &refusals));
    harness.manager.add(NAME, adopted, RunnableOptions::default()).await.unwrap();
    harness.until(|it| it.report.last_error.is_some()).await;
    assert_eq!(refusals.load(Ordering::SeqCst), 0, "not found");

    harness.server.set_rbac([AccessRule::deny().verbs(["get"])]);
    sleep(Duration::from_secs(6)).await;

    assert_eq!(refusals.load(Ordering::SeqCst), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn error_of_a_watch_is_shown_beside_reconciles_that_succeed_again() {
    let harness = Harness::new();
    harness.install().await;
    let (reconciled, stale) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, is_stale) = (Arc::clone(&reconciled), Arc::clone(&stale));
    let adopted = adopt(&harness.cluster, [widgets()], move |client, _| {
        let (count, is_stale) = (Arc::clone(&count), Arc::clone(&is_stale));
        let reconcile = move |_: Arc<Widget>, _: Arc<()>| {
            let (count, is_stale) = (Arc::clone(&count), is_stale.load(Ordering::SeqCst));
            async move {
                if !is_stale {
                    return Err(Refused("no disk is left".to_owned()));
                }
                count.fetch_add(1, Ordering::SeqCst);
                Ok(Action::requeue(Duration::from_secs(1)))
            }
        };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::requeue(Duration::from_secs(1));
        (controller(&client), reconcile, policy, Arc::new(()))
    });
    harness.add(adopted).await;
    harness.apply("a", json!({ "size": 1 }));
    harness.until(|it| it.report.last_error.is_some()).await;
    let fault = Rule::new(Fault::Instead(Reply::status(500, "InternalError", "no quorum")))
        .verb(Verb::Watch);
    harness.faults.add(fault.resource("example.com", "widgets"));
    harness.faults.cut_open(|info| info.resource == "widgets");
    harness.until(|it| it.report.stale).await;

    // kube retries the watch at long intervals by now, so that none hides a missing error.
    sleep(Duration::from_secs(300)).await;
    stale.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(3)).await;

    assert!(reconciled.load(Ordering::SeqCst) > 0);
    let report = &harness.status().report;
    assert!(report.stale && !report.failing, "{report:?}");
    assert_eq!(report.last_error.as_deref(), Some("watch failed: no quorum"));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_watch_is_reported_until_it_is_allowed() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    harness.forbid(&["widgets.example.com"]);
    harness.add(logging(&harness, &log)).await;

    let forbidden = harness.until(|it| !it.report.forbidden.is_empty()).await;
    assert_eq!(forbidden.state, ControllerState::Starting);
    let said = &forbidden.report.forbidden[0];
    assert!(said.starts_with("list failed: widgets.example.com is forbidden"), "{said}");
    harness.forbid(&[]);

    harness.state(ControllerState::Running).await;
    let begin = tokio::time::Instant::now();
    let running = harness.until(|it| it.report.forbidden.is_empty()).await;
    assert!(begin.elapsed() <= Duration::from_secs(120), "{:?}", begin.elapsed());
    assert_eq!(
        (running.state, running.report.last_error.as_deref()),
        (ControllerState::Running, None)
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconciles_may_finish_within_the_grace_and_are_awaited() {
    let harness = Harness::new();
    harness.install().await;
    let ended = Arc::new(AtomicUsize::new(0));
    let dropped = Arc::new(AtomicUsize::new(0));
    let (ends, drops) = (Arc::clone(&ended), Arc::clone(&dropped));
    let adopted = adopt(&harness.cluster, [widgets()], move |client, epoch: Epoch| {
        let (ends, drops) = (Arc::clone(&ends), Arc::clone(&drops));
        let reconcile = move |object: Arc<Widget>, _: Arc<()>| {
            let (ends, drops, epoch) = (Arc::clone(&ends), Arc::clone(&drops), epoch.clone());
            async move {
                let _dropped = Counted(drops);
                epoch.stopping().await;
                sleep(Duration::from_secs(object.spec.size.into())).await;
                ends.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Refused>(Action::requeue(Duration::from_secs(1)))
            }
        };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::await_change();
        (controller(&client), reconcile, policy, Arc::new(()))
    });
    harness.add(adopted).await;
    harness.apply("quick", json!({ "size": 2 }));
    harness.apply("slow", json!({ "size": 3600 }));
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    let begin = tokio::time::Instant::now();

    harness.manager.remove(NAME).await;

    assert_eq!(ended.load(Ordering::SeqCst), 1, "the quick one");
    assert_eq!(dropped.load(Ordering::SeqCst), 2, "no reconcile outlives done");
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    harness.shutdown().await;
}

/// Value that counts its drop.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_mapper_ends_the_epoch_and_is_restarted() {
    let harness = Harness::new();
    harness.install().await;
    let epochs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&epochs);
    let adopted = adopt(&harness.cluster, [widgets()], move |client: Client, _| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::all(client.clone());
        let controller = controller(&client).watches(maps, watcher::Config::default(), move |_| {
            assert!(!first, "mapper");
            None
        });
        let reconcile =
            |_: Arc<Widget>, _: Arc<()>| async { Ok::<_, Refused>(Action::await_change()) };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::await_change();
        (controller, reconcile, policy, Arc::new(()))
    });
    harness.add(adopted).await;
    harness.state(ControllerState::Running).await;

    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "a", "namespace": "default" } });
    harness.server.apply(map).unwrap();

    let DoneReason::Panicked(said) = harness.done(1).await else { panic!("no panic") };
    assert!(said.contains("mapper"), "{said}");
    harness.until(|it| it.state == ControllerState::Running && it.epoch == 2).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failing_watch_is_stale_until_it_has_not_failed_for_two_minutes() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    harness.add(logging(&harness, &log)).await;
    harness.state(ControllerState::Running).await;
    let fault = Rule::new(Fault::Instead(Reply::status(500, "InternalError", "no quorum")))
        .verb(Verb::Watch);
    let fault = harness.faults.add(fault.resource("example.com", "widgets"));
    harness.faults.cut_open(|info| info.resource == "widgets");

    let stale = harness.until(|it| it.report.stale).await;
    assert_eq!((stale.state, stale.epoch), (ControllerState::Running, 1));
    harness.until(|it| it.report.last_error.as_deref() == Some("watch failed: no quorum")).await;
    harness.faults.remove(fault);

    let mended = harness.until(|it| !it.report.stale).await;
    assert_eq!((mended.epoch, mended.report.last_error.as_deref()), (1, None));
    harness.apply("later", json!({ "size": 1 }));
    sleep(Duration::from_secs(70)).await;
    assert!(take(&log).contains(&"1 later 1".to_owned()));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lost_lease_drops_the_controller_at_once() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    let (adopted, epoch) = (logging(&harness, &log), Epoch::new("alone", 1, Duration::MAX));
    let mut run = adopted.start(epoch.clone());
    assert!(timeout(Duration::from_secs(5), &mut run).await.is_err());
    assert_eq!(harness.watches().len(), 1);

    epoch.stop(StopReason::LeaseLost);

    assert!(matches!(run.now_or_never(), Some(Ok(()))));
    run_until_idle().await;
    assert!(harness.watches().is_empty());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn adopted_controller_runs_outside_a_manager_for_tests() {
    let (harness, log) = (Harness::new(), Log::default());
    harness.install().await;
    harness.apply("a", json!({ "size": 4 }));
    let (adopted, epoch) = (logging(&harness, &log), Epoch::new("alone", 7, Duration::ZERO));
    let mut run = adopted.start(epoch.clone());

    assert!((&mut run).now_or_never().is_none());
    drop(timeout(Duration::from_millis(500), &mut run).await);

    assert_eq!(take(&log), ["7 a 4"]);
    assert!(epoch.subscribe().borrow().running);
    harness.shutdown().await;
}

/// Returns a harness with a running controller that does nothing, and the number of refusals that its
/// condition has received.
async fn idle_with_refusals() -> (Harness, Arc<AtomicUsize>) {
    let (harness, refusals) = (Harness::new(), Arc::new(AtomicUsize::new(0)));
    harness.install().await;
    let adopted = adopt(&harness.cluster, [widgets()], |client, _| {
        let reconcile =
            |_: Arc<Widget>, _: Arc<()>| async { Ok::<_, Refused>(Action::await_change()) };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::await_change();
        (controller(&client), reconcile, policy, Arc::new(()))
    });
    let adopted = Arc::new(counting_refusals(adopted, &refusals));
    harness.manager.add(NAME, adopted, RunnableOptions::default()).await.unwrap();
    harness.until(|it| it.state == ControllerState::Running).await;
    (harness, refusals)
}

#[tokio::test(start_paused = true)]
async fn refused_watch_of_an_adopted_controller_reaches_the_conditions_added_to_it() {
    let (harness, refusals) = idle_with_refusals().await;

    harness.server.set_rbac([AccessRule::deny().verbs(["list", "watch"])]);
    harness.faults.cut_open(|info| info.resource == "widgets");
    harness.until(|it| !it.report.forbidden.is_empty()).await;

    sleep(Duration::from_secs(300)).await;
    assert_eq!(refusals.load(Ordering::SeqCst), 1, "once, however often the watch is refused");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn refusal_after_many_other_errors_of_a_watch_reaches_the_conditions() {
    let (harness, refusals) = idle_with_refusals().await;
    for number in 0..8 {
        let reply = Reply::status(500, "InternalError", &format!("broken {number}"));
        harness
            .faults
            .add(Rule::new(Fault::Reply(reply)).resource("example.com", "widgets").times(1));
    }

    harness.server.set_rbac([AccessRule::deny().verbs(["list", "watch"])]);
    harness.faults.cut_open(|info| info.resource == "widgets");
    let broken = harness
        .until(|it| it.report.last_error.as_ref().is_some_and(|error| error.contains("broken 7")));
    assert!(broken.await.report.forbidden.is_empty());
    sleep(Duration::from_secs(300)).await;

    assert!(!harness.status().report.forbidden.is_empty());
    assert_eq!(refusals.load(Ordering::SeqCst), 1, "once, however often the watch is refused");
    harness.shutdown().await;
}
