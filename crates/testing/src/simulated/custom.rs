//! CustomResourceDefinitions, as the real server treats them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    object,
    refusal::{FieldFault, Refusal},
    resource::{Scale, SimulatedResource, qualified},
    schema,
};

pub(super) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Type defined by a CRD.
#[derive(Debug)]
pub(super) struct Custom {
    pub(super) established: bool,
    pub(super) names_accepted: bool,
    /// True while instances cannot be created.
    pub(super) terminating: bool,
    /// Start of the second in which it was established.
    pub(super) established_at: Duration,
    pub(super) versions: BTreeMap<String, Arc<SimulatedResource>>,
    /// Storage version, as `group/version`.
    pub(super) stored: String,
    /// Time at which its watch cache is filled; `None` before the first request.
    pub(super) cache_ready: Option<Duration>,
    pub(super) schemas: BTreeMap<String, Arc<Value>>,
}

impl Custom {
    /// Returns the type at a version, if that is served. The real server does not wait for
    /// `Established`.
    pub(super) fn served(&self, version: &str) -> Option<Arc<SimulatedResource>> {
        let served = self.names_accepted || self.established;
        self.versions.get(version).filter(|_| served).cloned()
    }

    pub(super) fn all_served(&self) -> Vec<Arc<SimulatedResource>> {
        let served = self.names_accepted || self.established;
        self.versions.values().filter(|_| served).cloned().collect()
    }

    /// Versions in discovery, which waits for `Established`.
    pub(super) fn discovered(&self) -> Vec<Arc<SimulatedResource>> {
        self.versions.values().filter(|_| self.established).cloned().collect()
    }

    pub(super) fn forget_cache(&mut self) {
        self.cache_ready = None;
    }

    pub(super) fn of(crd: &Value) -> Self {
        let spec = &crd["spec"];
        let names = &crd["status"]["acceptedNames"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().map(text).collect()
        };
        let group = text(&spec["group"]);
        let plural = text(&spec["names"]["plural"]);
        let versions = spec["versions"].as_array().into_iter().flatten();
        let stored = versions.clone().find(|version| version["storage"] == true);
        let stored = stored.map(|version| text(&version["name"])).unwrap_or_default();
        let served: Vec<_> =
            versions.filter(|version| version["served"].as_bool() == Some(true)).collect();
        let resource = |version: &Value| {
            let subresources = &version["subresources"];
            let scale = subresources["scale"].as_object().map(|scale| {
                let pointer = |field: &str| scale.get(field).and_then(Value::as_str).map(pointer);
                Scale {
                    spec: pointer("specReplicasPath").unwrap_or_default(),
                    status: pointer("statusReplicasPath").unwrap_or_default(),
                    selector: pointer("labelSelectorPath"),
                }
            });
            SimulatedResource {
                group: group.clone(),
                version: text(&version["name"]),
                plural: plural.clone(),
                singular: text(&names["singular"]),
                kind: text(&names["kind"]),
                list_kind: text(&names["listKind"]),
                short_names: texts(&names["shortNames"]),
                categories: texts(&names["categories"]),
                namespaced: spec["scope"] == "Namespaced",
                status: subresources["status"].is_object(),
                scale,
                generation: true,
                custom: true,
                returns_deleted: false,
                selectable: &[],
                storage: qualified(&group, &plural).into(),
            }
        };
        let schema = |version: &&Value| {
            let schema = version["schema"]["openAPIV3Schema"].clone();
            (text(&version["name"]), Arc::new(schema))
        };
        Self {
            established: is_true(crd, "Established"),
            names_accepted: is_true(crd, "NamesAccepted"),
            terminating: is_true(crd, "Terminating"),
            stored: format!("{group}/{stored}"),
            established_at: Duration::ZERO,
            schemas: served.iter().map(schema).collect(),
            versions: served
                .into_iter()
                .map(|version| (text(&version["name"]), Arc::new(resource(version))))
                .collect(),
            cache_ready: None,
        }
    }
}

/// Converts a path such as `.spec.replicas` to a JSON pointer.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

/// Served versions with their group.
pub(super) fn group_versions(crd: &Value) -> BTreeSet<(&str, &str)> {
    let group = crd["spec"]["group"].as_str().unwrap_or_default();
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let served = versions.filter(|version| version["served"].as_bool() == Some(true));
    served.map(|version| (version["name"].as_str().unwrap_or_default(), group)).collect()
}

pub(super) fn condition<'a>(crd: &'a Value, kind: &str) -> Option<&'a Value> {
    crd["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == kind)
}

pub(super) fn is_true(crd: &Value, kind: &str) -> bool {
    condition(crd, kind).is_some_and(|it| it["status"] == "True")
}

/// Sets the server's defaults in a CRD.
pub(super) fn default_crd(crd: &mut Value) {
    let names = object::fields(&mut crd["spec"]["names"]);
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    names.entry("singular").or_insert_with(|| kind.to_lowercase().into());
    names.entry("listKind").or_insert_with(|| format!("{kind}List").into());
    let spec = object::member(crd, "spec");
    spec.entry("conversion").or_insert_with(|| json!({ "strategy": "None" }));
    let stored: Vec<Value> = crd["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let status = object::member(crd, "status");
    status.entry("acceptedNames").or_insert_with(|| json!({ "plural": "", "kind": "" }));
    let all = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.extend(stored.into_iter().filter(|it| !all.contains(it)).collect::<Vec<_>>());
    }
}

/// Refuses a CRD with features that are not simulated.
pub(super) fn refuse_unsupported(crd: &Value) -> Result<(), Refusal> {
    if crd["spec"]["conversion"]["strategy"] == "Webhook" {
        return Err(Refusal::not_simulated("spec.conversion.strategy: Webhook"));
    }
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten().enumerate();
    for (at, version) in versions {
        let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
        if let Some(path) =
            schema::unsupported_keyword(&version["schema"]["openAPIV3Schema"], &path)
        {
            return Err(Refusal::not_simulated(path));
        }
    }
    Ok(())
}

/// Validates the fields of a CRD that the simulation depends on.
pub(super) fn validate_crd(crd: &Value, before: Option<&Value>) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let spec = &crd["spec"];
    for field in ["group", "scope"] {
        if spec[field].as_str().is_none_or(str::is_empty) {
            faults.push(FieldFault::required(&format!("spec.{field}"), ""));
        }
    }
    for field in ["plural", "kind"] {
        if spec["names"][field].as_str().is_none_or(str::is_empty) {
            faults.push(FieldFault::required(&format!("spec.names.{field}"), ""));
        }
    }
    let scopes = ["Cluster".to_owned(), "Namespaced".to_owned()];
    if spec["scope"].as_str().is_some_and(|it| !it.is_empty() && !scopes.iter().any(|s| s == it)) {
        faults.push(FieldFault::not_supported("spec.scope", &spec["scope"], &scopes));
    }
    let wanted = format!(
        "{}.{}",
        spec["names"]["plural"].as_str().unwrap_or_default(),
        spec["group"].as_str().unwrap_or_default()
    );
    if faults.is_empty() && object::name(crd) != wanted {
        let why = "must be spec.names.plural+\".\"+spec.group";
        faults.push(FieldFault::invalid("metadata.name", &object::name(crd).into(), why));
    }
    let versions = spec["versions"].as_array().cloned().unwrap_or_default();
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        let names: Vec<_> = versions.iter().map(|version| version["name"].clone()).collect();
        faults.push(FieldFault::invalid("spec.versions", &names.into(), why));
    }
    for (at, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let field = format!("spec.versions[{at}].schema.openAPIV3Schema");
            faults.push(FieldFault::required(&field, "schemas are required"));
        }
    }
    if let Some(before) = before
        && is_true(before, "Established")
    {
        for path in ["/spec/scope", "/spec/names/kind", "/spec/group", "/spec/names/plural"] {
            if crd.pointer(path) != before.pointer(path) {
                let field = path.trim_start_matches('/').replace('/', ".");
                let value = crd.pointer(path).cloned().unwrap_or_default();
                faults.push(FieldFault::invalid(&field, &value, "field is immutable"));
            }
        }
    }
    faults
}
