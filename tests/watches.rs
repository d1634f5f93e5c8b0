//! Omitted and repeated events of watches, under paused time on the simulated server.

use std::time::Duration;

use pilotlight::testing::{Action, RequestInfo, Rule, Verb};
use serde_json::json;
use tokio::time::sleep;

use crate::support::SimulatedHarness;

const IS_WATCH: fn(&RequestInfo) -> bool =
    |info| info.verb == Verb::Watch && info.resource == "widgets";

/// Returns the number of lists of a quiet type over so many rounds. In each round other types
/// change, the server compacts its history, and the watch ends. No change may be lost.
async fn lists_of_a_quiet_type(rounds: i64, withheld: bool) -> usize {
    let harness = SimulatedHarness::start().await;
    harness.parent("p", 1, "text");
    harness.settled(&["p"], 1, "text").await;
    if withheld {
        harness.withholds_bookmarks();
    }
    harness.faults.cut_open(IS_WATCH);
    let before = harness.requests_for_parents(Verb::List);
    for round in 1..=rounds {
        // Lets the last round's change precede the compacted versions.
        sleep(Duration::from_secs(1)).await;
        let other = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": format!("other-{round}"), "namespace": "default" },
        });
        harness.server.apply(other).unwrap();
        // Longer than the interval of bookmarks, a minute.
        sleep(Duration::from_secs(150)).await;
        harness.server.compact();
        harness.server.close_watches("widgets.harness.test");

        let size = round + 1;
        harness.parent("p", size, "text");
        let took = harness.settled(&["p"], size, "text").await;
        // A streaming list without bookmarks has no end and times out after ten seconds.
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
    let lists = harness.requests_for_parents(Verb::List) - before;
    harness.end().await;
    lists
}

#[tokio::test(start_paused = true)]
async fn missing_bookmarks_cause_lists_and_nothing_is_lost() {
    const ROUNDS: i64 = 4;

    assert_eq!(lists_of_a_quiet_type(ROUNDS, false).await, 0);
    let lists = lists_of_a_quiet_type(ROUNDS, true).await;
    // Includes reads of one object, and the paged lists that follow streaming ones.
    assert!((4..=12).contains(&lists), "{lists}");
}

#[tokio::test(start_paused = true)]
async fn repeated_events_cause_no_second_reconcile() {
    let mut calls = Vec::new();
    // No repetition; at once; an older event after a newer one, twice.
    for repeated in [None, Some((1, 1)), Some((1, 2)), Some((2, 3))] {
        let harness = SimulatedHarness::start().await;
        harness.parent("first", 0, "text");
        harness.settled(&["first"], 0, "text").await;
        if let Some((event, after)) = repeated {
            let again = Rule::new(Action::Repeat { event, after }).verb(Verb::Watch);
            harness.faults.add(again.resource("harness.test", "widgets"));
        }
        assert_eq!(harness.faults.cut_open(IS_WATCH), 1);
        sleep(Duration::from_secs(1)).await;

        for size in 1..=3 {
            harness.parent("p", size, "text");
            harness.settled(&["p"], size, "text").await;
            sleep(Duration::from_secs(10)).await;
        }

        let of_it = harness.hook.calls().iter().filter(|(_, parent)| parent == "p").count();
        calls.push(of_it);
        assert_eq!(harness.children().len(), 3, "{repeated:?}");
        assert_eq!(harness.sent(Verb::Create).len(), 3, "{repeated:?}");
        assert!(harness.sent(Verb::Delete).is_empty(), "{repeated:?}");
        harness.end().await;
    }
    assert_eq!(calls, [calls[0]; 4]);
}
