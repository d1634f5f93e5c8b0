//! Clock of an election. It counts the time during which the machine is suspended, since leases
//! expire meanwhile.

use std::{
    fmt,
    fs::File,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Time since a fixed point in the past.
pub(crate) trait Clock: Send + Sync + fmt::Debug {
    /// Returns the current time, which never decreases.
    fn now(&self) -> Duration;
}

/// Time since the start of the machine (`CLOCK_BOOTTIME`), from `/proc/uptime`, which counts in
/// steps of 10 ms; a monotonic clock counts in between. While that file cannot be read, the
/// monotonic clock counts alone, which may stand still while the machine is suspended.
#[derive(Debug)]
pub(super) struct BootClock {
    // Kept open, so that a lack of file descriptors stops no clock.
    uptime: Option<File>,
    created: Instant,
    /// Nanoseconds by which the time of the machine is ahead of the time since `created`.
    ahead: AtomicU64,
}

impl BootClock {
    pub(super) fn new() -> Self {
        Self::of(File::open("/proc/uptime").ok())
    }

    fn of(uptime: Option<File>) -> Self {
        let created = Instant::now();
        let now = uptime.as_ref().and_then(read);
        // Without a first read the monotonic clock counts alone: a later one would be a jump.
        let uptime = uptime.filter(|_| now.is_some());
        let clock = Self { uptime, created, ahead: AtomicU64::new(0) };
        clock.at(now, created.elapsed());
        clock
    }

    /// Returns the time, given those of both clocks. `None` is a read that failed: the last known
    /// suspension counts on.
    fn at(&self, uptime: Option<Duration>, elapsed: Duration) -> Duration {
        let ahead = uptime.unwrap_or_default().saturating_sub(elapsed);
        let ahead = u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX);
        let before = self.ahead.fetch_max(ahead, Ordering::AcqRel);
        elapsed.saturating_add(Duration::from_nanos(before.max(ahead)))
    }
}

impl Clock for BootClock {
    fn now(&self) -> Duration {
        // A pause between the two reads makes the suspension seem shorter, which the next call
        // corrects. In the other order it would seem longer, without end.
        let uptime = self.uptime.as_ref().and_then(read);
        self.at(uptime, self.created.elapsed())
    }
}

/// Returns the first number of the file.
fn read(uptime: &File) -> Option<Duration> {
    let mut text = [0; 64];
    let length = uptime.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(text.get(..length)?).ok()?)
}

fn parse(uptime: &str) -> Option<Duration> {
    let seconds = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_the_first_number() {
        assert_eq!(parse("350735.47 234388.90\n"), Some(Duration::from_secs_f64(350_735.47)));
        assert_eq!(parse(""), None);
        assert_eq!(parse("-1 0"), None);
    }

    #[test]
    fn time_passes_while_the_clock_of_the_machine_cannot_be_read() {
        let clock = BootClock::of(None);
        let second = |number: u64| Duration::from_secs(number);

        assert_eq!(clock.at(Some(second(100)), second(1)), second(100));
        assert_eq!(clock.at(None, second(2)), second(101), "a read that failed");
        assert_eq!(clock.at(Some(second(102)), second(3)), second(102));
        assert_eq!(clock.at(Some(second(700)), second(4)), second(700), "after a suspension");
        assert_eq!(clock.at(None, second(5)), second(701));
        assert_eq!(clock.at(Some(second(0)), second(6)), second(702), "the time never decreases");
    }

    #[test]
    fn clock_of_the_machine_advances() {
        let clock = BootClock::new();
        let before = clock.now();

        while clock.now() == before {
            std::thread::yield_now();
        }

        assert!(clock.now() > before);
    }

    #[test]
    fn clock_whose_first_read_fails_is_monotonic() {
        // A directory can be opened, but not read.
        let clock = BootClock::of(File::open("/").ok());

        assert!(clock.uptime.is_none());
        assert!(clock.now() < Duration::from_secs(60));
    }

    #[test]
    fn first_time_is_that_of_the_machine() {
        let clock = BootClock::new();
        let before = read(clock.uptime.as_ref().unwrap()).unwrap();

        let now = clock.now();

        assert!(now + Duration::from_millis(20) >= before, "{now:?} {before:?}");
    }
}
