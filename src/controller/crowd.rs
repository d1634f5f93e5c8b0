//! How often all controllers of one API server together try again what it has asked to wait with.
//!
//! Each of them tries about once a second by itself, which in a thousand of them is a load of its
//! own. So they share a rate, which is halved while the server refuses and grows while it takes
//! what it had refused, and each that waits has an equal part of it: whoever is refused for reasons
//! of its own takes no more from the others than that. Nobody else is held up: what is sent for the
//! first time never waits here.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How many a second, all of them together. In the middle of a storm no more is needed to see its
/// end, and a short one costs nothing.
const HIGHEST: f64 = 500.0;
const LOWEST: f64 = 20.0;
/// More a second for each that was taken.
const STEP: f64 = 1.0;
/// What is refused within this time is refused for the same reason.
const APART: Duration = Duration::from_secs(1);
/// How often one controller tries, however few there are.
const OFTENEST: Duration = Duration::from_secs(1);

/// The controllers of one API server.
#[derive(Debug, Default)]
pub(super) struct Crowd(Mutex<State>);

#[derive(Debug)]
struct State {
    rate: f64,
    lowered: Option<Instant>,
    // How many of them have something that waits.
    waiting: u32,
}

/// One run of a controller among them.
#[derive(Debug)]
pub(super) struct Member {
    crowd: Arc<Crowd>,
    waits: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { rate: HIGHEST, lowered: None, waiting: 0 }
    }
}

impl Crowd {
    /// One more, of which nothing waits.
    pub(super) fn join(self: &Arc<Self>) -> Member {
        Member { crowd: Arc::clone(self), waits: false }
    }

    // Nothing panics half-way through a change of it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// Something of this one was refused; says how far apart its next tries have to be.
    pub(super) fn refused(&mut self, now: Instant) -> Duration {
        let mut state = self.crowd.state();
        if !std::mem::replace(&mut self.waits, true) {
            state.waiting += 1;
        }
        if state.lowered.is_none_or(|at| at + APART <= now) {
            state.lowered = Some(now);
            state.rate = (state.rate / 2.0).max(LOWEST);
        }
        Duration::from_secs_f64(f64::from(state.waiting) / state.rate).max(OFTENEST)
    }

    /// Something of this one that had been refused was taken.
    pub(super) fn taken(&mut self) {
        let mut state = self.crowd.state();
        state.rate = (state.rate + STEP).min(HIGHEST);
    }

    /// Nothing of this one waits any more. When nobody waits, nothing is known of the server.
    pub(super) fn rests(&mut self) {
        if std::mem::take(&mut self.waits) {
            let mut state = self.crowd.state();
            state.waiting -= 1;
            if state.waiting == 0 {
                *state = State::default();
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.rests();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize) -> Vec<Member> {
        let crowd = Arc::new(Crowd::default());
        (0..count).map(|_| crowd.join()).collect()
    }

    /// Everybody is refused once a second for so long; how far apart they try then.
    fn storm(members: &mut [Member], begin: Instant, seconds: u64) -> Duration {
        let at = |second| begin + Duration::from_secs(second);
        let refused = |second| members.iter_mut().map(|it| it.refused(at(second))).max();
        (0..seconds).filter_map(refused).last().unwrap()
    }

    #[test]
    fn the_longer_a_storm_the_fewer_tries_down_to_twenty_a_second() {
        let begin = Instant::now();
        for (count, seconds, apart) in [
            (1, 60, 1.0),
            (10, 60, 1.0),
            (50, 1, 1.0),
            (50, 60, 2.5),
            (1000, 1, 4.0),
            (1000, 3, 16.0),
            (1000, 60, 50.0),
        ] {
            let apart_now = storm(&mut members(count), begin, seconds).as_secs_f64();

            assert!((apart_now - apart).abs() < 1e-6, "{count} for {seconds} s: {apart_now}");
        }
    }

    #[test]
    fn what_is_taken_raises_the_rate_and_an_end_is_one() {
        let (begin, mut members) = (Instant::now(), members(100));
        assert_eq!(storm(&mut members, begin, 60), Duration::from_secs(5));

        (0..30).for_each(|_| members[0].taken());
        let same_second = begin + Duration::from_millis(59_500);
        assert_eq!(members[1].refused(same_second), Duration::from_secs(2));

        members.iter_mut().for_each(Member::rests);
        assert_eq!(members[0].refused(begin + Duration::from_secs(61)), OFTENEST);
        let left = Arc::clone(&members[0].crowd);
        drop(members);
        assert_eq!(left.state().waiting, 0);
    }

    #[test]
    fn a_few_that_are_always_refused_take_nothing_from_another() {
        let (begin, mut members) = (Instant::now(), members(9));
        storm(&mut members[..8], begin, 600);

        assert_eq!(members[8].refused(begin + Duration::from_secs(600)), OFTENEST);
    }
}
