//! The table of remembered answers against a plain map, and under parallel callers.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use highwater::ledger::answers::Answers;
use highwater::ledger::answers::Begin;
use highwater::ledger::idempotency::KeptAnswer;
use highwater::ledger::idempotency::Operation;
use highwater::ledger::idempotency::RequestId;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::test_runner::TestCaseResult;
use proptest::test_runner::TestRunner;

use crate::scene::config;
use crate::scene::ms;

const MAX: usize = 6;

fn request(key: u8) -> RequestId {
    RequestId {
        tenant: format!("tenant-{}", key % 2),
        operation: [Operation::Check, Operation::Refund][usize::from(key / 2 % 2)],
        key: (key / 4).to_string(),
    }
}

fn answer(key: u8, fingerprint: u128, expires_at: i64) -> KeptAnswer {
    KeptAnswer {
        request: request(key),
        fingerprint,
        status: 200,
        headers: vec![("retry-after".to_owned(), "1".to_owned())],
        body: Box::from(&b"{}"[..]),
        expires_at: ms(expires_at),
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Begin(u8, u128),
    /// Answers a running request, to be remembered for so long.
    Finish(u8, i64),
    Abandon(u8),
    /// Comes back from disk with this end.
    Restore(u8, u128, i64),
    Wait(i64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Running(u128),
    Answered(u128, i64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let key = || 0_u8..12;
    let fingerprint = || prop_oneof![4 => Just(1_u128), 1 => Just(2)];
    let deed = prop_oneof![
        6 => (key(), fingerprint()).prop_map(|(key, body)| Deed::Begin(key, body)),
        4 => (key(), 1_i64..50).prop_map(|(key, kept)| Deed::Finish(key, kept)),
        1 => key().prop_map(Deed::Abandon),
        2 => (0_i64..30).prop_map(Deed::Wait),
    ];
    let restored = (key(), fingerprint(), 0_i64..60)
        .prop_map(|(key, body, end)| Deed::Restore(key, body, end));
    (vec(restored, 0..6), vec(deed, 1..60))
        .prop_map(|(restored, deeds)| restored.into_iter().chain(deeds).collect())
}

fn act(
    table: &Answers,
    known: &mut BTreeMap<u8, Known>,
    now: &mut i64,
    deed: &Deed,
) -> TestCaseResult {
    match *deed {
        Deed::Begin(key, body) => {
            let expected = match known.get(&key) {
                Some(Known::Running(same)) if *same == body => Begin::Running,
                Some(Known::Answered(same, end)) if *same == body => {
                    Begin::Answered(answer(key, body, *end).into())
                }
                Some(_) => Begin::Mismatch,
                None if known.len() >= MAX => Begin::Full,
                None => {
                    known.insert(key, Known::Running(body));
                    Begin::Fresh
                }
            };
            prop_assert_eq!(table.begin(&request(key), body, ms(*now)), expected);
        }
        Deed::Finish(key, kept) => {
            if let Some(Known::Running(body)) = known.get(&key).copied() {
                table.finish(answer(key, body, *now + kept));
                known.insert(key, Known::Answered(body, *now + kept));
            }
        }
        Deed::Abandon(key) => {
            table.abandon(&request(key));
            if let Some(Known::Running(_)) = known.get(&key) {
                known.remove(&key);
            }
        }
        Deed::Restore(key, body, end) => {
            table.restore(answer(key, body, end));
            let newest = match known.get(&key) {
                Some(Known::Answered(_, known_end)) if *known_end >= end => return Ok(()),
                _ => Known::Answered(body, end),
            };
            known.insert(key, newest);
        }
        Deed::Wait(ms) => *now += ms,
    }
    known.retain(|_, known| !matches!(known, Known::Answered(_, end) if end <= now));
    table.sweep(ms(*now), 100);
    prop_assert_eq!(table.len(), known.len());
    Ok(())
}

#[test]
fn a_key_is_answered_like_a_plain_map_would() {
    TestRunner::new(config(1_500))
        .run(&deeds(), |deeds| {
            let table = Answers::new(MAX, [3, 4]);
            let (mut known, mut now) = (BTreeMap::new(), 0);
            for deed in deeds {
                act(&table, &mut known, &mut now, &deed)?;
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Answers come back from disk in no order of age; one that is kept long must not shield the others.
#[test]
fn restored_answers_are_forgotten_whatever_their_order() {
    let table = Answers::new(1_000, [3, 4]);
    for n in (0..200).rev() {
        let mut kept = answer(0, 1, i64::from(n));
        kept.request.key = n.to_string();
        table.restore(kept);
    }
    assert_eq!(table.len(), 200);
    table.sweep(ms(100), 1_000);
    assert_eq!(table.len(), 99);
}

#[test]
fn one_of_many_parallel_callers_with_a_key_is_fresh() {
    for round in 0..200 {
        let table = Answers::new(MAX, [3, 4]);
        let fresh = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| match table.begin(&request(1), 1, ms(round)) {
                    Begin::Fresh => {
                        fresh.fetch_add(1, Ordering::Relaxed);
                        table.finish(answer(1, 1, round + 1_000));
                    }
                    Begin::Running | Begin::Answered(_) => {}
                    other => panic!("{other:?}"),
                });
            }
        });
        assert_eq!(fresh.into_inner(), 1);
        assert!(matches!(
            table.begin(&request(1), 1, ms(round)),
            Begin::Answered(_)
        ));
    }
}

#[test]
fn operations_and_tenants_do_not_share_keys() {
    let table = Answers::new(MAX, [3, 4]);
    let keyed = |tenant: &str, operation, key: &str| RequestId {
        tenant: tenant.to_owned(),
        operation,
        key: key.to_owned(),
    };
    let requests = [
        keyed("a", Operation::Check, "k"),
        keyed("a", Operation::Refund, "k"),
        keyed("b", Operation::Check, "k"),
        keyed("ak", Operation::Check, ""),
    ];
    for request in &requests {
        assert_eq!(table.begin(request, 1, ms(0)), Begin::Fresh);
    }
    assert_eq!(table.len(), requests.len());
}
