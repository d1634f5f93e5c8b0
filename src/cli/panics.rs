//! Panic messages of the process.

use std::{io::Write, panic};

use pilotlight::redaction;

/// Replaces the panic hook of the standard library, which prints each message: one that was put
/// together may quote an object that could not be handled. A literal message is printed.
pub(super) fn report_without_values() {
    panic::set_hook(Box::new(|panic| {
        let message = redaction::panic_message(panic.payload());
        let at = panic.location().map(|at| format!(" at {at}")).unwrap_or_default();
        writeln!(std::io::stderr(), "pilotlight: panicked{at}: {message}").ok();
    }));
}
