//! Requests of hooks, copied from cached bytes without decoding or encoding an object.

use std::sync::Arc;

use super::{
    keys::{members_of, push_groups},
    names,
};
use crate::{
    kind::ServedType,
    meta::{
        api::controller_kind::ControllerKind,
        children::{Child, ServedChildType},
        hooks::rule::{HookKind, HookVersion},
        parent::Parent,
        related::RelatedGroup,
    },
};

/// Returns the request of a sync or finalize hook.
pub(crate) fn sync_request(
    kind: ControllerKind,
    hook: HookKind,
    version: HookVersion,
    controller: &[u8],
    parent: &Parent,
    parent_json: &[u8],
    observed: ObservedObjects<'_>,
) -> Vec<u8> {
    let ObservedObjects { groups, absent, children, related } = observed;
    let names = names(kind);
    let mut body = Vec::with_capacity(sync_request_bytes(controller, parent_json.len(), observed));
    body.extend_from_slice(b"{\"controller\":");
    body.extend_from_slice(controller);
    push_field(&mut body, names.parent);
    body.extend_from_slice(parent_json);
    push_field(&mut body, names.children);
    let mut members = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        let children = children.iter().filter(|child| child.group == index);
        let children = children.map(|child| (&child.key, &child.object));
        members.push((&*group.served, children.collect()));
    }
    members.extend(absent.iter().map(|served| (&**served, Vec::new())));
    push_groups(&mut body, version, parent, members);
    push_field(&mut body, "related");
    push_groups(&mut body, version, parent, related.iter().map(members_of).collect());
    body.extend_from_slice(match hook {
        HookKind::Sync | HookKind::Customize => b",\"finalizing\":false}",
        HookKind::Finalize => b",\"finalizing\":true}",
    });
    body
}

fn push_field(body: &mut Vec<u8>, name: &str) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
}

/// Objects of a request besides the parent.
#[derive(Clone, Copy)]
pub(crate) struct ObservedObjects<'a> {
    /// Types of children.
    pub(crate) groups: &'a [ServedChildType],
    /// Optional types of children that are not served and have an empty key.
    pub(crate) absent: &'a [Arc<ServedType>],
    /// Children of the parent.
    pub(crate) children: &'a [Child],
    /// Objects that the customize hook relates to the parent.
    pub(crate) related: &'a [RelatedGroup],
}

/// Returns the request of a customize hook. The field is `parent` for both kinds.
pub(crate) fn customize_request(controller: &[u8], parent_json: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 5] = [b"{\"controller\":", controller, b",\"parent\":", parent_json, b"}"];
    parts.concat()
}

/// Bytes to reserve for a request, for a parent of so many: a few more than it has.
pub(crate) fn sync_request_bytes(
    controller: &[u8],
    parent: usize,
    observed: ObservedObjects<'_>,
) -> usize {
    let children = observed.children.iter().map(|child| (child.object.json_len(), &child.key));
    let related = observed.related.iter().flat_map(|group| &group.objects);
    let related = related.map(|object| (object.json_len(), object.key()));
    let size: usize = children.chain(related).map(|(json, key)| json + key.name.len() + 80).sum();
    controller.len() + parent + size + 256
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        kind::Scope,
        meta::{children::fixtures::*, definition::UpdateMethod},
    };

    fn request(version: HookVersion, namespace: Option<&str>) -> String {
        request_of(ControllerKind::Composite, HookKind::Sync, version, namespace)
    }

    fn request_of(
        kind: ControllerKind,
        hook: HookKind,
        version: HookVersion,
        namespace: Option<&str>,
    ) -> String {
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
            kind,
            hook,
            version,
            br#"{"kind":"C"}"#,
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
    fn long_child_is_sent_as_it_was_stored() {
        let long = json!({"metadata": {"name": "a"}, "data": {"text": "x".repeat(4096)}});
        let children = [child(0, "a", long.clone()), child(0, "b", json!({}))];
        let objects = ObservedObjects {
            groups: &groups(UpdateMethod::OnDelete),
            absent: &[],
            children: &children,
            related: &[],
        };

        let (kind, hook) = (ControllerKind::Composite, HookKind::Sync);
        let (version, parent) = (HookVersion::V2, parent(None));
        let request = sync_request(kind, hook, version, b"{}", &parent, b"{}", objects);

        let request: Value = serde_json::from_slice(&request).unwrap();
        let sent = request["children"].as_object().unwrap().values().next().unwrap();
        assert_eq!(sent, &json!({"a": long, "b": {}}));
        assert!(children[0].object.stored_json().len() < children[0].object.json_len());
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
                r#"{"controller":{"kind":"C"},"parent":{"kind":"Thing"},"#,
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
                r#"{"controller":{"kind":"C"},"parent":{"kind":"Thing"},"#,
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
    fn request_of_a_decorator_has_the_object_and_its_attachments() {
        for version in [HookVersion::V1, HookVersion::V2] {
            for (hook, finalizing) in [(HookKind::Sync, false), (HookKind::Finalize, true)] {
                let of = |kind| request_of(kind, hook, version, Some("ns"));
                let mut composite: Value =
                    serde_json::from_str(&of(ControllerKind::Composite)).unwrap();

                let decorator: Value =
                    serde_json::from_str(&of(ControllerKind::Decorator)).unwrap();

                let parts = composite.as_object_mut().unwrap();
                let object = parts.remove("parent").unwrap();
                parts.insert("object".to_owned(), object);
                let attachments = parts.remove("children").unwrap();
                parts.insert("attachments".to_owned(), attachments);
                assert_eq!(decorator, composite, "{version:?}");
                assert_eq!(decorator["finalizing"], finalizing);
                let found: Vec<_> = decorator.as_object().unwrap().keys().cloned().collect();
                let fields = ["attachments", "controller", "finalizing", "object", "related"];
                assert_eq!(found, fields);
            }
        }
    }
}
