//! A region that has nothing but the rule of sharing: its own use, what it heard of the others', rounds and
//! their acknowledgements.

use highwater::domain::time::Span;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::mesh::Peer;
use highwater::ledger::sharing::Gossip;
use highwater::ledger::sharing::Position;
use highwater::ledger::sharing::Shared;
use highwater::ledger::sharing::Sharing;
use highwater::usage::actor::Site;

use super::LEAD;
use super::Outbox;
use super::Region;
use super::Setup;
use crate::model::MS;
use crate::model::SECOND;

/// A region's state of the counter, as it travels.
#[derive(Clone, Debug)]
pub struct Entry {
    window: u64,
    own: u64,
    gossip: Gossip,
    is_near: bool,
    /// What the sender knows of all regions' use, when the counter is near its limit.
    all: Vec<u64>,
}

/// What regions send each other.
#[derive(Clone, Debug)]
pub enum Message {
    Frame { round: u64, entry: Option<Entry> },
    Reply { round: u64, entry: Option<Entry> },
}

/// A region with the rule of sharing alone.
pub struct Model {
    setup: Setup,
    own: usize,
    sharing: Sharing,
    mesh: Mesh,
    /// Use by region, as far as known, in `window`.
    used: Vec<u64>,
    window: u64,
    round: u64,
    /// The last round that had the counter in it.
    gathered_round: u64,
    gathered_at: u64,
    is_dirty: bool,
    /// Peers that were away: the round that they must have merged to be back.
    behind: Vec<Option<u64>>,
    pushed_at: Option<u64>,
}

impl Model {
    /// Regions are numbered from the own one on.
    fn site(&self, region: usize) -> Site {
        let regions = self.setup.regions;
        Site(((region + regions - self.own) % regions) as u8)
    }

    /// The place of a region in `mesh.peers`.
    fn place(&self, region: usize) -> usize {
        if region < self.own {
            region
        } else {
            region - 1
        }
    }

    fn enter(&mut self, now: u64) {
        let window = now / self.setup.window;
        if window > self.window {
            self.window = window;
            self.used.fill(0);
            self.sharing.enter();
        }
    }

    fn look_around(&mut self, now: u64) {
        for (place, peer) in self.mesh.peers.iter_mut().enumerate() {
            let is_heard = now.saturating_sub(peer.heard.as_nanos()) < SECOND;
            if !is_heard {
                self.behind[place] = Some(u64::MAX);
            }
            peer.is_in_touch = is_heard;
            peer.is_reachable = is_heard && self.behind[place].is_none();
        }
    }

    fn entry(&mut self, now: u64) -> Entry {
        let is_near = self.sharing.is_near(self.used[self.own]);
        Entry {
            window: self.window,
            own: self.used[self.own],
            gossip: self.sharing.gossip(Span::from_nanos(now)),
            is_near,
            all: if is_near {
                self.used.clone()
            } else {
                Vec::new()
            },
        }
    }

    fn send_round(&mut self, now: u64, is_due: bool, out: &mut Outbox<Message>) {
        self.round += 1;
        let before = self.gathered_round;
        if is_due {
            self.gathered_round = self.round;
            self.gathered_at = now;
            self.is_dirty = false;
            self.sharing.gathered(self.round, self.used[self.own]);
        }
        let is_old = now.saturating_sub(self.gathered_at) > SECOND / 2;
        let entry = self.entry(now);
        for region in (0..self.setup.regions).filter(|region| *region != self.own) {
            let place = self.place(region);
            let lacks = is_old && self.mesh.peers[place].acked_round < before;
            out.push((
                region,
                Message::Frame {
                    round: self.round,
                    entry: (is_due || lacks || self.behind[place].is_some()).then(|| entry.clone()),
                },
            ));
        }
    }

    fn merge(&mut self, now: u64, from: usize, entry: &Entry) {
        self.enter(now.max(entry.window * self.setup.window));
        if entry.window == self.window {
            self.look_around(now);
            let at = position(&self.setup, &self.mesh, &self.used, self.own, now);
            self.sharing.reserve(&at);
            for (region, used) in entry.all.iter().enumerate() {
                if region != self.own {
                    self.used[region] = self.used[region].max(*used);
                }
            }
            self.used[from] = self.used[from].max(entry.own);
        }
        let site = self.site(from);
        self.sharing.hear(Span::from_nanos(now), site, entry.gossip);
    }
}

fn position<'a>(setup: &Setup, mesh: &'a Mesh, used: &[u64], own: usize, now: u64) -> Position<'a> {
    Position {
        boot: Span::from_nanos(now),
        mesh,
        own: used[own],
        remaining: setup.quota.saturating_sub(used.iter().sum()),
        quota: setup.quota,
        split: setup.split,
        on_partition: setup.on_partition,
        bucket: None,
    }
}

impl Region for Model {
    type Message = Message;

    fn new(setup: &Setup, own: usize, delays: &[u64]) -> Self {
        let mut model = Self {
            setup: *setup,
            own,
            sharing: Sharing::new(Span::ZERO),
            mesh: Mesh::default(),
            used: vec![0; setup.regions],
            window: 0,
            round: 0,
            gathered_round: 0,
            gathered_at: 0,
            is_dirty: false,
            behind: vec![None; setup.regions - 1],
            pushed_at: None,
        };
        model.mesh = Mesh {
            peers: (0..setup.regions)
                .filter(|region| *region != own)
                .map(|region| Peer {
                    site: model.site(region),
                    heard: Span::from_nanos(setup.begin().saturating_sub(LEAD)),
                    is_in_touch: true,
                    is_reachable: true,
                    acked_round: 0,
                    latency: Span::from_ms(delays[region]),
                })
                .collect(),
            regions: setup.regions as u8,
            order: own as u8,
        };
        model
    }

    fn check(&mut self, now: u64, units: u64, out: &mut Outbox<Message>) -> bool {
        self.enter(now);
        self.look_around(now);
        let boot = Span::from_nanos(now);
        self.sharing.attempt(boot, units);
        let mut at = position(&self.setup, &self.mesh, &self.used, self.own, now);
        // Demand is told as long as it may get something.
        if at.remaining >= units {
            self.is_dirty = true;
        }
        let passed = self.sharing.judge(&at, units) == Shared::Granted;
        if passed {
            // No region passes the quota by what it knows.
            assert!(units <= at.remaining);
            at.own += units;
            at.remaining -= units;
        }
        let wants_push = self.sharing.wants_push(&at);
        self.used[self.own] = at.own;
        if wants_push {
            if let Some(before) = self.pushed_at.replace(now) {
                assert!(now - before >= 20 * MS);
            }
            self.send_round(now, true, out);
        }
        passed
    }

    fn tick(&mut self, now: u64, out: &mut Outbox<Message>) {
        self.enter(now);
        self.look_around(now);
        self.send_round(now, self.is_dirty, out);
    }

    fn receive(&mut self, now: u64, from: usize, message: Message, out: &mut Outbox<Message>) {
        let place = self.place(from);
        self.mesh.peers[place].heard = Span::from_nanos(now);
        match message {
            Message::Frame { round, entry } => {
                let mut own = None;
                if let Some(entry) = entry {
                    self.merge(now, from, &entry);
                    if entry.is_near && entry.all[self.own] < self.used[self.own] {
                        own = Some(self.entry(now));
                    }
                    match self.behind[place] {
                        Some(u64::MAX) => self.behind[place] = Some(self.round),
                        Some(round) if self.mesh.peers[place].acked_round >= round => {
                            self.behind[place] = None;
                        }
                        _ => {}
                    }
                    out.push((from, Message::Reply { round, entry: own }));
                }
            }
            Message::Reply { round, entry } => {
                if let Some(entry) = entry {
                    self.merge(now, from, &entry);
                }
                let peer = &mut self.mesh.peers[place];
                peer.acked_round = peer.acked_round.max(round);
            }
        }
    }

    /// There are no processes here: what is told by it counts on.
    fn begin_again(&mut self, _: &Setup) {}

    fn entries(message: &Message) -> u64 {
        match message {
            Message::Frame { entry: Some(_), .. } => 1,
            _ => 0,
        }
    }
}
