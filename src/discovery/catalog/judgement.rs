//! Judgements: the state of each type, derived from the catalog.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::core::Version;

use super::{
    super::{
        Origin, TypeState,
        api_service::{AGGREGATOR, Backend},
        crd::{Crd, KindNames},
        response::{ReadVerbs, ServedResource},
        schedule::PendingDiscovery,
        state::TypeJudgement,
    },
    Catalog, ListState,
    by_group::{entries, find},
    document::Document,
};
use crate::kind::{
    GroupResource, Scope, ServedType, TypeIdentity, TypeName, TypeRef, VersionOrder,
};

impl Catalog {
    /// Returns the judgement of a requested type.
    pub(in crate::discovery) fn status(&self, type_ref: &TypeRef) -> TypeJudgement {
        match &type_ref.version {
            Some(version) => self.judge_version(&type_ref.group, version, &type_ref.name),
            None => self.best(&type_ref.group, &type_ref.name),
        }
    }

    /// Returns the judgement for a subscriber that is bound to `bound`. A request for any version
    /// keeps its bound version until that version is proven to be no longer served.
    pub(in crate::discovery) fn status_after(
        &self,
        type_ref: &TypeRef,
        bound: Option<&TypeIdentity>,
    ) -> TypeJudgement {
        let Some(bound) = bound.filter(|_| type_ref.version.is_none()) else {
            return self.status(type_ref);
        };
        let there = self.judge_version(&type_ref.group, &bound.version, &type_ref.name);
        let is_unconfirmed = matches!(there.state, TypeState::Unknown(_)) && there.served.is_none();
        let is_same = there.served.as_ref().is_some_and(|served| served.identity == *bound);
        if is_unconfirmed || is_same { there } else { self.status(type_ref) }
    }

    /// Returns the most urgent gap that a new discovery response could close.
    pub(in crate::discovery) fn pending(&self) -> PendingDiscovery {
        let expected = entries(&self.services)
            .filter(|(_, _, backend)| backend.is_discovered())
            .filter(|(group, version, backend)| {
                backend.is_down()
                    || find(&self.documents, group, version)
                        .is_none_or(|document| document.stale || document.resources.is_none())
            })
            .map(|(_, _, backend)| match backend {
                Backend::Aggregated { available, .. } if *available != Some(false) => {
                    PendingDiscovery::NoEvent
                }
                Backend::Aggregated { .. } | Backend::BuiltIn | Backend::Crds => {
                    PendingDiscovery::EventExpected
                }
            });
        let known = entries(&self.documents)
            .filter(|(group, version, document)| {
                let is_pushed =
                    self.services_listed == ListState::Yes && self.static_mode.is_none();
                let is_down = find(&self.services, group, version).is_some_and(Backend::is_down);
                let is_unconfirmed = document.stale && !is_pushed
                    || document.awaits_confirmation() && self.static_mode.is_none();
                self.is_orphan(group, version, Some(document)) || is_unconfirmed && !is_down
            })
            .map(|_| PendingDiscovery::NoEvent);
        expected.chain(known).max().unwrap_or(PendingDiscovery::Nothing)
    }

    /// Returns whether a hint about this type should trigger discovery: no watch reports its end.
    pub(in crate::discovery) fn is_discovered(&self, identity: &TypeIdentity) -> bool {
        self.static_mode.is_some()
            || find(&self.crds, &identity.group, &identity.plural)
                .is_none_or(|crd| self.uid_of(crd) != identity.uid.as_ref())
    }

    /// Returns all known types.
    pub(in crate::discovery) fn types(&self) -> BTreeSet<GroupResource> {
        self.crds.keys().chain(self.documents.keys()).flat_map(|g| self.types_of(g)).collect()
    }

    /// Returns the known types of a group.
    pub(in crate::discovery) fn types_of(&self, group: &str) -> BTreeSet<GroupResource> {
        let crds = self.crds.get(group).into_iter().flat_map(BTreeMap::keys);
        let resources = self
            .documents
            .get(group)
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(Document::known)
            .map(|resource| &resource.plural);
        crds.chain(resources)
            .map(|plural| GroupResource { group: group.into(), resource: plural.to_string() })
            .collect()
    }

    /// Returns whether the type is known, served or not.
    pub(in crate::discovery) fn knows(&self, name: &GroupResource) -> bool {
        find(&self.crds, &name.group, &name.resource).is_some()
            || self.documents.get(name.group.as_str()).is_some_and(|versions| {
                versions
                    .values()
                    .flat_map(Document::known)
                    .any(|resource| *resource.plural == *name.resource)
            })
    }

    /// Returns the versions that serve a type, the best one first.
    pub(in crate::discovery) fn served_versions(&self, name: &GroupResource) -> Vec<String> {
        let by_name = TypeName::Resource(name.resource.clone());
        self.versions(&name.group, &by_name)
            .into_iter()
            .filter(|version| self.judge_version(&name.group, version, &by_name).served.is_some())
            .map(String::from)
            .collect()
    }

    /// Returns kind and scope of a type, served or not.
    pub(in crate::discovery) fn describe(&self, name: &GroupResource) -> Option<(Arc<str>, Scope)> {
        if let Some(crd) = find(&self.crds, &name.group, &name.resource) {
            return Some((crd.names().kind.clone(), crd.scope));
        }
        self.documents
            .get(name.group.as_str())?
            .values()
            .flat_map(Document::known)
            .find(|resource| *resource.plural == *name.resource)
            .map(|resource| (resource.kind.clone(), resource.scope))
    }

    /// Returns the uid of a type's CRD or APIService, even if the identity has none.
    pub(in crate::discovery) fn uid<'a>(&'a self, identity: &'a TypeIdentity) -> Option<&'a str> {
        let crd = || find(&self.crds, &identity.group, &identity.plural);
        identity.uid.as_deref().or_else(|| crd().map(|crd| &*crd.uid))
    }

    /// Returns the generation of a type's CRD, which changes with its schemas.
    pub(in crate::discovery) fn crd_generation(&self, group: &str, plural: &str) -> Option<i64> {
        find(&self.crds, group, plural).map(|crd| crd.generation)
    }

    /// Returns whether the kind of a type was served in another scope, at any version.
    pub(in crate::discovery) fn has_other_scope(&self, served: &ServedType) -> bool {
        let identity = &served.identity;
        self.seen_scopes.has_other(&identity.group, &served.kind, identity.scope)
    }

    /// Returns where a type comes from.
    pub(in crate::discovery) fn origin(&self, name: &GroupResource) -> Origin {
        let crd = find(&self.crds, &name.group, &name.resource).is_some();
        let by_name = TypeName::Resource(name.resource.clone());
        let version = self.versions(&name.group, &by_name).into_iter().next();
        match version.and_then(|version| find(&self.services, &name.group, version)) {
            Some(Backend::Aggregated { .. }) => Origin::Aggregated,
            _ if crd => Origin::Crd,
            Some(Backend::BuiltIn) => Origin::BuiltIn,
            Some(Backend::Crds) => Origin::Crd,
            None => Origin::Discovery,
        }
    }

    /// Judges a type at one version, by its CRD if it has one and by discovery otherwise.
    fn judge_version(&self, group: &str, version: &str, name: &TypeName) -> TypeJudgement {
        let aggregated =
            matches!(find(&self.services, group, version), Some(Backend::Aggregated { .. }));
        if self.static_mode.is_none()
            && !aggregated
            && let Some(crd) = self.crd(group, name)
        {
            return crd.judge(version, name, self.uid_of(crd));
        }
        if !aggregated && self.is_deleted_crd_name(group, name) {
            return TypeJudgement::absent();
        }
        let Some(document) = find(&self.documents, group, version) else {
            return if self.is_proven_absent(group, Some(version)) {
                TypeJudgement::absent()
            } else {
                TypeJudgement::unknown()
            };
        };
        let judgement = match &document.resources {
            Some(resources) => self.judge(group, version, name, resources, document),
            None => return TypeJudgement::unknown(),
        };
        // Before APIServices are known, an aggregated type (whose identity has a uid) could pass as
        // built in. If they may not be read, the same holds for CRDs until those are listed. The
        // core group can be neither aggregated nor served by CRDs.
        let group_is_attributed = match self.services_listed {
            ListState::Yes => true,
            ListState::NotYet => false,
            ListState::Refused => self.crds_listed || self.static_mode.is_some(),
        };
        if !group_is_attributed && !group.is_empty() {
            return TypeJudgement::unknown();
        }
        let down = find(&self.services, group, version).is_some_and(Backend::is_down);
        let is_unconfirmed =
            document.stale || down || self.is_orphan(group, version, Some(document));
        match judgement.state {
            TypeState::Unknown(_) => judgement,
            TypeState::Absent
            | TypeState::Installing(_)
            | TypeState::NotWatchable
            | TypeState::Polled
            | TypeState::Served
            | TypeState::Terminating => {
                if is_unconfirmed {
                    judgement.unconfirmed()
                } else {
                    judgement
                }
            }
        }
    }

    fn judge(
        &self,
        group: &str,
        version: &str,
        name: &TypeName,
        resources: &[ServedResource],
        document: &Document,
    ) -> TypeJudgement {
        let is_meant = |resource: &&ServedResource| match name {
            TypeName::Resource(plural) => *resource.plural == **plural,
            TypeName::Kind(kind) => *resource.kind == **kind,
        };
        let listed = resources.iter().filter(is_meant).max_by_key(|resource| resource.reads);
        let missing = || document.missing.iter().map(|it| &it.resource).find(is_meant);
        let Some(resource) = listed.or_else(missing) else {
            // A CRD may add a type to a built-in group.
            return if self.knows_all_crds() {
                TypeJudgement::absent()
            } else {
                TypeJudgement::unknown()
            };
        };
        if resource.reads == ReadVerbs::None {
            return TypeJudgement::not_watchable();
        }
        let crd = find(&self.crds, group, &resource.plural).filter(|crd| {
            self.static_mode.is_some() && document.uid.is_none() && crd.scope == resource.scope
        });
        let uid = match crd {
            Some(crd) => self.uid_of(crd),
            None => document.uid.as_ref(),
        };
        let names = crd.map(|crd| crd.names_under(uid)).filter(|it| it.kind == resource.kind);
        let served = ServedType {
            identity: TypeIdentity {
                group: group.into(),
                version: version.into(),
                plural: resource.plural.clone(),
                scope: resource.scope,
                uid: uid.cloned(),
            },
            kind: resource.kind.clone(),
            list_kind: names.unwrap_or_else(|| KindNames::by_convention(&resource.kind)).list_kind,
            subresources: resource.subresources,
            version_order: self.version_order(group, version, document, crd),
            polled: resource.reads == ReadVerbs::List,
        };
        let terminating = crd.is_some_and(|crd| crd.terminating);
        let state = match (terminating, resource.reads) {
            (true, _) => TypeState::Terminating,
            (false, ReadVerbs::ListAndWatch) => TypeState::Served,
            (false, ReadVerbs::List | ReadVerbs::None) => TypeState::Polled,
        };
        let judgement = TypeJudgement { state, served: Some(Arc::new(served)) };
        if listed.is_some() { judgement } else { judgement.unconfirmed() }
    }

    /// Returns `Comparable` if kube-apiserver itself is known to serve the type.
    fn version_order(
        &self,
        group: &str,
        version: &str,
        document: &Document,
        crd: Option<&Crd>,
    ) -> VersionOrder {
        let is_own = match find(&self.services, group, version) {
            Some(Backend::BuiltIn | Backend::Crds) => true,
            Some(Backend::Aggregated { .. }) => false,
            // Only kube-apiserver serves the core group.
            None => document.uid.is_none() && (group.is_empty() || crd.is_some()),
        };
        if is_own { VersionOrder::Comparable } else { VersionOrder::Opaque }
    }

    /// Returns whether a type that no CRD and no document explains does not exist.
    fn knows_all_crds(&self) -> bool {
        self.static_mode.as_ref().map_or(self.crds_listed, |known| known.agreed)
    }

    /// Returns the best served version, or the most informative reason why no version is served.
    fn best(&self, group: &str, name: &TypeName) -> TypeJudgement {
        let mut fallback: Option<TypeJudgement> = None;
        for version in self.versions(group, name) {
            let judgement = self.judge_version(group, version, name);
            if judgement.served.is_some() {
                return judgement;
            }
            if fallback.as_ref().is_none_or(|old| informative(&judgement) > informative(old)) {
                fallback = Some(judgement);
            }
        }
        match fallback {
            Some(judgement) => judgement,
            None if self.is_deleted_crd_name(group, name) || self.is_proven_absent(group, None) => {
                TypeJudgement::absent()
            }
            None => TypeJudgement::unknown(),
        }
    }

    /// Returns the versions at which a type may be served, the best one first.
    fn versions<'a>(&'a self, group: &str, name: &TypeName) -> Vec<&'a str> {
        let crd = self.crd(group, name).into_iter().flat_map(|crd| &crd.versions).map(|v| &*v.name);
        let discovered = self.documents.get(group).into_iter().flat_map(BTreeMap::keys);
        let services = self
            .services
            .get(group)
            .into_iter()
            .flatten()
            .filter(|(_, backend)| backend.is_discovered())
            .map(|(version, _)| version);
        let mut versions: Vec<&str> = crd.chain(discovered.chain(services).map(|v| &**v)).collect();
        versions.sort_by_cached_key(|version| Reverse(Version::parse(version).priority()));
        versions.dedup();
        versions
    }

    /// Returns the CRD that holds a name, or else a CRD that requests it.
    fn crd(&self, group: &str, name: &TypeName) -> Option<&Crd> {
        match name {
            TypeName::Resource(plural) => find(&self.crds, group, plural),
            TypeName::Kind(_) => {
                let mut wanting = self.crds.get(group)?.values().filter(|c| c.has_name(name));
                let first = wanting.next()?;
                if first.holds(name) {
                    return Some(first);
                }
                Some(wanting.find(|crd| crd.holds(name)).unwrap_or(first))
            }
        }
    }

    /// Returns whether a group version is proven to serve no types but those of CRDs.
    fn is_proven_absent(&self, group: &str, version: Option<&str>) -> bool {
        if !self.knows_all_crds() {
            return false;
        }
        let is_static = self.static_mode.is_some();
        let is_expected = |backend: &Backend| is_static || backend.is_discovered();
        let expected = self.services.get(group).is_some_and(|versions| match version {
            Some(version) => versions.get(version).is_some_and(is_expected),
            None => versions.values().any(is_expected),
        });
        if expected {
            return false;
        }
        match self.services_listed {
            ListState::Yes if !is_static && group != AGGREGATOR => true,
            ListState::Yes | ListState::NotYet | ListState::Refused => self.discovery_complete,
        }
    }

    /// Returns whether a document's APIService is deleted and discovery still has to confirm it.
    pub(super) fn is_orphan(
        &self,
        group: &str,
        version: &str,
        document: Option<&Document>,
    ) -> bool {
        // In static mode the other documents may belong to CRDs.
        let is_aggregated = document.is_some_and(|document| document.uid.is_some());
        self.services_listed == ListState::Yes
            && (self.static_mode.is_none() || is_aggregated)
            && find(&self.services, group, version).is_none()
    }
}

/// Ranks states without a served type by how much they explain.
fn informative(judgement: &TypeJudgement) -> u8 {
    match &judgement.state {
        TypeState::Absent => 0,
        TypeState::Unknown(_) => 1,
        TypeState::Installing(_)
        | TypeState::NotWatchable
        | TypeState::Polled
        | TypeState::Served
        | TypeState::Terminating => 2,
    }
}
