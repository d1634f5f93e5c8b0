use serde_json::{Value, json};

use super::*;
use crate::informer::fixture::widgets;

fn decode(json: &str) -> Result<Object, ObjectError> {
    Object::from_json(json, &widgets())
}

fn value(object: &Object) -> Value {
    serde_json::from_slice(&object.json()).unwrap()
}

#[test]
fn the_header_is_read_and_the_rest_is_kept_as_it_is() {
    let json = r#"{"apiVersion":"example.com/v1","kind":"Widget","spec":{ "a" : [1,2] },
        "metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"7",
        "generation":3,"deletionTimestamp":"2026-01-02T03:04:05Z","labels":{"x":"1"},
        "annotations":{"y":null},"finalizers":["f"],"ownerReferences":[
        {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"o","uid":"ou","controller":true},
        {"apiVersion":"v1","kind":"Pod","name":"p","uid":"pu"}]}}"#;

    let object = decode(json).unwrap();

    let header = object.header();
    assert_eq!(header.key, ObjectKey::namespaced("ns", "a"));
    assert_eq!((&*header.uid, &*header.resource_version, header.generation), ("u", "7", 3));
    assert_eq!(header.deletion_timestamp, Some("2026-01-02T03:04:05Z".parse().unwrap()));
    assert_eq!(header.labels.get("x"), Some("1"));
    assert_eq!(header.annotations.get("y"), Some(""));
    assert_eq!(header.finalizers, ["f"]);
    assert_eq!(header.owners[0].kind.group, "apps");
    assert_eq!(header.owners[1].kind.group, "");
    assert_eq!(object.controller().map(|owner| &*owner.uid), Some("ou"));
    assert_eq!(object.json(), json.as_bytes());
}

#[track_caller]
fn check_cut(metadata: &str, expected: &str) {
    let whole = format!(r#"{{"apiVersion":"a","kind":"b","metadata":{metadata},"spec":1}}"#);

    let object = decode(&whole).unwrap();

    let expected = format!(r#"{{"apiVersion":"a","kind":"b","metadata":{expected},"spec":1}}"#);
    assert_eq!(std::str::from_utf8(&object.json()).unwrap(), expected);
    assert!(value(&object).is_object());
}

#[test]
fn managed_fields_are_cut_with_one_comma() {
    check_cut(r#"{"managedFields":[{"f":{}}],"name":"a"}"#, r#"{"name":"a"}"#);
    check_cut(r#"{"name":"a","managedFields":[]}"#, r#"{"name":"a"}"#);
    check_cut(r#"{"name":"a" , "managedFields" : [] }"#, r#"{"name":"a"  }"#);
    check_cut(r#"{"name":"a","managedFields":[],"uid":"u"}"#, r#"{"name":"a","uid":"u"}"#);
    check_cut(
        r#"{"name":"a","annotations":{"managedFields":"1"}}"#,
        r#"{"name":"a","annotations":{"managedFields":"1"}}"#,
    );
}

#[test]
fn managed_fields_with_an_escaped_name_stay() {
    let spelt = r#"{"name":"a","managed\u0046ields":[]}"#;

    check_cut(spelt, spelt);
}

#[test]
fn managed_fields_stay_on_request() {
    let json = r#"{"apiVersion":"a","kind":"b","metadata":{"name":"a","managedFields":[1]}}"#;

    let object = Decoder::new(&widgets(), Projection::Full, true).decode(json, |_| true).unwrap();

    assert_eq!(object.json(), json.as_bytes());
}

#[test]
fn a_list_item_gets_the_type_that_the_list_left_out() {
    let object = decode(r#" {"metadata":{"name":"a"}} "#).unwrap();

    let expected = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
    });
    assert_eq!(value(&object), expected);
}

#[test]
fn a_projection_keeps_less() {
    let json = r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","spec":1,
        "metadata":{"managedFields":[],"name":"a","uid":"u","labels":{"x":"1"}}}"#;

    let metadata =
        Decoder::new(&widgets(), Projection::Metadata, false).decode(json, |_| true).unwrap();
    let key = Decoder::new(&widgets(), Projection::Keys, false).decode(json, |_| true).unwrap();

    let expected = json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "a", "uid": "u", "labels": {"x": "1"}},
    });
    assert_eq!(value(&metadata), expected);
    assert_eq!(metadata.header().labels.get("x"), Some("1"));
    assert!(key.json().is_empty());
    assert!(key.header().labels.is_empty());
    assert_eq!(&*key.header().uid, "u");
}

/// Decodes as a cache with a transform does.
fn transform(
    json: &str,
    projection: Projection,
    change: impl Fn(&mut Value) + Send + Sync + 'static,
) -> Result<Object, ObjectError> {
    let transform = Some(Transform::new(change));
    let key = InformerKey { projection, transform, ..InformerKey::new(widgets().identity) };
    Object::cached_by(&key, json, &widgets())
}

#[test]
fn transform_changes_content_and_details_of_the_header_but_no_relations() {
    let json = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "spec": {"large": "text"},
        "metadata": {
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "labels": {"x": "1"}, "annotations": {"y": "2"}, "finalizers": ["f"], "generation": 3,
            "deletionTimestamp": "2026-01-02T03:04:05Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pu"}],
        },
    });
    let plain = decode(&json.to_string()).unwrap();

    let object = transform(&json.to_string(), Projection::Full, |object| {
        *object = json!({"metadata": {"name": "b", "annotations": {"z": "3"}}});
    });

    let object = object.unwrap();
    let expected = json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "annotations": {"z": "3"},
        },
    });
    assert_eq!(value(&object), expected);
    assert_eq!(object.reduced().header(), plain.reduced().header(), "as a metadata entry has it");
    let header = object.header();
    assert_eq!(header.annotations.iter().collect::<Vec<_>>(), [("z", "3")]);
    assert_eq!((header.generation, header.finalizers.len()), (0, 0));
    assert!(object.accounted() < plain.accounted());
}

#[test]
fn failed_transform_is_an_error_of_its_object() {
    #[track_caller]
    fn check(change: fn(&mut Value), field: &str, reason: &str) {
        let json = r#"{"metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"7"}}"#;

        let error = transform(json, Projection::Full, change).unwrap_err();

        assert_eq!(error.field, field);
        assert!(error.reason.starts_with(reason), "{error}");
        assert_eq!(error.key, Some(ObjectKey::namespaced("ns", "a")));
        assert_eq!(error.uid.as_deref(), Some("u"));
        assert_eq!(error.resource_version.as_deref(), Some("7"));
    }

    check(|_| panic!("boom"), "object", "transform panicked: boom");
    check(|object| *object = json!([]), "object", "transform left no object");
    check(
        |object| object["metadata"]["generation"] = json!("x"),
        "metadata.generation",
        "invalid type: string",
    );
}

#[test]
fn object_that_is_no_tree_is_an_error_if_it_is_to_be_transformed() {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for spec in [deep.as_str(), "1e999", r#""\ud800""#] {
        let json = format!(r#"{{"spec":{spec},"metadata":{{"name":"a"}}}}"#);

        let error = transform(&json, Projection::Full, |_| {}).unwrap_err();

        assert_eq!((error.field, error.key), ("object", Some(ObjectKey::cluster("a"))));
        assert!(transform(&json, Projection::Metadata, |_| {}).is_ok());
    }
}

#[test]
fn transform_applies_to_what_the_projection_keeps_of_whole_objects() {
    let json = r#"{"metadata":{"name":"a","managedFields":[],"labels":{"x":"1"}},"spec":1}"#;
    let seen = |projection| {
        let object = transform(json, projection, |object| {
            let members: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
            let metadata: Vec<_> = object["metadata"].as_object().unwrap().keys().collect();
            *object = json!({"seen": format!("{members:?} {metadata:?}")});
        });
        let object = object.unwrap();
        if object.json().is_empty() { Value::Null } else { value(&object)["seen"].clone() }
    };

    let whole = r#"["apiVersion", "kind", "metadata", "spec"] ["labels", "name"]"#;
    assert_eq!(seen(Projection::Full), whole);
    let metadata = r#"["apiVersion", "kind", "metadata"] ["labels", "name"]"#;
    assert_eq!(seen(Projection::Metadata), metadata);
    assert_eq!(seen(Projection::Keys), Value::Null);
    let transform = Some(Transform::new(|_| panic!("boom")));
    let key = InformerKey { transform, ..InformerKey::new(widgets().identity) };
    assert!(Decoder::of(&key, &widgets()).decode(json, |_| false).is_ok(), "a metadata entry");
}

#[test]
fn copies_of_the_object_are_left_out_of_the_annotations() {
    let copies = ["kubectl.kubernetes.io", "metacontroller.k8s.io"]
        .map(|client| format!("{client}/last-applied-configuration"));
    for copy in &copies {
        let json = json!({"metadata": {"name": "a", "annotations": {copy: "{}", "other": "x"}}});

        let object = decode(&json.to_string()).unwrap();

        assert!(!object.header().annotations.contains_key(copy));
        assert!(object.header().annotations.contains_key("other"));
        assert!(value(&object)["metadata"]["annotations"][copy].is_string());
    }
}

#[test]
fn copy_of_the_object_is_a_text_or_null_in_any_spelling() {
    let of = |copy: &str| {
        let key = "\\u006betacontroller.k8s.io/last-applied-configuration";
        let annotations = format!(r#"{{"other":"x","{key}":{copy},"other":"y"}}"#);
        decode(&format!(r#"{{"metadata":{{"name":"a","annotations":{annotations}}}}}"#))
    };

    for copy in [r#""""#, "null", r#""{\"a\":\"\\\"\"}""#] {
        let header = of(copy).unwrap().header().clone();
        assert_eq!(header.annotations.iter().collect::<Vec<_>>(), [("other", "y")], "{copy}");
    }
    for copy in ["1", "{}", "[]", "true"] {
        assert_eq!(of(copy).unwrap_err().field, "metadata.annotations", "{copy}");
    }
}

#[track_caller]
fn check_error(json: &str, field: &str, key: Option<&str>) {
    let error = decode(json).unwrap_err();

    assert_eq!(error.field, field, "{error}");
    assert_eq!(error.key.map(|key| key.to_string()).as_deref(), key);
}

#[test]
fn an_error_names_the_field_and_the_object() {
    check_error("", "object", None);
    check_error("null", "object", None);
    check_error("[]", "object", None);
    check_error(r#"{"metadata":{"name":"a"}"#, "object", None);
    check_error("{}", "metadata", None);
    check_error(r#"{"metadata":null}"#, "metadata", None);
    check_error(r#"{"metadata":5}"#, "metadata", None);
    check_error(r#"{"metadata":["a"]}"#, "metadata", None);
    check_error(r#"{"metadata":{}}"#, "metadata.name", None);
    check_error(r#"{"metadata":{"name":5}}"#, "metadata.name", None);
    check_error(r#"{"metadata":{"name":""}}"#, "metadata.name", None);
    check_error(r#"{"metadata":{"name":"\ud800"}}"#, "metadata.name", None);
    check_error(r#"{"metadata":{"name":"a","namespace":[]}}"#, "metadata.namespace", None);
    check_error(r#"{"metadata":{"name":"a","uid":{}}}"#, "metadata.uid", Some("a"));
    for (field, wrong) in [
        ("resourceVersion", "7"),
        ("generation", "1e999"),
        ("generation", "\"1\""),
        ("deletionTimestamp", "\"yesterday\""),
        ("deletionTimestamp", "0"),
        ("labels", "[]"),
        ("labels", r#"{"a":1}"#),
        ("labels", r#"{"a":"\ud800"}"#),
        ("annotations", "true"),
        ("ownerReferences", "{}"),
        ("ownerReferences", r#"[{"controller":"yes"}]"#),
        ("ownerReferences", "[null]"),
        ("finalizers", "[1]"),
    ] {
        let json = format!(
            r#"{{"metadata":{{"{field}":{wrong},"name":"a","namespace":"ns","uid":"u"}}}}"#
        );
        check_error(&json, &format!("metadata.{field}"), Some("ns/a"));
    }
}

#[test]
fn repeated_member_changes_nothing_else() {
    let fields = r#""namespace":"ns","uid":"u","resourceVersion":"7","generation":3,
        "deletionTimestamp":"2026-01-02T03:04:05Z","labels":{"x":"1","y":null},
        "annotations":{"y":"\"2\"","z":null},"finalizers":["f"],
        "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"o","uid":"ou"}],
        "managedFields":[{"f":{}}]"#;
    for projection in [Projection::Full, Projection::Metadata, Projection::Keys] {
        let of = |name: &str| {
            let json = format!(r#"{{"metadata":{{{name},{fields}}},"spec":1}}"#);
            Decoder::new(&widgets(), projection, false).decode(&json, |_| true).unwrap()
        };

        let (plain, repeated) = (of(r#""name":"b""#), of(r#""name":"a","name":"b""#));

        assert_eq!(plain.header(), repeated.header());
        let json = |object: &Object| String::from_utf8(object.json().to_vec()).unwrap();
        assert_eq!(json(&plain), json(&repeated).replace(r#""name":"a","#, ""));
        assert!(!json(&plain).contains("managedFields"));
    }
}

#[test]
fn malformed_fields_matter_only_to_objects_whose_header_has_them() {
    let of = |field: &str, projection, is_whole| {
        let json = format!(r#"{{"metadata":{{"name":"a","uid":"u","{field}":true}}}}"#);
        Decoder::new(&widgets(), projection, false).decode(&json, |_| is_whole)
    };

    for details in ["annotations", "finalizers", "generation"] {
        let entry = of(details, Projection::Full, false).unwrap();
        assert_eq!(&*entry.header().uid, "u", "{details}");
        assert!(of(details, Projection::Full, true).is_err(), "{details}");
        assert!(of(details, Projection::Keys, true).is_ok(), "{details}");
    }
    for relation in ["deletionTimestamp", "labels", "ownerReferences"] {
        assert!(of(relation, Projection::Full, false).is_err(), "{relation}");
        assert!(of(relation, Projection::Keys, true).is_ok(), "{relation}");
    }
}

#[test]
fn an_error_carries_uid_and_resource_version() {
    let error =
        decode(r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"9","labels":["x"]}}"#)
            .unwrap_err();

    assert_eq!(error.uid.as_deref(), Some("u"));
    assert_eq!(error.resource_version.as_deref(), Some("9"));
    assert!(error.to_string().starts_with("metadata.labels: invalid type"), "{error}");
    let error = decode(r#"{"metadata":{"uid":5}}"#).unwrap_err();
    assert_eq!((error.uid, error.resource_version.as_deref()), (None, Some("")), "absent");
}

#[test]
fn fields_that_the_header_does_not_need_may_have_any_content() {
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for spec in [deep.as_str(), "1e999", r#""\ud800""#, r#"{"a":1,"a":2}"#] {
        let json = format!(r#"{{"spec":{spec},"metadata":{{"name":"a"}}}}"#);

        assert!(decode(&json).is_ok());
    }
}

#[test]
fn last_of_repeated_members_counts() {
    let object = decode(r#"{"metadata":5,"metadata":{"name":"a","name":"b"}}"#).unwrap();

    assert_eq!(&*object.key().name, "b");
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    let json = b"{\"metadata\":{\"name\":\"a\",\"labels\":{\"x\":\"\xff\"}}}";

    let object = Object::from_json(json, &widgets()).unwrap();

    assert_eq!(object.header().labels.get("x"), Some("\u{fffd}"));
}

#[test]
fn namespaces_without_objects_are_forgotten() {
    let mut decoder = Decoder::new(&widgets(), Projection::Keys, false);
    let object =
        |namespace: usize| format!(r#"{{"metadata":{{"name":"a","namespace":"ns-{namespace}"}}}}"#);
    let kept = decoder.decode(&object(0), |_| true).unwrap();

    for namespace in 1..10_000 {
        decoder.decode(&object(namespace), |_| true).unwrap();
    }

    assert!(decoder.namespaces.values.len() <= SWEEP_AT_LEAST);
    let again = decoder.decode(&object(0), |_| true).unwrap();
    let namespace = |object: &Object| object.key().namespace.clone().unwrap();
    assert!(Arc::ptr_eq(&namespace(&kept), &namespace(&again)));
}

#[test]
fn object_whose_labels_owners_or_finalizers_are_too_long_is_an_error() {
    let label = |len: usize| format!(r#""labels":{{"x":"{}"}}"#, "y".repeat(len));
    let many = |what: &str, count: usize| vec![what; count].join(",");
    let owner = r#"{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}"#;
    let object = |field: &str| {
        decode(&format!(r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"7",{field}}}}}"#))
    };

    assert!(object(&label(HEADER_MAX_BYTES - 1)).is_ok());
    assert!(object(&format!(r#""annotations":{{"x":"{}"}}"#, "y".repeat(200_000))).is_ok());
    assert!(object(&format!(r#""ownerReferences":[{}]"#, many(owner, 1000))).is_ok());
    for field in [
        label(HEADER_MAX_BYTES),
        format!(r#""ownerReferences":[{}]"#, many(r#"{"controller":true}"#, 2000)),
        format!(r#""finalizers":[{}]"#, many(r#""example.com/f""#, 2000)),
    ] {
        let error = object(&field).unwrap_err();
        assert_eq!((error.field, error.uid.as_deref()), ("metadata", Some("u")), "{field}");
        assert_eq!(error.key, Some(ObjectKey::cluster("a")));
        assert!(error.reason.contains("of at most 65536"), "{}", error.reason);
    }
}

#[test]
fn object_of_very_many_owners_keeps_the_controller_among_them() {
    let owner = r#"{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}"#;
    let controller = r#"{"apiVersion":"v1","kind":"Pod","name":"c","uid":"c","controller":true}"#;
    let owners = [vec![owner; 1000], vec![controller], vec![owner; 1000]].concat().join(",");
    let labels = r#""labels":{"app":"x"}"#;

    let object = format!(r#"{{"metadata":{{"name":"a",{labels},"ownerReferences":[{owners}]}}}}"#);
    let object = decode(&object).unwrap();

    let [owner] = &object.header().owners[..] else { panic!("{object:?}") };
    assert_eq!((&*owner.name, owner.controller), ("c", true));
    assert_eq!(object.header().labels.get("app"), Some("x"));
}

#[test]
fn objects_of_one_owner_share_its_reference() {
    let json = |name: &str, owner: &str| {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner});
        json!({"metadata": {"name": name, "ownerReferences": [owner]}}).to_string()
    };
    let mut decoder = Decoder::new(&widgets(), Projection::Full, false);
    let mut owners = |name: &str, owner: &str| {
        decoder.decode(&json(name, owner), |_| true).unwrap().header().owners.clone()
    };

    let (first, second, other) = (owners("a", "p"), owners("b", "p"), owners("c", "q"));

    assert!(Arc::ptr_eq(&first, &second));
    assert_ne!(first, other);
    drop((first, second, other));
    for index in 0..1000 {
        owners("d", &index.to_string());
    }
    assert!(decoder.owners.values.len() <= SWEEP_AT_LEAST, "owners without objects are forgotten");
}
