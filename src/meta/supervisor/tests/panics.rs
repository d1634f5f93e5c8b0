//! A hook or a factory of hooks that panics affects its own declared controller alone.

use super::*;
use crate::guard::fixture::{PanicsOnDrop, check_each, is_named};

/// Place in a hook, or in what makes it, whose code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanicPoint {
    Factory,
    FactoryDropped,
    Call,
    Answer,
    CallDropped,
    Forget,
    Release,
    Released,
    HookDropped,
}

struct Faulty {
    point: PanicPoint,
    _panics: Option<PanicsOnDrop>,
}

impl Faulty {
    fn panics(&self, at: PanicPoint) {
        assert!(self.point != at, "boom");
    }
}

impl Hook for Faulty {
    fn call(&self, _request: Bytes) -> futures::future::BoxFuture<'_, Result<Bytes, HookError>> {
        self.panics(PanicPoint::Call);
        let panics_on_drop = (self.point == PanicPoint::CallDropped).then(|| PanicsOnDrop);
        async move {
            let _panics = panics_on_drop;
            self.panics(PanicPoint::Answer);
            Ok(Bytes::from_static(b"{}"))
        }
        .boxed()
    }

    fn forget(&self, _parent: &crate::controller::Request) {
        self.panics(PanicPoint::Forget);
    }

    fn release(&self) -> futures::future::BoxFuture<'_, ()> {
        self.panics(PanicPoint::Release);
        async { self.panics(PanicPoint::Released) }.boxed()
    }
}

/// Makes the hook that panics for the controller "faulty", and another one for all others.
fn factory(point: PanicPoint) -> HookFactory {
    let panics_on_drop = (point == PanicPoint::FactoryDropped).then(|| PanicsOnDrop);
    Arc::new(move |definition, _| {
        let _kept = &panics_on_drop;
        if &*definition.name != "faulty" {
            return Arc::new(Content);
        }
        assert!(point != PanicPoint::Factory, "boom");
        Arc::new(Faulty {
            point,
            _panics: (point == PanicPoint::HookDropped).then(|| PanicsOnDrop),
        })
    })
}

fn thing(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
    })
}

/// Runs a declared controller whose hook panics there, beside a healthy one.
async fn try_point(point: PanicPoint) {
    let harness = Harness::with(factory(point), RESYNC).await;
    let faulty = runnable("faulty");
    harness.server.apply(thing("a")).unwrap();
    harness.declare("faulty", good());
    harness.declare("well", good());
    harness.running("well", 1).await;
    if point != PanicPoint::Factory {
        harness.running("faulty", 1).await;
    }
    if matches!(point, PanicPoint::Call | PanicPoint::Answer | PanicPoint::CallDropped) {
        harness.until(&faulty, is_named).await;
    }
    harness.server.remove("example.com/v1", "Thing", "", "a").unwrap();
    if point == PanicPoint::Forget {
        harness.until(&faulty, is_named).await;
    }
    run_until_idle().await;

    let (version, kind) = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
    harness.server.remove(version, kind, "", "faulty").unwrap();
    harness.until_all("it is removed", |all| all.get(&faulty.as_str().into()).is_none()).await;

    let mut statuses = harness.manager.watch();
    let named = statuses.wait_for(|all| is_named(&all[&SUPERVISOR.into()]));
    // An error of the supervisor is repeated, and forgotten once that succeeds.
    assert!(timeout(Duration::from_millis(20), named).await.is_err(), "the supervisor is affected");
    let supervisor = harness.manager.status_of(SUPERVISOR).unwrap();
    assert_eq!((harness.epoch("well"), supervisor.epoch), (Some(1), 1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_code_of_a_hook_affects_its_own_controller_alone() {
    let points = [
        PanicPoint::Factory,
        PanicPoint::FactoryDropped,
        PanicPoint::Call,
        PanicPoint::Answer,
        PanicPoint::CallDropped,
        PanicPoint::Forget,
        PanicPoint::Release,
        PanicPoint::Released,
        PanicPoint::HookDropped,
    ];
    check_each(&points, try_point).await;
}
