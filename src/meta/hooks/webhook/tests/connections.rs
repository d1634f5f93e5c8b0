//! Tests of kept connections, and of the bytes on them.

use super::*;

/// Hook whose connections stay open. While it has moved, it reads requests on the old ones and
/// answers on new ones alone.
struct MovingHook {
    url: Uri,
    /// Number of connections that were accepted before the hook moved.
    moved_at: watch::Sender<usize>,
    accepted: watch::Receiver<usize>,
    _tasks: JoinSet<()>,
}

impl MovingHook {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap()).parse().unwrap();
        let (count, accepted) = watch::channel(0);
        let (moved_at, moved) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (number, moved) = (*count.borrow(), moved.clone());
                count.send_replace(number + 1);
                serving.spawn(async move {
                    let mut request = Vec::new();
                    while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
                        if request.ends_with(b"{}") && number >= *moved.borrow() {
                            request.clear();
                            stream.write_all(response("200 OK", "{}").as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        Self { url, moved_at, accepted, _tasks: tasks }
    }

    fn moves(&self) {
        self.moved_at.send_replace(*self.accepted.borrow());
    }
}

#[tokio::test]
async fn hook_that_has_moved_costs_one_timeout_and_then_a_new_connection() {
    const CALLS: usize = 4;
    let server = MovingHook::start().await;
    let hook = Webhook::new(server.url.clone(), Duration::from_millis(500));
    let call = || hook.call(Bytes::from_static(b"{}"));
    let together = futures::future::join_all((0..CALLS).map(|_| call())).await;
    assert!(together.iter().all(Result::is_ok), "{together:?}");
    server.moves();

    let lost = call().await;
    let mut later = Vec::new();
    for _ in 0..CALLS {
        later.push(call().await);
    }

    assert_eq!(lost, Err(HookError::Timeout(Duration::from_millis(500))));
    assert!(later.iter().all(Result::is_ok), "{later:?}");
    hook.release().await;
}

#[tokio::test]
async fn call_that_fails_drops_the_idle_connections_of_its_hook() {
    let (url, _server, mut connections) = keep_alive_server().await;
    let hook = Webhook::new(url, Duration::from_secs(5));
    let call = |body: &'static [u8]| hook.call(Bytes::from_static(body));
    let both = futures::join!(call(b"{}"), call(b"{}"));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    let generation = hook.client().unwrap().generation;

    hook.drop_idle(generation);
    // A second call of the same connections was lost, too.
    hook.drop_idle(generation);

    let closed = connections.wait_for(|(accepted, closed)| accepted == closed);
    timeout(Duration::from_secs(10), closed).await.expect("all are closed").unwrap();
    let accepted = connections.borrow().0;
    call(b"{}").await.unwrap();
    assert_eq!(connections.borrow().0, accepted + 1);
    assert_eq!(hook.client().unwrap().generation, generation + 1);
    hook.release().await;
}

#[tokio::test]
async fn request_has_the_headers_of_metacontroller_in_their_case_and_no_others() {
    let mut server = server(response("200 OK", "{}"), false).await;
    let port = server.url.port_u16().unwrap();
    let hook = Webhook::new(server.url.clone(), Duration::from_secs(5));

    hook.call(Bytes::from_static(b"{}")).await.unwrap();

    let request = server.tasks.join_next().await.unwrap().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut lines: Vec<_> = head.split("\r\n").collect();
    let agent = lines.iter().position(|line| line.starts_with("User-Agent: ")).unwrap();
    lines.remove(agent);
    let host = format!("Host: 127.0.0.1:{port}");
    let expected =
        ["POST /sync HTTP/1.1", &host, "Content-Type: application/json", "Content-Length: 2"];
    lines[1..].sort_unstable();
    let mut expected = expected;
    expected[1..].sort_unstable();
    assert_eq!(lines, expected);
    assert_eq!(body, "{}");
}

#[test]
fn default_port_that_a_url_names_is_part_of_its_host() {
    for (url, expected) in [
        ("http://hooks.dev:80/sync", "hooks.dev:80"),
        ("http://hooks.dev/sync", "hooks.dev"),
        ("http://hooks.dev:/sync", "hooks.dev"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ] {
        let hook = Webhook::new(url.parse().unwrap(), Duration::from_secs(5)).service(true);
        let request = hook.request(&hook.url, None, None, Bytes::new()).unwrap();
        assert_eq!(request.headers()[header::HOST], expected);
        assert_eq!(request.uri(), &url.parse::<Uri>().unwrap());
    }
}

#[tokio::test]
async fn header_beyond_64_kib_is_an_error_that_says_so() {
    for bytes in [60 * 1024, 70 * 1024] {
        let answer = response(&format!("200 OK\r\nA: {}", "a".repeat(bytes)), "{}");

        let answer = answer_of(answer).await;

        let expected = "the header of its response is longer than 64 KiB or 100 fields";
        match answer {
            Ok(_) => assert!(bytes < 64 * 1024, "{bytes}"),
            Err(error) => {
                assert!(bytes > 64 * 1024, "{bytes} {error}");
                assert_eq!(error, HookError::Transport(expected.to_owned()));
            }
        }
    }
}
