//! Harness whose hooks answer by a function, with faults between its client and the server.

use super::*;
use crate::{meta::definition::strictness::Strictness, testing::Faults};

type RespondWith = Arc<dyn Fn(HookKind, &Value) -> Value + Send + Sync>;

/// Hook that records its requests and answers by a function.
pub(super) struct RespondingHook {
    kind: HookKind,
    response: RespondWith,
    calls: Calls,
}

pub(super) type Calls = Arc<Mutex<Vec<(HookKind, Value)>>>;

impl Hook for RespondingHook {
    fn call(&self, request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        let request: Value = serde_json::from_slice(&request).unwrap();
        let response = (self.response)(self.kind, &request);
        self.calls.lock().unwrap().push((self.kind, request));
        async move { Ok(Bytes::from(response.to_string())) }.boxed()
    }
}

pub(super) async fn harness(
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    harness_with(Strictness::default(), response).await
}

/// Harness whose hooks give this response, with this behaviour of Metacontroller.
pub(super) async fn harness_with(
    strictness: Strictness,
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let server = SimulatedServer::new();
    let client = server.client();
    harness_of(server, client, strictness, response).await
}

/// Harness that reaches a server through this client.
pub(super) async fn harness_of(
    server: SimulatedServer,
    client: kube::Client,
    strictness: Strictness,
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let options = MetaOptions { resync_period: Some(RESYNC), strictness, ..MetaOptions::default() };
    over(server, client, options, response).await
}

/// Harness with these options, whose hooks give this response.
pub(super) async fn harness_of_options(
    options: MetaOptions,
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let server = SimulatedServer::new();
    let client = server.client();
    over(server, client, options, response).await
}

async fn over(
    server: SimulatedServer,
    client: kube::Client,
    options: MetaOptions,
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Calls) {
    let response: RespondWith = Arc::new(response);
    let calls = Calls::default();
    let made = Arc::clone(&calls);
    let factory: HookFactory = Arc::new(move |_, kind| {
        let (response, calls) = (response.clone(), Arc::clone(&made));
        Arc::new(RespondingHook { kind, response, calls })
    });
    let options = MetaOptions { hooks: Some(factory), ..options };
    (Harness::over(server, client, options).await, calls)
}

/// Harness whose hooks give this response, with faults between its client and the server.
pub(super) async fn faulty_with(
    response: impl Fn(HookKind, &Value) -> Value + Send + Sync + 'static,
) -> (Harness, Faults) {
    let (faults, server) = (Faults::default(), SimulatedServer::new());
    let layers = tower::ServiceBuilder::new().layer(faults.layer());
    let client = kube::Client::new(layers.service(server.service("controller")), "default");
    (harness_of(server, client, Strictness::default(), response).await.0, faults)
}

pub(super) async fn pass() {
    sleep(Duration::from_secs(5)).await;
}
