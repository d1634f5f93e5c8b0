//! Flags of Metacontroller that Pilotlight accepts, so that Metacontroller's manifests work after a
//! change of the image alone.

use std::time::Duration;

use clap::{ArgAction, Args};
use pilotlight::duration;
use tracing::warn;
use tracing_subscriber::filter::LevelFilter;

use super::logging::LogFormat;

/// Values are parsed as by Metacontroller. A value that asks for a missing feature is refused.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags of Metacontroller that are accepted")]
pub(super) struct MetacontrollerArgs {
    /// Resync period of parents whose controller has no resyncPeriodSeconds: a duration such as
    /// 30m, or 0 for none. Default: 0. Caches are never flushed.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    cache_flush_interval: Option<Duration>,
    /// Same as --log-level; a number of at least 1 means debug, panic means error.
    #[arg(long, value_name = "LEVEL", value_parser = zap_level)]
    zap_log_level: Option<LevelFilter>,
    /// Same as --log-level=debug --log-format=text.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = go_bool, action = ArgAction::Set
    )]
    zap_devel: Option<bool>,
    /// Same as --log-format; console means text.
    #[arg(long, value_name = "FORMAT", value_parser = zap_encoder)]
    zap_encoder: Option<LogFormat>,
    /// Ignored: no stack traces are logged.
    #[arg(long, value_name = "LEVEL")]
    zap_stacktrace_level: Option<String>,
    /// Ignored: times are logged in the format of RFC 3339.
    #[arg(long, value_name = "ENCODING")]
    zap_time_encoding: Option<String>,
    /// Ignored: requests are not rate-limited by the client.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    client_go_qps: Option<f64>,
    /// Ignored: requests are not rate-limited by the client.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    client_go_burst: Option<i64>,
    /// Ignored: Events are rate-limited for each object.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    events_qps: Option<f64>,
    /// Ignored: Events are rate-limited for each object.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    events_burst: Option<i64>,
    /// Accepts only false: there is no leader election yet.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = no_leader_election, action = ArgAction::Set
    )]
    leader_election: Option<bool>,
    /// Ignored: there is no leader election yet.
    #[arg(long, value_name = "LOCK")]
    leader_election_resource_lock: Option<String>,
    /// Ignored: there is no leader election yet.
    #[arg(long, value_name = "NAME")]
    leader_election_namespace: Option<String>,
    /// Ignored: there is no leader election yet.
    #[arg(long, value_name = "NAME")]
    leader_election_id: Option<String>,
    /// Accepts only 0: there is no pprof endpoint.
    #[arg(long, value_name = "ADDRESS", value_parser = no_pprof)]
    pprof_address: Option<String>,
    /// Accepts only dynamic-apply.
    #[arg(long, value_name = "STRATEGY", value_parser = dynamic_apply)]
    apply_strategy: Option<String>,
    /// Ignored: children are applied as with dynamic-apply.
    #[arg(long, value_name = "NAME")]
    apply_strategy_ssa_field_manager: Option<String>,
}

impl MetacontrollerArgs {
    /// Returns the resync period of controllers without `resyncPeriodSeconds`.
    pub(super) fn resync_period(&self) -> Option<Duration> {
        self.cache_flush_interval.filter(|interval| !interval.is_zero())
    }

    /// Returns the log level that these flags set.
    pub(super) fn log_level(&self) -> Option<LevelFilter> {
        self.zap_log_level.or((self.zap_devel == Some(true)).then_some(LevelFilter::DEBUG))
    }

    /// Returns the log format that these flags set.
    pub(super) fn log_format(&self) -> Option<LogFormat> {
        self.zap_encoder.or((self.zap_devel == Some(true)).then_some(LogFormat::Text))
    }

    /// Logs the meaning of each given flag.
    pub(super) fn explain(&self) {
        for (flag, meaning) in self.meanings() {
            warn!(flag, meaning, "flag of Metacontroller");
        }
    }

    fn meanings(&self) -> Vec<(&'static str, &'static str)> {
        const UNLIMITED: &str = "ignored: requests are not limited on this side, the API server's \
                                 priority and fairness decides";
        const EVENTS: &str = "ignored: Events are limited for each object already";
        const LEVEL: &str = "sets the log level, unless --log-level does";
        const FORMAT: &str = "sets the log format, unless --log-format does";
        const ELECTION: &str = "ignored: there is no leader election yet";
        let flushes = if self.resync_period().is_some() {
            "parents are synced this often where their controller has no resyncPeriodSeconds; \
             caches follow their watches and are never flushed"
        } else {
            "caches follow their watches and are never flushed"
        };
        [
            (self.cache_flush_interval.is_some(), "--cache-flush-interval", flushes),
            (self.zap_log_level.is_some(), "--zap-log-level", LEVEL),
            (
                self.zap_devel.is_some(),
                "--zap-devel",
                "true sets the log level to debug, unless --log-level is given",
            ),
            (self.zap_encoder.is_some(), "--zap-encoder", FORMAT),
            (
                self.zap_stacktrace_level.is_some(),
                "--zap-stacktrace-level",
                "ignored: no stack traces are logged",
            ),
            (
                self.zap_time_encoding.is_some(),
                "--zap-time-encoding",
                "ignored: times are logged as of RFC 3339",
            ),
            (self.client_go_qps.is_some(), "--client-go-qps", UNLIMITED),
            (self.client_go_burst.is_some(), "--client-go-burst", UNLIMITED),
            (self.events_qps.is_some(), "--events-qps", EVENTS),
            (self.events_burst.is_some(), "--events-burst", EVENTS),
            (
                self.leader_election_resource_lock.is_some(),
                "--leader-election-resource-lock",
                ELECTION,
            ),
            (self.leader_election_namespace.is_some(), "--leader-election-namespace", ELECTION),
            (self.leader_election_id.is_some(), "--leader-election-id", ELECTION),
            (
                self.apply_strategy_ssa_field_manager.is_some(),
                "--apply-strategy-ssa-field-manager",
                "ignored: children are applied as with dynamic-apply",
            ),
        ]
        .into_iter()
        .filter_map(|(given, flag, meaning)| given.then_some((flag, meaning)))
        .collect()
    }
}

/// Parses a boolean as Go does.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

fn zap_level(text: &str) -> Result<LevelFilter, String> {
    match (text.to_lowercase().as_str(), text.parse::<u32>()) {
        ("debug", _) | (_, Ok(1..)) => Ok(LevelFilter::DEBUG),
        ("info", _) => Ok(LevelFilter::INFO),
        ("warn", _) => Ok(LevelFilter::WARN),
        ("error" | "panic", _) => Ok(LevelFilter::ERROR),
        _ => Err("give debug, info, error, panic or a number of at least 1; or use --log-level"
            .to_owned()),
    }
}

fn zap_encoder(text: &str) -> Result<LogFormat, String> {
    match text {
        "json" => Ok(LogFormat::Json),
        "console" => Ok(LogFormat::Text),
        _ => Err("give json or console; or use --log-format".to_owned()),
    }
}

fn no_leader_election(text: &str) -> Result<bool, String> {
    if go_bool(text)? {
        Err("there is no leader election yet: run one replica with the strategy Recreate, as \
             deploy/ does"
            .to_owned())
    } else {
        Ok(false)
    }
}

fn no_pprof(text: &str) -> Result<String, String> {
    if matches!(text, "" | "0") {
        Ok(text.to_owned())
    } else {
        Err("there is no pprof endpoint; see /debug/status at --metrics-address".to_owned())
    }
}

fn dynamic_apply(text: &str) -> Result<String, String> {
    match text {
        "dynamic-apply" => Ok(text.to_owned()),
        "server-side-apply" => {
            Err("server-side apply is not supported yet; give dynamic-apply".to_owned())
        }
        _ => Err("give dynamic-apply".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        flags: MetacontrollerArgs,
    }

    fn parse(arguments: &[&str]) -> Result<MetacontrollerArgs, clap::Error> {
        Flags::try_parse_from([&["test"], arguments].concat()).map(|parsed| parsed.flags)
    }

    #[test]
    fn every_flag_is_accepted_and_those_that_do_nothing_say_so() {
        let flags = parse(&[
            "--cache-flush-interval=30m",
            "--zap-log-level=4",
            "--zap-devel",
            "--zap-encoder=json",
            "--zap-stacktrace-level=info",
            "--zap-time-encoding=iso8601",
            "--client-go-qps=-1",
            "--client-go-burst",
            "200",
            "--events-qps=0.0033",
            "--events-burst=25",
            "--leader-election=false",
            "--leader-election-resource-lock=leases",
            "--leader-election-namespace=a",
            "--leader-election-id=metacontroller",
            "--pprof-address=0",
            "--apply-strategy=dynamic-apply",
            "--apply-strategy-ssa-field-manager=metacontroller",
        ])
        .unwrap();

        let explained: Vec<_> = flags.meanings().into_iter().map(|(flag, _)| flag).collect();
        assert_eq!(explained.len(), 14, "{explained:?}");
        assert!(!explained.contains(&"--leader-election"), "nothing was asked for");
        assert!(parse(&[]).unwrap().meanings().is_empty());
    }

    #[test]
    fn flags_without_a_counterpart_are_refused_with_a_hint() {
        for (argument, hint) in [
            ("--leader-election", "strategy Recreate"),
            ("--leader-election=true", "strategy Recreate"),
            ("--leader-election=maybe", "true or false"),
            ("--pprof-address=:6060", "/debug/status"),
            ("--apply-strategy=server-side-apply", "not supported yet"),
            ("--zap-log-level=0", "--log-level"),
            ("--zap-log-level=loud", "--log-level"),
            ("--zap-encoder=xml", "--log-format"),
            ("--client-go-qps=many", "--client-go-qps"),
            ("--cache-flush-interval=30", "unit"),
        ] {
            let error = parse(&[argument]).unwrap_err();

            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(hint), "{argument}: {error}");
        }
    }

    #[test]
    fn zap_levels_are_levels() {
        for (argument, level) in [
            ("--zap-log-level=debug", Some(LevelFilter::DEBUG)),
            ("--zap-log-level=1", Some(LevelFilter::DEBUG)),
            ("--zap-log-level=10", Some(LevelFilter::DEBUG)),
            ("--zap-log-level=info", Some(LevelFilter::INFO)),
            ("--zap-log-level=error", Some(LevelFilter::ERROR)),
            ("--zap-devel", Some(LevelFilter::DEBUG)),
            ("--zap-devel=true", Some(LevelFilter::DEBUG)),
            ("--zap-devel=false", None),
        ] {
            assert_eq!(parse(&[argument]).unwrap().log_level(), level, "{argument}");
        }
        let both = parse(&["--zap-devel", "--zap-log-level=error"]).unwrap();
        assert_eq!(both.log_level(), Some(LevelFilter::ERROR), "the level is the nearer word");
    }

    #[test]
    fn zap_encoders_are_formats() {
        for (arguments, format) in [
            (&["--zap-encoder=json"] as &[_], Some(LogFormat::Json)),
            (&["--zap-encoder=console"], Some(LogFormat::Text)),
            (&["--zap-devel"], Some(LogFormat::Text)),
            (&["--zap-devel", "--zap-encoder=json"], Some(LogFormat::Json)),
            (&[], None),
        ] {
            assert_eq!(parse(arguments).unwrap().log_format(), format, "{arguments:?}");
        }
    }

    #[test]
    fn a_flush_interval_of_zero_syncs_nothing() {
        let period = |argument| parse(&[argument]).unwrap().resync_period();

        assert_eq!(period("--cache-flush-interval=30m"), Some(Duration::from_secs(1800)));
        assert_eq!(period("--cache-flush-interval=0"), None);
    }
}
