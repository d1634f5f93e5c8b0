//! Comparison of two recordings, with a mask for values that always differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value;

use super::{History, RecordedKey, Recording};

/// Paths in objects that are not compared, as JSON pointers; `*` stands for any element.
///
/// By default the values that the server generates or counts: uids, versions, times, generations,
/// and managed fields. An annotation whose text is a JSON object is compared as that object, and
/// has paths within. So the last applied configuration may differ by a generated uid alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    paths: BTreeSet<String>,
}

impl Default for Mask {
    fn default() -> Self {
        let paths = [
            "/metadata/uid",
            "/metadata/resourceVersion",
            "/metadata/creationTimestamp",
            "/metadata/deletionTimestamp",
            "/metadata/generation",
            "/metadata/managedFields",
            "/metadata/ownerReferences/*/uid",
            "/status/observedGeneration",
            "/status/conditions/*/lastTransitionTime",
            "/status/conditions/*/observedGeneration",
        ];
        Self { paths: paths.into_iter().map(str::to_owned).collect() }
    }
}

/// Difference between two recordings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordingDifference {
    /// Object.
    pub object: RecordedKey,
    /// Subject of the difference: `creates`, `deletes`, or a path in the final object.
    pub subject: String,
    /// Value without faults.
    pub expected: Value,
    /// Value with faults.
    pub found: Value,
}

impl fmt::Display for RecordingDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, subject, expected, found } = self;
        write!(f, "{object}: {subject} is {found}, and {expected} without faults")
    }
}

/// All differences; an error when there should be none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordingDifferences(pub Vec<RecordingDifference>);

impl fmt::Display for RecordingDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|difference| writeln!(f, "  {difference}"))
    }
}

impl std::error::Error for RecordingDifferences {}

impl Mask {
    /// Creates a mask that hides nothing.
    pub fn none() -> Self {
        Self { paths: BTreeSet::new() }
    }

    /// Hides a further path, and all below it.
    #[must_use]
    pub fn hide(mut self, path: impl Into<String>) -> Self {
        self.paths.insert(path.into());
        self
    }

    /// Hides the paths that differ between two recordings without faults.
    #[must_use]
    pub fn learn(mut self, one: &Recording, other: &Recording) -> Self {
        let Err(differences) = self.compare(one, other) else { return self };
        for difference in differences.0 {
            // The number of creates does not depend on chance.
            if difference.subject.starts_with('/') {
                self.paths.insert(difference.subject);
            }
        }
        self
    }

    /// Compares a workload without and with faults: the number of creates and deletes of each
    /// object, and its final state. The number of updates is not guaranteed.
    ///
    /// # Errors
    ///
    /// The differences.
    pub fn compare(
        &self,
        without: &Recording,
        with: &Recording,
    ) -> Result<(), RecordingDifferences> {
        let mut differences = Vec::new();
        let nothing = History::default();
        let keys: BTreeSet<_> = without.objects.keys().chain(with.objects.keys()).collect();
        for object in keys {
            let (expected, found) = (
                without.objects.get(object).unwrap_or(&nothing),
                with.objects.get(object).unwrap_or(&nothing),
            );
            let mut differs = |subject: String, expected: Value, found: Value| {
                let object = object.clone();
                differences.push(RecordingDifference { object, subject, expected, found });
            };
            if expected.creates != found.creates {
                differs("creates".to_owned(), expected.creates.into(), found.creates.into());
            }
            if expected.deletes != found.deletes {
                differs("deletes".to_owned(), expected.deletes.into(), found.deletes.into());
            }
            match (&expected.end, &found.end) {
                (None, None) => {}
                (Some(_), None) => differs("the end".to_owned(), "there".into(), "gone".into()),
                (None, Some(_)) => differs("the end".to_owned(), "gone".into(), "there".into()),
                (Some(expected), Some(found)) => {
                    let (expected, found) = (leaves(expected), leaves(found));
                    let paths: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
                    for path in paths {
                        let (one, other) = (expected.get(path), found.get(path));
                        if one != other && !self.hides(path) {
                            let value = |leaf: Option<&Value>| leaf.cloned().unwrap_or_default();
                            differs(path.clone(), value(one), value(other));
                        }
                    }
                }
            }
        }
        if differences.is_empty() { Ok(()) } else { Err(RecordingDifferences(differences)) }
    }

    /// Asserts that a workload without and with faults has the same result.
    ///
    /// # Panics
    ///
    /// When the results differ, with the differences.
    pub fn assert_same(&self, without: &Recording, with: &Recording) {
        if let Err(differences) = self.compare(without, with) {
            panic!("the result differs with faults:\n{differences}");
        }
    }

    fn hides(&self, path: &str) -> bool {
        self.paths.iter().any(|hidden| {
            let mut parts = path.split('/');
            hidden
                .split('/')
                .all(|hidden| parts.next().is_some_and(|part| hidden == "*" || hidden == part))
        })
    }
}

/// Returns every scalar value by its path.
fn leaves(value: &Value) -> BTreeMap<String, Value> {
    fn collect(path: String, value: &Value, leaves: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    collect(format!("{path}/{name}"), value, leaves);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (at, value) in items.iter().enumerate() {
                    collect(format!("{path}/{at}"), value, leaves);
                }
            }
            Value::String(text) => match written_in(&path, text) {
                Some(written) => collect(path, &written, leaves),
                None => drop(leaves.insert(path, value.clone())),
            },
            Value::Object(_)
            | Value::Array(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_) => {
                leaves.insert(path, value.clone());
            }
        }
    }
    let mut all = BTreeMap::new();
    collect(String::new(), value, &mut all);
    all
}

/// Parses the JSON object in the text of an annotation.
fn written_in(path: &str, text: &str) -> Option<Value> {
    let name = path.strip_prefix("/metadata/annotations/")?;
    // Text within such an object is not parsed again.
    let written = (!name.contains('/')).then(|| serde_json::from_str(text).ok())?;
    written.filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recording(objects: &[(&str, usize, usize, Option<Value>)]) -> Recording {
        let one = |(name, creates, deletes, end): &(&str, usize, usize, Option<Value>)| {
            let key = RecordedKey {
                of_type: "widgets".to_owned(),
                namespace: String::new(),
                name: (*name).to_owned(),
            };
            let (creates, deletes, end) = (*creates, *deletes, end.clone());
            (key, History { creates, updates: creates * 7, deletes, end })
        };
        Recording { objects: objects.iter().map(one).collect(), ..Recording::default() }
    }

    #[track_caller]
    fn check(mask: &Mask, one: &Recording, other: &Recording, expected: &[&str]) {
        let found = mask.compare(one, other).err().unwrap_or_default();
        let found: Vec<_> = found.0.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lost_and_duplicate_objects_are_reported() {
        let (mask, there) = (Mask::default(), Some(json!({ "data": { "a": 1 } })));
        let expected = recording(&[("a", 1, 0, there.clone()), ("b", 1, 1, None)]);

        check(&mask, &expected, &expected, &[]);
        check(
            &mask,
            &expected,
            &recording(&[("a", 2, 1, Some(json!({ "data": { "a": 2 } }))), ("b", 1, 0, there)]),
            &[
                "widgets a: creates is 2, and 1 without faults",
                "widgets a: deletes is 1, and 0 without faults",
                "widgets a: /data/a is 2, and 1 without faults",
                "widgets b: deletes is 0, and 1 without faults",
                "widgets b: the end is \"there\", and \"gone\" without faults",
            ],
        );
        check(
            &mask,
            &expected,
            &recording(&[("b", 1, 1, None)]),
            &[
                "widgets a: creates is 0, and 1 without faults",
                "widgets a: the end is \"gone\", and \"there\" without faults",
            ],
        );
    }

    #[test]
    fn generated_values_are_masked_and_others_are_learnt() {
        let run = |uid: &str, port: u64, size: u64| {
            let owner = json!([{ "uid": uid, "name": "p" }]);
            let end = json!({
                "metadata": { "uid": uid, "ownerReferences": owner, "managedFields": [uid] },
                "status": { "port": port, "conditions": [{ "lastTransitionTime": uid }] },
                "spec": { "size": size },
            });
            recording(&[("a", 1, 0, Some(end))])
        };
        let (expected, again, faulty) = (run("1", 1, 5), run("2", 2, 5), run("3", 3, 6));

        let port = "widgets a: /status/port is 2, and 1 without faults";
        check(&Mask::default(), &expected, &again, &[port]);
        let mask = Mask::default().learn(&expected, &again);
        check(&mask, &expected, &again, &[]);
        check(&mask, &expected, &faulty, &["widgets a: /spec/size is 6, and 5 without faults"]);
        check(&mask.hide("/spec"), &expected, &faulty, &[]);
    }

    #[test]
    fn missing_field_differs_from_an_empty_one() {
        let end = |value: Value| recording(&[("a", 1, 0, Some(value))]);
        let full = end(json!({ "data": { "x/y": 1 } }));

        check(
            &Mask::none(),
            &full,
            &end(json!({ "data": {} })),
            &[
                "widgets a: /data is {}, and null without faults",
                "widgets a: /data/x~1y is null, and 1 without faults",
            ],
        );
    }

    #[test]
    fn annotation_with_json_is_compared_by_value() {
        let run = |text: &str| {
            let end = json!({ "metadata": { "annotations": { "x/last": text } } });
            recording(&[("a", 1, 0, Some(end))])
        };
        let said = |uid: &str, size: u64| run(&json!({ "uid": uid, "size": size }).to_string());
        let (expected, again) = (said("1", 5), said("2", 5));
        let mask = Mask::default().learn(&expected, &again);
        assert_eq!(mask, Mask::default().hide("/metadata/annotations/x~1last/uid"));
        let path = "widgets a: /metadata/annotations/x~1last";

        // The formatting of the text does not matter.
        check(&mask, &expected, &run(r#"{"size": 5, "uid": "3"}"#), &[]);
        let wrong = format!("{path}/size is 6, and 5 without faults");
        check(&mask, &expected, &said("3", 6), &[&wrong]);
        let missing = format!("{path}/size is null, and 5 without faults");
        check(&mask, &expected, &run(r#"{"uid":"3"}"#), &[&missing]);
        let nonsense = format!(r#"{path} is "{{", and null without faults"#);
        check(&mask, &expected, &run("{"), &[&nonsense, &missing]);
        let none = recording(&[("a", 1, 0, Some(json!({ "metadata": {} })))]);
        let metadata = "widgets a: /metadata is {}, and null without faults";
        check(&mask, &expected, &none, &[metadata, &missing]);
        // A number is compared as text.
        check(
            &mask,
            &run("5"),
            &run("5.0"),
            &[&format!(r#"{path} is "5.0", and "5" without faults"#)],
        );
    }

    #[test]
    fn counts_are_never_learnt() {
        let (one, two) = (recording(&[("a", 1, 0, None)]), recording(&[("a", 2, 1, None)]));

        let mask = Mask::default().learn(&one, &two);

        assert_eq!(mask, Mask::default());
    }
}
