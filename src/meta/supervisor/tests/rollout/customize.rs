//! Customize hook in a rollout: its rules and related objects are those of each live revision.

use super::*;

const CHECKED: Variant = Variant { has_checks: true, ..PLAIN };

/// Calls of all hooks: the text of the template, and the names of related objects in a sync.
type Calls = Arc<Mutex<Vec<(HookKind, String, Vec<String>)>>>;

fn config_map(name: &str, data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"}, "data": {"value": data},
    })
}

/// Starts a controller whose customize hook relates the ConfigMap of the template. It cannot read a
/// parent without a size.
async fn customizing(variant: Variant) -> (Bench, Calls) {
    let (server, calls) = (SimulatedServer::new(), Calls::default());
    let called = Arc::clone(&calls);
    let response = move |kind: HookKind, request: &Value| {
        let spec = &request["parent"]["spec"];
        let text = spec["template"]["text"].as_str().unwrap_or_default().to_owned();
        let related = request["related"]["ConfigMap.v1"].as_object();
        let related = related.into_iter().flat_map(|it| it.keys().cloned()).collect();
        called.lock().unwrap().push((kind, text.clone(), related));
        match kind {
            HookKind::Customize if spec["size"].is_null() => json!("no size"),
            HookKind::Customize => json!({"relatedResources": [{
                "apiVersion": "v1", "resource": "configmaps", "names": [format!("for-{text}")],
            }]}),
            HookKind::Sync | HookKind::Finalize => variant.answer(kind, request),
        }
    };
    let bench = Bench::process(&server, variant, None, response).await;
    for name in ["for-one", "for-two"] {
        server.apply(config_map(name, "1")).unwrap();
    }
    bench.harness.declare("roll", controller(variant));
    server.apply(variant.parent()).unwrap();
    bench.done("one").await;
    (bench, calls)
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

#[tokio::test(start_paused = true)]
async fn customize_hook_is_called_once_for_each_live_revision_and_relates_its_own_objects() {
    let (bench, calls) = customizing(CHECKED).await;
    let server = &bench.harness.server;
    take(&calls);

    bench.roll_to("two");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.texts(), ["two", "one", "one"]);
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

    bench.done("two").await;
    take(&calls);
    server.apply(config_map("for-one", "3")).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(take(&calls).1, [], "the revision has ended");
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn customize_hook_is_called_for_no_older_revision_that_has_ended() {
    let (bench, calls) = customizing(CHECKED).await;
    take(&calls);
    let mut redeclared = controller(CHECKED);
    redeclared["parentResource"]["revisionHistory"]["fieldPaths"] = json!(["spec"]);

    bench.harness.declare("roll", redeclared);
    sleep(Duration::from_secs(1)).await;
    bench.done("one").await;

    let (rules, syncs) = take(&calls);
    assert_eq!(rules, ["one"], "for the parent as it is");
    let own = ("one".to_owned(), vec!["for-one".to_owned()]);
    assert!(!syncs.is_empty() && syncs.iter().all(|sync| *sync == own), "{syncs:?}");
    bench.end().await;
}
