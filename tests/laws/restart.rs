//! What a ledger wrote, merged into a fresh one, gives the same answers.

use highwater::ledger::Ledger;
use highwater::ledger::restore::Restorer;
use highwater::usage::record::CounterRecord;
use proptest::prelude::Arbitrary;
use proptest::prelude::BoxedStrategy;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prop_oneof;

use crate::scene::WIDE;
use crate::scene::id_of;
use crate::scene::ledger_of_start;

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
        let limit = id_of(&record.id.limit);
        restorer.counter(record, limit, true);
    }
    restorer.finish(|limit| Some(id_of(limit)), |_| true);
    ledger
}
