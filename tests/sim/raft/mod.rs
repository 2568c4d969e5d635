//! The real log, simulated: several nodes with the consensus library itself on its deterministic runtime, the
//! product's replicated machine below it, and its leader, log time and reservations around it. Time is
//! virtual, one seed is one run.
//!
//! ```text
//!  charges ─► region ─► leading ─► openraft ─► state ─► Machine        (per node, see `node`)
//!                │          ▲         │ │
//!                └── wire ──┘   wire ─┘ └─ disk
//!  faults: crashes, blackouts, partitions, pauses, slow disks, forced elections and snapshots; bad weather
//! ```
//!
//! The glue between the library and the machine is a likeness of the product's, which is bound to its own
//! runtime, store and links; what is the product's own is below and above that glue.
//!
//! `audit` holds, at every step: every node applies the same entries with the same replies, and snapshots of
//! one place are the same byte for byte, whoever made or read them; a term has one leader; no window admits
//! more than its quota; every charge that was acknowledged counts once, by request and by key; log time does
//! not fall; units are spent inside their windows. At the end everything heals: then one leads, all nodes
//! have everything that was acknowledged, and their machines are equal.
//!
//! A seed that fails is one command: `HIGHWATER_SIM_SEED=n cargo test --test sim raft_replay`.

mod audit;
mod charges;
mod disk;
mod faults;
mod leading;
mod node;
mod region;
mod runs;
mod state;
mod types;
mod wire;

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater::domain::time::Timestamp;
use highwater::grants::log_time::LogTime;
use highwater::simulate::clock::Clock;
use openraft::AsyncRuntime;
use openraft::Instant;
use openraft_rt_sim::SimInstant;
use openraft_rt_sim::SimRuntime;
use parking_lot::Mutex;
use serde_json::json;

use self::audit::Audit;
use self::faults::Faults;
use self::node::Node;
use self::types::Trace;
use crate::model::MS;
use crate::model::SECOND;
use crate::model::net::Net;
use crate::model::rng::Rng;

/// The limit that the log itself counts.
const ROLLING_QUOTA: u64 = 20;
const ROLLING_NANOS: i64 = 5_000_000_000;

/// One-way delays in ms.
const DELAYS: [[u64; 5]; 5] = [
    [0, 20, 40, 70, 110],
    [20, 0, 45, 60, 100],
    [40, 45, 0, 90, 120],
    [70, 60, 90, 0, 80],
    [110, 100, 120, 80, 0],
];

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub nodes: usize,
    pub counters: usize,
    pub quota: u64,
    /// In nanoseconds, whole seconds.
    pub window: u64,
    /// Requests per second at each node.
    pub rate: f64,
    /// Those of them that the log decides.
    pub charges: f64,
    pub faults: Faults,
}

impl Setup {
    /// A run as small or large as the seed says.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0ae7_10e5);
        Self {
            seed,
            nodes: [3, 3, 5][rng.between(0, 3) as usize],
            counters: rng.between(1, 3) as usize,
            quota: [5, 40, 200][rng.between(0, 3) as usize],
            window: rng.between(3, 16) * SECOND,
            rate: [3.0, 8.0][rng.between(0, 2) as usize],
            charges: [0.1, 0.3][rng.between(0, 2) as usize],
            faults: Faults::all(&mut rng),
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    pub broken: Vec<String>,
    /// The same for the same seed.
    pub trace: u64,
    pub entries: usize,
    pub windows: usize,
    pub terms: u64,
    pub checks: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
}

/// The simulation.
pub struct Sim {
    setup: Setup,
    rng: Mutex<Rng>,
    net: Mutex<Net>,
    nodes: Vec<Node>,
    audit: Mutex<Audit>,
    /// Whose clock a term's log time is.
    clocks: Mutex<BTreeMap<u64, (usize, LogTime)>>,
    trace: Mutex<Trace>,
    broken: Mutex<Vec<String>>,
    /// Traffic and faults begin and end.
    begins: u64,
    ends: u64,
}

/// The first catalogue.
fn limits(quota: u64, window: u64) -> Vec<u8> {
    charges::change(json!({ "patch": { "tree": {
        "limits": {
            "exports": {
                "mode": "strict",
                "algorithm": "fixed_window",
                "quota": quota,
                "window": format!("{}s", window / SECOND),
            },
            "rolling": {
                "mode": "strict",
                "algorithm": "sliding_log",
                "quota": ROLLING_QUOTA,
                "window": format!("{}s", ROLLING_NANOS as u64 / SECOND),
            },
        },
        "tenants": { "acme": {} },
    } } }))
}

impl Sim {
    fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(setup.seed);
        let delays = (0..setup.nodes)
            .map(|from| DELAYS[from][..setup.nodes].to_vec())
            .collect();
        let nodes = (0..setup.nodes).map(|_| {
            Node::new(if setup.faults.clocks {
                Clock {
                    boot_offset: rng.between(0, 1_000_000 * SECOND),
                    wall_offset: rng.around(200 * MS as i64),
                    drift_ppm: rng.around(100),
                }
            } else {
                Clock {
                    boot_offset: 1_000 * SECOND,
                    wall_offset: 0,
                    drift_ppm: 0,
                }
            })
        });
        let nodes = nodes.collect();
        let begins = 5 * SECOND;
        Self {
            net: Mutex::new(Net::new(delays)),
            nodes,
            audit: Mutex::new(Audit::new(setup.counters)),
            clocks: Mutex::default(),
            trace: Mutex::default(),
            broken: Mutex::default(),
            begins,
            ends: begins + 30 * SECOND,
            rng: Mutex::new(rng),
            setup,
        }
    }

    /// True time.
    fn now(&self) -> u64 {
        SimInstant::now().elapsed_since_start().as_nanos() as u64
    }

    async fn sleep(&self, nanos: u64) {
        SimRuntime::sleep(Duration::from_nanos(nanos)).await;
    }

    async fn sleep_until(&self, at: u64) {
        self.sleep(at.saturating_sub(self.now())).await;
    }

    /// Waits until a node is not paused: it finds everything that came meanwhile, in order.
    async fn unpaused(&self, node: usize) {
        loop {
            let until = self.nodes[node].paused_until.load(Ordering::Relaxed);
            if until <= self.now() {
                return;
            }
            self.sleep_until(until).await;
        }
    }

    /// Runs a task; its panic breaks the run.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let sim = Arc::clone(self);
        let handle = SimRuntime::spawn(task);
        let _ended = SimRuntime::spawn(async move {
            if let Err(error) = handle.await
                && SimRuntime::is_panic(&error)
            {
                sim.broke(&error.to_string());
            }
        });
    }

    fn broke(&self, what: &str) {
        let mut broken = self.broken.lock();
        if broken.len() < 10 {
            let at = self.now() / MS;
            broken.push(format!("at {at} ms: {what}"));
        }
    }

    /// Lets the auditor look; what it finds breaks the run and not the task that told it.
    fn audited(&self, look: impl FnOnce(&mut Audit)) {
        let mut audit = self.audit.lock();
        let looked = catch_unwind(AssertUnwindSafe(|| look(&mut audit)));
        drop(audit);
        if let Err(panic) = looked {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            self.broke(&text.unwrap_or_default());
        }
    }

    fn traced(&self, kind: &[u8], numbers: &[u64]) {
        let mut trace = self.trace.lock();
        trace.numbers(&[self.now()]);
        trace.bytes(kind);
        trace.numbers(numbers);
    }

    /// Log time as it is now by the clock of a term.
    fn log_time_of(&self, term: u64) -> Option<Timestamp> {
        let (node, mut clock) = self.clocks.lock().get(&term).cloned()?;
        Some(clock.read(self.nodes[node].clock.reading(self.now())))
    }

    /// The node that leads by its own word; of several, the one of the newest term.
    fn leads(&self) -> Option<usize> {
        let leading = (0..self.nodes.len()).filter_map(|node| {
            let metrics = self.life(node)?.metrics()?;
            let term = metrics.current_term;
            metrics.state.is_leader().then_some((term, node))
        });
        leading.max().map(|(_, node)| node)
    }

    async fn run(self: &Arc<Self>) {
        for node in 0..self.nodes.len() {
            self.start(node).await;
        }
        self.found().await;
        self.sleep_until(self.begins).await;
        for node in 0..self.nodes.len() {
            self.spawn(Arc::clone(self).callers(node));
        }
        self.spawn(Arc::clone(self).disturb());
        while self.now() < self.ends && self.broken.lock().is_empty() {
            self.sleep(SECOND / 4).await;
        }
        if !self.broken.lock().is_empty() {
            return;
        }
        self.heal().await;
        // Callers end, then what is left of the windows.
        self.sleep(12 * SECOND).await;
        self.settle().await;
    }

    /// All nodes come to the same place of the log, with the same machine.
    async fn settle(self: &Arc<Self>) {
        for _ in 0..1_000 {
            self.sleep(20 * MS).await;
            let places: Option<Vec<_>> = (0..self.nodes.len())
                .map(|node| Some(self.life(node)?.core.lock().last))
                .collect();
            let Some(places) = places else { continue };
            if self.leads().is_some() && places.windows(2).all(|pair| pair[0] == pair[1]) {
                self.compare();
                return;
            }
        }
        self.broke("the nodes do not come to the same place");
    }

    fn compare(&self) {
        let mut first = None;
        for node in 0..self.nodes.len() {
            let Some(life) = self.life(node) else {
                continue;
            };
            let core = life.core.lock();
            let last = core.last.map_or(0, |last| last.index);
            self.audited(|audit| audit.has_all(node, last));
            if !core.machine.book().is_newest(&life.holder) {
                self.broke(&format!("node {node} is not enrolled"));
            }
            let body = core.machine.snapshot().expect("a snapshot");
            self.traced(b"end", &[Trace::of(&body)]);
            if *first.get_or_insert_with(|| body.clone()) != body {
                self.broke(&format!("the machine of node {node} is another one"));
            }
        }
        let leader = self.leads().and_then(|node| self.life(node));
        if leader.is_none_or(|leader| leader.core.lock().leading.is_none()) {
            self.broke("nobody leads");
        }
    }
}

/// One run.
pub fn run(setup: Setup) -> Report {
    let mut runtime = SimRuntime::with_seed(setup.seed);
    let sim = Arc::new(Sim::new(setup));
    runtime.block_on(sim.run());
    for node in &sim.nodes {
        node.life.lock().take();
    }
    drop(runtime);
    let audit = sim.audit.lock();
    let mut faults = audit.windows.faults.clone();
    faults.extend(audit.faults.clone());
    Report {
        broken: sim.broken.lock().clone(),
        trace: sim.trace.lock().0,
        entries: audit.entries(),
        windows: audit.windows_used(),
        terms: audit.terms,
        checks: audit.checks.clone(),
        faults,
    }
}
