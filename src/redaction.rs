//! Redaction of text that leaves the process: errors, URLs, and messages of the API server.
//!
//! Errors and URLs are cut by the crate `pilotlight-redaction`, which the transport also uses. This
//! module adds messages of the API server about the content of a Secret, and messages of panics.
//!
//! The text of an embedder's own errors is not cut, except for the API server's messages in it.

use std::any::Any;

use kube::core::Status;
#[doc(inline)]
pub use pilotlight_redaction::*;

/// Longest field path that is kept, in bytes.
const FIELD_BYTES: usize = 128;
/// Number of causes of a refusal that are kept.
pub(crate) const CAUSES: usize = 8;

/// Returns the message of a panic if it is a literal. A formatted message may quote an object, and
/// is left out.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.unwrap_or("a panic whose message is left out, since it may quote an object")
}

/// Returns whether objects of a resource are Secrets, whose content the API server may quote.
pub(crate) fn is_secret(group: &str, plural: &str) -> bool {
    group.is_empty() && plural == "secrets"
}

/// Returns a refusal about Secrets without the server's message, which may quote their content. The
/// new message consists of code, reason and field paths.
pub(crate) fn of_secret(mut status: Status) -> Status {
    let word = |text: &str| {
        let plain =
            !text.is_empty() && text.len() <= 64 && text.bytes().all(|it| it.is_ascii_alphabetic());
        plain.then(|| text.to_owned())
    };
    let reason = word(&status.reason).unwrap_or_default();
    // Clauses of the server that name the next action. They are constant, and quote no object.
    let known = [
        ("exceeded quota", "exceeded quota"),
        (" cannot ", "the right is missing"),
        ("recondition", "a precondition failed"),
        ("does not support dry run", "a webhook does not support dry run"),
        ("(re)initializing", "storage is (re)initializing"),
        ("Too large resource version", "Too large resource version"),
        ("being terminated", "the namespace is being terminated"),
        ("denied the request", "an admission webhook denied the request"),
        ("' denied request: ", "an admission webhook or policy denied the request"),
    ];
    let mut said: Vec<String> = known
        .into_iter()
        .filter(|(clause, _)| status.message.contains(clause))
        .map(|(_, said)| said.to_owned())
        .collect();
    if let Some(details) = &mut status.details {
        details.causes.truncate(CAUSES);
        details.causes.retain_mut(|cause| {
            let manager = field_manager(&cause.message).filter(|_| cause.reason == FIELD_CONFLICT);
            cause.message = manager.map(|it| format!("conflict with \"{it}\"")).unwrap_or_default();
            let field = &mut cause.field;
            if field.len() > FIELD_BYTES
                || !field.bytes().all(|it| is_plain(it) || b"[]".contains(&it))
            {
                field.clear();
            }
            word(&cause.reason).is_some()
        });
        let causes = details.causes.iter().filter(|cause| !cause.field.is_empty());
        said.extend(causes.map(|cause| format!("{}: {}", cause.field, cause.reason)));
    }
    let said = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
    status.message = format!(
        "refused with {}{}{reason}{said}; the server's words are left out, since they may quote \
         the Secret",
        status.code,
        if reason.is_empty() { "" } else { " " },
    );
    status.reason = reason;
    status
}

/// Reason of a conflict of server-side apply about one field.
pub(crate) const FIELD_CONFLICT: &str = "FieldManagerConflict";

/// Returns the name of the manager in the message of such a conflict, which names nothing else:
/// `conflict with "x" using v1 at 2000-01-01T00:00:00Z`.
fn field_manager(message: &str) -> Option<&str> {
    let (manager, _) = message.strip_prefix("conflict with \"")?.split_once('"')?;
    (manager.len() <= FIELD_BYTES && manager.bytes().all(is_plain)).then_some(manager)
}

/// Returns whether a byte belongs to names and field paths.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_/".contains(&byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_about_a_secret_keeps_code_reason_and_fields() {
        let refused =
            |status: serde_json::Value| of_secret(serde_json::from_value(status).unwrap());
        let invalid = refused(json!({
            "code": 422, "reason": "Invalid", "message": "data[a]: Invalid value: \"hush\"",
            "details": {"name": "made", "kind": "Secret", "causes": [
                {"reason": "FieldValueInvalid", "message": "hush", "field": "data[a]"},
                {"reason": "FieldValueInvalid", "message": "hush", "field": "hush hush"},
            ]},
        }));
        let plain = refused(json!({"code": 502, "reason": "hush: hush", "message": "hush"}));
        let right = refused(json!({
            "code": 403, "reason": "Forbidden",
            "message": "secrets is forbidden: User \"a\" cannot create resource \"secrets\"",
        }));

        assert!(
            invalid.message.starts_with("refused with 422 Invalid (data[a]: FieldValueInvalid);")
        );
        assert!(plain.message.starts_with("refused with 502; "), "{}", plain.message);
        assert!(
            right.message.contains("403 Forbidden (the right is missing)"),
            "{}",
            right.message
        );
        assert_eq!(invalid.details.as_ref().unwrap().name, "made");
        let owned = |message: &str, field: &str| {
            let cause =
                json!({"reason": "FieldManagerConflict", "message": message, "field": field});
            let status = json!({
                "code": 409, "reason": "Conflict", "message": "hush", "details": {"causes": [cause]},
            });
            let cause = refused(status).details.unwrap().causes.remove(0);
            (cause.reason, cause.message, cause.field)
        };
        let conflict = |message: &str, field: &str| {
            ("FieldManagerConflict".to_owned(), message.to_owned(), field.to_owned())
        };
        assert_eq!(
            owned("conflict with \"kubectl-edit\" using v1: hush", ".data.a"),
            conflict("conflict with \"kubectl-edit\"", ".data.a")
        );
        assert_eq!(owned("conflict with \"hush hush\"", ".f[uid=\"hush\"]"), conflict("", ""));
        assert_eq!(owned("hush", ".data.a"), conflict("", ".data.a"));
        for status in [invalid, plain, right] {
            assert!(!format!("{status:?}").contains("hush"), "{status:?}");
        }
    }
}
