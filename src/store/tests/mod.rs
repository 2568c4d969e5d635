//! Tests of the store through its public face, on real files.

mod backups;
mod decoding;
mod durability;
mod failing;
mod folding;
mod lanes;
mod opening;
mod voting;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use tempfile::TempDir;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::hold::HoldKey;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::HoldState;
use crate::ledger::idempotency::KeptAnswer;
use crate::ledger::idempotency::Operation;
use crate::ledger::idempotency::RequestId;
use crate::store::Batch;
use crate::store::Change;
use crate::store::Kept;
use crate::store::OpenError;
use crate::store::Opened;
use crate::store::Restored;
use crate::store::Sink;
use crate::store::Store;
use crate::store::StoreError;
use crate::usage::actor::ActorId;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;
use crate::usage::record::slots;

/// An instant in 2026 in the middle of everything.
pub fn noon() -> Timestamp {
    Timestamp::from_unix_ms(1_790_000_000_000)
}

pub fn after_noon(seconds: u64) -> Timestamp {
    noon().plus(Span::from_seconds(seconds))
}

pub fn region() -> RegionName {
    RegionName::new("us-east-1").expect("a region's name")
}

pub fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Opens a store as a new process would: with an incarnation of its own.
pub fn try_open(dir: &Path) -> Result<Opened, OpenError> {
    static STARTS: AtomicU64 = AtomicU64::new(1);
    let incarnation = STARTS.fetch_add(1, Ordering::Relaxed) | 1 << 63;
    Store::open(dir, &region(), incarnation)
}

pub fn open(dir: &Path) -> Opened {
    try_open(dir).expect("a store that opens")
}

pub fn counter_id(key: u64) -> CounterId {
    CounterId {
        limit: LimitName::new("searches").expect("a limit's name"),
        tenant: format!("tenant-{:04}", key % 1_000).into(),
        key: format!("user-{key:08x}").into(),
    }
}

/// A counter of one window in which `actor` has charged `p`; it ends a minute after noon.
pub fn record(key: u64, actor: ActorId, p: u64) -> CounterRecord {
    let mut record = CounterRecord::empty(counter_id(key), 1);
    record.set_slot(WindowId(noon().as_nanos()), actor, p, 0);
    record.dead_at = after_noon(60);
    record
}

pub fn hold(key: u128, version: u64) -> HoldRecord {
    HoldRecord {
        key: HoldKey(key),
        tenant: "acme".to_owned(),
        receipts: Vec::new(),
        expires_at: after_noon(30),
        forget_at: after_noon(60),
        state: HoldState::Open,
        version,
    }
}

pub fn answer(key: u64) -> KeptAnswer {
    KeptAnswer {
        request: RequestId {
            tenant: "acme".to_owned(),
            operation: Operation::Check,
            key: format!("key-{key}"),
        },
        fingerprint: u128::from(key),
        status: 200,
        headers: vec![("ratelimit".to_owned(), "r=1".to_owned())],
        body: b"{}".as_slice().into(),
        expires_at: after_noon(60),
    }
}

pub fn batch(records: Vec<CounterRecord>) -> Batch {
    Batch {
        records,
        holds: Vec::new(),
        now: noon(),
        covers: None,
    }
}

pub fn kept(records: Vec<CounterRecord>) -> Kept {
    Kept {
        records,
        holds: Vec::new(),
        answers: Vec::new(),
        now: noon(),
    }
}

pub fn change(index: u64) -> Change {
    Change {
        index,
        at: after_noon(index),
        author: "admin".to_owned(),
        summary: format!("change {index}"),
        entry: index.to_be_bytes().to_vec(),
        snapshot: None,
    }
}

/// A sink that joins, as the ledger does.
#[derive(Debug, Default, PartialEq)]
pub struct Collected {
    pub counters: BTreeMap<CounterId, CounterRecord>,
    pub holds: BTreeMap<HoldKey, HoldRecord>,
    pub answers: BTreeMap<RequestId, KeptAnswer>,
}

impl Collected {
    /// What `actor` has charged on `key`, over all windows.
    pub fn charged(&self, key: u64, actor: ActorId) -> u64 {
        let windows = self
            .counters
            .get(&counter_id(key))
            .map(|record| record.windows.values());
        let all = windows.into_iter().flatten().flat_map(slots);
        all.filter(|slot| slot.0 == actor).map(|slot| slot.1).sum()
    }
}

impl Sink for Collected {
    fn counter(&mut self, record: CounterRecord) {
        match self.counters.get_mut(&record.id) {
            Some(known) => known.merge(record),
            None => {
                self.counters.insert(record.id.clone(), record);
            }
        }
    }

    fn hold(&mut self, hold: HoldRecord) {
        if self
            .holds
            .get(&hold.key)
            .is_none_or(|known| known.version < hold.version)
        {
            self.holds.insert(hold.key, hold);
        }
    }

    fn answer(&mut self, answer: KeptAnswer) {
        self.answers.insert(answer.request.clone(), answer);
    }
}

pub fn collect(store: &Store, now: Option<Timestamp>) -> (Collected, Restored) {
    let mut collected = Collected::default();
    let restored = store
        .restore(now, &mut collected)
        .expect("a store that can be read");
    (collected, restored)
}

/// Steps of housekeeping until nothing waits; answers how many.
pub async fn tend_all(store: &Store, now: Timestamp) -> usize {
    for steps in 1..10_000 {
        if !store.tend(now).await.expect("a store that works") {
            return steps;
        }
    }
    panic!("housekeeping does not end");
}

/// What a kill of the process leaves behind: the files as they are now, without locks and shared memory.
pub fn crash_image(dir: &Path, files: &[&str]) -> TempDir {
    let image = directory();
    for file in files {
        let from = dir.join(file);
        if from.exists() {
            fs::copy(from, image.path().join(file)).expect("a copy");
        }
    }
    image
}

/// Both files with their write-ahead logs: a kill of the process.
pub const KILLED: [&str; 4] = ["log.db", "log.db-wal", "counters.db", "counters.db-wal"];
/// The counter file without what was not synced: a power cut, at its worst.
pub const POWER_CUT: [&str; 3] = ["log.db", "log.db-wal", "counters.db"];

/// Rows of a table as another connection sees them.
pub fn count(dir: &Path, file: &str, table: &str) -> u64 {
    let connection = rusqlite::Connection::open(dir.join(file)).expect("a file that opens");
    let sql = format!("SELECT count(*) FROM {table}");
    connection
        .query_row(&sql, [], |row| row.get(0))
        .expect("a table")
}

/// Names and bytes of all files below a directory.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let bytes = fs::read(entry.path()).expect("a file");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}
