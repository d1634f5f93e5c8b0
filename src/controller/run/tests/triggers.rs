//! Delivery of requests from a channel across epochs.

use std::collections::BTreeSet;

use super::*;

/// Ends of an epoch, caused by its owner or by a source.
#[derive(Clone, Copy, Debug)]
enum End {
    Stop(StopReason),
    SourceFails,
    /// Drop of the run, as after a panic or an abort.
    RunIsDropped,
}

const ENDS: [End; 6] = [
    End::Stop(StopReason::TypeGone),
    End::Stop(StopReason::Superseded),
    End::Stop(StopReason::Cancelled),
    End::Stop(StopReason::LeaseLost),
    End::SourceFails,
    End::RunIsDropped,
];

/// Controller whose only input is a channel, with the log of its reconciles.
struct ChannelHarness {
    harness: Harness,
    log: Log,
    fake: Fake,
}

/// Outcome of a request's reconcile in the first epoch, by the request's name.
async fn in_first_epoch(request: Request, context: Context) -> Result<Outcome, ReconcileError> {
    match (&*request.name, context.epoch().number()) {
        ("terminal", 1) => Err(ReconcileError::Terminal("never".into())),
        ("later", 1) => Ok(Outcome::RequeueAfter(Duration::from_secs(60))),
        ("failed", 1) => failed(),
        ("slow", 1) => {
            context.cancelled().await;
            ok()
        }
        ("stuck", 1) => pending().await,
        _ => ok(),
    }
}

impl ChannelHarness {
    fn by(channel: ChannelSource) -> Self {
        let (log, fake) = (Log::default(), Fake::new("fake", &[]));
        let (notes, start) = (log.clone(), Instant::now());
        let made = make()
            .workers(2)
            .input(InputMode::Plain, channel)
            .input(InputMode::Plain, fake.clone());
        let harness = made.run(move |request, context| {
            notes.note(&request, &context, start);
            in_first_epoch(request, context)
        });
        Self { harness, log, fake }
    }

    async fn end(&mut self, end: End) {
        match end {
            End::Stop(reason) => self.harness.stop(reason).await.unwrap(),
            End::SourceFails => {
                self.fake.shared.fails.send_replace(Some("the wire is cut"));
                self.harness.done().await.unwrap_err();
                self.fake.shared.fails.send_replace(None);
            }
            End::RunIsDropped => self.harness.runs.shutdown().await,
        }
    }

    /// Returns the requests that the next epoch reconciles.
    async fn next_epoch(&mut self) -> Vec<String> {
        let before = self.log.names().len();
        self.harness.start();
        self.harness.running().await;
        sleep(Duration::from_secs(120)).await;
        let mut names = self.log.names().split_off(before);
        names.sort();
        names
    }
}

#[tokio::test(start_paused = true)]
async fn delivered_request_without_a_finished_reconcile_survives_every_end_of_an_epoch() {
    for end in ENDS {
        let (sender, channel) = ChannelSource::new(8);
        let mut fed = ChannelHarness::by(channel);
        fed.harness.running().await;
        for name in ["done", "terminal", "later", "failed", "stuck", "slow", "ready"] {
            sender.send(key(name)).await.unwrap();
        }
        run_until_idle().await;
        assert_eq!(fed.log.names().len(), 6, "both workers are busy");
        // The request arrives while its reconcile runs.
        sender.send(key("stuck")).await.unwrap();
        drop(sender);
        run_until_idle().await;

        fed.end(end).await;

        let mut unfinished = vec!["ns/failed", "ns/later", "ns/ready", "ns/stuck"];
        if matches!(end, End::RunIsDropped | End::Stop(StopReason::LeaseLost)) {
            unfinished.insert(3, "ns/slow");
        }
        assert_eq!(fed.next_epoch().await, unfinished, "{end:?}");
        fed.end(end).await;
        assert_eq!(fed.next_epoch().await, [""; 0], "{end:?}: delivered");
        fed.end(end).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_delivered_during_its_last_reconcile_goes_to_the_next_epoch() {
    let (sender, channel) = ChannelSource::new(8);
    let mut fed = ChannelHarness::by(channel);
    fed.harness.running().await;
    sender.send(key("slow")).await.unwrap();
    run_until_idle().await;
    sender.send(key("slow")).await.unwrap();
    run_until_idle().await;

    fed.end(End::Stop(StopReason::TypeGone)).await;

    assert_eq!(fed.log.names(), ["ns/slow"]);
    assert_eq!(fed.next_epoch().await, ["ns/slow"]);
    fed.end(End::Stop(StopReason::Cancelled)).await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_keeps_what_it_delivered_for_another_controller_of_its_name() {
    let (sender, channel) = ChannelSource::new(8);
    let mut fed = ChannelHarness::by(channel.clone());
    fed.harness.running().await;
    sender.send(key("stuck")).await.unwrap();
    run_until_idle().await;
    fed.end(End::Stop(StopReason::Cancelled)).await;
    drop(fed);

    let mut another = ChannelHarness::by(channel);
    another.harness.running().await;
    run_until_idle().await;

    assert_eq!(another.log.names(), ["ns/stuck"]);
    another.end(End::Stop(StopReason::Cancelled)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_controller_takes_nothing_and_its_senders_wait() {
    let (sender, channel) = ChannelSource::new(2);
    let mut fed = ChannelHarness::by(channel);
    fed.harness.running().await;
    fed.end(End::Stop(StopReason::TypeGone)).await;

    for name in ["a", "b"] {
        sender.try_send(key(name)).unwrap();
    }
    run_until_idle().await;

    assert!(sender.try_send(key("c")).is_err());
    assert_eq!(fed.next_epoch().await, ["ns/a", "ns/b"]);
    fed.end(End::Stop(StopReason::Cancelled)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_where_epochs_end_while_they_arrive() {
    const REQUESTS: usize = 2000;
    let (sender, channel) = ChannelSource::new(1);
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let reconciled = Arc::clone(&seen);
    let mut harness = make().input(InputMode::Plain, channel).run(move |request, _| {
        reconciled.lock().unwrap().insert(request.name.to_string());
        async { ok() }
    });
    let mut senders = JoinSet::new();
    senders.spawn(async move {
        for number in 0..REQUESTS {
            sender.send(key(&number.to_string())).await.unwrap();
        }
    });

    while senders.try_join_next().is_none() {
        harness.running().await;
        harness.stop(StopReason::TypeGone).await.unwrap();
        harness.start();
    }

    let all = async {
        while seen.lock().unwrap().len() < REQUESTS {
            tokio::task::yield_now().await;
        }
    };
    let in_time = timeout(Duration::from_secs(30), all).await;
    assert!(in_time.is_ok(), "{} of {REQUESTS}", seen.lock().unwrap().len());
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn senders_of_a_channel_wait_for_a_controller_that_is_busy() {
    let (sender, channel) = ChannelSource::new(2);
    let mut fed = ChannelHarness::by(channel);
    fed.harness.running().await;
    for name in ["stuck", "slow"] {
        sender.send(key(name)).await.unwrap();
    }
    run_until_idle().await;
    let mut taken = 0;
    for number in 0..10_000 {
        run_until_idle().await;
        if sender.try_send(key(&number.to_string())).is_err() {
            break;
        }
        taken += 1;
    }
    assert!(taken < 100, "{taken} requests wait in memory");
    fed.end(End::Stop(StopReason::Cancelled)).await;
}
