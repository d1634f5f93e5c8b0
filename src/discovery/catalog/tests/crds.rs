//! Judgements of types that CRDs serve.

use super::*;

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
        InstallingReason::InvalidCaBundle("InvalidCABundle".into())
    );
    let held = json!([{ "type": "NamesAccepted", "status": "True" },
        { "type": "Established", "status": "False", "reason": "Installing",
          "message": "the initial names have been accepted" }]);
    catalog.apply(crd("widgets", "Widget").set(conditions, held));
    assert_eq!(
        catalog.installing(&widgets()),
        InstallingReason::NotEstablished("Installing: the initial names have been accepted".into())
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
    assert_eq!(catalog.status(&widgets()), TypeJudgement::absent());
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
fn changes_of_metadata_and_schemas_touch_no_type() {
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
fn kind_that_two_crds_want_means_the_crd_that_holds_it() {
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
fn a_crd_is_not_removed_by_discovery() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("widgets", "Widget"));

    catalog.discover(response(&[apps(), metrics()]));
    catalog.discover(response(&[apps(), metrics(), ("example.com", "v1", Some(&[]))]));

    assert_eq!(catalog.word(&widgets()), SERVED);
}
