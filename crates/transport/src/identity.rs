//! Client certificate that new connections present.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;
use rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};

/// Client certificate of a transport. It can be replaced while connections are open.
///
/// A connection keeps the certificate with which it was opened, so the pool compares generations.
#[derive(Debug, Default)]
pub(super) struct Identity {
    current: RwLock<Option<Arc<dyn ResolvesClientCert>>>,
    generation: AtomicU64,
}

impl Identity {
    /// Sets the certificate for new connections.
    pub(super) fn replace(&self, certificate: &Arc<dyn ResolvesClientCert>) {
        let mut current = self.current.write();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, certificate)) {
            *current = Some(certificate.clone());
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Number of replacements so far.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn current(&self) -> Option<Arc<dyn ResolvesClientCert>> {
        self.current.read().clone()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.current()?.resolve(root_hint_subjects, schemes)
    }

    fn has_certs(&self) -> bool {
        self.current().is_some_and(|current| current.has_certs())
    }
}
