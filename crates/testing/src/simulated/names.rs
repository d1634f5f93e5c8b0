//! Validation of names, labels, annotations, finalizers and owner references.

use serde_json::Value;

use super::{object, refusal::FieldFault, resource::SimulatedResource};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
    or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
    regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

pub(super) const LABEL_VALUE: &str = "a valid label must be an empty string or consist of \
    alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
    (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start \
    and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
    used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Limit in bytes for all annotation keys and values of one object, as on the real server.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Finalizers without a domain that are valid.
const WELL_KNOWN: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

pub(super) fn validate_metadata(resource: &SimulatedResource, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let name = object::name(object);
    if name.is_empty() {
        let why = "name or generateName is required";
        faults.push(FieldFault::required("metadata.name", why));
    } else if resource.group.starts_with("rbac.") {
        // Every path segment is valid.
        if name.contains(['/', '%']) || matches!(name, "." | "..") {
            let why = "may not contain '/' or '%'";
            faults.push(FieldFault::invalid("metadata.name", &name.into(), why));
        }
    } else if matches!(resource.plural.as_str(), "namespaces" | "services") {
        if name.len() > 63 || !is_label(name) {
            faults.push(FieldFault::invalid("metadata.name", &name.into(), LABEL));
        }
    } else if name.len() > 253 || !name.split('.').all(is_label) {
        faults.push(FieldFault::invalid("metadata.name", &name.into(), SUBDOMAIN));
    }
    for field in ["labels", "annotations"] {
        let values = object["metadata"][field].as_object().into_iter().flatten();
        let path = format!("metadata.{field}");
        let mut bytes = 0;
        for (key, value) in values {
            bytes += key.len() + value.as_str().map_or(0, str::len);
            // The real server validates annotation keys in lower case, and reports them unchanged.
            let looked_at = if field == "labels" { key.clone() } else { key.to_lowercase() };
            for why in unqualified(&looked_at) {
                faults.push(FieldFault::invalid(&path, &key.as_str().into(), &why));
            }
            match value.as_str() {
                None => faults.push(FieldFault::invalid(&path, value, "must be a string")),
                Some(text) if field == "labels" && !is_label_value(text) => {
                    faults.push(FieldFault::invalid(&path, value, LABEL_VALUE));
                }
                Some(_) => {}
            }
        }
        if field == "annotations" && bytes > MAX_ANNOTATION_BYTES {
            faults.push(FieldFault::too_long(&path, MAX_ANNOTATION_BYTES));
        }
    }
    for finalizer in object::finalizers(object) {
        let field = "metadata.finalizers";
        for why in unqualified(finalizer) {
            faults.push(FieldFault::invalid(field, &finalizer.into(), &why));
        }
    }
    if !resource.custom {
        for (at, finalizer) in object::finalizers(object).enumerate() {
            if needs_a_domain(finalizer) {
                let field = format!("metadata.finalizers[{at}]");
                let why = "name is neither a standard finalizer name nor is it fully qualified";
                faults.push(FieldFault::invalid(&field, &finalizer.into(), why));
            }
        }
    }
    for owner in object::owners(object) {
        faults.extend(validate_owner(owner));
    }
    let controllers = object::owners(object).filter(|it| it["controller"].as_bool() == Some(true));
    let named = |owner: &Value| {
        let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text("kind"), text("name"))
    };
    let controllers: Vec<_> = controllers.map(named).collect();
    if let [one, .., last] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {one} and {last}"
        );
        let field = "metadata.ownerReferences";
        let value = &object["metadata"]["ownerReferences"];
        faults.push(FieldFault::invalid(field, value, &why));
    }
    faults
}

fn validate_owner(owner: &Value) -> Vec<FieldFault> {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    let mut faults = Vec::new();
    for (field, why) in [
        ("apiVersion", "version must not be empty"),
        ("kind", "must not be empty"),
        ("name", "must not be empty"),
        ("uid", "must not be empty"),
    ] {
        let version = text(field).rsplit('/').next();
        if version.is_none_or(str::is_empty) {
            let path = format!("metadata.ownerReferences.{field}");
            faults.push(FieldFault::invalid(&path, &text(field).into(), why));
        }
    }
    if (text("apiVersion"), text("kind")) == ("v1", "Event") {
        let why = "/v1, Kind=Event is disallowed from being an owner";
        faults.push(FieldFault::invalid("metadata.ownerReferences", owner, why));
    }
    faults
}

/// Warnings about new finalizers without a domain in a custom object.
pub(super) fn warnings(object: &Value, before: Option<&Value>) -> Vec<String> {
    let is_new = |name: &&str| !before.is_some_and(|it| object::has_finalizer(it, name));
    let mut new: Vec<_> = object::finalizers(object).filter(is_new).collect();
    new.sort_unstable();
    new.dedup();
    let unclear = new.into_iter().filter(|it| needs_a_domain(it));
    let warning = |name: &str| {
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid \
             accidental conflicts with other finalizer writers"
        )
    };
    unclear.map(warning).collect()
}

fn needs_a_domain(finalizer: &str) -> bool {
    !finalizer.contains('/') && !WELL_KNOWN.contains(&finalizer)
}

/// Reasons why a text is not a qualified name.
fn unqualified(text: &str) -> Vec<String> {
    let (domain, name) = match *text.split('/').collect::<Vec<_>>() {
        [name] => (None, name),
        [domain, name] => (Some(domain), name),
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    let mut wrong = Vec::new();
    match domain {
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(domain) => {
            if domain.len() > 253 {
                wrong.push("prefix part must be no more than 253 bytes".to_owned());
            }
            if !domain.split('.').all(is_label) {
                wrong.push(format!("prefix part {SUBDOMAIN}"));
            }
        }
        None => {}
    }
    match name.len() {
        0 => wrong.push("name part must be non-empty".to_owned()),
        64.. => wrong.push("name part must be no more than 63 bytes".to_owned()),
        _ => {}
    }
    let has_letters = name.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.".contains(&it));
    let ends = [name.bytes().next(), name.bytes().last()];
    if !has_letters || !ends.iter().all(|it| it.is_some_and(|it| it.is_ascii_alphanumeric())) {
        wrong.push(format!("name part {QUALIFIED}"));
    }
    wrong
}

pub(super) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

/// Returns true for a qualified name: a name with an optional domain before it.
pub(super) fn is_qualified_name(text: &str) -> bool {
    let (domain, name) = text.rsplit_once('/').unwrap_or(("", text));
    let domain_fits = !text.contains('/') || !domain.is_empty() && domain.split('.').all(is_label);
    domain_fits && !name.is_empty() && is_label_value(name)
}

pub(super) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    text.len() <= 63
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}
