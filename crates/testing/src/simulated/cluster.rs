//! Server state machine: a request and the time in, a response out, without I/O.
//!
//! Background work of the control plane (accepting names, deleting instances, collecting garbage,
//! emptying namespaces) consists of jobs with a due time. Every access to the cluster first runs
//! the due jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    access::AccessRule,
    aggregated::Aggregated,
    call::{Call, CallResult, HttpReply},
    custom::Custom,
    history::{NamespacedName, ObjectChange, ObjectHistory},
    job::Job,
    object,
    options::Delays,
    owners::Owners,
    refusal::Refusal,
    resource::{self, API_SERVICES, CRDS, NAMESPACES, SimulatedResource, Storage},
    watches::OpenWatches,
};
use crate::Verb;

/// State of the server.
#[derive(Debug)]
pub(super) struct SimulatedCluster {
    pub(super) now: Duration,
    /// Wall clock time at `now` zero.
    begin: Timestamp,
    pub(super) delays: Delays,
    pub(super) random: fastrand::Rng,
    pub(super) history: ObjectHistory,
    pub(super) watches: OpenWatches,
    pub(super) built_in: BTreeMap<(String, String, String), Arc<SimulatedResource>>,
    pub(super) custom: BTreeMap<Storage, Custom>,
    pub(super) aggregated: BTreeMap<String, Aggregated>,
    /// Collections that can be listed and not watched, of objects without uid and resourceVersion.
    pub(super) list_only: BTreeSet<Storage>,
    pub(super) owners: Owners,
    pub(super) rules: Vec<AccessRule>,
    /// Warnings for the current request.
    pub(super) warnings: Vec<String>,
    jobs: BTreeMap<(Duration, u64), Job>,
    last_job: u64,
}

impl SimulatedCluster {
    pub(super) fn new(begin: Timestamp, seed: u64, delays: Delays) -> Self {
        let built_in = resource::built_in().into_iter().map(|resource| {
            let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
            (key, resource)
        });
        let mut cluster = Self {
            now: Duration::ZERO,
            begin,
            delays,
            random: fastrand::Rng::with_seed(seed),
            history: ObjectHistory::default(),
            watches: OpenWatches::default(),
            built_in: built_in.collect(),
            custom: BTreeMap::new(),
            aggregated: BTreeMap::new(),
            list_only: BTreeSet::new(),
            owners: Owners::default(),
            rules: Vec::new(),
            warnings: Vec::new(),
            jobs: BTreeMap::new(),
            last_job: 0,
        };
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            cluster.found_namespace(name);
        }
        cluster.announce_built_in_groups();
        cluster
    }

    /// Answers a request at a time.
    pub(super) fn respond(&mut self, now: Duration, call: &Call) -> CallResult {
        self.advance(now);
        self.warnings.clear();
        let mut response =
            self.answer(call).unwrap_or_else(|refusal| CallResult::Done(HttpReply::from(refusal)));
        if let CallResult::Done(reply) = &mut response {
            reply.warnings = std::mem::take(&mut self.warnings);
        }
        // Jobs without a delay run before the next request.
        self.advance(now);
        response
    }

    fn answer(&mut self, call: &Call) -> Result<CallResult, Refusal> {
        self.authorize(call)?;
        if call.info.resource.is_empty() {
            return self.serve_path(call).map(CallResult::Done);
        }
        if let Some(aggregated) = self.aggregated_of(&call.info) {
            aggregated.check_available()?;
        }
        let resource = self.find(call)?;
        if resource.group == resource::REVIEWS {
            return self.review_access(&resource, call).map(CallResult::Done);
        }
        self.serve(&resource, call)
    }

    /// Returns the served type that a request addresses.
    fn find(&self, call: &Call) -> Result<Arc<SimulatedResource>, Refusal> {
        let info = &call.info;
        let is_ours = self.is_built_in(&info.group);
        let Some(resource) = self.resource(&info.group, &info.version, &info.resource) else {
            return Err(if is_ours {
                Refusal::no_such_resource()
            } else {
                Refusal::no_such_path()
            });
        };
        let has_namespace = !info.namespace.is_empty();
        let all_namespaces = matches!(info.verb, Verb::List | Verb::Watch);
        if resource.namespaced == has_namespace || resource.namespaced && all_namespaces {
            return Ok(resource);
        }
        Err(match (is_ours, has_namespace) {
            (false, _) => Refusal::no_such_path(),
            (true, true) => Refusal::no_such_resource(),
            (true, false) if info.name.is_empty() => Refusal::method_not_allowed(),
            (true, false) => Refusal::no_such_resource(),
        })
    }

    /// Returns true for a group of the server itself, whose paths are routed differently from those
    /// of CRDs.
    pub(super) fn is_built_in(&self, group: &str) -> bool {
        self.built_in.keys().any(|(name, ..)| name == group)
    }

    pub(super) fn resource(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<Arc<SimulatedResource>> {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        if let Some(resource) = self.built_in.get(&key) {
            return Some(Arc::clone(resource));
        }
        if let Some(custom) = self.custom.get(&*resource::qualified(group, plural)) {
            return custom.served(version);
        }
        self.aggregated.values().find_map(|it| it.resource(group, version, plural))
    }

    /// Returns a served type by its kind.
    pub(super) fn resource_of_kind(
        &self,
        api_version: &str,
        kind: &str,
    ) -> Option<Arc<SimulatedResource>> {
        let fits =
            |it: &&Arc<SimulatedResource>| it.kind == kind && it.api_version() == api_version;
        self.resources().into_iter().find(|it| fits(&it))
    }

    /// Served types, each at each of its versions.
    pub(super) fn resources(&self) -> Vec<Arc<SimulatedResource>> {
        let built_in = self.built_in.values().cloned();
        let custom = self.custom.values().flat_map(Custom::all_served);
        let aggregated = self.aggregated.values().flat_map(Aggregated::resources);
        built_in.chain(custom).chain(aggregated).collect()
    }

    // --- time

    /// Advances the clock and runs the due jobs in order.
    pub(super) fn advance(&mut self, now: Duration) {
        while let Some(first) = self.jobs.first_entry().filter(|first| first.key().0 <= now) {
            let ((due, _), job) = first.remove_entry();
            self.now = self.now.max(due);
            self.run(job);
        }
        self.now = self.now.max(now);
    }

    /// Returns the time of the next job.
    pub(super) fn due(&self) -> Option<Duration> {
        self.jobs.keys().next().map(|(due, _)| *due)
    }

    pub(super) fn schedule(&mut self, delay: Duration, job: Job) {
        let at = self.now.saturating_add(delay);
        let planned = self.jobs.iter().any(|((due, _), it)| *due <= at && *it == job);
        if !planned {
            self.last_job += 1;
            self.jobs.insert((at, self.last_job), job);
        }
    }

    fn run(&mut self, job: Job) {
        match job {
            Job::AcceptNames(name) => self.accept_names(&name),
            Job::Establish(name) => self.establish(&name),
            Job::DeleteInstances(name) => self.delete_instances(&name),
            Job::AwaitInstances(name) => self.await_instances(&name),
            Job::EndWatches(storage, last) => {
                self.watches.close_until(&storage, last);
            }
            Job::Drain(name) => self.drain_namespace(&name),
            Job::Collect(storage, key) => self.collect(&storage, &key),
        }
    }

    /// Wall clock time in seconds.
    pub(super) fn timestamp(&self) -> String {
        let passed = SignedDuration::try_from(self.now).unwrap_or(SignedDuration::ZERO);
        let now = self.begin.checked_add(passed).unwrap_or(self.begin);
        now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Fraction of the current second.
    pub(super) fn part_of_second(&self) -> Duration {
        let nanos = self.begin.subsec_nanosecond().unsigned_abs();
        let passed = Duration::from_nanos(u64::from(nanos)) + self.now;
        Duration::from_nanos(u64::from(passed.subsec_nanos()))
    }

    // --- writing

    /// Writes an object, delivers the event to the watches and schedules the jobs that follow.
    pub(super) fn commit(&mut self, storage: &Storage, object: Value) -> Arc<Value> {
        let entry = self.history.put(storage, object);
        self.watches.deliver(&entry);
        self.notice(&entry);
        entry.last
    }

    /// Removes an object, as [`SimulatedCluster::commit`] writes one.
    pub(super) fn erase(&mut self, storage: &Storage, key: &NamespacedName) -> Option<Arc<Value>> {
        let entry = self.history.remove(storage, key)?;
        self.watches.deliver(&entry);
        self.notice(&entry);
        Some(entry.last)
    }

    fn notice(&mut self, entry: &ObjectChange) {
        let suspects = self.owners.note(entry);
        for (storage, key) in suspects {
            self.schedule(self.delays.garbage_collection, Job::Collect(storage, key));
        }
        if let Some(after) = &entry.after
            && object::is_deleting(after)
        {
            let ours = ["foregroundDeletion", "orphan"];
            if object::finalizers(after).any(|it| ours.contains(&it)) {
                let job = Job::Collect(Arc::clone(&entry.storage), entry.key.clone());
                self.schedule(self.delays.garbage_collection, job);
            }
        }
        match &*entry.storage {
            CRDS => {
                self.notice_crd(entry);
                self.recheck_unknown_owners();
            }
            API_SERVICES => {
                self.notice_api_service(entry);
                self.recheck_unknown_owners();
            }
            NAMESPACES => self.notice_namespace(entry),
            "services" => self.notice_service(entry),
            _ => {}
        }
    }

    // --- script

    /// Expires all older versions for lists and watches.
    pub(super) fn compact(&mut self) {
        self.history.compact();
    }

    /// Ends every watch and clears the caches of the process.
    pub(super) fn restart(&mut self, version: Option<u64>) {
        self.watches.close_all();
        match version {
            Some(version) => self.history.reset_version(version),
            None => {
                let collections: BTreeSet<Storage> =
                    self.history.collections().map(|(storage, _)| Arc::clone(storage)).collect();
                for storage in collections {
                    self.history.restart_cache(&storage);
                }
            }
        }
        for custom in self.custom.values_mut() {
            custom.forget_cache();
        }
    }
}
