//! Registration of a check or of metrics, as long as it is held.

/// Registration, which ends when this is dropped.
pub(crate) struct Registration(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Registration {
    /// Returns a registration that `end` ends.
    pub(super) fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registration")
    }
}
