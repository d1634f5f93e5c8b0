//! Arguments that are ignored as by Metacontroller: Go's flags end at the first argument that is
//! not a flag.
//!
//! Semantics: `FlagSet.parseOne` of Go's package `flag`. `main` of Metacontroller
//! (`pkg/cmd/metacontroller/main.go`) never reads the arguments that are left.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};
use tracing::warn;

/// Maximum number of arguments that the log names, so that its line stays short.
const MOST_NAMED: usize = 10;

/// Removes the first argument that is not a flag, with all that follow it. Returns them. `from` is
/// the position of the first flag of `run`.
pub(super) fn split_off(
    arguments: &mut Vec<OsString>,
    from: usize,
    cli: &Command,
) -> Vec<OsString> {
    let mut at = from;
    while let Some(argument) = arguments.get(at) {
        let text = argument.as_encoded_bytes();
        if text == b"--" {
            let ignored = arguments.split_off(at + 1);
            arguments.truncate(at);
            return ignored;
        }
        if text.len() < 2 || !text.starts_with(b"-") {
            break;
        }
        let next = arguments.get(at + 1).map(OsString::as_os_str);
        at += if takes_next(argument, next, cli) { 2 } else { 1 };
    }
    arguments.split_off(at.min(arguments.len()))
}

/// Logs the arguments that are ignored.
pub(super) fn explain(ignored: &[OsString]) {
    if ignored.is_empty() {
        return;
    }
    let named: Vec<_> = ignored.iter().take(MOST_NAMED).map(|it| it.to_string_lossy()).collect();
    warn!(
        ignored = named.join(" "),
        count = ignored.len(),
        "the first argument that is not a flag and all that follow are ignored, as by \
         Metacontroller; give the value of a boolean flag after an equals sign"
    );
}

/// Returns whether a flag has the argument that follows it as its value.
fn takes_next(flag: &OsStr, next: Option<&OsStr>, cli: &Command) -> bool {
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
