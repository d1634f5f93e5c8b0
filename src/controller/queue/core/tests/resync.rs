//! Resyncs: due times that changes and failures do not delay.

use super::*;

#[test]
fn resync_is_due_whatever_was_added_and_failed_before() {
    let mut queue = QueueHarness::new();
    queue.resync(1, Some(ms(100)));
    queue.add(1, NOW);
    assert_eq!(queue.pop(), Some(1));
    queue.add(1, after(500));
    queue.done(1);
    queue.add(1, FAILED);
    queue.advance(ms(5));
    assert_eq!(queue.pop(), Some(1));
    queue.forget(1);
    queue.done(1);
    queue.advance(ms(94));
    assert_eq!(queue.pop(), None);

    queue.advance(ms(1));

    assert_eq!(queue.pop_all(), [1]);
    queue.done(1);
    queue.advance(ms(1000));
    assert_eq!(queue.pop(), None, "it is due once");
}

#[test]
fn resync_is_of_low_priority_and_precedes_a_longer_delay() {
    let mut queue = QueueHarness::new();
    queue.add(1, after(500));
    queue.resync(1, Some(ms(100)));
    queue.resync(2, Some(ms(100)));
    queue.advance(ms(100));
    queue.add(3, NOW);

    assert_eq!(queue.pop_all(), [1, 3, 2], "the delayed key keeps its priority");
}

#[test]
fn newer_resync_replaces_an_older_one_and_a_drain_drops_it() {
    let mut queue = QueueHarness::new();
    queue.resync(1, Some(ms(100)));
    queue.resync(1, Some(ms(200)));
    queue.resync(2, Some(ms(100)));
    queue.resync(2, None);
    queue.advance(ms(150));
    assert_eq!(queue.pop(), None);
    queue.advance(ms(50));
    assert_eq!(queue.pop_all(), [1]);
    queue.resync(3, Some(ms(100)));
    queue.core.drain();
    queue.timers.clear();
    queue.advance(ms(200));
    assert_eq!(queue.pop(), None);
}

#[test]
fn resync_of_a_key_that_waits_for_a_worker_is_merged_with_it() {
    let mut queue = QueueHarness::new();
    queue.resync(1, Some(ms(100)));
    queue.add(1, NOW);
    queue.advance(ms(100));

    assert_eq!(queue.pop_all(), [1]);
    assert!(!queue.done(1));
}
