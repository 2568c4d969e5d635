//! Any input at any time: nothing panics, wraps or answers nonsense.
//!
//! Overflow checks are on in the release profile too, so a sum that does not fit would stop the server.

use std::collections::BTreeMap;

use highwater::domain::calendar::Period;
use highwater::domain::decision::Decision;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Rule;
use highwater::domain::name::Key;
use highwater::domain::stamp::Stamp;
use highwater::domain::time::Span;
use highwater::domain::time::WindowId;
use highwater::ledger::Ledger;
use highwater::ledger::restore::Restorer;
use highwater::usage::actor::ActorId;
use highwater::usage::record::BucketLevel;
use highwater::usage::record::CounterId;
use highwater::usage::record::CounterRecord;
use highwater::usage::record::LogEntry;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert;
use proptest::prop_oneof;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::TestCaseResult;
use proptest::test_runner::TestRunner;

use crate::scene::Desk;
use crate::scene::T0;
use crate::scene::at;
use crate::scene::bucket;
use crate::scene::calendar;
use crate::scene::concurrency;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::id_of;
use crate::scene::leaky;
use crate::scene::ledger;
use crate::scene::limit;
use crate::scene::log;
use crate::scene::name_of;
use crate::scene::sliding;

fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0_u64..9,
        2 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
        1 => Just(i64::MAX as u64),
        1 => Just(1 << 63),
        1 => Just(1 << 53),
        1 => Just(1 << 32),
    ]
}

fn spans() -> impl Strategy<Value = Span> {
    amounts().prop_map(Span::from_nanos)
}

fn instants() -> impl Strategy<Value = i64> {
    let hour = 3_600_000_000_000_i64;
    prop_oneof![
        4 => (0..hour).prop_map(|n| T0 + n),
        2 => any::<i64>(),
        1 => Just(i64::MIN),
        1 => Just(i64::MIN + 1),
        1 => Just(i64::MAX),
        1 => Just(i64::MAX - 1),
        1 => Just(0),
        1 => -hour..hour,
        1 => (0..hour).prop_map(|n| i64::MAX - n),
        1 => (0..hour).prop_map(|n| i64::MIN + n),
    ]
}

fn rules() -> BoxedStrategy<Rule> {
    let periods = prop_oneof![Just(Period::Hour), Just(Period::Day), Just(Period::Year)];
    prop_oneof![
        (amounts(), spans()).prop_map(|(quota, window)| fixed(quota, window)),
        (amounts(), spans()).prop_map(|(quota, window)| sliding(quota, window)),
        (amounts(), spans()).prop_map(|(quota, window)| log(quota, window)),
        (amounts(), amounts(), spans())
            .prop_map(|(capacity, rate, per)| bucket(capacity, rate, per)),
        (amounts(), amounts(), spans())
            .prop_map(|(capacity, rate, per)| leaky(capacity, rate, per)),
        amounts().prop_map(concurrency),
        (amounts(), periods).prop_map(|(quota, period)| calendar(quota, period, "Asia/Kolkata")),
    ]
    .boxed()
}

fn limits() -> impl Strategy<Value = Limit> {
    (rules(), any::<u8>()).prop_map(|(rule, flags)| {
        let mut limit = limit(rule);
        limit.overdraft = flags & 1 > 0;
        limit.enforce = flags & 2 > 0;
        limit.unlimited = flags & 12 == 12;
        if flags & 48 == 48 {
            limit
                .always_allow
                .insert(Key::new("user-1").expect("a key"));
        }
        limit
    })
}

/// What is done to a ledger.
#[derive(Clone, Debug)]
enum Deed {
    /// A check, maybe under a hold that ends at some time, by a caller of some epoch.
    Take(u64, Option<i64>, u64),
    /// Something is given back of an earlier charge.
    GiveBack(u64, usize),
    Renew(i64, usize),
    Refund(u64),
    ChargeLate(u64, i64),
    Limit(Box<Limit>),
    Record(Box<CounterRecord>),
    Sweep,
    Drain,
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (amounts(), option::of(instants()), 0_u64..3)
            .prop_map(|(cost, hold, epoch)| Deed::Take(cost, hold, epoch)),
        2 => (amounts(), any::<usize>()).prop_map(|(units, n)| Deed::GiveBack(units, n)),
        1 => (instants(), any::<usize>()).prop_map(|(end, n)| Deed::Renew(end, n)),
        2 => amounts().prop_map(Deed::Refund),
        1 => (amounts(), instants()).prop_map(|(units, end)| Deed::ChargeLate(units, end)),
        1 => limits().prop_map(|limit| Deed::Limit(Box::new(limit))),
        1 => records().prop_map(|record| Deed::Record(Box::new(record))),
        1 => Just(Deed::Sweep),
        1 => Just(Deed::Drain),
    ]
}

fn records() -> impl Strategy<Value = CounterRecord> {
    let slot = (instants(), 0_u32..4, amounts(), amounts());
    let level = (any::<u32>(), amounts(), instants(), any::<u128>());
    let entry = (any::<u32>(), amounts(), instants(), amounts());
    (
        0_u64..3,
        vec(slot, 0..4),
        option::of(level),
        vec(entry, 0..4),
        instants(),
    )
        .prop_map(|(epoch, slots, level, entries, dead_at)| {
            let id = CounterId {
                limit: name_of(highwater::catalogue::intern::LimitId(1)),
                tenant: "acme".into(),
                key: "user-1".into(),
            };
            let mut record = CounterRecord::empty(id, epoch);
            for (window, actor, p, n) in slots {
                record.set_slot(WindowId(window), ActorId(actor), p, n);
            }
            record.bucket = level.map(|(start, count, instant, drawn)| BucketLevel {
                stamp: Stamp { start, count },
                at: at(instant),
                drawn,
            });
            let entries = entries.into_iter().map(|(start, count, instant, cost)| {
                let entry = LogEntry {
                    at: at(instant),
                    cost,
                };
                (Stamp { start, count }, entry)
            });
            record.log = entries.collect::<BTreeMap<_, _>>();
            record.dead_at = at(dead_at);
            record
        })
}

/// A ledger to which anything is done.
struct Scene {
    ledger: Ledger,
    desk: Desk,
    receipts: Vec<highwater::ledger::hold::Receipt>,
}

impl Scene {
    fn act(&mut self, deed: Deed, now: i64) -> TestCaseResult {
        let instant = at(now);
        match deed {
            Deed::Take(cost, hold, epoch) => {
                self.desk.epoch = epoch;
                let hold = hold.map(|end| (7, at(end)));
                let mut outcome = self.desk.ask(&self.ledger, instant, cost, hold);
                self.receipts.append(&mut outcome.receipts);
                let told = outcome.items[0];
                let quota = self.desk.limit.rule.quota();
                prop_assert!(told.standing.remaining <= quota);
                prop_assert!(told.decision == Decision::Allow || told.reason.is_some());
                prop_assert!(told.retry_after.is_none() || told.decision == Decision::Deny);
            }
            Deed::GiveBack(units, n) if !self.receipts.is_empty() => {
                let receipt = &self.receipts[n % self.receipts.len()];
                let given = self
                    .desk
                    .give_back(&self.ledger, instant, receipt, units, 7);
                prop_assert!(given <= units && given <= receipt.units);
            }
            Deed::Renew(end, n) if !self.receipts.is_empty() => {
                let receipt = &self.receipts[n % self.receipts.len()];
                let (id, limit) = (self.desk.id, &self.desk.limit);
                self.ledger.renew(id, limit, receipt, 7, at(end), instant);
            }
            Deed::GiveBack(..) | Deed::Renew(..) => {}
            Deed::Refund(units) => {
                prop_assert!(self.desk.refund(&self.ledger, instant, units) <= units);
            }
            Deed::ChargeLate(units, end) => {
                self.desk
                    .charge_late(&self.ledger, instant, units, 7, at(end));
            }
            Deed::Limit(limit) => self.desk.limit = *limit,
            Deed::Record(record) => {
                self.ledger.merge(&record, self.desk.id);
                let mut restorer = Restorer::new(&self.ledger);
                restorer.counter(*record, self.desk.id);
                restorer.finish(id_of);
            }
            Deed::Sweep => self.ledger.sweep(instant, 1 << 18),
            Deed::Drain => drop(drain(&self.ledger)),
        }
        Ok(())
    }
}

/// `no_input_panics` of `src/ledger/mod.rs`.
#[test]
fn no_input_panics() {
    let strategy = (limits(), vec((deeds(), instants()), 1..60));
    TestRunner::new(config(2_000))
        .run(&strategy, |(limit, deeds)| {
            let mut scene = Scene {
                ledger: ledger(),
                desk: Desk::of(limit),
                receipts: Vec::new(),
            };
            for (deed, now) in deeds {
                scene.act(deed, now)?;
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
