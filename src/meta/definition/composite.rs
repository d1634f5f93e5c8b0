//! Specification of a CompositeController.

use super::{
    Declaration, ParentRule, ParentType, Problems,
    fields::{
        DeclaredChild, DeclaredHooks, HookRules, child_rules, hook_rules, resync_period, type_ref,
    },
    selection,
};
use crate::{
    informer::Selector,
    meta::api::{CompositeControllerSpec, ParentResource},
};

/// Reads a specification; `None` if a part cannot be read.
pub(super) fn read(spec: &CompositeControllerSpec, problems: &mut Problems) -> Option<Declaration> {
    let parent = &spec.parent_resource;
    let parent_type =
        type_ref("spec.parentResource", &parent.api_version, &parent.resource, problems);
    let labels = match &parent.label_selector {
        None => Some(Selector::default()),
        Some(selector) => selection::parse(selector)
            .map_err(|(field, message)| {
                problems.invalid(format!("spec.parentResource.labelSelector.{field}"), message);
            })
            .ok(),
    };
    let children = child_rules(
        "spec.childResources",
        &spec.child_resources,
        |child| DeclaredChild {
            api_version: &child.api_version,
            resource: &child.resource,
            method: child.update_strategy.as_ref().and_then(|update| update.method.as_deref()),
            checks: Some(
                child
                    .update_strategy
                    .as_ref()
                    .and_then(|update| update.status_checks.clone())
                    .unwrap_or_default(),
            ),
            optional: child.optional.unwrap_or_default(),
            ignore_status_changes: child.ignore_status_changes.unwrap_or_default(),
        },
        problems,
    );
    let hooks = spec.hooks.clone().unwrap_or_default();
    let hooks = DeclaredHooks {
        sync: hooks.sync.as_ref(),
        finalize: hooks.finalize.as_ref(),
        customize: hooks.customize.as_ref(),
        endpoints: &spec.endpoint_configs,
    };
    let hooks = hook_rules(&hooks, problems);
    let rule = ParentRule {
        labels: labels?,
        annotations: Selector::default(),
        ignore_status_changes: parent.ignore_status_changes.unwrap_or_default(),
    };
    let HookRules { sync, finalize, customize } = hooks?;
    Some(Declaration {
        parents: ParentType::of_rules([(parent_type?, rule)]),
        children,
        generate_selector: spec.generate_selector.unwrap_or_default(),
        revision_fields: revision_fields(parent),
        resync_period: resync_period(spec.resync_period_seconds),
        sync,
        finalize,
        customize,
    })
}

/// Returns the fields that make a revision; `spec` if none are declared.
fn revision_fields(parent: &ParentResource) -> Vec<String> {
    let declared = parent.revision_history.as_ref().map(|history| history.field_paths.clone());
    declared.filter(|paths| !paths.is_empty()).unwrap_or_else(|| vec!["spec".to_owned()])
}
