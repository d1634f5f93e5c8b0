//! Sender of an epoch's requests, behind its fence.
//!
//! A client of kube's passes each request to a task through a channel, which costs two more wakes
//! and 10 KiB. The sender has neither.

use futures::FutureExt;
use http::{Request, Response};
use kube::{Client, client::Body};
use tower::service_fn;
use tracing::debug;

use super::{
    BoxError, Fence, WriteEnd, WriteObserver, WriteRequest,
    exchange::{Exchange, FencedResponse},
    refusal,
    time_limit::TimeLimit,
};

/// Sends requests through a fence, and reports writes to an observer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FencedSender {
    fence: Fence,
    // Client that bypasses the fence.
    unfenced: Client,
    observer: WriteObserver,
}

impl FencedSender {
    /// Creates a sender over a client, behind `fence`. See [`Fence::observed_client`].
    pub(crate) fn new(fence: &Fence, unfenced: &Client, observer: WriteObserver) -> Self {
        Self { fence: fence.clone(), unfenced: unfenced.clone(), observer }
    }

    /// Returns a client of kube's that sends through the fence.
    pub(crate) fn client(&self) -> Client {
        let sender = self.clone();
        // kube offers no handle on its task. The task owns the service, and with it this token,
        // until its end.
        let token = self.fence.clients().token();
        let service = service_fn(move |request: Request<Body>| {
            let _owned = &token;
            let sender = sender.clone();
            async move { sender.exchange(request).await }
        });
        Client::new(service, self.unfenced.default_namespace())
    }

    /// Sends a request; its errors are those of [`Client::send`].
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<FencedResponse>, kube::Error> {
        self.exchange(request).await.map_err(|error| match error.downcast::<kube::Error>() {
            Ok(error) => *error,
            Err(error) => kube::Error::Service(error),
        })
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<FencedResponse>, BoxError> {
        let write = WriteRequest::of(&request);
        let about_secrets = refusal::is_about_secrets(request.uri().path());
        let mut limit = TimeLimit::default();
        let mut passage = match &write {
            Some(_) => self.fence.pass()?,
            None => self.fence.pass_read()?,
        };
        match write {
            Some(write) => {
                limit = TimeLimit(self.fence.leadership.borrow().write_timeout());
                let (method, path) = (write.method().clone(), write.path().to_owned());
                let on_end = (self.observer)(write);
                passage.on_end = Some(Box::new(move |end| {
                    if end == WriteEnd::Unknown {
                        debug!(%method, path, "outcome of a write is unknown");
                    }
                    on_end(end);
                }));
            }
            // A read or a dry run changes nothing, so its outcome is always known.
            None => passage.answered = true,
        }
        // The fence owns the future, and drops it when it closes.
        let unfenced = self.unfenced.clone();
        let send = async move {
            let response = limit.send(&unfenced, request).await?;
            let response = refusal::with_retry_after(response).await;
            Ok(match about_secrets {
                true => refusal::without_message(response).await,
                false => response,
            })
        };
        Exchange::new(passage, send.boxed()).await
    }
}
