//! The laws of usage records, tried on random records against a slow oracle.
//!
//! The oracle keeps every fact that a record states and works out the state from all of them at each
//! question, with no order and no in-place join, so a mistake in the fast join cannot hide in both. A
//! record of one counter is drawn with few windows, actors, stamps and epochs: collisions are the point.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crdts::CmRDT;
use crdts::PNCounter;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::proptest;

use crate::domain::name::LimitName;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;
use crate::usage::record::BucketLevel;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;
use crate::usage::record::LogEntry;
use crate::usage::record::Stamp;
use crate::usage::record::slots;
use crate::usage::window::Slot;
use crate::usage::window::WindowUse;

fn counter_id() -> CounterId {
    CounterId {
        limit: LimitName::new("searches").expect("a limit's name"),
        tenant: "acme".into(),
        key: "user-1".into(),
    }
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (0_u32..3, 0_u64..4).prop_map(|(start, count)| Stamp { start, count })
}

/// The instant of the charge that a stamp names: a stamp is given to one charge only.
fn charged_at(stamp: Stamp) -> Timestamp {
    let count = i64::try_from(stamp.count).expect("a small count");
    Timestamp::from_nanos(i64::from(stamp.start) + count)
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()]
}

fn record() -> impl Strategy<Value = CounterRecord> {
    let slot = (0_i64..5, 0_u32..3, amount(), amount());
    let level = (stamp(), 0_i64..3, 0_u128..3);
    let entry = (stamp(), 0_u64..5);
    (
        0_u64..3,
        vec(slot, 0..6),
        option::of(level),
        vec(entry, 0..6),
        option::of((0_i64..5, 0_i64..6)),
        0_i64..5,
    )
        .prop_map(|(epoch, slots, level, entries, horizons, dead_at)| {
            let mut record = CounterRecord::empty(counter_id(), epoch);
            for (window, actor, p, n) in slots {
                record.set_slot(WindowId(window), ActorId(actor), p, n);
            }
            record.bucket = level.map(|(stamp, at, drawn)| BucketLevel {
                stamp,
                at: Timestamp::from_nanos(at),
                drawn,
            });
            for (stamp, cost) in entries {
                record.log.insert(
                    stamp,
                    LogEntry {
                        at: charged_at(stamp),
                        cost,
                    },
                );
            }
            record.dead_at = Timestamp::from_nanos(dead_at);
            if let Some((windows_from, log_from)) = horizons {
                record.prune(WindowId(windows_from), Timestamp::from_nanos(log_from));
            }
            record
        })
}

fn joined(mut left: CounterRecord, right: CounterRecord) -> CounterRecord {
    left.merge(right);
    left
}

/// What a counter's state is, worked out from all records ever seen.
#[derive(Debug, PartialEq)]
struct Reading {
    epoch: u64,
    slots: BTreeMap<(WindowId, ActorId), (u64, u64)>,
    bucket: Option<BucketLevel>,
    log: BTreeMap<Stamp, (Timestamp, u64)>,
    dead_at: Timestamp,
}

fn oracle(records: &[CounterRecord]) -> Reading {
    let epoch = records
        .iter()
        .map(|record| record.epoch)
        .max()
        .expect("at least one record");
    let current: Vec<&CounterRecord> = records
        .iter()
        .filter(|record| record.epoch == epoch)
        .collect();
    let windows_from = current
        .iter()
        .filter_map(|record| record.windows_from)
        .max();
    let log_from = current.iter().filter_map(|record| record.log_from).max();
    let facts: Vec<(WindowId, ActorId, u64, u64)> = current
        .iter()
        .flat_map(|record| &record.windows)
        .filter(|(window, _)| windows_from.is_none_or(|from| **window >= from))
        .flat_map(|(window, counter)| {
            slots(counter)
                .into_iter()
                .map(|(actor, p, n)| (*window, actor, p, n))
        })
        .collect();
    let names: BTreeSet<(WindowId, ActorId)> = facts.iter().map(|fact| (fact.0, fact.1)).collect();
    let slots = names
        .into_iter()
        .map(|name| {
            let of_name = || facts.iter().filter(|fact| (fact.0, fact.1) == name);
            let p = of_name().map(|fact| fact.2).max().unwrap_or(0);
            let n = of_name().map(|fact| fact.3).max().unwrap_or(0);
            (name, (p, n))
        })
        .collect();
    let entries = || current.iter().flat_map(|record| record.log.iter());
    let stamps: BTreeSet<Stamp> = entries().map(|(stamp, _)| *stamp).collect();
    let log = stamps
        .into_iter()
        .filter_map(|stamp| {
            let versions = || {
                entries()
                    .filter(|(named, _)| **named == stamp)
                    .map(|(_, entry)| entry)
            };
            let at = versions().map(|entry| entry.at).min()?;
            let cost = versions().map(|entry| entry.cost).min()?;
            log_from
                .is_none_or(|from| at >= from)
                .then_some((stamp, (at, cost)))
        })
        .collect();
    Reading {
        epoch,
        slots,
        bucket: current.iter().filter_map(|record| record.bucket).max(),
        log,
        dead_at: current
            .iter()
            .map(|record| record.dead_at)
            .max()
            .expect("at least one record"),
    }
}

fn reading(record: &CounterRecord) -> Reading {
    oracle(std::slice::from_ref(record))
}

proptest! {
    #[test]
    fn a_join_is_what_the_oracle_reads_from_all_records(records in vec(record(), 1..6)) {
        let merged = records.iter().cloned().reduce(joined).expect("at least one record");
        prop_assert_eq!(reading(&merged), oracle(&records));
    }

    #[test]
    fn a_join_is_commutative(a in record(), b in record()) {
        prop_assert_eq!(joined(a.clone(), b.clone()), joined(b, a));
    }

    #[test]
    fn a_join_is_associative(a in record(), b in record(), c in record()) {
        let left = joined(joined(a.clone(), b.clone()), c.clone());
        prop_assert_eq!(left, joined(a, joined(b, c)));
    }

    #[test]
    fn a_join_is_idempotent(a in record(), b in record()) {
        prop_assert_eq!(joined(a.clone(), a.clone()), a.clone());
        let once = joined(a, b.clone());
        prop_assert_eq!(joined(once.clone(), b), once);
    }

    #[test]
    fn a_join_never_lowers_what_is_known(a in record(), b in record()) {
        let before = reading(&a);
        let after = reading(&joined(a.clone(), b.clone()));
        prop_assert!(after.epoch >= before.epoch);
        if after.epoch == before.epoch {
            prop_assert!(after.dead_at >= before.dead_at);
            prop_assert!(after.bucket >= before.bucket);
            let cut_off = |window: WindowId| b.epoch == a.epoch && b.windows_from > Some(window);
            for (name, (p, n)) in &before.slots {
                let known = after.slots.get(name);
                prop_assert!(known.is_some_and(|slot| slot.0 >= *p && slot.1 >= *n) || cut_off(name.0));
            }
            for (stamp, (at, cost)) in &after.log {
                let known = before.log.get(stamp);
                prop_assert!(known.is_none_or(|entry| entry.0 >= *at && entry.1 >= *cost));
            }
        }
    }

    #[test]
    fn a_late_record_brings_back_nothing_that_was_cut_off(a in record(), late in record()) {
        let merged = joined(a.clone(), late);
        if merged.epoch == a.epoch {
            prop_assert!(merged.windows.keys().all(|window| Some(*window) >= a.windows_from));
            prop_assert!(merged.log.values().all(|entry| Some(entry.at) >= a.log_from));
        }
    }

    #[test]
    fn a_record_survives_being_written_and_read(a in record()) {
        let written = postcard::to_allocvec(&a).expect("a record can be written");
        let read: CounterRecord = postcard::from_bytes(&written).expect("and read");
        prop_assert_eq!(read, a);
    }

    #[test]
    fn reading_any_bytes_as_a_record_never_panics(bytes in vec(any::<u8>(), 0..400), other in record()) {
        if let Ok(record) = postcard::from_bytes::<CounterRecord>(&bytes) {
            let named = CounterRecord { id: other.id.clone(), ..record };
            let _ = joined(other, named);
        }
    }

    #[test]
    fn a_damaged_record_is_refused_or_joined_without_a_panic(a in record(), at in any::<u16>(), bit in 0_u8..8) {
        let mut written = postcard::to_allocvec(&a).expect("a record can be written");
        let place = usize::from(at) % written.len();
        written[place] ^= 1 << bit;
        if let Ok(damaged) = postcard::from_bytes::<CounterRecord>(&written) {
            let named = CounterRecord { id: a.id.clone(), ..damaged };
            let _ = joined(a, named);
        }
    }

    #[test]
    fn a_window_in_memory_reads_like_the_pn_counter(
        news in vec((1_u32..5, 0_u64..1_000, 0_u64..1_000), 0..20),
        own in vec((0_u64..100, 0_u64..100), 0..10),
    ) {
        let home = |actor: ActorId| actor.0 <= 2;
        let own_actor = ActorId(0);
        let mut window = WindowUse::new(WindowId(7));
        let mut world: PNCounter<ActorId> = PNCounter::new();
        let mut region: PNCounter<ActorId> = PNCounter::new();
        for (p, n) in own {
            window.charge(p);
            window.give_back(n);
            for counter in [&mut world, &mut region] {
                counter.apply(counter.inc_many(own_actor, p));
                counter.apply(counter.dec_many(own_actor, n));
            }
        }
        for (actor, p, n) in news {
            let actor = ActorId(actor);
            let before = slots(&world);
            raise(&mut world, actor, p, n);
            if home(actor) {
                raise(&mut region, actor, p, n);
            }
            let site = if home(actor) { Site::HOME } else { Site(1) };
            let raise = window.merge_slot(Slot { actor, p, n, site });
            prop_assert_eq!(!raise.is_zero(), slots(&world) != before);
        }
        prop_assert_eq!(window.world(), clamped(&world));
        prop_assert_eq!(window.home(), clamped(&region));
    }
}

/// Raises one slot of the crate's counter to absolute values.
fn raise(counter: &mut PNCounter<ActorId>, actor: ActorId, p: u64, n: u64) {
    let (known_p, known_n) = crate::usage::record::slot(counter, actor);
    counter.apply(counter.inc_many(actor, p.saturating_sub(known_p)));
    counter.apply(counter.dec_many(actor, n.saturating_sub(known_n)));
}

/// The sum of the crate's counter; below zero counts as zero.
fn clamped(counter: &PNCounter<ActorId>) -> u64 {
    let total: i128 = slots(counter)
        .iter()
        .map(|(_, p, n)| i128::from(*p) - i128::from(*n))
        .sum();
    u64::try_from(total.max(0)).expect("small sums")
}
