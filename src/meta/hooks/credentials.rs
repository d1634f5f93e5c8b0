//! Credentials of hooks: reads the Secrets and ConfigMaps that hooks name, and resolves the
//! endpoint of each hook from them. A change takes effect with the next call.
//!
//! The runnable `hook-credentials` owns all watches, one for each object, shared by all hooks that
//! name it. Content that is deleted or becomes unusable is reported. The last usable one of that
//! object stays in use, beside the current one of the others.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use futures::future::BoxFuture;
use k8s_openapi::{ByteString, api::core::v1 as core};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::endpoint::{
    Endpoint, EndpointError, EndpointRule, ObjectContent, ObjectReference, ReferenceKind,
};
use crate::{
    controller::Cluster,
    discovery::TypeRegistry,
    informer::{
        EndReason, InformerKey, InformerProgress, InformerSet, Object, ObjectKey, Subscription,
    },
    kind::{ServedType, TypeRef},
    manager::{
        ControllerName, Epoch, Readiness, Reason, RunResult, Runnable, RunnableGroup,
        UnmetRequirement, Verdict,
    },
};

/// Name of the runnable in the manager.
pub(crate) const HOOK_CREDENTIALS: &str = "hook-credentials";

/// Reason of a condition while an object has not been read yet.
const UNREAD: &str = "HookCredentialsUnread";
/// Reason of a condition on an object that does not exist.
const MISSING: &str = "HookCredentialsMissing";
/// Reason of a condition on an object that cannot be read.
const UNREADABLE: &str = "HookCredentialsUnreadable";
/// Reason of a condition on an object whose content cannot be used.
const INVALID: &str = "HookCredentialsInvalid";

/// Resolves the endpoints of hooks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HookCredentials {
    shared: Arc<SharedCredentials>,
}

struct SharedCredentials {
    types: TypeRegistry,
    informers: InformerSet,
    state: Mutex<CredentialsState>,
    /// Notified when an object is named for the first time, or by no hook any more.
    named: Notify,
}

#[derive(Default)]
struct CredentialsState {
    objects: HashMap<ObjectReference, NamedObject>,
    holders: BTreeMap<u64, Holder>,
    last: u64,
}

/// Object that hooks name.
#[derive(Default)]
struct NamedObject {
    /// Number of its naming: an object that is named again by a later hook is read again.
    naming: u64,
    /// Number of endpoints that read it.
    readers: usize,
    /// Last content that the server has sent.
    content: Option<Arc<ObjectContent>>,
    /// Last content that an endpoint was resolved from.
    usable: Option<Arc<ObjectContent>>,
    /// True once the object was read as missing, until it is read again.
    is_deleted: bool,
    /// Reason why the content is not current.
    problem: Option<EndpointError>,
}

/// Endpoint in use.
struct Holder {
    /// Name of the runnable that calls the hook.
    runnable: ControllerName,
    rule: EndpointRule,
    /// Objects of the rule that the runnable used before. An edit of its hook continues with their
    /// last usable content, where a new controller waits.
    used: HashSet<ObjectReference>,
    endpoint: watch::Sender<Option<Arc<Endpoint>>>,
    verdict: watch::Sender<Verdict>,
    /// Problem that was reported last.
    reported: Option<EndpointError>,
    report: Arc<ProblemReceiver>,
}

/// Receiver of problems. Called without the lock of the state, since it may take other locks.
type ProblemReceiver = dyn Fn(String) + Send + Sync;

/// Problem that is to be reported after the lock was released.
type PendingReport = (Arc<ProblemReceiver>, String);

/// Endpoint of one hook, kept current until it is dropped.
pub(crate) struct HookEndpoint {
    id: u64,
    shared: Arc<SharedCredentials>,
    endpoint: watch::Receiver<Option<Arc<Endpoint>>>,
    verdict: watch::Receiver<Verdict>,
}

impl HookCredentials {
    /// Reads objects through the informers of a cluster.
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let shared = SharedCredentials {
            types: cluster.types.clone(),
            informers: cluster.informers.clone(),
            state: Mutex::default(),
            named: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Keeps the endpoint of a rule of this runnable current. `report` receives each problem of an
    /// endpoint that was usable before; it must not block.
    pub(crate) fn endpoint(
        &self,
        runnable: ControllerName,
        rule: EndpointRule,
        report: impl Fn(String) + Send + Sync + 'static,
    ) -> HookEndpoint {
        let (endpoint, verdict) = (watch::Sender::new(None), watch::Sender::new(unknown()));
        let (endpoints, verdicts) = (endpoint.subscribe(), verdict.subscribe());
        let mut state = self.shared.state.lock();
        state.last += 1;
        let id = state.last;
        for object in rule.references() {
            let new = || NamedObject { naming: id, ..NamedObject::default() };
            state.objects.entry(object.clone()).or_insert_with(new).readers += 1;
        }
        let report = Arc::new(report);
        let is_used = |object: &ObjectReference| {
            state.holders.values().any(|holder| {
                holder.runnable == runnable
                    && holder.endpoint.borrow().is_some()
                    && holder.rule.references().any(|one| one == object)
            })
        };
        let used = rule.references().filter(|object| is_used(object)).cloned().collect();
        let reported = None;
        let mut holder = Holder { runnable, rule, used, endpoint, verdict, reported, report };
        let pending = holder.resolve(&mut state.objects);
        state.holders.insert(id, holder);
        drop(state);
        send(pending);
        self.shared.named.notify_one();
        HookEndpoint {
            id,
            shared: Arc::clone(&self.shared),
            endpoint: endpoints,
            verdict: verdicts,
        }
    }
}

impl HookEndpoint {
    /// Returns the endpoint; `None` until all of its objects have been read.
    pub(crate) fn current(&self) -> Option<Arc<Endpoint>> {
        self.endpoint.borrow().clone()
    }

    /// Returns the condition that the endpoint was usable once.
    pub(crate) fn ready(&self) -> Readiness {
        Readiness::published(self.verdict.clone())
    }
}

impl Drop for HookEndpoint {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let Some(holder) = state.holders.remove(&self.id) else { return };
        for object in holder.rule.references() {
            if let Some(named) = state.objects.get_mut(object) {
                named.readers -= 1;
                if named.readers == 0 {
                    state.objects.remove(object);
                }
            }
        }
        drop(state);
        self.shared.named.notify_one();
    }
}

impl Holder {
    /// Publishes the endpoint that follows from the objects. Returns a problem to report.
    fn resolve(
        &mut self,
        objects: &mut HashMap<ObjectReference, NamedObject>,
    ) -> Option<PendingReport> {
        let read = |object: &ObjectReference| {
            let unread = || EndpointError::Unread(object.clone());
            let named = objects.get(object).ok_or_else(unread)?;
            let problem = || named.problem.clone().unwrap_or_else(unread);
            // The content of a deleted object is kept for its users.
            let content =
                named.content.as_deref().filter(|_| !named.is_deleted || self.uses(object));
            content.ok_or_else(problem)
        };
        let problem = match self.rule.resolve(read) {
            Ok(endpoint) => {
                for object in self.rule.references() {
                    if let Some(named) = objects.get_mut(object) {
                        named.usable.clone_from(&named.content);
                    }
                }
                self.publish(endpoint);
                let stale = self.rule.references().filter_map(|object| objects.get(object));
                stale.filter_map(|named| named.problem.clone()).next()
            }
            Err(problem) => {
                if let Some(endpoint) = self.resolve_each(objects) {
                    self.publish(endpoint);
                }
                Some(problem)
            }
        };
        if self.endpoint.borrow().is_none() {
            self.verdict.send_replace(match problem {
                None | Some(EndpointError::Unread(_)) => unknown(),
                Some(problem @ EndpointError::Unreadable(..)) => {
                    Verdict::Unknown(vec![unmet(&problem)])
                }
                Some(problem @ (EndpointError::Missing(_) | EndpointError::Invalid(_))) => {
                    Verdict::Unmet(vec![unmet(&problem)])
                }
            });
        } else if problem != self.reported {
            self.reported = problem;
            let message = |problem| format!("the last usable content stays in use: {problem}");
            let message = self.reported.as_ref().map(message)?;
            return Some((Arc::clone(&self.report), message));
        }
        None
    }

    /// Returns whether the runnable has used an object.
    fn uses(&self, object: &ObjectReference) -> bool {
        self.endpoint.borrow().is_some() || self.used.contains(object)
    }

    /// Returns the endpoint from the last usable content of each object in use, and from the current
    /// one where that is usable beside the others. An object that is not in use yet has its current
    /// content alone. `None` if that makes no endpoint.
    fn resolve_each(
        &self,
        objects: &mut HashMap<ObjectReference, NamedObject>,
    ) -> Option<Endpoint> {
        let usable = |object: &ObjectReference| {
            let named = objects.get(object)?;
            let content = match self.uses(object) {
                true => named.usable.as_ref(),
                false => named.content.as_ref().filter(|_| !named.is_deleted),
            };
            Some((object.clone(), Arc::clone(content?)))
        };
        let mut contents: HashMap<_, _> = self.rule.references().filter_map(usable).collect();
        let resolve = |contents: &HashMap<ObjectReference, Arc<ObjectContent>>| {
            let read = |object: &ObjectReference| {
                let content = contents.get(object).map(|content| &**content);
                content.ok_or_else(|| EndpointError::Unread(object.clone()))
            };
            self.rule.resolve(read).ok()
        };
        let mut endpoint = resolve(&contents)?;
        for object in self.rule.references() {
            let Some(named) = objects.get_mut(object) else { continue };
            let Some(current) = named.content.clone() else { continue };
            let before = contents.insert(object.clone(), Arc::clone(&current));
            if let Some(new) = resolve(&contents) {
                (endpoint, named.usable) = (new, Some(current));
            } else if let Some(before) = before {
                contents.insert(object.clone(), before);
            }
        }
        Some(endpoint)
    }

    /// Publishes an endpoint if it differs: its connections would be opened again.
    fn publish(&self, endpoint: Endpoint) {
        self.endpoint.send_if_modified(|current| {
            let is_news = current.as_ref().is_none_or(|current| !current.is_same(&endpoint));
            if is_news {
                *current = Some(Arc::new(endpoint));
            }
            is_news
        });
        self.verdict.send_if_modified(|verdict| {
            let is_news = !matches!(verdict, Verdict::Met(_));
            *verdict = Verdict::Met(Vec::new());
            is_news
        });
    }
}

/// Sends the problems to their receivers.
fn send(pending: impl IntoIterator<Item = PendingReport>) {
    for (report, message) in pending {
        report(message);
    }
}

impl SharedCredentials {
    /// Returns the objects that hooks name now, with the number of their naming.
    fn namings(&self) -> HashSet<(ObjectReference, u64)> {
        let state = self.state.lock();
        state.objects.iter().map(|(object, named)| (object.clone(), named.naming)).collect()
    }

    /// Records the state of an object, and resolves the endpoints that read it.
    fn read(&self, object: &ObjectReference, read: Result<Arc<ObjectContent>, EndpointError>) {
        let mut state = self.state.lock();
        let CredentialsState { objects, holders, .. } = &mut *state;
        let Some(named) = objects.get_mut(object) else { return };
        match read {
            Ok(content) => {
                (named.content, named.problem) = (Some(content), None);
                named.is_deleted = false;
            }
            Err(problem) => {
                named.is_deleted |= matches!(problem, EndpointError::Missing(_));
                named.problem = Some(problem);
            }
        }
        let mut pending = Vec::new();
        for holder in holders.values_mut() {
            if holder.rule.references().any(|one| one == object) {
                pending.extend(holder.resolve(objects));
            }
        }
        drop(state);
        send(pending);
    }

    /// Follows one object until it is cancelled or the informers are shut down.
    async fn follow(self: Arc<Self>, object: ObjectReference) {
        let type_ref = match object.kind {
            ReferenceKind::Secret => TypeRef::of::<core::Secret>(),
            ReferenceKind::ConfigMap => TypeRef::of::<core::ConfigMap>(),
        };
        let mut status = self.types.subscribe(&type_ref);
        loop {
            if status.wait_for(|status| status.served.is_some()).await.is_err() {
                return;
            }
            let Some(served) = self.types.served(&type_ref) else { continue };
            let subscription = self.informers.subscribe(&served, key_of(&object, &served));
            match self.deliver(&object, subscription).await {
                EndReason::Shutdown => return,
                EndReason::Released | EndReason::TypeGone | EndReason::Panicked(_) => {}
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    /// Records each change of an object until its informer ends.
    async fn deliver(&self, object: &ObjectReference, mut subscription: Subscription) -> EndReason {
        let (mut progress, complete) = (subscription.progress(), subscription.complete());
        tokio::pin!(complete);
        let store = subscription.store();
        let key = ObjectKey::namespaced(Arc::clone(&object.namespace), Arc::clone(&object.name));
        let (mut is_complete, mut is_forbidden) = (false, false);
        loop {
            tokio::select! {
                biased;
                delta = subscription.next() => match delta {
                    Err(ended) => return ended,
                    Ok(delta) if delta.key.name == object.name => {
                        self.read(object, content_of(object, delta.new.as_ref()));
                    }
                    Ok(_) => {}
                },
                () = &mut complete, if !is_complete => {
                    is_complete = true;
                    if store.is_empty() {
                        self.read(object, content_of(object, None));
                    }
                }
                Ok(()) = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    match now {
                        InformerProgress::Forbidden(why) => {
                            is_forbidden = true;
                            self.read(object, Err(EndpointError::Unreadable(object.clone(), why)));
                        }
                        // An object that has not changed meanwhile is not delivered again.
                        InformerProgress::Synced | InformerProgress::Polled if is_forbidden => {
                            is_forbidden = false;
                            self.read(object, content_of(object, store.get(&key).as_ref()));
                        }
                        InformerProgress::Syncing(_)
                        | InformerProgress::Synced
                        | InformerProgress::Polled
                        | InformerProgress::Stale(_)
                        | InformerProgress::ConversionFailed(_)
                        | InformerProgress::Ended(_) => {}
                    }
                }
            }
        }
    }
}

impl Runnable for HookCredentials {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let mut followed: HashMap<(ObjectReference, u64), CancellationToken> = HashMap::new();
            let mut tasks = JoinSet::new();
            loop {
                let named = shared.namings();
                followed.retain(|naming, token| {
                    let is_kept = named.contains(naming);
                    if !is_kept {
                        token.cancel();
                    }
                    is_kept
                });
                for naming in named {
                    followed.entry(naming).or_insert_with_key(|(object, _)| {
                        let token = CancellationToken::new();
                        let follow = Arc::clone(&shared).follow(object.clone());
                        tasks.spawn(token.clone().run_until_cancelled_owned(follow));
                        token
                    });
                }
                tokio::select! {
                    _reason = epoch.stopping() => break,
                    () = shared.named.notified() => {}
                    Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                        if let Err(error) = ended {
                            let error = crate::redaction::error(&error);
                            warn!(%error, "watching the credentials of a hook panicked");
                        }
                    }
                }
            }
            tasks.shutdown().await;
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Caches
    }
}

fn key_of(object: &ObjectReference, served: &ServedType) -> InformerKey {
    InformerKey {
        namespace: Some(Arc::clone(&object.namespace)),
        fields: Some(format!("metadata.name={}", object.name).into()),
        ..InformerKey::new(served.identity.clone())
    }
}

/// Returns the content of an object; of a ConfigMap, the texts too.
fn content_of(
    reference: &ObjectReference,
    object: Option<&Object>,
) -> Result<Arc<ObjectContent>, EndpointError> {
    #[derive(Deserialize)]
    struct Secret {
        #[serde(default)]
        data: Option<BTreeMap<String, ByteString>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ConfigMap {
        #[serde(default)]
        data: Option<BTreeMap<String, String>>,
        #[serde(default)]
        binary_data: Option<BTreeMap<String, ByteString>>,
    }
    let Some(object) = object else { return Err(EndpointError::Missing(reference.clone())) };
    let unreadable = |error: serde_json::Error| {
        EndpointError::Unreadable(reference.clone(), crate::redaction::decoding(error))
    };
    let bytes = |data: Option<BTreeMap<String, ByteString>>| {
        data.into_iter().flatten().map(|(key, value)| (key, value.0))
    };
    let content = match reference.kind {
        ReferenceKind::Secret => {
            bytes(object.decode::<Secret>().map_err(unreadable)?.data).collect()
        }
        ReferenceKind::ConfigMap => {
            let ConfigMap { data, binary_data } = object.decode().map_err(unreadable)?;
            let texts = data.into_iter().flatten();
            let texts = texts.map(|(key, value)| (key, value.into_bytes()));
            texts.chain(bytes(binary_data)).collect()
        }
    };
    Ok(Arc::new(content))
}

/// Returns whether a reason is that of credentials which a person has to correct.
pub(crate) fn needs_a_person(reason: &Reason) -> bool {
    [MISSING, UNREADABLE, INVALID].contains(&reason.as_str())
}

fn unknown() -> Verdict {
    Verdict::Unknown(vec![UnmetRequirement {
        reason: Reason::from(UNREAD),
        message: "the credentials of its hook have not been read yet".to_owned(),
        type_ref: None,
    }])
}

fn unmet(problem: &EndpointError) -> UnmetRequirement {
    let reason = match problem {
        EndpointError::Unread(_) => UNREAD,
        EndpointError::Missing(_) => MISSING,
        EndpointError::Unreadable(..) => UNREADABLE,
        EndpointError::Invalid(_) => INVALID,
    };
    UnmetRequirement { reason: Reason::from(reason), message: problem.to_string(), type_ref: None }
}

impl fmt::Debug for HookCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookCredentials").finish_non_exhaustive()
    }
}

impl fmt::Debug for HookEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookEndpoint").field("verdict", &*self.verdict.borrow()).finish()
    }
}

#[cfg(test)]
mod tests;
