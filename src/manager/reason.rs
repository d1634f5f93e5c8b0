//! Reason codes of the states of runnables and of unmet conditions.

use std::{borrow::Cow, fmt};

use super::DoneReason;
use crate::discovery::InstallingReason;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)*) => {
        /// Reason for the state of a runnable, or for an unmet condition: one CamelCase word in
        /// status conditions, Events, tables and metrics.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
            /// Reason of a user's own condition. Use [`Reason::from`], which maps known words to
            /// their variants.
            Other(Cow<'static, str>),
        }

        impl Reason {
            /// Returns the reason as one word.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<Cow<'static, str>> for Reason {
            fn from(word: Cow<'static, str>) -> Self {
                match &*word {
                    $($word => Self::$variant,)*
                    _ => Self::Other(word),
                }
            }
        }

        #[cfg(test)]
        const ALL: &[Reason] = &[$(Reason::$variant,)*];
    };
}

impl Reason {
    /// Returns whether it is not known if the type is served.
    pub(crate) fn is_of_unknown_type(&self) -> bool {
        matches!(self, Self::TypeUnknown | Self::DiscoveryNotStarted | Self::DiscoveryEnded)
    }
}

reasons! {
    /// The type is proven not to exist.
    TypeAbsent = "TypeAbsent",
    /// Neither presence nor absence of the type is proven.
    TypeUnknown = "TypeUnknown",
    /// The discovery of the type's cluster has never run: no manager runs the cluster, or has not
    /// started it yet.
    DiscoveryNotStarted = "DiscoveryNotStarted",
    /// The discovery of the type's cluster has ended: its runnable was removed from the manager.
    DiscoveryEnded = "DiscoveryEnded",
    /// The server offers no list for the type.
    NotWatchable = "NotWatchable",
    /// The type lacks the required subresource.
    SubresourceMissing = "SubresourceMissing",
    /// The names of the CRD are not accepted.
    NamesNotAccepted = "NamesNotAccepted",
    /// The CRD is not established.
    NotEstablished = "NotEstablished",
    /// The CRD is not established, because of the certificates of its conversion webhook.
    InvalidCaBundle = "InvalidCABundle",
    /// The requested version is not served.
    VersionNotServed = "VersionNotServed",
    /// The publisher of the condition is gone.
    ConditionAbandoned = "ConditionAbandoned",
    /// The condition panicked when it was subscribed to.
    ConditionPanicked = "ConditionPanicked",
    /// The condition has published no verdict.
    ConditionUnknown = "ConditionUnknown",
    /// The object of a condition does not exist, or is not in the required state.
    ObjectStateUnmet = "ObjectStateUnmet",
    /// A condition holds that must not.
    ConditionMet = "ConditionMet",
    /// The condition flaps, so the next epoch is delayed.
    ConditionFlaps = "ConditionFlaps",
    /// A property of the runnable, such as its group, panicked.
    RunnablePanicked = "RunnablePanicked",
    /// The group is not open yet.
    NotStarted = "NotStarted",
    /// The runnable is ready to work and waits until this replica leads.
    Standby = "Standby",
    /// The sources have not synced yet.
    SourcesSyncing = "SourcesSyncing",
    /// Later groups were started before the runnable reported running.
    StartTimeout = "StartTimeout",
    /// The sources have not synced within the sync timeout.
    SyncTimeout = "SyncTimeout",
    /// The server refuses a list or a watch.
    Forbidden = "Forbidden",
    /// A conversion webhook fails, so that a type cannot be read.
    ConversionFailed = "ConversionFailed",
    /// A watch fails, so a cache is behind.
    Stale = "Stale",
    /// Optional types are missing.
    Degraded = "Degraded",
    /// The runnable runs without problems.
    Running = "Running",
    /// The epoch is stopping.
    Draining = "Draining",
    /// The epoch does not end although its grace is over.
    Stuck = "Stuck",
    /// The run failed, and the next one waits for the back-off.
    RunFailed = "RunFailed",
    /// The runnable was removed before its first epoch.
    Removed = "Removed",
    /// The last epoch ended with [`DoneReason::TypeGone`].
    TypeGone = "TypeGone",
    /// The last epoch ended with [`DoneReason::Superseded`].
    Superseded = "Superseded",
    /// The last epoch ended with [`DoneReason::Cancelled`].
    Cancelled = "Cancelled",
    /// The last epoch ended with [`DoneReason::Completed`].
    Completed = "Completed",
    /// A required source was done, and the next epoch is delayed.
    SourceDone = "SourceDone",
    /// The last epoch ended with [`DoneReason::Failed`].
    Failed = "Failed",
    /// The last epoch ended with [`DoneReason::Panicked`].
    Panicked = "Panicked",
    /// The last epoch ended with [`DoneReason::LeaseLost`].
    LeaseLost = "LeaseLost",
}

impl From<&'static str> for Reason {
    fn from(word: &'static str) -> Self {
        Cow::Borrowed(word).into()
    }
}

impl From<String> for Reason {
    fn from(word: String) -> Self {
        Cow::<'static, str>::Owned(word).into()
    }
}

impl From<&InstallingReason> for Reason {
    fn from(reason: &InstallingReason) -> Self {
        match reason {
            InstallingReason::NamesNotAccepted(_) => Self::NamesNotAccepted,
            InstallingReason::NotEstablished(_) => Self::NotEstablished,
            InstallingReason::InvalidCaBundle(_) => Self::InvalidCaBundle,
            InstallingReason::VersionNotServed { .. } => Self::VersionNotServed,
        }
    }
}

impl From<&DoneReason> for Reason {
    fn from(reason: &DoneReason) -> Self {
        match reason {
            DoneReason::TypeGone => Self::TypeGone,
            DoneReason::Superseded => Self::Superseded,
            DoneReason::Cancelled => Self::Cancelled,
            DoneReason::Completed => Self::Completed,
            DoneReason::Failed(_) => Self::Failed,
            DoneReason::Panicked(_) => Self::Panicked,
            DoneReason::LeaseLost => Self::LeaseLost,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// For assertions in tests; other code matches the variants.
impl PartialEq<&str> for Reason {
    fn eq(&self, word: &&str) -> bool {
        self.as_str() == *word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_its_word_and_a_user_s_own_word_is_kept() {
        for reason in ALL {
            assert_eq!(Reason::from(reason.as_str().to_owned()), *reason);
        }
        assert_eq!(Reason::InvalidCaBundle.as_str(), "InvalidCABundle");
        assert_eq!(Reason::from("Closed"), Reason::Other("Closed".into()));
        assert_eq!(Reason::from("Closed").to_string(), "Closed");
    }

    #[test]
    fn reasons_of_types_and_of_ends_have_the_same_words() {
        let installing = [
            InstallingReason::NamesNotAccepted(String::new()),
            InstallingReason::NotEstablished(String::new()),
            InstallingReason::InvalidCaBundle(String::new()),
            InstallingReason::VersionNotServed { served: Vec::new() },
        ];
        for reason in &installing {
            assert_eq!(Reason::from(reason).as_str(), reason.word());
        }
        let done = [
            DoneReason::TypeGone,
            DoneReason::Superseded,
            DoneReason::Cancelled,
            DoneReason::Completed,
            DoneReason::Failed(String::new()),
            DoneReason::Panicked(String::new()),
            DoneReason::LeaseLost,
        ];
        for reason in &done {
            assert_eq!(Reason::from(reason).as_str(), reason.word());
        }
    }
}
