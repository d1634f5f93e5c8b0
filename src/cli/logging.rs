//! What is logged, and how.

use std::io::IsTerminal;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct LoggingArgs {
    /// How much is logged to standard error: error, warn, info, debug or trace; or directives by
    /// module such as warn,pilotlight::informer=debug.
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        default_value = "info",
        value_parser = filter
    )]
    log_level: String,
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
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(&self.log_level)?)
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
fn filter(text: &str) -> Result<String, String> {
    let directives = match text.parse::<LevelFilter>() {
        Ok(level) if level > LevelFilter::WARN => format!("warn,pilotlight={level}"),
        Ok(level) => level.to_string(),
        Err(_) => text.to_owned(),
    };
    EnvFilter::try_new(&directives)
        .map(|_| directives)
        .map_err(|error| format!("{error}; give error, warn, info, debug or trace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_leaves_other_crates_at_warn() {
        assert_eq!(filter("debug").unwrap(), "warn,pilotlight=debug");
        assert_eq!(filter("error").unwrap(), "error");
        assert_eq!(filter("warn,kube=trace").unwrap(), "warn,kube=trace");
        assert!(filter("a=b=c").is_err());
    }
}
