//! Custom sources under a manager.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::manager::{DoneReason, Readiness, always};

/// Source that is done as soon as it is started.
#[derive(Clone, Default)]
struct Brief(Arc<AtomicUsize>);

impl ConditionalSource for Brief {
    fn ready(&self) -> Readiness {
        always()
    }

    fn start_notify_done(&self, _context: SourceContext) -> SourceStart {
        self.0.fetch_add(1, Ordering::SeqCst);
        let (synced, done) = (async { Ok(()) }.boxed(), async { SourceEnd::Stopped }.boxed());
        SourceStart { synced, done }
    }
}

#[tokio::test(start_paused = true)]
async fn controller_whose_required_source_is_always_done_starts_again_less_and_less_often() {
    let (harness, brief) = (Harness::new(), Brief::default());
    harness.install("Widget");

    harness.add(builder().for_type(widgets()).source(brief.clone()).conditional()).await;
    harness.until(|status| status.epoch == 3).await;
    let status = harness.until(|status| status.state == ControllerState::BackingOff).await;
    assert_eq!(status.last_done.as_ref().unwrap().reason, DoneReason::Completed);
    sleep(Duration::from_secs(3600)).await;

    let starts = brief.0.load(Ordering::SeqCst);
    assert_eq!(u64::try_from(starts).unwrap(), harness.status().epoch, "one in each epoch");
    assert!((15..=30).contains(&starts), "{starts}: 1 s doubling to 5 min");
    harness.shutdown().await;
}
