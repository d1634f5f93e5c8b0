//! Edits of hooks: added, changed and removed in the running epoch.

use tokio::sync::Semaphore;

use super::*;

/// Hook that records the URL of its definition with each parent, once a permit admits the call.
struct Gated {
    url: String,
    response: &'static str,
    calls: Arc<Mutex<Vec<(String, String)>>>,
    gate: Arc<Semaphore>,
    released: Arc<AtomicUsize>,
}

impl Hook for Gated {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let name = request["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        self.calls.lock().unwrap().push((self.url.clone(), name));
        async move {
            self.gate.acquire().await.unwrap().forget();
            Ok(Bytes::from_static(self.response.as_bytes()))
        }
        .boxed()
    }

    fn release(&self) -> futures::future::BoxFuture<'_, ()> {
        self.released.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}

/// Parts that all gated hooks share.
#[derive(Clone)]
struct GatedHooks {
    calls: Arc<Mutex<Vec<(String, String)>>>,
    gate: Arc<Semaphore>,
    released: Arc<AtomicUsize>,
}

impl Default for GatedHooks {
    fn default() -> Self {
        let gate = Arc::new(Semaphore::new(0));
        Self { calls: Arc::default(), gate, released: Arc::default() }
    }
}

impl GatedHooks {
    fn factory(&self) -> HookFactory {
        let hooks = self.clone();
        Arc::new(move |definition, kind| {
            let url = definition.hook(kind).unwrap().url.to_string();
            let response = match kind {
                HookKind::Customize => r#"{"relatedResources": []}"#,
                HookKind::Sync | HookKind::Finalize => "{}",
            };
            let GatedHooks { calls, gate, released } = hooks.clone();
            Arc::new(Gated { url, response, calls, gate, released })
        })
    }
}

fn sync_only(spec: Value) -> Value {
    let mut spec = spec;
    let hooks = json!({"sync": {"webhook": {"url": "http://scripted/"}}});
    spec["hooks"] = hooks;
    spec
}

#[tokio::test(start_paused = true)]
async fn call_that_runs_ends_at_its_url_and_later_ones_use_the_new_one_without_a_read() {
    let hooks = GatedHooks::default();
    let GatedHooks { calls, gate, released } = &hooks;
    let harness = Harness::with(hooks.factory(), RESYNC).await;
    for name in ["p", "q"] {
        harness.server.apply(thing(name)).unwrap();
    }
    let mut spec = good();
    spec["childResources"] = json!([{"apiVersion": "v1", "resource": "configmaps"}]);
    harness.declare("a", spec.clone());
    harness.running("a", 1).await;
    run_until_idle().await;
    let watches = harness.server.open_watches();
    harness.server.forget_requests();

    spec["hooks"]["sync"]["webhook"]["url"] = json!("http://other/");
    harness.declare("a", spec);
    run_until_idle().await;
    assert_eq!(released.load(Ordering::SeqCst), 0, "its calls run");
    gate.add_permits(4);
    run_until_idle().await;

    let mut calls = calls.lock().unwrap().clone();
    calls.sort();
    // A status that was written syncs its parent again.
    calls.dedup();
    let expected = [
        ("http://other/", "p"),
        ("http://other/", "q"),
        ("http://scripted/", "p"),
        ("http://scripted/", "q"),
    ];
    assert_eq!(calls, expected.map(|(url, name)| (url.to_owned(), name.to_owned())));
    assert_eq!(harness.epoch("a"), Some(1));
    assert_eq!(harness.server.open_watches(), watches);
    assert_eq!(reads(&harness), [""; 0]);
    assert_eq!(released.load(Ordering::SeqCst), 1, "the hook of the first URL");
    harness.end().await;
    assert_eq!(released.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn customize_response_of_a_call_that_ends_after_an_edit_is_not_used_again() {
    let hooks = GatedHooks::default();
    let harness = Harness::with(hooks.factory(), RESYNC).await;
    harness.server.apply(thing("p")).unwrap();
    let mut spec = good();
    spec["hooks"]["customize"] = json!({"webhook": {"url": "http://old/"}});
    harness.declare("a", spec.clone());
    harness.running("a", 1).await;
    run_until_idle().await;

    spec["hooks"]["customize"]["webhook"]["url"] = json!("http://new/");
    harness.declare("a", spec);
    run_until_idle().await;
    hooks.gate.add_permits(20);
    run_until_idle().await;

    let calls = hooks.calls.lock().unwrap().clone();
    let customize = calls.into_iter().map(|(url, _)| url).filter(|url| !url.contains("scripted"));
    assert_eq!(customize.collect::<Vec<_>>(), ["http://old/", "http://new/"]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalize_hook_that_is_added_gets_its_finalizer_and_one_that_is_dropped_frees_the_parents()
{
    let (harness, calls) = with_things(&["p"]).await;
    let mut finalizing = good();
    finalizing["hooks"]["finalize"] = json!({"webhook": {"url": "http://scripted/"}});
    let finalizers = || {
        let thing = harness.server.get("example.com/v1", "Thing", "", "p").unwrap();
        thing["metadata"]["finalizers"].clone()
    };
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;
    assert_eq!(finalizers(), Value::Null);

    harness.declare("a", finalizing.clone());
    pass().await;
    assert_eq!(finalizers(), json!(["metacontroller.io/compositecontroller-a"]));
    harness.declare("a", sync_only(finalizing.clone()));
    pass().await;
    assert_eq!(finalizers(), Value::Null);
    harness.declare("a", finalizing);
    pass().await;
    harness.server.remove("example.com/v1", "Thing", "", "p").unwrap();
    pass().await;

    assert!(harness.server.get("example.com/v1", "Thing", "", "p").is_err());
    assert_eq!(take(&calls, HookKind::Finalize), ["p"]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn customize_hook_is_added_changed_and_dropped_in_place() {
    let (harness, calls) = with_things(&["p"]).await;
    let customizing = |url: &str| {
        let mut spec = good();
        spec["hooks"]["customize"] = json!({"webhook": {"url": url}});
        spec
    };
    harness.declare("a", good());
    harness.running("a", 1).await;
    pass().await;
    let watched = || harness.server.open_watches().contains_key("configmaps");
    assert!(!watched());

    harness.declare("a", customizing("http://one/"));
    pass().await;
    assert_eq!(take(&calls, HookKind::Customize), ["p"]);
    assert!(watched());
    harness.declare("a", customizing("http://two/"));
    pass().await;
    assert_eq!(take(&calls, HookKind::Customize), ["p"], "answers of the old hook are void");
    harness.declare("a", good());
    // The informer lingers.
    sleep(Duration::from_secs(15)).await;

    assert!(!watched(), "{:?}", harness.server.open_watches());
    assert_eq!(take(&calls, HookKind::Sync), ["p"]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failed_parents_are_synced_at_once_when_the_timeout_is_swapped() {
    let fails = Arc::new(AtomicUsize::new(1));
    let made = Arc::clone(&fails);
    let (harness, calls) = harness(move |_, _| match made.load(Ordering::SeqCst) {
        0 => json!({}),
        _ => json!("not an object"),
    })
    .await;
    harness.server.apply(thing("p")).unwrap();
    harness.declare("a", good());
    harness.running("a", 1).await;
    sleep(Duration::from_secs(600)).await;
    take(&calls, HookKind::Sync);
    fails.store(0, Ordering::SeqCst);
    let mut spec = good();
    spec["hooks"]["sync"]["webhook"]["timeout"] = json!("60s");

    harness.declare("a", spec);
    run_until_idle().await;

    assert_eq!(take(&calls, HookKind::Sync), ["p"]);
    assert_eq!(harness.epoch("a"), Some(1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn changed_credentials_are_swapped_once_they_can_be_read_and_wait_while_they_are_missing() {
    let server = SimulatedServer::new();
    let client = server.client();
    let harness = Harness::over(server, client, MetaOptions::default()).await;
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": "default"}, "data": {"token": "YQ=="},
        })
    };
    let with = |name: &str| {
        let token = json!({"name": name, "namespace": "default", "key": "token"});
        let mut spec = good();
        spec["hooks"]["sync"]["webhook"]["authorization"] = json!({ "secretRef": token });
        spec
    };
    let pending = || harness.manager.status_of(runnable("a")).unwrap().pending.is_some();
    harness.server.apply(secret("one")).unwrap();
    harness.declare("a", good());
    harness.running("a", 1).await;

    harness.declare("a", with("one"));
    pass().await;
    assert_eq!((harness.epoch("a"), pending()), (Some(1), false), "changed in place");
    harness.declare("a", with("two"));
    pass().await;
    assert_eq!((harness.epoch("a"), pending()), (Some(1), true), "the old ones stay in use");
    harness.server.apply(secret("two")).unwrap();
    harness.running("a", 2).await;

    assert!(!pending());
    harness.end().await;
}
