//! Discovery requests: aggregated discovery, or legacy discovery where the server lacks it.

use std::time::Duration;

use futures::{StreamExt, future, stream};
use kube::Client;
use serde::Deserialize;
use tracing::debug;

use super::{
    request::{Error, get, get_json},
    response::{
        CoreVersions, DiscoveryResponse, GroupDiscoveryList, GroupList, ListedVersion, ResourceList,
    },
};

/// Media types in order of preference; the server uses the first that it supports.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
     application/json";
const PLAIN: &str = "application/json";
/// Concurrent requests of legacy discovery, which needs one per group version.
const CONCURRENT: usize = 8;

/// Requests all served types: two requests, more only for servers before Kubernetes 1.27.
///
/// If only one of `/api` and `/apis` succeeds, its response is returned and is not complete.
pub(super) async fn request_discovery(
    client: &Client,
    deadline: Duration,
) -> Result<DiscoveryResponse, Error> {
    let (core, groups) = future::join(
        endpoint(client, Root::Core, deadline),
        endpoint(client, Root::Groups, deadline),
    )
    .await;
    match (core, groups) {
        (Ok(core), Ok(groups)) => Ok(core.join(groups)),
        (Ok(half), Err(error)) | (Err(error), Ok(half)) => {
            debug!(%error, "discovery answered in part");
            Ok(DiscoveryResponse { complete: false, ..half })
        }
        (Err(error), Err(_)) => Err(error),
    }
}

#[derive(Clone, Copy)]
enum Root {
    Core,
    Groups,
}

impl Root {
    fn path(self) -> &'static str {
        match self {
            Self::Core => "/api",
            Self::Groups => "/apis",
        }
    }
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    kind: String,
}

async fn endpoint(
    client: &Client,
    root: Root,
    deadline: Duration,
) -> Result<DiscoveryResponse, Error> {
    let body = match get(client, root.path(), AGGREGATED, deadline).await {
        Ok(body) => body,
        Err(error) if matches!(error.code(), Some(404 | 406 | 415)) => {
            debug!(%error, "no aggregated discovery");
            return legacy(client, root, deadline).await;
        }
        Err(error) => return Err(error),
    };
    let is_aggregated = serde_json::from_slice::<Kind>(&body)
        .is_ok_and(|response| response.kind == "APIGroupDiscoveryList");
    if is_aggregated {
        match serde_json::from_slice::<GroupDiscoveryList>(&body) {
            Ok(list) => return Ok(list.into()),
            Err(error) => debug!(%error, "cannot parse aggregated discovery"),
        }
    }
    legacy(client, root, deadline).await
}

async fn legacy(
    client: &Client,
    root: Root,
    deadline: Duration,
) -> Result<DiscoveryResponse, Error> {
    let names: Vec<(String, String)> = match root {
        Root::Core => {
            let core: CoreVersions = get_json(client, root.path(), PLAIN, deadline).await?;
            core.versions.into_iter().map(|version| (String::new(), version)).collect()
        }
        Root::Groups => {
            let list: GroupList = get_json(client, root.path(), PLAIN, deadline).await?;
            list.groups
                .into_iter()
                .flat_map(|group| {
                    let name = group.name;
                    group.versions.into_iter().map(move |v| (name.clone(), v.version))
                })
                .collect()
        }
    };
    let complete = !names.is_empty();
    let versions = stream::iter(names)
        .map(|(group, version)| async move {
            let path = if group.is_empty() {
                format!("/api/{version}")
            } else {
                format!("/apis/{group}/{version}")
            };
            let resources = match get_json::<ResourceList>(client, &path, PLAIN, deadline).await {
                Ok(list) => Some(list.into()),
                Err(error) => {
                    debug!(%error, "cannot read the resources of a group version");
                    None
                }
            };
            ListedVersion { group: group.into(), version: version.into(), resources }
        })
        .buffer_unordered(CONCURRENT)
        .collect()
        .await;
    Ok(DiscoveryResponse { complete, versions })
}
