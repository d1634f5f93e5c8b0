//! Schedule of discovery requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::duration::{LONGEST, doubled};

/// First gap between two requests; doubles from there.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Largest gap while discovery is incomplete.
const LAST_DELAY: Duration = Duration::from_secs(10);
/// Minimum gap before a hinted request: every 404 may send a hint.
const HINT_GAP: Duration = Duration::from_secs(1);

/// Gap that a discovery response leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PendingDiscovery {
    /// All responses are current.
    Nothing,
    /// A change will be pushed: the APIService reports that it is unavailable.
    EventExpected,
    /// A group version whose current state no event will report.
    NoEvent,
}

/// Decides when discovery is requested: at once after a change, then with growing gaps until all is
/// settled, then at the interval. At most one request is in flight.
#[derive(Debug)]
pub(super) struct RequestSchedule {
    interval: Duration,
    due: Instant,
    last_sent: Option<Instant>,
    in_flight: bool,
    again: bool,
    /// Requests since the last change or the last settled response.
    retries: u32,
}

impl RequestSchedule {
    /// Requests at once, and at least once per `interval`. The interval is at least the first
    /// delay, since a tiny one would cause requests without pause.
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        let interval = interval.clamp(FIRST_DELAY, LONGEST);
        Self { interval, due: now, last_sent: None, in_flight: false, again: false, retries: 0 }
    }

    /// Returns when to send the next request; `None` while one is in flight.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.in_flight).then_some(self.due)
    }

    /// Schedules a request after a change: at once, but not within the first delay of the last one.
    pub(super) fn changed(&mut self, now: Instant) {
        self.retries = 0;
        self.soon(now, FIRST_DELAY);
    }

    /// Schedules a request after a client met a type that seems to be gone.
    pub(super) fn hinted(&mut self, now: Instant) {
        self.soon(now, HINT_GAP);
    }

    /// Changes the interval.
    pub(super) fn set_interval(&mut self, now: Instant, interval: Duration) {
        let interval = interval.clamp(FIRST_DELAY, LONGEST);
        if self.interval != interval {
            self.interval = interval;
            self.changed(now);
        }
    }

    /// Records that a request is sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.in_flight = true;
        self.again = false;
        self.last_sent = Some(now);
    }

    /// Records a response. Changes since the request was sent may be missing from it.
    pub(super) fn answered(&mut self, now: Instant, pending: PendingDiscovery) {
        self.in_flight = false;
        // A change during the request has set `due` already.
        if self.again {
            return;
        }
        let delay = doubled(FIRST_DELAY, self.retries, LAST_DELAY);
        let retries = match pending {
            PendingDiscovery::Nothing => false,
            PendingDiscovery::EventExpected => delay < LAST_DELAY,
            PendingDiscovery::NoEvent => true,
        };
        if retries {
            self.due = now + delay.min(self.interval);
            self.retries = self.retries.saturating_add(1);
        } else {
            self.due = now + self.interval.mul_f64(0.9 + fastrand::f64() / 5.0);
            self.retries = 0;
        }
    }

    fn soon(&mut self, now: Instant, gap: Duration) {
        let earliest = self.last_sent.map_or(now, |sent| (sent + gap).max(now));
        if self.in_flight && !self.again {
            self.again = true;
            self.due = earliest;
        } else {
            self.due = self.due.min(earliest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(600);

    /// Returns the gaps between the next `count` requests, each answered at once.
    fn gaps(schedule: &mut RequestSchedule, pending: PendingDiscovery, count: usize) -> Vec<u128> {
        let mut now = schedule.due().unwrap();
        let mut gaps = Vec::new();
        for _ in 0..count {
            schedule.sent(now);
            schedule.answered(now, pending);
            let due = schedule.due().unwrap();
            gaps.push((due - now).as_millis());
            now = due;
        }
        gaps
    }

    #[tokio::test(start_paused = true)]
    async fn gaps_double_up_to_ten_seconds_while_something_is_unsettled() {
        let mut schedule = RequestSchedule::new(Instant::now(), INTERVAL);

        let gaps = gaps(&mut schedule, PendingDiscovery::NoEvent, 9);

        assert_eq!(gaps, [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_change_is_left_to_its_event_in_the_end() {
        let mut schedule = RequestSchedule::new(Instant::now(), INTERVAL);

        let gaps = gaps(&mut schedule, PendingDiscovery::EventExpected, 8);

        assert_eq!(gaps[..7], [100, 200, 400, 800, 1600, 3200, 6400]);
        assert!((540_000..=660_000).contains(&gaps[7]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_settled_response_waits_for_the_interval_with_jitter() {
        let mut schedule = RequestSchedule::new(Instant::now(), INTERVAL);

        let gaps = gaps(&mut schedule, PendingDiscovery::Nothing, 1);

        assert!((540_000..=660_000).contains(&gaps[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_interval_of_zero_does_not_request_without_pause() {
        let now = Instant::now();
        let mut never_pausing = RequestSchedule::new(now, Duration::ZERO);
        let mut set_later = RequestSchedule::new(now, INTERVAL);
        set_later.set_interval(now, Duration::ZERO);

        for schedule in [&mut never_pausing, &mut set_later] {
            for pending in [PendingDiscovery::Nothing, PendingDiscovery::NoEvent] {
                let gaps = gaps(schedule, pending, 5);
                assert!(gaps.iter().all(|gap| *gap >= 90), "{pending:?}: {gaps:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn endless_interval_causes_one_request_a_year() {
        let now = Instant::now();
        let mut schedule = RequestSchedule::new(now, Duration::MAX);
        for pending in
            [PendingDiscovery::NoEvent, PendingDiscovery::EventExpected, PendingDiscovery::Nothing]
        {
            gaps(&mut schedule, pending, 20);
        }
        schedule.set_interval(now, INTERVAL);
        schedule.set_interval(now, Duration::MAX);

        let gaps = gaps(&mut schedule, PendingDiscovery::Nothing, 2);

        let day = 24 * 3_600_000;
        assert!((328 * day..=402 * day).contains(&gaps[1]), "{gaps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn first_change_causes_a_request_at_once_and_a_burst_causes_one() {
        let start = Instant::now();
        let mut schedule = RequestSchedule::new(start, INTERVAL);
        gaps(&mut schedule, PendingDiscovery::Nothing, 1);
        let later = start + Duration::from_secs(60);

        schedule.changed(later);
        assert_eq!(schedule.due(), Some(later));

        schedule.sent(later);
        for _ in 0..100 {
            schedule.changed(later);
        }
        assert_eq!(schedule.due(), None);

        schedule.answered(later + Duration::from_millis(20), PendingDiscovery::Nothing);
        assert_eq!(schedule.due(), Some(later + FIRST_DELAY));
    }

    #[tokio::test(start_paused = true)]
    async fn hints_cause_at_most_one_request_a_second() {
        let start = Instant::now();
        let mut schedule = RequestSchedule::new(start, INTERVAL);
        gaps(&mut schedule, PendingDiscovery::Nothing, 1);

        schedule.hinted(start + Duration::from_millis(10));
        schedule.hinted(start + Duration::from_millis(20));

        assert_eq!(schedule.due(), Some(start + HINT_GAP));
    }
}
