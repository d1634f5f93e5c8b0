//! Tests of the catalog's judgements, case by case.

mod crds;
mod laws;
mod responses;
mod scopes;
mod services;

use std::{sync::LazyLock, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        InstallingReason, Origin, TypeState,
        crd::{CrdVersion, KindNames},
        response::ReadVerbs,
        state::TypeJudgement,
        watch::WatchedType,
    },
    *,
};
use crate::kind::{Scope, TypeIdentity, TypeRef};

/// The period of static mode.
const PERIOD: Duration = Duration::from_secs(30);
const SERVED: &str = "Served";
const ABSENT: &str = "Absent";
const TERMINATING: &str = "Terminating";
const UNKNOWN: &str = "Unknown";

/// Builder of a CRD of `example.com`, in the server's JSON.
struct CrdBuilder(Value);

fn crd(plural: &str, kind: &str) -> CrdBuilder {
    CrdBuilder(json!({
        "metadata": { "name": format!("{plural}.example.com"), "uid": "uid-1",
            "resourceVersion": "5", "labels": null },
        "spec": { "group": "example.com", "scope": "Namespaced",
            "names": { "plural": plural, "kind": kind, "listKind": format!("{kind}List") },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
                "subresources": { "status": {} } }] },
        "status": { "acceptedNames": { "plural": plural, "kind": kind },
            "conditions": [
                { "type": "NamesAccepted", "status": "True", "reason": "NoConflicts" },
                { "type": "Established", "status": "True", "reason": "InitialNamesAccepted" }] },
    }))
}

impl CrdBuilder {
    fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = self.0.pointer_mut(parent).unwrap();
        if let Value::Array(items) = parent {
            items[key.parse::<usize>().unwrap()] = value;
        } else {
            parent[key] = value;
        }
        self
    }

    fn uid(self, uid: &str) -> Self {
        self.set("/metadata/uid", json!(uid))
    }

    fn versions(self, versions: &[(&str, bool)]) -> Self {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(name, served)| json!({ "name": name, "served": served }))
            .collect();
        self.set("/spec/versions", json!(versions))
    }

    fn list_kind(self, list_kind: &str) -> Self {
        self.set("/spec/names/listKind", json!(list_kind))
            .set("/status/acceptedNames/listKind", json!(list_kind))
    }

    fn new_born(self) -> Self {
        self.set(
            "/status",
            json!({ "acceptedNames": { "kind": "", "plural": "" }, "conditions": null }),
        )
    }

    fn terminating(self) -> Self {
        self.set("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))
    }

    fn build(self) -> Crd {
        Crd::reduced(serde_json::from_value(self.0).unwrap())
    }
}

fn service(group: &str, version: &str, backend: Backend) -> ApiServiceHeader {
    ApiServiceHeader { group: group.into(), version: version.into(), backend }
}

fn aggregated(uid: &str, available: Option<bool>) -> Backend {
    Backend::Aggregated { uid: uid.into(), service: "default/metrics:443".into(), available }
}

fn resource(plural: &str, kind: &str) -> ServedResource {
    ServedResource {
        plural: plural.into(),
        kind: kind.into(),
        scope: Scope::Namespaced,
        reads: ReadVerbs::ListAndWatch,
        subresources: Default::default(),
    }
}

/// A complete response of group, version and resources, without stale entries.
fn response(versions: &[(&str, &str, Option<&[ServedResource]>)]) -> DiscoveryResponse {
    DiscoveryResponse {
        complete: true,
        versions: versions
            .iter()
            .map(|(group, version, resources)| ListedVersion {
                group: (*group).into(),
                version: (*version).into(),
                resources: resources.map(<[ServedResource]>::to_vec),
            })
            .collect(),
    }
}

fn apps() -> (&'static str, &'static str, Option<&'static [ServedResource]>) {
    ("apps", "v1", Some(Box::leak(Box::new([resource("deployments", "Deployment")]))))
}

fn metrics() -> (&'static str, &'static str, Option<&'static [ServedResource]>) {
    ("metrics.example.com", "v1", Some(Box::leak(Box::new([resource("loads", "Load")]))))
}

fn widgets() -> TypeRef {
    TypeRef::resource("example.com", "v1", "widgets")
}

fn deployments() -> TypeRef {
    TypeRef::resource("apps", "v1", "deployments")
}

fn loads() -> TypeRef {
    TypeRef::kind("metrics.example.com", "v1", "Load")
}

/// Arrival of a response, `seconds` after a fixed instant.
fn arrival(seconds: u64) -> PollTime {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    PollTime { now: *BEGIN + Duration::from_secs(seconds), period: PERIOD }
}

impl Catalog {
    /// A catalog that has read all sources: `apps` is built in, `metrics.example.com` aggregated.
    fn complete() -> Self {
        let mut catalog = Self::default();
        catalog.list(vec![]);
        let services = vec![
            service("apps", "v1", Backend::BuiltIn),
            service("metrics.example.com", "v1", aggregated("m-1", Some(true))),
        ];
        catalog.services_listed(services, &mut ChangedTypes::default());
        catalog.discover(response(&[apps(), metrics()]));
        catalog
    }

    fn list(&mut self, crds: Vec<Crd>) -> ChangedTypes {
        let mut touched = ChangedTypes::default();
        self.crds_listed(crds, &mut touched);
        touched
    }

    fn apply(&mut self, crd: CrdBuilder) -> ChangedTypes {
        let mut touched = ChangedTypes::default();
        self.crd_applied(crd.build(), &mut touched);
        touched
    }

    fn delete(&mut self, crd: CrdBuilder) {
        self.crd_deleted(&crd.build(), &mut ChangedTypes::default());
    }

    fn discover(&mut self, response: DiscoveryResponse) {
        self.discover_at(response, 0);
    }

    /// Applies a response `seconds` after a fixed instant.
    fn discover_at(&mut self, response: DiscoveryResponse, seconds: u64) {
        let touched = &mut ChangedTypes::default();
        self.answered(response, DiscoveryScope::Watching, arrival(seconds), touched);
    }

    /// Applies a response twice, a period apart, so that it proves all that it omits gone.
    fn settle(&mut self, response: DiscoveryResponse) {
        self.discover_at(response.clone(), 0);
        self.discover_at(response, PERIOD.as_secs());
    }

    /// Applies a response in static mode, `seconds` after a fixed instant.
    fn poll(&mut self, response: DiscoveryResponse, seconds: u64) -> ChangedTypes {
        let mut touched = ChangedTypes::default();
        self.answered(response, DiscoveryScope::Static, arrival(seconds), &mut touched);
        touched
    }

    /// Lists CRDs and opens their watch, which ends static mode.
    fn read_again(&mut self, crds: Vec<Crd>) {
        self.list(crds);
        self.crds_watched(&mut ChangedTypes::default());
    }

    fn serve(&mut self, service: ApiServiceHeader) -> bool {
        self.service_applied(service, &mut ChangedTypes::default())
    }

    fn word(&self, type_ref: &TypeRef) -> &'static str {
        self.status(type_ref).state.word()
    }

    fn identity(&self, type_ref: &TypeRef) -> TypeIdentity {
        self.status(type_ref).served.unwrap().identity.clone()
    }

    #[track_caller]
    fn installing(&self, type_ref: &TypeRef) -> InstallingReason {
        let state = self.status(type_ref).state;
        let TypeState::Installing(reason) = state else {
            panic!("{type_ref} is {state:?}");
        };
        reason
    }

    #[track_caller]
    fn check_unconfirmed(&self, type_ref: &TypeRef, last: TypeState) {
        assert_eq!(self.status(type_ref).state, TypeState::Unknown(Some(Box::new(last))));
    }
}

#[test]
fn nothing_is_known_before_the_first_list() {
    let mut catalog = Catalog::default();
    assert_eq!(catalog.status(&widgets()), TypeJudgement::unknown());

    catalog.apply(crd("gadgets", "Gadget"));

    assert_eq!(catalog.status(&widgets()), TypeJudgement::unknown());
    assert_eq!(catalog.word(&TypeRef::kind("example.com", "v1", "Gadget")), SERVED);
}

#[test]
fn absence_needs_the_crds_and_the_server_of_the_group() {
    let mut catalog = Catalog::default();

    catalog.list(vec![]);
    assert_eq!(catalog.word(&widgets()), UNKNOWN);

    catalog.services_listed(vec![], &mut ChangedTypes::default());
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn any_version_is_the_best_one_that_is_served() {
    let mut catalog = Catalog::complete();
    let any = widgets().any_version();

    catalog.apply(crd("widgets", "Widget").versions(&[
        ("v1alpha1", true),
        ("v2beta1", true),
        ("v1", true),
        ("v3", false),
    ]));
    assert_eq!(&*catalog.identity(&any).version, "v1");

    catalog.apply(crd("widgets", "Widget").versions(&[("v1alpha1", true), ("v2beta1", true)]));
    assert_eq!(&*catalog.identity(&any).version, "v2beta1");

    catalog.apply(crd("widgets", "Widget").versions(&[("v1", false)]));
    assert_eq!(catalog.installing(&any), InstallingReason::VersionNotServed { served: vec![] });
}

#[test]
fn a_subscriber_keeps_its_version_until_that_is_proven_gone() {
    let mut catalog = Catalog::complete();
    let any = widgets().any_version();
    catalog.apply(crd("widgets", "Widget").versions(&[("v1", true)]));
    let bound = catalog.identity(&any);
    let version = |catalog: &Catalog| {
        let judgement = catalog.status_after(&any, Some(&bound));
        judgement.served.map(|served| served.identity.version.to_string())
    };

    catalog.apply(crd("widgets", "Widget").versions(&[("v1", true), ("v2", true)]));
    assert_eq!(version(&catalog).as_deref(), Some("v1"));

    catalog.apply(crd("widgets", "Widget").versions(&[("v1", false), ("v2", true)]));
    assert_eq!(version(&catalog).as_deref(), Some("v2"));

    catalog.apply(crd("widgets", "Widget").uid("uid-2").versions(&[("v1", true), ("v2", true)]));
    assert_eq!(version(&catalog).as_deref(), Some("v2"), "another type");
}

#[test]
fn a_subscriber_of_an_unproven_version_moves_to_no_other() {
    let any = widgets().any_version();
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget").versions(&[("v1", true)]));
    let bound = catalog.identity(&any);

    let judgement = Catalog::default().status_after(&any, Some(&bound));

    assert_eq!(judgement, TypeJudgement::unknown());
}

#[test]
fn a_header_takes_less_than_two_kilobytes() {
    let versions = [("v1alpha1", true), ("v1beta1", true), ("v1", true), ("v2beta1", true)];
    let header = crd("widgets", "Widget").versions(&versions).build();

    // An `Arc<str>` has two counters.
    let text = |text: &str| text.len() + 2 * size_of::<usize>();
    let names = |names: &KindNames| text(&names.kind) + text(&names.list_kind);
    let heap = text(&header.group)
        + text(&header.plural)
        + text(&header.uid)
        + names(&header.wanted)
        + header.accepted.as_ref().map_or(0, names)
        + header.versions.capacity() * size_of::<CrdVersion>()
        + header.versions.iter().map(|version| text(&version.name)).sum::<usize>();
    assert!(size_of::<Crd>() + heap < 2048);
}
