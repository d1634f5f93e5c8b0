//! Creates, with the pruning, defaults and validation that updates share.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    call::{Call, CallResult, HttpReply},
    cluster::SimulatedCluster,
    custom::{default_crd, refuse_unsupported, validate_crd},
    decode::Body,
    history::NamespacedName,
    managed::{self, Writer},
    metadata, names,
    namespaces::default_namespace,
    object,
    refusal::{FieldFault, Refusal},
    render::{render, stored},
    resource::{CRDS, NAMESPACES, SimulatedResource},
    schema,
};

use crate::Verb;

impl SimulatedCluster {
    pub(super) fn new_uid(&mut self) -> String {
        let bits = self.random.u128(..);
        // Version 4, as RFC 9562 defines it.
        let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        parts.join("-")
    }

    fn generated_name(&mut self, begin: &str) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let random = &mut self.random;
        let end = (0..5).map(|_| char::from(LETTERS[random.usize(..LETTERS.len())]));
        begin.chars().chain(end).collect()
    }

    pub(super) fn key_of(resource: &SimulatedResource, call: &Call) -> NamespacedName {
        let namespace =
            if resource.namespaced { call.info.namespace.clone() } else { String::new() };
        (namespace, call.info.name.clone())
    }

    pub(super) fn live(
        &self,
        resource: &SimulatedResource,
        key: &NamespacedName,
    ) -> Result<Arc<Value>, Refusal> {
        let found = self.history.get(&resource.storage, key);
        found.cloned().ok_or_else(|| Refusal::not_found(resource, &key.1))
    }

    pub(super) fn create(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        if let Some(hold) = self.create_hold(&resource.storage).filter(|_| !call.waited) {
            return Ok(CallResult::Later(hold));
        }
        let shape = call.shape(resource)?;
        let body = call.object(&resource.kind)?;
        let created = self.create_as(resource, body, call, None)?;
        Ok(CallResult::Done(HttpReply::json(201, &render(resource, &created, shape))))
    }

    /// Creates an object; `managed` has the managed fields of an apply.
    pub(super) fn create_as(
        &mut self,
        resource: &Arc<SimulatedResource>,
        body: Body,
        call: &Call,
        managed: Option<Value>,
    ) -> Result<Arc<Value>, Refusal> {
        let dry_run = call.is_dry_run();
        let Body { object, duplicates } = body;
        let mut object = self.decode(resource, object, &call.info.namespace)?;
        self.prune(resource, &mut object, duplicates, call)?;
        let metadata = object::metadata(&mut object);
        let version = metadata.remove("resourceVersion");
        for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
            metadata.remove(field);
        }
        metadata.remove("managedFields");
        let mut requested = object::name(&object).to_owned();
        if requested.is_empty() {
            let begin = object::text(&object, "generateName").to_owned();
            requested.clone_from(&begin);
            if !begin.is_empty() {
                let name = self.generated_name(&begin);
                object::metadata(&mut object).insert("name".to_owned(), name.into());
            }
        }
        let name = object::name(&object).to_owned();
        self.admit_create(resource, object::namespace(&object), &requested)?;
        if resource.status {
            object::fields(&mut object).remove("status");
        }
        self.default_object(resource, &mut object, None);
        self.validate(resource, &object, None)?;
        self.warn(resource, &object, None);
        if version.is_some_and(|it| it.as_str().is_some_and(|it| !it.is_empty() && it != "0")) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::new(500, "", message));
        }
        let key = (object::namespace(&object).to_owned(), name.clone());
        if let Some(live) = self.history.get(&resource.storage, &key) {
            let mut refusal = Refusal::exists(resource, &name);
            if object::is_deleting(live) {
                refusal.message.insert_str(0, "object is being deleted: ");
            }
            return Err(refusal);
        }
        let (uid, now) = (self.new_uid(), self.timestamp());
        let metadata = object::metadata(&mut object);
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), now.as_str().into());
        if resource.generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
        object::tidy(&mut object);
        match managed {
            Some(managed) => {
                object::metadata(&mut object).insert("managedFields".to_owned(), managed);
            }
            None => self.record(resource, None, &mut object, call),
        }
        if dry_run {
            return Ok(Arc::new(object));
        }
        if let Some(stored) = self.stored_version(resource) {
            object["apiVersion"] = stored;
        }
        Ok(self.commit(&resource.storage, object))
    }

    /// Refuses a create in a terminating namespace or of a terminating type.
    fn admit_create(
        &self,
        resource: &SimulatedResource,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        if resource.namespaced {
            let key = (String::new(), namespace.to_owned());
            let of_namespaces = self.resource("", "v1", NAMESPACES);
            let Some(found) = self.history.get(NAMESPACES, &key) else {
                let about = of_namespaces.as_deref().unwrap_or(resource);
                return Err(Refusal::not_found(about, namespace));
            };
            if object::is_deleting(found) {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being \
                     terminated"
                );
                let mut refusal = Refusal::forbidden(resource, name, &why);
                if let Some(Value::Object(details)) = &mut refusal.details {
                    let cause = json!({
                        "reason": "NamespaceTerminating",
                        "message": format!("namespace {namespace} is being terminated"),
                        "field": "metadata.namespace",
                    });
                    details.insert("causes".to_owned(), json!([cause]));
                }
                return Err(refusal);
            }
        }
        if self.custom.get(&resource.storage).is_some_and(|it| it.terminating) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Refusal::forbidden(resource, name, why));
        }
        Ok(())
    }

    /// Checks that a body is of the type and the namespace of the request.
    pub(super) fn decode(
        &self,
        resource: &SimulatedResource,
        mut object: Value,
        namespace: &str,
    ) -> Result<Value, Refusal> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (api_version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
        if resource.custom && kind.is_empty() {
            return Err(Refusal::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): Object 'Kind' is \
                 missing in '{object}' ({object})",
                resource.kind
            )));
        }
        if !object["metadata"].is_null() && !object["metadata"].is_object() {
            return Err(Refusal::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: metadata is not an object",
                resource.kind, resource.version, resource.kind
            )));
        }
        let wanted = resource.api_version();
        if !api_version.is_empty() && api_version != wanted {
            return Err(Refusal::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API \
                 version ({wanted})"
            )));
        }
        if !kind.is_empty() && kind != resource.kind {
            if resource.custom {
                let why = format!("must be {}", resource.kind);
                let fault = FieldFault::invalid("kind", &kind.as_str().into(), &why);
                let name = object::name(&object);
                return Err(Refusal::invalid(&resource.group, &kind, name, &[fault]));
            }
            return Err(Refusal::bad_request(format!(
                "{kind} in version {:?} cannot be handled as a {}",
                resource.version, resource.kind
            )));
        }
        let metadata = object::metadata(&mut object);
        if resource.namespaced {
            let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
            if !given.is_empty() && given != namespace {
                return Err(Refusal::bad_request(
                    "the namespace of the provided object does not match the namespace sent on \
                     the request",
                ));
            }
            metadata.insert("namespace".to_owned(), namespace.into());
        } else {
            metadata.remove("namespace");
        }
        Ok(stored(resource, object))
    }

    /// Removes the fields that the metadata and the schema do not know.
    ///
    /// Unknown and duplicate fields are ignored, become warnings or are refused, as
    /// `fieldValidation` says. A value of a wrong type is refused in every mode.
    pub(super) fn prune(
        &mut self,
        resource: &SimulatedResource,
        object: &mut Value,
        duplicates: Vec<String>,
        call: &Call,
    ) -> Result<(), Refusal> {
        let mut findings = duplicates;
        let wrong_type = metadata::wrong_type(&resource.kind, object);
        findings.extend(self.prune_unknown(resource, object));
        let message = match (wrong_type, call.param("fieldValidation")) {
            (Some(wrong), _) => wrong,
            (None, "Ignore") => return Ok(()),
            (None, "Strict") if !findings.is_empty() => {
                format!("strict decoding error: {}", findings.join(", "))
            }
            (None, _) => {
                self.warnings.extend(findings);
                return Ok(());
            }
        };
        if matches!(call.info.verb, Verb::Create | Verb::Update) {
            let SimulatedResource { kind, version, .. } = resource;
            let message =
                format!("{kind} in version {version:?} cannot be handled as a {kind}: {message}");
            return Err(Refusal::bad_request(message));
        }
        let shown = Value::from(object.to_string());
        let fault = FieldFault::invalid("patch", &shown, &message);
        let name = object::name(object);
        Err(Refusal::invalid(&resource.group, &resource.kind, name, &[fault]))
    }

    /// Removes unknown fields and returns a sentence about each.
    pub(super) fn prune_unknown(
        &self,
        resource: &SimulatedResource,
        object: &mut Value,
    ) -> Vec<String> {
        let mut unknown = metadata::prune(object);
        let schemas = self.custom.get(&resource.storage).map(|it| &it.schemas);
        if let Some(schema) = schemas.and_then(|it| it.get(&resource.version)) {
            unknown.extend(schema::prune(schema, object));
        }
        unknown.iter().map(|path| format!("unknown field {path:?}")).collect()
    }

    pub(super) fn default_object(
        &self,
        resource: &SimulatedResource,
        object: &mut Value,
        before: Option<&Value>,
    ) {
        match (&*resource.storage, before) {
            (CRDS, _) => default_crd(object),
            // An update does not contain the finalizers of a namespace.
            (NAMESPACES, Some(before)) => object["spec"] = before["spec"].clone(),
            (NAMESPACES, None) => default_namespace(object),
            ("secrets", _) => encode_secret(object),
            _ => {
                let schemas = self.custom.get(&resource.storage).map(|it| &it.schemas);
                if let Some(schema) = schemas.and_then(|it| it.get(&resource.version)) {
                    schema::default(schema, object);
                }
            }
        }
    }

    pub(super) fn validate(
        &self,
        resource: &SimulatedResource,
        object: &Value,
        before: Option<&Value>,
    ) -> Result<(), Refusal> {
        let mut faults = names::validate_metadata(resource, object);
        if &*resource.storage == CRDS {
            refuse_unsupported(object)?;
            faults.extend(validate_crd(object, before));
        }
        let schema = self.custom.get(&resource.storage);
        let schema = schema.and_then(|it| it.schemas.get(&resource.version));
        if let Some(schema) = schema {
            faults.extend(schema::validate(schema, object));
        }
        if let Some(before) = before.filter(|before| object::is_deleting(before)) {
            let new = object::finalizers(object).filter(|it| !object::has_finalizer(before, it));
            let new: Vec<_> = new.map(|it| format!("{it:?}")).collect();
            if !new.is_empty() {
                let why = format!(
                    "no new finalizers can be added if the object is being deleted, found new \
                     finalizers []string{{{}}}",
                    new.join(", ")
                );
                let fault = FieldFault::forbidden("metadata.finalizers", &why);
                faults.extend(twice(fault));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(Refusal::invalid(&resource.group, &resource.kind, object::name(object), &faults))
    }

    pub(super) fn warn(
        &mut self,
        resource: &SimulatedResource,
        object: &Value,
        before: Option<&Value>,
    ) {
        if resource.custom {
            self.warnings.extend(names::warnings(object, before));
        }
    }

    pub(super) fn record(
        &self,
        resource: &SimulatedResource,
        before: Option<&Value>,
        after: &mut Value,
        call: &Call,
    ) {
        let (now, api_version) = (self.timestamp(), resource.api_version());
        let writer = writer(call, &api_version, &now);
        managed::record(before, after, writer);
    }

    /// Returns the `apiVersion` in which objects of a CRD are stored.
    pub(super) fn stored_version(&self, resource: &SimulatedResource) -> Option<Value> {
        Some(self.custom.get(&resource.storage)?.stored.as_str().into())
    }
}

/// Encodes the text fields of a secret in base64.
fn encode_secret(secret: &mut Value) {
    let texts = object::fields(secret).remove("stringData");
    for (name, text) in texts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
        object::member(secret, "data").insert(name.clone(), encoded.into());
    }
    object::fields(secret).entry("type").or_insert_with(|| "Opaque".into());
}

pub(super) fn writer<'a>(call: &'a Call, api_version: &'a str, now: &'a str) -> Writer<'a> {
    let subresource = &call.info.subresource;
    Writer { manager: call.manager(), api_version, subresource, now }
}

/// The rules of each type repeat the general ones for updates, which were checked before.
pub(super) fn twice(fault: FieldFault) -> [FieldFault; 2] {
    [fault.clone(), fault]
}
