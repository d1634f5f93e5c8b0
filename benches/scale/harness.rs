//! Harness: a server with objects, hooks, and the measured process.

use std::{
    collections::{BTreeMap, HashSet},
    pin::pin,
    time::Duration,
};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    arguments::{Arguments, ServerKind},
    figure::{Figure, float},
    hooks::{CHILD, Hooks},
    objects::Objects,
    process::{Process, Program},
    server::Server,
};

/// Hook calls within [`Harness::rest`] that count as regular resyncs: `--cache-flush-interval` spreads
/// one of each parent over 30 minutes.
const RESYNCS: u64 = 50;

/// Limit of a start with all first syncs.
const START: Duration = Duration::from_secs(900);

pub(crate) struct Harness {
    pub(crate) server: Server,
    pub(crate) objects: Objects,
    pub(crate) hooks: Hooks,
    /// Time after which a quiet process is at rest, and no hook call is outstanding.
    pub(crate) rest: Duration,
    program: Program,
}

impl Harness {
    /// Starts a server of the kind that was asked for. Else of this kind, or simulated if quick.
    pub(crate) async fn start(arguments: &Arguments, kind: ServerKind) -> Self {
        let kind = if arguments.quick { ServerKind::Simulated } else { kind };
        let server = Server::start(arguments.server.unwrap_or(kind)).await;
        let objects = Objects::create(server.client.clone()).await;
        let hooks = Hooks::start().await;
        let rest = Duration::from_millis(if arguments.quick { 500 } else { 5_000 });
        Self { server, objects, hooks, rest, program: arguments.program.clone() }
    }

    /// Starts the process.
    pub(crate) fn process(&self) -> Process {
        self.program.start(&self.server.kubeconfig, &self.server.logs())
    }

    /// Starts the process and waits for the first hook call for each of `parents` parents; prints
    /// the time to start.
    pub(crate) async fn run(&self, parents: usize) -> Process {
        self.hooks.forget();
        let begin = Instant::now();
        let process = self.process();
        let called = self.hooks.first_calls(parents, START).await;
        let mut started = Figure::new("start of the process → first hook call of a parent", "s");
        called.iter().for_each(|at| started.add((*at - begin).as_secs_f64()));
        assert_eq!(called.len(), parents, "all hooks are called within {START:?}");
        started.print();
        process
    }

    /// Waits until there are so many children.
    pub(crate) async fn written(&self, children: usize) {
        self.seen(children, |_| true).await;
    }

    /// Waits until so many children have the revision of a hook.
    pub(crate) async fn revision(&self, revision: &str, children: usize) {
        self.seen(children, |data| data.get("revision").is_some_and(|it| it == revision)).await;
    }

    /// Waits until a plain watcher has seen so many children with such data.
    async fn seen(&self, children: usize, is_wanted: impl Fn(&BTreeMap<String, String>) -> bool) {
        let config = watcher::Config::default().labels(CHILD);
        let mut events = pin!(watcher(self.objects.children(), config));
        let mut seen = HashSet::new();
        while seen.len() < children {
            let next = timeout(START, events.next()).await.expect("the children are written");
            match next.expect("a watcher has no end").unwrap() {
                Event::Apply(child) | Event::InitApply(child) => {
                    if child.data.as_ref().is_some_and(&is_wanted) {
                        seen.insert(child.metadata.name);
                    }
                }
                Event::Init | Event::InitDone | Event::Delete(_) => {}
            }
        }
    }

    /// Waits until hooks are called for regular resyncs alone, and the process is quiet.
    pub(crate) async fn settle(&self, process: &mut Process) {
        loop {
            let before = self.hooks.calls();
            sleep(self.rest).await;
            if self.hooks.calls() - before <= RESYNCS {
                break;
            }
        }
        process.quiet().await;
    }

    /// Prints the memory of a process that has started.
    pub(crate) async fn print_memory(&self, process: &mut Process) -> f64 {
        self.settle(process).await;
        Figure::one("CPU time of the start", "ms", process.cpu().as_secs_f64() * 1e3);
        let rest = process.memory_at_rest(self.rest).await;
        Figure::one("anonymous memory at most, since the start", "MiB", process.most_memory());
        Figure::one("anonymous memory at rest", "MiB", rest)
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }
}

/// Returns the milliseconds for each of `count`.
pub(crate) fn each(time: Duration, count: impl TryInto<u64>) -> f64 {
    time.as_secs_f64() * 1e3 / float(count)
}
