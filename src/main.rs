//! The binary: reads flags and environment, runs one command, says how it went.

mod cli;

use std::process::ExitCode;

use clap::Parser;

/// 0: it worked. 1: it failed. 2: the command line is wrong.
fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(error) => cli::refuse(error),
    }
}
