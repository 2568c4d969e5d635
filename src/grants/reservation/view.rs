//! How a window stands, for answers and people. No decision rests on it.

use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::domain::time::Span;
use crate::domain::time::Window;
use crate::grants::account::PoolStanding;
use crate::grants::reservation::Now;
use crate::grants::reservation::RETRY_AFTER_MIN;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::held::Held;

/// How the running window stands, as far as this region knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The window.
    pub window: Window,
    /// Units that this process spent in it.
    pub spent: u64,
    /// Units that this process can still spend without asking.
    pub held: u64,
    /// What the leader told last; `None` before that.
    pub standing: Option<PoolStanding>,
    /// Units known to be used in all regions: at least `spent`.
    pub used: u64,
    /// The quota less what is used and stranded.
    pub remaining: u64,
    /// How old `standing` may be; zero without one.
    pub staleness: Span,
    /// The time to the window's end by the leader's clock, at most.
    pub ends_in: Span,
    /// A bucket's amounts and its level by now.
    pub bucket: Option<(Flow, Level)>,
}

impl Reservation {
    /// How the window stands that is served now, or will be next; `None` before the first answer and after
    /// a time in which nobody asked.
    pub fn view(&mut self, now: &Now<'_>) -> Option<View> {
        self.settle(now);
        let held = self.current.as_ref()?;
        let told = held.told;
        let pool = told.map_or(
            PoolStanding {
                quota: self.quota.units(),
                ..PoolStanding::default()
            },
            |told| told.pool,
        );
        let bucket = self
            .quota
            .flow()
            .map(|flow| (*flow, level(flow, held, now)));
        if let Some((flow, level)) = bucket {
            let standing = level.standing(&flow);
            return Some(View {
                window: held.window,
                spent: held.totals.spent,
                held: held.units(),
                standing: told.map(|told| told.pool),
                used: standing.used,
                remaining: standing.remaining,
                staleness: told.map_or(Span::ZERO, |told| now.boot.minus(told.boot)),
                ends_in: Span::ZERO,
                bucket,
            });
        }
        let used = used(&pool, held.totals.spent);
        Some(View {
            window: held.window,
            spent: held.totals.spent,
            held: held.units(),
            standing: told.map(|told| told.pool),
            used,
            remaining: pool
                .quota
                .saturating_sub(used)
                .saturating_sub(pool.stranded),
            staleness: told.map_or(Span::ZERO, |told| now.boot.minus(told.boot)),
            ends_in: ends_in(held, now),
            bucket: None,
        })
    }
}

/// A bucket's level by now: as the leader told it, with what was spent here since.
fn level(flow: &Flow, held: &Held, now: &Now<'_>) -> Level {
    let Some(told) = held.told else {
        return Level::default();
    };
    let since = held.totals.spent.saturating_sub(told.pool.used_by_holder);
    let mut level = Level {
        drawn: told.pool.drawn,
        at: told.order.1,
    };
    level.draw(flow, since);
    let by_now = now.exchange.log_time(now.boot);
    level.at(flow, by_now.map_or(told.order.1, |time| time.earliest))
}

/// Units used in all regions when this process has spent `spent`, which it knows better than `pool` does.
/// What was given back of its own is in `pool.used` alone, so the others' part by itself may be below zero.
pub fn used(pool: &PoolStanding, spent: u64) -> u64 {
    let since = spent.saturating_sub(pool.used_by_holder);
    pool.used.saturating_add(since)
}

fn ends_in(held: &Held, now: &Now<'_>) -> Span {
    now.exchange
        .log_time(now.boot)
        .map_or(Span::ZERO, |time| held.window.end.since(time.earliest))
}

impl Held {
    /// When a caller who is refused is told to come back: when the leader's word runs out, or at the
    /// window's end when all of the quota is known to be gone for good.
    pub(super) fn retry_after(&self, now: &Now<'_>) -> Span {
        let is_used_up = !self.window.is_endless()
            && self.told.is_some_and(|told| {
                let gone = used(&told.pool, self.totals.spent).saturating_add(told.pool.stranded);
                told.pool.free == 0 && gone >= told.pool.quota
            });
        let wait = if is_used_up {
            ends_in(self, now)
        } else {
            self.dry.map_or(Span::ZERO, |dry| dry.until.minus(now.boot))
        };
        wait.max(RETRY_AFTER_MIN)
    }
}
