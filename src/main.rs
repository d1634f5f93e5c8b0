//! The binary: reads flags and environment, runs one command, says how it went.

mod cli;

use std::process::ExitCode;

/// 0: it worked. 1: it failed. 2: the command line is wrong.
fn main() -> ExitCode {
    match cli::Cli::read(std::env::args_os()) {
        Ok(cli) => cli.run(),
        Err(error) => cli::refuse(error),
    }
}
