//! What the rig's user may do.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::Rig;

/// All verbs on one resource of one group.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    group: String,
    resource: String,
    verbs: Vec<&'static str>,
}

impl Rule {
    pub(crate) fn all_of(group: &str, resource: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned(), verbs: vec!["*"] }
    }

    pub(crate) fn to_watch(group: &str, resource: &str) -> Self {
        let verbs = vec!["get", "list", "watch"];
        Self { group: group.to_owned(), resource: resource.to_owned(), verbs }
    }
}

impl Rig<'_> {
    /// Gives the user rights, under a name by which they can be revoked.
    pub(crate) async fn grant(&self, name: &str, rules: &[Rule]) {
        grant(self.scope.client(), &self.user, name, rules).await;
    }

    pub(crate) async fn revoke(&self, name: &str) {
        let bindings = Api::<ClusterRoleBinding>::all(self.scope.client());
        let name = format!("{}-{name}", self.user);
        bindings.delete(&name, &DeleteParams::default()).await.unwrap();
        Api::<ClusterRole>::all(self.scope.client())
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
    }
}

pub(super) async fn grant(client: Client, user: &str, name: &str, rules: &[Rule]) {
    let name = format!("{user}-{name}");
    let rules: Vec<_> = rules
        .iter()
        .map(|Rule { group, resource, verbs }| {
            json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
        })
        .collect();
    let role = serde_json::from_value(json!({ "metadata": { "name": name }, "rules": rules }));
    let roles = Api::<ClusterRole>::all(client.clone());
    roles.create(&PostParams::default(), &role.unwrap()).await.unwrap();
    let binding = serde_json::from_value(json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    }));
    let bindings = Api::<ClusterRoleBinding>::all(client);
    bindings.create(&PostParams::default(), &binding.unwrap()).await.unwrap();
}
