//! Credentials that come, change and go, against a simulated API server in paused time.

use std::time::Duration;

use http::HeaderValue;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::{
    controller::ClusterOptions,
    manager::{Manager, ManagerOptions, RunnableOptions},
    meta::hooks::endpoint::{AuthorizationRule, CaRule},
    testing::simulated::{AccessRule, SimulatedServer},
};

const WAIT: Duration = Duration::from_secs(30);

/// Cluster whose credentials are read.
struct Harness {
    server: SimulatedServer,
    credentials: HookCredentials,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Harness {
    async fn start() -> Self {
        let server = SimulatedServer::new();
        let (cluster, runnable) = Cluster::new(server.client(), ClusterOptions::default());
        let credentials = HookCredentials::new(&cluster);
        let mut manager = Manager::new(ManagerOptions::default());
        manager.add_runnable("cluster", Arc::new(runnable), RunnableOptions::default()).unwrap();
        let reader = Arc::new(credentials.clone());
        manager.add_runnable(HOOK_CREDENTIALS, reader, RunnableOptions::default()).unwrap();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stopped = stop.clone();
        tasks.spawn(async move { manager.run(stopped).await.unwrap() });
        Self { server, credentials, stop, tasks }
    }

    fn store(&self, value: &str) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "token", "namespace": "default"},
            "data": {"token": ByteString(value.as_bytes().to_vec())},
        });
        self.server.apply(secret).unwrap();
    }

    fn store_ca(&self, pem: &str) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "ca", "namespace": "default"}, "data": {"ca.crt": pem},
        });
        self.server.apply(map).unwrap();
    }

    /// Endpoint of a hook of the runnable `a`.
    fn endpoint(
        &self,
        rule: EndpointRule,
        report: impl Fn(String) + Send + Sync + 'static,
    ) -> HookEndpoint {
        self.credentials.endpoint("a".into(), rule, report)
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        assert!(self.server.open_watches().is_empty());
    }
}

fn bearer() -> EndpointRule {
    let secret = ObjectReference {
        kind: ReferenceKind::Secret,
        namespace: "default".into(),
        name: "token".into(),
    };
    let scheme = "Bearer".to_owned();
    let authorization = AuthorizationRule::Scheme { scheme, secret, key: "token".to_owned() };
    EndpointRule { authorization: Some(authorization), ..EndpointRule::default() }
}

/// Rule with a token and the authority of a ConfigMap.
fn bearer_with_ca() -> EndpointRule {
    let map = ObjectReference {
        kind: ReferenceKind::ConfigMap,
        namespace: "default".into(),
        name: "ca".into(),
    };
    EndpointRule { ca_bundle: Some(CaRule::Key(map, "ca.crt".to_owned())), ..bearer() }
}

/// Returns the certificate of a new authority.
fn authority() -> String {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["ca".to_owned()]).unwrap();
    params.self_signed(&key).unwrap().pem()
}

fn authorization(endpoint: &HookEndpoint) -> Option<HeaderValue> {
    endpoint.current().and_then(|endpoint| endpoint.authorization.clone())
}

async fn until(endpoint: &mut HookEndpoint, expected: &'static str) {
    let is_expected = |endpoint: &Option<Arc<Endpoint>>| {
        endpoint.as_ref().is_some_and(|it| it.authorization.as_ref().unwrap() == expected)
    };
    timeout(WAIT, endpoint.endpoint.wait_for(is_expected)).await.unwrap().unwrap();
}

/// Returns a cluster with a token, an endpoint that has read it, and the problems that are reported
/// about it.
async fn reporting() -> (Harness, HookEndpoint, Arc<Mutex<Vec<String>>>) {
    let harness = Harness::start().await;
    harness.store("one");
    let reports = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&reports);
    let mut endpoint = harness.endpoint(bearer(), move |problem| noted.lock().push(problem));
    until(&mut endpoint, "Bearer one").await;
    (harness, endpoint, reports)
}

#[tokio::test(start_paused = true)]
async fn missing_secret_is_awaited_and_a_changed_one_takes_effect() {
    let harness = Harness::start().await;
    let mut endpoint = harness.endpoint(bearer(), |problem| panic!("{problem}"));
    let mut ready = endpoint.ready();
    let unmet = |verdict: &Verdict| matches!(verdict, Verdict::Unmet(_));
    timeout(WAIT, endpoint.verdict.wait_for(unmet)).await.unwrap().unwrap();
    let Verdict::Unmet(why) = ready.verdict() else { panic!() };
    assert_eq!(why[0].reason.as_str(), "HookCredentialsMissing");
    let missing = "Secret default/token does not exist; create it or correct its name";
    assert_eq!(why[0].message, missing);
    assert_eq!(authorization(&endpoint), None);

    harness.store("one");
    timeout(WAIT, ready.met()).await.unwrap();
    until(&mut endpoint, "Bearer one").await;

    harness.store("two");
    until(&mut endpoint, "Bearer two").await;

    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_or_unusable_content_is_reported_once_and_the_last_usable_one_stays() {
    let (harness, mut endpoint, reports) = reporting().await;

    harness.store("hu\nsh");
    harness.store("hu\n\nsh");
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.server.remove("v1", "Secret", "default", "token").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(authorization(&endpoint).unwrap(), "Bearer one");
    assert!(matches!(endpoint.ready().verdict(), Verdict::Met(_)));
    let reported = "the last usable content stays in use: \
                    Secret default/token has characters that a header cannot hold";
    assert_eq!(*reports.lock(), [reported]);

    harness.store("two");
    until(&mut endpoint, "Bearer two").await;
    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_secret_is_reported_and_its_last_content_stays() {
    let (harness, endpoint, reports) = reporting().await;

    harness.server.remove("v1", "Secret", "default", "token").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(authorization(&endpoint).unwrap(), "Bearer one");
    let reported = "the last usable content stays in use: \
                    Secret default/token does not exist; create it or correct its name";
    assert_eq!(*reports.lock(), [reported]);
    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_is_published_again_only_if_its_values_differ() {
    let (harness, mut endpoint, _reports) = reporting().await;
    let first = endpoint.current().unwrap();

    for value in ["hu\nsh", "hu\n\nsh", "one"] {
        harness.store(value);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(Arc::ptr_eq(&endpoint.current().unwrap(), &first), "{value:?}");
    }

    harness.store("two");
    until(&mut endpoint, "Bearer two").await;
    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn token_is_rotated_and_a_hook_is_edited_while_its_ca_is_unusable() {
    let harness = Harness::start().await;
    let (rule, usable) = (bearer_with_ca(), authority());
    harness.store("one");
    harness.store_ca(&usable);
    let ignored = |_problem: String| {};
    let mut endpoint = harness.endpoint(rule.clone(), ignored);
    until(&mut endpoint, "Bearer one").await;

    harness.store_ca("broken");
    tokio::time::sleep(Duration::from_secs(1)).await;
    harness.store("two");
    until(&mut endpoint, "Bearer two").await;
    harness.store("hu\nsh");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(authorization(&endpoint).unwrap(), "Bearer two");

    let edited = harness.endpoint(rule, ignored);
    assert_eq!(authorization(&edited).unwrap(), "Bearer two");
    assert!(edited.current().unwrap().tls.is_some());
    drop((endpoint, edited));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_is_watched_once_and_only_while_an_endpoint_reads_it() {
    let harness = Harness::start().await;
    harness.store("one");
    let ignored = |_problem: String| {};
    let mut one = harness.endpoint(bearer(), ignored);
    let mut other = harness.endpoint(bearer(), ignored);
    until(&mut one, "Bearer one").await;
    until(&mut other, "Bearer one").await;
    let secrets = |harness: &Harness| {
        harness.server.open_watches().get("secrets").copied().unwrap_or_default()
    };
    assert_eq!(secrets(&harness), 1);

    drop(one);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(secrets(&harness), 1);
    drop(other);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(secrets(&harness), 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn report_of_stale_content_is_called_without_the_lock() {
    let harness = Harness::start().await;
    harness.store("one");
    let shared = Arc::clone(&harness.credentials.shared);
    let free = Arc::<Mutex<Vec<bool>>>::default();
    let noted = Arc::clone(&free);
    let mut endpoint = harness.endpoint(bearer(), move |_problem| {
        noted.lock().push(shared.state.try_lock().is_some());
    });
    until(&mut endpoint, "Bearer one").await;

    harness.store("hu\nsh");
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(*free.lock(), [true], "a report may drop the last reference to an endpoint");
    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_is_named_again_at_once_is_read_again() {
    let harness = Harness::start().await;
    harness.store("one");
    let ignored = |_problem: String| {};
    let mut first = harness.endpoint(bearer(), ignored);
    until(&mut first, "Bearer one").await;

    drop(first);
    let mut second = harness.endpoint(bearer(), ignored);

    until(&mut second, "Bearer one").await;
    drop(second);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn new_controller_waits_for_a_deleted_secret_while_the_others_continue() {
    let (harness, endpoint, _reports) = reporting().await;
    harness.server.remove("v1", "Secret", "default", "token").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    let ignored = |_problem: String| {};
    let mut other = harness.credentials.endpoint("b".into(), bearer(), ignored);
    let edited = harness.endpoint(bearer(), ignored);
    tokio::time::sleep(Duration::from_secs(1)).await;

    let verdict = other.ready().verdict();
    let Verdict::Unmet(why) = verdict else { panic!("{verdict:?}") };
    assert_eq!(why[0].reason.as_str(), "HookCredentialsMissing");
    assert_eq!(authorization(&other), None);
    assert_eq!(authorization(&endpoint).unwrap(), "Bearer one");
    assert_eq!(authorization(&edited).unwrap(), "Bearer one", "an edit continues");
    harness.store("two");
    until(&mut other, "Bearer two").await;
    drop((endpoint, edited, other));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn right_that_returns_ends_the_problem_though_the_secret_has_not_changed() {
    let (harness, endpoint, reports) = reporting().await;
    let denied = || AccessRule::deny().resources(["secrets"]);
    for revocations in 1..=2 {
        harness.server.set_rbac([denied()]);
        harness.server.close_watches("secrets");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(reports.lock().len(), revocations, "{:?}", reports.lock());

        harness.server.set_rbac([]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let noted = Arc::new(Mutex::new(Vec::new()));
        let problems = Arc::clone(&noted);
        let other = harness.credentials.endpoint("b".into(), bearer(), move |problem| {
            problems.lock().push(problem);
        });
        assert_eq!(authorization(&other).unwrap(), "Bearer one");
        assert_eq!(*noted.lock(), [""; 0], "the Secret can be read");
    }
    drop(endpoint);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_that_adds_a_ca_continues_with_a_token_that_was_deleted() {
    let (harness, endpoint, _reports) = reporting().await;
    harness.server.remove("v1", "Secret", "default", "token").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    let rule = bearer_with_ca();
    let mut edited = harness.endpoint(rule.clone(), |_| ());
    let other = harness.credentials.endpoint("b".into(), rule, |_| ());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(authorization(&edited), None, "the ConfigMap is missing");
    harness.store_ca(&authority());

    until(&mut edited, "Bearer one").await;
    assert_eq!(authorization(&other), None, "a new controller waits for the token");
    drop((endpoint, edited, other));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_secret_does_not_start_a_new_controller_once_reads_are_forbidden() {
    let (harness, endpoint, _reports) = reporting().await;
    harness.server.remove("v1", "Secret", "default", "token").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let other = harness.credentials.endpoint("b".into(), bearer(), |_| ());

    harness.server.set_rbac([AccessRule::deny().resources(["secrets"])]);
    harness.server.close_watches("secrets");
    tokio::time::sleep(Duration::from_secs(600)).await;

    let verdict = other.ready().verdict();
    let Verdict::Unknown(why) = verdict else { panic!("{verdict:?}") };
    assert_eq!(why[0].reason.as_str(), "HookCredentialsUnreadable");
    assert_eq!(authorization(&other), None);
    drop((endpoint, other));
    harness.end().await;
}
