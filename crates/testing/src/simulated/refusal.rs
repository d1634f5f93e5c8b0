//! Error responses.

use serde_json::{Map, Value, json};

use super::resource::SimulatedResource;

/// Error response, with the messages of the real API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Option<Value>,
    pub(super) retry_after: Option<u64>,
    /// Continue token for an expired list, in the `metadata` of the status.
    pub(super) continue_token: Option<String>,
    /// True for plain text without a status, as Go's `http.Error` writes it.
    pub(super) plain: bool,
}

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            continue_token: None,
            plain: false,
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let mut details = Map::new();
        for (field, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details.insert(field.to_owned(), value.into());
            }
        }
        self.details = Some(Value::Object(details));
        self
    }

    /// Response for an unknown path: the last handler of the real server answers in plain text.
    pub(super) fn no_such_path() -> Self {
        Self { plain: true, ..Self::new(404, "NotFound", "404 page not found") }
    }

    /// Response for an unknown type in a group of the server itself.
    pub(super) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message).about("", "", "")
    }

    /// Response of the aggregator for an API whose service is unavailable.
    pub(super) fn service_unavailable() -> Self {
        Self { plain: true, ..Self::new(503, "ServiceUnavailable", "service unavailable") }
    }

    /// Response for a feature that is not simulated.
    pub(super) fn not_simulated(what: impl std::fmt::Display) -> Self {
        let message = format!(
            "{what} is not simulated: run this against a real control plane \
             (pilotlight::testing::ControlPlane, or `pilotlight dev`)"
        );
        Self::new(501, "NotImplemented", message)
    }

    pub(super) fn not_found(resource: &SimulatedResource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(&resource.group, &resource.plural, name)
    }

    pub(super) fn exists(resource: &SimulatedResource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(&resource.group, &resource.plural, name)
    }

    pub(super) fn conflict(resource: &SimulatedResource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(&resource.group, &resource.plural, name)
    }

    pub(super) fn modified(resource: &SimulatedResource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(resource, name, why)
    }

    pub(super) fn forbidden(resource: &SimulatedResource, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", resource.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", resource.qualified())
        };
        Self::new(403, "Forbidden", message).about(&resource.group, &resource.plural, name)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Response for a request that accepts no supported format.
    pub(super) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, \
                       application/yaml, application/vnd.kubernetes.protobuf";
        Self::new(406, "NotAcceptable", message)
    }

    /// Response for a body in an unsupported format.
    pub(super) fn unsupported(formats: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {formats}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// Refuses a body in protobuf, which the simulated server does not decode.
    pub(super) fn protobuf() -> Self {
        let message = "the simulated API server decodes no protobuf: send the object as JSON, for \
                       example with `kubectl create --dry-run=client -o yaml ... | kubectl apply -f \
                       -`, or use a real control plane (pilotlight::testing::ControlPlane, or \
                       `pilotlight dev`)";
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// Response for an unsupported verb on a custom type or its subresource.
    pub(super) fn not_supported(resource: &SimulatedResource, verb: &str) -> Self {
        let message =
            format!("{verb} is not supported on resources of kind {:?}", resource.qualified());
        Self::new(405, "MethodNotAllowed", message).about(&resource.group, &resource.plural, "")
    }

    /// Refuses invalid options of a request.
    pub(super) fn invalid_options(kind: &str, faults: &[FieldFault]) -> Result<(), Self> {
        match faults {
            [] => Ok(()),
            faults => Err(Self::invalid("meta.k8s.io", kind, "", faults)),
        }
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message).about("", "", "")
    }

    /// Response for a version that was compacted.
    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Response while the watch cache of a type is not filled.
    pub(super) fn initializing() -> Self {
        let mut refusal = Self::new(429, "TooManyRequests", "storage is (re)initializing");
        refusal.details = Some(json!({ "retryAfterSeconds": 1 }));
        refusal.retry_after = Some(1);
        refusal
    }

    /// Response for invalid fields of an object.
    pub(super) fn invalid(group: &str, kind: &str, name: &str, faults: &[FieldFault]) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut bodies: Vec<_> =
            faults.iter().map(|fault| format!("{}: {}", fault.field, fault.body)).collect();
        bodies.dedup();
        let said = match bodies.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes: Vec<_> = faults
            .iter()
            .map(|it| json!({ "reason": it.reason, "message": it.body, "field": it.field }))
            .collect();
        let message = format!("{qualified} {name:?} is invalid: {said}");
        let mut refusal = Self::new(422, "Invalid", message).about(group, kind, name);
        if let Some(Value::Object(details)) = &mut refusal.details {
            details.insert("causes".to_owned(), causes.into());
        }
        refusal
    }

    /// Converts the response to a `Status`.
    pub(super) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }
}

/// Invalid field, as `field.Error` of apimachinery reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldFault {
    pub(super) field: String,
    pub(super) reason: &'static str,
    pub(super) body: String,
}

impl FieldFault {
    pub(super) fn required(field: &str, why: &str) -> Self {
        let body =
            if why.is_empty() { "Required value".into() } else { format!("Required value: {why}") };
        Self { field: field.to_owned(), reason: "FieldValueRequired", body }
    }

    pub(super) fn invalid(field: &str, value: &Value, why: &str) -> Self {
        let body = format!("Invalid value: {value}: {why}");
        Self { field: field.to_owned(), reason: "FieldValueInvalid", body }
    }

    pub(super) fn too_long(field: &str, most: usize) -> Self {
        let body = format!("Too long: may not be more than {most} bytes");
        Self { field: field.to_owned(), reason: "FieldValueTooLong", body }
    }

    pub(super) fn forbidden(field: &str, why: &str) -> Self {
        let body = format!("Forbidden: {why}");
        Self { field: field.to_owned(), reason: "FieldValueForbidden", body }
    }

    pub(super) fn not_supported(field: &str, value: &Value, known: &[String]) -> Self {
        let known: Vec<_> = known.iter().map(|it| format!("{it:?}")).collect();
        let body = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self { field: field.to_owned(), reason: "FieldValueNotSupported", body }
    }
}
