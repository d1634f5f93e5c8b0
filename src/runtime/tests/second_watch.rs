//! Watches of an adopted controller beside that of its own type.

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;
use crate::testing::{Action as Fault, Rule, Verb};

/// Returns an adopted controller that owns ConfigMaps.
fn owning(harness: &Harness) -> AdoptedController {
    adopt(&harness.cluster, [widgets()], |client, _| {
        let maps = Api::<ConfigMap>::all(client.clone());
        let controller = controller(&client).owns(maps, watcher::Config::default());
        let reconcile =
            |_: Arc<Widget>, _: Arc<()>| async { Ok::<_, Refused>(Action::await_change()) };
        let policy = |_: Arc<Widget>, _: &Refused, _| Action::await_change();
        (controller, reconcile, policy, Arc::new(()))
    })
}

#[tokio::test(start_paused = true)]
async fn forbidden_watch_of_an_owned_type_is_reported_while_the_controller_runs() {
    // Times at which the list of the controller's own type is answered, among the retries of kube.
    for delay in [0, 100, 900, 3000, 9000].map(Duration::from_millis) {
        let harness = Harness::new();
        harness.install().await;
        harness.forbid(&["configmaps"]);
        let slow = Rule::new(Fault::Delay(delay)).verb(Verb::List);
        harness.faults.add(slow.resource("example.com", "widgets"));
        harness.add(owning(&harness)).await;
        harness.state(ControllerState::Running).await;
        run_until_idle().await;

        for _ in 0..300 {
            let report = &harness.status().report;
            assert_eq!(report.forbidden.len(), 1, "{delay:?}: {report:?}");
            let said = &report.forbidden[0];
            assert!(said.starts_with("list failed: configmaps is forbidden"), "{said}");
            assert_eq!(report.last_error.as_ref(), Some(said));
            sleep(Duration::from_secs(1)).await;
        }
        assert!(harness.status().report.stale);
        harness.forbid(&[]);

        let mended = harness.until(|it| it.report.forbidden.is_empty()).await;
        assert_eq!((mended.state, mended.epoch), (ControllerState::Running, 1));
        assert!(!mended.report.stale && mended.report.last_error.is_none());
        harness.shutdown().await;
    }
}
