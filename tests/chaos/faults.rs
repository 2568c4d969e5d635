//! Faults at random, each bounded in time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::cluster::Cluster;
use crate::limits::Amounts;
use crate::limits::KEYS;
use crate::limits::Kind;
use crate::limits::LIMITS;
use crate::limits::TENANTS;
use crate::record::Record;

/// What happens to a region.
pub struct Chaos {
    /// The regions.
    pub cluster: Arc<Cluster>,
    /// What happened.
    pub record: Arc<Record>,
    /// Which amounts were asked for.
    pub amounts: Arc<Amounts>,
    /// By region: something is being done to its process.
    pub busy: Vec<AtomicBool>,
    /// One wiped directory at a time, until it is taken back.
    pub wiping: Arc<Semaphore>,
    /// One planned move at a time.
    pub moving: Arc<Semaphore>,
}

const KINDS: [(&str, u32); 14] = [
    ("kill", 12),
    ("kill leader", 10),
    ("pause", 10),
    ("pause leader", 6),
    ("partition", 12),
    ("partition one way", 10),
    ("latency", 8),
    ("loss", 6),
    ("clock", 8),
    ("store full", 4),
    ("store errors", 4),
    ("transfer", 8),
    ("terminate", 4),
    ("wipe", 4),
];

impl Chaos {
    /// Chaos among the regions of `cluster`.
    pub fn new(cluster: &Arc<Cluster>, record: &Arc<Record>, amounts: &Arc<Amounts>) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            record: Arc::clone(record),
            amounts: Arc::clone(amounts),
            busy: cluster
                .regions
                .iter()
                .map(|_| AtomicBool::new(false))
                .collect(),
            wiping: Arc::new(Semaphore::new(1)),
            moving: Arc::new(Semaphore::new(1)),
        })
    }

    /// Makes faults and changes until `until`, then waits until those that began are over.
    pub async fn run(self: Arc<Self>, mut random: StdRng, until: i64) {
        let mut running = Vec::new();
        let mut next_change = self.cluster.clock.now();
        while self.cluster.clock.now() < until {
            let pause = random.random_range(300..4_000);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let fault = Arc::clone(&self).begin(&mut random).await;
            running.extend(fault);
            if self.cluster.clock.now() >= next_change {
                next_change = self.cluster.clock.now() + random.random_range(1_000..5_000);
                running.push(tokio::spawn(Arc::clone(&self).change(random.random())));
            }
        }
        for fault in running {
            fault.await.expect("a fault ends");
        }
    }

    fn note(&self, kind: &'static str, region: usize, more: &str) {
        self.record.fault(kind);
        let name = self.cluster.regions[region].name;
        self.record
            .event(self.cluster.clock.now(), &format!("{kind} {name} {more}"));
    }

    fn event(&self, what: &str) {
        self.record.event(self.cluster.clock.now(), what);
    }

    /// Takes a region for something that is done to its process.
    fn take(&self, region: usize) -> bool {
        !self.busy[region].swap(true, Ordering::AcqRel)
    }

    fn let_go(&self, region: usize) {
        self.busy[region].store(false, Ordering::Release);
    }

    async fn begin(self: Arc<Self>, random: &mut StdRng) -> Option<tokio::task::JoinHandle<()>> {
        let all: u32 = KINDS.iter().map(|(_, weight)| weight).sum();
        let mut dice = random.random_range(0..all);
        let kind = KINDS.iter().find(|(_, weight)| {
            let is_it = dice < *weight;
            dice = dice.saturating_sub(*weight);
            is_it
        });
        let kind = kind.map_or("kill", |(kind, _)| *kind);
        let count = self.cluster.regions.len();
        let mut region = random.random_range(0..count);
        if kind.ends_with("leader") || kind == "transfer" {
            region = self.cluster.leader().await.unwrap_or(region);
        }
        let down_ms = random.random_range(0..6_000);
        let chaos = Arc::clone(&self);
        match kind {
            "kill" | "kill leader" if self.take(region) => {
                self.note(kind, region, &format!("for {down_ms} ms"));
                Some(tokio::spawn(async move {
                    chaos.killed(region, down_ms, false).await;
                }))
            }
            "terminate" if self.take(region) => {
                self.note(kind, region, "");
                Some(tokio::spawn(async move {
                    chaos.terminated(region, down_ms).await;
                }))
            }
            "pause" | "pause leader" if self.take(region) => {
                let ms = random.random_range(1_000..10_000);
                self.note(kind, region, &format!("for {ms} ms"));
                Some(tokio::spawn(async move {
                    chaos.cluster.regions[region].pause().await;
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    chaos.cluster.regions[region].resume().await;
                    chaos.event(&format!("resumed {}", chaos.cluster.regions[region].name));
                    chaos.let_go(region);
                }))
            }
            "wipe" => self.wipe(region, down_ms),
            "transfer" => {
                let to = (region + random.random_range(1..count.max(2))) % count;
                self.note(kind, to, "");
                Some(tokio::spawn(
                    async move { chaos.transfer(region, to).await },
                ))
            }
            "kill" | "kill leader" | "pause" | "pause leader" | "terminate" => None,
            _ => {
                let plan = self.link_or_clock_fault(kind, region, random);
                self.note(kind, region, &plan.to_string());
                Some(tokio::spawn(async move {
                    let region = &chaos.cluster.regions[region];
                    // A region that is down has no faults.
                    region
                        .admin(Method::POST, "/admin/v1/faults", &plan)
                        .await
                        .ok();
                }))
            }
        }
    }

    fn link_or_clock_fault(&self, kind: &str, region: usize, random: &mut StdRng) -> Value {
        let count = self.cluster.regions.len();
        let peer = (region + random.random_range(1..count.max(2))) % count;
        let ttl = format!("{}ms", random.random_range(500..6_000));
        let mut plan = match kind {
            "partition" => json!({ "kind": "partition", "ttl": ttl }),
            "partition one way" => {
                let direction = if random.random_bool(0.5) { "in" } else { "out" };
                json!({ "kind": "partition", "direction": direction, "ttl": ttl })
            }
            "latency" => {
                let delay = format!("{}ms", random.random_range(1..400));
                json!({ "kind": "latency", "delay": delay, "jitter": "100ms", "ttl": ttl })
            }
            "loss" => {
                json!({ "kind": "loss", "loss_percent": random.random_range(1..40), "ttl": ttl })
            }
            "clock" => {
                json!({ "kind": "clock_offset", "offset_ms": random.random_range(-2_000..=2_000), "ttl": ttl })
            }
            "store full" => json!({ "kind": "store_full", "ttl": ttl }),
            _ => json!({ "kind": "store_errors", "ttl": ttl }),
        };
        let is_of_links = ["partition", "partition one way", "latency", "loss"].contains(&kind);
        if is_of_links && random.random_bool(0.5) {
            plan["peer"] = self.cluster.regions[peer].name.into();
        }
        plan
    }

    async fn killed(&self, region: usize, down_ms: u64, wipe: bool) {
        let of = &self.cluster.regions[region];
        of.kill().await;
        tokio::time::sleep(Duration::from_millis(down_ms)).await;
        if wipe {
            of.wipe().await;
        }
        of.start().await;
        self.event(&format!("started {}", of.name));
        self.let_go(region);
    }

    async fn terminated(&self, region: usize, down_ms: u64) {
        let of = &self.cluster.regions[region];
        let in_order = of.terminate().await;
        self.event(&format!("terminated {}, in order: {in_order}", of.name));
        tokio::time::sleep(Duration::from_millis(down_ms)).await;
        of.start().await;
        self.event(&format!("started {}", of.name));
        self.let_go(region);
    }

    /// A directory is lost. Only when all others run, and not before the last one was taken back: a majority
    /// that is gone for good is nobody's promise.
    fn wipe(self: &Arc<Self>, region: usize, down_ms: u64) -> Option<tokio::task::JoinHandle<()>> {
        let permit = Arc::clone(&self.wiping).try_acquire_owned().ok()?;
        if !self.take(region) {
            return None;
        }
        self.note("wipe", region, "");
        let chaos = Arc::clone(self);
        let before = self.taken_back(region);
        Some(tokio::spawn(async move {
            chaos.killed(region, down_ms, true).await;
            // Until then its old voter counts for the majority, and another loss would be one too many.
            for _ in 0..1_200 {
                if chaos.taken_back(region) > before {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            chaos.event(&format!("{} is back", chaos.cluster.regions[region].name));
            drop(permit);
        }))
    }

    /// How often leaders have said that the region's new directory votes.
    fn taken_back(&self, region: usize) -> usize {
        let name = self.cluster.regions[region].name;
        let logs = self.cluster.regions.iter().map(crate::cluster::Region::log);
        logs.map(|log| {
            log.lines()
                .filter(|line| line.contains("it was taken back") && line.contains(name))
                .count()
        })
        .sum()
    }

    async fn transfer(&self, from: usize, to: usize) {
        let Ok(_permit) = self.moving.acquire().await else {
            return;
        };
        let name = self.cluster.regions[to].name;
        let answer = self.cluster.regions[from]
            .admin(
                Method::POST,
                "/admin/v1/cluster/leader",
                &json!({ "region": name }),
            )
            .await;
        let status = answer.map_or(0, |answer| answer.status);
        self.event(&format!("transfer to {name}: {status}"));
    }

    /// An amount is raised or lowered, or a counter is reset.
    async fn change(self: Arc<Self>, seed: u64) {
        let Ok(_permit) = self.moving.acquire().await else {
            return;
        };
        let mut random: StdRng = rand::SeedableRng::seed_from_u64(seed);
        let region = &self.cluster.regions[random.random_range(0..self.cluster.regions.len())];
        if random.random_bool(0.5) {
            let changing: Vec<_> = LIMITS.iter().filter(|limit| limit.changes).collect();
            let limit = changing[random.random_range(0..changing.len())];
            let quota = random.random_range(limit.quota / 4..=limit.quota * 2);
            self.amounts
                .begin(limit.name, quota, self.cluster.clock.now());
            let path = format!("/admin/v1/limits/{}", limit.name);
            let answer = region
                .admin(Method::PUT, &path, &limit.definition(quota))
                .await;
            let is_done = answer
                .as_ref()
                .is_ok_and(super::cluster::Answer::is_success);
            if is_done {
                self.amounts
                    .acknowledged(limit.name, self.cluster.clock.now());
            }
            let status = answer.map_or(0, |answer| answer.status);
            self.record.fault(if is_done {
                "amount changed"
            } else {
                "amount in doubt"
            });
            self.event(&format!("{} = {quota}: {status}", limit.name));
            return;
        }
        let windowed: Vec<_> = LIMITS
            .iter()
            .filter(|limit| matches!(limit.kind, Kind::Windowed(_)))
            .collect();
        let limit = windowed[random.random_range(0..windowed.len())];
        let tenant = TENANTS[random.random_range(0..TENANTS.len())];
        let key = format!("user {}", random.random_range(0..KEYS));
        let sent = self.cluster.clock.now();
        let path = format!("/admin/v1/tenants/{tenant}/limits/{}/reset", limit.name);
        let answer = region
            .admin(Method::POST, &path, &json!({ "key": key }))
            .await;
        let status = answer.map_or(0, |answer| answer.status);
        let answered = if status == 200 {
            self.cluster.clock.now()
        } else {
            i64::MAX - 1_000_000
        };
        self.record.fault("reset");
        self.event(&format!("reset {} {tenant} {key}: {status}", limit.name));
        self.record
            .resets
            .lock()
            .push((limit.name, tenant, key, sent, answered));
    }

    /// Ends every fault that still runs.
    pub async fn heal(&self) {
        for region in &self.cluster.regions {
            region.resume().await;
            let faults = region
                .admin(Method::GET, "/admin/v1/faults", &Value::Null)
                .await;
            let faults = faults.map(|faults| faults.body).unwrap_or_default();
            for fault in faults["faults"].as_array().into_iter().flatten() {
                let id = fault["id"].as_str().unwrap_or_default();
                let path = format!("/admin/v1/faults/{id}");
                region.admin(Method::DELETE, &path, &Value::Null).await.ok();
            }
        }
        self.event("healed");
    }
}
