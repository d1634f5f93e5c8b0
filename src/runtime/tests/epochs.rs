//! Epochs of adopted controllers: their begin on a leader, and ends that no stop causes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::manager::{Election, ElectionOptions, RuntimeClock};

async fn succeed(_: Arc<Widget>, _: Arc<()>) -> Result<Action, Refused> {
    Ok(Action::await_change())
}

fn never(_: Arc<Widget>, _: &Refused, _: Arc<()>) -> Action {
    Action::await_change()
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_factory_ends_the_epoch_and_the_next_one_calls_it_again() {
    let (harness, calls) = (Harness::new(), Arc::new(AtomicUsize::new(0)));
    harness.install().await;
    let counted = Arc::clone(&calls);
    let adopted = adopt(&harness.cluster, [widgets()], move |client, _| {
        assert_ne!(counted.fetch_add(1, Ordering::SeqCst), 0, "no configuration");
        (controller(&client), succeed, never, Arc::new(()))
    });

    harness.add(adopted).await;

    let DoneReason::Panicked(said) = harness.done(1).await else { panic!("no panic") };
    assert!(said.contains("no configuration"), "{said}");
    harness.until(|it| it.state == ControllerState::Running && it.epoch == 2).await;
    assert_eq!((calls.load(Ordering::SeqCst), harness.watches().len()), (2, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_with_a_shutdown_of_its_own_completes_and_is_started_again() {
    let (harness, stops) = (Harness::new(), Arc::new(Mutex::new(Vec::new())));
    harness.install().await;
    let kept = Arc::clone(&stops);
    let adopted = adopt(&harness.cluster, [widgets()], move |client, _| {
        let stop = CancellationToken::new();
        kept.lock().unwrap().push(stop.clone());
        let controller = controller(&client).graceful_shutdown_on(stop.cancelled_owned());
        (controller, succeed, never, Arc::new(()))
    });
    harness.add(adopted).await;

    for epoch in 1..=2 {
        harness.until(|it| it.state == ControllerState::Running && it.epoch == epoch).await;
        assert_eq!(harness.watches().len(), 1);

        stops.lock().unwrap().last().unwrap().cancel();

        assert_eq!(harness.done(epoch).await, DoneReason::Completed);
        assert!(harness.watches().is_empty(), "{:?}", harness.watches());
    }
    harness.until(|it| it.state == ControllerState::Running && it.epoch == 3).await;
    harness.shutdown().await;
}

/// Returns the harness of a replica that takes part in an election.
fn replica(server: &SimulatedServer, name: &str) -> Harness {
    let (own, user) = (server.clone(), name.to_owned());
    let options = ElectionOptions {
        own_thread: false,
        identity: name.into(),
        ..ElectionOptions::new("default", "lease")
    };
    let election = Election::new(options, move || Ok(own.client_as(&user))).unwrap();
    // Paused, as the rest of the test.
    let election = election.by(Arc::new(RuntimeClock::new()));
    Harness::of(server.clone(), Manager::new(ManagerOptions::default()).elect(election))
}

#[tokio::test(start_paused = true)]
async fn adopted_controller_starts_when_its_replica_leads() {
    let options = SimulatedOptions { delays: Delays::none(), ..Default::default() };
    let server = SimulatedServer::with(options);
    let log = [Log::default(), Log::default()];
    let logging = |harness: &Harness, log: &Log| {
        let log = Arc::clone(log);
        adopt(&harness.cluster, [widgets()], move |client, _| {
            let log = Arc::clone(&log);
            let reconcile = move |object: Arc<Widget>, _: Arc<()>| {
                log.lock().unwrap().push(object.name_any());
                async { Ok::<_, Refused>(Action::await_change()) }
            };
            (controller(&client), reconcile, never, Arc::new(()))
        })
    };
    let leader = replica(&server, "a");
    leader.install().await;
    leader.apply("a", json!({ "size": 1 }));
    leader.add(logging(&leader, &log[0])).await;
    leader.state(ControllerState::Running).await;
    let standby = replica(&server, "b");
    standby.add(logging(&standby, &log[1])).await;

    sleep(Duration::from_secs(600)).await;

    let status = standby.status();
    assert_eq!((status.reason.as_str(), status.epoch), ("Standby", 0));
    assert_eq!(standby.requests(), 0, "a standby has no watch");
    leader.shutdown().await;
    standby.state(ControllerState::Running).await;
    run_until_idle().await;
    assert_eq!((take(&log[0]), take(&log[1])), (vec!["a".to_owned()], vec!["a".to_owned()]));
    standby.shutdown().await;
}
