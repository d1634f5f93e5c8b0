//! The judgements of the catalog, case by case.

mod laws;

use serde_json::{Value, json};

use super::{
    super::{
        InstallingReason, TypeState,
        crd::{CrdVersion, Names},
        watch::Watched,
    },
    *,
};
use crate::kind::{Scope, TypeIdentity, TypeRef};

const SERVED: &str = "Served";
const ABSENT: &str = "Absent";
const TERMINATING: &str = "Terminating";
const UNKNOWN: &str = "Unknown";

/// A CRD of `example.com`, as the server writes it.
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
        Crd::slim(serde_json::from_value(self.0).unwrap())
    }
}

fn service(group: &str, version: &str, backend: Backend) -> ApiService {
    ApiService { group: group.into(), version: version.into(), backend }
}

fn aggregated(uid: &str, available: Option<bool>) -> Backend {
    Backend::Aggregated { uid: uid.into(), service: "default/metrics:443".into(), available }
}

fn resource(plural: &str, kind: &str) -> Resource {
    Resource {
        plural: plural.into(),
        kind: kind.into(),
        scope: Scope::Namespaced,
        watchable: true,
        subresources: Default::default(),
    }
}

/// A complete answer: group, version, resources; none is stale.
fn answer(versions: &[(&str, &str, Option<&[Resource]>)]) -> Answer {
    Answer {
        complete: true,
        versions: versions
            .iter()
            .map(|(group, version, resources)| AnsweredVersion {
                group: (*group).into(),
                version: (*version).into(),
                resources: resources.map(<[Resource]>::to_vec),
            })
            .collect(),
    }
}

fn apps() -> (&'static str, &'static str, Option<&'static [Resource]>) {
    ("apps", "v1", Some(Box::leak(Box::new([resource("deployments", "Deployment")]))))
}

fn metrics() -> (&'static str, &'static str, Option<&'static [Resource]>) {
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

impl Catalog {
    /// Everything was read once: `apps` is built in, `metrics.example.com` is aggregated.
    fn complete() -> Self {
        let mut catalog = Self::default();
        catalog.list(vec![]);
        let services = vec![
            service("apps", "v1", Backend::BuiltIn),
            service("metrics.example.com", "v1", aggregated("m-1", Some(true))),
        ];
        catalog.services_listed(services, &mut Touched::default());
        catalog.hear(answer(&[apps(), metrics()]));
        catalog
    }

    fn list(&mut self, crds: Vec<Crd>) -> Touched {
        let mut touched = Touched::default();
        self.crds_listed(crds, &mut touched);
        touched
    }

    fn apply(&mut self, crd: CrdBuilder) -> Touched {
        let mut touched = Touched::default();
        self.crd_applied(crd.build(), &mut touched);
        touched
    }

    fn delete(&mut self, crd: CrdBuilder) {
        self.crd_deleted(&crd.build(), &mut Touched::default());
    }

    fn hear(&mut self, answer: Answer) {
        self.answered(answer, true, &mut Touched::default());
    }

    fn serve(&mut self, service: ApiService) -> bool {
        self.service_applied(service, &mut Touched::default())
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
    fn check_doubted(&self, type_ref: &TypeRef, last: TypeState) {
        assert_eq!(self.status(type_ref).state, TypeState::Unknown(Some(Box::new(last))));
    }
}

#[test]
fn nothing_is_known_before_the_first_list() {
    let mut catalog = Catalog::default();
    assert_eq!(catalog.status(&widgets()), Judgement::unknown());

    catalog.apply(crd("gadgets", "Gadget"));

    assert_eq!(catalog.status(&widgets()), Judgement::unknown());
    assert_eq!(catalog.word(&TypeRef::kind("example.com", "v1", "Gadget")), SERVED);
}

#[test]
fn absence_needs_the_crds_and_the_knowledge_of_who_serves_the_group() {
    let mut catalog = Catalog::default();

    catalog.list(vec![]);
    assert_eq!(catalog.word(&widgets()), UNKNOWN);

    catalog.services_listed(vec![], &mut Touched::default());
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn a_crd_is_judged_by_its_conditions_and_versions() {
    let mut catalog = Catalog::complete();
    let conditions = "/status/conditions";
    let refused = json!([
        { "type": "NamesAccepted", "status": "False", "reason": "Conflict", "message": "taken" },
        { "type": "Established", "status": "False", "reason": "NotAccepted", "message": "no" }]);
    let broken = json!([{ "type": "NamesAccepted", "status": "True" },
        { "type": "Established", "status": "False", "reason": "InvalidCABundle" }]);

    catalog.apply(crd("widgets", "Widget").new_born());
    assert!(matches!(catalog.installing(&widgets()), InstallingReason::NotEstablished(_)));

    catalog.apply(crd("widgets", "Widget").set(conditions, refused));
    assert_eq!(catalog.installing(&widgets()), InstallingReason::NamesNotAccepted("taken".into()));

    catalog.apply(crd("widgets", "Widget").set(conditions, broken));
    assert_eq!(
        catalog.installing(&widgets()),
        InstallingReason::NotEstablished("InvalidCABundle".into())
    );

    catalog.apply(crd("widgets", "Widget").versions(&[("v1beta1", true), ("v1", false)]));
    assert_eq!(
        catalog.installing(&widgets()),
        InstallingReason::VersionNotServed { served: vec!["v1beta1".into()] }
    );

    catalog.apply(crd("widgets", "Widget"));
    assert_eq!(catalog.word(&widgets()), SERVED);

    catalog.apply(crd("widgets", "Widget").terminating());
    assert_eq!(catalog.word(&widgets()), TERMINATING);
    assert!(catalog.status(&widgets()).served.is_some());

    catalog.delete(crd("widgets", "Widget"));
    assert_eq!(catalog.status(&widgets()), Judgement::absent());
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
fn a_crd_that_was_recreated_has_another_identity() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget"));
    let old = catalog.identity(&widgets());

    catalog.delete(crd("widgets", "Widget"));
    catalog.apply(crd("widgets", "Widget").uid("uid-2").set("/spec/scope", json!("Cluster")));

    let new = catalog.identity(&widgets());
    assert_eq!((old.scope, new.scope), (Scope::Namespaced, Scope::Cluster));
    assert_eq!((old.uid.as_deref(), new.uid.as_deref()), (Some("uid-1"), Some("uid-2")));
}

#[test]
fn a_list_finds_the_deletions_that_were_missed() {
    let mut catalog = Catalog::complete();
    catalog.list(vec![crd("widgets", "Widget").build(), crd("gadgets", "Gadget").build()]);

    let touched = catalog.list(vec![crd("gadgets", "Gadget").build()]);

    assert_eq!(catalog.word(&widgets()), ABSENT);
    assert_eq!(touched.types.len(), 1);
    assert!(!touched.all);
}

#[test]
fn churn_of_metadata_and_schemas_touches_nothing() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget"));

    let touched = catalog.apply(
        crd("widgets", "Widget")
            .set("/metadata/resourceVersion", json!("99"))
            .set("/metadata/labels", json!({ "a": "b" }))
            .set("/spec/versions/0/schema", json!({ "openAPIV3Schema": {} }))
            .set("/spec/versions/0/additionalPrinterColumns", json!([])),
    );

    assert!(touched.is_empty());
}

#[test]
fn a_new_subresource_changes_what_is_served_but_not_the_identity() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget").set("/spec/versions/0/subresources", json!({})));
    let old = catalog.status(&widgets()).served.unwrap();

    catalog.apply(crd("widgets", "Widget"));

    let new = catalog.status(&widgets()).served.unwrap();
    assert_eq!(old.identity, new.identity);
    assert_eq!((old.subresources.status, new.subresources.status), (false, true));
}

#[test]
fn of_two_crds_that_want_one_kind_the_one_that_holds_it_is_meant() {
    let mut catalog = Catalog::complete();
    let by_kind = TypeRef::kind("example.com", "v1", "Widget");
    catalog.apply(crd("widgets", "Widget"));

    catalog.apply(crd("aaa", "Widget").set("/status/acceptedNames/kind", json!("")).set(
        "/status/conditions",
        json!([{ "type": "NamesAccepted", "status": "False", "message": "Widget is taken" }]),
    ));
    assert_eq!(&*catalog.identity(&by_kind).plural, "widgets");

    catalog.delete(crd("widgets", "Widget"));
    assert_eq!(
        catalog.installing(&by_kind),
        InstallingReason::NamesNotAccepted("Widget is taken".into())
    );
}

#[test]
fn a_kind_that_is_not_accepted_yet_leaves_the_old_one_served() {
    let mut catalog = Catalog::complete();

    catalog.apply(crd("widgets", "Gizmo").set("/status/acceptedNames/kind", json!("Widget")).set(
        "/status/conditions/0",
        json!({ "type": "NamesAccepted", "status": "False", "message": "Gizmo is taken" }),
    ));

    assert_eq!(catalog.word(&TypeRef::kind("example.com", "v1", "Widget")), SERVED);
    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(
        catalog.installing(&TypeRef::kind("example.com", "v1", "Gizmo")),
        InstallingReason::NamesNotAccepted("Gizmo is taken".into())
    );
}

#[test]
fn another_plural_of_the_same_kind_moves_the_kind() {
    let mut catalog = Catalog::complete();
    let by_kind = TypeRef::kind("example.com", "v1", "Widget");
    catalog.apply(crd("widgets", "Widget"));

    catalog.delete(crd("widgets", "Widget"));
    catalog.apply(crd("widgetz", "Widget").uid("uid-2"));

    assert_eq!(catalog.word(&widgets()), ABSENT);
    assert_eq!(&*catalog.identity(&by_kind).plural, "widgetz");
}

#[test]
fn built_in_types_are_unknown_before_the_first_answer() {
    let mut catalog = Catalog::default();
    catalog.list(vec![]);
    let services = vec![service("apps", "v1", Backend::BuiltIn)];
    catalog.services_listed(services, &mut Touched::default());
    assert_eq!(catalog.status(&deployments()), Judgement::unknown());

    catalog.hear(answer(&[apps()]));

    assert_eq!(catalog.word(&deployments()), SERVED);
    assert_eq!(catalog.identity(&deployments()).uid, None);
    assert_eq!(catalog.word(&TypeRef::resource("apps", "v1", "nothings")), ABSENT);
    assert_eq!(catalog.word(&TypeRef::resource("apps", "v2", "deployments")), ABSENT);
}

#[test]
fn an_aggregated_type_has_the_uid_of_its_api_service_whatever_is_read_first() {
    for services_first in [true, false] {
        let mut catalog = Catalog::default();
        catalog.list(vec![]);
        let services = vec![service("metrics.example.com", "v1", aggregated("m-1", None))];

        if services_first {
            catalog.services_listed(services, &mut Touched::default());
            catalog.hear(answer(&[metrics()]));
        } else {
            catalog.hear(answer(&[metrics()]));
            assert_eq!(catalog.status(&loads()), Judgement::unknown());
            let ask = catalog.services_listed(services, &mut Touched::default());
            assert!(!ask);
        }

        assert_eq!(catalog.word(&loads()), SERVED);
        assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-1"));
    }
}

#[test]
fn partial_empty_and_stale_answers_remove_nothing() {
    let partial = Answer { complete: false, ..answer(&[apps()]) };
    let empty = Answer::default();
    let stale = answer(&[apps(), ("metrics.example.com", "v1", None)]);
    let forgetful = answer(&[apps()]);
    for (given, state) in [
        (partial, SERVED),
        (empty, SERVED),
        (stale, UNKNOWN),
        // Its APIService is still there: the server has only just started.
        (forgetful, UNKNOWN),
    ] {
        let mut catalog = Catalog::complete();

        catalog.hear(given);

        assert_eq!(catalog.word(&loads()), state);
        assert!(catalog.status(&loads()).served.is_some());
        assert_eq!(catalog.word(&deployments()), SERVED);
    }
}

#[test]
fn a_stale_group_keeps_its_last_state_until_it_is_current() {
    let mut catalog = Catalog::complete();

    catalog.hear(answer(&[apps(), ("metrics.example.com", "v1", None)]));
    catalog.check_doubted(&loads(), TypeState::Served);
    assert_eq!(catalog.unsettled(), Unsettled::Silent);

    catalog.hear(answer(&[apps(), metrics()]));
    assert_eq!(catalog.word(&loads()), SERVED);
    assert_eq!(catalog.unsettled(), Unsettled::Nothing);

    catalog.hear(answer(&[apps(), ("metrics.example.com", "v1", Some(&[]))]));
    assert_eq!(catalog.word(&loads()), ABSENT);
}

#[test]
fn an_api_service_that_is_down_makes_its_types_unknown() {
    let mut catalog = Catalog::complete();

    let ask = catalog.serve(service("metrics.example.com", "v1", aggregated("m-1", Some(false))));
    assert!(ask);
    catalog.check_doubted(&loads(), TypeState::Served);
    // The server still answers from what it has: its own condition knows better.
    catalog.hear(answer(&[apps(), metrics()]));
    catalog.check_doubted(&loads(), TypeState::Served);
    assert_eq!(catalog.unsettled(), Unsettled::Announced);

    catalog.serve(service("metrics.example.com", "v1", aggregated("m-1", Some(true))));
    assert_eq!(catalog.unsettled(), Unsettled::Silent);
    catalog.hear(answer(&[apps(), metrics()]));
    assert_eq!(catalog.word(&loads()), SERVED);
}

#[test]
fn a_removed_api_service_is_gone_when_discovery_agrees() {
    let mut catalog = Catalog::complete();

    let ask = catalog.service_deleted(
        &"metrics.example.com".into(),
        &"v1".into(),
        &mut Touched::default(),
    );
    assert!(ask);
    catalog.check_doubted(&loads(), TypeState::Served);
    assert_eq!(catalog.unsettled(), Unsettled::Silent);

    catalog.hear(answer(&[apps(), metrics()]));
    catalog.check_doubted(&loads(), TypeState::Served);

    catalog.hear(answer(&[apps()]));
    assert_eq!(catalog.word(&loads()), ABSENT);
    assert_eq!(catalog.unsettled(), Unsettled::Nothing);
    assert!(!catalog.types().iter().any(|name| name.group == "metrics.example.com"));
}

#[test]
fn a_recreated_api_service_has_another_identity_once_discovery_is_current() {
    let mut catalog = Catalog::complete();

    catalog.serve(service("metrics.example.com", "v1", aggregated("m-2", Some(true))));
    catalog.check_doubted(&loads(), TypeState::Served);
    assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-1"));

    catalog.hear(answer(&[apps(), metrics()]));
    assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-2"));
}

#[test]
fn a_new_api_service_is_unknown_until_discovery_names_it() {
    let mut catalog = Catalog::complete();
    let new = TypeRef::resource("new.example.com", "v1", "things");
    assert_eq!(catalog.word(&new), ABSENT);

    assert!(catalog.serve(service("new.example.com", "v1", aggregated("n-1", None))));

    assert_eq!(catalog.status(&new), Judgement::unknown());
    assert_eq!(catalog.word(&new.clone().any_version()), UNKNOWN);
}

#[test]
fn an_api_service_of_crds_asks_for_nothing() {
    let mut catalog = Catalog::complete();

    assert!(!catalog.serve(service("example.com", "v1", Backend::Crds)));

    assert_eq!(catalog.unsettled(), Unsettled::Nothing);
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn an_old_answer_does_not_bring_back_what_a_crd_served() {
    let late = || {
        answer(&[apps(), metrics(), ("example.com", "v1", Some(&[resource("widgets", "Widget")]))])
    };
    let by_kind = TypeRef::kind("example.com", "v1", "Widget");
    for services in ["watched", "refused", "not yet"] {
        let mut catalog =
            if services == "watched" { Catalog::complete() } else { Catalog::default() };
        if services == "refused" {
            catalog.services_refused(&mut Touched::default());
        }
        catalog.list(vec![crd("widgets", "Widget").build()]);
        catalog.hear(late());
        assert_eq!(catalog.identity(&widgets()).uid.as_deref(), Some("uid-1"));

        catalog.delete(crd("widgets", "Widget"));
        for type_ref in [widgets(), by_kind.clone(), widgets().any_version()] {
            assert_eq!(catalog.word(&type_ref), ABSENT, "{services}");
        }
        catalog.hear(late());
        for type_ref in [widgets(), by_kind.clone(), widgets().any_version()] {
            assert_eq!(catalog.word(&type_ref), ABSENT, "{services}");
        }
    }
}

#[test]
fn a_crd_is_not_removed_by_discovery() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget"));

    catalog.hear(answer(&[apps(), metrics()]));
    catalog.hear(answer(&[apps(), metrics(), ("example.com", "v1", Some(&[]))]));

    assert_eq!(catalog.word(&widgets()), SERVED);
}

#[test]
fn without_api_services_a_complete_answer_tells_what_crds_do_not() {
    let mut catalog = Catalog::default();
    catalog.list(vec![crd("widgets", "Widget").build()]);
    catalog.services_refused(&mut Touched::default());
    assert_eq!(catalog.word(&loads()), UNKNOWN);

    catalog.hear(answer(&[apps(), metrics()]));
    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(catalog.word(&loads()), SERVED);
    assert_eq!(catalog.identity(&loads()).uid, None);

    catalog.hear(Answer { complete: false, ..answer(&[apps()]) });
    assert_eq!(catalog.word(&loads()), SERVED);

    for _ in 1..CONFIRMATIONS {
        catalog.hear(answer(&[apps()]));
        catalog.check_doubted(&loads(), TypeState::Served);
        assert_eq!(catalog.unsettled(), Unsettled::Silent);
    }
    catalog.hear(answer(&[apps()]));
    assert_eq!(catalog.word(&loads()), ABSENT);
    assert_eq!(catalog.unsettled(), Unsettled::Nothing);
}

#[test]
fn in_static_mode_discovery_tells_everything() {
    let mut catalog = Catalog::default();
    catalog.services_refused(&mut Touched::default());
    let with = answer(&[apps(), ("example.com", "v1", Some(&[resource("widgets", "Widget")]))]);
    // It may be of a CRD, which would tell its uid.
    catalog.hear(with.clone());
    assert_eq!(catalog.status(&widgets()), Judgement::unknown());

    catalog.answered(with, false, &mut Touched::default());
    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(catalog.identity(&widgets()).uid, None);
    assert!(catalog.is_discovered(&catalog.identity(&widgets())));

    catalog.answered(answer(&[apps()]), false, &mut Touched::default());
    catalog.check_doubted(&widgets(), TypeState::Served);
    for _ in 1..CONFIRMATIONS {
        catalog.answered(answer(&[apps()]), false, &mut Touched::default());
    }
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn in_static_mode_an_api_service_that_stands_keeps_its_types() {
    let mut catalog = Catalog::default();
    let services =
        vec![service("apps", "v1", Backend::BuiltIn), service("example.com", "v1", Backend::Crds)];
    catalog.services_listed(services, &mut Touched::default());
    let listed = [resource("widgets", "Widget")];
    let with = [apps(), ("example.com", "v1", Some(listed.as_slice()))];
    catalog.answered(answer(&with), false, &mut Touched::default());

    for _ in 0..20 {
        catalog.answered(answer(&[apps()]), false, &mut Touched::default());
    }
    catalog.check_doubted(&widgets(), TypeState::Served);

    catalog.service_deleted(&"example.com".into(), &"v1".into(), &mut Touched::default());
    catalog.answered(answer(&[apps()]), false, &mut Touched::default());
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn losing_the_right_to_watch_crds_changes_no_identity() {
    let mut catalog = Catalog::complete();
    catalog.list(vec![crd("widgets", "Widget").build()]);
    let before = catalog.identity(&widgets());
    let versions = [apps(), metrics(), ("example.com", "v1", None)];
    let listed = [resource("widgets", "Widget")];
    let with = [apps(), metrics(), ("example.com", "v1", Some(listed.as_slice()))];

    catalog.answered(Answer { complete: false, ..answer(&[]) }, false, &mut Touched::default());
    assert_eq!(catalog.identity(&widgets()), before);
    catalog.answered(answer(&versions), false, &mut Touched::default());
    assert_eq!(catalog.status(&widgets()), Judgement::unknown());
    catalog.answered(answer(&with), false, &mut Touched::default());
    assert_eq!(catalog.identity(&widgets()), before);

    catalog.list(vec![crd("widgets", "Widget").build()]);
    catalog.crds_watched(&mut Touched::default());
    assert_eq!(catalog.identity(&widgets()), before);
    assert_eq!(catalog.word(&deployments()), SERVED);
}

#[test]
fn a_type_that_cannot_be_watched_says_so() {
    let mut catalog = Catalog::complete();
    let review = Resource { watchable: false, ..resource("reviews", "Review") };

    catalog.hear(answer(&[("apps", "v1", Some(&[review])), metrics()]));

    let reviews = TypeRef::kind("apps", "v1", "Review");
    assert_eq!(catalog.installing(&reviews), InstallingReason::NotWatchable);
}

#[test]
fn a_header_takes_less_than_two_kilobytes() {
    let versions = [("v1alpha1", true), ("v1beta1", true), ("v1", true), ("v2beta1", true)];
    let header = crd("widgets", "Widget").versions(&versions).build();

    // An `Arc<str>` has two counters.
    let text = |text: &str| text.len() + 2 * size_of::<usize>();
    let names = |names: &Names| text(&names.kind) + text(&names.list_kind);
    let heap = text(&header.group)
        + text(&header.plural)
        + text(&header.uid)
        + names(&header.wanted)
        + header.accepted.as_ref().map_or(0, names)
        + header.versions.capacity() * size_of::<CrdVersion>()
        + header.versions.iter().map(|version| text(&version.name)).sum::<usize>();
    assert!(size_of::<Crd>() + heap < 2048);
}
