//! List and watch of a collection, as one stream that never ends.
//!
//! kube-runtime's watcher does not list again after an HTTP status 410, has no deadline for lists
//! and for opening a watch, and does not report that a watch is open again. Each of its restarts
//! reads all CRDs, with schemas, once more. This stream resumes from the last resourceVersion.

use std::time::Duration;

use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use kube::{
    Client,
    core::{Status, WatchEvent},
};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    raw::Raw,
    request::{self, Error},
};
use crate::{
    duration::doubled,
    kind::VersionOrder,
    list_page::{ContinueTokens, ListPage},
    resume_version::{ResumeVersion, SILENT},
};

/// Objects per list page. Schemas make CRDs large, and a page is decoded as a whole.
const PAGE: usize = 100;
const LIST_DEADLINE: Duration = Duration::from_secs(30);
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// Minimum watch timeout. Some load balancers silently drop connections that are idle for 240 s.
const WATCH_SECONDS: u64 = 200;
const WATCH_JITTER_SECONDS: u64 = 30;
const IDLE_GRACE: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LAST_DELAY: Duration = Duration::from_secs(30);
/// Lifetime after which a watch counts as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// Consecutive failures after which the collection is listed again: its resourceVersion may be the
/// cause.
const RESUMES: u32 = 5;

/// A watched type, reduced to its header.
pub(super) trait WatchedType: Sized + Send + 'static {
    /// Fields that are read from the spec.
    type Spec: DeserializeOwned + Default + Clone + Send + 'static;
    /// Fields that are read from the status.
    type Status: DeserializeOwned + Default + Clone + Send + 'static;

    /// URL path of the collection.
    const PATH: &'static str;
    /// Display name: `plural.group`.
    const RESOURCE: &'static str;

    /// Reduces an object to its header.
    fn reduced(raw: Raw<Self::Spec, Self::Status>) -> Self;
}

/// An object as the server writes it.
pub(super) type RawOf<T> = Raw<<T as WatchedType>::Spec, <T as WatchedType>::Status>;

/// Change of a collection.
#[derive(Debug)]
pub(super) enum CollectionChange<T> {
    /// Complete list; objects not in it were deleted.
    Listed(Vec<T>),
    /// The watch is open: every later change is reported.
    Opened,
    /// Created or updated.
    Applied(T),
    /// Deleted.
    Deleted(T),
    /// The watch failed; the stream retries after a back-off.
    Failed(Error),
}

/// Watches the collection of `T` for ever. Dropping the stream closes the watch.
pub(super) fn watch<T: WatchedType>(
    client: Client,
) -> impl Stream<Item = CollectionChange<T>> + Send {
    let reader = CollectionReader::<T> { client, phase: WatchPhase::List, wait: None, attempt: 0 };
    stream::unfold(reader, |mut reader| async move {
        let change = reader.next().await;
        Some((change, reader))
    })
}

struct CollectionReader<T: WatchedType> {
    client: Client,
    phase: WatchPhase<T>,
    /// Delay before the next request.
    wait: Option<Duration>,
    /// Failures since a watch was last healthy.
    attempt: u32,
}

enum WatchPhase<T: WatchedType> {
    List,
    /// The server may be behind the position of the watch.
    Check(ResumeVersion),
    Open(ResumeVersion),
    Watch(OpenWatch<T>),
}

struct OpenWatch<T: WatchedType> {
    position: ResumeVersion,
    opened: Instant,
    idle: Duration,
    /// True once an event has arrived.
    is_heard: bool,
    /// True if an event was older than the position.
    is_contradicted: bool,
    events: BoxStream<'static, kube::Result<WatchEvent<RawOf<T>>>>,
}

impl<T: WatchedType> CollectionReader<T> {
    async fn next(&mut self) -> CollectionChange<T> {
        loop {
            if let Some(wait) = self.wait.take() {
                sleep(wait).await;
            }
            let change = match std::mem::replace(&mut self.phase, WatchPhase::List) {
                WatchPhase::List => self.list().await,
                WatchPhase::Check(position) => {
                    self.phase = self.check(position).await;
                    continue;
                }
                WatchPhase::Open(position) => self.open(position).await,
                WatchPhase::Watch(watch) => match self.read(watch).await {
                    Some(change) => change,
                    None => continue,
                },
            };
            return change;
        }
    }

    async fn list(&mut self) -> CollectionChange<T> {
        let mut items = Vec::new();
        let mut tokens = ContinueTokens::default();
        let mut from = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{from}", T::PATH);
            let page: ListPage<RawOf<T>> =
                match request::get_json(&self.client, &path, "application/json", LIST_DEADLINE)
                    .await
                {
                    Ok(page) => page,
                    Err(error) => return self.failed(WatchPhase::List, error),
                };
            let next = match tokens.after(&page) {
                Ok(next) => next,
                Err(source) => {
                    return self.failed(WatchPhase::List, Error::EndlessList { path, source });
                }
            };
            let version = page.resource_version().to_owned();
            let Some(page) = page.items else {
                let source = serde_json::Error::custom("items is null");
                return self.failed(WatchPhase::List, Error::Decode { path, source });
            };
            items.extend(page.into_iter().map(T::reduced));
            match next {
                Some(token) => from = format!("&continue={}", escape(&token)),
                None => {
                    // The API server itself serves CRDs and APIServices.
                    let position = ResumeVersion::new(&version, VersionOrder::Comparable);
                    self.phase = WatchPhase::Open(position);
                    return CollectionChange::Listed(items);
                }
            }
        }
    }

    /// Returns the phase after a check: a list if the server is behind the position.
    async fn check(&mut self, position: ResumeVersion) -> WatchPhase<T> {
        let path = format!("{}?limit=1", T::PATH);
        let page: Result<ListPage<IgnoredAny>, Error> =
            request::get_json(&self.client, &path, "application/json", LIST_DEADLINE).await;
        // If this fails, so will the watch, which reports the error.
        let version = page.as_ref().map_or("", ListPage::resource_version);
        if !position.is_contradicted(version) {
            return WatchPhase::Open(position);
        }
        warn!(
            resource = T::RESOURCE,
            resource_version = version,
            "the server's resourceVersion is older than that of the watch"
        );
        WatchPhase::List
    }

    async fn open(&mut self, position: ResumeVersion) -> CollectionChange<T> {
        let seconds = WATCH_SECONDS + fastrand::u64(0..WATCH_JITTER_SECONDS);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            T::PATH,
            escape(position.version()),
        );
        let request = match http::Request::get(&path).body(Vec::new()) {
            Ok(request) => request,
            Err(source) => return self.failed(WatchPhase::List, Error::Path { path, source }),
        };
        match timeout(OPEN_DEADLINE, self.client.request_events::<RawOf<T>>(request)).await {
            Ok(Ok(events)) => {
                self.phase = WatchPhase::Watch(OpenWatch {
                    position,
                    opened: Instant::now(),
                    idle: Duration::from_secs(seconds) + IDLE_GRACE,
                    is_heard: false,
                    is_contradicted: false,
                    events: Box::pin(events),
                });
                CollectionChange::Opened
            }
            Ok(Err(source)) => {
                let error = Error::Watch { path, source: Box::new(source) };
                self.failed_watch(WatchPhase::Open(position), error)
            }
            Err(_elapsed) => {
                let error = Error::Deadline { path, after: OPEN_DEADLINE };
                self.failed_watch(WatchPhase::Open(position), error)
            }
        }
    }

    /// Returns the next change; `None` if there is none to report.
    async fn read(&mut self, mut watch: OpenWatch<T>) -> Option<CollectionChange<T>> {
        let next = match timeout(watch.idle, watch.events.next()).await {
            Ok(next) => next,
            Err(_elapsed) => {
                let error = Error::Deadline { path: T::PATH.into(), after: watch.idle };
                return Some(self.failed_watch(watch.resumed(), error));
            }
        };
        if watch.opened.elapsed() >= HEALTHY_AFTER {
            self.attempt = 0;
        }
        let change = match next {
            Some(Ok(WatchEvent::Added(raw) | WatchEvent::Modified(raw))) => {
                watch.advance(&raw.metadata.resource_version);
                CollectionChange::Applied(T::reduced(raw))
            }
            Some(Ok(WatchEvent::Deleted(raw))) => {
                watch.advance(&raw.metadata.resource_version);
                CollectionChange::Deleted(T::reduced(raw))
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                watch.advance(&bookmark.metadata.resource_version);
                self.proceed(watch);
                return None;
            }
            Some(Ok(WatchEvent::Error(status))) => {
                return Some(self.failed_watch(watch.resumed(), status_error(status, T::PATH)));
            }
            Some(Err(source)) => {
                let undecodable = matches!(source, kube::Error::SerdeError(_));
                let error = Error::Watch { path: T::PATH.into(), source: Box::new(source) };
                // A list recovers the change that could not be decoded.
                return Some(if undecodable {
                    self.failed(WatchPhase::List, error)
                } else {
                    self.failed_watch(watch.resumed(), error)
                });
            }
            None => {
                // Backs off, so that a server that ends every watch at once is not requested in a
                // tight loop.
                if watch.opened.elapsed() < HEALTHY_AFTER {
                    self.back_off();
                }
                self.phase = watch.resumed();
                return None;
            }
        };
        self.proceed(watch);
        Some(change)
    }

    fn proceed(&mut self, watch: OpenWatch<T>) {
        self.attempt = 0;
        self.phase = WatchPhase::Watch(watch);
    }

    /// Fails the watch; `resumed` is the next phase unless a list is needed.
    fn failed_watch(&mut self, resumed: WatchPhase<T>, error: Error) -> CollectionChange<T> {
        // After a refusal, a list reports the changes missed, before the watch opens again.
        let is_lost = error.code() == Some(410) || error.is_refusal();
        let phase = if is_lost || (self.attempt + 1).is_multiple_of(RESUMES) {
            WatchPhase::List
        } else {
            resumed
        };
        self.failed(phase, error)
    }

    fn failed(&mut self, phase: WatchPhase<T>, error: Error) -> CollectionChange<T> {
        self.back_off();
        self.phase = phase;
        debug!(resource = T::RESOURCE, attempt = self.attempt, %error, "watch failed");
        CollectionChange::Failed(error)
    }

    fn back_off(&mut self) {
        self.wait = Some(delay(self.attempt).mul_f64(0.75 + fastrand::f64() / 2.0));
        self.attempt = self.attempt.saturating_add(1);
    }
}

impl<T: WatchedType> OpenWatch<T> {
    /// Moves the position to the version of an event.
    fn advance(&mut self, version: &str) {
        self.is_heard = true;
        self.is_contradicted |= self.position.is_past(version);
        self.position.advance(version);
    }

    /// Returns the phase that resumes the watch after its end.
    fn resumed(self) -> WatchPhase<T> {
        let is_silent = !self.is_heard && self.opened.elapsed() >= SILENT;
        if self.is_contradicted {
            WatchPhase::List
        } else if is_silent {
            WatchPhase::Check(self.position)
        } else {
            WatchPhase::Open(self.position)
        }
    }
}

/// Doubles from the first to the last delay.
fn delay(attempt: u32) -> Duration {
    doubled(FIRST_DELAY, attempt, LAST_DELAY)
}

fn status_error(status: Box<Status>, path: &str) -> Error {
    Error::Status { path: path.into(), code: status.code, message: status.message }
}

/// Percent-encodes the characters that a query value must not have.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_half_a_minute() {
        let delays: Vec<_> = (0..12).map(|attempt| delay(attempt).as_millis()).collect();

        assert_eq!(
            delays,
            [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000]
        );
    }

    #[test]
    fn a_continue_token_is_escaped() {
        assert_eq!(escape("a+/=Z-9"), "a%2B%2F%3DZ-9");
    }
}
