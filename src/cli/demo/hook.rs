//! Hook server of the demo.

use std::net::SocketAddr;

use anyhow::Context;
use axum::{Json, Router, routing::post};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet};

use super::objects;

/// Serves sync hooks on a free port of the loopback interface, until dropped.
#[derive(Debug)]
pub(crate) struct HookServer {
    address: SocketAddr,
    _serving: JoinSet<std::io::Result<()>>,
}

impl HookServer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.context("listening for the demo's hook")?;
        let address = listener.local_addr()?;
        let sync = async |Json(request): Json<Value>| Json(objects::desired(&request));
        let router = Router::new().route("/sync", post(sync));
        let mut serving = JoinSet::new();
        serving.spawn(async { axum::serve(listener, router).await });
        Ok(Self { address, _serving: serving })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/sync", self.address)
    }
}
