//! Tests of a throttle and of a cancellation, after which no write begins.

use tokio::time::sleep;

use super::*;
use crate::meta::hooks::budget::UNRESERVED_BYTES;

#[tokio::test(start_paused = true)]
async fn no_write_starts_after_a_throttle_and_those_under_way_are_awaited() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
    let (mut tasks, all) = (tokio::task::JoinSet::new(), 0..20);
    harness.execute(&mut tasks, all.map(|n| desired(0, &format!("c{n:02}"), "new")).collect());
    let mut first = harness.server.sent().await;
    assert_eq!(first.len(), 8);

    // Both responses arrive before the sync runs again.
    let throttled = first.remove(1);
    first.remove(0).succeed();
    throttled.refuse(429, "TooManyRequests");

    assert_eq!(names(&harness.server.sent().await), [""; 0]);
    assert!(tasks.join_next().now_or_never().is_none(), "six are under way");
    first.into_iter().for_each(Held::succeed);
    harness.server.answer_all().await;
    let Err(SyncError::Throttled { after, .. }) = tasks.join_next().await.unwrap().unwrap() else {
        panic!("it was throttled")
    };
    assert_eq!(after, Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn no_write_starts_after_a_throttle_that_arrives_while_a_child_is_compared() {
    let long = "x".repeat(UNRESERVED_BYTES);
    let children = vec![observed(0, "a"), observed_with(0, "b", &long)];
    let mut harness = Harness::new(UpdateMethod::InPlace, children);
    let permit = harness.apply.budget.decode_permit(UNRESERVED_BYTES + 1).await;
    let mut tasks = tokio::task::JoinSet::new();
    let all = [desired(0, "a", "new"), desired(0, "b", &long), desired(0, "c", "new")];
    harness.execute(&mut tasks, all.to_vec());
    let mut first = harness.server.sent().await;
    assert_eq!(names(&first), ["put a"], "the comparison of b waits for its turn");

    first.remove(0).refuse(429, "TooManyRequests");
    sleep(Duration::from_millis(1)).await;
    drop(permit);

    assert_eq!(names(&harness.server.sent().await), [""; 0]);
    let result = tasks.join_next().await.unwrap().unwrap();
    assert!(matches!(result, Err(SyncError::Throttled { .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn recreate_sends_no_further_request_after_a_throttle_of_another_write() {
    let left = vec![observed(0, "a"), observed(0, "b"), observed(0, "c")];
    let mut harness = Harness::new(UpdateMethod::Recreate, left);
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, ["a", "b", "c"].map(|name| desired(0, name, "new")).to_vec());
    let mut compared = harness.server.sent().await;
    assert_eq!(names(&compared), ["put a", "put b", "put c"]);
    compared.remove(2).answer(object(0, "c", "new"));
    let mut replaced = harness.server.sent().await;
    assert_eq!(names(&replaced), ["post c"]);

    compared.remove(0).refuse(429, "TooManyRequests");
    assert_eq!(names(&harness.server.sent().await), Vec::<&str>::new());
    compared.remove(0).answer(object(0, "b", "new"));
    replaced.remove(0).refuse(409, "AlreadyExists");

    assert_eq!(names(&harness.server.sent().await), Vec::<&str>::new(), "no dry run, no deletion");
    let result = tasks.join_next().await.unwrap().unwrap();
    assert!(matches!(result, Err(SyncError::Throttled { .. })), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn no_write_starts_after_a_cancellation_and_those_under_way_are_awaited() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
    let (mut tasks, all) = (tokio::task::JoinSet::new(), 0..20);
    harness.execute(&mut tasks, all.map(|n| desired(0, &format!("c{n:02}"), "new")).collect());
    let mut first = harness.server.sent().await;
    assert_eq!(first.len(), 8);

    harness.epoch.stop(StopReason::TypeGone);
    first.remove(0).succeed();

    assert_eq!(names(&harness.server.sent().await), [""; 0]);
    assert!(tasks.join_next().now_or_never().is_none(), "seven are under way");
    first.into_iter().for_each(Held::succeed);
    assert!(matches!(tasks.join_next().await.unwrap().unwrap(), Err(SyncError::Cancelled)));
    assert_eq!(harness.epoch.fence().unknown(), 0);
}
