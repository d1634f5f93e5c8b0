//! Endpoint of a hook: the TLS configuration and the credentials that its author declares, and
//! those that follow from the Secrets and ConfigMaps that it names. Functions without I/O.
//!
//! Semantics: Metacontroller's `pkg/hooks/{auth,cabundle,endpoint_config}.go`.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri};
use rustls::{
    ClientConfig,
    client::ResolvesClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::webhook::tls;
use crate::meta::api::{
    Authorization, BasicAuth, CaBundle, CaReference, ClientTls, EndpointConfig, WebhookSpec,
    rejection::Problems,
};

/// TLS and credentials of one hook, as declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndpointRule {
    /// Certificates that are trusted instead of the system's.
    pub(crate) ca_bundle: Option<CaRule>,
    /// Client certificate of the requests.
    pub(crate) client_tls: Option<ClientTlsRule>,
    /// Header `Authorization` of the requests.
    pub(crate) authorization: Option<AuthorizationRule>,
}

/// Place of the trusted certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CaRule {
    /// PEM in the specification.
    Inline(String),
    /// Key of a Secret or ConfigMap.
    Key(ObjectReference, String),
}

/// Place of a client certificate and of its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientTlsRule {
    /// The Secret.
    pub(crate) secret: ObjectReference,
    /// Key of the certificate.
    pub(crate) certificate: String,
    /// Key of the private key.
    pub(crate) private_key: String,
}

/// Place of the credentials in the header `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizationRule {
    /// A scheme with the value of a key.
    Scheme {
        /// Scheme, such as `Bearer`.
        scheme: String,
        /// The Secret.
        secret: ObjectReference,
        /// Key of the value.
        key: String,
    },
    /// User name and password.
    Basic {
        /// The Secret.
        secret: ObjectReference,
        /// Key of the user name.
        username: String,
        /// Key of the password.
        password: String,
    },
}

/// Secret or ConfigMap that a hook names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectReference {
    /// The kind.
    pub(crate) kind: ReferenceKind,
    /// Namespace.
    pub(crate) namespace: Arc<str>,
    /// Name.
    pub(crate) name: Arc<str>,
}

/// Kind of an object that a hook names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ReferenceKind {
    /// `Secret`
    Secret,
    /// `ConfigMap`
    ConfigMap,
}

/// Content of a Secret or ConfigMap.
pub(crate) type ObjectContent = BTreeMap<String, Vec<u8>>;

/// Endpoint whose TLS configuration and credentials are known.
pub(crate) struct Endpoint {
    /// TLS configuration; `None` for that of hooks without a rule.
    pub(crate) tls: Option<ClientConfig>,
    /// TLS configuration without a client certificate, for another host.
    pub(crate) anonymous_tls: Option<ClientConfig>,
    /// Value of `Authorization`.
    pub(crate) authorization: Option<HeaderValue>,
    /// Values of the keys that the rule reads, in its order.
    values: Vec<Option<Vec<u8>>>,
}

/// Part of a rule that cannot be used: the object with its problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    /// Wait: the object is being listed.
    #[error("{0} has not been read yet; wait for its list")]
    Unread(ObjectReference),
    /// Create the object, or correct its name in the hook.
    #[error("{0} does not exist; create it or correct its name")]
    Missing(ObjectReference),
    /// Fix the cause that the reason names: a missing right, or an undecodable object.
    #[error("{0} cannot be read: {1}")]
    Unreadable(ObjectReference, String),
    /// Correct the content, whose problem the text names.
    #[error("{0}")]
    Invalid(String),
}

impl fmt::Display for ObjectReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.word(), self.namespace, self.name)
    }
}

impl ReferenceKind {
    /// Returns the name of the kind.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

impl EndpointRule {
    /// Returns the rule of a webhook at `field`: its own fields if it sets one of them, else the
    /// first entry of `endpointConfigs` with its host. Adds its errors to `problems`.
    pub(in crate::meta) fn of(
        field: &str,
        webhook: &WebhookSpec,
        configs: &[EndpointConfig],
        url: &Uri,
        problems: &mut Problems,
    ) -> Option<Self> {
        let own = EndpointConfig {
            host: String::new(),
            ca_bundle: webhook.ca_bundle.clone(),
            client_tls: webhook.client_tls.clone(),
            authorization: webhook.authorization.clone(),
            basic_auth: webhook.basic_auth.clone(),
        };
        if own != EndpointConfig::default() {
            return Self::read(field, &own, problems);
        }
        let hosts = hosts_of(url);
        let is_named =
            |config: &&EndpointConfig| hosts.contains(&config.host.trim().to_ascii_lowercase());
        let Some(config) = configs.iter().find(is_named) else { return Some(Self::default()) };
        let index = configs.iter().position(|one| std::ptr::eq(one, config)).unwrap_or_default();
        Self::read(&format!("spec.endpointConfigs[{index}]"), config, problems)
    }

    fn read(field: &str, config: &EndpointConfig, problems: &mut Problems) -> Option<Self> {
        let EndpointConfig { ca_bundle, client_tls, authorization, basic_auth, .. } = config;
        let before = problems.len();
        let ca_bundle = ca_bundle
            .as_ref()
            .and_then(|bundle| ca_rule(&format!("{field}.caBundle"), bundle, problems));
        let client_tls = client_tls
            .as_ref()
            .and_then(|tls| client_tls_rule(&format!("{field}.clientTLS"), tls, problems));
        let authorization = match (authorization, basic_auth) {
            (Some(_), Some(_)) => {
                problems.invalid(
                    format!("{field}.basicAuth"),
                    "excludes authorization: both set the header Authorization",
                );
                None
            }
            (Some(authorization), None) => {
                scheme_rule(&format!("{field}.authorization"), authorization, problems)
            }
            (None, Some(basic)) => basic_rule(&format!("{field}.basicAuth"), basic, problems),
            (None, None) => None,
        };
        (problems.len() == before).then_some(Self { ca_bundle, client_tls, authorization })
    }

    /// Returns the objects that the rule reads.
    pub(crate) fn references(&self) -> impl Iterator<Item = &ObjectReference> {
        let ca = match &self.ca_bundle {
            Some(CaRule::Key(object, _)) => Some(object),
            Some(CaRule::Inline(_)) | None => None,
        };
        let client = self.client_tls.as_ref().map(|rule| &rule.secret);
        let authorization = self.authorization.as_ref().map(|rule| match rule {
            AuthorizationRule::Scheme { secret, .. } | AuthorizationRule::Basic { secret, .. } => {
                secret
            }
        });
        ca.into_iter().chain(client).chain(authorization)
    }

    /// Returns the keys that the rule reads, with their objects.
    fn keys(&self) -> impl Iterator<Item = (&ObjectReference, &str)> {
        let ca = match &self.ca_bundle {
            Some(CaRule::Key(object, key)) => Some((object, key)),
            Some(CaRule::Inline(_)) | None => None,
        };
        let client = self.client_tls.iter().flat_map(|rule| {
            [(&rule.secret, &rule.certificate), (&rule.secret, &rule.private_key)]
        });
        let authorization = self.authorization.iter().flat_map(|rule| match rule {
            AuthorizationRule::Scheme { secret, key, .. } => vec![(secret, key)],
            AuthorizationRule::Basic { secret, username, password } => {
                vec![(secret, username), (secret, password)]
            }
        });
        let keys = ca.into_iter().chain(client).chain(authorization);
        keys.map(|(object, key)| (object, key.as_str()))
    }

    /// Returns whether the endpoint is that of a hook without a rule.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the endpoint, from the contents of the objects that the rule reads.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] names the object and its key, but quotes no content.
    pub(crate) fn resolve<'a>(
        &self,
        read: impl Fn(&ObjectReference) -> Result<&'a ObjectContent, EndpointError>,
    ) -> Result<Endpoint, EndpointError> {
        let none = |object: &ObjectReference, key: &str| {
            let remedy = "add it, or correct the key in the hook";
            EndpointError::Invalid(format!("{object} has no value of {key}; {remedy}"))
        };
        // As in Metacontroller, credentials may be empty, and certificates may not.
        let any_value = |object: &ObjectReference, key: &str| {
            read(object)?.get(key).ok_or_else(|| none(object, key))
        };
        let value = |object: &ObjectReference, key: &str| {
            let value = any_value(object, key)?;
            if value.is_empty() { Err(none(object, key)) } else { Ok(value) }
        };
        let roots = self.ca_bundle.as_ref().map(|rule| match rule {
            CaRule::Inline(pem) => Ok((pem.as_bytes(), "the inline text of caBundle".to_owned())),
            CaRule::Key(object, key) => {
                Ok((value(object, key)?.as_slice(), format!("{key} of {object}")))
            }
        });
        let roots = roots.transpose()?.map(|(pem, place)| roots_at(pem, place)).transpose()?;
        let client = self.client_tls.as_ref();
        let client = client.map(|rule| client_identity(rule, value)).transpose()?;
        let authorization = self.authorization.as_ref();
        let authorization = authorization.map(|rule| header(rule, any_value)).transpose()?;
        let anonymous_tls = roots.as_ref().map(|roots| roots.configuration(None)).transpose()?;
        let tls = match (client, roots) {
            (None, _) => anonymous_tls.clone(),
            (Some(client), Some(roots)) => Some(roots.configuration(Some(client))?),
            (Some(client), None) => {
                let configured = tls::configuration(None, Some(client));
                Some(configured.map_err(|error| {
                    EndpointError::Invalid(format!(
                        "the authorities of this machine cannot be used: {error}; declare the \
                         authorities of the hook in caBundle"
                    ))
                })?)
            }
        };
        let values = self.keys().map(|(object, key)| read(object).ok()?.get(key).cloned());
        let values = values.collect();
        Ok(Endpoint { tls, anonymous_tls, authorization, values })
    }
}

impl Endpoint {
    /// Returns whether another endpoint of the same rule follows from the same values, so that its
    /// connections can be used.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

/// Returns the spellings of the host that an entry of `endpointConfigs` may have.
fn hosts_of(url: &Uri) -> Vec<String> {
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    match url.port_u16() {
        None => vec![format!("{host}:{default}"), host],
        Some(port) if port == default => vec![format!("{host}:{port}"), host],
        Some(port) => vec![format!("{host}:{port}")],
    }
}

fn ca_rule(field: &str, bundle: &CaBundle, problems: &mut Problems) -> Option<CaRule> {
    let CaBundle { inline, secret_ref, config_map_ref } = bundle;
    let key = |kind, name: &str, reference: &CaReference, problems: &mut Problems| {
        let CaReference { name: object, namespace, key } = reference;
        let object = reference_to(kind, &format!("{field}.{name}"), namespace, object, problems)?;
        Some(CaRule::Key(object, or_default(key.as_deref(), "ca.crt")))
    };
    match (inline, secret_ref, config_map_ref) {
        (Some(pem), None, None) if !pem.trim().is_empty() => Some(CaRule::Inline(pem.clone())),
        (Some(_), None, None) => {
            problems.invalid(format!("{field}.inline"), "must not be empty");
            None
        }
        (None, Some(secret), None) => key(ReferenceKind::Secret, "secretRef", secret, problems),
        (None, None, Some(map)) => key(ReferenceKind::ConfigMap, "configMapRef", map, problems),
        (None, None, None)
        | (Some(_), Some(_), _)
        | (Some(_), _, Some(_))
        | (_, Some(_), Some(_)) => {
            problems.invalid(field, "needs exactly one of inline, secretRef and configMapRef");
            None
        }
    }
}

fn client_tls_rule(field: &str, tls: &ClientTls, problems: &mut Problems) -> Option<ClientTlsRule> {
    let field = format!("{field}.secretRef");
    let Some(secret) = &tls.secret_ref else {
        problems.invalid(field, "is required");
        return None;
    };
    let kind = ReferenceKind::Secret;
    Some(ClientTlsRule {
        secret: reference_to(kind, &field, &secret.namespace, &secret.name, problems)?,
        certificate: or_default(tls.cert_key.as_deref(), "tls.crt"),
        private_key: or_default(tls.private_key_key.as_deref(), "tls.key"),
    })
}

fn scheme_rule(
    field: &str,
    authorization: &Authorization,
    problems: &mut Problems,
) -> Option<AuthorizationRule> {
    let scheme = or_default(authorization.type_.as_deref().map(str::trim), "Bearer");
    if scheme.eq_ignore_ascii_case("basic") {
        problems.invalid(format!("{field}.type"), "must not be Basic; use basicAuth");
        return None;
    }
    if HeaderValue::from_bytes(scheme.as_bytes()).is_err() {
        let why = format!("{scheme:?} has characters that a header cannot hold");
        problems.invalid(format!("{field}.type"), why);
        return None;
    }
    let field = format!("{field}.secretRef");
    let Some(secret) = &authorization.secret_ref else {
        problems.invalid(field, "is required");
        return None;
    };
    if secret.key.is_empty() {
        problems.invalid(format!("{field}.key"), "must not be empty");
        return None;
    }
    let kind = ReferenceKind::Secret;
    Some(AuthorizationRule::Scheme {
        scheme,
        secret: reference_to(kind, &field, &secret.namespace, &secret.name, problems)?,
        key: secret.key.clone(),
    })
}

fn basic_rule(
    field: &str,
    basic: &BasicAuth,
    problems: &mut Problems,
) -> Option<AuthorizationRule> {
    let field = format!("{field}.secretRef");
    let Some(secret) = &basic.secret_ref else {
        problems.invalid(field, "is required");
        return None;
    };
    let kind = ReferenceKind::Secret;
    Some(AuthorizationRule::Basic {
        secret: reference_to(kind, &field, &secret.namespace, &secret.name, problems)?,
        username: or_default(basic.username_key.as_deref(), "username"),
        password: or_default(basic.password_key.as_deref(), "password"),
    })
}

fn reference_to(
    kind: ReferenceKind,
    field: &str,
    namespace: &str,
    name: &str,
    problems: &mut Problems,
) -> Option<ObjectReference> {
    for (part, text) in [("name", name), ("namespace", namespace)] {
        // The name becomes part of a field selector.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        if text.is_empty() || !text.bytes().all(is_name) {
            problems.invalid(format!("{field}.{part}"), format!("{text:?} is not a name"));
            return None;
        }
    }
    Some(ObjectReference { kind, namespace: namespace.into(), name: name.into() })
}

fn or_default(value: Option<&str>, default: &str) -> String {
    value.filter(|value| !value.is_empty()).unwrap_or(default).to_owned()
}

/// Trusted certificates, with their place.
struct Roots {
    certificates: Vec<CertificateDer<'static>>,
    place: String,
}

impl Roots {
    fn configuration(
        &self,
        client: Option<Arc<dyn ResolvesClientCert>>,
    ) -> Result<ClientConfig, EndpointError> {
        tls::configuration(Some(&self.certificates), client).map_err(|error| {
            EndpointError::Invalid(format!(
                "{} holds no usable certificate of an authority: {error}; store the certificates \
                 of the authorities that sign the hook's there",
                self.place
            ))
        })
    }
}

fn roots_at(pem: &[u8], place: String) -> Result<Roots, EndpointError> {
    let certificates = certificates(pem).ok_or_else(|| {
        EndpointError::Invalid(format!(
            "{place} holds no certificate as PEM; store the certificates of the authorities that \
             sign the hook's there"
        ))
    })?;
    Ok(Roots { certificates, place })
}

/// Returns the client certificate of a hook, with its key.
fn client_identity<'a>(
    rule: &ClientTlsRule,
    value: impl Fn(&ObjectReference, &str) -> Result<&'a Vec<u8>, EndpointError>,
) -> Result<Arc<dyn ResolvesClientCert>, EndpointError> {
    let ClientTlsRule { secret, certificate, private_key } = rule;
    let chain = certificates(value(secret, certificate)?).ok_or_else(|| {
        EndpointError::Invalid(format!(
            "{certificate} of {secret} holds no certificate as PEM; store the client certificate \
             for the hook there"
        ))
    })?;
    let of_key = format!("the key of the client certificate {certificate}");
    let key = PrivateKeyDer::from_pem_slice(value(secret, private_key)?).map_err(|_| {
        EndpointError::Invalid(format!(
            "{private_key} of {secret} holds no private key as PEM; store {of_key} there, without \
             a passphrase"
        ))
    })?;
    tls::identity(chain, key).map_err(|error| {
        EndpointError::Invalid(if matches!(error, rustls::Error::InconsistentKeys(_)) {
            format!(
                "{private_key} of {secret} is not {of_key}; store a client certificate and its own \
                 key"
            )
        } else {
            format!(
                "{private_key} of {secret} is not usable as {of_key}: {error}; store a key of RSA, \
                 ECDSA or Ed25519"
            )
        })
    })
}

/// Returns the certificates of a PEM text, if it has some; other and malformed sections are
/// ignored, as in Go.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let begins = pem.windows(BEGIN.len()).enumerate().filter(|(_, text)| *text == BEGIN);
    let begins: Vec<_> = begins.map(|(at, _)| at).chain([pem.len()]).collect();
    let sections = begins.windows(2).map(|ends| &pem[ends[0]..ends[1]]);
    let certificates: Vec<_> =
        sections.filter_map(|section| CertificateDer::from_pem_slice(section).ok()).collect();
    (!certificates.is_empty()).then_some(certificates)
}

/// Returns the value of `Authorization`.
fn header<'a>(
    rule: &AuthorizationRule,
    value: impl Fn(&ObjectReference, &str) -> Result<&'a Vec<u8>, EndpointError>,
) -> Result<HeaderValue, EndpointError> {
    let (object, header) = match rule {
        AuthorizationRule::Scheme { scheme, secret, key } => {
            (secret, [scheme.as_bytes(), value(secret, key)?.trim_ascii()].join(&b' '))
        }
        AuthorizationRule::Basic { secret, username, password } => {
            let (user, password) = (value(secret, username)?, value(secret, password)?);
            if user.contains(&b':') {
                let message = format!("{username} of {secret} must not contain ':'");
                return Err(EndpointError::Invalid(message));
            }
            let pair = [user.trim_ascii(), password.trim_ascii()].join(&b':');
            (secret, format!("Basic {}", STANDARD.encode(pair)).into_bytes())
        }
    };
    let mut header = HeaderValue::from_bytes(header.trim_ascii_end()).map_err(|_| {
        EndpointError::Invalid(format!("{object} has characters that a header cannot hold"))
    })?;
    header.set_sensitive(true);
    Ok(header)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
