//! Redaction of errors and URLs that leave a process that uses kube-rs.
//!
//! Statuses, Events, logs, metrics and endpoints have more readers than Secrets and credentials.
//! Text that may quote either is cut here, before it is stored. This concerns user, password and
//! query of a URL, values that serde quotes, the output of a credential plugin, and the lines of a
//! kubeconfig.
//!
//! ```
//! let said = pilotlight_redaction::text("GET https://me:secret@host/a?token=secret: refused");
//! assert_eq!(said, "GET https://host/a refused");
//! ```
//!
//! The text of a program's own errors is not cut, except for URLs in it.

#![forbid(unsafe_code)]

use std::{error::Error, fmt::Display, io, sync::Arc};

use kube::{client::AuthError, config::KubeconfigError};

/// Characters that end a URL, besides white space.
const URL_ENDS: [char; 6] = ['"', '\'', '<', '>', '`', '\\'];

/// Returns a URL without user, password, query and fragment; the whole text counts as the URL.
///
/// Everything up to the last `@` counts as credentials, since a password that is not encoded may
/// contain any character. If that `@` may as well belong to a query, neither is shown.
pub fn url(url: impl Display) -> String {
    let url = url.to_string();
    let (scheme, address) = match url.split_once("://") {
        Some((scheme, address)) => (format!("{scheme}://"), address),
        None => (String::new(), url.as_str()),
    };
    let place = address.split(['?', '#']).next().unwrap_or_default();
    let place = match address.rsplit_once('@') {
        None => place,
        Some((credentials, host)) if !credentials.contains(['?', '#']) => {
            host.split(['?', '#']).next().unwrap_or_default()
        }
        // The query of a host without credentials.
        Some(_) if is_host(place.split('/').next().unwrap_or_default()) => place,
        Some(_) => "[redacted]",
    };
    printable(&format!("{scheme}{place}"))
}

/// Returns whether an authority is a host with a port or without one, and not a user with a
/// password.
fn is_host(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    !authority.contains('@')
        && port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns a text with each URL in it reduced to scheme, host and path, and without control
/// characters; line breaks and tabs become spaces.
///
/// A URL ends at white space or a quotation mark.
pub fn text(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        kept.push_str(before);
        let end = after.find(|letter: char| letter.is_whitespace() || URL_ENDS.contains(&letter));
        let (address, behind) = after.split_at(end.unwrap_or(after.len()));
        kept.push_str(&url(address));
        rest = behind;
    }
    kept.push_str(rest);
    printable(&kept)
}

/// Returns a text without control characters and terminal escape sequences; line breaks and tabs
/// become spaces.
pub fn printable(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' | '\t' | '\r' => kept.push(' '),
            // ECMA-48: a control sequence ends at a letter, a control string at BEL or ST.
            '\u{1b}' => match letters
                .next_if(|next| matches!(next, '[' | ']' | 'P' | 'X' | '^' | '_'))
            {
                Some('[') => drop(letters.by_ref().find(|it| matches!(it, '\u{40}'..='\u{7e}'))),
                Some(_) => {
                    let mut ended = letters
                        .by_ref()
                        .skip_while(|it| !matches!(it, '\u{7}' | '\u{1b}' | '\u{9c}'));
                    if ended.next() == Some('\u{1b}') {
                        letters.next_if_eq(&'\\');
                    }
                }
                None => drop(letters.next_if(|next| matches!(next, '\u{20}'..='\u{7e}'))),
            },
            '\u{9b}' => drop(letters.by_ref().find(|it| matches!(it, '\u{40}'..='\u{7e}'))),
            letter if letter.is_control() || reorders(letter) => {}
            letter => kept.push(letter),
        }
    }
    kept
}

/// Returns whether a letter changes the order in which others are shown.
fn reorders(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns serde's message about a document that it cannot decode, without the quoted values: only
/// the kind of the value found, and the expectation.
pub fn decoding(error: impl Display) -> String {
    let error = error.to_string();
    let quoting = ["invalid type: ", "invalid value: ", "unknown variant "];
    let first = quoting.iter().filter_map(|it| Some((error.find(it)?, *it))).min();
    let Some((at, begin)) = first else { return text(&error) };
    let (before, found) = (&error[..at], &error[at + begin.len()..]);
    // The last occurrence is serde's own: the value precedes it, and may contain the same words.
    let (found, expected) = match found.rfind(", expected ") {
        Some(at) => found.split_at(at),
        None => (found, ""),
    };
    let kind = found.split(['"', '`']).next().unwrap_or_default().trim();
    text(&format!(
        "{before}{}{kind}{expected}",
        if kind.is_empty() { begin.trim_end() } else { begin }
    ))
}

/// Returns the message of a failed request to the API server, without credentials.
///
/// The message of a refusal is the one that the server sends; kube's own repeats the whole
/// response. A fenced client has already cut responses about a Secret.
pub fn request_error(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error
        && !status.message.is_empty()
    {
        return text(&status.message);
    }
    self::error(error)
}

/// Returns the message of an error with its causes, without credentials: the output of a credential
/// plugin, the lines of a kubeconfig, user, password and query of a URL.
pub fn error(error: &(dyn Error + 'static)) -> String {
    let mut said = String::new();
    for error in chain(error) {
        let message = error.to_string();
        // Some layers repeat the message of the one below.
        if !said.contains(&message) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(&message);
        }
    }
    without_quotes(said, error)
}

/// Returns the message of an error, cut as by [`error`], without causes that the message does not
/// include itself.
pub fn message(error: &(dyn Error + 'static)) -> String {
    without_quotes(error.to_string(), error)
}

/// Returns a message without the values that the errors in the chain of `error` quote.
fn without_quotes(mut said: String, error: &(dyn Error + 'static)) -> String {
    for error in chain(error) {
        if let Some(replacement) = replacement(error) {
            said = said.replace(&error.to_string(), &replacement);
        }
    }
    text(&said)
}

/// Returns an error and its causes, also those that `source` skips.
pub fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| cause(error))
}

/// Returns the error that another one holds or names as its source.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    // The `source` of these two skips the error that they hold.
    if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return Some(&**shared);
    }
    if let Some(held) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        return Some(held);
    }
    error.source()
}

/// Returns a replacement message for an error that quotes values or credentials.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the variants are another crate's, and the others hold no credentials"
)]
fn replacement(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<serde_json::Error>() {
        return Some(decoding(error));
    }
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return match error {
            AuthError::AuthExecRun { cmd, out } => {
                let cmd = cmd.split_whitespace().next().unwrap_or_default();
                Some(format!(
                    "credential plugin {cmd} failed with {}; its output is left out, run it by \
                     hand to see it",
                    out.status
                ))
            }
            AuthError::AuthExecParse(_) => {
                Some("output of the credential plugin is not an ExecCredential".to_owned())
            }
            AuthError::AuthExec(_) => Some("credential plugin gave no credential".to_owned()),
            _ => None,
        };
    }
    match error.downcast_ref::<KubeconfigError>()? {
        // The parser quotes the line, which may contain the token.
        KubeconfigError::Parse(error) => {
            let at = error.location();
            let at = at.map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            Some(format!("kubeconfig is not valid YAML{}", at.unwrap_or_default()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_url_keeps_scheme_host_and_path() {
        for (given, expected) in [
            ("http://hook:8080/sync?token=hush#hush", "http://hook:8080/sync"),
            ("https://user:hush@hook/sync", "https://hook/sync"),
            ("https://user:hu?sh/@hook/sync", "https://[redacted]"),
            ("https://hook/sync?key=hu@sh", "https://hook/sync"),
            ("https://hook:8080?hu@sh", "https://hook:8080"),
            ("https://user:hush@hook/sync?key=hu@sh", "https://[redacted]"),
            ("Post \"https://u:hush@h/c?timeout=1s\": EOF", "Post \"https://h/c\": EOF"),
            ("a://b?c d://e@f, g", "a://b d://f, g"),
            ("no URL: a?b@c", "no URL: a?b@c"),
        ] {
            assert_eq!(text(given), expected);
        }
        assert_eq!(url("http://a:hush@b:1/c d?d=hush hush"), "http://b:1/c d");
        assert_eq!(url("a:hush@b?hush"), "b");
    }

    #[test]
    fn escape_sequences_and_control_characters_are_stripped() {
        for (given, expected) in [
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "link"),
            ("\u{9b}2Jgone", "gone"),
            ("\u{1b}cgone", "gone"),
            ("a\r\n\tb\u{0}\u{8}", "a   b"),
            ("\u{202e}abc", "abc"),
            ("end\u{1b}", "end"),
            ("end\u{1b}[", "end"),
            ("é — ok", "é — ok"),
        ] {
            assert_eq!(printable(given), expected, "{given:?}");
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Document {
        #[expect(dead_code, reason = "it is only decoded")]
        seconds: u8,
        #[expect(dead_code, reason = "it is only decoded")]
        mode: Mode,
    }

    #[derive(Debug, Deserialize)]
    enum Mode {
        Open,
    }

    #[test]
    fn values_that_serde_quotes_are_cut() {
        let check = |document: serde_json::Value, expected: &str| {
            let error = serde_json::from_str::<Document>(&document.to_string()).unwrap_err();
            let said = decoding(&error);
            assert!(said.starts_with(expected), "{said}");
            assert!(!said.contains("hush"), "{said}");
        };

        check(json!("hush"), "invalid type: string, expected struct Document at line 1");
        check(json!({"seconds": "hush, expected hush"}), "invalid type: string, expected u8 at");
        check(json!({"seconds": "\"hush\": `hush`"}), "invalid type: string, expected u8 at");
        check(json!({"seconds": 256}), "invalid value: integer, expected u8 at");
        check(json!({"seconds": 1, "mode": "hush"}), "unknown variant, expected `Open` at");
        check(json!({"seconds": 1}), "missing field `mode` at");
        assert_eq!(decoding("a: invalid type: string \"hush\""), "a: invalid type: string");
    }

    #[test]
    fn the_output_of_a_credential_plugin_is_left_out() {
        let output = std::process::Output {
            status: std::process::ExitStatus::from_raw(256),
            stdout: b"hush".to_vec(),
            stderr: b"hush".to_vec(),
        };
        let failed =
            AuthError::AuthExecRun { cmd: "aws --token hush".to_owned(), out: Box::new(output) };
        for error_ in [
            kube::Error::Service(failed.into()),
            kube::Error::Auth(AuthError::AuthExec("hush".to_owned())),
        ] {
            let said = error(&error_);
            assert!(!said.contains("hush"), "{said}");
            assert!(said.contains(": credential plugin "), "{said}");
        }
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_read_is_not_quoted() {
        let text = "users:\n- name: a\n  user:\n    token: [hush\n";
        let failed = kube::config::Kubeconfig::from_yaml(text).unwrap_err();
        let wrong = "users: hush\n";
        let mistyped = kube::config::Kubeconfig::from_yaml(wrong).unwrap_err();

        for failed in [failed, mistyped] {
            let said = error(&failed);
            assert!(!said.contains("hush"), "{said}");
            assert!(said.starts_with("kubeconfig is not valid YAML"), "{said}");
        }
    }
}
