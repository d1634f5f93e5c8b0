//! Parents of a removed controller: removal of its finalizer, which no hook call removes any more.

use std::{pin::pin, sync::Arc};

use futures::{Stream, TryStreamExt, stream};
use http::Method;
use kube::api::ListParams;
use serde_json::value::RawValue;

use crate::{
    controller::{Cluster, Context, ReconcileError},
    discovery::TypeState,
    informer::Object,
    kind::{Scope, ServedType, TypeRef},
    list_page::{ContinueTokens, ListPage},
    meta::{
        api::controller_kind::ControllerKind,
        definition::finalizer::Finalizer,
        recorder::{EventRecorder, Severity, Subject},
        resource::{self, Resource, is_fenced, is_gone, patches::Patches, requested_wait},
    },
    redaction,
};

/// Number of parents in one page of a list; bounds the memory of a release.
const PAGE: u32 = 100;

/// Parents that are to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreedParents {
    /// Every parent: an edit has dropped the finalize hook, or the type.
    All,
    /// Every parent that is not being deleted. The others wait for their finalize hook: the
    /// controller was deleted, and may be applied again.
    NotTerminating,
}

/// State of a type whose objects are to be freed.
enum FoundType {
    Served(Arc<ServedType>),
    Absent,
    /// The type may have objects that cannot be read now.
    Unknown,
}

/// Release of the parents of one controller from its finalizer.
pub(super) struct ParentRelease<'a> {
    /// Kind of the controller.
    pub(super) kind: ControllerKind,
    /// Name of the controller.
    pub(super) name: &'a str,
    pub(super) cluster: &'a Cluster,
    pub(super) recorder: &'a EventRecorder,
    pub(super) context: &'a Context,
    pub(super) finalizer: Finalizer,
}

impl ParentRelease<'_> {
    /// Frees parents of these types, without a call of the hook. Types whose parents are free are
    /// removed from `finalizes`.
    ///
    /// # Errors
    ///
    /// The first failure, after all types were tried; at once if the server throttles a request or
    /// the epoch is over. Parents that are free by then need no request in the next attempt.
    pub(super) async fn free_parents(
        &self,
        types: &[TypeRef],
        which: FreedParents,
        finalizes: &mut Vec<TypeRef>,
    ) -> Result<(), ReconcileError> {
        let name = self.name;
        let mut first_error = None;
        for type_ref in types {
            let result = match self.found(type_ref) {
                FoundType::Served(served) => self.free(&served, which).await,
                // The objects of an absent type are gone.
                FoundType::Absent => Ok(0),
                FoundType::Unknown => {
                    let message =
                        format!("freeing the parents of {name}: {type_ref} is not served");
                    first_error.get_or_insert(ReconcileError::Retry(message.into()));
                    continue;
                }
            };
            match result {
                Ok(freed) => {
                    finalizes.retain(|it| it != type_ref);
                    if freed > 0 {
                        tracing::info!(name, %type_ref, freed, "finalizer removed from parents");
                    }
                }
                Err(error) => {
                    let message = format!(
                        "freeing the parents of {name}: {}",
                        redaction::request_error(&error)
                    );
                    if let Some(after) = requested_wait(&error) {
                        return Err(resource::throttled(&message, after).into());
                    }
                    first_error.get_or_insert(ReconcileError::Retry(message.into()));
                    if is_fenced(&error) {
                        break;
                    }
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Returns the type as it is served, at any version: all versions have the same objects.
    fn found(&self, type_ref: &TypeRef) -> FoundType {
        let known = self.cluster.types.get(type_ref);
        let any = TypeRef { version: None, ..type_ref.clone() };
        match known.served.or_else(|| self.cluster.types.served(&any)) {
            Some(served) => FoundType::Served(served),
            None if known.state == TypeState::Absent => FoundType::Absent,
            None => FoundType::Unknown,
        }
    }

    /// Returns whether an object of these types that is not being deleted has the finalizer of the
    /// controller, or may have it. Writes nothing.
    ///
    /// # Errors
    ///
    /// If a list fails.
    pub(super) async fn has_parents(&self, types: &[TypeRef]) -> Result<bool, kube::Error> {
        for type_ref in types {
            let served = match self.found(type_ref) {
                FoundType::Served(served) => served,
                FoundType::Absent => continue,
                FoundType::Unknown => return Ok(true),
            };
            let mut pages = pin!(self.held(&served));
            while let Some(objects) = pages.try_next().await? {
                if !objects.iter().all(is_terminating) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes the finalizer of a controller from objects of a type. Returns the number of changed
    /// objects.
    ///
    /// # Errors
    ///
    /// If a list fails, and at once if the server throttles a write or the epoch is over. The first
    /// other failure of a write is returned after all objects were tried.
    async fn free(&self, served: &ServedType, which: FreedParents) -> Result<usize, kube::Error> {
        let Self { name, recorder, context, finalizer, .. } = self;
        let (mut first_error, mut freed, mut kept) = (None, 0, 0);
        let patches = Patches::default();
        let resource = Resource::new(context.client(), served);
        let mut pages = pin!(self.held(served));
        while let Some(objects) = pages.try_next().await? {
            for object in objects {
                if which == FreedParents::NotTerminating && is_terminating(&object) {
                    kept += 1;
                    self.report_kept(served, &object);
                    continue;
                }
                let patch = finalizer.removed(object.header());
                match patches.merge::<Box<RawValue>>(&resource, object.key(), &patch).await {
                    Ok(_) => {}
                    Err(error) if is_gone(&error) => continue,
                    Err(error) if requested_wait(&error).is_some() || is_fenced(&error) => {
                        return Err(error);
                    }
                    Err(error) => {
                        first_error.get_or_insert(error);
                        continue;
                    }
                }
                freed += 1;
                let text = format!(
                    "Finalizer {} removed without calling the hook: the controller {name} no \
                     longer finalizes objects of this type",
                    finalizer.name
                );
                let subject = subject(served, &object);
                let reason = "FinalizerRemoved";
                recorder.publish(context, &subject, Severity::Warning, reason, &text);
            }
        }
        if kept > 0 {
            tracing::warn!(
                name,
                kind = %served.kind,
                kept,
                release = release_command(self.kind, name),
                "objects that are being deleted keep the finalizer of a deleted controller; apply it \
                 again, or release them"
            );
        }
        first_error.map_or(Ok(freed), Err)
    }

    /// Reports an object that waits for the finalize hook of a deleted controller.
    fn report_kept(&self, served: &ServedType, object: &Object) {
        let Self { name, recorder, context, finalizer, .. } = self;
        let text = format!(
            "Finalizer {} kept: the controller {name} was deleted before it finalized this object; \
             apply the controller again, or run: {}",
            finalizer.name,
            release_command(self.kind, name)
        );
        let subject = subject(served, object);
        recorder.publish(context, &subject, Severity::Warning, "FinalizerKept", &text);
    }

    /// Lists the objects of a type that have the finalizer, page by page. An object without
    /// readable metadata has no readable finalizer either.
    fn held(&self, served: &ServedType) -> impl Stream<Item = Result<Vec<Object>, kube::Error>> {
        let first = (Some(ListParams::default().limit(PAGE)), ContinueTokens::default());
        stream::try_unfold(first, move |(parameters, mut tokens)| async move {
            let Some(mut parameters) = parameters else { return Ok(None) };
            let page = self.page(served, &parameters).await?;
            let next = tokens.after(&page);
            parameters.continue_token =
                next.map_err(|endless| kube::Error::Service(endless.into()))?;
            let objects = page.items.into_iter().flatten();
            let objects = objects.filter_map(|item| Object::from_json(item.get(), served).ok());
            let held: Vec<_> = objects.filter(|it| self.finalizer.is_on(it.header())).collect();
            let next = parameters.continue_token.is_some().then_some(parameters);
            Ok::<_, kube::Error>(Some((held, (next, tokens))))
        })
    }

    async fn page(
        &self,
        served: &ServedType,
        parameters: &ListParams,
    ) -> Result<ListPage<Box<RawValue>>, kube::Error> {
        let namespace = match served.identity.scope {
            Scope::Namespaced => self.cluster.namespace.as_deref(),
            Scope::Cluster => None,
        };
        let list = kube::core::Request::new(served.identity.path(namespace))
            .list(parameters)
            .map_err(kube::Error::BuildRequest)?;
        resource::send(self.context.client(), Method::GET, list.uri().to_string(), "", None).await
    }
}

fn is_terminating(object: &Object) -> bool {
    object.header().deletion_timestamp.is_some()
}

/// Returns the command that frees the parents of a deleted controller.
fn release_command(kind: ControllerKind, name: &str) -> String {
    match kind {
        ControllerKind::Composite => format!("pilotlight release {name}"),
        ControllerKind::Decorator => format!("pilotlight release --kind {} {name}", kind.kind()),
    }
}

fn subject(served: &ServedType, object: &Object) -> Subject {
    Subject {
        api_version: served.identity.api_version(),
        kind: served.kind.to_string(),
        namespace: object.key().namespace.clone(),
        name: object.key().name.clone(),
        uid: object.header().uid.clone(),
    }
}
