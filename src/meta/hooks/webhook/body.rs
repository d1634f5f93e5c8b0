//! Bodies of responses, read within the budget.

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::{Webhook, invalid_utf8, surrogates};
use crate::{
    meta::hooks::{
        budget::{Reservation, UNRESERVED_BYTES},
        error::HookError,
    },
    redaction,
};

/// Longest excerpt of an error body, in bytes.
pub(super) const EXCERPT_BYTES: usize = 256;

impl Webhook {
    /// Reads a response within the budget. Nothing is read while the reservation waits, so that
    /// flow control also pauses the hook.
    pub(super) async fn read_body(
        &self,
        mut body: Incoming,
        deadline: Instant,
    ) -> Result<Bytes, HookError> {
        let limit = self.budget.limits().response;
        // A declared length is refused or reserved before a byte is read.
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > limit {
            return Err(HookError::TooLarge { limit });
        }
        // A body is not longer than it declares. Without a declared length it may reach the limit.
        let most = if body.size_hint().exact().is_some() { declared } else { limit };
        let mut reservation = None;
        if declared > UNRESERVED_BYTES {
            reservation = Some(self.reserve(most, deadline).await?);
        }
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| HookError::Transport(redaction::error(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(data.len());
            if length > limit {
                return Err(HookError::TooLarge { limit });
            }
            if length > UNRESERVED_BYTES && reservation.is_none() {
                reservation = Some(self.reserve(most, deadline).await?);
            }
            if length > bytes.capacity() {
                // Capacity is doubled, but not beyond the reservation.
                let capacity = length.max(bytes.len().saturating_mul(2)).min(most.max(length));
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        surrogates::replace_lone(&mut bytes);
        if self.replaces_invalid_utf8 {
            invalid_utf8::replace(&mut bytes);
        }
        bytes.shrink_to_fit();
        Ok(match reservation {
            Some(reservation) => reservation.hold(bytes),
            None => bytes.into(),
        })
    }

    async fn reserve(&self, bytes: usize, deadline: Instant) -> Result<Reservation, HookError> {
        let reserved = timeout_at(deadline, self.budget.reserve(bytes)).await.ok().flatten();
        reserved.ok_or(HookError::NoBudget { bytes, waited: self.timeout })
    }
}

/// Returns the first bytes of an error body, as far as it can be read.
pub(super) async fn read_excerpt(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < EXCERPT_BYTES {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data[..data.len().min(EXCERPT_BYTES - bytes.len())]);
        }
    }
    redaction::text(&String::from_utf8_lossy(&bytes)).trim().to_owned()
}
