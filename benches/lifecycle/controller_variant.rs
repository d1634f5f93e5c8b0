//! Measured controllers: one in Rust, and one declared as an object.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControllerVariant {
    /// Controller made by the builder; its reconcile is measured.
    Embedded,
    /// CompositeController; its hook call is measured.
    Composite,
}

impl ControllerVariant {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Composite => "composite",
        }
    }

    /// Name of the controller in the manager.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Embedded => "measured",
            Self::Composite => "CompositeController-measured",
        }
    }

    pub(crate) fn reaction(self) -> &'static str {
        match self {
            Self::Embedded => "its reconcile",
            Self::Composite => "its hook call",
        }
    }
}
