//! How many entries of the log three processes commit in a second, beside what their disk does alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::TENANTS;
use crate::cluster::Cluster;
use crate::cluster::Region;
use crate::cluster_in;
use crate::percentile;

/// How long each kind of load runs, and the disk alone before and after all of them.
const RUN: Duration = Duration::from_secs(5);
const DISK_RUN: Duration = Duration::from_secs(2);
const CALLERS: usize = 4;
/// Each caller numbers its checks within a range of its own.
const NUMBERS_OF_CALLER: u64 = 10_000_000;
/// What one synced write of a log that holds one entry is about.
const WRITE_BYTES: usize = 4096;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A key that no region has units of: the region asks, the leader grants.
    Grants,
    /// Each under an idempotency key, of a thousand counters: the leader charges their pools.
    Charges,
    /// The same of one counter.
    ChargesOfOne,
    /// A limit that the log decides check by check.
    Decided,
}

impl Kind {
    fn check(self, number: u64) -> Value {
        let key = match self {
            Self::Grants => number,
            Self::Charges | Self::Decided => number % 1_000,
            Self::ChargesOfOne => 0,
        };
        let limit = match self {
            Self::Grants => "fresh",
            Self::Charges | Self::ChargesOfOne => "charged",
            Self::Decided => "decided",
        };
        // Counters and remembered keys of a tenant are bounded.
        let part = match self {
            Self::Grants => number % TENANTS,
            Self::Charges | Self::ChargesOfOne | Self::Decided => {
                number.saturating_sub(NUMBERS_OF_CALLER) / (CALLERS as u64 * NUMBERS_OF_CALLER)
            }
        };
        let tenant = format!("load-{part}");
        json!({ "tenant": tenant, "limit": limit, "key": key.to_string() })
    }

    /// A batch with the numbers from `first` on: what was answered, status by status. Items of a batch that carry keys
    /// are taken one after the other, so those are calls of their own.
    async fn ask(self, region: &Region, first: u64, count: u64) -> Vec<u64> {
        let numbers = first..first + count;
        if matches!(self, Self::Charges | Self::ChargesOfOne) {
            let calls = numbers.map(|number| async move {
                let key = format!("{first} {number}");
                let answer = region
                    .post("/v1/check", Some(&key), &self.check(number))
                    .await;
                answer.map_or(0, |answer| u64::from(answer.status))
            });
            return join_all(calls).await;
        }
        let items: Vec<Value> = numbers.map(|number| self.check(number)).collect();
        let answer = region
            .post("/v1/check/batch", None, &json!({ "items": items }))
            .await;
        let results = answer.map(|it| it.body["results"].as_array().cloned());
        let results = results.ok().flatten().unwrap_or_default();
        results
            .iter()
            .map(|it| it["status"].as_u64().unwrap_or(0))
            .collect()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Grants => "grants of fresh keys",
            Self::Charges => "keyed charges of 1000 counters",
            Self::ChargesOfOne => "keyed charges of one counter",
            Self::Decided => "checks of sliding windows",
        }
    }
}

/// Synced writes of one file a second, one after the other.
fn fsyncs_per_second(root: &Path) -> f64 {
    let mut file = File::create(root.join("disk alone")).expect("a file");
    let page = [7_u8; WRITE_BYTES];
    let began = Instant::now();
    let mut writes = 0_u32;
    while began.elapsed() < DISK_RUN {
        file.write_all(&page).expect("a write");
        file.sync_data().expect("a sync");
        writes += 1;
    }
    f64::from(writes) / began.elapsed().as_secs_f64()
}

/// The region that says that it leads, once one does.
async fn leader_of(cluster: &Cluster) -> usize {
    for _ in 0..100 {
        for (index, region) in cluster.regions.iter().enumerate() {
            let status = region
                .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
                .await;
            if status.is_ok_and(|status| status.body["role"] == "leader") {
                return index;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no region leads");
}

async fn committed(cluster: &Cluster, leader: usize) -> u64 {
    let status = cluster.regions[leader]
        .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
        .await
        .expect("a status");
    status.body["log"]["committed_index"]
        .as_u64()
        .expect("an index")
}

/// Batches of `kind` at `region` until the time is over: how many checks were answered with which status (0: none
/// came), and the time that each batch took in ms.
async fn caller(
    cluster: Arc<Cluster>,
    region: usize,
    kind: Kind,
    first: u64,
    count: u64,
) -> (BTreeMap<u64, u64>, Vec<f64>) {
    let (mut told_by_status, mut times) = (BTreeMap::new(), Vec::new());
    let began = Instant::now();
    let mut number = first;
    while began.elapsed() < RUN {
        let sent = Instant::now();
        let told = kind.ask(&cluster.regions[region], number, count).await;
        number += count;
        times.push(sent.elapsed().as_secs_f64() * 1e3);
        for status in told {
            *told_by_status.entry(status).or_insert(0) += 1;
        }
    }
    (told_by_status, times)
}

/// Prints a row for each kind of load, at the leader and at another region; so many checks are sent at once by each of
/// a few callers.
pub async fn consensus(root: &Path, count: u64) {
    let window = "3650d";
    let cluster = cluster_in(
        root,
        "0ms",
        json!({
            "fresh": { "algorithm": "fixed_window", "quota": 10, "window": window, "mode": "strict", "key": "k" },
            "charged": { "algorithm": "fixed_window", "quota": 1_000_000_000, "window": window, "mode": "strict", "key": "k" },
            "decided": { "algorithm": "sliding_window", "quota": 1_000_000_000, "window": window, "mode": "strict", "key": "k" },
        }),
        "",
    )
    .await;
    let before = fsyncs_per_second(root);
    println!(
        "| load | checks allowed/s | others by status | entries/s | batch of {count}: p50, p99 ms |"
    );
    println!("|---|---|---|---|---|");
    let mut rates = Vec::new();
    let mut first = 0;
    for kind in [
        Kind::Charges,
        Kind::ChargesOfOne,
        Kind::Decided,
        Kind::Grants,
    ] {
        for at_leader in [true, false] {
            let leader = leader_of(&cluster).await;
            let region = if at_leader { leader } else { (leader + 1) % 3 };
            let from = committed(&cluster, leader).await;
            let began = Instant::now();
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    first += NUMBERS_OF_CALLER;
                    tokio::spawn(caller(Arc::clone(&cluster), region, kind, first, count))
                })
                .collect();
            let (mut others, mut times) = (BTreeMap::new(), Vec::new());
            for caller in callers {
                let (told, took) = caller.await.expect("a caller");
                for (status, times) in told {
                    *others.entry(status).or_insert(0) += times;
                }
                times.extend(took);
            }
            let allowed = others.remove(&200).unwrap_or(0);
            let seconds = began.elapsed().as_secs_f64();
            let entries = committed(&cluster, leader).await - from;
            times.sort_by(f64::total_cmp);
            let place = if at_leader {
                "the leader"
            } else {
                "another region"
            };
            println!(
                "| {} at {place} | {:.0} | {others:?} | {:.0} | {:.0}, {:.0} |",
                kind.name(),
                allowed as f64 / seconds,
                entries as f64 / seconds,
                percentile(&times, 50.0),
                percentile(&times, 99.0),
            );
            rates.push((kind.name(), place, entries as f64 / seconds));
        }
    }
    let after = fsyncs_per_second(root);
    let disk = f64::midpoint(before, after);
    println!("| the disk alone: fsyncs/s | {before:.0} before, {after:.0} after | | | |");
    for (kind, place, rate) in rates {
        println!(
            "| {kind} at {place}: entries committed per fsync of the disk alone | {:.1} | | | |",
            rate / disk
        );
    }
}
