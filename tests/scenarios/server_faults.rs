//! The server, or what stands behind it, fails.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, WebhookClientConfig, WebhookConversion,
};
use pilotlight::{
    discovery::{DiscoveryOptions, TypeState},
    informer::{InformerOptions, Progress},
    kind::TypeRef,
    manager::ControllerState,
    testing::{
        Action, CrdBuilder, Faults, Reply, RequestInfo, Rule, RuleId, Verb, simulated::Delays,
    },
};
use serde_json::{Value, json};
use tokio::{
    select,
    time::{self, Instant},
};

use super::{
    World,
    change::{assert_unmoved, change_crd, lists, watched_again, watches},
    world::{InProcessHook, one_config_map},
};
use crate::{
    aggregated::{Backend, Discovery, Health, install},
    rig::{
        Act, Carrier, Embedded, Recorder, RigOptions, Rule as Right, Server, about, eventually,
        type_of, until,
    },
    unknown::{assert_undisturbed, hits},
};

scenarios! {
    29 a_conversion_webhook_that_is_down_holds_up_its_own_version_alone both:
        "the controller of that version stays Starting with the webhook's error and backs off; those of the stored version and of other types run, the cluster is Running; it runs once the webhook answers";
    30 a_conversion_webhook_that_goes_down_leaves_the_cache_behind both:
        "the controller goes on over its last cache, marked stale; nothing is purged, stopped or started; what has changed meanwhile is reconciled when the webhook answers";
    31 an_aggregated_service_that_is_down_is_unknown_and_not_gone both:
        "its type is Unknown, its controller runs on over the cache and is stale, a new one waits for TypeUnknown; a CRD's type is neither listed nor watched again when it recovers";
    32 discovery_that_answers_in_part_or_nothing_takes_nothing_away both:
        "what was served stays so or Unknown, an empty answer is an error in the health; nothing stops, starts or is listed";
    33 a_transient_404_is_no_proof_of_absence both:
        "the type stays Served, its controller Running over the whole cache and stale; no discovery request; it recovers within a second";
    33 a_transient_404_of_a_write_is_no_proof_of_absence both:
        "a status and a deletion that are answered so are sent again: only an answer that names the object says that it is gone";
    34 a_server_that_restarts_or_goes_back_stops_nothing simulated("`an_api_server_that_restarts_stops_nothing` restarts the real one; going back to an older resource version takes a restored backup"):
        "every watch is resumed or listed anew, one list per type at a time and no more of all than the cap; each change is seen, nothing stops or starts twice";
    35 a_storm_of_410_keeps_to_the_cap_of_lists both:
        "each type (500 on the simulated server) is listed once, never more of them at once than the cap; nothing is lost";
    36 a_streaming_list_without_an_end_is_followed_by_pages both:
        "after 10 s of silence the type is listed by pages; other types notice nothing";
    37 tokens_that_expire_stop_nothing both:
        "caches are kept and stale; all types resume by themselves within the longest back-off of 30 s";
    38 a_server_that_asks_for_patience_gets_it both:
        "no request about the type before Retry-After has passed; nothing stops or starts";
    39 rights_that_are_taken_away_show_and_cost_nothing both:
        "Forbidden at the next watch, with the rule that is missing; the cache is kept and stale, the server is asked three times and then every 30 s; Running soon after the rights are back";
    40 an_object_that_cannot_be_decoded_is_told_of_and_left_out both:
        "the object and the field are named in the informer's status, or the reconcile's error in the controller's; every other object is reconciled, and so is this one when it is mended";
}

/// The nearest closed port.
const NOWHERE: &str = "https://127.0.0.1:1/convert";

/// Requests of these verbs about a CRD's objects.
fn reads(action: Action, crd: &CrdBuilder) -> Rule {
    let resource = crd.api_resource("v1");
    let rule = Rule::new(action).verb(Verb::List).verb(Verb::Watch);
    rule.resource(resource.group, resource.plural)
}

fn status(code: u16, reason: &str, message: &str) -> Action {
    Action::Reply(Reply::status(code, reason, message))
}

/// Installs the type and adds a controller of it that reconciles again and again; it runs.
async fn at_work(world: &World, name: &str, crd: &CrdBuilder) -> Recorder {
    world.install(crd).await;
    world.create(crd, "kept", 1).await;
    let recorder = Recorder::new(type_of(crd, "v1"));
    recorder.act("kept", Act::Again(Duration::from_millis(100)));
    Embedded.add(world, name, &recorder).await;
    world.running(name, 1).await;
    recorder.saw("kept", 1).await;
    watched_again(world, crd, 0).await;
    recorder
}

/// A type that nothing happens to, and asserts that its controller works.
struct Bystander {
    crd: CrdBuilder,
    recorder: Recorder,
    status: std::sync::Arc<pilotlight::manager::RunnableStatus>,
}

impl Bystander {
    async fn arrives(world: &World) -> Self {
        let crd = CrdBuilder::new(&world.scope.group, "Bystander");
        world.install(&crd).await;
        let recorder = world.controller("bystander", &crd).await;
        let status = world.running("bystander", 1).await;
        watched_again(world, &crd, 0).await;
        Self { crd, recorder, status }
    }

    async fn is_served(&self, world: &World, name: &str) {
        world.create(&self.crd, name, 1).await;
        self.recorder.saw(name, 1).await;
        assert_unmoved(world, "bystander", &self.status);
    }
}

/// Waits until a reconcile has seen an old object and knows that it may be old.
async fn goes_on_stale(recorder: &Recorder) {
    recorder.clear();
    let stale = recorder.until("a stale reconcile", |seen| seen.stale).await;
    assert!(stale.uid.is_some(), "the cache is kept");
}

fn assert_nothing_purged(recorder: &Recorder) {
    let purged: Vec<_> = recorder.all().into_iter().filter(|seen| seen.uid.is_none()).collect();
    assert!(purged.is_empty(), "{purged:#?}");
}

/// A CRD whose objects are stored at `v1` and converted to `v2` by a webhook.
fn converted(world: &World) -> CrdBuilder {
    world.widgets().version("v1").version("v2")
}

/// The webhook is down: only the stored version can be read.
struct Outage(Vec<RuleId>);

impl Outage {
    async fn begins(world: &World, crd: &CrdBuilder) -> Self {
        if !world.server.is_simulated() {
            change_crd(world, crd, |crd| {
                crd.spec.conversion = Some(CustomResourceConversion {
                    strategy: "Webhook".to_owned(),
                    webhook: Some(WebhookConversion {
                        client_config: Some(WebhookClientConfig {
                            url: Some(NOWHERE.to_owned()),
                            ..WebhookClientConfig::default()
                        }),
                        conversion_review_versions: vec!["v1".to_owned()],
                    }),
                });
            })
            .await;
            return Self(Vec::new());
        }
        // In the real server's words.
        let stored = crd.gvk("v1");
        let failed = format!(
            "conversion webhook for {}/v1, Kind={} failed: Post \"{NOWHERE}?timeout=30s\": dial tcp \
             127.0.0.1:1: connect: connection refused",
            stored.group, stored.kind
        );
        let filling = format!(
            "storage is (re)initializing: failed to list {}/v2, Kind={}: {failed}",
            stored.group, stored.kind
        );
        let later = Reply::status(429, "TooManyRequests", &filling).retry_after(1);
        let resource = crd.api_resource("v2");
        let rules = [(Verb::List, status(500, "", &failed)), (Verb::Watch, Action::Reply(later))];
        let rules = rules.map(|(verb, action)| {
            let rule = Rule::new(action).verb(verb).path_contains("/v2/");
            world.faults.add(rule.resource(&resource.group, &resource.plural))
        });
        if let Some(script) = world.server.script() {
            script.close_watches(&crd.name());
        }
        Self(rules.into())
    }

    async fn ends(self, world: &World, crd: &CrdBuilder) {
        if !world.server.is_simulated() {
            change_crd(world, crd, |crd| {
                crd.spec.conversion =
                    Some(CustomResourceConversion { strategy: "None".to_owned(), webhook: None });
            })
            .await;
        }
        self.0.into_iter().for_each(|rule| world.faults.remove(rule));
    }
}

async fn a_conversion_webhook_that_is_down_holds_up_its_own_version_alone(server: Server<'static>) {
    let world = World::on(server, "faults-conversion").await;
    let crd = converted(&world);
    world.install(&crd).await;
    world.scope.wait_served(&crd, "v2").await.unwrap();
    world.create(&crd, "kept", 1).await;
    let bystander = Bystander::arrives(&world).await;
    let outage = Outage::begins(&world, &crd).await;

    let stored = world.controller("stored", &crd).await;
    let other = Recorder::new(type_of(&crd, "v2"));
    Embedded.add(&world, "converted", &other).await;

    let says = |it: &pilotlight::manager::RunnableStatus| {
        it.state == ControllerState::Starting && it.message.contains("conversion webhook for")
    };
    let starting = world.until("converted", "says what is wrong", says).await;
    assert_eq!(starting.reason, "SourcesSyncing", "{starting:#?}");
    stored.saw("kept", 1).await;
    bystander.is_served(&world, "meanwhile").await;
    assert_eq!(world.status("cluster").state, ControllerState::Running);
    let asked = || {
        let seen = world.faults.seen().into_iter().filter(about(&crd));
        seen.filter(|info| info.path.contains("/v2/")).count()
    };
    let (time, least, most) = if world.server.is_simulated() { (60, 2, 10) } else { (2, 0, 4) };
    let before = asked();
    time::sleep(Duration::from_secs(time)).await;
    let more = asked() - before;
    assert!((least..=most).contains(&more), "{more} requests in {time} s");
    assert!(other.all().is_empty(), "nothing can be seen at that version");

    outage.ends(&world, &crd).await;
    world.running("converted", 1).await;
    other.saw("kept", 1).await;
    for name in ["stored", "converted"] {
        assert_undisturbed(&world, name);
    }
    world.finish().await;
}

async fn a_conversion_webhook_that_goes_down_leaves_the_cache_behind(server: Server<'static>) {
    let world = World::on(server, "faults-unconverted").await;
    let crd = converted(&world);
    world.install(&crd).await;
    world.scope.wait_served(&crd, "v2").await.unwrap();
    world.create(&crd, "kept", 1).await;
    world.create(&crd, "deleted", 1).await;
    let recorder = Recorder::new(type_of(&crd, "v2"));
    recorder.act("kept", Act::Again(Duration::from_millis(100)));
    Embedded.add(&world, "converted", &recorder).await;
    world.running("converted", 1).await;
    for name in ["kept", "deleted"] {
        recorder.saw(name, 1).await;
    }
    watched_again(&world, &crd, 0).await;

    let outage = Outage::begins(&world, &crd).await;

    let stale = world.until("converted", "is stale", |it| it.report.stale).await;
    assert_eq!((stale.state, stale.epoch), (ControllerState::Running, 1));
    assert_eq!(stale.reason, "Stale");
    goes_on_stale(&recorder).await;
    assert_nothing_purged(&recorder);
    world.resize(&crd, "kept", 2).await;
    world.delete(&crd, "deleted").await;
    world.create(&crd, "created", 1).await;
    let type_state = world.cluster.types.get(recorder.type_ref()).state;
    assert_eq!(type_state, TypeState::Served, "its objects say nothing about the type");

    outage.ends(&world, &crd).await;
    recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
    recorder.saw("created", 1).await;
    recorder.until("the deletion", |it| it.name == "deleted" && it.uid.is_none()).await;
    world.until("converted", "is current", |it| it.reason == "Running").await;
    assert_undisturbed(&world, "converted");
    world.finish().await;
}

/// What stands behind an APIService.
enum Service {
    Simulated,
    Real(Backend),
}

impl Service {
    /// Serves `gauges` of this group, of which there is one.
    async fn starts(world: &World, group: &str) -> Self {
        let Some(script) = world.server.script() else {
            let certificate = world.plane().serving_certificate().unwrap();
            let backend = Backend::start(certificate, group, Discovery::Aggregated).await;
            install(world, group, &backend).await;
            return Self::Real(backend);
        };
        let name = format!("v1.{group}");
        script.back_api_service(&name, &[CrdBuilder::new(group, "Gauge")]);
        script.set_available(&name, true);
        let api_service = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": name },
            "spec": {
                "group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": { "namespace": "default", "name": "gauges", "port": 443 },
            },
        });
        script.apply(api_service).unwrap();
        let gauge = json!({
            "apiVersion": format!("{group}/v1"), "kind": "Gauge",
            "metadata": { "name": "pressure", "namespace": "default" },
        });
        script.apply(gauge).unwrap();
        Self::Simulated
    }

    fn turns(&self, world: &World, group: &str, health: Health) {
        match self {
            Self::Real(backend) => backend.turns(health),
            Self::Simulated => {
                let script = world.server.script().unwrap();
                script.set_available(&format!("v1.{group}"), health == Health::Well);
            }
        }
    }
}

async fn an_aggregated_service_that_is_down_is_unknown_and_not_gone(server: Server<'static>) {
    let world = World::on(server, "faults-aggregated").await;
    let widgets = world.widgets();
    world.install(&widgets).await;
    let of_crd = world.controller("widgets", &widgets).await;
    let running = world.running("widgets", 1).await;
    watched_again(&world, &widgets, 0).await;
    let group = format!("gauges.{}", world.scope.group);
    let service = Service::starts(&world, &group).await;
    let gauges = TypeRef::resource(&group, "v1", "gauges");
    let recorder = Recorder::new(gauges.clone());
    recorder.act("pressure", Act::Again(Duration::from_millis(100)));
    Embedded.add(&world, "gauges", &recorder).await;
    world.running("gauges", 1).await;
    recorder.saw("pressure", 1).await;
    let mark = world.mark();

    service.turns(&world, &group, Health::Ill);
    let stale = world.until("gauges", "is stale", |it| it.report.stale).await;
    assert_eq!((stale.state, stale.epoch), (ControllerState::Running, 1), "{stale:#?}");
    goes_on_stale(&recorder).await;
    world.create(&widgets, "meanwhile", 1).await;
    of_crd.saw("meanwhile", 1).await;
    // The real API server looks after its services every 30 seconds: `tests/aggregated.rs` waits.
    let is_known_to_be_down = world.server.is_simulated();
    let late = Recorder::new(gauges.clone());
    if is_known_to_be_down {
        let unknown = |state: &TypeState| matches!(state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
        world.type_state(&gauges, "is unknown", unknown).await;
        Embedded.add(&world, "late", &late).await;
        let waiting = world.until("late", "waits", |it| it.reason == "TypeUnknown").await;
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 0));
    }

    service.turns(&world, &group, Health::Well);
    world.until("gauges", "is current", |it| it.reason == "Running").await;
    world.type_state(&gauges, "is served", |it| *it == TypeState::Served).await;
    if is_known_to_be_down {
        world.running("late", 1).await;
        late.saw("pressure", 1).await;
    }
    assert_nothing_purged(&recorder);
    assert_undisturbed(&world, "gauges");
    assert_unmoved(&world, "widgets", &running);
    assert_eq!(lists(&world, &widgets, mark).await, 0, "nobody else is listed again");
    world.finish().await;
}

async fn discovery_that_answers_in_part_or_nothing_takes_nothing_away(server: Server<'static>) {
    let answers = [
        ("partial", Action::Partial { missing: vec!["apps".to_owned()], stale: Vec::new() }),
        ("stale", Action::Partial { missing: Vec::new(), stale: vec!["apps".to_owned()] }),
        ("empty", Action::edit(|answer| answer["items"] = json!([]))),
        ("missing", Action::Reply(Reply::text(404, "404 page not found\n"))),
        ("unavailable", status(503, "ServiceUnavailable", "")),
    ];
    let backstop = Duration::from_millis(100);
    let discovery = DiscoveryOptions { backstop, ..DiscoveryOptions::default() };
    let options = RigOptions { discovery, ..RigOptions::default() };
    let world = World::with(server, "faults-discovery", options).await;
    let crd = world.widgets();
    world.install(&crd).await;
    let types = [
        ("widgets", type_of(&crd, "v1")),
        ("configmaps", TypeRef::resource("", "v1", "configmaps")),
        ("deployments", TypeRef::resource("apps", "v1", "deployments")),
    ];
    let mut running = Vec::new();
    for (name, type_ref) in &types {
        Embedded.add(&world, name, &Recorder::new(type_ref.clone())).await;
        running.push((*name, world.running(name, 1).await));
    }
    watched_again(&world, &crd, 0).await;
    let mark = world.mark();

    for (fault, action) in answers {
        let rule = world.faults.add(Rule::new(action).verb(Verb::Get).path_is("/apis"));
        hits(&world, rule, 4).await;

        for (name, type_ref) in &types {
            let state = world.cluster.types.get(type_ref).state;
            // CRDs say themselves what they serve, and the core group is not asked for there.
            let may_be_doubted = *name == "deployments";
            let is_doubted =
                matches!(&state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
            let is_known = state == TypeState::Served || may_be_doubted && is_doubted;
            assert!(is_known, "{fault}: {name} is {state:?}");
            assert_undisturbed(&world, name);
        }
        if fault == "empty" {
            let health = world.cluster.types.health().discovery;
            assert!(health.error.is_some(), "{fault}: it is told of: {health:?}");
        }
        world.faults.remove(rule);
        let served = |state: &TypeState| *state == TypeState::Served;
        world.type_state(&types[2].1, "is served again", served).await;
    }
    for (name, status) in &running {
        assert_undisturbed(&world, name);
        assert_eq!(world.status(name).since, status.since, "{name}");
    }
    let health = eventually("discovery is current", || {
        let health = world.cluster.types.health().discovery;
        if health.error.is_none() { Ok(()) } else { Err(format!("{health:?}")) }
    });
    health.await;
    assert!(world.requests(&crd, mark).await.is_empty(), "nothing is listed or watched anew");
    world.finish().await;
}

async fn a_transient_404_is_no_proof_of_absence(server: Server<'static>) {
    let world = World::on(server, "faults-404").await;
    let crd = world.widgets();
    let recorder = at_work(&world, "widgets", &crd).await;
    let bystander = Bystander::arrives(&world).await;
    let asked_discovery = |info: &RequestInfo| info.path == "/apis" || info.path == "/api";
    let mark = world.mark();

    let missing = Action::Reply(Reply::text(404, "404 page not found\n"));
    let rule = world.faults.add(reads(missing, &crd));
    assert_eq!(world.faults.cut_open(about(&crd)), 1);
    world.faults.forget_seen();
    world.until("widgets", "is stale", |it| it.report.stale).await;
    goes_on_stale(&recorder).await;
    assert_eq!(world.cluster.types.get(recorder.type_ref()).state, TypeState::Served);
    bystander.is_served(&world, "meanwhile").await;
    world.resize(&crd, "kept", 2).await;
    // From 5 ms, doubling.
    let asked = world.faults.hits(rule);
    assert!((6..30).contains(&asked), "{asked} requests");
    if world.server.is_simulated() {
        let discovered = world.faults.seen().into_iter().filter(asked_discovery).count();
        assert_eq!(discovered, 0, "its CRD says that it is there");
    }

    world.faults.remove(rule);
    recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
    world.until("widgets", "is current", |it| it.reason == "Running").await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&world, "widgets");
    assert_eq!(lists(&world, &crd, mark).await, 0, "the watch goes on where it was");
    world.finish().await;
}

async fn a_transient_404_of_a_write_is_no_proof_of_absence(server: Server<'static>) {
    let world = World::on(server, "faults-404-write").await;
    let crd = world.widgets();
    world.install(&crd).await;
    // A child for a size of 1, and none for any other.
    let hook = InProcessHook::new(|request| async move {
        let mut answer = one_config_map(&request);
        if request["parent"]["spec"]["size"] != 1 {
            answer["children"] = json!([]);
        }
        Ok(answer)
    });
    world.supervise(&hook).await;
    world.declare("declared", &crd).await;
    let declared = world.runnable("declared");
    world.running(&declared, 1).await;
    let written = async |size: i64, children: usize| {
        until(&format!("the status says {size}, with {children} children"), async || {
            let gear = world.scope.api(&crd, "v1").get("gear").await.unwrap();
            let maps = world.config_maps().list(&Default::default()).await.unwrap().items;
            let mine = maps.iter().filter(|map| map.metadata.name.as_deref() == Some("gear"));
            let found = (gear.data["status"]["size"].clone(), mine.count());
            if found == (size.into(), children) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    };
    world.create(&crd, "gear", 1).await;
    written(1, 1).await;
    let missing = || Action::Reply(Reply::text(404, "404 page not found\n"));

    let deletion = Rule::new(missing()).verb(Verb::Delete).resource("", "configmaps").times(1);
    let deletion = world.faults.add(deletion);
    world.resize(&crd, "gear", 2).await;
    hits(&world, deletion, 1).await;
    written(2, 0).await;

    let status = Rule::new(missing()).verb(Verb::Update).subresource("status").name("gear");
    let status = world.faults.add(status.times(1));
    world.resize(&crd, "gear", 3).await;
    hits(&world, status, 1).await;
    written(3, 0).await;
    assert_undisturbed(&world, &declared);
    world.withdraw("declared").await;
    world.finish().await;
}

/// Counts the lists that are under way at once while something happens: what they were at most.
async fn most_lists_at_once<T>(
    faults: &Faults,
    which: impl Fn(&RequestInfo) -> bool,
    happens: impl Future<Output = T>,
) -> (T, usize) {
    let most = AtomicUsize::new(0);
    let is_list =
        |info: &RequestInfo| info.verb == Verb::List || info.query.contains("sendInitialEvents");
    let look = faults.wait_until(|faults| {
        let open = faults.open().into_iter();
        let lists = open.filter(|it| !it.answered && is_list(&it.info) && which(&it.info)).count();
        most.fetch_max(lists, Ordering::Relaxed);
        false
    });
    let result = select! {
        result = happens => result,
        () = look => unreachable!("it is never at its end"),
    };
    (result, most.into_inner())
}

/// Types with one object and one controller each.
struct Many {
    crds: Vec<CrdBuilder>,
    recorders: Vec<Recorder>,
}

impl Many {
    async fn arrive(world: &World, count: usize) -> Self {
        let numbers = (0..count).map(|number| async move {
            // The server compares the names of a group with each other.
            let group = format!("g{}.{}", number / 50, world.scope.group);
            let crd = CrdBuilder::new(group, format!("Kind{number}"));
            world.install(&crd).await;
            world.create(&crd, "kept", 1).await;
            let recorder = world.controller(&format!("many-{number}"), &crd).await;
            world.running(&format!("many-{number}"), 1).await;
            recorder.saw("kept", 1).await;
            watched_again(world, &crd, 0).await;
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

    /// Changes each object, and waits until each controller has seen it.
    async fn are_changed(&self, world: &World, size: i64) {
        self.are_resized(world, size).await;
        self.have_seen(size).await;
    }

    async fn are_resized(&self, world: &World, size: i64) {
        join_all(self.crds.iter().map(|crd| world.resize(crd, "kept", size))).await;
    }

    async fn have_seen(&self, size: i64) {
        for recorder in &self.recorders {
            recorder.until("the change", |seen| seen.size == Some(size)).await;
        }
    }

    fn assert_undisturbed(&self, world: &World) {
        for (number, recorder) in self.recorders.iter().enumerate() {
            assert_undisturbed(world, &format!("many-{number}"));
            assert_nothing_purged(recorder);
        }
    }
}

fn with_cap(max_concurrent_lists: usize) -> RigOptions {
    let informers = InformerOptions { max_concurrent_lists, ..InformerOptions::default() };
    RigOptions { informers, ..RigOptions::default() }
}

async fn a_server_that_restarts_or_goes_back_stops_nothing(server: Server<'static>) {
    const TYPES: usize = 12;
    const CAP: usize = 3;
    let world = World::with(server, "faults-restart", with_cap(CAP)).await;
    let many = Many::arrive(&world, TYPES).await;
    let script = world.server.script().unwrap();
    script.set_delays(Delays { latency: Duration::from_millis(20), ..Delays::default() });

    // The longest back-off, and what it is spread by.
    let backed_off = Duration::from_secs(40);
    // A watch from a version that is yet to come is silent, and ends at its time.
    let watched_out = Duration::from_secs(240);
    let events = [
        ("restart", backed_off, 1),
        ("outage", backed_off, 1),
        // A look at the server's version comes first.
        ("older backup", watched_out, 2),
    ];
    for (size, (event, longest, most_lists)) in (2..).zip(events) {
        let mark = world.mark();
        let before: Vec<_> = many.crds.iter().map(|crd| watches(&world, crd)).collect();
        let happens = async {
            match event {
                "restart" => script.restart(),
                "outage" => {
                    script.stop();
                    for number in 0..TYPES {
                        let name = format!("many-{number}");
                        let status = world.until(&name, "is stale", |it| it.report.stale).await;
                        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
                    }
                    script.start();
                }
                _ => script.restart_at(script.resource_version() / 2),
            }
            many.are_resized(&world, size).await;
            time::sleep(longest).await;
            many.have_seen(size).await;
            for (crd, before) in many.crds.iter().zip(&before) {
                watched_again(&world, crd, *before).await;
            }
        };
        let is_about = many.is_about();
        let ((), most) = most_lists_at_once(&world.faults, is_about, happens).await;
        assert!(most <= CAP, "{event}: {most} lists at once");
        for crd in &many.crds {
            let lists = lists(&world, crd, mark).await;
            assert!(lists <= most_lists, "{event}: {lists} lists of {}", crd.name());
        }
        many.assert_undisturbed(&world);
        for number in 0..TYPES {
            let status = world.status(&format!("many-{number}"));
            assert_eq!(status.reason, "Running", "{event}: {status:#?}");
        }
    }
    world.finish().await;
}

async fn a_storm_of_410_keeps_to_the_cap_of_lists(server: Server<'static>) {
    let is_simulated = server.is_simulated();
    let (types, cap) = if is_simulated { (500, 16) } else { (8, 2) };
    let world = World::with(server, "faults-storm", with_cap(cap)).await;
    let many = Many::arrive(&world, types).await;
    let latency = Duration::from_millis(20);
    if let Some(script) = world.server.script() {
        script.set_delays(Delays { latency, ..Delays::default() });
    }
    let (mark, is_about) = (world.mark(), many.is_about());

    let storm = async {
        let begin = Instant::now();
        if let Some(script) = world.server.script() {
            // The watches have not heard of this, so they are in the past.
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "later", "namespace": "default" },
            });
            script.apply(map).unwrap();
            script.compact();
            for crd in &many.crds {
                assert_eq!(script.close_watches(&crd.name()), 1);
            }
        } else {
            let expired = status(410, "Expired", "too old resource version: 1 (2)");
            // Watches that go on from a version; not the lists that follow.
            let rule = Rule::new(expired).verb(Verb::Watch).query_contains("resourceVersion=");
            let is_mine = format!(".{}/", world.scope.group);
            world.faults.add(rule.path_contains(is_mine).times(types));
            assert_eq!(world.faults.cut_open(&is_about), types);
        }
        many.are_changed(&world, 2).await;
        for crd in &many.crds {
            watched_again(&world, crd, 1).await;
        }
        begin.elapsed()
    };
    let (took, most) = most_lists_at_once(&world.faults, many.is_about(), storm).await;

    assert!(most <= cap, "{most} lists at once");
    if is_simulated {
        assert_eq!(most, cap, "what may be used is used");
        let share = u32::try_from(types.div_ceil(cap)).unwrap();
        assert!(took < latency * (share + 10), "{took:?}");
    }
    for crd in &many.crds {
        assert_eq!(lists(&world, crd, mark).await, 1, "{}", crd.name());
    }
    many.assert_undisturbed(&world);
    let mut informers = world.cluster.informers.status();
    informers.retain(|it| it.key.identity.plural.starts_with("kind"));
    assert_eq!(informers.len(), types);
    assert!(informers.iter().all(|it| it.objects == 1), "{informers:#?}");
    world.finish().await;
}

async fn a_streaming_list_without_an_end_is_followed_by_pages(server: Server<'static>) {
    let world = World::on(server, "faults-stream").await;
    let crd = world.widgets();
    let recorder = at_work(&world, "widgets", &crd).await;
    let bystander = Bystander::arrives(&world).await;
    let resource = crd.api_resource("v1");
    let about_it =
        |action| Rule::new(action).verb(Verb::Watch).resource(&resource.group, &resource.plural);
    let expired = status(410, "Expired", "too old resource version: 1 (2)");
    let endless = about_it(Action::Stall { after_bytes: 0 }).query_contains("sendInitialEvents");
    let endless = world.faults.add(endless);
    world.faults.add(about_it(expired).times(1));
    let begin = Instant::now();
    assert_eq!(world.faults.cut_open(about(&crd)), 1);
    hits(&world, endless, 1).await;
    world.resize(&crd, "kept", 2).await;
    bystander.is_served(&world, "meanwhile").await;

    recorder.until("the change", |seen| seen.size == Some(2)).await;
    let took = begin.elapsed();
    assert!((10..13).contains(&took.as_secs()), "{took:?}");
    assert_eq!(world.faults.hits(endless), 1, "whoever knows no end is not asked so again");
    world.until("widgets", "is current", |it| it.reason == "Running").await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&world, "widgets");
    bystander.is_served(&world, "afterwards").await;
    world.finish().await;
}

async fn tokens_that_expire_stop_nothing(server: Server<'static>) {
    let is_simulated = server.is_simulated();
    let (types, time) = if is_simulated { (20, 120) } else { (4, 1) };
    let world = World::on(server, "faults-401").await;
    let many = Many::arrive(&world, types).await;
    for recorder in &many.recorders {
        recorder.act("kept", Act::Again(Duration::from_millis(100)));
    }
    many.are_changed(&world, 2).await;

    let rule = world.faults.add(Rule::new(status(401, "Unauthorized", "Unauthorized")));
    world.faults.cut_open(|_| true);
    for (number, recorder) in many.recorders.iter().enumerate() {
        let name = format!("many-{number}");
        let status = world.until(&name, "is stale", |it| it.report.stale).await;
        assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
        goes_on_stale(recorder).await;
    }
    time::sleep(Duration::from_secs(time)).await;
    many.assert_undisturbed(&world);
    world.faults.remove(rule);

    let begin = Instant::now();
    many.are_changed(&world, 3).await;
    assert!(begin.elapsed() < Duration::from_secs(33), "{:?}", begin.elapsed());
    for number in 0..types {
        world.until(&format!("many-{number}"), "is current", |it| it.reason == "Running").await;
    }
    let health = eventually("CRDs are current", || {
        let health = world.cluster.types.health();
        if health.crds.stale_since.is_none() { Ok(()) } else { Err(format!("{health:?}")) }
    });
    health.await;
    many.assert_undisturbed(&world);
    world.finish().await;
}

async fn a_server_that_asks_for_patience_gets_it(server: Server<'static>) {
    let world = World::on(server, "faults-429").await;
    let crd = world.widgets();
    let recorder = at_work(&world, "widgets", &crd).await;
    let bystander = Bystander::arrives(&world).await;
    let patience = 2;
    let busy = Reply::status(429, "TooManyRequests", "the server is busy").retry_after(patience);
    let rule = world.faults.add(reads(Action::Reply(busy), &crd));
    assert_eq!(world.faults.cut_open(about(&crd)), 1);

    hits(&world, rule, 1).await;
    let first = Instant::now();
    world.resize(&crd, "kept", 2).await;
    bystander.is_served(&world, "meanwhile").await;
    hits(&world, rule, 2).await;

    let waited = first.elapsed().as_secs_f64();
    // What was counted from is the moment when the test had noticed.
    assert!((1.9..3.0).contains(&waited), "{waited} s");
    let status = world.status("widgets");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    world.faults.remove(rule);
    recorder.until("the change", |seen| seen.size == Some(2)).await;
    world.until("widgets", "is current", |it| it.reason == "Running").await;
    assert_nothing_purged(&recorder);
    assert_undisturbed(&world, "widgets");
    world.finish().await;
}

async fn rights_that_are_taken_away_show_and_cost_nothing(server: Server<'static>) {
    let mut options = RigOptions::unprivileged();
    // For the connections that are there before anything is counted.
    options.rights.push(Right::to_watch("", "namespaces"));
    let world = World::with(server, "faults-rights", options).await;
    let crd = world.widgets();
    let rights = [Right::all_of(&world.scope.group, "widgets")];
    world.grant("widgets", &rights).await;
    world.grant("bystanders", &[Right::all_of(&world.scope.group, "bystanders")]).await;
    let recorder = at_work(&world, "widgets", &crd).await;
    let bystander = Bystander::arrives(&world).await;

    world.revoke("widgets").await;
    let before = watches(&world, &crd);
    assert_eq!(world.faults.cut_open(about(&crd)), 1, "what is open stays open");
    let refused = world.until("widgets", "is forbidden", |it| it.reason == "Forbidden").await;
    assert_eq!((refused.state, refused.epoch), (ControllerState::Running, 1));
    assert!(refused.message.contains("grant") && refused.message.contains(&crd.name()));
    assert!(refused.report.stale);
    goes_on_stale(&recorder).await;
    world.resize(&crd, "kept", 2).await;
    bystander.is_served(&world, "meanwhile").await;
    if world.server.is_simulated() {
        time::sleep(Duration::from_secs(300)).await;
        let asked = watches(&world, &crd) - before;
        assert!((10..=14).contains(&asked), "{asked} requests in 5 min");
    }

    world.grant("widgets", &rights).await;
    let begin = Instant::now();
    recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
    world.until("widgets", "is current", |it| it.reason == "Running").await;
    assert!(begin.elapsed() < Duration::from_secs(34), "{:?}", begin.elapsed());
    assert_nothing_purged(&recorder);
    assert_undisturbed(&world, "widgets");
    world.finish().await;
}

async fn an_object_that_cannot_be_decoded_is_told_of_and_left_out(server: Server<'static>) {
    let world = World::on(server, "faults-undecodable").await;
    let crd = world.widgets();
    world.install(&crd).await;
    for name in ["a", "bad", "c"] {
        world.create(&crd, name, 1).await;
    }
    let spoil = |answer: &mut Value| {
        for item in answer["items"].as_array_mut().into_iter().flatten() {
            if item["metadata"]["name"] == "bad" {
                item["metadata"]["labels"] = json!(["not", "a", "map"]);
            }
        }
    };
    let rule = Rule::new(Action::edit(spoil)).verb(Verb::List);
    let resource = crd.api_resource("v1");
    let rule = world.faults.add(rule.resource(&resource.group, &resource.plural));

    let recorder = world.controller("widgets", &crd).await;
    world.running("widgets", 1).await;
    for name in ["a", "c"] {
        recorder.saw(name, 1).await;
    }
    assert_eq!(recorder.all().len(), 2, "{:#?}", recorder.all());
    let informer = || {
        let mut all = world.cluster.informers.status();
        all.retain(|it| *it.key.identity.plural == *resource.plural);
        all.remove(0)
    };
    let told = informer();
    assert_eq!((told.progress, told.quarantined.len()), (Progress::Synced, 1));
    let error = &told.quarantined[0];
    assert_eq!(error.key.as_ref().map(|key| &*key.name), Some("bad"));
    assert_eq!(error.field, "metadata.labels");
    world.faults.remove(rule);
    watched_again(&world, &crd, 0).await;

    world.resize(&crd, "bad", 2).await;
    recorder.until("the mended one", |seen| seen.name == "bad" && seen.size == Some(2)).await;
    assert!(informer().quarantined.is_empty());

    // One that the cache can read, and the reconciler cannot.
    world.edit(&crd, "c", json!({ "spec": { "size": "large" } })).await;
    let told = world.until("widgets", "tells of it", |it| it.last_error().is_some()).await;
    assert_eq!((told.state, told.epoch), (ControllerState::Running, 1));
    world.resize(&crd, "a", 3).await;
    recorder.until("another", |seen| seen.name == "a" && seen.size == Some(3)).await;
    world.resize(&crd, "c", 3).await;
    recorder.until("the mended one", |seen| seen.name == "c" && seen.size == Some(3)).await;
    assert_undisturbed(&world, "widgets");
    world.finish().await;
}
