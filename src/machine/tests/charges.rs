//! Checks that the log decides.

use serde_json::json;

use super::Scene;
use super::allowed;
use super::holder;
use super::keyed;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Holder;
use crate::machine::Machine;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;

#[test]
fn every_kind_admits_its_quota_and_no_more() {
    for (limit, quota) in [("fixed", 10), ("sliding", 10), ("log", 3), ("bucket", 5)] {
        let mut scene = Scene::new();
        let passed = (0..20)
            .filter(|call| {
                let region = if call % 2 == 0 { "a" } else { "b" };
                allowed(&scene.charge(region, &[limit], 1))
            })
            .count();
        assert_eq!(passed, quota, "{limit}");
    }
}

#[test]
fn a_bucket_earns_by_log_time() {
    let mut scene = Scene::new();
    assert!(allowed(&scene.charge("a", &["bucket"], 5)));
    scene.at_ms += 999;
    assert!(!allowed(&scene.charge("b", &["bucket"], 1)));
    scene.at_ms += 1;
    assert!(allowed(&scene.charge("b", &["bucket"], 1)));
    assert!(!allowed(&scene.charge("a", &["bucket"], 1)));
}

#[test]
fn log_time_never_falls() {
    let mut scene = Scene::new();
    scene.at_ms = 5_000_000;
    scene.charge("a", &["bucket"], 5);
    scene.at_ms = 1_000_000;
    assert!(!allowed(&scene.charge("a", &["bucket"], 1)));
    assert_eq!(scene.machine.log_time(), Timestamp::from_unix_ms(5_000_000));
}

#[test]
fn a_check_charges_all_or_none() {
    let mut scene = Scene::new();
    assert!(allowed(&scene.charge("a", &["log"], 3)));
    // The log is full, so the window beside it and the bucket are not charged either.
    assert!(!allowed(&scene.charge("b", &["fixed", "log", "bucket"], 1)));
    assert!(!allowed(&scene.charge("b", &["log", "fixed"], 1)));
    assert!(allowed(&scene.charge("b", &["fixed"], 10)));
    assert!(allowed(&scene.charge("b", &["bucket"], 5)));
    // And the other way: the window is full.
    scene.at_ms += 11_000;
    assert!(!allowed(&scene.charge("a", &["log", "fixed"], 1)));
    assert!(allowed(&scene.charge("a", &["log"], 3)));
}

#[test]
fn a_request_counts_once() {
    let mut scene = Scene::new();
    let charge = scene.charge_of("a", &["bucket"], 3);
    let first = scene.send(charge.clone());
    let again = scene.send(charge);
    assert_eq!(first, again);
    assert!(allowed(&scene.charge("a", &["bucket"], 2)));
}

/// Its region gave up or has the answer, and the log has forgotten it.
#[test]
fn a_request_that_comes_after_it_is_over_does_not_count() {
    let mut scene = Scene::new();
    let charge = scene.charge_of("a", &["bucket"], 3);
    assert!(allowed(&scene.send(charge.clone())));
    let mut later = scene.charge_of("a", &["bucket"], 1);
    later.request.answered_below = later.request.number;
    assert!(allowed(&scene.send(later)));
    assert!(matches!(scene.send(charge), Charged::NotTaken(_)));
    assert!(allowed(&scene.charge("a", &["bucket"], 1)));
}

#[test]
fn a_doubled_enrolment_of_an_earlier_process_forgets_no_request() {
    let mut scene = Scene::new();
    let earlier = holder("a");
    let newer = Holder {
        incarnation: 2,
        ..earlier.clone()
    };
    scene.apply(Command::Enroll(newer.clone()));
    let mut charge = scene.charge_of("a", &["bucket"], 3);
    charge.request.holder = newer;
    let first = scene.send(charge.clone());
    assert!(allowed(&first));
    scene.apply(Command::Enroll(earlier));
    assert_eq!(scene.send(charge), first);
}

/// Epochs only rise while the book counts: to one that fell it would give nothing.
#[test]
fn a_reset_is_not_forgotten_while_its_counter_is_in_use() {
    let mut scene = Scene::new();
    let patch = |limits| json!({ "patch": { "tree": { "limits": limits } } });
    scene.change(patch(json!({ "by-user": {
        "algorithm": "fixed_window", "quota": 10, "window": "60s", "mode": "strict", "key": "user"
    } })));
    scene.change(json!({ "reset": { "tenant": "t", "limit": "by-user", "key": "u" } }));
    let epoch_of = |scene: &Scene| {
        let view = scene.machine.catalogue().view();
        let tenant = view.tenant("t").expect("the tenant");
        let limit = tenant.limit("by-user").expect("the limit");
        limit.at("u", scene.machine.log_time()).1
    };
    let reset = epoch_of(&scene);
    for _ in 0..20 {
        scene.at_ms += 30_000;
        let mut charge = scene.charge_of("a", &["by-user"], 1);
        charge.items[0].key = "u".into();
        charge.items[0].epoch = epoch_of(&scene);
        charge.items[0].window = Some(scene.window());
        assert!(allowed(&scene.send(charge)));
        scene.change(patch(json!({ "other": {
            "algorithm": "fixed_window", "quota": scene.at_ms, "window": "60s"
        } })));
        assert_eq!(epoch_of(&scene), reset);
    }
    // Nobody uses it any more.
    for _ in 0..2 {
        scene.at_ms += 200_000;
        scene.change(patch(json!({ "other": {
            "algorithm": "fixed_window", "quota": scene.at_ms, "window": "60s"
        } })));
    }
    assert!(epoch_of(&scene) < reset);
}

#[test]
fn a_copy_of_a_request_that_was_answered_counts_no_more() {
    let mut scene = Scene::new();
    let charge = scene.charge_of("a", &["bucket"], 1);
    assert!(allowed(&scene.send(charge.clone())));
    let mut next = scene.charge_of("a", &["bucket"], 1);
    next.request.answered_below = next.request.number;
    assert!(allowed(&scene.send(next)));
    // The answer to the first is forgotten, that there was one is not; over a snapshot, too.
    let snapshot = scene.machine.snapshot().expect("a snapshot");
    scene.machine = Machine::from_snapshot(&snapshot).expect("its own snapshot");
    assert!(matches!(
        scene.machine.judge(&charge, scene.machine.log_time()),
        Some(Charged::NotTaken(_))
    ));
    assert!(matches!(scene.send(charge.clone()), Charged::NotTaken(_)));
    assert!(matches!(scene.send(charge), Charged::NotTaken(_)));
    assert!(allowed(&scene.charge("a", &["bucket"], 3)));
    assert!(!allowed(&scene.charge("a", &["bucket"], 1)));
}

#[test]
fn a_key_counts_once_everywhere() {
    let mut scene = Scene::new();
    for limit in ["bucket", "fixed"] {
        let mut first = scene.charge_of("a", &[limit], 3);
        first.keyed = Some(keyed(limit, 1));
        first.local = vec![9];
        let Charged::Allowed(answered) = scene.send(first) else {
            panic!("it fits");
        };
        let mut again = scene.charge_of("b", &[limit], 3);
        again.keyed = Some(keyed(limit, 1));
        assert_eq!(scene.send(again), Charged::Repeated(answered));
        let mut other = scene.charge_of("b", &[limit], 1);
        other.keyed = Some(keyed(limit, 2));
        assert_eq!(scene.send(other), Charged::Mismatch);
    }
    assert!(!allowed(&scene.charge("a", &["bucket"], 3)));
    assert!(allowed(&scene.charge("a", &["bucket"], 2)));
    assert!(!allowed(&scene.charge("a", &["fixed"], 8)));
    assert!(allowed(&scene.charge("a", &["fixed"], 7)));
}

#[test]
fn a_refused_key_is_judged_afresh() {
    let mut scene = Scene::new();
    scene.charge("a", &["log"], 3);
    let mut refused = scene.charge_of("a", &["log"], 1);
    refused.keyed = Some(keyed("k", 1));
    assert!(!allowed(&scene.send(refused)));
    scene.at_ms += 10_000;
    let mut again = scene.charge_of("a", &["log"], 1);
    again.keyed = Some(keyed("k", 1));
    assert!(allowed(&scene.send(again)));
}

#[test]
fn a_key_is_forgotten_after_its_retention() {
    let mut scene = Scene::new();
    let mut first = scene.charge_of("a", &["bucket"], 1);
    first.keyed = Some(keyed("k", 1));
    scene.send(first);
    scene.at_ms += 3_600_000;
    let mut later = scene.charge_of("a", &["bucket"], 1);
    later.keyed = Some(keyed("k", 2));
    assert!(allowed(&scene.send(later)));
}

#[test]
fn an_old_epoch_is_not_charged() {
    let mut scene = Scene::new();
    let old = scene.charge_of("a", &["bucket"], 5);
    scene.change(serde_json::json!({ "reset": { "tenant": "t", "limit": "bucket", "key": null } }));
    let version = scene.machine.catalogue().version();
    assert_eq!(scene.send(old), Charged::Stale { version });
    assert!(allowed(&scene.charge("a", &["bucket"], 5)));
}

#[test]
fn a_process_that_was_replaced_charges_nothing() {
    let mut scene = Scene::new();
    let mut newer = holder("a");
    newer.incarnation = 2;
    scene.apply(Command::Enroll(newer));
    assert!(matches!(
        scene.charge("a", &["bucket"], 1),
        Charged::NotTaken(_)
    ));
}

#[test]
fn judging_changes_nothing() {
    let mut scene = Scene::new();
    scene.charge("a", &["bucket", "log", "sliding"], 3);
    let before = scene.machine.snapshot().expect("a snapshot");
    let charge = scene.charge_of("b", &["bucket", "log", "sliding", "fixed"], 1);
    let later = Timestamp::from_unix_ms(scene.at_ms + 700_000);
    assert!(scene.machine.judge(&charge, later).is_none(), "all is back");
    let now = scene.machine.log_time();
    assert!(matches!(
        scene.machine.judge(&charge, now),
        Some(Charged::Refused(items)) if items.len() == 4
    ));
    assert_eq!(scene.machine.snapshot().expect("a snapshot"), before);
    assert!(!allowed(&scene.charge("b", &["bucket"], 3)));
}

#[test]
fn what_is_free_is_charged_when_it_does_not_all_fit() {
    let mut scene = Scene::new();
    for (limit, quota) in [("fixed", 10), ("bucket", 5), ("log", 3)] {
        let mut charge = scene.charge_of("a", &[limit], 100);
        charge.up_to = true;
        let Charged::Allowed(answered) = scene.send(charge) else {
            panic!("as much as there is");
        };
        assert_eq!(answered.receipts[0].units, quota, "{limit}");
        let mut more = scene.charge_of("a", &[limit], 1);
        more.up_to = true;
        let Charged::Allowed(answered) = scene.send(more) else {
            panic!("nothing is charged");
        };
        assert!(answered.receipts.is_empty());
    }
}

#[test]
fn slots_are_held_until_their_lease_ends_in_log_time() {
    let mut scene = Scene::new();
    for hold in [1, 2] {
        let mut charge = scene.charge_of("a", &["slots"], 1);
        charge.hold = Some((hold, Timestamp::from_unix_ms(scene.at_ms + 5_000)));
        assert!(allowed(&scene.send(charge)));
    }
    scene.at_ms += 4_999;
    let take = |scene: &mut Scene| {
        let mut charge = scene.charge_of("b", &["slots"], 1);
        charge.hold = Some((3, Timestamp::from_unix_ms(scene.at_ms + 5_000)));
        allowed(&scene.send(charge))
    };
    assert!(!take(&mut scene));
    scene.at_ms += 1;
    assert!(take(&mut scene));
}

#[test]
fn an_entry_that_makes_no_sense_is_told_so() {
    let mut scene = Scene::new();
    assert!(matches!(
        scene.apply(Command::Change(b"{".to_vec())),
        Reply::Invalid(_)
    ));
    assert!(matches!(
        scene.apply(Command::Found {
            cluster: 8,
            adopted: None
        }),
        Reply::Invalid(_)
    ));
    assert_eq!(scene.machine.cluster(), Some(7));
}

#[test]
fn a_bucket_earns_nothing_between_two_terms() {
    let mut scene = Scene::new();
    assert!(allowed(&scene.charge("a", &["bucket"], 5)));
    scene.at_ms += 3_600_000;
    let begin = Payload {
        log_time: Timestamp::from_unix_ms(scene.at_ms),
        command: Command::Begin,
    };
    scene.machine.apply_in(7, &begin);
    assert!(!allowed(&scene.charge("a", &["bucket"], 1)));
    scene.at_ms += 1_000;
    // Within the term it does, whatever the entry is.
    scene.machine.apply_in(7, &begin);
    assert!(allowed(&scene.charge("a", &["bucket"], 1)));
    let bytes = scene.machine.snapshot().expect("a snapshot");
    let mut copy = Machine::from_snapshot(&bytes).expect("readable");
    scene.at_ms += 1_000;
    let entry = Payload {
        log_time: Timestamp::from_unix_ms(scene.at_ms),
        command: Command::Begin,
    };
    for machine in [&mut scene.machine, &mut copy] {
        machine.apply_in(7, &entry);
    }
    assert_eq!(copy.book(), scene.machine.book());
    assert!(allowed(&scene.charge("a", &["bucket"], 1)));
}

#[test]
fn a_refused_bucket_tells_when_the_cost_will_be_there() {
    let mut scene = Scene::new();
    scene.charge("a", &["bucket"], 4);
    scene.at_ms += 500;
    let charge = scene.charge_of("b", &["bucket"], 3);
    let Charged::Refused(items) = scene
        .machine
        .refusal(&charge, Timestamp::from_unix_ms(scene.at_ms))
    else {
        panic!("there is one unit and a half");
    };
    assert_eq!(items[0].retry_after, Some(Span::from_ms(1_500)));
    assert_eq!(
        (items[0].standing.used, items[0].standing.remaining),
        (4, 1)
    );
    assert_eq!(items[0].standing.reset_after, Span::from_ms(3_500));
    assert_eq!(items[0].window_start, None);
}
