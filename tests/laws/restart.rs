//! What a ledger wrote, merged into a fresh one, gives the same answers.

use highwater::domain::calendar::Period;
use highwater::ledger::Ledger;
use highwater::ledger::restore::Restorer;
use highwater::usage::record::CounterRecord;
use proptest::collection::vec;
use proptest::prelude::Arbitrary;
use proptest::prelude::BoxedStrategy;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::test_runner::TestRunner;

use crate::scene::Desk;
use crate::scene::WIDE;
use crate::scene::bucket;
use crate::scene::calendar;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::id_of;
use crate::scene::leaky;
use crate::scene::ledger_of_start;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// How the records that a process wrote are brought back.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// As they were written.
    Written,
    /// The last one first.
    Reversed,
    /// Each of them twice, the second time round reversed.
    Twice,
    /// Joined to one record per counter, as a store folds them.
    Folded,
    /// The older half folded, the rest as written, some of it twice: what a crash in the middle of a fold
    /// leaves.
    HalfFolded,
}

impl Arbitrary for Order {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        prop_oneof![
            Just(Self::Written),
            Just(Self::Reversed),
            Just(Self::Twice),
            Just(Self::Folded),
            Just(Self::HalfFolded),
        ]
        .boxed()
    }
}

/// Joins records of the same counter.
pub fn fold(records: &[CounterRecord]) -> Vec<CounterRecord> {
    let mut folded: Vec<CounterRecord> = Vec::new();
    for record in records {
        match folded.iter_mut().find(|known| known.id == record.id) {
            Some(known) => known.merge(record.clone()),
            None => folded.push(record.clone()),
        }
    }
    folded
}

/// A ledger of the `start`-th process, brought back from `written`.
pub fn restore(written: &[CounterRecord], order: Order, start: u32) -> Ledger {
    let ledger = ledger_of_start(start, WIDE);
    let mut restorer = Restorer::new(&ledger);
    let mut records = written.to_vec();
    match order {
        Order::Written => {}
        Order::Reversed => records.reverse(),
        Order::Twice => records.extend(written.iter().rev().cloned()),
        Order::Folded => records = fold(written),
        Order::HalfFolded => {
            records = fold(&written[..written.len() / 2]);
            records.extend(written[written.len() / 3..].iter().cloned());
        }
    }
    for record in records {
        let limit = id_of(&record.id.limit).expect("a limit of these tests");
        restorer.counter(record, limit);
    }
    restorer.finish(id_of);
    ledger
}

/// What a store keeps of a key must not grow with the windows that the key has been used in.
#[test]
fn the_row_of_a_key_in_use_does_not_grow_with_time() {
    let ledger = ledger_of_start(1, WIDE);
    let second = seconds(1);
    let rules = [
        fixed(9, second),
        sliding(9, second),
        log(9, second),
        bucket(9, 9, second),
        calendar(9, Period::Hour, "Asia/Kolkata"),
    ];
    for (rule, id) in rules.into_iter().zip(1..) {
        let desk = Desk::new(rule).with_id(id);
        let mut rows = Vec::new();
        for n in 0..300 {
            assert!(desk.passes(&ledger, ms(n * 20 * 60_000), 1));
            rows.extend(drain(&ledger));
            rows = fold(&rows);
        }
        assert_eq!(rows.len(), 1);
        assert!(rows[0].windows.len() <= 2, "{:?}", rows[0].windows);
        assert!(rows[0].log.len() <= 1, "{:?}", rows[0].log);
    }
}

/// Records carry absolute values: of all kinds but a log, whose records are parts, the last one says all
/// that this process did, and whatever was lost before it is not missed.
#[test]
fn the_last_record_says_all_that_a_process_did() {
    let calls = vec((0_i64..700, 1_u64..4, any::<bool>()), 1..60);
    TestRunner::new(config(300))
        .run(&calls, |calls| {
            let second = seconds(1);
            let rules = [
                fixed(9, second),
                sliding(9, second),
                bucket(9, 9, second),
                leaky(9, 9, second),
                calendar(9, Period::Hour, "Asia/Kolkata"),
            ];
            for rule in rules {
                let desk = Desk::new(rule);
                let first = ledger_of_start(1, WIDE);
                let (mut now, mut last) = (0, Vec::new());
                for (wait, cost, is_refund) in &calls {
                    now += wait;
                    if *is_refund {
                        desk.refund(&first, ms(now), *cost);
                    } else {
                        desk.passes(&first, ms(now), *cost);
                    }
                    let written = drain(&first);
                    if !written.is_empty() {
                        last = written;
                    }
                }
                let told = desk.look(&first, ms(now)).standing;
                for order in [Order::Written, Order::Twice] {
                    let second = restore(&last, order, 2);
                    prop_assert_eq!(desk.look(&second, ms(now)).standing, told);
                }
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
