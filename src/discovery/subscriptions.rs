//! Subscriptions to the status of types.

use std::collections::{BTreeMap, HashMap, btree_map::Entry};

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::{TypeState, TypeStatus, catalog::ChangedTypes, state::TypeJudgement};
use crate::kind::{TypeIdentity, TypeName, TypeRef};

/// A sender for each requested type, found by group and name, as events touch them.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    groups: HashMap<String, HashMap<TypeName, Versions>>,
    count: usize,
    /// Number of entries at which those without a receiver are dropped.
    sweep_at: usize,
}

/// Senders by requested version.
type Versions = BTreeMap<Option<String>, watch::Sender<TypeStatus>>;

impl Subscriptions {
    /// Returns the current status of a known subscription. A request for any version shares the
    /// choice of the existing receivers; without receivers the choice is free again.
    pub(super) fn get(&self, type_ref: &TypeRef) -> Option<TypeStatus> {
        let entry = self.groups.get(&type_ref.group)?.get(&type_ref.name)?;
        let sender = entry.get(&type_ref.version)?;
        let is_free = type_ref.version.is_none() && sender.is_closed();
        (!is_free).then(|| sender.borrow().clone())
    }

    /// Returns a receiver of the status and its changes.
    pub(super) fn subscribe(
        &mut self,
        type_ref: &TypeRef,
        first: impl FnOnce() -> TypeStatus,
    ) -> watch::Receiver<TypeStatus> {
        if self.count >= self.sweep_at {
            self.sweep();
            self.sweep_at = (self.count * 2).max(64);
        }
        let versions = self
            .groups
            .entry(type_ref.group.clone())
            .or_default()
            .entry(type_ref.name.clone())
            .or_default();
        match versions.entry(type_ref.version.clone()) {
            Entry::Vacant(free) => {
                self.count += 1;
                free.insert(watch::Sender::new(first())).subscribe()
            }
            Entry::Occupied(taken) => {
                let sender = taken.get();
                if sender.is_closed() {
                    sender.send_replace(first());
                }
                sender.subscribe()
            }
        }
    }

    /// Publishes to the subscriptions that are touched.
    pub(super) fn publish(
        &mut self,
        touched: &ChangedTypes,
        now: Timestamp,
        judge: impl Fn(&TypeRef, Option<&TypeIdentity>) -> TypeJudgement,
    ) {
        if touched.all {
            self.groups.retain(|group, names| {
                self.count -= publish_group(group, names, now, &judge);
                !names.is_empty()
            });
            return;
        }
        for group in &touched.groups {
            let Some(names) = self.groups.get_mut(&**group) else { continue };
            self.count -= publish_group(group, names, now, &judge);
            if names.is_empty() {
                self.groups.remove(&**group);
            }
        }
        for (type_, kinds) in &touched.types {
            let Some(names) = self.groups.get_mut(&type_.group) else { continue };
            let by_kind = kinds.iter().map(|kind| TypeName::Kind(kind.to_string()));
            for name in by_kind.chain([TypeName::Resource(type_.resource.clone())]) {
                let Some(versions) = names.get_mut(&name) else { continue };
                self.count -= publish_name(&type_.group, &name, versions, now, &judge);
                if versions.is_empty() {
                    names.remove(&name);
                }
            }
            if names.is_empty() {
                self.groups.remove(&type_.group);
            }
        }
    }

    /// Drops entries without a receiver.
    pub(super) fn sweep(&mut self) {
        self.count = 0;
        self.groups.retain(|_, names| {
            names.retain(|_, versions| {
                versions.retain(|_, sender| !sender.is_closed());
                self.count += versions.len();
                !versions.is_empty()
            });
            !names.is_empty()
        });
    }

    /// Returns each requested type with its status and number of receivers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TypeRef, TypeStatus, usize)> + '_ {
        self.groups.iter().flat_map(|(group, names)| {
            names.iter().flat_map(move |(name, versions)| {
                versions.iter().map(move |(version, sender)| {
                    let type_ref = TypeRef {
                        group: group.clone(),
                        version: version.clone(),
                        name: name.clone(),
                    };
                    (type_ref, sender.borrow().clone(), sender.receiver_count())
                })
            })
        })
    }
}

/// Publishes to each name of a group, and drops names without a receiver. Returns the number of
/// dropped entries.
fn publish_group(
    group: &str,
    names: &mut HashMap<TypeName, Versions>,
    now: Timestamp,
    judge: impl Fn(&TypeRef, Option<&TypeIdentity>) -> TypeJudgement,
) -> usize {
    let mut dropped = 0;
    names.retain(|name, versions| {
        dropped += publish_name(group, name, versions, now, &judge);
        !versions.is_empty()
    });
    dropped
}

/// Publishes to each requested version of a name. Returns the number of dropped entries.
fn publish_name(
    group: &str,
    name: &TypeName,
    versions: &mut Versions,
    now: Timestamp,
    judge: impl Fn(&TypeRef, Option<&TypeIdentity>) -> TypeJudgement,
) -> usize {
    let before = versions.len();
    versions.retain(|version, sender| {
        if sender.is_closed() {
            return false;
        }
        let type_ref =
            TypeRef { group: group.into(), version: version.clone(), name: name.clone() };
        sender.send_if_modified(|status| {
            let bound = status.served.as_ref().map(|served| &served.identity);
            let new = status.after_judgement(judge(&type_ref, bound), now);
            let changed = new != *status;
            if changed {
                *status = new;
            }
            changed
        });
        true
    });
    before - versions.len()
}

/// Returns the status of a type that was never judged.
pub(super) fn blank(now: Timestamp) -> TypeStatus {
    TypeStatus { state: TypeState::Unknown(None), served: None, last_served: None, since: now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_receivers_are_dropped_at_the_next_change() {
        let mut subscriptions = Subscriptions::default();
        let now = Timestamp::UNIX_EPOCH;
        let judge = |_: &TypeRef, _: Option<&TypeIdentity>| TypeJudgement::absent();
        let all = || ChangedTypes { all: true, ..ChangedTypes::default() };
        let group =
            || ChangedTypes { groups: ["example.com".into()].into(), ..ChangedTypes::default() };
        let type_ = |name: &str| {
            let type_ref = TypeRef::resource("example.com", "v1", name);
            let name = crate::kind::GroupResource { group: type_ref.group, resource: name.into() };
            ChangedTypes { types: [(name, Default::default())].into(), ..ChangedTypes::default() }
        };

        for n in 0..10_000 {
            let name = format!("t{n}");
            let type_ref = TypeRef::resource("example.com", "v1", &*name);
            drop(subscriptions.subscribe(&type_ref, || blank(now)));
            let touched = [all(), group(), type_(&name)].into_iter().nth(n % 3).unwrap();
            subscriptions.publish(&touched, now, judge);
        }

        let names: usize = subscriptions.groups.values().map(HashMap::len).sum();
        assert_eq!((names, subscriptions.groups.len(), subscriptions.count), (0, 0, 0));
    }
}
