//! Tests of single calls.

mod certificates;
mod connections;
mod http2;
mod proxy;
mod redirects;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use super::{body::EXCERPT_BYTES, connections::IDLE_TIMEOUT, *};
use crate::{
    meta::hooks::budget::{ResponseLimits, UNRESERVED_BYTES},
    transport::{Transport, TransportOptions},
};

/// Server that sends these bytes to its first request, then closes.
struct Server {
    url: Uri,
    tasks: JoinSet<String>,
}

async fn server(answer: impl Into<Vec<u8>>, linger: bool) -> Server {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sync", listener.local_addr().unwrap()).parse().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"{}") {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            if read == 0 {
                break;
            }
            request.extend_from_slice(&buffer[..read]);
        }
        // The client may close the connection before it has read everything.
        drop(stream.write_all(&answer).await);
        if linger {
            std::future::pending::<()>().await;
        }
        drop(stream.shutdown().await);
        String::from_utf8(request).unwrap()
    });
    Server { url, tasks }
}

async fn answer_of(answer: impl Into<Vec<u8>>) -> Result<Bytes, HookError> {
    let server = server(answer, false).await;
    let limits = ResponseLimits { response: 1000, ..ResponseLimits::default() };
    Webhook::new(server.url.clone(), Duration::from_secs(5))
        .budget(ResponseBudget::new(limits).controller(""))
        .call(Bytes::from_static(b"{}"))
        .await
}

fn response(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn status_200_is_success_and_the_request_is_json() {
    let mut server = server(response("200 OK", "{\"a\":1}"), false).await;
    let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));

    let answer = hook.call(Bytes::from_static(b"{}")).await.unwrap();

    assert_eq!(&answer[..], b"{\"a\":1}");
    let request = server.tasks.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("POST /sync HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nContent-Type: application/json\r\n"), "{request}");
}

#[tokio::test]
async fn lone_surrogate_of_a_response_is_replaced() {
    let server = server(response("200 OK", r#"{"a":"\ud83d"}"#), false).await;
    let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));

    let answer = hook.call(Bytes::from_static(b"{}")).await.unwrap();

    assert_eq!(&answer[..], br#"{"a":"\ufffd"}"#);
}

#[tokio::test]
async fn user_and_password_of_the_url_are_sent_and_not_shown() {
    let mut server = server(response("200 OK", "{}"), false).await;
    let url = server.url.to_string().replace("http://", "http://me:hu%40sh@").parse().unwrap();
    let hook = Webhook::new(url, Duration::from_secs(5));

    hook.call(Bytes::from_static(b"{}")).await.unwrap();

    let request = server.tasks.join_next().await.unwrap().unwrap();
    assert!(request.contains("Authorization: Basic bWU6aHVAc2g=\r\n"), "{request}");
    assert!(!request.contains("hu%40sh") && !format!("{hook:?}").contains("hu%40sh"), "{request}");
}

#[tokio::test]
async fn request_names_the_embedders_product_before_the_library() {
    let sent = async |given: Option<HeaderValue>| {
        let mut server = server(response("200 OK", "{}"), false).await;
        let mut hook = Webhook::new(server.url.clone(), Duration::from_secs(5));
        if let Some(given) = given {
            hook = hook.user_agent(given);
        }
        hook.call(Bytes::from_static(b"{}")).await.unwrap();
        let request = server.tasks.join_next().await.unwrap().unwrap();
        let mut lines = request.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("user-agent"));
        found.unwrap().1.to_owned()
    };
    let options = TransportOptions {
        product: Some("myoperator/1.0".to_owned()),
        ..TransportOptions::default()
    };
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let transport = Transport::new(config, options).unwrap();

    let alone = sent(None).await;
    let with_product = sent(Some(transport.user_agent().clone())).await;

    let (version, rest) = alone.split_once(' ').unwrap();
    assert_eq!(version, concat!("pilotlight/", env!("CARGO_PKG_VERSION")));
    assert!(rest.starts_with('(') && rest.contains('/') && rest.ends_with(')'), "{alone}");
    assert_eq!(with_product, format!("myoperator/1.0 {alone}"));
}

#[tokio::test]
async fn endless_timeout_and_endless_times_of_kept_responses_are_none() {
    let endless = Some(Duration::MAX);
    let rule = EtagRule { lifetime: endless, sweep: endless };
    let server = server(response("200 OK\r\nETag: \"a\"", "{}"), true).await;
    let hook = Webhook::new(server.url.clone(), Duration::MAX).etag(Some(rule));
    let parent = controller::Request::namespaced("ns", "a");

    hook.call_about(&parent, "u", Bytes::from_static(b"{}")).await.unwrap();

    let kept = hook.etags.as_ref().unwrap().get(&parent, "u", Instant::now());
    assert_eq!(&kept.unwrap().body[..], b"{}");
    hook.release().await;
}

#[tokio::test]
async fn no_other_status_is_success() {
    for code in [201, 204, 302, 304, 400, 404, 412, 500, 503] {
        let head = format!("{code} Word\r\nLocation: http://127.0.0.1:1/");
        let body = if matches!(code, 204 | 304) { "" } else { "sorry" };
        let answer = answer_of(response(&head, body)).await;

        // The body may hold data of the request.
        assert_eq!(answer, Err(HookError::Status { code, body: String::new(), proxy: None }));
    }
}

#[tokio::test]
async fn error_quotes_an_excerpt_only_if_it_is_enabled() {
    let body = format!("\u{1b}[31m{}", "x".repeat(5000));
    let server = server(response("500 Word", &body), false).await;
    let hook = Webhook::new(server.url.clone(), Duration::from_secs(5)).error_excerpts(true);

    let answer = hook.call(Bytes::from_static(b"{}")).await;

    let Err(HookError::Status { body, .. }) = answer else { panic!("no status") };
    // The escape sequence is removed, but counts among the bytes that are read.
    assert_eq!(body, "x".repeat(EXCERPT_BYTES - 5));
    let answer = answer_of(response("500 Word", "sorry")).await;
    assert_eq!(answer, Err(HookError::Status { code: 500, body: String::new(), proxy: None }));
}

#[tokio::test]
async fn status_429_is_no_error() {
    let answer = answer_of(response("429 Busy\r\nRetry-After: 7", "")).await;

    assert_eq!(answer, Err(HookError::Busy(Duration::from_secs(7))));
}

#[tokio::test]
async fn a_body_that_is_cut_is_an_error() {
    let answer = answer_of("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"children\":[").await;

    assert!(matches!(answer, Err(HookError::Transport(_))), "{answer:?}");

    let chunked =
        answer_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"chi").await;

    assert!(matches!(chunked, Err(HookError::Transport(_))), "{chunked:?}");
}

#[tokio::test]
async fn a_body_beyond_the_budget_is_refused() {
    let too_large = Err(HookError::TooLarge { limit: 1000 });

    assert_eq!(answer_of(response("200 OK", &"x".repeat(1001))).await, too_large);
    let endless = format!("{}\r\n\r\n{}", "HTTP/1.1 200 OK", "x".repeat(5000));
    assert_eq!(answer_of(endless).await, too_large);
    assert!(answer_of(response("200 OK", &"x".repeat(1000))).await.is_ok());
}

#[tokio::test]
async fn response_without_free_budget_is_not_read_and_names_the_flag() {
    let budget = ResponseBudget::new(ResponseLimits::of_process(4 << 20)).controller("a");
    let long = "x".repeat(UNRESERVED_BYTES + 1);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (answer, bytes) in [
        (response("200 OK", &long), long.len()),
        (format!("{chunked}{:x}\r\n{long}\r\n0\r\n\r\n", long.len()), 1 << 20),
    ] {
        let others = budget.reserve(1 << 20).await.unwrap();
        let waited = Duration::from_millis(50);
        let hook = |url: &Uri, timeout| Webhook::new(url.clone(), timeout).budget(budget.clone());
        let full = server(answer.clone(), true).await;

        let refused = hook(&full.url, waited).call(Bytes::from_static(b"{}")).await;

        let Err(refused) = refused else { panic!("{refused:?}") };
        assert_eq!(refused, HookError::NoBudget { bytes, waited });
        assert!(refused.to_string().contains("--hook-response-budget"), "{refused}");
        let later = server(answer, true).await;
        let hook = hook(&later.url, Duration::from_secs(30));
        let read = hook.call(Bytes::from_static(b"{}"));
        let (read, ()) = futures::join!(read, async { drop(others) });
        assert_eq!(read.unwrap().len(), long.len());
    }
}

#[tokio::test]
async fn response_holds_its_budget_until_it_is_dropped_and_a_short_one_needs_none() {
    let budget = ResponseBudget::new(ResponseLimits::of_process(4 << 20)).controller("a");
    let post = async |bytes: usize| {
        let server = server(response("200 OK", &"x".repeat(bytes)), true).await;
        let hook = Webhook::new(server.url.clone(), Duration::from_secs(30));
        hook.budget(budget.clone()).call(Bytes::from_static(b"{}")).await.unwrap()
    };
    let free = async |bytes| timeout(Duration::ZERO, budget.reserve(bytes)).await.is_ok();

    let short = post(UNRESERVED_BYTES).await;
    assert!(free(1 << 20).await, "{}", short.len());
    let long = post(1 << 19).await;
    assert!(!free((1 << 19) + 1).await);
    assert!(free(1 << 19).await, "it holds what it has become");
    drop(long);
    assert!(free(1 << 20).await);
}

#[tokio::test]
async fn an_encoded_body_is_refused() {
    let answer = answer_of(response("200 OK\r\nContent-Encoding: gzip", "xx")).await;

    assert_eq!(answer, Err(HookError::Encoded("gzip".to_owned())));
}

#[tokio::test]
async fn the_timeout_covers_the_whole_exchange() {
    let slow = Duration::from_millis(50);
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"] {
        let server = server(answer, true).await;
        let hook = Webhook::new(server.url.clone(), slow);

        let answer = hook.call(Bytes::from_static(b"{}")).await;

        assert_eq!(answer, Err(HookError::Timeout(slow)));
    }
}

#[tokio::test]
async fn refused_connection_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);

    let answer = Webhook::new(url, Duration::from_secs(5)).call(Bytes::new()).await;

    let Err(HookError::Transport(message)) = answer else { panic!("{answer:?}") };
    assert!(message.to_lowercase().contains("refused"), "{message}");
}

#[tokio::test]
async fn garbage_instead_of_http_is_an_error() {
    let answer = answer_of("hello\r\n\r\n").await;

    assert!(matches!(answer, Err(HookError::Transport(_))), "{answer:?}");
}

/// Hook that answers every request, with the number of its connections that are open.
async fn keep_alive_server() -> (Uri, JoinSet<()>, watch::Receiver<(usize, usize)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sync", listener.local_addr().unwrap()).parse().unwrap();
    // Connections accepted, and those of them that are closed.
    let (sender, connections) = watch::channel((0, 0));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            sender.send_modify(|(accepted, _)| *accepted += 1);
            let mut request = Vec::new();
            while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
                if request.ends_with(b"{}") {
                    request.clear();
                    stream.write_all(response("200 OK", "{}").as_bytes()).await.unwrap();
                }
            }
            sender.send_modify(|(_, closed)| *closed += 1);
        }
    });
    (url, tasks, connections)
}

#[tokio::test]
async fn connection_is_reused_by_the_next_call_and_closed_when_the_hook_is_idle() {
    let (url, _server, mut connections) = keep_alive_server().await;
    let hook = Webhook::new(url, Duration::from_secs(5));
    for _ in 0..3 {
        hook.call(Bytes::from_static(b"{}")).await.unwrap();
    }
    assert_eq!(*connections.borrow(), (1, 0));

    tokio::time::pause();
    tokio::time::advance(2 * IDLE_TIMEOUT).await;
    tokio::time::resume();
    timeout(Duration::from_secs(10), connections.wait_for(|(_, closed)| *closed == 1))
        .await
        .expect("the idle connection is closed")
        .unwrap();

    hook.call(Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(*connections.borrow(), (2, 1));
    hook.release().await;
}

#[tokio::test]
async fn nothing_is_left_after_release() {
    let server = server(response("200 OK", "{}"), true).await;
    let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));
    hook.call(Bytes::from_static(b"{}")).await.unwrap();
    let tracker = hook.connections.lock().as_ref().unwrap().tasks.tracker.clone();
    assert!(!tracker.is_empty());

    hook.release().await;

    assert!(tracker.is_empty());
}

#[tokio::test]
async fn release_does_not_wait_for_a_handshake_that_is_never_answered() {
    let server = server("", true).await;
    let url = server.url.to_string().replace("http:", "https:").parse().unwrap();
    let hook = Webhook::new(url, Duration::from_secs(30));
    let mut call = hook.call(Bytes::from_static(b"{}"));
    let answer = timeout(Duration::from_millis(50), &mut call).await;
    assert!(answer.is_err(), "{answer:?}");

    let released = timeout(Duration::from_secs(10), hook.release()).await;

    assert!(released.is_ok());
}
