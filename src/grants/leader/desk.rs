//! One window as the leader deals with it, and the plan: the book and what is on its way into it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::book::Book;
use crate::grants::book::KEPT_AFTER_END;
use crate::grants::book::NotTaken;
use crate::grants::leader::DRY_MAX;
use crate::grants::leader::Now;
use crate::grants::leader::share;

/// Most asks of one holder that wait for an answer.
const ANSWERS_DUE_MAX: usize = 16;
/// A window that nobody asks for and that the book does not know is forgotten after this long.
const IDLE_MAX: Span = Span::from_seconds(10);
/// More holders than this in one window, and those that hold nothing of it are forgotten.
const HOLDERS_KEPT: usize = 64;
/// What was told and no entry carried gets an entry of its own after this long.
pub(super) const TOLD_EXACT_WITHIN: Span = Span::from_seconds(1);

/// A bucket's word that it is empty holds this long at least.
const DRY_MIN: Span = Span::from_ms(10);

/// An ask whose answer waits for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// The region's boot time in the ask.
    pub(super) echo: Span,
    /// The last entry in flight that the answer waits for.
    pub(super) after: u64,
}

/// What one holder told of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) totals: Totals,
    /// The totals that entries carried.
    pub(super) carried: Totals,
    /// Up to which total its waiting checks needed units, by its last ask.
    pub(super) need_to: u64,
    demand: u64,
    demand_at: Span,
    /// Until when it believes that nothing is to be had, by the boot clock.
    pub(super) dry_until: Span,
    pub(super) due: Vec<Due>,
}

impl Told {
    pub(super) fn demand(&self, boot: Span) -> u64 {
        share::decayed(self.demand, boot.minus(self.demand_at))
    }
}

/// A holder whose checks wait for more than could be planned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hungry {
    pub(super) need_to: u64,
    pub(super) want_to: u64,
    pub(super) since: Span,
}

/// A recall that runs.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) id: u64,
    pub(super) until: Span,
    pub(super) asked: BTreeSet<Holder>,
}

/// A charge that is on its way into the log.
#[derive(Clone, Debug)]
pub(super) struct Charging {
    pub(super) holder: Holder,
    pub(super) units: u64,
    /// The holder's cumulative total of charges once it is there.
    pub(super) to: u64,
}

/// One window as the leader deals with it.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) window: Window,
    /// The quota in force, as last told.
    pub(super) quota: Quota,
    /// The last entry that was proposed before that quota was told.
    pub(super) quota_since: u64,
    pub(super) told: BTreeMap<Holder, Told>,
    /// The grants of own entries in flight.
    pub(super) entries: BTreeMap<u64, Vec<(Holder, u64)>>,
    pub(super) charging: BTreeMap<u64, Vec<Charging>>,
    /// Charges that wait for units of this window, first come first.
    pub(super) waiting: BTreeSet<u64>,
    pub(super) hungry: BTreeMap<Holder, Hungry>,
    pub(super) round: Option<Round>,
    /// Since when there is something that no entry carried.
    pub(super) told_since: Option<Span>,
    /// When to recall again because the quota was lowered below what is out.
    pub(super) recall_at: Option<Span>,
    pub(super) touched: Span,
    /// The book has known it.
    pub(super) was_in_book: bool,
    /// When the leader looks here again.
    pub(super) wake: Option<Span>,
}

impl Desk {
    pub(super) fn new(window: Window, quota: Quota, boot: Span) -> Self {
        Self {
            window,
            quota,
            quota_since: 0,
            told: BTreeMap::new(),
            entries: BTreeMap::new(),
            charging: BTreeMap::new(),
            waiting: BTreeSet::new(),
            hungry: BTreeMap::new(),
            round: None,
            told_since: None,
            recall_at: None,
            touched: boot,
            was_in_book: false,
            wake: None,
        }
    }

    /// Notes what `holder` told of itself; whether more came back.
    pub(super) fn note(&mut self, boot: Span, holder: &Holder, totals: Totals) -> bool {
        self.touched = boot;
        let told = self.told.entry(holder.clone()).or_default();
        let rose = totals.returned > told.totals.returned;
        told.totals = told.totals.merge(totals);
        if told.totals != told.carried && self.told_since.is_none() {
            self.told_since = Some(boot);
        }
        rose
    }

    pub(super) fn note_demand(&mut self, boot: Span, holder: &Holder, demand: u64) {
        let told = self.told.entry(holder.clone()).or_default();
        told.demand = demand;
        told.demand_at = boot;
    }

    /// The totals that no entry carried yet; from here on one does.
    pub(super) fn carry(&mut self) -> Vec<(Holder, Totals)> {
        self.told_since = None;
        let news = self
            .told
            .iter_mut()
            .filter(|(_, told)| told.totals != told.carried);
        news.map(|(holder, told)| {
            told.carried = told.totals;
            (holder.clone(), told.totals)
        })
        .collect()
    }

    /// An entry was lost: what it carried is told again.
    pub(super) fn forget_carried(&mut self, boot: Span) {
        for told in self.told.values_mut() {
            told.carried = Totals::default();
            if told.totals != told.carried {
                self.told_since = self.told_since.or(Some(boot));
            }
        }
    }

    /// Forgets processes that ended and never held a unit, when there are many.
    pub(super) fn forget_ended(&mut self, account: &Account, book: &Book) {
        if self.told.len() > HOLDERS_KEPT {
            let id = self.window.id;
            self.told.retain(|holder, _| {
                book.is_newest(holder) || book.tally(account, id, holder).granted > 0
            });
        }
    }

    /// What the book knows by now needs no entry.
    pub(super) fn forget_known(&mut self, account: &Account, book: &Book) {
        for (holder, told) in &mut self.told {
            let tally = book.tally(account, self.window.id, holder);
            if (tally.spent, tally.returned) == (told.totals.spent, told.totals.returned) {
                told.carried = told.totals;
            }
        }
        if self.told.values().all(|told| told.totals == told.carried) {
            self.told_since = None;
        }
    }

    /// The last entry in flight that grants to `holder`.
    pub(super) fn in_flight(&self, holder: &Holder) -> Option<u64> {
        let grants_to = |grants: &Vec<(Holder, u64)>| grants.iter().any(|(to, _)| to == holder);
        self.entries
            .iter()
            .rev()
            .find(|(_, grants)| grants_to(grants))
            .map(|(ticket, _)| *ticket)
    }

    /// Keeps an ask whose answer waits for entry `after`; the oldest is dropped when there are too many.
    pub(super) fn keep_due(&mut self, holder: &Holder, echo: Span, after: u64) {
        let due = &mut self.told.entry(holder.clone()).or_default().due;
        if due.len() >= ANSWERS_DUE_MAX {
            due.remove(0);
        }
        due.push(Due { echo, after });
    }

    /// The asks of `holder` that waited for `ticket` or an entry before it.
    pub(super) fn take_due(&mut self, holder: &Holder, ticket: u64) -> Vec<Span> {
        let Some(told) = self.told.get_mut(holder) else {
            return Vec::new();
        };
        let (taken, kept) = told.due.iter().partition(|due| due.after <= ticket);
        told.due = kept;
        let taken: Vec<Due> = taken;
        taken.into_iter().map(|due| due.echo).collect()
    }

    /// Lets the asks of `holder` that waited for `ticket` wait for a later entry.
    pub(super) fn postpone_due(&mut self, holder: &Holder, ticket: u64, later: u64) {
        if let Some(told) = self.told.get_mut(holder) {
            for due in told.due.iter_mut().filter(|due| due.after <= ticket) {
                due.after = later;
            }
        }
    }

    /// A charge came to nothing: the totals that later charges of its holder lead to are lower by its units.
    /// They would be taken for missing otherwise while the book holds them already.
    pub(super) fn lower_charges_after(&mut self, ended: &Charging) {
        for charge in self.charging.values_mut().flatten() {
            if charge.holder == ended.holder && charge.to > ended.to {
                charge.to = charge.to.saturating_sub(ended.units);
            }
        }
    }

    /// Holders with asks that waited for `ticket` or an entry before it.
    pub(super) fn answerable(&self, ticket: u64) -> BTreeSet<Holder> {
        self.told
            .iter()
            .filter(|(_, told)| told.due.iter().any(|due| due.after <= ticket))
            .map(|(holder, _)| holder.clone())
            .collect()
    }

    pub(super) fn has_ended(&self, now: Now) -> bool {
        now.log >= self.window.end
    }

    /// Nothing here is needed any more.
    pub(super) fn is_done(&self, now: Now, is_in_book: bool) -> bool {
        let is_busy = !self.entries.is_empty() || !self.charging.is_empty();
        let waits = !self.waiting.is_empty() || !self.hungry.is_empty() || self.round.is_some();
        let is_over = now.log >= self.window.end.plus(KEPT_AFTER_END);
        let is_idle = !is_in_book && now.boot.minus(self.touched) >= IDLE_MAX;
        self.waiting.is_empty() && (is_over || (is_idle && !is_busy && !waits))
    }

    /// When to look here again, by the boot clock.
    pub(super) fn next_wake(&self, now: Now, is_in_book: bool) -> Span {
        let end = if self.has_ended(now) {
            self.window.end.plus(KEPT_AFTER_END)
        } else {
            self.window.end
        };
        let mut wake = now.boot.plus(end.since(now.log));
        if self.has_ended(now) && !self.waiting.is_empty() {
            wake = now.boot;
        }
        if !is_in_book {
            wake = wake.min(self.touched.plus(IDLE_MAX));
        }
        let hungry = self.hungry.values().map(|hungry| hungry.since).min();
        let others = [
            self.round.as_ref().map(|round| round.until),
            self.told_since.map(|since| since.plus(TOLD_EXACT_WITHIN)),
            hungry.map(|since| since.plus(DRY_MAX)),
            self.recall_at,
        ];
        let wake = others.into_iter().flatten().fold(wake, Span::min);
        // A wake that was due already and is still wanted comes a moment later, not at once and for ever.
        wake.max(now.boot.plus(Span::from_ms(1)))
    }
}

/// The book, and own entries that were not applied yet. Decides how much is proposed; what is granted is
/// decided by the book alone.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) window: Window,
    /// Units that are neither out nor planned; what came back counts, whether an entry carried it or not.
    pub(super) free: i128,
    /// What the book would have free by itself, with what came back.
    free_in_book: i128,
    planned: BTreeMap<Holder, u64>,
    spent_since: u64,
    next_in: Option<Span>,
    /// A bucket that earns nothing until what was told is in the book.
    pub(super) is_full: bool,
    log: Timestamp,
}

impl Plan {
    pub(super) fn of(
        desk: &Desk,
        account: &Account,
        book: &Book,
        now: Now,
    ) -> Result<Self, NotTaken> {
        let preview = book.preview(now.log, account, desk.window, desk.quota)?;
        let id = preview.window.id;
        let mut free = preview.free;
        let mut spent_since = 0_u64;
        for (holder, told) in &desk.told {
            let before = book.tally(account, id, holder);
            let mut tally = before;
            free += i128::from(tally.take(told.totals));
            spent_since = spent_since.saturating_add(tally.spent - before.spent);
        }
        let free_in_book = free;
        // What an entry still has to add is told by the book, not by whether its end was noticed here: an
        // entry may be applied a moment before the leader hears of it.
        let mut planned: BTreeMap<Holder, u64> = BTreeMap::new();
        for (holder, to) in desk.entries.values().flatten() {
            if !book.is_newest(holder) {
                // It ended, so the entry will grant it nothing.
                continue;
            }
            let planned = planned.entry(holder.clone()).or_default();
            *planned = (*planned).max(*to);
        }
        for (holder, to) in &planned {
            let granted = book.tally(account, id, holder).granted;
            free -= i128::from(to.saturating_sub(granted));
        }
        let mut charging: BTreeMap<&Holder, (u128, u64)> = BTreeMap::new();
        for charge in desk.charging.values().flatten() {
            let (units, to) = charging.entry(&charge.holder).or_default();
            *units += u128::from(charge.units);
            *to = (*to).max(charge.to);
        }
        for (holder, (units, to)) in charging {
            let charged = book.tally(account, id, holder).charged;
            let missing = u128::from(to.saturating_sub(charged)).min(units);
            free -= i128::try_from(missing).unwrap_or(i128::MAX / 2);
        }
        Ok(Self {
            window: preview.window,
            free,
            free_in_book,
            planned,
            spent_since,
            next_in: preview.next_in,
            is_full: desk.window.is_endless() && preview.is_full,
            log: now.log,
        })
    }

    /// Free units that can be planned.
    pub(super) fn units(&self) -> u64 {
        u64::try_from(self.free.max(0)).unwrap_or(u64::MAX)
    }

    /// Up to which total `holder` is granted or planned to be.
    pub(super) fn granted(&self, book: &Book, account: &Account, holder: &Holder) -> u64 {
        let granted = book.tally(account, self.window.id, holder).granted;
        granted.max(self.planned.get(holder).copied().unwrap_or(0))
    }

    /// How long a word that nothing is free holds.
    pub(super) fn dry_lasts(&self, desk: &Desk, now: Now) -> Span {
        let lasts = desk.window.end.since(now.log).min(DRY_MAX);
        self.next_in
            .map_or(lasts, |next_in| lasts.min(next_in.max(DRY_MIN)))
    }

    /// More is out than the quota allows.
    pub(super) fn is_in_debt(&self) -> bool {
        self.free_in_book < 0
    }

    /// How the window stands by all that the leader knows.
    pub(super) fn standing(
        &self,
        desk: &Desk,
        account: &Account,
        book: &Book,
        holder: &Holder,
    ) -> PoolStanding {
        let id = self.window.id;
        let known = book.standing_at(self.log, account, id, Some(holder));
        let known = known.unwrap_or_default();
        let mut tally = book.tally(account, id, holder);
        if let Some(told) = desk.told.get(holder) {
            tally.take(told.totals);
        }
        let per = desk
            .quota
            .flow()
            .map_or(0, |flow| u128::from(flow.per.as_nanos()));
        let drawn_since = u128::from(self.spent_since).saturating_mul(per);
        PoolStanding {
            quota: desk.quota.units(),
            free: u64::try_from(self.free_in_book.max(0)).unwrap_or(u64::MAX),
            used: known.used.saturating_add(self.spent_since),
            used_by_holder: tally.spent,
            stranded: known.stranded,
            drawn: known.drawn.saturating_add(drawn_since),
        }
    }
}
