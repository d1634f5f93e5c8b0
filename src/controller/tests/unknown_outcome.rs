//! Unconfirmed writes: a reconcile waits until the caches show the outcome of an earlier write.

use kube::{Api, Client, api::PostParams, core::DynamicObject, discovery::ApiResource};
use tokio::{task::JoinSet, time::timeout};

use super::{server::mishaps, *};
use crate::testing::{Action, Reply, Rule, RuleId, Verb};

/// Reconciler that creates one part for each widget, unless its cache has one. The server generates
/// the name.
struct Maker {
    log: Log,
    // True if the write is sent from a `JoinSet` task, which belongs to no request.
    apart: bool,
}

impl Reconciler for Maker {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let parts = context.store(&parts()).unwrap();
        let have =
            parts.all().iter().filter(|part| part.key().name.starts_with(&*request.name)).count();
        let note = format!("{request} {have} {}", context.after_unknown());
        self.log.lock().unwrap().push(note);
        if have > 0 || request.name.starts_with("idle") {
            return Ok(Outcome::Done);
        }
        let (client, name) = (context.client().clone(), request.name.to_string());
        if self.apart {
            let mut tasks = JoinSet::new();
            tasks.spawn(make(client, name));
            tasks.join_next().await.unwrap().unwrap()?;
        } else {
            make(client, name).await?;
        }
        Ok(Outcome::Done)
    }
}

pub(super) fn part_resource() -> ApiResource {
    ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Part".into(),
        plural: "parts".into(),
    }
}

pub(super) async fn make(client: Client, widget: String) -> Result<(), kube::Error> {
    let resource = part_resource();
    let mut part = DynamicObject::new("", &resource);
    part.metadata.name = None;
    part.metadata.generate_name = Some(format!("{widget}-"));
    let api: Api<DynamicObject> = Api::namespaced_with(client, "ns", &resource);
    api.create(&PostParams::default(), &part).await.map(drop)
}

impl Harness {
    fn maker(&self, apart: bool) -> Arc<Controller> {
        self.maker_of(builder().for_type(widgets()).owns_type(parts()), apart)
    }

    fn maker_of(&self, builder: Builder, apart: bool) -> Arc<Controller> {
        let builder =
            builder.max_concurrent_reconciles(2).reconcile_timeout(Duration::from_secs(60));
        let maker = Maker { log: Arc::clone(&self.log), apart };
        Arc::new(builder.build(&self.cluster, maker).unwrap())
    }

    /// Starts a controller with an unconfirmed create request, and withholds the watch events.
    async fn unconfirmed(mishap: Action) -> (Self, RuleId) {
        let harness = Self::with_maker(false).await;
        harness.server.mishap(mishap);
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);
        (harness, silence)
    }

    /// Checks that the request waits for the part rather than creates it again, since the watch
    /// events are withheld. Releases them.
    async fn finds(&self, silence: RuleId) {
        sleep(Duration::from_secs(200)).await;
        assert_eq!(self.log().await, [""; 0]);
        self.server.release("parts", silence);
        sleep(Duration::from_secs(200)).await;
        assert_eq!((self.log().await, self.server.creations()), (vec!["ns/a 1 true".into()], 1));
    }

    pub(super) async fn with_maker(apart: bool) -> Self {
        let harness = Self::new();
        harness.install("Widget");
        harness.install("Part");
        harness.make(builder().for_type(widgets()).owns_type(parts()), apart).await;
        harness
    }

    /// Adds a controller that makes parts, and waits until it runs.
    pub(super) async fn make(&self, builder: Builder, apart: bool) {
        let maker = self.maker_of(builder, apart);
        self.manager.add(NAME, maker, RunnableOptions::default()).await.unwrap();
        self.state(ControllerState::Running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn create_whose_response_is_lost_is_not_sent_again_over_a_cache_that_is_behind() {
    for mishap in mishaps() {
        for apart in [false, true] {
            let harness = Harness::with_maker(apart).await;
            harness.server.mishap(mishap.clone());
            let silence = harness.server.withhold("parts");

            harness.server.apply(widget("a", "a"));
            sleep(Duration::from_secs(200)).await;

            assert_eq!(harness.log().await, ["ns/a 0 false"], "{mishap:?}");
            assert_eq!(
                (harness.server.creations(), harness.server.count("Part")),
                (1, 1),
                "{mishap:?}"
            );

            harness.server.release("parts", silence);
            sleep(Duration::from_secs(200)).await;

            assert_eq!(harness.log().await, ["ns/a 1 true"], "{mishap:?}");
            assert_eq!(
                (harness.server.creations(), harness.server.count("Part")),
                (1, 1),
                "{mishap:?}"
            );
            assert_eq!(harness.status().report.last_error, None);
            harness.server.apply(widget("a", "a"));
            assert_eq!(harness.log().await, ["ns/a 1 false"], "{mishap:?}");
            harness.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_with_an_unknown_write_delays_no_other() {
    let (harness, _silence) = Harness::unconfirmed(Action::Lose).await;

    for name in ["idle-1", "idle-2", "idle-3"] {
        harness.server.apply(widget(name, name));
    }

    assert_eq!(harness.log().await.len(), 3);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn next_epoch_waits_for_a_dropped_write_of_the_last_one() {
    let (harness, silence) = Harness::unconfirmed(Action::Withhold).await;

    let replaced = harness.manager.replace(NAME, harness.maker(false), RunnableOptions::default());
    timeout(Duration::from_secs(60), replaced).await.unwrap().unwrap();
    harness.until(|status| status.epoch == 2 && status.state == ControllerState::Running).await;

    assert_eq!(harness.status().last_done.as_ref().unwrap().unknown_requests, 1);
    harness.finds(silence).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_that_is_removed_and_added_again_waits_for_its_unknown_write() {
    let (harness, silence) = Harness::unconfirmed(Action::Withhold).await;

    harness.manager.remove(NAME).await;
    harness.manager.add(NAME, harness.maker(false), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    harness.finds(silence).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_with_an_unknown_write_is_reconciled_in_the_next_epoch_without_its_object() {
    let (harness, silence) = Harness::unconfirmed(Action::Withhold).await;

    harness.manager.remove(NAME).await;
    harness.server.delete("Widget", "a");
    harness.manager.add(NAME, harness.maker(false), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;

    harness.finds(silence).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn unknown_write_does_not_delay_a_type_that_returns_with_another_scope() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.make(builder().for_type(widgets()).conditional().owns_type(parts()), false).await;
    harness.server.mishap(Action::Withhold);
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;

    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(60)).await;

    assert_eq!(harness.log().await, ["ns/a 1 true"]);
    assert_eq!((harness.server.creations(), harness.status().report.last_error.clone()), (1, None));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_with_a_generated_name_is_found_on_any_page() {
    let harness = Harness::with_maker(false).await;
    for number in 0..500 {
        let before_all_names = format!("{number:04}");
        harness.server.apply(object("Part", &before_all_names, "x"));
    }
    run_until_idle().await;
    harness.server.mishap(Action::Lose);
    let silence = harness.server.withhold("parts");

    harness.server.apply(widget("a", "a"));

    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    harness.finds(silence).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_with_a_generated_name_costs_one_list_of_metadata() {
    const PARTS: usize = 1200;
    let harness = Harness::with_maker(false).await;
    for number in 0..PARTS {
        let mut part = object("Part", &format!("p{number:04}"), "x");
        part["spec"] = json!({ "text": "x".repeat(4096) });
        harness.server.apply(part);
    }
    run_until_idle().await;
    harness.server.mishap(Action::Lose);
    let silence = harness.server.withhold("parts");
    let (lists, bytes) = (harness.server.lists("parts"), harness.server.bytes());

    harness.server.apply(widget("a", "a"));
    // Changes of other objects do not restart the comparison.
    for number in 0..100 {
        sleep(Duration::from_secs(2)).await;
        harness.server.apply(object("Part", &format!("q{number}"), "x"));
    }

    let lists = harness.server.list_queries("parts").split_off(lists);
    let by_name = lists.iter().filter(|query| query.contains("metadata.name")).count();
    assert_eq!(lists.len() - by_name, 3, "one list, of 500 objects each page: {lists:?}");
    assert!((1..8).contains(&by_name), "{by_name}: after 5 s, and whenever the wait has doubled");
    let bytes = usize::try_from(harness.server.bytes() - bytes).unwrap();
    assert!(bytes < PARTS * 600, "{bytes}");
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    harness.server.release("parts", silence);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.log().await, ["ns/a 1 true"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_with_a_generated_name_that_is_deleted_is_not_waited_for() {
    let (harness, silence) = Harness::unconfirmed(Action::Lose).await;

    harness.server.delete_all("Part");
    sleep(Duration::from_secs(60)).await;

    assert_eq!(harness.log().await, ["ns/a 0 true"], "no cache will ever have it");
    assert_eq!((harness.server.creations(), harness.server.count("Part")), (2, 1));
    harness.server.release("parts", silence);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn refused_write_delays_no_reconcile() {
    let harness = Harness::with_maker(false).await;
    let before = harness.server.requests_of(PARTS);
    harness.server.apply(object("Part", "b", "b"));

    harness.server.apply(widget("a", "a"));

    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    assert_eq!((harness.server.creations(), harness.server.requests_of(PARTS)), (1, before));
    harness.shutdown().await;
}

/// Response of a throttling server, with `Retry-After`.
pub(super) fn later(code: u16, seconds: u64) -> Reply {
    Reply::text(code, "Too many requests, please try again later.\n").retry_after(seconds)
}

fn lists_are(refused: Action) -> Rule {
    Rule::new(refused).verb(Verb::List)
}

#[tokio::test(start_paused = true)]
async fn read_that_confirms_a_write_waits_for_retry_after() {
    let (harness, silence) = Harness::unconfirmed(Action::Instead(later(503, 20))).await;
    let refusal = harness.server.fault(lists_are(Action::Reply(later(429, 20))));
    let before = harness.server.lists("parts");
    let lists = || harness.server.lists("parts") - before;

    sleep(Duration::from_secs(19)).await;
    assert_eq!(lists(), 0, "the write was to wait");
    sleep(Duration::from_secs(6)).await;
    assert_eq!(lists(), 1);
    // Changes of the object meanwhile do not shorten the wait for the server.
    for _ in 0..5 {
        harness.server.apply(widget("a", "a"));
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(lists(), 1);
    sleep(Duration::from_secs(120)).await;

    // A list every 20 to 24 s.
    assert!((5..=7).contains(&lists()), "{}", lists());
    let error = harness.status().report.last_error.clone().unwrap();
    assert!(error.contains("parts") && error.contains("Too many requests"), "{error}");
    assert_eq!((harness.log().await.len(), harness.server.creations()), (0, 1));
    harness.server.remove(refusal);
    harness.finds(silence).await;
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn many_unknown_writes_are_confirmed_at_a_bounded_rate_and_sent_once() {
    for refusal in [later(429, 1), Reply::status(500, "InternalError", "it failed")] {
        let harness = Harness::with_maker(false).await;
        let lost = Rule::new(Action::Instead(later(503, 1))).verb(Verb::Create);
        let lost = harness.server.fault(lost.resource("example.com", "parts"));
        let refusal = harness.server.fault(lists_are(Action::Reply(refusal)));
        for number in 0..60 {
            let name = format!("w{number:02}");
            harness.server.apply(widget(&name, &name));
        }
        sleep(Duration::from_secs(10)).await;
        assert_eq!((harness.log().await.len(), harness.server.creations()), (60, 60));

        for ten in 1..6 {
            let before = harness.server.lists("parts");
            sleep(Duration::from_secs(10)).await;
            let lists = harness.server.lists("parts") - before;
            // First reads as the throttled writes are retried, one a second, and as many repeated ones.
            assert!(lists <= 25, "{lists} in the {ten}th ten seconds");
        }
        assert_eq!((harness.log().await.len(), harness.server.creations()), (0, 60));

        harness.server.remove(lost);
        harness.server.remove(refusal);
        sleep(Duration::from_secs(10)).await;
        let seen = harness.log().await;
        assert_eq!(seen.iter().filter(|note| note.ends_with(" 1 true")).count(), 60, "{seen:?}");
        assert_eq!((harness.server.creations(), harness.server.count("Part")), (60, 60));
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_hang_delay_no_other_request() {
    let harness = Harness::with_maker(false).await;
    harness.server.mishap(Action::Lose);
    harness.server.mishap(Action::Lose);
    let _silence = harness.server.withhold("parts");
    for name in ["a", "b"] {
        harness.server.apply(widget(name, name));
    }
    assert_eq!(harness.log().await.len(), 2);
    harness.server.fault(lists_are(Action::Hang));
    // Both workers would read.
    sleep(Duration::from_secs(10)).await;

    let begun = Instant::now();
    harness.server.apply(widget("idle", "idle"));

    assert_eq!(harness.log().await, ["ns/idle 0 false"]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_wait_for_the_read_that_confirms_a_write() {
    let (harness, _silence) = Harness::unconfirmed(Action::Lose).await;
    harness.server.fault(lists_are(Action::Hang));
    sleep(Duration::from_secs(10)).await;

    let stopping = Instant::now();
    harness.manager.remove(NAME).await;

    assert!(stopping.elapsed() < Duration::from_secs(1), "{:?}", stopping.elapsed());
    harness.shutdown().await;
}
