//! Tests of parsing.

use serde_json::json;

use super::{
    edit_effect::{EditEffect, edit_effect},
    *,
};
use crate::meta::hooks::rule::{EtagRule, HookVersion};

fn parse(object: &Bytes) -> Result<Definition, Rejection> {
    Definition::parse(ControllerKind::Composite, object)
}

fn object(change: impl FnOnce(&mut Value)) -> Bytes {
    let mut object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": "things"},
        "spec": {
            "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
            "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
            "hooks": {"sync": {"webhook": {"url": "http://hook.default/sync"}}}
        }
    });
    change(&mut object["spec"]);
    serde_json::to_vec(&object).unwrap().into()
}

#[track_caller]
fn check(pointer: &str, value: Value, expected: &[&str]) {
    let object = object(|spec| {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap();
        match key.parse::<usize>() {
            Ok(_) => parent.as_array_mut().unwrap().push(value),
            Err(_) => {
                parent.as_object_mut().unwrap().insert(key.to_owned(), value);
            }
        }
    });

    let fields: Vec<String> = match parse(&object) {
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
fn rules_of_children_that_mean_the_same_count_once() {
    let rules = |second: Value| {
        let object = object(|spec| {
            spec["childResources"].as_array_mut().unwrap().push(second);
        });
        parse(&object).map(|definition| definition.children.len())
    };

    for same in [
        json!({}),
        json!({"updateStrategy": {}}),
        json!({"updateStrategy": {"method": "OnDelete"}, "optional": false}),
        json!({"updateStrategy": {"statusChecks": {"conditions": [{"type": "Ready"}]}}}),
    ] {
        let mut rule = json!({"apiVersion": "v1", "resource": "configmaps"});
        rule.as_object_mut().unwrap().extend(same.as_object().unwrap().clone());
        assert_eq!(rules(rule.clone()).unwrap(), 1, "{rule}");
    }
    let other = json!({"apiVersion": "v1", "resource": "configmaps",
        "updateStrategy": {"method": "InPlace"}});
    assert!(rules(other).unwrap_err().to_string().contains("already declared"));
}

#[test]
fn annotation_sets_the_longest_chain_of_owners() {
    let with = |said: Option<Value>| {
        let mut object: Value = serde_json::from_slice(&object(|_| ())).unwrap();
        if let Some(said) = said {
            object["metadata"]["annotations"] = json!({ MAX_OWNER_DEPTH: said });
        }
        parse(&object.to_string().into())
    };
    for (said, expected) in [
        (None, Some(OWNER_DEPTH)),
        (Some(json!("40")), Some(40)),
        (Some(json!("1")), Some(1)),
        (Some(json!("1000")), Some(1000)),
        (Some(json!("0")), None),
        (Some(json!("1001")), None),
        (Some(json!("deep")), None),
        (Some(json!(40)), None),
    ] {
        let depth = with(said.clone()).ok().map(|definition| definition.max_owner_depth);
        assert_eq!(depth, expected, "{said:?}");
    }
    let (usual, deep) = (with(None).unwrap(), with(Some(json!("40"))).unwrap());
    assert_ne!(edit_effect(&usual, &deep), EditEffect::Keep, "the edit takes effect");
    let Err(Rejection::Invalid(problems)) = with(Some(json!("deep"))) else { panic!("wrong") };
    assert_eq!(problems[0].field, "metadata.annotations[pilotlight.dev/max-owner-depth]");
}

#[test]
fn a_plain_controller_is_accepted_with_its_defaults() {
    let definition = parse(&object(|_| ())).unwrap();

    assert_eq!(definition.name, "things");
    assert_eq!(definition.parents[0].type_ref, TypeRef::resource("example.com", "v1", "things"));
    assert_eq!(definition.children[0].strategy, UpdateMethod::OnDelete);
    assert!(!definition.children[0].optional);
    assert_eq!(definition.sync.as_ref().unwrap().version, HookVersion::V1);
    assert!(!definition.sync.as_ref().unwrap().strict);
    assert_eq!(definition.sync.as_ref().unwrap().timeout, Duration::from_secs(10));
    assert_eq!(definition.resync_period, None);
}

#[test]
fn responses_are_strict_by_default_in_version_2_alone() {
    for (version, mode, expected) in [
        (json!(null), json!(null), false),
        (json!("v1"), json!(""), false),
        (json!("v2"), json!(null), true),
        (json!("v2"), json!("loose"), false),
        (json!("v1"), json!("strict"), true),
    ] {
        let object = object(|spec| {
            spec["hooks"]["sync"]["version"] = version.clone();
            spec["hooks"]["sync"]["webhook"]["responseUnMarshallMode"] = mode.clone();
        });

        let is_strict = parse(&object).unwrap().sync.unwrap().strict;

        assert_eq!(is_strict, expected, "{version} {mode}");
    }
}

#[test]
fn hooks_are_sent_an_empty_status_whatever_the_object_has() {
    let with_status = |status: Value| {
        let mut value: Value = serde_json::from_slice(&object(|_| ())).unwrap();
        value["status"] = status;
        parse(&value.to_string().into()).unwrap().controller
    };

    let sent = with_status(json!({"state": "Running", "epoch": 3}));

    assert_eq!(sent, with_status(Value::Null));
    assert_eq!(sent, parse(&object(|_| ())).unwrap().controller);
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    assert_eq!(sent["status"], json!({}));
    assert_eq!(sent["metadata"]["name"], "things");
}

#[test]
fn every_wrong_field_is_named() {
    let child = |resource: &str| json!({"apiVersion": "v1", "resource": resource});
    check("/parentResource", json!({"resource": "x"}), &["spec.parentResource"]);
    check("/parentResource/apiVersion", json!("a/b/c"), &["spec.parentResource.apiVersion"]);
    check("/parentResource/apiVersion", json!(7), &["spec.parentResource.apiVersion"]);
    check("/parentResource/resource", json!("../x"), &["spec.parentResource.resource"]);
    check(
        "/parentResource/labelSelector",
        json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        &["spec.parentResource.labelSelector.matchExpressions[0].operator"],
    );
    let mut other = child("configmaps");
    other["updateStrategy"] = json!({"method": "InPlace"});
    check("/childResources/1", other, &["spec.childResources[1]"]);
    check("/childResources/1", child(""), &["spec.childResources[1].resource"]);
    check(
        "/childResources",
        json!([{"apiVersion": "v1", "resource": "pods", "updateStrategy": {"method": "No"}}]),
        &["spec.childResources[0].updateStrategy.method"],
    );
    check("/hooks", json!({}), &["spec.hooks.sync"]);
    check("/hooks", json!(null), &["spec.hooks.sync"]);
    check("/hooks/sync", json!({}), &["spec.hooks.sync.webhook"]);
    check("/hooks/sync/version", json!("v3"), &["spec.hooks.sync.version"]);
    check("/hooks/sync/webhook", json!({}), &["spec.hooks.sync.webhook"]);
    check("/hooks/sync/webhook/url", json!("ftp://x"), &["spec.hooks.sync.webhook.url"]);
    check("/hooks/sync/webhook/url", json!("hook"), &["spec.hooks.sync.webhook.url"]);
    check("/hooks/sync/webhook/url", json!("http://"), &["spec.hooks.sync.webhook.url"]);
    check("/hooks/sync/webhook/timeout", json!("soon"), &["spec.hooks.sync.webhook.timeout"]);
    check(
        "/hooks/sync/webhook/clientTLS",
        json!({}),
        &["spec.hooks.sync.webhook.clientTLS.secretRef"],
    );
    check(
        "/hooks/sync/webhook/responseUnMarshallMode",
        json!("lax"),
        &["spec.hooks.sync.webhook.responseUnMarshallMode"],
    );
    check(
        "/hooks/sync/webhook",
        json!({"service": {"name": "a", "namespace": "b"}}),
        &["spec.hooks.sync.webhook.path"],
    );
    check("/resyncPeriodSeconds", json!("often"), &["spec.resyncPeriodSeconds"]);
}

#[test]
fn finalize_hook_stands_alone_or_beside_sync() {
    let hook = || json!({"webhook": {"url": "http://x/"}, "version": "v2"});
    let parse = |hooks: Value| parse(&object(|spec| spec["hooks"] = hooks));

    let both = parse(json!({"sync": hook(), "finalize": hook()})).unwrap();
    assert!(both.sync.is_some() && both.finalize.is_some());
    let alone = parse(json!({"finalize": hook()})).unwrap();
    assert_eq!((alone.sync, alone.finalize.unwrap().version), (None, HookVersion::V2));
}

#[test]
fn hook_without_a_webhook_is_absent() {
    let hook = || json!({"webhook": {"url": "http://x/"}});
    let parse = |hooks: Value| parse(&object(|spec| spec["hooks"] = hooks));

    for absent in [json!({}), json!({"version": "v2"}), json!({"webhook": null})] {
        let definition =
            parse(json!({"sync": hook(), "finalize": absent, "customize": absent})).unwrap();
        assert_eq!((definition.finalize, definition.customize), (None, None), "{absent}");
        let definition = parse(json!({"sync": absent, "finalize": hook()})).unwrap();
        assert!(definition.sync.is_none() && definition.finalize.is_some(), "{absent}");
    }
    check("/hooks", json!({"finalize": {}}), &["spec.hooks.finalize.webhook"]);
    check("/hooks", json!({"sync": {}, "customize": hook()}), &["spec.hooks.sync.webhook"]);
}

#[test]
fn rejection_for_missing_hooks_is_distinguished_from_one_with_another_problem() {
    let hook = |url: &str| json!({"webhook": {"url": url}});
    for (hooks, resource, expected) in [
        (json!({}), "things", true),
        (json!(null), "things", true),
        (json!({"sync": {}, "customize": hook("http://x/")}), "things", true),
        (json!({}), "", false),
        (json!({"customize": hook("ftp://x/")}), "things", false),
        (json!({"sync": hook("ftp://x/")}), "things", false),
    ] {
        let object = object(|spec| {
            spec["hooks"] = hooks.clone();
            spec["parentResource"]["resource"] = json!(resource);
        });

        let rejected = parse(&object).unwrap_err();

        assert_eq!(lacks_only_hooks(&rejected), expected, "{hooks} {rejected}");
    }
}

#[test]
fn customize_hook_stands_beside_another() {
    let hook = || json!({"version": "v2", "webhook": {"url": "http://x/"}});
    let parse = |hooks: Value| parse(&object(|spec| spec["hooks"] = hooks));
    let both = parse(json!({"sync": hook(), "customize": hook()})).unwrap();
    assert_eq!(both.customize.unwrap().version, HookVersion::V2);
    assert!(parse(json!({"customize": hook()})).is_err(), "nothing receives related objects");
}

#[test]
fn name_that_makes_no_finalizer_is_refused_with_a_finalize_hook() {
    let named = |name: &str, hook: &str| {
        let mut value: Value = serde_json::from_slice(&object(|_| ())).unwrap();
        value["metadata"]["name"] = json!(name);
        value["spec"]["hooks"] = json!({hook: {"webhook": {"url": "http://x/"}}});
        parse(&value.to_string().into())
    };
    let longest = "a".repeat(43);

    assert!(named(&longest, "finalize").is_ok());
    assert!(named(&format!("{longest}a"), "sync").is_ok());
    let mut absent: Value = serde_json::from_slice(&object(|_| ())).unwrap();
    absent["metadata"]["name"] = json!(format!("{longest}a"));
    absent["spec"]["hooks"]["finalize"] = json!({});
    assert!(parse(&absent.to_string().into()).is_ok(), "a hook without a webhook is absent");
    let Err(Rejection::Invalid(problems)) = named(&format!("{longest}a"), "finalize") else {
        panic!("its finalizer is not a qualified name")
    };
    assert_eq!(problems[0].field, "metadata.name");
}

#[test]
fn hooks_that_metacontroller_never_calls_are_accepted() {
    for name in ["preUpdateChild", "postUpdateChild"] {
        let hook = json!({"webhook": {"url": "http://x/"}});
        check(&format!("/hooks/{name}"), hook.clone(), &[]);
        let definition = parse(&object(|spec| spec["hooks"][name] = hook)).unwrap();
        let urls = HookKind::ALL.map(|kind| definition.hook(kind).map(|rule| rule.url.to_string()));
        assert_eq!(urls, [Some("http://hook.default/sync".to_owned()), None, None], "{name}");
    }
}

#[test]
fn rolling_methods_have_their_checks_and_revisions_their_fields() {
    let rolling = |method: &'static str| {
        parse(&object(|spec| {
            spec["parentResource"]["revisionHistory"] = json!({"fieldPaths": ["spec.template"]});
            let checks = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            spec["childResources"][0]["updateStrategy"] =
                json!({"method": method, "statusChecks": checks});
        }))
        .unwrap()
    };
    for method in UpdateMethod::ALL {
        let definition = rolling(method.name());

        let rule = &definition.children[0];
        assert_eq!(rule.strategy, method);
        assert_eq!(rule.checks.conditions.len(), usize::from(method.is_rolling()));
        assert_eq!(definition.is_rolling(), method.is_rolling());
        assert_eq!(definition.revision_fields, ["spec.template"]);
    }
    assert_eq!(parse(&object(|_| {})).unwrap().revision_fields, ["spec"]);
}

#[test]
fn a_service_becomes_an_address() {
    let service = |path: &str, extra: Value| {
        let mut service = json!({"name": "hook", "namespace": "ns"});
        service.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let object = object(|spec| {
            spec["hooks"]["sync"]["webhook"] = json!({"service": service, "path": path});
        });
        parse(&object).map(|definition| definition.sync.unwrap().url.to_string()).unwrap()
    };

    assert_eq!(service("/sync", json!({})), "http://hook.ns:80/sync");
    assert_eq!(
        service("/s?a=b", json!({"port": 8443, "protocol": "https"})),
        "https://hook.ns:8443/s?a=b"
    );
}

#[test]
fn a_timeout_that_is_not_positive_is_ten_seconds() {
    let object = object(|spec| spec["hooks"]["sync"]["webhook"]["timeout"] = json!("-3s"));

    assert_eq!(parse(&object).unwrap().sync.unwrap().timeout, Duration::from_secs(10));
}

#[test]
fn responses_are_kept_by_their_etag_when_that_is_enabled() {
    let etag = |spec: Value| {
        let object = object(|all| all["hooks"]["sync"]["webhook"]["etag"] = spec);
        parse(&object).unwrap().sync.unwrap().etag
    };
    let rule = |lifetime: Option<u64>, sweep: Option<u64>| {
        let seconds = |value: Option<u64>| value.map(Duration::from_secs);
        Some(EtagRule { lifetime: seconds(lifetime), sweep: seconds(sweep) })
    };

    for (spec, expected) in [
        (json!(null), None),
        (json!({}), None),
        (json!({"enabled": false, "cacheTimeoutSeconds": 5}), None),
        (json!({"enabled": true}), rule(None, None)),
        (json!({"enabled": true, "cacheTimeoutSeconds": 5}), rule(Some(5), None)),
        (json!({"enabled": true, "cacheCleanupSeconds": 7}), rule(None, Some(7))),
        (
            json!({"enabled": true, "cacheTimeoutSeconds": 5, "cacheCleanupSeconds": 7}),
            rule(Some(5), Some(7)),
        ),
        (
            json!({"enabled": true, "cacheTimeoutSeconds": 0, "cacheCleanupSeconds": -1}),
            rule(None, None),
        ),
        (
            json!({"enabled": true, "cacheTimeoutSeconds": i32::MAX}),
            rule(Some(2_147_483_647), None),
        ),
    ] {
        assert_eq!(etag(spec.clone()), expected, "{spec}");
    }
}

#[test]
fn default_resync_period_applies_without_an_own_one() {
    let silent = || parse(&object(|_| ())).unwrap();
    let own = parse(&object(|spec| spec["resyncPeriodSeconds"] = json!(7))).unwrap();
    let [second, minute] = [1, 60].map(Duration::from_secs);

    assert_eq!(own.or_resync(Some(minute)).resync_period, Some(7 * second));
    assert_eq!(silent().or_resync(Some(minute)).resync_period, Some(minute));
    assert_eq!(silent().or_resync(Some(Duration::ZERO)).resync_period, Some(second));
    assert_eq!(silent().or_resync(None).resync_period, None);
}

#[test]
fn resync_period_is_at_least_a_second() {
    for (seconds, expected) in [(0, 1), (-5, 1), (30, 30)] {
        let object = object(|spec| spec["resyncPeriodSeconds"] = json!(seconds));

        assert_eq!(parse(&object).unwrap().resync_period, Some(Duration::from_secs(expected)));
    }
}

#[test]
fn invalid_specification_is_rejected_without_a_panic() {
    for garbage in ["", "null", "[]", "{}", r#"{"metadata":{"name":"a"}}"#, "\u{0}"] {
        assert!(parse(&Bytes::from(garbage)).is_err(), "{garbage}");
    }
}
