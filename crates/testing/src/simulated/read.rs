//! Reads: one object, lists in pages, watches.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    access::SCRIPT,
    call::{Call, CallResult, HttpReply},
    cluster::SimulatedCluster,
    delete::list_of,
    history::NamespacedName,
    labels::LabelRequirements,
    refusal::{FieldFault, Refusal},
    render::{item, render},
    resource::SimulatedResource,
    scale,
    selector::Fields,
    watches::Filter,
};
use crate::Verb;

/// Limit for waiting until a future version is reached.
const FUTURE_WAIT: Duration = Duration::from_secs(3);
/// Lifetime of a watch without `timeoutSeconds`; the real server draws 30 to 60 minutes.
const WATCH_LIFE: Duration = Duration::from_secs(45 * 60);

/// Subresources of the real server that are not simulated.
const ABSENT: [(&str, &str); 13] = [
    ("namespaces", "finalize"),
    ("pods", "attach"),
    ("pods", "binding"),
    ("pods", "ephemeralcontainers"),
    ("pods", "eviction"),
    ("pods", "exec"),
    ("pods", "log"),
    ("pods", "portforward"),
    ("pods", "proxy"),
    ("pods", "resize"),
    ("services", "proxy"),
    ("serviceaccounts", "token"),
    ("nodes", "proxy"),
];

impl SimulatedCluster {
    /// Answers a request for a type.
    pub(super) fn serve(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        self.check_subresource(resource, call)?;
        check_options(call)?;
        let pages = match call.info.verb {
            Verb::List => {
                let paged = call.number("limit")?.is_some();
                let plain = ["labelSelector", "fieldSelector", "resourceVersion"];
                paged && plain.iter().all(|name| call.param(name).is_empty())
            }
            Verb::Watch => false,
            Verb::Get
            | Verb::Create
            | Verb::Update
            | Verb::Patch
            | Verb::Delete
            | Verb::DeleteCollection
            | Verb::Other => true,
        };
        self.check_cache(&resource.storage, pages)?;
        match call.info.verb {
            Verb::Get => self.get(resource, call),
            Verb::List => self.list(resource, call),
            Verb::Watch if self.list_only.contains(&resource.storage) => {
                Err(Refusal::not_supported(resource, "watch"))
            }
            Verb::Watch => self.watch(resource, call),
            Verb::Create => self.create(resource, call),
            Verb::Update => self.update(resource, call),
            Verb::Patch => self.patch(resource, call),
            Verb::Delete => self.delete(resource, call),
            Verb::DeleteCollection => self.delete_collection(resource, call),
            Verb::Other => Err(Refusal::method_not_allowed()),
        }
    }

    fn check_subresource(&self, resource: &SimulatedResource, call: &Call) -> Result<(), Refusal> {
        let subresource = call.info.subresource.as_str();
        let writes = matches!(call.info.verb, Verb::Create | Verb::Delete);
        match subresource {
            "" => {
                let names = matches!(call.info.verb, Verb::Create) && !call.info.name.is_empty();
                let unnamed = matches!(call.info.verb, Verb::Update | Verb::Patch | Verb::Delete)
                    && call.info.name.is_empty();
                if unnamed && resource.custom {
                    return Err(Refusal::bad_request("name must be provided"));
                }
                // A POST to the path of a custom object is treated as one to its collection.
                if names && !resource.custom || unnamed {
                    return Err(Refusal::method_not_allowed());
                }
                Ok(())
            }
            "status" if resource.status && !writes => Ok(()),
            "scale" if resource.scale.is_some() && !writes => Ok(()),
            "status" if resource.custom && resource.status => {
                Err(Refusal::not_supported(resource, super::access::verb(call.info.verb)))
            }
            "scale" if resource.custom && resource.scale.is_some() => {
                Err(Refusal::not_supported(resource, super::access::verb(call.info.verb)))
            }
            _ if resource.custom => Err(Refusal::not_found(resource, &call.info.name)),
            "status" if resource.status => Err(Refusal::method_not_allowed()),
            "scale" if resource.scale.is_some() => Err(Refusal::method_not_allowed()),
            known if ABSENT.contains(&(resource.plural.as_str(), known)) => {
                let what = format!("the subresource {known} of {}", resource.qualified());
                Err(Refusal::not_simulated(what))
            }
            _ => Err(Refusal::no_such_resource()),
        }
    }

    fn get(&self, resource: &SimulatedResource, call: &Call) -> Result<CallResult, Refusal> {
        let shape = call.shape(resource)?;
        let version = call.version().map_err(|why| Refusal::new(500, "", why))?;
        let current = self.history.version();
        if version > current {
            return later(call, version, current);
        }
        let live = self.live(resource, &Self::key_of(resource, call))?;
        let mut shown = match call.info.subresource.as_str() {
            "scale" => scale::scale_of(resource, &live)?,
            _ => render(resource, &live, shape),
        };
        if self.hides_identity(resource, call) {
            without_identity(&mut shown);
        }
        Ok(CallResult::Done(HttpReply::json(200, &shown)))
    }

    /// Returns whether the objects of a type are shown without uid and resourceVersion; the script
    /// needs both.
    fn hides_identity(&self, resource: &SimulatedResource, call: &Call) -> bool {
        self.list_only.contains(&resource.storage) && call.user != SCRIPT
    }

    pub(super) fn filter(
        &self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<Filter, Refusal> {
        let mut fields = Fields::parse(call.param("fieldSelector"), resource)?;
        if !call.info.name.is_empty() {
            fields = Fields::of_name(&call.info.name);
        }
        Ok(Filter {
            resource: Arc::clone(resource),
            namespace: call.info.namespace.clone(),
            labels: LabelRequirements::parse(call.param("labelSelector"))?,
            fields,
            shape: call.shape(resource)?,
        })
    }

    fn list(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        let filter = self.filter(resource, call)?;
        let requested = call.param("resourceVersion");
        let matching = call.param("resourceVersionMatch");
        let token = call.param("continue");
        check_list_options(call)?;
        call.number("timeoutSeconds")?;
        let version = call
            .version()
            .map_err(|why| Refusal::bad_request(format!("invalid resource version: {why}")))?;
        let current = self.history.version();
        if version > current {
            return later(call, version, current);
        }
        let is_list_only = self.hides_identity(resource, call);
        let limit = call.number("limit")?.filter(|limit| *limit > 0 && !is_list_only);
        let paged = limit.is_some() && requested != "0";
        // A page at a given version is exact by default.
        let exact =
            matching == "Exact" || version > 0 && paged && matching.is_empty() && token.is_empty();
        let (at, after) = if !token.is_empty() {
            if !matches!(requested, "" | "0") {
                let message = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(message));
            }
            self.resume(token, &filter.namespace)?
        } else if exact {
            if version < self.history.compacted() {
                let message = "The resourceVersion for the provided list is too old.";
                return Err(Refusal::expired(message));
            }
            (version, None)
        } else {
            (current, None)
        };
        let objects = self.history.at(&resource.storage, at);
        let in_place =
            |key: &NamespacedName| filter.namespace.is_empty() || key.0 == filter.namespace;
        let wanted = objects.iter().filter(|(key, object)| {
            after.as_ref().is_none_or(|after| *key > after) && filter.matches(object)
        });
        let mut wanted = wanted.peekable();
        let mut items = Vec::new();
        let mut last: Option<&NamespacedName> = None;
        let most = limit.filter(|_| requested != "0").unwrap_or(u64::MAX);
        while let Some((key, object)) =
            wanted.next_if(|_| u64::try_from(items.len()).is_ok_and(|count| count < most))
        {
            items.push(item(resource, object, filter.shape));
            last = Some(key);
        }
        let rest = wanted.count();
        // A full page may be followed by more matches, unless the filter matches one name.
        let full = u64::try_from(items.len()).is_ok_and(|count| count == most);
        let more = full
            && !filter.fields.is_one()
            && last.is_some_and(|last| objects.keys().any(|key| key > last && in_place(key)));
        let continue_token =
            last.filter(|_| more).map(|last| encode_token(at, last, &filter.namespace));
        let remaining =
            (rest > 0 && filter.labels.is_empty() && filter.fields.is_empty()).then_some(rest);
        let mut list = list_of(&filter, items, at, continue_token, remaining);
        if is_list_only {
            list["metadata"] = json!({});
            list["items"].as_array_mut().into_iter().flatten().for_each(without_identity);
        }
        Ok(CallResult::Done(HttpReply::json(200, &list)))
    }

    /// Decodes a continue token: its version and the last key of the previous page.
    fn resume(
        &self,
        token: &str,
        namespace: &str,
    ) -> Result<(u64, Option<NamespacedName>), Refusal> {
        let (version, key) = decode_token(token, namespace)
            .map_err(|why| Refusal::bad_request(format!("invalid continue token: {why}")))?;
        let Ok(version) = u64::try_from(version) else {
            // The client has accepted an inconsistent rest.
            return Ok((self.history.version(), Some(key)));
        };
        if version < self.history.compacted() {
            let message = "The provided continue parameter is too old to display a consistent list \
                           result. You can start a new list without the continue parameter, or use \
                           the continue token in this response to retrieve the remainder of the \
                           results. Continuing with the provided token results in an inconsistent \
                           list - objects that were created, modified, or deleted between the time \
                           the first chunk was returned and now may show up in the list.";
            let mut refusal = Refusal::expired(message);
            refusal.continue_token = Some(token_text(-1, &key, namespace));
            return Err(refusal);
        }
        Ok((version, Some(key)))
    }

    fn watch(
        &mut self,
        resource: &Arc<SimulatedResource>,
        call: &Call,
    ) -> Result<CallResult, Refusal> {
        let filter = self.filter(resource, call)?;
        check_watch_options(call)?;
        let version = call.version().map_err(|why| Refusal::new(500, "", why))?;
        let current = self.history.version();
        let initial = call.flag("sendInitialEvents");
        let in_future = initial == Some(true) && version > current;
        if in_future && !call.waited {
            return Ok(CallResult::Later(FUTURE_WAIT));
        }
        let bookmarks = call.flag("allowWatchBookmarks") == Some(true);
        let life = call.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        let ends_at = self.now + life.map_or(WATCH_LIFE, Duration::from_secs);
        let storage = Arc::clone(&resource.storage);
        let id = self.watches.open(filter, bookmarks, self.now, ends_at);
        let sends_all = initial.unwrap_or(version == 0);
        if in_future {
            self.watches.fail(id, &too_large(version, current));
        } else if sends_all {
            let objects: Vec<_> =
                self.history.all(&storage).map(|(_, object)| Arc::clone(object)).collect();
            for object in objects {
                self.watches.initial(id, &object);
            }
            if initial == Some(true) && bookmarks {
                self.watches.initial_end(id, self.history.version());
            }
        } else if version > 0 {
            let floor = self.history.floor(&storage);
            if version < floor {
                let message = format!("too old resource version: {version} ({floor})");
                self.watches.fail(id, &Refusal::expired(message));
            } else {
                for entry in self.history.since(&storage, version) {
                    self.watches.replay(id, entry);
                }
            }
        }
        Ok(CallResult::Watch(id))
    }
}

/// Removes what an object of a type that can only be listed lacks.
fn without_identity(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !matches!(field.as_str(), "uid" | "resourceVersion"));
    }
}

fn later(call: &Call, version: u64, current: u64) -> Result<CallResult, Refusal> {
    if call.waited { Err(too_large(version, current)) } else { Ok(CallResult::Later(FUTURE_WAIT)) }
}

fn too_large(version: u64, current: u64) -> Refusal {
    let message = format!("Timeout: Too large resource version: {version}, current: {current}");
    let mut refusal = Refusal::new(504, "Timeout", message);
    refusal.details = Some(json!({
        "causes": [{
            "reason": "ResourceVersionTooLarge",
            "message": "Too large resource version",
        }],
        "retryAfterSeconds": 1,
    }));
    refusal.retry_after = Some(1);
    refusal
}

fn encode_token(version: u64, key: &NamespacedName, namespace: &str) -> String {
    token_text(i64::try_from(version).unwrap_or(-1), key, namespace)
}

/// Encodes a continue token as the real server does: the path of the next page, relative to the
/// list.
fn token_text(version: i64, (namespace, name): &NamespacedName, listed: &str) -> String {
    let below = !listed.is_empty() || namespace.is_empty();
    let start = if below { format!("{name}\0") } else { format!("{namespace}/{name}\0") };
    let token = json!({ "v": "meta.k8s.io/v1", "rv": version, "start": start });
    URL_SAFE_NO_PAD.encode(token.to_string())
}

fn decode_token(token: &str, listed: &str) -> Result<(i64, NamespacedName), String> {
    let invalid = |why: &str| format!("continue key is not valid: {why}");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|it| invalid(&it.to_string()))?;
    let decoded: Value = serde_json::from_slice(&bytes).map_err(|it| invalid(&it.to_string()))?;
    let text = |field: &str| decoded[field].as_str().unwrap_or_default();
    let version = decoded["rv"].as_i64().unwrap_or_default();
    if text("v") != "meta.k8s.io/v1" {
        let why = format!("server does not recognize this encoded version {}", text("v"));
        return Err(invalid(&why));
    }
    if version == 0 {
        return Err(invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    }
    if text("start").is_empty() {
        return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
    }
    let start = text("start").trim_end_matches('\0');
    let (namespace, name) = start.split_once('/').unwrap_or((listed, start));
    Ok((version, (namespace.to_owned(), name.to_owned())))
}

/// Validates the options of writes.
fn check_options(call: &Call) -> Result<(), Refusal> {
    let kind = match call.info.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        // Options of deletions may be in the body.
        Verb::Delete
        | Verb::DeleteCollection
        | Verb::Get
        | Verb::List
        | Verb::Watch
        | Verb::Other => return Ok(()),
    };
    let mut faults = Vec::new();
    let applies = call.content_type.starts_with("application/apply-patch+");
    if kind == "PatchOptions" && !applies && call.flag("force").is_some() {
        let why = "may not be specified for non-apply patch";
        faults.push(FieldFault::forbidden("force", why));
    }
    if kind == "PatchOptions" && applies && call.param("fieldManager").is_empty() {
        faults.push(FieldFault::required("fieldManager", "is required for apply patch"));
    }
    let dry_run = call.param("dryRun");
    if !matches!(dry_run, "" | "All") {
        faults.push(FieldFault::not_supported("dryRun", &json!([dry_run]), &["All".to_owned()]));
    }
    let validation = call.param("fieldValidation");
    let known = ["", "Ignore", "Strict", "Warn"];
    if !known.contains(&validation) {
        let known = known.map(str::to_owned);
        faults.push(FieldFault::not_supported("fieldValidation", &validation.into(), &known));
    }
    Refusal::invalid_options(kind, &faults)
}

fn check_list_options(call: &Call) -> Result<(), Refusal> {
    let matching = call.param("resourceVersionMatch");
    let version = call.param("resourceVersion");
    let mut faults = Vec::new();
    let field = "resourceVersionMatch";
    if !matching.is_empty() {
        if version.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            faults.push(FieldFault::forbidden(field, why));
        }
        if !call.param("continue").is_empty() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            faults.push(FieldFault::forbidden(field, why));
        }
        let known = ["Exact".to_owned(), "NotOlderThan".to_owned(), String::new()];
        if !known.iter().any(|it| it == matching) {
            faults.push(FieldFault::not_supported(field, &matching.into(), &known));
        }
        if matching == "Exact" && version == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            faults.push(FieldFault::forbidden(field, why));
        }
    }
    if call.flag("sendInitialEvents").is_some() {
        let why = "sendInitialEvents is forbidden for list";
        faults.push(FieldFault::forbidden("sendInitialEvents", why));
    }
    Refusal::invalid_options("ListOptions", &faults)
}

fn check_watch_options(call: &Call) -> Result<(), Refusal> {
    let matching = call.param("resourceVersionMatch");
    let initial = call.flag("sendInitialEvents");
    let mut faults = Vec::new();
    let field = "resourceVersionMatch";
    if !call.param("continue").is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        faults.push(FieldFault::forbidden(field, why));
    }
    if initial.is_some() && matching != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        faults.push(FieldFault::forbidden(field, why));
    }
    if !matching.is_empty() {
        if initial.is_none() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                       provided";
            faults.push(FieldFault::forbidden(field, why));
        }
        if matching != "NotOlderThan" {
            let known = ["NotOlderThan".to_owned()];
            faults.push(FieldFault::not_supported(field, &matching.into(), &known));
        }
    }
    Refusal::invalid_options("ListOptions", &faults)
}
