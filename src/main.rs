//! The binary: reads flags and environment, runs one command, and maps its result to an exit code.

mod cli;

use std::process::ExitCode;

/// Allocator that needs less CPU time than that of the C library, above all musl's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code 0: success. 1: failure. 2: invalid command line.
fn main() -> ExitCode {
    match cli::Cli::read(std::env::args_os()) {
        Ok(cli) => cli.run(),
        Err(error) => cli::refuse(error),
    }
}
