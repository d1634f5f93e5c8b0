//! Simulated API server: a service under [`kube::Client::new`], without a socket, that runs under
//! tokio's paused time.
//!
//! The server serves the common built-in types and the installed CRDs, with one resource version
//! for all. Towards controllers it behaves as kube-apiserver, the garbage collector and the
//! namespace controller do. It has watches with bookmarks, pages that expire, finalizers,
//! generations and server-side apply. CRDs are installed and deleted, and aggregated APIs fail.
//!
//! ```
//! # use std::time::Duration;
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # use kube::Api;
//! # use pilotlight_testing::{CrdBuilder, simulated::SimulatedServer};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = SimulatedServer::new();
//! let widgets = CrdBuilder::new("x.test", "Widget");
//! server.install(&widgets.build())?;
//! server.wait_established(&widgets.name()).await;
//! server.apply(serde_json::json!({
//!     "apiVersion": "v1", "kind": "ConfigMap",
//!     "metadata": { "name": "a", "namespace": "default" },
//! }))?;
//!
//! let maps = Api::<ConfigMap>::namespaced(server.client(), "default");
//! assert_eq!(maps.list(&Default::default()).await?.items.len(), 1);
//! assert!(server.open_watches().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Absent features
//!
//! - Built-in types beyond namespaces, config maps, secrets, services, service accounts, pods,
//!   events, the types of `apps`, jobs, leases, RBAC, CRDs, APIServices and
//!   `SelfSubjectAccessReview`. Nodes, volumes and their claims, quotas, endpoints, cron jobs,
//!   ingresses, network policies, disruption budgets, autoscalers, webhooks and all others answer
//!   404, as types do that are not served.
//! - Controllers of built-in types, except for the garbage collector and the namespace controller:
//!   no pod ever runs.
//! - Defaults of built-in types, and validation beyond their metadata and the strings in config
//!   maps and secrets; unknown, wrong and empty fields are kept. Schemas of CRDs check types,
//!   required fields, enums, minimum and maximum; they prune unknown fields and set defaults. A CRD
//!   with further keywords in its schema, or with a conversion webhook, is refused with 501. CRDs
//!   themselves are validated only as far as the server depends on it.
//! - Warnings about duplicate fields in a patch: the last value counts.
//! - Conversion webhooks, admission webhooks and policies, quotas, priority and fairness.
//! - Strategic merge of lists, which is refused. Apply owns a list of a built-in type as a whole,
//!   and does not merge it by keys.
//! - Graceful deletion of pods: they are removed at once.
//! - Protobuf: a body in protobuf, as `kubectl create configmap` and `kubectl auth can-i` send it,
//!   is refused with 415. CBOR, YAML and tables; aggregated discovery as `v2beta1`, which the real
//!   server has removed; OpenAPI beyond the part that kubectl reads before it applies, and thus
//!   `kubectl explain`.
//! - The exact messages of Go's JSON decoder, except for unexpected ends, and of its router for
//!   media types: code and reason are the same, the message is not.
//! - RBAC objects have no effect: [`SimulatedServer::set_rbac`] sets the access rules. Without
//!   rules every request is allowed.
//! - Endpoints of the Service behind an APIService: [`SimulatedServer::set_available`] sets whether
//!   it answers. Until then a Service with the right port has no endpoints.
//!
//! Requests for absent features are refused with 501 and a sentence.

mod access;
mod aggregated;
mod api_services;
mod authorization;
mod call;
mod cluster;
mod collector;
mod crd_controller;
mod custom;
mod decode;
mod delete;
mod discovery;
mod groups;
mod history;
mod job;
mod labels;
mod managed;
mod metadata;
mod names;
mod namespaces;
mod naming;
mod object;
mod options;
mod owners;
mod patch;
mod read;
mod refusal;
mod render;
mod resource;
mod scale;
mod schema;
mod script;
mod selector;
mod service;
mod shared;
mod socket;
mod update;
mod watches;
mod write;

#[cfg(test)]
mod tests;

pub use self::{
    access::AccessRule,
    options::Delays,
    script::{ScriptError, SimulatedOptions, SimulatedServer},
    service::{SimulatedBody, SimulatedService},
    shared::SimulatedRequest,
    socket::SimulatedSocket,
};
