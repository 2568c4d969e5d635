//! What is written to the counter file: flushes now, rows a little later.
//!
//! A flush appends what changed as one blob per few thousand records, which costs a fraction of writing
//! rows; the fold turns them into rows in the background.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use rusqlite::OptionalExtension;
use rusqlite::Transaction;

use crate::domain::time::Timestamp;
use crate::ledger::hold::HoldRecord;
use crate::store::error::StoreError;
use crate::store::error::WriteError;
use crate::store::fold::Backlog;
use crate::store::fold::Fold;
use crate::store::format;
use crate::store::sweep::COUNTER_ROWS;
use crate::store::sweep::Cursor;
use crate::store::sweep::HOLD_ROWS;
use crate::store::writer::Lane;
use crate::store::writer::Reply;
use crate::store::writer::reply;
use crate::usage::record::CounterRecord;

/// Records in one blob: bounds what one step of the fold has to read.
const RECORDS_PER_GROUP: usize = 4_096;

/// Names a moment in the history of sync charges: everything kept up to then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncMark(pub(super) u64);

/// What has changed since the last flush.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Counters.
    pub records: Vec<CounterRecord>,
    /// Holds.
    pub holds: Vec<HoldRecord>,
    /// Region time.
    pub now: Timestamp,
    /// Given when, with this flush and the ones committed before, everything is flushed that had been
    /// charged when the mark was taken. Take the mark *before* collecting what changed.
    pub covers: Option<SyncMark>,
}

/// A flush that did not happen, with everything that was to be flushed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unflushed {
    /// Why.
    pub error: StoreError,
    /// What is still to be flushed.
    pub batch: Box<Batch>,
}

impl From<Unflushed> for StoreError {
    fn from(unflushed: Unflushed) -> Self {
        unflushed.error
    }
}

pub(super) enum Job {
    Flush(Box<Batch>, Reply<Result<(), Unflushed>>),
    Tend {
        now: Timestamp,
        more: bool,
        to: Reply<Result<bool, StoreError>>,
    },
}

pub(super) struct CounterLane {
    /// Newest sync record whose charges are in a committed flush.
    covered: Arc<AtomicU64>,
    backlog: Backlog,
    /// What the backlog becomes when the running transaction is committed.
    next_backlog: Backlog,
    fold: Fold,
    counters: Cursor,
    holds: Cursor,
}

impl CounterLane {
    /// Reads where the file stands.
    pub fn new(connection: &Connection, covered: Arc<AtomicU64>) -> rusqlite::Result<Self> {
        Ok(Self {
            covered,
            backlog: Backlog::read(connection)?,
            next_backlog: Backlog::default(),
            fold: Fold::default(),
            counters: Cursor::default(),
            holds: Cursor::default(),
        })
    }

    fn append(&mut self, tx: &Transaction<'_>, batch: &Batch) -> Result<(), WriteError> {
        let mut records = batch.records.as_slice();
        let mut holds = batch.holds.as_slice();
        while !(records.is_empty() && holds.is_empty()) {
            let (some_records, more_records) =
                records.split_at(records.len().min(RECORDS_PER_GROUP));
            let (some_holds, more_holds) = holds.split_at(holds.len().min(RECORDS_PER_GROUP));
            let body = format::encode_group(some_records, some_holds);
            let count = some_records.len() + some_holds.len();
            tx.prepare_cached("INSERT INTO journal (at, records, body) VALUES (?1, ?2, ?3)")?
                .execute((batch.now.as_nanos(), count, &body))?;
            self.next_backlog.add(count, body.len(), batch.now);
            (records, holds) = (more_records, more_holds);
        }
        Ok(())
    }

    fn tend(&mut self, tx: &Transaction<'_>, now: Timestamp) -> Result<bool, WriteError> {
        let mut more = self.fold.step(tx, &mut self.next_backlog, now)?;
        more |= self.counters.step(tx, &COUNTER_ROWS, now)?;
        more |= self.holds.step(tx, &HOLD_ROWS, now)?;
        Ok(more)
    }
}

impl Lane for CounterLane {
    type Job = Job;

    fn write(&mut self, tx: &Transaction<'_>, jobs: &mut [Job]) -> Result<(), WriteError> {
        self.next_backlog = self.backlog;
        let mut last_time = None;
        for job in jobs {
            match job {
                Job::Flush(batch, _) => {
                    self.append(tx, batch)?;
                    last_time = Some(batch.now);
                }
                Job::Tend { now, more, .. } => *more = self.tend(tx, *now)?,
            }
        }
        if let Some(last_time) = last_time {
            tx.prepare_cached("UPDATE counter_meta SET last_time = ?1")?
                .execute([last_time.as_nanos()])?;
        }
        Ok(())
    }

    fn committed(&mut self, jobs: Vec<Job>) {
        self.backlog = self.next_backlog;
        for job in jobs {
            match job {
                Job::Flush(batch, to) => {
                    if let Some(mark) = batch.covers {
                        self.covered.fetch_max(mark.0, Ordering::Release);
                    }
                    reply(to, Ok(()));
                }
                Job::Tend { more, to, .. } => reply(to, Ok(more)),
            }
        }
    }

    fn rolled_back(&mut self) {
        self.fold.abandon();
        self.counters = Cursor::default();
        self.holds = Cursor::default();
    }

    fn refuse(job: Job, error: &StoreError) {
        match job {
            Job::Flush(batch, to) => reply(
                to,
                Err(Unflushed {
                    error: error.clone(),
                    batch,
                }),
            ),
            Job::Tend { to, .. } => reply(to, Err(error.clone())),
        }
    }

    /// Damage in the oldest group would make the next fold fail: the store stays failed until it is mended.
    fn probe(&mut self, tx: &Transaction<'_>) -> Result<(), WriteError> {
        let oldest = "SELECT body FROM journal ORDER BY id LIMIT 1";
        let body: Option<Vec<u8>> = tx
            .prepare_cached(oldest)?
            .query_row([], |row| row.get(0))
            .optional()?;
        if let Some(body) = body {
            format::decode_group(&body)?;
        }
        Ok(())
    }
}
