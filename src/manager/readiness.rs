//! Readiness: subscription to the verdict of a condition, and the combinations of several.

use std::{fmt, future::poll_fn, sync::Arc, task::Poll};

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::{
    Reason,
    verdict::{self, Basis, RequiredSubresource, Subresource, UnmetRequirement, Verdict},
};
use crate::{
    discovery::{DiscoveryMode, TypeRegistry, TypeStatus},
    kind::TypeRef,
};

/// Subscription to the verdict of a condition.
/// ```
/// use pilotlight::manager::{Condition, Readiness, Verdict};
/// use tokio::sync::watch;
///
/// /// Condition that a part of the program publishes.
/// struct Published(watch::Sender<Verdict>);
///
/// impl Condition for Published {
///     fn watch(&self) -> Readiness {
///         Readiness::published(self.0.subscribe())
///     }
/// }
/// ```
pub struct Readiness(Node);

enum Node {
    Always,
    Fixed(Verdict),
    Published {
        verdicts: watch::Receiver<Verdict>,
        // True once the loss of the publisher has been reported as a change.
        abandoned: bool,
    },
    Flag {
        flag: watch::Receiver<bool>,
        off: UnmetRequirement,
        // As for a published verdict.
        abandoned: bool,
    },
    Type {
        type_ref: TypeRef,
        subresource: Option<RequiredSubresource>,
        status: watch::Receiver<TypeStatus>,
        mode: watch::Receiver<DiscoveryMode>,
    },
    // Conjunction; holds the basis of each part as of the last time that all were met.
    AllOf(Vec<Readiness>, Vec<Vec<Basis>>),
    // Disjunction; holds the index of the chosen part, which another part replaces only when it is
    // proven unmet.
    AnyOf(Vec<Readiness>, Option<usize>),
    SomeOf(Vec<Readiness>),
    Optional(Box<Readiness>),
    Not(Box<Readiness>),
    OnRefused(Box<Readiness>, Arc<dyn Fn() + Send + Sync>),
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
    of_type(registry, type_ref, Some(RequiredSubresource::OfAny(subresource)))
}

/// Returns a condition like [`subresource_served`] that a type without the subresource meets if it
/// has no CRD.
pub(crate) fn subresource_served_if_crd(
    registry: &TypeRegistry,
    type_ref: &TypeRef,
    subresource: Subresource,
) -> Readiness {
    of_type(registry, type_ref, Some(RequiredSubresource::OfCrd(subresource)))
}

fn of_type(
    registry: &TypeRegistry,
    type_ref: &TypeRef,
    subresource: Option<RequiredSubresource>,
) -> Readiness {
    let (status, mode) = (registry.subscribe(type_ref), registry.mode());
    Readiness(Node::Type { type_ref: type_ref.clone(), subresource, status, mode })
}

/// Returns a condition that is met while all parts are. It is unmet if any part is proven unmet.
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

/// Returns a condition that is met while any part is. A running epoch depends on none of the parts,
/// which may become met and unmet.
pub(crate) fn some_of(parts: impl IntoIterator<Item = Readiness>) -> Readiness {
    Readiness(Node::SomeOf(parts.into_iter().collect()))
}

/// Returns a condition that is always met. Changes of `part` still wake its watchers.
pub fn optional(part: Readiness) -> Readiness {
    Readiness(Node::Optional(Box::new(part)))
}

/// Returns a condition that is met while `part` is proven unmet, and unmet while `part` is met.
/// While `part` is unknown, so is this.
///
/// The opposite of [`any_of`] has no chosen part: it is met while all parts are proven unmet, and unmet
/// while any is met. That of [`all_of`] is met while any part is proven unmet.
///
/// ```
/// # fn example(registry: &pilotlight::discovery::TypeRegistry) {
/// use pilotlight::{kind::TypeRef, manager::{not, type_served}};
///
/// // A fallback that runs only where cert-manager is not installed.
/// let certificates = TypeRef::kind("cert-manager.io", "v1", "Certificate");
/// let is_missing = not(type_served(registry, &certificates));
/// # drop(is_missing);
/// # }
/// ```
pub fn not(part: Readiness) -> Readiness {
    match part.0 {
        // The verdicts of these depend on the past, so that an epoch ends by proof. An opposite of such
        // a verdict would begin without proof.
        Node::AllOf(parts, _) if !parts.is_empty() => some_of(parts.into_iter().map(not)),
        Node::AnyOf(parts, _) | Node::SomeOf(parts) => all_of(parts.into_iter().map(not)),
        Node::OnRefused(part, refused) => Readiness(Node::OnRefused(Box::new(not(*part)), refused)),
        Node::Always
        | Node::Fixed(_)
        | Node::Published { .. }
        | Node::Flag { .. }
        | Node::Type { .. }
        | Node::AllOf(..)
        | Node::Optional(_)
        | Node::Not(_) => Readiness(Node::Not(Box::new(part))),
    }
}

impl Readiness {
    /// Subscribes to a published verdict. The last verdict stays when the sender is dropped. Unless
    /// it is `Met`, it then has the additional reason [`Reason::ConditionAbandoned`].
    pub fn published(verdicts: watch::Receiver<Verdict>) -> Self {
        Self(Node::Published { verdicts, abandoned: false })
    }

    /// Subscribes to a flag: met while it is true; otherwise unmet, for this reason. The last value
    /// stays when the sender is dropped, as for [`Readiness::published`].
    ///
    /// ```
    /// use pilotlight::manager::{Readiness, Verdict};
    /// use tokio::sync::watch;
    ///
    /// let at_night = watch::Sender::new(false);
    /// let flag = at_night.subscribe();
    /// let condition = move || Readiness::flag(flag.clone(), "Day", "backups run at night only");
    /// assert!(matches!(condition().verdict(), Verdict::Unmet(_)));
    /// at_night.send_replace(true);
    /// assert!(matches!(condition().verdict(), Verdict::Met(_)));
    /// ```
    pub fn flag(
        flag: watch::Receiver<bool>,
        reason: impl Into<Reason>,
        message: impl Into<String>,
    ) -> Self {
        let (reason, message) = (reason.into(), message.into());
        let off = UnmetRequirement { reason, message, type_ref: None };
        Self(Node::Flag { flag, off, abandoned: false })
    }

    /// Adds a function that is called when the API server has refused a request (403) of a
    /// controller with this condition, alone or as a part of another one. It must not block.
    #[must_use]
    pub fn on_refused(self, refused: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Node::OnRefused(Box::new(self), Arc::new(refused)))
    }

    /// Calls the functions of [`Readiness::on_refused`], those of the parts included.
    pub(crate) fn refused(&self) {
        match &self.0 {
            Node::Always
            | Node::Fixed(_)
            | Node::Published { .. }
            | Node::Flag { .. }
            | Node::Type { .. } => {}
            Node::AllOf(parts, _) | Node::AnyOf(parts, _) => parts.iter().for_each(Self::refused),
            Node::SomeOf(parts) => parts.iter().for_each(Self::refused),
            Node::Optional(part) | Node::Not(part) => part.refused(),
            Node::OnRefused(part, refused) => {
                refused();
                part.refused();
            }
        }
    }

    /// Returns whether the condition always holds.
    pub(super) fn is_always(&self) -> bool {
        match &self.0 {
            Node::Always | Node::Optional(_) => true,
            Node::AllOf(parts, _) => parts.iter().all(Self::is_always),
            Node::OnRefused(part, _) => part.is_always(),
            Node::Fixed(_)
            | Node::Published { .. }
            | Node::Flag { .. }
            | Node::Type { .. }
            | Node::AnyOf(..)
            | Node::SomeOf(_)
            | Node::Not(_) => false,
        }
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
                let verdict = verdicts.borrow_and_update().clone();
                verdict::with_publisher(verdict, verdicts.has_changed().is_ok())
            }
            Node::Flag { flag, off, .. } => {
                let verdict = match *flag.borrow_and_update() {
                    true => Verdict::Met(Vec::new()),
                    false => Verdict::Unmet(vec![off.clone()]),
                };
                verdict::with_publisher(verdict, flag.has_changed().is_ok())
            }
            Node::Type { type_ref, subresource, status, mode } => {
                let verdict = verdict::of_type(type_ref, *subresource, &status.borrow_and_update());
                verdict::with_mode(verdict, type_ref, &mode.borrow_and_update())
            }
            Node::AllOf(parts, rests) => verdict::all(parts.iter_mut().map(Self::verdict), rests),
            Node::AnyOf(parts, chosen) => {
                let verdicts = parts.iter_mut().map(Self::verdict).collect();
                verdict::any(verdicts, chosen)
            }
            Node::SomeOf(parts) => {
                // Each part records what it has seen, regardless of the parts before it.
                verdict::some(parts.iter_mut().map(Self::verdict).collect())
            }
            Node::Optional(part) => {
                part.verdict();
                Verdict::Met(Vec::new())
            }
            Node::Not(part) => verdict::not(part.verdict()),
            Node::OnRefused(part, _) => part.verdict(),
        }
    }

    /// Waits until the verdict may have changed since it was last read. Cancel safe.
    pub fn changed(&mut self) -> BoxFuture<'_, ()> {
        match &mut self.0 {
            Node::Always | Node::Fixed(_) => std::future::pending().boxed(),
            Node::Published { verdicts, abandoned } => published(verdicts, abandoned).boxed(),
            Node::Flag { flag, abandoned, .. } => published(flag, abandoned).boxed(),
            Node::Type { status, mode, .. } => async move {
                tokio::select! {
                    () = changed(status) => {}
                    () = changed(mode) => {}
                }
            }
            .boxed(),
            Node::AllOf(parts, _) | Node::AnyOf(parts, _) => any_changed(parts),
            Node::SomeOf(parts) => any_changed(parts),
            Node::Optional(part) | Node::Not(part) | Node::OnRefused(part, _) => part.changed(),
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

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Node::Always => f.write_str("Always"),
            Node::Fixed(verdict) => verdict.fmt(f),
            Node::Flag { flag, off, .. } => write!(f, "{off:?} unless {:?}", *flag.borrow()),
            Node::Published { verdicts, .. } => verdicts.borrow().fmt(f),
            Node::Type { type_ref, .. } => write!(f, "TypeServed({type_ref})"),
            Node::AllOf(parts, _) => f.debug_tuple("AllOf").field(parts).finish(),
            Node::AnyOf(parts, _) => f.debug_tuple("AnyOf").field(parts).finish(),
            Node::SomeOf(parts) => f.debug_tuple("SomeOf").field(parts).finish(),
            Node::Optional(part) => f.debug_tuple("Optional").field(part).finish(),
            Node::Not(part) => f.debug_tuple("Not").field(part).finish(),
            Node::OnRefused(part, _) => part.fmt(f),
        }
    }
}

/// Waits for a change of any part.
fn any_changed(parts: &mut [Readiness]) -> BoxFuture<'_, ()> {
    let mut futures: Vec<_> = parts.iter_mut().map(Readiness::changed).collect();
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

/// Waits for a change of a published value; the loss of its publisher is one change.
async fn published<T>(receiver: &mut watch::Receiver<T>, abandoned: &mut bool) {
    if receiver.changed().await.is_err() && std::mem::replace(abandoned, true) {
        std::future::pending::<()>().await;
    }
}

/// Waits for a change; never returns once the sender is dropped, whose last value stands.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::verdict::tests::{met_by, said},
        *,
    };

    fn part(verdict: Verdict) -> (watch::Sender<Verdict>, Readiness) {
        let sender = watch::Sender::new(verdict);
        let readiness = Readiness::published(sender.subscribe());
        (sender, readiness)
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
    fn some_of_is_met_alike_by_any_part_and_unmet_by_proof_of_all() {
        let (first, one) = part(met_by("1"));
        let (second, two) = part(Verdict::Unmet(said("B")));
        let mut readiness = some_of([one, two]);
        let met = Verdict::Met(Vec::new());
        assert_eq!(readiness.verdict(), met);

        second.send_replace(met_by("2"));
        assert_eq!(readiness.verdict(), met);
        first.send_replace(Verdict::Unmet(said("A")));
        assert_eq!(readiness.verdict(), met, "the loss of one part stops nothing");
        second.send_replace(Verdict::Unknown(said("B")));
        assert_eq!(readiness.verdict(), Verdict::Unknown(said("B")));
        second.send_replace(Verdict::Unmet(said("B")));
        let Verdict::Unmet(why) = readiness.verdict() else { panic!("none is left") };
        assert_eq!(why.len(), 2);
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
    async fn not_is_met_by_proof_of_the_opposite_only() {
        let (sender, one) = part(Verdict::Unknown(said("A")));
        let mut readiness = not(one);
        assert_eq!(readiness.verdict(), Verdict::Unknown(said("A")));

        sender.send_replace(Verdict::Unmet(said("A")));
        assert!(futures::poll!(readiness.changed()).is_ready());
        assert_eq!(readiness.verdict(), Verdict::Met(Vec::new()));

        sender.send_replace(met_by("1"));
        let Verdict::Unmet(why) = readiness.verdict() else { panic!("the part is met") };
        assert_eq!(why[0].reason, Reason::ConditionMet);
        assert_eq!(why[0].message, "widgets.example.com/v1 is served and must not be");
        assert_eq!(not(not(part(met_by("1")).1)).verdict(), Verdict::Met(Vec::new()));
    }

    /// Checks the opposite of a combination of two parts after each change of them. The first letter
    /// of a verdict is that of its name, and `?` for `Unknown`.
    #[track_caller]
    fn check_not(combine: fn([Readiness; 2]) -> Readiness, changes: &[(Verdict, Verdict, char)]) {
        let (first, one) = part(met_by("1"));
        let (second, two) = part(Verdict::Unknown(said("B")));
        let mut readiness = not(combine([one, two]).on_refused(|| {}));
        readiness.verdict();
        for (number, (now, then, expected)) in changes.iter().enumerate() {
            first.send_replace(now.clone());
            second.send_replace(then.clone());
            let verdict = match readiness.verdict() {
                Verdict::Met(_) => 'M',
                Verdict::Unmet(_) => 'U',
                Verdict::Unknown(_) => '?',
            };
            assert_eq!(verdict, *expected, "after change {number}");
        }
    }

    #[test]
    fn not_of_a_combination_is_met_by_what_is_proven_now_alone() {
        let (unmet, unknown) = (Verdict::Unmet(said("A")), Verdict::Unknown(said("A")));
        let of_any = [
            (unmet.clone(), unknown.clone(), '?'),
            (unmet.clone(), unmet.clone(), 'M'),
            (unknown.clone(), met_by("2"), 'U'),
            (unknown.clone(), unmet.clone(), '?'),
        ];
        check_not(any_of, &of_any);
        check_not(some_of, &of_any);
        check_not(|parts| not(not(any_of(parts))), &of_any);
        check_not(
            all_of,
            &[
                (met_by("1"), met_by("2"), 'U'),
                (met_by("3"), unknown.clone(), '?'),
                (unknown.clone(), unmet.clone(), 'M'),
                (unmet, unknown, 'M'),
            ],
        );
    }

    #[test]
    fn not_of_no_condition_has_a_reason() {
        let Verdict::Unmet(why) = not(all_of([])).verdict() else { panic!("the part is met") };

        assert_eq!(why[0].reason, Reason::ConditionMet);
        assert_eq!(not(any_of([])).verdict(), Verdict::Met(Vec::new()));
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
    async fn flag_is_met_while_it_is_true_and_says_when_its_sender_is_gone() {
        let flag = watch::Sender::new(false);
        let mut readiness = Readiness::flag(flag.subscribe(), "Day", "at night only");
        let reasons = |readiness: &mut Readiness| match readiness.verdict() {
            Verdict::Unmet(why) => why.iter().map(|it| it.reason.to_string()).collect(),
            Verdict::Met(_) => Vec::new(),
            Verdict::Unknown(_) => panic!("a flag is known"),
        };
        assert_eq!(reasons(&mut readiness), ["Day"]);

        flag.send_replace(true);
        readiness.changed().await;
        assert_eq!(reasons(&mut readiness), [""; 0]);
        flag.send_replace(false);
        readiness.changed().await;
        assert_eq!(reasons(&mut readiness), ["Day"]);
        drop(flag);
        readiness.changed().await;

        assert_eq!(reasons(&mut readiness), ["Day", "ConditionAbandoned"]);
        assert!(readiness.changed().now_or_never().is_none(), "it never changes again");
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
