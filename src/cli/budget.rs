//! Flags that limit hook responses.

use std::num::NonZeroUsize;

use clap::Args;
use pilotlight::meta::{CustomizeLimits, ResponseBudget, ResponseLimits};

use super::flag;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Hooks")]
pub(super) struct BudgetArgs {
    /// Maximum total size of the hook responses that the process holds in memory, such as 128Mi.
    /// A response of up to 64Ki is not counted. A larger one waits for room, at most until the
    /// timeout of its hook. Responses that are kept for their ETag may take half of this size in
    /// addition.
    #[arg(long, alias = "hook-answer-budget", value_name = "BYTES", default_value = "128Mi", value_parser = flag::bytes)]
    hook_response_budget: usize,
    /// Maximum total size of the hook responses that one controller holds in memory; at most a
    /// quarter of --hook-response-budget. Default: that quarter.
    #[arg(long, alias = "hook-answer-budget-per-controller", value_name = "BYTES", value_parser = flag::bytes)]
    hook_response_budget_per_controller: Option<usize>,
    /// Maximum size of one hook response; at most --hook-response-budget-per-controller. A larger
    /// response is an error. Default: 16Mi, or that budget if it is less.
    #[arg(long, alias = "hook-answer-limit", value_name = "BYTES", value_parser = flag::bytes)]
    hook_response_limit: Option<usize>,
    /// Maximum number of children in one hook response. A response with more is an error.
    #[arg(long, alias = "hook-answer-children", value_name = "NUMBER", default_value = "10000", value_parser = flag::at_least_one)]
    pub(super) hook_response_children: NonZeroUsize,
    /// Maximum size of one response of a customize hook, within --hook-response-limit. Its rules
    /// take many times this size in memory.
    #[arg(long, value_name = "BYTES", default_value = "1Mi", value_parser = flag::bytes)]
    customize_response_limit: usize,
    /// Maximum number of rules in one response of a customize hook.
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = flag::at_least_one)]
    customize_rules: NonZeroUsize,
    /// Maximum number of names in one rule of a customize hook, and of requirements in one of its
    /// selectors. Also the maximum number of names and namespaces that all rules of one parent
    /// select in one type. Each costs memory for each parent.
    #[arg(long, value_name = "NUMBER", default_value = "10000", value_parser = flag::at_least_one)]
    customize_names: NonZeroUsize,
}

impl BudgetArgs {
    /// Returns the budget.
    ///
    /// # Errors
    ///
    /// Names the flag whose value is larger than another one allows.
    pub(super) fn budget(&self) -> anyhow::Result<ResponseBudget> {
        let usual = ResponseLimits::of_process(self.hook_response_budget);
        let controller = self.hook_response_budget_per_controller.unwrap_or(usual.controller);
        anyhow::ensure!(
            controller <= usual.controller,
            "--hook-response-budget-per-controller={controller} is more than a quarter of \
             --hook-response-budget={}",
            usual.process
        );
        let response = self.hook_response_limit.unwrap_or(usual.response.min(controller));
        anyhow::ensure!(
            response <= controller,
            "--hook-response-limit={response} is more than a controller may hold, which is {controller}; \
             raise --hook-response-budget to at least four times the limit"
        );
        Ok(ResponseBudget::new(ResponseLimits { process: usual.process, controller, response }))
    }

    /// Returns the limits of customize responses.
    pub(super) fn customize(&self) -> CustomizeLimits {
        CustomizeLimits {
            response_bytes: self.customize_response_limit,
            rules: self.customize_rules.get(),
            names: self.customize_names.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use pilotlight::meta::MetaOptions;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        budget: BudgetArgs,
    }

    fn budget(arguments: &[&str]) -> Result<ResponseLimits, String> {
        let flags = Flags::try_parse_from([&["test"], arguments].concat()).unwrap();
        flags.budget.budget().map(|budget| budget.limits()).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_follow_from_the_budget_of_the_process() {
        let limits =
            |process, controller, response| Ok(ResponseLimits { process, controller, response });

        assert_eq!(budget(&[]), limits(128 << 20, 32 << 20, 16 << 20));
        assert_eq!(budget(&["--hook-response-budget=32Mi"]), limits(32 << 20, 8 << 20, 8 << 20));
        assert_eq!(budget(&["--hook-response-budget=1Gi"]), limits(1 << 30, 256 << 20, 16 << 20));
        assert_eq!(
            budget(&["--hook-response-budget-per-controller=4Mi"]),
            limits(128 << 20, 4 << 20, 4 << 20)
        );
        assert_eq!(budget(&["--hook-response-limit=1Mi"]), limits(128 << 20, 32 << 20, 1 << 20));
        let children = |arguments: &[&str]| {
            let flags = Flags::try_parse_from([&["test"], arguments].concat()).unwrap();
            flags.budget.hook_response_children.get()
        };
        assert_eq!(children(&[]), MetaOptions::default().max_children);
        assert_eq!(children(&["--hook-response-children=200000"]), 200_000);
    }

    #[test]
    fn limits_of_customize_responses_are_flags() {
        let limits = |arguments: &[&str]| {
            Flags::try_parse_from([&["test"], arguments].concat()).unwrap().budget.customize()
        };
        let usual = CustomizeLimits::default();

        assert_eq!(limits(&[]), usual);
        assert_eq!(
            limits(&["--customize-response-limit=4Mi"]),
            CustomizeLimits { response_bytes: 4 << 20, ..usual }
        );
        assert_eq!(limits(&["--customize-rules=7"]), CustomizeLimits { rules: 7, ..usual });
        assert_eq!(
            limits(&["--customize-names=50000"]),
            CustomizeLimits { names: 50_000, ..usual }
        );
    }

    #[test]
    fn limits_have_their_former_names_too() {
        let former = [
            "--hook-answer-budget=64Mi",
            "--hook-answer-budget-per-controller=4Mi",
            "--hook-answer-limit=1Mi",
            "--hook-answer-children=7",
        ];

        let flags = Flags::try_parse_from([&["test"], &former[..]].concat()).unwrap();
        assert_eq!(flags.budget.hook_response_children.get(), 7);
        assert_eq!(
            budget(&former),
            Ok(ResponseLimits { process: 64 << 20, controller: 4 << 20, response: 1 << 20 })
        );
    }

    #[test]
    fn limit_that_another_does_not_allow_is_refused_by_the_name_of_both() {
        let error = budget(&["--hook-response-limit=64Mi"]).unwrap_err();
        assert!(error.contains("--hook-response-limit=67108864"), "{error}");
        assert!(error.contains("raise --hook-response-budget"), "{error}");
        let share = budget(&["--hook-response-budget-per-controller=64Mi"]).unwrap_err();
        assert!(share.contains("a quarter of --hook-response-budget=134217728"), "{share}");
    }
}
