//! Requests for single objects of a type, as JSON.
//!
//! Every request has a deadline. Retries are left to the work queue.

pub(super) mod patches;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{Method, Request};
use kube::core::Status;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_json::{Value, json, value::RawValue};
use tokio::time::timeout;

pub(crate) use crate::apply::refusal::{
    is_already_there, is_conflict, is_denied, is_gone, is_invalid, is_no_dry_run, is_not_found,
    is_other_uid,
};
use crate::{
    apply::refusal::status,
    informer::ObjectKey,
    kind::{ServedType, TypeIdentity},
    manager::{FenceClosed, ObjectIdentity, Requester, request_bytes, retry_after, wait_details},
    meta::{
        definition::apply_strategy::{FieldManager, METACONTROLLER},
        json::{digest::JsonDigest, go_json},
    },
    redaction,
};

/// Timeout of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// Field manager of all writes but server-side apply: Metacontroller's name, so that its children
/// stay ours.
pub(crate) const FIELD_MANAGER: &str = METACONTROLLER;
/// Content type of server-side apply. JSON is YAML.
const APPLY: &str = "application/apply-patch+yaml";

/// Object as stored by a write; only the fields that matter.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct StoredObject {
    #[serde(default)]
    metadata: StoredMetadata,
    /// Digest of the stored status; `None` after [`Resource::create`] and [`Resource::update`],
    /// whose responses are not read that far.
    #[serde(default)]
    pub(crate) status: Option<JsonDigest>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredMetadata {
    #[serde(default)]
    resource_version: Option<String>,
}

impl StoredObject {
    /// Reads the response to a write as far as the identity of the object, without the status. What
    /// follows may be damaged: the server has stored the object.
    pub(crate) fn without_status(body: &[u8]) -> Result<Self, serde_json::Error> {
        let (ObjectIdentity { version, .. }, _) = ObjectIdentity::of_response(body)?;
        let metadata = StoredMetadata { resource_version: version };
        Ok(Self { metadata, status: None })
    }

    /// Returns the resourceVersion; an aggregated API may have none.
    pub(crate) fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

/// Object as the server has it now: its text, and the metadata that decides.
#[derive(Debug)]
pub(crate) struct ServerObject {
    json: Box<RawValue>,
    /// Decoded part of its metadata.
    pub(crate) metadata: LiveMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveMetadata {
    pub(crate) namespace: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    pub(crate) owner_references: Option<Vec<LiveOwner>>,
}

/// Owner reference of a live object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveOwner {
    #[serde(default)]
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) controller: Option<bool>,
}

impl<'de> Deserialize<'de> for ServerObject {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct LiveHead {
            #[serde(default)]
            metadata: LiveMetadata,
        }
        let json = Box::<RawValue>::deserialize(decoder)?;
        let LiveHead { metadata } = serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        Ok(Self { json, metadata })
    }
}

impl ServerObject {
    /// The object as JSON.
    pub(crate) fn json(&self) -> &[u8] {
        self.json.get().as_bytes()
    }

    /// Returns whether it is the object with this uid.
    pub(crate) fn is(&self, uid: &str) -> bool {
        self.metadata.uid.as_deref() == Some(uid)
    }

    /// Returns the resourceVersion; an aggregated API may have none.
    pub(crate) fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    /// Returns whether it is being deleted.
    pub(crate) fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the name of the other field manager that wrote the object last.
    pub(crate) fn other_writer(&self) -> Option<String> {
        let others = self.managers().into_iter().filter(|entry| entry.manager != FIELD_MANAGER);
        others.max_by_key(|entry| entry.time.clone()).map(|entry| entry.manager)
    }

    /// Returns whether the object has fields of this field manager.
    pub(crate) fn is_managed_by(&self, manager: &str) -> bool {
        self.managers().iter().any(|entry| entry.manager == manager)
    }

    /// Returns whether this field manager has applied the object, or written more of it than
    /// metadata and status. Decorations and finalizers are metadata.
    pub(crate) fn is_written_by(&self, manager: &str) -> bool {
        let is_content = |field: &String| field != "f:metadata" && field != "f:status";
        self.managers().iter().filter(|entry| entry.manager == manager).any(|entry| {
            let is_apply = entry.operation.as_deref() == Some("Apply");
            let has_content = entry.fields_v1.as_ref().is_some_and(|it| it.keys().any(is_content));
            entry.subresource.is_none() && (is_apply || has_content)
        })
    }

    /// Returns the entries of its managed fields.
    fn managers(&self) -> Vec<ManagedFieldsEntry> {
        #[derive(Deserialize)]
        struct ManagedObject {
            metadata: ManagedMetadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ManagedMetadata {
            managed_fields: Vec<ManagedFieldsEntry>,
        }
        let object = serde_json::from_str::<ManagedObject>(self.json.get());
        object.map_or_else(|_unmanaged| Vec::new(), |object| object.metadata.managed_fields)
    }
}

/// Entry of an object's managed fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFieldsEntry {
    manager: String,
    operation: Option<String>,
    subresource: Option<String>,
    fields_v1: Option<BTreeMap<String, IgnoredAny>>,
    // All times are in UTC and of one format, so that they compare as text.
    time: Option<String>,
}

/// A type's objects, one at a time.
#[derive(Clone, Copy)]
pub(crate) struct Resource<'a> {
    requester: Requester<'a>,
    identity: &'a TypeIdentity,
}

impl<'a> Resource<'a> {
    /// Returns the type of the objects.
    pub(crate) fn identity(&self) -> &'a TypeIdentity {
        self.identity
    }

    /// Returns access to the objects of a type.
    pub(crate) fn new(requester: impl Into<Requester<'a>>, served: &'a ServedType) -> Self {
        Self { requester: requester.into(), identity: &served.identity }
    }

    /// Reads an object from the server.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<ServerObject, kube::Error> {
        request(self.requester, Method::GET, self.path(key), "", Bytes::new()).await
    }

    /// Creates an object.
    pub(crate) async fn create(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<StoredObject, kube::Error> {
        let path = self.identity.path(key.namespace.as_deref());
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.write(Method::POST, path, object).await
    }

    /// Dry run of a create.
    pub(crate) async fn dry_run_create(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<StoredObject, kube::Error> {
        let path = self.identity.path(key.namespace.as_deref());
        let path = format!("{path}?dryRun=All&fieldManager={FIELD_MANAGER}");
        request(self.requester, Method::POST, path, "application/json", object).await
    }

    /// Dry run of an update; returns the object as it would be stored.
    pub(crate) async fn dry_run_update(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<Box<RawValue>, kube::Error> {
        let path = format!("{}?dryRun=All&fieldManager={FIELD_MANAGER}", self.path(key));
        request(self.requester, Method::PUT, path, "application/json", object).await
    }

    /// Replaces an object; a conflict if its resourceVersion is not that of `object`.
    pub(crate) async fn update(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<StoredObject, kube::Error> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", self.path(key));
        self.write(Method::PUT, path, object).await
    }

    /// Replaces an object like [`Resource::update`]; returns it as it is stored.
    pub(crate) async fn replace(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<Box<RawValue>, kube::Error> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", self.path(key));
        request(self.requester, Method::PUT, path, "application/json", object).await
    }

    /// Writes an object, and reads the response without the status.
    async fn write(
        &self,
        method: Method,
        path: String,
        object: Bytes,
    ) -> Result<StoredObject, kube::Error> {
        let body = exchange(self.requester, method, path, "application/json", object).await?;
        StoredObject::without_status(&body).map_err(kube::Error::SerdeError)
    }

    /// Replaces the status of an object; a conflict if its resourceVersion is not that of `object`.
    pub(crate) async fn update_status(
        &self,
        key: &ObjectKey,
        object: Bytes,
    ) -> Result<StoredObject, kube::Error> {
        let path = format!("{}/status?fieldManager={FIELD_MANAGER}", self.path(key));
        request(self.requester, Method::PUT, path, "application/json", object).await
    }

    /// Merges a patch into an object, or into its status.
    pub(crate) async fn merge_patch<T: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        subresource: Option<&str>,
        patch: &Value,
    ) -> Result<T, kube::Error> {
        let tail = subresource.map(|name| format!("/{name}")).unwrap_or_default();
        let path = format!("{}{tail}?fieldManager={FIELD_MANAGER}", self.path(key));
        send(self.requester, Method::PATCH, path, "application/merge-patch+json", Some(patch)).await
    }

    /// Applies a configuration; a conflict if it has a uid and the object does not exist, or another
    /// manager owns one of its fields with another value. With `force` the field is taken over.
    pub(crate) async fn apply(
        &self,
        key: &ObjectKey,
        object: Bytes,
        manager: &FieldManager,
        force: bool,
    ) -> Result<Box<RawValue>, kube::Error> {
        let path = format!("{}?force={force}&fieldManager={}", self.path(key), encoded(manager));
        request(self.requester, Method::PATCH, path, APPLY, object).await
    }

    /// Dry run of a forced [`Resource::apply`]; returns the object as it would be stored.
    pub(crate) async fn dry_run_apply(
        &self,
        key: &ObjectKey,
        object: Bytes,
        manager: &FieldManager,
    ) -> Result<Box<RawValue>, kube::Error> {
        let manager = encoded(manager);
        let path = format!("{}?dryRun=All&force=true&fieldManager={manager}", self.path(key));
        request(self.requester, Method::PATCH, path, APPLY, object).await
    }

    /// Deletes the object if it has this uid; its dependents are deleted in the background.
    pub(crate) async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), kube::Error> {
        self.delete_if(key, json!({"uid": uid})).await
    }

    /// Deletes exactly this version of an object; its dependents are deleted in the background.
    pub(crate) async fn delete_version(
        &self,
        key: &ObjectKey,
        uid: &str,
        version: &str,
    ) -> Result<(), kube::Error> {
        self.delete_if(key, json!({"uid": uid, "resourceVersion": version})).await
    }

    async fn delete_if(&self, key: &ObjectKey, preconditions: Value) -> Result<(), kube::Error> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": preconditions,
        });
        let path = self.path(key);
        send(self.requester, Method::DELETE, path, "application/json", Some(&options))
            .await
            .map(|IgnoredAny| ())
    }

    fn path(&self, key: &ObjectKey) -> String {
        [&*self.identity.path(key.namespace.as_deref()), "/", &*key.name].concat()
    }
}

/// Returns the name of a field manager for a query.
fn encoded(manager: &FieldManager) -> String {
    let byte = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    manager.as_str().bytes().map(byte).collect()
}

/// Sends one request within the deadline.
pub(crate) async fn send<T: DeserializeOwned>(
    requester: impl Into<Requester<'_>>,
    method: Method,
    path: String,
    content_type: &str,
    body: Option<&Value>,
) -> Result<T, kube::Error> {
    // As Go does: it encodes a hook's `3.0` as the whole number 3. The server refuses a decimal
    // point in an integer field.
    let body = body.map(|body| Bytes::from(go_json::encode(body)));
    request(requester.into(), method, path, content_type, body.unwrap_or_default()).await
}

/// Sends one request with an encoded body, or none, within the deadline.
async fn request<T: DeserializeOwned>(
    requester: Requester<'_>,
    method: Method,
    path: String,
    content_type: &str,
    body: Bytes,
) -> Result<T, kube::Error> {
    let body = exchange(requester, method, path, content_type, body).await?;
    serde_json::from_slice(&body).map_err(kube::Error::SerdeError)
}

/// Sends one request with an encoded body, or none, within the deadline, and returns the body of its
/// response. Writes are logged.
async fn exchange(
    requester: Requester<'_>,
    method: Method,
    path: String,
    content_type: &str,
    body: Bytes,
) -> Result<Bytes, kube::Error> {
    let is_logged = tracing::enabled!(tracing::Level::DEBUG)
        && method != Method::GET
        && !path.contains("dryRun=");
    let written = is_logged.then(|| (method.clone(), path.clone()));
    let mut request = Request::builder().method(method).uri(path);
    if !body.is_empty() {
        request = request.header(http::header::CONTENT_TYPE, content_type);
    }
    let request = request.body(body).map_err(kube::Error::HttpError)?;
    let response = timeout(DEADLINE, request_bytes(requester, request))
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(Box::new(NoResponse))));
    if let Some((method, path)) = written.filter(|_| response.is_ok()) {
        let path = path.split('?').next();
        tracing::debug!(%method, path, "object written");
    }
    response
}

/// Missed deadline; the outcome of the request is unknown.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {DEADLINE:?}")]
struct NoResponse;

/// Returns whether the server or an admission policy refuses the request as such.
pub(crate) fn is_refused(error: &kube::Error) -> bool {
    status(error).is_some_and(|(code, _)| matches!(code, 400 | 403))
}

/// Returns whether a right is missing.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    status(error).is_some_and(|(code, _)| code == 403)
}

/// Returns whether a patch was refused since the right to patch is missing. Authorizers have no
/// reason of their own, so the refusal is recognised by the text that the API server gives it, or, for
/// Secrets, `redaction`.
pub(crate) fn is_patch_forbidden(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let has = |text: &str| status.message.contains(text);
    status.code == 403 && (has("cannot patch resource") || has("the right is missing"))
}

/// Returns whether a deletion is refused because the object has another uid: it was deleted, and
/// another one was created under its name. Other conflicts leave the object as it is.
pub(crate) fn is_other_object(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    is_conflict(error) && status.message.to_lowercase().contains("precondition")
}

/// Returns whether a create was refused because its namespace is being deleted.
pub(crate) fn is_in_ending_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns the wait that the server requests before a retry.
pub(crate) fn requested_wait(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    retry_after(status)
}

/// Returns a response that throttles a request, with another message.
pub(crate) fn throttled(message: &str, after: Duration) -> kube::Error {
    let seconds = u32::try_from(after.as_secs()).unwrap_or(u32::MAX);
    let details = wait_details(seconds);
    let status = Status::failure(message, "TooManyRequests").with_code(429);
    kube::Error::Api(status.with_details(details).boxed())
}

/// Returns whether the epoch ended before the request was sent.
pub(crate) fn is_fenced(error: &kube::Error) -> bool {
    redaction::chain(error).any(|error| error.is::<FenceClosed>())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt;
    use kube::{Client, client::Body};
    use tokio::sync::mpsc;

    use super::*;
    use crate::{kind::Scope, meta::children::fixtures::served};

    #[tokio::test]
    async fn a_whole_number_is_sent_without_a_point() {
        let (sent, mut bodies) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sent = sent.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                sent.send(String::from_utf8(body.to_vec()).unwrap()).unwrap();
                Ok::<_, Infallible>(http::Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let client = Client::new(service, "default");
        let served = served("", "services", "Service", Scope::Namespaced);
        let resource = Resource::new(&client, &served);
        let key = ObjectKey { namespace: Some("ns".into()), name: "a".into() };
        // As Python writes 160 / 2.
        let response = r#"{"spec":{"ports":[{"port":80.0}],"ratio":0.5}}"#;
        let object: Value = serde_json::from_str(response).unwrap();
        let encoded = || Bytes::from(go_json::encode(&object));

        resource.create(&key, encoded()).await.unwrap();
        resource.update(&key, encoded()).await.unwrap();
        resource.update_status(&key, encoded()).await.unwrap();
        resource.dry_run_create(&key, encoded()).await.unwrap();
        resource.dry_run_update(&key, encoded()).await.unwrap();
        resource.merge_patch::<Value>(&key, None, &object).await.unwrap();

        for _ in 0..6 {
            let body = bodies.recv().await.unwrap();
            assert_eq!(body, r#"{"spec":{"ports":[{"port":80}],"ratio":0.5}}"#);
        }
    }

    #[test]
    fn other_writer_is_the_latest_field_manager_but_our_own() {
        let entry = |manager: &str, time: &str| json!({"manager": manager, "time": time});
        let check = |entries: Value, expected: Option<&str>| {
            let object = json!({"metadata": {"managedFields": entries}});
            let live: ServerObject = serde_json::from_value(object).unwrap();
            assert_eq!(live.other_writer().as_deref(), expected, "{live:?}");
        };

        check(json!([]), None);
        check(json!([entry(FIELD_MANAGER, "2026-01-01T00:00:00Z")]), None);
        check(
            json!([
                entry("later", "2026-01-01T00:00:02Z"),
                entry("earlier", "2026-01-01T00:00:01Z"),
                entry(FIELD_MANAGER, "2026-01-01T00:00:03Z"),
            ]),
            Some("later"),
        );
        check(json!([{"manager": "timeless"}]), Some("timeless"));
        check(json!("nonsense"), None);
        assert_eq!(serde_json::from_str::<ServerObject>("{}").unwrap().other_writer(), None);
    }
}
