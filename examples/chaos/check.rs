//! Checks: compares the actual state with the desired state.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::bail;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt, api::ListParams};
use pilotlight::manager::ControllerState;
use tokio::time::{Instant, sleep};

use crate::{
    desired::{Desired, Expected, Kind},
    driver::{Driver, name_of},
    server::{NAMESPACE, retry},
};

/// Time between two comparisons.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the collector is restarted: a difference that persists may be caused by its
/// stale view of owners.
const COLLECTOR_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two reports of the differences that remain.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
/// Upper bound on the problems in an error message.
const MAX_REPORTED: usize = 10;

/// Children by name, each with its owners and its text.
type Children = BTreeMap<String, (Vec<String>, String)>;

impl Driver {
    /// Waits until the actual state matches the desired one; returns how long that took.
    #[expect(clippy::print_stdout, reason = "output of a command-line program")]
    pub(crate) async fn converge(&self, patience: Duration) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let mut report_at = begin + REPORT_INTERVAL;
        let mut restart_collector_at = begin + COLLECTOR_TIMEOUT;
        loop {
            let problems = self.problems().await?;
            if problems.is_empty() {
                return Ok(begin.elapsed());
            }
            if Instant::now() >= restart_collector_at {
                self.server.restart_collector().await?;
                restart_collector_at += patience;
            }
            if begin.elapsed() > patience {
                let reported: Vec<_> =
                    problems.iter().take(MAX_REPORTED).map(String::as_str).collect();
                bail!(
                    "not as desired after {patience:?}, {} problems:\n  {}",
                    problems.len(),
                    reported.join("\n  ")
                );
            }
            if Instant::now() >= report_at {
                let (number, first) = (problems.len(), &problems[0]);
                println!("{:?}: {number} problems, the first: {first}", begin.elapsed());
                report_at = Instant::now() + REPORT_INTERVAL;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn problems(&self) -> anyhow::Result<Vec<String>> {
        let mut problems = Vec::new();
        let all = Api::<ConfigMap>::namespaced(self.server.client.clone(), NAMESPACE);
        let all = retry("children", async || all.list(&ListParams::default()).await).await?;
        let mut children: BTreeMap<&str, Children> = BTreeMap::new();
        for child in &all {
            let Some(name) = child.metadata.name.as_deref() else { continue };
            let Some((kind, _)) = name.split_once('-') else { continue };
            let owners = child.owner_references().iter().map(|owner| owner.uid.clone()).collect();
            let text = child.data.iter().flatten().find(|(field, _)| *field == "text");
            let text = text.map(|(_, text)| text.clone()).unwrap_or_default();
            children.entry(kind).or_default().insert(name.to_owned(), (owners, text));
        }
        for kind in &self.desired.kinds {
            problems.extend(self.state_problem(kind));
            let children = children.remove(kind.plural().as_str()).unwrap_or_default();
            if kind.installed {
                self.check_parents(kind, children, &mut problems).await?;
            } else if self.server.is_simulated() && !children.is_empty() {
                problems
                    .push(format!("{}: children without a parent: {children:?}", kind.plural()));
            }
        }
        Ok(problems)
    }

    fn state_problem(&self, kind: &Kind) -> Option<String> {
        let run = self.manager.as_ref()?;
        let status = run.handle.status_of(format!("CompositeController-{}", kind.controller()));
        let expected = kind.expected();
        let is_right = match (expected, status.as_ref().map(|status| status.state)) {
            (Expected::Absent, state) => state.is_none(),
            (Expected::Waiting, state) => state == Some(ControllerState::Waiting),
            (Expected::Running, state) => state == Some(ControllerState::Running),
        };
        let is = status.map(|status| (status.state, status.reason.clone(), status.message.clone()));
        (!is_right).then(|| format!("{} is {is:?}, not {expected:?}", kind.controller()))
    }

    async fn check_parents(
        &self,
        kind: &Kind,
        mut children: Children,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let parents = self.server.parents(kind);
        // Retried, because the type may have just begun to be served.
        let listed = retry("parents", async || parents.list(&ListParams::default()).await).await?;
        let live: BTreeSet<_> = listed.iter().map(ResourceExt::name_any).collect();
        let expected: BTreeSet<_> = kind.parents.keys().copied().map(name_of).collect();
        if live != expected {
            problems.push(format!("{}: parents {live:?}, not {expected:?}", kind.plural()));
        }
        if kind.expected() != Expected::Running {
            return Ok(());
        }
        let all_children = children.clone();
        if !self.server.is_simulated() {
            // The real garbage collector may be slow while types come and go.
            let uids: BTreeSet<_> = listed.iter().filter_map(ResourceExt::uid).collect();
            children.retain(|_, (owners, _)| owners.iter().any(|owner| uids.contains(owner)));
        }
        for parent in &listed {
            let (name, uid) = (parent.name_any(), parent.uid().unwrap_or_default());
            let number = name.parse().unwrap_or(usize::MAX);
            let Some(spec) = kind.parents.get(&number) else { continue };
            let suffix = self.server.naming().suffix(&uid);
            let right = (vec![uid], spec.text.to_string());
            for child in (0..spec.size).map(|child| kind.child(number, child) + &suffix) {
                match children.remove(&child) {
                    Some(found) if found == right => {}
                    found => {
                        let found = found.or_else(|| all_children.get(&child).cloned());
                        problems.push(format!("{child} is {found:?}, not {right:?}"));
                    }
                }
            }
            let status = &parent.data["status"];
            if status["size"] != spec.size || status["text"] != right.1 {
                problems.push(format!("status of {} {name}: {status}, {spec:?}", kind.plural()));
            }
        }
        if !children.is_empty() {
            problems.push(format!("{}: children too many: {children:?}", kind.plural()));
        }
        Ok(())
    }
}

/// Checks that every deletion of a child by the manager has a reason: an update of its parent.
/// Returns the number of deletions.
///
/// # Errors
///
/// Names the children that were deleted more often, and how often.
pub(crate) fn deletes(
    desired: &Desired,
    deletes: &BTreeMap<String, usize>,
) -> anyhow::Result<usize> {
    let reasons = |name: &String| desired.allowed_deletes.get(name).copied().unwrap_or_default();
    let unexpected = deletes.iter().filter(|(name, number)| **number > reasons(name));
    let problems: Vec<_> = unexpected
        .map(|(name, number)| format!("{name}: {number} times, for {} reasons", reasons(name)))
        .take(MAX_REPORTED)
        .collect();
    if problems.is_empty() {
        return Ok(deletes.values().sum());
    }
    bail!("deleted without a reason:\n  {}", problems.join("\n  "))
}
