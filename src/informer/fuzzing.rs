//! Fuzz properties of everything that a server sends to an informer.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Object, Projection, decode,
    decode::Decoder,
    reader::Lines,
    wire::{Bookmark, Page, WatchLine, changed_object, error_event, in_stream},
};
use crate::kind::{Scope, ServedType, Subresources, TypeIdentity, VersionOrder};

/// Checks that the lines of a watch do not depend on chunk boundaries, and that each decodes like a
/// JSON tree of the same text.
///
/// # Panics
///
/// If a property is violated.
pub fn watch_lines(data: &[u8]) {
    for budget in [8, 1 << 20] {
        let expected = reference(data, budget);
        assert_eq!(lines(&[data], budget), expected);
        assert_eq!(lines(&data.chunks(1).collect::<Vec<_>>(), budget), expected);
        let step = data.len() / 64 + 1;
        for cut in (0..data.len()).step_by(step) {
            let (head, tail) = data.split_at(cut);
            assert_eq!(lines(&[head, tail], budget), expected, "cut at {cut}");
        }
    }
    for line in lines(&[data], 1 << 20).0 {
        let text = decode::text(&line);
        if let Some(json) = changed_object(&text)
            && Object::from_json(json, &widgets()).is_ok()
        {
            let event = serde_json::from_str::<WatchLine<'_>>(&text);
            assert_eq!(event.map(|event| event.object.get()).ok(), Some(json));
        }
        if let Ok(event) = serde_json::from_str::<WatchLine<'_>>(&text) {
            object(event.object.get());
            error_event(event.object.get());
            if let Ok(bookmark) = serde_json::from_str::<Bookmark>(event.object.get()) {
                bookmark.ends_list();
            }
        }
        if let Ok(page) = serde_json::from_str::<Page<'_>>(&text) {
            page.items.iter().flatten().for_each(|item| object(item.get()));
        }
        in_stream(&text);
        object(&text);
    }
}

/// Returns the whole lines, and whether a line was too long.
fn lines(chunks: &[&[u8]], budget: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut lines, mut read) = (Lines::new(budget), Vec::new());
    for chunk in chunks {
        lines.push(chunk);
        loop {
            match lines.next() {
                Ok(Some(line)) => read.push(line.to_vec()),
                Ok(None) => break,
                Err(_too_long) => return (read, true),
            }
        }
    }
    (read, false)
}

fn reference(data: &[u8], budget: usize) -> (Vec<Vec<u8>>, bool) {
    let mut parts: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let half = parts.pop().unwrap_or_default();
    let fits = parts.iter().take_while(|line| line.len() <= budget).count();
    let too_long = fits < parts.len() || half.len() > budget;
    (parts[..fits].iter().map(|line| line.to_vec()).collect(), too_long)
}

/// Compares an object's header and bytes with a JSON tree of the same text. Skipped if the tree
/// cannot be built: trees limit depth and numbers.
fn object(text: &str) {
    let served = widgets();
    let decoded = |projection| {
        Decoder::new(&served, projection, false)
            .decode(text, |_| true)
            .map_err(|error| error.to_string())
    };
    let full = decoded(Projection::Full);
    if let Ok(keys) = decoded(Projection::Keys) {
        // A projection that keeps less accepts at least as much.
        assert!(keys.json().is_empty());
        if let Ok(full) = &full {
            assert_eq!(keys.key(), full.key());
            assert_eq!(keys.header().resource_version, full.header().resource_version);
        }
    } else {
        assert!(full.is_err(), "{text}");
    }
    let Ok(full) = full else { return };
    let metadata = decoded(Projection::Metadata).expect("the header is the same");
    assert_eq!(metadata.header(), full.header());
    let Ok(mut tree) = serde_json::from_str::<Value>(text) else { return };
    header(&full, &tree["metadata"]);

    let whole = parsed(&full);
    let partial = parsed(&metadata);
    if let Some(metadata) = tree["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    let members = tree.as_object_mut().expect("what has metadata is an object");
    let partly = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": members["metadata"],
    });
    assert_eq!(partial, partly);
    members.entry("apiVersion").or_insert_with(|| "example.com/v1".into());
    members.entry("kind").or_insert_with(|| "Widget".into());
    assert_eq!(whole, tree);
}

/// Returns the cached bytes as a tree, without `managedFields`: a member whose name is repeated or
/// written with escapes is not cut from the bytes.
fn parsed(object: &Object) -> Value {
    let mut tree: Value = serde_json::from_slice(&object.json()).expect("what is cached is JSON");
    if let Some(metadata) = tree["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    tree
}

fn header(object: &Object, metadata: &Value) {
    let header = object.header();
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    assert_eq!(*header.key.name, *text("name"));
    assert_eq!(header.key.namespace.as_deref().unwrap_or_default(), text("namespace"));
    assert_eq!(*header.uid, *text("uid"));
    assert_eq!(*header.resource_version, *text("resourceVersion"));
    assert_eq!(header.generation, metadata["generation"].as_i64().unwrap_or_default());
    assert_eq!(header.deletion_timestamp.is_some(), metadata["deletionTimestamp"].is_string());
    let empty = serde_json::Map::new();
    let labels = metadata["labels"].as_object().unwrap_or(&empty);
    assert_eq!(header.labels.iter().count(), labels.len());
    for (key, value) in labels {
        assert_eq!(header.labels.get(key), Some(value.as_str().unwrap_or_default()));
    }
    let count = |field: &str| metadata[field].as_array().map_or(0, Vec::len);
    assert_eq!(header.owners.len(), count("ownerReferences"));
    assert_eq!(header.finalizers.len(), count("finalizers"));
}

fn widgets() -> ServedType {
    let text = |text: &str| -> Arc<str> { text.into() };
    ServedType {
        identity: TypeIdentity {
            group: text("example.com"),
            version: text("v1"),
            plural: text("widgets"),
            scope: Scope::Namespaced,
            uid: None,
        },
        kind: text("Widget"),
        list_kind: text("WidgetList"),
        subresources: Subresources::default(),
        version_order: VersionOrder::Comparable,
        polled: false,
    }
}
