//! What a window does next: who is granted, who is told, when units are recalled.

use crate::domain::time::Span;
use crate::grants::account::Holder;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::DRY_MAX;
use crate::grants::leader::ENTRIES_IN_FLIGHT_MAX;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Place;
use crate::grants::leader::desk::Hungry;
use crate::grants::leader::desk::Plan;
use crate::grants::leader::desk::Round;
use crate::grants::leader::desk::TOLD_EXACT_WITHIN;
use crate::grants::leader::share;
use crate::grants::leader::share::Claim;
use crate::grants::message::Answer;
use crate::grants::message::Dry;
use crate::grants::message::Recall;
use crate::grants::message::ToRegion;

/// A holder believes the word that nothing is to be had for so long: while it lasts, and as long again while it
/// asks anew.
const DRY_BELIEVED: Span = Span::from_seconds(2);
/// A recall waits this long beyond 1.3 of the longest round trip.
const ROUND_EXTRA: Span = Span::from_ms(30);

impl Leader {
    /// Hands what the plan has free to those who wait: charges first, then hungry regions by demand.
    pub(super) fn serve(&mut self, now: Now, book: &Book, place: &Place, out: &mut Vec<Action>) {
        self.serve_charges(now, book, place, out);
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        // A process may end while its ask waits; the book grants nothing to it.
        desk.hungry.retain(|holder, _| book.is_newest(holder));
        if desk.hungry.is_empty() || desk.entries.len() >= ENTRIES_IN_FLIGHT_MAX {
            return;
        }
        let Ok(plan) = Plan::of(desk, &place.account, book, now) else {
            return;
        };
        let mut left = plan.units();
        if left == 0 {
            return;
        }
        let of_all = self.demand_of_all(now, book, place);
        let living = self.peers.living(now.boot);
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let mut hungry: Vec<(Holder, Hungry, u64)> = desk
            .hungry
            .iter()
            .map(|(holder, hungry)| {
                let told = desk.told.get(holder);
                let demand = told.map_or(0, |told| told.demand(now.boot));
                (holder.clone(), *hungry, demand)
            })
            .collect();
        // The last units go to the largest demand, and among equals to who waited longest.
        hungry.sort_by_key(|(_, hungry, demand)| (std::cmp::Reverse(*demand), hungry.since));
        let granted: Vec<u64> = hungry
            .iter()
            .map(|(holder, _, _)| plan.granted(book, &place.account, holder))
            .collect();
        let claims: Vec<Claim> = hungry
            .iter()
            .zip(&granted)
            .map(|((_, hungry, demand), granted)| Claim {
                demand: *demand,
                need: hungry.need_to.saturating_sub(*granted),
            })
            .collect();
        let dealt = share::deal(left, &claims);
        left -= dealt.iter().sum::<u64>();
        let mut grants = Vec::new();
        for (((holder, hungry, demand), granted), (dealt, claim)) in hungry
            .into_iter()
            .zip(granted)
            .zip(dealt.into_iter().zip(claims))
        {
            let mut to = granted.saturating_add(dealt);
            if dealt == claim.need {
                desk.hungry.remove(&holder);
                let half = share::half_share(left, demand, of_all, living);
                let more = hungry.want_to.saturating_sub(to).min(half);
                left -= more;
                to = to.saturating_add(more);
            }
            if to > granted {
                grants.push((holder, to));
            }
        }
        if !grants.is_empty() {
            self.propose(place, grants, out);
        }
    }

    /// Grants ahead of need: half of the region's share of what is free.
    pub(super) fn top_up(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        holder: &Holder,
        want_to: u64,
        out: &mut Vec<Action>,
    ) {
        let of_all = self.demand_of_all(now, book, place);
        let living = self.peers.living(now.boot);
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let Ok(plan) = Plan::of(desk, &place.account, book, now) else {
            return;
        };
        let told = desk.told.get(holder);
        let demand = told.map_or(0, |told| told.demand(now.boot));
        let granted = plan.granted(book, &place.account, holder);
        let half = share::half_share(plan.units(), demand, of_all, living);
        let units = want_to.saturating_sub(granted).min(half);
        if units > 0 && desk.entries.len() < ENTRIES_IN_FLIGHT_MAX {
            self.propose(place, vec![(holder.clone(), granted + units)], out);
        }
    }

    fn demand_of_all(&self, now: Now, book: &Book, place: &Place) -> u128 {
        let Some(desk) = self.desks.get(place) else {
            return 0;
        };
        let newest = desk
            .told
            .iter()
            .filter(|(holder, _)| book.is_newest(holder));
        newest
            .map(|(_, told)| u128::from(told.demand(now.boot)))
            .sum()
    }

    /// One entry: all that was told and not carried yet, and `grants`.
    pub(super) fn propose(
        &mut self,
        place: &Place,
        grants: Vec<(Holder, u64)>,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        self.tickets += 1;
        let ticket = self.tickets;
        desk.entries.insert(ticket, grants.clone());
        self.entries.insert(ticket, place.clone());
        let transfer = Transfer {
            account: place.account.clone(),
            window: desk.window,
            returns: desk.carry(),
            grants,
        };
        out.push(Action::Propose { ticket, transfer });
    }

    /// Answers an ask now, or keeps it until the holder's entries in flight are applied.
    pub(super) fn answer_or_keep(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        holder: &Holder,
        echo: Span,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let own = desk.in_flight(holder);
        // Too many entries are on their way: the ask is served after one of them.
        let any = || {
            let is_full = desk.entries.len() >= ENTRIES_IN_FLIGHT_MAX;
            let first = desk.entries.first_key_value().map(|(ticket, _)| *ticket);
            first.filter(|_| is_full && desk.hungry.contains_key(holder))
        };
        match own.or_else(any) {
            Some(after) => desk.keep_due(holder, echo, after),
            None => self.answer(now, book, place, holder, Some(echo), out),
        }
    }

    /// Tells a holder its committed total, and that the pool is dry if it is and a check waits.
    pub(super) fn answer(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        holder: &Holder,
        echo: Option<Span>,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let granted = book.tally(&place.account, place.window, holder).granted;
        let waits = desk
            .hungry
            .get(holder)
            .is_some_and(|hungry| hungry.need_to > granted);
        let mut dry = None;
        let mut standing = book.standing(&place.account, place.window, Some(holder));
        if let Ok(plan) = Plan::of(desk, &place.account, book, now) {
            if waits && plan.free <= 0 && desk.in_flight(holder).is_none() {
                dry = Some(Dry {
                    lasts: plan.dry_lasts(desk, now),
                    recalling: desk.round.is_some(),
                });
            }
            standing = Some(plan.standing(desk, &place.account, book, holder));
        }
        let answer = Answer {
            holder: holder.clone(),
            account: place.account.clone(),
            window: desk.window,
            granted,
            lapsed_to: book.lapsed_to(&place.account, place.window, holder),
            dry,
            standing: standing.unwrap_or_default(),
            stamp: self.stamp(now, holder, echo),
        };
        if let Some(desk) = self.desks.get_mut(place)
            && let Some(told) = desk.told.get_mut(holder)
        {
            told.dry_until = if dry.is_some() {
                now.boot.plus(DRY_BELIEVED)
            } else {
                Span::ZERO
            };
        }
        out.push(Action::Tell(holder.clone(), ToRegion::Answer(answer)));
    }

    /// An entry was applied: what it left unmet is hungry again, and those who waited for it are answered.
    pub(super) fn granted(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        ticket: u64,
        grants: &[(Holder, u64)],
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let mut short = Vec::new();
        for (holder, to) in grants {
            let granted = book.tally(&place.account, place.window, holder).granted;
            if !book.is_newest(holder) {
                continue;
            }
            if granted < *to
                && ticket > desk.quota_since
                && let Some((_, quota)) = book.window(&place.account, place.window)
            {
                // The plan was too high, and must not stay so: the same entry would go for ever.
                desk.quota = quota;
            }
            let Some(told) = desk.told.get(holder) else {
                continue;
            };
            if granted < *to && granted < told.need_to && !desk.hungry.contains_key(holder) {
                let hungry = Hungry {
                    need_to: told.need_to,
                    want_to: told.need_to,
                    since: now.boot,
                };
                desk.hungry.insert(holder.clone(), hungry);
                short.push(holder);
            }
        }
        self.serve(now, book, place, out);
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let is_short = short.iter().any(|holder| desk.hungry.contains_key(*holder));
        self.recall_if_short(now, book, place, is_short, out);
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let mut holders = desk.answerable(ticket);
        holders.extend(grants.iter().map(|(holder, _)| holder.clone()));
        for holder in holders {
            let Some(desk) = self.desks.get_mut(place) else {
                return;
            };
            let is_granted = grants.iter().any(|(to, _)| *to == holder);
            // It waited for room, and there is an entry of its own now.
            if !is_granted && let Some(own) = desk.in_flight(&holder) {
                desk.postpone_due(&holder, ticket, own);
                continue;
            }
            let due = desk.take_due(&holder, ticket);
            for echo in &due {
                self.answer(now, book, place, &holder, Some(*echo), out);
            }
            if due.is_empty() {
                self.answer(now, book, place, &holder, None, out);
            }
        }
    }

    /// An entry was applied and granted nothing at all.
    pub(super) fn not_granted(
        &mut self,
        now: Now,
        place: &Place,
        ticket: u64,
        why: NotTaken,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        desk.hungry.clear();
        let mut refused = Vec::new();
        for holder in desk.answerable(ticket) {
            for echo in desk.take_due(&holder, ticket) {
                refused.push((holder.clone(), echo));
            }
        }
        for (holder, echo) in refused {
            self.refuse(now, &place.account, &holder, why, Some(echo), out);
        }
    }

    // Recalls.

    /// Starts a recall when someone waits for units that are not there, or more is out than the quota
    /// allows.
    pub(super) fn recall_if_short(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        someone_waits: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let Ok(plan) = Plan::of(desk, &place.account, book, now) else {
            return;
        };
        let in_debt = plan.is_in_debt() && desk.recall_at.is_none();
        if in_debt || (someone_waits && plan.free <= 0) {
            self.open_empty_bucket(book, place, out);
            self.start_round(now, book, place, out);
        }
        if in_debt && let Some(desk) = self.desks.get_mut(place) {
            desk.recall_at = Some(now.boot.plus(DRY_MAX));
        }
    }

    /// Asks every living region that may hold a unit to give it back. Whether a round runs then.
    pub(super) fn start_round(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(desk) = self.desks.get_mut(place) else {
            return false;
        };
        if desk.round.is_some() {
            return true;
        }
        let may_hold = |holder: &Holder| {
            let mut tally = book.tally(&place.account, place.window, holder);
            if let Some(told) = desk.told.get(holder) {
                tally.take(told.totals);
            }
            tally.outstanding() > 0
        };
        let holders: Vec<Holder> = book
            .tallies(&place.account, place.window)
            .map(|(holder, _)| holder)
            .filter(|holder| book.is_newest(holder))
            .filter(|holder| self.peers.lives(&holder.region, now.boot))
            .filter(|holder| may_hold(holder))
            .cloned()
            .collect();
        let Some(longest) = holders
            .iter()
            .map(|holder| self.peers.round_trip(&holder.region))
            .max()
        else {
            return false;
        };
        self.rounds += 1;
        let wait = longest.as_nanos().saturating_mul(13) / 10;
        let wait = Span::from_nanos(wait).plus(ROUND_EXTRA);
        desk.round = Some(Round {
            id: self.rounds,
            until: now.boot.plus(wait),
            asked: holders.iter().cloned().collect(),
        });
        let is_bucket = desk.window.is_endless();
        for holder in &holders {
            // An answer that was lost would keep its units out for as long as the region lives.
            if is_bucket {
                self.answer(now, book, place, holder, None, out);
            }
            let recall = Recall {
                holder: holder.clone(),
                account: place.account.clone(),
                window: place.window,
                round: self.rounds,
            };
            out.push(Action::Tell(holder.clone(), ToRegion::Recall(recall)));
        }
        true
    }

    /// A holder answered a recall; when all have, the round is over.
    pub(super) fn answer_recall(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        holder: &Holder,
        id: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let Some(round) = desk.round.as_mut().filter(|round| round.id == id) else {
            return;
        };
        round.asked.remove(holder);
        if round.asked.is_empty() {
            self.end_round(now, book, place, out);
        }
    }

    /// Charges that waited for the round are decided, and who is hungry still is told that nothing came.
    fn end_round(&mut self, now: Now, book: &Book, place: &Place, out: &mut Vec<Action>) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        desk.round = None;
        self.serve(now, book, place, out);
        self.round_over_for_charges(now, book, place, out);
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let is_in_time = |hungry: &Hungry| now.boot.minus(hungry.since) < DRY_MAX;
        desk.hungry.retain(|_, hungry| is_in_time(hungry));
        let is_full = desk.entries.len() >= ENTRIES_IN_FLIGHT_MAX;
        let hungry: Vec<Holder> = desk
            .hungry
            .keys()
            .filter(|holder| desk.in_flight(holder).is_none() && !is_full)
            .cloned()
            .collect();
        for holder in hungry {
            self.answer(now, book, place, &holder, None, out);
        }
    }

    // Time.

    pub(super) fn wake(&mut self, now: Now, book: &Book, place: &Place, out: &mut Vec<Action>) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let has_ended = desk.has_ended(now);
        if has_ended {
            desk.hungry.clear();
            desk.round = None;
            desk.recall_at = None;
            self.refuse_waiting(now, place, NotTaken::WindowClosed, out);
        } else {
            self.wake_running(now, book, place, out);
        }
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        desk.forget_known(&place.account, book);
        let is_due = |since: Span| has_ended || since.plus(TOLD_EXACT_WITHIN) <= now.boot;
        if desk.told_since.is_some_and(is_due) {
            if book.window(&place.account, place.window).is_some() {
                self.propose(place, Vec::new(), out);
            } else {
                desk.told_since = None;
            }
        }
    }

    fn wake_running(&mut self, now: Now, book: &Book, place: &Place, out: &mut Vec<Action>) {
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let round = desk.round.as_ref();
        if round.is_some_and(|round| round.until <= now.boot) {
            self.end_round(now, book, place, out);
        }
        let Some(desk) = self.desks.get_mut(place) else {
            return;
        };
        let is_in_time = |hungry: &Hungry| now.boot.minus(hungry.since) < DRY_MAX;
        desk.hungry.retain(|_, hungry| is_in_time(hungry));
        if desk.recall_at.is_some_and(|at| at <= now.boot) {
            desk.recall_at = None;
            self.recall_if_short(now, book, place, false, out);
        }
    }

    // Earlier epochs.

    /// What comes back to an earlier epoch is waited for by the newest one: its entry goes at once.
    pub(super) fn hurry_superseded(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let preview = book.preview(now.log, &place.account, desk.window, desk.quota);
        if preview == Err(NotTaken::Superseded) && desk.told_since.is_some() {
            self.propose(place, Vec::new(), out);
        }
    }

    /// A full bucket earns nothing, so what was spent of it is made known at once.
    pub(super) fn hurry_full_bucket(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        let Some(desk) = self.desks.get(place) else {
            return;
        };
        let plan = Plan::of(desk, &place.account, book, now);
        let is_full = plan.is_ok_and(|plan| plan.is_full);
        if is_full && desk.told_since.is_some() && desk.entries.is_empty() {
            self.propose(place, Vec::new(), out);
        }
    }

    /// An entry of an earlier epoch was applied: what it paid back is handed out.
    pub(super) fn serve_newer_epochs(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        let old = &place.account;
        let newer: Vec<Place> = self
            .desks
            .range(place.clone()..)
            .map(|(place, _)| place)
            .skip_while(|other| other.account == *old)
            .take_while(|other| {
                let new = &other.account;
                (&new.tenant, &new.limit, &new.key) == (&old.tenant, &old.limit, &old.key)
            })
            .cloned()
            .collect();
        for place in newer {
            self.serve(now, book, &place, out);
            self.sleep(now, book, &place);
        }
    }
}
