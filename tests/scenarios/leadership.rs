//! Scenarios 21 and 47: a replica leads, stands by, or loses the lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use pilotlight::{
    controller::Controller,
    manager::{
        ConditionalRunnable, ControllerState, DoneReason, ElectionTimes, Epoch, Readiness,
        RunResult, Runnable, RunnableStatus,
    },
    testing::{Action, AuditEvent, CrdBuilder, Rule},
};

use super::Testbed;
use crate::support::{
    Act, HarnessOptions, OTHER_HOLDER, RecordingReconciler, Server, hold_lease, type_of, until,
};

scenarios! {
    21 a_controller_that_never_led_registers_nothing_later both:
        "removed while another replica leads, it starts nothing, watches nothing and reconciles \
         nothing when this replica leads";
    47 leadership_is_lost_during_a_start both:
        "the start is cancelled for LeaseLost and nothing is written after the deadline; the \
         replica stands by with warm caches, and its next start lists nothing";
}

/// Finalizer of an object that its controller frees.
const HELD: &str = "pilotlight.test/held";

/// Controller that starts when its replica leads, and counts its starts.
struct StartsAsLeader {
    controller: Controller,
    starts: Arc<AtomicUsize>,
}

impl Runnable for StartsAsLeader {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        self.controller.start(epoch)
    }

    fn reports_running(&self) -> bool {
        self.controller.reports_running()
    }
}

impl ConditionalRunnable for StartsAsLeader {
    fn ready(&self) -> Readiness {
        self.controller.ready()
    }
}

/// Testbed of a replica that takes part in an election, in which another replica leads.
async fn standby(server: Server<'static>, name: &str) -> Testbed {
    let election = Some(ElectionTimes {
        lease_duration: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(5),
        retry_period: Duration::from_millis(300),
    });
    Testbed::with(server, name, HarnessOptions { election, ..HarnessOptions::default() }).await
}

fn is_write(event: &AuditEvent) -> bool {
    !["get", "list", "watch"].contains(&event.verb.as_str())
}

async fn a_controller_that_never_led_registers_nothing_later(server: Server<'static>) {
    let testbed = standby(server, "leave-standby").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    testbed.create(&crd, "a", 1).await;
    let cold = RecordingReconciler::new(type_of(&crd, "v1"));
    let controller = Controller::builder("cold").for_type(type_of(&crd, "v1")).conditional();
    let controller = controller.build(&testbed.cluster, cold.clone()).unwrap();
    let starts = Arc::new(AtomicUsize::new(0));
    testbed.add("cold", Arc::new(StartsAsLeader { controller, starts: Arc::clone(&starts) })).await;
    let warm = testbed.controller("warm", &crd).await;
    for (name, state) in [("cold", ControllerState::Waiting), ("warm", ControllerState::Starting)] {
        let waits = testbed.until(name, "stands by", |it| it.reason == "Standby").await;
        assert_eq!(waits.state, state);
    }

    for name in ["cold", "warm"] {
        testbed.manager.remove(name).await;
    }
    until("the watch is closed", async || match testbed.open_watches(&crd).await {
        0 => Ok(()),
        open => Err(format!("{open} are open")),
    })
    .await;
    let position = testbed.position();
    hold_lease(&testbed.scope, "").await;
    testbed.leading().await;
    let other = CrdBuilder::new(&testbed.scope.group, "Gear");
    testbed.install(&other).await;
    testbed.create(&other, "b", 1).await;
    testbed.controller("other", &other).await.saw("b", 1).await;

    assert_eq!(starts.load(Ordering::SeqCst), 0);
    assert!(cold.all().is_empty() && warm.all().is_empty(), "{:?} {:?}", cold.all(), warm.all());
    let requests = testbed.requests(&crd, position).await;
    assert!(requests.is_empty(), "{requests:#?}");
    testbed.finish().await;
}

async fn leadership_is_lost_during_a_start(server: Server<'static>) {
    let testbed = standby(server, "process-lease").await;
    let crd = testbed.widgets();
    testbed.install(&crd).await;
    testbed.create_held(&crd, "a", HELD).await;
    testbed.delete(&crd, "a").await;
    hold_lease(&testbed.scope, "").await;
    testbed.leading().await;
    let held = Rule::new(Action::Hang).resource(&testbed.scope.group, "widgets");
    let held = testbed.faults.add(held);
    let recorder = testbed.controller("starts", &crd).await;
    recorder.act("a", Act::Release);
    testbed.faults.wait_until(|faults| faults.hits(held) > 0).await;
    assert_eq!(testbed.status("starts").state, ControllerState::Starting);

    // No renewal is answered until the deadline.
    let cut = testbed.faults.add(Rule::new(Action::Hang).resource("coordination.k8s.io", "leases"));
    assert_eq!(testbed.done("starts", 1).await, DoneReason::LeaseLost);
    let position = testbed.position();
    hold_lease(&testbed.scope, OTHER_HOLDER).await;
    testbed.faults.remove(cut);
    testbed.faults.remove(held);
    let is_warm = |it: &RunnableStatus| it.reason == "Standby" && it.epoch == 2;
    testbed.until("starts", "stands by", is_warm).await;

    assert!(recorder.all().is_empty(), "no reconcile ran");
    let mut writes = testbed.requests(&crd, position).await;
    writes.retain(is_write);
    assert!(writes.is_empty(), "{writes:#?}");
    let position = testbed.position();
    hold_lease(&testbed.scope, "").await;
    recorder.saw("a", 2).await;
    recorder.until("the object is freed", |seen| seen.uid.is_none()).await;
    let mut reads = testbed.requests(&crd, position).await;
    reads.retain(|event| event.verb == "list" || event.verb == "watch");
    assert!(reads.is_empty(), "the caches were warm: {reads:#?}");
    testbed.finish().await;
}
