//! Three-way merge of a child: the observed object, the last-applied one and the desired one.
//!
//! Removes only fields that were desired before and no longer are; keeps the fields of other
//! writers. Semantics: Metacontroller's dynamic apply, except that list items with equal merge keys
//! are paired in order instead of being collapsed into one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::last_applied;
use crate::meta::json::go_json;

/// Merge keys of list items, in the order of preference; the first field that all items have is
/// used.
const MERGE_KEYS: [&str; 7] = ["containerPort", "port", "mountPath", "name", "uid", "ip", "path"];

#[cfg(test)]
thread_local! {
    static MERGES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the number of merges in this thread.
#[cfg(test)]
pub(crate) fn count() -> usize {
    MERGES.with(std::cell::Cell::get)
}

/// Merges `desired` into `observed`, whose last-applied annotation is `last`. Returns whether the
/// meaning of the object has changed.
///
/// System metadata, the controller's owner reference and the status stay as observed. The
/// last-applied annotation becomes the whole desired object, if its meaning or anything else
/// changed.
pub(crate) fn apply(observed: &mut Value, last: Option<Value>, desired: Value) -> bool {
    #[cfg(test)]
    MERGES.with(|merges| merges.set(merges.get() + 1));
    let remembered = go_json::encode(&desired);
    let (last_owners, desired_owners) = (owners(last.as_ref()), owners(Some(&desired)));
    let wanted = last_applied::into_desired_fields(desired);
    // Fields that are neither desired now nor before stay as observed.
    let last = last.map(last_applied::without_undecided_fields);
    // The result of further steps is compared as a whole.
    let before = (loses_annotations(last.as_ref(), &wanted)
        || !(last_owners.is_empty() && desired_owners.is_empty()))
    .then(|| observed.clone());
    let mut differs = merge(observed, last.as_ref(), &wanted);
    if let Some(before) = before {
        restore_annotation(observed, &before);
        set_owners(observed, &last_owners, desired_owners);
        differs = !last_applied::same(observed, &before);
    }
    let is_known = last
        .is_some_and(|last| last_applied::same(&last_applied::into_desired_fields(last), &wanted));
    if !is_known || differs {
        differs |= last_applied::write_text(observed, remembered);
    }
    differs
}

/// Returns whether annotations were desired before, and none are now.
fn loses_annotations(last: Option<&Value>, wanted: &Value) -> bool {
    let has = |object: &Value| {
        object.get("metadata").is_some_and(|metadata| metadata.get("annotations").is_some())
    };
    last.is_some_and(has) && !has(wanted)
}

/// Adds the desired owners to the observed ones, and removes those that are desired no longer. The
/// controller of the object is neither removed nor replaced.
fn set_owners(merged: &mut Value, last: &[Value], desired: Vec<Value>) {
    let mut owners = owners(Some(merged));
    let find = |owners: &[Value], owner: &Value| {
        owners.iter().position(|other| other.get("uid") == owner.get("uid"))
    };
    let is_controller = |owner: &Value| owner.get("controller") == Some(&Value::Bool(true));
    owners.retain(|owner| {
        let is_dropped = find(last, owner).is_some() && find(&desired, owner).is_none();
        is_controller(owner) || !is_dropped
    });
    for owner in desired {
        match find(&owners, &owner) {
            Some(known) if is_controller(&owners[known]) => {}
            Some(known) => owners[known] = owner,
            None => owners.push(owner),
        }
    }
    if let Some(metadata) = merged.get_mut("metadata").and_then(Value::as_object_mut)
        && !owners.is_empty()
    {
        metadata.insert("ownerReferences".to_owned(), Value::Array(owners));
    }
}

/// Returns the owners of an object.
fn owners(object: Option<&Value>) -> Vec<Value> {
    let owners = object.and_then(|object| object.get("metadata")?.get("ownerReferences"));
    owners.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Restores the last-applied annotation if all annotations were removed: it stays until its meaning
/// is known to have changed.
fn restore_annotation(merged: &mut Value, observed: &Value) {
    let annotation = |object: &Value| {
        object.get("metadata")?.get("annotations")?.get(last_applied::LAST_APPLIED).cloned()
    };
    let Some(Value::Object(metadata)) = merged.get_mut("metadata") else { return };
    if !metadata.contains_key("annotations")
        && let Some(text) = annotation(observed)
    {
        let annotations = Map::from_iter([(last_applied::LAST_APPLIED.to_owned(), text)]);
        metadata.insert("annotations".to_owned(), annotations.into());
    }
}

/// Merges one value in place; returns whether its meaning has changed. The kind of the observed
/// value decides how. If it is an object or a list, a desired value of another kind counts as an
/// empty one.
pub(in crate::meta) fn merge(observed: &mut Value, last: Option<&Value>, desired: &Value) -> bool {
    let merged = match observed {
        Value::Object(observed) => {
            let (none, last) = (Map::new(), last.and_then(Value::as_object));
            let desired = desired.as_object().unwrap_or(&none);
            return merge_objects(observed, last.unwrap_or(&none), desired);
        }
        Value::Array(observed) => {
            let items = |value: Option<&Value>| {
                value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().to_vec()
            };
            merge_lists(observed, &items(last), items(Some(desired)))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => desired.clone(),
    };
    let differs = !last_applied::same(observed, &merged);
    *observed = merged;
    differs
}

fn merge_objects(
    observed: &mut Map<String, Value>,
    last: &Map<String, Value>,
    desired: &Map<String, Value>,
) -> bool {
    let mut differs = false;
    observed.retain(|key, value| {
        let desired = desired.get(key);
        let is_kept = desired.is_some() || !last.contains_key(key);
        differs |= match desired {
            Some(desired) => merge(value, last.get(key), desired),
            None => !is_kept && !value.is_null(),
        };
        is_kept
    });
    for (key, value) in desired {
        if !observed.contains_key(key) {
            differs |= !value.is_null();
            observed.insert(key.clone(), value.clone());
        }
    }
    differs
}

fn merge_lists(observed: &[Value], last: &[Value], desired: Vec<Value>) -> Value {
    let Some(key) = merge_key([observed, last, desired.as_slice()]) else {
        return Value::Array(desired);
    };
    let (observed, last, desired) = (keyed(observed, key), keyed(last, key), keyed(&desired, key));
    let last: BTreeMap<_, _> = last.into_iter().collect();
    let wanted: BTreeMap<_, _> = desired.iter().map(|(id, item)| (id, *item)).collect();
    let mut merged = Vec::with_capacity(observed.len().max(desired.len()));
    let mut seen = BTreeSet::new();
    for (id, item) in &observed {
        let mut item = (*item).clone();
        match wanted.get(id) {
            Some(wanted) => drop(merge(&mut item, last.get(id).copied(), wanted)),
            None if last.contains_key(id) => continue,
            None => {}
        }
        merged.push(item);
        seen.insert(id);
    }
    for (id, item) in &desired {
        if !seen.contains(id) {
            merged.push((*item).clone());
        }
    }
    Value::Array(merged)
}

/// Returns the merge key: the first field that every item of all lists has. `None` for empty lists,
/// and if an item is not an object.
fn merge_key(lists: [&[Value]; 3]) -> Option<&'static str> {
    let mut items = lists.into_iter().flatten().peekable();
    items.peek()?;
    let items: Vec<_> = items.collect();
    MERGE_KEYS.into_iter().find(|key| {
        items.iter().all(|item| item.as_object().is_some_and(|item| item.contains_key(*key)))
    })
}

/// Returns the items with their merge key, encoded, and its number of occurrences so far. Numbers
/// of one value have one text, however they are spelled, and a string is no number.
fn keyed<'a>(items: &'a [Value], key: &str) -> Vec<((String, usize), &'a Value)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    items
        .iter()
        .map(|item| {
            let id = item.get(key).map(go_json::encode).unwrap_or_default();
            let count = counts.entry(id.clone()).or_default();
            *count += 1;
            ((id, *count), item)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn apply(observed: &Value, desired: &Value) -> Value {
        let mut merged = observed.clone();
        let differs = super::apply(&mut merged, last_applied::read(observed), desired.clone());
        assert_eq!(differs, !last_applied::same(&merged, observed), "{observed} {desired}");
        merged
    }

    fn merge(observed: &Value, last: Option<&Value>, desired: &Value) -> Value {
        let mut merged = observed.clone();
        let differs = super::merge(&mut merged, last, desired);
        assert_eq!(differs, !last_applied::same(&merged, observed), "{observed} {desired}");
        merged
    }

    #[track_caller]
    fn check(observed: Value, last: Value, desired: Value, expected: Value) {
        assert_eq!(merge(&observed, Some(&last), &desired), expected);
    }

    #[test]
    fn scalars_are_replaced() {
        check(json!({"a": 1}), json!({}), json!({"a": 2}), json!({"a": 2}));
        check(json!({"a": "1"}), json!({"a": "1"}), json!({"a": "2"}), json!({"a": "2"}));
        check(json!({}), json!({}), json!({"a": 1}), json!({"a": 1}));
    }

    #[test]
    fn field_that_is_desired_no_longer_is_removed() {
        check(json!({"a": 1, "b": 2}), json!({"a": 1}), json!({}), json!({"b": 2}));
        check(
            json!({"x": {"a": 1, "b": 2}}),
            json!({"x": {"a": 1}}),
            json!({"x": {}}),
            json!({"x": {"b": 2}}),
        );
    }

    #[test]
    fn fields_of_other_writers_are_kept() {
        check(
            json!({"a": 1, "b": {"c": 1}}),
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "b": {"c": 1}}),
        );
    }

    #[test]
    fn value_of_another_kind_counts_as_empty() {
        check(json!({"a": {"b": 1}}), json!({}), json!({"a": "x"}), json!({"a": {"b": 1}}));
        check(json!({"a": [1]}), json!({}), json!({"a": "x"}), json!({"a": []}));
        check(json!({"a": "x"}), json!({}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}}));
    }

    #[test]
    fn plain_lists_are_replaced() {
        check(json!({"a": [1, 2]}), json!({"a": [1]}), json!({"a": [3]}), json!({"a": [3]}));
        check(
            json!({"a": [{"name": "x"}, 1]}),
            json!({}),
            json!({"a": [{"name": "y"}]}),
            json!({"a": [{"name": "y"}]}),
        );
        check(
            json!({"a": [{"other": "x"}]}),
            json!({}),
            json!({"a": [{"other": "y"}]}),
            json!({"a": [{"other": "y"}]}),
        );
    }

    #[test]
    fn lists_with_a_common_key_are_merged_by_it() {
        check(
            json!([{"name": "a", "x": 1, "filled": true}, {"name": "foreign"}, {"name": "old"}]),
            json!([{"name": "a", "x": 1}, {"name": "old"}]),
            json!([{"name": "new"}, {"name": "a", "x": 2}]),
            json!([{"name": "a", "x": 2, "filled": true}, {"name": "foreign"}, {"name": "new"}]),
        );
    }

    #[test]
    fn numbers_of_merge_keys_are_compared_by_value() {
        let text = |number: &str| -> Value {
            serde_json::from_str(&format!(r#"[{{"port":{number},"x":1}}]"#)).unwrap()
        };
        let observed = || json!([{"port": 80, "x": 0, "filled": true}]);
        for number in ["80", "80.0", "8e1"] {
            let merged = merge(&observed(), Some(&text("80.0")), &text(number));

            assert!(last_applied::same(&merged, &json!([{"port": 80, "x": 1, "filled": true}])));
        }
        check(
            observed(),
            json!([]),
            json!([{"port": "80"}]),
            json!([{"port": 80, "x": 0, "filled": true}, {"port": "80"}]),
        );
    }

    #[test]
    fn keys_have_an_order_of_precedence() {
        check(
            json!([{"name": "one", "containerPort": 80, "protocol": "TCP"}]),
            json!([]),
            json!([{"name": "two", "containerPort": 80}]),
            json!([{"name": "two", "containerPort": 80, "protocol": "TCP"}]),
        );
        let keys = ["containerPort", "port", "mountPath", "name", "uid", "ip", "path"];
        for (at, key) in keys.iter().enumerate() {
            // Items that have this key and all later ones, of which only this one agrees.
            let item = |value: &str| {
                let mut item = json!({});
                for later in &keys[at..] {
                    item[later] = json!(value);
                }
                item[key] = json!("same");
                item
            };
            let mut observed = item("old");
            observed["kept"] = json!(true);
            let mut merged = item("new");
            merged["kept"] = json!(true);
            check(json!([observed]), json!([]), json!([item("new")]), json!([merged]));
        }
    }

    #[test]
    fn items_whose_key_repeats_are_paired_in_order() {
        check(
            json!([{"port": 53, "protocol": "TCP", "x": 1}, {"port": 53, "protocol": "UDP", "x": 2}]),
            json!([]),
            json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]),
            json!([{"port": 53, "protocol": "TCP", "x": 1}, {"port": 53, "protocol": "UDP", "x": 2}]),
        );
    }

    #[test]
    fn fields_of_the_server_are_restored() {
        let observed = json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "generation": 2,
                "ownerReferences": [{"uid": "p"}]},
            "status": {"ready": true}
        });
        let desired = json!({
            "metadata": {"name": "a", "uid": "other", "creationTimestamp": null, "labels": {"a": "b"}},
            "status": {"ready": false}
        });

        let merged = apply(&observed, &desired);

        assert_eq!(merged["status"], json!({"ready": true}));
        assert_eq!(merged["metadata"]["uid"], "u");
        assert_eq!(merged["metadata"]["ownerReferences"], json!([{"uid": "p"}]));
        assert_eq!(merged["metadata"]["labels"], json!({"a": "b"}));
        assert!(merged["metadata"].get("creationTimestamp").is_none());
    }

    #[test]
    fn fields_of_the_server_stay_though_they_were_desired_before() {
        for annotations in [json!({"own": "1"}), json!({}), json!(null)] {
            let last = json!({
                "metadata": {"name": "a", "uid": "u", "generation": 1, "managedFields": [],
                    "ownerReferences": [], "annotations": annotations},
                "data": {"x": "1"}, "status": {"ready": true}
            });
            let mut observed = last.clone();
            observed["metadata"]["ownerReferences"] = json!([{"uid": "p"}]);
            observed["metadata"]["managedFields"] = json!([{"manager": "m"}]);
            last_applied::write(&mut observed, &last);
            let mut desired = json!({"metadata": {"name": "a"}, "data": {"x": "1"}});
            if annotations["own"].is_string() {
                desired["metadata"]["annotations"] = annotations;
            }

            assert_eq!(apply(&observed, &desired), observed);
        }
    }

    #[track_caller]
    fn check_owners(observed: Value, last: Value, desired: Value, expected: Value) {
        let with = |owners: Value| json!({"metadata": {"name": "a", "ownerReferences": owners}});
        let mut live = with(observed);
        live["metadata"]["annotations"] =
            json!({last_applied::LAST_APPLIED: with(last).to_string()});

        let merged = apply(&live, &with(desired));

        assert_eq!(merged["metadata"]["ownerReferences"], expected);
    }

    #[test]
    fn owners_that_a_hook_adds_are_kept_beside_those_of_others() {
        let parent = json!({"uid": "p", "controller": true});
        check_owners(
            json!([parent, {"uid": "other"}]),
            json!([]),
            json!([{"uid": "a", "blockOwnerDeletion": false}]),
            json!([parent, {"uid": "other"}, {"uid": "a", "blockOwnerDeletion": false}]),
        );
        check_owners(
            json!([parent, {"uid": "a"}, {"uid": "b"}]),
            json!([{"uid": "a"}, {"uid": "b"}]),
            json!([{"uid": "b", "blockOwnerDeletion": true}]),
            json!([parent, {"uid": "b", "blockOwnerDeletion": true}]),
        );
        check_owners(json!([parent]), json!([]), json!([{"uid": "p"}]), json!([parent]));
        check_owners(json!([parent]), json!([parent]), json!([]), json!([parent]));
    }

    #[test]
    fn annotation_of_a_write_is_the_whole_desired_object() {
        let desired = json!({
            "metadata": {"name": "a", "creationTimestamp": null, "ownerReferences": [{"uid": "o"}]},
            "data": {"x": "new"}, "status": {}
        });
        let observed = json!({"metadata": {"name": "a"}, "data": {"x": "old"}});

        let merged = apply(&observed, &desired);

        assert_eq!(last_applied::read(&merged), Some(desired.clone()));
        assert_eq!(merged.get("status"), None);
        assert_eq!(apply(&merged, &desired), merged);
    }

    #[test]
    fn equivalent_annotation_is_not_rewritten() {
        let text = r#"{ "metadata": {"name":"a","creationTimestamp":null}, "data": {"x": 1.0} }"#;
        let observed = json!({
            "metadata": {"name": "a", "annotations": {last_applied::LAST_APPLIED: text}},
            "data": {"x": 1}
        });
        let desired = json!({"metadata": {"name": "a"}, "data": {"x": 1}});

        assert_eq!(apply(&observed, &desired), observed);
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..4i64).prop_map(Value::from),
            "[ab]".prop_map(Value::from),
        ]
    }

    fn named_list() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[abc]", scalar(), 0..4).prop_map(|items| {
            items.into_iter().map(|(name, x)| json!({"name": name, "x": x})).collect()
        })
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            3 => scalar(),
            1 => named_list(),
            1 => prop::collection::vec(scalar(), 0..3).prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop::collection::btree_map("[abcd]", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect()))
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[abcd]", value(), 0..5)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    /// Values of one shape, so that objects meet objects and lists meet lists.
    fn paths(value: &Value, prefix: &str, found: &mut Vec<String>) {
        if let Value::Object(fields) = value {
            for (key, value) in fields {
                let path = format!("{prefix}/{key}");
                found.push(path.clone());
                paths(value, &path, found);
            }
        }
    }

    /// Items with distinct names, in any order.
    fn named_items() -> impl Strategy<Value = Vec<Value>> {
        prop::collection::btree_map("[a-f]", object(), 0..5)
            .prop_map(|items| {
                let with_name = |(name, mut item): (String, Value)| {
                    item["name"] = name.into();
                    item
                };
                items.into_iter().map(with_name).collect()
            })
            .prop_shuffle()
    }

    fn name(item: &Value) -> &str {
        item["name"].as_str().unwrap()
    }

    /// Two versions of desired fields, whose names start with `prefix`.
    fn of_one(prefix: &'static str) -> impl Strategy<Value = (Value, Value)> {
        let fields = move || {
            prop::collection::btree_map("[abc]", value(), 0..4).prop_map(move |fields| {
                let own = |(name, value)| (format!("{prefix}{name}"), value);
                Value::Object(fields.into_iter().map(own).collect())
            })
        };
        (fields(), fields())
    }

    proptest! {
        #[test]
        fn lists_with_a_key_are_merged_item_by_item_and_keep_their_order(
            observed in named_items(), last in named_items(), desired in named_items()
        ) {
            let lists = [&observed, &last, &desired].map(|items| Value::from(items.clone()));

            let merged = merge(&lists[0], Some(&lists[1]), &lists[2]);

            let find = |items: &[Value], of: &Value| {
                items.iter().find(|item| name(item) == name(of)).cloned()
            };
            let mut expected = Vec::new();
            for item in &observed {
                let last = find(&last, item);
                match find(&desired, item) {
                    Some(wish) => expected.push(merge(item, last.as_ref(), &wish)),
                    None if last.is_some() => {}
                    None => expected.push(item.clone()),
                }
            }
            expected.extend(desired.iter().filter(|wish| find(&observed, wish).is_none()).cloned());
            prop_assert_eq!(merged, Value::from(expected));
        }

        #[test]
        fn merges_of_disjoint_fields_commute(
            observed in object(), (last_one, one) in of_one("one"), (last_two, two) in of_one("two"),
        ) {
            let mut observed = observed;
            // Some observed fields were desired before.
            for (field, value) in last_one.as_object().into_iter().flatten() {
                observed[field] = value.clone();
            }
            let first = |object: &Value| merge(object, Some(&last_one), &one);
            let second = |object: &Value| merge(object, Some(&last_two), &two);

            prop_assert_eq!(second(&first(&observed)), first(&second(&observed)));
        }

        #[test]
        fn merging_twice_is_merging_once(
            observed in object(), last in object(), desired in object()
        ) {
            let once = merge(&observed, Some(&last), &desired);
            let twice = merge(&once, Some(&desired), &desired);

            prop_assert_eq!(once, twice);
        }

        #[test]
        fn only_fields_that_were_desired_before_are_removed(
            observed in object(), last in object(), desired in object()
        ) {
            let merged = merge(&observed, Some(&last), &desired);

            for (key, value) in observed.as_object().unwrap() {
                if last.get(key).is_none() && desired.get(key).is_none() {
                    prop_assert_eq!(merged.get(key), Some(value));
                }
                if merged.get(key).is_none() {
                    prop_assert!(last.get(key).is_some() && desired.get(key).is_none());
                }
            }
        }

        #[test]
        fn every_desired_field_is_in_the_result(observed in object(), last in object(), desired in object()) {
            let merged = merge(&observed, Some(&last), &desired);

            let mut wanted = Vec::new();
            paths(&desired, "", &mut wanted);
            for path in wanted {
                // An observed object or list outlives a desired value of another kind.
                let clash = path.match_indices('/').map(|(at, _)| &path[..at]).chain([path.as_str()])
                    .any(|part| {
                        let there = observed.pointer(part);
                        let wish = desired.pointer(part);
                        matches!((there, wish), (Some(Value::Object(_)), Some(wish)) if !wish.is_object())
                            || matches!((there, wish), (Some(Value::Array(_)), Some(wish)) if !wish.is_array())
                    });
                prop_assert!(clash || merged.pointer(&path).is_some(), "{}", path);
            }
        }

        #[test]
        fn second_apply_changes_nothing(observed in object(), desired in object()) {
            let named = |mut value: Value| {
                value["metadata"] = json!({"name": "a"});
                value
            };
            let (observed, desired) = (named(observed), named(desired));

            let once = apply(&observed, &desired);
            let twice = apply(&once, &desired);

            prop_assert_eq!(once, twice);
        }
    }
}
