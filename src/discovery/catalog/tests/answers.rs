//! What discovery answers, and static mode, in which it says everything.

use super::*;

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
    assert_eq!(catalog.status(&reviews), Judgement::not_watchable());
}
