//! Informer source: changes and cache of an informer that the program knows by its key.

use std::sync::Arc;

use futures::FutureExt;
use tokio::select;

use crate::{
    controller::{
        ConditionalSource, SourceContext, SourceEnd, SourceStart, run::input_status::InputStatus,
    },
    discovery::{TypeChange, TypeRegistry},
    informer::{Delta, EndReason, InformerKey, InformerSet, Interests, Linger, Subscription},
    kind::{Scope, ServedType, TypeRef},
    manager::{Readiness, type_served},
};

/// Source of the changes of an informer, such as one to which the program has a [`Subscription`].
///
/// Each start joins the informer of this key, so that both share a watch and a cache; without one
/// it is started. The source is ready while the type is served. Build it with
/// [`Builder::watches_source`], whose handler receives the changes; reconcilers and handlers read
/// the cache by its type.
///
/// The registry and the informers are those of the controller's cluster. For objects of another
/// cluster use [`Builder::in_cluster`].
///
/// Semantics: `source.Informer` of controller-runtime (`pkg/source`), except that it can be started
/// again, and lives with the type.
///
/// ```
/// use pilotlight::{controller::*, informer::Subscription};
///
/// # fn example(cluster: &Cluster, subscription: &Subscription, builder: Builder) -> Builder {
/// // The program reads the subscription itself; the controller watches the same informer.
/// let key = subscription.key().clone();
/// let source = InformerSource::new(&cluster.types, &cluster.informers, key);
/// builder.watches_source(source, Handler::Object)
/// # }
/// ```
///
/// [`Builder::watches_source`]: super::super::Builder::watches_source
/// [`Builder::in_cluster`]: super::super::Builder::in_cluster
#[derive(Clone)]
pub struct InformerSource {
    types: TypeRegistry,
    informers: InformerSet,
    key: InformerKey,
    type_ref: TypeRef,
    interests: Interests,
}

impl InformerSource {
    /// Returns a source of the informer of a key, with all of its objects.
    pub fn new(types: &TypeRegistry, informers: &InformerSet, key: InformerKey) -> Self {
        let identity = &key.identity;
        let type_ref = TypeRef::resource(&*identity.group, &*identity.version, &*identity.plural);
        let (types, informers) = (types.clone(), informers.clone());
        Self { types, informers, key, type_ref, interests: Interests::everything() }
    }

    /// Sets the objects that are delivered and kept whole, in place of all; such as
    /// [`Subscription::interests`] of the program's own subscription.
    #[must_use]
    pub fn interests(self, interests: Interests) -> Self {
        Self { interests, ..self }
    }

    fn subscribe(&self, served: &ServedType) -> Subscription {
        let namespaced = served.identity.scope == Scope::Namespaced;
        let key = InformerKey {
            identity: served.identity.clone(),
            namespace: self.key.namespace.clone().filter(|_| namespaced),
            ..self.key.clone()
        };
        self.informers.subscribe_to(served, key, self.interests.clone())
    }

    async fn run(
        &self,
        served: Arc<ServedType>,
        mut subscription: Subscription,
        context: SourceContext,
    ) -> SourceEnd {
        let ended = subscription.ended();
        let deliver = async {
            context.offer(&served, &subscription).await;
            while let Ok(change) = subscription.next().await {
                context.deliver(&change);
            }
            std::future::pending::<()>().await;
        };
        let ended = select! {
            biased;
            () = context.released() => None,
            reason = ended => Some(reason),
            () = deliver => None,
        };
        if let Some(reason @ (EndReason::Panicked(_) | EndReason::Shutdown)) = ended {
            return SourceEnd::Failed(format!("its informer ended: {reason}"));
        }
        let change = self.types.get(&self.type_ref).change_since(&served.identity);
        let is_gone = matches!(change, TypeChange::Absent | TypeChange::Replaced);
        // Withdrawn first, so that the reconciles of the deletions find the type missing.
        drop(context.statuses.change(context.input, InputStatus::withdraw));
        if is_gone || context.lost() {
            for old in subscription.concerned() {
                let (key, old) = (old.key().clone(), Some(old));
                context.deliver(&Delta { key, old, new: None, initial: false });
            }
        }
        subscription.release(if is_gone { Linger::None } else { Linger::Default }).await;
        if ended.is_some() { SourceEnd::TypeGone } else { SourceEnd::Stopped }
    }
}

impl ConditionalSource for InformerSource {
    fn ready(&self) -> Readiness {
        type_served(&self.types, &self.type_ref)
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let Some(served) = self.types.served(&self.type_ref) else {
            // The type was lost after the source became ready.
            let gone = async { SourceEnd::TypeGone };
            return SourceStart { synced: async { Ok(()) }.boxed(), done: gone.boxed() };
        };
        let subscription = self.subscribe(&served);
        let (synced, source) = (subscription.drained(), self.clone());
        let done = async move { source.run(served, subscription, context).await };
        SourceStart { synced: synced.map(Ok).boxed(), done: done.boxed() }
    }

    fn name(&self) -> String {
        format!("an informer of {}", self.type_ref)
    }
}

impl std::fmt::Debug for InformerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InformerSource").field("key", &self.key).finish_non_exhaustive()
    }
}
