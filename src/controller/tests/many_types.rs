//! Cycles of many types, with a controller for each.

use std::collections::BTreeMap;

use super::*;
use crate::{
    manager::{metrics_text, prometheus_client::registry::Registry},
    testing::LeakOracle,
};

const TYPES: usize = 40;
const CYCLES: u64 = 20;

/// Gauges that must not grow.
const GAUGES: &[&str] = &[
    "workqueue_depth",
    "pilotlight_informer_watches",
    "pilotlight_informer_objects",
    "pilotlight_informer_cached_bytes",
];

impl Harness {
    /// Adds the controller of a kind, which has the same name.
    async fn add_controller_of(&self, kind: &str) {
        let log = Arc::clone(&self.log);
        let reconcile = move |request: Request, _: Context| {
            log.lock().unwrap().push(request.to_string());
            async { Ok(Outcome::Done) }
        };
        let described =
            Controller::builder(kind).for_type(TypeRef::kind("example.com", "v1", kind));
        let controller = described.conditional().build(&self.cluster, reconcile).unwrap();
        controller.add_to_running(&self.manager).await.unwrap();
    }

    /// Waits until the controllers of all kinds are in a state, each in the epoch of this number.
    async fn all(&self, kinds: &[String], state: ControllerState, epoch: u64) {
        let mut watch = self.manager.watch();
        let reached = watch.wait_for(|snapshot| {
            let status = |kind: &String| snapshot.get(&kind.as_str().into());
            kinds.iter().filter_map(status).filter(|status| status.state == state).count() == TYPES
        });
        let reached = tokio::time::timeout(Duration::from_secs(600), reached).await;
        let snapshot = Arc::clone(&reached.expect("a controller is late").unwrap());
        for kind in kinds {
            assert_eq!(snapshot.get(&kind.as_str().into()).unwrap().epoch, epoch, "{kind}");
        }
    }

    /// Returns an oracle that counts the remains of all controllers.
    fn leaks(&self, registry: Registry) -> LeakOracle {
        let (informers, types) = (self.cluster.informers.clone(), self.cluster.types.clone());
        let manager = self.manager.clone();
        let counts = move || {
            let counts = [
                ("informers", informers.status().len()),
                ("subscriptions to types", types.subscriptions()),
                ("types of the registry", types.report().len()),
                ("runnables", manager.status().len()),
            ];
            let counts = counts.map(|(what, count)| (what.to_owned(), count as u64));
            BTreeMap::from(counts)
        };
        let tasks = tokio::runtime::Handle::current();
        LeakOracle::new()
            .patience(Duration::from_secs(1))
            .tasks("Pilotlight", &tasks)
            .requests(self.server.faults())
            .probe("counts", counts)
            .series(move || metrics_text(&registry).unwrap(), GAUGES)
    }
}

#[tokio::test(start_paused = true)]
async fn cycles_of_forty_types_leave_what_was_there_after_the_second_one() {
    let (options, mut registry) = (ManagerOptions::default(), Registry::default());
    options.metrics.register(&mut registry);
    let harness = Harness::with(options);
    harness.cluster.register_metrics(&mut registry);
    let leaks = harness.leaks(registry);
    let kinds: Vec<_> = (0..TYPES).map(|number| format!("Gizmo{number}")).collect();
    // The first half waits between the cycles; the second is removed, and returns under its names.
    let (waiting, removed) = kinds.split_at(TYPES / 2);
    for kind in waiting {
        harness.add_controller_of(kind).await;
    }
    let mut baseline = None;

    for cycle in 1..=CYCLES {
        for kind in removed {
            harness.add_controller_of(kind).await;
        }
        for kind in &kinds {
            harness.install(kind);
            harness.server.apply(object(kind, &kind.to_lowercase(), "a"));
        }
        harness.all(&kinds, ControllerState::Running, cycle).await;
        assert_eq!(harness.log().await.len(), TYPES, "each object once");
        assert_eq!(harness.cluster.informers.status().len(), TYPES);

        for kind in &kinds {
            harness.server.uninstall(&format!("{}s", kind.to_lowercase()));
        }
        harness.all(&kinds, ControllerState::Waiting, cycle).await;
        for kind in removed {
            harness.manager.remove(kind.as_str()).await;
        }
        // Longer than an informer lingers.
        sleep(Duration::from_secs(60)).await;

        assert!(harness.log().await.is_empty() && harness.cluster.informers.status().is_empty());
        match &baseline {
            None if cycle == 2 => baseline = Some(leaks.baseline().await),
            None => {}
            Some(baseline) => leaks.assert_baseline(baseline).await,
        }
    }
    harness.shutdown().await;
}
