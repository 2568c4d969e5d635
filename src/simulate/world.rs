//! The world: regions with their machines and disks, the network between them, and all that happens, in the order of time.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::domain::draws::Draws;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::drill::record::Answer;
use crate::drill::record::Record;
use crate::drill::scenario::Action;
use crate::drill::scenario::Scenario;
use crate::drill::settled::Settling;
use crate::drill::settled::Window;

use super::agenda::Agenda;
use super::callers;
use super::callers::Callers;
use super::clock::Clock;
use super::founding;
use super::log;
use super::net::MS;
use super::net::Net;
use super::process::Birth;
use super::process::Disk;
use super::process::Event;
use super::process::Out;
use super::process::Process;
use super::steps::Running;

/// Regions must be one cluster, with the scenario's limits, in this time.
const FOUNDED_WITHIN: u64 = 60_000 * MS;
const FOUNDING_STEP: u64 = 50 * MS;
/// So often it is told how far it is.
const TOLD_TIMES: u64 = 20;
/// What a process takes to begin: at least, and up to so much more.
const START: (u64, u64) = (150 * MS, 150 * MS);
/// Clocks are off by up to so many nanoseconds, and drift by up to so many millionths, as those of machines that a time
/// daemon looks after.
const OFFSET_MAX: u64 = 3 * MS;
const DRIFT_MAX: u64 = 30;

/// A machine: what is on it, and what is wrong with it.
pub struct Place {
    /// Its clocks.
    pub clock: Clock,
    /// Its disk.
    pub disk: Disk,
    /// Its process, while one runs.
    pub process: Option<Process>,
    /// What the process finds when it goes on, while it is frozen.
    pub held_back: Option<VecDeque<Event>>,
    /// A backup that was taken.
    pub backup: Option<Disk>,
}

/// Something happens.
pub enum Happening {
    /// To the process with this number of a region.
    Process(usize, u64, Box<Event>),
    /// A process of a region begins.
    Start(usize),
    /// The next call of these callers.
    Call(usize),
    /// A try of a call has waited for too long.
    TimeOut(u64),
    /// A call is tried again.
    TryAgain(u64),
    /// A step begins, or goes on.
    Step(usize),
    /// A region is looked at.
    Look(usize),
    /// A look at a region has found nothing.
    LookedInVain(usize),
    /// Are all well, and do they count alike?
    Settle,
}

/// See the module.
pub struct World<'s> {
    /// What is rehearsed.
    pub scenario: &'s Scenario,
    /// True time, in nanoseconds since the beginning.
    pub at: u64,
    /// When callers began.
    pub begins: u64,
    /// By region.
    pub places: Vec<Place>,
    /// The network.
    pub net: Net,
    /// What is left behind.
    pub record: Record,
    /// Who asks.
    pub callers: Callers,
    /// Steps, by number, that have begun and are not over.
    pub running: BTreeMap<usize, Running>,
    /// Steps that are over.
    pub done: usize,
    /// When all was settled, or nobody waits any more.
    pub is_over: bool,
    /// How far the counters are settled, once all was said.
    pub settling: Option<Settling>,
    /// By limit: the windows, and the counters, that are compared then.
    pub windows: Vec<Vec<Window>>,
    /// See there.
    pub counters: Vec<Vec<(String, u32)>>,
    /// What cannot be done.
    pub error: Option<String>,
    pub(super) draws: Draws,
    names: Rc<Vec<RegionName>>,
    events: Agenda<Happening>,
    incarnations: u64,
    seed: u64,
}

impl<'s> World<'s> {
    /// The regions of a scenario as one cluster, without limits.
    ///
    /// # Errors
    /// When a region has no name.
    pub fn new(scenario: &'s Scenario, seed: u64) -> Result<Self, String> {
        let mut draws = Draws::new(seed ^ 0x5e1f_5e1f_0d12_1115);
        let names = scenario.regions.iter().map(|name| RegionName::new(name));
        let names: Vec<RegionName> = names
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let net = Net::new(scenario, Draws::new(draws.draw()));
        // At any time of any day.
        let day = draws.below(400 * 86_400) * 1_000_000_000 + draws.below(1_000_000_000);
        let ids: Vec<u64> = names.iter().map(|_| draws.draw()).collect();
        let members = members(&names, &ids);
        let place = |draws: &mut Draws, id: u64| {
            let off = signed(draws.below(2 * OFFSET_MAX + 1)) - signed(OFFSET_MAX);
            let drift_ppm = signed(draws.below(2 * DRIFT_MAX + 1)) - signed(DRIFT_MAX);
            Place {
                clock: Clock {
                    boot_offset: draws.below(1_000_000_000_000),
                    wall_offset: signed(day) + off,
                    drift_ppm,
                },
                disk: Disk::empty(log::Disk::founded(id, members.clone())),
                process: None,
                held_back: None,
                backup: None,
            }
        };
        let places = ids.iter().map(|id| place(&mut draws, *id)).collect();
        let mut world = Self {
            callers: Callers::new(scenario, seed),
            scenario,
            at: 0,
            begins: 0,
            places,
            net,
            record: Record::default(),
            running: BTreeMap::new(),
            done: 0,
            is_over: false,
            settling: None,
            windows: Vec::new(),
            counters: Vec::new(),
            error: None,
            draws,
            names: Rc::new(names),
            events: Agenda::default(),
            incarnations: 0,
            seed,
        };
        for region in 0..world.places.len() {
            world.start(region);
        }
        Ok(world)
    }

    /// Lets something happen.
    pub fn schedule(&mut self, at: u64, happening: Happening) {
        self.events.plan(at.max(self.at), happening);
    }

    /// Milliseconds since callers began.
    pub const fn now_ms(&self) -> u64 {
        self.at.saturating_sub(self.begins) / MS
    }

    /// Runs the drill from the founding to the last look, and tells now and then how far it is.
    ///
    /// # Errors
    /// When the regions do not become one cluster, a step cannot be carried out, or what cannot be was
    /// found.
    pub fn run(mut self, tell: &mut dyn FnMut(u64, usize)) -> Result<Record, String> {
        self.found()?;
        self.begin()?;
        let tell_every = (self.scenario.duration_ms * MS / TOLD_TIMES).max(1);
        let mut tell_at = self.begins + tell_every;
        while !self.is_over
            && let Some((at, happening)) = self.events.take_next()
        {
            self.at = at;
            if at >= tell_at {
                tell_at = at + tell_every;
                tell(self.now_ms(), self.record.calls.len());
            }
            self.take(happening);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        self.record.ended_ms = self.now_ms();
        Ok(self.record)
    }

    fn run_until(&mut self, until: u64) -> Result<(), String> {
        while let Some((at, happening)) = self.events.take_before(until + 1) {
            self.at = at;
            self.take(happening);
        }
        self.at = until;
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The cluster has a name and the scenario's limits, everywhere.
    fn found(&mut self) -> Result<(), String> {
        let commands = founding::commands(self.scenario, self.seed)?;
        while !self.is_ready() {
            if self.at >= FOUNDED_WITHIN {
                return Err("the regions did not become one cluster".to_owned());
            }
            self.run_until(self.at + FOUNDING_STEP)?;
            // What came of it may be lost on the way: whoever administers looks, and asks again. Twice does no harm.
            let place = self.places.first();
            let process = place.and_then(|place| place.process.as_ref());
            let next = process.and_then(|process| commands.get(founding::done(process)));
            if self.leader().is_some()
                && let Some(command) = next.cloned()
            {
                self.happen_to(0, Event::Administer(Box::new(command)));
                self.run_until(self.at + 20 * FOUNDING_STEP)?;
            }
        }
        Ok(())
    }

    /// Every region is enrolled, linked with all others, and knows the limits.
    fn is_ready(&self) -> bool {
        let versions = self.places.iter().map(|place| {
            place
                .process
                .as_ref()
                .map(|process| process.machine.catalogue().version())
        });
        let newest = versions.clone().max().flatten().unwrap_or(0);
        let is_well = |process: &Process| {
            process.is_enrolled && (0..self.places.len()).all(|peer| process.is_linked(peer))
        };
        newest > 0
            && versions.clone().all(|version| version == Some(newest))
            && self
                .places
                .iter()
                .all(|place| place.process.as_ref().is_some_and(is_well))
    }

    /// Callers begin at any time.
    fn begin(&mut self) -> Result<(), String> {
        let wait = self.draws.below(1_000 * MS);
        self.run_until(self.at + wait)?;
        self.begins = self.at;
        let first = self.places.first();
        let began = first.map(|place| place.clock.region_time(self.at));
        self.record.began_unix_ms = began.map_or(0, crate::domain::time::Timestamp::as_unix_ms);
        self.record.faults_of_links = vec![0; self.places.len()];
        let planned = callers::planned(self.scenario);
        // Twice as much would be taken while it grows.
        let planned = usize::try_from(planned + planned / 50).unwrap_or(0);
        self.record.calls.reserve(planned);
        self.begin_to_call();
        for (number, step) in self.scenario.steps.iter().enumerate() {
            self.schedule(self.begins + step.at_ms * MS, Happening::Step(number));
        }
        for region in 0..self.places.len() {
            self.schedule(self.begins, Happening::Look(region));
        }
        let end = self.begins + self.scenario.duration_ms * MS;
        self.schedule(end, Happening::Settle);
        Ok(())
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Process(region, incarnation, event) => {
                let process = self.process(region);
                if process.is_some_and(|process| process.holder.incarnation == incarnation) {
                    self.happen_to(region, *event);
                }
            }
            Happening::Start(region) => self.start(region),
            Happening::Call(callers) => self.next_call(callers),
            Happening::TimeOut(attempt) => {
                let nothing = Answer::Nothing {
                    may_be_charged: true,
                };
                self.tried(attempt, nothing);
            }
            Happening::TryAgain(call) => self.try_call(call),
            Happening::Step(number) => self.step(number),
            Happening::Look(region) => self.look(region),
            Happening::LookedInVain(region) => self.looked(region, None),
            Happening::Settle => self.settle(),
        }
    }

    /// The process of a region, while one runs.
    pub fn process(&self, region: usize) -> Option<&Process> {
        self.places.get(region)?.process.as_ref()
    }

    /// Whether the disk of a region takes nothing.
    fn is_full(&self, region: usize) -> bool {
        self.net
            .of_region(region)
            .any(|fault| matches!(fault.action, Action::DiskFull | Action::DiskErrors))
    }

    /// The clocks of a region, with what faults make of them.
    fn clock(&self, region: usize) -> Option<Clock> {
        let mut clock = self.places.get(region)?.clock;
        for fault in self.net.of_region(region) {
            if let Action::Clock { offset_ms } = fault.action {
                clock.wall_offset = clock.wall_offset.saturating_add(offset_ms * signed(MS));
            }
        }
        Some(clock)
    }

    /// Something happens to a process, now or when it goes on.
    pub fn happen_to(&mut self, region: usize, event: Event) {
        let is_full = self.is_full(region);
        let Some(clock) = self.clock(region) else {
            return;
        };
        let Some(place) = self.places.get_mut(region) else {
            return;
        };
        if let Some(held_back) = &mut place.held_back {
            held_back.push_back(event);
            return;
        }
        let mut out = Vec::new();
        if let Some(process) = &mut place.process {
            let reading = clock.reading(self.at);
            process.handle(reading, event, (&mut place.disk, is_full), &mut out);
        }
        self.carry_out(region, clock, out);
    }

    /// A process of a region begins.
    fn start(&mut self, region: usize) {
        self.incarnations += 1;
        let incarnation = (self.incarnations << 32) | (self.draws.draw() >> 32);
        let latencies: Vec<Span> = (0..self.places.len())
            .map(|to| Span::from_nanos(self.net.delay(region, to)))
            .collect();
        let draws = Draws::new(self.draws.draw());
        let Some(clock) = self.clock(region) else {
            return;
        };
        let Some(place) = self.places.get_mut(region) else {
            return;
        };
        let birth = Birth {
            index: region,
            names: &self.names,
            latencies: &latencies,
            incarnation,
            draws,
        };
        let mut out = Vec::new();
        let reading = clock.reading(self.at);
        place.process = Some(Process::start(birth, reading, &mut place.disk, &mut out));
        self.carry_out(region, clock, out);
    }

    /// A process of a region begins in a moment.
    pub fn start_soon(&mut self, region: usize) {
        let (least, more) = START;
        let wait = least + self.draws.below(more);
        self.schedule(self.at + wait, Happening::Start(region));
    }

    /// The process of a region ends from one moment to the next.
    pub fn end(&mut self, region: usize) {
        if let Some(place) = self.places.get_mut(region) {
            place.process = None;
            place.held_back = None;
        }
        self.net.forget(region);
        self.lose_calls(region);
    }

    fn carry_out(&mut self, region: usize, clock: Clock, out: Vec<Out>) {
        let incarnation = self
            .process(region)
            .map_or(0, |process| process.holder.incarnation);
        for out in out {
            match out {
                Out::Send(to, message) => {
                    let Some(arrival) = self.net.arrival(region, to, self.at) else {
                        continue;
                    };
                    let Some(peer) = self.process(to) else {
                        continue;
                    };
                    let incarnation = peer.holder.incarnation;
                    let event = Box::new(Event::Message(region, Box::new(message)));
                    let happening = Happening::Process(to, incarnation, event);
                    self.schedule(arrival, happening);
                }
                Out::At(boot, event) => {
                    if boot < Span::MAX {
                        let at = clock.at(boot);
                        let happening = Happening::Process(region, incarnation, Box::new(event));
                        self.schedule(at, happening);
                    }
                }
                Out::Tell(attempt, answer) => self.tried(attempt, answer),
                Out::Ended => self.end(region),
                Out::Broken(what) => {
                    let name = self.scenario.region(region);
                    let now_ms = self.now_ms();
                    self.error = Some(format!("{now_ms} ms: the log of {name}: {what}"));
                }
            }
        }
    }

    /// The region that leads in the newest term, by its own word.
    pub fn leader(&self) -> Option<usize> {
        let leads = |region: usize| {
            let place = self.places.get(region)?;
            let process = place.process.as_ref()?;
            let log = process.log.as_ref()?;
            log.leads().then(|| (place.disk.log.term(), region))
        };
        let leading = (0..self.places.len()).filter_map(leads);
        leading.max().map(|(_, region)| region)
    }
}

/// A number with a sign.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Who votes: an odd number, or two; the first by name. The others listen.
fn members(names: &[RegionName], ids: &[u64]) -> log::Members {
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|region| names.get(*region));
    let count = match order.len() {
        2 => 2,
        even if even % 2 == 0 => even.saturating_sub(1),
        odd => odd,
    };
    let mut voters: Vec<log::Voter> = order
        .into_iter()
        .filter_map(|region| Some((region, *ids.get(region)?)))
        .collect();
    let learners = voters.split_off(count);
    log::Members {
        voters: vec![voters],
        learners,
    }
}
