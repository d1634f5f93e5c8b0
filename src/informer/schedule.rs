//! Explores thread schedules over the real informer, mailboxes and set.
//!
//! Races occur between two critical sections: a subscriber joins between an object's arrival and
//! its delivery, or between the last subscriber's leaving and the end. Only a multi-threaded
//! runtime produces these orders; polling tasks in another order on one thread misses most of them.
//! A checker that replaces the primitives needs a build of its own and does not know tokio's.
//!
//! Here real threads run one at a time. Before each lock they yield to a scheduler, which explores
//! all orders with few preemptions, depth first. Between two locks the threads share only atomics
//! and tokio channels, which wake and never block. A thread whose future is pending runs again when
//! it is woken, so a lost wake-up shows as a deadlock.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Body of one thread of a scenario.
pub(super) type ThreadBody = Box<dyn FnOnce() + Send>;

/// A scenario, built for each schedule: its threads, and a check after they ended.
pub(super) struct Scenario {
    pub(super) threads: Vec<ThreadBody>,
    pub(super) after: Box<dyn FnOnce()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Ready,
    /// Waits for a lock; may retry once another thread has moved.
    Blocked,
    /// The future is pending.
    Waiting,
    Ended,
}

#[derive(Debug)]
struct SchedulerState {
    states: Vec<ThreadState>,
    /// `None` once all threads have ended, or none can run.
    current: Option<usize>,
    preemptions: usize,
    /// The chosen option of each choice, and the number of options.
    choices: Vec<(usize, usize)>,
    prefix: Vec<usize>,
    stuck: bool,
}

#[derive(Debug)]
struct Scheduler {
    turn: Mutex<SchedulerState>,
    moved: Condvar,
}

thread_local! {
    static HERE: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// Lets another thread run right before this lock is taken.
pub(super) fn before<T>(mutex: &Mutex<T>) {
    let Some((scheduler, own)) = HERE.with_borrow(Clone::clone) else { return };
    let mut state = ThreadState::Ready;
    loop {
        scheduler.pass(own, state);
        if mutex.try_lock().is_some() {
            return;
        }
        state = ThreadState::Blocked;
    }
}

/// Drives a future on a thread of a scenario.
pub(super) fn wait<F: Future>(future: F) -> F::Output {
    struct ThreadWaker(Arc<Scheduler>, usize);

    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            let mut turn = self.0.lock();
            if turn.states[self.1] == ThreadState::Waiting {
                turn.states[self.1] = ThreadState::Ready;
            }
        }
    }

    let (scheduler, own) = HERE.with_borrow(Clone::clone).expect("on a thread of a scenario");
    let waker = Waker::from(Arc::new(ThreadWaker(scheduler.clone(), own)));
    let mut future = pin!(future);
    loop {
        // Set before the poll, so that a wake-up during the poll is not lost.
        scheduler.lock().states[own] = ThreadState::Waiting;
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            scheduler.lock().states[own] = ThreadState::Ready;
            return output;
        }
        let state = scheduler.lock().states[own];
        scheduler.pass(own, state);
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.turn.lock()
    }

    /// Yields to the scheduler; returns when it is this thread's turn again.
    fn pass(&self, own: usize, state: ThreadState) {
        let mut turn = self.lock();
        turn.states[own] = state;
        turn.choose(own);
        self.moved.notify_all();
        self.await_turn(turn, own);
    }

    fn await_turn(&self, mut turn: MutexGuard<'_, SchedulerState>, own: usize) {
        while turn.current != Some(own) && !turn.stuck {
            self.moved.wait(&mut turn);
        }
        let stuck = turn.stuck;
        drop(turn);
        // Unwinding ends the thread. A thread that unwinds already must not panic again.
        if stuck && !thread::panicking() {
            resume_unwind(Box::new("stuck"));
        }
    }
}

impl SchedulerState {
    fn choose(&mut self, own: usize) {
        if self.states[own] != ThreadState::Blocked {
            // The thread has moved, so blocked threads may retry. Only then: two threads blocked by
            // a third would hand over to each other for ever.
            for state in self.states.iter_mut().filter(|state| **state == ThreadState::Blocked) {
                *state = ThreadState::Ready;
            }
        }
        let continues = self.states[own] == ThreadState::Ready;
        // Continuing comes first: it is no preemption.
        let mut options: Vec<usize> = if continues { vec![own] } else { Vec::new() };
        if !continues || self.preemptions > 0 {
            let others = (0..self.states.len()).filter(|other| *other != own);
            options.extend(others.filter(|other| self.states[*other] == ThreadState::Ready));
        }
        let Some(next) = self.pick(&options) else {
            self.current = None;
            self.stuck = self.states.iter().any(|state| *state != ThreadState::Ended);
            return;
        };
        self.preemptions -= usize::from(continues && next != own);
        self.states[next] = ThreadState::Ready;
        self.current = Some(next);
    }

    fn pick(&mut self, options: &[usize]) -> Option<usize> {
        if options.len() < 2 {
            return options.first().copied();
        }
        let chosen = self.prefix.get(self.choices.len()).copied().unwrap_or(0);
        self.choices.push((chosen, options.len()));
        options.get(chosen).copied()
    }
}

/// Runs a scenario in every schedule with up to `preemptions` preemptions; returns their number.
pub(super) fn explore(preemptions: usize, scenario: impl Fn() -> Scenario) -> usize {
    let (mut prefix, mut schedules) = (Vec::new(), 0);
    loop {
        schedules += 1;
        let choices = play(prefix, preemptions, scenario());
        let Some(last) = choices.iter().rposition(|(chosen, of)| chosen + 1 < *of) else {
            return schedules;
        };
        prefix = choices[..=last].iter().map(|(chosen, _)| *chosen).collect();
        prefix[last] += 1;
    }
}

fn play(prefix: Vec<usize>, preemptions: usize, scenario: Scenario) -> Vec<(usize, usize)> {
    let turn = SchedulerState {
        states: vec![ThreadState::Ready; scenario.threads.len()],
        current: None,
        preemptions,
        choices: Vec::new(),
        prefix,
        stuck: false,
    };
    let scheduler = Arc::new(Scheduler { turn: Mutex::new(turn), moved: Condvar::new() });
    let threads: Vec<_> = (0..)
        .zip(scenario.threads)
        .map(|(own, act)| {
            let scheduler = scheduler.clone();
            thread::spawn(move || {
                HERE.set(Some((scheduler.clone(), own)));
                let result = catch_unwind(AssertUnwindSafe(|| {
                    scheduler.await_turn(scheduler.lock(), own);
                    act();
                }));
                // Values that are dropped later lock without the scheduler.
                HERE.set(None);
                let mut turn = scheduler.lock();
                turn.states[own] = ThreadState::Ended;
                if !turn.stuck {
                    turn.choose(own);
                }
                scheduler.moved.notify_all();
                drop(turn);
                result
            })
        })
        .collect();
    {
        // The first choice: the thread that begins.
        let mut turn = scheduler.lock();
        let all: Vec<usize> = (0..turn.states.len()).collect();
        turn.current = turn.pick(&all);
        scheduler.moved.notify_all();
    }
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let turn = scheduler.lock();
    let context = format!("with the choices {:?}", turn.choices);
    assert!(!turn.stuck, "deadlock {context}");
    for result in results {
        if let Err(panic) = result {
            resume_unwind(Box::new(format!("{}, {context}", crate::guard::message(panic))));
        }
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(scenario.after)) {
        panic!("{}, {context}", crate::guard::message(panic));
    }
    turn.choices.clone()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Increments a counter in two steps, so that a change between them is lost.
    fn careless(count: &Arc<(Mutex<()>, AtomicUsize)>) -> ThreadBody {
        let count = count.clone();
        Box::new(move || {
            let seen = count.1.load(Ordering::SeqCst);
            before(&count.0);
            count.1.store(seen + 1, Ordering::SeqCst);
        })
    }

    #[test]
    fn a_race_that_one_preemption_shows_is_found() {
        let found = catch_unwind(|| {
            explore(1, || {
                let count: Arc<(Mutex<()>, AtomicUsize)> = Arc::default();
                let threads = vec![careless(&count), careless(&count)];
                Scenario {
                    threads,
                    after: Box::new(move || assert_eq!(count.1.load(Ordering::SeqCst), 2)),
                }
            })
        });

        assert!(found.is_err());
    }

    #[test]
    fn a_lost_wake_up_is_found() {
        let found = catch_unwind(|| {
            explore(1, || Scenario {
                threads: vec![Box::new(|| wait(std::future::pending::<()>()))],
                after: Box::new(|| ()),
            })
        });

        assert!(found.is_err());
    }
}
