//! Events of kube-rs from the subscription of a shared informer.

mod translation;

use futures::{Stream, StreamExt, stream};
use kube_runtime::watcher::{Error, Event};
use serde::de::DeserializeOwned;
use tokio::select;

use self::translation::Translation;
use crate::informer::Subscription;

/// Returns the changes of a subscription as watcher events of kube-rs.
///
/// The stream serves in place of `kube_runtime::watcher`, for `reflector`, `Store` and `applier`.
/// The watch is that of the informer, shared with all other subscribers. The stream ends with the
/// informer: when the type is gone or the informers shut down.
///
/// `Init` is the first event. `InitApply` follows for each object that exists, and `InitDone` once
/// the first list is complete. The stream has one initial list only: after a relist of the informer
/// it yields the differences, deletions included. An object that was deleted and created again is a
/// `Delete` of the old and an `Apply` of the new one.
///
/// An object that cannot be decoded as `K` is logged and yields no event; consumers keep its
/// previous version. An object that the subscription no longer keeps whole is deleted. The stream
/// yields no error. Its item has the error type that kube's adapters require.
///
/// Dropping the stream releases the subscription.
///
/// ```
/// # use futures::{StreamExt, future::ready};
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::Cluster, informer::InformerKey, kind::TypeRef};
/// use pilotlight::runtime::{events, kube_runtime::reflector};
///
/// # async fn example(cluster: &Cluster) -> Option<()> {
/// let served = cluster.types.served(&TypeRef::of::<ConfigMap>())?;
/// let key = InformerKey::new(served.identity.clone());
/// let subscription = cluster.informers.subscribe(&served, key);
/// let (store, writer) = reflector::store::<ConfigMap>();
/// let reflected = reflector::reflector(writer, events(subscription)).for_each(|_| ready(()));
/// # drop(store);
/// # reflected.await;
/// # Some(())
/// # }
/// ```
pub fn events<K>(
    subscription: Subscription,
) -> impl Stream<Item = Result<Event<K>, Error>> + Send + 'static
where
    K: DeserializeOwned + Clone + Send + 'static,
{
    let translation = Translation::new(subscription.key().identity.to_string());
    let drained = Box::pin(subscription.drained());
    let begin = (subscription, drained, translation);
    let events = stream::unfold(begin, |(mut subscription, mut drained, mut translation)| async {
        loop {
            if let Some(event) = translation.next() {
                return Some((Ok(event), (subscription, drained, translation)));
            }
            select! {
                biased;
                () = &mut drained, if !translation.is_listed() => translation.on_drained(),
                delta = subscription.next() => translation.on_delta(delta.ok()?),
            }
        }
    });
    events.fuse()
}
