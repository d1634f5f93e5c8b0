//! Write steps: the writes of one child, ready to be sent.

use std::sync::Arc;

use bytes::Bytes;

use crate::{informer::ObjectKey, meta::json::digest::JsonDigest};

/// Object that is ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    /// Index of the child type.
    pub(crate) group: usize,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
    /// Beginning of the name, if that was generated.
    pub(crate) generate_name: Option<Arc<str>>,
    /// The object, encoded.
    pub(crate) body: Bytes,
    /// resourceVersion of the object that it replaces.
    pub(crate) replaces: Option<String>,
    /// Digest of the content by dynamic apply.
    pub(crate) content: Option<JsonDigest>,
}

/// Write of one child.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WriteStep {
    /// Delete the object with this uid.
    Delete {
        /// Index of the child type.
        group: usize,
        /// Namespace and name.
        key: ObjectKey,
        /// uid of the object.
        uid: Arc<str>,
    },
    /// Delete the object with this uid; the next sync creates its replacement.
    Recreate {
        /// uid of the object.
        uid: Arc<str>,
        /// Replacement.
        created: Write,
        /// Object as observed.
        observed: Bytes,
        /// Object as an update would write it.
        merged: Bytes,
    },
    /// Create this object.
    Create(Write),
    /// Replace the observed object with this one; server-side apply applies this one to it.
    Update(Write),
    /// Hand the fields of the object with this uid over to the apply strategy.
    TransferFields {
        /// Index of the child type.
        group: usize,
        /// Namespace and name.
        key: ObjectKey,
        /// uid of the object.
        uid: Arc<str>,
        /// Way back to dynamic apply; `None` towards server-side apply.
        back: Option<Box<DynamicApplyReturn>>,
    },
}

/// Return from server-side apply to dynamic apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DynamicApplyReturn {
    /// Configuration for a dry run, which shows whether the child is as desired.
    pub(crate) applied: Bytes,
    /// Annotation of a child that is as desired.
    pub(crate) remembered: String,
    /// Write of a child that server-side apply has not written.
    pub(crate) otherwise: WriteStep,
}

impl WriteStep {
    /// Returns the index of the group, and the key of the object.
    pub(crate) fn target(&self) -> (usize, &ObjectKey) {
        match self {
            Self::Delete { group, key, .. } | Self::TransferFields { group, key, .. } => {
                (*group, key)
            }
            Self::Recreate { created: write, .. } | Self::Create(write) | Self::Update(write) => {
                (write.group, &write.key)
            }
        }
    }

    /// Returns the beginning of a name that was generated.
    pub(crate) fn generate_name(&self) -> Option<&str> {
        match self {
            Self::Create(write) => write.generate_name.as_deref(),
            Self::Delete { .. }
            | Self::Recreate { .. }
            | Self::Update(_)
            | Self::TransferFields { .. } => None,
        }
    }

    /// Returns the number of bytes that it holds.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Delete { .. } => 0,
            Self::Recreate { created, merged, observed, .. } => {
                created.body.len() + merged.len() + observed.len()
            }
            Self::Create(write) | Self::Update(write) => write.body.len(),
            Self::TransferFields { back: None, .. } => 0,
            Self::TransferFields { back: Some(back), .. } => {
                back.applied.len() + back.remembered.len() + back.otherwise.size()
            }
        }
    }
}
