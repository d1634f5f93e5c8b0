//! Sets of objects on the real API server: managed fields, dry runs, immutable fields, and typed
//! lists, which the simulated server does not merge.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use pilotlight::{
    apply::{Adopt, Applier, ObjectName, Outcome, Set},
    kind::Scope,
    testing::{ControlPlane, CrdBuilder, TestScope},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Field manager of the tests.
const MANAGER: &str = "shop";

/// Namespace with an owner of sets.
struct Shop {
    scope: TestScope,
    owner: ConfigMap,
    applier: Applier,
}

impl Shop {
    async fn open(name: &str) -> Self {
        let scope = ControlPlane::shared().scope(name).await.unwrap();
        let applier = Applier::new(scope.client(), MANAGER);
        let mut shop = Self { scope, owner: ConfigMap::default(), applier };
        shop.owner = shop.create(&shop.object("owner", json!({}))).await;
        shop
    }

    /// Object of the namespace with these fields.
    fn object<K: DeserializeOwned>(&self, name: &str, fields: Value) -> K {
        let mut object = fields;
        object["metadata"]["namespace"] = self.scope.namespace.as_str().into();
        object["metadata"]["name"] = name.into();
        serde_json::from_value(object).unwrap()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.scope.client(), &self.scope.namespace)
    }

    async fn create<K>(&self, object: &K) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        self.api::<K>().create(&PostParams::default(), object).await.unwrap()
    }

    fn set(&self) -> Set {
        Set::of(&self.owner, "set")
    }

    fn map(&self, name: &str, value: &str) -> ConfigMap {
        self.object(name, json!({ "data": { "v": value } }))
    }

    fn deployment(&self, image: &str, ports: &[u16]) -> Deployment {
        let ports: Vec<Value> = ports.iter().map(|it| json!({ "containerPort": it })).collect();
        self.object(
            "web",
            json!({ "spec": {
                "replicas": 0,
                "selector": { "matchLabels": { "app": "web" } },
                "strategy": { "rollingUpdate": { "maxSurge": 1 } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [
                        { "name": "main", "image": image, "ports": ports, "resources": {} },
                    ] },
                },
            } }),
        )
    }

    /// Set with objects of several kinds.
    fn workload(&self, image: &str, ports: &[u16]) -> Set {
        let service: Service =
            self.object("web", json!({ "spec": { "ports": [{ "port": 80 }], "selector": {} } }));
        let secret: Secret = self.object("key", json!({ "stringData": { "k": "hush" } }));
        self.set().object(self.deployment(image, ports)).object(service).object(secret)
    }

    async fn apply(&self, set: Set) -> Vec<String> {
        self.outcome(set).await.objects.iter().map(|it| self.shown(&it.to_string())).collect()
    }

    async fn outcome(&self, set: Set) -> Outcome {
        self.applier.apply(set).await.unwrap()
    }

    /// Lines of a plan.
    async fn plan(&self, set: Set) -> Vec<String> {
        let plan = self.applier.plan(set).await.unwrap().to_string();
        plan.lines().map(|line| self.shown(line)).collect()
    }

    /// Text without the name of the namespace.
    fn shown(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.scope.namespace), "")
    }
}

#[tokio::test]
async fn objects_of_several_kinds_are_unchanged_after_a_restart_and_updated_in_place() {
    let mut shop = Shop::open("set-workload").await;

    let created = shop.apply(shop.workload("main:1", &[80, 81])).await;

    let objects = ["Deployment.apps web", "Service web", "Secret key"];
    assert_eq!(created, objects.map(|it| format!("created {it}")));
    let unchanged = objects.map(|it| format!("unchanged {it}"));
    assert_eq!(shop.apply(shop.workload("main:1", &[80, 81])).await, unchanged);
    shop.applier = Applier::new(shop.scope.client(), MANAGER);
    assert_eq!(shop.plan(shop.workload("main:1", &[80, 81])).await, unchanged);
    assert_eq!(shop.apply(shop.workload("main:1", &[80, 81])).await, unchanged);

    let plan = shop.plan(shop.workload("main:2", &[80])).await;
    let updated = shop.apply(shop.workload("main:2", &[80])).await;

    assert_eq!(updated[0], "updated Deployment.apps web");
    assert_eq!(plan[0], updated[0]);
    assert!(plan[1..].iter().any(|it| it.contains("image: \"main:1\" -> \"main:2\"")), "{plan:?}");
    let live = shop.api::<Deployment>().get("web").await.unwrap();
    let container = &live.spec.unwrap().template.spec.unwrap().containers[0];
    assert_eq!(container.ports.as_ref().unwrap().len(), 1, "a port that left is removed");
    let less = || shop.set().object(shop.deployment("main:2", &[80]));
    let expected = [
        "unchanged Deployment.apps web",
        "deleted Service web: it left the set",
        "deleted Secret key: it left the set",
    ];
    assert_eq!(shop.plan(less()).await, expected);
    assert_eq!(shop.apply(less()).await, expected);
}

#[tokio::test]
async fn copy_loses_nothing_and_an_existing_object_is_adopted_only_on_demand() {
    let shop = Shop::open("set-proof").await;
    let one = || shop.set().object(shop.map("a", "1"));
    shop.apply(one().object(shop.map("b", "1"))).await;
    let mut copy = shop.api::<ConfigMap>().get("b").await.unwrap();
    let copied = |name: &str, member: &ConfigMap| {
        let mut copy = shop.map(name, "copy");
        copy.metadata.labels = member.metadata.labels.clone();
        copy.metadata.annotations = member.metadata.annotations.clone();
        copy
    };
    shop.create(&copied("copy", &copy)).await;
    shop.create(&shop.map("free", "1")).await;

    let left = shop.apply(one().object(shop.map("free", "1"))).await;

    let foreign = "foreign ConfigMap free: it exists, has no owner and is not adopted";
    assert_eq!(left, ["unchanged ConfigMap a", foreign, "deleted ConfigMap b: it left the set"]);
    copy = shop.api().get("copy").await.unwrap();
    assert_eq!(copy.data.unwrap()["v"], "copy");
    let adopted = one().object(shop.map("free", "1")).adopt(Adopt::Unowned);
    assert_eq!(shop.apply(adopted).await[1], "adopted ConfigMap free");
    assert_eq!(shop.apply(one()).await[1], "deleted ConfigMap free: it left the set");
}

#[tokio::test]
async fn field_of_another_manager_is_contested_and_an_immutable_one_replaced_on_demand() {
    let shop = Shop::open("set-fields").await;
    shop.apply(shop.set().object(shop.deployment("main:1", &[80])).object(shop.map("a", "1")))
        .await;
    let edit = json!({ "spec": { "replicas": 0, "template": { "spec": { "containers": [
        { "name": "main", "image": "edited" },
    ] } } } });
    let by = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..Default::default() };
    shop.api::<Deployment>().patch("web", &by, &Patch::Strategic(edit)).await.unwrap();
    let set = || shop.set().object(shop.deployment("main:2", &[80])).object(shop.map("a", "1"));

    let contested = shop.apply(set()).await;

    let field = ".spec.template.spec.containers[name=\"main\"].image of kubectl-edit";
    let expected = format!("contested Deployment.apps web: {field}");
    assert_eq!(contested, [expected.as_str(), "unchanged ConfigMap a"]);
    assert_eq!(shop.plan(set()).await[0], expected);

    let mut immutable = shop.map("a", "1");
    immutable.immutable = Some(true);
    assert_eq!(shop.apply(shop.set().object(immutable)).await[0], "updated ConfigMap a");
    let mut other = shop.map("a", "2");
    other.immutable = Some(true);
    let refused = shop.apply(shop.set().object(other.clone())).await;
    assert!(refused[0].starts_with("failed ConfigMap a: applying ConfigMap a: "), "{refused:?}");
    let replaced = || shop.set().object(other.clone()).replace_immutable();
    let expected = "replaced ConfigMap a: a field is immutable";
    assert_eq!(shop.plan(replaced()).await, [expected]);
    assert_eq!(shop.apply(replaced()).await, [expected]);
    assert_eq!(shop.apply(replaced()).await, ["unchanged ConfigMap a"]);
}

#[tokio::test]
async fn namesake_of_the_owner_inherits_nothing_and_an_absent_type_is_pending() {
    let mut shop = Shop::open("set-namesake").await;
    shop.apply(shop.set().object(shop.map("a", "1"))).await;
    let before = shop.api::<ConfigMap>().get("a").await.unwrap().metadata.uid;
    shop.api::<ConfigMap>().delete("owner", &DeleteParams::background()).await.unwrap();
    shop.owner = shop.create(&shop.object("owner", json!({}))).await;
    let widgets = CrdBuilder::new("absent.sets.test", "Widget");
    let widget = json!({ "metadata": { "namespace": shop.scope.namespace, "name": "w" } });
    let set = || {
        let set = shop.set().object(shop.map("a", "1"));
        set.dynamic(&widgets.api_resource("v1"), Scope::Namespaced, widget.clone())
    };

    let outcome = shop.outcome(set()).await;

    // The garbage collector may delete the old object first.
    let result = outcome.of(&ObjectName::of(&shop.map("a", "1"))).unwrap();
    let shown = format!("{result:?}");
    assert!(shown.starts_with("Replaced") || shown == "Created", "{shown}");
    assert_ne!(shop.api::<ConfigMap>().get("a").await.unwrap().metadata.uid, before);
    assert_eq!(outcome.pending.len(), 1);
    assert!(!outcome.is_complete());
}
