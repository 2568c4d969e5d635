//! When to ask the leader, and for how much.

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::grants::account::Totals;
use crate::grants::message::Ask;
use crate::grants::message::ToLeader;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::demand::RATE_NANOS;
use crate::grants::reservation::demand::cover;
use crate::grants::reservation::demand::parts;
use crate::grants::reservation::held::Asked;
use crate::grants::reservation::held::Held;

/// Asks of one window that may be on their way at the same time.
const FLIGHTS_MAX: usize = 16;
/// The next ask of a burst leaves no sooner than this after the last.
const BURST_GAP: Span = Span::from_ms(5);
/// Two asks of one window are never closer than this.
const ASK_GAP: Span = Span::from_ms(1);
/// Units of the next window are asked for this much earlier than they are meant to cover.
const PREFETCH_EARLY: Span = Span::from_seconds(1);
/// Who wants fewer units per 1000 s than this does not ask ahead.
const PREFETCH_RATE_MIN: u64 = 50;

/// An ask that was not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// When it was sent; the leader sends it back.
    pub(super) sent: Span,
    /// The window that was meant; `None`: the one that runs at the leader.
    pub(super) window: Option<WindowId>,
    /// It is the window after the known ones.
    pub(super) is_ahead: bool,
    /// From then on it counts as lost.
    pub(super) gives_up: Span,
    /// Units of a check that was refused on an old word, for which it asks whether that still holds.
    pub(super) probes: Option<u64>,
}

/// What is to be asked.
struct Want {
    at: Option<Timestamp>,
    window: Option<WindowId>,
    is_ahead: bool,
    need_to: u64,
    want_to: u64,
    totals: Totals,
    probes: Option<u64>,
}

impl Reservation {
    /// Brings demand and water marks to `now`.
    fn fold(&mut self, now: &Now<'_>) {
        self.demand.fold(now.boot);
        let hold = self.demand.hold(self.quota.units(), self.length);
        let cover = cover(self.length);
        let refill = now.exchange.refill_time();
        let two_refills = refill.plus(refill);
        let low = parts(self.demand.now(), two_refills) + parts(hold, cover);
        let target = low + parts(hold, cover) / 2;
        self.low = u64::try_from(low.div_ceil(RATE_NANOS)).unwrap_or(u64::MAX);
        self.target = u64::try_from(target.div_ceil(RATE_NANOS)).unwrap_or(u64::MAX);
        // A bucket that does not earn a unit in that time: whoever holds one keeps it from the others.
        if let Some(flow) = self.quota.flow() {
            let earned = u128::from(cover.as_nanos()) * u128::from(flow.rate);
            if earned < u128::from(flow.per.as_nanos()) {
                self.low = 0;
                self.target = 0;
            }
        }
    }

    /// Whether asks are for what waits and no more.
    fn is_frugal(&self, now: &Now<'_>) -> bool {
        self.is_draining || now.exchange.is_restarting()
    }

    /// Asks of the served window that are on their way.
    fn in_flight(&self) -> usize {
        let served = self.current.as_ref().map(|held| held.window.id);
        self.flights
            .iter()
            .filter(|flight| {
                !flight.is_ahead && (flight.window.is_none() || flight.window == served)
            })
            .count()
    }

    /// Forgets asks that were not answered in time.
    pub(super) fn expire_flights(&mut self, now: &Now<'_>) {
        self.flights.retain(|flight| flight.gives_up > now.boot);
    }

    fn asked(&self) -> Asked {
        self.current.as_ref().map_or(self.blank, |held| held.asked)
    }

    /// Asks for what waits and for what is worth holding, unless the pool is known to be empty.
    pub(super) fn refill(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.fold(now);
        self.expire_flights(now);
        if let Some(held) = &mut self.current {
            if held.believed_dry(now.boot).is_some() {
                return;
            }
            held.dry = None;
        }
        let wanted = self.wanted();
        let (units, low, need_to) = match &self.current {
            Some(held) => (
                held.units(),
                self.low.min(held.low_cap),
                need_to(held, wanted),
            ),
            None => (0, 0, wanted),
        };
        let lacks = wanted > units;
        let is_low = units < low && !self.is_frugal(now);
        if !lacks && !is_low {
            return;
        }
        let asked = self.asked();
        let in_flight = self.in_flight();
        let is_due = |gap: Span| asked.last.is_none_or(|last| now.boot.minus(last) >= gap);
        let is_first = in_flight == 0 && is_due(ASK_GAP);
        let is_more =
            lacks && need_to > asked.need_to && in_flight < FLIGHTS_MAX && is_due(burst_gap(now));
        if is_first || is_more {
            self.ask_served(None, now, out);
        }
    }

    /// When a waiting check that lacks units may be asked for next; [`Span::MAX`]: not before an answer.
    pub(super) fn next_ask(&self, now: &Now<'_>) -> Span {
        let wanted = self.wanted();
        let (units, need_to) = match &self.current {
            Some(held) => (held.units(), need_to(held, wanted)),
            None => (0, wanted),
        };
        if wanted <= units {
            return Span::MAX;
        }
        if let Some(dry) = self
            .current
            .as_ref()
            .and_then(|held| held.believed_dry(now.boot))
        {
            let stale = self.current.as_ref().map_or(Span::ZERO, Held::stale);
            return dry.until.plus(stale);
        }
        let asked = self.asked();
        let last = asked.last.unwrap_or(now.boot);
        match self.in_flight() {
            0 => last.plus(ASK_GAP),
            flights if flights < FLIGHTS_MAX && need_to > asked.need_to => {
                last.plus(burst_gap(now))
            }
            _ => Span::MAX,
        }
    }

    /// The word that the pool is empty ran out, and a check of `units` was refused on it: one ask in the background,
    /// for as many, shows whether it still holds.
    pub(super) fn ask_when_stale(&mut self, units: u64, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.expire_flights(now);
        let is_stale = self.current.as_ref().is_some_and(|held| {
            held.believed_dry(now.boot)
                .is_some_and(|dry| now.boot >= dry.until)
        });
        if is_stale && self.in_flight() == 0 && !self.is_frugal(now) {
            self.fold(now);
            self.ask_served(Some(units), now, out);
        }
    }

    /// Asks for units of the served window, for `probes` even though no check waits for them.
    fn ask_served(&mut self, probes: Option<u64>, now: &Now<'_>, out: &mut Vec<Effect>) {
        let wanted = self.wanted().max(probes.unwrap_or(0));
        let more = if self.is_frugal(now) { 0 } else { self.target };
        let want = match &mut self.current {
            Some(held) => {
                let need_to = need_to(held, wanted);
                held.asked.need_to = held.asked.need_to.max(need_to);
                held.asked.want_to = need_to.saturating_add(more);
                held.asked.last = Some(now.boot);
                held.told_totals(now.boot);
                Want {
                    at: Some(held.window.start),
                    window: Some(held.window.id),
                    is_ahead: false,
                    need_to,
                    want_to: need_to.saturating_add(more),
                    totals: held.totals,
                    probes,
                }
            }
            None => {
                self.blank.need_to = self.blank.need_to.max(wanted);
                self.blank.want_to = wanted.saturating_add(more);
                self.blank.last = Some(now.boot);
                Want {
                    at: self.gap(now),
                    window: None,
                    is_ahead: false,
                    need_to: wanted,
                    want_to: wanted.saturating_add(more),
                    totals: Totals::default(),
                    probes,
                }
            }
        };
        self.send(&want, now, out);
    }

    /// In the gap behind a window that ended here, its end names the next one: the leader may still be in
    /// the old one. Later only the leader knows which window runs.
    fn gap(&self, now: &Now<'_>) -> Option<Timestamp> {
        let end = self.past.as_ref()?.window.end;
        let time = now.exchange.log_time(now.boot)?;
        (time.earliest < end).then_some(end)
    }

    /// Asks for units of the next window, shortly before it begins.
    pub(super) fn prefetch(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        if self.prefetch_at(now) > now.boot {
            return;
        }
        self.fold(now);
        let Some(end) = self.current.as_ref().map(|held| held.window.end) else {
            return;
        };
        self.ahead_at = Some(now.boot);
        let (need_to, window, totals) = match &mut self.next {
            Some(next) => {
                next.asked.last = Some(now.boot);
                let need_to = next.totals.spent.saturating_add(next.totals.returned);
                (need_to, Some(next.window.id), next.totals)
            }
            None => (0, None, Totals::default()),
        };
        let want = Want {
            at: Some(end),
            window,
            is_ahead: true,
            need_to,
            want_to: need_to.saturating_add(self.target),
            totals,
            probes: None,
        };
        self.send(&want, now, out);
    }

    /// When to ask ahead; [`Span::MAX`]: not as things are.
    pub(super) fn prefetch_at(&self, now: &Now<'_>) -> Span {
        let Some(held) = &self.current else {
            return Span::MAX;
        };
        let has_some = self.next.as_ref().is_some_and(|next| next.received > 0);
        let has_no_next = held.until == Span::MAX || held.window.is_endless();
        if has_some || self.is_frugal(now) || has_no_next {
            return Span::MAX;
        }
        if self.demand.hold(self.quota.units(), self.length) <= PREFETCH_RATE_MIN {
            return Span::MAX;
        }
        let length = held.window.end.since(held.window.start);
        let early = cover(length)
            .plus(PREFETCH_EARLY)
            .min(Span::from_nanos(length.as_nanos() / 4));
        // Not before the leader surely takes it.
        let begins = now.exchange.not_before(held.window.end.minus(early));
        let again = self
            .ahead_at
            .map_or(Span::ZERO, |last| last.plus(now.exchange.max_wait()));
        begins.unwrap_or(Span::MAX).max(again)
    }

    fn send(&mut self, want: &Want, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.flights.push(Flight {
            sent: now.boot,
            window: want.window,
            is_ahead: want.is_ahead,
            gives_up: now.boot.plus(now.exchange.max_wait()),
            probes: want.probes,
        });
        out.push(Effect::Send(ToLeader::Ask(Ask {
            holder: self.holder.clone(),
            account: self.account.clone(),
            at: want.at,
            need_to: want.need_to,
            want_to: want.want_to,
            demand: self.demand.now(),
            totals: want.totals,
            sent_boot: now.boot,
        })));
    }
}

/// The cumulative total that waiting checks need.
fn need_to(held: &Held, wanted: u64) -> u64 {
    held.totals
        .spent
        .saturating_add(held.totals.returned)
        .saturating_add(wanted)
}

fn burst_gap(now: &Now<'_>) -> Span {
    let refill = now.exchange.refill_time().as_nanos();
    BURST_GAP.max(Span::from_nanos(refill / 16))
}
