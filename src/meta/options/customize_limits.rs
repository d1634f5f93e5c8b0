//! Limits of customize responses.

/// Limits of the response of a customize hook.
///
/// ```
/// use pilotlight::meta::CustomizeLimits;
///
/// let limits = CustomizeLimits { names: 50_000, ..CustomizeLimits::default() };
///
/// assert_eq!(limits.rules, 1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CustomizeLimits {
    /// Maximum bytes of a response; 1 MiB by default. Its rules take many times their length in
    /// memory.
    pub response_bytes: usize,
    /// Maximum number of rules in a response; 1000 by default. The rules of a parent's revisions
    /// are compared in pairs.
    pub rules: usize,
    /// Maximum number of names or requirements in one rule; 10,000 by default. Limits the
    /// namespaces and names that the rules of one parent select in one type as well. Each is an
    /// entry of an index, for each parent.
    pub names: usize,
}

impl Default for CustomizeLimits {
    fn default() -> Self {
        Self { response_bytes: 1024 * 1024, rules: 1000, names: 10_000 }
    }
}
