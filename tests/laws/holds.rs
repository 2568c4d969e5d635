//! Holds: leases on a concurrency limit and the table of holds, driven together as a region drives them.
//!
//! The model is a map from hold to units and end. At every step what the ledger says is held must be the
//! sum of the model's leases that have not ended, whatever was acquired, renewed, released, expired or
//! restarted in between; each hold must stand in the table as the model says, and a refusal must tell the
//! soonest instant at which enough leases have ended.

use std::collections::BTreeMap;

use highwater::domain::decision::Decision;
use highwater::domain::time::Timestamp;
use highwater::ledger::Ledger;
use highwater::ledger::hold::HoldKey;
use highwater::ledger::hold::HoldRecord;
use highwater::ledger::hold::HoldState;
use highwater::ledger::hold::Receipt;
use highwater::ledger::holds::Holds;
use highwater::ledger::holds::REMEMBERED;
use highwater::ledger::holds::Standing;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::test_runner::TestCaseResult;
use proptest::test_runner::TestRunner;

use crate::scene::Desk;
use crate::scene::WIDE;
use crate::scene::concurrency;
use crate::scene::config;
use crate::scene::ledger;
use crate::scene::ledger_of_start;
use crate::scene::ms;
use crate::scene::seconds;

/// A ledger with its table of holds, as a region has them.
struct Region {
    ledger: Ledger,
    holds: Holds,
    desk: Desk,
    written: Vec<HoldRecord>,
    start: u32,
}

impl Region {
    fn new(quota: u64) -> Self {
        Self {
            ledger: ledger(),
            holds: Holds::new(10_000),
            desk: Desk::new(concurrency(quota)),
            written: Vec::new(),
            start: 1,
        }
    }

    fn acquire(&self, hold: u128, units: u64, now: Timestamp, end: Timestamp) -> bool {
        assert!(self.holds.reserve(now));
        let Some(receipt) = self.desk.hold(&self.ledger, now, units, hold, end) else {
            self.holds.unreserve();
            return false;
        };
        self.holds.open(HoldRecord {
            key: HoldKey(hold),
            tenant: self.desk.tenant.clone(),
            receipts: vec![receipt],
            expires_at: end,
            forget_at: end.plus(REMEMBERED),
            state: HoldState::Open,
            version: 1,
        });
        true
    }

    /// Runs `change` on an open hold and its receipt; tells how the hold stood.
    fn with_open(
        &self,
        hold: u128,
        now: Timestamp,
        change: impl FnOnce(&mut HoldRecord, &Receipt),
    ) -> Option<Standing> {
        self.holds.with(HoldKey(hold), |record| {
            let standing = record.standing(now);
            if standing == Standing::Open {
                let receipt = record.receipts[0].clone();
                change(record, &receipt);
                record.version += 1;
            }
            standing
        })
    }

    /// Settles or releases: the lease of a concurrency limit ends with its hold.
    fn release(&self, hold: u128, now: Timestamp) -> Option<Standing> {
        self.with_open(hold, now, |record, receipt| {
            let units = receipt.units;
            let given = self.desk.give_back(&self.ledger, now, receipt, units, hold);
            assert_eq!(given, units, "an open hold has its units");
            record.state = HoldState::Closed {
                fingerprint: 1,
                answer: Box::from(&b"{}"[..]),
            };
        })
    }

    fn renew(&self, hold: u128, now: Timestamp, end: Timestamp) -> Option<Standing> {
        self.with_open(hold, now, |record, receipt| {
            let (id, limit) = (self.desk.id, &self.desk.limit);
            self.ledger.renew(id, limit, receipt, hold, end, now);
            record.expires_at = end;
            record.forget_at = end.plus(REMEMBERED);
        })
    }

    /// Starts the process again. The leases come back with their holds.
    fn restart(&mut self) {
        self.written.extend(self.holds.drain());
        self.start += 1;
        self.ledger = ledger_of_start(self.start, WIDE);
        self.holds = Holds::new(10_000);
        for record in self.written.iter().chain(self.written.iter().rev()) {
            self.holds.restore(record.clone());
        }
        let id = self.desk.id;
        for _ in 0..2 {
            self.holds
                .for_each(|hold| self.ledger.restore_leases(hold, |_| Some(id)));
        }
    }
}

/// What is done; holds are named by the order in which they were asked for.
#[derive(Clone, Debug)]
enum Deed {
    Acquire { units: u64, ttl: i64 },
    Release(u8),
    Renew { hold: u8, ttl: i64 },
    Wait(i64),
    ToNextEnd(i64),
    Sweep,
    Restart,
}

fn deeds(restarts: bool) -> impl Strategy<Value = Vec<Deed>> {
    let ttl = || prop_oneof![1_i64..40, 1_i64..2_000];
    let wait = prop_oneof![0_i64..30, 0_i64..600];
    let deed = prop_oneof![
        8 => (1_u64..4, ttl()).prop_map(|(units, ttl)| Deed::Acquire { units, ttl }),
        3 => any::<u8>().prop_map(Deed::Release),
        3 => (any::<u8>(), ttl()).prop_map(|(hold, ttl)| Deed::Renew { hold, ttl }),
        4 => wait.prop_map(Deed::Wait),
        3 => (-1_i64..=1).prop_map(Deed::ToNextEnd),
        1 => Just(Deed::Sweep),
        u32::from(restarts) => Just(Deed::Restart),
    ];
    vec(deed, 1..80)
}

/// A hold as the model knows it: units, end in milliseconds, and whether it was closed.
#[derive(Clone, Copy, Debug)]
struct Known {
    units: u64,
    end: i64,
    closed: bool,
}

struct Model {
    holds: BTreeMap<u128, Known>,
    now: i64,
}

impl Model {
    fn held(&self, now: i64) -> u64 {
        let live = self.holds.values().filter(|hold| now < hold.end);
        live.map(|hold| hold.units).sum()
    }

    /// The first millisecond after now at which `units` more fit under `quota`.
    fn soonest(&self, quota: u64, units: u64) -> i64 {
        let ends = self.holds.values().map(|hold| hold.end);
        let ends = ends.filter(|end| *end > self.now && self.held(*end) + units <= quota);
        ends.min().expect("units within the quota fit in the end")
    }

    fn standing(&self, hold: u128) -> Option<Standing> {
        self.holds.get(&hold).map(|hold| {
            if hold.closed {
                Standing::Closed
            } else if self.now < hold.end {
                Standing::Open
            } else {
                Standing::Expired
            }
        })
    }
}

fn act(region: &mut Region, model: &mut Model, deed: &Deed, quota: u64) -> TestCaseResult {
    let now = ms(model.now);
    let nth = |hold: u8| 1 + u128::from(hold) % (model.holds.len() as u128 + 2);
    match *deed {
        Deed::Acquire { units, ttl } => {
            let hold = model.holds.len() as u128 + 1;
            let end = model.now + ttl;
            let fits = model.held(model.now) + units <= quota;
            prop_assert_eq!(region.acquire(hold, units, now, ms(end)), fits);
            if fits {
                let closed = false;
                model.holds.insert(hold, Known { units, end, closed });
            } else if units <= quota {
                // A check without a hold is refused like one with it, and tells the wait.
                let told = region.desk.take(&region.ledger, now, units);
                let wait = told.retry_after.map(|wait| now.plus(wait));
                prop_assert_eq!(wait, Some(ms(model.soonest(quota, units))));
            }
        }
        Deed::Release(hold) => {
            let hold = nth(hold);
            let standing = model.standing(hold);
            prop_assert_eq!(region.release(hold, now), standing);
            if standing == Some(Standing::Open)
                && let Some(known) = model.holds.get_mut(&hold)
            {
                known.units = 0;
                known.closed = true;
            }
        }
        Deed::Renew { hold, ttl } => {
            let hold = nth(hold);
            let end = model.now + ttl;
            let standing = model.standing(hold);
            prop_assert_eq!(region.renew(hold, now, ms(end)), standing);
            if standing == Some(Standing::Open)
                && let Some(known) = model.holds.get_mut(&hold)
            {
                known.end = end;
            }
        }
        Deed::Wait(ms) => model.now += ms,
        Deed::ToNextEnd(offset) => {
            let ends = model.holds.values().map(|hold| hold.end);
            if let Some(end) = ends.filter(|end| *end > model.now + 1).min() {
                model.now = end + offset;
            }
        }
        Deed::Sweep => {
            region.ledger.sweep(now, 1 << 18);
            region.holds.sweep(now, 100);
        }
        Deed::Restart => region.restart(),
    }
    let told = region.desk.look(&region.ledger, ms(model.now)).standing;
    let held = model.held(model.now);
    prop_assert_eq!(told.used, held);
    prop_assert_eq!(told.remaining, quota.saturating_sub(held));
    prop_assert_eq!(told.reset_after, seconds(0));
    Ok(())
}

fn try_holds(restarts: bool) {
    let strategy = (1_u64..7, deeds(restarts));
    TestRunner::new(config(600))
        .run(&strategy, |(quota, deeds)| {
            let mut region = Region::new(quota);
            let mut model = Model {
                holds: BTreeMap::new(),
                now: 0,
            };
            for deed in deeds {
                act(&mut region, &mut model, &deed, quota)?;
            }
            prop_assert_eq!(region.holds.len(), model.holds.len());
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn what_is_held_is_the_sum_of_the_leases_that_have_not_ended() {
    try_holds(false);
}

#[test]
fn leases_keep_their_own_time_over_restarts() {
    try_holds(true);
}

#[test]
fn conc_1_a_holder_that_dies_gives_its_slot_back_on_time() {
    let region = Region::new(2);
    let take = |hold, t| region.acquire(hold, 1, ms(t), ms(t + 30_000));
    assert!(take(1, 0));
    assert!(take(2, 0));
    assert!(region.renew(1, ms(20_000), ms(50_000)).is_some());
    assert!(!take(3, 29_900));
    let told = region.desk.take(&region.ledger, ms(29_900), 1);
    assert_eq!(told.decision, Decision::Deny);
    assert_eq!(told.retry_after.map(|wait| wait.as_ms_ceil()), Some(100));
    assert!(take(4, 30_000));
    assert!(!take(5, 30_000));
    assert!(!take(6, 49_900));
    assert!(take(7, 50_000));
}

#[test]
fn conc_3_a_second_release_and_a_late_renewal_change_nothing() {
    let region = Region::new(2);
    let take = |hold, t| region.acquire(hold, 1, ms(t), ms(t + 30_000));
    assert!(take(1, 0) && take(2, 0));
    assert_eq!(region.release(1, ms(1)), Some(Standing::Open));
    assert_eq!(region.release(1, ms(1)), Some(Standing::Closed));
    assert!(take(3, 2));
    assert!(!take(4, 2));
    assert!(take(5, 30_000));
    assert_eq!(
        region.renew(2, ms(30_000), ms(60_000)),
        Some(Standing::Expired)
    );
    assert_eq!(region.release(2, ms(30_000)), Some(Standing::Expired));
    assert_eq!(
        region.desk.look(&region.ledger, ms(30_000)).standing.used,
        2
    );
}

fn record(hold: u128, end: i64) -> HoldRecord {
    HoldRecord {
        key: HoldKey(hold),
        tenant: "acme".to_owned(),
        receipts: Vec::new(),
        expires_at: ms(end),
        forget_at: ms(end).plus(REMEMBERED),
        state: HoldState::Open,
        version: 1,
    }
}

fn close(holds: &Holds, hold: u128) {
    holds.with(HoldKey(hold), |record| {
        record.state = HoldState::Closed {
            fingerprint: 7,
            answer: Box::from(&b"{}"[..]),
        };
        record.version += 1;
    });
}

#[test]
fn only_holds_that_the_disk_knows_to_be_over_make_room() {
    let holds = Holds::new(100);
    for hold in 0..100 {
        assert!(holds.reserve(ms(0)));
        holds.open(record(hold, 60_000));
    }
    assert_eq!(holds.drain().len(), 100);
    assert!(!holds.reserve(ms(0)), "an open hold makes no room");
    close(&holds, 42);
    assert!(!holds.reserve(ms(0)), "its end is not on disk");
    let written = holds.drain();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].version, 2);
    assert!(holds.reserve(ms(0)));
    assert_eq!(holds.len(), 100);
    assert_eq!(holds.with(HoldKey(42), |_| ()), None);
    holds.unreserve();
    assert!(holds.reserve(ms(59_999)));
    assert!(!holds.reserve(ms(59_999)));
    assert!(holds.reserve(ms(60_000)), "expired ones make room");
}

#[test]
fn a_hold_is_forgotten_an_hour_after_its_end_and_its_newest_version_wins() {
    let holds = Holds::new(100);
    let mut newer = record(1, 1_000);
    newer.version = 5;
    newer.expires_at = ms(2_000);
    for version in [&newer, &record(1, 1_000), &newer] {
        holds.restore(version.clone());
    }
    assert_eq!(holds.len(), 1);
    assert_eq!(holds.with(HoldKey(1), |hold| hold.version), Some(5));
    assert!(holds.drain().is_empty(), "what came from disk is on disk");
    holds.sweep(ms(3_600_999), 10);
    assert_eq!(holds.len(), 1);
    holds.sweep(ms(3_601_000), 10);
    assert_eq!(holds.len(), 0);
}
