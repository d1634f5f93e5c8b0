//! Audit log of the API server: its record of all requests.
//!
//! The log proves absence (no polling, a stopped controller sends nothing), which no counter in the
//! client can prove.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;

use super::Error;

/// Audit policy with at most two events per request. The start of the response is logged too:
/// otherwise a watch would appear only at its end.
pub(super) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ['system:apiserver']
- level: Metadata
";

/// Audit log of the API server. Clones read the same log.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

/// Position in an [`AuditLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition(u64);

/// Stage of one request.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// Identifier of the request, equal for all its stages.
    pub audit_id: String,
    /// Stage that the request has reached.
    pub stage: AuditStage,
    /// Name of the user.
    pub user: String,
    /// User agent of the client.
    pub user_agent: String,
    /// Verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`;
    /// the HTTP method in lower case for a path without a type.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// API group; empty for the core group and for a path without a type.
    pub group: String,
    /// Version of the group.
    pub version: String,
    /// Plural name of the type; empty for a path without a type.
    pub resource: String,
    /// Subresource, such as `status` or `scale`; empty for the object itself.
    pub subresource: String,
    /// Namespace; empty for all of them and for cluster-scoped types.
    pub namespace: String,
    /// Name of the object; empty for requests about many and for most creates.
    pub name: String,
    /// HTTP status code, once the server answers.
    pub code: Option<u16>,
    /// Time at which the request arrived.
    pub received: MicroTime,
    /// Time at which this stage was reached.
    pub reached: MicroTime,
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[non_exhaustive]
pub enum AuditStage {
    /// Head of the response sent, body follows: watches only.
    ResponseStarted,
    /// Response sent completely.
    ResponseComplete,
    /// Panic in the server.
    Panic,
}

impl AuditEvent {
    /// Returns true for a request about this type, at any version and subresource.
    pub fn is_about(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }
}

impl AuditLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the current end of the log.
    ///
    /// A response may reach its client shortly before its event reaches the log. Where earlier
    /// requests must not count, wait for
    /// [`ControlPlane::audit_settled`](super::ControlPlane::audit_settled) first.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the log cannot be read.
    pub fn position(&self) -> Result<AuditPosition, Error> {
        let length = self.open()?.metadata().map_err(self.io())?.len();
        Ok(AuditPosition(length))
    }

    /// Returns the events after `position`, in the order of the log.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the log cannot be read, [`Error::AuditLine`] for an invalid line.
    pub fn since(&self, position: AuditPosition) -> Result<Vec<AuditEvent>, Error> {
        let mut file = self.open()?;
        let mut text = Vec::new();
        let Some(before) = position.0.checked_sub(1) else {
            file.read_to_end(&mut text).map_err(self.io())?;
            return self.parse(&text);
        };
        file.seek(SeekFrom::Start(before)).map_err(self.io())?;
        file.read_to_end(&mut text).map_err(self.io())?;
        // The server may have been writing a line when the position was set; its event had happened
        // by then.
        let begin = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
        let (_, after) = text.split_at(begin);
        self.parse(after)
    }

    /// Returns all events since the start of the control plane.
    ///
    /// # Errors
    ///
    /// As for [`since`](Self::since).
    pub fn all(&self) -> Result<Vec<AuditEvent>, Error> {
        self.since(AuditPosition(0))
    }

    fn parse(&self, text: &[u8]) -> Result<Vec<AuditEvent>, Error> {
        // The server may still be writing the last line.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let (whole, _) = text.split_at(whole);
        whole
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice::<wire::AuditLine>(line).map(AuditEvent::from))
            .collect::<Result<_, _>>()
            .map_err(|source| Error::AuditLine { path: self.path.clone(), source })
    }

    fn open(&self) -> Result<File, Error> {
        File::open(&self.path).map_err(self.io())
    }

    fn io(&self) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(format!("reading {}", self.path.display()))
    }
}

/// Returns the watches among `events` that have begun and not ended.
///
/// A killed API server logs no end: use the events since its restart.
pub fn open_watches(events: &[AuditEvent]) -> Vec<&AuditEvent> {
    let mut open = BTreeMap::new();
    for (order, event) in events.iter().enumerate() {
        match event.stage {
            AuditStage::ResponseStarted if event.verb == "watch" => {
                open.insert(&event.audit_id, (order, event));
            }
            AuditStage::ResponseStarted => {}
            AuditStage::ResponseComplete | AuditStage::Panic => {
                open.remove(&event.audit_id);
            }
        }
    }
    let mut open: Vec<_> = open.into_values().collect();
    open.sort_by_key(|(order, _)| *order);
    open.into_iter().map(|(_, event)| event).collect()
}

/// Fields of `audit.k8s.io/v1` that are read.
mod wire {
    use super::{AuditEvent, AuditStage, Deserialize, MicroTime};

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub(super) struct AuditLine {
        #[serde(rename = "auditID")]
        audit_id: String,
        stage: AuditStage,
        user: User,
        #[serde(default)]
        user_agent: String,
        verb: String,
        #[serde(rename = "requestURI")]
        request_uri: String,
        #[serde(default)]
        object_ref: ObjectRef,
        response_status: Option<ResponseStatus>,
        request_received_timestamp: MicroTime,
        stage_timestamp: MicroTime,
    }

    #[derive(Deserialize)]
    struct User {
        #[serde(default)]
        username: String,
    }

    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ObjectRef {
        api_group: String,
        api_version: String,
        resource: String,
        subresource: String,
        namespace: String,
        name: String,
    }

    #[derive(Deserialize)]
    struct ResponseStatus {
        code: Option<u16>,
    }

    impl From<AuditLine> for AuditEvent {
        fn from(event: AuditLine) -> Self {
            Self {
                audit_id: event.audit_id,
                stage: event.stage,
                user: event.user.username,
                user_agent: event.user_agent,
                verb: event.verb,
                uri: event.request_uri,
                group: event.object_ref.api_group,
                version: event.object_ref.api_version,
                resource: event.object_ref.resource,
                subresource: event.object_ref.subresource,
                namespace: event.object_ref.namespace,
                name: event.object_ref.name,
                code: event.response_status.and_then(|status| status.code),
                received: event.request_received_timestamp,
                reached: event.stage_timestamp,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn line(id: &str, stage: &str, verb: &str) -> String {
        format!(
            r#"{{"kind":"Event","level":"Metadata","auditID":"{id}","stage":"{stage}","requestURI":"/apis/x.test/v1/widgets?watch=1","verb":"{verb}","user":{{"username":"alice","groups":["g"]}},"sourceIPs":["127.0.0.1"],"objectRef":{{"resource":"widgets","apiGroup":"x.test","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":200}},"requestReceivedTimestamp":"2026-01-02T03:04:05.123456Z","stageTimestamp":"2026-01-02T03:04:05.223456Z"}}"#
        ) + "\n"
    }

    #[test]
    fn a_half_written_line_waits_for_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::new(directory.path().join("audit.log"));
        let whole = line("1", "ResponseComplete", "list");
        fs::write(&log.path, format!("{whole}{}", &whole[..30])).unwrap();

        let events = log.all().unwrap();

        assert_eq!(events.len(), 1);
        assert!(events[0].is_about("x.test", "widgets"));
        assert_eq!((events[0].user.as_str(), events[0].code), ("alice", Some(200)));
    }

    #[test]
    fn only_events_after_the_position_are_returned() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::new(directory.path().join("audit.log"));
        let first = line("1", "ResponseComplete", "list");
        fs::write(&log.path, &first).unwrap();

        let position = log.position().unwrap();
        fs::write(&log.path, first + &line("2", "ResponseComplete", "get")).unwrap();

        let ids: Vec<_> =
            log.since(position).unwrap().into_iter().map(|event| event.audit_id).collect();
        assert_eq!(ids, ["2"]);
    }

    #[test]
    fn half_written_line_at_the_position_belongs_to_the_time_before() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::new(directory.path().join("audit.log"));
        let first = line("1", "ResponseComplete", "list");
        fs::write(&log.path, &first[..30]).unwrap();

        let position = log.position().unwrap();
        fs::write(&log.path, first + &line("2", "ResponseComplete", "get")).unwrap();

        let ids: Vec<_> =
            log.since(position).unwrap().into_iter().map(|event| event.audit_id).collect();
        assert_eq!(ids, ["2"]);
    }

    #[test]
    fn open_watch_has_begun_and_not_ended() {
        let log = AuditLog::new(PathBuf::new());
        let text = line("1", "ResponseStarted", "watch")
            + &line("2", "ResponseStarted", "watch")
            + &line("1", "ResponseComplete", "watch");
        let events = log.parse(text.as_bytes()).unwrap();

        let open = open_watches(&events);

        assert_eq!(open.iter().map(|event| &event.audit_id).collect::<Vec<_>>(), ["2"]);
    }
}
