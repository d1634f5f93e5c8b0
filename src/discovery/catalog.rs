//! What is known of the cluster's types, and what follows from it. No I/O, no clock.
//!
//! Three sources are joined: CRDs say what they serve; APIServices say who serves a group
//! version; discovery says what the built-in and aggregated ones serve. A type that a CRD could
//! explain is never taken from discovery, so that an old answer cannot bring back what is gone.

mod judgement;
mod static_mode;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use tokio::time::Instant;

use self::static_mode::{Missing, StaticMode};
pub(super) use self::{
    judgement::Judgement,
    static_mode::{Polled, Reading},
};
use super::{
    answer::{Answer, AnsweredVersion, Resource},
    api_service::{AGGREGATOR, ApiService, Backend},
    crd::Crd,
    schedule::Unsettled,
};
use crate::kind::{GroupResource, TypeName};

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
    /// Set while CRDs may not be watched: discovery is the only source of their types. The CRDs
    /// known before lend their uids and list kinds.
    static_mode: Option<StaticMode>,
    /// uids of CRDs whose types static mode published first, without a uid. They keep that
    /// identity until the CRD is gone.
    unnamed: HashSet<Arc<str>>,
    /// While APIServices are not known: names of types whose CRDs are gone. Discovery may still
    /// list them, and nothing else tells that they were not built in. With each, how many complete
    /// answers in a row did not list it; after [`CONFIRMATIONS`] it is forgotten.
    retired: HashMap<(Arc<str>, TypeName), u8>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Document {
    /// The last that was current; none if there never was one.
    resources: Option<Vec<Resource>>,
    /// Resources of static mode that are missing from `resources` and not proven to be gone.
    missing: Vec<Missing>,
    /// uid of the APIService that names the service it came from.
    uid: Option<Arc<str>>,
    /// Something happened since that it does not tell.
    stale: bool,
    /// How many complete answers in a row have not named it.
    missed: u8,
    /// When static mode first got a complete answer that does not name it.
    missed_since: Option<Instant>,
}

impl Document {
    /// Every resource that is not proven to be gone.
    fn known(&self) -> impl Iterator<Item = &Resource> {
        let missing = self.missing.iter().map(|missing| &missing.resource);
        self.resources.iter().flatten().chain(missing)
    }
}

/// So many complete answers must agree that a group version is gone where no APIService tells:
/// an API server that is starting leaves out groups for a second or two. The first few answers
/// are asked for within about six seconds.
const CONFIRMATIONS: u8 = 7;

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

impl Catalog {
    /// All CRDs there are: those that are missing were deleted.
    pub(super) fn crds_listed(&mut self, crds: Vec<Crd>, touched: &mut Touched) {
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

    /// A CRD was created or changed.
    pub(super) fn crd_applied(&mut self, crd: Crd, touched: &mut Touched) {
        let group = self.crds.entry(crd.group.clone()).or_default();
        let old = group.get(&crd.plural);
        if old == Some(&crd) {
            return;
        }
        if let Some(old) = old {
            touched.crd(old);
            if old.uid != crd.uid {
                self.unnamed.remove(&old.uid);
            }
        }
        touched.crd(&crd);
        group.insert(crd.plural.clone(), crd);
    }

    /// A CRD is gone.
    pub(super) fn crd_deleted(&mut self, crd: &Crd, touched: &mut Touched) {
        let Some(old) = take(&mut self.crds, &crd.group, &crd.plural) else { return };
        touched.crd(&old);
        self.unnamed.remove(&old.uid);
        if self.services_listed != Listed::Yes {
            let kinds = old.kinds().map(|kind| TypeName::Kind(kind.to_string()));
            let plural = TypeName::Resource(old.plural.to_string());
            let names = kinds.chain([plural]).map(|name| ((old.group.clone(), name), 0));
            self.retired.extend(names);
        }
    }

    /// The CRDs are watched (again): they say what they serve.
    pub(super) fn crds_watched(&mut self, touched: &mut Touched) {
        let Some(static_mode) = self.static_mode.take() else { return };
        touched.all = true;
        if let Some(crds) = static_mode.relisted {
            let unnamed = crds.iter().filter(|crd| self.is_published_unnamed(crd));
            let unnamed: Vec<Arc<str>> = unnamed.map(|crd| crd.uid.clone()).collect();
            self.unnamed.extend(unnamed);
            self.crds_listed(crds, touched);
        }
        self.forget_what_is_missing();
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
            self.retired = HashMap::new();
            if self.static_mode.is_none() {
                self.forget_what_crds_explain();
            }
            touched.all = true;
            return self.unsettled() == Unsettled::Silent && self.enumerated;
        }
        let listed: HashSet<(Arc<str>, Arc<str>)> =
            services.iter().map(|own| (own.group.clone(), own.version.clone())).collect();
        let gone: Vec<(Arc<str>, Arc<str>)> = entries(&self.services)
            .map(|(group, version, _)| (group.clone(), version.clone()))
            .filter(|name| !listed.contains(name) && *name.0 != *AGGREGATOR)
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
    pub(super) fn answered(&mut self, answer: Answer, reading: Reading, touched: &mut Touched) {
        let polled = match reading {
            Reading::Static(polled) if answer.complete => Some(polled),
            Reading::Static(_) | Reading::Watching => None,
        };
        if let Some(polled) = polled {
            self.polled(polled, touched);
        }
        if answer.complete {
            self.forget_retired(&answer);
        }
        let mut named = HashSet::new();
        for answered in answer.versions {
            named.insert((answered.group.clone(), answered.version.clone()));
            self.version_answered(answered, polled, touched);
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
            touched.group(&group);
            let Some(mut document) = take(&mut self.documents, &group, &version) else { continue };
            document.stale = true;
            document.missed = document.missed.saturating_add(1);
            document.missed_since = document.missed_since.or(polled.map(|polled| polled.now));
            if !self.is_unnamed_for_good(&group, &version, &document, polled) {
                self.documents.entry(group).or_default().insert(version, document);
            }
        }
        if self.static_mode.is_some() {
            self.forget_crds_not_discovered(touched);
        }
    }

    fn version_answered(
        &mut self,
        answered: AnsweredVersion,
        polled: Option<Polled>,
        touched: &mut Touched,
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
        if self.services_listed == Listed::Yes
            && (!is_static && !is_discovered || self.is_orphan(group, version, old))
        {
            // Of CRDs, or an answer older than the removal of its APIService.
            return;
        }
        let crds = self.crds.get(group);
        let resources = answered.resources.map(|mut resources| {
            if self.services_listed == Listed::Refused && !is_static {
                resources.retain(|resource| {
                    let is_crd = crds.is_some_and(|crds| crds.contains_key(&resource.plural));
                    let plural = TypeName::Resource(resource.plural.to_string());
                    !is_crd && !self.is_retired(group, &plural)
                });
            }
            resources
        });
        let new = match (resources, old) {
            (Some(resources), old) => {
                let missing = old
                    .filter(|old| old.uid == uid)
                    .map(|old| self.missing_from(&resources, old, (group, version), polled));
                Document {
                    resources: Some(resources),
                    missing: missing.unwrap_or_default(),
                    uid,
                    ..Document::default()
                }
            }
            (None, Some(old)) => {
                Document { stale: true, missed: 0, missed_since: None, ..old.clone() }
            }
            (None, None) => Document { uid, stale: true, ..Document::default() },
        };
        if old != Some(&new) {
            touched.group(group);
            self.documents.entry(group.clone()).or_default().insert(version.clone(), new);
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

    /// Whether nothing stands out that could explain a type.
    pub(super) fn is_complete(&self) -> bool {
        let crds = self.crds_listed || self.static_mode.is_some();
        crds && self.services_listed != Listed::NotYet && self.enumerated
    }

    /// Forgets the names of deleted CRDs that discovery has stopped listing.
    fn forget_retired(&mut self, answer: &Answer) {
        self.retired.retain(|(group, name), missed| {
            let is_meant = |resource: &Resource| match name {
                TypeName::Resource(plural) => *resource.plural == **plural,
                TypeName::Kind(kind) => *resource.kind == **kind,
            };
            let mut versions = answer.versions.iter().filter(|version| version.group == *group);
            let is_listed = versions.any(|version| {
                version.resources.as_ref().is_none_or(|all| all.iter().any(is_meant))
            });
            *missed = if is_listed { 0 } else { *missed + 1 };
            *missed < CONFIRMATIONS
        });
    }

    /// A CRD served it, is gone, and nothing but an old answer could say otherwise.
    fn is_retired(&self, group: &str, name: &TypeName) -> bool {
        // Nearly always empty: the key is built only where it is not.
        self.static_mode.is_none()
            && !self.retired.is_empty()
            && self.retired.contains_key(&(group.into(), name.clone()))
    }

    fn all_crds(&self) -> impl Iterator<Item = &Crd> {
        self.crds.values().flat_map(BTreeMap::values)
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

#[cfg(test)]
mod tests;
