//! Charges that the leader decides: of keyed checks, and of checks that no region can decide by itself.
//!
//! A charge whose units are not there waits for one recall round in each window that lacks them, and is then
//! made or refused. A refusal makes no entry.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::time::Span;
use crate::grants::book::Book;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::CHARGES_MAX;
use crate::grants::leader::DRY_MAX;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Part;
use crate::grants::leader::Place;
use crate::grants::leader::desk::Charging;
use crate::grants::leader::desk::Plan;

/// A charge that waits for units.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    ticket: u64,
    parts: Vec<Part>,
    /// Windows whose round is over and brought too little.
    tried: BTreeSet<Place>,
}

impl Leader {
    /// All `parts` are to be charged together, or none. Ends in [`Action::Charge`] or
    /// [`Action::RefuseCharge`] with the same ticket, at once or after a recall round. Tickets are the
    /// caller's own and must not be in use.
    pub fn charge(
        &mut self,
        now: Now,
        book: &Book,
        ticket: u64,
        parts: Vec<Part>,
        out: &mut Vec<Action>,
    ) {
        let refuse = |why| Action::RefuseCharge {
            ticket,
            why,
            retry: DRY_MAX,
        };
        if self.waiting.len() + self.charging.len() >= CHARGES_MAX {
            out.push(refuse(NotTaken::Capacity));
            return;
        }
        let mut places = BTreeSet::new();
        for Part { charge, quota } in &parts {
            if !book.is_newest(&charge.holder) {
                out.push(refuse(NotTaken::NotEnrolled));
                return;
            }
            match self.open(now, book, &charge.account, charge.window, *quota) {
                Ok(place) => {
                    if let Some(desk) = self.desks.get_mut(&place) {
                        desk.note(now.boot, &charge.holder, charge.totals);
                    }
                    self.peers.hear(&charge.holder.region, now.boot);
                    places.insert(place);
                }
                Err(why) => {
                    out.push(refuse(why));
                    return;
                }
            }
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        let waiting = Waiting {
            ticket,
            parts,
            tried: BTreeSet::new(),
        };
        self.waiting.insert(arrival, waiting);
        self.decide(now, book, arrival, out);
        for place in places {
            // What the charge gave back and does not use is there for others.
            self.serve(now, book, &place, out);
            self.sleep(now, book, &place);
        }
    }

    /// The entry of a charge is settled: `counts` says whether the book holds the charge, or may hold it one
    /// day because nobody knows what became of its entry.
    pub fn charged(
        &mut self,
        now: Now,
        book: &Book,
        ticket: u64,
        counts: bool,
        out: &mut Vec<Action>,
    ) {
        for place in self.charging.remove(&ticket).unwrap_or_default() {
            if let Some(desk) = self.desks.get_mut(&place) {
                let ended = desk.charging.remove(&ticket).unwrap_or_default();
                for charge in ended.iter().filter(|_| !counts) {
                    desk.lower_charges_after(charge);
                }
                desk.forget_known(&place.account, book);
            }
            self.serve(now, book, &place, out);
            self.sleep(now, book, &place);
        }
    }

    /// The windows that lack units for a charge, with how many it takes there.
    fn lacking(
        &self,
        now: Now,
        book: &Book,
        waiting: &Waiting,
    ) -> Result<BTreeMap<Place, u128>, NotTaken> {
        let mut sums: BTreeMap<Place, u128> = BTreeMap::new();
        for Part { charge, .. } in &waiting.parts {
            let place = Place {
                account: charge.account.clone(),
                window: charge.window.id,
            };
            *sums.entry(place).or_default() += u128::from(charge.units);
        }
        let mut lacking = BTreeMap::new();
        for (place, units) in sums {
            let desk = self.desks.get(&place).ok_or(NotTaken::WindowClosed)?;
            let plan = Plan::of(desk, &place.account, book, now)?;
            if plan.window.start > now.log {
                return Err(NotTaken::WindowClosed);
            }
            if units > u128::from(plan.units()) {
                lacking.insert(place, units);
            }
        }
        Ok(lacking)
    }

    /// Makes a charge, refuses it, or lets it wait for the rounds that it needs.
    fn decide(&mut self, now: Now, book: &Book, arrival: u64, out: &mut Vec<Action>) {
        let Some(waiting) = self.waiting.get(&arrival) else {
            return;
        };
        let lacking = match self.lacking(now, book, waiting) {
            Ok(lacking) => lacking,
            Err(why) => {
                self.refuse_charge(now, arrival, why, out);
                return;
            }
        };
        if lacking.is_empty() {
            self.begin_charge(book, arrival, out);
            return;
        }
        for place in lacking.keys() {
            self.open_empty_bucket(book, place, out);
        }
        let Some(waiting) = self.waiting.get(&arrival) else {
            return;
        };
        let is_hopeless = lacking.iter().any(|(place, units)| {
            let quota = self.desks.get(place).map_or(0, |desk| desk.quota.units());
            waiting.tried.contains(place) || *units > u128::from(quota)
        });
        let waits = !is_hopeless
            && lacking.keys().all(|place| {
                let runs = self.start_round(now, book, place, out);
                if runs && let Some(desk) = self.desks.get_mut(place) {
                    desk.waiting.insert(arrival);
                }
                runs
            });
        if !waits {
            self.refuse_charge(now, arrival, NotTaken::Empty, out);
        }
    }

    fn begin_charge(&mut self, book: &Book, arrival: u64, out: &mut Vec<Action>) {
        let Some(waiting) = self.forget_waiting(arrival) else {
            return;
        };
        let ticket = waiting.ticket;
        let mut places = BTreeSet::new();
        for Part { charge, .. } in waiting.parts {
            let place = Place {
                account: charge.account,
                window: charge.window.id,
            };
            let Some(desk) = self.desks.get_mut(&place) else {
                continue;
            };
            let charged = book
                .tally(&place.account, place.window, &charge.holder)
                .charged;
            let planned = desk.charging.values().flatten();
            let planned = planned.filter(|planned| planned.holder == charge.holder);
            let before = planned.map(|planned| planned.to).fold(charged, u64::max);
            desk.charging.entry(ticket).or_default().push(Charging {
                to: before.saturating_add(charge.units),
                holder: charge.holder,
                units: charge.units,
            });
            places.insert(place);
        }
        self.charging.insert(ticket, places);
        out.push(Action::Charge { ticket });
    }

    fn refuse_charge(&mut self, now: Now, arrival: u64, why: NotTaken, out: &mut Vec<Action>) {
        let Some(waiting) = self.forget_waiting(arrival) else {
            return;
        };
        let ends = waiting.parts.iter().map(|part| part.charge.window.end);
        let retry = ends.map(|end| end.since(now.log)).fold(DRY_MAX, Span::min);
        out.push(Action::RefuseCharge {
            ticket: waiting.ticket,
            why,
            retry,
        });
    }

    fn forget_waiting(&mut self, arrival: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&arrival)?;
        for Part { charge, .. } in &waiting.parts {
            let place = Place {
                account: charge.account.clone(),
                window: charge.window.id,
            };
            if let Some(desk) = self.desks.get_mut(&place) {
                desk.waiting.remove(&arrival);
            }
        }
        Some(waiting)
    }

    fn waiting_at(&self, place: &Place) -> Vec<u64> {
        let desk = self.desks.get(place);
        desk.map_or_else(Vec::new, |desk| desk.waiting.iter().copied().collect())
    }

    /// Makes the waiting charges that the plan has units for, first come first.
    pub(super) fn serve_charges(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        for arrival in self.waiting_at(place) {
            let Some(waiting) = self.waiting.get(&arrival) else {
                continue;
            };
            let lacking = self.lacking(now, book, waiting);
            if lacking.is_ok_and(|lacking| lacking.is_empty()) {
                self.begin_charge(book, arrival, out);
            }
        }
    }

    /// The round of a window is over: charges that it brought too little for are refused.
    pub(super) fn round_over_for_charges(
        &mut self,
        now: Now,
        book: &Book,
        place: &Place,
        out: &mut Vec<Action>,
    ) {
        for arrival in self.waiting_at(place) {
            if let Some(waiting) = self.waiting.get_mut(&arrival) {
                waiting.tried.insert(place.clone());
                self.decide(now, book, arrival, out);
            }
        }
    }

    /// Refuses all charges that wait for units of a window.
    pub(super) fn refuse_waiting(
        &mut self,
        now: Now,
        place: &Place,
        why: NotTaken,
        out: &mut Vec<Action>,
    ) {
        for arrival in self.waiting_at(place) {
            self.refuse_charge(now, arrival, why, out);
        }
    }
}
