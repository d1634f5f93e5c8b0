//! One request and its answer, without a connection.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Uri};
use serde_json::Value;

use super::{refusal::Refusal, watches::WatchId};
use crate::testing::RequestInfo;

/// What is asked, by whom.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) user: String,
    pub(super) info: RequestInfo,
    pub(super) params: BTreeMap<String, String>,
    pub(super) accept: String,
    pub(super) content_type: String,
    pub(super) user_agent: String,
    pub(super) if_none_match: String,
    pub(super) body: Bytes,
    /// Whether it has waited for as long as [`Answer::Later`] said.
    pub(super) waited: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Reply),
    /// Events follow.
    Watch(WatchId),
    /// Nothing yet: ask again after this time, with `waited`.
    Later(std::time::Duration),
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) content_type: &'static str,
    pub(super) etag: Option<String>,
    pub(super) retry_after: Option<u64>,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn json(code: u16, value: &Value) -> Self {
        let body = value.to_string().into();
        Self { code, content_type: "application/json", etag: None, retry_after: None, body }
    }

    pub(super) fn text(code: u16, text: &'static str) -> Self {
        let body = Bytes::from_static(text.as_bytes());
        let content_type = "text/plain; charset=utf-8";
        Self { code, content_type, etag: None, retry_after: None, body }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        if refusal.plain {
            let body = format!("{}\n", refusal.message).into();
            return Self { body, ..Self::text(refusal.code, "") };
        }
        Self { retry_after: refusal.retry_after, ..Self::json(refusal.code, &refusal.status()) }
    }
}

impl Call {
    pub(super) fn new(user: &str, method: &Method, uri: &Uri) -> Self {
        Self {
            user: user.to_owned(),
            info: RequestInfo::new(method, uri),
            params: parameters(uri.query().unwrap_or_default()),
            accept: String::new(),
            content_type: String::new(),
            user_agent: String::new(),
            if_none_match: String::new(),
            body: Bytes::new(),
            waited: false,
        }
    }

    /// A parameter of the query; empty when it is not given.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.params.get(name)?.as_str() {
            "false" | "0" => Some(false),
            _ => Some(true),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let text = self.param(name);
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |_| {
            Refusal::bad_request(format!(
                "unable to decode query: {name}: {text:?} is no unsigned number"
            ))
        };
        text.parse().map(Some).map_err(wrong)
    }

    pub(super) fn is_dry_run(&self) -> Result<bool, Refusal> {
        match self.param("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(Refusal::bad_request(format!("dryRun: {other:?} is not supported: All"))),
        }
    }

    /// Who writes, for the record of managed fields.
    pub(super) fn manager(&self) -> &str {
        match self.param("fieldManager") {
            "" => match self.user_agent.split('/').next() {
                None | Some("") => "unknown",
                Some(agent) => agent,
            },
            manager => manager,
        }
    }

    pub(super) fn json(&self) -> Result<Value, Refusal> {
        serde_json::from_slice(&self.body).map_err(|error| {
            if self.content_type.contains("yaml") {
                return Refusal::not_simulated("a body in YAML that is no JSON");
            }
            Refusal::bad_request(format!("the body is no JSON: {error}"))
        })
    }

    /// What the client wants of each object, or a refusal of what it accepts.
    pub(super) fn shape(&self, custom: bool) -> Result<Shape, Refusal> {
        if self.accept.is_empty() {
            return Ok(Shape::Whole);
        }
        for wanted in self.accept.split(',') {
            let mut parts = wanted.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let has_json = matches!(media_type, "application/json" | "application/*" | "*/*");
            let form = parts.find_map(|part| part.strip_prefix("as="));
            match form {
                _ if !has_json => {}
                None => return Ok(Shape::Whole),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Ok(Shape::Metadata);
                }
                Some(_) => {}
            }
        }
        let more = if custom { "" } else { ", application/vnd.kubernetes.protobuf" };
        let message = format!(
            "only the following media types are accepted: application/json, \
             application/yaml{more}"
        );
        Err(Refusal::new(406, "NotAcceptable", message))
    }
}

/// How much of an object is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Whole,
    Metadata,
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let decode = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(name), percent_decode(value))
    };
    pairs.map(decode).collect()
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => u8::try_from(high * 16 + low).ok(),
            _ => None,
        };
        at += if code.is_some() { 3 } else { 1 };
        decoded.push(code.unwrap_or(if byte == b'+' { b' ' } else { byte }));
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let call = Call::new(
            "alice",
            &Method::GET,
            &"/api/v1/pods?labelSelector=app%20in%20%28a%2C+b%29&limit=5&watch&x=%zz"
                .parse()
                .unwrap(),
        );

        assert_eq!(call.param("labelSelector"), "app in (a, b)");
        assert_eq!(call.number("limit").unwrap(), Some(5));
        assert_eq!((call.flag("watch"), call.flag("missing")), (Some(true), None));
        assert_eq!(call.param("x"), "%zz");
    }

    #[test]
    fn the_first_form_that_is_known_is_taken() {
        let mut call = Call::new("alice", &Method::GET, &"/api/v1/pods".parse().unwrap());
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for (accept, expected) in [
            ("", Ok(Shape::Whole)),
            ("application/vnd.kubernetes.protobuf,application/json", Ok(Shape::Whole)),
            (&*format!("{table},application/json"), Ok(Shape::Whole)),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Ok(Shape::Metadata),
            ),
            (table, Err(406)),
        ] {
            accept.clone_into(&mut call.accept);
            assert_eq!(call.shape(true).map_err(|it| it.code), expected, "{accept}");
        }
    }
}
