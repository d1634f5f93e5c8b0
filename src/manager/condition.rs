//! Conditions: what must hold for a runnable to run.
//!
//! A condition is a published verdict rather than a one-shot future, so that a loss during the
//! start of a run is seen. Watching one costs no task and no request.

use std::{fmt, future::poll_fn, sync::Arc, task::Poll};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::Reason;
use crate::{
    discovery::{DiscoveryMode, TypeChange, TypeRegistry, TypeState, TypeStatus},
    kind::{ServedType, TypeIdentity, TypeRef},
};

/// Unmet part of a condition, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
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
    Unmet(Vec<Unmet>),
    /// Neither is proven, for these reasons: a running epoch continues, and no epoch starts.
    Unknown(Vec<Unmet>),
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
    pub(crate) fn reasons(&self) -> &[Unmet] {
        match self {
            Self::Met(_) => &[],
            Self::Unmet(why) | Self::Unknown(why) => why,
        }
    }
}

/// Source of verdicts; users implement it for their own conditions. Implemented for functions that
/// return a [`Readiness`].
///
/// [`Conditional`](super::Conditional) adds a condition to any runnable, and
/// [`Builder::when`](crate::controller::Builder::when) adds one to a controller.
///
/// An epoch whose condition is lost ends with
/// [`StopReason::TypeGone`](super::StopReason::TypeGone).
///
/// [`Condition::watch`] is called on the manager's own task, so it must not block; the publisher of
/// the verdict does the work. If `watch` panics, the runnable waits and its status says so. If the
/// publisher is silent, its last verdict stands. If the condition flaps, its epochs start less and
/// less often ([`RestartBackoff::flaps`](super::RestartBackoff::flaps)). Other runnables are not
/// affected by any of these.
pub trait Condition: Send + Sync + 'static {
    /// Returns a subscription to the current verdict and every later one.
    fn watch(&self) -> Readiness;
}

/// Condition that always holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl Condition for Always {
    fn watch(&self) -> Readiness {
        always()
    }
}

/// Subscription to the verdict of a condition.
pub struct Readiness(Node);

enum Node {
    Always,
    Fixed(Verdict),
    Published {
        verdicts: watch::Receiver<Verdict>,
        // True once the loss of the publisher has been reported as a change.
        abandoned: bool,
    },
    Type {
        type_ref: TypeRef,
        subresource: Option<Subresource>,
        status: watch::Receiver<TypeStatus>,
        mode: watch::Receiver<DiscoveryMode>,
    },
    // With the basis of each part as of the last time that all were met.
    AllOf(Vec<Readiness>, Vec<Vec<Basis>>),
    // With the index of the part that was met last. Another part replaces it only when that one is
    // proven unmet.
    AnyOf(Vec<Readiness>, Option<usize>),
    Optional(Box<Readiness>),
}

/// Subresource that a condition may require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// `/status`
    Status,
    /// `/scale`
    Scale,
}

/// Returns a condition that is always met.
pub fn always() -> Readiness {
    Readiness(Node::Always)
}

/// Returns a condition that is met while `type_ref` is served, or terminating: its finalizers must
/// finish.
pub fn type_served(registry: &TypeRegistry, type_ref: &TypeRef) -> Readiness {
    of_type(registry, type_ref, None)
}

/// Returns a condition like [`type_served`] that also requires a subresource.
pub fn subresource_served(
    registry: &TypeRegistry,
    type_ref: &TypeRef,
    subresource: Subresource,
) -> Readiness {
    of_type(registry, type_ref, Some(subresource))
}

fn of_type(
    registry: &TypeRegistry,
    type_ref: &TypeRef,
    subresource: Option<Subresource>,
) -> Readiness {
    let (status, mode) = (registry.subscribe(type_ref), registry.mode());
    Readiness(Node::Type { type_ref: type_ref.clone(), subresource, status, mode })
}

/// Returns a condition that is met while all parts are. One part that is proven unmet makes it
/// unmet.
pub fn all_of(parts: impl IntoIterator<Item = Readiness>) -> Readiness {
    Readiness(Node::AllOf(parts.into_iter().collect(), Vec::new()))
}

/// Returns a condition that is met while any part is. It depends on one chosen part, and switches
/// to another only when the chosen one is proven unmet.
///
/// While the chosen part is unknown the verdict is unknown, even if another part is met: the epoch
/// that depends on the chosen part continues.
pub fn any_of(parts: impl IntoIterator<Item = Readiness>) -> Readiness {
    Readiness(Node::AnyOf(parts.into_iter().collect(), None))
}

/// Returns a condition that is always met. Changes of `part` still wake its watchers.
pub fn optional(part: Readiness) -> Readiness {
    Readiness(Node::Optional(Box::new(part)))
}

impl Readiness {
    /// Subscribes to a published verdict. When the sender is dropped its last verdict stands;
    /// unless it is `Met`, the reason [`Reason::ConditionAbandoned`] is added to it.
    pub fn published(verdicts: watch::Receiver<Verdict>) -> Self {
        Self(Node::Published { verdicts, abandoned: false })
    }

    /// Returns a verdict that never changes.
    pub(super) fn fixed(verdict: Verdict) -> Self {
        Self(Node::Fixed(verdict))
    }

    /// Returns the current verdict and marks it as seen.
    pub fn verdict(&mut self) -> Verdict {
        match &mut self.0 {
            Node::Always => Verdict::Met(Vec::new()),
            Node::Fixed(verdict) => verdict.clone(),
            Node::Published { verdicts, .. } => {
                let mut verdict = verdicts.borrow_and_update().clone();
                if let Verdict::Unmet(why) | Verdict::Unknown(why) = &mut verdict
                    && verdicts.has_changed().is_err()
                {
                    why.push(Unmet {
                        reason: Reason::ConditionAbandoned,
                        message: "the publisher of its condition is gone".to_owned(),
                        type_ref: None,
                    });
                }
                verdict
            }
            Node::Type { type_ref, subresource, status, mode } => {
                let verdict = judge(type_ref, *subresource, &status.borrow_and_update());
                mark_polled(verdict, &mode.borrow_and_update())
            }
            Node::AllOf(parts, rests) => all(parts.iter_mut().map(Self::verdict), rests),
            Node::AnyOf(parts, chosen) => {
                let verdicts = parts.iter_mut().map(Self::verdict).collect();
                any(verdicts, chosen)
            }
            Node::Optional(part) => {
                part.verdict();
                Verdict::Met(Vec::new())
            }
        }
    }

    /// Waits until the verdict may have changed since it was last read. Cancel safe.
    pub fn changed(&mut self) -> BoxFuture<'_, ()> {
        match &mut self.0 {
            Node::Always | Node::Fixed(_) => std::future::pending().boxed(),
            Node::Published { verdicts, abandoned } => async move {
                if verdicts.changed().await.is_err() && std::mem::replace(abandoned, true) {
                    std::future::pending::<()>().await;
                }
            }
            .boxed(),
            Node::Type { status, mode, .. } => async move {
                tokio::select! {
                    () = changed(status) => {}
                    () = changed(mode) => {}
                }
            }
            .boxed(),
            Node::AllOf(parts, _) | Node::AnyOf(parts, _) => {
                let mut futures: Vec<_> = parts.iter_mut().map(Self::changed).collect();
                poll_fn(move |context| {
                    for future in &mut futures {
                        if future.poll_unpin(context).is_ready() {
                            return Poll::Ready(());
                        }
                    }
                    Poll::Pending
                })
                .boxed()
            }
            Node::Optional(part) => part.changed(),
        }
    }

    /// Waits until the condition is met and returns its basis. Cancel safe.
    pub async fn met(&mut self) -> Vec<Basis> {
        loop {
            if let Verdict::Met(basis) = self.verdict() {
                return basis;
            }
            self.changed().await;
        }
    }
}

impl fmt::Debug for dyn Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condition")
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Node::Always => f.write_str("Always"),
            Node::Fixed(verdict) => verdict.fmt(f),
            Node::Published { verdicts, .. } => verdicts.borrow().fmt(f),
            Node::Type { type_ref, .. } => write!(f, "TypeServed({type_ref})"),
            Node::AllOf(parts, _) => f.debug_tuple("AllOf").field(parts).finish(),
            Node::AnyOf(parts, _) => f.debug_tuple("AnyOf").field(parts).finish(),
            Node::Optional(part) => f.debug_tuple("Optional").field(part).finish(),
        }
    }
}

/// Waits for a change; never returns once the sender is dropped, whose last value stands.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

pub(super) fn judge(
    type_ref: &TypeRef,
    subresource: Option<Subresource>,
    status: &TypeStatus,
) -> Verdict {
    let unmet = |reason: Reason, message: String| {
        vec![Unmet { reason, message, type_ref: Some(type_ref.clone()) }]
    };
    match &status.state {
        TypeState::Served | TypeState::Terminating => match &status.served {
            Some(served) => {
                let present = match subresource {
                    None => true,
                    Some(Subresource::Status) => served.subresources.status,
                    Some(Subresource::Scale) => served.subresources.scale,
                };
                if present {
                    Verdict::Met(vec![Basis::from(&**served)])
                } else {
                    let name = match subresource {
                        Some(Subresource::Scale) => "scale",
                        Some(Subresource::Status) | None => "status",
                    };
                    Verdict::Unmet(unmet(
                        Reason::SubresourceMissing,
                        format!("{type_ref} has no {name} subresource; add it to the CRD"),
                    ))
                }
            }
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
            format!("{type_ref} cannot be watched: the server offers no list and watch for it"),
        )),
        TypeState::Unknown(_) => Verdict::Unknown(unmet(
            Reason::TypeUnknown,
            format!("nothing is proven about {type_ref}: discovery has no current answer"),
        )),
    }
}

/// Adds to each reason that discovery is polled, so that the wait may be long.
fn mark_polled(mut verdict: Verdict, mode: &DiscoveryMode) -> Verdict {
    if let (Verdict::Unmet(why) | Verdict::Unknown(why), DiscoveryMode::Static(reason)) =
        (&mut verdict, mode)
    {
        for unmet in why {
            unmet.message += &format!(" (discovery is polled: {reason})");
        }
    }
    verdict
}

/// Combines the verdicts of all parts. `rests` holds the basis of each part as of the last time
/// that all were met.
fn all(verdicts: impl Iterator<Item = Verdict>, rests: &mut Vec<Vec<Basis>>) -> Verdict {
    let (mut basis, mut unmet, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_another = false;
    for (number, verdict) in verdicts.enumerate() {
        match verdict {
            Verdict::Met(part) => {
                is_another |= rests.get(number).is_some_and(|before| *before != part);
                basis.push(part);
            }
            Verdict::Unmet(mut part) => unmet.append(&mut part),
            Verdict::Unknown(mut part) => unknown.append(&mut part),
        }
    }
    if !unmet.is_empty() {
        Verdict::Unmet(once(unmet))
    } else if unknown.is_empty() {
        rests.clone_from(&basis);
        Verdict::Met(basis.concat())
    } else if is_another {
        // Another type of the same name proves that the earlier one is gone.
        Verdict::Unmet(once(unknown))
    } else {
        Verdict::Unknown(once(unknown))
    }
}

/// Removes duplicate reasons, for parts that wait for the same thing.
fn once(reasons: Vec<Unmet>) -> Vec<Unmet> {
    let mut unique: Vec<Unmet> = Vec::with_capacity(reasons.len());
    for reason in reasons {
        if !unique.contains(&reason) {
            unique.push(reason);
        }
    }
    unique
}

fn any(mut verdicts: Vec<Verdict>, chosen: &mut Option<usize>) -> Verdict {
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
    let (mut unmet, mut unknown) = (Vec::new(), Vec::new());
    for verdict in verdicts {
        match verdict {
            Verdict::Met(_) => {}
            Verdict::Unmet(mut part) => unmet.append(&mut part),
            Verdict::Unknown(mut part) => unknown.append(&mut part),
        }
    }
    if is_lost {
        unmet.append(&mut unknown);
    }
    if unknown.is_empty() { Verdict::Unmet(once(unmet)) } else { Verdict::Unknown(once(unknown)) }
}

impl<F: Fn() -> Readiness + Send + Sync + 'static> Condition for F {
    fn watch(&self) -> Readiness {
        self()
    }
}

impl<T: Condition + ?Sized> Condition for Arc<T> {
    fn watch(&self) -> Readiness {
        (**self).watch()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::discovery::type_changes;

    fn said(reason: &'static str) -> Vec<Unmet> {
        vec![Unmet { reason: reason.into(), message: reason.into(), type_ref: None }]
    }

    pub(in crate::manager) fn met_by(uid: &str) -> Verdict {
        Verdict::Met(vec![Basis {
            identity: TypeIdentity {
                group: "example.com".into(),
                version: "v1".into(),
                plural: "widgets".into(),
                scope: crate::kind::Scope::Cluster,
                uid: Some(uid.into()),
            },
            kind: "Widget".into(),
            list_kind: "WidgetList".into(),
        }])
    }

    fn part(verdict: Verdict) -> (watch::Sender<Verdict>, Readiness) {
        let sender = watch::Sender::new(verdict);
        let readiness = Readiness::published(sender.subscribe());
        (sender, readiness)
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
    fn any_of_rests_on_the_same_part_until_that_is_lost() {
        let (first, one) = part(Verdict::Unmet(said("A")));
        let (second, two) = part(met_by("2"));
        let mut readiness = any_of([one, two]);
        assert_eq!(readiness.verdict(), met_by("2"));

        first.send_replace(met_by("1"));
        assert_eq!(readiness.verdict(), met_by("2"), "what comes stops nothing");

        second.send_replace(Verdict::Unmet(said("B")));
        assert_eq!(readiness.verdict(), met_by("1"));
    }

    #[test]
    fn any_of_whose_chosen_part_is_lost_is_unmet_though_another_is_unknown() {
        let (first, one) = part(met_by("1"));
        let (_second, two) = part(Verdict::Unknown(said("B")));
        let mut readiness = any_of([one, two]);
        assert_eq!(readiness.verdict(), met_by("1"));
        first.send_replace(Verdict::Unmet(said("A")));
        let now = readiness.verdict();
        assert!(matches!(now, Verdict::Unmet(_)), "{now:?}");
    }

    #[test]
    fn all_of_with_another_identity_is_not_hidden_by_an_unknown_part() {
        let (first, one) = part(met_by("1"));
        let (second, two) = part(met_by("b"));
        let mut readiness = all_of([one, two]);
        assert!(matches!(readiness.verdict(), Verdict::Met(_)));
        second.send_replace(Verdict::Unknown(said("B")));
        assert!(matches!(readiness.verdict(), Verdict::Unknown(_)));
        first.send_replace(met_by("2"));
        let now = readiness.verdict();
        assert!(!matches!(now, Verdict::Unknown(_)), "{now:?}");
    }

    #[test]
    fn any_of_stays_with_its_chosen_part_while_that_is_unknown() {
        let (_first, one) = part(met_by("1"));
        let (second, two) = part(met_by("2"));
        let (third, three) = part(Verdict::Unmet(said("C")));
        let mut readiness = any_of([two, one, three]);
        assert_eq!(readiness.verdict(), met_by("2"));

        second.send_replace(Verdict::Unknown(said("B")));
        assert_eq!(readiness.verdict(), Verdict::Unknown(said("B")), "nothing is proven");
        third.send_replace(Verdict::Unknown(said("C")));
        assert_eq!(readiness.verdict(), Verdict::Unknown(said("B")), "the chosen part decides");
        second.send_replace(met_by("2"));
        assert_eq!(readiness.verdict(), met_by("2"), "the same basis");

        second.send_replace(Verdict::Unknown(said("B")));
        assert_eq!(readiness.verdict(), Verdict::Unknown(said("B")));
        second.send_replace(Verdict::Unmet(said("B")));
        assert_eq!(readiness.verdict(), met_by("1"), "the loss is proven");
    }

    #[test]
    fn a_verdict_and_the_status_that_it_is_of_agree_on_every_change() {
        let (held, widgets) =
            (type_changes::widgets(), TypeRef::kind("example.com", "v1", "Widget"));
        let basis = [Basis::from(&held)];
        for (status, expected) in type_changes::later_statuses() {
            let verdict = judge(&widgets, None, &status);
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
    fn a_type_that_cannot_be_watched_has_a_reason_of_its_own() {
        let reviews = TypeRef::resource("authentication.k8s.io", "v1", "tokenreviews");
        let since = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        let status = TypeStatus { state: TypeState::NotWatchable, served: None, since };

        let Verdict::Unmet(unmet) = judge(&reviews, None, &status) else { panic!("not unmet") };

        assert_eq!(unmet[0].reason, "NotWatchable");
        assert!(unmet[0].message.contains("no list and watch"), "{}", unmet[0].message);
    }

    #[test]
    fn reasons_mention_that_discovery_is_polled() {
        let polled = DiscoveryMode::Static("may not watch CRDs".into());
        let waits = |mode| match mark_polled(Verdict::Unmet(said("A")), mode) {
            Verdict::Unmet(why) => why[0].message.clone(),
            Verdict::Met(_) | Verdict::Unknown(_) => panic!("it is proven"),
        };

        assert_eq!(waits(&DiscoveryMode::Watching), "A");
        assert_eq!(waits(&polled), "A (discovery is polled: may not watch CRDs)");
        assert_eq!(mark_polled(met_by("1"), &polled), met_by("1"));
    }

    #[tokio::test]
    async fn a_change_of_any_part_is_seen_and_an_optional_one_is_always_met() {
        let (first, one) = part(Verdict::Unmet(said("A")));
        let (second, two) = part(Verdict::Unmet(said("B")));
        let mut readiness = all_of([one, optional(two)]);
        assert_eq!(readiness.verdict(), Verdict::Unmet(said("A")));
        assert!(futures::poll!(readiness.changed()).is_pending());

        second.send_replace(Verdict::Met(Vec::new()));
        assert!(futures::poll!(readiness.changed()).is_ready());

        first.send_replace(Verdict::Met(Vec::new()));
        assert!(readiness.met().await.is_empty());
    }

    #[tokio::test]
    async fn a_publisher_that_is_gone_leaves_its_last_verdict() {
        let (sender, mut readiness) = part(Verdict::Met(Vec::new()));
        drop(sender);

        assert_eq!(readiness.verdict(), Verdict::Met(Vec::new()));
        assert!(futures::poll!(readiness.changed()).is_ready(), "reported once");
        assert!(futures::poll!(readiness.changed()).is_pending());
    }

    #[tokio::test]
    async fn a_verdict_whose_publisher_is_gone_says_so_unless_it_is_met() {
        let (sender, mut readiness) = part(Verdict::Unmet(said("A")));
        drop(sender);

        let Verdict::Unmet(why) = readiness.verdict() else { panic!("proven all the same") };
        let reasons: Vec<_> = why.iter().map(|unmet| unmet.reason.as_str()).collect();
        assert_eq!(reasons, ["A", "ConditionAbandoned"]);
    }
}
