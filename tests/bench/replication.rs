//! What replication costs real regions: `cargo bench --bench replication`, or parts of it by name.
//!
//! - `cost [SECONDS]`: three regions that tell each other of 100 000 approximate counters, each charged once a
//!   second, beside three regions that know of nobody, under the same load, in turns of so many seconds (10).
//!   Tells what of a core one region takes, and the CPU time of a check, with replication and without.
//! - `soak [SECONDS]`: three regions under twice the quota of many keys, a tenth of them new ones each minute,
//!   for so long (600). Prints every 10 s what a region's process, files and queues come to, and whether they
//!   level off: the most of the last third is within a fifth of the most of the third before.
//!
//! `HIGHWATER_BENCH_RATE` is the number of checks a second of all regions together (`cost`: 100 000 or what the
//! machine can do; `soak`: 6000), `HIGHWATER_BENCH_ITEMS` that of a batch (500); 1 asks one check a call.

#[path = "../chaos/clock.rs"]
mod clock;
#[allow(dead_code, reason = "the harness is shared with the fault runs")]
#[path = "../chaos/cluster.rs"]
mod cluster;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::clock::Clock;
use crate::cluster::Cluster;

/// Counters that are charged.
const KEYS: usize = 100_000;
/// Checks of one batch, unless it is said otherwise.
const ITEMS: u64 = 500;
/// Batches on their way to one region.
const CALLERS: usize = 4;
const REGIONS: usize = 3;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}

fn approximate(quota: u64) -> Value {
    json!({ "plans": { "all": {} }, "tenants": { "acme": { "plan": "all" } },
        "limits": { "calls": { "algorithm": "fixed_window", "quota": quota, "window": "60s", "key": "user",
            "mode": "approximate" } } })
}

async fn cluster_in(root: &Path, regions: usize, quota: u64) -> Arc<Cluster> {
    let cluster = Arc::new(Cluster::new(root, regions, "0ms", Clock::start()));
    for region in &cluster.regions {
        region.start().await;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let written = cluster.regions[0]
            .admin(Method::PUT, "/admin/v1/catalogue", &approximate(quota))
            .await;
        if written.as_ref().is_ok_and(cluster::Answer::is_success) {
            break;
        }
        assert!(Instant::now() < deadline, "not founded: {written:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    cluster.wait_whole(Duration::from_secs(60)).await;
    cluster
}

/// A batch of checks, or the one check.
fn batch(keys: impl Iterator<Item = usize>) -> Value {
    let mut items: Vec<Value> = keys
        .map(|key| json!({ "tenant": "acme", "limit": "calls", "key": format!("user {key}") }))
        .collect();
    if let [only] = items.as_mut_slice() {
        return only.take();
    }
    json!({ "items": items })
}

/// Where a [`batch`] is sent.
fn path(batch: &Value) -> &'static str {
    if batch["items"].is_null() {
        "/v1/check"
    } else {
        "/v1/check/batch"
    }
}

/// How many checks of a batch passed and how many were refused by the limit; `None` where any came to something else,
/// which is no check at all.
fn decided(answer: &Result<cluster::Answer, String>) -> Option<(u64, u64)> {
    let answer = answer.as_ref().ok()?;
    if !answer.body["decision"].is_null() {
        return match answer.status {
            200 => Some((1, 0)),
            429 => Some((0, 1)),
            _ => None,
        };
    }
    if !answer.is_success() {
        return None;
    }
    let mut decided = (0, 0);
    for item in answer.body["results"].as_array()? {
        match item["status"].as_u64()? {
            200 => decided.0 += 1,
            429 => decided.1 += 1,
            _ => return None,
        }
    }
    Some(decided)
}

/// Steady load: every region is asked `per_second / regions` checks a second, in batches.
struct Load {
    regions: Vec<Arc<Cluster>>,
    stopped: AtomicBool,
    asked: AtomicU64,
    passed: AtomicU64,
    failed: AtomicU64,
}

impl Load {
    fn region(&self, index: usize) -> &cluster::Region {
        let of = self.regions.iter().flat_map(|cluster| &cluster.regions);
        of.into_iter().nth(index).expect("a region")
    }

    fn note(&self, answer: &Result<cluster::Answer, String>) {
        match decided(answer) {
            Some((passed, refused)) => {
                self.asked.fetch_add(passed + refused, Ordering::Relaxed);
                self.passed.fetch_add(passed, Ordering::Relaxed);
            }
            None => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Asks region `index` for `batches`, over and over, one every `gap`.
    async fn ask(self: Arc<Self>, index: usize, batches: Vec<Value>, gap: Duration) {
        let mut ticks = tokio::time::interval(gap);
        for batch in batches.iter().cycle() {
            ticks.tick().await;
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let answer = self.region(index).post(path(batch), None, batch).await;
            self.note(&answer);
        }
    }
}

/// User and system time of a process so far, in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// What a region takes of a core, and the CPU time of one of its checks in microseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    of_a_core: f64,
    check_us: f64,
    per_second: f64,
    /// Sent to peers by every check that passed.
    bytes: f64,
    /// Counters told, each peer apart, for every check that passed.
    entries: f64,
}

/// What all regions have sent and told their peers so far.
async fn told(load: &Load) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for index in 0..REGIONS {
        let url = format!("{}/metrics", load.region(index).address(1));
        let metrics = reqwest::get(url).await.expect("the region's metrics");
        let metrics = metrics.text().await.expect("text");
        let sum = |name: &str| -> f64 {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines
                .filter(|line| !line.contains("direction=\"in\""))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        sums.0 += sum("highwater_peer_bytes_total");
        sums.1 += sum("highwater_usage_told_counters_total");
    }
    sums
}

#[allow(clippy::cast_precision_loss, reason = "figures to read")]
async fn turn(clusters: &[Arc<Cluster>], rate: u64, seconds: u64) -> Cost {
    let load = Arc::new(Load {
        regions: clusters.to_vec(),
        stopped: AtomicBool::new(false),
        asked: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let callers = REGIONS * CALLERS;
    let items =
        usize::try_from(setting("HIGHWATER_BENCH_ITEMS", ITEMS)).expect("a number of checks");
    let gap = Duration::from_secs_f64((callers * items) as f64 / rate as f64);
    // A key is asked for in one region, so that all of them are charged once each round.
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let keys: Vec<usize> = (caller..KEYS).step_by(callers).collect();
            let batches = keys.chunks(items).map(|keys| batch(keys.iter().copied()));
            tokio::spawn(Arc::clone(&load).ask(caller % REGIONS, batches.collect(), gap))
        })
        .collect();
    // Counters are made and connections opened before it counts.
    tokio::time::sleep(Duration::from_secs(2 + KEYS as u64 / rate)).await;
    let pids: Vec<u32> = join_all((0..REGIONS).map(|index| load.region(index).pid()))
        .await
        .into_iter()
        .map(|pid| pid.expect("the region runs"))
        .collect();
    let now = || -> f64 { pids.iter().map(|pid| cpu_seconds(*pid)).sum() };
    let before = told(&load).await;
    let (began, asked, cpu) = (Instant::now(), load.asked.load(Ordering::Relaxed), now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let took = began.elapsed().as_secs_f64();
    let asked = (load.asked.load(Ordering::Relaxed) - asked) as f64;
    let cpu = now() - cpu;
    let told = {
        let now = told(&load).await;
        (now.0 - before.0, now.1 - before.1)
    };
    load.stopped.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a caller ends in order");
    }
    assert_eq!(load.failed.load(Ordering::Relaxed), 0, "batches failed");
    // Nothing is refused by this quota: every check is a grant, and what is told of it is a counter.
    let (asked_of, passed) = (&load.asked, load.passed.load(Ordering::Relaxed));
    assert_eq!(passed, asked_of.load(Ordering::Relaxed), "checks refused");
    Cost {
        of_a_core: 100.0 * cpu / took / REGIONS as f64,
        check_us: 1e6 * cpu / asked,
        per_second: asked / took,
        bytes: told.0 / asked,
        entries: told.1 / asked,
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Replication on and off, in turns.
async fn cost(seconds: u64) {
    let rate = setting("HIGHWATER_BENCH_RATE", 100_000);
    let roots: Vec<_> = (0..=REGIONS)
        .map(|_| tempfile::tempdir().expect("a directory"))
        .collect();
    let on = [cluster_in(roots[0].path(), REGIONS, 1_000_000).await];
    let off = join_all(
        roots[1..]
            .iter()
            .map(|root| cluster_in(root.path(), 1, 1_000_000)),
    )
    .await;
    let mut figures = [Vec::new(), Vec::new()];
    for round in 0..6 {
        let is_on = round % 2 == 0;
        let cost = turn(if is_on { &on } else { &off }, rate, seconds).await;
        println!(
            "replication {:3}: {:6.0} checks/s of {} regions, {:5.1} % of a core each, {:5.2} us, {:4.2} entries and \
             {:5.1} bytes to peers a check",
            if is_on { "on" } else { "off" },
            cost.per_second,
            REGIONS,
            cost.of_a_core,
            cost.check_us,
            cost.entries,
            cost.bytes
        );
        figures[usize::from(!is_on)].push(cost);
    }
    let of = |which: usize, figure: fn(&Cost) -> f64| {
        median(figures[which].iter().map(figure).collect())
    };
    println!(
        "on - off: {:.1} % of a core (at most 20 at 100 000 checks/s); off / on: {:.2} of the CPU time of a check (at \
         least 0.95); {:.2} entries a grant (with {} regions a key that changes once a round is told {} times) and {:.1} \
         bytes an entry",
        of(0, |cost| cost.of_a_core) - of(1, |cost| cost.of_a_core),
        of(1, |cost| cost.check_us) / of(0, |cost| cost.check_us),
        of(0, |cost| cost.entries),
        REGIONS,
        REGIONS - 1,
        of(0, |cost| cost.bytes) / of(0, |cost| cost.entries)
    );
}

/// What a region keeps, at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    memory: u64,
    counters: u64,
    log: u64,
    backlog: u64,
}

impl Kept {
    const fn max(self, other: Self) -> Self {
        const fn more(one: u64, other: u64) -> u64 {
            if one > other { one } else { other }
        }
        Self {
            memory: more(self.memory, other.memory),
            counters: more(self.counters, other.counters),
            log: more(self.log, other.log),
            backlog: more(self.backlog, other.backlog),
        }
    }

    /// Whether this is no more than a fifth above `before`, beside a few pages.
    fn is_level(self, before: Self) -> bool {
        let is = |now: u64, before: u64, free: u64| now <= before + before / 5 + free;
        is(self.memory, before.memory, 4 << 20)
            && is(self.counters, before.counters, 1 << 20)
            && is(self.log, before.log, 1 << 20)
            && is(self.backlog, before.backlog, 10_000)
    }
}

fn file_bytes(directory: &Path, name: &str) -> u64 {
    let parts = ["", "-wal"].map(|end| directory.join(format!("{name}{end}")));
    let sizes = parts.iter().filter_map(|part| fs::metadata(part).ok());
    sizes.map(|part| part.len()).sum()
}

async fn kept(cluster: &Cluster, root: &Path) -> Kept {
    let mut most = Kept::default();
    for region in &cluster.regions {
        let pid = region.pid().await.expect("the region runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .expect("its memory");
        let told = region
            .admin(Method::GET, "/admin/v1/cluster", &Value::Null)
            .await
            .expect("an answer");
        let peers = told.body["peers"].as_array().cloned().unwrap_or_default();
        let backlog = peers
            .iter()
            .filter_map(|peer| peer["usage_backlog"].as_u64());
        let data = root.join(region.name).join("data");
        most = most.max(Kept {
            memory: memory << 10,
            counters: file_bytes(&data, "counters.db"),
            log: file_bytes(&data, "log.db"),
            backlog: backlog.max().unwrap_or(0),
        });
    }
    most
}

/// Load for so long; whether all that is kept levels off.
async fn soak(seconds: u64) -> bool {
    let rate = setting("HIGHWATER_BENCH_RATE", 6_000);
    let keys = 10_000;
    let root = tempfile::tempdir().expect("a directory");
    // Twice the quota is asked for.
    let cluster = cluster_in(root.path(), REGIONS, (rate * 60 / keys / 2).max(1)).await;
    let load = Arc::new(Load {
        regions: vec![Arc::clone(&cluster)],
        stopped: AtomicBool::new(false),
        asked: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let began = Instant::now();
    let callers: Vec<_> = (0..REGIONS)
        .map(|region| tokio::spawn(wander(Arc::clone(&load), region, rate, keys, began)))
        .collect();
    let mut seen = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(10));
    ticks.tick().await;
    while began.elapsed() < Duration::from_secs(seconds) {
        ticks.tick().await;
        let now = kept(&cluster, root.path()).await;
        println!(
            "{:4} s: {:8} checks; the most of a region: memory {:4} MB, counters {:6} kB, log {:6} kB, backlog {}",
            began.elapsed().as_secs(),
            load.asked.load(Ordering::Relaxed),
            now.memory >> 20,
            now.counters >> 10,
            now.log >> 10,
            now.backlog
        );
        seen.push(now);
    }
    load.stopped.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("a caller ends in order");
    }
    let third = seen.len() / 3;
    let most = |part: &[Kept]| part.iter().copied().fold(Kept::default(), Kept::max);
    let (before, last) = (most(&seen[third..2 * third]), most(&seen[2 * third..]));
    let is_level = last.is_level(before);
    println!("second third at most {before:?}, last third at most {last:?}: level {is_level}");
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (passed, failed) = (of(&load.passed), of(&load.failed));
    println!("{passed} passed; {failed} batches had no answer, or not to every check");
    // What was not decided was not counted either, and keeps nothing.
    is_level && passed > 0 && failed * 100 <= of(&load.asked)
}

/// Asks one region for keys in turn; every 6 s a hundredth of the keys is replaced by new ones.
async fn wander(load: Arc<Load>, region: usize, rate: u64, keys: u64, began: Instant) {
    let gap = Duration::from_millis(50);
    let items = (rate / REGIONS as u64 / 20).max(1);
    let mut ticks = tokio::time::interval(gap);
    let mut at = region as u64;
    while !load.stopped.load(Ordering::Relaxed) {
        ticks.tick().await;
        let moved = began.elapsed().as_secs() / 6 * (keys / 100);
        let asked: Vec<usize> = (0..items)
            .map(|item| usize::try_from(moved + (at + item * 7) % keys).expect("few"))
            .collect();
        at = (at + items * 7) % keys;
        let answer = load
            .region(region)
            .post("/v1/check/batch", None, &batch(asked.into_iter()))
            .await;
        load.note(&answer);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let number = |default: u64| {
        arguments.get(1).map_or(default, |number| {
            number
                .parse()
                .unwrap_or_else(|_| panic!("{number} is no number of seconds"))
        })
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let is_well = match arguments.first().map(String::as_str) {
        None | Some("cost") => {
            runtime.block_on(cost(number(10)));
            true
        }
        Some("soak") => runtime.block_on(soak(number(600))),
        Some(other) => panic!("{other}: give cost or soak"),
    };
    if !is_well {
        std::process::exit(1);
    }
}
