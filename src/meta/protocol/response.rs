//! Responses of sync and finalize hooks: validated except for the children, and cut into slices of
//! their text.

use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};

use bytes::Bytes;
use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{FieldNames, MAX_STATUS_BYTES, names, repeated_key};
#[cfg(any(test, feature = "fuzzing"))]
use crate::meta::options::MAX_CHILDREN;
use crate::{
    duration::LONGEST,
    meta::{
        api::controller_kind::ControllerKind,
        json::{
            message::{bounded, not_utf8},
            rewrite,
        },
    },
    redaction,
};

/// Longest `resyncAfterSeconds` that is honoured.
const MAX_RESYNC: Duration = LONGEST;
/// Maximum size in bytes of the changes of labels, and of those of annotations: twice the API
/// server's limit for the annotations of an object.
const MAX_CHANGES_BYTES: usize = 512 * 1024;

/// Response of a sync or finalize hook. Status and children are slices of its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyncResponse {
    /// Status of the parent, an object; `null` and absent are the same, and differ from `{}`. An
    /// error if no API server would store it.
    pub(crate) status: Result<Option<Bytes>, String>,
    /// Changes of the parent's labels; empty for a CompositeController.
    pub(crate) labels: StringChanges,
    /// Changes of the parent's annotations; empty for a CompositeController.
    pub(crate) annotations: StringChanges,
    /// Desired children: any JSON, which may be too long for the API server, too deep to be decoded,
    /// or have a number beyond all floats, or half of a surrogate pair.
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
/// are deleted. `null` in place of a field means that the field is absent, and in place of the
/// response that all are. An empty body and truncated text are errors.
///
/// Semantics: `UnmarshalStrict` of `sigs.k8s.io/json`. Names of fields are case-sensitive. Objects
/// of a field that is given several times are merged, and otherwise the last value counts.
///
/// # Errors
///
/// Names the invalid field. With `strict`, unknown and repeated fields are errors too, the latter
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
    let text = std::str::from_utf8(body).map_err(|error| unusable(not_utf8(&error)))?;
    let mut decoder = serde_json::Deserializer::from_str(text);
    let parts = decoder
        .deserialize_any(ResponseVisitor { names, strict, max_children })
        .and_then(|parts| decoder.end().map(|()| parts))
        .map_err(|error| unusable(redaction::decoding(error)))?;
    let status = merged(&parts.status)
        .map(|status| check("status", &status, MAX_STATUS_BYTES).map_err(bounded).map(|()| status))
        .transpose();
    if let Ok(Some(status)) = &status
        && strict
    {
        repeated_key::check("status", status)
            .map_err(|error| unusable(redaction::decoding(error)))?;
    }
    let bytes = |text| match text {
        Cow::Borrowed(text) => body.slice_ref(str::as_bytes(text)),
        Cow::Owned(text) => Bytes::from(text),
    };
    let changes = |field, parts| changes(field, parts, strict).map_err(unusable);
    let slice = |part: &RawValue| body.slice_ref(part.get().as_bytes());
    Ok(SyncResponse {
        status: status.map(|status| status.map(bytes)),
        labels: changes("labels", &parts.labels)?,
        annotations: changes("annotations", &parts.annotations)?,
        children: parts.children.into_iter().map(slice).collect(),
        resync_after: resync_after(parts.resync_seconds),
        finalized: parts.finalized,
    })
}

/// Parts of a response, as slices of its text. A field that is given several times has several
/// objects.
#[derive(Default)]
struct ResponseParts<'de> {
    status: Vec<&'de RawValue>,
    labels: Vec<&'de RawValue>,
    annotations: Vec<&'de RawValue>,
    children: Vec<&'de RawValue>,
    resync_seconds: f64,
    finalized: bool,
}

/// Returns an object with the fields of all these objects. Of a repeated field the last one counts,
/// as in any text of a status.
fn merged<'de>(objects: &[&'de RawValue]) -> Option<Cow<'de, str>> {
    let fields = |object: &&'de RawValue| {
        let inner = object.get().strip_prefix('{')?.strip_suffix('}')?.trim();
        (!inner.is_empty()).then_some(inner)
    };
    match objects {
        [] => None,
        [only] => Some(only.get().into()),
        several => {
            let fields: Vec<_> = several.iter().filter_map(fields).collect();
            Some(format!("{{{}}}", fields.join(",")).into())
        }
    }
}

fn check(field: &str, part: &str, most: usize) -> Result<(), String> {
    let beyond = rewrite::size_beyond(most, part)
        .map_err(|error| format!("{field}: {}", redaction::decoding(error)))?;
    beyond.map_or(Ok(()), |bytes| {
        Err(format!("{field} has {bytes} bytes; the API server accepts at most {most}"))
    })
}

/// Decodes the changes of labels or annotations. Their size is bounded, so that the decoded map is.
fn changes(field: &str, objects: &[&RawValue], strict: bool) -> Result<StringChanges, String> {
    let Some(text) = merged(objects) else { return Ok(StringChanges::new()) };
    check(field, &text, MAX_CHANGES_BYTES)?;
    serde_json::Deserializer::from_str(&text)
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

    fn visit_unit<E: serde::de::Error>(self) -> Result<ResponseParts<'de>, E> {
        Ok(ResponseParts::default())
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
                "status" => add_object(&mut response.status, &key, &mut map)?,
                "labels" => add_object(&mut response.labels, &key, &mut map)?,
                "annotations" => add_object(&mut response.annotations, &key, &mut map)?,
                // Null leaves an earlier value as it is.
                "resyncAfterSeconds" => {
                    let seconds = map.next_value::<Option<f64>>().map_err(named)?;
                    response.resync_seconds = seconds.unwrap_or(response.resync_seconds);
                }
                "finalized" => {
                    let finalized = map.next_value::<Option<bool>>().map_err(named)?;
                    response.finalized = finalized.unwrap_or(response.finalized);
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

/// Reads an object, or `null`, which drops earlier ones.
fn add_object<'de, A: MapAccess<'de>>(
    objects: &mut Vec<&'de RawValue>,
    field: &str,
    map: &mut A,
) -> Result<(), A::Error> {
    match map.next_value::<Option<&RawValue>>()? {
        None => objects.clear(),
        Some(object) if object.get().starts_with('{') => objects.push(object),
        Some(_) => return Err(A::Error::custom(format!("{field}: must be an object or null"))),
    }
    Ok(())
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
    use crate::meta::protocol::refuse_null;

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
        let bodies = ["", " \n", "[]", "1", "\"x\"", "{", r#"{"children":["#, "{} {}", "{}x"];
        // A mark of the byte order is no JSON.
        for body in bodies.into_iter().chain(["\u{feff}{}"]) {
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

    /// Decoded response of a composite's hook.
    fn composite(body: &str) -> SyncResponse {
        sync_response(ControllerKind::Composite, &body.to_owned().into(), false).unwrap()
    }

    #[test]
    fn response_null_is_an_empty_object_unless_that_is_refused() {
        for kind in ControllerKind::ALL {
            let null = " null\n";

            assert_eq!(
                sync_response(kind, &null.into(), true),
                sync_response(kind, &"{}".into(), true)
            );
            assert!(refuse_null(null.as_bytes()).unwrap_err().contains("--strict"));
            assert_eq!(refuse_null(b"{}"), Ok(()));
        }
    }

    #[test]
    fn repeated_fields_of_a_loose_response_count_as_in_go() {
        for (body, expected) in [
            (r#"{"status":{"a":1},"status":{"b":2}}"#, r#"{"a":1,"b":2}"#),
            (r#"{"status":{"a":{"x":1}},"status":{ "a":{"y":1} }}"#, r#"{"a":{"y":1}}"#),
            (r#"{"status":{},"status":{"b":2},"status":{ }}"#, r#"{"b":2}"#),
            (r#"{"status":{"a":1},"status":null,"status":{"b":2}}"#, r#"{"b":2}"#),
        ] {
            let status = composite(body).status.unwrap().unwrap();

            let status: Value = serde_json::from_slice(&status).unwrap();
            assert_eq!(status, serde_json::from_str::<Value>(expected).unwrap(), "{body}");
        }
        assert_eq!(composite(r#"{"status":{"a":1},"status":null}"#).status, Ok(None));
        let five = Some(Duration::from_secs(5));
        for (body, expected) in [
            (r#"{"resyncAfterSeconds":5,"resyncAfterSeconds":null}"#, five),
            (r#"{"resyncAfterSeconds":9,"resyncAfterSeconds":5}"#, five),
            (r#"{"resyncAfterSeconds":5,"resyncAfterSeconds":0}"#, None),
        ] {
            assert_eq!(composite(body).resync_after, expected, "{body}");
        }
        assert!(composite(r#"{"finalized":true,"finalized":null}"#).finalized);
        assert!(!composite(r#"{"finalized":true,"finalized":false}"#).finalized);
        check(r#"{"children":[{},{}],"children":[{}]}"#, false, Ok(1));
        check(r#"{"children":[{},{}],"children":null}"#, false, Ok(0));
        let twice = |first: &str, second: &str, expected: Value| {
            let body = format!(r#"{{"labels":{first},"labels":{second}}}"#);
            check_changes(&body, false, Ok(json!([expected, {}])));
        };
        twice(r#"{"a":"1"}"#, r#"{"b":"2"}"#, json!({"a": "1", "b": "2"}));
        twice(r#"{"a":"1"}"#, r#"{"a":null}"#, json!({"a": null}));
        twice(r#"{"a":"1"}"#, "null", json!({}));
    }

    #[test]
    fn names_of_fields_are_case_sensitive_and_may_be_escaped() {
        let other = r#"{"Children":[{}],"STATUS":{"a":1},"Finalized":true,"children":null}"#;
        let escaped = r#"{"s\u0074atus":{"a":1}}"#;

        assert_eq!(composite(other), composite("{}"));
        assert_eq!(composite(escaped).status, Ok(Some(Bytes::from_static(br#"{"a":1}"#))));
    }

    #[test]
    fn unknown_field_of_any_depth_and_number_is_ignored() {
        let deep = "[".repeat(9000) + &"]".repeat(9000);
        for value in ["1e999", r#"{"a":[1e999]}"#, &deep] {
            check(&format!(r#"{{"other":{value},"children":[{{}}]}}"#), false, Ok(1));
        }
    }

    #[test]
    fn the_resync_time_is_clamped() {
        for (value, expected) in [
            ("null", None),
            ("0", None),
            ("-1", None),
            ("1e-50", None),
            ("1e-999", None),
            ("-0.0", None),
            ("60.0", Some(Duration::from_secs(60))),
            ("6E+1", Some(Duration::from_secs(60))),
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

        let response = sync_response(ControllerKind::Composite, &body, true).unwrap();
        let status = response.status.unwrap().unwrap();

        let status: Value = serde_json::from_slice(&status).unwrap();
        assert_eq!(status["n"], json!(9_007_199_254_740_993_i64));
    }

    #[test]
    fn status_that_no_server_stores_is_an_error_of_the_status_alone() {
        let body = |status: &str| format!(r#"{{"status":{{"a":{status}}},"children":[{{}}]}}"#);
        let long = |bytes: usize| body(&format!("\"{}\"", "x".repeat(bytes - 8)));
        let deep = |levels: usize| body(&("[".repeat(levels) + &"]".repeat(levels)));

        assert!(composite(&long(MAX_STATUS_BYTES)).status.is_ok());
        assert!(composite(&deep(126)).status.is_ok());
        for (body, expected) in [
            (long(MAX_STATUS_BYTES + 1), "status has 1572865 bytes"),
            (deep(127), "status: "),
            (body("1e999"), "status: "),
        ] {
            let response = composite(&body);
            let error = response.status.unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert_eq!(response.children.len(), 1);
        }
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

            assert_eq!(response.status, Ok(expected.map(Bytes::from)), "{body}");
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
