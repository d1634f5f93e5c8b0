//! Compared server, with a user of full access and a restricted one.

use kube::{
    Api, Client, Config,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use pilotlight::testing::{
    ControlPlane, TestScope,
    simulated::{AccessRule, SimulatedServer},
};
use serde_json::{Value, json};

use super::sequence::Right;

const RBAC: &str = "rbac.authorization.k8s.io";

pub(crate) struct Side {
    pub(crate) group: String,
    pub(crate) namespace: String,
    admin: Client,
    alice: Client,
    /// User name on the server.
    user: String,
    pub(crate) script: Option<SimulatedServer>,
}

impl Side {
    /// Creates the real server and the simulated one, each with the same namespace.
    pub(crate) async fn both(name: &str) -> (Self, Self) {
        let plane = ControlPlane::shared();
        let TestScope { namespace, group, .. } = &plane.scope(name).await.unwrap();
        let user = format!("alice-{namespace}");
        let real: Config = plane.user(&user, &[]).unwrap();
        let real = Self {
            group: group.clone(),
            namespace: namespace.clone(),
            admin: plane.client().unwrap(),
            alice: Client::try_from(real).unwrap(),
            user: user.clone(),
            script: None,
        };
        let server = SimulatedServer::new();
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        server.apply(object).unwrap();
        let simulated = Self {
            group: group.clone(),
            namespace: namespace.clone(),
            admin: server.client(),
            alice: server.client_as(&user),
            user,
            script: Some(server),
        };
        simulated.grant(&[]).await;
        (real, simulated)
    }

    pub(crate) fn client(&self, user: &str) -> &Client {
        match user {
            "" => &self.admin,
            "alice" => &self.alice,
            other => panic!("unknown user {other}"),
        }
    }

    /// Replaces the rights of the restricted user.
    pub(crate) async fn grant(&self, rights: &[Right]) {
        match &self.script {
            Some(server) => server.set_rbac(self.rules(rights)),
            None => {
                for namespaced in [false, true] {
                    let rights = rights.iter().filter(|it| it.namespaced == namespaced);
                    self.bind(namespaced, rights.map(|it| self.rule(it)).collect()).await;
                }
            }
        }
    }

    fn rules(&self, rights: &[Right]) -> Vec<AccessRule> {
        // Rights of every authenticated user: `system:discovery` and `system:basic-user`.
        let paths = [
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/healthz",
            "/livez",
            "/openapi",
            "/openapi/*",
            "/readyz",
            "/version",
            "/version/",
        ];
        let reviews = "selfsubjectaccessreviews.authorization.k8s.io";
        let mut rules = vec![
            AccessRule::allow().verbs(["get"]).resources(paths),
            AccessRule::allow().verbs(["create"]).resources([reviews]),
        ];
        for right in rights {
            let group = right.group.replace("$group", &self.group);
            let dot = if group.is_empty() { "" } else { "." };
            let types: Vec<_> =
                right.resources.iter().map(|it| format!("{it}{dot}{group}")).collect();
            let mut rule = AccessRule::allow().verbs(right.verbs.iter().copied());
            rule = rule.resources(types.iter().map(String::as_str));
            if right.namespaced {
                rule = rule.namespaces([self.namespace.as_str()]);
            }
            rules.push(rule);
        }
        rules.push(AccessRule::deny());
        rules.into_iter().map(|rule| rule.users([self.user.as_str()])).collect()
    }

    fn rule(&self, right: &Right) -> Value {
        let group = right.group.replace("$group", &self.group);
        json!({ "apiGroups": [group], "resources": right.resources, "verbs": right.verbs })
    }

    async fn bind(&self, namespaced: bool, rules: Vec<Value>) {
        let prefix = if namespaced { "" } else { "Cluster" };
        let (role, binding) = (format!("{prefix}Role"), format!("{prefix}RoleBinding"));
        let subjects = [json!({ "apiGroup": RBAC, "kind": "User", "name": self.user })];
        let reference = json!({ "apiGroup": RBAC, "kind": role, "name": self.user });
        self.apply(&role, namespaced, json!({ "rules": rules })).await;
        let body = json!({ "roleRef": reference, "subjects": subjects });
        self.apply(&binding, namespaced, body).await;
    }

    async fn apply(&self, kind: &str, namespaced: bool, mut object: Value) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(RBAC, "v1", kind));
        let api: Api<DynamicObject> = match namespaced {
            true => Api::namespaced_with(self.admin.clone(), &self.namespace, &resource),
            false => Api::all_with(self.admin.clone(), &resource),
        };
        object["apiVersion"] = resource.api_version.as_str().into();
        object["kind"] = kind.into();
        object["metadata"] = json!({ "name": self.user });
        let by = PatchParams::apply("differential").force();
        api.patch(&self.user, &by, &Patch::Apply(object)).await.unwrap();
    }
}
