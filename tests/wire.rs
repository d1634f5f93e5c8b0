//! Faults on the real wire: a proxy between the API server and its clients, and one in front of a
//! hook.

use futures::{StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
    client::Body,
};
use pilotlight::{
    manager::ControllerState,
    testing::{
        Action, ControlPlane, CrdBuilder, Faults, OpenRequest, Rule, Verb,
        proxy::{Proxy, WireFault, WireRule},
    },
};
use serde_json::json;
use tokio::{runtime::Handle, time::timeout};

use crate::support::{
    ControllerVariant, Embedded, Harness, HarnessOptions, PATIENCE, RecordingReconciler, about,
    eventually, type_of,
};

async fn proxied(faults: &Faults) -> (Proxy, Client) {
    let proxy = Proxy::to_api_server(ControlPlane::shared().config(), faults).await.unwrap();
    let client = Client::try_from(proxy.config()).unwrap();
    (proxy, client)
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

async fn text(client: &Client, path: &str) -> (u16, Vec<u8>) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    (code, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn a_proxy_without_rules_is_transparent() {
    let plane = ControlPlane::shared();
    let (proxy, client) = proxied(&Faults::default()).await;
    let direct = plane.client().unwrap();
    let scope = plane.scope("transparent").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &scope.namespace);
    maps.create(&PostParams::default(), &map("a")).await.unwrap();

    let maps = format!("/api/v1/namespaces/{}/configmaps", scope.namespace);
    for path in [&*maps, &format!("{maps}/a"), &format!("{maps}/none"), "/version", "/nowhere"] {
        assert_eq!(text(&client, path).await, text(&direct, path).await, "{path}");
    }
    let all = format!(
        "{maps}?watch=1&resourceVersion=0&timeoutSeconds=1&fieldSelector=metadata.name%3Da"
    );
    assert_eq!(text(&client, &all).await, text(&direct, &all).await);
    proxy.stop().await;
}

#[tokio::test]
async fn events_pass_without_delay_over_either_protocol() {
    use pilotlight::transport::{Transport, TransportOptions};
    let plane = ControlPlane::shared();
    let faults = Faults::default();
    let (proxy, http1) = proxied(&faults).await;
    let transport = Transport::new(proxy.config(), TransportOptions::default()).unwrap();
    let http2 = transport.client().unwrap();
    let scope = plane.scope("either-protocol").await.unwrap();

    for (name, client) in [("one", http1), ("two", http2)] {
        let maps = Api::<ConfigMap>::namespaced(client, &scope.namespace);
        let only = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut watch = maps.watch(&only, "0").await.unwrap().boxed();
        maps.create(&PostParams::default(), &map(name)).await.unwrap();
        let event = timeout(PATIENCE, crate::added(&mut watch)).await.unwrap();
        assert_eq!(event.metadata.name.as_deref(), Some(name));
    }
    assert_eq!(faults.fired(), []);
    proxy.stop().await;
}

#[tokio::test]
async fn a_watch_is_cut_at_a_byte_and_a_connection_reset() {
    let faults = Faults::default();
    let (proxy, client) = proxied(&faults).await;
    let scope = ControlPlane::shared().scope("cut-at-a-byte").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &scope.namespace);
    faults.add(Rule::new(Action::Cut { after_bytes: 10 }).verb(Verb::Watch).times(1));

    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
    let seen: Result<Vec<WatchEvent<ConfigMap>>, _> = watch.try_collect().await;
    assert!(!matches!(&seen, Ok(events) if !events.is_empty()), "{seen:?}");
    assert_eq!(faults.fired().len(), 1);

    let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
    assert!(proxy.reset_connections() > 0);
    let rest: Vec<_> = timeout(PATIENCE, watch.collect::<Vec<_>>()).await.unwrap();
    assert!(rest.iter().take(rest.len().saturating_sub(1)).all(Result::is_ok), "{rest:?}");
    maps.list(&ListParams::default()).await.unwrap();
    proxy.stop().await;
}

#[tokio::test]
async fn a_connection_is_dropped_reset_or_stalled() {
    let (proxy, client) = proxied(&Faults::default()).await;
    proxy.disturb(WireRule::new(WireFault::BlackHole).times(1));
    let sent = client.clone();
    let mut swallowed = Box::pin(async move { sent.apiserver_version().await });
    tokio::select! {
        answer = &mut swallowed => panic!("a swallowed request was answered: {answer:?}"),
        () = proxy.fired_more_than(0) => {}
    }
    proxy.clear();
    timeout(PATIENCE, swallowed).await.unwrap().unwrap_err();

    // During the handshake, and after it.
    for after_bytes in [100, 1500] {
        let fault = WireFault::Reset { after_bytes };
        proxy.disturb(WireRule::new(fault));
        let fresh = Client::try_from(proxy.config()).unwrap();
        timeout(PATIENCE, fresh.apiserver_version()).await.unwrap().unwrap_err();
        assert!(proxy.fired().contains(&fault));
        proxy.clear();
    }

    let fault = WireFault::StopReading { after_bytes: 0 };
    proxy.disturb(WireRule::new(fault).times(1));
    let fresh = Client::try_from(proxy.config()).unwrap();
    let before = proxy.fired().len();
    let mut unread = Box::pin(fresh.apiserver_version());
    tokio::select! {
        answer = &mut unread => panic!("an unread request was answered: {answer:?}"),
        () = proxy.fired_more_than(before) => {}
    }
    proxy.clear();
    timeout(PATIENCE, unread).await.unwrap().unwrap_err();
    client.apiserver_version().await.unwrap();
    proxy.stop().await;
}

#[tokio::test]
async fn a_proxy_leaves_nothing_behind() {
    let before = Handle::current().metrics().num_alive_tasks();
    for stopped in [true, false] {
        let (proxy, client) = proxied(&Faults::default()).await;
        let address = proxy.address();
        let maps = Api::<ConfigMap>::default_namespaced(client.clone());
        let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
        if stopped {
            timeout(PATIENCE, proxy.stop()).await.unwrap();
        } else {
            drop(proxy);
        }

        drop((watch, maps, client));
        eventually("the tasks end", || match Handle::current().metrics().num_alive_tasks() {
            alive if alive <= before => Ok(()),
            alive => Err(format!("{alive} tasks, {before} before")),
        })
        .await;
        let refused = tokio::net::TcpStream::connect(address).await;
        refused.unwrap_err();
    }
}

#[tokio::test]
async fn controller_survives_a_watch_that_is_cut_before_and_within_an_event() {
    let harness =
        Harness::with("cut-controller", HarnessOptions { proxied: true, ..default() }).await;
    let crd = harness.widgets();
    let recorder = RecordingReconciler::new(type_of(&crd, "v1"));
    Embedded.add(&harness, "cut", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("cut", 1).await;

    let is_about = about(&crd);
    let open = |wire: &Faults| {
        let watched = |open: &OpenRequest| open.answered && open.info.verb == Verb::Watch;
        wire.open().iter().any(|open| watched(open) && is_about(&open.info))
    };

    // Each cut lengthens the pause before the next watch.
    for (round, after_bytes) in [0, 200].into_iter().enumerate() {
        timeout(PATIENCE, harness.wire.wait_until(open)).await.unwrap();
        let of_widgets = crd.api_resource("v1");
        let cut = Rule::new(Action::Cut { after_bytes }).verb(Verb::Watch);
        let cut = harness.wire.add(cut.resource(of_widgets.group, of_widgets.plural).times(1));
        assert_eq!(harness.wire.cut_open(&is_about), 1);
        timeout(PATIENCE, harness.wire.wait_until(|wire| wire.hits(cut) > 0)).await.unwrap();
        let name = format!("w-{after_bytes}");
        harness.create(&crd, &name, 1).await;
        recorder.saw(&name, 1).await;
        let fired = harness.wire.wait_until(|wire| wire.fired().len() > round);
        timeout(PATIENCE, fired).await.unwrap();
    }
    let fired: Vec<_> = harness.wire.fired().iter().map(|fired| fired.action).collect();
    assert_eq!(fired, ["cut", "cut"]);
    assert_eq!(harness.status("cut").epoch, 1, "no epoch is lost with a connection");
    harness.end().await.unwrap();
}

#[tokio::test]
async fn a_controller_waits_for_a_list_that_is_never_answered_and_no_other_does() {
    let harness =
        Harness::with("swallowed-list", HarnessOptions { proxied: true, ..default() }).await;
    let (crd, other) = (harness.widgets(), CrdBuilder::new(&harness.scope.group, "Gadget"));
    let (recorder, healthy) = (
        RecordingReconciler::new(type_of(&crd, "v1")),
        RecordingReconciler::new(type_of(&other, "v1")),
    );
    let of_widgets = crd.api_resource("v1");
    // Matches paged and streaming lists alike.
    let hang = Rule::new(Action::Hang).resource(of_widgets.group, of_widgets.plural);
    let hang = harness.wire.add(hang);
    Embedded.add(&harness, "swallowed", &recorder).await;
    Embedded.add(&harness, "healthy", &healthy).await;

    harness.scope.install_crd(&crd).await.unwrap();
    harness.scope.install_crd(&other).await.unwrap();
    harness.running("healthy", 1).await;
    timeout(PATIENCE, harness.wire.wait_until(|wire| wire.hits(hang) > 0)).await.unwrap();
    assert_eq!(harness.status("swallowed").state, ControllerState::Starting);
    harness.wire.remove(hang);

    harness.running("swallowed", 1).await;
    harness.create(&crd, "a", 1).await;
    recorder.saw("a", 1).await;
    harness.end().await.unwrap();
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn hook_call_that_was_cut_within_its_response_is_retried() {
    use crate::support::Supervised;
    let supervised = Supervised::start("cut-hook").await;
    let faults = Faults::default();
    let proxy = Proxy::to_hook(&supervised.hook.url.parse().unwrap(), &faults).await.unwrap();
    let crd = supervised.harness.widgets();
    supervised.install(&crd).await;
    let mut spec = supervised.spec(&crd);
    spec["hooks"]["sync"]["webhook"]["url"] = format!("{}/sync", proxy.url()).into();
    faults.add(Rule::new(Action::Cut { after_bytes: 20 }).times(2));
    faults.add(Rule::new(Action::End { after_bytes: 20 }).times(1));
    supervised.declare("cut", spec).await;
    supervised.runs("cut", 1).await;

    supervised.harness.create(&crd, "a", 3).await;

    supervised.child("a", 3).await;
    let fired: Vec<_> = faults.fired().iter().map(|fired| fired.action).collect();
    assert_eq!(fired, ["cut", "cut", "end"]);
    supervised.end().await;
    proxy.stop().await;
}

fn default() -> HarnessOptions {
    HarnessOptions::default()
}
