//! `examples/indexed-job`.

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::json;

use super::{deleted, gone};
use crate::support::{Example, until};

/// Waits until exactly these pods exist.
async fn pods(api: &Api<DynamicObject>, expected: &[&str]) {
    let of_job = ListParams::default().labels("app=print");
    until(&format!("the pods are {expected:?}"), async || {
        let listed = api.list(&of_job).await.map_err(|error| error.to_string())?;
        let mut names: Vec<_> = listed.iter().map(ResourceExt::name_any).collect();
        names.sort_unstable();
        if names == expected { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs python3, which cargo test does not; .ci/run runs it"]
async fn python_example_runs_pods_by_index_and_deletes_them_in_order() {
    let example = Example::start("indexed-job", "python3", "hook.py").await;
    let api = example.api("v1", "Pod", "default").await;
    let jobs = example.api("examples.pilotlight.dev/v1", "IndexedJob", "default").await;
    let phase = async |pod, phase| example.set_status(&api, pod, json!({ "phase": phase })).await;

    example.apply("job.yaml").await;
    pods(&api, &["print-0", "print-1"]).await;
    let pod = api.get("print-1").await.unwrap();
    let environment = &pod.data["spec"]["containers"][0]["env"];
    assert_eq!(*environment, json!([{ "name": "JOB_INDEX", "value": "1" }]));
    example.has(&jobs, "print", "/status/active", json!(2)).await;

    phase("print-0", "Succeeded").await;
    pods(&api, &["print-0", "print-1", "print-2"]).await;
    let failed = pod.uid();
    phase("print-1", "Failed").await;
    until("the failed pod is replaced", async || match api.get_opt("print-1").await {
        Ok(Some(pod)) if pod.uid() != failed => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    phase("print-1", "Succeeded").await;
    phase("print-2", "Succeeded").await;
    pods(&api, &["print-0", "print-1", "print-2", "print-3"]).await;
    phase("print-3", "Succeeded").await;
    let complete = json!({
        "observedGeneration": 1, "active": 0, "succeeded": 4, "failed": 0, "complete": true,
    });
    example.has(&jobs, "print", "/status", complete).await;

    let since = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    jobs.delete("print", &DeleteParams::default()).await.unwrap();
    gone(&jobs, "print").await;
    let expected = ["print-3", "print-2", "print-1", "print-0"];
    assert_eq!(deleted(&api, "app=print", &since, 4).await, expected);
}
