//! Requests of an informer, and parsing of response parts other than objects.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use http::{Request, Response, header};
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};
use tracing::debug;

use super::{
    InformerKey, Projection,
    classify::{RequestFailure, error_text, shorten},
    decode,
    reader::{BodyBudget, BodyReader, BodyState, ReadBody},
};
use crate::{duration::after, list_page::ListPage};

/// Maximum size of an error body: a status of a few hundred bytes, or a proxy's error page.
const ERROR_BODY_MAX: usize = 64 * 1024;
/// Silence after which a list releases its slot until the server continues. A server that does not
/// answer lists of one type must not delay those of others.
const SLOT_SILENCE: Duration = Duration::from_secs(1);
/// Maximum time for one page, even if it keeps arriving slowly. Time in the queue for a slot does
/// not count.
const PAGE_MAX: Duration = Duration::from_secs(300);

/// Requests of one informer.
pub(super) struct InformerRequests {
    client: Client,
    path: String,
    /// `&labelSelector=…&fieldSelector=…`
    selectors: String,
    projection: Projection,
    /// Deadline for each response head, and between two chunks of a list.
    deadline: Duration,
    /// Byte budget for pages, shared by all informers of the set.
    budget: BodyBudget,
}

/// A slot among the concurrent lists.
#[derive(Debug)]
pub(super) struct ListSlot {
    lists: Arc<Semaphore>,
    /// `None` while the server is silent.
    permit: Option<OwnedSemaphorePermit>,
    /// Time spent in the queue for a slot.
    queued: Duration,
}

impl ListSlot {
    /// Waits for a slot, in the order of the calls.
    pub(super) async fn acquire(lists: Arc<Semaphore>) -> Self {
        let mut slot = Self { lists, permit: None, queued: Duration::ZERO };
        slot.resume().await;
        slot
    }

    /// Waits for the server. Releases the slot if that takes long; the response is returned once a
    /// slot is free again.
    pub(super) async fn wait<T>(
        &mut self,
        response: impl Future<Output = Result<T, RequestFailure>>,
    ) -> Result<T, RequestFailure> {
        let mut response = std::pin::pin!(response);
        if let Ok(prompt) = timeout(SLOT_SILENCE, response.as_mut()).await {
            return prompt;
        }
        self.permit = None;
        let late = response.await?;
        self.resume().await;
        Ok(late)
    }

    async fn resume(&mut self) {
        let since = Instant::now();
        // The semaphore is never closed.
        self.permit = self.lists.clone().acquire_owned().await.ok();
        self.queued += since.elapsed();
    }
}

impl InformerRequests {
    pub(super) fn new(
        client: Client,
        key: &InformerKey,
        deadline: Duration,
        budget: BodyBudget,
    ) -> Self {
        let mut selectors = String::new();
        for (parameter, selector) in
            [("labelSelector", &key.labels), ("fieldSelector", &key.fields)]
        {
            if let Some(selector) = selector {
                selectors.push('&');
                push_parameter(&mut selectors, parameter, selector);
            }
        }
        let path = key.identity.path(key.namespace.as_deref());
        Self { client, path, selectors, projection: key.projection, deadline, budget }
    }

    /// Requests one page of a list, or all of it without a limit. A page without room in the shared
    /// budget is requested again once the budget has room for a page of any size.
    pub(super) async fn page(
        &self,
        limit: Option<u32>,
        token: &str,
        budget: usize,
        slot: &mut ListSlot,
    ) -> Result<ReadBody, RequestFailure> {
        let mut query = String::new();
        if let Some(limit) = limit {
            push_parameter(&mut query, "limit", &limit.to_string());
        }
        if !token.is_empty() {
            query.push('&');
            push_parameter(&mut query, "continue", token);
        }
        let mut room = None;
        loop {
            if let Some(body) = self.body(&query, budget, room.take(), slot).await? {
                return Ok(body);
            }
            debug!("page waits for room in the budget of all lists");
            // The request holds nothing while it waits: neither a part of the budget nor, after a
            // second, its slot.
            room = slot.wait(async { Ok(self.budget.room(budget).await) }).await?;
        }
    }

    /// Requests the body of one page; `None` if the shared budget has no room for it.
    async fn body(
        &self,
        query: &str,
        budget: usize,
        room: Option<OwnedSemaphorePermit>,
        slot: &mut ListSlot,
    ) -> Result<Option<ReadBody>, RequestFailure> {
        let (sent, queued) = (Instant::now(), slot.queued);
        let response = slot.wait(self.send(query, "PartialObjectMetadataList")).await?;
        let mut reader = BodyReader::new(response.into_body(), budget).within(&self.budget, room);
        loop {
            let end = sent + PAGE_MAX + (slot.queued - queued);
            let chunk = async {
                let idle = end.min(after(Instant::now(), self.deadline));
                match timeout_at(idle, reader.more()).await {
                    Ok(Err(RequestFailure::Transport(error))) => {
                        Err(RequestFailure::BrokenOff(error))
                    }
                    Ok(state) => state,
                    Err(_elapsed) => Err(RequestFailure::Deadline {
                        what: "rest of a list",
                        after: self.deadline,
                    }),
                }
            };
            match slot.wait(chunk).await? {
                BodyState::Open => {}
                BodyState::End => return Ok(Some(reader.into_body())),
                BodyState::NoRoom => return Ok(None),
            }
        }
    }

    /// Opens a watch from a position.
    pub(super) async fn watch(&self, position: &str, seconds: u32) -> Result<Body, RequestFailure> {
        let mut query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&");
        push_parameter(&mut query, "resourceVersion", position);
        Ok(self.send(&query, "PartialObjectMetadata").await?.into_body())
    }

    /// Opens a streaming list, which continues as a watch.
    pub(super) async fn stream(
        &self,
        seconds: u32,
        slot: &mut ListSlot,
    ) -> Result<Body, RequestFailure> {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan&timeoutSeconds={seconds}"
        );
        Ok(slot.wait(self.send(&query, "PartialObjectMetadata")).await?.into_body())
    }

    /// Sends a request; turns every response but a success into a failure.
    async fn send(&self, query: &str, partial: &str) -> Result<Response<Body>, RequestFailure> {
        let accept = match self.projection {
            Projection::Full => "application/json".to_owned(),
            // Servers without support for it send whole objects; only their metadata is kept.
            Projection::Metadata | Projection::Keys => {
                format!("application/json;as={partial};g=meta.k8s.io;v=v1,application/json")
            }
        };
        let query = query.trim_start_matches('&');
        let request = Request::get(format!("{}?{query}{}", self.path, self.selectors))
            .header(header::ACCEPT, accept)
            // A compressed watch delays events until a block is full.
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(|error| RequestFailure::Transport(error_text(&error)))?;
        let late = RequestFailure::Deadline { what: "response", after: self.deadline };
        let end = after(Instant::now(), self.deadline);
        let response = timeout_at(end, self.client.send(request))
            .await
            .map_err(|_elapsed| late.clone())?
            .map_err(|error| match Instant::now() < end {
                true => RequestFailure::Transport(error_text(&error)),
                // The connection also has a deadline, which may fire first.
                false => late.clone(),
            })?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(timeout_at(end, refusal(response)).await.unwrap_or(late))
    }
}

/// Reads the failure from an error response.
async fn refusal(response: Response<Body>) -> RequestFailure {
    let code = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let mut reader = BodyReader::new(response.into_body(), ERROR_BODY_MAX);
    // An incomplete body may still contain the reason.
    while let Ok(BodyState::Open) = reader.more().await {}
    let bytes = reader.into_bytes();
    let text = decode::text(&bytes);
    match serde_json::from_str::<StatusHeader>(&text) {
        Ok(status) => RequestFailure::Status {
            code,
            reason: status.reason.unwrap_or_default(),
            message: shorten(&status.message.unwrap_or_default()),
            retry_after: retry_after.or(status.details.and_then(Details::retry_after)),
        },
        Err(_no_status) => {
            let message = shorten(text.trim());
            RequestFailure::Status { code, reason: String::new(), message, retry_after }
        }
    }
}

fn push_parameter(query: &mut String, name: &str, value: &str) {
    query.push_str(name);
    query.push('=');
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                query.push(char::from(byte));
            }
            _ => query.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Page of a list. Its items are spans of the page.
pub(super) type Page<'a> = ListPage<&'a RawValue>;

/// Line of a watch.
#[derive(Deserialize)]
pub(super) struct WatchLine<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// Returns the object of an added or modified event in the form that the API server writes:
/// `{"type":"ADDED","object":{…}}`. The text of the object has not been checked.
pub(super) fn changed_object(line: &str) -> Option<&str> {
    let kind = line.strip_prefix("{\"type\":\"")?;
    let rest = kind.strip_prefix("MODIFIED").or_else(|| kind.strip_prefix("ADDED"))?;
    let object = rest.strip_prefix("\",\"object\":")?.strip_suffix('}')?;
    Some(object).filter(|object| object.starts_with('{') && object.ends_with('}'))
}

/// A bookmark event's object.
#[derive(Deserialize)]
pub(super) struct Bookmark {
    pub(super) metadata: BookmarkMetadata,
}

/// Metadata of a bookmark.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BookmarkMetadata {
    #[serde(default)]
    pub(super) resource_version: Option<String>,
    #[serde(default)]
    pub(super) annotations: Option<HashMap<String, String>>,
}

impl Bookmark {
    /// Returns whether this bookmark ends a streaming list.
    pub(super) fn ends_list(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations
            .and_then(|annotations| annotations.get("k8s.io/initial-events-end"))
            .is_some_and(|value| value == "true")
    }
}

/// `Status` of the API, reduced to the fields that are needed.
#[derive(Deserialize)]
struct StatusHeader {
    kind: StatusKind,
    #[serde(default)]
    code: Option<u16>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Deserialize)]
enum StatusKind {
    Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(default)]
    retry_after_seconds: Option<u64>,
}

impl Details {
    fn retry_after(self) -> Option<Duration> {
        self.retry_after_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

/// Returns the failure of an `ERROR` event's status, or of a bare status in place of an event.
pub(super) fn in_stream(json: &str) -> Option<RequestFailure> {
    let status: StatusHeader = serde_json::from_str(json).ok()?;
    let StatusKind::Status = status.kind;
    Some(RequestFailure::Status {
        code: status.code.unwrap_or(500),
        reason: status.reason.unwrap_or_default(),
        message: shorten(&status.message.unwrap_or_default()),
        retry_after: status.details.and_then(Details::retry_after),
    })
}

/// Returns the failure of an `ERROR` event with any content.
pub(super) fn error_event(json: &str) -> RequestFailure {
    in_stream(json).unwrap_or_else(|| RequestFailure::Status {
        code: 500,
        reason: String::new(),
        message: "error event without a status".to_owned(),
        retry_after: None,
    })
}
