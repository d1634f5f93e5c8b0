//! Tests of the deletion of a child of an earlier parent.

use super::*;

/// Child `c` of an earlier parent, as the server has it.
fn left_behind() -> Value {
    let mut object = object(0, "c", "old");
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!("7");
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1", "kind": "Thing", "name": "p", "uid": "earlier",
        "controller": true,
    }]);
    object
}

impl Harness {
    /// Returns the next request, which is the only one.
    async fn next(&mut self, name: &str) -> Held {
        let mut sent = self.server.sent().await;
        assert_eq!(names(&sent), [name]);
        sent.remove(0)
    }

    /// Parent, as the server has it.
    fn live_parent(&self) -> Value {
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": &*self.parent.uid}})
    }
}

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_parent_is_deleted_by_its_uid_and_version() {
    for strategy in ApplyStrategy::ALL {
        let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
        let (budget, parents) = (harness.apply.budget.clone(), Arc::clone(&harness.apply.parents));
        let rule = ApplyRule { strategy, ..ApplyRule::default() };
        harness.apply = Arc::new(Apply { rule, budget, parents, options: Arc::default() });
        let mut tasks = tokio::task::JoinSet::new();
        harness.execute(&mut tasks, vec![desired(0, "c", "new")]);
        if strategy == ApplyStrategy::DynamicApply {
            harness.next("post c").await.refuse(409, "AlreadyExists");
        }
        harness.next("get c").await.answer(left_behind());
        let live = harness.live_parent();
        harness.next("get p").await.answer(live);

        let deletion = harness.next("delete c").await;

        let preconditions = json!({"uid": "u", "resourceVersion": "7"});
        assert_eq!(deletion.body["preconditions"], preconditions, "{strategy}");
        assert_eq!(deletion.body["propagationPolicy"], "Background");
        deletion.refuse(409, "Conflict");
        let result = tasks.join_next().await.unwrap().unwrap();
        assert!(matches!(result, Err(SyncError::Outdated(_))), "without an Event: {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn child_of_an_earlier_parent_is_not_deleted_after_a_throttle() {
    let mut harness = Harness::new(UpdateMethod::InPlace, vec![]);
    let mut tasks = tokio::task::JoinSet::new();
    harness.execute(&mut tasks, vec![desired(0, "c", "new"), desired(0, "d", "new")]);
    let mut created = harness.server.sent().await;
    assert_eq!(names(&created), ["post c", "post d"]);
    created.remove(0).refuse(409, "AlreadyExists");
    harness.next("get c").await.answer(left_behind());
    let read = harness.next("get p").await;

    created.remove(0).refuse(429, "TooManyRequests");
    assert_eq!(names(&harness.server.sent().await), [""; 0]);
    read.answer(harness.live_parent());

    assert_eq!(names(&harness.server.sent().await), [""; 0], "no deletion");
    let result = tasks.join_next().await.unwrap().unwrap();
    assert!(matches!(result, Err(SyncError::Throttled { .. })), "{result:?}");
}
