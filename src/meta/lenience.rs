//! Lenience: behaviour of Metacontroller that declared controllers have only if it is enabled.

/// Behaviour of Metacontroller that all declared controllers of a process have; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lenience {
    /// Writes are not limited, however often a hook's response differs from the last one.
    pub unlimited_writes: bool,
    /// Of a child that a response has several times, the last one counts. Otherwise the response is
    /// refused.
    pub repeated_children: bool,
    /// Hooks receive `metadata.managedFields`, which the caches then keep.
    pub managed_fields: bool,
}
