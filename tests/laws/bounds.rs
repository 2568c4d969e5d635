//! Bounds of memory: floods, room, sweeps, and what is written while places are used again.

use highwater::domain::decision::Decision;
use highwater::domain::decision::Reason;
use highwater::domain::limit::OnUnavailable;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::test_runner::TestRunner;

use crate::restart::Order;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::bucket;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::id_of;
use crate::scene::ledger;
use crate::scene::ledger_of_start;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

const NARROW: Bounds = Bounds {
    keys_max: 500,
    keys_per_tenant_max: 200,
};

/// A desk of `tenant` whose counters live for an hour.
fn desk_of(tenant: &str) -> Desk {
    let mut desk = Desk::new(fixed(5, seconds(3_600)));
    desk.limit.on_unavailable = OnUnavailable::Closed;
    desk.tenant = tenant.to_owned();
    desk
}

/// Charges one unit to each of `keys` keys; returns how many were counted.
fn flood(ledger: &Ledger, desk: &Desk, keys: u32, at_ms: i64) -> u32 {
    let counted = (0..keys).filter(|n| {
        let told = desk
            .with_key(&format!("key-{n}"))
            .take(ledger, ms(at_ms), 1);
        if told.decision == Decision::Deny {
            assert_eq!(told.reason, Some(Reason::Unavailable));
            assert!(told.degraded);
        }
        told.decision == Decision::Allow
    });
    u32::try_from(counted.count()).expect("no more than keys")
}

#[test]
fn a_live_counter_survives_any_flood() {
    let ledger = ledger_of_start(1, NARROW);
    let acme = desk_of("acme");
    for n in 0..100 {
        assert!(acme.with_key(&n.to_string()).passes(&ledger, ms(0), 3));
    }
    // One tenant fills its own part only; many tenants fill what is left of the whole.
    assert_eq!(flood(&ledger, &desk_of("noisy"), 3_000, 1), 200);
    let unknown = (0..3_000).filter(|n| {
        let stranger = desk_of(&format!("stranger-{n}"));
        stranger.passes(&ledger, ms(2), 1)
    });
    assert_eq!(unknown.count(), 200);
    assert_eq!(ledger.keys(), 500);
    // Now all is full; nothing that lives was forgotten, and it can be charged as before.
    assert_eq!(flood(&ledger, &acme, 50, 3), 0);
    assert_eq!(ledger.refused_keys(), 2_800 + 2_800 + 50);
    for n in 0..100 {
        let key = acme.with_key(&n.to_string());
        assert_eq!(key.look(&ledger, ms(4)).standing.used, 3);
        assert!(key.passes(&ledger, ms(4), 2));
        assert!(!key.passes(&ledger, ms(4), 1));
    }
    // A flood with the ends of windows in sight changes nothing either, up to the last nanosecond.
    assert_eq!(flood(&ledger, &desk_of("third"), 3_000, 3_599_999), 0);
    assert_eq!(ledger.keys(), 500);
}

#[test]
fn dead_counters_make_room() {
    let ledger = ledger_of_start(1, NARROW);
    for tenant in ["a", "b", "c"] {
        flood(&ledger, &desk_of(tenant), 3_000, 0);
    }
    assert_eq!(ledger.keys(), 500);
    // Without any sweep a new counter makes its own room out of the dead ones beside it.
    let later = 3_600_000;
    let counted = flood(&ledger, &desk_of("d"), 3_000, later);
    assert_eq!(counted, 200);
    assert!(ledger.keys() <= 500);
    ledger.sweep(ms(later + 10_000), 1 << 18);
    assert_eq!(ledger.keys(), 200);
    for tenant in ["a", "b"] {
        let counted = flood(&ledger, &desk_of(tenant), 3_000, later + 10_000);
        assert!(counted > 0, "the tenants' own parts are free again");
    }
    assert_eq!(ledger.keys(), 500);
}

#[test]
fn what_comes_back_from_disk_passes_every_bound() {
    let first = ledger();
    flood(&first, &desk_of("acme"), 2_000, 0);
    let second = ledger_of_start(2, NARROW);
    for record in drain(&first) {
        let id = id_of(&record.id.limit).expect("a limit of these tests");
        second.merge(&record, id);
    }
    assert_eq!(second.keys(), 2_000);
    assert_eq!(flood(&second, &desk_of("other"), 10, 0), 0);
    second.sweep(ms(3_700_000), 1 << 18);
    assert_eq!(second.keys(), 0);
    assert_eq!(flood(&second, &desk_of("other"), 300, 3_700_000), 200);
}

#[test]
fn a_sweep_takes_all_that_is_dead_and_nothing_that_lives_in_bounded_steps() {
    let ledger = ledger();
    let short = Desk::new(bucket(2, 1, seconds(1)));
    let long = Desk::new(log(2, seconds(600))).with_id(2);
    for n in 0..5_000 {
        let key = n.to_string();
        assert!(short.with_key(&key).passes(&ledger, ms(0), 1));
        assert!(long.with_key(&key).passes(&ledger, ms(0), 1));
    }
    assert_eq!(ledger.keys(), 10_000);
    // Dead after one second of refill, and kept for a grace of ten more.
    ledger.sweep(ms(10_999), 1 << 18);
    assert_eq!(ledger.keys(), 10_000);
    let mut steps = 0;
    while ledger.keys() > 5_000 {
        let before = ledger.keys();
        ledger.sweep(ms(11_000), 256);
        assert!(before - ledger.keys() <= 256, "one step stays small");
        steps += 1;
        assert!(steps < 1_000, "every place comes round");
    }
    for n in 0..5_000 {
        assert_eq!(
            long.with_key(&n.to_string())
                .look(&ledger, ms(11_000))
                .standing
                .used,
            1
        );
    }
    ledger.sweep(ms(610_000), 1 << 18);
    assert_eq!(ledger.keys(), 0);
}

/// What is done to one of many keys.
#[derive(Clone, Debug)]
enum Deed {
    Take(u8, u64),
    Refund(u8, u64),
    Wait(i64),
    Sweep,
    Write,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        12 => (any::<u8>(), 1_u64..4).prop_map(|(key, cost)| Deed::Take(key, cost)),
        2 => (any::<u8>(), 1_u64..4).prop_map(|(key, units)| Deed::Refund(key, units)),
        3 => (1_i64..4_000).prop_map(Deed::Wait),
        1 => Just(Deed::Wait(15_000)),
        1 => Just(Deed::Sweep),
        1 => Just(Deed::Write),
    ];
    vec(deed, 1..300)
}

/// Counters die and are made again in places that are still marked for disk: what was written must give
/// the same answers as what is in memory.
#[test]
fn no_change_is_lost_between_memory_and_disk() {
    TestRunner::new(config(150))
        .run(&deeds(), |deeds| {
            let second = seconds(1);
            let desks: Vec<Desk> = [
                fixed(9, second),
                sliding(9, second),
                log(9, second),
                bucket(9, 9, second),
            ]
            .into_iter()
            .zip(1..)
            .map(|(rule, id)| Desk::new(rule).with_id(id))
            .collect();
            let desk_of = |key: u8| desks[usize::from(key) % 4].with_key(&key.to_string());
            let first = ledger();
            let mut now = 0;
            let mut written = Vec::new();
            for deed in deeds {
                match deed {
                    Deed::Take(key, cost) => {
                        desk_of(key).passes(&first, ms(now), cost);
                    }
                    Deed::Refund(key, units) => {
                        desk_of(key).refund(&first, ms(now), units);
                    }
                    Deed::Wait(ms) => now += ms,
                    Deed::Sweep => {
                        written.extend(drain(&first));
                        first.sweep(ms(now), 1 << 18);
                    }
                    Deed::Write => written.extend(drain(&first)),
                }
            }
            written.extend(drain(&first));
            prop_assert!(drain(&first).is_empty());
            let restored = restore(&written, Order::Folded, 2);
            for key in 0..=u8::MAX {
                let desk = desk_of(key);
                let told = desk.look(&first, ms(now)).standing;
                prop_assert_eq!(desk.look(&restored, ms(now)).standing, told, "key {}", key);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
