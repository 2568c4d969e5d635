//! Regions with the real machines of `highwater::grants` over a model of the Raft group, in virtual time.
//!
//! `World` owns everything and takes one event after another. Files: `region` (a process and what it holds),
//! `checks`, `keyed`, `leading` (a leader region), `group` (the log: what commits when, who leads), `replica` (what the log
//! drives), `net`, `traffic`, `faults`, `audit`.

pub mod audit;
pub mod bucket;
pub mod checks;
pub mod faults;
pub mod group;
pub mod keyed;
pub mod leading;
pub mod net;
pub mod region;
pub mod replica;
pub mod rng;
pub mod traffic;

use std::collections::BTreeMap;

use highwater::algorithm::bucket::Flow;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::account::PoolStanding;
use highwater::grants::account::Quota;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::grants::reservation::Verdict;
use highwater::simulate::agenda::Agenda;
use highwater::simulate::clock::Clock;
use highwater::simulate::clock::EPOCH_NANOS;

use self::audit::Audit;
use self::bucket::Happens;
use self::faults::Fault;
use self::faults::Faults;
use self::group::Group;
use self::leading::Leading;
use self::net::Net;
use self::region::Region;
use self::replica::Catalogue;
use self::replica::Refund;
use self::rng::Rng;
use self::traffic::Source;
use self::traffic::Traffic;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// One-way delays in ms of five regions: from the first, the second nearest is 80 ms there and back.
const DELAYS: [[u64; 5]; 5] = [
    [0, 20, 40, 70, 110],
    [20, 0, 45, 60, 100],
    [40, 45, 0, 90, 120],
    [70, 60, 90, 0, 80],
    [110, 100, 120, 80, 0],
];

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub regions: usize,
    /// Counters with windows.
    pub counters: usize,
    /// Counters that are buckets come after them.
    pub buckets: Vec<Flow>,
    pub quota: u64,
    pub window: u64,
    /// Windows with traffic.
    pub windows: u64,
    /// Demand as a multiple of the quota.
    pub load: f64,
    pub traffic: Traffic,
    pub cost_max: u64,
    pub keyed: f64,
    pub refunds: f64,
    /// Checks of two counters at once.
    pub pairs: f64,
    pub faults: Faults,
}

impl Setup {
    pub fn new(seed: u64, quota: u64, load: f64, traffic: Traffic) -> Self {
        Self {
            seed,
            regions: 5,
            counters: 1,
            buckets: Vec::new(),
            quota,
            window: 60 * SECOND,
            windows: 2,
            load,
            traffic,
            cost_max: 1,
            keyed: 0.0,
            refunds: 0.0,
            pairs: 0.0,
            faults: Faults::default(),
        }
    }
}

impl Setup {
    pub fn all_counters(&self) -> usize {
        self.counters + self.buckets.len()
    }

    /// The same with some buckets that earn about as much as a window has.
    pub fn with_buckets(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0xb0c4e7);
        for _ in 0..rng.between(1, 3) {
            let part = [1, 2, 5, 10][rng.between(0, 4) as usize];
            self.buckets.push(Flow {
                capacity: self.quota.div_ceil(part),
                rate: self.quota,
                per: Span::from_nanos(self.window),
            });
        }
        self.faults.stretch = rng.between(0, 3);
        self
    }
}

impl Setup {
    /// The same with more kinds of faults.
    pub fn with_more_faults(mut self) -> Self {
        let mut rng = Rng::new(self.seed ^ 0xfa17);
        self.faults = self.faults.with_more(&mut rng);
        self
    }
}

/// A run with faults, as small or large as the seed says.
pub fn faulty(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let traffic = [
        Traffic::Balanced,
        Traffic::Skew,
        Traffic::Bursty,
        Traffic::Moving,
        Traffic::Flash,
    ];
    let traffic = traffic[rng.between(0, 5) as usize];
    let window = rng.between(4, 31) * SECOND;
    let quota = [5, 40, 300, 1_500][rng.between(0, 4) as usize];
    let load = [0.5, 0.9, 2.0, 5.0][rng.between(0, 4) as usize];
    // No more than some 80 units a second, for the simulation's sake.
    let load = f64::min(load, 80.0 * (window / SECOND) as f64 / quota as f64);
    let mut setup = Setup::new(seed, quota, load, traffic);
    setup.regions = [1, 3, 5, 5][rng.between(0, 4) as usize];
    setup.counters = rng.between(1, 3) as usize;
    setup.window = window;
    setup.windows = 40 * SECOND / window + 1;
    setup.cost_max = rng.between(1, 5);
    setup.keyed = [0.0, 0.05][rng.between(0, 2) as usize];
    setup.refunds = [0.0, 0.05][rng.between(0, 2) as usize];
    setup.pairs = 0.2;
    setup.faults = Faults::all(&mut rng);
    setup
}

/// The same with many small limits that are asked for much more than they have: most windows are used up, unless
/// units die with a process.
pub fn filling(seed: u64) -> Setup {
    let mut setup = faulty(seed).with_more_faults();
    let mut rng = Rng::new(seed ^ 0xf111);
    setup.quota = [1, 3, 10, 20][rng.between(0, 4) as usize];
    setup.counters = rng.between(4, 13) as usize;
    setup.window = rng.between(4, 9) * SECOND;
    setup.windows = 48 * SECOND / setup.window + 1;
    setup.load = rng.between(2, 5) as f64;
    setup.cost_max = rng.between(1, setup.quota.min(4) + 1);
    setup
}

/// A run of one of the kinds with all faults: few large limits, with buckets too, or many small ones.
pub fn disturbed(seed: u64) -> Setup {
    match seed % 4 {
        0 => faulty(seed).with_more_faults().with_buckets(),
        1 => faulty(seed).with_more_faults(),
        _ => filling(seed),
    }
}

/// What travels between regions.
#[derive(Clone, Debug)]
pub enum Message {
    ToLeader(ToLeader),
    ToRegion(Holder, ToRegion),
    Enroll(Holder),
    Enrolled(Holder),
    /// Who leads, and the catalogue there.
    Beat {
        term: u64,
        leader: usize,
        catalogue: Catalogue,
    },
    Keyed(leading::Keyed),
    KeyedAnswer {
        holder: Holder,
        key: u64,
        is_charged: bool,
    },
    Refund(Refund),
}

#[derive(Clone, Debug)]
pub enum Event {
    Arrive(usize),
    /// All that a bucket has is asked for.
    Empty(usize),
    Deliver {
        from: usize,
        to: usize,
        message: Box<Message>,
    },
    TickRegion {
        holder: Holder,
        account: Box<Account>,
    },
    Woken {
        holder: Holder,
        check: u64,
        account: Box<Account>,
        verdict: Verdict,
        /// When it was given.
        given: u64,
    },
    GiveUp {
        holder: Holder,
        check: u64,
    },
    Pulse(Holder),
    TickLeader(u64),
    Beat(u64),
    Commit,
    Elect(u64),
    StepDown(u64),
    Fault(Fault),
}

/// The simulation.
pub struct World {
    pub setup: Setup,
    pub at: u64,
    pub rng: Rng,
    pub net: Net,
    pub regions: Vec<Region>,
    pub group: Group,
    /// Regions that lead or think so, by serial number.
    pub leadings: BTreeMap<u64, Leading>,
    pub audit: Audit,
    events: Agenda<Event>,
    pub serials: u64,
    /// Traffic begins and ends.
    pub begins: u64,
    pub ends: u64,
}

pub fn name(region: usize) -> RegionName {
    RegionName::new(&format!("r{region}")).expect("a name")
}

pub fn index(region: &RegionName) -> usize {
    region.as_str()[1..].parse().expect("a number")
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(setup.seed);
        let delays = (0..setup.regions)
            .map(|from| DELAYS[from][..setup.regions].to_vec())
            .collect();
        let begins = setup.window;
        let ends = begins + setup.windows * setup.window;
        let total = setup.load * (setup.quota * setup.all_counters() as u64) as f64;
        let rate = total / setup.window as f64 / ((1 + setup.cost_max) as f64 / 2.0);
        let regions = (0..setup.regions)
            .map(|region| {
                let clock = setup.faults.clock(&mut rng);
                let source = Source::new(setup.traffic, region, setup.regions, rate, setup.window);
                Region::new(region, clock, source)
            })
            .collect();
        let windows = (0..setup.counters).map(|_| Quota::Window(setup.quota));
        let buckets = setup.buckets.iter().map(|flow| Quota::Bucket(*flow));
        let quotas: Vec<Quota> = windows.chain(buckets).collect();
        let group = Group::new(&quotas, Span::from_nanos(setup.window));
        let mut world = Self {
            net: Net::new(delays),
            rng,
            regions,
            group,
            leadings: BTreeMap::new(),
            audit: Audit::default(),
            events: Agenda::default(),
            serials: 0,
            // Regions start a moment before the first window with traffic.
            at: begins - 4 * SECOND,
            begins,
            ends,
            setup,
        };
        for counter in 0..world.setup.counters {
            let account = world.group.truth.catalogue.account(counter);
            let log = Timestamp::from_nanos(i64::MIN);
            world.audit.in_force(log, &account, world.setup.quota);
        }
        for (flow, counter) in world.setup.buckets.iter().zip(world.setup.counters..) {
            let bucket = world.audit.buckets.entry(counter).or_default();
            bucket.amounts(0, *flow);
            bucket.happens(0, Happens::Settled);
        }
        for region in 0..world.setup.regions {
            world.start(region);
            let first = world.regions[region].source.next(&mut world.rng, begins);
            if first < ends {
                world.schedule(first, Event::Arrive(region));
            }
        }
        if !world.setup.faults.is_calm() {
            for counter in world.setup.counters..world.setup.all_counters() {
                world.schedule(ends + 3 * SECOND, Event::Empty(counter));
            }
        }
        world.elect(0);
        world.plan_faults();
        world
    }

    pub fn schedule(&mut self, at: u64, event: Event) {
        if at >= u64::MAX / 8 {
            return;
        }
        self.events.plan(at.max(self.at), event);
    }

    /// Runs until shortly after traffic ended.
    pub fn run(&mut self) {
        let until = self.ends + self.setup.faults.aftermath();
        while let Some((at, event)) = self.events.take_before(until + 1) {
            self.at = at;
            self.take(event);
        }
        self.finish();
    }

    fn take(&mut self, event: Event) {
        // A paused region does nothing until it goes on; then everything comes at once, in order.
        let place = match &event {
            Event::Arrive(region) => Some(*region),
            Event::Deliver { to, .. } => Some(*to),
            Event::TickRegion { holder, .. }
            | Event::Woken { holder, .. }
            | Event::GiveUp { holder, .. }
            | Event::Pulse(holder) => Some(index(&holder.region)),
            Event::TickLeader(serial) | Event::Beat(serial) | Event::StepDown(serial) => {
                self.leadings.get(serial).map(|leading| leading.region)
            }
            Event::Commit | Event::Empty(_) | Event::Elect(_) | Event::Fault(_) => None,
        };
        if let Some(place) = place {
            let paused_until = self.regions[place].paused_until;
            if paused_until > self.at {
                self.schedule(paused_until, event);
                return;
            }
        }
        match event {
            Event::Arrive(region) => self.arrive(region),
            Event::Empty(counter) => self.empty(counter),
            Event::Deliver { from, to, message } => self.deliver(from, to, *message),
            Event::TickRegion { holder, account } => self.tick_region(&holder, &account),
            Event::Woken {
                holder,
                check,
                account,
                verdict,
                given,
            } => self.woken(&holder, check, &account, verdict, given),
            Event::GiveUp { holder, check } => self.give_up(&holder, check),
            Event::Pulse(holder) => self.pulse(&holder),
            Event::TickLeader(serial) => self.tick_leader(serial),
            Event::Beat(serial) => self.beat(serial),
            Event::Commit => self.commit_due(),
            Event::Elect(loss) => self.elect_after(loss),
            Event::StepDown(serial) => self.step_down(serial),
            Event::Fault(fault) => self.fault(fault),
        }
    }

    pub fn send(&mut self, from: usize, to: usize, message: &Message) {
        for at in self.net.send(&mut self.rng, from, to, self.at) {
            let message = Box::new(message.clone());
            self.schedule(at, Event::Deliver { from, to, message });
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        match message {
            Message::ToLeader(message) => {
                let message = through_the_wire(&message);
                self.leader_hears(to, from, &message);
            }
            Message::ToRegion(holder, message) => {
                let message = through_the_wire(&message);
                self.region_hears(&holder, &message);
            }
            Message::Enroll(holder) => self.enroll(to, &holder),
            Message::Enrolled(holder) => self.enrolled(&holder),
            Message::Beat {
                term,
                leader,
                catalogue,
            } => self.hear_beat(to, term, leader, catalogue),
            Message::Keyed(keyed) => self.keyed_at_leader(to, &keyed),
            Message::KeyedAnswer {
                holder,
                key,
                is_charged,
            } => self.keyed_answered(&holder, key, is_charged),
            Message::Refund(refund) => self.refund_at_leader(to, refund),
        }
    }

    pub fn clock(&self, region: usize) -> Clock {
        self.regions[region].clock
    }

    /// Log time as it is now by the clock of a term.
    pub fn log_time_of(&self, term: u64) -> Timestamp {
        let (region, clock) = &self.group.clocks[&term];
        let reading = self.clock(*region).reading(self.at);
        let leading = self.leadings.values().find(|leading| leading.term == term);
        match leading {
            Some(leading) => leading.clock.clone().read(reading),
            None => clock.clone().read(reading),
        }
    }

    fn finish(&mut self) {
        for (counter, bucket) in &self.audit.buckets {
            bucket.assert_within(*counter);
        }
        self.assert_everybody_was_answered();
        self.assert_all_can_be_had();
        self.assert_all_is_well_again();
    }

    /// Some seconds after the last fault a bucket gives all that it has, wherever that lies.
    fn assert_all_can_be_had(&self) {
        if self.setup.faults.is_calm() {
            return;
        }
        for counter in self.audit.buckets.keys() {
            assert!(
                self.audit.emptied.contains(counter),
                "S9: what is in bucket {counter} cannot be had: {:?}",
                self.bucket_of(*counter)
            );
        }
    }

    /// Some seconds after the last fault there is a leader, and everybody knows it and the catalogue.
    fn assert_all_is_well_again(&self) {
        let leading = self
            .group
            .leader
            .and_then(|leader| self.leadings.get(&leader));
        let leads = leading.is_some_and(|leading| leading.leader.is_some());
        assert!(leads, "nobody leads");
        let version = self.group.truth.catalogue.version;
        for process in self
            .regions
            .iter()
            .filter_map(|region| region.process.as_ref())
        {
            let known = process.catalogue.as_ref().map(|known| known.version);
            let holder = &process.holder;
            assert_eq!(known, Some(version), "{holder:?} has an old catalogue");
            let term = process.leader.map(|(term, _)| term);
            assert_eq!(term, Some(self.group.term), "{holder:?} asks an old leader");
            assert!(
                self.group.truth.book.is_newest(holder),
                "{holder:?} is not enrolled"
            );
        }
    }

    /// A bucket as the book has it: how it stands, and its amounts; `None` for the former when nobody uses it.
    pub fn bucket_of(&self, counter: usize) -> (Option<PoolStanding>, Flow) {
        let truth = &self.group.truth;
        let log = self.log_time_of(self.group.term);
        let account = truth.catalogue.account(counter);
        let window = truth.book.windows(&account).next();
        let standing =
            window.and_then(|window| truth.book.standing_at(log, &account, window.id, None));
        let quota = truth.catalogue.counters[counter].quota;
        (standing, *quota.flow().expect("a bucket"))
    }

    /// Units that were wanted and not used, over all windows with traffic.
    pub fn undershoot(&self) -> u64 {
        let length = self.setup.window;
        let mut missed = 0;
        for turn in 0..self.setup.windows {
            let start = EPOCH_NANOS + (self.begins + turn * length) as i64;
            for counter in 0..self.setup.counters {
                let account = self.group.truth.catalogue.account(counter);
                let unused = self.audit.unused(&account, WindowId(start));
                let wanted = self.audit.wanted.get(&turn).copied().unwrap_or(0);
                let most = self.setup.quota.saturating_sub(wanted);
                missed += unused.saturating_sub(most);
            }
        }
        missed
    }
}

/// What a message is after it was encoded and decoded.
fn through_the_wire<T: serde::Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
    let bytes = postcard::to_allocvec(message).expect("it encodes");
    postcard::from_bytes(&bytes).expect("it decodes")
}
