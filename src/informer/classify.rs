//! Classification of a failed request: the next step, the pace and the cause.
//!
//! Pure. No response ends an informer or empties its store: absence is proven elsewhere.

use std::{error::Error, time::Duration};

use kube::core::Status;
use prometheus_client::encoding::EncodeLabelValue;

use crate::{list_page::EndlessList, redaction};

/// Maximum length of a message of an error, in characters.
const MESSAGE_MAX: usize = 1024;

/// Request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPhase {
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
pub(super) enum RequestFailure {
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
    /// The server treated a streaming list as a plain watch. No action is needed.
    #[error("the server does not mark the end of a streaming list; it is listed by pages instead")]
    Endless,
    /// The pages of the list do not lead to its end.
    #[error("{0}")]
    EndlessPages(EndlessList),
    #[error("the server closed the stream")]
    Closed,
    /// A list is needed for another reason than a failed request.
    #[error("{0}")]
    Suspect(&'static str),
    /// A subscriber needs objects whole that are kept as metadata entries.
    #[error("a subscriber needs whole objects")]
    Wanted,
}

impl RequestFailure {
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
            | Self::EndlessPages(_)
            | Self::Closed
            | Self::Suspect(_)
            | Self::Wanted) => other,
        }
    }
}

/// Next request after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// Repeat: a list at its continue token, a watch from its position.
    Again,
    /// List from the first page, instead of watching or continuing a list.
    Relist,
    /// List without paging: paging took so long that the `continue` token expired.
    ListWhole,
    /// List with smaller pages.
    ListSmaller,
    /// List by pages, this once.
    ListPages,
    /// List by pages from now on.
    NeverStream,
    /// List in an interval: the type cannot be watched now.
    Poll,
}

/// Delay before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPace {
    /// No delay the first time, then 100 ms, doubling to 30 s.
    Prompt,
    /// Delay of 5 ms, doubling to 30 s: such causes end within milliseconds or last long.
    Quick,
    /// Delay of one second, doubling to 30 s.
    Slow,
    /// Delay as for `Slow`, and at least the server's Retry-After.
    After(Duration),
    /// Delay of a few quick retries, then 30 s: only a new grant helps.
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
pub(super) struct Classification {
    pub(super) step: NextRequest,
    pub(super) pace: RequestPace,
    pub(super) cause: Cause,
}

fn spaced(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" {reason}") }
}

/// Prefix of every error of a conversion webhook.
const CONVERSION: &str = "conversion webhook for ";
/// Longest Retry-After that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Returns the next request after a failure, with its delay and cause.
pub(super) fn classify(phase: RequestPhase, failure: &RequestFailure) -> Classification {
    let classified = |step, pace, cause| Classification { step, pace, cause };
    // A failed streaming list is retried by pages, which every server supports. A problem of the
    // type itself shows there.
    let again = match phase {
        RequestPhase::List { .. } | RequestPhase::Watch => NextRequest::Again,
        RequestPhase::Stream => NextRequest::ListPages,
    };
    // A large page can take the server longer than its own deadline.
    let smaller = match phase {
        RequestPhase::List { .. } => NextRequest::ListSmaller,
        RequestPhase::Stream | RequestPhase::Watch => again,
    };
    match failure {
        RequestFailure::Status { code, reason, message, retry_after } => {
            let after = retry_after
                .map_or(RequestPace::Slow, |after| RequestPace::After(after.min(RETRY_AFTER_MAX)));
            let server = ServerError { code: *code, reason, message };
            classify_status(server, phase, again, after)
        }
        RequestFailure::Transport(_) => classified(again, RequestPace::Slow, Cause::Transport),
        RequestFailure::BrokenOff(_) => classified(smaller, RequestPace::Slow, Cause::Transport),
        RequestFailure::Deadline { .. } => classified(smaller, RequestPace::Slow, Cause::Deadline),
        RequestFailure::TooLong { .. } => match phase {
            RequestPhase::List { .. } => {
                classified(NextRequest::ListSmaller, RequestPace::Prompt, Cause::TooLong)
            }
            RequestPhase::Stream | RequestPhase::Watch => {
                classified(again, RequestPace::Slow, Cause::TooLong)
            }
        },
        RequestFailure::Undecodable { .. } => {
            classified(again, RequestPace::Slow, Cause::Undecodable)
        }
        RequestFailure::Endless => {
            classified(NextRequest::NeverStream, RequestPace::Prompt, Cause::Refused)
        }
        RequestFailure::EndlessPages(_) => {
            classified(NextRequest::Relist, RequestPace::Slow, Cause::Undecodable)
        }
        RequestFailure::Closed => match phase {
            RequestPhase::Watch => {
                classified(NextRequest::Again, RequestPace::Prompt, Cause::Closed)
            }
            RequestPhase::List { .. } | RequestPhase::Stream => {
                classified(again, RequestPace::Slow, Cause::Closed)
            }
        },
        RequestFailure::Suspect(_) => {
            classified(NextRequest::Relist, RequestPace::Prompt, Cause::Suspect)
        }
        RequestFailure::Wanted => {
            classified(NextRequest::Relist, RequestPace::Prompt, Cause::Wanted)
        }
    }
}

/// Status of an error response.
struct ServerError<'a> {
    code: u16,
    reason: &'a str,
    message: &'a str,
}

/// Classifies a status: `again` retries the request, and `after` is the server's Retry-After.
fn classify_status(
    server: ServerError<'_>,
    phase: RequestPhase,
    again: NextRequest,
    after: RequestPace,
) -> Classification {
    let classified = |step, pace, cause| Classification { step, pace, cause };
    let ServerError { code, reason, message } = server;
    match (code, phase) {
        (410, RequestPhase::Watch) => {
            classified(NextRequest::Relist, RequestPace::Prompt, Cause::Expired)
        }
        (410, RequestPhase::Stream) => {
            classified(NextRequest::ListPages, RequestPace::Prompt, Cause::Expired)
        }
        (410, RequestPhase::List { continued: true }) => {
            classified(NextRequest::ListWhole, RequestPace::Prompt, Cause::Expired)
        }
        (410, RequestPhase::List { continued: false }) => {
            classified(NextRequest::Again, RequestPace::Slow, Cause::Expired)
        }
        // The type may be served again as another one, which has other tokens.
        (404, RequestPhase::List { continued: true }) => {
            classified(NextRequest::Relist, RequestPace::Quick, Cause::NotFound)
        }
        (404, _) => classified(again, RequestPace::Quick, Cause::NotFound),
        (403, _) => classified(again, RequestPace::Forbidden, Cause::Forbidden),
        (401, _) => classified(again, RequestPace::Slow, Cause::Unauthorized),
        // Lists report a failed conversion with 500. The watch cache reports it with 429
        // while it cannot be filled, which does not end within milliseconds.
        (429 | 500.., _) if message.contains(CONVERSION) => {
            classified(again, RequestPace::Slow, Cause::Conversion)
        }
        // Watch cache of a type that is just being served. It is ready after
        // about 10 ms, although Retry-After says 1 s.
        (429, _) if message.contains("(re)initializing") => {
            classified(again, RequestPace::Quick, Cause::Initializing)
        }
        (429, _) => classified(again, after, Cause::Throttled),
        // The watch's position is ahead of the server's: a restored backup, or a lagging
        // replica. Only a list can show which.
        (_, RequestPhase::Watch) if message.contains("Too large resource version") => {
            classified(NextRequest::Relist, after, Cause::Expired)
        }
        (_, RequestPhase::Watch) if reason == "Expired" || reason == "Gone" => {
            classified(NextRequest::Relist, RequestPace::Prompt, Cause::Expired)
        }
        (400 | 405 | 406 | 415 | 422 | 501, RequestPhase::Stream) => {
            classified(NextRequest::NeverStream, RequestPace::Prompt, Cause::Refused)
        }
        (405, RequestPhase::Watch) => {
            classified(NextRequest::Poll, RequestPace::Prompt, Cause::Refused)
        }
        // A watch request differs from a list request only by its position.
        (400 | 422, RequestPhase::Watch) => {
            classified(NextRequest::Relist, RequestPace::Slow, Cause::Refused)
        }
        (500.., _) => classified(again, after, Cause::Server),
        // The server may refuse the token.
        (_, RequestPhase::List { continued: true }) => {
            classified(NextRequest::Relist, after, Cause::Refused)
        }
        (_, _) => classified(again, after, Cause::Refused),
    }
}

/// Returns the text of an error and its sources, shortened, since a status shows only text.
pub(super) fn error_text(error: &(dyn Error + 'static)) -> String {
    shorten(&redaction::error(error))
}

/// Shortens a text to the limit of messages.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: RequestPhase = RequestPhase::List { continued: false };
    const LATER_PAGE: RequestPhase = RequestPhase::List { continued: true };

    fn status(code: u16) -> RequestFailure {
        RequestFailure::Status {
            code,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(7)),
        }
    }

    #[test]
    fn a_failure_about_secrets_is_shown_without_the_servers_message() {
        let refused = RequestFailure::Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            message: "secrets is forbidden: User \"a\" cannot list resource: hush".to_owned(),
            retry_after: None,
        };
        let quoted = RequestFailure::Undecodable {
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

    fn refused(code: u16, message: &str) -> RequestFailure {
        RequestFailure::Status {
            code,
            reason: String::new(),
            message: message.into(),
            retry_after: Some(Duration::from_secs(1)),
        }
    }

    #[track_caller]
    fn check(phase: RequestPhase, failure: RequestFailure, step: NextRequest, pace: RequestPace) {
        let classified = classify(phase, &failure);

        assert_eq!((classified.step, classified.pace), (step, pace), "{phase:?} {failure}");
    }

    #[test]
    fn expired_position_requires_a_list() {
        check(RequestPhase::Watch, status(410), NextRequest::Relist, RequestPace::Prompt);
        check(LATER_PAGE, status(410), NextRequest::ListWhole, RequestPace::Prompt);
        check(LIST, status(410), NextRequest::Again, RequestPace::Slow);
        check(RequestPhase::Stream, status(410), NextRequest::ListPages, RequestPace::Prompt);
        let in_stream = RequestFailure::Status {
            code: 500,
            reason: "Expired".into(),
            message: String::new(),
            retry_after: None,
        };
        check(RequestPhase::Watch, in_stream, NextRequest::Relist, RequestPace::Prompt);
    }

    #[test]
    fn position_ahead_of_the_server_requires_a_list() {
        let failure = refused(504, "Too large resource version: 100, current: 50");

        check(
            RequestPhase::Watch,
            failure,
            NextRequest::Relist,
            RequestPace::After(Duration::from_secs(1)),
        );
        check(RequestPhase::Watch, status(400), NextRequest::Relist, RequestPace::Slow);
    }

    #[test]
    fn missing_type_is_requested_again_and_not_listed() {
        check(RequestPhase::Watch, status(404), NextRequest::Again, RequestPace::Quick);
        check(LIST, status(404), NextRequest::Again, RequestPace::Quick);
        check(LATER_PAGE, status(404), NextRequest::Relist, RequestPace::Quick);
        check(RequestPhase::Stream, status(404), NextRequest::ListPages, RequestPace::Quick);
    }

    #[test]
    fn a_refusal_waits_for_a_grant() {
        check(RequestPhase::Watch, status(403), NextRequest::Again, RequestPace::Forbidden);
        check(LIST, status(403), NextRequest::Again, RequestPace::Forbidden);
        check(LIST, status(401), NextRequest::Again, RequestPace::Slow);
    }

    #[test]
    fn a_throttled_request_waits_unless_the_cache_is_being_filled() {
        let seven = RequestPace::After(Duration::from_secs(7));
        check(LIST, status(429), NextRequest::Again, seven);
        check(RequestPhase::Watch, status(503), NextRequest::Again, seven);
        let filled = "storage is (re)initializing";
        check(LIST, refused(429, filled), NextRequest::Again, RequestPace::Quick);
        check(RequestPhase::Watch, refused(429, filled), NextRequest::Again, RequestPace::Quick);
        check(
            RequestPhase::Stream,
            refused(429, filled),
            NextRequest::ListPages,
            RequestPace::Quick,
        );
    }

    #[test]
    fn failing_conversion_webhook_is_distinguished_from_a_failing_server() {
        let failed = "conversion webhook for example.com/v1, Kind=Widget failed: Post ...";
        let filled = format!("storage is (re)initializing: failed to list widgets: {failed}");
        let cause = |phase, failure| classify(phase, &failure).cause;

        check(LIST, refused(500, failed), NextRequest::Again, RequestPace::Slow);
        check(RequestPhase::Watch, refused(429, &filled), NextRequest::Again, RequestPace::Slow);
        check(
            RequestPhase::Stream,
            refused(500, failed),
            NextRequest::ListPages,
            RequestPace::Slow,
        );
        assert_eq!(cause(LIST, refused(500, failed)), Cause::Conversion);
        assert_eq!(cause(RequestPhase::Watch, refused(429, &filled)), Cause::Conversion);
        assert_eq!(cause(LIST, refused(500, "etcd is down")), Cause::Server);
        assert_eq!(cause(LIST, refused(403, failed)), Cause::Forbidden);
    }

    #[test]
    fn a_server_cannot_send_us_away_for_ever() {
        let failure = RequestFailure::Status {
            code: 429,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(1_000_000_000)),
        };

        check(LIST, failure, NextRequest::Again, RequestPace::After(RETRY_AFTER_MAX));
    }

    #[test]
    fn streaming_list_is_not_requested_again_from_a_server_that_refuses_it() {
        for code in [400, 405, 406, 415, 422, 501] {
            check(
                RequestPhase::Stream,
                status(code),
                NextRequest::NeverStream,
                RequestPace::Prompt,
            );
        }
        check(
            RequestPhase::Stream,
            RequestFailure::Endless,
            NextRequest::NeverStream,
            RequestPace::Prompt,
        );
        check(
            RequestPhase::Stream,
            RequestFailure::Closed,
            NextRequest::ListPages,
            RequestPace::Slow,
        );
        check(
            RequestPhase::Stream,
            status(500),
            NextRequest::ListPages,
            RequestPace::After(Duration::from_secs(7)),
        );
    }

    #[test]
    fn a_lost_connection_resumes() {
        check(RequestPhase::Watch, RequestFailure::Closed, NextRequest::Again, RequestPace::Prompt);
        check(
            RequestPhase::Watch,
            RequestFailure::Transport("reset".into()),
            NextRequest::Again,
            RequestPace::Slow,
        );
        let deadline = RequestFailure::Deadline { what: "event", after: Duration::from_secs(1) };
        check(RequestPhase::Watch, deadline.clone(), NextRequest::Again, RequestPace::Slow);
        check(LIST, deadline, NextRequest::ListSmaller, RequestPace::Slow);
        check(
            LIST,
            RequestFailure::BrokenOff("half".into()),
            NextRequest::ListSmaller,
            RequestPace::Slow,
        );
        check(
            LIST,
            RequestFailure::Transport("refused".into()),
            NextRequest::Again,
            RequestPace::Slow,
        );
        let long = RequestFailure::TooLong { what: "line", budget: 1 };
        check(RequestPhase::Watch, long.clone(), NextRequest::Again, RequestPace::Slow);
        check(LIST, long, NextRequest::ListSmaller, RequestPace::Prompt);
    }

    #[test]
    fn list_continues_at_its_token_unless_that_may_be_the_cause() {
        let seven = RequestPace::After(Duration::from_secs(7));
        check(LATER_PAGE, status(500), NextRequest::Again, seven);
        check(LATER_PAGE, status(429), NextRequest::Again, seven);
        check(LATER_PAGE, status(403), NextRequest::Again, RequestPace::Forbidden);
        check(LATER_PAGE, status(400), NextRequest::Relist, seven);
        check(LIST, status(400), NextRequest::Again, seven);
        let endless = RequestFailure::EndlessPages(EndlessList::RepeatedToken);
        check(LATER_PAGE, endless, NextRequest::Relist, RequestPace::Slow);
    }

    #[test]
    fn a_failure_says_what_the_server_said() {
        let failure = |reason: &str| RequestFailure::Status {
            code: 403,
            reason: reason.into(),
            message: "no".into(),
            retry_after: None,
        };

        assert_eq!(failure("Forbidden").to_string(), "403 Forbidden: no");
        assert_eq!(failure("").to_string(), "403: no");
    }

    #[test]
    fn no_status_is_without_a_response() {
        for code in 0..1000 {
            for phase in [LIST, LATER_PAGE, RequestPhase::Stream, RequestPhase::Watch] {
                let classified = classify(phase, &status(code));
                if phase == RequestPhase::Watch {
                    let step = classified.step;
                    let resumes = matches!(step, NextRequest::Again | NextRequest::Relist);
                    assert!(resumes || code == 405 && step == NextRequest::Poll);
                }
            }
        }
    }
}
