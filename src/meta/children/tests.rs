//! Tests of the validation and the plan.

use super::{MAX_CHILD_BYTES, adoption::AdoptionRule, fixtures::*, ownership::DECORATED_BY, *};
use crate::informer::Selector;

fn config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "x"}}
    })
}

fn texts(children: Vec<Value>) -> Vec<Bytes> {
    children.iter().map(|child| child.to_string().into()).collect()
}

fn object(write: &Write) -> Value {
    serde_json::from_slice(&write.body).unwrap()
}

fn ownership() -> Ownership {
    Ownership::Selected {
        selector: Selector::label("app", "x"),
        generated: false,
        rule: AdoptionRule::default(),
    }
}

fn checked(
    parent: &Parent,
    observed: &[Child],
    children: Vec<Value>,
) -> Result<Vec<DesiredChild>, String> {
    checked_texts(parent, observed, texts(children))
}

fn checked_texts(
    parent: &Parent,
    observed: &[Child],
    children: Vec<Bytes>,
) -> Result<Vec<DesiredChild>, String> {
    let (groups, ownership) = (groups(UpdateMethod::InPlace), ownership());
    let missing = [TypeRef::resource("late.example.com", "v1", "lates")];
    ChildContext {
        parent,
        groups: &groups,
        missing: &missing,
        ownership: &ownership,
        observed,
        restricted: None,
    }
    .check(children)
}

/// Refusal of a response whose second child has this value.
#[track_caller]
fn refusal(pointer: &str, value: Value) -> String {
    let mut children = vec![config_map("a"), config_map("b")];
    match pointer {
        "" => children[1] = value,
        pointer => {
            let (object, key) = pointer.rsplit_once('/').unwrap();
            children[1].pointer_mut(object).unwrap()[key] = value;
        }
    }
    checked(&parent(Some("ns")), &[], children).unwrap_err()
}

#[track_caller]
fn check_refused(pointer: &str, value: Value, expected: &str) {
    let error = refusal(pointer, value);

    // Without the name of the child, which follows the field in brackets.
    let unnamed = match (error.find(" ("), error.find("): ")) {
        (Some(begin), Some(end)) => format!("{}{}", &error[..begin], &error[end + 1..]),
        _ => error.clone(),
    };
    assert!(unnamed.starts_with(expected), "{error}");
}

#[test]
fn unusable_child_is_named_by_index_field_kind_and_name_with_the_remedy() {
    for (pointer, value, expected) in [
        (
            "/metadata/namespace",
            json!("other"),
            "children[1].metadata.namespace (ConfigMap b): must be \"ns\", as the parent's, not \
             \"other\"; use a cluster-scoped parent for children elsewhere",
        ),
        (
            "/kind",
            json!("Pod"),
            "children[1] (Pod b): Pod of v1 is not declared in spec.childResources; declare it, or \
             leave the child out",
        ),
        ("/kind", json!(null), "children[1].kind (b): is required"),
        ("/metadata/name", json!(null), "children[1].metadata.name (ConfigMap): is required"),
        ("", json!(null), "children[1]: must be an object, not null; leave it out"),
    ] {
        assert_eq!(refusal(pointer, value), expected);
    }
}

/// Observed child of a group in the namespace of the parent.
fn observed_in(group: usize, namespace: &str, name: &str) -> Child {
    let mut object = config_map(name);
    object["metadata"]["namespace"] = json!(namespace);
    let mut observed = child(group, name, object);
    observed.key.namespace = Some(namespace.into());
    observed
}

/// Names of the observed children that are held for an unusable child.
fn held(parent: &Parent, observed: &[Child], children: Vec<Bytes>) -> Vec<String> {
    let (groups, ownership) = (groups(UpdateMethod::InPlace), ownership());
    let rules = ChildContext {
        parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed,
        restricted: None,
    };
    let checked = rules.check_all(children, false).unwrap();
    assert!(!checked.unusable.is_empty());
    let name = |(group, key): &(usize, ObjectKey)| format!("{} {key}", groups[*group].served.kind);
    checked.held.iter().map(name).collect()
}

#[test]
fn unusable_child_holds_the_observed_one_that_it_names() {
    let observed =
        [observed_in(0, "ns", "a"), observed_in(0, "ns", "b"), observed_in(1, "ns", "a")];
    let with = |change: fn(&mut Value)| {
        let mut bad = config_map("a");
        bad["metadata"]["annotations"] = json!(7);
        change(&mut bad);
        let texts = texts(vec![config_map("b"), bad]);
        held(&parent(Some("ns")), &observed, texts)
    };
    let both = ["ConfigMap ns/a", "Deployment ns/a"];

    assert_eq!(with(|_| {}), both[..1]);
    assert_eq!(with(|it| it["apiVersion"] = json!("v2")), both[..1], "in another version");
    assert_eq!(with(|it| it["kind"] = json!(null)), both, "of any kind");
    assert_eq!(with(|it| it["metadata"]["namespace"] = json!(5)), both[..1]);
    assert_eq!(with(|it| it["metadata"]["namespace"] = json!("elsewhere")), [""; 0]);
    assert_eq!(with(|it| it["metadata"]["name"] = json!("c")), [""; 0]);
    let last = with(|it| it["metadata"]["name"] = json!("b"));
    assert_eq!(last, ["ConfigMap ns/b"], "the last entry of a child counts");
    assert_eq!(with(|it| it["metadata"] = json!(null)), both[..1], "of any name");
    assert_eq!(with(|it| *it = json!(null)), both, "of any kind and name");
}

#[test]
fn namespace_of_a_cluster_scoped_child_holds_the_observed_one() {
    let mut object = config_map("n");
    object["kind"] = json!("Namespace");
    let mut bad = object.clone();
    bad["metadata"]["namespace"] = json!("x");

    let held = held(&parent(None), &[child(2, "n", object)], texts(vec![bad]));

    assert_eq!(held, ["Namespace n"]);
}

#[test]
fn child_that_cannot_be_decoded_holds_the_observed_one_that_it_names() {
    let nested = "[".repeat(5000) + &"]".repeat(5000);
    let long = format!("\"{}\"", "x".repeat(MAX_CHILD_BYTES));
    for value in ["1e999", r#""\ud800""#, &nested, &long] {
        let bad = config_map("a").to_string().replacen('{', &format!("{{\"data\":{value},"), 1);

        let held = held(&parent(Some("ns")), &[observed_in(0, "ns", "a")], vec![bad.into()]);

        assert_eq!(held, ["ConfigMap ns/a"]);
    }
}

#[test]
fn annotation_or_label_that_is_null_is_an_empty_text_as_for_the_server() {
    let mut sent = config_map("a");
    sent["metadata"]["annotations"] = json!({"x": null});
    sent["metadata"]["labels"]["y"] = json!(null);

    let steps = plan(UpdateMethod::InPlace, &[], vec![sent.clone()]);

    let [WriteStep::Create(created)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(object(created)["metadata"]["annotations"]["x"], "");
    assert_eq!(object(created)["metadata"]["labels"]["y"], "");
    assert_eq!(plan(UpdateMethod::InPlace, &[stored(&steps[0])], vec![sent]), []);
}

#[test]
fn child_that_no_server_accepts_is_an_error_of_its_own() {
    let of = |bytes: usize| {
        let mut large = config_map("a");
        large["data"] = json!({"k": ""});
        let rest = large.to_string().len();
        large["data"]["k"] = json!("x".repeat(bytes - rest));
        checked(&parent(Some("ns")), &[], vec![large])
    };

    assert!(of(MAX_CHILD_BYTES).is_ok());
    let error = of(MAX_CHILD_BYTES + 1).unwrap_err();
    assert!(error.starts_with("children[0] (ConfigMap a): has 3145729 bytes"), "{error}");
}

#[test]
fn an_unusable_child_is_refused_by_the_path_of_its_field() {
    check_refused("", json!(null), "children[1]: must be an object, not null");
    check_refused("", json!([]), "children[1]: must be an object, not a list");
    check_refused("/apiVersion", json!(null), "children[1].apiVersion: is required");
    check_refused("/kind", json!(""), "children[1].kind: is required");
    check_refused("/kind", json!(1), "children[1].kind: must be a string, not a number");
    check_refused("/kind", json!("Pod"), "children[1]: Pod of v1 is not declared");
    check_refused("/apiVersion", json!("v2"), "children[1]: ConfigMap of v2 is not declared");
    check_refused("/metadata", json!(null), "children[1].metadata: must be an object");
    check_refused("/metadata/name", json!(null), "children[1].metadata.name: is required");
    check_refused("/metadata/name", json!("x".repeat(254)), "children[1].metadata.name: ");
    check_refused("/metadata/name", json!("../secrets/x"), "children[1].metadata.name: ");
    check_refused("/metadata/name", json!(".."), "children[1].metadata.name: ");
    check_refused(
        "/metadata",
        json!({"generateName": "x/"}),
        "children[1].metadata.generateName: ",
    );
    check_refused("/metadata/namespace", json!("other"), "children[1].metadata.namespace: ");
    check_refused(
        "/metadata/namespace",
        json!(7),
        "children[1].metadata.namespace: must be a string, not a number",
    );
    check_refused(
        "/metadata/ownerReferences",
        json!([{"uid": "parent-uid"}, "x"]),
        "children[1].metadata.ownerReferences[1]: must be an object, not a string",
    );
    check_refused("/metadata/labels", json!({"app": "y"}), "children[1].metadata.labels: do not");
    check_refused(
        "/metadata/labels",
        json!({"app": 1}),
        "children[1].metadata.labels: has a value ",
    );
    check_refused("/metadata/annotations", json!([]), "children[1].metadata.annotations: ");
    check_refused("/metadata/name", json!("a"), "children[1]: ConfigMap ns/a is several times");
    check_refused(
        "",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
        "children[1]: Namespace is cluster-scoped",
    );
}

#[test]
fn child_that_cannot_be_decoded_is_refused_by_its_index() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let check = |text: String| {
        let good = config_map("b").to_string();
        checked_texts(&parent(Some("ns")), &[], vec![good.into(), text.into()])
    };
    let whole = config_map("a").to_string();
    for value in ["1e999", r#""\ud800""#, r#"{"\ud800":1}"#, &nested(127)] {
        // A later field of the same name counts, and does not hide the first one.
        for field in ["data", "status", "apiVersion", "kind", "metadata"] {
            let bad = whole.replacen('{', &format!("{{\"{field}\":{value},"), 1);

            let refused = check(bad);

            let error = refused.unwrap_err();
            assert!(error.starts_with("children[1]"), "{field} {value}: {error}");
        }
    }
    let deepest = whole.replacen('{', &format!("{{\"data\":{},", nested(126)), 1);
    assert_eq!(check(deepest).map(|children| children.len()), Ok(2));
}

#[test]
fn generated_name_beside_a_name_refuses_no_child() {
    let mut child = config_map("a");
    child["metadata"]["generateName"] = json!("x-");

    let desired = checked(&parent(Some("ns")), &[], vec![child]).unwrap();

    assert_eq!(desired[0].key.to_string(), "ns/a");
}

#[test]
fn child_without_a_name_gets_a_new_one_with_its_beginning() {
    for name in [None, Some(json!(null)), Some(json!(""))] {
        let mut child = config_map("a");
        let metadata = child["metadata"].as_object_mut().unwrap();
        metadata.remove("name");
        metadata.extend(name.map(|name| ("name".to_owned(), name)));
        child["metadata"]["generateName"] = json!("x".repeat(70));

        let twice = vec![child.clone(), child];
        let steps = plan(UpdateMethod::OnDelete, &[], twice);

        let [WriteStep::Create(one), WriteStep::Create(other)] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert_ne!(one.key, other.key);
        assert!(one.key.name.starts_with(&"x".repeat(58)) && one.key.name.len() == 63);
        assert_eq!(object(one)["metadata"]["name"], *one.key.name);
    }
}

#[test]
fn a_child_without_namespace_gets_its_parents() {
    let steps = plan(UpdateMethod::OnDelete, &[], vec![config_map("a")]);

    let [WriteStep::Create(created)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(created.key.to_string(), "ns/a");
    assert_eq!(object(created)["metadata"]["namespace"], "ns");
}

#[test]
fn child_of_a_cluster_scoped_parent_must_name_its_namespace() {
    let parent = parent(None);

    assert!(checked(&parent, &[], vec![config_map("a")]).unwrap_err().contains("is required"));
    let mut child = config_map("a");
    child["metadata"]["namespace"] = json!("x");
    assert_eq!(checked(&parent, &[], vec![child]).unwrap()[0].key.to_string(), "x/a");
    let mut namespace = config_map("a");
    namespace["kind"] = json!("Namespace");
    assert_eq!(checked(&parent, &[], vec![namespace.clone()]).unwrap()[0].key.to_string(), "a");
    namespace["metadata"]["namespace"] = json!("x");
    assert!(checked(&parent, &[], vec![namespace]).unwrap_err().contains("must be empty"));
}

#[test]
fn children_of_a_missing_optional_type_are_left_out() {
    let mut late = config_map("a");
    late["apiVersion"] = json!("late.example.com/v1");
    late["kind"] = json!("Late");

    let children = checked(&parent(Some("ns")), &[], vec![late, config_map("b")]).unwrap();

    assert_eq!(children.len(), 1);
}

#[test]
fn hook_may_return_observed_children_unchanged() {
    let mut shown = config_map("a");
    shown["metadata"]["namespace"] = json!("ns");
    shown["metadata"]["uid"] = json!("u");
    shown["metadata"]["ownerReferences"] = json!([{"uid": "parent-uid"}, {"uid": "friend"}]);
    let observed = child(0, "a", shown.clone());

    assert!(checked(&parent(Some("ns")), &[observed], vec![shown]).is_ok());
}

#[test]
fn label_of_a_refused_child_is_not_quoted() {
    for labels in [json!({"app": "x", "hush": 1}), json!({"app": "hush"})] {
        let wrong = refusal("/metadata/labels", labels);

        assert!(wrong.starts_with("children[1].metadata.labels (ConfigMap b): "), "{wrong}");
        assert!(!wrong.contains("hush"), "{wrong}");
    }
}

#[test]
fn a_generated_selector_labels_children() {
    let (parent, groups) = (parent(Some("ns")), groups(UpdateMethod::InPlace));
    let selector = Selector::label("controller-uid", "parent-uid");
    let ownership =
        Ownership::Selected { selector, generated: true, rule: AdoptionRule::default() };
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed: &[],
        restricted: None,
    };

    let children = rules.check(texts(vec![config_map("a")])).unwrap();

    let [planned] = &rules.plan(children)[..] else { panic!("one child") };
    let Ok(Some(WriteStep::Create(created))) = rules.step(planned.clone()) else {
        panic!("it is new")
    };
    let labels = &object(&created)["metadata"]["labels"];
    assert_eq!(labels, &json!({"app": "x", "controller-uid": "parent-uid"}));
}

#[test]
fn a_child_in_a_namespace_that_is_not_watched_is_refused() {
    let (parent, groups, ownership) = (parent(None), groups(UpdateMethod::InPlace), ownership());
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed: &[],
        restricted: Some("seen"),
    };
    let child = |namespace: &str| {
        let mut child = config_map("a");
        child["metadata"]["namespace"] = namespace.into();
        texts(vec![child])
    };

    let refused = rules.check(child("unseen")).unwrap_err();

    assert!(refused.starts_with("children[0].metadata.namespace (ConfigMap a): "), "{refused}");
    assert!(rules.check(child("seen")).is_ok());
}

fn plan(strategy: UpdateMethod, observed: &[Child], children: Vec<Value>) -> Vec<WriteStep> {
    let (parent, groups, ownership) = (parent(Some("ns")), groups(strategy), ownership());
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed,
        restricted: None,
    };
    let desired = rules.check(texts(children)).unwrap();
    let planned = rules.plan(desired).into_iter();
    planned.filter_map(|planned| rules.step(planned).unwrap()).collect()
}

/// Returns the object as the server stores it after the step.
fn object_of(step: &WriteStep) -> Value {
    let (WriteStep::Create(write) | WriteStep::Update(write)) = step else { panic!("{step:?}") };
    let mut object = object(write);
    object["metadata"]["uid"] = json!("stored");
    object["metadata"]["resourceVersion"] = json!("1");
    object
}

/// Returns the child as the server stores it after the step.
fn stored(step: &WriteStep) -> Child {
    let (group, key) = step.target();
    child(group, &key.name, object_of(step))
}

#[test]
fn new_child_has_an_owner_and_the_last_applied_annotation() {
    let steps = plan(UpdateMethod::OnDelete, &[], vec![config_map("a")]);

    let [WriteStep::Create(created)] = &steps[..] else { panic!("{steps:?}") };
    let created = object(created);
    assert_eq!(
        created["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "example.com/v1", "kind": "Thing", "name": "p",
            "uid": "parent-uid", "controller": true, "blockOwnerDeletion": true
        }])
    );
    assert_eq!(
        created["metadata"]["annotations"][last_applied::LAST_APPLIED],
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"app":"x"},"name":"a","namespace":"ns"}}"#
    );
}

#[test]
fn fields_of_the_server_are_not_sent_and_stay_in_the_annotation() {
    let mut sent = config_map("a");
    let server_owned = json!({
        "creationTimestamp": null, "uid": "other", "resourceVersion": "7", "generation": 3,
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 1,
        "managedFields": [], "selfLink": "/x"
    });
    for (field, value) in server_owned.as_object().unwrap() {
        sent["metadata"][field] = value.clone();
    }
    sent["status"] = json!({"z": 1, "a": 1e-7});
    let remembered = concat!(
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"creationTimestamp":null,"#,
        r#""deletionGracePeriodSeconds":1,"deletionTimestamp":"2026-01-01T00:00:00Z","#,
        r#""generation":3,"labels":{"app":"x"},"managedFields":[],"name":"a","namespace":"ns","#,
        r#""resourceVersion":"7","selfLink":"/x","uid":"other"},"status":{"a":1e-7,"z":1}}"#
    );

    let steps = plan(UpdateMethod::InPlace, &[], vec![sent.clone()]);

    let [WriteStep::Create(created)] = &steps[..] else { panic!("{steps:?}") };
    let metadata = &object(created)["metadata"];
    for field in server_owned.as_object().unwrap().keys() {
        assert_eq!(metadata.get(field), None, "{field}");
    }
    assert_eq!(metadata["annotations"][last_applied::LAST_APPLIED], remembered);
    assert_eq!(plan(UpdateMethod::InPlace, &[stored(&steps[0])], vec![sent.clone()]), []);
    sent["data"] = json!({"k": "v"});
    let updates = plan(UpdateMethod::InPlace, &[stored(&steps[0])], vec![sent]);
    let [WriteStep::Update(update)] = &updates[..] else { panic!("{updates:?}") };
    let expected = remembered.replace(r#","kind""#, r#","data":{"k":"v"},"kind""#);
    assert_eq!(object(update)["metadata"]["annotations"][last_applied::LAST_APPLIED], expected);
    assert_eq!(object(update)["metadata"]["uid"], "stored");
}

#[test]
fn owners_that_a_hook_adds_are_kept() {
    let mut sent = config_map("a");
    let other = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node"});
    sent["metadata"]["ownerReferences"] = json!([other, {"uid": "parent-uid"}]);

    let steps = plan(UpdateMethod::InPlace, &[], vec![sent.clone()]);

    let [WriteStep::Create(created)] = &steps[..] else { panic!("{steps:?}") };
    let created = object(created);
    let owners = created["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!((owners.len(), &owners[0], &owners[1]["uid"]), (2, &other, &json!("parent-uid")));
    assert_eq!(owners[1]["controller"], true);
    assert_eq!(plan(UpdateMethod::InPlace, &[stored(&steps[0])], vec![sent]), []);
    let without = plan(UpdateMethod::InPlace, &[stored(&steps[0])], vec![config_map("a")]);
    let [WriteStep::Update(update)] = &without[..] else { panic!("{without:?}") };
    assert_eq!(object(update)["metadata"]["ownerReferences"], json!([owners[1]]));
}

#[test]
fn update_leaves_the_owner_of_a_child_as_it_is() {
    let mut observed = object_of(&plan(UpdateMethod::InPlace, &[], vec![config_map("a")])[0]);
    observed["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(false);
    let owners = observed["metadata"]["ownerReferences"].clone();
    let observed = [child(0, "a", observed)];
    let mut changed = config_map("a");

    assert_eq!(plan(UpdateMethod::InPlace, &observed, vec![changed.clone()]), []);
    changed["data"] = json!({"k": "v"});
    let updates = plan(UpdateMethod::InPlace, &observed, vec![changed]);

    let [WriteStep::Update(update)] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(object(update)["metadata"]["ownerReferences"], owners);
}

#[test]
fn child_in_its_desired_state_is_not_written() {
    for strategy in [UpdateMethod::OnDelete, UpdateMethod::Recreate, UpdateMethod::InPlace] {
        let created = plan(strategy, &[], vec![config_map("a")]);

        let steps = plan(strategy, &[stored(&created[0])], vec![config_map("a")]);

        assert_eq!(steps, []);
    }
}

#[test]
fn child_that_differs_is_updated_by_its_strategy() {
    let observed = stored(&plan(UpdateMethod::InPlace, &[], vec![config_map("a")])[0]);
    let mut changed = config_map("a");
    changed["data"] = json!({"k": "v"});
    let steps = |strategy| plan(strategy, std::slice::from_ref(&observed), vec![changed.clone()]);

    assert_eq!(steps(UpdateMethod::OnDelete), []);
    let recreates = steps(UpdateMethod::Recreate);
    let [WriteStep::Recreate { uid, created, observed: old, merged }] = &recreates[..] else {
        panic!("{recreates:?}")
    };
    assert_eq!((&**uid, &created.key), ("stored", &observed.key));
    assert_eq!(
        [WriteStep::Create(created.clone())],
        plan(UpdateMethod::Recreate, &[], vec![changed.clone()])[..],
        "the dry run creates the same object"
    );
    let updates = steps(UpdateMethod::InPlace);
    let [WriteStep::Update(update)] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(object(update)["data"], json!({"k": "v"}));
    assert_eq!(object(update)["metadata"]["resourceVersion"], "1");
    assert_eq!(update.replaces.as_deref(), Some("1"));
    assert_eq!(merged, &update.body, "it is compared by the update that it does not get");
    assert_eq!(old[..], observed.object.json()[..]);
    assert_eq!(plan(UpdateMethod::InPlace, &[stored(&updates[0])], vec![changed.clone()]), []);
}

#[test]
fn children_that_are_not_desired_are_deleted_first() {
    let observed = |name: &str| {
        let mut object = config_map(name);
        object["metadata"]["namespace"] = json!("ns");
        child(0, name, object)
    };
    let mut deployment = config_map("d");
    deployment["apiVersion"] = json!("apps/v1");
    deployment["kind"] = json!("Deployment");

    let steps = plan(
        UpdateMethod::OnDelete,
        &[observed("z"), observed("y")],
        vec![deployment, config_map("b"), config_map("a")],
    );

    let name = |step: &WriteStep| match step {
        WriteStep::Delete { key, .. } | WriteStep::TransferFields { key, .. } => {
            key.name.to_string()
        }
        WriteStep::Create(write) | WriteStep::Update(write) => write.key.name.to_string(),
        WriteStep::Recreate { created, .. } => created.key.name.to_string(),
    };
    let names: Vec<_> = steps.iter().map(name).collect();
    assert_eq!(names, ["y", "z", "b", "a", "d"]);
    assert!(matches!(steps[..], [WriteStep::Delete { .. }, WriteStep::Delete { .. }, ..]));
}

#[test]
fn terminating_children_are_not_written() {
    let mut going = config_map("a");
    going["metadata"]["namespace"] = json!("ns");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let observed = [child(0, "a", going)];

    assert_eq!(plan(UpdateMethod::InPlace, &observed, vec![config_map("a")]), []);
    assert_eq!(plan(UpdateMethod::InPlace, &observed, vec![]), []);
}

#[test]
fn a_child_that_cannot_be_read_is_an_error_that_names_it() {
    let (parent, groups, ownership) =
        (parent(Some("ns")), groups(UpdateMethod::InPlace), ownership());
    let mut broken = child(0, "a", config_map("a"));
    broken.key.namespace = Some("ns".into());
    broken.object = crate::informer::fixture::undecoded("{".to_owned());
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed: &[broken],
        restricted: None,
    };
    let desired = rules.check(texts(vec![config_map("a")])).unwrap();

    let [planned] = &rules.plan(desired)[..] else { panic!("one child") };
    let error = rules.step(planned.clone()).unwrap_err();

    assert!(error.starts_with("ConfigMap ns/a is unreadable: "), "{error}");
}

#[test]
fn child_too_large_for_its_annotation_is_an_error_before_it_is_built() {
    let (parent, groups, ownership) =
        (parent(Some("ns")), groups(UpdateMethod::OnDelete), ownership());
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &ownership,
        observed: &[],
        restricted: None,
    };
    let step = |bytes: usize| {
        let mut large = config_map("a");
        // The rest is `apiVersion`, `kind` and the braces.
        large["data"] = json!({ "k": "x".repeat(bytes - 23) });
        // Neither whitespace nor the status is counted.
        large["status"] = json!({ "text": "x".repeat(MAX_REMEMBERED_BYTES) });
        let text = serde_json::to_string_pretty(&large).unwrap();
        let desired = rules.check(vec![text.into()]).unwrap();
        rules.step(rules.plan(desired).remove(0))
    };

    let Ok(Some(WriteStep::Create(created))) = step(MAX_REMEMBERED_BYTES) else {
        panic!("it fits")
    };
    assert_eq!(object(&created)["status"]["text"].as_str().map(str::len), Some(256 * 1024));
    let error = step(MAX_REMEMBERED_BYTES + 1).unwrap_err();
    assert!(error.starts_with("ConfigMap ns/a has 262145 bytes, too many for its"), "{error}");
}

#[test]
fn metadata_too_large_for_any_server_refuses_the_child() {
    let of = |bytes: usize| {
        let mut large = config_map("a");
        large["metadata"]["annotations"] = json!({ "k": "" });
        let rest = large["metadata"].to_string().len();
        large["metadata"]["annotations"]["k"] = json!("x".repeat(bytes - rest));
        checked(&parent(Some("ns")), &[], vec![large])
    };

    assert!(of(512 * 1024).is_ok());
    let error = of(512 * 1024 + 1).unwrap_err();
    assert!(error.starts_with("children[0] (ConfigMap a): metadata has 524289"), "{error}");
}

#[test]
fn message_about_a_child_does_not_quote_it() {
    let mut child = config_map("a");
    child["kind"] = "é".repeat(100_000).into();

    let error = checked(&parent(Some("ns")), &[], vec![child]).unwrap_err();

    assert!(error.len() < 600, "{}", error.len());
}

#[test]
fn attachment_is_created_with_the_annotation_of_its_decorator() {
    let parent = parent(Some("ns"));
    let groups = groups(UpdateMethod::InPlace);
    let rules = ChildContext {
        parent: &parent,
        groups: &groups,
        missing: &[],
        ownership: &Ownership::Annotated { controller: "things".to_owned() },
        observed: &[],
        restricted: None,
    };
    let attachment = |kind: &str, annotations: Value| {
        let metadata = json!({"name": "a", "annotations": annotations});
        json!({"apiVersion": "v1", "kind": kind, "metadata": metadata})
    };
    let annotated = attachment("ConfigMap", json!({"a": "b"}));
    let desired = rules.check(texts(vec![annotated])).unwrap();

    let planned = rules.plan(desired).remove(0);
    let Some(WriteStep::Create(write)) = rules.step(planned).unwrap() else { panic!("no create") };
    let mut created = object(&write);
    let metadata = created["metadata"].as_object_mut().unwrap();
    let annotations = metadata["annotations"].as_object_mut().unwrap();
    let remembered = annotations.remove(last_applied::LAST_APPLIED).unwrap();
    let expected = json!({"a": "b", DECORATED_BY: "things"});
    assert_eq!(json!(annotations), expected);
    let remembered: Value = serde_json::from_str(remembered.as_str().unwrap()).unwrap();
    assert_eq!(remembered["metadata"]["annotations"], expected);
    assert_eq!(metadata["ownerReferences"], json!([owner_reference(&parent)]));
    let refused = rules.check(texts(vec![attachment("ConfigMap", json!([]))])).unwrap_err();
    let expected = "attachments[0].metadata.annotations (ConfigMap a): ";
    assert!(refused.starts_with(expected), "{refused}");
    let refused = rules.check(texts(vec![attachment("Pod", json!({}))])).unwrap_err();
    let expected = "attachments[0] (Pod a): Pod of v1 is not declared in spec.attachments; ";
    assert!(refused.starts_with(expected), "{refused}");
}
