//! Customize hook in a rollout: its rules and related objects are those of each live revision.

use super::*;
use crate::testing::simulated::SimulatedRequest;

const CHECKED: Variant = Variant { has_checks: true, ..PLAIN };

/// Calls of all hooks: the text of the template, and the names of related objects in a sync.
type Calls = Arc<Mutex<Vec<(HookKind, String, Vec<String>)>>>;

fn config_map(name: &str, data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"}, "data": {"value": data},
    })
}

fn secret(name: &str, data: &str) -> Value {
    let mut secret = config_map(name, data);
    secret["kind"] = json!("Secret");
    secret
}

/// Starts a controller whose customize hook relates the ConfigMap of the template, or the Secret of
/// the template `secret`. It cannot read a parent without a size. The sync hook is busy while a
/// related object says so.
async fn customizing(variant: Variant) -> (RolloutFixture, Calls) {
    let (server, calls) = (SimulatedServer::new(), Calls::default());
    let called = Arc::clone(&calls);
    let response = move |kind: HookKind, request: &Value| {
        let spec = &request["parent"]["spec"];
        let text = spec["template"]["text"].as_str().unwrap_or_default().to_owned();
        let groups = request["related"].as_object().into_iter().flat_map(|groups| groups.values());
        let related: Vec<_> = groups.filter_map(Value::as_object).flatten().collect();
        let is_busy = related.iter().any(|(_, object)| object["data"]["value"] == "busy");
        let names = related.iter().map(|(name, _)| (*name).clone()).collect();
        called.lock().unwrap().push((kind, text.clone(), names));
        let resource = if text == "secret" { "secrets" } else { "configmaps" };
        match kind {
            HookKind::Customize if spec["size"].is_null() => json!("no size"),
            HookKind::Customize => json!({"relatedResources": [{
                "apiVersion": "v1", "resource": resource, "names": [format!("for-{text}")],
            }]}),
            HookKind::Sync | HookKind::Finalize if is_busy => Value::Null,
            HookKind::Sync | HookKind::Finalize => variant.answer(kind, request),
        }
    };
    let fixture = RolloutFixture::process(&server, variant, None, response).await;
    for name in ["for-one", "for-two"] {
        server.apply(config_map(name, "1")).unwrap();
    }
    fixture.harness.declare("roll", controller(variant));
    server.apply(variant.parent()).unwrap();
    fixture.done("one").await;
    (fixture, calls)
}

fn controller(variant: Variant) -> Value {
    let mut controller = variant.controller();
    controller["hooks"]["customize"] = json!({"webhook": {"url": "http://scripted/"}});
    controller
}

/// Removes the recorded calls. Returns the texts of those of the customize hook, and the texts of
/// syncs with their related objects.
fn take(calls: &Calls) -> (Vec<String>, Vec<(String, Vec<String>)>) {
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    let (rules, syncs): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|(kind, ..)| *kind == HookKind::Customize);
    let rules = rules.into_iter().map(|(_, text, _)| text).collect();
    (rules, syncs.into_iter().map(|(_, text, related)| (text, related)).collect())
}

/// Asserts that a type has been watched without a gap. Returns the number of its lists.
#[track_caller]
fn lists_of_watched(server: &SimulatedServer, resource: &str) -> usize {
    let mut requests = server.requests();
    requests.retain(|it| it.user == "controller" && it.resource() == resource);
    let is_list = |it: &&SimulatedRequest| {
        it.info.verb == Verb::List || it.info.query.contains("sendInitialEvents")
    };
    let lists = requests.iter().filter(is_list).count();
    requests.retain(|it| it.info.verb == Verb::Watch);
    for pair in requests.windows(2) {
        let gap = pair[0].ended.map(|ended| pair[1].at.saturating_sub(ended));
        assert!(gap.is_some_and(|gap| gap < Duration::from_secs(1)), "{pair:?}");
    }
    assert!(requests.last().is_some_and(SimulatedRequest::is_open), "{requests:?}");
    lists
}

#[tokio::test(start_paused = true)]
async fn customize_hook_is_called_once_for_each_live_revision_and_relates_its_own_objects() {
    let (fixture, calls) = customizing(CHECKED).await;
    let server = &fixture.harness.server;
    take(&calls);

    fixture.roll_to("two");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.texts(), ["two", "one", "one"]);
    let (rules, syncs) = take(&calls);
    assert_eq!(rules, ["two", "one"]);
    let own = |text: &str| (text.to_owned(), vec![format!("for-{text}")]);
    assert_eq!(syncs[..2], [own("two"), own("one")]);
    assert!(syncs.iter().all(|sync| [own("two"), own("one")].contains(sync)), "{syncs:?}");

    let watches = server.open_watches();
    server.apply(config_map("for-one", "2")).unwrap();
    sleep(Duration::from_secs(5)).await;
    let (rules, syncs) = take(&calls);
    assert_eq!((rules, syncs), (Vec::new(), vec![own("two"), own("one")]), "of an older revision");
    assert_eq!(server.open_watches(), watches);

    fixture.done("two").await;
    take(&calls);
    server.apply(config_map("for-one", "3")).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(take(&calls).1, [], "the revision has ended");
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn related_type_of_an_older_revision_stays_watched_while_its_rules_are_outdated() {
    let (fixture, calls) = customizing(CHECKED).await;
    let server = &fixture.harness.server;
    server.apply(secret("for-secret", "1")).unwrap();
    fixture.roll_to("secret");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.texts(), ["secret", "one", "one"]);
    let lists = lists_of_watched(server, "configmaps");
    take(&calls);
    let own = |text: &str| (text.to_owned(), vec![format!("for-{text}")]);

    // The rules expire, or the parent is declared differently.
    for (minutes, label) in [(21, None), (0, Some("x"))] {
        sleep(Duration::from_secs(minutes * 60)).await;
        assert_eq!(take(&calls), (Vec::new(), Vec::new()), "nothing happens to the parent");
        server.apply(secret("for-secret", "busy")).unwrap();
        if let Some(label) = label {
            let labelled = json!({
                "apiVersion": GROUP, "kind": "Widget",
                "metadata": {"name": "p", "namespace": "default", "labels": {"label": label}},
            });
            server.merge(&labelled).unwrap();
        }
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        let (rules, syncs) = take(&calls);
        assert_eq!(rules, ["secret"], "the sync has not reached the older revision");
        assert!(syncs.len() > 1 && syncs.iter().all(|sync| *sync == own("secret")), "{syncs:?}");

        server.apply(secret("for-secret", "2")).unwrap();
        sleep(Duration::from_secs(60)).await;
        let (rules, syncs) = take(&calls);
        assert_eq!((rules, syncs), (vec!["one".to_owned()], vec![own("secret"), own("one")]));
        assert_eq!(lists_of_watched(server, "configmaps"), lists);
    }

    server.apply(config_map("for-one", "2")).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(take(&calls), (Vec::new(), vec![own("secret"), own("one")]));
    fixture.done("secret").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn customize_hook_is_called_for_no_older_revision_that_has_ended() {
    let (fixture, calls) = customizing(CHECKED).await;
    take(&calls);
    let mut redeclared = controller(CHECKED);
    redeclared["parentResource"]["revisionHistory"]["fieldPaths"] = json!(["spec"]);

    fixture.harness.declare("roll", redeclared);
    sleep(Duration::from_secs(1)).await;
    fixture.done("one").await;

    let (rules, syncs) = take(&calls);
    assert_eq!(rules, ["one"], "for the parent as it is");
    let own = ("one".to_owned(), vec!["for-one".to_owned()]);
    assert!(!syncs.is_empty() && syncs.iter().all(|sync| *sync == own), "{syncs:?}");
    fixture.end().await;
}
