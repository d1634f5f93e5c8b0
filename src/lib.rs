//! Conditional controller manager for Kubernetes.
//!
//! Each controller waits until the API types that it needs are served, runs while they are, stops
//! when they are removed, and starts again when they return. Controllers are written in Rust with
//! this crate, or declared as objects whose logic is a webhook. One process runs many of them.
//!
//! # Tour
//!
//! Controller of widgets, whose CRD need not be installed when it starts:
//!
//! ```no_run
//! use std::error::Error;
//!
//! use pilotlight::{controller::*, kind::TypeRef, manager::*};
//!
//! struct Greeter;
//!
//! impl Reconciler for Greeter {
//!     async fn reconcile(&self, widget: Request, _: Context) -> Result<Outcome, ReconcileError> {
//!         println!("hello {widget}");
//!         Ok(Outcome::Done)
//!     }
//! }
//!
//! async fn run(client: kube::Client, stop: CancellationToken) -> Result<(), Box<dyn Error>> {
//!     // The type registry and the informers that all controllers of one API server share.
//!     let (cluster, runnable) = Cluster::new(client, ClusterOptions::default());
//!     let widgets = Controller::builder("widgets")
//!         .for_type(TypeRef::kind("example.com", "v1", "Widget"))
//!         .conditional() // Runs only while widgets are served.
//!         .build(&cluster, Greeter)?;
//!
//!     let mut manager = Manager::new(ManagerOptions::default());
//!     runnable.add_to(&mut manager, "cluster")?;
//!     widgets.add_to(&mut manager)?;
//!     manager.run(stop).await?; // Drains when the token is cancelled.
//!     Ok(())
//! }
//! ```
//!
//! Next: [`controller`] (inputs, handlers, caches), [`manager`] (status, election, other runnables)
//! and [`runtime`] (controllers of kube-rs). `docs/library.md` is the guide, with whole programs.
//!
//! # Modules
//!
//! | module | owns | feature |
//! |---|---|---|
//! | [`kind`] | names of types, and the identity of a served type | |
//! | [`duration`] | durations in Go's notation | |
//! | [`redaction`] | errors that leave the process, without secrets | |
//! | [`summary`] | state of any object, by its status | |
//! | [`apply`] | sets of objects with proven membership, for any client | |
//! | [`discovery`] | the types that the cluster serves | |
//! | [`manager`] | conditions, epochs and fences of runnables | |
//! | [`informer`] | shared, stoppable caches | |
//! | [`controller`] | sources, work queue and workers as one runnable | |
//! | [`meta`] | controllers declared as objects, and their hooks | `meta` |
//! | [`runtime`] | controllers and parts of kube-rs as conditional runnables | `runtime` |
//! | [`transport`] | connection to the API server over HTTP/2 | `tls` |
//! | [`server`] | HTTP server for probes and metrics | `server` |
//! | [`signals`] | shutdown by SIGTERM and SIGINT | `signals` |
//! | [`testing`] | control planes, faults and oracles for tests | `testing` |
//!
//! # For contributors
//!
//! [`discovery`], [`manager`], [`informer`], [`controller`] and [`meta`] are the rooms of the engine,
//! in the order of the flow. A room starts at the file of its name, and imports only rooms before
//! it; [`controller`] and [`meta`] also import [`apply`], which needs a client alone, and [`meta`]
//! imports [`transport`]. [`transport`] and [`testing`] are crates of their own, in `crates/`.
//! Every room may import the small modules: [`kind`], [`duration`], [`redaction`], [`summary`],
//! `src/guard.rs` (panics
//! of user code), `src/token_bucket.rs` (rates), `src/list_page.rs` (pages of lists),
//! `src/resume_version.rs` (positions of watches) and `src/owner_gauge.rs` (gauges of tasks and
//! timers per owner). `tests/architecture.rs` checks the imports. The binary (`src/main.rs`,
//! `src/cli.rs`) uses the public items alone. `DESIGN.md` has
//! the vocabulary: epoch, fence, grace, term, interest, metadata entry, sync record.
//!
//! # Walk of one event
//!
//! From the bytes of a watch to a reconcile, and back to the API server. An **input** of a
//! controller is a source, with the condition that its type is served. Declared controllers have
//! the two kinds of Metacontroller, **composite** and **decorator**.
//!
//! 1. The connection pool carries the watch (`crates/transport/src/pool.rs`).
//! 2. The reader cuts its bytes into lines of a bounded length (`src/informer/reader.rs`).
//! 3. The reflector reads each line (`src/informer/reflector/watch.rs::line`), parses the header of
//!    the object (`src/informer/decode.rs`) and compares resourceVersions
//!    (`src/resume_version.rs`).
//! 4. It decodes the object (`src/informer/reflector.rs::decode`): whole if a subscriber keeps such
//!    objects, otherwise as a metadata entry (`src/informer/retention.rs::keeps`). The shared
//!    informer stores it (`src/informer/shared_informer.rs::put`), or removes it
//!    (`src/informer/shared_informer.rs::remove`), and routes the change to the subscribers that it
//!    concerns (`src/informer/shared_informer.rs::deliver`, by the index of
//!    `src/informer/interest/index.rs::visit`). The mailbox of a subscriber merges the unseen
//!    changes of one object (`src/informer/subscriber.rs::deliver`, `src/informer/pending.rs`).
//! 5. The source of a controller receives the change with the names under which the controller
//!    declared its interests, such as parents (`src/informer/change.rs::into_delta`). It delivers
//!    the change (`src/controller/source/kind/run.rs::deliver`): it applies predicates
//!    (`src/controller/source/mapping.rs::map_change`), and maps the change to requests
//!    (`src/controller/handler.rs`). A declared controller builds its sources in
//!    `src/meta/runnable.rs::add_parents` and `src/meta/runnable.rs::add_children`. A change of a
//!    child has the names of the parents that declared an interest in it at their last sync; the
//!    handler drops a child that no parent can claim (`src/meta/runnable.rs::is_claimable`).
//! 6. The work queue deduplicates, orders, delays and rate-limits the requests
//!    (`src/controller/queue/core.rs`).
//! 7. The run of the epoch takes a request (`src/controller/run.rs::begin`), compares the caches
//!    with the earlier writes of the request (`src/controller/unconfirmed.rs`), and starts its
//!    reconcile (`src/controller/run.rs::spawn`) once they hold them.
//! 8. The [`Reconciler`](controller::Reconciler) of the user runs. A declared controller runs the
//!    reconciler of its current definition (`src/meta/runnable/current.rs::reconcile`), which is
//!    the same for both kinds:
//!    1. it reads the parent (`src/meta/sync.rs::reconcile`), and adds or removes its finalizer
//!       first, if that is due (`src/meta/definition/finalizer.rs::first_step`). The other steps
//!       are one sync (`src/meta/sync/parent_sync.rs::sync`);
//!    2. it claims the revisions of a rolling update (`src/meta/sync/revisions.rs::claim`), and
//!       reads the objects that the customize hook relates to the parent
//!       (`src/meta/sync/customize.rs::latest`);
//!    3. it declares its interest in children, and claims those that are its own
//!       (`src/meta/sync/observation.rs::observe`, by `src/meta/children/claim.rs`). A composite
//!       adopts and releases children by writes (`src/meta/sync/adopt.rs`);
//!    4. it assembles the hook request from cached bytes
//!       (`src/meta/protocol/request.rs::sync_request`);
//!    5. it calls the hook (`src/meta/sync/hook_call.rs::call`, then `src/meta/hooks.rs::call`,
//!       over HTTP `src/meta/hooks/webhook.rs::exchange`), and ends here if request and response
//!       equal those of the last sync, and that sync found nothing to do
//!       (`src/meta/parent/sync_record.rs::unchanged_since`);
//!    6. it checks each part of the response (`src/meta/children/check.rs`). An unusable child is
//!       reported, and the others are written. During a rolling update it also calls the hook for
//!       each older revision that has not ended, and plans the revision of each child
//!       (`src/meta/sync/rollout.rs::roll`, `src/meta/rollout/plan.rs::plan`);
//!    7. the writes follow. A composite writes its children, then the status
//!       (`src/meta/sync/composite.rs::compose`, `src/meta/sync/parent_writes.rs::write_status`). A
//!       decorator writes the decorated object with its status, then its attachments
//!       (`src/meta/sync/decorator.rs::decorate`). The finalizer is removed once a response says
//!       `finalized`: of a parent in deletion before its children are written, otherwise after them
//!       (`src/meta/sync/parent_writes.rs::remove_finalizer`);
//!    8. the writes of children follow those of revisions
//!       (`src/meta/sync/children_writes.rs::write`), in their order
//!       (`src/meta/children.rs::plan`): deletions and recreations first, then creates and updates,
//!       each by type. A recreate deletes; the next sync creates. Up to eight of one type overlap,
//!       and one after a failure until a write succeeds (`src/meta/apply/order.rs::admits`);
//!    9. each child is compared when its turn comes (`src/meta/apply.rs::run`), unless it was
//!       equal before (`src/meta/children.rs::was_equal`): by a three-way merge
//!       (`src/meta/children.rs::step`, `src/meta/children/merge.rs`) or for server-side apply
//!       (`src/meta/children/server_side.rs`). A difference is written within the write limit of
//!       the child (`src/meta/apply.rs::update`); the requests are in `src/meta/resource.rs`. The
//!       first write releases the worker slot of the reconcile.
//! 9. Each API request of a reconcile passes the fence of the epoch (`src/manager/fence.rs::pass`,
//!    a read `src/manager/fence.rs::pass_read`). Requests of informers do not. The fence owns the
//!    request until its response is read (`src/manager/fence/exchange.rs`). Once closed
//!    (`src/manager/fence.rs::close`), it refuses every request and drops those that it owns. A
//!    hook call passes the fence too, and is abandoned when the epoch is signalled to stop
//!    (`src/meta/hooks.rs::call`).
//! 10. The result decides whether the request is retried, and when
//!     (`src/controller/run/outcome.rs`, `src/controller/run/settlement.rs::requeue_or_forget`).
//!
//! # Walk of a write whose response is lost
//!
//! 1. A write that has passed the fence ends without a response (`src/manager/fence.rs::drop`). The
//!    outcome of the write counts as unknown (`src/controller/unconfirmed.rs::add`).
//! 2. The next reconcile of the request that sent the write waits for a read of the written object
//!    from the server (`src/controller/unconfirmed.rs::confirm`). An object with a generated
//!    name is found by a list of its collection
//!    (`src/controller/unconfirmed/read.rs::missing`).
//! 3. Then the request waits until the caches hold what was read
//!    (`src/controller/unconfirmed/expectation.rs::is_held`), so that no object is created
//!    twice. It returns to the queue meanwhile
//!    (`src/controller/run/settlement.rs::requeue_or_forget`).
//!
//! # Walk of a type that becomes served
//!
//! 1. The watch of CRDs reports the CRD (`src/discovery/watch.rs`), and the task of discovery
//!    passes it to the catalog (`src/discovery/task.rs::on_crds`). The registry publishes the types
//!    that have changed (`src/discovery/shared_registry.rs`), as the catalog judges them: here,
//!    that the type is served (`src/discovery/catalog/judgement.rs::judge_version`, by the CRD's
//!    conditions `src/discovery/crd.rs::judge`).
//! 2. That wakes each condition on the type (`src/manager/readiness.rs::changed`), and gives it a
//!    new verdict (`src/manager/readiness.rs::verdict`). A waiting controller has no task of its
//!    own and sends no request.
//! 3. The state machine of the runnable decides to start (`src/manager/lifecycle.rs::decide`), and
//!    the manager creates the epoch (`src/manager/task/live_epoch.rs::start`,
//!    `src/manager/epoch.rs::counted`): number, stop signal, fence and report.
//! 4. The run builds the queue and starts the inputs (`src/controller/run.rs`). Each input follows
//!    its own condition (`src/controller/inputs/input.rs::run`), and subscribes to a shared
//!    informer (`src/controller/source/kind.rs::subscribe`, `src/informer/set.rs::subscribe_to`).
//! 5. The reflector lists the type (`src/informer/reflector/list.rs::list`). A cache is readable
//!    when its first list is complete. An optional type that cannot be listed delays no start.
//! 6. The run waits until every existing object is in the queue (`src/controller/run.rs::sync`),
//!    then for leadership if it needs that (`src/controller/run.rs::lead`), with its caches warm.
//!    The epoch reports running (`src/manager/epoch.rs::running`), and workers start.
//!
//! # Walk of a type that is removed
//!
//! 1. The watch of CRDs reports the deletion (`src/discovery/watch.rs`), and the task of discovery
//!    passes it on (`src/discovery/task.rs::on_crds`).
//! 2. The catalog forgets the CRD (`src/discovery/catalog.rs::crd_deleted`), and decides whether
//!    its type is absent (`src/discovery/catalog/judgement.rs::judge_version`). The proof is a
//!    group version that serves types of CRDs alone
//!    (`src/discovery/catalog/judgement.rs::is_proven_absent`), a response of discovery without the
//!    type (`src/discovery/catalog/judgement.rs::judge`), or, while the APIServices are unknown,
//!    the deletion itself. Without proof the type is unknown. A failed request of discovery changes
//!    no type (`src/discovery/task.rs::on_answered`).
//! 3. The registry publishes the new status to its subscribers
//!    (`src/discovery/shared_registry.rs`, `src/discovery/subscriptions.rs`).
//! 4. The condition becomes unmet (`src/manager/verdict.rs::of_type`), and the task of the manager
//!    receives the verdict (`src/manager/task/entry.rs::on_verdict`).
//! 5. The state machine of the runnable decides to stop (`src/manager/lifecycle.rs::decide`), and
//!    the manager signals the epoch (`src/manager/task/live_epoch.rs::stop`).
//! 6. The run of a controller stops in order (`src/controller/run/shutdown.rs::stop`). Sources stop
//!    adding requests, and the queue closes. Reconciles have the grace to finish their writes, but
//!    begin the write of no further child (`src/meta/apply.rs::is_halted`). Then each source
//!    releases its subscription, and waits until the informer of a removed type has ended
//!    (`src/informer/subscription.rs::release`). The fence is closed
//!    (`src/manager/epoch.rs::drain`). From now on it refuses every request
//!    (`src/manager/fence.rs::pass`).
//! 7. At the same time the propagation of type changes ends the informer of the type
//!    (`src/controller/type_changes.rs`, `src/informer/set.rs::type_gone`).
//! 8. At the end of the grace the manager closes the fence in any case
//!    (`src/manager/task/live_epoch.rs::end_grace`), which drops the requests without a response.
//!    The epoch ends when its tasks have ended and the fence owns no request
//!    (`src/manager/run.rs::drive`). The manager reports the epoch as done
//!    (`src/manager/task/live_epoch.rs::done`), and the controller waits for the type again.
//!
//! # Walk of a lost lease
//!
//! 1. The election has a thread of its own. It renews the lease, or decides that the lease is lost:
//!    by the clock or by another holder (`src/manager/election/candidate.rs::decide`).
//! 2. It ends the term (`src/manager/election/campaign.rs::lose`,
//!    `src/manager/election/term.rs::end`). On the same thread, the term ends each epoch that needs
//!    leadership without a grace (`src/manager/epoch.rs::lease_lost`): its spawned tasks are
//!    aborted, and its fence is closed.
//! 3. The closed fence drops the writes in flight (`src/manager/fence.rs::close`), whose outcome is
//!    unknown. The server may still carry one out until its time limit
//!    (`src/manager/fence/time_limit.rs::send`), which ends before another replica may lead.
//! 4. Each write also compares the clock with the deadline of the term when it passes the fence
//!    (`src/manager/fence.rs::pass`, `src/manager/election/term.rs::holds`), so that a process that
//!    resumes after the deadline sends no write. If the process is suspended after this check, the
//!    time limit bounds the write, and so does its precondition, a resourceVersion or a uid.
//! 5. The manager marks the runnables as waiting for leadership
//!    (`src/manager/task.rs::on_election`). The campaign continues.
//!
//! # Walk of an edit of a declared controller
//!
//! 1. The supervisor validates the object (`src/meta/supervisor/reconciler.rs::reconcile`,
//!    `src/meta/definition.rs::parse`). An invalid edit is reported in the status; the last valid
//!    definition of the same object stays in effect, except without a hook.
//! 2. It compares both definitions (`src/meta/definition/edit_effect.rs::edit_effect`): keep, a
//!    swap in the running epoch, or a new epoch. `src/meta/supervisor/reconciler.rs::execute`
//!    carries this out.
//! 3. A swap needs an epoch that starts or runs, and no pending edit
//!    (`src/meta/supervisor/swap.rs::effect`); otherwise a new epoch replaces the current one. A
//!    swap waits briefly for the credentials of changed hooks and for the first list of revisions
//!    (`src/meta/supervisor/swap.rs::swap`), and becomes a new epoch without them. The next sync of
//!    each parent has the new definition (`src/meta/runnable/swap.rs::swap`). Informers and caches
//!    stay; the input of revisions exists while a type is rolling
//!    (`src/meta/rollout/input.rs::follow`).
//! 4. For a new epoch the manager keeps the new specification pending
//!    (`src/manager/task/entry/replacement.rs::replace`). The old epoch runs until the new types
//!    are served and their caches prepared (`src/manager/task/entry/replacement.rs::on_prepared`),
//!    and is done before the new one starts
//!    (`src/manager/task/entry/replacement.rs::install_if_due`).
//!
//! # Index
//!
//! Mechanisms that the walks do not name.
//!
//! ## Types and epochs
//!
//! | mechanism | place |
//! |---|---|
//! | type whose CRD is being deleted keeps its controllers | state `Terminating` in `src/discovery/crd.rs::judge`, which counts as met in `src/manager/verdict.rs::of_type` |
//! | change of a type since a holder read its identity | `src/discovery/type_change.rs::change_since` |
//! | epochs of one name never overlap | `src/manager/lifecycle.rs::decide` starts none before `src/manager/lifecycle.rs::ended` |
//! | leader is elected | `src/manager/election/campaign.rs::run` |
//!
//! ## Informers
//!
//! | mechanism | place |
//! |---|---|
//! | watch is resumed or listed again | `src/informer/reflector.rs::run`; after a failure `src/informer/reflector.rs::recover`, by `src/informer/classify.rs::classify` |
//! | watch is shared by equal keys: labels in the request make another key, `Builder::matching` does not | `src/controller/source/kind.rs::key`, by the equality of `InformerKey` in `src/informer.rs` |
//! | watch is found or started, and closed after its last subscriber and the linger time | `src/informer/shared_set.rs::find_or_start`, `src/informer/shared_set.rs::unused`; at once if its type is gone `src/informer/shared_set.rs::release` |
//! | interests of a controller are declared | `src/controller/source/kind.rs::interests`, for the parents of declared controllers `src/meta/sync/observation.rs::interests`, which decides what is delivered, not what is kept whole |
//! | object is kept whole, or reduced to its metadata | on arrival `src/informer/decode.rs::decode`, by `src/informer/retention.rs::keeps`; later `src/informer/shared_informer.rs::reduce` |
//! | object is transformed before it is kept | `src/informer/decode.rs::transformed`, by `src/informer/transform.rs::apply` |
//! | subscriber that joins receives what exists | `src/informer/subscriber.rs::scan` |
//!
//! ## Queue and reconciles
//!
//! | mechanism | place |
//! |---|---|
//! | request has one reconcile at a time | `src/controller/queue/core.rs::pop`, `src/controller/queue/core.rs::done` |
//! | queue orders requests, without starvation | `src/controller/queue/core.rs::pop`, `src/controller/queue/core.rs::promote_aged`, by the priority of a change from `src/controller/source/mapping.rs::priority` |
//! | Retry-After of the API server delays a reconcile | read by `src/manager/fence/refusal.rs::with_retry_after`, classified by `src/controller/run/outcome.rs::of`, delayed by `src/controller/run/settlement.rs::delay` and the gate in `src/controller/queue/retry_gate.rs::failed`; for informers `src/informer/request_delays.rs::delay` |
//! | parent is resynced | `src/meta/parent/resync.rs::tick`, by the due time in `src/controller/queue/core.rs::resync` |
//! | concurrent reconciles are bounded | `src/controller/slots.rs::assign` |
//! | input is added or removed while its controller runs | `src/controller/inputs.rs`, `src/controller/run/named_inputs.rs::update_inputs` |
//! | reconciler reads a cache | `src/controller/context.rs::lister`, `src/controller/context.rs::store`; an object that is kept as metadata `src/controller/context/fetch.rs::fetch` |
//! | reconciler applies an object, sets its owner or a condition | `src/controller/write/apply.rs::apply_at`, `src/controller/write/owner_reference.rs::set_controller_reference`, `src/controller/write/condition.rs::set_condition` |
//!
//! ## Hooks
//!
//! | mechanism | place |
//! |---|---|
//! | metrics of hooks, removed with their controller | `src/meta/hooks/metrics.rs::series` |
//! | hook response is validated | `src/meta/sync/hook_call.rs::call`, by `src/meta/protocol/response.rs::sync_response_within` and `src/meta/children/check.rs` |
//! | failed hook call is classified | `src/meta/parent/sync_error.rs::of_hook` |
//! | failed sync becomes a status and an Event | `src/meta/sync/report.rs::failed`; condition `HooksHealthy` in `src/meta/supervisor/status.rs` |
//! | retries of a failing hook are paced | `src/meta/sync/report.rs::failed`: while the hook is down by `src/meta/parent/health.rs::wait` and the gate in `src/controller/queue/retry_gate.rs::failed`, else by the back-off of the queue |
//! | credentials of a hook are read and rotated | `src/meta/hooks/credentials.rs::follow`, `src/meta/hooks/endpoint.rs::resolve` |
//! | hook is reached through a proxy | `src/meta/hooks/webhook/connector.rs`, by the variables that `crates/transport/src/proxies.rs` reads |
//! | size of a hook response, and memory of all responses, are bounded | `src/meta/hooks/budget.rs`, `src/meta/hooks/webhook/body.rs::read_body` |
//! | related objects are read; their changes name the parents | `src/meta/related.rs::read`, `src/meta/related.rs::set_interests`; of a namespace `src/meta/related.rs::matches_differently` |
//!
//! ## Parents and children
//!
//! | mechanism | place |
//! |---|---|
//! | finalizers are removed after their controller | `src/meta/supervisor/freed_parents.rs::free_parents` |
//! | orphan is adopted | `src/meta/sync/adopt.rs::claim`, by `src/meta/children/claim.rs::claim` and `src/meta/children/adoption.rs::admits` |
//! | child of an earlier parent of the same name is deleted | `src/meta/apply/left_behind.rs::delete_left_behind` |
//! | child is created, updated, recreated or left | `src/meta/children.rs::step`, compared by `src/meta/children/last_applied.rs::same`; executed by `src/meta/apply.rs::update` |
//! | child is written by server-side apply | `src/meta/apply/server_side.rs::apply`; after a change of the strategy `src/meta/apply/transfer_fields.rs::transfer_fields` |
//! | revisions of a rolling update are written | `src/meta/sync/revision_writes.rs::write`, from the input `src/meta/rollout/input.rs::cache` |
//! | object counts as a revision of a parent | `src/meta/sync/revisions.rs::count` |
//! | wait of a rollout is decided and reported | `src/meta/rollout/plan.rs::wait_for`; condition `Updated` of the parent `src/meta/rollout/updated_condition.rs::within` |
//! | loop of writes is bounded | `src/meta/parent/write_limit.rs::may_write` |
//! | decorated object is written | `src/meta/sync/decorated_object.rs`, by the plan of `src/meta/sync/decoration.rs` |
//! | objects are updated where patches are forbidden | `src/meta/resource/patches.rs::merge` |
//! | status of a parent is written | `src/meta/sync/parent_writes.rs::write_status`, unless `src/meta/parent/sync_state.rs` delays it |
//!
//! ## Sets of objects
//!
//! | mechanism | place |
//! |---|---|
//! | set is checked, and its objects carry their membership | `src/apply/checked_set.rs::of` |
//! | set is applied: lists, writes, deletions | `src/apply/set_run.rs::run` |
//! | live object is proven to be a member | `src/apply/membership.rs::of` |
//! | object is created, updated, adopted, replaced or left | `src/apply/decision.rs::of`; executed by `src/apply/object_write.rs::write` |
//! | member that left its set is deleted | `src/apply/object_write.rs::depart` |
//! | members of lost owners are purged | `src/apply/purge.rs::purge` |
//! | kinds of a set are kept on its owner | `src/apply/kinds_record.rs::add` |
//! | plan is recorded by dry runs | `src/apply/writer.rs::apply` |
//! | unchanged object needs no request | `src/apply/written_versions.rs::put` |
//!
//! ## Declared controllers
//!
//! | mechanism | place |
//! |---|---|
//! | status of a declared controller is written | `src/meta/supervisor/own_status.rs::write_status`, its conditions `src/meta/supervisor/status.rs` |
//! | Event is deduplicated and limited | `src/meta/recorder.rs::count_and_limit` |
//! | refusals beyond those of Metacontroller | `src/meta/definition/strictness.rs` |
//!
//! ## Process
//!
//! | mechanism | place |
//! |---|---|
//! | freed memory is returned to the system | `src/cli/memory.rs` |
//! | metrics of a manager and its clusters are registered | `src/manager/metric_parts.rs::register`; two clusters in one page `src/manager/metrics_text.rs::merged` |
//! | error is redacted | `crates/redaction/src/lib.rs::error`, that of a request to the API server `crates/redaction/src/lib.rs::request_error` |
//! | controller of kube-rs runs as an epoch | `src/runtime/adopt.rs::adopt` |
//! | changes of a shared informer become watcher events of kube-rs | `src/runtime/events.rs::events` |
//!
//! # Where to add
//!
//! | addition | places |
//! |---|---|
//! | flag of `run` | a field of `ManagerArgs` in `src/cli/instance.rs`, or of `src/cli/metacontroller.rs` if Metacontroller has the flag; `src/cli/instance.rs::meta_options` or `src/cli/instance.rs::cluster` copies it into an option of the library, `src/cli/run.rs::upstream` a flag of Metacontroller |
//! | option of declared controllers | a field of `MetaOptions` in `src/meta/options.rs`, read where it acts; `src/meta/supervisor/hook_builder.rs::hook` passes those of a hook on |
//! | field of a declared controller | `composite_controller.rs` or `decorator_controller.rs` in `src/meta/api/`, `composite.rs` or `decorator.rs` in `src/meta/definition/`, `src/meta/definition/edit_effect.rs` (the compiler requires its effect), a row in `docs/metacontroller.md`; `UPDATE_CRDS=1 cargo test crds` writes the CRDs anew |
//! | metric of a work queue or a controller | a family in `src/controller/metrics.rs`, its series in `src/controller/metrics/series.rs` |
//! | other metric | `src/manager/metrics.rs`, `src/informer/metrics.rs`, `src/discovery/metrics.rs`, `crates/transport/src/metrics.rs`, `src/meta/hooks/metrics.rs`, `src/server/process.rs` |
//! | source of a controller | an implementation of [`ConditionalSource`](controller::ConditionalSource), such as `src/controller/source/channel.rs` |
//! | fault of the API server | a rule in `crates/testing/src/faults.rs`, its row in `docs/faults.md` |
//!
//! # Reading order
//!
//! The rooms in order, each from the file of its name. Then `src/discovery/catalog/judgement.rs`,
//! `src/manager/lifecycle.rs`, `src/manager/fence.rs`, `src/informer/shared_informer.rs`,
//! `src/controller/queue.rs`, `src/controller/run.rs`, `src/meta/sync.rs` and
//! `src/meta/children.rs`.
//!
//! `DESIGN.md` has the invariants with their tests, and `docs/decisions` the reasons.

#![forbid(unsafe_code)]
// Without declared controllers, what they need of rooms 1 to 4 is unused. Each `pub(crate) use` in
// the file of a room is a part of that seam. With all features the compiler finds unused code.
#![cfg_attr(not(feature = "meta"), allow(dead_code, unused_imports))]

#[cfg(panic = "abort")]
compile_error!(
    "Pilotlight keeps a panic to the controller, the reconcile or the task that it happens in, by \
     unwinding: remove `panic = \"abort\"` from the profile and from RUSTFLAGS"
);

// Reading order; blank lines keep rustfmt from sorting.
pub mod kind;

pub mod duration;
pub mod redaction;
pub mod summary;

mod guard;
mod list_page;
mod owner_gauge;
mod resume_version;
mod token_bucket;

pub mod apply;

pub mod discovery;

pub mod manager;

pub mod informer;

pub mod controller;

#[cfg(feature = "meta")]
pub mod meta;

#[cfg(feature = "runtime")]
pub mod runtime;

#[cfg(feature = "tls")]
pub use pilotlight_transport as transport;

#[cfg(feature = "server")]
pub mod server;

#[cfg(feature = "signals")]
pub mod signals;

#[cfg(any(test, feature = "testing"))]
pub use pilotlight_testing as testing;

#[doc(hidden)]
#[cfg(all(feature = "meta", any(test, feature = "fuzzing")))]
pub mod fuzzing;

/// Compiles the programs of the guide.
#[cfg(all(doctest, feature = "server", feature = "signals", feature = "testing"))]
#[doc = include_str!("../docs/library.md")]
struct Guide;

/// Compiles the examples of the guide to tests.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../docs/testing.md")]
struct TestingGuide;
