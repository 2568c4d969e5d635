//! A node: its machine, and while a process runs on it, that process.
//!
//! A process ends from one moment to the next: whatever it still does afterwards reaches neither its disk nor
//! the network nor a caller, until the simulated library has noticed and stopped.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::grants::account::Holder;
use highwater::grants::log_time::Reading;
use highwater::grants::message::Pulse;
use highwater::grants::message::ToLeader;
use highwater::machine::Machine;
use highwater::machine::command::Command;
use highwater::simulate::clock::Clock;
use openraft::AsyncRuntime;
use openraft::Config;
use openraft::EmptyNode;
use openraft::Instant;
use openraft::Raft;
use openraft::RaftMetrics;
use openraft::SnapshotPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft_rt_sim::SimRuntime;
use parking_lot::Mutex;

use super::Sim;
use super::disk::Disk;
use super::disk::Log;
use super::leading::Leading;
use super::region::Desk;
use super::state::State;
use super::types::LogId;
use super::types::SimConfig;
use super::types::StoredMembers;
use super::wire::Network;
use crate::model::MS;
use crate::model::name;

/// A leader that has not heard a majority for longer says nothing, like in the product.
const MAJORITY_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub struct Node {
    pub clock: Clock,
    pub disk: Mutex<Disk>,
    pub life: Mutex<Option<Arc<Life>>>,
    pub lives: AtomicU64,
    pub paused_until: AtomicU64,
}

impl Node {
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            disk: Mutex::default(),
            life: Mutex::new(None),
            lives: AtomicU64::new(0),
            paused_until: AtomicU64::new(0),
        }
    }
}

/// What the log drives, and what plans on top of it.
pub struct Core {
    pub machine: Machine,
    pub last: Option<LogId>,
    pub members: StoredMembers,
    pub leading: Option<Leading>,
}

/// One process.
pub struct Life {
    pub sim: Arc<Sim>,
    pub node: usize,
    pub holder: Holder,
    pub raft: OnceLock<Raft<SimConfig, State>>,
    pub core: Mutex<Core>,
    pub desk: Mutex<Desk>,
    pub has_majority: AtomicBool,
    is_dead: AtomicBool,
}

fn config(seed: u64) -> Config {
    let (snapshot, kept) = [(12, 3), (40, 10), (150, 30)][(seed % 3) as usize];
    let config = Config {
        cluster_name: "simulated".to_owned(),
        heartbeat_interval: 250,
        election_timeout_min: 700,
        election_timeout_max: 1_000,
        enable_pre_vote: Some(true),
        max_payload_entries: 4_096,
        max_append_entries: Some(4_096),
        api_batch_capacity: 4_096,
        api_batch_linger_ms: 0,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(snapshot),
        max_in_snapshot_log_to_keep: kept,
        purge_batch_size: (kept / 8).max(1),
        replication_lag_threshold: snapshot * 5 / 2,
        install_snapshot_timeout: 30_000,
        enable_leader_restore: Some(false),
        backoff: "200ms ...2s".to_owned(),
        ..Config::default()
    };
    config.validate().expect("a configuration")
}

impl Sim {
    /// A process begins.
    pub async fn start(self: &Arc<Self>, node: usize) {
        let number = self.nodes[node].lives.fetch_add(1, Ordering::Relaxed) + 1;
        let holder = Holder {
            region: name(node),
            incarnation: self.rng.lock().next(),
        };
        self.nodes[node].disk.lock().open(number);
        let life = Arc::new(Life {
            sim: Arc::clone(self),
            node,
            holder,
            raft: OnceLock::new(),
            core: Mutex::new(Core {
                machine: Machine::new(),
                last: None,
                members: StoredMembers::default(),
                leading: None,
            }),
            desk: Mutex::default(),
            has_majority: AtomicBool::new(true),
            is_dead: AtomicBool::new(false),
        });
        *self.nodes[node].life.lock() = Some(Arc::clone(&life));
        let log = Log::new(Arc::clone(self), node, number);
        let state = State::new(Arc::clone(&life), log.clone());
        let network = Network {
            life: Arc::clone(&life),
        };
        let config = Arc::new(config(self.setup.seed));
        let raft = match Raft::new(node as u64, config, network, log, state).await {
            Ok(raft) => raft,
            Err(error) => {
                assert!(life.is_dead(), "node {node} does not start: {error}");
                return;
            }
        };
        life.raft.set(raft).ok();
        if life.is_dead() {
            life.end();
            return;
        }
        self.spawn(Arc::clone(&life).watch());
        self.spawn(Arc::clone(&life).beat());
        self.spawn(Arc::clone(&life).tick());
        self.spawn(Arc::clone(&life).enroll());
    }

    /// The process of a node ends, if one runs.
    pub fn crash(self: &Arc<Self>, node: usize) -> bool {
        let Some(life) = self.nodes[node].life.lock().take() else {
            return false;
        };
        life.is_dead.store(true, Ordering::Relaxed);
        self.nodes[node].paused_until.store(0, Ordering::Relaxed);
        let lost = self.nodes[node].disk.lock().crash(&mut self.rng.lock());
        if lost > 0 {
            self.audited(|audit| audit.fault("crash with unsynced writes"));
        }
        if let Some(leading) = life.core.lock().leading.take() {
            leading.keep_clock(self, node);
        }
        life.end();
        true
    }

    pub fn life(&self, node: usize) -> Option<Arc<Life>> {
        self.nodes[node].life.lock().clone()
    }

    /// Founds the cluster at the first node.
    pub async fn found(self: &Arc<Self>) {
        let members = (0..self.nodes.len()).map(|node| (node as u64, EmptyNode::default()));
        let members: std::collections::BTreeMap<u64, EmptyNode> = members.collect();
        let life = self.life(0).expect("it runs");
        let raft = life.raft.get().expect("it has begun");
        raft.initialize(members).await.expect("it can be founded");
        let catalogue = super::limits(self.setup.quota, self.setup.window);
        for command in [
            Command::Found {
                cluster: 7,
                adopted: None,
            },
            Command::Change(catalogue),
        ] {
            let said = life
                .propose(command, Span::from_seconds(20))
                .await
                .expect("a leader");
            self.traced(b"found", &[said.0]);
        }
    }
}

impl Life {
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    fn end(self: &Arc<Self>) {
        let life = Arc::clone(self);
        self.sim.spawn(async move {
            if let Some(raft) = life.raft.get() {
                raft.shutdown().await.ok();
            }
        });
    }

    pub fn clock(&self) -> Clock {
        self.sim.nodes[self.node].clock
    }

    pub fn reading(&self) -> Reading {
        self.clock().reading(self.sim.now())
    }

    pub fn boot(&self) -> Span {
        self.reading().boot
    }

    pub fn metrics(&self) -> Option<RaftMetrics<SimConfig>> {
        let raft = self.raft.get()?;
        Some(raft.metrics().borrow_watched().clone())
    }

    /// Who leads, as far as is known here.
    pub fn leader(&self) -> Option<usize> {
        let metrics = self.metrics()?;
        let leader = metrics.current_leader?;
        let is_known = leader != self.node as u64 || metrics.state.is_leader();
        is_known.then_some(leader as usize)
    }

    /// Follows the library: begins and ends to lead.
    async fn watch(self: Arc<Self>) {
        let Some(raft) = self.raft.get() else { return };
        let mut watched = raft.metrics();
        loop {
            let now = watched.borrow_and_update().clone();
            if self.is_dead() {
                return;
            }
            if let Err(fatal) = &now.running_state {
                self.sim.broke(&format!(
                    "the library stopped on node {}: {fatal}",
                    self.node
                ));
                return;
            }
            if now.state.is_leader() {
                self.sim
                    .audited(|audit| audit.leads(now.current_term, self.node));
            }
            let applied_term = now.last_applied.map(|last| last.leader_id.term);
            if now.state.is_leader() && applied_term == Some(now.current_term) {
                self.begin_to_lead(now.current_term);
            } else if !now.state.is_leader() {
                self.end_to_lead();
            }
            let changed = watched.changed();
            let waited = SimRuntime::timeout(Duration::from_millis(250), changed).await;
            if let Ok(Err(_)) = waited {
                assert!(self.is_dead(), "the library ended on node {}", self.node);
                return;
            }
        }
    }

    /// Signs of life.
    async fn beat(self: Arc<Self>) {
        while !self.is_dead() {
            self.sim.unpaused(self.node).await;
            if let Some(metrics) = self.metrics() {
                let heard = metrics
                    .last_quorum_acked
                    .is_none_or(|acked| acked.elapsed() <= MAJORITY_WITHIN);
                self.has_majority.store(heard, Ordering::Relaxed);
            }
            let reading = self.reading();
            let refill = self.desk.lock().exchange.measured_refill();
            self.to_leader(ToLeader::Pulse(Pulse {
                holder: self.holder.clone(),
                sent_boot: reading.boot,
                refill: refill.unwrap_or(Span::ZERO),
                region_time: reading.region_time,
            }));
            self.sim.sleep(250 * MS).await;
        }
    }

    /// What time brings for the reservations and the leader.
    async fn tick(self: Arc<Self>) {
        while !self.is_dead() {
            self.sim.unpaused(self.node).await;
            self.tick_region();
            self.tick_leader();
            self.sim.sleep(10 * MS).await;
        }
    }

    /// Enrolls this process.
    async fn enroll(self: Arc<Self>) {
        while !self.is_dead() {
            if self.core.lock().machine.book().is_newest(&self.holder) {
                return;
            }
            let enroll = Command::Enroll(self.holder.clone());
            self.propose(enroll, Span::from_seconds(2)).await.ok();
            self.sim.sleep(200 * MS).await;
        }
    }

    /// The region times of all voters as this one knows them; those that it does not reach are unknown.
    pub fn voters_times(&self) -> Vec<(highwater::domain::name::RegionName, Option<Timestamp>)> {
        let at = self.sim.now();
        let net = self.sim.net.lock();
        let voters = self.sim.nodes.iter().enumerate().map(|(voter, node)| {
            let is_known = voter == self.node || net.connects(self.node, voter);
            (name(voter), is_known.then(|| node.clock.region_time(at)))
        });
        voters.collect()
    }
}
