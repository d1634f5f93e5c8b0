//! Supervisor that ends processes and removes their data when their parent ends, even by `kill -9`.
//!
//! Two shells read pipes whose other ends only the parent holds. The first leads a process group
//! that the children join, and kills it at the end of its pipe. The second is outside of that
//! group, so that it survives to remove the data. A parent-death signal would need unsafe code, and
//! fires when the spawning *thread* ends.

use std::{
    fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use super::Error;

/// Script of the group leader: at the end of its input it kills the group, itself included.
const LEADER: &str = "trap '' HUP INT TERM; read -r _; kill -KILL 0";

/// Script that at the end of its input kills group `$1`, then removes `$2`, repeatedly while files
/// are written there.
const SWEEPER: &str = r#"trap '' HUP INT TERM
read -r _
kill -KILL -- "-$1" 2>/dev/null
n=0
while [ $n -lt 100 ]; do
    rm -rf -- "$2" 2>/dev/null
    [ -e "$2" ] || exit 0
    sleep 0.1
    n=$((n + 1))
done"#;

/// Process group and directory that end with this value or with the process.
#[derive(Debug)]
pub(super) struct ProcessSupervisor {
    leader: Child,
    sweeper: Child,
    /// Pipes, dropped to end the two shells.
    pipes: Option<(ChildStdin, ChildStdin)>,
    group: i32,
    data: PathBuf,
}

impl ProcessSupervisor {
    /// Starts supervising and creates the directory `data`, which must not exist yet.
    pub(super) fn start(data: PathBuf) -> Result<Self, Error> {
        let mut leader = shell(LEADER, &[])?;
        let group = i32::try_from(leader.id()).expect("process ids are positive 32-bit numbers");
        let group_text = group.to_string();
        let data_text = data.to_string_lossy();
        let mut sweeper = shell(SWEEPER, &[&group_text, &data_text])?;
        let pipes = leader.stdin.take().zip(sweeper.stdin.take());
        let supervisor = Self { leader, sweeper, pipes, group, data };
        // Created only now: a parent that is killed earlier leaves no directory.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&supervisor.data)
            .map_err(Error::io(format!("creating {}", supervisor.data.display())))?;
        Ok(supervisor)
    }

    /// Returns the process group that children must join, for [`CommandExt::process_group`].
    pub(super) fn group(&self) -> i32 {
        self.group
    }

    /// Returns the directory, which is removed with this value.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// Kills the group, removes the data and waits for both; returns at once when called again.
    ///
    /// The children's entries in the process table are left to the process that spawned them.
    pub(super) fn end(&mut self) {
        drop(self.pipes.take());
        self.leader.wait().ok();
        self.sweeper.wait().ok();
    }
}

impl Drop for ProcessSupervisor {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a shell that leads a separate process group, so that Ctrl-C does not reach it.
fn shell(script: &str, arguments: &[&str]) -> Result<Child, Error> {
    Command::new("/bin/sh")
        .args(["-c", script, "pilotlight-supervisor"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(Error::io("starting /bin/sh, which supervises the control plane"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_kills_the_group_and_removes_the_data() {
        let parent = tempfile::tempdir().unwrap();
        let mut supervisor = ProcessSupervisor::start(parent.path().join("data")).unwrap();
        fs::write(supervisor.data().join("file"), "x").unwrap();
        let mut child =
            Command::new("sleep").arg("600").process_group(supervisor.group()).spawn().unwrap();

        supervisor.end();

        assert!(!child.wait().unwrap().success());
        assert!(!supervisor.data().exists());
    }
}
