//! Rights of users on controllers and revisions.

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1::ClusterRoleBinding,
};

use super::{manifests::component, *};

const ALL: [&str; 3] = ["compositecontrollers", "decoratorcontrollers", "controllerrevisions"];
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Roles of users that each cluster has.
const ROLES: [&str; 3] = ["view", "edit", "admin"];

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

/// Waits until a user may do this.
async fn granted(client: &Client, user: &str, verb: &str, resource: &str) {
    let granted = async {
        while !may(client, user, verb, resource).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let granted = timeout(DEADLINE, granted).await;
    assert!(granted.is_ok(), "{user} may not {verb} {resource}");
}

/// Gives a role to the user `user-of-ROLE`.
async fn bind(client: &Client, role: &str) -> String {
    let user = format!("user-of-{role}");
    let binding = json!({
        "metadata": {"name": format!("test-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    user
}

/// Adds a right to the roles of the cluster, and waits until their users have it. Then they have all
/// rights of roles that were applied before.
async fn roles_are_filled(client: &Client) {
    let labels = ROLES.map(|role| format!("rbac.authorization.k8s.io/aggregate-to-{role}"));
    let labels: serde_json::Map<_, _> =
        labels.into_iter().map(|label| (label, json!("true"))).collect();
    let marker = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "marker", "labels": labels},
        "rules": [{
            "apiGroups": ["metacontroller.k8s.io"], "resources": ["markers"], "verbs": ["get"],
        }],
    });
    apply_object(client, marker).await;
    for role in ROLES {
        granted(client, &format!("user-of-{role}"), "get", "markers").await;
    }
}

/// Each verb with each type.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.into_iter()
        .flat_map(|resource| READ.into_iter().chain(WRITE).map(move |verb| (verb, resource)))
}

#[tokio::test]
async fn users_have_rights_on_controllers_only_by_the_roles_for_it() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()) {
        apply(&client, &path).await;
    }
    for role in ROLES {
        bind(&client, role).await;
    }
    let viewer = bind(&client, "pilotlight-view").await;
    let editor = bind(&client, "pilotlight-edit").await;

    roles_are_filled(&client).await;

    for role in ROLES {
        let user = format!("user-of-{role}");
        for (verb, resource) in pairs() {
            assert!(!may(&client, &user, verb, resource).await, "{role} may {verb} {resource}");
        }
    }
    granted(&client, &viewer, "get", ALL[0]).await;
    granted(&client, &editor, "get", ALL[0]).await;
    for (verb, resource) in pairs() {
        let reads = READ.contains(&verb);
        assert_eq!(may(&client, &viewer, verb, resource).await, reads, "{verb} {resource}");
        let edits = reads || resource != "controllerrevisions";
        assert_eq!(may(&client, &editor, verb, resource).await, edits, "{verb} {resource}");
    }
    plane.stop().await;
}

#[tokio::test]
async fn component_adds_the_rights_of_users_that_metacontroller_adds() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let client = plane.client().unwrap();
    for path in crds().into_iter().chain(base()).chain(component()) {
        apply(&client, &path).await;
    }
    for role in ROLES {
        bind(&client, role).await;
    }

    roles_are_filled(&client).await;

    for role in ROLES {
        let user = format!("user-of-{role}");
        for resource in ALL {
            for verb in READ {
                granted(&client, &user, verb, resource).await;
            }
            for verb in WRITE {
                let expected = role != "view" && resource == "controllerrevisions";
                if expected {
                    granted(&client, &user, verb, resource).await;
                }
                let allowed = may(&client, &user, verb, resource).await;
                assert_eq!(allowed, expected, "{role}: {verb} {resource}");
            }
        }
    }
    plane.stop().await;
}
