//! Status of every runnable at one moment, cheap to take and cheap to compare.
//!
//! The manager publishes a snapshot after each event, and readers keep theirs. Copy-on-write of a
//! whole map would copy all entries each time. This map is a persistent tree with shared nodes: a
//! change copies only the path from the root to it.

use std::{
    cmp::Ordering,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Index,
    sync::Arc,
};

use super::{ControllerName, RunnableStatus};

/// Status of every runnable by name at one moment. A clone shares the tree and costs nothing.
#[derive(Clone, Default)]
pub struct Snapshot {
    root: Link,
    len: usize,
}

type Link = Option<Arc<Node>>;

/// Node of a treap: ordered by name, with each parent's weight above its children's.
///
/// The weight is derived from the name, so the shape of the tree depends only on its names. That
/// keeps it balanced, and lets two snapshots be compared only where they differ.
struct Node {
    name: ControllerName,
    status: Arc<RunnableStatus>,
    weight: u64,
    left: Link,
    right: Link,
}

/// Iterator over a snapshot in order of names.
#[derive(Clone)]
pub struct Iter<'a> {
    /// Nodes whose left subtree has been visited, the nearest last.
    path: Vec<&'a Node>,
    left: usize,
}

impl Snapshot {
    /// Returns the status of one runnable.
    pub fn get(&self, name: &ControllerName) -> Option<&Arc<RunnableStatus>> {
        find(&self.root, name).map(|node| &node.status)
    }

    /// Number of runnables.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no runnables.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all runnables in order of names.
    pub fn iter(&self) -> Iter<'_> {
        let mut iter = Iter { path: Vec::new(), left: self.len };
        iter.descend(&self.root);
        iter
    }

    /// Iterates over all names in order.
    pub fn keys(&self) -> impl Iterator<Item = &ControllerName> {
        self.iter().map(|(name, _)| name)
    }

    /// Iterates over all statuses in order of names.
    pub fn values(&self) -> impl Iterator<Item = &Arc<RunnableStatus>> {
        self.iter().map(|(_, status)| status)
    }

    /// Returns the statuses that are new or different since an earlier snapshot of the same
    /// manager. Removed runnables are not included. The cost grows with the number of changes, not
    /// of runnables.
    #[cfg(any(test, feature = "meta"))]
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<&Arc<RunnableStatus>> {
        let mut changed = Vec::new();
        let mut open: Vec<&Arc<Node>> = self.root.iter().collect();
        while let Some(node) = open.pop() {
            let old = find(&before.root, &node.name);
            if old.is_some_and(|old| Arc::ptr_eq(old, node)) {
                continue;
            }
            if !old.is_some_and(|old| Arc::ptr_eq(&old.status, &node.status)) {
                changed.push(&node.status);
            }
            open.extend(node.left.iter().chain(&node.right));
        }
        changed
    }

    pub(super) fn insert(&mut self, status: Arc<RunnableStatus>) {
        let name = status.name.clone();
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let node = Node { name, status, weight: hasher.finish(), left: None, right: None };
        self.len += usize::from(insert(&mut self.root, node));
    }

    /// Removes a runnable; returns whether it was present.
    pub(super) fn remove(&mut self, name: &ControllerName) -> bool {
        // Looked up first, so that the path is copied only for a change.
        let found = self.get(name).is_some();
        if found {
            remove(&mut self.root, name);
            self.len -= 1;
        }
        found
    }
}

fn find<'a>(mut link: &'a Link, name: &ControllerName) -> Option<&'a Arc<Node>> {
    while let Some(node) = link {
        link = match name.cmp(&node.name) {
            Ordering::Less => &node.left,
            Ordering::Greater => &node.right,
            Ordering::Equal => return Some(node),
        };
    }
    None
}

/// Inserts or replaces a node; returns whether the tree has grown.
fn insert(link: &mut Link, new: Node) -> bool {
    let Some(node) = link else {
        *link = Some(Arc::new(new));
        return true;
    };
    let here = Arc::make_mut(node);
    match new.name.cmp(&here.name) {
        Ordering::Equal => {
            here.status = new.status;
            false
        }
        Ordering::Less => {
            let added = insert(&mut here.left, new);
            if let Some(mut above) = here.left.take_if(|left| left.weight > here.weight) {
                here.left = Arc::make_mut(&mut above).right.take();
                let below = link.replace(above);
                set(link, |above| above.right = below);
            }
            added
        }
        Ordering::Greater => {
            let added = insert(&mut here.right, new);
            if let Some(mut above) = here.right.take_if(|right| right.weight > here.weight) {
                here.right = Arc::make_mut(&mut above).left.take();
                let below = link.replace(above);
                set(link, |above| above.left = below);
            }
            added
        }
    }
}

fn set(link: &mut Link, change: impl FnOnce(&mut Node)) {
    if let Some(node) = link {
        change(Arc::make_mut(node));
    }
}

fn remove(link: &mut Link, name: &ControllerName) {
    let Some(node) = link else { return };
    let here = Arc::make_mut(node);
    match name.cmp(&here.name) {
        Ordering::Less => remove(&mut here.left, name),
        Ordering::Greater => remove(&mut here.right, name),
        Ordering::Equal => *link = join(here.left.take(), here.right.take()),
    }
}

/// Joins two trees; all names of `left` are before those of `right`.
fn join(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, one) | (one, None) => one,
        (Some(mut left), Some(mut right)) => {
            if left.weight > right.weight {
                let top = Arc::make_mut(&mut left);
                top.right = join(top.right.take(), Some(right));
                Some(left)
            } else {
                let top = Arc::make_mut(&mut right);
                top.left = join(Some(left), top.left.take());
                Some(right)
            }
        }
    }
}

impl Clone for Node {
    fn clone(&self) -> Self {
        #[cfg(test)]
        tests::COPIES.with(|copies| copies.set(copies.get() + 1));
        let Self { name, status, weight, left, right } = self;
        Self {
            name: name.clone(),
            status: status.clone(),
            weight: *weight,
            left: left.clone(),
            right: right.clone(),
        }
    }
}

impl<'a> Iter<'a> {
    fn descend(&mut self, mut link: &'a Link) {
        while let Some(node) = link {
            self.path.push(node);
            link = &node.left;
        }
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a ControllerName, &'a Arc<RunnableStatus>);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.path.pop()?;
        self.left -= 1;
        self.descend(&node.right);
        Some((&node.name, &node.status))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Snapshot {
    type Item = (&'a ControllerName, &'a Arc<RunnableStatus>);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<Arc<RunnableStatus>> for Snapshot {
    fn from_iter<T: IntoIterator<Item = Arc<RunnableStatus>>>(statuses: T) -> Self {
        let mut snapshot = Self::default();
        statuses.into_iter().for_each(|status| snapshot.insert(status));
        snapshot
    }
}

impl Index<&ControllerName> for Snapshot {
    type Output = Arc<RunnableStatus>;

    /// # Panics
    ///
    /// When there is no runnable of that name.
    fn index(&self, name: &ControllerName) -> &Arc<RunnableStatus> {
        self.get(name).expect("the runnable is there")
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::manager::RunnableGroup;

    thread_local! {
        /// Nodes that were copied because a reader held their snapshot.
        pub(in crate::manager) static COPIES: Cell<usize> = const { Cell::new(0) };
    }

    fn status(name: &str, epoch: u64) -> Arc<RunnableStatus> {
        Arc::new(RunnableStatus {
            since: Timestamp::UNIX_EPOCH,
            epoch,
            ..RunnableStatus::new(name.into(), RunnableGroup::Others)
        })
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_leaves_earlier_moments_alone(
            changes in prop::collection::vec((0_u8..40, prop::option::of(0_u64..4)), 0..200)
        ) {
            let (mut snapshot, mut model) = (Snapshot::default(), BTreeMap::new());
            let mut moments = Vec::new();

            for (name, epoch) in changes {
                let name = ControllerName::from(format!("c{name}"));
                moments.push((snapshot.clone(), model.clone()));
                match epoch {
                    Some(epoch) => {
                        let status = status(name.as_str(), epoch);
                        snapshot.insert(status.clone());
                        model.insert(name, status);
                    }
                    None => {
                        prop_assert_eq!(snapshot.remove(&name), model.remove(&name).is_some());
                    }
                }
            }

            let last = (snapshot.clone(), model.clone());
            for (moment, model_then) in moments.into_iter().chain([last]) {
                prop_assert_eq!(moment.len(), model_then.len());
                prop_assert!(moment.iter().eq(&model_then));
                let mut changed = snapshot.changed_since(&moment);
                changed.sort_by(|a, b| a.name.cmp(&b.name));
                let is_new = |(name, new): &(&ControllerName, &Arc<RunnableStatus>)| {
                    !model_then.get(*name).is_some_and(|old| Arc::ptr_eq(old, new))
                };
                let expected: Vec<_> = model.iter().filter(is_new).map(|(_, new)| new).collect();
                prop_assert_eq!(changed, expected);
            }
        }
    }

    #[test]
    fn a_change_under_a_reader_copies_the_path_to_it_and_no_more() {
        let names: Vec<_> = (0..5000).map(|n| format!("c{n}")).collect();
        let mut snapshot: Snapshot = names.iter().map(|name| status(name, 0)).collect();
        let before = COPIES.get();

        for name in &names {
            let reader = snapshot.clone();
            snapshot.insert(status(name, 1));
            assert_eq!(snapshot.changed_since(&reader).len(), 1);
        }

        let copies = COPIES.get() - before;
        assert!(copies < 5000 * 30, "{copies} copies");
    }
}
