//! Command line of the binary.

mod address;
mod admin;
mod budget;
mod completions;
mod connection;
mod crds;
mod declared;
#[cfg(feature = "dev")]
mod demo;
#[cfg(feature = "dev")]
mod dev;
mod election;
mod finalizer_search;
mod flag;
mod http;
mod ignored_arguments;
mod instance;
mod logging;
mod memory;
mod metacontroller;
mod output;
mod pages;
mod panics;
mod release;
mod report;
mod rollouts;
mod run;
mod served_types;
mod status;
mod strictness;
mod table;
mod types;
mod watchers;

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::Path,
    process::ExitCode,
    time::Duration,
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use ignored_arguments::IgnoredArguments;
use logging::LogFormat;
use pilotlight::redaction;
use tracing_subscriber::filter::LevelFilter;

/// A conditional controller manager for Kubernetes: controllers start when the API types that they
/// need are served, stop cleanly when a type is removed, and start again when it returns.
#[derive(Debug, Parser)]
#[command(
    name = "pilotlight",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, 1 failure, 2 invalid command line.",
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    logging: logging::LoggingArgs,
    #[command(subcommand)]
    command: Command,
    /// Arguments that are ignored as by Metacontroller; none with a command.
    #[arg(skip)]
    ignored: IgnoredArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers that are declared in a cluster.
    // The last one of a repeated flag counts, as in Go.
    #[command(args_override_self = true)]
    Run(Box<run::RunArgs>),
    /// Start a temporary Kubernetes control plane on this machine, with a manager, until Ctrl-C.
    /// The first run builds it with Go, which takes some minutes.
    #[cfg(feature = "dev")]
    Dev(Box<dev::DevArgs>),
    /// Print the types that the cluster serves, with their state and the number of controllers that
    /// watch them.
    Types(types::TypesArgs),
    /// Print the state of the declared controllers.
    Status(status::StatusArgs),
    /// Remove the finalizer of a deleted controller from the objects that have it.
    Release(release::ReleaseArgs),
    /// Print Pilotlight's own CustomResourceDefinitions as YAML, or check files against them.
    Crds(crds::CrdsArgs),
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
}

impl Cli {
    /// Parses a command line, whose first argument is the name of the program.
    pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let (arguments, ignored) = with_command(arguments, &command);
        let mut cli = Self::try_parse_from(arguments)
            .map_err(|error| ignored.with_hint(with_hint_for_dev(error), &command))?;
        cli.ignored = ignored;
        if let Command::Run(args) = &cli.command {
            args.check().map_err(|problem| command.error(ErrorKind::ValueValidation, problem))?;
        }
        Ok(cli)
    }

    /// Runs the command to its end.
    pub(crate) fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&anyhow::Error::from(error).context("starting the runtime")),
        };
        panics::report_without_values();
        let result = runtime.block_on(async {
            let (level, format) = (self.command.log_level(), self.command.log_format());
            self.logging.start(level, format, self.command.logs_bodies())?;
            self.ignored.explain();
            match self.command {
                Command::Run(args) => args.run().await,
                #[cfg(feature = "dev")]
                Command::Dev(args) => args.run().await,
                Command::Types(args) => args.run().await,
                Command::Status(args) => args.run().await,
                Command::Release(args) => args.run().await,
                Command::Crds(args) => args.run(),
                Command::Completions(args) => args.run(),
            }
        });
        // Only blocking code can still run, and it cannot be stopped.
        runtime.shutdown_timeout(Duration::from_millis(100));
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        }
    }
}

impl Command {
    /// Default log level.
    fn log_level(&self) -> LevelFilter {
        match self {
            Self::Run(args) => args.log_level(),
            #[cfg(feature = "dev")]
            Self::Dev(args) => args.log_level(),
            Self::Types(_)
            | Self::Status(_)
            | Self::Release(_)
            | Self::Crds(_)
            | Self::Completions(_) => LevelFilter::WARN,
        }
    }

    /// Returns whether bodies of hooks are logged.
    fn logs_bodies(&self) -> bool {
        match self {
            Self::Run(args) => args.log_level() == LevelFilter::TRACE,
            #[cfg(feature = "dev")]
            Self::Dev(_) => false,
            Self::Types(_)
            | Self::Status(_)
            | Self::Release(_)
            | Self::Crds(_)
            | Self::Completions(_) => false,
        }
    }

    /// Default log format.
    fn log_format(&self) -> LogFormat {
        match self {
            Self::Run(args) => args.log_format(),
            #[cfg(feature = "dev")]
            Self::Dev(_) => LogFormat::Text,
            Self::Types(_)
            | Self::Status(_)
            | Self::Release(_)
            | Self::Crds(_)
            | Self::Completions(_) => LogFormat::Text,
        }
    }
}

/// Prints an error on one line, with all its causes.
fn fail(error: &anyhow::Error) -> ExitCode {
    writeln!(std::io::stderr(), "pilotlight: {}", redaction::error(error.as_ref())).ok();
    ExitCode::FAILURE
}

/// Prints the error of a command line. `--help` and `--version` end here too.
pub(crate) fn refuse(error: clap::Error) -> ExitCode {
    error.print().ok();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Adds to the refusal of `dev` how to get a build that has this command.
fn with_hint_for_dev(mut error: clap::Error) -> clap::Error {
    let refused = error.get(ContextKind::InvalidSubcommand);
    if matches!(refused, Some(ContextValue::String(command)) if command == "dev") {
        let hint = "this build lacks the command dev, which the feature `dev` adds: run \
                    `cargo run -- dev` in Pilotlight's repository";
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

/// Adds the command `run` to a command line of flags alone, which is how a manifest with
/// Metacontroller's arguments starts the image, or to the name of Metacontroller's program without
/// arguments. With `run`, a long flag may have one dash, as in Go. Returns the ignored arguments as
/// well. A command that follows flags of `run` stays, so that the command line is refused.
fn with_command(
    arguments: impl IntoIterator<Item = OsString>,
    cli: &clap::Command,
) -> (Vec<OsString>, IgnoredArguments) {
    let mut arguments: Vec<_> = arguments.into_iter().collect();
    let at = command_position(&arguments, cli);
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str());
    let flags_alone = match text(at) {
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(other) => other.starts_with('-'),
        None => at == arguments.len() && (at > 1 || is_metacontroller(&arguments)),
    };
    let mut ignored = IgnoredArguments::default();
    if flags_alone {
        arguments.insert(at, "run".into());
        ignored = ignored_arguments::split_off(&mut arguments, at + 1, cli);
        arguments.extend(ignored.command(cli).map(OsString::from));
    } else if text(at) != Some("run") {
        return (arguments, ignored);
    }
    let mut flag = at + 1;
    while let Some(argument) = arguments.get(flag) {
        // A separate value keeps its dash.
        let next = arguments.get(flag + 1).map(OsString::as_os_str);
        let step = if ignored_arguments::takes_next(argument, next, cli) { 2 } else { 1 };
        let one_dash = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let long = one_dash.filter(|name| is_long(name)).map(|name| format!("--{name}"));
        if let Some(long) = long {
            arguments[flag] = long.into();
        }
        flag += step;
    }
    (arguments, ignored)
}

/// Returns whether the program was started as `metacontroller`, a link in the image.
fn is_metacontroller(arguments: &[OsString]) -> bool {
    arguments.first().and_then(|program| Path::new(program).file_name())
        == Some(OsStr::new("metacontroller"))
}

/// Returns the position of the command, after the global flags.
fn command_position(arguments: &[OsString], cli: &clap::Command) -> usize {
    let global = |flag: &str| {
        let mut all = cli.get_arguments().filter(|argument| argument.is_global_set());
        all.any(|argument| argument.get_long() == Some(flag))
    };
    let mut at = 1;
    while let Some(flag) = arguments
        .get(at)
        .and_then(|argument| argument.to_str())
        .and_then(|argument| argument.strip_prefix("--"))
    {
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, v)| (name, Some(v)));
        if !global(name) {
            break;
        }
        at += if value.is_some() { 1 } else { 2 };
    }
    at
}

/// Returns whether the text after one dash is the name of a long flag, rather than a short flag or
/// a number.
fn is_long(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.next().is_some_and(|second| second != '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::read(["pilotlight"].iter().chain(arguments).map(OsString::from))
    }

    #[test]
    fn flags_alone_mean_run() {
        for arguments in [
            &["--zap-log-level=4", "--discovery-interval=20s", "--cache-flush-interval=30m"]
                as &[_],
            &["-zap-log-level=4", "-discovery-interval", "20s"],
            &["--kubeconfig", "status", "--metrics-address", ":9999"],
            &["--metrics-address=0", "--leader-election=false", "--zap-devel"],
            &["--target-label-selector", "team=web,tier in (a,b)", "--workers=5"],
            &["--target-label-selector="],
            &["--log-level=debug"],
            &["--log-level", "debug", "--workers=5"],
            &["run", "-workers=5"],
            &["run"],
        ] {
            let cli = read(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            assert!(matches!(cli.command, Command::Run(_)), "{arguments:?}");
        }
    }

    #[test]
    fn program_of_metacontroller_runs_without_arguments() {
        let read = |program: &str| Cli::read([OsString::from(program)]);

        let cli = read("/usr/bin/metacontroller").unwrap();
        assert!(matches!(cli.command, Command::Run(_)));
        let error = read("/pilotlight").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    }

    /// Flags of Metacontroller with values that it accepts.
    const ACCEPTED: [(&str, &[&str]); 23] = [
        ("discovery-interval", &["20s", "1h30m", "1.5m", ".5s", "+1s", "500ms", "1us", "1\u{b5}s"]),
        ("cache-flush-interval", &["30m", "0", "-1s", "100us", "2562047h47m"]),
        (
            "metrics-address",
            &["0", ":9999", "", "127.0.0.1:0", "[::1]:0", "localhost:9999", ":", ":http"],
        ),
        (
            "client-go-qps",
            &[
                "5", "-1", "1e3", "0.5", "+Inf", "-Inf", "NaN", ".5", "0x1p-2", "1_000", "1_0.5",
                "1e1_0", "0x1p1_0",
            ],
        ),
        ("client-go-burst", &["10", "-1", "0x10", "1_000", "+5"]),
        ("workers", &["5", "0", "-1", "0x10", "010", "1_000", "+5"]),
        ("events-qps", &["0.0033", "0", "-1", "1e-3", "Inf", "-Inf", "NaN", "0x1.8p1", "1_0.5"]),
        ("events-burst", &["25", "0", "-1", "0b11", "9223372036854775807"]),
        ("pprof-address", &["0", "", ":6060", "anything", "-1", "-text", "--workers=many", "--"]),
        ("leader-election-resource-lock", &["leases", "endpointsleases", "", "-text"]),
        ("leader-election-namespace", &["", "metacontroller", "-text"]),
        ("leader-election-id", &["metacontroller", "a.b-c", "-text"]),
        ("health-probe-bind-address", &["0", "", ":8081", "[::]:8081", "127.0.0.1:"]),
        (
            "target-label-selector",
            &[
                "",
                "a",
                "!a",
                "a=b",
                "a==b",
                "a!=b",
                "a in (b, c),d notin (e)",
                " a = b ",
                "a=",
                "a>1,b < -2",
            ],
        ),
        ("apply-strategy", &["", "dynamic-apply", "server-side-apply"]),
        (
            "apply-strategy-ssa-field-manager",
            &["metacontroller", "", "a/b c", "-text", "\u{7}", LONG_NAME],
        ),
        ("kubeconfig", &["", "/does/not/exist", "-text"]),
        ("zap-encoder", &["json", "console", "JSON"]),
        ("zap-log-level", &["debug", "INFO", "error", "panic", "1", "+5", "10", "4294967296"]),
        ("zap-stacktrace-level", &["info", "error", "panic"]),
        ("zap-time-encoding", &["epoch", "millis", "nanos", "iso8601", "rfc3339", "RFC3339Nano"]),
        ("leader-election", BOOLEANS),
        ("zap-devel", BOOLEANS),
    ];

    /// Name of 130 bytes.
    const LONG_NAME: &str = concat!(
        "a2345678901234567890123456789012345678901234567890123456789012345",
        "b2345678901234567890123456789012345678901234567890123456789012345",
    );

    const BOOLEANS: &[&str] = &["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false"];

    #[test]
    fn every_value_that_metacontroller_accepts_is_accepted_in_each_form() {
        let check = |arguments: &[&str]| {
            let cli = read(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            assert!(matches!(cli.command, Command::Run(_)), "{arguments:?}");
        };
        for (flag, values) in ACCEPTED {
            for value in values {
                check(&[&format!("--{flag}={value}")]);
                check(&[&format!("-{flag}={value}")]);
                // The last one counts.
                check(&[&format!("--{flag}={value}"), &format!("-{flag}={value}"), "--workers=5"]);
                // A boolean has no separate value in Go.
                if values != BOOLEANS {
                    check(&[&format!("--{flag}"), value]);
                    check(&[&format!("-{flag}"), value, "--workers=5"]);
                }
            }
            if values == BOOLEANS {
                check(&[&format!("--{flag}")]);
                check(&[&format!("-{flag}"), "--workers=5"]);
            }
        }
    }

    #[test]
    fn values_of_flags_keep_their_dash() {
        let parsed = |arguments: &[&str]| format!("{:?}", read(arguments).unwrap().command);

        let separate = parsed(&["-pprof-address", "-text", "-workers", "7"]);
        assert!(separate.contains("\"-text\""), "{separate}");
        assert_eq!(separate, parsed(&["run", "--pprof-address=-text", "--workers=7"]));
        assert_eq!(separate, parsed(&["run", "-pprof-address", "-text", "-workers=7"]));
    }

    #[test]
    fn name_that_the_api_server_refuses_is_refused_with_server_side_apply() {
        let manager = format!("--apply-strategy-ssa-field-manager={LONG_NAME}");

        let error = read(&[&manager, "--apply-strategy=server-side-apply"]).unwrap_err();

        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ValueValidation, 2));
        let text = error.to_string();
        assert!(text.contains("--apply-strategy-ssa-field-manager: give a name"), "{text}");
    }

    #[test]
    fn arguments_after_the_last_flag_are_ignored_without_a_command() {
        for (arguments, ignored) in [
            (&["--leader-election", "true"] as &[_], &["true"] as &[_]),
            (&["-leader-election", "true", "--workers=many"], &["true", "--workers=many"]),
            (&["-workers", "5", "--zap-devel", "1"], &["1"]),
            (&["--workers=5", "statuses", "status"], &["statuses", "status"]),
            (&["--workers=5", "--", "--nonsense"], &["--nonsense"]),
            (&["--workers=5", "-", "x"], &["-", "x"]),
            (&["--workers=5", "", "x"], &["", "x"]),
            (&["--unlimited-writes", "true"], &["true"]),
            (&["--hook-redirects", "false", "x"], &["x"]),
            (&["--log-level", "debug", "--client-go-burst", "-1", "--events-qps", "1"], &[]),
            (
                &["--kubeconfig", "status", "--log-level", "debug", "--hook-answer-children", "7"],
                &[],
            ),
        ] {
            let cli = read(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));

            assert!(matches!(cli.command, Command::Run(_)), "{arguments:?}");
            assert_eq!(cli.ignored.arguments, ignored, "{arguments:?}");
            let named = arguments.get(cli.ignored.position.saturating_sub(1)..);
            assert!(ignored.is_empty() || named == Some(ignored), "{arguments:?}");
        }
    }

    #[test]
    fn command_after_flags_of_run_is_refused_with_a_hint() {
        for (arguments, command) in [
            (&["--kubeconfig", "prod", "release", "NAME"] as &[_], "release"),
            (&["--metrics-address", ":1", "status"], "status"),
            (&["--workers=5", "status", "-ojson"], "status"),
            (&["--log-level=debug", "-workers=5", "run"], "run"),
            (&["--workers=5", "--", "types"], "types"),
        ] {
            let error = read(arguments).unwrap_err();

            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::UnknownArgument, 2));
            let text = error.to_string();
            assert!(text.contains(&format!("unexpected argument '{command}'")), "{text}");
            assert!(text.contains(&format!("before its flags: pilotlight {command} ")), "{text}");
        }
    }

    #[test]
    fn table_of_accepted_values_has_every_flag_of_metacontroller() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metacontroller.md");
        let page = std::fs::read_to_string(page).unwrap();
        let row = page.lines().find(|line| line.starts_with("| all flags of Metacontroller"));
        let named: Vec<_> = row.unwrap().split("`--").skip(1).collect();

        for (flag, _) in ACCEPTED {
            let is_named = |named: &str| named.split('`').next() == Some(flag);
            assert!(named.iter().any(|it| is_named(it)), "the row lacks {flag}");
        }
        assert_eq!(named.len(), ACCEPTED.len(), "{named:?}");
    }

    #[test]
    fn other_command_lines_mean_what_they_say() {
        let types = read(&["--log-level", "debug", "types"]).unwrap();
        let status = read(&["status", "-o", "json"]).unwrap();

        assert!(matches!(types.command, Command::Types(_)));
        assert!(matches!(status.command, Command::Status(_)));
        for (arguments, kind) in [
            (&[] as &[_], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["--help"], ErrorKind::DisplayHelp),
            (&["-h"], ErrorKind::DisplayHelp),
            (&["--version"], ErrorKind::DisplayVersion),
            (&["--workers=5", "-h"], ErrorKind::DisplayHelp),
            (&["--nonsense"], ErrorKind::UnknownArgument),
            (&["run", "--leader-election", "true"], ErrorKind::UnknownArgument),
            (&["nonsense"], ErrorKind::InvalidSubcommand),
        ] {
            assert_eq!(read(arguments).unwrap_err().kind(), kind, "{arguments:?}");
        }
    }

    #[test]
    fn a_build_without_dev_says_how_to_get_it() {
        let without_dev = clap::Command::new("pilotlight")
            .subcommand_required(true)
            .subcommands(["run", "types"].map(clap::Command::new));

        let refuse = |command: &str| {
            let refused = without_dev.clone().try_get_matches_from(["pilotlight", command]);
            with_hint_for_dev(refused.unwrap_err())
        };

        let dev = refuse("dev");
        assert_eq!((dev.kind(), dev.exit_code()), (ErrorKind::InvalidSubcommand, 2));
        assert!(dev.to_string().contains("unrecognized subcommand 'dev'"), "{dev}");
        assert!(dev.to_string().contains("cargo run -- dev"), "{dev}");
        assert!(!refuse("devel").to_string().contains("cargo run"));
    }

    #[test]
    fn the_help_names_dev_only_where_the_build_has_it() {
        let help = Cli::command().render_long_help().to_string();

        let mut words = help.split(|letter: char| !letter.is_alphanumeric());
        assert_eq!(words.any(|word| word == "dev"), cfg!(feature = "dev"), "{help}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_flags_of_the_connection_stand_under_its_heading() {
        for command in ["status", "types", "release", "run"] {
            let command = Cli::command().find_subcommand(command).unwrap().clone();
            let under: Vec<_> = command
                .get_arguments()
                .filter(|it| it.get_help_heading() == Some("API server"))
                .map(|it| it.get_id().as_str().to_owned())
                .collect();
            assert_eq!(under, ["kubeconfig", "context"], "{}", command.get_name());
        }
    }

    #[test]
    fn every_flag_is_documented() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {argument}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }

        check(&Cli::command());
    }

    #[test]
    fn the_flags_of_metacontroller_that_make_sense_here_are_taken() {
        let command_line = [
            "pilotlight",
            "run",
            "--kubeconfig=a",
            "--workers=7",
            "--metrics-address=0",
            "--health-probe-bind-address=:8081",
            "--discovery-interval=20s",
        ];

        Cli::try_parse_from(command_line).unwrap();
    }

    #[test]
    fn a_bad_value_is_answered_with_the_name_of_its_flag() {
        for (argument, expected) in [
            ("--workers=many", "--workers"),
            ("--metrics-address=nonsense", "--metrics-address"),
            ("--graceful-shutdown-timeout=-1s", "--graceful-shutdown-timeout"),
            ("--discovery-interval=0", "--discovery-interval"),
            ("--graceful-shutdown-timeout=5", "--graceful-shutdown-timeout"),
            ("--log-format=xml", "--log-format"),
            ("--log-level=loud=quiet=", "--log-level"),
        ] {
            let error = Cli::try_parse_from(["pilotlight", "run", argument]).unwrap_err();

            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(expected), "{argument}: {error}");
        }
    }
}
