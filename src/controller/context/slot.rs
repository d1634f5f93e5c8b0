//! Worker slot of a reconcile, which it can release and regain.

use super::Context;

impl Context {
    /// Releases the worker slot of the reconcile, so that the next request starts while the
    /// reconcile continues.
    pub(crate) fn release_slot(&self) {
        if let Some(slot) = self.slot.upgrade() {
            slot.release();
        }
    }

    /// Waits for the released worker slot; `false` if the reconcile should end first.
    /// Cancel safe.
    pub(crate) async fn regain_slot(&self) -> bool {
        let Some(slot) = self.slot.upgrade() else { return true };
        tokio::select! {
            biased;
            () = self.cancelled() => false,
            () = slot.regain() => true,
        }
    }
}
