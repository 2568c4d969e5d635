//! Strict limits under faults, with real processes: no caller is ever told yes too often.
//!
//! Regions on loopback, 40 ms apart, serve callers in every region while processes are killed, paused, ended
//! and lose their directories, links are cut (one way too), slow and lossy, clocks are off, disks are full,
//! the lead is moved, amounts are changed and counters are reset. Afterwards, from nothing but what callers
//! were told:
//!
//! - in every window of every counter: units allowed − units given back ≤ the largest amount that was in
//!   force (an amount in doubt counts as in force; an answer that never came counts as nothing allowed);
//! - over any interval a bucket gives its capacity and what is refilled in it; at no instant are more leases
//!   held than there are;
//! - keyed calls count once in whichever region they are repeated: use is their sum, exactly, in all regions;
//! - the ledger's proof of a window is the same in all regions, adds up, and covers what was allowed;
//! - healed, the regions come together: one leader, equal catalogues, and a new limit's whole amount is used
//!   up from all regions, to the last unit.
//!
//! `cargo test --test chaos` runs for 25 s. `HIGHWATER_CHAOS_SECONDS`, `HIGHWATER_CHAOS_REGIONS` (3; up to 5),
//! `HIGHWATER_CHAOS_SEED` and `HIGHWATER_CHAOS_CALLERS` (per region) change the run; all are printed. The seed
//! chooses faults and load; their timing is the machine's. Logs of the processes, data, answers and events are
//! kept when it fails, in a directory whose name is printed; with `HIGHWATER_CHAOS_KEEP=1` always.

mod audit;
mod clock;
mod cluster;
mod faults;
mod limits;
mod load;
mod record;
mod settle;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use reqwest::Method;

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::faults::Chaos;
use crate::limits::Amounts;
use crate::load::Load;
use crate::record::Record;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}

#[test]
fn strict_limits_hold_under_faults() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let directory = tempfile::Builder::new()
        .prefix("highwater-chaos-")
        .tempdir()
        .expect("a directory");
    let root = directory.keep();
    println!("logs, data and findings: {}", root.display());
    runtime.block_on(run(&root));
    if std::env::var_os("HIGHWATER_CHAOS_KEEP").is_none() {
        std::fs::remove_dir_all(&root).expect("what a good run leaves is removed");
    }
}

async fn run(root: &std::path::Path) {
    let seconds = setting("HIGHWATER_CHAOS_SECONDS", 25);
    let regions = usize::try_from(setting("HIGHWATER_CHAOS_REGIONS", 3)).expect("few");
    let callers = usize::try_from(setting("HIGHWATER_CHAOS_CALLERS", 30)).expect("few");
    let seed = setting("HIGHWATER_CHAOS_SEED", rand::random());
    println!(
        "HIGHWATER_CHAOS_SECONDS={seconds} HIGHWATER_CHAOS_REGIONS={regions} HIGHWATER_CHAOS_SEED={seed} \
         HIGHWATER_CHAOS_CALLERS={callers}"
    );
    let clock = Clock::start();
    let cluster = Arc::new(Cluster::new(root, regions, "40ms", clock));
    cluster.found(&limits::catalogue()).await;
    let record = Arc::new(Record::default());
    let amounts = Arc::new(Amounts::new());
    let load = Arc::new(Load {
        cluster: Arc::clone(&cluster),
        record: Arc::clone(&record),
        stopped: AtomicBool::new(false),
        keys: AtomicU64::new(0),
    });
    let callers = load::start(&load, callers, seed);
    let chaos = Chaos::new(&cluster, &record, &amounts);
    let until = clock.now() + i64::try_from(seconds * 1_000).expect("short");
    let telling = tokio::spawn(tell_progress(Arc::clone(&record), clock));
    Arc::clone(&chaos)
        .run(StdRng::seed_from_u64(seed), until)
        .await;
    chaos.heal().await;
    load.stopped.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("a caller ends");
    }
    telling.abort();
    println!(
        "{} s: faults and load are over",
        clock.since_start_ms() / 1_000
    );
    let report = audit::judge(&record, &amounts, root);
    let events = record.events.lock().join("\n");
    for event in events
        .lines()
        .filter(|line| line.contains("is still asked") || line.contains("tries:"))
        .take(20)
    {
        println!("{event}");
    }
    std::fs::write(root.join("events.txt"), events).expect("the events are written");
    let lines = |all: Vec<String>| all.join("\n");
    let told = record
        .told()
        .iter()
        .map(|told| format!("{told:?}"))
        .collect();
    std::fs::write(root.join("told.txt"), lines(told)).expect("the answers are written");
    let given = record
        .given()
        .iter()
        .map(|given| format!("{given:?}"))
        .collect();
    std::fs::write(root.join("given.txt"), lines(given)).expect("what went back is written");
    println!("faults: {:?}", record.faults.lock());
    println!("answers: {:?}", report.answers);
    println!("given back: {:?}", record.given_answers.lock());
    println!("allowed by: {:?}", report.decided);
    println!(
        "{} windows, {} of them full, {} units, worst utilisation {} %",
        report.windows, report.full, report.units, report.worst_percent
    );
    println!(
        "{} buckets, worst utilisation {} %",
        report.buckets, report.bucket_percent
    );
    let mut violations = report.violations;
    violations.extend(settle::come_together(&cluster, &record, &report.sums).await);
    for region in &cluster.regions {
        let log = region.log();
        for line in log
            .lines()
            .filter(|line| line.contains("panicked") || line.contains("ERROR"))
        {
            println!("{}: {line}", region.name);
        }
        if log.contains("panicked") {
            violations.push(format!("{} panicked", region.name));
        }
    }
    println!("{} violations", violations.len());
    for violation in violations.iter().take(30) {
        println!("VIOLATION {violation}");
    }
    assert!(
        violations.is_empty(),
        "{} violations; seed {seed}",
        violations.len()
    );
    assert!(report.windows > 0 && report.full > 0, "there was load");
}

async fn tell_progress(record: Arc<Record>, clock: Clock) {
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let [calls, yes, no, other] = record.progress();
        println!(
            "{} s: {calls} calls, {yes} allowed, {no} refused, {other} otherwise",
            clock.since_start_ms() / 1_000
        );
    }
}

impl Cluster {
    /// Starts the regions and sets their catalogue.
    async fn found(&self, catalogue: &serde_json::Value) {
        for region in &self.regions {
            region.start().await;
        }
        let deadline = self.clock.now() + 60_000;
        loop {
            let written = self.regions[0]
                .admin(Method::PUT, "/admin/v1/catalogue", catalogue)
                .await;
            if written.as_ref().is_ok_and(cluster::Answer::is_success) {
                break;
            }
            assert!(
                self.clock.now() < deadline,
                "no cluster was founded: {written:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.wait_whole(Duration::from_secs(60)).await;
    }
}
