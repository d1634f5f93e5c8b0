//! What was said last: drawn at random, and kept to be compared with what came of it.

use std::collections::BTreeMap;

use fastrand::Rng;
use kube::core::{ApiResource, GroupVersionKind};
use pilotlight::testing::CrdBuilder;

pub(crate) const GROUP: &str = "chaos.test";
/// A parent has no more children.
const MOST: usize = 3;

/// A parent's specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) size: usize,
    pub(crate) text: u64,
}

/// A type of parents and its controller.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) number: usize,
    pub(crate) installed: bool,
    pub(crate) cluster_scoped: bool,
    /// The version that its controller asks for.
    pub(crate) served: bool,
    pub(crate) allowed: bool,
    pub(crate) declared: bool,
    pub(crate) paused: bool,
    pub(crate) recreates: bool,
    pub(crate) resync: i32,
    pub(crate) mood: Mood,
    pub(crate) parents: BTreeMap<usize, Spec>,
}

/// How a hook feels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Fine,
    Unreachable,
    Busy,
    Slow,
    Garbage,
    Refusing,
}

/// What a controller is to be in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Absent,
    Waiting,
    Running,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// Creates a parent, or changes it.
    Put(usize, usize, Spec),
    Delete(usize, usize),
    /// Deletes a child behind its parent's back.
    Strike(usize, usize),
    Uninstall(usize),
    /// Installs the type, perhaps with another scope, and creates parents.
    Return(usize, bool, Vec<(usize, Spec)>),
    Serve(usize, bool),
    Allow(usize, bool),
    /// Changes the controller's specification.
    Edit(usize),
    Pause(usize, bool),
    Declare(usize, bool),
    Feel(usize, Mood),
    /// Plays the faults of this seed instead of those before.
    Faults(u64),
    CutWatches,
    /// History is gone, or the connections of all watches.
    Expire,
    RestartManager,
}

impl Deed {
    /// Whether it concerns the life of controllers.
    pub(crate) fn is_lifecycle(&self) -> bool {
        match self {
            Self::Uninstall(_)
            | Self::Return(..)
            | Self::Serve(..)
            | Self::Edit(_)
            | Self::Pause(..)
            | Self::Declare(..)
            | Self::RestartManager => true,
            Self::Put(..)
            | Self::Delete(..)
            | Self::Strike(..)
            | Self::Allow(..)
            | Self::Feel(..)
            | Self::Faults(_)
            | Self::CutWatches
            | Self::Expire => false,
        }
    }
}

impl Kind {
    pub(crate) fn plural(&self) -> String {
        format!("kind{}s", self.number)
    }

    pub(crate) fn controller(&self) -> String {
        format!("chaos-{}", self.number)
    }

    pub(crate) fn crd(&self) -> CrdBuilder {
        let crd = CrdBuilder::new(GROUP, format!("Kind{}", self.number)).version("v2");
        let crd = if self.served { crd.version("v1") } else { crd.unserved_version("v1") };
        if self.cluster_scoped { crd.cluster_scoped() } else { crd }
    }

    /// By the version that is always served.
    pub(crate) fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, "v2", &format!("Kind{}", self.number));
        ApiResource::from_gvk_with_plural(&kind, &self.plural())
    }

    /// What a child's name begins with, and on the simulated server all of it.
    pub(crate) fn child(&self, parent: usize, child: usize) -> String {
        format!("{}-{parent}-{child}", self.plural())
    }

    pub(crate) fn expected(&self) -> Expected {
        match (self.declared && !self.paused, self.installed && self.served) {
            (false, _) => Expected::Absent,
            (true, false) => Expected::Waiting,
            (true, true) => Expected::Running,
        }
    }
}

/// All that was said.
#[derive(Debug)]
pub(crate) struct Desired {
    pub(crate) kinds: Vec<Kind>,
    /// How often the manager may have deleted each child.
    pub(crate) excuses: BTreeMap<String, usize>,
    /// Parents of each type at most, and of one that has returned.
    most: usize,
    fill: usize,
    random: Rng,
    texts: u64,
}

impl Desired {
    /// Nothing is installed or declared yet.
    pub(crate) fn new(seed: u64, controllers: usize, most: usize, fill: usize) -> Self {
        let kind = |number| Kind {
            number,
            installed: false,
            cluster_scoped: false,
            served: true,
            allowed: true,
            declared: false,
            paused: false,
            recreates: false,
            resync: 3600,
            mood: Mood::Fine,
            parents: BTreeMap::new(),
        };
        Self {
            kinds: (0..controllers).map(kind).collect(),
            excuses: BTreeMap::new(),
            most,
            fill,
            random: Rng::with_seed(seed),
            texts: 0,
        }
    }

    /// Everything there is, once.
    pub(crate) fn beginning(&mut self) -> Vec<Deed> {
        let all = 0..self.kinds.len();
        all.flat_map(|at| [Deed::Declare(at, true), Deed::Return(at, false, self.filling())])
            .collect()
    }

    /// What makes everything good that is missing, and leaves what was said of it otherwise.
    pub(crate) fn restoring(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for at in 0..self.kinds.len() {
            let Kind { installed, served, declared, paused, .. } = self.kinds[at];
            if !installed {
                deeds.push(Deed::Return(at, false, self.filling()));
            }
            if !served {
                deeds.push(Deed::Serve(at, true));
            }
            if !declared {
                deeds.push(Deed::Declare(at, true));
            } else if paused {
                deeds.push(Deed::Pause(at, false));
            }
        }
        deeds
    }

    /// What ends whatever keeps anybody from working.
    pub(crate) fn peace(&self) -> Vec<Deed> {
        let denied = self.kinds.iter().filter(|kind| !kind.allowed);
        let moody = self.kinds.iter().filter(|kind| kind.mood != Mood::Fine);
        denied
            .map(|kind| Deed::Allow(kind.number, true))
            .chain(moody.map(|kind| Deed::Feel(kind.number, Mood::Fine)))
            .collect()
    }

    /// What happens next, of all there is.
    pub(crate) fn draw(&mut self) -> Deed {
        match self.random.u32(0..1000) {
            0..700 => self.draw_object(),
            700..790 => self.draw_lifecycle(),
            790..830 => {
                let at = self.any();
                Deed::Allow(at, !self.kinds[at].allowed)
            }
            830..930 => self.draw_mood(),
            930..950 => Deed::Faults(self.random.u64(..)),
            950..980 => Deed::CutWatches,
            980..995 => Deed::Expire,
            _ => Deed::RestartManager,
        }
    }

    /// What happens next in the life of a controller.
    pub(crate) fn draw_lifecycle(&mut self) -> Deed {
        let at = self.any();
        let kind = self.kinds[at].clone();
        match self.random.u32(0..10) {
            0..6 if !kind.installed => {
                let other_scope = self.random.u32(0..4) == 0;
                Deed::Return(at, kind.cluster_scoped != other_scope, self.filling())
            }
            0..4 => Deed::Uninstall(at),
            4..6 => Deed::Serve(at, !kind.served),
            6..8 if kind.declared => Deed::Edit(at),
            8 if kind.declared => Deed::Pause(at, !kind.paused),
            _ => Deed::Declare(at, !kind.declared),
        }
    }

    fn draw_object(&mut self) -> Deed {
        let at = self.any();
        if !self.kinds[at].installed {
            return self.draw_lifecycle();
        }
        let parent = self.random.usize(0..self.most);
        let known = self.kinds[at].parents.contains_key(&parent);
        match self.random.u32(0..10) {
            0..2 if known => Deed::Delete(at, parent),
            2..4 if known => Deed::Strike(at, parent),
            _ => Deed::Put(at, parent, self.spec()),
        }
    }

    fn draw_mood(&mut self) -> Deed {
        let moody = self.kinds.iter().find(|kind| kind.mood != Mood::Fine);
        if let Some(kind) = moody.filter(|_| self.random.bool()) {
            return Deed::Feel(kind.number, Mood::Fine);
        }
        let moods = [Mood::Unreachable, Mood::Busy, Mood::Slow, Mood::Garbage, Mood::Refusing];
        Deed::Feel(self.any(), moods[self.random.usize(0..moods.len())])
    }

    fn any(&mut self) -> usize {
        self.random.usize(0..self.kinds.len())
    }

    fn filling(&mut self) -> Vec<(usize, Spec)> {
        (0..self.fill).map(|parent| (parent, self.spec())).collect()
    }

    fn spec(&mut self) -> Spec {
        self.texts += 1;
        Spec { size: self.random.usize(0..=MOST), text: self.texts }
    }

    /// Remembers it.
    pub(crate) fn apply(&mut self, deed: &Deed) {
        match deed {
            Deed::Put(at, parent, spec) => {
                // It may have fewer children then, or others instead.
                self.excuse(*at, *parent);
                self.kinds[*at].parents.insert(*parent, spec.clone());
            }
            Deed::Delete(at, parent) => {
                self.kinds[*at].parents.remove(parent);
            }
            Deed::Uninstall(at) => {
                self.kinds[*at].parents.clear();
                self.kinds[*at].installed = false;
            }
            Deed::Return(at, cluster_scoped, parents) => {
                let kind = &mut self.kinds[*at];
                (kind.installed, kind.cluster_scoped) = (true, *cluster_scoped);
                kind.parents = parents.iter().cloned().collect();
            }
            Deed::Serve(at, served) => self.kinds[*at].served = *served,
            Deed::Allow(at, allowed) => self.kinds[*at].allowed = *allowed,
            Deed::Edit(at) => {
                let kind = &mut self.kinds[*at];
                kind.recreates = !kind.recreates;
                kind.resync += 1;
            }
            Deed::Pause(at, paused) => self.kinds[*at].paused = *paused,
            Deed::Declare(at, declared) => {
                let kind = &mut self.kinds[*at];
                (kind.declared, kind.paused) = (*declared, false);
            }
            Deed::Feel(at, mood) => self.kinds[*at].mood = *mood,
            Deed::Strike(..)
            | Deed::Faults(_)
            | Deed::CutWatches
            | Deed::Expire
            | Deed::RestartManager => {}
        }
    }

    fn excuse(&mut self, at: usize, parent: usize) {
        for child in 0..MOST {
            *self.excuses.entry(self.kinds[at].child(parent, child)).or_default() += 1;
        }
    }
}
