//! Write of one object of a set: decision, request, and the judgement of its response.

use std::collections::BTreeMap;

use super::{
    checked_set::{CheckedSet, DesiredObject},
    decision::{Decision, Departure},
    error::Error,
    live_object::LiveObject,
    object_name::ObjectName,
    outcome::{ContestedFields, PendingReason, ReplaceReason, WriteResult},
    plan::field_change::FieldChange,
    refusal::{
        causes, is_already_there, is_conflict, is_denied, is_gone, is_invalid, is_other_uid,
    },
    set_kind::SetKind,
    writer::Writer,
    written_versions::{SetVersions, WrittenVersion},
};
use crate::redaction;

/// Attempts to write an object that other clients change between read and write.
const ATTEMPTS: usize = 3;

/// Writes of the objects of one set.
pub(super) struct ObjectWrites<'a> {
    pub(super) set: &'a CheckedSet,
    pub(super) writer: Writer<'a>,
    /// Versions that earlier applies have left.
    pub(super) known: &'a SetVersions,
}

/// Result of a write, with what is known of the object from then on.
#[derive(Debug)]
pub(super) struct ObjectWrite {
    pub(super) result: WriteResult,
    pub(super) changes: Vec<FieldChange>,
    /// Version that is as desired.
    pub(super) version: Option<WrittenVersion>,
}

impl From<WriteResult> for ObjectWrite {
    fn from(result: WriteResult) -> Self {
        Self { result, changes: Vec::new(), version: None }
    }
}

/// End of one attempt.
enum Attempt {
    Done(Box<ObjectWrite>),
    /// The object is not as it was read.
    Outdated,
}

impl From<ObjectWrite> for Attempt {
    fn from(write: ObjectWrite) -> Self {
        Self::Done(Box::new(write))
    }
}

impl From<WriteResult> for Attempt {
    fn from(result: WriteResult) -> Self {
        Self::Done(Box::new(result.into()))
    }
}

impl ObjectWrites<'_> {
    /// Writes an object of the set. `listed` is the object as the list of its kind has it.
    pub(super) async fn write(
        &self,
        desired: &DesiredObject,
        listed: Option<&LiveObject>,
    ) -> ObjectWrite {
        let mut live = listed.cloned();
        let mut is_read = live.is_some();
        for _ in 0..ATTEMPTS {
            // An object without the label is not in the list.
            if !is_read {
                match self.read(&desired.kind, &desired.name).await {
                    Ok(found) => live = found,
                    Err(error) => return WriteResult::Failed(error).into(),
                }
            }
            match self.attempt(desired, live.as_ref()).await {
                Attempt::Done(done) => return *done,
                Attempt::Outdated => is_read = false,
            }
        }
        WriteResult::Failed(Error::Changed(desired.name.clone())).into()
    }

    /// Deletes a candidate that is not in the set; `None` if it is no member.
    pub(super) async fn depart(
        &self,
        kind: &SetKind,
        name: &ObjectName,
        listed: &LiveObject,
    ) -> Option<ObjectWrite> {
        let manager = self.writer.requests.manager;
        let judge = |live: &LiveObject| Departure::of(self.set, name, &live.metadata, manager);
        let listed = match judge(listed) {
            Departure::Leave => return None,
            Departure::Unattributed => return Some(unattributed()),
            Departure::Wait => {
                return Some(WriteResult::Pending(PendingReason::Terminating).into());
            }
            Departure::Keep(reason) => return Some(WriteResult::Kept(reason).into()),
            Departure::Delete(reason) => reason,
        };
        let live = match self.read(kind, name).await {
            Ok(Some(live)) => live,
            Ok(None) => return Some(WriteResult::Deleted(listed).into()),
            Err(error) => return Some(WriteResult::Failed(error).into()),
        };
        match judge(&live) {
            Departure::Leave => None,
            Departure::Unattributed => Some(unattributed()),
            Departure::Wait => Some(WriteResult::Pending(PendingReason::Terminating).into()),
            Departure::Keep(reason) => Some(WriteResult::Kept(reason).into()),
            Departure::Delete(reason) => Some(match self.delete(kind, name, &live).await {
                Ok(()) => WriteResult::Deleted(reason).into(),
                Err(error) => WriteResult::Failed(error).into(),
            }),
        }
    }

    async fn attempt(&self, desired: &DesiredObject, live: Option<&LiveObject>) -> Attempt {
        let manager = self.writer.requests.manager;
        let metadata = live.map(|live| &live.metadata);
        let decision = Decision::of(self.set, &desired.name, metadata, manager);
        match (decision, live) {
            (Decision::Create, _) | (_, None) => self.create(desired).await,
            (Decision::Update, Some(live)) => {
                let known = self.known.get(&desired.name).cloned();
                let version = WrittenVersion::of(desired, live);
                if version.is_some() && version == known {
                    let result = WriteResult::Unchanged;
                    return ObjectWrite { result, changes: Vec::new(), version }.into();
                }
                self.apply(desired, live, false).await
            }
            (Decision::Adopt, Some(live)) => self.apply(desired, live, true).await,
            (Decision::ReplaceEarlier, Some(live)) => {
                self.replace(desired, live, ReplaceReason::EarlierOwner).await
            }
            (Decision::Wait(reason), Some(_)) => WriteResult::Pending(reason).into(),
            (Decision::Leave(holder), Some(_)) => WriteResult::Foreign(holder).into(),
        }
    }

    async fn create(&self, desired: &DesiredObject) -> Attempt {
        let namespace = desired.name.namespace.as_deref();
        match self.writer.create(desired).await {
            Ok(stored) => {
                let version = stored.and_then(|it| WrittenVersion::of(desired, &it));
                let result = WriteResult::Created;
                ObjectWrite { result, changes: Vec::new(), version }.into()
            }
            Err(error) if is_already_there(&error) => Attempt::Outdated,
            // The dry run has no namespace that the apply would create before.
            Err(error)
                if is_gone(&error)
                    && !self.writer.is_live()
                    && self.set.creates_namespace(namespace) =>
            {
                WriteResult::Created.into()
            }
            Err(error) => refused(desired, "creating", error),
        }
    }

    /// Applies an object that exists. Fields of other managers are taken over only if the set has
    /// applied them too, and owns them still.
    async fn apply(&self, desired: &DesiredObject, live: &LiveObject, adopts: bool) -> Attempt {
        let mut applied = self.writer.apply(desired, live, false).await;
        if let Err(error) = &applied {
            let contested = contested(error);
            if !contested.is_empty() {
                if !self.may_force(desired, live, &contested) {
                    return WriteResult::Contested(contested).into();
                }
                applied = self.writer.apply(desired, live, true).await;
            }
        }
        match applied {
            Ok(applied) => {
                let result = match (adopts, applied.is_changed) {
                    (true, _) => WriteResult::Adopted,
                    (false, true) => WriteResult::Updated,
                    (false, false) => WriteResult::Unchanged,
                };
                let version = applied.stored.and_then(|it| WrittenVersion::of(desired, &it));
                ObjectWrite { result, changes: applied.changes, version }.into()
            }
            Err(error) if is_gone(&error) || is_other_uid(&error) || is_conflict(&error) => {
                Attempt::Outdated
            }
            // An object that is adopted is not the set's to delete, and a denial is no immutable field.
            Err(error) if is_invalid(&error) && !adopts && !is_denied(&error) => {
                self.replace_invalid(desired, live, error).await
            }
            Err(error) => refused(desired, "applying", error),
        }
    }

    /// Returns whether the set has applied all of these fields and owns them still, besides other
    /// managers. Its own creates are handed over before an apply.
    fn may_force(
        &self,
        desired: &DesiredObject,
        live: &LiveObject,
        contested: &[ContestedFields],
    ) -> bool {
        let manager = self.writer.requests.manager;
        let fields = contested.iter().map(|it| it.fields.len()).sum::<usize>();
        // The redaction of a refusal may have cut further fields.
        if redaction::is_secret(&desired.kind.group, &desired.kind.plural)
            && fields >= redaction::CAUSES
        {
            return false;
        }
        contested
            .iter()
            .filter(|it| it.manager != manager)
            .all(|contested| contested.fields.iter().all(|field| live.has_applied(manager, field)))
    }

    /// Replaces an object whose apply was refused as invalid, if the dry run of a create shows that
    /// only the present object is in the way.
    async fn replace_invalid(
        &self,
        desired: &DesiredObject,
        live: &LiveObject,
        error: kube::Error,
    ) -> Attempt {
        if !self.set.replaces_immutable || self.set.keeps(&desired.name.kind) {
            return refused(desired, "applying", error);
        }
        // The server validates before it looks for the name.
        match self.writer.dry_run_create(desired).await {
            Ok(()) => Attempt::Outdated,
            Err(error) if is_already_there(&error) => {
                self.replace(desired, live, ReplaceReason::ImmutableField).await
            }
            Err(error) => refused(desired, "dry run of the replacement of", error),
        }
    }

    /// Deletes an object, and creates the desired one.
    async fn replace(
        &self,
        desired: &DesiredObject,
        live: &LiveObject,
        reason: ReplaceReason,
    ) -> Attempt {
        match self.delete(&desired.kind, &desired.name, live).await {
            Ok(()) => {}
            Err(Error::Changed(_)) => return Attempt::Outdated,
            Err(error) => return WriteResult::Failed(error).into(),
        }
        let has_finalizers = live.metadata.finalizers.iter().flatten().next().is_some();
        if !self.writer.is_live() {
            return if has_finalizers {
                WriteResult::Pending(PendingReason::OldObject).into()
            } else {
                WriteResult::Replaced(reason).into()
            };
        }
        match self.create(desired).await {
            Attempt::Done(mut done) => {
                if matches!(done.result, WriteResult::Created) {
                    done.result = WriteResult::Replaced(reason);
                }
                Attempt::Done(done)
            }
            Attempt::Outdated => WriteResult::Pending(PendingReason::OldObject).into(),
        }
    }

    async fn delete(
        &self,
        kind: &SetKind,
        name: &ObjectName,
        live: &LiveObject,
    ) -> Result<(), Error> {
        let changed = || Error::Changed(name.clone());
        let preconditions = live.preconditions().ok_or_else(changed)?;
        match self.writer.delete(kind, name, preconditions).await {
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            // The next apply judges the object again.
            Err(error) if is_conflict(&error) => Err(changed()),
            Err(source) => {
                let (doing, source) = (format!("deleting {name}"), Box::new(source));
                Err(Error::Request { doing, source })
            }
        }
    }

    async fn read(&self, kind: &SetKind, name: &ObjectName) -> Result<Option<LiveObject>, Error> {
        let namespace = name.namespace.as_deref();
        self.writer.requests.metadata(kind, namespace, &name.name).await.map_err(|source| {
            Error::Request { doing: format!("reading {name}"), source: Box::new(source) }
        })
    }
}

fn unattributed() -> ObjectWrite {
    let why = "its managed fields are lost, so that its writer is not proven: delete it by hand";
    WriteResult::Foreign(why.to_owned()).into()
}

fn refused(desired: &DesiredObject, doing: &str, error: kube::Error) -> Attempt {
    let (object, source) = (desired.name.clone(), Box::new(error));
    let error = if is_invalid(&source) {
        Error::Invalid { object, source }
    } else {
        Error::Request { doing: format!("{doing} {object}"), source }
    };
    WriteResult::Failed(error).into()
}

/// Returns the fields of other managers for which an apply was refused, by manager.
fn contested(error: &kube::Error) -> Vec<ContestedFields> {
    let kube::Error::Api(status) = error else { return Vec::new() };
    let mut managers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let conflicts = causes(status)
        .filter(|cause| status.code == 409 && cause.reason == redaction::FIELD_CONFLICT);
    for cause in conflicts {
        // The message is `conflict with "x" using v1 at 2000-01-01T00:00:00Z`.
        let quoted = cause.message.strip_prefix("conflict with \"");
        let manager = quoted.and_then(|it| it.split_once('"')).map_or("", |(manager, _)| manager);
        managers.entry(manager.to_owned()).or_default().push(cause.field.clone());
    }
    let contested = managers.into_iter();
    contested.map(|(manager, fields)| ContestedFields { manager, fields }).collect()
}
