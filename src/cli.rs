//! The command line.

mod address;
mod admin;
mod completions;
mod connection;
mod crds;
mod declared;
mod demo;
mod dev;
mod flag;
mod health;
mod http;
mod instance;
mod logging;
mod output;
mod report;
mod run;
mod signals;
mod status;
mod table;
mod types;
mod watchers;

use std::{io::Write, process::ExitCode, time::Duration};

use clap::{
    Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tracing_subscriber::filter::LevelFilter;

/// A conditional controller manager for Kubernetes: controllers that start when the API types
/// they need are served, stop cleanly when those go, and start again when they return.
#[derive(Debug, Parser)]
#[command(
    name = "pilotlight",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 it worked, 1 it failed, 2 the command line is wrong.",
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    logging: logging::LoggingArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers that are declared in a cluster.
    Run(run::RunArgs),
    /// Start a throw-away Kubernetes control plane on this machine, with a manager in it, until
    /// Ctrl-C. The first run builds it with Go, which takes some minutes.
    Dev(dev::DevArgs),
    /// Print what the cluster serves: each type, its state, and who watches it.
    Types(types::TypesArgs),
    /// Print how the declared controllers are doing.
    Status(status::StatusArgs),
    /// Print Pilotlight's own CustomResourceDefinitions as YAML, or check files against them.
    Crds(crds::CrdsArgs),
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&anyhow::Error::from(error).context("starting the runtime")),
        };
        let result = runtime.block_on(async {
            self.logging.start(self.command.log_level())?;
            match self.command {
                Command::Run(args) => args.run().await,
                Command::Dev(args) => args.run().await,
                Command::Types(args) => args.run().await,
                Command::Status(args) => args.run().await,
                Command::Crds(args) => args.run(),
                Command::Completions(args) => args.run(),
            }
        });
        // What is left is blocking user code, which nothing can end.
        runtime.shutdown_timeout(Duration::from_millis(100));
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        }
    }
}

impl Command {
    /// What is logged when nothing is said about it.
    fn log_level(&self) -> LevelFilter {
        match self {
            Self::Run(_) => LevelFilter::INFO,
            Self::Dev(args) => args.log_level(),
            Self::Types(_) | Self::Status(_) | Self::Crds(_) | Self::Completions(_) => {
                LevelFilter::WARN
            }
        }
    }
}

/// One line, with every cause.
fn fail(error: &anyhow::Error) -> ExitCode {
    writeln!(std::io::stderr(), "pilotlight: {error:#}").ok();
    ExitCode::FAILURE
}

/// Says what is wrong with the command line; `--help` and `--version` arrive here too.
pub(crate) fn refuse(error: clap::Error) -> ExitCode {
    error.print().ok();
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
        && let Some(hint) = flag::of_metacontroller(argument)
    {
        writeln!(std::io::stderr(), "\n  note: {hint}").ok();
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
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
            ("--workers=0", "--workers"),
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
