//! The signals that end the process.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// What comes so soon after the first signal is the same request: timeout(1), for one, signals the
/// process and then its group.
const BOUNCE: Duration = Duration::from_millis(300);

/// Cancels `stop` at the first SIGINT or SIGTERM, and ends the process at the second: whoever asks
/// twice does not want to wait. Never resolves otherwise.
///
/// # Errors
///
/// When the signals cannot be listened for.
#[expect(clippy::exit, reason = "a second signal asks for just that")]
pub(super) async fn stop_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut first: Option<Instant> = None;
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        match first {
            None => {
                info!(signal, "stopping; the next signal ends the process at once");
                first = Some(Instant::now());
                stop.cancel();
            }
            Some(first) if first.elapsed() < BOUNCE => {}
            Some(_) => {
                warn!(signal, "ended by a second signal");
                std::process::exit(1);
            }
        }
    }
}
