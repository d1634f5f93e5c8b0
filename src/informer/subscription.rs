//! Subscription: keeps an informer alive, and delivers its changes to one subscriber.

use std::{fmt, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    Change, Delta, EndReason, Header, InformerKey, InformerProgress, Interest, InterestName,
    Interests, Linger, Object, ObjectKey, Store,
    interest::{NamedInterests, SubscriberId},
    mailbox::{Extent, Mailbox},
    shared_informer::{JoinedSubscription, SharedInformer},
    shared_set::SharedSet,
};

/// Subscription to an informer: keeps it alive, reads its store and receives its changes.
///
/// Dropping it releases with [`Linger::Default`], without waiting.
/// ```no_run
/// # use pilotlight::{controller::Cluster, informer::InformerKey, kind::TypeRef};
/// # async fn example(cluster: Cluster, widgets: TypeRef) -> Option<()> {
/// let served = cluster.types.served(&widgets)?; // `None` while the type is not served.
/// let key = InformerKey::new(served.identity.clone());
/// let mut subscription = cluster.informers.subscribe(&served, key);
/// while let Ok(delta) = subscription.next().await { // Ends with the type.
///     match delta.new {
///         Some(object) => println!("{} has {:?}", delta.key, object.header().labels),
///         None => println!("{} is deleted", delta.key),
///     }
/// }
/// # Some(())
/// # }
/// ```
pub struct Subscription {
    informer: Arc<SharedInformer>,
    set: Arc<SharedSet>,
    id: SubscriberId,
    mailbox: Arc<Mailbox>,
    store: Store,
    interests: Interests,
}

/// Interests of a subscription that are added and removed while it lasts. Cheap to clone; without
/// effect once the subscription has ended. If an input replaces its subscription, all clones move to
/// the new one.
#[derive(Clone, Debug)]
pub struct MovingInterests {
    place: Arc<Mutex<InterestPlace>>,
}

/// Subscribers that have the interests.
#[derive(Debug)]
struct InterestPlace {
    current: (Arc<SharedInformer>, SubscriberId),
    // Subscriber that the current one is about to replace.
    replaced: Option<(Arc<SharedInformer>, SubscriberId)>,
}

impl Subscription {
    pub(super) fn new(
        set: Arc<SharedSet>,
        informer: Arc<SharedInformer>,
        joined: JoinedSubscription,
        interests: Interests,
    ) -> Self {
        let JoinedSubscription { id, mailbox, store } = joined;
        Self { informer, set, id, mailbox, store, interests }
    }

    /// Returns the informer's key.
    pub fn key(&self) -> &InformerKey {
        &self.informer.key
    }

    /// Returns the interests that the subscription began with.
    pub fn interests(&self) -> &Interests {
        &self.interests
    }

    #[cfg(test)]
    pub(super) fn informer(&self) -> Arc<SharedInformer> {
        self.informer.clone()
    }

    /// Returns a reader of the informer's objects.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Returns the next change. Objects that exist arrive as initial changes, in the order of their
    /// keys; later changes of other objects may arrive between them.
    ///
    /// # Errors
    ///
    /// If the informer has ended. Changes not received before are lost. The store keeps its objects
    /// until its last subscriber has left.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is lost only with the subscription.
    pub async fn next(&mut self) -> Result<Delta, EndReason> {
        // A long backlog must not starve other tasks.
        tokio::task::coop::consume_budget().await;
        loop {
            let scanned = self.mailbox.needs_scan() && self.informer.scan(self.id);
            match self.mailbox.take() {
                Some(result) => {
                    // Scans one step ahead, so that the last initial change is known as such.
                    if self.mailbox.needs_scan() {
                        self.informer.scan(self.id);
                    }
                    return result.map(|change| self.view(change).into_delta());
                }
                // A scan of many objects that do not concern the subscriber.
                None if scanned => tokio::task::coop::consume_budget().await,
                // A push since `take` has left a permit.
                None => self.mailbox.woken().await,
            }
        }
    }

    /// Returns a change as this subscription keeps the object, regardless of other subscriptions.
    fn view(&self, change: Change) -> Change {
        let view = |object: Option<Object>| object.map(|object| self.store.view(object));
        Change { old: view(change.old), new: view(change.new), ..change }
    }

    /// Takes the changes that [`Subscription::next`] has not returned, also after the informer has
    /// ended. No scan is continued: an object that it has not reached is in the store only.
    pub(crate) fn take_pending(&self) -> Vec<Change> {
        self.mailbox.take_pending().into_iter().map(|change| self.view(change)).collect()
    }

    /// Waits until the informer's first list is complete; until then the store is partial. Never
    /// resolves if the informer ends or the subscription is dropped first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn complete(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Complete)
    }

    /// Waits until the first list is complete and [`Subscription::next`], which is to be called
    /// meanwhile, has returned every initial change. Never resolves if the informer ends or the
    /// subscription is dropped first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mailbox.reaches(Extent::Drained)
    }

    /// Returns the interests that can be changed while the subscription lasts.
    pub fn moving_interests(&self) -> MovingInterests {
        let current = (self.informer.clone(), self.id);
        MovingInterests { place: Arc::new(Mutex::new(InterestPlace { current, replaced: None })) }
    }

    /// Returns the stored objects that concern the subscription now, as initial changes.
    pub(crate) fn concerned(&self) -> Vec<Change> {
        self.informer.concerned(self.id)
    }

    /// Returns the moving interests in an object.
    pub(crate) fn interests_in(&self, object: &Header) -> NamedInterests {
        self.informer.interests_in(self.id, object)
    }

    /// Returns the number of objects that a resync of all objects examines.
    pub(crate) fn resync_len(&self) -> usize {
        self.informer.resync_len(self.id)
    }

    /// Delivers the stored objects again that concern the subscription, as updates without a
    /// difference. An object whose change is pending is left to that change. Examines at most
    /// `examine` objects after a key; returns the last one, `None` at the end.
    pub(crate) fn resync(&self, after: Option<&ObjectKey>, examine: usize) -> Option<ObjectKey> {
        self.informer.resync(self.id, after, examine)
    }

    /// Subscribes to the progress of the informer.
    pub fn progress(&self) -> watch::Receiver<InformerProgress> {
        self.informer.progress()
    }

    /// Subscribes to failures of the list that is to make objects whole; `None` if the last one was
    /// complete.
    pub(crate) fn fill_failure(&self) -> watch::Receiver<Option<InformerProgress>> {
        self.informer.fill_failure()
    }

    /// Waits until the informer and its task have ended; returns the reason.
    pub fn ended(&self) -> impl Future<Output = EndReason> + Send + use<> {
        self.informer.done()
    }

    /// Releases the subscription. Returns at once while other subscribers or `linger` keep the
    /// informer. Otherwise waits until the informer has ended, its request is dropped and its
    /// memory freed.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the subscription is released even if this future is dropped.
    pub async fn release(self, linger: Linger) {
        let done = self.informer.done();
        let ending = self.set.release(&self.informer, self.id, linger);
        // Drops this reference to the informer and the store before waiting.
        drop(self);
        if ending {
            done.await;
        }
    }
}

impl MovingInterests {
    /// Sets the interests of one name, such as those of one parent, in place of its earlier ones. A
    /// request of a controller is a name.
    ///
    /// From then on, each change is delivered if the old or the new object concerns one of them, and
    /// the change has the name ([`Delta::interests`]). Objects that exist are not delivered: read them from the store after this call, so that no
    /// change between the two is lost. They are not kept whole by these interests.
    pub fn set(&self, name: impl Into<InterestName>, interests: Vec<Interest>) {
        let name = Arc::new(name.into());
        let place = self.place.lock();
        for (informer, id) in place.replaced.iter().chain([&place.current]) {
            informer.set_interests(*id, &name, interests.clone());
        }
    }

    /// Removes the interests of one name.
    pub fn remove(&self, name: impl Into<InterestName>) {
        self.set(name, Vec::new());
    }

    /// Moves to a subscription that replaces the current one. Until [`MovingInterests::end_move`]
    /// both have the interests, so that whichever store is read shows the changes of an object that
    /// is named meanwhile.
    pub(crate) fn move_to(&self, replacement: &Subscription) {
        let (informer, id) = (&replacement.informer, replacement.id);
        // Locked throughout, so that no interest is set between the copy and the move.
        let mut place = self.place.lock();
        let (current, of) = &place.current;
        for (name, interests) in current.moving_interests(*of) {
            let interests = interests.iter().map(|named| named.interest.clone()).collect();
            informer.set_interests(id, &name, interests);
        }
        let replaced = mem::replace(&mut place.current, (Arc::clone(informer), id));
        place.replaced = Some(replaced);
    }

    /// Leaves the replaced subscription, whose changes are delivered.
    pub(crate) fn end_move(&self) {
        let replaced = self.place.lock().replaced.take();
        // Not under the lock: it may be the last owner of an informer.
        drop(replaced);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.informer.leave(self.id, Linger::Default);
        self.store.leave();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.informer.key).finish_non_exhaustive()
    }
}
