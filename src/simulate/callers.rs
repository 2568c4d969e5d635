//! Callers, as `cli::drill::load` has them: each load asks in each of its regions when its arrivals say, and those with
//! a key try again, in other regions too, until they are answered.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::drill::arrivals::Arrival;
use crate::drill::arrivals::Arrivals;
use crate::drill::record::Answer;
use crate::drill::record::Call;
use crate::drill::scenario::Load;
use crate::drill::scenario::Scenario;
use crate::drill::settled::key_name;

use super::founding;
use super::net::MS;
use super::process;
use super::process::Event;
use super::world::Happening;
use super::world::World;

/// A caller waits so long for an answer.
const ANSWER_WITHIN: u64 = 3_000 * MS;
/// A keyed call is repeated for so long.
const PATIENCE_MS: u64 = 30_000;
/// Between two tries of a keyed call.
const PAUSE: u64 = 150 * MS;

/// The callers of one load in one region.
struct Source {
    load: usize,
    home: usize,
    arrivals: Arrivals,
    next: Option<Arrival>,
    number: u64,
}

/// A call that is not answered yet.
struct Flight {
    load: usize,
    home: usize,
    region: usize,
    arrival: Arrival,
    sent_ms: u64,
    tries: u32,
    is_in_doubt: bool,
    idempotency: Option<Rc<str>>,
}

/// What callers share.
pub struct Callers {
    /// By region of the caller: which region is asked.
    pub routes: Vec<usize>,
    sources: Vec<Source>,
    flights: BTreeMap<u64, Flight>,
    /// Tries that have no answer yet: of which call, where.
    attempts: BTreeMap<u64, (u64, usize)>,
    last: u64,
    /// Names by load: tenant and limit; keys by number.
    names: Vec<(Rc<str>, Rc<str>, bool)>,
    keys: BTreeMap<u32, Rc<str>>,
}

/// How often callers are going to ask, about.
pub fn planned(scenario: &Scenario) -> u64 {
    let of = |load: &Load| {
        let regions = u64::try_from(load.regions.len()).unwrap_or(u64::MAX);
        let (from, until) = load.span_ms;
        let lasts_ms = until.saturating_sub(from);
        load.rate.saturating_mul(regions).saturating_mul(lasts_ms) / 1_000
    };
    scenario.loads.iter().map(of).fold(0, u64::saturating_add)
}

impl Callers {
    /// Callers who ask nothing yet.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut sources = Vec::new();
        for (number, load) in scenario.loads.iter().enumerate() {
            for (place, home) in load.regions.iter().enumerate() {
                let mixed = u64::try_from(number * 64 + place).unwrap_or(0);
                let seed = seed ^ mixed.wrapping_mul(0xd6e8_feb8_6659_fd93);
                let mut arrivals = Arrivals::new(load, place, seed);
                let next = arrivals.next();
                sources.push(Source {
                    load: number,
                    home: *home,
                    arrivals,
                    next,
                    number: 0,
                });
            }
        }
        let names = scenario.loads.iter().map(|load| {
            let limit = scenario.limits.get(load.limit);
            let name = limit.map_or("", |limit| limit.name.as_str());
            let has_key = limit.is_some_and(crate::drill::scenario::DrillLimit::has_key);
            (
                Rc::from(founding::tenant(&load.tenant)),
                Rc::from(name),
                has_key,
            )
        });
        Self {
            routes: (0..scenario.regions.len()).collect(),
            sources,
            flights: BTreeMap::new(),
            attempts: BTreeMap::new(),
            last: 0,
            names: names.collect(),
            keys: BTreeMap::new(),
        }
    }

    /// Whether nobody asks any more, and everybody was answered.
    pub fn are_done(&self) -> bool {
        self.flights.is_empty() && self.sources.iter().all(|source| source.next.is_none())
    }
}

impl World<'_> {
    /// Callers begin.
    pub(super) fn begin_to_call(&mut self) {
        for number in 0..self.callers.sources.len() {
            self.plan_call(number);
        }
    }

    fn plan_call(&mut self, number: usize) {
        let source = self.callers.sources.get(number);
        if let Some(next) = source.and_then(|source| source.next) {
            let at = self.begins + next.at_us * 1_000;
            self.schedule(at, Happening::Call(number));
        }
    }

    /// The next call of some callers.
    pub(super) fn next_call(&mut self, number: usize) {
        let sent_ms = self.now_ms();
        let Some(source) = self.callers.sources.get_mut(number) else {
            return;
        };
        let Some(arrival) = source.next else { return };
        source.next = source.arrivals.next();
        let (load, home, count) = (source.load, source.home, source.number);
        source.number += 1;
        let is_keyed = self
            .scenario
            .loads
            .get(load)
            .is_some_and(|load| load.is_keyed);
        let key = is_keyed.then(|| Rc::from(format!("{load}-{home}-{count}")));
        self.callers.last += 1;
        let call = self.callers.last;
        let flight = Flight {
            load,
            home,
            region: self.callers.routes.get(home).copied().unwrap_or(home),
            arrival,
            sent_ms,
            tries: 0,
            is_in_doubt: false,
            idempotency: key,
        };
        self.callers.flights.insert(call, flight);
        self.plan_call(number);
        self.try_call(call);
    }

    /// One try of a call.
    pub(super) fn try_call(&mut self, id: u64) {
        self.callers.last += 1;
        let attempt = self.callers.last;
        let Some(flight) = self.callers.flights.get_mut(&id) else {
            return;
        };
        flight.tries += 1;
        let region = flight.region;
        let Some((tenant, limit, has_key)) = self.callers.names.get(flight.load) else {
            return;
        };
        let key = if *has_key {
            let number = flight.arrival.key;
            let keys = &mut self.callers.keys;
            Rc::clone(
                keys.entry(number)
                    .or_insert_with(|| Rc::from(key_name(number))),
            )
        } else {
            Rc::from("")
        };
        let call = process::Call {
            id: attempt,
            tenant: Rc::clone(tenant),
            limit: Rc::clone(limit),
            key,
            cost: flight.arrival.cost,
            idempotency: flight.idempotency.clone(),
        };
        self.callers.attempts.insert(attempt, (id, region));
        let boot = self
            .places
            .get(region)
            .map(|place| place.clock.boot(self.at));
        let serves = self
            .process(region)
            .zip(boot)
            .is_some_and(|(process, boot)| process.serves(boot));
        if !serves {
            let nothing = Answer::Nothing {
                may_be_charged: false,
            };
            self.tried(attempt, nothing);
            return;
        }
        self.schedule(self.at + ANSWER_WITHIN, Happening::TimeOut(attempt));
        self.happen_to(region, Event::Call(call));
    }

    /// What came of a try.
    pub(super) fn tried(&mut self, attempt: u64, answer: Answer) {
        let Some((id, _)) = self.callers.attempts.remove(&attempt) else {
            return;
        };
        let heard_ms = self.now_ms();
        let regions = self.places.len().max(1);
        let Some(flight) = self.callers.flights.get_mut(&id) else {
            return;
        };
        flight.is_in_doubt |= answer.is_in_doubt();
        let is_final = match &answer {
            Answer::Allowed(_) | Answer::Refused(_) => true,
            // The same key is being decided: it will be known.
            Answer::Wrong(status) => *status != 409,
            Answer::Unavailable { .. } | Answer::Nothing { .. } => false,
        };
        let is_late = heard_ms > flight.sent_ms + PATIENCE_MS;
        let answer = if flight.idempotency.is_none() || is_final {
            answer
        } else if is_late {
            Answer::Nothing {
                may_be_charged: flight.is_in_doubt,
            }
        } else {
            // Another region may be able to.
            flight.region = (flight.region + 1) % regions;
            self.schedule(self.at + PAUSE, Happening::TryAgain(id));
            return;
        };
        if let Some(flight) = self.callers.flights.remove(&id) {
            self.record.calls.push(Call {
                load: flight.load,
                home: flight.home,
                region: flight.region,
                key: flight.arrival.key,
                cost: flight.arrival.cost,
                sent_ms: flight.sent_ms,
                heard_ms,
                tries: flight.tries,
                answer,
            });
        }
    }

    /// A process has ended: connections to it are gone.
    pub(super) fn lose_calls(&mut self, region: usize) {
        let lost = self.callers.attempts.iter();
        let lost = lost.filter(|(_, (_, asked))| *asked == region);
        for attempt in lost.map(|(attempt, _)| *attempt).collect::<Vec<u64>>() {
            let nothing = Answer::Nothing {
                may_be_charged: true,
            };
            self.tried(attempt, nothing);
        }
    }
}
