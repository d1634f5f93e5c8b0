//! Nothing is left: asserted at the moment when an epoch is done, and of the time after it.

use k8s_openapi::jiff::Timestamp;
use pilotlight::testing::CrdBuilder;

use super::{Mark, Rig, about, eventually};

/// Of every task that is ready, before what is left is counted.
const TURNS: usize = 100;

/// A time in which a type is left alone.
#[must_use = "ask for its end"]
pub(crate) struct Absence {
    crd: CrdBuilder,
    begin: Mark,
    since: Timestamp,
}

impl Rig<'_> {
    /// Asserts that nothing of a type is left: call it when done has fired.
    pub(crate) async fn assert_absent(&self, crd: &CrdBuilder, tasks: usize) -> Absence {
        // At once: what done promises.
        let since = self.server.clock();
        let begin = self.mark();
        self.faults.forget_seen();
        let is_about = about(crd);
        let mut open = self.faults.open();
        open.retain(|open| is_about(&open.info));
        assert!(open.is_empty(), "requests are under way after done: {open:?}");
        let resource = crd.api_resource("v1");
        let mut informers = self.cluster.informers.status();
        informers.retain(|it| {
            *it.key.identity.group == *resource.group && *it.key.identity.plural == *resource.plural
        });
        assert!(informers.is_empty(), "informers outlive their type: {informers:?}");

        // In one thread, what has ended is gone as soon as all had their turn: no time passes.
        if self.server.script().is_some() {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let alive = self.alive_tasks();
            assert!(alive <= tasks, "{alive} tasks at done, {tasks} before");
        }
        // What has ended is reaped by the runtime's other thread, and by the server.
        eventually("tasks return to the baseline", || match self.alive_tasks() {
            alive if alive <= tasks => Ok(()),
            alive => {
                Err(format!("{alive} tasks, {tasks} before; {} connections", self.connections()))
            }
        })
        .await;
        let mut open = self.open_watches(crd).await;
        for _ in 0..200 {
            if open == 0 {
                break;
            }
            open = self.open_watches(crd).await;
        }
        assert_eq!(open, 0, "the server has watches open after done");
        Absence { crd: crd.clone(), begin, since }
    }
}

impl Absence {
    /// Asserts that until now no request about the type was sent since the absence began.
    pub(crate) async fn end(self, rig: &Rig<'_>) {
        let sent: Vec<_> = rig.faults.seen().into_iter().filter(about(&self.crd)).collect();
        assert!(sent.is_empty(), "requests after done: {sent:#?}");
        let mut received = rig.requests(&self.crd, self.begin).await;
        received.retain(|event| event.received.0 > self.since);
        assert!(received.is_empty(), "the server got requests after done: {received:#?}");
    }
}
