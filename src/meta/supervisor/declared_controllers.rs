//! Declared controllers as their supervisor judges them, for reports.

use std::{fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use super::{declared::DeclaredStates, served_elsewhere::with_remedies};
use crate::{
    discovery::TypeRegistry,
    manager::{ControllerName, ManagerHandle},
    meta::api::{ControllerStatus, controller_kind::ControllerKind},
};

/// Declared controllers of one or more supervisors. Cheap to clone.
#[derive(Clone)]
pub struct DeclaredControllers {
    pub(super) manager: ManagerHandle,
    pub(super) types: TypeRegistry,
    pub(super) changes: Vec<(ControllerKind, Arc<DeclaredStates>)>,
}

/// Declared controller, with its status as of now.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredController {
    /// Kind of the object.
    pub kind: ControllerKind,
    /// Name of the runnable, which the manager has unless the object is rejected or paused.
    pub name: ControllerName,
    /// Plural and `apiVersion` of each parent type that the object names.
    pub parents: Vec<(String, String)>,
    /// Generation of the object that was checked.
    pub generation: i64,
    /// Status that the object has or is about to get.
    pub status: ControllerStatus,
}

impl DeclaredControllers {
    /// Adds the controllers of another supervisor of the same manager.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.changes.extend(other.changes);
        self
    }

    /// Returns every declared controller that was checked, by kind and name: those that are
    /// rejected and paused, too.
    pub fn list(&self) -> Vec<DeclaredController> {
        let of = |kind: ControllerKind, changes: &DeclaredStates, name: Arc<str>| {
            let declared = changes.known(&name)?;
            let checked = declared.checked.as_ref()?;
            let name = kind.runnable_name(&name);
            let run = self.manager.status_of(name.clone());
            let run = run.map(|run| with_remedies(run, &self.types));
            let written = declared.written.as_ref().map(|(status, _)| status.clone());
            let previous = written.unwrap_or_default();
            Some(DeclaredController {
                kind,
                parents: checked.parents.clone(),
                generation: checked.generation,
                status: declared.status(checked, run.as_deref(), &previous, Timestamp::now()),
                name,
            })
        };
        let all = self.changes.iter().flat_map(|(kind, changes)| {
            changes.names().into_iter().filter_map(move |name| of(*kind, changes, name))
        });
        all.collect()
    }
}

impl fmt::Debug for DeclaredControllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredControllers").finish_non_exhaustive()
    }
}
