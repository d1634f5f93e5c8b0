//! The binary behind a proxy, killed at one of its writes and started again.

use std::{path::Path, process::Stdio};

use pilotlight::testing::{Action, ControlPlane, Faults, Rule, Verb, proxy::Proxy};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::PATIENCE;

/// Side of a write on which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillSide {
    /// The request does not reach the server.
    Before,
    /// The server carries out the request, but the process gets no response.
    After,
}

/// Binary with its flags and its proxy to a control plane.
pub(crate) struct Killed {
    pub(crate) faults: Faults,
    /// Kept while the binary may run.
    _proxy: Proxy,
    kubeconfig: tempfile::NamedTempFile,
    arguments: Vec<String>,
    /// Namespace whose writes count; `None` for all.
    namespace: Option<String>,
}

impl Killed {
    pub(crate) async fn new(plane: &ControlPlane, arguments: Vec<String>) -> Self {
        let faults = Faults::default();
        let proxy = Proxy::to_api_server(plane.config(), &faults).await.unwrap();
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), proxy.kubeconfig()).unwrap();
        Self { faults, _proxy: proxy, kubeconfig, arguments, namespace: None }
    }

    /// Counts the writes in this namespace only.
    pub(crate) fn count_in(&mut self, namespace: &str) {
        self.namespace = Some(namespace.to_owned());
    }

    /// Extends a rule to the writes that count. Events are excluded: no controller depends on them.
    fn about(&self, rule: Rule) -> Rule {
        let rule = match &self.namespace {
            Some(namespace) => rule.namespace(namespace),
            None => rule,
        };
        let rule = rule.path_not_contains("/events");
        [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete].into_iter().fold(rule, Rule::verb)
    }

    /// Runs the binary during `work`, with at most one kill. Returns the process that runs then.
    pub(crate) async fn during(
        &self,
        crash: Option<(KillSide, usize)>,
        work: impl Future<Output = ()>,
    ) -> Child {
        self.faults.forget_seen();
        let mut process = self.run();
        let killed = async {
            let Some((when, number)) = crash else { return std::future::pending().await };
            let action = match when {
                KillSide::Before => Action::Hang,
                KillSide::After => Action::Withhold,
            };
            let fired = self.faults.fired().len();
            let rule = self.faults.add(self.about(Rule::new(action)).nth(number));
            self.faults.wait_until(|faults| faults.fired().len() > fired).await;
            rule
        };
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => assert!(
                crash.is_none_or(|(_, number)| number > 1),
                "the first request is made in every run"
            ),
            rule = killed => {
                process.kill().await.unwrap();
                // A held request must end before the rule is removed, which would let it proceed.
                let gone = self.faults.wait_until(|faults| faults.open().is_empty());
                timeout(PATIENCE, gone).await.unwrap();
                self.faults.remove(rule);
                process = self.run();
                work.await;
            }
        }
        self.faults.clear();
        process
    }

    /// Number of writes since the last run began. Waits until no request is open.
    pub(crate) async fn writes(&self) -> usize {
        let rule = self.about(Rule::new(Action::Hang));
        let writes = self.faults.seen().iter().filter(|info| rule.matches(info)).count();
        let idle = self.faults.wait_until(|faults| faults.open().is_empty());
        timeout(PATIENCE, idle).await.unwrap();
        writes
    }

    fn run(&self) -> Child {
        start_binary(self.kubeconfig.path(), &self.arguments)
    }
}

/// Starts the manager without servers of its own; it is killed when the process is dropped.
pub(crate) fn start_binary(kubeconfig: &Path, arguments: &[String]) -> Child {
    binary(kubeconfig, arguments).spawn().unwrap()
}

/// Returns the command of a manager without servers, unless an argument names one.
pub(crate) fn binary(kubeconfig: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotlight"));
    command
        .args(["run", "--metrics-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}
