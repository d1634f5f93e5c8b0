//! The signals that end the process.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

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
    for first in [true, false] {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        if first {
            info!(signal = name, "stopping; the next signal ends the process at once");
            stop.cancel();
        } else {
            warn!(signal = name, "ended by a second signal");
            std::process::exit(1);
        }
    }
    Ok(())
}
