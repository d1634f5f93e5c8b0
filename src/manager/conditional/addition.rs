//! Addition of a runnable with a condition to a manager, under the name of the runnable.

use std::sync::Arc;

use super::RunnableWithCondition;
use crate::manager::{
    AddError, ControllerName, Manager, ManagerHandle, Replacement, Runnable, RunnableOptions,
};

impl RunnableWithCondition {
    /// Adds the runnable to a manager that does not run yet, under the name that it was built with
    /// and with default options.
    ///
    /// # Errors
    ///
    /// As [`Manager::add`], and [`AddError::NameMissing`].
    pub fn add_to(self, manager: &mut Manager) -> Result<(), AddError> {
        manager.add(self.own_name()?, Arc::new(self), RunnableOptions::default())
    }

    /// Adds the runnable by a handle of a manager that may run already, under the name that it was
    /// built with and with default options.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::add`], and [`AddError::NameMissing`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, it may or may not have been added.
    pub async fn add_to_running(self, manager: &ManagerHandle) -> Result<(), AddError> {
        manager.add(self.own_name()?, Arc::new(self), RunnableOptions::default()).await
    }

    /// Replaces the runnable of the name that this one was built with, with default options.
    ///
    /// # Errors
    ///
    /// As [`ManagerHandle::replace`], and [`AddError::NameMissing`].
    ///
    /// # Cancel safety
    ///
    /// If dropped early, the old one may or may not be replaced.
    pub async fn replace_in(self, manager: &ManagerHandle) -> Result<Replacement, AddError> {
        manager.replace(self.own_name()?, Arc::new(self), RunnableOptions::default()).await
    }

    fn own_name(&self) -> Result<ControllerName, AddError> {
        self.name().cloned().ok_or(AddError::NameMissing)
    }
}
