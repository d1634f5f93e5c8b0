//! Certificate authority of one control plane.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

use super::Error;

/// OrganizationName again, since rcgen holds one value for each attribute type.
const SECOND_ORGANIZATION: &[u64] = &[2, 5, 4, 10];

/// Authority that the API server and its clients trust.
#[derive(Debug)]
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Certificate and private key, as PEM.
#[derive(Clone, Debug)]
pub(super) struct CertificateAndKey {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name("pilotlight-test-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = KeyPair::generate()
            .and_then(|key| CertifiedIssuer::self_signed(params, key))
            .map_err(certificate_error("the authority"))?;
        Ok(Self { issuer })
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(super) fn der(&self) -> Vec<u8> {
        self.issuer.der().to_vec()
    }

    /// Issues a certificate for a server on loopback.
    pub(super) fn server(&self) -> Result<CertificateAndKey, Error> {
        let mut params = CertificateParams::new(["localhost".to_owned()])
            .map_err(certificate_error("the server"))?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.distinguished_name = distinguished_name("kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign("the server", params)
    }

    /// Issues a certificate for a user: the API server takes the common name as user and
    /// organizations as groups.
    pub(super) fn user(&self, name: &str, groups: &[&str]) -> Result<CertificateAndKey, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(name);
        let types = [DnType::OrganizationName, DnType::CustomDnType(SECOND_ORGANIZATION.to_vec())];
        if groups.len() > types.len() {
            return Err(Error::TooManyGroups { user: name.to_owned(), given: groups.len() });
        }
        for (kind, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Result<CertificateAndKey, Error> {
        let key = KeyPair::generate().map_err(certificate_error(name))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(certificate_error(name))?;
        Ok(CertificateAndKey { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Keys that sign and verify service account tokens.
#[derive(Debug)]
pub(super) struct ServiceAccountKeys {
    pub(super) public: String,
    pub(super) private: String,
}

impl ServiceAccountKeys {
    pub(super) fn new() -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(certificate_error("service accounts"))?;
        Ok(Self { public: key.public_key_pem(), private: key.serialize_pem() })
    }
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn certificate_error(name: &str) -> impl FnOnce(rcgen::Error) -> Error {
    let name = name.to_owned();
    move |source| Error::Certificate { name, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_group_is_refused() {
        let authority = Authority::new().unwrap();

        authority.user("alice", &["one", "two"]).unwrap();
        let error = authority.user("alice", &["one", "two", "three"]).unwrap_err();

        assert!(matches!(error, Error::TooManyGroups { given: 3, .. }));
    }
}
