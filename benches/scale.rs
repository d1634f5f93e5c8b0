//! Bench: cost of many controllers, parents, children, foreign objects and types.
//!
//! `cargo bench --bench scale` prints for each case the memory and the CPU time of a process
//! `pilotlight run`, and the distributions of its latencies; `-- --quick` takes small sizes. Hooks
//! and, if simulated, the API server are in the process of the bench, so that the measured memory
//! and CPU time are those of the controllers alone. `--peer-binary` measures another program that
//! serves `CompositeController` by the same load. Compare ratios within one run; absolute figures
//! depend on the machine.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and fails loudly"
)]

#[path = "scale/arguments.rs"]
mod arguments;
#[path = "scale/figure.rs"]
mod figure;
#[path = "scale/harness.rs"]
mod harness;
#[path = "scale/hooks.rs"]
mod hooks;
#[path = "scale/idle.rs"]
mod idle;
#[path = "scale/memory.rs"]
mod memory;
#[path = "scale/no_op.rs"]
mod no_op;
#[path = "scale/noise.rs"]
mod noise;
#[path = "scale/objects.rs"]
mod objects;
#[path = "scale/process.rs"]
mod process;
#[path = "scale/server.rs"]
mod server;
#[path = "scale/sharing.rs"]
mod sharing;
#[path = "scale/types.rs"]
mod types;
#[path = "scale/writes.rs"]
mod writes;

use std::process::ExitCode;

use arguments::{Arguments, USAGE};

/// Names of the cases.
const CASES: [&str; 7] = ["sharing", "no-op", "memory", "writes", "first-sync", "types", "idle"];

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args().any(|argument| matches!(argument.as_str(), "-h" | "--help")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if arguments.wants("sharing") {
        sharing::run(&arguments).await;
    }
    if arguments.wants("no-op") {
        no_op::run(&arguments).await;
    }
    if arguments.wants("memory") {
        memory::run(&arguments).await;
    }
    if arguments.wants("writes") {
        writes::rewrites(&arguments).await;
    }
    if arguments.wants("first-sync") {
        writes::first_sync(&arguments).await;
    }
    if arguments.wants("types") {
        types::run(&arguments).await;
    }
    if arguments.wants("idle") {
        idle::run(&arguments).await;
    }
    ExitCode::SUCCESS
}
