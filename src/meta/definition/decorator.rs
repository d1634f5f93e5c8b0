//! Specification of a DecoratorController.

use super::{
    Declaration, ParentRule, ParentType, Problems,
    fields::{
        DeclaredChild, DeclaredHooks, HookRules, child_rules, hook_rules, resync_period, type_ref,
    },
    selection,
};
use crate::{
    informer::Selector,
    kind::TypeRef,
    meta::api::{Attachment, DecoratedResource, DecoratorControllerSpec},
};

/// Reads a specification; `None` if a part cannot be read.
pub(super) fn read(spec: &DecoratorControllerSpec, problems: &mut Problems) -> Option<Declaration> {
    if spec.resources.is_empty() {
        problems.invalid("spec.resources", "must not be empty");
    }
    let rules: Vec<_> = spec
        .resources
        .iter()
        .enumerate()
        .map(|(index, resource)| rule(&format!("spec.resources[{index}]"), resource, problems))
        .collect();
    let children = child_rules(
        "spec.attachments",
        &spec.attachments,
        |attachment| DeclaredChild {
            api_version: &attachment.api_version,
            resource: &attachment.resource,
            method: method(attachment),
            checks: None,
            optional: attachment.optional.unwrap_or_default(),
            ignore_status_changes: attachment.ignore_status_changes.unwrap_or_default(),
        },
        problems,
    );
    let hooks = spec.hooks.clone().unwrap_or_default();
    let hooks = DeclaredHooks {
        sync: hooks.sync.as_ref(),
        finalize: hooks.finalize.as_ref(),
        customize: hooks.customize.as_ref(),
        endpoints: &spec.endpoint_configs,
    };
    let hooks = hook_rules(&hooks, problems);
    let rules: Vec<_> = rules.into_iter().collect::<Option<_>>()?;
    let HookRules { sync, finalize, customize } = hooks?;
    Some(Declaration {
        parents: ParentType::of_rules(rules),
        children,
        generate_selector: false,
        revision_fields: Vec::new(),
        resync_period: resync_period(spec.resync_period_seconds),
        sync,
        finalize,
        customize,
    })
}

/// Reads a rule with its type; `None` if a part cannot be read.
fn rule(
    field: &str,
    resource: &DecoratedResource,
    problems: &mut Problems,
) -> Option<(TypeRef, ParentRule)> {
    let type_ref = type_ref(field, &resource.api_version, &resource.resource, problems);
    let labels = resource.label_selector.as_ref().map_or(Ok(Selector::default()), selection::parse);
    let annotations = resource
        .annotation_selector
        .as_ref()
        .map_or(Ok(Selector::default()), selection::parse_annotations);
    let mut read = |name: &str, selector: Result<Selector, (String, String)>| {
        selector
            .map_err(|(part, message)| problems.invalid(format!("{field}.{name}.{part}"), message))
            .ok()
    };
    let (labels, annotations) =
        (read("labelSelector", labels), read("annotationSelector", annotations));
    let ignore_status_changes = resource.ignore_status_changes.unwrap_or_default();
    Some((
        type_ref?,
        ParentRule { labels: labels?, annotations: annotations?, ignore_status_changes },
    ))
}

/// Update method of attachments. As in Metacontroller, the rolling methods are accepted and do not
/// roll: a decorated object has no revisions.
fn method(attachment: &Attachment) -> Option<&str> {
    match attachment.update_strategy.as_ref()?.method.as_deref()? {
        "RollingRecreate" => Some("Recreate"),
        "RollingInPlace" => Some("InPlace"),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use serde_json::{Value, json};

    use crate::{
        informer::Object,
        kind::{Scope, TypeRef},
        meta::{
            api::{controller_kind::ControllerKind, rejection::Rejection},
            children::fixtures::served,
            definition::{Definition, UpdateMethod},
        },
    };

    fn parse(change: impl FnOnce(&mut Value)) -> Result<Definition, Rejection> {
        let mut object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "DecoratorController",
            "metadata": {"name": "things"},
            "spec": {
                "resources": [{"apiVersion": "example.com/v1", "resource": "things"}],
                "attachments": [{"apiVersion": "v1", "resource": "configmaps"}],
                "hooks": {"sync": {"webhook": {"url": "http://hook.default/sync"}}}
            }
        });
        change(&mut object["spec"]);
        let object = Bytes::from(object.to_string());
        Definition::parse(ControllerKind::Decorator, &object)
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expected: &[&str]) {
        let fields: Vec<String> = match parse(change) {
            Ok(_) => Vec::new(),
            Err(Rejection::Undecodable { field, .. }) => vec![field],
            Err(Rejection::Unbuildable(error)) => vec![error],
            Err(Rejection::Invalid(problems)) => {
                problems.into_iter().map(|problem| problem.field).collect()
            }
        };

        assert_eq!(fields, expected);
    }

    #[test]
    fn plain_decorator_is_accepted_with_its_defaults() {
        let definition = parse(|_| ()).unwrap();

        assert_eq!(definition.kind, ControllerKind::Decorator);
        assert_eq!(definition.name, "things");
        let [parent] = &definition.parents[..] else { panic!("{:?}", definition.parents) };
        assert_eq!(parent.type_ref, TypeRef::resource("example.com", "v1", "things"));
        assert_eq!(parent.rules.len(), 1);
        assert!(!parent.rules[0].ignore_status_changes);
        assert_eq!(definition.children[0].strategy, UpdateMethod::OnDelete);
        assert!(!definition.children[0].optional);
        assert!(!definition.generate_selector);
        assert_eq!(definition.resync_period, None);
        let bare = parse(|spec| drop(spec.as_object_mut().unwrap().remove("attachments")));
        assert!(bare.unwrap().children.is_empty());
        let resync = parse(|spec| spec["resyncPeriodSeconds"] = json!(0)).unwrap();
        assert_eq!(resync.resync_period, Some(Duration::from_secs(1)));
    }

    #[test]
    fn rolling_methods_of_attachments_do_not_roll() {
        for (method, expected) in [
            (json!(null), UpdateMethod::OnDelete),
            (json!("OnDelete"), UpdateMethod::OnDelete),
            (json!("Recreate"), UpdateMethod::Recreate),
            (json!("InPlace"), UpdateMethod::InPlace),
            (json!("RollingRecreate"), UpdateMethod::Recreate),
            (json!("RollingInPlace"), UpdateMethod::InPlace),
        ] {
            let definition = parse(|spec| {
                spec["attachments"][0]["updateStrategy"] = json!({ "method": method });
            });

            assert_eq!(definition.unwrap().children[0].strategy, expected, "{method}");
        }
    }

    #[test]
    fn rules_of_one_resource_are_one_type_in_the_version_of_the_first() {
        let selecting = |version: &str, value: &str| {
            json!({
                "apiVersion": format!("example.com/{version}"), "resource": "things",
                "labelSelector": {"matchLabels": {"app": value}}
            })
        };
        let definition = parse(|spec| {
            spec["resources"] = json!([
                selecting("v2", "a"),
                {"apiVersion": "v1", "resource": "pods"},
                selecting("v1", "b"),
                selecting("v2", "a"),
                selecting("v1", "a"),
            ]);
        })
        .unwrap();

        let [things, pods] = &definition.parents[..] else { panic!("{:?}", definition.parents) };
        assert_eq!(things.type_ref, TypeRef::resource("example.com", "v2", "things"));
        assert_eq!(pods.type_ref, TypeRef::resource("", "v1", "pods"));
        assert_eq!((things.rules.len(), pods.rules.len()), (2, 1), "identical rules count once");
        for (value, expected) in [("a", true), ("b", true), ("c", false)] {
            assert_eq!(things.selects(object(json!({"app": value}), json!({})).header()), expected);
        }
    }

    fn object(labels: Value, annotations: Value) -> Object {
        let metadata = json!({"name": "a", "labels": labels, "annotations": annotations});
        let served = served("example.com", "things", "Thing", Scope::Namespaced);
        Object::from_json(json!({ "metadata": metadata }).to_string(), &served).unwrap()
    }

    #[test]
    fn rule_selects_what_matches_both_of_its_selectors() {
        let annotation = |operator: &str, values: Value| {
            let requirement = json!({"key": "a.io/on", "operator": operator, "values": values});
            json!({"annotationSelector": {"matchExpressions": [requirement]}})
        };
        let equal =
            |value: &str| json!({"annotationSelector": {"matchAnnotations": {"a.io/on": value}}});
        let labels = json!({"labelSelector": {"matchLabels": {"app": "web"}}});
        let (none, web) = (json!({}), json!({"app": "web"}));
        let on = |value: &str| json!({"a.io/on": value});
        for (rule, labels, annotations, expected) in [
            (json!({}), &none, none.clone(), true),
            (json!({"labelSelector": {}, "annotationSelector": {}}), &none, none.clone(), true),
            (labels.clone(), &web, none.clone(), true),
            (labels.clone(), &none, json!({"app": "web"}), false),
            (equal("any text/"), &none, on("any text/"), true),
            (equal("any text/"), &none, on("other"), false),
            (equal("yes"), &json!({"a.io/on": "yes"}), none.clone(), false),
            (annotation("In", json!(["x", "y z"])), &none, on("y z"), true),
            (annotation("In", json!(["x", "y z"])), &none, on("z"), false),
            (annotation("In", json!(["x"])), &none, none.clone(), false),
            (annotation("NotIn", json!(["x"])), &none, on("y"), true),
            (annotation("NotIn", json!(["x"])), &none, on("x"), false),
            (annotation("NotIn", json!(["x"])), &none, none.clone(), true),
            (annotation("Exists", json!([])), &none, on(""), true),
            (annotation("Exists", json!([])), &none, none.clone(), false),
            (annotation("DoesNotExist", json!([])), &none, none.clone(), true),
            (annotation("DoesNotExist", json!([])), &none, on("x"), false),
        ] {
            let definition = parse(|spec| {
                let resource = spec["resources"][0].as_object_mut().unwrap();
                resource.extend(rule.as_object().unwrap().clone());
            });
            let object = object(labels.clone(), annotations.clone());

            let selected = definition.unwrap().parents[0].selects(object.header());

            assert_eq!(selected, expected, "{rule} {labels} {annotations}");
        }
    }

    #[test]
    fn every_wrong_field_of_a_decorator_is_named() {
        check(|spec| spec["resources"] = json!([]), &["spec.resources"]);
        check(|spec| drop(spec.as_object_mut().unwrap().remove("resources")), &["spec"]);
        check(
            |spec| spec["resources"][0]["apiVersion"] = json!("a/b/c"),
            &["spec.resources[0].apiVersion"],
        );
        check(
            |spec| spec["resources"] = json!([{"apiVersion": "v1", "resource": ""}]),
            &["spec.resources[0].resource"],
        );
        let near = || json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        check(
            |spec| {
                spec["resources"][0]["labelSelector"] = near();
                spec["resources"][0]["annotationSelector"] = near();
            },
            &[
                "spec.resources[0].labelSelector.matchExpressions[0].operator",
                "spec.resources[0].annotationSelector.matchExpressions[0].operator",
            ],
        );
        check(
            |spec| {
                spec["resources"][0]["annotationSelector"] =
                    json!({"matchAnnotations": {"not a key": "x"}});
            },
            &["spec.resources[0].annotationSelector.matchAnnotations"],
        );
        for prefix in ["kubectl.kubernetes.io", "metacontroller.k8s.io"] {
            let key = format!("{prefix}/last-applied-configuration");
            let requirement = json!([{"key": key, "operator": "Exists"}]);
            check(
                |spec| {
                    spec["resources"][0]["annotationSelector"] =
                        json!({ "matchExpressions": requirement });
                },
                &["spec.resources[0].annotationSelector.matchExpressions[0].key"],
            );
        }
        check(
            |spec| {
                spec["attachments"] = json!([
                    {"apiVersion": "v1", "resource": "pods"},
                    {"apiVersion": "v1", "resource": "pods"},
                    {"apiVersion": "v1", "resource": "pods", "optional": true},
                    {"apiVersion": "v1", "resource": "jobs", "updateStrategy": {"method": "No"}},
                ]);
            },
            &["spec.attachments[2]", "spec.attachments[3].updateStrategy.method"],
        );
        check(|spec| spec["hooks"] = json!({}), &["spec.hooks.sync"]);
        check(|spec| spec["hooks"]["sync"] = json!({}), &["spec.hooks.sync.webhook"]);
    }
}
