//! Tests of behaviour from outside, on a real control plane: one module per promise.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

#[cfg(feature = "runtime")]
mod adopted;
#[cfg(feature = "cli")]
mod adoption;
mod aggregated;
mod apply_sets;
#[cfg(feature = "meta")]
mod architecture;
mod authority;
#[cfg(feature = "cli")]
mod bad_input;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod budget;
#[cfg(feature = "dev")]
mod cli;
#[cfg(feature = "cli")]
mod composite;
#[cfg(feature = "meta")]
mod composite_children;
#[cfg(feature = "cli")]
mod composite_python;
mod control_plane;
#[cfg(feature = "cli")]
mod crash;
#[cfg(feature = "meta")]
mod decorator;
#[cfg(feature = "cli")]
mod deploy;
#[cfg(feature = "cli")]
mod election;
mod epochs;
#[cfg(feature = "cli")]
mod etag;
#[cfg(feature = "cli")]
mod examples;
mod faults;
mod flaps;
#[cfg(feature = "cli")]
mod forged_revisions;
#[cfg(feature = "cli")]
mod hook_certificates;
mod hook_credentials;
#[cfg(feature = "cli")]
mod hook_examples;
#[cfg(feature = "cli")]
mod hook_requests;
#[cfg(feature = "cli")]
mod hooks;
#[cfg(feature = "cli")]
mod http_proxy;
mod identity;
#[cfg(feature = "cli")]
mod isolation;
#[cfg(feature = "cli")]
mod large_headers;
mod leaks;
mod list_kinds;
#[cfg(feature = "meta")]
mod logging;
#[cfg(feature = "cli")]
mod losses;
#[cfg(feature = "cli")]
mod migration;
#[cfg(feature = "cli")]
mod narrow_role;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod neighbours;
#[cfg(feature = "cli")]
mod optional;
#[cfg(feature = "meta")]
mod owner_chain;
mod production;
#[cfg(feature = "cli")]
mod published_hooks;
#[cfg(feature = "cli")]
mod published_manifests;
#[cfg(feature = "cli")]
mod red_team;
#[cfg(feature = "cli")]
mod replaced_parents;
#[cfg(feature = "cli")]
mod reports;
#[cfg(feature = "meta")]
mod resync;
#[cfg(feature = "cli")]
mod rollout;
#[cfg(feature = "cli")]
mod scenarios;
#[cfg(feature = "cli")]
mod secrecy;
#[cfg(feature = "cli")]
mod server_side_apply;
mod server_stall;
mod sharing;
mod simulated;
#[cfg(feature = "cli")]
mod spec_edit;
#[cfg(feature = "cli")]
mod status;
mod story;
mod support;
mod terminating;
#[cfg(feature = "cli")]
mod termination;
mod token;
#[cfg(feature = "meta")]
mod unchanged;
mod unknown;
#[cfg(feature = "cli")]
mod unknown_outcome;
#[cfg(feature = "meta")]
mod watches;
mod wire;
#[cfg(feature = "meta")]
mod write_loops;
mod write_responses;

use futures::{Stream, StreamExt};
use kube::api::WatchEvent;

/// Reads a watch until an object appears.
async fn added<K: std::fmt::Debug>(
    watch: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
) -> K {
    loop {
        match watch.next().await {
            Some(Ok(WatchEvent::Added(object))) => return object,
            Some(Ok(WatchEvent::Bookmark(_))) => {}
            other => panic!("no object: {other:?}"),
        }
    }
}
