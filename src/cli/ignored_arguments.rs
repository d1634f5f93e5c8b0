//! Arguments that are ignored as by Metacontroller: Go's flags end at the first argument that is
//! not a flag. A command among them is refused, since a manager would run in its place.
//!
//! Semantics: `FlagSet.parseOne` of Go's package `flag`. `main` of Metacontroller
//! (`pkg/cmd/metacontroller/main.go`) never reads the arguments that are left.

use std::ffi::{OsStr, OsString};

use clap::{
    Arg, Command,
    error::{ContextKind, ContextValue},
};
use tracing::warn;

/// Arguments that are ignored.
#[derive(Debug, Default)]
pub(super) struct IgnoredArguments {
    /// Position of the first one in the command line, where that of the program's name is 0.
    pub(super) position: usize,
    /// The arguments. Their texts are not logged, since a secret may be among them.
    pub(super) arguments: Vec<OsString>,
}

/// Removes the first argument that is not a flag, with all that follow it. `from` is the position of
/// the first flag of `run`, after the name of this command. Returns the ignored arguments.
pub(super) fn split_off(
    arguments: &mut Vec<OsString>,
    from: usize,
    cli: &Command,
) -> IgnoredArguments {
    let mut at = from;
    while let Some(argument) = arguments.get(at) {
        let text = argument.as_encoded_bytes();
        if text == b"--" {
            let ignored = arguments.split_off(at + 1);
            arguments.truncate(at);
            return IgnoredArguments { position: at, arguments: ignored };
        }
        if text.len() < 2 || !text.starts_with(b"-") {
            break;
        }
        let next = arguments.get(at + 1).map(OsString::as_os_str);
        at += if takes_next(argument, next, cli) { 2 } else { 1 };
    }
    // The user has not written the name of the command.
    let position = at - 1;
    let arguments = arguments.split_off(at.min(arguments.len()));
    IgnoredArguments { position, arguments }
}

impl IgnoredArguments {
    /// Returns the name of a command that follows flags of `run`.
    pub(super) fn command(&self, cli: &Command) -> Option<&str> {
        let first = self.arguments.first()?.to_str()?;
        cli.find_subcommand(first).map(|_command| first)
    }

    /// Adds to the refusal of a command line where its command belongs.
    pub(super) fn with_hint(&self, mut error: clap::Error, cli: &Command) -> clap::Error {
        if let Some(command) = self.command(cli) {
            let hint = format!("the command comes before its flags: pilotlight {command} ...");
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
        }
        error
    }

    /// Logs the position and the number of the arguments.
    pub(super) fn explain(&self) {
        if self.arguments.is_empty() {
            return;
        }
        warn!(
            position = self.position,
            count = self.arguments.len(),
            "the argument at this position is not a flag: it and all that follow are ignored, as by \
             Metacontroller; give the value of a boolean flag after an equals sign"
        );
    }
}

/// Returns whether a flag has the argument that follows it as its value.
pub(super) fn takes_next(flag: &OsStr, next: Option<&OsStr>, cli: &Command) -> bool {
    let Some(name) = flag.to_str().map(|flag| flag.trim_start_matches('-')) else { return false };
    let is_named = |argument: &&Arg| {
        let mut aliases = argument.get_all_aliases().into_iter().flatten();
        argument.get_long() == Some(name) || aliases.any(|alias| alias == name)
    };
    let run = cli.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
    // A flag with `=` has its value, and clap refuses an unknown one.
    let Some(argument) = cli.get_arguments().chain(run).find(is_named) else { return false };
    if !argument.get_action().takes_values() {
        return false;
    }
    if argument.get_num_args().is_none_or(|values| values.min_values() > 0) {
        return true;
    }
    // Metacontroller has no such flag: clap takes a value that does not begin with a dash.
    let is_value = next.is_some_and(|next| !next.as_encoded_bytes().starts_with(b"-"));
    is_value && !argument.is_require_equals_set()
}
