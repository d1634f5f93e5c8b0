//! Tells the informers of a cluster what becomes of their types.
//!
//! An informer takes no answer of the server for a proof, so it does not end by itself when its
//! type is gone, whoever subscribes to it. The registry has the proof.

use std::collections::HashMap;

use tokio::select;
use tracing::debug;

use crate::{
    discovery::{TypeRegistry, TypeState, TypeStatus},
    informer::InformerSet,
    kind::{TypeIdentity, TypeRef},
};

/// What is known of the very type that an informer was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Served,
    /// Nothing is proven.
    Unknown,
    Gone,
}

/// Follows the types of all informers, for as long as it is polled.
pub(super) async fn tell(types: TypeRegistry, informers: InformerSet) {
    let mut wanted = informers.types();
    let mut changes = types.changes();
    let mut told: HashMap<TypeIdentity, News> = HashMap::new();
    loop {
        changes.mark_unchanged();
        let identities: Vec<_> = wanted.borrow_and_update().keys().cloned().collect();
        told.retain(|identity, _| identities.binary_search(identity).is_ok());
        for identity in identities {
            let news = News::of(&identity, &types.get(&at_its_version(&identity)));
            let is_news = told.insert(identity.clone(), news) != Some(news);
            match news {
                News::Served if is_news => informers.type_served(&identity),
                News::Served | News::Unknown => {}
                // Said again at every look: somebody may have joined in between.
                News::Gone => {
                    debug!(resource = %identity, "type is gone, its informers end");
                    informers.type_gone(&identity);
                }
            }
        }
        // Both senders are in what this holds.
        select! {
            _changed = wanted.changed() => {}
            _changed = changes.changed() => {}
        }
    }
}

fn at_its_version(identity: &TypeIdentity) -> TypeRef {
    TypeRef::resource(&*identity.group, &*identity.version, &*identity.plural)
}

impl News {
    fn of(identity: &TypeIdentity, status: &TypeStatus) -> Self {
        let is_same = status.served.as_ref().is_some_and(|served| served.identity == *identity);
        match &status.state {
            TypeState::Served | TypeState::Terminating if is_same => Self::Served,
            TypeState::Unknown(_) => Self::Unknown,
            TypeState::Served
            | TypeState::Terminating
            | TypeState::Absent
            | TypeState::Installing(_)
            | TypeState::NotWatchable => Self::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{discovery::InstallingReason, informer::fixture, kind::ServedType};

    fn widgets(uid: &str) -> ServedType {
        let mut widgets = fixture::widgets();
        widgets.identity.uid = Some(uid.into());
        widgets
    }

    #[track_caller]
    fn check(state: TypeState, uid: Option<&str>, expected: News) {
        let served = uid.map(|uid| Arc::new(widgets(uid)));
        let status = TypeStatus { state, served, since: Timestamp::UNIX_EPOCH };

        assert_eq!(News::of(&widgets("old").identity, &status), expected);
    }

    #[test]
    fn only_proof_of_another_or_no_type_is_the_end() {
        check(TypeState::Served, Some("old"), News::Served);
        check(TypeState::Terminating, Some("old"), News::Served);
        check(TypeState::Served, Some("new"), News::Gone);
        check(TypeState::Absent, None, News::Gone);
        let unserved = InstallingReason::VersionNotServed { served: vec!["v2".into()] };
        check(TypeState::Installing(unserved), None, News::Gone);
        check(TypeState::Unknown(None), None, News::Unknown);
        check(TypeState::Unknown(Some(Box::new(TypeState::Served))), Some("old"), News::Unknown);
        check(TypeState::Unknown(Some(Box::new(TypeState::Absent))), None, News::Unknown);
    }
}
