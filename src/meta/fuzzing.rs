//! Properties that must hold for any input of a user or a hook; called by fuzz targets.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kube::core::{Selector as Reference, SelectorExt};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    informer::Selector,
    meta::{
        api::{LabelSelector, controller_kind::ControllerKind},
        children::{last_applied, merge},
        definition::selection,
        hooks::rule::HookVersion,
        json::go_json,
        options::{MAX_CHILDREN, customize_limits::CustomizeLimits},
        protocol::{check_unique_keys, children_field, sync_response},
        related::customize::related_rules,
    },
};

/// Checks the parser of hook responses. A response that is accepted in strict mode is accepted in
/// loose mode with the same result, which agrees with the decoded tree of the text.
///
/// # Panics
///
/// If the property does not hold.
pub fn hook_response(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    rules(&body);
    for kind in ControllerKind::ALL {
        response_of(kind, &body);
    }
}

fn response_of(kind: ControllerKind, body: &Bytes) {
    let loose = sync_response(kind, body, false);
    let strict = sync_response(kind, body, true);
    let response = match (loose, strict) {
        (Ok(loose), Ok(strict)) => {
            assert_eq!(loose, strict);
            loose
        }
        (Ok(loose), Err(error)) => {
            assert!(
                error.contains("unknown field") || error.contains("duplicate field"),
                "{error}"
            );
            loose
        }
        (Err(_), Err(error)) => return assert!(!error.is_empty()),
        (Err(error), Ok(_)) => panic!("only strictly good: {error}"),
    };
    assert!(response.children.len() <= MAX_CHILDREN);
    assert!(response.resync_after.is_none_or(|after| !after.is_zero()));
    let Ok(tree) = serde_json::from_slice::<Value>(body) else { return };
    // A tree has the last of a repeated key, where the objects of a response are merged.
    if std::str::from_utf8(body).is_ok_and(|text| check_unique_keys("", text).is_err()) {
        return;
    }
    let read = |part: &Bytes| serde_json::from_slice::<Value>(part).expect("the tree has it");
    let children: Vec<Value> = response.children.iter().map(read).collect();
    assert_eq!(&children, tree[children_field(kind)].as_array().unwrap_or(&Vec::new()));
    let Ok(status) = &response.status else { return };
    let status = status.as_ref().map(read);
    assert_eq!(status.as_ref(), Some(&tree["status"]).filter(|status| status.is_object()));
    if kind == ControllerKind::Decorator {
        for (field, changes) in [("labels", response.labels), ("annotations", response.annotations)]
        {
            let none = Value::Object(Map::new());
            let read = Some(&tree[field]).filter(|field| field.is_object()).unwrap_or(&none);
            assert_eq!(&serde_json::json!(changes), read);
        }
    }
}

/// Checks the parser of customize responses: strict mode accepts no more than loose mode, and the
/// same rules.
fn rules(body: &Bytes) {
    for version in [HookVersion::V1, HookVersion::V2] {
        let namespace = "ns".into();
        let limits = CustomizeLimits::default();
        let of = |strict| related_rules(body, strict, version, Some(&namespace), &limits);
        match (of(false), of(true)) {
            (loose, Ok(strict)) => assert_eq!(loose, Ok(strict)),
            (_, Err(error)) => assert!(!error.is_empty()),
        }
    }
}

/// Checks selectors. A selector that is formatted and parsed again is equal, and selects the same
/// labels as kube's own selector.
///
/// # Panics
///
/// If the property does not hold.
pub fn selectors(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(selector) = text.parse::<Selector>() {
        let again: Selector = selector.to_string().parse().expect("what we write we can read");
        assert_eq!(again, selector, "{selector}");
        agree(&selector, text);
    }
    let Ok(object) = serde_json::from_str::<LabelSelector>(text) else { return };
    if let Ok(selector) = selection::parse(&object) {
        agree(&selector, text);
    }
}

/// Checks that labels made of the words of the text are selected as by kube.
fn agree(selector: &Selector, text: &str) {
    let reference: Reference = selector.expressions().iter().cloned().collect();
    let words: BTreeSet<&str> =
        text.split(|letter: char| !letter.is_alphanumeric() && !"-_./".contains(letter)).collect();
    let words: Vec<&str> = words.into_iter().take(12).collect();
    let mut sets = vec![BTreeMap::new()];
    for key in &words {
        for value in &words {
            sets.push(BTreeMap::from([((*key).to_owned(), (*value).to_owned())]));
        }
    }
    let pairs = words.iter().zip(words.iter().rev());
    sets.push(pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
    for labels in sets {
        let ours = Selector::new(selector.expressions().to_vec())
            .matches(&labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect());
        assert_eq!(ours, reference.matches(&labels), "{selector} of {labels:?}");
    }
}

#[derive(Deserialize)]
struct ThreeWayMerge {
    #[serde(default)]
    observed: Map<String, Value>,
    #[serde(default)]
    last: Map<String, Value>,
    #[serde(default)]
    desired: Map<String, Value>,
}

/// Checks the merge. Merging twice equals merging once; fields that were never desired stay, and
/// only fields that were desired before are removed; the annotation has the meaning of the desired
/// object.
///
/// # Panics
///
/// If the property does not hold.
pub fn merge(data: &[u8]) {
    let Ok(ThreeWayMerge { observed, last, desired }) = serde_json::from_slice(data) else {
        return;
    };
    let (observed, last, desired) =
        (Value::Object(observed), Value::Object(last), Value::Object(desired));
    let merged = |object: &Value, last: &Value| {
        let mut merged = object.clone();
        let differs = merge::merge(&mut merged, Some(last), &desired);
        assert_eq!(differs, !last_applied::same(&merged, object));
        merged
    };
    let once = merged(&observed, &last);
    assert_foreign_fields_stay(&observed, &last, &desired, &once);
    assert_eq!(merged(&once, &desired), once, "twice is once");

    let text = go_json::encode(&desired);
    // The last digit of a long float may change; its meaning must not.
    let read: Value = serde_json::from_str(&text).expect("what we write we can read");
    assert!(last_applied::same(&read, &desired), "{text}");

    let applied = |object: &Value| {
        let mut applied = object.clone();
        let last = last_applied::read(object);
        let differs = merge::apply(&mut applied, last, desired.clone());
        assert_eq!(differs, !last_applied::same(&applied, object));
        applied
    };
    let once = applied(&observed);
    assert_eq!(applied(&once), once, "applying settles");
    assert_eq!(once.get("status"), observed.get("status"));
}

/// Checks that fields which neither version names are unchanged, at any depth of objects.
fn assert_foreign_fields_stay(observed: &Value, last: &Value, desired: &Value, merged: &Value) {
    let (Some(observed), Some(merged)) = (observed.as_object(), merged.as_object()) else { return };
    for (key, value) in observed {
        match (last.get(key), desired.get(key)) {
            (None, None) => assert_eq!(merged.get(key), Some(value), "{key} is a stranger's"),
            (Some(_), None) => assert_eq!(merged.get(key), None, "{key} is no longer wanted"),
            (last, Some(desired)) if desired.is_object() => {
                let last = last.unwrap_or(&Value::Null);
                assert_foreign_fields_stay(value, last, desired, &merged[key]);
            }
            (_, Some(_)) => assert!(merged.contains_key(key)),
        }
    }
    for key in merged.keys() {
        assert!(observed.contains_key(key) || desired.get(key).is_some(), "{key} from nowhere");
    }
}
