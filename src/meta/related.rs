//! Related objects of one controller: the rules of each parent, and the inputs of their types.
//!
//! A change of a related object names the parents that it concerns, so that an event never calls a
//! hook.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use self::customize::RelatedRule;
use crate::{
    controller::{Builder, Context, Handler, InputError, InputHandle, InputState, Inputs, Request},
    discovery::{TypeRegistry, TypeState},
    informer::{Delta, Interest, Object, Selection, Store},
    kind::{Scope, ServedType, TypeRef},
    meta::{
        definition::optional_related::{OPTIONAL_RELATED, OptionalRelated, entry_of},
        json::digest::JsonDigest,
        options::MetaOptions,
    },
};

/// Time for which the response of a customize hook is used, as in Metacontroller.
const RESPONSE_LIFETIME: Duration = Duration::from_secs(20 * 60);
/// Time for which a sync waits for the first list of a type.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// Name of the input of the namespaces that rules select.
const NAMESPACES: &str = "selected namespaces";

/// Related objects of the parents of one controller.
#[derive(Debug, Default)]
pub(crate) struct RelatedObjects {
    state: Mutex<RelatedState>,
    options: Arc<MetaOptions>,
}

#[derive(Debug, Default)]
struct RelatedState {
    /// Responses by parent, then by uid with revision. Bounded by the revisions of the last sync; a
    /// rollout that ends leaves the response of the latest one.
    responses: HashMap<Request, HashMap<Arc<str>, CachedRules>, RandomState>,
    /// Types by the name of their input.
    types: HashMap<String, RelatedType>,
}

/// Response of the customize hook for a parent.
#[derive(Debug)]
struct CachedRules {
    declared: JsonDigest,
    at: Instant,
    rules: Arc<[RelatedRule]>,
}

/// Type that rules of at least one parent name.
#[derive(Debug)]
struct RelatedType {
    handle: InputHandle,
    // Parents whose rules name the type.
    parents: HashSet<Request, RandomState>,
    /// Served type as of the last sync that read it, for its kind.
    served: Option<Arc<ServedType>>,
}

/// Related objects of one type.
#[derive(Clone, Debug)]
pub(crate) struct RelatedGroup {
    pub(crate) served: Arc<ServedType>,
    pub(crate) objects: Vec<Object>,
}

/// Rules of one read of related objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RulesToRead<'a> {
    /// Rules whose objects are returned.
    pub(crate) read: &'a [RelatedRule],
    /// Rules of all revisions of the parent, which determine what concerns it.
    pub(crate) wanted: &'a [RelatedRule],
    /// Rules whose types keep their inputs: `wanted` and others.
    pub(crate) kept: &'a [RelatedRule],
    /// Types that may be missing.
    pub(crate) optional: &'a OptionalRelated,
    /// Namespace that is watched, if only one is.
    pub(crate) restricted: Option<&'a str>,
}

/// Reason why related objects cannot be read.
#[derive(Debug, PartialEq)]
pub(crate) enum RelatedError {
    /// The epoch is over.
    Cancelled,
    /// A type is served and not listed yet. Its parents are enqueued when it is.
    NotListed(String),
    /// A type is not served, or its list fails. Its parents are enqueued when it is listed.
    Unreadable(String),
    /// A rule does not fit its type.
    Invalid(String),
}

impl RelatedError {
    /// Names what needs the type that is not read.
    fn about(self, needed: String) -> Self {
        match self {
            Self::NotListed(why) => Self::NotListed(format!("{needed}: {why}")),
            Self::Unreadable(why) => Self::Unreadable(format!("{needed}: {why}")),
            Self::Cancelled | Self::Invalid(_) => self,
        }
    }
}

/// Cache of a related type.
enum Cache {
    Listed {
        served: Arc<ServedType>,
        store: Store,
    },
    /// The type is not served. Holds it as it was served last, and the reason.
    Missing(Option<Arc<ServedType>>, String),
}

impl RelatedObjects {
    /// Returns an empty state.
    pub(crate) fn new(options: Arc<MetaOptions>) -> Self {
        Self { state: Mutex::default(), options }
    }

    /// Returns the rules of a parent from an earlier response, unless the parent's declaration has
    /// changed since, or the response is old.
    pub(crate) fn response(
        &self,
        key: &Request,
        uid: &str,
        declared: JsonDigest,
    ) -> Option<Arc<[RelatedRule]>> {
        let state = self.lock();
        let response = state.responses.get(key)?.get(uid)?;
        let is_current = response.declared == declared && response.at.elapsed() < RESPONSE_LIFETIME;
        is_current.then(|| Arc::clone(&response.rules))
    }

    /// Returns the rules of the older revisions of a parent from their last responses, even if these
    /// are outdated. A revision without a response has the rules of the latest one: it was the
    /// latest one until now, or was not synced yet. Removes the responses of all other revisions.
    pub(crate) fn rules_of_older(
        &self,
        key: &Request,
        latest: &Arc<str>,
        older: &[Arc<str>],
    ) -> Vec<Arc<[RelatedRule]>> {
        let mut state = self.lock();
        let Some(responses) = state.responses.get_mut(key) else { return Vec::new() };
        let last = |uid: &Arc<str>| responses.get(uid).map(|response| Arc::clone(&response.rules));
        let rules = older.iter().filter_map(|uid| last(uid).or_else(|| last(latest))).collect();
        // Without a rolling method, these may be of a sync that ended after an edit of the method.
        responses.retain(|uid, _| uid == latest || older.contains(uid));
        rules
    }

    /// Keeps the rules of a parent, until its revision has ended, or those of a parent that was
    /// created anew replace them. The uid of a revision is that of its parent, a slash and the name.
    pub(crate) fn keep_response(
        &self,
        key: &Request,
        uid: &Arc<str>,
        declared: JsonDigest,
        rules: &Arc<[RelatedRule]>,
    ) {
        let (rules, at) = (Arc::clone(rules), Instant::now());
        let mut state = self.lock();
        let responses = state.responses.entry(key.clone()).or_default();
        responses.retain(|kept, _| parent_of(kept) == parent_of(uid));
        responses.insert(uid.clone(), CachedRules { declared, at, rules });
    }

    /// Removes the responses for a parent except those of these uids: its other revisions have ended.
    pub(crate) fn retain_responses(&self, key: &Request, uids: &[Arc<str>]) {
        if let Some(responses) = self.lock().responses.get_mut(key) {
            responses.retain(|uid, _| uids.contains(uid));
        }
    }

    /// Forgets the response for a parent, so that the next sync calls the hook.
    pub(crate) fn forget_response(&self, key: &Request) {
        self.lock().responses.remove(key);
    }

    /// Reads the related objects of a parent, in one group for each type of the rules. An optional
    /// type that is not served has an empty group if its kind is known, and none otherwise.
    ///
    /// # Errors
    ///
    /// [`RelatedError::Unreadable`] and [`RelatedError::NotListed`] if any objects may be missing: a
    /// hook would delete the children that it makes from them.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a dropped read leaves the inputs of the types.
    pub(crate) async fn read(
        self: &Arc<Self>,
        parent: &Request,
        rules: RulesToRead<'_>,
        types: &TypeRegistry,
        context: &Context,
    ) -> Result<Vec<RelatedGroup>, RelatedError> {
        let RulesToRead { read: rules, wanted, kept, optional, restricted } = rules;
        let inputs = context.inputs().ok_or(RelatedError::Cancelled)?;
        self.update_inputs(parent, kept, &inputs, context)?;
        let namespaces = self.namespaces(parent, wanted, types, context).await?;
        let mut by_type: BTreeMap<String, Vec<&RelatedRule>> = BTreeMap::new();
        for rule in wanted {
            by_type.entry(input_of(&rule.type_ref)).or_default().push(rule);
        }
        let mut groups = Vec::with_capacity(by_type.len());
        let most = self.options.customize.names;
        for (input, wanted) in by_type {
            let has_rules = wanted.iter().any(|rule| rules.contains(rule));
            let required = wanted.iter().find(|rule| rules.contains(rule));
            let rule = required.unwrap_or(&wanted[0]);
            let needed = || format!("{} needs {}", rule.field(), rule.type_ref);
            let cache = self.cache(&input, &rule.type_ref, types, context).await;
            let (served, store) = match cache.map_err(|error| error.about(needed()))? {
                Cache::Listed { served, store } => (served, store),
                Cache::Missing(..) if !has_rules => continue,
                Cache::Missing(served, _) if optional.contains(&rule.type_ref) => {
                    let empty = |served| RelatedGroup { served, objects: Vec::new() };
                    groups.extend(served.map(empty));
                    continue;
                }
                Cache::Missing(_, why) => return Err(missing(rule, &why)),
            };
            let (mut all, mut read) = (Vec::new(), Vec::new());
            for rule in wanted.iter().copied() {
                let found = self.interests(rule, served.identity.scope, &namespaces)?;
                if rules.contains(rule) {
                    is_watched(rule, served.identity.scope, restricted)?;
                    read.extend(found.iter().cloned());
                }
                all.extend(found);
                if all.len() > most {
                    return Err(RelatedError::Invalid(format!(
                        "the rules for {} select more than {most} namespaces and names, the limit of \
                         --customize-names",
                        rule.type_ref
                    )));
                }
            }
            set_interests(&input, parent, all, context);
            if has_rules {
                let objects = select(&store, &read);
                // Asked after the read: a store that has ended is empty, whatever objects there are.
                if store.is_gone() {
                    let why = RelatedError::NotListed("its cache has ended".to_owned());
                    return Err(why.about(needed()));
                }
                groups.push(RelatedGroup { served, objects });
            }
        }
        Ok(groups)
    }

    /// Returns the interests of a rule. `namespaces` has those that each selector of namespaces
    /// matches.
    fn interests(
        &self,
        rule: &RelatedRule,
        scope: Scope,
        namespaces: &HashMap<String, Vec<Arc<str>>>,
    ) -> Result<Vec<Interest>, RelatedError> {
        let selector = rule.namespace_selector().map(|selector| format!("{selector:?}"));
        let matching = selector.and_then(|selector| namespaces.get(&selector));
        let matching = matching.map_or(&[][..], Vec::as_slice);
        let most = self.options.customize.names;
        rule.interests(scope, matching, most).map_err(RelatedError::Invalid)
    }

    /// Forgets a parent that is gone, or that the controller no longer selects.
    pub(crate) fn forget(self: &Arc<Self>, parent: &Request, context: &Context) {
        self.lock().responses.remove(parent);
        if let Some(inputs) = context.inputs() {
            self.update_inputs(parent, &[], &inputs, context).ok();
        }
    }

    /// Forgets a parent without a customize hook, if related objects of any parent are known.
    pub(crate) fn leave(self: &Arc<Self>, parent: &Request, context: &Context) {
        let is_unused = {
            let state = self.lock();
            state.types.is_empty() && state.responses.is_empty()
        };
        if !is_unused {
            self.forget(parent, context);
        }
    }

    /// Forgets the responses for all parents: the hook or its request has changed.
    pub(crate) fn forget_responses(&self) {
        self.lock().responses.clear();
    }

    /// Forgets all parents at the end of an epoch, with which the inputs have ended.
    pub(crate) fn clear(&self) {
        *self.lock() = RelatedState::default();
    }

    /// Adds the inputs of the types that the rules of a parent name, and removes those that no
    /// parent needs any more.
    fn update_inputs(
        self: &Arc<Self>,
        parent: &Request,
        rules: &[RelatedRule],
        inputs: &Inputs,
        context: &Context,
    ) -> Result<(), RelatedError> {
        let mut needed: BTreeMap<String, TypeRef> =
            rules.iter().map(|rule| (input_of(&rule.type_ref), rule.type_ref.clone())).collect();
        if rules.iter().any(|rule| rule.namespace_selector().is_some()) {
            needed.insert(NAMESPACES.to_owned(), namespace_type());
        }
        let mut state = self.lock();
        let mut left = Vec::new();
        state.types.retain(|input, related| {
            if !needed.contains_key(input) && related.parents.remove(parent) {
                left.push(input.clone());
            }
            let is_needed = !related.parents.is_empty() || needed.contains_key(input);
            if !is_needed {
                // Under the lock, so that a parent that needs the type now adds it after this.
                inputs.remove_now(input);
            }
            is_needed
        });
        for (input, type_ref) in needed {
            if !state.types.contains_key(&input) {
                let handle = self.add(&input, type_ref, inputs)?;
                let related = RelatedType { handle, parents: HashSet::default(), served: None };
                state.types.insert(input.clone(), related);
            }
            if let Some(related) = state.types.get_mut(&input) {
                related.parents.insert(parent.clone());
            }
        }
        drop(state);
        for input in left {
            if let Ok((_, Some(moving))) = context.claimed(&input) {
                moving.remove(parent);
            }
        }
        Ok(())
    }

    fn add(
        self: &Arc<Self>,
        input: &str,
        type_ref: TypeRef,
        inputs: &Inputs,
    ) -> Result<InputHandle, RelatedError> {
        let (related, is_namespaces) = (Arc::clone(self), input == NAMESPACES);
        let handler = Handler::delta(move |delta, enqueue| {
            for parent in delta.interests.iter().map(|name| Request::from(&**name)) {
                if !is_namespaces || related.matches_differently(&parent, delta) {
                    enqueue.add(parent);
                }
            }
        });
        let (related, name) = (Arc::clone(self), input.to_owned());
        let managed_fields = self.options.strictness.managed_fields;
        let describe = move |builder: Builder| {
            let builder = builder.claims_type(type_ref, handler).whole().optional();
            let builder = if managed_fields { builder.managed_fields() } else { builder };
            builder.on_synced(move |enqueue| {
                related.parents_of(&name).into_iter().for_each(|parent| enqueue.add(parent));
            })
        };
        inputs.add(input, describe).map_err(|error| match error {
            InputError::Build(_) | InputError::NotOne(..) | InputError::Primary(..) => {
                RelatedError::Invalid(error.to_string())
            }
            InputError::NameTaken(..) | InputError::EpochOver(..) | InputError::Ended => {
                RelatedError::Cancelled
            }
        })
    }

    /// Returns the names of the namespaces that each namespace selector of the rules selects.
    async fn namespaces(
        &self,
        parent: &Request,
        rules: &[RelatedRule],
        types: &TypeRegistry,
        context: &Context,
    ) -> Result<HashMap<String, Vec<Arc<str>>>, RelatedError> {
        let selectors = rules.iter().filter_map(RelatedRule::namespace_selector);
        let interests = selectors.map(|selector| {
            let selection = Selection { namespace: None, selector: selector.clone() };
            (format!("{selector:?}"), Interest::Selected(selection))
        });
        let interests: BTreeMap<_, _> = interests.collect();
        if interests.is_empty() {
            return Ok(HashMap::new());
        }
        let cache = self.cache(NAMESPACES, &namespace_type(), types, context).await;
        let needed = || "a namespaceSelector needs namespaces".to_owned();
        match cache.map_err(|error| error.about(needed()))? {
            Cache::Missing(_, why) => {
                Err(RelatedError::Unreadable(format!("namespaces cannot be read: {why}")))
            }
            Cache::Listed { store, .. } => {
                let all = interests.values().cloned().collect();
                set_interests(NAMESPACES, parent, all, context);
                let names = interests.into_iter().map(|(selector, interest)| {
                    let found = select(&store, &[interest]);
                    (selector, found.iter().map(|found| found.key().name.clone()).collect())
                });
                let names = names.collect();
                if store.is_gone() {
                    let why = RelatedError::NotListed("their cache has ended".to_owned());
                    return Err(why.about(needed()));
                }
                Ok(names)
            }
        }
    }

    /// Returns the cache of a type. Waits a moment for its first list.
    async fn cache(
        &self,
        input: &str,
        type_ref: &TypeRef,
        types: &TypeRegistry,
        context: &Context,
    ) -> Result<Cache, RelatedError> {
        let handle = self.lock().types.get(input).map(|related| related.handle.clone());
        let handle = handle.ok_or(RelatedError::Cancelled)?;
        let status = types.get(type_ref);
        if status.state.is_missing() {
            let state = self.lock();
            let served = state.types.get(input).and_then(|related| related.served.clone());
            // After a restart of the epoch only the registry knows the kind.
            let served = served.or(status.last_served);
            return Ok(Cache::Missing(served, reason_of(&status.state)));
        }
        tokio::select! {
            biased;
            started = handle.started() => started.map_err(|_ended| RelatedError::Cancelled)?,
            () = context.cancelled() => return Err(RelatedError::Cancelled),
            () = tokio::time::sleep(LIST_TIMEOUT) => {}
        }
        match (handle.state(), context.store_of(input), context.claimed(input)) {
            (InputState::Started, Ok(store), Ok((served, _))) => {
                if let Some(related) = self.lock().types.get_mut(input) {
                    related.served = Some(Arc::clone(&served));
                }
                Ok(Cache::Listed { served, store })
            }
            (InputState::Pending(why), ..) => Err(match context.input_error(input) {
                Some(error) => RelatedError::Unreadable(format!("it cannot be read: {error}")),
                None => RelatedError::NotListed(why),
            }),
            (InputState::Started | InputState::Ended, ..) => {
                Err(RelatedError::NotListed("it is not listed".to_owned()))
            }
        }
    }

    fn parents_of(&self, input: &str) -> Vec<Request> {
        let state = self.lock();
        let related = state.types.get(input);
        related.map(|it| it.parents.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns whether a selector of namespaces of a parent begins or ends to match a namespace. A
    /// parent without a response is to be synced, and its selectors are unknown.
    fn matches_differently(&self, parent: &Request, delta: &Delta) -> bool {
        let state = self.lock();
        let Some(responses) = state.responses.get(parent) else { return true };
        let rules = responses.values().flat_map(|response| response.rules.iter());
        rules.filter_map(RelatedRule::namespace_selector).any(|selector| {
            let [old, new] = [&delta.old, &delta.new].map(|version| {
                let version = version.as_ref().map(Object::header);
                version.is_some_and(|version| selector.matches(&version.labels))
            });
            old != new
        })
    }

    fn lock(&self) -> MutexGuard<'_, RelatedState> {
        self.state.lock()
    }
}

/// Sets the interests of a parent in a type, before its objects are read, so that each later change
/// names the parent.
fn set_interests(input: &str, parent: &Request, interests: Vec<Interest>, context: &Context) {
    if let Ok((_, Some(moving))) = context.claimed(input) {
        moving.set(parent, interests);
    }
}

/// Returns the error about a rule whose type is not served.
fn missing(rule: &RelatedRule, why: &str) -> RelatedError {
    let type_ref = &rule.type_ref;
    RelatedError::Unreadable(format!(
        "{} needs {type_ref}, and {why}: install the type, correct the rule, or add {:?} to the \
         annotation {OPTIONAL_RELATED} of the controller if its hooks work without these objects",
        rule.field(),
        entry_of(type_ref)
    ))
}

/// Returns why a type is not served, as of its last proven state.
fn reason_of(state: &TypeState) -> String {
    match state {
        TypeState::Unknown(Some(last)) => reason_of(last),
        TypeState::Installing(reason) => format!("it cannot be used yet: {reason}"),
        TypeState::NotWatchable => "the API server offers no list of it".to_owned(),
        TypeState::Absent
        | TypeState::Polled
        | TypeState::Served
        | TypeState::Terminating
        | TypeState::Unknown(None) => "the API server does not serve it".to_owned(),
    }
}

/// Checks that the objects of a rule are among those that are watched.
fn is_watched(
    rule: &RelatedRule,
    scope: Scope,
    restricted: Option<&str>,
) -> Result<(), RelatedError> {
    match (rule.namespace(), restricted) {
        (Some(named), Some(watched)) if named != watched && scope == Scope::Namespaced => {
            let field = rule.field();
            Err(RelatedError::Invalid(format!(
                "{field}.namespace: {named:?} is not watched: the manager is limited to {watched:?}"
            )))
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// Returns the objects that interests concern, in the order of their keys: by index, since the
/// interests were set before.
fn select(store: &Store, interests: &[Interest]) -> Vec<Object> {
    let found = interests.iter().flat_map(|interest| store.concerned_by(interest));
    let found: BTreeMap<_, _> = found.map(|object| (object.key().clone(), object)).collect();
    found.into_values().collect()
}

/// Returns the uid of the parent in the uid of one of its revisions.
fn parent_of(uid: &str) -> &str {
    uid.split_once('/').map_or(uid, |(parent, _)| parent)
}

fn input_of(type_ref: &TypeRef) -> String {
    format!("related {type_ref}")
}

fn namespace_type() -> TypeRef {
    TypeRef::resource("", "v1", "namespaces")
}

pub(super) mod customize;
#[cfg(test)]
mod tests;
