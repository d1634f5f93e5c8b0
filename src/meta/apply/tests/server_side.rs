//! Tests of server-side apply and of the transfer of fields between the strategies.

use super::*;
use crate::meta::{
    children::{last_applied::LAST_APPLIED, ownership::DECORATED_BY},
    definition::strictness::Strictness,
};

impl Harness {
    /// Sets the strategy, with the manager `team a`.
    fn set_strategy(&mut self, strategy: ApplyStrategy) {
        let rule = ApplyRule { strategy, manager: "team a".parse().unwrap() };
        Arc::get_mut(&mut self.apply).unwrap().rule = rule;
    }
}

/// Returns a sync with server-side apply.
fn harness(method: UpdateMethod, observed: Vec<Child>) -> Harness {
    let mut harness = Harness::new(method, observed);
    harness.set_strategy(ApplyStrategy::ServerSideApply);
    harness
}

/// Returns a sync with server-side apply of a child that is not observed. Takes over objects
/// without a controller if that is enabled.
fn taking_over(is_enabled: bool) -> Harness {
    let mut harness = harness(UpdateMethod::InPlace, vec![]);
    let strictness = Strictness { strict: !is_enabled, ..Strictness::default() };
    harness.set_options(MetaOptions { strictness, ..MetaOptions::default() });
    harness.selector = "app=x".parse().unwrap();
    harness
}

/// Object in place of a child, with a controller of this uid.
fn owned_by(uid: &str) -> Value {
    let mut object = applied(0, "foreign", "1");
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid, "controller": true,
    });
    object["metadata"]["ownerReferences"] = json!([owner]);
    object
}

/// Child as server-side apply has stored it at a version.
fn applied(group: usize, data: &str, version: &str) -> Value {
    let mut object = object(group, "c", data);
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!(version);
    object["metadata"]["generation"] = json!(group);
    object
}

/// Response of the server: an object, or a refusal.
type Reply = Result<Value, (u16, &'static str)>;

/// Refusal of an apply, since another manager owns a field.
const FIELD_CONFLICT: (u16, &str) = (409, "FieldManagerConflict");

/// Syncs with one child that is wanted, and answers the requests in turn. Returns them and the
/// result.
async fn sync(
    harness: &mut Harness,
    wanted: DesiredChild,
    replies: Vec<Reply>,
) -> (Vec<(String, String, Value)>, Result<bool, SyncError>) {
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, vec![wanted]);
    let mut all = Vec::new();
    for reply in replies {
        let mut sent = harness.server.sent().await;
        assert_eq!(sent.len(), 1, "after {all:?}");
        let held = sent.remove(0);
        all.push((held.name.clone(), held.query.clone(), held.body.clone()));
        match reply {
            Ok(object) => held.answer(object),
            Err(FIELD_CONFLICT) => held.refuse_field(),
            Err((code, reason)) => held.refuse(code, reason),
        }
    }
    let more = harness.server.sent().await;
    assert!(more.is_empty(), "{:?} after {all:?}", names(&more));
    (all, tasks.join_next().await.unwrap().unwrap())
}

fn sent(requests: &[(String, String, Value)]) -> Vec<&str> {
    requests.iter().map(|(name, ..)| &**name).collect()
}

const APPLY: &str = "force=false&fieldManager=team%20a";
const FORCED: &str = "force=true&fieldManager=team%20a";
const DRY_RUN: &str = "dryRun=All&force=true&fieldManager=team%20a";

#[tokio::test(start_paused = true)]
async fn new_child_is_read_then_applied_and_no_request_follows() {
    let mut harness = harness(UpdateMethod::InPlace, vec![]);
    let replies = vec![Err((404, "NotFound")), Ok(applied(0, "new", "1"))];

    let (requests, result) = sync(&mut harness, desired(0, "c", "new"), replies).await;

    assert_eq!(sent(&requests), ["get c", "patch c"]);
    assert_eq!(requests[1].1, APPLY);
    assert_eq!(requests[1].2["metadata"].get("uid"), None);
    assert!(!result.unwrap());
    harness.observed = vec![child(0, "c", applied(0, "new", "1"))];
    let (requests, result) = sync(&mut harness, desired(0, "c", "new"), vec![]).await;
    assert_eq!((sent(&requests), result.unwrap()), (vec![], true));
}

#[tokio::test(start_paused = true)]
async fn foreign_object_in_place_of_a_child_is_contested_and_not_applied() {
    let without_owner =
        || (applied(0, "foreign", "1"), "does not match the parent's selector app=x");
    let attached = || {
        let mut attachment = applied(0, "foreign", "1");
        attachment["metadata"]["annotations"] = json!({DECORATED_BY: "things"});
        (attachment, "is attached by the DecoratorController things")
    };
    for (takes_over, (foreign, why)) in [
        (false, without_owner()),
        (false, (owned_by("n"), "belongs to Node n")),
        (true, (owned_by("n"), "belongs to Node n")),
        (false, attached()),
        (true, attached()),
    ] {
        let mut harness = taking_over(takes_over);

        let (requests, result) =
            sync(&mut harness, desired(0, "c", "new"), vec![Ok(foreign)]).await;

        assert_eq!(sent(&requests), ["get c"]);
        assert!(!result.unwrap());
        let contested = harness.parent.state.contested().unreported;
        assert!(contested[0].1.message.ends_with(why), "{contested:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn parent_that_is_being_deleted_takes_over_no_object() {
    let mut harness = taking_over(true);
    harness.parent.terminating = true;

    let (requests, result) =
        sync(&mut harness, desired(0, "c", "new"), vec![Ok(applied(0, "foreign", "1"))]).await;

    assert_eq!(sent(&requests), ["get c"]);
    assert!(!result.unwrap());
}

#[tokio::test(start_paused = true)]
async fn object_without_a_controller_is_taken_over_with_its_uid_if_that_is_enabled() {
    let mut harness = taking_over(true);
    let replies =
        vec![Ok(applied(0, "foreign", "1")), Err(FIELD_CONFLICT), Ok(applied(0, "new", "2"))];

    let (requests, result) = sync(&mut harness, desired(0, "c", "new"), replies).await;

    assert_eq!(sent(&requests), ["get c", "patch c", "patch c"]);
    assert_eq!((&*requests[1].1, &*requests[2].1), (APPLY, FORCED));
    assert_eq!(requests[2].2["metadata"]["uid"], "u");
    assert_eq!(requests[2].2["metadata"]["ownerReferences"][0]["uid"], "parent-uid");
    assert!(!result.unwrap());
    assert_eq!(harness.parent.state.notes().len(), 1);
    assert!(harness.parent.state.contested().names.is_empty());
}

#[tokio::test(start_paused = true)]
async fn takeover_creates_no_child_twice() {
    let foreign = || Ok(applied(0, "foreign", "1"));
    let deleted_after_the_read = vec![foreign(), Err((409, "Conflict"))];
    let own_that_the_cache_lacks = vec![Ok(owned_by("parent-uid"))];
    let created_after_the_read = vec![Err((404, "NotFound")), Err((409, "Conflict"))];
    for replies in [deleted_after_the_read, own_that_the_cache_lacks, created_after_the_read] {
        let mut harness = taking_over(true);
        let count = replies.len();

        let (requests, result) = sync(&mut harness, desired(0, "c", "new"), replies).await;

        assert_eq!(sent(&requests), ["get c", "patch c"][..count]);
        assert!(requests.iter().all(|(_, query, _)| query != FORCED));
        let is_retried = matches!(result, Err(SyncError::Conflict(_) | SyncError::Outdated(_)));
        assert!(is_retried, "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_appears_after_the_read_is_not_forced() {
    let mut harness = harness(UpdateMethod::InPlace, vec![]);
    let replies = vec![Err((404, "NotFound")), Err((409, "Conflict"))];

    let (requests, result) = sync(&mut harness, desired(0, "c", "new"), replies).await;

    assert_eq!(sent(&requests), ["get c", "patch c"]);
    assert!(matches!(result, Err(SyncError::Conflict(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_with_and_without_a_generation_and_a_status_costs_no_request() {
    for group in [0, 1] {
        let observed = |data: &str, version: &str| child(group, "c", applied(group, data, version));
        let mut harness = harness(UpdateMethod::InPlace, vec![observed("v", "7")]);
        let wanted = || desired(group, "c", "v");
        let unchanged = vec![Ok(applied(group, "v", "7"))];

        let (requests, _) = sync(&mut harness, wanted(), unchanged).await;
        assert_eq!(requests[0].1, APPLY, "once after a start");
        assert_eq!(requests[0].2["metadata"]["uid"], "u");
        assert!(sync(&mut harness, wanted(), vec![]).await.1.unwrap());

        let mut reported = applied(group, "v", "8");
        reported["status"] = json!({"ready": true});
        reported["metadata"]["managedFields"] = json!([{"manager": "x"}]);
        harness.observed = vec![child(group, "c", reported)];
        assert!(sync(&mut harness, wanted(), vec![]).await.1.unwrap());

        harness.observed = vec![observed("drifted", "9")];
        let repaired = vec![Ok(applied(group, "v", "10"))];
        assert_eq!(sent(&sync(&mut harness, wanted(), repaired).await.0), ["patch c"]);

        let mut labelled = applied(group, "v", "11");
        labelled["metadata"]["labels"] = json!({"drift": "x"});
        harness.observed = vec![child(group, "c", labelled.clone())];
        let (requests, _) = sync(&mut harness, wanted(), vec![Ok(labelled)]).await;
        assert_eq!(sent(&requests), ["patch c"], "metadata, whose generation is the same");
        assert!(sync(&mut harness, wanted(), vec![]).await.1.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_is_forced_and_the_other_manager_is_recorded_once() {
    let mut harness = harness(UpdateMethod::InPlace, vec![child(0, "c", applied(0, "x", "7"))]);
    let replies = vec![Err(FIELD_CONFLICT), Ok(applied(0, "v", "8"))];

    let (requests, _) = sync(&mut harness, desired(0, "c", "v"), replies).await;

    let queries: Vec<_> = requests.iter().map(|(_, query, _)| &**query).collect();
    assert_eq!(queries, [APPLY, FORCED]);
    assert_eq!(requests[0].2, requests[1].2, "with its uid");
    assert_eq!(harness.parent.state.notes().len(), 1);
    assert_eq!(harness.parent.state.notes().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn conflict_that_is_not_about_a_field_is_not_forced() {
    let mut harness = harness(UpdateMethod::InPlace, vec![child(0, "c", applied(0, "x", "7"))]);
    let replies = vec![Err((409, "Conflict"))];

    let (requests, result) = sync(&mut harness, desired(0, "c", "v"), replies).await;

    assert_eq!((sent(&requests), &*requests[0].1), (vec!["patch c"], APPLY));
    assert!(matches!(result, Err(SyncError::Conflict(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn throttled_sync_keeps_the_digests_of_children_that_it_did_not_reach() {
    let stored = |group: usize, name: &str, data: &str| {
        let mut stored = applied(group, data, "7");
        stored["metadata"]["name"] = json!(name);
        stored
    };
    let observed = |data: &str| {
        let all = [(0, "a", data), (1, "b", data), (1, "c", "v"), (1, "d", "v")];
        all.map(|(group, name, data)| child(group, name, stored(group, name, data))).to_vec()
    };
    let wanted = || [(0, "a"), (1, "b"), (1, "c"), (1, "d")].map(|(g, n)| desired(g, n, "v"));
    let mut harness = harness(UpdateMethod::InPlace, observed("v"));
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, wanted().to_vec());
    for held in harness.server.sent().await {
        held.answer(stored(0, "a", "v"));
    }
    for held in harness.server.sent().await {
        let name = held.name.trim_start_matches("patch ").to_owned();
        held.answer(stored(1, &name, "v"));
    }
    assert!(tasks.join_next().await.unwrap().unwrap().is_ok());

    harness.observed = observed("drifted");
    harness.execute(&mut tasks, wanted().to_vec());
    harness.server.sent().await.remove(0).refuse(429, "TooManyRequests");
    assert!(tasks.join_next().await.unwrap().unwrap().is_err());
    harness.execute(&mut tasks, wanted().to_vec());
    let mut sent = Vec::new();
    loop {
        let held = harness.server.sent().await;
        if held.is_empty() {
            break;
        }
        sent.extend(held.iter().map(|held| held.name.clone()));
        held.into_iter().for_each(Held::succeed);
    }

    assert_eq!(sent, ["patch a", "patch b"], "the drifted ones alone");
}

#[tokio::test(start_paused = true)]
async fn child_that_was_deleted_is_not_created_again_by_its_apply() {
    let mut harness = harness(UpdateMethod::InPlace, vec![child(0, "c", applied(0, "x", "7"))]);
    let replies = vec![Err((409, "Conflict"))];

    let (requests, result) = sync(&mut harness, desired(0, "c", "v"), replies).await;

    assert_eq!(requests[0].2["metadata"]["uid"], "u");
    assert!(matches!(result, Err(SyncError::Conflict(_))), "{result:?}");
    assert!(harness.parent.state.notes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn child_of_a_kind_with_a_generation_is_recreated_if_its_dry_run_changes_it() {
    for dry_run in [Ok(applied(1, "v", "7")), Err((422, "Invalid"))] {
        let mut harness =
            harness(UpdateMethod::Recreate, vec![child(1, "c", applied(1, "x", "7"))]);
        let replies = vec![dry_run, Err((409, "AlreadyExists")), Ok(json!({}))];

        let (requests, _) = sync(&mut harness, desired(1, "c", "v"), replies).await;

        assert_eq!(sent(&requests), ["patch c", "post c", "delete c"]);
        assert_eq!(requests[0].1, DRY_RUN);
        assert_eq!(requests[0].2["metadata"]["resourceVersion"], "7");
        assert_eq!(requests[2].2["preconditions"]["uid"], "u");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_child_is_kept_also_if_others_are_recreated_without_dry_runs() {
    let invalid = || Err((422, "Invalid"));
    for (replies, expected) in [
        (vec![invalid(), invalid()], vec!["patch c", "post c"]),
        (vec![Ok(applied(1, "v", "7")), Ok(json!({}))], vec!["patch c", "delete c"]),
    ] {
        let mut harness =
            harness(UpdateMethod::Recreate, vec![child(1, "c", applied(1, "x", "7"))]);
        harness
            .set_options(MetaOptions { recreate_without_dry_run: true, ..MetaOptions::default() });

        let (requests, _) = sync(&mut harness, desired(1, "c", "v"), replies).await;

        assert_eq!(sent(&requests), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn child_that_is_as_desired_is_not_recreated_and_compared_once() {
    let mut harness = harness(UpdateMethod::Recreate, vec![child(1, "c", applied(1, "v", "7"))]);
    let mut stored = applied(1, "v", "7");
    stored["metadata"]["managedFields"] = json!([{"manager": "team a"}]);

    let (requests, _) = sync(&mut harness, desired(1, "c", "v"), vec![Ok(stored)]).await;

    assert_eq!(requests[0].1, DRY_RUN);
    assert!(sync(&mut harness, desired(1, "c", "v"), vec![]).await.1.unwrap());
}

#[tokio::test(start_paused = true)]
async fn refused_dry_run_keeps_the_child_and_is_reported_once() {
    for refusal in [(403, "Forbidden"), (400, "BadRequest")] {
        let mut harness =
            harness(UpdateMethod::Recreate, vec![child(1, "c", applied(1, "x", "7"))]);
        let mut reports = Vec::new();
        for _ in 0..3 {
            let Parent { key, uid, .. } = &harness.parent;
            harness.parent.state = harness.apply.parents.states.begin(key, uid);
            let refused = vec![Err(refusal)];
            let (_, result) = sync(&mut harness, desired(1, "c", "v"), refused).await;
            assert!(!result.unwrap());
            let unreported = harness.parent.state.contested().unreported;
            reports.extend(unreported.into_iter().map(|(_, contested)| contested.message));
        }
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(reports[0].contains("the child is kept"), "{reports:?}");
    }
}

/// Object with managed fields of one entry.
fn managed(mut object: Value, manager: &str, operation: &str, annotated: bool) -> Value {
    object["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": operation, "apiVersion": object["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:v": {}}},
    }]);
    if annotated {
        object["metadata"]["annotations"] = json!({LAST_APPLIED: "{}"});
    }
    object
}

#[tokio::test(start_paused = true)]
async fn child_of_dynamic_apply_is_transferred_in_one_write_then_applied() {
    let live = managed(applied(0, "v", "7"), "metacontroller", "Update", true);
    let mut harness = harness(UpdateMethod::InPlace, vec![child(0, "c", live.clone())]);
    let handed = applied(0, "v", "8");

    let (requests, _) =
        sync(&mut harness, desired(0, "c", "v"), vec![Ok(live), Ok(handed.clone())]).await;

    assert_eq!(sent(&requests), ["get c", "patch c"]);
    let patch = &requests[1].2["metadata"];
    assert_eq!((&patch["uid"], &patch["resourceVersion"]), (&json!("u"), &json!("7")));
    assert_eq!(patch["managedFields"][0]["operation"], "Apply");
    assert_eq!(patch["annotations"], json!({LAST_APPLIED: null}));
    harness.observed = vec![child(0, "c", handed)];
    let (requests, _) =
        sync(&mut harness, desired(0, "c", "v"), vec![Ok(applied(0, "v", "9"))]).await;
    assert_eq!(requests[0].1, APPLY);
}

#[tokio::test(start_paused = true)]
async fn fields_that_dynamic_apply_still_owns_are_taken_over_after_a_write_that_was_due() {
    let mut harness = harness(UpdateMethod::InPlace, vec![child(0, "c", applied(0, "x", "7"))]);
    let response = managed(applied(0, "v", "8"), "metacontroller", "Update", false);

    let (requests, _) =
        sync(&mut harness, desired(0, "c", "v"), vec![Ok(response.clone()), Ok(response)]).await;

    assert_eq!(sent(&requests), ["patch c", "patch c"]);
    assert_eq!(requests[1].2["metadata"]["resourceVersion"], "8");
    assert_eq!(requests[1].2["metadata"]["managedFields"][0]["manager"], "team a");
}

/// Returns a sync with dynamic apply after one with server-side apply.
fn back(method: UpdateMethod, observed: Vec<Child>) -> Harness {
    let mut harness = harness(method, observed);
    harness.set_strategy(ApplyStrategy::DynamicApply);
    harness
}

#[tokio::test(start_paused = true)]
async fn child_of_server_side_apply_gets_the_annotation_back_and_is_not_recreated() {
    for method in [UpdateMethod::InPlace, UpdateMethod::Recreate] {
        let live = managed(applied(0, "v", "7"), "team a", "Apply", false);
        let mut harness = back(method, vec![child(0, "c", applied(0, "v", "7"))]);
        let same = Ok(applied(0, "v", "7"));

        let (requests, _) =
            sync(&mut harness, desired(0, "c", "v"), vec![Ok(live), same, Ok(json!({}))]).await;

        assert_eq!(sent(&requests), ["get c", "patch c", "patch c"]);
        assert_eq!(requests[1].1, DRY_RUN);
        let mut handed = applied(0, "v", "8");
        handed["metadata"]["annotations"] = requests[2].2["metadata"]["annotations"].clone();
        harness.observed = vec![child(0, "c", handed)];
        assert!(sync(&mut harness, desired(0, "c", "v"), vec![]).await.1.unwrap(), "{method:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn child_without_annotation_that_was_never_applied_is_updated_as_before() {
    let live = managed(applied(0, "x", "7"), "kubectl", "Update", false);
    let mut harness = back(UpdateMethod::InPlace, vec![child(0, "c", applied(0, "x", "7"))]);

    let (requests, _) =
        sync(&mut harness, desired(0, "c", "v"), vec![Ok(live), Ok(applied(0, "v", "8"))]).await;

    assert_eq!(sent(&requests), ["get c", "put c"]);
}
