//! Desired state: the specifications after the last step, and the generator of random steps.

use std::collections::BTreeMap;

use fastrand::Rng;
use kube::core::{ApiResource, GroupVersionKind};
use pilotlight::testing::CrdBuilder;

pub(crate) const GROUP: &str = "chaos.test";
/// Upper bound on the children of a parent.
const MAX_CHILDREN: usize = 3;

/// Specification of a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) size: usize,
    pub(crate) text: u64,
}

/// Type of parents, and its controller.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) number: usize,
    pub(crate) installed: bool,
    pub(crate) cluster_scoped: bool,
    /// True if the version that the controller uses is served.
    pub(crate) served: bool,
    pub(crate) allowed: bool,
    pub(crate) declared: bool,
    pub(crate) paused: bool,
    pub(crate) recreates: bool,
    pub(crate) resync: i32,
    pub(crate) hook_mode: HookMode,
    pub(crate) parents: BTreeMap<usize, Spec>,
}

/// Behaviour of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookMode {
    Working,
    Unreachable,
    Busy,
    Slow,
    Invalid,
    Failing,
}

/// State that a controller must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Absent,
    Waiting,
    Running,
}

/// Step of a run.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Creates or updates a parent.
    PutParent(usize, usize, Spec),
    DeleteParent(usize, usize),
    /// Deletes a child directly.
    DeleteChild(usize, usize),
    Uninstall(usize),
    /// Installs the type, perhaps with another scope, and creates parents.
    Install(usize, bool, Vec<(usize, Spec)>),
    SetServed(usize, bool),
    SetAllowed(usize, bool),
    /// Changes the controller's specification.
    EditController(usize),
    SetPaused(usize, bool),
    SetDeclared(usize, bool),
    SetHookMode(usize, HookMode),
    /// Plays the faults of this seed in place of the current ones.
    Faults(u64),
    CutWatches,
    /// Compacts the server's history, or closes all connections if the server offers no compaction.
    ExpireHistory,
    RestartManager,
}

impl Step {
    /// Returns whether the step starts, stops or changes controllers.
    pub(crate) fn is_lifecycle(&self) -> bool {
        match self {
            Self::Uninstall(_)
            | Self::Install(..)
            | Self::SetServed(..)
            | Self::EditController(_)
            | Self::SetPaused(..)
            | Self::SetDeclared(..)
            | Self::RestartManager => true,
            Self::PutParent(..)
            | Self::DeleteParent(..)
            | Self::DeleteChild(..)
            | Self::SetAllowed(..)
            | Self::SetHookMode(..)
            | Self::Faults(_)
            | Self::CutWatches
            | Self::ExpireHistory => false,
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

    /// Resource in the version that is always served.
    pub(crate) fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, "v2", &format!("Kind{}", self.number));
        ApiResource::from_gvk_with_plural(&kind, &self.plural())
    }

    /// Prefix of a child's name; on the simulated server the whole name.
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

/// Desired state of all types, parents and controllers.
#[derive(Debug)]
pub(crate) struct Desired {
    pub(crate) kinds: Vec<Kind>,
    /// Number of times that the manager is allowed to delete each child.
    pub(crate) allowed_deletes: BTreeMap<String, usize>,
    /// Upper bound on the parents of each type, and number of parents of a type that has just been
    /// installed.
    max_parents: usize,
    initial: usize,
    random: Rng,
    texts: u64,
}

impl Desired {
    /// State in which nothing is installed or declared.
    pub(crate) fn new(seed: u64, controllers: usize, max_parents: usize, initial: usize) -> Self {
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
            hook_mode: HookMode::Working,
            parents: BTreeMap::new(),
        };
        Self {
            kinds: (0..controllers).map(kind).collect(),
            allowed_deletes: BTreeMap::new(),
            max_parents,
            initial,
            random: Rng::with_seed(seed),
            texts: 0,
        }
    }

    /// Steps that declare every controller and install every type.
    pub(crate) fn initial_steps(&mut self) -> Vec<Step> {
        let all = 0..self.kinds.len();
        all.flat_map(|at| {
            [Step::SetDeclared(at, true), Step::Install(at, false, self.initial_parents())]
        })
        .collect()
    }

    /// Steps that install, serve, declare and resume whatever is missing or paused, and change
    /// nothing else.
    pub(crate) fn restoring_steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for at in 0..self.kinds.len() {
            let Kind { installed, served, declared, paused, .. } = self.kinds[at];
            if !installed {
                steps.push(Step::Install(at, false, self.initial_parents()));
            }
            if !served {
                steps.push(Step::SetServed(at, true));
            }
            if !declared {
                steps.push(Step::SetDeclared(at, true));
            } else if paused {
                steps.push(Step::SetPaused(at, false));
            }
        }
        steps
    }

    /// Steps that restore rights and hooks.
    pub(crate) fn repairing_steps(&self) -> Vec<Step> {
        let denied = self.kinds.iter().filter(|kind| !kind.allowed);
        let faulty = self.kinds.iter().filter(|kind| kind.hook_mode != HookMode::Working);
        denied
            .map(|kind| Step::SetAllowed(kind.number, true))
            .chain(faulty.map(|kind| Step::SetHookMode(kind.number, HookMode::Working)))
            .collect()
    }

    /// Draws the next step from all kinds of steps.
    pub(crate) fn draw(&mut self) -> Step {
        match self.random.u32(0..1000) {
            0..700 => self.draw_object(),
            700..790 => self.draw_lifecycle(),
            790..830 => {
                let at = self.any();
                Step::SetAllowed(at, !self.kinds[at].allowed)
            }
            830..930 => self.draw_hook_mode(),
            930..950 => Step::Faults(self.random.u64(..)),
            950..980 => Step::CutWatches,
            980..995 => Step::ExpireHistory,
            _ => Step::RestartManager,
        }
    }

    /// Draws the next step in the lifecycle of a controller.
    pub(crate) fn draw_lifecycle(&mut self) -> Step {
        let at = self.any();
        let kind = self.kinds[at].clone();
        match self.random.u32(0..10) {
            0..6 if !kind.installed => {
                let other_scope = self.random.u32(0..4) == 0;
                Step::Install(at, kind.cluster_scoped != other_scope, self.initial_parents())
            }
            0..4 => Step::Uninstall(at),
            4..6 => Step::SetServed(at, !kind.served),
            6..8 if kind.declared => Step::EditController(at),
            8 if kind.declared => Step::SetPaused(at, !kind.paused),
            _ => Step::SetDeclared(at, !kind.declared),
        }
    }

    fn draw_object(&mut self) -> Step {
        let at = self.any();
        if !self.kinds[at].installed {
            return self.draw_lifecycle();
        }
        let parent = self.random.usize(0..self.max_parents);
        let known = self.kinds[at].parents.contains_key(&parent);
        match self.random.u32(0..10) {
            0..2 if known => Step::DeleteParent(at, parent),
            2..4 if known => Step::DeleteChild(at, parent),
            _ => Step::PutParent(at, parent, self.spec()),
        }
    }

    fn draw_hook_mode(&mut self) -> Step {
        let faulty = self.kinds.iter().find(|kind| kind.hook_mode != HookMode::Working);
        if let Some(kind) = faulty.filter(|_| self.random.bool()) {
            return Step::SetHookMode(kind.number, HookMode::Working);
        }
        let modes = [
            HookMode::Unreachable,
            HookMode::Busy,
            HookMode::Slow,
            HookMode::Invalid,
            HookMode::Failing,
        ];
        Step::SetHookMode(self.any(), modes[self.random.usize(0..modes.len())])
    }

    fn any(&mut self) -> usize {
        self.random.usize(0..self.kinds.len())
    }

    fn initial_parents(&mut self) -> Vec<(usize, Spec)> {
        (0..self.initial).map(|parent| (parent, self.spec())).collect()
    }

    fn spec(&mut self) -> Spec {
        self.texts += 1;
        Spec { size: self.random.usize(0..=MAX_CHILDREN), text: self.texts }
    }

    /// Records the effect of a step on the desired state.
    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::PutParent(at, parent, spec) => {
                // The parent may then have fewer children, or different ones.
                self.allow_deletes(*at, *parent);
                self.kinds[*at].parents.insert(*parent, spec.clone());
            }
            Step::DeleteParent(at, parent) => {
                self.kinds[*at].parents.remove(parent);
            }
            Step::Uninstall(at) => {
                self.kinds[*at].parents.clear();
                self.kinds[*at].installed = false;
            }
            Step::Install(at, cluster_scoped, parents) => {
                let kind = &mut self.kinds[*at];
                (kind.installed, kind.cluster_scoped) = (true, *cluster_scoped);
                kind.parents = parents.iter().cloned().collect();
            }
            Step::SetServed(at, served) => self.kinds[*at].served = *served,
            Step::SetAllowed(at, allowed) => self.kinds[*at].allowed = *allowed,
            Step::EditController(at) => {
                let kind = &mut self.kinds[*at];
                kind.recreates = !kind.recreates;
                kind.resync += 1;
            }
            Step::SetPaused(at, paused) => self.kinds[*at].paused = *paused,
            Step::SetDeclared(at, declared) => {
                let kind = &mut self.kinds[*at];
                (kind.declared, kind.paused) = (*declared, false);
            }
            Step::SetHookMode(at, mode) => self.kinds[*at].hook_mode = *mode,
            Step::DeleteChild(..)
            | Step::Faults(_)
            | Step::CutWatches
            | Step::ExpireHistory
            | Step::RestartManager => {}
        }
    }

    fn allow_deletes(&mut self, at: usize, parent: usize) {
        for child in 0..MAX_CHILDREN {
            *self.allowed_deletes.entry(self.kinds[at].child(parent, child)).or_default() += 1;
        }
    }
}
