//! Changes that no rollout makes: of the declaration, of revisions by hand, and of all children
//! while they are not updated one at a time.

use super::*;

const STRATEGIES: [ApplyStrategy; 2] =
    [ApplyStrategy::DynamicApply, ApplyStrategy::ServerSideApply];

impl RolloutFixture {
    fn redeclare(&self, change: impl FnOnce(&mut Value)) {
        let mut controller = self.variant.controller();
        change(&mut controller);
        self.harness.declare("roll", controller);
    }

    /// The only revision.
    fn revision(&self) -> Value {
        let mut all = self.harness.server.list(REVISIONS.0, REVISIONS.1).unwrap();
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }

    /// Versions of the children.
    fn versions(&self) -> Vec<Value> {
        let version = |child: Value| child["metadata"]["resourceVersion"].clone();
        self.children().into_iter().map(version).collect()
    }

    async fn until_texts(&self, expected: &[&str]) {
        for _ in 0..1000 {
            if self.texts() == expected {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?}", self.texts());
    }
}

#[tokio::test(start_paused = true)]
async fn revision_whose_patch_was_edited_by_hand_gets_it_back() {
    let fixture = RolloutFixture::start(PLAIN).await;
    let original = fixture.revision();
    let mut edited = original.clone();
    edited["parentPatch"]["spec"] = json!({"template": {"text": "edited", "more": 1}, "x": [1]});
    edited["metadata"]["labels"]["of"] = json!("user");
    fixture.harness.server.apply(edited).unwrap();
    fixture.wire.take_writes();

    fixture.edit(json!({"all": "yes"}));
    fixture.done("one").await;

    let restored = fixture.revision();
    assert_eq!(restored["parentPatch"], original["parentPatch"]);
    assert_eq!(restored["children"], original["children"]);
    assert_eq!(restored["metadata"]["uid"], original["metadata"]["uid"]);
    assert_eq!(restored["metadata"]["labels"]["of"], "user");
    assert!(fixture.wire.child_writes().is_empty(), "no child is touched");
    fixture.roll_to("two");
    fixture.done("two").await;
    fixture.end().await;
}

#[tokio::test(start_paused = true)]
async fn edit_of_the_field_paths_calls_the_hook_for_no_parent_without_its_other_fields() {
    for strategy in STRATEGIES {
        let fixture = RolloutFixture::start(Variant { strategy, ..PLAIN }).await;
        let versions = fixture.versions();

        // The hook cannot read a parent that has a template alone.
        fixture.redeclare(|controller| {
            controller["parentResource"]["revisionHistory"]["fieldPaths"] = json!(["spec"]);
        });
        sleep(Duration::from_secs(1)).await;
        fixture.done("one").await;

        assert_eq!(fixture.revision()["parentPatch"], json!({"spec": fixture.parent()["spec"]}));
        assert_eq!(fixture.versions(), versions, "{strategy:?}");
        fixture.roll_to("two");
        fixture.done("two").await;
        fixture.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn children_that_were_updated_together_stay_when_they_are_updated_one_at_a_time_again() {
    for strategy in STRATEGIES {
        for method in ["RollingInPlace", "RollingRecreate"] {
            let variant = Variant { strategy, method, ..PLAIN };
            let fixture = RolloutFixture::start(variant).await;
            fixture.redeclare(|controller| {
                controller["childResources"][0]["updateStrategy"] = json!({"method": "InPlace"});
            });
            sleep(Duration::from_secs(1)).await;
            fixture.roll_to("two");
            fixture.until_texts(&["two"; 3]).await;
            run_until_idle().await;
            let versions = fixture.versions();

            // Edited between two processes, so that no digest of an apply is known.
            let server = fixture.harness.server.clone();
            fixture.end().await;
            let kind = ("metacontroller.k8s.io/v1alpha1", "CompositeController");
            let mut controller = server.get(kind.0, kind.1, "", "roll").unwrap();
            controller["spec"] = variant.controller();
            server.apply(controller).unwrap();
            let answer = move |kind, request: &Value| variant.answer(kind, request);
            let fixture = RolloutFixture::process(&server, variant, None, answer).await;
            fixture.done("two").await;

            assert_eq!(fixture.versions(), versions, "{strategy:?} {method}");
            fixture.roll_to("three");
            fixture.done("three").await;
            fixture.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rollout_of_a_parent_that_is_scaled_to_zero_ends() {
    let fixture = RolloutFixture::start(Variant { has_checks: true, ..PLAIN }).await;
    fixture.roll_to("two");
    fixture.until_texts(&["two", "one", "one"]).await;

    fixture.edit(json!({"size": 0}));
    fixture.done("two").await;

    fixture.edit(json!({"size": 3}));
    fixture.done("two").await;
    fixture.end().await;
}
