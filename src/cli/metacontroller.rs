//! Flags of Metacontroller that Pilotlight accepts, so that Metacontroller's manifests work after a
//! change of the image alone.

use std::time::Duration;

use clap::{ArgAction, Args};
use pilotlight::{
    duration::{self, DurationError},
    meta::{ApplyStrategy, EventLimit, FieldManager},
};
use tracing::warn;
use tracing_subscriber::filter::LevelFilter;

use super::{flag, logging::LogFormat};

/// Resync period without --cache-flush-interval: Metacontroller's default.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Values are parsed as by Metacontroller. A value that requires a missing feature is logged.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags of Metacontroller that are accepted")]
pub(super) struct MetacontrollerArgs {
    /// Resync period of parents whose controller has no resyncPeriodSeconds: a duration such as
    /// 30m, or 0 for none. Default: 30m. Caches are never flushed.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, allow_hyphen_values = true)]
    cache_flush_interval: Option<Duration>,
    /// Same as --log-level; a number means debug, and trace from 6 on; panic means error. Debug has
    /// actions and the fields that they change, trace has bodies of hooks without data of Secrets.
    #[arg(long, value_name = "LEVEL", value_parser = zap_level, allow_hyphen_values = true)]
    zap_log_level: Option<LevelFilter>,
    /// Same as --log-level=debug --log-format=text; false is the same as --log-format=json.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = flag::go_bool, action = ArgAction::Set
    )]
    zap_devel: Option<bool>,
    /// Same as --log-format; console means text.
    #[arg(long, value_name = "FORMAT", value_parser = zap_encoder, allow_hyphen_values = true)]
    zap_encoder: Option<LogFormat>,
    /// Ignored: no stack traces are logged.
    #[arg(long, value_name = "LEVEL", allow_hyphen_values = true)]
    zap_stacktrace_level: Option<String>,
    /// Ignored: times are logged in the format of RFC 3339.
    #[arg(long, value_name = "ENCODING", allow_hyphen_values = true)]
    zap_time_encoding: Option<String>,
    /// Ignored: requests are not rate-limited by the client.
    #[arg(long, value_name = "NUMBER", value_parser = flag::go_float, allow_hyphen_values = true)]
    client_go_qps: Option<f64>,
    /// Ignored: requests are not rate-limited by the client.
    #[arg(long, value_name = "NUMBER", value_parser = flag::go_int, allow_hyphen_values = true)]
    client_go_burst: Option<i64>,
    /// Events of one object per second, after the burst; with less than zero, none follow the
    /// burst. Default, also for 0: 1/300.
    #[arg(long, value_name = "NUMBER", value_parser = flag::go_float, allow_hyphen_values = true)]
    events_qps: Option<f64>,
    /// Events of one object that are written at once. Default, also for 0: 25.
    #[arg(long, value_name = "NUMBER", value_parser = flag::go_int, allow_hyphen_values = true)]
    events_burst: Option<i64>,
    /// Ignored: there is no pprof endpoint; see /debug/status at --metrics-address.
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    pprof_address: Option<String>,
    /// Strategy for writing children: dynamic-apply, which is the default, or server-side-apply.
    /// The annotation pilotlight.dev/apply-strategy of a controller takes precedence.
    #[arg(long, value_name = "STRATEGY", value_parser = apply_strategy, allow_hyphen_values = true)]
    apply_strategy: Option<ApplyStrategy>,
    /// Field manager of server-side-apply. The annotation pilotlight.dev/apply-field-manager of a
    /// controller takes precedence. Default: metacontroller.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    apply_strategy_ssa_field_manager: Option<String>,
}

impl MetacontrollerArgs {
    /// Returns the resync period of controllers without `resyncPeriodSeconds`.
    pub(super) fn resync_period(&self) -> Option<Duration> {
        Some(self.cache_flush_interval.unwrap_or(FLUSH_INTERVAL)).filter(|it| !it.is_zero())
    }

    /// Returns the rate limit of the Events of one object.
    pub(super) fn event_limit(&self) -> EventLimit {
        let usual = EventLimit::default();
        // As in client-go, 0 means the default.
        let refill = self.events_qps.filter(|per_second| *per_second != 0.0).map(|per_second| {
            Duration::try_from_secs_f64(per_second.recip()).unwrap_or(Duration::MAX)
        });
        let burst = self.events_burst.filter(|burst| *burst != 0);
        let burst = burst.map(|burst| u32::try_from(burst.max(0)).unwrap_or(u32::MAX));
        EventLimit { burst: burst.unwrap_or(usual.burst), refill: refill.unwrap_or(usual.refill) }
    }

    /// Returns the apply strategy, and the field manager of server-side apply.
    pub(super) fn apply(&self) -> (ApplyStrategy, FieldManager) {
        (self.apply_strategy.unwrap_or_default(), self.field_manager().unwrap_or_default())
    }

    /// Returns the field manager, or the reason for which the API server refuses it. An empty one
    /// counts as not given: Metacontroller refuses it only when it applies a child.
    fn field_manager(&self) -> Result<FieldManager, String> {
        match self.apply_strategy_ssa_field_manager.as_deref() {
            None | Some("") => Ok(FieldManager::default()),
            Some(name) => name.parse(),
        }
    }

    /// Checks the flags together. Metacontroller accepts every field manager, and uses it with
    /// server-side apply alone.
    ///
    /// # Errors
    ///
    /// Names the flag whose value cannot be used.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.field_manager() {
            Err(problem) if self.apply_strategy == Some(ApplyStrategy::ServerSideApply) => {
                Err(format!("--apply-strategy-ssa-field-manager: {problem}"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns the log level that these flags set.
    pub(super) fn log_level(&self) -> Option<LevelFilter> {
        self.zap_log_level.or((self.zap_devel == Some(true)).then_some(LevelFilter::DEBUG))
    }

    /// Returns the log format that these flags set.
    pub(super) fn log_format(&self) -> Option<LogFormat> {
        let of_devel = |devel| if devel { LogFormat::Text } else { LogFormat::Json };
        self.zap_encoder.or(self.zap_devel.map(of_devel))
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
        const LEVEL: &str = "sets the log level, unless --log-level does";
        const FORMAT: &str = "sets the log format, unless --log-format does";
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
                "true sets the log level to debug and the format to text, false the format to \
                 json, unless --log-level, --log-format or --zap-encoder is given",
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
            (
                self.pprof_address.as_deref().is_some_and(|it| !matches!(it, "" | "0")),
                "--pprof-address",
                "ignored: there is no pprof endpoint; see /debug/status at --metrics-address",
            ),
            (
                self.field_manager().is_err(),
                "--apply-strategy-ssa-field-manager",
                "ignored: the API server refuses this name, which only server-side apply uses; \
                 controllers with the annotation for it apply as metacontroller by default",
            ),
        ]
        .into_iter()
        .filter_map(|(given, flag, meaning)| given.then_some((flag, meaning)))
        .collect()
    }
}

/// Parses an apply strategy. An empty one is the default, as with Metacontroller.
fn apply_strategy(text: &str) -> Result<ApplyStrategy, String> {
    if text.is_empty() { Ok(ApplyStrategy::default()) } else { text.parse() }
}

fn zap_level(text: &str) -> Result<LevelFilter, String> {
    match (text.to_lowercase().as_str(), text.parse::<i64>()) {
        (_, Ok(6..)) => Ok(LevelFilter::TRACE),
        ("debug", _) | (_, Ok(1..)) => Ok(LevelFilter::DEBUG),
        ("info", _) => Ok(LevelFilter::INFO),
        ("warn", _) => Ok(LevelFilter::WARN),
        ("error" | "panic", _) => Ok(LevelFilter::ERROR),
        _ => Err("give debug, info, error, panic or a number of at least 1; or use --log-level"
            .to_owned()),
    }
}

fn zap_encoder(text: &str) -> Result<LogFormat, String> {
    match text.to_lowercase().as_str() {
        "json" => Ok(LogFormat::Json),
        "console" => Ok(LogFormat::Text),
        _ => Err("give json or console; or use --log-format".to_owned()),
    }
}

/// Parses a duration as Go does. A negative one counts as none, as with Metacontroller's resync.
fn go_duration(text: &str) -> Result<Duration, DurationError> {
    match duration::parse(text) {
        Err(DurationError::Negative(_)) => Ok(Duration::ZERO),
        Err(DurationError::TooLong(_)) => Ok(Duration::MAX),
        parsed @ (Ok(_) | Err(DurationError::Malformed(_))) => parsed,
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
            "--pprof-address=:6060",
            "--apply-strategy=server-side-apply",
            "--apply-strategy-ssa-field-manager=metacontroller",
        ])
        .unwrap();

        let explained: Vec<_> = flags.meanings().into_iter().map(|(flag, _)| flag).collect();
        assert_eq!(explained.len(), 9, "{explained:?}");
        let nothing = ["--pprof-address=0", "--apply-strategy=dynamic-apply"];
        for arguments in [&nothing as &[_], &["--pprof-address="], &[]] {
            assert!(parse(arguments).unwrap().meanings().is_empty(), "{arguments:?}");
        }
    }

    #[test]
    fn flags_set_the_apply_strategy() {
        let set = |arguments: &[&str]| {
            let (strategy, manager) = parse(arguments).unwrap().apply();
            (strategy, manager.as_str().to_owned())
        };
        let usual = "metacontroller".to_owned();

        assert_eq!(set(&[]), (ApplyStrategy::DynamicApply, usual.clone()));
        let applied = (ApplyStrategy::ServerSideApply, usual);
        assert_eq!(set(&["--apply-strategy=server-side-apply"]), applied);
        assert_eq!(set(&["--apply-strategy="]).0, ApplyStrategy::DynamicApply);
        assert!(parse(&["--apply-strategy=ssa"]).is_err());
        assert_eq!(set(&["--apply-strategy-ssa-field-manager=team"]).1, "team");
        assert_eq!(set(&["--apply-strategy-ssa-field-manager="]).1, "metacontroller");
    }

    #[test]
    fn field_manager_that_cannot_be_used_is_ignored_without_server_side_apply() {
        let long = format!("--apply-strategy-ssa-field-manager={}", "x".repeat(129));
        for manager in ["--apply-strategy-ssa-field-manager=\u{7}", &long] {
            for flags in [&[manager] as &[_], &[manager, "--apply-strategy=dynamic-apply"]] {
                let flags = parse(flags).unwrap();

                assert_eq!(flags.check(), Ok(()), "{manager:?}");
                assert_eq!(flags.apply(), (ApplyStrategy::DynamicApply, FieldManager::default()));
                let explained: Vec<_> = flags.meanings().into_iter().map(|(it, _)| it).collect();
                assert_eq!(explained, ["--apply-strategy-ssa-field-manager"]);
            }
            let applied = parse(&[manager, "--apply-strategy=server-side-apply"]).unwrap();
            let problem = applied.check().unwrap_err();
            assert!(problem.contains("1 to 128 bytes"), "{problem}");
        }
    }

    #[test]
    fn values_that_metacontroller_refuses_are_refused_with_a_hint() {
        for (argument, hint) in [
            ("--zap-devel=maybe", "true or false"),
            ("--apply-strategy=kubectl", "dynamic-apply or server-side-apply"),
            ("--client-go-burst=1.5", "whole number"),
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
            ("--zap-log-level=5", Some(LevelFilter::DEBUG)),
            ("--zap-log-level=6", Some(LevelFilter::TRACE)),
            ("--zap-log-level=10", Some(LevelFilter::TRACE)),
            ("--zap-log-level=9223372036854775807", Some(LevelFilter::TRACE)),
            ("--zap-log-level=PANIC", Some(LevelFilter::ERROR)),
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
            (&["--zap-encoder=Console"], Some(LogFormat::Text)),
            (&["--zap-devel"], Some(LogFormat::Text)),
            (&["--zap-devel", "--zap-encoder=json"], Some(LogFormat::Json)),
            (&["--zap-devel=false"], Some(LogFormat::Json)),
            (&["--zap-devel=false", "--zap-encoder=console"], Some(LogFormat::Text)),
            (&["--zap-log-level=4"], None),
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
        assert_eq!(period("--cache-flush-interval=-1s"), None);
    }

    #[test]
    fn parents_are_resynced_every_half_hour_without_a_flag() {
        assert_eq!(parse(&[]).unwrap().resync_period(), Some(Duration::from_secs(1800)));
    }

    #[test]
    fn flags_set_the_rate_of_events() {
        let limit = |arguments: &[&str]| {
            let EventLimit { burst, refill } = parse(arguments).unwrap().event_limit();
            (burst, refill)
        };

        assert_eq!(limit(&[]), (25, Duration::from_secs(300)));
        assert_eq!(
            limit(&["--events-qps=2", "--events-burst=100"]),
            (100, Duration::from_millis(500))
        );
        // As in client-go, 0 is the default.
        assert_eq!(limit(&["--events-qps=0", "--events-burst=0"]), limit(&[]));
        assert_eq!(limit(&["--events-qps=-0"]), limit(&[]));
        assert_eq!(limit(&["--events-burst=-1"]).0, 0);
        assert_eq!(limit(&["--events-qps=-1"]).1, Duration::MAX);
        assert_eq!(limit(&["--events-qps=NaN"]).1, Duration::MAX);
        assert_eq!(limit(&["--events-qps=+Inf"]).1, Duration::ZERO);
    }
}
