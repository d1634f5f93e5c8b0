use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::client::Body;
use tower::service_fn;

use super::*;

/// Reaction of a server to a request.
#[derive(Clone, Copy, Debug)]
enum ServerReaction {
    Nothing,
    Reset,
    Answers(u16),
    /// Sends status 200 and half a body.
    BreaksOff,
}

fn server(reaction: ServerReaction) -> Client {
    let service = service_fn(move |_request: Request<Body>| -> BoxFuture<'static, _> {
        let mut frames = vec![Ok(Frame::data("half a".into()))];
        let code = match reaction {
            ServerReaction::Nothing => return std::future::pending().boxed(),
            ServerReaction::Reset => {
                let error = io::Error::from(io::ErrorKind::ConnectionReset);
                return std::future::ready(Err(error)).boxed();
            }
            ServerReaction::Answers(code) => code,
            ServerReaction::BreaksOff => {
                frames.push(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
                200
            }
        };
        let body = StreamBody::new(stream::iter(frames));
        let response = Response::builder().status(code).body(body).unwrap();
        std::future::ready(Ok(response)).boxed()
    });
    Client::new(service, "default")
}

/// Sends one request by a client and one directly, reads the response as far as it arrives and
/// drops it. Checks the number of unknown outcomes by then, and of calls of the observer.
async fn check(method: Method, reaction: ServerReaction, expected: (usize, usize)) {
    for is_direct in [false, true] {
        let fence = Fence::new();
        let reported = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reported);
        let observer: WriteObserver = Arc::new(move |write| {
            assert_eq!(write.path(), "/api/v1/namespaces/ns/pods");
            let count = Arc::clone(&count);
            Box::new(move |end| {
                if end == WriteEnd::Unknown {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        let sender = FencedSender::new(&fence, &server(reaction), observer);
        let client = sender.client();
        let path = "/api/v1/namespaces/ns/pods?dryRun=no";
        let request = Request::builder().method(method.clone()).uri(path).body(Body::empty());
        let request = request.unwrap();

        let response = async {
            match is_direct {
                true => drop(sender.send(request).await?.into_body().collect().await),
                false => drop(client.send(request).await?.into_body().collect().await),
            }
            Ok::<_, kube::Error>(())
        };
        let mut response = Box::pin(response);
        for _ in 0..10 {
            tokio::task::yield_now().await;
            if futures::poll!(&mut response).is_ready() {
                break;
            }
        }
        drop(response);

        let seen = (fence.unknown(), reported.load(Ordering::SeqCst));
        assert_eq!(seen, expected, "{method} {reaction:?}, direct: {is_direct}");
        assert_eq!(fence.under_way(), 0);
    }
}

#[tokio::test]
async fn request_without_a_client_ends_when_the_fence_closes() {
    let fence = Fence::new();
    let sender = FencedSender::new(&fence, &server(ServerReaction::Nothing), Fence::unobserved());
    let delete = || Request::delete("/api/v1/namespaces/ns/pods/a").body(Body::empty()).unwrap();
    let mut under_way = Box::pin(sender.send(delete()));
    assert!(futures::poll!(&mut under_way).is_pending());

    fence.close();

    for end in [under_way.await, sender.send(delete()).await] {
        let error = end.map(drop).unwrap_err();
        let kube::Error::Service(error) = error else { panic!("{error}") };
        assert!(error.is::<FenceClosed>(), "{error}");
    }
    assert_eq!(fence.unknown(), 1);
    assert_eq!(fence.clients().len(), 0);
}

#[tokio::test]
async fn outcome_of_a_write_is_unknown_unless_it_was_answered_to_the_end() {
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        for reaction in [ServerReaction::Nothing, ServerReaction::Reset, ServerReaction::BreaksOff]
        {
            check(method.clone(), reaction, (1, 1)).await;
        }
        for (code, expected) in [
            (200, (0, 0)),
            (409, (0, 0)),
            (429, (0, 0)),
            (500, (0, 1)),
            // Sent by a filter that shed the request, but also by a gateway that has forwarded it.
            (503, (0, 1)),
            (502, (1, 1)),
            (504, (1, 1)),
        ] {
            check(method.clone(), ServerReaction::Answers(code), expected).await;
        }
    }
}

/// Sends a request, and returns the ends that the observer gets.
async fn ends(request: http::request::Builder, sent: &str, frames: Vec<Bytes>) -> Vec<WriteEnd> {
    let service = service_fn(move |_request: Request<Body>| {
        let frames = frames.clone().into_iter().map(|data| io::Result::Ok(Frame::data(data)));
        let body = StreamBody::new(stream::iter(frames));
        std::future::ready(Ok::<_, io::Error>(Response::new(body)))
    });
    let (sender, ends) = std::sync::mpsc::channel();
    let observer: WriteObserver = Arc::new(move |_write| {
        let sender = sender.clone();
        Box::new(move |end| sender.send(end).unwrap())
    });
    let client = Fence::new().observed_client(&Client::new(service, "default"), observer);
    let request = request.body(Body::from(sent.as_bytes().to_vec())).unwrap();
    client.send(request).await.unwrap().into_body().collect().await.unwrap();
    ends.try_iter().collect()
}

#[tokio::test]
async fn observer_gets_the_whole_response_to_a_write_unless_it_is_too_long() {
    let path = "/api/v1/namespaces/ns/pods";
    let answered = |body: &str| [WriteEnd::Answered(Bytes::from(body.to_owned()))];

    assert_eq!(ends(Request::post(path), "", vec!["{}".into()]).await, answered("{}"));
    assert_eq!(
        ends(Request::put(path), "", vec!["{".into(), "".into(), "}".into()]).await,
        answered("{}")
    );
    assert_eq!(ends(Request::delete(path), "", vec![]).await, answered(""));
    let long = Bytes::from(vec![b' '; 700_000]);
    assert_eq!(ends(Request::post(path), "", vec![long.clone(), long]).await, answered(""));
}

#[tokio::test]
async fn dry_run_is_no_write() {
    let path = "/api/v1/namespaces/ns/pods/a?fieldManager=x&dryRun=All";
    for request in [Request::post(path), Request::put(path), Request::delete(path)] {
        assert_eq!(ends(request, "", vec!["{}".into()]).await, []);
    }
    let delete = || Request::delete("/api/v1/namespaces/ns/pods/a");
    let options = serde_json::json!({ "dryRun": ["All"] }).to_string();
    assert_eq!(ends(delete(), &options, vec!["{}".into()]).await, []);
    assert_eq!(ends(delete(), "{}", vec!["{}".into()]).await.len(), 1);
}

#[tokio::test]
async fn nothing_becomes_of_a_read() {
    for method in [Method::GET, Method::HEAD] {
        for reaction in [
            ServerReaction::Nothing,
            ServerReaction::Reset,
            ServerReaction::BreaksOff,
            ServerReaction::Answers(504),
        ] {
            check(method.clone(), reaction, (0, 0)).await;
        }
    }
}

#[tokio::test]
async fn write_is_under_way_until_its_response_has_been_read() {
    let fence = Fence::new();
    let client = fence.client(&server(ServerReaction::Answers(201)));

    let request = Request::post("/api/v1/namespaces/ns/pods").body(Body::empty()).unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(fence.under_way(), 1);
    drop(response.into_body().collect().await.unwrap());

    assert_eq!((fence.under_way(), fence.unknown()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_thread_polls_at_the_close_is_waited_for_and_then_dropped() {
    /// Value that a request holds; counts when it is dropped.
    struct Held(Arc<AtomicUsize>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let (blocked, dropped) = (Arc::new(std::sync::Mutex::new(blocked)), Arc::default());
    let held = Arc::clone(&dropped);
    let service = service_fn(move |_request: Request<Body>| {
        let (blocked, entered) = (Arc::clone(&blocked), entered.clone());
        let held = Held(Arc::clone(&held));
        async move {
            let _held = held;
            entered.send(()).ok();
            blocked.lock().unwrap().recv().ok();
            std::future::pending::<Result<Response<Body>, io::Error>>().await
        }
    });
    let fence = Fence::new();
    let client = fence.client(&Client::new(service, "default"));
    let mut callers = tokio::task::JoinSet::new();
    let request = Request::post("/api/v1/namespaces/ns/pods").body(Body::empty()).unwrap();
    callers.spawn(async move { client.send(request).await.map(drop) });
    inside.recv().await;

    fence.close();
    let mut released = Box::pin(fence.released());
    assert!(futures::poll!(&mut released).is_pending());
    unblock.send(()).unwrap();
    released.await;

    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!((fence.under_way(), fence.unknown()), (0, 1));
    assert!(callers.join_next().await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn a_request_that_panics_when_it_is_dropped_affects_no_other() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("boom")
        }
    }
    let service = service_fn(move |_request: Request<Body>| async move {
        let _panics = PanicsOnDrop;
        std::future::pending::<Result<Response<Body>, io::Error>>().await
    });
    let fence = Fence::new();
    let client = fence.client(&Client::new(service, "default"));
    let request = || Request::get("/version").body(Body::empty()).unwrap();
    let mut sent: Vec<_> = (0..3).map(|_| Box::pin(client.send(request()))).collect();
    for _ in 0..10 {
        for sent in &mut sent {
            assert!(futures::poll!(sent).is_pending());
        }
        tokio::task::yield_now().await;
    }

    // Dropped by its caller, as by a timeout.
    drop(sent.pop());
    fence.close();

    fence.released().await;
    for sent in sent {
        assert!(sent.await.is_err());
    }
}

#[tokio::test]
async fn a_body_that_was_read_to_its_end_stays_ended_when_the_fence_closes() {
    let service = service_fn(|_request: Request<Body>| async {
        Ok::<_, io::Error>(Response::new(Body::from(b"whole".to_vec())))
    });
    let fence = Fence::new();
    let client = fence.client(&Client::new(service, "default"));
    let request = Request::post("/api/v1/namespaces/ns/pods").body(Body::empty()).unwrap();
    let mut body = client.send(request).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();

    fence.close();

    assert!(body.frame().await.is_none(), "the whole answer was read");
    assert_eq!(fence.unknown(), 0);
}
