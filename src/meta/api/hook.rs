//! Hook of a declared controller, as its author declares it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Authorization, BasicAuth, CaBundle, ClientTls};

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSpec {
    /// Version of the hook's protocol.
    #[serde(default = "first_version", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["v1", "v2"]))]
    pub version: Option<String>,
    /// Webhook to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSpec>,
}

fn first_version() -> Option<String> {
    Some("v1".to_owned())
}

/// Hook that is called over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSpec {
    /// URL of the hook; takes precedence over `service` and `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Timeout of an exchange, such as `10s`; 10 s when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "duration"))]
    pub timeout: Option<String>,
    /// Path on the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Service that serves the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReference>,
    /// Responses are kept by their ETag: a request names it in `If-None-Match`, and the hook may
    /// confirm the response with status 304 or 412 instead of sending it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<EtagSpec>,
    /// Handling of unknown and duplicate fields of a response: an error if `strict`, ignored if
    /// `loose`. When absent, `loose` in v1 and `strict` in v2.
    #[serde(default, rename = "responseUnMarshallMode", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["loose", "strict"]))]
    pub response_unmarshall_mode: Option<String>,
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

/// A service of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Port; 80 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// `http`, the default, or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Responses that are kept by their ETag.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtagSpec {
    /// True if responses are kept; false when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Seconds for which a response is kept; without end if zero, less or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_timeout_seconds: Option<i32>,
    /// Seconds between removals of expired responses. Zero, less or absent removes them when
    /// another response is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_cleanup_seconds: Option<i32>,
}
