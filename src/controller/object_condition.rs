//! Condition on the state of one object, which is watched.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::core::DynamicObject;
use tokio::{select, sync::watch, time::timeout};

use super::Cluster;
use crate::{
    guard,
    informer::{InformerKey, InformerProgress, Object, ObjectKey},
    kind::{Scope, TypeRef},
    manager::{
        AddError, Condition, ConditionalRunnable, ControllerName, Epoch, Manager, ManagerHandle,
        Readiness, Reason, RunResult, Runnable, RunnableGroup, UnmetRequirement, Verdict, all_of,
        publish, type_served,
    },
};

/// Time for the manager to stop an epoch whose type is gone, before the epoch ends by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Condition that is met while one object passes a check.
///
/// The condition is unmet while the object's type is not served, and unknown while the object cannot be read.
/// The condition is a runnable too, which watches the object: add it to the manager once, by
/// [`ObjectCondition::add_to`]. Cheap to clone.
///
/// ```no_run
/// # use pilotlight::{controller::*, kind::TypeRef, informer::ObjectKey, manager::*};
/// # fn example(cluster: Cluster, manager: &mut Manager, builder: Builder) -> Result<(), AddError> {
/// let metrics = ObjectCondition::api_service(&cluster, "v1beta1.metrics.k8s.io");
/// metrics.add_to(manager)?;
/// let switch = ObjectCondition::new(
///     &cluster,
///     TypeRef::kind("", "v1", "ConfigMap"),
///     ObjectKey::namespaced("ops", "switches"),
///     |switches| switches.header().labels.get("autoscaling") == Some("on"),
/// );
/// switch.add_to(manager)?;
/// let builder = builder.when(metrics).when(switch);
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ObjectCondition {
    cluster: Cluster,
    type_ref: TypeRef,
    key: ObjectKey,
    check: Arc<ObjectCheck>,
    verdicts: watch::Sender<Verdict>,
}

/// Function that returns whether an object, `None` if it does not exist, meets the condition.
type ObjectCheck = dyn Fn(Option<&Object>) -> bool + Send + Sync;

impl ObjectCondition {
    /// Returns a condition on the object of this type and name. Starts nothing.
    pub fn new(
        cluster: &Cluster,
        type_ref: impl Into<TypeRef>,
        key: ObjectKey,
        check: impl Fn(&Object) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::optional(cluster, type_ref, key, move |object| object.is_some_and(&check))
    }

    /// Returns a condition like [`ObjectCondition::new`], whose check is called with `None` while
    /// the object does not exist.
    pub fn optional(
        cluster: &Cluster,
        type_ref: impl Into<TypeRef>,
        key: ObjectKey,
        check: impl Fn(Option<&Object>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (cluster, type_ref, check) = (cluster.clone(), type_ref.into(), Arc::new(check));
        let not_read = "was not read yet: call ObjectCondition::add_to";
        let verdicts = watch::Sender::new(Verdict::Unknown(Vec::new()));
        let condition = Self { cluster, type_ref, key, check, verdicts };
        condition.verdicts.send_replace(condition.unknown(not_read));
        condition
    }

    /// Returns a condition on an APIService that is available, such as `v1beta1.metrics.k8s.io`.
    pub fn api_service(cluster: &Cluster, name: impl Into<Arc<str>>) -> Self {
        let services = TypeRef::kind("apiregistration.k8s.io", "v1", "APIService");
        Self::new(cluster, services, ObjectKey::cluster(name), |service| {
            let Ok(service) = service.decode::<DynamicObject>() else { return false };
            let conditions = service.data["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Available" && condition["status"] == "True")
        })
    }

    /// Returns a condition on a label of a CRD, such as `widgets.example.com`.
    pub fn crd_label(
        cluster: &Cluster,
        crd: impl Into<Arc<str>>,
        label: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        let crds = TypeRef::kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let (label, value) = (label.into(), value.into());
        Self::new(cluster, crds, ObjectKey::cluster(crd), move |crd| {
            crd.header().labels.get(&label) == Some(&*value)
        })
    }

    /// Adds the condition to a manager that does not run yet, with default options. Its name has
    /// the object, and a number if several conditions are on the same one. Returns that
    /// name, under which [`ManagerHandle::remove`] removes it.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_to(&self, manager: &mut Manager) -> Result<ControllerName, AddError> {
        manager.add_numbered(&self.name(), Arc::new(self.clone()))
    }

    /// Adds the condition by a handle of a manager that may run already, as
    /// [`ObjectCondition::add_to`].
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, it may or may not have been added.
    pub async fn add_to_running(
        &self,
        manager: &ManagerHandle,
    ) -> Result<ControllerName, AddError> {
        manager.add_numbered(&self.name(), Arc::new(self.clone())).await
    }

    fn name(&self) -> String {
        format!("state of {}", self.describe())
    }

    fn describe(&self) -> String {
        format!("{} of {}", self.key, self.type_ref)
    }

    fn unknown(&self, message: &str) -> Verdict {
        let message = format!("{} {message}", self.describe());
        Verdict::Unknown(vec![UnmetRequirement {
            reason: Reason::ConditionUnknown,
            message,
            type_ref: None,
        }])
    }

    fn unread(&self, error: &str) -> Verdict {
        self.unknown(&format!("cannot be read: {error}"))
    }

    fn judge(&self, object: Option<&Object>) -> Verdict {
        let unmet = |message: &str| {
            let message = format!("{} {message}", self.describe());
            Verdict::Unmet(vec![UnmetRequirement {
                reason: Reason::ObjectStateUnmet,
                message,
                type_ref: None,
            }])
        };
        match guard::run(|| (self.check)(object)) {
            Ok(true) => Verdict::Met(Vec::new()),
            Ok(false) if object.is_none() => unmet("does not exist"),
            Ok(false) => unmet("is not in the required state"),
            Err(panic) => self.unknown(&format!("cannot be judged: the check panicked: {panic}")),
        }
    }

    #[cfg(test)]
    pub(super) fn verdict(&self) -> Verdict {
        self.verdicts.borrow().clone()
    }

    /// Publishes the state of the object until its informer ends.
    async fn follow(&self) {
        let Some(served) = self.cluster.types.served(&self.type_ref) else { return };
        let mut key = InformerKey::new(served.identity.clone());
        if served.identity.scope == Scope::Namespaced {
            key.namespace.clone_from(&self.key.namespace);
        }
        key.fields = Some(format!("metadata.name={}", self.key.name).into());
        let mut subscription = self.cluster.informers.subscribe(&served, key);
        let mut progress = subscription.progress();
        publish(&self.verdicts, self.unknown("is being read"));
        // True once this run has read the object.
        let mut is_read = false;
        loop {
            // Judged after each change of the watch too: one that recovers need not deliver a
            // change of the object.
            let verdict = match &*progress.borrow_and_update() {
                InformerProgress::Synced | InformerProgress::Polled => {
                    is_read = true;
                    Some(self.judge(subscription.store().get(&self.key).as_ref()))
                }
                InformerProgress::Forbidden(error) => {
                    Some(self.unknown(&format!("may not be read: {error}")))
                }
                InformerProgress::ConversionFailed(error) => Some(self.unread(error)),
                InformerProgress::Syncing(Some(error)) | InformerProgress::Stale(error)
                    if !is_read =>
                {
                    Some(self.unread(error))
                }
                // The last verdict holds while the watch is down.
                InformerProgress::Syncing(_) | InformerProgress::Stale(_) => None,
                InformerProgress::Ended(_) => return,
            };
            verdict.into_iter().for_each(|verdict| publish(&self.verdicts, verdict));
            select! {
                changed = progress.changed() => if changed.is_err() {
                    return;
                },
                delta = subscription.next() => if delta.is_err() {
                    return;
                },
            }
        }
    }
}

impl Condition for ObjectCondition {
    fn watch(&self) -> Readiness {
        let served = type_served(&self.cluster.types, &self.type_ref);
        all_of([served, Readiness::published(self.verdicts.subscribe())])
    }
}

impl Runnable for ObjectCondition {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let own = self.clone();
        Box::pin(async move {
            select! {
                _ = epoch.stopping() => {}
                () = own.follow() => {}
            }
            publish(&own.verdicts, own.unknown("is not watched"));
            // If the type is gone, the manager is about to stop the epoch: that is no end to back
            // off from.
            if timeout(STOP_TIMEOUT, epoch.stopping()).await.is_err() {
                epoch.record_end(None);
            }
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Others
    }
}

impl ConditionalRunnable for ObjectCondition {
    fn ready(&self) -> Readiness {
        type_served(&self.cluster.types, &self.type_ref)
    }
}

impl fmt::Debug for ObjectCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectCondition").field(&self.describe()).finish()
    }
}
