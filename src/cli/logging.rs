//! What is logged, and how.

use std::io::IsTerminal;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct LoggingArgs {
    /// How much is logged to standard error: error, warn, info, debug or trace; or directives by
    /// module such as warn,pilotlight::informer=debug. Default: info; with dev --demo warn.
    #[arg(long, global = true, value_name = "LEVEL", value_parser = filter)]
    log_level: Option<String>,
    /// How a log line is written.
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One object a line, for machines.
    Json,
}

impl LoggingArgs {
    /// Logs from now on.
    pub(super) fn start(&self, default: LevelFilter) -> anyhow::Result<()> {
        let level = self.log_level.clone().unwrap_or_else(|| of_level(default));
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(&level)?)
            .with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
            LogFormat::Json => builder.json().flatten_event(true).try_init(),
        }
        .map_err(|error| anyhow!("starting the log: {error}"))
    }
}

/// A level concerns Pilotlight alone: what the libraries below it say in detail is asked for by
/// name.
fn of_level(level: LevelFilter) -> String {
    // kube reports every answer that is no success as an error, also where that is expected; what
    // concerns us is in what the callers log.
    const QUIET: &str = "kube_client::client::builder=off";
    if level > LevelFilter::WARN {
        format!("warn,{QUIET},pilotlight={level}")
    } else {
        format!("{level},{QUIET}")
    }
}

fn filter(text: &str) -> Result<String, String> {
    let directives = text.parse().map_or_else(|_| text.to_owned(), of_level);
    EnvFilter::try_new(&directives)
        .map(|_| directives)
        .map_err(|error| format!("{error}; give error, warn, info, debug or trace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_leaves_other_crates_at_warn() {
        let quiet = "kube_client::client::builder=off";
        assert_eq!(filter("debug").unwrap(), format!("warn,{quiet},pilotlight=debug"));
        assert_eq!(filter("error").unwrap(), format!("error,{quiet}"));
        assert_eq!(filter("warn,kube=trace").unwrap(), "warn,kube=trace");
        assert!(filter("a=b=c").is_err());
    }
}
