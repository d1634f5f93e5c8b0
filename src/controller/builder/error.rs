//! Error in the description of a controller.

use crate::{kind::TypeRef, manager::ControllerName};

/// Error in the description of a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Give the controller a name.
    #[error("the controller has no name; give one to Controller::builder")]
    NameMissing,
    /// Call `for_` or `watches` at least once.
    #[error("{0} watches nothing: add an input with for_, owns or watches")]
    NoInput(ControllerName),
    /// Call `for_` once for each primary type.
    #[error("{0} has the primary type {1} twice; call for_ once for each type")]
    PrimaryTwice(ControllerName, TypeRef),
    /// Take the request in place of the object, and read the object with
    /// [`Context::lister`](crate::controller::Context::lister). A request for an object of another
    /// type would look like a deletion.
    #[error(
        "{0}: the reconciler takes objects of {1}, which must be the only primary type, at this \
         version; take the request instead, and read the object with Context::lister"
    )]
    NotTheOnlyPrimary(ControllerName, TypeRef),
    /// Add the type with `watches`, or the source with `watches_source`, and a handler that maps
    /// its objects to keys ([`Request::of_key`](crate::controller::Request::of_key)).
    #[error(
        "{0}: the reconciler takes custom keys, and the requests of {1} name objects; watch it \
         with a handler that maps to keys by Request::of_key"
    )]
    ObjectRequests(ControllerName, String),
    /// Call `for_`, which names the type of the owner.
    #[error("{0} owns {1} but has no primary type; call for_ first")]
    OwnsWithoutFor(ControllerName, TypeRef),
    /// Add an input before calling a method that applies to it.
    #[error("{0}: {1} applies to the last input, and there is none; add an input first")]
    NoInputYet(ControllerName, &'static str),
    /// Select objects inside the custom source itself.
    #[error("{0}: {1} applies to a type, not to a custom source; select objects inside the source")]
    NotForSources(ControllerName, &'static str),
    /// Name the type by `for_type`, `owns_type` or `watches_type`, and read it with
    /// [`Context::store`](crate::controller::Context::store).
    #[error(
        "{0}: {2} keeps too little of {1} to decode its Rust type; name it by for_type, \
         owns_type or watches_type"
    )]
    TypedProjection(ControllerName, TypeRef, &'static str),
    /// Read the headers of the objects there, or build the input without `metadata_only` and
    /// `keys_only`.
    #[error(
        "{0}: the {2} decodes {1}, of which metadata_only and keys_only keep too little; read the \
         headers of its objects"
    )]
    DecodedProjection(ControllerName, TypeRef, &'static str),
    /// Map the requests before they are sent: a handler and predicates apply to changes only.
    #[error(
        "{0}: {1} has no effect, since the source adds requests and delivers no changes; map the \
         requests before they are sent"
    )]
    RequestsOnly(ControllerName, &'static str),
    /// Call [`Handler::generic`](crate::controller::Handler::generic) on the handler, or map
    /// objects with [`Handler::map`](crate::controller::Handler::map).
    #[error(
        "{0}: the source delivers generic events only, and its handler takes none; add a function \
         for them with Handler::generic"
    )]
    ChangesOnly(ControllerName),
    /// Call `generic` for the handler of a custom source: a type has no generic events.
    #[error("{0}: Handler::generic has no effect for {1}, which is a type; use an EventSource")]
    GenericOfType(ControllerName, TypeRef),
    /// Call `conditional` or `optional` for the input of `input_when` or `subresource`.
    #[error("{0}: {2} does not stop a plain input; call conditional or optional for {1}")]
    PlainCondition(ControllerName, String, &'static str),
    /// Call `metadata_only` instead.
    #[error("{0}: keys_only keeps no {2} of {1}; call metadata_only instead")]
    NotKept(ControllerName, TypeRef, &'static str),
    /// Call `matching`, `named` and `in_cluster` after `watches`.
    #[error(
        "{0}: matching, named and in_cluster apply to a watched type, which {1} is not; call them \
         after watches"
    )]
    NotWatched(ControllerName, TypeRef),
    /// Call `every_owner` after `owns`.
    #[error("{0}: every_owner applies to an owned type, which {1} is not; call it after owns")]
    NotOwned(ControllerName, TypeRef),
    /// Fix the source, whose name function panicked.
    #[error("{0}: a source panicked in its name function; return a name without a panic: {1}")]
    SourcePanicked(ControllerName, String),
    /// Call `namespace`, or add the type once for each namespace.
    #[error("{0}: claims_type watches one namespace or all, and {1} has several; call namespace")]
    OneNamespace(ControllerName, TypeRef),
    /// Give one of the indexes another name. Inputs of one type share their indexes, since a
    /// reconciler reads the type by one of them: two indexes of one name must be clones, or be made
    /// at one place by a function that captures nothing.
    #[error("{0}: {1} has two indexes of the name {2}; give one of them another name")]
    IndexTwice(ControllerName, TypeRef, String),
    /// Allow at least one concurrent reconcile.
    #[error("{0}: max_concurrent_reconciles is 0; give it at least 1")]
    NoWorkers(ControllerName),
}
