//! Shutdown by SIGTERM and SIGINT, for the `main` of a program.
//!
//! Semantics: `SetupSignalHandler` of controller-runtime (`pkg/manager/signals/signal.go`).

use std::{io, thread, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Time after the first signal in which another one counts as the same request. For example,
/// timeout(1) signals the process and then its group.
const BOUNCE: Duration = Duration::from_millis(50);

/// Token of the process, created by the first call of [`shutdown`].
static STOP: Mutex<Option<CancellationToken>> = Mutex::new(None);

/// Returns a token that the first SIGTERM or SIGINT cancels. The second signal ends the process at
/// once, with exit code 1.
///
/// ```no_run
/// # use pilotlight::{manager::{Manager, ManagerOptions}, signals};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = Manager::new(ManagerOptions::default());
/// manager.run(signals::shutdown()?).await?; // Drains before it returns.
/// # Ok(())
/// # }
/// ```
///
/// A separate thread handles the signals until the process ends, so that blocking code on a runtime
/// cannot delay the end. Every call returns a clone of the same token. Unlike in
/// controller-runtime, a signal within 50 ms after the first counts as the same request.
///
/// # Errors
///
/// If the signal handlers cannot be installed, or the thread cannot be started.
pub fn shutdown() -> io::Result<CancellationToken> {
    let mut stop = STOP.lock();
    if let Some(stop) = &*stop {
        return Ok(stop.clone());
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (interrupt, terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let token = CancellationToken::new();
    let listening = listen(token.clone(), interrupt, terminate);
    // The thread ends with the process and is not joined.
    drop(
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(listening))?,
    );
    Ok(stop.insert(token).clone())
}

/// Action on a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    /// The first signal: stop.
    Stop,
    /// The same request as the first signal: ignored.
    Repeated,
    /// The second signal: end at once.
    Abort,
}

/// Returns the action of a signal that comes now.
fn action(first: Option<Instant>, now: Instant) -> SignalAction {
    match first {
        None => SignalAction::Stop,
        Some(first) if now.duration_since(first) < BOUNCE => SignalAction::Repeated,
        Some(_) => SignalAction::Abort,
    }
}

#[expect(clippy::exit, reason = "a second signal requests just that")]
async fn listen(stop: CancellationToken, mut interrupt: Signal, mut terminate: Signal) {
    let mut first: Option<Instant> = None;
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        let now = Instant::now();
        match action(first, now) {
            SignalAction::Stop => {
                info!(signal, "stopping; the next signal ends the process at once");
                first = Some(now);
                stop.cancel();
            }
            SignalAction::Repeated => {}
            SignalAction::Abort => {
                warn!(signal, "ended by a second signal");
                std::process::exit(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Environment variable that is set in the signalled process.
    const ROLE: &str = "PILOTLIGHT_TEST_SIGNALLED";

    /// Runs the signalled process: prints when it listens and when it stops, then blocks the
    /// runtime.
    fn signalled() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let stop = shutdown().unwrap();
            let mut stdout = std::io::stdout();
            stdout.write_all(b"listening\n").unwrap();
            stop.cancelled().await;
            assert!(shutdown().unwrap().is_cancelled(), "it is the same token");
            stdout.write_all(b"stopping\n").unwrap();
            thread::park_timeout(Duration::from_secs(60));
        });
    }

    fn send(signal: &str, process: &Child) {
        let id = process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    #[test]
    fn a_second_signal_within_the_bounce_is_the_same_request_and_a_later_one_aborts() {
        let first = Instant::now();
        let after = |millis| action(Some(first), first + Duration::from_millis(millis));

        assert_eq!(action(None, first), SignalAction::Stop);
        for (millis, expected) in [
            (0, SignalAction::Repeated),
            (49, SignalAction::Repeated),
            (50, SignalAction::Abort),
            (60_000, SignalAction::Abort),
        ] {
            assert_eq!(after(millis), expected, "{millis} ms");
        }
    }

    #[test]
    fn a_second_signal_ends_the_process_at_once_even_while_its_runtime_is_blocked() {
        if std::env::var_os(ROLE).is_some() {
            return signalled();
        }
        let name = "signals::tests::\
                    a_second_signal_ends_the_process_at_once_even_while_its_runtime_is_blocked";
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut says = |text| assert!(lines.any(|line| line.ends_with(text)), "{text}");
        says("listening");

        send("-TERM", &process);
        says("stopping");
        // The stop was printed after the first signal was handled: the bounce is over.
        thread::park_timeout(BOUNCE + Duration::from_millis(10));
        send("-INT", &process);
        let end = (0..600).find_map(|_| {
            thread::park_timeout(Duration::from_millis(100));
            process.try_wait().unwrap()
        });

        assert_eq!(end.expect("one signal ends it").code(), Some(1));
    }
}
