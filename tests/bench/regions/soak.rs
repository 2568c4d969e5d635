//! Three regions under steady load for as long as one likes: what they keep, on disk and in memory, levels off.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use rusqlite::Connection;
use rusqlite::OpenFlags;
use serde_json::Value;
use serde_json::json;

use crate::cluster::Cluster;
use crate::cluster::Region;
use crate::cluster_in;

/// Entries of the log a second, over all regions, from checks that the log decides or that carry a key.
const ENTRIES: u64 = 500;
/// Checks a second, over all regions, of limits with reservations.
const SPENT: u64 = 500;
/// One batch of each region in this time.
const EVERY: Duration = Duration::from_millis(200);
const LOOKS: Duration = Duration::from_secs(10);
/// How much larger than in the middle third anything may be in the last one.
const GROWTH_MAX: f64 = 1.2;
/// What is remembered for 35 days and 24 hours by default would not level off in minutes.
const SETTINGS: &str = "strict.keep_closed = \"1m\"\nidempotency.retention = \"1m\"\n";

/// What a region keeps at one time.
#[derive(Clone, Copy, Debug)]
struct Look {
    log_bytes: u64,
    counter_bytes: u64,
    entries: u64,
    resident_kib: u64,
}

/// One of the sizes that were looked at.
type Size = fn(&Look) -> u64;

const SERIES: [(&str, Size); 4] = [
    ("log file, bytes", |look| look.log_bytes),
    ("counter file, bytes", |look| look.counter_bytes),
    ("entries in the log", |look| look.entries),
    ("resident memory, KiB", |look| look.resident_kib),
];

/// A database with its write-ahead log.
fn bytes_of(file: &Path) -> u64 {
    let wal = file.with_extension("db-wal");
    [file, &wal]
        .iter()
        .filter_map(|file| fs::metadata(file).ok())
        .map(|found| found.len())
        .sum()
}

fn entries_in(log: &Path) -> u64 {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let log = Connection::open_with_flags(log, flags).expect("the log file");
    log.query_row(
        "SELECT coalesce(max(idx) - min(idx) + 1, 0) FROM raft_log",
        [],
        |row| row.get(0),
    )
    .unwrap_or(0)
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

async fn look(region: &Region) -> Look {
    let data = region.data_dir();
    Look {
        log_bytes: bytes_of(&data.join("log.db")),
        counter_bytes: bytes_of(&data.join("counters.db")),
        entries: entries_in(&data.join("log.db")),
        resident_kib: resident_kib(region.pid().await.expect("it runs")),
    }
}

/// A batch at one region: checks that the log decides, keyed ones, and ones that are spent from reservations.
fn batch(number: u64, of_entries: u64, of_spent: u64) -> Value {
    let items = (0..of_entries).map(|it| {
        let key = ((number * of_entries + it) % 2_000).to_string();
        if it % 4 == 0 {
            let once = format!("{number} {it}");
            json!({ "tenant": "acme", "limit": "windows", "key": key, "idempotency_key": once })
        } else {
            json!({ "tenant": "acme", "limit": "sliding", "key": key })
        }
    });
    let spent = (0..of_spent).map(|it| {
        let key = ((number * of_spent + it) % 50).to_string();
        json!({ "tenant": "acme", "limit": "windows", "key": key })
    });
    json!({ "items": items.chain(spent).collect::<Vec<Value>>() })
}

async fn load(
    cluster: Arc<Cluster>,
    region: usize,
    stop: Arc<AtomicBool>,
    told: Arc<[AtomicU64; 3]>,
) {
    let batches = 1_000 / u64::try_from(EVERY.as_millis()).expect("short") * 3;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut number = region as u64;
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let body = batch(number, ENTRIES / batches, SPENT / batches);
        number += 3;
        let answer = cluster.regions[region]
            .post("/v1/check/batch", None, &body)
            .await;
        let results = answer
            .ok()
            .and_then(|it| it.body["results"].as_array().cloned());
        for result in results.unwrap_or_default() {
            let place = match result["status"].as_u64() {
                Some(200) => 0,
                Some(429) => 1,
                _ => 2,
            };
            told[place].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The largest of `part` of three.
fn most(looks: &[Look], part: usize, of: Size) -> u64 {
    let third = looks.len() / 3;
    let part = &looks[part * third..];
    part.iter().take(third.max(1)).map(of).max().unwrap_or(0)
}

/// Runs for `seconds`; whether everything levelled off.
pub async fn soak(root: &Path, seconds: u64) -> bool {
    let window = |quota: u64| json!({ "algorithm": "fixed_window", "quota": quota, "window": "10s", "mode": "strict", "key": "k" });
    let cluster = cluster_in(
        root,
        "5ms",
        json!({
            "windows": window(1_000),
            "sliding": { "algorithm": "sliding_window", "quota": 100, "window": "10s", "mode": "strict", "key": "k" },
        }),
        SETTINGS,
    )
    .await;
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let callers: Vec<_> = (0..3)
        .map(|region| {
            let (cluster, stop) = (Arc::clone(&cluster), Arc::clone(&stop));
            tokio::spawn(load(cluster, region, stop, Arc::clone(&told)))
        })
        .collect();
    println!(
        "| s | region | log KiB | entries | counters KiB | resident KiB | allowed, refused, other |"
    );
    println!("|---|---|---|---|---|---|---|");
    let began = Instant::now();
    let mut looks: [Vec<Look>; 3] = Default::default();
    while began.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(LOOKS).await;
        let answers: [u64; 3] = std::array::from_fn(|it| told[it].load(Ordering::Relaxed));
        for (region, looks) in cluster.regions.iter().zip(&mut looks) {
            let now = look(region).await;
            println!(
                "| {} | {} | {} | {} | {} | {} | {answers:?} |",
                began.elapsed().as_secs(),
                region.name,
                now.log_bytes >> 10,
                now.entries,
                now.counter_bytes >> 10,
                now.resident_kib,
            );
            looks.push(now);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("a caller");
    }
    let mut is_level = true;
    for (region, looks) in cluster.regions.iter().zip(&looks) {
        for (what, of) in SERIES {
            let (middle, last) = (most(looks, 1, of), most(looks, 2, of));
            let growth = last as f64 / middle.max(1) as f64;
            let is_fine = growth <= GROWTH_MAX;
            is_level &= is_fine;
            println!(
                "| {}: {what} | most of the middle third {middle}, of the last {last} | {growth:.2} | {} |",
                region.name,
                if is_fine { "levels off" } else { "GROWS" },
            );
        }
    }
    is_level
}
