//! Event broadcast: generic events of objects that a program sends to several controllers.

use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt;
use kube::core::TypeMeta;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::consume_budget};

use super::{channel::run_alone, consumers::Consumers};
use crate::{
    controller::{
        ConditionalSource, SourceContext, SourceStart, run::delivery::UnfinishedRequests,
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
    consumers: Consumers<EventConsumer>,
}

/// Source of the objects of an [`EventBroadcast`], for one controller. Its clones are for the same one,
/// as for a [`ChannelSource`](super::super::ChannelSource).
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
        EventBroadcastSource { consumer: self.consumers.add() }
    }

    /// Sends an object to all sources. Does not block.
    pub fn send(&self, object: &Object) {
        // An object without content has no type: its uid is unique, too.
        let TypeMeta { api_version, kind } = object.decode().unwrap_or_default();
        let uid = Arc::clone(&object.header().uid);
        let key = EventKey { api_version, kind, uid, key: object.key().clone() };
        for consumer in self.consumers.existing() {
            let replaced = consumer.arrived.lock().insert(key.clone(), object.clone());
            // Dropped outside of the lock, since the last clone of an object runs the user's code.
            drop(replaced);
            consumer.sent.notify_one();
        }
    }
}

impl EventConsumer {
    /// Enqueues the kept requests, and then maps the objects that arrive.
    async fn pump(&self, context: &SourceContext) {
        context.deliveries.join(&self.taken);
        for kept in self.taken.since(0) {
            context.enqueue_kept(&self.taken, kept);
        }
        loop {
            while let Some((_, object)) = { self.arrived.lock().pop_first() } {
                context.deliver_generic(&object);
                // Many may have arrived, or arrive without a pause.
                consume_budget().await;
            }
            self.sent.notified().await;
        }
    }
}

impl ConditionalSource for EventBroadcastSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let consumer = Arc::clone(&self.consumer);
        let context = SourceContext { keeps: Some(Arc::clone(&consumer.taken)), ..context };
        let done = async move {
            let pump = async |(): &mut ()| consumer.pump(&context).await;
            run_alone(&consumer.run, &context, pump).await
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
