//! Credentials that are replaced while connections are open.

use std::{fs, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::config::AuthInfo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::server::ClientPem;

/// Upper bound for waits of tests that fail.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Configuration for `server` as this `user` of a kubeconfig.
pub(super) fn as_user(server: &Server, user: Value) -> Config {
    let mut config = server.config();
    config.auth_info = serde_json::from_value::<AuthInfo>(user).unwrap();
    config
}

/// Exec plugin: a shell script that counts its runs.
pub(super) struct Plugin {
    folder: TempDir,
}

impl Plugin {
    /// Creates a plugin that prints the content of its file `answer`.
    pub(super) fn new() -> Self {
        let plugin = Self { folder: tempfile::tempdir().unwrap() };
        plugin.script("cat \"$folder/answer\"");
        plugin
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Sets the body of the script for later runs.
    pub(super) fn script(&self, body: &str) {
        let folder = self.folder.path().display();
        let script = format!("folder={folder}\necho run >> \"$folder/runs\"\n{body}\n");
        fs::write(self.path("next"), script).unwrap();
        fs::rename(self.path("next"), self.path("script")).unwrap();
    }

    /// Sets the status that later runs print.
    pub(super) fn answer(&self, status: &Value) {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": status,
        });
        fs::write(self.path("answer"), credential.to_string()).unwrap();
    }

    pub(super) fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }

    fn forget_runs(&self) {
        fs::write(self.path("runs"), "").unwrap();
    }

    pub(super) fn user(&self) -> Value {
        json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": [self.path("script").display().to_string()],
            "interactiveMode": "Never",
        }})
    }
}

fn write(folder: &Path, identity: &ClientPem) {
    for (name, content) in [("tls.crt", &identity.certificate), ("tls.key", &identity.key)] {
        fs::write(folder.join("next"), content).unwrap();
        fs::rename(folder.join("next"), folder.join(name)).unwrap();
    }
}

async fn until_presented(client: &Client, name: &str) {
    let since = Instant::now();
    loop {
        let certificate = text(client, "/certificate").await;
        if certificate.contains(name) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "{name} is not presented: {certificate:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_client_certificate_in_files_is_read_again_and_old_connections_finish() {
    let server = Server::start(H2, 100).await;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &server.client("first"));
    let config = as_user(
        &server,
        json!({
            "client-certificate": folder.path().join("tls.crt"),
            "client-key": folder.path().join("tls.key"),
        }),
    );
    let transport = Transport::new(config, TransportOptions::default()).unwrap();
    let client = transport.client().unwrap();
    until_presented(&client, "first").await;
    let mut old = client.send(get("/flood?watch=true")).await.unwrap().into_body();

    write(folder.path(), &server.client("second"));
    until_presented(&client, "second").await;
    let new = watch(&client).await;

    assert_eq!(transport.connections(), 2, "old connections take no new stream");
    old.frame().await.unwrap().unwrap();
    drop(old);
    server.open(2).await;
    drop(new);
}

#[tokio::test]
async fn a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires() {
    let server = Server::start(H2, 100).await;
    let plugin = Plugin::new();
    let response = |name: &str, seconds: i64| {
        let identity = server.client(name);
        let expiry = k8s_openapi::jiff::Timestamp::now()
            + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
        plugin.answer(&json!({
            "expirationTimestamp": expiry.to_string(),
            "clientCertificateData": identity.certificate,
            "clientKeyData": identity.key,
        }));
    };
    response("first", 4);
    let transport =
        Transport::new(as_user(&server, plugin.user()), TransportOptions::default()).unwrap();
    let client = transport.client().unwrap();
    until_presented(&client, "first").await;
    response("second", 3600);
    plugin.forget_runs();

    until_presented(&client, "second").await;
    text(&client, "/pods").await;

    assert_eq!(plugin.runs(), 1, "once for the new certificate");
}

#[tokio::test]
async fn a_token_that_is_refused_is_replaced_for_the_next_request() {
    let server = Server::start(H2, 100).await;
    let plugin = Plugin::new();
    plugin.answer(&json!({ "token": "old", "expirationTimestamp": "2999-01-01T00:00:00Z" }));
    let config = as_user(&server, plugin.user());
    let client = client(config, TransportOptions::default()).unwrap();
    assert!(text(&client, "/headers").await.starts_with("Bearer old\n"));

    plugin.answer(&json!({ "token": "new", "expirationTimestamp": "2999-01-01T00:00:00Z" }));
    server.refuse("Bearer old");
    let refused = client.send(get("/headers")).await.unwrap();

    assert_eq!(refused.status(), 401, "the request is not sent again by itself");
    assert!(text(&client, "/headers").await.starts_with("Bearer new\n"));
}

#[tokio::test]
async fn a_token_file_is_read_again_when_its_token_is_refused() {
    let server = Server::start(H2, 100).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "old\n").unwrap();
    let config = as_user(&server, json!({ "tokenFile": file.path() }));
    let client = client(config, TransportOptions::default()).unwrap();
    assert!(text(&client, "/headers").await.starts_with("Bearer old\n"));

    fs::write(file.path(), "new\n").unwrap();
    server.refuse("Bearer old");
    assert_eq!(client.send(get("/headers")).await.unwrap().status(), 401);

    assert!(text(&client, "/headers").await.starts_with("Bearer new\n"));
}

#[tokio::test]
async fn hanging_plugin_is_started_once_for_all_requests() {
    let server = Server::start(H2, 100).await;
    let plugin = Plugin::new();
    plugin.answer(&json!({ "token": "old", "expirationTimestamp": "2020-01-01T00:00:00Z" }));
    let options = TransportOptions {
        request_timeout: Duration::from_millis(300),
        ..TransportOptions::default()
    };
    let transport = Transport::new(as_user(&server, plugin.user()), options).unwrap();
    let client = transport.client().unwrap();
    plugin.forget_runs();
    plugin.script("sleep 8");

    for _ in 0..3 {
        let (one, other) = tokio::join!(client.send(get("/pods")), client.send(get("/pods")));
        assert!(one.unwrap_err().to_string().contains("was not answered within"));
        other.unwrap_err();
    }

    assert_eq!(plugin.runs(), 1);
    transport.close().await;
}

#[tokio::test]
async fn plugin_without_a_timeout_may_take_long() {
    let server = Server::start(H2, 100).await;
    let plugin = Plugin::new();
    plugin.answer(&json!({ "token": "late" }));
    plugin.script("sleep 0.2; cat \"$folder/answer\"");
    let options = TransportOptions { exec_timeout: Duration::MAX, ..TransportOptions::default() };
    let client = client(as_user(&server, plugin.user()), options).unwrap();

    assert!(text(&client, "/headers").await.starts_with("Bearer late\n"));
}

#[tokio::test]
async fn basic_authentication_is_sent() {
    let server = Server::start(H2, 100).await;
    let config = as_user(&server, json!({ "username": "me", "password": "secret" }));
    let client = client(config, TransportOptions::default()).unwrap();

    let headers = text(&client, "/headers").await;

    assert!(headers.starts_with(&format!("Basic {}\n", STANDARD.encode("me:secret"))));
}
