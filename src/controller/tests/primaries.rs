//! Controllers with several primary types.

use super::*;
use crate::{informer::Object, kind::GroupKind};

/// Reconciler that logs each request with the position of its type, and reads its object.
struct Typed(Log);

impl Reconciler for Typed {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let types = [widgets(), parts()];
        let store = context.store(&types[request.primary]);
        let object = store.ok().and_then(|store| store.get(&request));
        let mark = object.as_ref().and_then(|object| object.header().labels.get("mark"));
        let note = format!("{} {request} {}", request.primary, mark.unwrap_or("missing"));
        self.0.lock().unwrap().push(note);
        Ok(Outcome::Done)
    }
}

async fn add(harness: &Harness, builder: Builder) {
    let controller = builder.build(&harness.cluster, Typed(Arc::clone(&harness.log))).unwrap();
    harness.manager.add(NAME, Arc::new(controller), RunnableOptions::default()).await.unwrap();
    harness.state(ControllerState::Running).await;
}

fn sorted(mut log: Vec<String>) -> Vec<String> {
    log.sort();
    log
}

#[tokio::test(start_paused = true)]
async fn objects_of_one_name_and_two_primary_types_are_two_requests() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.install("Part");
    harness.server.apply(widget("a", "one"));
    harness.server.apply(object("Part", "a", "two"));

    add(&harness, builder().for_type(widgets()).for_type(parts())).await;
    assert_eq!(sorted(harness.log().await), ["0 ns/a one", "1 ns/a two"]);
    harness.server.apply(object("Part", "a", "three"));

    assert_eq!(harness.log().await, ["1 ns/a three"]);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn owned_object_enqueues_its_owner_of_any_primary_type() {
    let harness = Harness::new();
    for kind in ["Widget", "Part", "Thing"] {
        harness.install(kind);
    }
    harness.server.apply(widget("a", "one"));
    harness.server.apply(object("Part", "a", "two"));
    let things = TypeRef::resource("example.com", "v1", "things");
    add(&harness, builder().for_type(widgets()).for_type(parts()).owns_type(things)).await;
    harness.log().await;

    for (kind, expected) in [("Widget", "0 ns/a one"), ("Part", "1 ns/a two")] {
        let mut thing = object("Thing", &kind.to_lowercase(), "x");
        thing["metadata"]["ownerReferences"] = serde_json::json!([{
            "apiVersion": "example.com/v1", "kind": kind, "name": "a", "uid": "u",
            "controller": true,
        }]);
        harness.server.apply(thing);
        assert_eq!(harness.log().await, [expected]);
    }
    harness.shutdown().await;
}

/// Thing that a widget and a part of one name own.
fn thing(name: &str) -> serde_json::Value {
    let mut thing = object("Thing", name, "x");
    let owner = |kind: &str| {
        serde_json::json!({
            "apiVersion": "example.com/v1", "kind": kind, "name": "a", "uid": "u",
            "controller": kind == "Part",
        })
    };
    thing["metadata"]["ownerReferences"] = ["Widget", "Part", "Other"].map(owner).into();
    thing
}

/// Handler that requests the owners of a kind.
fn owners(kind: &str) -> Handler {
    let owner = GroupKind { group: "example.com".into(), kind: kind.into() };
    Handler::Owner { owner, only_controller: false }
}

/// The request of a part was one for the widget of its name.
#[tokio::test(start_paused = true)]
async fn handler_of_owners_requests_the_owner_of_its_primary_type() {
    for (kind, expected) in
        [("Widget", "0 ns/a missing"), ("Part", "1 ns/a missing"), ("Other", "0 ns/a missing")]
    {
        let harness = Harness::new();
        harness.install("Widget");
        harness.install("Thing");
        let things = TypeRef::resource("example.com", "v1", "things");
        // The type of parts is not served at first.
        let primaries = builder().for_type(widgets()).for_type(parts()).optional();
        let (events, source) = EventSource::new(1);
        let described = primaries.watches_type(things.clone(), owners(kind));
        add(&harness, described.watches_source(source, owners(kind))).await;

        for name in ["unserved", "served"] {
            harness.server.apply(thing(name));
            assert_eq!(harness.log().await, [expected], "{name}");
            let served = harness.cluster.types.served(&things).unwrap();
            let mut sent = thing(name);
            sent["metadata"]["namespace"] = "ns".into();
            let sent = Object::from_json(serde_json::to_vec(&sent).unwrap(), &served).unwrap();
            events.send(sent).await.unwrap();
            assert_eq!(harness.log().await, [expected], "{name}, by a custom source");
            harness.install("Part");
            assert_eq!(harness.log().await, [""; 0]);
        }
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn optional_primary_type_comes_and_goes_beside_another_one() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.server.apply(widget("a", "one"));
    let primaries = builder().for_type(widgets()).conditional().for_type(parts()).optional();
    add(&harness, primaries).await;
    assert_eq!(harness.log().await, ["0 ns/a one"]);

    for _ in 0..2 {
        harness.install("Part");
        harness.server.apply(object("Part", "a", "two"));
        assert_eq!(harness.log().await, ["1 ns/a two"]);
        harness.server.uninstall("parts");
        assert_eq!(harness.log().await, ["1 ns/a missing"]);
        assert_eq!(harness.status().epoch, 1);
    }
    harness.shutdown().await;
}
