//! Static mode: CRDs may not be watched, so that discovery is the only source of their types.
//!
//! Static mode changes no identity. A CRD known from before provides uid and list kind for as long
//! as discovery lists its type. A type that static mode published first, without a uid, keeps that
//! identity when its CRD becomes readable.
//!
//! A single response proves no absence: a server that is starting omits groups. A type is absent
//! when two complete responses, at least one period apart, omit it and no response between them
//! lists it.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    super::{
        api_service::Backend,
        crd::{Crd, CrdReadiness},
        response::{ReadVerbs, ServedResource},
    },
    Catalog, ChangedTypes, ListState,
    by_group::find,
    document::{CONFIRMATIONS, Document, Missing, PollTime},
};

/// Scope of a discovery response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::discovery) enum DiscoveryScope {
    /// CRDs are watched; discovery covers the other types.
    Watching,
    /// CRDs may not be watched; discovery covers all types.
    Static,
}

/// State of static mode.
#[derive(Debug)]
pub(super) struct StaticMode {
    /// Arrival of the first complete response.
    since: Instant,
    /// True once a complete response arrived a period or more after the first. A type that no
    /// response has listed is absent then.
    pub(super) agreed: bool,
    /// CRDs listed during static mode. Applied once the watch is open, so that the catalog leaves
    /// static mode in one step.
    pub(super) relisted: Option<Vec<Crd>>,
}

impl Catalog {
    /// Records a complete response in static mode; the first one enters it.
    pub(super) fn polled(&mut self, polled: PollTime, touched: &mut ChangedTypes) {
        match &mut self.static_mode {
            Some(known) if !known.agreed && polled.agrees(known.since) => known.agreed = true,
            Some(_) => return,
            None => {
                let entered = StaticMode { since: polled.now, agreed: false, relisted: None };
                self.static_mode = Some(entered);
                self.expect_what_crds_serve();
            }
        }
        touched.all = true;
    }

    /// Marks the types of known CRDs as missing until a response lists them.
    fn expect_what_crds_serve(&mut self) {
        let (documents, services) = (&mut self.documents, &self.services);
        for crd in self.crds.values().flat_map(|crds| crds.values()) {
            if !matches!(crd.readiness, CrdReadiness::Established { .. }) {
                continue;
            }
            for version in crd.versions.iter().filter(|version| version.served) {
                let backend = find(services, &crd.group, &version.name);
                if matches!(backend, Some(Backend::Aggregated { .. })) {
                    continue;
                }
                let document = documents
                    .entry(crd.group.clone())
                    .or_default()
                    .entry(version.name.clone())
                    .or_insert_with(|| Document {
                        resources: Some(Vec::new()),
                        ..Document::default()
                    });
                if document.known().any(|resource| resource.plural == crd.plural) {
                    continue;
                }
                let resource = ServedResource {
                    plural: crd.plural.clone(),
                    kind: crd.names().kind.clone(),
                    scope: crd.scope,
                    reads: ReadVerbs::ListAndWatch,
                    subresources: version.subresources,
                };
                document.missing.push(Missing { resource, since: None });
            }
        }
    }

    /// Drops CRDs whose type is absent, or listed with another scope only.
    pub(super) fn forget_crds_not_discovered(&mut self, touched: &mut ChangedTypes) {
        let agreed = self.static_mode.as_ref().is_some_and(|known| known.agreed);
        let (documents, without_uid) = (&self.documents, &mut self.published_without_uid);
        self.crds.retain(|group, crds| {
            crds.retain(|plural, crd| {
                let documents = || documents.get(group).into_iter().flat_map(|it| it.values());
                let listed = documents().flat_map(Document::known);
                let same = listed.filter(|resource| resource.plural == *plural);
                let mut scopes = same.map(|resource| resource.scope).peekable();
                let is_known = match scopes.peek() {
                    Some(_) => scopes.any(|scope| scope == crd.scope),
                    None => !agreed || documents().any(|document| document.stale),
                };
                if !is_known {
                    touched.crd(crd);
                    without_uid.remove(&crd.uid);
                }
                is_known
            });
            !crds.is_empty()
        });
    }

    /// Returns whether static mode published the type of this CRD without having known the CRD.
    pub(super) fn is_published_without_uid(&self, crd: &Crd) -> bool {
        let documents = self.documents.get(&crd.group);
        find(&self.crds, &crd.group, &crd.plural).is_none()
            && documents.into_iter().flat_map(|versions| versions.values()).any(|document| {
                document.uid.is_none()
                    && document.known().any(|resource| {
                        resource.plural == crd.plural
                            && resource.scope == crd.scope
                            && resource.reads != ReadVerbs::None
                    })
            })
    }

    /// Returns the uid in the identity of a CRD's type; `None` if it was published without one.
    pub(super) fn uid_of<'a>(&self, crd: &'a Crd) -> Option<&'a Arc<str>> {
        (!self.published_without_uid.contains(&crd.uid)).then_some(&crd.uid)
    }

    /// Forgets, when static mode ends, since when group versions are missing.
    pub(super) fn forget_missing_versions(&mut self) {
        for document in self.documents.values_mut().flat_map(|versions| versions.values_mut()) {
            document.missed_since = None;
        }
    }

    /// Returns whether a group version that complete responses omit is proven gone.
    pub(super) fn is_version_gone(
        &self,
        group: &str,
        version: &str,
        document: &Document,
        polled: Option<PollTime>,
    ) -> bool {
        let backend = find(&self.services, group, version);
        let is_static = self.static_mode.is_some();
        let is_expected = self.services_listed != ListState::Yes
            || backend.is_some_and(|it| is_static || it.is_discovered());
        let is_silent = self.services_listed != ListState::Yes || !is_expected;
        match polled {
            // The deletion of its APIService was observed, and discovery agrees.
            _ if !is_expected && (document.uid.is_some() || !is_static) => true,
            Some(polled) => is_silent && document.missed_since.is_some_and(|it| polled.agrees(it)),
            None => is_silent && document.missed >= CONFIRMATIONS,
        }
    }
}
