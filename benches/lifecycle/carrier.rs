//! The two that are measured: a controller in Rust, and one declared as an object.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A controller of the builder's; its reconcile is what is timed.
    Embedded,
    /// A CompositeController; its hook call is what is timed.
    Composite,
}

impl Carrier {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Composite => "composite",
        }
    }

    /// What the manager calls it.
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
