//! The set of informers: at most one for each key.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    convert::Infallible,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt;
use kube::Client;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep_until,
};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, error, info_span};

use super::{
    Ended, InformerKey, InformerMetrics, InformerOptions, Linger, ObjectError, Progress,
    Subscription, decode::Decoder, hub::Hub, reflector::Reflector, subscription::Mailbox,
    wire::Wire,
};
use crate::kind::{ServedType, TypeIdentity};

/// One informer of a set, for status and metrics.
#[derive(Clone, Debug)]
pub struct InformerStatus {
    /// Which one.
    pub key: InformerKey,
    /// How its watch is doing.
    pub progress: Progress,
    /// Objects held.
    pub objects: usize,
    /// JSON bytes held.
    pub bytes: usize,
    /// Subscribers.
    pub subscribers: usize,
    /// Objects that cannot be read, the first hundred; of each the latest error. Subscribers go on
    /// seeing what there was before.
    pub quarantined: Vec<ObjectError>,
}

/// A cloneable handle on the informers of one client.
#[derive(Clone)]
pub struct InformerSet {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    client: Client,
    options: Arc<InformerOptions>,
    /// Held before a hub's lock, never across an await.
    informers: Mutex<Informers>,
    types: watch::Sender<BTreeMap<TypeIdentity, usize>>,
    tasks: TaskTracker,
    lists: Arc<Semaphore>,
    metrics: InformerMetrics,
}

#[derive(Default)]
struct Informers {
    /// Those that can be joined; one that is ending is not among them.
    live: HashMap<InformerKey, Arc<Hub>>,
    shut_down: bool,
}

impl InformerSet {
    /// An empty set; spawns nothing.
    pub fn new(client: Client, options: InformerOptions) -> Self {
        let lists = Arc::new(Semaphore::new(options.max_concurrent_lists.max(1)));
        Self {
            shared: Arc::new(Shared {
                client,
                options: Arc::new(options),
                informers: Mutex::default(),
                types: watch::Sender::default(),
                tasks: TaskTracker::new(),
                lists,
                metrics: InformerMetrics::default(),
            }),
        }
    }

    /// Joins the informer of `key`, and starts it if there is none.
    ///
    /// The subscriber first receives every object there is, then every later change. Once the set
    /// is shut down it receives [`Ended::Shutdown`].
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, when the informer has to be started.
    pub fn subscribe(&self, served: &ServedType, key: InformerKey) -> Subscription {
        loop {
            let Some(hub) = self.shared.find_or_start(served, &key) else {
                return Shared::late(&self.shared, key);
            };
            // Not under the set's lock: a large store must not hold up those who join another.
            if let Some(mailbox) = hub.join() {
                return Subscription::new(self.shared.clone(), hub, mailbox);
            }
            // It has closed in between, and is no longer to be found.
        }
    }

    /// Resolves when the informer of this key has ended, with the reason; at once when there is
    /// none, as [`Ended::Released`]. The proposal's informer stop signal.
    ///
    /// It concerns the informer there is when this is called, not when it is first polled.
    pub fn ended(&self, key: &InformerKey) -> impl Future<Output = Ended> + Send + use<> {
        let done = self.shared.lock().live.get(key).map(Hub::done);
        async move {
            match done {
                Some(done) => done.await,
                None => Ended::Released,
            }
        }
    }

    /// Says that a type is proven gone: its informers end, whoever still listens.
    ///
    /// On return their subscribers see the end; their requests are dropped when
    /// [`InformerSet::ended`] resolves. A store is emptied when its last subscriber has left.
    pub fn type_gone(&self, identity: &TypeIdentity) {
        let gone = |hub: &Hub| hub.key.identity == *identity;
        self.shared.close(gone, &Ended::TypeGone);
    }

    /// Says that a type has been seen to be served: its informers do not wait any longer before
    /// they ask again, except where the server told them to wait or has refused.
    pub fn type_served(&self, identity: &TypeIdentity) {
        for hub in self.shared.lock().live.values() {
            if hub.key.identity == *identity {
                // Kept for one that is waiting for an answer just now.
                hub.nudge.notify_one();
            }
        }
    }

    /// The types that have informers, each with how many, and every later change: whoever knows
    /// what the server serves follows these.
    ///
    /// Copy what you need out of a borrow before you call this set: it publishes under its lock.
    pub fn types(&self) -> watch::Receiver<BTreeMap<TypeIdentity, usize>> {
        self.shared.types.subscribe()
    }

    /// Every informer.
    pub fn status(&self) -> Vec<InformerStatus> {
        let hubs: Vec<Arc<Hub>> = self.shared.lock().live.values().cloned().collect();
        hubs.iter()
            .map(|hub| InformerStatus {
                key: hub.key.clone(),
                progress: hub.progress().borrow().clone(),
                objects: hub.store.len(),
                bytes: hub.store.bytes(),
                subscribers: hub.subscribers(),
                quarantined: hub.quarantined(),
            })
            .collect()
    }

    /// What its informers count.
    pub fn metrics(&self) -> &InformerMetrics {
        &self.shared.metrics
    }

    /// Ends every informer and waits for them. Nothing can be joined from then on.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the informers end, whatever becomes of this future.
    pub async fn shutdown(&self) {
        self.shared.lock().shut_down = true;
        self.shared.close(|_hub| true, &Ended::Shutdown);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    /// The informer of a key that can be joined; none once shut down.
    fn find_or_start(self: &Arc<Self>, served: &ServedType, key: &InformerKey) -> Option<Arc<Hub>> {
        let mut informers = self.lock();
        if informers.shut_down {
            return None;
        }
        if let Some(hub) = informers.live.get(key) {
            return Some(hub.clone());
        }
        let hub = Arc::new(Hub::new(key.clone()));
        informers.live.insert(key.clone(), hub.clone());
        self.count(&hub.key.identity);
        self.start(&hub, served);
        Some(hub)
    }

    /// Makes a subscriber leave; whether its informer is ending.
    pub(super) fn release(&self, hub: &Arc<Hub>, mailbox: &Arc<Mailbox>, linger: Linger) -> bool {
        hub.leave(mailbox);
        match linger {
            Linger::Default => {}
            Linger::None => {
                self.close_unused(hub, Ended::TypeGone);
            }
        }
        hub.closed().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Informers> {
        #[cfg(test)]
        super::schedule::before(&self.informers);
        // Nothing panics half-way through a change of the map.
        self.informers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, hub: &Arc<Hub>, served: &ServedType) {
        let identity = &hub.key.identity;
        let span = info_span!(
            "informer",
            group = %identity.group,
            version = %identity.version,
            resource = %identity.plural,
            namespace = hub.key.namespace.as_deref(),
        );
        let metrics = self.metrics.join(identity);
        let wire = Wire::new(self.client.clone(), &hub.key, self.options.request_deadline);
        let decoder = Decoder::new(served, hub.key.projection, hub.key.managed_fields);
        let reflector = Reflector::new(
            hub.clone(),
            wire,
            decoder,
            self.options.clone(),
            self.lists.clone(),
            metrics,
        );
        let ending = Ending { set: self.clone(), hub: hub.clone() };
        self.tasks.spawn(drive(ending, reflector).instrument(span));
    }

    /// A subscription that has ended before it began.
    fn late(set: &Arc<Self>, key: InformerKey) -> Subscription {
        let hub = Arc::new(Hub::new(key));
        hub.close(Ended::Shutdown);
        hub.finish(Ended::Shutdown);
        let mailbox = Arc::new(Mailbox::closed(Ended::Shutdown));
        Subscription::new(set.clone(), hub, mailbox)
    }

    fn close(&self, condition: impl Fn(&Hub) -> bool, reason: &Ended) {
        self.lock().live.retain(|_, hub| {
            let matches = condition(hub);
            if matches {
                hub.close(reason.clone());
                self.discount(&hub.key.identity);
            }
            !matches
        });
    }

    fn close_unused(&self, hub: &Arc<Hub>, reason: Ended) -> bool {
        let mut informers = self.lock();
        let closed = hub.close_if_unused(reason);
        if closed {
            self.forget(&mut informers, hub);
        }
        closed
    }

    fn close_one(&self, hub: &Arc<Hub>, reason: Ended) {
        let mut informers = self.lock();
        hub.close(reason);
        self.forget(&mut informers, hub);
    }

    /// Takes a hub out, unless another one has its place.
    fn forget(&self, informers: &mut Informers, hub: &Arc<Hub>) {
        if let Entry::Occupied(entry) = informers.live.entry(hub.key.clone())
            && Arc::ptr_eq(entry.get(), hub)
        {
            entry.remove();
            self.discount(&hub.key.identity);
        }
    }

    fn count(&self, identity: &TypeIdentity) {
        self.types.send_modify(|types| *types.entry(identity.clone()).or_default() += 1);
    }

    fn discount(&self, identity: &TypeIdentity) {
        self.types.send_modify(|types| {
            if let Some(count) = types.get_mut(identity) {
                *count -= 1;
                if *count == 0 {
                    types.remove(identity);
                }
            }
        });
    }
}

/// An informer's task: runs the reflector until the hub is closed.
async fn drive(ending: Ending, reflector: Reflector) {
    let mut reflect = Box::pin(AssertUnwindSafe(reflector.run()).catch_unwind());
    tokio::select! {
        biased;
        () = ending.hub.stopped() => {}
        () = unused(&ending) => {}
        end = &mut reflect => {
            let panic: Box<dyn Any + Send> = match end {
                Err(panic) => panic,
                Ok::<Infallible, _>(never) => match never {},
            };
            let message = message(panic.as_ref());
            error!(error = message, "informer panicked");
            ending.set.close_one(&ending.hub, Ended::Panicked(message));
        }
    }
    // The request, the decoder and the metrics go before the end is announced.
    drop(reflect);
    debug!("informer ended");
    drop(ending);
}

/// Closes the hub when nobody has subscribed for the time of the linger.
async fn unused(ending: &Ending) {
    let linger = ending.set.options.linger;
    let mut idle = ending.hub.idle();
    loop {
        let since = *idle.borrow_and_update();
        let lingered = async {
            match since {
                Some(since) => sleep_until(since + linger).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = lingered => {
                if ending.set.close_unused(&ending.hub, Ended::Released) {
                    return;
                }
            }
            // The sender is in the hub.
            _changed = idle.changed() => {}
        }
    }
}

/// Announces the end of a task when dropped, also when the runtime drops the task.
struct Ending {
    set: Arc<Shared>,
    hub: Arc<Hub>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.set.close_one(&self.hub, Ended::Shutdown);
        self.hub.finish(self.hub.closed().unwrap_or(Ended::Shutdown));
    }
}

pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

impl fmt::Debug for InformerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let informers = self.shared.lock();
        f.debug_struct("InformerSet").field("informers", &informers.live.len()).finish()
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::informer::{
        fixture::widgets,
        script::{Rig, change, settle, stored, widget},
    };

    impl InformerSet {
        fn tasks(&self) -> usize {
            self.shared.tasks.len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn constructing_and_asking_starts_nothing() {
        let mut rig = Rig::new();

        assert!(rig.set.status().is_empty());
        assert_eq!(rig.set.ended(&rig.key).await, Ended::Released);
        rig.set.type_gone(&rig.key.identity);
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_joiner_gets_everything_and_then_every_change_without_a_request() {
        let mut rig = Rig::new();
        let (mut first, watch) = rig.synced(&[widget("a", 1), widget("b", 2)]).await;

        let mut late = rig.subscribe();
        watch.event("DELETED", &widget("b", 11));
        watch.event("ADDED", &widget("c", 12));
        assert_eq!(change(&mut first).await, ("b".into(), 2, 0));
        assert_eq!(change(&mut first).await, ("c".into(), 0, 12));

        // It never looked while b was there.
        let delta = late.next().await.unwrap();
        assert!(delta.initial && delta.old.is_none() && &*delta.key.name == "a");
        late.drained().await;
        assert_eq!(change(&mut late).await, ("c".into(), 0, 12));
        watch.event("DELETED", &widget("a", 13));
        assert_eq!(change(&mut late).await, ("a".into(), 1, 0));
        rig.script.assert_quiet();
        assert_eq!(rig.set.status()[0].subscribers, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_before_the_first_list_waits_for_its_end() {
        let mut rig = Rig::new();
        let first = rig.subscribe();
        rig.script.list().await.page(10, "more", &[widget("a", 1)]);
        let last_page = rig.script.list().await;

        let mut second = rig.subscribe();
        assert_eq!(change(&mut second).await, ("a".into(), 0, 1));
        let mut drained = Box::pin(second.drained());
        assert!(futures::poll!(&mut drained).is_pending());

        last_page.page(10, "", &[]);
        drained.await;
        let mut drained = Box::pin(first.drained());
        assert!(futures::poll!(&mut drained).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_subscriber_holds_up_nobody_and_sees_the_last_state() {
        let mut rig = Rig::new();
        let (mut fast, watch) = rig.synced(&[widget("a", 1)]).await;
        let mut slow = rig.subscribe();
        assert_eq!(change(&mut slow).await, ("a".into(), 0, 1));

        for version in 11..1000 {
            watch.event("MODIFIED", &widget("a", version));
            assert_eq!(change(&mut fast).await.2, version);
        }

        assert_eq!(change(&mut slow).await, ("a".into(), 1, 999));
        settle().await;
        assert!(slow.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_to_leave_closes_the_watch_after_the_linger() {
        let mut rig = Rig::new();
        let (first, watch) = rig.synced(&[widget("a", 1)]).await;
        let second = rig.subscribe();
        let store = second.store();
        let ended = rig.set.ended(&rig.key);

        drop(first);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(rig.set.status().len(), 1);
        second.release(Linger::Default).await;
        let left = tokio::time::Instant::now();

        assert_eq!(ended.await, Ended::Released);
        assert_eq!(left.elapsed(), Duration::from_secs(10));
        watch.dropped().await;
        assert!(rig.set.status().is_empty() && store.is_empty());
        settle().await;
        assert_eq!(rig.set.tasks(), 0);
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_while_it_lingers_costs_no_request() {
        let mut rig = Rig::new();
        let (first, watch) = rig.synced(&[widget("a", 1)]).await;

        drop(first);
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            let mut next = rig.subscribe();
            assert_eq!(change(&mut next).await, ("a".into(), 0, 1));
            next.drained().await;
        }
        let mut last = rig.subscribe();
        assert_eq!(change(&mut last).await, ("a".into(), 0, 1));
        tokio::time::sleep(Duration::from_secs(60)).await;
        watch.event("MODIFIED", &widget("a", 11));

        assert_eq!(change(&mut last).await.2, 11);
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_without_linger_resolves_when_nothing_is_left() {
        let mut rig = Rig::new();
        let (first, watch) = rig.synced(&[widget("a", 1)]).await;
        let second = rig.subscribe();
        let store = first.store();
        let ended = rig.set.ended(&rig.key);

        first.release(Linger::None).await;
        assert_eq!(store.len(), 1);
        second.release(Linger::None).await;

        assert!(watch.dropped().now_or_never().is_some());
        assert_eq!((store.len(), store.bytes()), (0, 0));
        assert_eq!(ended.now_or_never(), Some(Ended::TypeGone));
        settle().await;
        assert_eq!(rig.set.tasks(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_drops_a_request_that_was_not_answered() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();
        let list = rig.script.list().await;

        subscription.release(Linger::None).await;

        list.abandoned().await;
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_during_the_end_gets_another_informer() {
        let mut rig = Rig::new();
        let (first, watch) = rig.synced(&[widget("a", 1)]).await;
        let mut release = Box::pin(first.release(Linger::None));
        assert!(futures::poll!(&mut release).is_pending());

        let mut second = rig.subscribe();
        release.await;
        watch.dropped().await;
        rig.script.list().await.page(20, "", &[widget("a", 15)]);

        assert_eq!(change(&mut second).await, ("a".into(), 0, 15));
        rig.script.watch(20).await;
        assert_eq!(rig.set.status().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_type_that_is_gone_ends_its_informers_whoever_listens() {
        let mut rig = Rig::new();
        let (mut subscription, watch) = rig.synced(&[widget("a", 1)]).await;
        let (store, progress) = (subscription.store(), subscription.progress());
        let ended = rig.set.ended(&rig.key);
        watch.event("MODIFIED", &widget("a", 11));
        settle().await;
        let mut other = rig.key.identity.clone();
        other.uid = Some("another".into());

        rig.set.type_gone(&other);
        assert_eq!(rig.set.status().len(), 1);
        rig.set.type_gone(&rig.key.identity);

        assert_eq!(subscription.next().now_or_never().unwrap().unwrap_err(), Ended::TypeGone);
        assert_eq!(store.len(), 1, "what is still being worked on goes on over what is known");
        assert_eq!(*progress.borrow(), Progress::Ended(Ended::TypeGone));
        assert!(rig.set.types().borrow().is_empty());
        subscription.release(Linger::None).await;
        assert!(store.is_empty());
        assert!(watch.dropped().now_or_never().is_some());
        assert_eq!(ended.await, Ended::TypeGone);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_one_informer_and_is_told() {
        let mut rig = Rig::new();
        let (mut first, watch) = rig.synced(&[widget("a", 1)]).await;
        drop(watch);
        let bystander_key = InformerKey { namespace: Some("ns".into()), ..rig.key.clone() };
        rig.script.watch(10).await.explode();

        let ended = first.next().await.unwrap_err();
        assert_eq!(ended, Ended::Panicked("a defect of ours".into()));
        assert_eq!(first.ended().await, ended);
        assert!(rig.set.status().is_empty());

        rig.key = bystander_key;
        let (_bystander, _watch) = rig.synced(&[widget("b", 1)]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_ends_all_and_lets_nobody_in() {
        let mut rig = Rig::new();
        let (mut first, watch) = rig.synced(&[widget("a", 1)]).await;
        rig.key.namespace = Some("ns".into());
        let mut second = rig.subscribe();
        let list = rig.script.list().await;

        rig.set.shutdown().await;

        assert_eq!(first.next().await.unwrap_err(), Ended::Shutdown);
        assert_eq!(second.next().await.unwrap_err(), Ended::Shutdown);
        watch.dropped().await;
        list.abandoned().await;
        assert_eq!(rig.set.tasks(), 0);
        let mut late = rig.subscribe();
        assert_eq!(late.next().await.unwrap_err(), Ended::Shutdown);
        late.release(Linger::None).await;
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_early_is_no_sync() {
        let mut rig = Rig::new();
        let subscription = rig.subscribe();
        let drained = subscription.drained();
        rig.script.list().await.page(10, "more", &[widget("a", 1)]);

        rig.set.type_gone(&rig.key.identity);
        drop(subscription);

        settle().await;
        assert!(drained.now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_of_any_number_of_informers() {
        let mut rig = Rig::new();
        let encoded = |set: &InformerSet| {
            let mut registry = prometheus_client::registry::Registry::default();
            set.metrics().register(&mut registry);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let (first, _watch) = rig.synced(&[widget("a", 1)]).await;
        first.release(Linger::None).await;
        settle().await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let metrics = encoded(&rig.set);

        for round in 0..100 {
            let (subscription, watch) = rig.synced(&[widget("a", 1)]).await;
            match round % 4 {
                0 => subscription.release(Linger::None).await,
                1 => rig.set.type_gone(&rig.key.identity),
                2 => {
                    drop(watch);
                    rig.script.watch(10).await.explode();
                    subscription.ended().await;
                }
                _ => {
                    drop(subscription);
                    tokio::time::sleep(Duration::from_secs(11)).await;
                }
            }
        }

        settle().await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks);
        assert_eq!(encoded(&rig.set), metrics);
        rig.script.assert_quiet();
    }

    #[tokio::test(start_paused = true)]
    async fn unequal_keys_have_watches_of_their_own() {
        let mut rig = Rig::new();
        let (first, _watch) = rig.synced(&[widget("a", 1)]).await;
        rig.key.labels = Some("x=y".into());
        let (second, _other) = rig.synced(&[]).await;

        assert_eq!(stored(&first).len(), 1);
        assert!(stored(&second).is_empty());
        assert_eq!(rig.set.status().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn any_number_of_threads_may_join_leave_and_end_it() {
        let mut rig = Rig::new();
        let set = rig.set.clone();
        let mut users = tokio::task::JoinSet::new();
        for user in 0..8 {
            let (set, key) = (set.clone(), rig.key.clone());
            users.spawn(async move {
                for round in 0..200 {
                    let mut subscription = set.subscribe(&widgets(), key.clone());
                    match subscription.next().await {
                        Ok(delta) => assert_eq!(&*delta.key.name, "a"),
                        Err(ended) => assert_eq!(ended, Ended::TypeGone),
                    }
                    match (user, round % 3) {
                        (0, 0) => set.type_gone(&key.identity),
                        (_, 0) => drop(subscription),
                        (_, 1) => subscription.release(Linger::Default).await,
                        (..) => subscription.release(Linger::None).await,
                    }
                }
            });
        }

        let mut watches = Vec::new();
        loop {
            tokio::select! {
                asked = rig.script.next() => {
                    if asked.is_watch() {
                        watches.push(asked.open());
                    } else {
                        asked.page(10, "", &[widget("a", 1)]);
                    }
                }
                ended = users.join_next() => match ended {
                    Some(ended) => ended.unwrap(),
                    None => break,
                },
            }
        }

        set.shutdown().await;
        assert_eq!(set.tasks(), 0);
        for watch in watches {
            watch.dropped().await;
        }
    }

    #[tokio::test]
    async fn a_runtime_that_ends_ends_its_informers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut subscription = {
            let guard = runtime.enter();
            let subscription = Rig::new().subscribe();
            drop(guard);
            subscription
        };

        runtime.shutdown_background();

        assert_eq!(subscription.next().await.unwrap_err(), Ended::Shutdown);
        subscription.release(Linger::None).await;
    }
}
