//! The states of a type.

use std::{fmt, mem, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::catalog::Judgement;
use crate::kind::ServedType;

/// Where a type is in its life, seen from somebody who asks for it at one version (or any).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeState {
    /// Proven not to exist.
    Absent,
    /// It exists but cannot be used yet, or not at the version asked for.
    Installing(InstallingReason),
    /// It is built in or aggregated, and offers no list and watch, as `tokenreviews` do: nothing
    /// will come of waiting for it.
    NotWatchable,
    /// Can be listed and watched.
    Served,
    /// Served still; its CRD has a deletion timestamp. Not gone: finalizers must finish.
    Terminating,
    /// Nothing is proven: discovery failed, is stale, or has not answered yet.
    /// Holds the last state that was proven.
    Unknown(Option<Box<TypeState>>),
}

/// A [`TypeState`] without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TypePhase {
    /// Proven not to exist.
    Absent,
    /// The type exists but cannot be used yet.
    Installing,
    /// The server offers no list and watch for the type.
    NotWatchable,
    /// Can be listed and watched.
    Served,
    /// Served still; its CRD is being deleted.
    Terminating,
    /// Neither presence nor absence is proven.
    Unknown,
}

/// Why a type that exists cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallingReason {
    /// Its names are not accepted; the server's message.
    NamesNotAccepted(String),
    /// It is not established; the server's reason and message.
    NotEstablished(String),
    /// It is not established, and will not be before the certificates of its conversion webhook
    /// are mended; the server's message.
    InvalidCaBundle(String),
    /// The version asked for is not among the served ones.
    VersionNotServed {
        /// Versions that are served.
        served: Vec<String>,
    },
}

impl TypeState {
    /// Nothing is known.
    pub(super) fn is_blank(&self) -> bool {
        matches!(self, Self::Unknown(None))
    }

    /// Returns whether the other is the same but for its messages: while it is, `since` stays.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Installing(reason), Self::Installing(other)) => {
                mem::discriminant(reason) == mem::discriminant(other)
            }
            _ => self.phase() == other.phase(),
        }
    }

    /// Where it is, without the details.
    pub fn phase(&self) -> TypePhase {
        match self {
            Self::Absent => TypePhase::Absent,
            Self::Installing(_) => TypePhase::Installing,
            Self::NotWatchable => TypePhase::NotWatchable,
            Self::Served => TypePhase::Served,
            Self::Terminating => TypePhase::Terminating,
            Self::Unknown(_) => TypePhase::Unknown,
        }
    }

    /// One word for tables, metrics and condition reasons.
    pub fn word(&self) -> &'static str {
        self.phase().word()
    }
}

impl TypePhase {
    /// Word for tables and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "Absent",
            Self::Installing => "Installing",
            Self::NotWatchable => "NotWatchable",
            Self::Served => "Served",
            Self::Terminating => "Terminating",
            Self::Unknown => "Unknown",
        }
    }
}

impl InstallingReason {
    /// CamelCase, for condition reasons.
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

/// What the registry says of one [`TypeRef`](crate::kind::TypeRef).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeStatus {
    /// Where it is in its life.
    pub state: TypeState,
    /// How to talk to it, while it is served or terminating, and while that is merely unknown.
    pub served: Option<Arc<ServedType>>,
    /// Since when the state holds.
    pub since: Timestamp,
}

impl TypeStatus {
    /// The status after a new judgement. What was proven is remembered where nothing is known
    /// any more; `since` moves only with the state and the identity.
    pub(super) fn succeed(&self, judgement: Judgement, now: Timestamp) -> Self {
        let mut new = Self { state: judgement.state, served: judgement.served, since: self.since };
        if new.state.is_blank() {
            new.state = match &self.state {
                TypeState::Unknown(last) => TypeState::Unknown(last.clone()),
                proven @ (TypeState::Absent
                | TypeState::NotWatchable
                | TypeState::Installing(_)
                | TypeState::Served
                | TypeState::Terminating) => TypeState::Unknown(Some(Box::new(proven.clone()))),
            };
            new.served.clone_from(&self.served);
        }
        let identity = |status: &Self| status.served.as_ref().map(|s| s.identity.clone());
        if !new.state.is_like(&self.state) || identity(&new) != identity(self) {
            new.since = now;
        }
        new
    }
}
