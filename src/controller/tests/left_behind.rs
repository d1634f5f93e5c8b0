//! Children of an earlier owner, as an embedded controller writes them.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    core::{DynamicObject, ObjectMeta},
};

use super::{
    super::write::{create_or_update, set_controller_reference},
    *,
};

/// Way in which a reconciler writes its child.
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

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_owner_follows_the_new_one_within_a_second() {
    for write in [Write::Apply, Write::CreateOrUpdate, Write::Create] {
        let harness = Harness::new();
        harness.install("Widget");
        let builder = builder().for_type(widgets()).owns_type(TypeRef::of::<ConfigMap>());
        let controller = builder.conditional().build(&harness.cluster, Owner(write)).unwrap();
        let options = RunnableOptions::default();
        harness.manager.add(NAME, Arc::new(controller), options).await.unwrap();
        harness.state(ControllerState::Running).await;
        let map = async || {
            let api = Api::<ConfigMap>::namespaced(harness.server.client(), "ns");
            api.get("a").await.unwrap().metadata
        };
        harness.server.apply(widget("a", "a"));
        run_until_idle().await;
        let first = map().await;

        // The collector is late.
        let orphaned = first.clone();
        harness.server.delete("Widget", "a");
        harness.server.apply(widget("a", "a"));
        sleep(Duration::from_secs(1)).await;

        let now = map().await;
        let owners = now.owner_references.unwrap();
        let [owner] = &owners[..] else { panic!("{write:?}: {owners:?}") };
        assert_ne!(owner.uid, orphaned.owner_references.unwrap()[0].uid, "{write:?}");
        assert_eq!(now.uid == first.uid, write != Write::Create, "{write:?}");
        harness.shutdown().await;
    }
}
