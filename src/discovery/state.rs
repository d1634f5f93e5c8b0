//! States of a type.

use std::{fmt, mem, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::kind::ServedType;

/// State of a type, as requested at one version (or any).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeState {
    /// The type is proven not to exist.
    Absent,
    /// The type exists but cannot be used yet, or not at the requested version.
    Installing(InstallingReason),
    /// Built in or aggregated, without list, like `tokenreviews`. A client that waits for it waits
    /// without end.
    NotWatchable,
    /// The type can be listed and not watched, like `pods.metrics.k8s.io`. Its caches are filled by
    /// a list in an interval.
    Polled,
    /// The type can be listed and watched.
    Served,
    /// The type is still served, and its CRD has a deletion timestamp. Finalizers must finish.
    Terminating,
    /// Neither presence nor absence is proven: discovery failed, is stale, or has not answered yet.
    /// Holds the last proven state.
    Unknown(Option<Box<TypeState>>),
}

/// A [`TypeState`] without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TypePhase {
    /// The type is proven not to exist.
    Absent,
    /// The type exists but cannot be used yet.
    Installing,
    /// The server offers no list for the type.
    NotWatchable,
    /// The type can be listed and not watched.
    Polled,
    /// The type can be listed and watched.
    Served,
    /// The type is still served, and its CRD is being deleted.
    Terminating,
    /// Neither presence nor absence is proven.
    Unknown,
}

/// Reason for which an existing type cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallingReason {
    /// The names are not accepted. Holds the server's message.
    NamesNotAccepted(String),
    /// The CRD is not established. Holds the server's reason and message.
    NotEstablished(String),
    /// The CRD is not established until the CA bundle of its conversion webhook is fixed. Holds the
    /// server's message.
    InvalidCaBundle(String),
    /// The requested version is not served.
    VersionNotServed {
        /// Versions that are served.
        served: Vec<String>,
    },
}

impl TypeState {
    /// Returns whether neither a current nor an earlier state is known.
    pub(super) fn is_blank(&self) -> bool {
        matches!(self, Self::Unknown(None))
    }

    /// Returns whether two states differ in messages only; `since` is kept then.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Installing(reason), Self::Installing(other)) => {
                mem::discriminant(reason) == mem::discriminant(other)
            }
            _ => self.phase() == other.phase(),
        }
    }

    /// Returns the state without its details.
    pub fn phase(&self) -> TypePhase {
        match self {
            Self::Absent => TypePhase::Absent,
            Self::Installing(_) => TypePhase::Installing,
            Self::NotWatchable => TypePhase::NotWatchable,
            Self::Polled => TypePhase::Polled,
            Self::Served => TypePhase::Served,
            Self::Terminating => TypePhase::Terminating,
            Self::Unknown(_) => TypePhase::Unknown,
        }
    }

    /// Returns the state's name for tables, metrics and condition reasons.
    pub fn word(&self) -> &'static str {
        self.phase().word()
    }
}

impl TypePhase {
    /// Returns the state's name for tables and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "Absent",
            Self::Installing => "Installing",
            Self::NotWatchable => "NotWatchable",
            Self::Polled => "Polled",
            Self::Served => "Served",
            Self::Terminating => "Terminating",
            Self::Unknown => "Unknown",
        }
    }
}

impl InstallingReason {
    /// Returns the CamelCase name for condition reasons.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NamesNotAccepted(_) => "NamesNotAccepted",
            Self::NotEstablished(_) => "NotEstablished",
            Self::InvalidCaBundle(_) => "InvalidCABundle",
            Self::VersionNotServed { .. } => "VersionNotServed",
        }
    }
}

impl fmt::Display for InstallingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamesNotAccepted(message) => write!(f, "its names are not accepted: {message}"),
            Self::NotEstablished(message) | Self::InvalidCaBundle(message) => {
                write!(f, "it is not established: {message}")
            }
            Self::VersionNotServed { served } if served.is_empty() => {
                f.write_str("no version is served")
            }
            Self::VersionNotServed { served } => {
                write!(f, "this version is not served; served are {}", served.join(", "))
            }
        }
    }
}

/// State of a type and its request parameters, as the catalog derives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypeJudgement {
    pub(super) state: TypeState,
    pub(super) served: Option<Arc<ServedType>>,
}

impl TypeJudgement {
    pub(super) fn installing(reason: InstallingReason) -> Self {
        Self { state: TypeState::Installing(reason), served: None }
    }

    pub(super) fn unknown() -> Self {
        Self { state: TypeState::Unknown(None), served: None }
    }

    pub(super) fn absent() -> Self {
        Self { state: TypeState::Absent, served: None }
    }

    pub(super) fn not_watchable() -> Self {
        Self { state: TypeState::NotWatchable, served: None }
    }

    /// Wraps the state in `Unknown`: it is the last one known, and unconfirmed.
    pub(super) fn unconfirmed(self) -> Self {
        Self { state: TypeState::Unknown(Some(Box::new(self.state))), served: self.served }
    }
}

/// Status of a requested type, a [`TypeRef`](crate::kind::TypeRef).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeStatus {
    /// State of the type.
    pub state: TypeState,
    /// Request parameters of the type. Set while it is served, polled or terminating, and while it
    /// is unknown after one of these.
    pub served: Option<Arc<ServedType>>,
    /// Request parameters of the type when it was last served, as long as it has subscribers.
    pub last_served: Option<Arc<ServedType>>,
    /// Time since which the state holds.
    pub since: Timestamp,
}

impl TypeStatus {
    /// Returns the status after a new judgement. If nothing is known any more, the last proven
    /// state is kept in `Unknown`. `since` moves only with the state or the identity.
    pub(super) fn after_judgement(&self, judgement: TypeJudgement, now: Timestamp) -> Self {
        let last_served = self.last_served.clone();
        let TypeJudgement { state, served } = judgement;
        let mut new = Self { state, served, last_served, since: self.since };
        if new.state.is_blank() {
            new.state = match &self.state {
                TypeState::Unknown(last) => TypeState::Unknown(last.clone()),
                proven @ (TypeState::Absent
                | TypeState::NotWatchable
                | TypeState::Polled
                | TypeState::Installing(_)
                | TypeState::Served
                | TypeState::Terminating) => TypeState::Unknown(Some(Box::new(proven.clone()))),
            };
            new.served.clone_from(&self.served);
        }
        if new.served.is_some() {
            new.last_served.clone_from(&new.served);
        }
        let identity = |status: &Self| status.served.as_ref().map(|s| s.identity.clone());
        if !new.state.is_like(&self.state) || identity(&new) != identity(self) {
            new.since = now;
        }
        new
    }
}
