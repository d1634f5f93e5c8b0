//! Clock of an election. It counts the time during which the machine is suspended, since leases
//! expire meanwhile.

use std::{fmt, fs::File, os::unix::fs::FileExt, time::Duration};

use tokio::time::Instant;

/// Time since a fixed point in the past.
pub(crate) trait Clock: Send + Sync + fmt::Debug {
    /// Returns the current time; never goes back.
    fn now(&self) -> Duration;
}

/// Time since the start of the machine (`CLOCK_BOOTTIME`), in steps of 10 ms, from `/proc/uptime`.
/// A system without that file has a monotonic clock instead, which may stand still while the
/// machine is suspended.
#[derive(Debug)]
pub(super) struct BootClock {
    // Kept open, so that a lack of file descriptors stops no clock.
    uptime: Option<File>,
    created: Instant,
}

impl BootClock {
    pub(super) fn new() -> Self {
        let uptime = File::open("/proc/uptime").ok().filter(|file| read(file).is_some());
        Self { uptime, created: Instant::now() }
    }
}

impl Clock for BootClock {
    fn now(&self) -> Duration {
        match &self.uptime {
            // A clock that cannot be read ends every lease.
            Some(uptime) => read(uptime).unwrap_or(Duration::MAX),
            None => self.created.elapsed(),
        }
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
    fn clock_of_the_machine_goes_on() {
        let clock = BootClock::new();
        let before = clock.now();

        while clock.now() == before {
            std::thread::yield_now();
        }

        assert!(clock.now() > before);
    }
}
