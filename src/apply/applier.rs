//! Applier: writes sets of objects with one field manager.

use std::{fmt, sync::Arc};

use kube::Client;
use parking_lot::Mutex;

use super::{
    checked_set::CheckedSet,
    error::Error,
    outcome::{Outcome, Written},
    plan::{Plan, PlannedWrite},
    requests::Requests,
    set::Set,
    set_run::{Purpose, RunResult, SetRun},
    writer::{WriteMode, Writer},
    written_versions::WrittenVersions,
};

/// Writer of sets, with a client and a field manager. Clones share what they know of objects.
///
/// The name of the field manager is a part of the proof that an object is a member, and must not
/// change. Each set has one writer at a time, such as the leader among replicas.
///
/// An apply reads the owner, and lists the metadata of each kind that the set has, or had. An object
/// whose version is that of the last apply needs no further request. An update is a server-side
/// apply. It takes over no field of another manager: the object is reported as
/// [`Contested`](super::WriteResult::Contested).
///
/// ```no_run
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
/// use pilotlight::apply::{Applier, Error, Set};
///
/// # async fn example(client: kube::Client, owner: Deployment, map: ConfigMap) -> Result<(), Error> {
/// let applier = Applier::new(client, "my-controller");
/// let outcome = applier.apply(Set::of(&owner, "settings").object(map)).await?;
/// for written in &outcome.objects {
///     println!("{written}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Applier {
    client: Client,
    manager: Arc<str>,
    written: Arc<Mutex<WrittenVersions>>,
}

impl Applier {
    /// Creates an applier. `manager` is the field manager of its writes, such as the name of the
    /// controller. The client of a reconcile ends its writes with the epoch.
    pub fn new(client: Client, manager: impl Into<Arc<str>>) -> Self {
        Self { client, manager: manager.into(), written: Arc::default() }
    }

    /// Returns an applier with another client, which shares what is known of objects: for a client
    /// that lives as long as an epoch.
    #[must_use]
    pub fn with_client(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Writes the objects of a set, and deletes the members that left it.
    ///
    /// # Errors
    ///
    /// Mistakes of the set and errors of its owner, before the first write; an error when the kinds
    /// of the set are written. Errors of objects and kinds are in the [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, a part of the objects is written. The next apply writes the rest.
    pub async fn apply(&self, set: Set) -> Result<Outcome, Error> {
        self.carry_out(CheckedSet::of(set)?, Purpose::Apply).await
    }

    /// Deletes all members of a set. The objects that the set declares are ignored. Members of kinds
    /// that are never deleted are kept, unless [`Set::deletes`] names them.
    ///
    /// A finalizer of the owner may be removed once the outcome has no pending kind, and no object but
    /// those that are kept.
    ///
    /// # Errors
    ///
    /// As for [`Applier::apply`].
    ///
    /// # Cancel safety
    ///
    /// Dropped, a part of the members is deleted. The next clear deletes the rest.
    pub async fn clear(&self, set: Set) -> Result<Outcome, Error> {
        self.carry_out(CheckedSet::of(set.without_objects())?, Purpose::Clear).await
    }

    /// Returns what [`Applier::apply`] would do, without a write.
    ///
    /// # Errors
    ///
    /// As for [`Applier::apply`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is written.
    pub async fn plan(&self, set: Set) -> Result<Plan, Error> {
        self.foresee(CheckedSet::of(set)?, Purpose::Apply).await
    }

    /// Returns what [`Applier::clear`] would do, without a write.
    ///
    /// # Errors
    ///
    /// As for [`Applier::clear`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is written.
    pub async fn plan_clear(&self, set: Set) -> Result<Plan, Error> {
        self.foresee(CheckedSet::of(set.without_objects())?, Purpose::Clear).await
    }

    async fn carry_out(&self, set: CheckedSet, purpose: Purpose) -> Result<Outcome, Error> {
        let RunResult { objects: writes, pending, failed_kinds } =
            self.run(&set, purpose, WriteMode::Live).await?;
        let (mut objects, mut versions) = (Vec::new(), Vec::new());
        for (object, write) in writes {
            versions.extend(write.version.map(|version| (object.clone(), version)));
            objects.push(Written { object, result: write.result });
        }
        self.written.lock().put(set.id, versions.into_iter().collect());
        Ok(Outcome { objects, pending, failed_kinds })
    }

    async fn foresee(&self, set: CheckedSet, purpose: Purpose) -> Result<Plan, Error> {
        let result = self.run(&set, purpose, WriteMode::Recording).await?;
        let RunResult { objects, pending, failed_kinds } = result;
        let planned = objects.into_iter().map(|(object, write)| PlannedWrite {
            object,
            result: write.result,
            changes: write.changes,
        });
        Ok(Plan { objects: planned.collect(), pending, failed_kinds })
    }

    async fn run(
        &self,
        set: &CheckedSet,
        purpose: Purpose,
        mode: WriteMode,
    ) -> Result<RunResult, Error> {
        let known = self.written.lock().of(&set.id);
        let writer = Writer { requests: self.requests(), mode };
        SetRun { set, writer, purpose, known }.run().await
    }

    pub(super) fn requests(&self) -> Requests<'_> {
        Requests { client: &self.client, manager: &self.manager }
    }
}

impl fmt::Debug for Applier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("manager", &self.manager).finish_non_exhaustive()
    }
}
