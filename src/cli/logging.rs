//! Log level and format.

use std::{ffi::OsString, io::IsTerminal};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets, filter_fn},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct LoggingArgs {
    /// Level of the log on standard error: error, warn, info, debug or trace; or directives by
    /// module such as warn,pilotlight::informer=debug.
    #[cfg_attr(feature = "dev", doc = "Default: info with run and dev, warn with dev --demo and")]
    #[cfg_attr(not(feature = "dev"), doc = "Default: info with run, warn with")]
    /// the other commands.
    #[arg(long, global = true, value_name = "LEVEL", value_parser = filter)]
    log_level: Option<String>,
    /// Format of a log line. Default: text.
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// Target of the bodies of hooks, which may hold secrets: logged only if a flag enables them.
const HOOK_BODIES: &str = "hook_bodies";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Human-readable lines.
    Text,
    /// JSON, one object for each line.
    Json,
}

impl LoggingArgs {
    /// Starts the log; `level` and `format` are the defaults of these flags.
    /// With `bodies`, bodies of hooks are logged too, unless the flag names a level.
    pub(super) fn start(
        &self,
        level: LevelFilter,
        format: LogFormat,
        bodies: bool,
    ) -> anyhow::Result<()> {
        let bodies = bodies && self.log_level.is_none();
        let level = self.directives(level, bodies);
        let lines = fmt::layer()
            .with_writer(std::io::stderr)
            // An internal error would be printed to the same failing stream, with a panic.
            .log_internal_errors(false);
        let (no_color, terminal) = (std::env::var_os("NO_COLOR"), std::io::stderr().is_terminal());
        let lines = match self.log_format.unwrap_or(format) {
            LogFormat::Text => lines.with_ansi(colours(no_color, terminal)).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(level.parse::<Targets>()?)
            .with(lines.with_filter(filter_fn(move |metadata| {
                let target = metadata.target();
                !quotes_bodies(target) && (bodies || target != HOOK_BODIES)
            })))
            .try_init()
            .map_err(|error| anyhow!("starting the log: {error}"))
    }

    fn directives(&self, level: LevelFilter, bodies: bool) -> String {
        match &self.log_level {
            Some(given) => given.clone(),
            None if bodies => format!("{},{HOOK_BODIES}=trace", of_level(level)),
            None => of_level(level),
        }
    }
}

/// Returns whether a stream is coloured, by the convention of no-color.org: a variable that is set
/// and not empty forbids it.
fn colours(no_color: Option<OsString>, terminal: bool) -> bool {
    terminal && no_color.is_none_or(|value| value.is_empty())
}

/// Returns whether a module logs the bodies of the API server's responses, Secrets among them. The
/// module is silenced at every level, regardless of the directives.
fn quotes_bodies(target: &str) -> bool {
    target.starts_with("kube_client::client")
}

/// Returns the directives of a level, which applies to Pilotlight alone. Details of the libraries
/// below it need a directive by name.
fn of_level(level: LevelFilter) -> String {
    // kube logs every response that is not a success as an error, even an expected one. Relevant
    // errors are logged by the callers.
    const QUIET: &str = "kube_client::client::builder=off";
    if level > LevelFilter::WARN {
        format!("warn,{QUIET},pilotlight={level}")
    } else {
        format!("{level},{QUIET}")
    }
}

fn filter(text: &str) -> Result<String, String> {
    const HINT: &str = "give error, warn, info, debug or trace";
    // A single word would be taken as a module, and everything else would be silenced.
    let word = text.chars().all(|character| character.is_ascii_alphanumeric());
    let directives = match text.parse() {
        Ok(level) if !text.is_empty() => of_level(level),
        Ok(_) | Err(_) if word => return Err(format!("{text:?} is not a level; {HINT}")),
        Ok(_) | Err(_) => text.to_owned(),
    };
    let parsed = directives.parse::<Targets>();
    parsed.map(|_| directives).map_err(|error| format!("{error}; {HINT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_hooks_are_logged_unless_the_flag_names_a_level() {
        let directives = |given: Option<&str>| {
            let flags = LoggingArgs { log_level: given.map(str::to_owned), log_format: None };
            flags.directives(LevelFilter::TRACE, true)
        };

        assert!(directives(None).ends_with(",hook_bodies=trace"), "{}", directives(None));
        assert_eq!(directives(Some("warn")), "warn");
    }

    #[test]
    fn colours_are_for_terminals_without_no_color() {
        for (no_color, terminal, expected) in [
            (None, true, true),
            (None, false, false),
            (Some(""), true, true),
            (Some("1"), true, false),
            (Some("0"), true, false),
        ] {
            let no_color = no_color.map(OsString::from);
            assert_eq!(colours(no_color.clone(), terminal), expected, "{no_color:?} {terminal}");
        }
    }

    #[test]
    fn the_modules_that_log_bodies_are_silent() {
        for silent in ["kube_client::client", "kube_client::client::builder"] {
            assert!(quotes_bodies(silent), "{silent}");
        }
        assert!(!quotes_bodies("pilotlight::meta") && !quotes_bodies("kube_client::config"));
    }

    #[test]
    fn a_level_leaves_other_crates_at_warn() {
        let quiet = "kube_client::client::builder=off";
        assert_eq!(filter("debug").unwrap(), format!("warn,{quiet},pilotlight=debug"));
        assert_eq!(filter("error").unwrap(), format!("error,{quiet}"));
        assert_eq!(filter("warn,kube=trace").unwrap(), "warn,kube=trace");
        assert!(filter("a=b=c").is_err());
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_instead_of_falling_silent() {
        for text in ["loud", "verbose", ""] {
            assert!(filter(text).is_err_and(|error| error.contains("error, warn")), "{text:?}");
        }
        for text in ["off", "INFO", "3", "pilotlight::meta"] {
            assert!(filter(text).is_ok(), "{text:?}");
        }
    }
}
