//! Approximate limits, simulated: one counter that several regions use, in virtual time.
//!
//! `World` is traffic, network and audit; what a region does is behind [`Region`]. Files: `sharing` (a region
//! that has nothing but the rule of sharing and a view of the others' use), `machines` (a region made of the product's
//! machines, which are put together in `node`), `table` (sums over many runs), `faulty` (the machines with everything going
//! wrong), `audit` (what must be true then).

pub mod audit;
pub mod faulty;
pub mod machines;
pub mod node;
mod parts;
pub mod sharing;
pub mod table;

use highwater::domain::limit::OnPartition;
use highwater::domain::limit::Rule;
use highwater::domain::limit::Split;
use highwater::domain::time::Span;
use highwater::simulate::agenda::Agenda;

use crate::model::MS;
use crate::model::SECOND;
use crate::model::net::Net;
use crate::model::rng::Rng;
use crate::model::traffic::Source;
use crate::model::traffic::Traffic;

/// Regions have so long to meet before the first check.
pub const LEAD: u64 = 3 * SECOND;

/// A partition: regions below `first` are cut off from the others.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub first: usize,
    pub from: u64,
    pub until: u64,
}

/// A crash: a region's process ends without its disk, and another one begins later.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    pub region: usize,
    pub from: u64,
    pub until: u64,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub regions: usize,
    pub quota: u64,
    pub window: u64,
    pub windows: u64,
    /// Demand as a multiple of the quota.
    pub load: f64,
    pub traffic: Traffic,
    /// Units of a call.
    pub cost: u64,
    /// Calls are of one unit to `cost`, all alike often.
    pub has_mixed_costs: bool,
    pub split: Split,
    pub on_partition: OnPartition,
    pub cut: Option<Cut>,
    pub crash: Option<Crash>,
    /// The limit is a bucket that earns the quota in a window and holds so many units.
    pub capacity: Option<u64>,
}

impl Setup {
    pub fn new(seed: u64, regions: usize, quota: u64, load: f64, traffic: Traffic) -> Self {
        Self {
            seed,
            regions,
            quota,
            window: 60 * SECOND,
            windows: 2,
            load,
            traffic,
            cost: 1,
            has_mixed_costs: false,
            split: Split::Adaptive,
            on_partition: OnPartition::Share,
            cut: None,
            crash: None,
            capacity: None,
        }
    }
}

impl Setup {
    pub const fn rule(&self) -> Rule {
        let (quota, window) = (self.quota, Span::from_nanos(self.window));
        match self.capacity {
            Some(capacity) => Rule::TokenBucket {
                capacity,
                refill: quota,
                per: window,
            },
            None => Rule::FixedWindow { quota, window },
        }
    }

    /// How full a common bucket is at `at` that stood at some level at another time.
    fn level(&self, (level, since): (f64, u64), at: u64) -> f64 {
        let earned = self.quota as f64 * (at - since) as f64 / self.window as f64;
        (level + earned).min(self.capacity.unwrap_or(0) as f64)
    }

    /// Units of a call, on average.
    fn mean_cost(&self) -> f64 {
        if self.has_mixed_costs {
            (1 + self.cost) as f64 / 2.0
        } else {
            self.cost as f64
        }
    }

    /// When checks begin: a window's start, late enough for regions to have met.
    pub const fn begin(&self) -> u64 {
        self.window
    }

    pub const fn end(&self) -> u64 {
        self.begin() + self.window * self.windows
    }
}

/// What a region wants sent: to whom, and what.
pub type Outbox<M> = Vec<(usize, M)>;

/// One region under test. Times are nanoseconds since the beginning.
pub trait Region {
    type Message: Clone;

    /// A region that sees the others at these one-way delays in ms.
    fn new(setup: &Setup, own: usize, delays: &[u64]) -> Self;
    /// A check; whether it passed.
    fn check(&mut self, now: u64, units: u64, out: &mut Outbox<Self::Message>) -> bool;
    /// Every 100 ms.
    fn tick(&mut self, now: u64, out: &mut Outbox<Self::Message>);
    fn receive(
        &mut self,
        now: u64,
        from: usize,
        message: Self::Message,
        out: &mut Outbox<Self::Message>,
    );
    /// The process ends; another one begins that knows nothing.
    fn begin_again(&mut self, setup: &Setup);
    /// Counters in a message, answers apart.
    fn entries(message: &Self::Message) -> u64;
}

/// What happened in one window, all regions together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub asked: u64,
    pub granted: u64,
    pub checks: u64,
    pub grants: u64,
    /// Checks refused while the quota was not used up.
    pub refused_early: u64,
}

impl Tally {
    pub fn over(&self, quota: u64) -> u64 {
        self.granted.saturating_sub(quota)
    }

    pub fn under(&self, quota: u64) -> u64 {
        self.asked.min(quota).saturating_sub(self.granted)
    }
}

enum Event<M> {
    Check(usize),
    Tick(usize),
    Message { from: usize, to: usize, message: M },
    Cut,
    Heal,
    Crash(usize),
    Begin(usize),
}

/// Regions, traffic, network and audit of one run.
pub struct World<R: Region> {
    pub setup: Setup,
    pub regions: Vec<R>,
    pub windows: Vec<Tally>,
    pub entries: u64,
    /// A common bucket, in units: its level and when, and how far it was in debt at most.
    bucket: (f64, u64),
    pub debt: f64,
    /// The same if it alone decided, and what it gave.
    ideal: (f64, u64),
    pub ideal_granted: u64,
    rng: Rng,
    net: Net,
    sources: Vec<Source>,
    is_down: Vec<bool>,
    /// How long the traffic goes on already when the run begins.
    lead: u64,
    events: Agenda<Event<R::Message>>,
    out: Outbox<R::Message>,
}

impl<R: Region> World<R> {
    pub fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(setup.seed.wrapping_mul(0x9e37_79b9) ^ setup.quota);
        let regions = setup.regions;
        let mut delays = vec![vec![0; regions]; regions];
        let pairs = (0..regions).flat_map(|one| (0..one).map(move |other| (one, other)));
        for (one, other) in pairs {
            let delay = rng.between(20, 121);
            delays[one][other] = delay;
            delays[other][one] = delay;
        }
        let rate = setup.load * setup.quota as f64 / setup.window as f64 / setup.mean_cost();
        let mut world = Self {
            setup,
            regions: (0..regions)
                .map(|own| R::new(&setup, own, &delays[own]))
                .collect(),
            windows: vec![Tally::default(); setup.windows as usize],
            entries: 0,
            bucket: (setup.capacity.unwrap_or(0) as f64, setup.begin()),
            debt: 0.0,
            ideal: (setup.capacity.unwrap_or(0) as f64, setup.begin()),
            ideal_granted: 0,
            rng,
            net: Net::new(delays),
            sources: (0..regions)
                .map(|region| Source::new(setup.traffic, region, regions, rate, setup.window))
                .collect(),
            is_down: vec![false; regions],
            lead: 0,
            events: Agenda::default(),
            out: Vec::new(),
        };
        world.lead = world.rng.between(2, 10) * setup.window;
        for region in 0..regions {
            let phase = world.rng.between(0, 100 * MS);
            let first = setup.begin().saturating_sub(LEAD);
            world.push(first + phase, Event::Tick(region));
            world.next_check(region, setup.begin());
        }
        if let Some(cut) = setup.cut {
            world.push(setup.begin() + cut.from, Event::Cut);
            world.push(setup.begin() + cut.until, Event::Heal);
        }
        if let Some(crash) = setup.crash {
            world.push(setup.begin() + crash.from, Event::Crash(crash.region));
            world.push(setup.begin() + crash.until, Event::Begin(crash.region));
        }
        world
    }

    fn push(&mut self, at: u64, event: Event<R::Message>) {
        self.events.plan(at, event);
    }

    fn next_check(&mut self, region: usize, at: u64) {
        // The traffic knows nothing of the time that regions had to meet.
        let shift = self.lead - self.setup.begin();
        let at = self.sources[region].next(&mut self.rng, shift + at) - shift;
        if at < self.setup.end() {
            self.push(at, Event::Check(region));
        }
    }

    pub fn run(&mut self) {
        let end = self.setup.end();
        while let Some((at, event)) = self.events.take_before(end) {
            let mut out = std::mem::take(&mut self.out);
            let mut sender = None;
            match event {
                Event::Check(region) if self.is_down[region] => self.next_check(region, at),
                Event::Check(region) => {
                    let cost = if self.setup.has_mixed_costs {
                        self.rng.between(1, self.setup.cost + 1)
                    } else {
                        self.setup.cost
                    };
                    let passed = self.regions[region].check(at, cost, &mut out);
                    self.note(at, cost, passed);
                    self.next_check(region, at);
                    sender = Some(region);
                }
                Event::Tick(region) if self.is_down[region] => {
                    self.push(at + 100 * MS, Event::Tick(region));
                }
                Event::Tick(region) => {
                    self.regions[region].tick(at, &mut out);
                    self.push(at + 100 * MS, Event::Tick(region));
                    sender = Some(region);
                }
                Event::Message { to, .. } if self.is_down[to] => {}
                Event::Message { from, to, message } => {
                    self.regions[to].receive(at, from, message, &mut out);
                    sender = Some(to);
                }
                Event::Cut => self.set_cut(true),
                Event::Heal => self.set_cut(false),
                Event::Crash(region) => self.is_down[region] = true,
                Event::Begin(region) => {
                    self.is_down[region] = false;
                    self.regions[region].begin_again(&self.setup);
                }
            }
            for (to, message) in out.drain(..) {
                let from = sender.unwrap_or(to);
                self.entries += R::entries(&message);
                for arrival in self.net.send(&mut self.rng, from, to, at) {
                    let message = message.clone();
                    self.push(arrival, Event::Message { from, to, message });
                }
            }
            self.out = out;
        }
    }

    fn set_cut(&mut self, is_cut: bool) {
        let first = self.setup.cut.map_or(0, |cut| cut.first);
        for from in 0..self.setup.regions {
            for to in 0..self.setup.regions {
                if (from < first) != (to < first) {
                    self.net.cut(from, to, is_cut);
                }
            }
        }
    }

    fn note(&mut self, at: u64, cost: u64, passed: bool) {
        let quota = self.setup.quota;
        let ideal = self.setup.level(self.ideal, at);
        if ideal >= cost as f64 {
            self.ideal = (ideal - cost as f64, at);
            self.ideal_granted += cost;
        }
        let tally = &mut self.windows[((at - self.setup.begin()) / self.setup.window) as usize];
        tally.checks += 1;
        tally.asked += cost;
        if passed {
            tally.granted += cost;
            tally.grants += 1;
            self.bucket = (self.setup.level(self.bucket, at) - cost as f64, at);
            self.debt = self.debt.max(-self.bucket.0);
        } else if tally.granted + cost <= quota {
            tally.refused_early += 1;
        }
    }
}
