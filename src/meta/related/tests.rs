use bytes::Bytes;
use serde_json::{Value, json};

use super::{customize::related_rules, *};
use crate::{
    kind::Scope,
    meta::{
        children::fixtures::served, hooks::rule::HookVersion,
        options::customize_limits::CustomizeLimits,
    },
};

fn parent(name: &str) -> Request {
    Request::namespaced("ns", name)
}

/// Change of the labels of a namespace.
fn labelled(old: Option<Value>, new: Option<Value>) -> Delta {
    let [old, new] = [old, new].map(|labels| {
        let json = json!({"metadata": {"name": "team", "labels": labels?}});
        let served = served("", "namespaces", "Namespace", Scope::Cluster);
        Some(Object::from_json(json.to_string(), &served).unwrap())
    });
    let key = old.as_ref().or(new.as_ref()).unwrap().key().clone();
    Delta { key, old, new, initial: false, interests: Vec::new() }
}

/// Keeps a response with these selectors of namespaces.
fn keep_selectors(related: &RelatedObjects, parent: &Request, selectors: &[Value]) {
    let rules = selectors.iter().map(|selector| {
        json!({"apiVersion": "v1", "resource": "configmaps", "namespaceSelector": selector})
    });
    let body = json!({"relatedResources": rules.collect::<Vec<_>>()});
    let body = Bytes::from(body.to_string());
    let limits = CustomizeLimits::default();
    let rules = related_rules(&body, false, HookVersion::V2, None, &limits).unwrap();
    let declared = JsonDigest::of(b"{}").unwrap();
    related.keep_response(parent, &Arc::from("u"), declared, &rules.into());
}

#[tokio::test(start_paused = true)]
async fn namespace_concerns_the_parents_whose_selector_begins_or_ends_to_match() {
    let related = RelatedObjects::default();
    let app = |value: &str| json!({"matchLabels": {"app": value}});
    let tier = json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    keep_selectors(&related, &parent("x"), &[app("x")]);
    keep_selectors(&related, &parent("both"), &[app("x"), tier]);
    keep_selectors(&related, &parent("moves"), &[app("x"), app("z")]);
    let of = |old: Option<Value>, new: Option<Value>| {
        let change = labelled(old, new);
        let all = ["both", "moves", "x", "without a response"].into_iter();
        let found = all.filter(|name| related.matches_differently(&parent(name), &change));
        found.collect::<Vec<_>>().join(", ")
    };
    let [x, y, z] = ["x", "y", "z"].map(|value| json!({"app": value}));
    let all = "both, moves, x, without a response";

    assert_eq!(of(None, Some(x.clone())), all);
    assert_eq!(of(Some(x.clone()), Some(y.clone())), all);
    assert_eq!(of(Some(x.clone()), None), all);
    let other = json!({"app": "x", "other": "1"});
    assert_eq!(of(Some(x.clone()), Some(other)), "without a response");
    let tier = json!({"app": "x", "tier": "1"});
    assert_eq!(of(Some(x.clone()), Some(tier)), "both, without a response");
    assert_eq!(of(Some(y.clone()), None), "without a response");
    assert_eq!(of(Some(y), Some(z)), "moves, without a response");
}

#[tokio::test(start_paused = true)]
async fn responses_of_ended_revisions_and_of_an_earlier_parent_are_removed() {
    let (related, key) = (RelatedObjects::default(), parent("a"));
    let declared = JsonDigest::of(b"{}").unwrap();
    let keep = |uid: &str| {
        let rules: Arc<[RelatedRule]> = Arc::from([]);
        related.keep_response(&key, &Arc::from(uid), declared, &rules);
    };
    let kept = || {
        let all = ["u", "u/one", "u/two", "v"];
        let kept = all.into_iter().filter(|uid| related.response(&key, uid, declared).is_some());
        kept.collect::<Vec<_>>()
    };
    for uid in ["u", "u/one", "u/two"] {
        keep(uid);
    }
    assert_eq!(kept(), ["u", "u/one", "u/two"]);

    related.retain_responses(&key, &["u", "u/two"].map(Arc::<str>::from));
    assert_eq!(kept(), ["u", "u/two"]);

    keep("v");
    assert_eq!(kept(), ["v"]);
}

#[tokio::test(start_paused = true)]
async fn response_is_used_for_twenty_minutes_for_the_parent_that_it_is_about() {
    let (related, key, uid) = (RelatedObjects::default(), parent("a"), Arc::from("u"));
    let [one, other] = [b"{\"spec\":1}", b"{\"spec\":2}"].map(|it| JsonDigest::of(it).unwrap());
    let rules: Arc<[RelatedRule]> = Arc::from([]);
    related.keep_response(&key, &uid, one, &rules);

    assert!(related.response(&key, "u", one).is_some());
    assert!(related.response(&key, "u", other).is_none(), "declared differently");
    assert!(related.response(&key, "v", one).is_none(), "another parent of that name");
    assert!(related.response(&parent("b"), "u", one).is_none());
    tokio::time::advance(RESPONSE_LIFETIME - Duration::from_secs(1)).await;
    assert!(related.response(&key, "u", one).is_some());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(related.response(&key, "u", one).is_none());
}

#[tokio::test(start_paused = true)]
async fn sync_keeps_the_responses_of_its_live_revisions_alone() {
    let (related, key) = (RelatedObjects::default(), parent("a"));
    let [latest, one, two, new] = ["u", "u/one", "u/two", "u/new"].map(Arc::<str>::from);
    let declared = JsonDigest::of(b"{}").unwrap();
    let rules: [Arc<[RelatedRule]>; 3] = std::array::from_fn(|_| Arc::from([]));
    for (uid, rules) in [&latest, &one, &two].into_iter().zip(&rules) {
        related.keep_response(&key, uid, declared, rules);
    }

    let older = related.rules_of_older(&key, &latest, &[two.clone(), new]);

    assert_eq!(older.len(), 2);
    assert!(Arc::ptr_eq(&older[0], &rules[2]));
    assert!(Arc::ptr_eq(&older[1], &rules[0]), "it has none of its own yet");
    assert!(related.response(&key, &one, declared).is_none());
    assert!(related.response(&key, &two, declared).is_some());
    assert!(related.rules_of_older(&key, &latest, &[]).is_empty(), "no method is rolling");
    assert!(related.response(&key, &two, declared).is_none());
    assert!(related.response(&key, &latest, declared).is_some());
}
