//! What other regions draw from a shared bucket, folded into the level that this region keeps.
//!
//! Each region keeps a level of its own and takes every increment that it hears of from it, once. A region whose bucket
//! was full while a charge elsewhere was on its way threw refill away that a common bucket would have kept; so what is
//! heard is paid first from refill that was lost here after it was charged. Each lost unit pays once: a credit by
//! elapsed time alone would pay the same refill again for every peer.

use smallvec::SmallVec;

use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::ledger::exchange::LONG_AGO;
use crate::usage::actor::Site;
use crate::usage::window::Raise;
use crate::usage::window::WindowUse;

/// Lost refill is remembered for so long.
const REMEMBERED: Span = Span::from_seconds(2);
/// Times of being full that are told apart.
const SPELLS_MAX: usize = 4;

/// A time in which the bucket was full.
#[derive(Clone, Copy, Debug)]
struct Spell {
    from: Timestamp,
    until: Timestamp,
    /// What did not fit, in units times nanoseconds, less what was paid from it.
    lost: u128,
}

/// What was drawn elsewhere and is not in the level yet, and the refill that was lost lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Drawn {
    /// Below zero: given back.
    units: i128,
    /// They were charged after this.
    since: Option<Timestamp>,
    /// Of what was charged nobody knows when.
    late: i128,
    /// The bucket's amounts when it was last asked.
    flow: Option<Flow>,
    spells: SmallVec<[Spell; 1]>,
}

impl Drawn {
    pub(super) fn hear(&mut self, raise: Raise, since: Timestamp) {
        let units = i128::from(raise.p) - i128::from(raise.n);
        if since == LONG_AGO || self.flow.is_none() {
            self.late += units;
            return;
        }
        self.units += units;
        self.since = Some(self.since.map_or(since, |known| known.min(since)));
    }

    pub(super) fn keep_flow(&mut self, flow: Flow) {
        self.flow = Some(flow);
    }

    pub(super) fn forget(&mut self) {
        self.units = 0;
        self.late = 0;
        self.since = None;
    }

    /// Notes what was lost while `level` came to `now`.
    fn note_lost(&mut self, level: &Level, flow: &Flow, now: Timestamp) {
        let rate = u128::from(flow.rate.max(1));
        let to_full = Span::from_nanos_saturating(level.drawn.div_ceil(rate));
        let from = level.at.plus(to_full);
        if from >= now {
            return;
        }
        let horizon = now.minus(REMEMBERED);
        self.spells.retain(|spell| spell.until > horizon);
        let from = from.max(horizon);
        let lost = u128::from(now.since(from).as_nanos()).saturating_mul(rate);
        match self.spells.last_mut() {
            Some(last) if last.until == from => {
                last.until = now;
                last.lost = last.lost.saturating_add(lost);
            }
            _ => {
                if self.spells.len() >= SPELLS_MAX {
                    self.spells.remove(0);
                }
                self.spells.push(Spell {
                    from,
                    until: now,
                    lost,
                });
            }
        }
    }

    /// Pays up to `due` from refill that was lost after `since`; what is left to pay.
    fn pay(&mut self, mut due: u128, flow: &Flow, since: Timestamp) -> u128 {
        let rate = u128::from(flow.rate.max(1));
        for spell in &mut self.spells {
            let within = u128::from(spell.until.since(spell.from.max(since)).as_nanos());
            let paid = due.min(spell.lost).min(within.saturating_mul(rate));
            spell.lost -= paid;
            due -= paid;
        }
        due
    }
}

impl Counter {
    /// What all regions can have drawn that has not come back, in units times nanoseconds: each that told of its use
    /// has the bucket full again when the counter is dead, but may not have heard of the others.
    pub(super) fn drawn_at_most(&self, flow: &Flow, now: Timestamp) -> u128 {
        let left = u128::from(self.dead_at.since(now).as_nanos());
        let slots = self.windows.iter().flat_map(WindowUse::others);
        let mut sites: SmallVec<[Site; 8]> = slots.map(|slot| slot.site).collect();
        sites.sort_unstable();
        sites.dedup();
        left.saturating_mul(u128::from(flow.rate.max(1)))
            .saturating_mul(sites.len() as u128)
    }

    /// Takes what was just heard of from the level: were it taken when the bucket is asked again, the refill of the
    /// time between would be lost to it. By what its teller knows the bucket is full again at `dead_at`.
    pub(in crate::ledger) fn draw_heard(&mut self, now: Timestamp, dead_at: Timestamp) {
        let drawn = self.seldom().map(|seldom| &seldom.drawn);
        let drawn = drawn.filter(|drawn| drawn.since.is_some() || drawn.late != 0);
        if let Some(flow) = drawn.and_then(|drawn| drawn.flow)
            && let State::Bucket(level) = self.state
        {
            let left = u128::from(dead_at.since(now).as_nanos());
            let most = left.saturating_mul(u128::from(flow.rate.max(1)));
            let after = self.draw_fresh(level, &flow, now);
            let after = self.draw_late(after, &flow, most);
            self.state = State::Bucket(after);
            // It is not over before what others drew has come back as well.
            self.dead_at = self.dead_at.max(after.at.plus(after.wait(&flow)));
        }
    }

    fn draw_fresh(&mut self, level: Level, flow: &Flow, now: Timestamp) -> Level {
        let mut after = level.at(flow, now);
        let is_shared = self.is_shared;
        let Some(seldom) = self.seldom_mut() else {
            return after;
        };
        let drawn = &mut seldom.drawn;
        if is_shared {
            drawn.note_lost(&level, flow, now);
        }
        let units = std::mem::take(&mut drawn.units);
        let since = drawn.since.take().unwrap_or(now);
        let per = u128::from(flow.per.as_nanos().max(1));
        let due = units.unsigned_abs().saturating_mul(per);
        if units > 0 {
            let due = if is_shared {
                drawn.pay(due, flow, since)
            } else {
                due
            };
            after.drawn = after.drawn.saturating_add(due);
        } else {
            after.drawn = after.drawn.saturating_sub(due);
        }
        after
    }

    /// Takes from a level of now what was drawn at a time that nobody knows: of it there are `most` units times
    /// nanoseconds that have not come back by now.
    fn draw_late(&mut self, mut level: Level, flow: &Flow, most: u128) -> Level {
        let is_shared = self.is_shared;
        let Some(seldom) = self.seldom_mut() else {
            return level;
        };
        let drawn = &mut seldom.drawn;
        let per = u128::from(flow.per.as_nanos().max(1));
        let late = std::mem::take(&mut drawn.late);
        let due = late.unsigned_abs().saturating_mul(per);
        if late > 0 && is_shared {
            // A cut or a restart lies between, and the refill of that time is not known here.
            let due = drawn.pay(due, flow, LONG_AGO);
            level.drawn = level.drawn.saturating_add(due.min(most));
        } else if late > 0 {
            level.drawn = level.drawn.saturating_add(due);
        } else {
            level.drawn = level.drawn.saturating_sub(due);
        }
        level
    }

    /// The level of `now` with what was drawn elsewhere since it was last looked at.
    pub(super) fn draw_elsewhere(&mut self, level: Level, flow: &Flow, now: Timestamp) -> Level {
        let after = self.draw_fresh(level, flow, now);
        let Some(seldom) = self.seldom_mut() else {
            return after;
        };
        seldom.drawn.flow = Some(*flow);
        if seldom.drawn.late == 0 {
            return after;
        }
        let most = self.drawn_at_most(flow, now);
        self.draw_late(after, flow, most)
    }

    /// What was drawn elsewhere is in the level already.
    pub(super) fn forget_drawn_elsewhere(&mut self) {
        if let Some(seldom) = self.seldom_mut() {
            seldom.drawn.forget();
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn refill_that_was_lost_after_a_charge_pays_for_it_once() {
        let mut drawn = Drawn::default();
        let full = Level {
            drawn: 0,
            at: at(0),
        };
        drawn.note_lost(&full, &FLOW, at(1_000));
        // 200 ms of refill are 2 units.
        assert_eq!(drawn.pay(units(3), &FLOW, at(800)), units(1));
        // The same time of another peer's charge has nothing left beyond what was lost before it.
        assert_eq!(drawn.pay(units(8), &FLOW, at(0)), 0);
        assert_eq!(drawn.pay(units(1), &FLOW, at(0)), units(1));
    }

    #[test]
    fn only_the_time_after_the_bucket_was_full_is_lost() {
        let mut drawn = Drawn::default();
        let half = Level {
            drawn: units(5),
            at: at(0),
        };
        drawn.note_lost(&half, &FLOW, at(400));
        assert_eq!(drawn.pay(units(1), &FLOW, at(0)), units(1));
        drawn.note_lost(&half, &FLOW, at(600));
        assert_eq!(drawn.pay(units(3), &FLOW, at(0)), units(2));
    }

    #[test]
    fn lost_refill_is_forgotten_after_two_seconds() {
        let mut drawn = Drawn::default();
        let full = Level {
            drawn: 0,
            at: at(0),
        };
        drawn.note_lost(&full, &FLOW, at(10_000));
        assert_eq!(drawn.pay(units(100), &FLOW, at(0)), units(80));
        let later = Level {
            drawn: units(10),
            at: at(10_000),
        };
        drawn.note_lost(&later, &FLOW, at(13_000));
        assert_eq!(drawn.pay(units(100), &FLOW, at(0)), units(80));
    }
}
