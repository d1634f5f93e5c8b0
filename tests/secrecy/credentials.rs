//! Credentials of hooks in Secrets: valid ones, which the hook repeats, and unusable ones.
//!
//! Names that a hook gives to its children are repeated in messages, as `deploy/README.md` says, so
//! that the hook here repeats the credentials everywhere else.

use http::HeaderMap;
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair};

use super::*;

/// Hooks that repeat the credentials of a request: as an error, and in a response. One wants
/// nothing.
pub(super) fn echoes() -> Router {
    let refuse = async |headers: HeaderMap| {
        let text = credentials(&headers);
        let headers = [(header::WWW_AUTHENTICATE, text.clone()), (header::LOCATION, text.clone())];
        (StatusCode::UNAUTHORIZED, headers, text)
    };
    let answer = async |headers: HeaderMap| {
        let text = credentials(&headers);
        let metadata = json!({"name": "made", "labels": {text.clone(): text}});
        let child = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": text},
        });
        json_answer(&json!({"status": {"text": text}, "children": [child]}))
    };
    let mistyped = async |headers: HeaderMap| {
        let text = credentials(&headers);
        json_answer(&json!({"status": text, "children": text, "resyncAfterSeconds": text}))
    };
    Router::new()
        .route("/echo", post(refuse))
        .route("/echo-answer", post(answer))
        .route("/echo-mistyped", post(mistyped))
        .route("/nothing", post(async || json_answer(&json!({}))))
}

fn credentials(headers: &HeaderMap) -> String {
    let value = headers.get(header::AUTHORIZATION);
    value.map(|it| it.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// Text as a Secret holds it.
fn encoded(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn secret(name: &str, data: &[(&str, &str)]) -> Value {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), encoded(value)));
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "data": data.collect::<serde_json::Map<_, _>>(),
    })
}

/// Lines with a planted text.
fn leaks_of(name: &str, text: &str, planted: &[String]) -> Vec<String> {
    let text = text.replace("hush.test", "");
    let lines = text.lines().filter(|line| planted.iter().any(|it| line.contains(it)));
    lines.map(|line| format!("{name}: {}", line.chars().take(400).collect::<String>())).collect()
}

#[tokio::test]
async fn credentials_of_hooks_appear_in_nothing_that_leaves_the_process() {
    let harness = Harness::start(&[]).await;
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["client".to_owned()]).unwrap();
    let (certificate, key) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    for secret in [
        secret("bearer", &[("token", "hush-bearer")]),
        secret("basic", &[("username", "hush-user"), ("password", "hush-basic")]),
        secret("tls", &[("tls.crt", &certificate), ("tls.key", &key)]),
        secret("broken-token", &[("token", "hush\nbearer")]),
        secret("broken-user", &[("username", "hush:user"), ("password", "hush-basic")]),
        secret("broken-key", &[("tls.crt", &certificate), ("tls.key", "hush-key")]),
        secret("swapped", &[("tls.crt", &key), ("tls.key", &certificate)]),
    ] {
        harness.server.apply(secret).unwrap();
    }
    let at = |scheme: &str, path: &str| format!("{scheme}://{}{path}", harness.hooks_at);
    let named = |name: &str| json!({"name": name, "namespace": "default"});
    let token = |name: &str| json!({"name": name, "namespace": "default", "key": "token"});
    let bearer = |name: &str, path: &str| json!({"url": at("http", path), "authorization": {"secretRef": token(name)}});
    let basic = |name: &str, path: &str| json!({"url": at("http", path), "basicAuth": {"secretRef": named(name)}});
    let client =
        |name: &str| json!({"url": at("https", "/echo"), "clientTLS": {"secretRef": named(name)}});
    for (name, webhook, reason) in [
        ("bearer-refused", bearer("bearer", "/echo"), "HookRefused"),
        ("bearer-answered", bearer("bearer", "/echo-answer"), "HooksAnswer"),
        ("basic-refused", basic("basic", "/echo"), "HookRefused"),
        ("basic-answered", basic("basic", "/echo-answer"), "HooksAnswer"),
        ("bearer-mistyped", bearer("bearer", "/echo-mistyped"), "HookAnswerInvalid"),
        ("basic-mistyped", basic("basic", "/echo-mistyped"), "HookAnswerInvalid"),
        ("client", client("tls"), "HookUnreachable"),
    ] {
        harness.declare_hook(name, &webhook);
        harness.until(name, || harness.reason_of(name, "HooksHealthy") == reason).await;
    }
    for (name, webhook) in [
        ("broken-token", bearer("broken-token", "/echo")),
        ("broken-user", basic("broken-user", "/echo")),
        ("broken-key", client("broken-key")),
        ("swapped", client("swapped")),
    ] {
        harness.declare_hook(name, &webhook);
        let wanted = format!("Secret default/{name}");
        harness.until(name, || harness.status_of(name).to_string().contains(&wanted)).await;
    }

    // A rotation to an unusable value is reported, and the last usable one stays in use.
    harness.server.apply(secret("bearer", &[("token", "hush\nrotated")])).unwrap();
    harness.until("the rotation", || harness.events().contains("HookCredentialsStale")).await;
    let said = harness.said().await;
    let log = harness.end().await;

    let mut planted = vec![PLANTED.to_owned()];
    // Base64 of texts that begin as the planted ones do, and of the key.
    planted.push(encoded("hus").as_str().unwrap().to_owned());
    planted.push(encoded(&key).as_str().unwrap()[..100].to_owned());
    planted.extend(key.lines().filter(|line| !line.contains("--")).map(str::to_owned));
    let mut leaked: Vec<_> =
        said.iter().flat_map(|(name, text)| leaks_of(name, text, &planted)).collect();
    leaked.extend(leaks_of("log", &log, &planted));
    assert!(leaked.is_empty(), "{} leaks\n{}", leaked.len(), leaked.join("\n"));
    assert!(log.contains("reconcile failed"), "it is logged");
}

#[tokio::test]
async fn credentials_of_hooks_are_not_logged_with_bodies_at_level_6() {
    let harness = Harness::start(&["--zap-log-level=6"]).await;
    for secret in [
        secret("bearer", &[("token", "hush-bearer")]),
        secret("basic", &[("username", "hush-user"), ("password", "hush-basic")]),
    ] {
        harness.server.apply(secret).unwrap();
    }
    let at = |path: &str| format!("http://{}{path}", harness.hooks_at);
    let token = json!({"name": "bearer", "namespace": "default", "key": "token"});
    let bearer = |path: &str| json!({"url": at(path), "authorization": {"secretRef": token}});
    let user = json!({"name": "basic", "namespace": "default"});
    let basic = |path: &str| json!({"url": at(path), "basicAuth": {"secretRef": user}});
    let with_user = |path: &str| json!({"url": at(path).replace("://", "://hush-user:hush-url@")});
    for (name, webhook, reason) in [
        ("bearer-refused", bearer("/echo"), "HookRefused"),
        ("bearer-answered", bearer("/plain"), "HooksAnswer"),
        ("basic-refused", basic("/echo"), "HookRefused"),
        ("basic-answered", basic("/plain"), "HooksAnswer"),
        ("user-refused", with_user("/echo?key=hush-query"), "HookRefused"),
        ("user-answered", with_user("/plain?key=hush-query"), "HooksAnswer"),
    ] {
        harness.declare_hook(name, &webhook);
        harness.until(name, || harness.reason_of(name, "HooksHealthy") == reason).await;
    }
    // Decorates the declarations, whose URLs have the user and the password.
    let declarations = "compositecontrollers";
    let decorator = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "DecoratorController",
        "metadata": {"name": "declarations"},
        "spec": {
            "resources": [
                {"apiVersion": "metacontroller.k8s.io/v1alpha1", "resource": declarations},
            ],
            "hooks": {"sync": {"webhook": {"url": at("/nothing")}}},
        },
    });
    harness.server.apply(decorator).unwrap();
    let is_body = |line: &&str| line.contains("hook_bodies");
    let is_declaration = |line: &str| {
        line.contains(r#"\"kind\":\"CompositeController\""#) && line.contains("user-answered")
    };
    harness
        .until("the request about a declaration", || {
            harness.log.borrow().lines().filter(is_body).any(is_declaration)
        })
        .await;

    let log = harness.end().await;

    let planted = [PLANTED.to_owned(), encoded("hus").as_str().unwrap().to_owned()];
    let leaked = leaks_of("log", &log, &planted);
    assert!(leaked.is_empty(), "{} leaks\n{}", leaked.len(), leaked.join("\n"));
    let bodies = || log.lines().filter(is_body);
    assert!(bodies().any(|line| line.contains("response of the hook")), "{log}");
    let without_url = |line: &str| line.contains(r#"\"url\":\"(elided)\""#);
    let whole = bodies().find(|line| is_declaration(line) && !without_url(line));
    assert_eq!(whole, None, "a declaration is logged without its URL");
}
