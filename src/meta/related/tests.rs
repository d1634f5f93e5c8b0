use serde_json::{Value, json};

use super::*;
use crate::{
    informer::{COMPARED, ObjectKey},
    kind::Scope,
    meta::children::fixtures::served,
};

fn object(namespace: &str, name: &str, labels: Value) -> Object {
    let json = json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}});
    let served = served("", "configmaps", "ConfigMap", Scope::Namespaced);
    Object::from_json(json.to_string(), &served).unwrap()
}

fn change(old: Option<Object>, new: Option<Object>) -> Delta {
    let key = old.as_ref().or(new.as_ref()).unwrap().key().clone();
    Delta { key, old, new, initial: false, interests: Vec::new() }
}

fn selected(namespace: Option<&str>, selector: &str) -> Interest {
    let (namespace, selector) = (namespace.map(Arc::from), selector.parse().unwrap());
    Interest::Selected(Selection { namespace, selector })
}

fn parent(name: &str) -> Request {
    Request::namespaced("ns", name)
}

fn names(parents: &[Request]) -> Vec<&str> {
    parents.iter().map(|parent| &*parent.name).collect()
}

#[test]
fn related_object_concerns_its_parents_before_and_after_a_change() {
    let mut concerned = ConcernedParents::default();
    concerned.set(&parent("labels"), vec![selected(None, "app=x")]);
    concerned.set(&parent("own"), vec![selected(Some("ns"), "")]);
    let named = ObjectKey::namespaced("far", "a");
    concerned.set(&parent("named"), vec![Interest::Named(named)]);
    concerned.set(&parent("anywhere"), vec![Interest::NamedAnywhere("a".into())]);
    let of = |concerned: &ConcernedParents, old, new| {
        let found = concerned.by_change(&change(old, new));
        names(&found).join(" ")
    };
    let (x, y) = (json!({"app": "x"}), json!({"app": "y"}));

    assert_eq!(of(&concerned, None, Some(object("ns", "b", x.clone()))), "labels own");
    assert_eq!(of(&concerned, None, Some(object("far", "a", y.clone()))), "anywhere named");
    let (old, new) = (object("far", "b", x.clone()), object("far", "b", y));
    assert_eq!(of(&concerned, Some(old.clone()), Some(new)), "labels");
    assert_eq!(of(&concerned, Some(old.clone()), None), "labels");

    concerned.set(&parent("labels"), vec![selected(None, "app=z")]);
    assert_eq!(of(&concerned, Some(old), None), "");
    for name in ["labels", "own", "named", "anywhere"] {
        assert!(concerned.leave(&parent(name)));
        assert!(!concerned.leave(&parent(name)));
    }
    assert_eq!(of(&concerned, None, Some(object("ns", "a", x))), "");
}

#[test]
fn namespace_concerns_the_parents_whose_selector_begins_or_ends_to_match() {
    let mut concerned = ConcernedParents::default();
    concerned.set(&parent("x"), vec![selected(None, "app=x")]);
    concerned.set(&parent("both"), vec![selected(None, "app=x"), selected(None, "tier")]);
    let of = |old: Option<Value>, new: Option<Value>| {
        let at = |labels| object("", "team", labels);
        let found = concerned.by_match(&change(old.map(at), new.map(at)));
        names(&found).join(" ")
    };
    let (x, y) = (json!({"app": "x"}), json!({"app": "y"}));

    assert_eq!(of(None, Some(x.clone())), "both x");
    assert_eq!(of(Some(x.clone()), Some(y.clone())), "both x");
    assert_eq!(of(Some(x.clone()), Some(json!({"app": "x", "other": "1"}))), "");
    assert_eq!(of(Some(x.clone()), Some(json!({"app": "x", "tier": "1"}))), "both");
    assert_eq!(of(Some(y), None), "");
    assert_eq!(of(Some(x), None), "both x");
    let (dev, prod) = (json!({"env": "dev"}), json!({"env": "prod"}));
    concerned.set(&parent("moves"), vec![selected(None, "env=dev"), selected(None, "env=prod")]);
    let moved = change(Some(object("", "team", dev)), Some(object("", "team", prod)));
    assert_eq!(names(&concerned.by_match(&moved)), ["moves"], "from one selector to the other");
}

#[test]
#[expect(clippy::print_stderr, reason = "the ratio is shown where the test is run by hand")]
fn cost_of_a_related_event_does_not_depend_on_the_number_of_parents() {
    let compared = |parents: usize| {
        let mut concerned = ConcernedParents::default();
        for number in 0..parents {
            let namespace = format!("ns-{number}");
            let own = ObjectKey::namespaced(&*namespace, "config");
            let interests = vec![
                selected(None, &format!("app=x,parent=p{number}")),
                selected(Some(&namespace), ""),
                Interest::Named(own),
                Interest::NamedAnywhere(format!("name-{number}").into()),
            ];
            concerned.set(&Request::namespaced(&*namespace, "p"), interests);
        }
        let changed = object("ns-7", "config", json!({"app": "x", "parent": "p3"}));
        COMPARED.set(0);
        let found = concerned.by_change(&change(None, Some(changed)));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["ns-3/p", "ns-7/p"]);
        COMPARED.get()
    };

    let [few, many] = [10, 10_000].map(compared);
    eprintln!("comparisons at 10 and 10,000 parents: {few} and {many}");
    assert_eq!(few, many);
}

#[tokio::test(start_paused = true)]
async fn responses_of_ended_revisions_and_of_an_earlier_parent_are_removed() {
    let (related, key) = (RelatedObjects::default(), parent("a"));
    let declared = Fingerprint::of(b"{}").unwrap();
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
    let [one, other] = [b"{\"spec\":1}", b"{\"spec\":2}"].map(|it| Fingerprint::of(it).unwrap());
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
    let declared = Fingerprint::of(b"{}").unwrap();
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
