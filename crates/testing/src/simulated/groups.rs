//! Served groups and versions, in the order of discovery.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{
    cluster::SimulatedCluster,
    custom::Custom,
    resource::{API_SERVICES, SimulatedResource},
};

/// Group of APIServices; it has no APIService itself and precedes all others.
const APISERVICES_GROUP: &str = "apiregistration.k8s.io";

/// Group with its versions, preferred version first.
#[derive(Debug)]
pub(super) struct ServedGroup {
    pub(super) name: String,
    pub(super) versions: Vec<Version>,
}

#[derive(Debug)]
pub(super) struct Version {
    pub(super) version: String,
    /// Types of the version. For an unavailable service, those that it served before.
    pub(super) types: Vec<Arc<SimulatedResource>>,
    pub(super) is_current: bool,
}

/// Priorities of groups and versions from the APIServices.
#[derive(Debug, Default)]
struct Ranks {
    groups: BTreeMap<String, i64>,
    versions: BTreeMap<(String, String), i64>,
}

impl Ranks {
    fn sort<T>(&self, groups: &mut [T], name: impl Fn(&T) -> &str) {
        groups.sort_by_key(|group| {
            let name = name(group);
            let rank = self.groups.get(name).copied().unwrap_or_default();
            (name != APISERVICES_GROUP, Reverse(rank), name.to_owned())
        });
    }

    fn sort_versions<T>(&self, group: &str, versions: &mut [T], name: impl Fn(&T) -> &str) {
        versions.sort_by_key(|version| {
            let name = name(version).to_owned();
            let priority = priority(&name);
            let rank = self.versions.get(&(group.to_owned(), name)).copied().unwrap_or_default();
            (Reverse(rank), Reverse(priority))
        });
    }
}

impl SimulatedCluster {
    fn ranks(&self) -> Ranks {
        let mut ranks = Ranks::default();
        for (_, service) in self.history.all(API_SERVICES) {
            let spec = &service["spec"];
            let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| spec[field].as_i64().unwrap_or_default();
            let rank = ranks.groups.entry(text("group")).or_default();
            *rank = number("groupPriorityMinimum").max(*rank);
            ranks.versions.insert((text("group"), text("version")), number("versionPriority"));
        }
        ranks
    }

    /// Groups that are served, including those of unavailable services.
    pub(super) fn groups(&self) -> Vec<ServedGroup> {
        let mut found: BTreeMap<String, BTreeMap<String, Version>> = BTreeMap::new();
        let version = |version: &str, types: Vec<Arc<SimulatedResource>>, is_current: bool| {
            (version.to_owned(), Version { version: version.to_owned(), types, is_current })
        };
        let local = self.built_in.values().cloned();
        let custom = self.custom.values().flat_map(Custom::discovered);
        for resource in local.chain(custom) {
            let versions = found.entry(resource.group.clone()).or_default();
            let (name, empty) = version(&resource.version, Vec::new(), true);
            versions.entry(name).or_insert(empty).types.push(resource);
        }
        for service in self.aggregated.values().filter(|it| it.is_registered()) {
            let (name, shown) = version(&service.version, service.known(), service.available);
            found.entry(service.group.clone()).or_default().insert(name, shown);
        }
        let ranks = self.ranks();
        let groups = found.into_iter().map(|(name, versions)| {
            let mut versions: Vec<_> = versions.into_values().collect();
            ranks.sort_versions(&name, &mut versions, |it| &it.version);
            ServedGroup { name, versions }
        });
        let mut groups: Vec<_> = groups.collect();
        ranks.sort(&mut groups, |it| &it.name);
        groups
    }

    /// Groups and versions with an APIService, available or not.
    pub(super) fn registered_groups(&self) -> Vec<(String, Vec<String>)> {
        let ranks = self.ranks();
        // Among groups of equal priority, the name of the APIService decides.
        let mut services: Vec<_> = ranks
            .versions
            .keys()
            .filter(|(group, _)| !group.is_empty())
            .map(|(group, version)| {
                let rank = ranks.groups.get(group).copied().unwrap_or_default();
                (Reverse(rank), format!("{version}.{group}"), group, version)
            })
            .collect();
        services.sort();
        let mut groups = vec![(APISERVICES_GROUP.to_owned(), vec!["v1".to_owned()])];
        for (_, _, group, version) in services {
            match groups.iter_mut().find(|(name, _)| name == group) {
                Some((_, versions)) => versions.push(version.clone()),
                None => groups.push((group.clone(), vec![version.clone()])),
            }
        }
        for (group, versions) in &mut groups {
            ranks.sort_versions(group, versions, String::as_str);
        }
        groups
    }
}

/// Sort key of versions: `v2`, `v1`, `v1beta2`, `v1alpha1`, then all others by name.
fn priority(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0, name) };
    for (stage, word) in [(2, "beta"), (1, "alpha")] {
        if let Some((major, minor)) = rest.split_once(word)
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            return (stage, major, minor, name);
        }
    }
    match rest.parse() {
        Ok(major) => (3, major, 0, name),
        Err(_) => (0, 0, 0, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = ["v1alpha1", "foo", "v1", "v2beta1", "v10", "v2", "v2beta2"];
        versions.sort_by_key(|it| std::cmp::Reverse(priority(it)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta2", "v2beta1", "v1alpha1", "foo"]);
    }
}
