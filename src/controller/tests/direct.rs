//! Reconcilers that a test calls directly, with a context and stores made by hand.

use super::{typed::Widget, *};
use crate::{
    informer::{Delta, Index, Object, Store},
    kind::{GroupKind, Scope, ServedType},
};

fn sized(name: &str, size: u32) -> Object {
    let mut widget = widget(name, name);
    widget["metadata"]["namespace"] = json!("ns");
    widget["metadata"]["uid"] = json!(name);
    widget["spec"] = json!({ "size": size });
    Object::from_json(widget.to_string(), &ServedType::of::<Widget>(Scope::Namespaced)).unwrap()
}

fn context(server: &Server, objects: impl IntoIterator<Item = Object>) -> Context {
    let (widgets, store) = (ServedType::of::<Widget>(Scope::Namespaced), Store::of(objects));
    store.add_index(Index::new("size", |widget| {
        widget.decode::<Widget>().map(|widget| widget.spec.size.to_string()).into_iter().collect()
    }));
    let epoch = Epoch::new("direct", 1, Duration::ZERO);
    Context::new(epoch, &server.client()).with_input(&widgets, widgets.clone(), store)
}

#[tokio::test]
async fn reconciler_of_requests_is_called_with_a_context_made_by_hand() {
    let server = Server::new();
    let log = Log::default();
    let logged = Arc::clone(&log);
    let reconciler = move |request: Request, context: Context| {
        let log = Arc::clone(&logged);
        async move {
            let widgets = context.lister::<Widget>()?;
            let size = widgets.get(&request)?.map(|widget| widget.spec.size);
            let counts = (widgets.list()?.len(), widgets.by_index("size", "2")?.len());
            log.lock().unwrap().push(format!("{request} {size:?} {counts:?}"));
            Ok(Outcome::Done)
        }
    };
    let context = context(&server, [sized("a", 1), sized("b", 2), sized("c", 2)]);

    for name in ["a", "missing"] {
        let request = Request::namespaced("ns", name);
        assert_eq!(reconciler.reconcile(request, context.clone()).await.unwrap(), Outcome::Done);
    }

    assert_eq!(*log.lock().unwrap(), ["ns/a Some(1) (3, 2)", "ns/missing None (3, 2)"]);
    let error = context.lister::<super::typed::Part>().unwrap_err();
    assert!(matches!(error, ListerError::NotAnInput(_)), "{error}");
}

#[tokio::test]
async fn reconciler_of_objects_is_called_with_a_context_made_by_hand() {
    let server = Server::new();
    let reconciler = for_object(|widget: Option<Arc<Widget>>, context: Context| async move {
        let name = context.request().map(ToString::to_string).ok_or("no request")?;
        let size = widget.map(|widget| u64::from(widget.spec.size));
        assert_eq!(name, "ns/a");
        Ok(size.map_or(Outcome::Done, |size| Outcome::RequeueAfter(Duration::from_secs(size))))
    });
    let request = Request::namespaced("ns", "a");
    let found = context(&server, [sized("a", 7)]).with_request(request.clone());
    let deleted = context(&server, [sized("b", 7)]).with_request(request.clone());

    let outcome = reconciler.reconcile(request.clone(), found).await.unwrap();
    assert_eq!(outcome, Outcome::RequeueAfter(Duration::from_secs(7)));
    assert_eq!(reconciler.reconcile(request, deleted).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn inputs_of_another_cluster_and_by_name_are_made_by_hand() {
    let server = Server::new();
    let (other, _runnable) = Cluster::new(server.client(), ClusterOptions::default());
    let widgets = ServedType::of::<Widget>(Scope::Namespaced);
    let context = context(&server, [sized("a", 1)])
        .with_input_of(&other, &widgets, widgets.clone(), Store::of([sized("b", 2)]))
        .with_named_input("late", &widgets, widgets.clone(), Store::of([sized("c", 3)]));
    let names = |store: Store| -> Vec<_> {
        store.list().unwrap().iter().map(|widget| widget.key().to_string()).collect()
    };
    let there = context.of_cluster(&other);

    assert_eq!(names(context.store(&TypeRef::from(&widgets)).unwrap()), ["ns/a"]);
    assert_eq!(names(there.store(&TypeRef::from(&widgets)).unwrap()), ["ns/b"]);
    assert_eq!(there.lister::<Widget>().unwrap().list().unwrap().len(), 1);
    assert_eq!(names(context.store_of("late").unwrap()), ["ns/c"]);
    assert!(context.store_of("other").is_err());
}

#[tokio::test]
async fn handler_is_called_with_a_context_made_by_hand() {
    let server = Server::new();
    let context = context(&server, [sized("a", 1), sized("b", 2), sized("c", 3)]);
    let soon = Add { after: Duration::from_secs(7), ..Add::default() };
    let of_size = move |size: &str, queue: &mut Enqueue<'_>| {
        let widgets = queue.store(&TypeRef::of::<Widget>()).unwrap();
        for widget in widgets.by_index("size", size).unwrap() {
            queue.add_with(widget.key().clone(), soon);
        }
    };
    let handler = Handler::events(move |_, queue| of_size("2", queue))
        .generic(move |_, queue| of_size("1", queue));
    let expected = |names: &[&str]| -> Vec<_> {
        names.iter().map(|name| (Request::namespaced("ns", *name), Some(soon))).collect()
    };

    assert_eq!(handler.requests_of(&Delta::created(sized("x", 9)), &context), expected(&["b"]));
    assert_eq!(handler.generic_requests_of(&sized("x", 9), &context), expected(&["a"]));
    let synced = Enqueue::collect(&context, |queue| of_size("1", queue));
    assert_eq!(synced, expected(&["a"]));
    // An object that was created again is a deletion and a creation.
    let mut again = Delta::created(sized("y", 9));
    again.old = Some(sized("x", 9));
    assert_eq!(handler.requests_of(&again, &context), expected(&["b", "b"]));
}

#[tokio::test]
async fn owner_is_requested_in_the_scope_of_its_input_made_by_hand() {
    let server = Server::new();
    let epoch = || Epoch::new("direct", 1, Duration::ZERO);
    let of_scope = |scope: Scope| {
        let widgets = ServedType::of::<Widget>(scope);
        let context = Context::new(epoch(), &server.client());
        context.with_input(&widgets, widgets.clone(), Store::of([]))
    };
    let owner = GroupKind { group: "example.com".into(), kind: "Widget".into() };
    let handler = Handler::Owner { owner, only_controller: true };
    let mut owned = part("one", "a");
    owned["metadata"]["namespace"] = json!("ns");
    let parts = ServedType::of::<super::typed::Part>(Scope::Namespaced);
    let change = Delta::created(Object::from_json(owned.to_string(), &parts).unwrap());
    let of = |context: &Context| handler.requests_of(&change, context);

    assert_eq!(of(&of_scope(Scope::Namespaced)), [(Request::namespaced("ns", "a"), None)]);
    assert_eq!(of(&of_scope(Scope::Cluster)), [(Request::cluster("a"), None)]);
    let without_inputs = Context::new(epoch(), &server.client());
    assert_eq!(of(&without_inputs), [(Request::namespaced("ns", "a"), None)]);
}
