//! Types that appear and disappear at random.

use super::*;

/// Takes one random step on a type, and waits for a random time.
async fn flap_once(
    harness: &Harness,
    random: &mut fastrand::Rng,
    (plural, kind): (&'static str, &'static str),
) {
    let served = harness.server.serves(kind);
    let resource = format!("{plural}.example.com");
    match random.u8(..10) {
        0 if served => harness.server.uninstall(plural),
        1 if served => harness.server.install(crd(kind), &["v2"]),
        2 => harness.server.forbid(&resource),
        3 | 4 => harness.server.allow(&resource),
        5..=7 if served => {
            harness.server.apply(object(kind, &random.u8(..4).to_string(), "flapping"));
        }
        _ => harness.install(kind),
    }
    match random.u8(..4) {
        0 => sleep(Duration::from_millis(random.u64(..50))).await,
        1 => sleep(Duration::from_secs(random.u64(..20))).await,
        _ => {}
    }
}

/// Installs, removes, hides and forbids types at random; ends with all types installed.
async fn flap(seed: u64) {
    let harness = Harness::new();
    let mut random = fastrand::Rng::with_seed(seed);
    let types = [("widgets", "Widget"), ("parts", "Part"), ("things", "Thing")];
    let path = |plural: &str| format!("/apis/example.com/v1/{plural}");
    let resource = |plural: &str| format!("{plural}.example.com");
    run_until_idle().await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let things = TypeRef::resource("example.com", "v1", "things");
    harness
        .add(
            builder()
                .for_type(widgets())
                .conditional()
                .owns_type(parts())
                .optional()
                .watches_type(things, Handler::Object),
        )
        .await;

    for _ in 0..150 {
        let flapping = types[random.usize(..3)];
        flap_once(&harness, &mut random, flapping).await;
    }
    for (plural, kind) in types {
        harness.server.allow(&resource(plural));
        harness.install(kind);
        harness.server.apply(object(kind, "last", "last"));
    }
    // Exceeds the longest back-offs of an informer and of the manager.
    sleep(Duration::from_secs(600)).await;

    let status = harness.status();
    assert_eq!(
        (status.state, status.reason.as_str()),
        (ControllerState::Running, "Running"),
        "seed {seed}: {:#?}",
        status.report
    );
    assert!(
        status.report.watches.iter().all(|watch| watch.state == crate::manager::WatchState::Synced),
        "{status:?}"
    );
    assert_eq!(harness.cluster.informers.status().len(), 3);
    for (plural, kind) in types {
        assert_eq!(harness.server.watches(&path(plural)), 1, "{plural}");
        let informers = harness.cluster.informers.status();
        let informer = informers.iter().find(|it| &*it.key.identity.plural == plural).unwrap();
        assert_eq!(informer.objects, harness.server.count(kind), "{plural}");
    }
    harness.log().await;
    harness.server.apply(widget("new", "new"));
    harness.server.apply(part("p", "of-part"));
    harness.server.apply(object("Thing", "thing", "thing"));
    let mut log = harness.log().await;
    log.sort();
    assert_eq!(log, ["ns/new new", "ns/of-part gone", "ns/thing gone"]);

    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);
    sleep(Duration::from_secs(11)).await;
    assert!(harness.cluster.informers.status().is_empty());
    harness.manager.remove(NAME).await;
    run_until_idle().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_converges_after_any_flapping_and_leaves_nothing() {
    for seed in 0..20 {
        flap(seed).await;
    }
}
