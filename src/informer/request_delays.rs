//! Back-off of an informer's failing requests.

use std::time::Duration;

use super::classify::{Cause, Classification, NextRequest, RequestPace};
use crate::duration::doubled;

const PROMPT: Duration = Duration::from_millis(100);
const QUICK: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_secs(1);
/// Window over which relists are spread: an event that ends the watches of this process usually
/// ends those of all other clients too. A watch that resumes is cheap and is not delayed.
const SPREAD: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);
/// Forbidden requests before the delay grows to [`LONGEST`]: a new grant takes a moment to apply.
const FORBIDDEN_TRIES: u32 = 3;

/// Back-off of one informer. Failures are counted per cause: a type that was missing for an hour
/// answers "initializing" for milliseconds when it returns. A healthy watch resets all counts.
#[derive(Debug, Default)]
pub(super) struct RequestDelays {
    counts: [u32; Cause::ALL.len()],
}

impl RequestDelays {
    /// Returns the next delay; `random` is in 0.0..1.0.
    pub(super) fn delay(&mut self, classified: Classification, random: f64) -> Duration {
        let count = &mut self.counts[classified.cause as usize];
        let before = *count;
        *count = before.saturating_add(1);
        let halfway = 0.5 + random / 2.0;
        let slow = doubled(SLOW, before, LONGEST).mul_f64(halfway);
        match classified.pace {
            RequestPace::Prompt if before == 0 && classified.step == NextRequest::Relist => {
                SPREAD.mul_f64(random)
            }
            RequestPace::Prompt if before == 0 => Duration::ZERO,
            RequestPace::Prompt => doubled(PROMPT, before - 1, LONGEST).mul_f64(halfway),
            RequestPace::Quick => doubled(QUICK, before, LONGEST).mul_f64(0.75 + random / 4.0),
            RequestPace::Slow => slow,
            // Spread upwards: the server's Retry-After is a minimum.
            RequestPace::After(after) => after.mul_f64(1.0 + random / 10.0).max(slow),
            RequestPace::Forbidden if before < FORBIDDEN_TRIES => slow,
            RequestPace::Forbidden => LONGEST.mul_f64(1.0 + random / 10.0),
        }
    }

    /// Returns whether failures of this cause have repeated enough to be reported.
    pub(super) fn is_notable(&self, classified: Classification) -> bool {
        let count = self.counts[classified.cause as usize];
        match classified.pace {
            // The sixth failure comes about 0.16 s after the first.
            RequestPace::Quick => count >= 6,
            RequestPace::Prompt => count > 1,
            RequestPace::Slow | RequestPace::After(_) | RequestPace::Forbidden => true,
        }
    }

    /// Resets the causes that a successful response refutes: missing, initializing, forbidden.
    pub(super) fn answered(&mut self) {
        for cause in [Cause::NotFound, Cause::Initializing, Cause::Forbidden] {
            self.counts[cause as usize] = 0;
        }
    }

    /// Resets the causes that end when the type is served.
    pub(super) fn served_again(&mut self) {
        for cause in [Cause::NotFound, Cause::Initializing] {
            self.counts[cause as usize] = 0;
        }
    }

    /// Resets all counts.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(pace: RequestPace, cause: Cause) -> Classification {
        Classification { step: NextRequest::Again, pace, cause }
    }

    fn delays(pace: RequestPace, random: f64, count: usize) -> Vec<u128> {
        let mut backoff = RequestDelays::default();
        let classified = classified(pace, Cause::Server);
        (0..count).map(|_| backoff.delay(classified, random).as_millis()).collect()
    }

    #[test]
    fn quick_begins_at_five_milliseconds_and_doubles() {
        assert_eq!(delays(RequestPace::Quick, 1.0, 5), [5, 10, 20, 40, 80]);
        assert_eq!(delays(RequestPace::Quick, 1.0, 40).last(), Some(&30_000));
    }

    #[test]
    fn slow_begins_between_half_a_second_and_one_and_ends_at_thirty() {
        assert_eq!(
            delays(RequestPace::Slow, 0.0, 7),
            [500, 1000, 2000, 4000, 8000, 15_000, 15_000]
        );
        assert_eq!(
            delays(RequestPace::Slow, 1.0, 7),
            [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
    }

    #[test]
    fn prompt_is_prompt_once() {
        assert_eq!(delays(RequestPace::Prompt, 1.0, 4), [0, 100, 200, 400]);
    }

    #[test]
    fn a_list_in_the_place_of_a_watch_is_spread_and_a_resumed_watch_is_not() {
        let delay = |step, random| {
            let classified =
                Classification { step, pace: RequestPace::Prompt, cause: Cause::Expired };
            RequestDelays::default().delay(classified, random)
        };

        assert_eq!(delay(NextRequest::Again, 1.0), Duration::ZERO);
        assert_eq!(delay(NextRequest::Relist, 0.0), Duration::ZERO);
        assert_eq!(delay(NextRequest::Relist, 0.5), SPREAD / 2);
        assert_eq!(delay(NextRequest::Relist, 1.0), SPREAD);
    }

    #[test]
    fn the_server_is_given_its_time() {
        let pace = RequestPace::After(Duration::from_secs(3));

        assert_eq!(delays(pace, 0.0, 5), [3000, 3000, 3000, 4000, 8000]);
    }

    #[test]
    fn a_forbidden_request_is_soon_made_every_thirty_seconds() {
        let delays = delays(RequestPace::Forbidden, 0.0, 100);

        assert_eq!(delays[..4], [500, 1000, 2000, 30_000]);
        assert!(delays[3..].iter().all(|delay| *delay >= 30_000));
    }

    #[test]
    fn each_cause_counts_for_itself() {
        let mut backoff = RequestDelays::default();
        let missing = classified(RequestPace::Quick, Cause::NotFound);
        for _ in 0..20 {
            backoff.delay(missing, 1.0);
        }

        let initializing = classified(RequestPace::Quick, Cause::Initializing);
        assert_eq!(backoff.delay(initializing, 1.0), QUICK);
        assert_eq!(
            backoff.delay(classified(RequestPace::Prompt, Cause::Expired), 1.0),
            Duration::ZERO
        );
        assert!(backoff.is_notable(missing) && !backoff.is_notable(initializing));
    }

    #[test]
    fn a_response_forgets_what_it_refutes_and_health_forgets_all() {
        let mut backoff = RequestDelays::default();
        let missing = classified(RequestPace::Quick, Cause::NotFound);
        let server = classified(RequestPace::Slow, Cause::Server);
        for _ in 0..10 {
            backoff.delay(missing, 1.0);
            backoff.delay(server, 1.0);
        }

        backoff.answered();
        assert_eq!(backoff.delay(missing, 1.0), QUICK);
        assert_eq!(backoff.delay(server, 1.0), LONGEST);

        backoff.reset();
        assert_eq!(backoff.delay(server, 1.0), SLOW);
    }

    #[test]
    fn every_cause_has_its_count() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
    }
}
