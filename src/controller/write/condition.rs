//! Conditions of a status.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// Returns a condition whose transition is now. `status` is `True`, `False` or `Unknown`.
pub fn condition(
    type_: impl Into<String>,
    status: impl Into<String>,
    reason: impl Into<String>,
    message: impl Into<String>,
) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(Timestamp::now()),
        observed_generation: None,
    }
}

/// Adds a condition, or changes the one of its type. `lastTransitionTime` changes only with the
/// status. Returns whether anything has changed.
///
/// Semantics: apimachinery (`pkg/api/meta/conditions.go`, `SetStatusCondition`).
pub fn set_condition(conditions: &mut Vec<Condition>, mut condition: Condition) -> bool {
    match conditions.iter_mut().find(|it| it.type_ == condition.type_) {
        None => {
            conditions.push(condition);
            true
        }
        Some(found) => {
            if found.status == condition.status {
                condition.last_transition_time.clone_from(&found.last_transition_time);
            }
            let has_changed = *found != condition;
            *found = condition;
            has_changed
        }
    }
}

/// Removes the condition of a type. Returns whether there was one.
pub fn remove_condition(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|it| it.type_ != type_);
    conditions.len() < before
}

/// Returns the condition of a type.
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|it| it.type_ == type_)
}

/// Returns whether the condition of a type has the status `True`.
pub fn is_condition_true(conditions: &[Condition], type_: &str) -> bool {
    find_condition(conditions, type_).is_some_and(|it| it.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64, status: &str, message: &str) -> Condition {
        let time = Time(Timestamp::from_second(second).unwrap());
        Condition { last_transition_time: time, ..condition("Ready", status, "Test", message) }
    }

    #[test]
    fn transition_time_changes_with_the_status_alone() {
        let mut conditions = vec![condition("Other", "True", "Test", "")];
        let second = |conditions: &[Condition]| {
            find_condition(conditions, "Ready").unwrap().last_transition_time.0.as_second()
        };

        assert!(set_condition(&mut conditions, at(1, "False", "starts")));
        assert!(!set_condition(&mut conditions, at(2, "False", "starts")), "nothing has changed");
        assert!(set_condition(&mut conditions, at(3, "False", "still starts")));
        assert_eq!((second(&conditions), is_condition_true(&conditions, "Ready")), (1, false));
        assert!(set_condition(&mut conditions, at(4, "True", "runs")));
        assert_eq!((second(&conditions), is_condition_true(&conditions, "Ready")), (4, true));

        assert!(remove_condition(&mut conditions, "Ready"));
        assert!(!remove_condition(&mut conditions, "Ready"));
        assert_eq!(conditions.len(), 1);
    }
}
