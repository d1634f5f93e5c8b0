//! Types of parents, each with the rules that select its objects.

use crate::{
    informer::{Header, Selector},
    kind::TypeRef,
};

/// Type of parents, with the rules that select its objects. Any of them selects an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParentType {
    /// The type, in the version of its first rule.
    pub(crate) type_ref: TypeRef,
    /// The rules, in their order; at least one.
    pub(crate) rules: Vec<ParentRule>,
}

/// Rule that selects objects of one type.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ParentRule {
    /// Selects by labels; all by default.
    pub(crate) labels: Selector,
    /// Selects by annotations, which have the same operators; all by default.
    pub(crate) annotations: Selector,
    /// True if a change of nothing but the status does not sync an object.
    pub(crate) ignore_status_changes: bool,
}

impl ParentType {
    /// Returns the types of these rules. Rules of one group and resource are one type, whatever
    /// their versions: each version has the same objects. Identical rules count once.
    pub(super) fn of_rules(rules: impl IntoIterator<Item = (TypeRef, ParentRule)>) -> Vec<Self> {
        let mut types: Vec<Self> = Vec::new();
        for (type_ref, rule) in rules {
            let is_same = |it: &&mut Self| {
                (&it.type_ref.group, &it.type_ref.name) == (&type_ref.group, &type_ref.name)
            };
            match types.iter_mut().find(is_same) {
                Some(known) if known.rules.contains(&rule) => {}
                Some(known) => known.rules.push(rule),
                None => types.push(Self { type_ref, rules: vec![rule] }),
            }
        }
        types
    }

    /// Returns whether a rule selects an object.
    pub(crate) fn selects(&self, object: &Header) -> bool {
        self.rules.iter().any(|rule| rule.selects(object))
    }
}

impl ParentRule {
    /// Returns whether the rule selects an object.
    pub(crate) fn selects(&self, object: &Header) -> bool {
        self.labels.matches(&object.labels) && self.annotations.matches(&object.annotations)
    }
}
