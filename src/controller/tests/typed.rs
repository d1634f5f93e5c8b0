//! The typed way: the type of a controller is a Rust type, and so is what its lister gives.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use super::*;

/// As a user would derive it.
#[derive(Clone, Debug, Deserialize)]
struct Widget {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Clone, Debug, Deserialize)]
struct Spec {
    size: u32,
}

#[derive(Clone, Debug, Deserialize)]
struct Part {
    metadata: ObjectMeta,
}

macro_rules! resource {
    ($type:ident, $plural:literal) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($type).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                "example.com".into()
            }

            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(Widget, "widgets");
resource!(Part, "parts");

/// Notes the size of each widget and how many parts there are.
struct Typed(Log);

impl Reconciler for Typed {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let Some(widget) = context.lister::<Widget>()?.get(&request)? else {
            self.0.lock().unwrap().push(format!("{request} gone"));
            return Ok(Outcome::Done);
        };
        let parts = context.lister::<Part>()?.list().into_iter().collect::<Result<Vec<_>, _>>()?;
        self.0.lock().unwrap().push(format!("{request} {} {}", widget.spec.size, parts.len()));
        Ok(Outcome::Done)
    }
}

fn sized(name: &str, size: Value) -> Value {
    let mut widget = widget(name, name);
    widget["spec"] = json!({"size": size});
    widget
}

async fn rig() -> Rig {
    let rig = Rig::new();
    rig.install("Widget");
    rig.install("Part");
    let builder = builder().for_::<Widget>().conditional().owns::<Part>().conditional();
    let controller = builder.build(&rig.cluster, Typed(Arc::clone(&rig.log))).unwrap();
    rig.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    rig.state(ControllerState::Running).await;
    rig
}

#[tokio::test(start_paused = true)]
async fn typed_controller_reads_its_objects_and_hears_of_what_they_own() {
    let rig = rig().await;

    rig.server.apply(sized("a", json!(1)));
    assert_eq!(rig.log().await, ["ns/a 1 0"]);
    rig.server.apply(part("p", "a"));
    assert_eq!(rig.log().await, ["ns/a 1 1"]);
    rig.server.delete("Widget", "a");
    assert_eq!(rig.log().await, ["ns/a gone"]);

    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lister_of_what_nothing_is_known_of_is_an_error_and_not_empty() {
    let rig = Rig::new();
    rig.install("Widget");
    rig.server.apply(sized("a", json!(1)));
    let builder = builder().for_::<Widget>().conditional().owns::<Part>().optional();
    let controller = builder.build(&rig.cluster, Typed(Arc::clone(&rig.log))).unwrap();
    rig.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    rig.state(ControllerState::Running).await;

    assert_eq!(rig.log().await, [""; 0], "not a widget without parts");
    let error = rig.status().report.last_error.clone().unwrap();
    assert!(error.contains("nothing is known of the objects of"), "{error}");

    rig.install("Part");
    rig.server.apply(part("p", "a"));
    assert_eq!(rig.log().await, ["ns/a 1 1"]);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn object_that_does_not_have_the_shape_of_its_type_fails_alone() {
    let rig = rig().await;
    rig.server.apply(sized("good", json!(1)));
    assert_eq!(rig.log().await, ["ns/good 1 0"]);

    rig.server.apply(sized("bad", json!("many")));
    rig.server.apply(sized("good", json!(2)));

    assert_eq!(rig.log().await, ["ns/good 2 0"]);
    let status = rig.status();
    let error = status.report.last_error.clone().unwrap();
    assert!(error.starts_with("ns/bad: ") && error.contains("expected u32"), "{error}");
    assert_eq!((status.state, status.epoch), (ControllerState::Running, 1));
    rig.server.apply(sized("bad", json!(3)));
    assert_eq!(rig.log().await, ["ns/bad 3 0"]);
    assert_eq!(rig.status().report.last_error, None);
    rig.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn list_of_typed_objects_has_an_error_for_each_misshapen_one() {
    let rig = Rig::new();
    rig.install("Widget");
    for (name, size) in [("a", json!(1)), ("bad", json!([])), ("c", json!(3))] {
        rig.server.apply(sized(name, size));
    }
    struct Counter(Log);
    impl Reconciler for Counter {
        async fn reconcile(&self, _: Request, context: Context) -> Result<Outcome, ReconcileError> {
            let all = context.lister::<Widget>()?.list();
            let bad = all.iter().filter(|widget| widget.is_err()).count();
            self.0.lock().unwrap().push(format!("{bad} of {}", all.len()));
            Ok(Outcome::Done)
        }
    }

    let controller = builder().for_::<Widget>().build(&rig.cluster, Counter(rig.log.clone()));
    let controller = Arc::new(controller.unwrap());
    rig.manager.add(NAME, controller, RunnableOptions::default()).await.unwrap();
    rig.state(ControllerState::Running).await;

    assert_eq!(rig.log().await, ["1 of 3", "1 of 3", "1 of 3"]);
    rig.shutdown().await;
}
