//! Condition on a permission: an access review, which is requested again on a timer and after a 403.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::{
    select,
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::Cluster;
use crate::{
    manager::{
        AddError, Condition, ConditionalRunnable, ControllerName, Epoch, Manager, ManagerHandle,
        Readiness, Reason, RunResult, Runnable, RunnableGroup, UnmetRequirement, Verdict, always,
        publish, request_json,
    },
    redaction,
};

/// Interval between two reviews.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a review, in which further refusals lead to no other, and before a failed one is
/// repeated.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for the response of a review: a client may have no deadline of its own.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);

/// Condition that is met while the process has a permission, by a `SelfSubjectAccessReview`.
///
/// The review is repeated once a minute, and when a reconcile of a controller with this condition
/// ends with a 403. Only controllers that declare it stop when the permission is withdrawn, after
/// two denials in a row, five seconds apart; a review without a response leaves them running. The
/// condition is a runnable too, which sends the reviews: add it to the manager once, by
/// [`Permission::add_to`]. Cheap to clone.
///
/// ```no_run
/// # use pilotlight::{controller::*, manager::*};
/// # async fn example(cluster: Cluster, manager: &mut Manager, builder: Builder) -> Result<(), AddError> {
/// let may_create = Permission::new(&cluster, "create", "apps", "deployments").namespace("prod");
/// may_create.add_to(manager)?;
/// let builder = builder.when(may_create);
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Permission {
    client: PermissionClient,
    verb: Arc<str>,
    group: Arc<str>,
    resource: Arc<str>,
    namespace: Option<Arc<str>>,
    interval: Duration,
    verdicts: watch::Sender<Verdict>,
    refused: Arc<Notify>,
}

#[derive(Clone)]
struct PermissionClient(Client);

/// Result of the reviews so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastReview {
    /// Denied, or without a response yet.
    #[default]
    NotGranted,
    Granted,
    /// Denied once since it was granted.
    DeniedOnce,
}

impl Permission {
    /// Returns a condition on a verb for a resource, such as `deployments` or
    /// `deployments/status`; in all namespaces, if the resource is namespaced.
    pub fn new(
        cluster: &Cluster,
        verb: impl Into<Arc<str>>,
        group: impl Into<Arc<str>>,
        resource: impl Into<Arc<str>>,
    ) -> Self {
        let not_requested = "the permission was not requested yet: call Permission::add_to";
        Self {
            client: PermissionClient(cluster.unfenced_client().clone()),
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            namespace: None,
            interval: INTERVAL,
            verdicts: watch::Sender::new(Verdict::Unknown(requirement(
                Reason::ConditionUnknown,
                not_requested,
            ))),
            refused: Arc::default(),
        }
    }

    /// Restricts the permission to one namespace.
    #[must_use]
    pub fn namespace(self, namespace: impl Into<Arc<str>>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Sets the interval between two reviews: 60 s by default, 5 s at least.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Adds the condition to a manager that does not run yet, with default options. Its name has
    /// the permission, and a number if several conditions are on the same one. Returns that
    /// name, under which [`ManagerHandle::remove`] removes it.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`].
    pub fn add_to(&self, manager: &mut Manager) -> Result<ControllerName, AddError> {
        manager.add_numbered(&self.describe(), Arc::new(self.clone()))
    }

    /// Adds the condition by a handle of a manager that may run already, as [`Permission::add_to`].
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
        manager.add_numbered(&self.describe(), Arc::new(self.clone())).await
    }

    fn describe(&self) -> String {
        let Self { verb, group, resource, namespace, .. } = self;
        let scope = namespace.iter().map(|namespace| format!(" in {namespace}"));
        let dot = if group.is_empty() { "" } else { "." };
        format!("permission to {verb} {resource}{dot}{group}{}", scope.collect::<String>())
    }

    /// Reviews the permission once, and returns the verdict.
    async fn review(&self, client: &Client) -> Verdict {
        let unknown = |error: String| {
            let message = format!("the review of a permission failed: {error}");
            Verdict::Unknown(requirement(Reason::ConditionUnknown, &message))
        };
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, subresource),
            None => (&*self.resource, ""),
        };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": &*self.verb, "group": &*self.group, "resource": resource,
                "subresource": subresource, "namespace": self.namespace.as_deref().unwrap_or(""),
            } },
        });
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes());
        let request = match request {
            Ok(request) => request,
            Err(error) => return unknown(error.to_string()),
        };
        let response: Value = match timeout(REVIEW_TIMEOUT, request_json(client, request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return unknown(redaction::request_error(&error)),
            Err(_) => return unknown(format!("no response within {REVIEW_TIMEOUT:?}")),
        };
        match (&response["status"]["allowed"], response["status"]["evaluationError"].as_str()) {
            (Value::Bool(true), _) => Verdict::Met(Vec::new()),
            (_, Some(error)) if !error.is_empty() => unknown(error.to_owned()),
            (Value::Bool(false), _) => {
                let scope = match &self.namespace {
                    Some(namespace) => format!(" in the namespace {namespace}"),
                    None => String::new(),
                };
                let Self { verb, group, resource, .. } = self;
                let message = format!("not allowed to {verb} {resource} of group {group:?}{scope}");
                Verdict::Unmet(requirement(Reason::Forbidden, &message))
            }
            _ => unknown("its response has no status".to_owned()),
        }
    }
}

impl LastReview {
    /// Returns the verdict after a further review.
    ///
    /// An API server that starts denies everything until it has read its roles. So a denial after a
    /// grant counts once the next review, a pause later, is a denial too.
    fn judge(&mut self, review: Verdict) -> Verdict {
        let (last, verdict) = match (review, *self) {
            (Verdict::Met(basis), _) => (Self::Granted, Verdict::Met(basis)),
            (Verdict::Unmet(mut why), Self::Granted) => {
                for unmet in &mut why {
                    unmet.message += ", by one review; asking again";
                }
                (Self::DeniedOnce, Verdict::Unknown(why))
            }
            (Verdict::Unmet(why), Self::DeniedOnce | Self::NotGranted) => {
                (Self::NotGranted, Verdict::Unmet(why))
            }
            (Verdict::Unknown(why), Self::Granted | Self::DeniedOnce) => {
                (Self::Granted, Verdict::Unknown(why))
            }
            (Verdict::Unknown(why), Self::NotGranted) => (Self::NotGranted, Verdict::Unknown(why)),
        };
        *self = last;
        verdict
    }
}

fn requirement(reason: Reason, message: &str) -> Vec<UnmetRequirement> {
    vec![UnmetRequirement { reason, message: message.to_owned(), type_ref: None }]
}

impl Condition for Permission {
    fn watch(&self) -> Readiness {
        let refused = Arc::clone(&self.refused);
        let readiness = Readiness::published(self.verdicts.subscribe());
        readiness.on_refused(move || refused.notify_one())
    }
}

impl Runnable for Permission {
    fn start(&self, epoch: Epoch) -> BoxFuture<'static, RunResult> {
        let own = self.clone();
        Box::pin(async move {
            let client = epoch.client(&own.client.0);
            let mut last = LastReview::default();
            let reviews = async {
                loop {
                    let verdict = last.judge(own.review(&client).await);
                    let wait = match verdict {
                        Verdict::Unknown(_) => PAUSE,
                        Verdict::Met(_) | Verdict::Unmet(_) => own.interval.max(PAUSE),
                    };
                    publish(&own.verdicts, verdict);
                    select! {
                        () = sleep(wait) => {}
                        () = async {
                            sleep(PAUSE).await;
                            own.refused.notified().await;
                        } => {}
                    }
                }
            };
            select! {
                _ = epoch.stopping() => {}
                () = reviews => {}
            }
            let message = "the permission is no longer requested";
            publish(
                &own.verdicts,
                Verdict::Unknown(requirement(Reason::ConditionUnknown, message)),
            );
            Ok(())
        })
    }

    fn group(&self) -> RunnableGroup {
        RunnableGroup::Others
    }
}

impl ConditionalRunnable for Permission {
    fn ready(&self) -> Readiness {
        always()
    }
}

impl std::fmt::Debug for PermissionClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PermissionClient")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_after_a_grant_counts_once_the_next_review_denies_too() {
        let met = || Verdict::Met(Vec::new());
        let denied = || Verdict::Unmet(requirement(Reason::Forbidden, "no"));
        let failed = || Verdict::Unknown(requirement(Reason::ConditionUnknown, "down"));
        let words = |reviews: Vec<Verdict>| {
            let mut last = LastReview::default();
            let judged = reviews.into_iter().map(|review| match last.judge(review) {
                Verdict::Met(_) => "met",
                Verdict::Unmet(_) => "unmet",
                Verdict::Unknown(_) => "unknown",
            });
            judged.collect::<Vec<_>>()
        };

        assert_eq!(words(vec![denied(), met()]), ["unmet", "met"]);
        assert_eq!(words(vec![failed(), denied()]), ["unknown", "unmet"]);
        assert_eq!(
            words(vec![met(), denied(), met(), denied(), denied(), denied()]),
            ["met", "unknown", "met", "unknown", "unmet", "unmet"]
        );
        // A server that restarts first fails, and then denies.
        assert_eq!(
            words(vec![met(), failed(), denied(), failed(), denied(), met()]),
            ["met", "unknown", "unknown", "unknown", "unknown", "met"]
        );
        assert_eq!(
            words(vec![met(), denied(), denied(), failed(), denied()]),
            ["met", "unknown", "unmet", "unknown", "unmet"]
        );
    }
}
