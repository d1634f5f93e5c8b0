//! `pilotlight types`.

use std::time::Duration;

use clap::Args;
use k8s_openapi::jiff::Timestamp;
use pilotlight::transport::TransportOptions;

use super::{
    connection::ConnectionArgs,
    declared, http, output,
    output::Format,
    report::TypeRow,
    served_types,
    table::{Table, age, or_dash},
    watchers::Watchers,
};

/// Timeout for the request for declared controllers.
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
        let types = served_types::list(client.clone()).await?;
        // `None` if one kind may not be listed or none is installed.
        let declared = tokio::time::timeout(TIMEOUT, declared::list(client)).await;
        let declared = declared.ok().and_then(Result::ok);
        let declared = declared.filter(|listed| listed.unread.is_empty());
        let watchers = declared.map(|listed| Watchers::of_objects(&listed.objects));
        Ok(types.iter().map(|row| TypeRow::new(row, watchers.as_ref())).collect())
    }
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
mod tests {
    use super::*;

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
