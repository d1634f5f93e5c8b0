//! Scopes in which a kind was served.

use super::*;
use crate::kind::ServedType;

impl Catalog {
    /// Returns whether the kind of a type was served in another scope.
    fn had_other_scope(&self, type_ref: &TypeRef) -> bool {
        let served: Arc<ServedType> = self.status(type_ref).served.unwrap();
        self.has_other_scope(&served)
    }
}

fn cluster_scoped() -> CrdBuilder {
    crd("widgets", "Widget").set("/spec/scope", json!("Cluster"))
}

#[test]
fn kind_of_a_deleted_crd_keeps_its_scope() {
    let mut catalog = Catalog::complete();
    catalog.apply(cluster_scoped());
    assert!(!catalog.had_other_scope(&widgets()));
    catalog.delete(cluster_scoped());

    catalog.apply(crd("widgets", "Widget").uid("uid-2"));

    assert!(catalog.had_other_scope(&widgets()));
    catalog.delete(crd("widgets", "Widget").uid("uid-2"));
    catalog.apply(cluster_scoped().uid("uid-3"));
    assert!(catalog.had_other_scope(&widgets()), "the first scope is back");
}

#[test]
fn kind_that_returns_under_another_plural_keeps_its_scope() {
    let mut catalog = Catalog::complete();
    catalog.apply(crd("gizmos", "Widget").set("/spec/scope", json!("Cluster")));
    catalog.delete(crd("gizmos", "Widget"));

    catalog.apply(crd("widgets", "Widget").uid("uid-2"));

    assert!(catalog.had_other_scope(&widgets()));
}

#[test]
fn kind_whose_name_is_not_accepted_has_no_scope() {
    let mut catalog = Catalog::complete();
    catalog.apply(cluster_scoped().set("/status", json!({})));
    catalog.delete(cluster_scoped());

    catalog.apply(crd("widgets", "Widget").uid("uid-2"));

    assert!(!catalog.had_other_scope(&widgets()));
}

#[test]
fn scope_that_one_version_had_is_kept_though_a_better_version_hides_it() {
    let cluster = [ServedResource { scope: Scope::Cluster, ..resource("widgets", "Widget") }];
    let namespaced = [resource("widgets", "Widget")];
    let mut catalog = Catalog::complete();
    let both = |version| ("example.com", version, Some(&cluster[..]));
    catalog.poll(response(&[apps(), both("v2"), both("v1")]), 0);

    let v1 = ("example.com", "v1", Some(&namespaced[..]));
    catalog.poll(response(&[apps(), v1]), 10);

    assert_eq!(catalog.identity(&widgets()).scope, Scope::Namespaced);
    assert!(catalog.had_other_scope(&widgets()));
}
