//! Builder of a controller.

mod error;
mod input_options;
mod inputs;
mod last_input;
mod named_input;

use std::{sync::Arc, time::Duration};

use kube::core::ApiResource;

pub use self::error::BuildError;
use self::input_options::InputOptions;
pub(super) use self::input_options::with_all_indexes;
use super::{
    Cluster, ConditionalSource, Predicate, Reconciler, Request,
    inputs::{input::Input, status::InputMode},
    queue::{Backoff, Limit, NewLimiter, RateLimiter},
};
use crate::{
    guard::{self, GuardedDrop},
    kind::TypeRef,
    manager::{Condition, ControllerName, RunnableGroup},
};

/// Builder of a controller. `conditional`, `optional`, `metadata_only`, `keys_only`, `every_owner`,
/// `predicate`, `matching`, `named`, `whole`, `labels`, `fields`, `namespace`, `namespaces`,
/// `in_cluster`, `managed_fields`, `transform`, `index`, `resync`, `on_synced`, `on_watch_error`,
/// `input_when` and `subresource` apply to the last input.
///
/// ```
/// # use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
/// use pilotlight::{controller::*, kind::TypeRef};
///
/// let builder = Controller::builder("widgets")
///     .for_type(TypeRef::kind("example.com", "v1", "Widget"))
///     .conditional() // Of the input before: the controller runs while widgets are served.
///     .owns::<Deployment>()
///     .watches::<ConfigMap>(Handler::Object)
///     .labels("app=widgets")
///     .max_concurrent_reconciles(4); // Of the controller.
/// # drop(builder); // Then `.build(&cluster, reconciler)`.
/// ```
#[derive(Debug)]
#[must_use = "call build"]
pub struct Builder {
    pub(super) name: ControllerName,
    pub(super) inputs: Vec<InputOptions>,
    pub(super) event_filters: Vec<Predicate>,
    pub(super) workers: Option<usize>,
    pub(super) most_running: usize,
    pub(super) reconcile_timeout: Option<Duration>,
    pub(super) works_on_standby: bool,
    pub(super) sync_timeout: Option<Duration>,
    pub(super) backoff: Option<Backoff>,
    pub(super) retry_limit: Option<Limit>,
    pub(super) limiter: Option<NewLimiter<Request>>,
    pub(super) recover_panic: Option<bool>,
    pub(super) group: Option<RunnableGroup>,
    pub(super) warm_up: Option<bool>,
    pub(super) conditions: Vec<GuardedDrop<Arc<dyn Condition>>>,
    // First error; returned by `build`, so that calls can be chained.
    pub(super) error: Option<BuildError>,
}

impl Builder {
    pub(super) fn new(name: ControllerName) -> Self {
        Self {
            name,
            inputs: Vec::new(),
            event_filters: Vec::new(),
            workers: None,
            most_running: 0,
            reconcile_timeout: None,
            works_on_standby: false,
            sync_timeout: None,
            backoff: None,
            retry_limit: None,
            limiter: None,
            recover_panic: None,
            group: None,
            warm_up: None,
            conditions: Vec::new(),
            error: None,
        }
    }

    /// Adds a predicate to all inputs that are types.
    pub fn event_filter(mut self, predicate: Predicate) -> Self {
        self.event_filters.push(predicate);
        self
    }

    /// Sets the maximum number of concurrent reconciles; 1 by default.
    pub fn max_concurrent_reconciles(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the maximum number of reconciles, including those without a worker slot; by default and
    /// at least [`Builder::max_concurrent_reconciles`].
    pub(crate) fn most_running(mut self, most: usize) -> Self {
        self.most_running = most;
        self
    }

    /// Lets reconciles run also while this replica does not lead. Such a reconcile must not write.
    pub(crate) fn works_on_standby(mut self) -> Self {
        self.works_on_standby = true;
        self
    }

    /// Sets the timeout of a reconcile; none by default. A later reconcile is dropped at its next
    /// await, counts as an error, and is repeated after the back-off.
    pub fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// Sets the timeout of the first sync, after which a late plain input fails the run; 2 min by
    /// default.
    ///
    /// Conditional inputs are waited for without a limit. Optional inputs are waited for until this
    /// timeout at most.
    pub fn sync_timeout(mut self, timeout: Duration) -> Self {
        self.sync_timeout = Some(timeout);
        self
    }

    /// Sets the back-off of failed requests; 5 ms doubling to 1000 s by default.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Sets a rate limiter of failed requests in place of the back-off; each epoch begins with a
    /// clone of it.
    ///
    /// Requests that the API server throttles (429, 503) still wait for [`Builder::backoff`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// use pilotlight::controller::{Backoff, Controller, FastSlow, MaxOf};
    ///
    /// let (fast, slow) = (Duration::from_millis(1), Duration::from_secs(120));
    /// let limiter = MaxOf(Backoff::default(), FastSlow { fast, slow, fast_retries: 30 });
    /// let builder = Controller::builder("widgets").rate_limiter(limiter);
    /// # drop(builder);
    /// ```
    pub fn rate_limiter(
        mut self,
        limiter: impl RateLimiter<Request> + Clone + Sync + 'static,
    ) -> Self {
        self.limiter = Some(NewLimiter::cloning(limiter));
        self
    }

    /// Sets whether a panic of the reconciler is an error of its request alone; true by default.
    /// Otherwise it ends the run with an error. The
    /// [`RunnableOptions`](crate::manager::RunnableOptions) of the controller then decide between
    /// another run after a back-off and the end of the manager.
    ///
    /// Semantics: `RecoverPanic` of controller-runtime, except that no panic ends the process.
    pub fn recover_panic(mut self, recovers: bool) -> Self {
        self.recover_panic = Some(recovers);
        self
    }

    /// Limits the rate of retries of this controller's queue, beside the back-off of each request;
    /// no limit by default.
    pub fn retry_limit(mut self, limit: Limit) -> Self {
        self.retry_limit = Some(limit);
        self
    }

    /// Sets the group, which orders the start and stop of runnables; by default the group that runs
    /// on the leader only.
    pub fn group(mut self, group: RunnableGroup) -> Self {
        self.group = Some(group);
        self
    }

    /// Sets whether sources start before this replica leads, so that caches and queue are full when
    /// it does; true by default. Otherwise a standby has no watch and no cache of this controller,
    /// and a new leader lists first. Only the group that runs on the leader waits for leadership.
    ///
    /// ```
    /// # use pilotlight::controller::Controller;
    /// let builder = Controller::builder("reports").warm_up(false); // Saves memory of standbys.
    /// # drop(builder);
    /// ```
    ///
    /// Semantics: `EnableWarmup` of controller-runtime (`pkg/controller`), where the default is
    /// false.
    pub fn warm_up(mut self, warms_up: bool) -> Self {
        self.warm_up = Some(warms_up);
        self
    }

    /// Adds a condition: the controller runs only while it is met, in addition to those
    /// of its conditional inputs.
    pub fn when(mut self, condition: impl Condition) -> Self {
        self.conditions.push(GuardedDrop::new(Arc::new(condition)));
        self
    }

    /// Returns the number of inputs.
    pub(super) fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the inputs alone, for a controller with these primary types.
    pub(super) fn inputs(
        self,
        primaries: &[TypeRef],
        event_filters: &[Predicate],
        cluster: &Cluster,
    ) -> Result<Vec<Input>, BuildError> {
        let Self { name, inputs, event_filters: own, error, .. } = self;
        if let Some(error) = error {
            return Err(error);
        }
        let filters: Vec<_> = event_filters.iter().cloned().chain(own).collect();
        let inputs = inputs.into_iter().enumerate();
        let inputs =
            inputs.map(|(number, input)| input.inputs(number, &name, primaries, &filters, cluster));
        Ok(inputs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns the primary types.
    ///
    /// # Errors
    ///
    /// [`BuildError::PrimaryTwice`].
    pub(super) fn primaries(&self) -> Result<Arc<[TypeRef]>, BuildError> {
        let mut primaries: Vec<TypeRef> = Vec::new();
        for primary in self.inputs.iter().filter_map(InputOptions::primary) {
            if primaries.contains(primary) {
                return Err(BuildError::PrimaryTwice(self.name.clone(), primary.clone()));
            }
            primaries.push(primary.clone());
        }
        Ok(primaries.into())
    }

    /// Checks that the type whose objects a reconciler takes is the only primary type, and that no
    /// input of a controller of custom keys names objects.
    ///
    /// # Errors
    ///
    /// [`BuildError::NotTheOnlyPrimary`], [`BuildError::DecodedProjection`],
    /// [`BuildError::ObjectRequests`].
    pub(super) fn check_reconciler(
        &self,
        primaries: &[TypeRef],
        reconciler: &impl Reconciler,
    ) -> Result<(), BuildError> {
        if reconciler.takes_keys() {
            self.check_keys()?;
        }
        let Some(taken) = reconciler.object_type() else { return Ok(()) };
        // A type of any version may be served at another one, which is not decoded.
        if let [primary] = primaries
            && primary.version.is_some()
            && primary.names_resource(&taken)
        {
            return self.inputs.iter().try_for_each(|input| input.check_decoded(&self.name));
        }
        let ApiResource { group, version, plural, .. } = taken;
        let type_ref = TypeRef::resource(group, version, plural);
        Err(BuildError::NotTheOnlyPrimary(self.name.clone(), type_ref))
    }

    /// Checks that the requests of no input name objects, for a reconciler of custom keys.
    ///
    /// # Errors
    ///
    /// [`BuildError::ObjectRequests`].
    pub(super) fn check_keys(&self) -> Result<(), BuildError> {
        self.inputs.iter().try_for_each(|input| input.check_keys(&self.name))
    }

    /// Returns whether an input is a primary type.
    pub(super) fn has_primary(&self) -> bool {
        self.inputs.iter().any(|input| input.primary().is_some())
    }

    /// Makes the required inputs optional.
    pub(super) fn without_required(mut self) -> Self {
        for input in &mut self.inputs {
            if input.mode == InputMode::Required {
                input.mode = InputMode::Optional;
            }
        }
        self
    }

    fn record(
        &mut self,
        error: impl FnOnce(ControllerName, &'static str) -> BuildError,
        method: &'static str,
    ) {
        let name = self.name.clone();
        self.error.get_or_insert_with(|| error(name, method));
    }
}

/// Returns whether a source may deliver changes.
fn delivers(source: &dyn ConditionalSource) -> bool {
    // A source that panics may deliver changes.
    guard::run(|| source.delivers()).unwrap_or(true)
}

/// Returns whether a source delivers generic events alone.
fn delivers_generic_only(source: &dyn ConditionalSource) -> bool {
    guard::run(|| source.delivers_generic_only()).unwrap_or(false)
}
