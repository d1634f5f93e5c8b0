//! Reply to a write: the identity of the written object, from the body of the response.

use std::sync::Arc;

use http::Method;

use super::expectation::ObjectState;
use crate::manager::ObjectIdentity;

/// Content of the response to a write.
#[derive(Debug, Default)]
pub(super) struct WriteReply {
    /// Name of the object, which the server may have generated.
    pub(super) name: Option<String>,
    /// State of the object; `None` if the response does not report it.
    pub(super) state: Option<ObjectState>,
}

impl WriteReply {
    /// Decodes the body of a success.
    pub(super) fn decode(method: &Method, body: &[u8]) -> Self {
        let (identity, is_status) = ObjectIdentity::of_response(body).unwrap_or_default();
        let ObjectIdentity { name, uid, version } = identity;
        let known = |text: Option<String>| text.filter(|it| !it.is_empty()).map(Arc::from);
        let (uid, version) = (known(uid), known(version));
        let state = match (uid, version) {
            (Some(uid), _) if *method == Method::DELETE => Some(ObjectState::Deleted { uid }),
            (Some(uid), Some(version)) if !is_status => Some(ObjectState::Stored { uid, version }),
            _ => None,
        };
        Self { name, state }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check_response(method: Method, body: Value, name: Option<&str>, expected: &str) {
        let response = WriteReply::decode(&method, body.to_string().as_bytes());

        let state = match response.state {
            Some(ObjectState::Stored { uid, version }) => format!("{uid} at {version}"),
            Some(ObjectState::Deleted { uid }) => format!("{uid} deleted"),
            Some(other) => panic!("{other:?}"),
            None => "read".to_owned(),
        };
        assert_eq!((response.name.as_deref(), &*state), (name, expected), "{method} {body}");
    }

    #[test]
    fn response_reports_the_state_or_has_to_be_read() {
        let object = json!({
            "kind": "Widget", "metadata": {"name": "a", "uid": "u", "resourceVersion": "7"},
        });
        let status = json!({"kind": "Status", "details": {"name": "a", "uid": "u"}});
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            check_response(method.clone(), object.clone(), Some("a"), "u at 7");
            check_response(method, status.clone(), Some("a"), "read");
        }
        check_response(Method::DELETE, status, Some("a"), "u deleted");
        let bare = json!({"kind": "Widget", "metadata": {"name": "a", "uid": "u"}});
        check_response(Method::PUT, bare, Some("a"), "read");
        for details in [json!("text"), json!({"name": 5, "uid": {}}), json!([1]), json!(null)] {
            let mut with_details = json!({"details": details});
            with_details.as_object_mut().unwrap().extend(object.as_object().unwrap().clone());
            check_response(Method::PUT, with_details, Some("a"), "u at 7");
        }
        check_response(Method::DELETE, object, Some("a"), "u deleted");
        for body in [json!({}), json!([]), json!({"metadata": null}), json!({"kind": "Status"})] {
            check_response(Method::DELETE, body.clone(), None, "read");
            check_response(Method::POST, body, None, "read");
        }
    }
}
