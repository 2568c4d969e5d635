//! An expectation that nothing was asked of says no, and does not pass for it.

use super::BEGAN;
use super::NONE;
use super::TEXT;
use super::assert_fails;
use super::call;
use super::failed;
use super::good;
use super::judged;
use super::said;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Record;
use crate::drill::report;
use crate::drill::report::Stage;
use crate::drill::scenario::Scenario;
use crate::drill::verdict::STALL_MS;
use crate::drill::verdict::judge;

/// A limit that admits everything would not be told from one that counts.
#[test]
fn a_limit_that_was_never_full_proves_nothing() {
    assert_fails(8, |record| {
        let is_refused = |call: &Call| matches!(call.answer, Answer::Refused(_));
        record
            .calls
            .retain(|call| call.load != 0 || !is_refused(call));
    });
    assert_fails(22, |record| {
        let is_refused = |call: &Call| matches!(call.answer, Answer::Refused(_));
        record
            .calls
            .retain(|call| call.load != 3 || !is_refused(call));
    });
    // Neither does one that the failure policy decided alone.
    for (load, line) in [(0, 8), (3, 22)] {
        let mut record = good();
        for call in record.calls.iter_mut().filter(|call| call.load == load) {
            if let Answer::Allowed(said) = &mut call.answer {
                said.decided_by = "fallback".to_owned();
            }
        }
        let findings = judged(&record);
        let finding = findings.iter().find(|finding| finding.line == line);
        let finding = finding.expect("a finding");
        assert_eq!(
            (finding.is_met, finding.found.as_str()),
            (false, "nothing to judge by")
        );
        assert!(
            finding.note.contains("20 units were let through"),
            "{}",
            finding.note
        );
    }
}

#[test]
fn overshoot_that_nobody_asked_for_proves_nothing() {
    let is_refused = |call: &Call| matches!(call.answer, Answer::Refused(_));
    assert_fails(11, |record| {
        record
            .calls
            .retain(|call| call.load != 2 || !is_refused(call));
    });
}

/// What the failure policy let through is no overshoot: it says so in its answers.
#[test]
fn units_by_the_failure_policy_are_no_overshoot() {
    let more = |decided_by: &str| {
        let mut record = good();
        for number in 0..5 {
            let mut said = said(Some(BEGAN + 10_000));
            said.decided_by = decided_by.to_owned();
            let sent_ms = 15_000 + number;
            record.calls.push(call(2, sent_ms, Answer::Allowed(said)));
        }
        record
    };
    assert_eq!(failed(&more("local")), [11]);
    let record = more("fallback");
    assert_eq!(failed(&record), NONE);
    let note = &judged(&record)[3].note;
    assert!(note.ends_with("5 units by the failure policy"), "{note}");
}

/// A bound that is wider because the drill stood still says so.
#[test]
fn a_bound_that_is_wider_for_a_stall_is_told() {
    let overshoot = |stall_ms_max: u64| {
        let mut record = good();
        record.stall_ms_max = stall_ms_max;
        for number in 0..6 {
            let refused = Answer::Refused(said(Some(BEGAN + 10_000)));
            record.calls.push(call(2, 19_100 + number * 100, refused));
        }
        judged(&record)[3].clone()
    };
    let calm = overshoot(STALL_MS - 1);
    assert!(
        calm.is_met && !calm.note.contains("stood still"),
        "{calm:#?}"
    );
    let stalled = overshoot(STALL_MS);
    assert!(
        stalled
            .note
            .ends_with("; the drill stood still for 0.1 s, and the bound is wider for it"),
        "{stalled:#?}"
    );
}

#[test]
fn amounts_that_are_very_large_are_no_panic() {
    let huge: u64 = 9_007_199_254_740_991;
    let text = TEXT
        .replace(
            "capacity = 5, refill = 1",
            &format!("capacity = {huge}, refill = {huge}"),
        )
        .replace("quota = 10,", &format!("quota = {huge},"));
    let scenario = Scenario::parse("t", &text).expect("a scenario");
    let findings = judge(&scenario, &good());
    assert!(!findings[0].is_met && findings[14].is_met);
    let _ = report::report(&scenario, &good(), Stage::Simulation, 1);
}

/// Nobody got an answer in the second window: its quota was asked for, and nothing of it was used.
#[test]
fn units_that_nobody_could_ask_for_are_seen() {
    let mut record = good();
    for call in record.calls.iter_mut().filter(|call| call.load == 2) {
        if call.sent_ms >= 10_000 {
            call.answer = Answer::Unavailable {
                may_be_charged: false,
            };
        }
    }
    let findings = judged(&record);
    assert!(!findings[4].is_met);
    assert_eq!(findings[4].found, "100 % (10 of 10 units)");
}

/// A link that was down before does not show how soon one notices.
#[test]
fn a_link_that_was_down_already_shows_nothing() {
    let is_unlinked_before = |record: &mut Record, regions: &[usize]| {
        for sample in &mut record.samples {
            if let Some(seen) = &mut sample.seen
                && (3_500..=4_000).contains(&sample.at_ms)
                && regions.contains(&sample.region)
            {
                seen.links.retain(|linked| *linked != 0);
            }
        }
    };
    let mut record = good();
    is_unlinked_before(&mut record, &[1, 2]);
    let findings = judged(&record);
    assert!(!findings[11].is_met);
    assert_eq!(findings[11].found, "nothing to judge by");
    // One region had its link, and was late; that of the other does not count.
    let mut record = good();
    for sample in &mut record.samples {
        if let Some(seen) = &mut sample.seen
            && sample.at_ms == 4_000
            && sample.region != 0
        {
            seen.links.push(0);
        }
    }
    is_unlinked_before(&mut record, &[2]);
    assert_eq!(failed(&record), NONE);
    assert_eq!(judged(&record)[11].found, "0.5 s");
}
