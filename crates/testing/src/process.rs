//! Process of the control plane: its log, its readiness, its end.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::{self, Instant};

use super::{Binary, Error};

/// Limit for a process to become ready, long enough for a loaded machine.
const READY_DEADLINE: Duration = Duration::from_secs(90);
/// Interval between readiness checks, short relative to a start of seconds.
const READY_INTERVAL: Duration = Duration::from_millis(25);
/// Length of the log's end in errors, enough for the fatal line and its context.
const LOG_TAIL_BYTES: u64 = 4096;

/// Running process; killed when dropped.
#[derive(Debug)]
pub(super) struct ChildProcess {
    part: Binary,
    child: Child,
    log: PathBuf,
    /// Offset of this process's part of the log: a restarted one appends.
    log_start: u64,
}

impl ChildProcess {
    /// Starts `command` in the process group `group`, its output appended to `log`.
    pub(super) fn start(
        part: Binary,
        mut command: Command,
        group: i32,
        log: &Path,
    ) -> Result<Self, Error> {
        let io = || Error::io(format!("opening {}", log.display()));
        let output =
            File::options().create(true).append(true).mode(0o600).open(log).map_err(io())?;
        let log_start = output.metadata().map_err(io())?.len();
        let errors = output.try_clone().map_err(io())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(group)
            .spawn()
            .map_err(Error::io(format!("starting {}", command.get_program().display())))?;
        Ok(Self { part, child, log: log.to_owned(), log_start })
    }

    pub(super) fn part(&self) -> Binary {
        self.part
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Calls `probe` until it succeeds, the process ends or the deadline passes.
    pub(super) async fn ready(
        &mut self,
        probe: impl AsyncFn() -> Result<(), String>,
    ) -> Result<Duration, Error> {
        let name = self.part.file_name();
        let start = Instant::now();
        loop {
            let ended = self.child.try_wait().map_err(Error::io(format!("waiting for {name}")))?;
            if let Some(status) = ended {
                let log = self.log_tail();
                return Err(Error::Exited { name, status: status.to_string(), log });
            }
            let problem = match time::timeout(Duration::from_secs(5), probe()).await {
                Ok(Ok(())) => return Ok(start.elapsed()),
                Ok(Err(problem)) => problem,
                Err(_) => "no response within 5 s".to_owned(),
            };
            if start.elapsed() > READY_DEADLINE {
                let log = self.log_tail();
                return Err(Error::NotReady { name, waited: start.elapsed(), problem, log });
            }
            time::sleep(READY_INTERVAL).await;
        }
    }

    /// Waits until the process writes `text` into its log.
    pub(super) async fn logged(&mut self, text: &str) -> Result<Duration, Error> {
        let (log, start) = (self.log.clone(), self.log_start);
        let probe = async || {
            let log = read_from(&log, start).map_err(|error| error.to_string())?;
            if log.contains(text) { Ok(()) } else { Err(format!("not logged yet: {text:?}")) }
        };
        self.ready(probe).await
    }

    /// Kills the process and waits for its end; returns at once when it has ended.
    pub(super) fn kill(&mut self) {
        // Fails only for a process that has ended and was awaited.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn log_tail(&self) -> String {
        let length = std::fs::metadata(&self.log).map_or(0, |metadata| metadata.len());
        let start = self.log_start.max(length.saturating_sub(LOG_TAIL_BYTES));
        read_from(&self.log, start)
            .unwrap_or_else(|error| format!("(reading {} failed: {error})", self.log.display()))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_from(log: &Path, start: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn an_early_end_is_an_error_with_the_end_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        std::fs::write(&log, "of an earlier process\n").unwrap();
        let command = shell("echo address already in use; exit 3");
        let mut process = ChildProcess::start(Binary::Etcd, command, 0, &log).unwrap();

        let error = process.ready(async || Err("refused".to_owned())).await.unwrap_err();

        let Error::Exited { name: "etcd", status, log } = error else { panic!("{error}") };
        assert_eq!(status, "exit status: 3");
        assert_eq!(log, "address already in use\n");
    }

    #[tokio::test]
    async fn readiness_is_polled_until_it_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut process = ChildProcess::start(Binary::Etcd, shell("sleep 600"), 0, &log).unwrap();
        let attempts = std::cell::Cell::new(0);

        let ready = process
            .ready(async || {
                attempts.set(attempts.get() + 1);
                if attempts.get() < 3 { Err("not yet".to_owned()) } else { Ok(()) }
            })
            .await;

        ready.unwrap();
        assert_eq!(attempts.get(), 3);
    }
}
