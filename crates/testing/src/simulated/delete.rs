//! Deletions.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    call::{Call, CallResult, HttpReply},
    cluster::SimulatedCluster,
    history::NamespacedName,
    object,
    refusal::{FieldFault, Refusal},
    render::render,
    resource::{CRDS, NAMESPACES, SimulatedResource, Storage},
    watches::Filter,
};

/// Namespaces that cannot be deleted.
pub(super) const UNDELETABLE: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Treatment of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletion {
    pub(super) propagation: Option<Propagation>,
    uid: Option<String>,
    version: Option<String>,
    dry_run: bool,
}

/// Outcome of a deletion.
#[derive(Debug)]
pub(super) enum Deleted {
    Gone(Arc<Value>),
    /// Object that is marked as deleted, and kept by finalizers.
    Pending(Arc<Value>),
}

impl Deletion {
    pub(super) fn propagating(propagation: Propagation) -> Self {
        Self { propagation: Some(propagation), ..Self::default() }
    }

    fn of(call: &Call) -> Result<Self, Refusal> {
        call.refuse_protobuf()?;
        let body = if call.body.is_empty() {
            Value::Null
        } else {
            call.json().map_err(|why| {
                let why = format!("couldn't get version/kind; json parse error: {why}");
                Refusal::bad_request(why)
            })?
        };
        let kind = body["kind"].as_str().unwrap_or("DeleteOptions");
        if kind != "DeleteOptions" {
            let version = body["apiVersion"].as_str().unwrap_or_default();
            return Err(Refusal::bad_request(format!(
                "no kind {kind:?} is registered for version {version:?} in scheme \
                 \"pkg/runtime/scheme.go:110\""
            )));
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let policy = match call.param("propagationPolicy") {
            "" => text(&body["propagationPolicy"]),
            policy => Some(policy.to_owned()),
        };
        let orphans = call.flag("orphanDependents").or_else(|| body["orphanDependents"].as_bool());
        let mut faults = Vec::new();
        let propagation = match (policy.as_deref(), orphans) {
            (Some(policy), Some(_)) => {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                faults.push(FieldFault::invalid("propagationPolicy", &policy.into(), why));
                None
            }
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), None) => {
                let known = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
                let field = "propagationPolicy";
                faults.push(FieldFault::not_supported(field, &other.into(), &known));
                None
            }
        };
        let dry_run = match call.param("dryRun") {
            "" => body["dryRun"].clone(),
            given => json!([given]),
        };
        let dry_runs = dry_run.as_array().cloned().unwrap_or_default();
        if dry_runs.iter().any(|it| it != "All") {
            faults.push(FieldFault::not_supported("dryRun", &dry_run, &["All".to_owned()]));
        }
        Refusal::invalid_options("DeleteOptions", &faults)?;
        Ok(Self {
            propagation,
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            dry_run: !dry_runs.is_empty(),
        })
    }

    fn check(&self, resource: &SimulatedResource, live: &Value) -> Result<(), Refusal> {
        for (field, wanted, found) in [
            ("UID", &self.uid, object::uid(live)),
            ("ResourceVersion", &self.version, object::text(live, "resourceVersion")),
        ] {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let end = if field == "UID" { "deleted and then recreated" } else { "modified" };
                let why = format!(
                    "the {field} in the precondition ({wanted}) does not match the {field} in \
                     record ({found}). The object might have been {end}"
                );
                let named = SimulatedResource { plural: resource.kind.clone(), ..resource.clone() };
                return Err(Refusal::conflict(&named, object::name(live), &why));
            }
        }
        Ok(())
    }
}

impl SimulatedCluster {
    pub(super) fn delete(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        let shape = call.shape(resource)?;
        let deletion = Deletion::of(call)?;
        let key = Self::key_of(resource, call);
        if &*resource.storage == NAMESPACES && UNDELETABLE.contains(&key.1.as_str()) {
            return Err(Refusal::forbidden(resource, &key.1, "this namespace may not be deleted"));
        }
        let live = self.live(resource, &key)?;
        deletion.check(resource, &live)?;
        let deleted = match (deletion.dry_run, &*resource.storage) {
            (true, CRDS) => Some(Deleted::Gone(live)),
            (true, _) => Some(match self.marked(&resource.storage, &live, &deletion) {
                Some(held) => Deleted::Pending(Arc::new(held)),
                None => Deleted::Gone(live),
            }),
            (false, _) => self.delete_object(&resource.storage, &key, deletion),
        };
        let body = match deleted {
            Some(Deleted::Pending(object)) => render(resource, &object, shape),
            Some(Deleted::Gone(object)) if resource.returns_deleted => {
                render(resource, &object, shape)
            }
            Some(Deleted::Gone(object)) => succeeded(resource, &object),
            None => return Err(Refusal::not_found(resource, &key.1)),
        };
        Ok(CallResult::Done(HttpReply::json(200, &body)))
    }

    pub(super) fn delete_collection(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        if &*resource.storage == NAMESPACES {
            return Err(Refusal::method_not_allowed());
        }
        let filter = self.filter(resource, call)?;
        let deletion = Deletion::of(call)?;
        let matching = self.history.all(&resource.storage);
        let matching = matching.filter(|(_, object)| filter.matches(object));
        let matching: Vec<(NamespacedName, Arc<Value>)> =
            matching.map(|(key, object)| (key.clone(), Arc::clone(object))).collect();
        let mut items = Vec::new();
        for (key, live) in matching {
            deletion.check(resource, &live)?;
            let object = if deletion.dry_run {
                Some(Deleted::Gone(live))
            } else {
                self.delete_object(&resource.storage, &key, deletion.clone())
            };
            if let Some(Deleted::Gone(object) | Deleted::Pending(object)) = object {
                items.push(super::render::item(resource, &object, filter.shape));
            }
        }
        let version = self.history.version();
        Ok(CallResult::Done(HttpReply::json(200, &list_of(&filter, items, version, None, None))))
    }

    /// Deletes an object, or marks it as deleted if finalizers keep it.
    pub(super) fn delete_object(
        &mut self,
        storage: &Storage,
        key: &NamespacedName,
        deletion: Deletion,
    ) -> Option<Deleted> {
        let live = Arc::clone(self.history.get(storage, key)?);
        let Some(object) = self.marked(storage, &live, &deletion) else {
            return self.erase(storage, key).map(|_| Deleted::Gone(live));
        };
        if object == *live {
            return Some(Deleted::Pending(live));
        }
        Some(Deleted::Pending(self.commit(storage, object)))
    }

    /// Returns the marked object if finalizers keep it.
    fn marked(&mut self, storage: &Storage, live: &Value, deletion: &Deletion) -> Option<Value> {
        let mut object = live.clone();
        match deletion.propagation {
            Some(Propagation::Foreground) => {
                object::remove_finalizer(&mut object, "orphan");
                object::add_finalizer(&mut object, "foregroundDeletion");
            }
            Some(Propagation::Orphan) => {
                object::remove_finalizer(&mut object, "foregroundDeletion");
                object::add_finalizer(&mut object, "orphan");
            }
            Some(Propagation::Background) => {
                object::remove_finalizer(&mut object, "orphan");
                object::remove_finalizer(&mut object, "foregroundDeletion");
            }
            None => {}
        }
        if &**storage == CRDS && !object::is_deleting(live) {
            self.mark_crd_deleted(&mut object);
        }
        let is_namespace = &**storage == NAMESPACES;
        let held = object::finalizers(&object).next().is_some()
            || is_namespace && object["spec"]["finalizers"][0].is_string();
        if !held {
            return None;
        }
        if !object::is_deleting(live) {
            let now = self.timestamp();
            let metadata = object::metadata(&mut object);
            metadata.insert("deletionTimestamp".to_owned(), now.into());
            if !is_namespace && &**storage != CRDS {
                metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
                if let Some(generation) = metadata.get("generation").and_then(Value::as_u64) {
                    metadata.insert("generation".to_owned(), (generation + 1).into());
                }
            }
            if is_namespace {
                object["status"]["phase"] = "Terminating".into();
            }
        }
        Some(object)
    }
}

fn succeeded(resource: &SimulatedResource, object: &Value) -> Value {
    let mut details = json!({
        "name": object::name(object),
        "kind": resource.plural,
        "uid": object::uid(object),
    });
    if !resource.group.is_empty() {
        details["group"] = resource.group.as_str().into();
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}

/// Returns a list of rendered items.
pub(super) fn list_of(
    filter: &Filter,
    items: Vec<Value>,
    version: u64,
    continue_token: Option<String>,
    remaining: Option<usize>,
) -> Value {
    let (api_version, kind) = match filter.shape {
        super::render::Shape::Whole => {
            (filter.resource.api_version(), filter.resource.list_kind.as_str())
        }
        super::render::Shape::Metadata => {
            ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList")
        }
    };
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if filter.resource.custom && filter.shape == super::render::Shape::Whole {
        // Lists of custom types contain the field even if it is empty.
        metadata["continue"] = "".into();
    }
    if let Some(token) = continue_token {
        metadata["continue"] = token.into();
    }
    if let Some(remaining) = remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items })
}
