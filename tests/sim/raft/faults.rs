//! What goes wrong in a run over the real log, when.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Sim;
use super::charges;
use crate::model::MS;
use crate::model::SECOND;
use crate::model::net::Weather;
use crate::model::rng::Rng;

/// How much goes wrong in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub weather: bool,
    pub clocks: bool,
    pub crashes: u64,
    pub leader_crashes: u64,
    pub blackouts: u64,
    pub cuts: u64,
    pub pauses: u64,
    pub slow_disks: u64,
    pub elections: u64,
    pub snapshots: u64,
    pub quotas: u64,
    pub resets: u64,
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
enum Fault {
    Crash(usize),
    CrashLeader(u64),
    /// All at once.
    Blackout(u64),
    Start(usize),
    Cut(Vec<(usize, usize)>),
    Heal,
    Pause(usize, u64),
    SlowDisk(usize, u64),
    Elect(usize),
    Snapshot(usize),
    Quota(u64),
    Reset,
}

impl Faults {
    /// Everything, as much of it as the seed says.
    pub fn all(rng: &mut Rng) -> Self {
        let mut some = |most: u64| rng.between(0, most + 1);
        Self {
            weather: some(1) == 1,
            clocks: some(2) > 0,
            crashes: some(4),
            leader_crashes: some(3),
            blackouts: some(4) / 4,
            cuts: some(3),
            pauses: some(2),
            slow_disks: some(2),
            elections: some(2),
            snapshots: some(2),
            quotas: some(3),
            resets: some(2),
        }
    }
}

impl Sim {
    fn plan(&self) -> Vec<(u64, Fault)> {
        let faults = self.setup.faults;
        let nodes = self.nodes.len() as u64;
        let mut rng = self.rng.lock();
        let (from, to) = (self.begins, self.ends);
        let mut plan = Vec::new();
        for _ in 0..faults.crashes {
            let (at, node) = (rng.between(from, to), rng.between(0, nodes) as usize);
            plan.push((at, Fault::Crash(node)));
            let back = at + rng.between(50 * MS, 8 * SECOND);
            plan.push((back, Fault::Start(node)));
        }
        for _ in 0..faults.leader_crashes {
            let down = rng.between(20 * MS, 6 * SECOND);
            plan.push((rng.between(from, to), Fault::CrashLeader(down)));
        }
        for _ in 0..faults.blackouts {
            let down = rng.between(20 * MS, 3 * SECOND);
            plan.push((rng.between(from, to), Fault::Blackout(down)));
        }
        for _ in 0..faults.cuts {
            let at = rng.between(from, to);
            plan.push((at, Fault::Cut(cut(&mut rng, self.nodes.len()))));
            plan.push((at + rng.between(200 * MS, 10 * SECOND), Fault::Heal));
        }
        for _ in 0..faults.pauses {
            let node = rng.between(0, nodes) as usize;
            let lasts = rng.between(100 * MS, 6 * SECOND);
            plan.push((rng.between(from, to), Fault::Pause(node, lasts)));
        }
        for _ in 0..faults.slow_disks {
            let node = rng.between(0, nodes) as usize;
            let slowness = rng.between(10, 200);
            let at = rng.between(from, to);
            plan.push((at, Fault::SlowDisk(node, slowness)));
            let until = at + rng.between(SECOND, 8 * SECOND);
            plan.push((until, Fault::SlowDisk(node, 0)));
        }
        for _ in 0..faults.elections {
            let node = rng.between(0, nodes) as usize;
            plan.push((rng.between(from, to), Fault::Elect(node)));
        }
        for _ in 0..faults.snapshots {
            let node = rng.between(0, nodes) as usize;
            plan.push((rng.between(from, to), Fault::Snapshot(node)));
        }
        for _ in 0..faults.quotas {
            let quota = rng.between(0, self.setup.quota * 2 + 1).max(1);
            plan.push((rng.between(from, to), Fault::Quota(quota)));
        }
        for _ in 0..faults.resets {
            plan.push((rng.between(from, to), Fault::Reset));
        }
        plan.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Lets everything go wrong until the traffic ends.
    pub async fn disturb(self: Arc<Self>) {
        if self.setup.faults.weather {
            self.net.lock().weather = Weather {
                loss: 0.03,
                double: 0.03,
                late: 0.05,
            };
        }
        for (at, fault) in self.plan() {
            if at >= self.ends {
                return;
            }
            self.sleep_until(at).await;
            self.fault(fault);
        }
    }

    fn start_later(self: &Arc<Self>, node: usize, after: u64) {
        let sim = Arc::clone(self);
        self.spawn(async move {
            sim.sleep(after).await;
            sim.start_if_down(node).await;
        });
    }

    async fn start_if_down(self: &Arc<Self>, node: usize) {
        if self.life(node).is_none() {
            self.start(node).await;
        }
    }

    fn fault(self: &Arc<Self>, fault: Fault) {
        let (kind, happens): (&'static str, bool) = match fault {
            Fault::Crash(node) => ("crash", self.crash(node)),
            Fault::CrashLeader(down) => {
                let leader = self.leads();
                if let Some(leader) = leader {
                    self.crash(leader);
                    self.start_later(leader, down);
                }
                ("crash of the leader", leader.is_some())
            }
            Fault::Blackout(down) => {
                for node in 0..self.nodes.len() {
                    self.crash(node);
                    let after = self.rng.lock().between(0, down);
                    self.start_later(node, after);
                }
                ("blackout", true)
            }
            Fault::Start(node) => {
                self.start_later(node, 0);
                ("start", true)
            }
            Fault::Cut(cut) => {
                let mut net = self.net.lock();
                for (from, to) in cut {
                    net.cut(from, to, true);
                }
                ("partition", true)
            }
            Fault::Heal => {
                self.net.lock().heal();
                ("heal", true)
            }
            Fault::Pause(node, lasts) => {
                let until = self.now() + lasts;
                let runs = self.life(node).is_some();
                if runs {
                    let paused = &self.nodes[node].paused_until;
                    paused.fetch_max(until, Ordering::Relaxed);
                }
                ("pause", runs)
            }
            Fault::SlowDisk(node, slowness) => {
                self.nodes[node].disk.lock().slowness = slowness;
                ("slow disk", slowness > 0)
            }
            Fault::Elect(node) => (
                "forced election",
                self.trigger(node, |life| {
                    let sim = Arc::clone(&life.sim);
                    sim.spawn(async move {
                        if let Some(raft) = life.raft.get() {
                            raft.trigger().elect(false).await.ok();
                        }
                    });
                }),
            ),
            Fault::Snapshot(node) => (
                "forced snapshot",
                self.trigger(node, |life| {
                    let sim = Arc::clone(&life.sim);
                    sim.spawn(async move {
                        if let Some(raft) = life.raft.get() {
                            raft.trigger().snapshot().await.ok();
                        }
                    });
                }),
            ),
            Fault::Quota(quota) => {
                let change = charges::quota(quota, self.setup.window);
                self.spawn(Arc::clone(self).operate(change));
                ("quota", true)
            }
            Fault::Reset => {
                self.spawn(Arc::clone(self).operate(charges::reset()));
                ("reset", true)
            }
        };
        if happens {
            self.audited(|audit| audit.fault(kind));
            self.traced(kind.as_bytes(), &[]);
        }
    }

    fn trigger(&self, node: usize, act: impl FnOnce(Arc<super::node::Life>)) -> bool {
        let life = self.life(node);
        let runs = life.is_some();
        if let Some(life) = life {
            act(life);
        }
        runs
    }

    /// Everything is well again.
    pub async fn heal(self: &Arc<Self>) {
        {
            let mut net = self.net.lock();
            net.heal();
            net.weather = Weather::default();
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].disk.lock().slowness = 0;
            self.nodes[node].paused_until.store(0, Ordering::Relaxed);
            self.start_if_down(node).await;
        }
    }
}

/// Some nodes against the others; both ways, or one.
fn cut(rng: &mut Rng, nodes: usize) -> Vec<(usize, usize)> {
    let side: Vec<bool> = (0..nodes).map(|_| rng.chance(0.4)).collect();
    let is_one_way = rng.chance(0.4);
    let mut cut = Vec::new();
    for from in 0..nodes {
        for to in 0..nodes {
            let is_across = side[from] && !side[to];
            let is_back = side[to] && !side[from];
            if is_across || (is_back && !is_one_way) {
                cut.push((from, to));
            }
        }
    }
    cut
}
