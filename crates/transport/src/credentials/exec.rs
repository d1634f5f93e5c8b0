//! Exec credential plugins, as configured in kubeconfigs.
//!
//! Semantics: `client.authentication.k8s.io` as in client-go
//! (`plugin/pkg/client/auth/exec/exec.go`), except that a run has a deadline.

use std::{io::IsTerminal, process::Stdio, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    process::Command,
    time::{Instant, timeout},
};

use super::{
    credential::{Certificate, Credential, bearer},
    issuer::{CredentialSource, IssuedCredential},
};
use crate::Error;

/// Longest output of a plugin, in bytes; a credential has a few kilobytes.
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;

/// Longest time before expiry at which a credential is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// Exec plugin with its configuration and its time limit.
pub(super) struct Plugin {
    command: String,
    config: ExecConfig,
    within: Duration,
}

/// Part of an `ExecCredential` that a plugin fills in.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    pub(super) fn new(config: ExecConfig, within: Duration) -> Result<Self, Error> {
        let Some(command) = config.command.clone() else {
            let message = "the exec plugin of the kubeconfig has no command".to_owned();
            return Err(Error::Credentials { message });
        };
        Ok(Self { command, config, within })
    }

    /// Runs the plugin once; it is killed if it takes too long or the future is dropped.
    async fn run(&self) -> Result<Vec<u8>, String> {
        let mut child = self.command()?.spawn().map_err(|error| {
            let hint = self.config.install_hint.as_deref().unwrap_or_default();
            format!("it could not be started: {error}. {hint}").trim_end().to_owned()
        })?;
        let stdout = child.stdout.take().ok_or("it has no output")?;
        let ended = timeout(self.within, async {
            let mut output = Vec::new();
            let mut limited = stdout.take(MAX_OUTPUT_BYTES);
            limited.read_to_end(&mut output).await?;
            if limited.limit() == 0 {
                return Err(std::io::Error::other("its output is too long"));
            }
            child.wait().await.map(|status| (status, output))
        });
        match ended.await {
            Ok(Ok((status, output))) if status.success() => Ok(output),
            Ok(Ok((status, _))) => Err(format!("it ended with {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it did not end within {:?}", self.within)),
        }
    }

    fn command(&self) -> Result<Command, String> {
        let config = &self.config;
        let terminal = std::io::stdin().is_terminal();
        let interactive = match config.interactive_mode {
            Some(ExecInteractiveMode::Never) => false,
            Some(ExecInteractiveMode::IfAvailable) | None => terminal,
            Some(ExecInteractiveMode::Always) if terminal => true,
            Some(ExecInteractiveMode::Always) => {
                return Err("it must be interactive, and there is no terminal".to_owned());
            }
        };
        let mut spec = json!({ "interactive": interactive });
        if config.provide_cluster_info {
            spec["cluster"] = json!(config.cluster);
        }
        let info =
            json!({ "apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec });
        let mut command = Command::new(&self.command);
        command
            .args(config.args.iter().flatten())
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        for variable in config.env.iter().flatten() {
            if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                command.env(name, value);
            }
        }
        for name in config.drop_env.iter().flatten() {
            command.env_remove(name);
        }
        Ok(command)
    }

    fn read(output: &[u8]) -> Result<IssuedCredential, String> {
        // The parser's error is dropped, because it may quote its input, which is secret.
        let response: ExecCredential = serde_saphyr::from_slice(output)
            .map_err(|_| "its output is not an ExecCredential".to_owned())?;
        let status = response.status.ok_or("its ExecCredential has no status")?;
        let authorization = status
            .token
            .filter(|token| !token.is_empty())
            .map(|token| bearer(&token))
            .transpose()?;
        let certificate = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(key)) => Some(
                Certificate::of_pem(certificate.as_bytes(), key.as_bytes())
                    .map_err(|error| error.to_string())?,
            ),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err("it returned a client certificate without its key, or a key \
                            without its certificate"
                    .to_owned());
            }
        };
        if authorization.is_none() && certificate.is_none() {
            return Err("it returned neither a token nor a client certificate".to_owned());
        }
        let left = status.expiration_timestamp.map(|at| left(&at)).transpose()?;
        Ok(IssuedCredential {
            credential: Credential { authorization, certificate },
            expires: left.map(|left| Instant::now() + left),
            renew: Some(Instant::now() + left.map_or(FOREVER, before_expiry)),
        })
    }
}

/// Upper bound of the time until expiry, 10 years, so that adding it to a clock cannot overflow. A
/// credential without an expiry gets it as renewal time and is renewed only when it is refused.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Returns the time left until a moment in RFC 3339.
fn left(expiry: &str) -> Result<Duration, String> {
    let expiry: Timestamp = expiry
        .parse()
        .map_err(|error| format!("its expirationTimestamp is not a time: {error}"))?;
    let left = Duration::try_from(expiry.duration_since(Timestamp::now())).unwrap_or_default();
    if left.is_zero() {
        return Err("it returned a credential that has expired".to_owned());
    }
    Ok(left.min(FOREVER))
}

/// Returns the delay before the renewal of a credential that expires after `left`.
fn before_expiry(left: Duration) -> Duration {
    left - RENEW_BEFORE.min(left / 5)
}

impl CredentialSource for Plugin {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedCredential, Error>> {
        Box::pin(async {
            let issued = match self.run().await {
                Ok(output) => Self::read(&output),
                Err(error) => Err(error),
            };
            issued.map_err(|error| Error::Credentials {
                message: format!("the exec plugin {}: {error}", self.command),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(script: &str) -> Plugin {
        let config = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": ["-c", script],
            "env": [{ "name": "GREETING", "value": "hello" }],
            "interactiveMode": "Never",
            "installHint": "install it",
        });
        Plugin::new(serde_json::from_value(config).unwrap(), Duration::from_secs(20)).unwrap()
    }

    async fn error(plugin: &Plugin) -> String {
        plugin.issue().await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_plugin_receives_its_request_and_may_answer_in_yaml() {
        let plugin = plugin(
            "echo kind: ExecCredential; echo status:; \
             echo \"  token: $GREETING-$(echo \"$KUBERNETES_EXEC_INFO\" | tr -dc a-zA-Z)\"",
        );

        let issued = plugin.issue().await.unwrap();

        let token = issued.credential.authorization.unwrap();
        assert_eq!(
            token,
            "Bearer hello-apiVersionclientauthenticationksiovkindExecCredentialspecinteractivefalse"
        );
        assert!(token.is_sensitive());
        assert_eq!(issued.expires, None);
    }

    #[tokio::test]
    async fn an_error_names_the_cause_without_the_output() {
        for (script, expected) in [
            ("echo secret; exit 3", "/bin/sh: it ended with exit status: 3"),
            ("echo '{\"secret\": '", "its output is not an ExecCredential"),
            ("echo '{\"status\": \"secret\"}'", "its output is not an ExecCredential"),
            ("echo '{}'", "its ExecCredential has no status"),
            ("echo '{\"status\": {\"token\": \"\"}}'", "neither a token nor a client certificate"),
            ("echo '{\"status\": {\"clientKeyData\": \"secret\"}}'", "without its certificate"),
            ("yes secret", "its output is too long"),
        ] {
            let error = error(&plugin(script)).await;

            assert!(error.contains(expected), "{script}: {error}");
            assert!(!error.contains("secret"), "{script}: {error}");
        }
        let missing = Plugin { command: "/nonexistent/plugin".to_owned(), ..plugin("") };
        let error = error(&missing).await;
        assert!(error.contains("/nonexistent/plugin: it could not be started"), "{error}");
        assert!(error.ends_with("install it"), "{error}");
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_killed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("echo $$ > {}; exec sleep 600", file.path().display());
        let hanging = Plugin { within: Duration::from_millis(500), ..plugin(&script) };

        let error = error(&hanging).await;

        assert!(error.contains("it did not end within 500ms"), "{error}");
        let id = std::fs::read_to_string(file.path()).unwrap();
        let status = format!("/proc/{}/stat", id.trim());
        let gone = async {
            // A zombie has ended too; it stays until the runtime reaps it.
            while std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), gone).await.unwrap();
    }

    #[test]
    fn credential_is_renewed_a_minute_before_its_expiry_and_a_short_one_later() {
        let seconds = Duration::from_secs;

        assert_eq!(before_expiry(seconds(3600)), seconds(3540));
        assert_eq!(before_expiry(seconds(50)), seconds(40));
        assert_eq!(left("9999-01-01T00:00:00Z"), Ok(FOREVER));
        assert!(left("2020-01-01T00:00:00Z").unwrap_err().contains("has expired"));
        assert!(left("tomorrow").unwrap_err().contains("is not a time"));
    }
}
