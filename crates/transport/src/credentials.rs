//! Credentials of requests: `Authorization` headers and client certificates, renewed as needed.
//!
//! Credentials from files and exec plugins are obtained here, because kube reads client
//! certificates once, does not react to a 401 and sets no time limit on a plugin. Basic
//! authentication, a literal token and the legacy `auth-provider` stay with kube's layer.

mod credential;
mod exec;
mod files;
mod issuer;

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use kube::{
    Config,
    config::{AuthInfo, ExecConfig},
};
use tower::{BoxError, Service, ServiceExt};

use self::{credential::Credential, exec::Plugin, files::Files, issuer::Issuer};
use super::{Error, identity::Identity, tasks::PoolTasks};

/// Credentials of one transport.
#[derive(Clone)]
pub(super) struct Credentials {
    /// Issuers in order of precedence: the first one with a header or a certificate wins.
    issuers: Arc<[Arc<Issuer>]>,
    identity: Arc<Identity>,
}

impl Credentials {
    /// Creates the credentials of `user`. Reads files, but starts no exec plugin yet. Client
    /// certificates are put into `identity`. A plugin may run for `exec_timeout`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, a certificate is unusable, or a plugin has no command.
    pub(super) fn new(
        user: &AuthInfo,
        exec_timeout: Duration,
        identity: Arc<Identity>,
        tasks: &PoolTasks,
    ) -> Result<Self, Error> {
        let (token_file, exec) = sources(user);
        let mut issuers = Vec::new();
        if let Some(exec) = exec {
            let plugin = Plugin::new(exec.clone(), exec_timeout)?;
            issuers.push(Issuer::new(plugin, None, tasks.clone()));
        }
        let files = Files::new(user, token_file);
        let read = files.read()?;
        if let Some(certificate) = &read.credential.certificate {
            identity.replace(&certificate.0);
        }
        issuers.push(Issuer::new(files, Some(read), tasks.clone()));
        Ok(Self { issuers: issuers.into(), identity })
    }

    /// Waits until there are credentials for the next request.
    async fn current(&self) -> Result<Vec<Arc<Credential>>, Error> {
        let mut credentials = Vec::with_capacity(self.issuers.len());
        for issuer in &*self.issuers {
            credentials.push(issuer.current().await?);
        }
        let mut certificates = credentials.iter().filter_map(|it| it.certificate.as_ref());
        if let Some(certificate) = certificates.next() {
            self.identity.replace(&certificate.0);
        }
        Ok(credentials)
    }

    /// Records that the server answered 401 to these credentials, so that the next request gets new
    /// ones.
    fn refused(&self, credentials: &[Arc<Credential>]) {
        for (issuer, credential) in self.issuers.iter().zip(credentials) {
            issuer.refused(credential);
        }
    }
}

/// Token file and exec plugin of `user`, if kube's order of precedence uses them. A legacy
/// provider, a password or a literal token precedes both, and the file precedes the plugin.
fn sources(user: &AuthInfo) -> (Option<&str>, Option<&ExecConfig>) {
    let password = user.username.is_some() && user.password.is_some();
    if user.auth_provider.is_some() || password || user.token.is_some() {
        return (None, None);
    }
    match (&user.token_file, &user.exec) {
        (Some(file), _) => (Some(file), None),
        (None, exec) => (None, exec.as_ref()),
    }
}

/// Configuration for kube's own authentication layer, without the sources that are handled here:
/// kube would start the plugin at once and block on it.
pub(super) fn without_sources(config: &Config) -> Config {
    let mut config = config.clone();
    config.auth_info.token_file = None;
    config.auth_info.exec = None;
    config
}

/// Middleware that adds credentials to requests and records their refusal.
#[derive(Clone)]
pub(super) struct CredentialService<S> {
    inner: S,
    credentials: Credentials,
}

impl<S> CredentialService<S> {
    pub(super) fn new(inner: S, credentials: Credentials) -> Self {
        Self { inner, credentials }
    }
}

impl<S, A, B> Service<Request<A>> for CredentialService<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    A: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The inner service is polled in `call`, once there are credentials.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let (inner, credentials) = (self.inner.clone(), self.credentials.clone());
        Box::pin(async move {
            let current = credentials.current().await?;
            if let Some(value) = current.iter().find_map(|it| it.authorization.clone()) {
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            let response = inner.oneshot(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                credentials.refused(&current);
            }
            Ok(response)
        })
    }
}
