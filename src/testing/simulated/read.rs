//! Reads: one object, lists in pages, watches.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    call::{Answer, Call, Reply},
    cluster::Cluster,
    delete::list_of,
    history::Key,
    refusal::{FieldFault, Refusal},
    render::{item, render},
    resource::Resource,
    scale,
    selector::{Fields, Labels},
    watches::{Filter, WatchId},
};
use crate::testing::Verb;

/// For how long a version of the future is waited for.
const FUTURE_WAIT: Duration = Duration::from_secs(3);
/// How long a watch lives that does not say so; the real server draws 30 to 60 minutes.
const WATCH_LIFE: Duration = Duration::from_secs(45 * 60);

impl Cluster {
    /// Answers a request for a type.
    pub(super) fn serve(
        &mut self,
        resource: &Arc<Resource>,
        call: &Call,
    ) -> Result<Answer, Refusal> {
        self.check_subresource(resource, call)?;
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
            Verb::Watch => self.watch(resource, call).map(Answer::Watch),
            Verb::Create => self.create(resource, call),
            Verb::Update => self.update(resource, call),
            Verb::Patch => self.patch(resource, call),
            Verb::Delete => self.delete(resource, call),
            Verb::DeleteCollection => self.delete_collection(resource, call),
            Verb::Other => Err(Refusal::method_not_allowed()),
        }
    }

    fn check_subresource(&self, resource: &Resource, call: &Call) -> Result<(), Refusal> {
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
                if names || unnamed {
                    return Err(Refusal::method_not_allowed());
                }
                Ok(())
            }
            "status" if resource.status && !writes => Ok(()),
            "scale" if resource.scale.is_some() && !writes => Ok(()),
            "status" | "scale" if resource.custom => {
                Err(Refusal::not_found(resource, &call.info.name))
            }
            "status" | "scale" => Err(Refusal::no_such_path()),
            _ if resource.custom => Err(Refusal::not_found(resource, &call.info.name)),
            other => Err(Refusal::not_simulated(format!(
                "the subresource {other} of {}",
                resource.qualified()
            ))),
        }
    }

    fn get(&self, resource: &Resource, call: &Call) -> Result<Answer, Refusal> {
        let shape = call.shape(resource.custom)?;
        let live = self.live(resource, &Self::key_of(resource, call))?;
        let shown = match call.info.subresource.as_str() {
            "scale" => scale::scale_of(resource, &live)?,
            _ => render(resource, &live, shape),
        };
        Ok(Answer::Done(Reply::json(200, &shown)))
    }

    pub(super) fn filter(&self, resource: &Arc<Resource>, call: &Call) -> Result<Filter, Refusal> {
        let mut fields = Fields::parse(call.param("fieldSelector"), resource)?;
        if !call.info.name.is_empty() {
            fields = Fields::of_name(&call.info.name);
        }
        Ok(Filter {
            resource: Arc::clone(resource),
            namespace: call.info.namespace.clone(),
            labels: Labels::parse(call.param("labelSelector"))?,
            fields,
            shape: call.shape(resource.custom)?,
        })
    }

    fn list(&mut self, resource: &Arc<Resource>, call: &Call) -> Result<Answer, Refusal> {
        let filter = self.filter(resource, call)?;
        let asked = call.param("resourceVersion");
        let matching = call.param("resourceVersionMatch");
        let token = call.param("continue");
        check_list_options(call)?;
        let version = number(asked)?;
        let current = self.history.version();
        if version > current {
            if !call.waited {
                return Ok(Answer::Later(FUTURE_WAIT));
            }
            return Err(too_large(version, current));
        }
        let limit = call.number("limit")?.filter(|limit| *limit > 0);
        let paged = limit.is_some() && asked != "0";
        // A page from a version that is given is of exactly that version, unless it says otherwise.
        let exact =
            matching == "Exact" || version > 0 && paged && matching.is_empty() && token.is_empty();
        let (at, after) = if !token.is_empty() {
            if !matches!(asked, "" | "0") {
                let message = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(message));
            }
            self.resume(token)?
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
        let wanted = objects.iter().filter(|(key, object)| {
            after.as_ref().is_none_or(|after| *key > after) && filter.matches(object)
        });
        let mut wanted = wanted.peekable();
        let mut items = Vec::new();
        let mut last: Option<&Key> = None;
        let most = limit.filter(|_| asked != "0").unwrap_or(u64::MAX);
        while let Some((key, object)) =
            wanted.next_if(|_| u64::try_from(items.len()).is_ok_and(|count| count < most))
        {
            items.push(item(resource, object, filter.shape));
            last = Some(key);
        }
        let rest = wanted.count();
        let go_on = last.filter(|_| rest > 0).map(|last| token_of(at, last));
        let remaining =
            (rest > 0 && filter.labels.is_empty() && filter.fields.is_empty()).then_some(rest);
        Ok(Answer::Done(Reply::json(200, &list_of(&filter, items, at, go_on, remaining))))
    }

    /// Where a list goes on: its version and the last key of the page before.
    fn resume(&self, token: &str) -> Result<(u64, Option<Key>), Refusal> {
        let invalid = || Refusal::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
        let decoded: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let text = |field: &str| decoded[field].as_str().map(str::to_owned).ok_or_else(invalid);
        let key = (text("namespace")?, text("name")?);
        let version = decoded["rv"].as_i64().ok_or_else(invalid)?;
        let Ok(version) = u64::try_from(version) else {
            // The client has agreed to an inconsistent rest.
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
            refusal.go_on = Some(encode_token(-1, &key));
            return Err(refusal);
        }
        Ok((version, Some(key)))
    }

    fn watch(&mut self, resource: &Arc<Resource>, call: &Call) -> Result<WatchId, Refusal> {
        let filter = self.filter(resource, call)?;
        check_watch_options(call)?;
        let asked = call.param("resourceVersion");
        let version = number(asked)?;
        let initial = call.flag("sendInitialEvents");
        let bookmarks = call.flag("allowWatchBookmarks") == Some(true);
        let life = call.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
        let ends_at = self.now + life.map_or(WATCH_LIFE, Duration::from_secs);
        let storage = Arc::clone(&resource.storage);
        let id = self.watches.open(filter, bookmarks, self.now, ends_at);
        let sends_all = initial.unwrap_or(version == 0);
        if sends_all {
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
        Ok(id)
    }
}

fn number(version: &str) -> Result<u64, Refusal> {
    if version.is_empty() {
        return Ok(0);
    }
    version.parse().map_err(|_| {
        let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
        let fault = FieldFault::invalid("resourceVersion", &version.into(), &why);
        let mut refusal = Refusal::invalid("", "", "", &[fault]);
        refusal.message =
            format!("invalid resource version: resourceVersion: Invalid value: {version:?}: {why}");
        refusal.code = 400;
        refusal.reason = "BadRequest";
        refusal.details = None;
        refusal
    })
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

fn token_of(version: u64, key: &Key) -> String {
    encode_token(i64::try_from(version).unwrap_or(-1), key)
}

fn encode_token(version: i64, key: &Key) -> String {
    let token = json!({ "rv": version, "namespace": key.0, "name": key.1 });
    URL_SAFE_NO_PAD.encode(token.to_string())
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
    refuse_options(&faults)
}

fn check_watch_options(call: &Call) -> Result<(), Refusal> {
    let matching = call.param("resourceVersionMatch");
    let initial = call.flag("sendInitialEvents");
    let mut faults = Vec::new();
    let field = "resourceVersionMatch";
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
    refuse_options(&faults)
}

fn refuse_options(faults: &[FieldFault]) -> Result<(), Refusal> {
    if faults.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid("meta.k8s.io", "ListOptions", "", faults))
}
