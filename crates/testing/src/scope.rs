//! Scope of one test: a namespace, an API group, and the CRDs in it.

use std::{future::Future, time::Duration};

use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams},
    runtime::wait::{self, Condition, conditions},
};
use tokio::time;

use super::{CrdBuilder, Error};

/// Limit of each wait, long since it only bounds a test that fails.
const DEADLINE: Duration = Duration::from_secs(60);
/// Length of the name in the namespace, which leaves room for the suffix within 63 characters.
const NAME_LENGTH: usize = 40;

/// Namespace and API group of one test, with operations on CRDs.
///
/// Dropping a scope removes nothing, since the control plane is temporary.
#[derive(Clone)]
pub struct TestScope {
    /// Namespace, which exists.
    pub namespace: String,
    /// API group, without CRDs at first.
    pub group: String,
    client: Client,
}

impl std::fmt::Debug for TestScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestScope")
            .field("namespace", &self.namespace)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl TestScope {
    /// Creates the namespace by a client with full access, for example of a simulated server.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses it.
    pub async fn create(name: &str, client: Client) -> Result<Self, Error> {
        let namespace = unique(name);
        let group = format!("{namespace}.pilotlight.test");
        let object = Namespace {
            metadata: ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .map_err(Error::api(format!("creating namespace {namespace}")))?;
        Ok(Self { namespace, group, client })
    }

    /// Returns a client with full access.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the API of a type: for this namespace, or cluster-wide for a cluster-scoped type.
    pub fn api(&self, crd: &CrdBuilder, version: &str) -> Api<DynamicObject> {
        let resource = crd.api_resource(version);
        if crd.is_namespaced() {
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// Creates the CRD, without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses it.
    pub async fn install_crd(&self, crd: &CrdBuilder) -> Result<CustomResourceDefinition, Error> {
        self.crds()
            .create(&PostParams::default(), &crd.build())
            .await
            .map_err(Error::api(format!("creating CRD {}", crd.name())))
    }

    /// Waits until the CRD's condition `Established` is true.
    ///
    /// The server may still answer 404 or 429 for some milliseconds, and delays every create for 2
    /// s: see [`wait_served`](Self::wait_served).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] after a minute, [`Error::Api`] when the watch is refused.
    pub async fn wait_established(&self, crd: &CrdBuilder) -> Result<(), Error> {
        self.wait_crd("establishing", crd, conditions::is_crd_established()).await
    }

    /// Waits until a list of the type succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] after a minute.
    pub async fn wait_served(&self, crd: &CrdBuilder, version: &str) -> Result<(), Error> {
        let api = self.api(crd, version);
        let served = async {
            while api.list(&ListParams::default().limit(1)).await.is_err() {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(format!("serving {version} of {}", crd.name()), served).await
    }

    /// Deletes the CRD, without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses it.
    pub async fn delete_crd(&self, crd: &CrdBuilder) -> Result<(), Error> {
        self.crds()
            .delete(&crd.name(), &DeleteParams::default())
            .await
            .map(drop)
            .map_err(Error::api(format!("deleting CRD {}", crd.name())))
    }

    /// Waits until the CRD no longer exists.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] after a minute, [`Error::Api`] when the watch is refused.
    pub async fn wait_gone(&self, crd: &CrdBuilder) -> Result<(), Error> {
        let gone = |object: Option<&CustomResourceDefinition>| object.is_none();
        self.wait_crd("removing", crd, gone).await
    }

    /// Starts or stops serving one version.
    ///
    /// # Errors
    ///
    /// [`Error::Api`] when the server refuses it.
    ///
    /// # Panics
    ///
    /// When the CRD does not have the version.
    pub async fn set_served(
        &self,
        crd: &CrdBuilder,
        version: &str,
        served: bool,
    ) -> Result<(), Error> {
        let name = crd.name();
        let crds = self.crds();
        loop {
            let get = crds.get(&name).await;
            let mut object = get.map_err(Error::api(format!("getting CRD {name}")))?;
            let found = object.spec.versions.iter_mut().find(|found| found.name == version);
            found.unwrap_or_else(|| panic!("CRD {name} has no version {version}")).served = served;
            match crds.replace(&object.name_any(), &PostParams::default(), &object).await {
                Ok(_) => return Ok(()),
                // The server writes the CRD's status concurrently.
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(Error::api(format!("updating CRD {name}"))(error)),
            }
        }
    }

    async fn wait_crd(
        &self,
        what: &str,
        crd: &CrdBuilder,
        condition: impl Condition<CustomResourceDefinition>,
    ) -> Result<(), Error> {
        let name = crd.name();
        let what = format!("{what} CRD {name}");
        let wait = wait::await_condition(self.crds(), &name, condition);
        match within(what.clone(), wait).await? {
            Ok(_) => Ok(()),
            Err(wait::Error::ProbeFailed(kube::runtime::watcher::Error::InitialListFailed(
                source,
            ))) => Err(Error::api(what)(source)),
            Err(error) => Err(Error::io(what)(std::io::Error::other(error))),
        }
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }
}

async fn within<T>(what: String, future: impl Future<Output = T>) -> Result<T, Error> {
    time::timeout(DEADLINE, future).await.map_err(|_| Error::Timeout { what, waited: DEADLINE })
}

/// Returns a DNS label that begins with as much of `name` as fits.
fn unique(name: &str) -> String {
    let label: String = name
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(NAME_LENGTH)
        .collect();
    format!("{}-{:08x}", label.trim_matches('-'), fastrand::u32(..))
        .trim_start_matches('-')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected_prefix: &str) {
        let unique = unique(name);
        assert_eq!(&unique[..unique.len() - 8], expected_prefix);
    }

    #[test]
    fn names_are_converted_to_labels() {
        check("Widgets_start twice", "widgets-start-twice-");
        check("_", "");
        check(&"a".repeat(80), &format!("{}-", "a".repeat(NAME_LENGTH)));
    }

    #[test]
    fn the_same_name_gives_another_scope_each_time() {
        assert_ne!(unique("a"), unique("a"));
    }
}
