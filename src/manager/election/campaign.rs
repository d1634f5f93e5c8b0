//! Campaign: acquires the lease, renews it, and acquires it again after a loss, until it is
//! signalled to free it.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use tokio::{
    select,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    ElectionStatus,
    candidate::{Candidate, LeaseWrite, Loss, Step, WriteResult},
    clock::Clock,
    lease::{LeaseClient, LeaseEvent, LeaseWriteError},
    metrics::LeaseSeries,
    term::{DroppedWrites, Term},
    times::ElectionTimes,
};
use crate::manager::BoxError;

/// Longest time for the requests that free the lease.
const RELEASE: Duration = Duration::from_secs(2);
/// Longest sleep: a suspended machine stops the timer, not the clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

pub(super) type LeaseEvents = BoxStream<'static, Result<LeaseEvent, BoxError>>;

pub(super) struct Campaign {
    pub(super) lease: LeaseClient,
    pub(super) identity: Arc<str>,
    pub(super) times: ElectionTimes,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) term: watch::Sender<Option<Arc<Term>>>,
    pub(super) status: watch::Sender<ElectionStatus>,
    pub(super) series: LeaseSeries,
}

/// Campaign under way.
struct RunningCampaign {
    setup: Campaign,
    candidate: Candidate,
    terms: u64,
    /// Dropped writes of all terms: a write cut in one term may be carried out in the next.
    dropped: Arc<DroppedWrites>,
    events: Option<LeaseEvents>,
    /// Time before which no watch is tried, after one has failed.
    watch_after: Duration,
    /// Time until which the watch counts, without another event: a holder renews its lease.
    watched_until: Duration,
}

impl Campaign {
    /// Longest time from the request to free the lease until the end of the campaign. A request
    /// about the lease may be under way, while the server abandons the writes that were cut.
    pub(super) fn longest_end(times: &ElectionTimes) -> Duration {
        times.request_timeout().max(times.write_timeout()).saturating_add(RELEASE)
    }

    /// Runs until `release` is cancelled, then frees the lease. The caller has ended the work of
    /// the term before that.
    pub(super) async fn run(self, release: CancellationToken) {
        let candidate = Candidate::new(Arc::clone(&self.identity), self.times);
        let events = None;
        let (watch_after, watched_until) = (Duration::ZERO, Duration::ZERO);
        let (terms, dropped) = (0, Arc::default());
        let mut running = RunningCampaign {
            setup: self,
            candidate,
            terms,
            dropped,
            events,
            watch_after,
            watched_until,
        };
        while !release.is_cancelled() {
            running.step(&release).await;
        }
        running.release().await;
    }
}

impl RunningCampaign {
    async fn step(&mut self, release: &CancellationToken) {
        let now = self.setup.clock.now();
        let is_watched = self.events.is_some() && now < self.watched_until;
        match self.candidate.decide(now, is_watched) {
            Step::Read => {
                select! {
                    biased;
                    () = release.cancelled() => {}
                    () = self.read() => {}
                }
            }
            Step::Write(write) => self.write(*write).await,
            Step::Lost(loss) => self.lose(&loss),
            Step::Wait(until) => {
                self.open_watch(now);
                let wait = until.saturating_sub(now).min(LONGEST_SLEEP);
                select! {
                    biased;
                    () = release.cancelled() => {}
                    event = next_event(&mut self.events) => self.changed(event),
                    () = sleep(wait) => {}
                }
            }
        }
        self.publish();
    }

    /// Watches the lease from the version that was seen, unless it is watched.
    fn open_watch(&mut self, now: Duration) {
        if self.events.is_some() || now < self.watch_after {
            return;
        }
        if let Some(version) = self.candidate.version() {
            self.events = Some(self.setup.lease.watch(version).boxed());
            self.watched_until = now.saturating_add(self.setup.times.longest_silence());
            // At most one watch per retry period, even if it ends at once.
            self.watch_after = now.saturating_add(self.setup.times.retry_period);
        }
    }

    fn changed(&mut self, event: Option<Result<LeaseEvent, BoxError>>) {
        let now = self.setup.clock.now();
        self.watched_until = now.saturating_add(self.setup.times.longest_silence());
        match event {
            Some(Ok(LeaseEvent::Changed(lease))) => self.candidate.changed(lease, false, now),
            Some(Ok(LeaseEvent::Deleted(lease))) => self.candidate.changed(lease, true, now),
            Some(Ok(LeaseEvent::Bookmark)) => {}
            Some(Err(error)) => {
                debug!(%error, "watch of the lease failed");
                self.events = None;
                self.watch_after = now.saturating_add(self.setup.times.lease_duration);
            }
            None => self.events = None,
        }
    }

    /// Returns the longest time for a request now: the rest of the term, if there is one.
    fn request_timeout(&self) -> Duration {
        let usual = self.setup.times.request_timeout();
        match self.candidate.leads_until() {
            Some(until) => usual.min(until.saturating_sub(self.setup.clock.now())),
            None => usual,
        }
    }

    async fn read(&mut self) {
        let read = timeout(self.request_timeout(), self.setup.lease.read()).await;
        let now = self.setup.clock.now();
        match read {
            Ok(Ok(lease)) => {
                self.candidate.read(lease, now, fastrand::f64());
                self.note(None);
            }
            Ok(Err(error)) => {
                self.candidate.read_failed(now, fastrand::f64());
                self.failed("reading", &error);
            }
            Err(late) => {
                self.candidate.read_failed(now, fastrand::f64());
                self.failed("reading", &late.into());
            }
        }
    }

    async fn write(&mut self, write: LeaseWrite) {
        let sent = self.setup.clock.now();
        let written = timeout(self.request_timeout(), self.setup.lease.write(&write)).await;
        let now = self.setup.clock.now();
        let result = match written {
            Ok(Ok(lease)) => {
                self.setup.series.renewals.observe(now.saturating_sub(sent).as_secs_f64());
                self.note(None);
                WriteResult::Stored(lease)
            }
            Ok(Err(LeaseWriteError::Conflict)) => {
                // The watch did not report the change.
                self.events = None;
                self.note(None);
                WriteResult::Conflict
            }
            Ok(Err(LeaseWriteError::Failed(error))) => {
                self.failed("writing", &error);
                WriteResult::Failed
            }
            Err(late) => {
                self.failed("writing", &late.into());
                WriteResult::Failed
            }
        };
        self.candidate.written(&write, result, sent, now, fastrand::f64());
    }

    fn failed(&self, action: &str, error: &BoxError) {
        self.setup.series.failures.inc();
        let message = format!("{action} the lease: {}", crate::redaction::message(error.as_ref()));
        self.note(Some(message));
    }

    /// Records the error of the last request, and logs one that differs from the one before.
    fn note(&self, error: Option<String>) {
        self.setup.status.send_if_modified(|status| {
            if status.error == error {
                return false;
            }
            if let Some(error) = &error {
                warn!(lease = %status.lease, error, "request about the lease failed");
            }
            status.error = error;
            true
        });
    }

    /// Begins or renews the term, and publishes the change.
    fn publish(&mut self) {
        let leads_until = self.candidate.leads_until();
        let current = self.setup.term.borrow().clone();
        match (leads_until, current) {
            (Some(until), Some(term)) => term.renew(until),
            (Some(until), None) => {
                self.terms += 1;
                let clock = Arc::clone(&self.setup.clock);
                let write_timeout = self.setup.times.write_timeout();
                let dropped = Arc::clone(&self.dropped);
                let term = Term::new(self.terms, clock, until, write_timeout, dropped);
                let term = Arc::new(term);
                // The status is there when the work of the term begins.
                self.describe(true);
                self.setup.series.leads.set(1);
                self.setup.series.transitions.inc();
                info!(lease = %self.setup.status.borrow().lease, "this replica leads");
                self.setup.term.send_replace(Some(term));
            }
            // The loss follows as the next step.
            (None, Some(_) | None) => {}
        }
        self.describe(leads_until.is_some());
    }

    fn describe(&self, leads: bool) {
        let record = self.candidate.record();
        let holder = record.map(|record| record.holder.clone()).filter(|holder| !holder.is_empty());
        let transitions = record.map_or(0, |record| record.transitions);
        self.setup.status.send_if_modified(|status| {
            let before = (status.leads, status.transitions, status.holder.clone());
            (status.leads, status.transitions, status.holder) = (leads, transitions, holder);
            before != (status.leads, status.transitions, status.holder.clone())
        });
    }

    /// Ends the term, and with it each elected epoch.
    fn lose(&mut self, loss: &Loss) {
        self.end_term();
        let lease = self.setup.status.borrow().lease.clone();
        match loss {
            Loss::Deadline => warn!(%lease, "the lease was lost: it was not renewed in time"),
            Loss::Taken(holder) => warn!(%lease, holder, "the lease was lost: its holder changed"),
        }
    }

    fn end_term(&self) {
        if let Some(term) = self.setup.term.borrow().clone() {
            term.end();
            self.setup.series.leads.set(0);
            self.setup.series.transitions.inc();
        }
        self.setup.term.send_replace(None);
    }

    /// Frees the lease, if it is held, once the server has abandoned writes that were cut. Retries
    /// once after a conflict, since others may write labels.
    async fn release(&mut self) {
        self.end_term();
        self.events = None;
        let (now, write_timeout) = (self.setup.clock.now(), self.setup.times.write_timeout());
        let unsettled = self.dropped.unsettled(now, write_timeout);
        if !unsettled.is_zero() && self.candidate.leads_until().is_some() {
            info!(?unsettled, "release of the lease delayed: the outcome of a write is unknown");
            sleep(unsettled).await;
        }
        let freed = async {
            for _ in 0..2 {
                let Some(write) = self.candidate.release() else { return };
                match self.setup.lease.write(&write).await {
                    Ok(_) => {
                        info!(lease = %self.setup.status.borrow().lease, "the lease was released");
                        return;
                    }
                    Err(LeaseWriteError::Failed(error)) => return self.failed("releasing", &error),
                    Err(LeaseWriteError::Conflict) => {
                        let Ok(lease) = self.setup.lease.read().await else { return };
                        self.candidate.read(lease, self.setup.clock.now(), 0.0);
                    }
                }
            }
        };
        if timeout(RELEASE, freed).await.is_err() {
            warn!("releasing the lease took too long; it expires by itself");
        }
        self.candidate.released();
        self.describe(false);
    }
}

/// Waits for the next event; for ever without a watch. Cancel safe.
async fn next_event(events: &mut Option<LeaseEvents>) -> Option<Result<LeaseEvent, BoxError>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().boxed().await,
    }
}

#[cfg(test)]
mod tests;
