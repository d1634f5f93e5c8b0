//! Properties: judgements depend on the cluster's state, not on the order of the events.

use proptest::prelude::*;

use super::*;

/// State of a cluster: CRDs by uid, with versions and life cycle, and other types.
#[derive(Clone, Debug, PartialEq)]
struct Cluster {
    widgets: Option<Kind>,
    gadgets: Option<Kind>,
    /// uid of the APIService, and whether it serves a resource.
    metrics: Option<(u8, bool)>,
    stateful_sets: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    uid: u8,
    /// True if its list kind is not the conventional one.
    odd: bool,
    newer: bool,
    older: bool,
    life: Life,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    NewBorn,
    Established,
    Terminating,
}

fn kind() -> impl Strategy<Value = Option<Kind>> {
    let life = prop_oneof![
        1 => Just(Life::NewBorn), 3 => Just(Life::Established), 1 => Just(Life::Terminating)
    ];
    prop::option::of(
        (1..3_u8, any::<bool>(), any::<(bool, bool)>(), life)
            .prop_map(|(uid, odd, (newer, older), life)| Kind { uid, odd, newer, older, life }),
    )
}

fn cluster() -> impl Strategy<Value = Cluster> {
    (kind(), kind(), prop::option::of((1..3_u8, any::<bool>())), any::<bool>()).prop_map(
        |(widgets, gadgets, metrics, stateful_sets)| Cluster {
            widgets,
            gadgets,
            metrics,
            stateful_sets,
        },
    )
}

impl Cluster {
    fn crds(&self) -> Vec<Crd> {
        let build = |plural: &str, name: &str, kind: Kind| {
            let made = crd(plural, name)
                .uid(&format!("{plural}-{}", kind.uid))
                .versions(&[("v2", kind.newer), ("v1", kind.older)]);
            let made = if kind.odd { made.list_kind(&format!("{name}Array")) } else { made };
            match kind.life {
                Life::NewBorn => made.new_born(),
                Life::Established => made,
                Life::Terminating => made.terminating(),
            }
            .build()
        };
        let widgets = self.widgets.map(|kind| build("widgets", "Widget", kind));
        let gadgets = self.gadgets.map(|kind| build("gadgets", "Gadget", kind));
        widgets.into_iter().chain(gadgets).collect()
    }

    fn services(&self) -> Vec<ApiServiceHeader> {
        let mut services = vec![service("apps", "v1", Backend::BuiltIn)];
        if let Some((uid, _)) = self.metrics {
            let backend = aggregated(&format!("m-{uid}"), Some(true));
            services.push(service("metrics.example.com", "v1", backend));
        }
        let served =
            |version: fn(&Kind) -> bool| self.widgets.iter().chain(&self.gadgets).any(version);
        if served(|kind| kind.newer) {
            services.push(service("example.com", "v2", Backend::Crds));
        }
        if served(|kind| kind.older) {
            services.push(service("example.com", "v1", Backend::Crds));
        }
        services
    }

    fn response(&self) -> DiscoveryResponse {
        let mut apps = vec![resource("deployments", "Deployment")];
        if self.stateful_sets {
            apps.push(resource("statefulsets", "StatefulSet"));
        }
        let loads = [resource("loads", "Load")];
        let mut versions = vec![("apps", "v1", Some(&apps[..]))];
        if let Some((_, with_resource)) = self.metrics {
            let resources = if with_resource { &loads[..] } else { &[] };
            versions.push(("metrics.example.com", "v1", Some(resources)));
        }
        response(&versions)
    }

    /// Response of discovery about all types, those of CRDs included.
    fn discovered(&self) -> DiscoveryResponse {
        let mut all = self.response();
        for (version, is_served) in
            [("v2", (|kind| kind.newer) as fn(&Kind) -> bool), ("v1", |kind| kind.older)]
        {
            let listed = |kind: &Option<Kind>, plural, name| {
                let is_listed = |kind: &Kind| is_served(kind) && kind.life != Life::NewBorn;
                kind.as_ref().is_some_and(is_listed).then(|| resource(plural, name))
            };
            let resources: Vec<ServedResource> = listed(&self.widgets, "widgets", "Widget")
                .into_iter()
                .chain(listed(&self.gadgets, "gadgets", "Gadget"))
                .collect();
            if !resources.is_empty() {
                all.versions
                    .extend(response(&[("example.com", version, Some(&resources))]).versions);
            }
        }
        all
    }

    /// A catalog that has read this cluster and nothing else.
    fn read(&self) -> Catalog {
        let (mut catalog, mut touched) = (Catalog::default(), ChangedTypes::default());
        catalog.crds_listed(self.crds(), &mut touched);
        catalog.services_listed(self.services(), &mut touched);
        catalog.settle(self.response());
        catalog
    }
}

/// All requests that a client could make.
fn questions() -> Vec<TypeRef> {
    let mut questions = Vec::new();
    for (group, plural, kind) in [
        ("example.com", "widgets", "Widget"),
        ("example.com", "gadgets", "Gadget"),
        ("apps", "deployments", "Deployment"),
        ("apps", "statefulsets", "StatefulSet"),
        ("metrics.example.com", "loads", "Load"),
        ("example.org", "things", "Thing"),
    ] {
        for version in ["v1", "v2"] {
            questions.push(TypeRef::resource(group, version, plural));
            questions.push(TypeRef::kind(group, version, kind));
        }
        questions.push(TypeRef::resource(group, "v1", plural).any_version());
        questions.push(TypeRef::kind(group, "v1", kind).any_version());
    }
    questions
}

fn responses(catalog: &Catalog) -> Vec<(String, TypeJudgement)> {
    questions().iter().map(|of| (of.to_string(), catalog.status(of))).collect()
}

/// An input of the catalog.
#[derive(Clone, Debug)]
enum Event {
    CrdApplied(Crd),
    CrdDeleted(Crd),
    CrdsListed(Vec<Crd>),
    ServiceApplied(ApiServiceHeader),
    ServiceDeleted(ApiServiceHeader),
    ServicesListed(Vec<ApiServiceHeader>),
    Answered(DiscoveryResponse),
}

impl Event {
    fn apply(self, catalog: &mut Catalog, touched: &mut ChangedTypes) {
        match self {
            Self::CrdApplied(crd) => catalog.crd_applied(crd, touched),
            Self::CrdDeleted(crd) => catalog.crd_deleted(&crd, touched),
            Self::CrdsListed(crds) => catalog.crds_listed(crds, touched),
            Self::ServiceApplied(service) => {
                catalog.service_applied(service, touched);
            }
            Self::ServiceDeleted(service) => {
                catalog.service_deleted(&service.group, &service.version, touched);
            }
            Self::ServicesListed(services) => {
                catalog.services_listed(services, touched);
            }
            Self::Answered(response) => {
                catalog.answered(response, DiscoveryScope::Watching, arrival(0), touched)
            }
        }
    }
}

/// Events between two states of a cluster, as single changes or as lists.
fn changes(before: &Cluster, after: &Cluster, as_lists: (bool, bool)) -> Vec<Event> {
    let mut events = vec![Event::Answered(after.response())];
    if as_lists.0 {
        events.push(Event::CrdsListed(after.crds()));
    } else {
        let (old, new) = (before.crds(), after.crds());
        let gone = old.iter().filter(|old| new.iter().all(|new| new.plural != old.plural));
        events.extend(gone.cloned().map(Event::CrdDeleted));
        events.extend(new.into_iter().filter(|new| !old.contains(new)).map(Event::CrdApplied));
    }
    if as_lists.1 {
        events.push(Event::ServicesListed(after.services()));
    } else {
        let (old, new) = (before.services(), after.services());
        let same = |one: &ApiServiceHeader, other: &ApiServiceHeader| {
            one.group == other.group && one.version == other.version
        };
        let gone = old.iter().filter(|old| new.iter().all(|new| !same(old, new)));
        events.extend(gone.cloned().map(Event::ServiceDeleted));
        events.extend(new.into_iter().filter(|new| !old.contains(new)).map(Event::ServiceApplied));
    }
    events
}

/// Two states of a cluster, and the events between them in some order.
fn change() -> impl Strategy<Value = (Cluster, Cluster, Vec<Event>)> {
    (cluster(), cluster(), any::<(bool, bool)>()).prop_flat_map(|(before, after, as_lists)| {
        let events = changes(&before, &after, as_lists);
        (Just(before), Just(after), Just(events).prop_shuffle())
    })
}

/// Returns whether a subscriber to this type is woken.
fn is_touched(touched: &ChangedTypes, of: &TypeRef) -> bool {
    touched.all
        || touched.groups.contains(of.group.as_str())
        || touched.types.iter().any(|(name, kinds)| {
            name.group == of.group
                && match &of.name {
                    TypeName::Resource(plural) => name.resource == *plural,
                    TypeName::Kind(kind) => kinds.contains(kind.as_str()),
                }
        })
}

proptest! {
    #[test]
    fn a_change_ends_in_the_same_state_in_any_order_of_its_events((before, after, events) in change()) {
        let mut catalog = before.read();

        for event in events {
            event.apply(&mut catalog, &mut ChangedTypes::default());
        }
        // A changed APIService triggers new discovery requests.
        catalog.settle(after.response());

        prop_assert_eq!(responses(&catalog), responses(&after.read()));
    }

    #[test]
    fn a_first_read_ends_in_the_same_state_in_any_order_of_its_sources(
        cluster in cluster(),
        order in Just(vec![0, 1, 2]).prop_shuffle(),
    ) {
        let mut catalog = Catalog::default();

        for source in order {
            let event = match source {
                0 => Event::CrdsListed(cluster.crds()),
                1 => Event::ServicesListed(cluster.services()),
                _ => Event::Answered(cluster.response()),
            };
            event.apply(&mut catalog, &mut ChangedTypes::default());
        }
        catalog.settle(cluster.response());

        prop_assert_eq!(responses(&catalog), responses(&cluster.read()));
    }

    #[test]
    fn subscribers_are_woken_when_their_status_changes((before, _, events) in change()) {
        let mut catalog = before.read();

        for event in events {
            let old = responses(&catalog);
            let mut touched = ChangedTypes::default();
            event.clone().apply(&mut catalog, &mut touched);
            for (of, (_, old)) in questions().iter().zip(old) {
                let unchanged = catalog.status(of) == old;
                prop_assert!(unchanged || is_touched(&touched, of), "{} by {:?}", of, event);
            }
        }
    }

    /// Responses that omit a group version, or could not reach its server, prove nothing.
    #[test]
    fn types_missing_from_a_partial_response_are_not_gone(
        cluster in cluster(),
        partial in prop::collection::vec((any::<bool>(), any::<(bool, bool)>(), any::<(bool, bool)>()), 1..6),
    ) {
        let mut catalog = cluster.read();
        let before = responses(&catalog);

        for (complete, named, current) in partial {
            let mut response = cluster.response();
            response.complete = complete;
            for (version, is_current) in response.versions.iter_mut().zip([current.0, current.1]) {
                if !is_current {
                    version.resources = None;
                }
            }
            let mut keep = [named.0, named.1].into_iter();
            response.versions.retain(|_| keep.next().unwrap_or(true));
            catalog.discover(response);

            for (of, old) in &before {
                let new = responses(&catalog).into_iter().find(|(new, _)| new == of).unwrap().1;
                if old.served.is_some() {
                    prop_assert!(new.served == old.served, "{} was {:?}, is {:?}", of, old, new);
                    let frozen = TypeState::Unknown(Some(Box::new(old.state.clone())));
                    prop_assert!(new.state == old.state || new.state == frozen, "{:?}", new.state);
                }
            }
        }
        // The next complete response settles every unknown state.
        catalog.discover(cluster.response());
        prop_assert_eq!(responses(&catalog), before);
    }

    /// The permission to watch CRDs is lost and granted again. Responses that omit something for
    /// less than a period change nothing either.
    #[test]
    fn static_mode_changes_no_identity(
        cluster in cluster(),
        partial in prop::collection::vec((any::<bool>(), any::<[u8; 5]>()), 1..6),
    ) {
        let mut catalog = cluster.read();
        let before = responses(&catalog);
        let frozen = |old: &TypeJudgement, new: &TypeJudgement| {
            new.served == old.served
                && (new.state == old.state
                    || new.state == TypeState::Unknown(Some(Box::new(old.state.clone()))))
        };

        for (seconds, (complete, parts)) in (0..).zip(partial) {
            let mut response = cluster.discovered();
            response.complete = complete;
            let mut parts = parts.into_iter().cycle();
            response.versions.retain_mut(|version| match parts.next().unwrap_or_default() % 4 {
                0 => false,
                1 => {
                    version.resources = None;
                    true
                }
                2 if *version.group == *"example.com" => {
                    version.resources = Some(Vec::new());
                    true
                }
                _ => true,
            });
            let known = responses(&catalog);
            let touched = catalog.poll(response, seconds);
            for ((of, (_, known)), (_, old)) in questions().iter().zip(known).zip(&before) {
                let new = catalog.status(of);
                prop_assert!(new == known || is_touched(&touched, of), "{}", of);
                if old.served.is_some() {
                    prop_assert!(frozen(old, &new), "{} was {:?}, is {:?}", of, old, new);
                } else {
                    prop_assert!(new.served.is_none(), "{} is {:?}", of, new);
                }
            }
        }
        for seconds in [10, 100] {
            catalog.poll(cluster.discovered(), seconds);
            for (of, old) in &before {
                let new = responses(&catalog).into_iter().find(|(new, _)| new == of).unwrap().1;
                if old.served.is_some() {
                    prop_assert_eq!(&new, old, "{}", of);
                }
            }
        }
        catalog.read_again(cluster.crds());
        catalog.discover(cluster.response());
        prop_assert_eq!(responses(&catalog), before);
    }

    /// Types found without permission to watch CRDs keep their identity when it is granted.
    #[test]
    fn leaving_static_mode_changes_no_identity(cluster in cluster(), services in any::<bool>()) {
        let mut catalog = Catalog::default();
        if services {
            catalog.services_listed(cluster.services(), &mut ChangedTypes::default());
        } else {
            catalog.services_refused(&mut ChangedTypes::default());
        }
        for seconds in [0, 100] {
            catalog.poll(cluster.discovered(), seconds);
        }
        let before = responses(&catalog);

        catalog.read_again(cluster.crds());
        catalog.discover(if services { cluster.response() } else { cluster.discovered() });

        for ((_, old), (of, new)) in before.into_iter().zip(responses(&catalog)) {
            let identity = |it: &TypeJudgement| {
                let served = it.served.clone();
                served.map(|it| (it.identity.clone(), it.kind.clone(), it.list_kind.clone()))
            };
            prop_assert_eq!(identity(&new), identity(&old), "{}", of);
        }
    }
}
