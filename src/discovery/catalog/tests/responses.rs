//! Discovery responses, and static mode, in which they are the only source.

use super::*;

#[test]
fn built_in_types_are_unknown_before_the_first_response() {
    let mut catalog = Catalog::default();
    catalog.list(vec![]);
    let services = vec![service("apps", "v1", Backend::BuiltIn)];
    catalog.services_listed(services, &mut ChangedTypes::default());
    assert_eq!(catalog.status(&deployments()), TypeJudgement::unknown());

    catalog.discover(response(&[apps()]));

    assert_eq!(catalog.word(&deployments()), SERVED);
    assert_eq!(catalog.identity(&deployments()).uid, None);
    assert_eq!(catalog.word(&TypeRef::resource("apps", "v1", "nothings")), ABSENT);
    assert_eq!(catalog.word(&TypeRef::resource("apps", "v2", "deployments")), ABSENT);
}

#[test]
fn partial_empty_and_stale_responses_remove_nothing() {
    let partial = DiscoveryResponse { complete: false, ..response(&[apps()]) };
    let empty = DiscoveryResponse::default();
    let stale = response(&[apps(), ("metrics.example.com", "v1", None)]);
    let forgetful = response(&[apps()]);
    for (given, state) in [
        (partial, SERVED),
        (empty, SERVED),
        (stale, UNKNOWN),
        // The APIService still exists: the server has only just started.
        (forgetful, UNKNOWN),
    ] {
        let mut catalog = Catalog::complete();

        catalog.discover(given);

        assert_eq!(catalog.word(&loads()), state);
        assert!(catalog.status(&loads()).served.is_some());
        assert_eq!(catalog.word(&deployments()), SERVED);
    }
}

#[test]
fn a_stale_group_keeps_its_last_state_until_it_is_current() {
    let mut catalog = Catalog::complete();

    catalog.discover(response(&[apps(), ("metrics.example.com", "v1", None)]));
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);

    catalog.discover(response(&[apps(), metrics()]));
    assert_eq!(catalog.word(&loads()), SERVED);
    assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
}

#[test]
fn served_resource_is_gone_when_responses_a_period_apart_omit_it() {
    let other = [resource("nodes", "Node")];
    for omitting in [&[][..], &other[..]] {
        let all = [resource("loads", "Load"), resource("nodes", "Node")];
        let with = || response(&[apps(), ("metrics.example.com", "v1", Some(&all[..]))]);
        let without = || response(&[apps(), ("metrics.example.com", "v1", Some(omitting))]);
        let mut catalog = Catalog::complete();

        // The server of the APIService has started, and has not registered its resources.
        catalog.discover_at(without(), 0);
        catalog.check_unconfirmed(&loads(), TypeState::Served);
        assert!(catalog.status(&loads()).served.is_some());
        assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);
        catalog.discover_at(with(), 20);
        assert_eq!(catalog.word(&loads()), SERVED);
        assert_eq!(catalog.pending(), PendingDiscovery::Nothing);

        catalog.discover_at(without(), 40);
        catalog.discover_at(DiscoveryResponse { complete: false, ..without() }, 80);
        catalog.check_unconfirmed(&loads(), TypeState::Served);
        catalog.discover_at(response(&[apps(), ("metrics.example.com", "v1", None)]), 81);
        catalog.check_unconfirmed(&loads(), TypeState::Served);
        // The server may have restarted.
        catalog.discover_at(without(), 82);
        catalog.check_unconfirmed(&loads(), TypeState::Served);
        catalog.discover_at(without(), 112);
        assert_eq!(catalog.word(&loads()), ABSENT);
        assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
    }
}

#[test]
fn type_of_a_group_version_without_resources_is_unknown_for_a_period() {
    let mut catalog = Catalog::default();
    catalog.list(vec![]);
    let services = vec![service("metrics.example.com", "v1", aggregated("m-1", Some(true)))];
    catalog.services_listed(services, &mut ChangedTypes::default());
    let empty = || response(&[("metrics.example.com", "v1", Some(&[]))]);

    catalog.discover_at(empty(), 0);
    catalog.discover_at(empty(), 29);
    assert_eq!(catalog.status(&loads()), TypeJudgement::unknown());
    assert_eq!(catalog.pending(), PendingDiscovery::NoEvent);

    catalog.discover_at(empty(), 30);
    assert_eq!(catalog.word(&loads()), ABSENT);
    assert_eq!(catalog.pending(), PendingDiscovery::Nothing);
}

#[test]
fn in_static_mode_discovery_is_the_only_source() {
    let mut catalog = Catalog::default();
    catalog.services_refused(&mut ChangedTypes::default());
    let with = response(&[apps(), ("example.com", "v1", Some(&[resource("widgets", "Widget")]))]);
    // The type may be a CRD's; its identity would need the uid.
    catalog.discover(with.clone());
    assert_eq!(catalog.status(&widgets()), TypeJudgement::unknown());

    catalog.poll(with, 0);
    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(catalog.identity(&widgets()).uid, None);
    assert!(catalog.is_discovered(&catalog.identity(&widgets())));

    catalog.poll(response(&[apps()]), 1);
    for seconds in 2..31 {
        catalog.poll(response(&[apps()]), seconds);
        catalog.check_unconfirmed(&widgets(), TypeState::Served);
    }
    catalog.poll(response(&[apps()]), 31);
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn in_static_mode_absence_takes_two_complete_responses_a_period_apart() {
    let other = [resource("gadgets", "Gadget")];
    let listed = [resource("gadgets", "Gadget"), resource("widgets", "Widget")];
    let with = || response(&[apps(), metrics(), ("example.com", "v1", Some(&listed[..]))]);
    let without_group = || response(&[apps(), metrics()]);
    let without_type = || response(&[apps(), metrics(), ("example.com", "v1", Some(&other[..]))]);
    for without in [&without_group as &dyn Fn() -> DiscoveryResponse, &without_type] {
        let mut catalog = Catalog::complete();
        let odd = crd("widgets", "Widget").list_kind("WidgetArray").versions(&[("v1", true)]);
        catalog.list(vec![odd.build()]);
        let before = catalog.status(&widgets()).served;

        // The first responses after the permission is lost.
        catalog.poll(without(), 0);
        catalog.check_unconfirmed(&widgets(), TypeState::Served);
        assert_eq!(catalog.status(&widgets()).served, before);
        catalog.poll(DiscoveryResponse { complete: false, ..without() }, 40);
        catalog.check_unconfirmed(&widgets(), TypeState::Served);
        catalog.poll(with(), 41);
        assert_eq!(catalog.status(&widgets()).served, before);
        assert_eq!(catalog.word(&widgets()), SERVED);

        catalog.poll(without(), 50);
        catalog.poll(without(), 79);
        catalog.check_unconfirmed(&widgets(), TypeState::Served);
        assert_eq!(catalog.status(&widgets()).served, before);
        catalog.poll(without(), 80);
        assert_eq!(catalog.word(&widgets()), ABSENT);

        // A type that returns under this name may be another one.
        catalog.poll(with(), 81);
        assert_eq!(catalog.identity(&widgets()).uid, None);
    }
}

#[test]
fn in_static_mode_a_type_that_no_response_has_named_is_unknown_for_a_period() {
    let mut catalog = Catalog::default();
    catalog.services_refused(&mut ChangedTypes::default());

    catalog.poll(response(&[apps()]), 0);
    assert_eq!(catalog.status(&widgets()), TypeJudgement::unknown());
    catalog.poll(response(&[apps()]), 29);
    assert_eq!(catalog.status(&widgets()), TypeJudgement::unknown());

    assert!(catalog.poll(response(&[apps()]), 30).all);
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn in_static_mode_api_services_that_are_read_late_take_nothing_away() {
    let listed = [resource("widgets", "Widget")];
    let with = || response(&[apps(), ("example.com", "v1", Some(&listed[..]))]);
    let mut catalog = Catalog::default();
    catalog.services_refused(&mut ChangedTypes::default());
    catalog.poll(with(), 0);
    catalog.poll(with(), 30);

    let services =
        vec![service("apps", "v1", Backend::BuiltIn), service("example.com", "v1", Backend::Crds)];
    catalog.services_listed(services, &mut ChangedTypes::default());

    assert_eq!(catalog.word(&widgets()), SERVED);
    assert_eq!(catalog.word(&deployments()), SERVED);
}

#[test]
fn in_static_mode_another_scope_is_another_crd() {
    let mut catalog = Catalog::complete();
    catalog.list(vec![crd("widgets", "Widget").build()]);
    let cluster = [ServedResource { scope: Scope::Cluster, ..resource("widgets", "Widget") }];

    catalog.poll(response(&[apps(), metrics(), ("example.com", "v1", Some(&cluster[..]))]), 0);

    assert_eq!(catalog.identity(&widgets()).uid, None);
}

#[test]
fn in_static_mode_an_old_response_about_an_aggregated_type_changes_no_identity() {
    let mut catalog = Catalog::complete();
    let before = catalog.identity(&loads());
    catalog.poll(response(&[apps(), metrics()]), 0);

    catalog.service_deleted(
        &"metrics.example.com".into(),
        &"v1".into(),
        &mut ChangedTypes::default(),
    );
    catalog.poll(response(&[apps(), metrics()]), 1);
    catalog.check_unconfirmed(&loads(), TypeState::Served);
    assert_eq!(catalog.identity(&loads()), before);

    catalog.poll(response(&[apps()]), 2);
    catalog.poll(response(&[apps()]), 40);
    assert_eq!(catalog.word(&loads()), ABSENT);
}

#[test]
fn a_crd_that_static_mode_found_first_has_no_uid_until_it_is_another_one() {
    let listed = [resource("widgets", "Widget")];
    let with = || response(&[apps(), ("example.com", "v1", Some(&listed[..]))]);
    let mut catalog = Catalog::default();
    let services =
        vec![service("apps", "v1", Backend::BuiltIn), service("example.com", "v1", Backend::Crds)];
    catalog.services_listed(services, &mut ChangedTypes::default());
    catalog.poll(with(), 0);
    let before = catalog.status(&widgets()).served;

    let same = || crd("widgets", "Widget").list_kind("WidgetArray").versions(&[("v1", true)]);
    catalog.read_again(vec![same().build()]);
    assert_eq!(catalog.status(&widgets()).served, before);
    assert!(!catalog.is_discovered(&catalog.identity(&widgets())), "the CRD watch reports its end");
    catalog.poll(with(), 60);
    assert_eq!(catalog.status(&widgets()).served, before);

    catalog.read_again(vec![same().uid("uid-2").build()]);
    assert_eq!(catalog.identity(&widgets()).uid.as_deref(), Some("uid-2"));
    assert!(catalog.published_without_uid.is_empty());
}

#[test]
fn in_static_mode_an_api_service_that_stands_keeps_its_types() {
    let mut catalog = Catalog::default();
    let services =
        vec![service("apps", "v1", Backend::BuiltIn), service("example.com", "v1", Backend::Crds)];
    catalog.services_listed(services, &mut ChangedTypes::default());
    let listed = [resource("widgets", "Widget")];
    let with = [apps(), ("example.com", "v1", Some(listed.as_slice()))];
    catalog.poll(response(&with), 0);

    for minutes in 1..20 {
        catalog.poll(response(&[apps()]), minutes * 60);
    }
    catalog.check_unconfirmed(&widgets(), TypeState::Served);

    catalog.service_deleted(&"example.com".into(), &"v1".into(), &mut ChangedTypes::default());
    catalog.poll(response(&[apps()]), 20 * 60);
    assert_eq!(catalog.word(&widgets()), ABSENT);
}

#[test]
fn losing_the_right_to_watch_crds_changes_no_identity() {
    let mut catalog = Catalog::complete();
    let odd = || crd("widgets", "Widget").list_kind("WidgetArray").versions(&[("v1", true)]);
    catalog.list(vec![odd().build()]);
    let before = catalog.status(&widgets()).served;
    let versions = [apps(), metrics(), ("example.com", "v1", None)];
    let listed = [resource("widgets", "Widget")];
    let with = [apps(), metrics(), ("example.com", "v1", Some(listed.as_slice()))];

    catalog.poll(DiscoveryResponse { complete: false, ..response(&[]) }, 0);
    assert_eq!(catalog.status(&widgets()).served, before);
    catalog.poll(response(&versions), 1);
    catalog.check_unconfirmed(&widgets(), TypeState::Served);
    assert_eq!(catalog.status(&widgets()).served, before);
    catalog.poll(response(&with), 2);
    assert_eq!(catalog.status(&widgets()).served, before);

    catalog.read_again(vec![odd().build()]);
    assert_eq!(catalog.status(&widgets()).served, before);
    assert_eq!(catalog.word(&deployments()), SERVED);
}

#[test]
fn a_type_that_cannot_be_listed_says_so() {
    let mut catalog = Catalog::complete();
    let review = ServedResource { reads: ReadVerbs::None, ..resource("reviews", "Review") };

    catalog.discover(response(&[("apps", "v1", Some(&[review])), metrics()]));

    let reviews = TypeRef::kind("apps", "v1", "Review");
    assert_eq!(catalog.status(&reviews), TypeJudgement::not_watchable());
}

#[test]
fn a_type_that_can_be_listed_and_not_watched_is_polled() {
    let mut catalog = Catalog::complete();
    let usage = ServedResource { reads: ReadVerbs::List, ..resource("usages", "Usage") };

    catalog.discover(response(&[("apps", "v1", Some(std::slice::from_ref(&usage))), metrics()]));

    let usages = TypeRef::kind("apps", "v1", "Usage");
    let TypeJudgement { state, served } = catalog.status(&usages);
    assert_eq!(state, TypeState::Polled);
    assert!(served.clone().is_some_and(|served| served.polled));

    let watched = ServedResource { reads: ReadVerbs::ListAndWatch, ..usage };
    catalog.discover(response(&[("apps", "v1", Some(&[watched])), metrics()]));

    let TypeJudgement { state, served: now } = catalog.status(&usages);
    assert_eq!(state, TypeState::Served);
    assert_eq!(now.map(|now| now.identity.clone()), served.map(|it| it.identity.clone()));
}
