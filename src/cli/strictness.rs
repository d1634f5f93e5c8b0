//! Flags of strictness beyond that of Metacontroller, and of bounds that Metacontroller does not
//! have.

use clap::Args;
use pilotlight::meta::Strictness;

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Differences from Metacontroller")]
pub(super) struct StrictnessArgs {
    /// Refuse what Metacontroller accepts and what may be a mistake: a response that has a child
    /// several times, a child that cannot be used, the response null, and text that is not UTF-8.
    /// With server-side-apply, leave an object without a controller alone in place of a new child.
    /// Default: a hook that works with Metacontroller works unchanged.
    #[arg(long)]
    strict: bool,
    /// Do not limit writes, such as those of a hook whose response differs each time. Default: at
    /// most 400 writes of one object for one parent at once, then one each second.
    #[arg(long)]
    unlimited_writes: bool,
    /// Send metadata.managedFields to hooks, and keep them in memory. Default: they are left out.
    #[arg(long)]
    hook_managed_fields: bool,
    /// Skip the dry runs before a child is recreated. They show whether it differs, and whether the
    /// API server would accept its replacement. Default: dry runs are sent, and a child stays if
    /// its replacement would be refused.
    #[arg(long)]
    pub(super) recreate_without_dry_run: bool,
}

impl StrictnessArgs {
    pub(super) fn strictness(self) -> Strictness {
        let Self { strict, unlimited_writes, hook_managed_fields, .. } = self;
        Strictness { strict, unlimited_writes, managed_fields: hook_managed_fields }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        strictness: StrictnessArgs,
    }

    #[test]
    fn each_difference_from_metacontroller_has_a_flag() {
        let of =
            |flag: Option<&str>| Flags::parse_from(["test"].into_iter().chain(flag)).strictness;
        let usual = Strictness::default();

        assert_eq!(of(None).strictness(), usual);
        for (flag, expected) in [
            ("--strict", Strictness { strict: true, ..usual }),
            ("--unlimited-writes", Strictness { unlimited_writes: true, ..usual }),
            ("--hook-managed-fields", Strictness { managed_fields: true, ..usual }),
        ] {
            assert_eq!(of(Some(flag)).strictness(), expected, "{flag}");
        }
        assert!(of(Some("--recreate-without-dry-run")).recreate_without_dry_run);
    }
}
