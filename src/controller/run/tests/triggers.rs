//! Requests of a channel across epochs.

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

impl ChannelHarness {
    fn by(channel: ChannelSource) -> Self {
        let (log, fake) = (Log::default(), Fake::new("fake", &[]));
        let (notes, start) = (log.clone(), Instant::now());
        let made = make().input(InputMode::Plain, channel).input(InputMode::Plain, fake.clone());
        let harness = made.run(move |request, context| {
            notes.note(&request, &context, start);
            let is_stuck = &*request.name == "stuck" && context.epoch().number() == 1;
            async move { if is_stuck { pending().await } else { ok() } }
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
        run_until_idle().await;
        self.log.names().split_off(before)
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_controller_takes_nothing_and_its_senders_wait() {
    for end in ENDS {
        let (sender, channel) = ChannelSource::new(2);
        let mut fed = ChannelHarness::by(channel);
        fed.harness.running().await;
        fed.end(end).await;

        for name in ["a", "b"] {
            sender.try_send(key(name)).unwrap();
        }
        run_until_idle().await;

        assert!(sender.try_send(key("c")).is_err(), "{end:?}");
        assert_eq!(fed.next_epoch().await, ["ns/a", "ns/b"], "{end:?}");
        fed.end(End::Stop(StopReason::Cancelled)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_received_by_an_ended_epoch_is_not_added_again() {
    for end in ENDS {
        let (sender, channel) = ChannelSource::new(8);
        let mut fed = ChannelHarness::by(channel);
        fed.harness.running().await;
        for name in ["stuck", "queued"] {
            sender.send(key(name)).await.unwrap();
        }
        run_until_idle().await;

        fed.end(end).await;

        assert_eq!(fed.next_epoch().await, [""; 0], "{end:?}");
        fed.end(End::Stop(StopReason::Cancelled)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn senders_of_a_channel_do_not_wait_for_a_busy_controller() {
    let (sender, channel) = ChannelSource::new(1);
    let mut fed = ChannelHarness::by(channel);
    fed.harness.running().await;
    sender.send(key("stuck")).await.unwrap();

    for number in 0..100 {
        run_until_idle().await;
        sender.try_send(key(&number.to_string())).unwrap();
    }

    assert_eq!(fed.log.names(), ["ns/stuck"]);
    fed.end(End::Stop(StopReason::Cancelled)).await;
}
