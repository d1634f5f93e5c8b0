//! Edits of the update method: the first rolling child type of a running controller, and the last.

use super::*;
use crate::testing::simulated::AccessRule;

const PARTS: Variant = Variant { has_checks: true, ..PLAIN };
const RESOURCE: &str = "controllerrevisions";
const CRD: &str = "controllerrevisions.metacontroller.k8s.io";
/// Time in which a watch without subscribers has closed.
const LINGER: Duration = Duration::from_secs(15);
/// Time in which a changed status of a controller is written.
const STATUS: Duration = Duration::from_secs(10);

impl RolloutFixture {
    /// Starts a controller with three ready children, which are updated in place.
    async fn in_place() -> Self {
        let server = SimulatedServer::new();
        let answer = move |kind, request: &Value| PARTS.answer(kind, request);
        let fixture = Self::process(&server, PARTS, None, answer).await;
        fixture.update_by("InPlace");
        fixture.harness.server.apply(PARTS.parent()).unwrap();
        fixture.all_have("one").await;
        fixture.make_all_ready();
        run_until_idle().await;
        fixture
    }

    fn update_by(&self, method: &'static str) {
        self.harness.declare("roll", Variant { method, ..self.variant }.controller());
    }

    /// Waits until the children, ready or not, have this text.
    async fn all_have(&self, text: &str) {
        for _ in 0..100 {
            if self.texts() == [text; 3] {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let (epoch, ready) = (self.harness.epoch("roll"), self.condition("Ready"));
        panic!("{text}: {:?} {epoch:?} {ready:?}", self.texts());
    }

    /// Requests of one verb since they were forgotten, but those of the test.
    fn requested(&self, verb: Verb) -> Vec<String> {
        let requests = self.harness.server.requests();
        let own = requests.iter().filter(|it| it.user == "controller" && it.info.verb == verb);
        own.map(|request| request.info.resource.clone()).collect()
    }

    /// Rolls the children to a text, which takes one write of each.
    async fn rolls_one_by_one_to(&self, text: &str) {
        self.wire.take_writes();
        self.roll_to(text);
        self.done(text).await;
        assert_eq!(self.wire.child_writes(), ["PUT c00", "PUT c01", "PUT c02"]);
    }

    /// Message of the condition `Ready`, which must be false for this reason.
    #[track_caller]
    fn unready(&self, expected: &str) -> String {
        let [status, reason, message] = self.condition("Ready").unwrap();
        assert_eq!((&*status, &*reason), ("False", expected), "{message}");
        message
    }

    /// Condition of the declared controller: status, reason and message.
    fn condition(&self, type_: &str) -> Option<[String; 3]> {
        let version = "metacontroller.k8s.io/v1alpha1";
        let object = self.harness.server.get(version, "CompositeController", "", "roll").unwrap();
        let conditions = object["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == type_)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some([text("status"), text("reason"), text("message")])
    }

    /// Number of open watches of revisions.
    fn watches(&self) -> usize {
        self.harness.server.open_watches().get(CRD).copied().unwrap_or_default()
    }

    fn uninstall_revisions(&self) {
        self.harness.server.uninstall(CRD).unwrap();
    }

    fn deny_revisions(&self) {
        self.harness.server.set_rbac([AccessRule::deny().users(["controller"]).resources([CRD])]);
    }
}

#[tokio::test(start_paused = true)]
async fn method_becomes_rolling_and_plain_again_in_the_running_epoch_without_a_relist() {
    let fixture = RolloutFixture::in_place().await;
    assert_eq!(fixture.watches(), 0);
    fixture.harness.server.forget_requests();

    fixture.update_by("RollingInPlace");
    fixture.done("one").await;

    assert_eq!(fixture.requested(Verb::List), [RESOURCE]);
    assert_eq!(fixture.watches(), 1);
    sleep(STATUS).await;
    let health = || fixture.condition("RolledOut").map(|[status, ..]| status);
    assert_eq!(health().as_deref(), Some("True"));
    fixture.rolls_one_by_one_to("two").await;
    fixture.roll_to("three");
    while fixture.texts() != ["three", "two", "two"] {
        sleep(Duration::from_millis(50)).await;
    }
    sleep(STATUS).await;
    assert_eq!(health().as_deref(), Some("False"));
    fixture.harness.server.forget_requests();

    fixture.update_by("InPlace");
    fixture.all_have("three").await;
    let revisions = fixture.revisions();
    // The informer lingers.
    sleep(LINGER).await;
    fixture.wire.take_writes();
    fixture.make_all_ready();
    fixture.roll_to("four");
    fixture.all_have("four").await;

    assert_eq!(fixture.wire.child_writes(), ["PUT c00", "PUT c01", "PUT c02"]);
    assert!(!fixture.wire.violations.lock().unwrap().is_empty(), "all are updated together");
    assert_eq!(fixture.revisions(), revisions, "they stay as they are");
    assert_eq!(fixture.requested(Verb::List), [""; 0]);
    assert_eq!(fixture.watches(), 0);
    assert_eq!(health(), None);
    assert_eq!(fixture.harness.epoch("roll"), Some(1));
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_to_a_rolling_method_waits_for_the_right_to_list_revisions() {
    let fixture = RolloutFixture::in_place().await;
    fixture.deny_revisions();

    fixture.update_by("RollingInPlace");
    sleep(Duration::from_secs(60)).await;
    fixture.roll_to("two");
    fixture.all_have("two").await;

    let message = fixture.unready("SpecPending");
    assert!(message.contains(RESOURCE) && message.contains("forbidden"), "{message}");
    assert_eq!(fixture.harness.epoch("roll"), Some(1));
    fixture.harness.server.set_rbac([]);
    fixture.harness.running("roll", 2).await;
    // Until now all children were updated together.
    fixture.wire.violations.lock().unwrap().clear();
    fixture.done("two").await;
    fixture.rolls_one_by_one_to("three").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_child_is_written_before_the_first_list_of_revisions() {
    let server = SimulatedServer::new();
    let answer = move |kind, request: &Value| PARTS.answer(kind, request);
    let fixture = RolloutFixture::process(&server, PARTS, None, answer).await;
    fixture.deny_revisions();

    fixture.declare();
    sleep(Duration::from_secs(300)).await;

    assert_eq!(fixture.wire.child_writes(), [""; 0]);
    let message = fixture.unready("Forbidden");
    assert!(message.contains(RESOURCE), "{message}");
    fixture.harness.server.set_rbac([]);
    fixture.done("one").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn controllers_with_rolling_methods_share_one_watch_of_revisions() {
    let fixture = RolloutFixture::in_place().await;
    let other = |method| Variant { method, is_cluster_scoped: true, ..PLAIN }.controller();
    for name in ["b", "c"] {
        fixture.harness.declare(name, other("InPlace"));
        fixture.harness.running(name, 1).await;
    }

    fixture.update_by("RollingInPlace");
    fixture.done("one").await;
    for name in ["b", "c"] {
        fixture.harness.declare(name, other("RollingInPlace"));
    }
    sleep(LINGER).await;
    assert_eq!(fixture.watches(), 1);
    fixture.update_by("InPlace");
    fixture.harness.declare("b", other("InPlace"));
    sleep(LINGER).await;
    assert_eq!(fixture.watches(), 1, "one of them still rolls");
    fixture.harness.declare("c", other("InPlace"));
    sleep(LINGER).await;

    assert_eq!(fixture.watches(), 0);
    for name in ["roll", "b", "c"] {
        assert_eq!(fixture.harness.epoch(name), Some(1));
    }
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_to_a_rolling_method_waits_for_the_crd_of_revisions() {
    let fixture = RolloutFixture::in_place().await;
    fixture.uninstall_revisions();
    run_until_idle().await;

    fixture.update_by("RollingInPlace");
    sleep(Duration::from_secs(5)).await;

    let message = fixture.unready("SpecPending");
    assert!(message.contains(RESOURCE), "{message}");
    let running = fixture.condition("Running").map(|[status, ..]| status);
    assert_eq!(running.as_deref(), Some("True"), "the plain method stays in effect");
    fixture.harness.install_own();
    fixture.harness.running("roll", 2).await;
    fixture.done("one").await;
    fixture.rolls_one_by_one_to("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn loss_of_the_crd_of_revisions_stops_a_controller_while_its_method_is_rolling() {
    let fixture = RolloutFixture::in_place().await;
    fixture.update_by("RollingInPlace");
    fixture.done("one").await;

    fixture.uninstall_revisions();
    let name = runnable("roll");
    fixture.harness.until(&name, |status| status.state == ControllerState::Waiting).await;
    fixture.wire.take_writes();
    fixture.roll_to("two");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.wire.child_writes(), [""; 0]);
    let [_, reason, message] = fixture.condition("Running").unwrap();
    assert!(message.contains(RESOURCE), "{reason}: {message}");
    fixture.harness.install_own();
    fixture.harness.running("roll", 2).await;
    fixture.done("two").await;

    fixture.update_by("InPlace");
    run_until_idle().await;
    fixture.uninstall_revisions();
    fixture.roll_to("three");
    fixture.all_have("three").await;
    assert_eq!(fixture.harness.epoch("roll"), Some(2), "a plain method needs no revisions");
    fixture.end().await;
}
