//! Panic hook of the process.

use std::{io::Write, panic};

use pilotlight::redaction;

/// Replaces the panic hook of the standard library, which prints each message. A formatted message
/// may quote the object that caused the panic, so only literal messages are printed.
pub(super) fn report_without_values() {
    panic::set_hook(Box::new(|panic| {
        let message = redaction::panic_message(panic.payload());
        let at = panic.location().map(|at| format!(" at {at}")).unwrap_or_default();
        writeln!(std::io::stderr(), "pilotlight: panicked{at}: {message}").ok();
    }));
}
