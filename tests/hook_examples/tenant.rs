//! `examples/tenant`.

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::support::{Example, until};

#[tokio::test]
#[ignore = "needs python3, which cargo test does not; .ci/run runs it"]
async fn python_example_limits_the_namespaces_of_a_tenant() {
    let example = Example::start("tenant", "python3", "hook.py").await;
    let tenants = example.api("examples.pilotlight.dev/v1", "Tenant", "").await;
    let quotas = async |namespace| example.api("v1", "ResourceQuota", namespace).await;
    let (tested, productive) = (quotas("gears-test").await, quotas("gears-production").await);

    example.apply("tenant.yaml").await;
    for quotas in [&tested, &productive] {
        let quota = example.has(quotas, "tenant-gears", "/spec/hard/pods", json!("10")).await;
        assert_eq!(quota.owner_references()[0].name, "gears");
    }
    let policies = example.api("networking.k8s.io/v1", "NetworkPolicy", "gears-test").await;
    example.has(&policies, "tenant-gears", "/spec/policyTypes", json!(["Ingress"])).await;
    let limited = json!(["gears-production", "gears-test"]);
    example.has(&tenants, "gears", "/status/limited", limited).await;

    let by = PatchParams::default();
    let smaller = Patch::Merge(json!({ "spec": { "namespaces": ["gears-test"], "pods": 5 } }));
    tenants.patch("gears", &by, &smaller).await.unwrap();
    example.has(&tested, "tenant-gears", "/spec/hard/pods", json!("5")).await;
    until("the other quota is deleted", async || match productive.get_opt("tenant-gears").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    example.has(&tenants, "gears", "/status/limited", json!(["gears-test"])).await;
}
