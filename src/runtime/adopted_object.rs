//! Objects of an adopted controller: the request that names one, and those that are gone.

use std::{collections::HashSet, sync::Arc};

use kube::Resource;

use crate::{controller::Request, informer::ObjectKey};

/// Returns the request of an object, by its own metadata. kube's reference to a cluster-scoped
/// object has the namespace of the owned object whose change caused the reconcile.
pub(super) fn request_of(object: &impl Resource) -> Request {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default().into();
    ObjectKey { namespace: meta.namespace.as_deref().map(Into::into), name }.into()
}

/// Returns the requests whose objects are not in the content of a store. Reads each object once.
pub(super) fn gone<'a>(
    requests: impl Iterator<Item = &'a Request>,
    stored: &[Arc<impl Resource>],
) -> Vec<Request> {
    let names = stored.iter().map(|object| {
        let meta = object.meta();
        (meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
    });
    let names: HashSet<_> = names.collect();
    let is_gone =
        |request: &&Request| !names.contains(&(request.namespace.as_deref(), &*request.name));
    requests.filter(is_gone).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::Cow,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use kube::{api::ObjectMeta, core::ClusterResourceScope};

    use super::*;

    /// Object that counts the reads of its metadata.
    struct Counting {
        meta: ObjectMeta,
        reads: AtomicUsize,
    }

    impl Resource for Counting {
        type DynamicType = ();
        type Scope = ClusterResourceScope;

        fn kind((): &()) -> Cow<'_, str> {
            "Counting".into()
        }

        fn group((): &()) -> Cow<'_, str> {
            "example.com".into()
        }

        fn version((): &()) -> Cow<'_, str> {
            "v1".into()
        }

        fn plural((): &()) -> Cow<'_, str> {
            "countings".into()
        }

        fn meta(&self) -> &ObjectMeta {
            self.reads.fetch_add(1, Ordering::Relaxed);
            &self.meta
        }

        fn meta_mut(&mut self) -> &mut ObjectMeta {
            &mut self.meta
        }
    }

    fn stored(namespace: Option<&str>, name: &str) -> Arc<Counting> {
        let (name, namespace) = (Some(name.to_owned()), namespace.map(str::to_owned));
        let meta = ObjectMeta { name, namespace, ..ObjectMeta::default() };
        Arc::new(Counting { meta, reads: AtomicUsize::new(0) })
    }

    #[test]
    fn requests_of_objects_that_are_not_stored_are_gone() {
        let objects = [stored(None, "a"), stored(Some("x"), "b")];
        let named = objects.each_ref().map(|object| request_of(&**object));
        assert_eq!(named, [Request::cluster("a"), Request::namespaced("x", "b")]);
        let others = [Request::cluster("b"), Request::namespaced("y", "b"), Request::cluster("c")];

        assert_eq!(gone(named.iter().chain(&others), &objects), others);
    }

    #[test]
    fn each_stored_object_is_read_once_however_many_requests_failed() {
        let objects = ["a", "b", "c"].map(|name| stored(None, name));
        let failed = ["a", "b", "c", "d", "e"].map(Request::cluster);

        assert_eq!(gone(failed.iter(), &objects), failed[3..]);

        assert!(objects.iter().all(|object| object.reads.load(Ordering::Relaxed) == 1));
    }
}
