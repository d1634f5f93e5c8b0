//! Fields that the specifications of both kinds have: types, children, hooks and the resync period.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use super::{ChildRule, Problems, Rejection, SHORTEST_RESYNC, UpdateMethod};
use crate::{
    kind::TypeRef,
    meta::{
        api::{EndpointConfig, HookSpec, StatusChecks},
        hooks::rule::{HookRule, hook_rule},
    },
};

/// Problem of an object that declares neither a sync nor a finalize hook.
const NO_HOOK: &str = "is required: sync or finalize needs a webhook";

/// Declared type of children, of either kind.
pub(super) struct DeclaredChild<'a> {
    pub(super) api_version: &'a str,
    pub(super) resource: &'a str,
    /// Name of the update method.
    pub(super) method: Option<&'a str>,
    /// Conditions of updated children; `None` if all children are always updated at once.
    pub(super) checks: Option<StatusChecks>,
    pub(super) optional: bool,
    pub(super) ignore_status_changes: bool,
}

/// Declared hooks of either kind.
pub(super) struct DeclaredHooks<'a> {
    pub(super) sync: Option<&'a HookSpec>,
    pub(super) finalize: Option<&'a HookSpec>,
    pub(super) customize: Option<&'a HookSpec>,
    /// TLS and credentials by host.
    pub(super) endpoints: &'a [EndpointConfig],
}

/// Rules of the declared hooks.
pub(super) struct HookRules {
    pub(super) sync: Option<HookRule>,
    pub(super) finalize: Option<HookRule>,
    pub(super) customize: Option<HookRule>,
}

/// Reads the hooks of a specification; `None` if one of them cannot be read. As in Metacontroller,
/// a hook without a webhook counts as absent.
pub(super) fn hook_rules(hooks: &DeclaredHooks<'_>, problems: &mut Problems) -> Option<HookRules> {
    let DeclaredHooks { sync, finalize, customize, endpoints } = hooks;
    let mut rule = |field, hook: &Option<&HookSpec>| {
        let hook = hook.and_then(|hook| Some((hook.version.as_deref(), hook.webhook.as_ref()?)));
        hook.map(|(version, webhook)| hook_rule(field, version, webhook, endpoints, problems))
    };
    let [read_sync, read_finalize, read_customize] = [
        rule("spec.hooks.sync", sync),
        rule("spec.hooks.finalize", finalize),
        rule("spec.hooks.customize", customize),
    ];
    if read_sync.is_none() && read_finalize.is_none() {
        let field = match (sync, finalize) {
            (None, None) => "spec.hooks.sync",
            (Some(_), _) => "spec.hooks.sync.webhook",
            (None, Some(_)) => "spec.hooks.finalize.webhook",
        };
        problems.invalid(field, NO_HOOK);
    }
    Some(HookRules {
        sync: inverted(read_sync)?,
        finalize: inverted(read_finalize)?,
        customize: inverted(read_customize)?,
    })
}

/// Returns whether an object is rejected for one reason alone: it declares neither a sync nor a
/// finalize hook.
pub(in crate::meta) fn lacks_only_hooks(rejected: &Rejection) -> bool {
    let Rejection::Invalid(problems) = rejected else { return false };
    matches!(&problems[..], [problem] if problem.message == NO_HOOK)
}

/// Returns a declared rule; `None` if it is declared and cannot be read.
fn inverted(rule: Option<Option<HookRule>>) -> Option<Option<HookRule>> {
    match rule {
        None => Some(None),
        Some(None) => None,
        Some(Some(rule)) => Some(Some(rule)),
    }
}

/// Reads a resync period.
pub(super) fn resync_period(seconds: Option<i32>) -> Option<Duration> {
    seconds
        .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
        .map(|period| period.max(SHORTEST_RESYNC))
}

/// Reads the types of children in the list `list`, such as `spec.childResources`. Rules that mean
/// the same count once, such as one without a method beside one with `OnDelete`.
pub(super) fn child_rules<C>(
    list: &str,
    children: &[C],
    read: impl Fn(&C) -> DeclaredChild<'_>,
    problems: &mut Problems,
) -> Vec<ChildRule> {
    let mut seen: BTreeMap<(String, String), (usize, ChildRule)> = BTreeMap::new();
    let mut rules = Vec::with_capacity(children.len());
    for (index, child) in children.iter().enumerate() {
        let field = format!("{list}[{index}]");
        let DeclaredChild {
            api_version,
            resource,
            method,
            checks,
            optional,
            ignore_status_changes,
        } = read(child);
        let method = update_method(&field, method, problems);
        let type_ref = type_ref(&field, api_version, resource, problems);
        let (Some(method), Some(type_ref)) = (method, type_ref) else { continue };
        let strategy = if checks.is_some() { method } else { method.at_once() };
        let checks = checks.filter(|_| strategy.is_rolling()).unwrap_or_default();
        let rule = ChildRule { type_ref, strategy, checks, optional, ignore_status_changes };
        // Two versions of one resource hold the same objects, so each would be a child twice.
        match seen.entry((rule.type_ref.group.clone(), resource.to_owned())) {
            Entry::Occupied(first) if first.get().1 == rule => {}
            Entry::Occupied(first) => problems.invalid(
                field,
                format!(
                    "{} is already declared by {list}[{}], with other fields: remove one of them",
                    rule.type_ref,
                    first.get().0
                ),
            ),
            Entry::Vacant(place) => {
                place.insert((index, rule.clone()));
                rules.push(rule);
            }
        }
    }
    rules
}

fn update_method(
    field: &str,
    method: Option<&str>,
    problems: &mut Problems,
) -> Option<UpdateMethod> {
    let Some(name) = method.filter(|name| !name.is_empty()) else {
        return Some(UpdateMethod::default());
    };
    let parsed = name.parse();
    if parsed.is_err() {
        let all = UpdateMethod::ALL.map(UpdateMethod::name).join(", ");
        problems.invalid(
            format!("{field}.updateStrategy.method"),
            format!("{name:?} is not one of {all}"),
        );
    }
    parsed.ok()
}

/// Reads a type.
pub(in crate::meta) fn type_ref(
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
