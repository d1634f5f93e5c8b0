//! Verdicts: results of conditions, and their combination. Functions without I/O.

use std::sync::Arc;

use tokio::sync::watch;

use super::Reason;
use crate::{
    discovery::{DiscoveryMode, TypeChange, TypeState, TypeStatus},
    kind::{ServedType, TypeIdentity, TypeRef, VersionOrder},
};

/// Unmet part of a condition, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetRequirement {
    /// Reason code; [`Reason::Other`] for conditions that users implement.
    pub reason: Reason,
    /// Explanation in one sentence.
    pub message: String,
    /// Type that the condition waits for, if it is about a type.
    pub type_ref: Option<TypeRef>,
}

/// Served type that a verdict depends on.
///
/// Includes the kinds, because a CRD can change them in place under the same uid; objects cached
/// under the old kinds do not describe objects of the new ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Basis {
    /// Identity of the type.
    pub identity: TypeIdentity,
    /// Kind of its objects.
    pub kind: Arc<str>,
    /// Kind of its lists.
    pub list_kind: Arc<str>,
}

/// Subresource that a condition may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// `/status`
    Status,
    /// `/scale`
    Scale,
}

/// Subresource that a condition requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequiredSubresource {
    /// Subresource of any type.
    OfAny(Subresource),
    /// Subresource of a type of a CRD, which can be given one. A built-in type cannot, nor one of an aggregated
    /// server.
    OfCrd(Subresource),
}

impl RequiredSubresource {
    fn name(self) -> &'static str {
        match self {
            Self::OfAny(Subresource::Status) | Self::OfCrd(Subresource::Status) => "status",
            Self::OfAny(Subresource::Scale) | Self::OfCrd(Subresource::Scale) => "scale",
        }
    }

    fn is_met(self, served: &ServedType) -> bool {
        let has = |subresource| match subresource {
            Subresource::Status => served.subresources.status,
            Subresource::Scale => served.subresources.scale,
        };
        match self {
            Self::OfAny(subresource) => has(subresource),
            Self::OfCrd(subresource) => {
                // Versions of an aggregated server are opaque, and built-in types have no uid.
                let comparable = served.version_order == VersionOrder::Comparable;
                let is_of_crd = served.identity.uid.is_some() && comparable;
                has(subresource) || !is_of_crd
            }
        }
    }
}

impl From<&ServedType> for Basis {
    fn from(served: &ServedType) -> Self {
        let ServedType { identity, kind, list_kind, .. } = served;
        Self { identity: identity.clone(), kind: kind.clone(), list_kind: list_kind.clone() }
    }
}

/// Current result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The condition holds. A run that started with another basis must stop.
    Met(Vec<Basis>),
    /// The condition is proven not to hold, for these reasons.
    Unmet(Vec<UnmetRequirement>),
    /// Neither is proven, for these reasons: a running epoch continues, and no epoch starts.
    Unknown(Vec<UnmetRequirement>),
}

impl Verdict {
    /// Returns the change of the condition's types since `held` was its basis.
    ///
    /// Agrees with [`TypeStatus::change_since`], except that another kind under the same identity
    /// is another basis.
    pub(crate) fn change_since(&self, held: &[Basis]) -> TypeChange {
        match self {
            Self::Met(now) if now == held => TypeChange::Unchanged,
            Self::Met(now) => {
                let is_kept = |(held, now): (&Basis, &Basis)| {
                    let kinds = held.kind == now.kind && held.list_kind == now.list_kind;
                    let change = TypeChange::between(&held.identity, &now.identity);
                    kinds && change != TypeChange::Replaced
                };
                if now.len() == held.len() && held.iter().zip(now).all(is_kept) {
                    TypeChange::OtherVersion
                } else {
                    TypeChange::Replaced
                }
            }
            Self::Unmet(_) if self.is_absent() => TypeChange::Absent,
            Self::Unmet(_) => TypeChange::Unavailable,
            Self::Unknown(_) => TypeChange::Unknown,
        }
    }

    /// Returns whether a type of the condition is proven absent, rather than unavailable for now.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::Unmet(why) => why.iter().any(|unmet| unmet.reason == Reason::TypeAbsent),
            Self::Met(_) | Self::Unknown(_) => false,
        }
    }

    /// Returns the reasons for which the condition is not met.
    pub(crate) fn reasons(&self) -> &[UnmetRequirement] {
        match self {
            Self::Met(_) => &[],
            Self::Unmet(why) | Self::Unknown(why) => why,
        }
    }
}

/// Returns the verdict on a type: met while it is served, with the subresource if one is required.
pub(super) fn of_type(
    type_ref: &TypeRef,
    subresource: Option<RequiredSubresource>,
    status: &TypeStatus,
) -> Verdict {
    let unmet = |reason: Reason, message: String| {
        vec![UnmetRequirement { reason, message, type_ref: Some(type_ref.clone()) }]
    };
    match &status.state {
        TypeState::Served | TypeState::Polled | TypeState::Terminating => match &status.served {
            Some(served) => match subresource.filter(|required| !required.is_met(served)) {
                None => Verdict::Met(vec![Basis::from(&**served)]),
                Some(required) => Verdict::Unmet(unmet(
                    Reason::SubresourceMissing,
                    format!("{type_ref} has no {} subresource; add it to the CRD", required.name()),
                )),
            },
            None => {
                Verdict::Unknown(unmet(Reason::TypeUnknown, format!("{type_ref} is being read")))
            }
        },
        TypeState::Absent => {
            Verdict::Unmet(unmet(Reason::TypeAbsent, format!("{type_ref} is not installed")))
        }
        TypeState::Installing(reason) => {
            Verdict::Unmet(unmet(reason.into(), format!("{type_ref} cannot be used yet: {reason}")))
        }
        TypeState::NotWatchable => Verdict::Unmet(unmet(
            Reason::NotWatchable,
            format!("{type_ref} cannot be read: the server offers no list for it"),
        )),
        TypeState::Unknown(_) => Verdict::Unknown(unmet(
            Reason::TypeUnknown,
            format!("nothing is proven about {type_ref}: discovery has no current response"),
        )),
    }
}

/// Adds a reason to a verdict that is not met, if its publisher is gone.
pub(super) fn with_publisher(mut verdict: Verdict, has_publisher: bool) -> Verdict {
    if let Verdict::Unmet(why) | Verdict::Unknown(why) = &mut verdict
        && !has_publisher
    {
        why.push(UnmetRequirement {
            reason: Reason::ConditionAbandoned,
            message: "the publisher of its condition is gone".to_owned(),
            type_ref: None,
        });
    }
    verdict
}

/// Adds to each reason that discovery is polled, so that the wait may be long, or has never run, so
/// that it has no end and nothing is known. Once discovery has ended, nothing is proven any longer.
pub(super) fn with_mode(mut verdict: Verdict, type_ref: &TypeRef, mode: &DiscoveryMode) -> Verdict {
    let addition = match mode {
        DiscoveryMode::Watching => return verdict,
        DiscoveryMode::Static(reason) => format!(" (discovery is polled: {reason})"),
        DiscoveryMode::NotStarted => {
            " (discovery does not run: add the runnable of its cluster to a manager)".to_owned()
        }
        DiscoveryMode::Ended => {
            let message = format!(
                "whether {type_ref} is served is not known any longer: its cluster was removed; build \
                 a new one, and its controllers"
            );
            return Verdict::Unknown(vec![UnmetRequirement {
                reason: Reason::DiscoveryEnded,
                message,
                type_ref: Some(type_ref.clone()),
            }]);
        }
    };
    let has_run = *mode != DiscoveryMode::NotStarted;
    if let Verdict::Unmet(why) | Verdict::Unknown(why) = &mut verdict {
        for unmet in why {
            unmet.message += &addition;
            if !has_run && unmet.reason == Reason::TypeUnknown {
                unmet.reason = Reason::DiscoveryNotStarted;
            }
        }
    }
    verdict
}

/// Combines the verdicts of all parts. `last_met` holds the basis of each part as of the last time
/// that all were met.
pub(super) fn all(
    verdicts: impl Iterator<Item = Verdict>,
    last_met: &mut Vec<Vec<Basis>>,
) -> Verdict {
    // A part may have no reason, so that an empty list is not the same as none.
    let (mut basis, mut unmet, mut unknown) = (Vec::new(), None, None);
    let mut is_another = false;
    for (number, verdict) in verdicts.enumerate() {
        match verdict {
            Verdict::Met(part) => {
                is_another |= last_met.get(number).is_some_and(|before| *before != part);
                basis.push(part);
            }
            Verdict::Unmet(part) => unmet.get_or_insert_with(Vec::new).extend(part),
            Verdict::Unknown(part) => unknown.get_or_insert_with(Vec::new).extend(part),
        }
    }
    match (unmet, unknown) {
        (Some(unmet), _) => Verdict::Unmet(without_duplicates(unmet)),
        (None, None) => {
            last_met.clone_from(&basis);
            Verdict::Met(basis.concat())
        }
        // Another type of the same name proves that the earlier one is gone.
        (None, Some(unknown)) if is_another => Verdict::Unmet(without_duplicates(unknown)),
        (None, Some(unknown)) => Verdict::Unknown(without_duplicates(unknown)),
    }
}

/// Removes duplicate reasons, for parts that wait for the same thing.
fn without_duplicates(reasons: Vec<UnmetRequirement>) -> Vec<UnmetRequirement> {
    let mut unique: Vec<UnmetRequirement> = Vec::with_capacity(reasons.len());
    for reason in reasons {
        if !unique.contains(&reason) {
            unique.push(reason);
        }
    }
    unique
}

/// Returns the verdict of the chosen part; chooses another one when that is lost.
pub(super) fn any(mut verdicts: Vec<Verdict>, chosen: &mut Option<usize>) -> Verdict {
    let lost = |index: &usize| matches!(verdicts[*index], Verdict::Unmet(_));
    let met = |index: &usize| matches!(verdicts[*index], Verdict::Met(_));
    // A lost part stays chosen until another part is met: an epoch that depends on it must stop,
    // even if other parts are unknown.
    let other = || (0..verdicts.len()).find(met);
    *chosen = chosen.filter(|index| !lost(index)).or_else(other).or(*chosen);
    let is_lost = chosen.as_ref().is_some_and(lost);
    if let Some(index) = chosen.filter(|_| !is_lost) {
        return verdicts.swap_remove(index);
    }
    let (mut unmet, mut unknown) = (Vec::new(), None);
    for verdict in verdicts {
        match verdict {
            Verdict::Met(_) => {}
            Verdict::Unmet(part) => unmet.extend(part),
            Verdict::Unknown(part) => unknown.get_or_insert_with(Vec::new).extend(part),
        }
    }
    if is_lost {
        unmet.extend(unknown.take().unwrap_or_default());
    }
    none_met(unmet, unknown)
}

/// Returns the verdict of alternatives of which none is met, from the reasons of those that are
/// unmet, and of those that are unknown if any is.
fn none_met(unmet: Vec<UnmetRequirement>, unknown: Option<Vec<UnmetRequirement>>) -> Verdict {
    match unknown {
        None => Verdict::Unmet(without_duplicates(unmet)),
        Some(unknown) => Verdict::Unknown(without_duplicates(unknown)),
    }
}

/// Returns the opposite of a verdict, without a basis; unknown stays unknown.
pub(super) fn not(verdict: Verdict) -> Verdict {
    let excluded =
        |message| vec![UnmetRequirement { reason: Reason::ConditionMet, message, type_ref: None }];
    match verdict {
        Verdict::Met(basis) if basis.is_empty() => {
            Verdict::Unmet(excluded("a condition is met that must not be".to_owned()))
        }
        Verdict::Met(basis) => Verdict::Unmet(
            basis
                .iter()
                .flat_map(|it| excluded(format!("{} is served and must not be", it.identity)))
                .collect(),
        ),
        Verdict::Unmet(_) => Verdict::Met(Vec::new()),
        Verdict::Unknown(why) => Verdict::Unknown(why),
    }
}

/// Returns the verdict of parts: met if any part is met, without a basis.
pub(super) fn some(verdicts: Vec<Verdict>) -> Verdict {
    let (mut unmet, mut unknown) = (Vec::new(), None);
    for verdict in verdicts {
        match verdict {
            Verdict::Met(_) => return Verdict::Met(Vec::new()),
            Verdict::Unmet(part) => unmet.extend(part),
            Verdict::Unknown(part) => unknown.get_or_insert_with(Vec::new).extend(part),
        }
    }
    none_met(unmet, unknown)
}

/// Publishes a verdict. Subscribers are not woken by one that is equal to the last.
pub(crate) fn publish(verdicts: &watch::Sender<Verdict>, verdict: Verdict) {
    verdicts.send_if_modified(|current| {
        let is_new = *current != verdict;
        *current = verdict;
        is_new
    });
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::discovery::type_changes;

    pub(in crate::manager) fn said(reason: &'static str) -> Vec<UnmetRequirement> {
        vec![UnmetRequirement { reason: reason.into(), message: reason.into(), type_ref: None }]
    }

    pub(in crate::manager) fn met_by(uid: &str) -> Verdict {
        let mut served = type_changes::widgets();
        served.identity.uid = Some(uid.into());
        Verdict::Met(vec![Basis::from(&served)])
    }

    #[test]
    fn all_of_is_unmet_by_proof_before_it_is_unknown() {
        let met = Verdict::Met(Vec::new());
        let (unmet, unknown) = (Verdict::Unmet(said("A")), Verdict::Unknown(said("B")));
        for (parts, expected) in [
            (vec![met.clone(), met.clone()], met.clone()),
            (vec![met.clone(), unknown.clone()], unknown.clone()),
            (vec![unknown.clone(), unmet.clone()], unmet.clone()),
            (vec![unmet.clone(), unmet.clone()], unmet.clone()),
            (vec![], met.clone()),
        ] {
            assert_eq!(all(parts.into_iter(), &mut Vec::new()), expected);
        }
    }

    #[test]
    fn any_of_is_met_by_one_and_unmet_by_proof_alone() {
        let met = Verdict::Met(Vec::new());
        let (unmet, unknown) = (Verdict::Unmet(said("A")), Verdict::Unknown(said("B")));
        for (parts, expected) in [
            (vec![unmet.clone(), met.clone()], met.clone()),
            (vec![unmet.clone(), unknown.clone()], unknown.clone()),
            (vec![unmet.clone()], unmet.clone()),
        ] {
            assert_eq!(any(parts, &mut None), expected);
        }
    }

    #[test]
    fn part_without_a_reason_counts_as_one_with_a_reason() {
        let met = Verdict::Met(Vec::new());
        let (unmet, unknown) = (Verdict::Unmet(Vec::new()), Verdict::Unknown(Vec::new()));
        for part in [unmet.clone(), unknown.clone()] {
            let parts = [met.clone(), part.clone()].into_iter();
            assert_eq!(all(parts, &mut Vec::new()), part, "all of");
            assert_eq!(any(vec![unmet.clone(), part.clone()], &mut None), part, "any of");
            assert_eq!(some(vec![unmet.clone(), part.clone()]), part, "some of");
        }
        assert_eq!(all([unknown, unmet.clone()].into_iter(), &mut Vec::new()), unmet);
    }

    #[test]
    fn a_verdict_and_the_status_that_it_is_of_agree_on_every_change() {
        let (held, widgets) =
            (type_changes::widgets(), TypeRef::kind("example.com", "v1", "Widget"));
        let basis = [Basis::from(&held)];
        for (status, expected) in type_changes::later_statuses() {
            let verdict = of_type(&widgets, None, &status);
            assert_eq!(verdict.change_since(&basis), expected, "{status:?}");
        }
    }

    #[test]
    fn another_kind_under_the_same_identity_is_another_basis() {
        let held = type_changes::widgets();
        let renamed = ServedType { kind: "Gizmo".into(), ..held.clone() };
        let verdict = Verdict::Met(vec![Basis::from(&renamed)]);

        assert_eq!(verdict.change_since(&[Basis::from(&held)]), TypeChange::Replaced);
        assert_eq!(verdict.change_since(&[]), TypeChange::Replaced);
    }

    #[test]
    fn a_type_that_cannot_be_listed_has_a_reason_of_its_own() {
        let reviews = TypeRef::resource("authentication.k8s.io", "v1", "tokenreviews");
        let since = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        let status =
            TypeStatus { state: TypeState::NotWatchable, served: None, last_served: None, since };

        let Verdict::Unmet(unmet) = of_type(&reviews, None, &status) else { panic!("not unmet") };

        assert_eq!(unmet[0].reason, "NotWatchable");
        assert!(unmet[0].message.contains("offers no list"), "{}", unmet[0].message);
    }

    #[test]
    fn reasons_mention_that_discovery_is_polled_or_does_not_run() {
        let polled = DiscoveryMode::Static("may not watch CRDs".into());
        let widgets = TypeRef::kind("example.com", "v1", "Widget");
        let waits = |mode| match with_mode(Verdict::Unmet(said("A")), &widgets, mode) {
            Verdict::Unmet(why) => why[0].message.clone(),
            Verdict::Met(_) | Verdict::Unknown(_) => panic!("it is proven"),
        };

        assert_eq!(waits(&DiscoveryMode::Watching), "A");
        assert_eq!(waits(&polled), "A (discovery is polled: may not watch CRDs)");
        let endless = "A (discovery does not run: add the runnable of its cluster to a manager)";
        assert_eq!(waits(&DiscoveryMode::NotStarted), endless);
        assert_eq!(with_mode(met_by("1"), &widgets, &polled), met_by("1"));
        for verdict in [met_by("1"), Verdict::Unmet(said("A")), Verdict::Unknown(said("A"))] {
            let Verdict::Unknown(why) = with_mode(verdict, &widgets, &DiscoveryMode::Ended) else {
                panic!("nothing is proven");
            };
            assert_eq!(why[0].reason, Reason::DiscoveryEnded);
            assert!(why[0].message.contains("Widget"), "{}", why[0].message);
        }
    }
}
