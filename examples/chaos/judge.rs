//! Whether what there is is what was said last.

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
    server::{NAMESPACE, insist},
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// What is not as it was said to be by then is made so by nobody but another garbage collector.
const COLLECTOR: Duration = Duration::from_secs(60);
/// So many problems are told.
const TOLD: usize = 10;

/// Child by name: who owns it, and its text.
type Children = BTreeMap<String, (Vec<String>, String)>;

impl Driver {
    /// Waits until all is as it was said to be; how long that took.
    pub(crate) async fn converge(&self, patience: Duration) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let mut collector_forgets = begin + COLLECTOR;
        loop {
            let problems = self.problems().await?;
            if problems.is_empty() {
                return Ok(begin.elapsed());
            }
            if Instant::now() >= collector_forgets {
                self.server.restart_collector().await?;
                collector_forgets += patience;
            }
            if begin.elapsed() > patience {
                let told: Vec<_> = problems.iter().take(TOLD).map(String::as_str).collect();
                bail!(
                    "not as it was said to be after {patience:?}, {} problems:\n  {}",
                    problems.len(),
                    told.join("\n  ")
                );
            }
            sleep(LOOK).await;
        }
    }

    async fn problems(&self) -> anyhow::Result<Vec<String>> {
        let mut problems = Vec::new();
        let all = Api::<ConfigMap>::namespaced(self.server.client.clone(), NAMESPACE);
        let all = insist("children", async || all.list(&ListParams::default()).await).await?;
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
                problems.push(format!("{}: children of nobody: {children:?}", kind.plural()));
            }
        }
        Ok(problems)
    }

    fn state_problem(&self, kind: &Kind) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        let status = fleet.manager.status_of(format!("CompositeController-{}", kind.controller()));
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
        // Whose type has just begun to be served.
        let listed = insist("parents", async || parents.list(&ListParams::default()).await).await?;
        let live: BTreeSet<_> = listed.iter().map(ResourceExt::name_any).collect();
        let said: BTreeSet<_> = kind.parents.keys().copied().map(name_of).collect();
        if live != said {
            problems.push(format!("{}: parents {live:?}, not {said:?}", kind.plural()));
        }
        if kind.expected() != Expected::Running {
            return Ok(());
        }
        let everybodys = children.clone();
        if !self.server.is_simulated() {
            // The real garbage collector takes its time while types come and go.
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
                        let found = found.or_else(|| everybodys.get(&child).cloned());
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

/// Every deletion of a child by the manager has a reason: an edit of its parent. Returns how many
/// there were.
///
/// # Errors
///
/// Which children were deleted more often, and how often.
pub(crate) fn excused(
    desired: &Desired,
    deletes: &BTreeMap<String, usize>,
) -> anyhow::Result<usize> {
    let reasons = |name: &String| desired.excuses.get(name).copied().unwrap_or_default();
    let unexcused = deletes.iter().filter(|(name, number)| **number > reasons(name));
    let problems: Vec<_> = unexcused
        .map(|(name, number)| format!("{name}: {number} times, for {} reasons", reasons(name)))
        .take(TOLD)
        .collect();
    if problems.is_empty() {
        return Ok(deletes.values().sum());
    }
    bail!("deleted without a reason:\n  {}", problems.join("\n  "))
}
