//! Tokens and client certificates in files, which rotators replace.

use std::{fs, path::PathBuf, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::BoxFuture;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    credential::{Certificate, Credential, bearer},
    issuer::{CredentialSource, IssuedCredential},
};
use crate::Error;

/// Time between two reads of the files while requests are sent. If a rotator writes a new
/// certificate at least this long before the old one expires, no request fails.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// Credentials of a kubeconfig's user from files or from the kubeconfig itself.
pub(super) struct Files {
    token: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// Certificate and key in the kubeconfig itself, which win over files.
    data: AuthInfo,
    /// Current certificate, and the file contents from which it was parsed.
    parsed: Mutex<Option<(Vec<Vec<u8>>, Certificate)>>,
}

impl Files {
    pub(super) fn new(user: &AuthInfo, token: Option<&str>) -> Self {
        let data = AuthInfo {
            client_certificate_data: user.client_certificate_data.clone(),
            client_key_data: user.client_key_data.clone(),
            ..AuthInfo::default()
        };
        let file = |path: &Option<String>, replaced: bool| {
            path.as_ref().filter(|_| !replaced).map(PathBuf::from)
        };
        Self {
            token: token.map(PathBuf::from),
            certificate: file(&user.client_certificate, data.client_certificate_data.is_some()),
            key: file(&user.client_key, data.client_key_data.is_some()),
            data,
            parsed: Mutex::new(None),
        }
    }

    /// Reads the files; blocks the thread meanwhile.
    pub(super) fn read(&self) -> Result<IssuedCredential, Error> {
        let authorization = match &self.token {
            Some(path) => {
                let token = String::from_utf8_lossy(&read(path)?).trim().to_owned();
                if token.is_empty() {
                    return Err(failed(format!("{} holds no token", path.display())));
                }
                Some(bearer(&token).map_err(failed)?)
            }
            None => None,
        };
        let certificate = self.certificate()?;
        let from_files = [&self.token, &self.certificate, &self.key].iter().any(|it| it.is_some());
        Ok(IssuedCredential {
            credential: Credential { authorization, certificate },
            expires: None,
            renew: from_files.then(|| Instant::now() + READ_AGAIN),
        })
    }

    fn certificate(&self) -> Result<Option<Certificate>, Error> {
        let mut user = self.data.clone();
        let mut contents = Vec::new();
        if let Some(path) = &self.certificate {
            let pem = read(path)?;
            user.client_certificate_data = Some(STANDARD.encode(&pem));
            contents.push(pem);
        }
        if let Some(path) = &self.key {
            let pem = read(path)?;
            user.client_key_data = Some(STANDARD.encode(&pem).into());
            contents.push(pem);
        }
        if user.client_certificate_data.is_none() && user.client_key_data.is_none() {
            return Ok(None);
        }
        let mut parsed = self.parsed.lock();
        if let Some((of, certificate)) = &*parsed
            && *of == contents
        {
            return Ok(Some(certificate.clone()));
        }
        // While a rotator has replaced only one of the two files, they do not match; then this
        // fails, and the old pair is kept.
        let certificate = Certificate::parse(user)?;
        *parsed = Some((contents, certificate.clone()));
        Ok(Some(certificate))
    }
}

impl CredentialSource for Files {
    fn issue(&self) -> BoxFuture<'_, Result<IssuedCredential, Error>> {
        Box::pin(async { self.read() })
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| failed(format!("reading {}: {error}", path.display())))
}

fn failed(message: String) -> Error {
    Error::Credentials { message }
}
