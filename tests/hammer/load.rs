//! Callers that ask at a steady pace, and what they are told by key and window.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::LIMIT;
use crate::cluster::Cluster;

/// Checks go out in batches, so often in each region.
const EVERY: Duration = Duration::from_millis(50);

/// What callers were told of one key in one window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// 200.
    pub allowed: u64,
    /// 429.
    pub refused: u64,
    /// Of these, refused while the answer said that units were left.
    pub early: u64,
}

/// What callers were told.
#[derive(Debug, Default)]
pub struct Record {
    /// By the window's start and the key.
    pub told: Mutex<BTreeMap<(i64, usize), Told>>,
    /// By key: calls that got no answer.
    pub unanswered: Mutex<BTreeMap<usize, u64>>,
    /// Answers that said degraded.
    pub degraded: AtomicU64,
    /// 503.
    pub unavailable: AtomicU64,
}

impl Record {
    fn answer(&self, key: usize, item: &Value) {
        let result = &item["results"][0];
        self.degraded
            .fetch_add(u64::from(result["degraded"] == true), Ordering::Relaxed);
        let status = item["status"].as_u64();
        if status == Some(503) {
            self.unavailable.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let start = result["window_start_ms"]
            .as_i64()
            .unwrap_or_else(|| panic!("no window: {item}"));
        let mut told = self.told.lock();
        let told = told.entry((start, key)).or_default();
        match status {
            Some(200) => told.allowed += 1,
            Some(429) => {
                told.refused += 1;
                told.early += u64::from(result["remaining"].as_u64() > Some(0));
            }
            _ => panic!("neither allowed nor refused: {item}"),
        }
    }
}

/// One load of all regions.
pub struct Load {
    /// The regions.
    pub cluster: Arc<Cluster>,
    /// Whose counters.
    pub tenant: &'static str,
    /// How many keys.
    pub keys: usize,
    /// Checks a second, of all regions.
    pub rate: u64,
    /// What was told.
    pub record: Record,
    /// The load ends.
    pub stopped: AtomicBool,
}

/// Starts a caller in every region.
pub fn start(load: &Arc<Load>, seed: u64) -> Vec<tokio::task::JoinHandle<()>> {
    (0..load.cluster.regions.len())
        .map(|region| {
            let random = StdRng::seed_from_u64(seed.wrapping_add(region as u64));
            tokio::spawn(run(Arc::clone(load), region, random))
        })
        .collect()
}

async fn run(load: Arc<Load>, region: usize, mut random: StdRng) {
    let regions = load.cluster.regions.len() as u64;
    let ticks_per_second = 1_000 / EVERY.as_millis() as u64;
    let items = (load.rate / regions / ticks_per_second).clamp(1, 500);
    // Regions do not ask at the same instant.
    let first = tokio::time::Instant::now() + EVERY * region as u32 / regions as u32;
    let mut ticks = tokio::time::interval_at(first, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !load.stopped.load(Ordering::Relaxed) {
        ticks.tick().await;
        let keys: Vec<usize> = (0..items)
            .map(|_| random.random_range(0..load.keys))
            .collect();
        let answer = load.cluster.regions[region]
            .post("/v1/check/batch", None, &batch(load.tenant, &keys, 1))
            .await;
        match answer.as_ref().map(|answer| &answer.body["results"]) {
            Ok(Value::Array(results)) if results.len() == keys.len() => {
                for (key, item) in keys.iter().zip(results) {
                    load.record.answer(*key, item);
                }
            }
            Ok(_) => panic!("{region}: {answer:?}"),
            Err(_) => {
                let mut unanswered = load.record.unanswered.lock();
                for key in keys {
                    *unanswered.entry(key).or_default() += 1;
                }
            }
        }
    }
}

/// The body of a batch of checks of `cost`, each of one key.
pub fn batch(tenant: &str, keys: &[usize], cost: u64) -> Value {
    let items: Vec<Value> = keys
        .iter()
        .map(|key| json!({ "tenant": tenant, "limit": LIMIT, "key": format!("user {key}"), "cost": cost }))
        .collect();
    json!({ "items": items })
}
