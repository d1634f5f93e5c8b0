//! The token of a service account is rotated, and the old one is refused.

use std::time::Duration;

use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use pilotlight::{
    testing::ControlPlane,
    transport::{TransportOptions, client},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Deadline for a reload of the token; much less than the remaining life of the old token when the
/// kubelet writes the next.
const READ_AGAIN: Duration = Duration::from_secs(15);

/// Time for which an API server may accept a token whose account is gone, with a margin.
const BELIEVED: Duration = Duration::from_secs(61);

/// Name that the server assigns to a client.
async fn name(client: &Client) -> Result<String, kube::Error> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    Ok(user.username.unwrap_or_default())
}

#[tokio::test]
async fn a_token_that_is_replaced_is_read_again_within_seconds() {
    let plane = ControlPlane::shared();
    let scope = plane.scope("token").await.unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(scope.client(), &scope.namespace);
    for name in ["old", "new"] {
        let account = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let old = plane.service_account_token(&scope.namespace, "old").await.unwrap();
    let new = plane.service_account_token(&scope.namespace, "new").await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &old).unwrap();
    let by_value = client(plane.token_config(&old), TransportOptions::default()).unwrap();
    let mut config = plane.token_config(&old);
    config.auth_info.token = None;
    config.auth_info.token_file = Some(file.path().display().to_string());
    let client = client(config, TransportOptions::default()).unwrap();
    assert!(name(&client).await.unwrap().ends_with(":old"));

    std::fs::write(file.path(), &new).unwrap();
    accounts.delete("old", &DeleteParams::default()).await.unwrap();

    let since = Instant::now();
    loop {
        match name(&client).await {
            Ok(name) if name.ends_with(":new") => break,
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 401 => {}
            Err(error) => panic!("{error}"),
        }
        assert!(since.elapsed() < READ_AGAIN, "the old token is still sent");
        sleep(Duration::from_millis(500)).await;
    }
    while name(&by_value).await.is_ok() {
        assert!(since.elapsed() < BELIEVED, "the old token is still accepted");
        sleep(Duration::from_millis(500)).await;
    }
}
