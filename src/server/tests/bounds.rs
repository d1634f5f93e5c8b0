//! Bounds of the connections: their number, their bytes and their time.

use super::{
    super::connections::{HEADER_TIMEOUT, MAX_CONNECTIONS, MAX_HEADER_BYTES, REQUEST_TIMEOUT},
    *,
};

/// Runs a server with these pages until the requests to its address end.
async fn with_pages<T>(pages: Router, requests: impl AsyncFnOnce(SocketAddr) -> T) -> T {
    let manager = Manager::new(ManagerOptions::default());
    let (server, address) = bind(probes(&manager.handle()).merge(pages));
    run(manager, server, requests(address)).await
}

/// Opens a connection and sends these bytes.
async fn begin(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until the server closes the connection. Returns the read bytes, and the time.
async fn read_to_end(stream: &mut TcpStream) -> (String, Duration) {
    let (begun, mut bytes) = (tokio::time::Instant::now(), Vec::new());
    // A connection with unread bytes is reset.
    drop(stream.read_to_end(&mut bytes).await);
    (String::from_utf8(bytes).unwrap(), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_complete_header_is_closed_after_five_seconds() {
    for sent in [&b""[..], b"GET /healthz HTTP/1.1\r\nHost: test\r\n"] {
        let (_, taken) = with_pages(Router::new(), async |address| {
            read_to_end(&mut begin(address, sent).await).await
        })
        .await;

        assert!((HEADER_TIMEOUT..HEADER_TIMEOUT * 2).contains(&taken), "{taken:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_reused_and_closed_after_five_seconds() {
    let request = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n";

    let (text, taken) = with_pages(Router::new(), async |address| {
        let mut stream = begin(address, request).await;
        stream.read_exact(&mut [0; 12]).await.unwrap();
        stream.write_all(request).await.unwrap();
        read_to_end(&mut stream).await
    })
    .await;

    assert_eq!(text.matches("\r\nok").count(), 2, "{text}");
    assert!((HEADER_TIMEOUT..HEADER_TIMEOUT * 2).contains(&taken), "{taken:?}");
}

#[tokio::test]
async fn header_beyond_sixteen_kib_is_refused() {
    let mut request = b"GET /healthz HTTP/1.1\r\nHost: test\r\nA: ".to_vec();
    request.resize(2 * MAX_HEADER_BYTES, b'a');

    let (text, taken) = with_pages(Router::new(), async |address| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close the connection before it has read everything.
        drop(stream.write_all(&request).await);
        read_to_end(&mut stream).await
    })
    .await;

    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    assert!(taken < HEADER_TIMEOUT / 2, "closed for its length, not for its time: {taken:?}");
}

#[tokio::test]
async fn one_more_connection_closes_the_oldest_and_probes_are_answered() {
    let (answers, oldest) = with_pages(Router::new(), async |address| {
        let mut idle = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..3 * MAX_CONNECTIONS {
            idle.push(begin(address, b"GET /").await);
            if idle.len() % 16 == 0 {
                answers.push(send(address, "GET /healthz").await);
            }
        }
        let oldest = tokio::time::timeout(HEADER_TIMEOUT / 2, read_to_end(&mut idle[0])).await;
        (answers, oldest)
    })
    .await;

    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 OK")), "{answers:?}");
    assert!(oldest.is_ok(), "closed before its time is over");
}

#[tokio::test(start_paused = true)]
async fn late_page_is_an_error_before_the_deadline_of_its_request() {
    let pages = Router::new().route("/never", get(std::future::pending::<()>));

    let (text, taken) = with_pages(pages, async |address| {
        read_to_end(&mut begin(address, b"GET /never HTTP/1.1\r\nHost: test\r\n\r\n").await).await
    })
    .await;

    assert!(text.starts_with("HTTP/1.1 503") && text.contains("longer than"), "{text}");
    assert!(taken <= REQUEST_TIMEOUT, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn reader_that_reads_nothing_is_closed_at_the_deadline_of_its_request() {
    const PAGE_BYTES: usize = 64 * 1024 * 1024;
    let pages = Router::new().route("/long", get(async || "a".repeat(PAGE_BYTES)));

    let (text, _) = with_pages(pages, async |address| {
        let mut stream = begin(address, b"GET /long HTTP/1.1\r\nHost: test\r\n\r\n").await;
        tokio::time::sleep(REQUEST_TIMEOUT * 2).await;
        read_to_end(&mut stream).await
    })
    .await;

    assert!(text.len() < PAGE_BYTES, "{}", text.len());
}

#[test]
fn texts_of_scrapes_that_are_not_read_are_shared() {
    let source = MetricsSource::from(Registry::default());
    let texts = SentTexts::default();
    let next = || texts.next(&source).unwrap();

    let mut unread: Vec<_> = (0..MAX_TEXTS).map(|_| next()).collect();
    let newest = unread.last().unwrap();
    assert!(unread[..MAX_TEXTS - 1].iter().all(|text| !Arc::ptr_eq(text, newest)));
    assert!(Arc::ptr_eq(&next(), newest));

    drop(unread.remove(0));
    assert!(unread.iter().all(|text| !Arc::ptr_eq(text, &next())), "a text was read");
}
