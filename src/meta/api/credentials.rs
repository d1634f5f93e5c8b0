//! TLS and credentials of a hook, as its author declares them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Trusted certificates, from exactly one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// A Secret; key `ca.crt` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<CaReference>,
    /// A ConfigMap; key `ca.crt` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<CaReference>,
}

/// A key of a Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Key.
    #[serde(default = "ca_key", skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// A key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Key.
    pub key: String,
}

/// A client certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientTls {
    /// Secret with the certificate and its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Key of the certificate; `tls.crt` when absent.
    #[serde(default = "certificate_key", skip_serializing_if = "Option::is_none")]
    pub cert_key: Option<String>,
    /// Key of the private key; `tls.key` when absent.
    #[serde(default = "private_key", skip_serializing_if = "Option::is_none")]
    pub private_key_key: Option<String>,
}

/// An `Authorization` header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Authorization {
    /// Scheme; `Bearer` when absent.
    #[serde(default = "bearer", rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyReference>,
}

/// Basic authentication.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// Secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Key of the user name; `username` when absent.
    #[serde(default = "user_name_key", skip_serializing_if = "Option::is_none")]
    pub username_key: Option<String>,
    /// Key of the password; `password` when absent.
    #[serde(default = "password_key", skip_serializing_if = "Option::is_none")]
    pub password_key: Option<String>,
}

/// TLS and credentials of the hooks on one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointConfig {
    /// Host, with or without port.
    pub host: String,
    /// Certificates that are trusted instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
    /// Client certificate of the requests.
    #[serde(default, rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
    /// Header `Authorization` of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
    /// User name and password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
}

// The API server fills these in, as with Metacontroller's schemas, so that hooks receive them.

fn ca_key() -> Option<String> {
    Some("ca.crt".to_owned())
}

fn certificate_key() -> Option<String> {
    Some("tls.crt".to_owned())
}

fn private_key() -> Option<String> {
    Some("tls.key".to_owned())
}

fn bearer() -> Option<String> {
    Some("Bearer".to_owned())
}

fn user_name_key() -> Option<String> {
    Some("username".to_owned())
}

fn password_key() -> Option<String> {
    Some("password".to_owned())
}
