//! Types that are installed and deleted with their CRDs.

use super::*;

#[tokio::test(start_paused = true)]
async fn any_change_of_a_crds_spec_ends_its_watches() {
    let harness = Harness::with_widgets();
    let then = harness.server.resource_version();
    let watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.x.test", "labels": { "a": "b" } } });
    harness.server.merge(&crd).unwrap();
    assert_eq!(harness.server.open_watches()["widgets.x.test"], 1, "metadata changes end no watch");
    let mut crd = crd;
    crd["spec"] = json!({ "names": { "shortNames": ["wd"] } });
    harness.server.merge(&crd).unwrap();

    assert_eq!(watch.collect::<Vec<_>>().await.len(), 0);
    let again = harness.watch(&format!("{ALL_WIDGETS}?watch=1&resourceVersion={then}")).await;
    assert_eq!(again.collect::<Vec<_>>().await[0]["object"]["code"], 410);
}

#[tokio::test(start_paused = true)]
async fn a_crd_is_served_once_its_names_are_accepted_and_held_after_it_is_established() {
    let begin = Some("2026-01-01T00:00:00Z".parse().unwrap());
    let delays = Delays { established: std::time::Duration::from_secs(5), ..Delays::default() };
    let options = SimulatedOptions { delays, begin, ..SimulatedOptions::default() };
    let harness = Harness { server: SimulatedServer::with(options) };
    harness.server.install(&widgets().build()).unwrap();
    assert_eq!(harness.get(ALL_WIDGETS).await.0, 404);

    advance(std::time::Duration::from_millis(10)).await;
    let paged = format!("{ALL_WIDGETS}?limit=500");
    assert_eq!(harness.get(&paged).await.0, 200);
    let (code, busy) = harness.get(ALL_WIDGETS).await;
    assert_eq!((code, &busy["message"]), (429, &json!("storage is (re)initializing")));
    advance(std::time::Duration::from_millis(10)).await;
    assert_eq!(harness.get(ALL_WIDGETS).await.0, 200);
    assert_eq!(harness.get("/apis/x.test/v1").await.0, 404, "discovery waits for Established");

    harness.server.wait_established("widgets.x.test").await;
    assert_eq!(harness.get("/apis/x.test/v1").await.0, 200);
    let begin = Instant::now();
    harness.created(widget("a", json!({}))).await;
    assert_eq!(begin.elapsed().as_secs(), 2);
    let begin = Instant::now();
    harness.created(widget("b", json!({}))).await;
    assert_eq!(begin.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_a_conflict_until_it_is_free() {
    let harness = Harness::with_widgets();
    let mut other = widgets().plural("wodgets").build();
    other.metadata.name = Some("wodgets.x.test".to_owned());
    harness.server.install(&other).unwrap();
    let condition = |kind: &str| {
        let crd = harness
            .server
            .get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "wodgets.x.test")
            .unwrap();
        let all = crd["status"]["conditions"].as_array().unwrap().clone();
        let found = all.into_iter().find(|it| it["type"] == kind).unwrap();
        (found["status"].clone(), found["reason"].clone())
    };

    assert_eq!(condition("NamesAccepted"), (json!("False"), json!("ListKindConflict")));
    assert_eq!(condition("Established"), (json!("False"), json!("NotAccepted")));
    harness.server.uninstall("widgets.x.test").unwrap();
    assert_eq!(condition("NamesAccepted").0, "True");
    assert_eq!(condition("Established").0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_crd_terminates_until_its_instances_are_gone() {
    let harness = Harness::with_widgets();
    let mut held = widget("a", json!({}));
    held["metadata"]["finalizers"] = json!(["x.test/hold"]);
    harness.created(held).await;
    harness.created(widget("b", json!({}))).await;
    let watch = harness.watch(&format!("{ALL_WIDGETS}?watch=1")).await;
    let uid = || {
        let crd = harness.server.get(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "",
            "widgets.x.test",
        );
        crd.map(|crd| object::uid(&crd).to_owned())
    };
    let before = uid().unwrap();

    harness.server.uninstall("widgets.x.test").unwrap();
    assert_eq!(harness.get(ALL_WIDGETS).await.1["items"].as_array().unwrap().len(), 1);
    let (code, refused) = harness.post(WIDGETS, widget("c", json!({}))).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    let free = json!({ "metadata": { "finalizers": null } });
    assert_eq!(harness.patch(&format!("{WIDGETS}/a"), MERGE, free).await.0, 200);
    assert_eq!(harness.get(ALL_WIDGETS).await.0, 200, "checked every 5 s");
    harness.server.wait_gone("widgets.x.test").await;

    assert_eq!(harness.get(ALL_WIDGETS).await, (404, json!("404 page not found\n")));
    let events: Vec<_> = watch.collect().await;
    let received: Vec<_> = events.iter().map(type_and_name).collect();
    let expected =
        [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "a")];
    assert_eq!(received, expected);
    harness.server.install(&widgets().build()).unwrap();
    assert_ne!(uid().unwrap(), before);
}
