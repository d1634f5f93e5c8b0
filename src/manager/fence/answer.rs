//! The answer to a request that has passed the fence.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use kube::client::Body;

use super::Passage;

/// The body of an answer. That of a write stays under way until it has been read.
pub(super) struct Answer {
    body: Body,
    passage: Option<Passage>,
}

impl Answer {
    pub(super) fn to(passage: Passage, response: Response<Body>) -> Response<Self> {
        let status = response.status();
        // What a write came to shows only in its answer, unless nothing came of it.
        let open = passage.told.is_some() && status.is_success();
        let open = open && !http_body::Body::is_end_stream(response.body());
        let passage = match status {
            _ if open => Some(passage),
            // The server itself was not asked to the end.
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
                drop(passage);
                None
            }
            _ if status.is_server_error() => {
                passage.answered_vaguely();
                None
            }
            _ => {
                passage.answered();
                None
            }
        };
        response.map(|body| Self { body, passage })
    }

    fn end(&mut self) {
        if let Some(passage) = self.passage.take() {
            passage.answered();
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = kube::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, kube::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(_)) if !self.body.is_end_stream() => {}
            Some(Ok(_)) | None => self.end(),
            // Cut off: dropped without an answer.
            Some(Err(_)) => drop(self.passage.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
