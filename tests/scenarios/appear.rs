//! A type comes.

use pilotlight::manager::{ControllerState, DoneReason};

use super::World;
use crate::rig::{Server, type_of};

scenarios! {
    1 a_type_that_is_absent_is_waited_for both:
        "controller Waiting for TypeAbsent, manager ready, no request about the type";
    2 a_type_that_appears_starts_its_controller both:
        "Running as soon as the type is established; each object that is there is reconciled once";
    3 scenario_3 pending("being written"): "being written";
    4 scenario_4 pending("being written"): "being written";
    5 scenario_5 pending("being written"): "being written";
    6 scenario_6 pending("being written"): "being written";
    7 scenario_7 pending("being written"): "being written";
    8 scenario_8 pending("being written"): "being written";
    9 scenario_9 pending("being written"): "being written";
    10 scenario_10 pending("being written"): "being written";
}

async fn a_type_that_is_absent_is_waited_for(server: Server<'static>) {
    let world = World::on(server, "appear-absent").await;
    let crd = world.widgets();

    world.controller("patient", &crd).await;

    let waiting = world.until("patient", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!(waiting.state, ControllerState::Waiting);
    assert_eq!(waiting.unmet[0].type_ref.as_ref(), Some(&type_of(&crd, "v1")));
    assert_eq!(world.status("cluster").state, ControllerState::Running);
    assert!(world.requests(&crd, world.begin).await.is_empty(), "nothing is asked about it");
    assert_eq!(world.assert_orderly("patient"), 0);
    world.finish().await;
}

async fn a_type_that_appears_starts_its_controller(server: Server<'static>) {
    let world = World::on(server, "appear-comes").await;
    let crd = world.widgets();
    world.install(&crd).await;
    for name in ["a", "b"] {
        world.create(&crd, name, 1).await;
    }
    let recorder = world.controller("comes", &crd).await;
    world.running("comes", 1).await;

    recorder.count(2, |seen| seen.uid.is_some()).await;
    let mut names: Vec<_> = recorder.all().into_iter().map(|seen| seen.name).collect();
    names.sort();
    assert_eq!(names, ["a", "b"], "each once");

    world.uninstall(&crd).await;
    assert_eq!(world.done("comes", 1).await, DoneReason::TypeGone);
    world.finish().await;
}
