//! Single decisions of a candidate.

use serde_json::json;

use super::*;

const NOW: Duration = Duration::from_secs(1000);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn candidate() -> Candidate {
    Candidate::new("me".into(), ElectionTimes::default())
}

fn lease(version: u64, holder: &str, transitions: i64, renewed: &str) -> StoredLease {
    StoredLease::read(json!({
        "metadata": {"name": "a", "resourceVersion": version.to_string()},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 20,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        },
    }))
}

/// Lease as the server stores this write.
fn stored(write: &LeaseWrite, version: u64) -> StoredLease {
    let mut object = match &write.over {
        Some(over) => over.with(&write.record),
        None => write.record.creation("ns", "a"),
    };
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    StoredLease::read(object)
}

#[track_caller]
fn write(step: Step) -> LeaseWrite {
    match step {
        Step::Write(write) => *write,
        Step::Read | Step::Wait(_) | Step::Lost(_) => panic!("no write: {step:?}"),
    }
}

/// Candidate that leads since [`NOW`], over a lease of version 2.
fn leader() -> Candidate {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "", 4, "t0")), NOW, 0.0);
    let acquire = write(candidate.decide(NOW, true));
    let result = WriteResult::Stored(stored(&acquire, 2));
    candidate.written(&acquire, result, NOW, NOW, 0.0);
    candidate
}

#[test]
fn candidate_reads_the_lease_first() {
    assert_eq!(candidate().decide(NOW, true), Step::Read);
}

#[test]
fn lease_that_never_existed_is_created_at_once() {
    let mut candidate = candidate();
    candidate.read(None, NOW, 0.0);

    let create = write(candidate.decide(NOW, true));

    assert_eq!(create.over, None);
    assert_eq!((create.record.holder.as_str(), create.record.transitions), ("me", 0));
    assert_eq!(create.record.seconds, 15);
}

#[test]
fn empty_holder_is_free_and_the_next_term_is_counted() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "", 4, "t0")), NOW, 0.0);

    let acquire = write(candidate.decide(NOW, true));

    assert_eq!(acquire.record.transitions, 5);
    assert_eq!(acquire.over.unwrap().version, "1", "the write is guarded by the version");
}

#[test]
fn lease_of_another_is_taken_when_its_own_duration_has_passed_since_its_change_was_seen() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "other", 4, "in the far future")), NOW, 0.0);
    assert_eq!(candidate.decide(NOW, true), Step::Wait(NOW + secs(20)));

    candidate.changed(lease(2, "other", 4, "in the far past"), false, NOW + secs(5));
    assert_eq!(candidate.decide(NOW + secs(20), true), Step::Wait(NOW + secs(25)));
    candidate.changed(lease(3, "other", 4, "in the far past"), false, NOW + secs(8));
    assert_eq!(
        candidate.decide(NOW + secs(20), true),
        Step::Wait(NOW + secs(25)),
        "another version of the same record is no change"
    );

    assert_eq!(write(candidate.decide(NOW + secs(25), true)).record.transitions, 5);
}

#[test]
fn lease_without_a_duration_is_respected_for_the_own_one() {
    let mut candidate = candidate();
    let mut seen = lease(1, "other", 0, "t");
    seen.record.seconds = 0;
    candidate.read(Some(seen), NOW, 0.0);

    assert_eq!(candidate.decide(NOW, true), Step::Wait(NOW + secs(15)));
}

#[test]
fn standby_without_a_watch_reads_with_jitter() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "other", 4, "t0")), NOW, 0.5);

    assert_eq!(candidate.decide(NOW, false), Step::Wait(NOW + Duration::from_millis(3200)));
    assert_eq!(candidate.decide(NOW + Duration::from_millis(3200), false), Step::Read);
}

#[test]
fn release_is_taken_at_once() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "other", 4, "t0")), NOW, 0.0);
    candidate.changed(lease(2, "", 4, "t1"), false, NOW + secs(1));

    assert_eq!(write(candidate.decide(NOW + secs(1), true)).record.transitions, 5);
}

#[test]
fn deleted_lease_is_respected_until_it_would_have_expired() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "other", 4, "t0")), NOW, 0.0);
    candidate.changed(lease(2, "other", 4, "t0"), true, NOW + secs(3));

    assert_eq!(candidate.decide(NOW + secs(3), true), Step::Wait(NOW + secs(20)));
    let create = write(candidate.decide(NOW + secs(20), true));
    assert_eq!((create.over, create.record.transitions), (None, 5));
}

#[test]
fn version_that_was_read_after_a_gap_may_have_had_other_records_before_it() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "other", 4, "t0")), NOW, 0.0);
    candidate.read(Some(lease(1, "other", 4, "t0")), NOW + secs(4), 0.0);
    assert_eq!(candidate.decide(NOW + secs(4), true), Step::Wait(NOW + secs(20)));
    candidate.read(Some(lease(3, "other", 4, "t0")), NOW + secs(8), 0.0);

    assert_eq!(candidate.decide(NOW + secs(8), true), Step::Wait(NOW + secs(28)));
}

#[test]
fn lease_that_is_gone_after_a_gap_may_have_had_another_holder() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "", 4, "t0")), NOW, 0.0);
    let acquire = write(candidate.decide(NOW, true));
    candidate.written(&acquire, WriteResult::Conflict, NOW, NOW, 0.0);
    candidate.read(None, NOW + secs(1), 0.0);

    assert_eq!(candidate.decide(NOW + secs(1), true), Step::Wait(NOW + secs(16)));
}

#[test]
fn leader_renews_every_retry_period_and_leads_until_the_renew_deadline() {
    let mut leader = leader();

    assert_eq!(leader.leads_until(), Some(NOW + secs(10)));
    assert_eq!(leader.decide(NOW, true), Step::Wait(NOW + secs(2)));
    let renew = write(leader.decide(NOW + secs(2), true));
    assert_eq!(renew.record.transitions, 5, "the same term");
    let result = WriteResult::Stored(stored(&renew, 3));
    leader.written(&renew, result, NOW + secs(2), NOW + secs(6), 0.0);
    assert_eq!(leader.leads_until(), Some(NOW + secs(12)), "counted from the sending");
}

#[test]
fn leader_whose_renewals_fail_loses_at_the_deadline() {
    let mut leader = leader();
    let renew = write(leader.decide(NOW + secs(2), true));
    leader.written(&renew, WriteResult::Failed, NOW + secs(2), NOW + secs(7), 1.0);

    assert_eq!(
        leader.decide(NOW + secs(7), true),
        Step::Wait(NOW + Duration::from_millis(7500)),
        "retried soon"
    );
    let renew = write(leader.decide(NOW + secs(8), true));
    leader.written(&renew, WriteResult::Failed, NOW + secs(8), NOW + secs(9), 1.0);
    assert_eq!(leader.decide(NOW + secs(9), true), Step::Wait(NOW + secs(10)));
    assert_eq!(leader.decide(NOW + secs(10), true), Step::Lost(Loss::Deadline));
    assert_eq!(leader.leads_until(), None);
    assert_eq!(write(leader.decide(NOW + secs(10), true)).record.transitions, 6, "campaigns again");
}

#[test]
fn clock_that_jumped_over_the_deadline_ends_leadership() {
    assert_eq!(leader().decide(NOW + secs(3600), true), Step::Lost(Loss::Deadline));
}

#[test]
fn foreign_record_ends_leadership_at_once() {
    let mut leader = leader();
    leader.changed(lease(3, "alien", 6, "t"), false, NOW + secs(1));

    assert_eq!(leader.leads_until(), None);
    assert_eq!(leader.decide(NOW + secs(1), true), Step::Lost(Loss::Taken("alien".into())));
    assert_eq!(leader.decide(NOW + secs(1), true), Step::Wait(NOW + secs(21)));
}

#[test]
fn the_same_identity_in_another_term_is_foreign() {
    let mut leader = leader();
    leader.changed(lease(3, "me", 6, "t"), false, NOW + secs(1));

    assert_eq!(leader.decide(NOW + secs(1), true), Step::Lost(Loss::Taken("me".into())));
}

#[test]
fn own_record_that_another_process_wrote_is_respected() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "me", 4, "t0")), NOW, 0.0);

    assert_eq!(candidate.decide(NOW, true), Step::Wait(NOW + secs(20)));
}

#[test]
fn leader_ignores_echoes_of_its_own_writes() {
    let mut leader = leader();
    leader.changed(lease(1, "other", 4, "late"), false, NOW + secs(1));
    assert_eq!(leader.decide(NOW + secs(1), true), Step::Wait(NOW + secs(2)), "an older state");
    leader.changed(lease(1, "other", 4, "late"), true, NOW + secs(1));
    assert_eq!(leader.decide(NOW + secs(1), true), Step::Wait(NOW + secs(2)), "an older deletion");
}

#[test]
fn leader_creates_a_deleted_lease_at_once_and_keeps_its_term() {
    let mut leader = leader();
    leader.changed(lease(3, "me", 5, "t"), true, NOW + secs(1));

    let create = write(leader.decide(NOW + secs(1), true));

    assert_eq!((create.over, create.record.transitions), (None, 5));
    assert_eq!(leader.leads_until(), Some(NOW + secs(10)));
}

#[test]
fn conflict_is_read_at_once_and_then_with_a_pause() {
    let mut leader = leader();
    let renew = write(leader.decide(NOW + secs(2), true));
    leader.written(&renew, WriteResult::Conflict, NOW + secs(2), NOW + secs(2), 0.0);
    assert_eq!(leader.decide(NOW + secs(2), true), Step::Read);
    leader.read(Some(lease(3, "me", 5, "t1")), NOW + secs(2), 0.0);
    let renew = write(leader.decide(NOW + secs(2), true));
    leader.written(&renew, WriteResult::Conflict, NOW + secs(2), NOW + secs(2), 0.0);
    assert_eq!(leader.decide(NOW + secs(2), true), Step::Wait(NOW + secs(4)));
}

#[test]
fn acquisition_whose_response_was_lost_is_recognised() {
    let mut candidate = candidate();
    candidate.read(Some(lease(1, "", 4, "t0")), NOW, 0.0);
    let acquire = write(candidate.decide(NOW, true));
    candidate.written(&acquire, WriteResult::Failed, NOW, NOW + secs(5), 0.0);
    candidate.changed(stored(&acquire, 2), false, NOW + secs(5));

    assert_eq!(candidate.decide(NOW + secs(5), true), Step::Wait(NOW + secs(7)));
    let again = write(candidate.decide(NOW + secs(7), true));
    assert_eq!(again.record.transitions, 6, "a new term, without the wait for an expiry");
}

#[test]
fn release_keeps_the_term_and_empties_the_holder() {
    let release = leader().release().unwrap();

    assert_eq!((release.record.holder.as_str(), release.record.transitions), ("", 5));
    assert_eq!(release.over.unwrap().version, "2");
    assert_eq!(candidate().release(), None);
}
