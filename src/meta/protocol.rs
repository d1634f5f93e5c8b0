//! Hook protocol: requests are assembled from cached bytes, responses are validated.

use std::{cmp::Ordering, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{
    Deserializer, Serialize,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    HookKind, HookVersion,
    children::{Child, Group, Parent},
    related::RelatedGroup,
    rewrite,
};
use crate::{
    informer::ObjectKey,
    kind::{Scope, ServedType},
    redaction,
};

/// Default of the maximum number of children in one response.
pub const MAX_CHILDREN: usize = 10_000;
/// Limit of a child in bytes: what kube-apiserver accepts as a request body. A larger child rejects
/// the whole response, so that a mistake in a hook is not executed in part.
pub const MAX_CHILD_BYTES: usize = 3 * 1024 * 1024;
/// Maximum size of a parent's status in bytes: etcd's default limit for a request, which includes the
/// parent and its managed fields. A larger status is refused before it is processed.
pub const MAX_STATUS_BYTES: usize = 1536 * 1024;
/// The longest message about an answer, in bytes: decoders repeat the value that is wrong.
const MAX_MESSAGE_BYTES: usize = 512;
/// Longest `resyncAfterSeconds` that is honoured.
const MAX_RESYNC: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the request of a composite controller's sync or finalize hook.
///
/// Objects are copied from the cache without decoding or encoding them.
pub(crate) fn sync_request(
    kind: HookKind,
    version: HookVersion,
    controller: &[u8],
    parent: &Parent,
    parent_json: &[u8],
    observed: ObservedObjects<'_>,
) -> Vec<u8> {
    let ObservedObjects { groups, absent, children, related } = observed;
    let mut body = Vec::with_capacity(sync_request_bytes(controller, parent_json, observed));
    body.extend_from_slice(b"{\"controller\":");
    body.extend_from_slice(controller);
    body.extend_from_slice(b",\"parent\":");
    body.extend_from_slice(parent_json);
    body.extend_from_slice(b",\"children\":");
    let mut members = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let children = children.iter().filter(|child| child.group == index);
        let children = children.map(|child| (&child.key, &child.json[..]));
        members.push((&*group.served, children.collect()));
    }
    members.extend(absent.iter().map(|served| (&**served, Vec::new())));
    push_groups(&mut body, version, parent, members);
    body.extend_from_slice(b",\"related\":");
    push_groups(&mut body, version, parent, related.iter().map(members_of).collect());
    body.extend_from_slice(match kind {
        HookKind::Sync | HookKind::Customize => b",\"finalizing\":false}",
        HookKind::Finalize => b",\"finalizing\":true}",
    });
    body
}

/// Objects of a request besides the parent.
#[derive(Clone, Copy)]
pub(crate) struct ObservedObjects<'a> {
    /// Types of children.
    pub(crate) groups: &'a [Group],
    /// Optional types of children that are not served and have an empty key.
    pub(crate) absent: &'a [Arc<ServedType>],
    /// Children of the parent.
    pub(crate) children: &'a [Child],
    /// Objects that the customize hook relates to the parent.
    pub(crate) related: &'a [RelatedGroup],
}

/// Returns the request of a customize hook.
pub(crate) fn customize_request(controller: &[u8], parent_json: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 5] = [b"{\"controller\":", controller, b",\"parent\":", parent_json, b"}"];
    parts.concat()
}

/// Objects of a type, with their JSON.
type Members<'a> = (&'a ServedType, Vec<(&'a ObjectKey, &'a [u8])>);

fn members_of(group: &RelatedGroup) -> Members<'_> {
    let members = group.objects.iter().map(|object| (object.key(), &object.json()[..]));
    (&group.served, members.collect())
}

/// Appends the type map of a request: the objects of each type by their keys.
fn push_groups(
    body: &mut Vec<u8>,
    version: HookVersion,
    parent: &Parent,
    groups: Vec<Members<'_>>,
) {
    let mut order: Vec<_> =
        groups.into_iter().map(|(served, members)| (group_key(served), served, members)).collect();
    order.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    body.push(b'{');
    for (position, (name, served, members)) in order.iter().enumerate() {
        if position > 0 {
            body.push(b',');
        }
        push_text(body, name);
        body.extend_from_slice(b":{");
        let scope = served.identity.scope;
        let keyed = members
            .iter()
            .filter_map(|(key, json)| Some((MemberKey::of(version, parent, scope, key)?, *json)));
        let mut keyed: Vec<_> = keyed.collect();
        keyed.sort_by(|(one, _), (other, _)| one.compare(other));
        for (position, (key, json)) in keyed.iter().enumerate() {
            if position > 0 {
                body.push(b',');
            }
            push_text(body, format_args!("{key}"));
            body.push(b':');
            body.extend_from_slice(json);
        }
        body.push(b'}');
    }
    body.push(b'}');
}

/// Bytes to reserve for a request: a few more than it has.
pub(crate) fn sync_request_bytes(
    controller: &[u8],
    parent_json: &[u8],
    observed: ObservedObjects<'_>,
) -> usize {
    let children = observed.children.iter().map(|child| (child.json.len(), &child.key));
    let related = observed.related.iter().flat_map(|group| &group.objects);
    let related = related.map(|object| (object.json().len(), object.key()));
    let size: usize = children.chain(related).map(|(json, key)| json + key.name.len() + 80).sum();
    controller.len() + parent_json.len() + size + 256
}

/// Returns the key of a group: `Pod.v1`, `Deployment.apps/v1`.
fn group_key(served: &ServedType) -> String {
    format!("{}.{}", served.kind, served.identity.api_version())
}

/// Key of a child within its group: `name`, or `namespace/name`.
struct MemberKey<'a> {
    namespace: Option<&'a str>,
    name: &'a str,
}

impl<'a> MemberKey<'a> {
    /// Returns the key of a child; `None` for children that version 1 does not include.
    fn of(version: HookVersion, parent: &Parent, scope: Scope, key: &'a ObjectKey) -> Option<Self> {
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        match (version, parent.key.namespace.as_deref(), scope) {
            (HookVersion::V2, _, _) | (HookVersion::V1, None, _) => Some(Self { namespace, name }),
            (HookVersion::V1, Some(_), Scope::Cluster) => None,
            (HookVersion::V1, Some(own), Scope::Namespaced) => {
                (namespace == Some(own)).then_some(Self { namespace: None, name })
            }
        }
    }

    /// Compares the texts of two keys.
    fn compare(&self, other: &Self) -> Ordering {
        let bytes = |key: &Self| {
            let namespace = key.namespace.map(|namespace| namespace.bytes().chain([b'/']));
            namespace.into_iter().flatten().chain(key.name.bytes())
        };
        if self.namespace == other.namespace {
            return self.name.cmp(other.name);
        }
        bytes(self).cmp(bytes(other))
    }
}

impl fmt::Display for MemberKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(self.name)
    }
}

fn push_text(body: &mut Vec<u8>, text: impl Serialize) {
    serde_json::to_writer(body, &text).expect("a vector takes all bytes");
}

/// Response of a composite controller's sync or finalize hook. Status and children are slices of its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SyncResponse {
    /// Status of the parent, an object; `null` and absent are the same.
    pub(crate) status: Option<Bytes>,
    /// Desired children: any JSON that can be decoded.
    pub(crate) children: Vec<Bytes>,
    /// Time until the next sync.
    pub(crate) resync_after: Option<Duration>,
    /// True if the hook has finished finalizing the parent.
    pub(crate) finalized: bool,
}

/// Parses a response without decoding it into a tree, whose memory the length of the text does not
/// bound.
///
/// As in Metacontroller an absent `children` means no children, so that all observed ones are
/// deleted. An empty body, `null` and truncated text are errors.
///
/// # Errors
///
/// Names the invalid field. With `strict`, unknown and duplicate fields are errors too.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn sync_response(body: &Bytes, strict: bool) -> Result<SyncResponse, String> {
    sync_response_within(body, strict, MAX_CHILDREN)
}

/// Like [`sync_response`], with this maximum number of children.
pub(crate) fn sync_response_within(
    body: &Bytes,
    strict: bool,
    max_children: usize,
) -> Result<SyncResponse, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err("hook answered with an empty body".to_owned());
    }
    let mut decoder = serde_json::Deserializer::from_slice(body);
    let parts = decoder
        .deserialize_map(Response { strict, max_children })
        .and_then(|parts| decoder.end().map(|()| parts))
        .map_err(|error| format!("hook answer is unusable: {}", redaction::decoding(error)))
        .and_then(|parts| parts.check().map(|()| parts))
        .map_err(bounded)?;
    let slice = |part: &RawValue| body.slice_ref(part.get().as_bytes());
    Ok(SyncResponse {
        status: parts.status.map(slice),
        children: parts.children.into_iter().map(slice).collect(),
        resync_after: parts.resync_after,
        finalized: parts.finalized,
    })
}

/// Shortens a message to [`MAX_MESSAGE_BYTES`].
pub(crate) fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}

/// Parts of a response, as slices of its text.
#[derive(Default)]
struct Parts<'de> {
    status: Option<&'de RawValue>,
    children: Vec<&'de RawValue>,
    resync_after: Option<Duration>,
    finalized: bool,
}

impl Parts<'_> {
    /// Checks size and validity of each part; returns the first error.
    fn check(&self) -> Result<(), String> {
        let unusable = |wrong: String| format!("hook answer is unusable: {wrong}");
        if let Some(status) = self.status {
            check("status", status, MAX_STATUS_BYTES).map_err(unusable)?;
        }
        for (index, child) in self.children.iter().enumerate() {
            check(format_args!("children[{index}]"), child, MAX_CHILD_BYTES).map_err(unusable)?;
        }
        Ok(())
    }
}

fn check(field: impl fmt::Display, part: &RawValue, most: usize) -> Result<(), String> {
    let bytes = rewrite::size(part.get().as_bytes())
        .map_err(|error| format!("{field}: {}", redaction::decoding(error)))?;
    if bytes > most {
        return Err(format!("{field} has {bytes} bytes; the API server accepts at most {most}"));
    }
    Ok(())
}

struct Response {
    strict: bool,
    max_children: usize,
}

impl<'de> Visitor<'de> for Response {
    type Value = Parts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with status and children")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts<'de>, A::Error> {
        let mut response = Parts::default();
        let mut seen: [bool; 4] = [false; 4];
        while let Some(key) = map.next_key::<String>()? {
            let known = ["status", "children", "resyncAfterSeconds", "finalized"]
                .iter()
                .position(|name| *name == key);
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
            match key.as_str() {
                "status" => {
                    let status = map.next_value::<Option<&RawValue>>()?;
                    if status.is_some_and(|status| !status.get().starts_with('{')) {
                        return Err(A::Error::custom("status: must be an object or null"));
                    }
                    response.status = status;
                }
                "children" => {
                    response.children = map
                        .next_value_seed(ChildList { most: self.max_children })
                        .map_err(|error| {
                            A::Error::custom(format!("children: {}", redaction::decoding(error)))
                        })?;
                }
                "resyncAfterSeconds" => {
                    let seconds = map.next_value::<Option<f64>>().map_err(|error| {
                        let error = redaction::decoding(error);
                        A::Error::custom(format!("resyncAfterSeconds: {error}"))
                    })?;
                    response.resync_after = seconds.and_then(resync_after);
                }
                "finalized" => {
                    let finalized = map.next_value::<Option<bool>>().map_err(|error| {
                        A::Error::custom(format!("finalized: {}", redaction::decoding(error)))
                    })?;
                    response.finalized = finalized.unwrap_or_default();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(response)
    }
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
                    "more than {} of them; --hook-answer-children sets the limit",
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

    use super::{
        super::{UpdateMethod, children::fixtures::*},
        *,
    };

    fn request(version: HookVersion, namespace: Option<&str>) -> String {
        let at = |namespace: Option<&str>, name: &str| match namespace {
            Some(namespace) => json!({"metadata": {"name": name, "namespace": namespace}}),
            None => json!({"metadata": {"name": name}}),
        };
        let children = [
            child(0, "b", at(Some("ns"), "b")),
            child(0, "a", at(Some("ns"), "a")),
            child(0, "far", at(Some("other"), "far")),
            child(2, "wide", at(None, "wide")),
        ];
        let body = sync_request(
            HookKind::Sync,
            version,
            br#"{"kind":"CompositeController"}"#,
            &parent(namespace),
            br#"{"kind":"Thing"}"#,
            ObservedObjects {
                groups: &groups(UpdateMethod::OnDelete),
                absent: &[],
                children: &children,
                related: &related(),
            },
        );
        String::from_utf8(body).unwrap()
    }

    /// A ConfigMap in each of two namespaces, a Namespace, and a type without objects.
    fn related() -> Vec<RelatedGroup> {
        let group = |plural: &str, kind: &str, scope, at: &[(&str, &str)]| {
            let served = served("", plural, kind, scope);
            let object = |(namespace, name): &(&str, &str)| {
                let mut json = json!({"metadata": {"name": name}});
                if !namespace.is_empty() {
                    json["metadata"]["namespace"] = json!(namespace);
                }
                crate::informer::Object::from_json(json.to_string(), &served).unwrap()
            };
            RelatedGroup { objects: at.iter().map(object).collect(), served: served.clone() }
        };
        vec![
            group("secrets", "Secret", Scope::Namespaced, &[]),
            group("configmaps", "ConfigMap", Scope::Namespaced, &[("ns", "r"), ("far", "r")]),
            group("namespaces", "Namespace", Scope::Cluster, &[("", "ns")]),
        ]
    }

    #[test]
    fn related_objects_have_a_key_for_each_type_and_are_relative_in_version_1() {
        for (version, namespace, expected) in [
            (
                HookVersion::V1,
                Some("ns"),
                json!({"ConfigMap.v1": ["r"], "Namespace.v1": [], "Secret.v1": []}),
            ),
            (
                HookVersion::V1,
                None,
                json!({"ConfigMap.v1": ["far/r", "ns/r"], "Namespace.v1": ["ns"], "Secret.v1": []}),
            ),
            (
                HookVersion::V2,
                Some("ns"),
                json!({"ConfigMap.v1": ["far/r", "ns/r"], "Namespace.v1": ["ns"], "Secret.v1": []}),
            ),
        ] {
            let request: Value = serde_json::from_str(&request(version, namespace)).unwrap();

            let keys =
                |group: &Value| group.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            let found = request["related"].as_object().unwrap().iter();
            let found: Value =
                found.map(|(name, group)| (name.clone(), json!(keys(group)))).collect();
            assert_eq!(found, expected, "{version:?} {namespace:?}");
        }
    }

    #[test]
    fn customize_request_has_controller_and_parent() {
        let request = customize_request(b"{\"kind\":\"C\"}", b"{\"kind\":\"P\"}");

        let request: Value = serde_json::from_slice(&request).unwrap();
        assert_eq!(request, json!({"controller": {"kind": "C"}, "parent": {"kind": "P"}}));
    }

    #[test]
    fn version_1_contains_the_namespace_of_a_namespaced_parent() {
        assert_eq!(
            request(HookVersion::V1, Some("ns")),
            concat!(
                r#"{"controller":{"kind":"CompositeController"},"parent":{"kind":"Thing"},"#,
                r#""children":{"ConfigMap.v1":{"a":{"metadata":{"name":"a","namespace":"ns"}},"#,
                r#""b":{"metadata":{"name":"b","namespace":"ns"}}},"Deployment.apps/v1":{},"#,
                r#""Namespace.v1":{}},"related":{"ConfigMap.v1":{"r":{"apiVersion":"v1","#,
                r#""kind":"ConfigMap","metadata":{"name":"r","namespace":"ns"}}},"#,
                r#""Namespace.v1":{},"Secret.v1":{}},"finalizing":false}"#
            )
        );
    }

    #[test]
    fn version_1_contains_all_namespaces_for_a_cluster_scoped_parent() {
        let request: Value = serde_json::from_str(&request(HookVersion::V1, None)).unwrap();

        let keys = |group: &str| -> Vec<String> {
            request["children"][group].as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys("ConfigMap.v1"), ["ns/a", "ns/b", "other/far"]);
        assert_eq!(keys("Namespace.v1"), ["wide"]);
    }

    #[test]
    fn version_2_always_has_keys_of_namespace_and_name() {
        assert_eq!(
            request(HookVersion::V2, Some("ns")),
            concat!(
                r#"{"controller":{"kind":"CompositeController"},"parent":{"kind":"Thing"},"#,
                r#""children":{"ConfigMap.v1":{"ns/a":{"metadata":{"name":"a","namespace":"ns"}},"#,
                r#""ns/b":{"metadata":{"name":"b","namespace":"ns"}},"#,
                r#""other/far":{"metadata":{"name":"far","namespace":"other"}}},"#,
                r#""Deployment.apps/v1":{},"Namespace.v1":{"wide":{"metadata":{"name":"wide"}}}},"#,
                r#""related":{"ConfigMap.v1":{"far/r":{"apiVersion":"v1","kind":"ConfigMap","#,
                r#""metadata":{"name":"r","namespace":"far"}},"ns/r":{"apiVersion":"v1","#,
                r#""kind":"ConfigMap","metadata":{"name":"r","namespace":"ns"}}},"#,
                r#""Namespace.v1":{"ns":{"apiVersion":"v1","kind":"Namespace","metadata":"#,
                r#"{"name":"ns"}}},"Secret.v1":{}},"finalizing":false}"#
            )
        );
    }

    #[test]
    fn keys_of_children_are_sorted_as_texts_and_escaped() {
        let key = |namespace, name| MemberKey { namespace, name };
        let keys = [
            key(None, "a"),
            key(None, "a\"b"),
            key(Some("a"), "b"),
            key(Some("a"), "c"),
            key(Some("a-b"), "a"),
            key(Some("a.b"), "a"),
            key(Some("a0"), "a"),
        ];
        for (one, other) in keys.iter().flat_map(|one| keys.iter().map(move |other| (one, other))) {
            let as_texts = one.to_string().cmp(&other.to_string());

            assert_eq!(one.compare(other), as_texts, "{one} {other}");
        }
        let mut body = Vec::new();
        push_text(&mut body, format_args!("{}", keys[1]));
        assert_eq!(body, br#""a\"b""#);
    }

    #[track_caller]
    fn check(body: &str, strict: bool, expected: Result<usize, &str>) {
        let decoded = sync_response(&Bytes::copy_from_slice(body.as_bytes()), strict);

        match (&decoded, expected) {
            (Ok(response), Ok(children)) => assert_eq!(response.children.len(), children),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (decoded, expected) => panic!("{decoded:?} {expected:?}"),
        }
    }

    #[test]
    fn empty_and_malformed_answers_are_errors() {
        for body in ["", " \n", "null", "[]", "1", "\"x\"", "{", r#"{"children":["#, "{} {}"] {
            assert!(sync_response(&body.into(), false).is_err(), "{body:?}");
        }
        assert!(sync_response(&Bytes::from_static(b"{\"children\":[\"\xff\"]}"), false).is_err());
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
    fn fields_of_the_wrong_kind_are_named() {
        check(r#"{"children":{}}"#, false, Err("children: "));
        check(r#"{"status":[]}"#, false, Err("status: "));
        check(r#"{"resyncAfterSeconds":"1"}"#, false, Err("resyncAfterSeconds: "));
        check(r#"{"finalized":1}"#, false, Err("finalized: "));
    }

    #[test]
    fn an_error_quotes_no_value_of_the_answer() {
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
            let error = sync_response(&body.into(), true).unwrap_err();
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
    fn child_that_no_server_accepts_fails_the_whole_answer() {
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

            let response = sync_response(&body.into(), true).unwrap();

            assert_eq!(response.resync_after, expected, "{value}");
        }
        assert!(sync_response(&"{\"resyncAfterSeconds\":1e999}".into(), false).is_err());
        assert!(sync_response(&"{\"resyncAfterSeconds\":NaN}".into(), false).is_err());
        assert_eq!(resync_after(f64::NAN), None);
    }

    #[test]
    fn integers_stay_integers() {
        let body = Bytes::from_static(br#"{"status":{"n":9007199254740993}}"#);

        let status = sync_response(&body, true).unwrap().status.unwrap();

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
    fn child_that_cannot_be_decoded_is_refused_by_its_index() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for child in ["1e999", r#""\ud800""#, &deep] {
            let body = format!("{{\"children\":[{{}},{{\"a\":{child}}}]}}");

            check(&body, false, Err("children[1]: "));
        }
    }

    #[test]
    fn message_about_an_answer_does_not_quote_it() {
        let long = "é".repeat(100_000);
        for body in [
            format!("{{\"resyncAfterSeconds\":\"{long}\"}}"),
            format!("{{\"children\":\"{long}\"}}"),
            format!("{{\"finalized\":\"{long}\"}}"),
        ] {
            let error = sync_response(&body.into(), true).unwrap_err();

            assert!(error.len() < 600, "{}", error.len());
        }
    }
}
