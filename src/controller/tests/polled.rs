//! Types that can be listed and not watched.

use super::*;
use crate::{discovery::TypeState, manager::WatchState};

const SERVICE: &str = "v1.metrics.test";
const GEARS: &str = "gears.metrics.test";
const PATH: &str = "/apis/metrics.test/v1/gears";
/// Longer than an interval.
const WAIT: Duration = Duration::from_secs(20);

fn gears() -> TypeRef {
    TypeRef::resource("metrics.test", "v1", "gears")
}

fn gear(name: &str, mark: &str) -> Value {
    json!({
        "apiVersion": "metrics.test/v1", "kind": "Gear",
        "metadata": { "name": name, "labels": { "mark": mark } },
    })
}

/// Logs each request with the mark of its gear.
struct LogsGears(Log);

impl Reconciler for LogsGears {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let gear = context.store(&gears())?.get(&request);
        let mark = gear.as_ref().and_then(|gear| gear.header().labels.get("mark"));
        self.0.lock().unwrap().push(format!("{} {}", request.name, mark.unwrap_or("gone")));
        Ok(Outcome::Done)
    }
}

/// Returns a harness with a controller of gears, which can be listed only.
async fn harness() -> Harness {
    let harness = Harness::new();
    harness.server.add_api_service(SERVICE);
    harness.server.set_list_only(GEARS, true);
    harness.server.set_available(SERVICE, true);
    let reconciler = LogsGears(Arc::clone(&harness.log));
    let controller = builder().for_type(gears()).conditional();
    let controller = controller.build(&harness.cluster, reconciler).unwrap();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness
}

#[tokio::test(start_paused = true)]
async fn controller_of_a_type_without_watch_follows_its_objects_by_lists() {
    let harness = harness().await;
    harness.server.apply(gear("a", "one"));
    let status = harness.state(ControllerState::Running).await;
    assert_eq!(harness.cluster.types.get(&gears()).state, TypeState::Polled);
    let watches: Vec<_> = status.report.watches.iter().map(|it| it.state).collect();
    assert_eq!(watches, [WatchState::Polled]);
    assert_eq!(status.reason, "Running");
    sleep(WAIT).await;
    assert_eq!(harness.log().await, ["a one"]);

    sleep(WAIT * 5).await;
    assert_eq!(harness.log().await, [""; 0], "nothing has changed");
    harness.server.apply(gear("a", "two"));
    harness.server.apply(gear("b", "one"));
    sleep(WAIT).await;
    assert_eq!(harness.sorted_log().await, ["a two", "b one"]);
    harness.server.remove_gear("a");
    sleep(WAIT).await;
    assert_eq!(harness.log().await, ["a gone"]);
    let seen = harness.server.faults().seen();
    let watched = seen.iter().filter(|it| it.path == PATH && it.query.contains("watch"));
    assert_eq!(watched.count(), 0, "a watch would be refused");

    harness.server.remove_api_service(SERVICE);
    harness.state(ControllerState::Waiting).await;
    sleep(WAIT).await;
    let before = harness.server.requests_of(PATH);
    sleep(WAIT * 5).await;
    assert_eq!(harness.server.requests_of(PATH), before, "no list without the type");
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_of_a_type_without_watch_share_its_lists() {
    let harness = harness().await;
    harness.state(ControllerState::Running).await;
    let other = Controller::builder("other").watches_type(gears(), Handler::Object);
    let other = Arc::new(harness.build(other));
    harness.manager.add("other", other, RunnableOptions::default()).await.unwrap();
    sleep(WAIT).await;
    let before = harness.server.requests_of(PATH);

    sleep(Duration::from_secs(1500)).await;

    let lists = harness.server.requests_of(PATH) - before;
    assert!((100..=126).contains(&lists), "{lists}");
    assert_eq!(harness.cluster.informers.status().len(), 1);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn type_whose_watch_is_refused_is_listed_until_it_can_be_watched() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.set_list_only("widgets.example.com", true);
    harness.server.apply(widget("a", "one"));
    harness.add(builder().for_type(widgets()).conditional()).await;
    let status = harness.state(ControllerState::Running).await;
    assert_eq!(status.report.watches[0].state, WatchState::Polled);
    assert_eq!(harness.log().await, ["ns/a one"]);
    harness.server.apply(widget("a", "two"));
    sleep(WAIT).await;
    assert_eq!(harness.log().await, ["ns/a two"]);

    harness.server.set_list_only("widgets.example.com", false);
    sleep(WAIT).await;
    harness.log().await;
    harness.server.apply(widget("a", "three"));

    assert_eq!(harness.log().await, ["ns/a three"], "at once");
    assert_eq!(harness.server.watches(WIDGETS), 1);
    assert_eq!(harness.status().epoch, 1);
    harness.shutdown().await;
}
