//! Endpoint and credentials of clients.

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::config::{AuthInfo, Config};
use serde_json::{Value, json};

use super::certificates::CertificateAndKey;

/// Credentials of a client.
#[derive(Clone, Debug)]
pub(super) enum KubeconfigCredentials {
    Certificate(CertificateAndKey),
    Token(String),
    /// No credentials.
    None,
}

impl KubeconfigCredentials {
    /// Returns the `user` of a kubeconfig.
    fn to_json(&self) -> Value {
        match self {
            Self::Certificate(identity) => json!({
                "client-certificate-data": STANDARD.encode(&identity.certificate),
                "client-key-data": STANDARD.encode(&identity.key),
            }),
            Self::Token(token) => json!({ "token": token }),
            Self::None => json!({}),
        }
    }
}

/// API server, as its clients address it.
#[derive(Clone, Debug)]
pub(super) struct ServerEndpoint {
    pub(super) port: u16,
    pub(super) authority_pem: String,
    pub(super) authority_der: Vec<u8>,
}

impl ServerEndpoint {
    /// Returns a configuration without kube's own retries, which would hide faults from tests.
    pub(super) fn config(&self, credentials: &KubeconfigCredentials) -> Config {
        let url = self.url().parse().expect("a loopback address with a port is a URI");
        let mut config = Config::new(url);
        config.root_cert = Some(vec![self.authority_der.clone()]);
        config.auth_info = serde_json::from_value::<AuthInfo>(credentials.to_json())
            .expect("every field of a kubeconfig's user is optional");
        config.default_retry = false;
        config
    }

    /// Returns the content of a kubeconfig file, as JSON, which is valid YAML.
    pub(super) fn kubeconfig(&self, user: &str, credentials: &KubeconfigCredentials) -> String {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "pilotlight", "cluster": {
                "server": self.url(),
                "certificate-authority-data": STANDARD.encode(&self.authority_pem),
            }}],
            "users": [{ "name": user, "user": credentials.to_json() }],
            "contexts": [{ "name": "pilotlight", "context": {
                "cluster": "pilotlight",
                "user": user,
            }}],
            "current-context": "pilotlight",
        });
        format!("{config:#}\n")
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

#[cfg(test)]
mod tests {
    use kube::config::{KubeConfigOptions, Kubeconfig};

    use super::*;
    use crate::certificates::Authority;

    #[tokio::test]
    async fn the_file_and_the_configuration_agree() {
        let authority = Authority::new().unwrap();
        let endpoint = ServerEndpoint {
            port: 6443,
            authority_pem: authority.pem(),
            authority_der: authority.der(),
        };
        let credentials = KubeconfigCredentials::Certificate(authority.user("alice", &[]).unwrap());

        let direct = endpoint.config(&credentials);
        let file = Kubeconfig::from_yaml(&endpoint.kubeconfig("alice", &credentials)).unwrap();
        let from_file =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();

        assert_eq!(direct.cluster_url, from_file.cluster_url);
        assert_eq!(direct.root_cert, from_file.root_cert);
        assert_eq!(
            direct.auth_info.client_certificate_data,
            from_file.auth_info.client_certificate_data
        );
    }

    #[test]
    fn a_token_is_a_credential() {
        let endpoint =
            ServerEndpoint { port: 1, authority_pem: String::new(), authority_der: vec![] };

        assert!(
            endpoint
                .config(&KubeconfigCredentials::Token("t".to_owned()))
                .auth_info
                .token
                .is_some()
        );
    }
}
