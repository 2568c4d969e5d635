//! What other regions draw from a shared bucket, folded into the level that this region keeps.
//!
//! Each region keeps a level of its own and takes every increment that it hears of from it, once. A region whose bucket
//! was full while a charge elsewhere was on its way threw refill away that a common bucket would have kept; so what is
//! heard is paid first from refill that was lost here after it was charged. Each lost unit pays once: a credit by
//! elapsed time alone would pay the same refill again for every peer.

use smallvec::SmallVec;

use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::time::Timestamp;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::ledger::counter::lost::Lost;
use crate::ledger::exchange::LONG_AGO;
use crate::usage::actor::Site;
use crate::usage::window::Raise;
use crate::usage::window::WindowUse;

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
    /// When that was first so: what others had drawn by then may be forgotten.
    known_since: Timestamp,
    lost: Option<Box<Lost>>,
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

    pub(super) fn keep_flow(&mut self, flow: Flow, now: Timestamp) {
        if self.flow.replace(flow).is_none() {
            self.known_since = now;
        }
    }

    /// Whether every slot of a segment that began at `start` is known here from its first unit on, but for words
    /// that are lost.
    pub(super) fn knows_all_since(&self, start: Timestamp) -> bool {
        self.known_since <= start
    }

    /// Whether what is heard is taken from the level at once.
    pub(super) const fn is_at_once(&self) -> bool {
        self.flow.is_some()
    }

    pub(super) fn forget(&mut self) {
        self.units = 0;
        self.late = 0;
        self.since = None;
    }

    /// Notes what was lost while `level` came to `now`.
    fn note_lost(&mut self, level: &Level, flow: &Flow, now: Timestamp) {
        self.lost.get_or_insert_default().note(level, flow, now);
    }

    /// Pays up to `due` from refill that was lost after `since`; what is left to pay.
    fn pay(&mut self, due: u128, flow: &Flow, since: Timestamp) -> u128 {
        match &mut self.lost {
            Some(lost) => lost.pay(due, flow, since),
            None => due,
        }
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
        self.expect_words(flow, now);
        if self.seldom().is_none_or(|seldom| seldom.drawn.late == 0) {
            return after;
        }
        let most = self.drawn_at_most(flow, now);
        self.draw_late(after, flow, most)
    }

    /// From here on each word of a peer is bounded by what that peer knows: of several that wait for the bucket to be
    /// asked, nobody knows whose are the same units.
    pub(super) fn expect_words(&mut self, flow: &Flow, now: Timestamp) {
        // Where there is one region nothing is kept for others.
        let has_heard = || {
            self.windows
                .iter()
                .any(|window| !window.others().is_empty())
        };
        if self.is_shared && (self.afar.is_some() || has_heard()) {
            self.seldom_or_new().drawn.keep_flow(*flow, now);
        } else if let Some(seldom) = self.seldom_mut() {
            seldom.drawn.keep_flow(*flow, now);
        }
    }

    /// What was drawn elsewhere is in the level already.
    pub(super) fn forget_drawn_elsewhere(&mut self) {
        if let Some(seldom) = self.seldom_mut() {
            seldom.drawn.forget();
        }
    }
}
