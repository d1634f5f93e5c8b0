//! Flags that restore Metacontroller's behaviour where Pilotlight is stricter by default.

use clap::Args;
use pilotlight::meta::Lenience;

#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Behaviour of Metacontroller that is off by default")]
pub(super) struct LenienceArgs {
    /// Do not limit writes that follow from the controller's own writes alone, such as those of a
    /// hook whose response differs each time. Default: at most 20 such writes of one object at
    /// once, then one every 3 s.
    #[arg(long)]
    unlimited_writes: bool,
    /// Accept a response that has a child several times, and use the last one. Default: the
    /// response is refused.
    #[arg(long)]
    repeated_children: bool,
    /// Send metadata.managedFields to hooks, and keep them in memory. Default: they are left out.
    #[arg(long)]
    hook_managed_fields: bool,
    /// With server-side-apply, take over an object that exists in place of a new child and has no
    /// controller. Default: the object is left alone and reported, unless its labels let it be
    /// adopted.
    #[arg(long)]
    apply_strategy_ssa_takeover: bool,
    /// Skip the dry runs before a child is recreated. They show whether it differs, and whether the
    /// API server would accept its replacement. Default: dry runs are sent, and a child stays if
    /// its replacement would be refused.
    #[arg(long)]
    pub(super) recreate_without_dry_run: bool,
}

impl LenienceArgs {
    pub(super) fn lenience(self) -> Lenience {
        Lenience {
            unlimited_writes: self.unlimited_writes,
            repeated_children: self.repeated_children,
            managed_fields: self.hook_managed_fields,
            takeover: self.apply_strategy_ssa_takeover,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        lenience: LenienceArgs,
    }

    #[test]
    fn each_strictness_has_a_flag() {
        let lenience =
            |flag: Option<&str>| Flags::parse_from(["test"].into_iter().chain(flag)).lenience;
        let strict = Lenience::default();

        assert_eq!(lenience(None).lenience(), strict);
        for (flag, expected) in [
            ("--unlimited-writes", Lenience { unlimited_writes: true, ..strict }),
            ("--repeated-children", Lenience { repeated_children: true, ..strict }),
            ("--hook-managed-fields", Lenience { managed_fields: true, ..strict }),
            ("--apply-strategy-ssa-takeover", Lenience { takeover: true, ..strict }),
        ] {
            assert_eq!(lenience(Some(flag)).lenience(), expected, "{flag}");
        }
        assert!(lenience(Some("--recreate-without-dry-run")).recreate_without_dry_run);
    }
}
