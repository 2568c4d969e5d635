//! The leader: who is granted how much. Soft state of one term; it is made when the leader's first own entry
//! is applied, and lost with the term.
//!
//! ```text
//!  Ask ───► need met from the plan? ──── yes ──► Propose ──► applied ──► Answer
//!                     │ no
//!                     └─► hungry, recall round ─► Answer "dry" (after own entries for that region)
//!  Report with more returned ──► waiting charges, then the hungry by demand ──► Propose ──► pushed Answer
//!  charge ──► fits the plan? ── yes ──► Charge
//!                     └── no ──► one recall round ──► Charge or RefuseCharge
//! ```
//!
//! - The *plan* is the book and own entries in flight, so that asks that come while an entry is on its way
//!   are not promised the same unit. It only decides what is proposed: the book clamps.
//! - *Dry* is said only when the plan is empty and a check waits, never before an entry in flight that
//!   grants to the same region was applied, and lasts a second at most.
//! - Spent units are no reason for an entry: they ride in those that go, or in one of their own within
//!   a second. Refusals are never entries.
//! - All is bounded: windows, charges, entries in flight per window, asks that wait for an answer.
//!
//! Files: `desk` (one window, and the plan), `bucket` (the window of a bucket), `serve` (what a window does next), `credit` (what comes back by
//! other entries, or before an epoch ends), `charges` (what is decided here and not in a region), `share` (by
//! demand), `peers` (who lives, how far away), `leases` (until when units of buckets may be spent). Shown by
//! `tests`
//! (scenes) and `laws` (random schedules).

mod bucket;
mod charges;
mod credit;
mod desk;
mod leases;
mod peers;
mod serve;
mod share;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;
use crate::grants::book::Transferred;
use crate::grants::leader::charges::Waiting;
use crate::grants::leader::desk::Desk;
use crate::grants::leader::desk::Plan;
use crate::grants::leader::leases::Leases;
use crate::grants::leader::peers::Peers;
use crate::grants::message::Ask;
use crate::grants::message::LogStamp;
use crate::grants::message::Pulse;
use crate::grants::message::PulseAnswer;
use crate::grants::message::Refused;
use crate::grants::message::Report;
use crate::grants::message::ToRegion;
use crate::grants::message::Why;

pub use crate::grants::leader::leases::EARLIER_LEADERS;
pub use crate::grants::leader::leases::LAPSE_MARGIN;
pub use crate::grants::leader::peers::LIVE_WITHIN;

/// How long "dry" lasts at most, and how long a hungry region is remembered.
pub const DRY_MAX: Span = Span::from_seconds(1);
/// Most windows that the leader deals with at a time.
pub const WINDOWS_MAX: usize = 400_000;
/// Most charges that wait or are on their way.
pub const CHARGES_MAX: usize = 20_000;
/// Most own entries of one window that are on their way; asks that come then wait for one of them.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 32;
/// Most windows that one [`Leader::tick`] looks at; the next goes on.
pub const WINDOWS_PER_TICK: usize = 2_000;

/// The leader's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The boot clock.
    pub boot: Span,
    /// Log time.
    pub log: Timestamp,
}

/// What the shell is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append an entry. Once it is applied the shell calls [`Leader::applied`] with the same ticket, when it
    /// was not appended or nobody knows, [`Leader::failed`].
    Propose {
        /// Names the entry; tickets rise.
        ticket: u64,
        /// The entry.
        transfer: Transfer,
    },
    /// Send a message to a holder's region.
    Tell(Holder, ToRegion),
    /// The lease of a holder has ended: append an entry that says so, and call [`Leader::lapsed`] whatever
    /// becomes of it.
    Lapse(Holder),
    /// The units of a charge are there: append its entry, and call [`Leader::charged`] whatever becomes of
    /// it.
    Charge {
        /// The charge.
        ticket: u64,
    },
    /// A charge is refused; no entry is made of it.
    RefuseCharge {
        /// The charge.
        ticket: u64,
        /// [`NotTaken::Empty`]: a true refusal. Otherwise why it cannot be decided.
        why: NotTaken,
        /// For how long asking again is useless.
        retry: Span,
    },
}

/// One part of a check that the leader decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What is to be charged.
    pub charge: Charge,
    /// The quota in force.
    pub quota: Quota,
}

/// A window of a counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    account: Account,
    window: WindowId,
}

/// The soft state of one term.
#[derive(Clone, Debug)]
pub struct Leader {
    term: u64,
    peers: Peers,
    leases: Leases,
    desks: BTreeMap<Place, Desk>,
    /// When to look where again.
    wakes: BTreeSet<(Span, Place)>,
    /// Where the own entries in flight belong.
    entries: BTreeMap<u64, Place>,
    /// Charges that wait, in the order they came.
    waiting: BTreeMap<u64, Waiting>,
    /// Charges on their way, and the windows they touch.
    charging: BTreeMap<u64, BTreeSet<Place>>,
    tickets: u64,
    rounds: u64,
    arrivals: u64,
}

impl Leader {
    /// The leader of `term`. To be made when the term's first own entry has been applied and not before: until
    /// then the book lacks what earlier leaders granted.
    pub fn new(term: u64) -> Self {
        Self {
            term,
            peers: Peers::default(),
            leases: Leases::default(),
            desks: BTreeMap::new(),
            wakes: BTreeSet::new(),
            entries: BTreeMap::new(),
            waiting: BTreeMap::new(),
            charging: BTreeMap::new(),
            tickets: 0,
            rounds: 0,
            arrivals: 0,
        }
    }

    /// The measured round trip to a region; zero for the leader's own.
    pub fn set_round_trip(&mut self, region: &RegionName, round_trip: Span) {
        self.peers.set_round_trip(region, round_trip);
    }

    /// When [`Leader::tick`] has something to do, by the boot clock.
    pub fn next_wake(&self) -> Option<Span> {
        self.wakes.first().map(|(wake, _)| *wake)
    }

    /// The leader's clock as it is told to `holder`, and its lease.
    pub fn stamp(&self, now: Now, holder: &Holder, echo: Option<Span>) -> LogStamp {
        LogStamp {
            lease: self.leases.of(holder),
            term: self.term,
            log_time: now.log,
            echo,
        }
    }

    // What regions say.

    /// A sign of life.
    pub fn pulse(&mut self, now: Now, book: &Book, pulse: &Pulse, out: &mut Vec<Action>) {
        let region = &pulse.holder.region;
        if book.is_newest(&pulse.holder) {
            self.peers.hear(region, now.boot);
            self.peers.set_refill(region, pulse.refill);
            self.leases.hear(now.boot, &pulse.holder, pulse.sent_boot);
        }
        let answer = PulseAnswer {
            stamp: self.stamp(now, &pulse.holder, Some(pulse.sent_boot)),
            slowest_refill: self.peers.slowest_refill(now.boot),
            restarting: book.is_restarting(region, now.log),
        };
        let tell = Action::Tell(pulse.holder.clone(), ToRegion::Pulse(answer));
        out.push(tell);
    }

    /// A region wants units. `window` is the one that is meant, by the limit's definition at `ask.at` or at
    /// log time, `quota` the one in force. The shell has made sure that `ask.account` has the epoch of the
    /// catalogue. Asks of ended processes get no answer.
    pub fn ask(
        &mut self,
        now: Now,
        book: &Book,
        ask: &Ask,
        window: Window,
        quota: impl Into<Quota>,
        out: &mut Vec<Action>,
    ) {
        let quota = quota.into();
        let holder = &ask.holder;
        if !book.is_newest(holder) || self.leases.is_ending(holder) {
            return;
        }
        self.peers.hear(&holder.region, now.boot);
        self.leases.hear(now.boot, holder, ask.sent_boot);
        let rebased;
        let ask = if window.is_endless() && ask.at != Some(window.start) {
            rebased = of_new_bucket(ask);
            &rebased
        } else {
            ask
        };
        let place = match self.open(now, book, &ask.account, window, quota) {
            Ok(place) => place,
            Err(why) => {
                self.refuse(now, &ask.account, holder, why, Some(ask.sent_boot), out);
                return;
            }
        };
        let Some(desk) = self.desks.get_mut(&place) else {
            return;
        };
        desk.forget_ended(&place.account, book);
        desk.note(now.boot, holder, ask.totals);
        desk.note_demand(now.boot, holder, ask.demand);
        let Ok(plan) = Plan::of(desk, &place.account, book, now) else {
            return;
        };
        let granted = plan.granted(book, &place.account, holder);
        let need = ask.need_to.saturating_sub(granted);
        let want_to = if book.is_restarting(&holder.region, now.log) {
            ask.need_to
        } else {
            ask.want_to.max(ask.need_to)
        };
        if let Some(told) = desk.told.get_mut(holder) {
            told.need_to = ask.need_to;
        }
        if need > 0 {
            let hungry = desk.hungry.entry(holder.clone()).or_default();
            // An older ask that comes late takes nothing away.
            hungry.need_to = hungry.need_to.max(ask.need_to);
            hungry.want_to = hungry.want_to.max(want_to);
            hungry.since = now.boot;
        } else {
            desk.hungry.remove(holder);
        }
        self.serve(now, book, &place, out);
        if need == 0 {
            self.top_up(now, book, &place, holder, want_to, out);
        }
        let waits = self.desks.get(&place);
        let waits = waits.is_some_and(|desk| desk.hungry.contains_key(holder));
        self.recall_if_short(now, book, &place, waits, out);
        self.answer_or_keep(now, book, &place, holder, ask.sent_boot, out);
        self.sleep(now, book, &place);
    }

    /// A region tells what it did with its units.
    pub fn report(&mut self, now: Now, book: &Book, report: &Report, out: &mut Vec<Action>) {
        let holder = &report.holder;
        let lives = book.is_newest(holder);
        if lives {
            self.peers.hear(&holder.region, now.boot);
        }
        let Some((window, quota)) = book.window(&report.account, report.window) else {
            // Buckets are forgotten when they are full, and their reservations are kept until that is known.
            if lives {
                let why = Why::Forgotten {
                    window: report.window,
                };
                self.tell_refused(now, &report.account, holder, why, None, out);
            }
            return;
        };
        if !lives && book.tally(&report.account, report.window, holder).granted == 0 {
            return;
        }
        let Ok(place) = self.place(now, &report.account, window, quota) else {
            return;
        };
        let Some(desk) = self.desks.get_mut(&place) else {
            return;
        };
        let rose = desk.note(now.boot, holder, report.totals);
        if lives {
            desk.note_demand(now.boot, holder, report.demand);
        }
        if rose {
            self.serve(now, book, &place, out);
            self.hurry_superseded(now, book, &place, out);
        }
        self.hurry_full_bucket(now, book, &place, out);
        self.answer_recall(now, book, &place, holder, report.recall, out);
        self.sleep(now, book, &place);
    }

    // What becomes of entries.

    /// An own entry was applied.
    pub fn applied(
        &mut self,
        now: Now,
        book: &Book,
        ticket: u64,
        outcome: &Result<Transferred, NotTaken>,
        out: &mut Vec<Action>,
    ) {
        let Some(place) = self.entries.remove(&ticket) else {
            return;
        };
        let Some(desk) = self.desks.get_mut(&place) else {
            return;
        };
        let grants = desk.entries.remove(&ticket).unwrap_or_default();
        match outcome {
            Ok(_) => self.granted(now, book, &place, ticket, &grants, out),
            Err(why) => self.not_granted(now, &place, ticket, *why, out),
        }
        self.serve_newer_epochs(now, book, &place, out);
        self.sleep(now, book, &place);
    }

    /// An own entry was not appended, or nobody knows. Its units can be planned again; should it be applied
    /// all the same, the book grants no unit twice. Those who wait for it ask again.
    pub fn failed(&mut self, now: Now, book: &Book, ticket: u64) {
        let Some(place) = self.entries.remove(&ticket) else {
            return;
        };
        let Some(desk) = self.desks.get_mut(&place) else {
            return;
        };
        desk.entries.remove(&ticket);
        desk.forget_carried(now.boot);
        for told in desk.told.values_mut() {
            told.due.retain(|due| due.after > ticket);
        }
        self.sleep(now, book, &place);
    }

    /// The quota of an account changed. Notes it in the book's open windows, hands out what a raise frees,
    /// and recalls what a lowered one lacks.
    pub fn set_quota(
        &mut self,
        now: Now,
        book: &Book,
        account: &Account,
        quota: impl Into<Quota>,
        out: &mut Vec<Action>,
    ) {
        let quota = quota.into();
        let from = Place {
            account: account.clone(),
            window: WindowId(i64::MIN),
        };
        // Also those whose first entry is on its way.
        let mut windows: Vec<Window> = self
            .desks
            .range(from..)
            .take_while(|(place, _)| place.account == *account)
            .map(|(_, desk)| desk.window)
            .collect();
        let known =
            |windows: &[Window], window: &Window| windows.iter().any(|known| known.id == window.id);
        for window in book.windows(account) {
            if !known(&windows, &window) {
                windows.push(window);
            }
        }
        for window in windows.into_iter().filter(|window| now.log < window.end) {
            let Ok(place) = self.open(now, book, account, window, quota) else {
                continue;
            };
            let noted = book.window(account, window.id).map(|(_, noted)| noted);
            if noted.is_some_and(|noted| noted != quota) {
                self.propose(&place, Vec::new(), out);
            }
            self.serve(now, book, &place, out);
            self.unsay_dry(now, book, &place, out);
            self.recall_if_short(now, book, &place, false, out);
            self.sleep(now, book, &place);
        }
    }

    /// What time brings: rounds end, hungry regions are forgotten, what was told gets an entry, windows end.
    /// To be called at [`Leader::next_wake`], and may be called at any time.
    pub fn tick(&mut self, now: Now, book: &Book, out: &mut Vec<Action>) {
        for _ in 0..WINDOWS_PER_TICK {
            let due = self
                .wakes
                .first()
                .is_some_and(|(wake, _)| *wake <= now.boot);
            let Some((_, place)) = due.then(|| self.wakes.pop_first()).flatten() else {
                break;
            };
            self.wake(now, book, &place, out);
            self.sleep(now, book, &place);
        }
    }

    /// Puts into the log what was told and no entry has carried: before the process ends, with nobody to hand the
    /// lead to, for what the leader alone knows is lost with it.
    pub fn carry_all(&mut self, out: &mut Vec<Action>) {
        let told = |desk: &Desk| desk.told_since.is_some();
        let places = self.desks.iter().filter(|(_, desk)| told(desk));
        let places: Vec<Place> = places.map(|(place, _)| place.clone()).collect();
        for place in places {
            self.propose(&place, Vec::new(), out);
        }
    }

    // Desks.

    /// The desk of a window that can be granted.
    fn open(
        &mut self,
        now: Now,
        book: &Book,
        account: &Account,
        window: Window,
        quota: Quota,
    ) -> Result<Place, NotTaken> {
        let window = book.preview(now.log, account, window, quota)?.window;
        let place = self.place(now, account, window, quota)?;
        if let Some(desk) = self.desks.get_mut(&place) {
            desk.window = window;
            if desk.quota != quota {
                desk.quota = quota;
                desk.quota_since = self.tickets;
            }
        }
        Ok(place)
    }

    fn place(
        &mut self,
        now: Now,
        account: &Account,
        window: Window,
        quota: Quota,
    ) -> Result<Place, NotTaken> {
        let place = Place {
            account: account.clone(),
            window: window.id,
        };
        if !self.desks.contains_key(&place) {
            if self.desks.len() >= WINDOWS_MAX {
                return Err(NotTaken::Capacity);
            }
            let desk = Desk::new(window, quota, now.boot);
            self.desks.insert(place.clone(), desk);
        }
        Ok(place)
    }

    /// Forgets a desk that is done, and sets when to look at it again otherwise.
    fn sleep(&mut self, now: Now, book: &Book, place: &Place) {
        let is_in_book = book.window(&place.account, place.window).is_some();
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        desk.was_in_book |= is_in_book;
        if let Some(wake) = desk.wake.take() {
            self.wakes.remove(&(wake, place.clone()));
        }
        if desk.is_done(now, is_in_book) {
            for ticket in desk.entries.keys() {
                self.entries.remove(ticket);
            }
            self.desks.remove(place);
            return;
        }
        let wake = desk.next_wake(now, is_in_book);
        desk.wake = Some(wake);
        self.wakes.insert((wake, place.clone()));
    }

    fn refuse(
        &self,
        now: Now,
        account: &Account,
        holder: &Holder,
        why: NotTaken,
        echo: Option<Span>,
        out: &mut Vec<Action>,
    ) {
        let why = match why {
            NotTaken::Capacity => Why::Capacity,
            NotTaken::WindowClosed
            | NotTaken::Superseded
            | NotTaken::NotEnrolled
            | NotTaken::Empty => Why::WindowClosed,
        };
        self.tell_refused(now, account, holder, why, echo, out);
    }

    fn tell_refused(
        &self,
        now: Now,
        account: &Account,
        holder: &Holder,
        why: Why,
        echo: Option<Span>,
        out: &mut Vec<Action>,
    ) {
        let refused = Refused {
            holder: holder.clone(),
            account: account.clone(),
            why,
            stamp: self.stamp(now, holder, echo),
        };
        out.push(Action::Tell(holder.clone(), ToRegion::Refused(refused)));
    }
}

/// `ask` as one who holds nothing would make it: its totals are of a bucket that was forgotten, or it knows of
/// none.
fn of_new_bucket(ask: &Ask) -> Ask {
    let done = ask.totals.spent.saturating_add(ask.totals.returned);
    Ask {
        need_to: ask.need_to.saturating_sub(done),
        want_to: ask.want_to.saturating_sub(done),
        totals: Totals::default(),
        ..ask.clone()
    }
}
