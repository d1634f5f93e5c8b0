//! Change of a type since a holder read its identity.
//!
//! Informers, sources and lifecycles hold the identity of a type that was served when they started.
//! All of them read later states of the type here, so that they agree on the proof.

use std::sync::Arc;

use super::{TypeState, TypeStatus};
use crate::kind::TypeIdentity;

/// Difference between the identity that a holder started with and the current status of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeChange {
    /// Served under the same identity; also while its CRD is being deleted.
    Unchanged,
    /// Served at another version only. The objects are the same.
    OtherVersion,
    /// Replaced by another type of the same name: another uid, scope or plural.
    Replaced,
    /// Installed, but not served, or not to be listed. The objects may still exist.
    Unavailable,
    /// Proven absent.
    Absent,
    /// Not proven: neither presence nor absence.
    Unknown,
}

impl TypeChange {
    /// Compares two identities of a type that is served.
    pub(crate) fn between(held: &TypeIdentity, now: &TypeIdentity) -> Self {
        let version = Arc::clone(&held.version);
        if now == held {
            Self::Unchanged
        } else if *held == (TypeIdentity { version, ..now.clone() }) {
            Self::OtherVersion
        } else {
            Self::Replaced
        }
    }

    /// Returns whether it is proven that the held identity is no longer served.
    pub(crate) fn is_loss(self) -> bool {
        match self {
            Self::OtherVersion | Self::Replaced | Self::Unavailable | Self::Absent => true,
            Self::Unchanged | Self::Unknown => false,
        }
    }
}

impl TypeState {
    /// Returns whether the type is proven not to be served, now or as of the last proof.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Self::Absent | Self::Installing(_) | Self::NotWatchable => true,
            Self::Served | Self::Polled | Self::Terminating | Self::Unknown(None) => false,
            Self::Unknown(Some(last)) => last.is_missing(),
        }
    }
}

impl TypeStatus {
    /// Returns the change of the type since `held` was its identity.
    pub(crate) fn change_since(&self, held: &TypeIdentity) -> TypeChange {
        match (&self.state, &self.served) {
            (TypeState::Served | TypeState::Polled | TypeState::Terminating, Some(served)) => {
                TypeChange::between(held, &served.identity)
            }
            (TypeState::Installing(_) | TypeState::NotWatchable, _) => TypeChange::Unavailable,
            (TypeState::Absent, _) => TypeChange::Absent,
            (TypeState::Served | TypeState::Polled | TypeState::Terminating, None)
            | (TypeState::Unknown(_), _) => TypeChange::Unknown,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::{super::InstallingReason, *};
    use crate::kind::{Scope, ServedType, Subresources, VersionOrder};

    pub(crate) fn widgets() -> ServedType {
        ServedType {
            identity: TypeIdentity {
                group: "example.com".into(),
                version: "v1".into(),
                plural: "widgets".into(),
                scope: Scope::Namespaced,
                uid: Some("1".into()),
            },
            kind: "Widget".into(),
            list_kind: "WidgetList".into(),
            subresources: Subresources::default(),
            version_order: VersionOrder::Comparable,
            polled: false,
        }
    }

    /// Returns each identity that `widgets` may have later, with the change to it.
    pub(crate) fn later_identities() -> Vec<(TypeIdentity, TypeChange)> {
        let held = widgets().identity;
        vec![
            (held.clone(), TypeChange::Unchanged),
            (TypeIdentity { version: "v2".into(), ..held.clone() }, TypeChange::OtherVersion),
            (TypeIdentity { uid: Some("2".into()), ..held.clone() }, TypeChange::Replaced),
            (TypeIdentity { uid: None, ..held.clone() }, TypeChange::Replaced),
            (TypeIdentity { scope: Scope::Cluster, ..held.clone() }, TypeChange::Replaced),
            (TypeIdentity { plural: "gizmos".into(), ..held.clone() }, TypeChange::Replaced),
            (
                TypeIdentity { version: "v2".into(), uid: Some("2".into()), ..held },
                TypeChange::Replaced,
            ),
        ]
    }

    /// Returns each state that has no identity of its own, with the change to it.
    pub(crate) fn later_states() -> Vec<(TypeState, TypeChange)> {
        let installing = [
            InstallingReason::NamesNotAccepted("taken".into()),
            InstallingReason::NotEstablished("not yet".into()),
            InstallingReason::InvalidCaBundle("no certificate".into()),
            InstallingReason::VersionNotServed { served: vec!["v2".into()] },
        ]
        .map(|reason| (TypeState::Installing(reason), TypeChange::Unavailable));
        let mut states = Vec::from(installing);
        states.push((TypeState::NotWatchable, TypeChange::Unavailable));
        states.push((TypeState::Absent, TypeChange::Absent));
        let unconfirmed = |state: &TypeState| TypeState::Unknown(Some(Box::new(state.clone())));
        let last = states.iter().map(|(state, _)| unconfirmed(state));
        let last: Vec<_> = last.map(|state| (state, TypeChange::Unknown)).collect();
        states.extend(last);
        for served in [TypeState::Served, TypeState::Polled, TypeState::Terminating] {
            states.push((unconfirmed(&served), TypeChange::Unknown));
        }
        states.push((TypeState::Unknown(None), TypeChange::Unknown));
        states
    }

    /// Returns each status that a type may have later, with the change to it.
    pub(crate) fn later_statuses() -> Vec<(TypeStatus, TypeChange)> {
        let status = |state: &TypeState, served: Option<&TypeIdentity>| TypeStatus {
            state: state.clone(),
            served: served
                .map(|identity| Arc::new(ServedType { identity: identity.clone(), ..widgets() })),
            last_served: None,
            since: Timestamp::UNIX_EPOCH,
        };
        let mut statuses = Vec::new();
        for state in [TypeState::Served, TypeState::Polled, TypeState::Terminating] {
            for (identity, change) in later_identities() {
                statuses.push((status(&state, Some(&identity)), change));
            }
            statuses.push((status(&state, None), TypeChange::Unknown));
        }
        for (state, change) in later_states() {
            // An unknown type keeps the identity that was known last, whichever that was.
            for (identity, _) in later_identities() {
                statuses.push((status(&state, Some(&identity)), change));
            }
            statuses.push((status(&state, None), change));
        }
        statuses
    }

    #[test]
    fn type_is_missing_only_by_proof() {
        let unknown = |last| TypeState::Unknown(Some(Box::new(last)));

        assert!(TypeState::Absent.is_missing() && unknown(TypeState::Absent).is_missing());
        assert!(!TypeState::Unknown(None).is_missing() && !unknown(TypeState::Served).is_missing());
        assert!(!TypeState::Terminating.is_missing());
    }

    #[test]
    fn every_later_status_of_a_type_is_one_change() {
        for (status, expected) in later_statuses() {
            assert_eq!(status.change_since(&widgets().identity), expected, "{status:?}");
        }
    }

    #[test]
    fn only_proof_is_a_loss_and_a_terminating_type_is_not_lost() {
        let held = widgets().identity;
        for (status, _) in later_statuses() {
            let same = status.served.as_ref().is_some_and(|served| served.identity == held);
            let expected = match status.state {
                TypeState::Served | TypeState::Polled | TypeState::Terminating => {
                    status.served.is_some() && !same
                }
                TypeState::Absent | TypeState::Installing(_) | TypeState::NotWatchable => true,
                TypeState::Unknown(_) => false,
            };
            assert_eq!(status.change_since(&held).is_loss(), expected, "{status:?}");
        }
    }
}
