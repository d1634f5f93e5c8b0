//! Tests of the execution of a plan, over a server that answers when the test requests it.

mod halts;
mod left_behind;
mod server_side;

use std::{convert::Infallible, time::Duration};

use futures::FutureExt;
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tower::service_fn;

use super::*;
use crate::{
    informer::{ObjectKey, Selector},
    manager::{Epoch, StopReason},
    meta::{
        children::{
            Child, ServedChildType, adoption::AdoptionRule, fixtures::*, merge,
            ownership::Ownership,
        },
        definition::UpdateMethod,
        hooks::budget::ResponseBudget,
        options::MetaOptions,
        parent::Parent,
    },
};

/// Request that waits for its response.
struct Held {
    name: String,
    query: String,
    body: Value,
    response: oneshot::Sender<(u16, Value)>,
}

impl Held {
    fn succeed(self) {
        let stored = json!({"kind": "ConfigMap", "metadata": {"uid": "u", "resourceVersion": "9"}});
        self.response.send((200, stored)).unwrap();
    }

    fn answer(self, object: Value) {
        self.response.send((200, object)).unwrap();
    }

    fn refuse(self, code: u16, reason: &str) {
        let status = json!({
            "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": reason, "details": {"name": "x", "retryAfterSeconds": 7},
        });
        self.response.send((code, status)).unwrap();
    }

    /// Refuses an apply, since another manager owns a field.
    fn refuse_field(self) {
        let message = "conflict with \"kubectl-edit\" using v1 at 2000-01-01T00:00:00Z";
        let cause =
            json!({"reason": "FieldManagerConflict", "message": message, "field": ".data.v"});
        let status = json!({
            "kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict",
            "message": "Apply failed with 1 conflict", "details": {"causes": [cause]},
        });
        self.response.send((409, status)).unwrap();
    }
}

/// Requests in the order in which they were sent.
struct Server(mpsc::UnboundedReceiver<Held>);

impl Server {
    fn new() -> (Self, Client) {
        let (sender, requests) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Body>| {
            let (response, answered) = oneshot::channel();
            let sender = sender.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let name = match head.method {
                    Method::POST => body["metadata"]["name"].as_str().unwrap_or_default(),
                    _ => head.uri.path().rsplit('/').next().unwrap_or_default(),
                };
                let name = format!("{} {name}", head.method.as_str().to_lowercase());
                let query = head.uri.query().unwrap_or_default().to_owned();
                sender.send(Held { name, query, body, response }).ok();
                let (code, body) = answered.await.unwrap_or((500, Value::Null));
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        (Self(requests), Client::new(service, "default"))
    }

    /// Returns the next requests, as many as are sent without another response.
    async fn sent(&mut self) -> Vec<Held> {
        let mut sent = Vec::new();
        while let Ok(Some(held)) = timeout(Duration::from_millis(1), self.0.recv()).await {
            sent.push(held);
        }
        sent
    }

    /// Lets each request succeed; returns their names.
    async fn answer_all(&mut self) -> Vec<Vec<String>> {
        let mut rounds = Vec::new();
        loop {
            let sent = self.sent().await;
            if sent.is_empty() {
                return rounds;
            }
            rounds.push(sent.iter().map(|held| held.name.clone()).collect());
            sent.into_iter().for_each(Held::succeed);
        }
    }
}

/// Sync that is about to write.
struct Harness {
    apply: Arc<Apply>,
    server: Server,
    client: Client,
    epoch: Epoch,
    parent: Parent,
    groups: Vec<ServedChildType>,
    observed: Vec<Child>,
    // Selector of the parent.
    selector: Selector,
}

impl Harness {
    fn set_options(&mut self, options: MetaOptions) {
        Arc::get_mut(&mut self.apply).unwrap().options = Arc::new(options);
    }

    fn new(strategy: UpdateMethod, observed: Vec<Child>) -> Self {
        let (server, client) = Server::new();
        let apply = Apply {
            rule: ApplyRule::default(),
            budget: ResponseBudget::default().controller("c"),
            parents: Arc::new(Parents::new(|| ())),
            options: Arc::default(),
        };
        Self {
            apply: Arc::new(apply),
            server,
            client,
            epoch: Epoch::new("c", 1, Duration::from_secs(5)),
            parent: parent(Some("ns")),
            groups: groups(strategy),
            observed,
            selector: Selector::default(),
        }
    }

    /// Starts to write these children, and drives the writes in a task of the test.
    fn execute(
        &self,
        tasks: &mut tokio::task::JoinSet<Result<bool, SyncError>>,
        desired: Vec<DesiredChild>,
    ) {
        let apply = Arc::clone(&self.apply);
        let context = Context::new(self.epoch.clone(), &self.client);
        let (parent, groups) = (self.parent.clone(), self.groups.clone());
        let (observed, selector) = (self.observed.clone(), self.selector.clone());
        tasks.spawn(async move {
            let ownership =
                Ownership::Selected { selector, generated: false, rule: AdoptionRule::default() };
            let rules = ChildContext {
                parent: &parent,
                groups: &groups,
                missing: &[],
                ownership: &ownership,
                observed: &observed,
                restricted: None,
            };
            apply.execute(&rules, desired, &context).await.map(|executed| executed.as_desired)
        });
    }
}

fn object(group: usize, name: &str, data: &str) -> Value {
    let (api_version, kind) = [("v1", "ConfigMap"), ("apps/v1", "Deployment")][group];
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"namespace": "ns", "name": name}, "data": {"v": data},
    })
}

fn desired(group: usize, name: &str, data: &str) -> DesiredChild {
    let key = ObjectKey { namespace: Some("ns".into()), name: name.into() };
    DesiredChild {
        group,
        key,
        generate_name: None,
        json: object(group, name, data).to_string().into(),
    }
}

fn observed(group: usize, name: &str) -> Child {
    observed_with(group, name, "old")
}

fn observed_with(group: usize, name: &str, data: &str) -> Child {
    let mut object = object(group, name, data);
    let remembered = crate::meta::json::go_json::encode(&object);
    object["metadata"]["annotations"] =
        json!({crate::meta::children::last_applied::LAST_APPLIED: remembered});
    object["metadata"]["uid"] = json!(name);
    object["metadata"]["resourceVersion"] = json!("7");
    child(group, name, object)
}

fn names(held: &[Held]) -> Vec<&str> {
    held.iter().map(|held| &*held.name).collect()
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_children_of_one_group_are_written_at_once() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
    let (mut tasks, all) = (tokio::task::JoinSet::new(), 0..20);
    harness.execute(&mut tasks, all.map(|n| desired(0, &format!("c{n:02}"), "new")).collect());

    let mut first = harness.server.sent().await;
    assert_eq!(names(&first), (0..8).map(|n| format!("post c{n:02}")).collect::<Vec<_>>());
    first.remove(3).succeed();
    let next = harness.server.sent().await;
    assert_eq!(names(&next), ["post c08"], "one ended, so that one begins");

    first.into_iter().chain(next).for_each(Held::succeed);
    let rounds: Vec<usize> = harness.server.answer_all().await.iter().map(Vec::len).collect();
    assert_eq!(rounds, [8, 3]);
    assert!(!tasks.join_next().await.unwrap().unwrap().unwrap(), "children were written");
}

#[tokio::test(start_paused = true)]
async fn deletions_end_before_other_writes_and_each_group_before_the_next() {
    let left = vec![observed(1, "old-d"), observed(0, "old-c"), observed(0, "c-update")];
    let mut harness = Harness::new(UpdateMethod::InPlace, left);
    let mut tasks = tokio::task::JoinSet::new();
    let desired = vec![
        desired(1, "d-2", "new"),
        desired(0, "c-new", "new"),
        desired(1, "d-1", "new"),
        desired(0, "c-update", "new"),
    ];
    harness.execute(&mut tasks, desired);

    assert_eq!(
        harness.server.answer_all().await,
        [
            vec!["delete old-c"],
            vec!["delete old-d"],
            vec!["post c-new", "put c-update"],
            vec!["post d-2", "post d-1"],
        ]
    );
    tasks.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn child_is_deleted_by_its_uid_and_its_dependents_in_the_background() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![observed(0, "old")]);
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, Vec::new());

    let deleted = harness.server.sent().await.remove(0);

    assert_eq!(deleted.name, "delete old");
    assert_eq!(deleted.body["propagationPolicy"], "Background");
    assert_eq!(deleted.body["preconditions"]["uid"], *observed(0, "old").uid);
    deleted.refuse(404, "NotFound");
    tasks.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn update_of_a_child_that_is_gone_is_retried_as_a_conflict_is() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![observed(0, "c")]);
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, vec![desired(0, "c", "new")]);

    let update = harness.server.sent().await.remove(0);

    assert_eq!(
        (&*update.name, &update.body["metadata"]["resourceVersion"]),
        ("put c", &json!("7"))
    );
    update.refuse(404, "NotFound");
    let result = tasks.join_next().await.unwrap().unwrap();
    assert!(matches!(result, Err(SyncError::Outdated(_))), "without an Event: {result:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_child_stops_no_other_child() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![observed(0, "old")]);
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, vec![desired(0, "c", "new"), desired(1, "d", "new")]);

    for (name, code, reason) in [("delete old", 403, "Forbidden"), ("post c", 422, "Invalid")] {
        let mut sent = harness.server.sent().await;
        assert_eq!(names(&sent), [name]);
        sent.remove(0).refuse(code, reason);
    }
    assert_eq!(harness.server.answer_all().await, [["post d"]]);
    let Err(SyncError::Failed(message)) = tasks.join_next().await.unwrap().unwrap() else {
        panic!("two failed")
    };
    assert!(message.contains("deleting ConfigMap ns/old"), "{message}");
    assert!(message.contains("creating ConfigMap ns/c"), "{message}");
}

/// A child that needs no write, as the API server stores it at a version.
fn stored(name: &str, data: &str, version: &str) -> Child {
    let mut object = object(0, name, data);
    let remembered = crate::meta::json::go_json::encode(&object);
    object["metadata"]["annotations"] =
        json!({crate::meta::children::last_applied::LAST_APPLIED: remembered});
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!(version);
    child(0, name, object)
}

#[tokio::test(start_paused = true)]
async fn one_changed_child_of_a_hundred_is_the_only_one_that_is_merged() {
    let names: Vec<_> = (0..100).map(|number| format!("c{number:02}")).collect();
    let observed = names.iter().map(|name| stored(name, "v", "7")).collect();
    let mut harness = Harness::new(UpdateMethod::InPlace, observed);
    let mut tasks = tokio::task::JoinSet::new();
    let wanted = |data: &str| -> Vec<_> {
        names.iter().map(|name| desired(0, name, if name == "c42" { data } else { "v" })).collect()
    };
    let mut merged = async |harness: &mut Harness, data: &str| {
        let before = merge::count();
        harness.execute(&mut tasks, wanted(data));
        let sent = harness.server.answer_all().await.concat();
        let as_desired = tasks.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(as_desired, sent.is_empty());
        (merge::count() - before, sent)
    };
    assert_eq!(merged(&mut harness, "v").await, (100, vec![]));
    assert_eq!(merged(&mut harness, "v").await, (0, vec![]));

    assert_eq!(merged(&mut harness, "w").await, (1, vec!["put c42".to_owned()]), "desired value");
    assert_eq!(merged(&mut harness, "v").await, (1, vec![]), "equal again");
    harness.observed[7] = stored("c07", "foreign", "8");
    assert_eq!(merged(&mut harness, "v").await, (1, vec!["put c07".to_owned()]), "foreign edit");
    harness.observed[7] = stored("c07", "v", "9");
    assert_eq!(merged(&mut harness, "v").await, (0, vec![]), "as it was written");
    harness.observed[7] = stored("c07", "v", "10");
    assert_eq!(merged(&mut harness, "v").await, (1, vec![]), "another version");
    harness.parent.uid = "another".into();
    harness.parent.state = Arc::default();
    assert_eq!(merged(&mut harness, "v").await, (100, vec![]), "another parent of that name");
}

#[tokio::test(start_paused = true)]
async fn child_that_is_stored_as_it_was_written_is_not_merged_again() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![stored("old", "v", "7")]);
    let mut tasks = tokio::task::JoinSet::new();
    let wanted = || vec![desired(0, "old", "w"), desired(0, "new", "w")];
    harness.execute(&mut tasks, wanted());
    let mut sent = Vec::new();
    for held in harness.server.sent().await {
        // The server adds its own fields, and in another order.
        let mut object = held.body.clone();
        object["metadata"]["uid"] = json!("u");
        object["metadata"]["resourceVersion"] = json!("9");
        object["metadata"]["generation"] = json!(2);
        object["metadata"]["creationTimestamp"] = json!("2000-01-01T00:00:00Z");
        object["status"] = json!({"ready": true});
        sent.push(object);
        held.succeed();
    }
    tasks.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(sent.len(), 2);
    let mut merged = async |harness: &mut Harness, objects: &[Value]| {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        harness.observed = objects.iter().map(|it| child(0, &name(it), it.clone())).collect();
        let before = merge::count();
        harness.execute(&mut tasks, wanted());
        let sent = harness.server.answer_all().await.concat();
        tasks.join_next().await.unwrap().unwrap().unwrap();
        (merge::count() - before, sent)
    };

    assert_eq!(merged(&mut harness, &sent).await, (0, vec![]));
    let mut edited = sent.clone();
    edited[0]["data"]["v"] = json!("foreign");
    let name = edited[0]["metadata"]["name"].as_str().unwrap();
    let put = vec![format!("put {name}")];
    assert_eq!(merged(&mut harness, &edited).await, (1, put), "a foreign edit");
    let mut labelled = sent.clone();
    labelled[0]["metadata"]["labels"] = json!({"foreign": "yes"});
    assert_eq!(merged(&mut harness, &labelled).await, (1, vec![]), "other content is merged");
}

#[tokio::test(start_paused = true)]
async fn large_child_is_written_alone() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
    let mut tasks = tokio::task::JoinSet::new();
    let large = "x".repeat(100_000);
    let desired = vec![
        desired(0, "a", "new"),
        desired(0, "b", &large),
        desired(0, "c", &large),
        desired(0, "d", "new"),
        desired(0, "e", "new"),
    ];
    harness.execute(&mut tasks, desired);

    assert_eq!(
        harness.server.answer_all().await,
        [vec!["post a"], vec!["post b"], vec!["post c"], vec!["post d", "post e"]]
    );
    tasks.join_next().await.unwrap().unwrap().unwrap();
}

/// Replaces a child that differs, and answers its requests in turn; returns what was sent.
async fn replace(harness: &mut Harness, responses: &[Option<u16>]) -> (Vec<String>, bool) {
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, vec![desired(0, "c", "new")]);
    let mut all = Vec::new();
    for response in responses {
        let mut sent = harness.server.sent().await;
        all.extend(sent.iter().map(|held| held.name.clone()));
        match response {
            Some(409) => sent.remove(0).refuse(409, "AlreadyExists"),
            Some(404) => sent.remove(0).refuse(404, "NotFound"),
            Some(code) => sent.remove(0).refuse(*code, "Refused"),
            None => sent.remove(0).succeed(),
        }
    }
    assert!(harness.server.sent().await.is_empty());
    (all, tasks.join_next().await.unwrap().unwrap().is_ok())
}

#[tokio::test(start_paused = true)]
async fn child_whose_replacement_is_refused_is_deleted_after_five_minutes() {
    for code in [403, 404, 400] {
        let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
        let kept = (vec!["put c".to_owned(), "post c".to_owned()], false);
        for seconds in [0, 200, 99] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(replace(&mut harness, &[None, Some(code)]).await, kept, "{code} {seconds}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (sent, is_done) = replace(&mut harness, &[None, Some(code), None]).await;
        assert_eq!((sent.concat(), is_done), ("put cpost cdelete c".to_owned(), true), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn child_that_fills_a_quota_is_replaced_at_once() {
    for (used, is_replaced) in [(5, true), (6, false)] {
        let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
        let mut tasks = tokio::task::JoinSet::new();
        harness.execute(&mut tasks, vec![desired(0, "c", "new")]);
        harness.server.sent().await.remove(0).succeed();
        let mut dry_run = harness.server.sent().await;
        assert_eq!(names(&dry_run), ["post c"]);

        let quota =
            format!("exceeded quota: q, requested: pods=1, used: pods={used}, limited: pods=5");
        dry_run.remove(0).refuse(403, &quota);

        let deleted = harness.server.answer_all().await.concat();
        assert_eq!(!deleted.is_empty(), is_replaced, "{used}: {deleted:?}");
        assert_eq!(tasks.join_next().await.unwrap().unwrap().is_ok(), is_replaced, "{used}");
    }
}

#[tokio::test(start_paused = true)]
async fn child_whose_replacement_is_invalid_or_undecided_is_never_deleted() {
    for code in [422, 401, 429, 500, 503, 504] {
        let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(100)).await;
            let (sent, is_done) = replace(&mut harness, &[None, Some(code)]).await;
            assert_eq!((sent.concat(), is_done), ("put cpost c".to_owned(), false), "{code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_of_a_replacement_is_no_failure_and_delays_it_by_five_minutes() {
    let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
    for (seconds, is_replaced) in [(0, false), (299, false), (1, true)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let mut tasks = tokio::task::JoinSet::new();
        harness.execute(&mut tasks, vec![desired(0, "c", "new")]);
        harness.server.sent().await.remove(0).succeed();
        let mut dry_run = harness.server.sent().await;
        assert_eq!(names(&dry_run), ["post c"]);

        dry_run.remove(0).refuse(409, "Conflict");

        let deleted = harness.server.answer_all().await.concat();
        assert_eq!(!deleted.is_empty(), is_replaced, "{seconds}: {deleted:?}");
        let result = tasks.join_next().await.unwrap().unwrap();
        assert_eq!(matches!(result, Err(SyncError::Conflict(_))), !is_replaced, "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dry_run_of_a_service_omits_the_node_port_that_the_old_one_holds() {
    let service = |port: u16| {
        let mut service = object(0, "c", "x");
        let ports = json!([{"port": port, "nodePort": 30080}]);
        service["spec"] = json!({"type": "NodePort", "ports": ports});
        service
    };
    let mut old = service(80);
    let remembered = crate::meta::json::go_json::encode(&old);
    old["metadata"]["annotations"] =
        json!({crate::meta::children::last_applied::LAST_APPLIED: remembered});
    let mut wanted = desired(0, "c", "x");
    wanted.json = service(81).to_string().into();
    for (kind, expected) in [
        ("Service", json!([{"port": 81}])),
        ("ConfigMap", json!([{"port": 81, "nodePort": 30080}])),
    ] {
        let mut harness = Harness::new(UpdateMethod::Recreate, vec![child(0, "c", old.clone())]);
        Arc::make_mut(&mut harness.groups[0].served).kind = kind.into();
        let mut tasks = tokio::task::JoinSet::new();
        harness.execute(&mut tasks, vec![wanted.clone()]);
        harness.server.sent().await.remove(0).succeed();

        let dry_run = harness.server.sent().await.remove(0);

        assert_eq!((&*dry_run.name, &dry_run.body["spec"]["ports"]), ("post c", &expected));
        dry_run.refuse(409, "AlreadyExists");
        assert_eq!(harness.server.answer_all().await, [["delete c"]]);
        tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn child_is_replaced_without_dry_runs_if_that_is_enabled() {
    let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
    harness.set_options(MetaOptions { recreate_without_dry_run: true, ..MetaOptions::default() });

    assert_eq!(replace(&mut harness, &[None]).await, (vec!["delete c".to_owned()], true));
}

#[tokio::test(start_paused = true)]
async fn aggregated_server_gets_no_dry_run_of_an_update() {
    let mut harness = Harness::new(UpdateMethod::Recreate, vec![observed(0, "c")]);
    let served = Arc::make_mut(&mut harness.groups[0].served);
    served.version_order = VersionOrder::Opaque;

    let (sent, is_done) = replace(&mut harness, &[Some(409), None]).await;
    assert_eq!((sent.concat(), is_done), ("post cdelete c".to_owned(), true));
}
