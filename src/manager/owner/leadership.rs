//! Leadership: elected runnables start when this replica leads, and stop when it no longer does.

use std::{future::pending, sync::Arc};

use super::{
    super::{
        Election, ManagerError,
        election::{
            ElectionChange, ElectionRun,
            term::{Leadership, Term},
        },
        entry::RunnableSpec,
        lifecycle::LifecycleInput,
    },
    Id, Owner,
};

/// Part of a manager in an election.
pub(super) enum Leading {
    /// There is no election: every runnable runs.
    Alone,
    /// The groups are being opened.
    Before(Box<Election>),
    /// The campaign is under way. The term is present while this replica leads.
    Campaign(ElectionRun, Option<Arc<Term>>),
    /// The election could not begin.
    Failed,
}

impl Leading {
    pub(super) fn new(election: Option<Election>) -> Self {
        election.map_or(Self::Alone, |election| Self::Before(Box::new(election)))
    }

    /// Waits for the next change; for ever without a campaign. Cancel safe.
    pub(super) async fn changed(&mut self) -> ElectionChange {
        match self {
            Self::Campaign(run, _) => run.changed().await,
            Self::Alone | Self::Before(_) | Self::Failed => pending().await,
        }
    }

    /// Leadership of an epoch that needs it and starts now.
    pub(super) fn of_new_epoch(&self) -> (Leadership, Option<&Arc<Term>>) {
        match self {
            Self::Alone => (Leadership::NotNeeded, None),
            Self::Campaign(_, term) => (Leadership::Awaited, term.as_ref()),
            Self::Before(_) | Self::Failed => (Leadership::Awaited, None),
        }
    }

    /// Returns whether runnables that need leadership may work.
    fn leads(&self) -> bool {
        match self {
            Self::Alone | Self::Campaign(_, Some(_)) => true,
            Self::Before(_) | Self::Campaign(_, None) | Self::Failed => false,
        }
    }

    /// Leaves the election, unless this replica leads: then its runnables are to end first.
    pub(super) fn withdraw(&self) {
        if !self.leads() {
            self.release();
        }
    }

    /// Frees the lease: nothing that was elected is left.
    pub(super) fn release(&self) {
        match self {
            Self::Campaign(run, _) => run.release(),
            Self::Alone | Self::Before(_) | Self::Failed => {}
        }
    }

    /// Frees the lease, and waits until that has happened.
    pub(super) async fn ended(&mut self) {
        match self {
            Self::Campaign(run, _) => run.ended().await,
            Self::Alone | Self::Before(_) | Self::Failed => {}
        }
    }
}

impl Owner {
    /// Begins the campaign, since every group is open.
    pub(super) fn campaign(&mut self) {
        self.leading = match std::mem::replace(&mut self.leading, Leading::Failed) {
            Leading::Before(election) => match election.start() {
                Ok(run) => Leading::Campaign(run, None),
                Err(error) => {
                    self.failure = Some(ManagerError::ElectionFailed(error.to_string()));
                    self.close();
                    Leading::Failed
                }
            },
            other @ (Leading::Alone | Leading::Campaign(..) | Leading::Failed) => other,
        };
    }

    /// Returns whether a runnable may start now.
    pub(super) fn allows(&self, spec: &RunnableSpec) -> bool {
        self.is_open(spec.group) && (spec.warms_up || !self.stands_by(spec))
    }

    /// Returns whether a runnable waits for leadership.
    pub(super) fn stands_by(&self, spec: &RunnableSpec) -> bool {
        spec.needs_leadership() && !self.leading.leads()
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
        // A term may have ended unseen between two.
        self.set_term(None);
        if next.is_some() && !self.is_closing() {
            self.set_term(next);
        }
    }

    fn set_term(&mut self, next: Option<Arc<Term>>) {
        let Leading::Campaign(_, term) = &mut self.leading else { return };
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
