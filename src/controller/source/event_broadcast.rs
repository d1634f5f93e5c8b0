//! Event broadcast: generic events of objects that a program sends to several controllers.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Weak},
};

use futures::FutureExt;
use kube::core::TypeMeta;
use parking_lot::Mutex;
use tokio::{select, sync::Notify, task::consume_budget};

use super::channel;
use crate::{
    controller::{
        ConditionalSource, SourceContext, SourceEnd, SourceStart, run::delivery::UnfinishedRequests,
    },
    informer::{Object, ObjectKey},
    manager::{Readiness, always},
};

/// Sender of generic events to several controllers: of objects that are to be handled although they
/// have not changed in the cluster. Cheap to clone.
///
/// Build each source of [`EventBroadcast::source`] with
/// [`Builder::watches_source`](super::super::Builder::watches_source): the handler and the predicates
/// of its controller map the objects, as for an [`EventSource`](super::super::EventSource). A stopped
/// or slow controller does not delay the sender or other controllers. An object that no epoch has
/// mapped yet is kept, the last version of each; requests are kept like those of a
/// [`Broadcast`](super::super::Broadcast). Both are dropped with the last clone of the source.
///
/// Semantics: `source.Channel` of controller-runtime with `event.GenericEvent` and several
/// destinations, except that a full destination does not block the others.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::*, informer::Object, kind::Scope};
/// # fn example(one: Builder, other: Builder, map: ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
/// let events = EventBroadcast::new();
/// let one = one.watches_source(events.source(), Handler::Object);
/// let other = other.watches_source(events.source(), Handler::Object);
/// events.send(&Object::from_typed(&map, Scope::Namespaced)?);
/// # drop((one, other));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct EventBroadcast {
    consumers: Arc<Mutex<Vec<Weak<EventConsumer>>>>,
}

/// Source of the objects of an [`EventBroadcast`], for one controller. A clone that is an input of a
/// second running controller fails.
#[derive(Clone, Debug)]
pub struct EventBroadcastSource {
    consumer: Arc<EventConsumer>,
}

/// Objects of one controller.
#[derive(Debug, Default)]
struct EventConsumer {
    /// Objects that no epoch has mapped, by their type and key.
    arrived: Mutex<BTreeMap<EventKey, Object>>,
    // Requests of the mapped objects.
    taken: Arc<UnfinishedRequests>,
    // Locked by the running epoch.
    run: tokio::sync::Mutex<()>,
    // Wakes the running epoch.
    sent: Notify,
}

/// Identity of an object in the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    api_version: String,
    kind: String,
    uid: Arc<str>,
    key: ObjectKey,
}

impl EventBroadcast {
    /// Returns a sender without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a source for one controller.
    pub fn source(&self) -> EventBroadcastSource {
        let consumer = Arc::default();
        self.consumers.lock().push(Arc::downgrade(&consumer));
        EventBroadcastSource { consumer }
    }

    /// Sends an object to all sources. Does not block.
    pub fn send(&self, object: &Object) {
        // An object without content has no type: its uid is unique, too.
        let TypeMeta { api_version, kind } = object.decode().unwrap_or_default();
        let uid = Arc::clone(&object.header().uid);
        let key = EventKey { api_version, kind, uid, key: object.key().clone() };
        // Objects of the user, and consumers, are dropped outside of the locks.
        let (mut consumers, mut replaced) = (Vec::new(), Vec::new());
        self.consumers.lock().retain(|consumer| {
            let consumer = consumer.upgrade();
            let is_left = consumer.is_some();
            consumers.extend(consumer);
            is_left
        });
        for consumer in &consumers {
            replaced.push(consumer.arrived.lock().insert(key.clone(), object.clone()));
            consumer.sent.notify_one();
        }
    }
}

impl EventBroadcastSource {
    /// Enqueues the kept requests, and then maps the objects that arrive.
    async fn pump(&self, context: &SourceContext) -> SourceEnd {
        let EventConsumer { arrived, taken, run, sent } = &*self.consumer;
        let _run = match channel::receive(run).await {
            Ok(run) => run,
            Err(end) => return end,
        };
        context.deliveries.join(taken);
        for request in taken.requests() {
            context.enqueue_again(request);
        }
        // Checked each time, since objects may arrive faster than they are mapped.
        while !context.stop.is_cancelled() {
            let objects = mem::take(&mut *arrived.lock());
            objects.values().for_each(|object| context.deliver_generic(object));
            drop(objects);
            consume_budget().await;
            sent.notified().await;
        }
        SourceEnd::Stopped
    }
}

impl ConditionalSource for EventBroadcastSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let source = self.clone();
        let context = SourceContext { keeps: Some(Arc::clone(&self.consumer.taken)), ..context };
        let done = async move {
            select! {
                biased;
                () = context.stopping() => SourceEnd::Stopped,
                end = source.pump(&context) => end,
            }
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        "a broadcast of events".to_owned()
    }

    fn delivers_generic_only(&self) -> bool {
        true
    }
}
