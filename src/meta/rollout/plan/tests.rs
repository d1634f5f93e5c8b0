use super::*;

mod model;

fn id(name: &str) -> ChildId {
    ChildId::new("", "ConfigMap", name)
}

fn listed(names: &[&str]) -> Vec<RevisionChildren> {
    lists(names.iter().map(|name| id(name)))
}

fn present(is_latest: bool) -> ChildState {
    ChildState::Present { is_latest: Ok(is_latest), is_own: true, ready: Ok(()) }
}

fn not_ready(is_latest: bool) -> ChildState {
    let ready = Err("failed status check: x".to_owned());
    ChildState::Present { is_latest: Ok(is_latest), is_own: true, ready }
}

/// Case of a plan: children of the latest revision and of one older one, and what is observed.
struct Case<'a> {
    latest: &'a [&'a str],
    older: &'a [&'a str],
    wanted: &'a [&'a str],
    states: &'a [(&'a str, ChildState)],
}

impl Case<'_> {
    fn plan(&self) -> Plan {
        self.plan_with(self.wanted, None)
    }

    fn plan_with(&self, older_wanted: &[&str], overdue: Option<&str>) -> Plan {
        let older = listed(self.older);
        let revision = OlderRevision {
            children: &older,
            wanted: older_wanted.iter().map(|name| id(name)).collect(),
        };
        let wanted: Vec<_> = self.wanted.iter().map(|name| id(name)).collect();
        let observe = |child: &ChildId, _| {
            let found = self.states.iter().find(|(name, _)| **name == child.name);
            found.map_or(ChildState::Missing, |(_, state)| state.clone())
        };
        let overdue = overdue.map(id);
        plan(
            &listed(self.latest),
            &[revision],
            &wanted,
            overdue.as_ref(),
            |_| ChildTypeMode::Rolling,
            observe,
        )
    }

    #[track_caller]
    fn check(&self, latest: &[&str], older: &[&str], progress: &str) {
        check(&self.plan(), latest, older, progress);
    }
}

#[track_caller]
fn check(plan: &Plan, latest: &[&str], older: &[&str], progress: &str) {
    let found = match &plan.progress {
        RolloutProgress::Complete => "complete".to_owned(),
        RolloutProgress::Updating(child) => format!("updating {child}"),
        RolloutProgress::Waiting(wait) => wait.to_string(),
    };
    assert_eq!(found, progress);
    assert_eq!(plan.latest, listed(latest));
    assert_eq!(plan.older, [listed(older)]);
}

#[test]
fn new_children_have_the_latest_revision_at_once() {
    Case { latest: &[], older: &[], wanted: &["a", "b"], states: &[] }.check(
        &["a", "b"],
        &[],
        "complete",
    );
}

#[test]
fn one_child_moves_in_the_order_of_the_response() {
    let states = ["a", "b", "c"].map(|name| (name, present(false)));
    Case { latest: &[], older: &["a", "b", "c"], wanted: &["c", "a", "b"], states: &states }.check(
        &["c"],
        &["a", "b"],
        "updating ConfigMap c",
    );
}

#[test]
fn rollout_waits_until_each_updated_child_is_observed_equal_and_ready() {
    let unchecked = ChildState::Present {
        is_latest: Err("it is unreadable".to_owned()),
        is_own: true,
        ready: Ok(()),
    };
    for (state, wait) in [
        (ChildState::Missing, "missing child ConfigMap a"),
        (ChildState::Deleting, "child ConfigMap a is being deleted"),
        (present(false), "child ConfigMap a is not updated yet"),
        (not_ready(true), "child ConfigMap a failed status check: x"),
        (unchecked, "can't check if child ConfigMap a is updated: it is unreadable"),
    ] {
        let states = [("a", state), ("b", present(false))];
        Case { latest: &["a"], older: &["b"], wanted: &["a", "b"], states: &states }.check(
            &["a"],
            &["b"],
            wait,
        );
    }
    let states = [("a", present(true)), ("b", present(false))];
    Case { latest: &["a"], older: &["b"], wanted: &["a", "b"], states: &states }.check(
        &["a", "b"],
        &[],
        "updating ConfigMap b",
    );
}

#[test]
fn child_that_is_as_the_latest_revision_wants_it_moves_without_a_turn() {
    let states = [("a", present(true)), ("b", present(true)), ("c", present(false))];
    Case { latest: &[], older: &["a", "b", "c"], wanted: &["c", "b", "a"], states: &states }.check(
        &["b", "a"],
        &["c"],
        "updating ConfigMap a",
    );
}

#[test]
fn existing_child_without_a_revision_is_left_as_it_is_until_its_turn() {
    let states = ["a", "b"].map(|name| (name, present(false)));
    let case = Case { latest: &[], older: &[], wanted: &["a", "b"], states: &states };

    let plan = case.plan();

    check(&plan, &["a"], &[], "updating ConfigMap a");
    assert_eq!(plan.not_latest, BTreeMap::from([(id("b"), AssignedRevision::Unassigned)]));
}

#[test]
fn child_that_its_revision_no_longer_wants_is_left_as_it_is() {
    let states = ["a", "b"].map(|name| (name, present(false)));
    let case = Case { latest: &[], older: &["a", "b"], wanted: &["a", "b"], states: &states };

    let corrected = case.plan_with(&["a"], None);
    let moved = Case { older: &["a"], ..case }.plan_with(&["a"], None);

    check(&corrected, &[], &["a"], "updating ConfigMap b");
    check(&moved, &["a"], &[], "updating ConfigMap a");
    assert_eq!(moved.not_latest, BTreeMap::from([(id("b"), AssignedRevision::Unassigned)]));
}

#[test]
fn deleted_child_returns_at_its_old_revision() {
    let states = [("a", not_ready(true)), ("b", present(false))];
    let case =
        Case { latest: &["a"], older: &["b", "c"], wanted: &["a", "b", "c"], states: &states };
    case.check(&["a"], &["b", "c"], "child ConfigMap a failed status check: x");
    let states = [("a", present(true)), ("b", present(false))];
    let case = Case { states: &states, ..case };
    case.check(&["a"], &["b", "c"], "missing child ConfigMap c");

    let late = case.plan_with(&["b", "c"], Some("c"));

    check(&late, &["a", "c"], &["b"], "updating ConfigMap c");
}

#[test]
fn child_that_is_being_deleted_returns_at_its_old_revision_unless_it_is_its_turn() {
    let states = [("a", present(false)), ("b", ChildState::Deleting)];
    let case = Case { latest: &[], older: &["a", "b"], wanted: &["a", "b"], states: &states };
    case.check(&[], &["a", "b"], "child ConfigMap b is being deleted");
    check(
        &case.plan_with(&["a", "b"], Some("b")),
        &[],
        &["a", "b"],
        "child ConfigMap b is being deleted",
    );

    let states = [("a", ChildState::Deleting), ("b", present(false))];
    Case { states: &states, ..case }.check(&["a"], &["b"], "updating ConfigMap a");
}

#[test]
fn each_of_two_children_that_cannot_be_created_moves_once_it_is_overdue() {
    let states = [("a", present(false))];
    let wanted = ["a", "b", "c"];
    let case = Case { latest: &[], older: &wanted, wanted: &wanted, states: &states };
    case.check(&[], &wanted, "missing child ConfigMap b");

    for (overdue, older) in [("b", ["a", "c"]), ("c", ["a", "b"])] {
        let moved = case.plan_with(&wanted, Some(overdue));
        check(&moved, &[overdue], &older, &format!("updating ConfigMap {overdue}"));
    }
}

#[test]
fn child_that_is_unavailable_anyway_moves_first() {
    let behind = ChildState::Present { is_latest: Ok(false), is_own: false, ready: Ok(()) };
    for state in [not_ready(false), behind] {
        let states = [("a", present(false)), ("b", state)];
        Case { latest: &[], older: &["a", "b"], wanted: &["a", "b"], states: &states }.check(
            &["b"],
            &["a"],
            "updating ConfigMap b",
        );
    }
}

#[test]
fn latest_revision_wins_over_others() {
    let states = ["a", "b"].map(|name| (name, present(true)));
    Case { latest: &["a"], older: &["a", "b"], wanted: &["a", "b"], states: &states }.check(
        &["a", "b"],
        &[],
        "complete",
    );
}

#[test]
fn child_that_is_no_longer_wanted_leaves_its_revision() {
    let states = ["a", "b", "c"].map(|name| (name, present(name == "a")));
    Case { latest: &["a", "b"], older: &["c"], wanted: &["a"], states: &states }.check(
        &["a"],
        &[],
        "complete",
    );
}

#[test]
fn children_of_a_type_that_is_not_listed_keep_their_revision() {
    let of = |kind: &str| {
        vec![RevisionChildren {
            api_group: "g".to_owned(),
            kind: kind.to_owned(),
            names: vec!["a".to_owned()],
        }]
    };
    for (kind, expected) in [("Unlisted", of("Unlisted")), ("Other", Vec::new())] {
        let children = of(kind);
        let older = OlderRevision { children: &children, wanted: BTreeSet::new() };
        let mode_of = |type_: &GroupKind| match type_.kind.as_str() {
            "Unlisted" => ChildTypeMode::Unlisted,
            _ => ChildTypeMode::Other,
        };

        let plan = plan(&[], &[older], &[], None, mode_of, |_, _| ChildState::Missing);

        assert_eq!(plan.older, [expected]);
        assert_eq!(plan.progress, RolloutProgress::Complete);
    }
}

#[test]
fn nothing_is_observed_after_the_end_of_a_rollout() {
    let children = listed(&["a", "b"]);
    let wanted = ["a", "b"].map(id);

    let plan = plan(
        &children,
        &[],
        &wanted,
        None,
        |_| ChildTypeMode::Rolling,
        |_, _| unreachable!("no child is compared"),
    );

    assert_eq!((plan.latest, plan.progress), (children, RolloutProgress::Complete));
}
