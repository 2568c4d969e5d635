//! Checks that wait for units, in the order in which they came.
//!
//! A waiter is *asleep* until the units that it needs are there, then it is *woken* and they are kept for
//! it. One that was woken and still lacks another limit is *passed over*: nothing is kept for it and it
//! blocks nobody, but its place and its deadline stay. One that was woken and does not come back by its
//! deadline is *late*: nothing is kept or asked for it, and it is forgotten a while later.
//!
//! Two checks that each have what the other lacks would wake each other without an end: one that was woken
//! before is woken again only after a rest, which doubles from time to time.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::time::Span;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Times;

/// How long one that is late is remembered, so that it is still known what it was told.
const LATE_KEPT: Span = Span::from_seconds(10);
/// The rest after the first wake, and how often it doubles.
const REST: Span = Span::from_ms(1);
const REST_DOUBLES_MAX: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Woken,
    Passed,
    Late,
}

/// One check that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) units: u64,
    pub(super) came: Span,
    deadline: Span,
    state: State,
    wakes: u8,
    /// It is not woken before.
    rests_until: Span,
}

impl Waiter {
    /// When to look at it again.
    fn due(&self) -> Span {
        match self.state {
            State::Late => self.deadline.plus(LATE_KEPT),
            State::Asleep | State::Woken | State::Passed => self.deadline,
        }
    }
}

/// All that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<u64, Waiter>,
    places: BTreeMap<Ticket, u64>,
    deadlines: BTreeSet<(Span, u64)>,
    /// Those asleep by what they need, to know the smallest need at once.
    asleep: BTreeSet<(u64, u64)>,
    /// Those asleep that were woken before, by the end of their rest.
    resting: BTreeSet<(Span, u64)>,
    units: u128,
    promised: u128,
    next_place: u64,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Units that all waiters need together, but for those that are late.
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

    /// When the next rest ends after `boot`.
    pub(super) fn next_rest(&self, boot: Span) -> Option<Span> {
        let after = (boot, u64::MAX);
        self.resting.range(after..).next().map(|(rest, _)| *rest)
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
            wakes: 0,
            rests_until: Span::ZERO,
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
    pub(super) fn wake(&mut self, free: u64, boot: Span, mut woken: impl FnMut(Ticket)) {
        let mut free = free;
        let mut from = 0;
        while self.smallest().is_some_and(|smallest| smallest <= free) {
            let found = self
                .order
                .range(from..)
                .find(|(_, waiter)| {
                    waiter.state == State::Asleep
                        && waiter.units <= free
                        && waiter.rests_until <= boot
                })
                .map(|(place, waiter)| (*place, *waiter));
            let Some((place, waiter)) = found else {
                return;
            };
            self.change(place, |waiter| {
                waiter.state = State::Woken;
                let rest = REST.as_nanos() << waiter.wakes.min(REST_DOUBLES_MAX);
                waiter.rests_until = boot.plus(Span::from_nanos(rest));
                waiter.wakes = waiter.wakes.saturating_add(1);
            });
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

    /// Takes out the first whose deadline is at or before `boot` and that was not told to try again. What is
    /// kept for those that were is free.
    pub(super) fn overdue(&mut self, boot: Span) -> Option<Waiter> {
        loop {
            let (due, place) = *self.deadlines.first()?;
            if due > boot {
                return None;
            }
            let mut waiter = self.leave(place)?;
            if waiter.state == State::Woken {
                waiter.state = State::Late;
                self.enter(place, waiter);
                continue;
            }
            self.places.remove(&waiter.ticket);
            if waiter.state != State::Late {
                return Some(waiter);
            }
        }
    }

    /// Puts one back that was overdue and is told to try again: from now on it is late.
    pub(super) fn put_late(&mut self, waiter: Waiter) {
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(waiter.ticket, place);
        let state = State::Late;
        self.enter(place, Waiter { state, ..waiter });
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
        if waiter.state != State::Late {
            self.units += u128::from(waiter.units);
        }
        self.deadlines.insert((waiter.due(), place));
        match waiter.state {
            State::Asleep => {
                self.asleep.insert((waiter.units, place));
                if waiter.wakes > 0 {
                    self.resting.insert((waiter.rests_until, place));
                }
            }
            State::Woken => self.promised += u128::from(waiter.units),
            State::Passed | State::Late => {}
        }
        self.order.insert(place, waiter);
    }

    fn leave(&mut self, place: u64) -> Option<Waiter> {
        let waiter = self.order.remove(&place)?;
        if waiter.state != State::Late {
            self.units -= u128::from(waiter.units);
        }
        self.deadlines.remove(&(waiter.due(), place));
        match waiter.state {
            State::Asleep => {
                self.asleep.remove(&(waiter.units, place));
                self.resting.remove(&(waiter.rests_until, place));
            }
            State::Woken => self.promised -= u128::from(waiter.units),
            State::Passed | State::Late => {}
        }
        Some(waiter)
    }
}
