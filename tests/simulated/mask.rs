//! Mask of values that differ between any two servers.

use serde_json::Value;

/// Removes the values that differ between any two servers.
pub(crate) fn mask(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("managedFields");
        // Digest for the storage migrator only.
        fields.remove("storageVersionHash");
        for (name, value) in fields.iter_mut() {
            match (name.as_str(), value.as_str()) {
                (
                    "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp"
                    | "lastTransitionTime" | "continue" | "serverAddress",
                    Some(text),
                ) if !text.is_empty() => *value = "…".into(),
                ("message" | "selfLink", Some(text)) => *value = without_numbers(text).into(),
                ("name", Some(text)) if text.starts_with("made-") => *value = "made-…".into(),
                _ => mask(value),
            }
        }
        // A null is equal to a missing field.
        fields.retain(|_, value| !value.is_null());
    }
    for item in value.as_array_mut().into_iter().flatten() {
        mask(item);
    }
}

/// Removes uids and versions from a text.
fn without_numbers(text: &str) -> String {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut shown = String::new();
    for part in text.split_inclusive(|letter| !is_word(letter)) {
        let word = part.trim_end_matches(|letter| !is_word(letter));
        let is_uid = word.len() == 36 && word.matches('-').count() == 4;
        // The seconds of a time are followed by its zone.
        let digits = word.strip_suffix('Z').unwrap_or(word);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let time = word.len() > 6 && word.starts_with("20") && word.contains('-');
        if is_uid || is_number || time {
            shown.push('#');
            shown.push_str(&part[word.len()..]);
        } else {
            shown.push_str(part);
        }
    }
    shown
}

#[test]
fn every_part_of_a_time_is_masked() {
    let said = "conflict with \"x\" using v1 at 2026-11-21T18:05:57Z: .data.Z";

    assert_eq!(without_numbers(said), "conflict with \"x\" using v1 at #:#:#: .data.Z");
}
