//! The process is killed after each write of a rollout and of a finalization, and before some.

use super::*;

#[derive(Clone, Copy, Debug)]
enum Life {
    Rollout,
    Finalization,
}

/// Plays a life with at most one crash. Returns the number of writes of the first process.
async fn play(variant: Variant, life: Life, crash: Option<(CrashSide, usize)>) -> usize {
    let bench = Bench::start(variant).await;
    let server = bench.harness.server.clone();
    bench.end().await;
    let response = move |kind: HookKind, request: &Value| variant.answer(kind, request);
    let mut bench = Bench::process(&server, variant, crash, response).await;
    bench.roll_to("two");
    if let Life::Finalization = life {
        let (kind, namespace) = (variant.parent_kind(), variant.parent_namespace());
        server.remove(GROUP, kind, namespace, "p").unwrap();
    }
    let finished = async |bench: &Bench| match life {
        Life::Rollout => bench.done("two").await,
        Life::Finalization => gone(bench).await,
    };
    let dead = bench.wire.dead.clone();
    let is_dead = tokio::select! {
        biased;
        () = dead.cancelled() => true,
        () = finished(&bench) => false,
    };
    let writes = bench.wire.changes.load(Ordering::SeqCst);
    assert_eq!(is_dead, crash.is_some(), "{crash:?} of {writes}");
    if is_dead {
        bench.assert_kept();
        bench.harness.tasks.shutdown().await;
        bench = Bench::process(&server, variant, None, response).await;
        finished(&bench).await;
    }
    bench.end().await;
    writes
}

/// Waits until the parent is gone, and with it all that was its own.
async fn gone(bench: &Bench) {
    let server = &bench.harness.server;
    let (kind, namespace) = (bench.variant.parent_kind(), bench.variant.parent_namespace());
    for _ in 0..4000 {
        let is_gone = server.get(GROUP, kind, namespace, "p").is_err()
            && bench.children().is_empty()
            && server.list(REVISIONS.0, REVISIONS.1).unwrap().is_empty();
        if is_gone {
            return;
        }
        sleep(Duration::from_millis(50)).await;
        bench.make_all_ready();
    }
    panic!("{:?} {:?}", bench.texts(), bench.revisions());
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
