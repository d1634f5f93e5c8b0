//! Related objects: the customize hook, its types and their changes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    responding_hook::{Calls, faulty_with, harness, harness_of_options, pass},
    *,
};
use crate::{
    meta::options::customize_limits::CustomizeLimits,
    testing::{
        Action, Rule, Verb,
        simulated::{AccessRule, SimulatedRequest},
    },
};

/// Specification of cluster-scoped parents with a customize hook of this version.
fn customizing(version: &str) -> Value {
    let hook = || json!({"version": version, "webhook": {"url": "http://scripted/"}});
    json!({
        "generateSelector": true,
        "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
        "hooks": {"sync": hook(), "customize": hook()},
    })
}

fn thing(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec,
    })
}

fn config_map(namespace: &str, name: &str, labels: Value, data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {"value": data},
    })
}

/// Hooks whose rules are those in the parent's specification.
fn as_declared(kind: HookKind, request: &Value) -> Value {
    match kind {
        HookKind::Customize => {
            json!({"relatedResources": request["parent"]["spec"]["relatedResources"]})
        }
        HookKind::Sync | HookKind::Finalize => json!({"children": []}),
    }
}

/// Declares a controller to which gadgets are optional.
fn declare_optional(harness: &Harness, spec: Value) {
    let annotations = json!({"pilotlight.dev/optional-related": "example.com/gadgets"});
    let object = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController",
        "metadata": {"name": "a", "annotations": annotations}, "spec": spec,
    });
    harness.server.apply(object).unwrap();
}

async fn declared(version: &str, rules: Value) -> (Harness, Calls) {
    let (harness, calls) = harness(as_declared).await;
    harness.declare("a", customizing(version));
    harness.running("a", 1).await;
    harness.server.apply(thing("p", json!({"relatedResources": rules}))).unwrap();
    pass().await;
    (harness, calls)
}

/// As [`declared`], while gadgets are optional.
async fn optional(version: &str, rules: Value) -> (Harness, Calls) {
    let (harness, calls) = harness(as_declared).await;
    declare_optional(&harness, customizing(version));
    harness.running("a", 1).await;
    harness.server.apply(thing("p", json!({"relatedResources": rules}))).unwrap();
    pass().await;
    (harness, calls)
}

fn gadgets() -> CrdBuilder {
    CrdBuilder::new("example.com", "Gadget")
}

/// Returns the number of calls of a hook.
fn count(calls: &Calls, kind: HookKind) -> usize {
    calls.lock().unwrap().iter().filter(|(it, _)| *it == kind).count()
}

/// Returns `related` of the last sync request.
fn related(calls: &Calls) -> Value {
    let calls = calls.lock().unwrap();
    let last = calls.iter().rfind(|(kind, _)| *kind == HookKind::Sync).unwrap();
    last.1["related"].clone()
}

/// Returns the keys of a type's related objects in the last sync request.
fn keys(calls: &Calls, group: &str) -> Vec<String> {
    related(calls)[group].as_object().unwrap().keys().cloned().collect()
}

fn maps(selector: Value) -> Value {
    json!([{"apiVersion": "v1", "resource": "configmaps", "labelSelector": selector}])
}

#[tokio::test(start_paused = true)]
async fn sync_request_has_the_objects_that_the_rules_select() {
    let rules = json!([
        {"apiVersion": "v1", "resource": "configmaps", "labelSelector": {"matchLabels": {"a": "b"}}},
        {"apiVersion": "v1", "resource": "configmaps", "namespace": "default", "names": ["n"]},
        {"apiVersion": "v1", "resource": "secrets", "names": ["none"]},
    ]);
    let (harness, calls) = declared("v2", rules).await;
    for map in [
        config_map("default", "l", json!({"a": "b"}), "1"),
        config_map("default", "n", json!({}), "1"),
        config_map("default", "other", json!({}), "1"),
    ] {
        harness.server.apply(map).unwrap();
    }
    pass().await;

    assert_eq!(keys(&calls, "ConfigMap.v1"), ["default/l", "default/n"]);
    assert_eq!(related(&calls)["ConfigMap.v1"]["default/l"]["data"]["value"], "1");
    assert_eq!(related(&calls)["Secret.v1"], json!({}));
    let first = calls.lock().unwrap()[0].clone();
    assert_eq!(first.0, HookKind::Customize);
    let fields: Vec<_> = first.1.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["controller", "parent"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn change_of_a_related_object_syncs_its_parents_without_a_customize_call() {
    let (harness, calls) = declared("v2", maps(json!({"matchLabels": {"a": "b"}}))).await;
    harness.server.apply(config_map("default", "l", json!({"a": "b"}), "1")).unwrap();
    pass().await;
    let synced = count(&calls, HookKind::Sync);

    harness.server.apply(config_map("default", "l", json!({"a": "b"}), "2")).unwrap();
    harness.server.apply(config_map("default", "other", json!({"a": "c"}), "2")).unwrap();
    pass().await;
    assert_eq!(count(&calls, HookKind::Sync), synced + 1);
    assert_eq!(related(&calls)["ConfigMap.v1"]["default/l"]["data"]["value"], "2");

    harness.server.apply(config_map("default", "l", json!({"a": "c"}), "2")).unwrap();
    pass().await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), [""; 0]);
    assert_eq!(count(&calls, HookKind::Sync), synced + 2);
    assert_eq!(count(&calls, HookKind::Customize), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rules_are_requested_again_when_the_parent_is_declared_differently_or_after_20_minutes() {
    let (harness, calls) = declared("v2", maps(json!({}))).await;
    let calls_so_far = || count(&calls, HookKind::Customize);
    assert_eq!(calls_so_far(), 1);
    harness.server.apply(config_map("default", "l", json!({}), "1")).unwrap();
    pass().await;
    assert_eq!(calls_so_far(), 1);

    let labelled = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p", "labels": {"x": "y"}},
    });
    harness.server.merge(&labelled).unwrap();
    pass().await;
    assert_eq!(calls_so_far(), 2);
    let status = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p"}, "status": {"by": "another client"},
    });
    let synced = count(&calls, HookKind::Sync);
    harness.server.merge(&status).unwrap();
    pass().await;
    assert!(count(&calls, HookKind::Sync) > synced);
    assert_eq!(calls_so_far(), 2, "the status is no declaration");

    sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(calls_so_far(), 2, "nothing happens to the parent");
    harness.server.apply(config_map("default", "l", json!({}), "2")).unwrap();
    pass().await;
    assert_eq!(calls_so_far(), 3);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn required_related_type_that_is_missing_fails_each_sync_until_it_is_served() {
    let rules = json!([{"apiVersion": "example.com/v1", "resource": "gadgets"}]);
    let (harness, calls) = declared("v2", rules).await;
    let synced = || count(&calls, HookKind::Sync);
    let messages = |harness: &Harness| {
        let events = harness.server.list("v1", "Event").unwrap();
        let events = events.iter().filter(|event| event["reason"] == "SyncError");
        assert!(events.clone().all(|event| event["type"] == "Warning"));
        events.map(|event| event["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    sleep(Duration::from_secs(600)).await;
    assert_eq!(synced(), 0, "a missing type is not an empty one");
    let [message] = &messages(&harness)[..] else { panic!("{:?}", messages(&harness)) };
    for part in ["relatedResources[0]", "gadgets", "does not serve it", "optional-related"] {
        assert!(message.contains(part), "{message}");
    }

    let versions = || gadgets().version("v1").version("v2");
    harness.server.install(&versions().build()).unwrap();
    pass().await;
    assert_eq!(related(&calls), json!({"Gadget.example.com/v1": {}}));
    let gadget = json!({
        "apiVersion": "example.com/v1", "kind": "Gadget",
        "metadata": {"name": "g", "namespace": "default"},
    });
    harness.server.apply(gadget).unwrap();
    pass().await;
    assert_eq!(keys(&calls, "Gadget.example.com/v1"), ["default/g"]);
    let before = synced();

    let unserved = gadgets().unserved_version("v1").version("v2");
    harness.server.install(&unserved.build()).unwrap();
    sleep(Duration::from_secs(600)).await;
    let labelled = json!({
        "apiVersion": "example.com/v1", "kind": "Thing",
        "metadata": {"name": "p", "labels": {"x": "y"}},
    });
    harness.server.merge(&labelled).unwrap();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(synced(), before, "its objects exist at another version");
    assert!(messages(&harness).iter().any(|it| it.contains("served are v2")));

    harness.server.install(&versions().build()).unwrap();
    pass().await;
    assert_eq!(keys(&calls, "Gadget.example.com/v1"), ["default/g"]);
    assert!(synced() > before);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rule_with_a_mistake_is_requested_again_once_the_hook_is_corrected() {
    let mistaken = json!([{"apiVersion": "v1", "resource": "configmapz"}]);
    let is_corrected = Arc::new(AtomicBool::new(false));
    let corrected = Arc::clone(&is_corrected);
    let (harness, calls) = harness(move |kind, request| match kind {
        HookKind::Customize if corrected.load(Ordering::Relaxed) => {
            json!({"relatedResources": maps(json!({}))})
        }
        HookKind::Customize | HookKind::Sync | HookKind::Finalize => as_declared(kind, request),
    })
    .await;
    harness.declare("a", customizing("v2"));
    harness.server.apply(thing("p", json!({"relatedResources": mistaken}))).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(count(&calls, HookKind::Sync), 0);

    is_corrected.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(300)).await;

    assert_eq!(related(&calls), json!({"ConfigMap.v1": {}}), "before the response is outdated");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn optional_related_type_comes_and_goes_within_the_epoch() {
    let rules = json!([{"apiVersion": "example.com/v1", "resource": "gadgets"}]);
    let (harness, calls) = optional("v2", rules).await;
    assert_eq!(related(&calls), json!({}), "its kind is not known");
    let gadget = |name: &str| {
        json!({
            "apiVersion": "example.com/v1", "kind": "Gadget",
            "metadata": {"name": name, "namespace": "default"},
        })
    };

    for name in ["first", "second"] {
        harness.server.install(&gadgets().build()).unwrap();
        pass().await;
        assert_eq!(related(&calls), json!({"Gadget.example.com/v1": {}}));
        harness.server.apply(gadget(name)).unwrap();
        pass().await;
        assert_eq!(keys(&calls, "Gadget.example.com/v1"), [format!("default/{name}")]);

        harness.server.uninstall(&gadgets().name()).unwrap();
        pass().await;
        assert_eq!(related(&calls), json!({"Gadget.example.com/v1": {}}), "its kind is known");
        assert!(!harness.server.open_watches().contains_key("gadgets.example.com"));
    }

    assert_eq!(harness.epoch("a"), Some(1));
    assert_eq!(count(&calls, HookKind::Customize), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn optional_related_type_that_is_missing_keeps_its_empty_key_in_the_next_epoch() {
    let rules = json!([{"apiVersion": "example.com/v1", "resource": "gadgets"}]);
    let (harness, calls) = optional("v2", rules).await;
    harness.server.install(&gadgets().build()).unwrap();
    pass().await;
    harness.server.uninstall(&gadgets().name()).unwrap();
    pass().await;
    let mut edited = customizing("v2");
    edited["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    let before = count(&calls, HookKind::Sync);

    declare_optional(&harness, edited);
    harness.running("a", 2).await;
    pass().await;

    assert!(count(&calls, HookKind::Sync) > before);
    assert_eq!(related(&calls), json!({"Gadget.example.com/v1": {}}), "its kind is known");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_that_begins_or_ends_to_match_syncs_its_parents() {
    let rules = json!([{
        "apiVersion": "v1", "resource": "configmaps",
        "namespaceSelector": {"matchLabels": {"team": "x"}},
    }]);
    let (harness, calls) = declared("v2", rules).await;
    let team = |labels: Value| {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "team", "labels": labels},
        });
        harness.server.apply(namespace).unwrap();
    };
    team(json!({"team": "y"}));
    harness.server.apply(config_map("team", "m", json!({}), "1")).unwrap();
    pass().await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), [""; 0]);
    let synced = count(&calls, HookKind::Sync);

    team(json!({"team": "x"}));
    pass().await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), ["team/m"]);
    team(json!({"team": "x", "other": "1"}));
    pass().await;
    assert_eq!(count(&calls, HookKind::Sync), synced + 1, "it still matches");
    harness.server.apply(config_map("team", "m", json!({}), "2")).unwrap();
    pass().await;
    assert_eq!(related(&calls)["ConfigMap.v1"]["team/m"]["data"]["value"], "2");

    team(json!({"team": "y"}));
    pass().await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), [""; 0]);
    assert_eq!(count(&calls, HookKind::Customize), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn related_type_is_watched_until_no_parent_needs_it() {
    let (harness, calls) = declared("v2", maps(json!({}))).await;
    harness.server.apply(thing("q", json!({"relatedResources": maps(json!({}))}))).unwrap();
    pass().await;
    let watches = |harness: &Harness| harness.server.open_watches().get("configmaps").copied();
    assert_eq!(watches(&harness), Some(1));

    harness.server.remove("example.com/v1", "Thing", "", "q").unwrap();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(watches(&harness), Some(1), "the other parent needs it");
    harness.server.apply(thing("p", json!({"relatedResources": []}))).unwrap();
    sleep(Duration::from_secs(30)).await;

    assert_eq!(watches(&harness), None);
    assert_eq!(related(&calls), json!({}));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn refused_rule_is_reported_and_its_parent_is_not_synced() {
    let rules = json!([{
        "apiVersion": "v1", "resource": "namespaces", "namespaceSelector": {},
    }]);
    let (harness, calls) = declared("v2", rules).await;

    assert_eq!(count(&calls, HookKind::Sync), 0);
    assert!(count(&calls, HookKind::Customize) > 1, "the hook is called again");
    let events = harness.server.list("v1", "Event").unwrap();
    let event = events.iter().find(|event| event["reason"] == "SyncError").unwrap();
    let message = event["message"].as_str().unwrap();
    let expected = "relatedResources[0].namespaceSelector: namespaces/v1 is cluster-scoped";
    assert!(message.contains("customize: ") && message.contains(expected), "{message}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rules_that_select_too_many_names_are_refused() {
    let named = |prefix: &str| {
        let names: Vec<_> = (0..6000).map(|number| format!("{prefix}{number}")).collect();
        json!({"apiVersion": "v1", "resource": "configmaps", "names": names})
    };
    let rules = json!([named("a"), named("b")]);
    let (harness, calls) = declared("v2", rules.clone()).await;

    assert_eq!(count(&calls, HookKind::Sync), 0);
    let events = harness.server.list("v1", "Event").unwrap();
    let event = events.iter().find(|event| event["reason"] == "SyncError").unwrap();
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("select more than 10000 namespaces and names"), "{message}");
    harness.end().await;

    let customize = CustomizeLimits { names: 12_000, ..CustomizeLimits::default() };
    let options = MetaOptions { customize, ..MetaOptions::default() };
    let (harness, calls) = harness_of_options(options, as_declared).await;
    harness.declare("a", customizing("v2"));
    harness.server.apply(thing("p", json!({"relatedResources": rules}))).unwrap();
    pass().await;
    assert!(count(&calls, HookKind::Sync) > 0, "an option allows more");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn parent_is_not_synced_while_a_related_type_may_not_be_listed() {
    let (harness, calls) = declared("v2", json!([])).await;
    harness.server.apply(config_map("default", "l", json!({}), "1")).unwrap();
    harness.server.set_rbac([AccessRule::deny().resources(["configmaps"])]);
    let synced = count(&calls, HookKind::Sync);

    harness.server.apply(thing("p", json!({"relatedResources": maps(json!({}))}))).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(count(&calls, HookKind::Sync), synced, "an unreadable type is not an empty one");
    let events = harness.server.list("v1", "Event").unwrap();
    let event = events.iter().find(|event| event["reason"] == "SyncError").unwrap();
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("related objects: ") && message.contains("configmaps"), "{message}");

    harness.server.set_rbac([]);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), ["default/l"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn related_type_that_stays_unread_is_warned_of_by_its_rule() {
    let (harness, faults) = faulty_with(as_declared).await;
    harness.declare("a", customizing("v2"));
    harness.running("a", 1).await;
    let hung = |verb| faults.add(Rule::new(Action::Hang).verb(verb).resource("", "configmaps"));
    let hung = [hung(Verb::List), hung(Verb::Watch)];
    // The server of these types is down, so that they are unknown.
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.metrics.test"},
        "spec": {
            "group": "metrics.test", "version": "v1", "groupPriorityMinimum": 100,
            "versionPriority": 10, "service": {"namespace": "default", "name": "gears"},
        },
    });
    let backed = CrdBuilder::new("metrics.test", "Gear").version("v1");
    harness.server.back_api_service("v1.metrics.test", &[backed]);
    harness.server.apply(service).unwrap();
    let gears = json!([{"apiVersion": "metrics.test/v1", "resource": "gears"}]);
    let apply = |name: &str, rules: Value| {
        harness.server.apply(thing(name, json!({"relatedResources": rules}))).unwrap();
    };
    let warnings = |name: &str| -> Vec<String> {
        let events = harness.server.list("v1", "Event").unwrap();
        let is =
            |event: &&Value| event["type"] == "Warning" && event["involvedObject"]["name"] == name;
        let messages = events.iter().filter(is).map(|event| event["message"].as_str().unwrap());
        messages.map(str::to_owned).collect()
    };

    apply("hung", maps(json!({})));
    apply("unknown", gears);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(warnings("hung"), [""; 0], "a first list may take a while");
    sleep(Duration::from_secs(120)).await;

    for (name, expected) in [
        ("hung", "relatedResources[0] needs configmaps/v1: it cannot be read: no response"),
        ("unknown", "relatedResources[0] needs gears.metrics.test/v1: "),
    ] {
        let warnings = warnings(name);
        assert!(warnings.iter().any(|it| it.contains(expected)), "{warnings:?}");
    }
    hung.into_iter().for_each(|rule| faults.remove(rule));
    harness.end().await;
}

/// Customize hook that fails until its error is removed.
struct Failing {
    kind: HookKind,
    error: Arc<Mutex<Option<HookError>>>,
    calls: Calls,
}

impl Hook for Failing {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        self.calls.lock().unwrap().push((self.kind, request));
        let error = self.error.lock().unwrap().clone();
        let failed = error.filter(|_| self.kind == HookKind::Customize);
        async move { failed.map_or(Ok(Bytes::from_static(b"{}")), Err) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn customize_hook_that_fails_delays_the_sync_as_a_sync_hook_does() {
    for (failure, event) in [
        (HookError::Busy(Duration::from_secs(7)), None),
        (HookError::Status { code: 503, body: String::new(), proxy: None }, Some("customize: ")),
        (HookError::Status { code: 404, body: String::new(), proxy: None }, Some("customize: ")),
    ] {
        let (error, calls) = (Arc::new(Mutex::new(Some(failure.clone()))), Calls::default());
        let (failing, made) = (Arc::clone(&error), Arc::clone(&calls));
        let factory: HookFactory = Arc::new(move |_, kind| {
            let (error, calls) = (Arc::clone(&failing), Arc::clone(&made));
            Arc::new(Failing { kind, error, calls })
        });
        let harness = Harness::with(factory, RESYNC).await;
        harness.declare("a", customizing("v1"));
        harness.running("a", 1).await;
        harness.server.apply(thing("p", json!({}))).unwrap();
        pass().await;
        assert_eq!(count(&calls, HookKind::Sync), 0, "{failure}");
        assert!(count(&calls, HookKind::Customize) > 0);
        let events = harness.server.list("v1", "Event").unwrap();
        let warned = events.iter().find(|event| event["reason"] == "SyncError");
        let message = warned.map(|event| event["message"].as_str().unwrap());
        assert_eq!(message.is_some(), event.is_some(), "{message:?}");
        assert!(message.is_none_or(|message| message.contains(event.unwrap())), "{message:?}");

        error.lock().unwrap().take();
        sleep(Duration::from_secs(60)).await;
        assert!(count(&calls, HookKind::Sync) > 0, "{failure}");
        harness.end().await;
    }
}

/// Hook that fails for the parents whose specification has its name.
struct NamedByParent(HookKind);

impl Hook for NamedByParent {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let fails = request["parent"]["spec"]["fails"] == self.0.word();
        let error = HookError::Status { code: 404, body: String::new(), proxy: None };
        async move { if fails { Err(error) } else { Ok(Bytes::from_static(b"{}")) } }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn every_hook_that_fails_is_named_in_the_status_until_it_answers() {
    let factory: HookFactory = Arc::new(|_, kind| Arc::new(NamedByParent(kind)));
    let harness = Harness::with(factory, RESYNC).await;
    harness.declare("a", customizing("v1"));
    harness.running("a", 1).await;
    let apply = |name: &str, fails: &str| {
        harness.server.apply(thing(name, json!({"fails": fails}))).unwrap();
    };
    let hooks = || {
        let declared = harness.declared.list();
        let conditions = &declared[0].status.conditions;
        conditions.iter().find(|it| it.type_ == "HooksHealthy").unwrap().clone()
    };

    for (name, fails) in [("p1", "customize"), ("p2", "sync"), ("p3", "sync"), ("p4", "none")] {
        apply(name, fails);
    }
    pass().await;
    let message = hooks().message;
    assert!(message.starts_with("customize: p1: hook "), "{message}");
    assert!(message.contains("; sync: 2 parents fail, first p2: hook "), "{message}");

    apply("p1", "sync");
    apply("p2", "none");
    sleep(Duration::from_secs(60)).await;
    let message = hooks().message;
    assert!(message.starts_with("sync: 2 parents fail, first p1: hook "), "{message}");

    apply("p1", "none");
    apply("p3", "none");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(hooks().status, "True");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_sync_with_related_objects_and_a_finalizer_sends_no_request() {
    let (harness, calls) = harness(as_declared).await;
    let mut spec = customizing("v2");
    spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    harness.declare("a", spec);
    harness.running("a", 1).await;
    let related = json!({"relatedResources": maps(json!({}))});
    harness.server.apply(thing("p", related)).unwrap();
    harness.server.apply(config_map("default", "l", json!({}), "1")).unwrap();
    pass().await;
    sends_no_request_when_it_is_resynced(harness, &calls).await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_sync_with_a_finalizer_and_related_objects_sends_no_request() {
    let child = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "c", "namespace": "default"},
    });
    let (harness, calls) = harness(move |kind, request| match kind {
        HookKind::Customize => as_declared(kind, request),
        HookKind::Sync | HookKind::Finalize => {
            json!({"children": [child], "status": {"seen": true}})
        }
    })
    .await;
    let mut spec = customizing("v2");
    spec["hooks"]["finalize"] = spec["hooks"]["sync"].clone();
    spec["childResources"] = json!([
        {"apiVersion": "v1", "resource": "secrets", "updateStrategy": {"method": "InPlace"}},
    ]);
    harness.declare("a", spec);
    harness.running("a", 1).await;
    harness.server.apply(thing("p", json!({"relatedResources": maps(json!({}))}))).unwrap();
    harness.server.apply(config_map("default", "l", json!({}), "1")).unwrap();
    pass().await;
    assert_eq!(keys(&calls, "ConfigMap.v1"), ["default/l"]);
    let parent = &calls.lock().unwrap().last().unwrap().1["parent"].clone();
    assert_eq!(parent["metadata"]["finalizers"].as_array().unwrap().len(), 1);
    sends_no_request_when_it_is_resynced(harness, &calls).await;
}

/// Resyncs the parents, and asserts that the hook is called and nothing else is sent.
async fn sends_no_request_when_it_is_resynced(harness: Harness, calls: &Calls) {
    let (requests, synced) = (harness.server.requests().len(), count(calls, HookKind::Sync));

    sleep(RESYNC).await;

    assert!(count(calls, HookKind::Sync) > synced);
    let sent = harness.server.requests();
    // Watches are renewed, and discovery is refreshed.
    let is_refresh =
        |it: &SimulatedRequest| it.info.verb == Verb::Watch || it.resource().is_empty();
    let sent: Vec<_> = sent[requests..].iter().filter(|it| !is_refresh(it)).collect();
    assert!(sent.is_empty(), "{sent:?}");
    harness.end().await;
}
