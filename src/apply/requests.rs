//! Requests of a set to the API server, each within a deadline. Retries are left to the caller.

use std::time::Duration;

use http::Request as HttpRequest;
use kube::{
    Client,
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Request, request},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tokio::time::timeout;

use super::{
    error::Error,
    live_object::LiveObject,
    object_name::ObjectName,
    refusal::{is_gone, is_not_found},
    set_kind::SetKind,
};
use crate::{
    list_page::{ContinueTokens, ListPage},
    redaction,
};

/// Timeout of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// Objects in a page of a list, as client-go reads.
const PAGE: u32 = 500;

/// Client of a set, with its field manager.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) client: &'a Client,
    pub(super) manager: &'a str,
}

/// Missed deadline; the outcome of the request is unknown.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {DEADLINE:?}")]
struct NoResponse;

type BuiltRequest = Result<HttpRequest<Vec<u8>>, request::Error>;

impl Requests<'_> {
    /// Lists the objects of a kind with a label; `None` if the server does not serve the type.
    pub(super) async fn list(
        &self,
        kind: &SetKind,
        namespace: Option<&str>,
        labels: &str,
    ) -> Result<Option<Vec<LiveObject>>, Error> {
        let path = Request::new(kind.path(namespace));
        let mut options = ListParams::default().labels(labels).limit(PAGE);
        let (mut tokens, mut objects) = (ContinueTokens::default(), Vec::new());
        loop {
            let page: ListPage<LiveObject> =
                match self.send(kind, path.list_metadata(&options)).await {
                    Ok(page) => page,
                    Err(error) if is_not_found(&error) => return Ok(None),
                    Err(source) => {
                        let (kind, source) = (Box::new(kind.clone()), Box::new(source));
                        return Err(Error::List { kind, source });
                    }
                };
            let next = tokens.after(&page).map_err(|error| {
                let (kind, why) = (Box::new(kind.clone()), error.to_string());
                Error::EndlessList { kind, why }
            })?;
            objects.extend(page.items.into_iter().flatten());
            let Some(token) = next else { return Ok(Some(objects)) };
            options.continue_token = Some(token);
        }
    }

    /// Reads the metadata of an object; `None` if it is proven to be absent.
    pub(super) async fn metadata(
        &self,
        kind: &SetKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<LiveObject>, kube::Error> {
        let request = Request::new(kind.path(namespace)).get_metadata(name, &GetParams::default());
        match self.send(kind, request).await {
            Ok(live) => Ok(Some(live)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads an object.
    pub(super) async fn object(
        &self,
        kind: &SetKind,
        object: &ObjectName,
    ) -> Result<Value, kube::Error> {
        let path = Request::new(kind.path(object.namespace.as_deref()));
        self.send(kind, path.get(&object.name, &GetParams::default())).await
    }

    /// Creates an object.
    pub(super) async fn create(
        &self,
        kind: &SetKind,
        namespace: Option<&str>,
        object: &Value,
        dry_run: bool,
    ) -> Result<LiveObject, kube::Error> {
        let by = PostParams { dry_run, field_manager: Some(self.manager.to_owned()) };
        let body = object.to_string().into_bytes();
        self.send(kind, Request::new(kind.path(namespace)).create(&by, body)).await
    }

    /// Applies an intent.
    pub(super) async fn apply<T: DeserializeOwned>(
        &self,
        kind: &SetKind,
        object: &ObjectName,
        intent: &RawValue,
        force: bool,
        dry_run: bool,
    ) -> Result<T, kube::Error> {
        let by = PatchParams { force, dry_run, ..PatchParams::apply(self.manager) };
        let path = Request::new(kind.path(object.namespace.as_deref()));
        self.send(kind, path.patch(&object.name, &by, &Patch::Apply(intent))).await
    }

    /// Merges a patch into the metadata of an object.
    pub(super) async fn merge(
        &self,
        kind: &SetKind,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
    ) -> Result<LiveObject, kube::Error> {
        let manager = Some(self.manager.to_owned());
        let by = PatchParams { field_manager: manager, ..PatchParams::default() };
        let path = Request::new(kind.path(namespace));
        self.send(kind, path.patch(name, &by, &Patch::Merge(patch))).await
    }

    /// Deletes exactly one version of an object; its dependents are deleted in the background.
    pub(super) async fn delete(
        &self,
        kind: &SetKind,
        namespace: Option<&str>,
        name: &str,
        preconditions: Preconditions,
    ) -> Result<(), kube::Error> {
        let by = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let path = Request::new(kind.path(namespace));
        self.send::<serde::de::IgnoredAny>(kind, path.delete(name, &by)).await.map(drop)
    }

    /// Returns the served versions of a group, the best one first; none if the group is not served
    /// or cannot be read.
    pub(super) async fn versions(&self, kind: &SetKind) -> Vec<String> {
        #[derive(Deserialize)]
        struct ApiGroup {
            versions: Vec<ApiVersion>,
        }
        #[derive(Deserialize)]
        struct ApiVersion {
            version: String,
        }
        let request = HttpRequest::get(format!("/apis/{}", kind.group)).body(Vec::new());
        let request = request.map_err(request::Error::BuildRequest);
        match self.send::<ApiGroup>(kind, request).await {
            Ok(group) => group.versions.into_iter().map(|it| it.version).collect(),
            Err(_unknown) => Vec::new(),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        kind: &SetKind,
        request: BuiltRequest,
    ) -> Result<T, kube::Error> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        let response = timeout(DEADLINE, self.client.request(request))
            .await
            .unwrap_or_else(|_| Err(kube::Error::Service(Box::new(NoResponse))));
        response.map_err(|error| {
            let kube::Error::Api(status) = error else { return error };
            let is_secret = redaction::is_secret(&kind.group, &kind.plural);
            kube::Error::Api(if is_secret { redaction::of_secret(*status).boxed() } else { status })
        })
    }
}
