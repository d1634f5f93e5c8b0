//! The binary: reads flags and environment, runs one command, and maps its result to an exit code.

mod cli;

use std::process::ExitCode;

/// Exit code 0: success. 1: failure. 2: invalid command line.
fn main() -> ExitCode {
    match cli::Cli::read(std::env::args_os()) {
        Ok(cli) => cli.run(),
        Err(error) => cli::refuse(error),
    }
}
