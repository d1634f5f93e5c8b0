//! Controllers of a replica that stands by in an election.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{
    controller::InputState,
    manager::{Election, ElectionOptions, Readiness, RuntimeClock, always},
    testing::{Action, Rule, Verb},
};

impl Harness {
    /// Returns the harness of a replica that takes part in an election, while another one leads.
    pub(super) fn standing_by() -> Self {
        let server = Server::new();
        server.lease_to("another");
        let options =
            ElectionOptions { own_thread: false, ..ElectionOptions::new("default", "lease") };
        let client = server.client();
        let election = Election::new(options, move || Ok(client)).unwrap();
        // Paused, as the rest of the test.
        let election = election.by(Arc::new(RuntimeClock::new()));
        Self::of(Manager::new(ManagerOptions::default()).elect(election), server)
    }

    pub(super) async fn standby(&self) -> Arc<RunnableStatus> {
        self.until(|status| status.reason == "Standby").await
    }
}

#[tokio::test(start_paused = true)]
async fn controller_without_a_warm_up_lists_once_its_replica_leads() {
    let harness = Harness::standing_by();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    harness.add(builder().for_type(widgets()).conditional().warm_up(false)).await;

    assert_eq!(harness.standby().await.epoch, 0);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(harness.server.requests_of(WIDGETS), 0);
    assert!(harness.cluster.informers.status().is_empty());

    harness.server.lease_to("");
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    assert_eq!((harness.server.lists("widgets"), harness.server.watches(WIDGETS)), (1, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_that_is_added_to_a_standby_is_watched_at_once_and_reconciled_once_it_leads() {
    let harness = Harness::standing_by();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(object("Part", "p", "p"));
    let controller = Arc::new(harness.build(builder().for_type(widgets()).conditional()));
    let inputs = controller.inputs();
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    assert_eq!(harness.standby().await.epoch, 1, "it has warmed up");

    let added = inputs.add("late", |input| input.watches_type(parts(), Handler::Object)).unwrap();
    added.started().await.unwrap();

    assert_eq!(added.state(), InputState::Started);
    assert_eq!((harness.server.watches(WIDGETS), harness.server.watches(PARTS)), (1, 1));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(harness.log().await, [""; 0], "it does not lead");
    assert_eq!(harness.status().reason, "Standby");

    harness.server.lease_to("");
    harness.state(ControllerState::Running).await;
    let mut log = harness.log().await;
    log.sort();
    assert_eq!(log, ["ns/a a", "ns/p gone"]);
    assert_eq!((harness.server.lists("parts"), harness.status().epoch), (1, 1));
    harness.shutdown().await;
}

/// Source that counts its starts, and requests one reconcile when it is synced.
#[derive(Clone, Default)]
struct CountingSource(Arc<AtomicUsize>);

impl ConditionalSource for CountingSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        self.0.fetch_add(1, Ordering::SeqCst);
        let feed = context.clone();
        let synced = async move {
            feed.enqueue(Request::namespaced("ns", "source"));
            Ok(())
        };
        let done = async move {
            context.stopping().await;
            SourceEnd::Stopped
        };
        SourceStart { synced: synced.boxed(), done: done.boxed() }
    }

    fn delivers(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn sources_start_once_while_a_warm_up_becomes_a_leader() {
    for leads_while_it_syncs in [true, false] {
        let harness = Harness::standing_by();
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        let slow = Rule::new(Action::Delay(Duration::from_secs(20))).verb(Verb::List);
        harness.server.fault(slow.resource("example.com", "widgets"));
        let source = CountingSource::default();
        let described = builder().for_type(widgets()).conditional();
        harness.add(described.source(source.clone()).conditional()).await;
        harness.state(ControllerState::Starting).await;
        sleep(Duration::from_secs(1)).await;

        if leads_while_it_syncs {
            harness.server.lease_to("");
        }
        sleep(Duration::from_secs(14)).await;
        let leads = harness.server.lease_holder() != "another";
        assert_eq!(leads, leads_while_it_syncs);
        assert_eq!(harness.status().state, ControllerState::Starting);
        assert_eq!(harness.log().await, [""; 0], "it syncs");
        if !leads_while_it_syncs {
            harness.standby().await;
            sleep(Duration::from_secs(60)).await;
            assert_eq!(harness.log().await, [""; 0], "it does not lead");
            harness.server.lease_to("");
        }

        harness.state(ControllerState::Running).await;
        let mut log = harness.log().await;
        log.sort();
        assert_eq!(log, ["ns/a a", "ns/source gone"]);
        let requests = (harness.server.lists("widgets"), harness.server.watches(WIDGETS));
        assert_eq!((requests, source.0.load(Ordering::SeqCst)), ((1, 1), 1));
        assert_eq!(harness.status().epoch, 1);
        harness.shutdown().await;
    }
}
