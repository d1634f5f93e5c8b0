//! Rights of the harness's user.

use std::{collections::BTreeMap, sync::Mutex};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use pilotlight::testing::simulated::{AccessRule, SimulatedServer};
use serde_json::json;

use super::{Harness, Server};

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

    /// Some verbs on one resource of one group.
    pub(crate) fn of(group: &str, resource: &str, verbs: &[&'static str]) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned(), verbs: verbs.to_vec() }
    }

    pub(crate) fn to_watch(group: &str, resource: &str) -> Self {
        let verbs = vec!["get", "list", "watch"];
        Self { group: group.to_owned(), resource: resource.to_owned(), verbs }
    }
}

/// Rights granted to one user, on either server.
#[derive(Debug)]
pub(super) struct Rights {
    user: String,
    simulated: Option<SimulatedServer>,
    /// True if the user has every right.
    unbounded: bool,
    granted: Mutex<BTreeMap<String, Vec<Rule>>>,
}

impl Rights {
    pub(super) fn new(server: &Server<'_>, user: &str, groups: &[&str]) -> Self {
        let rights = Self {
            user: user.to_owned(),
            simulated: server.script().cloned(),
            unbounded: !groups.is_empty(),
            granted: Mutex::default(),
        };
        rights.apply_to_simulation();
        rights
    }

    pub(super) async fn grant(&self, client: Client, name: &str, rules: &[Rule]) {
        self.granted.lock().unwrap().insert(name.to_owned(), rules.to_vec());
        match self.simulated {
            Some(_) => self.apply_to_simulation(),
            None => grant(client, &self.user, name, rules).await,
        }
    }

    async fn revoke(&self, client: Client, name: &str) {
        self.granted.lock().unwrap().remove(name).expect("the rights were granted");
        match self.simulated {
            Some(_) => self.apply_to_simulation(),
            None => revoke(client, &self.user, name).await,
        }
    }

    /// Sends the rights to the simulated server, whose rules are a list in which the first match
    /// decides.
    fn apply_to_simulation(&self) {
        let Some(server) = &self.simulated else { return };
        if self.unbounded {
            return;
        }
        let user = self.user.as_str();
        // Same rule as in `system:discovery`.
        let mut rules = vec![AccessRule::allow().verbs(["get"]).resources(["/*"])];
        for Rule { group, resource, verbs } in self.granted.lock().unwrap().values().flatten() {
            let dot = if group.is_empty() { "" } else { "." };
            let what = format!("{resource}{dot}{group}");
            let rule = AccessRule::allow().verbs(verbs.iter().copied());
            rules.push(rule.resources([what.as_str()]));
        }
        rules.push(AccessRule::deny());
        server.set_rbac(rules.into_iter().map(|rule| rule.users([user])));
    }
}

impl Harness<'_> {
    /// Grants rights to the user, under a name by which they can be revoked.
    pub(crate) async fn grant(&self, name: &str, rules: &[Rule]) {
        self.rights.grant(self.scope.client(), name, rules).await;
    }

    pub(crate) async fn revoke(&self, name: &str) {
        self.rights.revoke(self.scope.client(), name).await;
    }
}

/// Revokes the rights of a user on the control plane that have this name.
pub(crate) async fn revoke(client: Client, user: &str, name: &str) {
    let name = format!("{user}-{name}");
    let by = DeleteParams::default();
    Api::<ClusterRoleBinding>::all(client.clone()).delete(&name, &by).await.unwrap();
    Api::<ClusterRole>::all(client).delete(&name, &by).await.unwrap();
}

/// Grants rights to a user on the control plane, under a name by which they can be revoked.
pub(crate) async fn grant(client: Client, user: &str, name: &str, rules: &[Rule]) {
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
