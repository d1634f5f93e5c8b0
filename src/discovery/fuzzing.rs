//! Fuzz properties of CRD parsing and judging.

use serde_json::Value;

use super::{
    TypeState,
    crd::Crd,
    watch::{RawOf, WatchedType},
};
use crate::kind::TypeName;

/// Checks the judgements of an arbitrary CRD: it is served only under its own names and versions,
/// and the parsed header matches the JSON tree.
///
/// # Panics
///
/// If a property is violated.
pub fn crd(data: &[u8]) {
    let Ok(raw) = serde_json::from_slice::<RawOf<Crd>>(data) else { return };
    let crd = Crd::reduced(raw);
    let mut versions = crd.served_versions();
    let served = versions.clone();
    versions.extend(["v1".to_owned(), String::new()]);
    versions.extend(crd.versions.iter().map(|version| version.name.to_string()));
    let mut names: Vec<TypeName> =
        crd.kinds().map(|kind| TypeName::Kind(kind.to_string())).collect();
    names.push(TypeName::Resource(crd.plural.to_string()));
    for name in &names {
        assert!(crd.has_name(name));
        for version in &versions {
            let judgement = crd.judge(version, name, Some(&crd.uid));
            match (&judgement.state, &judgement.served) {
                (TypeState::Served | TypeState::Terminating, Some(found)) => {
                    assert!(crd.holds(name));
                    assert!(served.contains(version));
                    assert_eq!(*found.identity.version, **version);
                    assert_eq!(found.identity.uid.as_ref(), Some(&crd.uid));
                    let terminating = judgement.state == TypeState::Terminating;
                    assert_eq!(terminating, crd.terminating);
                }
                (TypeState::Installing(reason), None) => {
                    assert!(!reason.to_string().is_empty());
                    assert!(!crd.holds(name) || !served.contains(version));
                }
                (state, found) => panic!("{state:?} with {found:?}"),
            }
        }
    }
    let Ok(tree) = serde_json::from_slice::<Value>(data) else { return };
    // A list in place of an object is read by position, which no server writes.
    if !tree.is_object() || !tree["spec"].is_object() || !tree["metadata"].is_object() {
        return;
    }
    let text = |at: &str| tree.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(*crd.group, *text("/spec/group"));
    assert_eq!(*crd.uid, *text("/metadata/uid"));
    let deleted = tree.pointer("/metadata/deletionTimestamp");
    assert_eq!(crd.terminating, deleted.is_some_and(|at| !at.is_null()));
    assert_eq!(crd.versions.len(), tree["spec"]["versions"].as_array().map_or(0, Vec::len));
}
