//! Measured process: its memory and its CPU time, read from `/proc`.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    process::{Child, Command},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::figure::float;

/// Interval between two samples.
const SAMPLE: Duration = Duration::from_millis(20);
/// CPU time within [`CALM`] below which a process is quiet.
const QUIET: Duration = Duration::from_millis(6);
const CALM: Duration = Duration::from_millis(300);
/// Limit of the wait for a quiet process, so that a program that polls is measured too.
const NEVER_QUIET: Duration = Duration::from_secs(60);

/// Program under measure.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// Running program.
pub(crate) struct Process {
    child: Child,
    directory: PathBuf,
    log: PathBuf,
    sampled: Arc<Mutex<Sampled>>,
    _sampler: JoinSet<()>,
}

#[derive(Default)]
struct Sampled {
    most_kib: u64,
    // CPU time by thread, in nanoseconds; kept for threads that have ended.
    threads: HashMap<PathBuf, u64>,
}

impl Program {
    /// Returns our binary of this build, with its default flags, but no resyncs: they would be
    /// counted with the changes.
    pub(crate) fn pilotlight() -> Self {
        let arguments = [
            "run",
            "--metrics-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
            "--cache-flush-interval=0",
        ];
        Self {
            path: env!("CARGO_BIN_EXE_pilotlight").into(),
            arguments: arguments.map(str::to_owned).to_vec(),
        }
    }

    /// Starts the program; its log is a file in `logs`.
    pub(crate) fn start(&self, kubeconfig: &Path, logs: &Path) -> Process {
        let path = logs.join(format!("log-{:08x}", fastrand::u32(..)));
        let log = File::create(&path).unwrap();
        let child = Command::new(&self.path)
            .args(&self.arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let directory = PathBuf::from(format!("/proc/{}", child.id().unwrap()));
        let sampled = Arc::<Mutex<Sampled>>::default();
        let mut sampler = JoinSet::new();
        let (from, into) = (directory.clone(), Arc::clone(&sampled));
        sampler.spawn(async move {
            loop {
                sample(&from, &mut into.lock());
                sleep(SAMPLE).await;
            }
        });
        Process { child, directory, log: path, sampled, _sampler: sampler }
    }
}

impl Process {
    /// Returns the CPU time of the process so far.
    pub(crate) fn cpu(&self) -> Duration {
        let mut sampled = self.sampled.lock();
        sample(&self.directory, &mut sampled);
        Duration::from_nanos(sampled.threads.values().sum())
    }

    /// Returns the anonymous resident memory in MiB.
    pub(crate) fn memory(&self) -> f64 {
        float(anonymous_kib(&self.directory)) / 1024.0
    }

    /// Returns the most anonymous resident memory since the last call, in MiB.
    pub(crate) fn most_memory(&self) -> f64 {
        float(std::mem::take(&mut self.sampled.lock().most_kib)) / 1024.0
    }

    /// Waits until the process uses no CPU time, for at most a minute.
    pub(crate) async fn quiet(&mut self) {
        let deadline = Instant::now() + NEVER_QUIET;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = fs::read_to_string(&self.log).unwrap();
                panic!("the process has ended, {status}: {log}");
            }
            let before = self.cpu();
            sleep(CALM).await;
            if self.cpu() - before < QUIET {
                return;
            }
        }
    }

    /// Returns the memory at rest in MiB: the median of ten samples after a time of quiet.
    pub(crate) async fn memory_at_rest(&mut self, rest: Duration) -> f64 {
        self.quiet().await;
        sleep(rest).await;
        self.quiet().await;
        let mut samples = Vec::new();
        for _ in 0..10 {
            samples.push(self.memory());
            sleep(SAMPLE).await;
        }
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }

    /// Kills the process and waits for its end.
    pub(crate) async fn stop(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn sample(directory: &Path, into: &mut Sampled) {
    into.most_kib = into.most_kib.max(anonymous_kib(directory));
    for thread in fs::read_dir(directory.join("task")).into_iter().flatten().flatten() {
        let path = thread.path().join("schedstat");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let time = text.split(' ').next().and_then(|time| time.parse().ok());
        if let Some(time) = time {
            into.threads.insert(path, time);
        }
    }
}

fn anonymous_kib(directory: &Path) -> u64 {
    let status = fs::read_to_string(directory.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}
