//! What makes a pool a bucket: it earns.
//!
//! A bucket's pool has one window that never ends. Its quota is the capacity; `free` is the level in whole
//! units, and what is earned of the next unit is kept in units times nanoseconds of `per`, so that nothing is
//! rounded. It earns at its rate while `free + outstanding < capacity`: units in the field still count as in
//! the bucket, and so no sequence of grants lets more be spent in any interval of log time than the capacity
//! and what the interval earns. What is *drawn* is `capacity − free − outstanding`, and never below zero.
//!
//! A unit whose holder said nothing until its lease ended, or was replaced, counts as spent from that time on
//! ([`Tally::lapse`]). Leases belong to holders, not to buckets ([`Regions::lapse`]), so the end of one is an
//! entry of its own and a bucket learns of it when it is touched next, as of the time when it was.
//!
//! [`Tally::lapse`]: crate::grants::book::Tally
//! [`Regions::lapse`]: crate::grants::book::regions::Regions::lapse

use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::book::pool::Moment;
use crate::grants::book::pool::Pool;

/// A full bucket that nobody holds units of is forgotten when nobody touched it for this long.
pub(super) const IDLE: Span = Span::from_seconds(60);
/// A bucket is opened under a name no older than this. Shorter than [`IDLE`], so that no name comes back.
pub(super) const NAMED_WITHIN: Span = Span::from_seconds(30);

/// What a pool that earns has beside one that does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bucket {
    /// Of the next unit, in units times nanoseconds of `per`.
    part: u128,
    /// Units that were earned, less those that were lost: forfeited, or no room for them.
    earned: i128,
    /// By the clock of buckets.
    earned_at: Timestamp,
    touched: Timestamp,
    /// When it may be time to forget it.
    look_at: Timestamp,
}

impl Bucket {
    pub(super) fn new(now: &Moment<'_>) -> Self {
        Self {
            part: 0,
            earned: 0,
            earned_at: now.clock,
            touched: now.log,
            look_at: now.log.plus(IDLE),
        }
    }

    pub(super) const fn earned(&self) -> i128 {
        self.earned
    }

    /// Units that came back and stay spent.
    pub(super) fn lose(&mut self, units: u64) {
        self.earned -= i128::from(units);
    }

    /// Other amounts: the part of a unit stays the same part.
    pub(super) fn scale(&mut self, from: &Quota, to: &Quota) {
        let per = |quota: &Quota| quota.flow().map_or(1, |flow| per_nanos(flow.per));
        let (from, to) = (per(from), per(to));
        if from != to {
            self.part = self.part * to / from;
        }
    }
}

fn per_nanos(per: Span) -> u128 {
    u128::from(per.as_nanos().max(1))
}

impl Pool {
    /// What is drawn in whole units, the last of which may be earned in part.
    fn room(&self) -> i128 {
        let taken = i128::from(self.outstanding()) + i128::from(self.withheld());
        i128::from(self.quota().units()) - self.free() - taken
    }

    /// Takes note of leases that ended, and earns up to `now`. Changes nothing in a window that ends.
    pub(super) fn catch_up(&mut self, now: &Moment<'_>) {
        if !self.window().is_endless() {
            return;
        }
        let mut lapsed: Vec<(Timestamp, Holder, u64)> = self
            .lapses()
            .filter_map(|(holder, known)| {
                let lapse = now.regions.lapse(holder)?;
                (lapse.count != known).then(|| (lapse.at, holder.clone(), lapse.count))
            })
            .collect();
        lapsed.sort_unstable();
        for (at, holder, count) in lapsed {
            self.earn(at.min(now.clock));
            self.note_lapse(&holder, count);
        }
        self.earn(now.clock);
        self.bucket_mut().touched = now.log;
    }

    fn earn(&mut self, to: Timestamp) {
        let Some(flow) = self.quota().flow().copied() else {
            return;
        };
        let room = self.room();
        let bucket = self.bucket_mut();
        let elapsed = to.since(bucket.earned_at).as_nanos();
        bucket.earned_at = bucket.earned_at.max(to);
        let gained = u128::from(elapsed) * u128::from(flow.rate.max(1)) + bucket.part;
        let units = gained / per_nanos(flow.per);
        match i128::try_from(units) {
            Ok(units) if units < room => {
                bucket.part = gained % per_nanos(flow.per);
                self.gain(units);
            }
            _ => {
                bucket.part = 0;
                self.gain(room.max(0));
            }
        }
    }

    fn gain(&mut self, units: i128) {
        *self.free_mut() += units;
        self.bucket_mut().earned += units;
    }

    /// Units are gone without having been granted or charged.
    pub(super) fn draw(&mut self, units: u64) {
        self.gain(-i128::from(units));
    }

    /// Units that a refund can put back, the last of which may be in part; `None` in a window that ends.
    pub(super) fn room_for_refund(&self) -> Option<u64> {
        self.quota().flow()?;
        Some(u64::try_from(self.room().max(0)).unwrap_or(u64::MAX))
    }

    /// A refund fills the bucket at most.
    pub(super) fn spill(&mut self) {
        if self.quota().flow().is_some() && self.room() <= 0 {
            self.bucket_mut().part = 0;
        }
    }

    /// What is drawn, in units times nanoseconds of `per`; `None` in a window that ends.
    pub(super) fn drawn(&self) -> Option<u128> {
        let quota = self.quota();
        let flow = quota.flow()?;
        let room = u128::try_from(self.room().max(0)).unwrap_or(0);
        let drawn = room.saturating_mul(per_nanos(flow.per));
        Some(drawn.saturating_sub(self.bucket().part))
    }

    /// What is drawn in units, rounded up.
    pub(super) fn drawn_units(&self) -> Option<u64> {
        let quota = self.quota();
        let flow = quota.flow()?;
        let units = self.drawn()?.div_ceil(per_nanos(flow.per));
        Some(u64::try_from(units).unwrap_or(u64::MAX))
    }

    /// The time until one unit is free, if nothing else happens; `None` when none will be, and in a window
    /// that ends.
    pub(super) fn next_in(&self) -> Option<Span> {
        let quota = self.quota();
        let flow = quota.flow()?;
        let lacks = u128::try_from(1 - self.free()).unwrap_or(0);
        if i128::try_from(lacks).is_ok_and(|lacks| self.room() < lacks) {
            return None;
        }
        let missing = (lacks * per_nanos(flow.per)).saturating_sub(self.bucket().part);
        let wait = missing.div_ceil(u128::from(flow.rate.max(1)));
        Some(Span::from_nanos_saturating(wait))
    }

    /// By how much a bucket holds more than its capacity; zero, always.
    pub(super) fn overfull(&self) -> i128 {
        match self.quota() {
            Quota::Window(_) => 0,
            Quota::Bucket(_) => (-self.room()).max(0),
        }
    }

    /// When to look whether this can be forgotten: a window's end, or a while after a bucket was touched.
    pub(super) const fn look_at(&self) -> Timestamp {
        if self.window().is_endless() {
            self.bucket().look_at
        } else {
            self.window().end
        }
    }

    /// Whether this can be forgotten, asked at [`Pool::look_at`] or later. A bucket can when it is like a new
    /// one, or of an earlier epoch and nobody holds units of it.
    pub(super) fn is_over(&mut self, now: &Moment<'_>, is_newest: bool) -> bool {
        if !self.window().is_endless() {
            return true;
        }
        let touched = self.bucket().touched;
        self.catch_up(now);
        self.bucket_mut().touched = touched;
        let is_idle = now.log.since(touched) >= IDLE;
        let is_new = self.room() == 0 || !is_newest;
        let is_over = is_idle && is_new && self.outstanding() == 0;
        self.bucket_mut().look_at = now.log.plus(IDLE);
        is_over
    }
}
