//! Once an epoch is done, nothing is sent and no request is left.

use std::task::{Context, Poll};

use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_passes_the_fence_of_an_epoch_that_is_done() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty())) }
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let client = epoch.client(&kube::Client::new(service, "default"));
    let request = || http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
    client.send(request()).await.unwrap();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    let refused = client.send(request()).await.unwrap_err();
    assert!(refused.to_string().contains("the epoch is over"), "{refused}");
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    assert_eq!(epoch.fence().under_way(), 0);
}

#[test]
fn a_request_whose_caller_is_gone_is_counted_as_unknown() {
    let fence = Fence::new();

    fence.pass().unwrap().answered();
    drop(fence.pass().unwrap());

    assert_eq!((fence.under_way(), fence.unknown()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_an_epochs_clients_have_ended_when_it_is_done() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let client = kube::Client::new(service, "default");
    let alive = || Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));

    let (inside, outside) = (epoch.clone(), client.clone());
    let work = async move {
        for _ in 0..3 {
            let client = inside.client(&outside);
            let request = http::Request::get("/version").body(kube::client::Body::empty()).unwrap();
            client.send(request).await.unwrap();
        }
        Ok(())
    };
    run::drive(epoch.clone(), Box::pin(work), run::Overrun::Dropped).await;

    assert_eq!(alive(), before);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_kept_beyond_the_run_delays_done_by_no_more_than_a_moment() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let kept = epoch.client(&kube::Client::new(service, "default"));
    let begin = tokio::time::Instant::now();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    assert!(begin.elapsed() < Duration::from_millis(200));
    drop(kept);
}

/// Place in which a request waits until the test opens the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// In kube's buffer, for a service that is not ready.
    InTheBuffer,
    ForAConnection,
}

/// Server that accepts requests only once the test opens it, and counts them.
#[derive(Clone)]
struct Closed {
    waits: Waits,
    open: tokio_util::sync::PollSemaphore,
    sent: Arc<AtomicUsize>,
}

impl Closed {
    fn new(waits: Waits) -> Self {
        let open = tokio_util::sync::PollSemaphore::new(Arc::new(tokio::sync::Semaphore::new(0)));
        Self { waits, open, sent: Arc::default() }
    }

    fn open(&self) {
        self.open.clone_inner().add_permits(10);
    }
}

impl tower::Service<http::Request<kube::client::Body>> for Closed {
    type Response = http::Response<kube::client::Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.waits == Waits::InTheBuffer {
            drop(std::task::ready!(self.open.poll_acquire(context)));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<kube::client::Body>) -> Self::Future {
        let Self { waits, open, sent } = self.clone();
        Box::pin(async move {
            if waits == Waits::ForAConnection {
                drop(open.clone_inner().acquire().await);
            }
            sent.fetch_add(1, Ordering::SeqCst);
            Ok(http::Response::new(kube::client::Body::empty()))
        })
    }
}

fn post() -> http::Request<kube::client::Body> {
    http::Request::post("/api/v1/namespaces/ns/pods").body(kube::client::Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_request_that_waits_is_handed_to_a_connection_after_done() {
    for waits in [Waits::InTheBuffer, Waits::ForAConnection] {
        let server = Closed::new(waits);
        let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
        let client = epoch.client(&kube::Client::new(server.clone(), "default"));
        // The first request belongs to a task that the epoch does not know, the second to no task:
        // it is not polled again.
        let mut detached = tokio::task::JoinSet::new();
        let escaped = client.clone();
        detached.spawn(async move { escaped.send(post()).await.map(drop) });
        let mut unpolled = Box::pin(client.send(post()));
        for _ in 0..10 {
            assert!(futures::poll!(&mut unpolled).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(epoch.fence().under_way(), 2);

        run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;
        server.open();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }

        assert_eq!(server.sent.load(Ordering::SeqCst), 0, "sent after done: {waits:?}");
        assert_eq!((epoch.fence().under_way(), epoch.fence().unknown()), (0, 2));
        let error = detached.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains("the epoch is over"), "{error}");
        assert!(unpolled.await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_grace_of_a_stop_that_is_under_way() {
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    epoch.spawn(std::future::pending());
    let inside = epoch.clone();
    let run = Box::pin(async move {
        inside.stopping().await;
        Ok(())
    });
    let begin = tokio::time::Instant::now();
    epoch.stop(StopReason::Superseded);
    let mut driven = tokio_test(run::drive(epoch.clone(), run, run::Overrun::Dropped));
    assert!(futures::poll!(&mut driven).is_pending());

    epoch.stop(StopReason::LeaseLost);
    driven.await;

    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(epoch.stop_reason(), Some(StopReason::Superseded), "the first reason counts");
}

#[tokio::test(start_paused = true)]
async fn the_body_of_a_read_is_cut_when_its_epoch_is_done() {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let endless =
            futures::stream::pending::<Result<http_body::Frame<bytes::Bytes>, BoxError>>();
        let body = http_body_util::StreamBody::new(endless);
        Ok::<_, BoxError>(http::Response::new(body))
    });
    let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
    let client = epoch.client(&kube::Client::new(service, "default"));
    let watch = http::Request::get("/api/v1/pods?watch=1").body(kube::client::Body::empty());
    let mut body = client.send(watch.unwrap()).await.unwrap().into_body();
    let mut frame = tokio_test(http_body_util::BodyExt::frame(&mut body));
    assert!(futures::poll!(&mut frame).is_pending());
    let begin = tokio::time::Instant::now();

    run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

    assert!(begin.elapsed() < Duration::from_secs(1), "a watch is no reason to wait");
    let frame = futures::FutureExt::now_or_never(frame).expect("it is cut");
    let error = frame.unwrap().unwrap_err().to_string();
    assert!(error.contains("the epoch is over"), "{error}");
    assert_eq!(epoch.fence().unknown(), 0, "nothing becomes of a read");
}

fn tokio_test<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
    Box::pin(future)
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_epoch_may_write_until_the_grace_is_over() {
    for (after, expected) in [(4, true), (6, false)] {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, BoxError>(http::Response::new(kube::client::Body::empty()))
        });
        let epoch = Epoch::new("widgets", 1, Duration::from_secs(5));
        let client = epoch.client(&kube::Client::new(service, "default"));
        let (done, written) = tokio::sync::oneshot::channel();
        epoch.spawn(async move {
            tokio::time::sleep(Duration::from_secs(after)).await;
            done.send(client.send(post()).await.is_ok()).ok();
        });
        let begin = tokio::time::Instant::now();

        run::drive(epoch.clone(), Box::pin(async { Ok(()) }), run::Overrun::Dropped).await;

        assert_eq!(begin.elapsed().as_secs(), after.min(5));
        assert_eq!(written.await.unwrap_or(false), expected, "after {after} s");
    }
}
