//! JSON as its authors wrote it: copied, rewritten and compared without a tree of values.

pub(super) mod digest;
pub(super) mod go_json;
pub(super) mod message;
pub(super) mod rewrite;
