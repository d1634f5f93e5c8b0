//! Scenarios 29 to 31: failures of the server's backends, which are conversion webhooks and
//! aggregated API servers.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, WebhookClientConfig, WebhookConversion,
};
use kube::api::ListParams;
use pilotlight::{
    discovery::TypeState,
    informer::InformerOptions,
    kind::TypeRef,
    manager::{ControllerState, RunnableStatus, WatchState},
    testing::{Action, CrdBuilder, Reply, Rule, RuleId, Verb},
};
use serde_json::{Value, json};
use tokio::time;

use super::{
    Testbed,
    change::{assert_unmoved, change_crd, lists, watched_again, watches},
    server_faults::{Bystander, assert_nothing_purged, reconciles_stale, status},
};
use crate::{
    aggregated::{Backend, Discovery, Health, install},
    support::{
        Act, ControllerVariant, Embedded, HarnessOptions, RecordingReconciler, Server, about,
        type_of, until,
    },
    unknown::assert_undisturbed,
};

scenarios! {
    29 a_failing_conversion_webhook_affects_only_its_own_version both:
        "the type is served, so the controller of that version is Starting, with the reason ConversionFailed and the webhook's error, and backs off; those of the stored version and of other types run, the cluster is Running; it runs once the webhook answers";
    30 a_conversion_webhook_that_fails_later_leaves_a_stale_cache both:
        "the controller continues with its last cache, marked stale, with the reason \
         ConversionFailed; nothing is purged, stopped or started; objects changed meanwhile are \
         reconciled when the webhook answers";
    31 an_aggregated_service_that_is_down_is_unknown_and_not_absent both:
        "its type is Unknown, its controller continues with the cache and is stale, a new \
         controller waits for TypeUnknown; types of CRDs are neither listed nor watched again on \
         the recovery";
    31 a_type_without_watch_is_listed_in_an_interval both:
        "its type and the watch of its controller are Polled; an object without uid and \
         resourceVersion is reconciled once its content has changed, within the interval, and a \
         list that finds no change causes no reconcile";
}

/// URL of a closed port.
const NOWHERE: &str = "https://127.0.0.1:1/convert";

/// CRD whose objects are stored at `v1` and converted to `v2` by a webhook.
fn converted(testbed: &Testbed) -> CrdBuilder {
    testbed.widgets().version("v1").version("v2")
}

/// WebhookFailure of the webhook, during which only the stored version can be read.
struct WebhookFailure(Vec<RuleId>);

impl WebhookFailure {
    async fn begins(testbed: &Testbed, crd: &CrdBuilder) -> Self {
        if !testbed.server.is_simulated() {
            change_crd(testbed, crd, |crd| {
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
            // The handler of the changed CRD takes a moment to replace the old one, which still
            // lists.
            let api = testbed.scope.api(crd, "v2");
            until("the server fails to convert", async || {
                match api.list(&ListParams::default()).await {
                    Ok(_) => Err("the list succeeded".to_owned()),
                    Err(_) => Ok(()),
                }
            })
            .await;
            return Self(Vec::new());
        }
        // Message of the real server.
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
            testbed.faults.add(rule.resource(&resource.group, &resource.plural))
        });
        if let Some(script) = testbed.server.script() {
            script.close_watches(&crd.name());
        }
        Self(rules.into())
    }

    async fn ends(self, testbed: &Testbed, crd: &CrdBuilder) {
        if !testbed.server.is_simulated() {
            change_crd(testbed, crd, |crd| {
                crd.spec.conversion =
                    Some(CustomResourceConversion { strategy: "None".to_owned(), webhook: None });
            })
            .await;
        }
        self.0.into_iter().for_each(|rule| testbed.faults.remove(rule));
    }
}

async fn a_failing_conversion_webhook_affects_only_its_own_version(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-conversion").await;
    let crd = converted(&testbed);
    testbed.install(&crd).await;
    testbed.scope.wait_served(&crd, "v2").await.unwrap();
    testbed.create(&crd, "kept", 1).await;
    let bystander = Bystander::arrives(&testbed).await;
    let failure = WebhookFailure::begins(&testbed, &crd).await;

    let stored = testbed.controller("stored", &crd).await;
    let other = RecordingReconciler::new(type_of(&crd, "v2"));
    Embedded.add(&testbed, "converted", &other).await;

    let failed = |it: &RunnableStatus| it.reason == "ConversionFailed";
    let starting = testbed.until("converted", "reports the webhook's error", failed).await;
    assert_eq!((starting.state, starting.epoch), (ControllerState::Starting, 1));
    let said = "conversion webhook for";
    assert!(starting.message.contains(said), "{}", starting.message);
    let watch = &starting.report.watches[0];
    assert_eq!(watch.state.word(), "ConversionFailed");
    assert!(watch.error.as_deref().is_some_and(|error| error.contains(said)), "{watch:?}");
    stored.saw("kept", 1).await;
    bystander.is_served(&testbed, "meanwhile").await;
    assert_eq!(testbed.status("cluster").state, ControllerState::Running);
    let requests = || {
        let seen = testbed.faults.seen().into_iter().filter(about(&crd));
        seen.filter(|info| info.path.contains("/v2/")).count()
    };
    let (time, least, most) = if testbed.server.is_simulated() { (60, 2, 10) } else { (2, 0, 4) };
    let before = requests();
    time::sleep(Duration::from_secs(time)).await;
    let more = requests() - before;
    assert!((least..=most).contains(&more), "{more} requests in {time} s");
    assert!(other.all().is_empty(), "no object can be read at that version");

    failure.ends(&testbed, &crd).await;
    testbed.running("converted", 1).await;
    other.saw("kept", 1).await;
    for name in ["stored", "converted"] {
        assert_undisturbed(&testbed, name);
    }
    testbed.finish().await;
}

async fn a_conversion_webhook_that_fails_later_leaves_a_stale_cache(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-unconverted").await;
    let crd = converted(&testbed);
    testbed.install(&crd).await;
    testbed.scope.wait_served(&crd, "v2").await.unwrap();
    testbed.create(&crd, "kept", 1).await;
    testbed.create(&crd, "deleted", 1).await;
    let recorder = RecordingReconciler::new(type_of(&crd, "v2"));
    recorder.act("kept", Act::Again(Duration::from_millis(100)));
    Embedded.add(&testbed, "converted", &recorder).await;
    testbed.running("converted", 1).await;
    for name in ["kept", "deleted"] {
        recorder.saw(name, 1).await;
    }
    watched_again(&testbed, &crd, 0).await;

    let failure = WebhookFailure::begins(&testbed, &crd).await;

    let failed = |it: &RunnableStatus| it.report.stale && it.reason == "ConversionFailed";
    let stale = testbed.until("converted", "is stale", failed).await;
    assert_eq!((stale.state, stale.epoch), (ControllerState::Running, 1));
    assert!(stale.message.contains("conversion webhook for"), "{}", stale.message);
    reconciles_stale(&recorder).await;
    assert_nothing_purged(&recorder);
    testbed.resize(&crd, "kept", 2).await;
    testbed.delete(&crd, "deleted").await;
    testbed.create(&crd, "created", 1).await;
    let type_state = testbed.cluster.types.get(recorder.type_ref()).state;
    assert_eq!(type_state, TypeState::Served, "an error about objects does not change the type");

    failure.ends(&testbed, &crd).await;
    recorder.until("the change", |seen| seen.size == Some(2) && !seen.stale).await;
    recorder.saw("created", 1).await;
    recorder.until("the deletion", |it| it.name == "deleted" && it.uid.is_none()).await;
    testbed.until("converted", "is current", |it| it.reason == "Running").await;
    assert_undisturbed(&testbed, "converted");
    testbed.finish().await;
}

/// Backend of an APIService.
enum Service {
    Simulated,
    Real(Backend),
}

impl Service {
    /// Serves one object of type `gauges` in this group.
    async fn starts(testbed: &Testbed, group: &str, discovery: Discovery) -> Self {
        let Some(script) = testbed.server.script() else {
            let certificate = testbed.plane().serving_certificate().unwrap();
            let backend = Backend::start(certificate, group, discovery).await;
            install(testbed, group, &backend).await;
            return Self::Real(backend);
        };
        let name = format!("v1.{group}");
        script.back_api_service(&name, &[CrdBuilder::new(group, "Gauge")]);
        script.set_list_only(&format!("gauges.{group}"), discovery == Discovery::ListOnly);
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
        script.apply(gauge(group, 0)).unwrap();
        Self::Simulated
    }

    /// Changes the object.
    fn set_size(&self, testbed: &Testbed, group: &str, size: i64) {
        match self {
            Self::Real(backend) => backend.set_size(size),
            Self::Simulated => drop(testbed.server.script().unwrap().apply(gauge(group, size))),
        }
    }

    fn set_health(&self, testbed: &Testbed, group: &str, health: Health) {
        match self {
            Self::Real(backend) => backend.set_health(health),
            Self::Simulated => {
                let script = testbed.server.script().unwrap();
                script.set_available(&format!("v1.{group}"), health == Health::Well);
            }
        }
    }
}

fn gauge(group: &str, size: i64) -> Value {
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "Gauge",
        "metadata": { "name": "pressure", "namespace": "default" },
        "spec": { "size": size },
    })
}

async fn a_type_without_watch_is_listed_in_an_interval(server: Server<'static>) {
    let interval = Duration::from_secs(2);
    let informers = InformerOptions { poll_interval: interval, ..InformerOptions::default() };
    let options = HarnessOptions { informers, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "faults-polled", options).await;
    let group = format!("usages.{}", testbed.scope.group);
    let service = Service::starts(&testbed, &group, Discovery::ListOnly).await;
    let gauges = TypeRef::resource(&group, "v1", "gauges");
    let recorder = RecordingReconciler::new(gauges.clone());
    Embedded.add(&testbed, "gauges", &recorder).await;

    let running = testbed.running("gauges", 1).await;
    assert_eq!(running.report.watches[0].state, WatchState::Polled);
    testbed.type_state(&gauges, "is polled", |it| *it == TypeState::Polled).await;
    recorder.until("the object", |seen| seen.size == Some(0)).await;
    time::sleep(interval * 3).await;
    assert_eq!(recorder.all().len(), 1, "no list has found a change");

    for size in 1..=2 {
        service.set_size(&testbed, &group, size);
        recorder.until("the change", |seen| seen.size == Some(size)).await;
    }
    time::sleep(interval * 3).await;
    assert_eq!(recorder.all().len(), 3);
    assert_unmoved(&testbed, "gauges", &running);
    testbed.finish().await;
}

async fn an_aggregated_service_that_is_down_is_unknown_and_not_absent(server: Server<'static>) {
    let testbed = Testbed::on(server, "faults-aggregated").await;
    let widgets = testbed.widgets();
    testbed.install(&widgets).await;
    let of_crd = testbed.controller("widgets", &widgets).await;
    let running = testbed.running("widgets", 1).await;
    watched_again(&testbed, &widgets, 0).await;
    let group = format!("gauges.{}", testbed.scope.group);
    let service = Service::starts(&testbed, &group, Discovery::Aggregated).await;
    let gauges = TypeRef::resource(&group, "v1", "gauges");
    let recorder = RecordingReconciler::new(gauges.clone());
    recorder.act("pressure", Act::Again(Duration::from_millis(100)));
    Embedded.add(&testbed, "gauges", &recorder).await;
    testbed.running("gauges", 1).await;
    recorder.saw("pressure", 1).await;
    let (position, watched) = (testbed.position(), watches(&testbed, &widgets));

    service.set_health(&testbed, &group, Health::Ill);
    let stale = testbed.until("gauges", "is stale", |it| it.report.stale).await;
    assert_eq!((stale.state, stale.epoch), (ControllerState::Running, 1), "{stale:#?}");
    reconciles_stale(&recorder).await;
    testbed.create(&widgets, "meanwhile", 1).await;
    of_crd.saw("meanwhile", 1).await;
    // The real API server checks its services every 30 seconds; `tests/aggregated.rs` waits for
    // that.
    let is_known_to_be_down = testbed.server.is_simulated();
    let late = RecordingReconciler::new(gauges.clone());
    if is_known_to_be_down {
        let unknown = |state: &TypeState| matches!(state, TypeState::Unknown(Some(last)) if **last == TypeState::Served);
        testbed.type_state(&gauges, "is unknown", unknown).await;
        Embedded.add(&testbed, "late", &late).await;
        let waiting = testbed.until("late", "waits", |it| it.reason == "TypeUnknown").await;
        assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 0));
    }

    service.set_health(&testbed, &group, Health::Well);
    testbed.until("gauges", "is current", |it| it.reason == "Running").await;
    testbed.type_state(&gauges, "is served", |it| *it == TypeState::Served).await;
    if is_known_to_be_down {
        testbed.running("late", 1).await;
        late.saw("pressure", 1).await;
    }
    assert_nothing_purged(&recorder);
    assert_undisturbed(&testbed, "gauges");
    assert_unmoved(&testbed, "widgets", &running);
    assert_eq!(lists(&testbed, &widgets, position).await, 0, "no other type is listed again");
    assert_eq!(watches(&testbed, &widgets), watched, "no other type is watched again");
    testbed.finish().await;
}
