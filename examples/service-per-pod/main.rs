//! Hooks of the service-per-pod decorator: a Service for each pod with the annotation
//! `examples.pilotlight.dev/port`.
//!
//! The decorator adds a label with the name of the pod, which the Service selects. The finalize
//! hook removes both. Listens on `$PORT`, 8080 by default.

#![expect(clippy::print_stdout, reason = "the port may be any free one")]

use std::{env, net::Ipv6Addr};

use axum::{Json, Router, http::StatusCode, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Annotation of a pod: port of its Service.
const PORT: &str = "examples.pilotlight.dev/port";
/// Label of a pod: its name.
const NAME: &str = "examples.pilotlight.dev/pod";

/// Hook request of a decorator, as far as these hooks need it.
#[derive(serde::Deserialize)]
struct Request {
    object: Value,
    /// Existing attachments, by type and then by name.
    attachments: Value,
}

/// Answers with the label of a pod and its Service.
async fn sync(Json(request): Json<Request>) -> Result<Json<Value>, (StatusCode, String)> {
    let metadata = &request.object["metadata"];
    let name = &metadata["name"];
    let port = metadata["annotations"][PORT].as_str().and_then(|port| port.parse::<u16>().ok());
    let Some(port) = port else {
        return Err((StatusCode::BAD_REQUEST, format!("{PORT} is not a port")));
    };
    Ok(Json(json!({
        "labels": { NAME: name },
        "attachments": [{
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name },
            "spec": { "selector": { NAME: name }, "ports": [{ "port": port }] },
        }],
    })))
}

/// Removes the label and the Service. The pod is free when its Service is gone.
async fn finalize(Json(request): Json<Request>) -> Json<Value> {
    let services = request.attachments["Service.v1"].as_object();
    Json(json!({
        "labels": { NAME: null },
        "attachments": [],
        "finalized": services.is_none_or(|services| services.is_empty()),
    }))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await?;
    println!("listening on port {}", listener.local_addr()?.port());
    let router = Router::new().route("/sync", post(sync)).route("/finalize", post(finalize));
    axum::serve(listener, router).await?;
    Ok(())
}
