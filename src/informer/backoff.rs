//! How long an informer waits between two requests that fail.

use std::time::Duration;

use super::classify::Pace;

const QUICK: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// Tries of a forbidden request before it is made every [`LONGEST`]: a grant that is being applied
/// takes a moment to be seen.
const FORBIDDEN_TRIES: u32 = 3;

/// One informer's back-off: each pace counts for itself, and health resets all.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    prompt: u32,
    quick: u32,
    slow: u32,
    forbidden: u32,
}

impl Backoff {
    /// The next delay; `random` is in 0.0..1.0.
    pub(super) fn delay(&mut self, pace: Pace, random: f64) -> Duration {
        match pace {
            Pace::Prompt => {
                self.prompt = self.prompt.saturating_add(1);
                if self.prompt == 1 { Duration::ZERO } else { self.slow(random) }
            }
            Pace::Quick => {
                let delay = doubled(QUICK, self.quick);
                self.quick = self.quick.saturating_add(1);
                delay.mul_f64(0.75 + random / 4.0)
            }
            Pace::Slow => self.slow(random),
            // Spread upwards: the server's word is a minimum.
            Pace::After(after) => after.mul_f64(1.0 + random / 10.0).max(self.slow(random)),
            Pace::Forbidden => {
                let tries = self.forbidden;
                self.forbidden = tries.saturating_add(1);
                if tries < FORBIDDEN_TRIES {
                    doubled(SLOW, tries).mul_f64(0.5 + random / 2.0)
                } else {
                    LONGEST.mul_f64(1.0 + random / 10.0)
                }
            }
        }
    }

    /// Whether failures of this pace have gone on for long enough to be worth a word.
    pub(super) fn is_notable(&self, pace: Pace) -> bool {
        match pace {
            // The sixth comes after a third of a second.
            Pace::Quick => self.quick >= 6,
            Pace::Prompt => self.prompt > 1,
            Pace::Slow | Pace::After(_) | Pace::Forbidden => true,
        }
    }

    /// Forgets all failures.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    fn slow(&mut self, random: f64) -> Duration {
        let delay = doubled(SLOW, self.slow);
        self.slow = self.slow.saturating_add(1);
        delay.mul_f64(0.5 + random / 2.0)
    }
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(times.min(31)).unwrap_or(u32::MAX)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(pace: Pace, random: f64, count: usize) -> Vec<u128> {
        let mut backoff = Backoff::default();
        (0..count).map(|_| backoff.delay(pace, random).as_millis()).collect()
    }

    #[test]
    fn quick_begins_at_five_milliseconds_and_doubles() {
        assert_eq!(delays(Pace::Quick, 1.0, 5), [5, 10, 20, 40, 80]);
        assert_eq!(delays(Pace::Quick, 1.0, 40).last(), Some(&30_000));
    }

    #[test]
    fn slow_begins_between_half_a_second_and_one_and_ends_at_thirty() {
        assert_eq!(delays(Pace::Slow, 0.0, 7), [500, 1000, 2000, 4000, 8000, 15_000, 15_000]);
        assert_eq!(delays(Pace::Slow, 1.0, 7), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }

    #[test]
    fn prompt_is_prompt_once() {
        assert_eq!(delays(Pace::Prompt, 1.0, 4), [0, 1000, 2000, 4000]);
    }

    #[test]
    fn the_server_is_given_its_time() {
        let pace = Pace::After(Duration::from_secs(3));

        assert_eq!(delays(pace, 0.0, 5), [3000, 3000, 3000, 4000, 8000]);
    }

    #[test]
    fn a_forbidden_request_is_soon_made_every_thirty_seconds() {
        let delays = delays(Pace::Forbidden, 0.0, 100);

        assert_eq!(delays[..4], [500, 1000, 2000, 30_000]);
        assert!(delays[3..].iter().all(|delay| *delay >= 30_000));
    }

    #[test]
    fn health_begins_anew() {
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.delay(Pace::Slow, 1.0);
        }

        backoff.reset();

        assert_eq!(backoff.delay(Pace::Slow, 1.0), SLOW);
    }
}
