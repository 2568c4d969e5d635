//! Strict limits between real regions: `cargo bench --bench regions`, or parts of it by name.
//!
//! - `failover [N]`: the leader's process is killed N times (20), 100 ms of round trip apart from the others,
//!   under steady load of 0.9 of limits of 1000 and 10 000 a minute. Tells how long it takes until a new leader
//!   decides a check, which share of the checks at the other regions was answered meanwhile from
//!   reservations, and that no acknowledged charge was lost and no window exceeded.
//! - `local [WINDOWS]`: three regions, 40 ms one way, limits of 100, 1000 and 10 000 a minute at 0.9 and 2 times their
//!   amount, beside a regional limit and, afterwards in the same run, pure routing (limits of the same amounts at 0.9, of
//!   which the leader decides each check, because it carries a key). Tells which share of what was allowed came from
//!   reservations, and how long answers took, over so many minutes (2).
//! - `transfer [N]`: the lead is handed over N times (6) under the load of `failover`. Tells refusals and
//!   waits.
//! - `consensus [BATCH]`: three processes without a delay on one disk; four callers send batches of checks (250) of
//!   which each needs an entry of the log. Tells entries committed per second, also as a ratio to the disk's fsyncs per second in the same run.
//! - `soak [SECONDS]`: three regions under steady strict load (600 s). Every 10 s it tells the sizes of their files,
//!   the entries in their logs and their memory, in the end whether all that levels off; if not, it exits with 1.
//!
//! Processes are those of the profile that the bench is built with; logs are kept when it fails.

#[path = "../chaos/clock.rs"]
mod clock;
#[allow(dead_code, reason = "the harness is shared with the fault runs")]
#[path = "../chaos/cluster.rs"]
mod cluster;
#[path = "regions/commits.rs"]
mod commits;
#[path = "regions/soak.rs"]
mod soak;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;
use rand::RngExt;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::clock::Clock;
use crate::cluster::Cluster;

/// Tenants beside `acme`, named by number: what is bounded for each of them is spread over all.
const TENANTS: u64 = 64;

/// One answer to a check of the load.
#[derive(Clone, Debug)]
struct Told {
    limit: &'static str,
    region: usize,
    sent: Instant,
    took: Duration,
    /// 0: none came.
    status: u16,
    by: String,
    window: i64,
}

/// A steady load on one limit: so many checks a minute in all, spread over the regions.
#[derive(Clone, Copy, Debug)]
struct Flow {
    limit: &'static str,
    per_minute: u64,
    /// Each check carries a key of its own: the leader decides it.
    routed: bool,
}

struct Load {
    cluster: Arc<Cluster>,
    told: Mutex<Vec<Told>>,
    keys: AtomicU64,
    stopped: AtomicBool,
}

fn strict(quota: u64) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": "60s", "mode": "strict" })
}

async fn cluster_in(root: &Path, latency: &str, limits: Value, settings: &str) -> Arc<Cluster> {
    let cluster = Cluster::with_settings(root, 3, latency, Clock::start(), settings);
    let cluster = Arc::new(cluster);
    for region in &cluster.regions {
        region.start().await;
    }
    let names = (0..TENANTS).map(|part| format!("load-{part}"));
    let tenants: BTreeMap<String, Value> = names
        .chain(["acme".to_owned()])
        .map(|name| (name, json!({ "plan": "all" })))
        .collect();
    let catalogue = json!({ "plans": { "all": {} }, "limits": limits, "tenants": tenants });
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let written = cluster.regions[0]
            .admin(Method::PUT, "/admin/v1/catalogue", &catalogue)
            .await;
        if written.as_ref().is_ok_and(cluster::Answer::is_success) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "no cluster was founded: {written:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    cluster.wait_whole(Duration::from_secs(60)).await;
    cluster
}

impl Load {
    fn new(cluster: &Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            told: Mutex::default(),
            keys: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Begins `flow` in every region: checks at even distances, whatever became of those before.
    fn begin(self: &Arc<Self>, flow: Flow) {
        let regions = self.cluster.regions.len();
        for region in 0..regions {
            let load = Arc::clone(self);
            tokio::spawn(async move {
                let gap = Duration::from_secs(60 * regions as u64)
                    / u32::try_from(flow.per_minute).expect("few");
                let offset = rand::rng().random_range(0..gap.as_micros());
                tokio::time::sleep(Duration::from_micros(u64::try_from(offset).expect("short")))
                    .await;
                let mut ticks = tokio::time::interval(gap);
                while !load.stopped.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    tokio::spawn(Arc::clone(&load).check(flow, region));
                }
            });
        }
    }

    async fn check(self: Arc<Self>, flow: Flow, region: usize) {
        let limit = flow.limit;
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        let key = flow
            .routed
            .then(|| format!("{:p}-{key}", Arc::as_ptr(&self)));
        let sent = Instant::now();
        let body = json!({ "tenant": "acme", "limit": limit });
        let answer = self.cluster.regions[region]
            .post("/v1/check", key.as_deref(), &body)
            .await;
        let took = sent.elapsed();
        let (status, result) = answer.map_or((0, Value::Null), |answer| {
            (answer.status, answer.body["results"][0].clone())
        });
        self.told.lock().push(Told {
            limit,
            region,
            sent,
            took,
            status,
            by: result["decided_by"].as_str().unwrap_or_default().to_owned(),
            window: result["window_start_ms"].as_i64().unwrap_or(0),
        });
    }

    /// No window has more than its limit allows.
    fn assert_not_exceeded(&self, quotas: &[(&str, u64)]) {
        let mut windows: BTreeMap<(&str, i64), u64> = BTreeMap::new();
        for told in self.told.lock().iter().filter(|told| told.status == 200) {
            *windows.entry((told.limit, told.window)).or_default() += 1;
        }
        for ((limit, window), used) in windows {
            for (_, quota) in quotas.iter().filter(|(name, _)| *name == limit) {
                assert!(used <= *quota, "{limit} in {window}: {used} of {quota}");
            }
        }
    }
}

/// The value below which `percent` of a sorted list lie.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (sorted.len() as f64 * percent / 100.0) as usize;
    sorted
        .get(place.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

const FLOWS: [Flow; 2] = [
    Flow {
        limit: "m1000",
        per_minute: 900,
        routed: false,
    },
    Flow {
        limit: "m10000",
        per_minute: 9_000,
        routed: false,
    },
];
const QUOTAS: [(&str, u64); 2] = [("m1000", 1_000), ("m10000", 10_000)];

fn failover_limits() -> Value {
    json!({
        "m1000": strict(1_000), "m10000": strict(10_000),
        "probe": { "algorithm": "fixed_window", "quota": 1_000_000_000, "window": "3650d", "mode": "strict" },
    })
}

/// Sends keyed checks to a region, which only a leader decides, until one is answered; how many were
/// allowed in all, and when the first was heard.
async fn probe(
    cluster: &Arc<Cluster>,
    region: usize,
    allowed: &Arc<AtomicU64>,
    keys: &AtomicU64,
) -> Instant {
    let (tell, mut heard) = tokio::sync::mpsc::channel(1_024);
    let mut ticks = tokio::time::interval(Duration::from_millis(25));
    loop {
        tokio::select! {
            Some(first) = heard.recv() => return first,
            _ = ticks.tick() => {
                let key = format!("probe-{}", keys.fetch_add(1, Ordering::Relaxed));
                let (cluster, tell, allowed) = (Arc::clone(cluster), tell.clone(), Arc::clone(allowed));
                tokio::spawn(async move {
                    let body = json!({ "tenant": "acme", "limit": "probe" });
                    // Until it is answered: a charge must be told, or its loss could not be seen.
                    for _ in 0..200 {
                        let answer = cluster.regions[region].post("/v1/check", Some(&key), &body).await;
                        if answer.is_ok_and(|answer| answer.status == 200) {
                            allowed.fetch_add(1, Ordering::Relaxed);
                            tell.try_send(Instant::now()).ok();
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(25)).await;
                    }
                });
            }
        }
    }
}

async fn failover(root: &Path, times: u64) {
    let cluster = cluster_in(root, "50ms", failover_limits(), "").await;
    let load = Load::new(&cluster);
    FLOWS.iter().for_each(|flow| load.begin(*flow));
    // A region that starts twice within a minute is granted only what checks wait for.
    tokio::time::sleep(Duration::from_secs(65)).await;
    let (allowed, keys) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let mut gaps = Vec::new();
    let mut shares: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 0..times {
        let leader = cluster.leader().await.expect("a leader");
        let other = (leader + 1) % 3;
        // Anywhere in the window.
        let pause = rand::rng().random_range(0..8_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let killed = Instant::now();
        cluster.regions[leader].kill().await;
        let first = probe(&cluster, other, &allowed, &keys).await;
        let gap = first.duration_since(killed);
        // Answers of checks that were sent in the gap are all there a moment later.
        tokio::time::sleep(Duration::from_secs(5)).await;
        print!("{round}: {} ms", gap.as_millis());
        for (limit, _) in QUOTAS {
            let told = load.told.lock();
            let in_gap: Vec<&Told> = told
                .iter()
                .filter(|told| told.limit == limit && told.region != leader)
                .filter(|told| told.sent >= killed && told.sent < first)
                .collect();
            let from_reservation = in_gap
                .iter()
                .filter(|told| told.status == 200 && told.by == "reservation");
            let quick = from_reservation
                .filter(|told| told.took < Duration::from_millis(90))
                .count();
            let share = 100.0 * quick as f64 / in_gap.len().max(1) as f64;
            print!(", {limit}: {share:.1} % of {}", in_gap.len());
            shares.entry(limit).or_default().push(share);
        }
        println!();
        gaps.push(gap.as_secs_f64() * 1e3);
        cluster.regions[leader].start().await;
        cluster.wait_whole(Duration::from_secs(60)).await;
        tokio::time::sleep(Duration::from_secs(12)).await;
    }
    load.stopped.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    load.assert_not_exceeded(&QUOTAS);
    let used = cluster.regions[0]
        .get("/v1/usage?tenant=acme&limit=probe")
        .await
        .expect("an answer");
    let used = used.body["results"][0]["used"].as_u64();
    let allowed = allowed.load(Ordering::Relaxed);
    assert_eq!(
        used,
        Some(allowed),
        "every acknowledged charge is counted, once"
    );
    let most = gaps.iter().copied().fold(0.0, f64::max);
    println!(
        "| fail-over, {times} times: time to the next grant of a new leader | mean {:.0} ms, max {most:.0} ms | ≤ 3500 ms |",
        mean(&gaps)
    );
    for (limit, shares) in shares {
        let least = shares.iter().copied().fold(f64::MAX, f64::min);
        println!(
            "| meanwhile answered from reservations, {limit} | mean {:.1} %, least {least:.1} % | ≥ 97 % |",
            mean(&shares)
        );
    }
    println!("| acknowledged keyed charges lost or doubled, of {allowed} | 0 | 0 |");
}

/// Limits for pure routing, beside those of the same amounts that are spent from reservations.
fn is_routed(limit: &str) -> bool {
    limit.starts_with('r') && limit != "regional"
}

/// One row of the table of `local`: what became of the checks of one limit that were sent after `from`.
fn print_flow(limit: &str, what: &str, told: &[Told], from: Instant) {
    let of: Vec<&Told> = told
        .iter()
        .filter(|told| told.limit == limit && told.sent >= from)
        .collect();
    let yes: Vec<&&Told> = of.iter().filter(|told| told.status == 200).collect();
    let held = yes.iter().filter(|told| told.by == "reservation").count();
    let quick = yes
        .iter()
        .filter(|told| told.by == "reservation" && told.took < Duration::from_millis(70))
        .count();
    let other = of
        .iter()
        .filter(|told| !matches!(told.status, 200 | 429))
        .count();
    let times = |told: &[&Told]| {
        let mut times: Vec<f64> = told
            .iter()
            .map(|told| told.took.as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let all = times(&of);
    let how = if is_routed(limit) {
        ", each check by the leader"
    } else {
        ""
    };
    println!(
        "| {limit} at {what}{how} | {} checks, {} allowed, {:.1} % of them from reservations, {:.1} % without a wait, {other} out of reach | p50 {:.2} ms, p99 {:.1} ms |",
        of.len(),
        yes.len(),
        100.0 * held as f64 / yes.len().max(1) as f64,
        100.0 * quick as f64 / yes.len().max(1) as f64,
        percentile(&all, 50.0),
        percentile(&all, 99.0),
    );
}

async fn local(root: &Path, windows: u64) {
    let regional = json!({ "algorithm": "fixed_window", "quota": 1_000_000, "window": "60s" });
    let limits = json!({
        "m100": strict(100), "m1000": strict(1_000), "m10000": strict(10_000),
        "x100": strict(100), "x1000": strict(1_000), "x10000": strict(10_000), "regional": regional,
        "r100": strict(100), "r1000": strict(1_000), "r10000": strict(10_000),
    });
    let cluster = cluster_in(root, "40ms", limits, "").await;
    for (what, flows) in [
        (
            "0.9 ×",
            [
                ("m100", 90),
                ("m1000", 900),
                ("m10000", 9_000),
                ("regional", 9_000),
            ],
        ),
        (
            "2 ×",
            [
                ("x100", 200),
                ("x1000", 2_000),
                ("x10000", 20_000),
                ("regional", 9_000),
            ],
        ),
        // By itself, because it loads the leader much more than the others do.
        (
            "0.9 ×",
            [
                ("r100", 90),
                ("r1000", 900),
                ("r10000", 9_000),
                ("regional", 9_000),
            ],
        ),
    ] {
        let load = Load::new(&cluster);
        for (limit, per_minute) in flows {
            load.begin(Flow {
                limit,
                per_minute,
                routed: is_routed(limit),
            });
        }
        // The first window is not counted: nobody knows the demand yet.
        tokio::time::sleep(Duration::from_secs(62)).await;
        let from = Instant::now();
        tokio::time::sleep(Duration::from_secs(60 * windows)).await;
        load.stopped.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let told = load.told.lock().clone();
        for (limit, _) in flows {
            print_flow(limit, what, &told, from);
        }
        load.assert_not_exceeded(&[
            ("m100", 100),
            ("m1000", 1_000),
            ("m10000", 10_000),
            ("x100", 100),
            ("x1000", 1_000),
            ("x10000", 10_000),
            ("r100", 100),
            ("r1000", 1_000),
            ("r10000", 10_000),
        ]);
    }
}

async fn transfer(root: &Path, times: u64) {
    let cluster = cluster_in(root, "50ms", failover_limits(), "").await;
    let load = Load::new(&cluster);
    FLOWS.iter().for_each(|flow| load.begin(*flow));
    tokio::time::sleep(Duration::from_secs(70)).await;
    let from = Instant::now();
    for _ in 0..times {
        let leader = cluster.leader().await.expect("a leader");
        let to = cluster.regions[(leader + 1) % 3].name;
        let began = Instant::now();
        let moved = cluster.regions[leader]
            .admin(
                Method::POST,
                "/admin/v1/cluster/leader",
                &json!({ "region": to }),
            )
            .await
            .expect("an answer");
        assert!(moved.is_success(), "{moved:?}");
        println!("to {to}: {} ms", began.elapsed().as_millis());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    load.stopped.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    load.assert_not_exceeded(&QUOTAS);
    let told = load.told.lock();
    let mut answers: BTreeMap<(&str, u16), u64> = BTreeMap::new();
    let mut slowest = 0.0_f64;
    for told in told.iter().filter(|told| told.sent >= from) {
        *answers.entry((told.limit, told.status)).or_default() += 1;
        slowest = slowest.max(told.took.as_secs_f64() * 1e3);
    }
    println!(
        "| {times} planned moves under 0.9 load: answers by status | {answers:?}, slowest {slowest:.0} ms | 200 only |"
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with('-'))
        .collect();
    let count = arguments.iter().find_map(|it| it.parse().ok());
    let runs = |name: &str| {
        arguments.iter().all(|it| it.parse::<u64>().is_ok())
            || arguments.iter().any(|it| it == name)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut is_fine = true;
    for name in ["failover", "local", "transfer", "consensus", "soak"] {
        if !runs(name) {
            continue;
        }
        let directory = tempfile::Builder::new()
            .prefix("highwater-regions-")
            .tempdir()
            .expect("a directory");
        let root = directory.keep();
        println!("{name}: logs and data in {}", root.display());
        runtime.block_on(async {
            match name {
                "failover" => failover(&root, count.unwrap_or(20)).await,
                "local" => local(&root, count.unwrap_or(2)).await,
                "transfer" => transfer(&root, count.unwrap_or(6)).await,
                "consensus" => commits::consensus(&root, count.unwrap_or(250)).await,
                _ => is_fine &= soak::soak(&root, count.unwrap_or(600)).await,
            }
        });
        std::fs::remove_dir_all(&root).expect("what a good run leaves is removed");
    }
    if !is_fine {
        std::process::exit(1);
    }
}
