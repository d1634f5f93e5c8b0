//! Builder calls without effect, or with an unintended one: errors of the build.

use super::{typed::Widget, *};
use crate::manager::always;

fn error(built: Result<Controller, BuildError>) -> String {
    built.map(drop).unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn reconciler_of_objects_needs_their_type_as_the_only_primary() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        let reconcile = |_: Option<Arc<Widget>>, _: Context| async { Ok(Outcome::Done) };
        builder.build(&harness.cluster, for_object(reconcile))
    };
    let kind = TypeRef::kind("example.com", "v1", "Widget");

    drop(built(builder().for_::<Widget>().owns_type(parts())).unwrap());
    drop(built(builder().for_type(kind.any_version())).unwrap());
    for wrong in [
        builder().for_::<Widget>().for_type(parts()),
        builder().for_type(parts()).watches::<Widget>(Handler::Object),
        builder().watches::<Widget>(Handler::Object),
        builder().for_type(TypeRef::resource("example.com", "v2", "widgets")),
    ] {
        assert_eq!(
            error(built(wrong)),
            "widgets: the reconciler takes objects of widgets.example.com/v1, which must be the \
             only primary type; take the request instead, and read the object with Context::lister"
        );
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconciler_of_keys_takes_no_primary_type() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        let reconcile = |_: (String, u32), _: Context| async { Ok(Outcome::Done) };
        builder.build(&harness.cluster, for_key(reconcile))
    };

    drop(built(builder().watches_type(parts(), Handler::map(|_| Vec::new()))).unwrap());
    assert_eq!(
        error(built(builder().watches::<Widget>(Handler::Object).for_type(parts()))),
        "widgets: the reconciler takes custom keys, and requests of the primary type \
         parts.example.com/v1 name objects; add it with watches and a handler that maps to keys"
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn source_of_generic_events_takes_no_handler_of_changes_alone() {
    let harness = Harness::new();
    let built = |handler: Handler| {
        let described = builder().watches_source(EventSource::new(1).1, handler);
        described.build(&harness.cluster, LoggingReconciler { log: Log::default() })
    };
    let changes = || Handler::delta(|_, _| {});
    let decoded = || Handler::typed(|_: Event<Widget>, _: &mut Enqueue<'_>| {});

    for handler in [Handler::Object, Handler::map(|_| Vec::new()), changes().generic(|_, _| {})] {
        drop(built(handler).unwrap());
    }
    for handler in [changes(), decoded()] {
        assert_eq!(
            error(built(handler)),
            "widgets: the source delivers generic events only, and its handler takes none; add a \
             function for them with Handler::generic"
        );
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn source_of_requests_takes_no_handler_and_no_predicate() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        builder.build(&harness.cluster, LoggingReconciler { log: Log::default() })
    };
    let channel = || ChannelSource::new(1).1;
    let interval = || FunctionSource::interval(Duration::from_secs(1), Request::cluster("a"));
    let function =
        || FunctionSource::new("files", |context| async move { context.stopping().await });
    let all = || Predicate::new(|_| true);

    drop(built(builder().source(channel()).source(interval())).unwrap());
    drop(built(builder().watches_source(function(), Handler::Object).predicate(all())).unwrap());
    for (wrong, method) in [
        (builder().source(channel()).predicate(all()), "predicate"),
        (builder().source(Broadcast::new().source()).predicate(all()), "predicate"),
        (builder().source(interval()).predicate(all()), "predicate"),
        (builder().watches_source(channel(), Handler::Object), "watches_source"),
    ] {
        assert_eq!(
            error(built(wrong)),
            format!(
                "widgets: {method} has no effect, since the source adds requests and delivers no \
                 changes"
            )
        );
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn plain_input_takes_no_condition() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        builder.build(&harness.cluster, LoggingReconciler { log: Log::default() })
    };
    let plain = || builder().for_type(widgets()).input_when(always);
    let message = "input_when does not stop a plain input; call conditional or optional for \
                   widgets.example.com/v1";

    assert_eq!(error(built(plain())), format!("widgets: {message}"));
    drop(built(plain().conditional()).unwrap());
    drop(built(plain().optional()).unwrap());
    let controller = built(builder().for_type(parts())).unwrap();
    let late = controller.inputs();
    let late =
        late.add("late", |input| input.watches_type(widgets(), Handler::Object).input_when(always));
    assert_eq!(late.unwrap_err().to_string(), format!("widgets: {message}"));
    harness.shutdown().await;
}
