//! The process is killed after each write of a rollout and of a finalization, and before some.

use super::*;

#[derive(Clone, Copy, Debug)]
enum Life {
    Rollout,
    Finalization,
}

/// Plays a life with at most one crash. Returns the number of writes of the first process.
async fn play(variant: Variant, life: Life, crash: Option<(CrashSide, usize)>) -> usize {
    let fixture = RolloutFixture::start(variant).await;
    let server = fixture.harness.server.clone();
    fixture.end().await;
    let response = move |kind: HookKind, request: &Value| variant.answer(kind, request);
    let mut fixture = RolloutFixture::process(&server, variant, crash, response).await;
    fixture.roll_to("two");
    if let Life::Finalization = life {
        let (kind, namespace) = (variant.parent_kind(), variant.parent_namespace());
        server.remove(GROUP, kind, namespace, "p").unwrap();
    }
    let finished = async |fixture: &RolloutFixture| match life {
        Life::Rollout => fixture.done("two").await,
        Life::Finalization => gone(fixture).await,
    };
    let dead = fixture.wire.dead.clone();
    let is_dead = tokio::select! {
        biased;
        () = dead.cancelled() => true,
        () = finished(&fixture) => false,
    };
    let writes = fixture.wire.changes.load(Ordering::SeqCst);
    assert_eq!(is_dead, crash.is_some(), "{crash:?} of {writes}");
    if is_dead {
        fixture.assert_kept();
        fixture.harness.tasks.shutdown().await;
        fixture = RolloutFixture::process(&server, variant, None, response).await;
        finished(&fixture).await;
    }
    fixture.end().await;
    writes
}

/// Waits until the parent is gone, and with it all that was its own.
async fn gone(fixture: &RolloutFixture) {
    let server = &fixture.harness.server;
    let (kind, namespace) = (fixture.variant.parent_kind(), fixture.variant.parent_namespace());
    for _ in 0..4000 {
        let is_gone = server.get(GROUP, kind, namespace, "p").is_err()
            && fixture.children().is_empty()
            && server.list(REVISIONS.0, REVISIONS.1).unwrap().is_empty();
        if is_gone {
            return;
        }
        sleep(Duration::from_millis(50)).await;
        fixture.make_all_ready();
    }
    panic!("{:?} {:?}", fixture.texts(), fixture.revisions());
}

/// A crash before a write leaves what one after the write before it leaves, unless the two are
/// under way at the same time: every fourth is played.
async fn every_crash(variant: Variant, life: Life) {
    let writes = play(variant, life, None).await;
    for number in 1..=writes {
        if number % 4 == 1 {
            play(variant, life, Some((CrashSide::Before, number))).await;
        }
        play(variant, life, Some((CrashSide::After, number))).await;
    }
    assert!(writes > 3, "{writes}");
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_write_of_a_rollout_strands_nothing() {
    for (method, has_checks) in [("RollingInPlace", true), ("RollingRecreate", false)] {
        let is_cluster_scoped = has_checks;
        let variant = Variant { method, has_checks, is_cluster_scoped, ..PLAIN };
        every_crash(variant, Life::Rollout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_write_of_a_recreating_rollout_with_checks_strands_nothing() {
    let method = "RollingRecreate";
    for generates in [false, true] {
        let variant = Variant { method, has_checks: true, generates, ..PLAIN };
        every_crash(variant, Life::Rollout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_write_of_a_finalization_in_mid_rollout_strands_nothing() {
    for is_cluster_scoped in [false, true] {
        let variant = Variant { method: "RollingRecreate", is_cluster_scoped, ..PLAIN };
        every_crash(variant, Life::Finalization).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_write_of_an_applied_rollout_strands_nothing() {
    let strategy = ApplyStrategy::ServerSideApply;
    for (method, has_checks) in [("RollingInPlace", true), ("RollingRecreate", false)] {
        let variant = Variant { method, has_checks, strategy, ..PLAIN };
        every_crash(variant, Life::Rollout).await;
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_write_of_an_applied_finalization_in_mid_rollout_strands_nothing() {
    let strategy = ApplyStrategy::ServerSideApply;
    for (method, is_cluster_scoped) in [("RollingInPlace", false), ("RollingRecreate", true)] {
        let variant = Variant { method, is_cluster_scoped, strategy, ..PLAIN };
        every_crash(variant, Life::Finalization).await;
    }
}
