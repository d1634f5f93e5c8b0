//! Number of controllers that watch a type.
//!
//! Only watches count: a controller that waits for a type, or only looks it up, does not watch it.

use std::collections::{HashMap, HashSet};

use pilotlight::{
    discovery::TypeReport,
    kind::{TypeName, TypeRef},
    manager::{Snapshot, WatchState},
};

use super::declared::DeclaredObject;

/// Controllers by the types that they watch.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    // Numbers of the controllers, by group and by the name that they use for the type.
    by_type: HashMap<(String, TypeName), HashSet<usize>>,
}

impl Watchers {
    /// Collects the watches of a manager's controllers.
    pub(super) fn of_manager(controllers: &Snapshot) -> Self {
        let mut watchers = Self::default();
        for (number, controller) in controllers.values().enumerate() {
            for watch in
                controller.report.watches.iter().filter(|it| it.state != WatchState::Waiting)
            {
                let TypeRef { group, name, version: _ } = watch.type_ref.clone();
                watchers.add(group, name, number);
            }
        }
        watchers
    }

    /// Collects the watches in the statuses of declared controllers.
    pub(super) fn of_objects(controllers: &[DeclaredObject]) -> Self {
        let mut watchers = Self::default();
        for (number, controller) in controllers.iter().enumerate() {
            for watch in
                controller.status.watches.iter().filter(|it| it.state != WatchState::Waiting.word())
            {
                let group = watch.api_version.rsplit_once('/').map_or("", |(group, _)| group);
                watchers.add(group.into(), TypeName::Resource(watch.resource.clone()), number);
            }
        }
        watchers
    }

    /// Returns the number of controllers that watch the type of this row, at any version and by any
    /// of its names.
    pub(super) fn count(&self, report: &TypeReport) -> usize {
        // Rows are named `plural.group`, with a version if nothing more is known.
        let name = report.name.split('/').next().unwrap_or_default();
        let suffix = format!(".{}", report.group);
        let plural = name.strip_suffix(&suffix).unwrap_or(name);
        let names =
            [Some(TypeName::Resource(plural.into())), report.kind.clone().map(TypeName::Kind)];
        let controllers: HashSet<_> = names
            .into_iter()
            .flatten()
            .filter_map(|name| self.by_type.get(&(report.group.clone(), name)))
            .flatten()
            .collect();
        controllers.len()
    }

    fn add(&mut self, group: String, name: TypeName, controller: usize) {
        self.by_type.entry((group, name)).or_default().insert(controller);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use pilotlight::{
        discovery::{Origin, TypePhase},
        manager::{ControllerState, Report, RunnableGroup, RunnableStatus, WatchReport},
        meta::ControllerKind,
    };
    use serde_json::json;

    use super::*;

    fn widgets() -> TypeReport {
        TypeReport {
            name: "widgets.example.com".into(),
            group: "example.com".into(),
            kind: Some("Widget".into()),
            scope: None,
            state: TypePhase::Served,
            reason: None,
            since: Timestamp::UNIX_EPOCH,
            served_versions: vec!["v1".into()],
            origin: Origin::Crd,
            uid: None,
            subscribers: 17,
        }
    }

    fn controller(name: &str, watches: &[(TypeRef, WatchState)]) -> RunnableStatus {
        let watches = watches.iter().cloned();
        let watches = watches.map(|(type_ref, state)| WatchReport { type_ref, state, error: None });
        RunnableStatus {
            name: name.into(),
            group: RunnableGroup::LeaderElection,
            state: ControllerState::Running,
            reason: "Running".into(),
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            epoch: 1,
            unmet: Vec::new(),
            report: Report { watches: watches.collect(), ..Report::default() },
            last_done: None,
            pending: None,
            stuck: false,
            failures: 0,
            restarts: 0,
        }
    }

    #[test]
    fn a_manager_counts_controllers_and_not_their_subscriptions() {
        let by_plural = TypeRef::resource("example.com", "v1", "widgets");
        let by_kind = TypeRef::kind("example.com", "v1", "Widget");
        let others = TypeRef::resource("other.com", "v1", "widgets");
        let snapshot: Snapshot = [
            controller(
                "twice",
                &[(by_plural.clone(), WatchState::Synced), (by_kind.clone(), WatchState::Synced)],
            ),
            controller("any", &[(by_kind.any_version(), WatchState::Stale)]),
            controller("waits", &[(by_plural, WatchState::Waiting)]),
            controller("other", &[(others, WatchState::Synced)]),
        ]
        .into_iter()
        .map(Arc::new)
        .collect();

        assert_eq!(Watchers::of_manager(&snapshot).count(&widgets()), 2);
    }

    #[test]
    fn watches_of_declared_controllers_are_counted_by_their_statuses() {
        let controller = |state: &str| {
            let object = serde_json::from_value(json!({
                "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
                "metadata": {"name": "things"},
                "spec": {"parentResource": {"apiVersion": "example.com/v1", "resource": "widgets"}},
                "status": {"watches": [
                    {"resource": "widgets", "apiVersion": "example.com/v1", "state": state},
                    {"resource": "pods", "apiVersion": "v1", "state": "Synced"},
                ]},
            }));
            DeclaredObject::of(ControllerKind::Composite, &object.unwrap())
        };
        let pods =
            TypeReport { name: "pods".into(), group: String::new(), kind: None, ..widgets() };

        let watchers = Watchers::of_objects(&[controller("Synced"), controller("Waiting")]);

        assert_eq!((watchers.count(&widgets()), watchers.count(&pods)), (1, 2));
    }
}
