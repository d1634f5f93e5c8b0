//! Readers of response bodies, by lines or as a whole, within a budget.

use std::{io::BufRead, sync::Arc};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::classify::{RequestFailure, error_text};

/// Splits chunks into lines. Pure.
#[derive(Debug)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// Length of the buffer's beginning that is known to have no line end.
    scanned: usize,
    budget: usize,
}

impl Lines {
    pub(super) fn new(budget: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, budget }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Returns the next whole line, without its line end.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, RequestFailure> {
        let mut rest = &self.buffer[self.scanned..];
        // Compares several bytes at once; a read of a slice never fails.
        let end = self.scanned + rest.skip_until(b'\n').unwrap_or_default();
        let is_whole = self.buffer[..end].ends_with(b"\n");
        let length = end - usize::from(is_whole);
        if length > self.budget {
            return Err(RequestFailure::TooLong { what: "a watch event", budget: self.budget });
        }
        if !is_whole {
            self.scanned = length;
            return Ok(None);
        }
        let line = self.buffer.split_to(length).freeze();
        self.buffer.advance(1);
        self.scanned = 0;
        if self.buffer.is_empty() {
            // A watch is idle most of the time: free the buffer.
            self.buffer = BytesMut::new();
        }
        Ok(Some(line))
    }
}

/// Reader of a watch's lines.
#[derive(Debug)]
pub(super) struct LineReader {
    body: Body,
    lines: Lines,
}

impl LineReader {
    pub(super) fn new(body: Body, budget: usize) -> Self {
        Self { body, lines: Lines::new(budget) }
    }

    /// Returns the next line that is not blank. `None` at the end; an incomplete last line is
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RequestFailure> {
        loop {
            while let Some(line) = self.lines.next()? {
                if !line.iter().all(u8::is_ascii_whitespace) {
                    return Ok(Some(line));
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(chunk) = frame.data_ref() {
                        self.lines.push(chunk);
                    }
                }
                Some(Err(error)) => return Err(RequestFailure::Transport(error_text(&error))),
                None => return Ok(None),
            }
        }
    }
}

/// Byte budget shared by the response bodies of one set of informers.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget {
    free: Arc<Semaphore>,
    bytes: usize,
}

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Self {
        // Permits are counted in 32 bits.
        let bytes = bytes.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// Waits for room for a body of up to `bytes`, in the order of the calls.
    ///
    /// The caller must hold no other part of the budget, and no list slot: bodies that wait for
    /// each other would never end.
    pub(super) async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(self.bytes)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.free.clone().acquire_many_owned(bytes).await.ok()
    }
}

/// State of a body after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyState {
    /// A chunk has been read.
    Open,
    End,
    /// The shared budget has no room for the next chunk. The body cannot be read further.
    NoRoom,
}

/// A body that was read, with its share of the budget.
#[derive(Debug)]
pub(super) struct ReadBody {
    pub(super) bytes: Vec<u8>,
    _budget: Option<OwnedSemaphorePermit>,
}

/// Reader of a whole body.
///
/// A read does not wait for the shared budget: waiting while holding a part of it would let bodies
/// deadlock.
#[derive(Debug)]
pub(super) struct BodyReader {
    body: Body,
    bytes: Vec<u8>,
    budget: usize,
    shared: Option<BodyBudget>,
    taken: Option<OwnedSemaphorePermit>,
}

impl BodyReader {
    pub(super) fn new(body: Body, budget: usize) -> Self {
        Self { body, bytes: Vec::new(), budget, shared: None, taken: None }
    }

    /// Counts the bytes against the shared budget, of which a part may be taken already.
    pub(super) fn within(
        mut self,
        shared: &BodyBudget,
        taken: Option<OwnedSemaphorePermit>,
    ) -> Self {
        self.budget = self.budget.min(shared.bytes);
        self.shared = Some(shared.clone());
        self.taken = taken;
        self
    }

    /// Takes a part of the shared budget, so that a body of this length has room in it. Returns
    /// false if the budget has none.
    fn reserve(&mut self, length: usize) -> bool {
        let Some(shared) = &self.shared else { return true };
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let count = u32::try_from(length.saturating_sub(taken)).ok();
        let more = count.and_then(|count| shared.free.clone().try_acquire_many_owned(count).ok());
        match (&mut self.taken, more) {
            (_, None) => return false,
            (Some(taken), Some(more)) => taken.merge(more),
            (None, more) => self.taken = more,
        }
        true
    }

    /// Reads one chunk.
    pub(super) async fn more(&mut self) -> Result<BodyState, RequestFailure> {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                let Ok(chunk) = frame.into_data() else { return Ok(BodyState::Open) };
                let length = self.bytes.len() + chunk.len();
                if length > self.budget {
                    let budget = self.budget;
                    return Err(RequestFailure::TooLong { what: "the response", budget });
                }
                if !self.reserve(length) {
                    return Ok(BodyState::NoRoom);
                }
                self.bytes.extend_from_slice(&chunk);
                Ok(BodyState::Open)
            }
            Some(Err(error)) => Err(RequestFailure::Transport(error_text(&error))),
            None => Ok(BodyState::End),
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the body; the part of the shared budget that it does not need is released.
    pub(super) fn into_body(mut self) -> ReadBody {
        if let Some(taken) = &mut self.taken {
            let spare = taken.num_permits().saturating_sub(self.bytes.len());
            drop(taken.split(spare));
        }
        ReadBody { bytes: self.bytes, _budget: self.taken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::informer::script::body;

    const BUDGET: usize = 1024;

    async fn lines(chunks: &[&[u8]], budget: usize) -> (Vec<String>, Option<RequestFailure>) {
        let mut reader = LineReader::new(body(chunks).await, budget);
        let mut lines = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(line)) => lines.push(String::from_utf8(line.to_vec()).unwrap()),
                Ok(None) => return (lines, None),
                Err(failure) => return (lines, Some(failure)),
            }
        }
    }

    #[tokio::test]
    async fn a_line_may_be_cut_anywhere() {
        let text = "{\"a\":\"é\"}\n\n{\"b\":2}\r\n{\"c\":3}\n".as_bytes();

        for first in 0..=text.len() {
            for second in first..=text.len() {
                let chunks = [&text[..first], &text[first..second], &text[second..]];
                let (lines, failure) = lines(&chunks, BUDGET).await;

                assert_eq!(lines, ["{\"a\":\"é\"}", "{\"b\":2}\r", "{\"c\":3}"]);
                assert_eq!(failure, None);
            }
        }
    }

    #[tokio::test]
    async fn half_a_line_at_the_end_is_left_out() {
        let text = b"{\"a\":1}\n{\"b\":2}";

        for end in 8..text.len() {
            let (lines, failure) = lines(&[&text[..end]], BUDGET).await;

            assert_eq!((lines.as_slice(), failure), (&["{\"a\":1}".to_owned()][..], None));
        }
    }

    #[tokio::test]
    async fn a_line_over_budget_fails_before_it_ends() {
        let (read, failure) = lines(&[b"short\n", b"12345", b"6789", b"0"], 8).await;

        assert_eq!(read, ["short"]);
        assert_eq!(failure, Some(RequestFailure::TooLong { what: "a watch event", budget: 8 }));
        assert_eq!(lines(&[b"12345678\n"], 8).await.1, None);
        assert!(lines(&[b"123456789\n"], 8).await.1.is_some());
    }

    #[test]
    fn an_idle_reader_keeps_no_buffer() {
        let mut lines = Lines::new(1 << 20);
        lines.push(&[b'x'; 100_000]);
        lines.push(b"\n");

        assert!(lines.next().unwrap().is_some());

        assert_eq!(lines.buffer.capacity(), 0);
    }

    #[tokio::test]
    async fn a_body_over_budget_fails() {
        let mut reader = BodyReader::new(body(&[b"1234", b"5678", b"9"]).await, 8);

        assert_eq!(reader.more().await, Ok(BodyState::Open));
        assert_eq!(reader.more().await, Ok(BodyState::Open));
        assert_eq!(
            reader.more().await,
            Err(RequestFailure::TooLong { what: "the response", budget: 8 }),
        );
        assert_eq!(reader.into_bytes(), b"12345678");
    }

    #[tokio::test]
    async fn bodies_share_their_room_and_give_it_back() {
        let budget = BodyBudget::new(8);
        let reader = async |chunks: &[&[u8]]| {
            BodyReader::new(body(chunks).await, BUDGET).within(&budget, None)
        };
        let mut first = reader(&[b"12345"]).await;
        assert_eq!(first.more().await, Ok(BodyState::Open));
        let page = first.into_body();

        let mut second = reader(&[b"123", b"4"]).await;
        assert_eq!(second.more().await, Ok(BodyState::Open));
        assert_eq!(second.more().await, Ok(BodyState::NoRoom));

        drop((page, second));
        let mut third = reader(&[b"12345678"]).await;
        assert_eq!(third.more().await, Ok(BodyState::Open));
        assert!(matches!(
            reader(&[b"123456789"]).await.more().await,
            Err(RequestFailure::TooLong { budget: 8, .. })
        ));
    }

    #[tokio::test]
    async fn body_with_room_of_its_own_releases_what_it_does_not_need() {
        let budget = BodyBudget::new(8);
        let room = budget.room(BUDGET).await;

        let mut reader = BodyReader::new(body(&[b"123"]).await, BUDGET).within(&budget, room);
        assert_eq!(reader.more().await, Ok(BodyState::Open));
        assert_eq!(budget.free.available_permits(), 0);
        let page = reader.into_body();

        assert_eq!(budget.free.available_permits(), 5);
        drop(page);
        assert_eq!(budget.free.available_permits(), 8);
    }
}
