//! `pilotlight types`.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use pilotlight::{
    discovery::{DiscoveryOptions, TypeRegistry, TypeReport},
    transport::TransportOptions,
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::ConnectionArgs,
    declared, http, output,
    output::Format,
    report::TypeRow,
    table::{Table, age, or_dash},
    watchers::Watchers,
};

/// Timeout for each request for the server's types or declared controllers.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
pub(super) struct TypesArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Read from a running manager at its metrics address instead of the API server: its view of
    /// the types, and the number of all its controllers that watch each. The API server only knows
    /// the watches of declared controllers.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

impl TypesArgs {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let rows = match &self.address {
            Some(address) => http::get(address, "/debug/types").await?,
            None => self.look().await?,
        };
        match self.output {
            Format::Json => output::print_json(&rows),
            Format::Table => output::print(&render(&rows, Timestamp::now())),
        }
    }

    /// Reads the types from the API server.
    async fn look(&self) -> anyhow::Result<Vec<TypeRow>> {
        let transport = self.connection.transport(TransportOptions::default()).await?;
        let client = transport.client()?;
        let types = ask(client.clone()).await?;
        // `None` if one kind may not be listed or none is installed.
        let declared = tokio::time::timeout(TIMEOUT, declared::list(client)).await;
        let declared = declared.ok().and_then(Result::ok);
        let declared = declared.filter(|listed| listed.unread.is_empty());
        let watchers = declared.map(|listed| Watchers::of_objects(&listed.objects));
        Ok(types.iter().map(|row| TypeRow::new(row, watchers.as_ref())).collect())
    }
}

/// Returns the types that the API server serves.
pub(super) async fn ask(client: Client) -> anyhow::Result<Vec<TypeReport>> {
    let (types, discovery) = TypeRegistry::new(client, DiscoveryOptions::default());
    let synced = async {
        if tokio::time::timeout(TIMEOUT, types.synced()).await.is_err() {
            let error = types.health().discovery.error.unwrap_or_default();
            bail!("the API server did not report its types within {TIMEOUT:?}: {error}");
        }
        // Types that are still unknown then are reported as such.
        tokio::time::timeout(TIMEOUT, types.complete()).await.unwrap_or_default();
        Ok(())
    };
    tokio::select! {
        () = discovery.run(CancellationToken::new()) => bail!("discovery ended by itself"),
        synced = synced => synced?,
    }
    Ok(types.report())
}

fn render(rows: &[TypeRow], now: Timestamp) -> String {
    let mut table =
        Table::new(["TYPE", "KIND", "SCOPE", "STATE", "SINCE", "VERSIONS", "WATCHED BY", "REASON"]);
    for row in rows {
        table.row([
            row.name.clone(),
            or_dash(row.kind.as_deref()),
            or_dash(row.scope.as_deref()),
            row.state.clone(),
            age(row.since, now),
            or_dash(Some(&row.served_versions.join(","))),
            row.watched_by.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            row.reason.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use pilotlight::testing::{
        CrdBuilder,
        simulated::{AccessRule, SimulatedServer},
    };

    use super::*;

    /// Returns the states of all types as seen without the right to read these resources.
    async fn states_without(resources: &[&str]) -> Vec<(String, &'static str)> {
        let server = SimulatedServer::new();
        server.install(&CrdBuilder::new("x.test", "Widget").version("v1").build()).unwrap();
        // The type is established after some simulated time, which is paused during computation.
        tokio::time::sleep(Duration::from_secs(60)).await;
        if !resources.is_empty() {
            server.set_rbac([AccessRule::deny().resources(resources.iter().copied())]);
        }
        let types = ask(server.client()).await.unwrap();
        types.into_iter().map(|row| (row.name, row.state.word())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn types_are_listed_without_the_right_to_read_crds() {
        let crds = "customresourcedefinitions.apiextensions.k8s.io";
        let services = "apiservices.apiregistration.k8s.io";

        let all = states_without(&[]).await;

        assert!(all.contains(&("widgets.x.test".to_owned(), "Served")), "{all:?}");
        for refused in [&[crds, services][..], &[crds], &[services]] {
            assert_eq!(states_without(refused).await, all, "{refused:?}");
        }
    }

    #[test]
    fn a_type_is_a_row() {
        let rows = [TypeRow {
            name: "widgets.example.com".into(),
            kind: Some("Widget".into()),
            scope: Some("Namespaced".into()),
            state: "Served".into(),
            reason: None,
            since: Timestamp::UNIX_EPOCH,
            served_versions: vec!["v1".into(), "v1beta1".into()],
            origin: "Crd".into(),
            watched_by: Some(2),
        }];

        let text = render(&rows, Timestamp::UNIX_EPOCH);

        let mut words = text.lines().nth(1).unwrap().split_whitespace();
        assert!(words.by_ref().eq([
            "widgets.example.com",
            "Widget",
            "Namespaced",
            "Served",
            "0s",
            "v1,v1beta1",
            "2"
        ]));
    }
}
