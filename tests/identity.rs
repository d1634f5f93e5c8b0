//! A CRD that was deleted and created again is another type, however soon.

use pilotlight::{
    kind::Scope,
    manager::{ControllerState, DoneReason, TransitionKind},
    testing::{Action, RequestInfo, Rule, Verb},
};

#[cfg(feature = "cli")]
use crate::support::Declared;
use crate::support::{
    ControllerVariant, Embedded, Harness, Listening, RecordingReconciler, about, type_of,
};

#[tokio::test]
async fn an_embedded_controller_starts_anew_with_another_crd() {
    starts_anew_with_another_crd("identity-embedded", Embedded).await;
}

#[tokio::test]
async fn a_conditional_runnable_starts_anew_with_another_crd() {
    starts_anew_with_another_crd("identity-runnable", Listening).await;
}

#[cfg(feature = "cli")]
#[tokio::test]
async fn a_declared_controller_starts_anew_with_another_crd() {
    starts_anew_with_another_crd("identity-declared", Declared::default()).await;
}

async fn starts_anew_with_another_crd(name: &str, variant: impl ControllerVariant) {
    let harness = Harness::start(name).await;
    let mut crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    let recorder = RecordingReconciler::new(widgets.clone());
    let anew = &variant.add(&harness, "anew", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running(anew, 1).await;

    // The same scope first, then the other one, then the first one again.
    let others = [crd.clone(), crd.clone().cluster_scoped(), crd.clone()];
    for (epoch, other) in (1..).zip(others) {
        // The name exists in every life of the type, so only the uid separates them.
        let old = harness.create(&crd, "same", 1).await;
        assert_eq!(recorder.saw("same", epoch).await.uid.as_ref(), Some(&old));
        let before = harness.cluster.types.served(&widgets).unwrap();
        let (old_path, store) = (before.identity.path(None), recorder.store(epoch).unwrap());

        harness.scope.delete_crd(&crd).await.unwrap();
        harness.scope.wait_gone(&crd).await.unwrap();
        harness.scope.install_crd(&other).await.unwrap();

        assert_eq!(harness.done(anew, epoch).await, DoneReason::TypeGone);
        let sent_before = harness.faults.seen().len();
        harness.running(anew, epoch + 1).await;
        assert!(store.is_empty(), "the old cache is empty");
        let after = harness.cluster.types.served(&widgets).unwrap();
        assert_ne!(before.identity.uid, after.identity.uid);
        let scope = if other.is_namespaced() { Scope::Namespaced } else { Scope::Cluster };
        assert_eq!((after.identity.scope, after.identity.path(None)), (scope, old_path));
        assert!(recorder.store(epoch + 1).is_none_or(|store| store.is_empty()));
        let created = harness.create(&other, "new", 1).await;
        assert_eq!(recorder.saw("new", epoch + 1).await.uid, Some(created));
        let seen_later: Vec<_> =
            recorder.all().into_iter().filter(|seen| seen.epoch > epoch).collect();
        assert!(
            seen_later.iter().all(|seen| seen.uid.as_ref() != Some(&old)),
            "old objects are seen: {seen_later:#?}"
        );
        if !other.is_namespaced() {
            // The old epoch wrote at the paths of its own scope; no list or watch is ever
            // restricted to a namespace.
            let sent = harness.faults.seen().into_iter().enumerate();
            let sent = sent.filter(|(number, sent)| *number >= sent_before || is_read(sent.verb));
            let mut sent = sent.map(|(_, sent)| sent).filter(about(&other));
            assert!(!sent.any(|sent| sent.path.contains("/namespaces/")));
        }
        crd = other;
    }

    assert_eq!(harness.assert_orderly(anew), 3);
    let reasons = harness.life(anew).into_iter().filter_map(|step| match step.kind {
        TransitionKind::Done(reason) => Some(reason),
        TransitionKind::Entered(_) | TransitionKind::Removed => None,
    });
    assert!(reasons.eq([DoneReason::TypeGone, DoneReason::TypeGone, DoneReason::TypeGone]));
    harness.end().await.unwrap();
}

fn is_read(verb: Verb) -> bool {
    matches!(verb, Verb::List | Verb::Watch)
}

#[tokio::test]
async fn type_replaced_while_unwatched_is_another_type() {
    let harness = Harness::start("identity-unseen").await;
    let crd = harness.widgets();
    let widgets = type_of(&crd, "v1");
    let recorder = RecordingReconciler::new(widgets.clone());
    Embedded.add(&harness, "anew", &recorder).await;
    harness.scope.install_crd(&crd).await.unwrap();
    harness.running("anew", 1).await;
    let old = harness.create(&crd, "same", 1).await;
    recorder.saw("same", 1).await;
    let is_crds = |info: &RequestInfo| info.resource == "customresourcedefinitions";
    let unseen =
        Rule::new(Action::Hang).resource("apiextensions.k8s.io", "customresourcedefinitions");
    let unseen = harness.faults.add(unseen);
    assert!(harness.faults.cut_open(is_crds) > 0);

    harness.scope.delete_crd(&crd).await.unwrap();
    harness.scope.wait_gone(&crd).await.unwrap();
    harness.scope.install_crd(&crd).await.unwrap();
    harness.scope.wait_established(&crd).await.unwrap();
    assert_eq!(
        (harness.status("anew").state, harness.status("anew").epoch),
        (ControllerState::Running, 1)
    );
    harness.faults.remove(unseen);

    assert_eq!(harness.done("anew", 1).await, DoneReason::TypeGone);
    harness.running("anew", 2).await;
    let new = harness.create(&crd, "same", 2).await;
    assert_eq!(recorder.saw("same", 2).await.uid, Some(new));
    let old_seen =
        recorder.all().into_iter().filter(|it| it.epoch == 2 && it.uid == Some(old.clone()));
    assert_eq!(old_seen.count(), 0);
    harness.end().await.unwrap();
}
