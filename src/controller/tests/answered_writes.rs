//! Answered writes: a reconcile waits until the caches hold what the last one wrote.

use kube::{Api, api::DeleteParams, core::DynamicObject};

use super::{
    server::Server,
    unknown_outcome::{make, part_resource},
    *,
};
use crate::testing::Action;

/// Longest time between two reconciles that nothing delays.
const SOON: Duration = Duration::from_millis(20);
/// Time after which the written object has been read from the server once.
const SOON_READ: Duration = Duration::from_secs(8);
/// Longest wait once the watch is back, or the type is gone.
const LONGEST_WAIT: Duration = Duration::from_secs(6);

/// Reconciler that deletes each part in its cache that is not terminating.
struct Deleter {
    log: Log,
}

impl Reconciler for Deleter {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let parts = context.store(&parts()).unwrap().all();
        let names: Vec<_> = parts.iter().map(|part| part.key().name.to_string()).collect();
        self.log.lock().unwrap().push(format!("{request} {}", names.join(" ")));
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client().clone(), "ns", &part_resource());
        for name in names {
            api.delete(&name, &DeleteParams::default()).await?;
        }
        Ok(Outcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_as_long_as_the_watch_of_its_write_is_down() {
    for apart in [false, true] {
        let harness = Harness::with_maker(apart).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);

        harness.server.apply(widget("a", "a"));
        sleep(SOON_READ).await;
        assert_eq!(harness.log().await, [""; 0], "{apart}");
        assert_eq!(reads(&harness.server), 1);
        let error = harness.status().report.last_error.clone().unwrap();
        assert!(error.starts_with("ns/a: ") && error.contains("does not hold"), "{error}");

        // Longer than a write is kept that no reconcile requests.
        for _ in 0..60 {
            harness.server.apply(widget("a", "a"));
            sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(harness.log().await, [""; 0], "{apart}");
        assert!((60..=64).contains(&reads(&harness.server)), "{}", reads(&harness.server));
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(30)).await;

        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");
        assert_eq!((harness.server.creations(), harness.server.count("Part")), (1, 1));
        assert_eq!(harness.status().report.last_error, None);
        let before = lists(&harness.server);
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");
        assert_eq!((lists(&harness.server), harness.server.creations()), (before, 1));
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wrote_nothing_do_not_wait_for_a_watch_that_is_down() {
    let harness = Harness::with_maker(false).await;
    let _silence = harness.server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(widget("a", "b"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);

    for mark in ["a", "b"] {
        harness.server.apply(widget("idle", mark));

        assert_eq!(harness.log().await, ["ns/idle 0 false"]);
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_another_client_deletes_while_the_watch_is_down_is_created_again() {
    for hours in [0, 2] {
        let harness = Harness::with_maker(false).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);
        harness.server.apply(widget("a", "a"));
        sleep(SOON_READ + hours * Duration::from_secs(3600)).await;
        assert_eq!(harness.log().await, [""; 0], "{hours}");

        // No cache has ever held the part, so that no watch delivers its deletion.
        harness.server.delete_all("Part");
        sleep(Duration::from_secs(70)).await;

        assert_eq!(harness.log().await, ["ns/a 0 false"], "{hours}");
        assert_eq!((harness.server.creations(), harness.server.count("Part")), (2, 1));
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(3600)).await;
        let log = harness.log().await;
        assert!(log.len() <= 1, "reconciled by the event of its own create: {log:?}");
        assert_eq!(harness.server.creations(), 2);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_continues_with_the_watch_although_the_written_object_is_gone() {
    let harness = Harness::with_maker(false).await;
    let silence = harness.server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(harness.log().await, [""; 0]);

    harness.server.delete_all("Part");
    harness.server.release("parts", silence);
    sleep(LONGEST_WAIT).await;

    assert_eq!(harness.log().await[0], "ns/a 0 false");
    assert_eq!((harness.server.creations(), harness.server.count("Part")), (2, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn request_waits_no_longer_for_a_type_that_is_gone() {
    for returns in [false, true] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Part");
        let log = Arc::clone(&harness.log);
        let reconcile = move |request: Request, context: Context| {
            let found = context.store(&parts()).ok().map(|store| store.all().len());
            log.lock().unwrap().push(format!("{request} {found:?}"));
            async move {
                if found == Some(0) {
                    make(context.client().clone(), request.name.to_string()).await?;
                }
                Ok(Outcome::Done)
            }
        };
        let described = builder().for_type(widgets()).owns_type(parts()).optional();
        let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
        harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a Some(0)"]);
        harness.server.apply(widget("a", "a"));
        sleep(SOON_READ).await;
        assert_eq!(harness.log().await, [""; 0], "{returns}");

        harness.server.uninstall("parts");
        if returns {
            harness.install("Part");
        }
        sleep(LONGEST_WAIT).await;

        let log = harness.log().await;
        match returns {
            false => assert_eq!(log, ["ns/a None"]),
            true => {
                assert!(log.contains(&"ns/a Some(0)".to_owned()), "{log:?}");
                assert_eq!(harness.server.count("Part"), 1);
            }
        }
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(3600)).await;
        let log = harness.log().await;
        assert!(log.len() <= 1, "reconciled by the event of its own create: {log:?}");
        harness.shutdown().await;
    }
}

/// Returns the number of reads of a part by its name.
fn reads(server: &Server) -> usize {
    let queries = server.list_queries("parts");
    queries.iter().filter(|query| query.contains("metadata.name")).count()
}

/// Returns the number of list requests of both types.
fn lists(server: &Server) -> usize {
    server.lists("parts") + server.lists("widgets")
}

#[tokio::test(start_paused = true)]
async fn reconcile_waits_until_the_cache_holds_an_answered_create() {
    for apart in [false, true] {
        let harness = Harness::with_maker(apart).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);

        harness.server.apply(widget("a", "a"));
        sleep(Duration::from_millis(500)).await;

        assert_eq!((harness.log().await, harness.server.creations()), (Vec::new(), 1), "{apart}");
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(30)).await;
        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");
        assert_eq!(harness.server.creations(), 1);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_costs_one_list_of_its_collection() {
    let harness = Harness::with_maker(false).await;
    let (parts, widgets) = (harness.server.lists("parts"), harness.server.lists("widgets"));
    harness.server.mishap(Action::Lose);
    let silence = harness.server.withhold("parts");
    // A watch that has lived for some seconds is replaced without a back-off.
    sleep(Duration::from_secs(5)).await;
    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_millis(100)).await;

    harness.server.release("parts", silence);
    sleep(Duration::from_secs(200)).await;

    assert_eq!(harness.log().await, ["ns/a 0 false", "ns/a 1 true"]);
    assert_eq!(harness.server.list_queries("parts")[parts..], ["&limit=500"]);
    assert_eq!(harness.server.lists("widgets"), widgets);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_the_selectors_of_a_cache_exclude_costs_one_read_after_seconds() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let builder = builder().for_type(widgets()).owns_type(parts()).labels("mark=x");
    harness.make(builder, false).await;
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    let before = lists(&harness.server);

    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(4)).await;
    assert_eq!((harness.log().await, lists(&harness.server)), (Vec::new(), before));
    sleep(SOON_READ).await;

    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    assert_eq!(lists(&harness.server) - before, 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_in_a_namespace_that_no_cache_has_is_not_waited_for() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let builder = builder().for_type(widgets()).owns_type(parts()).namespace("elsewhere");
    harness.make(builder, false).await;
    let before = lists(&harness.server);

    for mark in ["a", "b"] {
        harness.server.apply(widget("a", mark));

        assert_eq!(harness.log().await, ["ns/a 0 false"]);
    }
    assert_eq!(lists(&harness.server), before);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconcile_waits_until_the_cache_lacks_an_object_that_it_deleted() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(object("Part", "p", "p"));
    let deleter = Deleter { log: Arc::clone(&harness.log) };
    let controller = builder().for_type(widgets()).owns_type(parts());
    let controller = Arc::new(controller.build(&harness.cluster, deleter).unwrap());
    harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    let silence = harness.server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a p"]);

    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_millis(500)).await;

    assert_eq!(harness.log().await, [""; 0]);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(harness.log().await, [""; 0]);
    harness.server.release("parts", silence);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(harness.log().await, ["ns/a "]);
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_another_client_deleted_is_not_waited_for() {
    let harness = Harness::with_maker(false).await;
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    let before = lists(&harness.server);

    harness.server.delete_all("Part");
    sleep(SOON).await;
    harness.server.apply(widget("a", "a"));

    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    assert_eq!(lists(&harness.server), before);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn writes_that_the_caches_hold_cost_no_request_and_no_time() {
    let harness = Harness::with_maker(false).await;
    let before = lists(&harness.server);

    for round in 0..3 {
        for number in 0..20 {
            harness.server.apply(widget(&format!("w{number:02}"), "a"));
        }
        let log = harness.log().await;
        let note = |number| format!("ns/w{number:02} {} false", usize::from(round > 0));
        assert_eq!(log.len(), 20, "{log:?}");
        assert!((0..20).all(|number| log.contains(&note(number))), "{log:?}");
    }

    assert_eq!((lists(&harness.server), harness.server.creations()), (before, 20));
    harness.shutdown().await;
}
