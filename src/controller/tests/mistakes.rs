//! Builder calls without effect, or with an unintended one: errors of the build.

use super::{typed::Widget, *};
use crate::{
    informer::{Index, Object},
    kind::GroupKind,
    manager::{Readiness, Subresource, always},
};

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
    drop(built(builder().for_type(kind.clone())).unwrap());
    for wrong in [
        // The type may be served at another version, whose objects have another shape.
        builder().for_type(kind.any_version()),
        builder().for_::<Widget>().for_type(parts()),
        builder().for_type(parts()).watches::<Widget>(Handler::Object),
        builder().watches::<Widget>(Handler::Object),
        builder().for_type(TypeRef::resource("example.com", "v2", "widgets")),
    ] {
        assert_eq!(
            error(built(wrong)),
            "widgets: the reconciler takes objects of widgets.example.com/v1, which must be the \
             only primary type, at this version; take the request instead, and read the object with \
             Context::lister"
        );
    }
    let kept_in_part = built(builder().for_type(widgets()).metadata_only());
    assert_eq!(
        error(kept_in_part),
        "widgets: the reconciler decodes widgets.example.com/v1, of which metadata_only and keys_only \
         keep too little; read the headers of its objects"
    );
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn reconciler_of_keys_takes_no_input_whose_requests_name_objects() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        let reconcile = |_: (String, u32), _: Context| async { Ok(Outcome::Done) };
        builder.build(&harness.cluster, for_key(reconcile))
    };
    let keys = || builder().watches_type(widgets(), Handler::map(|_| Vec::new()));
    let message = |label: &str| {
        format!(
            "widgets: the reconciler takes custom keys, and the requests of {label} name objects; \
             watch it with a handler that maps to keys by Request::of_key"
        )
    };
    let owner = || Handler::Owner {
        owner: GroupKind { group: "example.com".into(), kind: "Widget".into() },
        only_controller: true,
    };
    let parts_label = "parts.example.com/v1";

    drop(built(keys().source(ChannelSource::new(1).1)).unwrap());
    drop(built(keys().watches_type(parts(), Handler::delta(|_, _| {}))).unwrap());
    let own = Handler::Object.generic(|_, _| {});
    drop(built(keys().watches_source(EventSource::new(1).1, own)).unwrap());
    for (wrong, label) in [
        (keys().for_type(parts()), parts_label),
        (keys().owns_type(parts()), parts_label),
        (keys().watches_type(parts(), Handler::Object), parts_label),
        (keys().watches_type(parts(), owner()), parts_label),
        (keys().claims_type(parts(), Handler::Object), parts_label),
        (keys().watches_source(EventSource::new(1).1, Handler::Object), "a channel of events"),
        (keys().source(EventSource::new(1).1), "a channel of events"),
    ] {
        assert_eq!(error(built(wrong)), message(label));
    }
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn input_that_is_added_late_names_no_objects_for_a_reconciler_of_keys() {
    let harness = Harness::new();
    let keys = || Handler::map(|_| Vec::new());
    let reconcile = |_: (String, u32), _: Context| async { Ok(Outcome::Done) };
    let described = builder().watches_type(widgets(), keys());
    let inputs = described.build(&harness.cluster, for_key(reconcile)).unwrap().inputs();
    let message = "widgets: the reconciler takes custom keys, and the requests of \
                   parts.example.com/v1 name objects; watch it with a handler that maps to keys by \
                   Request::of_key";

    let added = inputs.add("late", |input| input.watches_type(parts(), Handler::Object));
    assert_eq!(added.unwrap_err().to_string(), message);
    drop(inputs.add("late", |input| input.watches_type(parts(), keys())).unwrap());
    let replaced = inputs.replace("late", |input| input.watches_type(parts(), Handler::Object));

    assert_eq!(replaced.unwrap_err().to_string(), message);
    harness.shutdown().await;
}

/// Source of generic events, as a user would write it.
struct Reviews;

impl ConditionalSource for Reviews {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        let (synced, done) = (async { Ok(()) }.boxed(), async { SourceEnd::Stopped }.boxed());
        SourceStart { synced, done }
    }

    fn delivers_generic_only(&self) -> bool {
        true
    }
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
    let log = || LoggingReconciler { log: Log::default() };
    let own = builder().watches_source(Reviews, changes()).build(&harness.cluster, log());
    for refused in [built(changes()), built(decoded()), own] {
        assert_eq!(
            error(refused),
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
        (builder().source(interval()).predicate(all()), "predicate"),
        (builder().watches_source(channel(), Handler::Object), "watches_source"),
    ] {
        assert_eq!(
            error(built(wrong)),
            format!(
                "widgets: {method} has no effect, since the source adds requests and delivers no \
                 changes; map the requests before they are sent"
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
    let subresource = || builder().for_type(widgets()).subresource(Subresource::Scale);
    assert_eq!(
        error(built(subresource())),
        "widgets: subresource does not stop a plain input; call conditional or optional for \
         widgets.example.com/v1"
    );
    drop(built(subresource().conditional()).unwrap());
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

#[tokio::test(start_paused = true)]
async fn second_index_of_one_name_with_another_function_is_refused() {
    let harness = Harness::new();
    let built = |builder: Builder| {
        builder.build(&harness.cluster, LoggingReconciler { log: Log::default() })
    };
    let by_name = || Index::new("by", |object: &Object| vec![object.key().name.to_string()]);
    let by_size = || Index::typed("by", |widget: &Widget| vec![widget.spec.size.to_string()]);
    let by_text = |text: &'static str| Index::new("by", move |_: &Object| vec![text.to_owned()]);
    let watched = || builder().watches_type(widgets(), Handler::Object).index(by_name());
    let message = "widgets: widgets.example.com/v1 has two indexes of the name by; give one of \
                   them another name";

    for twice in [
        watched().index(by_size()),
        watched().watches_type(widgets(), Handler::Object).index(by_size()),
        watched().for_type(widgets()).index(by_text("a")),
        builder().for_type(widgets()).index(by_text("a")).index(by_text("b")),
        watched().watches_type(widgets(), Handler::Object).metadata_only().index(by_text("a")),
    ] {
        assert_eq!(error(built(twice)), message);
    }
    let text = by_text("a");
    for once in [
        watched().index(by_name()),
        watched().watches_type(widgets(), Handler::Object).index(by_name()),
        watched().watches_type(parts(), Handler::Object).index(by_size()),
        builder().for_type(widgets()).index(by_size()).owns_type(widgets()).index(by_size()),
        builder().for_type(widgets()).index(text.clone()).owns_type(widgets()).index(text),
    ] {
        drop(built(once).unwrap());
    }
    harness.shutdown().await;
}
