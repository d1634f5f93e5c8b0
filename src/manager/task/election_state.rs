//! Leadership of a manager: elected runnables start when this replica leads, and stop when it no
//! longer leads.

use std::{future::pending, sync::Arc};

use super::{
    super::{
        Election, ManagerError,
        election::{
            ElectionChange, ElectionRun,
            term::{Leadership, Term},
        },
        lifecycle::LifecycleInput,
        runnable_spec::RunnableSpec,
    },
    Id, ManagerTask,
};

/// State of the election of a manager.
pub(super) enum ElectionState {
    /// There is no election: every runnable runs.
    Disabled,
    /// The groups of runnables are being started; the campaign begins after the last one.
    NotStarted(Box<Election>),
    /// The campaign is under way. The term is present while this replica leads.
    Campaigning(ElectionRun, Option<Arc<Term>>),
}

impl ElectionState {
    pub(super) fn new(election: Option<Election>) -> Self {
        election.map_or(Self::Disabled, |election| Self::NotStarted(Box::new(election)))
    }

    /// Waits for the next change; for ever without a campaign. Cancel safe.
    pub(super) async fn changed(&mut self) -> ElectionChange {
        match self {
            Self::Campaigning(run, _) => run.changed().await,
            Self::Disabled | Self::NotStarted(_) => pending().await,
        }
    }

    /// Leadership of an epoch that needs it and starts now.
    pub(super) fn of_new_epoch(&self) -> (Leadership, Option<&Arc<Term>>) {
        match self {
            Self::Disabled => (Leadership::NotNeeded, None),
            Self::Campaigning(_, term) => (Leadership::Awaited, term.as_ref()),
            Self::NotStarted(_) => (Leadership::Awaited, None),
        }
    }

    /// Returns whether runnables that need leadership may work.
    fn leads(&self) -> bool {
        match self {
            Self::Disabled | Self::Campaigning(_, Some(_)) => true,
            Self::NotStarted(_) | Self::Campaigning(_, None) => false,
        }
    }

    /// Leaves the election, unless this replica leads: then its elected runnables must end first.
    pub(super) fn withdraw(&self) {
        if !self.leads() {
            self.release();
        }
    }

    /// Frees the lease; no elected epoch is left.
    pub(super) fn release(&self) {
        match self {
            Self::Campaigning(run, _) => run.release(),
            Self::Disabled | Self::NotStarted(_) => {}
        }
    }

    /// Frees the lease, and waits until it is free.
    pub(super) async fn ended(&mut self) {
        match self {
            Self::Campaigning(run, _) => run.ended().await,
            Self::Disabled | Self::NotStarted(_) => {}
        }
    }
}

impl ManagerTask {
    /// Begins the campaign after every group has been started.
    pub(super) fn campaign(&mut self) {
        self.election = match std::mem::replace(&mut self.election, ElectionState::Disabled) {
            ElectionState::NotStarted(election) => {
                ElectionState::Campaigning(election.start(), None)
            }
            other @ (ElectionState::Disabled | ElectionState::Campaigning(..)) => other,
        };
    }

    /// Returns whether a runnable may start now.
    pub(super) fn allows(&self, spec: &RunnableSpec) -> bool {
        self.is_open(spec.group) && (spec.warms_up || !self.stands_by(spec))
    }

    /// Returns whether a runnable waits for leadership.
    pub(super) fn stands_by(&self, spec: &RunnableSpec) -> bool {
        spec.needs_leadership() && !self.election.leads()
    }

    /// Lets a runnable start, if it may.
    pub(super) fn allow(&mut self, id: Id) {
        let Some(entry) = self.entries.get(&id) else { return };
        let (allowed, standby) = (self.allows(&entry.spec), self.stands_by(&entry.spec));
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.standby = standby;
        }
        self.step(id, LifecycleInput::Allowed(allowed));
    }

    pub(super) fn on_election(&mut self, change: ElectionChange) {
        let next = match change {
            ElectionChange::Term(next) => next,
            ElectionChange::Failed(error) => {
                if self.failure.is_none() {
                    self.failure = Some(ManagerError::ElectionFailed(error));
                }
                self.set_term(None);
                return self.close();
            }
        };
        // A term may have begun and ended between two changes.
        self.set_term(None);
        if next.is_some() && !self.is_closing() {
            self.set_term(next);
        }
    }

    pub(super) fn set_term(&mut self, next: Option<Arc<Term>>) {
        let ElectionState::Campaigning(_, term) = &mut self.election else { return };
        let ends = term.is_some();
        term.clone_from(&next);
        let elected = self.entries.iter().filter(|(_, entry)| entry.spec.needs_leadership());
        let ids: Vec<_> = elected.map(|(id, _)| *id).collect();
        for id in ids {
            if ends {
                // The term has stopped the epoch already.
                self.step(id, LifecycleInput::LeaseLost);
            }
            if let Some(term) = &next
                && let Some(epoch) = self.entries.get(&id).and_then(|entry| entry.epoch.as_ref())
            {
                epoch.lead(term);
            }
            if !self.is_closing() {
                self.allow(id);
            }
        }
    }
}
