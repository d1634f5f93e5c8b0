//! Context made by hand, to call a reconciler directly, as in a test.

use std::sync::Arc;

use kube::Client;

use super::Context;
use crate::{
    controller::{
        Cluster, InputState, Request,
        foreign_cluster::ForeignCluster,
        inputs::{
            attached::Attached,
            progress::InputProgress,
            status::{InputCache, InputMode, InputStatus},
            statuses::InputStatuses,
        },
    },
    informer::{InformerKey, Store},
    kind::{ServedType, TypeRef},
    manager::{Epoch, WatchState},
};

impl Context {
    /// Returns a context without inputs, to call a reconciler directly, as in a test.
    ///
    /// `client` is put behind the epoch's fence.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use pilotlight::{controller::*, informer::{Object, Store}, kind::{Scope, ServedType}, manager::Epoch};
    /// # async fn example<R: Reconciler>(
    /// #     reconciler: R,
    /// #     client: kube::Client,
    /// #     cached: ConfigMap,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let maps = ServedType::of::<ConfigMap>(Scope::Namespaced);
    /// let cached = Object::from_json(serde_json::to_vec(&cached)?, &maps)?;
    /// let epoch = Epoch::new("settings", 1, Duration::ZERO);
    /// let context = Context::new(epoch, &client)
    ///     .with_input(&maps, maps.clone(), Store::of([cached]))
    ///     .with_request(Request::namespaced("default", "settings"));
    /// let outcome = reconciler.reconcile(Request::namespaced("default", "settings"), context).await;
    /// # drop(outcome);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(epoch: Epoch, client: &Client) -> Self {
        let (statuses, _settled) = InputStatuses::new(epoch.clone(), None, Vec::new());
        let cancel = epoch.token();
        Self::of(epoch, client.clone(), None, cancel, statuses, None, None)
    }

    /// Returns this context with a request, as a reconcile has it.
    #[must_use]
    pub fn with_request(self, request: impl Into<Request>) -> Self {
        Self { request: Some(request.into()), ..self }
    }

    /// Adds an input with its cache, such as that of [`Store::of`].
    #[must_use]
    pub fn with_input(
        self,
        type_ref: impl Into<TypeRef>,
        served: impl Into<Arc<ServedType>>,
        store: Store,
    ) -> Self {
        self.with(type_ref.into(), served.into(), store, None, None)
    }

    /// Adds an input of another cluster with its cache, to be read by [`Context::of_cluster`].
    #[must_use]
    pub fn with_input_of(
        self,
        cluster: &Cluster,
        type_ref: impl Into<TypeRef>,
        served: impl Into<Arc<ServedType>>,
        store: Store,
    ) -> Self {
        self.with(type_ref.into(), served.into(), store, Some(cluster.into()), None)
    }

    /// Adds an input by name with its cache, to be read by [`Context::store_of`].
    #[must_use]
    pub fn with_named_input(
        self,
        name: &str,
        type_ref: impl Into<TypeRef>,
        served: impl Into<Arc<ServedType>>,
        store: Store,
    ) -> Self {
        let progress = InputProgress::new(name, InputState::Started, Arc::default());
        self.with(type_ref.into(), served.into(), store, None, Some(progress))
    }

    fn with(
        self,
        type_ref: TypeRef,
        served: Arc<ServedType>,
        store: Store,
        foreign: Option<ForeignCluster>,
        progress: Option<InputProgress>,
    ) -> Self {
        let mut input = InputStatus::new(type_ref.to_string(), Some(type_ref), InputMode::Plain);
        input.cluster = foreign.as_ref().map(|foreign| foreign.types.clone());
        input.progress = progress;
        let key = InformerKey::new(served.identity.clone());
        let (status, moving, others) = (None, None, Vec::new());
        let attached = Attached { served, store, key, foreign, status, moving, others };
        input.cache = InputCache::Delivered(attached);
        input.set(WatchState::Synced, None);
        let _number = self.shared.statuses.push(input);
        self
    }
}
