//! Strictness: what is refused beyond Metacontroller's refusals, and which bounds are lifted.

/// Strictness of all declared controllers of a process. By default a hook that works with
/// Metacontroller works unchanged, within the bounds of memory and load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strictness {
    /// Refuses what Metacontroller accepts and what may be a mistake: a response that has a child
    /// several times or a child that cannot be used, the response `null`, and text that is not
    /// UTF-8. With server-side apply an object without a controller is left alone in place of a new
    /// child.
    pub strict: bool,
    /// Writes are not limited. Otherwise 400 writes of one object for one parent are sent at once,
    /// then one each second.
    pub unlimited_writes: bool,
    /// Hooks receive `metadata.managedFields`, which the caches then keep.
    pub managed_fields: bool,
}
