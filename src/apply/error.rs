//! Errors of sets.

use super::{object_name::ObjectName, set_kind::SetKind};
use crate::redaction::request_error;

/// Error of a set, of one of its kinds, or of one of its objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of the set is not valid. Use up to 40 lower-case letters, digits and dashes.
    #[error("{0:?} is not the name of a set: use up to 40 lower-case letters, digits and dashes")]
    Name(String),
    /// The owner has no name or no uid. Read it from the cache or the server first.
    #[error("the owner has no metadata.{0}: it was not read from the API server")]
    OwnerNotRead(&'static str),
    /// The owner was deleted, or another object has its name. Nothing was written; apply for the
    /// present owner. The garbage collector deletes the members that it can reach.
    #[error("{0} no longer exists: another object has its name, or none has")]
    OwnerGone(String),
    /// The owner cannot be read, or the kinds of the set cannot be written to it. Check the rights
    /// to get and patch it; nothing was created.
    #[error("{doing}: {}", request_error(.source))]
    Owner {
        /// Request that failed.
        doing: String,
        /// Response.
        source: Box<kube::Error>,
    },
    /// The annotation with the kinds of the set cannot be read. Repair or remove it; without it,
    /// members of kinds that left the set are not deleted.
    #[error("the annotation {annotation} of {owner} has no list of kinds: repair or remove it")]
    Kinds {
        /// Owner of the set.
        owner: String,
        /// Annotation.
        annotation: String,
    },
    /// Another client keeps changing the owner. Apply again.
    #[error("{0} was changed by another client at each attempt to write the kinds of its set")]
    OwnerBusy(String),
    /// The set has no objects. If all members are to be deleted, call `clear`.
    #[error("the set is empty: call `clear` to delete all of its members")]
    Empty,
    /// An object of the set cannot be written. Correct it; nothing was written.
    #[error("{object}: {why}")]
    Object {
        /// Kind and name of the object.
        object: String,
        /// Mistake.
        why: &'static str,
    },
    /// An object of the set cannot be encoded as JSON. Correct it; nothing was written.
    #[error("encoding a {kind}: {source}")]
    Encode {
        /// Kind of the object.
        kind: String,
        /// Error of the encoder.
        source: serde_json::Error,
    },
    /// The objects of a kind cannot be listed. Grant the right to list them, or confine the set to a
    /// namespace with `within`. Objects of the kind were neither written nor deleted.
    #[error("listing {kind}: {}", request_error(.source))]
    List {
        /// Kind that cannot be listed.
        kind: Box<SetKind>,
        /// Response.
        source: Box<kube::Error>,
    },
    /// The list of a kind has no end, by an error of its server. Objects of the kind were neither
    /// written nor deleted.
    #[error("listing {kind}: {why}")]
    EndlessList {
        /// Kind that cannot be listed.
        kind: Box<SetKind>,
        /// Error of the server.
        why: String,
    },
    /// A request for one object failed. The other objects were written; apply again.
    #[error("{doing}: {}", request_error(.source))]
    Request {
        /// Request that failed.
        doing: String,
        /// Response.
        source: Box<kube::Error>,
    },
    /// The server refuses an object as invalid. Correct it; if a field is immutable, ask for
    /// `replace_immutable`.
    #[error("applying {object}: {}", request_error(.source))]
    Invalid {
        /// Object that was refused.
        object: ObjectName,
        /// Response.
        source: Box<kube::Error>,
    },
    /// Other clients changed the object between read and write, at each attempt. Apply again.
    #[error("{0} was changed by another client between read and write")]
    Changed(ObjectName),
}
