//! Conditions of the library: permissions, absent types, and conditions of inputs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

use super::{
    types::{assert_absent, tasks},
    *,
};
use crate::{
    discovery::TypeState,
    manager::{
        Condition, ConditionalRunnable, Readiness, RunnableWithCondition, Subresource,
        UnmetRequirement, Verdict, all_of, always, not, subresource_served, type_served,
    },
    testing::{Action, Reply, Rule, Verb, simulated::AccessRule},
};

pub(super) async fn add_condition(harness: &Harness, condition: impl ConditionalRunnable) {
    let options = RunnableOptions::default();
    harness.manager.add("condition", Arc::new(condition), options).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn controller_lives_with_its_permission_and_another_one_lives_on() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.install("Thing");
    let path = "/apis/example.com/v1/things";
    let things = TypeRef::resource("example.com", "v1", "things");
    let permission = Permission::new(&harness.cluster, "create", "example.com", "parts");
    harness.server.forbid("parts.example.com");
    add_condition(&harness, permission.clone()).await;
    let plain = Controller::builder("plain").for_type(widgets());
    let plain = Arc::new(harness.build(plain));
    harness.manager.add("plain", plain, RunnableOptions::default()).await.unwrap();
    harness.add(builder().for_type(things).when(permission)).await;
    harness.until(|status| status.reason == "Forbidden").await;
    let before = tasks().await;
    assert_eq!(harness.server.requests_of(path), 0);

    for round in 1..=2 {
        harness.server.allow("parts.example.com");
        assert_eq!(harness.state(ControllerState::Running).await.epoch, round);
        harness.server.apply(object("Thing", "a", "a"));
        assert!(harness.log().await.iter().any(|note| note.starts_with("ns/a")));
        assert_eq!(harness.server.watches(path), 1);

        harness.server.forbid("parts.example.com");
        let waiting = harness.until(|status| status.reason == "Forbidden").await;
        assert_eq!(waiting.state, ControllerState::Waiting);
        assert!(waiting.message.contains("not allowed to create parts"), "{}", waiting.message);
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        harness.log().await;
        harness.server.apply(object("Thing", "a", "a"));
        assert_eq!(harness.log().await, [""; 0]);
        assert_absent(&harness, path, before).await;
        assert_eq!(harness.server.watches(WIDGETS), 1);
        assert_eq!(harness.cluster.informers.status().len(), 1, "that of the other controller");
    }

    let plain = harness.manager.status_of("plain").unwrap();
    assert_eq!((plain.state, plain.epoch), (ControllerState::Running, 1));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn single_denial_of_a_granted_permission_stops_no_controller() {
    let harness = Harness::new();
    harness.install("Widget");
    let permission = Permission::new(&harness.cluster, "create", "example.com", "parts");
    add_condition(&harness, permission.clone()).await;
    harness.add(builder().for_type(widgets()).when(permission)).await;
    harness.state(ControllerState::Running).await;

    // An API server that has not read its roles yet.
    let denial = Action::edit(|review| review["status"]["allowed"] = false.into());
    let denial = Rule::new(denial).verb(Verb::Create);
    let denial = denial.resource("authorization.k8s.io", "selfsubjectaccessreviews");
    harness.server.fault(denial.clone().times(1));
    sleep(Duration::from_secs(600)).await;
    let status = harness.status();
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1), "{status:?}");

    harness.server.fault(denial.times(2));
    let waiting = harness.state(ControllerState::Waiting).await;
    assert_eq!(waiting.reason, "Forbidden");
    assert_eq!(harness.state(ControllerState::Running).await.epoch, 2);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn conditions_are_added_without_a_name_also_several_on_one_thing() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let permission = || Permission::new(&harness.cluster, "create", "example.com", "parts");
    let (one, other) = (permission(), permission().namespace("ns"));
    let key = || crate::informer::ObjectKey::namespaced("ns", "switch");
    let marked = |mark: &'static str| {
        ObjectCondition::new(&harness.cluster, parts(), key(), move |part| {
            part.header().labels.get("mark") != Some(mark)
        })
    };
    let (first, second) = (marked("off"), marked("broken"));
    let mut manager = Manager::new(ManagerOptions::default());
    permission().add_to(&mut manager).unwrap();
    permission().add_to(&mut manager).unwrap();
    marked("off").add_to(&mut manager).unwrap();
    marked("broken").add_to(&mut manager).unwrap();
    for permission in [&one, &other, &permission()] {
        permission.add_to_running(&harness.manager).await.unwrap();
    }
    first.add_to_running(&harness.manager).await.unwrap();
    let second_name = second.add_to_running(&harness.manager).await.unwrap();
    assert_eq!(second_name.as_str(), "state of ns/switch of parts.example.com/v1 2");

    harness.add(builder().for_type(widgets()).when(one).when(other).when(first).when(second)).await;
    harness.until(|status| status.reason == "ObjectStateUnmet").await;
    for mark in ["off", "broken"] {
        harness.server.apply(object("Part", "switch", mark));
        run_until_idle().await;
        assert_eq!(harness.status().state, ControllerState::Waiting, "{mark}");
    }
    harness.server.apply(object("Part", "switch", "on"));
    harness.state(ControllerState::Running).await;

    let names: Vec<_> = harness.manager.status().keys().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "cluster",
            "permission to create parts.example.com",
            "permission to create parts.example.com 2",
            "permission to create parts.example.com in ns",
            "state of ns/switch of parts.example.com/v1",
            "state of ns/switch of parts.example.com/v1 2",
            NAME,
        ]
    );
    harness.server.forbid("parts.example.com");
    harness.until(|status| status.reason == "Forbidden").await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn condition_that_is_added_to_a_controller_leaves_it_its_own() {
    let harness = Harness::new();
    let (open, verdicts) = watch::channel(Verdict::Met(Vec::new()));
    let condition = move || Readiness::published(verdicts.clone());
    let controller = Arc::new(harness.build(builder().for_type(widgets()).conditional()));
    let both = Arc::new(RunnableWithCondition::new(controller, condition));
    harness.manager.add(NAME, both, RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Waiting).await;

    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    open.send_replace(Verdict::Unmet(Vec::new()));
    harness.state(ControllerState::Waiting).await;
    open.send_replace(Verdict::Met(Vec::new()));
    harness.state(ControllerState::Running).await;
    harness.server.uninstall("widgets");
    harness.state(ControllerState::Waiting).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn permission_is_reviewed_again_after_a_refused_write() {
    let places = [
        "the builder",
        "a combination",
        "the outside",
        "two layers outside",
        "an optional input",
        "an input by name",
        "a report of the reconciler",
    ];
    for place in places {
        let harness = Harness::new();
        harness.install("Widget");
        let day = Duration::from_secs(24 * 3600);
        let permission = Permission::new(&harness.cluster, "create", "", "configmaps");
        let permission = permission.interval(day);
        add_condition(&harness, permission.clone()).await;
        let refuse = move |_: Request, context: Context| async move {
            if place == "a report of the reconciler" {
                context.epoch().refused();
                return Ok(Outcome::Done);
            }
            let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
            Err(kube::Error::Api(status.boxed()).into())
        };
        let described = builder().for_type(widgets());
        let (added, combined) = (permission.clone(), permission.clone());
        let (watched, by_name) = (permission.clone(), permission.clone());
        let described = match place {
            "the builder" | "a report of the reconciler" => described.when(permission),
            "an optional input" => {
                described.watches_type(parts(), Handler::Object).optional().input_when(permission)
            }
            "a combination" => {
                described.when(move || all_of([always(), not(not(combined.watch()))]))
            }
            _ => described,
        };
        let controller = Arc::new(described.build(&harness.cluster, refuse).unwrap());
        if place == "an input by name" {
            let add = |input: Builder| {
                input.watches_type(parts(), Handler::Object).optional().input_when(by_name)
            };
            drop(controller.inputs().add("parts", add).unwrap());
        }
        let controller: Arc<dyn ConditionalRunnable> = match place {
            "the outside" => Arc::new(RunnableWithCondition::new(controller, added)),
            "two layers outside" => {
                let inner = Arc::new(RunnableWithCondition::new(controller, added));
                Arc::new(RunnableWithCondition::new(inner, always))
            }
            _ => controller,
        };
        harness.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
        harness.state(ControllerState::Running).await;
        let mut verdicts = watched.watch();
        assert!(matches!(verdicts.verdict(), Verdict::Met(_)), "{place}");
        let begin = Instant::now();

        harness.server.forbid("configmaps");
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(harness.status().state, ControllerState::Running, "nothing was refused yet");
        harness.server.apply(widget("a", "a"));
        while !matches!(verdicts.verdict(), Verdict::Unmet(_)) {
            verdicts.changed().await;
        }
        if !place.contains("input") {
            harness.state(ControllerState::Waiting).await;
        }

        assert!(begin.elapsed() < Duration::from_secs(3700), "{place}: {:?}", begin.elapsed());
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn permission_is_reviewed_again_after_a_refused_watch_of_an_input() {
    let harness = Harness::new();
    harness.install("Widget");
    let day = Duration::from_secs(24 * 3600);
    let permission = Permission::new(&harness.cluster, "list", "example.com", "widgets");
    let permission = permission.interval(day);
    add_condition(&harness, permission.clone()).await;
    harness.add(builder().for_type(widgets()).when(permission)).await;
    harness.state(ControllerState::Running).await;
    let begin = Instant::now();

    harness.server.forbid("widgets.example.com");
    harness.server.cut_watches("widgets");
    harness.state(ControllerState::Waiting).await;

    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn permission_is_that_of_its_namespace_and_subresource() {
    let harness = Harness::new();
    let rules = [
        AccessRule::deny().resources(["parts.example.com"]).namespaces(["two"]),
        AccessRule::deny().resources(["parts/status.example.com"]).namespaces(["ns"]),
    ];
    harness.server.rules(rules);
    let cases = [
        ("parts", "ns", None),
        ("parts", "two", Some("parts of group \"example.com\" in the namespace two")),
        ("parts/status", "two", None),
        ("parts/status", "ns", Some("parts/status of group \"example.com\" in the namespace ns")),
    ];
    for (resource, namespace, refused) in cases {
        let permission = Permission::new(&harness.cluster, "patch", "example.com", resource);
        let permission = permission.namespace(namespace);
        let mut verdicts = permission.watch();
        add_condition(&harness, permission).await;
        while matches!(verdicts.verdict(), Verdict::Unknown(_)) {
            verdicts.changed().await;
        }

        let verdict = verdicts.verdict();
        let expected = refused.map(|refused| format!("not allowed to patch {refused}"));
        let message = verdict.reasons().first().map(|unmet| unmet.message.clone());
        assert_eq!(message, expected, "{resource} {namespace}");

        harness.manager.remove("condition").await;
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn controller_waits_for_a_subresource_of_its_type() {
    let harness = Harness::new();
    harness.server.install(crd("Widget").without_status(), &["v1"]);
    let types = harness.cluster.types.clone();
    let has_status = move || subresource_served(&types, &widgets(), Subresource::Status);
    harness.add(builder().for_type(widgets()).when(has_status)).await;
    harness.until(|status| status.message.contains("status")).await;
    assert_eq!(harness.server.watches(WIDGETS), 0);

    harness.install("Widget");
    harness.state(ControllerState::Running).await;
    harness.server.install(crd("Widget").without_status(), &["v1"]);
    harness.until(|status| status.message.contains("status")).await;
    harness.state(ControllerState::Waiting).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failed_review_is_repeated_every_five_seconds_whatever_the_interval() {
    let harness = Harness::new();
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let broken = Reply::status(500, "InternalError", "broken");
    harness.server.fault(Rule::new(Action::Reply(broken)).path_contains(path));
    let permission = Permission::new(&harness.cluster, "create", "", "configmaps");
    let first = harness.server.creations();

    add_condition(&harness, permission.interval(Duration::ZERO)).await;
    sleep(Duration::from_secs(58)).await;

    assert_eq!(harness.server.creations() - first, 12);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn fallback_runs_while_a_type_is_proven_absent_twice_round() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "a"));
    let (service, gears) =
        ("v1beta1.metrics.example.com", TypeRef::kind("metrics.example.com", "v1beta1", "Gear"));
    let (types, name) = (harness.cluster.types.clone(), gears.clone());
    let before = tasks().await;
    let is_absent = move || not(type_served(&types, &name));
    harness.add(builder().for_type(widgets()).when(is_absent)).await;
    let state = || harness.cluster.types.get(&gears).state;
    let unknown = |last: TypeState| TypeState::Unknown(Some(Box::new(last)));
    let discovery_fails = async || {
        let down = Action::Instead(Reply::status(503, "ServiceUnavailable", "down"));
        let rule = harness.server.fault(Rule::new(down).path_is("/apis"));
        sleep(Duration::from_secs(3600)).await;
        harness.server.remove(rule);
    };

    for epoch in 1..=2 {
        assert_eq!(harness.state(ControllerState::Running).await.epoch, epoch);
        assert_eq!(harness.log().await, ["ns/a a"]);
        harness.server.add_api_service(service);
        discovery_fails().await;
        assert_eq!(state(), unknown(TypeState::Absent), "its service does not answer");
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, ["ns/a a"]);
        assert_eq!((harness.status().epoch, harness.server.watches(WIDGETS)), (epoch, 1));

        harness.server.set_available(service, true);
        let waiting = harness.until(|status| status.reason == "ConditionMet").await;
        assert_eq!(waiting.state, ControllerState::Waiting);
        assert!(waiting.message.contains("is served and must not be"), "{}", waiting.message);
        // Longer than an informer lingers.
        sleep(Duration::from_secs(20)).await;
        harness.server.apply(widget("a", "a"));
        assert_eq!(harness.log().await, [""; 0]);
        assert_absent(&harness, WIDGETS, before).await;

        harness.server.set_available(service, false);
        discovery_fails().await;
        assert_eq!(state(), unknown(TypeState::Served), "its service does not answer");
        assert_eq!(harness.status().state, ControllerState::Waiting);
        assert_absent(&harness, WIDGETS, before).await;
        harness.server.remove_api_service(service);
    }
    assert_eq!(harness.state(ControllerState::Running).await.epoch, 3);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn conditions_of_inputs_hold_the_controller_or_one_optional_input() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "a"));
    harness.server.apply(part("one", "a"));
    let off = || {
        let message = "switched off".to_owned();
        Verdict::Unmet(vec![UnmetRequirement { reason: "Off".into(), message, type_ref: None }])
    };
    let (required, optional) = (watch::Sender::new(off()), watch::Sender::new(off()));
    let (one, other) = (required.subscribe(), optional.subscribe());
    harness
        .add(
            builder()
                .for_type(widgets())
                .conditional()
                .input_when(move || Readiness::published(one.clone()))
                .owns_type(parts())
                .optional()
                .input_when(move || Readiness::published(other.clone())),
        )
        .await;
    harness.until(|status| status.reason == "Off").await;
    assert_eq!(harness.server.requests_of(WIDGETS), 0);

    required.send_replace(Verdict::Met(Vec::new()));
    harness.state(ControllerState::Running).await;
    assert_eq!(harness.log().await, ["ns/a a"]);
    assert_eq!(harness.server.requests_of(PARTS), 0, "its own condition is not met");
    let before = tasks().await;
    for _ in 0..2 {
        optional.send_replace(Verdict::Met(Vec::new()));
        assert_eq!(harness.log().await, ["ns/a a"], "the owner of the part");
        harness.server.apply(part("two", "a"));
        assert_eq!(harness.log().await, ["ns/a a"]);
        assert_eq!(harness.server.watches(PARTS), 1);

        optional.send_replace(off());
        assert_eq!(harness.log().await, ["ns/a a"], "its parts are out of sight");
        harness.server.apply(part("two", "a"));
        assert_eq!(harness.log().await, [""; 0], "also while the informer lingers");
        sleep(Duration::from_secs(20)).await;
        harness.server.apply(part("two", "a"));
        assert_eq!(harness.log().await, [""; 0]);
        assert_absent(&harness, PARTS, before).await;
        assert_eq!(harness.server.watches(WIDGETS), 1, "the required input continues");
    }
    harness.server.apply(widget("a", "b"));
    assert_eq!(harness.log().await, ["ns/a b"]);
    assert_eq!(harness.status().epoch, 1, "the controller runs on");

    required.send_replace(off());
    harness.until(|status| status.reason == "Off").await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn condition_is_removed_by_the_name_under_which_it_was_added() {
    let harness = Harness::new();
    let permission = || Permission::new(&harness.cluster, "create", "example.com", "parts");
    permission().add_to_running(&harness.manager).await.unwrap();
    let hour = async || {
        let before = harness.server.creations();
        sleep(Duration::from_secs(3600)).await;
        harness.server.creations() - before
    };
    hour().await;
    let (alone, before) = (hour().await, tasks().await);
    assert!(alone > 0);

    let second = permission().add_to_running(&harness.manager).await.unwrap();
    assert_eq!(second.as_str(), "permission to create parts.example.com 2");
    assert!(hour().await > alone, "both are reviewed");
    harness.manager.remove(second).await;

    let names: Vec<_> = harness.manager.status().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["cluster", "permission to create parts.example.com"]);
    assert_eq!(hour().await, alone);
    assert_eq!(tasks().await, before);
    harness.shutdown().await;
}

/// Source whose condition panics while a flag is set.
struct Panicking {
    panics: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Panicking {
    fn new() -> Self {
        Self { panics: Arc::new(AtomicBool::new(true)), asked: Arc::default() }
    }

    fn sharing(&self) -> Self {
        Self { panics: Arc::clone(&self.panics), asked: Arc::clone(&self.asked) }
    }
}

impl ConditionalSource for Panicking {
    fn ready(&self) -> Readiness {
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "boom");
        always()
    }

    fn start_notify_done(&self, context: SourceContext) -> SourceStart {
        let done = async move {
            context.enqueue(Request::namespaced("ns", "started"));
            context.stopping().await;
            SourceEnd::Stopped
        };
        SourceStart { synced: async { Ok(()) }.boxed(), done: done.boxed() }
    }
}

#[tokio::test(start_paused = true)]
async fn optional_input_whose_condition_panics_waits_and_is_asked_less_and_less_often() {
    for place in ["a condition", "a source", "a late source"] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Part");
        harness.server.apply(object("Part", "started", "a"));
        let shared = Panicking::new();
        let source = shared.sharing();
        let described = builder().for_type(widgets());
        let described = match place {
            "a condition" => described
                .watches_type(parts(), Handler::Object)
                .optional()
                .input_when(move || source.ready()),
            "a source" => described.source(shared.sharing()).optional(),
            _ => described,
        };
        let controller = harness.build(described);
        let inputs = controller.inputs();
        controller.add_to_running(&harness.manager).await.unwrap();
        let late = (place == "a late source").then(|| {
            inputs.add("late", |input| input.source(shared.sharing()).conditional()).unwrap()
        });
        harness.state(ControllerState::Running).await;
        sleep(Duration::from_secs(3600)).await;

        let asked = shared.asked.load(Ordering::Relaxed);
        assert!((60..70).contains(&asked), "{place}: {asked}");
        assert_eq!(harness.status().epoch, 1, "{place}");
        if place == "a condition" {
            let watches = &harness.status().report.watches;
            let error = watches[1].error.clone().unwrap();
            assert!(error.contains("its condition panicked: boom"), "{error}");
        }
        if let Some(late) = &late {
            let state = format!("{:?}", late.state());
            assert!(state.contains("its condition panicked: boom"), "{state}");
        }
        assert_eq!(harness.log().await, [""; 0]);

        shared.panics.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(harness.log().await, ["ns/started gone"], "{place}");
        if let Some(late) = late {
            late.started().await.unwrap();
        }
        harness.shutdown().await;
    }
}
