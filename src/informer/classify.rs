//! Classification of a failed request: the next step, the pace and the cause.
//!
//! Pure. No response ends an informer or empties its store: absence is proven elsewhere.

use std::{error::Error, time::Duration};

use kube::core::Status;
use prometheus_client::encoding::EncodeLabelValue;

use crate::redaction;

/// Maximum length of a message of an error, in characters.
const MESSAGE_MAX: usize = 1024;

/// Request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A list by pages.
    List {
        /// True if an earlier page was answered.
        continued: bool,
    },
    /// A streaming list, before its end.
    Stream,
    /// A watch of a complete store.
    Watch,
}

/// Error or end of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Status of the response, or of an `ERROR` event in the stream.
    #[error("{code}{}: {message}", spaced(reason))]
    Status { code: u16, reason: String, message: String, retry_after: Option<Duration> },
    #[error("{0}")]
    Transport(String),
    /// The response started but did not complete.
    #[error("{0}")]
    BrokenOff(String),
    #[error("no {what} within {after:?}")]
    Deadline { what: &'static str, after: Duration },
    #[error("{what} is longer than {budget} bytes")]
    TooLong { what: &'static str, budget: usize },
    #[error("{what} cannot be decoded: {error}")]
    Undecodable { what: &'static str, error: String },
    /// The server treated a streaming list as a plain watch.
    #[error("the server does not mark the end of a streaming list")]
    Endless,
    #[error("the server closed the stream")]
    Closed,
    /// A list is needed for another reason than a failed request.
    #[error("{0}")]
    Suspect(&'static str),
    /// A subscriber needs objects whole that are kept as metadata entries.
    #[error("a subscriber needs whole objects")]
    Wanted,
}

impl Failure {
    /// Returns the failure with secrets removed: without values quoted by the decoder, and for
    /// Secrets without the server's message. Classify the original, since classification reads the
    /// message.
    pub(super) fn redacted(self, secrets: bool) -> Self {
        match self {
            Self::Status { code, reason, message, retry_after } => {
                let status = Status::failure(&message, &reason).with_code(code);
                let (reason, message) = match secrets {
                    true => (String::new(), redaction::of_secret(status).message),
                    false => (reason, redaction::text(&message)),
                };
                Self::Status { code, reason, message, retry_after }
            }
            Self::Undecodable { what, error } => {
                Self::Undecodable { what, error: redaction::decoding(error) }
            }
            Self::Transport(error) => Self::Transport(redaction::text(&error)),
            Self::BrokenOff(error) => Self::BrokenOff(redaction::text(&error)),
            other @ (Self::Deadline { .. }
            | Self::TooLong { .. }
            | Self::Endless
            | Self::Closed
            | Self::Suspect(_)
            | Self::Wanted) => other,
        }
    }
}

/// Next request after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Repeat: a list from its first page, a watch from its position.
    Again,
    /// List again instead of watching.
    Relist,
    /// List without paging: paging took so long that the `continue` token expired.
    ListWhole,
    /// List with smaller pages.
    ListSmaller,
    /// List by pages, this once.
    ListPages,
    /// List by pages from now on.
    NeverStream,
}

/// Delay before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// At once the first time, then from 100 ms, doubling to 30 s.
    Prompt,
    /// From 5 ms, doubling to 30 s: such causes end within milliseconds or last long.
    Quick,
    /// From one second, doubling to 30 s.
    Slow,
    /// Like `Slow`, but no earlier than the server's Retry-After.
    After(Duration),
    /// A few quick retries, then every 30 s: only a new grant helps.
    Forbidden,
}

/// Cause of a repeated request, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Cause {
    Closed,
    Expired,
    NotFound,
    Forbidden,
    Unauthorized,
    Throttled,
    Initializing,
    Conversion,
    Server,
    Transport,
    Deadline,
    TooLong,
    Undecodable,
    Refused,
    Suspect,
    Wanted,
}

impl Cause {
    pub(super) const ALL: [Self; 16] = [
        Self::Closed,
        Self::Expired,
        Self::NotFound,
        Self::Forbidden,
        Self::Unauthorized,
        Self::Throttled,
        Self::Initializing,
        Self::Conversion,
        Self::Server,
        Self::Transport,
        Self::Deadline,
        Self::TooLong,
        Self::Undecodable,
        Self::Refused,
        Self::Suspect,
        Self::Wanted,
    ];
}

/// Step, pace and cause for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classified {
    pub(super) step: Step,
    pub(super) pace: Pace,
    pub(super) cause: Cause,
}

fn spaced(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" {reason}") }
}

/// Prefix of every error of a conversion webhook.
const CONVERSION: &str = "conversion webhook for ";
/// Longest Retry-After that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

pub(super) fn classify(phase: Phase, failure: &Failure) -> Classified {
    let verdict = |step, pace, cause| Classified { step, pace, cause };
    // After any failure of a streaming list comes a list by pages, which every server supports. A
    // problem of the type itself shows there.
    let again = match phase {
        Phase::List { .. } | Phase::Watch => Step::Again,
        Phase::Stream => Step::ListPages,
    };
    // A large page can take the server longer than its own deadline.
    let smaller = match phase {
        Phase::List { .. } => Step::ListSmaller,
        Phase::Stream | Phase::Watch => again,
    };
    match failure {
        Failure::Status { code, reason, message, retry_after } => {
            let after =
                retry_after.map_or(Pace::Slow, |after| Pace::After(after.min(RETRY_AFTER_MAX)));
            match (code, phase) {
                (410, Phase::Watch) => verdict(Step::Relist, Pace::Prompt, Cause::Expired),
                (410, Phase::Stream) => verdict(Step::ListPages, Pace::Prompt, Cause::Expired),
                (410, Phase::List { continued: true }) => {
                    verdict(Step::ListWhole, Pace::Prompt, Cause::Expired)
                }
                (410, Phase::List { continued: false }) => {
                    verdict(Step::Again, Pace::Slow, Cause::Expired)
                }
                (404, _) => verdict(again, Pace::Quick, Cause::NotFound),
                (403, _) => verdict(again, Pace::Forbidden, Cause::Forbidden),
                (401, _) => verdict(again, Pace::Slow, Cause::Unauthorized),
                // Lists report a failed conversion with 500. The watch cache reports it with 429 while it cannot be
                // filled, which does not end within milliseconds.
                (429 | 500.., _) if message.contains(CONVERSION) => {
                    verdict(again, Pace::Slow, Cause::Conversion)
                }
                // Watch cache of a type that is just being served. It is ready after
                // about 10 ms, although Retry-After says 1 s.
                (429, _) if message.contains("(re)initializing") => {
                    verdict(again, Pace::Quick, Cause::Initializing)
                }
                (429, _) => verdict(again, after, Cause::Throttled),
                // The watch's position is ahead of the server's: a restored backup, or a lagging
                // replica. Only a list can show which.
                (_, Phase::Watch) if message.contains("Too large resource version") => {
                    verdict(Step::Relist, after, Cause::Expired)
                }
                (_, Phase::Watch) if reason == "Expired" || reason == "Gone" => {
                    verdict(Step::Relist, Pace::Prompt, Cause::Expired)
                }
                (400 | 405 | 406 | 415 | 422 | 501, Phase::Stream) => {
                    verdict(Step::NeverStream, Pace::Prompt, Cause::Refused)
                }
                // A watch request differs from a list request only by its position.
                (400 | 422, Phase::Watch) => verdict(Step::Relist, Pace::Slow, Cause::Refused),
                (500.., _) => verdict(again, after, Cause::Server),
                (_, _) => verdict(again, after, Cause::Refused),
            }
        }
        Failure::Transport(_) => verdict(again, Pace::Slow, Cause::Transport),
        Failure::BrokenOff(_) => verdict(smaller, Pace::Slow, Cause::Transport),
        Failure::Deadline { .. } => verdict(smaller, Pace::Slow, Cause::Deadline),
        Failure::TooLong { .. } => match phase {
            Phase::List { .. } => verdict(Step::ListSmaller, Pace::Prompt, Cause::TooLong),
            Phase::Stream | Phase::Watch => verdict(again, Pace::Slow, Cause::TooLong),
        },
        Failure::Undecodable { .. } => verdict(again, Pace::Slow, Cause::Undecodable),
        Failure::Endless => verdict(Step::NeverStream, Pace::Prompt, Cause::Refused),
        Failure::Closed => match phase {
            Phase::Watch => verdict(Step::Again, Pace::Prompt, Cause::Closed),
            Phase::List { .. } | Phase::Stream => verdict(again, Pace::Slow, Cause::Closed),
        },
        Failure::Suspect(_) => verdict(Step::Relist, Pace::Prompt, Cause::Suspect),
        Failure::Wanted => verdict(Step::Relist, Pace::Prompt, Cause::Wanted),
    }
}

/// Formats an error with its sources, since a status shows only text.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    shorten(&redaction::error(error))
}

/// Shortens a text to the limit of messages.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Phase = Phase::List { continued: false };
    const LATER_PAGE: Phase = Phase::List { continued: true };

    fn status(code: u16) -> Failure {
        Failure::Status {
            code,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(7)),
        }
    }

    #[test]
    fn a_failure_about_secrets_is_shown_without_the_servers_message() {
        let refused = Failure::Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            message: "secrets is forbidden: User \"a\" cannot list resource: hush".to_owned(),
            retry_after: None,
        };
        let quoted = Failure::Undecodable {
            what: "a page of the list",
            error: "invalid type: string \"hush\", expected a map at line 1".to_owned(),
        };

        let open = refused.clone().redacted(false).to_string();
        assert!(open.contains("hush"), "{open}");
        let shown = refused.redacted(true).to_string();
        assert!(shown.contains("403 Forbidden (the right is missing)"), "{shown}");
        assert!(!shown.contains("hush"), "{shown}");
        for secrets in [true, false] {
            let shown = quoted.clone().redacted(secrets).to_string();
            assert_eq!(
                shown,
                "a page of the list cannot be decoded: invalid type: string, expected a map at line 1"
            );
        }
    }

    fn refused(code: u16, message: &str) -> Failure {
        Failure::Status {
            code,
            reason: String::new(),
            message: message.into(),
            retry_after: Some(Duration::from_secs(1)),
        }
    }

    #[track_caller]
    fn check(phase: Phase, failure: Failure, step: Step, pace: Pace) {
        let verdict = classify(phase, &failure);

        assert_eq!((verdict.step, verdict.pace), (step, pace), "{phase:?} {failure}");
    }

    #[test]
    fn expired_position_requires_a_list() {
        check(Phase::Watch, status(410), Step::Relist, Pace::Prompt);
        check(LATER_PAGE, status(410), Step::ListWhole, Pace::Prompt);
        check(LIST, status(410), Step::Again, Pace::Slow);
        check(Phase::Stream, status(410), Step::ListPages, Pace::Prompt);
        let in_stream = Failure::Status {
            code: 500,
            reason: "Expired".into(),
            message: String::new(),
            retry_after: None,
        };
        check(Phase::Watch, in_stream, Step::Relist, Pace::Prompt);
    }

    #[test]
    fn position_ahead_of_the_server_requires_a_list() {
        let failure = refused(504, "Too large resource version: 100, current: 50");

        check(Phase::Watch, failure, Step::Relist, Pace::After(Duration::from_secs(1)));
        check(Phase::Watch, status(400), Step::Relist, Pace::Slow);
    }

    #[test]
    fn missing_type_is_requested_again_and_not_listed() {
        check(Phase::Watch, status(404), Step::Again, Pace::Quick);
        check(LIST, status(404), Step::Again, Pace::Quick);
        check(LATER_PAGE, status(404), Step::Again, Pace::Quick);
        check(Phase::Stream, status(404), Step::ListPages, Pace::Quick);
    }

    #[test]
    fn a_refusal_waits_for_a_grant() {
        check(Phase::Watch, status(403), Step::Again, Pace::Forbidden);
        check(LIST, status(403), Step::Again, Pace::Forbidden);
        check(LIST, status(401), Step::Again, Pace::Slow);
    }

    #[test]
    fn a_throttled_request_waits_unless_the_cache_is_being_filled() {
        let seven = Pace::After(Duration::from_secs(7));
        check(LIST, status(429), Step::Again, seven);
        check(Phase::Watch, status(503), Step::Again, seven);
        let filled = "storage is (re)initializing";
        check(LIST, refused(429, filled), Step::Again, Pace::Quick);
        check(Phase::Watch, refused(429, filled), Step::Again, Pace::Quick);
        check(Phase::Stream, refused(429, filled), Step::ListPages, Pace::Quick);
    }

    #[test]
    fn failing_conversion_webhook_is_distinguished_from_a_failing_server() {
        let failed = "conversion webhook for example.com/v1, Kind=Widget failed: Post ...";
        let filled = format!("storage is (re)initializing: failed to list widgets: {failed}");
        let cause = |phase, failure| classify(phase, &failure).cause;

        check(LIST, refused(500, failed), Step::Again, Pace::Slow);
        check(Phase::Watch, refused(429, &filled), Step::Again, Pace::Slow);
        check(Phase::Stream, refused(500, failed), Step::ListPages, Pace::Slow);
        assert_eq!(cause(LIST, refused(500, failed)), Cause::Conversion);
        assert_eq!(cause(Phase::Watch, refused(429, &filled)), Cause::Conversion);
        assert_eq!(cause(LIST, refused(500, "etcd is down")), Cause::Server);
        assert_eq!(cause(LIST, refused(403, failed)), Cause::Forbidden);
    }

    #[test]
    fn a_server_cannot_send_us_away_for_ever() {
        let failure = Failure::Status {
            code: 429,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(1_000_000_000)),
        };

        check(LIST, failure, Step::Again, Pace::After(RETRY_AFTER_MAX));
    }

    #[test]
    fn streaming_list_is_not_requested_again_from_a_server_that_refuses_it() {
        for code in [400, 405, 406, 415, 422, 501] {
            check(Phase::Stream, status(code), Step::NeverStream, Pace::Prompt);
        }
        check(Phase::Stream, Failure::Endless, Step::NeverStream, Pace::Prompt);
        check(Phase::Stream, Failure::Closed, Step::ListPages, Pace::Slow);
        check(Phase::Stream, status(500), Step::ListPages, Pace::After(Duration::from_secs(7)));
    }

    #[test]
    fn a_lost_connection_resumes() {
        check(Phase::Watch, Failure::Closed, Step::Again, Pace::Prompt);
        check(Phase::Watch, Failure::Transport("reset".into()), Step::Again, Pace::Slow);
        let deadline = Failure::Deadline { what: "event", after: Duration::from_secs(1) };
        check(Phase::Watch, deadline.clone(), Step::Again, Pace::Slow);
        check(LIST, deadline, Step::ListSmaller, Pace::Slow);
        check(LIST, Failure::BrokenOff("half".into()), Step::ListSmaller, Pace::Slow);
        check(LIST, Failure::Transport("refused".into()), Step::Again, Pace::Slow);
        let long = Failure::TooLong { what: "line", budget: 1 };
        check(Phase::Watch, long.clone(), Step::Again, Pace::Slow);
        check(LIST, long, Step::ListSmaller, Pace::Prompt);
    }

    #[test]
    fn a_failure_says_what_the_server_said() {
        let failure = |reason: &str| Failure::Status {
            code: 403,
            reason: reason.into(),
            message: "no".into(),
            retry_after: None,
        };

        assert_eq!(failure("Forbidden").to_string(), "403 Forbidden: no");
        assert_eq!(failure("").to_string(), "403: no");
    }

    #[test]
    fn no_status_is_without_an_answer() {
        for code in 0..1000 {
            for phase in [LIST, LATER_PAGE, Phase::Stream, Phase::Watch] {
                let verdict = classify(phase, &status(code));
                if phase == Phase::Watch {
                    assert!(matches!(verdict.step, Step::Again | Step::Relist));
                }
            }
        }
    }
}
