//! Declared controllers as their supervisor judges them, for reports.

use std::{fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use super::runnable_name;
use crate::{
    manager::{ControllerName, ManagerHandle},
    meta::{CompositeControllerStatus, declared::Changes},
};

/// Declared controllers of one supervisor. Cheap to clone.
#[derive(Clone)]
pub struct DeclaredControllers {
    pub(super) manager: ManagerHandle,
    pub(super) changes: Arc<Changes>,
}

/// Declared controller, with its status as of now.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredController {
    /// Name of the runnable, which the manager has unless the object is rejected or paused.
    pub name: ControllerName,
    /// Plural and `apiVersion` of the parent type, if the object names one.
    pub parent: Option<(String, String)>,
    /// Generation of the object that was judged.
    pub generation: i64,
    /// Status that the object has or is about to get.
    pub status: CompositeControllerStatus,
}

impl DeclaredControllers {
    /// Returns every declared controller that the supervisor has judged, by name: those that are
    /// rejected and paused, too.
    pub fn list(&self) -> Vec<DeclaredController> {
        let names = self.changes.names().into_iter();
        let of = |name: Arc<str>| {
            let declared = self.changes.peek(&name)?;
            let judged = declared.judged.as_ref()?;
            let name = runnable_name(&name);
            let run = self.manager.status_of(name.clone());
            let written = declared.written.as_ref().map(|(status, _)| status.clone());
            let previous = written.unwrap_or_default();
            Some(DeclaredController {
                parent: judged.parent.clone(),
                generation: judged.generation,
                status: declared.status(judged, run.as_deref(), &previous, Timestamp::now()),
                name,
            })
        };
        names.filter_map(of).collect()
    }
}

impl fmt::Debug for DeclaredControllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredControllers").finish_non_exhaustive()
    }
}
