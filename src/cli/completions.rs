//! Subcommand `completions`: prints a completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Shell of the script.
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "pilotlight", &mut script);
        output::print(&String::from_utf8(script)?)
    }
}
