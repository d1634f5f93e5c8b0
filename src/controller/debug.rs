//! Debug state of a controller as JSON: the requests in its queue.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{QueueRow, QueueRowState, Request};

/// Maximum number of requests in one dump, so that a large queue costs little memory.
const MOST_ROWS: usize = 10_000;

/// Returns the requests of a queue in their order, and the number of those left out.
pub(super) fn queue(rows: &[QueueRow<Request>]) -> Value {
    let now = Instant::now();
    let shown: Vec<_> = rows.iter().take(MOST_ROWS).map(|row| of_row(row, now)).collect();
    json!({ "queue": shown, "omitted": rows.len().saturating_sub(MOST_ROWS) })
}

fn of_row(row: &QueueRow<Request>, now: Instant) -> Value {
    let state = match row.state {
        QueueRowState::Running => "Running",
        QueueRowState::Ready => "Ready",
        QueueRowState::Waiting => "Waiting",
    };
    // Negative for a time that has passed.
    let due = row.due.map(|due| match due.checked_duration_since(now) {
        Some(left) => left.as_secs_f64(),
        None => -now.duration_since(due).as_secs_f64(),
    });
    json!({
        "request": row.key.to_string(),
        "priority": row.priority,
        "state": state,
        "dueInSeconds": due,
        "requeues": row.requeues,
    })
}
