//! Several inputs of one type in a controller.

use super::{
    typed::{Part, Widget},
    *,
};
use crate::{informer::Index, kind::TypeRef};

fn sized(name: &str, mark: &str) -> Value {
    let mut widget = widget(name, mark);
    widget["spec"] = json!({ "size": 1 });
    widget
}

#[tokio::test(start_paused = true)]
async fn reconciler_takes_the_objects_of_the_primary_type_whatever_other_inputs_select() {
    for is_selected in [false, true] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.server.apply(sized("a", "plain"));
        harness.server.apply(sized("b", "template"));
        let log = Arc::clone(&harness.log);
        let reconcile = for_object(move |widget: Option<Arc<Widget>>, context: Context| {
            let name = context.request().map(ToString::to_string).unwrap_or_default();
            log.lock().unwrap().push(format!("{name} {}", widget.is_some()));
            async { Ok(Outcome::Done) }
        });
        let templates = Handler::Object;
        let narrow = builder().watches::<Widget>(templates).labels("mark=template");
        // The primary type is the narrower input, or the wider one.
        let described = match is_selected {
            false => narrow.for_::<Widget>(),
            true => narrow.for_::<Widget>().labels("mark=plain"),
        };
        let controller = described.build(&harness.cluster, reconcile).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();

        let mut log = harness.log().await;

        log.sort();
        assert_eq!(log, ["ns/a true".to_owned(), format!("ns/b {}", !is_selected)]);
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn type_of_two_inputs_is_read_where_all_its_objects_are_whole_with_the_indexes_of_both() {
    let named = || {
        Index::new("mark", |object| {
            object.header().labels.get("mark").map(str::to_owned).into_iter().collect()
        })
    };
    let owned_first = builder().for_type(widgets()).owns::<Part>().index(named());
    let owned_first = owned_first.watches::<Part>(Handler::map(|_| Vec::new()));
    let watched_first = builder().for_type(widgets()).watches::<Part>(Handler::map(|_| Vec::new()));
    let watched_first = watched_first.owns::<Part>().index(named());
    for described in [owned_first, watched_first] {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Part");
        harness.server.apply(object("Part", "foreign", "x"));
        harness.server.apply(widget("a", "a"));
        let log = Arc::clone(&harness.log);
        let reconcile = move |request: Request, context: Context| {
            let log = Arc::clone(&log);
            async move {
                let parts = context.store(&TypeRef::of::<Part>())?;
                let marked = parts.by_index("mark", "x")?.len();
                let all = context.lister::<Part>()?.list()?.len();
                log.lock().unwrap().push(format!("{request} {marked} of {all}"));
                Ok(Outcome::Done)
            }
        };
        let controller = described.build(&harness.cluster, reconcile).unwrap();
        controller.add_to_running(&harness.manager).await.unwrap();

        let log = harness.log().await;
        assert_eq!(
            (log, &harness.status().report.last_error),
            (vec!["ns/a 1 of 1".to_owned()], &None)
        );
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn index_concerns_no_input_that_keeps_a_part_of_each_object() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let typed =
        Index::typed("name", |part: &Part| part.metadata.name.clone().into_iter().collect());
    let described = builder().for_type(widgets()).watches::<Part>(Handler::Object).index(typed);
    let described = described.watches_type(TypeRef::of::<Part>(), Handler::Object).metadata_only();

    harness.add(described).await;

    harness.state(ControllerState::Running).await;
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn handler_reads_the_cache_of_an_input_by_its_name() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    let log = Arc::clone(&harness.log);
    let handler = Handler::delta(move |_, queue| {
        let named = queue.store_of("parts").map(|parts| parts.all().len());
        log.lock().unwrap().push(named.map_or_else(|error| error.to_string(), |it| it.to_string()));
    });
    let controller = harness.build(builder().watches_type(widgets(), handler));
    let inputs = controller.inputs();
    controller.add_to_running(&harness.manager).await.unwrap();
    harness.state(ControllerState::Running).await;

    harness.server.apply(widget("a", "a"));
    let expected = "no cache of the input parts: no input of this name has a complete list";
    assert_eq!(harness.log().await, [expected]);

    harness.server.apply(object("Part", "p", "p"));
    let parts = |it: Builder| it.watches_type(parts(), Handler::map(|_| Vec::new()));
    inputs.add("parts", parts).unwrap().started().await.unwrap();
    harness.server.apply(widget("a", "b"));
    assert_eq!(harness.log().await, ["1"]);
    harness.shutdown().await;
}
