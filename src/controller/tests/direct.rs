//! Reconcilers that a test calls directly, with a context and stores made by hand.

use super::{typed::Widget, *};
use crate::{
    informer::{Index, Object, Store},
    kind::{Scope, ServedType},
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
