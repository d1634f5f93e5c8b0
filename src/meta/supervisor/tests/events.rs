//! Rate of the Events of declared controllers.

use super::{
    responding_hook::{harness_of_options, pass},
    *,
};
use crate::{meta::recorder::EventLimit, testing::Verb};

#[tokio::test(start_paused = true)]
async fn events_of_one_object_are_limited_by_the_options() {
    let events = EventLimit { burst: 3, refill: Duration::from_secs(1000) };
    let options = MetaOptions { events, resync_period: Some(RESYNC), ..MetaOptions::default() };
    let (harness, calls) = harness_of_options(options, |_, _| json!("not an object")).await;
    harness.declare("a", good());
    harness.running("a", 1).await;
    let parent = json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "p"},
    });
    harness.server.apply(parent).unwrap();
    pass().await;
    assert!(calls.lock().unwrap().len() > 5, "each failure is an Event");
    let count = || {
        let events = harness.server.list("v1", "Event").unwrap();
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == "p");
        let counts: Vec<_> = about.map(|event| event["count"].as_u64().unwrap()).collect();
        let requests = harness.server.requests();
        let is_patch = |name: &str, verb| name.starts_with("p.") && verb == Verb::Patch;
        let patches = requests.iter().filter(|it| is_patch(&it.info.name, it.info.verb));
        (counts, patches.count())
    };

    assert_eq!(count(), (vec![3], 2), "a create and two patches");
    sleep(Duration::from_secs(1500)).await;

    let (counts, patches) = count();
    let [failures] = counts[..] else { panic!("one Event: {counts:?}") };
    assert_eq!(patches, 3, "one more after the refill");
    assert!(failures > 10, "the failures between are counted: {failures}");
    harness.end().await;
}
