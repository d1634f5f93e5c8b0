//! Errors of hooks.

use std::time::Duration;

use crate::manager::FenceClosed;

/// Longest timeout of a hook. A hook that does not answer holds a call for that long, of which
/// `--max-hook-calls` may allow few for all controllers.
pub(in crate::meta) const LONGEST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Error of a hook that gave no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The hook requests a later retry; not a failure, and no reason to back off.
    #[error("hook is busy, retry in {0:?}")]
    Busy(Duration),
    /// The epoch ended; whether the hook handled the request is unknown.
    #[error("hook call was cancelled: the epoch ended")]
    Cancelled,
    /// The hook did not respond in time; raise `timeout` or make the hook faster.
    #[error("hook did not answer within {0:?}{longest}", longest = longest(*.0))]
    Timeout(Duration),
    /// The hook did not respond in time through a proxy; check both.
    #[error("hook did not answer within {waited:?} through the proxy {proxy}")]
    ProxyTimeout {
        /// Timeout of the hook.
        waited: Duration,
        /// Address of the proxy, without credentials.
        proxy: String,
    },
    /// The hook could not be reached, or the connection broke; check its address and network.
    #[error("hook could not be reached: {0}")]
    Transport(String),
    /// The hook responded with another status than 200; see the hook's log.
    #[error("hook answered with status {code}{}{}", through(.proxy.as_deref()), excerpt(.body))]
    Status {
        /// HTTP status.
        code: u16,
        /// First bytes of the body. They are shown in Events, statuses, logs and endpoints, and are
        /// empty unless
        /// [`MetaOptions::hook_error_excerpts`](crate::meta::MetaOptions::hook_error_excerpts) is set.
        body: String,
        /// Address of the proxy that received the request and may have sent the status itself,
        /// without credentials. `None` for a hook over https.
        proxy: Option<String>,
    },
    /// The hook confirmed an ETag, but the request named none; respond with status 200 to a request
    /// without `If-None-Match`.
    #[error(
        "hook answered with status {code} to a request without If-None-Match: there is no cached \
         response to confirm"
    )]
    NothingToConfirm {
        /// HTTP status.
        code: u16,
    },
    /// The response is larger than its limit; raise the limit, or send less.
    #[error("hook answered with more than {limit} bytes, the limit of --hook-response-limit")]
    TooLarge {
        /// Limit in bytes.
        limit: usize,
    },
    /// Other responses held the budget until the timeout; raise the budget, or send smaller
    /// responses.
    #[error(
        "hook response of up to {bytes} bytes was not read: within {waited:?} other responses did not \
         release --hook-response-budget, or the controller's share of it"
    )]
    NoBudget {
        /// Number of bytes that could not be reserved.
        bytes: usize,
        /// Timeout of the hook.
        waited: Duration,
    },
    /// The response is compressed, which the request did not offer; send it unencoded.
    #[error("hook answered with content encoding {0}; send it unencoded")]
    Encoded(String),
}

fn through(proxy: Option<&str>) -> String {
    proxy.map_or_else(String::new, |proxy| format!(" through the proxy {proxy}"))
}

fn excerpt(body: &str) -> String {
    if body.is_empty() { String::new() } else { format!(": {body:?}") }
}

/// Says that a longer timeout is not possible.
fn longest(waited: Duration) -> &'static str {
    if waited < LONGEST_TIMEOUT { "" } else { ", the longest timeout" }
}

impl HookError {
    /// Returns the reason for a condition, in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Busy(_) => "HookBusy",
            Self::Cancelled => "HookCancelled",
            Self::Timeout(_) | Self::ProxyTimeout { .. } => "HookTimeout",
            Self::Transport(_) => "HookUnreachable",
            Self::Status { .. } => "HookRefused",
            Self::NoBudget { .. } => "HookAnswerBudget",
            Self::NothingToConfirm { .. } | Self::TooLarge { .. } | Self::Encoded(_) => {
                "HookAnswerInvalid"
            }
        }
    }
}

impl From<FenceClosed> for HookError {
    fn from(FenceClosed: FenceClosed) -> Self {
        Self::Cancelled
    }
}
