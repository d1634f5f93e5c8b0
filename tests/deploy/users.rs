//! Rights that the shipped roles add to the roles of users.

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1::ClusterRoleBinding,
};

use super::*;

/// Returns whether a user may do this with resources of the group `metacontroller.k8s.io`.
async fn may(client: &Client, user: &str, verb: &str, resource: &str) -> bool {
    let attributes = ResourceAttributes {
        group: Some("metacontroller.k8s.io".to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

#[tokio::test]
async fn users_may_read_controllers_and_none_may_write_them() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    let roles = ["view", "edit", "admin"];
    for role in roles {
        let binding = json!({
            "metadata": {"name": format!("test-{role}")},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
                "name": format!("user-of-{role}"),
            }],
        });
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }

    let all = ["compositecontrollers", "decoratorcontrollers", "controllerrevisions"];
    for role in roles {
        let user = format!("user-of-{role}");
        for resource in all {
            for verb in ["get", "list", "watch"] {
                let granted = async {
                    while !may(&client, &user, verb, resource).await {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                let granted = timeout(DEADLINE, granted).await;
                assert!(granted.is_ok(), "{role} may not {verb} {resource}");
            }
            for verb in ["create", "update", "patch", "delete", "deletecollection"] {
                let expected = role != "view" && resource == "controllerrevisions";
                let granted = async {
                    // The roles of users are filled in after each other.
                    while expected && !may(&client, &user, verb, resource).await {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    may(&client, &user, verb, resource).await
                };
                let granted = timeout(DEADLINE, granted).await;
                assert_eq!(granted, Ok(expected), "{role}: {verb} {resource}");
            }
        }
    }
    plane.stop().await;
}
