//! From a directory to a running store: migrate, enrol this process, start the writers.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::DEFAULT_NAME;
use rusqlite::OptionalExtension;
use rusqlite::TransactionBehavior;
use rusqlite::wal::CheckpointMode;
use tokio::sync::mpsc;

use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::store::Inner;
use crate::store::Store;
use crate::store::Threads;
use crate::store::counters::CounterLane;
use crate::store::directory;
use crate::store::directory::Directory;
use crate::store::error::OpenError;
use crate::store::health::HealthBoard;
use crate::store::health::Which;
use crate::store::log::LogLane;
use crate::store::raft;
use crate::store::raft::Identity;
use crate::store::schema;
use crate::store::schema::COUNTERS;
use crate::store::schema::LOG;
use crate::store::schema::Schema;
use crate::store::writer::Lane;
use crate::store::writer::Message;
use crate::store::writer::QUEUE_JOBS_MAX;
use crate::store::writer::Writer;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::ActorTable;

/// A store that has been opened, with what the start of a region needs to know first.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Every process that ever counted here; this one is its `own`.
    pub actors: ActorTable,
    /// Which start of the region's process this is, counted from 1.
    pub start: u32,
    /// Region time of the newest write, if there was one: the clock begins no earlier.
    pub last_time: Option<Timestamp>,
    /// The newest catalogue snapshot.
    pub catalogue: Option<Snapshot>,
    /// The changes after the snapshot, in order.
    pub changes: Vec<StoredChange>,
}

/// The catalogue after one of its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Index of the change.
    pub index: u64,
    /// The catalogue as the caller wrote it.
    pub body: Vec<u8>,
}

/// A change of the catalogue as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredChange {
    /// Place in the log.
    pub index: u64,
    /// Region time of the change.
    pub at: Timestamp,
    /// The change as the caller wrote it.
    pub entry: Vec<u8>,
}

/// What enrolling in the log file gives.
struct Enrolled {
    actors: ActorTable,
    start: u32,
    identity: Identity,
    catalogue: Option<Snapshot>,
    changes: Vec<StoredChange>,
}

/// Opens `dir` for `region`; see [`Store::open`].
pub(super) fn open(dir: &Path, region: &RegionName, incarnation: u64) -> Result<Opened, OpenError> {
    let directory = directory::open(dir, region, incarnation)?;
    let mut log = writable(&directory.log, &LOG)?;
    let mut counters = writable(&directory.counters, &COUNTERS)?;
    let unusable = |path: &PathBuf| {
        let path = path.clone();
        move |error: rusqlite::Error| OpenError::unusable(path, &error)
    };
    let actor = Actor {
        region: region.clone(),
        incarnation,
    };
    let enrolled = enrol(dir, &mut log, &actor)?;
    let flushed = last_flushed(&counters).map_err(unusable(&directory.counters))?;
    let last_time = flushed.max(last_kept(&log).map_err(unusable(&directory.log))?);
    let adopted = adopt_sync(&log, &mut counters, &directory)?;

    let marks = Marks::default();
    marks.covered.store(adopted.covered, Ordering::Release);
    let log_lane = LogLane::new(&log, Arc::clone(&marks.kept)).map_err(unusable(&directory.log))?;
    let counter_lane = CounterLane::new(&counters, Arc::clone(&marks.covered))
        .map_err(unusable(&directory.counters))?;

    let mut starter = Starter {
        health: Arc::new(HealthBoard::default()),
        commits: Arc::new(AtomicU64::new(0)),
        lock: Arc::new(directory.lock),
        threads: Vec::new(),
    };
    if let Some(last_time) = last_time {
        starter.health.saw(last_time);
    }
    let log_path = directory.log;
    let counter_path = directory.counters;
    let log = starter.start(Which::Log, log_path.clone(), &LOG, log, log_lane)?;
    let counters = starter.start(
        Which::Counters,
        counter_path.clone(),
        &COUNTERS,
        counters,
        counter_lane,
    )?;
    let inner = Inner {
        log,
        counters,
        log_path,
        counter_path,
        region: region.clone(),
        health: starter.health,
        commits: starter.commits,
        marks,
        adopted_groups: adopted.groups,
        keeping: AtomicU64::new(0),
        identity: Mutex::new(enrolled.identity),
        raft_committed: Mutex::new(None),
        raft_reader: Mutex::new(None),
        threads: Threads::new(starter.threads),
    };
    let Enrolled {
        actors,
        start,
        catalogue,
        changes,
        ..
    } = enrolled;
    Ok(Opened {
        store: Store::new(inner),
        actors,
        start,
        last_time,
        catalogue,
        changes,
    })
}

fn writable(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    let unusable = |error: rusqlite::Error| OpenError::unusable(path, &error);
    let mut connection = schema::open_writer(path, schema).map_err(unusable)?;
    schema::migrate(&mut connection, schema.migrations).map_err(unusable)?;
    // The scratch of a probe that a crash interrupted.
    connection
        .execute(schema.probe_clear, [])
        .map_err(unusable)?;
    Ok(connection)
}

/// Counts this start and gives this process its number, durably, before it can count anything.
fn enrol(dir: &Path, log: &mut Connection, actor: &Actor) -> Result<Enrolled, OpenError> {
    let enrolled = (|| -> rusqlite::Result<Option<Enrolled>> {
        let tx = log.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (region, incarnation) = (actor.region.as_str(), actor.incarnation.cast_signed());
        let used = "SELECT count(*) FROM actors WHERE region = ?1 AND incarnation = ?2";
        if tx.query_row(used, (region, incarnation), |row| row.get::<_, i64>(0))? > 0 {
            return Ok(None);
        }
        tx.execute(
            "INSERT INTO actors (number, region, incarnation) \
             VALUES ((SELECT coalesce(max(number) + 1, 0) FROM actors), ?1, ?2)",
            (region, incarnation),
        )?;
        tx.execute("UPDATE log_meta SET starts = starts + 1", [])?;
        let start = tx.query_row("SELECT starts FROM log_meta", [], |row| row.get(0))?;
        let actors = read_actors(&tx)?;
        let catalogue = tx
            .query_row("SELECT idx, body FROM snapshot", [], |row| {
                Ok(Snapshot {
                    index: row.get(0)?,
                    body: row.get(1)?,
                })
            })
            .optional()?;
        // The incarnation is random and new, so it serves as the voter's name when one is needed.
        let identity = raft::identify(&tx, actor.incarnation)?;
        let changes = read_changes(&tx, catalogue.as_ref().map_or(0, |snapshot| snapshot.index))?;
        tx.commit()?;
        Ok(Some(Enrolled {
            actors,
            start,
            identity,
            catalogue,
            changes,
        }))
    })()
    .map_err(|error| OpenError::unusable(dir.join(LOG.file), &error))?;
    enrolled.ok_or_else(|| OpenError::IncarnationUsed {
        dir: dir.to_owned(),
        incarnation: actor.incarnation,
    })
}

/// All actors in the order of their numbers, which have no gaps; the one just added is the last.
fn read_actors(log: &Connection) -> rusqlite::Result<ActorTable> {
    let mut select = log.prepare("SELECT region, incarnation FROM actors ORDER BY number")?;
    let rows = select.query_map([], |row| {
        let region: String = row.get(0)?;
        let region = RegionName::new(&region).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(
                0,
                rusqlite::types::Type::Text,
                Box::new(error),
            )
        })?;
        Ok(Actor {
            region,
            incarnation: row.get::<_, i64>(1)?.cast_unsigned(),
        })
    })?;
    let actors: Vec<Actor> = rows.collect::<rusqlite::Result<_>>()?;
    let own = ActorId(u32::try_from(actors.len().saturating_sub(1)).unwrap_or(u32::MAX));
    Ok(ActorTable::new(actors, own))
}

fn read_changes(log: &Connection, after: u64) -> rusqlite::Result<Vec<StoredChange>> {
    let mut select =
        log.prepare("SELECT idx, at, entry FROM changes WHERE idx > ?1 ORDER BY idx")?;
    let rows = select.query_map([after], |row| {
        Ok(StoredChange {
            index: row.get(0)?,
            at: Timestamp::from_nanos(row.get(1)?),
            entry: row.get(2)?,
        })
    })?;
    rows.collect()
}

struct Adopted {
    groups: u64,
    /// Newest sync record whose charges the journal now has, of those that are still there.
    covered: u64,
}

/// Puts what the last process kept but may not have flushed into the journal, where the fold finds it, and
/// lets go of the originals once the counter file surely holds it. Both are written in the same form, and
/// what is adopted twice is joined twice, which changes nothing.
fn adopt_sync(
    log: &Connection,
    counters: &mut Connection,
    directory: &Directory,
) -> Result<Adopted, OpenError> {
    let of_log = |error| OpenError::unusable(&directory.log, &error);
    let of_counters = |error: rusqlite::Error| OpenError::unusable(&directory.counters, &error);
    let mut adopted = Adopted {
        groups: 0,
        covered: 0,
    };
    let tx = counters
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(of_counters)?;
    {
        let mut select = log
            .prepare("SELECT id, at, body FROM sync ORDER BY id")
            .map_err(of_log)?;
        let mut insert = tx
            .prepare("INSERT INTO journal (at, records, body) VALUES (?1, 1, ?2)")
            .map_err(of_counters)?;
        let rows = select.query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?))
        });
        for row in rows.map_err(of_log)? {
            let (id, at, body): (u64, i64, Vec<u8>) = row.map_err(of_log)?;
            adopted.covered = id;
            adopted.groups += 1;
            insert.execute((at, body)).map_err(of_counters)?;
        }
    }
    tx.commit().map_err(of_counters)?;
    if adopted.groups > 0 {
        let (frames, copied) = counters
            .wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::PASSIVE)
            .map_err(of_counters)?;
        if frames >= 0 && frames == copied {
            log.execute("DELETE FROM sync", []).map_err(of_log)?;
            // Numbers begin anew with an empty table; nothing is left that the old ones could cover.
            adopted.covered = 0;
        }
    }
    Ok(adopted)
}

/// Region time of the newest flush.
fn last_flushed(counters: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let at: Option<i64> =
        counters.query_row("SELECT last_time FROM counter_meta", [], |row| row.get(0))?;
    Ok(at.map(Timestamp::from_nanos))
}

/// Region time of the newest sync record that is still there.
fn last_kept(log: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let at: Option<i64> = log
        .query_row("SELECT at FROM sync ORDER BY id DESC LIMIT 1", [], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(at.map(Timestamp::from_nanos))
}

/// How far sync charges have come on their way through the two files.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Newest committed sync record.
    pub kept: Arc<AtomicU64>,
    /// Newest one whose charges are in a committed flush.
    pub covered: Arc<AtomicU64>,
    /// Newest one whose charges are in the counter file after a power cut, too.
    pub durable: AtomicU64,
}

struct Starter {
    health: Arc<HealthBoard>,
    commits: Arc<AtomicU64>,
    lock: Arc<File>,
    threads: Vec<JoinHandle<()>>,
}

impl Starter {
    fn start<L: Lane>(
        &mut self,
        which: Which,
        path: PathBuf,
        schema: &'static Schema,
        connection: Connection,
        lane: L,
    ) -> Result<mpsc::Sender<Message<L::Job>>, OpenError> {
        let (sender, inbox) = mpsc::channel(QUEUE_JOBS_MAX);
        let writer = Writer {
            which,
            path,
            schema,
            lane,
            connection: Some(connection),
            inbox,
            health: Arc::clone(&self.health),
            commits: Arc::clone(&self.commits),
            fault: None,
            lock: Arc::clone(&self.lock),
        };
        let sentinel = Sentinel {
            which,
            health: Arc::clone(&self.health),
        };
        let thread = thread::Builder::new()
            .name(format!("store-{}", schema.kind))
            .spawn(move || {
                let _sentinel = sentinel;
                writer.run();
            })
            .map_err(|error| OpenError::unusable(schema.file, &error))?;
        self.threads.push(thread);
        Ok(sender)
    }
}

/// A writer that panics has failed for good; the store must not look healthy without it.
struct Sentinel {
    which: Which,
    health: Arc<HealthBoard>,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if thread::panicking() {
            self.health
                .fail(self.which, "the writer has stopped".to_owned());
        }
    }
}
