//! Room 2: who should run?

mod condition;
mod epoch;
mod fence;
mod runnable;

pub use condition::{
    Always, Condition, Readiness, Subresource, Unmet, Verdict, all_of, always, any_of, optional,
    type_served,
};
pub use epoch::{Epoch, Report, StopReason, WatchReport};
pub use fence::{Fence, FenceClosed};
pub use runnable::{
    BoxError, ConditionalRunnable, ControllerName, RunResult, Runnable, RunnableGroup,
};
