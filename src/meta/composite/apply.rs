//! Executes the plan for the children of one parent.

use serde_json::value::RawValue;

use super::{
    Composite, SyncError,
    dry_run_create::dry_run_create,
    dry_run_update::{DryRunUpdate, dry_run_update},
    sync_error::CONFLICTS_BEFORE_ERROR,
};
use crate::{
    controller::Context,
    informer::ObjectKey,
    meta::{
        Selector,
        children::{Desired, Parent, Planned, Rules, Step, Write},
        protocol::bounded,
        resource::{Resource, Stored, is_already_there, is_conflict, is_gone},
    },
};

/// Number of failures that a message names, since all of 10,000 children may fail.
const FAILURES: usize = 8;

impl Composite {
    /// Applies the desired children. A failure of one child does not stop the others. Returns
    /// whether all children are as desired, without a write or a dry run, and without one that the
    /// limit holds back.
    pub(super) async fn execute(
        &self,
        rules: &Rules<'_>,
        desired: Vec<Desired>,
        context: &Context,
    ) -> Result<bool, SyncError> {
        let mut failed = Failures::default();
        let mut behind = None;
        let mut as_desired = true;
        for planned in rules.plan(desired) {
            if context.is_cancelled() {
                return Err(SyncError::Cancelled);
            }
            match self.write_child(rules, planned, context).await {
                Ok(is_as_desired) => as_desired &= is_as_desired,
                Err(SyncError::Behind(message)) => behind = Some(message),
                Err(SyncError::Failed(message)) => failed.push(message),
                // The other requests would be refused as well, and add to the load.
                Err(
                    other @ (SyncError::Throttled { .. }
                    | SyncError::Cancelled
                    | SyncError::Busy(_)
                    | SyncError::HookDown(_)
                    | SyncError::TooDeep(_)
                    | SyncError::Hook(_)),
                ) => return Err(other),
            }
        }
        match (failed.text(), behind) {
            (Some(text), _) => Err(SyncError::Failed(text)),
            (None, Some(message)) => Err(SyncError::Behind(message)),
            (None, None) => Ok(as_desired),
        }
    }

    /// Writes one child, unless it is in its desired state or its writes are limited. Returns whether
    /// it was in its desired state.
    async fn write_child(
        &self,
        rules: &Rules<'_>,
        planned: Planned<'_>,
        context: &Context,
    ) -> Result<bool, SyncError> {
        let parent = rules.parent;
        let (group, key) = planned.target();
        let (served, key) = (&rules.groups[group].served, &key.clone());
        let step = {
            let _permit = self.budget.decode_permit(planned.size()).await;
            rules.step(planned).map_err(SyncError::Failed)?
        };
        let Some(step) = step else { return Ok(true) };
        let what = format!("{} {key}", served.kind);
        // Deletions are not limited.
        let is_limited = !matches!(step, Step::Delete { .. });
        if is_limited && !self.parents.writes.may_write(&parent.key, &what) {
            return Ok(false);
        }
        let resource = Resource::new(context.client(), served);
        let (verb, result) = match &step {
            Step::Delete { uid, .. } => {
                ("deleting", resource.delete(key, uid).await.map(|()| false))
            }
            Step::Recreate { uid, created, observed, merged } => {
                let answer = resource.dry_run_update(key, merged.clone()).await;
                if !differs(observed, &answer, &what, context.attempt())? {
                    return Ok(false);
                }
                dry_run_create(&resource, served, created).await?;
                ("replacing", resource.delete(key, uid).await.map(|()| false))
            }
            Step::Create(Write { body, .. }) => {
                ("creating", resource.create(key, body.clone()).await.map(|_| true))
            }
            Step::Update(Write { body, replaces, .. }) => {
                // The server may store an equal value: `0.5` and `500m` are one quantity.
                let changed = |stored: Stored| stored.version() != replaces.as_deref();
                ("updating", resource.update(key, body.clone()).await.map(changed))
            }
        };
        let error = match result {
            Ok(changed) => {
                tracing::debug!(kind = %served.kind, name = %key, verb, "child written");
                if changed {
                    self.parents.writes.wrote(&parent.key, what);
                }
                return Ok(false);
            }
            Err(error) => error,
        };
        let doing = format!("{verb} {what}");
        let (gone, conflict) = (is_gone(&error), is_conflict(&error));
        Err(match step {
            // Deleted already, or replaced by another object of that name.
            Step::Delete { .. } | Step::Recreate { .. } if gone || conflict => {
                return Ok(false);
            }
            _ if is_already_there(&error) => {
                explain_existing(parent, rules.selector, &resource, key, &doing).await
            }
            Step::Update(_) if gone => {
                SyncError::Behind(format!("{doing}: the object no longer exists"))
            }
            Step::Update(_) if conflict => {
                self.parents.writes.conflicted(&parent.key, &what);
                let error = SyncError::of_write(&doing, &error);
                with_other_writer(error, &resource, key, context.attempt()).await
            }
            Step::Delete { .. } | Step::Recreate { .. } | Step::Create(_) | Step::Update(_) => {
                SyncError::of_write(&doing, &error)
            }
        })
    }
}

/// Returns whether the server would store another object than the observed one, from the answer to
/// a dry run.
fn differs(
    observed: &[u8],
    answer: &Result<Box<RawValue>, kube::Error>,
    what: &str,
    attempt: u32,
) -> Result<bool, SyncError> {
    match dry_run_update(observed, answer) {
        DryRunUpdate::Unchanged => Ok(false),
        DryRunUpdate::Cancelled => Err(SyncError::Cancelled),
        DryRunUpdate::Throttled(after) => {
            let message = format!("comparing {what}: the API server throttles requests");
            Err(SyncError::Throttled { message, after })
        }
        // A cache that never catches up must not block a replacement for ever.
        DryRunUpdate::Conflict if attempt < CONFLICTS_BEFORE_ERROR => {
            Err(SyncError::Behind(format!("comparing {what}: the cache is behind")))
        }
        DryRunUpdate::Conflict | DryRunUpdate::Changed => Ok(true),
    }
}

/// Failures of the children of one parent: the first messages, and the number of others.
#[derive(Debug, Default)]
struct Failures {
    first: Vec<String>,
    more: usize,
}

impl Failures {
    fn push(&mut self, message: String) {
        if self.first.len() < FAILURES {
            self.first.push(bounded(message));
        } else {
            self.more += 1;
        }
    }

    fn text(&self) -> Option<String> {
        let text = self.first.join("; ");
        match (self.first.is_empty(), self.more) {
            (true, _) => None,
            (false, 0) => Some(text),
            (false, more) => Some(format!("{text}; and {more} more")),
        }
    }
}

/// Adds the field manager that keeps writing the object, if the server names one. Only a conflict
/// that is about to be reported is worth this request.
async fn with_other_writer(
    error: SyncError,
    resource: &Resource<'_>,
    key: &ObjectKey,
    attempt: u32,
) -> SyncError {
    if attempt < CONFLICTS_BEFORE_ERROR {
        return error;
    }
    let SyncError::Behind(message) = error else { return error };
    let live = resource.get(key).await.ok();
    SyncError::Behind(match live.and_then(|live| live.other_writer()) {
        Some(writer) => format!("{message}; {writer} keeps writing it"),
        None => message,
    })
}

/// Returns why an object exists that was to be created.
async fn explain_existing(
    parent: &Parent,
    selector: &Selector,
    resource: &Resource<'_>,
    key: &ObjectKey,
    doing: &str,
) -> SyncError {
    let live = match resource.get(key).await {
        Ok(live) => live,
        Err(error) if is_gone(&error) => {
            return SyncError::Behind(format!(
                "{doing}: the object existed and was deleted meanwhile"
            ));
        }
        Err(error) => return SyncError::of_write(doing, &error),
    };
    let metadata = &live.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let labels = metadata.labels.iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let going = live.is_going();
    match controller {
        // The cache lags behind.
        Some(owner) if *owner.uid == *parent.uid => {
            SyncError::Behind(format!("{doing}: the cache is behind"))
        }
        Some(owner) => SyncError::Failed(format!(
            "{doing}: it exists already and belongs to {} {}",
            owner.kind, owner.name
        )),
        None if going => SyncError::Behind(format!("{doing}: the old object is being deleted")),
        None if selector.matches(&labels) => {
            SyncError::Behind(format!("{doing}: it is about to be adopted"))
        }
        None => SyncError::Failed(format!(
            "{doing}: it exists already, has no owner and does not match the parent's \
             selector {selector}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_many_children_make_a_message_of_bounded_length() {
        let mut failed = Failures::default();
        assert_eq!(failed.text(), None);

        failed.push("creating a: no".to_owned());
        assert_eq!(failed.text().as_deref(), Some("creating a: no"));

        for _ in 0..9_999 {
            failed.push("x".repeat(10_000));
        }
        let text = failed.text().unwrap();
        assert!(text.len() < 8 * 600 && text.ends_with("; and 9992 more"), "{}", text.len());
    }
}
