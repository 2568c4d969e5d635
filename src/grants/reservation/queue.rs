//! Checks that wait for units, in the order in which they came.
//!
//! A waiter is *asleep* until the units that it needs are there, then it is *woken* and they are kept for
//! it. One that was woken and still lacks another limit is *passed over*: nothing is kept for it and it
//! blocks nobody, but its place and its deadline stay.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::time::Span;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Times;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Woken,
    Passed,
}

/// One check that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) units: u64,
    pub(super) came: Span,
    deadline: Span,
    state: State,
}

/// All that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<u64, Waiter>,
    places: BTreeMap<Ticket, u64>,
    deadlines: BTreeSet<(Span, u64)>,
    /// Those asleep by what they need, to know the smallest need at once.
    asleep: BTreeSet<(u64, u64)>,
    units: u128,
    promised: u128,
    next_place: u64,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Units that all waiters need together.
    pub(super) fn units(&self) -> u64 {
        u64::try_from(self.units).unwrap_or(u64::MAX)
    }

    /// Units that are kept for woken waiters.
    pub(super) fn promised(&self) -> u64 {
        u64::try_from(self.promised).unwrap_or(u64::MAX)
    }

    /// The smallest need of those asleep.
    pub(super) fn smallest(&self) -> Option<u64> {
        self.asleep.first().map(|(units, _)| *units)
    }

    pub(super) fn first_deadline(&self) -> Option<Span> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Whether somebody waits who was not passed over.
    pub(super) fn blocks(&self) -> bool {
        self.promised > 0 || !self.asleep.is_empty()
    }

    pub(super) fn is_woken(&self, ticket: Ticket) -> bool {
        self.find(ticket)
            .is_some_and(|waiter| waiter.state == State::Woken)
    }

    pub(super) fn is_asleep(&self, ticket: Ticket) -> bool {
        self.find(ticket)
            .is_some_and(|waiter| waiter.state == State::Asleep)
    }

    pub(super) fn contains(&self, ticket: Ticket) -> bool {
        self.places.contains_key(&ticket)
    }

    fn find(&self, ticket: Ticket) -> Option<&Waiter> {
        self.order.get(self.places.get(&ticket)?)
    }

    /// Puts a check at the end; one that is there keeps its place and its deadline, falls asleep and needs
    /// `units` from now on.
    pub(super) fn put(&mut self, ticket: Ticket, units: u64, times: Times) {
        if let Some(place) = self.places.get(&ticket).copied() {
            self.change(place, |waiter| {
                waiter.units = units;
                waiter.state = State::Asleep;
            });
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(ticket, place);
        let waiter = Waiter {
            ticket,
            units,
            came: times.came,
            deadline: times.deadline,
            state: State::Asleep,
        };
        self.enter(place, waiter);
    }

    /// It had its units and lacked something else.
    pub(super) fn pass_over(&mut self, ticket: Ticket) {
        if let Some(place) = self.places.get(&ticket).copied() {
            self.change(place, |waiter| waiter.state = State::Passed);
        }
    }

    /// Wakes, in order, everybody asleep who fits into `free` units beside those woken before.
    pub(super) fn wake(&mut self, free: u64, mut woken: impl FnMut(Ticket)) {
        let mut free = free;
        let mut from = 0;
        while self.smallest().is_some_and(|smallest| smallest <= free) {
            let found = self
                .order
                .range(from..)
                .find(|(_, waiter)| waiter.state == State::Asleep && waiter.units <= free)
                .map(|(place, waiter)| (*place, *waiter));
            let Some((place, waiter)) = found else {
                return;
            };
            self.change(place, |waiter| waiter.state = State::Woken);
            free -= waiter.units;
            from = place + 1;
            woken(waiter.ticket);
        }
    }

    /// Takes a check out.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let place = self.places.remove(&ticket)?;
        self.leave(place)
    }

    /// Takes out the first whose deadline is at or before `boot`; with it, whether it was woken.
    pub(super) fn overdue(&mut self, boot: Span) -> Option<(Waiter, bool)> {
        let (deadline, place) = *self.deadlines.first()?;
        if deadline > boot {
            return None;
        }
        let waiter = self.leave(place)?;
        self.places.remove(&waiter.ticket);
        Some((waiter, waiter.state == State::Woken))
    }

    /// Takes out everybody asleep, in order.
    pub(super) fn take_asleep(&mut self, mut taken: impl FnMut(Ticket)) {
        let mut places: Vec<u64> = self.asleep.iter().map(|(_, place)| *place).collect();
        places.sort_unstable();
        for place in places {
            if let Some(waiter) = self.leave(place) {
                self.places.remove(&waiter.ticket);
                taken(waiter.ticket);
            }
        }
    }

    /// Takes out everybody, in order.
    pub(super) fn take_all(&mut self, mut taken: impl FnMut(Ticket)) {
        for waiter in std::mem::take(self).order.into_values() {
            taken(waiter.ticket);
        }
    }

    /// Everybody woken is asleep again: what was kept for them is of no use any more.
    pub(super) fn lull(&mut self) {
        let woken: Vec<u64> = self
            .order
            .iter()
            .filter(|(_, waiter)| waiter.state == State::Woken)
            .map(|(place, _)| *place)
            .collect();
        for place in woken {
            self.change(place, |waiter| waiter.state = State::Asleep);
        }
    }

    fn change(&mut self, place: u64, how: impl FnOnce(&mut Waiter)) {
        if let Some(mut waiter) = self.leave(place) {
            how(&mut waiter);
            self.enter(place, waiter);
        }
    }

    fn enter(&mut self, place: u64, waiter: Waiter) {
        self.units += u128::from(waiter.units);
        self.deadlines.insert((waiter.deadline, place));
        match waiter.state {
            State::Asleep => {
                self.asleep.insert((waiter.units, place));
            }
            State::Woken => self.promised += u128::from(waiter.units),
            State::Passed => {}
        }
        self.order.insert(place, waiter);
    }

    fn leave(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.order.remove(&place)?;
        self.units -= u128::from(waiter.units);
        self.deadlines.remove(&(waiter.deadline, place));
        match waiter.state {
            State::Asleep => {
                self.asleep.remove(&(waiter.units, place));
            }
            State::Woken => self.promised -= u128::from(waiter.units),
            State::Passed => {}
        }
        Some(waiter)
    }
}
