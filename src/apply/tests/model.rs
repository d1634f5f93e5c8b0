//! Sets against a reference model: each plan equals the run that follows, and both equal the model.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::ApiResource;
use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::fixture::*;
use crate::{
    apply::{Applier, ObjectName, Set, WriteResult},
    kind::{GroupKind, Scope},
};

/// Kind and namespace of an object of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// ConfigMap beside the owner, in reach of the garbage collector.
    NearMap,
    FarMap,
    NearSecret,
    /// Widget, whose type may be absent.
    FarWidget,
}

type Key = (Place, &'static str);

/// Content of an object in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    /// Number of the owner whose member it is; `None` for an object of others.
    member_of: Option<u32>,
    value: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Apply(BTreeMap<Key, u32>),
    Clear,
    RecreateOwner,
    ServeWidgets(bool),
    RestartProgram,
    CreateForeign(Key, u32),
    /// Copies labels and annotations of the first object to a new object.
    Copy(Key, Key),
    Label(Key),
    Delete(Key),
}

impl Place {
    const ALL: [Self; 4] = [Self::NearMap, Self::FarMap, Self::NearSecret, Self::FarWidget];

    fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::NearMap | Self::FarMap => ("v1", "ConfigMap"),
            Self::NearSecret => ("v1", "Secret"),
            Self::FarWidget => ("x.test/v1", "Widget"),
        }
    }

    fn namespace(self) -> &'static str {
        if self.is_near() { "default" } else { "far" }
    }

    fn is_near(self) -> bool {
        matches!(self, Self::NearMap | Self::NearSecret)
    }

    fn name(self, name: &str) -> ObjectName {
        let (api_version, kind) = self.kind();
        let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let kind = GroupKind { group, kind: kind.to_owned() };
        ObjectName { kind, namespace: Some(self.namespace().to_owned()), name: name.to_owned() }
    }

    fn object(self, name: &str, value: u32) -> Value {
        let mut object = json!({ "metadata": { "namespace": self.namespace(), "name": name } });
        match self {
            Self::NearMap | Self::FarMap => object["data"]["v"] = value.to_string().into(),
            Self::NearSecret => {
                object["data"]["v"] = ["MA==", "MQ==", "Mg=="][value as usize].into()
            }
            Self::FarWidget => object["spec"]["v"] = value.into(),
        }
        let (api_version, kind) = self.kind();
        with_type(object, api_version, kind)
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::NearMap | Self::FarMap => ApiResource::erase::<ConfigMap>(&()),
            Self::NearSecret => ApiResource::erase::<Secret>(&()),
            Self::FarWidget => widgets().api_resource("v1"),
        }
    }

    fn add(self, set: Set, name: &str, value: u32) -> Set {
        set.dynamic(&self.resource(), Scope::Namespaced, self.object(name, value))
    }
}

/// Server with the reference of what it has.
struct Model {
    fixture: Fixture,
    objects: BTreeMap<Key, Content>,
    owner: u32,
    recorded: BTreeSet<&'static str>,
    has_widgets: bool,
}

impl Model {
    fn new() -> Self {
        let fixture = Fixture::new();
        fixture.server.install(&widgets().version("v1").build()).unwrap();
        Self {
            fixture,
            objects: BTreeMap::new(),
            owner: 0,
            recorded: BTreeSet::new(),
            has_widgets: true,
        }
    }

    fn is_served(&self, place: Place) -> bool {
        place != Place::FarWidget || self.has_widgets
    }

    async fn step(&mut self, step: Step) {
        let server = self.fixture.server.clone();
        match step {
            Step::Apply(desired) => self.apply(&desired, !desired.is_empty()).await,
            Step::Clear => self.apply(&BTreeMap::new(), false).await,
            Step::RecreateOwner => {
                server.remove("v1", "ConfigMap", "default", "owner").unwrap();
                self.fixture.create_owner();
                let is_collected =
                    |key: &Key, it: &Content| key.0.is_near() && it.member_of.is_some();
                self.objects.retain(|key, content| !is_collected(key, content));
                self.owner += 1;
                self.recorded.clear();
            }
            Step::ServeWidgets(served) => {
                let crd = widgets();
                let crd = if served { crd.version("v1") } else { crd.unserved_version("v1") };
                server.install(&crd.build()).unwrap();
                self.has_widgets = served;
            }
            Step::RestartProgram => {
                self.fixture.applier = Applier::new(server.client(), MANAGER);
            }
            Step::CreateForeign(key, value) => self.create_foreign(key, value, None).await,
            Step::Copy(from, to) => {
                let is_readable = self.is_served(from.0) && self.objects.contains_key(&from);
                if is_readable {
                    let source = self.get(from).unwrap();
                    self.create_foreign(to, 0, Some(source)).await;
                }
            }
            Step::Label(key) => {
                if self.is_served(key.0) && self.objects.contains_key(&key) {
                    let (api_version, kind) = key.0.kind();
                    let label = json!({ "metadata": {
                        "namespace": key.0.namespace(), "name": key.1, "labels": { "new": "x" },
                    } });
                    server.merge(&with_type(label, api_version, kind)).unwrap();
                }
            }
            Step::Delete(key) => {
                if self.is_served(key.0) && self.objects.remove(&key).is_some() {
                    let (api_version, kind) = key.0.kind();
                    server.remove(api_version, kind, key.0.namespace(), key.1).unwrap();
                }
            }
        }
        self.check_objects();
    }

    /// Creates an object or a copy by the field manager of the set, so that its name alone shows that
    /// it is no member.
    async fn create_foreign(&mut self, key: Key, value: u32, source: Option<Value>) {
        if !self.is_served(key.0) || self.objects.contains_key(&key) {
            return;
        }
        let mut object = key.0.object(key.1, value);
        for field in ["labels", "annotations"] {
            let copied = source.as_ref().map(|it| it["metadata"][field].clone());
            object["metadata"][field] = copied.unwrap_or_default();
        }
        create_as(&self.fixture.server, &key.0.resource(), object, MANAGER).await;
        self.objects.insert(key, Content { member_of: None, value });
    }

    fn get(&self, (place, name): Key) -> Option<Value> {
        let (api_version, kind) = place.kind();
        self.fixture.server.get(api_version, kind, place.namespace(), name).ok()
    }

    async fn apply(&mut self, desired: &BTreeMap<Key, u32>, has_objects: bool) {
        let expected = self.expect(desired);
        let set = || {
            let set = self.fixture.set();
            desired.iter().fold(set, |set, ((place, name), value)| place.add(set, name, *value))
        };
        let applier = &self.fixture.applier;
        let (plan, outcome) = if has_objects {
            (applier.plan(set()).await.unwrap(), applier.apply(set()).await.unwrap())
        } else {
            (applier.plan_clear(set()).await.unwrap(), applier.clear(set()).await.unwrap())
        };
        let verbs = |object: &ObjectName, result: &WriteResult| (object.clone(), result.verb());
        let planned = plan.objects.iter().map(|it| verbs(&it.object, &it.result));
        let done = outcome.objects.iter().map(|it| verbs(&it.object, &it.result));
        assert_eq!(done.collect::<BTreeMap<_, _>>(), expected, "run");
        assert_eq!(planned.collect::<BTreeMap<_, _>>(), expected, "plan");
    }

    /// Carries an apply out in the reference. Returns the expected results.
    fn expect(&mut self, desired: &BTreeMap<Key, u32>) -> BTreeMap<ObjectName, &'static str> {
        let mut expected = BTreeMap::new();
        let desired_kinds: BTreeSet<_> = desired.keys().map(|key| key.0.kind().1).collect();
        let kinds: BTreeSet<_> = self.recorded.union(&desired_kinds).copied().collect();
        let is_candidate =
            |it: &Self, key: &Key| kinds.contains(key.0.kind().1) && it.is_served(key.0);
        let members: Vec<(Key, Content)> = self
            .objects
            .iter()
            .filter(|(key, content)| content.member_of.is_some() && is_candidate(self, key))
            .map(|(key, content)| (*key, *content))
            .collect();
        for (&key, &value) in desired {
            let member_of = Some(self.owner);
            let verb = match self.objects.get(&key) {
                _ if !self.is_served(key.0) => "pending",
                None => "created",
                Some(Content { member_of: None, .. }) => "foreign",
                Some(content) if content.member_of != member_of => "replaced",
                Some(content) if content.value == value => "unchanged",
                Some(_) => "updated",
            };
            if !["pending", "foreign"].contains(&verb) {
                self.objects.insert(key, Content { member_of, value });
            }
            expected.insert(key.0.name(key.1), verb);
        }
        let departed = members.iter().filter(|(key, _)| !desired.contains_key(key));
        for (key, _) in departed {
            self.objects.remove(key);
            expected.insert(key.0.name(key.1), "deleted");
        }
        let served = Place::ALL.into_iter().filter(|place| self.is_served(*place));
        for place in served.collect::<Vec<_>>() {
            let kind = place.kind().1;
            if desired_kinds.contains(kind) {
                self.recorded.insert(kind);
            } else if !members.iter().any(|(key, _)| key.0.kind().1 == kind) {
                self.recorded.remove(kind);
            }
        }
        expected
    }

    /// Compares the objects of the server with those of the reference.
    fn check_objects(&self) {
        for place in Place::ALL.into_iter().filter(|place| self.is_served(*place)) {
            for name in NAMES {
                let key = (place, name);
                let found = self.get(key).map(|mut found| {
                    let wanted = |value| place.object(name, value);
                    found["metadata"] = wanted(0)["metadata"].clone();
                    let value = (0..3).find(|value| {
                        ["data", "spec"].iter().all(|it| found[it] == wanted(*value)[it])
                    });
                    value.expect("a value of the model")
                });
                let known = self.objects.get(&key).map(|content| content.value);
                assert_eq!(found, known, "{key:?}");
            }
        }
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn key() -> impl Strategy<Value = Key> {
    (select(&Place::ALL[..]), select(&NAMES[..]))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::btree_map(key(), 0..3_u32, 1..6).prop_map(Step::Apply),
        1 => Just(Step::Clear),
        2 => Just(Step::RecreateOwner),
        2 => any::<bool>().prop_map(Step::ServeWidgets),
        1 => Just(Step::RestartProgram),
        2 => (key(), 0..3_u32).prop_map(|(key, value)| Step::CreateForeign(key, value)),
        4 => (key(), key()).prop_map(|(from, to)| Step::Copy(from, to)),
        1 => key().prop_map(Step::Label),
        2 => key().prop_map(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plan_and_run_equal_the_reference(steps in prop::collection::vec(step(), 1..25)) {
        let time = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        time.block_on(async {
            let mut model = Model::new();
            for step in steps {
                model.step(step).await;
            }
        });
    }
}
