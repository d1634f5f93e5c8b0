//! API server that throttles many controllers.

use kube::{Api, api::PostParams, core::DynamicObject, discovery::ApiResource};

use super::{unknown_outcome::later, *};
use crate::testing::{Action, Rule, Verb};

const CONTROLLERS: usize = 50;
const PARENTS: usize = 10;

/// Reconciler that creates one part for each widget.
struct Maker(String);

impl Reconciler for Maker {
    async fn reconcile(
        &self,
        request: Request,
        context: Context,
    ) -> Result<Outcome, ReconcileError> {
        let resource = ApiResource {
            group: "example.com".into(),
            version: "v1".into(),
            api_version: "example.com/v1".into(),
            kind: "Part".into(),
            plural: "parts".into(),
        };
        let part = DynamicObject::new(&format!("{}-{}", self.0, request.name), &resource);
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client().clone(), "ns", &resource);
        api.create(&PostParams::default(), &part).await?;
        Ok(Outcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_retry_a_server_that_throttles_once_a_second_each_and_lose_nothing() {
    let harness = Harness::new();
    ["Widget", "Part", "Gadget"].iter().for_each(|kind| harness.install(kind));
    let throttled = Rule::new(Action::Reply(later(429, 1))).verb(Verb::Create);
    let throttling = harness.server.fault(throttled.resource("example.com", "parts"));
    (0..PARENTS).for_each(|number| harness.server.apply(widget(&format!("w{number}"), "w")));
    harness.add(builder().for_type(TypeRef::resource("example.com", "v1", "gadgets"))).await;
    for number in 0..CONTROLLERS {
        let name = format!("c{number}");
        let maker = Controller::builder(name.as_str()).for_type(widgets());
        let maker = maker.build(&harness.cluster, Maker(name.clone())).unwrap();
        harness.manager.add(name, Arc::new(maker), RunnableOptions::default()).await.unwrap();
    }

    let mut rates = Vec::new();
    for ten in 0..12 {
        let before = harness.server.creations();
        sleep(Duration::from_secs(10)).await;
        rates.push(harness.server.creations() - before);
        // A controller that is not throttled does not wait for the others.
        harness.server.apply(object("Gadget", "g", "g"));
        assert_eq!(harness.log().await, ["ns/g missing"], "in the {ten}th ten seconds");
    }
    let all = CONTROLLERS * PARENTS;
    assert!(rates[0] <= 4 * all, "each a few times, before it is known: {rates:?}");
    let later = &rates[2..];
    let most = 11 * CONTROLLERS;
    assert!(later.iter().all(|it| (1..=most).contains(it)), "once a second each: {rates:?}");
    assert_eq!(harness.server.count("Part"), 0);

    let before = harness.server.creations();
    harness.server.remove(throttling);
    sleep(Duration::from_secs(15)).await;

    assert_eq!(harness.server.count("Part"), all);
    assert_eq!(harness.server.creations() - before, all, "each was made once");
    harness.shutdown().await;
}
