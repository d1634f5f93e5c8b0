//! Request and response, without a connection.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Uri};
use serde_json::Value;

use super::{
    decode::{self, Body},
    refusal::Refusal,
    render::Shape,
    resource::SimulatedResource,
    watches::WatchId,
};
use crate::{RequestInfo, Verb};

/// Formats of objects that the real server decodes. YAML is not simulated.
const OBJECT_TYPES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Request of one user.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) user: String,
    pub(super) method: String,
    pub(super) info: RequestInfo,
    pub(super) params: BTreeMap<String, String>,
    pub(super) accept: String,
    pub(super) content_type: String,
    pub(super) user_agent: String,
    pub(super) if_none_match: String,
    pub(super) body: Bytes,
    /// True after the delay of [`CallResult::Later`].
    pub(super) waited: bool,
}

/// Outcome of a request.
#[derive(Debug)]
pub(super) enum CallResult {
    Done(HttpReply),
    /// Stream of events.
    Watch(WatchId),
    /// Delay before the request is repeated, with `waited` set.
    Later(std::time::Duration),
}

/// Complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpReply {
    pub(super) code: u16,
    /// Content type; empty for a response without a body.
    pub(super) content_type: &'static str,
    pub(super) etag: Option<String>,
    pub(super) retry_after: Option<u64>,
    /// Warnings, for example about dropped fields.
    pub(super) warnings: Vec<String>,
    pub(super) body: Bytes,
}

impl HttpReply {
    pub(super) fn json(code: u16, value: &Value) -> Self {
        let body = value.to_string().into();
        Self {
            code,
            content_type: "application/json",
            etag: None,
            retry_after: None,
            warnings: Vec::new(),
            body,
        }
    }

    pub(super) fn text(code: u16, text: &'static str) -> Self {
        let body = Bytes::from_static(text.as_bytes());
        let content_type = "text/plain; charset=utf-8";
        Self { content_type, body, ..Self::json(code, &Value::Null) }
    }
}

impl From<Refusal> for HttpReply {
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
            method: method.to_string(),
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

    /// Returns a query parameter, or the empty string.
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
            let message = format!("strconv.ParseInt: parsing {text:?}: invalid syntax");
            Refusal::bad_request(message)
        };
        let number: i64 = text.parse().map_err(wrong)?;
        Ok(Some(u64::try_from(number).unwrap_or(0)))
    }

    /// Requested resource version; zero for any.
    pub(super) fn version(&self) -> Result<u64, String> {
        match self.param("resourceVersion") {
            "" => Ok(0),
            text => text.parse().map_err(|_| {
                let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
                format!("resourceVersion: Invalid value: {text:?}: {why}")
            }),
        }
    }

    pub(super) fn is_dry_run(&self) -> bool {
        !self.param("dryRun").is_empty()
    }

    /// Field manager of a write.
    pub(super) fn manager(&self) -> &str {
        match self.param("fieldManager") {
            "" => match self.user_agent.split('/').next() {
                None | Some("") => "unknown",
                Some(agent) => agent,
            },
            manager => manager,
        }
    }

    pub(super) fn json(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(said)
    }

    /// Media type of the body, without its parameters.
    fn media_type(&self) -> &str {
        self.content_type.split(';').next().unwrap_or_default().trim()
    }

    /// Refuses a body in protobuf.
    pub(super) fn refuse_protobuf(&self) -> Result<(), Refusal> {
        match self.media_type() {
            PROTOBUF => Err(Refusal::protobuf()),
            _ => Ok(()),
        }
    }

    /// Decodes the object in the body.
    pub(super) fn object(&self, kind: &str) -> Result<Body, Refusal> {
        self.refuse_protobuf()?;
        let media_type = self.media_type();
        match media_type {
            "" | "application/json" | "application/yaml" => {}
            _ => return Err(Refusal::unsupported(OBJECT_TYPES)),
        }
        let unrecognized = |why: String| {
            let text = String::from_utf8_lossy(&self.body);
            let shown = if text.is_empty() { "<empty>" } else { text.as_ref() };
            Refusal::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): {why} ({shown})"
            ))
        };
        let body = decode::read(&self.body).map_err(said).map_err(|why| {
            if media_type.contains("yaml") {
                return Refusal::not_simulated("a body in YAML that is not JSON");
            }
            unrecognized(format!("couldn't get version/kind; json parse error: {why}"))
        })?;
        if !body.object.is_object() {
            let why = "couldn't get version/kind; json parse error: json: cannot unmarshal";
            return Err(unrecognized(why.to_owned()));
        }
        Ok(body)
    }

    /// Returns the requested shape of each object.
    pub(super) fn shape(&self, resource: &SimulatedResource) -> Result<Shape, Refusal> {
        let many = matches!(self.info.verb, Verb::List | Verb::DeleteCollection);
        let Some(form) = self.form(&[METADATA, METADATA_LIST])? else { return Ok(Shape::Whole) };
        let shown = match (resource.custom, many) {
            (true, false) => "*unstructured.Unstructured".to_owned(),
            (true, true) => "*unstructured.UnstructuredList".to_owned(),
            (false, _) => {
                let package = resource.group.split('.').next().filter(|it| !it.is_empty());
                let kind = if many { &resource.list_kind } else { &resource.kind };
                format!("*{}.{kind}", package.unwrap_or("core"))
            }
        };
        let is_list = form == METADATA_LIST;
        if is_list == many || self.info.verb == Verb::Watch {
            return Ok(Shape::Metadata);
        }
        let is = if is_list { "is not a list" } else { "is a list" };
        let message =
            format!("you requested {}, but the requested object {is} ({shown})", form.kind);
        Err(Refusal::new(406, "NotAcceptable", message))
    }

    /// Returns the first accepted form among the known ones, or `None` for plain JSON.
    pub(super) fn form(&self, known: &[Form]) -> Result<Option<Form>, Refusal> {
        let taken = clauses(&self.accept).iter().find_map(|clause| {
            let form = known.iter().find(|form| clause.is_form(form)).copied();
            let is_plain = clause.is_json() && clause.param("as").is_empty();
            (is_plain || form.is_some()).then_some(form)
        });
        taken.ok_or_else(Refusal::not_acceptable)
    }

    /// Returns true if the client accepts a form at all.
    pub(super) fn accepts(&self, form: Form) -> bool {
        clauses(&self.accept).iter().any(|clause| clause.is_form(&form))
    }

    /// Refuses a request that does not accept JSON.
    pub(super) fn check_media_type(&self) -> Result<(), Refusal> {
        let fits = clauses(&self.accept).iter().any(Clause::is_json);
        if fits { Ok(()) } else { Err(Refusal::not_acceptable()) }
    }
}

/// Alternative form of a response, such as metadata only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
}

const METADATA: Form = Form { group: "meta.k8s.io", version: "v1", kind: "PartialObjectMetadata" };
const METADATA_LIST: Form = Form { kind: "PartialObjectMetadataList", ..METADATA };

/// Accepted format with its parameters.
struct Clause<'a> {
    media_type: &'a str,
    params: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn param(&self, name: &str) -> &str {
        self.params.iter().find(|it| it.0 == name).map_or("", |it| it.1)
    }

    fn is_json(&self) -> bool {
        matches!(self.media_type, "application/json" | "application/*" | "*/*")
    }

    fn is_form(&self, form: &Form) -> bool {
        let wanted = (self.param("g"), self.param("v"), self.param("as"));
        self.is_json() && (form.group, form.version, form.kind) == wanted
    }
}

/// Accepted formats, by descending weight, then in their given order.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    let clause = |text| {
        let mut parts = str::split(text, ';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        Clause { media_type, params: parts.filter_map(|part| part.split_once('=')).collect() }
    };
    let mut clauses: Vec<_> = accept.split(',').map(clause).collect();
    let weight = |clause: &Clause<'_>| clause.param("q").parse().unwrap_or(1.0);
    clauses.sort_by(|one, other| f64::total_cmp(&weight(other), &weight(one)));
    clauses
}

/// Error text of the JSON decoder; an unexpected end has Go's text.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn said(error: serde_json::Error) -> String {
    match error.is_eof() {
        true => "unexpected end of JSON input".to_owned(),
        false => error.to_string(),
    }
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
    fn first_supported_media_type_is_chosen() {
        let mut call = Call::new("alice", &Method::GET, &"/api/v1/pods".parse().unwrap());
        let all = crate::simulated::resource::built_in();
        let widgets = all.iter().find(|it| it.plural == "pods").unwrap();
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
            assert_eq!(call.shape(widgets).map_err(|it| it.code), expected, "{accept}");
        }
    }
}
