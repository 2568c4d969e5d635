//! How fast the store is: flush, fold, restart with a million counters, keeps, backup.
//!
//! `cargo bench --bench store` prints one line per figure; `-- 100000` measures with fewer counters. These
//! are figures to compare on one machine, not tests: nothing here fails.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use ahash::AHashMap;
use highwater::domain::name::LimitName;
use highwater::domain::name::RegionName;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::ledger::hold::HoldRecord;
use highwater::ledger::idempotency::KeptAnswer;
use highwater::store::Batch;
use highwater::store::Kept;
use highwater::store::Sink;
use highwater::store::Store;
use highwater::usage::actor::ActorId;
use highwater::usage::record::CounterId;
use highwater::usage::record::CounterRecord;
use highwater::usage::record::slot;

const FLUSH_RECORDS: u64 = 10_000;
const KEEPS: u64 = 20_000;

fn now() -> Timestamp {
    Timestamp::from_unix_ms(1_790_000_000_000)
}

fn later() -> Timestamp {
    Timestamp::from_unix_ms(1_790_000_010_000)
}

fn record(key: u64, p: u64) -> CounterRecord {
    // Keys are spread like hashes, so that neighbours in a flush are not neighbours on disk.
    let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let id = CounterId {
        limit: LimitName::new("searches").expect("a limit's name"),
        tenant: format!("tenant-{:04}", spread % 1_000).into(),
        key: format!("user-{spread:016x}").into(),
    };
    let mut record = CounterRecord::empty(id, 1);
    record.set_slot(WindowId(now().as_nanos()), ActorId(0), p, 0);
    record.windows_from = Some(WindowId(now().as_nanos()));
    record.dead_at = Timestamp::from_unix_ms(1_800_000_000_000);
    record
}

/// Stands in for the ledger: one map of small states.
#[derive(Default)]
struct Counters(AHashMap<CounterId, u64>);

impl Sink for Counters {
    fn counter(&mut self, record: CounterRecord) {
        let used: u64 = record
            .windows
            .values()
            .map(|counter| slot(counter, ActorId(0)).0)
            .sum();
        let known = self.0.entry(record.id).or_default();
        *known = used.max(*known);
    }

    fn hold(&mut self, _hold: HoldRecord) {}

    fn answer(&mut self, _answer: KeptAnswer) {}
}

fn open(dir: &Path) -> Store {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    let region = RegionName::new("us-east-1").expect("a region's name");
    let incarnation = STARTS.fetch_add(1, Ordering::Relaxed);
    Store::open(dir, &region, incarnation)
        .expect("a store")
        .store
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort();
    let total: Duration = times.iter().sum();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{what}: n {}, total {total:.2?}, p50 {:.2?}, p99 {:.2?}, max {:.2?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
}

async fn flush_all(store: &Store, counters: u64, p: u64) {
    let mut times = Vec::new();
    for first in (0..counters).step_by(usize::try_from(FLUSH_RECORDS).expect("small")) {
        let records = (first..counters.min(first + FLUSH_RECORDS))
            .map(|key| record(key, p))
            .collect();
        let began = Instant::now();
        store
            .flush(Batch {
                records,
                now: now(),
                ..Batch::default()
            })
            .await
            .expect("a flush");
        times.push(began.elapsed());
    }
    report("flush of 10k records", &mut times);
}

async fn tend_all(store: &Store, what: &str) {
    let mut times = Vec::new();
    loop {
        let began = Instant::now();
        let more = store.tend(later()).await.expect("a step");
        times.push(began.elapsed());
        if !more {
            break;
        }
    }
    report(what, &mut times);
}

fn restart(dir: &Path, what: &str) -> Store {
    let began = Instant::now();
    let store = open(dir);
    let opened = began.elapsed();
    let mut counters = Counters::default();
    let restored = store
        .restore(Some(now()), &mut counters)
        .expect("a restore");
    println!(
        "{what}: {} counters in {:.2?} (open {opened:.2?}), {restored:?}",
        counters.0.len(),
        began.elapsed()
    );
    store
}

async fn keeps(store: &Store, callers: u64) {
    let before = store.stats().commits;
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let store = store.clone();
        tasks.spawn(async move {
            let mut times = Vec::new();
            for number in 0..KEEPS / callers {
                let records = vec![record(caller, number)];
                let kept = Kept {
                    records,
                    holds: Vec::new(),
                    answers: Vec::new(),
                    now: now(),
                };
                let began = Instant::now();
                store.keep(kept).await.expect("a keep");
                times.push(began.elapsed());
            }
            times
        });
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.append(&mut done.expect("a caller"));
    }
    let took = began.elapsed();
    let commits = store.stats().commits - before;
    report(
        &format!("keep, {callers} callers at once, {commits} commits in {took:.2?}"),
        &mut times,
    );
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let counters = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(1_000_000);
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    flush_all(&store, counters, 1).await;
    store.close().await.expect("a close");
    let store = restart(dir.path(), "restart from the journal alone");
    tend_all(&store, "fold step, new rows").await;
    store.close().await.expect("a close");
    let store = restart(dir.path(), "restart from rows");
    for p in 2..=5 {
        flush_all(&store, counters.min(100_000), p).await;
    }
    tend_all(&store, "fold step, known rows").await;
    tend_all(&store, "idle step").await;
    keeps(&store, 1).await;
    keeps(&store, 64).await;
    keeps(&store, 1_000).await;
    let elsewhere = tempfile::tempdir().expect("a directory");
    let began = Instant::now();
    let bytes = store
        .backup(&elsewhere.path().join("backup.db"))
        .await
        .expect("a backup");
    println!("backup: {bytes} bytes in {:.2?}", began.elapsed());
    store.close().await.expect("a close");
    for file in ["counters.db", "log.db"] {
        let bytes = std::fs::metadata(dir.path().join(file))
            .expect("a file")
            .len();
        println!("{file}: {bytes} bytes");
    }
}
