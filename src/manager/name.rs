//! Name of a runnable.

use std::{fmt, sync::Arc};

/// Name of a managed runnable, unique among the live ones of one manager.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerName(Arc<str>);

impl ControllerName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns a name, and then that name with the numbers from 2 on.
pub(super) fn numbered(name: &str) -> impl Iterator<Item = ControllerName> {
    let more = (2_usize..).map(move |number| ControllerName::from(format!("{name} {number}")));
    std::iter::once(ControllerName::from(name)).chain(more)
}

impl<T: AsRef<str>> From<T> for ControllerName {
    fn from(name: T) -> Self {
        Self(name.as_ref().into())
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
