//! Parents of a removed controller: removal of its finalizer, which no hook call removes any more.

use std::{pin::pin, sync::Arc};

use futures::{Stream, TryStreamExt, stream};
use http::Method;
use kube::{Client, api::ListParams};
use serde_json::value::RawValue;

use super::{declared::DeclaredState, reconciler::DeclarationReconciler};
use crate::{
    controller::{Context, ReconcileError},
    discovery::TypeState,
    informer::Object,
    kind::{Scope, ServedType, TypeRef},
    list_page::{ContinueTokens, ListPage},
    manager::ControllerState,
    meta::{
        api::controller_kind::ControllerKind,
        definition::finalizer::Finalizer,
        recorder::{Severity, Subject},
        resource::{self, Resource, is_fenced, is_gone, patches::Patches, requested_wait},
    },
    redaction,
};

/// Number of parents in one page of a list; bounds the memory of a release.
const PAGE: u32 = 100;

/// Parents that are to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreedParents {
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

impl DeclarationReconciler {
    /// Frees parents of these types, without a call of the hook. Types whose parents are free are
    /// removed from `finalizes`.
    ///
    /// # Errors
    ///
    /// The first failure, after all types were tried; at once if the server throttles a request or
    /// the epoch is over. Parents that are free by then need no request in the next attempt.
    async fn free_parents(
        &self,
        name: &str,
        (types, which): (&[TypeRef], FreedParents),
        finalizes: &mut Vec<TypeRef>,
        context: &Context,
    ) -> Result<(), ReconcileError> {
        let mut first_error = None;
        for type_ref in types {
            let result = match self.found(type_ref) {
                FoundType::Served(served) => self.free(name, &served, which, context).await,
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

    /// Frees the objects of earlier parent types, once no run of the controller uses these types.
    pub(super) async fn free_earlier_parents(
        &self,
        name: &str,
        declared: &mut DeclaredState,
        context: &Context,
    ) -> Result<(), ReconcileError> {
        let earlier = declared.earlier_parents();
        let status = self.manager.status_of(self.kind.runnable_name(name));
        let is_settled = status.is_some_and(|status| {
            status.pending.is_none()
                && matches!(status.state, ControllerState::Running | ControllerState::Waiting)
        });
        if earlier.is_empty() || !is_settled {
            return Ok(());
        }
        let earlier = (&*earlier, FreedParents::All);
        self.free_parents(name, earlier, &mut declared.finalizes, context).await
    }

    /// Frees the parents of a deleted controller, except those that are being deleted.
    pub(super) async fn free_parents_of_deleted(
        &self,
        name: &str,
        declared: &mut DeclaredState,
        context: &Context,
    ) -> Result<(), ReconcileError> {
        let types = declared.finalizes.clone();
        let types = (&*types, FreedParents::NotTerminating);
        self.free_parents(name, types, &mut declared.finalizes, context).await
    }

    /// Frees the parents of a controller that declares no hook any more, once its run has ended.
    pub(super) async fn free_all_parents(
        &self,
        name: &str,
        declared: &mut DeclaredState,
        context: &Context,
    ) -> Result<(), ReconcileError> {
        if self.manager.status_of(self.kind.runnable_name(name)).is_some() {
            return Ok(());
        }
        let types = declared.finalizes.clone();
        let types = (&*types, FreedParents::All);
        self.free_parents(name, types, &mut declared.finalizes, context).await
    }

    /// Returns whether an object of these types that is not being deleted has the finalizer of the
    /// controller, or may have it. Writes nothing.
    ///
    /// # Errors
    ///
    /// If a list fails.
    pub(super) async fn has_parents(
        &self,
        name: &str,
        types: &[TypeRef],
        context: &Context,
    ) -> Result<bool, kube::Error> {
        let finalizer = Finalizer::of(self.kind, name, false);
        for type_ref in types {
            let served = match self.found(type_ref) {
                FoundType::Served(served) => served,
                FoundType::Absent => continue,
                FoundType::Unknown => return Ok(true),
            };
            let mut pages = pin!(self.held(context.client(), &served, &finalizer));
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
    async fn free(
        &self,
        name: &str,
        served: &ServedType,
        which: FreedParents,
        context: &Context,
    ) -> Result<usize, kube::Error> {
        let finalizer = Finalizer::of(self.kind, name, false);
        let (client, mut first_error, mut freed, mut kept) = (context.client(), None, 0, 0);
        let patches = Patches::default();
        let mut pages = pin!(self.held(client, served, &finalizer));
        while let Some(objects) = pages.try_next().await? {
            for object in objects {
                if which == FreedParents::NotTerminating && is_terminating(&object) {
                    kept += 1;
                    self.report_kept(name, served, &object, &finalizer, context);
                    continue;
                }
                let patch = finalizer.removed(object.header());
                let resource = Resource::new(client, served);
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
                self.recorder.publish(context, &subject, Severity::Warning, reason, &text);
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
    fn report_kept(
        &self,
        name: &str,
        served: &ServedType,
        object: &Object,
        finalizer: &Finalizer,
        context: &Context,
    ) {
        let text = format!(
            "Finalizer {} kept: the controller {name} was deleted before it finalized this object; \
             apply the controller again, or run: {}",
            finalizer.name,
            release_command(self.kind, name)
        );
        let subject = subject(served, object);
        self.recorder.publish(context, &subject, Severity::Warning, "FinalizerKept", &text);
    }

    /// Lists the objects of a type that have the finalizer, page by page. An object without
    /// readable metadata has no readable finalizer either.
    fn held(
        &self,
        client: &Client,
        served: &ServedType,
        finalizer: &Finalizer,
    ) -> impl Stream<Item = Result<Vec<Object>, kube::Error>> {
        let first = (Some(ListParams::default().limit(PAGE)), ContinueTokens::default());
        stream::try_unfold(first, move |(parameters, mut tokens)| async move {
            let Some(mut parameters) = parameters else { return Ok(None) };
            let page = self.page(client, served, &parameters).await?;
            let next = tokens.after(&page);
            parameters.continue_token =
                next.map_err(|endless| kube::Error::Service(endless.into()))?;
            let objects = page.items.into_iter().flatten();
            let objects = objects.filter_map(|item| Object::from_json(item.get(), served).ok());
            let held: Vec<_> = objects.filter(|it| finalizer.is_on(it.header())).collect();
            let next = parameters.continue_token.is_some().then_some(parameters);
            Ok::<_, kube::Error>(Some((held, (next, tokens))))
        })
    }

    async fn page(
        &self,
        client: &Client,
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
        resource::send(client, Method::GET, list.uri().to_string(), "", None).await
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
