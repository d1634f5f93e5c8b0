//! Declared controllers as a [`ControllerVariant`](super::ControllerVariant): their hook is a
//! function in this process and records the objects in its requests.

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
    informer::{InformerKey, InformerSet, Linger, Selector},
    kind::TypeName,
    manager::ManagerHandle,
    meta::{
        Definition, Hook, HookError, HookKind, MetaOptions, SUPERVISOR, Supervisor,
        api::CompositeController,
    },
    testing::LeakOracle,
};
use serde_json::{Value, json};

use super::{
    ControllerVariant, Harness, RecordingReconciler,
    supervised::{LABEL, install_own_crds},
};

/// A CompositeController. All clones share one supervisor, in one harness.
#[derive(Clone, Default)]
pub(crate) struct Declared {
    hooks: Arc<Mutex<BTreeMap<String, Arc<Recording>>>>,
}

impl ControllerVariant for Declared {
    async fn add(
        &self,
        harness: &Harness<'_>,
        name: &str,
        recorder: &RecordingReconciler,
    ) -> String {
        if harness.manager.status_of(SUPERVISOR).is_none() {
            self.supervise(harness).await;
        }
        let declared = format!("{}-{name}", harness.scope.namespace);
        let runnable = format!("CompositeController-{declared}");
        let hook = Recording {
            runnable: runnable.clone(),
            manager: harness.manager.clone(),
            types: harness.cluster.types.clone(),
            informers: harness.cluster.informers.clone(),
            recorder: recorder.clone(),
        };
        self.hooks.lock().unwrap().insert(declared.clone(), Arc::new(hook));
        let object = object(&declared, &harness.scope.namespace, recorder);
        controllers(harness).create(&PostParams::default(), &object).await.unwrap();
        harness.until(&runnable, "is known to the manager", |_| true).await;
        runnable
    }

    async fn remove(&self, harness: &Harness<'_>, name: &str) {
        let declared = format!("{}-{name}", harness.scope.namespace);
        controllers(harness).delete(&declared, &DeleteParams::default()).await.unwrap();
        harness.until_removed(&format!("CompositeController-{declared}")).await;
    }

    fn leaks(&self, harness: &Harness<'_>) -> LeakOracle {
        // The supervisor also sees the objects of other tests, whose status counts their epochs.
        let group = "metacontroller.k8s.io";
        let key = format!("InformerKey {{ identity: TypeIdentity {{ group: \"{group}\"");
        let series = |name: &str| format!("pilotlight_informer_{name}{{group=\"{group}\"");
        harness
            .leaks()
            .expect_more("cached objects", key.clone())
            .expect_more("cached bytes", key)
            .expect_more("series", series("objects"))
            .expect_more("series", series("cached_bytes"))
    }
}

impl Declared {
    async fn supervise(&self, harness: &Harness<'_>) {
        install_own_crds(harness.plane()).await;
        let hooks = Arc::clone(&self.hooks);
        let made = move |definition: &Definition, _: HookKind| -> Arc<dyn Hook> {
            let hooks = hooks.lock().unwrap();
            Arc::clone(hooks.get(definition.name()).expect("its hook was registered first"))
                as Arc<dyn Hook>
        };
        let options = MetaOptions {
            hooks: Some(Arc::new(made)),
            target: Selector::label(LABEL, &harness.scope.namespace),
            ..MetaOptions::default()
        };
        let supervisor = harness
            .enter(|| Supervisor::new(&harness.cluster, harness.manager.clone(), options))
            .unwrap();
        harness.add(SUPERVISOR, Arc::new(supervisor)).await;
        harness.running(SUPERVISOR, 1).await;
    }
}

fn controllers(harness: &Harness<'_>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<CompositeController>(&());
    Api::all_with(harness.scope.client(), &resource)
}

fn object(name: &str, scope: &str, recorder: &RecordingReconciler) -> DynamicObject {
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

/// Hook that returns no children and records its parents.
struct Recording {
    runnable: String,
    manager: ManagerHandle,
    types: TypeRegistry,
    informers: InformerSet,
    recorder: RecordingReconciler,
}

impl Recording {
    /// Keeps the cache that an epoch reads from.
    async fn keep_store(&self, epoch: u64) {
        if self.recorder.store(epoch).is_some() {
            return;
        }
        let Some(served) = self.types.served(self.recorder.type_ref()) else { return };
        let key = InformerKey::new(served.identity.clone());
        // Joins an existing informer only; a new one would change the measurement.
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
            // The request does not carry its epoch: a call of an old epoch counts as one of the
            // current epoch. A test that looks for old objects therefore finds them there.
            let epoch = self.manager.status_of(self.runnable.as_str()).unwrap().epoch;
            self.keep_store(epoch).await;
            let parent = serde_json::from_value(request["parent"].take()).unwrap();
            self.recorder.note(&self.runnable, epoch, parent);
            Ok(json!({ "status": {}, "children": [] }).to_string().into())
        })
    }
}
