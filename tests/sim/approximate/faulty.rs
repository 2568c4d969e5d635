//! Regions of the product's machines with everything going wrong that can: frames that are lost, doubled, late and
//! replayed, links cut in one or both directions, crashes with a lost tail or a lost disk, pauses, clocks that are
//! off, resets. Then all heals, nobody asks for a while, and all must agree.

mod trouble;

use std::collections::BTreeMap;
use std::rc::Rc;

use highwater::domain::limit::Limit;
use highwater::domain::limit::OnPartition;
use highwater::domain::limit::Rule;
use highwater::domain::limit::Split;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::hold::HoldKey;
use highwater::ledger::hold::HoldRecord;
use highwater::ledger::hold::HoldState;
use highwater::ledger::hold::Receipt;
use highwater::simulate::agenda::Agenda;
use highwater::simulate::clock::Clock;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorId;
use highwater::usage::actor::ActorTable;
use highwater::usage::record::CounterId;
use highwater::usage::record::CounterRecord;

use super::audit::Audit;
use super::machines::limit;
use super::node::At;
use super::node::Body;
use super::node::Catalogue;
use super::node::Message;
use super::node::Node;
use super::node::Outbox;
use super::node::TENANT;
use super::node::names;
use crate::model::MS;
use crate::model::SECOND;
use crate::model::net::Net;
use crate::model::net::Weather;
use crate::model::rng::Rng;

/// From here on nothing goes wrong and nobody asks. Seven seconds into a window by [`SHORT`] when all is quiet.
pub const HEALED: u64 = 52 * SECOND;
/// By now all must agree.
pub const QUIET: u64 = HEALED + 15 * SECOND;
/// The last units were asked for by now.
pub const END: u64 = QUIET + 14 * SECOND;
/// The length of short windows.
pub const SHORT: Span = Span::from_seconds(15);
/// Units that a bucket holds, and earns in 1.1 s. Its segments are long against the time to refill.
pub const BUCKET: (u64, u64) = (32, 7);
/// Holds last so long.
const TTL: Span = Span::from_seconds(8);
/// What changed is on disk this often.
const FLUSH_EVERY: u64 = 100 * MS;

/// The limits of a run.
pub fn limits(rng: &mut Rng) -> Vec<Limit> {
    let hour = Span::from_seconds(3_600);
    let mut fixed = |name: &str, window: Span, split: Split, on_partition: OnPartition| {
        let quota = *rng.pick(&[10, 60, 300, 2_000]).expect("some");
        limit(
            name,
            Rule::FixedWindow { quota, window },
            split,
            on_partition,
        )
    };
    let share = OnPartition::Share;
    vec![
        fixed("hour", hour, Split::Adaptive, share),
        fixed("short", SHORT, Split::Adaptive, share),
        fixed("equal", hour, Split::Equal, share),
        fixed("open", hour, Split::None, OnPartition::Open),
        fixed("most", hour, Split::Adaptive, OnPartition::Majority),
        limit(
            "slide",
            Rule::SlidingWindow {
                quota: 100,
                window: SHORT,
            },
            Split::Adaptive,
            share,
        ),
        limit(
            "bucket",
            Rule::TokenBucket {
                capacity: BUCKET.0,
                refill: BUCKET.1,
                per: Span::from_ms(1_100),
            },
            Split::Adaptive,
            share,
        ),
        limit(
            "held",
            Rule::Concurrency {
                quota: 20,
                ttl: TTL,
            },
            Split::Adaptive,
            share,
        ),
    ]
}

const BUCKET_LIMIT: usize = 6;
const HELD_LIMIT: usize = 7;
const KEYS: [&str; 2] = ["a", "b"];

enum Event {
    Check(usize),
    Tick(usize, u64),
    Flush(usize, u64),
    Message {
        from: usize,
        to: usize,
        message: Message,
    },
    GiveBack {
        region: usize,
        receipt: Receipt,
        hold: u128,
    },
    Epoch {
        region: usize,
        limit: usize,
        epoch: u64,
    },
    Fault,
    Heal(usize, usize),
    Start(usize),
    Audit,
}

/// What survives a process.
#[derive(Default)]
pub struct Disk {
    pub records: BTreeMap<CounterId, CounterRecord>,
    holds: Vec<HoldRecord>,
    actors: Vec<Actor>,
}

impl Disk {
    /// The processes that ran from it, by number.
    pub fn actors(&self) -> &[Actor] {
        &self.actors
    }
}

/// One region.
pub struct Place {
    pub node: Option<Node>,
    pub disk: Disk,
    unsaved_holds: Vec<HoldRecord>,
    pub clock: Clock,
    paused_until: u64,
    epochs: Vec<u64>,
    rate: f64,
}

/// One run.
pub struct Faulty {
    pub places: Vec<Place>,
    pub audit: Audit,
    rng: Rng,
    net: Net,
    names: Rc<Vec<RegionName>>,
    catalogue: Rc<Catalogue>,
    events: Agenda<Event>,
    incarnations: u64,
    holds: u128,
    replays: Vec<(usize, usize, Message)>,
    has_refunds: bool,
}

impl Faulty {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5a5a);
        let regions = *rng.pick(&[2, 3, 3, 3, 4, 5]).expect("some");
        let mut delays = vec![vec![0; regions]; regions];
        let pairs = (0..regions).flat_map(|one| (0..one).map(move |other| (one, other)));
        for (one, other) in pairs {
            let delay = rng.between(5, 121);
            delays[one][other] = delay;
            delays[other][one] = delay;
        }
        let has_offsets = rng.chance(0.5);
        let catalogue = Catalogue::new(limits(&mut rng));
        let epochs = vec![1; catalogue.limits.len()];
        let place = |rng: &mut Rng| Place {
            node: None,
            disk: Disk::default(),
            unsaved_holds: Vec::new(),
            clock: Clock {
                boot_offset: rng.between(0, 1_000 * SECOND),
                wall_offset: if has_offsets {
                    rng.around(SECOND as i64)
                } else {
                    0
                },
                drift_ppm: rng.around(200),
            },
            paused_until: 0,
            epochs: epochs.clone(),
            rate: rng.between(2, 30) as f64,
        };
        let places = (0..regions).map(|_| place(&mut rng)).collect();
        let mut net = Net::new(delays);
        if rng.chance(0.5) {
            net.weather = Weather {
                loss: rng.unit() * 0.03,
                double: rng.unit() * 0.05,
                late: rng.unit() * 0.05,
            };
        }
        let has_refunds = rng.chance(0.5);
        let mut world = Self {
            places,
            audit: Audit::new(&catalogue, has_refunds, net.weather.loss > 0.0),
            net,
            names: names(regions),
            catalogue,
            events: Agenda::default(),
            incarnations: seed << 20,
            holds: 0,
            replays: Vec::new(),
            has_refunds,
            rng,
        };
        for region in 0..regions {
            world.start(0, region);
            let first = world.rng.between(0, 3 * SECOND);
            world.push(first, Event::Check(region));
        }
        let faults = world.rng.between(0, 12);
        for _ in 0..faults {
            let at = world.rng.between(SECOND, HEALED);
            world.push(at, Event::Fault);
        }
        for at in 1..2 * QUIET / SECOND {
            world.push(at * SECOND / 2, Event::Audit);
        }
        world
    }

    fn push(&mut self, at: u64, event: Event) {
        self.events.plan(at, event);
    }

    pub fn at(&self, region: usize, at: u64) -> At {
        let clock = self.places[region].clock;
        At {
            now: clock.region_time(at),
            boot: clock.boot(at),
        }
    }

    fn start(&mut self, at: u64, region: usize) {
        self.incarnations += 1;
        let place = &mut self.places[region];
        place.disk.actors.push(Actor {
            region: self.names[region].clone(),
            incarnation: self.incarnations,
        });
        let own = ActorId(place.disk.actors.len() as u32 - 1);
        let table = ActorTable::new(place.disk.actors.clone(), own);
        let delays = &self.net.delays[region];
        let epochs = place.epochs.clone();
        let identity = (table, own.0 + 1);
        let mut node = Node::start(
            region,
            &self.names,
            delays,
            &self.catalogue,
            identity,
            epochs,
        );
        node.gathered = Some(Vec::new());
        node.restore(place.disk.records.values().cloned());
        let concurrency = |counter: &CounterId| self.catalogue.names.get(counter.limit.as_str());
        for hold in &place.disk.holds {
            node.ledger.restore_leases(hold, concurrency);
        }
        place.node = Some(node);
        let incarnation = self.incarnations;
        let phase = self.rng.between(0, 100 * MS);
        self.push(at + phase, Event::Tick(region, incarnation));
        self.push(at + phase, Event::Flush(region, incarnation));
    }

    pub fn run(&mut self) {
        self.run_until(QUIET);
        self.audit.agreed(&self.places, QUIET);
        self.use_up();
        self.audit.used_up(&self.places, END);
    }

    fn run_until(&mut self, until: u64) {
        while let Some((at, event)) = self.events.take_before(until) {
            self.step(at, event);
        }
    }

    /// The region that an event happens in.
    const fn region_of(event: &Event) -> Option<usize> {
        match event {
            Event::Check(region)
            | Event::Tick(region, _)
            | Event::Flush(region, _)
            | Event::GiveBack { region, .. }
            | Event::Epoch { region, .. }
            | Event::Message { to: region, .. } => Some(*region),
            Event::Fault | Event::Heal(..) | Event::Start(_) | Event::Audit => None,
        }
    }

    fn step(&mut self, at: u64, event: Event) {
        if let Some(region) = Self::region_of(&event)
            && self.places[region].paused_until > at
        {
            let until = self.places[region].paused_until;
            self.push(until, event);
            return;
        }
        let mut out = Outbox::new();
        match event {
            Event::Check(region) => {
                if at < HEALED {
                    self.ask(at, region, &mut out);
                    let mean = SECOND as f64 / self.places[region].rate;
                    let next = at + self.rng.exponential(mean) as u64;
                    self.push(next, Event::Check(region));
                }
                self.send(at, region, out);
            }
            Event::Tick(region, incarnation) => {
                let clocks = self.at(region, at);
                if let Some(node) = self.living(region, incarnation) {
                    node.tick(clocks, &mut out);
                    self.push(at + 100 * MS, Event::Tick(region, incarnation));
                }
                self.send(at, region, out);
            }
            Event::Flush(region, incarnation) => {
                if self.living(region, incarnation).is_some() {
                    self.flush(at, region);
                    self.push(at + FLUSH_EVERY, Event::Flush(region, incarnation));
                }
            }
            Event::Message { from, to, message } => {
                let clocks = self.at(to, at);
                if let Some(node) = &mut self.places[to].node {
                    node.receive(clocks, from, message, &mut out);
                }
                self.send(at, to, out);
            }
            Event::GiveBack {
                region,
                receipt,
                hold,
            } => self.give_back(at, region, &receipt, hold),
            Event::Epoch {
                region,
                limit,
                epoch,
            } => {
                let place = &mut self.places[region];
                place.epochs[limit] = place.epochs[limit].max(epoch);
                if let Some(node) = &mut place.node {
                    node.epochs.clone_from(&place.epochs);
                }
            }
            Event::Fault => self.fault(at),
            Event::Heal(from, to) => self.net.cut(from, to, false),
            Event::Start(region) => self.start(at, region),
            Event::Audit => {
                if at >= HEALED {
                    self.net.heal();
                    self.net.weather = Weather::default();
                }
                self.audit.look(&self.places, at);
            }
        }
    }

    fn living(&mut self, region: usize, incarnation: u64) -> Option<&mut Node> {
        let node = self.places[region].node.as_mut();
        node.filter(|node| node.incarnation == incarnation)
    }

    fn send(&mut self, at: u64, from: usize, out: Outbox) {
        for (to, message) in out {
            if matches!(message.body, Body::Call { .. }) && self.rng.chance(0.002) {
                self.replays.push((from, to, message.clone()));
                let late = at + self.rng.between(2 * SECOND, 30 * SECOND);
                let message = message.clone();
                if late < HEALED {
                    self.audit.count("replays");
                    self.push(late, Event::Message { from, to, message });
                }
            }
            let arrivals = self.net.send(&mut self.rng, from, to, at);
            if arrivals.len() != 1 {
                self.audit.count(if arrivals.is_empty() {
                    "lost"
                } else {
                    "doubled"
                });
            }
            for arrival in arrivals {
                let message = message.clone();
                self.push(arrival, Event::Message { from, to, message });
            }
        }
    }

    fn ask(&mut self, at: u64, region: usize, out: &mut Outbox) {
        let clocks = self.at(region, at);
        let limit = self.rng.between(0, self.catalogue.limits.len() as u64) as usize;
        let key = *self.rng.pick(&KEYS).expect("some");
        let cost = if self.rng.chance(0.2) {
            self.rng.between(1, 8)
        } else {
            1
        };
        let hold = (limit == HELD_LIMIT).then(|| {
            self.holds += 1;
            (self.holds, clocks.now.plus(TTL))
        });
        let times = if self.rng.chance(0.01) { 30 } else { 1 };
        for _ in 0..if hold.is_some() { 1 } else { times } {
            self.charge(at, region, (limit, key, cost), hold, out);
        }
    }

    fn charge(
        &mut self,
        at: u64,
        region: usize,
        (limit, key, cost): (usize, &str, u64),
        hold: Option<(u128, Timestamp)>,
        out: &mut Outbox,
    ) -> bool {
        let clocks = self.at(region, at);
        let place = &mut self.places[region];
        let Some(node) = &mut place.node else {
            return false;
        };
        let outcome = node.check(clocks, (limit, key, cost), hold, out);
        self.audit
            .checked(node, clocks, (limit, key, cost), &outcome, at);
        for receipt in outcome.receipts {
            if let Some((number, expires_at)) = hold {
                self.places[region].unsaved_holds.push(HoldRecord {
                    key: HoldKey(number),
                    tenant: TENANT.to_owned(),
                    receipts: vec![receipt.clone()],
                    expires_at,
                    forget_at: expires_at,
                    state: HoldState::Open,
                    version: 1,
                });
            }
            let is_given = if hold.is_some() {
                self.rng.chance(0.5)
            } else {
                self.has_refunds && self.rng.chance(0.1)
            };
            if is_given && at < HEALED {
                let later = at + self.rng.between(0, 6 * SECOND);
                let hold = hold.map_or(0, |hold| hold.0);
                self.push(
                    later.min(HEALED - 1),
                    Event::GiveBack {
                        region,
                        receipt,
                        hold,
                    },
                );
            }
        }
        outcome.allowed
    }

    fn give_back(&mut self, at: u64, region: usize, receipt: &Receipt, hold: u128) {
        let clocks = self.at(region, at);
        let place = &mut self.places[region];
        let Some(node) = &mut place.node else {
            return;
        };
        let Some(id) = self.catalogue.names.get(receipt.counter.limit.as_str()) else {
            return;
        };
        let limit = &self.catalogue.limits[id.0 as usize];
        let moved = node
            .ledger
            .give_back(id, limit, receipt, receipt.units, hold, clocks.now);
        place.disk.holds.retain(|held| held.key.0 != hold);
        place.unsaved_holds.retain(|held| held.key.0 != hold);
        self.audit.gave_back(node, receipt, &moved);
    }

    fn flush(&mut self, at: u64, region: usize) {
        let now = self.at(region, at).now;
        let place = &mut self.places[region];
        let Some(node) = &mut place.node else {
            return;
        };
        let mut records = Vec::new();
        let name_of = |id: highwater::catalogue::intern::LimitId| {
            self.catalogue.names.names().get(id.0 as usize).cloned()
        };
        for shard in 0..node.ledger.shards() {
            node.ledger.drain(shard, name_of, &mut records);
        }
        for record in records {
            match place.disk.records.get_mut(&record.id) {
                Some(known) => known.merge(record),
                None => {
                    place.disk.records.insert(record.id.clone(), record);
                }
            }
        }
        place.disk.holds.append(&mut place.unsaved_holds);
        place.disk.holds.retain(|hold| hold.expires_at > now);
        node.ledger.sweep(now, 2_048);
    }
}
