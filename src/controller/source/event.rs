//! Event source: generic events of objects, which a program sends itself.

use tokio::sync::mpsc;

use super::channel::Channel;
use crate::{
    controller::{ConditionalSource, SourceContext, SourceStart},
    informer::Object,
    manager::{Readiness, always},
};

/// Source of generic events from a channel: of objects that are to be handled although they have
/// not changed in the cluster, such as after an event from outside.
///
/// Build it with [`Builder::watches_source`](super::super::Builder::watches_source): the handler
/// maps each object ([`Handler::generic`](super::super::Handler::generic)), and predicates decide by
/// [`Predicate::generic`](super::super::Predicate::generic), or as about a created one. A handler of
/// changes alone is an error of the build. Objects wait for an epoch, and may be lost with one, like the
/// requests of a [`ChannelSource`](super::super::ChannelSource). A program that knows the request sends
/// it through that source instead.
///
/// Semantics: `source.Channel` of controller-runtime (`pkg/source`) with `event.GenericEvent`,
/// except that it can be started again.
///
/// ```
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use pilotlight::{controller::*, informer::Object, kind::Scope};
/// # async fn example(map: ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
/// let (events, source) = EventSource::new(100);
/// let builder = Controller::builder("maps")
///     .for_::<ConfigMap>()
///     .watches_source(source, Handler::Object);
/// // Later, for an object that the program has:
/// events.send(Object::from_typed(&map, Scope::Namespaced)?).await?;
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EventSource {
    channel: Channel<Object>,
}

impl EventSource {
    /// Returns the sender of a channel of `capacity` objects (at least 1), and the source that
    /// receives them.
    pub fn new(capacity: usize) -> (mpsc::Sender<Object>, Self) {
        let (sender, channel) = Channel::new(capacity);
        (sender, Self { channel })
    }
}

impl ConditionalSource for EventSource {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        self.channel.start(context, |context, object| context.deliver_generic(&object))
    }

    fn name(&self) -> String {
        "a channel of events".to_owned()
    }

    fn delivers_generic_only(&self) -> bool {
        true
    }
}
