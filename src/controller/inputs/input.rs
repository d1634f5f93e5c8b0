//! Input of a run: follows the condition of its source, and starts the source again after its end.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    select,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    controller::{
        ConditionalSource, Request, SourceContext, SourceEnd, SourceStart,
        inputs::{
            status::{InputCoverage, InputMode, InputStatus},
            statuses::InputStatuses,
        },
        metrics::Series,
        queue::Queue,
        source::{
            kind::{KindSource, SharedKindSource},
            mapping::SourceHandlers,
        },
    },
    discovery::{TypeChange, TypeRegistry},
    duration::{self, after, doubled},
    guard::{self, GuardedDrop},
    kind::TypeRef,
    manager::{Basis, Condition, Epoch, Readiness, UnmetRequirement, Verdict, WatchState, all_of},
    redaction,
};

/// First pause before a source is started again that ended although its condition holds; doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause. A source that ran for longer than this begins with the first pause again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time for the manager to stop an epoch whose condition is lost, before the epoch ends by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for a required custom source that cannot be started, before the epoch ends.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Beginning of the reason why an input with an ended source cannot be read.
const ENDED: &str = "its source has ended";

/// Description of an input of a controller, which every epoch starts.
#[derive(Clone)]
pub(in crate::controller) struct Input {
    pub(in crate::controller) source: InputSource,
    pub(in crate::controller) mode: InputMode,
    /// Conditions besides that of the source.
    pub(in crate::controller) conditions: InputConditions,
    /// Number of the builder's input, if it has several namespaces.
    pub(in crate::controller) part_of: Option<usize>,
}

/// Conditions of a user.
pub(in crate::controller) type InputConditions = Vec<GuardedDrop<Arc<dyn Condition>>>;

#[derive(Clone)]
pub(in crate::controller) enum InputSource {
    /// Built-in source, whose type and cache the run knows.
    Kind(Arc<KindSource>),
    /// Custom source.
    Other(GuardedDrop<Arc<dyn ConditionalSource>>, Arc<SourceHandlers>),
}

/// End of an input in an epoch.
#[derive(Debug)]
pub(in crate::controller) enum InputEnd {
    /// The epoch stops.
    Stopped,
    /// A required source is done, and with it the epoch.
    Done,
    /// The source failed, with the reason; the run fails.
    Failed(String),
}

/// Follows one input through an epoch.
pub(in crate::controller) struct InputRun {
    pub(in crate::controller) input: Input,
    pub(in crate::controller) number: usize,
    pub(in crate::controller) epoch: Epoch,
    pub(in crate::controller) queue: Queue<Request>,
    pub(in crate::controller) feed: CancellationToken,
    pub(in crate::controller) release: CancellationToken,
    pub(in crate::controller) statuses: Arc<InputStatuses>,
    pub(in crate::controller) series: Arc<Series>,
}

impl Input {
    pub(in crate::controller) fn source(&self) -> Arc<dyn ConditionalSource> {
        match &self.source {
            InputSource::Kind(source) => Arc::new(SharedKindSource(Arc::clone(source))),
            InputSource::Other(source, _) => Arc::clone(source),
        }
    }

    /// Subscribes to the conditions of the input and of its source.
    pub(in crate::controller) fn ready(&self) -> Readiness {
        let own = self.source().ready();
        if self.conditions.is_empty() {
            return own;
        }
        let others = self.conditions.iter().map(|condition| condition.watch());
        all_of(std::iter::once(own).chain(others))
    }

    /// Returns the predicates and the handler of a custom source.
    fn handlers(&self) -> Option<Arc<SourceHandlers>> {
        match &self.source {
            InputSource::Kind(_) => None,
            InputSource::Other(_, handlers) => Some(Arc::clone(handlers)),
        }
    }

    /// Returns whether the source is a user's.
    fn is_custom(&self) -> bool {
        self.type_ref().is_none()
    }

    /// Name of the source in messages.
    pub(in crate::controller) fn name(&self) -> String {
        // The builder refuses a source whose name panics; a later call may panic all the same.
        let unnamed = |panic| format!("a source whose name panicked: {panic}");
        let name = guard::run(|| self.source().name()).unwrap_or_else(unnamed);
        let namespace = match &self.source {
            InputSource::Kind(kind) => kind.filter.namespace.as_ref(),
            InputSource::Other(..) => None,
        };
        match namespace.filter(|_| self.part_of.is_some()) {
            Some(namespace) => format!("{name} in the namespace {namespace}"),
            None => name,
        }
    }

    /// Returns the cluster of the objects; `None` for that of the controller.
    pub(in crate::controller) fn cluster(&self) -> Option<TypeRegistry> {
        match &self.source {
            InputSource::Kind(source) => source.foreign.as_ref().map(|it| it.types.clone()),
            InputSource::Other(..) => None,
        }
    }

    pub(in crate::controller) fn type_ref(&self) -> Option<&TypeRef> {
        match &self.source {
            InputSource::Kind(source) => Some(source.type_ref()),
            InputSource::Other(..) => None,
        }
    }

    /// Returns the part of the objects of its type that the cache of the input holds.
    pub(in crate::controller) fn coverage(&self) -> InputCoverage {
        match &self.source {
            InputSource::Kind(source) => source.coverage(),
            InputSource::Other(..) => InputCoverage::default(),
        }
    }
}

impl InputRun {
    /// Runs until the epoch stops, or until the source ends in a way that ends the run.
    pub(in crate::controller) async fn run(self) -> InputEnd {
        let (source, name) = (self.input.source(), self.input.name());
        let mut readiness = match self.subscribe(&name).await {
            Ok(readiness) => readiness,
            Err(end) => return end,
        };
        let mut first = None;
        let mut restarts = 0_u32;
        loop {
            let basis = match self.ready(&name, &mut readiness, first.as_ref()).await {
                Ok(basis) => basis,
                Err(end) => return end,
            };
            let started = Instant::now();
            let end = self.once(&source, &mut readiness, &basis).await;
            if self.input.is_custom() {
                drop(self.statuses.change(self.number, InputStatus::withdraw));
            }
            if started.elapsed() > LONGEST_PAUSE {
                restarts = 0;
            }
            debug!(input = name, ?end, "source ended");
            if self.feed.is_cancelled() {
                return match end {
                    SourceEnd::Failed(error) => failed(&name, &error),
                    SourceEnd::Stopped | SourceEnd::TypeGone => InputEnd::Stopped,
                };
            }
            let is_kept = readiness.verdict().change_since(&basis) == TypeChange::Unchanged;
            let pause = doubled(FIRST_PAUSE, restarts, LONGEST_PAUSE);
            match (end, self.input.mode) {
                (SourceEnd::Failed(error), InputMode::Optional) => {
                    warn!(input = name, %error, "optional source failed");
                    self.statuses.change(self.number, |input| input.wait(error));
                }
                (SourceEnd::Failed(error), InputMode::Required | InputMode::Plain) => {
                    return failed(&name, &error);
                }
                (SourceEnd::Stopped | SourceEnd::TypeGone, InputMode::Required)
                    if self.input.is_custom() =>
                {
                    return self.done(&name, &mut readiness, &basis).await;
                }
                (SourceEnd::Stopped, InputMode::Plain) if self.input.is_custom() && is_kept => {
                    // A plain source that has ended does not end the run.
                    self.ended(format!("{ENDED} and is not started again in this epoch"));
                    self.feed.cancelled().await;
                    return InputEnd::Stopped;
                }
                (SourceEnd::Stopped | SourceEnd::TypeGone, _)
                    if self.input.is_custom() && is_kept =>
                {
                    self.ended(format!(
                        "{ENDED}; it is started again in {}",
                        duration::human(pause)
                    ));
                }
                (SourceEnd::Stopped | SourceEnd::TypeGone, _) => {}
            }
            first.get_or_insert(basis);
            // The verdict that a custom source published once may stand for ever.
            if self.input.is_custom() {
                readiness = match self.subscribe(&name).await {
                    Ok(readiness) => readiness,
                    Err(end) => return end,
                };
            }
            if is_kept || matches!(readiness.verdict(), Verdict::Met(_)) && self.input.is_custom() {
                select! {
                    () = self.feed.cancelled() => return InputEnd::Stopped,
                    () = sleep(pause) => restarts = restarts.saturating_add(1),
                }
            }
        }
    }

    /// Subscribes to the condition of the input. An optional input whose condition panics waits, and
    /// asks again after a pause.
    ///
    /// # Errors
    ///
    /// The end of the input, if the epoch stops, or if the condition of an input that is not optional
    /// panics.
    async fn subscribe(&self, name: &str) -> Result<Readiness, InputEnd> {
        let mut panics = 0_u32;
        loop {
            let error = match guard::run(|| self.input.ready()) {
                Ok(readiness) => return Ok(readiness),
                Err(panic) => format!("its condition panicked: {panic}"),
            };
            if self.input.mode != InputMode::Optional {
                return Err(failed(name, &error));
            }
            warn!(input = name, error, "optional input waits");
            self.statuses.change(self.number, |input| input.wait(error));
            select! {
                () = self.feed.cancelled() => return Err(InputEnd::Stopped),
                () = sleep(doubled(FIRST_PAUSE, panics, LONGEST_PAUSE)) => {
                    panics = panics.saturating_add(1);
                }
            }
        }
    }

    /// Records that a source has ended by itself. The input has started all the same: a source may do
    /// its work and end at once.
    fn ended(&self, why: String) {
        self.statuses.change(self.number, |input| input.ended(why));
    }

    /// Ends a required source that is done. If its condition is lost, the manager is about to stop
    /// the epoch; otherwise the epoch ends here, and the manager reads the condition again.
    ///
    /// The wait is bounded, because the manager may rest on another part of an `any_of`, and then
    /// does not stop the epoch.
    async fn done(&self, name: &str, readiness: &mut Readiness, basis: &[Basis]) -> InputEnd {
        let mut stop_timeout = pin!(sleep(STOP_TIMEOUT));
        loop {
            if !readiness.verdict().change_since(basis).is_loss() {
                info!(input = name, "required source is done, the epoch ends");
                return InputEnd::Done;
            }
            select! {
                biased;
                () = self.feed.cancelled() => return InputEnd::Stopped,
                () = &mut stop_timeout => {
                    info!(input = name, "required source has lost its condition, the epoch ends");
                    return InputEnd::Done;
                }
                () = readiness.changed() => {}
            }
        }
    }

    /// Waits until the source can be started.
    ///
    /// # Errors
    ///
    /// The end of the input, if the epoch stops first, or if the condition of a required custom
    /// source is not met for [`START_TIMEOUT`]: it was met when the manager asked for it.
    async fn ready(
        &self,
        name: &str,
        readiness: &mut Readiness,
        first: Option<&Vec<Basis>>,
    ) -> Result<Vec<Basis>, InputEnd> {
        let starts_within = self.input.is_custom() && self.input.mode == InputMode::Required;
        let ends_at = starts_within.then(|| Instant::now() + START_TIMEOUT);
        loop {
            let verdict = readiness.verdict();
            // A type that is gone was detached with its source.
            let is_lost = self.input.is_custom() && matches!(verdict, Verdict::Unmet(_));
            let why = match verdict {
                // A type other than the one that the epoch began with belongs to the next epoch.
                Verdict::Met(basis)
                    if self.input.mode == InputMode::Required
                        && first.is_some_and(|first| *first != basis) =>
                {
                    "its type is not the one that the epoch began with".to_owned()
                }
                Verdict::Met(basis) => return Ok(basis),
                Verdict::Unmet(_) | Verdict::Unknown(_) => {
                    if verdict.is_absent() {
                        if let InputSource::Kind(source) = &self.input.source {
                            source.delete_held(self.context(&self.feed, &self.release));
                        }
                        drop(self.statuses.change(self.number, InputStatus::detach));
                    }
                    messages(verdict.reasons())
                }
            };
            let lost = self.statuses.change(self.number, |input| {
                let lost = is_lost.then(|| input.detach());
                input.wait(why);
                lost
            });
            drop(lost);
            select! {
                biased;
                () = self.feed.cancelled() => return Err(InputEnd::Stopped),
                () = readiness.changed() => {}
                () = sleep_until(ends_at.unwrap_or_else(Instant::now)), if ends_at.is_some() => {
                    info!(input = name, "required source cannot be started, the epoch ends");
                    return Err(InputEnd::Done);
                }
            }
        }
    }

    fn context(&self, stop: &CancellationToken, release: &CancellationToken) -> SourceContext {
        SourceContext {
            epoch: self.epoch.clone(),
            queue: self.queue.clone(),
            feed: self.feed.clone(),
            stop: stop.clone(),
            release: release.clone(),
            statuses: Arc::clone(&self.statuses),
            input: self.number,
            series: Arc::clone(&self.series),
            handlers: self.input.handlers(),
        }
    }

    /// Reports a change of the condition; returns whether the source must stop while the epoch
    /// continues.
    fn must_stop(&self, verdict: &Verdict, basis: &[Basis]) -> bool {
        match (verdict.change_since(basis), self.input.mode) {
            (TypeChange::Unchanged, _) => {
                self.statuses.change(self.number, InputStatus::resume);
                false
            }
            // Without proof of absence the source continues.
            (TypeChange::Unknown, _) => false,
            (_, InputMode::Required) => {
                debug!("condition lost, the epoch is about to stop");
                false
            }
            (TypeChange::Unavailable, InputMode::Plain) => {
                let why = messages(verdict.reasons());
                self.statuses.change(self.number, |input| input.interrupt(why));
                false
            }
            (
                TypeChange::OtherVersion
                | TypeChange::Replaced
                | TypeChange::Unavailable
                | TypeChange::Absent,
                InputMode::Plain | InputMode::Optional,
            ) => true,
        }
    }

    /// Starts the source once, and drives it to its end.
    async fn once(
        &self,
        source: &Arc<dyn ConditionalSource>,
        readiness: &mut Readiness,
        basis: &[Basis],
    ) -> SourceEnd {
        let (stop, release) = (self.feed.child_token(), self.release.child_token());
        let context = self.context(&stop, &release);
        let is_custom = self.input.is_custom();
        if is_custom {
            self.statuses.change(self.number, |input| input.set(WatchState::Syncing, None));
        }
        let SourceStart { synced, done } = match guard::run(|| source.start_notify_done(context)) {
            Ok(started) => started,
            Err(panic) => return panicked(&panic),
        };
        // The error's `Display` is the source's code too, so that it runs inside the guard.
        let synced =
            async move { synced.await.map_err(|error| redaction::message(error.as_ref())) };
        let (mut synced, mut done) = (pin!(guard::future(synced)), pin!(guard::future(done)));
        let (mut syncing, mut failed) = (true, None);
        // Set once the source is stopped while the epoch continues.
        let mut deadline: Option<Instant> = None;
        let grace = || Some(after(Instant::now(), self.epoch.grace()));
        loop {
            select! {
                biased;
                result = &mut synced, if syncing => {
                    syncing = false;
                    failed = match result {
                        Ok(Ok(())) => None,
                        // A built-in source that is stopped before it has synced has not failed.
                        Ok(Err(_)) if stop.is_cancelled() && !is_custom => continue,
                        Ok(Err(error)) => Some(SourceEnd::Failed(error)),
                        Err(panic) => Some(panicked(&panic)),
                    };
                    if failed.is_some() {
                        deadline = deadline.or_else(grace);
                        stop.cancel();
                        release.cancel();
                    } else if is_custom {
                        self.statuses.change(self.number, |input| input.set(WatchState::Synced, None));
                    }
                }
                end = &mut done => {
                    // A failed sync takes precedence over the end that follows it.
                    return failed.unwrap_or_else(|| end.unwrap_or_else(|panic| panicked(&panic)));
                }
                () = readiness.changed() => {
                    if self.must_stop(&readiness.verdict(), basis) {
                        if is_custom {
                            // Reconciles of the deletions that follow find the type missing.
                            drop(self.statuses.change(self.number, InputStatus::withdraw));
                        }
                        deadline = deadline.or_else(grace);
                        stop.cancel();
                        release.cancel();
                    }
                }
                // Returning drops the source, which stops it.
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    warn!(input = self.input.name(), "source did not end and is dropped");
                    return failed.unwrap_or(SourceEnd::Stopped);
                }
            }
        }
    }
}

fn messages(unmet: &[UnmetRequirement]) -> String {
    let messages: Vec<_> = unmet.iter().map(|unmet| unmet.message.as_str()).collect();
    messages.join("; ")
}

fn failed(name: &str, error: &str) -> InputEnd {
    InputEnd::Failed(format!("{name}: {error}"))
}

fn panicked(panic: &str) -> SourceEnd {
    SourceEnd::Failed(format!("it panicked: {panic}"))
}
