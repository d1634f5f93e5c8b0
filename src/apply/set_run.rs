//! Run of one apply: lists, then writes, then deletions.

use std::collections::BTreeMap;

use super::{
    checked_set::{CheckedSet, precedes},
    error::Error,
    kinds_record::KindsRecord,
    live_object::LiveObject,
    membership::SET_LABEL,
    object_name::ObjectName,
    object_write::{ObjectWrite, ObjectWrites},
    outcome::{PendingReason, WriteResult},
    set_kind::SetKind,
    writer::Writer,
    written_versions::SetVersions,
};
use crate::kind::Scope;

/// Purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Write the objects of the set, which has some.
    Apply,
    /// Delete all members.
    Clear,
}

/// Run of one set.
pub(super) struct SetRun<'a> {
    pub(super) set: &'a CheckedSet,
    pub(super) writer: Writer<'a>,
    pub(super) purpose: Purpose,
    /// Versions that earlier applies have left.
    pub(super) known: SetVersions,
}

/// Result of a run.
#[derive(Debug, Default)]
pub(super) struct RunResult {
    pub(super) objects: Vec<(ObjectName, ObjectWrite)>,
    pub(super) pending: Vec<SetKind>,
    pub(super) failed_kinds: Vec<Error>,
}

/// Candidates of one kind.
struct ListedKind {
    kind: SetKind,
    list: KindList,
}

/// Response to the list of a kind.
enum KindList {
    Candidates(BTreeMap<ObjectName, LiveObject>),
    /// The server does not serve the type.
    Absent,
    Failed,
}

impl SetRun<'_> {
    /// Carries the run out. An error of one object or kind stops no other.
    ///
    /// # Errors
    ///
    /// Errors of the owner, before the first write.
    pub(super) async fn run(&self) -> Result<RunResult, Error> {
        let (set, requests) = (self.set, self.writer.requests);
        let record = KindsRecord::read(requests, set).await?;
        let is_empty = self.purpose == Purpose::Apply && set.objects.is_empty();
        if is_empty && !record.is_terminating() {
            return Err(Error::Empty);
        }
        let mut result = RunResult::default();
        let listed = self.list(&record.kinds, &mut result).await;
        let record = self.record_kinds(record, &listed).await?;
        let writes = ObjectWrites { set, writer: self.writer, known: &self.known };
        for desired in &set.objects {
            let kind = listed.iter().find(|it| it.kind.is_same(&desired.kind));
            let write = match kind.map(|it| &it.list) {
                Some(KindList::Candidates(candidates)) => {
                    writes.write(desired, candidates.get(&desired.name)).await
                }
                Some(KindList::Absent) => WriteResult::Pending(PendingReason::TypeAbsent).into(),
                Some(KindList::Failed) | None => {
                    WriteResult::Pending(PendingReason::NotListed).into()
                }
            };
            result.objects.push((desired.name.clone(), write));
        }
        let without_members = self.depart(&writes, &listed, &mut result).await;
        if self.writer.is_live() {
            let dropped = record.drop(requests, set, &without_members).await;
            result.failed_kinds.extend(dropped.err());
        }
        Ok(result)
    }

    /// Lists the candidates of all kinds that the set has, or had.
    async fn list(&self, recorded: &[SetKind], result: &mut RunResult) -> Vec<ListedKind> {
        let mut kinds: Vec<SetKind> = Vec::new();
        for kind in self.set.objects.iter().map(|it| &it.kind).chain(recorded) {
            if !kinds.iter().any(|it| it.is_same(kind)) {
                kinds.push(kind.clone());
            }
        }
        let mut listed = Vec::new();
        for kind in kinds {
            let one = self.list_kind(kind, result).await;
            if matches!(one.list, KindList::Absent) {
                result.pending.push(one.kind.clone());
            }
            listed.push(one);
        }
        listed
    }

    async fn list_kind(&self, kind: SetKind, result: &mut RunResult) -> ListedKind {
        let label = format!("{SET_LABEL}={}", self.set.id.label());
        let is_desired = self.set.objects.iter().any(|it| it.kind.is_same(&kind));
        let requests = self.writer.requests;
        let namespace = self.set.namespace.as_deref();
        let namespace = namespace.filter(|_| kind.scope == Scope::Namespaced);
        let mut versions = vec![kind.version.clone()];
        let mut next = 0;
        while let Some(version) = versions.get(next).cloned() {
            let kind = SetKind { version, ..kind.clone() };
            match requests.list(&kind, namespace, &label).await {
                Ok(Some(objects)) => {
                    let named = objects.into_iter().map(|it| (it.name(&kind), it));
                    let candidates = KindList::Candidates(named.collect());
                    return ListedKind { kind, list: candidates };
                }
                // A kind that left the set may be served at another version by now.
                Ok(None) if next == 0 && !is_desired && !kind.group.is_empty() => {
                    let served = requests.versions(&kind).await;
                    versions.extend(served.into_iter().filter(|it| *it != kind.version));
                }
                Ok(None) => {}
                Err(error) => {
                    result.failed_kinds.push(error);
                    return ListedKind { kind, list: KindList::Failed };
                }
            }
            next += 1;
        }
        ListedKind { kind, list: KindList::Absent }
    }

    /// Records the kinds of which an object may be created.
    async fn record_kinds(
        &self,
        record: KindsRecord,
        listed: &[ListedKind],
    ) -> Result<KindsRecord, Error> {
        let is_listed = |kind: &SetKind| {
            let found = listed.iter().find(|it| it.kind.is_same(kind));
            found.is_some_and(|it| matches!(it.list, KindList::Candidates(_)))
        };
        let mut added: Vec<SetKind> = Vec::new();
        for kind in self.set.objects.iter().map(|it| &it.kind).filter(|it| is_listed(it)) {
            if !added.contains(kind) {
                added.push(kind.clone());
            }
        }
        if self.writer.is_live() {
            record.add(self.writer.requests, self.set, &added).await
        } else {
            Ok(record)
        }
    }

    /// Deletes the members that are not in the set, in the reverse order of writes. Returns the
    /// kinds that had no member.
    async fn depart(
        &self,
        writes: &ObjectWrites<'_>,
        listed: &[ListedKind],
        result: &mut RunResult,
    ) -> Vec<SetKind> {
        let mut without_members = Vec::new();
        let mut kinds: Vec<_> = listed.iter().rev().collect();
        kinds.sort_by_key(|it| precedes(&it.kind.group_kind()));
        for ListedKind { kind, list } in kinds {
            let KindList::Candidates(candidates) = list else { continue };
            let mut has_members = self.set.objects.iter().any(|it| it.kind.is_same(kind));
            for (name, live) in candidates.iter().rev() {
                if self.set.has(name) {
                    continue;
                }
                if let Some(write) = writes.depart(kind, name, live).await {
                    has_members = true;
                    result.objects.push((name.clone(), write));
                }
            }
            if !has_members {
                without_members.push(kind.clone());
            }
        }
        without_members
    }
}
