//! Model of rollouts: random parents, hands and crashes against the plan and an executor that
//! writes revisions before children, one write at a time.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;

/// Event between two steps.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The parent is changed to this specification.
    Edit(u8),
    /// The number of children changes.
    Scale(usize),
    /// The hook leaves the children of these bits out of its response for a specification.
    Omit(u8, u8),
    /// A child becomes ready.
    Ready(usize),
    /// A child is no longer ready, for a reason of its own.
    Fail(usize),
    /// A child is deleted by hand.
    Delete(usize),
    /// A child is deleted by hand, and has a finalizer.
    Terminate(usize),
    /// A child that is being deleted is gone.
    Vanish(usize),
    /// A child becomes undecidable, or decidable again: an error takes the place of its comparison.
    Obscure(usize),
    /// The server refuses to create a child by a specification, or accepts it again.
    Refuse(u8, usize),
    /// A sync, which crashes after this number of writes.
    Sync(usize),
}

#[derive(Clone, Debug)]
struct Child {
    spec: u8,
    is_ready: bool,
    is_terminating: bool,
    is_obscure: bool,
    // True if a rollout has made it unavailable, and it was not ready since.
    is_disrupted: bool,
}

#[derive(Clone, Debug, Default)]
struct SimulatedCluster {
    recreates: bool,
    spec: u8,
    scale: usize,
    // Bits of the children that the hook leaves out for a specification.
    omitted: BTreeMap<u8, u8>,
    children: BTreeMap<ChildId, Child>,
    // Children that a rollout has deleted.
    deleted: BTreeSet<ChildId>,
    // Children that were unavailable when their move was decided: they may become ready before
    // their write.
    chosen_unready: BTreeSet<ChildId>,
    revisions: BTreeMap<u8, Vec<RevisionChildren>>,
    // Specifications by which the server does not create a child.
    refused: BTreeSet<(u8, ChildId)>,
    // Missing child that the last sync has waited for.
    awaited: Option<ChildId>,
    writes: usize,
    // First child that was written although it was as the latest revision desires it.
    touched: Option<ChildId>,
}

impl SimulatedCluster {
    fn wanted(&self) -> Vec<ChildId> {
        self.wanted_of(self.spec)
    }

    /// Returns the children in the response for a specification.
    fn wanted_of(&self, spec: u8) -> Vec<ChildId> {
        let omitted = self.omitted.get(&spec).copied().unwrap_or_default();
        let is_wanted = |at: &usize| *at >= 8 || omitted & (1 << at) == 0;
        (0..self.scale).filter(is_wanted).map(child_at).collect()
    }

    /// Returns the number of children that rollouts have made unavailable.
    fn disrupted(&self) -> usize {
        let children = self.children.values();
        children.filter(|child| child.is_disrupted).count() + self.deleted.len()
    }

    /// Changes the wanted children. The deletion of one that is no longer wanted is not of the
    /// rollout's making.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        let wanted = self.wanted();
        self.deleted.retain(|id| wanted.contains(id));
        for (_, child) in self.children.iter_mut().filter(|(id, _)| !wanted.contains(id)) {
            child.is_disrupted = false;
        }
    }

    /// Applies an event.
    fn happen(&mut self, event: Event) {
        match event {
            Event::Edit(spec) => self.change(|cluster| cluster.spec = spec),
            Event::Scale(scale) => self.change(|cluster| cluster.scale = scale),
            Event::Omit(spec, bits) => self.change(|cluster| {
                cluster.omitted.insert(spec, bits);
            }),
            Event::Ready(at) => {
                if let Some(child) = self.children.get_mut(&child_at(at)) {
                    (child.is_ready, child.is_disrupted) = (true, false);
                }
            }
            Event::Fail(at) => {
                if let Some(child) = self.children.get_mut(&child_at(at)) {
                    child.is_ready = false;
                }
            }
            // A deletion by hand is not of the rollout's making.
            Event::Delete(at) => {
                self.children.remove(&child_at(at));
            }
            Event::Terminate(at) => {
                if let Some(child) = self.children.get_mut(&child_at(at)) {
                    (child.is_terminating, child.is_disrupted) = (true, false);
                }
            }
            Event::Vanish(at) => {
                let id = child_at(at);
                if self.children.get(&id).is_some_and(|child| child.is_terminating) {
                    self.children.remove(&id);
                }
            }
            Event::Obscure(at) => {
                if let Some(child) = self.children.get_mut(&child_at(at)) {
                    child.is_obscure = !child.is_obscure;
                }
            }
            Event::Refuse(spec, at) => {
                let refused = (spec, child_at(at));
                if !self.refused.remove(&refused) {
                    self.refused.insert(refused);
                }
            }
            Event::Sync(writes) => {
                self.sync(writes);
            }
        }
    }

    fn plan(&self) -> (Vec<u8>, Plan) {
        let specs: Vec<u8> =
            self.revisions.keys().copied().filter(|spec| *spec != self.spec).collect();
        let older: Vec<_> = specs
            .iter()
            .map(|spec| OlderRevision {
                children: &self.revisions[spec],
                wanted: self.wanted_of(*spec).into_iter().collect(),
            })
            .collect();
        let observe = |id: &ChildId, assigned: AssignedRevision| match self.children.get(id) {
            None => ChildState::Missing,
            Some(child) if child.is_terminating => ChildState::Deleting,
            Some(child) => ChildState::Present {
                is_latest: match child.is_obscure {
                    true => Err("is no object".to_owned()),
                    false => Ok(child.spec == self.spec),
                },
                is_own: match assigned {
                    AssignedRevision::Older(at) => child.spec == specs[at],
                    AssignedRevision::Latest | AssignedRevision::Unassigned => true,
                },
                ready: if child.is_ready { Ok(()) } else { Err("is not ready".to_owned()) },
            },
        };
        let latest = self.revisions.get(&self.spec).cloned().unwrap_or_default();
        let (wanted, overdue) = (self.wanted(), self.awaited.as_ref());
        let mode = |_: &GroupKind| ChildTypeMode::Rolling;
        let plan = plan(&latest, &older, &wanted, overdue, mode, observe);
        (specs, plan)
    }

    /// Keeps what later steps need of a decision.
    fn decide(&mut self, progress: &RolloutProgress) {
        self.awaited = None;
        match progress {
            RolloutProgress::Complete => {}
            RolloutProgress::Waiting(wait) => {
                self.awaited = wait.is_missing().then(|| wait.child.clone());
            }
            RolloutProgress::Updating(child) => {
                if self.children.get(child).is_some_and(|child| !child.is_ready) {
                    self.chosen_unready.insert(child.clone());
                }
            }
        }
    }

    /// Syncs, and crashes after this number of writes. Returns whether anything was written.
    fn sync(&mut self, mut budget: usize) -> bool {
        let (specs, plan) = self.plan();
        let before = self.writes;
        self.decide(&plan.progress);
        let mut may_write = |writes: &mut usize| {
            *writes += usize::from(budget > 0);
            budget.checked_sub(1).inspect(|left| budget = *left).is_some()
        };
        if self.revisions.get(&self.spec) != Some(&plan.latest) {
            if !may_write(&mut self.writes) {
                return true;
            }
            self.revisions.insert(self.spec, plan.latest.clone());
        }
        for (spec, children) in specs.iter().zip(&plan.older) {
            if !children.is_empty() && self.revisions[spec] != *children {
                if !may_write(&mut self.writes) {
                    return true;
                }
                self.revisions.insert(*spec, children.clone());
            }
        }
        for (spec, children) in specs.iter().zip(&plan.older) {
            if children.is_empty() {
                if !may_write(&mut self.writes) {
                    return true;
                }
                self.revisions.remove(spec);
            }
        }
        let wanted = self.wanted();
        let unwanted = self.children.keys().filter(|id| !wanted.contains(id)).cloned();
        for id in unwanted.collect::<Vec<_>>() {
            if !may_write(&mut self.writes) {
                return true;
            }
            self.children.remove(&id);
        }
        self.deleted.retain(|id| wanted.contains(id));
        for id in wanted {
            let spec = match plan.not_latest.get(&id) {
                None | Some(AssignedRevision::Latest) => self.spec,
                Some(AssignedRevision::Older(at)) => specs[*at],
                Some(AssignedRevision::Unassigned) => continue,
            };
            let created = |is_disrupted| Child {
                spec,
                is_ready: false,
                is_terminating: false,
                is_obscure: false,
                is_disrupted,
            };
            let was_unready = self.chosen_unready.contains(&id);
            match self.children.get_mut(&id) {
                Some(child) if child.spec == spec || child.is_terminating || child.is_obscure => {
                    continue;
                }
                None if self.refused.contains(&(spec, id.clone())) => continue,
                _ if !may_write(&mut self.writes) => return true,
                None => {
                    let is_disrupted = self.deleted.remove(&id);
                    self.children.insert(id.clone(), created(is_disrupted));
                }
                // A child that was not ready before is not made unavailable by the rollout.
                Some(child) if child.spec == self.spec => self.touched = Some(id.clone()),
                Some(child) if self.recreates => {
                    let is_disrupted = (child.is_ready && !was_unready) || child.is_disrupted;
                    self.children.remove(&id);
                    if is_disrupted {
                        self.deleted.insert(id.clone());
                    }
                }
                Some(child) => {
                    *child = created((child.is_ready && !was_unready) || child.is_disrupted);
                }
            }
            self.chosen_unready.remove(&id);
        }
        self.writes > before
    }
}

fn child_at(index: usize) -> ChildId {
    id(&format!("c{index:02}"))
}

fn events(has_hands: bool) -> impl Strategy<Value = Vec<Event>> {
    let at = || 0..7_usize;
    let by_hand = prop_oneof![
        at().prop_map(Event::Fail),
        at().prop_map(Event::Delete),
        at().prop_map(Event::Terminate),
        at().prop_map(Event::Vanish),
        at().prop_map(Event::Obscure),
        (0..4_u8, at()).prop_map(|(spec, at)| Event::Refuse(spec, at)),
    ];
    let event = prop_oneof![
        1 => (0..4_u8).prop_map(Event::Edit),
        1 => at().prop_map(Event::Scale),
        1 => (0..4_u8, any::<u8>()).prop_map(|(spec, bits)| Event::Omit(spec, bits)),
        6 => at().prop_map(Event::Ready),
        u32::from(has_hands) * 4 => by_hand,
        8 => (0..6_usize).prop_map(Event::Sync),
    ];
    vec(event, 0..120)
}

fn play(recreates: bool, events: &[Event]) -> Result<(), TestCaseError> {
    let mut cluster = SimulatedCluster { recreates, scale: 4, ..SimulatedCluster::default() };
    cluster.sync(usize::MAX);
    cluster.children.values_mut().for_each(|child| child.is_ready = true);
    for event in events {
        cluster.happen(*event);
        prop_assert!(cluster.disrupted() <= 1, "{event:?}: {cluster:?}");
        prop_assert!(cluster.touched.is_none(), "{event:?}: {cluster:?}");
    }
    // At the end everything becomes ready, the latest specification is accepted, and the rollout
    // comes to its end.
    let latest = cluster.spec;
    cluster.refused.retain(|(spec, _)| *spec != latest);
    cluster.children.retain(|_, child| !child.is_terminating);
    cluster.children.values_mut().for_each(|child| child.is_obscure = false);
    for _ in 0..100 {
        let wrote = cluster.sync(usize::MAX);
        prop_assert!(cluster.disrupted() <= 1, "{cluster:?}");
        let unready = cluster.children.values().filter(|child| !child.is_ready).count();
        for child in cluster.children.values_mut() {
            (child.is_ready, child.is_disrupted) = (true, false);
        }
        if !wrote && unready == 0 && cluster.awaited.is_none() {
            break;
        }
    }
    prop_assert_eq!(cluster.plan().1.progress, RolloutProgress::Complete);
    prop_assert!(
        cluster.children.values().all(|child| child.spec == cluster.spec),
        "{:?}",
        cluster
    );
    let revisions: Vec<_> = cluster.revisions.keys().copied().collect();
    prop_assert_eq!(revisions, [cluster.spec]);
    prop_assert_eq!(&cluster.children.keys().cloned().collect::<Vec<_>>(), &cluster.wanted());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_rollout_makes_two_children_unavailable_and_each_one_ends(
        recreates in any::<bool>(),
        events in any::<bool>().prop_flat_map(events),
    ) {
        play(recreates, &events)?;
    }
}

#[test]
fn rollout_of_fifty_children_writes_each_of_them_once() {
    let mut cluster = SimulatedCluster { scale: 50, ..SimulatedCluster::default() };
    cluster.sync(usize::MAX);
    cluster.children.values_mut().for_each(|child| child.is_ready = true);
    cluster.spec = 1;

    let mut order = Vec::new();
    while let (_, Plan { progress: RolloutProgress::Updating(child), .. }) = cluster.plan() {
        cluster.sync(usize::MAX);
        cluster.children.values_mut().for_each(|child| child.is_ready = true);
        order.push(child);
    }

    assert_eq!(order, cluster.wanted());
}
