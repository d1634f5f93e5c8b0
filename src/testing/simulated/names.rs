//! What an object may be called.

use serde_json::Value;

use super::{object, refusal::FieldFault, resource::Resource};

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

pub(super) fn validate_metadata(resource: &Resource, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let name = object::name(object);
    if name.is_empty() {
        let why = "name or generateName is required";
        faults.push(FieldFault::required("metadata.name", why));
    } else if resource.group.starts_with("rbac.") {
        // Any path segment will do.
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
        for (key, value) in values {
            let path = format!("metadata.{field}");
            match value.as_str() {
                None => faults.push(FieldFault::invalid(&path, value, "must be a string")),
                Some(text) if field == "labels" && !is_label_value(text) => {
                    faults.push(FieldFault::invalid(&path, value, LABEL_VALUE));
                }
                Some(_) if key.is_empty() => {
                    faults.push(FieldFault::invalid(&path, value, "name part must be non-empty"));
                }
                Some(_) => {}
            }
        }
    }
    for finalizer in object::finalizers(object) {
        let well_known = ["orphan", "foregroundDeletion", "kubernetes"];
        if !finalizer.contains('/') && !finalizer.contains('.') && !well_known.contains(&finalizer)
        {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            let field = "metadata.finalizers";
            faults.push(FieldFault::invalid(field, &finalizer.into(), why));
        }
    }
    for (at, owner) in object::owners(object).enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences[{at}].{field}");
                let why = format!("{field} must not be empty");
                faults.push(FieldFault::invalid(&path, &owner[field], &why));
            }
        }
    }
    let controllers =
        object::owners(object).filter(|owner| owner["controller"].as_bool() == Some(true)).count();
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        let field = "metadata.ownerReferences";
        let value = &object["metadata"]["ownerReferences"];
        faults.push(FieldFault::invalid(field, value, why));
    }
    faults
}

pub(super) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

/// Whether it is the key of a label: a name, and a domain before it perhaps.
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
