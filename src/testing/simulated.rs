//! A scripted API server: a service under [`kube::Client::new`], without a socket, that runs under
//! tokio's paused time.
//!
//! It serves the common built-in types and whatever CRDs are installed, with one resource version
//! for all, and behaves towards controllers as kube-apiserver, its garbage collector and its
//! namespace controller do: watches with bookmarks, pages that expire, finalizers, generations,
//! server-side apply, CRDs that come and go, aggregated APIs that fail.
//!
//! ```
//! # use std::time::Duration;
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # use kube::Api;
//! # use pilotlight::testing::{CrdBuilder, simulated::SimulatedServer};
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
//! # What is absent
//!
//! - Built-in types beyond namespaces, config maps, secrets, services, service accounts, pods, events,
//!   the types of `apps`, jobs, leases, RBAC, CRDs, APIServices and `SelfSubjectAccessReview`. Nodes,
//!   volumes and their claims, quotas, endpoints, cron jobs, ingresses, network policies, disruption
//!   budgets, autoscalers, webhooks and all others answer 404, as types do that are not there.
//! - Controllers behind built-in types, the garbage collector and the end of namespaces excepted:
//!   no pod ever runs.
//! - Defaults of built-in types, and validation beyond their metadata and the strings in config maps
//!   and secrets; unknown, wrong and empty fields are kept. Schemas of CRDs are checked for types, required fields, enums, minimum and maximum, prune,
//!   and default what is written; a CRD whose schema says more is refused with 501, and so is one
//!   with a conversion webhook. Of the rules for CRDs themselves there are only those that the rest rests on.
//! - Fields that stand twice in one patch: the last one counts, without a warning.
//! - Conversion webhooks, admission webhooks and policies, quotas, priority and fairness.
//! - Strategic merge of lists, and apply that merges the lists of built-in types by their keys:
//!   the former is refused, the latter owns such lists as a whole.
//! - Graceful deletion of pods: they go at once.
//! - Protobuf: a body in protobuf, as `kubectl create configmap` and `kubectl auth can-i` send it, is
//!   refused with 415. CBOR, YAML and tables; aggregated discovery as `v2beta1`, which the real server has removed; OpenAPI beyond what
//!   kubectl asks before it applies, and thus `kubectl explain`.
//! - Go's own words for what is wrong with JSON, beyond its early end, and those of its router for
//!   media types: code and reason are the same, the message is not.
//! - RBAC objects do nothing: [`SimulatedServer::set_rbac`] says who may do what, and everybody may
//!   do everything until it does.
//! - The endpoints of a Service that an APIService names: [`SimulatedServer::set_available`] says
//!   whether it answers. Until then a Service with the right port has none.
//!
//! What is asked for and absent is refused with 501 and a sentence.

mod access;
mod aggregated;
mod call;
mod cluster;
mod collector;
mod custom;
mod decode;
mod delete;
mod discovery;
mod groups;
mod history;
mod labels;
mod managed;
mod metadata;
mod names;
mod namespaces;
mod naming;
mod object;
mod options;
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
