//! Updates of objects and of their subresources.

use std::sync::Arc;

use serde_json::Value;

use super::{
    call::{Call, CallResult, HttpReply},
    cluster::SimulatedCluster,
    decode::Body,
    history::NamespacedName,
    managed, object,
    refusal::{FieldFault, Refusal},
    render::render,
    resource::{SimulatedResource, Storage},
    scale,
    write::twice,
};

impl SimulatedCluster {
    pub(super) fn update(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        let shape = call.shape(resource)?;
        if call.info.subresource == "scale" {
            let body = call.object("Scale")?;
            return self.update_scale(resource, call, body);
        }
        let body = call.object(&resource.kind)?;
        let key = Self::key_of(resource, call);
        let updated = self.update_object(resource, &key, body, call)?;
        Ok(CallResult::Done(HttpReply::json(200, &render(resource, &updated, shape))))
    }

    pub(super) fn update_object(
        &mut self,
        resource: &Arc<SimulatedResource>,
        key: &NamespacedName,
        body: Body,
        call: &Call,
    ) -> Result<Arc<Value>, Refusal> {
        let Body { object, duplicates } = body;
        let mut object = self.decode(resource, object, &key.0)?;
        self.prune(resource, &mut object, duplicates, call)?;
        if object::name(&object) != key.1 {
            let given = object::name(&object);
            let message = if given.is_empty() {
                format!(
                    "the name of the object ({} based on URL) was undeterminable: name must be \
                     provided",
                    key.1
                )
            } else {
                format!(
                    "the name of the object ({given}) does not match the name on the URL ({})",
                    key.1
                )
            };
            return Err(Refusal::bad_request(message));
        }
        let live = self.live(resource, key)?;
        let version = object::text(&object, "resourceVersion");
        require_version(resource, version, &key.1)?;
        self.replace(resource, &live, object, call, None)
    }

    /// Replaces the live object, as far as the subresource allows; an equal state changes nothing.
    pub(super) fn replace(
        &mut self,
        resource: &Arc<SimulatedResource>,
        live: &Arc<Value>,
        mut object: Value,
        call: &Call,
        applied: Option<Value>,
    ) -> Result<Arc<Value>, Refusal> {
        check_identity(resource, live, &object)?;
        take_subresource(resource, live, &mut object, &call.info.subresource);
        if object::is_deleting(&object) && !object::is_deleting(live) {
            let given = &object["metadata"]["deletionTimestamp"];
            let why = "field is immutable";
            let faults = twice(FieldFault::invalid("metadata.deletionTimestamp", given, why));
            let name = object::name(live);
            return Err(Refusal::invalid(&resource.group, &resource.kind, name, &faults));
        }
        keep_metadata(live, &mut object);
        self.default_object(resource, &mut object, Some(live));
        self.validate(resource, &object, Some(live))?;
        self.warn(resource, &object, Some(live));
        if wants_differ(resource, live, &object)
            && let Some(generation) = live["metadata"]["generation"].as_u64()
        {
            object["metadata"]["generation"] = (generation + 1).into();
        }
        match applied {
            Some(managed) => {
                object::metadata(&mut object).insert("managedFields".to_owned(), managed);
                object::tidy(&mut object);
            }
            None => self.record(resource, Some(live), &mut object, call),
        }
        // An update from another version writes nothing if the rest is equal, unless the storage
        // version has changed.
        for field in ["apiVersion", "kind"] {
            if let Some(value) = live.get(field) {
                object[field] = value.clone();
            }
        }
        if let Some(stored) = self.stored_version(resource) {
            object["apiVersion"] = stored;
        }
        if object == **live && !finishes(&object) {
            return Ok(Arc::clone(live));
        }
        if call.is_dry_run() {
            return Ok(Arc::new(object));
        }
        Ok(self.commit_or_finish(&resource.storage, object))
    }

    /// Writes an object, or removes it if its last finalizer was removed.
    pub(super) fn commit_or_finish(&mut self, storage: &Storage, object: Value) -> Arc<Value> {
        if !finishes(&object) {
            return self.commit(storage, object);
        }
        let key = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        self.erase(storage, &key);
        Arc::new(object)
    }

    fn update_scale(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
        body: Body,
    ) -> Result<CallResult, Refusal> {
        let key = Self::key_of(resource, call);
        let live = self.live(resource, &key)?;
        let object = scale::scaled(resource, &live, &body.object)?;
        let updated = self.replace(resource, &live, object, call, None)?;
        Ok(CallResult::Done(HttpReply::json(200, &scale::scale_of(resource, &updated)?)))
    }
}

/// Refuses an update of another object, or of another version, than the live one.
fn check_identity(
    resource: &SimulatedResource,
    live: &Value,
    object: &Value,
) -> Result<(), Refusal> {
    let (name, uid) = (object::name(live), object::uid(object));
    if !uid.is_empty() && uid != object::uid(live) {
        let path = [&*resource.group, &*resource.plural, object::namespace(live), name];
        let path: Vec<_> = path.into_iter().filter(|part| !part.is_empty()).collect();
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in \
             object meta: {}",
            path.join("/"),
            object::uid(live)
        );
        return Err(Refusal::conflict(resource, name, &why));
    }
    let version = object::text(object, "resourceVersion");
    let live_version = object::text(live, "resourceVersion");
    if !version.is_empty() && version.parse::<u64>().is_err() {
        let message = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
        return Err(Refusal::new(500, "", message));
    }
    if !version.is_empty() && version != "0" && version != live_version {
        return Err(Refusal::modified(resource, name));
    }
    Ok(())
}

/// Takes from an update only the part that its subresource may change.
fn take_subresource(
    resource: &SimulatedResource,
    live: &Value,
    object: &mut Value,
    subresource: &str,
) {
    if subresource == "status" {
        let mut next = Value::clone(live);
        match object.get("status") {
            Some(status) => {
                object::fields(&mut next).insert("status".to_owned(), status.clone());
            }
            None => {
                object::fields(&mut next).remove("status");
            }
        }
        if !resource.custom {
            // A status update of a built-in type may change labels and annotations.
            let metadata = object::metadata(&mut next);
            for field in ["labels", "annotations"] {
                object::keep(metadata, object, field);
            }
        }
        *object = next;
    } else if resource.status {
        let fields = object::fields(object);
        match live.get("status") {
            Some(status) => fields.insert("status".to_owned(), status.clone()),
            None => fields.remove("status"),
        };
    }
}

/// Keeps the metadata of the live object that only the server sets.
fn keep_metadata(live: &Value, object: &mut Value) {
    let managed = managed::given(live, object);
    let metadata = object::metadata(object);
    match managed {
        Some(managed) => metadata.insert("managedFields".to_owned(), managed),
        None => metadata.remove("managedFields"),
    };
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "namespace",
    ] {
        object::keep(metadata, live, field);
    }
    metadata.remove("selfLink");
    object::tidy(object);
}

/// Custom types cannot be updated without a resource version.
pub(super) fn require_version(
    resource: &SimulatedResource,
    version: &str,
    name: &str,
) -> Result<(), Refusal> {
    if !resource.custom || !matches!(version, "" | "0") {
        return Ok(());
    }
    let why = "must be specified for an update";
    let fault = FieldFault::invalid("metadata.resourceVersion", &0.into(), why);
    Err(Refusal::invalid(&resource.group, &resource.plural, name, &[fault]))
}

/// Returns true if nothing delays the removal of a deleted object.
fn finishes(object: &Value) -> bool {
    let spec_finalizers = object["kind"] == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|it| !it.is_empty());
    object::is_deleting(object)
        && object::finalizers(object).next().is_none()
        && !spec_finalizers
        && object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0) == 0
}

/// Returns true if more differs than the metadata and, if it is a subresource, the status.
fn wants_differ(resource: &SimulatedResource, before: &Value, after: &Value) -> bool {
    if !resource.generation {
        return false;
    }
    let relevant = |name: &String| match name.as_str() {
        "metadata" | "apiVersion" | "kind" => false,
        "status" => !resource.status,
        _ => true,
    };
    let parts = |object: &Value| -> Vec<(String, Value)> {
        let fields = object.as_object().into_iter().flatten();
        let parts = fields.filter(|(name, _)| relevant(name));
        parts.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    parts(before) != parts(after)
}
