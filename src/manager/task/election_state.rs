//! State of the election of a manager: elected runnables start when this replica leads, and stop
//! when it no longer leads.

use std::{future::pending, sync::Arc};

use super::super::{
    Election,
    election::{
        ElectionChange, ElectionRun,
        term::{Leadership, Term},
    },
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
    pub(super) fn leads(&self) -> bool {
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

    /// Begins the campaign after every group has been started.
    pub(super) fn campaign(&mut self) {
        *self = match std::mem::replace(self, Self::Disabled) {
            Self::NotStarted(election) => Self::Campaigning(election.start(), None),
            other @ (Self::Disabled | Self::Campaigning(..)) => other,
        };
    }
}
