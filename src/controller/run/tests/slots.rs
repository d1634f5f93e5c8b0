//! Reconciles that give their worker slot back.

use super::*;

/// Harness whose reconciles give their slots back at once, and end when the test lets them.
struct Held {
    harness: Harness,
    log: Log,
    ends: Arc<tokio::sync::Semaphore>,
}

fn held(make: Make, initial: &[&str], releases: bool) -> Held {
    let (log, ends) = (Log::default(), Arc::new(tokio::sync::Semaphore::new(0)));
    let (notes, start, gate) = (log.clone(), Instant::now(), Arc::clone(&ends));
    let make = make.input(InputMode::Required, Fake::new("fake", initial));
    let harness = make.run(move |request, context| {
        notes.note(&request, &context, start);
        let gate = Arc::clone(&gate);
        async move {
            if releases {
                context.release_slot();
                context.release_slot();
            }
            gate.acquire().await.unwrap().forget();
            ok()
        }
    });
    Held { harness, log, ends }
}

const ACTIVE: &str = "controller_runtime_active_workers{controller=\"widgets\"}";

#[tokio::test(start_paused = true)]
async fn request_starts_in_the_slot_that_a_running_reconcile_gave_back() {
    let mut held = held(make().most_running(10), &["a", "b", "c"], true);
    held.harness.running().await;
    run_until_idle().await;

    assert_eq!(held.log.names(), ["ns/a", "ns/b", "ns/c"]);
    assert_eq!(held.harness.metric(ACTIVE), "0", "no reconcile holds a slot");
    held.ends.add_permits(3);
    run_until_idle().await;
    assert_eq!(held.harness.metric(ACTIVE), "0");
    held.harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_reconciles_run_than_are_allowed_with_and_without_slots() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut held = held(make().workers(2).most_running(5), &names, true);
    held.harness.running().await;
    run_until_idle().await;
    assert_eq!(held.log.names().len(), 5);
    assert_eq!(held.harness.metric(ACTIVE), "0", "no reconcile holds a slot");

    held.ends.add_permits(1);
    run_until_idle().await;
    assert_eq!(held.log.names().len(), 6, "one ended, so that one starts");

    held.ends.add_permits(100);
    run_until_idle().await;
    assert_eq!(held.log.names().len(), 7);
    assert_eq!(held.harness.metric(ACTIVE), "0");
    held.harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconciles_that_keep_their_slots_are_bounded_by_the_workers() {
    let mut held = held(make().workers(2).most_running(5), &["a", "b", "c"], false);
    held.harness.running().await;
    run_until_idle().await;

    assert_eq!(held.log.names().len(), 2);
    assert_eq!(held.harness.metric(ACTIVE), "2");
    let allowed = "controller_runtime_max_concurrent_reconciles{controller=\"widgets\"}";
    assert_eq!(held.harness.metric(allowed), "2");
    held.ends.add_permits(3);
    held.harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconciles_that_want_their_slots_back_are_bounded_by_the_workers() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, highest) = (Arc::clone(&running), Arc::clone(&most));
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let make = make().workers(2).most_running(5);
    let make = make.input(InputMode::Required, Fake::new("fake", &names));
    let mut harness = make.run(move |_, context| {
        let (now, highest) = (Arc::clone(&now), Arc::clone(&highest));
        async move {
            context.release_slot();
            sleep(Duration::from_secs(1)).await;
            assert!(context.regain_slot().await);
            highest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            ok()
        }
    });
    harness.running().await;

    sleep(Duration::from_millis(1500)).await;
    assert_eq!(harness.metric(ACTIVE), "2");
    sleep(Duration::from_secs(10)).await;

    assert_eq!(
        harness.metric(
            "controller_runtime_reconcile_total{controller=\"widgets\",result=\"success\"}"
        ),
        "7"
    );
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert_eq!(harness.metric(ACTIVE), "0");
    harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_ends_the_wait_for_a_slot() {
    let waits = Arc::new(AtomicUsize::new(0));
    let ended = Arc::clone(&waits);
    let make = make().workers(1).most_running(5);
    let make = make.input(InputMode::Required, Fake::new("fake", &["a", "b"]));
    let mut harness = make.run(move |request, context| {
        let ended = Arc::clone(&ended);
        async move {
            if *request.name == *"a" {
                context.release_slot();
                sleep(Duration::from_secs(1)).await;
                assert!(!context.regain_slot().await);
                ended.fetch_add(1, Ordering::SeqCst);
            } else {
                context.cancelled().await;
            }
            ok()
        }
    });
    harness.running().await;
    sleep(Duration::from_secs(2)).await;

    let begun = Instant::now();
    harness.stop(StopReason::Cancelled).await.unwrap();

    assert_eq!((begun.elapsed(), waits.load(Ordering::SeqCst)), (Duration::ZERO, 1));
}

#[tokio::test(start_paused = true)]
async fn request_without_a_slot_is_not_reconciled_twice_at_once() {
    let (sender, channel) = ChannelSource::new(64);
    let mut held = held(make().most_running(5).input(InputMode::Plain, channel), &["a"], true);
    held.harness.running().await;
    run_until_idle().await;

    sender.send(key("a")).await.unwrap();
    sender.send(key("b")).await.unwrap();
    run_until_idle().await;
    assert_eq!(held.log.names(), ["ns/a", "ns/b"]);

    held.ends.add_permits(1);
    run_until_idle().await;
    assert_eq!(held.log.names(), ["ns/a", "ns/b", "ns/a"], "once it has ended");
    held.ends.add_permits(3);
    held.harness.stop(StopReason::Cancelled).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_awaits_reconciles_without_a_slot_until_the_grace_is_over() {
    let mut held = held(make().most_running(5), &["a", "b"], true);
    held.harness.running().await;
    run_until_idle().await;

    let begun = Instant::now();
    held.harness.stop(StopReason::Cancelled).await.unwrap();

    assert_eq!(begun.elapsed(), GRACE);
    assert_eq!(held.harness.metric(ACTIVE), "0");
}
