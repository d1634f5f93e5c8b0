//! Annotation with the number of workers of one declared controller.

use serde_json::Value;

use crate::meta::api::rejection::Problems;

/// Annotation of a declared controller: maximum number of its concurrent hook calls, instead of
/// [`MetaOptions::workers`](crate::meta::MetaOptions::workers).
pub const WORKERS: &str = "pilotlight.dev/workers";
/// Upper bound of [`WORKERS`]: each worker may hold a request and a response.
const MOST_WORKERS: usize = 1000;

/// Reads the annotation [`WORKERS`] of an object; `None` without it.
pub(in crate::meta) fn workers(object: &Value, problems: &mut Problems) -> Option<usize> {
    let said = object.pointer("/metadata/annotations")?.get(WORKERS)?;
    let number = said.as_str().and_then(|text| text.parse().ok());
    let number = number.filter(|number| (1..=MOST_WORKERS).contains(number));
    if number.is_none() {
        problems.invalid(
            format!("metadata.annotations[{WORKERS}]"),
            format!("the value {said} is not a number from 1 to {MOST_WORKERS} in quotes"),
        );
    }
    number
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotation_is_a_number_of_workers_in_a_string() {
        for (said, expected) in [
            (json!("1"), Some(1)),
            (json!("1000"), Some(1000)),
            (json!("0"), None),
            (json!("1001"), None),
            (json!("many"), None),
            (json!(5), None),
        ] {
            let object = json!({"metadata": {"annotations": {"pilotlight.dev/workers": said}}});
            let mut problems = Problems::default();
            assert_eq!(workers(&object, &mut problems), expected, "{object}");
            let message = problems.rejection().map(|rejected| rejected.to_string());
            assert_eq!(message.is_some(), expected.is_none(), "{object}");
            let names = |message: String| {
                message.starts_with("metadata.annotations[pilotlight.dev/workers]: ")
            };
            assert!(message.is_none_or(names), "{object}");
        }
        let mut problems = Problems::default();
        assert_eq!(workers(&json!({"metadata": {"name": "a"}}), &mut problems), None);
        assert_eq!(problems.len(), 0);
    }
}
