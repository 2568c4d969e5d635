//! Every expectation can fail: a record in which all is well, and one change of it for each way to fail. The line of the
//! expectation that says no is the right one, and no other says no.

mod pressure;

use super::Finding;
use super::figures;
use super::judge;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::record::Counted;
use crate::drill::record::Done;
use crate::drill::record::Record;
use crate::drill::record::Said;
use crate::drill::record::Sample;
use crate::drill::record::Seen;
use crate::drill::report;
use crate::drill::report::Stage;
use crate::drill::report::page;
use crate::drill::scenario::Scenario;

const TEXT: &str = r#"title = "t"
regions = ["a", "b", "c"]
duration = "20s"
steps = [
  { at = "4s", do = "kill", on = "leader", for = "2s" },
]
expect = [
  { that = "never-exceeded", limit = "s" },
  { that = "charged-once", limit = "once" },
  { that = "counters-agree", limit = "s" },
  { that = "overshoot", limit = "g" },
  { that = "undershoot", limit = "g", at_most = 20 },
  { that = "answered", limit = "g", at_least = 100 },
  { that = "allowed", limit = "once", at_least = 100 },
  { that = "unavailable", limit = "g", at_most = 0 },
  { that = "degraded", limit = "g", at_most = 0 },
  { that = "latency", limit = "g", within = "50ms" },
  { that = "new-leader", within = "4s" },
  { that = "detected", within = "1s" },
  { that = "converged", within = "2s" },
  { that = "healed", within = "5s" },
  { that = "never-exceeded", limit = "drips" },
]
[limits]
s = { algorithm = "fixed_window", quota = 10, window = "10s", mode = "strict" }
once = { algorithm = "fixed_window", quota = 1000, window = "1d", mode = "strict" }
g = { algorithm = "fixed_window", quota = 10, window = "10s", mode = "approximate" }
drips = { algorithm = "token_bucket", capacity = 5, refill = 1, per = "1s", mode = "strict" }
[[load]]
limit = "s"
rate = 1
[[load]]
limit = "once"
rate = 1
idempotent = true
[[load]]
limit = "g"
rate = 1
[[load]]
limit = "drips"
rate = 1
"#;

const NONE: [usize; 0] = [];
/// Callers began at the beginning of a window.
const BEGAN: i64 = 1_796_000_400_000;

fn said(window_start_ms: Option<i64>) -> Said {
    Said {
        epoch: 3,
        window_start_ms,
        decided_by: "local".to_owned(),
        is_degraded: false,
    }
}

fn call(load: usize, sent_ms: u64, answer: Answer) -> Call {
    Call {
        load,
        home: 0,
        region: 0,
        key: 0,
        cost: 1,
        sent_ms,
        heard_ms: sent_ms + 10,
        tries: 1,
        answer,
    }
}

fn seen(region: usize, leader: usize, term: u64, links: &[usize]) -> Seen {
    Seen {
        is_ready: true,
        is_draining: false,
        is_enrolled: true,
        leads: region == leader,
        leader: Some(leader),
        term,
        is_store_ok: true,
        faults: 0,
        links: links.to_vec(),
        lag_ms: 5,
    }
}

/// The leader `a` is killed from 4 s to 6 s; `b` leads from 6 s on; all is well from 9 s on.
fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for at_ms in (0..24_000).step_by(500) {
        let is_away = (4_000..9_000).contains(&at_ms);
        let (leader, term) = if at_ms < 6_000 { (0, 1) } else { (1, 2) };
        for region in 0..3 {
            let others = (0..3).filter(|other| *other != region && !(is_away && *other == 0));
            let links: Vec<usize> = others.collect();
            let is_silent = is_away && region == 0;
            samples.push(Sample {
                at_ms,
                region,
                seen: (!is_silent).then(|| seen(region, leader, term, &links)),
            });
        }
    }
    samples
}

fn counted(limit: usize, used: u64) -> Counted {
    let day = 86_400_000;
    Counted {
        limit,
        tenant: "a".to_owned(),
        key: 0,
        epoch: 3,
        window_start_ms: if limit == 2 {
            BEGAN - BEGAN % day
        } else {
            BEGAN
        },
        used: vec![Some(used); 3],
        stranded: 0,
        held: 0,
    }
}

fn scenario() -> Scenario {
    Scenario::parse("t", TEXT).expect("a scenario")
}

/// Limits are in the order of their names: drips, g, once, s.
fn good() -> Record {
    let window = |second: u64| {
        let start = i64::try_from(second / 10 * 10_000).expect("small");
        Some(BEGAN + start)
    };
    let mut calls = Vec::new();
    for second in 0..20 {
        let sent_ms = second * 1_000;
        calls.push(call(0, sent_ms, Answer::Allowed(said(window(second)))));
        let day = Some(BEGAN - BEGAN % 86_400_000);
        calls.push(call(1, sent_ms, Answer::Allowed(said(day))));
        calls.push(call(2, sent_ms, Answer::Allowed(said(window(second)))));
        calls.push(call(3, sent_ms, Answer::Allowed(said(None))));
        let refused = Answer::Refused(said(window(second)));
        calls.push(call(2, sent_ms + 500, refused));
    }
    // There is more demand than there are units.
    for second in [9, 19] {
        calls.push(call(
            0,
            second * 1_000,
            Answer::Refused(said(window(second))),
        ));
    }
    calls.push(call(3, 15_500, Answer::Refused(said(None))));
    let mut second_window = counted(3, 10);
    second_window.window_start_ms += 10_000;
    Record {
        began_unix_ms: BEGAN,
        load_ended_ms: 20_000,
        ended_ms: 24_000,
        calls,
        samples: samples(),
        steps: vec![Done {
            step: 0,
            region: 0,
            began_ms: 4_000,
            ended_ms: Some(6_000),
        }],
        counted: vec![counted(2, 20), counted(3, 10), second_window],
        converged_ms: Some(20_500),
        faults_of_links: vec![0; 3],
        stall_ms_max: 0,
    }
}

fn judged(record: &Record) -> Vec<Finding> {
    judge(&scenario(), record)
}

fn failed(record: &Record) -> Vec<usize> {
    let findings = judged(record);
    let lines = findings.iter().filter(|finding| !finding.is_met);
    lines.map(|finding| finding.line).collect()
}

/// The one line that says no after `change`.
fn assert_fails(line: usize, change: impl FnOnce(&mut Record)) {
    let mut record = good();
    change(&mut record);
    assert_eq!(failed(&record), [line], "{:#?}", judged(&record));
}

#[test]
fn all_is_well() {
    let findings = judged(&good());
    assert!(
        findings.iter().all(|finding| finding.is_met),
        "{findings:#?}"
    );
    assert_eq!(findings[10].found, "2 s");
    assert_eq!(findings[13].found, "3 s");
}

#[test]
fn a_strict_window_that_admitted_one_more_is_seen() {
    let one_more = |record: &mut Record, is_by_policy: bool| {
        let mut answer = said(Some(BEGAN));
        if is_by_policy {
            answer.decided_by = "fallback".to_owned();
        }
        record.calls.push(call(0, 5_000, Answer::Allowed(answer)));
        record.counted[1] = counted(3, 11);
    };
    assert_fails(8, |record| one_more(record, false));
    // Whatever epoch a leader says it is: no drill resets a counter.
    assert_fails(8, |record| {
        let other_epoch = Said {
            epoch: 4,
            ..said(Some(BEGAN))
        };
        let more = call(0, 5_000, Answer::Allowed(other_epoch));
        record.calls.push(more);
        record.counted[1] = counted(3, 11);
    });
    // The failure policy says so in its answers.
    let mut record = good();
    one_more(&mut record, true);
    assert_eq!(failed(&record), NONE);
    assert!(
        judged(&record)[0]
            .note
            .contains("1 units by the failure policy")
    );
}

#[test]
fn a_bucket_that_gave_more_than_it_holds_and_earns_is_seen() {
    assert_fails(22, |record| {
        for _ in 0..6 {
            record
                .calls
                .push(call(3, 7_000, Answer::Allowed(said(None))));
        }
    });
}

#[test]
fn a_double_charge_and_a_forgotten_one_are_seen() {
    assert_fails(9, |record| record.counted[0] = counted(2, 21));
    assert_fails(9, |record| record.counted[0] = counted(2, 19));
    // A call in doubt may have been charged.
    let mut record = good();
    record.counted[0] = counted(2, 21);
    let in_doubt = Answer::Nothing {
        may_be_charged: true,
    };
    record.calls.push(call(1, 7_000, in_doubt));
    // It was not answered, which is another matter.
    assert_eq!(failed(&record), [14]);
}

#[test]
fn regions_that_count_differently_are_seen() {
    assert_fails(10, |record| record.counted[1].used[2] = Some(9));
    assert_fails(10, |record| record.counted[2].used[0] = None);
    // What was told in another epoch is forgotten.
    assert_fails(10, |record| {
        let of_first = |call: &&mut Call| call.load == 0 && call.sent_ms < 5_000;
        for call in record.calls.iter_mut().filter(of_first) {
            if let Answer::Allowed(said) = &mut call.answer {
                said.epoch = 2;
            }
        }
        record.counted[1] = counted(3, 5);
    });
    // A lost grant: what callers were told is missing, unless an ended process took it with it.
    assert_fails(10, |record| record.counted[1] = counted(3, 9));
    let mut record = good();
    record.counted[1] = counted(3, 9);
    record.counted[1].stranded = 1;
    assert_eq!(failed(&record), NONE);
}

#[test]
fn overshoot_beyond_what_is_stated_is_seen() {
    let more = |record: &mut Record, start: i64, sent_ms: u64, count: u64| {
        for number in 0..count {
            let said = said(Some(BEGAN + start));
            record
                .calls
                .push(call(2, sent_ms + number, Answer::Allowed(said)));
        }
    };
    // A calm window: one unit for each other region.
    assert_fails(11, |record| more(record, 10_000, 15_000, 3));
    let mut record = good();
    more(&mut record, 10_000, 15_000, 2);
    assert_eq!(failed(&record), NONE);
    // In trouble, what was asked for while nobody had noticed.
    let mut record = good();
    more(&mut record, 0, 4_500, 4);
    assert_eq!(failed(&record), NONE);
    assert_fails(11, |record| {
        for at in [1_100, 3_300, 5_500, 7_700] {
            more(record, 0, at, 3);
        }
    });
}

#[test]
fn units_that_could_not_be_used_are_seen() {
    assert_fails(12, |record| {
        let window = Some(BEGAN + 10_000);
        let of_window = |call: &&mut Call| {
            call.load == 2
                && matches!(call.answer, Answer::Allowed(_))
                && call
                    .answer
                    .said()
                    .is_some_and(|said| said.window_start_ms == window)
        };
        for call in record.calls.iter_mut().filter(of_window).take(3) {
            call.answer = Answer::Refused(said(window));
        }
    });
}

#[test]
fn missing_and_wrong_answers_are_seen() {
    let answer_of = |record: &mut Record, load: usize, answer: Answer| {
        let of_load = record.calls.iter_mut().find(|call| call.load == load);
        of_load.expect("a call").answer = answer;
    };
    let nothing = Answer::Nothing {
        may_be_charged: false,
    };
    assert_fails(13, |record| {
        record.calls.push(call(2, 7_000, nothing.clone()));
    });
    assert_fails(13, |record| {
        record.calls.push(call(2, 7_000, Answer::Wrong(500)));
    });
    let day = Some(BEGAN - BEGAN % 86_400_000);
    assert_fails(14, |record| {
        answer_of(record, 1, Answer::Refused(said(day)));
        record.counted[0] = counted(2, 19);
    });
    let mut record = good();
    let unavailable = Answer::Unavailable {
        may_be_charged: false,
    };
    record.calls.push(call(2, 7_000, unavailable));
    assert_eq!(failed(&record), [13, 15]);
    assert_fails(16, |record| {
        let mut degraded = said(Some(BEGAN));
        degraded.is_degraded = true;
        answer_of(record, 2, Answer::Allowed(degraded));
    });
}

#[test]
fn a_report_says_from_when_on_every_call_was_answered() {
    let after = |record: &Record| figures::figures(&scenario(), record).answered_after_ms;
    let mut record = good();
    assert_eq!(after(&record), Some(0));
    let unavailable = Answer::Unavailable {
        may_be_charged: false,
    };
    record.calls.push(call(0, 5_000, unavailable.clone()));
    assert_eq!(after(&record), Some(0));
    record.calls.push(call(0, 9_300, unavailable));
    assert_eq!(after(&record), Some(3_300));
    record.calls.retain(|call| call.sent_ms < 6_000);
    assert_eq!(after(&record), None);
}

#[test]
fn slow_answers_are_seen() {
    assert_fails(17, |record| {
        for call in record.calls.iter_mut().filter(|call| call.load == 2) {
            call.heard_ms = call.sent_ms + 51;
        }
    });
}

#[test]
fn a_leader_that_comes_late_or_never_is_seen() {
    let leads_from = |record: &mut Record, from_ms: u64| {
        for sample in &mut record.samples {
            if let Some(seen) = &mut sample.seen
                && (4_000..from_ms).contains(&sample.at_ms)
            {
                (seen.leads, seen.term) = (false, 1);
            }
        }
    };
    assert_fails(18, |record| leads_from(record, 8_500));
    assert_fails(18, |record| leads_from(record, 30_000));
    // The lead is taken once more, and nobody takes it.
    let mut record = good();
    record.steps.push(Done {
        step: 0,
        region: 1,
        began_ms: 10_000,
        ended_ms: Some(11_000),
    });
    assert!(failed(&record).contains(&18));
    // The killed region did not lead: there is nothing to judge by.
    let mut record = good();
    record.steps[0].region = 2;
    assert_eq!(failed(&record), [18, 19]);
}

#[test]
fn a_failure_that_nobody_notices_is_seen() {
    let is_linked_until = |record: &mut Record, until_ms: u64| {
        for sample in &mut record.samples {
            if let Some(seen) = &mut sample.seen
                && (4_000..until_ms).contains(&sample.at_ms)
                && sample.region != 0
                && !seen.links.contains(&0)
            {
                seen.links.push(0);
            }
        }
    };
    assert_fails(19, |record| is_linked_until(record, 5_500));
    assert_fails(19, |record| is_linked_until(record, 30_000));
}

#[test]
fn regions_that_do_not_come_together_are_seen() {
    assert_fails(20, |record| record.converged_ms = Some(22_001));
    assert_fails(20, |record| record.converged_ms = None);
}

#[test]
fn a_fault_that_does_not_heal_is_seen() {
    let newest = |record: &mut Record| {
        let last = record.samples.last_mut().expect("a sample");
        last.seen.as_mut().expect("seen").clone()
    };
    let ill: [fn(&mut Seen); 7] = [
        |seen| seen.is_ready = false,
        |seen| seen.is_draining = true,
        |seen| seen.is_enrolled = false,
        |seen| seen.leader = None,
        |seen| seen.is_store_ok = false,
        |seen| seen.faults = 1,
        |seen| seen.links = vec![0],
    ];
    for make_ill in ill {
        assert_fails(21, |record| {
            let mut last = newest(record);
            make_ill(&mut last);
            record.samples.last_mut().expect("a sample").seen = Some(last);
        });
    }
    assert_fails(21, |record| {
        record.samples.last_mut().expect("a sample").seen = None;
    });
    assert_fails(21, |record| record.steps[0].ended_ms = None);
    // Well, but too late.
    assert_fails(21, |record| {
        for sample in &mut record.samples {
            if let Some(seen) = &mut sample.seen
                && (8_000..13_500).contains(&sample.at_ms)
            {
                seen.is_ready = false;
            }
        }
    });
}

#[test]
fn a_change_of_leader_is_seen_where_none_may_be() {
    let text = TEXT.replace(
        "that = \"new-leader\", within = \"4s\"",
        "that = \"same-leader\"",
    );
    let scenario = Scenario::parse("t", &text).expect("a scenario");
    let mut record = good();
    let lines = |record: &Record| -> Vec<usize> {
        let findings = judge(&scenario, record);
        let failed = findings.iter().filter(|finding| !finding.is_met);
        failed.map(|finding| finding.line).collect()
    };
    assert_eq!(lines(&record), [18]);
    for sample in &mut record.samples {
        if let Some(seen) = &mut sample.seen {
            (seen.leads, seen.term) = (sample.region == 1, 1);
        }
    }
    assert_eq!(lines(&record), NONE);
}

/// A drill in which nothing was asked and nothing was seen proves nothing.
#[test]
fn an_empty_record_passes_nothing() {
    let findings = judged(&Record::default());
    assert!(
        findings.iter().all(|finding| !finding.is_met),
        "{findings:#?}"
    );
}

#[test]
fn the_page_shows_what_the_report_holds() {
    let mut record = good();
    record.counted[0] = counted(2, 21);
    let report = report::report(&scenario(), &record, Stage::Processes, 7);
    assert!(!report.is_passed);
    let page = page::page(&report);
    for finding in &report.findings {
        for text in [&finding.expectation, &finding.wanted, &finding.found] {
            assert!(
                page.contains(&super::super::report::chart::escaped(text)),
                "{text}"
            );
        }
    }
    assert!(page.contains("14 of 15 expectations met"));
    for word in [
        "full",
        "told",
        "in doubt",
        "held",
        "stranded",
        "by policy",
        "degraded",
        "without a right answer",
        "nothing to judge by",
    ] {
        assert!(page.contains(&format!("<dt>{word}</dt>")), "{word}");
    }
    // Buckets have no windows, and a table of their own.
    let buckets = &report.figures.buckets;
    assert_eq!(buckets.len(), 1);
    let drips = &buckets[0];
    assert_eq!(
        (drips.limit.as_str(), drips.mode.as_str()),
        ("drips", "strict")
    );
    assert_eq!((drips.capacity, drips.refill, drips.per_ms), (5, 1, 1_000));
    assert_eq!((drips.buckets, drips.allowed, drips.refused), (1, 20, 1));
    assert_eq!((drips.over_most, drips.by_policy), (Some(0), 0));
    assert!(page.contains(
        "<td>drips</td><td>strict</td><td class=\"n\">5</td><td class=\"n\">1 in 1 s</td>"
    ));
    // The same line is drawn as the one by which bounds are wider.
    for (stall_ms_max, is_told) in [(super::STALL_MS - 1, false), (super::STALL_MS, true)] {
        record.stall_ms_max = stall_ms_max;
        let report = report::report(&scenario(), &record, Stage::Processes, 7);
        assert_eq!(page::page(&report).contains("stood still for"), is_told);
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
    let written = serde_json::to_string(&report).expect("JSON");
    let read: report::Report = serde_json::from_str(&written).expect("the same");
    assert_eq!(read, report);
}
