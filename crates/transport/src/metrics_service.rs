//! Middleware that counts requests and their duration.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::{TransportMetrics, body::ResponseBody};

/// Middleware that counts requests and their duration.
#[derive(Clone, Debug)]
pub(super) struct MetricsService<S> {
    inner: S,
    metrics: TransportMetrics,
    host: Arc<str>,
}

impl<S> MetricsService<S> {
    pub(super) fn new(inner: S, metrics: TransportMetrics, host: &str) -> Self {
        Self { inner, metrics, host: host.into() }
    }
}

impl<S, B> Service<Request<B>> for MetricsService<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().clone();
        let (metrics, host) = (self.metrics.clone(), self.host.clone());
        let began = Instant::now();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            let status = response.as_ref().ok().map(Response::status);
            metrics.observe(method, host, status, began.elapsed());
            response
        })
    }
}
