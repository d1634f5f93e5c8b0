//! Inputs by name, as a builder describes them.

use crate::controller::{
    Builder, InputError, InputHandle, Inputs,
    inputs::{input::Input, state::NamedInputs},
};

impl Inputs {
    /// Adds an input that `describe` adds to a builder. Settings of the whole controller, such as
    /// [`Builder::backoff`], have no effect there.
    ///
    /// Returns at once. Wait for [`InputHandle::started`] to read the input's cache, or read
    /// [`InputHandle::state`] to continue while its type is not served.
    ///
    /// # Errors
    ///
    /// [`InputError`], except [`InputError::Ended`]. The inputs are unchanged then.
    pub fn add(
        &self,
        name: impl Into<String>,
        describe: impl FnOnce(Builder) -> Builder,
    ) -> Result<InputHandle, InputError> {
        self.declare(name.into(), describe, false)
    }

    /// Replaces the input of a name, or adds it.
    ///
    /// The replaced input continues until its replacement has started, so that no change is lost
    /// and its cache stays readable. [`InputHandle::started`] of the replacement resolves when
    /// nothing of the replaced input runs.
    ///
    /// # Errors
    ///
    /// As for [`Inputs::add`], except [`InputError::NameTaken`].
    pub fn replace(
        &self,
        name: impl Into<String>,
        describe: impl FnOnce(Builder) -> Builder,
    ) -> Result<InputHandle, InputError> {
        self.declare(name.into(), describe, true)
    }

    fn declare(
        &self,
        name: String,
        describe: impl FnOnce(Builder) -> Builder,
        may_replace: bool,
    ) -> Result<InputHandle, InputError> {
        let parts = input_of(&self.named, &name, describe)?;
        let (state, replaced) = self.named.declare(name, parts, self.epoch, may_replace)?;
        Ok(InputHandle { state, replaced })
    }
}

/// Returns the input that `describe` adds to a builder: one for each namespace.
fn input_of(
    named: &NamedInputs,
    name: &str,
    describe: impl FnOnce(Builder) -> Builder,
) -> Result<Vec<Input>, InputError> {
    let controller = || named.controller.clone();
    let builder = describe(Builder::new(controller()));
    if named.takes_keys {
        builder.check_keys()?;
    }
    if builder.has_primary() {
        return Err(InputError::Primary(controller(), name.to_owned()));
    }
    // The condition of a controller is that of its builder.
    let builder = builder.without_required();
    let described = builder.len();
    let parts = builder.inputs(&named.primaries, &named.event_filters, &named.cluster)?;
    match described {
        1 => Ok(parts),
        _ => Err(InputError::NotOne(controller(), name.to_owned(), described)),
    }
}
