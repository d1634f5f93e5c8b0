//! Remedies for types that are absent: the groups and versions in which they are served.
//!
//! A type of Kubernetes moves to another group or version, and the old one ends years later.
//! Controllers that still name the old one wait for it without end.

use std::sync::Arc;

use crate::{
    discovery::{TypeRegistry, TypeReport},
    kind::{TypeName, TypeRef},
    manager::{Reason, RunnableStatus, UnmetRequirement},
};

/// Maximum number of groups that are named for one type.
const MOST_GROUPS: usize = 3;

/// Adds to the messages about absent types where these are served.
pub(crate) fn with_remedies(run: Arc<RunnableStatus>, types: &TypeRegistry) -> Arc<RunnableStatus> {
    let is_absent = |unmet: &UnmetRequirement| unmet.reason == Reason::TypeAbsent;
    if !run.unmet.iter().any(is_absent) {
        return run;
    }
    let (all, mut run) = (types.report(), RunnableStatus::clone(&run));
    for unmet in run.unmet.iter_mut().filter(|unmet| is_absent(unmet)) {
        if let Some(places) = unmet.type_ref.as_ref().and_then(|absent| elsewhere(absent, &all)) {
            let text = format!("{}; it is served as {places}", unmet.message);
            run.message = run.message.replace(&unmet.message, &text);
            unmet.message = text;
        }
    }
    Arc::new(run)
}

/// Returns the groups and versions that serve a type of the same name; `None` without one.
fn elsewhere(absent: &TypeRef, all: &[TypeReport]) -> Option<String> {
    let is_named = |report: &&TypeReport| match &absent.name {
        TypeName::Resource(plural) => report.name.split('.').next() == Some(plural),
        TypeName::Kind(kind) => report.kind.as_ref() == Some(kind),
    };
    let named = all.iter().filter(is_named);
    let mut places: Vec<_> = named
        .filter_map(|report| {
            let version = report.served_versions.first()?;
            let is_other_group = report.group != absent.group;
            let place = match report.group.as_str() {
                "" => version.clone(),
                group => format!("{group}/{version}"),
            };
            Some((is_other_group, place))
        })
        .collect();
    // Another version of the same group is the type itself.
    places.sort();
    let has_same = places.first().is_some_and(|(is_other_group, _)| !is_other_group);
    places.retain(|(is_other_group, _)| !(has_same && *is_other_group));
    places.truncate(MOST_GROUPS);
    let places: Vec<_> = places.into_iter().map(|(_, place)| place).collect();
    (!places.is_empty()).then(|| places.join(", "))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::discovery::{Origin, TypePhase};

    fn served(plural: &str, group: &str, kind: &str, versions: &[&str]) -> TypeReport {
        let dot = if group.is_empty() { "" } else { "." };
        TypeReport {
            name: format!("{plural}{dot}{group}"),
            group: group.to_owned(),
            kind: Some(kind.to_owned()),
            scope: None,
            state: TypePhase::Served,
            reason: None,
            since: Timestamp::UNIX_EPOCH,
            served_versions: versions.iter().copied().map(str::to_owned).collect(),
            origin: Origin::BuiltIn,
            uid: None,
            subscribers: 0,
        }
    }

    #[track_caller]
    fn check(absent: TypeRef, expected: Option<&str>) {
        let all = [
            served("ingresses", "networking.k8s.io", "Ingress", &["v1"]),
            served("events", "", "Event", &["v1"]),
            served("events", "events.k8s.io", "Event", &["v1"]),
            served("widgets", "example.com", "Widget", &["v2", "v1"]),
            served("widgets", "other.com", "Widget", &["v1"]),
            served("gadgets", "example.com", "Gadget", &[]),
        ];

        assert_eq!(elsewhere(&absent, &all).as_deref(), expected, "{absent}");
    }

    #[test]
    fn absent_type_is_named_by_the_groups_and_versions_that_serve_it() {
        check(
            TypeRef::resource("extensions", "v1beta1", "ingresses"),
            Some("networking.k8s.io/v1"),
        );
        check(TypeRef::kind("extensions", "v1beta1", "Ingress"), Some("networking.k8s.io/v1"));
        check(TypeRef::resource("example.com", "v1alpha1", "widgets"), Some("example.com/v2"));
        check(TypeRef::resource("old", "v1", "events"), Some("events.k8s.io/v1, v1"));
        check(TypeRef::resource("example.com", "v1", "gadgets"), None);
        check(TypeRef::resource("example.com", "v1", "nothing"), None);
    }
}
