//! Scenarios 34, 35 and 37: the server fails for many types at once.

use std::{
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use pilotlight::{
    informer::InformerOptions,
    manager::ControllerState,
    testing::{
        Action, CrdBuilder, Faults, OpenRequest, RequestInfo, Rule, Verb,
        simulated::{Delays, SimulatedServer},
    },
};
use serde_json::json;
use tokio::{
    select,
    time::{self, Instant},
};

use super::{
    Testbed,
    change::{lists, watched_again, watches},
    server_faults::{assert_nothing_purged, reconciles_stale, status},
};
use crate::{
    support::{Act, HarnessOptions, RecordingReconciler, Server, eventually},
    unknown::assert_undisturbed,
};

scenarios! {
    34 a_server_that_restarts_or_restores_a_backup_stops_nothing alone:
        "the server restarts, is unavailable for a while, returns to an older backup, or loses \
         the watches' versions (the last two on the simulated server only): every watch is \
         resumed or listed again, one list per type and no more in total than the cap; lists in \
         the place of watches are spread over 50 ms; each change is seen, and nothing stops or \
         starts twice";
    35 a_storm_of_410_keeps_to_the_cap_of_lists both:
        "each type (500 on the simulated server) is listed once, and never more at a time than \
         the cap; nothing is lost";
    35 a_storm_of_410_holds_no_more_pages_than_the_cap simulated("the real one answers a page at once"):
        "a slow server is listed by pages of the limit and no more of them at a time than the \
         cap, however many types and objects exist";
    37 tokens_that_expire_stop_nothing both:
        "caches are kept and stale; all types resume within the longest back-off of 30 s";
}

/// Age up to which a list certainly holds its permit: half of the second after which an informer
/// releases the permit of a slow list, so that a late sample counts no list without a permit.
const HAS_ITS_PLACE: Duration = Duration::from_millis(500);

/// Runs `happens` and returns its result, with the largest number of concurrent lists meanwhile.
///
/// A paged list counts until its page is read, a streaming list until it is answered. Lists that a
/// busy server delays do not count: see [`HAS_ITS_PLACE`].
pub(super) async fn most_lists_at_once<T>(
    faults: &Faults,
    which: impl Fn(&RequestInfo) -> bool,
    happens: impl Future<Output = T>,
) -> (T, usize) {
    let most = AtomicUsize::new(0);
    let is_list = |it: &OpenRequest| {
        let is_stream = it.info.query.contains("sendInitialEvents") && !it.answered;
        it.info.verb == Verb::List || is_stream
    };
    let look = faults.wait_until(|faults| {
        let open = faults.open().into_iter();
        let has_its_place = |it: &OpenRequest| it.since.elapsed() < HAS_ITS_PLACE;
        let lists = open.filter(|it| has_its_place(it) && is_list(it) && which(&it.info));
        most.fetch_max(lists.count(), Ordering::Relaxed);
        false
    });
    let result = select! {
        result = happens => result,
        () = look => unreachable!("the predicate never holds"),
    };
    (result, most.into_inner())
}

/// As [`most_lists_at_once`], but per type: returns the largest number for any one type.
async fn most_lists_of_a_type<T>(
    testbed: &Testbed,
    many: &Many,
    happens: impl Future<Output = T>,
) -> (T, usize) {
    let kinds = many.crds.iter().map(|crd| crd.api_resource("v1").plural);
    let happens: Pin<Box<dyn Future<Output = (T, usize)> + '_>> =
        Box::pin(async { (happens.await, 0) });
    kinds
        .fold(happens, |happens, kind| {
            Box::pin(async move {
                let is_it = move |info: &RequestInfo| info.resource == kind;
                let ((result, before), most) =
                    most_lists_at_once(&testbed.faults, is_it, happens).await;
                (result, most.max(before))
            })
        })
        .await
}

/// Types with one object and one controller each.
struct Many {
    crds: Vec<CrdBuilder>,
    recorders: Vec<RecordingReconciler>,
}

impl Many {
    async fn arrive(testbed: &Testbed, count: usize) -> Self {
        let numbers = (0..count).map(|number| async move {
            // Small groups, because the server compares the names of all CRDs in a group.
            let group = format!("g{}.{}", number / 50, testbed.scope.group);
            let crd = CrdBuilder::new(group, format!("Kind{number}"));
            testbed.install(&crd).await;
            testbed.create(&crd, "kept", 1).await;
            let recorder = testbed.controller(&format!("many-{number}"), &crd).await;
            testbed.running(&format!("many-{number}"), 1).await;
            recorder.saw("kept", 1).await;
            watched_again(testbed, &crd, 0).await;
            (crd, recorder)
        });
        let (crds, recorders) = join_all(numbers).await.into_iter().unzip();
        Self { crds, recorders }
    }

    fn is_about(&self) -> impl Fn(&RequestInfo) -> bool {
        let kinds: std::collections::BTreeSet<_> =
            self.crds.iter().map(|crd| crd.api_resource("v1").plural).collect();
        move |info| kinds.contains(&info.resource)
    }

    /// Changes each object and waits until each controller has seen the change.
    async fn are_changed(&self, testbed: &Testbed, size: i64) {
        self.are_resized(testbed, size).await;
        self.have_seen(size).await;
    }

    async fn are_resized(&self, testbed: &Testbed, size: i64) {
        join_all(self.crds.iter().map(|crd| testbed.resize(crd, "kept", size))).await;
    }

    async fn have_seen(&self, size: i64) {
        for recorder in &self.recorders {
            recorder.until("the change", |seen| seen.size == Some(size)).await;
        }
    }

    /// Ends each watch and compacts the versions from which it could resume.
    fn expire(&self, script: &SimulatedServer) {
        // The watches do not see this write, so their versions become too old.
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "later", "namespace": "default" },
        });
        script.apply(map).unwrap();
        script.compact();
        for crd in &self.crds {
            assert_eq!(script.close_watches(&crd.name()), 1);
        }
    }

    fn assert_undisturbed(&self, testbed: &Testbed) {
        for (number, recorder) in self.recorders.iter().enumerate() {
            assert_undisturbed(testbed, &format!("many-{number}"));
            assert_nothing_purged(recorder);
        }
    }
}

fn with_cap(max_concurrent_lists: usize) -> HarnessOptions {
    let informers = InformerOptions { max_concurrent_lists, ..InformerOptions::default() };
    HarnessOptions { informers, ..HarnessOptions::default() }
}

async fn a_server_that_restarts_or_restores_a_backup_stops_nothing(server: Server<'static>) {
    const TYPES: usize = 12;
    const CAP: usize = 3;
    // All watches reconnect at once, which may open one connection more than needed; the short
    // timeout closes it.
    let options = HarnessOptions { idle_timeout: Duration::from_secs(5), ..with_cap(CAP) };
    let testbed = Testbed::with(server, "faults-restart", options).await;
    let many = Many::arrive(&testbed, TYPES).await;
    if let Some(script) = testbed.server.script() {
        script.set_delays(Delays { latency: Duration::from_millis(20), ..Delays::default() });
    }

    // The longest back-off with its jitter.
    let backed_off = Duration::from_secs(40);
    // A watch from a future version is silent until its timeout.
    let watched_out = Duration::from_secs(240);
    let events: &[_] = match testbed.server.is_simulated() {
        true => &[
            ("restart", backed_off, 1),
            ("failure", backed_off, 1),
            // A request for the server's current version comes first.
            ("older backup", watched_out, 2),
        ],
        false => &[("failure", Duration::ZERO, 1)],
    };
    for (size, (event, longest, most_lists)) in (2..).zip(events.iter().copied()) {
        let mut position = testbed.position();
        let before: Vec<_> = many.crds.iter().map(|crd| watches(&testbed, crd)).collect();
        let happens = async {
            match event {
                "failure" => {
                    testbed.stop_server().await;
                    for number in 0..TYPES {
                        let name = format!("many-{number}");
                        let status = testbed.until(&name, "is stale", |it| it.report.stale).await;
                        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
                    }
                    // Requests that were in flight when the real server was killed have no end in
                    // its record.
                    position = testbed.start_server().await;
                }
                "restart" => testbed.server.script().unwrap().restart(),
                _ => {
                    let script = testbed.server.script().unwrap();
                    script.restart_at(script.resource_version() / 2);
                }
            }
            many.are_resized(&testbed, size).await;
            time::sleep(longest).await;
            many.have_seen(size).await;
            for (crd, before) in many.crds.iter().zip(&before) {
                watched_again(&testbed, crd, *before).await;
            }
        };
        let happens = most_lists_of_a_type(&testbed, &many, happens);
        let (((), of_one), most) =
            most_lists_at_once(&testbed.faults, many.is_about(), happens).await;
        assert!(most <= CAP, "{event}: {most} lists at once");
        assert!(of_one <= 1, "{event}: {of_one} lists of one type at once");
        for crd in &many.crds {
            let lists = lists(&testbed, crd, position).await;
            assert!(lists <= most_lists, "{event}: {lists} lists of {}", crd.name());
        }
        many.assert_undisturbed(&testbed);
        for number in 0..TYPES {
            let status = testbed.status(&format!("many-{number}"));
            assert_eq!(status.reason, "Running", "{event}: {status:#?}");
        }
    }
    if let Some(script) = testbed.server.script() {
        assert_lists_are_spread(&testbed, &many, script).await;
        many.assert_undisturbed(&testbed);
    }
    testbed.finish().await;
}

/// Asserts that Pilotlight's own delay spreads the lists after all watches have expired.
async fn assert_lists_are_spread(testbed: &Testbed, many: &Many, script: &SimulatedServer) {
    // Without latency, only Pilotlight's own delay spreads the lists.
    script.set_delays(Delays { latency: Duration::ZERO, ..Delays::default() });
    let before = script.requests().len();
    many.expire(script);
    many.are_changed(testbed, 9).await;
    let requests = script.requests();
    let is_about = many.is_about();
    let lists = requests[before..]
        .iter()
        .filter(|it| is_about(&it.info) && it.info.query.contains("sendInitialEvents"));
    let begun: Vec<_> = lists.map(|it| it.at).collect();
    assert_eq!(begun.len(), many.crds.len());
    let spread = *begun.iter().max().unwrap() - *begun.iter().min().unwrap();
    let spread_over = Duration::from_millis(5)..Duration::from_millis(55);
    assert!(spread_over.contains(&spread), "{begun:?}");
}

async fn a_storm_of_410_keeps_to_the_cap_of_lists(server: Server<'static>) {
    let is_simulated = server.is_simulated();
    let (types, cap) = if is_simulated { (500, 16) } else { (8, 2) };
    let testbed = Testbed::with(server, "faults-storm", with_cap(cap)).await;
    let many = Many::arrive(&testbed, types).await;
    let latency = Duration::from_millis(20);
    if let Some(script) = testbed.server.script() {
        script.set_delays(Delays { latency, ..Delays::default() });
    }
    let (position, is_about) = (testbed.position(), many.is_about());

    let storm = async {
        let begin = Instant::now();
        if let Some(script) = testbed.server.script() {
            many.expire(script);
        } else {
            let expired = status(410, "Expired", "too old resource version: 1 (2)");
            // Watches that resume from a version, but not the lists that follow.
            let rule = Rule::new(expired).verb(Verb::Watch).query_contains("resourceVersion=");
            let is_mine = format!(".{}/", testbed.scope.group);
            testbed.faults.add(rule.path_contains(is_mine).times(types));
            assert_eq!(testbed.faults.cut_open(&is_about), types);
        }
        many.are_changed(&testbed, 2).await;
        for crd in &many.crds {
            watched_again(&testbed, crd, 1).await;
        }
        begin.elapsed()
    };
    let (took, most) = most_lists_at_once(&testbed.faults, many.is_about(), storm).await;

    assert!(most <= cap, "{most} lists at once");
    if is_simulated {
        assert_eq!(most, cap, "the cap is reached");
        let share = u32::try_from(types.div_ceil(cap)).unwrap();
        assert!(took < latency * (share + 10), "{took:?}");
    }
    for crd in &many.crds {
        assert_eq!(lists(&testbed, crd, position).await, 1, "{}", crd.name());
    }
    many.assert_undisturbed(&testbed);
    let mut informers = testbed.cluster.informers.status();
    informers.retain(|it| it.key.identity.plural.starts_with("kind"));
    assert_eq!(informers.len(), types);
    assert!(informers.iter().all(|it| it.objects == 1), "{informers:#?}");
    testbed.finish().await;
}

async fn a_storm_of_410_holds_no_more_pages_than_the_cap(server: Server<'static>) {
    const TYPES: usize = 16;
    const OBJECTS: usize = 10;
    const PAGE: u32 = 5;
    const CAP: usize = 4;
    let informers =
        InformerOptions { page_limit: PAGE, max_concurrent_lists: CAP, ..Default::default() };
    let options = HarnessOptions { informers, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "faults-pages", options).await;
    let many = Many::arrive(&testbed, TYPES).await;
    for (crd, recorder) in many.crds.iter().zip(&many.recorders) {
        for number in 1..OBJECTS {
            testbed.create(crd, &format!("object-{number}"), 1).await;
        }
        recorder.count(OBJECTS, |seen| seen.uid.is_some()).await;
    }
    let streams = status(400, "BadRequest", "sendInitialEvents is not known");
    testbed.faults.add(Rule::new(streams).verb(Verb::Watch).query_contains("sendInitialEvents"));
    // A page of five is about 2 KB and takes a fifth of a second.
    let slowly = Action::Drip { bytes: 500, every: Duration::from_millis(50) };
    let slowly = testbed.faults.add(Rule::new(slowly).verb(Verb::List));
    testbed.faults.forget_seen();

    let storm = async {
        let expired = status(410, "Expired", "too old resource version: 1 (2)");
        let rule = Rule::new(expired).verb(Verb::Watch).query_contains("resourceVersion=");
        testbed.faults.add(rule.times(TYPES));
        assert_eq!(testbed.faults.cut_open(many.is_about()), TYPES);
        many.are_changed(&testbed, 2).await;
        for crd in &many.crds {
            watched_again(&testbed, crd, 1).await;
        }
    };
    let ((), most) = most_lists_at_once(&testbed.faults, many.is_about(), storm).await;

    assert_eq!(most, CAP, "concurrent pages reach the cap and do not exceed it");
    let seen = testbed.faults.seen().into_iter();
    let pages: Vec<_> = seen.filter(|it| it.verb == Verb::List && many.is_about()(it)).collect();
    let limit = format!("limit={PAGE}");
    assert!(pages.iter().all(|page| page.query.contains(&limit)), "{pages:#?}");
    let all = TYPES * OBJECTS.div_ceil(PAGE.try_into().unwrap());
    assert_eq!(pages.len(), all, "each page once");
    assert_eq!(testbed.faults.hits(slowly), all);
    many.assert_undisturbed(&testbed);
    testbed.finish().await;
}

async fn tokens_that_expire_stop_nothing(server: Server<'static>) {
    let is_simulated = server.is_simulated();
    let (types, time) = if is_simulated { (20, 120) } else { (4, 1) };
    let testbed = Testbed::on(server, "faults-401").await;
    let many = Many::arrive(&testbed, types).await;
    for recorder in &many.recorders {
        recorder.act("kept", Act::Again(Duration::from_millis(100)));
    }
    many.are_changed(&testbed, 2).await;

    let rule = testbed.faults.add(Rule::new(status(401, "Unauthorized", "Unauthorized")));
    testbed.faults.cut_open(|_| true);
    for (number, recorder) in many.recorders.iter().enumerate() {
        let name = format!("many-{number}");
        let status = testbed.until(&name, "is stale", |it| it.report.stale).await;
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
        reconciles_stale(recorder).await;
    }
    time::sleep(Duration::from_secs(time)).await;
    many.assert_undisturbed(&testbed);
    testbed.faults.remove(rule);

    let begin = Instant::now();
    many.are_changed(&testbed, 3).await;
    assert!(begin.elapsed() < Duration::from_secs(33), "{:?}", begin.elapsed());
    for number in 0..types {
        testbed.until(&format!("many-{number}"), "is current", |it| it.reason == "Running").await;
    }
    let health = eventually("CRDs are current", || {
        let health = testbed.cluster.types.health();
        if health.crds.stale_since.is_none() { Ok(()) } else { Err(format!("{health:?}")) }
    });
    health.await;
    many.assert_undisturbed(&testbed);
    testbed.finish().await;
}
