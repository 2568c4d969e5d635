//! How many entries of the log three processes commit in a second, beside what their disk does alone.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::cluster::Cluster;
use crate::cluster_in;
use crate::percentile;

/// How long each kind of load runs, and the disk alone before and after all of them.
const RUN: Duration = Duration::from_secs(8);
const DISK_RUN: Duration = Duration::from_secs(2);
const CALLERS: usize = 12;
const BATCH: u64 = 200;
/// What one synced write of a log that holds one entry is about.
const WRITE_BYTES: usize = 4096;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A key that no region has units of: the region asks, the leader grants.
    Grants,
    /// Each under an idempotency key: the leader charges the pool.
    Charges,
    /// A limit that the log decides check by check.
    Decided,
}

impl Kind {
    fn item(self, number: u64) -> Value {
        let key = number.to_string();
        match self {
            Self::Grants => json!({ "tenant": "acme", "limit": "fresh", "key": key }),
            Self::Charges => {
                json!({ "tenant": "acme", "limit": "charged", "idempotency_key": key })
            }
            Self::Decided => {
                let key = (number % 1_000).to_string();
                json!({ "tenant": "acme", "limit": "decided", "key": key })
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Grants => "grants of fresh keys",
            Self::Charges => "keyed charges",
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

async fn committed(cluster: &Cluster, leader: usize) -> u64 {
    let status = cluster.regions[leader]
        .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
        .await
        .expect("a status");
    status.body["log"]["committed_index"]
        .as_u64()
        .expect("an index")
}

/// Batches of `kind` at `region` until the time is over: how many checks were allowed, others, and the time that
/// each batch took in ms.
async fn caller(
    cluster: Arc<Cluster>,
    region: usize,
    kind: Kind,
    first: u64,
) -> (u64, u64, Vec<f64>) {
    let (mut allowed, mut others, mut times) = (0, 0, Vec::new());
    let began = Instant::now();
    let mut number = first;
    while began.elapsed() < RUN {
        let items: Vec<Value> = (number..number + BATCH).map(|it| kind.item(it)).collect();
        number += BATCH;
        let sent = Instant::now();
        let answer = cluster.regions[region]
            .post("/v1/check/batch", None, &json!({ "items": items }))
            .await;
        let Ok(answer) = answer else {
            others += BATCH;
            continue;
        };
        times.push(sent.elapsed().as_secs_f64() * 1e3);
        let results = answer.body["results"].as_array().cloned();
        let yes = results
            .unwrap_or_default()
            .iter()
            .filter(|it| it["status"] == 200)
            .count() as u64;
        allowed += yes;
        others += BATCH - yes;
    }
    (allowed, others, times)
}

/// Prints a row for each kind of load, at the leader and at another region.
pub async fn consensus(root: &Path) {
    let window = "3650d";
    let cluster = cluster_in(
        root,
        "0ms",
        json!({
            "fresh": { "algorithm": "fixed_window", "quota": 10, "window": window, "mode": "strict", "key": "k" },
            "charged": { "algorithm": "fixed_window", "quota": 1_000_000_000, "window": window, "mode": "strict" },
            "decided": { "algorithm": "sliding_window", "quota": 1_000_000_000, "window": window, "mode": "strict", "key": "k" },
        }),
        "",
    )
    .await;
    let before = fsyncs_per_second(root);
    println!("| load | checks allowed/s | others | entries/s | batch of {BATCH}: p50, p99 ms |");
    println!("|---|---|---|---|---|");
    let mut rates = Vec::new();
    let mut first = 0;
    for kind in [Kind::Grants, Kind::Charges, Kind::Decided] {
        for at_leader in [true, false] {
            let leader = cluster.leader().await.expect("a leader");
            let region = if at_leader { leader } else { (leader + 1) % 3 };
            let from = committed(&cluster, leader).await;
            let began = Instant::now();
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    first += 10_000_000;
                    tokio::spawn(caller(Arc::clone(&cluster), region, kind, first))
                })
                .collect();
            let (mut allowed, mut others, mut times) = (0, 0, Vec::new());
            for caller in callers {
                let (yes, no, took) = caller.await.expect("a caller");
                allowed += yes;
                others += no;
                times.extend(took);
            }
            let seconds = began.elapsed().as_secs_f64();
            let entries = committed(&cluster, leader).await - from;
            times.sort_by(f64::total_cmp);
            let place = if at_leader {
                "the leader"
            } else {
                "another region"
            };
            println!(
                "| {} at {place} | {:.0} | {others} | {:.0} | {:.0}, {:.0} |",
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
