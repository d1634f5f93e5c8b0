//! `pilotlight status`.

use std::io::Write;

use clap::Args;
use k8s_openapi::jiff::Timestamp;
use pilotlight::{
    manager::WatchState,
    meta::{CompositeController, StatusCondition},
    transport::TransportOptions,
};
use serde::Serialize;

use super::{
    connection::ConnectionArgs,
    declared, http, output,
    output::Format,
    report::{ControllerRow, InformerRow, StatusReport},
    table::{Table, age, or_dash},
};

/// The state of a controller whose object has no status.
const UNSEEN: &str = "Unseen";
/// What to do when the CRD has no place for it.
const NOT_KEPT: &str = "pilotlight: the installed CRD of CompositeControllers keeps no status, as \
                        Metacontroller's: apply Pilotlight's with `pilotlight crds | kubectl apply \
                        --filename -`, or ask a running manager with --address";

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Ask a running manager at its metrics address instead of the API server: queue depths,
    /// watches and caches too, and what is not declared as an object.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// How to print it.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

impl StatusArgs {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let now = Timestamp::now();
        if let Some(address) = &self.address {
            let report: StatusReport = http::get(address, "/debug/status").await?;
            return match self.output {
                Format::Json => output::print_json(&report),
                Format::Table => output::print(&render_report(&report, now)),
            };
        }
        let (rows, kept) = self.declared().await?;
        match self.output {
            Format::Json => output::print_json(&rows)?,
            Format::Table => output::print(&render_declared(&rows, now))?,
        }
        if !kept {
            writeln!(std::io::stderr(), "\n{NOT_KEPT}").ok();
        }
        Ok(())
    }

    /// What the objects say, and whether their CRD lets them say it.
    async fn declared(&self) -> anyhow::Result<(Vec<DeclaredRow>, bool)> {
        let transport = self.connection.transport(TransportOptions::default()).await?;
        let client = transport.client()?;
        let controllers = declared::list(client.clone()).await?;
        let mut rows: Vec<_> = controllers.iter().map(DeclaredRow::from).collect();
        let kept =
            !rows.iter().any(DeclaredRow::is_unseen) || !declared::keeps_no_status(client).await;
        if !kept {
            for row in rows.iter_mut().filter(|row| row.is_unseen()) {
                "StatusNotKept".clone_into(&mut row.reason);
            }
        }
        Ok((rows, kept))
    }
}

/// One declared controller, as its object says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeclaredRow {
    name: String,
    parent: String,
    ready: String,
    state: String,
    reason: String,
    since: Option<Timestamp>,
    epoch: Option<i64>,
    /// The status is about an older specification.
    outdated: bool,
    last_error: Option<String>,
    conditions: Vec<StatusCondition>,
}

impl From<&CompositeController> for DeclaredRow {
    fn from(controller: &CompositeController) -> Self {
        let status = controller.status.clone().unwrap_or_default();
        let condition =
            |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let parent = &controller.spec.parent_resource;
        let newest = status.conditions.iter().map(|condition| condition.last_transition_time).max();
        // Those that are fine have nothing to complain of.
        let complaint = ["Ready", "TypesReady", "Running", "HooksHealthy"]
            .into_iter()
            .filter_map(condition)
            .find(|condition| condition.status != "True" && !condition.message.is_empty());
        // One that runs may have an error to tell of: its own, or that of single objects.
        let complaint = complaint
            .or_else(|| condition("Running").filter(|running| !running.message.is_empty()));
        Self {
            name: controller.metadata.name.clone().unwrap_or_default(),
            parent: format!("{} {}", parent.resource, parent.api_version),
            ready: condition("Ready").map_or("Unknown", |ready| &ready.status).to_owned(),
            state: status.state.clone().unwrap_or_else(|| UNSEEN.to_owned()),
            reason: status.reason.clone().unwrap_or_default(),
            since: condition("Running").map(|running| running.last_transition_time).or(newest),
            epoch: status.epoch,
            // Where nothing is said, nothing is old.
            outdated: status.state.is_some()
                && status.observed_generation != controller.metadata.generation,
            last_error: complaint.map(|condition| condition.message.clone()),
            conditions: status.conditions,
        }
    }
}

impl DeclaredRow {
    /// Nobody wrote a status, or nobody could.
    fn is_unseen(&self) -> bool {
        self.state == UNSEEN
    }
}

fn render_declared(rows: &[DeclaredRow], now: Timestamp) -> String {
    if rows.is_empty() {
        return "No CompositeControllers found.\n".to_owned();
    }
    let mut table =
        Table::new(["NAME", "READY", "STATE", "REASON", "SINCE", "EPOCH", "PARENT", "LAST ERROR"]);
    for row in rows {
        let state =
            if row.outdated { format!("{} (old spec)", row.state) } else { row.state.clone() };
        table.row([
            row.name.clone(),
            row.ready.clone(),
            state,
            or_dash(Some(&row.reason)),
            row.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
            row.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            row.parent.clone(),
            or_dash(row.last_error.as_deref()),
        ]);
    }
    table.render()
}

fn render_report(report: &StatusReport, now: Timestamp) -> String {
    let mut text = format!(
        "discovery: {}, {}\n",
        report.discovery.mode,
        if report.discovery.current { "current" } else { "not current" }
    );
    for error in &report.discovery.errors {
        text.push_str(&format!("  {error}\n"));
    }
    let mut controllers =
        Table::new(["NAME", "STATE", "REASON", "SINCE", "EPOCH", "QUEUE", "WATCHES", "LAST ERROR"]);
    for row in &report.controllers {
        controllers.row([
            row.name.clone(),
            state(row),
            or_dash(Some(&row.reason)),
            age(row.since, now),
            row.epoch.to_string(),
            row.queue_depth.map_or_else(|| "-".to_owned(), |depth| depth.to_string()),
            watches(row),
            or_dash(row.last_error.as_deref().or(Some(row.message.as_str()))),
        ]);
    }
    let mut informers =
        Table::new(["WATCH", "NAMESPACE", "STATE", "OBJECTS", "BYTES", "SUBSCRIBERS"]);
    for InformerRow { type_, namespace, state, objects, bytes, subscribers } in &report.informers {
        informers.row([
            type_.clone(),
            namespace.clone().unwrap_or_else(|| "all".to_owned()),
            state.clone(),
            objects.to_string(),
            bytes.to_string(),
            subscribers.to_string(),
        ]);
    }
    for table in [controllers, informers] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table.render());
        }
    }
    text
}

fn state(row: &ControllerRow) -> String {
    let flags =
        [(row.stuck, "stuck"), (row.stale, "stale"), (!row.forbidden.is_empty(), "forbidden")];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
    if flags.is_empty() {
        row.state.clone()
    } else {
        format!("{} ({})", row.state, flags.join(", "))
    }
}

fn watches(row: &ControllerRow) -> String {
    let synced =
        row.watches.iter().filter(|watch| watch.state == WatchState::Synced.word()).count();
    format!("{synced}/{}", row.watches.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn controller(status: serde_json::Value) -> CompositeController {
        serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": "things", "generation": 2},
            "spec": {"parentResource": {"apiVersion": "example.com/v1", "resource": "things"}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_row_shows_the_first_complaint() {
        let controller = controller(json!({
            "observedGeneration": 2, "epoch": 3, "state": "Waiting", "reason": "TypeAbsent",
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "TypeAbsent", "message": "",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "TypesReady", "status": "False", "reason": "TypeAbsent",
                 "message": "things.example.com/v1 is not installed",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        }));

        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        let text = render_declared(&[DeclaredRow::from(&controller)], now);

        let row = text.lines().nth(1).unwrap();
        let cells: Vec<_> =
            row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(
            cells,
            [
                "things",
                "False",
                "Waiting",
                "TypeAbsent",
                "30s",
                "3",
                "things example.com/v1",
                "things.example.com/v1 is not installed"
            ]
        );
    }

    #[test]
    fn a_row_shows_the_last_error_of_one_that_runs() {
        // As the supervisor writes it while every child is refused.
        let error =
            "last error: ns/gear: Sync error: creating ConfigMap ns/a: configmaps is forbidden";
        let controller = controller(json!({
            "observedGeneration": 2, "epoch": 3, "state": "Running", "reason": "Running",
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Running", "message": error,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Running", "status": "True", "reason": "Running", "message": error,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        }));

        let text = render_declared(&[DeclaredRow::from(&controller)], Timestamp::UNIX_EPOCH);

        assert!(text.contains("configmaps is forbidden"), "{text}");
    }

    #[test]
    fn a_status_about_an_older_specification_is_marked() {
        let controller = controller(json!({"observedGeneration": 1, "state": "Running"}));

        let text = render_declared(&[DeclaredRow::from(&controller)], Timestamp::UNIX_EPOCH);

        assert!(text.contains("Running (old spec)"), "{text}");
    }

    #[test]
    fn a_controller_that_nobody_has_seen_says_so() {
        let text =
            render_declared(&[DeclaredRow::from(&controller(json!(null)))], Timestamp::UNIX_EPOCH);

        assert!(text.contains("Unseen"), "{text}");
        assert!(!text.contains("old spec"), "there is no status that could be old: {text}");
    }
}
