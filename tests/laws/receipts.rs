//! Giving units back to the very charge they came from: holds on quotas.
//!
//! The model is the list of charges with what is left of each. A gift reaches a charge while the algorithm
//! still reads it, from this process or from one before it, and takes nothing from any other charge.

use highwater::domain::limit::Rule;
use highwater::ledger::hold::Receipt;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prelude::prop_assert;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use crate::restart::Order;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::bucket;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::ledger;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// Milliseconds of every window here.
const WINDOW: i64 = 1_000;

#[derive(Clone, Debug)]
enum Deed {
    Take(u64),
    /// Gives up to so many units of one of the charges back; each gets one gift.
    GiveBack(Index, u64),
    Wait(i64),
    Restart(Order),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        6 => (1_u64..6).prop_map(Deed::Take),
        5 => (any::<Index>(), 1_u64..7).prop_map(|(which, units)| Deed::GiveBack(which, units)),
        3 => (0_i64..400).prop_map(Deed::Wait),
        1 => Just(Deed::Wait(WINDOW)),
        1 => any::<Order>().prop_map(Deed::Restart),
    ];
    vec(deed, 1..80)
}

struct Charge {
    at: i64,
    left: u64,
    receipt: Option<Receipt>,
}

/// How much of a charge at `at` weighs at `now`, in thousandths of the window; 0: it is not read.
fn weight(rule: &Rule, at: i64, now: i64) -> i64 {
    let windows_ago = now.div_euclid(WINDOW) - at.div_euclid(WINDOW);
    let read = match rule {
        Rule::FixedWindow { .. } => windows_ago == 0,
        Rule::SlidingWindow { .. } if windows_ago == 1 => return WINDOW - now.rem_euclid(WINDOW),
        Rule::SlidingWindow { .. } => windows_ago == 0,
        _ => now - at < WINDOW,
    };
    if read { WINDOW } else { 0 }
}

fn try_rule(rule: &Rule) {
    TestRunner::new(config(400))
        .run(&deeds(), |deeds| {
            let desk = Desk::new(rule.clone());
            let mut ledger = ledger();
            let (mut charges, mut written) = (Vec::<Charge>::new(), Vec::new());
            let (mut now, mut start) = (0, 1);
            for deed in deeds {
                match deed {
                    Deed::Take(units) => {
                        let hold = u128::from(start) << 64 | charges.len() as u128;
                        let receipt = desk.hold(&ledger, ms(now), units, hold, ms(now + 90_000));
                        if receipt.is_some() {
                            let (at, left) = (now, units);
                            charges.push(Charge { at, left, receipt });
                        }
                    }
                    Deed::GiveBack(which, units) if !charges.is_empty() => {
                        let index = which.index(charges.len());
                        let charge = &mut charges[index];
                        let Some(receipt) = charge.receipt.take() else {
                            continue;
                        };
                        let read = weight(rule, charge.at, now) > 0;
                        let expected = if read { units.min(charge.left) } else { 0 };
                        let given = desk.give_back(&ledger, ms(now), &receipt, units, 0);
                        prop_assert_eq!(given, expected, "charged at {}, now {}", charge.at, now);
                        charge.left -= given;
                    }
                    Deed::GiveBack(..) => {}
                    Deed::Wait(ms) => now += ms,
                    Deed::Restart(order) => {
                        written.extend(drain(&ledger));
                        start += 1;
                        ledger = restore(&written, order, start);
                    }
                }
                let weighed = |charge: &Charge| {
                    i64::try_from(charge.left).expect("small") * weight(rule, charge.at, now)
                };
                let in_use: i64 = charges.iter().map(weighed).sum();
                let used = desk.look(&ledger, ms(now)).standing.used;
                prop_assert_eq!(i64::try_from(used), Ok((in_use + WINDOW - 1) / WINDOW));
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{rule:?}: {failure}"));
}

#[test]
fn a_gift_reaches_its_own_charge_in_a_fixed_window() {
    try_rule(&fixed(12, seconds(1)));
}

#[test]
fn a_gift_reaches_its_own_charge_in_a_sliding_window() {
    try_rule(&sliding(12, seconds(1)));
}

#[test]
fn a_gift_reaches_its_own_charge_in_a_log() {
    try_rule(&log(12, seconds(1)));
}

/// A bucket does not know its charges apart. Whatever is given back, it never holds more than its capacity
/// and never gives more than was drawn.
#[test]
fn a_gift_never_fills_a_bucket_above_what_was_drawn() {
    TestRunner::new(config(400))
        .run(&deeds(), |deeds| {
            let desk = Desk::new(bucket(12, 12, seconds(1)));
            let mut ledger = ledger();
            let (mut receipts, mut written) = (Vec::new(), Vec::new());
            let (mut now, mut start) = (0, 1);
            for deed in deeds {
                match deed {
                    Deed::Take(units) => {
                        receipts.extend(desk.hold(&ledger, ms(now), units, 1, ms(now + 90_000)));
                    }
                    Deed::GiveBack(which, units) if !receipts.is_empty() => {
                        let receipt = receipts.swap_remove(which.index(receipts.len()));
                        let before = desk.look(&ledger, ms(now)).standing;
                        let given = desk.give_back(&ledger, ms(now), &receipt, units, 1);
                        let after = desk.look(&ledger, ms(now)).standing;
                        prop_assert!(given <= units.min(receipt.units).min(before.used));
                        prop_assert_eq!(after.used, before.used - given);
                    }
                    Deed::GiveBack(..) => {}
                    Deed::Wait(ms) => now += ms,
                    Deed::Restart(order) => {
                        written.extend(drain(&ledger));
                        start += 1;
                        ledger = restore(&written, order, start);
                    }
                }
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
