//! Children of an earlier owner, as an embedded controller writes them.

use k8s_openapi::{
    api::core::v1::{ConfigMap, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::{DynamicObject, ObjectMeta},
};

use super::{
    super::write::{create_or_update, set_controller_reference},
    typed::Widget,
    *,
};
use crate::testing::{Action, Reply, Rule, Verb};

/// Request by which a reconciler writes its child.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Write {
    Apply,
    CreateOrUpdate,
    Create,
}

/// Gives each widget a ConfigMap of its name.
struct Owner(Write);

impl Reconciler for Owner {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let Some(owner) = context.store(&widgets())?.get(&request) else {
            return Ok(Outcome::Done);
        };
        let served = context.served(&widgets())?.api_resource();
        let owner = owner.decode::<DynamicObject>()?;
        let metadata = ObjectMeta {
            name: owner.metadata.name.clone(),
            namespace: Some("ns".to_owned()),
            ..ObjectMeta::default()
        };
        let mut map = ConfigMap { metadata, ..ConfigMap::default() };
        set_controller_reference(&mut map, &owner, &served)?;
        let api = Api::<ConfigMap>::namespaced(context.client().clone(), "ns");
        match self.0 {
            Write::Apply => drop(context.apply(&map).await?),
            Write::CreateOrUpdate => {
                let change = |map: &mut ConfigMap| {
                    set_controller_reference(map, &owner, &served).map_err(Into::into)
                };
                create_or_update(&api, map.clone(), change).await?;
            }
            Write::Create => match api.create(&Default::default(), &map).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    if context.delete_left_behind(&map, &()).await? {
                        api.create(&Default::default(), &map).await?;
                    }
                }
                created => drop(created?),
            },
        }
        Ok(Outcome::Done)
    }
}

/// Deletes the object in place of a desired one, and keeps the last result.
struct Deleter<K> {
    desired: K,
    result: Arc<Mutex<Option<Result<bool, String>>>>,
}

impl<K: kube::Resource<DynamicType = ()> + Send + Sync + 'static> Reconciler for Deleter<K> {
    async fn reconcile(
        &self,
        _request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let result = context.delete_left_behind(&self.desired, &()).await;
        *self.result.lock().unwrap() = Some(result.map_err(|error| error.to_string()));
        Ok(Outcome::Done)
    }
}

/// Controller of widgets with the widget `a`.
struct Fixture {
    harness: Harness,
    /// uid of the widget.
    uid: String,
}

impl Fixture {
    async fn start() -> Self {
        let harness = Harness::new();
        harness.install("Widget");
        harness.server.apply(widget("a", "a"));
        let widgets = Api::<Widget>::namespaced(harness.server.client(), "ns");
        let uid = widgets.get_metadata("a").await.unwrap().metadata.uid.unwrap();
        Self { harness, uid }
    }

    /// Returns the result of a deletion in place of this object.
    async fn delete<K>(&self, desired: K) -> Result<bool, String>
    where
        K: kube::Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let result = Arc::default();
        let deleter = Deleter { desired, result: Arc::clone(&result) };
        self.harness.add_reconciler(builder().for_type(widgets()), deleter).await;
        run_until_idle().await;
        result.lock().unwrap().take().unwrap()
    }
}

impl Harness {
    async fn add_reconciler(&self, builder: Builder, reconciler: impl Reconciler) {
        let controller = builder.conditional().build(&self.cluster, reconciler).unwrap();
        let options = RunnableOptions::default();
        self.manager.add(NAME, Arc::new(controller), options).await.unwrap();
        self.state(ControllerState::Running).await;
    }

    /// Metadata of the ConfigMap `a`.
    async fn map(&self) -> ObjectMeta {
        let maps = Api::<ConfigMap>::namespaced(self.server.client(), "ns");
        maps.get("a").await.unwrap().metadata
    }

    /// Number of deletions that were sent.
    fn deletions(&self) -> usize {
        let seen = self.server.faults().seen();
        seen.iter().filter(|info| info.verb == Verb::Delete).count()
    }
}

/// Metadata of the object `a` whose controller is the widget of that name with this uid.
fn child_of(uid: &str) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: "example.com/v1".to_owned(),
        kind: "Widget".to_owned(),
        name: "a".to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    ObjectMeta {
        name: Some("a".to_owned()),
        namespace: Some("ns".to_owned()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_owner_follows_the_new_one_within_a_second() {
    for write in [Write::Apply, Write::CreateOrUpdate, Write::Create] {
        let harness = Harness::new();
        harness.install("Widget");
        let builder = builder().for_type(widgets()).owns_type(TypeRef::of::<ConfigMap>());
        harness.add_reconciler(builder, Owner(write)).await;
        harness.server.apply(widget("a", "a"));
        run_until_idle().await;
        let first = harness.map().await;

        // The collector is late.
        let orphaned = first.clone();
        harness.server.delete("Widget", "a");
        harness.server.apply(widget("a", "a"));
        sleep(Duration::from_secs(1)).await;

        let now = harness.map().await;
        let owners = now.owner_references.unwrap();
        let [owner] = &owners[..] else { panic!("{write:?}: {owners:?}") };
        assert_ne!(owner.uid, orphaned.owner_references.unwrap()[0].uid, "{write:?}");
        assert_eq!(now.uid == first.uid, write != Write::Create, "{write:?}");
        #[cfg(feature = "runtime")]
        {
            let events = Api::<k8s_openapi::api::events::v1::Event>::all(harness.server.client());
            let events = events.list(&Default::default()).await.unwrap().items;
            let reasons: Vec<_> = events.into_iter().filter_map(|event| event.reason).collect();
            let deleted = ["ChildOfEarlierParentDeleted"];
            assert_eq!(reasons, &deleted[usize::from(write != Write::Create)..], "{write:?}");
        }
        harness.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_owner_that_changes_before_its_deletion_is_kept() {
    let harness = Harness::new();
    harness.install("Widget");
    harness.add_reconciler(builder().for_type(widgets()), Owner(Write::Create)).await;
    harness.server.apply(widget("a", "a"));
    run_until_idle().await;
    let first = harness.map().await;
    let held = Rule::new(Action::Hang).verb(Verb::Delete).resource("", "configmaps");
    let held = harness.server.fault(held);
    harness.server.delete("Widget", "a");
    harness.server.apply(widget("a", "a"));
    run_until_idle().await;
    assert_eq!(harness.server.faults().hits(held), 1, "the deletion is under way");

    let mut owners = first.owner_references.unwrap();
    let name = "other".to_owned();
    owners.push(OwnerReference { name, controller: None, ..owners[0].clone() });
    let shared = Patch::Merge(json!({ "metadata": { "ownerReferences": owners } }));
    let maps = Api::<ConfigMap>::namespaced(harness.server.client(), "ns");
    maps.patch("a", &PatchParams::default(), &shared).await.unwrap();
    harness.server.remove(held);
    sleep(Duration::from_secs(60)).await;

    let now = harness.map().await;
    assert_eq!((now.uid, now.owner_references), (first.uid, Some(owners)));
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn child_of_an_owner_whose_kind_had_another_scope_is_not_deleted() {
    let harness = Harness::new();
    harness.server.install(crd("Widget").cluster_scoped(), &["v1"]);
    harness.add_reconciler(builder().for_type(widgets()), Owner(Write::Create)).await;
    harness.server.apply_cluster_scoped(widget("a", "a"));
    run_until_idle().await;
    let first = harness.map().await;

    harness.server.uninstall("widgets");
    harness.install("Widget");
    harness.until(|status| status.state == ControllerState::Running && status.epoch == 2).await;
    harness.server.apply(widget("a", "a"));
    sleep(Duration::from_secs(60)).await;

    assert_eq!(harness.map().await, first);
    assert_eq!(harness.deletions(), 0);
    harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn child_of_the_new_owner_outlives_an_outdated_desired_object() {
    let fixture = Fixture::start().await;
    let metadata = child_of(&fixture.uid);
    let maps = Api::<ConfigMap>::namespaced(fixture.harness.server.client(), "ns");
    let child = ConfigMap { metadata, ..ConfigMap::default() };
    let stored = maps.create(&Default::default(), &child).await.unwrap();

    let outdated = ConfigMap { metadata: child_of("earlier"), ..ConfigMap::default() };
    let result = fixture.delete(outdated).await;

    assert_eq!(result, Ok(false));
    assert_eq!(fixture.harness.map().await, stored.metadata);
    assert_eq!(fixture.harness.deletions(), 0);
    fixture.harness.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn volume_claim_of_an_earlier_owner_is_not_deleted() {
    let fixture = Fixture::start().await;
    let mut metadata = child_of("earlier");
    metadata.uid = Some("u".to_owned());
    metadata.resource_version = Some("7".to_owned());
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
    });
    let read = Rule::new(Action::Reply(Reply::json(&claim))).verb(Verb::Get);
    fixture.harness.server.fault(read.resource("", "persistentvolumeclaims"));

    let metadata = child_of(&fixture.uid);
    let desired = PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() };
    let result = fixture.delete(desired).await;

    assert_eq!(result, Ok(false));
    assert_eq!(fixture.harness.deletions(), 0);
    fixture.harness.shutdown().await;
}
