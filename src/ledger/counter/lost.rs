//! Refill that did not fit into a bucket lately, by when that was.

use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// A slot is 2^26 ns, 67 ms: as exact as anybody knows when units were charged elsewhere.
const SLOT_BITS: u32 = 26;
/// Slots that are remembered: 2.1 s.
const SLOTS: usize = 32;

/// For how long the bucket was full in each slot of time, less what was paid from it.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    /// Nanoseconds in the slots before `end`, by number modulo [`SLOTS`].
    nanos: [u32; SLOTS],
    /// The number of the slot after the newest.
    end: i64,
}

const fn slot_of(at: Timestamp) -> i64 {
    at.as_nanos() >> SLOT_BITS
}

const fn place_of(slot: i64) -> usize {
    slot.rem_euclid(SLOTS as i64) as usize
}

/// The part of `slot` from `from` to `until`, in nanoseconds.
fn within(slot: i64, from: Timestamp, until: Timestamp) -> u32 {
    let begins = slot << SLOT_BITS;
    let ends = begins.saturating_add(1 << SLOT_BITS);
    let nanos = ends.min(until.as_nanos()) - begins.max(from.as_nanos()).min(ends);
    // A slot is shorter than 2^32 ns.
    u32::try_from(nanos).unwrap_or(0)
}

impl Lost {
    /// Notes what is lost while `level` comes to `now`.
    pub(super) fn note(&mut self, level: &Level, flow: &Flow, now: Timestamp) {
        let rate = u128::from(flow.rate.max(1));
        let to_full = Span::from_nanos_saturating(level.drawn.div_ceil(rate));
        let from = level.at.plus(to_full);
        if from >= now {
            return;
        }
        let end = slot_of(now).saturating_add(1);
        let oldest = end.saturating_sub(SLOTS as i64);
        for slot in self.end.max(oldest)..end {
            self.nanos[place_of(slot)] = 0;
        }
        self.end = self.end.max(end);
        // A clock that ran back: what is older than all that is remembered is forgotten.
        let oldest = self.end.saturating_sub(SLOTS as i64);
        for slot in slot_of(from).max(oldest)..end {
            let nanos = &mut self.nanos[place_of(slot)];
            *nanos = nanos.saturating_add(within(slot, from, now));
        }
    }

    /// Pays up to `due`, in units times nanoseconds, from what was lost after `since`, each lost unit once; what is left
    /// to pay.
    pub(super) fn pay(&mut self, mut due: u128, flow: &Flow, since: Timestamp) -> u128 {
        let rate = u128::from(flow.rate.max(1));
        let oldest = self.end.saturating_sub(SLOTS as i64);
        for slot in slot_of(since).max(oldest)..self.end {
            if due == 0 {
                break;
            }
            let nanos = &mut self.nanos[place_of(slot)];
            let usable = (*nanos).min(within(slot, since, Timestamp::MAX));
            let wanted = u32::try_from(due.div_ceil(rate)).unwrap_or(u32::MAX);
            let paid = usable.min(wanted);
            *nanos -= paid;
            due = due.saturating_sub(u128::from(paid).saturating_mul(rate));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::proptest;

    use super::*;

    const FLOW: Flow = Flow {
        capacity: 10,
        rate: 10,
        per: Span::from_seconds(1),
    };

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    fn units(units: u128) -> u128 {
        units * 1_000_000_000
    }

    fn full(ms: i64) -> Level {
        Level {
            drawn: 0,
            at: at(ms),
        }
    }

    #[test]
    fn refill_that_was_lost_after_a_charge_pays_for_it_once() {
        let mut lost = Lost::default();
        lost.note(&full(0), &FLOW, at(1_000));
        // 200 ms of refill are 2 units.
        assert_eq!(lost.pay(units(3), &FLOW, at(800)), units(1));
        // The same time of another peer's charge has nothing left, however much was lost before: no more than a slot.
        let again = lost.pay(units(1), &FLOW, at(800));
        assert!(again > units(1) / 3, "{again}");
        assert_eq!(lost.pay(units(9), &FLOW, at(0)), units(2) - again);
        assert_eq!(lost.pay(units(1), &FLOW, at(0)), units(1));
    }

    #[test]
    fn only_the_time_after_the_bucket_was_full_is_lost() {
        let mut lost = Lost::default();
        let half = Level {
            drawn: units(5),
            at: at(0),
        };
        lost.note(&half, &FLOW, at(400));
        assert_eq!(lost.pay(units(1), &FLOW, at(0)), units(1));
        lost.note(&half, &FLOW, at(600));
        assert_eq!(lost.pay(units(3), &FLOW, at(0)), units(2));
    }

    /// Each charge of a bucket that is never far from full ended what was remembered.
    #[test]
    fn refill_that_was_lost_between_many_charges_is_remembered() {
        let mut lost = Lost::default();
        for n in 0..20 {
            // Half of a unit's time full, half of it not.
            let level = Level {
                drawn: units(1) / 2,
                at: at(n * 100),
            };
            lost.note(&level, &FLOW, at((n + 1) * 100));
        }
        assert_eq!(lost.pay(units(30), &FLOW, at(0)), units(20));
    }

    #[test]
    fn lost_refill_is_forgotten_after_two_seconds() {
        let mut lost = Lost::default();
        lost.note(&full(0), &FLOW, at(10_000));
        let left = lost.pay(units(100), &FLOW, at(0));
        assert!((units(78)..units(80)).contains(&left), "{left}");
        lost.note(&full(10_000), &FLOW, at(11_000));
        lost.note(&full(14_000), &FLOW, at(14_001));
        let left = lost.pay(units(100), &FLOW, at(0));
        assert_eq!(left, units(100) - units(1) / 100);
    }

    proptest! {
        /// T2
        #[test]
        fn no_more_is_paid_than_was_lost(
            steps in vec((0_u64..500, 0_u128..10, 0_i64..1_500), 1..50),
        ) {
            let (mut lost, mut now, mut sum, mut paid) = (Lost::default(), at(50), 0, 0);
            for (ms, charged, ago) in steps {
                let level = Level { drawn: units(charged) / 10, at: now };
                let then = now.plus(Span::from_ms(ms));
                lost.note(&level, &FLOW, then);
                sum += (units(ms.into()) / 100).saturating_sub(level.drawn);
                now = then;
                let since = Timestamp::from_nanos(now.as_nanos() - ago * 1_000_000);
                paid += units(2) - lost.pay(units(2), &FLOW, since);
                prop_assert!(paid <= sum, "{} of {}", paid, sum);
            }
        }
    }
}
