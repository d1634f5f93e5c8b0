//! Subcommand `status`: prints the state of the declared controllers.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use pilotlight::{
    discovery::TypeReport,
    manager::WatchState,
    meta::ControllerKind,
    redaction::{printable, request_error},
    transport::TransportOptions,
};

use super::{
    connection::ConnectionArgs,
    declared::{self, DeclaredList},
    finalizer_search::{self, ParentWithFinalizer},
    http, output,
    output::Format,
    release,
    report::{ControllerRow, InformerRow, Source, StatusReport},
    rollouts,
    table::{Table, age, or_dash},
};

/// Hint for a CRD that has no place for a status.
const NOT_KEPT: &str = "pilotlight: an installed CRD of declared controllers keeps no status, as \
                        Metacontroller's: apply Pilotlight's with `pilotlight crds | kubectl apply \
                        --filename -`, or read that of a running manager with --address";
/// Fields of the JSON, which both sources share.
const JSON: &str = "\
With --output=json the command prints one object with the same fields for both sources; a field \
that the source does not know is null:
  source       api or instance
  ready        every controller is ready
  version, discovery{mode,current,errors}, informers[]
               only from an instance
  election{lease,identity,holder,leads,transitions,error}
               only from an instance with leader election
  controllers[]
    name, parent, group, state, reason, message, since, epoch, conditions[]
    ready      True, False or Unknown
    outdated   the status describes an older specification
    failing    no sync has succeeded for a minute
    stuck, stale, failures, lastError, pending, lastDone, queueDepth
    cache{whole,entries,accountedBytes}
               counts of objects and bytes of those kept whole, only from an instance
    unmet[], forbidden[], missing[], watches[]
  held[]         objects with the finalizer of a declared controller that does not exist, or
                 that does not declare their type: controllerKind, controller, type, namespace,
                 name, terminating. Without --finalizers only those that are being deleted, among
                 the first 500 of each of 50 custom types and of common built-in ones
  rollouts[]     rolling updates under way, only from the API server: apiVersion, kind, namespace
                 and name of the parent, revisions[]{name,created,children[]}, oldest first

Exit codes: 0 every controller is ready, 1 a controller is not ready or the source did not respond, \
2 invalid command line. A controller that waits for a type, is rejected or is paused is not ready. A \
synced controller of an instance that stands by is ready.";

#[derive(Debug, Args)]
#[command(after_long_help = JSON, after_help = "The JSON and the exit codes: --help.")]
pub(super) struct StatusArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Read from a running manager at its metrics address instead of the API server: also its queue
    /// depths, watches and caches, and controllers that are not declared as objects.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// List all objects with a finalizer that no declared controller removes, and that `pilotlight
    /// release` frees: the controller does not exist, no longer declares their type, or is not
    /// ready and declares no finalize hook. Lists the metadata of all objects of the cluster.
    /// Without the flag the report names only objects that are being deleted, of custom and common
    /// built-in types, from at most 500 of each type.
    #[arg(long, conflicts_with = "address")]
    finalizers: bool,
    /// Output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

impl StatusArgs {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let (report, kept) = match &self.address {
            Some(address) => (http::get(address, "/debug/status").await?, true),
            None => self.declared().await?,
        };
        match self.output {
            Format::Json => output::print_json(&report)?,
            Format::Table => output::print(&render(&report, Timestamp::now()))?,
        }
        if !kept {
            writeln!(std::io::stderr(), "\n{NOT_KEPT}").ok();
        }
        let names: Vec<_> = report.controllers.iter().filter(|row| !row.is_ready()).collect();
        if let Some(first) = names.first() {
            bail!(
                "{} of {} are not ready, first {}",
                names.len(),
                report.controllers.len(),
                first.name
            );
        }
        Ok(())
    }

    /// Returns the report of declared controllers, and whether their CRD keeps a status.
    async fn declared(&self) -> anyhow::Result<(StatusReport, bool)> {
        let transport = self.connection.transport(TransportOptions::default()).await?;
        let client = transport.client()?;
        let listed = declared::list(client.clone()).await?;
        for (kind, error) in &listed.unread {
            tracing::warn!(%kind, error, "reading the declared controllers of this kind failed");
        }
        let mut report = StatusReport::of_objects(&listed.objects);
        let unproven = unproven(&client, &listed).await;
        report.held = if self.finalizers {
            for kind in &unproven {
                tracing::warn!(
                    %kind,
                    "finalizers of this kind are not reported, because its controllers are not known"
                );
            }
            Some(unowned(&client, &listed, &unproven).await?)
        } else {
            let is_orphan = |kind, name: &str, report: &TypeReport| {
                is_orphan(&listed, &unproven, kind, name, report)
            };
            Some(finalizer_search::quick_search(&client, is_orphan).await)
        };
        report.rollouts = match rollouts::list(client.clone()).await {
            Ok(rollouts) => Some(rollouts),
            Err(error) => {
                tracing::warn!(
                    error = request_error(&error),
                    "reading revisions of children failed"
                );
                None
            }
        };
        let mut kept = true;
        for kind in ControllerKind::ALL {
            let is_of = |row: &ControllerRow| {
                ControllerKind::of_runnable(&row.name).is_some_and(|(of, _)| of == kind)
            };
            let rows = report.controllers.iter_mut();
            let unseen: Vec<_> = rows.filter(|row| row.is_unseen() && is_of(row)).collect();
            if !unseen.is_empty() && declared::keeps_no_status(kind, client.clone()).await {
                kept = false;
                for row in unseen {
                    "StatusNotKept".clone_into(&mut row.reason);
                }
            }
        }
        Ok((report, kept))
    }
}

/// Returns the kinds whose controllers are not known: without proof that a controller does not
/// exist, its finalizers are not reported.
pub(super) async fn unproven(client: &Client, listed: &DeclaredList) -> Vec<ControllerKind> {
    let mut unproven: Vec<_> = listed.unread.iter().map(|(kind, _)| *kind).collect();
    for kind in &listed.not_served {
        if !release::crd_is_missing(client, *kind).await {
            unproven.push(*kind);
        }
    }
    unproven
}

/// Returns whether a finalizer on an object of this type is removed by no controller: its
/// controller does not exist, or does not free the object.
fn is_orphan(
    listed: &DeclaredList,
    unproven: &[ControllerKind],
    kind: ControllerKind,
    name: &str,
    report: &TypeReport,
) -> bool {
    let is_same = |it: &&declared::DeclaredObject| (it.kind, &*it.name) == (kind, name);
    let is_abandoned = |it: &declared::DeclaredObject| it.abandons(report);
    !unproven.contains(&kind) && listed.objects.iter().find(is_same).is_none_or(is_abandoned)
}

/// Returns all objects with a finalizer that no controller removes.
pub(super) async fn unowned(
    client: &Client,
    listed: &DeclaredList,
    unproven: &[ControllerKind],
) -> anyhow::Result<Vec<ParentWithFinalizer>> {
    let is_orphan =
        |kind, name: &str, report: &TypeReport| is_orphan(listed, unproven, kind, name, report);
    let search = finalizer_search::search(client, is_orphan, false).await?;
    for error in &search.errors {
        tracing::warn!(error, "reading finalizers failed");
    }
    Ok(search.parents)
}

fn render(report: &StatusReport, now: Timestamp) -> String {
    match report.source {
        Source::Api => {
            let mut text = render_declared(&report.controllers, now);
            if let Some(held) = report.held.as_deref().filter(|held| !held.is_empty()) {
                text.push_str(
                    "\nObjects that `pilotlight release --kind KIND CONTROLLER` frees:\n",
                );
                text.push_str(&release::render(held));
            }
            if let Some(rollouts) = report.rollouts.as_deref().filter(|it| !it.is_empty()) {
                text.push_str("\nRolling updates under way, by revision:\n");
                text.push_str(&rollouts::render(rollouts, now));
            }
            text
        }
        Source::Instance => render_report(report, now),
    }
}

fn render_declared(rows: &[ControllerRow], now: Timestamp) -> String {
    if rows.is_empty() {
        return "No declared controllers found.\n".to_owned();
    }
    let mut table =
        Table::new(["NAME", "READY", "STATE", "REASON", "SINCE", "EPOCH", "PARENT", "LAST ERROR"]);
    for row in rows {
        let state = if row.outdated { format!("{} (old spec)", row.state) } else { state(row) };
        let name = match ControllerKind::of_runnable(&row.name) {
            Some((ControllerKind::Composite, name)) => name,
            // A composite may have the same name.
            Some((ControllerKind::Decorator, _)) | None => &row.name,
        };
        table.row([
            name.to_owned(),
            row.ready.clone(),
            state,
            or_dash(Some(&row.reason)),
            row.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
            number(row.epoch),
            or_dash(row.parent.as_deref()),
            or_dash(row.last_error.as_deref()),
        ]);
    }
    table.render()
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn render_report(report: &StatusReport, now: Timestamp) -> String {
    let mut text = String::new();
    if let Some(discovery) = &report.discovery {
        let current = if discovery.current { "current" } else { "not current" };
        text = printable(&format!("discovery: {}, {current}", discovery.mode));
        text.push('\n');
        for error in &discovery.errors {
            text.push_str(&format!("  {}\n", printable(error)));
        }
    }
    if let Some(election) = &report.election {
        let holder = election.holder.as_deref().unwrap_or("none");
        let leader = match election.leads {
            true => "this instance".to_owned(),
            false => format!("{holder}; this instance stands by"),
        };
        text.push_str(&printable(&format!("leader of {}: {leader}", election.lease)));
        text.push('\n');
        if let Some(error) = &election.error {
            text.push_str(&format!("  {}\n", printable(error)));
        }
    }
    let mut controllers = Table::new([
        "NAME",
        "READY",
        "STATE",
        "REASON",
        "SINCE",
        "EPOCH",
        "QUEUE",
        "MEMORY",
        "WATCHES",
        "LAST ERROR",
    ]);
    for row in &report.controllers {
        controllers.row([
            row.name.clone(),
            row.ready.clone(),
            state(row),
            or_dash(Some(&row.reason)),
            row.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
            number(row.epoch),
            number(row.queue_depth),
            number(row.cache.as_ref().map(|cache| cache.accounted_bytes as u64)),
            watches(row),
            or_dash(row.last_error.as_deref().or(Some(row.message.as_str()))),
        ]);
    }
    let informers = informers(report.informers.as_deref().unwrap_or_default());
    for table in [controllers, informers] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table.render());
        }
    }
    text
}

/// Returns a row for each watch.
fn informers(rows: &[InformerRow]) -> Table {
    let columns =
        ["WATCH", "NAMESPACE", "STATE", "OBJECTS", "ENTRIES", "BYTES", "MEMORY", "SUBSCRIBERS"];
    let mut informers = Table::new(columns);
    for informer in rows {
        let InformerRow {
            type_,
            namespace,
            state,
            objects,
            entries,
            bytes,
            accounted_bytes,
            subscribers,
        } = informer;
        informers.row([
            type_.clone(),
            namespace.clone().unwrap_or_else(|| "all".to_owned()),
            state.clone(),
            objects.to_string(),
            entries.to_string(),
            bytes.to_string(),
            accounted_bytes.to_string(),
            subscribers.to_string(),
        ]);
    }
    informers
}

fn state(row: &ControllerRow) -> String {
    let flags = [
        (row.stuck, "stuck"),
        (row.stale, "stale"),
        (row.failing, "failing"),
        (!row.forbidden.is_empty(), "forbidden"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
    if flags.is_empty() {
        row.state.clone()
    } else {
        format!("{} ({})", row.state, flags.join(", "))
    }
}

fn watches(row: &ControllerRow) -> String {
    let synced = [WatchState::Synced, WatchState::Polled].map(WatchState::word);
    let count = row.watches.iter().filter(|watch| synced.contains(&&*watch.state)).count();
    format!("{count}/{}", row.watches.len())
}

#[cfg(test)]
mod tests {
    use pilotlight::manager::{ControllerState, RunnableGroup, RunnableStatus};
    use serde_json::json;

    use super::{super::report::ElectionRow, *};

    fn controller(status: serde_json::Value) -> declared::DeclaredObject {
        let object = serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": "things", "generation": 2},
            "spec": {"parentResource": {"apiVersion": "example.com/v1", "resource": "things"}},
            "status": status,
        }));
        declared::DeclaredObject::of(ControllerKind::Composite, &object.unwrap())
    }

    fn table(controller: &declared::DeclaredObject, now: Timestamp) -> String {
        render(&StatusReport::of_objects(std::slice::from_ref(controller)), now)
    }

    #[test]
    fn the_json_of_both_sources_has_the_same_fields() {
        let of_object = StatusReport::of_objects(&[controller(json!(null))]);
        let status = RunnableStatus::new("a".into(), RunnableGroup::LeaderElection);
        let of_instance = StatusReport {
            source: Source::Instance,
            controllers: vec![ControllerRow::from(&status)],
            ..of_object.clone()
        };

        let fields = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let (one, other) = (json!(of_object), json!(of_instance));
        assert_eq!(fields(&one), fields(&other));
        let row = |report: &serde_json::Value| fields(&report["controllers"][0]);
        assert_eq!(row(&one), row(&other));
        for field in fields(&one).iter().chain(&row(&one)) {
            assert!(JSON.contains(field.as_str()), "--help names {field}");
        }
    }

    #[test]
    fn instance_that_stands_by_names_the_leader() {
        let leader_of = |leads: bool, holder: Option<&str>| {
            let election = ElectionRow {
                lease: "ns/lease".to_owned(),
                identity: "own".to_owned(),
                holder: holder.map(str::to_owned),
                leads,
                transitions: 3,
                error: None,
            };
            let report = StatusReport {
                source: Source::Instance,
                election: Some(election),
                ..StatusReport::of_objects(&[])
            };
            render(&report, Timestamp::UNIX_EPOCH)
        };

        assert_eq!(leader_of(true, Some("own")), "leader of ns/lease: this instance\n");
        assert_eq!(
            leader_of(false, Some("other")),
            "leader of ns/lease: other; this instance stands by\n"
        );
        assert_eq!(leader_of(false, None), "leader of ns/lease: none; this instance stands by\n");
    }

    #[test]
    fn objects_of_a_missing_controller_are_named_with_the_command_that_frees_them() {
        let parent = ParentWithFinalizer {
            controller_kind: "DecoratorController".to_owned(),
            controller: "gone".to_owned(),
            r#type: "things.example.com".to_owned(),
            namespace: Some("ns".to_owned()),
            name: "one".to_owned(),
            terminating: true,
        };
        let mut report = StatusReport::of_objects(&[]);
        let text = |report: &StatusReport| render(report, Timestamp::UNIX_EPOCH);

        assert!(!text(&report).contains("release"));
        report.held = Some(vec![parent]);

        let text = text(&report);
        assert!(text.contains("pilotlight release --kind KIND CONTROLLER"), "{text}");
        let row: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["DecoratorController", "gone", "things.example.com", "ns", "one", "true"]);
    }

    #[test]
    fn a_controller_is_ready_as_its_newest_specification() {
        let ready = |generation: i64, ready: &str| {
            let status = json!({
                "observedGeneration": generation, "state": "Running", "reason": "Running",
                "conditions": [{"type": "Ready", "status": ready, "reason": "Running",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            });
            StatusReport::of_objects(&[controller(status)]).ready
        };

        assert!(ready(2, "True"));
        assert!(!ready(2, "False"));
        assert!(!ready(1, "True"));
        assert!(!StatusReport::of_objects(&[controller(json!(null))]).ready);
        assert!(StatusReport::of_objects(&[]).ready);
    }

    #[test]
    fn a_failing_controller_is_marked_alike_from_both_sources() {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let of_object = StatusReport::of_objects(&[controller(json!({
            "observedGeneration": 2, "state": "Running", "reason": "HookTimeout",
            "conditions": [
                condition("Ready", "False", "HookTimeout"),
                condition("Running", "True", "Running"),
                condition("HooksHealthy", "False", "HookTimeout"),
            ],
        }))]);
        let mut status = RunnableStatus::new("a".into(), RunnableGroup::LeaderElection);
        status.state = ControllerState::Running;
        status.report.failing = true;

        for row in [&of_object.controllers[0], &ControllerRow::from(&status)] {
            assert_eq!((row.ready.as_str(), row.failing), ("False", true));
            assert_eq!(state(row), "Running (failing)");
        }
    }

    #[test]
    fn a_row_shows_the_first_condition_that_is_not_met() {
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
        let text = table(&controller, now);

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

        let text = table(&controller, Timestamp::UNIX_EPOCH);

        assert!(text.contains("configmaps is forbidden"), "{text}");
    }

    #[test]
    fn a_status_about_an_older_specification_is_marked() {
        let controller = controller(json!({"observedGeneration": 1, "state": "Running"}));

        let text = table(&controller, Timestamp::UNIX_EPOCH);

        assert!(text.contains("Running (old spec)"), "{text}");
    }

    #[test]
    fn a_controller_without_a_status_is_shown_as_unseen() {
        let text = table(&controller(json!(null)), Timestamp::UNIX_EPOCH);

        assert!(text.contains("Unseen"), "{text}");
        assert!(!text.contains("old spec"), "there is no status that could be old: {text}");
    }
}
