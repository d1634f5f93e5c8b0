//! Scenarios 15 to 18: types are replaced by others.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use pilotlight::{
    controller::Controller,
    kind::{Scope, TypeRef},
    manager::{ControllerState, DoneReason, RestartBackoff},
    testing::simulated::Delays,
};
use tokio::{
    sync::watch,
    time::{self, Instant, timeout},
};

use super::{
    Testbed,
    change::StatusWriter,
    leave::{assert_emptied, assert_forgotten, hide_changes},
};
use crate::{
    flaps::install_as_soon_as_possible,
    support::{ControllerVariant, Embedded, HarnessOptions, PATIENCE, RecordingReconciler, Server},
};

scenarios! {
    15 a_type_that_was_replaced_is_another_type both:
        "a full stop and a new epoch, by the uid; the old cache is empty, and the new epoch sees \
         no object of the old type";
    16 a_type_that_flaps_leaves_its_last_state both:
        "one epoch at a time, and no more than the limit of flaps allows; the last state holds";
    17 a_type_with_another_scope_is_requested_at_its_new_paths both:
        "nothing of the old type is known while it is absent; a new epoch lists, watches and \
         writes at the new paths, and sends no request in a namespace to a cluster-scoped type";
    18 a_kind_with_another_plural_is_bound_again both:
        "a controller that names the kind runs on the new plural; a controller that names the old \
         plural waits for TypeAbsent";
}

async fn a_type_that_was_replaced_is_another_type(server: Server<'static>) {
    let script = server.script().cloned();
    let testbed = Testbed::on(server, "replace-replaced").await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("anew", &crd).await;
    testbed.install(&crd).await;
    let old = testbed.create(&crd, "same", 1).await;
    recorder.saw("same", 1).await;
    let before = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    let store = recorder.store(1).unwrap();
    let hidden = hide_changes(&testbed, &crd).await;
    assert_eq!(store.len(), 1);

    match &script {
        // Delete and create, with no time for a reaction in between.
        Some(script) => {
            script.set_delays(Delays::none());
            script.uninstall(&crd.name()).unwrap();
            script.install(&crd.build()).unwrap();
        }
        None => {
            testbed.scope.delete_crd(&crd).await.unwrap();
            install_as_soon_as_possible(&testbed, &crd).await;
        }
    }

    assert_eq!(testbed.done("anew", 1).await, DoneReason::TypeGone);
    assert_emptied(&store, &testbed.scope.namespace);
    testbed.faults.remove(hidden);
    testbed.running("anew", 2).await;
    let after = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    assert_ne!(before.identity.uid, after.identity.uid);
    let new = testbed.create(&crd, "same", 2).await;
    assert_eq!(recorder.saw("same", 2).await.uid, Some(new));
    let ghosts = recorder.all().into_iter().filter(|it| it.epoch == 2);
    assert_eq!(ghosts.filter(|it| it.uid.as_ref() == Some(&old)).count(), 0, "no old object");
    assert_eq!(testbed.assert_orderly("anew"), 1);
    drop(store);
    testbed.finish().await;
}

async fn a_type_that_flaps_leaves_its_last_state(server: Server<'static>) {
    let (flaps, bucket) = if server.is_simulated() { (100, 10) } else { (20, 5) };
    let script = server.script().cloned();
    let restart_backoff = RestartBackoff { flaps: bucket, ..RestartBackoff::default() };
    let options = HarnessOptions { restart_backoff, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "replace-flaps", options).await;
    let crd = testbed.widgets();
    let recorder = testbed.controller("flapping", &crd).await;
    let begun = Instant::now();

    for _ in 0..flaps {
        match &script {
            Some(script) => {
                script.set_delays(Delays::none());
                script.install(&crd.build()).unwrap();
                time::sleep(Duration::from_millis(5)).await;
                script.uninstall(&crd.name()).unwrap();
                time::sleep(Duration::from_millis(5)).await;
            }
            None => {
                install_as_soon_as_possible(&testbed, &crd).await;
                testbed.scope.delete_crd(&crd).await.unwrap();
            }
        }
    }
    install_as_soon_as_possible(&testbed, &crd).await;
    let flapped = begun.elapsed();

    testbed.scope.wait_established(&crd).await.unwrap();
    let last = testbed.create(&crd, "last", 1).await;
    let seen = recorder.until("the last object", |seen| seen.uid.as_ref() == Some(&last)).await;
    let status = testbed.state("flapping", ControllerState::Running).await;
    assert_eq!(status.epoch, seen.epoch);
    // The burst, one epoch for each second after it, and the last one.
    let allowed = u64::from(bucket) + flapped.as_secs() + 3;
    assert!(status.epoch <= allowed, "{} epochs in {flapped:?}", status.epoch);
    if script.is_some() {
        assert_eq!(flapped.as_secs(), 1, "a hundred flaps in a second");
        assert!(status.epoch > 1, "the controller started in between");
    }
    assert_eq!(testbed.assert_orderly("flapping"), status.epoch - 1, "one at a time");
    assert_eq!(testbed.open_watches(&crd).await, 1);
    testbed.finish().await;
}

async fn a_type_with_another_scope_is_requested_at_its_new_paths(server: Server<'static>) {
    // With a restriction to a namespace, the paths of lists and watches show the scope, as those of
    // writes do.
    let options = HarnessOptions { restricted: true, ..HarnessOptions::default() };
    let testbed = Testbed::with(server, "replace-scope", options).await;
    let namespaced = testbed.widgets();
    let cluster_scoped = testbed.widgets().cluster_scoped();
    let recorder = testbed.controller("scope", &namespaced).await;
    let (settled, mut written) = watch::channel(0);
    let writer = StatusWriter { type_ref: recorder.type_ref().clone(), settled };
    let controller = Controller::builder("writer").for_type(recorder.type_ref().clone());
    let controller = controller.conditional().build(&testbed.cluster, writer).unwrap();
    testbed.add("writer", Arc::new(controller)).await;
    let mut writes = async |size: i64| {
        let settled = timeout(PATIENCE, written.wait_for(|it| *it == size)).await;
        drop(settled.expect("its status is written in time").unwrap());
    };
    testbed.install(&namespaced).await;
    testbed.create(&namespaced, "gear", 1).await;
    recorder.saw("gear", 1).await;
    writes(1).await;
    let sent = testbed.requests(&namespaced, testbed.begin).await;
    assert!(sent.iter().all(|event| event.namespace == testbed.scope.namespace), "{sent:#?}");

    testbed.uninstall(&namespaced).await;
    for name in ["scope", "writer"] {
        assert_eq!(testbed.done(name, 1).await, DoneReason::TypeGone);
        testbed.until(name, "waits", |it| it.reason == "TypeAbsent").await;
    }
    assert_forgotten(&testbed, &namespaced);
    let (position, since) = (testbed.position(), testbed.server.clock());
    testbed.install(&cluster_scoped).await;

    for name in ["scope", "writer"] {
        testbed.running(name, 2).await;
    }
    let served = testbed.cluster.types.served(recorder.type_ref()).unwrap();
    assert_eq!(served.identity.scope, Scope::Cluster);
    let created = testbed.create(&cluster_scoped, "gear", 2).await;
    let seen = recorder.saw("gear", 2).await;
    assert_eq!(seen.uid, Some(created));
    writes(2).await;
    let mut sent = testbed.requests(&cluster_scoped, position).await;
    // The server may record the end of an earlier watch only now.
    sent.retain(|event| event.received.0 >= since);
    let verbs: BTreeSet<_> = sent.iter().map(|event| event.verb.as_str()).collect();
    assert!(verbs.is_superset(&["list", "patch", "watch"].into()), "{verbs:?}");
    assert!(sent.iter().all(|event| event.namespace.is_empty()), "{sent:#?}");
    testbed.finish().await;
}

async fn a_kind_with_another_plural_is_bound_again(server: Server<'static>) {
    let testbed = Testbed::on(server, "replace-plural").await;
    let old = testbed.widgets();
    let new = testbed.widgets().plural("gadgets");
    let by_plural = testbed.controller("plural", &old).await;
    let by_kind = RecordingReconciler::new(TypeRef::kind(&testbed.scope.group, "v1", "Widget"));
    Embedded.add(&testbed, "kind", &by_kind).await;
    testbed.install(&old).await;
    testbed.create(&old, "gear", 1).await;
    for recorder in [&by_plural, &by_kind] {
        recorder.saw("gear", 1).await;
    }

    testbed.uninstall(&old).await;
    testbed.install(&new).await;

    for name in ["plural", "kind"] {
        assert_eq!(testbed.done(name, 1).await, DoneReason::TypeGone);
    }
    testbed.running("kind", 2).await;
    let created = testbed.create(&new, "gear", 2).await;
    assert_eq!(by_kind.saw("gear", 2).await.uid, Some(created));
    let waiting = testbed.until("plural", "waits", |it| it.reason == "TypeAbsent").await;
    assert_eq!((waiting.state, waiting.epoch), (ControllerState::Waiting, 1));
    assert_eq!((testbed.open_watches(&old).await, testbed.open_watches(&new).await), (0, 1));
    testbed.finish().await;
}
