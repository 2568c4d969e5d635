//! A region's half of a strict limit: units that the leader granted, spent here without asking anybody.
//!
//! One [`Reservation`] per strict windowed account, of one process, never on disk. It is a pure machine:
//! every input takes [`Now`] and pushes [`Effect`]s, which the shell carries out after it has released its
//! locks. Calls come from one owner, one after another.
//!
//! **A check**, under the owner's lock:
//!
//! ```text
//! can_spend(cost, ticket) ─ Ready ──► spend(cost, ticket), after_spend()      when every limit of the check is ready
//!                         ─ Short ──► wait(ticket, cost, deadline)            then the check sleeps until a verdict
//!                         ─ Dry ────► refuse(cost): 429
//! verdict Retry   ──► the whole check again; then done(ticket) at every reservation where it waits, or, when a
//!                     limit is still short, wait(ticket, ..) again at each of them, which keeps its places
//! other verdicts  ──► the reservation has forgotten the ticket
//! ```
//!
//! - Units arrive: everybody who waits and whose units are there is woken in order, and the units are kept
//!   for those until they come back. One who comes back and lacks *another* limit is passed over and blocks
//!   nobody. One whose need is too big for what is there does not block smaller ones behind it: that need
//!   has been asked for in full.
//! - Every waiter has a verdict by its deadline, if [`Reservation::tick`] is called at the time that
//!   [`Reservation::due`] names.
//! - `cost` 0 only looks: it is always `Ready` and waits for nothing.
//!
//! - A check that waits at several reservations is retried whenever one of them has its units. Wakes of one
//!   waiter have growing rests between them, so two checks that lack each other's units cannot spin.
//!
//! **Windows.** Units belong to a window of log time and are used only between its `not_before` and
//! `not_after` on the own boot clock ([`Exchange`]). Between two windows there is a gap of about a round
//! trip in which checks wait for the next one. Units of the next window are asked for ahead.
//!
//! **Buckets** have one window that never ends, and a lease: units that were held when it ended count as spent,
//! here and in the book. A bucket's units that nobody wants for a while go back; a bucket that is full and of
//! which nobody holds units is forgotten by the book, and when that is told, here.
//!
//! **Forgetting.** A process that forgot what it spent in a window that runs would spend it twice. So a
//! reservation may be dropped only when [`Reservation::is_releasable`] says so, or after
//! [`Reservation::close`], when nobody will ever make another one of the same account.
//!
//! Invariants kept here: S3, S5, S10, S11 and the region's half of S1 and S4; `tests` and `tests/sim`.
//!
//! Files: `held` (one window), `queue` (checks that wait), `demand` (how fast units are wanted), `ask`
//! (when to ask), `hear` (what the leader said), `tick` (time), `view` (for people).

mod ask;
mod demand;
mod hear;
mod held;
mod queue;
mod tick;
mod view;

#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::exchange::Exchange;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::grants::reservation::ask::Flight;
use crate::grants::reservation::demand::Demand;
use crate::grants::reservation::held::Asked;
use crate::grants::reservation::held::Held;
use crate::grants::reservation::queue::Queue;

pub use crate::grants::reservation::view::View;
pub use crate::grants::reservation::view::used;

/// The least time after which a refused caller is told to come back.
pub const RETRY_AFTER_MIN: Span = Span::from_seconds(1);

/// Names a check that waits; the shell chooses it, unique among those that wait in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// When something happens.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// The boot clock; it goes on while the machine sleeps. Never less than at an earlier call.
    pub boot: Span,
    /// What the region knows of the leader.
    pub exchange: &'a Exchange,
}

/// How long a check waits, by the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When it came, to this limit or to another one before: a leader that has answered since is in reach.
    pub came: Span,
    /// When it must have an answer.
    pub deadline: Span,
}

/// What a machine wants done. In order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Carry this to whoever leads; it may get lost.
    Send(ToLeader),
    /// Tell a waiting check.
    Wake(Ticket, Verdict),
}

/// What a waiting check is told. All but [`Verdict::Retry`] are final: the ticket is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The units are there: decide the whole check again, then call [`Reservation::done`] or
    /// [`Reservation::wait`].
    Retry,
    /// Refused: no unit is to be had.
    Dry {
        /// When to come back; at least [`RETRY_AFTER_MIN`].
        retry_after: Span,
    },
    /// No leader answered in time.
    OutOfReach,
    /// The leader knows a newer catalogue, of this version: look the limit up again when it is here.
    Changed {
        /// The catalogue's version at the leader.
        version: u64,
    },
    /// The tenant has too many open strict counters.
    Capacity,
    /// This reservation is of an old epoch or mode: look the limit up again.
    Closed,
}

/// Whether units can be spent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// They are here.
    Ready,
    /// They have to be asked for.
    Short,
    /// The leader said that there are none.
    Dry {
        /// When to come back; at least [`RETRY_AFTER_MIN`].
        retry_after: Span,
    },
}

/// What one process holds of one strict windowed account.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    holder: Holder,
    quota: Quota,
    /// The length of a window, for rates; of a bucket, the time in which it fills.
    length: Span,
    /// The window that is served, or that will be next.
    current: Option<Held>,
    next: Option<Held>,
    /// The last one that ended: its totals are told a few times more.
    past: Option<Held>,
    /// No window that begins before this is ever taken up: its totals may be forgotten.
    floor: Timestamp,
    /// What was asked while no window was known.
    blank: Asked,
    queue: Option<Box<Queue>>,
    flights: SmallVec<[Flight; 2]>,
    /// When the next window was last asked for.
    ahead_at: Option<Span>,
    demand: Demand,
    /// The water marks as of the last fold.
    low: u64,
    target: u64,
    /// The revision of the exchange that the windows were placed by.
    revision: u32,
    /// How often the talk with the leader had gone on anew by then.
    resumed: u32,
    /// When a leader last answered something about this account.
    answered: Option<Span>,
    due: Span,
    is_draining: bool,
    is_closed: bool,
}

impl Reservation {
    /// An empty reservation of `account` for the process `holder`. `quota` and `length` are the limit's: the
    /// rate at which units are worth holding never exceeds `quota` per `length`.
    pub fn new(
        account: Account,
        holder: Holder,
        quota: impl Into<Quota>,
        length: Span,
        boot: Span,
    ) -> Self {
        Self {
            account,
            holder,
            quota: quota.into(),
            length,
            current: None,
            next: None,
            past: None,
            floor: Timestamp::from_nanos(i64::MIN),
            blank: Asked::default(),
            queue: None,
            flights: SmallVec::new(),
            ahead_at: None,
            demand: Demand::new(length, boot),
            low: 0,
            target: 0,
            revision: u32::MAX,
            resumed: 0,
            answered: None,
            due: Span::MAX,
            is_draining: false,
            is_closed: false,
        }
    }

    /// Whose units these are.
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// The limit's quota is another one; the epoch is the same. A word that there is nothing is no longer
    /// believed when the quota was raised.
    pub fn set_quota(&mut self, quota: impl Into<Quota>) {
        let quota = quota.into();
        if quota.units() > self.quota.units() {
            for held in [&mut self.current, &mut self.next].into_iter().flatten() {
                held.dry = None;
                held.low_cap = u64::MAX;
            }
        }
        self.quota = quota;
    }

    /// When [`Reservation::tick`] is to be called, at the latest; [`Span::MAX`]: not before the next input.
    /// Changes with every input.
    pub const fn due(&self) -> Span {
        self.due
    }

    /// Units of the running window that can be spent at once; 0 between windows.
    pub fn held(&mut self, now: &Now<'_>) -> u64 {
        self.settle(now);
        match &self.current {
            Some(held) if held.is_usable(now.boot) => held.units(),
            _ => 0,
        }
    }

    /// Whether a check of `units` can be charged now. `ticket`: the check waits or has waited here.
    ///
    /// Changes nothing but which window is served, so it may be asked freely.
    pub fn can_spend(&mut self, units: u64, ticket: Option<Ticket>, now: &Now<'_>) -> Spend {
        self.settle(now);
        if units == 0 {
            return Spend::Ready;
        }
        let Some(held) = &self.current else {
            return Spend::Short;
        };
        let Some(queue) = &self.queue else {
            if held.is_usable(now.boot) && held.units() >= units {
                return Spend::Ready;
            }
            return judge_dry(held, now);
        };
        if held.is_usable(now.boot) {
            let free = held.units().saturating_sub(queue.promised());
            let waiting = ticket.filter(|ticket| queue.contains(*ticket));
            let is_ready = match waiting {
                Some(ticket) if queue.is_woken(ticket) => held.units() >= units,
                Some(_) => free >= units,
                None => free >= units && !queue.blocks(),
            };
            if is_ready {
                return Spend::Ready;
            }
            if free >= units {
                return Spend::Short;
            }
        }
        judge_dry(held, now)
    }

    /// Spends `units` and names the window that they are of; `None`, and nothing is changed, when they are
    /// not here. Call it only after [`Reservation::can_spend`] said `Ready` under the same lock.
    pub fn spend(&mut self, units: u64, ticket: Option<Ticket>, now: &Now<'_>) -> Option<WindowId> {
        self.settle(now);
        let held = self.current.as_mut()?;
        if !held.is_usable(now.boot) || !held.spend(units, now.boot) {
            return None;
        }
        self.due = self.due.min(held.report_at);
        // A waiter's units were counted as wanted when it came.
        let is_waiter = match (&self.queue, ticket) {
            (Some(queue), Some(ticket)) => queue.contains(ticket),
            _ => false,
        };
        if !is_waiter {
            self.demand.add(units);
        }
        Some(held.window.id)
    }

    /// After [`Reservation::spend`], at best when the locks are released: asks for more when little is left.
    pub fn after_spend(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        let is_low = match &self.current {
            Some(held) => held.units() < self.low.min(held.low_cap),
            None => true,
        };
        self.tell_full_bucket(now, out);
        if is_low || self.demand.is_due(now.boot) {
            self.refill(now, out);
            self.plan(now);
        }
    }

    /// A check of `units` was refused because [`Reservation::can_spend`] said `Dry`: counts what was wanted
    /// and, when the word has run out, asks once in the background.
    pub fn refuse(&mut self, units: u64, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        self.demand.add(units);
        self.ask_when_stale(units, now, out);
        self.plan(now);
    }

    /// A check of `units` waits until its deadline at the latest: the caller's, at most
    /// [`Exchange::max_wait`] ahead. A deadline that is not ahead asks for the units and gives a verdict at
    /// once. A ticket that waits already keeps its place, its deadline and the count of what is wanted.
    pub fn wait(
        &mut self,
        ticket: Ticket,
        units: u64,
        times: Times,
        now: &Now<'_>,
        out: &mut Vec<Effect>,
    ) {
        self.settle(now);
        if self.is_closed {
            out.push(Effect::Wake(ticket, Verdict::Closed));
            return;
        }
        let queue = self.queue.get_or_insert_default();
        let has_place = queue.contains(ticket);
        queue.put(ticket, units, times);
        if !has_place {
            self.demand.add(units);
        } else if let Some(held) = &self.current
            && held.is_usable(now.boot)
            && held.units().saturating_sub(queue.promised()) >= units
        {
            // It comes from a retry and its units are here: what it lacks is another limit.
            queue.pass_over(ticket);
        }
        self.serve(now, out);
        self.refill(now, out);
        self.refuse_when_dry(ticket, now, out);
        self.expire_waiters(now, out);
        self.plan(now);
    }

    /// The check of `ticket` is decided, or its caller has gone: it waits no more.
    pub fn done(&mut self, ticket: Ticket, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        if let Some(queue) = &mut self.queue
            && queue.remove(ticket).is_some()
        {
            self.serve(now, out);
            self.refill(now, out);
            self.return_surplus(now, out);
        }
        self.plan(now);
    }

    /// For a check that the leader charges: what is held for it, at most `units`, leaves the reservation.
    /// The totals go out with the charge, so the book has the units back before it charges. `None` while no
    /// window is known to run.
    pub fn take_for_charge(&mut self, units: u64, now: &Now<'_>) -> Option<(WindowId, Totals)> {
        self.settle(now);
        let wanted = self.wanted();
        let held = self.current.as_mut()?;
        if !held.is_usable(now.boot) {
            return None;
        }
        held.give(units.min(held.units().saturating_sub(wanted)), now.boot);
        self.due = self.due.min(held.report_at);
        Some((held.window.id, held.totals))
    }

    /// Draining: everything held goes back to the pool, but for what checks wait for, and from now on
    /// nothing is asked for that no check waits for. Repeated, it tells the totals again, for words get lost.
    pub fn give_back_all(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        let is_repeated = std::mem::replace(&mut self.is_draining, true);
        self.tell_surplus(now, is_repeated, out);
        self.plan(now);
    }

    /// The account's epoch or the limit's mode is another one: all that wait are told so, everything held
    /// goes back, and what still arrives goes back too. To be kept and ticked until
    /// [`Reservation::is_releasable`], so that a lost message strands nothing.
    pub fn close(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        self.settle(now);
        self.is_draining = true;
        self.is_closed = true;
        if let Some(mut queue) = self.queue.take() {
            queue.take_all(|ticket| out.push(Effect::Wake(ticket, Verdict::Closed)));
        }
        self.return_surplus(now, out);
        self.plan(now);
    }

    /// Whether this can be dropped: nobody waits, and no window is known that may still run, or the
    /// reservation is closed and has told its last totals.
    pub fn is_releasable(&self) -> bool {
        let is_told = |held: &Option<Held>| {
            held.as_ref()
                .is_none_or(|held| held.units() == 0 && held.is_told())
        };
        let is_empty = self.current.is_none() && self.next.is_none() && self.past.is_none();
        let is_told = is_told(&self.current) && is_told(&self.next) && is_told(&self.past);
        self.queue.is_none() && self.flights.is_empty() && (is_empty || (self.is_closed && is_told))
    }

    /// Units that checks wait for.
    fn wanted(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.units())
    }

    /// Makes the window that runs the current one.
    #[inline]
    fn settle(&mut self, now: &Now<'_>) {
        let is_over = self
            .current
            .as_ref()
            .is_some_and(|held| held.until <= now.boot);
        if is_over || self.revision != now.exchange.revision() {
            self.roll(now);
        }
        if let Some(held) = &mut self.current
            && held.has_lapsed(now)
        {
            held.lapse(now.boot);
            self.due = self.due.min(held.report_at);
            if let Some(queue) = &mut self.queue {
                queue.lull();
            }
        }
    }

    /// Wakes those whose units are here.
    fn serve(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        let (Some(queue), Some(held)) = (&mut self.queue, &self.current) else {
            return;
        };
        if held.is_usable(now.boot) {
            let free = held.units().saturating_sub(queue.promised());
            queue.wake(free, now.boot, |ticket| {
                out.push(Effect::Wake(ticket, Verdict::Retry));
            });
        }
    }

    /// While draining: what nobody waits for leaves the reservation, and then the leader is told.
    fn return_surplus(&mut self, now: &Now<'_>, out: &mut Vec<Effect>) {
        if self.is_draining {
            self.tell_surplus(now, false, out);
        }
    }

    /// Gives back what nobody waits for and tells of it, or of everything that was given back and spent before.
    fn tell_surplus(&mut self, now: &Now<'_>, of_everything: bool, out: &mut Vec<Effect>) {
        let wanted = self.wanted();
        let demand = self.demand.now();
        let windows = [&mut self.current, &mut self.next, &mut self.past];
        for (held, wanted) in windows.into_iter().zip([wanted, 0, 0]) {
            let Some(held) = held else { continue };
            let surplus = held.units().saturating_sub(wanted);
            if surplus > 0 || of_everything {
                held.give(surplus, now.boot);
                held.told_totals(now.boot);
                let report = Report {
                    holder: self.holder.clone(),
                    account: self.account.clone(),
                    window: held.window.id,
                    totals: held.totals,
                    demand,
                    recall: 0,
                };
                out.push(Effect::Send(ToLeader::Report(report)));
            }
        }
    }
}

/// Without units: wait, or is the leader's word that there are none still good?
fn judge_dry(held: &Held, now: &Now<'_>) -> Spend {
    let Some(dry) = held.believed_dry(now.boot) else {
        return Spend::Short;
    };
    if dry
        .recalling_until
        .is_some_and(|recalling_until| now.boot < recalling_until)
    {
        return Spend::Short;
    }
    Spend::Dry {
        retry_after: held.retry_after(now),
    }
}
