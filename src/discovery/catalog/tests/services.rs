//! APIServices, and the judgements while they cannot be read.

use super::*;
use crate::kind::VersionOrder;

#[test]
fn an_aggregated_type_has_the_uid_of_its_api_service_whatever_is_read_first() {
    for services_first in [true, false] {
        let mut catalog = Catalog::default();
        catalog.list(vec![]);
        let services = vec![service("metrics.example.com", "v1", aggregated("m-1", None))];

        if services_first {
            catalog.services_listed(services, &mut ChangedTypes::default());
            catalog.discover(response(&[metrics()]));
        } else {
            catalog.discover(response(&[metrics()]));
            assert_eq!(catalog.status(&loads()), TypeJudgement::unknown());
            let refresh = catalog.services_listed(services, &mut ChangedTypes::default());
            assert!(!refresh);
        }

        assert_eq!(catalog.word(&loads()), SERVED);
        assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-1"));
    }
}

#[test]
fn the_aggregators_own_group_is_served_though_it_has_no_api_service() {
    let own = [resource("apiservices", "APIService")];
    let own = (AGGREGATOR, "v1", Some(&own[..]));
    let type_ref = TypeRef::resource(AGGREGATOR, "v1", "apiservices");
    let services = || vec![service("apps", "v1", Backend::BuiltIn)];
    for services_first in [true, false] {
        let mut catalog = Catalog::default();
        catalog.list(vec![]);

        if services_first {
            catalog.services_listed(services(), &mut ChangedTypes::default());
            assert_eq!(catalog.status(&type_ref), TypeJudgement::unknown(), "not discovered");
            catalog.discover(response(&[apps(), own]));
        } else {
            catalog.discover(response(&[apps(), own]));
            catalog.services_listed(services(), &mut ChangedTypes::default());
        }

        assert_eq!(catalog.word(&type_ref), SERVED);
        let served = catalog.identity(&type_ref).group_resource();
        assert_eq!(catalog.origin(&served), Origin::BuiltIn);
        assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
        catalog.services_listed(services(), &mut ChangedTypes::default());
        assert_eq!(catalog.word(&type_ref), SERVED, "a repeated list removes nothing");
        catalog.discover(response(&[apps()]));
        catalog.check_unconfirmed(&type_ref, TypeState::Served);
    }
}

#[test]
fn an_api_service_that_is_down_makes_its_types_unknown() {
    let mut catalog = Catalog::complete();

    let refresh =
        catalog.serve(service("metrics.example.com", "v1", aggregated("m-1", Some(false))));
    assert!(refresh);
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    // The server still answers from its cache: the condition is more current.
    catalog.discover(response(&[apps(), metrics()]));
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    assert_eq!(catalog.pending(), PendingDiscovery::EventExpected);

    catalog.serve(service("metrics.example.com", "v1", aggregated("m-1", Some(true))));
    assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);
    catalog.discover(response(&[apps(), metrics()]));
    assert_eq!(catalog.word(&loads()), SERVED);
}

#[test]
fn a_removed_api_service_is_gone_when_discovery_agrees() {
    let mut catalog = Catalog::complete();

    let refresh = catalog.service_deleted(
        &"metrics.example.com".into(),
        &"v1".into(),
        &mut ChangedTypes::default(),
    );
    assert!(refresh);
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);

    catalog.discover(response(&[apps(), metrics()]));
    catalog.check_unconfirmed(&loads(), TypeState::Served);

    catalog.discover(response(&[apps()]));
    assert_eq!(catalog.word(&loads()), ABSENT);
    assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
    assert!(!catalog.types().iter().any(|name| name.group == "metrics.example.com"));
}

#[test]
fn a_recreated_api_service_has_another_identity_once_discovery_is_current() {
    let mut catalog = Catalog::complete();

    catalog.serve(service("metrics.example.com", "v1", aggregated("m-2", Some(true))));
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-1"));

    catalog.discover(response(&[apps(), metrics()]));
    assert_eq!(catalog.identity(&loads()).uid.as_deref(), Some("m-2"));
}

#[test]
fn a_new_api_service_is_unknown_until_discovery_names_it() {
    let mut catalog = Catalog::complete();
    let new = TypeRef::resource("new.example.com", "v1", "things");
    assert_eq!(catalog.word(&new), ABSENT);

    assert!(catalog.serve(service("new.example.com", "v1", aggregated("n-1", None))));

    assert_eq!(catalog.status(&new), TypeJudgement::unknown());
    assert_eq!(catalog.word(&new.clone().any_version()), UNKNOWN);
}

#[test]
fn api_service_of_crds_causes_no_request() {
    let mut catalog = Catalog::complete();

    assert!(!catalog.serve(service("example.com", "v1", Backend::Crds)));

    assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn an_old_response_does_not_bring_back_what_a_crd_served() {
    let late = || {
        response(&[
            apps(),
            metrics(),
            ("example.com", "v1", Some(&[resource("widgets", "Widget")])),
        ])
    };
    let by_kind = TypeRef::kind("example.com", "v1", "Widget");
    for services in ["watched", "refused", "not yet"] {
        let mut catalog =
            if services == "watched" { Catalog::complete() } else { Catalog::default() };
        if services == "refused" {
            catalog.services_refused(&mut ChangedTypes::default());
        }
        catalog.list(vec![crd("widgets", "Widget").build()]);
        catalog.discover(late());
        assert_eq!(catalog.identity(&widgets()).uid.as_deref(), Some("uid-1"));

        catalog.delete(crd("widgets", "Widget"));
        for type_ref in [widgets(), by_kind.clone(), widgets().any_version()] {
            assert_eq!(catalog.word(&type_ref), ABSENT, "{services}");
        }
        catalog.discover(late());
        for type_ref in [widgets(), by_kind.clone(), widgets().any_version()] {
            assert_eq!(catalog.word(&type_ref), ABSENT, "{services}");
        }
    }
}

#[test]
fn without_api_services_discovery_covers_the_types_that_no_crd_serves() {
    let mut catalog = Catalog::default();
    catalog.list(vec![crd("widgets", "Widget").build()]);
    catalog.services_refused(&mut ChangedTypes::default());
    assert_eq!(catalog.word(&loads()), UNKNOWN);

    catalog.discover(response(&[apps(), metrics()]));
    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(catalog.word(&loads()), SERVED);
    assert_eq!(catalog.identity(&loads()).uid, None);

    catalog.discover(DiscoveryResponse { complete: false, ..response(&[apps()]) });
    assert_eq!(catalog.word(&loads()), SERVED);

    for _ in 1..CONFIRMATIONS {
        catalog.discover(response(&[apps()]));
        catalog.check_unconfirmed(&loads(), TypeState::Served);
        assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);
    }
    catalog.discover(response(&[apps()]));
    assert_eq!(catalog.word(&loads()), ABSENT);
    assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
}

#[test]
fn names_of_deleted_crds_are_forgotten_when_no_response_lists_them() {
    let mut catalog = Catalog::default();
    catalog.list(vec![]);
    catalog.services_refused(&mut ChangedTypes::default());
    let listed = [resource("widgets", "Widget")];
    let late = || response(&[apps(), ("example.com", "v1", Some(&listed[..]))]);

    for n in 0..10_000 {
        let name = format!("t{n}");
        catalog.apply(crd(&name, &name));
        catalog.delete(crd(&name, &name));
    }
    catalog.apply(crd("widgets", "Widget"));
    catalog.delete(crd("widgets", "Widget"));
    for _ in 0..CONFIRMATIONS {
        catalog.discover(late());
    }

    assert!(catalog.deleted_crd_names.len() <= 2, "{}", catalog.deleted_crd_names.len());
    assert_eq!(catalog.word(&widgets()), ABSENT, "an old answer still lists it");
}

#[test]
fn versions_are_comparable_where_the_api_server_itself_is_known_to_serve_the_type() {
    let order = |catalog: &Catalog, type_ref: &TypeRef| {
        catalog.status(type_ref).served.map(|served| served.version_order)
    };
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget"));
    assert_eq!(order(&catalog, &deployments()), Some(VersionOrder::Comparable));
    assert_eq!(order(&catalog, &widgets()), Some(VersionOrder::Comparable));
    assert_eq!(order(&catalog, &loads()), Some(VersionOrder::Opaque));
    catalog.service_deleted(
        &"metrics.example.com".into(),
        &"v1".into(),
        &mut ChangedTypes::default(),
    );
    assert_eq!(order(&catalog, &loads()), Some(VersionOrder::Opaque));

    let mut catalog = Catalog::default();
    catalog.list(vec![crd("widgets", "Widget").build()]);
    catalog.services_refused(&mut ChangedTypes::default());
    let core = [resource("pods", "Pod")];
    catalog.discover(response(&[("", "v1", Some(&core[..])), apps(), metrics()]));
    assert_eq!(order(&catalog, &widgets()), Some(VersionOrder::Comparable));
    let pods = TypeRef::resource("", "v1", "pods");
    assert_eq!(order(&catalog, &pods), Some(VersionOrder::Comparable));
    assert_eq!(order(&catalog, &deployments()), Some(VersionOrder::Opaque));
    assert_eq!(order(&catalog, &loads()), Some(VersionOrder::Opaque));
}
