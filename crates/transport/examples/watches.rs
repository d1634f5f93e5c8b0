//! Many watches beside a list, over few connections.
//!
//! ```console
//! $ pilotlight dev --no-manager                             # or any cluster
//! $ cargo run --package pilotlight-transport --example watches   # beside it
//! ```

#![expect(clippy::print_stdout, reason = "a program prints its result")]

use std::error::Error;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Config,
    api::{Api, ListParams, WatchParams},
};
use pilotlight_transport::{Transport, TransportOptions};

/// Number of watches; one connection of kube-apiserver carries 100 requests.
const WATCHES: usize = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = TransportOptions {
        product: Some("watches/1.0".to_owned()), // In the User-Agent.
        ..TransportOptions::default()
    };
    let transport = Transport::new(Config::infer().await?, options)?;
    let maps: Api<ConfigMap> = Api::all(transport.client()?);

    let parameters = WatchParams::default();
    let watches = try_join_all((0..WATCHES).map(|_| maps.watch(&parameters, "0"))).await?;
    // A list does not wait behind the watches.
    let listed = maps.list(&ListParams::default()).await?;

    let (watched, connections) = (watches.len(), transport.connections());
    println!("{watched} watches on {connections} connections, {} objects", listed.items.len());
    drop(watches);
    transport.close().await;
    Ok(())
}
