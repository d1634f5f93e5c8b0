//! Build of the control plane's binaries with the Go toolchain, from the pinned module in
//! `controlplane/`.

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io::{self, BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::time::{self, Instant};

use super::{
    Binary, Error, KUBERNETES_VERSION, Progress, ProgressEvent, binary::is_executable,
    supervisor::ProcessSupervisor,
};

/// Go module, included in the crate for users of `cargo install`.
const GO_MOD: &str = include_str!("../controlplane/go.mod");
const GO_SUM: &str = include_str!("../controlplane/go.sum");
/// Go version in `go.mod`.
const GO_VERSION: &str = "1.26";

const REPORT_INTERVAL: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of lines from a failed build's output, whose errors are last.
const OUTPUT_TAIL_LINES: usize = 30;
/// Prefix of build directories, which are removed after their build unless the machine fails.
const BUILD_DIRECTORY_PREFIX: &str = "build-";

/// The `go` command.
#[derive(Clone, Debug)]
pub(super) struct Toolchain {
    go: PathBuf,
}

impl Default for Toolchain {
    /// The `go` on the PATH.
    fn default() -> Self {
        Self { go: PathBuf::from("go") }
    }
}

impl Toolchain {
    /// Builds `parts` into the directory `target`; each one is built in a separate directory, then
    /// renamed.
    ///
    /// A file lock prevents two processes from building the same: the later one waits, then uses
    /// the earlier one's binaries. The system releases the lock when its process ends, even if it
    /// is killed.
    pub(super) async fn build(
        &self,
        target: &Path,
        parts: &[Binary],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let start = Instant::now();
        fs::create_dir_all(target).map_err(Error::io(format!("creating {}", target.display())))?;
        let lock = lock(&target.join(".lock"), progress).await?;
        let missing: Vec<_> = parts
            .iter()
            .copied()
            .filter(|part| !is_executable(&target.join(part.file_name())))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        progress.report(&ProgressEvent::BuildPlanned { parts: missing.clone() });
        remove_stale_builds(target);

        let aside = target.join(format!("{BUILD_DIRECTORY_PREFIX}{}", std::process::id()));
        let supervisor = ProcessSupervisor::start(aside)?;
        for (name, content) in [("go.mod", GO_MOD), ("go.sum", GO_SUM)] {
            let path = supervisor.data().join(name);
            fs::write(&path, content).map_err(Error::io(format!("writing {}", path.display())))?;
        }
        for (index, part) in missing.iter().copied().enumerate() {
            let step = BuildStep { go: &self.go, part, step: index + 1, of: missing.len() };
            let took = step.run(&supervisor, &missing, progress).await?;
            let name = part.file_name();
            fs::rename(supervisor.data().join(name), target.join(name))
                .map_err(Error::io(format!("moving {name} into {}", target.display())))?;
            progress.report(&ProgressEvent::Built { part, step: step.step, of: step.of, took });
        }
        progress.report(&ProgressEvent::BuildFinished { took: start.elapsed() });
        drop(supervisor);
        drop(lock);
        Ok(())
    }
}

async fn lock(path: &Path, progress: &dyn Progress) -> Result<File, Error> {
    let io = || Error::io(format!("locking {}", path.display()));
    let file = File::options().create(true).append(true).open(path).map_err(io())?;
    let start = Instant::now();
    let mut next_report = start;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if Instant::now() >= next_report {
                    let elapsed = start.elapsed();
                    progress.report(&ProgressEvent::WaitingForOtherBuild { elapsed });
                    next_report = Instant::now() + REPORT_INTERVAL;
                }
                time::sleep(POLL_INTERVAL).await;
            }
            Err(TryLockError::Error(source)) => return Err(io()(source)),
        }
    }
}

/// Removes directories of dead builds. Called with the lock held, so that no build is running.
fn remove_stale_builds(target: &Path) {
    let Ok(entries) = fs::read_dir(target) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(BUILD_DIRECTORY_PREFIX) {
            // A failure only leaves the disk space in use.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Build of one binary.
#[derive(Clone, Copy)]
struct BuildStep<'a> {
    go: &'a Path,
    part: Binary,
    step: usize,
    of: usize,
}

impl BuildStep<'_> {
    async fn run(
        self,
        supervisor: &ProcessSupervisor,
        missing: &[Binary],
        progress: &dyn Progress,
    ) -> Result<Duration, Error> {
        let part = self.part.file_name();
        let start = Instant::now();
        let child = go_build(self.go, self.part, supervisor.data())
            .process_group(supervisor.group())
            .spawn()
            .map_err(|source| no_go(source, missing))?;
        let mut go = GoToolchain(child);
        let output = Output::read(go.0.stderr.take().expect("standard error is piped"));
        let mut next_report = start;
        let status = loop {
            let ended = go.0.try_wait().map_err(Error::io("waiting for go"))?;
            if let Some(status) = ended {
                break status;
            }
            if Instant::now() >= next_report {
                progress.report(&ProgressEvent::Building {
                    part: self.part,
                    step: self.step,
                    of: self.of,
                    packages: output.packages(),
                    elapsed: start.elapsed(),
                });
                next_report = Instant::now() + REPORT_INTERVAL;
            }
            time::sleep(POLL_INTERVAL).await;
        };
        let output = output.tail();
        if !status.success() {
            return Err(Error::Build { part, status: status.to_string(), output });
        }
        Ok(start.elapsed())
    }
}

/// Running `go`, killed when its build is dropped; the supervisor kills its children.
struct GoToolchain(Child);

impl Drop for GoToolchain {
    fn drop(&mut self) {
        // Fails only for a process that has ended and was awaited.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the build command; `-v` prints each compiled package, which is the progress.
fn go_build(go: &Path, part: Binary, directory: &Path) -> Command {
    let mut command = Command::new(go);
    command
        .current_dir(directory)
        .envs([("CGO_ENABLED", "0"), ("GOWORK", "off")])
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .args(["build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags"])
        .arg(link_flags(part))
        .args(["-o", part.file_name(), package(part)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn package(part: Binary) -> &'static str {
    match part {
        Binary::Etcd => "go.etcd.io/etcd/server/v3",
        Binary::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
        Binary::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
        Binary::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
    }
}

/// Returns the linker flags that set the version; without it the server reports v0.0.0-master and
/// emulates a wrong version.
fn link_flags(part: Binary) -> String {
    let strip = "-s -w";
    if part == Binary::Etcd {
        return strip.to_owned();
    }
    let (major, minor) = major_minor(KUBERNETES_VERSION);
    format!(
        "{strip} -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION} \
         -X k8s.io/component-base/version.gitMajor={major} \
         -X k8s.io/component-base/version.gitMinor={minor} \
         -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"
    )
}

fn major_minor(version: &str) -> (&str, &str) {
    let mut numbers = version.trim_start_matches('v').split('.');
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

fn no_go(source: io::Error, missing: &[Binary]) -> Error {
    if source.kind() != io::ErrorKind::NotFound {
        return Error::io("starting go")(source);
    }
    let missing: Vec<_> = missing.iter().map(|part| part.file_name()).collect();
    Error::NoGo { missing: missing.join(", "), wanted: GO_VERSION }
}

/// Reader of the output of `go build -v`.
struct Output {
    packages: Arc<AtomicUsize>,
    reader: JoinHandle<VecDeque<String>>,
}

impl Output {
    fn read(stderr: ChildStderr) -> Self {
        let packages = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&packages);
        let reader = thread::spawn(move || {
            let mut tail = VecDeque::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if is_package(&line) {
                    counter.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                if tail.len() == OUTPUT_TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line);
            }
            tail
        });
        Self { packages, reader }
    }

    fn packages(&self) -> usize {
        self.packages.load(Ordering::Relaxed)
    }

    fn tail(self) -> String {
        let lines = self.reader.join().unwrap_or_default();
        Vec::from(lines).join("\n")
    }
}

/// Package paths have no spaces and no colon; downloads, errors and their headings do.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.contains([' ', ':', '\t'])
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;
    use crate::{ETCD_VERSION, Silent};

    const BOTH: &[Binary] = &[Binary::Etcd, Binary::KubeApiserver];

    /// Toolchain that logs each call in the file `calls`; `$out` is the path of its binary.
    fn toolchain(directory: &Path, script: &str) -> Toolchain {
        let go = directory.join("go");
        let calls = directory.join("calls");
        let find_out = r#"while [ "$1" != -o ]; do shift; done; out=$2"#;
        let script = format!("#!/bin/sh\n{find_out}\necho $out >> {}\n{script}", calls.display());
        // By a shell: a file that this process writes may be "busy" for a child forked meanwhile.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#, "sh", &script]).arg(&go);
        assert!(shell.status().unwrap().success());
        Toolchain { go }
    }

    const GOOD: &str = "echo binary > $out; chmod 755 $out";

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn two_builds_at_once_build_once() {
        let directory = tempfile::tempdir().unwrap();
        let go = toolchain(directory.path(), &format!("sleep 0.2; {GOOD}"));
        let target = directory.path().join("target");

        let (one, two) =
            tokio::join!(go.build(&target, BOTH, &Silent), go.build(&target, BOTH, &Silent));

        one.unwrap();
        two.unwrap();
        let calls = fs::read_to_string(directory.path().join("calls")).unwrap();
        assert_eq!(calls, "etcd\nkube-apiserver\n");
        assert_eq!(names(&target), [".lock", "etcd", "kube-apiserver"]);
    }

    #[tokio::test]
    async fn a_failed_build_reports_the_output_of_go_and_keeps_finished_binaries() {
        let directory = tempfile::tempdir().unwrap();
        let fails = format!(
            "[ $out = etcd ] || {{ echo half > $out; echo no: disk >&2; exit 1; }}; {GOOD}"
        );
        let go = toolchain(directory.path(), &fails);
        let target = directory.path().join("target");

        let error = go.build(&target, BOTH, &Silent).await.unwrap_err();

        let Error::Build { part: "kube-apiserver", output, .. } = error else { panic!("{error}") };
        assert_eq!(output, "no: disk");
        assert_eq!(names(&target), [".lock", "etcd"]);
    }

    #[tokio::test]
    async fn a_dropped_build_is_killed_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let go = toolchain(directory.path(), "echo half > $out; exec sleep 600");
        let target = directory.path().join("target");
        fs::create_dir_all(target.join("build-of-a-lost-machine")).unwrap();

        {
            let mut build = pin!(go.build(&target, BOTH, &Silent));
            while !directory.path().join("calls").exists() {
                assert!(poll!(&mut build).is_pending());
                time::sleep(Duration::from_millis(5)).await;
            }
        }

        assert_eq!(names(&target), [".lock"]);
    }

    #[tokio::test]
    async fn a_missing_toolchain_says_what_to_install_or_set() {
        let directory = tempfile::tempdir().unwrap();
        let go = Toolchain { go: directory.path().join("go") };

        let error = go.build(directory.path(), &[Binary::Etcd], &Silent).await.unwrap_err();

        let text = error.to_string();
        assert!(text.starts_with("etcd is missing and cannot be built"), "{text}");
        assert!(text.contains("install Go 1.26 or newer, or set KUBEBUILDER_ASSETS"), "{text}");
    }

    #[test]
    fn the_pinned_module_has_the_documented_versions() {
        let staging = KUBERNETES_VERSION.replacen("v1", "v0", 1);

        assert!(GO_MOD.contains(&format!("k8s.io/kubernetes {KUBERNETES_VERSION} ")));
        assert!(GO_MOD.contains(&format!("go.etcd.io/etcd/server/v3 {ETCD_VERSION} ")));
        assert!(GO_MOD.contains(&format!("go {GO_VERSION}")));
        let replaced: Vec<_> = GO_MOD.lines().filter(|line| line.contains(" => ")).collect();
        assert_eq!(replaced.len(), 33);
        assert!(replaced.iter().all(|line| line.ends_with(&staging)), "{replaced:?}");
    }

    #[test]
    fn every_binary_is_a_tool_of_the_pinned_module() {
        for part in
            [Binary::Etcd, Binary::KubeApiserver, Binary::KubeControllerManager, Binary::Kubectl]
        {
            assert!(GO_MOD.contains(&format!("\t{}\n", package(part))), "{part:?}");
        }
    }

    #[test]
    fn the_version_is_stamped() {
        assert!(link_flags(Binary::KubeApiserver).contains("gitMinor=36 "));
    }

    #[test]
    fn packages_are_distinguished_from_messages() {
        assert!(is_package("k8s.io/api/core/v1"));
        assert!(!is_package("go: downloading k8s.io/api v0.36.3"));
        assert!(!is_package("main.go:3:8: no required module provides package x"));
    }
}
