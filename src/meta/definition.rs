//! Definition of a declared controller: its object parsed once, validated, and executable.
//!
//! All problems are collected, each with its field. An object that asks for an unsupported feature
//! is rejected as a whole and never executed in part.

mod rejected;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde_json::Value;

pub(super) use self::rejected::Problems;
pub use self::rejected::{Problem, Rejected};
use super::{
    CompositeControllerSpec, HookKind, HookRule, MAX_CHILDREN, Selector, finalizer,
    hook_rule::hook_rule, selection, sent_controller,
};
use crate::{kind::TypeRef, redaction};

/// Annotation of a CompositeController: length of a chain of owners of the parent type at which a
/// parent gets no more children of that type; [`OWNER_DEPTH`] without it.
pub const MAX_OWNER_DEPTH: &str = "pilotlight.dev/max-owner-depth";
/// Default of [`MAX_OWNER_DEPTH`].
pub const OWNER_DEPTH: usize = 16;
/// Upper bound of [`MAX_OWNER_DEPTH`]: each sync reads as many objects.
const DEEPEST: usize = 1000;

/// Shortest resync period.
const SHORTEST_RESYNC: Duration = Duration::from_secs(1);

/// A CompositeController that can be executed.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Name of the object.
    pub name: String,
    /// The parent type.
    pub parent: TypeRef,
    /// Selects the parents that are synced.
    pub parent_selector: Selector,
    /// True if a change of nothing but a parent's status does not sync it.
    pub ignore_status_changes: bool,
    /// Types of children.
    pub children: Vec<ChildRule>,
    /// True if children are selected by a label with the parent's uid.
    pub generate_selector: bool,
    /// Time after which every parent is synced again.
    pub resync_period: Option<Duration>,
    /// Length of a chain of owners of the parent type at which a parent gets no more children of
    /// that type.
    pub max_owner_depth: usize,
    /// Maximum number of children in one answer; [`MAX_CHILDREN`] when parsed.
    pub max_children: usize,
    /// True if children are recreated without dry runs; false when parsed.
    pub recreates_at_once: bool,
    /// The sync hook; without it, nothing is done for a parent until it is finalized.
    pub sync: Option<HookRule>,
    /// The finalize hook; without it, parents get no finalizer.
    pub finalize: Option<HookRule>,
    /// The customize hook; without it, no objects are related to parents.
    pub customize: Option<HookRule>,
    /// The accepted object with an empty status, which hooks receive as `controller`.
    pub controller: Bytes,
}

/// Type of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildRule {
    /// The type.
    pub type_ref: TypeRef,
    /// Update method of existing children.
    pub strategy: UpdateMethod,
    /// True if the controller also runs while the type is missing.
    pub optional: bool,
}

/// Update method of a child that exists and differs from the desired one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateMethod {
    /// Not updated; created again after it was deleted.
    #[default]
    OnDelete,
    /// Deleted by this sync, created by the next one.
    Recreate,
    /// Updated without being deleted.
    InPlace,
}

impl Definition {
    /// Reads a CompositeController.
    ///
    /// # Errors
    ///
    /// [`Rejected`] names every field that prevents execution.
    pub fn parse(object: &Bytes) -> Result<Self, Rejected> {
        let value: Value =
            serde_json::from_slice(object).map_err(|error| Rejected::Undecodable {
                field: "object".to_owned(),
                message: redaction::decoding(error),
            })?;
        let name = match value.pointer("/metadata/name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => {
                return Err(Rejected::Undecodable {
                    field: "metadata.name".to_owned(),
                    message: "must be a non-empty string".to_owned(),
                });
            }
        };
        let Some(raw) = value.get("spec").filter(|spec| spec.is_object()) else {
            return Err(Rejected::Undecodable {
                field: "spec".to_owned(),
                message: "must be an object".to_owned(),
            });
        };
        let spec: CompositeControllerSpec =
            serde_path_to_error::deserialize(raw).map_err(|error| {
                let path = error.path().to_string();
                Rejected::Undecodable {
                    field: if path == "." { "spec".to_owned() } else { format!("spec.{path}") },
                    message: redaction::decoding(error.inner()),
                }
            })?;
        let mut problems = Problems::default();
        let depth = max_owner_depth(&value, &mut problems);
        let read = Self::read(name, &spec, sent_controller::encode(value), &mut problems);
        let read = read.map(|definition| Self { max_owner_depth: depth, ..definition });
        match (read, problems.rejection()) {
            (Some(definition), None) => Ok(definition),
            (_, Some(rejected)) => Err(rejected),
            // Each part that cannot be read has reported a problem.
            (None, None) => Err(Rejected::Invalid(Vec::new())),
        }
    }

    fn read(
        name: String,
        spec: &CompositeControllerSpec,
        controller: Bytes,
        problems: &mut Problems,
    ) -> Option<Self> {
        let parent_resource = &spec.parent_resource;
        let parent = type_ref(
            "spec.parentResource",
            &parent_resource.api_version,
            &parent_resource.resource,
            problems,
        );
        let parent_selector = match &parent_resource.label_selector {
            None => Some(Selector::default()),
            Some(selector) => selection::parse(selector)
                .map_err(|(field, message)| {
                    problems.invalid(format!("spec.parentResource.labelSelector.{field}"), message);
                })
                .ok(),
        };
        let children = child_rules(spec, problems);
        let hooks = spec.hooks.clone().unwrap_or_default();
        let sync = hooks
            .sync
            .as_ref()
            .map(|hook| hook_rule("spec.hooks.sync", hook, &spec.endpoint_configs, problems));
        let finalize = hooks
            .finalize
            .as_ref()
            .map(|hook| hook_rule("spec.hooks.finalize", hook, &spec.endpoint_configs, problems));
        let customize = hooks
            .customize
            .as_ref()
            .map(|hook| hook_rule("spec.hooks.customize", hook, &spec.endpoint_configs, problems));
        if sync.is_none() && finalize.is_none() {
            problems.invalid("spec.hooks.sync", "is required, unless finalize is declared");
        }
        if finalize.is_some() && name.len() > finalizer::MAX_COMPOSITE_NAME {
            problems.invalid(
                "metadata.name",
                format!(
                    "has more than {} characters, which hooks.finalize needs for the name of the \
                 finalizer",
                    finalizer::MAX_COMPOSITE_NAME
                ),
            );
        }
        Some(Self {
            name,
            parent: parent?,
            parent_selector: parent_selector?,
            ignore_status_changes: parent_resource.ignore_status_changes.unwrap_or_default(),
            children,
            generate_selector: spec.generate_selector.unwrap_or_default(),
            resync_period: spec
                .resync_period_seconds
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
                .map(|period| period.max(SHORTEST_RESYNC)),
            max_owner_depth: OWNER_DEPTH,
            max_children: MAX_CHILDREN,
            recreates_at_once: false,
            sync: inverted(sync)?,
            finalize: inverted(finalize)?,
            customize: inverted(customize)?,
            controller,
        })
    }

    /// Returns the rule of a hook, if it is declared.
    pub(crate) fn hook(&self, kind: HookKind) -> Option<&HookRule> {
        match kind {
            HookKind::Sync => self.sync.as_ref(),
            HookKind::Finalize => self.finalize.as_ref(),
            HookKind::Customize => self.customize.as_ref(),
        }
    }

    /// Returns whether both declare the same controller. Defaults that the server fills in count as
    /// written.
    pub(crate) fn declares_same(&self, other: &Self) -> bool {
        self.max_owner_depth == other.max_owner_depth
            && same_spec(&self.controller, &other.controller)
    }

    /// Sets the resync period, unless the object declares one.
    pub(crate) fn or_resync(mut self, period: Option<Duration>) -> Self {
        let period = period.map(|period| period.max(SHORTEST_RESYNC));
        self.resync_period = self.resync_period.or(period);
        self
    }
}

/// Returns a declared rule; `None` if it is declared and cannot be read.
fn inverted(rule: Option<Option<HookRule>>) -> Option<Option<HookRule>> {
    match rule {
        None => Some(None),
        Some(None) => None,
        Some(Some(rule)) => Some(Some(rule)),
    }
}

/// Returns whether two accepted objects declare the same controller. Defaults that the server fills
/// in count as written.
fn same_spec(one: &Bytes, other: &Bytes) -> bool {
    #[derive(serde::Deserialize)]
    struct Declared {
        spec: CompositeControllerSpec,
    }
    let spec = |object: &Bytes| serde_json::from_slice::<Declared>(object).map(|it| it.spec);
    match (spec(one), spec(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Reads the annotation [`MAX_OWNER_DEPTH`].
fn max_owner_depth(object: &Value, problems: &mut Problems) -> usize {
    let annotations = object.pointer("/metadata/annotations");
    let Some(said) = annotations.and_then(|annotations| annotations.get(MAX_OWNER_DEPTH)) else {
        return OWNER_DEPTH;
    };
    let depth = said.as_str().and_then(|text| text.parse().ok());
    depth.filter(|depth| (1..=DEEPEST).contains(depth)).unwrap_or_else(|| {
        let field = format!("metadata.annotations[{MAX_OWNER_DEPTH}]");
        problems
            .invalid(field, format!("{said} is not a string with a number from 1 to {DEEPEST}"));
        OWNER_DEPTH
    })
}

fn child_rules(spec: &CompositeControllerSpec, problems: &mut Problems) -> Vec<ChildRule> {
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut rules = Vec::with_capacity(spec.child_resources.len());
    for (index, child) in spec.child_resources.iter().enumerate() {
        let field = format!("spec.childResources[{index}]");
        let update = child.update_strategy.as_ref();
        let strategy = match update.and_then(|update| update.method.as_deref()) {
            None | Some("" | "OnDelete") => Some(UpdateMethod::OnDelete),
            Some("Recreate") => Some(UpdateMethod::Recreate),
            Some("InPlace") => Some(UpdateMethod::InPlace),
            Some("RollingRecreate" | "RollingInPlace") => {
                problems.unsupported(format!("{field}.updateStrategy.method"));
                None
            }
            Some(other) => {
                problems.invalid(
                    format!("{field}.updateStrategy.method"),
                    format!(
                        "{other:?} is not one of OnDelete, Recreate, InPlace, RollingRecreate, \
                         RollingInPlace"
                    ),
                );
                None
            }
        };
        let Some(type_ref) = type_ref(&field, &child.api_version, &child.resource, problems) else {
            continue;
        };
        // Two versions of one resource hold the same objects, so each would be a child twice.
        match seen.insert((type_ref.group.clone(), child.resource.clone()), index) {
            Some(first) if spec.child_resources[first] == *child => {}
            Some(first) => problems.invalid(
                field,
                format!("{type_ref} is already declared by spec.childResources[{first}]"),
            ),
            None => rules.extend(strategy.map(|strategy| ChildRule {
                type_ref,
                strategy,
                optional: child.optional.unwrap_or_default(),
            })),
        }
    }
    rules
}

pub(super) fn type_ref(
    field: &str,
    api_version: &str,
    resource: &str,
    problems: &mut Problems,
) -> Option<TypeRef> {
    let (group, version) = match api_version.split_once('/') {
        None => ("", api_version),
        Some(("", _)) => ("", ""),
        Some((group, version)) => (group, version),
    };
    let named = |text: &str, more: &[char]| {
        !text.is_empty()
            && text.chars().all(|character| {
                character.is_ascii_lowercase()
                    || character.is_ascii_digit()
                    || more.contains(&character)
            })
    };
    if !named(version, &['-']) || !(group.is_empty() || named(group, &['-', '.'])) {
        problems.invalid(
            format!("{field}.apiVersion"),
            format!("{api_version:?} is neither version nor group/version"),
        );
        return None;
    }
    if !named(resource, &['-', '.']) {
        problems.invalid(
            format!("{field}.resource"),
            format!("{resource:?} is not a plural resource name, such as configmaps"),
        );
        return None;
    }
    Some(TypeRef::resource(group, version, resource))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{EtagRule, HookVersion},
        *,
    };

    fn object(change: impl FnOnce(&mut Value)) -> Bytes {
        let mut object = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1",
            "kind": "CompositeController",
            "metadata": {"name": "things"},
            "spec": {
                "parentResource": {"apiVersion": "example.com/v1", "resource": "things"},
                "childResources": [{"apiVersion": "v1", "resource": "configmaps"}],
                "hooks": {"sync": {"webhook": {"url": "http://hook.default/sync"}}}
            }
        });
        change(&mut object["spec"]);
        serde_json::to_vec(&object).unwrap().into()
    }

    #[track_caller]
    fn check(pointer: &str, value: Value, expected: &[&str]) {
        let object = object(|spec| {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = spec.pointer_mut(parent).unwrap();
            match key.parse::<usize>() {
                Ok(_) => parent.as_array_mut().unwrap().push(value),
                Err(_) => {
                    parent.as_object_mut().unwrap().insert(key.to_owned(), value);
                }
            }
        });

        let fields: Vec<String> = match Definition::parse(&object) {
            Ok(_) => Vec::new(),
            Err(Rejected::Undecodable { field, .. }) => vec![field],
            Err(Rejected::Unbuildable(error)) => vec![error],
            Err(Rejected::Invalid(problems) | Rejected::Unsupported(problems)) => {
                problems.into_iter().map(|problem| problem.field).collect()
            }
        };

        assert_eq!(fields, expected);
    }

    #[test]
    fn identical_rules_of_children_count_once() {
        let rules = |second: Value| {
            let object = object(|spec| {
                spec["childResources"].as_array_mut().unwrap().push(second);
            });
            Definition::parse(&object).map(|definition| definition.children.len())
        };

        assert_eq!(rules(json!({"apiVersion": "v1", "resource": "configmaps"})).unwrap(), 1);
        let other = json!({"apiVersion": "v1", "resource": "configmaps",
            "updateStrategy": {"method": "InPlace"}});
        assert!(rules(other).unwrap_err().to_string().contains("already declared"));
    }

    #[test]
    fn annotation_sets_the_longest_chain_of_owners() {
        let with = |said: Option<Value>| {
            let mut object: Value = serde_json::from_slice(&object(|_| ())).unwrap();
            if let Some(said) = said {
                object["metadata"]["annotations"] = json!({ MAX_OWNER_DEPTH: said });
            }
            Definition::parse(&object.to_string().into())
        };
        for (said, expected) in [
            (None, Some(OWNER_DEPTH)),
            (Some(json!("40")), Some(40)),
            (Some(json!("1")), Some(1)),
            (Some(json!("1000")), Some(1000)),
            (Some(json!("0")), None),
            (Some(json!("1001")), None),
            (Some(json!("deep")), None),
            (Some(json!(40)), None),
        ] {
            let depth = with(said.clone()).ok().map(|definition| definition.max_owner_depth);
            assert_eq!(depth, expected, "{said:?}");
        }
        let (usual, deep) = (with(None).unwrap(), with(Some(json!("40"))).unwrap());
        assert!(!usual.declares_same(&deep), "the edit takes effect");
        let Err(Rejected::Invalid(problems)) = with(Some(json!("deep"))) else { panic!("wrong") };
        assert_eq!(problems[0].field, "metadata.annotations[pilotlight.dev/max-owner-depth]");
    }

    #[test]
    fn a_plain_controller_is_accepted_with_its_defaults() {
        let definition = Definition::parse(&object(|_| ())).unwrap();

        assert_eq!(definition.name, "things");
        assert_eq!(definition.parent, TypeRef::resource("example.com", "v1", "things"));
        assert_eq!(definition.children[0].strategy, UpdateMethod::OnDelete);
        assert!(!definition.children[0].optional);
        assert_eq!(definition.sync.as_ref().unwrap().version, HookVersion::V1);
        assert!(!definition.sync.as_ref().unwrap().strict);
        assert_eq!(definition.sync.as_ref().unwrap().timeout, Duration::from_secs(10));
        assert_eq!(definition.resync_period, None);
    }

    #[test]
    fn hooks_are_sent_an_empty_status_whatever_the_object_has() {
        let with_status = |status: Value| {
            let mut value: Value = serde_json::from_slice(&object(|_| ())).unwrap();
            value["status"] = status;
            Definition::parse(&value.to_string().into()).unwrap().controller
        };

        let sent = with_status(json!({"state": "Running", "epoch": 3}));

        assert_eq!(sent, with_status(Value::Null));
        assert_eq!(sent, Definition::parse(&object(|_| ())).unwrap().controller);
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent["status"], json!({}));
        assert_eq!(sent["metadata"]["name"], "things");
    }

    #[test]
    fn every_wrong_field_is_named() {
        let child = |resource: &str| json!({"apiVersion": "v1", "resource": resource});
        check("/parentResource", json!({"resource": "x"}), &["spec.parentResource"]);
        check("/parentResource/apiVersion", json!("a/b/c"), &["spec.parentResource.apiVersion"]);
        check("/parentResource/apiVersion", json!(7), &["spec.parentResource.apiVersion"]);
        check("/parentResource/resource", json!("../x"), &["spec.parentResource.resource"]);
        check(
            "/parentResource/labelSelector",
            json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
            &["spec.parentResource.labelSelector.matchExpressions[0].operator"],
        );
        let mut other = child("configmaps");
        other["updateStrategy"] = json!({"method": "InPlace"});
        check("/childResources/1", other, &["spec.childResources[1]"]);
        check("/childResources/1", child(""), &["spec.childResources[1].resource"]);
        check(
            "/childResources",
            json!([{"apiVersion": "v1", "resource": "pods", "updateStrategy": {"method": "No"}}]),
            &["spec.childResources[0].updateStrategy.method"],
        );
        check("/hooks", json!({}), &["spec.hooks.sync"]);
        check("/hooks", json!(null), &["spec.hooks.sync"]);
        check("/hooks/sync", json!({}), &["spec.hooks.sync.webhook"]);
        check("/hooks/sync/version", json!("v3"), &["spec.hooks.sync.version"]);
        check("/hooks/sync/webhook", json!({}), &["spec.hooks.sync.webhook"]);
        check("/hooks/sync/webhook/url", json!("ftp://x"), &["spec.hooks.sync.webhook.url"]);
        check("/hooks/sync/webhook/url", json!("hook"), &["spec.hooks.sync.webhook.url"]);
        check("/hooks/sync/webhook/url", json!("http://"), &["spec.hooks.sync.webhook.url"]);
        check("/hooks/sync/webhook/timeout", json!("soon"), &["spec.hooks.sync.webhook.timeout"]);
        check(
            "/hooks/sync/webhook/clientTLS",
            json!({}),
            &["spec.hooks.sync.webhook.clientTLS.secretRef"],
        );
        check(
            "/hooks/sync/webhook/responseUnMarshallMode",
            json!("lax"),
            &["spec.hooks.sync.webhook.responseUnMarshallMode"],
        );
        check(
            "/hooks/sync/webhook",
            json!({"service": {"name": "a", "namespace": "b"}}),
            &["spec.hooks.sync.webhook.path"],
        );
        check("/resyncPeriodSeconds", json!("often"), &["spec.resyncPeriodSeconds"]);
    }

    #[test]
    fn finalize_hook_stands_alone_or_beside_sync() {
        let hook = || json!({"webhook": {"url": "http://x/"}, "version": "v2"});
        let parse = |hooks: Value| Definition::parse(&object(|spec| spec["hooks"] = hooks));

        let both = parse(json!({"sync": hook(), "finalize": hook()})).unwrap();
        assert!(both.sync.is_some() && both.finalize.is_some());
        let alone = parse(json!({"finalize": hook()})).unwrap();
        assert_eq!((alone.sync, alone.finalize.unwrap().version), (None, HookVersion::V2));
        check("/hooks", json!({"finalize": {}}), &["spec.hooks.finalize.webhook"]);
    }

    #[test]
    fn customize_hook_stands_beside_another() {
        let hook = || json!({"version": "v2", "webhook": {"url": "http://x/"}});
        let parse = |hooks: Value| Definition::parse(&object(|spec| spec["hooks"] = hooks));
        let both = parse(json!({"sync": hook(), "customize": hook()})).unwrap();
        assert_eq!(both.customize.unwrap().version, HookVersion::V2);
        assert!(parse(json!({"customize": hook()})).is_err(), "nothing receives related objects");
        check("/hooks/customize", json!({}), &["spec.hooks.customize.webhook"]);
    }

    #[test]
    fn name_that_makes_no_finalizer_is_refused_with_a_finalize_hook() {
        let named = |name: &str, hook: &str| {
            let mut value: Value = serde_json::from_slice(&object(|_| ())).unwrap();
            value["metadata"]["name"] = json!(name);
            value["spec"]["hooks"] = json!({hook: {"webhook": {"url": "http://x/"}}});
            Definition::parse(&value.to_string().into())
        };
        let longest = "a".repeat(43);

        assert!(named(&longest, "finalize").is_ok());
        assert!(named(&format!("{longest}a"), "sync").is_ok());
        let Err(Rejected::Invalid(problems)) = named(&format!("{longest}a"), "finalize") else {
            panic!("its finalizer is not a qualified name")
        };
        assert_eq!(problems[0].field, "metadata.name");
    }

    #[test]
    fn unsupported_field_is_refused_by_name() {
        check("/hooks/preUpdateChild", json!({"webhook": {"url": "http://x/"}}), &[]);
        check(
            "/childResources",
            json!([{
                "apiVersion": "v1", "resource": "pods",
                "updateStrategy": {"method": "RollingInPlace"}
            }]),
            &["spec.childResources[0].updateStrategy.method"],
        );
        let rolling = |spec: &mut Value| {
            spec["childResources"][0]["updateStrategy"] = json!({"method": "RollingInPlace"});
        };
        let rejected = Definition::parse(&object(rolling)).unwrap_err();
        assert_eq!(rejected.reason(), "SpecUnsupported");
    }

    #[test]
    fn a_service_becomes_an_address() {
        let service = |path: &str, extra: Value| {
            let mut service = json!({"name": "hook", "namespace": "ns"});
            service.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let object = object(|spec| {
                spec["hooks"]["sync"]["webhook"] = json!({"service": service, "path": path});
            });
            Definition::parse(&object)
                .map(|definition| definition.sync.unwrap().url.to_string())
                .unwrap()
        };

        assert_eq!(service("/sync", json!({})), "http://hook.ns:80/sync");
        assert_eq!(
            service("/s?a=b", json!({"port": 8443, "protocol": "https"})),
            "https://hook.ns:8443/s?a=b"
        );
    }

    #[test]
    fn a_timeout_that_is_not_positive_is_ten_seconds() {
        let object = object(|spec| spec["hooks"]["sync"]["webhook"]["timeout"] = json!("-3s"));

        assert_eq!(
            Definition::parse(&object).unwrap().sync.unwrap().timeout,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn answers_are_kept_by_their_etag_when_that_is_enabled() {
        let etag = |spec: Value| {
            let object = object(|all| all["hooks"]["sync"]["webhook"]["etag"] = spec);
            Definition::parse(&object).unwrap().sync.unwrap().etag
        };
        let rule = |lifetime: Option<u64>, sweep: Option<u64>| {
            let seconds = |value: Option<u64>| value.map(Duration::from_secs);
            Some(EtagRule { lifetime: seconds(lifetime), sweep: seconds(sweep) })
        };

        for (spec, expected) in [
            (json!(null), None),
            (json!({}), None),
            (json!({"enabled": false, "cacheTimeoutSeconds": 5}), None),
            (json!({"enabled": true}), rule(None, None)),
            (json!({"enabled": true, "cacheTimeoutSeconds": 5}), rule(Some(5), None)),
            (json!({"enabled": true, "cacheCleanupSeconds": 7}), rule(None, Some(7))),
            (
                json!({"enabled": true, "cacheTimeoutSeconds": 5, "cacheCleanupSeconds": 7}),
                rule(Some(5), Some(7)),
            ),
            (
                json!({"enabled": true, "cacheTimeoutSeconds": 0, "cacheCleanupSeconds": -1}),
                rule(None, None),
            ),
            (
                json!({"enabled": true, "cacheTimeoutSeconds": i32::MAX}),
                rule(Some(2_147_483_647), None),
            ),
        ] {
            assert_eq!(etag(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn default_resync_period_applies_without_an_own_one() {
        let silent = || Definition::parse(&object(|_| ())).unwrap();
        let own =
            Definition::parse(&object(|spec| spec["resyncPeriodSeconds"] = json!(7))).unwrap();
        let [second, minute] = [1, 60].map(Duration::from_secs);

        assert_eq!(own.or_resync(Some(minute)).resync_period, Some(7 * second));
        assert_eq!(silent().or_resync(Some(minute)).resync_period, Some(minute));
        assert_eq!(silent().or_resync(Some(Duration::ZERO)).resync_period, Some(second));
        assert_eq!(silent().or_resync(None).resync_period, None);
    }

    #[test]
    fn resync_period_is_at_least_a_second() {
        for (seconds, expected) in [(0, 1), (-5, 1), (30, 30)] {
            let object = object(|spec| spec["resyncPeriodSeconds"] = json!(seconds));

            assert_eq!(
                Definition::parse(&object).unwrap().resync_period,
                Some(Duration::from_secs(expected))
            );
        }
    }

    #[test]
    fn invalid_specification_is_rejected_without_a_panic() {
        for garbage in ["", "null", "[]", "{}", r#"{"metadata":{"name":"a"}}"#, "\u{0}"] {
            assert!(Definition::parse(&Bytes::from(garbage)).is_err(), "{garbage}");
        }
    }

    #[test]
    fn defaults_of_the_server_are_no_edit() {
        let one = json!({
            "parentResource": {"apiVersion": "v1", "resource": "things"},
            "hooks": {"sync": {"webhook": {"url": "http://x"}}}
        });
        let mut other = one.clone();
        other["hooks"]["sync"]["version"] = json!("v1");

        let accepted = |spec: &Value| Bytes::from(json!({ "spec": spec }).to_string());

        assert!(same_spec(&accepted(&one), &accepted(&other)));

        other["resyncPeriodSeconds"] = json!(5);
        assert!(!same_spec(&accepted(&one), &accepted(&other)));
    }
}
