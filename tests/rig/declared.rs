//! Declared controllers that carry a promise: their hook is a function of this process, and
//! records what it is asked about.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use pilotlight::{
    discovery::TypeRegistry,
    informer::{InformerKey, InformerSet, Linger},
    kind::TypeName,
    manager::ManagerHandle,
    meta::{
        Blueprint, CompositeController, Hook, HookError, MetaOptions, SUPERVISOR, Selector,
        Supervisor,
    },
    testing::LeakOracle,
};
use serde_json::{Value, json};

use super::{
    Carrier, Recorder, Rig,
    stage::{LABEL, install_own_crds},
};

/// A CompositeController; all clones are run by one supervisor, of one rig.
#[derive(Clone, Default)]
pub(crate) struct Declared {
    hooks: Arc<Mutex<BTreeMap<String, Arc<Recording>>>>,
}

impl Carrier for Declared {
    async fn add(&self, rig: &Rig<'_>, name: &str, recorder: &Recorder) -> String {
        if rig.manager.status_of(SUPERVISOR).is_none() {
            self.supervise(rig).await;
        }
        let declared = format!("{}-{name}", rig.scope.namespace);
        let runnable = format!("CompositeController-{declared}");
        let hook = Recording {
            runnable: runnable.clone(),
            manager: rig.manager.clone(),
            types: rig.cluster.types.clone(),
            informers: rig.cluster.informers.clone(),
            recorder: recorder.clone(),
        };
        self.hooks.lock().unwrap().insert(declared.clone(), Arc::new(hook));
        let object = object(&declared, &rig.scope.namespace, recorder);
        controllers(rig).create(&PostParams::default(), &object).await.unwrap();
        rig.until(&runnable, "is known to the manager", |_| true).await;
        runnable
    }

    async fn remove(&self, rig: &Rig<'_>, name: &str) {
        let declared = format!("{}-{name}", rig.scope.namespace);
        controllers(rig).delete(&declared, &DeleteParams::default()).await.unwrap();
        rig.until_removed(&format!("CompositeController-{declared}")).await;
    }

    fn leaks(&self, rig: &Rig<'_>) -> LeakOracle {
        // Those that other tests declare are seen, too, and the status of each counts its epochs.
        let group = "metacontroller.k8s.io";
        let key = format!("InformerKey {{ identity: TypeIdentity {{ group: \"{group}\"");
        let series = |name: &str| format!("pilotlight_informer_{name}{{group=\"{group}\"");
        rig.leaks()
            .expect_more("cached objects", key.clone())
            .expect_more("cached bytes", key)
            .expect_more("series", series("objects"))
            .expect_more("series", series("cached_bytes"))
    }
}

impl Declared {
    async fn supervise(&self, rig: &Rig<'_>) {
        install_own_crds(rig.plane()).await;
        let hooks = Arc::clone(&self.hooks);
        let made = move |blueprint: &Blueprint| -> Arc<dyn Hook> {
            let hooks = hooks.lock().unwrap();
            Arc::clone(hooks.get(&blueprint.name).expect("its hook came before it"))
                as Arc<dyn Hook>
        };
        let options = MetaOptions {
            hooks: Some(Arc::new(made)),
            target: Selector::label(LABEL, &rig.scope.namespace),
            ..MetaOptions::default()
        };
        let supervisor =
            rig.enter(|| Supervisor::new(&rig.cluster, rig.manager.clone(), options)).unwrap();
        rig.add(SUPERVISOR, Arc::new(supervisor)).await;
        rig.running(SUPERVISOR, 1).await;
    }
}

fn controllers(rig: &Rig<'_>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<CompositeController>(&());
    Api::all_with(rig.scope.client(), &resource)
}

fn object(name: &str, scope: &str, recorder: &Recorder) -> DynamicObject {
    let parent = recorder.type_ref();
    let version = parent.version.as_deref().unwrap();
    let TypeName::Resource(resource) = &parent.name else { panic!("{parent:?} has no plural") };
    serde_json::from_value(json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": { "name": name, "labels": { LABEL: scope } },
        "spec": {
            "generateSelector": true,
            "parentResource": {
                "apiVersion": format!("{}/{version}", parent.group),
                "resource": resource,
            },
            "hooks": { "sync": { "webhook": { "url": "http://function/" } } },
        },
    }))
    .unwrap()
}

/// Wants nothing.
struct Recording {
    runnable: String,
    manager: ManagerHandle,
    types: TypeRegistry,
    informers: InformerSet,
    recorder: Recorder,
}

impl Recording {
    /// Remembers the cache that an epoch reads from.
    async fn keep_store(&self, epoch: u64) {
        if self.recorder.store(epoch).is_some() {
            return;
        }
        let Some(served) = self.types.served(self.recorder.type_ref()) else { return };
        let key = InformerKey::new(served.identity.clone());
        // Only one that is there: none is started for this.
        if self.informers.status().iter().any(|it| it.key == key) {
            let subscription = self.informers.subscribe(&served, key);
            self.recorder.keep_store(epoch, &subscription.store());
            subscription.release(Linger::Default).await;
        }
    }
}

impl Hook for Recording {
    fn call(&self, request: Bytes) -> BoxFuture<'_, Result<Bytes, HookError>> {
        Box::pin(async move {
            let mut request: Value = serde_json::from_slice(&request).unwrap();
            // No request says so: what an old epoch asks counts as the new one's, and a test
            // that looks for what is old finds it there.
            let epoch = self.manager.status_of(self.runnable.as_str()).unwrap().epoch;
            self.keep_store(epoch).await;
            let parent = serde_json::from_value(request["parent"].take()).unwrap();
            self.recorder.note(&self.runnable, epoch, parent);
            Ok(json!({ "status": {}, "children": [] }).to_string().into())
        })
    }
}
