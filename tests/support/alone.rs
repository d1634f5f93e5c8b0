//! Separate process for a test that measures its process: memory and sockets are shared by all
//! tests of a process.

use std::{env, ffi::OsString, process::Stdio};

use tokio::process::Command;

/// Environment variable that marks a process as a test's own.
const ALONE: &str = "PILOTLIGHT_TEST_ALONE";

/// Runs a test in a separate process with a separate control plane; `name` is the test's full name
/// for `cargo test`.
pub(crate) async fn alone(name: &str, test: impl Future<Output = ()>) {
    alone_where(name, Vec::new, Box::pin(test)).await;
}

/// As [`alone`], in an environment that the parent process sets up first.
#[expect(clippy::print_stdout, reason = "the child's output belongs to the test's output")]
pub(crate) async fn alone_where(
    name: &str,
    environment: impl FnOnce() -> Vec<(&'static str, OsString)>,
    test: impl Future<Output = ()>,
) {
    if env::var_os(ALONE).is_some() {
        return test.await;
    }
    let own = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .envs(environment())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let [printed, said] = [&own.stdout, &own.stderr].map(|it| String::from_utf8_lossy(it));
    println!("{}", quoted(&format!("{printed}{said}")));
    assert!(own.status.success(), "{name} failed in its separate process");
    assert!(printed.contains("1 passed"), "{name} is not a test's name");
}

/// Prefixes each line, so that a tool that counts test results does not count those of the child
/// process.
fn quoted(output: &str) -> String {
    output.lines().map(|line| format!("| {line}\n")).collect()
}

#[test]
fn result_of_a_child_process_is_not_printed_as_one_of_the_harness() {
    let output = "failures:\n    a::b\n\ntest result: FAILED. 0 passed; 1 failed\n";

    let quoted = quoted(output);

    assert!(quoted.contains("test result: FAILED") && quoted.contains("a::b"), "{quoted}");
    assert!(quoted.lines().all(|line| line.starts_with("| ")), "{quoted}");
}
