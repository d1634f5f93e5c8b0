//! Faults of whole connections, below HTTP and TLS.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// Fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum WireFault {
    /// Resets the connection once so many bytes, those of TLS included, have been sent to the
    /// client.
    Reset {
        /// Number of bytes that pass.
        after_bytes: usize,
    },
    /// Accepts the connection, and neither reads nor answers.
    BlackHole,
    /// Stops reading once so many bytes, those of TLS included, have arrived from the client: the
    /// client's buffers fill up.
    StopReading {
        /// Number of bytes that are read.
        after_bytes: usize,
    },
}

/// Rule that disturbs connections by their number: all of them, until it is restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[must_use]
pub struct WireRule {
    fault: WireFault,
    #[serde(default)]
    skip: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<usize>,
}

impl WireRule {
    /// Creates a rule for every connection that is opened from now on.
    pub fn new(fault: WireFault) -> Self {
        Self { fault, skip: 0, times: None }
    }

    /// Passes the first so many connections.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Disturbs at most so many connections.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    /// Returns true if the rule acts on the connection of this number, from 0.
    fn acts_on(&self, number: usize) -> bool {
        number
            .checked_sub(self.skip)
            .is_some_and(|number| self.times.is_none_or(|times| number < times))
    }
}

/// Rules of one proxy, and their faults.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire {
    shared: Arc<SharedWire>,
}

#[derive(Debug, Default)]
struct SharedWire {
    state: Mutex<WireState>,
    fired: watch::Sender<Vec<WireFault>>,
}

#[derive(Debug, Default)]
struct WireState {
    /// Rules, each with the number of connections that it has seen.
    rules: Vec<(WireRule, usize)>,
    last_id: u64,
    /// Open connections: whether a rule disturbs them, and the token that resets them.
    open: BTreeMap<u64, (bool, CancellationToken)>,
}

impl Wire {
    pub(super) fn add(&self, rule: WireRule) {
        self.state().rules.push((rule, 0));
    }

    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.open.values().filter(|(held, _)| *held).for_each(|(_, reset)| reset.cancel());
    }

    pub(super) fn reset(&self) {
        self.state().open.values().for_each(|(_, reset)| reset.cancel());
    }

    pub(super) fn fired(&self) -> Vec<WireFault> {
        self.shared.fired.borrow().clone()
    }

    pub(super) async fn fired_more_than(&self, count: usize) {
        let mut fired = self.shared.fired.subscribe();
        // The sender lives as long as this handle, so that an error is impossible.
        fired.wait_for(|fired| fired.len() > count).await.map(drop).ok();
    }

    /// Returns a new connection with its fault, and the token that resets it.
    pub(super) fn enter(&self, stream: TcpStream) -> (Socket, CancellationToken) {
        let mut state = self.state();
        let mut fault = None;
        for (rule, seen) in &mut state.rules {
            if fault.is_none() && rule.acts_on(*seen) {
                fault = Some(rule.fault);
            }
            *seen += 1;
        }
        state.last_id += 1;
        let id = state.last_id;
        let reset = CancellationToken::new();
        state.open.insert(id, (fault.is_some(), reset.clone()));
        drop(state);
        let (wire, signal) = (self.clone(), reset.clone());
        let socket = Socket { stream, fault, wire, id, reset: signal, read: 0, written: 0 };
        if fault == Some(WireFault::BlackHole) {
            self.happened(WireFault::BlackHole);
        }
        (socket, reset)
    }

    fn happened(&self, fault: WireFault) {
        self.shared.fired.send_modify(|fired| fired.push(fault));
    }

    fn state(&self) -> MutexGuard<'_, WireState> {
        self.shared.state.lock()
    }
}

/// Connection that may be disturbed.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    fault: Option<WireFault>,
    wire: Wire,
    id: u64,
    reset: CancellationToken,
    read: usize,
    written: usize,
}

impl Socket {
    pub(super) fn is_black_hole(&self) -> bool {
        self.fault == Some(WireFault::BlackHole)
    }

    /// Returns the number of bytes that may be written before the reset.
    fn before_reset(&self) -> Option<usize> {
        match self.fault {
            Some(WireFault::Reset { after_bytes }) => {
                Some(after_bytes.saturating_sub(self.written))
            }
            Some(WireFault::BlackHole | WireFault::StopReading { .. }) | None => None,
        }
    }

    fn reset(&mut self) -> io::Error {
        if let Some(fault) = self.fault.take() {
            self.wire.happened(fault);
            self.reset.cancel();
            // Later operations fail too.
            self.fault = Some(WireFault::Reset { after_bytes: 0 });
        }
        io::Error::new(io::ErrorKind::ConnectionReset, "reset by a fault")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.wire.state().open.remove(&self.id);
        if self.reset.is_cancelled() {
            // A reset in place of a close; a closed connection needs none.
            self.stream.set_zero_linger().ok();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(WireFault::StopReading { after_bytes }) = this.fault
            && this.read >= after_bytes
        {
            if this.read != usize::MAX {
                this.read = usize::MAX;
                this.wire.happened(WireFault::StopReading { after_bytes });
            }
            // No waker is needed: only the end of the connection ends this.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        this.read += buffer.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let most = match this.before_reset() {
            Some(0) => return Poll::Ready(Err(this.reset())),
            Some(left) => left.min(bytes.len()),
            None => bytes.len(),
        };
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, &bytes[..most]))?;
        this.written += written;
        if this.before_reset() == Some(0) {
            return Poll::Ready(Err(this.reset()));
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_chosen_by_their_number() {
        let check = |rule: WireRule, expected: &[usize]| {
            let acts: Vec<_> = (0..4).filter(|number| rule.acts_on(*number)).collect();
            assert_eq!(acts, expected, "{rule:?}");
        };

        check(WireRule::new(WireFault::BlackHole), &[0, 1, 2, 3]);
        check(WireRule::new(WireFault::BlackHole).skip(1).times(2), &[1, 2]);
        check(WireRule::new(WireFault::BlackHole).times(0), &[]);
    }

    #[test]
    fn a_rule_is_data() {
        let rule = WireRule::new(WireFault::Reset { after_bytes: 5 }).skip(1);

        let text = serde_json::to_string(&rule).unwrap();

        assert_eq!(text, r#"{"fault":{"reset":{"afterBytes":5}},"skip":1}"#);
        assert_eq!(serde_json::from_str::<WireRule>(&text).unwrap(), rule);
    }
}
