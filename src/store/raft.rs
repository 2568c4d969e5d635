//! The consensus part of the log file: vote, log, marks, snapshot, and who this directory is.
//!
//! Everything is written by the log file's writer in the order in which it was handed over, in the same
//! transactions as all else, and answered after the commit. The mark of what is committed costs no
//! transaction of its own: the newest one rides on whatever is written next. It was told after all that was
//! handed over before it, so it never gets to the disk ahead of the entries that it speaks of.
//!
//! What an entry or a snapshot means is not known here.

use std::fmt;

use rusqlite::Connection;
use rusqlite::OptionalExtension;
use rusqlite::Transaction;

use crate::store::Store;
use crate::store::blocking;
use crate::store::error::StoreError;
use crate::store::error::WriteError;
use crate::store::health::Which;
use crate::store::log::Job;
use crate::store::schema;
use crate::store::writer::Message;

const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// Who this directory is to the other regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random, drawn at the first start of a new, wiped or restored directory.
    pub voter: u64,
    /// Random, drawn when the cluster was founded; none before this directory has founded or joined one.
    pub cluster: Option<u64>,
}

/// A place in the consensus log. Later places are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// Index of the entry, from 0 without holes.
    pub index: u64,
}

/// A vote as it was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredVote {
    /// Term of the election.
    pub term: u64,
    /// The candidate that got the vote.
    pub voter: u64,
    /// Whether that candidate is known to have been elected.
    pub is_committed: bool,
}

/// An entry of the log as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its place.
    pub place: LogPlace,
    /// What it says, as the caller wrote it.
    pub body: Vec<u8>,
}

/// A snapshot as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Index of the newest entry in it.
    pub index: u64,
    /// Which place and members it stands for, as the caller wrote it.
    pub meta: Vec<u8>,
    /// The state.
    pub body: Vec<u8>,
}

/// Where the log stands on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftMarks {
    /// The newest vote.
    pub vote: Option<StoredVote>,
    /// Known to be committed. May be behind what was known when the process ended.
    pub committed: Option<LogPlace>,
    /// The newest entry that was deleted because a snapshot holds what it did.
    pub purged: Option<LogPlace>,
    /// The last entry; the purged one when there is none after it.
    pub last: Option<LogPlace>,
}

/// Something to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaftWrite {
    /// Entries that follow the last one.
    Append(Vec<StoredEntry>),
    /// A vote.
    Vote(StoredVote),
    /// Deletes all entries after an index, or all of them.
    Truncate {
        /// The last index that stays.
        after: Option<u64>,
    },
    /// Deletes all entries up to and with a place.
    Purge(LogPlace),
    /// Takes the place of the snapshot before it, unless that one goes further.
    Snapshot(StoredSnapshot),
    /// Nothing but the mark of what is committed; is answered after all before it.
    Barrier,
}

/// What is called with the outcome of a write, once, on the writer's thread. It must not block.
pub struct RaftDone(Option<Box<Done>>);

type Done = dyn FnOnce(Result<(), StoreError>) + Send;

impl RaftDone {
    /// Calls `done` when the write is on disk or has failed.
    pub fn new(done: impl FnOnce(Result<(), StoreError>) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }

    fn call(mut self, outcome: Result<(), StoreError>) {
        if let Some(done) = self.0.take() {
            done(outcome);
        }
    }
}

impl Drop for RaftDone {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(StoreError::Closed));
        }
    }
}

impl fmt::Debug for RaftDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RaftDone")
    }
}

/// A write on its way through the queue.
#[derive(Debug)]
pub(super) struct RaftJob {
    pub write: RaftWrite,
    /// The newest committed place when it was handed over.
    pub committed: Option<LogPlace>,
    pub done: RaftDone,
    /// What it is answered when the transaction is committed.
    pub outcome: Result<(), StoreError>,
}

impl RaftJob {
    pub fn answer(self, committed: Result<(), StoreError>) {
        self.done.call(committed.and(self.outcome));
    }

    pub fn write(&mut self, tx: &Transaction<'_>) -> Result<(), WriteError> {
        self.outcome = Ok(());
        match &self.write {
            RaftWrite::Append(entries) => {
                // The one before may have failed just before the file was opened again. Its caller hears of
                // that, but may have handed this one over first.
                if let Some(reason) = hole_before(tx, entries)? {
                    self.outcome = Err(StoreError::Refused { reason });
                    return Ok(());
                }
                // An append whose commit failed may come to light when the file is opened again, and what
                // takes its place then replaces it.
                let mut insert = tx.prepare_cached(
                    "INSERT OR REPLACE INTO raft_log (idx, term, body) VALUES (?1, ?2, ?3)",
                )?;
                for StoredEntry { place, body } in entries {
                    insert.execute((place.index, place.term, body))?;
                }
            }
            RaftWrite::Vote(vote) => {
                tx.prepare_cached(
                    "INSERT OR REPLACE INTO raft_vote (one, term, voter, is_committed) \
                     VALUES (1, ?1, ?2, ?3)",
                )?
                .execute((
                    vote.term,
                    vote.voter.cast_signed(),
                    vote.is_committed,
                ))?;
            }
            RaftWrite::Truncate { after: Some(after) } => {
                tx.prepare_cached("DELETE FROM raft_log WHERE idx > ?1")?
                    .execute([after])?;
            }
            RaftWrite::Truncate { after: None } => {
                tx.execute("DELETE FROM raft_log", [])?;
            }
            RaftWrite::Purge(place) => {
                tx.prepare_cached("DELETE FROM raft_log WHERE idx <= ?1")?
                    .execute([place.index])?;
                write_mark(tx, PURGED, *place)?;
            }
            RaftWrite::Snapshot(snapshot) => {
                tx.prepare_cached(
                    "INSERT INTO raft_snapshot (one, idx, meta, body) VALUES (1, ?1, ?2, ?3) \
                     ON CONFLICT (one) DO UPDATE SET idx = ?1, meta = ?2, body = ?3 WHERE idx <= ?1",
                )?
                .execute((snapshot.index, &snapshot.meta, &snapshot.body))?;
            }
            RaftWrite::Barrier => {}
        }
        Ok(())
    }
}

/// What is missing between the log and these entries, if anything is.
fn hole_before(
    tx: &Transaction<'_>,
    entries: &[StoredEntry],
) -> Result<Option<String>, WriteError> {
    let Some(first) = entries.first().map(|entry| entry.place.index) else {
        return Ok(None);
    };
    let last: Option<u64> = tx
        .prepare_cached(
            "SELECT coalesce((SELECT max(idx) FROM raft_log), \
             (SELECT idx FROM raft_marks WHERE name = 'purged'))",
        )?
        .query_row([], |row| row.get(0))?;
    // An empty log may begin anywhere.
    let next = last.map_or(first, |last| last.saturating_add(1));
    Ok((first > next).then(|| format!("entry {first} does not follow, {next} is missing")))
}

fn write_mark(tx: &Transaction<'_>, name: &str, place: LogPlace) -> Result<(), WriteError> {
    tx.prepare_cached("INSERT OR REPLACE INTO raft_marks (name, term, idx) VALUES (?1, ?2, ?3)")?
        .execute((name, place.term, place.index))?;
    Ok(())
}

pub(super) fn write_committed(tx: &Transaction<'_>, place: LogPlace) -> Result<(), WriteError> {
    write_mark(tx, COMMITTED, place)
}

/// Reads who the directory is; a directory that is nobody yet becomes `fresh`.
pub(super) fn identify(tx: &Transaction<'_>, fresh: u64) -> rusqlite::Result<Identity> {
    tx.execute(
        "INSERT OR IGNORE INTO identity (one, voter) VALUES (1, ?1)",
        [fresh.cast_signed()],
    )?;
    tx.query_row("SELECT voter, cluster FROM identity", [], |row| {
        Ok(Identity {
            voter: row.get::<_, i64>(0)?.cast_unsigned(),
            cluster: row.get::<_, Option<i64>>(1)?.map(i64::cast_unsigned),
        })
    })
}

/// Sets the cluster unless another one is set; answers which one is.
pub(super) fn join_cluster(tx: &Transaction<'_>, cluster: u64) -> Result<u64, WriteError> {
    tx.prepare_cached("UPDATE identity SET cluster = ?1 WHERE cluster IS NULL")?
        .execute([cluster.cast_signed()])?;
    let joined: i64 = tx
        .prepare_cached("SELECT cluster FROM identity")?
        .query_row([], |row| row.get(0))?;
    Ok(joined.cast_unsigned())
}

impl Store {
    /// Who this directory is.
    pub fn identity(&self) -> Identity {
        *self.inner.identity.lock()
    }

    /// Says which cluster this directory belongs to, for good; answered when it is on disk.
    ///
    /// # Errors
    /// When it belongs to another one already, or when the store has failed or is closed.
    pub async fn set_cluster(&self, cluster: u64) -> Result<(), StoreError> {
        let joined = self
            .write_log(|to| Job::Cluster {
                cluster,
                joined: cluster,
                to,
            })
            .await?;
        self.inner.identity.lock().cluster = Some(joined);
        if joined == cluster {
            Ok(())
        } else {
            Err(StoreError::Refused {
                reason: format!("this directory belongs to cluster {joined:016x} already"),
            })
        }
    }

    /// Tells the newest committed place, which the next write of any kind takes along. Call it after what it
    /// speaks of was handed over.
    pub fn raft_committed(&self, place: LogPlace) {
        let mut committed = self.inner.raft_committed.lock();
        *committed = (*committed).max(Some(place));
    }

    pub(super) fn raft_committed_now(&self) -> Option<LogPlace> {
        *self.inner.raft_committed.lock()
    }

    /// Hands a write over, waiting only for a place in the queue. `done` gets the outcome; outcomes come in
    /// the order of the calls.
    pub async fn raft_write(&self, write: RaftWrite, done: RaftDone) {
        if let Some(error) = self.inner.health.refusal(Which::Log) {
            done.call(Err(error));
            return;
        }
        // The mark is read when the place in the queue is taken, so that it never overtakes an entry.
        match self.inner.log.reserve().await {
            Ok(place) => place.send(Message::Job(Job::Raft(RaftJob {
                write,
                committed: self.raft_committed_now(),
                done,
                outcome: Ok(()),
            }))),
            Err(_) => done.call(Err(StoreError::Closed)),
        }
    }

    /// Why nothing is written to the consensus log at the moment, if nothing is: cheap to ask.
    pub fn raft_refusal(&self) -> Option<StoreError> {
        self.inner.health.refusal(Which::Log)
    }

    /// Where the log stands on disk.
    ///
    /// # Errors
    /// When the log file cannot be read.
    pub async fn raft_marks(&self) -> Result<RaftMarks, StoreError> {
        self.read_raft(read_marks).await
    }

    /// The entries from `from` to before `to`, oldest first, as far as they are on disk: at most `bytes_max`
    /// bytes of them, but at least one.
    ///
    /// # Errors
    /// When the log file cannot be read.
    pub async fn raft_entries(
        &self,
        from: u64,
        to: u64,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        self.read_raft(move |reader| read_entries(reader, from, to, bytes_max))
            .await
    }

    /// The newest snapshot, if there is one.
    ///
    /// # Errors
    /// When the log file cannot be read.
    pub async fn raft_snapshot(&self) -> Result<Option<StoredSnapshot>, StoreError> {
        self.read_raft(|reader| {
            reader
                .query_row("SELECT idx, meta, body FROM raft_snapshot", [], |row| {
                    Ok(StoredSnapshot {
                        index: row.get(0)?,
                        meta: row.get(1)?,
                        body: row.get(2)?,
                    })
                })
                .optional()
        })
        .await
    }

    async fn read_raft<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        blocking(move || {
            // One connection is kept; a second reader at the same time opens its own.
            let kept = store.inner.raft_reader.lock().take();
            let reader = match kept {
                Some(reader) => reader,
                None => schema::open_reader(&store.inner.log_path)?,
            };
            let answer = read(&reader)?;
            *store.inner.raft_reader.lock() = Some(reader);
            Ok(answer)
        })
        .await
    }
}

fn read_mark(view: &Connection, name: &str) -> rusqlite::Result<Option<LogPlace>> {
    view.query_row(
        "SELECT term, idx FROM raft_marks WHERE name = ?1",
        [name],
        place_of,
    )
    .optional()
}

fn place_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<LogPlace> {
    Ok(LogPlace {
        term: row.get(0)?,
        index: row.get(1)?,
    })
}

fn read_marks(reader: &Connection) -> rusqlite::Result<RaftMarks> {
    let view = reader.unchecked_transaction()?;
    let vote = view
        .query_row(
            "SELECT term, voter, is_committed FROM raft_vote",
            [],
            |row| {
                Ok(StoredVote {
                    term: row.get(0)?,
                    voter: row.get::<_, i64>(1)?.cast_unsigned(),
                    is_committed: row.get(2)?,
                })
            },
        )
        .optional()?;
    let purged = read_mark(&view, PURGED)?;
    let last = view
        .query_row(
            "SELECT term, idx FROM raft_log ORDER BY idx DESC LIMIT 1",
            [],
            place_of,
        )
        .optional()?;
    Ok(RaftMarks {
        vote,
        committed: read_mark(&view, COMMITTED)?,
        purged,
        last: last.or(purged),
    })
}

fn read_entries(
    reader: &Connection,
    from: u64,
    to: u64,
    bytes_max: usize,
) -> rusqlite::Result<Vec<StoredEntry>> {
    let mut select = reader.prepare_cached(
        "SELECT term, idx, body FROM raft_log WHERE idx >= ?1 AND idx < ?2 ORDER BY idx",
    )?;
    let to = to.min(u64::MAX >> 1);
    let mut rows = select.query((from.min(to), to))?;
    let mut entries: Vec<StoredEntry> = Vec::new();
    let mut bytes = 0_usize;
    while let Some(row) = rows.next()? {
        let entry = StoredEntry {
            place: place_of(row)?,
            body: row.get(2)?,
        };
        bytes = bytes.saturating_add(entry.body.len());
        if bytes > bytes_max && !entries.is_empty() {
            break;
        }
        entries.push(entry);
    }
    Ok(entries)
}
