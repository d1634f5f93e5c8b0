//! Responses of sync and finalize hooks: validated except for the children, and cut into slices of
//! their text.

use std::{collections::BTreeMap, fmt, time::Duration};

use bytes::Bytes;
use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

#[cfg(any(test, feature = "fuzzing"))]
use super::MAX_CHILDREN;
use super::{FieldNames, MAX_CHILD_BYTES, MAX_STATUS_BYTES, bounded, names, repeated_key};
use crate::{
    duration::LONGEST,
    meta::{ControllerKind, rewrite},
    redaction,
};

/// Longest `resyncAfterSeconds` that is honoured.
const MAX_RESYNC: Duration = LONGEST;
/// Maximum size in bytes of the changes of labels, and of those of annotations: twice the API
/// server's limit for the annotations of an object.
const MAX_CHANGES_BYTES: usize = 512 * 1024;

/// Response of a sync or finalize hook. Status and children are slices of its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SyncResponse {
    /// Status of the parent, an object; `null` and absent are the same, and differ from `{}`.
    pub(crate) status: Option<Bytes>,
    /// Changes of the parent's labels; empty for a CompositeController.
    pub(crate) labels: StringChanges,
    /// Changes of the parent's annotations; empty for a CompositeController.
    pub(crate) annotations: StringChanges,
    /// Desired children: any JSON, which may be too deep to be decoded, or have a number beyond all
    /// floats, or half of a surrogate pair.
    pub(crate) children: Vec<Bytes>,
    /// Time until the next sync.
    pub(crate) resync_after: Option<Duration>,
    /// True if the hook has finished finalizing the parent.
    pub(crate) finalized: bool,
}

/// Changes of labels or annotations: the new value of a key, or `None` to remove the key. Keys that
/// are not named stay.
pub(crate) type StringChanges = BTreeMap<String, Option<String>>;

/// Parses a response without decoding it into a tree, whose memory the length of the text does not
/// bound.
///
/// As in Metacontroller an absent list of children means no children, so that all observed ones
/// are deleted. An empty body, `null` and truncated text are errors.
///
/// # Errors
///
/// Names the invalid field. With `strict`, unknown and duplicate fields are errors too, the latter
/// at any depth of the status. As in Metacontroller, the last of a key that a child repeats counts
/// in both modes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn sync_response(
    kind: ControllerKind,
    body: &Bytes,
    strict: bool,
) -> Result<SyncResponse, String> {
    sync_response_within(kind, body, strict, MAX_CHILDREN)
}

/// Like [`sync_response`], with this maximum number of children.
pub(crate) fn sync_response_within(
    kind: ControllerKind,
    body: &Bytes,
    strict: bool,
    max_children: usize,
) -> Result<SyncResponse, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err("hook answered with an empty body".to_owned());
    }
    let names = names(kind);
    let unusable = |wrong| bounded(format!("hook response is unusable: {wrong}"));
    let mut decoder = serde_json::Deserializer::from_slice(body);
    let parts = decoder
        .deserialize_map(ResponseVisitor { names, strict, max_children })
        .and_then(|parts| decoder.end().map(|()| parts))
        .map_err(|error| unusable(redaction::decoding(error)))?;
    parts.check(names).map_err(unusable)?;
    if let Some(status) = parts.status.filter(|_| strict) {
        repeated_key::check("status", status.get())
            .map_err(|error| unusable(redaction::decoding(error)))?;
    }
    let changes = |field, raw| changes(field, raw, strict).map_err(unusable);
    let slice = |part: &RawValue| body.slice_ref(part.get().as_bytes());
    Ok(SyncResponse {
        status: parts.status.map(slice),
        labels: changes("labels", parts.labels)?,
        annotations: changes("annotations", parts.annotations)?,
        children: parts.children.into_iter().map(slice).collect(),
        resync_after: parts.resync_after,
        finalized: parts.finalized,
    })
}

/// Parts of a response, as slices of its text.
#[derive(Default)]
struct ResponseParts<'de> {
    status: Option<&'de RawValue>,
    labels: Option<&'de RawValue>,
    annotations: Option<&'de RawValue>,
    children: Vec<&'de RawValue>,
    resync_after: Option<Duration>,
    finalized: bool,
}

impl ResponseParts<'_> {
    /// Checks size and validity of each part, of children only the size; returns the first error.
    fn check(&self, names: &FieldNames) -> Result<(), String> {
        for (field, part, most) in [
            ("status", self.status, MAX_STATUS_BYTES),
            ("labels", self.labels, MAX_CHANGES_BYTES),
            ("annotations", self.annotations, MAX_CHANGES_BYTES),
        ] {
            part.map_or(Ok(()), |part| check(field, part, most))?;
        }
        for (index, child) in self.children.iter().enumerate() {
            if !rewrite::is_short(MAX_CHILD_BYTES, child.get()) {
                check(format_args!("{}[{index}]", names.children), child, MAX_CHILD_BYTES)?;
            }
        }
        Ok(())
    }
}

fn check(field: impl fmt::Display, part: &RawValue, most: usize) -> Result<(), String> {
    let beyond = rewrite::size_beyond(most, part.get())
        .map_err(|error| format!("{field}: {}", redaction::decoding(error)))?;
    beyond.map_or(Ok(()), |bytes| {
        Err(format!("{field} has {bytes} bytes; the API server accepts at most {most}"))
    })
}

/// Decodes the changes of labels or annotations. Their size is bounded, so that the decoded map is.
fn changes(field: &str, raw: Option<&RawValue>, strict: bool) -> Result<StringChanges, String> {
    let Some(raw) = raw else { return Ok(StringChanges::new()) };
    serde_json::Deserializer::from_str(raw.get())
        .deserialize_map(ChangesVisitor { strict })
        .map_err(|error| format!("{field}: {}", redaction::decoding(error)))
}

struct ChangesVisitor {
    strict: bool,
}

impl<'de> Visitor<'de> for ChangesVisitor {
    type Value = StringChanges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings and nulls")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringChanges, A::Error> {
        let mut changes = StringChanges::new();
        while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
            // The key is left out of the message: it may hold a secret.
            if changes.insert(key, value).is_some() && self.strict {
                return Err(A::Error::custom("duplicate field"));
            }
        }
        Ok(changes)
    }
}

struct ResponseVisitor {
    names: &'static FieldNames,
    strict: bool,
    max_children: usize,
}

impl<'de> Visitor<'de> for ResponseVisitor {
    type Value = ResponseParts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with status and children")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ResponseParts<'de>, A::Error> {
        let mut response = ResponseParts::default();
        let names = self.names;
        let mut seen = vec![false; names.response.len()];
        while let Some(key) = map.next_key::<String>()? {
            let known = names.response.iter().position(|name| *name == key);
            let twice = known.is_some_and(|index| std::mem::replace(&mut seen[index], true));
            if known.is_none() || twice {
                let key: String = key.chars().take(64).collect();
                let wrong = if twice { "duplicate field" } else { "unknown field" };
                if self.strict {
                    return Err(A::Error::custom(format!("{wrong} {key:?}")));
                }
                // The hook chooses the name, so that it may be a secret.
                tracing::debug!(wrong, "unexpected field in hook response");
            }
            if known.is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let named = |error: A::Error| {
                A::Error::custom(format!("{key}: {}", redaction::decoding(error)))
            };
            match key.as_str() {
                "status" => response.status = object(&key, &mut map)?,
                "labels" => response.labels = object(&key, &mut map)?,
                "annotations" => response.annotations = object(&key, &mut map)?,
                "resyncAfterSeconds" => {
                    let seconds = map.next_value::<Option<f64>>().map_err(named)?;
                    response.resync_after = seconds.and_then(resync_after);
                }
                "finalized" => {
                    let finalized = map.next_value::<Option<bool>>().map_err(named)?;
                    response.finalized = finalized.unwrap_or_default();
                }
                _ => {
                    let list = ChildList { most: self.max_children };
                    response.children = map.next_value_seed(list).map_err(named)?;
                }
            }
        }
        Ok(response)
    }
}

/// Reads an object or `null`.
fn object<'de, A: MapAccess<'de>>(
    field: &str,
    map: &mut A,
) -> Result<Option<&'de RawValue>, A::Error> {
    let object = map.next_value::<Option<&RawValue>>()?;
    if object.is_some_and(|object| !object.get().starts_with('{')) {
        return Err(A::Error::custom(format!("{field}: must be an object or null")));
    }
    Ok(object)
}

/// Returns the time until the next sync; `None` for zero, a negative number, NaN, and less than a
/// nanosecond.
fn resync_after(seconds: f64) -> Option<Duration> {
    (seconds > 0.0)
        .then(|| Duration::try_from_secs_f64(seconds).unwrap_or(MAX_RESYNC).min(MAX_RESYNC))
        .filter(|after| !after.is_zero())
}

/// Reads a list of at most so many children; `null` is an empty list.
struct ChildList {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for ChildList {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ChildList {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut children = Vec::new();
        while let Some(child) = items.next_element()? {
            if children.len() == self.most {
                return Err(A::Error::custom(format!(
                    "more than {} of them; --hook-response-children sets the limit",
                    self.most
                )));
            }
            children.push(child);
        }
        Ok(children)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(body: &str, strict: bool, expected: Result<usize, &str>) {
        let decoded = sync_response(
            ControllerKind::Composite,
            &Bytes::copy_from_slice(body.as_bytes()),
            strict,
        );

        match (&decoded, expected) {
            (Ok(response), Ok(children)) => assert_eq!(response.children.len(), children),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (decoded, expected) => panic!("{decoded:?} {expected:?}"),
        }
    }

    #[test]
    fn empty_and_malformed_responses_are_errors() {
        for body in ["", " \n", "null", "[]", "1", "\"x\"", "{", r#"{"children":["#, "{} {}"] {
            assert!(
                sync_response(ControllerKind::Composite, &body.into(), false).is_err(),
                "{body:?}"
            );
        }
        assert!(
            sync_response(
                ControllerKind::Composite,
                &Bytes::from_static(b"{\"children\":[\"\xff\"]}"),
                false
            )
            .is_err()
        );
    }

    #[test]
    fn missing_children_are_an_empty_list() {
        check("{}", false, Ok(0));
        check(r#"{"children":null}"#, true, Ok(0));
        check(r#"{"children":[{},null]}"#, true, Ok(2));
    }

    #[test]
    fn unknown_and_duplicate_fields_are_errors_when_strict() {
        check(r#"{"childs":[{}]}"#, false, Ok(0));
        check(r#"{"Children":[{}]}"#, false, Ok(0));
        check(r#"{"childs":[{}]}"#, true, Err("unknown field \"childs\""));
        check(r#"{"children":[{}],"children":[{},{}]}"#, false, Ok(2));
        check(r#"{"children":[],"children":[]}"#, true, Err("duplicate field \"children\""));
        check(r#"{"finalized":false,"status":{},"children":[]}"#, true, Ok(0));
    }

    #[test]
    fn key_that_an_object_of_a_status_repeats_is_an_error_when_strict() {
        for (status, path) in [
            (r#"{"a":1,"a":2}"#, "status.a"),
            (r#"{"a":{"x":1},"a":{"y":1}}"#, "status.a"),
            (r#"{"a":1,"\u0061":2}"#, "status.a"),
            (r#"{"x":{"b":[1,{"c":[[{"e":1,"e":2}]]}]}}"#, "status.x.b[1].c[0][0].e"),
        ] {
            let body = format!(r#"{{"status":{status}}}"#);

            check(&body, false, Ok(0));
            check(&body, true, Err(&format!("duplicate field {path:?}")));
        }
        check(r#"{"status":{"a":[{"x":1},{"x":1.5}],"x":{"x":null,"a":true}}}"#, true, Ok(0));
        check(r#"{"status":null}"#, true, Ok(0));
        let long = "k".repeat(1000);
        let body = format!(r#"{{"status":{{"{long}":1,"{long}":2}}}}"#);
        check(&body, true, Err(&format!("duplicate field \"status.{}\"", &long[..64])));
    }

    #[test]
    fn key_that_a_child_repeats_is_no_error_as_in_metacontroller() {
        for strict in [false, true] {
            check(r#"{"children":[{"a":1,"a":{"b":1,"b":2}}]}"#, strict, Ok(1));
        }
    }

    #[test]
    fn fields_of_the_wrong_kind_are_named() {
        check(r#"{"children":{}}"#, false, Err("children: "));
        check(r#"{"status":[]}"#, false, Err("status: "));
        check(r#"{"resyncAfterSeconds":"1"}"#, false, Err("resyncAfterSeconds: "));
        check(r#"{"finalized":1}"#, false, Err("finalized: "));
    }

    #[test]
    fn an_error_quotes_no_value_of_the_response() {
        for body in [
            r#""hush""#,
            r#"["hush"]"#,
            r#"{"children":"hush"}"#,
            r#"{"children":{"hush":"hush"}}"#,
            r#"{"resyncAfterSeconds":"hush, expected hush"}"#,
            r#"{"finalized":"hush"}"#,
            r#"{"status":"hush"}"#,
            r#"{"status":{"a":hush}}"#,
            r#"{"children":[{"a":"hush"#,
        ] {
            let error = sync_response(ControllerKind::Composite, &body.into(), true).unwrap_err();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn too_many_children_are_refused() {
        let body = |count: usize| format!("{{\"children\":[{}]}}", vec!["{}"; count].join(","));

        check(&body(MAX_CHILDREN), false, Ok(MAX_CHILDREN));
        check(&body(MAX_CHILDREN + 1), false, Err("children: more than"));
    }

    #[test]
    fn child_that_no_server_accepts_fails_the_whole_response() {
        let child = |bytes: usize| format!("{{\"data\":\"{}\"}}", "x".repeat(bytes - 11));
        let body = |bytes: usize| format!("{{\"children\":[{{}},{}]}}", child(bytes));

        check(&body(MAX_CHILD_BYTES), false, Ok(2));
        check(&body(MAX_CHILD_BYTES + 1), false, Err("children[1] has 3145729 bytes"));
        check(&body(5 * 1024 * 1024), false, Err("children[1] has 5242880 bytes"));
    }

    #[test]
    fn the_resync_time_is_clamped() {
        for (value, expected) in [
            ("null", None),
            ("0", None),
            ("-1", None),
            ("1e-50", None),
            ("0.5", Some(Duration::from_millis(500))),
            ("60", Some(Duration::from_secs(60))),
            ("1e300", Some(MAX_RESYNC)),
        ] {
            let body = format!("{{\"resyncAfterSeconds\":{value}}}");

            let response = sync_response(ControllerKind::Composite, &body.into(), true).unwrap();

            assert_eq!(response.resync_after, expected, "{value}");
        }
        assert!(
            sync_response(
                ControllerKind::Composite,
                &"{\"resyncAfterSeconds\":1e999}".into(),
                false
            )
            .is_err()
        );
        assert!(
            sync_response(ControllerKind::Composite, &"{\"resyncAfterSeconds\":NaN}".into(), false)
                .is_err()
        );
        assert_eq!(resync_after(f64::NAN), None);
    }

    #[test]
    fn integers_stay_integers() {
        let body = Bytes::from_static(br#"{"status":{"n":9007199254740993}}"#);

        let status = sync_response(ControllerKind::Composite, &body, true).unwrap().status.unwrap();

        let status: Value = serde_json::from_slice(&status).unwrap();
        assert_eq!(status["n"], json!(9_007_199_254_740_993_i64));
    }

    #[test]
    fn status_too_large_for_any_server_is_refused_before_it_is_built() {
        let body = |bytes: usize| format!("{{\"status\":{{\"a\":\"{}\"}}}}", "x".repeat(bytes - 8));

        check(&body(MAX_STATUS_BYTES), false, Ok(0));
        check(&body(MAX_STATUS_BYTES + 1), false, Err("status has 1572865 bytes"));
    }

    #[test]
    fn message_about_a_response_does_not_quote_it() {
        let long = "é".repeat(100_000);
        for body in [
            format!("{{\"resyncAfterSeconds\":\"{long}\"}}"),
            format!("{{\"children\":\"{long}\"}}"),
            format!("{{\"finalized\":\"{long}\"}}"),
        ] {
            let error = sync_response(ControllerKind::Composite, &body.into(), true).unwrap_err();

            assert!(error.len() < 600, "{}", error.len());
        }
    }

    #[track_caller]
    fn check_changes(body: &str, strict: bool, expected: Result<Value, &str>) {
        let decoded = sync_response(ControllerKind::Decorator, &body.to_owned().into(), strict);

        match (&decoded, expected) {
            (Ok(response), Ok(changes)) => {
                assert_eq!(json!([response.labels, response.annotations]), changes, "{body}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (decoded, expected) => panic!("{decoded:?} {expected:?}"),
        }
    }

    #[test]
    fn labels_and_annotations_of_a_decorator_are_texts_or_nulls() {
        check_changes("{}", true, Ok(json!([{}, {}])));
        check_changes(r#"{"labels":null,"annotations":null}"#, true, Ok(json!([{}, {}])));
        check_changes(
            r#"{"labels":{"a":"1","b":null},"annotations":{"c":""}}"#,
            true,
            Ok(json!([{"a": "1", "b": null}, {"c": ""}])),
        );
        check_changes(r#"{"labels":[]}"#, false, Err("labels: must be an object or null"));
        check_changes(r#"{"annotations":"x"}"#, false, Err("annotations: must be an object"));
        check_changes(r#"{"labels":{"a":1}}"#, false, Err("labels: "));
        check_changes(r#"{"annotations":{"a":{}}}"#, false, Err("annotations: "));
        check_changes(r#"{"labels":{"a":"1","a":"2"}}"#, false, Ok(json!([{"a": "2"}, {}])));
        check_changes(r#"{"labels":{"a":"1","a":"2"}}"#, true, Err("labels: duplicate field"));
        check_changes(r#"{"labels":{},"labels":{}}"#, true, Err("duplicate field \"labels\""));
        let body =
            |bytes: usize| format!(r#"{{"annotations":{{"a":"{}"}}}}"#, "x".repeat(bytes - 8));
        assert!(body(MAX_CHANGES_BYTES).len() > MAX_CHANGES_BYTES);
        check_changes(&body(MAX_CHANGES_BYTES + 1), false, Err("annotations has 524289 bytes"));
    }

    #[test]
    fn status_that_is_absent_or_null_differs_from_an_empty_one() {
        for (body, expected) in [
            ("{}", None),
            (r#"{"status":null}"#, None),
            (r#"{"status":{}}"#, Some("{}")),
            (r#"{"status":{"a":1}}"#, Some(r#"{"a":1}"#)),
        ] {
            let response = sync_response(ControllerKind::Decorator, &body.into(), true).unwrap();

            assert_eq!(response.status.as_deref(), expected.map(str::as_bytes), "{body}");
        }
    }

    #[test]
    fn each_kind_has_fields_of_its_own() {
        let of = |kind, body: &'static str| {
            let body = Bytes::from(body);
            let strict = sync_response(kind, &body, true).map(|it| it.children.len());
            let loose = sync_response(kind, &body, false).map(|it| it.children.len());
            (strict.ok(), loose.ok())
        };
        let (composite, decorator) = (ControllerKind::Composite, ControllerKind::Decorator);

        assert_eq!(of(composite, r#"{"children":[{}]}"#), (Some(1), Some(1)));
        assert_eq!(of(composite, r#"{"attachments":[{}]}"#), (None, Some(0)));
        assert_eq!(of(composite, r#"{"labels":1}"#), (None, Some(0)));
        // Requests of users that no hook can make.
        for refused in [r#"{"events":[]}"#, r#"{"related":{}}"#, r#"{"deleteParent":true}"#] {
            assert_eq!(of(composite, refused), (None, Some(0)));
            assert_eq!(of(decorator, refused), (None, Some(0)));
        }
        assert_eq!(of(decorator, r#"{"attachments":[{}]}"#), (Some(1), Some(1)));
        assert_eq!(of(decorator, r#"{"attachments":null}"#), (Some(0), Some(0)));
        assert_eq!(of(decorator, r#"{"children":[{}]}"#), (None, Some(0)));
    }
}
