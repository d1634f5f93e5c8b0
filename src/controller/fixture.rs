//! Objects and changes for the tests of this room.

use serde_json::Value;

use crate::informer::{Delta, Object, fixture::Fixture};

/// Widget `ns/w` with additional metadata.
pub(super) fn widget(metadata: Value) -> Object {
    let widget = Fixture::new("w").namespace("ns").uid("w");
    let Value::Object(metadata) = metadata else { panic!("{metadata} is no metadata") };
    metadata.into_iter().fold(widget, |widget, (field, value)| widget.set(&field, value)).object()
}

pub(super) fn delta(old: Option<Object>, new: Option<Object>) -> Delta {
    let key = old.iter().chain(&new).next().unwrap().key().clone();
    Delta { key, old, new, initial: false, interests: Vec::new() }
}
