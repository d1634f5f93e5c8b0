//! Comparison of our schemas with Metacontroller's, whose facts are in `metacontroller.txt`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::crds;

/// Line of the facts.
struct Field<'a> {
    name: &'a str,
    required: bool,
    /// True if the type is a list.
    list: bool,
    type_: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Field<'a> {
    fn read(line: &'a str) -> Self {
        let mut words = line.split_whitespace();
        let (name, type_) = (words.next().unwrap(), words.next().unwrap());
        Self {
            name: name.trim_end_matches('!'),
            required: name.ends_with('!'),
            list: type_.starts_with("[]"),
            type_: type_.trim_start_matches("[]"),
            rest: words.collect(),
        }
    }

    fn marked(&self, mark: char) -> Vec<&'a str> {
        self.rest.iter().filter_map(|word| word.strip_prefix(mark)).collect()
    }
}

/// Fields of each type of object, and whether it is atomic.
type Blocks<'a> = BTreeMap<&'a str, (bool, Vec<Field<'a>>)>;

fn blocks() -> Blocks<'static> {
    let lines = include_str!("metacontroller.txt").lines();
    let (mut blocks, mut name) = (Blocks::new(), "");
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            blocks.get_mut(name).unwrap().1.push(Field::read(line));
        } else {
            let atomic = line.ends_with(" atomic");
            name = line.split(' ').next().unwrap();
            assert!(blocks.insert(name, (atomic, Vec::new())).is_none(), "{name} twice");
        }
    }
    blocks
}

/// Differences of a schema from a block, by path.
fn object(blocks: &Blocks<'_>, block: &str, path: &str, ours: &Value, wrong: &mut Vec<String>) {
    let (atomic, fields) = &blocks[block];
    let map_type = &ours["x-kubernetes-map-type"];
    if *map_type != if *atomic { json!("atomic") } else { Value::Null } {
        wrong.push(format!("{path}: map type {map_type}"));
    }
    only(path, ours, &["properties", "required", "x-kubernetes-map-type"], wrong);
    for required in ours["required"].as_array().into_iter().flatten() {
        let field = fields.iter().find(|field| required == field.name);
        if !field.is_some_and(|field| field.required) {
            wrong.push(format!("{path}: {required} is required"));
        }
    }
    for field in fields {
        let path = format!("{path}.{}", field.name);
        let Some(schema) = ours["properties"].get(field.name) else {
            wrong.push(format!("{path}: is missing"));
            continue;
        };
        if !field.list {
            value(blocks, field, &path, schema, wrong);
            continue;
        }
        let list_type = &schema["x-kubernetes-list-type"];
        let expected = if field.rest.contains(&"atomic") { json!("atomic") } else { Value::Null };
        if schema["type"] != "array" || *list_type != expected {
            wrong.push(format!("{path}: type {}, list type {list_type}", schema["type"]));
        }
        only(&path, schema, &["items", "x-kubernetes-list-type"], wrong);
        value(blocks, field, &format!("{path}[]"), &schema["items"], wrong);
    }
}

fn value(
    blocks: &Blocks<'_>,
    field: &Field<'_>,
    path: &str,
    ours: &Value,
    wrong: &mut Vec<String>,
) {
    let type_ = match field.type_ {
        "string" | "boolean" | "integer" => field.type_,
        _ => "object",
    };
    if ours["type"] != type_ {
        wrong.push(format!("{path}: type {}", ours["type"]));
    }
    match field.type_ {
        "any" => {
            if ours["x-kubernetes-preserve-unknown-fields"] != true {
                wrong.push(format!("{path}: prunes fields"));
            }
            only(path, ours, &["x-kubernetes-preserve-unknown-fields"], wrong);
        }
        "map" => {
            if ours["additionalProperties"]["type"] != "string" {
                wrong.push(format!("{path}: values are no strings"));
            }
            only(path, ours, &["additionalProperties"], wrong);
        }
        // Metacontroller's status has no fields, so that nothing can be lost.
        "object" => {}
        "string" | "boolean" | "integer" => {
            let default = field.marked('=').first().map_or(Value::Null, |text| json!(text));
            let allowed = field.marked('|');
            let allowed = if allowed.is_empty() { Value::Null } else { json!(allowed) };
            let format = match field.type_ {
                "integer" => json!("int32"),
                _ => field.marked('~').first().map_or(Value::Null, |text| json!(text)),
            };
            for (keyword, expected) in [("default", default), ("enum", allowed), ("format", format)]
            {
                if ours[keyword] != expected {
                    wrong.push(format!("{path}: {keyword} {}, not {expected}", ours[keyword]));
                }
            }
            only(path, ours, &["default", "enum", "format"], wrong);
        }
        block => object(blocks, block, path, ours, wrong),
    }
}

/// Names every other keyword: a pattern, a bound or a rule would refuse what Metacontroller
/// accepts.
fn only(path: &str, ours: &Value, keywords: &[&str], wrong: &mut Vec<String>) {
    for keyword in ours.as_object().into_iter().flat_map(|schema| schema.keys()) {
        if !["type", "title", "description"].iter().chain(keywords).any(|known| known == keyword) {
            wrong.push(format!("{path}: {keyword}"));
        }
    }
}

#[track_caller]
fn check(
    kind: &str,
    scope: &str,
    short_names: Value,
    change: impl FnOnce(&mut Value),
) -> Vec<String> {
    let crds: Vec<Value> = crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let crd = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    let names = &crd["spec"]["names"];
    assert_eq!(names["plural"], format!("{}s", kind.to_lowercase()));
    assert_eq!(names["singular"], kind.to_lowercase());
    assert_eq!(names.get("shortNames").unwrap_or(&json!([])), &short_names);
    assert_eq!(crd["spec"]["group"], "metacontroller.k8s.io");
    assert_eq!(crd["spec"]["scope"], scope);
    let approval = "unapproved, request not yet submitted";
    assert_eq!(crd["metadata"]["annotations"]["api-approved.kubernetes.io"], approval);
    let [version] = &crd["spec"]["versions"].as_array().unwrap()[..] else { panic!("versions") };
    assert_eq!(version["name"], "v1alpha1");
    assert_eq!((&version["served"], &version["storage"]), (&json!(true), &json!(true)));
    assert_eq!(version["subresources"], json!({"status": {}}));
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    change(&mut schema);
    let mut wrong = Vec::new();
    object(&blocks(), kind, "", &schema, &mut wrong);
    wrong
}

#[test]
fn each_schema_accepts_what_metacontroller_accepts_with_the_same_defaults() {
    let none = Vec::<String>::new();

    assert_eq!(check("CompositeController", "Cluster", json!(["cc", "cctl"]), |_| ()), none);
    assert_eq!(check("DecoratorController", "Cluster", json!(["dec", "decorators"]), |_| ()), none);
    assert_eq!(check("ControllerRevision", "Namespaced", json!([]), |_| ()), none);
}

#[test]
fn schema_that_refuses_or_loses_more_is_reported_by_its_path() {
    let spec = "/properties/spec";
    for (pointer, keyword, value, expected) in [
        (spec, "required", json!(["hooks", "parentResource"]), r#".spec: "hooks" is required"#),
        (spec, "x-kubernetes-validations", json!([]), ".spec: x-kubernetes-validations"),
        ("/properties/spec/properties", "hooks", Value::Null, ".spec.hooks: type null"),
        (
            "/properties/spec/properties/resyncPeriodSeconds",
            "minimum",
            json!(1),
            ".spec.resyncPeriodSeconds: minimum",
        ),
        (
            "/properties/spec/properties/hooks/properties/sync/properties/version",
            "default",
            json!("v2"),
            r#".spec.hooks.sync.version: default "v2", not "v1""#,
        ),
        (
            "/properties/spec/properties/endpointConfigs/items/properties/host",
            "nullable",
            json!(true),
            ".spec.endpointConfigs[].host: nullable",
        ),
    ] {
        let wrong = check("CompositeController", "Cluster", json!(["cc", "cctl"]), |schema| {
            schema.pointer_mut(pointer).unwrap()[keyword] = value;
        });

        assert_eq!(wrong.first().map(String::as_str), Some(expected), "{pointer} {keyword}");
    }
}
