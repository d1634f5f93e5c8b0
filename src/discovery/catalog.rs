//! What is known of the cluster's types, and what follows from it. No I/O, no clock.
//!
//! Three sources are joined: CRDs say what they serve; APIServices say who serves a group
//! version; discovery says what the built-in and aggregated ones serve. A type that a CRD could
//! explain is never taken from discovery, so that an old answer cannot bring back what is gone.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube::core::Version;

use super::{
    InstallingReason, Origin, TypeState,
    answer::{Answer, AnsweredVersion, Resource},
    api_service::{ApiService, Backend},
    crd::Crd,
    schedule::Unsettled,
};
use crate::kind::{GroupResource, ServedType, TypeIdentity, TypeName, TypeRef};

/// The state of a type and how to talk to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) state: TypeState,
    pub(super) served: Option<Arc<ServedType>>,
}

/// Whose answer may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    pub(super) all: bool,
    pub(super) groups: HashSet<Arc<str>>,
    /// Types with the kinds that they have or had.
    pub(super) types: HashMap<GroupResource, HashSet<Arc<str>>>,
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    crds: ByGroup<Crd>,
    /// The CRDs are complete.
    crds_listed: bool,
    services: ByGroup<Backend>,
    services_listed: Listed,
    documents: ByGroup<Document>,
    /// Some answer named every group version.
    enumerated: bool,
    /// CRDs may not be watched: discovery says everything, the CRDs known before lend their uids.
    static_mode: bool,
    /// While APIServices are not known: names of types whose CRDs are gone. Discovery may still
    /// list them, and nothing else tells that they were not built in.
    retired: HashSet<(Arc<str>, TypeName)>,
}

/// By group, then by plural or version.
type ByGroup<T> = HashMap<Arc<str>, BTreeMap<Arc<str>, T>>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listed {
    #[default]
    NotYet,
    Yes,
    /// We may not read them.
    Refused,
}

/// What discovery said of a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    /// The last that was current; none if there never was one.
    resources: Option<Vec<Resource>>,
    /// uid of the APIService that names the service it came from.
    uid: Option<Arc<str>>,
    /// Something happened since that it does not tell.
    stale: bool,
}

impl Judgement {
    pub(super) fn installing(reason: InstallingReason) -> Self {
        Self { state: TypeState::Installing(reason), served: None }
    }

    pub(super) fn unknown() -> Self {
        Self { state: TypeState::Unknown(None), served: None }
    }

    fn absent() -> Self {
        Self { state: TypeState::Absent, served: None }
    }

    /// Nothing newer is proven.
    fn doubted(self) -> Self {
        Self { state: TypeState::Unknown(Some(Box::new(self.state))), served: self.served }
    }
}

impl Touched {
    fn crd(&mut self, crd: &Crd) {
        let name = GroupResource { group: crd.group.to_string(), resource: crd.plural.to_string() };
        self.types.entry(name).or_default().extend(crd.kinds());
    }

    fn group(&mut self, group: &Arc<str>) {
        self.groups.insert(group.clone());
    }

    /// Whether nothing changed.
    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.groups.is_empty() && self.types.is_empty()
    }
}

// What happens.
impl Catalog {
    /// All CRDs there are: those that are missing were deleted.
    pub(super) fn crds_listed(&mut self, crds: Vec<Crd>, touched: &mut Touched) {
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

    /// A CRD was created or changed.
    pub(super) fn crd_applied(&mut self, crd: Crd, touched: &mut Touched) {
        let group = self.crds.entry(crd.group.clone()).or_default();
        let old = group.get(&crd.plural);
        if old == Some(&crd) {
            return;
        }
        if let Some(old) = old {
            touched.crd(old);
        }
        touched.crd(&crd);
        group.insert(crd.plural.clone(), crd);
    }

    /// A CRD is gone.
    pub(super) fn crd_deleted(&mut self, crd: &Crd, touched: &mut Touched) {
        let Some(old) = take(&mut self.crds, &crd.group, &crd.plural) else { return };
        touched.crd(&old);
        if self.services_listed != Listed::Yes {
            let kinds = old.kinds().map(|kind| TypeName::Kind(kind.to_string()));
            let plural = TypeName::Resource(old.plural.to_string());
            let names = kinds.chain([plural]).map(|name| (old.group.clone(), name));
            self.retired.extend(names);
        }
    }

    /// The CRDs are watched (again): they say what they serve.
    pub(super) fn crds_watched(&mut self, touched: &mut Touched) {
        if !std::mem::replace(&mut self.static_mode, false) {
            return;
        }
        touched.all = true;
        match self.services_listed {
            Listed::Yes => self.forget_what_crds_explain(),
            // What was learned meanwhile may belong to CRDs that are gone.
            Listed::NotYet | Listed::Refused => {
                self.documents.clear();
                self.enumerated = false;
            }
        }
    }

    /// All APIServices there are. True if discovery must be asked again.
    pub(super) fn services_listed(
        &mut self,
        services: Vec<ApiService>,
        touched: &mut Touched,
    ) -> bool {
        if self.services_listed != Listed::Yes {
            // The documents are as new as the list: they need no second look.
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
            self.services_listed = Listed::Yes;
            self.retired = HashSet::new();
            self.forget_what_crds_explain();
            touched.all = true;
            return self.unsettled() == Unsettled::Silent && self.enumerated;
        }
        let listed: HashSet<(Arc<str>, Arc<str>)> =
            services.iter().map(|own| (own.group.clone(), own.version.clone())).collect();
        let gone: Vec<(Arc<str>, Arc<str>)> = entries(&self.services)
            .map(|(group, version, _)| (group.clone(), version.clone()))
            .filter(|name| !listed.contains(name))
            .collect();
        let mut ask = false;
        for (group, version) in gone {
            ask |= self.service_deleted(&group, &version, touched);
        }
        for service in services {
            ask |= self.service_applied(service, touched);
        }
        ask
    }

    /// APIServices cannot be read, so that discovery alone tells what no CRD explains.
    pub(super) fn services_refused(&mut self, touched: &mut Touched) {
        if self.services_listed == Listed::NotYet {
            self.services_listed = Listed::Refused;
            touched.all = true;
        }
    }

    /// An APIService was created or changed. True if discovery must be asked again.
    pub(super) fn service_applied(&mut self, service: ApiService, touched: &mut Touched) -> bool {
        let ApiService { group, version, backend } = service;
        let old = find(&self.services, &group, &version);
        if old == Some(&backend) {
            return false;
        }
        touched.group(&group);
        let names_service = matches!(backend, Backend::Aggregated { .. })
            || matches!(old, Some(Backend::Aggregated { .. }));
        if !backend.is_discovered() && !self.static_mode {
            take(&mut self.documents, &group, &version);
        } else if names_service
            && let Some(document) = find_mut(&mut self.documents, &group, &version)
        {
            document.stale = true;
        }
        self.services.entry(group).or_default().insert(version, backend);
        names_service
    }

    /// An APIService is gone. True if discovery must be asked again.
    pub(super) fn service_deleted(
        &mut self,
        group: &Arc<str>,
        version: &Arc<str>,
        touched: &mut Touched,
    ) -> bool {
        let Some(old) = take(&mut self.services, group, version) else { return false };
        touched.group(group);
        // Not yet proven: its types are gone when a complete answer does not name them.
        old.is_discovered()
    }

    /// Discovery answered.
    pub(super) fn answered(&mut self, answer: Answer, watching: bool, touched: &mut Touched) {
        if !watching && answer.complete && !std::mem::replace(&mut self.static_mode, true) {
            touched.all = true;
        }
        let mut named = HashSet::new();
        for answered in answer.versions {
            named.insert((answered.group.clone(), answered.version.clone()));
            self.version_answered(answered, touched);
        }
        if !answer.complete {
            return;
        }
        if !std::mem::replace(&mut self.enumerated, true) {
            touched.all = true;
        }
        let missing: Vec<(Arc<str>, Arc<str>)> = entries(&self.documents)
            .map(|(group, version, _)| (group.clone(), version.clone()))
            .filter(|name| !named.contains(name))
            .collect();
        for (group, version) in missing {
            let expected = find(&self.services, &group, &version)
                .is_some_and(|backend| backend.is_discovered());
            if expected {
                // A server that is starting leaves out what it has not heard of yet.
                if let Some(document) = find_mut(&mut self.documents, &group, &version) {
                    document.stale = true;
                }
            } else {
                take(&mut self.documents, &group, &version);
            }
            touched.group(&group);
        }
        if self.static_mode {
            self.forget_crds_not_discovered();
        }
    }

    fn version_answered(&mut self, answered: AnsweredVersion, touched: &mut Touched) {
        let (group, version) = (&answered.group, &answered.version);
        let backend = find(&self.services, group, version);
        let uid = match backend {
            Some(Backend::Aggregated { uid, .. }) => Some(uid.clone()),
            Some(Backend::BuiltIn | Backend::Crds) | None => None,
        };
        let is_discovered = backend.is_some_and(Backend::is_discovered);
        if self.services_listed == Listed::Yes && !self.static_mode && !is_discovered {
            // Of CRDs, or an answer older than the removal of its APIService.
            return;
        }
        let crds = self.crds.get(group);
        let resources = answered.resources.map(|mut resources| {
            if self.services_listed == Listed::Refused && !self.static_mode {
                resources.retain(|resource| {
                    let is_crd = crds.is_some_and(|crds| crds.contains_key(&resource.plural));
                    let plural = TypeName::Resource(resource.plural.to_string());
                    !is_crd && !self.is_retired(group, &plural)
                });
            }
            resources
        });
        let documents = self.documents.entry(group.clone()).or_default();
        let old = documents.get(version);
        let new = match (resources, old) {
            (Some(resources), _) => Document { resources: Some(resources), uid, stale: false },
            (None, Some(old)) => Document { stale: true, ..old.clone() },
            (None, None) => Document { resources: None, uid, stale: true },
        };
        if old != Some(&new) {
            touched.group(group);
            documents.insert(version.clone(), new);
        }
    }

    fn forget_what_crds_explain(&mut self) {
        let services = &self.services;
        self.documents.retain(|group, versions| {
            versions.retain(|version, _| {
                find(services, group, version).is_some_and(Backend::is_discovered)
            });
            !versions.is_empty()
        });
    }

    /// In static mode a CRD is gone when no version of its group lists its type any more.
    fn forget_crds_not_discovered(&mut self) {
        let documents = &self.documents;
        self.crds.retain(|group, crds| {
            crds.retain(|plural, _| {
                documents.get(group).is_some_and(|versions| {
                    versions.values().any(|document| {
                        document.stale
                            || document.resources.iter().flatten().any(|r| r.plural == *plural)
                    })
                })
            });
            !crds.is_empty()
        });
    }
}

// What follows.
impl Catalog {
    /// What is said to somebody who asks for this type.
    pub(super) fn status(&self, type_ref: &TypeRef) -> Judgement {
        match &type_ref.version {
            Some(version) => self.at(&type_ref.group, version, &type_ref.name),
            None => self.best(&type_ref.group, &type_ref.name),
        }
    }

    /// What discovery ought to know better than it did.
    pub(super) fn unsettled(&self) -> Unsettled {
        let expected = entries(&self.services)
            .filter(|(_, _, backend)| backend.is_discovered())
            .filter(|(group, version, backend)| {
                backend.is_down()
                    || find(&self.documents, group, version)
                        .is_none_or(|document| document.stale || document.resources.is_none())
            })
            .map(|(_, _, backend)| match backend {
                Backend::Aggregated { available, .. } if *available != Some(false) => {
                    Unsettled::Silent
                }
                Backend::Aggregated { .. } | Backend::BuiltIn | Backend::Crds => {
                    Unsettled::Announced
                }
            });
        let known = entries(&self.documents)
            .filter(|(group, version, document)| {
                self.is_orphan(group, version)
                    || (document.stale && self.services_listed != Listed::Yes)
            })
            .map(|_| Unsettled::Silent);
        expected.chain(known).max().unwrap_or(Unsettled::Nothing)
    }

    /// Whether hints about this type are worth a look: nobody else tells of its end.
    pub(super) fn is_discovered(&self, identity: &TypeIdentity) -> bool {
        self.static_mode
            || find(&self.crds, &identity.group, &identity.plural)
                .is_none_or(|crd| Some(&crd.uid) != identity.uid.as_ref())
    }

    /// Every type that is known.
    pub(super) fn types(&self) -> BTreeSet<GroupResource> {
        self.crds.keys().chain(self.documents.keys()).flat_map(|g| self.types_of(g)).collect()
    }

    /// Every type that is known of a group.
    pub(super) fn types_of(&self, group: &str) -> BTreeSet<GroupResource> {
        let crds = self.crds.get(group).into_iter().flat_map(BTreeMap::keys);
        let resources = self
            .documents
            .get(group)
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(|document| document.resources.iter().flatten())
            .map(|resource| &resource.plural);
        crds.chain(resources)
            .map(|plural| GroupResource { group: group.into(), resource: plural.to_string() })
            .collect()
    }

    /// Whether a type is known at all.
    pub(super) fn knows(&self, name: &GroupResource) -> bool {
        find(&self.crds, &name.group, &name.resource).is_some()
            || self.documents.get(name.group.as_str()).is_some_and(|versions| {
                versions
                    .values()
                    .flat_map(|document| document.resources.iter().flatten())
                    .any(|resource| *resource.plural == *name.resource)
            })
    }

    /// The versions that serve a type, the best one first.
    pub(super) fn served_versions(&self, name: &GroupResource) -> Vec<String> {
        let by_name = TypeName::Resource(name.resource.clone());
        self.versions(&name.group, &by_name)
            .into_iter()
            .filter(|version| self.at(&name.group, version, &by_name).served.is_some())
            .map(String::from)
            .collect()
    }

    /// Kind and scope of a type, served or not.
    pub(super) fn describe(&self, name: &GroupResource) -> Option<(Arc<str>, crate::kind::Scope)> {
        if let Some(crd) = find(&self.crds, &name.group, &name.resource) {
            return Some((crd.names().kind.clone(), crd.scope));
        }
        self.documents
            .get(name.group.as_str())?
            .values()
            .flat_map(|document| document.resources.iter().flatten())
            .find(|resource| *resource.plural == *name.resource)
            .map(|resource| (resource.kind.clone(), resource.scope))
    }

    /// Where a type comes from.
    pub(super) fn origin(&self, name: &GroupResource) -> Origin {
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

    fn at(&self, group: &str, version: &str, name: &TypeName) -> Judgement {
        let aggregated =
            matches!(find(&self.services, group, version), Some(Backend::Aggregated { .. }));
        if !self.static_mode
            && !aggregated
            && let Some(crd) = self.crd(group, name)
        {
            return crd.judge(version, name);
        }
        if !aggregated && self.is_retired(group, name) {
            return Judgement::absent();
        }
        let Some(document) = find(&self.documents, group, version) else {
            return if self.is_proven_absent(group, Some(version)) {
                Judgement::absent()
            } else {
                Judgement::unknown()
            };
        };
        let judgement = match &document.resources {
            Some(resources) => self.judge(group, version, name, resources, document),
            None => return Judgement::unknown(),
        };
        // Before APIServices are known, a type could seem built in that has a uid. The core group
        // cannot be aggregated.
        if self.services_listed == Listed::NotYet && !group.is_empty() {
            return Judgement::unknown();
        }
        let down = find(&self.services, group, version).is_some_and(Backend::is_down);
        let doubtful = document.stale || down || self.is_orphan(group, version);
        match judgement.state {
            TypeState::Unknown(_) => judgement,
            TypeState::Absent
            | TypeState::Installing(_)
            | TypeState::Served
            | TypeState::Terminating => {
                if doubtful {
                    judgement.doubted()
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
        resources: &[Resource],
        document: &Document,
    ) -> Judgement {
        let found = resources
            .iter()
            .filter(|resource| match name {
                TypeName::Resource(plural) => *resource.plural == **plural,
                TypeName::Kind(kind) => *resource.kind == **kind,
            })
            .max_by_key(|resource| resource.watchable);
        let Some(resource) = found else {
            // A CRD may add a type to a built-in group.
            return if self.crds_listed || self.static_mode {
                Judgement::absent()
            } else {
                Judgement::unknown()
            };
        };
        if !resource.watchable {
            return Judgement::installing(InstallingReason::NotWatchable);
        }
        let uid = match find(&self.crds, group, &resource.plural) {
            Some(crd) if self.static_mode => Some(crd.uid.clone()),
            _ => document.uid.clone(),
        };
        let served = ServedType {
            identity: TypeIdentity {
                group: group.into(),
                version: version.into(),
                plural: resource.plural.clone(),
                scope: resource.scope,
                uid,
            },
            kind: resource.kind.clone(),
            list_kind: format!("{}List", resource.kind).into(),
            subresources: resource.subresources,
        };
        Judgement { state: TypeState::Served, served: Some(Arc::new(served)) }
    }

    /// The best version that can be talked to; else the most telling reason why there is none.
    fn best(&self, group: &str, name: &TypeName) -> Judgement {
        let mut fallback: Option<Judgement> = None;
        for version in self.versions(group, name) {
            let judgement = self.at(group, version, name);
            if judgement.served.is_some() {
                return judgement;
            }
            if fallback.as_ref().is_none_or(|old| telling(&judgement) > telling(old)) {
                fallback = Some(judgement);
            }
        }
        match fallback {
            Some(judgement) => judgement,
            None if self.is_retired(group, name) || self.is_proven_absent(group, None) => {
                Judgement::absent()
            }
            None => Judgement::unknown(),
        }
    }

    /// Versions at which a type may be served, the best one first.
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

    /// The CRD that is meant by a name: the one that holds it, else one that would like to.
    fn crd(&self, group: &str, name: &TypeName) -> Option<&Crd> {
        match name {
            TypeName::Resource(plural) => find(&self.crds, group, plural),
            TypeName::Kind(_) => {
                let mut wanting = self.crds.get(group)?.values().filter(|c| c.answers_to(name));
                let first = wanting.next()?;
                if first.holds(name) {
                    return Some(first);
                }
                Some(wanting.find(|crd| crd.holds(name)).unwrap_or(first))
            }
        }
    }

    /// Whether it is proven that a group version serves nothing that no CRD serves.
    fn is_proven_absent(&self, group: &str, version: Option<&str>) -> bool {
        if !self.crds_listed && !self.static_mode {
            return false;
        }
        let expected = self.services.get(group).is_some_and(|versions| match version {
            Some(version) => versions.get(version).is_some_and(Backend::is_discovered),
            None => versions.values().any(Backend::is_discovered),
        });
        if expected {
            return false;
        }
        match self.services_listed {
            Listed::Yes if !self.static_mode => true,
            Listed::Yes | Listed::NotYet | Listed::Refused => self.enumerated,
        }
    }

    /// Its APIService is gone, and discovery has not yet agreed.
    fn is_orphan(&self, group: &str, version: &str) -> bool {
        self.services_listed == Listed::Yes
            && !self.static_mode
            && find(&self.services, group, version).is_none()
    }

    /// A CRD served it, is gone, and nothing but an old answer could say otherwise.
    fn is_retired(&self, group: &str, name: &TypeName) -> bool {
        // Nearly always empty: the key is built only where it is not.
        !self.static_mode
            && !self.retired.is_empty()
            && self.retired.contains(&(group.into(), name.clone()))
    }

    fn all_crds(&self) -> impl Iterator<Item = &Crd> {
        self.crds.values().flat_map(BTreeMap::values)
    }
}

/// How much a state explains, of states without anything served.
fn telling(judgement: &Judgement) -> u8 {
    match &judgement.state {
        TypeState::Absent => 0,
        TypeState::Unknown(_) => 1,
        TypeState::Installing(_) | TypeState::Served | TypeState::Terminating => 2,
    }
}

fn find<'a, T>(map: &'a ByGroup<T>, group: &str, name: &str) -> Option<&'a T> {
    map.get(group)?.get(name)
}

fn find_mut<'a, T>(map: &'a mut ByGroup<T>, group: &str, name: &str) -> Option<&'a mut T> {
    map.get_mut(group)?.get_mut(name)
}

fn take<T>(map: &mut ByGroup<T>, group: &str, name: &str) -> Option<T> {
    let inner = map.get_mut(group)?;
    let taken = inner.remove(name);
    if inner.is_empty() {
        map.remove(group);
    }
    taken
}

fn entries<T>(map: &ByGroup<T>) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &T)> {
    map.iter()
        .flat_map(|(group, inner)| inner.iter().map(move |(name, value)| (group, name, value)))
}
