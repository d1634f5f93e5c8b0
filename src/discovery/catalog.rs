//! Catalog: everything known about the cluster's types, and the state of each type. No I/O, no
//! clock.
//!
//! The catalog joins three sources. CRDs name their types. APIServices name the server behind each
//! group version. Discovery lists the built-in and aggregated types. A type that a CRD could
//! explain is never taken from discovery, so that a stale response cannot restore a deleted type.

mod by_group;
mod changed_types;
mod document;
mod judgement;
mod seen_scopes;
mod static_mode;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use self::{
    by_group::{ByGroup, entries, find, find_mut, take},
    document::{CONFIRMATIONS, Document},
    seen_scopes::SeenScopes,
    static_mode::StaticMode,
};
pub(super) use self::{
    changed_types::ChangedTypes, document::PollTime, static_mode::DiscoveryScope,
};
use super::{
    api_service::{AGGREGATOR, ApiServiceHeader, Backend},
    crd::Crd,
    response::{DiscoveryResponse, ListedVersion, ServedResource},
    schedule::PendingDiscovery,
};
use crate::kind::TypeName;

/// Known CRDs, APIServices and discovery documents.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    crds: ByGroup<Crd>,
    /// True once all CRDs have been listed.
    crds_listed: bool,
    services: ByGroup<Backend>,
    services_listed: ListState,
    documents: ByGroup<Document>,
    /// True once a complete discovery response has arrived.
    discovery_complete: bool,
    /// Set while CRDs may not be watched and discovery is the only source of their types. CRDs
    /// known from before provide uids and list kinds.
    static_mode: Option<StaticMode>,
    /// uids of CRDs whose types static mode published first, without a uid. The types keep that
    /// identity until the CRD is deleted.
    published_without_uid: HashSet<Arc<str>>,
    /// Names of types whose CRDs were deleted while APIServices were not known. Discovery may still
    /// list them, and only this map proves that they were not built in. The value counts
    /// consecutive complete responses without the name; at [`CONFIRMATIONS`] the entry is dropped.
    deleted_crd_names: HashMap<(Arc<str>, TypeName), u8>,
    seen_scopes: SeenScopes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListState {
    #[default]
    NotYet,
    Yes,
    /// APIServices may not be read.
    Refused,
}

impl Catalog {
    /// Replaces the CRDs by a complete list; CRDs not in the list were deleted.
    pub(super) fn crds_listed(&mut self, crds: Vec<Crd>, touched: &mut ChangedTypes) {
        if let Some(static_mode) = &mut self.static_mode {
            static_mode.relisted = Some(crds);
            return;
        }
        let listed: HashSet<(Arc<str>, Arc<str>)> =
            crds.iter().map(|crd| (crd.group.clone(), crd.plural.clone())).collect();
        let gone: Vec<Crd> = self
            .all_crds()
            .filter(|crd| !listed.contains(&(crd.group.clone(), crd.plural.clone())))
            .cloned()
            .collect();
        for crd in gone {
            self.crd_deleted(&crd, touched);
        }
        for crd in crds {
            self.crd_applied(crd, touched);
        }
        if !std::mem::replace(&mut self.crds_listed, true) {
            touched.all = true;
        }
    }

    /// Adds or updates a CRD.
    pub(super) fn crd_applied(&mut self, crd: Crd, touched: &mut ChangedTypes) {
        let group = self.crds.entry(crd.group.clone()).or_default();
        let old = group.get(&crd.plural);
        if old == Some(&crd) {
            return;
        }
        if let Some(old) = old {
            touched.crd(old);
            if old.uid != crd.uid {
                self.published_without_uid.remove(&old.uid);
            }
        }
        touched.crd(&crd);
        if let Some(names) = &crd.accepted {
            self.seen_scopes.record(&crd.group, &names.kind, crd.scope);
        }
        group.insert(crd.plural.clone(), crd);
    }

    /// Removes a deleted CRD.
    pub(super) fn crd_deleted(&mut self, crd: &Crd, touched: &mut ChangedTypes) {
        let Some(old) = take(&mut self.crds, &crd.group, &crd.plural) else { return };
        touched.crd(&old);
        self.published_without_uid.remove(&old.uid);
        if self.services_listed != ListState::Yes {
            let kinds = old.kinds().map(|kind| TypeName::Kind(kind.to_string()));
            let plural = TypeName::Resource(old.plural.to_string());
            let names = kinds.chain([plural]).map(|name| ((old.group.clone(), name), 0));
            self.deleted_crd_names.extend(names);
        }
    }

    /// Leaves static mode: CRDs are watched (again).
    pub(super) fn crds_watched(&mut self, touched: &mut ChangedTypes) {
        let Some(static_mode) = self.static_mode.take() else { return };
        touched.all = true;
        if let Some(crds) = static_mode.relisted {
            let without_uid = crds.iter().filter(|crd| self.is_published_without_uid(crd));
            let without_uid: Vec<Arc<str>> = without_uid.map(|crd| crd.uid.clone()).collect();
            self.published_without_uid.extend(without_uid);
            self.crds_listed(crds, touched);
        }
        self.forget_missing_versions();
        match self.services_listed {
            ListState::Yes => self.drop_crd_documents(),
            // Documents of static mode may describe CRDs that are deleted by now.
            ListState::NotYet | ListState::Refused => {
                self.documents.clear();
                self.discovery_complete = false;
            }
        }
    }

    /// Replaces the APIServices by a complete list. Returns true if discovery must be requested
    /// again.
    pub(super) fn services_listed(
        &mut self,
        services: Vec<ApiServiceHeader>,
        touched: &mut ChangedTypes,
    ) -> bool {
        if self.services_listed != ListState::Yes {
            // The first list is as recent as the documents: no second request is needed.
            for service in services {
                let document = find_mut(&mut self.documents, &service.group, &service.version);
                if let (Some(document), Backend::Aggregated { uid, .. }) =
                    (document, &service.backend)
                {
                    document.uid = Some(uid.clone());
                }
                self.services
                    .entry(service.group)
                    .or_default()
                    .insert(service.version, service.backend);
            }
            self.services_listed = ListState::Yes;
            self.deleted_crd_names = HashMap::new();
            if self.static_mode.is_none() {
                self.drop_crd_documents();
            }
            touched.all = true;
            return self.pending() == PendingDiscovery::NoEvent && self.discovery_complete;
        }
        let listed: HashSet<(Arc<str>, Arc<str>)> =
            services.iter().map(|own| (own.group.clone(), own.version.clone())).collect();
        let gone: Vec<(Arc<str>, Arc<str>)> = entries(&self.services)
            .map(|(group, version, _)| (group.clone(), version.clone()))
            .filter(|name| !listed.contains(name) && *name.0 != *AGGREGATOR)
            .collect();
        let mut refresh = false;
        for (group, version) in gone {
            refresh |= self.service_deleted(&group, &version, touched);
        }
        for service in services {
            refresh |= self.service_applied(service, touched);
        }
        refresh
    }

    /// Records that APIServices may not be read: only discovery lists types without a CRD.
    pub(super) fn services_refused(&mut self, touched: &mut ChangedTypes) {
        if self.services_listed == ListState::NotYet {
            self.services_listed = ListState::Refused;
            touched.all = true;
        }
    }

    /// Adds or updates an APIService. Returns true if discovery must be requested again.
    pub(super) fn service_applied(
        &mut self,
        service: ApiServiceHeader,
        touched: &mut ChangedTypes,
    ) -> bool {
        let ApiServiceHeader { group, version, backend } = service;
        let old = find(&self.services, &group, &version);
        if old == Some(&backend) {
            return false;
        }
        touched.group(&group);
        let names_service = matches!(backend, Backend::Aggregated { .. })
            || matches!(old, Some(Backend::Aggregated { .. }));
        if !backend.is_discovered() && self.static_mode.is_none() {
            take(&mut self.documents, &group, &version);
        } else if names_service
            && let Some(document) = find_mut(&mut self.documents, &group, &version)
        {
            document.stale = true;
        }
        self.services.entry(group).or_default().insert(version, backend);
        names_service
    }

    /// Removes a deleted APIService. Returns true if discovery must be requested again.
    pub(super) fn service_deleted(
        &mut self,
        group: &Arc<str>,
        version: &Arc<str>,
        touched: &mut ChangedTypes,
    ) -> bool {
        let Some(old) = take(&mut self.services, group, version) else { return false };
        touched.group(group);
        // No proof of absence yet: its types are absent once a complete response omits them.
        old.is_discovered()
    }

    /// Applies a discovery response.
    pub(super) fn answered(
        &mut self,
        response: DiscoveryResponse,
        scope: DiscoveryScope,
        arrival: PollTime,
        touched: &mut ChangedTypes,
    ) {
        let complete = response.complete.then_some(arrival);
        let polled = match scope {
            DiscoveryScope::Static => complete,
            DiscoveryScope::Watching => None,
        };
        if let Some(polled) = polled {
            self.polled(polled, touched);
        }
        if response.complete {
            self.forget_deleted_crd_names(&response);
        }
        let mut named = HashSet::new();
        for answered in response.versions {
            named.insert((answered.group.clone(), answered.version.clone()));
            self.version_answered(answered, complete, touched);
        }
        if !response.complete {
            return;
        }
        if !std::mem::replace(&mut self.discovery_complete, true) {
            touched.all = true;
        }
        let missing: Vec<(Arc<str>, Arc<str>)> = entries(&self.documents)
            .map(|(group, version, _)| (group.clone(), version.clone()))
            .filter(|name| !named.contains(name))
            .collect();
        for (group, version) in missing {
            touched.group(&group);
            let Some(mut document) = take(&mut self.documents, &group, &version) else { continue };
            if polled.is_none() {
                document = document.unconfirmed();
            }
            document.stale = true;
            document.missed = document.missed.saturating_add(1);
            document.missed_since = document.missed_since.or(polled.map(|polled| polled.now));
            if !self.is_version_gone(&group, &version, &document, polled) {
                self.documents.entry(group).or_default().insert(version, document);
            }
        }
        if self.static_mode.is_some() {
            self.forget_crds_not_discovered(touched);
        }
    }

    /// Applies the response for one group version; `complete` is the arrival of a response that is
    /// complete.
    fn version_answered(
        &mut self,
        answered: ListedVersion,
        complete: Option<PollTime>,
        touched: &mut ChangedTypes,
    ) {
        let (group, version) = (&answered.group, &answered.version);
        if **group == *AGGREGATOR {
            let own = self.services.entry(group.clone()).or_default();
            own.entry(version.clone()).or_insert(Backend::BuiltIn);
        }
        let backend = find(&self.services, group, version);
        let uid = match backend {
            Some(Backend::Aggregated { uid, .. }) => Some(uid.clone()),
            Some(Backend::BuiltIn | Backend::Crds) | None => None,
        };
        let is_discovered = backend.is_some_and(Backend::is_discovered);
        let is_static = self.static_mode.is_some();
        let old = find(&self.documents, group, version);
        if self.services_listed == ListState::Yes
            && (!is_static && !is_discovered || self.is_orphan(group, version, old))
        {
            // The group version belongs to CRDs, or the response is older than the APIService's
            // deletion.
            return;
        }
        let crds = self.crds.get(group);
        let resources = answered.resources.map(|mut resources| {
            if self.services_listed == ListState::Refused && !is_static {
                resources.retain(|resource| {
                    let is_crd = crds.is_some_and(|crds| crds.contains_key(&resource.plural));
                    let plural = TypeName::Resource(resource.plural.to_string());
                    !is_crd && !self.is_deleted_crd_name(group, &plural)
                });
            }
            resources
        });
        for resource in resources.iter().flatten() {
            self.seen_scopes.record(group, &resource.kind, resource.scope);
        }
        let new = match (resources, old) {
            (Some(resources), old) => {
                let old = old.filter(|old| old.uid == uid);
                old.cloned().unwrap_or_default().answered(resources, uid, complete)
            }
            (None, Some(old)) => Document { missed: 0, ..old.clone().unconfirmed() },
            (None, None) => Document { uid, stale: true, ..Document::default() },
        };
        if old != Some(&new) {
            touched.group(group);
            self.documents.entry(group.clone()).or_default().insert(version.clone(), new);
        }
    }

    fn drop_crd_documents(&mut self) {
        let services = &self.services;
        self.documents.retain(|group, versions| {
            versions.retain(|version, _| {
                find(services, group, version).is_some_and(Backend::is_discovered)
            });
            !versions.is_empty()
        });
    }

    /// Returns whether every source that could explain a type has been read.
    pub(super) fn is_complete(&self) -> bool {
        let crds = self.crds_listed || self.static_mode.is_some();
        crds && self.services_listed != ListState::NotYet && self.discovery_complete
    }

    /// Drops the names of deleted CRDs that discovery no longer lists.
    fn forget_deleted_crd_names(&mut self, response: &DiscoveryResponse) {
        self.deleted_crd_names.retain(|(group, name), missed| {
            let is_meant = |resource: &ServedResource| match name {
                TypeName::Resource(plural) => *resource.plural == **plural,
                TypeName::Kind(kind) => *resource.kind == **kind,
            };
            let mut versions = response.versions.iter().filter(|version| version.group == *group);
            let is_listed = versions.any(|version| {
                version.resources.as_ref().is_none_or(|all| all.iter().any(is_meant))
            });
            *missed = if is_listed { 0 } else { *missed + 1 };
            *missed < CONFIRMATIONS
        });
    }

    /// Returns whether a deleted CRD served the type, so that only a stale response can list it.
    fn is_deleted_crd_name(&self, group: &str, name: &TypeName) -> bool {
        // Nearly always empty: the key is built only if it is not.
        self.static_mode.is_none()
            && !self.deleted_crd_names.is_empty()
            && self.deleted_crd_names.contains_key(&(group.into(), name.clone()))
    }

    fn all_crds(&self) -> impl Iterator<Item = &Crd> {
        self.crds.values().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests;
