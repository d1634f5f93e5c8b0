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
/// Longest wait for a cache while the server answers.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

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
async fn object_that_a_cache_lacks_for_seconds_is_read_from_the_server_instead() {
    for apart in [false, true] {
        let harness = Harness::with_maker(apart).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);
        let before = lists(&harness.server);

        harness.server.apply(widget("a", "a"));
        sleep(LONGEST_WAIT).await;
        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");
        assert_eq!(lists(&harness.server) - before, 1, "by its name");

        // Writes that no cache has shown are kept for as long as the watch is down.
        for wait in [0, 1, 3600] {
            sleep(Duration::from_secs(wait)).await;
            harness.server.apply(widget("a", "a"));
            sleep(LONGEST_WAIT).await;
            assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}, {wait}");
        }
        assert_eq!(harness.server.creations(), 1);
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(30)).await;
        let before = lists(&harness.server);
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");
        assert_eq!((lists(&harness.server), harness.server.creations()), (before, 1));
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_is_changed_while_it_is_read_live_is_read_again() {
    let harness = Harness::with_maker(false).await;
    let silence = harness.server.withhold("parts");
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    harness.server.apply(widget("a", "a"));
    sleep(LONGEST_WAIT).await;
    assert_eq!(harness.log().await, ["ns/a 1 false"]);

    harness.server.delete_all("Part");
    sleep(LONGEST_WAIT).await;
    harness.server.apply(widget("a", "a"));
    sleep(LONGEST_WAIT).await;

    assert_eq!(harness.log().await, ["ns/a 0 false"], "another client has deleted it");
    assert_eq!((harness.server.creations(), harness.server.count("Part")), (2, 1));
    harness.server.release("parts", silence);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_was_read_live_and_deleted_by_another_client_meanwhile_is_created_again() {
    // Shorter and longer than the content of a live read is kept.
    for (apart, hours) in [(false, 0), (true, 0), (false, 2)] {
        let harness = Harness::with_maker(apart).await;
        let silence = harness.server.withhold("parts");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a 0 false"]);
        harness.server.apply(widget("a", "a"));
        sleep(LONGEST_WAIT).await;
        assert_eq!(harness.log().await, ["ns/a 1 false"], "{apart}");

        sleep(hours * Duration::from_secs(3600)).await;

        // No cache has ever held the part, so that no watch delivers its deletion.
        harness.server.delete_all("Part");
        harness.server.release("parts", silence);
        sleep(Duration::from_secs(60)).await;

        assert_eq!(harness.log().await, ["ns/a 0 false"], "{apart} {hours}");
        assert_eq!(harness.server.count("Part"), 1);
        sleep(Duration::from_secs(3600)).await;
        let log = harness.log().await;
        assert!(log.len() <= 1, "reconciled by the event of its own create: {log:?}");
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_was_read_live_is_gone_with_its_type_although_no_cache_held_it() {
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
        sleep(LONGEST_WAIT).await;
        assert_eq!(harness.log().await, ["ns/a Some(1)"], "{returns}");

        harness.server.uninstall("parts");
        if returns {
            harness.install("Part");
        }
        sleep(Duration::from_secs(60)).await;

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
async fn lost_response_costs_one_list_of_its_collection_and_one_of_the_own_object() {
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
    assert_eq!(
        harness.server.list_queries("widgets")[widgets..],
        ["&fieldSelector=metadata.name%3Da"]
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_the_selectors_of_a_cache_exclude_costs_one_read_after_a_second() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let builder = builder().for_type(widgets()).owns_type(parts()).labels("mark=x");
    harness.make(builder, false).await;
    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    let before = lists(&harness.server);

    harness.server.apply(widget("a", "a"));
    assert_eq!(harness.log().await, [""; 0]);
    sleep(Duration::from_millis(1500)).await;

    assert_eq!(harness.log().await, ["ns/a 0 false"]);
    assert_eq!(lists(&harness.server) - before, 1);
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
    sleep(LONGEST_WAIT).await;
    assert_eq!(harness.log().await, ["ns/a "], "as the server says");
    harness.server.release("parts", silence);
    sleep(Duration::from_secs(30)).await;
    harness.server.apply(widget("a", "a"));
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
