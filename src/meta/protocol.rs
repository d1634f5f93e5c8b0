//! Hook protocol: requests are assembled from cached bytes, responses are validated.
//!
//! The requests and responses of both kinds of controllers have the same parts under different
//! names. A decorator's response has labels and annotations in addition.

mod keys;
mod repeated_key;
mod request;
mod response;

use crate::meta::api::controller_kind::ControllerKind;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::{repeated_key::check as check_unique_keys, response::sync_response};
pub(crate) use self::{
    request::{ObservedObjects, customize_request, sync_request, sync_request_bytes},
    response::{StringChanges, sync_response_within},
};

/// Maximum size of a parent's status in bytes: etcd's default limit for a request, which includes
/// the parent and its managed fields. A larger status is refused before it is processed.
pub(crate) const MAX_STATUS_BYTES: usize = 1536 * 1024;
/// Names of the fields that differ between the kinds.
struct FieldNames {
    /// Parent in the request of a sync or finalize hook.
    parent: &'static str,
    /// Children in the request and in the response.
    children: &'static str,
    /// Fields of the response.
    response: &'static [&'static str],
}

/// Returns the names of a kind.
fn names(kind: ControllerKind) -> &'static FieldNames {
    match kind {
        ControllerKind::Composite => &FieldNames {
            parent: "parent",
            children: "children",
            response: &["status", "children", "resyncAfterSeconds", "finalized"],
        },
        ControllerKind::Decorator => &FieldNames {
            parent: "object",
            children: "attachments",
            response: &[
                "status",
                "attachments",
                "resyncAfterSeconds",
                "finalized",
                "labels",
                "annotations",
            ],
        },
    }
}

/// Returns the name of the list of children in a response.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn children_field(kind: ControllerKind) -> &'static str {
    names(kind).children
}

/// Refuses the response `null`, which otherwise is an empty object, as in Metacontroller.
///
/// # Errors
///
/// Names the flag that refuses it.
pub(crate) fn refuse_null(body: &[u8]) -> Result<(), String> {
    match body.trim_ascii() {
        b"null" => Err("hook response is unusable: null, which --strict refuses; send {}".into()),
        _ => Ok(()),
    }
}
