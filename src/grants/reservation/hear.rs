//! What the leader says. A message may come late, doubled, out of order, or from a leader that was deposed.

use std::mem;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::message::Answer;
use crate::grants::message::Dry;
use crate::grants::message::LogStamp;
use crate::grants::message::Recall;
use crate::grants::message::Refused;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::grants::message::Why;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Verdict;
use crate::grants::reservation::ask::Flight;
use crate::grants::reservation::held::Asked;
use crate::grants::reservation::held::DryWord;
use crate::grants::reservation::held::Held;

/// The longest that a leader's word may say that nothing is to be had.
const DRY_MAX: Span = Span::from_seconds(1);
/// All that a region has told goes to another leader within this time.
const TELL_WITHIN: Span = Span::from_seconds(2);
/// How much longer than a refill of the slowest region a recall is waited for.
const RECALL_MARGIN: Span = Span::from_ms(50);

impl Reservation {
    /// Takes in an answer or a push. The exchange has heard its stamp before. Gives back how long the refill
    /// took, for [`Exchange::refilled`], when this answers an ask of the running window and brought units.
    ///
    /// An answer for another process or account changes nothing; neither does a total that is known, of a
    /// window that is over, or older than another that was heard.
    ///
    /// [`Exchange::refilled`]: crate::grants::exchange::Exchange::refilled
    pub fn answer(
        &mut self,
        answer: &Answer,
        now: &Now<'_>,
        out: &mut Vec<Effect>,
    ) -> Option<Span> {
        self.settle(now);
        if !self.is_ours(&answer.holder, &answer.account) {
            return None;
        }
        self.note_answered(&answer.stamp, now);
        let flight = self.land(answer.stamp.echo, Some(answer.window.id));
        let dry = answer
            .dry
            .and_then(|dry| heard_dry(dry, &answer.stamp, now));
        let is_bucket = answer.window.is_endless();
        let served = self.current.as_ref().map(|held| held.window.id);
        // Of units of a bucket only a message under a lease that runs can tell.
        let is_valid = !is_bucket || now.exchange.is_leased(&answer.stamp, now.boot);
        let held = if is_valid {
            self.window(answer.window, now)
        } else {
            None
        };
        let Some(held) = held else {
            self.refill(now, out);
            self.plan(now);
            return None;
        };
        held.tell(answer.standing, &answer.stamp, now.boot);
        let has_come = answer.granted > held.received;
        if is_bucket {
            held.receive(answer.granted, answer.lapsed_to, now);
        } else {
            held.received = held.received.max(answer.granted);
            self.length = answer.window.end.since(answer.window.start);
            if served.is_none() {
                self.demand.set_window(self.length);
            }
        }
        let is_current = self
            .current
            .as_ref()
            .is_some_and(|held| held.window.id == answer.window.id);
        if is_current {
            self.serve(now, out);
            let is_free = answer.dry.is_none() && answer.standing.free > 0;
            let probed = flight.and_then(|flight| flight.probes);
            self.note_supply(has_come, is_free, dry, probed, now, out);
            self.refill(now, out);
        }
        self.return_surplus(now, out);
        self.plan(now);
        let flight = flight.filter(|flight| has_come && !flight.is_ahead)?;
        Some(now.boot.minus(flight.sent))
    }

    /// Takes in why an ask can get no answer. The exchange has heard its stamp before. The caller drops a
    /// [`Why::Changed`] to a version that it has: then the leader is the one that lags, and an answer comes
    /// when it, or another, has caught up.
    pub fn refused(&mut self, refused: &Refused, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        if !self.is_ours(&refused.holder, &refused.account) {
            return;
        }
        self.note_answered(&refused.stamp, now);
        let flight = self.land(refused.stamp.echo, None);
        match refused.why {
            Why::Changed { version } => self.tell_all(Verdict::Changed { version }, out),
            Why::Forgotten { window } => self.forget(window, &refused.stamp, now, out),
            Why::Capacity => self.tell_all(Verdict::Capacity, out),
            Why::WindowClosed => {
                if let (Some(flight), Some(held)) = (flight, &mut self.current)
                    && !flight.is_ahead
                    && flight.window == Some(held.window.id)
                    && !held.window.is_endless()
                    && held.from <= now.boot
                {
                    // The leader is further than the own clock can tell.
                    held.until = now.boot;
                    self.roll(now);
                }
                self.serve(now, out);
                self.refill(now, out);
            }
        }
        self.plan(now);
    }

    /// Gives back what no check waits for. It is out of the reservation before the report is made.
    pub fn recall(&mut self, recall: &Recall, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        if !self.is_ours(&recall.holder, &recall.account) {
            return;
        }
        let wanted = self.wanted();
        let served = self.current.as_ref().map(|held| held.window.id);
        let is_served = served == Some(recall.window);
        let totals = match self.find(recall.window) {
            Some(held) => {
                let keep = if is_served { wanted } else { 0 };
                held.give(held.units().saturating_sub(keep), now.boot);
                held.told_totals(now.boot);
                held.totals
            }
            None => Totals::default(),
        };
        out.push(Effect::Send(ToLeader::Report(Report {
            holder: self.holder.clone(),
            account: self.account.clone(),
            window: recall.window,
            totals,
            demand: self.demand.now(),
            recall: recall.round,
        })));
        self.plan(now);
    }

    fn is_ours(&self, holder: &Holder, account: &Account) -> bool {
        *holder == self.holder && *account == self.account
    }

    fn note_answered(&mut self, stamp: &LogStamp, now: &Now<'_>) {
        // What a deposed leader says is no sign that somebody can decide.
        if now.exchange.term().is_none_or(|term| stamp.term >= term) {
            self.answered = Some(now.boot);
        }
    }

    /// Takes out the ask that is answered by a message with this echo.
    fn land(&mut self, echo: Option<Span>, window: Option<WindowId>) -> Option<Flight> {
        let sent = echo?;
        let is_it = |flight: &Flight| flight.sent == sent;
        let best = self
            .flights
            .iter()
            .position(|flight| is_it(flight) && window.is_some() && flight.window == window)
            .or_else(|| self.flights.iter().position(is_it))?;
        Some(self.flights.swap_remove(best))
    }

    /// The known window of this name.
    fn find(&mut self, id: WindowId) -> Option<&mut Held> {
        [&mut self.current, &mut self.next, &mut self.past]
            .into_iter()
            .flatten()
            .find(|held| held.window.id == id)
    }

    /// The place of a window's units; `None` when its units may not be used any more or it fits nowhere.
    fn window(&mut self, window: Window, now: &Now<'_>) -> Option<&mut Held> {
        if self.find(window.id).is_some() {
            return self.find(window.id);
        }
        if window.start < self.floor || window.end <= window.start {
            return None;
        }
        // A bucket of the same account: the one that is known was forgotten.
        let is_newer = |held: &Held| held.window.start < window.start;
        if window.is_endless() && self.current.as_ref().is_some_and(is_newer) {
            self.drop_bucket();
        }
        let mut held = Held::new(window, now.exchange);
        if held.until <= now.boot {
            return None;
        }
        let place = match &self.current {
            None => {
                held.asked = mem::take(&mut self.blank);
                &mut self.current
            }
            Some(current) if window.start >= current.window.end && self.next.is_none() => {
                &mut self.next
            }
            Some(_) => return None,
        };
        Some(place.insert(held))
    }

    /// The book has forgotten the bucket `id`: all that was told of it is of no use any more.
    fn forget(&mut self, id: WindowId, stamp: &LogStamp, now: &Now<'_>, out: &mut Vec<Effect>) {
        let is_newest = now.exchange.term().is_none_or(|term| stamp.term >= term);
        let is_it = |held: &Held| held.window.id == id && held.window.is_endless();
        if is_newest && self.current.as_ref().is_some_and(is_it) {
            self.drop_bucket();
            self.refill(now, out);
        }
    }

    fn drop_bucket(&mut self) {
        if let Some(held) = self.current.take() {
            self.floor = held.window.start.plus(Span::from_nanos(1));
            self.blank = Asked::default();
            if let Some(queue) = &mut self.queue {
                queue.lull();
            }
        }
    }

    /// Whether units came or not, and what that says of the pool. `probed`: the word answers an ask for so many units
    /// that no check waits for.
    fn note_supply(
        &mut self,
        has_come: bool,
        is_free: bool,
        dry: Option<DryWord>,
        probed: Option<u64>,
        now: &Now<'_>,
        out: &mut Vec<Effect>,
    ) {
        let promised = self.queue.as_ref().map_or(0, |queue| queue.promised());
        let smallest = self.queue.as_ref().and_then(|queue| queue.smallest());
        let smallest = smallest.or(probed);
        let Some(held) = &mut self.current else {
            return;
        };
        let free = held.units().saturating_sub(promised);
        if has_come {
            held.dry = None;
            // Short of what was asked: what is worth holding may have risen since.
            let is_short = held.received < held.asked.want_to.saturating_sub(self.target / 10);
            held.low_cap = if is_short { free.div_ceil(2) } else { u64::MAX };
        } else if is_free {
            held.dry = None;
        } else if dry.is_none() {
            held.low_cap = held.low_cap.min(free.div_ceil(2));
        }
        let (Some(dry), Some(smallest)) = (dry, smallest) else {
            return;
        };
        if free >= smallest {
            return;
        }
        held.dry = Some(dry);
        let retry_after = held.retry_after(now);
        if dry.recalling_until.is_none()
            && let Some(queue) = &mut self.queue
        {
            queue.take_asleep(|ticket| {
                out.push(Effect::Wake(ticket, Verdict::Dry { retry_after }));
            });
        }
    }

    fn tell_all(&mut self, verdict: Verdict, out: &mut Vec<Effect>) {
        if let Some(mut queue) = self.queue.take() {
            queue.take_all(|ticket| out.push(Effect::Wake(ticket, verdict)));
        }
    }

    /// After a silence, or to another leader: what may have been lost is told again.
    fn tell_again(&mut self, now: &Now<'_>) {
        let resumed = now.exchange.resumed();
        if self.resumed == resumed.times {
            return;
        }
        self.resumed = resumed.times;
        // Asks may be lost too: those that wait are asked for again.
        self.flights.clear();
        self.due = now.boot;
        let later = spread(&self.account);
        let windows = [&mut self.past, &mut self.current, &mut self.next];
        for held in windows.into_iter().flatten() {
            held.tell_again(resumed, now.boot, later);
            self.due = self.due.min(held.report_at);
        }
    }

    /// Places the windows anew and lets those that are over go.
    pub(super) fn roll(&mut self, now: &Now<'_>) {
        if self.revision != now.exchange.revision() {
            self.revision = now.exchange.revision();
            for held in [&mut self.current, &mut self.next].into_iter().flatten() {
                held.place(now.exchange);
                if held.window.is_endless() {
                    // A clock that was set by hand may have let it earn.
                    held.dry = None;
                }
            }
            self.tell_again(now);
        }
        while let Some(held) = self.current.take_if(|held| held.until <= now.boot) {
            self.current = self.next.take();
            self.floor = self.floor.max(held.window.end);
            self.blank = Asked::default();
            self.ahead_at = None;
            let mut held = held;
            held.end(now.boot);
            self.due = now.boot;
            self.past = Some(held);
            if let Some(queue) = &mut self.queue {
                queue.lull();
            }
        }
    }
}

/// A share of [`TELL_WITHIN`] by the account's name, so that a new leader is not told everything at once.
fn spread(account: &Account) -> Span {
    let names = [account.tenant.as_bytes(), account.key.as_bytes()];
    let hash = names.into_iter().flatten().fold(0_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Span::from_ms(hash % TELL_WITHIN.as_ms_ceil())
}

/// A dry word on the own boot clock; `None` when it has run out on its way or comes from a leader that was
/// deposed.
fn heard_dry(dry: Dry, stamp: &LogStamp, now: &Now<'_>) -> Option<DryWord> {
    if now.exchange.term().is_some_and(|term| stamp.term < term) {
        return None;
    }
    let lasts = dry.lasts.min(DRY_MAX);
    let ends: Timestamp = stamp.log_time.plus(lasts);
    let is_over = now
        .exchange
        .not_after(ends)
        .is_some_and(|over| over <= now.boot);
    let recall = now.exchange.slowest_refill().plus(RECALL_MARGIN);
    (!is_over).then(|| DryWord {
        until: now.boot.plus(lasts),
        recalling_until: dry.recalling.then(|| now.boot.plus(recall)),
    })
}
