//! Priorities of requests by handler, and the debug state of a queue.

use std::future::pending;

use super::*;

/// Priority of each request in the queue of a controller whose reconcile does not end.
fn queued(controller: &Controller) -> BTreeSet<(String, i32)> {
    controller.queue().iter().map(|row| (row.key.to_string(), row.priority)).collect()
}

fn expected(rows: &[(&str, i32)]) -> BTreeSet<(String, i32)> {
    rows.iter().map(|&(request, priority)| (request.to_owned(), priority)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_handler_gives_low_priority_to_initial_objects_unless_it_chooses_another() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(part("one", "owner"));
    let mapped = Handler::map(|object| {
        vec![Request::cluster(format!("map of {}", object.header().key.name))]
    });
    let chosen = Handler::delta(|delta, queue| {
        let name = format!("chosen for {}", delta.key.name);
        queue.add_with(Request::cluster(name), Add { priority: 7, ..Add::default() });
    });
    let described = builder()
        .for_type(widgets())
        .owns_type(parts())
        .watches_type(parts(), mapped)
        .watches_type(parts(), chosen);
    let stuck = |_: Request, _: Context| pending::<Result<Outcome, ReconcileError>>();
    let controller = Arc::new(described.build(&harness.cluster, stuck).unwrap());
    let added = Arc::clone(&controller);
    harness.manager.add(NAME, added, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    run_until_idle().await;

    let initial = [
        ("ns/a", LOW_PRIORITY),
        ("ns/owner", LOW_PRIORITY),
        ("map of one", LOW_PRIORITY),
        ("chosen for one", 7),
    ];
    assert_eq!(queued(&controller), expected(&initial));

    harness.server.apply(widget("b", "b"));
    harness.server.apply(part("two", "other"));
    run_until_idle().await;

    let changes = [("ns/b", 0), ("ns/other", 0), ("map of two", 0), ("chosen for two", 7)];
    let all: Vec<_> = initial.into_iter().chain(changes).collect();
    assert_eq!(queued(&controller), expected(&all));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn outcome_sets_the_priority_of_its_requeue_and_other_outcomes_keep_it() {
    let harness = Harness::new();
    harness.install("Widget");
    for name in ["kept", "low", "urgent", "limited", "requeued"] {
        harness.server.apply(widget(name, name));
    }
    let after = Duration::from_secs(60);
    let reconcile = move |request: Request, context: Context| async move {
        let with = |add| Ok(Outcome::RequeueWith(add));
        match (&*request.name, context.attempt()) {
            ("low", _) => with(Add { priority: -7, after, ..Add::default() }),
            ("urgent", _) => with(Add { priority: 7, after, ..Add::default() }),
            ("limited", ..3) => with(Add { priority: 8, rate_limited: true, ..Add::default() }),
            ("limited", 3) => with(Add { after, ..Add::default() }),
            ("requeued", _) => Ok(Outcome::Requeue),
            _ => Ok(Outcome::RequeueAfter(after)),
        }
    };
    let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(10) };
    let described = builder().for_type(widgets()).backoff(backoff);
    let controller = Arc::new(described.build(&harness.cluster, reconcile).unwrap());
    let added = Arc::clone(&controller);
    harness.manager.add(NAME, added, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    run_until_idle().await;
    let requeues = || {
        let mut rows = controller.queue().into_iter();
        rows.find(|row| &*row.key.name == "limited").map(|row| (row.priority, row.requeues))
    };
    assert_eq!(requeues(), Some((8, 1)));
    sleep(Duration::from_secs(10)).await;

    let kept = [("ns/kept", LOW_PRIORITY), ("ns/requeued", LOW_PRIORITY)];
    let set = [("ns/low", -7), ("ns/urgent", 7), ("ns/limited", 0)];
    assert_eq!(queued(&controller), expected(&[&kept[..], &set].concat()));
    assert_eq!(requeues(), Some((0, 0)), "not rate limited: the back-off is reset");
    assert_eq!(harness.status().report.last_error, None);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn manager_shows_the_queue_of_a_controller() {
    let harness = Harness::new();
    harness.install("Widget");
    for name in ["a", "b", "c"] {
        harness.server.apply(widget(name, name));
    }
    let reconcile = |request: Request, _: Context| async move {
        match &*request.name {
            "a" => Err("refused".into()),
            "b" => pending().await,
            _ => Ok(Outcome::Done),
        }
    };
    let backoff = Backoff { base: Duration::from_secs(60), max: Duration::from_secs(60) };
    let described = builder().for_type(widgets()).backoff(backoff);
    let controller = described.build(&harness.cluster, reconcile).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
    sleep(Duration::from_secs(10)).await;

    let debug = harness.manager.debug(NAME).await.unwrap();
    let rows: Vec<_> = debug["queue"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let due = row["dueInSeconds"].as_f64().map(f64::round);
            format!(
                "{} {} {} {due:?} {}",
                row["request"], row["state"], row["priority"], row["requeues"]
            )
        })
        .collect();

    let low = LOW_PRIORITY;
    assert_eq!(
        rows,
        [
            format!("\"ns/b\" \"Running\" {low} None 0"),
            format!("\"ns/c\" \"Ready\" {low} Some(-10.0) 0"),
            format!("\"ns/a\" \"Waiting\" {low} Some(50.0) 1"),
        ]
    );
    assert_eq!(debug["omitted"], 0);
    assert_eq!(harness.manager.debug("cluster").await, None);
    assert_eq!(harness.manager.debug("unknown").await, None);
    harness.shutdown().await;
}
