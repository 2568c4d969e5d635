//! What is written to the log file: sync charges with their answers, the catalogue's changes, and what
//! `raft.rs` says.
//!
//! All `keep` calls of one transaction become one sync record. A sync record is deleted only when the
//! counter file is known to hold what it says, durably: the caller has said which mark a committed flush
//! covers, and a checkpoint after that flush was complete (see `Store::tend`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use rusqlite::OptionalExtension;
use rusqlite::Transaction;

use crate::domain::time::Timestamp;
use crate::ledger::hold::HoldRecord;
use crate::ledger::idempotency::KeptAnswer;
use crate::store::error::StoreError;
use crate::store::error::WriteError;
use crate::store::format;
use crate::store::raft;
use crate::store::raft::LogPlace;
use crate::store::raft::RaftJob;
use crate::store::sweep::ANSWERS;
use crate::store::sweep::Cursor;
use crate::store::writer::Lane;
use crate::store::writer::Reply;
use crate::store::writer::reply;
use crate::usage::record::CounterRecord;

/// Changes that the audit keeps; older ones go once a snapshot covers them.
const CHANGES_KEPT: u64 = 100_000;
/// Surplus at which the oldest changes are deleted, so that not every change pays for it.
const CHANGES_SURPLUS: u64 = 1_000;
/// Sync records deleted in one step.
const SYNC_TRIMMED_PER_STEP: u64 = 512;

/// Something that must be on disk before it is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The counters that were charged, as they are after the charge.
    pub records: Vec<CounterRecord>,
    /// The holds that were made or changed.
    pub holds: Vec<HoldRecord>,
    /// The answers that a repeat gets again.
    pub answers: Vec<KeptAnswer>,
    /// Region time.
    pub now: Timestamp,
}

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Place in the log; higher than that of every change before.
    pub index: u64,
    /// Region time of the change.
    pub at: Timestamp,
    /// Who made it.
    pub author: String,
    /// What it did, for people.
    pub summary: String,
    /// The change itself.
    pub entry: Vec<u8>,
    /// The whole catalogue after the change, now and then: a start then reads no older change.
    pub snapshot: Option<Vec<u8>>,
}

pub(super) enum Job {
    Keep(Kept, Reply<Result<(), StoreError>>),
    Append {
        change: Change,
        outcome: Result<(), StoreError>,
        to: Reply<Result<(), StoreError>>,
    },
    Tend {
        now: Timestamp,
        trim_to: u64,
        committed: Option<LogPlace>,
        more: bool,
        to: Reply<Result<bool, StoreError>>,
    },
    Raft(RaftJob),
    Cluster {
        cluster: u64,
        joined: u64,
        to: Reply<Result<u64, StoreError>>,
    },
}

pub(super) struct LogLane {
    /// Newest committed sync record.
    mark: Arc<AtomicU64>,
    /// Newest committed change.
    index: u64,
    changes: u64,
    /// The mark of what is committed in the consensus log, as it was last written.
    committed: Option<LogPlace>,
    answers: Cursor,
    /// What these become when the running transaction is committed.
    next: Next,
}

#[derive(Clone, Copy, Debug, Default)]
struct Next {
    mark: u64,
    index: u64,
    changes: u64,
    committed: Option<LogPlace>,
}

impl LogLane {
    /// Reads where the file stands.
    pub fn new(connection: &Connection, mark: Arc<AtomicU64>) -> rusqlite::Result<Self> {
        let newest = "SELECT coalesce(max(idx), 0), count(*) FROM changes";
        let (index, changes) =
            connection.query_row(newest, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let covered = "SELECT coalesce(max(idx), 0) FROM snapshot";
        let snapshot: u64 = connection.query_row(covered, [], |row| row.get(0))?;
        let last = "SELECT coalesce(max(id), 0) FROM sync";
        mark.store(
            connection.query_row(last, [], |row| row.get(0))?,
            Ordering::Release,
        );
        let index = snapshot.max(index);
        Ok(Self {
            mark,
            index,
            changes,
            committed: None,
            answers: Cursor::default(),
            next: Next::default(),
        })
    }

    fn keep(&mut self, tx: &Transaction<'_>, jobs: &[Job]) -> Result<(), WriteError> {
        let kept = || {
            jobs.iter().filter_map(|job| match job {
                Job::Keep(kept, _) => Some(kept),
                Job::Append { .. } | Job::Tend { .. } | Job::Raft(_) | Job::Cluster { .. } => None,
            })
        };
        let records: Vec<&CounterRecord> = kept().flat_map(|kept| &kept.records).collect();
        let holds: Vec<&HoldRecord> = kept().flat_map(|kept| &kept.holds).collect();
        if !(records.is_empty() && holds.is_empty()) {
            let at = kept().next_back().map_or(Timestamp::EPOCH, |kept| kept.now);
            let body = format::encode_group(&records, &holds);
            self.next.mark += 1;
            tx.prepare_cached("INSERT INTO sync (id, at, body) VALUES (?1, ?2, ?3)")?
                .execute((self.next.mark, at.as_nanos(), body))?;
        }
        let mut insert = tx.prepare_cached(
            "INSERT OR REPLACE INTO answers (request, expires_at, body) VALUES (?1, ?2, ?3)",
        )?;
        for answer in kept().flat_map(|kept| &kept.answers) {
            insert.execute((
                format::encode_request(&answer.request),
                answer.expires_at.as_nanos(),
                format::encode_answer(answer),
            ))?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        tx: &Transaction<'_>,
        change: &Change,
    ) -> Result<Result<(), StoreError>, WriteError> {
        if change.index <= self.next.index {
            let reason = format!(
                "change {} is not newer than {}",
                change.index, self.next.index
            );
            return Ok(Err(StoreError::Refused { reason }));
        }
        // A change whose commit failed may come to light again when the file is reopened; it was never
        // acknowledged, so the one that now takes its place replaces it.
        tx.prepare_cached(
            "INSERT OR REPLACE INTO changes (idx, at, author, summary, entry) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((
            change.index,
            change.at.as_nanos(),
            &change.author,
            &change.summary,
            &change.entry,
        ))?;
        if let Some(snapshot) = &change.snapshot {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO snapshot (one, idx, body) VALUES (1, ?1, ?2)",
            )?
            .execute((change.index, snapshot))?;
        }
        self.next.index = change.index;
        self.next.changes += 1;
        if self.next.changes > CHANGES_KEPT + CHANGES_SURPLUS {
            self.forget_changes(tx)?;
        }
        Ok(Ok(()))
    }

    fn forget_changes(&mut self, tx: &Transaction<'_>) -> Result<(), WriteError> {
        let newest_surplus: Option<u64> = tx
            .prepare_cached("SELECT idx FROM changes ORDER BY idx DESC LIMIT 1 OFFSET ?1")?
            .query_row([CHANGES_KEPT], |row| row.get(0))
            .optional()?;
        if let Some(newest_surplus) = newest_surplus {
            let deleted = tx
                .prepare_cached(
                    "DELETE FROM changes WHERE idx <= ?1 AND idx <= (SELECT max(idx) FROM snapshot)",
                )?
                .execute([newest_surplus])?;
            self.next.changes = self
                .next
                .changes
                .saturating_sub(u64::try_from(deleted).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn tend(
        &mut self,
        tx: &Transaction<'_>,
        now: Timestamp,
        trim_to: u64,
    ) -> Result<bool, WriteError> {
        let first: Option<u64> = tx
            .prepare_cached("SELECT min(id) FROM sync")?
            .query_row([], |row| row.get(0))?;
        let mut more = false;
        if let Some(first) = first.filter(|first| *first <= trim_to) {
            let last = trim_to.min(first.saturating_add(SYNC_TRIMMED_PER_STEP - 1));
            tx.prepare_cached("DELETE FROM sync WHERE id <= ?1")?
                .execute([last])?;
            more = last < trim_to;
        }
        more |= self.answers.step(tx, &ANSWERS, now)?;
        Ok(more)
    }
}

impl Lane for LogLane {
    type Job = Job;

    fn write(&mut self, tx: &Transaction<'_>, jobs: &mut [Job]) -> Result<(), WriteError> {
        self.next = Next {
            mark: self.mark.load(Ordering::Relaxed),
            index: self.index,
            changes: self.changes,
            committed: self.committed,
        };
        self.keep(tx, jobs)?;
        for job in jobs {
            match job {
                Job::Keep(..) => {}
                Job::Append {
                    change, outcome, ..
                } => *outcome = self.append(tx, change)?,
                Job::Tend {
                    now,
                    trim_to,
                    committed,
                    more,
                    ..
                } => {
                    *more = self.tend(tx, *now, *trim_to)?;
                    self.next.committed = self.next.committed.max(*committed);
                }
                Job::Raft(job) => {
                    job.write(tx)?;
                    self.next.committed = self.next.committed.max(job.committed);
                }
                Job::Cluster {
                    cluster, joined, ..
                } => *joined = raft::join_cluster(tx, *cluster)?,
            }
        }
        if let Some(committed) = self.next.committed
            && self.next.committed != self.committed
        {
            raft::write_committed(tx, committed)?;
        }
        Ok(())
    }

    fn committed(&mut self, jobs: Vec<Job>) {
        self.index = self.next.index;
        self.changes = self.next.changes;
        self.committed = self.next.committed;
        self.mark.store(self.next.mark, Ordering::Release);
        for job in jobs {
            match job {
                Job::Keep(_, to) => reply(to, Ok(())),
                Job::Append { outcome, to, .. } => reply(to, outcome),
                Job::Tend { more, to, .. } => reply(to, Ok(more)),
                Job::Raft(job) => job.answer(Ok(())),
                Job::Cluster { joined, to, .. } => reply(to, Ok(joined)),
            }
        }
    }

    fn rolled_back(&mut self) {
        self.answers = Cursor::default();
    }

    fn refuse(job: Job, error: &StoreError) {
        match job {
            Job::Keep(_, to) | Job::Append { to, .. } => reply(to, Err(error.clone())),
            Job::Tend { to, .. } => reply(to, Err(error.clone())),
            Job::Raft(job) => job.answer(Err(error.clone())),
            Job::Cluster { to, .. } => reply(to, Err(error.clone())),
        }
    }

    fn probe(&mut self, _tx: &Transaction<'_>) -> Result<(), WriteError> {
        Ok(())
    }
}
