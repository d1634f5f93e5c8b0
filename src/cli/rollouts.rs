//! Rolling updates under way, with the revision of each child.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::OwnerReference, jiff::Timestamp};
use kube::{Api, Client, ResourceExt};
use pilotlight::meta::api::ControllerRevision;
use serde::{Deserialize, Serialize};

use super::{
    pages::{first_page, next_page},
    table::{Table, age},
};

/// Number of names of children in a cell of the table.
const NAMES: usize = 5;

/// Parent with several revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RolloutRow {
    /// Kind and API version of the parent.
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Namespace of the newest revision, which is that of a namespaced parent.
    pub(super) namespace: String,
    pub(super) name: String,
    /// Revisions of the parent, oldest first.
    pub(super) revisions: Vec<RevisionRow>,
}

/// Revision, and the children that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RevisionRow {
    pub(super) name: String,
    pub(super) created: Option<Timestamp>,
    /// Children as `Kind name`, or `Kind.group name`.
    pub(super) children: Vec<String>,
}

/// Returns the rolling updates under way, by the revisions on the server.
///
/// # Errors
///
/// If the revisions cannot be listed; there are none if their CRD is not installed.
pub(super) async fn list(client: Client) -> kube::Result<Vec<RolloutRow>> {
    let revisions = Api::<ControllerRevision>::all(client);
    let (mut all, mut next) = (Vec::new(), Some(first_page()));
    while let Some(page) = next {
        let listed = match revisions.list(&page).await {
            Ok(listed) => listed,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        next = next_page(&listed.metadata);
        all.extend(listed.items);
    }
    Ok(of_revisions(all))
}

/// Returns the owners of several revisions.
fn of_revisions(revisions: Vec<ControllerRevision>) -> Vec<RolloutRow> {
    let mut owners = BTreeMap::<_, (OwnerReference, Vec<ControllerRevision>)>::new();
    for revision in revisions {
        let owner = revision.owner_references().iter().find(|owner| owner.controller == Some(true));
        let Some(owner) = owner.cloned() else { continue };
        owners.entry(owner.uid.clone()).or_insert_with(|| (owner, Vec::new())).1.push(revision);
    }
    let of_several = owners.into_iter().filter(|(_, (_, revisions))| revisions.len() > 1);
    let mut rows: Vec<_> = of_several
        .map(|(_, (owner, mut revisions))| {
            revisions.sort_by_key(|it| (it.creation_timestamp(), it.name_any()));
            let namespace = revisions.last().and_then(ResourceExt::namespace).unwrap_or_default();
            RolloutRow {
                api_version: owner.api_version,
                kind: owner.kind,
                namespace,
                name: owner.name,
                revisions: revisions.iter().map(RevisionRow::of).collect(),
            }
        })
        .collect();
    rows.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
    rows
}

impl RevisionRow {
    fn of(revision: &ControllerRevision) -> Self {
        let children = revision.children.iter().flat_map(|of_type| {
            let kind = match &*of_type.api_group {
                "" => of_type.kind.clone(),
                group => format!("{}.{group}", of_type.kind),
            };
            of_type.names.iter().map(move |name| format!("{kind} {name}"))
        });
        Self {
            name: revision.name_any(),
            created: revision.creation_timestamp().map(|created| created.0),
            children: children.collect(),
        }
    }
}

/// Renders a row for each revision.
pub(super) fn render(rows: &[RolloutRow], now: Timestamp) -> String {
    let mut table = Table::new(["PARENT", "NAMESPACE", "NAME", "REVISION", "AGE", "CHILDREN"]);
    for row in rows {
        for revision in &row.revisions {
            let mut children = revision.children.iter().take(NAMES).cloned().collect::<Vec<_>>();
            if let Some(more) = revision.children.len().checked_sub(NAMES).filter(|more| *more > 0)
            {
                children.push(format!("{more} more"));
            }
            table.row([
                row.kind.clone(),
                row.namespace.clone(),
                row.name.clone(),
                revision.name.clone(),
                revision.created.map_or_else(|| "-".to_owned(), |created| age(created, now)),
                if children.is_empty() { "-".to_owned() } else { children.join(", ") },
            ]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn revision(parent: &str, name: &str, created: &str, children: &[&str]) -> ControllerRevision {
        let owner = json!({
            "apiVersion": "x.test/v1", "kind": "Boat", "name": parent, "uid": parent,
            "controller": true,
        });
        serde_json::from_value(json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision",
            "metadata": {
                "name": name, "namespace": "ns", "ownerReferences": [owner],
                "creationTimestamp": created,
            },
            "parentPatch": {},
            "children": [{ "apiGroup": "", "kind": "Pod", "names": children }],
        }))
        .unwrap()
    }

    #[test]
    fn rollout_whose_revisions_are_in_two_namespaces_is_shown() {
        let old = revision("boat", "boats-old", "2026-01-01T00:00:00Z", &["boat-1"]);
        let mut new = revision("boat", "boats-new", "2026-01-01T00:05:00Z", &["boat-0"]);
        new.metadata.namespace = Some("other".to_owned());

        let rows = of_revisions(vec![new, old]);

        let [row] = &rows[..] else { panic!("one parent: {rows:?}") };
        assert_eq!((&*row.namespace, row.revisions.len()), ("other", 2));
    }

    #[test]
    fn each_child_of_a_rollout_is_shown_at_its_revision() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z");
        let many = ["boat-1", "boat-2", "boat-3", "boat-4", "boat-5", "boat-6", "boat-7"];
        let all = vec![
            revision("boat", "boats-new", new, &["boat-0"]),
            revision("boat", "boats-old", old, &many),
            revision("raft", "boats-raft", old, &["raft-0"]),
        ];

        let rows = of_revisions(all);

        let names: Vec<_> = rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["boat"], "the other parent has one revision");
        let text = render(&rows, new.parse().unwrap());
        let lines: Vec<_> =
            text.lines().skip(1).map(|it| it.split_whitespace().collect()).collect();
        let lines: Vec<String> = lines.iter().map(|words: &Vec<_>| words.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "Boat ns boat boats-old 5m Pod boat-1, Pod boat-2, Pod boat-3, Pod boat-4, Pod boat-5, \
             2 more",
                "Boat ns boat boats-new 0s Pod boat-0",
            ]
        );
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod server_tests {
    use std::time::Duration;

    use pilotlight::testing::simulated::{AccessRule, SimulatedServer};
    use serde_json::json;

    use super::{super::pages::PAGE, *};

    /// Server with the CRDs of declared controllers.
    async fn server() -> SimulatedServer {
        let server = SimulatedServer::new();
        for crd in pilotlight::meta::crds() {
            server.install(&crd).unwrap();
        }
        // The types are established after some simulated time.
        tokio::time::sleep(Duration::from_secs(60)).await;
        server
    }

    fn add(server: &SimulatedServer, parent: &str, name: &str) {
        let owner = json!({
            "apiVersion": "x.test/v1", "kind": "Boat", "name": parent, "uid": parent,
            "controller": true,
        });
        let revision = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
            "parentPatch": {},
        });
        server.apply(revision).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn revisions_of_a_rollout_are_found_on_all_pages() {
        let server = server().await;
        add(&server, "boat", "a-first");
        for number in 0..=2 * PAGE {
            add(&server, &format!("raft-{number}"), &format!("raft-{number}"));
        }
        add(&server, "boat", "z-last");

        let rows = list(server.client()).await.unwrap();

        let names = |row: &RolloutRow| {
            row.revisions.iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(" ")
        };
        let rows: Vec<_> = rows.iter().map(|row| (&*row.name, names(row))).collect();
        assert_eq!(rows, [("boat", "a-first z-last".to_owned())]);
        let requests = server.requests();
        let lists = requests.iter().filter(|it| it.resource().contains("controllerrevisions"));
        assert!(lists.count() >= 3, "by pages");
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_crd_of_revisions_there_are_no_rollouts() {
        let rows = list(SimulatedServer::new().client()).await.unwrap();

        assert_eq!(rows, []);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_right_to_list_revisions_is_no_empty_list() {
        let server = server().await;
        add(&server, "boat", "one");
        add(&server, "boat", "two");
        server.set_rbac([
            AccessRule::deny().resources(["controllerrevisions.metacontroller.k8s.io"])
        ]);

        let refused = list(server.client()).await.unwrap_err();

        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    }
}
