//! Lenience: behaviour of Metacontroller that is off by default.

/// Behaviour of Metacontroller that all declared controllers of a process have; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lenience {
    /// Writes without another cause than earlier writes of the controller are not limited.
    /// Otherwise 20 such writes of one object are sent at once, then one every 3 s.
    pub unlimited_writes: bool,
    /// A response may have a child several times, and the last one counts. Otherwise the response
    /// is refused.
    pub repeated_children: bool,
    /// Hooks receive `metadata.managedFields`, which the caches then keep.
    pub managed_fields: bool,
    /// Server-side apply takes over an object that exists in place of a new child and has no
    /// controller. Otherwise such an object is contested, unless its labels let it be adopted.
    pub takeover: bool,
}
