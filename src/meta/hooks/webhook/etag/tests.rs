//! Tests of the ETag cache, and of hooks that use it.

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use super::{super::Webhook, *};
use crate::meta::hooks::{
    Hook,
    budget::{ResponseBudget, ResponseLimits},
    error::HookError,
};

fn key(name: &str) -> Request {
    Request::namespaced("ns", name)
}

fn kept(tag: &str, body: impl Into<Bytes>) -> CachedResponse {
    CachedResponse { tag: HeaderValue::from_str(tag).unwrap(), body: body.into() }
}

/// Share of a controller that may keep this many bytes.
fn budget(bytes: usize) -> ControllerBudget {
    ResponseBudget::new(ResponseLimits::of_process(2 * 4 * bytes)).controller("a")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_response_is_kept_for_its_lifetime_after_it_was_sent() {
    let begin = Instant::now();
    for (lifetime, after, there) in [
        (Some(10), 0, true),
        (Some(10), 9, true),
        (Some(10), 10, false),
        (Some(10), 3600, false),
        (Some(u64::from(i32::MAX.unsigned_abs())), 365 * 24 * 3600, true),
        (None, 365 * 24 * 3600, true),
    ] {
        let mut responses = Responses::new(lifetime.map(seconds), budget(1000));
        responses.put(&key("a"), "u", Some(kept("t", "{}")), begin);

        // A confirmation does not renew the lifetime.
        responses.get(&key("a"), "u", begin + seconds(after) / 2);
        let found = responses.get(&key("a"), "u", begin + seconds(after));

        assert_eq!(found.is_some(), there, "{lifetime:?} {after}");
        assert_eq!(responses.bytes == 0, !there, "{lifetime:?} {after}");
    }
}

#[test]
fn a_response_is_about_one_object_and_not_about_its_name() {
    let mut responses = Responses::new(None, budget(1000));
    let now = Instant::now();
    responses.put(&key("a"), "old", Some(kept("t", "{}")), now);

    assert_eq!(responses.get(&Request::cluster("a"), "old", now), None);
    assert_eq!(responses.get(&key("a"), "new", now), None);
    assert_eq!(responses.get(&key("a"), "old", now), None, "the new uid evicted it");
    assert_eq!(responses.bytes, 0);
}

#[test]
fn response_without_a_usable_etag_evicts_the_former_one() {
    let cache = EtagCache::new(EtagRule::default(), budget(10_000));
    let now = Instant::now();
    let body = Bytes::from_static(b"{}");
    let long = "t".repeat(MAX_TAG_BYTES + 1);
    for (tag, sent_back) in [
        (Some("\"strong\""), Some("\"strong\"")),
        (Some("W/\"weak\""), Some("W/\"weak\"")),
        (Some("bare"), Some("bare")),
        (Some(&long[1..]), Some(&long[1..])),
        (Some(&long), None),
        (Some("*"), None),
        (Some(""), None),
        (None, None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::ETAG, HeaderValue::from_static("before"));
        cache.answered(&key("a"), "u", &headers, &body, now);
        assert!(cache.get(&key("a"), "u", now).is_some());

        headers.remove(header::ETAG);
        headers.extend(tag.map(|tag| (header::ETAG, tag.parse().unwrap())));
        cache.answered(&key("a"), "u", &headers, &body, now);

        let found = cache.get(&key("a"), "u", now);
        let found = found.as_ref().map(|kept| kept.tag.to_str().unwrap());
        assert_eq!(found, sent_back, "{tag:?}");
    }
}

#[test]
fn oldest_responses_are_evicted_beyond_the_budget() {
    let mut responses = Responses::new(None, budget(3 * (ENTRY_BYTES + 1000)));
    let now = Instant::now();
    let large = |bytes: usize| Some(kept("t", vec![b'x'; bytes]));
    let there = |responses: &mut Responses| -> Vec<&str> {
        let names = ["a", "b", "c", "d"];
        names.into_iter().filter(|name| responses.get(&key(name), "u", now).is_some()).collect()
    };
    for name in ["a", "b", "c"] {
        responses.put(&key(name), "u", large(900), now);
    }
    assert_eq!(there(&mut responses), ["a", "b", "c"]);

    responses.put(&key("a"), "u", large(900), now);
    responses.put(&key("d"), "u", large(900), now);
    assert_eq!(there(&mut responses), ["a", "c", "d"], "the one that was answered last is young");

    responses.put(&key("b"), "u", large(2000), now);
    assert_eq!(there(&mut responses), ["b", "d"]);

    responses.put(&key("b"), "u", large(4000), now);
    assert_eq!(there(&mut responses), ["d"], "one that is too large costs no other");
}

#[test]
fn responses_that_all_hooks_keep_stay_within_the_budget_of_the_process() {
    let process = ResponseBudget::new(ResponseLimits::of_process(2 * 4 * 4 * (ENTRY_BYTES + 1000)));
    let now = Instant::now();
    let mut hooks: Vec<_> = (0..5)
        .map(|number| Responses::new(None, process.controller(&number.to_string())))
        .collect();

    for hook in &mut hooks {
        for name in ["a", "b", "c", "d"] {
            hook.put(&key(name), "u", Some(kept("t", vec![b'x'; 990])), now);
        }
    }
    let there: Vec<_> = hooks.iter().map(|hook| hook.by_parent.len()).collect();
    assert_eq!(there, [4, 4, 4, 4, 0]);

    hooks[0].clear();
    hooks[4].put(&key("a"), "u", Some(kept("t", vec![b'x'; 990])), now);
    assert_eq!(hooks[4].by_parent.len(), 1);
}

#[test]
fn the_smallest_responses_are_bounded_in_number() {
    let mut responses = Responses::new(None, budget(100 * ENTRY_BYTES));
    for number in 0..1000 {
        responses.put(&key(&number.to_string()), "u", Some(kept("t", "")), Instant::now());
    }

    assert!(responses.by_parent.len() < 100, "{}", responses.by_parent.len());
}

proptest! {
    #[test]
    fn accounted_bytes_are_exact_and_within_the_budget(
        deeds in proptest::collection::vec((0..5_u8, 0..6_u8, 0..1500_usize, 0..20_u64), 0..100)
    ) {
        let mut responses = Responses::new(Some(seconds(60)), budget(4000));
        let mut now = Instant::now();
        for (deed, name, bytes, pause) in deeds {
            now += seconds(pause);
            let key = key(&name.to_string());
            match deed {
                0 => responses.remove(&key),
                1 => responses.sweep(now),
                2 => drop(responses.get(&key, "u", now)),
                3 => responses.put(&key, "u/revision", Some(kept("t", vec![b'x'; bytes])), now),
                _ => responses.put(&key, "u", Some(kept("t", vec![b'x'; bytes])), now),
            }

            let all = || responses.by_parent.values().flat_map(BTreeMap::values);
            let sum: usize = all().map(|entry| entry.bytes).sum();
            prop_assert_eq!(responses.bytes, sum);
            prop_assert!(sum <= 4000);
            prop_assert_eq!(responses.by_age.len(), all().count());
            for (number, (key, uid)) in &responses.by_age {
                prop_assert_eq!(responses.by_parent[key][uid].number, *number);
            }
            let oldest = responses.by_age.values().next();
            let eldest = all().map(|entry| entry.since).min();
            prop_assert_eq!(oldest.map(|(key, uid)| responses.by_parent[key][uid].since), eldest);
        }
    }
}

#[test]
fn each_revision_of_a_parent_has_its_own_response() {
    let (mut responses, now) = (Responses::new(None, budget(10_000)), Instant::now());
    for uid in ["u", "u/one", "u/two"] {
        responses.put(&key("a"), uid, Some(kept(uid, "{}")), now);
    }

    for uid in ["u", "u/one", "u/two"] {
        assert_eq!(responses.get(&key("a"), uid, now).unwrap().tag, uid);
    }
    assert_eq!(responses.get(&key("a"), "u/none", now), None);
    assert_eq!(responses.get(&key("a"), "v", now), None);
    assert_eq!(responses.bytes, 0, "the parent was created anew");
}

#[tokio::test(start_paused = true)]
async fn expired_responses_are_removed_without_a_request() {
    let rule = EtagRule { lifetime: Some(seconds(10)), sweep: Some(seconds(4)) };
    let cache = EtagCache::new(rule, budget(10_000));
    let mut sweeping = Box::pin(cache.clone().sweep_every(cache.sweep_period().unwrap()));
    cache.lock().put(&key("a"), "u", Some(kept("t", "{}")), Instant::now());

    for (until, there) in [(8, true), (11, true), (13, false)] {
        let late = tokio::time::timeout(seconds(if until == 8 { 8 } else { until - 8 }), async {
            sweeping.as_mut().await;
        });
        assert!(late.await.is_err(), "it continues");
        assert_eq!(!cache.lock().by_parent.is_empty(), there, "{until}");
    }
}

#[test]
fn responses_that_do_not_expire_are_not_swept() {
    for (lifetime, sweep, expected) in
        [(None, Some(5), None), (Some(5), None, None), (Some(5), Some(7), Some(seconds(7)))]
    {
        let rule = EtagRule { lifetime: lifetime.map(seconds), sweep: sweep.map(seconds) };

        assert_eq!(EtagCache::new(rule, budget(10_000)).sweep_period(), expected);
    }
}

/// Hook that keeps responses, its server, and the tags that the requests named.
struct Harness {
    hook: Webhook,
    serving: JoinSet<()>,
    named: Arc<Mutex<Vec<Option<String>>>>,
}

/// Starts a server that calls `response` with the tag of each request; one connection for each.
async fn harness(
    rule: EtagRule,
    mut response: impl FnMut(Option<&str>) -> String + Send + 'static,
) -> Harness {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let named = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&named);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            let request = String::from_utf8(request).unwrap();
            let tag = request.lines().find_map(|line| line.strip_prefix("If-None-Match: "));
            seen.lock().push(tag.map(str::to_owned));
            stream.write_all(response(tag).as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    let limits = ResponseLimits { response: 1000, ..ResponseLimits::default() };
    let budget = ResponseBudget::new(limits).controller("");
    let hook = Webhook::new(url, seconds(5)).budget(budget).etag(Some(rule));
    Harness { hook, serving, named }
}

impl Harness {
    async fn call(&self, name: &str, uid: &str) -> Result<String, HookError> {
        let response = self.hook.call_about(&key(name), uid, Bytes::from_static(b"{}")).await;
        response.map(|body| String::from_utf8(body.to_vec()).unwrap())
    }

    /// Returns the tag that the last request named.
    fn named(&self) -> Option<String> {
        self.named.lock().last().cloned().flatten()
    }
}

fn response(head: &str, body: &str) -> String {
    let length = match head.starts_with("304") {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    format!("HTTP/1.1 {head}\r\nConnection: close\r\n{length}\r\n{body}")
}

/// Responds with `body`, or with 304 if the request named its tag.
fn tagged(body: &str, named: Option<&str>) -> String {
    let tag = format!("\"{body}\"");
    match named == Some(&tag) {
        true => response(&format!("304 Not Modified\r\nETag: {tag}"), ""),
        false => response(&format!("200 OK\r\nETag: {tag}"), body),
    }
}

#[tokio::test]
async fn a_response_that_the_hook_confirms_is_the_one_that_it_sent() {
    let text = Arc::new(Mutex::new("one"));
    let said = Arc::clone(&text);
    let response = move |named: Option<&str>| tagged(*said.lock(), named);
    let harness = harness(EtagRule::default(), response).await;

    for (now, named) in [
        ("one", None),
        ("one", Some("\"one\"")),
        ("two", Some("\"one\"")),
        ("two", Some("\"two\"")),
    ] {
        *text.lock() = now;

        assert_eq!(harness.call("a", "u").await.as_deref(), Ok(now));
        assert_eq!(harness.named().as_deref(), named);
    }
}

#[tokio::test]
async fn etag_is_sent_while_its_response_may_be_confirmed() {
    let harness = harness(EtagRule::default(), |named| tagged("x", named)).await;
    harness.call("a", "u").await.unwrap();

    harness.call("b", "u").await.unwrap();
    assert_eq!(harness.named(), None, "another parent");
    harness.call("a", "u").await.unwrap();
    assert!(harness.named().is_some());
    harness.call("a", "v").await.unwrap();
    assert_eq!(harness.named(), None, "another one of the same name");
    harness.call("a", "v").await.unwrap();
    assert!(harness.named().is_some());
    harness.hook.forget(&key("a"));
    harness.call("a", "v").await.unwrap();
    assert_eq!(harness.named(), None, "forgotten");
    harness.hook.release().await;
    harness.call("a", "v").await.unwrap();
    assert_eq!(harness.named(), None, "another epoch");
    harness.hook.call(Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(harness.named(), None, "no parent is named");
}

#[tokio::test]
async fn each_status_keeps_or_evicts_the_cached_response() {
    let refused = |code: u16| Err(HookError::Status { code, body: String::new(), proxy: None });
    let nothing = |code: u16| Err(HookError::NothingToConfirm { code });
    let tagged = "200 OK\r\nETag: t";
    let steps = [
        // Without an earlier response there is nothing to confirm.
        ("304 Not Modified", "", None, nothing(304)),
        ("412 Precondition Failed", "sorry", None, nothing(412)),
        (tagged, "one", None, Ok("one")),
        ("304 Not Modified", "", Some("t"), Ok("one")),
        ("412 Precondition Failed", "sorry", Some("t"), Ok("one")),
        // A refusal does not invalidate the earlier response.
        ("500 Word", "sorry", Some("t"), refused(500)),
        ("302 Found\r\nLocation: /", "sorry", Some("t"), refused(302)),
        ("429 Busy\r\nRetry-After: 7", "", Some("t"), Err(HookError::Busy(seconds(7)))),
        ("200 OK\r\nETag: z\r\nContent-Encoding: gzip", "?", Some("t"), {
            Err(HookError::Encoded("gzip".to_owned()))
        }),
        ("200 OK\r\nETag: l", &"x".repeat(1001), Some("t"), {
            Err(HookError::TooLarge { limit: 1000 })
        }),
        ("304 Not Modified", "", Some("t"), Ok("one")),
        // A response without a tag replaces the earlier one.
        ("200 OK", "two", Some("t"), Ok("two")),
        ("304 Not Modified", "", None, nothing(304)),
        (tagged, "three", None, Ok("three")),
    ];
    let mut script = steps.clone().map(|(head, body, ..)| response(head, body)).into_iter();
    let mut harness = harness(EtagRule::default(), move |_| script.next().unwrap()).await;

    for (head, _, named, expected) in steps {
        let response = harness.call("a", "u").await;

        assert_eq!(response, expected.map(str::to_owned), "{head}");
        assert_eq!(harness.named().as_deref(), named, "{head}");
    }
    assert!(harness.serving.try_join_next().is_none());
}

#[tokio::test]
async fn response_that_expires_during_its_confirmation_is_used() {
    let rule = EtagRule { lifetime: Some(seconds(10)), sweep: None };
    let harness = harness(rule, |named| tagged("one", named)).await;
    harness.call("a", "u").await.unwrap();
    let parent = key("a");
    let call = harness.hook.call_about(&parent, "u", Bytes::from_static(b"{}"));

    harness.hook.etags.as_ref().unwrap().lock().sweep(Instant::now() + seconds(20));
    let response = call.await;

    assert_eq!(response, Ok(Bytes::from_static(b"one")));
    assert!(harness.named().is_some());
}

#[tokio::test]
async fn sweep_ends_when_the_hook_is_released() {
    let rule = EtagRule { lifetime: Some(seconds(10)), sweep: Some(seconds(10)) };
    let harness = harness(rule, |named| tagged("one", named)).await;
    harness.call("a", "u").await.unwrap();
    let tracker = harness.hook.connections.lock().as_ref().unwrap().tasks.tracker.clone();
    assert!(!tracker.is_empty());

    harness.hook.release().await;

    assert!(tracker.is_empty());
    assert_eq!(harness.hook.etags.as_ref().unwrap().lock().bytes, 0);
}
