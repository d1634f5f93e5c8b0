//! Revision of a parent: name, labels, and content of its ControllerRevision.
//!
//! Name and labels are those of Metacontroller (`pkg/controller/composite/controller_revision.go`),
//! so that both programs continue each other's rollouts.

use std::{collections::BTreeMap, sync::Arc};

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    informer::{Object, ObjectKey, Selector, StringMap},
    kind::TypeIdentity,
    meta::{
        api::{ControllerRevision, RevisionChildren},
        children::ownership::UID_LABEL,
        json::go_json,
    },
    redaction,
};

/// Label of a revision: group of the parent.
const GROUP_LABEL: &str = "metacontroller.k8s.io/apiGroup";
/// Label of a revision: plural name of the parent's type.
const RESOURCE_LABEL: &str = "metacontroller.k8s.io/resource";
/// Maximum length of an object name.
const MAX_NAME: usize = 253;
/// Maximum length of a label value.
const MAX_LABEL: usize = 63;

/// Labels by their keys.
pub(crate) type LabelMap = BTreeMap<String, String>;

/// Revision of a parent, observed or new.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Revision {
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// Values of the parent's fields.
    pub(crate) patch: Value,
    /// Children that have the revision.
    pub(crate) children: Vec<RevisionChildren>,
    /// uid and resourceVersion; `None` until it is created.
    pub(crate) observed: Option<(Arc<str>, Arc<str>)>,
}

/// Parent as an older revision describes it.
#[derive(Clone, Debug)]
pub(crate) struct OlderParent {
    /// The revision.
    pub(crate) revision: Revision,
    /// The parent with the fields of the revision, encoded.
    pub(crate) json: Bytes,
}

/// Parent, as far as the name of a revision depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RevisionOwner<'a> {
    /// Type of the parent.
    pub(crate) identity: &'a TypeIdentity,
    /// uid of the parent.
    pub(crate) uid: &'a str,
}

impl Revision {
    /// Returns the revision of this patch, which no object represents yet.
    pub(crate) fn new(owner: RevisionOwner<'_>, namespace: Arc<str>, patch: Value) -> Self {
        let name = name_of(owner, &go_json::encode(&patch));
        let key = ObjectKey { namespace: Some(namespace), name: name.into() };
        Self { key, patch, children: Vec::new(), observed: None }
    }

    /// Reads a revision.
    ///
    /// # Errors
    ///
    /// The object lacks a patch, or is otherwise unreadable.
    pub(crate) fn read(object: &Object) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct StoredRevision {
            parent_patch: Value,
            #[serde(default)]
            children: Option<Vec<RevisionChildren>>,
        }
        let header = object.header();
        let content: StoredRevision = serde_json::from_slice(&object.json()).map_err(|error| {
            format!(
                "ControllerRevision {} is unreadable: {}",
                object.key(),
                redaction::decoding(error)
            )
        })?;
        Ok(Self {
            key: object.key().clone(),
            patch: content.parent_patch,
            children: content.children.unwrap_or_default(),
            observed: Some((header.uid.clone(), header.resource_version.clone())),
        })
    }

    /// Returns whether the revision has this patch.
    pub(crate) fn has(&self, patch: &Value) -> bool {
        go_json::encode(&self.patch) == go_json::encode(patch)
    }

    /// Returns the object to create, with these labels and this owner reference.
    pub(crate) fn object(
        &self,
        labels: LabelMap,
        owner: Value,
        children: Vec<RevisionChildren>,
    ) -> Bytes {
        let metadata = ObjectMeta {
            name: Some(self.key.name.to_string()),
            namespace: self.key.namespace.as_deref().map(str::to_owned),
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        let patch = self.patch.as_object().cloned().unwrap_or_default();
        let mut revision = ControllerRevision::new(metadata, patch);
        revision.children = children;
        let mut object = serde_json::to_value(revision).expect("a revision has string keys alone");
        object["metadata"]["ownerReferences"] = Value::Array(vec![owner]);
        go_json::encode(&object).into()
    }
}

/// Returns whether a revision has the name that its patch has for this parent. The name contains the
/// parent's uid, so that no other parent's revision has it.
pub(crate) fn is_named_by(owner: RevisionOwner<'_>, revision: &Revision) -> bool {
    *revision.key.name == name_of(owner, &go_json::encode(&revision.patch))
}

/// Returns whether labels are those of a revision of this type of parents.
pub(crate) fn is_of_type(labels: &StringMap, identity: &TypeIdentity) -> bool {
    type_labels(identity).iter().all(|(key, value)| labels.get(key) == Some(value.as_str()))
}

/// Returns the labels that every revision of this type of parents has.
fn type_labels(identity: &TypeIdentity) -> LabelMap {
    let value = |text: &str| -> String {
        let cut: String = text.chars().take(MAX_LABEL).collect();
        cut.trim_end_matches(['-', '.', '_']).to_owned()
    };
    LabelMap::from([
        (GROUP_LABEL.to_owned(), value(&identity.group)),
        (RESOURCE_LABEL.to_owned(), value(&identity.plural)),
    ])
}

/// Returns the labels of a new revision: those of the parent's template. Without a template they are
/// those that the parent's selector requires, so that a revision without an owner is found again.
///
/// # Errors
///
/// Names the field of the parent that is no map of strings.
pub(crate) fn labels_of(
    parent: &Value,
    owner: RevisionOwner<'_>,
    generates_selector: bool,
) -> Result<LabelMap, String> {
    let texts = |pointer: &str| -> Result<Option<LabelMap>, String> {
        let Some(labels) = parent.pointer(pointer).filter(|labels| !labels.is_null()) else {
            return Ok(None);
        };
        let field = || pointer.trim_start_matches('/').replace('/', ".");
        LabelMap::deserialize(labels)
            .map(Some)
            .map_err(|_error| format!("{}: must be a map of strings", field()))
    };
    let mut labels = if generates_selector {
        LabelMap::from([(UID_LABEL.to_owned(), owner.uid.to_owned())])
    } else {
        match texts("/spec/template/metadata/labels")?.filter(|labels| !labels.is_empty()) {
            Some(labels) => labels,
            None => texts("/spec/selector/matchLabels")?.unwrap_or_default(),
        }
    };
    labels.extend(type_labels(owner.identity));
    Ok(labels)
}

/// Returns the selector of revisions without an owner that may be those of a parent of this type.
pub(crate) fn orphan_selector(identity: &TypeIdentity) -> Selector {
    Selector::label(RESOURCE_LABEL, &type_labels(identity)[RESOURCE_LABEL])
}

/// Returns the name of the revision with this patch, encoded.
fn name_of(owner: RevisionOwner<'_>, patch: &str) -> String {
    let group = if owner.identity.group.is_empty() { "core" } else { &owner.identity.group };
    let mut prefix = format!("{}.{group}", owner.identity.plural);
    prefix.truncate(MAX_NAME - 41);
    let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(owner.uid.as_bytes());
    hash.update(patch.as_bytes());
    let hash = hash.finish();
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}-{hex}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        kind::Scope,
        meta::{children::fixtures::served, rollout::field_paths::patch_of},
    };

    #[track_caller]
    fn check(group: &str, plural: &str, uid: &str, patch: Value, expected: &str) {
        let served = served(group, plural, "Thing", Scope::Namespaced);
        let owner = RevisionOwner { identity: &served.identity, uid };

        let revision = Revision::new(owner, "ns".into(), patch);

        assert_eq!(&*revision.key.name, expected);
        assert!(is_named_by(owner, &revision));
        assert!(!is_named_by(RevisionOwner { uid: "other", ..owner }, &revision));
    }

    #[test]
    fn revision_has_the_name_that_metacontroller_gives_it() {
        // echo -n '5b2c{"spec":{"a":"\u003c\u0026","n":2}}' | sha1sum
        check(
            "example.com",
            "things",
            "5b2c",
            json!({"spec": {"n": 2.0, "a": "<&"}}),
            "things.example.com-ad7d5255038c3a199b1f5919b66a36217325d96b",
        );
        // echo -n 'u{}' | sha1sum
        check("", "things", "u", json!({}), "things.core-a1b9f1d378725878a5b016236a0eea0265eb4b33");
        let long = "x".repeat(250);
        let name = format!("things.{}-a1b9f1d378725878a5b016236a0eea0265eb4b33", &long[..205]);
        check(&long, "things", "u", json!({}), &name);
    }

    #[test]
    fn revisions_are_those_that_metacontroller_left() {
        let file = include_str!("../../../tests/migration/metacontroller-4.17.2-rollouts.json");
        let file: Value = serde_json::from_str(file).unwrap();
        let objects = || ["dynamic-apply", "server-side-apply"].map(|it| &file[it]);
        let objects = || objects().into_iter().flat_map(|it| it.as_array().unwrap());
        let mut count = 0;
        for left in objects().filter(|it| it["kind"] == "ControllerRevision") {
            let metadata = &left["metadata"];
            let plural = metadata["labels"][RESOURCE_LABEL].as_str().unwrap();
            let group = metadata["labels"][GROUP_LABEL].as_str().unwrap();
            let served = served(group, plural, "Thing", Scope::Namespaced);
            let uid = metadata["ownerReferences"][0]["uid"].as_str().unwrap();
            let owner = RevisionOwner { identity: &served.identity, uid };
            let parent = objects().find(|it| it["metadata"]["uid"] == uid).unwrap();

            let named = if plural == "boats" { "spec" } else { "spec.template" };
            let mut parent = parent.clone();
            parent["spec"]["template"]["text"] =
                left["parentPatch"]["spec"]["template"]["text"].clone();

            let patch = patch_of(&parent, &[named.to_owned()]).unwrap();
            let made = Revision::new(owner, "snapshot".into(), patch);
            let labels = labels_of(&parent, owner, plural == "boats").unwrap();
            let children = serde_json::from_value(left["children"].clone()).unwrap();
            let owners = &metadata["ownerReferences"];
            let made = made.object(labels, owners[0].clone(), children);

            let mut left = left.clone();
            for field in ["creationTimestamp", "generation", "resourceVersion", "uid"] {
                left["metadata"].as_object_mut().unwrap().remove(field);
            }
            assert_eq!(serde_json::from_slice::<Value>(&made).unwrap(), left);
            count += 1;
        }
        assert_eq!(count, 12);
    }

    #[test]
    fn labels_are_those_of_template_or_selector_or_the_generated_one() {
        let served = served("example.com", "things", "Thing", Scope::Namespaced);
        let owner = RevisionOwner { identity: &served.identity, uid: "u1" };
        let parent = |template: Value| json!({"spec": {"selector": {"matchLabels": {"app": "s"}}, "template": template}});
        let labelled = json!({"metadata": {"labels": {"app": "t"}}});
        for (parent, generates, expected) in [
            (parent(labelled.clone()), false, ("app", "t")),
            (parent(json!({"metadata": {}})), false, ("app", "s")),
            (parent(Value::Null), false, ("app", "s")),
            (parent(labelled), true, ("controller-uid", "u1")),
        ] {
            let found = labels_of(&parent, owner, generates).unwrap();

            let (key, value) = expected;
            let expected = LabelMap::from([
                (GROUP_LABEL.to_owned(), "example.com".to_owned()),
                (RESOURCE_LABEL.to_owned(), "things".to_owned()),
                (key.to_owned(), value.to_owned()),
            ]);
            assert_eq!(found, expected);
        }
        let wrong = parent(json!({"metadata": {"labels": {"app": 1}}}));
        let error = labels_of(&wrong, owner, false).unwrap_err();
        assert_eq!(error, "spec.template.metadata.labels: must be a map of strings");
    }

    #[test]
    fn revision_survives_a_round_trip() {
        let served = served("example.com", "things", "Thing", Scope::Namespaced);
        let owner = RevisionOwner { identity: &served.identity, uid: "u1" };
        let new = Revision::new(owner, "ns".into(), json!({"spec": {"n": 1}}));
        let children = vec![RevisionChildren {
            api_group: String::new(),
            kind: "Pod".to_owned(),
            names: vec!["a".to_owned()],
        }];

        let object = new.object(LabelMap::new(), json!({"uid": "u1"}), children.clone());

        let mut object: Value = serde_json::from_slice(&object).unwrap();
        object["metadata"]["uid"] = json!("r");
        object["metadata"]["resourceVersion"] = json!("7");
        let revisions =
            crate::meta::children::fixtures::served("", "revisions", "R", Scope::Namespaced);
        let read = Revision::read(&Object::from_json(object.to_string(), &revisions).unwrap());
        let observed = Some(("r".into(), "7".into()));
        assert_eq!(read, Ok(Revision { children, observed, ..new.clone() }));
        assert!(read.unwrap().has(&json!({"spec": {"n": 1.0}})));
        let unreadable = Object::from_json(r#"{"metadata":{"name":"a","uid":"u"}}"#, &revisions);
        assert!(Revision::read(&unreadable.unwrap()).unwrap_err().contains("is unreadable"));
    }
}
