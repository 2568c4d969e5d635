//! What goes wrong, when.

use highwater::algorithm::bucket::Flow;
use highwater::domain::time::Span;
use highwater::grants::account::Quota;
use highwater::simulate::clock::Clock;

use super::Event;
use super::MS;
use super::SECOND;
use super::World;
use super::group::FSYNC;
use super::net::Weather;
use super::replica::Entry;
use super::rng::Rng;

/// How much goes wrong in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    pub weather: bool,
    pub crashes: u64,
    pub leader_losses: u64,
    /// Lost leaders go on talking.
    pub deposed_talk: bool,
    pub partitions: u64,
    pub pauses: u64,
    /// Offsets of wall clocks up to 200 ms, drift up to 100 ppm.
    pub clocks: bool,
    pub quotas: u64,
    pub resets: u64,
    /// Of some entries nobody knows whether they were appended.
    pub appends_fail: bool,
    /// How much longer than usual crashes, cuts and pauses last: buckets have leases of 10 s.
    pub stretch: u64,
    /// One leader loss at this time after the start of traffic, in ms.
    pub loss_at_ms: Option<u64>,
    /// More that the runs of older seeds do not have.
    pub more: More,
}

/// See [`Faults::more`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct More {
    /// The lead is handed over.
    pub transfers: u64,
    /// A wall clock steps by up to 2 s.
    pub steps: u64,
    /// A link takes up to ten times as long, in one direction.
    pub slow_links: u64,
    /// Disks take up to 300 ms for an entry.
    pub slow_disks: u64,
    /// A region's disk takes nothing.
    pub full_disks: u64,
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    Crash(usize),
    Start(usize),
    LoseLeader,
    Cut(Vec<(usize, usize)>),
    Heal,
    Pause(usize, u64),
    Quota(usize, u64),
    Reset(usize),
    Later(Later),
    Calm,
}

/// One of [`Faults::more`].
#[derive(Clone, Copy, Debug)]
pub enum Later {
    Transfer,
    Step(usize, i64),
    SlowLink(usize, usize, u64),
    /// How long an entry takes.
    SlowDisk(u64),
    /// Until when.
    FullDisk(usize, u64),
}

impl Faults {
    /// Everything, as much of it as the seed says.
    pub fn all(rng: &mut Rng) -> Self {
        let mut some = |most: u64| rng.between(0, most + 1);
        Self {
            weather: some(1) == 1,
            crashes: some(4),
            leader_losses: some(3),
            deposed_talk: some(1) == 1,
            partitions: some(3),
            pauses: some(2),
            clocks: some(2) > 0,
            quotas: some(4),
            resets: some(2),
            appends_fail: some(1) == 1,
            stretch: 0,
            loss_at_ms: None,
            more: More::default(),
        }
    }

    /// Kinds that came later.
    pub fn with_more(self, rng: &mut Rng) -> Self {
        let mut some = |most: u64| rng.between(0, most + 1);
        let more = More {
            transfers: some(3),
            steps: some(3),
            slow_links: some(3),
            slow_disks: some(2),
            full_disks: some(2),
        };
        Self { more, ..self }
    }

    pub fn is_calm(&self) -> bool {
        *self
            == Self {
                loss_at_ms: self.loss_at_ms,
                ..Self::default()
            }
    }

    /// How long everything goes on after the traffic.
    pub fn aftermath(&self) -> u64 {
        if self.is_calm() { SECOND } else { 12 * SECOND }
    }

    pub fn clock(&self, rng: &mut Rng) -> Clock {
        if !self.clocks {
            return Clock {
                boot_offset: 1_000 * SECOND,
                wall_offset: 0,
                drift_ppm: 0,
            };
        }
        Clock {
            boot_offset: rng.between(0, 1_000_000 * SECOND),
            wall_offset: rng.around(200 * MS as i64),
            drift_ppm: rng.around(100),
        }
    }
}

impl World {
    pub fn plan_faults(&mut self) {
        let faults = self.setup.faults;
        if let Some(ms) = faults.loss_at_ms {
            self.schedule(self.begins + ms * MS, Event::Fault(Fault::LoseLeader));
        }
        if faults.is_calm() {
            return;
        }
        if faults.weather {
            self.net.weather = Weather {
                loss: 0.05,
                double: 0.05,
                late: 0.05,
            };
            // One each, however many messages meet it.
            for kind in [
                "messages lost",
                "messages doubled",
                "messages late and out of order",
            ] {
                self.audit.fault(kind);
            }
        }
        if faults.clocks {
            self.audit.fault("clocks off and drifting");
        }
        let regions = self.regions.len() as u64;
        let (from, to) = (self.begins, self.ends - 8 * SECOND);
        let stretch = 1 + faults.stretch;
        for _ in 0..faults.crashes {
            let (at, region) = (self.rng.between(from, to), self.rng.between(0, regions));
            let back = at + self.rng.between(50 * MS, stretch * 6 * SECOND);
            self.schedule(at, Event::Fault(Fault::Crash(region as usize)));
            self.schedule(back, Event::Fault(Fault::Start(region as usize)));
        }
        for _ in 0..faults.leader_losses {
            let at = self.rng.between(from, to);
            self.schedule(at, Event::Fault(Fault::LoseLeader));
        }
        let least = if faults.stretch > 1 {
            12 * SECOND
        } else {
            200 * MS
        };
        for _ in 0..faults.partitions {
            let at = self.rng.between(from, to);
            let until = (at + self.rng.between(least, stretch * 10 * SECOND)).min(to);
            let cut = self.plan_cut();
            self.schedule(at, Event::Fault(Fault::Cut(cut)));
            self.schedule(until, Event::Fault(Fault::Heal));
        }
        for _ in 0..faults.pauses {
            let (at, region) = (self.rng.between(from, to), self.rng.between(0, regions));
            let lasts = self.rng.between(100 * MS, stretch * 8 * SECOND);
            let lasts = lasts.min(self.ends - at);
            self.schedule(at, Event::Fault(Fault::Pause(region as usize, lasts)));
        }
        for _ in 0..faults.quotas {
            let at = self.rng.between(from, to);
            let counter = self.rng.between(0, self.setup.all_counters() as u64) as usize;
            let quota = self.rng.between(0, self.setup.quota * 2 + 1);
            self.schedule(at, Event::Fault(Fault::Quota(counter, quota)));
        }
        for _ in 0..faults.resets {
            let at = self.rng.between(from, to);
            let counter = self.rng.between(0, self.setup.all_counters() as u64) as usize;
            self.schedule(at, Event::Fault(Fault::Reset(counter)));
        }
        self.plan_more(from, to);
        self.schedule(self.ends - 6 * SECOND, Event::Fault(Fault::Calm));
    }

    fn plan_more(&mut self, from: u64, to: u64) {
        let More {
            transfers,
            steps,
            slow_links,
            slow_disks,
            full_disks,
        } = self.setup.faults.more;
        let regions = self.regions.len() as u64;
        for _ in 0..transfers {
            let at = self.rng.between(from, to);
            self.schedule(at, Event::Fault(Fault::Later(Later::Transfer)));
        }
        for _ in 0..steps {
            let (at, region) = (self.rng.between(from, to), self.rng.between(0, regions));
            let by = self.rng.around(2 * SECOND as i64);
            self.schedule(
                at,
                Event::Fault(Fault::Later(Later::Step(region as usize, by))),
            );
        }
        for _ in 0..slow_links {
            let (at, one) = (self.rng.between(from, to), self.rng.between(0, regions));
            let (one, other) = (one as usize, self.rng.between(0, regions) as usize);
            let until = (at + self.rng.between(200 * MS, 10 * SECOND)).min(to);
            let times = self.rng.between(2, 11);
            self.schedule(
                at,
                Event::Fault(Fault::Later(Later::SlowLink(one, other, times))),
            );
            self.schedule(
                until,
                Event::Fault(Fault::Later(Later::SlowLink(one, other, 1))),
            );
        }
        for _ in 0..slow_disks {
            let at = self.rng.between(from, to);
            let until = (at + self.rng.between(200 * MS, 8 * SECOND)).min(to);
            let takes = self.rng.between(20 * MS, 300 * MS);
            self.schedule(at, Event::Fault(Fault::Later(Later::SlowDisk(takes))));
            self.schedule(until, Event::Fault(Fault::Later(Later::SlowDisk(FSYNC))));
        }
        for _ in 0..full_disks {
            let (at, region) = (self.rng.between(from, to), self.rng.between(0, regions));
            let until = (at + self.rng.between(200 * MS, 8 * SECOND)).min(to);
            self.schedule(
                at,
                Event::Fault(Fault::Later(Later::FullDisk(region as usize, until))),
            );
        }
    }

    /// Some regions against the others, or one link; both ways, or one.
    fn plan_cut(&mut self) -> Vec<(usize, usize)> {
        let regions = self.regions.len();
        let side: Vec<bool> = (0..regions).map(|_| self.rng.chance(0.4)).collect();
        let is_one_way = self.rng.chance(0.4);
        let mut cut = Vec::new();
        for from in 0..regions {
            for to in 0..regions {
                let is_across = side[from] && !side[to];
                let is_back = side[to] && !side[from];
                if is_across || (is_back && !is_one_way) {
                    cut.push((from, to));
                }
            }
        }
        cut
    }

    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(region) => {
                if self.regions[region].process.is_none() {
                    return;
                }
                let leads = self.region_that_leads() == Some(region);
                self.audit.fault(if leads {
                    "crash of the leader"
                } else {
                    "crash of a region"
                });
                self.crash(region);
                self.lose_leader_at(region);
            }
            Fault::Start(region) => {
                if self.regions[region].process.is_none() {
                    self.start(region);
                }
            }
            Fault::LoseLeader => {
                self.audit.fault(if self.setup.faults.deposed_talk {
                    "leader deposed that talks on"
                } else {
                    "leader lost"
                });
                let talks = if self.setup.faults.deposed_talk {
                    self.rng.between(SECOND, 8 * SECOND)
                } else {
                    0
                };
                self.lose_leader(self.at + talks);
            }
            Fault::Cut(cut) => {
                let is_one_way = cut.iter().any(|(from, to)| !cut.contains(&(*to, *from)));
                self.audit.fault(match (cut.is_empty(), is_one_way) {
                    (true, _) => "partition of nobody",
                    (false, true) => "partition one way",
                    (false, false) => "partition both ways",
                });
                if !self.setup.buckets.is_empty() {
                    self.quieten();
                }
                for (from, to) in cut {
                    self.net.cut(from, to, true);
                }
                self.lose_cut_off_leader();
            }
            Fault::Heal => self.net.heal(),
            Fault::Pause(region, lasts) => {
                if self.regions[region].process.is_none() {
                    return;
                }
                let leads = self.region_that_leads() == Some(region);
                self.audit.fault(if leads {
                    "pause of the leader"
                } else {
                    "pause of a region"
                });
                self.regions[region].paused_until = self.at + lasts;
                if lasts > SECOND {
                    self.lose_cut_off_leader();
                }
            }
            Fault::Quota(counter, quota) => {
                let now = self.group.truth.catalogue.counters[counter].quota;
                let quota = self.quota_of(counter, quota);
                self.audit.fault(if quota.units() < now.units() {
                    "amount lowered"
                } else {
                    "amount raised"
                });
                self.admin(Entry::Quota { counter, quota });
            }
            Fault::Reset(counter) => {
                self.audit.fault("reset");
                self.admin(Entry::Reset { counter });
            }
            Fault::Calm => {
                self.net.heal();
                self.net.weather = Weather::default();
                self.net.all_fast();
                self.group.fsync = FSYNC;
                for region in 0..self.regions.len() {
                    if self.regions[region].process.is_none() {
                        self.start(region);
                    }
                }
            }
            Fault::Later(later) => self.later_fault(later),
        }
    }

    /// See [`Faults::more`].
    fn later_fault(&mut self, later: Later) {
        match later {
            Later::Transfer => self.transfer(),
            Later::Step(region, by) => {
                self.audit.fault("clock step");
                self.regions[region].clock.wall_offset += by;
            }
            Later::SlowLink(from, to, times) => {
                if times > 1 {
                    self.audit.fault("slow link");
                }
                self.net.slow(from, to, times);
            }
            Later::SlowDisk(takes) => {
                if takes > FSYNC {
                    self.audit.fault("slow disks");
                }
                self.group.fsync = takes;
            }
            Later::FullDisk(region, until) => {
                self.audit.fault("full disk");
                self.regions[region].disk_full_until = until;
                self.lose_cut_off_leader();
            }
        }
    }

    /// Some regions have much less to do than what they hold would be for: units last until their lease ends.
    fn quieten(&mut self) {
        for region in 0..self.regions.len() {
            if self.rng.chance(0.5) {
                self.regions[region].quiet_until = self.at + 30 * SECOND;
            }
        }
    }

    /// A bucket's rate, and the time that it is a rate of, change with its capacity.
    fn quota_of(&mut self, counter: usize, quota: u64) -> Quota {
        match self.group.truth.catalogue.counters[counter].quota {
            Quota::Window(_) => Quota::Window(quota),
            Quota::Bucket(flow) => Quota::Bucket(Flow {
                capacity: quota.max(1),
                rate: self.rng.between(1, 2 * self.setup.quota + 1),
                per: if self.rng.chance(0.3) {
                    Span::from_ms(self.rng.between(1, 60_000))
                } else {
                    flow.per
                },
            }),
        }
    }

    fn admin(&mut self, entry: Entry) {
        if let Some(serial) = self.group.leader {
            self.append(serial, 0, entry);
        }
    }

    /// The process of a leader ended.
    fn lose_leader_at(&mut self, region: usize) {
        let led = self
            .leadings
            .values()
            .find(|leading| leading.region == region);
        let serials: Vec<u64> = led.iter().map(|leading| leading.serial).collect();
        if self.group.leader.is_some_and(|leader| {
            let leading = self.leadings.get(&leader);
            leading.is_some_and(|leading| leading.region == region)
        }) {
            self.lose_leader(self.at);
        }
        for serial in serials {
            self.leadings.remove(&serial);
        }
        self.leadings.retain(|_, leading| leading.region != region);
    }

    /// The region of who leads by the last election.
    fn region_that_leads(&self) -> Option<usize> {
        let leading = self.leadings.get(&self.group.leader?)?;
        Some(leading.region)
    }

    /// The lead is handed to another region, at once.
    fn transfer(&mut self) {
        let Some(old) = self.region_that_leads() else {
            return;
        };
        let fit: Vec<usize> = (0..self.regions.len())
            .filter(|region| *region != old && self.reaches_majority(*region))
            .collect();
        if let Some(to) = self.rng.pick(&fit).copied() {
            self.audit.fault("lead handed over");
            self.lose_leader(self.at);
            self.elect(to);
        }
    }

    /// A leader without a majority: the others elect another, and it goes on talking until it hears of it.
    fn lose_cut_off_leader(&mut self) {
        let Some(leader) = self.group.leader else {
            return;
        };
        let Some(region) = self.leadings.get(&leader).map(|leading| leading.region) else {
            return;
        };
        if !self.reaches_majority(region) {
            let talks = self.rng.between(SECOND, 12 * SECOND);
            self.lose_leader(self.at + talks);
        }
    }
}
